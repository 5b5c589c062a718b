//! State that the writer publishes to its readers: the segments, how far each is durable, and the head.
//!
//! The locks are held for a lookup or a store, never during I/O, so a reader cannot delay the writer.
//! Invariants: `end` and the head advance only after a sync. The `end` of a segment is final before the next
//! segment is visible.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use chancery_events::id::Position;
use chancery_events::record::RecordHeader;

use super::frame::{self, FrameKind};
use super::postings_cache::PostingsCache;
use super::reader::io_error;
use super::scan::OffsetIndex;
use crate::chain::ChainCursor;
use crate::journal::{ReadError, lock};

pub(super) fn file_name(first: Position) -> String {
    format!("{first:020}.seg")
}

/// Returns the first position of the segment with this file name; `None` for other files.
pub(super) fn first_of(name: &str) -> Option<Position> {
    let digits = name.strip_suffix(".seg")?;
    let is_name = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_name { digits.parse().ok() } else { None }
}

/// Lists the segments in a directory, in order.
pub(super) fn list(dir: &Path) -> std::io::Result<Vec<(Position, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some(first) = entry.file_name().to_str().and_then(first_of) {
            found.push((first, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) first: Position,
    pub(super) path: PathBuf,
    end: AtomicU64,
    /// Index; `None` until it is needed.
    index: Mutex<Option<OffsetIndex>>,
    /// Postings, locked while they grow; neither the writer nor sequential readers need them.
    pub(super) shelf: Mutex<PostingsCache>,
}

impl Segment {
    pub(super) fn new(first: Position, path: PathBuf, end: u64, index: Option<OffsetIndex>) -> Segment {
        let (end, index) = (AtomicU64::new(end), Mutex::new(index));
        Segment { first, path, end, index, shelf: Mutex::default() }
    }

    /// Returns the offset up to which the segment is durable.
    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Returns the offset to start reading from to find `from`.
    pub(super) fn seek(&self, from: Position) -> Result<u64, ReadError> {
        self.know()?;
        Ok(lock(&self.index).as_ref().map_or(0, |index| index.seek(from)))
    }

    /// Reads the end and the index of the segment, if it was not checked when the journal was opened.
    pub(super) fn know(&self) -> Result<(), ReadError> {
        if lock(&self.index).is_none() {
            // Such a segment is closed, so two concurrent readers find the same.
            let (index, end) = index_of(&fs::read(&self.path).map_err(io_error(&self.path))?);
            self.end.store(end as u64, Ordering::Release);
            *lock(&self.index) = Some(index);
        }
        Ok(())
    }

    /// Returns the segment up to the end of a frame, for readers of a journal that ends there.
    pub(super) fn cut(&self, end: u64) -> Segment {
        let index = lock(&self.index).as_ref().map(|index| index.before(end));
        Segment::new(self.first, self.path.clone(), end, Some(index.unwrap_or_default()))
    }

    pub(super) fn publish(&self, end: u64, places: &[(Position, u64)]) {
        if let Some(index) = &mut *lock(&self.index) {
            for (first, offset) in places {
                index.note(*first, *offset);
            }
        }
        self.end.store(end, Ordering::Release);
    }
}

/// Returns the index and the end of the frames, of which only indexed ones are checked. Damage counts as more
/// frames: its readers will find it.
fn index_of(bytes: &[u8]) -> (OffsetIndex, usize) {
    let mut index = OffsetIndex::default();
    let mut at = 0;
    loop {
        let rest = &bytes[at..];
        let len = rest.first_chunk().and_then(|head| frame::len(head).ok());
        let Some(bytes_of_frame) = len.and_then(|len| rest.get(..len)) else {
            return (index, if frame::is_zero(rest) { at } else { bytes.len() });
        };
        if index.is_due(at as u64) {
            let Ok(frame) = frame::read(bytes_of_frame) else { return (index, bytes.len()) };
            if frame.kind == FrameKind::Record
                && let Ok((header, _)) = RecordHeader::peek(frame.payload)
            {
                index.note(header.first, at as u64);
            }
        }
        at += bytes_of_frame.len();
    }
}

#[derive(Debug)]
pub(super) struct SegmentCatalog {
    pub(super) fleet: Arc<str>,
    segments: Mutex<Vec<Arc<Segment>>>,
    head: Mutex<Option<ChainCursor>>,
    /// Closed segments whose postings were built in memory on request; changes under the lock of the
    /// segments.
    wanted: Mutex<Vec<Arc<Segment>>>,
    /// Whether writing has ended; changes under the lock of the segments.
    has_ended: AtomicBool,
    /// A segment was added or requested, or writing has ended.
    has_changed: Condvar,
    /// Whether no file is changed, as of a journal that another process may have open.
    pub(super) is_frozen: bool,
}

impl SegmentCatalog {
    pub(super) fn new(
        fleet: Arc<str>,
        segments: Vec<Arc<Segment>>,
        head: Option<ChainCursor>,
    ) -> SegmentCatalog {
        SegmentCatalog {
            fleet,
            segments: Mutex::new(segments),
            head: Mutex::new(head),
            wanted: Mutex::default(),
            has_ended: AtomicBool::new(false),
            has_changed: Condvar::new(),
            is_frozen: false,
        }
    }

    /// Creates the state of a journal that is only read, and does not grow.
    pub(super) fn frozen(
        fleet: Arc<str>,
        segments: Vec<Arc<Segment>>,
        head: Option<ChainCursor>,
    ) -> SegmentCatalog {
        SegmentCatalog { is_frozen: true, ..SegmentCatalog::new(fleet, segments, head) }
    }

    /// Returns all segments, in order.
    pub(super) fn segments(&self) -> Vec<Arc<Segment>> {
        lock(&self.segments).clone()
    }

    pub(super) fn head(&self) -> Option<ChainCursor> {
        *lock(&self.head)
    }

    pub(super) fn set_head(&self, head: ChainCursor) {
        *lock(&self.head) = Some(head);
    }

    /// Adds the next segment, which replaces one that stayed empty.
    pub(super) fn add(&self, segment: Arc<Segment>) {
        let mut segments = lock(&self.segments);
        segments.pop_if(|last| last.first == segment.first);
        segments.push(segment);
        drop(segments);
        self.has_changed.notify_all();
    }

    /// Waits for a closed segment whose postings should be filed: a requested one, or the next after `last`,
    /// which is updated. Returns `None` if the journal ends first.
    pub(super) fn to_file(&self, last: &mut Option<Position>) -> Option<Arc<Segment>> {
        let mut segments = lock(&self.segments);
        loop {
            if self.has_ended.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(wanted) = lock(&self.wanted).pop() {
                return Some(wanted);
            }
            let at = last.map_or(0, |last| segments.partition_point(|segment| segment.first <= last));
            if at + 1 < segments.len() {
                let next = segments.get(at)?;
                *last = Some(next.first);
                return Some(next.clone());
            }
            segments = self.has_changed.wait(segments).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Requests that the postings of a segment be filed soon, if it is closed.
    pub(super) fn want(&self, segment: &Arc<Segment>) {
        let segments = lock(&self.segments);
        let mut wanted = lock(&self.wanted);
        let is_closed = segments.last().is_some_and(|last| last.first != segment.first);
        if is_closed && wanted.iter().all(|one| one.first != segment.first) {
            wanted.push(segment.clone());
            drop(wanted);
            drop(segments);
            self.has_changed.notify_all();
        }
    }

    /// Ends all waits for a segment.
    pub(super) fn end(&self) {
        let segments = lock(&self.segments);
        self.has_ended.store(true, Ordering::Relaxed);
        drop(segments);
        self.has_changed.notify_all();
    }

    /// Returns the segment that contains `position`, or will; the first one if it is before all.
    pub(super) fn holding(&self, position: Position) -> Option<Arc<Segment>> {
        let segments = lock(&self.segments);
        let after = segments.partition_point(|segment| segment.first <= position);
        segments.get(after.saturating_sub(1)).cloned()
    }

    /// Returns the segment after the one that starts at `first`.
    pub(super) fn behind(&self, first: Position) -> Option<Arc<Segment>> {
        let segments = lock(&self.segments);
        segments.get(segments.partition_point(|segment| segment.first <= first)).cloned()
    }
}
