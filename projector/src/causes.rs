//! Single events, their causes and their effects.
//!
//! A fact names its cause: an earlier event, or itself. The causes of an event are the chain from its cause to
//! the first event: an intent, an observation, or a fact that is its own cause, such as the start of a term. The
//! effects of an event are the facts that name it as their cause. Effects in the record of the event are found
//! there, later ones through the journal's postings. Memory holds one page and one record.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chancery_events::cloudevent::RecordRenderer;
use chancery_events::event::{EventKind, EventLine};
use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_events::subject::Subject;
use chancery_journal::JournalReader;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::history::{HistoryError, LIMIT_MAX, LOOKS};

/// Event of the journal, for clients.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct RecordedEvent {
    /// Position of the event.
    #[serde(skip)]
    pub position: Position,
    /// Kind of the event: intent, observation or fact.
    #[serde(skip)]
    pub kind: EventKind,
    /// Type of the event, with its version.
    #[serde(skip)]
    pub type_name: String,
    /// Earlier event that the event names as its cause; `None` for the first event of a chain.
    #[serde(skip)]
    pub cause: Option<Position>,
    /// CloudEvent of the event.
    pub json: Box<RawValue>,
}

/// Page of events.
#[derive(Clone, Debug)]
pub struct EventPage {
    /// Events of the page.
    pub events: Vec<RecordedEvent>,
    /// Position at which the next page starts; `None` if the end was reached.
    pub next: Option<Position>,
}

/// Reads events and follows their causes. Cheap to clone.
#[derive(Clone)]
pub struct CauseReader {
    source: Arc<dyn JournalReader>,
    /// Maximum bytes of a page.
    pub(crate) max_bytes: usize,
    /// Last position that is read.
    pub(crate) until: Position,
    /// Whether the events are needed no more.
    is_cancelled: Arc<AtomicBool>,
}

impl CauseReader {
    /// Creates a reader of the events up to `until`, which is the last position of a record.
    pub fn new(source: Arc<dyn JournalReader>, until: Position) -> CauseReader {
        CauseReader { source, max_bytes: usize::MAX, until, is_cancelled: Arc::default() }
    }

    /// Ends pages before their events exceed `max_bytes`, except for the first event.
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: usize) -> CauseReader {
        self.max_bytes = max_bytes;
        self
    }

    /// Ends reads with [`HistoryError::Cancelled`] once the flag is true.
    #[must_use]
    pub fn cancelled_by(mut self, flag: Arc<AtomicBool>) -> CauseReader {
        self.is_cancelled = flag;
        self
    }

    /// Returns every record with an event about the subject, from a position on, up to the last one that is read.
    pub(crate) fn records_about(
        &self,
        subject: &Subject,
        from: Position,
    ) -> Result<impl Iterator<Item = Result<Arc<Record>, HistoryError>>, HistoryError> {
        let records = self.source.records_about(subject, from)?;
        let until = self.until;
        let is_cancelled = Arc::clone(&self.is_cancelled);
        let records =
            records.take_while(move |record| record.as_ref().map_or(true, |record| record.first() <= until));
        Ok(records.map(move |record| {
            if is_cancelled.load(Ordering::Relaxed) {
                return Err(HistoryError::Cancelled);
            }
            Ok(record?)
        }))
    }

    /// Returns an event; `None` if the journal has none at the position.
    pub fn event(&self, position: Position) -> Result<Option<RecordedEvent>, HistoryError> {
        self.record(position)?.map(|record| recorded(&record, position)).transpose()
    }

    /// Returns the causes of an event, the nearest first: at most `limit`, from its own cause on. The last one is
    /// the first event of the chain unless the page has a next one, which starts with a cause at that position.
    pub fn causes(&self, position: Position, limit: usize) -> Result<Option<EventPage>, HistoryError> {
        let Some(mut record) = self.record(position)? else { return Ok(None) };
        let mut next = recorded(&record, position)?.cause;
        let mut page = PageInProgress::new(limit, self.max_bytes);
        while let Some(cause) = next {
            if !span(&record).contains(&cause) {
                // The journal has every event before one that it has.
                let Some(holder) = self.record(cause)? else { break };
                record = holder;
            }
            let event = recorded(&record, cause)?;
            next = event.cause;
            if !page.add(event) {
                return Ok(Some(page.end(Some(cause))));
            }
        }
        Ok(Some(page.end(None)))
    }

    /// Returns the effects of an event from `from` on: at most `limit`.
    pub fn effects(
        &self,
        position: Position,
        from: Position,
        limit: usize,
    ) -> Result<Option<EventPage>, HistoryError> {
        let Some(own) = self.record(position)? else { return Ok(None) };
        let mut page = PageInProgress::new(limit, self.max_bytes);
        let after = own.last().plus(1).max(from);
        let later = self.source.records_caused_by(position, after)?;
        let mut looks = 0;
        for record in std::iter::once(Ok(own)).chain(later) {
            let record = record?;
            if record.first() > self.until {
                break;
            }
            if looks > LOOKS {
                return Ok(Some(page.end(Some(record.first()))));
            }
            looks += u64::from(record.header().count);
            for (at, line) in record.events().filter(|(at, _)| *at >= from && *at != position) {
                let line = EventLine::read(line);
                let line = line.map_err(|source| HistoryError::Event { position: at, source })?;
                if line.cause == Some(position) && !page.add(recorded(&record, at)?) {
                    return Ok(Some(page.end(Some(at))));
                }
            }
        }
        Ok(Some(page.end(None)))
    }

    /// Returns the record that contains a position.
    pub(crate) fn record(&self, position: Position) -> Result<Option<Arc<Record>>, HistoryError> {
        if position == Position::ZERO || position > self.until {
            return Ok(None);
        }
        let record = self.source.records(position)?.next().transpose()?;
        Ok(record.filter(|record| span(record).contains(&position)))
    }
}

/// Page that is being filled.
struct PageInProgress {
    events: Vec<RecordedEvent>,
    limit: usize,
    bytes: usize,
    max_bytes: usize,
}

impl PageInProgress {
    fn new(limit: usize, max_bytes: usize) -> PageInProgress {
        PageInProgress { events: Vec::new(), limit: limit.clamp(1, LIMIT_MAX), bytes: 0, max_bytes }
    }

    /// Adds an event. Returns false if the page is full.
    fn add(&mut self, event: RecordedEvent) -> bool {
        self.bytes += event.json.get().len() + 1;
        let fits = self.events.is_empty() || (self.events.len() < self.limit && self.bytes <= self.max_bytes);
        if fits {
            self.events.push(event);
        }
        fits
    }

    fn end(self, next: Option<Position>) -> EventPage {
        EventPage { events: self.events, next }
    }
}

fn span(record: &Record) -> RangeInclusive<Position> {
    record.first()..=record.last()
}

/// Returns an event of the record.
pub(crate) fn recorded(record: &Record, position: Position) -> Result<RecordedEvent, HistoryError> {
    let bad = |source| HistoryError::Event { position, source };
    // Callers have found the record by the position.
    let (_, bytes) =
        record.events().find(|(at, _)| *at == position).expect("the record contains the position");
    let line = EventLine::read(bytes).map_err(bad)?;
    let mut json = Vec::with_capacity(bytes.len() + 600);
    RecordRenderer::of(record).render(position, bytes, &mut json).map_err(bad)?;
    let json = String::from_utf8(json).expect("JSON is text");
    let json = RawValue::from_string(json).expect("a CloudEvent is JSON");
    let cause = line.cause.filter(|cause| *cause != Position::ZERO && *cause < position);
    Ok(RecordedEvent { position, kind: line.kind, type_name: line.type_name.to_string(), cause, json })
}
