//! The bytes of a record: one commit of the decider, as it stands in a journal for ever.
//!
//! ```text
//! {"chancery":1,"fleet":"default","lineage":"…","first":1,"count":2,"term":1,"writer":"…","time":…,"build":"…","begins":"term","prev":"…"}
//! {"k":"fact","t":"term.started.v1", …}
//! {"k":"fact", …}
//! ```
//! One header line, then one line of compact JSON an event, each with its line feed. What must stay true: the bytes
//! are hashed as stored and never written again in another form; every later format keeps the header's keys and
//! their meaning, so that any build can judge any record by its header alone; a [`Record`] whose body cannot be
//! read does not exist. The first event agrees with what the header says that it begins.

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
pub const FORMAT: u32 = 1;
/// A record has at most so many bytes, header and all.
pub const MAX_BYTES: usize = 1 << 20;
/// A record has at most so many events.
pub const MAX_EVENTS: usize = 1000;
/// What a [`RecordDraft`] keeps free for the header: more than any names that a fleet, a build and a topic may have.
pub const HEADER_ROOM: usize = 1024;

/// The type of the event that begins a term.
pub const TERM_STARTED: &str = "term.started.v1";
/// The type of the event that begins a lineage.
pub const LINEAGE_STARTED: &str = "lineage.started.v1";

/// A SHA-256: of a record's bytes as stored, or of a state. 64 hexadecimal digits for people.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordHash([u8; 32]);

impl RecordHash {
    /// Stands before the first record.
    pub const ZERO: RecordHash = RecordHash([0; 32]);

    /// Hashes the bytes.
    pub fn of(bytes: &[u8]) -> RecordHash {
        RecordHash(Sha256::digest(bytes).into())
    }

    /// Takes the bytes of a SHA-256 made elsewhere.
    pub const fn from_bytes(bytes: [u8; 32]) -> RecordHash {
        RecordHash(bytes)
    }

    /// Gives the bytes.
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
#[error("write 64 lower-case hexadecimal digits")]
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

/// What a record begins, when it is not one more of the same term and writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordStart {
    /// A term: its first event is [`TERM_STARTED`].
    Term,
    /// A lineage, and with it the next term: its first event is [`LINEAGE_STARTED`].
    Lineage {
        /// The lineage so far.
        previous: Lineage,
    },
}

impl RecordStart {
    /// The type that the first event must have.
    pub const fn first_type(self) -> &'static str {
        match self {
            RecordStart::Term => TERM_STARTED,
            RecordStart::Lineage { .. } => LINEAGE_STARTED,
        }
    }
}

/// Up to where the inbox is answered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InboxWatermark {
    /// Names the inbox, with its id, so that another one of that name is told apart.
    pub topic: Arc<str>,
    /// The offset of the first input that is not answered yet.
    pub next: u64,
}

/// A record's first line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "HeaderLine", into = "HeaderLine")]
pub struct RecordHeader {
    /// The format: [`FORMAT`], or that of a newer build.
    pub format: u32,
    /// Whose journal it is.
    pub fleet: Arc<str>,
    /// Which journal it is.
    pub lineage: Lineage,
    /// The position of the first event.
    pub first: Position,
    /// How many events there are; at least one.
    pub count: u32,
    /// The decider's term.
    pub term: Term,
    /// The decider's start.
    pub writer: WriterId,
    /// When; not before the previous record's.
    pub time: Time,
    /// Which build wrote it.
    pub build: Arc<str>,
    /// What it begins.
    pub begins: Option<RecordStart>,
    /// Up to where the inbox is answered, when an inbox outside the process has such a thing.
    pub watermark: Option<InboxWatermark>,
    /// The hash of the previous record's bytes.
    pub prev: RecordHash,
}

/// The header as it is written. The order of the fields is the order of the keys.
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
    begins: Option<RecordStartName>,
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
        let (begins, previous) = match header.begins {
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
            begins,
            previous,
            watermark: header.watermark,
            prev: header.prev,
        }
    }
}

impl TryFrom<HeaderLine> for RecordHeader {
    type Error = &'static str;
    fn try_from(line: HeaderLine) -> Result<RecordHeader, &'static str> {
        let begins = match (line.begins, line.previous) {
            (None, None) => None,
            (Some(RecordStartName::Term), None) => Some(RecordStart::Term),
            (Some(RecordStartName::Lineage), Some(previous)) => Some(RecordStart::Lineage { previous }),
            (None | Some(RecordStartName::Term), Some(_)) => return Err("only a lineage has a previous one"),
            (Some(RecordStartName::Lineage), None) => {
                return Err("a lineage begins without its previous one");
            }
        };
        // So that no sum of positions or terms can overflow behind this point.
        let last = line.first.get().saturating_add(u64::from(line.count));
        if line.first == Position::ZERO || line.count == 0 || last > Position::MAX.get() {
            return Err("the positions are not of a journal");
        }
        if line.term.get() == 0 || line.term.get() == u64::MAX {
            return Err("the term is not of a journal");
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
            begins,
            watermark: line.watermark,
            prev: line.prev,
        })
    }
}

/// Bytes without a header of ours: noise, which a reader skips and counts.
#[derive(Debug, thiserror::Error)]
#[error("read a record's header")]
pub struct NotARecord(#[source] serde_json::Error);

/// A body that cannot be read. Under a header that continues the chain it stops the reader.
#[derive(Debug, Clone, thiserror::Error)]
pub enum InvalidBody {
    /// A newer build wrote it: this one must be replaced.
    #[error("read a record of format {found}: this build reads format {FORMAT} only")]
    Format {
        /// The format.
        found: u32,
    },
    /// Its bytes are not what a writer of this format makes: damage, or a broken writer.
    #[error("read the body of a record: {0}")]
    Shape(&'static str),
    /// The header and the first event do not say the same about what begins.
    #[error("read the body of a record: its first event does not agree with what the header begins")]
    Begins,
}

/// Bytes that are no record.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRecord {
    /// No header of ours: noise.
    #[error(transparent)]
    NotARecord(#[from] NotARecord),
    /// A header of ours over a body that cannot be read.
    #[error(transparent)]
    Body(#[from] InvalidBody),
}

impl RecordHeader {
    /// The position of the last event.
    pub const fn last(&self) -> Position {
        Position::new(self.first.get() + self.count as u64 - 1)
    }

    /// Reads the header of a record of whatever format, and where its body begins.
    pub fn peek(bytes: &[u8]) -> Result<(RecordHeader, usize), NotARecord> {
        let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
        let header = serde_json::from_slice(&bytes[..end]).map_err(NotARecord)?;
        if end == bytes.len() {
            return Err(NotARecord(serde_json::Error::custom("the header's line does not end")));
        }
        Ok((header, end + 1))
    }

    /// Checks that the body can be read, as far as that can be told without knowing the events: format, limits,
    /// as many lines as there are events, each with the look of a JSON object, the first of the type that begins
    /// what the header says.
    pub fn check_body(&self, body: &[u8]) -> Result<(), InvalidBody> {
        if self.format != FORMAT {
            return Err(InvalidBody::Format { found: self.format });
        }
        if self.count as usize > MAX_EVENTS {
            return Err(InvalidBody::Shape("it is over the limits"));
        }
        let text = str::from_utf8(body).map_err(|_| InvalidBody::Shape("it is not UTF-8"))?;
        let lines = text.strip_suffix('\n').ok_or(InvalidBody::Shape("its last line does not end"))?;
        let mut count = 0;
        for line in lines.split('\n') {
            if !(line.starts_with('{') && line.ends_with('}')) {
                return Err(InvalidBody::Shape("a line is not a JSON object"));
            }
            count += 1;
        }
        if count != self.count {
            return Err(InvalidBody::Shape("it does not have as many events as the header says"));
        }
        let first = lines.split('\n').next().unwrap_or_default();
        if self.begins == begins_of(first, self.begins)? { Ok(()) } else { Err(InvalidBody::Begins) }
    }
}

/// What the first event begins; `claim` lends the previous lineage, which stands in the event's data as well but
/// is not read from there.
fn begins_of(line: &str, claim: Option<RecordStart>) -> Result<Option<RecordStart>, InvalidBody> {
    #[derive(Deserialize)]
    struct FirstEventType<'a> {
        #[serde(borrow)]
        t: std::borrow::Cow<'a, str>,
    }
    // Hardly any record begins something, and a search for two words is far cheaper than reading the line.
    if claim.is_none() && !line.contains(TERM_STARTED) && !line.contains(LINEAGE_STARTED) {
        return Ok(None);
    }
    let first: FirstEventType<'_> =
        serde_json::from_str(line).map_err(|_| InvalidBody::Shape("its first event is not JSON"))?;
    Ok(match (&*first.t, claim) {
        (TERM_STARTED, _) => Some(RecordStart::Term),
        (LINEAGE_STARTED, Some(RecordStart::Lineage { previous })) => Some(RecordStart::Lineage { previous }),
        (LINEAGE_STARTED, None | Some(RecordStart::Term)) => return Err(InvalidBody::Begins),
        _ => None,
    })
}

/// One commit: a header, its events, and the hash of both.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    header: RecordHeader,
    bytes: Arc<[u8]>,
    body: usize,
    hash: RecordHash,
}

impl Record {
    /// Reads a record. The hash is that of the bytes as they are.
    pub fn decode(bytes: impl Into<Arc<[u8]>>) -> Result<Record, InvalidRecord> {
        let bytes = bytes.into();
        let (header, body) = RecordHeader::peek(&bytes)?;
        let hash = RecordHash::of(&bytes);
        Ok(Record::from_parts(header, body, hash, bytes)?)
    }

    /// Puts together what was taken apart by [`Header::peek`], so that a reader that has judged the header does
    /// not read it twice. `hash` is that of `bytes`.
    pub fn from_parts(
        header: RecordHeader,
        body: usize,
        hash: RecordHash,
        bytes: Arc<[u8]>,
    ) -> Result<Record, InvalidBody> {
        if bytes.len() > MAX_BYTES {
            return Err(InvalidBody::Shape("it is over the limits"));
        }
        header.check_body(bytes.get(body..).unwrap_or_default())?;
        Ok(Record { header, bytes, body, hash })
    }

    /// The first line.
    pub const fn header(&self) -> &RecordHeader {
        &self.header
    }

    /// Everything, exactly as stored.
    pub const fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// The hash of the bytes.
    pub const fn hash(&self) -> RecordHash {
        self.hash
    }

    /// The position of the first event.
    pub const fn first(&self) -> Position {
        self.header.first
    }

    /// The position of the last event.
    pub const fn last(&self) -> Position {
        self.header.last()
    }

    /// The events' lines, without their line feeds, each with its position.
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

/// What a header says beside the format and the number of events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeaderParts {
    /// Whose journal it is.
    pub fleet: Arc<str>,
    /// Which journal it is.
    pub lineage: Lineage,
    /// The position of the first event.
    pub first: Position,
    /// The decider's term.
    pub term: Term,
    /// The decider's start.
    pub writer: WriterId,
    /// When; not before the previous record's.
    pub time: Time,
    /// Which build writes it.
    pub build: Arc<str>,
    /// What it begins.
    pub begins: Option<RecordStart>,
    /// Up to where the inbox is answered.
    pub watermark: Option<InboxWatermark>,
    /// The hash of the previous record's bytes.
    pub prev: RecordHash,
}

/// Why an event was not put into a draft, which is as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// The record has no room left: seal it and put the event into the next one.
    #[error("put an event into a record: it is full")]
    Full,
    /// The event fits into no record.
    #[error("put an event of {bytes} bytes into a record: none can hold it")]
    TooLarge {
        /// How large it is.
        bytes: usize,
    },
    /// The event is not one line that looks like a JSON object.
    #[error("put an event into a record: it is not one line of JSON")]
    NotALine,
}

/// A record in the making.
#[derive(Clone, Default, Debug)]
pub struct RecordDraft {
    body: Vec<u8>,
    count: u32,
}

/// A place in a draft to go back to.
#[derive(Clone, Copy, Debug)]
pub struct DraftMark {
    bytes: usize,
    count: u32,
}

impl RecordDraft {
    /// Holds nothing yet.
    pub fn new() -> RecordDraft {
        RecordDraft::default()
    }

    /// How many events it holds.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Whether it holds none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// At least as many bytes as the record would have if it were sealed now.
    pub const fn bytes(&self) -> usize {
        HEADER_ROOM + self.body.len()
    }

    /// Whether `events` more lines with `bytes` in all, line feeds not counted, would fit.
    pub const fn fits(&self, events: usize, bytes: usize) -> bool {
        self.count as usize + events <= MAX_EVENTS && self.bytes() + bytes + events <= MAX_BYTES
    }

    /// Puts in one event's line, without line feed.
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

    /// Marks this place.
    pub const fn mark(&self) -> DraftMark {
        DraftMark { bytes: self.body.len(), count: self.count }
    }

    /// Takes out what was put in since `mark`.
    pub fn back_to(&mut self, mark: DraftMark) {
        self.body.truncate(mark.bytes);
        self.count = mark.count;
    }

    /// Makes the record. Refuses one without events, or whose first event does not agree with what it begins.
    pub fn seal(self, parts: HeaderParts) -> Result<Record, InvalidBody> {
        if self.count == 0 {
            return Err(InvalidBody::Shape("it has no events"));
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
            begins: parts.begins,
            watermark: parts.watermark,
            prev: parts.prev,
        };
        let mut bytes = Vec::with_capacity(self.bytes());
        serde_json::to_writer(&mut bytes, &header)
            .map_err(|_| InvalidBody::Shape("its header cannot be written"))?;
        bytes.push(b'\n');
        let body = bytes.len();
        bytes.extend_from_slice(&self.body);
        let hash = RecordHash::of(&bytes);
        Record::from_parts(header, body, hash, bytes.into())
    }
}

#[cfg(test)]
mod tests;
