//! The hub: each durable record comes in once, and whoever follows the journal reads it here, or in the journal if
//! it is behind.
//!
//! What must stay true: only durable records come in, in order; an event is rendered once, however many follow,
//! and not at all if nobody does; taking a record in does no work that grows with the number of followers; nothing
//! is skipped: what has left the ring is read from the journal.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use bytes::Bytes;
use chancery_events::cloud::{About, render};
use chancery_events::event::Line;
use chancery_events::id::{Lineage, Position};
use chancery_events::lineage::{Lineages, NamedPosition};
use chancery_events::record::Record;
use chancery_journal::witness::follow;
use tokio::sync::{Semaphore, watch};

/// Events kept for followers, at most; the newest record stays in any case.
const EVENTS: usize = 4096;
/// Bytes of the records kept, at most. Rendered, an event is about three times as large.
const BYTES: usize = 8 << 20;
/// Streams, histories and logs that read files at one time; the others wait for their turn.
const READERS: usize = 8;

/// Gives durable records to followers.
pub struct Hub {
    ring: RwLock<Ring>,
    tail: watch::Sender<Position>,
    closing: watch::Sender<bool>,
    followers: AtomicUsize,
    /// Turns of those that read files: streams, histories and logs.
    pub readers: Arc<Semaphore>,
    /// Of the journal, as far as records have come in.
    lineages: RwLock<Option<Lineages>>,
}

#[derive(Default)]
struct Ring {
    batches: VecDeque<Arc<Batch>>,
    events: usize,
    bytes: usize,
}

/// A record, rendered when the first follower comes for it.
pub struct Batch {
    record: Arc<Record>,
    shown: OnceLock<Result<Vec<Shown>, String>>,
}

/// An event, as it is sent.
pub struct Shown {
    /// Where it stands.
    pub position: Position,
    /// What filters ask for.
    pub about: About,
    /// `id: 5.1f3a5c7e9b2d4f60\nevent: event\ndata: {…}\n\n`, a part of the record's bytes.
    pub sse: Bytes,
    /// `{…}\n`, a part of the same bytes.
    pub line: Bytes,
}

/// What there is for a follower.
pub enum Next {
    /// Nothing yet.
    Wait,
    /// It has left the ring, or never was there: read the journal.
    Behind,
    /// Records, the first of which holds the position asked for.
    Batches(Vec<Arc<Batch>>),
}

impl Default for Hub {
    fn default() -> Hub {
        Hub::new()
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hub at {} with {} followers", *self.tail.borrow(), self.followers())
    }
}

impl Hub {
    /// A hub of a journal in which nothing stands yet.
    pub fn new() -> Hub {
        Hub::of(None)
    }

    /// A hub of a journal with these lineages, that nothing has come to yet.
    pub fn of(lineages: Option<Lineages>) -> Hub {
        Hub {
            ring: RwLock::default(),
            tail: watch::channel(Position::ZERO).0,
            closing: watch::channel(false).0,
            followers: AtomicUsize::new(0),
            readers: Arc::new(Semaphore::new(READERS)),
            lineages: RwLock::new(lineages),
        }
    }

    /// Takes in the next durable record. Quick: nothing is rendered here.
    pub fn publish(&self, record: Arc<Record>) {
        let last = record.last();
        {
            let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(newest) = ring.batches.back().map(|batch| batch.record.last()) {
                if last <= newest {
                    return;
                }
                if record.first() != newest.plus(1) {
                    // Something is missing between: whoever needs it finds it in the journal.
                    *ring = Ring::default();
                }
            }
            // Before the record can be seen: whoever is given its position may ask for what is behind it.
            if record.header().begins.is_some() {
                follow(&mut self.lineages.write().unwrap_or_else(PoisonError::into_inner), &record);
            }
            ring.push(record);
        }
        self.tail.send_replace(last);
    }

    /// The lineages of the journal; `None` before its first record.
    pub fn lineages(&self) -> Option<Lineages> {
        self.lineages.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many follow.
    pub fn followers(&self) -> usize {
        self.followers.load(Ordering::Relaxed)
    }

    /// Ends all streams, and those that are still to come.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Hears of new records.
    pub fn tail(&self) -> watch::Receiver<Position> {
        self.tail.subscribe()
    }

    /// Hears of the end.
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Counts a follower as long as the guard lives; `None` if there are `most` already.
    pub fn follow(self: &Arc<Hub>, most: usize) -> Option<Follower> {
        let add = |count| (count < most).then_some(count + 1);
        self.followers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Follower(self.clone()))
    }

    /// What there is from `next` on, at most `most` records, and none behind those that have `bytes`: a slow follower keeps
    /// them in memory.
    pub fn read(&self, next: Position, most: usize, mut bytes: usize) -> Next {
        let ring = self.ring.read().unwrap_or_else(PoisonError::into_inner);
        let (Some(oldest), Some(newest)) = (ring.batches.front(), ring.batches.back()) else {
            return Next::Wait;
        };
        if next > newest.record.last() {
            return Next::Wait;
        }
        if next < oldest.record.first() {
            return Next::Behind;
        }
        let from = ring.batches.partition_point(|batch| batch.record.last() < next);
        let mut batches = Vec::new();
        for batch in ring.batches.iter().skip(from).take(most) {
            batches.push(Arc::clone(batch));
            let Some(left) = bytes.checked_sub(batch.record.bytes().len()) else { break };
            bytes = left;
        }
        Next::Batches(batches)
    }
}

impl Ring {
    fn push(&mut self, record: Arc<Record>) {
        self.events += record.header().count as usize;
        self.bytes += record.bytes().len();
        self.batches.push_back(Arc::new(Batch::new(record)));
        while (self.events > EVENTS || self.bytes > BYTES) && self.batches.len() > 1 {
            let Some(oldest) = self.batches.pop_front() else { break };
            self.events -= oldest.record.header().count as usize;
            self.bytes -= oldest.record.bytes().len();
        }
    }
}

impl Batch {
    /// One that nobody has come for yet.
    pub fn new(record: Arc<Record>) -> Batch {
        Batch { record, shown: OnceLock::new() }
    }

    /// One that has been rendered, perhaps not all of it.
    pub fn with(record: Arc<Record>, shown: Result<Vec<Shown>, String>) -> Batch {
        Batch { record, shown: OnceLock::from(shown) }
    }

    /// The lineage of the record.
    pub fn lineage(&self) -> Lineage {
        self.record.header().lineage
    }

    /// The position of the last event.
    pub fn last(&self) -> Position {
        self.record.last()
    }

    /// Its events. An error is one that cannot be read: then a stream ends, for it must not be skipped.
    pub fn shown(&self) -> Result<&[Shown], &str> {
        let shown = self.shown.get_or_init(|| show(&self.record, None));
        shown.as_deref().map_err(String::as_str)
    }
}

/// Renders the events of a record that may be wanted, or all of them, into one piece of memory.
pub fn show(record: &Record, may: Option<&dyn Fn(&Line<'_>) -> bool>) -> Result<Vec<Shown>, String> {
    let mut all = Vec::with_capacity(record.bytes().len() * 3);
    let mut places = Vec::with_capacity(record.header().count as usize);
    for (position, line) in record.events() {
        if let Some(may) = may {
            let frame = Line::read(line).map_err(|error| format!("show the event at {position}: {error}"))?;
            if !may(&frame) {
                continue;
            }
        }
        let start = all.len();
        let id = NamedPosition { position, lineage: Some(record.header().lineage) };
        all.extend_from_slice(format!("id: {id}\nevent: event\ndata: ").as_bytes());
        let json = all.len();
        let about = render(record.header(), position, line, &mut all)
            .map_err(|error| format!("show the event at {position}: {error}"))?;
        all.extend_from_slice(b"\n\n");
        places.push((position, about, start, json, all.len()));
    }
    let all = Bytes::from(all);
    let cut = |(position, about, start, json, end)| Shown {
        position,
        about,
        sse: all.slice(start..end),
        line: all.slice(json..end - 1),
    };
    Ok(places.into_iter().map(cut).collect())
}

/// One that follows.
pub struct Follower(Arc<Hub>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.followers.fetch_sub(1, Ordering::Relaxed);
    }
}
