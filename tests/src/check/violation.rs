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

impl Violation {
    /// One that shows nowhere in particular, or not yet.
    pub(super) fn new(invariant: u8, what: impl Into<String>) -> Violation {
        Violation { invariant, what: what.into(), position: None }
    }

    /// Says where, unless that is known better already.
    pub(super) fn at(mut self, position: Position) -> Violation {
        self.position.get_or_insert(position);
        self
    }
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

/// Whether a rule holds.
pub(super) type Check = Result<(), Violation>;

/// Demands a condition, as part of the invariant with the number.
macro_rules! demand {
    ($invariant:literal, $condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err($crate::check::Violation::new($invariant, format!($($what)+)));
        }
    };
}
pub(super) use demand;
