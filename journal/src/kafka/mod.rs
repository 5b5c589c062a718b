//! Journal on Apache Kafka: for a fleet that outlives its server, with standby servers.
//!
//! ```text
//!            append                       read back
//! decider ───────────► producer ► topic ────────────► reader ─► rule ─┬─► sink
//!    ▲                                   all records    │             ├─► recent ┐
//!    └────────────────────── deliveries ────────────────┘             └─► mirror ┴─► source
//! ```
//! A record is appended by sending it, and counts when it is read back. The record is then on all brokers in
//! sync, and valid by the rule. All servers read the same partition in the same order and apply the same
//! rule, so they agree without communicating. The bytes are those of the embedded journal; only this module
//! knows offsets. Every server keeps a *mirror*: the same records in segment files, which it reads, starts
//! from, and could import into another topic.
//!
//! | what happens to an append | what its writer receives |
//! |---|---|
//! | it is read back, and valid | a delivery, with records of other writers, in the topic's order |
//! | it is read back, and another term started before it | a skip |
//! | the brokers refuse it or time out, or it is not read back in time | no outcome: it steps down |
//!
//! In reading order: client settings, the reader, the backlog of a partition, offset checkpoints, records not
//! in the mirror yet, opening, the writer. Then obstacles to reading a partition, the delivery loop, topics
//! and their unsafe settings, and the import of a directory into a topic.

mod backlog;
mod checkpoint;
mod client;
mod compare;
mod delivery;
mod import;
mod open;
mod producer;
mod reader;
mod tail;
pub mod topics;
mod watch;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chancery_events::record::Record;

use crate::chain::ChainCursor;
use crate::journal::{AppendError, CloseError, DeliverySink, Journal, JournalReader, lock};
use crate::segments::{self, SegmentJournal};
use producer::AppendProducer;
use tail::{MergedReader, UnmirroredTail};

pub use client::{FixedKafkaSetting, KafkaClient, KafkaClientError, LARGEST};
pub use compare::PartitionMismatch;
pub use import::{ImportError, ImportReport, PartitionState, import_journal};
pub use open::{KafkaOpenError, OpenedKafkaJournal, PartitionAddress};
pub use reader::{PartitionReader, PollResult, UnreadablePartition, offsets};
pub use watch::ReaderWatch;

/// Pause before a full mirror is retried.
const ROOM: Duration = Duration::from_millis(1);

/// Options for opening a journal.
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    /// Cluster of brokers.
    pub client: KafkaClient,
    /// Topic of the journals.
    pub topic: String,
    /// Partition of the fleet.
    pub partition: i32,
    /// Directory of the mirror, and the fleet.
    pub mirror: segments::SegmentOptions,
    /// Maximum number of appends without an outcome (default: 8192); the client's queue limits their bytes.
    pub in_flight: usize,
    /// Time after which an append that was not read back has no outcome (default: 20 s).
    pub outcome: Duration,
    /// Time without data from the brokers until reading a partition fails (default: none, as a server waits).
    pub silence: Option<Duration>,
}

impl KafkaOptions {
    /// Returns the default options, with the mirror in a directory.
    pub fn new(
        client: KafkaClient,
        topic: &str,
        partition: i32,
        mirror: impl Into<PathBuf>,
        fleet: &str,
    ) -> KafkaOptions {
        KafkaOptions {
            client,
            topic: topic.to_owned(),
            partition,
            mirror: segments::SegmentOptions::new(mirror, fleet),
            in_flight: 8192,
            outcome: Duration::from_secs(20),
            silence: None,
        }
    }
}

/// Journal in a partition of a topic, open for writing: the rule decides whether this writer may write.
pub struct KafkaJournal {
    shared: Arc<KafkaShared>,
    serving: Mutex<Option<JoinHandle<bool>>>,
}

/// State shared by appenders, readers, the producer's callbacks and the loop.
struct KafkaShared {
    writing: AppendProducer,
    recent: Arc<UnmirroredTail>,
    mirror: SegmentJournal,
    /// Reason why the mirror stopped.
    broken: Arc<Mutex<Option<String>>>,
    closes: AtomicBool,
}

impl KafkaJournal {
    /// Reads the topic up to its current end into the mirror; `sink` receives what follows. Blocks until the
    /// mirror has caught up with the topic.
    pub fn open(
        options: &KafkaOptions,
        sink: DeliverySink,
    ) -> Result<(KafkaJournal, OpenedKafkaJournal), KafkaOpenError> {
        let (shared, looping, opened) = open::open(options, sink)?;
        let serving = std::thread::Builder::new().name("kafka-journal".into()).spawn(move || looping.run());
        let serving = serving.map_err(KafkaOpenError::Thread)?;
        Ok((KafkaJournal { shared, serving: Mutex::new(Some(serving)) }, opened))
    }
}

impl Journal for KafkaJournal {
    fn append(&self, record: Record) -> Result<(), AppendError> {
        self.shared.writing.append(record)
    }

    fn head(&self) -> Option<ChainCursor> {
        self.shared.recent.head()
    }

    fn source(&self) -> Arc<dyn JournalReader> {
        Arc::new(MergedReader {
            mirror: self.shared.mirror.source(),
            recent: Arc::clone(&self.shared.recent),
        })
    }

    fn bound_outcomes(&self, within: Duration) {
        self.shared.writing.bound_outcomes(within);
    }

    fn close(&self) -> Result<(), CloseError> {
        self.shared.closes.store(true, Ordering::Release);
        self.shared.writing.close();
        if let Some(serving) = lock(&self.serving).take() {
            // A panic counts as a stop.
            if !serving.join().unwrap_or(false) {
                return Err(CloseError::Stopped);
            }
        }
        Ok(())
    }
}

impl Drop for KafkaJournal {
    fn drop(&mut self) {
        // Callers that need the result call `close`.
        let _ = self.close();
    }
}

/// Appends a record to the mirror, waiting while its queue is full. Fails after `patience`: then the disk is
/// at fault.
fn give(mirror: &SegmentJournal, mut record: Record, patience: Duration) -> Result<(), String> {
    let began = Instant::now();
    loop {
        match mirror.append(record) {
            Ok(()) => return Ok(()),
            Err(AppendError::Busy(_)) if began.elapsed() > patience => {
                return Err(format!(
                    "it accepted no record for {} s: its disk does not answer",
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

/// Destroys a handle of the client library on a separate thread. The library then waits for its own threads,
/// one of which may be querying a name server that does not answer.
pub fn discard<T: Send + 'static>(handle: T) {
    // If no thread can be started, the handle is dropped here.
    let _ = std::thread::Builder::new().name("kafka-discard".into()).spawn(move || drop(handle));
}
