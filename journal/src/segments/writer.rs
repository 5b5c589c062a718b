//! Writer: one at a time, on the journal's thread or on that of an appender that would wait anyway.
//!
//! The writer writes everything queued with one call, syncs once, publishes to the readers, then to the sink.
//! Each frame names the position up to which the journal was synced when it was written. After a short idle
//! time, a marker frame names the last sync, and is itself synced while nothing waits. So only a group that
//! was cut off while it was written, or within that time, is unnamed. Invariants: nothing is published or
//! delivered before its sync succeeded. After any error nothing more is written, synced or delivered.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use chancery_events::id::Position;
use chancery_events::record::Record;
use rustix::io::Errno;

use super::SyncObserver;
use super::catalog::{Segment, SegmentCatalog, file_name};
use super::disk::{DiskAccess, DiskFile};
use super::frame::{self, FrameKind, HEAD};
use super::preallocated::{self, PreallocatedSegment};
use super::queue::{AppendQueue, QueueWork};
use super::scan::OffsetIndex;
use crate::chain::ChainCursor;
use crate::journal::{DeliverySink, JournalDelivery};

/// Size in bytes after which a group is split, with one sync per piece.
const PIECE: usize = 4 << 20;

/// Maximum number of attempts without a free descriptor.
const ATTEMPTS: u32 = 100;
/// Time between these attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// File that is being written.
pub(super) struct ActiveSegment {
    pub(super) segment: Arc<Segment>,
    pub(super) file: Box<dyn DiskFile>,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// Writer of the segments: the thread that owns it writes.
pub(super) struct SegmentWriter {
    pub(super) disk: Arc<dyn DiskAccess>,
    pub(super) dir: PathBuf,
    pub(super) largest: u64,
    pub(super) catalog: Arc<SegmentCatalog>,
    pub(super) open: ActiveSegment,
    pub(super) spare: Option<PreallocatedSegment>,
    /// Position up to which the journal is synced.
    pub(super) synced: Position,
    /// Whether a synced frame, or a segment's name, names that position.
    pub(super) is_named: bool,
    pub(super) observer: SyncObserver,
    pub(super) sink: DeliverySink,
    pub(super) buffer: Vec<u8>,
}

/// Writes queued records, until the queue is closed or the writer has ended.
pub(super) fn serve(queue: &AppendQueue) {
    loop {
        match queue.take() {
            QueueWork::Records(writer, records) => writer.write(queue, records),
            QueueWork::Nothing(writer) => writer.hold(queue, SegmentWriter::name),
            QueueWork::Closed(writer) => {
                if let Some(writer) = writer.step(queue, SegmentWriter::name) {
                    queue.end(true);
                    drop(writer);
                }
                return;
            }
            QueueWork::Stopped => return,
        }
    }
}

/// Ends the queue if a sink panics: the writer is lost, so appends must fail.
struct EndOnPanic<'a>(&'a AppendQueue);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end(false);
        }
    }
}

impl SegmentWriter {
    /// Writes the records and returns to the queue.
    pub(super) fn write(
        self: Box<SegmentWriter>,
        queue: &AppendQueue,
        records: impl IntoIterator<Item = Record>,
    ) {
        self.hold(queue, |writer| writer.commit(records));
    }

    fn hold(
        self: Box<SegmentWriter>,
        queue: &AppendQueue,
        step: impl FnOnce(&mut SegmentWriter) -> io::Result<()>,
    ) {
        if let Some(writer) = self.step(queue, step) {
            queue.put_back(writer);
        }
    }

    /// Executes `step`. An error ends the queue and is the sink's last delivery.
    fn step(
        mut self: Box<SegmentWriter>,
        queue: &AppendQueue,
        step: impl FnOnce(&mut SegmentWriter) -> io::Result<()>,
    ) -> Option<Box<SegmentWriter>> {
        let _end = EndOnPanic(queue);
        let Err(error) = step(&mut self) else { return Some(self) };
        queue.end(false);
        tracing::error!(error = &error as &dyn std::error::Error, "journal stopped");
        (self.sink)(JournalDelivery::Stopped(error.into()));
        None
    }

    fn commit(&mut self, records: impl IntoIterator<Item = Record>) -> io::Result<()> {
        let mut records = records.into_iter().peekable();
        let mut group = Vec::with_capacity(records.size_hint().0);
        let mut places = Vec::with_capacity(records.size_hint().0);
        while let Some(next) = records.peek() {
            let need = HEAD + next.bytes().len();
            // Space for a marker is reserved, so that a segment can always be named up to its end.
            let space = (self.open.size - self.open.offset) as usize;
            let is_full = self.buffer.len() + need + HEAD > space;
            if is_full && group.is_empty() {
                let (first, need) = (next.first(), need + HEAD);
                self.roll(first, need as u64)?;
                continue;
            }
            if is_full || self.buffer.len() >= PIECE {
                self.flush(&mut group, &mut places)?;
                continue;
            }
            places.push((next.first(), self.open.offset + self.buffer.len() as u64));
            frame::write(&mut self.buffer, FrameKind::Record, self.synced, next.bytes());
            group.extend(records.next().map(Arc::new));
        }
        self.flush(&mut group, &mut places)
    }

    fn flush(&mut self, group: &mut Vec<Arc<Record>>, places: &mut Vec<(Position, u64)>) -> io::Result<()> {
        let Some(head) = group.last().map(|record| ChainCursor::after(record)) else { return Ok(()) };
        self.write_and_sync()?;
        self.open.segment.publish(self.open.offset, places);
        self.catalog.set_head(head);
        self.synced = head.position;
        self.is_named = false;
        places.clear();
        (self.sink)(JournalDelivery::Records(std::mem::take(group)));
        self.make_ready()
    }

    /// Writes a marker, unless the synced position is named already.
    fn name(&mut self) -> io::Result<()> {
        if self.is_named {
            return Ok(());
        }
        frame::write(&mut self.buffer, FrameKind::Marker, self.synced, &[]);
        self.write_and_sync()?;
        self.open.segment.publish(self.open.offset, &[]);
        self.is_named = true;
        Ok(())
    }

    fn write_and_sync(&mut self) -> io::Result<()> {
        let path = &self.open.segment.path;
        self.open.file.write_at(&self.buffer, self.open.offset).map_err(failed("write to", path))?;
        let began = Instant::now();
        self.open.file.sync().map_err(failed("sync", path))?;
        self.observer.observe(began.elapsed());
        self.open.offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Starts preallocating the next segment once half of this one is used.
    fn make_ready(&mut self) -> io::Result<()> {
        if self.spare.is_none() && self.open.offset > self.open.size / 2 {
            self.spare = Some(PreallocatedSegment::start(self.disk.clone(), &self.dir, self.next_size())?);
        }
        Ok(())
    }

    /// Returns the size of the next segment. Sizes grow to the maximum, so that a small fleet needs little
    /// space.
    fn next_size(&self) -> u64 {
        self.open.size.saturating_mul(2).min(self.largest)
    }

    /// Continues in a new segment, which starts at `first` and fits `need` bytes. Its name records that
    /// everything before it is synced.
    fn roll(&mut self, first: Position, need: u64) -> io::Result<()> {
        let made = match self.spare.take() {
            Some(spare) if spare.size >= need => {
                let size = spare.size;
                spare.take().map(|file| (file, size))
            }
            too_small => {
                drop(too_small);
                self.make_now(need)
            }
        };
        let made = match made {
            // The disk or the descriptors may have been exhausted only when the spare was created.
            Err(error) if error.kind() == io::ErrorKind::StorageFull || is_no_descriptor(&error) => {
                self.make_now(need)
            }
            made => made,
        };
        let (file, size) = made.map_err(failed("create the next segment in", &self.dir))?;
        let adopted = adopt(&*self.disk, &self.dir, first, file, size);
        self.open = adopted.map_err(failed("create a segment in", &self.dir))?;
        self.catalog.add(self.open.segment.clone());
        self.is_named = true;
        Ok(())
    }

    fn make_now(&self, need: u64) -> io::Result<(Box<dyn DiskFile>, u64)> {
        let size = self.next_size().max(need);
        let path = self.dir.join(preallocated::NAME);
        let file = patiently(|| preallocated::fill(&*self.disk, &path, size, &AtomicBool::new(false)))?;
        Ok((file, size))
    }
}

/// Whether the error is a lack of file descriptors in this process or the system. A retry can succeed: a
/// descriptor may be released.
fn is_no_descriptor(error: &io::Error) -> bool {
    let error = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(error, Some(Errno::MFILE | Errno::NFILE))
}

/// Retries an attempt that fails for lack of a descriptor: a peak of connections must not end the journal.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(error) if is_no_descriptor(&error) => {
                tracing::warn!(%error, "no free file descriptor, retrying");
                std::thread::sleep(PAUSE);
            }
            other => return other,
        }
    }
    attempt()
}

/// Adds the operation and the path to the one error that the sink receives.
fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("cannot {operation} {}: {error}", path.display()))
}

/// Turns the spare into the segment that starts at `first`.
pub(super) fn adopt(
    disk: &dyn DiskAccess,
    dir: &Path,
    first: Position,
    file: Box<dyn DiskFile>,
    size: u64,
) -> io::Result<ActiveSegment> {
    let path = dir.join(file_name(first));
    disk.rename(&dir.join(preallocated::NAME), &path)?;
    // Syncing opens the directory. A missing descriptor proves nothing about the disk, so a retry is safe.
    patiently(|| disk.sync_dir(dir))?;
    let segment = Arc::new(Segment::new(first, path, 0, Some(OffsetIndex::default())));
    Ok(ActiveSegment { segment, file, offset: 0, size })
}
