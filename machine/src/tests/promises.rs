//! Restarts that a plan's rule has promised, whatever happens in between.

use chancery_events::observation::{IncarnationExit, ObservedState, RetryClass};
use serde_json::json;

use super::setting::{
    GB, apply, ask, drain, live, names, only_replica, own, put, running, runs, settle, vanished, world,
};
use crate::testing::{TestFleet, crashed, ended, failed};

fn crash(world: &mut TestFleet) {
    let run = runs(world, "web")[0].id;
    world.report(run, crashed());
}

/// Creates a replica whose start waits for a volume that must be created again.
fn waits_for_its_volume() -> TestFleet {
    let mut world = world(2, 4 * GB);
    running(&mut world, "web", 1, &own(), &json!({}));
    let volume = names(&world)[0].clone();
    world.must("volume.delete", &json!({"name": volume}));
    crash(&mut world);
    assert_eq!(live(&world), ["reserved"]);
    world
}

#[test]
fn what_failed_for_its_volume_is_started_again() {
    let mut world = waits_for_its_volume();
    let volume = names(&world)[0].clone();
    world.report_volume(&volume, ObservedState::Gone);
    // The disk is full temporarily.
    world.report_volume(&volume, failed(RetryClass::Permanent));
    assert!(live(&world).is_empty());
    settle(&mut world);
    assert_eq!(live(&world), ["running"]);
}

#[test]
fn an_update_that_fails_for_its_volume_restores_the_previous_version() {
    let mut world = world(2, 4 * GB);
    running(&mut world, "web", 1, &json!([]), &json!({"update_order": "stop_first"}));
    apply(&mut world, "web", &own(), &json!({"update_order": "stop_first"}));
    put(&mut world, "web", "d2", 1);
    world.report(world.commanded()[0], ended(IncarnationExit::Clean));
    let volume = names(&world)[0].clone();
    world.report_volume(&volume, failed(RetryClass::Permanent));
    assert_eq!(world.deployment_of("web", "d2"), "failed");
    settle(&mut world);
    assert_eq!((live(&world), runs(&world, "web")[0].deployment.as_str()), (vec!["running"], "d1"));
}

#[test]
fn a_start_whose_node_is_expunged_while_it_waits_for_its_volume_runs_elsewhere() {
    for how in ["expunge", "drain"] {
        let mut world = waits_for_its_volume();
        let node = runs(&world, "web")[0].node.to_string();
        if how == "drain" {
            drain(&mut world, &node);
        } else {
            world.must("node.set_state", &json!({"name": node, "state": "expunged"}));
            world.run();
        }
        settle(&mut world);
        assert_eq!(live(&world), ["running"], "{how}");
        assert_ne!(runs(&world, "web")[0].node.as_str(), node, "{how}");
    }
}

#[test]
fn a_start_of_the_old_version_without_a_placement_is_replaced_by_the_new_one() {
    let labelled = |rack: &str| {
        let total = json!({"cpu": 4000, "memory": 8 * GB, "disk": 0});
        let storage = json!([{"class": "fast", "capacity": 10 * GB}]);
        let spec = json!({"domain": "d1", "labels": {"rack": rack}, "resources": total, "storage": storage});
        json!({"name": "node-1", "cluster": "local", "spec": spec})
    };
    let table = [
        ("label", json!([]), json!({"selectors": {"rack": "a"}}), "by rule"),
        ("label", json!([]), json!({"selectors": {"rack": "a"}}), "by hand"),
        ("volume", own(), json!({}), "by rule"),
    ];
    for (what, volumes, more, how) in table {
        let mut world = world(1, 10 * GB);
        world.must("node.apply", &labelled("a"));
        running(&mut world, "web", 1, &volumes, &more);
        world.must("node.apply", &labelled("b"));
        if let Some(volume) = names(&world).first() {
            world.report_volume(volume, vanished());
        }
        if how == "by hand" {
            ask(&mut world, "stop");
            world.obey();
            ask(&mut world, "start");
        } else {
            crash(&mut world);
        }
        settle(&mut world);
        assert!(live(&world).is_empty(), "{what}: there is no place for it");
        // Without a volume any rack is allowed.
        apply(&mut world, "web", &json!([]), &json!({}));
        let spec = json!({"count": 1, "coordinates": {"app": {"v": "2"}}});
        world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": spec}));
        world.run();
        world.obey();
        assert_eq!(
            (world.deployment_of("web", "d2").as_str(), live(&world)),
            ("completed", vec!["running"]),
            "{what}"
        );
    }
}

#[test]
fn what_ends_alongside_a_reservation_that_waits_for_approval_is_started_again() {
    for (kind, volumes) in [("relocate", json!([])), ("relocate", own()), ("restart", json!([]))] {
        let mut world = world(2, 10 * GB);
        running(&mut world, "web", 1, &volumes, &json!({"manual": kind}));
        ask(&mut world, kind);
        assert_eq!(world.pending().len(), 1);
        crash(&mut world);
        settle(&mut world);
        assert_eq!(live(&world), ["running"], "{kind}, {volumes}");
    }
}

#[test]
fn an_edit_of_the_rule_of_restarts_counts_for_every_later_end_and_start() {
    let mut world = world(2, 10 * GB);
    running(&mut world, "web", 1, &json!([]), &json!({"restart_delay": 60_000}));
    apply(&mut world, "web", &json!([]), &json!({"restart": "never", "restart_delay": 60_000}));
    crash(&mut world);
    settle(&mut world);
    assert_eq!(live(&world), Vec::<&str>::new(), "it ended under a policy with `never`");
    apply(&mut world, "web", &json!([]), &json!({"restart_delay": 60_000}));
    settle(&mut world);
    assert_eq!(live(&world), Vec::<&str>::new(), "a decision about an end is kept");
    ask(&mut world, "start");
    world.obey();
    crash(&mut world);
    world.obey();
    crash(&mut world);
    world.run();
    apply(&mut world, "web", &json!([]), &json!({"restart": "never", "restart_delay": 60_000}));
    settle(&mut world);
    assert_eq!(live(&world), Vec::<&str>::new(), "a start that was promised is not made any more");
}

#[test]
fn a_start_that_one_person_requests_and_another_rejects_leaves_the_rule_as_it_was() {
    for how in ["person", "deployment"] {
        let mut world = world(2, 10 * GB);
        running(&mut world, "web", 1, &json!([]), &json!({"manual": "start", "restart_delay": 60_000}));
        for _ in 0..2 {
            crash(&mut world);
            world.obey();
        }
        assert!(live(&world).is_empty(), "it cools down");
        if how == "person" {
            ask(&mut world, "start");
        } else {
            let spec = json!({"count": 1, "coordinates": {"app": {"v": "2"}}});
            world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": spec}));
            world.run();
        }
        world.reject(world.pending()[0].id).expect("rejected");
        settle(&mut world);
        assert_eq!(live(&world), ["running"], "{how}: {}", only_replica(&world));
    }
}
