//! Restarts after a reboot of the machine: without a command, from the state on disk alone.
//!
//! A later boot proves that all processes recorded in an earlier boot are dead. An incarnation without a
//! recorded end was cut off by the reboot, and its end was not reported:
//!
//! | record | in the boot that it names | in a later boot |
//! |---|---|---|
//! | processes, none ended, or all with the machine | living, or ended | *restart* if wanted, else ended |
//! | processes, some ended without or by a request | the others living, or ended | ended |
//! | pending restart | *restart*: this record executed nothing | *restart* if wanted, else ended |
//! | end, or no record | as recorded | as recorded |
//!
//! A *restart* first records that it is pending in this boot, then starts a supervisor as for any start. It
//! is wanted if the highest target has the goal `TargetGoal::Up`, no tombstone prevents it, and its plan always
//! restarts (`Restart::Always`). It happens only on the same machine: a copy of the directory elsewhere
//! proves nothing about its original machine. Decision 0015 explains why this is no second start.

use chancery_events::spec::RestartPolicy;

use super::identity::BootId;
use super::incarnation_dir::{ProcessEndCause, ProcessesFile, SpecFile, StartPhase};
use crate::executor_store::TombstoneFile;
use crate::reconcile::TargetGoal;

/// Whether the incarnation of a record must be restarted, if no other process holds the lock. Otherwise, processes
/// that are still alive are adopted.
pub(super) fn must_restart(
    wanted: Option<&SpecFile>,
    tombstone: Option<TombstoneFile>,
    record: &ProcessesFile,
    boot: &BootId,
) -> bool {
    if record.is_over() || (record.boot == boot.id && record.phase != StartPhase::Again) {
        return false;
    }
    let is_wanted = wanted.is_some_and(|wanted| {
        let always = wanted.spec.as_ref().is_some_and(|spec| spec.restart == RestartPolicy::Always);
        let buried = tombstone.is_some_and(|tombstone| tombstone.covers(&wanted.order));
        always && wanted.order.aim == TargetGoal::Up && !buried
    });
    let is_here = record.machine.is_some() && record.machine == boot.machine;
    is_wanted && is_here && was_cut_off(record)
}

/// Whether every end was caused by the machine.
fn was_cut_off(record: &ProcessesFile) -> bool {
    let ends = record.processes.iter().filter_map(|process| process.end.as_ref());
    let causes: Vec<ProcessEndCause> = ends.map(|end| end.cause).collect();
    // The first process that ends with the machine makes its supervisor stop the others.
    let has_gone_down = causes.contains(&ProcessEndCause::GoingDown) || causes.is_empty();
    has_gone_down && !causes.contains(&ProcessEndCause::Itself) && !record.has_ended_guest()
}

/// Returns why an incarnation ended though a restart was wanted.
pub(super) fn not_again(why: impl std::fmt::Display) -> String {
    format!("cannot restart incarnation after reboot: {why}")
}

#[cfg(test)]
mod tests;
