//! What waits to be written, between those who append and whoever writes.
//!
//! Whether a record counts is judged here, when it is appended, by the chain that everything queued before makes:
//! under the folder's lock there is no other writer, so the answer is known at once.
//!
//! The writer itself lies here while nobody writes. Whoever takes it out writes: the journal's thread, or an appender
//! that would wait anyway. What must stay true: there is one writer, so records are written in the order in which
//! they were queued; it comes back, or nothing is ever taken in again.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chancery_events::record::Record;

use super::catalog::lock;
use super::writer::Writer;
use crate::chain::Chain;
use crate::journal::AppendError;

/// How much may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Records.
    pub records: usize,
    /// Bytes of records; a single one always fits.
    pub bytes: usize,
}

pub(super) struct Queue {
    state: Mutex<State>,
    /// The journal's thread waits here, nobody else.
    has_work: Condvar,
    bounds: Bounds,
    /// How long nothing must have been written before the last sync is named.
    pause: Duration,
}

struct State {
    records: Vec<Record>,
    bytes: usize,
    /// Stands behind the last record queued.
    chain: Chain,
    phase: Phase,
    writer: Option<Box<Writer>>,
    /// When the writer came back.
    written: Instant,
    rest: Rest,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Nothing more comes in; what waits is still written.
    Closing,
    /// The writer is gone, having written everything.
    Closed,
    /// The writer is gone after an error.
    Stopped,
}

/// What the journal's thread is doing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Busy,
    /// Looks again by itself after a while.
    Dozes,
    /// Must be woken.
    Sleeps,
}

/// What there is to do.
pub(super) enum Taken {
    Records(Box<Writer>, Vec<Record>),
    /// Nothing has been written for a while, and the last sync is not named yet.
    Nothing(Box<Writer>),
    /// Nothing waits, and nothing will come.
    Closed(Box<Writer>),
    /// The writer is gone.
    Stopped,
}

/// What became of a record that was to be written by its appender.
pub(super) enum Appended {
    /// It is for the appender to write.
    Taken(Box<Writer>, Box<Record>),
    /// It waits behind others.
    Queued,
}

impl Queue {
    pub(super) fn new(chain: Chain, bounds: Bounds, pause: Duration, writer: Writer) -> Queue {
        let state = State {
            records: Vec::new(),
            bytes: 0,
            chain,
            phase: Phase::Open,
            writer: Some(Box::new(writer)),
            written: Instant::now(),
            rest: Rest::Busy,
        };
        Queue { state: Mutex::new(state), has_work: Condvar::new(), bounds, pause }
    }

    /// Leaves the record to the journal's thread.
    pub(super) fn append(&self, record: Record) -> Result<(), AppendError> {
        let mut state = lock(&self.state);
        let (record, bytes) = self.judge(&mut state, record)?;
        state.push(record, bytes);
        // Without the writer there is nothing to wake up for: whoever brings it back looks what waits.
        let must_wake = state.writer.is_some() && state.wake();
        drop(state);
        self.notify(must_wake);
        Ok(())
    }

    /// Gives the writer to the appender, if it is there and nothing waits.
    pub(super) fn append_here(&self, record: Record) -> Result<Appended, AppendError> {
        let mut state = lock(&self.state);
        let (record, bytes) = self.judge(&mut state, record)?;
        if state.records.is_empty()
            && let Some(writer) = state.writer.take()
        {
            return Ok(Appended::Taken(writer, Box::new(record)));
        }
        state.push(record, bytes);
        Ok(Appended::Queued)
    }

    /// Whether the record counts and there is room: with it, how many bytes wait then.
    fn judge(&self, state: &mut State, record: Record) -> Result<(Record, usize), AppendError> {
        if state.phase != Phase::Open {
            return Err(AppendError::Closed);
        }
        let bytes = state.bytes + record.bytes().len();
        if state.records.len() >= self.bounds.records || (bytes > self.bounds.bytes && state.bytes > 0) {
            return Err(AppendError::Busy(Box::new(record)));
        }
        state.chain.take_record(&record)?.map_err(AppendError::Invalid)?;
        Ok((record, bytes))
    }

    /// Waits for work. For the journal's thread.
    pub(super) fn take(&self) -> Taken {
        let mut state = lock(&self.state);
        loop {
            if state.phase == Phase::Stopped {
                return Taken::Stopped;
            }
            let since = state.written.elapsed();
            let (is_open, is_empty) = (state.phase == Phase::Open, state.records.is_empty());
            let is_named = state.writer.as_ref().is_some_and(|writer| writer.is_named());
            let is_due = !is_empty || !is_open || (!is_named && since >= self.pause);
            if is_due && let Some(writer) = state.writer.take() {
                return if !is_empty {
                    state.bytes = 0;
                    let room = Vec::with_capacity(state.records.len());
                    Taken::Records(writer, std::mem::replace(&mut state.records, room))
                } else if is_open {
                    Taken::Nothing(writer)
                } else {
                    Taken::Closed(writer)
                };
            }
            state = if is_named || is_due {
                // Due without a writer: whoever has it wakes this thread when it comes back.
                state.rest = Rest::Sleeps;
                self.has_work.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                state.rest = Rest::Dozes;
                let left = self.pause.saturating_sub(since);
                self.has_work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            };
            state.rest = Rest::Busy;
        }
    }

    /// Brings the writer back.
    pub(super) fn put_back(&self, writer: Box<Writer>) {
        let mut state = lock(&self.state);
        let is_named = writer.is_named();
        state.writer = Some(writer);
        state.written = Instant::now();
        let must_look = !state.records.is_empty() || state.phase != Phase::Open;
        let must_wake = (must_look || (state.rest == Rest::Sleeps && !is_named)) && state.wake();
        drop(state);
        self.notify(must_wake);
    }

    /// Called without the lock, so that the thread does not wake up to wait for it.
    fn notify(&self, must_wake: bool) {
        if must_wake {
            self.has_work.notify_one();
        }
    }

    /// Lets nothing more in.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        if state.phase == Phase::Open {
            state.phase = Phase::Closing;
        }
        let must_wake = state.wake();
        drop(state);
        self.notify(must_wake);
    }

    /// The writer is gone; `is_clean` says whether everything was written.
    pub(super) fn end(&self, is_clean: bool) {
        let mut state = lock(&self.state);
        state.phase = if is_clean { Phase::Closed } else { Phase::Stopped };
        state.records = Vec::new();
        let must_wake = state.wake();
        drop(state);
        self.notify(must_wake);
    }

    pub(super) fn has_stopped(&self) -> bool {
        lock(&self.state).phase == Phase::Stopped
    }
}

impl State {
    /// Whether the thread must be notified. Once is enough: it is busy from then on, although it does not run yet.
    fn wake(&mut self) -> bool {
        std::mem::replace(&mut self.rest, Rest::Busy) != Rest::Busy
    }

    fn push(&mut self, record: Record, bytes: usize) {
        self.bytes = bytes;
        self.records.push(record);
    }
}
