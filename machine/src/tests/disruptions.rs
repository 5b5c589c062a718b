//! Disruptions: nodes that are drained, within budgets and one domain at a time, or excluded from placement.

use std::collections::BTreeSet;

use chancery_events::fact::{ApprovalActor, Fact, Requester};
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::{DisruptionState, NodeState, OperationKind};
use chancery_events::subject::Subject;
use serde_json::{Value, json};

use crate::state::{Operation, OperationState};
use crate::testing::TestFleet;

fn world(nodes: usize, count: u32, more: &Value) -> TestFleet {
    let mut world = TestFleet::with_nodes(nodes);
    world.plan_with("manual", more);
    world.running("d1", count);
    world
}

fn shared() -> Value {
    json!({"sharing": "allowed"})
}

fn disrupt(world: &mut TestFleet, node: &str, spec: &Value) {
    world.must("disruption.schedule", &json!({"node": node, "name": "power", "spec": spec}));
    world.must("disruption.approve", &json!({"node": node, "name": "power"}));
    world.run();
}

#[test]
fn a_disruption_starts_after_1970() {
    let mut world = TestFleet::with_nodes(1);
    let at = |start: i64| json!({"node": "node-1", "name": "power", "spec": {"start": start}});
    let refusal = world.ask("disruption.schedule", &at(-1)).expect_err("before 1970");
    assert_eq!(refusal.code, RefusalCode::Invalid);
    assert_eq!(refusal.errors["/spec/start"], "must not be before 1970");
    world.must("disruption.schedule", &at(0));
}

fn drain(world: &mut TestFleet, node: &str) {
    disrupt(world, node, &json!({"action": "drain"}));
}

fn moves(world: &TestFleet) -> Vec<Operation> {
    let open = |o: &&Operation| o.kind == OperationKind::Relocate && o.is_open();
    world.fleet.operations().sorted().into_iter().filter(open).cloned().collect()
}

fn held(world: &TestFleet, node: &str) -> usize {
    world.fleet.index().places.held(&crate::testing::name(node)).incarnations.len()
}

fn state(world: &TestFleet, node: &str) -> DisruptionState {
    let node = world.fleet.nodes().get(node).expect("the node");
    node.disruptions.values().next().expect("a disruption").state
}

#[test]
fn a_drained_node_is_emptied_one_replica_of_a_plan_at_a_time_and_the_disruption_ends() {
    let mut world = world(3, 6, &shared());
    let there = held(&world, "node-1");
    assert!(there > 1, "{there}");
    drain(&mut world, "node-1");
    let mut rounds = 0;
    while held(&world, "node-1") > 0 {
        let moves = moves(&world);
        assert_eq!(moves.len(), 1, "the budget is one");
        assert!(matches!(moves[0].requested_by.as_deref(), Some(Requester::Disruption { .. })));
        let rule = ApprovalActor::Rule("disruption/node-1/power".into());
        assert_eq!(moves[0].state, OperationState::Running);
        let by = moves[0].approved.as_ref().map(|(by, _)| by);
        assert_eq!(by, Some(&rule), "the approver of the disruption approved its moves");
        world.obey_one();
        rounds += 1;
        assert!(rounds < 50);
    }
    world.obey();
    assert_eq!((state(&world, "node-1"), world.phases().len()), (DisruptionState::Completed, 6));
    assert!(world.phases().iter().all(|phase| *phase == "running"));
    let node = world.fleet.nodes().get("node-1").expect("the node");
    assert_eq!((node.state, &node.cluster), (NodeState::Evicted, &None), "it stays empty");
}

#[test]
fn at_every_moment_of_a_drain_as_many_run_as_should() {
    let mut world = world(3, 6, &json!({"sharing": "allowed", "max_unavailable": 3}));
    drain(&mut world, "node-1");
    assert_eq!(moves(&world).len().min(2), 2, "within the budget, concurrently");
    for _ in 0..50 {
        let running = world.phases().iter().filter(|phase| **phase == "running").count();
        assert_eq!(running, 6);
        world.obey_one();
    }
    assert_eq!(held(&world, "node-1"), 0);
}

#[test]
fn nodes_of_one_update_domain_are_emptied_before_those_of_another() {
    let mut world = world(4, 4, &json!({"sharing": "allowed", "max_unavailable": 9}));
    // Nodes 1 and 3 are of d1, 2 and 4 of d2.
    for node in ["node-1", "node-2", "node-3"] {
        drain(&mut world, node);
    }
    let domains = |world: &TestFleet| {
        let of = |o: &Operation| match o.requested_by.as_deref() {
            Some(Requester::Disruption { node, .. }) => {
                Some(world.fleet.nodes().get(node).expect("it").spec.domain.clone())
            }
            _ => None,
        };
        moves(world).iter().filter_map(of).collect::<BTreeSet<_>>()
    };
    for _ in 0..60 {
        assert!(domains(&world).len() <= 1, "{:?}", domains(&world));
        world.obey_one();
    }
    assert_eq!(["node-1", "node-2", "node-3"].map(|node| held(&world, node)), [0, 0, 0]);
}

#[test]
fn a_quarantined_node_blocks_the_drain_of_no_other() {
    let mut world = world(4, 4, &json!({"sharing": "allowed", "max_unavailable": 9}));
    world.quarantine(Subject::Node(crate::testing::name("node-1")));
    for node in ["node-1", "node-2"] {
        drain(&mut world, node);
    }
    let before = ["node-1", "node-2"].map(|node| held(&world, node));
    assert!(before.iter().all(|held| *held > 0), "{before:?}");
    world.obey();
    assert_eq!(["node-1", "node-2"].map(|node| held(&world, node)), [before[0], 0]);
}

#[test]
fn nothing_moves_before_its_start_and_nothing_is_placed_from_its_approval_on() {
    let mut world = world(2, 1, &json!({"restart": "never"}));
    let node = world.fleet.replicas().sorted()[0].active.clone().expect("it runs").node;
    let start = world.now + std::time::Duration::from_secs(100);
    let spec = json!({"action": "drain", "start": start.micros()});
    world.must("disruption.schedule", &json!({"node": node, "name": "power", "spec": spec}));
    world.wait(200);
    assert_eq!((moves(&world).len(), state(&world, node.as_str())), (0, DisruptionState::Scheduled));
    world.now = start.before(std::time::Duration::from_secs(50));
    world.must("disruption.approve", &json!({"node": node, "name": "power"}));
    world.run();
    assert_eq!(moves(&world).len(), 0);
    world.deploy("d2", 2);
    world.approve_all();
    world.obey();
    world.deploy("d3", 3);
    let reasons = &world.fleet.plans().get("web").expect("the plan").unschedulable;
    assert!(reasons.iter().any(|unfit| unfit.reason.contains("disruption")), "{reasons:?}");
    world.must("deployment.cancel", &json!({"plan": "web", "name": "d3"}));
    world.wait(50);
    assert_eq!(moves(&world).len(), 1);
}

#[test]
fn what_has_no_other_placement_stays_and_reports_why_and_moves_when_there_is_one() {
    let mut world = world(1, 1, &json!({"restart": "never"}));
    drain(&mut world, "node-1");
    assert_eq!((moves(&world).len(), world.phases()), (1, vec!["running"]));
    let reasons = &world.fleet.plans().get("web").expect("the plan").unschedulable;
    assert!(!reasons.is_empty());
    world.add_node("node-2", "d2");
    world.run();
    world.obey();
    assert_eq!((held(&world, "node-1"), state(&world, "node-1")), (0, DisruptionState::Completed));
}

#[test]
fn what_was_only_reserved_there_gets_another_node() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("manual");
    world.deploy("d1", 1);
    let node = world.pending()[0].node.clone().expect("a place");
    drain(&mut world, node.as_str());
    let elsewhere = world.pending()[0].node.clone().expect("another place");
    assert_ne!(elsewhere, node);
    assert_eq!(state(&world, node.as_str()), DisruptionState::Completed);
}

#[test]
fn a_completed_disruption_cancels_the_moves_that_wait() {
    let mut world = world(1, 1, &json!({"restart": "never"}));
    drain(&mut world, "node-1");
    let named = json!({"node": "node-1", "name": "power"});
    let refusal = world.ask("disruption.delete", &named).expect_err("it is approved");
    assert_eq!(refusal.code, RefusalCode::InUse);
    world.must("disruption.complete", &named);
    world.run();
    assert_eq!((moves(&world).len(), state(&world, "node-1")), (0, DisruptionState::Completed));
    assert!(world.must("disruption.complete", &named).is_empty());
    let refusal = world.ask("disruption.approve", &named).expect_err("it has ended");
    assert!(
        refusal.code == RefusalCode::InvalidTransition && refusal.detail.contains("completed"),
        "{refusal:?}"
    );
    world.must("disruption.delete", &named);
    assert!(world.fleet.nodes().get("node-1").expect("the node").disruptions.is_empty());
}

#[test]
fn a_move_of_a_replica_with_two_incarnations_on_the_node_is_cancelled_once() {
    let mut world = TestFleet::with_nodes(1);
    world.plan_with("automatic", &json!({"sharing": "allowed"}));
    world.deploy("d1", 1);
    world.obey();
    let next = json!({"count": 1, "coordinates": {"app": {"version": "2"}}});
    world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": next}));
    world.run();
    world.must(
        "disruption.schedule",
        &json!({"node": "node-1", "name": "power", "spec": {"action": "drain"}}),
    );
    world.must("disruption.approve", &json!({"node": "node-1", "name": "power"}));
    world.must("deployment.cancel", &json!({"plan": "web", "name": "d2"}));
    world.run();
    assert_eq!((held(&world, "node-1"), moves(&world).len()), (2, 1), "the new incarnation is being stopped");
    let facts = world.must("disruption.complete", &json!({"node": "node-1", "name": "power"}));
    let ended = facts.iter().filter(|fact| matches!(fact, Fact::OperationEnded(_)));
    assert_eq!(ended.count(), 1, "{facts:?}");
}

#[test]
fn a_node_in_use_is_deleted_only_by_cascade_which_empties_it_first() {
    let mut world = world(3, 2, &json!({"restart": "never"}));
    let node = world.fleet.replicas().sorted()[0].active.clone().expect("it runs").node;
    let refusal = world.ask("node.delete", &json!({"name": node})).expect_err("it is in use");
    assert_eq!(refusal.code, RefusalCode::InUse);
    let cascade = json!({"name": node, "cascade": "yes"});
    world.must("node.delete", &cascade);
    world.grant();
    assert!(world.must("node.delete", &cascade).is_empty(), "the deletion is in progress");
    world.run();
    world.obey();
    assert!(world.fleet.nodes().get(&node).is_none());
    assert_eq!(world.phases(), ["running", "running"]);
}

#[test]
fn a_plan_in_use_is_deleted_only_by_cascade_with_all_that_it_has() {
    let mut world = world(3, 3, &json!({"restart": "always"}));
    world.deploy("d2", 2);
    let refusal = world.ask("plan.delete", &json!({"name": "web"})).expect_err("it is in use");
    assert_eq!(refusal.code, RefusalCode::InUse);
    world.must("plan.delete", &json!({"name": "web", "cascade": "yes"}));
    world.grant();
    let spec = json!({"count": 1});
    let refusal = world.ask("deployment.create", &json!({"plan": "web", "name": "d9", "spec": spec}));
    assert_eq!(refusal.expect_err("the plan is being deleted").code, RefusalCode::InUse);
    world.run();
    world.obey();
    assert!(world.fleet.plans().is_empty() && world.fleet.replicas().is_empty());
    assert_eq!(world.free_cpu(), 12_000);
}
