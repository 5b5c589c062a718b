//! Interface of every journal, independent of its storage.
//!
//! A writer appends without waiting. The writer's [`DeliverySink`] receives the outcome in log order,
//! together with records of others. Invariants: sinks and readers receive only records that are durable *and*
//! valid, each exactly once and in order. The journal reports a record as durable only if it knows that, and
//! reports nothing after [`JournalDelivery::Stopped`].

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_events::subject::Subject;

use crate::chain::{ChainCursor, ChainError, SkipReason, SkippedRecord};

/// Notification from a journal to its writer.
#[derive(Debug)]
pub enum JournalDelivery {
    /// Next durable and valid records in order, from this writer and from others. At least one; all records
    /// that one sync made durable are delivered together.
    Records(Vec<Arc<Record>>),
    /// Log entry that is not valid. If its hash is that of an own append, another writer has taken over, and
    /// the record of that writer was delivered before.
    Skipped(SkippedRecord),
    /// Append of unknown outcome, which is in the log now, later or never: the writer must step down. Only a
    /// new term that is read back as valid proves the outcome.
    OutcomeUnknown(Box<dyn Error + Send + Sync>),
    /// The journal has stopped permanently, and the process must stop. Undelivered appends may be found when
    /// the journal is opened again.
    Stopped(Box<dyn Error + Send + Sync>),
}

/// Callback that receives deliveries, one call at a time, on the journal's own thread or within
/// [`Journal::append_here`]. The callback must return quickly and must not call the journal.
pub type DeliverySink = Box<dyn FnMut(JournalDelivery) + Send>;

/// Journal of a fleet, open for writing. Delivers what follows the head as of its opening.
pub trait Journal: Send + Sync {
    /// Queues a record and returns; the sink receives the outcome. The queue is bounded.
    fn append(&self, record: Record) -> Result<(), AppendError>;

    /// Queues a record like [`Journal::append`]. If no other append is in flight, this thread may make the
    /// record durable and notify the sink before the call returns. That saves waking a thread, for a caller
    /// with nothing else to do until then.
    fn append_here(&self, record: Record) -> Result<(), AppendError> {
        self.append(record)
    }

    /// Returns the last record that is durable and valid; `None` before the first.
    fn head(&self) -> Option<ChainCursor>;

    /// Returns a reader of the same journal.
    fn source(&self) -> Arc<dyn JournalReader>;

    /// Reports an append without an outcome after `within` as [`JournalDelivery::OutcomeUnknown`] from now
    /// on. For a process that must end while the storage does not answer. The default does nothing, for
    /// journals whose appends do not wait for others.
    fn bound_outcomes(&self, _within: Duration) {}

    /// Makes every queued record durable, then releases the journal. Later appends fail.
    fn close(&self) -> Result<(), CloseError>;
}

/// Records in order, from a journal that grows: `None` means that the head is reached, and a later call
/// continues when there is more. An error is final.
pub type RecordIter = Box<dyn Iterator<Item = Result<Arc<Record>, ReadError>> + Send>;

/// Locks data that is consistent after each statement: a panic elsewhere has left it so.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the results of `step`, up to the first error.
pub(crate) fn records_by(
    mut step: impl FnMut() -> Result<Option<Arc<Record>>, ReadError> + Send + 'static,
) -> RecordIter {
    let mut has_failed = false;
    Box::new(std::iter::from_fn(move || {
        if has_failed {
            return None;
        }
        let record = step();
        has_failed = record.is_err();
        record.transpose()
    }))
}

/// Reader of a journal, independent of its writer: returns durable and valid records only.
pub trait JournalReader: Send + Sync {
    /// Returns the last record that can be read; `None` before the first.
    fn head(&self) -> Option<ChainCursor>;

    /// Returns the records from the one that contains `from`; none yet if `from` is beyond the head.
    fn records(&self, from: Position) -> Result<RecordIter, ReadError>;

    /// Returns the reason why this reader cannot follow the journal; `None` if it can.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Returns the records from `from` on that have events about the subject or issue its id, in order. Ends
    /// at the head as of each read. May include other records, unless the journal has an index of subjects.
    fn records_about(&self, _subject: &Subject, from: Position) -> Result<RecordIter, ReadError> {
        self.records(from)
    }

    /// Returns the records from `from` on that have facts with this cause, in order; `from` is after the record
    /// of the cause. Ends at the head as of each read. May include other records, unless the journal has an
    /// index of causes.
    fn records_caused_by(&self, _cause: Position, from: Position) -> Result<RecordIter, ReadError> {
        self.records(from)
    }
}

/// Reason why a record was not queued. The record will never be in the log.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The queue is full: the append can be retried after the next delivery.
    #[error("cannot append record: the queue is full")]
    Busy(Box<Record>),
    /// The record was decided on another state, or by a fenced writer: the writer must step down.
    #[error("cannot append record: {0}")]
    Invalid(SkipReason),
    /// The writer violated the rules of the chain: an internal error.
    #[error(transparent)]
    Broken(#[from] ChainError),
    /// The journal is closed, or has stopped and notified its sink.
    #[error("cannot append record: the journal is closed")]
    Closed,
}

/// Reason why the journal could not be closed cleanly.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// The journal had stopped and notified its sink: some queued records were not written.
    #[error("cannot close journal: it has stopped")]
    Stopped,
}

/// Reason why a journal cannot be read further.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The storage failed: the read can be retried.
    #[error("cannot read journal in {place}")]
    Io {
        /// Path of the file.
        place: String,
        /// Underlying error.
        source: std::io::Error,
    },
    /// The stored data is damaged or altered: the server must be stopped, and a copy restored.
    #[error("cannot read journal in {place}: damaged at position {position}: {reason}")]
    Damaged {
        /// File and offset.
        place: String,
        /// Position expected there.
        position: Position,
        /// Damage, in words.
        reason: String,
    },
    /// The record continues the chain but cannot be accepted.
    #[error(transparent)]
    Broken(#[from] ChainError),
}
