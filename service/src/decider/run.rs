//! The decider's loop: takes what waits, gives it to the driver and does what comes of it. It holds no decision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chancery_events::id::Attach;
use chancery_events::protocol::ToDecider;
use chancery_events::record::Record;
use chancery_events::time::Time;
use chancery_journal::{Delivery, Journal};
use chancery_machine::fleet::Fleet;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::clock::Reading;
use super::core::{Effect, Settings, Ticket};
use super::driver::{Driver, Ended, Left};
use super::handle::{Connection, Decider, Input, Verdict};
use super::hearing::Hearing;
use super::mailbox::Mailbox;

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
    (Decider::over(queue), ended)
}

struct Loop {
    driver: Driver,
    inputs: mpsc::Receiver<Input>,
    deliveries: mpsc::UnboundedReceiver<Delivery>,
    publish: Publish,
    skipped: Box<dyn FnMut() + Send>,
    began: Instant,
    tickets: u64,
    askers: BTreeMap<Ticket, oneshot::Sender<Verdict>>,
    executors: BTreeMap<Connection, Mailbox>,
    drains: bool,
    hearing: Hearing,
}

fn reading(began: Instant) -> Reading {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let wall = Time::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX));
    Reading { wall, steady: began.elapsed() }
}

impl Loop {
    fn new(start: Start, inputs: mpsc::Receiver<Input>) -> Loop {
        let began = Instant::now();
        Loop {
            driver: Driver::begin(start.settings, start.fleet, start.journal, reading(began)),
            inputs,
            deliveries: start.deliveries,
            publish: start.publish,
            skipped: start.skipped,
            began,
            tickets: 0,
            askers: BTreeMap::new(),
            executors: BTreeMap::new(),
            drains: false,
            hearing: Hearing::begin(Duration::ZERO),
        }
    }

    fn now(&self) -> Reading {
        reading(self.began)
    }

    async fn run(mut self) -> Ended {
        loop {
            let unheard = self.hearing.unheard(self.now().steady);
            if let Err(ended) = self.take_what_waits() {
                return ended;
            }
            let now = self.now();
            self.hearing.left(self.inputs.len(), now.steady);
            self.driver.unheard(unheard.max(self.hearing.unheard(now.steady)), now);
            let left = match self.driver.turn(self.now()) {
                Ok(left) => left,
                Err(ended) => return ended,
            };
            self.effects();
            if self.drains && left == Left::Nothing && self.driver.is_quiet() {
                return Ended::Drained;
            }
            if left == Left::More {
                continue;
            }
            // What is due and could not be done waits for a delivery; it is not asked for without end.
            let now = self.now();
            let due = self.driver.next_due(now);
            let pause = due.map_or(Duration::from_hours(1), |due| due.max(PATIENCE));
            let listens = self.is_open() && self.inputs.is_empty();
            tokio::select! {
                biased;
                delivery = self.deliveries.recv() => {
                    if let Err(ended) = self.take(delivery) {
                        return ended;
                    }
                }
                input = self.inputs.recv(), if self.is_open() => self.input(input.unwrap_or(Input::Drain)),
                () = tokio::time::sleep(pause) => {}
            }
            if listens {
                self.hearing.waited(now.steady + pause, self.now().steady);
            }
        }
    }

    /// Whether inputs are taken.
    fn is_open(&self) -> bool {
        !self.drains && self.driver.is_open()
    }

    /// Before a turn, so that nobody is found late whose word waits here since the last one; that may have taken as
    /// long as the disk.
    fn take_what_waits(&mut self) -> Result<(), Ended> {
        loop {
            match self.deliveries.try_recv() {
                Ok(delivery) => self.take(Some(delivery))?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.take(None)?,
            }
        }
        for _ in 0..BATCH {
            if !self.is_open() {
                break;
            }
            match self.inputs.try_recv() {
                Ok(input) => self.input(input),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.input(Input::Drain),
            }
        }
        Ok(())
    }

    fn take(&mut self, delivery: Option<Delivery>) -> Result<(), Ended> {
        let Some(delivery) = delivery else { return Err(Ended::Stopped("the journal is gone".into())) };
        if let Delivery::Skipped(_) = &delivery {
            (self.skipped)();
        }
        let taken = self.driver.take(delivery, &mut self.publish);
        self.effects();
        taken
    }

    fn input(&mut self, input: Input) {
        self.hearing.took();
        match input {
            Input::Intent(request, answer) => {
                self.tickets += 1;
                let ticket = Ticket(self.tickets);
                self.askers.insert(ticket, answer);
                self.driver.intent(ticket, &request, self.now());
            }
            Input::Connected(connection, executor) => {
                self.executors.insert(connection, executor);
                self.driver.connected(connection, Attach::from_random(random()));
            }
            // What it held of the queue is free when it has been dealt with.
            Input::Said(connection, message, _share) => match serde_json::from_slice::<ToDecider>(&message) {
                Ok(message) => self.driver.said(connection, message, self.now()),
                Err(error) => {
                    tracing::warn!(%error, "a message of an executor cannot be read; its connection is closed");
                    self.close(connection);
                }
            },
            Input::Disconnected(connection) => self.close(connection),
            Input::Drain => self.drains = true,
        }
    }

    fn close(&mut self, connection: Connection) {
        self.executors.remove(&connection);
        self.driver.disconnected(connection);
    }

    fn effects(&mut self) {
        for effect in self.driver.effects() {
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
        let sent = serde_json::to_vec(message).map(|message| executor.put(message));
        if !matches!(sent, Ok(Ok(()))) {
            // It does not keep up, or is gone: it connects anew and starts from a level.
            tracing::warn!(?connection, "an executor does not take its messages; its connection is closed");
            self.close(connection);
        }
    }
}

fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}
