//! Races that went wrong in similar systems, each in the order of steps that failed there. `docs/races.md`
//! lists them by the numbers that are named here.

mod reservations;

use std::time::Duration;

use chancery_events::fact::{CommandEffect, IncarnationEnd};
use chancery_events::id::{IncarnationId, Position};
use chancery_events::observation::{
    IncarnationExit, IncarnationReport, IncarnationReported, ObservedState, ProcessStatus, RetryClass,
    SessionEnd, SessionEnded,
};
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::OperationKind::Start;
use serde_json::json;

use crate::state::{Incarnation, IncarnationState};
use crate::testing::{TestFleet, crashed, ended, failed, hello, process, ready};

/// Creates a running replica; returns the world and its incarnation.
fn running(approval: &str) -> (TestFleet, IncarnationId) {
    let mut world = TestFleet::with_nodes(1);
    world.plan(approval);
    world.running("d1", 1);
    let id = world.commanded()[0];
    (world, id)
}

/// Creates a replica whose start was commanded; returns the world and its incarnation.
fn creating() -> (TestFleet, IncarnationId) {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.deploy("d1", 1);
    let id = world.commanded()[0];
    (world, id)
}

fn ask(world: &mut TestFleet, what: &str) {
    let replica = world.replica();
    world.must(what, &json!({"name": replica}));
    world.run();
}

fn incarnation(world: &TestFleet, id: IncarnationId) -> &Incarnation {
    world.fleet.incarnations().get(&id).expect("kept")
}

fn lose_session(world: &mut TestFleet) {
    let session = world.fleet.clusters().get("local").and_then(|c| c.session).expect("a session");
    world.see(&SessionEnded { session, end: SessionEnd::Expired }.into());
    world.run();
}

/// Returns the end of the replica's last incarnation.
fn last(world: &TestFleet) -> Option<IncarnationEnd> {
    world.fleet.replicas().sorted()[0].last_end.as_deref().cloned()
}

fn live(world: &TestFleet) -> usize {
    world.fleet.incarnations().sorted().iter().filter(|incarnation| incarnation.is_live()).count()
}

/// Race R1.
#[test]
fn a_check_that_finds_nothing_does_not_make_a_failure_of_a_stop() {
    let (mut world, id) = running("automatic");
    ask(&mut world, "replica.stop");
    assert!(world.report_at(id, 1, ObservedState::Gone).is_empty(), "a check from before the stop");
    world.report_at(id, 2, ObservedState::Gone);
    assert_eq!((world.phases(), last(&world)), (vec!["stopped"], Some(IncarnationEnd::Destroyed)));
    assert!(world.report_at(id, 2, ended(IncarnationExit::Clean)).is_empty(), "the clean end comes last");
    assert!(world.report_at(id, 1, crashed()).is_empty(), "or another one's opinion of it");
    world.deploy("d2", 1);
    assert_eq!((world.phases(), live(&world)), (vec!["stopped"], 0), "nothing starts it again");
}

/// Race R3.
#[test]
fn a_check_from_before_the_command_does_not_make_a_failure_of_a_start() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("manual");
    world.deploy("d1", 1);
    let id = world.fleet.incarnations().sorted()[0].id;
    assert!(world.report_at(id, 0, ObservedState::Gone).is_empty(), "its start was not commanded yet");
    world.approve_all();
    assert!(
        world.report_at(id, 0, ObservedState::Gone).is_empty(),
        "no executor has received the command to start it"
    );
    world.obey();
    assert_eq!((world.phases(), world.deployment("d1").as_str()), (vec!["running"], "completed"));
}

/// Race R4.
#[test]
fn two_who_start_one_replica_start_it_once() {
    let (mut world, id) = running("automatic");
    world.report(id, crashed());
    let replica = world.replica();
    for _ in 0..2 {
        world.must("replica.start", &json!({"name": replica}));
    }
    assert_eq!(world.kinds(), [Start], "asked twice before anything was done");

    for person_first in [true, false] {
        let (mut world, id) = running("manual");
        world.report(id, crashed());
        let replica = world.replica();
        let start = |world: &mut TestFleet| drop(world.must("replica.start", &json!({"name": replica})));
        if person_first {
            start(&mut world);
        }
        world.deploy("d2", 1);
        start(&mut world);
        assert_eq!((world.kinds(), live(&world), world.free_cpu()), (vec![Start], 1, 3000));
        world.approve_all();
        world.obey();
        assert_eq!((world.phases(), live(&world)), (vec!["running"], 1), "person first: {person_first}");
    }
}

/// Races R5 and R77.
#[test]
fn readiness_at_the_deadline_is_in_time_and_after_it_is_too_late() {
    let (mut world, id) = creating();
    let deadline = incarnation(&world, id).deadline.expect("a start has a deadline");
    world.now = deadline;
    world.report(id, ready());
    world.wait(1_000);
    assert_eq!((world.phases(), world.deployment("d1").as_str()), (vec!["running"], "completed"));

    let (mut world, id) = creating();
    world.wait(300);
    assert_eq!((world.phases(), world.deployment("d1").as_str()), (vec!["stopping"], "failed"));
    assert!(world.report_at(id, 1, ready()).is_empty(), "it was given up while this was in flight");
    assert_eq!(incarnation(&world, id).last_effect, Some(CommandEffect::Stop));
}

/// Race R6.
#[test]
fn an_abandoned_start_keeps_its_reservation_until_its_end_is_proved() {
    let (mut world, id) = creating();
    lose_session(&mut world);
    world.wait(300);
    assert_eq!((world.phases(), world.free_cpu()), (vec!["stopping"], 3000));
    let replica = world.replica();
    let refusal = world.ask("replica.start", &json!({"name": replica})).expect_err("it may still run");
    assert_eq!(refusal.code, RefusalCode::InvalidTransition);
    world.wait(1_000_000);
    world.open_session();
    assert!(world.report_at(id, 1, ready()).is_empty(), "it did start, unreported");
    for _ in 0..20 {
        world.report(id, failed(RetryClass::Permanent));
        world.now = incarnation(&world, id).command.expect("never given up").not_before;
    }
    assert_eq!((incarnation(&world, id).last_effect, world.free_cpu()), (Some(CommandEffect::Kill), 3000));
    world.report(id, ended(IncarnationExit::Clean));
    assert_eq!((world.phases(), world.free_cpu()), (vec!["failed"], 4000));
}

/// Race R11.
#[test]
fn a_disconnected_executor_blocks_no_fact_about_other_clusters() {
    let mut world = TestFleet::with_nodes(1);
    world.must("cluster.apply", &json!({"name": "far", "spec": {"runtime": "process"}}));
    let total = json!({"cpu": 4000, "memory": 8u64 << 30, "disk": 0});
    let spec = json!({"domain": "d9", "resources": total});
    world.must("node.apply", &json!({"name": "node-9", "cluster": "far", "spec": spec}));
    world.see(&hello("far", "ex-9", 9).into());
    let session = world.fleet.clusters().get("far").and_then(|c| c.session).expect("a session");
    world.plan("automatic");
    world.deploy("d1", 2);
    lose_session(&mut world);
    let far = |id: &IncarnationId| incarnation(&world, *id).cluster.as_str() == "far";
    let id = world.commanded().into_iter().find(far).expect("one is far");
    let replica = incarnation(&world, id).replica.clone();
    let report = |world: &mut TestFleet, revision, observed| {
        let report = IncarnationReport { incarnation: id, revision, observed };
        world.see(&IncarnationReported { session, report }.into());
        world.run();
    };
    report(&mut world, 1, ready());
    assert_eq!(world.phases(), ["running", "starting"]);
    world.must("replica.stop", &json!({"name": replica}));
    world.run();
    report(&mut world, 2, ended(IncarnationExit::Clean));
    assert_eq!((world.phases(), world.free_cpu()), (vec!["starting", "stopped"], 7000));
}

/// Races R26 and R37.
#[test]
fn a_stop_of_what_its_executor_has_lost_ends_by_proof() {
    for (name, (mut world, id)) in [("creating", creating()), ("running", running("automatic"))] {
        lose_session(&mut world);
        ask(&mut world, "replica.stop");
        assert_eq!((world.phases(), world.free_cpu()), (vec!["stopping"], 3000), "{name}: nothing is proved");
        world.open_session();
        world.report_at(id, 2, ObservedState::Gone);
        assert_eq!((world.phases(), world.free_cpu()), (vec!["stopped"], 4000), "{name}");
        ask(&mut world, "replica.start");
        world.obey();
        assert_eq!(world.phases(), ["running"], "{name}: and it can be started again");
    }
}

/// Race R27.
#[test]
fn a_stop_that_had_to_kill_is_a_stop() {
    let (mut world, id) = running("automatic");
    ask(&mut world, "replica.stop");
    world.wait(15);
    assert_eq!(incarnation(&world, id).last_effect, Some(CommandEffect::Kill));
    let exit = IncarnationExit::Failed { reason: "app-0 was killed by signal 9".into() };
    world.report(id, ended(exit));
    assert_eq!(last(&world), Some(IncarnationEnd::Destroyed));
    world.deploy("d2", 1);
    assert_eq!(
        (world.phases(), live(&world), world.deployment("d2").as_str()),
        (vec!["stopped"], 0, "completed")
    );
}

/// Race R38.
#[test]
fn a_stop_at_any_moment_of_a_start_prevails() {
    let ensured = || ObservedState::Started { processes: vec![process(ProcessStatus::Starting)] };
    for moment in ["asked", "placed", "approved", "ensured", "ready"] {
        let (mut world, id) = running("manual");
        world.report(id, crashed());
        let replica = world.replica();
        world.must("replica.start", &json!({"name": replica}));
        if moment != "asked" {
            world.run();
        }
        if !["asked", "placed"].contains(&moment) {
            world.approve_all();
            let id = world.commanded()[0];
            match moment {
                "ensured" => drop(world.report(id, ensured())),
                "ready" => drop(world.report(id, ready())),
                _ => {}
            }
        }
        world.must("replica.stop", &json!({"name": replica}));
        world.run();
        // The stop is first, so that a start that still waited would follow it.
        while let Some(id) = world.pending().last().map(|operation| operation.id) {
            world.approve(id).expect("approved");
        }
        if let Some(id) = world.commanded().first().copied() {
            world.report_at(id, 1, ready());
        }
        world.obey();
        world.deploy("d2", 1);
        assert_eq!((world.phases(), live(&world), world.free_cpu()), (vec!["stopped"], 0, 4000), "{moment}");
    }
}

/// Race R39.
#[test]
fn what_is_left_of_a_start_that_failed_can_be_started_stopped_and_deleted() {
    let cases =
        [("replica.start", vec!["running"]), ("replica.stop", vec!["stopped"]), ("replica.delete", vec![])];
    for (what, phases) in cases {
        for proved in [true, false] {
            if !proved && what == "replica.start" {
                continue; // it is shown as stopping, and refused: see R6
            }
            let (mut world, id) = creating();
            world.report(id, failed(RetryClass::Permanent));
            assert_eq!(world.phases(), ["stopping"]);
            if proved {
                world.report(id, ObservedState::Gone);
                assert_eq!(world.phases(), ["failed"]);
            }
            ask(&mut world, what);
            world.obey();
            assert_eq!(world.phases(), phases, "{what}, proved: {proved}");
        }
    }
}

/// Race R65.
#[test]
fn a_report_of_an_earlier_incarnation_proves_nothing_about_this_one() {
    let (mut world, first) = running("automatic");
    world.report(first, crashed());
    ask(&mut world, "replica.start");
    world.obey();
    world.fact_types();
    for observed in [
        crashed(),
        ObservedState::Gone,
        ObservedState::NotReady { processes: vec![] },
        failed(RetryClass::Permanent),
    ] {
        assert!(world.report_at(first, 9, observed).is_empty());
    }
    let replica = world.fleet.replicas().sorted()[0];
    assert!(replica.active.as_ref().is_some_and(|active| active.healthy && active.incarnation != first));
}

/// Race R66.
#[test]
fn a_crash_and_a_delete_at_the_same_moment_are_a_delete() {
    let orders = [
        ["crash", "ask", "approve"],
        ["ask", "crash", "approve"],
        ["ask", "approve", "crash"],
        ["gone", "ask", "approve"],
        ["ask", "gone", "approve"],
        ["ask", "approve", "gone"],
        ["expunge", "ask", "approve"],
        ["ask", "expunge", "approve"],
        ["ask", "approve", "expunge"],
    ];
    for order in orders {
        let (mut world, id) = running("manual");
        for step in order {
            match step {
                "crash" => drop(world.report_at(id, 1, crashed())),
                "gone" => drop(world.report(id, ObservedState::Gone)),
                "expunge" => {
                    drop(world.must("node.set_state", &json!({"name": "node-1", "state": "expunged"})));
                    world.run();
                }
                "ask" => ask(&mut world, "replica.delete"),
                _ => world.approve_all(),
            }
        }
        let fleet = &world.fleet;
        let left = (fleet.replicas().len(), fleet.incarnations().len(), fleet.operations().len());
        assert_eq!(left, (0, 0, 0), "{order:?}");
        assert!(world.report_at(id, 2, crashed()).is_empty(), "{order:?}: reported once more");
    }
}

/// Race R67.
#[test]
fn a_report_of_what_is_not_known_yet_or_any_more_changes_nothing() {
    let (mut world, id) = running("automatic");
    ask(&mut world, "replica.delete");
    world.obey();
    let ahead = IncarnationId::issue(id.lineage(), Position::new(1_000_000));
    for id in [id, ahead] {
        for observed in [ready(), crashed(), ObservedState::Gone, failed(RetryClass::Retryable)] {
            assert!(world.report_at(id, 1, observed).is_empty());
        }
    }
    assert_eq!((world.phases().len(), world.free_cpu()), (0, 4000));
}

/// Races R74 and R78.
#[test]
fn nothing_that_happens_meanwhile_moves_the_deadline_of_a_start() {
    let (mut world, id) = creating();
    let deadline = incarnation(&world, id).deadline;
    let not_ready = |status| ObservedState::NotReady { processes: vec![process(status)] };
    world.wait(100);
    world.report(id, failed(RetryClass::Retryable));
    world.wait(10);
    world.plan("manual");
    world.plan("automatic");
    world.add_node("node-2", "d9");
    world.deploy("d2", 2);
    lose_session(&mut world);
    world.open_session();
    for status in [ProcessStatus::Starting, ProcessStatus::Ready, ProcessStatus::Starting] {
        world.report(id, not_ready(status));
        world.wait(10);
        assert_eq!(incarnation(&world, id).deadline, deadline);
    }
    assert_eq!(incarnation(&world, id).state, IncarnationState::Starting);
    world.now = deadline.expect("a start has a deadline") + Duration::from_micros(1);
    world.run();
    assert_eq!(
        (world.deployment("d1").as_str(), incarnation(&world, id).last_effect),
        ("failed", Some(CommandEffect::Stop))
    );
    assert_eq!(
        world.deployment("d2"),
        "in progress",
        "an incarnation that never becomes ready blocks nothing permanently"
    );
}

/// Uses a payload with a resource that only one incarnation can have.
#[test]
fn a_replacement_ready_only_after_the_old_end_fails_start_first_and_completes_stop_first() {
    for (way, ended_as) in [("start_first", "failed"), ("stop_first", "completed")] {
        let mut world = TestFleet::with_nodes(2);
        world.plan_with("automatic", &json!({"update_order": way, "restart": "never"}));
        world.running("d1", 1);
        let old = world.commanded()[0];
        let spec = json!({"count": 1, "coordinates": {"app": {"version": "2"}}});
        world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": spec}));
        world.run();
        let is_gone =
            |world: &TestFleet| world.fleet.incarnations().get(&old).is_none_or(|old| !old.is_live());
        for _ in 0..10 {
            let Some(id) = world.asked().next() else { break };
            let stops = world
                .fleet
                .incarnations()
                .get(&id)
                .is_some_and(|i| i.last_effect != Some(CommandEffect::Ensure));
            if stops {
                world.report(id, ended(IncarnationExit::Clean));
            } else if is_gone(&world) {
                world.report(id, ready());
            } else {
                world.wait(301);
            }
        }
        assert_eq!((world.deployment("d2").as_str(), world.phases()), (ended_as, vec!["running"]), "{way}");
    }
}
