//! The embedded journal: segment files in a folder, for one process.
//!
//! ```text
//! lock                        held by the process that has it open
//! 00000000000000000001.seg    frames, then zeros; named after its first position
//! 00000000000000000001.post   what is where in it, made when it is full
//! 00000000000000094117.seg
//! spare                       the next segment, in the making
//! <position>-<offset>.cut     what was cut off on opening, kept for people
//! ```
//! In reading order: the disk, frames, the scan of a segment, opening, the queue, the spare, the writer, the catalog
//! that it shares with readers, and these; postings, where they are kept, and reading by them; beside them the check that changes nothing. What must stay true: what is acknowledged was synced; what
//! was ever named as synced is there or the journal does not open; one process writes.

mod about;
mod catalog;
mod disk;
mod frame;
mod open;
mod postings;
mod queue;
mod reader;
mod scan;
mod shelf;
mod spare;
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

use crate::chain::Cursor;
use crate::journal::{AppendError, CloseError, Journal, Sink, Source};
use crate::private;
use crate::witness::Witness;
use catalog::Catalog;
use open::failed;
use queue::{Appended, Queue};
use shelf::Filing;
use writer::Writer;

pub use disk::{Disk, DiskFile, FileSystem};
pub use open::{Cut, OpenError, Opened};
pub use queue::Bounds;
pub use verify::{Finding, Outcome, Report, VerifyError, postings as postings_in, verify, verify_each};

const LOCK: &str = "lock";

/// How to open a journal.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder, made if need be.
    pub dir: PathBuf,
    /// Whose journal it is.
    pub fleet: Arc<str>,
    /// Bytes of the first segment; each one is twice as large as the one before.
    pub first_segment: u64,
    /// Up to so many bytes.
    pub largest_segment: u64,
    /// How much may wait to be written.
    pub queue: Bounds,
    /// How long nothing must have come before the last sync is named by a marker.
    pub pause: Duration,
    /// How much is checked on opening.
    pub check: Check,
    /// What is held against the journal before anything is changed.
    pub against: Against,
}

/// What is held against a journal on opening.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Against {
    /// Nothing: a mirror, whose truth is elsewhere.
    Nothing,
    /// These witnesses, and files of postings: a journal that has lost what they name is refused.
    Witnesses(Vec<Witness>),
    /// The same, and what is missing is accepted: it is told.
    AcceptedLoss(Vec<Witness>),
}

/// How much is checked on opening. The last two segments always are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    /// Every frame of every segment, at 2 GB/s or the disk's speed.
    All,
    /// Damage in older segments is found by whoever reads them.
    Newest,
}

impl Options {
    /// The usual ones.
    pub fn new(dir: impl Into<PathBuf>, fleet: &str) -> Options {
        Options {
            dir: dir.into(),
            fleet: fleet.into(),
            first_segment: 4 << 20,
            largest_segment: 64 << 20,
            queue: Bounds { records: 8192, bytes: 32 << 20 },
            pause: Duration::from_millis(20),
            check: Check::All,
            against: Against::Nothing,
        }
    }
}

/// A journal in segment files, open for writing.
pub struct SegmentJournal {
    queue: Arc<Queue>,
    catalog: Arc<Catalog>,
    running: Mutex<Option<Running>>,
}

/// What ends with the journal.
struct Running {
    /// The journal's thread.
    writer: JoinHandle<()>,
    filing: Filing,
    lock: File,
}

impl SegmentJournal {
    /// Opens the journal in a folder. `sink` gets what is appended from now on.
    pub fn open(options: &Options, sink: Sink) -> Result<(SegmentJournal, Opened), OpenError> {
        SegmentJournal::open_on(Arc::new(FileSystem), options, sink)
    }

    /// Opens it on another disk than the file system itself: for tests that let the disk fail.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        options: &Options,
        sink: Sink,
    ) -> Result<(SegmentJournal, Opened), OpenError> {
        let lock = take_lock(&options.dir)?;
        let ready = open::open(options, &*disk)?;
        let writer = Writer {
            disk,
            dir: options.dir.clone(),
            largest: options.largest_segment,
            catalog: ready.catalog.clone(),
            open: ready.open,
            spare: None,
            synced: ready.opened.head.map_or(Position::ZERO, |head| head.position),
            is_named: ready.is_named,
            sink,
            buffer: Vec::new(),
        };
        let filing = Filing::start(ready.catalog.clone());
        let filing = filing.map_err(failed("start a thread for", &options.dir))?;
        let queue = Arc::new(Queue::new(ready.chain, options.queue, options.pause, writer));
        let its_queue = queue.clone();
        let thread = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || writer::serve(&its_queue))
            .map_err(failed("start a thread for", &options.dir))?;
        let running = Mutex::new(Some(Running { writer: thread, filing, lock }));
        Ok((SegmentJournal { queue, catalog: ready.catalog, running }, ready.opened))
    }
}

/// The names of the folder and of those above it must be durable before anything in them is called so.
fn make_dir(dir: &Path) -> Result<(), OpenError> {
    let dir = std::path::absolute(dir).map_err(failed("find", dir))?;
    let missing: Vec<_> = dir.ancestors().take_while(|above| !above.exists()).collect();
    private::create_dir_all(&dir).map_err(failed("make", &dir))?;
    for parent in missing.iter().filter_map(|made| made.parent()) {
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed("sync", parent))?;
    }
    Ok(())
}

fn take_lock(dir: &Path) -> Result<File, OpenError> {
    make_dir(dir)?;
    let path = dir.join(LOCK);
    let file = private::options().truncate(false).open(&path);
    let file = file.map_err(failed("open", &path))?;
    let mut tries = 50;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            // To see whether the folder is open, verify holds the lock for a moment; and a process that is killed
            // while it starts another one leaves it to that one until the other program runs.
            Err(TryLockError::WouldBlock) if tries > 0 => {
                tries -= 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked { dir: dir.to_owned() }),
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
            Appended::Taken(writer, record) => writer.write(&self.queue, [*record]),
            Appended::Queued => {}
        }
        Ok(())
    }

    fn head(&self) -> Option<Cursor> {
        self.catalog.head()
    }

    fn source(&self) -> Arc<dyn Source> {
        Arc::new(reader::SegmentSource(self.catalog.clone()))
    }

    fn close(&self) -> Result<(), CloseError> {
        self.queue.close();
        if let Some(Running { writer, filing, lock }) = catalog::lock(&self.running).take() {
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
        // Whoever wants to know how it went calls `close`.
        let _ = self.close();
    }
}
