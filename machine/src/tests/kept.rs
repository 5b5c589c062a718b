//! Data of volumes: kept or destroyed as requested, and in no other case.

use chancery_events::fact::Fact;
use chancery_events::observation::{IncarnationExit, ObservedState, RetryClass};
use chancery_events::refusal::RefusalCode;
use serde_json::json;

use super::setting::{
    GB, apply, ask, claim, drain, live, made, named, names, only_replica, own, payload, put, running, settle,
    stopped, vanished, world,
};
use crate::testing::{crashed, ended, failed};

#[test]
fn what_happens_to_a_volume_is_what_the_version_sets_that_used_it_last() {
    for (first, then, left) in [("destroy", "keep", 1), ("keep", "destroy", 0)] {
        let mut world = world(1, 4 * GB);
        running(&mut world, "web", 1, &json!([claim(None, first, GB, "/data")]), &json!({}));
        apply(&mut world, "web", &json!([claim(None, then, GB, "/data")]), &json!({}));
        put(&mut world, "web", "d2", 1);
        world.obey();
        assert_eq!(world.deployment_of("web", "d2"), "completed");
        ask(&mut world, "delete");
        world.obey();
        assert_eq!(names(&world).len(), left, "{first}, then {then}");
    }
}

#[test]
fn one_in_which_nothing_was_ever_started_is_deleted_with_its_replica() {
    for (observed, left) in [(failed(RetryClass::Permanent), 0), (crashed(), 1)] {
        let mut world = world(1, 4 * GB);
        apply(&mut world, "web", &own(), &json!({}));
        put(&mut world, "web", "d1", 1);
        world.report_volume(&names(&world)[0], made());
        let run = world.commanded()[0];
        world.report(run, observed.clone());
        world.report(run, ObservedState::Gone);
        ask(&mut world, "delete");
        world.obey();
        assert_eq!(names(&world).len(), left, "{observed:?}");
    }
}

#[test]
fn a_cluster_that_has_volumes_is_not_deleted() {
    for on_delete in ["keep", "destroy"] {
        let mut world = world(1, 10 * GB);
        running(&mut world, "web", 1, &json!([claim(None, on_delete, GB, "/data")]), &json!({}));
        world.must("plan.delete", &json!({"name": "web", "cascade": "yes"}));
        world.run();
        world.report(world.commanded()[0], ended(IncarnationExit::Clean));
        world.must("node.set_state", &json!({"name": "node-1", "state": "evicted"}));
        let refused = world.ask("cluster.delete", &json!({"name": "local"})).expect_err(on_delete);
        assert_eq!(
            refused.code,
            RefusalCode::InUse,
            "kept, or being destroyed: another report would call it lost"
        );
    }
}

#[test]
fn a_drained_node_returns_only_to_the_cluster_of_its_kept_volumes() {
    let mut world = world(2, 10 * GB);
    running(&mut world, "web", 1, &own(), &json!({}));
    stopped(&mut world);
    let node = world.fleet.volumes().sorted()[0].node.to_string();
    drain(&mut world, &node);
    let state = |world: &crate::testing::TestFleet| world.fleet.nodes().get(node.as_str()).expect("it").state;
    assert_eq!(state(&world).word(), "evicted");
    let to = |state: &str, cluster: Option<&str>| json!({"name": node, "state": state, "cluster": cluster});
    world.ask("node.set_state", &to("sanitizing", None)).expect_err("its data would go");
    world.must("cluster.apply", &json!({"name": "other", "spec": {"runtime": "process"}}));
    world.ask("node.set_state", &to("allocated", Some("other"))).expect_err("its data is not there");
    world.must("node.set_state", &to("allocated", Some("local")));
    assert_eq!(state(&world).word(), "allocated");
    ask(&mut world, "start");
    world.obey();
    assert_eq!(live(&world), ["running"]);
}

#[test]
fn what_was_declared_lost_and_is_there_after_all_is_used_again() {
    for (observed, expunged, left) in
        [(ObservedState::Gone, false, "running"), (vanished(), false, "running"), (vanished(), true, "")]
    {
        let mut world = world(1, 10 * GB);
        running(&mut world, "web", 1, &own(), &json!({}));
        let volume = names(&world)[0].clone();
        world.report_volume(&volume, observed.clone());
        world.report(world.commanded()[0], crashed());
        if expunged {
            world.must("node.set_state", &json!({"name": "node-1", "state": "expunged"}));
        }
        // Its disk was mounted late.
        world.report_volume(&volume, made());
        settle(&mut world);
        assert_eq!(live(&world).concat(), left, "{observed:?}, {expunged}");
    }
}

#[test]
fn two_claims_are_two_volumes() {
    let mut world = world(1, 10 * GB);
    let (first, other) = (claim(None, "keep", GB, "/b-c"), claim(None, "keep", GB, "/c"));
    let payloads = json!([payload("a", &json!([first])), payload("a-b", &json!([other]))]);
    running(&mut world, "web", 1, &json!([]), &json!({"payloads": payloads}));
    let made = world.log.iter().filter(|fact| matches!(fact, Fact::VolumeCreated(_))).count();
    assert_eq!((names(&world).len(), made), (2, 2), "{:?}", names(&world));
}

#[test]
fn a_second_set_and_a_second_user_are_refused() {
    let mut world = world(2, 10 * GB);
    running(&mut world, "web", 1, &own(), &json!({}));
    let blue_green = json!({"blue_green": {"timeout": 100_000, "on_timeout": "rollback"}});
    for strategy in [blue_green, json!({"canary": {"count": 1}})] {
        let spec = json!({"count": 1, "strategy": strategy});
        let asked = world.ask("deployment.create", &json!({"plan": "web", "name": "d2", "spec": spec}));
        let refusal = asked.expect_err("the new set would start without their data");
        assert!(refusal.errors.contains_key("/spec/strategy"), "{refusal:?}");
    }
    running(&mut world, "db", 1, &named("db"), &json!({}));
    let refusal = world.ask("replica.create", &json!({"plan": "db"})).expect_err("it would wait permanently");
    assert_eq!(refusal.code, RefusalCode::InUse);
    world.must("replica.create", &json!({"plan": "web"}));
    assert!(!only_replica(&world).is_empty());
}
