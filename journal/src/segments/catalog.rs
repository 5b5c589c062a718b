//! What the writer tells its readers: which segments there are, how far each is durable, and the head.
//!
//! The locks are held for a look-up or a store, never during I/O, so a reader cannot hold up the writer. What must
//! stay true: `end` and the head move only behind a sync; a segment's `end` is final before the next segment is
//! seen.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use chancery_events::id::Position;
use chancery_events::record::Header;

use super::frame::{self, Found, Kind};
use super::scan::Index;
use super::shelf::Shelf;
use crate::chain::Cursor;

/// The file name of the segment that begins at `first`.
pub(super) fn file_name(first: Position) -> String {
    format!("{first:020}.seg")
}

/// The first position of the segment with this file name; `None` for other files.
pub(super) fn first_of(name: &str) -> Option<Position> {
    let digits = name.strip_suffix(".seg")?;
    let is_name = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_name { digits.parse().ok() } else { None }
}

/// The segments in a folder, in order.
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics between two stores that belong together, so what a panic leaves behind is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One segment file.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) first: Position,
    pub(super) path: PathBuf,
    end: AtomicU64,
    /// `None` until someone needs it.
    index: Mutex<Option<Index>>,
    /// Locked while postings grow; neither the writer nor a reader in order needs it.
    pub(super) shelf: Mutex<Shelf>,
}

impl Segment {
    pub(super) fn new(first: Position, path: PathBuf, end: u64, index: Option<Index>) -> Segment {
        let (end, index) = (AtomicU64::new(end), Mutex::new(index));
        Segment { first, path, end, index, shelf: Mutex::default() }
    }

    /// Up to where it is durable.
    pub(super) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Where to begin reading to find `from`.
    pub(super) fn seek(&self, from: Position) -> std::io::Result<u64> {
        self.know()?;
        Ok(lock(&self.index).as_ref().map_or(0, |index| index.seek(from)))
    }

    /// Finds out where it ends and what is where, if it was not looked at when the journal was opened.
    pub(super) fn know(&self) -> std::io::Result<()> {
        if lock(&self.index).is_none() {
            // Such a segment is written no more, so two readers that do this at once find the same.
            let (index, end) = index_of(&fs::read(&self.path)?);
            self.end.store(end as u64, Ordering::Release);
            *lock(&self.index) = Some(index);
        }
        Ok(())
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

/// What is where, and where the frames end. Damage counts as more of them: whoever reads there will find it.
fn index_of(bytes: &[u8]) -> (Index, usize) {
    let mut index = Index::default();
    let mut at = 0;
    loop {
        let frame = match frame::find(&bytes[at..]) {
            Found::Frame(frame) => frame,
            Found::End => return (index, at),
            Found::Damage(_) => return (index, bytes.len()),
        };
        if frame.kind == Kind::Record
            && index.is_due(at as u64)
            && let Ok((header, _)) = Header::peek(frame.payload)
        {
            index.note(header.first, at as u64);
        }
        at += frame.len();
    }
}

/// All segments of a journal.
#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) fleet: Arc<str>,
    segments: Mutex<Vec<Arc<Segment>>>,
    head: Mutex<Option<Cursor>>,
    /// Closed segments whose postings somebody had to make in memory; changes under the lock of the segments.
    wanted: Mutex<Vec<Arc<Segment>>>,
    /// Whether nobody writes any more; changes under the lock of the segments.
    has_ended: AtomicBool,
    /// There is one more segment, or one is wanted, or it has ended.
    has_changed: Condvar,
}

impl Catalog {
    pub(super) fn new(fleet: Arc<str>, segments: Vec<Arc<Segment>>, head: Option<Cursor>) -> Catalog {
        Catalog {
            fleet,
            segments: Mutex::new(segments),
            head: Mutex::new(head),
            wanted: Mutex::default(),
            has_ended: AtomicBool::new(false),
            has_changed: Condvar::new(),
        }
    }

    pub(super) fn head(&self) -> Option<Cursor> {
        *lock(&self.head)
    }

    pub(super) fn set_head(&self, head: Cursor) {
        *lock(&self.head) = Some(head);
    }

    /// Adds the next segment, which replaces one that has stayed empty.
    pub(super) fn add(&self, segment: Arc<Segment>) {
        let mut segments = lock(&self.segments);
        segments.pop_if(|last| last.first == segment.first);
        segments.push(segment);
        drop(segments);
        self.has_changed.notify_all();
    }

    /// Waits for a segment whose postings are to be filed: one that is wanted, or the next behind `last` that is
    /// written no more, which then is `last`; `None` if the journal has ended before.
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

    /// Has the postings of a segment filed soon, if it is written no more.
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

    /// Lets nobody wait for a segment any more.
    pub(super) fn end(&self) {
        let segments = lock(&self.segments);
        self.has_ended.store(true, Ordering::Relaxed);
        drop(segments);
        self.has_changed.notify_all();
    }

    /// The segment that holds `position`, or will; the first one for what is before it.
    pub(super) fn holding(&self, position: Position) -> Option<Arc<Segment>> {
        let segments = lock(&self.segments);
        let after = segments.partition_point(|segment| segment.first <= position);
        segments.get(after.saturating_sub(1)).cloned()
    }

    /// The segment behind the one that begins at `first`.
    pub(super) fn behind(&self, first: Position) -> Option<Arc<Segment>> {
        let segments = lock(&self.segments);
        segments.get(segments.partition_point(|segment| segment.first <= first)).cloned()
    }
}
