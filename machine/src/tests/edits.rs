//! Edits of plans. The policy takes effect immediately, for every later decision about any replica; the
//! version by a deployment.

use std::time::Duration;

use chancery_events::refusal::RefusalCode;
use chancery_events::spec::OperationKind;
use serde_json::{Value, json};

use crate::state::OperationState;
use crate::testing::TestFleet;

/// Edits the plan `web`.
fn edit(world: &mut TestFleet, change: impl FnOnce(&mut Value)) {
    let plan = world.fleet.plans().get("web").expect("the plan").specs.newest();
    let mut spec = serde_json::to_value(&**plan).expect("JSON");
    change(&mut spec);
    world.must("plan.apply", &json!({"name": "web", "spec": spec}));
}

fn nodes(world: &TestFleet) -> Vec<String> {
    let live = world.fleet.incarnations().sorted().into_iter().filter(|run| run.is_live());
    live.map(|run| run.node.to_string()).collect()
}

fn label(world: &mut TestFleet, node: &str, tier: &str) {
    let total = json!({"cpu": 4000, "memory": 8u64 << 30, "disk": 0});
    let spec = json!({"domain": "d1", "resources": total, "labels": {"tier": tier}});
    world.must("node.apply", &json!({"name": node, "cluster": "local", "spec": spec}));
}

#[test]
fn an_edit_of_an_immediate_field_makes_no_replica_of_another_version() {
    for (field, value) in [
        ("sharing", json!("allowed")),
        ("max_unavailable", json!(2)),
        ("update_order", json!("stop_first")),
        ("restart", json!("always")),
        ("restart_delay", json!(1)),
        ("timeouts", json!({"start": 1000})),
        ("cluster", json!("local")),
        ("affinity", json!([{"group": "g", "kind": "anti_affinity"}])),
    ] {
        let mut world = TestFleet::with_nodes(2);
        world.plan("automatic");
        world.running("d1", 2);
        edit(&mut world, |spec| spec[field] = value);
        world.running("d2", 2);
        let updates =
            world.fleet.operations().sorted().iter().filter(|o| o.kind == OperationKind::Update).count();
        assert_eq!((world.deployment("d2").as_str(), updates), ("completed", 0), "{field}");
    }
}

#[test]
fn an_edit_of_version_changes_what_runs_by_a_deployment_and_not_before() {
    type SpecEdit = fn(&mut Value);
    let change: [(&str, SpecEdit); 3] = [
        ("namespace", |spec| spec["namespace"] = json!("other")),
        ("service", |spec| spec["service"] = json!("other")),
        ("payloads", |spec| spec["payloads"][0]["run"]["argv"] = json!(["app", "-v"])),
    ];
    for (field, change) in change {
        let mut world = TestFleet::with_nodes(3);
        world.plan("automatic");
        world.running("d1", 1);
        edit(&mut world, change);
        world.run();
        assert_eq!(world.fleet.operations().len(), 1, "{field}: nothing follows from the edit");
        world.running("d2", 1);
        let kinds: Vec<_> = world.fleet.operations().sorted().iter().map(|o| o.kind).collect();
        assert_eq!(kinds, [OperationKind::Create, OperationKind::Update], "{field}");
    }
}

#[test]
fn a_drain_that_an_edit_makes_possible_continues_automatically() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("manual");
    world.running("d1", 2);
    world.must(
        "disruption.schedule",
        &json!({"node": "node-1", "name": "power", "spec": {"action": "drain"}}),
    );
    world.must("disruption.approve", &json!({"node": "node-1", "name": "power"}));
    world.run();
    world.obey();
    assert_eq!(nodes(&world), ["node-1", "node-2"], "only the node of the other replica is left");
    assert!(
        !world.fleet.plans().get("web").expect("the plan").unschedulable.is_empty(),
        "and that is the reason"
    );
    edit(&mut world, |spec| spec["sharing"] = json!("allowed"));
    world.run();
    world.obey();
    assert_eq!(nodes(&world), ["node-2", "node-2"], "by the deployment of before, and the policy of now");
}

#[test]
fn a_reservation_that_an_edit_forbids_is_made_again_and_its_approval_is_void() {
    let mut world = TestFleet::with_nodes(2);
    label(&mut world, "node-1", "a");
    label(&mut world, "node-2", "b");
    world.plan("manual");
    edit(&mut world, |spec| spec["selectors"] = json!({"tier": "a"}));
    world.deploy("d1", 1);
    let shown = world.pending()[0].clone();
    assert_eq!(nodes(&world), ["node-1"]);
    edit(&mut world, |spec| spec["selectors"] = json!({"tier": "b"}));
    let OperationState::PendingApproval(proposal) = shown.state else { panic!("it waits") };
    let approve = json!({"operations": [{"operation": shown.id, "hash": proposal.hash}]});
    let refusal =
        world.ask("operation.approve", &approve).expect_err("it would be placed where it must not be");
    assert_eq!(refusal.code, RefusalCode::HashMismatch);
    assert!(refusal.detail.contains("no label tier=b"), "{}", refusal.detail);
    world.run();
    assert_eq!((nodes(&world), world.pending().len()), (vec!["node-2".to_owned()], 1));
    let refusal = world.ask("operation.approve", &approve).expect_err("something else was shown");
    assert_eq!(refusal.code, RefusalCode::HashMismatch);
    world.approve_all();
    world.obey();
    assert_eq!((nodes(&world), world.deployment("d1")), (vec!["node-2".to_owned()], "completed".to_owned()));
}

#[test]
fn a_reservation_that_an_edit_forbids_is_not_used_though_a_pause_ends_at_that_moment() {
    let mut world = TestFleet::with_nodes(2);
    label(&mut world, "node-1", "a");
    label(&mut world, "node-2", "b");
    world.plan("automatic");
    edit(&mut world, |spec| spec["sharing"] = json!("allowed"));
    let spec = json!({
        "count": 2, "coordinates": {"app": {"version": "v1"}},
        "strategy": {"rolling": {"max_parallel": 1, "delay": 60_000}},
    });
    world.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": spec}));
    world.run();
    world.obey();
    assert_eq!(world.phases(), ["pending", "running"], "the second waits for the end of the pause");
    let reserved = nodes(&world).pop().expect("a place");
    let (allowed, tier) = if reserved == "node-1" { ("node-2", "b") } else { ("node-1", "a") };
    world.now = world.now + Duration::from_mins(1);
    edit(&mut world, |spec| spec["selectors"] = json!({"tier": tier}));
    world.run();
    world.obey();
    assert_eq!(nodes(&world).pop().expect("it runs"), allowed);
}

#[test]
fn a_reservation_that_an_edit_allows_keeps_its_approval() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("manual");
    world.deploy("d1", 1);
    let shown = world.pending()[0].clone();
    edit(&mut world, |spec| spec["max_unavailable"] = json!(5));
    world.run();
    assert_eq!(world.pending(), [&shown]);
    world.approve(shown.id).expect("as it was shown");
}

#[test]
fn a_reservation_alongside_the_incarnation_that_it_replaces_is_not_forbidden_by_that_incarnation() {
    let mut world = TestFleet::with_nodes(1);
    world.plan_with("manual", &json!({"affinity": [{"group": "g", "kind": "anti_affinity"}]}));
    world.running("d1", 1);
    let replica = world.replica();
    world.must("replica.restart", &json!({"name": replica}));
    world.run();
    let shown = world.pending()[0].clone();
    edit(&mut world, |spec| spec["max_unavailable"] = json!(5));
    world.run();
    assert_eq!(world.pending(), [&shown], "both are the replica's own");
}

#[test]
fn an_approved_queued_update_is_shown_again_when_the_order_of_updates_is_edited() {
    let mut world = TestFleet::with_nodes(4);
    world.plan("manual");
    world.running("d1", 2);
    edit(&mut world, |spec| spec["payloads"][0]["run"]["argv"] = json!(["app", "-v"]));
    world.deploy("d2", 2);
    let second = world.pending()[1].id;
    world.approve_all();
    assert_eq!(world.fleet.operations().get(&second).expect("kept").state, OperationState::Approved);
    edit(&mut world, |spec| spec["update_order"] = json!("stop_first"));
    world.run();
    let waits = world.fleet.operations().get(&second).expect("kept");
    assert!(matches!(waits.state, OperationState::PendingApproval(_)), "{:?}", waits.state);
    world.approve(second).expect("as it is shown now");
    world.obey();
    assert_eq!((world.deployment("d2").as_str(), world.phases()), ("completed", vec!["running", "running"]));
}

#[test]
fn what_runs_where_an_edit_forbids_it_stays_and_is_moved_by_later_decisions_only() {
    let mut world = TestFleet::with_nodes(2);
    world.plan_with("automatic", &json!({"sharing": "allowed", "restart": "always"}));
    world.running("d1", 4);
    let before = nodes(&world);
    edit(&mut world, |spec| spec["sharing"] = json!("never"));
    world.run();
    world.obey();
    assert_eq!(nodes(&world), before, "no move was requested");
    let replica = world.replica();
    let refused = world.ask("replica.relocate", &json!({"name": replica}));
    assert!(refused.is_ok(), "{refused:?}");
    world.run();
    let reasons = &world.fleet.plans().get("web").expect("the plan").unschedulable;
    assert!(
        reasons.iter().any(|unfit| unfit.reason.contains("already has a replica of the plan")),
        "{reasons:?}"
    );
}

#[test]
fn replicas_are_of_the_groups_that_their_plan_names_now() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("automatic");
    world.running("d1", 1);
    let taken = nodes(&world);
    edit(&mut world, |spec| spec["affinity"] = json!([{"group": "g", "kind": "anti_affinity"}]));
    let spec = json!({"namespace": "ns", "service": "other", "approval": {"create": "automatic"},
        "affinity": [{"group": "g", "kind": "anti_affinity"}],
        "payloads": [{"name": "app", "resources": {"cpu": 100, "memory": 1}, "run": {"argv": ["app"]}}]});
    world.must("plan.apply", &json!({"name": "other", "spec": spec}));
    world.must("deployment.create", &json!({"plan": "other", "name": "o1", "spec": {"count": 1}}));
    world.run();
    world.obey();
    let all = nodes(&world);
    assert_eq!(all.len(), 2);
    assert_ne!(all[1], taken[0], "the incarnation from before the edit is of the group too");
    edit(&mut world, |spec| spec["affinity"] = json!([]));
    world.must("deployment.create", &json!({"plan": "other", "name": "o2", "spec": {"count": 2}}));
    world.run();
    world.obey();
    assert_eq!(nodes(&world).len(), 3, "the group has left the node");
}

#[test]
fn an_edit_of_timeouts_counts_from_the_next_command_on() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.deploy("d1", 1);
    edit(&mut world, |spec| spec["timeouts"]["start"] = json!(1000));
    world.wait(2);
    assert_eq!(world.phases(), ["starting"], "a command from before the edit keeps its deadline");
    world.obey();
    let replica = world.replica();
    world.must("replica.restart", &json!({"name": replica}));
    world.obey_one();
    world.wait(2);
    assert_ne!(world.phases(), ["running"]);
}

#[test]
fn a_deployment_of_none_that_completed_is_a_completed_one() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("automatic");
    world.running("d1", 1);
    world.running("d2", 0);
    assert_eq!(world.deployment("d2"), "completed");
    world.must("replica.create", &json!({"plan": "web"}));
    world.run();
    world.obey();
    assert_eq!(world.phases(), ["running"]);
    let replica = world.fleet.replicas().get(&world.replica()).expect("there");
    assert_eq!(replica.deployment.as_str(), "d2");
}

#[test]
fn a_deployment_of_none_without_its_coordinates_reports_what_another_replica_lacks() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("automatic");
    edit(&mut world, |spec| spec["payloads"][0]["run"]["argv"] = json!(["app", "${v}"]));
    world.running("d1", 0);
    let refusal = world.ask("replica.create", &json!({"plan": "web"})).expect_err("nothing fills it");
    assert_eq!(refusal.code, RefusalCode::InvalidTransition);
    assert!(refusal.detail.contains("had a count of 0 and lacks coordinates"), "{}", refusal.detail);
}
