//! Cache of a segment's postings: in a file, or in memory as far as readers needed them.
//!
//! Filing is a thread of the lowest priority that checks closed segments and writes missing files. A lookup
//! before it, or in the open segment, builds postings in memory, which grow with the segment on later
//! lookups. So neither the writer nor a reader ever waits for filing. A closed segment that was looked up is
//! filed next. Invariant: after a filing attempt, no postings of a closed segment are in memory, even if the
//! attempt failed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use chancery_events::record::{Record, RecordHash};

use super::catalog::{Segment, SegmentCatalog};
use super::frame::{self, FrameKind, HEAD};
use super::postings::{self, PostingEntry, PostingKey, PostingsFile, SegmentPostings};
use super::reader::{SegmentBuffer, io_error};
use crate::journal::{ReadError, lock};

/// State of a segment's postings.
#[derive(Default, Debug)]
pub(super) enum PostingsCache {
    #[default]
    Unknown,
    OnDisk(PostingsFile),
    /// In memory, up to the offset of the next frame.
    InMemory(SegmentPostings, u64),
}

/// Returns the entries of `key`, in order: all that are durable now, and perhaps others.
pub(super) fn places(segment: &Arc<Segment>, key: PostingKey) -> Result<Vec<PostingEntry>, ReadError> {
    segment.know()?;
    let mut shelf = lock(&segment.shelf);
    if let PostingsCache::Unknown = &*shelf {
        *shelf = filed(segment)
            .map_or_else(|| PostingsCache::InMemory(SegmentPostings::default(), 0), PostingsCache::OnDisk);
    }
    if let PostingsCache::OnDisk(filed) = &*shelf {
        match from_file(segment, filed, key) {
            Ok(places) => return Ok(places),
            Err(error) => {
                tracing::warn!(segment = %segment.path.display(), %error, "cannot read postings of segment, building them again");
                *shelf = PostingsCache::InMemory(SegmentPostings::default(), 0);
            }
        }
    }
    let PostingsCache::InMemory(postings, offset) = &mut *shelf else { return Ok(Vec::new()) };
    extend(segment, postings, offset, &AtomicBool::new(false))?;
    Ok(merge(postings.find(key), postings.find(PostingKey::UNREADABLE)))
}

/// Whether the postings are in a file.
pub(super) fn is_filed(segment: &Segment) -> bool {
    matches!(*lock(&segment.shelf), PostingsCache::OnDisk(_))
}

/// Releases the memory of the postings: the next lookup reads or builds them again.
pub(super) fn release(segment: &Segment) {
    *lock(&segment.shelf) = PostingsCache::Unknown;
}

/// Deletes postings that do not match their segment, although their checksum is valid; unless `is_frozen`, also their
/// file.
pub(super) fn forget(segment: &Segment, is_frozen: bool) {
    tracing::warn!(segment = %segment.path.display(), "postings do not match their segment, building them again");
    let mut shelf = lock(&segment.shelf);
    if !is_frozen
        && let Err(error) = fs::remove_file(postings::path(&segment.path))
        && error.kind() != io::ErrorKind::NotFound
    {
        // The file will be detected as wrong again.
        tracing::warn!(segment = %segment.path.display(), %error, "cannot remove file of postings");
    }
    *shelf = PostingsCache::InMemory(SegmentPostings::default(), 0);
}

fn from_file(segment: &Segment, filed: &PostingsFile, key: PostingKey) -> io::Result<Vec<PostingEntry>> {
    let file = File::open(postings::path(&segment.path))?;
    Ok(merge(&filed.find(&file, key)?, &filed.find(&file, PostingKey::UNREADABLE)?))
}

fn merge(a: &[PostingEntry], b: &[PostingEntry]) -> Vec<PostingEntry> {
    let mut all = [a, b].concat();
    if !a.is_empty() && !b.is_empty() {
        all.sort_unstable();
    }
    all
}

/// Returns the segment's file of postings, if it exists, is intact and belongs to the segment.
fn filed(segment: &Segment) -> Option<PostingsFile> {
    let filed = PostingsFile::check(&fs::read(postings::path(&segment.path)).ok()?)?;
    let is_ours = filed.first == segment.first && filed.end == segment.end();
    (is_ours && hash_at(segment, filed.last).ok()? == filed.hash).then_some(filed)
}

/// Returns the hash of the record whose frame is at `offset`.
fn hash_at(segment: &Segment, offset: u64) -> io::Result<RecordHash> {
    let file = File::open(&segment.path)?;
    let mut head = [0; HEAD];
    file.read_exact_at(&mut head, offset)?;
    let len = frame::len(&head).map_err(io::Error::other)?;
    let mut payload = vec![0; len - HEAD];
    file.read_exact_at(&mut payload, offset + HEAD as u64)?;
    Ok(RecordHash::of(&payload))
}

/// Adds what is durable by now, from `offset` on, until `is_unwanted` is set.
fn extend(
    segment: &Arc<Segment>,
    postings: &mut SegmentPostings,
    offset: &mut u64,
    is_unwanted: &AtomicBool,
) -> Result<(), ReadError> {
    let mut part = SegmentBuffer::open(segment.clone(), *offset)?;
    while !is_unwanted.load(Ordering::Relaxed) {
        let Some(frame) = part.frame()? else { break };
        if frame.kind == FrameKind::Record {
            let record = Record::decode(frame.payload);
            let record = record.map_err(|error| part.damage(segment.first, &error.to_string()))?;
            postings.note(&record, part.offset());
        }
        part.step();
        *offset = part.offset();
    }
    Ok(())
}

/// Thread that files postings. When dropped, it stops early.
#[derive(Debug)]
pub(super) struct PostingsWriter {
    catalog: Arc<SegmentCatalog>,
    is_unwanted: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PostingsWriter {
    pub(super) fn start(catalog: Arc<SegmentCatalog>) -> io::Result<PostingsWriter> {
        let is_unwanted = Arc::new(AtomicBool::new(false));
        let (its_catalog, its_flag) = (catalog.clone(), is_unwanted.clone());
        let thread = std::thread::Builder::new().name("journal-filing".into()).spawn(move || {
            // On Linux the priority is per thread. Without permission to lower it, filing is still quick.
            if let Err(error) = rustix::process::setpriority_process(None, 19) {
                tracing::debug!(%error, "cannot lower priority of the postings thread");
            }
            file(&its_catalog, &its_flag);
        })?;
        Ok(PostingsWriter { catalog, is_unwanted, thread: Some(thread) })
    }
}

impl Drop for PostingsWriter {
    fn drop(&mut self) {
        self.is_unwanted.store(true, Ordering::Relaxed);
        self.catalog.end();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("postings thread panicked");
        }
    }
}

/// Files the postings of every closed segment that has none, as segments close.
fn file(catalog: &SegmentCatalog, is_unwanted: &AtomicBool) {
    let mut last = None;
    while let Some(segment) = catalog.to_file(&mut last) {
        // After a failure, the next lookup searches for the file again and builds the postings.
        let shelf = match file_one(&segment, is_unwanted) {
            Ok(filed) => filed.map_or(PostingsCache::Unknown, PostingsCache::OnDisk),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(segment = %segment.path.display(), error, "cannot write file of postings");
                PostingsCache::Unknown
            }
        };
        *lock(&segment.shelf) = shelf;
    }
}

/// Files one segment; `None` if it was stopped early, or if a file cannot hold the postings.
fn file_one(segment: &Arc<Segment>, is_unwanted: &AtomicBool) -> Result<Option<PostingsFile>, ReadError> {
    segment.know()?;
    if let Some(filed) = filed(segment) {
        return Ok(Some(filed));
    }
    // Built separately, without the lock: a lookup must not wait for a thread of the lowest priority.
    let (mut made, mut offset) = (SegmentPostings::default(), 0);
    extend(segment, &mut made, &mut offset, is_unwanted)?;
    if is_unwanted.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let Some(bytes) = made.encode(segment.first, offset) else { return Ok(None) };
    postings::write(&segment.path, &bytes).map_err(io_error(&segment.path))?;
    Ok(PostingsFile::check(&bytes))
}
