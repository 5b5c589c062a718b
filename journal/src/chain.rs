//! Chain of records and its validity rule, identical for every journal and every reader.
//!
//! | header | after no record | after a valid record |
//! |---|---|---|
//! | first position | 1 | the next one |
//! | previous hash | zero | the hash of the last valid record |
//! | fleet | the journal's | the journal's |
//! | starts nothing | skipped | lineage, term and writer are those of the last valid record |
//! | starts a term | term 1 | same lineage, term exactly one higher, any writer |
//! | starts a lineage | skipped | other lineage, naming the last one as previous, term exactly one higher |
//!
//! Other records are skipped and counted, and do not affect the rule: a fenced writer's late append, a
//! duplicate after a reconnect, an invalid record. So the log itself decides which writer wins, and a fenced
//! writer is harmless. The rule reads the header only.
//!
//! Some records continue the chain but stop the reader, and are never skipped. The body cannot be read, a
//! term starts again, or the time is before the last valid record's. The rule ignores time, but no reader
//! could handle such a record.

use std::fmt;
use std::sync::Arc;

use chancery_events::id::{Lineage, Position, Term, WriterId};
use chancery_events::record::{
    FORMAT, HeaderParts, InboxWatermark, InvalidBody, Record, RecordHash, RecordHeader, RecordStart,
};
use chancery_events::time::Time;
use serde::{Deserialize, Serialize};

/// Position of a reader in the chain: after a valid record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChainCursor {
    /// Position of the last event.
    pub position: Position,
    /// Hash of the last record.
    pub hash: RecordHash,
    /// Term of the last record.
    pub term: Term,
    /// Writer of the term.
    pub writer: WriterId,
    /// Lineage of the last record.
    pub lineage: Lineage,
    /// Time of the last record.
    pub time: Time,
}

/// Identity of a writer in each of its records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriterIdentity {
    /// Fleet that the journal belongs to.
    pub fleet: Arc<str>,
    /// Build of the writer.
    pub build: Arc<str>,
    /// Id of this start of the writer.
    pub writer: WriterId,
}

impl ChainCursor {
    /// Returns the cursor after `record`, valid or not: for a writer that continues before the record is
    /// durable.
    pub fn after(record: &Record) -> ChainCursor {
        ChainCursor::behind(record.header(), record.hash())
    }

    pub(crate) fn behind(header: &RecordHeader, hash: RecordHash) -> ChainCursor {
        ChainCursor {
            position: header.last(),
            hash,
            term: header.term,
            writer: header.writer,
            lineage: header.lineage,
            time: header.time,
        }
    }

    /// Returns the position of the next event.
    pub const fn next(&self) -> Position {
        self.position.plus(1)
    }

    /// Returns the header parts of the same writer's next record.
    pub fn follow(&self, by: &WriterIdentity, now: Time, watermark: Option<InboxWatermark>) -> HeaderParts {
        HeaderParts {
            fleet: by.fleet.clone(),
            lineage: self.lineage,
            first: self.next(),
            term: self.term,
            writer: by.writer,
            time: self.time.max(now),
            build: by.build.clone(),
            starts: None,
            watermark,
            prev: self.hash,
        }
    }

    /// Returns the header parts of the record by which `by` takes over.
    pub fn take_over(
        &self,
        by: &WriterIdentity,
        now: Time,
        watermark: Option<InboxWatermark>,
    ) -> HeaderParts {
        let parts = self.follow(by, now, watermark);
        HeaderParts { term: self.term.next(), starts: Some(RecordStart::Term), ..parts }
    }

    /// Returns the header parts of the record by which `by` starts another lineage.
    pub fn renew(&self, by: &WriterIdentity, now: Time, lineage: Lineage) -> HeaderParts {
        let begins = Some(RecordStart::Lineage { previous: self.lineage });
        HeaderParts { term: self.term.next(), lineage, starts: begins, ..self.follow(by, now, None) }
    }
}

/// Returns the header parts of a journal's first record.
pub fn genesis(by: &WriterIdentity, now: Time, lineage: Lineage) -> HeaderParts {
    HeaderParts {
        fleet: by.fleet.clone(),
        lineage,
        first: Position::FIRST,
        term: Term::FIRST,
        writer: by.writer,
        time: now,
        build: by.build.clone(),
        starts: Some(RecordStart::Term),
        watermark: None,
        prev: RecordHash::ZERO,
    }
}

/// Reason why a record is skipped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum SkipReason {
    /// The bytes do not start with a record header.
    #[error("invalid record header")]
    Noise,
    /// The record belongs to another fleet.
    #[error("invalid fleet: the record belongs to another fleet")]
    Fleet,
    /// The chain already contains the first position of the record.
    #[error("invalid first position: already taken; the record is a duplicate, or its writer is fenced")]
    Taken,
    /// Records before this one are missing.
    #[error("invalid first position: records before it are missing")]
    Gap,
    /// The record continues a record other than the last valid one.
    #[error("invalid previous hash: not that of the last valid record")]
    Prev,
    /// The record is of another lineage, or starts one incorrectly.
    #[error("invalid lineage: not the current one, or started incorrectly")]
    Lineage,
    /// The term of the record has ended or never started.
    #[error("invalid term: ended, or never started")]
    Term,
    /// Another writer started the term of the record.
    #[error("invalid writer: another writer has the term")]
    Writer,
}

/// Applies the validity rule. Returns the cursor after a valid record, or the reason why the record is skipped. `at` is
/// `None` before the first record; `hash` is that of the record's bytes.
pub fn judge(
    at: Option<&ChainCursor>,
    fleet: &str,
    header: &RecordHeader,
    hash: RecordHash,
) -> Result<ChainCursor, SkipReason> {
    let refusal = if *header.fleet == *fleet { refusal(at, header) } else { Some(SkipReason::Fleet) };
    refusal.map_or_else(|| Ok(ChainCursor::behind(header, hash)), Err)
}

fn refusal(at: Option<&ChainCursor>, header: &RecordHeader) -> Option<SkipReason> {
    let (next, prev) = at.map_or((Position::FIRST, RecordHash::ZERO), |at| (at.next(), at.hash));
    if header.first != next {
        return Some(if header.first < next { SkipReason::Taken } else { SkipReason::Gap });
    }
    if header.prev != prev {
        return Some(SkipReason::Prev);
    }
    let Some(at) = at else {
        return match header.starts {
            Some(RecordStart::Term) if header.term == Term::FIRST => None,
            Some(RecordStart::Term) | None => Some(SkipReason::Term),
            Some(RecordStart::Lineage { .. }) => Some(SkipReason::Lineage),
        };
    };
    let is_same = header.lineage == at.lineage && header.term == at.term && header.writer == at.writer;
    match header.starts {
        Some(RecordStart::Lineage { previous }) if previous != at.lineage || header.lineage == at.lineage => {
            Some(SkipReason::Lineage)
        }
        None | Some(RecordStart::Term) if is_same => None,
        None | Some(RecordStart::Term) if header.lineage != at.lineage => Some(SkipReason::Lineage),
        Some(RecordStart::Term | RecordStart::Lineage { .. }) if header.term == at.term.next() => None,
        Some(RecordStart::Term | RecordStart::Lineage { .. }) => Some(SkipReason::Term),
        None if header.term == at.term => Some(SkipReason::Writer),
        None => Some(SkipReason::Term),
    }
}

/// Record that continues the chain but cannot be accepted: the reader must stop.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChainError {
    /// The body cannot be read.
    #[error("cannot accept record at position {position}")]
    Body {
        /// First position of the record.
        position: Position,
        /// Reason why the body is invalid.
        source: InvalidBody,
    },
    /// The time is before that of the previous record.
    #[error(
        "cannot accept record at position {position}: its time {time} is before the previous record's, {last}"
    )]
    Time {
        /// First position of the record.
        position: Position,
        /// Time of the record.
        time: Time,
        /// Time of the previous record.
        last: Time,
    },
    /// The record starts a term that has already started.
    #[error("cannot accept record at position {position}: it starts term {term}, which has already started")]
    Begun {
        /// First position of the record.
        position: Position,
        /// Term that the record starts.
        term: Term,
    },
}

impl ChainError {
    /// Returns the first position of the record.
    pub const fn position(&self) -> Position {
        match self {
            ChainError::Body { position, .. }
            | ChainError::Time { position, .. }
            | ChainError::Begun { position, .. } => *position,
        }
    }
}

/// Returns the error for a record of a format before this build's.
pub(crate) fn old_format(header: &RecordHeader) -> Option<ChainError> {
    let (position, found) = (header.first, header.format);
    (found < FORMAT).then_some(ChainError::Body { position, source: InvalidBody::Format { found } })
}

/// Result of reading an entry of a log.
#[derive(Debug)]
pub enum ChainEntry {
    /// Next valid record.
    Record(Record),
    /// Entry that is not part of the chain.
    Skip(SkippedRecord),
}

/// Log entry that was skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SkippedRecord {
    /// Reason for the skip.
    pub reason: SkipReason,
    /// Hash of the entry's bytes, by which a writer recognizes its own records.
    pub hash: RecordHash,
}

impl fmt::Display for SkippedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: {}", self.hash, self.reason)
    }
}

/// Reader of a chain: applies the validity rule to the entries of a log, in order.
#[derive(Clone, Debug)]
pub struct ChainReader {
    fleet: Arc<str>,
    at: Option<ChainCursor>,
}

impl ChainReader {
    /// Creates a reader that continues after `at`, or starts before the first record if `None`.
    pub const fn new(fleet: Arc<str>, at: Option<ChainCursor>) -> ChainReader {
        ChainReader { fleet, at }
    }

    /// Returns the cursor after the last valid record; `None` before the first.
    pub const fn at(&self) -> Option<&ChainCursor> {
        self.at.as_ref()
    }

    /// Returns the first position of the next valid record.
    pub fn next(&self) -> Position {
        self.at.map_or(Position::FIRST, |at| at.next())
    }

    /// Returns the fleet that the journal belongs to.
    pub const fn fleet(&self) -> &Arc<str> {
        &self.fleet
    }

    /// Accepts the next entry of the log. Does not advance on an error.
    pub fn take(&mut self, bytes: impl Into<Arc<[u8]>>) -> Result<ChainEntry, ChainError> {
        let bytes = bytes.into();
        let hash = RecordHash::of(&bytes);
        let Ok((header, body)) = RecordHeader::peek(&bytes) else {
            return Ok(ChainEntry::Skip(SkippedRecord { reason: SkipReason::Noise, hash }));
        };
        if let Some(error) = self.old_format(&header) {
            return Err(error);
        }
        let cursor = match self.judge(&header, hash)? {
            Ok(cursor) => cursor,
            Err(reason) => return Ok(ChainEntry::Skip(SkippedRecord { reason, hash })),
        };
        let position = header.first;
        let record = Record::from_parts(header, body, hash, bytes)
            .map_err(|source| ChainError::Body { position, source })?;
        self.at = Some(cursor);
        Ok(ChainEntry::Record(record))
    }

    /// Returns the error for a record of format 1 that continues the chain: the validity rule does not apply,
    /// because this build does not know all keys of its header.
    fn old_format(&self, header: &RecordHeader) -> Option<ChainError> {
        let prev = self.at.map_or(RecordHash::ZERO, |at| at.hash);
        let continues = *header.fleet == *self.fleet && header.first == self.next() && header.prev == prev;
        if continues { old_format(header) } else { None }
    }

    /// Accepts a record that its writer already has, or returns the reason why the record is skipped.
    pub fn take_record(&mut self, record: &Record) -> Result<Result<(), SkipReason>, ChainError> {
        Ok(self.judge(record.header(), record.hash())?.map(|cursor| self.at = Some(cursor)))
    }

    fn judge(
        &self,
        header: &RecordHeader,
        hash: RecordHash,
    ) -> Result<Result<ChainCursor, SkipReason>, ChainError> {
        let judgement = judge(self.at.as_ref(), &self.fleet, header, hash);
        if let (Ok(_), Some(at)) = (judgement, &self.at) {
            let position = header.first;
            if header.time < at.time {
                return Err(ChainError::Time { position, time: header.time, last: at.time });
            }
            if header.starts.is_some() && header.term == at.term {
                return Err(ChainError::Begun { position, term: at.term });
            }
        }
        Ok(judgement)
    }
}

#[cfg(test)]
mod tests;
