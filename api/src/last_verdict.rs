//! The last verdict of a server: every later read of the fleet is at least as new, unless the client asks for less.
//!
//! A verdict counts from before its answer is written, to any client: over a typed route, as a CloudEvent, in a batch, or
//! forwarded to the server that decides and answered here. Only durable verdicts are given, so each position is one of
//! the journal, and a takeover leaves it reachable. Inbox messages have no answer and do not count.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::HeaderMap;
use chancery_events::id::{Lineage, Position};

/// Highest position among the verdicts that this server has given for a fleet.
#[derive(Debug, Default)]
pub struct LastVerdict(AtomicU64);

impl LastVerdict {
    /// Begins at the head of the journal as this process found it: verdicts of the process before are in it.
    pub const fn at(head: Position) -> LastVerdict {
        LastVerdict(AtomicU64::new(head.get()))
    }

    /// Notes a verdict, before its answer is written.
    pub(super) fn note(&self, verdict: Position) {
        self.0.fetch_max(verdict.get(), Ordering::AcqRel);
    }

    /// Notes the verdicts of an answer that another server gave. `lineage` is that of this server's journal.
    pub(super) fn note_forwarded(&self, answer: &HeaderMap, lineage: Lineage) {
        let text = |name| answer.get(name).and_then(|value| value.to_str().ok());
        // The server that decides checked the lineage; problems do not repeat it.
        let is_ours = text("chancery-lineage").is_none_or(|named| named.parse() == Ok(lineage));
        if let (true, Some(Ok(position))) = (is_ours, text("chancery-position").map(str::parse)) {
            self.note(Position::new(position));
        }
    }

    /// The position that reads are at least as new as.
    pub(super) fn position(&self) -> Position {
        Position::new(self.0.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_another_server_counts_unless_it_is_of_another_journal() {
        let [ours, other] = [1, 2].map(Lineage::from_random);
        let cases = [
            (Some("12"), Some(ours), 12, "a verdict"),
            (Some("12"), None, 12, "a refusal, which names no lineage"),
            (Some("12"), Some(other), 5, "another journal"),
            (Some("3"), Some(ours), 5, "an earlier one: a repeat"),
            (Some("x"), Some(ours), 5, "no position"),
            (None, Some(ours), 5, "no verdict"),
        ];
        for (position, lineage, wanted, why) in cases {
            let last = LastVerdict::at(Position::new(5));
            let mut answer = HeaderMap::new();
            let lineage = lineage.map(|lineage| lineage.to_string());
            for (name, value) in [("chancery-position", position), ("chancery-lineage", lineage.as_deref())] {
                if let Some(value) = value {
                    answer.insert(name, value.parse().expect("a header"));
                }
            }
            last.note_forwarded(&answer, ours);
            assert_eq!(last.position(), Position::new(wanted), "{why}");
        }
    }
}
