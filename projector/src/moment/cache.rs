//! Cache of moments, and the state from which another one is folded.
//!
//! | nearest state before the moment | memory | the fold starts from |
//! |---|---|---|
//! | a cached moment | is free for both | a copy; the moment stays in the cache |
//! | a cached moment | is not free for both | the moment itself, unless a reader still uses it |
//! | a snapshot of this build | is free, after moments were evicted | the snapshot |
//! | none | the same | the start of the journal |

use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use chancery_events::id::Position;
use chancery_journal::snapshots::{SnapshotMeta, SnapshotStore};
use chancery_journal::{ChainCursor, JournalReader};

use super::fold::{FoldMemory, FoldPace, FoldSnapshots, fold_to, margin};
use super::memory::{ReservedMemory, memory_of};
use super::{FleetMoment, MomentEnd, MomentError, NamedMoment, find};
use crate::fold::{FoldedState, JournalFold};
use crate::position_watch::PositionWatch;
use crate::snapshot::{is_usable, newest_within};

/// Minimum number of folded events for which the state of a cancelled fold is kept.
const KEPT_EVENTS: u64 = 20_000;

/// Limits of a cache of moments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MomentLimits {
    /// Maximum number of moments.
    pub moments: usize,
    /// Maximum memory of the moments and of a fold, in bytes.
    pub memory: u64,
    /// Minimum number of events between snapshots that a long fold writes; of a larger state, half its size.
    pub snapshot_interval: u64,
}

impl Default for MomentLimits {
    fn default() -> MomentLimits {
        MomentLimits { moments: 4, memory: 1 << 30, snapshot_interval: 100_000 }
    }
}

/// Moments of a fleet that were read last.
pub struct MomentCache {
    fleet: Arc<str>,
    journal: Arc<dyn JournalReader>,
    snapshots: Option<SnapshotStore>,
    rows: PositionWatch,
    limits: MomentLimits,
    /// Moments, the last one read last.
    kept: Mutex<Vec<Arc<FleetMoment>>>,
    used: Arc<AtomicU64>,
    /// Time since which folds wait for the projector to catch up.
    catch_up: Mutex<Option<Instant>>,
    /// Thread that frees an evicted moment.
    freeing: Mutex<Option<JoinHandle<()>>>,
}

/// State from which a fold starts, with its memory. Without a state, it starts at the start of the journal.
type FoldStart<'a> = (Option<FoldedState>, FoldMemory<'a>);

impl MomentCache {
    /// Creates a cache without moments. `rows` is the watch of the projector that folds before this cache does.
    pub fn new(
        fleet: Arc<str>,
        journal: Arc<dyn JournalReader>,
        snapshots: Option<SnapshotStore>,
        rows: PositionWatch,
        limits: MomentLimits,
    ) -> MomentCache {
        MomentCache {
            fleet,
            journal,
            snapshots,
            rows,
            limits,
            kept: Mutex::default(),
            used: Arc::default(),
            catch_up: Mutex::default(),
            freeing: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<FleetMoment>>> {
        // Each change of the list leaves it valid.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the record of a moment. Reads the journal.
    pub fn find(&self, moment: NamedMoment) -> Result<ChainCursor, MomentError> {
        find::find(&*self.journal, moment).map_err(|error| self.with_first(error))
    }

    /// Returns the moment after a record, if it is in the cache.
    pub fn cached(&self, at: &ChainCursor) -> Option<Arc<FleetMoment>> {
        let mut kept = self.lock();
        let index = kept.iter().position(|moment| moment.at() == *at)?;
        let moment = kept.remove(index);
        kept.push(Arc::clone(&moment));
        Some(moment)
    }

    /// Whether the cache has the moment at the last position of a record.
    pub fn has(&self, position: Position) -> bool {
        self.lock().iter().any(|moment| moment.at().position == position)
    }

    /// Returns the number of moments in the cache.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether the cache has no moment.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory that are reserved for moments.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Returns the moment after a record, folded unless it is in the cache. Callers fold one moment at a time,
    /// on a thread that may block. The fold ends early once `is_cancelled` is true.
    pub fn fold(&self, at: &ChainCursor, is_cancelled: &AtomicBool) -> Result<Arc<FleetMoment>, MomentError> {
        if let Some(moment) = self.cached(at) {
            return Ok(moment);
        }
        let mut pace = FoldPace::new(is_cancelled, &self.rows, &*self.journal);
        pace.await_projector(&self.catch_up)?;
        let resize = |reserved: &mut ReservedMemory, bytes| self.resize(reserved, bytes, at.position);
        let (state, mut memory) = self.start(at, &resize)?;
        let mut fold = JournalFold::discarding(state);
        let from = fold.position();
        let mut snapshots = FoldSnapshots::new(self.snapshots.as_ref(), &self.fleet, self.limits, from);
        let folded = fold_to(&mut fold, at.position, &mut memory, &mut pace, &mut snapshots);
        let is_worth_keeping = match &folded {
            Ok(()) => true,
            Err(MomentError::Cancelled) => fold.position().get() - from.get() >= KEPT_EVENTS,
            Err(_) => false,
        };
        let state = fold.into_state().filter(|_| is_worth_keeping);
        let moment = state
            .map(|state| memory.end(&state).map(|reserved| self.keep(FleetMoment::new(state, reserved))));
        let moment = moment.transpose()?;
        folded.map_err(|error| self.with_first(error))?;
        let moment = moment.filter(|moment| moment.at() == *at);
        moment.ok_or_else(|| {
            let reason = "its record differs from the one that was found before".to_owned();
            MomentError::Unreadable { position: at.position, reason, first: None }
        })
    }

    /// Puts a moment into the cache, in place of the one that was not read for longest.
    fn keep(&self, moment: FleetMoment) -> Arc<FleetMoment> {
        let moment = Arc::new(moment);
        let mut kept = self.lock();
        let superfluous = (kept.len() + 1).saturating_sub(self.limits.moments.max(1));
        let evicted: Vec<_> = kept.drain(..superfluous).collect();
        kept.push(Arc::clone(&moment));
        // Readers need the lock.
        drop(kept);
        for evicted in evicted {
            self.free(evicted);
        }
        moment
    }

    /// Reserves memory, and evicts moments to make room.
    pub(super) fn resize(
        &self,
        reserved: &mut ReservedMemory,
        bytes: u64,
        position: Position,
    ) -> Result<(), MomentError> {
        let limit = self.limits.memory;
        while !reserved.resize(bytes, limit) {
            if bytes > limit {
                return Err(MomentError::TooLarge { position, limit });
            }
            let mut kept = self.lock();
            if kept.is_empty() {
                // Readers still use moments that were evicted.
                return Err(MomentError::MemoryInUse);
            }
            let evicted = kept.remove(0);
            drop(kept);
            self.free(evicted);
        }
        Ok(())
    }

    /// Releases the reserved memory of an evicted moment, and frees its state on another thread: that takes as long as
    /// folding thousands of events. While another state is being freed, this one is freed on this thread. A moment that is
    /// still read keeps its memory.
    fn free(&self, evicted: Arc<FleetMoment>) {
        let Some(FleetMoment { state, keys, reserved, .. }) = Arc::into_inner(evicted) else { return };
        drop(reserved);
        let mut freeing = self.freeing.lock().unwrap_or_else(PoisonError::into_inner);
        // With the policy `SCHED_IDLE`, it may run for long.
        if freeing.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let named = thread::Builder::new().name("moment-free".into());
        // Without another thread it is freed on this one.
        *freeing = named.spawn(move || drop((state, keys))).ok();
    }

    /// Returns the nearest cached moment up to the record.
    fn nearest(&self, at: &ChainCursor) -> Option<Arc<FleetMoment>> {
        let kept = self.lock();
        let before = kept.iter().filter(|moment| moment.at().position <= at.position);
        before.max_by_key(|moment| moment.at().position).cloned()
    }

    /// Returns the nearest state before the record.
    fn start<'a>(
        &self,
        at: &ChainCursor,
        resize: &'a dyn Fn(&mut ReservedMemory, u64) -> Result<(), MomentError>,
    ) -> Result<FoldStart<'a>, MomentError> {
        // Not held while memory is reserved for a snapshot: it may have to be evicted.
        let cached = self.nearest(at).map_or(Position::ZERO, |moment| moment.at().position);
        if let Some(start) = self.start_from_snapshot(cached, at, resize)? {
            return Ok(start);
        }
        if let Some(moment) = self.nearest(at) {
            let (state, memory) = self.start_from_moment(moment, resize)?;
            return Ok((Some(state), memory));
        }
        Ok((None, FoldMemory::reserve(ReservedMemory::none(&self.used), 0, resize)?))
    }

    /// Returns the state of the newest usable snapshot after `cached` and up to the record, if there is one.
    fn start_from_snapshot<'a>(
        &self,
        cached: Position,
        at: &ChainCursor,
        resize: &'a dyn Fn(&mut ReservedMemory, u64) -> Result<(), MomentError>,
    ) -> Result<Option<FoldStart<'a>>, MomentError> {
        let Some(snapshots) = &self.snapshots else { return Ok(None) };
        let positions = (Bound::Excluded(cached), Bound::Included(at.position));
        let mut reserved = None;
        let admit = |meta: &SnapshotMeta, is_usable: bool| {
            if is_usable {
                // Memory of a damaged snapshot before it is released first.
                reserved = None;
                let none = ReservedMemory::none(&self.used);
                reserved = Some(FoldMemory::reserve(none, meta.len, resize));
            }
            is_usable && reserved.as_ref().is_some_and(Result::is_ok)
        };
        let found = newest_within(positions, snapshots, &self.fleet, &*self.journal, admit);
        let state = found.unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot read snapshots, folding without them");
            None
        });
        match (state, reserved) {
            (Some(state), Some(memory)) => Ok(Some((Some(state), memory?))),
            (None, Some(Err(error))) => Err(error),
            _ => Ok(None),
        }
    }

    /// Returns the state of a cached moment: a copy, or the moment itself where memory is scarce.
    pub(super) fn start_from_moment<'a>(
        &self,
        moment: Arc<FleetMoment>,
        resize: &'a dyn Fn(&mut ReservedMemory, u64) -> Result<(), MomentError>,
    ) -> Result<(FoldedState, FoldMemory<'a>), MomentError> {
        let encoded = moment.encoded();
        let mut copied = ReservedMemory::none(&self.used);
        let moment = if copied.resize(memory_of(encoded + margin(encoded)), self.limits.memory) {
            Err(moment)
        } else {
            self.lock().retain(|kept| !Arc::ptr_eq(kept, &moment));
            Arc::try_unwrap(moment)
        };
        match moment {
            Ok(FleetMoment { state, reserved, .. }) => {
                let memory = FoldMemory::reserve(reserved, encoded, resize)?;
                Ok((state, memory))
            }
            Err(moment) => {
                let memory = FoldMemory::reserve(copied, encoded, resize)?;
                Ok((moment.state.clone(), memory))
            }
        }
    }

    /// Adds the first later moment that can be read to the error of an unreadable one.
    fn with_first(&self, error: MomentError) -> MomentError {
        match error {
            MomentError::Unreadable { position, reason, first: None } => {
                let first = self.first_after(position);
                MomentError::Unreadable { position, reason, first }
            }
            other => other,
        }
    }

    /// Returns the first snapshot after a position from which moments can be folded.
    fn first_after(&self, position: Position) -> Option<MomentEnd> {
        let mut first = None;
        let after = (Bound::Excluded(position), Bound::Unbounded);
        // No snapshot is accepted, so each is checked, the oldest last.
        let found = self.snapshots.as_ref()?.load_newest_within(after, |meta| {
            if is_usable(meta, &self.fleet, &*self.journal) {
                first = Some(MomentEnd { position: meta.position, time: meta.time });
            }
            false
        });
        if let Err(error) = found {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot read snapshots");
        }
        first
    }
}
