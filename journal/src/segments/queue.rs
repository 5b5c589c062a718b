//! Queue of appends, between appenders and the current writer.
//!
//! Records are checked here, on append, against the chain of everything queued before. Under the directory's
//! lock there is no other writer, so the result is known immediately.
//!
//! The writer itself is stored here while idle. The thread that takes it out writes: the journal's thread, or
//! an appender that would wait anyway. Invariants: there is one writer, so records are written in the order
//! in which they were queued. The writer is put back, or the queue accepts nothing more.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chancery_events::record::Record;

use super::writer::SegmentWriter;
use crate::chain::ChainReader;
use crate::journal::{AppendError, lock};

/// Limits of the append queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueBounds {
    /// Maximum number of queued records.
    pub records: usize,
    /// Maximum bytes of queued records; a single record always fits.
    pub bytes: usize,
}

pub(super) struct AppendQueue {
    state: Mutex<AppendQueueState>,
    /// Only the journal's thread waits here.
    has_work: Condvar,
    bounds: QueueBounds,
    /// Idle time before the last sync is named.
    pause: Duration,
}

struct AppendQueueState {
    records: Vec<Record>,
    bytes: usize,
    /// Chain after the last queued record.
    chain: ChainReader,
    phase: AppendQueuePhase,
    writer: Option<Box<SegmentWriter>>,
    /// Time when the writer was put back.
    written: Instant,
    rest: WriterThreadState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AppendQueuePhase {
    Open,
    /// Appends fail; queued records are still written.
    Closing,
    /// The writer has ended, having written everything.
    Closed,
    /// The writer has ended after an error.
    Stopped,
}

/// State of the journal's thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriterThreadState {
    Busy,
    /// Timed wait: wakes up on its own.
    Dozes,
    /// Must be woken.
    Sleeps,
}

/// Work for the journal's thread.
pub(super) enum QueueWork {
    Records(Box<SegmentWriter>, Vec<Record>),
    /// Nothing was written for a while, and the last sync is not named yet.
    Nothing(Box<SegmentWriter>),
    /// The queue is empty and closed.
    Closed(Box<SegmentWriter>),
    /// The writer has ended.
    Stopped,
}

/// Result of an append that its caller may write.
pub(super) enum AppendPath {
    /// The appender must write the record.
    Taken(Box<SegmentWriter>, Box<Record>),
    /// The record waits in the queue.
    Queued,
}

impl AppendQueue {
    pub(super) fn new(
        chain: ChainReader,
        bounds: QueueBounds,
        pause: Duration,
        writer: SegmentWriter,
    ) -> AppendQueue {
        let state = AppendQueueState {
            records: Vec::new(),
            bytes: 0,
            chain,
            phase: AppendQueuePhase::Open,
            writer: Some(Box::new(writer)),
            written: Instant::now(),
            rest: WriterThreadState::Busy,
        };
        AppendQueue { state: Mutex::new(state), has_work: Condvar::new(), bounds, pause }
    }

    /// Leaves the record to the journal's thread.
    pub(super) fn append(&self, record: Record) -> Result<(), AppendError> {
        let mut state = lock(&self.state);
        let (record, bytes) = self.judge(&mut state, record)?;
        state.push(record, bytes);
        // Without the writer there is no reason to wake up: the thread that puts it back checks the queue.
        let has_writer = state.writer.is_some();
        self.release(state, has_writer);
        Ok(())
    }

    /// Hands the writer to the appender, if the writer is idle and the queue is empty.
    pub(super) fn append_here(&self, record: Record) -> Result<AppendPath, AppendError> {
        let mut state = lock(&self.state);
        let (record, bytes) = self.judge(&mut state, record)?;
        if state.records.is_empty()
            && let Some(writer) = state.writer.take()
        {
            return Ok(AppendPath::Taken(writer, Box::new(record)));
        }
        state.push(record, bytes);
        Ok(AppendPath::Queued)
    }

    /// Checks that the record is valid and fits. Returns it with the bytes that are then queued.
    fn judge(&self, state: &mut AppendQueueState, record: Record) -> Result<(Record, usize), AppendError> {
        if state.phase != AppendQueuePhase::Open {
            return Err(AppendError::Closed);
        }
        let bytes = state.bytes + record.bytes().len();
        if state.records.len() >= self.bounds.records || (bytes > self.bounds.bytes && state.bytes > 0) {
            return Err(AppendError::Busy(Box::new(record)));
        }
        state.chain.take_record(&record)?.map_err(AppendError::Invalid)?;
        Ok((record, bytes))
    }

    /// Waits for work; for the journal's thread.
    pub(super) fn take(&self) -> QueueWork {
        let mut state = lock(&self.state);
        loop {
            if state.phase == AppendQueuePhase::Stopped {
                return QueueWork::Stopped;
            }
            let since = state.written.elapsed();
            let (is_open, is_empty) = (state.phase == AppendQueuePhase::Open, state.records.is_empty());
            let is_named = state.writer.as_ref().is_some_and(|writer| writer.is_named);
            let is_due = !is_empty || !is_open || (!is_named && since >= self.pause);
            if is_due && let Some(writer) = state.writer.take() {
                return if !is_empty {
                    state.bytes = 0;
                    let replacement = Vec::with_capacity(state.records.len());
                    QueueWork::Records(writer, std::mem::replace(&mut state.records, replacement))
                } else if is_open {
                    QueueWork::Nothing(writer)
                } else {
                    QueueWork::Closed(writer)
                };
            }
            state = if is_named || is_due {
                // Due without a writer: the thread that puts it back wakes this one.
                state.rest = WriterThreadState::Sleeps;
                self.has_work.wait(state).unwrap_or_else(PoisonError::into_inner)
            } else {
                state.rest = WriterThreadState::Dozes;
                let left = self.pause.saturating_sub(since);
                self.has_work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            };
            state.rest = WriterThreadState::Busy;
        }
    }

    /// Puts the writer back.
    pub(super) fn put_back(&self, writer: Box<SegmentWriter>) {
        let mut state = lock(&self.state);
        let is_named = writer.is_named;
        state.writer = Some(writer);
        state.written = Instant::now();
        let must_look = !state.records.is_empty() || state.phase != AppendQueuePhase::Open;
        let must_wake = must_look || (state.rest == WriterThreadState::Sleeps && !is_named);
        self.release(state, must_wake);
    }

    /// Releases the lock, and then wakes the thread if it has work, so that it does not wake up to wait for the lock.
    /// Once is enough: from then on the thread is busy, although it does not run yet.
    fn release(&self, mut state: MutexGuard<'_, AppendQueueState>, has_work: bool) {
        let must_wake = has_work && state.rest != WriterThreadState::Busy;
        if must_wake {
            state.rest = WriterThreadState::Busy;
        }
        drop(state);
        if must_wake {
            self.has_work.notify_one();
        }
    }

    /// Refuses further appends.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        if state.phase == AppendQueuePhase::Open {
            state.phase = AppendQueuePhase::Closing;
        }
        self.release(state, true);
    }

    /// Records that the writer has ended; `is_clean` if everything was written.
    pub(super) fn end(&self, is_clean: bool) {
        let mut state = lock(&self.state);
        state.phase = if is_clean { AppendQueuePhase::Closed } else { AppendQueuePhase::Stopped };
        state.records = Vec::new();
        self.release(state, true);
    }

    pub(super) fn has_stopped(&self) -> bool {
        lock(&self.state).phase == AppendQueuePhase::Stopped
    }
}

impl AppendQueueState {
    fn push(&mut self, record: Record, bytes: usize) {
        self.bytes = bytes;
        self.records.push(record);
    }
}
