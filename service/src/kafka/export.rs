//! The events topic: each event of the journal as a CloudEvent in binary form, for consumers that know nothing of
//! commits.
//!
//! Written by the server that decides, which continues behind the last event found there (see [`super::exported`]). At
//! least once, in order: a consumer drops what has a `ce_id` that is not above its last of the same `ce_lineage`. A
//! server that was paused may write events a second time, behind newer ones: so the topic must not be compacted, though
//! the key of an event is its subject. The partition is the fleet's, so that the order is the journal's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use chancery_events::cloud;
use chancery_events::id::{Position, Writer};
use chancery_events::record::Header;
use chancery_events::time::Time;
use chancery_journal::Source;
use chancery_journal::kafka::Client;
use rdkafka::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{self, Message as _, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use rdkafka::types::RDKafkaErrorCode as Code;
use serde_json::value::RawValue;

use super::exported::{CORRECTED, Correction, TwoHistories};
use crate::decider::Decider;
use crate::troubles::{FleetPart, FleetTroubles};

/// How long to wait when there is nothing to write, or no room.
const PAUSE: Duration = Duration::from_millis(10);
/// Before it begins again after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// How often the exported position is committed.
const COMMIT: Duration = Duration::from_secs(1);

/// How long the brokers may take to acknowledge a correction.
const OUTCOME: Duration = Duration::from_secs(30);

/// Which topic.
#[derive(Clone, Debug)]
pub(super) struct Export {
    /// The fleet whose events these are.
    pub(super) fleet: Arc<str>,
    /// Whether a correction is written where the topic holds another history than the journal.
    pub(super) corrects: bool,
    pub(super) client: Client,
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) troubles: Arc<FleetTroubles>,
}

/// What became of events that were sent.
#[derive(Default)]
struct Outcomes {
    /// Whether an event could not be written.
    failed: AtomicBool,
    /// The last event that was acknowledged, and the offset behind that event.
    acknowledged: Mutex<Option<(Position, i64)>>,
}

struct OutcomeContext(Arc<Outcomes>);

impl ClientContext for OutcomeContext {}

impl ProducerContext for OutcomeContext {
    /// The position of the event.
    type DeliveryOpaque = Box<Position>;

    fn delivery(&self, result: &DeliveryResult<'_>, position: Box<Position>) {
        match result {
            Ok(message) => {
                let mut acknowledged = self.0.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
                *acknowledged = Some((*position, message.offset() + 1));
            }
            Err((error, _)) => {
                if !self.0.failed.swap(true, Ordering::AcqRel) {
                    tracing::warn!(%error, %position, "an event could not be written to the events topic");
                }
            }
        }
    }
}

impl Export {
    /// Writes events for as long as the decider is there. Blocks.
    pub(super) fn run(&self, source: &dyn Source, decider: &Decider, writer: Writer) {
        // Before its own first record, this server may not have read all that the one before has exported.
        while source.head().is_none_or(|head| head.writer != writer) && !decider.has_stopped() {
            std::thread::sleep(PAUSE);
        }
        while !decider.has_stopped() {
            if let Err(error) = self.write(source, decider) {
                // Brokers may be away for hours.
                self.troubles.report(FleetPart::Events, format!("{error:#}"));
                std::thread::sleep(AGAIN);
            }
        }
    }

    fn write(&self, source: &dyn Source, decider: &Decider) -> Result<()> {
        let outcomes = Arc::new(Outcomes::default());
        let producer = self.producer(&outcomes)?;
        let mut last = match self.continues_behind(source) {
            Err(error) if self.corrects && error.is::<TwoHistories>() => {
                self.correct(source, decider, &producer, &outcomes)?
            }
            continues => continues?,
        };
        self.troubles.clear(FleetPart::Events);
        let done = self.follow(source, decider, &producer, &outcomes, &mut last);
        // What was decided here last is for consumers too. What is not acknowledged by then is written by the next
        // decider: it must not come later, behind newer events.
        let flushed = producer.flush(AGAIN);
        producer.purge(PurgeConfig::default().queue().inflight());
        done?;
        flushed.context("write the last events")
    }

    fn producer(&self, outcomes: &Arc<Outcomes>) -> Result<ThreadedProducer<OutcomeContext>> {
        // No event may expire: what follows it would stand behind a hole.
        let mut config = self.client.producer(Duration::ZERO);
        config.set("enable.gapless.guarantee", "true").set("linger.ms", "5");
        // Every client reads gzip by itself; several want a library more for lz4. The lowest level costs the least.
        config.set("compression.type", "gzip").set("compression.level", "1");
        config.create_with_context(OutcomeContext(Arc::clone(outcomes))).context("make a producer")
    }

    /// Writes the events behind `last` until the decider has stopped.
    fn follow(
        &self,
        source: &dyn Source,
        decider: &Decider,
        producer: &ThreadedProducer<OutcomeContext>,
        outcomes: &Outcomes,
        last: &mut Position,
    ) -> Result<()> {
        let member = self.member()?;
        let (mut committed, mut is_due) = (Position::ZERO, Instant::now());
        let mut records = source.records(last.plus(1)).context("read the journal")?;
        while !decider.has_stopped() {
            outcomes.check()?;
            if is_due.elapsed() > COMMIT {
                is_due = Instant::now();
                // The callback of the last commit is served here.
                let _ = member.poll(Duration::ZERO);
                if let Some((position, offset)) = outcomes.acknowledged().filter(|last| last.0 > committed) {
                    self.commit(&member, source, position, offset)?;
                    committed = position;
                }
            }
            // The records end at the head; before the first record there is none to continue from.
            let Some(record) = records.next() else {
                std::thread::sleep(PAUSE);
                if source.head().is_some_and(|head| head.position > *last) {
                    records = source.records(last.plus(1)).context("read the journal")?;
                }
                continue;
            };
            let record = record.context("read the journal")?;
            let hash = record.hash().to_string();
            for (position, line) in record.events().filter(|(position, _)| position > last) {
                let event = CloudMessage::of(record.header(), &hash, position, line)?;
                self.put(producer, outcomes, position, &event)?;
            }
            *last = record.last();
        }
        Ok(())
    }

    /// Says in the topic which positions are lost. Behind which position the exporter continues.
    fn correct(
        &self,
        source: &dyn Source,
        decider: &Decider,
        producer: &ThreadedProducer<OutcomeContext>,
        outcomes: &Outcomes,
    ) -> Result<Position> {
        let Some(correction) = self.correction(source)? else { return self.continues_behind(source) };
        let head = source.head().context("the journal is empty")?;
        ensure!(!decider.has_stopped(), "another server may have corrected it meanwhile");
        tracing::warn!(?correction, topic = self.topic, "the events topic is corrected");
        let message = CloudMessage::correction(&self.fleet, head.time, &correction)?;
        self.put(producer, outcomes, correction.continues_after, &message)?;
        producer.flush(OUTCOME).context("write the correction")?;
        outcomes.check()?;
        Ok(correction.continues_after)
    }

    fn put(
        &self,
        producer: &ThreadedProducer<OutcomeContext>,
        outcomes: &Outcomes,
        position: Position,
        event: &CloudMessage,
    ) -> Result<()> {
        let mut record = BaseRecord::<str, [u8], _>::with_opaque_to(&self.topic, Box::new(position))
            .partition(self.partition)
            .payload(event.data.get().as_bytes())
            .headers(event.headers.clone());
        if let Some(key) = &event.key {
            record = record.key(key.as_str());
        }
        loop {
            match producer.send(record) {
                Ok(()) => return Ok(()),
                Err((KafkaError::MessageProduction(Code::QueueFull), back)) => {
                    outcomes.check()?;
                    record = back;
                    std::thread::sleep(PAUSE);
                }
                Err((error, _)) => return Err(error).context("write an event"),
            }
        }
    }
}

impl Outcomes {
    fn check(&self) -> Result<()> {
        ensure!(!self.failed.load(Ordering::Acquire), "an event was not acknowledged");
        Ok(())
    }

    fn acknowledged(&self) -> Option<(Position, i64)> {
        *self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A CloudEvent in binary form, as a message.
struct CloudMessage {
    headers: OwnedHeaders,
    key: Option<String>,
    data: Box<RawValue>,
}

impl CloudMessage {
    /// An event of a record with that hash.
    fn of(header: &Header, hash: &str, position: Position, line: &[u8]) -> Result<CloudMessage> {
        let mut shown = Vec::new();
        cloud::render(header, position, line, &mut shown).context("show an event")?;
        let mut members: BTreeMap<String, Box<RawValue>> =
            serde_json::from_slice(&shown).context("show an event")?;
        let data = members.remove("data").context("an event has data")?;
        let mut headers = OwnedHeaders::new_with_capacity(members.len() + 1);
        let mut key = None;
        for (name, value) in members {
            let value: String = serde_json::from_str(value.get()).context("an attribute is text")?;
            if name == "partitionkey" {
                key = Some(value.clone());
            }
            let name =
                if name == "datacontenttype" { "content-type".to_owned() } else { format!("ce_{name}") };
            headers = headers.insert(message::Header { key: &name, value: Some(&value) });
        }
        let headers = headers.insert(message::Header { key: "ce_recordhash", value: Some(hash) });
        Ok(CloudMessage { headers, key, data })
    }

    /// A correction of the topic.
    fn correction(fleet: &str, time: Time, correction: &Correction) -> Result<CloudMessage> {
        let Correction { continues_after, lost_through, .. } = correction;
        let mut headers = OwnedHeaders::new();
        for (key, value) in [
            ("ce_specversion", cloud::SPEC_VERSION.to_owned()),
            ("ce_id", format!("correction-{continues_after}-{lost_through}")),
            ("ce_source", format!("/fleets/{fleet}")),
            ("ce_type", format!("{}{CORRECTED}", cloud::TYPE_PREFIX)),
            ("ce_time", time.to_string()),
            ("content-type", "application/json".to_owned()),
        ] {
            headers = headers.insert(message::Header { key, value: Some(&value) });
        }
        Ok(CloudMessage { headers, key: None, data: serde_json::value::to_raw_value(correction)? })
    }
}
