//! The chain and the validity rule, the same for every journal and every reader.
//!
//! | the header | after no record | after a valid record |
//! |---|---|---|
//! | first position | 1 | the next one |
//! | previous hash | zero | the hash of the last valid record |
//! | fleet | the journal's | the journal's |
//! | begins nothing | skipped | lineage, term and writer are those of the last valid record |
//! | begins a term | term 1 | same lineage, term exactly one higher, any writer |
//! | begins a lineage | skipped | names the last lineage as previous, is another one, term exactly one higher |
//!
//! Anything else is skipped and counted, and does not influence the rule: a fenced writer's late append, a
//! duplicate after a reconnect, noise. So the log itself decides who wins, and a zombie is harmless. The rule reads
//! the header only. What continues the chain but cannot be taken as it is stops the reader and is never skipped: a
//! body that cannot be read, a time before that of the last valid record (the rule does not know the time, but
//! nothing that reads a journal could live with it), a term that begins although it has begun.

use std::fmt;
use std::sync::Arc;

use chancery_events::id::{Lineage, Position, Term, Writer};
use chancery_events::record::{BadBody, Begins, Hash, Header, HeaderParts, Record, Watermark};
use chancery_events::time::Time;
use serde::{Deserialize, Serialize};

/// Where a reader stands: after a valid record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cursor {
    /// The position of the last event.
    pub position: Position,
    /// The hash of the last record.
    pub hash: Hash,
    /// The term.
    pub term: Term,
    /// Who writes in it.
    pub writer: Writer,
    /// The lineage.
    pub lineage: Lineage,
    /// The time of the last record.
    pub time: Time,
}

/// What a writer says of itself in each of its records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// Whose journal it is.
    pub fleet: Arc<str>,
    /// The writer's build.
    pub build: Arc<str>,
    /// The writer's start.
    pub writer: Writer,
}

impl Cursor {
    /// The place after `record`, valid or not: for a writer that goes on before its record is durable.
    pub fn after(record: &Record) -> Cursor {
        Cursor::behind(record.header(), record.hash())
    }

    pub(crate) fn behind(header: &Header, hash: Hash) -> Cursor {
        Cursor {
            position: header.last(),
            hash,
            term: header.term,
            writer: header.writer,
            lineage: header.lineage,
            time: header.time,
        }
    }

    /// The position of the next event.
    pub const fn next(&self) -> Position {
        self.position.plus(1)
    }

    /// The parts of the next record by the same writer.
    pub fn follow(&self, by: &Signature, now: Time, watermark: Option<Watermark>) -> HeaderParts {
        HeaderParts {
            fleet: by.fleet.clone(),
            lineage: self.lineage,
            first: self.next(),
            term: self.term,
            writer: by.writer,
            time: self.time.max(now),
            build: by.build.clone(),
            begins: None,
            watermark,
            prev: self.hash,
        }
    }

    /// The parts of the record with which `by` takes over.
    pub fn take_over(&self, by: &Signature, now: Time, watermark: Option<Watermark>) -> HeaderParts {
        let parts = self.follow(by, now, watermark);
        HeaderParts { term: self.term.next(), begins: Some(Begins::Term), ..parts }
    }

    /// The parts of the record with which `by` begins another lineage.
    pub fn renew(&self, by: &Signature, now: Time, lineage: Lineage) -> HeaderParts {
        let begins = Some(Begins::Lineage { previous: self.lineage });
        HeaderParts { term: self.term.next(), lineage, begins, ..self.follow(by, now, None) }
    }
}

/// The parts of a journal's first record.
pub fn genesis(by: &Signature, now: Time, lineage: Lineage) -> HeaderParts {
    HeaderParts {
        fleet: by.fleet.clone(),
        lineage,
        first: Position::FIRST,
        term: Term::FIRST,
        writer: by.writer,
        time: now,
        build: by.build.clone(),
        begins: Some(Begins::Term),
        watermark: None,
        prev: Hash::ZERO,
    }
}

/// Why a record does not count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, thiserror::Error)]
pub enum SkipReason {
    /// Nothing of ours.
    #[error("it has no header of a record")]
    Noise,
    /// Another fleet's.
    #[error("it is another fleet's")]
    Fleet,
    /// Its positions are taken.
    #[error("its positions are taken: a duplicate, or a writer that was overtaken")]
    Taken,
    /// Records between it and the last valid one are missing.
    #[error("it does not follow: records before it are missing")]
    Gap,
    /// It continues another record.
    #[error("it continues another record than the last valid one")]
    Prev,
    /// It is of another lineage, or begins one wrongly.
    #[error("it is of another lineage")]
    Lineage,
    /// Its term is over, or was never begun.
    #[error("it is of another term")]
    Term,
    /// Another writer holds the term.
    #[error("another writer holds its term")]
    Writer,
}

/// What the rule says of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// It counts; the reader stands behind it now.
    Valid(Cursor),
    /// It does not.
    Skip(SkipReason),
}

/// The rule. `at` is `None` before the first record; `hash` is that of the record's bytes.
pub fn judge(at: Option<&Cursor>, fleet: &str, header: &Header, hash: Hash) -> Judgement {
    let refusal = if *header.fleet == *fleet { refusal(at, header) } else { Some(SkipReason::Fleet) };
    match refusal {
        Some(reason) => Judgement::Skip(reason),
        None => Judgement::Valid(Cursor::behind(header, hash)),
    }
}

fn refusal(at: Option<&Cursor>, header: &Header) -> Option<SkipReason> {
    let (next, prev) = at.map_or((Position::FIRST, Hash::ZERO), |at| (at.next(), at.hash));
    if header.first != next {
        return Some(if header.first < next { SkipReason::Taken } else { SkipReason::Gap });
    }
    if header.prev != prev {
        return Some(SkipReason::Prev);
    }
    let Some(at) = at else {
        return match header.begins {
            Some(Begins::Term) if header.term == Term::FIRST => None,
            Some(Begins::Term) | None => Some(SkipReason::Term),
            Some(Begins::Lineage { .. }) => Some(SkipReason::Lineage),
        };
    };
    let is_same = header.lineage == at.lineage && header.term == at.term && header.writer == at.writer;
    match header.begins {
        Some(Begins::Lineage { previous }) if previous != at.lineage || header.lineage == at.lineage => {
            Some(SkipReason::Lineage)
        }
        None | Some(Begins::Term) if is_same => None,
        None | Some(Begins::Term) if header.lineage != at.lineage => Some(SkipReason::Lineage),
        Some(Begins::Term | Begins::Lineage { .. }) if header.term == at.term.next() => None,
        Some(Begins::Term | Begins::Lineage { .. }) => Some(SkipReason::Term),
        None if header.term == at.term => Some(SkipReason::Writer),
        None => Some(SkipReason::Term),
    }
}

/// A record continues the chain but cannot be taken: the reader must stop.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Broken {
    /// Its body cannot be read.
    #[error("take the record at position {position}")]
    Body {
        /// Its first position.
        position: Position,
        /// What is wrong.
        source: BadBody,
    },
    /// Its time is before that of the record before it.
    #[error("take the record at position {position}: its time {time} is before the last record's, {last}")]
    Time {
        /// Its first position.
        position: Position,
        /// Its time.
        time: Time,
        /// The time of the record before it.
        last: Time,
    },
    /// It begins a term that has begun.
    #[error("take the record at position {position}: it begins term {term}, which has begun")]
    Begun {
        /// Its first position.
        position: Position,
        /// The term.
        term: Term,
    },
}

impl Broken {
    /// The first position of the record.
    pub const fn position(&self) -> Position {
        match self {
            Broken::Body { position, .. }
            | Broken::Time { position, .. }
            | Broken::Begun { position, .. } => *position,
        }
    }
}

/// What a reader makes of bytes in a log.
#[derive(Debug)]
pub enum Link {
    /// The next valid record.
    Record(Record),
    /// Not for us.
    Skip(Skipped),
}

/// What was skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// Why.
    pub reason: SkipReason,
    /// The hash of its bytes: a writer knows its own by it.
    pub hash: Hash,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: {}", self.hash, self.reason)
    }
}

/// A reader's place in a chain: judges what a log holds, in the log's order.
#[derive(Clone, Debug)]
pub struct Chain {
    fleet: Arc<str>,
    at: Option<Cursor>,
}

impl Chain {
    /// Stands behind `at`; before the first record if `None`.
    pub const fn new(fleet: Arc<str>, at: Option<Cursor>) -> Chain {
        Chain { fleet, at }
    }

    /// Where it stands.
    pub const fn at(&self) -> Option<&Cursor> {
        self.at.as_ref()
    }

    /// The next position.
    pub fn next(&self) -> Position {
        self.at.map_or(Position::FIRST, |at| at.next())
    }

    /// Whose journal it is.
    pub const fn fleet(&self) -> &Arc<str> {
        &self.fleet
    }

    /// Takes what the log holds next. Does not move on an error.
    pub fn take(&mut self, bytes: impl Into<Arc<[u8]>>) -> Result<Link, Broken> {
        let bytes = bytes.into();
        let hash = Hash::of(&bytes);
        let Ok((header, body)) = Header::peek(&bytes) else {
            return Ok(Link::Skip(Skipped { reason: SkipReason::Noise, hash }));
        };
        let cursor = match self.judge(&header, hash)? {
            Judgement::Valid(cursor) => cursor,
            Judgement::Skip(reason) => return Ok(Link::Skip(Skipped { reason, hash })),
        };
        let position = header.first;
        let record = Record::from_parts(header, body, hash, bytes)
            .map_err(|source| Broken::Body { position, source })?;
        self.at = Some(cursor);
        Ok(Link::Record(record))
    }

    /// Takes a record that its writer holds already: the reason if it does not count.
    pub fn take_record(&mut self, record: &Record) -> Result<Result<(), SkipReason>, Broken> {
        match self.judge(record.header(), record.hash())? {
            Judgement::Skip(reason) => Ok(Err(reason)),
            Judgement::Valid(cursor) => {
                self.at = Some(cursor);
                Ok(Ok(()))
            }
        }
    }

    fn judge(&self, header: &Header, hash: Hash) -> Result<Judgement, Broken> {
        let judgement = judge(self.at.as_ref(), &self.fleet, header, hash);
        if let (Judgement::Valid(_), Some(at)) = (judgement, &self.at) {
            let position = header.first;
            if header.time < at.time {
                return Err(Broken::Time { position, time: header.time, last: at.time });
            }
            if header.begins.is_some() && header.term == at.term {
                return Err(Broken::Begun { position, term: at.term });
            }
        }
        Ok(judgement)
    }
}

#[cfg(test)]
mod tests;
