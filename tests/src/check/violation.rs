//! Violations that a checker reports of a journal.

use std::fmt;

use chancery_events::id::Position;

/// Broken invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvariantViolation {
    /// Number of the invariant.
    pub invariant: u8,
    /// Description of the violation, for people.
    pub what: String,
    /// Position in the journal, if known.
    pub position: Option<Position>,
}

impl InvariantViolation {
    /// Returns a violation without a position.
    pub(super) fn new(invariant: u8, what: impl Into<String>) -> InvariantViolation {
        InvariantViolation { invariant, what: what.into(), position: None }
    }

    /// Sets the position, unless one is set already.
    pub(super) fn at(mut self, position: Position) -> InvariantViolation {
        self.position.get_or_insert(position);
        self
    }
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {} does not hold", self.invariant)?;
        if let Some(position) = self.position {
            write!(f, " at position {position}")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl std::error::Error for InvariantViolation {}

/// Result of checking a rule.
pub(super) type RuleResult = Result<(), InvariantViolation>;

/// Demands a condition, as part of the invariant with the number.
macro_rules! demand {
    ($invariant:literal, $condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err($crate::check::InvariantViolation::new($invariant, format!($($what)+)));
        }
    };
}
pub(super) use demand;
