//! Writer's side: appends in flight, and their producer.
//!
//! Invariant: an append is removed only when it was read back, or its writer was notified that it has no
//! outcome. Then the producer is discarded with its queue. What it sent may still arrive, but is skipped once
//! another term has started.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use chancery_events::record::{Record, RecordHash};
use rdkafka::client::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use rdkafka::types::RDKafkaErrorCode as Code;

use super::KafkaOptions;
use super::client::KafkaClient;
use super::{discard, lock};
use crate::chain::{ChainCursor, ChainReader};
use crate::journal::AppendError;

/// Appends and their producer.
pub(super) struct AppendProducer {
    client: KafkaClient,
    topic: String,
    partition: i32,
    in_flight: usize,
    /// Maximum time of an append without an outcome, in milliseconds.
    outcome: AtomicU64,
    state: Arc<Mutex<ProducerState>>,
    has_producer: Condvar,
}

struct ProducerState {
    /// Chain after the last append, or after another writer's record that was read since.
    chain: ChainReader,
    appended: VecDeque<(RecordHash, Instant)>,
    /// Producer; `None` after an append without an outcome, until the loop has made another.
    producer: Option<ThreadedProducer<AppendDeliveries>>,
    /// Reason why an append has no outcome, until the loop has reported it.
    unknown: Option<String>,
    /// Number of the producer, so that callbacks of discarded ones are ignored.
    generation: u64,
    is_closed: bool,
}

struct AppendDeliveries {
    state: Weak<Mutex<ProducerState>>,
    generation: u64,
}

impl ClientContext for AppendDeliveries {}

impl ProducerContext for AppendDeliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let (Err((error, _)), Some(state)) = (result, self.state.upgrade()) else { return };
        let mut state = lock(&state);
        if state.generation == self.generation {
            state.unknown.get_or_insert_with(|| error.to_string());
        }
    }
}

impl AppendProducer {
    /// Creates the state after the last record read. Connects in the background, so that the first append
    /// need not.
    pub(super) fn new(
        options: &KafkaOptions,
        fleet: Arc<str>,
        at: Option<ChainCursor>,
    ) -> Result<AppendProducer, KafkaError> {
        let state = ProducerState {
            chain: ChainReader::new(fleet, at),
            appended: VecDeque::new(),
            producer: None,
            unknown: None,
            generation: 0,
            is_closed: false,
        };
        let writing = AppendProducer {
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
        // The producer is being replaced, which takes moments; no delivery would prompt a retry.
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
            // The record was never in flight, but later ones cannot be sent either: the writer steps down all
            // the same.
            Err(error) => {
                state.unknown.get_or_insert_with(|| error.to_string());
            }
        }
        state.chain = chain;
        state.appended.push_back((record.hash(), Instant::now()));
        Ok(())
    }

    /// Handles a valid record that was read.
    pub(super) fn read_back(&self, record: &Record) {
        let mut state = lock(&self.state);
        if !state.landed(record.hash()) {
            // The record is another writer's: later appends are checked against it.
            let fleet = Arc::clone(state.chain.fleet());
            state.chain = ChainReader::new(fleet, Some(ChainCursor::after(record)));
        }
    }

    /// Handles a skipped value that was read.
    pub(super) fn skipped(&self, hash: RecordHash) {
        lock(&self.state).landed(hash);
    }

    /// Returns, once, the reason why an append has no outcome. Then no append is in flight, and the next ones
    /// continue after `at`, the last record read.
    pub(super) fn take_unknown(&self, at: Option<&ChainCursor>) -> Option<String> {
        let mut state = lock(&self.state);
        let outcome = self.outcome();
        let late = state.appended.front().is_some_and(|(_, since)| since.elapsed() > outcome);
        let why = match state.unknown.take() {
            Some(why) => why,
            None if late => format!("record not read back within {} s", outcome.as_secs()),
            None => return None,
        };
        state.appended.clear();
        state.chain = ChainReader::new(Arc::clone(state.chain.fleet()), at.copied());
        give_up(state);
        Some(why)
    }

    /// Creates a producer, if there is none.
    pub(super) fn renew(&self) -> Result<(), KafkaError> {
        let mut state = lock(&self.state);
        if state.producer.is_none() {
            let outcomes =
                AppendDeliveries { state: Arc::downgrade(&self.state), generation: state.generation };
            let producer = self.client.producer(self.outcome()).create_with_context(outcomes)?;
            state.producer = Some(producer);
            self.has_producer.notify_all();
        }
        Ok(())
    }

    /// Returns the maximum time of an append without an outcome.
    pub(super) fn outcome(&self) -> Duration {
        Duration::from_millis(self.outcome.load(Ordering::Acquire))
    }

    /// Limits the time of an append without an outcome to `within`, from now on.
    pub(super) fn bound_outcomes(&self, within: Duration) {
        self.outcome.fetch_min(millis(within), Ordering::AcqRel);
    }

    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.has_producer.notify_all();
    }

    /// Whether every append has an outcome.
    pub(super) fn is_quiet(&self) -> bool {
        lock(&self.state).appended.is_empty()
    }

    /// Discards the producer and its unsent records.
    pub(super) fn end(&self) {
        give_up(lock(&self.state));
    }
}

/// Discards the producer and its unsent records, without waiting for the threads of the client library.
fn give_up(mut state: MutexGuard<'_, ProducerState>) {
    state.generation += 1;
    let gone = state.producer.take();
    // The producer's callbacks need the lock.
    drop(state);
    if let Some(gone) = gone {
        gone.purge(PurgeConfig::default().queue().inflight().non_blocking());
        discard(gone);
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl ProducerState {
    /// Removes an own append in flight. Returns whether there was one.
    fn landed(&mut self, hash: RecordHash) -> bool {
        let at = self.appended.iter().position(|(appended, _)| *appended == hash);
        at.and_then(|at| self.appended.remove(at)).is_some()
    }
}
