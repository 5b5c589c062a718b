//! Fold of a moment, from a state before it.
//!
//! A second thread reads and decodes the records. Both threads have a low priority ([`MomentPriority`]), which a thread inherits from
//! the one that starts it. A fold pauses while the projector is behind the journal, but for a bounded time after each slice, as a
//! busy projector is mostly behind. Before it reads a snapshot, it waits for a projector that catches up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use chancery_events::id::Position;
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{JournalReader, ReadError};
use rustix::process::{getpriority_process, setpriority_process};
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

use super::memory::{ReservedMemory, memory_of};
use super::{MomentError, MomentLimits, find};
use crate::fold::{DecodedRecord, FoldError, FoldedState, JournalFold, fold_ahead};
use crate::position_watch::PositionWatch;
use crate::snapshot::fingerprint;

/// Difference of the `nice` value of threads of moments from that of other threads: a tenth of their weight.
const NICE: i32 = 10;
/// Maximum `nice` value.
const MAX_NICE: i32 = 19;
/// Time for which a fold runs before it checks whether to pause.
const SLICE: Duration = Duration::from_millis(2);
/// Time of one pause while the projector is behind.
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of pauses after a slice.
const PAUSES: u32 = 4;
/// Minimum number of events by which a projector is behind that catches up: under load it is behind by fewer.
const CATCHING_UP: u64 = 20_000;
/// Maximum time for which folds wait for a projector that catches up, in all.
pub(super) const CATCH_UP: Duration = Duration::from_secs(10);
/// Time between checks of the wait.
const CATCH_UP_CHECK: Duration = Duration::from_millis(10);
/// Minimum bytes of records after which the encoding of the state is measured again.
const GROWTH: u64 = 2 << 20;

/// Priority of a thread of a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MomentPriority {
    /// A tenth of the weight of other threads. The thread progresses where other programs use all processors.
    Low,
    /// Policy `SCHED_IDLE`: any thread that wakes up preempts the thread immediately. Where other programs use all processors, the
    /// thread gets about 0.3 % of one.
    Idle,
}

impl MomentPriority {
    /// Gives this thread, and the threads that it starts, the priority. A process without privileges cannot raise it again.
    pub fn set(self) {
        let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        if self == MomentPriority::Idle {
            // The library also sets `nice` to 0, which a process without privileges may do only if it is not higher.
            match set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy) {
                Ok(()) => return,
                Err(refused) => {
                    tracing::debug!(
                        ?refused,
                        "cannot set the policy SCHED_IDLE, or its nice value, of a thread of a moment"
                    );
                }
            }
        }
        let lowered =
            getpriority_process(None).and_then(|nice| setpriority_process(None, (nice + NICE).min(MAX_NICE)));
        if let Err(error) = lowered {
            tracing::debug!(%error, "cannot lower the priority of a thread of a moment");
        }
    }
}

/// Stops and pauses a fold.
pub(super) struct FoldPace<'a> {
    is_cancelled: &'a AtomicBool,
    rows: &'a PositionWatch,
    journal: &'a dyn JournalReader,
    since: Instant,
}

impl<'a> FoldPace<'a> {
    pub(super) fn new(
        is_cancelled: &'a AtomicBool,
        rows: &'a PositionWatch,
        journal: &'a dyn JournalReader,
    ) -> FoldPace<'a> {
        FoldPace { is_cancelled, rows, journal, since: Instant::now() }
    }

    /// Fails if the fold was cancelled.
    pub(super) fn check(&self) -> Result<(), MomentError> {
        if self.is_cancelled.load(Ordering::Relaxed) { Err(MomentError::Cancelled) } else { Ok(()) }
    }

    /// Waits for a projector that catches up: reading a snapshot takes memory bandwidth from it. All folds wait at most
    /// [`CATCH_UP`] for one catch-up, since the first of them has waited.
    pub(super) fn await_projector(&self, since: &Mutex<Option<Instant>>) -> Result<(), MomentError> {
        self.check()?;
        let mut since = since.lock().unwrap_or_else(PoisonError::into_inner);
        while self.lag() >= CATCHING_UP && self.rows.now().stopped.is_none() {
            if since.get_or_insert_with(Instant::now).elapsed() >= CATCH_UP {
                return Ok(());
            }
            sleep(CATCH_UP_CHECK);
            self.check()?;
        }
        *since = None;
        Ok(())
    }

    /// Returns the number of events that are in the journal and not in the rows.
    pub(super) fn lag(&self) -> u64 {
        let head = self.journal.head().map_or(0, |head| head.position.get());
        head.saturating_sub(self.rows.position().get())
    }

    /// Pauses if a slice has passed and the projector is behind.
    fn step(&mut self) -> Result<(), MomentError> {
        self.check()?;
        if self.since.elapsed() < SLICE {
            return Ok(());
        }
        for _ in 0..PAUSES {
            if self.lag() == 0 {
                break;
            }
            sleep(PAUSE);
        }
        self.since = Instant::now();
        Ok(())
    }
}

/// Memory that a fold needs, and reserves before it grows.
pub(super) struct FoldMemory<'a> {
    pub(super) reserved: ReservedMemory,
    /// Length of the encoded state when it was last measured.
    encoded: u64,
    /// Bytes of records folded since: the encoding has grown by fewer.
    grown: u64,
    /// Changes the reserved bytes, after making room for them.
    resize: &'a dyn Fn(&mut ReservedMemory, u64) -> Result<(), MomentError>,
}

impl<'a> FoldMemory<'a> {
    /// Reserves memory for a state with an encoding of this length, and for its growth.
    pub(super) fn reserve(
        mut reserved: ReservedMemory,
        encoded: u64,
        resize: &'a dyn Fn(&mut ReservedMemory, u64) -> Result<(), MomentError>,
    ) -> Result<FoldMemory<'a>, MomentError> {
        resize(&mut reserved, memory_of(encoded + margin(encoded)))?;
        Ok(FoldMemory { reserved, encoded, grown: 0, resize })
    }

    fn grow(&mut self, bytes: u64, state: &FoldedState) -> Result<(), MomentError> {
        self.grown += bytes;
        if self.grown > margin(self.encoded) {
            self.measure(state);
            (self.resize)(&mut self.reserved, memory_of(self.encoded + margin(self.encoded)))?;
        }
        Ok(())
    }

    fn measure(&mut self, state: &FoldedState) {
        // Counting bytes cannot fail; without a length, the state counts as if it had grown by all records.
        (self.encoded, self.grown) = (state.encoded_len().unwrap_or(self.encoded + self.grown), 0);
    }

    /// Releases what a whole state does not need.
    pub(super) fn end(mut self, state: &FoldedState) -> Result<ReservedMemory, MomentError> {
        if self.grown > self.encoded / 8 {
            self.measure(state);
        }
        (self.resize)(&mut self.reserved, memory_of(self.encoded + self.grown))?;
        Ok(self.reserved)
    }
}

/// Snapshots that a long fold writes, so that later folds start nearer: above all the first one after an
/// upgrade, which finds no snapshot of its build.
pub(super) struct FoldSnapshots<'a> {
    store: Option<&'a SnapshotStore>,
    fleet: &'a Arc<str>,
    interval: u64,
    /// Position of the last snapshot, or of the start of the fold.
    last: Position,
}

impl<'a> FoldSnapshots<'a> {
    pub(super) fn new(
        store: Option<&'a SnapshotStore>,
        fleet: &'a Arc<str>,
        limits: MomentLimits,
        last: Position,
    ) -> FoldSnapshots<'a> {
        FoldSnapshots { store, fleet, interval: limits.snapshot_interval, last }
    }

    /// Writes a snapshot if one is due and would be kept. A failure is logged: the fold needs none.
    fn after(&mut self, state: &FoldedState, journal: &dyn JournalReader) {
        let Some(store) = self.store else { return };
        let passed = state.at.position.get() - self.last.get();
        if !state.is_snapshot_due(passed, self.interval) {
            return;
        }
        self.last = state.at.position;
        let written = store.is_wanted(state.at.position, &fingerprint()).and_then(|is_wanted| {
            if is_wanted { state.write(Arc::clone(self.fleet), store, journal).map(Some) } else { Ok(None) }
        });
        match written {
            Ok(Some(meta)) => tracing::info!(position = %meta.position, "snapshot of a past state written"),
            Ok(None) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "cannot write snapshot of a past state");
            }
        }
    }
}

/// Returns the growth of a state before it is measured again.
pub(super) fn margin(encoded: u64) -> u64 {
    (encoded / 2).max(GROWTH)
}

/// Folds records up to the one that ends at `to`. A cancelled fold stays at the last folded record.
pub(super) fn fold_to(
    fold: &mut JournalFold,
    to: Position,
    memory: &mut FoldMemory<'_>,
    pace: &mut FoldPace<'_>,
    snapshots: &mut FoldSnapshots<'_>,
) -> Result<(), MomentError> {
    if fold.position() >= to {
        return Ok(());
    }
    let mut records =
        pace.journal.records(fold.position().plus(1)).map_err(|error| find::unreadable(error, to))?;
    let mut is_last = false;
    let records = std::iter::from_fn(move || {
        let record = if is_last { None } else { records.next() };
        is_last =
            record.as_ref().is_some_and(|record| record.as_ref().is_ok_and(|record| record.last() >= to));
        record
    });
    let folded = fold_ahead(fold, records, DecodedRecord::new, |record, state| {
        memory.grow(record.bytes().len() as u64, state)?;
        snapshots.after(state, pace.journal);
        Ok(pace.step()?)
    });
    match folded {
        Ok(()) if fold.position() >= to => Ok(()),
        Ok(()) => {
            let reason = format!("the journal ends at position {}", fold.position());
            Err(MomentError::Unreadable { position: to, reason, first: None })
        }
        Err(FoldStop::Read(error)) => Err(find::unreadable(error, to)),
        Err(FoldStop::Fold(error)) => {
            Err(MomentError::Unreadable { position: to, reason: super::with_sources(&error), first: None })
        }
        Err(FoldStop::Moment(error)) => Err(error),
    }
}

/// Reason why a fold ends early.
#[derive(Debug, thiserror::Error)]
enum FoldStop {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Fold(#[from] FoldError),
    #[error(transparent)]
    Moment(#[from] MomentError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_a_fold_and_the_threads_that_it_starts_have_a_low_priority() {
        // Value 19 is `nice`, 41 the policy; the second one is in parentheses, and may have spaces.
        let stat = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("a thread");
            let (_, fields) = stat.rsplit_once(')').expect("fields");
            [16, 38].map(|at| fields.split_whitespace().nth(at).and_then(|field| field.parse::<i32>().ok()))
        };
        let [others, _] = stat();
        let low = others.map(|nice| (nice + NICE).min(MAX_NICE));
        for (priority, policy) in [(MomentPriority::Low, 0), (MomentPriority::Idle, 5)] {
            let thread = std::thread::spawn(move || {
                priority.set();
                [stat(), std::thread::spawn(stat).join().expect("no panic")]
            });
            let [of_fold, of_reader] = thread.join().expect("no panic");
            assert_eq!((of_fold, of_fold[1]), (of_reader, Some(policy)), "{priority:?}");
            // With the policy `SCHED_IDLE`, the `nice` value has no effect.
            assert!(priority == MomentPriority::Idle || of_fold[0] == low, "{of_fold:?}, others {others:?}");
        }
        assert_eq!(stat(), [others, Some(0)], "other threads keep theirs");
    }
}
