//! When the plan's rule starts a replica again whose run is over.
//!
//! | the run | `always` | `best_effort` | `never` |
//! |---|---|---|---|
//! | failed, by itself or with its node | again | again | stays failed |
//! | was ended because it did not answer or stayed unready | again | again | stays failed |
//! | ended cleanly by itself | again | stays ended | stays ended |
//! | never came up, at the asking of a person or a deployment | stays failed | stays failed | stays failed |
//! | never came up, and the deployment that started it is given up meanwhile | as before that start | as before | as before |
//! | never came up, in the place of one that ran | again | again | stays failed |
//! | was stopped for an update that is aborted | again | again | again |
//! | was stopped, as asked | stays stopped | stays stopped | stays stopped |
//!
//! The first start in a row is at once, the second no sooner than the plan's `cooldown` after it, and twice as long
//! each time. A run that lasted as long as the longest of those waits ends the row.

use std::time::Duration;

use chancery_events::fact::{Again, Asker, IncarnationEnd, OperationEnd};
use chancery_events::lifecycle::WillWord;
use chancery_events::spec::{OperationKind, PlanPolicy, Restart};
use chancery_events::time::Time;

use crate::fleet::Fleet;
use crate::state::{Incarnation, IncarnationState, OperationState, Replica};

/// The longest wait is so many cooldowns.
const LONGEST: u32 = 32;

/// By what a run, or a place for one, is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A proof, or an operation that failed.
    End,
    /// The operation that was to replace a run is aborted.
    Abort,
}

/// When the replica is started again after this end of a run of it, if nothing else brings it up.
pub(super) fn again(
    fleet: &Fleet,
    replica: &Replica,
    incarnation: &Incarnation,
    end: &IncarnationEnd,
    cause: Cause,
    now: Time,
) -> Option<Again> {
    let plan = fleet.plans().get(&replica.plan)?;
    let policy = plan.policy();
    if replica.will != WillWord::Running || plan.removing.is_some() {
        return None;
    }
    if incarnation.since.is_none() && was_asked_for(fleet, incarnation) {
        return kept(fleet, replica, incarnation, cause, now);
    }
    let asked_to_end = matches!(incarnation.state, IncarnationState::Stopping(_));
    let ended_well = *end == IncarnationEnd::Destroyed && !asked_to_end;
    let starts = match policy.restart() {
        Restart::Always => true,
        Restart::BestEffort => !ended_well,
        Restart::Never => false,
    };
    // What was stopped for a version that is taken back runs again, whatever the rule.
    let regains = cause == Cause::Abort || replica.recovers;
    (starts || regains).then(|| next(policy, replica.row, incarnation.since, now))
}

/// Whether a person or a deployment wanted to see it come up.
fn was_asked_for(fleet: &Fleet, incarnation: &Incarnation) -> bool {
    fleet.operations().get(&incarnation.operation).is_none_or(|operation| {
        let up = matches!(operation.kind, OperationKind::Create | OperationKind::Start);
        up && !matches!(operation.by.as_deref(), Some(Asker::Rule(_)))
    })
}

/// What the rule had promised before a deployment started the replica, if that start is aborted.
fn kept(
    fleet: &Fleet,
    replica: &Replica,
    incarnation: &Incarnation,
    cause: Cause,
    now: Time,
) -> Option<Again> {
    let operation = fleet.operations().get(&incarnation.operation)?;
    let aborted = cause == Cause::Abort
        || matches!(operation.state, OperationState::Ended(OperationEnd::Cancelled { .. }));
    let kept = replica.again.filter(|_| operation.keeps_promise() && aborted)?;
    Some(Again { at: now.max(kept.at), ..kept })
}

/// How long to wait after so many in a row.
pub(crate) fn wait(cooldown: Duration, row: u32) -> Duration {
    cooldown * 2u32.saturating_pow(row.saturating_sub(1)).min(LONGEST)
}

fn next(policy: PlanPolicy<'_>, row: Option<Again>, since: Option<Time>, now: Time) -> Again {
    let cooldown = Duration::from_millis(*policy.cooldown());
    let lasted = since.is_some_and(|since| now.since(since) >= cooldown * LONGEST);
    let Some(last) = row.filter(|_| !lasted) else { return Again { at: now, row: 1 } };
    Again { at: now.max(last.at + wait(cooldown, last.row)), row: last.row.saturating_add(1) }
}
