//! Deployments: diff, scale, failure, cancel, order.

use chancery_events::observation::RetryClass;
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::OperationKind::{Create, Delete, Start};
use serde_json::json;

use crate::testing::{TestFleet, crashed, failed, ready};

#[test]
fn a_deployment_creates_what_lacks_and_completes_when_it_runs() {
    let mut world = TestFleet::with_nodes(3);
    world.plan("manual");
    world.deploy("d1", 2);
    assert_eq!((world.kinds(), world.deployment("d1").as_str()), (vec![Create, Create], "in progress"));
    world.approve_all();
    assert_eq!(world.phases(), ["starting", "starting"]);
    world.obey();
    assert_eq!((world.phases(), world.deployment("d1").as_str()), (vec!["running", "running"], "completed"));
}

#[test]
fn an_unchanged_replica_gets_no_operation() {
    let mut world = TestFleet::with_nodes(4);
    world.plan("manual");
    world.running("d1", 1);
    world.deploy("d2", 3);
    assert_eq!(world.kinds(), [Create, Create], "two creates, nothing for the one already right");
    world.running("d2b", 3);
    world.deploy("d3", 3);
    assert_eq!((world.kinds(), world.deployment("d3").as_str()), (vec![], "completed"));
}

#[test]
fn deployment_names_are_scoped_to_their_plan_and_applied_twice_change_nothing() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("manual");
    let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}});
    world.must(
        "plan.apply",
        &json!({"name": "other", "spec": {"namespace": "ns", "service": "o", "payloads": [payload]}}),
    );
    for plan in ["web", "other"] {
        let body = json!({"plan": plan, "name": "d1", "spec": {"count": 1}});
        assert_eq!(world.must("deployment.create", &body).len(), 1);
        assert!(world.must("deployment.create", &body).is_empty());
        let other = json!({"plan": plan, "name": "d1", "spec": {"count": 2}});
        assert_eq!(
            world.ask("deployment.create", &other).expect_err("taken").code,
            RefusalCode::AlreadyExists
        );
    }
}

#[test]
fn a_deployment_requests_no_more_replicas_than_the_limit() {
    let mut world = TestFleet::with_nodes(1);
    world.replicas = 3;
    world.plan("manual");
    let body = |count: u32| json!({"plan": "web", "name": format!("d{count}"), "spec": {"count": count}});
    let refusal = world.ask("deployment.create", &body(4)).expect_err("one too many");
    assert_eq!(
        (refusal.code, refusal.errors["/spec/count"].as_str()),
        (RefusalCode::Invalid, "must be at most 3, which is the server's setting limits.replicas")
    );
    assert_eq!(world.must("deployment.create", &body(3)).len(), 1);
    world.replicas = 2;
    assert!(world.must("deployment.create", &body(3)).is_empty(), "the existing replicas are unchanged");
}

#[test]
fn coordinates_must_name_payloads_and_fill_every_placeholder() {
    let mut world = TestFleet::new();
    let run = json!({"argv": ["app", "${version}"], "env": {"P": "${replica}"}});
    let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": run});
    world.must(
        "plan.apply",
        &json!({"name": "web", "spec": {"namespace": "ns", "service": "o", "payloads": [payload]}}),
    );
    for (coordinates, pointer) in [
        (json!({}), "/spec/coordinates/app"),
        (json!({"app": {"version": "1"}, "x": {}}), "/spec/coordinates/x"),
    ] {
        let body = json!({"plan": "web", "name": "d", "spec": {"count": 1, "coordinates": coordinates}});
        let refusal = world.ask("deployment.create", &body).expect_err(pointer);
        assert!(refusal.code == RefusalCode::Invalid && refusal.errors.contains_key(pointer), "{refusal:?}");
    }
}

#[test]
fn a_newer_deployment_supersedes_one_that_waits_and_queues_behind_one_that_runs() {
    let mut world = TestFleet::with_nodes(4);
    world.plan("manual");
    world.deploy("d1", 1);
    world.deploy("d2", 4);
    world.deploy("d3", 2);
    let states = ["d1", "d2", "d3"].map(|d| world.deployment(d));
    assert_eq!(states, ["in progress", "superseded", "pending"]);
    world.approve_all();
    world.obey();
    world.approve_all();
    world.obey();
    assert_eq!(
        (world.deployment("d3").as_str(), world.phases().len()),
        ("completed", 2),
        "the last count, never the sum"
    );
}

#[test]
fn a_failed_operation_fails_its_deployment_siblings_settle_and_the_next_starts_clean() {
    let mut world = TestFleet::with_nodes(4);
    world.plan("manual");
    world.deploy("d1", 3);
    let first = world.pending()[0].id;
    let second = world.pending()[1].id;
    world.approve(first).expect("approved");
    world.approve(second).expect("approved");
    let [bad, good] = world.commanded()[..] else { panic!("two run") };
    world.report(bad, failed(RetryClass::Permanent));
    assert_eq!(world.deployment("d1"), "ending, failed", "the third was cancelled, the second still runs");
    assert_eq!(world.pending().len(), 0);
    world.report(good, crate::testing::ready());
    assert_eq!(world.deployment("d1"), "failed");
    world.report(bad, chancery_events::observation::ObservedState::Gone);
    assert_eq!(world.phases(), ["failed", "running"]);
    world.deploy("d2", 3);
    let mut kinds = world.kinds();
    kinds.sort();
    assert_eq!(kinds, [Create, Start]);
    world.approve_all();
    world.obey();
    assert_eq!((world.deployment("d2").as_str(), world.phases()), ("completed", vec!["running"; 3]));
}

#[test]
fn a_start_that_ends_before_it_is_ready_fails_the_deployment_with_its_cause() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.deploy("d1", 1);
    let id = world.commanded()[0];
    world.report(id, crashed());
    let log = format!("{:?}", world.log);
    assert!(log.contains("it ended before it was ready: app-0 exited with 3"), "{log}");
    assert_eq!(
        (world.deployment("d1").as_str(), world.phases(), world.free_cpu()),
        ("failed", vec!["failed"], 4000)
    );
}

#[test]
fn an_end_after_a_replica_was_ready_fails_the_deployment_with_its_cause() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("automatic");
    world.deploy("d1", 2);
    let id = world.commanded()[0];
    world.report(id, ready());
    world.report(id, crashed());
    let log = format!("{:?}", world.log);
    assert!(log.contains("ended without a request: app-0 exited with 3"), "{log}");
    assert_eq!(world.deployment("d1"), "ending, failed");
}

#[test]
fn scale_down_takes_the_unhealthy_then_the_fullest_domain_then_the_newest() {
    let mut world = TestFleet::with_nodes(3); // node-1 and node-3 in d1, node-2 in d2
    world.plan("automatic");
    world.running("d1", 3);
    let on = |world: &TestFleet, node: &str| {
        let replicas = world.fleet.replicas().sorted();
        replicas
            .into_iter()
            .find(|r| r.active.as_ref().is_some_and(|a| a.node.as_str() == node))
            .map(|r| r.name.clone())
    };
    let lone = on(&world, "node-2").expect("placed");
    let incarnation =
        world.fleet.replicas().get(&lone).and_then(|r| r.active.clone()).expect("active").incarnation;
    world.report(incarnation, crashed());
    world.deploy("d2", 2);
    world.obey();
    assert!(
        world.fleet.replicas().get(&lone).is_none(),
        "the dead one is deleted, though its domain is the emptiest"
    );

    let mut world = TestFleet::with_nodes(3);
    world.plan("automatic");
    world.running("d1", 3);
    let newest = on(&world, "node-3").expect("placed");
    world.deploy("d2", 2);
    world.obey();
    assert!(
        world.fleet.replicas().get(&newest).is_none(),
        "the newer of the two in the fuller domain is deleted"
    );
    assert_eq!((world.phases(), world.deployment("d2").as_str()), (vec!["running", "running"], "completed"));
}

#[test]
fn scale_to_zero_frees_everything() {
    let mut world = TestFleet::with_nodes(3);
    world.plan("manual");
    world.running("d1", 3);
    world.deploy("d2", 0);
    assert_eq!(world.kinds(), [Delete, Delete, Delete]);
    world.approve_all();
    world.obey();
    assert_eq!(
        (world.phases().len(), world.free_cpu(), world.deployment("d2").as_str()),
        (0, 12_000, "completed")
    );
    assert!(world.fleet.incarnations().is_empty() && world.fleet.operations().is_empty());
}

#[test]
fn cancel_stops_new_starts_reverts_unfinished_ones_and_never_completes() {
    let mut world = TestFleet::with_nodes(4);
    world.plan("manual");
    world.deploy("d1", 4);
    let first = world.pending()[0].id;
    world.approve(first).expect("approved");
    world.must("deployment.cancel", &json!({"plan": "web", "name": "d1"}));
    world.run();
    assert_eq!((world.deployment("d1").as_str(), world.pending().len()), ("ending, cancelled", 0));
    assert!(world.must("deployment.cancel", &json!({"plan": "web", "name": "d1"})).is_empty());
    world.obey();
    assert_eq!((world.deployment("d1").as_str(), world.phases()), ("cancelled", vec![]));
    let refusal = world.ask("deployment.cancel", &json!({"plan": "web", "name": "d2"}));
    assert_eq!(refusal.expect_err("unknown").code, RefusalCode::NotFound);
    world.running("d2", 1);
    let refusal = world.ask("deployment.cancel", &json!({"plan": "web", "name": "d2"})).expect_err("over");
    assert!(
        refusal.code == RefusalCode::InvalidTransition && refusal.detail.contains("completed"),
        "{refusal:?}"
    );
}

#[test]
fn a_limited_number_of_ended_deployments_is_kept() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.running("keep", 1);
    for i in 0..40 {
        world.deploy(&format!("d{i}"), 1);
    }
    let kept = &world.fleet.plans().get("web").expect("the plan").deployments;
    assert!(
        kept.len() <= 22 && kept.iter().any(|d| d.as_str() == "keep"),
        "what a replica refers to stays: {kept:?}"
    );
    assert_eq!(world.fleet.deployments().len(), kept.len());
}

#[test]
fn what_ends_automatically_while_a_deployment_continues_fails_it_and_is_not_started_again_and_again() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.deploy("d1", 2);
    world.obey();
    let id = world.commanded()[0];
    world.fact_types();
    world.report(id, crashed());
    assert_eq!(world.deployment("d1"), "failed");
    let again = world.fact_types().into_iter().filter(|fact| *fact == "operation.created").count();
    assert_eq!(
        (again, world.phases()),
        (0, vec!["failed"]),
        "the other never found a place, and went with its create"
    );
}
