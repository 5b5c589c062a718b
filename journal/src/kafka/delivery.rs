//! Delivery loop: from the topic to mirror, readers and sink.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chancery_events::record::Record;
use rdkafka::message::Message as _;

use super::checkpoint::OffsetCheckpoint;
use super::reader::{PartitionReader, PollResult};
use super::watch::ReaderWatch;
use super::{KafkaOptions, KafkaShared, discard, give, lock};
use crate::chain::{ChainEntry, ChainReader};
use crate::journal::{DeliverySink, Journal as _, JournalDelivery};

/// Maximum wait for a record before other work is checked.
const WAIT: Duration = Duration::from_millis(20);
/// Maximum number of records, and of bytes, that are delivered together.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 4 << 20;
/// Interval at which the offset checkpoint is stored.
const KEEP: Duration = Duration::from_secs(1);

pub(super) struct DeliveryLoop {
    shared: Arc<KafkaShared>,
    reader: PartitionReader,
    chain: ChainReader,
    sink: DeliverySink,
    dir: PathBuf,
    topic: Arc<str>,
    partition: i32,
    outcome: Duration,
    batch: Vec<Arc<Record>>,
    bytes: usize,
    /// Checkpoints of records that are perhaps not durable in the mirror yet.
    places: VecDeque<OffsetCheckpoint>,
    kept: Instant,
    /// Offset that was stored last.
    stored: Option<i64>,
    closes: Option<Instant>,
    /// Whether the mirror accepts records.
    has_mirror: bool,
    watch: ReaderWatch,
}

/// The loop has ended and notified the sink.
struct DeliveryStopped;

impl DeliveryLoop {
    pub(super) fn new(
        options: &KafkaOptions,
        shared: Arc<KafkaShared>,
        reader: PartitionReader,
        chain: ChainReader,
        place: Option<OffsetCheckpoint>,
        sink: DeliverySink,
    ) -> DeliveryLoop {
        DeliveryLoop {
            shared,
            reader,
            chain,
            sink,
            dir: options.mirror.dir.clone(),
            topic: options.topic.as_str().into(),
            partition: options.partition,
            outcome: options.outcome,
            batch: Vec::new(),
            bytes: 0,
            places: place.into_iter().collect(),
            kept: Instant::now(),
            stored: None,
            closes: None,
            has_mirror: true,
            watch: ReaderWatch::new(),
        }
    }

    /// Delivers until the journal closes or an error occurs. Returns whether it closed without an error.
    pub(super) fn run(mut self) -> bool {
        let mut is_well = loop {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => break true,
                Err(DeliveryStopped) => break false,
            }
        };
        self.shared.writing.close();
        self.shared.writing.end();
        // A disk that does not answer would block closing. If the topic has lost its end, the mirror may be
        // the last good copy.
        is_well = self.has_mirror && self.shared.mirror.close().is_ok() && is_well;
        if is_well {
            self.keep_place();
        }
        discard(self.reader);
        is_well
    }

    /// Does one round of all work. Returns whether the loop continues.
    fn turn(&mut self) -> Result<bool, DeliveryStopped> {
        let broken = lock(&self.shared.broken).take();
        if let Some(why) = broken {
            self.has_mirror = false;
            return Err(self.stop(format!("the mirror stopped: {why}")));
        }
        if let Some(why) = self.shared.writing.take_unknown(self.chain.at()) {
            (self.sink)(JournalDelivery::OutcomeUnknown(why.into()));
            if let Err(error) = self.shared.writing.renew() {
                return Err(self.stop(format!("cannot create producer: {error}")));
            }
        }
        if self.shared.closes.load(Ordering::Acquire) {
            let since = *self.closes.get_or_insert_with(Instant::now);
            if self.shared.writing.is_quiet() || since.elapsed() > self.shared.writing.outcome() {
                return Ok(false);
            }
        }
        if self.kept.elapsed() > KEEP {
            self.keep_place();
            // The obstacle to reading the topic, if there is one, is passed to the readers of the journal.
            self.shared.recent.set_trouble(self.watch.trouble(&self.reader));
        }
        let mut wait = WAIT;
        loop {
            match self.reader.poll(wait) {
                Ok(PollResult::Message(message)) => {
                    let (offset, value) = (message.offset(), message.payload().unwrap_or_default().into());
                    drop(message);
                    self.take(offset, value)?;
                }
                Ok(PollResult::Nothing) => break,
                Err(gone) => return Err(self.stop(gone)),
            }
            if self.batch.len() >= BATCH || self.bytes >= BATCH_BYTES {
                break;
            }
            // Records that have arrived already are included.
            wait = Duration::ZERO;
        }
        self.deliver();
        Ok(true)
    }

    fn take(&mut self, offset: i64, value: Arc<[u8]>) -> Result<(), DeliveryStopped> {
        match self.chain.take(value) {
            Ok(ChainEntry::Record(record)) => {
                self.bytes += record.bytes().len();
                let place = OffsetCheckpoint::of(&self.topic, self.partition, offset, &record);
                // Between two stored checkpoints, only the last is useful.
                if self.places.len() > 1 && self.kept.elapsed() < KEEP {
                    self.places.pop_back();
                }
                self.places.push_back(place);
                let record = Arc::new(record);
                self.shared.recent.push(&record);
                self.shared.writing.read_back(&record);
                self.mirror(&record)?;
                self.batch.push(record);
            }
            Ok(ChainEntry::Skip(skipped)) => {
                self.deliver();
                self.shared.writing.skipped(skipped.hash);
                (self.sink)(JournalDelivery::Skipped(skipped));
            }
            Err(broken) => return Err(self.stop(broken)),
        }
        Ok(())
    }

    fn mirror(&mut self, record: &Record) -> Result<(), DeliveryStopped> {
        give(&self.shared.mirror, record.clone(), self.outcome).map_err(|error| {
            self.has_mirror = false;
            let why = lock(&self.shared.broken).take().unwrap_or(error);
            self.stop(format!("cannot append to mirror: {why}"))
        })
    }

    fn deliver(&mut self) {
        self.bytes = 0;
        if !self.batch.is_empty() {
            (self.sink)(JournalDelivery::Records(std::mem::take(&mut self.batch)));
        }
    }

    fn stop(&mut self, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> DeliveryStopped {
        self.deliver();
        (self.sink)(JournalDelivery::Stopped(why.into()));
        DeliveryStopped
    }

    /// Stores the checkpoint of the last record that is durable in the mirror.
    fn keep_place(&mut self) {
        self.kept = Instant::now();
        let Some(durable) = self.shared.mirror.head() else { return };
        let mut found = None;
        while self.places.front().is_some_and(|place| place.position <= durable.position) {
            found = self.places.pop_front();
        }
        let Some(place) = found else { return };
        let is_new = self.stored != Some(place.offset);
        self.stored = Some(place.offset);
        if is_new && let Err(error) = place.store(&self.dir) {
            tracing::warn!(%error, "offset checkpoint not stored; the next start reads more of the topic");
        }
        // The newest checkpoint stays, in case no other record follows.
        if self.places.is_empty() {
            self.places.push_front(place);
        }
    }
}
