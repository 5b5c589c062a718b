//! Refusals that several modules word alike.

use chancery_events::fact::Fact;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::subject::Subject;

/// Facts that an intent results in, or its refusal.
pub(crate) type DecidedFacts = Result<Vec<Fact>, Refusal>;

pub(crate) fn not_found(subject: &Subject) -> Refusal {
    let text = subject.to_string();
    let (kind, name) = text.split_once('/').unwrap_or(("fleet", ""));
    Refusal::new(RefusalCode::NotFound, format!("there is no {kind} {name}"))
}

pub(crate) fn invalid_transition(what: &str, from: &str, to: &str) -> Refusal {
    Refusal::new(RefusalCode::InvalidTransition, format!("{what} is {from} and cannot become {to}"))
}

/// Errors in a body, collected so that its sender can fix all of them together.
#[derive(Default)]
pub(crate) struct BodyErrors(std::collections::BTreeMap<String, String>);

impl BodyErrors {
    pub(crate) fn add(&mut self, pointer: impl Into<String>, what: impl Into<String>) {
        self.0.entry(pointer.into()).or_insert(what.into());
    }

    pub(crate) fn check(&mut self, holds: bool, pointer: impl Into<String>, what: impl Into<String>) {
        if !holds {
            self.add(pointer, what);
        }
    }

    pub(crate) fn done(self) -> Result<(), Refusal> {
        let Some((pointer, what)) = self.0.first_key_value() else { return Ok(()) };
        let more = match self.0.len() {
            1 => String::new(),
            many => format!(" (and {} more)", many - 1),
        };
        let mut refusal = Refusal::new(RefusalCode::Invalid, format!("{pointer}: {what}{more}"));
        refusal.errors = self.0;
        Err(refusal)
    }
}
