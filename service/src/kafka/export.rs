//! Events topic: each event of the journal as a CloudEvent in binary form, for consumers that do not know
//! commits.
//!
//! The leader writes it, and continues after the last event found there (see [`super::exported`]). Delivery
//! is at least once, in order. A consumer drops an event whose `ce_id` is not above its last of the same
//! `ce_lineage`. A paused server may repeat events after newer ones. So the topic must not be compacted,
//! although the key of an event is its subject. The partition is the fleet's, so that the order is the
//! journal's.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use chancery_api::FleetMetrics;
use chancery_decider::DeciderHandle;
use chancery_decider::troubles::{FleetPart, FleetTroubles};
use chancery_events::cloudevent::{self, RecordRenderer};
use chancery_events::id::{Position, WriterId};
use chancery_events::time::Time;
use chancery_journal::JournalReader;
use chancery_journal::kafka::{KafkaClient, KafkaClientError};
use rdkafka::ClientContext;
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;
use rdkafka::message::{self, Message as _, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer,
};
use rdkafka::types::RDKafkaErrorCode as Code;
use serde_json::value::RawValue;

use super::exported::{CORRECTED, ExportCorrection, ExporterMember, TwoHistories};

/// Time to wait while no event is pending, or the producer's queue is full.
const PAUSE: Duration = Duration::from_millis(10);
/// First pause before a restart after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest pause before a restart after a failure.
const LONGEST: Duration = Duration::from_secs(8);
/// Interval at which the exported position is committed, and acknowledgements are checked.
const TICK: Duration = Duration::from_secs(1);
/// Time without an acknowledgement until the events count as stalled.
const STILL: Duration = Duration::from_secs(10);
/// Time without an acknowledgement until a producer is replaced. Brokers discard a producer that is silent
/// for a day (`producer.id.expiration.ms`).
const KNOWN: Duration = Duration::from_hours(1);
/// Time for which events wait until another producer, with connections of its own, writes them. Messages of
/// the replaced producer may still arrive: these events are repeats, which consumers drop.
const UNACKNOWLEDGED: Duration = Duration::from_mins(1);

/// Parameters of the export to an events topic.
#[derive(Clone, Debug)]
pub(super) struct EventExporter {
    /// Fleet whose events are exported.
    pub(super) fleet: Arc<str>,
    /// Whether a correction is written if the topic has another history than the journal.
    pub(super) corrects: bool,
    pub(super) client: KafkaClient,
    pub(super) topic: String,
    pub(super) partition: i32,
    pub(super) troubles: Arc<FleetTroubles>,
    pub(super) metrics: Arc<FleetMetrics>,
}

/// Delivery results of sent events.
#[derive(Default)]
struct ExportDeliveries {
    /// Whether an event could not be written.
    failed: AtomicBool,
    acknowledged: Mutex<Option<AcknowledgedEvent>>,
}

/// Last event that was acknowledged.
#[derive(Clone, Copy)]
struct AcknowledgedEvent {
    position: Position,
    /// Offset after the event.
    offset: i64,
    at: Instant,
}

struct OutcomeContext(Arc<ExportDeliveries>);

impl ClientContext for OutcomeContext {}

impl ProducerContext for OutcomeContext {
    /// Position of the event.
    type DeliveryOpaque = Box<Position>;

    fn delivery(&self, result: &DeliveryResult<'_>, position: Box<Position>) {
        match result {
            Ok(message) => {
                let (position, offset, at) = (*position, message.offset() + 1, Instant::now());
                let mut acknowledged = self.0.acknowledged.lock().unwrap_or_else(PoisonError::into_inner);
                *acknowledged = Some(AcknowledgedEvent { position, offset, at });
            }
            Err((error, _)) => {
                if !self.0.failed.swap(true, Ordering::AcqRel) {
                    tracing::warn!(%error, %position, "export of event failed");
                }
            }
        }
    }
}

impl EventExporter {
    /// Writes events until the decider stops. Blocks.
    pub(super) fn run(&self, source: &dyn JournalReader, decider: &DeciderHandle, writer: WriterId) {
        // Before its own first record, this server may lack events that its predecessor exported.
        while source.head().is_none_or(|head| head.writer != writer) && !decider.has_stopped() {
            std::thread::sleep(PAUSE);
        }
        let mut pause = AGAIN;
        while !decider.has_stopped() {
            let began = Instant::now();
            // An export that ended with its decider has nothing to report.
            if let Err(error) = self.write(source, decider)
                && !decider.has_stopped()
            {
                // Brokers may be unavailable for hours, and two histories remain until an operator chooses.
                self.troubles.report(FleetPart::Events, format!("{error:#}"));
                pause = if began.elapsed() > LONGEST { AGAIN } else { pause };
                let until = Instant::now() + pause;
                while Instant::now() < until && !decider.has_stopped() {
                    std::thread::sleep(PAUSE);
                }
                pause = (pause * 2).min(LONGEST);
            }
        }
    }

    fn write(&self, source: &dyn JournalReader, decider: &DeciderHandle) -> Result<()> {
        let mut writer = EventWriter::new(self, source, decider)?;
        let last = match self.continues_behind(source) {
            Err(error) if self.corrects && error.is::<TwoHistories>() => writer.correct()?,
            continues => continues?,
        };
        let done = writer.follow(last);
        // Consumers need the last decisions of this server too. The next decider writes events that are not
        // acknowledged by then: they must not arrive later, after newer events.
        let flushed = writer.producer.flush(AGAIN);
        writer.producer.purge(PurgeConfig::default().queue().inflight());
        done?;
        flushed.map_err(KafkaClientError).context("cannot write last events")
    }

    fn producer(&self, outcomes: &Arc<ExportDeliveries>) -> Result<ThreadedProducer<OutcomeContext>> {
        // No event may expire: later events would follow a gap.
        let mut config = self.client.producer(Duration::ZERO);
        config.set("enable.gapless.guarantee", "true").set("linger.ms", "5");
        // Every client reads gzip natively; lz4 often needs a library. The lowest level is the cheapest.
        config.set("compression.type", "gzip").set("compression.level", "1");
        config
            .create_with_context(OutcomeContext(Arc::clone(outcomes)))
            .map_err(KafkaClientError)
            .context("cannot create producer")
    }
}

/// Writes events with one producer.
///
/// Brokers accept any first message of an unknown producer, also the second of two in flight after refusing
/// the first. The client library then takes both as written. So the first event is sent alone, and others
/// after its acknowledgement. From then on brokers refuse messages that do not follow the previous one.
struct EventWriter<'a> {
    export: &'a EventExporter,
    source: &'a dyn JournalReader,
    decider: &'a DeciderHandle,
    producer: ThreadedProducer<OutcomeContext>,
    outcomes: Arc<ExportDeliveries>,
    member: BaseConsumer<ExporterMember>,
    began: Instant,
    /// Time of the last check for acknowledgements.
    ticked: Instant,
    /// Position up to which events are known to be acknowledged, followed by the last committed offset.
    exported: Position,
    committed: i64,
    /// Time at which events were last known to be acknowledged, or none were pending.
    advanced: Instant,
    /// Maximum time for which events wait: [`UNACKNOWLEDGED`].
    max_wait: Duration,
}

impl<'a> EventWriter<'a> {
    fn new(
        export: &'a EventExporter,
        source: &'a dyn JournalReader,
        decider: &'a DeciderHandle,
    ) -> Result<EventWriter<'a>> {
        let outcomes = Arc::new(ExportDeliveries::default());
        let producer = export.producer(&outcomes)?;
        let (member, now) = (export.member()?, Instant::now());
        let (exported, committed) = (Position::ZERO, 0);
        Ok(EventWriter {
            export,
            source,
            decider,
            producer,
            outcomes,
            member,
            began: now,
            ticked: now,
            exported,
            committed,
            advanced: now,
            max_wait: UNACKNOWLEDGED,
        })
    }

    /// Writes the events after `last` until the decider stops, or brokers may have discarded the producer.
    fn follow(&mut self, mut last: Position) -> Result<()> {
        (self.exported, self.advanced) = (last, Instant::now());
        self.export.metrics.events_exported(last);
        let source = self.source;
        let mut records = source.records(last.plus(1)).context("cannot read journal")?;
        while !self.decider.has_stopped() && self.silence() < KNOWN {
            self.tick()?;
            // The records end at the head; before the first record there is none to continue from.
            let Some(record) = records.next() else {
                std::thread::sleep(PAUSE);
                if source.head().is_some_and(|head| head.position > last) {
                    records = source.records(last.plus(1)).context("cannot read journal")?;
                }
                continue;
            };
            let record = record.context("cannot read journal")?;
            let (hash, renderer) = (record.hash().to_string(), RecordRenderer::of(&record));
            for (position, line) in record.events().filter(|(position, _)| *position > last) {
                let event = CloudMessage::of(&renderer, &hash, position, line)?;
                self.put(position, &event)?;
            }
            last = record.last();
        }
        Ok(())
    }

    /// Writes a correction with the lost positions. Returns the position after which the exporter continues.
    fn correct(&mut self) -> Result<Position> {
        let EventExporter { fleet, topic, .. } = self.export;
        let Some(correction) = self.export.correction(self.source)? else {
            return self.export.continues_behind(self.source);
        };
        let head = self.source.head().context("cannot correct events topic: the journal is empty")?;
        ensure!(
            !self.decider.has_stopped(),
            "cannot correct events topic: another server may have corrected it"
        );
        tracing::warn!(?correction, topic, "events topic corrected");
        let message = CloudMessage::correction(fleet, head.time, &correction)?;
        self.advanced = Instant::now();
        self.put(correction.continues_after, &message).context("cannot write correction")?;
        Ok(correction.continues_after)
    }

    /// Sends an event; waits for the acknowledgement of the first one.
    fn put(&mut self, position: Position, event: &CloudMessage) -> Result<()> {
        let EventExporter { topic, partition, .. } = self.export;
        let mut record = BaseRecord::<str, [u8], _>::with_opaque_to(topic, Box::new(position))
            .partition(*partition)
            .payload(event.data.get().as_bytes())
            .headers(event.headers.clone());
        if let Some(key) = &event.key {
            record = record.key(key.as_str());
        }
        loop {
            match self.producer.send(record) {
                Ok(()) => break,
                Err((KafkaError::MessageProduction(Code::QueueFull), back)) => {
                    record = back;
                    self.wait()?;
                }
                Err((error, _)) => return Err(KafkaClientError(error)).context("cannot write event"),
            }
        }
        while self.outcomes.acknowledged().is_none() {
            self.wait()?;
        }
        Ok(())
    }

    /// Waits for [`PAUSE`]; an error if the decider has stopped, or nothing was acknowledged for [`KNOWN`].
    fn wait(&mut self) -> Result<()> {
        ensure!(!self.decider.has_stopped(), "cannot write event: the decider has stopped");
        let silence = self.silence();
        ensure!(silence < KNOWN, "cannot write event: no acknowledgement for {} s", silence.as_secs());
        self.tick()?;
        std::thread::sleep(PAUSE);
        Ok(())
    }

    /// Returns the time without an acknowledgement, at most since the producer was created.
    fn silence(&self) -> Duration {
        self.outcomes.acknowledged().map_or(self.began, |last| last.at).elapsed()
    }

    /// Checks for acknowledgements and commits the position, at most once per second.
    fn tick(&mut self) -> Result<()> {
        ensure!(!self.outcomes.failed.load(Ordering::Acquire), "cannot write event: delivery failed");
        if self.ticked.elapsed() < TICK {
            return Ok(());
        }
        self.ticked = Instant::now();
        // This runs the callback of the last commit.
        let _ = self.member.poll(Duration::ZERO);
        if let Some(AcknowledgedEvent { position, offset, .. }) =
            self.outcomes.acknowledged().filter(|last| last.offset != self.committed)
        {
            self.export.commit(&self.member, self.source, position, offset)?;
            (self.exported, self.committed, self.advanced) = (position, offset, Instant::now());
            self.export.metrics.events_exported(position);
        } else if self.source.head().is_none_or(|head| head.position <= self.exported) {
            self.advanced = Instant::now();
        }
        let troubles = &self.export.troubles;
        if self.advanced >= self.ticked {
            troubles.clear(FleetPart::Events);
        } else if self.advanced.elapsed() > self.max_wait {
            let waited = self.advanced.elapsed().as_secs();
            bail!(
                "cannot write pending events: no acknowledgement for {waited} s, continuing with another producer"
            );
        } else if self.advanced.elapsed() > STILL {
            let trouble = "cannot write pending events: no acknowledgement for 10 s";
            troubles.report(FleetPart::Events, trouble.to_owned());
        }
        Ok(())
    }
}

impl ExportDeliveries {
    fn acknowledged(&self) -> Option<AcknowledgedEvent> {
        *self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// CloudEvent in binary form, as a message.
struct CloudMessage {
    headers: OwnedHeaders,
    key: Option<String>,
    data: Box<RawValue>,
}

impl CloudMessage {
    /// Returns the message of an event; `hash` is the hash of its record.
    fn of(
        renderer: &RecordRenderer<'_>,
        hash: &str,
        position: Position,
        line: &[u8],
    ) -> Result<CloudMessage> {
        let mut shown = Vec::new();
        renderer.render(position, line, &mut shown).context("cannot render event")?;
        let mut members: BTreeMap<String, Box<RawValue>> =
            serde_json::from_slice(&shown).context("cannot render event")?;
        let data = members.remove("data").context("cannot render event: it has no data")?;
        let mut headers = OwnedHeaders::new_with_capacity(members.len() + 1);
        let mut key = None;
        for (name, value) in members {
            let value: String = serde_json::from_str(value.get())
                .context("cannot render event: an attribute is not a string")?;
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

    /// Returns a correction of the topic.
    fn correction(fleet: &str, time: Time, correction: &ExportCorrection) -> Result<CloudMessage> {
        let ExportCorrection { continues_after, lost_through, .. } = correction;
        let mut headers = OwnedHeaders::new();
        for (key, value) in [
            ("ce_specversion", cloudevent::SPEC_VERSION.to_owned()),
            ("ce_id", format!("correction-{continues_after}-{lost_through}")),
            ("ce_source", cloudevent::source(correction.lineage, fleet)),
            ("ce_type", format!("{}{CORRECTED}", cloudevent::TYPE_PREFIX)),
            ("ce_time", time.to_string()),
            ("content-type", "application/json".to_owned()),
        ] {
            headers = headers.insert(message::Header { key, value: Some(&value) });
        }
        Ok(CloudMessage { headers, key: None, data: serde_json::value::to_raw_value(correction)? })
    }
}

#[cfg(test)]
mod tests;
