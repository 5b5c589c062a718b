//! What every journal does, whatever holds its bytes.
//!
//! A writer appends and goes on; what became of the append comes to its [`Sink`], in the log's order, together with
//! whatever others wrote. What must stay true: a record reaches a sink or a reader only when it is durable *and*
//! valid, each exactly once and in order; nothing that the journal cannot vouch for is ever called durable; after
//! [`Delivery::Stopped`] nothing more is.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_events::subject::Subject;

use crate::chain::{Broken, Cursor, SkipReason, Skipped};

/// What a journal tells its writer.
#[derive(Debug)]
pub enum Delivery {
    /// Durable and valid, the next in order: own ones and those of other writers. At least one; all that one sync
    /// made durable come together.
    Records(Vec<Arc<Record>>),
    /// Something in the log does not count. It may be an own append, known by its hash: then another writer has
    /// taken over, whose record was delivered before.
    Skipped(Skipped),
    /// An append may or may not be in the log, now or later: step down. Only a new term that reads back valid says
    /// what became of it.
    Indefinite(Box<dyn Error + Send + Sync>),
    /// The journal has stopped and will not go on: stop the process. What was appended and not delivered may be
    /// found in the journal when it is opened again.
    Stopped(Box<dyn Error + Send + Sync>),
}

/// Where a journal delivers. Called from the journal's own thread or within [`Journal::append_here`], one call at a
/// time; it must be quick and must not call the journal.
pub type Sink = Box<dyn FnMut(Delivery) + Send>;

/// A fleet's journal, open for writing. It delivers what comes after the head that it had when it was opened.
pub trait Journal: Send + Sync {
    /// Queues a record and returns; its outcome comes to the sink. The queue is bounded.
    fn append(&self, record: Record) -> Result<(), AppendError>;

    /// Queues a record like [`Journal::append`]; where nothing else is on its way, it may be made durable on this
    /// thread, and its outcome may come to the sink before this returns. That saves waking one thread: for an
    /// appender that has nothing else to do until then.
    fn append_here(&self, record: Record) -> Result<(), AppendError> {
        self.append(record)
    }

    /// The last record that is durable and valid; `None` before the first.
    fn head(&self) -> Option<Cursor>;

    /// Reads the same journal.
    fn source(&self) -> Arc<dyn Source>;

    /// From now on, an append that has no outcome after `within` is told as [`Delivery::Indefinite`]: for a process that is
    /// told to end while the journal's storage does not answer. A journal whose appends do not wait for others takes no
    /// notice.
    fn bound_outcomes(&self, within: Duration) {
        let _ = within;
    }

    /// Lets everything queued become durable, then lets go of the journal. Nothing can be appended afterwards.
    fn close(&self) -> Result<(), CloseError>;
}

/// Records in order, from a journal that grows: `None` says that the head is reached, and a later call goes on when
/// there is more. An error is final.
pub type Records = Box<dyn Iterator<Item = Result<Arc<Record>, ReadError>> + Send>;

/// Gives a record for each step, until a step fails: an error is final.
pub(crate) fn records_by(
    mut step: impl FnMut() -> Result<Option<Arc<Record>>, ReadError> + Send + 'static,
) -> Records {
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

/// Reads a journal, apart from its writer: durable and valid records only.
pub trait Source: Send + Sync {
    /// The last record that can be read; `None` before the first.
    fn head(&self) -> Option<Cursor>;

    /// The records from the one that holds `from` on. Beyond the head there are none yet.
    fn records(&self, from: Position) -> Result<Records, ReadError>;

    /// What keeps this from following the journal, if anything does.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// The records with events about the subject at `from` or after it, or that issue its id, in order, up to the
    /// head as it is while they are read; others may be among them. A journal that knows where they are reads no
    /// others.
    fn records_about(&self, subject: &Subject, from: Position) -> Result<Records, ReadError> {
        let _ = subject;
        self.records(from)
    }
}

/// Why a record was not queued. It will never be in the log.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The queue is full: append it again after the next delivery.
    #[error("append a record: the queue is full")]
    Busy(Box<Record>),
    /// It was decided on another state than the journal's, or by a writer that has been overtaken: step down.
    #[error("append a record: {0}")]
    Invalid(SkipReason),
    /// A writer that breaks the rules of the chain: a mistake in the program.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The journal is closed, or has stopped as its sink was told.
    #[error("append a record: the journal is closed")]
    Closed,
}

/// The journal could not be closed cleanly.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// It had stopped, as its sink was told: some of what was queued was not written.
    #[error("close the journal: it had stopped")]
    Stopped,
}

/// A journal cannot be read further.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The storage failed: it may be tried again.
    #[error("read the journal in {place}")]
    Io {
        /// A file.
        place: String,
        /// What failed.
        source: std::io::Error,
    },
    /// What is stored is damaged or altered: stop, and restore it from a copy.
    #[error("read the journal in {place} at position {position}: {reason}")]
    Damaged {
        /// A file and an offset.
        place: String,
        /// The position that should stand there.
        position: Position,
        /// What is wrong.
        reason: String,
    },
    /// A record continues the chain but cannot be taken.
    #[error(transparent)]
    Broken(#[from] Broken),
}
