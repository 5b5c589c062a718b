//! What a checker says of a journal that breaks a rule.

use std::fmt;

use chancery_events::id::Position;

/// An invariant does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which, by its number.
    pub invariant: u8,
    /// What is wrong, for people.
    pub what: String,
    /// Where in the journal, if it shows there.
    pub position: Option<Position>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {} does not hold", self.invariant)?;
        if let Some(position) = self.position {
            write!(f, " at position {position}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for Violation {}
