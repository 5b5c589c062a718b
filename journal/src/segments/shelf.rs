//! Where the postings of a segment are: in a file, or in memory as far as somebody has asked.
//!
//! Filing is a thread of the lowest priority, which looks through closed segments and files what is missing. Whoever
//! asks before it has come so far, or about the segment that is being written, makes postings in memory, which grow
//! with the segment at the next question. So neither the writer nor an answer ever waits for filing. A closed segment
//! that was asked about is filed next. What must stay true: after filing has tried, no postings of a closed segment
//! are in memory, whether they are in a file or could not be put there.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use chancery_events::record::{Hash, Record};

use super::catalog::{Catalog, Segment, lock};
use super::frame::{self, HEAD, Kind};
use super::postings::{self, Filed, Key, Place, Postings};
use super::reader::Part;
use crate::journal::ReadError;

/// What is known of a segment's postings.
#[derive(Default, Debug)]
pub(super) enum Shelf {
    /// Nobody has looked.
    #[default]
    Unknown,
    Filed(Filed),
    /// Up to an offset, the next frame's.
    Growing(Postings, u64),
}

/// Where events under `key` may be, in order: all that are durable now, and perhaps some that are not.
pub(super) fn places(segment: &Arc<Segment>, key: Key) -> Result<Vec<Place>, ReadError> {
    let failed = |source| ReadError::Io { place: segment.path.display().to_string(), source };
    segment.know().map_err(failed)?;
    let mut shelf = lock(&segment.shelf);
    if let Shelf::Unknown = &*shelf {
        *shelf = filed(segment).map_or_else(|| Shelf::Growing(Postings::default(), 0), Shelf::Filed);
    }
    if let Shelf::Filed(filed) = &*shelf {
        match from_file(segment, filed, key) {
            Ok(places) => return Ok(places),
            Err(error) => {
                tracing::warn!(segment = %segment.path.display(), %error, "a segment's postings are made anew");
                *shelf = Shelf::Growing(Postings::default(), 0);
            }
        }
    }
    let Shelf::Growing(postings, offset) = &mut *shelf else { return Ok(Vec::new()) };
    extend(segment, postings, offset, &AtomicBool::new(false))?;
    Ok(merge(postings.find(key), postings.find(Key::UNREADABLE)))
}

/// Whether they are in a file.
pub(super) fn is_filed(segment: &Segment) -> bool {
    matches!(*lock(&segment.shelf), Shelf::Filed(_))
}

/// Drops postings that have told a lie, and their file, which looks like a good one.
pub(super) fn forget(segment: &Segment) {
    tracing::warn!(segment = %segment.path.display(), "a segment's postings do not fit it, and are made anew");
    let mut shelf = lock(&segment.shelf);
    if let Err(error) = fs::remove_file(postings::path(&segment.path))
        && error.kind() != io::ErrorKind::NotFound
    {
        // It will lie again, and be found out again.
        tracing::warn!(segment = %segment.path.display(), %error, "the file of these postings cannot be removed");
    }
    *shelf = Shelf::Growing(Postings::default(), 0);
}

fn from_file(segment: &Segment, filed: &Filed, key: Key) -> io::Result<Vec<Place>> {
    let file = File::open(postings::path(&segment.path))?;
    Ok(merge(&filed.find(&file, key)?, &filed.find(&file, Key::UNREADABLE)?))
}

fn merge(a: &[Place], b: &[Place]) -> Vec<Place> {
    let mut all = [a, b].concat();
    if !a.is_empty() && !b.is_empty() {
        all.sort_unstable();
    }
    all
}

/// The segment's file of postings, if it is there, whole, and of this segment.
fn filed(segment: &Segment) -> Option<Filed> {
    let filed = Filed::check(&fs::read(postings::path(&segment.path)).ok()?)?;
    let is_ours = filed.first == segment.first && filed.end == segment.end();
    (is_ours && hash_at(segment, filed.last).ok()? == filed.hash).then_some(filed)
}

/// The hash of the record whose frame is at `offset`.
fn hash_at(segment: &Segment, offset: u64) -> io::Result<Hash> {
    let file = File::open(&segment.path)?;
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, offset)?;
    let len = frame::len(&head).map_err(io::Error::other)?;
    let mut payload = vec![0; len - HEAD];
    file.read_exact_at(&mut payload, offset + HEAD as u64)?;
    Ok(Hash::of(&payload))
}

/// Notes what is durable by now, from `offset` on, unless it is told to end before.
fn extend(
    segment: &Arc<Segment>,
    postings: &mut Postings,
    offset: &mut u64,
    is_unwanted: &AtomicBool,
) -> Result<(), ReadError> {
    let mut part = Part::open(segment.clone(), *offset)?;
    while !is_unwanted.load(Ordering::Relaxed) {
        let Some(frame) = part.frame()? else { break };
        if frame.kind == Kind::Record {
            let record = Record::decode(frame.payload);
            let record = record.map_err(|error| part.damage(segment.first, &error.to_string()))?;
            postings.note(&record, part.offset());
        }
        part.step();
        *offset = part.offset();
    }
    Ok(())
}

/// The thread that files. Dropped, it ends where it is.
#[derive(Debug)]
pub(super) struct Filing {
    catalog: Arc<Catalog>,
    is_unwanted: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Filing {
    pub(super) fn start(catalog: Arc<Catalog>) -> io::Result<Filing> {
        let is_unwanted = Arc::new(AtomicBool::new(false));
        let (its_catalog, its_flag) = (catalog.clone(), is_unwanted.clone());
        let thread = std::thread::Builder::new().name("journal-filing".into()).spawn(move || {
            // Of a thread, on Linux: the others keep theirs. Where it may not be, it is quick all the same.
            if let Err(error) = rustix::process::setpriority_process(None, 19) {
                tracing::debug!(%error, "filing of postings has the priority of everybody");
            }
            file(&its_catalog, &its_flag);
        })?;
        Ok(Filing { catalog, is_unwanted, thread: Some(thread) })
    }
}

impl Drop for Filing {
    fn drop(&mut self) {
        self.is_unwanted.store(true, Ordering::Relaxed);
        self.catalog.end();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that files postings has panicked");
        }
    }
}

/// Files the postings of every closed segment that has none, as segments close.
fn file(catalog: &Catalog, is_unwanted: &AtomicBool) {
    let mut last = None;
    while let Some(segment) = catalog.to_file(&mut last) {
        // What cannot be filed is looked for again at the next question, and made anew.
        let shelf = match file_one(&segment, is_unwanted) {
            Ok(filed) => filed.map_or(Shelf::Unknown, Shelf::Filed),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(segment = %segment.path.display(), error, "a segment's postings cannot be filed");
                Shelf::Unknown
            }
        };
        *lock(&segment.shelf) = shelf;
    }
}

/// `None` if it was told to end before, or if a file cannot hold them.
fn file_one(segment: &Arc<Segment>, is_unwanted: &AtomicBool) -> Result<Option<Filed>, ReadError> {
    let failed = |source| ReadError::Io { place: segment.path.display().to_string(), source };
    segment.know().map_err(failed)?;
    if let Some(filed) = filed(segment) {
        return Ok(Some(filed));
    }
    // By itself, without the lock: an answer must not wait for a thread of the lowest priority.
    let (mut made, mut offset) = (Postings::default(), 0);
    extend(segment, &mut made, &mut offset, is_unwanted)?;
    if is_unwanted.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let Some(bytes) = made.encode(segment.first, offset) else { return Ok(None) };
    postings::write(&segment.path, &bytes).map_err(failed)?;
    Ok(Filed::check(&bytes))
}
