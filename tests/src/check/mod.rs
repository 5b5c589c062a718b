//! The checker: reads a journal record by record and says which invariant it breaks, if any.
//!
//! It knows the words of events and the bytes of records, and nothing of the state machine: what it demands is
//! written from the rules, so that it can judge the machine. The work for each record grows with that record alone.

mod violation;

pub use violation::Violation;

use chancery_events::id::IncarnationId;
use chancery_events::record::Record;

use crate::history::History;

/// What truly runs of one incarnation, whatever the journal says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alive {
    /// Which.
    pub incarnation: IncarnationId,
    /// How many processes, at least one.
    pub processes: usize,
}

/// Reads a journal and watches the invariants.
#[derive(Clone, Default, Debug)]
pub struct Checker {}

impl Checker {
    /// Has seen nothing.
    pub fn new() -> Checker {
        Checker::default()
    }

    /// Takes the next valid record of the journal.
    pub fn take(&mut self, _record: &Record) -> Result<(), Violation> {
        Ok(())
    }

    /// Invariant 1, for what producers were told: every verdict told stands in the journal at its position, one
    /// for each key; what surely was not recorded is not there.
    pub fn history(&self, _history: &History) -> Result<(), Violation> {
        Ok(())
    }

    /// Invariants 3 and 6, for what truly runs: at most one incarnation of a replica executes, and each has a
    /// command that was approved and holds a place.
    pub fn alive(&self, _alive: &[Alive]) -> Result<(), Violation> {
        Ok(())
    }
}
