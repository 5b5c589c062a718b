//! The decider's loop: takes what waits, lets the core decide, hands commits to the journal and lets go of what the
//! core releases. It holds no decision.
//!
//! While a commit becomes durable, the next one fills: at most [`DEPTH`] are on their way, so that the commits are as
//! large as the disk is slow.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chancery_events::id::{Attach, Position};
use chancery_events::protocol::ToDecider;
use chancery_events::record::{Hash, Record};
use chancery_events::time::Time;
use chancery_journal::{AppendError, Cursor, Delivery, Journal, Source};
use chancery_machine::fleet::Fleet;
use tokio::sync::{mpsc, oneshot};

use super::clock::Clock;
use super::core::{Core, Effect, Settings, Ticket};
use super::handle::{Connection, Decider, Input, Verdict};

/// Commits on their way to being durable, at most.
const DEPTH: usize = 2;
/// The shortest pause when nothing can be done.
const PATIENCE: Duration = Duration::from_millis(2);
/// Inputs taken before due work gets its turn.
const BATCH: usize = 512;

/// Gives durable records to everybody who follows the journal.
pub type Publish = Box<dyn FnMut(&[Arc<Record>]) + Send>;

/// What the decider begins with.
pub struct Start {
    /// Who decides, for whom, and how.
    pub settings: Settings,
    /// The state at the journal's head.
    pub fleet: Fleet,
    /// The journal. Its sink must be the sender of `deliveries`.
    pub journal: Arc<dyn Journal>,
    /// What the journal tells.
    pub deliveries: mpsc::UnboundedReceiver<Delivery>,
    /// Called with all records that are durable, in order, before anyone is told of their effects.
    pub publish: Publish,
    /// Called for each record in the journal that does not count.
    pub skipped: Box<dyn FnMut() + Send>,
    /// Inputs that wait, at most.
    pub queue: usize,
}

/// Why the decider ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// It was drained: everything that it answered is durable.
    #[error("the decider was drained")]
    Drained,
    /// The journal stopped: nothing more can be made durable.
    #[error("the journal stopped: {0}")]
    Stopped(String),
    /// Another decider has taken over.
    #[error("another decider has taken over: {0}")]
    Overtaken(String),
}

/// Starts the decider on a thread of its own. The receiver tells why it ended.
pub fn start(start: Start) -> (Decider, oneshot::Receiver<Ended>) {
    let (queue, inputs) = mpsc::channel(start.queue);
    let (end, ended) = oneshot::channel();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let why = match runtime {
            Ok(runtime) => runtime.block_on(Loop::new(start, inputs).run()),
            Err(error) => Ended::Stopped(format!("start the decider's runtime: {error}")),
        };
        let _ = end.send(why);
    };
    std::thread::Builder::new().name("decider".into()).spawn(run).expect("the system can start a thread");
    (Decider { queue }, ended)
}

struct Loop {
    core: Core,
    journal: Arc<dyn Journal>,
    source: Arc<dyn Source>,
    inputs: mpsc::Receiver<Input>,
    deliveries: mpsc::UnboundedReceiver<Delivery>,
    publish: Publish,
    skipped: Box<dyn FnMut() + Send>,
    clock: Clock,
    began: Instant,
    tickets: u64,
    askers: BTreeMap<Ticket, oneshot::Sender<Verdict>>,
    executors: BTreeMap<Connection, mpsc::Sender<Vec<u8>>>,
    waiting: VecDeque<Record>,
    drain: Option<Drain>,
}

/// How far a drain has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drain {
    Asked,
}

fn wall() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Time::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

impl Loop {
    fn new(start: Start, inputs: mpsc::Receiver<Input>) -> Loop {
        let head: Option<Cursor> = start.journal.head();
        let clock = Clock::begin(head.as_ref().map_or(Time::EPOCH, |head| head.time), wall(), Duration::ZERO);
        let core = Core::take_over(start.settings, start.fleet, head.as_ref(), wall());
        Loop {
            core,
            source: start.journal.source(),
            journal: start.journal,
            inputs,
            deliveries: start.deliveries,
            publish: start.publish,
            skipped: start.skipped,
            clock,
            began: Instant::now(),
            tickets: 0,
            askers: BTreeMap::new(),
            executors: BTreeMap::new(),
            waiting: VecDeque::new(),
            drain: None,
        }
    }

    fn now(&mut self) -> Time {
        self.clock.read(wall(), self.began.elapsed())
    }

    async fn run(mut self) -> Ended {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let more = match self.turn() {
                Ok(more) => more,
                Err(ended) => return ended,
            };
            if self.drain == Some(Drain::Asked)
                && !more
                && self.core.in_flight() == 0
                && self.waiting.is_empty()
            {
                return Ended::Drained;
            }
            let open = self.drain.is_none() && !self.core.is_full() && self.waiting.is_empty();
            let due = self.core.next_due();
            let now = self.now();
            let pause = if more && self.core.in_flight() < DEPTH {
                Duration::ZERO
            } else {
                // What is due and could not be done waits for a delivery; it is not asked for without end.
                due.map_or(Duration::from_hours(1), |due| due.since(now).max(PATIENCE))
            };
            let sleeping = !pause.is_zero();
            tokio::select! {
                biased;
                delivery = self.deliveries.recv() => {
                    if let Err(ended) = self.take(delivery) {
                        return ended;
                    }
                }
                taken = self.inputs.recv_many(&mut batch, BATCH), if open => {
                    if taken == 0 {
                        self.drain = Some(Drain::Asked);
                    }
                }
                () = tokio::time::sleep(pause), if sleeping => {}
                () = std::future::ready(()), if !sleeping => {}
            }
            for input in batch.drain(..) {
                self.input(input);
            }
        }
    }

    /// Due work, then a commit if there is room for one on the way. Whether more work is due.
    fn turn(&mut self) -> Result<bool, Ended> {
        let now = self.now();
        let more = self.core.work(now);
        self.waiting.extend(self.core.early());
        while let Some(record) = self.waiting.pop_front() {
            if let Some(record) = self.append(record)? {
                self.waiting.push_front(record);
                break;
            }
        }
        if self.waiting.is_empty()
            && self.core.in_flight() < DEPTH
            && let Some(record) = self.core.seal()
            && let Some(record) = self.append(record)?
        {
            self.waiting.push_back(record);
        }
        self.effects();
        Ok(more)
    }

    /// Gives a record back if the journal has no room for it now.
    fn append(&self, record: Record) -> Result<Option<Record>, Ended> {
        match self.journal.append(record) {
            Ok(()) => Ok(None),
            Err(AppendError::Busy(record)) => Ok(Some(*record)),
            Err(error @ AppendError::Invalid(_)) => Err(Ended::Overtaken(error.to_string())),
            Err(error @ (AppendError::Broken(_) | AppendError::Closed)) => {
                Err(Ended::Stopped(error.to_string()))
            }
        }
    }

    fn take(&mut self, delivery: Option<Delivery>) -> Result<(), Ended> {
        match delivery {
            Some(Delivery::Records(records)) => {
                let own = self.core.delivered(&records);
                (self.publish)(&records);
                self.effects();
                if own {
                    Ok(())
                } else {
                    Err(Ended::Overtaken("a record of another writer stands in the journal".into()))
                }
            }
            Some(Delivery::Skipped(skipped)) => {
                tracing::warn!(?skipped, "a record in the journal does not count");
                (self.skipped)();
                Ok(())
            }
            Some(Delivery::Indefinite(error)) => {
                Err(Ended::Overtaken(format!("an append has no outcome: {error}")))
            }
            Some(Delivery::Stopped(error)) => Err(Ended::Stopped(error.to_string())),
            None => Err(Ended::Stopped("the journal is gone".into())),
        }
    }

    fn input(&mut self, input: Input) {
        let now = self.now();
        match input {
            Input::Intent(request, answer) => {
                self.tickets += 1;
                let ticket = Ticket(self.tickets);
                self.askers.insert(ticket, answer);
                self.core.intent(ticket, &request, now);
            }
            Input::Connected(connection, executor) => {
                self.executors.insert(connection, executor);
                self.core.connected(connection, Attach::from_random(random()));
            }
            Input::Said(connection, message) => match serde_json::from_slice::<ToDecider>(&message) {
                Ok(message) => {
                    let source = Arc::clone(&self.source);
                    self.core.said(connection, message, now, &|position| recorded(&*source, position));
                }
                Err(error) => {
                    tracing::warn!(%error, "a message of an executor cannot be read; its connection is closed");
                    self.close(connection);
                }
            },
            Input::Disconnected(connection) => self.close(connection),
            Input::Drain => self.drain = Some(Drain::Asked),
        }
        self.waiting.extend(self.core.early());
    }

    fn close(&mut self, connection: Connection) {
        self.executors.remove(&connection);
        self.core.disconnected(connection);
    }

    fn effects(&mut self) {
        for effect in self.core.effects() {
            match effect {
                Effect::Answer(ticket, verdict) => {
                    if let Some(asker) = self.askers.remove(&ticket) {
                        // Whoever asked may be gone; the verdict stands for its repeat.
                        let _ = asker.send(verdict);
                    }
                }
                Effect::Send(connection, message) => self.send(connection, &message),
                Effect::Close(connection) => self.close(connection),
            }
        }
    }

    fn send(&mut self, connection: Connection, message: &chancery_events::protocol::FromDecider) {
        let Some(executor) = self.executors.get(&connection) else { return };
        let sent = serde_json::to_vec(message).map(|message| executor.try_send(message));
        if !matches!(sent, Ok(Ok(()))) {
            // It does not keep up, or is gone: it connects anew and starts from a level.
            tracing::warn!(?connection, "an executor does not take its messages; its connection is closed");
            self.close(connection);
        }
    }
}

/// The hash of the record that ends at the position, if one does.
fn recorded(source: &dyn Source, position: Position) -> Option<Hash> {
    let record = source.records(position).ok()?.next()?.ok()?;
    (record.last() == position).then(|| record.hash())
}

fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
