//! The journal on Apache Kafka: for a fleet that outlives its server, with servers that stand by.
//!
//! ```text
//!            append                       read back
//! decider ───────────► producer ► topic ────────────► reader ─► rule ─┬─► sink
//!    ▲                                    everybody's   │             ├─► recent ┐
//!    └────────────────────── deliveries ────────────────┘             └─► mirror ┴─► source
//! ```
//! A record is appended by sending it, and counts when it is read back: then it is on all brokers in sync, and the
//! rule says that it is valid. All servers read the same partition in the same order and judge by the same rule, so
//! that they agree without asking each other. The bytes are those of the embedded journal; offsets are known here and
//! nowhere else. Every server keeps a *mirror*: the same records in segment files, from which it reads, starts, and
//! could fill another topic.
//!
//! | what happens to an append | what its writer hears |
//! |---|---|
//! | it is read back, and valid | a delivery, with what others wrote, in the topic's order |
//! | it is read back, and another term began before it | that it was skipped |
//! | the brokers refuse it or say nothing in time, or it is not read back in time | that it has no outcome: it steps down |
//!
//! In reading order: how clients are set up, the reader, what a partition holds up to its end, places in the topic, what
//! is not in the mirror yet, opening, the writer's side, what keeps a partition from being read, the loop that delivers,
//! topics with what makes them unsafe, and how a topic is filled from a folder.

mod client;
mod compare;
mod fill;
mod open;
mod place;
mod reader;
mod recent;
mod rest;
mod serve;
pub mod topics;
mod watch;
mod writing;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chancery_events::record::Record;

use crate::chain::Cursor;
use crate::journal::{AppendError, CloseError, Journal, Sink, Source};
use crate::segments::{self, SegmentJournal};
use recent::{Both, Recent};
use serve::Loop;
use writing::Writing;

pub use client::{Client, LARGEST, NotFree};
pub use compare::Other;
pub use fill::{FillError, Filled, Found, fill};
pub use open::{OpenError, Opened, Partition};
pub use reader::{PartitionReader, Polled, UnreadablePartition, offsets};
pub use watch::ReaderWatch;

/// What a mirror that has no room gets to make some.
const ROOM: Duration = Duration::from_millis(1);

/// How to open a journal.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which cluster.
    pub client: Client,
    /// The topic of the journals.
    pub topic: String,
    /// The fleet's partition.
    pub partition: i32,
    /// Where the mirror is, and whose journal it is.
    pub mirror: segments::Options,
    /// Appends that have no outcome yet, at most; of bytes, as many as the client's queue holds.
    pub in_flight: usize,
    /// An append that was not read back after so long has no outcome.
    pub outcome: Duration,
    /// How long brokers may send nothing of what a partition holds before reading it fails; a server waits.
    pub silence: Option<Duration>,
}

impl Options {
    /// The usual ones, with the mirror in a folder.
    pub fn new(
        client: Client,
        topic: &str,
        partition: i32,
        mirror: impl Into<PathBuf>,
        fleet: &str,
    ) -> Options {
        Options {
            client,
            topic: topic.to_owned(),
            partition,
            mirror: segments::Options::new(mirror, fleet),
            in_flight: 8192,
            outcome: Duration::from_secs(20),
            silence: None,
        }
    }
}

/// A journal in a partition of a topic, open for writing: whether this writer may is for the rule to say.
pub struct KafkaJournal {
    shared: Arc<Shared>,
    serving: Mutex<Option<JoinHandle<bool>>>,
}

/// What appenders, readers, the producer's callbacks and the loop share.
struct Shared {
    writing: Writing,
    recent: Arc<Recent>,
    mirror: SegmentJournal,
    /// Why the mirror stopped, if it has.
    broken: Arc<Mutex<Option<String>>>,
    closes: AtomicBool,
}

impl KafkaJournal {
    /// Reads the topic up to its end as of now, into the mirror; `sink` gets what comes from then on. May take as long
    /// as the topic is behind the mirror; blocks.
    pub fn open(options: &Options, sink: Sink) -> Result<(KafkaJournal, Opened), OpenError> {
        let ready = open::open(options)?;
        let opened = ready.opened;
        let looping = Loop::new(options, ready.shared.clone(), ready.reader, ready.chain, ready.place, sink);
        let serving = std::thread::Builder::new().name("kafka-journal".into()).spawn(move || looping.run());
        let serving = serving.map_err(OpenError::Thread)?;
        Ok((KafkaJournal { shared: ready.shared, serving: Mutex::new(Some(serving)) }, opened))
    }
}

impl Journal for KafkaJournal {
    fn append(&self, record: Record) -> Result<(), AppendError> {
        self.shared.writing.append(record)
    }

    fn head(&self) -> Option<Cursor> {
        self.shared.recent.head()
    }

    fn source(&self) -> Arc<dyn Source> {
        Arc::new(Both { mirror: self.shared.mirror.source(), recent: Arc::clone(&self.shared.recent) })
    }

    fn bound_outcomes(&self, within: Duration) {
        self.shared.writing.bound_outcomes(within);
    }

    fn close(&self) -> Result<(), CloseError> {
        self.shared.closes.store(true, Ordering::Release);
        self.shared.writing.close();
        if let Some(serving) = lock(&self.serving).take() {
            // A panic is a stop as well.
            if !serving.join().unwrap_or(false) {
                return Err(CloseError::Stopped);
            }
        }
        Ok(())
    }
}

impl Drop for KafkaJournal {
    fn drop(&mut self) {
        // Whoever wants to know how it went calls `close`.
        let _ = self.close();
    }
}

/// Leaves a record to the mirror, waiting for room; for so long that its disk must be at fault.
fn give(mirror: &SegmentJournal, mut record: Record, patience: Duration) -> Result<(), String> {
    let began = Instant::now();
    loop {
        match mirror.append(record) {
            Ok(()) => return Ok(()),
            Err(AppendError::Busy(_)) if began.elapsed() > patience => {
                return Err(format!(
                    "it has taken nothing for {} s: its disk does not answer",
                    patience.as_secs()
                ));
            }
            Err(AppendError::Busy(back)) => {
                record = *back;
                std::thread::sleep(ROOM);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Destroys a handle of the client library on a thread of its own: the library waits for its own threads then, of which one
/// may ask a name server that does not answer.
pub fn discard<T: Send + 'static>(handle: T) {
    // Where no thread can be started, it is dropped here.
    let _ = std::thread::Builder::new().name("kafka-discard".into()).spawn(move || drop(handle));
}

/// What is under these locks is whole after each statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
