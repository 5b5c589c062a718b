//! Hub of durable records: each record enters once; followers read it here, or in the journal if they are
//! behind.
//!
//! Invariants: only durable records enter, in order. An event is rendered once for any number of followers,
//! and not at all without a follower. Publishing a record does no work that grows with the number of
//! followers. Nothing is skipped: records that have left the ring are read from the journal.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use bytes::Bytes;
use chancery_events::cloudevent::{FilterableEvent, RecordRenderer};
use chancery_events::event::EventLine;
use chancery_events::id::{Lineage, Position};
use chancery_events::lineage::{LineageHistory, NamedPosition};
use chancery_events::record::Record;
use chancery_journal::witness::follow;
use tokio::sync::{Semaphore, watch};

/// Maximum number of events kept for followers; the newest record always stays.
const EVENTS: usize = 4096;
/// Maximum bytes of the records kept. Rendered, an event is about three times as large.
const BYTES: usize = 8 << 20;
/// Maximum number of streams, histories and logs that read files concurrently; others wait.
const READERS: usize = 8;

/// Distributes durable records to followers.
pub struct EventHub {
    ring: RwLock<RecordRing>,
    tail: watch::Sender<Position>,
    closing: watch::Sender<bool>,
    followers: AtomicUsize,
    /// Permits to read files: for streams, histories and logs.
    pub readers: Arc<Semaphore>,
    /// Lineages of the journal, as far as records came in.
    lineages: RwLock<Option<LineageHistory>>,
}

#[derive(Default)]
struct RecordRing {
    batches: VecDeque<KeptRecord>,
    events: usize,
    bytes: usize,
}

/// Record of the ring, and the time at which it entered.
struct KeptRecord {
    shown: Arc<RenderedRecord>,
    entered: Instant,
}

/// Record that is rendered for its first follower.
pub struct RenderedRecord {
    record: Arc<Record>,
    shown: OnceLock<Result<Vec<RenderedEvent>, String>>,
}

/// Event as it is sent.
pub struct RenderedEvent {
    /// Position of the event.
    pub position: Position,
    /// Fields that filters match.
    pub about: FilterableEvent,
    /// Part of the rendered record: `id: 5.1f3a5c7e9b2d4f60\nevent: event\ndata: {…}\n\n`.
    pub sse: Bytes,
    /// JSON line `{…}\n`, a part of the same bytes.
    pub line: Bytes,
}

/// Records for a follower.
pub enum HubRead {
    /// Nothing yet.
    Wait,
    /// Position that is not in the ring any more, or never was: read the journal.
    Behind,
    /// Records, of which the first holds the requested position.
    Batches(Vec<Arc<RenderedRecord>>),
}

impl Default for EventHub {
    fn default() -> EventHub {
        EventHub::new()
    }
}

impl fmt::Debug for EventHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hub at {} with {} followers", *self.tail.borrow(), self.followers())
    }
}

impl EventHub {
    /// Returns a hub of a journal without records.
    pub fn new() -> EventHub {
        EventHub::of(None)
    }

    /// Returns an empty hub of a journal with these lineages.
    pub fn of(lineages: Option<LineageHistory>) -> EventHub {
        EventHub {
            ring: RwLock::default(),
            tail: watch::channel(Position::ZERO).0,
            closing: watch::channel(false).0,
            followers: AtomicUsize::new(0),
            readers: Arc::new(Semaphore::new(READERS)),
            lineages: RwLock::new(lineages),
        }
    }

    /// Publishes the next durable record. The call is quick: nothing is rendered here.
    pub fn publish(&self, record: Arc<Record>) {
        let last = record.last();
        {
            let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(newest) = ring.batches.back().map(|batch| batch.shown.record.last()) {
                if last <= newest {
                    return;
                }
                if record.first() != newest.plus(1) {
                    // Records are missing between; followers find them in the journal.
                    *ring = RecordRing::default();
                }
            }
            // Before the record is visible: a client that has its position may request the records after it.
            if record.header().starts.is_some() {
                follow(&mut self.lineages.write().unwrap_or_else(PoisonError::into_inner), &record);
            }
            ring.push(record);
        }
        self.tail.send_replace(last);
    }

    /// Returns the lineages of the journal; `None` before its first record.
    pub fn lineages(&self) -> Option<LineageHistory> {
        self.lineages.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the number of events that were published since a time, of those that the hub keeps.
    pub fn published_since(&self, time: Instant) -> u64 {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        let from = ring.batches.partition_point(|batch| batch.entered < time);
        let (Some(first), Some(newest)) = (ring.batches.get(from), ring.batches.back()) else { return 0 };
        newest.shown.record.last().get() + 1 - first.shown.record.first().get()
    }

    /// Returns the number of followers.
    pub fn followers(&self) -> usize {
        self.followers.load(Ordering::Relaxed)
    }

    /// Ends all streams, also future ones.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Subscribes to the last position.
    pub fn tail(&self) -> watch::Receiver<Position> {
        self.tail.subscribe()
    }

    /// Subscribes to the end.
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Counts a follower as long as the guard lives; `None` if there are `most` already.
    pub fn follow(self: &Arc<EventHub>, most: usize) -> Option<FollowerGuard> {
        let add = |count| (count < most).then_some(count + 1);
        self.followers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(FollowerGuard(self.clone()))
    }

    /// Returns at most `most` records from `next` on, and none after those that exceed `bytes`: a slow
    /// follower keeps them in memory.
    pub fn read(&self, next: Position, most: usize, mut bytes: usize) -> HubRead {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        let (Some(oldest), Some(newest)) = (ring.batches.front(), ring.batches.back()) else {
            return HubRead::Wait;
        };
        if next > newest.shown.record.last() {
            return HubRead::Wait;
        }
        if next < oldest.shown.record.first() {
            return HubRead::Behind;
        }
        let from = ring.batches.partition_point(|batch| batch.shown.record.last() < next);
        let mut batches = Vec::new();
        for KeptRecord { shown, .. } in ring.batches.iter().skip(from).take(most) {
            batches.push(Arc::clone(shown));
            let Some(left) = bytes.checked_sub(shown.record.bytes().len()) else { break };
            bytes = left;
        }
        HubRead::Batches(batches)
    }
}

impl RecordRing {
    fn push(&mut self, record: Arc<Record>) {
        self.events += record.header().count as usize;
        self.bytes += record.bytes().len();
        let shown = Arc::new(RenderedRecord::new(record));
        self.batches.push_back(KeptRecord { shown, entered: Instant::now() });
        while (self.events > EVENTS || self.bytes > BYTES) && self.batches.len() > 1 {
            let Some(oldest) = self.batches.pop_front() else { break };
            self.events -= oldest.shown.record.header().count as usize;
            self.bytes -= oldest.shown.record.bytes().len();
        }
    }
}

impl RenderedRecord {
    /// Returns a batch that is not rendered yet.
    pub fn new(record: Arc<Record>) -> RenderedRecord {
        RenderedRecord { record, shown: OnceLock::new() }
    }

    /// Returns a batch that is rendered, perhaps in part.
    pub fn with(record: Arc<Record>, shown: Result<Vec<RenderedEvent>, String>) -> RenderedRecord {
        RenderedRecord { record, shown: OnceLock::from(shown) }
    }

    /// Returns the lineage of the record.
    pub fn lineage(&self) -> Lineage {
        self.record.header().lineage
    }

    /// Returns the position of the last event.
    pub fn last(&self) -> Position {
        self.record.last()
    }

    /// Returns the events, or an error if one cannot be read: then a stream ends, as it must not skip events.
    pub fn shown(&self) -> Result<&[RenderedEvent], &str> {
        let shown = self.shown.get_or_init(|| show(&self.record, None));
        shown.as_deref().map_err(String::as_str)
    }
}

/// Renders the events of a record that `may` admits, or all of them, into one buffer.
pub fn show(
    record: &Record,
    may: Option<&dyn Fn(&EventLine<'_>) -> bool>,
) -> Result<Vec<RenderedEvent>, String> {
    let mut all = Vec::with_capacity(record.bytes().len() * 3);
    let mut places = Vec::with_capacity(record.header().count as usize);
    let renderer = RecordRenderer::of(record);
    for (position, line) in record.events() {
        if let Some(may) = may {
            let frame =
                EventLine::read(line).map_err(|error| format!("cannot show event at {position}: {error}"))?;
            if !may(&frame) {
                continue;
            }
        }
        let start = all.len();
        let id = NamedPosition { position, lineage: Some(record.header().lineage) };
        all.extend_from_slice(format!("id: {id}\nevent: event\ndata: ").as_bytes());
        let json = all.len();
        let about = renderer
            .render(position, line, &mut all)
            .map_err(|error| format!("cannot show event at {position}: {error}"))?;
        all.extend_from_slice(b"\n\n");
        places.push((position, about, start, json, all.len()));
    }
    let all = Bytes::from(all);
    let cut = |(position, about, start, json, end)| RenderedEvent {
        position,
        about,
        sse: all.slice(start..end),
        line: all.slice(json..end - 1),
    };
    Ok(places.into_iter().map(cut).collect())
}

/// Guard that counts as a follower.
pub struct FollowerGuard(Arc<EventHub>);

impl Drop for FollowerGuard {
    fn drop(&mut self) {
        self.0.followers.fetch_sub(1, Ordering::Relaxed);
    }
}
