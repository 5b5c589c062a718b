//! Nodes: every transition, edits, guards.

use chancery_events::refusal::RefusalCode;
use chancery_events::spec::NodeState;
use serde_json::json;

use crate::testing::{TestFleet, name};

fn world_with(state: NodeState) -> TestFleet {
    let mut world = TestFleet::new();
    world.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "process"}}));
    world.must("cluster.apply", &json!({"name": "other", "spec": {"runtime": "process"}}));
    let spec = json!({"domain": "d1", "resources": {"cpu": 4000, "memory": 1024, "disk": 0}});
    world.must("node.apply", &json!({"name": "n", "spec": spec}));
    let way: &[&str] = match state {
        NodeState::Unallocated => &[],
        NodeState::Allocating => &["allocating"],
        NodeState::Allocated => &["allocated"],
        NodeState::Evicted => &["allocated", "evicted"],
        NodeState::Sanitizing => &["allocated", "evicted", "sanitizing"],
        NodeState::Expunged => &["expunged"],
    };
    for step in way {
        world.must("node.set_state", &ask(step));
    }
    world.fact_types();
    world
}

fn ask(to: &str) -> serde_json::Value {
    let cluster = to.starts_with("alloc").then_some("local");
    json!({"name": "n", "state": to, "cluster": cluster})
}

#[test]
fn every_transition_is_allowed_refused_or_the_same() {
    use NodeState::{Allocated, Allocating, Evicted, Expunged, Sanitizing, Unallocated};
    let all = [Unallocated, Allocating, Allocated, Evicted, Sanitizing, Expunged];
    // A row per state, a column per requested state: - refused, = unchanged, else the number of steps.
    let table = [
        (Unallocated, "=12--1"),
        (Allocating, "-=11-1"),
        (Allocated, "--=1-1"),
        (Evicted, "---=11"),
        (Sanitizing, "1--1=1"),
        (Expunged, "-----="),
    ];
    for (from, row) in table {
        for (to, expected) in all.iter().zip(row.chars()) {
            let mut world = world_with(from);
            let found = match world.ask("node.set_state", &ask(to.word())) {
                Ok(facts) if facts.is_empty() => '=',
                Ok(facts) => char::from_digit(facts.len() as u32, 10).expect("few"),
                Err(refusal) => {
                    assert_eq!(refusal.code, RefusalCode::InvalidTransition);
                    assert!(
                        refusal.detail.contains(from.word()) && refusal.detail.contains(to.word()),
                        "{refusal:?}"
                    );
                    '-'
                }
            };
            assert_eq!(found, expected, "{from} to {to}");
            let state = world.fleet.nodes().get("n").expect("the node").state;
            assert_eq!(state, if expected == '-' { from } else { *to });
        }
    }
}

#[test]
fn allocation_names_a_cluster_that_is_there_active_and_the_same() {
    let cases = [
        (json!({"name": "n", "state": "allocated"}), RefusalCode::Invalid, "no cluster named"),
        (
            json!({"name": "n", "state": "evicted", "cluster": "local"}),
            RefusalCode::Invalid,
            "a cluster where none belongs",
        ),
        (
            json!({"name": "n", "state": "allocated", "cluster": "nowhere"}),
            RefusalCode::NotFound,
            "an unknown cluster",
        ),
        (json!({"name": "x", "state": "expunged"}), RefusalCode::NotFound, "an unknown node"),
    ];
    for (body, code, why) in cases {
        let refusal = world_with(NodeState::Unallocated).ask("node.set_state", &body).expect_err(why);
        assert_eq!(refusal.code, code, "{why}");
    }
    let mut world = world_with(NodeState::Allocating);
    let other = json!({"name": "n", "state": "allocated", "cluster": "other"});
    assert_eq!(
        world.ask("node.set_state", &other).expect_err("another cluster").code,
        RefusalCode::InvalidTransition
    );
    world.must("cluster.set_activity", &json!({"name": "other", "activity": "inactive"}));
    let mut world = world_with(NodeState::Unallocated);
    world.must("cluster.set_activity", &json!({"name": "other", "activity": "inactive"}));
    assert_eq!(
        world.ask("node.set_state", &other).expect_err("an inactive cluster").code,
        RefusalCode::Inactive
    );
}

#[test]
fn an_apply_with_a_cluster_allocates_an_unallocated_node_and_leaves_an_evicted_one() {
    use NodeState::{Allocated, Allocating, Evicted, Expunged, Sanitizing, Unallocated};
    let spec = json!({"domain": "d1", "resources": {"cpu": 4000, "memory": 1024, "disk": 0}});
    // Number of facts of an apply with the cluster of the node and with another one; - is refused.
    let table = [
        (Unallocated, "22"),
        (Allocating, "0-"),
        (Allocated, "0-"),
        (Evicted, "00"),
        (Sanitizing, "00"),
        (Expunged, "--"),
    ];
    for (from, row) in table {
        for (cluster, expected) in ["local", "other"].into_iter().zip(row.chars()) {
            let found = match world_with(from)
                .ask("node.apply", &json!({"name": "n", "spec": spec, "cluster": cluster}))
            {
                Ok(facts) => char::from_digit(facts.len() as u32, 10).expect("few"),
                Err(refusal) => {
                    assert_eq!(refusal.code, RefusalCode::InvalidTransition);
                    '-'
                }
            };
            assert_eq!(found, expected, "{from} with cluster {cluster}");
        }
        if from != Allocating && from != Allocated {
            let nowhere = json!({"name": "n", "spec": spec, "cluster": "nowhere"});
            let refusal = world_with(from).ask("node.apply", &nowhere).expect_err("no such cluster");
            let wanted =
                if from == Expunged { RefusalCode::InvalidTransition } else { RefusalCode::NotFound };
            assert_eq!(refusal.code, wanted, "{from}");
        }
    }
}

#[test]
fn a_node_in_use_cannot_shrink_below_what_is_reserved_be_evicted_or_deleted() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.running("d1", 1);
    let edit = |cpu: u64, domain: &str| {
        let total = json!({"cpu": cpu, "memory": 8u64 << 30, "disk": 0});
        json!({"name": "node-1", "spec": {"domain": domain, "resources": total}})
    };
    assert_eq!(
        world.ask("node.apply", &edit(999, "d1")).expect_err("less than held").code,
        RefusalCode::InUse
    );
    assert_eq!(
        world.ask("node.apply", &edit(4000, "d9")).expect_err("another domain").code,
        RefusalCode::InUse
    );
    world.must("node.apply", &edit(1000, "d1"));
    assert_eq!(
        world.ask("node.delete", &json!({"name": "node-1"})).expect_err("in use").code,
        RefusalCode::InUse
    );
    let evict = json!({"name": "node-1", "state": "evicted"});
    assert_eq!(world.ask("node.set_state", &evict).expect_err("in use").code, RefusalCode::InUse);
}

#[test]
fn invalid_specs_name_the_field() {
    let cases = [
        (json!({"domain": "d", "resources": {"cpu": 0, "memory": 1}}), "/spec/resources/cpu"),
        (
            json!({"domain": "d", "resources": {"cpu": 1, "memory": 1}, "reserved": {"cpu": 2}}),
            "/spec/reserved",
        ),
        (
            json!({"domain": "d", "resources": {"cpu": 1, "memory": 1}, "capabilities": ["x"]}),
            "/spec/capabilities/0",
        ),
        (
            json!({"domain": "d", "resources": {"cpu": 1, "memory": 1}, "storage": [{"class": "s", "capacity": 1}, {"class": "s", "capacity": 1}]}),
            "/spec/storage/1/class",
        ),
    ];
    for (spec, pointer) in cases {
        let refusal =
            TestFleet::new().ask("node.apply", &json!({"name": "n", "spec": spec})).expect_err(pointer);
        assert_eq!(
            (refusal.code, refusal.errors.keys().next().map(String::as_str)),
            (RefusalCode::Invalid, Some(pointer))
        );
    }
}

#[test]
fn an_expunged_node_ends_what_was_on_it_and_frees_the_replica_to_start_elsewhere() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("automatic");
    world.running("d1", 1);
    let node = world.fleet.replicas().sorted()[0].active.clone().expect("placed").node;
    world.must("node.set_state", &json!({"name": node, "state": "expunged"}));
    world.run();
    assert_eq!(world.fact_types(), ["node.state_changed", "incarnation.ended"]);
    assert_eq!(world.phases(), ["failed"]);
    let replica = world.replica();
    world.must("replica.start", &json!({"name": replica}));
    world.run();
    world.obey();
    let now = world.fleet.replicas().sorted()[0].active.clone().expect("placed").node;
    assert_ne!(now, node);
    assert_eq!(world.fleet.nodes().get(&node).expect("the node").state, NodeState::Expunged);
    assert_eq!(world.phases(), ["running"]);
    let _: chancery_events::name::NodeName = name("x");
}

#[test]
fn an_operation_whose_node_is_expunged_gets_another_and_what_was_shown_is_void() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("manual");
    world.deploy("d1", 1);
    let before = world.pending()[0].clone();
    world.must("node.set_state", &json!({"name": before.node, "state": "expunged"}));
    world.run();
    let after = world.pending()[0].clone();
    assert_eq!(after.id, before.id);
    assert!(after.node != before.node && after.hash != before.hash, "{after:?}");
    assert_eq!(world.fleet.incarnations().sorted().iter().filter(|i| i.is_live()).count(), 1);
}
