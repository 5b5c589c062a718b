//! Record of a moment: the one that contains a position, or the last one that is not later than a time.
//!
//! The journal has no index of times. Its times never decrease, so the record is found by a binary search, of
//! which each step reads one record. Records that cannot be read are passed by, unless the result may be one of them.

use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_events::time::Time;
use chancery_journal::{ChainCursor, JournalReader, ReadError};

use super::{MomentError, NamedMoment};

/// Returns the cursor after the record of the moment. The lineage of a position is not compared.
pub fn find(journal: &dyn JournalReader, moment: NamedMoment) -> Result<ChainCursor, MomentError> {
    let last = journal.head().ok_or(MomentError::Empty)?;
    match moment {
        NamedMoment::Position(named) => by_position(journal, named.position, &last),
        NamedMoment::Time(time) => by_time(journal, time, &last),
    }
}

fn by_position(
    journal: &dyn JournalReader,
    position: Position,
    last: &ChainCursor,
) -> Result<ChainCursor, MomentError> {
    if position == Position::ZERO || position > last.position {
        return Err(out_of_range(journal, position == Position::ZERO, last));
    }
    Ok(ChainCursor::after(&*record_at(journal, position)?))
}

fn by_time(journal: &dyn JournalReader, time: Time, last: &ChainCursor) -> Result<ChainCursor, MomentError> {
    if time == last.time {
        return Ok(*last);
    }
    if time > last.time {
        return Err(out_of_range(journal, false, last));
    }
    let mut found = None;
    // Error of a step, until a later record is found that is not later than the time.
    let mut gap = None;
    // The record before `from` is not later than the time; the record that contains `to` is later.
    let (mut from, mut to) = (Position::FIRST, last.position);
    while from < to {
        let middle = Position::new(from.get() + (to.get() - from.get()) / 2);
        match record_at(journal, middle) {
            Ok(record) if record.header().time <= time => {
                (found, gap) = (Some(ChainCursor::after(&record)), None);
                from = record.last().plus(1);
            }
            Ok(record) => to = record.first(),
            Err(error @ MomentError::Unreadable { .. }) => {
                gap = Some(error);
                from = middle.plus(1);
            }
            Err(error) => return Err(error),
        }
    }
    match (gap, found) {
        (Some(error), _) => Err(error),
        (None, Some(found)) => Ok(found),
        (None, None) => Err(out_of_range(journal, true, last)),
    }
}

/// Returns the error of a moment before the first record or after the last one. The first record may be
/// unreadable; then that is the error.
fn out_of_range(journal: &dyn JournalReader, is_before: bool, last: &ChainCursor) -> MomentError {
    match record_at(journal, Position::FIRST) {
        Ok(record) => {
            let first = ChainCursor::after(&record).into();
            MomentError::OutOfRange { is_before, first, last: (*last).into() }
        }
        Err(error) => error,
    }
}

/// Returns the record that contains a position up to the head.
fn record_at(journal: &dyn JournalReader, position: Position) -> Result<Arc<Record>, MomentError> {
    let found = journal.records(position).and_then(|mut records| records.next().transpose());
    match found {
        Ok(Some(record)) if record.first() <= position => Ok(record),
        Ok(_) => {
            let reason = "the journal does not have its record".to_owned();
            Err(MomentError::Unreadable { position, reason, first: None })
        }
        Err(error) => Err(unreadable(error, position)),
    }
}

/// Returns the error of a moment whose records cannot be read. A failure of the storage that may pass stays as
/// it is.
pub(super) fn unreadable(error: ReadError, position: Position) -> MomentError {
    let is_lost = match &error {
        ReadError::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
        ReadError::Damaged { .. } | ReadError::Broken(_) => true,
    };
    if is_lost {
        MomentError::Unreadable { position, reason: super::with_sources(&error), first: None }
    } else {
        MomentError::Read(error)
    }
}
