//! The events topic: each event of the journal as a CloudEvent in binary form, for consumers that know nothing of
//! commits.
//!
//! Written by the server that decides, which goes on behind the last one found there. At least once, in order: a
//! consumer drops what has a `ce_id` that is not above its last of the same `ce_lineage`. The key is the subject, so that a consumer may keep the
//! last event of each; the partition is the fleet's, so that the order is the journal's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use chancery_events::cloud;
use chancery_events::id::Position;
use chancery_events::lineage::NamedPosition;
use chancery_journal::Source;
use chancery_journal::kafka::{Client, offsets};
use chancery_journal::witness::lineages;
use rdkafka::ClientContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode as Code;
use serde_json::value::RawValue;

use crate::decider::Decider;

/// How long a question to the brokers may take.
const ASKING: Duration = Duration::from_secs(10);
/// How long to wait when there is nothing to write, or no room.
const PAUSE: Duration = Duration::from_millis(10);
/// Before it begins again after a failure.
const AGAIN: Duration = Duration::from_secs(1);
/// Failures are told so far apart.
const SILENT: Duration = Duration::from_mins(1);
/// An event that is not acknowledged after so long is written again.
const OUTCOME: Duration = Duration::from_secs(30);
/// So far back is looked for the last event, behind which there may be what is none.
const BACK: i64 = 1000;

/// Which topic.
#[derive(Clone, Debug)]
pub(super) struct Export {
    pub(super) client: Client,
    pub(super) topic: String,
    pub(super) partition: i32,
}

/// Hears whether anything could not be written.
struct Outcomes(Arc<AtomicBool>);

impl ClientContext for Outcomes {}

impl ProducerContext for Outcomes {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result
            && !self.0.swap(true, Ordering::AcqRel)
        {
            tracing::warn!(%error, "an event could not be written to the events topic");
        }
    }
}

impl Export {
    /// Writes events for as long as the decider is there. Blocks.
    pub(super) fn run(&self, source: &dyn Source, decider: &Decider) {
        let mut told: Option<Instant> = None;
        while !decider.has_stopped() {
            if let Err(error) = self.write(source, decider) {
                // Brokers may be away for hours.
                if told.is_none_or(|told| told.elapsed() > SILENT) {
                    told = Some(Instant::now());
                    tracing::warn!(
                        error = format!("{error:#}"),
                        "writing to the events topic begins again and again"
                    );
                }
                std::thread::sleep(AGAIN);
            }
        }
    }

    fn write(&self, source: &dyn Source, decider: &Decider) -> Result<()> {
        let mut last = match self.last()? {
            Some(last) => kept(source, last)?,
            // All were deleted for their age: consumers have seen them, or never will.
            None => source.head().map_or(Position::ZERO, |head| head.position),
        };
        let failed = Arc::new(AtomicBool::new(false));
        let mut config = self.client.producer(OUTCOME);
        // What could not be written must not leave a hole before what could.
        config.set("enable.gapless.guarantee", "true").set("linger.ms", "5");
        // Every client reads gzip by itself; several want a library more for lz4. The lowest level costs the least.
        config.set("compression.type", "gzip").set("compression.level", "1");
        let producer: ThreadedProducer<Outcomes> =
            config.create_with_context(Outcomes(Arc::clone(&failed))).context("make a producer")?;
        let mut records = source.records(last.plus(1)).context("read the journal")?;
        while !decider.has_stopped() {
            if failed.load(Ordering::Acquire) {
                bail!("an event was not acknowledged");
            }
            // An end that was reached is asked for anew: before the first record there is nothing to go on from.
            let Some(record) = records.next() else {
                std::thread::sleep(PAUSE);
                if source.head().is_some_and(|head| head.position > last) {
                    records = source.records(last.plus(1)).context("read the journal")?;
                }
                continue;
            };
            let record = record.context("read the journal")?;
            for (position, line) in record.events().filter(|(position, _)| *position > last) {
                self.put(&producer, &failed, record.header(), position, line)?;
            }
            last = record.last();
        }
        // What was decided here last is for consumers too.
        producer.flush(AGAIN).context("write the last events")?;
        Ok(())
    }

    fn put(
        &self,
        producer: &ThreadedProducer<Outcomes>,
        failed: &AtomicBool,
        header: &chancery_events::record::Header,
        position: Position,
        line: &[u8],
    ) -> Result<()> {
        let event = Event::of(header, position, line)?;
        let mut record = BaseRecord::<str, [u8]>::to(&self.topic)
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
                    if failed.load(Ordering::Acquire) {
                        bail!("an event was not acknowledged");
                    }
                    record = back;
                    std::thread::sleep(PAUSE);
                }
                Err((error, _)) => return Err(error).context("write an event"),
            }
        }
    }

    /// The last event in the topic; position zero if it never held any, none if it holds none any more.
    fn last(&self) -> Result<Option<NamedPosition>> {
        let asking = self.client.watcher().context("reach the brokers for the events topic")?;
        let (begins, ends) = offsets(&asking, &self.topic, self.partition)
            .with_context(|| format!("ask for the first and last offset of {}", self.topic))?;
        let mut end = ends;
        while end > begins {
            let from = (end - BACK).max(begins);
            if let Some(last) = self.last_between(from, end)? {
                return Ok(Some(last));
            }
            end = from;
        }
        Ok((ends == 0).then_some(NamedPosition { position: Position::ZERO, lineage: None }))
    }

    fn last_between(&self, from: i64, end: i64) -> Result<Option<NamedPosition>> {
        let reader =
            self.client.reader(&self.topic, self.partition, from).context("read the events topic")?;
        let mut last: Option<NamedPosition> = None;
        loop {
            match reader.poll(ASKING) {
                Some(Ok(message)) if message.offset() < end => {
                    let named = message.headers().and_then(|headers| {
                        let value = |key| headers.iter().find(|header| header.key == key)?.value;
                        let position = std::str::from_utf8(value("ce_id")?).ok()?.parse().ok()?;
                        let lineage =
                            value("ce_lineage").and_then(|it| std::str::from_utf8(it).ok()?.parse().ok());
                        Some(NamedPosition { position, lineage })
                    });
                    // Some may stand there twice; those of a later lineage may have lower positions.
                    let is_new = |found: &NamedPosition| {
                        last.is_none_or(|last| {
                            found.lineage != last.lineage || found.position > last.position
                        })
                    };
                    last = named.filter(is_new).or(last);
                    if message.offset() + 1 == end {
                        return Ok(last);
                    }
                }
                Some(Ok(_) | Err(KafkaError::PartitionEOF(_))) => return Ok(last),
                Some(Err(error)) => return Err(error).context("read the events topic"),
                None => return Err(anyhow!("the brokers do not say what the events topic holds")),
            }
        }
    }
}

/// How far what stands in the topic is part of the journal: behind the end of an ancestor it is not.
fn kept(source: &dyn Source, last: NamedPosition) -> Result<Position> {
    let NamedPosition { position, lineage } = last;
    let head = source.head();
    let Some(lineage) = lineage.filter(|lineage| head.is_some_and(|head| head.lineage != *lineage)) else {
        return Ok(position);
    };
    let lineages = lineages(source).context("read the journal")?;
    let end = lineages.and_then(|lineages| lineages.end(lineage)).unwrap_or(Position::ZERO);
    Ok(position.min(end))
}

/// One event in binary form.
struct Event {
    headers: OwnedHeaders,
    key: Option<String>,
    data: Box<RawValue>,
}

impl Event {
    fn of(header: &chancery_events::record::Header, position: Position, line: &[u8]) -> Result<Event> {
        let mut shown = Vec::new();
        cloud::render(header, position, line, &mut shown).context("show an event")?;
        let mut members: BTreeMap<String, Box<RawValue>> =
            serde_json::from_slice(&shown).context("show an event")?;
        let data = members.remove("data").context("an event has data")?;
        let mut headers = OwnedHeaders::new_with_capacity(members.len());
        let mut key = None;
        for (name, value) in members {
            let value: String = serde_json::from_str(value.get()).context("an attribute is text")?;
            if name == "partitionkey" {
                key = Some(value.clone());
            }
            let name =
                if name == "datacontenttype" { "content-type".to_owned() } else { format!("ce_{name}") };
            headers = headers.insert(Header { key: &name, value: Some(&value) });
        }
        Ok(Event { headers, key, data })
    }
}
