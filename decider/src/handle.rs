//! The way in to the decider: a bounded queue, and an answer for each intent once it is durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chancery_events::id::Position;
use chancery_events::intent::Request;
use chancery_events::letter::Letter;
use chancery_events::refusal::Refusal;
use chancery_machine::keys::Accepted;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::mailbox::Mailbox;
use super::way::{Room, Share, pieces};

/// The answer to an intent: durable, and the same for every repeat.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// The position of the verdict's fact; reads that take it as `min_position` see what the intent recorded.
    pub position: Position,
    /// What came of it.
    pub result: Arc<Result<Accepted, Refusal>>,
}

/// Why there is no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoVerdict {
    /// The queue is full, or the decider is draining: nothing was recorded, ask again later.
    #[error("the decider is busy or stopping; nothing was recorded")]
    Busy,
    /// The decider stopped before the answer was durable: ask again with the same id.
    #[error("the decider stopped before the answer was durable; ask again with the same id")]
    Unknown,
}

/// The decider has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the decider has stopped")]
pub struct Stopped;

/// What goes into the decider's queue.
#[derive(Debug)]
pub enum Input {
    /// An intent, and where its answer goes.
    Intent(Box<Request>, oneshot::Sender<Verdict>, Room),
    /// A letter of the inbox, in the order of their offsets: by [`Decider::post`].
    Letter(Box<Letter>, Room),
    /// No letter below this offset is to come.
    InboxPassed(u64),
    /// The message at this offset of the inbox cannot be read.
    InboxStands(u64),
    /// An executor has connected: its messages come as [`Input::Said`].
    Connected(Connection, Mailbox),
    /// An executor said something: one serialised [`chancery_events::protocol::ToDecider`].
    Said(Connection, Vec<u8>, Share),
    /// An executor's connection is gone.
    Disconnected(Connection),
    /// Stop: take nothing more in, let everything become durable.
    Drain,
}

/// Tells connections of executors apart, within one run of the decider.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Connection(pub u64);

/// Numbers the connections of one run of the decider, whichever way executors come.
#[derive(Clone, Debug, Default)]
pub struct Connections(Arc<AtomicU64>);

impl Connections {
    /// One that was not given before.
    pub fn next(&self) -> Connection {
        Connection(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// The decider, as everybody else knows it.
#[derive(Clone, Debug)]
pub struct Decider {
    queue: mpsc::Sender<Input>,
    /// What executors may have waiting, all together: half of the queue.
    pub(super) executors: Arc<Semaphore>,
    /// As many as that.
    pub(super) half: usize,
    /// What letters may have waiting: a quarter of the queue.
    pub(super) letters: Arc<Semaphore>,
    /// As many as that.
    pub(super) quarter: usize,
    /// What intents may have waiting: all of the queue.
    intents: Arc<Semaphore>,
}

impl Decider {
    /// Whoever takes from the other end of the queue is the decider.
    pub fn over(queue: mpsc::Sender<Input>) -> Decider {
        let half = (queue.max_capacity() / 2).max(1);
        let quarter = (half / 2).max(1);
        let (executors, letters) = (Arc::new(Semaphore::new(half)), Arc::new(Semaphore::new(quarter)));
        let intents = Arc::new(Semaphore::new(queue.max_capacity()));
        Decider { queue, executors, half, letters, quarter, intents }
    }

    /// Asks for a verdict on an intent of so many bytes.
    pub async fn ask(&self, request: Request, bytes: usize) -> Result<Verdict, NoVerdict> {
        let (answer, verdict) = oneshot::channel();
        let pieces = pieces(bytes, self.queue.max_capacity());
        let room = Arc::clone(&self.intents).try_acquire_many_owned(pieces);
        let room = Room(room.map_err(|_| NoVerdict::Busy)?);
        self.queue.try_send(Input::Intent(Box::new(request), answer, room)).map_err(|_| NoVerdict::Busy)?;
        verdict.await.map_err(|_| NoVerdict::Unknown)
    }

    /// Puts an input into the queue, waiting for room.
    pub async fn tell(&self, input: Input) -> Result<(), Stopped> {
        self.queue.send(input).await.map_err(|_| Stopped)
    }

    /// Whether it has ended, whatever it is told.
    pub fn has_stopped(&self) -> bool {
        self.queue.is_closed()
    }

    /// How many inputs wait.
    pub fn backlog(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }
}
