//! Journal in memory, for tests and simulations: one log that any number of writers share, like a topic.
//!
//! The log accepts every append, and only readers apply the validity rule: the harder half of the permitted
//! behavior. On request the log misbehaves as real journals do. Outcomes are unknown (landed, lost, or
//! landing late), others write valid and invalid records, durability comes in steps. Nothing here waits or
//! starts a thread: after [`MemoryLog::hold`] a single thread chooses the order of all steps. Sinks are
//! called by the thread that appends or steps.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use chancery_events::id::Position;
use chancery_events::record::Record;

use crate::chain::{ChainCursor, ChainEntry, ChainError, ChainReader, SkippedRecord};
use crate::journal::{
    AppendError, CloseError, DeliverySink, Journal, JournalDelivery, JournalReader, ReadError, RecordIter,
    lock, records_by,
};

/// Actual result of an append whose outcome stays unknown to its writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendFate {
    /// The append is in the log.
    Landed,
    /// The append is not in the log, and never will be.
    Lost,
    /// The append is not in the log until [`MemoryLog::land_late`].
    Late,
}

/// Log that outlives its writers.
#[derive(Clone)]
pub struct MemoryLog(Arc<Mutex<MemoryLogState>>);

struct MemoryLogState {
    /// Chain of all readers: each of them reaches the same verdicts.
    chain: ChainReader,
    /// Durable entries, including invalid ones, with their verdicts.
    entries: Vec<MemoryEntry>,
    /// Appends that are not durable yet, with the numbers of their writers.
    waiting: VecDeque<(u64, Arc<[u8]>)>,
    /// Appends of unknown outcome that are still in flight.
    late: VecDeque<Arc<[u8]>>,
    is_held: bool,
    /// Number of writers so far.
    writers: u64,
    handles: Vec<Weak<MemoryWriter>>,
}

#[derive(Clone)]
struct MemoryEntry {
    bytes: Arc<[u8]>,
    verdict: MemoryEntryCheck,
}

#[derive(Clone)]
enum MemoryEntryCheck {
    Record(Arc<Record>),
    Skip(SkippedRecord),
    /// Entry that no reader passes.
    Stop(ChainError),
}

/// View of a [`MemoryLog`] by one writer.
pub struct MemoryJournal {
    log: MemoryLog,
    handle: Arc<MemoryWriter>,
}

struct MemoryWriter {
    number: u64,
    view: Mutex<MemoryView>,
    switches: Mutex<MemoryControls>,
}

#[derive(Default)]
struct MemoryControls {
    is_closed: bool,
    /// Maximum number of appends that wait, if it is limited.
    bound: Option<usize>,
    next_fate: Option<AppendFate>,
}

struct MemoryView {
    /// Number of entries read.
    place: usize,
    head: Option<ChainCursor>,
    sink: DeliverySink,
    has_stopped: bool,
}

impl MemoryLogState {
    fn land(&mut self, bytes: Arc<[u8]>) {
        if let Some(MemoryEntry { verdict: verdict @ MemoryEntryCheck::Stop(_), .. }) = self.entries.last() {
            let verdict = verdict.clone();
            self.entries.push(MemoryEntry { bytes, verdict });
            return;
        }
        let verdict = match self.chain.take(bytes.clone()) {
            Ok(ChainEntry::Record(record)) => MemoryEntryCheck::Record(Arc::new(record)),
            Ok(ChainEntry::Skip(skipped)) => MemoryEntryCheck::Skip(skipped),
            Err(broken) => MemoryEntryCheck::Stop(broken),
        };
        self.entries.push(MemoryEntry { bytes, verdict });
    }
}

impl MemoryLog {
    /// Creates an empty log. Appends are durable immediately.
    pub fn new(fleet: &str) -> MemoryLog {
        MemoryLog(Arc::new(Mutex::new(MemoryLogState {
            chain: ChainReader::new(fleet.into(), None),
            entries: Vec::new(),
            waiting: VecDeque::new(),
            late: VecDeque::new(),
            is_held: false,
            writers: 0,
            handles: Vec::new(),
        })))
    }

    /// Opens the log for a writer; `sink` receives what follows the entries that are durable now.
    pub fn open(&self, sink: DeliverySink) -> Result<MemoryJournal, ChainError> {
        let mut state = lock(&self.0);
        for entry in &state.entries {
            if let MemoryEntryCheck::Stop(broken) = &entry.verdict {
                return Err(broken.clone());
            }
        }
        let (place, head) = (state.entries.len(), state.chain.at().copied());
        let view = Mutex::new(MemoryView { place, head, sink, has_stopped: false });
        state.writers += 1;
        let handle = Arc::new(MemoryWriter { number: state.writers, view, switches: Mutex::default() });
        state.handles.retain(|handle| handle.strong_count() > 0);
        state.handles.push(Arc::downgrade(&handle));
        Ok(MemoryJournal { log: self.clone(), handle })
    }

    /// Makes appends durable only by [`MemoryLog::step`] from now on.
    pub fn hold(&self) {
        lock(&self.0).is_held = true;
    }

    /// Makes up to `count` appends durable, in order, and delivers them. Returns their number.
    pub fn step(&self, count: usize) -> usize {
        self.land(count, |_| true)
    }

    /// Makes appends durable like [`MemoryLog::step`], of the writers that `whose` selects.
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

    /// Puts bytes into the log as another program would: a record, a duplicate, or an invalid record.
    pub fn inject(&self, bytes: impl Into<Arc<[u8]>>) {
        lock(&self.0).land(bytes.into());
        self.deliver();
    }

    /// Makes the oldest late append durable. Returns whether there was one.
    pub fn land_late(&self) -> bool {
        let mut state = lock(&self.0);
        let Some(bytes) = state.late.pop_front() else { return false };
        state.land(bytes);
        drop(state);
        self.deliver();
        true
    }

    /// Returns all durable entries, including invalid ones.
    pub fn entries(&self) -> Vec<Arc<[u8]>> {
        lock(&self.0).entries.iter().map(|entry| entry.bytes.clone()).collect()
    }

    /// Returns a reader of the log, without a writer.
    pub fn source(&self) -> Arc<dyn JournalReader> {
        Arc::new(MemorySource(self.clone()))
    }

    fn deliver(&self) {
        let handles: Vec<_> = lock(&self.0).handles.iter().filter_map(Weak::upgrade).collect();
        for handle in handles {
            handle.deliver(self);
        }
    }
}

impl MemoryWriter {
    fn deliver(&self, log: &MemoryLog) {
        // Locked while the sink is called, so that two threads cannot deliver out of order.
        let mut view = lock(&self.view);
        if view.has_stopped || lock(&self.switches).is_closed {
            return;
        }
        let entries = lock(&log.0).entries[view.place..].to_vec();
        let mut records = Vec::new();
        for entry in entries {
            view.place += 1;
            match entry.verdict {
                MemoryEntryCheck::Record(record) => {
                    view.head = Some(ChainCursor::after(&record));
                    records.push(record);
                }
                MemoryEntryCheck::Skip(skipped) => {
                    view.flush(&mut records);
                    (view.sink)(JournalDelivery::Skipped(skipped));
                }
                MemoryEntryCheck::Stop(broken) => {
                    view.flush(&mut records);
                    view.has_stopped = true;
                    (view.sink)(JournalDelivery::Stopped(broken.into()));
                    return;
                }
            }
        }
        view.flush(&mut records);
    }
}

impl MemoryView {
    fn flush(&mut self, records: &mut Vec<Arc<Record>>) {
        if !records.is_empty() {
            (self.sink)(JournalDelivery::Records(std::mem::take(records)));
        }
    }
}

impl MemoryJournal {
    /// Hides the outcome of the next append from the writer.
    pub fn blur_next(&self, fate: AppendFate) {
        lock(&self.handle.switches).next_fate = Some(fate);
    }

    /// Limits this writer's waiting appends: beyond the limit, an append fails until the next step.
    pub fn bound(&self, appends: usize) {
        lock(&self.handle.switches).bound = Some(appends);
    }

    /// Makes up to `count` of this writer's appends durable, in order, and delivers them: each writer has its
    /// own path to the log. Returns their number.
    pub fn step(&self, count: usize) -> usize {
        self.log.land(count, |writer| writer == self.handle.number)
    }

    /// Returns the number of this writer's appends that wait for durability.
    pub fn waiting(&self) -> usize {
        let own = |(writer, _): &&(u64, Arc<[u8]>)| *writer == self.handle.number;
        lock(&self.log.0).waiting.iter().filter(own).count()
    }

    /// Discards this writer's waiting appends, as a crash of the writer does. Returns their number.
    pub fn lose_waiting(&self) -> usize {
        let mut state = lock(&self.log.0);
        let before = state.waiting.len();
        state.waiting.retain(|(writer, _)| *writer != self.handle.number);
        before - state.waiting.len()
    }
}

impl Journal for MemoryJournal {
    fn append(&self, record: Record) -> Result<(), AppendError> {
        let fate = {
            let mut switches = lock(&self.handle.switches);
            if switches.is_closed {
                return Err(AppendError::Closed);
            }
            if switches.bound.is_some_and(|bound| self.waiting() >= bound) {
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
            None | Some(AppendFate::Landed) => state.waiting.push_back((self.handle.number, bytes)),
            Some(AppendFate::Late) => state.late.push_back(bytes),
            Some(AppendFate::Lost) => {}
        }
        let is_held = state.is_held;
        drop(state);
        if fate.is_some() {
            (lock(&self.handle.view).sink)(JournalDelivery::OutcomeUnknown("the connection was lost".into()));
        }
        if !is_held {
            self.log.step(usize::MAX);
        }
        Ok(())
    }

    fn head(&self) -> Option<ChainCursor> {
        lock(&self.handle.view).head
    }

    fn source(&self) -> Arc<dyn JournalReader> {
        self.log.source()
    }

    fn close(&self) -> Result<(), CloseError> {
        self.log.step(usize::MAX);
        lock(&self.handle.switches).is_closed = true;
        if lock(&self.handle.view).has_stopped { Err(CloseError::Stopped) } else { Ok(()) }
    }
}

struct MemorySource(MemoryLog);

impl JournalReader for MemorySource {
    fn head(&self) -> Option<ChainCursor> {
        lock(&self.0.0).chain.at().copied()
    }

    fn records(&self, from: Position) -> Result<RecordIter, ReadError> {
        let (log, mut place) = (self.0.clone(), 0);
        Ok(records_by(move || {
            let state = lock(&log.0);
            while let Some(entry) = state.entries.get(place) {
                place += 1;
                match &entry.verdict {
                    MemoryEntryCheck::Record(record) if record.last() >= from => {
                        return Ok(Some(record.clone()));
                    }
                    MemoryEntryCheck::Record(_) | MemoryEntryCheck::Skip(_) => {}
                    MemoryEntryCheck::Stop(broken) => return Err(broken.clone().into()),
                }
            }
            Ok(None)
        }))
    }
}

#[cfg(test)]
mod tests;
