//! Leader of a simulated world: the real decider, with its journal and queues. The world decides when the
//! server does its next action. Its readers' view is in [`super::rows`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chancery_decider::clock::Reading;
use chancery_decider::core::{Effect, Input, Settings, Ticket};
use chancery_decider::driver::{Driver, Ended, Left};
use chancery_decider::inbox::{Inbox, InboxGone};
use chancery_events::id::{Lineage, Writer};
use chancery_events::intent::Request;
use chancery_events::letter::Letter;
use chancery_events::record::Record;
use chancery_events::time::Time;
use chancery_journal::memory::{MemoryJournal, MemoryLog};
use chancery_journal::{Delivery, Journal};
use chancery_machine::fleet::Fleet;
use chancery_projector::{FoldError, Folding};

use super::letters::Topic;

/// Fleet of every simulated world.
pub const FLEET: &str = "sim";

/// Queued request.
#[derive(Debug)]
pub struct Ask {
    /// Number of the call.
    pub call: usize,
    /// Request of the call.
    pub request: Request,
}

/// Server that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BadStart {
    /// The log cannot be folded.
    #[error("fold the log: {0}")]
    Fold(#[from] FoldError),
    /// The inbox does not continue where the log ends.
    #[error(transparent)]
    Inbox(#[from] InboxGone),
}

/// Running server.
pub struct Server {
    driver: Driver,
    journal: Arc<MemoryJournal>,
    deliveries: Arc<Mutex<VecDeque<Delivery>>>,
    /// Delivered records for the projector.
    pub published: Vec<Arc<Record>>,
    /// Queued requests.
    pub asks: VecDeque<Ask>,
    /// Call of each ticket.
    pub calls: BTreeMap<Ticket, usize>,
    tickets: u64,
    /// Offset after the last message that the server has read.
    pub reads: u64,
    began: Duration,
    /// Wall clock minus world time, in microseconds.
    pub wall: i64,
    /// End of the suspension.
    pub paused: Option<Duration>,
    /// Whether the server can do more immediately.
    pub left: Left,
}

/// Time zero of simulated worlds, on the wall clock.
pub const EPOCH: i64 = 1_700_000_000_000_000;

/// Returns the wall clock at a world's time, with an error in microseconds.
pub fn wall_at(now: Duration, error: i64) -> Time {
    Time::from_micros(EPOCH + i64::try_from(now.as_micros()).unwrap_or(i64::MAX / 4) + error)
}

impl Server {
    /// Starts a server with the state at the end of the log.
    pub fn start(
        log: &MemoryLog,
        state: Option<Folding>,
        random: u64,
        lease: Duration,
        now: Duration,
        wall: i64,
        topic: Option<&Topic>,
    ) -> Result<Server, BadStart> {
        let deliveries: Arc<Mutex<VecDeque<Delivery>>> = Arc::default();
        let sink = Arc::clone(&deliveries);
        let take = move |delivery| sink.lock().unwrap_or_else(PoisonError::into_inner).push_back(delivery);
        let journal = Arc::new(log.open(Box::new(take)).expect("nobody breaks the chain"));
        let watermark = state.as_ref().and_then(|state| state.watermark.as_ref());
        let inbox = topic.map(|topic| topic.take_up(watermark)).transpose()?;
        let reads = inbox.as_ref().map_or(0, Inbox::next);
        let settings = Settings {
            fleet: FLEET.parse().expect("a fleet's name"),
            writer: Writer::from_random(random),
            build: "sim".into(),
            address: None,
            lease,
            // One or two commands: inventories have many parts.
            part: 600,
            replicas: 1000,
            inbox,
        };
        let fleet = state.map_or_else(|| Fleet::new(Lineage::from_random(random)), |state| state.fleet);
        let reading = Reading { wall: wall_at(now, wall), steady: Duration::ZERO };
        let head = journal.head();
        let writes = Arc::clone(&journal) as Arc<dyn Journal>;
        let driver = Driver::begin(settings, fleet, head.as_ref(), writes, reading);
        Ok(Server {
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
            left: Left::More,
        })
    }

    /// Returns the decider.
    pub fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// Returns the writer to the log.
    pub fn journal(&self) -> &Arc<MemoryJournal> {
        &self.journal
    }

    /// Returns the server's clocks.
    pub fn reading(&self, now: Duration) -> Reading {
        Reading { wall: wall_at(now, self.wall), steady: now.saturating_sub(self.began) }
    }

    /// Counts waiting deliveries.
    pub fn delivered(&self) -> usize {
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Takes one delivery.
    pub fn take(&mut self) -> Result<Vec<Effect>, Ended> {
        let next = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(delivery) = next else { return Ok(Vec::new()) };
        let published = &mut self.published;
        let taken = self.driver.take(delivery, &mut |records| published.extend_from_slice(records));
        self.left = Left::More;
        let effects = self.driver.effects();
        taken.map(|()| effects)
    }

    /// Decides the next queued request, if any.
    pub fn ask(&mut self, now: Duration) {
        let reading = self.reading(now);
        if let Some(Ask { call, request }) = self.asks.pop_front() {
            self.tickets += 1;
            self.calls.insert(Ticket(self.tickets), call);
            self.driver.handle(Input::Intent(Ticket(self.tickets), Box::new(request)), reading);
            self.left = Left::More;
        }
    }

    /// Takes an inbox message, or notes that none is left up to the end.
    pub fn letter(&mut self, letter: Option<&Letter>, end: u64, now: Duration) {
        let reading = self.reading(now);
        if let Some(letter) = letter {
            self.driver.handle(Input::Letter(Box::new(letter.clone())), reading);
            self.reads = letter.offset + 1;
        } else {
            self.driver.handle(Input::InboxPassed(end), reading);
            self.reads = end;
        }
        self.left = Left::More;
    }

    /// Takes one turn of the decider.
    pub fn turn(&mut self, now: Duration) -> Result<Vec<Effect>, Ended> {
        let reading = self.reading(now);
        self.left = self.driver.turn(reading)?;
        Ok(self.driver.effects())
    }

    /// Whether the server has something to do now without input.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let reading = self.reading(now);
        self.left == Left::More || self.driver.next_due(reading).is_some_and(|pause| pause.is_zero())
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
