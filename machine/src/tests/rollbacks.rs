//! Rollbacks to the version of an earlier completed deployment, by people and by `auto_rollback`.

use chancery_events::fact::{CommandEffect, Fact};
use chancery_events::observation::{IncarnationExit, RetryClass};
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::{DeploymentStrategy, OperationKind};
use serde_json::{Value, json};

use crate::state::Deployment;
use crate::testing::{TestFleet, crashed, ended, failed, name, ready};

fn create(world: &mut TestFleet, deployment: &str, version: &str, more: &Value) {
    let mut spec = json!({"count": 2, "coordinates": {"app": {"version": version}}});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    world.must("deployment.create", &json!({"plan": "web", "name": deployment, "spec": spec}));
    world.run();
}

fn rollback(world: &mut TestFleet, deployment: &str) {
    world.must("plan.rollback", &json!({"plan": "web", "name": deployment}));
    world.run();
}

fn refused(world: &mut TestFleet, deployment: &str, to: Option<&str>) -> RefusalCode {
    world
        .ask("plan.rollback", &json!({"plan": "web", "name": deployment, "to": to}))
        .expect_err("refused")
        .code
}

fn find<'a>(world: &'a TestFleet, deployment: &str) -> &'a Deployment {
    world.fleet.deployment(&name("web"), &name(deployment)).expect("a deployment")
}

/// Returns the rollback that no person requested.
fn by_rule(world: &TestFleet) -> Option<&Deployment> {
    let all = world.fleet.deployments().sorted();
    all.into_iter().find(|of| of.rollback.as_ref().is_some_and(|rollback| rollback.rule.is_some()))
}

fn version(deployment: &Deployment) -> &str {
    &deployment.spec.coordinates["app"]["version"]
}

/// Creates a plan whose deployment `good` completed, with `v1`.
fn world() -> TestFleet {
    let mut world = TestFleet::with_nodes(6);
    world.plan("automatic");
    create(&mut world, "good", "v1", &json!({}));
    world.obey();
    assert_eq!(world.deployment("good"), "completed");
    world
}

#[test]
fn a_rollback_of_a_hung_deployment_ends_it_and_runs_the_version_before() {
    let mut world = world();
    create(&mut world, "hung", "v2", &json!({}));
    assert_eq!(world.asked().count(), 1, "one is updated");
    rollback(&mut world, "back");
    assert_eq!(world.deployment("hung"), "superseded");
    world.obey();
    assert_eq!(
        (world.deployment("back").as_str(), world.phases()),
        ("completed", vec!["running", "running"])
    );
    let back = find(&world, "back");
    let rollback = back.rollback.as_ref().expect("it is one");
    assert_eq!((version(back), rollback.to.as_str(), &rollback.rule), ("v1", "good", &None));
}

#[test]
fn what_the_rule_of_a_bad_version_fails_to_start_keeps_no_other_replica_from_the_good_one() {
    let mut world = TestFleet::with_nodes(6);
    world.plan_with("automatic", &json!({"restart": "always"}));
    for (deployment, version) in [("good", "v1"), ("bad", "v2")] {
        create(&mut world, deployment, version, &json!({}));
        world.obey();
    }
    assert_eq!(world.deployment("bad"), "completed");
    let first = world.commanded()[0];
    world.report(first, crashed());
    world.run();
    assert_eq!(world.asked().count(), 1, "the rule starts it again, and it hangs");
    rollback(&mut world, "back");
    let asked: Vec<_> = world.asked().filter_map(|id| world.fleet.incarnations().get(&id)).collect();
    assert!(asked.iter().any(|run| run.deployment.as_str() == "back"), "the other one is updated");
}

#[test]
fn a_hung_start_by_the_rule_of_a_bad_version_gets_the_good_one_when_nothing_else_is_left() {
    let mut world = TestFleet::with_nodes(6);
    world.plan_with("automatic", &json!({"restart": "always"}));
    for (deployment, version) in [("good", "v1"), ("bad", "v2")] {
        create(&mut world, deployment, version, &json!({}));
        world.obey();
    }
    let first = world.commanded()[0];
    world.report(first, crashed());
    world.run();
    let hung = world.asked().next().expect("the rule starts it again, and it hangs");
    rollback(&mut world, "back");
    let asked = |world: &TestFleet, id| world.fleet.incarnations().get(&id).and_then(|run| run.last_effect);
    let is_of = |world: &TestFleet, id, deployment: &str| {
        world.fleet.incarnations().get(&id).is_some_and(|run| run.deployment.as_str() == deployment)
    };
    let update = world.asked().find(|id| is_of(&world, *id, "back")).expect("the other one is updated");
    assert_eq!(asked(&world, hung), Some(CommandEffect::Ensure), "the start has as long as the update takes");
    world.report(update, ready());
    let replaced = world.asked().find(|id| is_of(&world, *id, "bad") && *id != hung).expect("it ends");
    world.report(replaced, ended(IncarnationExit::Clean));
    assert_ne!(asked(&world, hung), Some(CommandEffect::Ensure), "it waits for nothing any more");
    world.obey();
    assert_eq!(
        (world.deployment("back").as_str(), world.phases()),
        ("completed", vec!["running", "running"])
    );
    let live = world.fleet.incarnations().sorted().into_iter().filter(|run| run.is_live());
    assert!(live.into_iter().all(|run| run.deployment.as_str() == "back"));
}

#[test]
fn a_wave_of_starts_that_hang_gets_the_good_version_one_by_one() {
    let mut world = TestFleet::with_nodes(6);
    world.plan_with("automatic", &json!({"restart": "always"}));
    for (deployment, version) in [("good", "v1"), ("bad", "v2")] {
        create(&mut world, deployment, version, &json!({}));
        world.obey();
    }
    for run in world.commanded() {
        world.report(run, crashed());
    }
    world.run();
    assert_eq!(world.asked().count(), 2, "both are started again, and hang");
    rollback(&mut world, "back");
    let ended_by_abort = |world: &TestFleet| {
        let operations = world.fleet.operations().sorted();
        operations.iter().filter(|of| of.kind == OperationKind::Start && !of.is_open()).count()
    };
    assert_eq!(ended_by_abort(&world), 1, "the second has as long as the first takes");
    world.obey();
    assert_eq!(
        (world.deployment("back").as_str(), world.phases()),
        ("completed", vec!["running", "running"])
    );
}

#[test]
fn the_loss_of_a_node_proves_nothing_of_the_version_that_ran_there() {
    let mut world = world();
    create(&mut world, "next", "v2", &json!({"auto_rollback": true}));
    let first = world.asked().next().expect("one is updated");
    world.report(first, crate::testing::ready());
    let node = world.fleet.incarnations().get(&first).expect("it runs").node.clone();
    world.must("node.set_state", &json!({"name": node, "state": "expunged"}));
    world.run();
    assert!(by_rule(&world).is_none());
    assert_eq!(world.deployment("next"), "in progress");
    world.obey();
    assert_eq!(
        (world.deployment("next").as_str(), world.phases()),
        ("completed", vec!["running", "running"])
    );
    let live = world.fleet.incarnations().sorted().into_iter().filter(|run| run.is_live());
    assert!(live.into_iter().all(|run| run.deployment.as_str() == "next" && run.node != node));
}

#[test]
fn a_rollback_runs_by_the_generation_of_the_plan_that_its_target_had() {
    let mut world = world();
    let payload = json!({"name": "app", "resources": {"cpu": 500}, "run": {"argv": ["other"]}});
    world.plan_with("automatic", &json!({"restart": "never", "payloads": [payload]}));
    create(&mut world, "bad", "v1", &json!({}));
    world.obey();
    assert_eq!(find(&world, "bad").generation, 2);
    rollback(&mut world, "back");
    world.obey();
    assert_eq!((world.deployment("back").as_str(), find(&world, "back").generation), ("completed", 1));
    let runs = world.fleet.incarnations().sorted();
    let live: Vec<_> = runs.iter().filter(|run| run.is_live()).map(|run| run.resources.cpu).collect();
    assert_eq!(live, [1000, 1000], "as the first generation needs");
}

#[test]
fn a_rollback_selects_its_target() {
    let mut world = world();
    create(&mut world, "more", "v1", &json!({"count": 3}));
    world.obey();
    create(&mut world, "trial", "v2", &json!({"count": 3, "strategy": {"canary": {"count": 1}}}));
    world.obey();
    world.must("deployment.promote", &json!({"plan": "web", "name": "trial"}));
    world.run();
    world.obey();
    assert_eq!(world.deployment("trial"), "completed");
    // The last deployment that completed with another version, with the current number of replicas.
    rollback(&mut world, "b1");
    world.obey();
    let b1 = find(&world, "b1");
    assert_eq!((version(b1), b1.spec.count), ("v1", 3));
    assert_eq!(b1.rollback.as_ref().expect("it is one").to.as_str(), "more");
    // A completed version needs no canary.
    rollback(&mut world, "b2");
    let b2 = find(&world, "b2");
    assert_eq!((version(b2), b2.spec.strategy), ("v2", DeploymentStrategy::default()));
    // A deployment that was cancelled before it started was never the plan's version.
    create(&mut world, "queued", "v3", &json!({"count": 3}));
    world.must("deployment.cancel", &json!({"plan": "web", "name": "queued"}));
    world.obey();
    rollback(&mut world, "b3");
    assert_eq!(version(find(&world, "b3")), "v1");
    // A deployment by name, with the count of the last completed one.
    world.obey();
    world.must("plan.rollback", &json!({"plan": "web", "name": "b4", "to": "good"}));
    assert_eq!(find(&world, "b4").spec.count, 3);
}

#[test]
fn a_rollback_uses_the_strategy_of_its_target() {
    for strategy in [
        json!({"rolling": {"max_parallel": 2, "per_domain": true, "delay": 1000}}),
        json!({"blue_green": {"timeout": 90_000, "on_timeout": "cut_over"}}),
    ] {
        let mut world = TestFleet::with_nodes(6);
        world.plan("automatic");
        create(&mut world, "good", "v1", &json!({"strategy": strategy}));
        for _ in 0..3 {
            world.obey();
            world.wait(1); // the pause
        }
        create(&mut world, "hung", "v2", &json!({}));
        rollback(&mut world, "back");
        let [good, back] = ["good", "back"].map(|name| find(&world, name).spec.strategy);
        assert_eq!(serde_json::to_value(back).expect("JSON"), strategy);
        assert_eq!(good, back);
    }
}

#[test]
fn what_cannot_be_rolled_back_is_refused_with_the_reason() {
    let mut world = TestFleet::with_nodes(4);
    world.plan("automatic");
    assert_eq!(
        refused(&mut world, "b", None),
        RefusalCode::InvalidTransition,
        "there is no version to return to"
    );
    create(&mut world, "d1", "v1", &json!({}));
    assert_eq!(refused(&mut world, "b", Some("d1")), RefusalCode::InvalidTransition, "it has not completed");
    world.obey();
    assert_eq!(refused(&mut world, "b", None), RefusalCode::InvalidTransition, "there is no other version");
    assert_eq!(refused(&mut world, "b", Some("d9")), RefusalCode::NotFound);
    assert_eq!(refused(&mut world, "d1", None), RefusalCode::AlreadyExists);
    let plan = json!({"plan": "unknown", "name": "b"});
    assert_eq!(world.ask("plan.rollback", &plan).expect_err("refused").code, RefusalCode::NotFound);
    create(&mut world, "d2", "v2", &json!({}));
    world.must("deployment.cancel", &json!({"plan": "web", "name": "d2"}));
    world.obey();
    assert_eq!(refused(&mut world, "b", Some("d2")), RefusalCode::InvalidTransition, "it was cancelled");
    world.must("plan.set_activity", &json!({"name": "web", "activity": "inactive"}));
    assert_eq!(refused(&mut world, "b", None), RefusalCode::Inactive);
}

#[test]
fn a_rollback_to_a_deployment_of_none_needs_the_coordinates_of_what_would_run() {
    let mut world = TestFleet::with_nodes(6);
    let payload = json!({"name": "app", "resources": {"cpu": 500}, "run": {"argv": ["app", "${version}"]}});
    world.plan_with("automatic", &json!({"payloads": [payload]}));
    create(&mut world, "good", "v1", &json!({}));
    world.obey();
    create(&mut world, "none", "v1", &json!({"count": 0, "coordinates": {}}));
    world.obey();
    assert_eq!(world.deployment("none"), "completed");
    let ask = json!({"plan": "web", "name": "back", "to": "none"});
    let refusal = world.ask("plan.rollback", &ask).expect_err("refused");
    assert_eq!(refusal.code, RefusalCode::InvalidTransition);
    assert!(refusal.detail.contains("none of plan web had a count of 0"), "{}", refusal.detail);
    create(&mut world, "later", "v2", &json!({"count": 0}));
    world.obey();
    world.must("plan.rollback", &json!({"plan": "web", "name": "back", "to": "later"}));
    world.run();
    world.obey();
    assert_eq!((world.deployment("back").as_str(), find(&world, "back").spec.count), ("completed", 2));
}

#[test]
fn a_rollback_is_requested_twice_and_happens_once() {
    let mut world = world();
    create(&mut world, "hung", "v2", &json!({}));
    rollback(&mut world, "back");
    assert!(world.must("plan.rollback", &json!({"plan": "web", "name": "back"})).is_empty());
    assert!(world.must("plan.rollback", &json!({"plan": "web", "name": "back", "to": "good"})).is_empty());
    assert_eq!(refused(&mut world, "back", Some("hung")), RefusalCode::AlreadyExists);
    world.obey();
    // After the plan has settled, a rollback of the rollback is a new request.
    assert_eq!(refused(&mut world, "again", None), RefusalCode::InvalidTransition, "v2 never completed");
}

#[test]
fn a_rollback_in_progress_is_not_reverted_by_accident() {
    let mut world = TestFleet::with_nodes(6);
    world.plan("automatic");
    for (deployment, version) in [("d1", "v1"), ("d2", "v2"), ("d3", "v3")] {
        create(&mut world, deployment, version, &json!({}));
        world.obey();
    }
    rollback(&mut world, "b1");
    assert_eq!(version(find(&world, "b1")), "v2");
    assert_eq!(refused(&mut world, "b2", None), RefusalCode::InvalidTransition, "it would continue to v1");
    world.must("plan.rollback", &json!({"plan": "web", "name": "b2", "to": "d1"}));
    world.run();
    world.obey();
    assert_eq!(
        (world.deployment("b1").as_str(), world.deployment("b2").as_str()),
        ("superseded", "completed")
    );
}

#[test]
fn the_last_that_completed_stay_to_be_rolled_back_to_however_many_fail() {
    let mut world = world();
    create(&mut world, "bad", "v2", &json!({}));
    world.obey();
    for number in 0..40 {
        create(&mut world, &format!("try-{number}"), &format!("w{number}"), &json!({}));
        world.must("deployment.cancel", &json!({"plan": "web", "name": format!("try-{number}")}));
        world.obey();
    }
    assert!(world.fleet.plans().get("web").expect("the plan").deployments.len() < 30);
    world.must("plan.rollback", &json!({"plan": "web", "name": "back", "to": "good"}));
    world.run();
    world.obey();
    assert_eq!(world.deployment("back"), "completed");
}

#[test]
fn a_deployment_that_fails_is_rolled_back_by_its_rule_once_and_reports_why() {
    let mut world = world();
    create(
        &mut world,
        "bad",
        "v2",
        &json!({"auto_rollback": true, "strategy": {"rolling": {"max_parallel": 2}}}),
    );
    let [bad, _] = world.asked().collect::<Vec<_>>()[..] else { panic!("two are updated") };
    world.report(bad, failed(RetryClass::Permanent));
    assert_eq!(world.deployment("bad"), "failed", "running operations are aborted");
    let back = by_rule(&world).expect("it is rolled back");
    let rollback = back.rollback.clone().expect("it is a rollback");
    let rule = rollback.rule.expect("no person requested it");
    assert_eq!((rollback.to.as_str(), rule.name.as_str()), ("good", "deployment/web/bad/auto_rollback"));
    assert!(rule.reason.contains("update of web-"), "{}", rule.reason);
    assert_eq!((version(back), back.spec.auto_rollback, &back.requested_by), ("v1", false, &name("ann")));
    let back = back.name.clone();
    world.obey();
    assert_eq!(
        (world.deployment(back.as_str()).as_str(), world.phases()),
        ("completed", vec!["running", "running"])
    );
}

#[test]
fn four_eyes_of_a_deployment_are_four_eyes_of_its_rollback_by_rule() {
    let mut world = TestFleet::with_nodes(6);
    world.plan("manual");
    create(&mut world, "good", "v1", &json!({}));
    world.approve_all();
    world.obey();
    assert_eq!(world.deployment("good"), "completed");
    create(&mut world, "bad", "v2", &json!({"auto_rollback": true}));
    world.approve_all();
    assert!(world.obey_one() && world.obey_one(), "one is updated");
    let two = json!({"name": "two", "spec": {"rule": {"four_eyes": {}}}});
    world.must("policy.apply", &two);
    for run in world.asked().collect::<Vec<_>>() {
        world.report(run, failed(RetryClass::Permanent));
    }
    world.obey();
    assert_eq!(world.deployment("bad"), "failed");
    let waiting: Vec<_> = world.pending().iter().map(|operation| operation.id).collect();
    assert!(!waiting.is_empty(), "the rollback updates what was updated");
    for id in waiting {
        assert_eq!(world.approve(id).expect_err("ann deployed what failed").code, RefusalCode::Denied);
    }
}

#[test]
fn a_rollback_that_fails_is_not_rolled_back() {
    let mut world = world();
    create(&mut world, "bad", "v2", &json!({}));
    world.obey();
    create(&mut world, "worse", "v3", &json!({"auto_rollback": true}));
    let first = world.asked().next().expect("one is updated");
    world.report(first, failed(RetryClass::Permanent));
    let back = by_rule(&world).expect("it is rolled back");
    assert_eq!(version(back), "v2", "nothing has to change, and it completes");
    world.obey();
    rollback(&mut world, "older");
    let first = world.asked().next().expect("one returns to v1");
    world.report(first, failed(RetryClass::Permanent));
    world.obey();
    assert_eq!(world.deployment("older"), "failed");
    let created = world.log.iter().filter(|fact| matches!(fact, Fact::DeploymentCreated(_))).count();
    assert_eq!(created, 5, "good, bad, worse, its rollback, older");
}

#[test]
fn a_rule_rolls_nothing_back_while_a_deployment_waits() {
    let mut world = world();
    create(&mut world, "bad", "v2", &json!({"auto_rollback": true}));
    create(&mut world, "better", "v3", &json!({}));
    let first = world.asked().next().expect("one is updated");
    world.report(first, failed(RetryClass::Permanent));
    assert_eq!(
        (world.deployment("bad"), world.deployment("better")),
        ("failed".into(), "in progress".into())
    );
}

#[test]
fn a_failed_scale_up_reverts_nothing_of_the_serving_version() {
    let mut world = TestFleet::with_nodes(3);
    world.plan("automatic");
    for (deployment, of) in [("old", "v1"), ("good", "v2")] {
        create(&mut world, deployment, of, &json!({"count": 1}));
        world.obey();
        assert_eq!(world.deployment(deployment), "completed");
    }
    create(&mut world, "more", "v2", &json!({"count": 2, "auto_rollback": true}));
    let new = world.asked().next().expect("one is created");
    world.report(new, failed(RetryClass::Permanent));
    assert_eq!(world.deployment("more"), "failed");
    assert!(by_rule(&world).is_none());
    world.obey();
    let runs = world.fleet.incarnations().sorted().into_iter().filter(|run| run.is_live());
    assert_eq!(runs.map(|run| run.deployment.to_string()).collect::<Vec<_>>(), ["good"]);
}

#[test]
fn a_rollback_stops_no_incarnation_before_those_stopped_for_the_reverted_version_run_again() {
    let mut world = TestFleet::with_nodes(6);
    world.plan_with("automatic", &json!({"update_order": "stop_first"}));
    let by = |count, wave| json!({"count": count, "strategy": {"rolling": {"max_parallel": wave}}});
    create(&mut world, "good", "v1", &by(6, 3));
    world.obey();
    create(&mut world, "bad", "v2", &by(6, 2));
    let running = |world: &TestFleet| world.phases().iter().filter(|phase| **phase == "running").count();
    for old in world.asked().collect::<Vec<_>>() {
        world.report(old, ended(IncarnationExit::Clean));
    }
    assert_eq!((running(&world), world.asked().count()), (4, 2), "two are updated");
    rollback(&mut world, "back");
    for new in world.asked().collect::<Vec<_>>() {
        world.report(new, ended(IncarnationExit::Clean));
    }
    assert_eq!(
        (running(&world), world.asked().count()),
        (4, 2),
        "they are started again, and no other is stopped"
    );
    world.obey();
    assert_eq!((world.deployment("back").as_str(), running(&world)), ("completed", 6));
}
