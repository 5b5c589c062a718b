//! Invariant 1, as far as headers show it: dense positions, an unbroken chain, terms that rise, time that
//! never falls.

use std::sync::Arc;

use chancery_events::id::{Lineage, Position, Term, WriterId};
use chancery_events::record::{Record, RecordHash, RecordStart};
use chancery_events::time::Time;

use super::violation::{RuleResult, demand};

/// End of the journal so far.
#[derive(Clone, Debug)]
struct LastHeader {
    fleet: Arc<str>,
    position: Position,
    hash: RecordHash,
    term: Term,
    writer: WriterId,
    time: Time,
}

/// Checks the headers in order.
#[derive(Clone, Default, Debug)]
pub(super) struct HeaderChain {
    last: Option<LastHeader>,
    /// Lineages, each with the last position of its ids; the newest last, without an end.
    lineages: Vec<(Lineage, Position)>,
}

impl HeaderChain {
    /// Returns the current lineage.
    pub(super) fn lineage(&self) -> Option<Lineage> {
        self.lineages.last().map(|(lineage, _)| *lineage)
    }

    /// Whether this journal could have issued an id of the lineage at the position.
    pub(super) fn is_ours(&self, lineage: Lineage, position: Position) -> bool {
        self.lineages.iter().any(|(ours, end)| *ours == lineage && position <= *end)
    }

    pub(super) fn take(&mut self, record: &Record) -> RuleResult {
        let header = record.header();
        let Some(last) = &self.last else {
            demand!(1, header.first == Position::FIRST, "the first record starts at {}", header.first);
            demand!(1, header.prev == RecordHash::ZERO, "the first record continues another one");
            demand!(1, header.term == Term::FIRST, "the first record is of term {}", header.term);
            demand!(1, header.starts == Some(RecordStart::Term), "the first record starts no term");
            self.lineages.push((header.lineage, Position::MAX));
            self.follow(record);
            return Ok(());
        };
        demand!(
            1,
            header.first == last.position.plus(1),
            "it starts at {} after {}",
            header.first,
            last.position
        );
        demand!(1, header.prev == last.hash, "it continues another record than the last one");
        demand!(1, header.fleet == last.fleet, "it is of fleet {}", header.fleet);
        demand!(1, header.time >= last.time, "time decreases from {} to {}", last.time, header.time);
        let lineage = self.lineage();
        match header.starts {
            None => {
                let same = (header.term, header.writer) == (last.term, last.writer);
                demand!(5, same, "a fenced writer writes in term {}", header.term);
                demand!(1, Some(header.lineage) == lineage, "it is of another lineage");
            }
            Some(RecordStart::Term) => {
                demand!(
                    1,
                    header.term == last.term.next(),
                    "term {} starts after {}",
                    header.term,
                    last.term
                );
                demand!(1, Some(header.lineage) == lineage, "it is of another lineage");
            }
            Some(RecordStart::Lineage { previous }) => {
                demand!(
                    1,
                    header.term == last.term.next(),
                    "term {} starts after {}",
                    header.term,
                    last.term
                );
                demand!(1, Some(previous) == lineage, "it names {previous} as the lineage before");
                let used = self.lineages.iter().any(|(old, _)| *old == header.lineage);
                demand!(1, !used, "lineage {} starts again", header.lineage);
                if let Some((_, end)) = self.lineages.last_mut() {
                    *end = last.position;
                }
                self.lineages.push((header.lineage, Position::MAX));
            }
        }
        self.follow(record);
        Ok(())
    }

    fn follow(&mut self, record: &Record) {
        let header = record.header();
        self.last = Some(LastHeader {
            fleet: header.fleet.clone(),
            position: record.last(),
            hash: record.hash(),
            term: header.term,
            writer: header.writer,
            time: header.time,
        });
    }
}
