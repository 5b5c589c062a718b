//! Automatic restarts of replicas by their plan's rule.
//!
//! | incarnation | `always` | `on_failure` | `never` |
//! |---|---|---|---|
//! | failed, on its own or with its node | restart | restart | stays failed |
//! | was ended because it did not respond or stayed unready | restart | restart | stays failed |
//! | ended cleanly on its own | restart | stays ended | stays ended |
//! | its guest powered itself off | stays off | stays off | stays off |
//! | never ready, started by a client or a deployment | stays failed | stays failed | stays failed |
//! | never ready, and the deployment that started it was aborted | as before that start | as before | as before |
//! | never ready, as a replacement | restart | restart | stays failed |
//! | was stopped for an update that is aborted | restart | restart | restart |
//! | was stopped on request | stays stopped | stays stopped | stays stopped |
//!
//! The first consecutive restart is immediate. The second waits at least the plan's `restart_delay`, and each
//! later one twice as long. An incarnation that lasted as long as the longest wait resets the sequence.

use std::time::Duration;

use chancery_events::fact::{IncarnationEnd, OperationEnd, Requester, RestartBackoff};
use chancery_events::lifecycle::WillWord;
use chancery_events::spec::{ImmediateFields, OperationKind, RestartPolicy};
use chancery_events::time::Time;

use crate::fleet::FleetState;
use crate::state::{Incarnation, IncarnationState, OperationState, Replica};

/// Longest wait, as a multiple of the cooldown.
const LONGEST: u32 = 32;

/// Cause of the end of an incarnation or reservation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// Proof, or an operation that failed.
    End,
    /// Abort of the operation that replaces an incarnation.
    Abort,
}

/// Returns the automatic restart after an incarnation's end, if no operation starts the replica.
pub(super) fn again(
    fleet: &FleetState,
    replica: &Replica,
    incarnation: &Incarnation,
    end: &IncarnationEnd,
    cause: EndCause,
    now: Time,
) -> Option<RestartBackoff> {
    let plan = fleet.plans().get(&replica.plan)?;
    let immediate = plan.immediate();
    if replica.desired != WillWord::Running || plan.deletion_requested_by.is_some() {
        return None;
    }
    if *end == IncarnationEnd::PoweredOff {
        return None; // only a requested start ends a guest's shutdown
    }
    if incarnation.ready_since.is_none() && was_asked_for(fleet, incarnation) {
        return kept(fleet, replica, incarnation, cause, now);
    }
    let asked_to_end = matches!(incarnation.state, IncarnationState::Stopping(_));
    let ended_well = *end == IncarnationEnd::Destroyed && !asked_to_end;
    let starts = match immediate.restart() {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => !ended_well,
        RestartPolicy::Never => false,
    };
    // A replica that was stopped for an aborted version restarts, whatever the rule.
    let regains = cause == EndCause::Abort || replica.recovers;
    (starts || regains).then(|| next(immediate, replica.last_restart, incarnation.ready_since, now))
}

/// Whether a client or a deployment requested the start.
fn was_asked_for(fleet: &FleetState, incarnation: &Incarnation) -> bool {
    fleet.operations().get(&incarnation.operation).is_none_or(|operation| {
        let up = matches!(operation.kind, OperationKind::Create | OperationKind::Start);
        up && !matches!(operation.requested_by.as_deref(), Some(Requester::Rule(_)))
    })
}

/// Restart that was scheduled before a deployment started the replica, if that start is aborted.
fn kept(
    fleet: &FleetState,
    replica: &Replica,
    incarnation: &Incarnation,
    cause: EndCause,
    now: Time,
) -> Option<RestartBackoff> {
    let operation = fleet.operations().get(&incarnation.operation)?;
    let aborted = cause == EndCause::Abort
        || matches!(operation.state, OperationState::Ended(OperationEnd::Cancelled { .. }));
    let kept = replica.next_restart.filter(|_| operation.keeps_promise() && aborted)?;
    Some(RestartBackoff { not_before: now.max(kept.not_before), ..kept })
}

/// Returns the wait after this number of consecutive restarts.
pub(crate) fn wait(cooldown: Duration, row: u32) -> Duration {
    cooldown * 2u32.saturating_pow(row.saturating_sub(1)).min(LONGEST)
}

fn next(
    immediate: ImmediateFields<'_>,
    row: Option<RestartBackoff>,
    since: Option<Time>,
    now: Time,
) -> RestartBackoff {
    let restart_delay = Duration::from_millis(*immediate.restart_delay());
    let lasted = since.is_some_and(|since| now.since(since) >= restart_delay * LONGEST);
    let Some(last) = row.filter(|_| !lasted) else {
        return RestartBackoff { not_before: now, consecutive: 1 };
    };
    RestartBackoff {
        not_before: now.max(last.not_before + wait(restart_delay, last.consecutive)),
        consecutive: last.consecutive.saturating_add(1),
    }
}
