//! Volumes: created, used, handed over, moved and destroyed in the order of causes.

use chancery_events::fact::{CommandEffect, Fact};
use chancery_events::observation::{IncarnationExit, ObservedState, RetryClass};
use chancery_events::refusal::RefusalCode;
use serde_json::{Value, json};

use super::setting::{self, GB, live, made, names, only_replica, put, world};
use crate::state::VolumeState;
use crate::testing::{TestFleet, crashed};

fn claim(volume: Option<&str>, on_delete: &str) -> Value {
    json!([setting::claim(volume, on_delete, GB, "/data")])
}

fn apply(world: &mut TestFleet, plan: &str, volumes: &Value) {
    apply_with(world, plan, volumes, "");
}

/// Applies a plan whose operations of one kind are approved manually.
fn apply_with(world: &mut TestFleet, plan: &str, volumes: &Value, manual: &str) {
    setting::apply(world, plan, volumes, &json!({"restart": "on_failure", "manual": manual}));
}

#[test]
fn an_incarnation_starts_when_its_volume_is_ready_and_the_volume_outlives_it() {
    let mut world = world(2, 2 * GB);
    apply(&mut world, "web", &claim(None, "keep"));
    put(&mut world, "web", "d1", 1);
    let replica = only_replica(&world);
    let name = format!("{replica}-app-data");
    assert_eq!((names(&world), live(&world)), (vec![name.clone()], vec!["reserved"]));
    assert!(world.asked().next().is_none(), "the incarnation is not commanded yet");
    world.report_volume(&name, made());
    assert_eq!(live(&world), ["starting"]);
    world.obey();
    assert_eq!(world.deployment_of("web", "d1"), "completed");
    world.must("replica.stop", &json!({"name": replica}));
    world.run();
    world.obey();
    assert_eq!((names(&world), live(&world).len()), (vec![name.clone()], 0));
    let node = world.fleet.volumes().get(name.as_str()).expect("kept").node.clone();
    assert_eq!(world.fleet.index().places.held(&node).storage(&"fast".parse().expect("a class")), GB);
    world.must("replica.start", &json!({"name": replica}));
    world.run();
    assert_eq!(live(&world), ["starting"], "it exists and is unused");
    world.obey();
    let run =
        world.fleet.incarnations().sorted().into_iter().find(|run| run.is_live()).cloned().expect("it runs");
    assert_eq!(run.node, node, "where its data is");
}

#[test]
fn a_replicas_own_volume_is_kept_or_destroyed_with_it_as_its_plan_sets_after_its_incarnation() {
    for (on_delete, left) in [("keep", 1), ("destroy", 0)] {
        let mut world = world(1, 2 * GB);
        apply(&mut world, "web", &claim(None, on_delete));
        put(&mut world, "web", "d1", 1);
        world.obey();
        let replica = only_replica(&world);
        world.must("replica.delete", &json!({"name": replica}));
        world.run();
        let name = format!("{replica}-app-data");
        assert!(matches!(
            world.fleet.volumes().get(name.as_str()).map(|v| &v.state),
            Some(VolumeState::Ready)
        ));
        world.obey();
        assert_eq!(names(&world).len(), left, "{on_delete}");
        assert_eq!(world.fleet.replicas().len(), 0);
    }
}

#[test]
fn a_volume_is_handed_over_to_its_next_user_when_the_last_one_has_ended() {
    let mut world = world(2, 4 * GB);
    apply(&mut world, "old", &claim(Some("db"), "keep"));
    put(&mut world, "old", "d1", 1);
    world.obey();
    let (before, user) = {
        let volume = world.fleet.volumes().get("db").expect("it is there");
        (volume.id, volume.used_by)
    };
    // Together: the new service claims it, and the old one is deleted.
    apply(&mut world, "new", &claim(Some("db"), "keep"));
    put(&mut world, "new", "d1", 1);
    put(&mut world, "old", "d2", 0);
    assert_eq!(live(&world), ["stopping", "reserved"]);
    let db = |world: &TestFleet| world.fleet.volumes().get("db").expect("it is there").clone();
    assert_eq!(db(&world).used_by, user, "until the end is proved");
    world.obey();
    assert_eq!((live(&world), db(&world).id), (vec!["running"], before), "with all its data");
    assert_ne!(db(&world).used_by, user);
    assert_eq!(world.deployment_of("new", "d1"), "completed");
}

#[test]
fn what_is_deleted_together_is_deleted_user_first_and_what_replaces_it_is_made_after() {
    let mut world = world(1, GB);
    apply(&mut world, "web", &claim(Some("db"), "keep"));
    put(&mut world, "web", "d1", 1);
    world.obey();
    let old = world.fleet.volumes().get("db").expect("it is there").id;
    world.must("volume.delete", &json!({"name": "db"}));
    world.must("plan.delete", &json!({"name": "web", "cascade": "yes"}));
    apply(&mut world, "other", &claim(Some("db"), "keep"));
    put(&mut world, "other", "d1", 1);
    let command = |world: &TestFleet| {
        world.fleet.volumes().get("db").and_then(|volume| volume.command).map(|command| command.effect)
    };
    assert_eq!((live(&world)[0], command(&world)), ("stopping", None), "something uses it");
    let run = world.asked().next().expect("it is stopped");
    world.report(run, crate::testing::ended(IncarnationExit::Clean));
    assert_eq!(command(&world), Some(CommandEffect::Kill));
    world.report_volume("db", ObservedState::Gone);
    assert_eq!(command(&world), Some(CommandEffect::Ensure), "the next one of that name");
    world.obey();
    assert_ne!(world.fleet.volumes().get("db").expect("created again").id, old);
    assert_eq!((world.deployment_of("other", "d1").as_str(), live(&world)), ("completed", vec!["running"]));
    assert!(world.fleet.plans().get("web").is_none());
}

#[test]
fn a_move_is_stop_first_and_takes_the_storage_along() {
    let mut world = world(2, GB);
    apply(&mut world, "web", &claim(None, "keep"));
    put(&mut world, "web", "d1", 1);
    world.obey();
    let class = "fast".parse().expect("a class");
    let held = |world: &TestFleet, node: &str| {
        world.fleet.index().places.held(&node.parse().expect("a node")).storage(&class)
    };
    let from = world.fleet.volumes().sorted()[0].node.to_string();
    let to = if from == "node-1" { "node-2" } else { "node-1" };
    world.must("replica.relocate", &json!({"name": only_replica(&world)}));
    world.run();
    assert_eq!(live(&world), ["stopping", "reserved"]);
    assert_eq!((held(&world, &from), held(&world, to)), (GB, GB), "reserved in both until it has moved");
    world.obey();
    assert_eq!((live(&world), held(&world, &from), held(&world, to)), (vec!["running"], 0, GB));
    assert_eq!(world.fleet.volumes().sorted()[0].node.as_str(), to);
}

#[test]
fn a_volume_that_cannot_be_created_fails_its_users_alone_and_is_deleted() {
    let mut world = world(1, 4 * GB);
    apply(&mut world, "bad", &claim(Some("bad"), "keep"));
    apply(&mut world, "good", &claim(Some("good"), "keep"));
    put(&mut world, "bad", "d1", 1);
    put(&mut world, "good", "d1", 1);
    world.report_volume(
        "bad",
        ObservedState::Failed { message: "no space".into(), retry: RetryClass::Permanent },
    );
    assert_eq!(world.deployment_of("bad", "d1"), "failed");
    world.obey();
    assert_eq!(
        (world.deployment_of("good", "d1").as_str(), names(&world)),
        ("completed", vec!["good".to_owned()])
    );
    // A command that fails sometimes is repeated.
    put(&mut world, "bad", "d2", 1);
    world
        .report_volume("bad", ObservedState::Failed { message: "busy".into(), retry: RetryClass::Retryable });
    assert_eq!(world.fleet.volumes().get("bad").and_then(|v| v.command).map(|c| c.attempt), Some(2));
    world.wait(60);
    world.obey();
    assert_eq!(world.deployment_of("bad", "d2"), "completed");
}

#[test]
fn a_deployment_of_which_two_wait_for_what_cannot_be_made_fails_once() {
    let mut world = world(2, 2 * GB);
    apply_with(&mut world, "web", &claim(Some("db"), "keep"), "delete");
    put(&mut world, "web", "d1", 1);
    let replica = only_replica(&world);
    world.must("replica.delete", &json!({"name": replica}));
    world.run();
    assert_eq!(live(&world), ["reserved", "reserved"], "the one that may be deleted, and its replacement");
    let facts = world
        .report_volume("db", ObservedState::Failed { message: "no".into(), retry: RetryClass::Permanent });
    let failed = facts.iter().filter(|fact| matches!(fact, Fact::DeploymentHalted(_))).count();
    assert_eq!((failed, live(&world).len(), world.deployment_of("web", "d1").as_str()), (1, 0, "failed"));
}

#[test]
fn what_is_lost_is_not_recreated_before_an_operator_deletes_it() {
    let mut world = world(2, 2 * GB);
    apply(&mut world, "web", &claim(None, "keep"));
    put(&mut world, "web", "d1", 1);
    world.obey();
    let (name, replica) = (names(&world)[0].clone(), only_replica(&world));
    let gone = ObservedState::Ended {
        exit: IncarnationExit::Failed { reason: "its directory is missing".into() },
        processes: vec![],
    };
    world.report_volume(&name, gone);
    assert_eq!(live(&world), ["running"], "its user continues");
    let run = world.commanded()[0];
    world.report(run, crashed());
    world.wait(60);
    assert!(live(&world).is_empty());
    world.must("replica.start", &json!({"name": replica}));
    world.run();
    let reasons = format!("{:?}", world.fleet.plans().get("web").expect("the plan").unschedulable);
    assert!(reasons.contains("its directory is missing") && reasons.contains("delete it"), "{reasons}");
    world.must("volume.delete", &json!({"name": name}));
    world.run();
    world.obey();
    assert_eq!((live(&world), names(&world)), (vec!["running"], vec![name]));
}

#[test]
fn data_is_lost_with_its_node_on_the_operators_declaration_alone() {
    let mut world = world(2, 2 * GB);
    apply(&mut world, "web", &claim(None, "keep"));
    put(&mut world, "web", "d1", 1);
    world.obey();
    let (name, node) = (names(&world)[0].clone(), world.fleet.volumes().sorted()[0].node.clone());
    let forget = json!({"name": node});
    assert_eq!(world.ask("node.delete", &forget).expect_err("it is in use").code, RefusalCode::InUse);
    world.must("node.set_state", &json!({"name": node, "state": "expunged"}));
    world.run();
    assert!(matches!(world.fleet.volumes().get(name.as_str()).map(|v| &v.state), Some(VolumeState::Lost(_))));
    let refusal = world.ask("node.delete", &forget).expect_err("a volume is on it");
    assert!(refusal.code == RefusalCode::InUse && refusal.detail.contains(&name), "{refusal:?}");
    let lost = world.fleet.volumes().sorted()[0].id;
    world.must("volume.delete", &json!({"name": name}));
    world.run();
    let destroyed = |fact: &&Fact| matches!(fact, Fact::VolumeDestroyed(_));
    assert!(world.log.iter().any(|fact| destroyed(&fact)), "the operator's word needs no proof");
    world.obey();
    assert_ne!(world.fleet.volumes().sorted()[0].id, lost, "started again, with an empty one");
    world.must("node.delete", &forget);
}

#[test]
fn plans_set_what_volumes_can_do() {
    let mut world = world(1, GB);
    apply(&mut world, "web", &claim(Some("db"), "keep"));
    let two = json!({"plan": "web", "name": "d1", "spec": {"count": 2}});
    let refusal = world.ask("deployment.create", &two).expect_err("one user at a time");
    assert!(refusal.errors.contains_key("/spec/count"), "{refusal:?}");
    let graceful = json!({"blue_green": {"timeout": 1000, "on_timeout": "rollback"}});
    let second = json!({"plan": "web", "name": "d1", "spec": {"count": 1, "strategy": graceful}});
    let refusal = world.ask("deployment.create", &second).expect_err("two sets");
    assert!(refusal.errors.contains_key("/spec/strategy"), "{refusal:?}");
    put(&mut world, "web", "d1", 1);
    world.obey();
    // A class that differs from its own.
    let other = json!([{"volume": "db", "class": "slow", "capacity": GB, "mount": "/data"}]);
    apply(&mut world, "other", &other);
    put(&mut world, "other", "d1", 1);
    let reasons = format!("{:?}", world.fleet.plans().get("other").expect("the plan").unschedulable);
    assert!(reasons.contains("volume db is of class fast, not slow"), "{reasons}");
    let facts = world.must("volume.delete", &json!({"name": "db"}));
    assert!(facts.iter().any(|fact| matches!(fact, Fact::VolumeDeletionStarted(_))));
    assert!(world.must("volume.delete", &json!({"name": "db"})).is_empty(), "it is being deleted already");
}
