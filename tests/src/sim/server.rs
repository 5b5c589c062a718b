//! Leader of a simulated world: the real decider, with its journal and queues. The world decides when the
//! server does its next action. Its readers' view is in [`super::rows`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chancery_decider::UnchangedVerdict;
use chancery_decider::clock::ClockSample;
use chancery_decider::core::{CoreInput, DeciderEffect, DeciderSettings, RequestTicket};
use chancery_decider::driver::{DeciderDriver, DeciderEnd, TurnOutcome};
use chancery_decider::inbox::{InboxMismatch, InboxStart};
use chancery_events::id::{Lineage, WriterId};
use chancery_events::inbox_message::InboxMessage;
use chancery_events::intent::IntentRequest;
use chancery_events::record::Record;
use chancery_events::time::Time;
use chancery_journal::memory::{MemoryJournal, MemoryLog};
use chancery_journal::{Journal, JournalDelivery};
use chancery_machine::context::LevelLimits;
use chancery_machine::fleet::FleetState;
use chancery_projector::{FoldError, FoldedState};

use super::messages::SimulatedTopic;

/// Fleet of every simulated world.
pub const FLEET: &str = "sim";

/// Queued request.
#[derive(Debug)]
pub struct QueuedRequest {
    /// Number of the call.
    pub call: usize,
    /// Request of the call.
    pub request: IntentRequest,
    /// Handling of a verdict that the request changes nothing.
    pub unchanged: UnchangedVerdict,
}

/// Server that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartFailure {
    /// The log cannot be folded.
    #[error("fold the log: {0}")]
    Fold(#[from] FoldError),
    /// The inbox does not continue where the log ends.
    #[error(transparent)]
    Inbox(#[from] InboxMismatch),
}

/// Running server.
pub struct SimulatedServer {
    driver: DeciderDriver,
    journal: Arc<MemoryJournal>,
    deliveries: Arc<Mutex<VecDeque<JournalDelivery>>>,
    /// Delivered records for the projector.
    pub published: Vec<Arc<Record>>,
    /// Queued requests.
    pub asks: VecDeque<QueuedRequest>,
    /// Call of each ticket.
    pub calls: BTreeMap<RequestTicket, usize>,
    tickets: u64,
    /// Offset after the last message that the server has read.
    pub reads: u64,
    began: Duration,
    /// Wall clock minus world time, in microseconds.
    pub wall: i64,
    /// End of the suspension.
    pub paused: Option<Duration>,
    /// Whether the server can do more immediately.
    pub left: TurnOutcome,
}

/// Time zero of simulated worlds, on the wall clock.
pub const EPOCH: i64 = 1_700_000_000_000_000;

/// Returns the wall clock at a world's time, with an error in microseconds.
pub fn wall_at(now: Duration, error: i64) -> Time {
    Time::from_micros(EPOCH + i64::try_from(now.as_micros()).unwrap_or(i64::MAX / 4) + error)
}

impl SimulatedServer {
    /// Starts a server with the state at the end of the log.
    pub fn start(
        log: &MemoryLog,
        state: Option<FoldedState>,
        random: u64,
        lease: Duration,
        now: Duration,
        wall: i64,
        topic: Option<&SimulatedTopic>,
    ) -> Result<SimulatedServer, StartFailure> {
        let deliveries: Arc<Mutex<VecDeque<JournalDelivery>>> = Arc::default();
        let sink = Arc::clone(&deliveries);
        let take = move |delivery| sink.lock().unwrap_or_else(PoisonError::into_inner).push_back(delivery);
        let journal = Arc::new(log.open(Box::new(take)).expect("the chain is unbroken"));
        let watermark = state.as_ref().and_then(|state| state.watermark.as_ref());
        let inbox = topic.map(|topic| topic.take_up(watermark)).transpose()?;
        let reads = inbox.as_ref().map_or(0, InboxStart::next);
        let settings = DeciderSettings {
            fleet: FLEET.parse().expect("a fleet's name"),
            writer: WriterId::from_random(random),
            build: "sim".into(),
            address: None,
            lease,
            // One or two commands: inventories have many parts.
            part: 600,
            replicas: 1000,
            levels: LevelLimits::ALONE,
            inbox,
        };
        let fleet = state.map_or_else(|| FleetState::new(Lineage::from_random(random)), |state| state.fleet);
        let reading = ClockSample { wall: wall_at(now, wall), steady: Duration::ZERO };
        let head = journal.head();
        let writes = Arc::clone(&journal) as Arc<dyn Journal>;
        let driver = DeciderDriver::begin(settings, fleet, head.as_ref(), writes, reading);
        Ok(SimulatedServer {
            driver,
            journal,
            deliveries,
            published: Vec::new(),
            asks: VecDeque::new(),
            calls: BTreeMap::new(),
            tickets: 0,
            reads,
            began: now,
            wall,
            paused: None,
            left: TurnOutcome::More,
        })
    }

    /// Returns the decider.
    pub fn driver(&mut self) -> &mut DeciderDriver {
        &mut self.driver
    }

    /// Returns the writer to the log.
    pub fn journal(&self) -> &Arc<MemoryJournal> {
        &self.journal
    }

    /// Returns the server's clocks.
    pub fn reading(&self, now: Duration) -> ClockSample {
        ClockSample { wall: wall_at(now, self.wall), steady: now.saturating_sub(self.began) }
    }

    /// Counts waiting deliveries.
    pub fn delivered(&self) -> usize {
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Takes one delivery.
    pub fn take(&mut self) -> Result<Vec<DeciderEffect>, DeciderEnd> {
        let next = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(delivery) = next else { return Ok(Vec::new()) };
        let published = &mut self.published;
        let taken = self.driver.take(delivery, &mut |records| published.extend_from_slice(records));
        self.left = TurnOutcome::More;
        let effects = self.driver.effects();
        taken.map(|()| effects)
    }

    /// Decides the next queued request, if any.
    pub fn ask(&mut self, now: Duration) {
        let reading = self.reading(now);
        if let Some(QueuedRequest { call, request, unchanged }) = self.asks.pop_front() {
            self.tickets += 1;
            self.calls.insert(RequestTicket(self.tickets), call);
            let input = CoreInput::Intent(RequestTicket(self.tickets), Box::new(request), unchanged);
            self.driver.handle(input, reading);
            self.left = TurnOutcome::More;
        }
    }

    /// Takes an inbox message, or notes that none is left up to the end.
    pub fn take_message(&mut self, message: Option<&InboxMessage>, end: u64, now: Duration) {
        let reading = self.reading(now);
        if let Some(inbox_message) = message {
            self.driver.handle(CoreInput::InboxMessage(Box::new(inbox_message.clone())), reading);
            self.reads = inbox_message.offset + 1;
        } else {
            self.driver.handle(CoreInput::InboxPassed(end), reading);
            self.reads = end;
        }
        self.left = TurnOutcome::More;
    }

    /// Takes one turn of the decider.
    pub fn turn(&mut self, now: Duration) -> Result<Vec<DeciderEffect>, DeciderEnd> {
        let reading = self.reading(now);
        self.left = self.driver.turn(reading)?;
        Ok(self.driver.effects())
    }

    /// Whether the server has something to do now without input.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let reading = self.reading(now);
        self.left == TurnOutcome::More || self.driver.next_due(reading).is_some_and(|pause| pause.is_zero())
    }

    /// Returns the world's time of the server's next timer.
    pub fn due(&mut self, now: Duration) -> Option<Duration> {
        if let Some(paused) = self.paused {
            return Some(paused);
        }
        let reading = self.reading(now);
        self.driver.next_due(reading).map(|pause| now + pause.max(Duration::from_millis(2)))
    }
}
