//! History of an entity: every event about it, with its initiator.
//!
//! The journal returns records that may be about the entity: by postings if it has some, otherwise all. A
//! record without the entity's name is skipped without reading its events; memory holds one page and one
//! record.

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_events::event::{Event, EventKind, EventLine, InvalidEvent};
use chancery_events::fact::{ApprovalActor, Fact, OperationApproved};
use chancery_events::id::{Lineage, Position};
use chancery_events::name::{Actor, ExecutorName};
use chancery_events::record::{LINEAGE_STARTED, Record, TERM_STARTED};
use chancery_events::subject::Subject;
use chancery_events::time::{Time, shown};
use chancery_journal::{JournalReader, ReadError};
use memchr::memmem::Finder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Maximum number of entries on a page.
pub const LIMIT_MAX: usize = 1000;
/// Maximum number of events checked for one page.
pub(crate) const LOOKS: u64 = 2_000_000;
/// Approximate bytes of an entry without its data.
const HEAD: usize = 300;

/// Initiator of an event.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventInitiator {
    /// Person or program that sent an intent.
    Actor(Actor),
    /// Executor that reported an observation.
    Executor(ExecutorName),
    /// Rule, by its name.
    Rule(String),
    /// Decider, when a time was reached or at a takeover.
    Decider,
}

/// First event of a chain of causes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
pub struct RootCause {
    /// Position of the event.
    pub position: Position,
    /// Type of the event, with its version.
    #[serde(rename = "type")]
    pub type_name: String,
}

/// Start of a chain of causes, and its initiator.
#[derive(Clone)]
struct CauseRoot {
    initiator: EventInitiator,
    root_cause: RootCause,
}

/// One event of an entity's history.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct HistoryEntry {
    /// Position of the event.
    pub position: Position,
    /// Time of the commit.
    #[serde(with = "shown")]
    #[schemars(with = "String")]
    pub time: Time,
    /// Kind of the event: intent, observation or fact.
    #[schemars(with = "String")]
    pub kind: EventKind,
    /// Type of the event, with its version.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Initiator of the event.
    pub initiator: EventInitiator,
    /// Position of the cause, if the event is a fact.
    pub cause: Option<Position>,
    /// First event of the chain of causes, if the event is a fact.
    pub root_cause: Option<RootCause>,
    /// Data of the event, as stored.
    #[schemars(with = "serde_json::Value")]
    pub data: Box<RawValue>,
    /// Lineage under which the event was recorded.
    #[serde(skip)]
    pub(crate) lineage: Lineage,
}

/// A page of a history, the newest last.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct HistoryPage {
    /// Events of the page.
    pub entries: Vec<HistoryEntry>,
    /// Position of the next page; `None` if the end was reached. A page may be short and not be the last.
    pub next: Option<Position>,
}

/// Reason why a history cannot be returned.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// Journal that cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Event that cannot be read: if its type is unknown, a newer build can.
    #[error("cannot read history: invalid event at position {position}")]
    Event {
        /// Position of the event.
        position: Position,
        /// Problem of the event.
        source: InvalidEvent,
    },
    /// Request that was cancelled while events were read.
    #[error("cannot read events: the request was cancelled")]
    Cancelled,
}

/// Reads histories from a journal. Cheap to clone.
#[derive(Clone)]
pub struct HistoryReader {
    source: Arc<dyn JournalReader>,
    max_bytes: usize,
    /// Last position that is read.
    until: Position,
}

impl HistoryReader {
    /// Creates a reader of the histories in this journal.
    pub fn new(source: Arc<dyn JournalReader>) -> HistoryReader {
        HistoryReader { source, max_bytes: usize::MAX, until: Position::MAX }
    }

    /// Ends pages before their events exceed `max_bytes`, except for the first event.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: usize) -> HistoryReader {
        self.max_bytes = max_bytes;
        self
    }

    /// Ends every history at `until`, which is the last position of a record.
    #[must_use]
    pub fn until(mut self, until: Position) -> HistoryReader {
        self.until = until;
        self
    }

    /// Returns at most `limit` events about the subject, from `from` on (1 to [`LIMIT_MAX`]).
    pub fn of(&self, subject: &Subject, from: Position, limit: usize) -> Result<HistoryPage, HistoryError> {
        let limit = limit.clamp(1, LIMIT_MAX);
        let needles = needles(subject);
        let finders: Vec<_> = needles.iter().map(Finder::new).collect();
        let may_be = |bytes: &[u8]| finders.iter().any(|finder| finder.find(bytes).is_some());
        let issued = subject.issued();
        let mut entries = Vec::new();
        let mut known = BTreeMap::new();
        let (mut looks, mut bytes) = (0, 0);
        // The record that issues an id may name it before, in the verdict on the intent.
        for record in self.source.records_about(subject, from.max(issued.unwrap_or(Position::FIRST)))? {
            let record = record?;
            if record.first() > self.until {
                break;
            }
            if looks > LOOKS {
                return Ok(HistoryPage { entries, next: Some(record.first()) });
            }
            looks += u64::from(record.header().count);
            let is_origin = issued.is_some_and(|at| record.first() <= at && at <= record.last());
            if !is_origin && !may_be(record.bytes()) {
                continue;
            }
            for (position, line) in record.events().filter(|(position, _)| *position >= from) {
                if issued != Some(position) && !may_be(line) {
                    continue;
                }
                if entries.len() == limit {
                    return Ok(HistoryPage { entries, next: Some(position) });
                }
                let Some(entry) = self.entry(subject, &record, position, line, &mut known)? else { continue };
                bytes += HEAD + entry.data.get().len();
                if bytes > self.max_bytes && !entries.is_empty() {
                    return Ok(HistoryPage { entries, next: Some(position) });
                }
                entries.push(entry);
            }
        }
        Ok(HistoryPage { entries, next: None })
    }

    /// Returns the entry, if the event is about the subject.
    fn entry(
        &self,
        subject: &Subject,
        record: &Record,
        position: Position,
        bytes: &[u8],
        known: &mut BTreeMap<Position, CauseRoot>,
    ) -> Result<Option<HistoryEntry>, HistoryError> {
        let bad = |source| HistoryError::Event { position, source };
        let line = EventLine::read(bytes).map_err(bad)?;
        let (kind, type_name, cause) = (line.kind, line.type_name.to_string(), line.cause);
        let data = line.data.to_owned();
        let event = line.event().map_err(bad)?;
        if !is_about(&event, subject, record, position) {
            return Ok(None);
        }
        let root = self.root(&event, position, record, known)?;
        // Most later entries of the page result from this event.
        known.insert(position, root.clone());
        let CauseRoot { initiator, root_cause } = root;
        let root_cause = Some(root_cause).filter(|root| root.position != position);
        let (time, lineage) = (record.header().time, record.header().lineage);
        Ok(Some(HistoryEntry {
            position,
            time,
            kind,
            type_name,
            initiator,
            cause,
            root_cause,
            data,
            lineage,
        }))
    }

    /// Follows causes back to an intent, an observation or a rule. Each cause is read once for a page.
    fn root(
        &self,
        event: &Event,
        position: Position,
        record: &Record,
        known: &mut BTreeMap<Position, CauseRoot>,
    ) -> Result<CauseRoot, HistoryError> {
        let mut passed = Vec::new();
        let (mut earlier, mut holder, mut at) = (None::<Event>, None::<Arc<Record>>, position);
        let root = loop {
            let event = earlier.as_ref().unwrap_or(event);
            let itself = |who| CauseRoot {
                initiator: who,
                root_cause: RootCause { position: at, type_name: event.type_name().to_owned() },
            };
            let cause = match event {
                Event::Intent(request) => break itself(EventInitiator::Actor(request.actor.clone())),
                Event::Observation { by, .. } => break itself(EventInitiator::Executor(by.clone())),
                Event::Fact {
                    fact:
                        Fact::OperationApproved(OperationApproved {
                            approved_by: ApprovalActor::Rule(rule), ..
                        }),
                    ..
                } => break itself(EventInitiator::Rule(rule.clone())),
                Event::Fact { cause, .. } => *cause,
            };
            if let Some(root) = known.get(&cause) {
                break root.clone();
            }
            // A fact that is its own cause, as a takeover is, has no other initiator.
            if cause == Position::ZERO || cause >= at {
                break itself(EventInitiator::Decider);
            }
            if holder.as_deref().unwrap_or(record).first() > cause {
                holder = self.source.records(cause)?.next().transpose()?;
            }
            let mut events = holder.as_deref().unwrap_or(record).events();
            let Some((_, line)) = events.find(|(at, _)| *at == cause) else {
                break itself(EventInitiator::Decider);
            };
            let bad = |source| HistoryError::Event { position: cause, source };
            let before = Event::read(line).map_err(bad)?;
            passed.push(cause);
            (earlier, at) = (Some(before), cause);
        };
        known.extend(passed.into_iter().map(|passed| (passed, root.clone())));
        Ok(root)
    }
}

/// Returns bytes of which some are in every event about the subject, except for the event that issues its id.
fn needles(subject: &Subject) -> Vec<Vec<u8>> {
    // A name is at the end of a string, alone or in the text of a subject.
    let end = subject.with_key(|key| key.last().map(|part| format!("{part}\"").into_bytes()));
    end.map_or_else(
        || [TERM_STARTED, LINEAGE_STARTED].map(|name| format!("\"{name}\"").into_bytes()).to_vec(),
        |end| vec![end],
    )
}

fn is_about(event: &Event, subject: &Subject, record: &Record, position: Position) -> bool {
    event.all_subjects(record.header().lineage, position).any(|about| about == *subject)
}
