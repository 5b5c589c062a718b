//! What waits to be written, between those who append and the thread that writes.
//!
//! Whether a record counts is judged here, when it is appended, by the chain that everything queued before makes:
//! under the folder's lock there is no other writer, so the answer is known at once.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use chancery_events::record::Record;

use super::catalog::lock;
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
    has_work: Condvar,
    bounds: Bounds,
}

struct State {
    records: Vec<Record>,
    bytes: usize,
    /// Stands behind the last record queued.
    chain: Chain,
    phase: Phase,
    is_writer_waiting: bool,
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

/// What the writer gets to do.
pub(super) enum Taken {
    Records(Vec<Record>),
    /// Nothing has come for as long as it wanted to wait.
    Nothing,
    /// Nothing waits, and nothing will come.
    Closed,
}

impl Queue {
    pub(super) fn new(chain: Chain, bounds: Bounds) -> Queue {
        let state =
            State { records: Vec::new(), bytes: 0, chain, phase: Phase::Open, is_writer_waiting: false };
        Queue { state: Mutex::new(state), has_work: Condvar::new(), bounds }
    }

    pub(super) fn append(&self, record: Record) -> Result<(), AppendError> {
        let mut state = lock(&self.state);
        if state.phase != Phase::Open {
            return Err(AppendError::Closed);
        }
        let bytes = state.bytes + record.bytes().len();
        if state.records.len() >= self.bounds.records || (bytes > self.bounds.bytes && state.bytes > 0) {
            return Err(AppendError::Busy(Box::new(record)));
        }
        state.chain.take_record(&record)?.map_err(AppendError::Invalid)?;
        state.bytes = bytes;
        state.records.push(record);
        let must_wake = std::mem::take(&mut state.is_writer_waiting);
        drop(state);
        if must_wake {
            self.has_work.notify_one();
        }
        Ok(())
    }

    /// Waits for work, for ever if there is no `patience`.
    pub(super) fn take(&self, patience: Option<Duration>) -> Taken {
        let mut state = lock(&self.state);
        loop {
            if !state.records.is_empty() {
                state.bytes = 0;
                let room = Vec::with_capacity(state.records.len());
                return Taken::Records(std::mem::replace(&mut state.records, room));
            }
            if state.phase != Phase::Open {
                return Taken::Closed;
            }
            state.is_writer_waiting = true;
            let Some(patience) = patience else {
                state = self.has_work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let waited = self.has_work.wait_timeout(state, patience);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if timeout.timed_out() && state.records.is_empty() && state.phase == Phase::Open {
                state.is_writer_waiting = false;
                return Taken::Nothing;
            }
        }
    }

    /// Lets nothing more in.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        if state.phase == Phase::Open {
            state.phase = Phase::Closing;
        }
        drop(state);
        self.has_work.notify_one();
    }

    /// The writer is gone; `is_clean` says whether everything was written.
    pub(super) fn end(&self, is_clean: bool) {
        let mut state = lock(&self.state);
        state.phase = if is_clean { Phase::Closed } else { Phase::Stopped };
        state.records = Vec::new();
    }

    pub(super) fn has_stopped(&self) -> bool {
        lock(&self.state).phase == Phase::Stopped
    }
}
