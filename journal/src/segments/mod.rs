//! Embedded journal: segment files in a directory, for one process.
//!
//! ```text
//! lock                        locked by the process that has the journal open
//! 00000000000000000001.seg    frames, then zeros; named after its first position
//! 00000000000000000001.post   postings of that segment, written when it is full
//! 00000000000000094117.seg
//! spare                       preallocated next segment
//! <position>-<offset>.cut     tail truncated on opening, kept for people
//! ```
//! In reading order: disk, frames, scan of a segment, opening, queue, spare, writer, the catalog shared with
//! readers, and readers. Then postings, their cache, reading by postings, the read-only check, and the read-only
//! journal ([`FrozenSegments`]).
//! Invariants: acknowledged records were synced. What was ever named as synced is present, or the journal
//! does not open. Only one process writes.

mod catalog;
mod disk;
mod frame;
mod frozen;
mod open;
mod postings;
mod postings_cache;
mod postings_reader;
mod preallocated;
mod queue;
mod reader;
mod scan;
mod verify;
mod writer;

#[cfg(test)]
mod tests;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use chancery_events::id::Position;
use chancery_events::record::Record;

use crate::chain::ChainCursor;
use crate::journal::{AppendError, CloseError, DeliverySink, Journal, JournalReader, lock};
use crate::private;
use crate::witness::JournalWitness;
use catalog::SegmentCatalog;
use open::failed;
use postings_cache::PostingsWriter;
use queue::{AppendPath, AppendQueue};
use writer::SegmentWriter;

pub use disk::{DiskAccess, DiskFile, FileSystem};
pub use frozen::FrozenSegments;
pub use open::{OpenedSegments, SegmentOpenError, TruncatedTail};
pub use queue::QueueBounds;
pub use verify::{
    VerifyError, VerifyFinding, VerifyOutcome, VerifyReport, postings as postings_in, verify, verify_each,
};

const LOCK: &str = "lock";

/// Options for opening a journal.
#[derive(Clone, Debug)]
pub struct SegmentOptions {
    /// Directory, created if it is missing.
    pub dir: PathBuf,
    /// Fleet that the journal belongs to.
    pub fleet: Arc<str>,
    /// Bytes of the first segment (default: 4 MiB); each segment is twice as large as the previous one.
    pub first_segment: u64,
    /// Maximum bytes of a segment (default: 64 MiB).
    pub largest_segment: u64,
    /// Limits of the append queue (default: 8192 records, 32 MiB).
    pub queue: QueueBounds,
    /// Idle time before a marker names the last sync (default: 20 ms).
    pub pause: Duration,
    /// Extent of the check on opening (default: everything).
    pub check: OpenCheck,
    /// Evidence to check the journal against before any change (default: nothing).
    pub against: OpenEvidence,
    /// Observer of the time that each sync takes (default: none).
    pub synced: SyncObserver,
}

/// Observer of the time that a sync of written records takes. It is called on the thread that syncs.
#[derive(Clone, Default)]
pub struct SyncObserver(Option<Arc<dyn Fn(Duration) + Send + Sync>>);

impl SyncObserver {
    /// Returns an observer that calls a function.
    pub fn new(observe: impl Fn(Duration) + Send + Sync + 'static) -> SyncObserver {
        SyncObserver(Some(Arc::new(observe)))
    }

    fn observe(&self, taken: Duration) {
        if let Some(observe) = &self.0 {
            observe(taken);
        }
    }
}

impl std::fmt::Debug for SyncObserver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SyncObserver")
    }
}

/// Evidence that a journal is checked against on opening.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenEvidence {
    /// No evidence: a mirror, whose source of truth is elsewhere.
    Nothing,
    /// These witnesses and the files of postings: a journal that lost what they name is refused.
    Witnesses(Vec<JournalWitness>),
    /// The same evidence; a loss is accepted and reported.
    AcceptedLoss(Vec<JournalWitness>),
}

/// Extent of the check on opening. The last two segments are always checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenCheck {
    /// Every frame of every segment, at 2 GB/s or the disk's speed.
    All,
    /// The last two segments only: readers find damage in older ones.
    Newest,
}

impl SegmentOptions {
    /// Returns the default options.
    pub fn new(dir: impl Into<PathBuf>, fleet: &str) -> SegmentOptions {
        SegmentOptions {
            dir: dir.into(),
            fleet: fleet.into(),
            first_segment: 4 << 20,
            largest_segment: 64 << 20,
            queue: QueueBounds { records: 8192, bytes: 32 << 20 },
            pause: Duration::from_millis(20),
            check: OpenCheck::All,
            against: OpenEvidence::Nothing,
            synced: SyncObserver::default(),
        }
    }
}

/// Journal in segment files, open for writing.
pub struct SegmentJournal {
    queue: Arc<AppendQueue>,
    catalog: Arc<SegmentCatalog>,
    running: Mutex<Option<JournalThreads>>,
}

/// Resources that end with the journal.
struct JournalThreads {
    writer: JoinHandle<()>,
    filing: PostingsWriter,
    lock: File,
}

impl SegmentJournal {
    /// Opens the journal in a directory. `sink` receives what is appended from now on.
    pub fn open(
        options: &SegmentOptions,
        sink: DeliverySink,
    ) -> Result<(SegmentJournal, OpenedSegments), SegmentOpenError> {
        SegmentJournal::open_on(Arc::new(FileSystem), options, sink)
    }

    /// Opens the journal on another disk than the file system: for tests that let the disk fail.
    pub fn open_on(
        disk: Arc<dyn DiskAccess>,
        options: &SegmentOptions,
        sink: DeliverySink,
    ) -> Result<(SegmentJournal, OpenedSegments), SegmentOpenError> {
        let lock = take_lock(&options.dir)?;
        let ready = open::open(options, &*disk)?;
        let writer = SegmentWriter {
            disk,
            dir: options.dir.clone(),
            largest: options.largest_segment,
            catalog: ready.catalog.clone(),
            open: ready.open,
            spare: None,
            synced: ready.opened.head.map_or(Position::ZERO, |head| head.position),
            is_named: ready.is_named,
            observer: options.synced.clone(),
            sink,
            buffer: Vec::new(),
        };
        let filing = PostingsWriter::start(ready.catalog.clone());
        let filing = filing.map_err(failed("start a thread for", &options.dir))?;
        let queue = Arc::new(AppendQueue::new(ready.chain, options.queue, options.pause, writer));
        let its_queue = queue.clone();
        let thread = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || writer::serve(&its_queue))
            .map_err(failed("start a thread for", &options.dir))?;
        let running = Mutex::new(Some(JournalThreads { writer: thread, filing, lock }));
        Ok((SegmentJournal { queue, catalog: ready.catalog, running }, ready.opened))
    }
}

/// Creates the directory. Its name and its parents' must be durable before its content is reported as
/// durable.
fn make_dir(dir: &Path) -> Result<(), SegmentOpenError> {
    let dir = std::path::absolute(dir).map_err(failed("resolve", dir))?;
    let missing: Vec<_> = dir.ancestors().take_while(|above| !above.exists()).collect();
    private::create_dir_all(&dir).map_err(failed("create", &dir))?;
    for parent in missing.iter().filter_map(|made| made.parent()) {
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed("sync", parent))?;
    }
    Ok(())
}

fn take_lock(dir: &Path) -> Result<File, SegmentOpenError> {
    make_dir(dir)?;
    let path = dir.join(LOCK);
    let file = private::options().truncate(false).open(&path);
    let file = file.map_err(failed("open", &path))?;
    let mut tries = 50;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // `verify` briefly holds the lock to see whether the directory is open. A process killed while it
            // starts another leaves the lock to the other until the other program runs.
            Err(TryLockError::WouldBlock) if tries > 0 => {
                tries -= 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => return Err(SegmentOpenError::Locked { dir: dir.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
        }
    }
}

impl Journal for SegmentJournal {
    fn append(&self, record: Record) -> Result<(), AppendError> {
        self.queue.append(record)
    }

    fn append_here(&self, record: Record) -> Result<(), AppendError> {
        match self.queue.append_here(record)? {
            AppendPath::Taken(writer, record) => writer.write(&self.queue, [*record]),
            AppendPath::Queued => {}
        }
        Ok(())
    }

    fn head(&self) -> Option<ChainCursor> {
        self.catalog.head()
    }

    fn source(&self) -> Arc<dyn JournalReader> {
        Arc::new(reader::SegmentSource(self.catalog.clone()))
    }

    fn close(&self) -> Result<(), CloseError> {
        self.queue.close();
        if let Some(JournalThreads { writer, filing, lock }) = lock(&self.running).take() {
            let has_panicked = writer.join().is_err();
            drop(filing);
            drop(lock);
            if has_panicked {
                return Err(CloseError::Stopped);
            }
        }
        if self.queue.has_stopped() { Err(CloseError::Stopped) } else { Ok(()) }
    }
}

impl Drop for SegmentJournal {
    fn drop(&mut self) {
        // Callers that need the result call `close`.
        let _ = self.close();
    }
}
