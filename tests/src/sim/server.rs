//! A server of a simulated world that decides: the decider that users run, with its journal and what waits for it. It does
//! one thing at a time, when the world says so. What readers see of it is in [`super::rows`].

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

/// The fleet of every simulated world.
pub const FLEET: &str = "sim";

/// Something that waits for a server's attention.
#[derive(Debug)]
pub struct Ask {
    /// Whose call it is.
    pub call: usize,
    /// What is asked.
    pub request: Request,
}

/// A server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BadStart {
    /// It cannot fold the log.
    #[error("fold the log: {0}")]
    Fold(#[from] FoldError),
    /// The inbox does not go on where the log says.
    #[error(transparent)]
    Inbox(#[from] InboxGone),
}

/// A server that runs.
pub struct Server {
    driver: Driver,
    journal: Arc<MemoryJournal>,
    deliveries: Arc<Mutex<VecDeque<Delivery>>>,
    /// Records that were delivered, on their way to the projector.
    pub published: Vec<Arc<Record>>,
    /// Requests that were sent to it.
    pub asks: VecDeque<Ask>,
    /// Whose request each ticket is.
    pub calls: BTreeMap<Ticket, usize>,
    tickets: u64,
    /// The offset behind what it has read of the topic.
    pub reads: u64,
    began: Duration,
    /// How far its wall clock is from the world's time.
    pub wall: i64,
    /// Until when it stands still.
    pub paused: Option<Duration>,
    /// Whether it can do more at once.
    pub left: Left,
}

/// Time zero of simulated worlds, on the wall.
pub const EPOCH: i64 = 1_700_000_000_000_000;

/// What the wall clock says at a world's time, with an error.
pub fn wall_at(now: Duration, error: i64) -> Time {
    Time::from_micros(EPOCH + i64::try_from(now.as_micros()).unwrap_or(i64::MAX / 4) + error)
}

impl Server {
    /// Starts one with the state at the end of the log.
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
            // A command or two: inventories have many parts.
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

    /// Its decider.
    pub fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// Its way to the log.
    pub fn journal(&self) -> &Arc<MemoryJournal> {
        &self.journal
    }

    /// What its clocks say.
    pub fn reading(&self, now: Duration) -> Reading {
        Reading { wall: wall_at(now, self.wall), steady: now.saturating_sub(self.began) }
    }

    /// Deliveries that wait.
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

    /// Decides the next request, if it takes any.
    pub fn ask(&mut self, now: Duration) {
        let reading = self.reading(now);
        if let Some(Ask { call, request }) = self.asks.pop_front() {
            self.tickets += 1;
            self.calls.insert(Ticket(self.tickets), call);
            self.driver.handle(Input::Intent(Ticket(self.tickets), Box::new(request)), reading);
            self.left = Left::More;
        }
    }

    /// Takes a letter, or hears that there is none up to the end.
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

    /// A turn.
    pub fn turn(&mut self, now: Duration) -> Result<Vec<Effect>, Ended> {
        let reading = self.reading(now);
        self.left = self.driver.turn(reading)?;
        Ok(self.driver.effects())
    }

    /// Whether it has something to do by itself now.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let reading = self.reading(now);
        self.left == Left::More || self.driver.next_due(reading).is_some_and(|pause| pause.is_zero())
    }

    /// When it will look again whether it has something to do by itself, in the world's time.
    pub fn due(&mut self, now: Duration) -> Option<Duration> {
        if let Some(paused) = self.paused {
            return Some(paused);
        }
        let reading = self.reading(now);
        self.driver.next_due(reading).map(|pause| now + pause.max(Duration::from_millis(2)))
    }
}
