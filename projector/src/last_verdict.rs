//! Last verdict of a server, and the required freshness of a read: at least as new as that verdict, unless
//! the client asks for less.
//!
//! A verdict counts from before its answer is written, to any client. Its route may be typed, a `CloudEvent`,
//! a batch, or forwarded to the leader and answered here. Only durable verdicts are given, so each position
//! is one of the journal, and stays reachable after a takeover. Inbox messages have no answer and do not
//! count.

use std::sync::atomic::{AtomicU64, Ordering};

use chancery_events::id::{Lineage, Position};

/// Required freshness of a read, besides the position that it names.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ReadConsistency {
    /// At least as new as every verdict that the server gave before the request.
    #[default]
    Verdicts,
    /// As new as the server is.
    Eventual,
}

/// Highest position among the verdicts that a server has given for a fleet.
#[derive(Debug, Default)]
pub struct LastVerdict(AtomicU64);

impl LastVerdict {
    /// Starts at the journal's head as this process found it, which includes verdicts of earlier processes.
    pub const fn at(head: Position) -> LastVerdict {
        LastVerdict(AtomicU64::new(head.get()))
    }

    /// Notes a verdict, before its answer is written.
    pub fn note(&self, verdict: Position) {
        self.0.fetch_max(verdict.get(), Ordering::AcqRel);
    }

    /// Notes a verdict of another server, before its answer is passed on. `lineage` is the lineage that the
    /// answer names, if any, and `own` is that of this server's journal.
    pub fn note_forwarded(&self, verdict: Position, lineage: Option<Lineage>, own: Lineage) {
        // The leader checked the lineage; problems do not repeat it.
        if lineage.is_none_or(|lineage| lineage == own) {
            self.note(verdict);
        }
    }

    /// Returns the highest position that was noted.
    pub fn position(&self) -> Position {
        Position::new(self.0.load(Ordering::Acquire))
    }

    /// Returns the position that the rows must have for a read now; `named` is the position that the read
    /// names.
    pub fn wanted(&self, consistency: ReadConsistency, named: Option<Position>) -> Position {
        let verdict = match consistency {
            ReadConsistency::Verdicts => self.position(),
            ReadConsistency::Eventual => Position::ZERO,
        };
        named.map_or(verdict, |named| named.max(verdict))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_another_server_counts_unless_it_is_of_another_journal() {
        let [own, other] = [1, 2].map(Lineage::from_random);
        let cases = [
            (12, Some(own), 12, "a verdict"),
            (12, None, 12, "a refusal, which names no lineage"),
            (12, Some(other), 5, "another journal"),
            (3, Some(own), 5, "an earlier verdict: a repeat"),
        ];
        for (position, lineage, noted, why) in cases {
            let last = LastVerdict::at(Position::new(5));
            last.note_forwarded(Position::new(position), lineage, own);
            assert_eq!(last.position(), Position::new(noted), "{why}");
        }
    }

    #[test]
    fn a_read_wants_the_last_verdict_and_the_position_that_it_names() {
        let cases = [
            (ReadConsistency::Verdicts, None, 5, "the last verdict"),
            (ReadConsistency::Verdicts, Some(3), 5, "a position before it"),
            (ReadConsistency::Verdicts, Some(9), 9, "a position after it"),
            (ReadConsistency::Eventual, None, 0, "nothing"),
            (ReadConsistency::Eventual, Some(3), 3, "the position alone"),
        ];
        let last = LastVerdict::at(Position::new(5));
        for (consistency, named, wanted, why) in cases {
            assert_eq!(last.wanted(consistency, named.map(Position::new)), Position::new(wanted), "{why}");
        }
    }
}
