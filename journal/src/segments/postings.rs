//! Postings: an index of the events about each subject in a segment, and of the facts with each cause.
//!
//! The postings of a closed segment are stored next to it in `<position>.post`. Numbers are little-endian.
//! ```text
//!  0  magic    8 bytes
//!  8  crc      u32, CRC-32C of everything after it; then 4 zero bytes
//! 16  first    u64, the segment's first position
//! 24  end      u64, the end of the segment's frames
//! 32  last     u64, the offset of its last record's frame
//! 40  hash     32 bytes, the hash of that record
//! 72  through  u64, the position of that record's last event
//! 80  lineage  u64, that of the record
//! 88  keys     u64, number of keys; u64, number of entries
//! 104 keys, ascending: u64 key, u64 the number of its first entry
//!     entries: u32 position less the segment's first, u32 offset of the record's frame
//! ```
//! A key is a prefix of the SHA-256 of a subject's text, or of that of a position that is a cause in an earlier
//! record, so several may share one. An entry means that an event *may* be about the subject or have the
//! cause, and readers check. An event that this build cannot read may be about any
//! subject, and has a key of its own. Invariants: postings can be deleted at any time and are never trusted.
//! Postings that do not match their segment are built again, and no event about a subject is ever missing
//! from its entries. A file is made from a closed, synced segment, so it is also a witness of how far the
//! journal reached.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use chancery_events::event::Event;
use chancery_events::id::{Lineage, Position};
use chancery_events::record::{Record, RecordHash};
use chancery_events::subject::Subject;

use crate::aside::{ExpectedType, set_aside};
use crate::private;
use crate::witness::JournalWitness;

const EXTENSION: &str = "post";
const UNFINISHED: &str = "post-new";
const MAGIC: &[u8; 8] = b"ChPost3\n";
/// Magic of files without causes, of which only the header is used.
const WITHOUT_CAUSES: &[u8; 8] = b"ChPost2\n";
const HEAD: usize = 104;
const ENTRY: usize = 16;
const PLACE: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct PostingKey(u64);

impl PostingKey {
    /// Key of events that this build cannot read.
    pub(super) const UNREADABLE: PostingKey = PostingKey(0);

    pub(super) fn of(subject: &Subject) -> PostingKey {
        PostingKey::of_text(&subject.to_string())
    }

    /// Key of the facts with a cause.
    pub(super) fn of_cause(cause: Position) -> PostingKey {
        // No subject is a number.
        PostingKey::of_text(&cause.to_string())
    }

    fn of_text(text: &str) -> PostingKey {
        let hash = RecordHash::of(text.as_bytes());
        PostingKey(hash.bytes().first_chunk().map_or(1, |front| u64::from_le_bytes(*front)).max(1))
    }
}

/// Position of an event, and the offset of the frame that contains its record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct PostingEntry {
    pub(super) position: Position,
    pub(super) offset: u64,
}

/// Postings of a prefix of a segment, in memory.
#[derive(Clone, Default, Debug)]
pub(super) struct SegmentPostings {
    lists: BTreeMap<PostingKey, Vec<PostingEntry>>,
    last: Option<LastRecord>,
}

/// Last record of a segment, and the offset of its frame.
#[derive(Clone, Copy, Debug)]
struct LastRecord {
    offset: u64,
    hash: RecordHash,
    through: Position,
    lineage: Lineage,
}

impl SegmentPostings {
    /// Adds the subjects of a record's events, and the causes of its facts. Records come in order.
    pub(super) fn note(&mut self, record: &Record, offset: u64) {
        let lineage = record.header().lineage;
        for (position, line) in record.events() {
            let place = PostingEntry { position, offset };
            let Ok(event) = Event::read(line) else {
                self.put(PostingKey::UNREADABLE, place);
                continue;
            };
            for subject in event.all_subjects(lineage, position) {
                self.put(PostingKey::of(&subject), place);
            }
            // Effects in the record of their cause are found there.
            if let Event::Fact { cause, .. } = &event
                && *cause < record.first()
                && *cause != Position::ZERO
            {
                self.put(PostingKey::of_cause(*cause), place);
            }
        }
        self.last = Some(LastRecord { offset, hash: record.hash(), through: record.last(), lineage });
    }

    fn put(&mut self, key: PostingKey, place: PostingEntry) {
        let list = self.lists.entry(key).or_default();
        if list.last() != Some(&place) {
            list.push(place);
        }
    }

    pub(super) fn find(&self, key: PostingKey) -> &[PostingEntry] {
        self.lists.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Encodes the file for a segment whose frames end at `end`; `None` if it is empty, or too large for one.
    pub(super) fn encode(&self, first: Position, end: u64) -> Option<Vec<u8>> {
        let LastRecord { offset, hash, through, lineage } = self.last?;
        u32::try_from(end).ok()?;
        let count: usize = self.lists.values().map(Vec::len).sum();
        let mut bytes = Vec::with_capacity(HEAD + self.lists.len() * ENTRY + count * PLACE);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 8]);
        for number in [first.get(), end, offset] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(hash.bytes());
        for number in [through.get(), lineage.bits(), self.lists.len() as u64, count as u64] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        let mut start = 0_u64;
        for (key, list) in &self.lists {
            bytes.extend_from_slice(&key.0.to_le_bytes());
            bytes.extend_from_slice(&start.to_le_bytes());
            start += list.len() as u64;
        }
        for place in self.lists.values().flatten() {
            // Each event has at least one byte, so positions span less than the end.
            let position = u32::try_from(place.position.get() - first.get()).ok()?;
            bytes.extend_from_slice(&position.to_le_bytes());
            bytes.extend_from_slice(&u32::try_from(place.offset).ok()?.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        Some(bytes)
    }
}

/// Returns the path of a segment's file of postings.
pub(super) fn path(segment: &Path) -> PathBuf {
    segment.with_extension(EXTENSION)
}

/// Writes the file. Nothing is synced: the checksum detects what a crash leaves.
pub(super) fn write(segment: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = path(segment);
    let unfinished = path.with_extension(UNFINISHED);
    let written = private::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, &path));
    if written.is_err() {
        // On a full disk the file would waste space. If this fails, opening the journal removes it.
        let _first_error_counts = fs::remove_file(&unfinished);
    }
    written
}

/// Lists unfinished files that a crash left, in a directory whose lock is held.
pub(super) fn left_over(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_unfinished = path.extension().is_some_and(|extension| extension == UNFINISHED);
        if is_unfinished && set_aside(&path, ExpectedType::File)?.is_none() {
            found.push(path);
        }
    }
    Ok(found)
}

/// Returns the witnesses in the postings of the last segment and of missing ones. `last` is the first
/// position of that segment, if there is one. Files are made once another segment follows, so that of the
/// last one also proves the next position.
pub(super) fn witnesses(dir: &Path, last: Option<Position>) -> io::Result<Vec<JournalWitness>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let first = path.file_stem().and_then(|stem| stem.to_str()?.parse::<Position>().ok());
        let is_filed = path.extension().is_some_and(|extension| extension == EXTENSION) && path.is_file();
        if !is_filed || first.is_none_or(|first| last.is_some_and(|last| first < last)) {
            continue;
        }
        // A file that is not as it was written proves nothing.
        let filed = PostingsFile::check_header(&fs::read(&path)?);
        let Some(filed) = filed.filter(|filed| Some(filed.first) == first) else { continue };
        let (name, lineage) = (format!("the file of postings {}", path.display()), filed.lineage);
        if last == Some(filed.first) {
            let position = filed.through.plus(1);
            found.push(JournalWitness { name: name.clone(), lineage, position, hash: None });
        }
        found.push(JournalWitness { name, lineage, position: filed.through, hash: Some(filed.hash) });
    }
    Ok(found)
}

/// Header of a file of postings that passed [`PostingsFile::check`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PostingsFile {
    pub(super) first: Position,
    pub(super) end: u64,
    pub(super) last: u64,
    pub(super) hash: RecordHash,
    through: Position,
    lineage: Lineage,
    keys: u64,
    places: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl PostingsFile {
    /// Checks a complete file; `None` if it is not as it was written, or has no causes. The caller must check
    /// whether it matches its segment.
    pub(super) fn check(bytes: &[u8]) -> Option<PostingsFile> {
        if bytes.starts_with(MAGIC) { PostingsFile::check_header(bytes) } else { None }
    }

    /// Checks a complete file of any format; `None` if it is not as it was written.
    fn check_header(bytes: &[u8]) -> Option<PostingsFile> {
        let crc = bytes.get(8..12)?.first_chunk().map(|crc| u32::from_le_bytes(*crc))?;
        let is_known = bytes.starts_with(MAGIC) || bytes.starts_with(WITHOUT_CAUSES);
        if !is_known || crc != crc32c::crc32c(&bytes[12..]) {
            return None;
        }
        let hash = RecordHash::from_bytes(*bytes.get(40..)?.first_chunk()?);
        let [first, end, last] = [16, 24, 32].map(|at| u64_at(bytes, at));
        let [through, lineage, keys, places] = [72, 80, 88, 96].map(|at| u64_at(bytes, at));
        let (through, lineage) = (Position::new(through), Lineage::from_random(lineage));
        let len = HEAD as u64 + keys.checked_mul(ENTRY as u64)? + places.checked_mul(PLACE as u64)?;
        let filed =
            PostingsFile { first: Position::new(first), end, last, hash, through, lineage, keys, places };
        (len == bytes.len() as u64).then_some(filed)
    }

    pub(super) fn find(&self, file: &File, key: PostingKey) -> io::Result<Vec<PostingEntry>> {
        let (mut low, mut high) = (0, self.keys);
        while low < high {
            let middle = low.midpoint(high);
            if entry(file, middle)?.0 < key.0 { low = middle + 1 } else { high = middle }
        }
        if low == self.keys {
            return Ok(Vec::new());
        }
        let (found, start) = entry(file, low)?;
        if found != key.0 {
            return Ok(Vec::new());
        }
        let end = if low + 1 < self.keys { entry(file, low + 1)?.1 } else { self.places };
        let count = end.checked_sub(start).filter(|_| end <= self.places);
        let count = count
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "keys of the postings are damaged"))?;
        let mut bytes = vec![0; count as usize * PLACE];
        file.read_exact_at(&mut bytes, HEAD as u64 + self.keys * ENTRY as u64 + start * PLACE as u64)?;
        let (places, _) = bytes.as_chunks::<PLACE>();
        Ok(places.iter().map(|place| self.place(*place)).collect())
    }

    fn place(&self, bytes: [u8; PLACE]) -> PostingEntry {
        let both = u64::from_le_bytes(bytes);
        let (position, offset) = (both & u64::from(u32::MAX), both >> 32);
        PostingEntry { position: Position::new(self.first.get() + position), offset }
    }
}

/// Returns a key of the file, and the number of its first entry.
fn entry(file: &File, number: u64) -> io::Result<(u64, u64)> {
    let mut bytes = [0; ENTRY];
    file.read_exact_at(&mut bytes, HEAD as u64 + number * ENTRY as u64)?;
    Ok((u64_at(&bytes, 0), u64_at(&bytes, 8)))
}
