//! Loop of the decider: passes inputs to the driver and carries out the effects. It decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chancery_events::id::{ConnectionToken, Position};
use chancery_events::protocol::DeciderMessage;
use chancery_events::record::Record;
use chancery_journal::{ChainCursor, Journal, JournalDelivery};
use chancery_machine::fleet::FleetState;
use chancery_spans::TraceSpan;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::{mpsc, oneshot};

use super::clock::ClockSample;
use super::core::{self, DeciderEffect, DeciderSettings, RequestTicket};
use super::driver::{DeciderDriver, DeciderEnd, TurnOutcome};
use super::handle::{ChannelNumber, DeciderHandle, DeciderInput, Verdict};
use super::input_lag::InputLag;
use super::outbox::ExecutorOutbox;
use super::traces::DecisionTraces;
use crate::wall_clock::{self, JudgedClock, WallClock};

/// Minimum pause of the loop when no work can be done.
const PATIENCE: Duration = Duration::from_millis(2);
/// Maximum number of inputs taken before due work.
const BATCH: usize = 512;

/// Passes durable records to all followers of the journal.
pub type PublishFn = Box<dyn FnMut(&[Arc<Record>]) + Send>;

/// Parameters to start a decider with.
pub struct DeciderStart {
    /// Settings of the decider.
    pub settings: DeciderSettings,
    /// State at `head`.
    pub fleet: FleetState,
    /// End of the journal. The next delivery continues it, or belongs to another writer.
    pub head: Option<ChainCursor>,
    /// Journal, whose sink must be the sender of `following.deliveries`.
    pub journal: Arc<dyn Journal>,
    /// Followers of the journal, whichever server is the leader.
    pub following: JournalFollower,
    /// Maximum number of waiting inputs.
    pub queue: usize,
    /// Trust in the wall clock.
    pub clock: Arc<WallClock>,
    /// Clock to start with.
    pub judged: JudgedClock,
}

/// Followers of the journal: lent to the decider while one runs here.
pub struct JournalFollower {
    /// Deliveries of the journal.
    pub deliveries: mpsc::UnboundedReceiver<JournalDelivery>,
    /// Called with all durable records, in order, before their effects are carried out.
    pub publisher: PublishFn,
    /// Called for each invalid record in the journal.
    pub skipped: Box<dyn FnMut() + Send>,
    /// Called for each commit of a decider here, with the time from its append until it was durable.
    pub committed: Box<dyn FnMut(Duration) + Send>,
    /// Last position that was published.
    pub published: Position,
}

impl JournalFollower {
    /// Returns followers of nothing.
    pub fn nothing() -> JournalFollower {
        let (_, deliveries) = mpsc::unbounded_channel();
        JournalFollower {
            deliveries,
            publisher: Box::new(|_| ()),
            skipped: Box::new(|| ()),
            committed: Box::new(|_| ()),
            published: Position::ZERO,
        }
    }

    /// Publishes records to all followers.
    pub fn publish(&mut self, records: &[Arc<Record>]) {
        if let Some(last) = records.last() {
            self.published = last.last();
        }
        (self.publisher)(records);
    }
}

/// Reason why a decider ended, and the followers that it was lent.
pub type DeciderExit = (DeciderEnd, JournalFollower);

/// Starts the decider on its own thread. The receiver returns the reason of its end; it is closed if the
/// thread panicked.
pub fn start(start: DeciderStart) -> std::io::Result<(DeciderHandle, oneshot::Receiver<DeciderExit>)> {
    let (queue, inputs) = mpsc::channel(start.queue);
    let (end, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let run = move || {
        let mut decider = DeciderLoop::new(start, inputs);
        let why = runtime.block_on(decider.run());
        // The receiver may have been dropped.
        let _ = end.send((why, decider.following));
    };
    std::thread::Builder::new().name("decider".into()).spawn(run)?;
    Ok((DeciderHandle::over(queue), ended))
}

struct DeciderLoop {
    driver: DeciderDriver,
    inputs: mpsc::Receiver<DeciderInput>,
    following: JournalFollower,
    began: Instant,
    tickets: u64,
    askers: BTreeMap<RequestTicket, oneshot::Sender<Verdict>>,
    executors: BTreeMap<ChannelNumber, ExecutorOutbox>,
    lag: InputLag,
    clock: Arc<WallClock>,
    /// Whether the wall clock is not followed.
    has_jumped: bool,
    /// Spans of what the loop does, if they are recorded.
    traces: Option<DecisionTraces>,
}

/// Returns the judged clock plus the time since then. A clock set since then is read as a jump, and executors
/// get their whole grace from now on.
fn first_reading(judged: JudgedClock) -> ClockSample {
    let passed = judged.at.elapsed();
    ClockSample { wall: judged.wall + passed, steady: passed }
}

impl DeciderLoop {
    fn new(start: DeciderStart, inputs: mpsc::Receiver<DeciderInput>) -> DeciderLoop {
        let (began, clock) = (start.judged.at, start.clock);
        let head = start.head.as_ref();
        let judged = first_reading(start.judged);
        let traces = DecisionTraces::start(&start.settings.fleet);
        let mut driver = DeciderDriver::begin(start.settings, start.fleet, head, start.journal, judged);
        driver.clock.bound(clock.follow_gap(Duration::ZERO));
        if let Some(span) = clock.record_every() {
            driver.core.record_time_every(span);
        }
        DeciderLoop {
            driver,
            inputs,
            following: start.following,
            began,
            tickets: 0,
            askers: BTreeMap::new(),
            executors: BTreeMap::new(),
            lag: InputLag::begin(judged.steady),
            clock,
            has_jumped: false,
            traces,
        }
    }

    /// Reports a jump of the wall clock, and follows it once it is trusted.
    fn watch_clock(&mut self) {
        let jump = self.driver.clock.jump();
        if jump.is_some() != self.has_jumped {
            self.has_jumped = jump.is_some();
            self.clock.jumped(jump);
        }
        self.driver.clock.bound(self.clock.follow_gap(self.driver.clock.gap()));
    }

    fn now(&self) -> ClockSample {
        ClockSample { wall: wall_clock::now(), steady: self.began.elapsed() }
    }

    async fn run(&mut self) -> DeciderEnd {
        loop {
            let unread = self.lag.unread_for(self.now().steady);
            if let Err(ended) = self.take_what_waits() {
                return ended;
            }
            let now = self.now();
            self.lag.left(self.inputs.len(), now.steady);
            let unread = unread.max(self.lag.unread_for(now.steady));
            self.driver.handle(core::CoreInput::Unread(unread), now);
            let left = match self.driver.turn(self.now()) {
                Ok(left) => left,
                Err(ended) => return ended,
            };
            self.effects();
            self.watch_clock();
            if left == TurnOutcome::Idle && self.driver.is_drained() {
                return DeciderEnd::Drained;
            }
            if left == TurnOutcome::More {
                continue;
            }
            // Due work that could not be done waits for a delivery, without a busy loop.
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
                input = self.inputs.recv(), if self.driver.is_open() => self.input(input.unwrap_or(DeciderInput::Drain)),
                () = tokio::time::sleep(pause) => {}
            }
            if listens {
                self.lag.waited(now.steady + pause, self.now().steady);
            }
        }
    }

    /// Takes all waiting inputs before a turn, so that no session expires whose message waits since the last
    /// turn. That turn may have waited for the disk.
    fn take_what_waits(&mut self) -> Result<(), DeciderEnd> {
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
                Err(TryRecvError::Disconnected) => self.input(DeciderInput::Drain),
            }
        }
        Ok(())
    }

    fn take(&mut self, delivery: Option<JournalDelivery>) -> Result<(), DeciderEnd> {
        let Some(delivery) = delivery else {
            return Err(DeciderEnd::JournalStopped("the journal has ended".into()));
        };
        if let JournalDelivery::Skipped(_) = &delivery {
            (self.following.skipped)();
        }
        let effects = self.trace(&delivery);
        let following = &mut self.following;
        let taken = self.driver.take(delivery, &mut |records| following.publish(records));
        let now = self.began.elapsed();
        self.driver.committed(now, &mut *self.following.committed);
        self.effects();
        drop(effects);
        taken
    }

    /// Returns the spans of the effects of a delivery, until they are dropped.
    fn trace(&mut self, delivery: &JournalDelivery) -> Vec<TraceSpan> {
        match (&mut self.traces, delivery) {
            (Some(traces), JournalDelivery::Records(records)) => {
                let fleet = self.driver.core.fleet();
                records.iter().flat_map(|record| traces.delivered(record, fleet)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn input(&mut self, input: DeciderInput) {
        self.lag.took();
        let now = self.now();
        match input {
            // The input's share of the queue, here and below, is free when the input has been handled.
            DeciderInput::Intent(request, unchanged, answer, trace, _permit) => {
                let _decision =
                    self.traces.as_mut().zip(trace).map(|(of, trace)| of.decide(&request, &trace));
                self.tickets += 1;
                let ticket = RequestTicket(self.tickets);
                self.askers.insert(ticket, answer);
                self.driver.handle(core::CoreInput::Intent(ticket, request, unchanged), now);
            }
            DeciderInput::InboxMessage(inbox_message, _permit) => {
                let traced = self.traces.as_mut().zip(self.driver.core.inbox_actor());
                let _processing = traced.map(|(traces, actor)| traces.process(&inbox_message, actor));
                self.driver.handle(core::CoreInput::InboxMessage(inbox_message), now);
            }
            DeciderInput::InboxPassed(next) => self.driver.handle(core::CoreInput::InboxPassed(next), now),
            DeciderInput::InboxBlocked(offset) => {
                self.driver.handle(core::CoreInput::InboxBlocked(offset), now);
            }
            DeciderInput::Connected(connection, executor) => {
                self.executors.insert(connection, executor);
                let token = ConnectionToken::from_random(random());
                self.driver.handle(core::CoreInput::Connected(connection, token), now);
            }
            DeciderInput::ExecutorMessage(connection, message, _share) => {
                match serde_json::from_slice(&message) {
                    Ok(message) => {
                        self.driver.handle(core::CoreInput::ExecutorMessage(connection, message), now);
                    }
                    Err(error) => {
                        tracing::warn!(%error, "connection of executor closed: cannot read message");
                        self.close(connection);
                    }
                }
            }
            DeciderInput::Disconnected(connection) => self.close(connection),
            DeciderInput::Read(answer) => {
                // The requester may have left.
                let _ = answer.send(self.driver.read(now));
            }
            DeciderInput::Drain => self.driver.handle(core::CoreInput::Drain, now),
        }
    }

    fn close(&mut self, connection: ChannelNumber) {
        self.executors.remove(&connection);
        self.driver.handle(core::CoreInput::Disconnected(connection), self.now());
    }

    fn effects(&mut self) {
        for effect in self.driver.effects() {
            match effect {
                DeciderEffect::Answer(ticket, verdict) => {
                    if let Some(asker) = self.askers.remove(&ticket) {
                        // The caller may have disconnected; a repeat gets the same verdict.
                        let _ = asker.send(verdict);
                    }
                }
                DeciderEffect::Send(connection, mut message) => self.send(connection, &mut message),
                DeciderEffect::Close(connection) => self.close(connection),
            }
        }
    }

    fn send(&mut self, connection: ChannelNumber, message: &mut DeciderMessage) {
        let Some(executor) = self.executors.get(&connection) else { return };
        if let Some(traces) = &mut self.traces {
            let commands = match message {
                DeciderMessage::Command { command, .. } => std::slice::from_mut(command),
                DeciderMessage::Welcome { commands, .. } | DeciderMessage::Inventory { commands, .. } => {
                    commands
                }
                DeciderMessage::Refused { .. }
                | DeciderMessage::ReportsAccepted { .. }
                | DeciderMessage::Purge { .. }
                | DeciderMessage::OrphanResolved { .. }
                | DeciderMessage::HeartbeatAck { .. }
                | DeciderMessage::ConnectionClosed { .. } => &mut [],
            };
            for command in commands {
                traces.send(command);
            }
        }
        let sent = serde_json::to_vec(message).map(|message| executor.put(message));
        if !matches!(sent, Ok(Ok(()))) {
            // A slow or disconnected executor connects again and starts with a full report.
            tracing::warn!(?connection, "connection of executor closed: messages not received");
            self.close(connection);
        }
    }
}

/// Returns a random number for unique ids: of writers, connections, lineages.
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
