//! After a reboot of the machine: what is started again without being told to, from what is on the disk alone.
//!
//! Another boot is the proof that everything recorded in an earlier one is dead. An incarnation without a recorded end
//! was cut off by it, and nobody was told of any end:
//!
//! | record | in the boot that it names | in a later one |
//! |---|---|---|
//! | processes, none ended; or all as the machine went down | they live, or have ended | *again*, if so wanted; or they have ended |
//! | processes, some ended by itself or as asked | the others live, or have ended | they have ended |
//! | to be started again | *again*: nothing was executed from this record | *again*, if so wanted; or they have ended |
//! | over, or none | as recorded | as recorded |
//!
//! *Again* records first that it is to be started again in this boot, then starts a keeper as for any start. So wanted is
//! what its highest order wants up, no tombstone forbids, and its plan has started again always (`Restart::Always`); and
//! only on the machine on which it ran, because a copy of the folder elsewhere proves nothing of the machine that it
//! comes from. Decision 0015 says why this is no second start.

use chancery_events::spec::Restart;

use super::folder::{Cause, Phase, Record, Wanted};
use super::identity::Boot;
use crate::executor_store::Tombstone;
use crate::plan::Aim;

/// What comes of a record that is not over, when nobody else holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// What lives of it is looked after; what does not has ended.
    LookAfter,
    /// It is started again.
    Again,
}

/// See the module.
pub(super) fn next(
    wanted: Option<&Wanted>,
    tombstone: Option<Tombstone>,
    record: &Record,
    boot: &Boot,
) -> Next {
    if record.is_over() || (record.boot == boot.id && record.phase != Phase::Again) {
        return Next::LookAfter;
    }
    let is_wanted = wanted.is_some_and(|wanted| {
        let always = wanted.spec.as_ref().is_some_and(|spec| spec.restart == Restart::Always);
        let buried = tombstone.is_some_and(|tombstone| tombstone.covers(&wanted.order));
        always && wanted.order.aim == Aim::Up && !buried
    });
    let is_here = record.machine.is_some() && record.machine == boot.machine;
    if is_wanted && is_here && was_cut_off(record) { Next::Again } else { Next::LookAfter }
}

/// Whether nothing of it has ended but with the machine.
fn was_cut_off(record: &Record) -> bool {
    let mut ends = record.processes.iter().filter_map(|process| process.end.as_ref()).map(|end| end.cause);
    match ends.next() {
        None => true,
        // The first that went down with the machine makes its keeper ask the others.
        Some(first) => {
            let all: Vec<Cause> = ends.chain([first]).collect();
            all.contains(&Cause::GoingDown) && !all.contains(&Cause::Itself)
        }
    }
}

/// Why something that was to be started again has ended.
pub(super) fn not_again(why: impl std::fmt::Display) -> String {
    format!("it was to be started again after a reboot: {why}")
}

#[cfg(test)]
mod tests;
