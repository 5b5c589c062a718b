//! Incarnations that wait for volumes: how long, what they replace, and how they end.

use chancery_events::fact::Fact;
use chancery_events::observation::SessionRequested;
use chancery_events::spec::ClusterRuntime;
use serde_json::json;

use super::setting::{
    GB, apply, ask, claim, live, named, names, node, own, put, running, runs, settle, vanished, world,
};
use crate::state::IncarnationState;
use crate::testing::{TestFleet, crashed, hello};

#[test]
fn a_move_is_not_started_to_where_the_volume_does_not_fit() {
    let mut world = world(1, 12 * GB);
    running(&mut world, "web", 1, &json!([claim(None, "keep", 10 * GB, "/data")]), &json!({}));
    // The request is smaller than the capacity.
    apply(&mut world, "web", &own(), &json!({}));
    put(&mut world, "web", "d2", 1);
    world.obey();
    node(&mut world, 2, 2 * GB);
    ask(&mut world, "relocate");
    world.obey();
    assert_eq!((live(&world), world.phases()), (vec!["running"], vec!["running"]));
}

#[test]
fn the_capacity_of_one_volume_is_not_that_of_another() {
    let mut world = world(1, 12 * GB);
    running(&mut world, "big", 1, &json!([claim(Some("db"), "keep", 10 * GB, "/db")]), &json!({}));
    put(&mut world, "big", "d2", 0);
    world.obey();
    node(&mut world, 2, 20 * GB);
    let both = json!([claim(Some("db"), "keep", GB, "/db"), claim(None, "keep", 5 * GB, "/log")]);
    running(&mut world, "web", 1, &both, &json!({}));
    assert_eq!(runs(&world, "web")[0].node.as_str(), "node-2", "which has capacity for both");
}

#[test]
fn plans_that_swap_their_volumes_fail_and_continue_unchanged() {
    let mut world = world(2, 10 * GB);
    running(&mut world, "a", 1, &named("x"), &json!({}));
    running(&mut world, "b", 1, &named("y"), &json!({}));
    apply(&mut world, "a", &named("y"), &json!({}));
    apply(&mut world, "b", &named("x"), &json!({}));
    put(&mut world, "a", "d2", 1);
    put(&mut world, "b", "d2", 1);
    world.obey();
    assert_eq!(live(&world), ["running", "running", "reserved", "reserved"]);
    settle(&mut world);
    assert_eq!(
        (world.deployment_of("a", "d2"), world.deployment_of("b", "d2")),
        ("failed".into(), "failed".into())
    );
    assert_eq!(live(&world), ["running", "running"]);
}

#[test]
fn what_runs_is_not_stopped_for_a_volume_that_another_one_uses() {
    let mut world = world(2, 10 * GB);
    running(&mut world, "other", 1, &named("y"), &json!({}));
    running(&mut world, "web", 1, &named("x"), &json!({}));
    let both = json!([claim(Some("x"), "keep", GB, "/x"), claim(Some("y"), "keep", GB, "/y")]);
    apply(&mut world, "web", &both, &json!({}));
    put(&mut world, "web", "d2", 1);
    settle(&mut world);
    assert_eq!(live(&world), ["running", "running"]);
    let why = format!("{:?}", world.fleet.plans().get("web").expect("the plan").unschedulable);
    assert!(why.contains("volume y is used by replica other-"), "{why}");
    put(&mut world, "other", "d2", 0);
    world.obey();
    settle(&mut world);
    assert_eq!((world.deployment_of("web", "d2").as_str(), live(&world)), ("completed", vec!["running"]));
}

#[test]
fn an_incarnation_that_waits_for_a_volume_has_a_deadline() {
    let mut world = world(2, 100 * GB);
    running(&mut world, "other", 1, &named("y"), &json!({}));
    apply(&mut world, "web", &named("y"), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.wait(299);
    assert_eq!(world.deployment_of("web", "d1"), "in progress");
    world.wait(2);
    assert_eq!((world.deployment_of("web", "d1").as_str(), live(&world)), ("failed", vec!["running"]));
    let why = world.log.iter().find_map(|fact| match fact {
        Fact::DeploymentHalted(fact) => Some(format!("{:?}", fact.end)),
        _ => None,
    });
    assert!(why.as_ref().is_some_and(|why| why.contains("volume y was used by replica other-")), "{why:?}");
}

#[test]
fn a_restart_keeps_its_volume_whichever_other_replica_waits_for_it() {
    let mut world = world(2, 100 * GB);
    running(&mut world, "a", 1, &named("y"), &json!({}));
    apply(&mut world, "b", &named("y"), &json!({}));
    put(&mut world, "b", "d1", 1);
    let replica = runs(&world, "a")[0].replica.clone();
    world.must("replica.restart", &json!({"name": replica}));
    world.run();
    world.obey();
    assert_eq!(
        runs(&world, "a").iter().map(|run| &run.state).collect::<Vec<_>>(),
        [&IncarnationState::Running]
    );
    assert_eq!(
        runs(&world, "b").iter().map(|run| &run.state).collect::<Vec<_>>(),
        [&IncarnationState::Reserved]
    );
}

#[test]
fn those_that_wait_for_lost_volumes_write_nothing_when_others_end() {
    let mut world = world(2, 100 * GB);
    running(&mut world, "web", 10, &own(), &json!({}));
    running(&mut world, "other", 3, &json!([]), &json!({"restart": "never"}));
    for volume in names(&world) {
        world.report_volume(&volume, vanished());
    }
    for plan in ["web", "other"] {
        world.log.clear();
        let ids: Vec<_> = runs(&world, plan).iter().map(|run| run.id).collect();
        for run in ids {
            world.report(run, crashed());
        }
        let written = world.log.iter().filter(|fact| matches!(fact, Fact::PlanUnschedulable(_))).count();
        assert_eq!(written, usize::from(plan == "web"), "{plan}: one of them speaks for all");
    }
}

#[test]
fn an_update_is_not_in_place_if_its_volumes_are_claimed_otherwise() {
    let mut world = TestFleet::new();
    world.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "simulated"}}));
    node(&mut world, 1, 10 * GB);
    world.see(&SessionRequested { runtime: ClusterRuntime::Simulated, ..hello("local", "ex-1", 1) }.into());
    running(&mut world, "web", 1, &own(), &json!({}));
    apply(&mut world, "web", &json!([claim(None, "keep", 50 * GB, "/data")]), &json!({}));
    put(&mut world, "web", "d2", 1);
    settle(&mut world);
    assert_eq!((world.deployment_of("web", "d2").as_str(), live(&world)), ("in progress", vec!["running"]));
    let why = format!("{:?}", world.fleet.plans().get("web").expect("the plan").unschedulable);
    assert!(why.contains("are requested"), "{why}");
}
