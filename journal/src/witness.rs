//! Witnesses: evidence outside a journal that a record was durable in it.
//!
//! Snapshots, the read models' cursor, files of postings and executor stores are written after the journal
//! was synced up to the record that they name. So a journal without that record has lost it.
//!
//! | named lineage | position | hash there | result |
//! |---|---|---|---|
//! | any; the journal is empty | | | ahead |
//! | the current one | after the head | | ahead |
//! | the current one, or an ancestor up to its end | up to the head | the same, or none is named | agrees |
//! | the current one, or an ancestor up to its end | up to the head | another, or no record ends | differs |
//! | an ancestor | after its end | | past: the loss was accepted |
//! | unknown | after the head | | ahead |
//! | unknown | up to the head | | foreign: the journal is another one, or an older copy of this one |
//!
//! A witness that is ahead, differs or is foreign contradicts the journal.
//!
//! Invariant: [`weigh`] decides from values alone; the code that reads them changes nothing.

use std::fmt;

use chancery_events::event::Event;
use chancery_events::fact::Fact;
use chancery_events::id::{Lineage, Position};
use chancery_events::lineage::LineageHistory;
use chancery_events::record::{Record, RecordHash};

use crate::chain::ChainCursor;
use crate::journal::{JournalReader, ReadError};

/// Record that was durable, as evidence outside the journal names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalWitness {
    /// Name of the witness for people: kind and path.
    pub name: String,
    /// Lineage of the record.
    pub lineage: Lineage,
    /// Position at which the record ends.
    pub position: Position,
    /// Hash of the record, if the witness names it.
    pub hash: Option<RecordHash>,
}

impl JournalWitness {
    /// Creates a witness of the record before `cursor`.
    pub fn at(name: String, cursor: &ChainCursor) -> JournalWitness {
        JournalWitness { name, lineage: cursor.lineage, position: cursor.position, hash: Some(cursor.hash) }
    }
}

/// Result of comparing a witness with a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WitnessCheck {
    /// The journal contains the record.
    Agrees,
    /// The journal ends before the record: it was longer.
    Ahead,
    /// The journal contains another record at the position.
    Differs,
    /// The record is part of a loss that was accepted.
    Past,
    /// The record is of a lineage that the journal does not know. The journal is another one, or a copy from
    /// before that lineage that was written to since.
    Foreign,
}

/// Compares a witness with a journal. `head` and `lineages` are those of the journal, `None` if it is empty.
/// `recorded` is the hash of the record that ends at the witness's position, if one does.
pub fn weigh(
    witness: &JournalWitness,
    head: Option<Position>,
    lineages: Option<&LineageHistory>,
    recorded: Option<RecordHash>,
) -> WitnessCheck {
    let (Some(head), Some(lineages)) = (head, lineages) else { return WitnessCheck::Ahead };
    let is_behind_the_head = witness.position > head;
    if witness.lineage != lineages.current {
        match lineages.end(witness.lineage) {
            Some(end) if witness.position > end => return WitnessCheck::Past,
            Some(_) => {}
            None if is_behind_the_head => return WitnessCheck::Ahead,
            None => return WitnessCheck::Foreign,
        }
    }
    match witness.hash {
        _ if is_behind_the_head => WitnessCheck::Ahead,
        Some(hash) if recorded != Some(hash) => WitnessCheck::Differs,
        Some(_) | None => WitnessCheck::Agrees,
    }
}

/// Records missing from a journal, as far as witnesses prove it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalLoss {
    /// Last record of the journal; `None` if it is empty.
    pub head: Option<ChainCursor>,
    /// Lineages of the journal; `None` if it is empty.
    pub lineages: Option<LineageHistory>,
    /// Witnesses that contradict the journal, highest position first.
    pub witnesses: Vec<(JournalWitness, WitnessCheck)>,
    /// Last position before the first difference at which a witness names exactly the journal's record.
    pub agreed: Position,
}

impl JournalLoss {
    /// Returns the last position up to which the journal is unchanged. Where the journal differs at a
    /// position, the histories may have diverged long before. Then only a position that a witness confirms
    /// counts.
    pub fn at(&self) -> Position {
        let head = self.head.map_or(Position::ZERO, |head| head.position);
        if self.differs() { self.agreed.min(head) } else { head }
    }

    /// Whether the journal contains a record other than a witness names: it was continued from an older copy.
    pub fn differs(&self) -> bool {
        self.witnesses.iter().any(|(_, weight)| *weight == WitnessCheck::Differs)
    }

    /// Returns the highest position that is known to be missing.
    pub fn missing_through(&self) -> Option<Position> {
        self.witnesses.first().map(|(witness, _)| witness.position).filter(|position| *position > self.at())
    }

    /// Returns the lineages that witnesses name and the journal does not know. Such lineages started in the
    /// missing records, or belong to another journal.
    pub fn abandoned(&self) -> Vec<Lineage> {
        let is_known = |lineage| match &self.lineages {
            Some(lineages) => lineage == lineages.current || lineages.end(lineage).is_some(),
            None => false,
        };
        let mut abandoned: Vec<_> =
            self.witnesses.iter().map(|(witness, _)| witness.lineage).filter(|one| !is_known(*one)).collect();
        abandoned.sort_unstable();
        abandoned.dedup();
        abandoned
    }
}

impl fmt::Display for JournalLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.head {
            Some(head) => {
                write!(f, "the journal ends at position {} of lineage {}", head.position, head.lineage)?;
            }
            None => f.write_str("the journal is empty")?,
        }
        for (witness, weight) in &self.witnesses {
            let JournalWitness { name, lineage, position, .. } = witness;
            let what = match weight {
                WitnessCheck::Differs => "another record at",
                WitnessCheck::Foreign => "a record of another history at",
                WitnessCheck::Ahead | WitnessCheck::Agrees | WitnessCheck::Past => "a record at",
            };
            write!(f, "; {name} names {what} position {position}")?;
            if self.head.is_none_or(|head| head.lineage != *lineage) {
                write!(f, " of lineage {lineage}")?;
            }
        }
        Ok(())
    }
}

/// Returns the loss that the witnesses prove; `None` if there is none. Reads all records only if a witness
/// names a lineage other than the last, otherwise only the records that are named.
pub fn loss(
    journal: &dyn JournalReader,
    witnesses: &[JournalWitness],
) -> Result<Option<JournalLoss>, ReadError> {
    let head = journal.head();
    let lineages = match head {
        Some(head) if witnesses.iter().any(|witness| witness.lineage != head.lineage) => lineages(journal)?,
        head => head.map(|head| LineageHistory::new(head.lineage)),
    };
    against(head, lineages, witnesses, |position| recorded(journal, position))
}

/// Returns the loss like [`loss`], for a journal that ends at `head`. `recorded` returns the hash of the
/// record that ends at a position.
pub fn against<E>(
    head: Option<ChainCursor>,
    lineages: Option<LineageHistory>,
    witnesses: &[JournalWitness],
    recorded: impl Fn(Position) -> Result<Option<RecordHash>, E>,
) -> Result<Option<JournalLoss>, E> {
    let (mut against, mut agreed) = (Vec::new(), Vec::new());
    for witness in witnesses.iter().filter(|witness| witness.position > Position::ZERO) {
        let is_within = head.is_some_and(|head| witness.position <= head.position);
        let recorded = if is_within { recorded(witness.position)? } else { None };
        let weight = weigh(witness, head.map(|head| head.position), lineages.as_ref(), recorded);
        if matches!(weight, WitnessCheck::Ahead | WitnessCheck::Differs | WitnessCheck::Foreign) {
            against.push((witness.clone(), weight));
        } else if weight == WitnessCheck::Agrees && witness.hash.is_some() {
            agreed.push(witness.position);
        }
    }
    against.sort_by_key(|(witness, _)| std::cmp::Reverse(witness.position));
    let differs = against.iter().filter(|(_, weight)| *weight == WitnessCheck::Differs);
    let first = differs.map(|(witness, _)| witness.position).min().unwrap_or(Position::MAX);
    let agreed = agreed.into_iter().filter(|position| *position < first).max().unwrap_or(Position::ZERO);
    Ok((!against.is_empty()).then_some(JournalLoss { head, lineages, witnesses: against, agreed }))
}

/// Returns the hash of the record that ends at the position, if one does. A read error does not prove that
/// none does.
pub fn recorded(journal: &dyn JournalReader, position: Position) -> Result<Option<RecordHash>, ReadError> {
    let record = journal.records(position)?.next().transpose()?;
    Ok(record.filter(|record| record.last() == position).map(|record| record.hash()))
}

/// Whether the journal contains the record that precedes the cursor.
pub fn has_record_of(journal: &dyn JournalReader, cursor: &ChainCursor) -> Result<bool, ReadError> {
    let record = journal.records(cursor.position)?.next().transpose()?;
    Ok(record.is_some_and(|record| ChainCursor::after(&record) == *cursor))
}

/// Returns the lineages of a journal, read from all of its records; `None` if it is empty.
pub fn lineages(journal: &dyn JournalReader) -> Result<Option<LineageHistory>, ReadError> {
    let mut lineages = None;
    for record in journal.records(Position::FIRST)? {
        follow(&mut lineages, &*record?);
    }
    Ok(lineages)
}

/// Updates the lineages of a journal with its next record.
pub fn follow(lineages: &mut Option<LineageHistory>, record: &Record) {
    let lineage = record.header().lineage;
    let known = lineages.get_or_insert_with(|| LineageHistory::new(lineage));
    if known.current == lineage {
        return;
    }
    // The first event of such a record starts the lineage.
    if let Some((_, line)) = record.events().next()
        && let Ok(Event::Fact { fact: Fact::LineageStarted(fact), .. }) = Event::read(line)
    {
        known.start(lineage, &fact);
    }
}

#[cfg(test)]
mod tests;
