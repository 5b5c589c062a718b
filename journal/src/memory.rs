//! A journal in memory, for tests and simulations: one log that any number of writers share, as a topic is shared.
//!
//! It accepts whatever is appended and leaves the judgement to the readers, which is the harder half of what a
//! journal may do. It can be told to misbehave as real ones do: an append whose outcome is unknown (landed, lost, or
//! landing late), other writers' records, noise, durability that comes step by step. Nothing here waits or starts a
//! thread: with [`MemoryLog::hold`] a single thread plays everything in an order of its choosing. Sinks are called
//! by whoever appends or steps.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use chancery_events::id::Position;
use chancery_events::record::Record;

use crate::chain::{Broken, Chain, Cursor, Link, Skipped};
use crate::journal::{
    AppendError, CloseError, Delivery, Journal, ReadError, Records, Sink, Source, records_by,
};

/// What becomes of an append whose outcome stays unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It is in the log.
    Landed,
    /// It is not, and never will be.
    Lost,
    /// It is not, but comes with [`MemoryLog::land_late`].
    Late,
}

/// The log itself: what outlives its writers.
#[derive(Clone)]
pub struct MemoryLog(Arc<Mutex<State>>);

struct State {
    /// Every reader judges alike, so one judges for all.
    chain: Chain,
    /// What is durable, noise and all, with what the rule says of it.
    entries: Vec<Entry>,
    /// What has been sent but is not durable yet, with the number of its writer.
    waiting: VecDeque<(u64, Arc<[u8]>)>,
    /// Appends of unknown outcome that are still on their way.
    late: VecDeque<Arc<[u8]>>,
    is_held: bool,
    /// Writers so far.
    writers: u64,
    handles: Vec<Weak<Handle>>,
}

#[derive(Clone)]
struct Entry {
    bytes: Arc<[u8]>,
    verdict: Verdict,
}

#[derive(Clone)]
enum Verdict {
    Record(Arc<Record>),
    Skip(Skipped),
    /// Nobody reads past it.
    Stop(Broken),
}

/// One writer's view of a [`MemoryLog`].
pub struct MemoryJournal {
    log: MemoryLog,
    handle: Arc<Handle>,
}

struct Handle {
    number: u64,
    view: Mutex<View>,
    switches: Mutex<Switches>,
}

struct Switches {
    is_closed: bool,
    /// Appends that may wait.
    bound: usize,
    next_fate: Option<Fate>,
}

impl Default for Switches {
    fn default() -> Switches {
        Switches { is_closed: false, bound: usize::MAX, next_fate: None }
    }
}

struct View {
    /// How many entries it has read.
    place: usize,
    head: Option<Cursor>,
    sink: Sink,
    has_stopped: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A test that has panicked elsewhere should not hide its own message behind ours.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn land(&mut self, bytes: Arc<[u8]>) {
        if let Some(Entry { verdict: verdict @ Verdict::Stop(_), .. }) = self.entries.last() {
            let verdict = verdict.clone();
            self.entries.push(Entry { bytes, verdict });
            return;
        }
        let verdict = match self.chain.take(bytes.clone()) {
            Ok(Link::Record(record)) => Verdict::Record(Arc::new(record)),
            Ok(Link::Skip(skipped)) => Verdict::Skip(skipped),
            Err(broken) => Verdict::Stop(broken),
        };
        self.entries.push(Entry { bytes, verdict });
    }
}

impl MemoryLog {
    /// An empty log. What is appended to it is durable at once.
    pub fn new(fleet: &str) -> MemoryLog {
        MemoryLog(Arc::new(Mutex::new(State {
            chain: Chain::new(fleet.into(), None),
            entries: Vec::new(),
            waiting: VecDeque::new(),
            late: VecDeque::new(),
            is_held: false,
            writers: 0,
            handles: Vec::new(),
        })))
    }

    /// Opens it for a writer: `sink` gets what comes after what is durable now.
    pub fn open(&self, sink: Sink) -> Result<MemoryJournal, Broken> {
        let mut state = lock(&self.0);
        for entry in &state.entries {
            if let Verdict::Stop(broken) = &entry.verdict {
                return Err(broken.clone());
            }
        }
        let (place, head) = (state.entries.len(), state.chain.at().copied());
        let view = Mutex::new(View { place, head, sink, has_stopped: false });
        state.writers += 1;
        let handle = Arc::new(Handle { number: state.writers, view, switches: Mutex::default() });
        state.handles.retain(|handle| handle.strong_count() > 0);
        state.handles.push(Arc::downgrade(&handle));
        Ok(MemoryJournal { log: self.clone(), handle })
    }

    /// From now on nothing becomes durable but by [`MemoryLog::step`].
    pub fn hold(&self) {
        lock(&self.0).is_held = true;
    }

    /// Makes everything durable that waits, and from now on at once what is appended.
    pub fn release(&self) {
        lock(&self.0).is_held = false;
        self.step(usize::MAX);
    }

    /// Makes up to `count` appends durable, in order, and delivers them. Says how many.
    pub fn step(&self, count: usize) -> usize {
        self.land(count, |_| true)
    }

    /// The same for appends of some writers.
    fn land(&self, count: usize, whose: impl Fn(u64) -> bool) -> usize {
        let mut state = lock(&self.0);
        let mut landed = 0;
        while landed < count
            && let Some(next) = state.waiting.iter().position(|(writer, _)| whose(*writer))
            && let Some((_, bytes)) = state.waiting.remove(next)
        {
            state.land(bytes);
            landed += 1;
        }
        drop(state);
        self.deliver();
        landed
    }

    /// How many appends wait for durability.
    pub fn waiting(&self) -> usize {
        lock(&self.0).waiting.len()
    }

    /// Puts bytes into the log as another program would: a record, an old record again, noise.
    pub fn inject(&self, bytes: impl Into<Arc<[u8]>>) {
        lock(&self.0).land(bytes.into());
        self.deliver();
    }

    /// Loses what is not durable yet, as a crash does. Says how many appends that were.
    pub fn lose_waiting(&self) -> usize {
        let waiting = std::mem::take(&mut lock(&self.0).waiting);
        waiting.len()
    }

    /// Lets the oldest append that was to land late do so. Says whether there was one.
    pub fn land_late(&self) -> bool {
        let mut state = lock(&self.0);
        let Some(bytes) = state.late.pop_front() else { return false };
        state.land(bytes);
        drop(state);
        self.deliver();
        true
    }

    /// Everything durable, noise and all.
    pub fn entries(&self) -> Vec<Arc<[u8]>> {
        lock(&self.0).entries.iter().map(|entry| entry.bytes.clone()).collect()
    }

    /// Reads the log without a writer.
    pub fn source(&self) -> Arc<dyn Source> {
        Arc::new(MemorySource(self.clone()))
    }

    fn deliver(&self) {
        let handles: Vec<_> = lock(&self.0).handles.iter().filter_map(Weak::upgrade).collect();
        for handle in handles {
            handle.deliver(self);
        }
    }
}

impl Handle {
    fn deliver(&self, log: &MemoryLog) {
        // Held while the sink is called, so that two threads cannot deliver out of order.
        let mut view = lock(&self.view);
        if view.has_stopped || lock(&self.switches).is_closed {
            return;
        }
        let entries = lock(&log.0).entries[view.place..].to_vec();
        let mut records = Vec::new();
        for entry in entries {
            view.place += 1;
            match entry.verdict {
                Verdict::Record(record) => {
                    view.head = Some(Cursor::after(&record));
                    records.push(record);
                }
                Verdict::Skip(skipped) => {
                    view.flush(&mut records);
                    (view.sink)(Delivery::Skipped(skipped));
                }
                Verdict::Stop(broken) => {
                    view.flush(&mut records);
                    view.has_stopped = true;
                    (view.sink)(Delivery::Stopped(broken.into()));
                    return;
                }
            }
        }
        view.flush(&mut records);
    }
}

impl View {
    fn flush(&mut self, records: &mut Vec<Arc<Record>>) {
        if !records.is_empty() {
            (self.sink)(Delivery::Records(std::mem::take(records)));
        }
    }
}

impl MemoryJournal {
    /// The outcome of the next append stays unknown to the writer.
    pub fn blur_next(&self, fate: Fate) {
        lock(&self.handle.switches).next_fate = Some(fate);
    }

    /// From now on at most so many of its appends wait: it takes no more before a step.
    pub fn bound(&self, appends: usize) {
        lock(&self.handle.switches).bound = appends;
    }

    /// Makes up to `count` of this writer's appends durable, in order, and delivers them: each writer has its own
    /// way to the log. Says how many.
    pub fn step(&self, count: usize) -> usize {
        self.log.land(count, |writer| writer == self.handle.number)
    }

    /// How many of its appends wait for durability.
    pub fn waiting(&self) -> usize {
        let own = |(writer, _): &&(u64, Arc<[u8]>)| *writer == self.handle.number;
        lock(&self.log.0).waiting.iter().filter(own).count()
    }

    /// Loses what waits of this writer's appends, as a crash of it does. Says how many that were.
    pub fn lose_waiting(&self) -> usize {
        let mut state = lock(&self.log.0);
        let before = state.waiting.len();
        state.waiting.retain(|(writer, _)| *writer != self.handle.number);
        before - state.waiting.len()
    }

    /// The log that it writes to.
    pub fn log(&self) -> &MemoryLog {
        &self.log
    }
}

impl Journal for MemoryJournal {
    fn append(&self, record: Record) -> Result<(), AppendError> {
        let fate = {
            let mut switches = lock(&self.handle.switches);
            if switches.is_closed {
                return Err(AppendError::Closed);
            }
            if self.waiting() >= switches.bound {
                return Err(AppendError::Busy(Box::new(record)));
            }
            switches.next_fate.take()
        };
        if lock(&self.handle.view).has_stopped {
            return Err(AppendError::Closed);
        }
        let bytes = record.bytes().clone();
        let mut state = lock(&self.log.0);
        match fate {
            None | Some(Fate::Landed) => state.waiting.push_back((self.handle.number, bytes)),
            Some(Fate::Late) => state.late.push_back(bytes),
            Some(Fate::Lost) => {}
        }
        let is_held = state.is_held;
        drop(state);
        if fate.is_some() {
            (lock(&self.handle.view).sink)(Delivery::Indefinite("the connection was lost".into()));
        }
        if !is_held {
            self.log.step(usize::MAX);
        }
        Ok(())
    }

    fn head(&self) -> Option<Cursor> {
        lock(&self.handle.view).head
    }

    fn source(&self) -> Arc<dyn Source> {
        self.log.source()
    }

    fn close(&self) -> Result<(), CloseError> {
        self.log.step(usize::MAX);
        lock(&self.handle.switches).is_closed = true;
        if lock(&self.handle.view).has_stopped { Err(CloseError::Stopped) } else { Ok(()) }
    }
}

struct MemorySource(MemoryLog);

impl Source for MemorySource {
    fn head(&self) -> Option<Cursor> {
        lock(&self.0.0).chain.at().copied()
    }

    fn records(&self, from: Position) -> Result<Records, ReadError> {
        let mut reader = Reader { log: self.0.clone(), place: 0, from };
        Ok(records_by(move || reader.step()))
    }
}

struct Reader {
    log: MemoryLog,
    place: usize,
    from: Position,
}

impl Reader {
    fn step(&mut self) -> Result<Option<Arc<Record>>, ReadError> {
        let state = lock(&self.log.0);
        while let Some(entry) = state.entries.get(self.place) {
            self.place += 1;
            match &entry.verdict {
                Verdict::Record(record) if record.last() >= self.from => return Ok(Some(record.clone())),
                Verdict::Record(_) | Verdict::Skip(_) => {}
                Verdict::Stop(broken) => return Err(broken.clone().into()),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
