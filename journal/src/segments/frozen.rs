//! Read-only journal in a directory of segments: the records that are there when it is opened.
//!
//! It takes no lock, changes no file, and needs only the permission to read. Another process may have the
//! journal open, and append to it: what is appended later is not read.
//!
//! | last segment | end of the journal |
//! |---|---|
//! | intact | its last record; that of the previous segment if it has none |
//! | damaged after everything named as synced | the last record before: a group is being written, or was torn |
//! | damaged elsewhere | the last record before; [`FrozenSegments::damage`] returns the error |
//!
//! Earlier segments, and the chain of all records, are checked when they are read.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use chancery_events::id::Position;
use chancery_events::record::{RecordHash, RecordHeader};

use super::catalog::{Segment, SegmentCatalog, list};
use super::frame::{self, FrameKind, FrameLookup};
use super::reader::{SegmentBuffer, SegmentSource, damage, io_error};
use super::scan::{DamagedBytes, OffsetIndex};
use crate::chain::ChainCursor;
use crate::journal::{JournalReader, ReadError};

/// Maximum number of reads of a segment that seems damaged: one read may mix bytes from before and after a
/// write.
const READS: u32 = 5;

/// Journal that is read without being opened.
#[derive(Debug)]
pub struct FrozenSegments {
    catalog: Arc<SegmentCatalog>,
    damage: Option<(Arc<Segment>, DamagedBytes)>,
}

/// Content of a last segment.
struct SegmentTail {
    index: OffsetIndex,
    /// Offset after the last intact frame.
    end: usize,
    last: Option<(RecordHeader, RecordHash)>,
    /// Highest position that the segment, or the name of a segment, names as synced.
    named: Position,
    damage: Option<DamagedBytes>,
}

impl FrozenSegments {
    /// Opens the journal in a directory; `None` if it has no records.
    pub fn open(dir: &Path) -> Result<Option<FrozenSegments>, ReadError> {
        let mut files = list(dir).map_err(io_error(dir))?;
        let mut named = Position::ZERO;
        let mut damage = None;
        while let Some((first, path)) = files.pop() {
            // The name of a segment names the position before it as synced.
            let before = Position::new(first.get().saturating_sub(1));
            named = named.max(before);
            let tail = SegmentTail::settled(first, &path, named)?;
            let end = tail.last.as_ref().map_or(before, |(header, _)| header.last());
            let segment = Arc::new(Segment::new(first, path, tail.end as u64, Some(tail.index)));
            let missing = || {
                let reason = "a segment is missing, or records at the end of the previous one".to_owned();
                DamagedBytes { offset: tail.end, position: end.plus(1), reason }
            };
            let found = tail.damage.or_else(|| (end < tail.named).then(missing));
            damage = found.map(|found| (Arc::clone(&segment), found)).or(damage);
            if let Some((header, hash)) = tail.last {
                let earlier =
                    files.into_iter().map(|(first, path)| Arc::new(Segment::new(first, path, 0, None)));
                let segments = earlier.chain([segment]).collect();
                let head = Some(ChainCursor::behind(&header, hash));
                let catalog = Arc::new(SegmentCatalog::frozen(header.fleet, segments, head));
                return Ok(Some(FrozenSegments { catalog, damage }));
            }
        }
        damage.map_or(Ok(None), |(segment, found)| Err(error_of(&segment, &found)))
    }

    /// Returns the journal up to a record of it. Damage after the record does not matter there.
    pub fn ending_at(self, at: &ChainCursor) -> Result<FrozenSegments, ReadError> {
        let catalog = self.catalog;
        let mut segments = catalog.segments();
        segments.retain(|segment| segment.first <= at.position);
        if let Some(last) = segments.pop() {
            let end = end_of(&last, at.position)?;
            segments.push(Arc::new(last.cut(end)));
        }
        let fleet = Arc::clone(&catalog.fleet);
        let catalog = Arc::new(SegmentCatalog::frozen(fleet, segments, Some(*at)));
        Ok(FrozenSegments { catalog, damage: None })
    }

    /// Returns the fleet of the journal.
    pub fn fleet(&self) -> &Arc<str> {
        &self.catalog.fleet
    }

    /// Returns a reader of the journal.
    pub fn source(&self) -> Arc<dyn JournalReader> {
        Arc::new(SegmentSource(Arc::clone(&self.catalog)))
    }

    /// Returns the damage after the last record that can be read, if there is any.
    pub fn damage(&self) -> Option<ReadError> {
        self.damage.as_ref().map(|(segment, found)| error_of(segment, found))
    }
}

fn error_of(segment: &Segment, found: &DamagedBytes) -> ReadError {
    damage(segment, found.offset as u64, found.position, &found.reason)
}

/// Returns the offset after the record that ends at a position.
fn end_of(segment: &Arc<Segment>, position: Position) -> Result<u64, ReadError> {
    let mut part = SegmentBuffer::open(Arc::clone(segment), segment.seek(position)?)?;
    while let Some(frame) = part.frame()? {
        let header = RecordHeader::peek(frame.payload).ok().filter(|_| frame.kind == FrameKind::Record);
        part.step();
        if header.is_some_and(|(header, _)| header.last() == position) {
            return Ok(part.offset());
        }
    }
    Err(part.damage(position, "no record ends there"))
}

impl SegmentTail {
    /// Reads a segment, again while it seems damaged, because another process may be writing to it.
    fn settled(first: Position, path: &Path, named: Position) -> Result<SegmentTail, ReadError> {
        let bytes = || fs::read(path).map_err(io_error(path));
        for _ in 1..READS {
            let tail = SegmentTail::read(first, &bytes()?, named);
            if tail.damage.is_none() {
                return Ok(tail);
            }
        }
        Ok(SegmentTail::read(first, &bytes()?, named))
    }

    /// Reads the frames of a segment, up to the first bytes that are none.
    fn read(first: Position, bytes: &[u8], named: Position) -> SegmentTail {
        let mut tail = SegmentTail { index: OffsetIndex::default(), end: 0, last: None, named, damage: None };
        let (mut last, mut next) = (None, first);
        let reason = loop {
            let frame = match frame::find(&bytes[tail.end..]) {
                FrameLookup::Frame(frame) => frame,
                FrameLookup::End => break None,
                FrameLookup::Damage(reason) => break Some(reason.to_owned()),
            };
            if frame.kind == FrameKind::Record {
                let Ok((header, _)) = RecordHeader::peek(frame.payload) else {
                    break Some("a frame contains no record".to_owned());
                };
                tail.index.note(header.first, tail.end as u64);
                next = header.last().plus(1);
                last = Some((header, frame.payload));
            }
            tail.named = tail.named.max(frame.synced);
            tail.end += frame.len();
        };
        tail.last = last.map(|(header, payload)| (header, RecordHash::of(payload)));
        if let Some(reason) = reason {
            tail.named = tail.named.max(frame::highest_named(&bytes[tail.end..]).unwrap_or_default());
            // After everything named as synced, it is a group that is being written, or was torn.
            let damage = DamagedBytes { offset: tail.end, position: next, reason };
            tail.damage = (next <= tail.named).then_some(damage);
        }
        tail
    }
}
