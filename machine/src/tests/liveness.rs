//! Incarnations that were ready and do not answer any more, or stay unready.

use chancery_events::fact::{CommandEffect, IncarnationEnd};
use chancery_events::id::IncarnationId;
use chancery_events::observation::{IncarnationExit, ObservedState, ProbeError, ProcessStatus};
use chancery_events::spec::OperationKind;
use serde_json::{Value, json};

use crate::state::{Incarnation, IncarnationState, Replica};
use crate::testing::{TestFleet, ended, process, ready};

const REASON: &str = "liveness probe of app-0 failed: connection refused";

fn hung() -> ObservedState {
    let status = ProcessStatus::Unresponsive { error: ProbeError::Refused };
    ObservedState::NotReady { processes: vec![process(status)] }
}

fn unready(error: ProbeError) -> ObservedState {
    ObservedState::NotReady { processes: vec![process(ProcessStatus::Unready { error })] }
}

fn world(more: &Value) -> TestFleet {
    let mut world = TestFleet::with_nodes(2);
    world.plan_with("manual", more);
    world.running("d1", 1);
    world
}

fn replica(world: &TestFleet) -> Replica {
    (*world.fleet.replicas().sorted().first().expect("a replica")).clone()
}

fn active(world: &TestFleet) -> IncarnationId {
    replica(world).active.expect("it runs").incarnation
}

fn run(world: &TestFleet, id: IncarnationId) -> Incarnation {
    world.fleet.incarnations().get(&id).expect("kept").clone()
}

fn last_reason(world: &TestFleet) -> String {
    match replica(world).last_end.as_deref() {
        Some(IncarnationEnd::Failed { reason }) => reason.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_incarnation_that_does_not_answer_is_stopped_with_its_reason_and_started_again_as_planned() {
    for (rule, left) in [("always", "running"), ("on_failure", "running"), ("never", "failed")] {
        let mut world = world(&json!({"restart": rule, "restart_delay": 10_000}));
        let id = active(&world);
        world.report(id, hung());
        assert_eq!(
            (world.phases(), run(&world, id).last_effect),
            (vec!["stopping"], Some(CommandEffect::Stop)),
            "{rule}"
        );
        assert!(run(&world, id).deadline.is_some(), "{rule}: what ignores the stop is killed later");
        world.report(id, ended(IncarnationExit::Clean));
        assert_eq!(last_reason(&world), REASON, "{rule}: an end as asked does not hide why");
        world.obey();
        assert_eq!(world.phases(), [left], "{rule}");
    }
}

#[test]
fn one_that_hangs_again_and_again_waits_longer_each_time() {
    let mut world = world(&json!({"restart": "always", "restart_delay": 10_000}));
    for wait in [0, 10, 20] {
        let id = active(&world);
        world.report(id, hung());
        world.report(id, ended(IncarnationExit::Clean));
        if wait > 0 {
            assert_eq!(world.phases(), ["failed"], "{wait} seconds");
            world.wait(wait);
        }
        world.obey();
        assert_eq!(world.phases(), ["running"], "{wait} seconds");
    }
}

#[test]
fn what_reflects_less_than_is_requested_or_was_never_ready_is_not_stopped_by_it() {
    // A person's stop is in progress: an incarnation that hung meanwhile ends as that stop defines.
    let mut world = world(&json!({"restart": "always"}));
    let id = active(&world);
    let name = world.replica();
    world.must("replica.stop", &json!({"name": name}));
    world.run();
    world.approve_all();
    let revision = run(&world, id).revision;
    world.report(id, hung());
    assert_eq!(run(&world, id).revision, revision);
    world.report(id, ended(IncarnationExit::Clean));
    assert_eq!(world.phases(), ["stopped"]);
    // An incarnation that was never ready has the deadline of its start.
    let mut world = TestFleet::with_nodes(1);
    world.plan_with("automatic", &json!({}));
    world.deploy("d1", 1);
    let id = world.commanded()[0];
    world.report(id, hung());
    assert_eq!((run(&world, id).state, world.phases()), (IncarnationState::Starting, vec!["starting"]));
}

#[test]
fn a_session_that_is_lost_proves_nothing_and_the_stop_waits_for_the_next_one() {
    let mut world = world(&json!({"restart": "always"}));
    let id = active(&world);
    world.report(id, hung());
    let session = world.fleet.clusters().get("local").and_then(|c| c.session).expect("a session");
    let end = chancery_events::observation::SessionEnd::Expired;
    world.see(&chancery_events::observation::SessionEnded { session, end }.into());
    world.wait(3_600);
    assert_eq!(world.phases(), ["stopping"]);
    assert_eq!(run(&world, id).command.map(|command| command.effect), Some(CommandEffect::Kill));
    world.open_session();
    world.report(id, ended(IncarnationExit::Clean));
    world.obey();
    assert_eq!((last_reason(&world).as_str(), world.phases()), (REASON, vec!["running"]));
}

#[test]
fn a_waiting_replacement_is_cancelled_and_a_started_one_continues() {
    let relocate = |world: &mut TestFleet| {
        let name = world.replica();
        world.must("replica.relocate", &json!({"name": name}));
        world.run();
    };
    let mut world = world(&json!({"restart": "always"}));
    relocate(&mut world);
    assert_eq!(world.kinds(), [OperationKind::Relocate]);
    let id = active(&world);
    world.report(id, hung());
    assert!(world.kinds().is_empty(), "nothing can start on an incarnation that is being stopped");
    world.report(id, ended(IncarnationExit::Clean));
    world.obey();
    assert_eq!(world.phases(), ["running"], "the plan's rule starts it again");

    relocate(&mut world);
    world.approve_all();
    let old = active(&world);
    world.report(old, hung());
    assert_eq!(world.kinds(), [OperationKind::Relocate]);
    world.obey();
    assert!(world.kinds().is_empty());
    assert_ne!(active(&world), old);
    assert_eq!(world.phases(), ["running"]);
}

#[test]
fn a_deployment_fails_if_an_incarnation_of_its_version_hangs() {
    let mut world = TestFleet::with_nodes(2);
    world.plan_with("automatic", &json!({"restart": "always"}));
    let strategy = json!({"rolling": {"max_parallel": 1, "delay": 3_600_000}});
    world.must(
        "deployment.create",
        &json!({"plan": "web", "name": "d1", "spec": {"count": 2, "strategy": strategy}}),
    );
    world.run();
    world.obey();
    let id = active(&world);
    world.report(id, hung());
    world.report(id, ended(IncarnationExit::Clean));
    assert_eq!(world.deployment("d1"), "failed");
}

#[test]
fn an_unready_incarnation_is_shown_and_ended_only_if_the_plan_requires_it() {
    for (action, left) in [("show", "running"), ("restart", "stopping")] {
        let mut world = world(&json!({"unready": {"after": 60_000, "action": action}}));
        let (id, since) = (active(&world), world.now);
        assert_eq!(run(&world, id).unready, None);
        world.report(id, unready(ProbeError::Refused));
        assert_eq!(run(&world, id).unready, Some(since), "{action}");
        world.wait(30);
        world.report(id, unready(ProbeError::Timeout));
        assert_eq!(run(&world, id).unready, Some(since), "{action}: another error does not restart the time");
        world.wait(29);
        assert_eq!(world.phases(), ["running"], "{action}");
        world.wait(1);
        assert_eq!(world.phases(), [left], "{action}");
        if left == "stopping" {
            world.report(id, ended(IncarnationExit::Clean));
            let wanted = format!("not ready since {since}: readiness probe of app-0: timeout");
            assert_eq!(last_reason(&world), wanted);
            world.obey();
            assert_eq!(world.phases(), ["running"], "the plan's rule starts it again");
        }
    }
}

fn close_session(world: &mut TestFleet) {
    let session = world.fleet.clusters().get("local").and_then(|c| c.session).expect("a session");
    let end = chancery_events::observation::SessionEnd::Expired;
    world.see(&chancery_events::observation::SessionEnded { session, end }.into());
}

#[test]
fn an_unready_incarnation_is_not_ended_while_no_session_could_report_that_it_is_ready_again() {
    let mut world = world(&json!({"unready": {"after": 60_000, "action": "restart"}}));
    let (id, since) = (active(&world), world.now);
    world.report(id, unready(ProbeError::Refused));
    close_session(&mut world);
    world.wait(3_600);
    assert_eq!((world.phases(), run(&world, id).unready), (vec!["running"], Some(since)));
    // Once a new session opens before that time has passed, its reports alone count.
    world.open_session();
    world.report(id, unready(ProbeError::Refused));
    close_session(&mut world);
    world.open_session();
    world.wait(60);
    assert_eq!(world.phases(), ["running"], "this session has reported nothing yet");
    world.report(id, unready(ProbeError::Refused));
    world.wait(59);
    assert_eq!((world.phases(), run(&world, id).unready), (vec!["running"], Some(since)));
    world.wait(1);
    assert_eq!(world.phases(), ["stopping"], "it is unchanged, and was reported");
}

#[test]
fn an_incarnation_that_a_new_executor_has_not_probed_yet_is_not_called_unready() {
    let mut world = world(&json!({"unready": {"after": 60_000, "action": "restart"}}));
    let id = active(&world);
    world.report(id, ObservedState::NotReady { processes: vec![process(ProcessStatus::Starting)] });
    assert_eq!(run(&world, id).deadline, None);
    world.wait(3_600);
    assert_eq!(world.phases(), ["running"]);
    world.report(id, unready(ProbeError::Refused));
    world.report(id, ObservedState::NotReady { processes: vec![process(ProcessStatus::Starting)] });
    world.wait(60);
    assert_eq!(world.phases(), ["stopping"], "what fails keeps its time");
}

#[test]
fn an_incarnation_that_is_ready_again_in_time_continues() {
    let mut world = world(&json!({"unready": {"after": 60_000, "action": "restart"}}));
    let id = active(&world);
    for _ in 0..3 {
        world.report(id, unready(ProbeError::Status { code: 503 }));
        world.wait(59);
        world.report(id, ready());
        assert_eq!((run(&world, id).unready, run(&world, id).deadline), (None, None));
        world.wait(59);
    }
    assert_eq!(world.phases(), ["running"]);
}
