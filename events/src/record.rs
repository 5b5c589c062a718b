//! Bytes of a record: one commit of the decider, as a journal stores it permanently.
//!
//! ```text
//! {"chancery":2,"fleet":"default","lineage":"…","first":1,"count":2,"term":1,"writer":"…","time":…,"build":"…","starts":"term","prev":"…"}
//! {"k":"fact","t":"term.started.v1", …}
//! {"k":"fact", …}
//! ```
//! A record is one header line, then one line of compact JSON per event, each with its line feed. Invariants:
//! - The bytes are hashed as stored and never written again in another form.
//! - Every later format keeps the header's keys and their meaning, so that any build can check any record by
//!   its header alone. Format 1 has another key for the start of a term: its number alone refuses it.
//! - A [`Record`] always has a readable body.
//! - The first event matches the header.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::id::{Lineage, Position, Term, WriterId};
use crate::time::Time;

/// The format that this build writes, and the only one whose body it reads.
pub const FORMAT: u32 = 2;
/// Maximum size of a record, in bytes, header included.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of events of a record.
pub const MAX_EVENTS: usize = 1000;
/// Bytes that a [`RecordDraft`] reserves for the header: more than any names of a fleet, a build and a topic
/// need.
pub const HEADER_ROOM: usize = 1024;

/// Type of the event that starts a term.
pub const TERM_STARTED: &str = "term.started.v1";
/// Type of the event that starts a lineage.
pub const LINEAGE_STARTED: &str = "lineage.started.v1";

/// SHA-256 of a record's bytes as stored, or of a state. Its text form has 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordHash([u8; 32]);

impl RecordHash {
    /// Hash before the first record.
    pub const ZERO: RecordHash = RecordHash([0; 32]);

    /// Returns the hash of the bytes.
    pub fn of(bytes: &[u8]) -> RecordHash {
        RecordHash(Sha256::digest(bytes).into())
    }

    /// Returns the hash with the bytes of a SHA-256 that was computed elsewhere.
    pub const fn from_bytes(bytes: [u8; 32]) -> RecordHash {
        RecordHash(bytes)
    }

    /// Bytes of the hash.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for RecordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0; 64];
        HEXLOWER.encode_mut(&self.0, &mut text);
        f.write_str(str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for RecordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid hash: must have 64 lower-case hexadecimal digits")]
pub struct InvalidHash;

impl FromStr for RecordHash {
    type Err = InvalidHash;
    fn from_str(text: &str) -> Result<RecordHash, InvalidHash> {
        let mut bytes = [0; 32];
        if text.len() != 64 {
            return Err(InvalidHash);
        }
        HEXLOWER.decode_mut(text.as_bytes(), &mut bytes).map_err(|_| InvalidHash)?;
        Ok(RecordHash(bytes))
    }
}

impl JsonSchema for RecordHash {
    fn schema_name() -> Cow<'static, str> {
        "RecordHash".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[0-9a-f]{64}$" })
    }
}

impl Serialize for RecordHash {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RecordHash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RecordHash, D::Error> {
        struct RecordHashVisitor;
        impl Visitor<'_> for RecordHashVisitor {
            type Value = RecordHash;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("64 lower-case hexadecimal digits")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<RecordHash, E> {
                text.parse().map_err(E::custom)
            }
        }
        from.deserialize_str(RecordHashVisitor)
    }
}

/// Term or lineage that a record starts. A record that continues term and writer starts neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordStart {
    /// Term: the first event is [`TERM_STARTED`].
    Term,
    /// Lineage, and with it the next term: the first event is [`LINEAGE_STARTED`].
    Lineage {
        /// Lineage before this record.
        previous: Lineage,
    },
}

/// Offset in the inbox up to which all input is answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InboxWatermark {
    /// Name of the inbox with its id, so that a recreated inbox of that name is distinguished.
    pub topic: Arc<str>,
    /// Offset of the first input that is not answered yet.
    pub next: u64,
}

/// First line of a record.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "HeaderLine", into = "HeaderLine")]
pub struct RecordHeader {
    /// Format of the record: [`FORMAT`], or the format of a newer build.
    pub format: u32,
    /// Fleet of the journal.
    pub fleet: Arc<str>,
    /// Lineage of the journal.
    pub lineage: Lineage,
    /// Position of the first event.
    pub first: Position,
    /// Number of events, at least 1.
    pub count: u32,
    /// Term of the decider.
    pub term: Term,
    /// Id of the decider's start.
    pub writer: WriterId,
    /// Time of the commit; not before the time of the previous record.
    pub time: Time,
    /// Build that wrote the record.
    pub build: Arc<str>,
    /// Term or lineage that the record starts, if any.
    pub starts: Option<RecordStart>,
    /// Inbox offset up to which all input is answered, if the fleet has an inbox outside the process.
    pub watermark: Option<InboxWatermark>,
    /// Hash of the previous record's bytes.
    pub prev: RecordHash,
}

/// Header as it is written. The order of the fields is the order of the keys.
#[derive(Serialize, Deserialize)]
struct HeaderLine {
    chancery: u32,
    fleet: Arc<str>,
    lineage: Lineage,
    first: Position,
    count: u32,
    term: Term,
    writer: WriterId,
    time: Time,
    build: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    starts: Option<RecordStartName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous: Option<Lineage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    watermark: Option<InboxWatermark>,
    prev: RecordHash,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RecordStartName {
    Term,
    Lineage,
}

impl From<RecordHeader> for HeaderLine {
    fn from(header: RecordHeader) -> HeaderLine {
        let (begins, previous) = match header.starts {
            None => (None, None),
            Some(RecordStart::Term) => (Some(RecordStartName::Term), None),
            Some(RecordStart::Lineage { previous }) => (Some(RecordStartName::Lineage), Some(previous)),
        };
        HeaderLine {
            chancery: header.format,
            fleet: header.fleet,
            lineage: header.lineage,
            first: header.first,
            count: header.count,
            term: header.term,
            writer: header.writer,
            time: header.time,
            build: header.build,
            starts: begins,
            previous,
            watermark: header.watermark,
            prev: header.prev,
        }
    }
}

impl TryFrom<HeaderLine> for RecordHeader {
    type Error = &'static str;
    fn try_from(line: HeaderLine) -> Result<RecordHeader, &'static str> {
        let starts = match (line.starts, line.previous) {
            (None, None) => None,
            (Some(RecordStartName::Term), None) => Some(RecordStart::Term),
            (Some(RecordStartName::Lineage), Some(previous)) => Some(RecordStart::Lineage { previous }),
            (None | Some(RecordStartName::Term), Some(_)) => {
                return Err("previous lineage without the start of a lineage");
            }
            (Some(RecordStartName::Lineage), None) => {
                return Err("start of a lineage without the previous lineage");
            }
        };
        // Sums of positions or terms cannot overflow after this check.
        let last = line.first.get().saturating_add(u64::from(line.count));
        if line.first == Position::ZERO || line.count == 0 || last > Position::MAX.get() {
            return Err("positions out of range");
        }
        if line.term.get() == 0 || line.term.get() == u64::MAX {
            return Err("term out of range");
        }
        Ok(RecordHeader {
            format: line.chancery,
            fleet: line.fleet,
            lineage: line.lineage,
            first: line.first,
            count: line.count,
            term: line.term,
            writer: line.writer,
            time: line.time,
            build: line.build,
            starts,
            watermark: line.watermark,
            prev: line.prev,
        })
    }
}

/// Bytes without a valid record header: an invalid record, which a reader skips and counts.
#[derive(Debug, thiserror::Error)]
#[error("cannot read record header")]
pub struct NotARecord(#[source] serde_json::Error);

/// Reason why a record body cannot be read. If the header continues the chain, the reader stops.
#[derive(Debug, Clone, thiserror::Error)]
pub enum InvalidBody {
    /// Another build wrote the record: a newer one, which must read it, or one before 0.1.0.
    #[error(
        "cannot read record of format {found}: this build reads only format {FORMAT}; format 1 was written by builds before 0.1.0"
    )]
    Format {
        /// Format of the record.
        found: u32,
    },
    /// No writer of this format produces the bytes: the record is damaged, or its writer is broken.
    #[error("cannot read record body: {0}")]
    Shape(&'static str),
    /// The first event and the header disagree about the start of a term or lineage.
    #[error("cannot read record body: first event does not match the header")]
    Starts,
}

/// Reason why bytes are not a record.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRecord {
    /// The bytes have no valid header: an invalid record, which a reader skips and counts.
    #[error(transparent)]
    NotARecord(#[from] NotARecord),
    /// The header is valid, but its body cannot be read.
    #[error(transparent)]
    Body(#[from] InvalidBody),
}

impl RecordHeader {
    /// Position of the last event.
    pub const fn last(&self) -> Position {
        Position::new(self.first.get() + self.count as u64 - 1)
    }

    /// Reads the header of a record of any format, and returns it with the offset of the body.
    pub fn peek(bytes: &[u8]) -> Result<(RecordHeader, usize), NotARecord> {
        let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
        let header = serde_json::from_slice(&bytes[..end]).map_err(NotARecord)?;
        if end == bytes.len() {
            return Err(NotARecord(serde_json::Error::custom("header line has no line feed")));
        }
        Ok((header, end + 1))
    }

    /// Checks the body as far as is possible without knowing the events. Checked are format, limits, number
    /// of lines, `{` and `}` at the ends of each line, and the type of the first event.
    pub fn check_body(&self, body: &[u8]) -> Result<(), InvalidBody> {
        if self.format != FORMAT {
            return Err(InvalidBody::Format { found: self.format });
        }
        if self.count as usize > MAX_EVENTS {
            return Err(InvalidBody::Shape("exceeds the limits"));
        }
        let text = str::from_utf8(body).map_err(|_| InvalidBody::Shape("not UTF-8"))?;
        let lines = text.strip_suffix('\n').ok_or(InvalidBody::Shape("last line has no line feed"))?;
        let mut count = 0;
        for line in lines.split('\n') {
            if !(line.starts_with('{') && line.ends_with('}')) {
                return Err(InvalidBody::Shape("a line is not a JSON object"));
            }
            count += 1;
        }
        if count != self.count {
            return Err(InvalidBody::Shape("number of events differs from the header"));
        }
        let first = lines.split('\n').next().unwrap_or_default();
        if self.starts == starts_of(first, self.starts)? { Ok(()) } else { Err(InvalidBody::Starts) }
    }
}

/// Returns what the first event starts. `claim` supplies the previous lineage, which is also in the event's
/// data but is not read from there.
fn starts_of(line: &str, claim: Option<RecordStart>) -> Result<Option<RecordStart>, InvalidBody> {
    #[derive(Deserialize)]
    struct FirstEventType<'a> {
        #[serde(borrow)]
        t: std::borrow::Cow<'a, str>,
    }
    // Hardly any record starts a term or lineage, and searching for two strings is far cheaper than parsing
    // the line.
    if claim.is_none() && !line.contains(TERM_STARTED) && !line.contains(LINEAGE_STARTED) {
        return Ok(None);
    }
    let first: FirstEventType<'_> =
        serde_json::from_str(line).map_err(|_| InvalidBody::Shape("first event is not JSON"))?;
    Ok(match (&*first.t, claim) {
        (TERM_STARTED, _) => Some(RecordStart::Term),
        (LINEAGE_STARTED, Some(RecordStart::Lineage { previous })) => Some(RecordStart::Lineage { previous }),
        (LINEAGE_STARTED, None | Some(RecordStart::Term)) => return Err(InvalidBody::Starts),
        _ => None,
    })
}

/// Record: one commit, with its header, its events, and the hash of both.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    header: RecordHeader,
    bytes: Arc<[u8]>,
    body: usize,
    hash: RecordHash,
}

impl Record {
    /// Reads a record and hashes its bytes as they are.
    pub fn decode(bytes: impl Into<Arc<[u8]>>) -> Result<Record, InvalidRecord> {
        let bytes = bytes.into();
        let (header, body) = RecordHeader::peek(&bytes)?;
        let hash = RecordHash::of(&bytes);
        Ok(Record::from_parts(header, body, hash, bytes)?)
    }

    /// Returns a record from the parts that [`RecordHeader::peek`] returned, so that a reader that has
    /// checked the header does not read it twice. `hash` is the hash of `bytes`.
    pub fn from_parts(
        header: RecordHeader,
        body: usize,
        hash: RecordHash,
        bytes: Arc<[u8]>,
    ) -> Result<Record, InvalidBody> {
        if bytes.len() > MAX_BYTES {
            return Err(InvalidBody::Shape("exceeds the limits"));
        }
        header.check_body(bytes.get(body..).unwrap_or_default())?;
        Ok(Record { header, bytes, body, hash })
    }

    /// Header of the record.
    pub const fn header(&self) -> &RecordHeader {
        &self.header
    }

    /// Bytes of the record, exactly as stored.
    pub const fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// Hash of the bytes.
    pub const fn hash(&self) -> RecordHash {
        self.hash
    }

    /// Position of the first event.
    pub const fn first(&self) -> Position {
        self.header.first
    }

    /// Position of the last event.
    pub const fn last(&self) -> Position {
        self.header.last()
    }

    /// Returns the lines of the events, without line feeds, each with its position.
    pub fn events(&self) -> impl Iterator<Item = (Position, &[u8])> {
        let body = &self.bytes[self.body..];
        let lines = body.strip_suffix(b"\n").unwrap_or(body).split(|b| *b == b'\n');
        lines.zip(self.first().get()..).map(|(line, position)| (Position::new(position), line))
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record {}..={} of term {} ({})", self.first(), self.last(), self.header.term, self.hash)
    }
}

/// Members of a header other than the format and the number of events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeaderParts {
    /// Fleet of the journal.
    pub fleet: Arc<str>,
    /// Lineage of the journal.
    pub lineage: Lineage,
    /// Position of the first event.
    pub first: Position,
    /// Term of the decider.
    pub term: Term,
    /// Id of the decider's start.
    pub writer: WriterId,
    /// Time of the commit; not before the time of the previous record.
    pub time: Time,
    /// Build that writes the record.
    pub build: Arc<str>,
    /// Term or lineage that the record starts, if any.
    pub starts: Option<RecordStart>,
    /// Inbox offset up to which all input is answered, if the fleet has an inbox outside the process.
    pub watermark: Option<InboxWatermark>,
    /// Hash of the previous record's bytes.
    pub prev: RecordHash,
}

/// Reason why an event was not added to a draft. The draft is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// The record is full: seal it, and add the event to the next record.
    #[error("cannot add event to record: record is full")]
    Full,
    /// The event is larger than any record can be.
    #[error("cannot add event of {bytes} bytes to record: exceeds the maximum size")]
    TooLarge {
        /// Size of the event, in bytes.
        bytes: usize,
    },
    /// The event is not one line in braces.
    #[error("cannot add event to record: not one line of JSON")]
    NotALine,
}

/// Draft of a record.
#[derive(Clone, Default, Debug)]
pub struct RecordDraft {
    body: Vec<u8>,
    count: u32,
}

/// State of a draft that can be restored.
#[derive(Clone, Copy, Debug)]
pub struct DraftMark {
    bytes: usize,
    count: u32,
}

impl RecordDraft {
    /// Returns a draft without events.
    pub fn new() -> RecordDraft {
        RecordDraft::default()
    }

    /// Number of events in the draft.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Whether the draft has no events.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Upper bound of the record's size if the draft were sealed now, in bytes.
    pub const fn bytes(&self) -> usize {
        HEADER_ROOM + self.body.len()
    }

    /// Whether `events` more lines with `bytes` in total, line feeds not counted, would fit.
    pub const fn fits(&self, events: usize, bytes: usize) -> bool {
        self.count as usize + events <= MAX_EVENTS && self.bytes() + bytes + events <= MAX_BYTES
    }

    /// Adds the line of one event, without line feed.
    pub fn push(&mut self, line: &[u8]) -> Result<(), DraftError> {
        if !RecordDraft::new().fits(1, line.len()) {
            return Err(DraftError::TooLarge { bytes: line.len() });
        }
        let is_object = line.first() == Some(&b'{') && line.last() == Some(&b'}');
        if !is_object || line.contains(&b'\n') {
            return Err(DraftError::NotALine);
        }
        if !self.fits(1, line.len()) {
            return Err(DraftError::Full);
        }
        self.body.extend_from_slice(line);
        self.body.push(b'\n');
        self.count += 1;
        Ok(())
    }

    /// Returns the current state of the draft, for [`Self::back_to`].
    pub const fn mark(&self) -> DraftMark {
        DraftMark { bytes: self.body.len(), count: self.count }
    }

    /// Removes the events that were added since `mark`.
    pub fn back_to(&mut self, mark: DraftMark) {
        self.body.truncate(mark.bytes);
        self.count = mark.count;
    }

    /// Seals the draft as a record. Refuses a draft without events, or whose first event does not match
    /// `parts`.
    pub fn seal(self, parts: HeaderParts) -> Result<Record, InvalidBody> {
        if self.count == 0 {
            return Err(InvalidBody::Shape("no events"));
        }
        let header = RecordHeader {
            format: FORMAT,
            fleet: parts.fleet,
            lineage: parts.lineage,
            first: parts.first,
            count: self.count,
            term: parts.term,
            writer: parts.writer,
            time: parts.time,
            build: parts.build,
            starts: parts.starts,
            watermark: parts.watermark,
            prev: parts.prev,
        };
        let mut bytes = Vec::with_capacity(self.bytes());
        serde_json::to_writer(&mut bytes, &header)
            .map_err(|_| InvalidBody::Shape("header cannot be written"))?;
        bytes.push(b'\n');
        let body = bytes.len();
        bytes.extend_from_slice(&self.body);
        let hash = RecordHash::of(&bytes);
        Record::from_parts(header, body, hash, bytes.into())
    }
}

#[cfg(test)]
mod tests;
