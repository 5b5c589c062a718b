//! Policies: who may approve, when, and how many operations concurrently. Affinity: which replicas may share
//! a node.

use chancery_events::fact::ApprovalActor;
use chancery_events::name::Actor;
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::OperationKind;
use chancery_events::subject::Subject;
use serde_json::{Value, json};

use crate::state::{Operation, OperationState};
use crate::testing::{TestFleet, intent, name};

fn policy(world: &mut TestFleet, policy: &str, spec: &Value) {
    world.must("policy.apply", &json!({"name": policy, "spec": spec}));
    world.run();
}

fn approved_by(world: &TestFleet, rule: &str) -> Vec<OperationKind> {
    let by = ApprovalActor::Rule(rule.to_owned());
    let is = |o: &&Operation| o.approved.as_ref().is_some_and(|(approver, _)| *approver == by);
    world.fleet.operations().sorted().into_iter().filter(is).map(|o| o.kind).collect()
}

#[test]
fn a_policy_approves_the_kinds_plans_and_domains_that_it_names_and_the_fact_names_it() {
    // Fields of the policy, and the number of creates that it approves, of two on nodes of d1 and d2.
    let table = [
        (json!({}), 2),
        (json!({"kinds": ["create", "update"]}), 2),
        (json!({"kinds": ["delete"]}), 0),
        (json!({"plans": ["web"]}), 2),
        (json!({"plans": ["other"]}), 0),
        (json!({"domains": ["d1"]}), 1),
        (json!({"domains": ["d9"]}), 0),
    ];
    for (matches, count) in table {
        for first in [true, false] {
            let mut spec = matches.clone();
            spec["rule"] = json!({"approve": {}});
            let mut world = TestFleet::with_nodes(2);
            world.plan("manual");
            if first {
                policy(&mut world, "p", &spec);
            }
            world.deploy("d1", 2);
            if !first {
                policy(&mut world, "p", &spec);
            }
            let approved = approved_by(&world, "policy/p");
            assert_eq!(approved, vec![OperationKind::Create; count], "{matches}, first: {first}");
            assert_eq!(world.pending().len(), 2 - count, "{matches}");
        }
    }
}

#[test]
fn a_policy_approves_its_maximum_concurrently_and_the_next_when_one_ends() {
    let mut world = TestFleet::with_nodes(4);
    world.plan("manual");
    policy(&mut world, "p", &json!({"rule": {"approve": {"max_in_flight": 2}}}));
    world.deploy("d1", 4);
    assert_eq!((world.commanded().len(), world.pending().len()), (2, 2));
    world.obey_one();
    assert_eq!(
        (world.commanded().len(), world.pending().len()),
        (3, 1),
        "one has ended, and one more starts"
    );
    world.obey();
    assert_eq!((world.deployment("d1").as_str(), world.pending().len()), ("completed", 0));
}

#[test]
fn a_quarantined_operation_blocks_the_approval_of_no_other() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("manual");
    world.deploy("d1", 2);
    let alone = world.pending()[0].id;
    world.quarantine(Subject::Operation(alone));
    policy(&mut world, "p", &json!({"rule": {"approve": {}}}));
    assert_eq!(approved_by(&world, "policy/p"), [OperationKind::Create]);
    assert_eq!(world.pending().iter().map(|operation| operation.id).collect::<Vec<_>>(), [alone]);
}

#[test]
fn a_policy_waits_for_its_window() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("manual");
    // The world starts on a Monday, at 13:46:40 UTC.
    let window = json!({"days": ["mon"], "start": 22 * 60, "duration": 60});
    policy(&mut world, "p", &json!({"rule": {"approve": {"windows": [window]}}}));
    world.deploy("d1", 1);
    assert_eq!(world.pending().len(), 1);
    let next = world.next_alarm().expect("it opens");
    assert_eq!(next.to_string(), "1970-01-12T22:00:00.000000Z");
    let wait = next.since(world.now);
    world.now = world.now + wait;
    world.run();
    assert_eq!(approved_by(&world, "policy/p"), [OperationKind::Create]);
}

#[test]
fn a_policy_that_is_deleted_approves_nothing_more() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("manual");
    let spec = json!({"rule": {"approve": {}}});
    policy(&mut world, "p", &spec);
    assert!(world.must("policy.apply", &json!({"name": "p", "spec": spec})).is_empty(), "it is unchanged");
    world.must("policy.delete", &json!({"name": "p"}));
    world.deploy("d1", 1);
    assert_eq!(world.pending().len(), 1);
    let refusal = world.ask("policy.delete", &json!({"name": "p"})).expect_err("it is gone");
    assert_eq!(refusal.code, RefusalCode::NotFound);
    let bad = json!({"name": "p", "spec": {"rule": {"approve": {"max_in_flight": 0, "windows": [{"start": 1440, "duration": 0}]}}}});
    let refusal = world.ask("policy.apply", &bad).expect_err("its values are invalid");
    assert_eq!(refusal.errors.len(), 3, "{refusal:?}");
}

fn approve_as(world: &mut TestFleet, actor: &str) -> Result<(), chancery_events::refusal::Refusal> {
    let pending = world.pending()[0];
    let (operation, hash) = (pending.id, pending.hash.expect("a hash"));
    let data = json!({"operations": [{"operation": operation, "hash": hash}]});
    let mut request = world.request(intent("operation.approve", &data));
    request.actor = name::<Actor>(actor);
    let result = world.ask_request(&request).map(drop);
    world.run();
    result
}

#[test]
fn four_eyes_are_not_those_of_the_requester_directly_or_by_a_deployment() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("manual");
    policy(&mut world, "two", &json!({"kinds": ["create", "stop"], "rule": {"four_eyes": {}}}));
    world.deploy("d1", 1);
    let refusal = approve_as(&mut world, "ann").expect_err("ann deployed it");
    assert!(refusal.code == RefusalCode::Denied && refusal.detail.contains("two"), "{refusal:?}");
    approve_as(&mut world, "bob").expect("bob did not");
    world.obey();
    let name = world.replica();
    world.must("replica.stop", &json!({"name": name}));
    world.run();
    assert_eq!(approve_as(&mut world, "ann").expect_err("ann asked").code, RefusalCode::Denied);
    world.must("policy.delete", &json!({"name": "two"}));
    world.grant();
    approve_as(&mut world, "ann").expect("no policy requires four eyes any more");
}

fn grouped(world: &mut TestFleet, plan: &str, nodes: &str, otherwise: &str) {
    let affinity = json!([{"group": "db", "kind": nodes, "policy": otherwise}]);
    let payload =
        json!({"name": "app", "resources": {"cpu": 100, "memory": 1 << 20}, "run": {"argv": ["app"]}});
    let spec = json!({"namespace": "ns", "service": plan, "payloads": [payload], "affinity": affinity, "sharing": "allowed"});
    world.must("plan.apply", &json!({"name": plan, "spec": spec}));
}

fn put(world: &mut TestFleet, plan: &str, count: u32) {
    world.must("deployment.create", &json!({"plan": plan, "name": "d1", "spec": {"count": count}}));
    world.run();
}

#[test]
fn replicas_of_a_group_are_placed_apart_across_plans_or_are_reported() {
    for otherwise in ["fail", "allow"] {
        let mut world = TestFleet::with_nodes(3);
        grouped(&mut world, "a", "anti_affinity", otherwise);
        grouped(&mut world, "b", "anti_affinity", otherwise);
        put(&mut world, "a", 2);
        put(&mut world, "b", 2);
        let placed = world.fleet.incarnations().sorted();
        let nodes: std::collections::BTreeSet<_> = placed.iter().map(|i| i.node.clone()).collect();
        let affinity_violated: Vec<_> =
            placed.iter().filter_map(|i| i.ties.affinity_violated.clone()).collect();
        assert_eq!(nodes.len(), 3);
        if otherwise == "fail" {
            assert_eq!((placed.len(), affinity_violated.len()), (3, 0));
            let reasons = &world.fleet.plans().get("b").expect("the plan").unschedulable;
            assert!(reasons.iter().any(|unfit| unfit.reason.contains("group db")), "{reasons:?}");
            world.add_node("node-4", "d2");
            world.run();
            assert_eq!(world.fleet.incarnations().len(), 4, "it is placed automatically");
        } else {
            assert_eq!((placed.len(), affinity_violated), (4, vec!["one of group db is there".into()]));
        }
    }
}

#[test]
fn a_replica_that_joins_a_group_does_not_stay_alongside_another_member() {
    let mut world = TestFleet::with_nodes(1);
    let alone = json!({"update_order": "stop_first"});
    world.plan_with("automatic", &alone);
    world.running("d1", 1);
    let group = json!([{"group": "db", "kind": "anti_affinity", "policy": "fail"}]);
    grouped(&mut world, "other", "anti_affinity", "fail");
    put(&mut world, "other", 1);
    assert_eq!(world.fleet.incarnations().len(), 2, "the one that runs is of no group");
    let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": {"argv": ["app"]}});
    world.plan_with(
        "automatic",
        &json!({"update_order": "stop_first", "affinity": group, "payloads": [payload]}),
    );
    world.deploy("d2", 1);
    world.run();
    let reasons = &world.fleet.plans().get("web").expect("the plan").unschedulable;
    assert!(reasons.iter().any(|unfit| unfit.reason.contains("group db")), "{reasons:?}");
}

#[test]
fn replicas_of_a_group_are_placed_together_where_the_first_one_is() {
    let mut world = TestFleet::with_nodes(4);
    grouped(&mut world, "a", "affinity", "fail");
    grouped(&mut world, "b", "affinity", "fail");
    put(&mut world, "a", 2);
    put(&mut world, "b", 2);
    let placed = world.fleet.incarnations().sorted();
    let nodes: std::collections::BTreeSet<_> = placed.iter().map(|i| i.node.clone()).collect();
    assert_eq!((placed.len(), nodes.len()), (4, 1), "{nodes:?}");
    world.approve_all();
    world.obey();
    assert!(world.phases().iter().all(|phase| *phase == "running"));
}

#[test]
fn many_that_wait_for_approval_cost_a_relocate_elsewhere_nothing() {
    let mut world = TestFleet::new();
    world.counted = crate::testing::CountInterval::AtTheEnd;
    world.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "process"}}));
    for i in 0..2 {
        let total = json!({"cpu": 1_000_000_000u64, "memory": 1u64 << 50, "disk": 0});
        let spec = json!({"domain": format!("d{i}"), "resources": total});
        world.must("node.apply", &json!({"name": format!("node-{i}"), "cluster": "local", "spec": spec}));
    }
    world.open_session();
    world.plan_with("automatic", &json!({"sharing": "allowed"}));
    world.running("d1", 1);
    let replica = world.replica();
    grouped(&mut world, "many", "anti_affinity", "allow");
    policy(&mut world, "never", &json!({"kinds": ["delete"], "rule": {"approve": {}}}));
    world.must("deployment.create", &json!({"plan": "many", "name": "d1", "spec": {"count": 20_000}}));
    while !world.try_run() {}
    let before = world.fleet.head();
    world.must("replica.relocate", &json!({"name": replica}));
    world.run();
    world.obey();
    let events = world.fleet.head().get() - before.get();
    assert!(events < 20, "{events} events");
    let waits = |o: &&Operation| matches!(o.state, OperationState::PendingApproval(_));
    assert_eq!(world.fleet.operations().sorted().into_iter().filter(waits).count(), 20_000);
    world.check();
}
