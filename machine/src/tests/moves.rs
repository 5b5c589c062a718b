//! Moves away from nodes: failed ones, and impossible ones.

use chancery_events::fact::Fact;
use chancery_events::id::ObjectId;
use chancery_events::observation::{IncarnationExit, RetryClass};
use serde_json::json;

use super::setting::{GB, apply, ask, drain, live, own, put, running, runs, settle, vanished, world};
use crate::state::IncarnationState;
use crate::testing::{TestFleet, ended, failed};

/// Fails every start and completes every stop. Returns the minimum number of the plan's replicas that ran
/// meanwhile.
fn fails(world: &mut TestFleet, rounds: usize) -> usize {
    let mut least = usize::MAX;
    for _ in 0..rounds {
        let Some((_, object)) = world.fleet.index().pending_commands.first().copied() else { break };
        let ObjectId::Incarnation(id) = object else {
            world.obey_one();
            continue;
        };
        let run = world.fleet.incarnations().get(&id).expect("it is commanded");
        let comes_up = run.state == IncarnationState::Creating;
        world
            .report(id, if comes_up { failed(RetryClass::Permanent) } else { ended(IncarnationExit::Clean) });
        least = least.min(live(world).iter().filter(|state| **state == "running").count());
    }
    least
}

fn opened(world: &TestFleet) -> usize {
    world.log.iter().filter(|fact| matches!(fact, Fact::OperationCreated(_))).count()
}

#[test]
fn a_failed_move_is_retried_only_after_a_growing_backoff() {
    let mut world = world(3, 10 * GB);
    running(&mut world, "web", 1, &json!([]), &json!({"restart_delay": 10_000}));
    let node = runs(&world, "web")[0].node.to_string();
    world.log.clear();
    drain(&mut world, &node);
    let mut moves = vec![];
    for _ in 0..4 {
        assert!(fails(&mut world, 100) >= 1, "it continues to run where it was");
        moves.push(opened(&world));
        world.wait(10);
    }
    // After ten seconds, and after twenty.
    assert_eq!(moves, [1, 2, 2, 3]);
    settle(&mut world);
    assert_ne!(runs(&world, "web")[0].node.as_str(), node, "in the end it could be moved");
}

#[test]
fn a_budget_is_kept_where_moves_stop_first_and_fail() {
    let mut world = world(3, 10 * GB);
    running(&mut world, "web", 6, &own(), &json!({"max_unavailable": 1, "restart_delay": 3_600_000}));
    drain(&mut world, "node-1");
    let least = fails(&mut world, 60);
    world.wait(3_000);
    assert_eq!((least, fails(&mut world, 60).min(5)), (5, 5), "one is down, and no other is moved");
    settle(&mut world);
    assert_eq!(
        (live(&world), runs(&world, "web").iter().any(|run| run.node.as_str() == "node-1")),
        (vec!["running"; 6], false)
    );
}

#[test]
fn one_that_cannot_move_keeps_no_other_of_its_plan() {
    let mut world = world(2, 100 * GB);
    running(&mut world, "web", 4, &own(), &json!({"max_unavailable": 1, "restart": "never"}));
    let on_it =
        |world: &TestFleet| runs(world, "web").iter().filter(|run| run.node.as_str() == "node-1").count();
    assert_eq!(on_it(&world), 2);
    // The volume of the first one is called lost; its user continues to run.
    let first = runs(&world, "web").into_iter().find(|run| run.node.as_str() == "node-1");
    let volume = first.expect("one is there").ties.mounts[0].to_string();
    world.report_volume(&volume, vanished());
    drain(&mut world, "node-1");
    settle(&mut world);
    assert_eq!(on_it(&world), 1);
}

#[test]
fn a_reservation_on_a_node_that_is_being_emptied_is_released_whatever_it_starts_after() {
    for volumes in [json!([]), own()] {
        let mut world = world(2, 10 * GB);
        running(&mut world, "web", 1, &volumes, &json!({"manual": "relocate"}));
        ask(&mut world, "relocate");
        let held = runs(&world, "web").into_iter().find(|run| run.state == IncarnationState::Reserved);
        let node = held.expect("a place").node.to_string();
        drain(&mut world, &node);
        assert_eq!(live(&world), ["running"], "{volumes}");
        assert_eq!(world.fleet.nodes().get(node.as_str()).expect("it").state.word(), "evicted");
    }
}

#[test]
fn an_approval_is_not_of_a_reservation_that_violates_an_affinity_by_then() {
    let mut world = world(1, 10 * GB);
    let affinity = json!([{"group": "g", "kind": "anti_affinity", "policy": "allow"}]);
    apply(&mut world, "web", &json!([]), &json!({"affinity": affinity, "manual": "create"}));
    put(&mut world, "web", "d1", 1);
    let shown = world.pending()[0].clone();
    // Its node is taken from it, another of the group is placed there, and it gets the same node again.
    drain(&mut world, "node-1");
    for (state, cluster) in [("sanitizing", None), ("unallocated", None), ("allocated", Some("local"))] {
        if state == "allocated" {
            apply(&mut world, "other", &json!([]), &json!({"affinity": affinity}));
            world.must("disruption.schedule", &json!({"node": "node-1", "name": "later", "spec": {}}));
        }
        world.must("node.set_state", &json!({"name": "node-1", "state": state, "cluster": cluster}));
    }
    put(&mut world, "other", "d1", 1);
    world.run();
    let again = world.fleet.operations().get(&shown.id).expect("it waits").clone();
    let run = again.incarnation.and_then(|id| world.fleet.incarnations().get(&id));
    let affinity_violated = run.and_then(|run| run.ties.affinity_violated.clone());
    assert!(affinity_violated.is_some(), "{again:?}");
    assert_ne!(again.hash, shown.hash);
}
