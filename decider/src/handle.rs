//! Handle to the decider: a bounded queue, and an answer for each intent once it is durable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chancery_events::id::Position;
use chancery_events::inbox_message::InboxMessage;
use chancery_events::intent::IntentRequest;
use chancery_events::name::ClusterName;
use chancery_events::refusal::Refusal;
use chancery_machine::keys::AcceptedIntent;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::input_permits::{InboxPermit, InputPermit, pieces};
use super::outbox::ExecutorOutbox;

/// Answer to an intent. A recorded verdict is durable, and the same for every repeat.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// Position of the verdict's fact; that of the state for a verdict that is not recorded. Reads with this
    /// `min_position` see what the intent recorded, or the state that it did not change.
    pub position: Position,
    /// Whether the journal has the verdict.
    pub is_recorded: bool,
    /// Outcome of the intent.
    pub result: Arc<Result<AcceptedIntent, Refusal>>,
}

/// Handling of the verdict on a new intent that changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UnchangedVerdict {
    /// The verdict is answered and not recorded, so that a loop that applies the same does not grow the journal. A
    /// repeat is decided again.
    #[default]
    Unrecorded,
    /// Intent and verdict are recorded, and every repeat gets this verdict.
    Recorded,
}

/// Reason why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VerdictError {
    /// Queue full, or decider draining: nothing was recorded, retry later.
    #[error("cannot decide intent: the decider is busy or stopping; nothing was recorded")]
    Busy,
    /// Decider stopped before the answer was durable: retry with the same id.
    #[error(
        "cannot return verdict: the decider stopped before it was durable\nhint: send the intent again with the same id"
    )]
    Unknown,
}

/// Error for a decider that has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot reach decider: it has stopped")]
pub struct DeciderStopped;

/// Context of the span of the request that has an intent; `None` if spans are not recorded.
pub type IntentTrace = Option<String>;

/// Inputs in the decider's queue.
#[derive(Debug)]
pub enum DeciderInput {
    /// Intent, the sender for its answer, and the trace of its request.
    Intent(Box<IntentRequest>, UnchangedVerdict, oneshot::Sender<Verdict>, IntentTrace, InboxPermit),
    /// Inbox message, in order of offsets; sent by [`DeciderHandle::post`].
    InboxMessage(Box<InboxMessage>, InboxPermit),
    /// Offset below which no inbox message will come.
    InboxPassed(u64),
    /// Offset of an inbox message that cannot be read.
    InboxBlocked(u64),
    /// New connection of an executor, whose messages follow as [`DeciderInput::ExecutorMessage`].
    Connected(ChannelNumber, ExecutorOutbox),
    /// Message of an executor: one serialised [`chancery_events::protocol::ExecutorMessage`].
    ExecutorMessage(ChannelNumber, Vec<u8>, InputPermit),
    /// Closed connection of an executor.
    Disconnected(ChannelNumber),
    /// Request for a reading, for metrics.
    Read(oneshot::Sender<DeciderReading>),
    /// Request to drain: the decider takes no more inputs, and makes everything durable.
    Drain,
}

/// Values of a decider that only the decider has, for metrics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeciderReading {
    /// Time until each open session expires unless its executor sends a message, by cluster.
    pub leases: BTreeMap<ClusterName, Duration>,
    /// Offset of the next inbox message; `None` without an inbox.
    pub inbox_offset: Option<u64>,
}

/// Number of an executor's connection, unique while the decider runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChannelNumber(pub u64);

/// Numbers the connections of one decider, whatever their transport.
#[derive(Clone, Debug, Default)]
pub struct ChannelNumbers(Arc<AtomicU64>);

impl ChannelNumbers {
    /// Returns a number that was not returned before.
    pub fn next(&self) -> ChannelNumber {
        ChannelNumber(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// Handle to the decider, for all its clients.
#[derive(Clone, Debug)]
pub struct DeciderHandle {
    queue: mpsc::Sender<DeciderInput>,
    /// Permits for waiting executor messages: half of the queue.
    pub(super) executors: Arc<Semaphore>,
    /// Number of `executors` permits.
    pub(super) half: usize,
    /// Permits for waiting inbox messages: a quarter of the queue.
    pub(super) messages: Arc<Semaphore>,
    /// Number of permits for inbox messages.
    pub(super) quarter: usize,
    /// Permits for waiting intents: all of the queue.
    intents: Arc<Semaphore>,
}

impl DeciderHandle {
    /// Returns a handle to the decider that receives from the queue.
    pub fn over(queue: mpsc::Sender<DeciderInput>) -> DeciderHandle {
        let half = (queue.max_capacity() / 2).max(1);
        let quarter = (half / 2).max(1);
        let (executors, inbox_messages) = (Arc::new(Semaphore::new(half)), Arc::new(Semaphore::new(quarter)));
        let intents = Arc::new(Semaphore::new(queue.max_capacity()));
        DeciderHandle { queue, executors, half, messages: inbox_messages, quarter, intents }
    }

    /// Returns the verdict on an intent of `bytes` bytes.
    pub async fn ask(
        &self,
        mut request: IntentRequest,
        unchanged: UnchangedVerdict,
        bytes: usize,
    ) -> Result<Verdict, VerdictError> {
        let trace = chancery_spans::current();
        if request.traceparent.is_none() {
            request.traceparent.clone_from(&trace);
        }
        let (answer, verdict) = oneshot::channel();
        let pieces = pieces(bytes, self.queue.max_capacity());
        let permit = Arc::clone(&self.intents).try_acquire_many_owned(pieces);
        let permit = InboxPermit(permit.map_err(|_| VerdictError::Busy)?);
        self.queue
            .try_send(DeciderInput::Intent(Box::new(request), unchanged, answer, trace, permit))
            .map_err(|_| VerdictError::Busy)?;
        verdict.await.map_err(|_| VerdictError::Unknown)
    }

    /// Puts an input into the queue, waiting for space.
    pub async fn send(&self, input: DeciderInput) -> Result<(), DeciderStopped> {
        self.queue.send(input).await.map_err(|_| DeciderStopped)
    }

    /// Returns a reading; `None` if the decider is busy or stops.
    pub async fn read(&self) -> Option<DeciderReading> {
        let (answer, reading) = oneshot::channel();
        self.queue.try_send(DeciderInput::Read(answer)).ok()?;
        reading.await.ok()
    }

    /// Whether the decider has ended and takes no inputs.
    pub fn has_stopped(&self) -> bool {
        self.queue.is_closed()
    }

    /// Returns the number of waiting inputs.
    pub fn backlog(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }
}
