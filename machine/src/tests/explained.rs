//! Explanations of placements and of waits.

use serde_json::json;

use crate::operation::{ChosenNode, OperationWait};
use crate::state::Operation;
use crate::testing::TestFleet;

fn newest(world: &TestFleet) -> &Operation {
    world
        .fleet
        .operations()
        .sorted()
        .into_iter()
        .max_by_key(|operation| operation.id.position())
        .expect("one")
}

#[test]
fn a_placement_is_explained_by_its_rule_and_by_what_excludes_other_nodes() {
    let cases = [
        (json!({}), "update domain d1 has the fewest other replicas of the plan that remain (0)"),
        (json!({"placement": "pack"}), "of the nodes that fit, the node has the least free capacity"),
        (json!({"selectors": {"rack": "r3"}}), "update domain d1 has the fewest"),
    ];
    for (more, reason) in cases {
        let mut world = TestFleet::with_nodes(4);
        let spec = json!({"domain": "d1", "labels": {"rack": "r3"}, "resources": {"cpu": 4000, "memory": 8u64 << 30, "disk": 0}});
        world.must("node.apply", &json!({"name": "node-3", "cluster": "local", "spec": spec}));
        world.must("node.set_state", &json!({"name": "node-2", "state": "evicted"}));
        world.plan_with("manual", &more);
        world.deploy("d", 1);
        let operation = newest(&world);
        let chosen = ChosenNode::of(&world.fleet, operation.id).expect("a placement");
        assert!(chosen.reason.starts_with(reason), "{more}: {chosen:?}");
        let against = |node: &str| {
            let reasons =
                chosen.others.iter().filter(|of| of.nodes.iter().any(|other| other.as_str() == node));
            reasons.map(|of| of.reason.clone()).collect::<Vec<_>>()
        };
        assert_eq!(against("node-2"), ["the node is evicted"], "{more}");
        let others = if more["selectors"].is_object() { vec!["no label rack=r3".to_owned()] } else { vec![] };
        assert_eq!(against("node-4"), others, "{more}");
        let node = world.fleet.incarnations().sorted()[0].node.clone();
        assert_eq!(against(node.as_str()), Vec::<String>::new(), "{more}: the chosen node fits");
    }
}

#[test]
fn an_operation_waits_for_one_condition() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("manual");
    world.deploy("d", 3);
    let waits = |world: &TestFleet| {
        let operations = world.fleet.operations().sorted();
        operations.iter().map(|operation| OperationWait::of(&world.fleet, operation.id)).collect::<Vec<_>>()
    };
    let found = waits(&world);
    let is_approval =
        |wait: &&Option<OperationWait>| matches!(wait, Some(OperationWait::Approval { four_eyes: None, .. }));
    assert_eq!(found.iter().filter(is_approval).count(), 2, "{found:?}");
    assert_eq!(found.iter().filter(|wait| **wait == Some(OperationWait::Placement)).count(), 1, "{found:?}");
    let pending = world.pending().first().expect("a pending operation").id;
    world.approve(pending).expect("approved");
    assert!(waits(&world).contains(&Some(OperationWait::Report)), "{:?}", waits(&world));
}
