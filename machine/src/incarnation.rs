//! Incarnations: placed executions of replicas. Each belongs permanently to one replica and one node.
//!
//! | state | started | ready | not ready | ended, by proof | gone | command failed | stop requested | deadline | node expunged |
//! |---|---|---|---|---|---|---|---|---|---|
//! | reserved | – | – | – | – | – | – | unwound | unwound if it waits only for volumes; its operation fails | unwound; its operation is placed again, or fails if it has started |
//! | creating | → starting | → running | → starting | failed, destroyed, powered off | unwound | retried, or stopping | stopping | stopping | failed |
//! | starting | status | → running | status | failed, destroyed, powered off | failed | – | stopping | stopping | failed |
//! | running | status | status | status; stopping if its liveness probe fails | failed, destroyed, powered off | failed | – | stopping | stopping if it stayed unready | failed |
//! | updating | status; → running if reverted | → running | status; stopping if its liveness probe fails | failed, destroyed, powered off | failed | retried, or reverting | stopping | reverting | failed |
//! | stopping | – | – | – | as recorded; powered off if the guest was earlier than a stop that no caller requested | as recorded | retried | destroyed is recorded | kill | failed |
//! | ended | final | | | | | | | | |
//!
//! An incarnation whose guest powers itself off without a request ends as *powered off*. If no other incarnation of the replica
//! remains, the desired state of the replica becomes `guest_shutdown`. Then nothing but a requested start starts the replica.
//!
//! A running incarnation whose guest was reset is not ready until it reports so. Its deadline is that of a start: then it is
//! stopping.
//!
//! A report names the revision that it reflects. Proof of an end counts for every revision, because nothing
//! is ever started twice in one incarnation. `gone` counts only if nothing at or below the last command can
//! still happen. A failure counts only for the pending command. An expired session proves nothing.
//!
//! A replica has two incarnations only during an update, relocate or restart, or while a remainder of one is
//! left. The *active* one counts; the *secondary* one will replace it, or was replaced by it. See
//! [`crate::operation`].
//!
//! In reading order: reports, ends (`end`), automatic restarts (`restart_backoff`), folding (`fold`).

mod end;
mod fold;
mod restart_backoff;

use chancery_events::fact::{
    CommandEffect, Fact, IncarnationCommandFailed, IncarnationEnd, IncarnationProcessesChanged,
    IncarnationRunning, IncarnationStartRequested, IncarnationStarted, IncarnationStopRequested,
    OperationEnd,
};
use chancery_events::id::{IncarnationId, SessionId};
use chancery_events::name::PlanName;
use chancery_events::observation::{
    IncarnationExit, IncarnationReport, ObservedState, ProcessInfo, ProcessStatus, RetryClass,
};
use chancery_events::spec::{OperationKind, PlanVersion, UnreadyAction};
use chancery_events::time::Time;

use crate::context::{DecisionContext, FactDraft, LONGEST_DELAY, retry_delay};
use crate::fleet::FleetState;
use crate::state::{Incarnation, IncarnationState, Operation, OperationState};
use crate::{operation, volume};

pub(crate) use end::{displace, lost, promise};
pub(crate) use fold::{
    OperationRef, asked, command_failed, ended, processes_changed, reserved, running, start_requested,
    started, stop_requested,
};
pub(crate) use restart_backoff::{EndCause, wait};

/// Time after SIGTERM's grace period for the executor's report, before a kill is requested.
const SLACK: std::time::Duration = std::time::Duration::from_secs(5);

/// Returns the deadline of a stop that is requested now.
pub(crate) fn stop_deadline(fleet: &FleetState, incarnation: &Incarnation, now: Time) -> Time {
    let plan = fleet.plans().get(&incarnation.plan);
    now + plan.map_or(SLACK, |plan| plan.immediate().timeouts().stop() + SLACK)
}

/// Version of the incarnation, current or intended.
pub(crate) fn version_of<'a>(fleet: &'a FleetState, incarnation: &Incarnation) -> Option<PlanVersion<'a>> {
    let plan = fleet.plans().get(&incarnation.plan)?;
    Some(plan.version_of(fleet.deployment(&plan.name, &incarnation.deployment)?.generation))
}

/// Returns the deadline of a start that is requested now.
pub(crate) fn start_deadline(fleet: &FleetState, plan: &PlanName, now: Time) -> Option<Time> {
    Some(now + fleet.plans().get(plan)?.immediate().timeouts().start())
}

/// Returns the facts of a report.
pub(crate) fn report(fleet: &FleetState, report: &IncarnationReport, ctx: &DecisionContext) -> Vec<Fact> {
    let Some(incarnation) = fleet.incarnations().get(&report.incarnation) else { return Vec::new() };
    let mut draft = FactDraft::new(ctx);
    match (&incarnation.state, &report.observed) {
        (IncarnationState::Reserved | IncarnationState::Ended(_), _) => {}
        (_, ObservedState::Ended { exit, processes }) => {
            let end = match (&incarnation.state, exit) {
                (IncarnationState::Stopping(then), IncarnationExit::PoweredOff)
                    if shuts_down(fleet, incarnation, then) =>
                {
                    IncarnationEnd::PoweredOff
                }
                (IncarnationState::Stopping(then), _) => (**then).clone(),
                (_, IncarnationExit::Clean) => IncarnationEnd::Destroyed,
                (_, IncarnationExit::PoweredOff) => IncarnationEnd::PoweredOff,
                (_, IncarnationExit::Failed { reason }) => IncarnationEnd::Failed { reason: reason.clone() },
            };
            end::by_proof(fleet, incarnation, end, processes.clone(), ctx, &mut draft);
        }
        (state, ObservedState::Gone) if report.revision >= incarnation.revision => {
            let end = match state {
                IncarnationState::Stopping(then) => (**then).clone(),
                IncarnationState::Creating => {
                    IncarnationEnd::Unwound { reason: "the executor never started it, and never will".into() }
                }
                IncarnationState::Starting
                | IncarnationState::Running
                | IncarnationState::Updating(_)
                | IncarnationState::Reserved
                | IncarnationState::Ended(_) => {
                    IncarnationEnd::Failed { reason: "its object no longer exists".into() }
                }
            };
            end::by_proof(fleet, incarnation, end, Vec::new(), ctx, &mut draft);
        }
        (_, ObservedState::Gone) => {}
        (_, ObservedState::Failed { message, retry: retry_class }) => {
            failed(fleet, incarnation, report.revision, message, *retry_class, ctx, &mut draft);
        }
        // The report reflects an earlier command: what it observed may have ended.
        (_, ObservedState::Ready { .. } | ObservedState::Started { .. } | ObservedState::NotReady { .. })
            if report.revision < incarnation.revision => {}
        (
            IncarnationState::Creating | IncarnationState::Starting | IncarnationState::Updating(_),
            ObservedState::Ready { processes },
        ) => ready(fleet, incarnation, processes, ctx, &mut draft),
        (IncarnationState::Running, ObservedState::Ready { processes })
            if incarnation.is_asked_to_reboot() =>
        {
            ready(fleet, incarnation, processes, ctx, &mut draft);
        }
        (
            IncarnationState::Creating,
            ObservedState::Started { processes } | ObservedState::NotReady { processes },
        ) => {
            draft.push(was_ensured(incarnation, processes, None));
        }
        (
            IncarnationState::Updating(to),
            ObservedState::Started { processes } | ObservedState::NotReady { processes },
        ) if incarnation.command.is_some() => {
            let runs = *to == incarnation.deployment;
            let deadline = runs.then(|| unready_deadline(fleet, incarnation, processes, ctx.now)).flatten();
            draft.push(was_ensured(incarnation, processes, deadline));
            end_unresponsive(fleet, incarnation, processes, ctx, &mut draft);
        }
        (
            IncarnationState::Starting | IncarnationState::Running | IncarnationState::Updating(_),
            ObservedState::Ready { processes }
            | ObservedState::Started { processes }
            | ObservedState::NotReady { processes },
        ) => {
            let deadline = (incarnation.state == IncarnationState::Running)
                .then(|| unready_deadline(fleet, incarnation, processes, ctx.now))
                .flatten();
            let is_counted = deadline.is_none() || deadline == incarnation.deadline;
            if *processes != incarnation.processes || !is_counted {
                draft.push(was_seen(incarnation, processes, deadline));
            }
            end_unresponsive(fleet, incarnation, processes, ctx, &mut draft);
        }
        (
            IncarnationState::Stopping(_),
            ObservedState::Ready { .. } | ObservedState::Started { .. } | ObservedState::NotReady { .. },
        ) => {}
    }
    draft.done()
}

/// Whether a shutdown by the guest before the requested stop counts. It does not if a caller requested the stop, or a start after
/// it; if another incarnation has replaced this one; or if the start of this one was given up.
fn shuts_down(fleet: &FleetState, incarnation: &Incarnation, then: &IncarnationEnd) -> bool {
    let Some(replica) = fleet.replicas().get(&incarnation.replica) else { return false };
    let is_active = replica.active.as_ref().is_some_and(|active| active.incarnation == incarnation.id);
    let is_requested = running_operation(fleet, incarnation).is_some_and(|operation| match operation.kind {
        OperationKind::Stop | OperationKind::Delete | OperationKind::Restart => true,
        OperationKind::Create
        | OperationKind::Start
        | OperationKind::Update
        | OperationKind::Relocate
        | OperationKind::Reboot => false,
    });
    is_active && !is_requested && !matches!(then, IncarnationEnd::Unwound { .. })
}

fn was_ensured(
    incarnation: &Incarnation,
    processes: &[ProcessInfo],
    deadline: Option<Time>,
) -> IncarnationStarted {
    let (incarnation, replica) = (incarnation.id, incarnation.replica.clone());
    IncarnationStarted { incarnation, replica, processes: processes.to_vec(), deadline }
}

fn was_seen(
    incarnation: &Incarnation,
    processes: &[ProcessInfo],
    deadline: Option<Time>,
) -> IncarnationProcessesChanged {
    let (incarnation, replica) = (incarnation.id, incarnation.replica.clone());
    IncarnationProcessesChanged { incarnation, replica, processes: processes.to_vec(), deadline }
}

/// Returns when an incarnation with these processes ends unless it becomes ready, by the plan's current
/// policy. An incarnation that is unready already keeps a deadline of this session. A process of unknown
/// status, as after a restart of its executor, sets no deadline. A guest that was reset has the time of a start.
fn unready_deadline(
    fleet: &FleetState,
    incarnation: &Incarnation,
    processes: &[ProcessInfo],
    now: Time,
) -> Option<Time> {
    if incarnation.is_asked_to_reboot() {
        return incarnation.deadline;
    }
    if processes.iter().all(|process| process.status == ProcessStatus::Ready) {
        return None;
    }
    let fails = |process: &ProcessInfo| {
        matches!(process.status, ProcessStatus::Unready { .. } | ProcessStatus::Unresponsive { .. })
    };
    let kept = incarnation.deadline.filter(|_| is_watched(fleet, incarnation));
    let boots = processes.iter().any(|process| process.status == ProcessStatus::Rebooting);
    let begins = boots && !incarnation.is_rebooting();
    kept.filter(|_| !begins).or_else(|| {
        let plan = fleet.plans().get(&incarnation.plan)?;
        if boots {
            return Some(now + plan.immediate().timeouts().start());
        }
        if !processes.iter().any(fails) {
            return None;
        }
        let unready = *plan.immediate().unready();
        (unready.action == UnreadyAction::Restart).then(|| now + unready.after())
    })
}

/// Whether the session that set the incarnation's unready deadline is open: only then could its executor have
/// reported that the incarnation is ready again.
fn is_watched(fleet: &FleetState, incarnation: &Incarnation) -> bool {
    incarnation.unready_session.is_some() && incarnation.unready_session == session_of(fleet, incarnation)
}

/// Open session of the incarnation's cluster.
fn session_of(fleet: &FleetState, incarnation: &Incarnation) -> Option<SessionId> {
    fleet.clusters().get(&incarnation.cluster)?.session
}

/// Ends an incarnation that was ready and no longer responds. Before readiness, the start deadline applies.
fn end_unresponsive(
    fleet: &FleetState,
    incarnation: &Incarnation,
    processes: &[ProcessInfo],
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let is_up = matches!(incarnation.state, IncarnationState::Running | IncarnationState::Updating(_));
    let is_hung = |process: &&ProcessInfo| matches!(process.status, ProcessStatus::Unresponsive { .. });
    if is_up && let Some(reason) = processes.iter().find(is_hung).and_then(ProcessInfo::trouble) {
        end::failing(fleet, incarnation, reason, ctx, draft);
    }
}

/// Makes a ready incarnation the active one. The incarnation that it replaces is stopped, and its end
/// completes the operation; without one, the operation succeeds now.
fn ready(
    fleet: &FleetState,
    incarnation: &Incarnation,
    processes: &[ProcessInfo],
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let operation = brings_up(fleet, incarnation);
    let active = fleet.replicas().get(&incarnation.replica).and_then(|replica| replica.active.as_ref());
    let replaced = active
        .and_then(|active| fleet.incarnations().get(&active.incarnation))
        .filter(|old| old.id != incarnation.id);
    draft.push(IncarnationRunning {
        incarnation: incarnation.id,
        replica: incarnation.replica.clone(),
        operation: operation.filter(|_| replaced.is_none()).map(|operation| operation.id),
        replaces: replaced.map(|old| old.id),
        processes: processes.to_vec(),
    });
    if let Some(old) = replaced.filter(|old| !matches!(old.state, IncarnationState::Stopping(_))) {
        draft.push(operation::stop(fleet, old, IncarnationEnd::Destroyed, ctx));
    }
}

/// Running operation that starts or changes the incarnation, if any.
fn brings_up<'a>(fleet: &'a FleetState, incarnation: &Incarnation) -> Option<&'a Operation> {
    let operation = running_operation(fleet, incarnation)?;
    let down = matches!(operation.kind, OperationKind::Stop | OperationKind::Delete);
    (!down && operation.incarnation == Some(incarnation.id)).then_some(operation)
}

fn running_operation<'a>(fleet: &'a FleetState, incarnation: &Incarnation) -> Option<&'a Operation> {
    let replica = fleet.replicas().get(&incarnation.replica)?;
    let operation = fleet.operations().get(&replica.operation?.id)?;
    matches!(operation.state, OperationState::Running).then_some(operation)
}

fn failed(
    fleet: &FleetState,
    incarnation: &Incarnation,
    revision: u32,
    error: &str,
    retry: RetryClass,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let Some(command) = incarnation.command.filter(|_| revision == incarnation.revision) else { return };
    if command.not_before > ctx.now {
        return; // this failure has been counted, and the next attempt was not sent yet
    }
    let wait = retry_delay(command.attempt, incarnation.id.position().get());
    let reverts =
        matches!(&incarnation.state, IncarnationState::Updating(to) if *to == incarnation.deployment);
    let wait = match (retry, command.effect) {
        // A revert is retried until it succeeds.
        (_, CommandEffect::Ensure) if reverts => wait.or(Some(LONGEST_DELAY)),
        (RetryClass::Permanent, CommandEffect::Ensure | CommandEffect::Reboot) => None,
        (RetryClass::Retryable, CommandEffect::Ensure | CommandEffect::Reboot) => wait,
        // A stop is retried until it succeeds.
        (_, CommandEffect::Stop | CommandEffect::Kill) => wait.or(Some(LONGEST_DELAY)),
    };
    draft.push(IncarnationCommandFailed {
        incarnation: incarnation.id,
        revision,
        attempt: command.attempt,
        error: error.into(),
        not_before: wait.map(|wait| ctx.now + wait),
    });
    if wait.is_none() {
        let then = IncarnationEnd::Unwound { reason: error.into() };
        let how = OperationEnd::Failed { reason: error.into() };
        if command.effect == CommandEffect::Reboot {
            // The guest runs on. A command that the executor has already met makes its reports count again.
            return revert(fleet, incarnation, how, draft);
        }
        give_up(fleet, incarnation, how, then, ctx, draft);
    }
}

/// Aborts the requested start or change of an incarnation: the operation ends now. An incarnation of a requested
/// start is stopped until its end is proved.
pub(crate) fn give_up(
    fleet: &FleetState,
    incarnation: &Incarnation,
    how: OperationEnd,
    then: IncarnationEnd,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    match &incarnation.state {
        IncarnationState::Updating(_) => revert(fleet, incarnation, how, draft),
        IncarnationState::Reserved
        | IncarnationState::Creating
        | IncarnationState::Starting
        | IncarnationState::Running
        | IncarnationState::Stopping(_)
        | IncarnationState::Ended(_) => {
            draft.push(operation::stop(fleet, incarnation, then, ctx));
            if let Some(operation) = brings_up(fleet, incarnation) {
                operation::end(fleet, operation, how, draft);
            }
        }
    }
}

/// Reverts a change: the operation ends now, and the previous version is requested until it runs.
fn revert(fleet: &FleetState, incarnation: &Incarnation, how: OperationEnd, draft: &mut FactDraft) {
    draft.push(IncarnationStartRequested {
        incarnation: incarnation.id,
        replica: incarnation.replica.clone(),
        deployment: incarnation.deployment.clone(),
        deadline: None,
        mounts: Vec::new(),
    });
    if let Some(operation) = brings_up(fleet, incarnation) {
        operation::end(fleet, operation, how, draft);
    }
}

/// Handles the expiry of an incarnation's deadline.
pub(crate) fn overdue(fleet: &FleetState, id: IncarnationId, ctx: &DecisionContext) -> Vec<Fact> {
    let mut draft = FactDraft::new(ctx);
    let Some(incarnation) = fleet.incarnations().get(&id) else { return Vec::new() };
    match &incarnation.state {
        IncarnationState::Creating | IncarnationState::Starting | IncarnationState::Updating(_) => {
            let reason = "it was not ready in time".to_owned();
            let then = IncarnationEnd::Failed { reason: reason.clone() };
            give_up(fleet, incarnation, OperationEnd::Failed { reason }, then, ctx, &mut draft);
        }
        IncarnationState::Stopping(then) => draft.push(IncarnationStopRequested {
            incarnation: id,
            replica: incarnation.replica.clone(),
            effect: CommandEffect::Kill,
            end: (**then).clone(),
            deadline: None,
        }),
        // Its volumes did not become free.
        IncarnationState::Reserved => {
            if let Some(operation) = brings_up(fleet, incarnation) {
                let reason = volume::late(fleet, incarnation);
                operation::end(fleet, operation, OperationEnd::Failed { reason }, &mut draft);
            }
        }
        IncarnationState::Running
            if incarnation.is_asked_to_reboot() && session_of(fleet, incarnation).is_none() =>
        {
            // No executor can have received the command, or report its outcome.
            let deadline = start_deadline(fleet, &incarnation.plan, ctx.now);
            draft.push(was_seen(incarnation, &incarnation.processes, deadline));
        }
        IncarnationState::Running if incarnation.is_asked_to_reboot() => {
            let reason = "it was not ready in time after its reboot".to_owned();
            end::failing(fleet, incarnation, reason.clone(), ctx, &mut draft);
            if let Some(operation) = brings_up(fleet, incarnation) {
                operation::end(fleet, operation, OperationEnd::Failed { reason }, &mut draft);
            }
        }
        IncarnationState::Running => {
            if !is_watched(fleet, incarnation) {
                // The next report sets another deadline.
                draft.push(was_seen(incarnation, &incarnation.processes, None));
            } else if let Some(since) = incarnation.unready {
                let why = incarnation.processes.iter().find_map(ProcessInfo::trouble);
                let why = why.map_or(String::new(), |why| format!(": {why}"));
                end::failing(fleet, incarnation, format!("not ready since {since}{why}"), ctx, &mut draft);
            }
        }
        IncarnationState::Ended(_) => {}
    }
    draft.done()
}
