//! The writer's side: appends on their way, and the producer that sends them.
//!
//! What must stay true: an append is forgotten only when it was read back or its writer was told that it has no
//! outcome. After that the producer is thrown away with all it holds: what it sent may still arrive, and the rule
//! keeps it from counting once another term has begun.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use chancery_events::record::{Hash, Record};
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::Options;
use super::client::Client;
use super::{discard, lock};
use crate::chain::{Chain, Cursor};
use crate::journal::AppendError;

/// Where appends go.
pub(super) struct Writing {
    client: Client,
    topic: String,
    partition: i32,
    in_flight: usize,
    /// How long an append may have no outcome, in milliseconds.
    outcome: AtomicU64,
    state: Arc<Mutex<State>>,
    has_producer: Condvar,
}

struct State {
    /// Stands behind the last append, or behind another writer's record that was read since.
    chain: Chain,
    appended: VecDeque<(Hash, Instant)>,
    /// None after an append without an outcome, until the loop has made another.
    producer: Option<ThreadedProducer<Outcomes>>,
    /// Why an append has no outcome, until the loop has told it.
    unknown: Option<String>,
    /// Counts the producers, so that the callbacks of one that is gone say nothing.
    generation: u64,
    is_closed: bool,
}

/// Hears what becomes of what was sent.
struct Outcomes {
    state: Weak<Mutex<State>>,
    generation: u64,
}

impl ClientContext for Outcomes {}

impl ProducerContext for Outcomes {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let (Err((error, _)), Some(state)) = (result, self.state.upgrade()) else { return };
        let mut state = lock(&state);
        if state.generation == self.generation {
            state.unknown.get_or_insert_with(|| error.to_string());
        }
    }
}

impl Writing {
    /// Behind the record that was read last. Connects in the background, so that the first append need not.
    pub(super) fn new(options: &Options, fleet: Arc<str>, at: Option<Cursor>) -> Result<Writing, KafkaError> {
        let state = State {
            chain: Chain::new(fleet, at),
            appended: VecDeque::new(),
            producer: None,
            unknown: None,
            generation: 0,
            is_closed: false,
        };
        let writing = Writing {
            client: options.client.clone(),
            topic: options.topic.clone(),
            partition: options.partition,
            in_flight: options.in_flight,
            outcome: AtomicU64::new(millis(options.outcome)),
            state: Arc::new(Mutex::new(state)),
            has_producer: Condvar::new(),
        };
        writing.renew()?;
        Ok(writing)
    }

    pub(super) fn append(&self, record: Record) -> Result<(), AppendError> {
        let mut state = lock(&self.state);
        // Being replaced, which takes moments; nobody would tell when to come again.
        while !state.is_closed && state.producer.is_none() {
            state = self.has_producer.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_closed {
            return Err(AppendError::Closed);
        }
        if state.appended.len() >= self.in_flight {
            return Err(AppendError::Busy(Box::new(record)));
        }
        let mut chain = state.chain.clone();
        chain.take_record(&record)?.map_err(AppendError::Invalid)?;
        let sent = match &state.producer {
            Some(producer) => producer
                .send::<(), [u8]>(
                    BaseRecord::to(&self.topic).partition(self.partition).payload(record.bytes()),
                )
                .map_err(|(error, _)| error),
            None => return Err(AppendError::Closed),
        };
        match sent {
            Ok(()) => {}
            Err(KafkaError::MessageProduction(Code::QueueFull)) => {
                return Err(AppendError::Busy(Box::new(record)));
            }
            // It never was on its way, but nor will others be: its writer steps down all the same.
            Err(error) => {
                state.unknown.get_or_insert_with(|| error.to_string());
            }
        }
        state.chain = chain;
        state.appended.push_back((record.hash(), Instant::now()));
        Ok(())
    }

    /// A valid record was read.
    pub(super) fn read_back(&self, record: &Record) {
        let mut state = lock(&self.state);
        if !state.landed(record.hash()) {
            // Another writer's: what this one appends from now on is judged behind that.
            let fleet = Arc::clone(state.chain.fleet());
            state.chain = Chain::new(fleet, Some(Cursor::after(record)));
        }
    }

    /// Something that does not count was read.
    pub(super) fn skipped(&self, hash: Hash) {
        lock(&self.state).landed(hash);
    }

    /// Why an append has no outcome, once; then there is nothing on its way any more, and appends go on behind what was
    /// read, `at`.
    pub(super) fn take_unknown(&self, at: Option<&Cursor>) -> Option<String> {
        let mut state = lock(&self.state);
        let outcome = self.outcome();
        let late = state.appended.front().is_some_and(|(_, since)| since.elapsed() > outcome);
        let why = match state.unknown.take() {
            Some(why) => why,
            None if late => format!("it was not read back in {} s", outcome.as_secs()),
            None => return None,
        };
        state.appended.clear();
        state.chain = Chain::new(Arc::clone(state.chain.fleet()), at.copied());
        let gone = state.producer.take();
        state.generation += 1;
        // Its callbacks want the lock.
        drop(state);
        give_up(gone);
        Some(why)
    }

    /// Makes a producer, if there is none.
    pub(super) fn renew(&self) -> Result<(), KafkaError> {
        let mut state = lock(&self.state);
        if state.producer.is_none() {
            let outcomes = Outcomes { state: Arc::downgrade(&self.state), generation: state.generation };
            let producer = self.client.producer(self.outcome()).create_with_context(outcomes)?;
            state.producer = Some(producer);
            self.has_producer.notify_all();
        }
        Ok(())
    }

    /// How long an append may have no outcome.
    pub(super) fn outcome(&self) -> Duration {
        Duration::from_millis(self.outcome.load(Ordering::Acquire))
    }

    /// No append is waited for any longer than that from now on.
    pub(super) fn bound_outcomes(&self, within: Duration) {
        self.outcome.fetch_min(millis(within), Ordering::AcqRel);
    }

    /// Lets nothing more in.
    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.has_producer.notify_all();
    }

    /// Whether everything that was appended has an outcome.
    pub(super) fn is_quiet(&self) -> bool {
        lock(&self.state).appended.is_empty()
    }

    /// Throws the producer away, with what it has not sent.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.generation += 1;
        let gone = state.producer.take();
        drop(state);
        give_up(gone);
    }
}

/// Throws a producer away, with what it has not sent. Does not wait for the threads of the client library.
fn give_up(gone: Option<ThreadedProducer<Outcomes>>) {
    if let Some(gone) = gone {
        gone.purge(PurgeConfig::default().queue().inflight().non_blocking());
        discard(gone);
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl State {
    /// Whether this was an append of ours on its way.
    fn landed(&mut self, hash: Hash) -> bool {
        let at = self.appended.iter().position(|(appended, _)| *appended == hash);
        at.and_then(|at| self.appended.remove(at)).is_some()
    }
}
