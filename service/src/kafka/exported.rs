//! Progress of the events topic, and the check that topic and journal have the same history.
//!
//! | last event of the topic, or else the position that the exporter committed | the exporter continues |
//! |---|---|
//! | is in the journal, in a record of the same hash | after that event |
//! | of an ancestor of the journal's lineage, after the ancestor's end: a loss was accepted | after the end of the ancestor |
//! | is a correction | after the position that the correction names |
//! | anything else | not at all: [`TwoHistories`] |
//! | neither exists | with the first event |
//!
//! A message without the fleet as source, a position, a lineage and a record hash is no event of the fleet.
//!
//! The committed position is the offset after the last acknowledged event, in the group
//! `TOPIC.exporter.PARTITION`, with an [`ExportedPosition`] as its metadata.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use chancery_events::cloudevent::{TYPE_PREFIX, fleet_of};
use chancery_events::id::{Lineage, Position};
use chancery_events::record::RecordHash;
use chancery_journal::JournalReader;
use chancery_journal::kafka::{KafkaClientError, PartitionReader, PollResult, offsets};
use chancery_journal::witness::lineages;
use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext};
use rdkafka::error::KafkaResult;
use rdkafka::message::{BorrowedMessage, Message as _};
use rdkafka::{Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};

use super::export::EventExporter;
use super::headers;

/// Timeout of a request to the brokers.
const ASKING: Duration = Duration::from_secs(10);
/// Maximum time without messages from a topic that is known to have more.
const SILENCE: Duration = Duration::from_secs(30);
/// Number of offsets per step of the backward search: non-event messages may follow the last event.
const BACK: i64 = 1000;

/// Type of a correction, without the prefix of all types.
pub(super) const CORRECTED: &str = "events.corrected.v1";

/// Event of the events topic, as found there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ExportedPosition {
    /// Position of the event.
    pub(super) position: Position,
    /// Lineage in which the event was recorded.
    pub(super) lineage: Lineage,
    /// Hash of the record that contains the event; `None` at position 0.
    pub(super) recordhash: Option<RecordHash>,
}

/// Statement that events of `lineage` after `continues_after`, up to `lost_through`, are not in the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ExportCorrection {
    /// Lineage of the lost events.
    pub(super) lineage: Lineage,
    /// Last position that the topic and the journal share; the next event follows the correction.
    pub(super) continues_after: Position,
    /// Hash of the record that contains `continues_after` in the journal; `None` at position 0.
    pub(super) recordhash: Option<RecordHash>,
    /// Last lost position.
    pub(super) lost_through: Position,
}

/// Error if the topic has events that are not in the journal.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot continue topic {topic} partition {partition}: its last event, position {position}, is in {exported}, but the \
     journal has {held} there: the topic has a history that the journal has lost, and consumers have seen it\nhint: start one \
     server with --correct-events once, which writes an event that names the lost positions and continues after the \
     last position that both share; or stop the servers, delete the topic and the group {topic}.exporter.{partition}, and \
     run `chancery init-topics`, so that the topic is filled from the first event"
)]
pub(super) struct TwoHistories {
    topic: String,
    partition: i32,
    position: Position,
    exported: String,
    held: String,
}

impl EventExporter {
    /// Returns the position after which the exporter continues.
    pub(super) fn continues_behind(&self, source: &dyn JournalReader) -> Result<Position> {
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

    fn two_histories(&self, source: &dyn JournalReader, last: &ExportedPosition) -> Result<TwoHistories> {
        let ExportedPosition { position, lineage, recordhash } = last;
        let named = |hash, lineage| format!("record {hash} of lineage {lineage}");
        let held = held(source, *position)?;
        Ok(TwoHistories {
            topic: self.topic.clone(),
            partition: self.partition,
            position: *position,
            exported: recordhash
                .map_or_else(|| format!("a record of lineage {lineage}"), |hash| named(hash, *lineage)),
            held: held.map_or_else(|| "no record".to_owned(), |(hash, lineage)| named(hash, lineage)),
        })
    }

    /// Returns the required correction if topic and journal have different histories, otherwise `None`.
    pub(super) fn correction(&self, source: &dyn JournalReader) -> Result<Option<ExportCorrection>> {
        let Some(last) = self.last(|_| Ok(true))?.or(self.committed()?) else { return Ok(None) };
        if shared(source, &last)?.is_some() {
            return Ok(None);
        }
        // Duplicates of a server that was paused may follow newer events.
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
        Ok(Some(ExportCorrection { lineage, continues_after, recordhash, lost_through }))
    }

    /// Returns the last event in the topic that is `wanted`, if any.
    fn last(&self, wanted: impl Fn(&ExportedPosition) -> Result<bool>) -> Result<Option<ExportedPosition>> {
        let asking = self
            .client
            .watcher()
            .map_err(KafkaClientError)
            .context("cannot reach brokers for events topic")?;
        let (begins, mut end) = offsets(&asking, &self.topic, self.partition)
            .map_err(KafkaClientError)
            .with_context(|| format!("cannot read offsets of {}", self.topic))?;
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

    /// Returns the events from offset `from` up to `end`, in their order.
    fn between(&self, from: i64, end: i64) -> Result<Vec<ExportedPosition>> {
        let open = |from| {
            PartitionReader::open(&self.client, &self.topic, self.partition, from)
                .map_err(KafkaClientError)
                .context("cannot read events topic")
        };
        let mut reader = open(from)?;
        let mut events = Vec::new();
        let mut last_message = std::time::Instant::now();
        while reader.reached().is_none_or(|reached| reached < end) {
            match reader.poll(Duration::from_millis(100)) {
                // A message that the brokers have damaged is lost for consumers; later messages are not.
                Err(unreadable) if !unreadable.is_removed() => {
                    tracing::error!(%unreadable, "unreadable message of the events topic skipped");
                    let next = unreadable.offset() + 1;
                    if next >= end {
                        break;
                    }
                    reader = open(next)?;
                }
                Err(removed) => return Err(removed.into()),
                Ok(PollResult::Message(message)) => {
                    last_message = std::time::Instant::now();
                    if message.offset() < end {
                        events.extend(event(&message, &self.fleet));
                    }
                }
                Ok(PollResult::Nothing) if last_message.elapsed() > SILENCE => {
                    let silence = SILENCE.as_secs();
                    bail!("cannot read events topic: no message from the brokers for {silence} s");
                }
                Ok(PollResult::Nothing) => {}
            }
        }
        Ok(events)
    }

    /// Returns a member of the exporter's group that reads no messages: it commits and reads positions.
    pub(super) fn member(&self) -> Result<BaseConsumer<ExporterMember>> {
        let config = self.client.of_group(&format!("{}.exporter.{}", self.topic, self.partition));
        config
            .create_with_context(ExporterMember)
            .map_err(KafkaClientError)
            .context("cannot create client of exporter group")
    }

    /// Returns the position that the exporter committed last, if any.
    fn committed(&self) -> Result<Option<ExportedPosition>> {
        let mut asked = TopicPartitionList::new();
        asked.add_partition(&self.topic, self.partition);
        let committed = self.member()?.committed_offsets(asked, ASKING).map_err(KafkaClientError);
        let committed = committed.context("cannot read exported position")?;
        let Some(found) = committed.find_partition(&self.topic, self.partition) else { return Ok(None) };
        found.error().map_err(KafkaClientError).context("cannot read exported position")?;
        let metadata = found.metadata();
        if found.offset() == Offset::Invalid || metadata.is_empty() {
            return Ok(None);
        }
        let position = serde_json::from_str(metadata);
        position.map(Some).with_context(|| format!("invalid exported position {metadata:?}"))
    }

    /// Commits that the event at `position`, whose offset precedes `offset`, was exported.
    pub(super) fn commit(
        &self,
        member: &BaseConsumer<ExporterMember>,
        source: &dyn JournalReader,
        position: Position,
        offset: i64,
    ) -> Result<()> {
        let Some((hash, lineage)) = held(source, position)? else { return Ok(()) };
        let exported = ExportedPosition { position, lineage, recordhash: Some(hash) };
        let mut place = TopicPartitionList::new();
        let mut element = place.add_partition(&self.topic, self.partition);
        let set = element.set_offset(Offset::Offset(offset)).map_err(KafkaClientError);
        set.context("cannot set exported offset")?;
        element.set_metadata(serde_json::to_string(&exported).context("cannot encode exported position")?);
        let committed = member.commit(&place, CommitMode::Async).map_err(KafkaClientError);
        committed.context("cannot commit exported position")
    }
}

/// Logs the results of commits.
pub(super) struct ExporterMember;

impl ClientContext for ExporterMember {}

impl ConsumerContext for ExporterMember {
    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        if let Err(error) = result {
            tracing::warn!(%error, "commit of exported position failed");
        }
    }
}

/// Returns the hash and lineage of the record that contains a position.
fn held(source: &dyn JournalReader, position: Position) -> Result<Option<(RecordHash, Lineage)>> {
    if position == Position::ZERO || source.head().is_none_or(|head| head.position < position) {
        return Ok(None);
    }
    let record = source
        .records(position)
        .context("cannot read journal")?
        .next()
        .transpose()
        .context("cannot read journal")?;
    Ok(record.map(|record| (record.hash(), record.header().lineage)))
}

/// Returns the last position that journal and export share, if the journal contains the event or records the
/// end of its lineage.
fn shared(source: &dyn JournalReader, exported: &ExportedPosition) -> Result<Option<Position>> {
    let ExportedPosition { position, lineage, recordhash } = *exported;
    if position == Position::ZERO {
        return Ok(Some(position));
    }
    if held(source, position)?.is_some_and(|(hash, _)| recordhash == Some(hash)) {
        return Ok(Some(position));
    }
    if source.head().is_none_or(|head| head.lineage == lineage) {
        return Ok(None);
    }
    let lineages = lineages(source).context("cannot read journal")?;
    let end = lineages.and_then(|lineages| lineages.end(lineage));
    // Events after the end of an ancestor were given up; earlier events must be the same.
    Ok(end.filter(|end| position > *end))
}

/// Returns the fleet's event, or the event that a correction names, if the message is one of them.
fn event(message: &BorrowedMessage<'_>, fleet: &str) -> Option<ExportedPosition> {
    let (headers, _) = headers::of(message);
    let value = |name: &str| {
        let (_, value) = headers.iter().find(|(key, _)| *key == name)?;
        std::str::from_utf8(value).ok()
    };
    // Messages of others do not show the progress of the fleet's events.
    if fleet_of(value("ce_source")?) != Some(fleet) {
        return None;
    }
    if value("ce_type")?.strip_prefix(TYPE_PREFIX)? == CORRECTED {
        let correction: ExportCorrection = serde_json::from_slice(message.payload()?).ok()?;
        return Some(ExportedPosition {
            position: correction.continues_after,
            lineage: correction.lineage,
            recordhash: correction.recordhash,
        });
    }
    Some(ExportedPosition {
        position: value("ce_id")?.parse().ok()?,
        lineage: value("ce_lineage")?.parse().ok()?,
        recordhash: Some(value("ce_recordhash")?.parse().ok()?),
    })
}
