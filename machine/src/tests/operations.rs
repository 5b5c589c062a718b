//! Operations: approval and its proposal, rejection, expiry, exclusivity, a user's stop.

use chancery_events::fact::ApprovalActor;
use chancery_events::intent::{ApprovedOperation, OperationApprove};
use chancery_events::lifecycle::WillWord;
use chancery_events::observation::IncarnationExit;
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::OperationKind::{Create, Delete, Start, Stop};
use serde_json::json;

use crate::testing::name;
use crate::testing::{CountInterval, TestFleet, crashed, ended, ready};

fn world(count: u32) -> TestFleet {
    let mut world = TestFleet::with_nodes(4);
    world.plan("manual");
    world.running("d1", count);
    world
}

#[test]
fn an_approver_sees_the_node_and_approves_exactly_what_was_shown() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("manual");
    world.deploy("d1", 1);
    let operation = world.pending()[0].clone();
    assert_eq!(operation.node.as_ref().map(ToString::to_string).as_deref(), Some("node-1"));
    assert_eq!(world.free_cpu(), 3000, "the reservation is kept while it waits");
    let wrong = OperationApprove {
        operations: vec![ApprovedOperation {
            operation: operation.id,
            hash: chancery_events::digest::Digest::of(&[b"else"]),
        }],
    };
    let request = world.request(wrong.into());
    assert_eq!(world.ask_request(&request).expect_err("another hash").code, RefusalCode::HashMismatch);
    world.approve(operation.id).expect("approved");
    let approved =
        world.fleet.operations().get(&operation.id).expect("kept").approved.clone().expect("approved").0;
    assert_eq!(approved, ApprovalActor::Actor("ann".parse().expect("a name")));
    assert_eq!(world.approve(operation.id).expect_err("twice").code, RefusalCode::NotPending);
}

#[test]
fn two_hundred_are_approved_in_one_intent_or_none() {
    let mut world = TestFleet::with_nodes(0);
    for i in 0..200 {
        world.add_node(&format!("node-{i}"), &format!("d{}", i % 5));
    }
    world.plan("manual");
    world.deploy("d1", 200);
    let shown: Vec<_> = world
        .pending()
        .iter()
        .map(|o| ApprovedOperation { operation: o.id, hash: o.hash.expect("a hash") })
        .collect();
    assert_eq!(shown.len(), 200);
    let mut bad = shown.clone();
    bad[199].hash = chancery_events::digest::Digest::of(&[]);
    let request = world.request(OperationApprove { operations: bad }.into());
    let refusal = world.ask_request(&request).expect_err("one is not as shown");
    assert!(refusal.errors.contains_key("/operations/199/hash"), "{refusal:?}");
    assert_eq!(world.pending().len(), 200, "none was approved");
    let request = world.request(OperationApprove { operations: shown }.into());
    world.ask_request(&request).expect("approved");
    assert_eq!(world.commanded().len(), 200);
}

#[test]
fn a_rejected_create_releases_its_reservation_fails_the_deployment_and_deletes_the_replica() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("manual");
    world.deploy("d1", 1);
    let id = world.pending()[0].id;
    world.reject(id).expect("rejected");
    assert_eq!(
        (world.free_cpu(), world.phases().len(), world.deployment("d1").as_str()),
        (4000, 0, "failed")
    );
    assert_eq!(world.reject(id).expect_err("gone").code, RefusalCode::NotFound);
}

#[test]
fn an_operation_that_no_person_approves_expires_and_reserves_nothing() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("manual");
    world.deploy("d1", 1);
    world.wait(24 * 3600 - 1);
    assert_eq!(world.pending().len(), 1);
    world.wait(1);
    assert_eq!(
        (world.free_cpu(), world.phases().len(), world.deployment("d1").as_str()),
        (4000, 0, "failed")
    );
    assert!(format!("{:?}", world.log).contains("it was not approved in time"));
}

#[test]
fn automatic_approval_names_its_rule_and_other_kinds_wait() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("manual");
    let mut spec = serde_json::to_value(&**world.fleet.plans().get("web").expect("the plan").specs.newest())
        .expect("JSON");
    spec["approval"]["create"] = json!("automatic");
    world.must("plan.apply", &json!({"name": "web", "spec": spec}));
    world.deploy("d1", 1);
    assert_eq!(world.pending().len(), 0, "a create runs");
    let rule = format!("{:?}", world.log);
    assert!(rule.contains("Rule(\"plan/web/approval/create\")"), "{rule}");
    world.obey();
    world.deploy("d2", 0);
    assert_eq!(world.pending().len(), 1, "a delete waits");
}

#[test]
fn a_stop_releases_the_reservation_and_persists_through_deployments() {
    let mut world = world(2);
    let replica = world.replica();
    world.must("replica.stop", &json!({"name": replica}));
    assert_eq!(world.kinds(), [Stop]);
    assert_eq!(
        world.fleet.replicas().get(&replica).expect("kept").desired,
        WillWord::Running,
        "not before it is approved"
    );
    world.approve_all();
    assert_eq!(world.phases(), ["running", "stopping"]);
    world.obey();
    assert_eq!((world.phases(), world.free_cpu()), (vec!["running", "stopped"], 15_000));
    assert!(world.must("replica.stop", &json!({"name": replica})).is_empty(), "stopped already");
    world.running("d2", 2);
    assert_eq!(world.phases(), ["running", "stopped"], "a deployment does not start it");
    world.must("replica.start", &json!({"name": replica}));
    world.run();
    assert_eq!(world.kinds(), [Start]);
    world.approve_all();
    world.obey();
    assert_eq!(world.phases(), ["running", "running"]);
}

#[test]
fn a_start_changes_nothing_while_running_or_starting_and_is_refused_while_stopping() {
    let mut world = world(1);
    let replica = world.replica();
    assert!(world.must("replica.start", &json!({"name": replica})).is_empty());
    world.must("replica.stop", &json!({"name": replica}));
    world.approve_all();
    let refusal = world.ask("replica.start", &json!({"name": replica})).expect_err("it stops");
    assert!(
        refusal.code == RefusalCode::InvalidTransition && refusal.detail.contains("stopping"),
        "{refusal:?}"
    );
}

#[test]
fn a_start_is_accepted_whenever_stopped_or_failed_is_shown() {
    let mut world = world(1);
    let replica = world.replica();
    for round in 0..4 {
        let id = world.commanded()[0];
        if round % 2 == 0 {
            world.report(id, crashed());
        } else {
            world.report(id, ended(IncarnationExit::Clean));
        }
        assert_eq!(world.phases(), [if round % 2 == 0 { "failed" } else { "stopped" }]);
        assert!(!world.must("replica.start", &json!({"name": replica})).is_empty(), "round {round}");
        world.run();
        world.approve_all();
        world.obey();
        assert_eq!(world.phases(), ["running"]);
    }
}

#[test]
fn what_was_never_approved_cannot_be_stopped() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("manual");
    world.deploy("d1", 1);
    let replica = world.replica();
    let refusal = world.ask("replica.stop", &json!({"name": replica})).expect_err("nothing runs");
    assert!(
        refusal.code == RefusalCode::InvalidTransition && refusal.detail.contains("never approved"),
        "{refusal:?}"
    );
    assert_eq!(world.kinds(), [Create]);
}

#[test]
fn a_stop_supersedes_a_start_that_waits_and_one_that_runs_once_it_is_approved() {
    let mut world = world(1);
    let (replica, id) = (world.replica(), world.commanded()[0]);
    world.report(id, crashed());
    world.must("replica.start", &json!({"name": replica}));
    world.run();
    world.must("replica.stop", &json!({"name": replica}));
    world.run();
    assert_eq!(
        (world.kinds(), world.free_cpu()),
        (vec![Stop], 16_000),
        "the start that waited is superseded"
    );
    world.approve_all();
    assert_eq!(world.phases(), ["stopped"]);

    let mut world = TestFleet::with_nodes(1);
    world.plan("manual");
    world.deploy("d1", 1);
    world.approve_all();
    let (replica, id) = (world.replica(), world.commanded()[0]);
    world.must("replica.stop", &json!({"name": replica}));
    assert_eq!(world.kinds(), [Create, Stop], "the stop waits for approval behind the create that runs");
    world.approve_all();
    assert_eq!(world.kinds(), [Stop]);
    world.report_at(id, 1, ready());
    assert_eq!(world.phases(), ["stopping"], "a report of the create does not bring it back");
    world.obey();
    assert_eq!((world.phases(), world.free_cpu()), (vec!["stopped"], 4000));
}

#[test]
fn a_start_cancels_a_waiting_stop() {
    let mut world = world(1);
    let replica = world.replica();
    world.must("replica.stop", &json!({"name": replica}));
    world.must("replica.start", &json!({"name": replica}));
    world.run();
    assert_eq!((world.kinds(), world.phases()), (vec![], vec!["running"]));
}

#[test]
fn a_delete_supersedes_everything_and_leaves_nothing() {
    let mut world = world(1);
    let replica = world.replica();
    world.must("replica.stop", &json!({"name": replica}));
    world.must("replica.delete", &json!({"name": replica}));
    assert_eq!(world.kinds(), [Delete], "the stop that waited is superseded");
    assert!(world.must("replica.delete", &json!({"name": replica})).is_empty());
    for ask in ["replica.stop", "replica.start"] {
        assert_eq!(
            world.ask(ask, &json!({"name": replica})).expect_err(ask).code,
            RefusalCode::InvalidTransition
        );
    }
    world.approve_all();
    world.obey();
    assert_eq!((world.phases().len(), world.free_cpu()), (0, 16_000));
}

#[test]
fn a_delete_takes_over_a_stop_that_runs() {
    let mut world = world(1);
    let replica = world.replica();
    world.must("replica.stop", &json!({"name": replica}));
    world.approve_all();
    world.must("replica.delete", &json!({"name": replica}));
    assert_eq!(world.kinds(), [Stop, Delete]);
    world.approve_all();
    assert_eq!(world.kinds(), [Delete]);
    world.obey();
    assert_eq!((world.phases().len(), world.free_cpu()), (0, 16_000));
}

#[test]
fn a_rejected_delete_leaves_the_replica_as_it_was() {
    let mut world = world(2);
    world.deploy("d2", 1);
    let id = world.pending()[0].id;
    world.reject(id).expect("rejected");
    assert_eq!((world.phases(), world.deployment("d2").as_str()), (vec!["running", "running"], "failed"));
    world.running("d3", 1);
    assert_eq!(world.phases(), ["running"]);
}

#[test]
fn a_delete_of_a_replica_that_no_person_approved_needs_no_approval() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("manual");
    world.deploy("d1", 1);
    world.must("deployment.cancel", &json!({"plan": "web", "name": "d1"}));
    let replica = world.replica();
    world.must("replica.delete", &json!({"name": replica}));
    world.run();
    assert_eq!(
        (world.phases().len(), world.free_cpu(), world.deployment("d1").as_str()),
        (0, 4000, "cancelled")
    );
}

#[test]
fn a_payload_without_a_body_for_a_runtime_is_placed_only_where_another_runtime_is() {
    let mut world = TestFleet::with_nodes(1);
    let payload = |body: &serde_json::Value| {
        let mut payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}});
        payload.as_object_mut().expect("an object").extend(body.as_object().expect("an object").clone());
        json!({"namespace": "ns", "service": "web", "payloads": [payload]})
    };
    let (run, container) = (json!({"run": {"argv": ["app"]}}), json!({"container": {"image": "app:1"}}));
    world.must("plan.apply", &json!({"name": "web", "spec": payload(&container)}));
    world.deploy("d1", 1);
    let reasons = |world: &TestFleet| {
        let plan = world.fleet.plans().get("web").expect("kept").clone();
        plan.unschedulable.into_iter().map(|reason| reason.reason).collect::<Vec<_>>()
    };
    let lacking = "payload app has no `run`, which runtime process of cluster local needs";
    assert_eq!(reasons(&world), [lacking], "before any reservation");
    assert!(world.pending().is_empty() && world.fleet.incarnations().is_empty());
    // A node of another runtime.
    world.must(
        "cluster.apply",
        &json!({"name": "k8s", "spec": {"runtime": "kubernetes", "kubernetes": {"namespace": "control"}}}),
    );
    let node = json!({"domain": "d9", "resources": {"cpu": 4000, "memory": 8u64 << 30}});
    world.must("node.apply", &json!({"name": "k1", "cluster": "k8s", "spec": node}));
    world.run();
    assert_eq!(world.pending()[0].node, Some(name("k1")));
    // The other way round, and without any body.
    for (i, (body, wanted)) in [
        (run, "payload app has no `container`, which runtime kubernetes of cluster k8s needs"),
        (json!({}), "payload app has no `container`, or the coordinate `image`, which runtime kubernetes of cluster k8s needs"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut spec = payload(&body);
        spec["cluster"] = json!("k8s");
        let plan = format!("other-{i}");
        world.must("plan.apply", &json!({"name": plan, "spec": spec}));
        world.must("deployment.create", &json!({"plan": plan, "name": "d1", "spec": {"count": 1}}));
        world.run();
        let plan = world.fleet.plans().get(plan.as_str()).expect("kept").clone();
        let found: Vec<_> = plan.unschedulable.iter().map(|reason| reason.reason.as_str()).collect();
        assert_eq!(found, ["not in cluster k8s", wanted]);
    }
    let mut spec = payload(&json!({}));
    spec["cluster"] = json!("k8s");
    world.must("plan.apply", &json!({"name": "by-image", "spec": spec}));
    let spec = json!({"count": 1, "coordinates": {"app": {"image": "app:2"}}});
    world.must("deployment.create", &json!({"plan": "by-image", "name": "d1", "spec": spec}));
    world.run();
    let plan = world.fleet.plans().get("by-image").expect("kept").clone();
    assert!(plan.unschedulable.is_empty(), "{:?}", plan.unschedulable);
}

#[test]
fn twenty_ended_operations_and_incarnations_are_kept_per_replica() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.running("d1", 1);
    let replica = world.replica();
    for _ in 0..30 {
        for ask in ["replica.stop", "replica.start"] {
            world.must(ask, &json!({"name": replica}));
            world.run();
            world.obey();
        }
    }
    assert_eq!(world.fleet.operations().len(), 20);
    assert_eq!(world.fleet.incarnations().len(), 21, "twenty that have ended, and the one that runs");
    let totals: u64 = world.fleet.plans().get("web").expect("the plan").totals.values().sum();
    assert_eq!(totals, 61, "totals are permanent");
}

#[test]
fn a_version_that_no_runtime_can_run_waits_and_holds_nothing() {
    let mut world = TestFleet::with_nodes(1);
    let automatic =
        json!({"create": "automatic", "start": "automatic", "stop": "automatic", "delete": "automatic"});
    let payload = json!({"name": "app", "resources": {"cpu": 1000, "memory": 1}});
    let spec = json!({"namespace": "ns", "service": "web", "payloads": [payload], "approval": automatic});
    world.must("plan.apply", &json!({"name": "web", "spec": spec}));
    world.deploy("d1", 1);
    assert_eq!((world.deployment("d1").as_str(), world.free_cpu()), ("in progress", 4000));
    assert!(world.fleet.incarnations().is_empty());
    let plan = world.fleet.plans().get("web").expect("the plan");
    assert_eq!(plan.unschedulable.len(), 1, "{:?}", plan.unschedulable);
    world.must("deployment.cancel", &json!({"plan": "web", "name": "d1"}));
    world.run();
    assert_eq!(world.deployment("d1"), "cancelled", "it can be cancelled");
}

#[test]
fn operations_that_wait_for_approval_cost_nothing_and_block_no_other() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.running("d1", 1);
    world.counted = CountInterval::AtTheEnd;
    let total = json!({"cpu": 1_000_000_000u64, "memory": 1u64 << 50, "disk": 0});
    world.must(
        "node.apply",
        &json!({"name": "large", "cluster": "local", "spec": {"domain": "d9", "resources": total}}),
    );
    let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": {"argv": ["app"]}});
    let spec = json!({"namespace": "ns", "service": "many", "payloads": [payload], "sharing": "allowed"});
    world.must("plan.apply", &json!({"name": "many", "spec": spec}));
    let count = 4000;
    world.must("deployment.create", &json!({"plan": "many", "name": "d1", "spec": {"count": count}}));
    for _ in 0..4 {
        world.try_run();
    }
    assert_eq!(world.pending().len(), count);
    world.fact_types();
    world.run();
    assert!(world.fact_types().is_empty(), "nothing is due");
    let of_web = |replica: &&crate::state::Replica| replica.plan.as_str() == "web";
    let replica =
        world.fleet.replicas().sorted().into_iter().find(of_web).map(|replica| replica.name.clone());
    world.must("replica.stop", &json!({"name": replica.expect("a replica")}));
    world.run();
    world.obey();
    let expected = ["operation.created", "operation.approved", "incarnation.ended", "operation.ended"];
    assert_eq!(world.fact_types(), expected, "a stop elsewhere takes the steps of a stop, and no others");
    world.check();
}
