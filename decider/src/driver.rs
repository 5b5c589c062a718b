//! Drives the core and the journal: inputs and deliveries in, effects out. It never waits, so that whoever holds it
//! decides in which order things happen; time and randomness come in with each call.
//!
//! While a commit becomes durable, the next one fills: at most [`DEPTH`] are on their way, so that the commits are as
//! large as the disk is slow. If nothing is left to decide, the journal may make it durable on this thread, which
//! saves waking another one twice; what comes in meanwhile is the next commit.

use std::collections::VecDeque;
use std::sync::Arc;

use chancery_events::record::Record;
use chancery_events::time::Time;
use chancery_journal::witness::recorded;
use chancery_journal::{AppendError, Cursor, Delivery, Journal};
use chancery_machine::fleet::Fleet;

use super::clock::{Clock, Reading};
use super::core::{Core, Effect, Input, Output, Settings};

/// Commits on their way to being durable, at most.
const DEPTH: usize = 2;

/// [`Journal::append`] or [`Journal::append_here`].
type AppendFn = fn(&(dyn Journal + 'static), Record) -> Result<(), AppendError>;

/// Why a decider ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// It was drained: everything that it answered is durable.
    #[error("the decider was drained")]
    Drained,
    /// The journal stopped: nothing more can be made durable.
    #[error("the journal stopped: {0}")]
    Stopped(String),
    /// Another decider has taken over, or may have.
    #[error("this one decides no more: {0}")]
    Overtaken(String),
}

/// What a turn left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// More is due at once, and there is room for it.
    More,
    /// More is due, and waits for a delivery.
    Blocked,
    /// Nothing until the next input, delivery or [`Driver::next_due`].
    Nothing,
}

/// See the module.
pub struct Driver {
    /// The decider without its journal.
    pub core: Core,
    journal: Arc<dyn Journal>,
    /// Journal time.
    pub clock: Clock,
    /// Sealed, and not taken by the journal yet.
    waiting: VecDeque<Record>,
    effects: Vec<Effect>,
    /// Whether it is to end.
    drains: bool,
}

impl Driver {
    /// Takes over: the fleet is that at `head`, the end of the journal as far as its deliveries went.
    pub fn begin(
        settings: Settings,
        fleet: Fleet,
        head: Option<&Cursor>,
        journal: Arc<dyn Journal>,
        at: Reading,
    ) -> Driver {
        let clock = Clock::begin(head.map_or(Time::EPOCH, |head| head.time), at);
        let source = journal.source();
        let lookup = Box::new(move |position| recorded(&*source, position));
        let core = Core::take_over(settings, fleet, head, at.wall, lookup);
        Driver { core, journal, clock, waiting: VecDeque::new(), effects: Vec::new(), drains: false }
    }

    /// Whether it takes inputs: if not, they wait for a delivery, unless nothing more comes. That delivery comes: what is
    /// held back waits for a commit that is in flight, or is sealed by the next turn that has room for it.
    pub fn is_open(&self) -> bool {
        !self.drains && !self.core.is_full() && !self.core.holds_enough() && self.waiting.is_empty()
    }

    /// Whether it was asked to end, and nothing is left to make durable.
    pub fn is_drained(&self) -> bool {
        self.drains && self.is_quiet()
    }

    /// Whether everything that was decided is durable.
    pub fn is_quiet(&self) -> bool {
        self.core.in_flight() == 0 && self.waiting.is_empty()
    }

    /// How long it may wait from now on, if nothing comes in; `None` if nothing will ever be due.
    pub fn next_due(&mut self, at: Reading) -> Option<std::time::Duration> {
        let now = self.clock.read(at);
        self.core.next_due().map(|due| due.since(now))
    }

    /// Takes an input. What comes of it is for the journal, and for [`Driver::effects`].
    pub fn handle(&mut self, input: Input, at: Reading) {
        let now = self.clock.read(at);
        self.core.set_wall(self.clock.wall());
        self.drains |= matches!(input, Input::Drain);
        self.give(now, input);
    }

    /// Whether [`Output::More`] or [`Output::Overtaken`] is among the outputs.
    fn give(&mut self, now: Time, input: Input) -> bool {
        let mut is_told = false;
        for output in self.core.handle(now, input) {
            match output {
                Output::Effect(effect) => self.effects.push(effect),
                Output::Append(record) => self.waiting.push_back(record),
                Output::More | Output::Overtaken => is_told = true,
            }
        }
        is_told
    }

    /// Due work, then a commit if there is room for one on the way.
    pub fn turn(&mut self, at: Reading) -> Result<Left, Ended> {
        let now = self.clock.read(at);
        // One that is to end takes no step that another could take: the next decider would not get its turn.
        let more = !self.drains && self.give(now, Input::Work);
        self.append(<dyn Journal>::append)?;
        if self.waiting.is_empty() && self.core.in_flight() < DEPTH {
            self.give(now, Input::Seal);
            self.append(if more { <dyn Journal>::append } else { <dyn Journal>::append_here })?;
        }
        Ok(match more {
            true if self.core.in_flight() < DEPTH => Left::More,
            true => Left::Blocked,
            false => Left::Nothing,
        })
    }

    /// Appends what waits, as far as the journal has room.
    fn append(&mut self, append: AppendFn) -> Result<(), Ended> {
        while let Some(record) = self.waiting.pop_front() {
            if let Some(record) = given(append(&*self.journal, record))? {
                self.waiting.push_front(record);
                break;
            }
        }
        Ok(())
    }

    /// What the journal tells. `publish` gets records before the effects that they let go of are to be had.
    pub fn take(&mut self, delivery: Delivery, publish: &mut dyn FnMut(&[Arc<Record>])) -> Result<(), Ended> {
        match delivery {
            Delivery::Records(records) => {
                publish(&records);
                // A delivery takes no time.
                if self.give(self.core.time, Input::Delivered(records)) {
                    return Err(Ended::Overtaken("a record of another writer stands in the journal".into()));
                }
                Ok(())
            }
            Delivery::Skipped(skipped) => {
                tracing::warn!(?skipped, "a record in the journal does not count");
                Ok(())
            }
            Delivery::Indefinite(error) => {
                Err(Ended::Overtaken(format!("an append has no outcome: {error}")))
            }
            Delivery::Stopped(error) => Err(Ended::Stopped(error.to_string())),
        }
    }

    /// What is to be done now, in order.
    pub fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }
}

/// What came of an append: the record, if the journal has no room for it now.
fn given(appended: Result<(), AppendError>) -> Result<Option<Record>, Ended> {
    match appended {
        Ok(()) => Ok(None),
        Err(AppendError::Busy(record)) => Ok(Some(*record)),
        Err(error @ AppendError::Invalid(_)) => Err(Ended::Overtaken(error.to_string())),
        Err(error @ (AppendError::Broken(_) | AppendError::Closed)) => Err(Ended::Stopped(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use chancery_events::id::{Attach, Position};
    use chancery_events::protocol::ToDecider;
    use chancery_journal::{ReadError, Records, Source};

    use super::*;
    use crate::handle::Connection;

    /// A source of which nothing can be read now.
    struct Unreadable;

    impl Source for Unreadable {
        fn head(&self) -> Option<Cursor> {
            None
        }

        fn records(&self, _: Position) -> Result<Records, ReadError> {
            let failed =
                || ReadError::Io { place: "a segment".into(), source: std::io::ErrorKind::Other.into() };
            Ok(Box::new(std::iter::once_with(move || Err(failed()))))
        }
    }

    #[test]
    fn while_a_commit_is_on_its_way_only_so_much_is_taken_in() {
        let (told, delivered) = std::sync::mpsc::channel();
        let log = chancery_journal::memory::MemoryLog::new("default");
        let journal = log.open(Box::new(move |delivery| drop(told.send(delivery)))).expect("a journal");
        let settings = Settings {
            fleet: "default".parse().expect("a name"),
            writer: chancery_events::id::Writer::from_random(1),
            build: "test".into(),
            address: None,
            lease: std::time::Duration::from_secs(15),
            part: 600,
            replicas: 10,
            inbox: None,
        };
        let fleet = Fleet::new(chancery_events::id::Lineage::from_random(1));
        let at = Reading { wall: Time::EPOCH, steady: std::time::Duration::ZERO };
        let mut driver = Driver::begin(settings, fleet, None, Arc::new(journal), at);
        driver.turn(at).expect("a turn");
        let beat = ToDecider::Heartbeat { attach: Attach::from_random(1), beat: 1 };
        let mut said = 0;
        while driver.is_open() {
            driver.handle(Input::Said(Connection(1), beat.clone()), at);
            said += 1;
            assert!(said < 100_000, "nothing bounds what waits for the disk");
        }
        assert!(driver.effects().is_empty());
        driver.take(delivered.recv().expect("a delivery"), &mut |_| {}).expect("its own");
        assert!(driver.is_open());
        assert!(driver.effects().len() >= said, "all of it has left");
    }

    #[test]
    fn a_record_that_cannot_be_read_is_not_one_that_is_not_there() {
        assert!(recorded(&Unreadable, Position::new(1)).is_err());
        let empty = chancery_journal::memory::MemoryLog::new("default").source();
        assert!(matches!(recorded(&*empty, Position::new(1)), Ok(None)));
    }
}
