//! Drives the core and the journal: takes inputs and deliveries, returns effects. The driver never waits, so
//! that its owner decides the order of events; time and randomness come with each call.
//!
//! While a commit becomes durable, the next one fills. At most [`DEPTH`] are in flight, so that commits are
//! larger on a slower disk. If nothing is left to decide, the journal may make the commit durable on
//! this thread. That saves waking another thread twice; inputs meanwhile form the next commit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_events::time::Time;
use chancery_journal::witness::recorded;
use chancery_journal::{AppendError, ChainCursor, Journal, JournalDelivery};
use chancery_machine::fleet::FleetState;

use super::clock::{ClockSample, JournalClock};
use super::core::{CoreInput, CoreOutput, DeciderCore, DeciderEffect, DeciderSettings};
use super::handle::DeciderReading;

/// Maximum number of commits in flight.
const DEPTH: usize = 2;

/// [`Journal::append`] or [`Journal::append_here`].
type AppendFn = fn(&(dyn Journal + 'static), Record) -> Result<(), AppendError>;

/// Reason why a decider ended.
#[derive(Debug, thiserror::Error)]
pub enum DeciderEnd {
    /// Decider drained: all its answers are durable.
    #[error("cannot continue: the decider was drained")]
    Drained,
    /// Journal stopped: nothing more can be made durable.
    #[error("cannot continue: the journal stopped: {0}")]
    JournalStopped(String),
    /// Decider fenced: another decider has taken over, or may have.
    #[error("cannot continue: the decider is fenced: {0}")]
    Fenced(String),
}

/// Work left after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TurnOutcome {
    /// Work that is due immediately, with space for it.
    More,
    /// Work that is due, and waits for a delivery.
    Blocked,
    /// Nothing until the next input, delivery or [`DeciderDriver::next_due`].
    Idle,
}

/// Core of the decider with its journal: see the module.
pub struct DeciderDriver {
    /// Decider without its journal.
    pub core: DeciderCore,
    journal: Arc<dyn Journal>,
    /// Clock of journal time.
    pub clock: JournalClock,
    /// Sealed records that the journal has not taken yet.
    waiting: VecDeque<Record>,
    /// Last position of each commit in flight, and the time of its append.
    appended: VecDeque<(Position, Duration)>,
    effects: Vec<DeciderEffect>,
    /// Whether the decider is draining.
    drains: bool,
}

impl DeciderDriver {
    /// Takes over with the fleet at `head`, the end of the journal as far as it was delivered.
    pub fn begin(
        settings: DeciderSettings,
        fleet: FleetState,
        head: Option<&ChainCursor>,
        journal: Arc<dyn Journal>,
        at: ClockSample,
    ) -> DeciderDriver {
        let clock = JournalClock::begin(head.map_or(Time::EPOCH, |head| head.time), at);
        let source = journal.source();
        let lookup = Box::new(move |position| recorded(&*source, position));
        let core = DeciderCore::take_over(settings, fleet, head, at.wall, lookup);
        let (waiting, appended) = (VecDeque::new(), VecDeque::new());
        DeciderDriver { core, journal, clock, waiting, appended, effects: Vec::new(), drains: false }
    }

    /// Whether the driver takes inputs. Otherwise they wait for a delivery, unless the decider drains. Such a
    /// delivery follows: held outputs wait for a commit in flight, or for a commit that the next turn with
    /// space seals.
    pub fn is_open(&self) -> bool {
        !self.drains && !self.core.is_full() && !self.core.holds_enough() && self.waiting.is_empty()
    }

    /// Whether the decider was drained, and nothing is left to make durable.
    pub fn is_drained(&self) -> bool {
        self.drains && self.is_quiet()
    }

    /// Whether all commits so far are durable.
    pub fn is_quiet(&self) -> bool {
        self.core.in_flight() == 0 && self.waiting.is_empty()
    }

    /// Returns the time until work is due if no input arrives before; `None` if no work will be due.
    pub fn next_due(&mut self, at: ClockSample) -> Option<Duration> {
        let now = self.clock.read(at);
        self.core.next_due().map(|due| due.since(now))
    }

    /// Takes an input. The results are for the journal, and for [`DeciderDriver::effects`].
    pub fn handle(&mut self, input: CoreInput, at: ClockSample) {
        let now = self.clock.read(at);
        self.core.set_wall(self.clock.wall());
        self.drains |= matches!(input, CoreInput::Drain);
        self.give(now, input);
    }

    /// Passes an input to the core. Returns whether the outputs say that more is due, or that the decider is
    /// fenced.
    fn give(&mut self, now: Time, input: CoreInput) -> bool {
        let mut is_notified = false;
        for output in self.core.handle(now, input) {
            match output {
                CoreOutput::Effect(effect) => self.effects.push(effect),
                CoreOutput::Append(record) => self.waiting.push_back(record),
                CoreOutput::More | CoreOutput::Overtaken => is_notified = true,
            }
        }
        is_notified
    }

    /// Does due work, then commits if another commit may be in flight.
    pub fn turn(&mut self, at: ClockSample) -> Result<TurnOutcome, DeciderEnd> {
        let now = self.clock.read(at);
        // A draining decider leaves due work to the next one, which might otherwise never take over.
        let more = !self.drains && self.give(now, CoreInput::Work);
        self.append(<dyn Journal>::append, at.steady)?;
        if self.waiting.is_empty() && self.core.in_flight() < DEPTH {
            self.give(now, CoreInput::Seal);
            let append = if more { <dyn Journal>::append } else { <dyn Journal>::append_here };
            self.append(append, at.steady)?;
        }
        Ok(match more {
            true if self.core.in_flight() < DEPTH => TurnOutcome::More,
            true => TurnOutcome::Blocked,
            false => TurnOutcome::Idle,
        })
    }

    /// Appends waiting records, as far as the journal has space.
    fn append(&mut self, append: AppendFn, now: Duration) -> Result<(), DeciderEnd> {
        while let Some(record) = self.waiting.pop_front() {
            let last = record.last();
            if let Some(record) = given(append(&*self.journal, record))? {
                self.waiting.push_front(record);
                break;
            }
            self.appended.push_back((last, now));
        }
        Ok(())
    }

    /// Calls `observe` for each commit that became durable since the last call, with the time since its append.
    pub fn committed(&mut self, now: Duration, observe: &mut dyn FnMut(Duration)) {
        let durable = self.core.durable().position;
        while let Some((_, began)) = self.appended.pop_front_if(|(last, _)| *last <= durable) {
            observe(now.saturating_sub(began));
        }
    }

    /// Returns the values that only the decider has.
    pub fn read(&mut self, at: ClockSample) -> DeciderReading {
        let now = self.clock.read(at);
        self.core.read(now)
    }

    /// Takes a delivery. `publish` receives records before the effects that they release are available.
    pub fn take(
        &mut self,
        delivery: JournalDelivery,
        publish: &mut dyn FnMut(&[Arc<Record>]),
    ) -> Result<(), DeciderEnd> {
        match delivery {
            JournalDelivery::Records(records) => {
                publish(&records);
                // A delivery takes no time.
                if self.give(self.core.time, CoreInput::Delivered(records)) {
                    return Err(DeciderEnd::Fenced("the journal has a record of another writer".into()));
                }
                Ok(())
            }
            JournalDelivery::Skipped(skipped) => {
                tracing::warn!(?skipped, "invalid record skipped");
                Ok(())
            }
            JournalDelivery::OutcomeUnknown(error) => {
                Err(DeciderEnd::Fenced(format!("unknown outcome of an append: {error}")))
            }
            JournalDelivery::Stopped(error) => Err(DeciderEnd::JournalStopped(error.to_string())),
        }
    }

    /// Returns the effects to carry out now, in order.
    pub fn effects(&mut self) -> Vec<DeciderEffect> {
        std::mem::take(&mut self.effects)
    }
}

/// Returns the record of an append, if the journal has no space for it now.
fn given(appended: Result<(), AppendError>) -> Result<Option<Record>, DeciderEnd> {
    match appended {
        Ok(()) => Ok(None),
        Err(AppendError::Busy(record)) => Ok(Some(*record)),
        Err(error @ AppendError::Invalid(_)) => Err(DeciderEnd::Fenced(error.to_string())),
        Err(error @ (AppendError::Broken(_) | AppendError::Closed)) => {
            Err(DeciderEnd::JournalStopped(error.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use chancery_events::id::ConnectionToken;
    use chancery_events::protocol::ExecutorMessage;
    use chancery_journal::{JournalReader, ReadError, RecordIter};

    use super::*;
    use crate::handle::ChannelNumber;

    /// Source that cannot be read now.
    struct UnreadableJournal;

    impl JournalReader for UnreadableJournal {
        fn head(&self) -> Option<ChainCursor> {
            None
        }

        fn records(&self, _: Position) -> Result<RecordIter, ReadError> {
            let failed =
                || ReadError::Io { place: "a segment".into(), source: std::io::ErrorKind::Other.into() };
            Ok(Box::new(std::iter::once_with(move || Err(failed()))))
        }
    }

    #[test]
    fn while_a_commit_is_in_flight_only_a_bounded_amount_is_taken_in() {
        let (sender, delivered) = std::sync::mpsc::channel();
        let log = chancery_journal::memory::MemoryLog::new("default");
        let journal = log.open(Box::new(move |delivery| drop(sender.send(delivery)))).expect("a journal");
        let settings = DeciderSettings {
            fleet: "default".parse().expect("a name"),
            writer: chancery_events::id::WriterId::from_random(1),
            build: "test".into(),
            address: None,
            lease: std::time::Duration::from_secs(15),
            part: 600,
            replicas: 10,
            levels: chancery_machine::context::LevelLimits::ALONE,
            inbox: None,
        };
        let fleet = FleetState::new(chancery_events::id::Lineage::from_random(1));
        let at = ClockSample { wall: Time::EPOCH, steady: std::time::Duration::ZERO };
        let mut driver = DeciderDriver::begin(settings, fleet, None, Arc::new(journal), at);
        driver.turn(at).expect("a turn");
        let heartbeat =
            ExecutorMessage::Heartbeat { connection: ConnectionToken::from_random(1), sequence: 1 };
        let mut sent = 0;
        while driver.is_open() {
            driver.handle(CoreInput::ExecutorMessage(ChannelNumber(1), heartbeat.clone()), at);
            sent += 1;
            assert!(sent < 100_000, "the number of waiting inputs is not bounded");
        }
        assert!(driver.effects().is_empty());
        driver.take(delivered.recv().expect("a delivery"), &mut |_| {}).expect("its own");
        assert!(driver.is_open());
        assert!(driver.effects().len() >= sent, "all effects are emitted");
    }

    #[test]
    fn a_record_that_cannot_be_read_is_not_one_that_is_not_there() {
        assert!(recorded(&UnreadableJournal, Position::new(1)).is_err());
        let empty = chancery_journal::memory::MemoryLog::new("default").source();
        assert!(matches!(recorded(&*empty, Position::new(1)), Ok(None)));
    }
}
