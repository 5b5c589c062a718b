//! The decider's loop: takes what waits, gives it to the driver and does what comes of it. It holds no decision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chancery_events::id::{Attach, Position};
use chancery_events::record::Record;
use chancery_journal::{Cursor, Delivery, Journal};
use chancery_machine::fleet::Fleet;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::clock::Reading;
use super::core::{self, Effect, Settings, Ticket};
use super::driver::{Driver, Ended, Left};
use super::handle::{Connection, Decider, Input, Verdict};
use super::hearing::Hearing;
use super::mailbox::Mailbox;
use crate::wall_clock::{self, JudgedClock, WallClock};

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
    /// The state at `head`.
    pub fleet: Fleet,
    /// The end of the journal: the next delivery continues it, or was another writer's.
    pub head: Option<Cursor>,
    /// The journal. Its sink must be the sender of `following.deliveries`.
    pub journal: Arc<dyn Journal>,
    /// What follows the journal, whoever decides.
    pub following: Following,
    /// Inputs that wait, at most.
    pub queue: usize,
    /// Whether the wall clock is trusted.
    pub clock: Arc<WallClock>,
    /// The clock to begin with.
    pub judged: JudgedClock,
}

/// What follows the journal: lent to the decider while there is one here.
pub struct Following {
    /// What the journal tells.
    pub deliveries: mpsc::UnboundedReceiver<Delivery>,
    /// Called with all records that are durable, in order, before anyone is told of their effects.
    pub publisher: Publish,
    /// Called for each record in the journal that does not count.
    pub skipped: Box<dyn FnMut() + Send>,
    /// The last position that was published.
    pub published: Position,
}

impl Following {
    /// Follows nothing.
    pub fn nothing() -> Following {
        let (_, deliveries) = mpsc::unbounded_channel();
        Following {
            deliveries,
            publisher: Box::new(|_| ()),
            skipped: Box::new(|| ()),
            published: Position::ZERO,
        }
    }

    /// Gives records to everybody.
    pub fn publish(&mut self, records: &[Arc<Record>]) {
        if let Some(last) = records.last() {
            self.published = last.last();
        }
        (self.publisher)(records);
    }
}

/// Why a decider ended, and what it was lent.
pub type Over = (Ended, Following);

/// Starts the decider on a thread of its own. The receiver tells why it ended; it is closed if the thread panicked.
pub fn start(start: Start) -> std::io::Result<(Decider, oneshot::Receiver<Over>)> {
    let (queue, inputs) = mpsc::channel(start.queue);
    let (end, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let run = move || {
        let mut decider = Loop::new(start, inputs);
        let why = runtime.block_on(decider.run());
        // Whoever waited for it may be gone.
        let _ = end.send((why, decider.following));
    };
    std::thread::Builder::new().name("decider".into()).spawn(run)?;
    Ok((Decider::over(queue), ended))
}

struct Loop {
    driver: Driver,
    inputs: mpsc::Receiver<Input>,
    following: Following,
    began: Instant,
    tickets: u64,
    askers: BTreeMap<Ticket, oneshot::Sender<Verdict>>,
    executors: BTreeMap<Connection, Mailbox>,
    hearing: Hearing,
    clock: Arc<WallClock>,
    /// Whether the wall clock is not followed.
    has_leapt: bool,
}

fn reading(began: Instant) -> Reading {
    Reading { wall: wall_clock::now(), steady: began.elapsed() }
}

/// The clock that was judged, and what has passed since: another clock by now is read as a leap, and executors get their
/// whole grace from now on.
fn first_reading(judged: JudgedClock) -> Reading {
    let passed = judged.at.elapsed();
    Reading { wall: judged.wall + passed, steady: passed }
}

impl Loop {
    fn new(start: Start, inputs: mpsc::Receiver<Input>) -> Loop {
        let (began, clock) = (start.judged.at, start.clock);
        let head = start.head.as_ref();
        let judged = first_reading(start.judged);
        let mut driver = Driver::begin(start.settings, start.fleet, head, start.journal, judged);
        driver.clock.bound(clock.follow_gap(Duration::ZERO));
        if let Some(span) = clock.record_every() {
            driver.core.record_time_every(span);
        }
        Loop {
            driver,
            inputs,
            following: start.following,
            began,
            tickets: 0,
            askers: BTreeMap::new(),
            executors: BTreeMap::new(),
            hearing: Hearing::begin(judged.steady),
            clock,
            has_leapt: false,
        }
    }

    /// Says when the wall clock has leapt, and follows it once it is trusted.
    fn watch_clock(&mut self) {
        let leap = self.driver.clock.leap();
        if leap.is_some() != self.has_leapt {
            self.has_leapt = leap.is_some();
            self.clock.leapt(leap);
        }
        self.driver.clock.bound(self.clock.follow_gap(self.driver.clock.gap()));
    }

    fn now(&self) -> Reading {
        reading(self.began)
    }

    async fn run(&mut self) -> Ended {
        loop {
            let unheard = self.hearing.unheard(self.now().steady);
            if let Err(ended) = self.take_what_waits() {
                return ended;
            }
            let now = self.now();
            self.hearing.left(self.inputs.len(), now.steady);
            let unheard = unheard.max(self.hearing.unheard(now.steady));
            self.driver.handle(core::Input::Unheard(unheard), now);
            let left = match self.driver.turn(self.now()) {
                Ok(left) => left,
                Err(ended) => return ended,
            };
            self.effects();
            self.watch_clock();
            if left == Left::Nothing && self.driver.is_drained() {
                return Ended::Drained;
            }
            if left == Left::More {
                continue;
            }
            // What is due and could not be done waits for a delivery; it is not asked for without end.
            let now = self.now();
            let due = self.driver.next_due(now);
            let pause = due.map_or(Duration::from_hours(1), |due| due.max(PATIENCE));
            let listens = self.driver.is_open() && self.inputs.is_empty();
            tokio::select! {
                biased;
                delivery = self.following.deliveries.recv() => {
                    if let Err(ended) = self.take(delivery) {
                        return ended;
                    }
                }
                input = self.inputs.recv(), if self.driver.is_open() => self.input(input.unwrap_or(Input::Drain)),
                () = tokio::time::sleep(pause) => {}
            }
            if listens {
                self.hearing.waited(now.steady + pause, self.now().steady);
            }
        }
    }

    /// Before a turn, so that nobody is found late whose word waits here since the last one; that may have taken as
    /// long as the disk.
    fn take_what_waits(&mut self) -> Result<(), Ended> {
        loop {
            match self.following.deliveries.try_recv() {
                Ok(delivery) => self.take(Some(delivery))?,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.take(None)?,
            }
        }
        for _ in 0..BATCH {
            if !self.driver.is_open() {
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
            (self.following.skipped)();
        }
        let following = &mut self.following;
        let taken = self.driver.take(delivery, &mut |records| following.publish(records));
        self.effects();
        taken
    }

    fn input(&mut self, input: Input) {
        self.hearing.took();
        let now = self.now();
        match input {
            // What an input held of the queue, here and below, is free when it has been dealt with.
            Input::Intent(request, answer, _room) => {
                self.tickets += 1;
                let ticket = Ticket(self.tickets);
                self.askers.insert(ticket, answer);
                self.driver.handle(core::Input::Intent(ticket, request), now);
            }
            Input::Letter(letter, _room) => self.driver.handle(core::Input::Letter(letter), now),
            Input::InboxPassed(next) => self.driver.handle(core::Input::InboxPassed(next), now),
            Input::InboxStands(offset) => self.driver.handle(core::Input::InboxStands(offset), now),
            Input::Connected(connection, executor) => {
                self.executors.insert(connection, executor);
                let attach = Attach::from_random(random());
                self.driver.handle(core::Input::Connected(connection, attach), now);
            }
            Input::Said(connection, message, _share) => match serde_json::from_slice(&message) {
                Ok(message) => self.driver.handle(core::Input::Said(connection, message), now),
                Err(error) => {
                    tracing::warn!(%error, "a message of an executor cannot be read; its connection is closed");
                    self.close(connection);
                }
            },
            Input::Disconnected(connection) => self.close(connection),
            Input::Drain => self.driver.handle(core::Input::Drain, now),
        }
    }

    fn close(&mut self, connection: Connection) {
        self.executors.remove(&connection);
        self.driver.handle(core::Input::Disconnected(connection), self.now());
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

/// For names that nobody else has: writers, attaches, lineages.
pub fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_a_takeover_takes_counts_before_the_first_reading() {
        let passed = Duration::from_secs(20);
        let at = Instant::now().checked_sub(passed).expect("the machine was started earlier");
        let judged = JudgedClock { wall: wall_clock::now(), at };
        let first = first_reading(judged);
        assert!(first.steady >= passed && first.wall >= judged.wall + passed, "{first:?} after {judged:?}");
    }
}
