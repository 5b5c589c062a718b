//! How far the events topic holds the journal, and whether the two hold one history.
//!
//! | the topic's last event, or the position that the exporter committed if there is none | the exporter continues |
//! |---|---|
//! | stands in the journal, in a record of the same hash | behind that event |
//! | has no record hash (an earlier build wrote it), and its lineage is the journal's | behind that event |
//! | of an ancestor of the journal's lineage, behind the ancestor's end: a loss was accepted | behind the end of the ancestor |
//! | is a correction | behind the position that the correction names |
//! | anything else | not at all: [`TwoHistories`] |
//! | there is neither | with the first event |
//!
//! The committed position is the offset behind the last acknowledged event, in the group `TOPIC.exporter.PARTITION`, with
//! an [`ExportedPosition`] as its metadata.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use chancery_events::cloud::TYPE_PREFIX;
use chancery_events::id::{Lineage, Position};
use chancery_events::record::Hash;
use chancery_journal::Source;
use chancery_journal::kafka::{PartitionReader, Polled, offsets};
use chancery_journal::witness::lineages;
use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaResult;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};

use super::export::Export;
use super::headers;

/// How long a question to the brokers may take.
const ASKING: Duration = Duration::from_secs(10);
/// How long the brokers may send nothing of what the topic is known to hold.
const SILENCE: Duration = Duration::from_secs(30);
/// The topic is searched backwards by so many offsets: behind its last event there may be messages that are none.
const BACK: i64 = 1000;

/// The type of a correction, behind the prefix of all types.
pub(super) const CORRECTED: &str = "events.corrected.v1";

/// An event of the events topic, as it is found there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ExportedPosition {
    /// The position of the event.
    pub(super) position: Position,
    /// The lineage under which the event was recorded; none where an early build wrote the event.
    pub(super) lineage: Option<Lineage>,
    /// The hash of the record that holds the event; none where an earlier build wrote the event.
    pub(super) recordhash: Option<Hash>,
}

/// What a correction says: events of `lineage` behind `continues_after`, up to `lost_through`, are not part of the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Correction {
    /// The lineage of the events that are lost.
    pub(super) lineage: Option<Lineage>,
    /// The last position that the topic and the journal share; the event behind it follows the correction.
    pub(super) continues_after: Position,
    /// The record that holds that position in the journal; none at position 0.
    pub(super) recordhash: Option<Hash>,
    /// The last position that is lost.
    pub(super) lost_through: Position,
}

/// The topic holds events that the journal does not hold.
#[derive(Debug, thiserror::Error)]
#[error(
    "continue topic {topic} partition {partition}: its last event, position {position}, is in {exported}, and the journal has \
     {held} there: the topic holds a history that the journal has lost, and consumers have seen it. Either start one server \
     with --correct-events once, which writes an event that names the lost positions and continues behind the last position \
     that both share; or stop the servers, delete the topic and the group {topic}.exporter.{partition}, and run `chancery \
     init-topics`: the topic is filled from the first event on"
)]
pub(super) struct TwoHistories {
    topic: String,
    partition: i32,
    position: Position,
    exported: String,
    held: String,
}

impl Export {
    /// Behind which position the exporter continues.
    pub(super) fn continues_behind(&self, source: &dyn Source) -> Result<Position> {
        let last = match self.last(|_| Ok(true))? {
            Some(last) => last,
            None => match self.committed()? {
                Some(committed) => committed,
                None => return Ok(Position::ZERO),
            },
        };
        match shared(source, &last)? {
            Some(position) => Ok(position),
            None => Err(self.two_histories(source, &last)?.into()),
        }
    }

    fn two_histories(&self, source: &dyn Source, last: &ExportedPosition) -> Result<TwoHistories> {
        let ExportedPosition { position, lineage, recordhash } = last;
        let named = |hash: Option<Hash>, lineage: Option<Lineage>| match (hash, lineage) {
            (Some(hash), Some(lineage)) => format!("record {hash} of lineage {lineage}"),
            (Some(hash), None) => format!("record {hash}"),
            (None, Some(lineage)) => format!("a record of lineage {lineage}"),
            (None, None) => "no record".to_owned(),
        };
        let held = held(source, *position)?;
        Ok(TwoHistories {
            topic: self.topic.clone(),
            partition: self.partition,
            position: *position,
            exported: named(*recordhash, *lineage),
            held: named(held.map(|held| held.0), held.map(|held| held.1)),
        })
    }

    /// What a correction has to say, where the topic and the journal hold two histories; `None` where they hold one.
    pub(super) fn correction(&self, source: &dyn Source) -> Result<Option<Correction>> {
        let Some(last) = self.last(|_| Ok(true))?.or(self.committed()?) else { return Ok(None) };
        if shared(source, &last)?.is_some() {
            return Ok(None);
        }
        // Duplicates of a server that was paused may stand behind newer events.
        let highest = Cell::new(last.position);
        let common = self.last(|event| {
            highest.set(highest.get().max(event.position));
            Ok(shared(source, event)?.is_some())
        })?;
        let continues_after = match common {
            Some(event) => shared(source, &event)?.unwrap_or(Position::ZERO),
            None => Position::ZERO,
        };
        let recordhash = held(source, continues_after)?.map(|held| held.0);
        let (lineage, lost_through) = (last.lineage, highest.get());
        Ok(Some(Correction { lineage, continues_after, recordhash, lost_through }))
    }

    /// The last event in the topic that is `wanted`; none if there is none.
    fn last(&self, wanted: impl Fn(&ExportedPosition) -> Result<bool>) -> Result<Option<ExportedPosition>> {
        let asking = self.client.watcher().context("reach the brokers for the events topic")?;
        let (begins, mut end) = offsets(&asking, &self.topic, self.partition)
            .with_context(|| format!("ask for the first and last offset of {}", self.topic))?;
        while end > begins {
            let from = (end - BACK).max(begins);
            for event in self.between(from, end)?.iter().rev() {
                if wanted(event)? {
                    return Ok(Some(*event));
                }
            }
            end = from;
        }
        Ok(None)
    }

    /// The events from offset `from` up to `end`, in their order.
    fn between(&self, from: i64, end: i64) -> Result<Vec<ExportedPosition>> {
        let mut reader = PartitionReader::open(&self.client, &self.topic, self.partition, from)
            .context("read the events topic")?;
        let mut events = Vec::new();
        let mut heard = std::time::Instant::now();
        while reader.reached().is_none_or(|reached| reached < end) {
            match reader.poll(Duration::from_millis(100)) {
                // What the brokers have damaged is lost for consumers; what follows it is not.
                Err(unreadable) if !unreadable.is_removed() => {
                    tracing::error!(%unreadable, "a message of the events topic cannot be read");
                    let next = unreadable.offset() + 1;
                    if next >= end {
                        break;
                    }
                    reader = PartitionReader::open(&self.client, &self.topic, self.partition, next)
                        .context("read the events topic")?;
                }
                Err(removed) => return Err(removed).context("read the events topic"),
                Ok(Polled::Message(message)) => {
                    heard = std::time::Instant::now();
                    if message.offset() < end {
                        events.extend(event(&message, &self.fleet));
                    }
                }
                Ok(Polled::Nothing) if heard.elapsed() > SILENCE => {
                    bail!("the brokers have sent nothing of the events topic for {} s", SILENCE.as_secs());
                }
                Ok(Polled::Nothing) => {}
            }
        }
        Ok(events)
    }

    /// A member of the exporter's group that reads nothing: it commits, and asks what was committed.
    pub(super) fn member(&self) -> Result<BaseConsumer<ExporterMember>> {
        let config = self.client.of_group(&format!("{}.exporter.{}", self.topic, self.partition));
        config.create_with_context(ExporterMember).context("make a client of the exporter's group")
    }

    /// The position that the exporter committed last, if it is known.
    fn committed(&self) -> Result<Option<ExportedPosition>> {
        let mut asked = TopicPartitionList::new();
        asked.add_partition(&self.topic, self.partition);
        let committed = self.member()?.committed_offsets(asked, ASKING).context("ask what was exported")?;
        let Some(found) = committed.find_partition(&self.topic, self.partition) else { return Ok(None) };
        found.error().context("ask what was exported")?;
        let metadata = found.metadata();
        if found.offset() == Offset::Invalid || metadata.is_empty() {
            return Ok(None);
        }
        let position = serde_json::from_str(metadata);
        position.map(Some).with_context(|| format!("read what the exporter committed: {metadata:?}"))
    }

    /// Commits that the event at `position`, which stands before `offset`, was exported.
    pub(super) fn commit(
        &self,
        member: &BaseConsumer<ExporterMember>,
        source: &dyn Source,
        position: Position,
        offset: i64,
    ) -> Result<()> {
        let Some((hash, lineage)) = held(source, position)? else { return Ok(()) };
        let exported = ExportedPosition { position, lineage: Some(lineage), recordhash: Some(hash) };
        let mut place = TopicPartitionList::new();
        let mut element = place.add_partition(&self.topic, self.partition);
        element.set_offset(Offset::Offset(offset)).context("name the offset")?;
        element.set_metadata(serde_json::to_string(&exported).context("name the position")?);
        member.commit(&place, CommitMode::Async).context("commit what was exported")
    }
}

/// Says what became of commits.
pub(super) struct ExporterMember;

impl ClientContext for ExporterMember {}

impl ConsumerContext for ExporterMember {
    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::warn!(%error, "what was exported could not be committed to the exporter's group");
        }
    }
}

/// The hash and lineage of the record that holds a position.
fn held(source: &dyn Source, position: Position) -> Result<Option<(Hash, Lineage)>> {
    if position == Position::ZERO || source.head().is_none_or(|head| head.position < position) {
        return Ok(None);
    }
    let record = source.records(position).context("read the journal")?.next();
    let record = record.transpose().context("read the journal")?;
    Ok(record.map(|record| (record.hash(), record.header().lineage)))
}

/// The last position up to which the journal holds what was exported, if the journal holds the event or says where its
/// lineage ended.
fn shared(source: &dyn Source, exported: &ExportedPosition) -> Result<Option<Position>> {
    let ExportedPosition { position, lineage, recordhash } = *exported;
    if position == Position::ZERO {
        return Ok(Some(position));
    }
    match (held(source, position)?, recordhash) {
        (Some((hash, _)), Some(exported)) if hash == exported => return Ok(Some(position)),
        (Some((_, held)), None) if lineage.is_none_or(|lineage| lineage == held) => {
            return Ok(Some(position));
        }
        _ => {}
    }
    let head = source.head();
    let Some(lineage) = lineage.filter(|lineage| head.is_some_and(|head| head.lineage != *lineage)) else {
        return Ok(None);
    };
    let lineages = lineages(source).context("read the journal")?;
    let end = lineages.and_then(|lineages| lineages.end(lineage));
    // What is behind the end of an ancestor was given up; what is before it must be the same.
    Ok(end.filter(|end| position > *end))
}

/// The event of the fleet, or what a correction names, if the message is either.
fn event(message: &BorrowedMessage<'_>, fleet: &str) -> Option<ExportedPosition> {
    let (headers, _) = headers::of(message);
    let value = |name: &str| {
        let (_, value) = headers.iter().find(|(key, _)| *key == name)?;
        std::str::from_utf8(value).ok()
    };
    // What others put there says nothing about how far the fleet's events go.
    if value("ce_source")?.strip_prefix("/fleets/") != Some(fleet) {
        return None;
    }
    if value("ce_type")?.strip_prefix(TYPE_PREFIX)? == CORRECTED {
        let correction: Correction = serde_json::from_slice(message.payload()?).ok()?;
        return Some(ExportedPosition {
            position: correction.continues_after,
            lineage: correction.lineage,
            recordhash: correction.recordhash,
        });
    }
    Some(ExportedPosition {
        position: value("ce_id")?.parse().ok()?,
        lineage: value("ce_lineage").and_then(|lineage| lineage.parse().ok()),
        recordhash: value("ce_recordhash").and_then(|hash| hash.parse().ok()),
    })
}
