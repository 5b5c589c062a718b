//! Races for reservations, and for the deletion of what had one.

use chancery_events::fact::Fact;
use chancery_events::observation::{IncarnationExit, ObservedState, RetryClass};
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::OperationKind::Create;
use serde_json::json;

use super::{ask, incarnation, live, lose_session, running};
use crate::testing::{TestFleet, crashed, ended, failed, ready};

/// Adds another plan, `db`. With more than 3000 it does not fit next to a replica of `web`.
fn other_plan(world: &mut TestFleet, cpu: u64) {
    let payload = json!({"name": "app", "resources": {"cpu": cpu, "memory": 1}, "run": {"argv": ["app"]}});
    let spec = json!({"namespace": "ns", "service": "db", "payloads": [payload]});
    world.must("plan.apply", &json!({"name": "db", "spec": spec}));
    world.must("deployment.create", &json!({"plan": "db", "name": "d1", "spec": {"count": 1}}));
}

/// Races R29 and R34.
#[test]
fn a_reservation_is_released_once_however_often_and_by_whom_the_end_is_reported() {
    let (mut world, id) = running("automatic");
    other_plan(&mut world, 3500);
    world.run();
    world.report(id, crashed());
    assert_eq!(world.free_cpu(), 500, "db is placed immediately");
    for observed in
        [ended(IncarnationExit::Clean), crashed(), ObservedState::Gone, failed(RetryClass::Permanent)]
    {
        assert!(world.report_at(id, 9, observed).is_empty());
    }
    ask(&mut world, "replica.delete");
    assert!(world.report_at(id, 9, ObservedState::Gone).is_empty(), "of a replica that is deleted");
    assert_eq!(world.free_cpu(), 500);
}

/// Race R30.
#[test]
fn what_is_released_is_what_was_reserved_whatever_the_plan_requests_by_then() {
    for (approved, cpu) in [(false, 3000), (true, 3000), (false, 500), (true, 500)] {
        let mut world = TestFleet::with_nodes(1);
        world.plan("manual");
        world.deploy("d1", 1);
        let (id, operation) = (world.fleet.incarnations().sorted()[0].id, world.pending()[0].id);
        if approved {
            world.approve(operation).expect("approved");
        }
        // Next to another replica, because an empty node has everything free in any case.
        other_plan(&mut world, 700);
        world.run();
        let plan = world.fleet.plans().get("web").expect("the plan").specs.newest();
        let mut spec = serde_json::to_value(&**plan).expect("JSON");
        spec["payloads"][0]["resources"]["cpu"] = json!(cpu);
        world.must("plan.apply", &json!({"name": "web", "spec": spec}));
        assert_eq!(world.free_cpu(), 2300, "the reservation is unchanged");
        if approved {
            world.report(id, crashed());
        } else {
            world.reject(operation).expect("rejected");
        }
        assert_eq!(world.free_cpu(), 3300, "approved: {approved}, then {cpu}");
    }
}

/// Race R41.
#[test]
fn a_reservation_is_reused_only_after_the_proved_end_of_its_owner() {
    let (mut world, id) = running("automatic");
    other_plan(&mut world, 3500);
    ask(&mut world, "replica.delete");
    lose_session(&mut world);
    world.wait(1_000_000);
    assert_eq!((live(&world), world.free_cpu()), (1, 3000), "the kill has no effect, and db waits");
    world.open_session();
    world.report_at(id, 1, ready());
    assert_eq!(live(&world), 1, "it runs, and db waits");
    world.report(id, ended(IncarnationExit::Clean));
    let now: Vec<_> = world.fleet.incarnations().sorted().iter().map(|i| i.plan.to_string()).collect();
    assert_eq!((now, world.free_cpu()), (vec!["db".to_owned()], 500));
}

/// Race R42.
#[test]
fn a_removal_that_fails_is_not_dropped_when_plan_and_deployment_advance() {
    let (mut world, id) = running("automatic");
    world.deploy("d0", 0);
    world.plan("automatic");
    world.plan("manual");
    world.deploy("d2", 1);
    for _ in 0..20 {
        let facts = world.report(id, failed(RetryClass::Permanent));
        assert!(
            matches!(&facts[..], [Fact::IncarnationCommandFailed(fact)] if fact.not_before.is_some()),
            "{facts:?}"
        );
        let command = incarnation(&world, id).command.expect("repeated permanently");
        world.now = command.not_before;
        world.run();
    }
    assert_eq!(
        (world.deployment("d0").as_str(), world.deployment("d2").as_str()),
        ("in progress", "pending")
    );
    world.report(id, ended(IncarnationExit::Clean));
    assert_eq!((world.deployment("d0").as_str(), world.kinds()), ("completed", vec![Create]));
}

/// Race R44.
#[test]
fn a_removal_that_fails_blocks_no_other_and_does_not_count_as_done() {
    let mut world = TestFleet::with_nodes(3);
    world.plan("automatic");
    world.running("d1", 3);
    world.deploy("d0", 0);
    let all = world.commanded();
    world.report(all[0], failed(RetryClass::Retryable));
    for id in &all[1..] {
        world.report(*id, ended(IncarnationExit::Clean));
    }
    assert_eq!((world.phases(), world.deployment("d0").as_str()), (vec!["deleting"], "in progress"));
    world.report(all[0], ended(IncarnationExit::Clean));
    assert_eq!((world.phases().len(), world.deployment("d0").as_str()), (0, "completed"));
}

/// Race R49.
#[test]
fn a_node_is_deleted_only_after_what_was_on_it() {
    let (mut world, id) = running("automatic");
    world.must("node.set_state", &json!({"name": "node-1", "state": "expunged"}));
    let refusal = world.ask("node.delete", &json!({"name": "node-1"})).expect_err("not settled yet");
    assert_eq!(refusal.code, RefusalCode::InUse);
    world.run();
    assert!(!incarnation(&world, id).is_live());
    world.must("node.delete", &json!({"name": "node-1"}));
    assert!(world.report_at(id, 1, ready()).is_empty(), "a host that was wrongly given up reports");
    assert_eq!(world.phases(), ["failed"]);
}

/// Race R82.
#[test]
fn of_two_that_need_the_last_capacity_one_gets_it_and_the_other_waits() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 1}}));
    other_plan(&mut world, 3500);
    world.run();
    assert_eq!(live(&world), 1);
    let unschedulable = |plan: &str| world.fleet.plans().get(plan).expect("the plan").unschedulable.clone();
    assert_eq!(
        [unschedulable("web"), unschedulable("db")].iter().filter(|reasons| !reasons.is_empty()).count(),
        1
    );
    assert!([500, 3000].contains(&world.free_cpu()), "never more than there is");
}
