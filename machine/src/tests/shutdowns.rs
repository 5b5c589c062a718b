//! Guests that power themselves off, reset, or are rebooted on request.

use chancery_events::fact::{CommandEffect, Fact, IncarnationEnd, OperationEnd};
use chancery_events::id::IncarnationId;
use chancery_events::lifecycle::WillWord;
use chancery_events::observation::{
    IncarnationExit, ObservedState, ProbeError, ProcessInfo, ProcessStatus, RetryClass, SessionRequested,
};
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::{ClusterRuntime, OperationKind};
use serde_json::{Value, json};

use crate::state::{IncarnationState, OperationState, Replica};
use crate::testing::{TestFleet, crashed, ended, failed, hello, process, ready};

const RULES: [&str; 3] = ["always", "on_failure", "never"];

fn world(nodes: usize, approval: &str, more: &Value) -> TestFleet {
    let mut world = TestFleet::with_nodes(nodes);
    world.plan_with(approval, more);
    world.running("d1", 1);
    world
}

fn replica(world: &TestFleet) -> Replica {
    (*world.fleet.replicas().sorted().first().expect("a replica")).clone()
}

/// Returns the active incarnation and the secondary one.
fn runs(world: &TestFleet) -> (Option<IncarnationId>, Option<IncarnationId>) {
    let replica = replica(world);
    (replica.active.map(|run| run.incarnation), replica.secondary.map(|run| run.incarnation))
}

fn active(world: &TestFleet) -> IncarnationId {
    runs(world).0.expect("it runs")
}

fn power_off(world: &mut TestFleet, id: IncarnationId) {
    world.report(id, ended(IncarnationExit::PoweredOff));
}

fn ask(world: &mut TestFleet, verb: &str) {
    let name = world.replica();
    world.must(&format!("replica.{verb}"), &json!({"name": name}));
    world.run();
}

fn update(world: &mut TestFleet, deployment: &str) {
    let spec = json!({"count": 1, "coordinates": {"app": {"version": deployment}}});
    world.must("deployment.create", &json!({"plan": "web", "name": deployment, "spec": spec}));
    world.run();
}

/// Checks that the replica is off, now and after a day.
fn stays_off(world: &mut TestFleet, why: &str) {
    for _ in 0..2 {
        let replica = replica(world);
        assert_eq!(replica.desired, WillWord::GuestShutdown, "{why}");
        assert_eq!((replica.active, replica.next_restart, replica.recovers), (None, None, false), "{why}");
        assert_eq!((world.phases(), world.kinds()), (vec!["stopped"], vec![]), "{why}");
        assert!(world.commanded().is_empty(), "{why}");
        world.wait(24 * 3600);
        world.obey();
    }
}

fn last_outcome(world: &TestFleet) -> OperationEnd {
    let last = *replica(world).operations.last().expect("an operation");
    match world.fleet.operations().get(&last).expect("it is kept").state.clone() {
        OperationState::Ended(end) => end,
        state => panic!("{state:?}"),
    }
}

#[test]
fn a_guest_that_powers_itself_off_stays_off_until_a_start_is_requested_whatever_the_rule() {
    for rule in RULES {
        let mut world = world(2, "automatic", &json!({"restart": rule}));
        let id = active(&world);
        let node = world.fleet.incarnations().get(&id).expect("it").node.clone();
        power_off(&mut world, id);
        assert_eq!(replica(&world).last_end.as_deref(), Some(&IncarnationEnd::PoweredOff));
        stays_off(&mut world, rule);
        // A drain of its node has nothing to move.
        world.must(
            "disruption.schedule",
            &json!({"node": node, "name": "power", "spec": {"action": "drain"}}),
        );
        world.must("disruption.approve", &json!({"node": node, "name": "power"}));
        world.run();
        stays_off(&mut world, rule);
        // A deployment gives it its version, and completes without it.
        update(&mut world, "d2");
        stays_off(&mut world, rule);
        assert_eq!(world.deployment("d2"), "completed", "{rule}");
        assert_eq!(replica(&world).deployment.as_str(), "d2", "{rule}");
        world.open_session();
        stays_off(&mut world, rule);
        ask(&mut world, "start");
        world.obey();
        assert_eq!(world.phases(), ["running"], "{rule}");
        assert_eq!(replica(&world).desired, WillWord::Running, "{rule}");
    }
}

#[test]
fn a_restart_on_request_starts_it_and_a_stop_keeps_it_off() {
    let mut world = world(1, "automatic", &json!({"restart": "always"}));
    let id = active(&world);
    power_off(&mut world, id);
    ask(&mut world, "restart");
    world.obey();
    assert_eq!(world.phases(), ["running"]);
    let id = active(&world);
    power_off(&mut world, id);
    ask(&mut world, "stop");
    assert_eq!((replica(&world).desired, world.phases()), (WillWord::Stopped, vec!["stopped"]));
}

#[test]
fn a_shutdown_before_readiness_fails_the_start_and_is_final() {
    for rule in RULES {
        let mut world = TestFleet::with_nodes(1);
        world.plan_with("automatic", &json!({"restart": rule}));
        world.deploy("d1", 1);
        let id = world.commanded()[0];
        power_off(&mut world, id);
        let reason = "its guest powered itself off before it was ready";
        assert_eq!(last_outcome(&world), OperationEnd::Failed { reason: reason.into() }, "{rule}");
        assert_eq!(world.deployment("d1"), "failed", "{rule}");
        stays_off(&mut world, rule);
    }
}

#[test]
fn a_shutdown_during_a_restart_by_the_rule_is_final() {
    let mut world = world(1, "automatic", &json!({"restart": "always"}));
    let id = active(&world);
    world.report(id, crashed());
    world.run();
    let id = active(&world);
    power_off(&mut world, id);
    stays_off(&mut world, "started by the rule");
}

#[test]
fn a_requested_stop_ends_as_requested_whatever_the_guest_does() {
    let mut world = world(1, "automatic", &json!({"restart": "always"}));
    let id = active(&world);
    ask(&mut world, "stop");
    power_off(&mut world, id);
    assert_eq!(replica(&world).desired, WillWord::Stopped);
    assert_eq!(replica(&world).last_end.as_deref(), Some(&IncarnationEnd::Destroyed));
}

#[test]
fn a_shutdown_before_a_stop_that_no_caller_requested_is_final() {
    // An update stops the old incarnation first.
    let mut world = world(1, "automatic", &json!({"restart": "always", "update_order": "stop_first"}));
    let old = active(&world);
    update(&mut world, "d2");
    assert_eq!(world.fleet.incarnations().get(&old).expect("it").last_effect, Some(CommandEffect::Stop));
    power_off(&mut world, old);
    assert!(matches!(last_outcome(&world), OperationEnd::Cancelled { .. }));
    stays_off(&mut world, "the guest was earlier than the update");
    // A guest that shuts down answers no probe.
    let mut world = world_of_one();
    let id = active(&world);
    let hung = ProcessStatus::Unresponsive { error: ProbeError::Timeout };
    world.report(id, ObservedState::NotReady { processes: vec![process(hung)] });
    power_off(&mut world, id);
    stays_off(&mut world, "the guest was earlier than the stop");
}

fn world_of_one() -> TestFleet {
    world(1, "automatic", &json!({"restart": "always"}))
}

#[test]
fn a_shutdown_while_the_replacement_starts_cancels_the_replacement() {
    for verb in ["relocate", "restart"] {
        for started in [false, true] {
            let mut world = world(2, "automatic", &json!({"restart": "always"}));
            let old = active(&world);
            ask(&mut world, verb);
            let (_, new) = runs(&world);
            let Some(new) = new.filter(|_| verb == "relocate") else {
                // The old incarnation is stopped first: its end is the requested one.
                power_off(&mut world, old);
                world.obey();
                assert_eq!(world.phases(), ["running"]);
                continue;
            };
            if started {
                let processes = vec![process(ProcessStatus::Starting)];
                world.report(new, ObservedState::Started { processes });
            }
            power_off(&mut world, old);
            assert!(matches!(last_outcome(&world), OperationEnd::Cancelled { .. }), "{verb}");
            let replica = replica(&world);
            assert_eq!((replica.desired, replica.recovers), (WillWord::GuestShutdown, false), "{verb}");
            let of = world.fleet.incarnations().get(&new).expect("it");
            assert_eq!(of.last_effect, Some(CommandEffect::Stop), "{verb}");
            world.obey();
            stays_off(&mut world, verb);
        }
    }
}

#[test]
fn a_shutdown_cancels_a_replacement_that_waits_for_approval() {
    let mut world = world(2, "manual", &json!({"restart": "always"}));
    let old = active(&world);
    ask(&mut world, "relocate");
    power_off(&mut world, old);
    assert!(matches!(last_outcome(&world), OperationEnd::Cancelled { .. }));
    stays_off(&mut world, "a waiting relocate");
}

#[test]
fn a_shutdown_of_the_replacement_leaves_the_old_incarnation_as_it_is() {
    let mut world = world(2, "automatic", &json!({"restart": "always"}));
    let old = active(&world);
    ask(&mut world, "relocate");
    let new = runs(&world).1.expect("it starts");
    power_off(&mut world, new);
    assert_eq!((runs(&world), replica(&world).desired), ((Some(old), None), WillWord::Running));
    assert_eq!(world.phases(), ["running"]);
}

#[test]
fn a_shutdown_of_the_replacement_is_final_if_the_old_incarnation_is_gone() {
    let mut world = world(1, "automatic", &json!({"restart": "always"}));
    ask(&mut world, "restart");
    // The old one ends first.
    world.obey_one();
    let new = active(&world);
    assert_eq!(world.kinds(), [OperationKind::Restart]);
    power_off(&mut world, new);
    stays_off(&mut world, "the new one of a restart");
}

#[test]
fn a_shutdown_of_the_replacement_is_final_while_the_old_incarnation_is_being_stopped() {
    let mut world = world(2, "automatic", &json!({"restart": "always"}));
    let old = active(&world);
    ask(&mut world, "relocate");
    let new = runs(&world).1.expect("it starts");
    let hung = ProcessStatus::Unresponsive { error: ProbeError::Timeout };
    world.report(old, ObservedState::NotReady { processes: vec![process(hung)] });
    power_off(&mut world, new);
    assert_eq!((runs(&world), replica(&world).desired), ((Some(old), None), WillWord::GuestShutdown));
    // A deployment changes nothing that is about to end.
    update(&mut world, "d2");
    assert!(world.kinds().is_empty());
    world.report(old, ended(IncarnationExit::Clean));
    stays_off(&mut world, "the old one was being stopped");
    assert_eq!(world.deployment("d2"), "completed");
}

fn rebooting(resets: u32) -> ObservedState {
    let info = ProcessInfo { resets, ..process(ProcessStatus::Rebooting) };
    ObservedState::NotReady { processes: vec![info] }
}

#[test]
fn a_guest_that_resets_has_the_time_of_a_start_to_become_ready() {
    let timeouts = json!({"start": 60_000});
    let unready = json!({"action": "show"});
    let plan = json!({"restart": "always", "timeouts": timeouts, "unready": unready});
    let mut world = world(1, "automatic", &plan);
    let id = active(&world);
    world.report(id, rebooting(1));
    let due = world.fleet.incarnations().get(&id).expect("it").deadline.expect("a deadline");
    assert_eq!(due, world.now + std::time::Duration::from_mins(1));
    world.wait(30);
    // Another status, or another reset, moves no deadline.
    world.report(id, rebooting(2));
    let unready = ProcessStatus::Unready { error: ProbeError::Refused };
    world.report(id, ObservedState::NotReady { processes: vec![process(unready)] });
    assert_eq!(world.fleet.incarnations().get(&id).expect("it").deadline, Some(due));
    let again = ProcessInfo { resets: 2, ..process(ProcessStatus::Ready) };
    world.report(id, ObservedState::Ready { processes: vec![again] });
    let run = world.fleet.incarnations().get(&id).expect("it");
    assert_eq!((run.deadline, run.unready, &run.state), (None, None, &IncarnationState::Running));
    // One that is not ready in time has failed, and the rule applies.
    world.report(id, rebooting(3));
    world.wait(61);
    assert_eq!(world.phases(), ["stopping"]);
    world.report(id, ended(IncarnationExit::Clean));
    assert!(matches!(replica(&world).last_end.as_deref(), Some(IncarnationEnd::Failed { .. })));
    world.obey();
    assert_eq!(world.phases(), ["running"]);
    assert_ne!(active(&world), id);
    let id = active(&world);
    world.report(id, ready());
}

/// Creates a world whose runtime can reboot, with one replica that runs.
fn guests(approval: &str, more: &Value) -> TestFleet {
    let mut world = TestFleet::new();
    world.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "simulated"}}));
    world.add_node("node-1", "d1");
    world.see(&SessionRequested { runtime: ClusterRuntime::Simulated, ..hello("local", "ex-1", 1) }.into());
    world.plan_with(approval, more);
    world.running("d1", 1);
    world
}

fn ready_after(resets: u32) -> ObservedState {
    ObservedState::Ready { processes: vec![ProcessInfo { resets, ..process(ProcessStatus::Ready) }] }
}

#[test]
fn a_reboot_is_approved_and_succeeds_when_the_same_incarnation_is_ready_again() {
    let mut world = guests("manual", &json!({}));
    let id = active(&world);
    ask(&mut world, "reboot");
    assert_eq!(world.kinds(), [OperationKind::Reboot]);
    let revision = world.fleet.incarnations().get(&id).expect("it").revision;
    ask(&mut world, "reboot");
    assert_eq!(world.kinds().len(), 1, "one at a time");
    world.approve_all();
    let run = world.fleet.incarnations().get(&id).expect("it");
    assert_eq!((run.revision, run.last_effect), (revision + 1, Some(CommandEffect::Reboot)));
    assert_eq!((run.state.clone(), world.phases()), (IncarnationState::Running, vec!["rebooting"]));
    // What the executor saw before the reset is no outcome.
    world.report_at(id, revision, ready());
    assert_eq!(world.kinds(), [OperationKind::Reboot]);
    world.report(id, rebooting(1));
    assert_eq!(world.phases(), ["rebooting"]);
    world.report(id, ready_after(1));
    assert_eq!(last_outcome(&world), OperationEnd::Succeeded);
    let run = world.fleet.incarnations().get(&id).expect("it");
    assert_eq!((run.deadline, run.command, active(&world)), (None, None, id));
    assert_eq!(world.phases(), ["running"]);
}

#[test]
fn a_reboot_is_refused_unless_a_guest_runs_and_nothing_else_is_done_with_it() {
    let refused = |world: &mut TestFleet, verb: &str| {
        let name = world.replica();
        world.ask(&format!("replica.{verb}"), &json!({"name": name})).expect_err(verb).code
    };
    let mut processes = world(1, "automatic", &json!({}));
    assert_eq!(refused(&mut processes, "reboot"), RefusalCode::InvalidTransition, "no virtual machine");
    let mut world = guests("manual", &json!({}));
    ask(&mut world, "restart");
    assert_eq!(refused(&mut world, "reboot"), RefusalCode::InUse, "a restart waits");
    world.reject(world.pending()[0].id).expect("rejected");
    ask(&mut world, "reboot");
    world.approve_all();
    for verb in ["restart", "relocate"] {
        assert_eq!(refused(&mut world, verb), RefusalCode::InUse, "the reboot is being carried out");
    }
    let id = active(&world);
    world.report(id, rebooting(1));
    world.report(id, ready_after(1));
    // A guest that is rebooting already is not reset again.
    world.report(id, rebooting(2));
    assert_eq!(refused(&mut world, "reboot"), RefusalCode::InvalidTransition);
    world.report(id, ready_after(2));
    power_off(&mut world, id);
    assert_eq!(refused(&mut world, "reboot"), RefusalCode::InvalidTransition, "it does not run");
}

#[test]
fn a_guest_that_is_not_ready_in_time_after_a_reboot_has_failed() {
    let plan = json!({"restart": "always", "timeouts": {"start": 60_000}});
    let mut world = guests("automatic", &plan);
    let id = active(&world);
    ask(&mut world, "reboot");
    world.report(id, rebooting(1));
    world.wait(61);
    let reason = "it was not ready in time after its reboot";
    assert_eq!(last_outcome(&world), OperationEnd::Failed { reason: reason.into() });
    assert_eq!(world.phases(), ["stopping"]);
    world.report(id, ended(IncarnationExit::Clean));
    assert_eq!(replica(&world).last_end.as_deref(), Some(&IncarnationEnd::Failed { reason: reason.into() }));
    world.obey();
    assert_eq!(world.phases(), ["running"]);
}

#[test]
fn a_refused_reboot_leaves_the_guest_running() {
    let mut world = guests("automatic", &json!({"restart": "always"}));
    let id = active(&world);
    ask(&mut world, "reboot");
    world.report(id, failed(RetryClass::Permanent));
    assert!(matches!(last_outcome(&world), OperationEnd::Failed { .. }));
    // A command of a higher revision makes its reports count again.
    world.obey();
    let run = world.fleet.incarnations().get(&id).expect("it");
    assert_eq!((run.state.clone(), run.command, run.deadline), (IncarnationState::Running, None, None));
    world.wait(24 * 3600);
    assert_eq!((world.phases(), active(&world)), (vec!["running"], id));
    let hung = ProcessStatus::Unresponsive { error: ProbeError::Timeout };
    world.report(id, ObservedState::NotReady { processes: vec![process(hung)] });
    assert_eq!(world.phases(), ["stopping"]);
}

#[test]
fn a_reboot_waits_for_an_executor_and_ends_no_guest_without_one() {
    let mut world = guests("automatic", &json!({"restart": "never", "timeouts": {"start": 60_000}}));
    let id = active(&world);
    let session = world.fleet.clusters().get("local").and_then(|c| c.session).expect("a session");
    let end = chancery_events::observation::SessionEnd::Expired;
    world.see(&chancery_events::observation::SessionEnded { session, end }.into());
    ask(&mut world, "reboot");
    world.wait(3600);
    assert_eq!((world.phases(), world.kinds()), (vec!["rebooting"], vec![OperationKind::Reboot]));
    world.see(&SessionRequested { runtime: ClusterRuntime::Simulated, ..hello("local", "ex-1", 1) }.into());
    world.report(id, rebooting(1));
    world.report(id, ready_after(1));
    assert_eq!(last_outcome(&world), OperationEnd::Succeeded);
    // One that has a session and no outcome fails.
    ask(&mut world, "reboot");
    world.wait(61);
    assert!(matches!(last_outcome(&world), OperationEnd::Failed { .. }));
}

#[test]
fn a_reset_of_an_unready_guest_begins_the_time_of_a_start() {
    let unready = json!({"action": "restart", "after": 30_000});
    let plan = json!({"restart": "always", "timeouts": {"start": 300_000}, "unready": unready});
    let mut world = world(1, "automatic", &plan);
    let id = active(&world);
    let refused = ProcessStatus::Unready { error: ProbeError::Refused };
    world.report(id, ObservedState::NotReady { processes: vec![process(refused)] });
    world.wait(20);
    world.report(id, rebooting(1));
    world.wait(60);
    assert_eq!(world.phases(), ["rebooting"]);
}

#[test]
fn an_end_during_a_reboot_fails_it_and_counts_as_any_other() {
    let mut world = guests("automatic", &json!({"restart": "always"}));
    let id = active(&world);
    ask(&mut world, "reboot");
    world.report(id, crashed());
    world.obey();
    assert_eq!(world.phases(), ["running"], "the rule applies");
    let id = active(&world);
    ask(&mut world, "reboot");
    power_off(&mut world, id);
    stays_off(&mut world, "during a reboot");
}

#[test]
fn a_stop_supersedes_a_reboot() {
    let mut world = guests("automatic", &json!({"restart": "always"}));
    let id = active(&world);
    ask(&mut world, "reboot");
    ask(&mut world, "stop");
    assert_eq!(world.fleet.incarnations().get(&id).expect("it").last_effect, Some(CommandEffect::Stop));
    world.report(id, rebooting(1));
    world.report(id, ended(IncarnationExit::Clean));
    assert_eq!((world.phases(), replica(&world).desired), (vec!["stopped"], WillWord::Stopped));
    world.wait(24 * 3600);
    assert_eq!(world.phases(), ["stopped"]);
}

#[test]
fn a_console_is_opened_whenever_an_incarnation_runs_and_changes_nothing() {
    let open = |world: &mut TestFleet| {
        let name = world.replica();
        world.ask("console.open", &json!({"name": name, "access": "read_only"}))
    };
    let mut processes = world(1, "automatic", &json!({}));
    let refusal = open(&mut processes).expect_err("no virtual machine");
    assert!(refusal.detail.ends_with("it has no console"), "{}", refusal.detail);
    let mut world = TestFleet::with_nodes(1);
    world.plan_with("manual", &json!({"restart": "never"}));
    world.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 1}}));
    world.run();
    let refusal = open(&mut world).expect_err("nothing runs yet");
    assert_eq!(refusal.code, RefusalCode::InvalidTransition);
    assert!(refusal.detail.ends_with("has no incarnation that runs"), "{}", refusal.detail);
    let mut world = guests("automatic", &json!({"restart": "never"}));
    let id = active(&world);
    let before = replica(&world);
    let facts = open(&mut world).expect("it runs");
    let [Fact::ConsoleOpened(opened)] = facts.as_slice() else { panic!("{facts:?}") };
    assert_eq!((opened.incarnation, &opened.replica), (id, &before.name));
    let after = replica(&world);
    assert_eq!(after.meta.version, before.meta.version + 1);
    assert_eq!(Replica { meta: before.meta, ..after }, before, "nothing else changes");
    // A second one is a second event: the executor decides who may write.
    assert_eq!(open(&mut world).expect("it runs").len(), 1);
    ask(&mut world, "stop");
    open(&mut world).expect("a guest that is being stopped has a console");
    world.report(id, ended(IncarnationExit::Clean));
    open(&mut world).expect_err("it has ended");
}
