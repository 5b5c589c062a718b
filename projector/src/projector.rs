//! The projector: follows the journal, keeps the state in memory and the rows in the store.
//!
//! Start-up uses the same path as later records, from an earlier position. The state starts at the newest
//! snapshot, the rows at the store's cursor; these may differ:
//!
//! | position of the rows | action |
//! |---|---|
//! | after a record that the journal does not have | the rows are removed, then as without rows |
//! | none, or before the snapshot | only the state is folded to the last record, then rows are built from it |
//! | at the snapshot or after it | only the state is folded up to the position of the rows |
//!
//! From there both continue together, as for every later record. Invariants: rows are those of the state at
//! exactly one position; they are a function of the state, so both paths give the same bytes.
//!
//! While a large batch of rows is written, the next records are already folded. At most these two run
//! concurrently, so that memory stays bounded.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_journal::snapshots::{SnapshotError, SnapshotStore};
use chancery_journal::witness::has_record_of;
use chancery_journal::{ChainCursor, JournalReader, ReadError};

use crate::bulk_load::bulk_load;
use crate::changes::{RowWrites, changes};
use crate::counts::RowCounts;
use crate::figures::FleetFigures;
use crate::fold::{DecodedRecord, FoldError, FoldedState, JournalFold, TouchedEntities, fold_ahead};
use crate::position_watch::{AppliedPosition, PositionWatch};
use crate::query::{BatchCounter, RowReader};
use crate::snapshot;
use crate::store::{FoundRows, RowStore, StoreError, StoreTuning};

/// Reason why the rows do not continue.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// Record that cannot be folded: the error has the remedy. The rows stay at the position before the
    /// record.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// Journal that cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Snapshot directory that cannot be read.
    #[error(transparent)]
    SnapshotStore(#[from] SnapshotError),
    /// Failure of the store: open the projector again.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Projector that failed before: open it again.
    #[error("cannot project records: the projector has stopped")]
    Stopped,
}

/// Follows a journal with state and rows. For one thread.
pub struct Projector {
    source: Arc<dyn JournalReader>,
    fold: JournalFold,
    counts: RowCounts,
    store: RowStore,
    /// Position of the rows; zero before the store is filled.
    rows: Position,
    /// Whether the store has rows. If not, the first records fill it.
    is_filled: bool,
    /// Position of the first snapshot; zero without one.
    snapshot: Position,
    /// Rows and index entries written or removed.
    written: u64,
    watch: PositionWatch,
    epoch: Arc<BatchCounter>,
    has_failed: bool,
}

impl Projector {
    /// Opens the rows in `dir`, their own directory, which is removed when unusable. Folds state and rows to
    /// the same position; [`Projector::catch_up`] continues there.
    pub fn open(
        dir: &Path,
        fleet: &str,
        source: Arc<dyn JournalReader>,
        snapshots: Option<&SnapshotStore>,
        tuning: StoreTuning,
    ) -> Result<Projector, ProjectError> {
        Projector::open_found(FoundRows::open(dir, tuning)?, fleet, source, snapshots)
    }

    /// Opens the projector with rows that were opened before the journal.
    pub fn open_found(
        rows: FoundRows,
        fleet: &str,
        source: Arc<dyn JournalReader>,
        snapshots: Option<&SnapshotStore>,
    ) -> Result<Projector, ProjectError> {
        let state = snapshots.map(|from| snapshot::newest(from, fleet, &*source)).transpose()?.flatten();
        let (store, rows) = usable(rows, &*source, state.as_ref())?;
        let snapshot = state.as_ref().map_or(Position::ZERO, |state| state.at.position);
        let mut fold = JournalFold::from(state);
        let is_filled = rows.is_some();
        let applied = match rows {
            Some(rows) => {
                follow(&mut fold, &*source, rows.position)?;
                applied(&fold)
            }
            None => AppliedPosition::default(),
        };
        let counts = fold.state().map_or_else(RowCounts::default, |state| RowCounts::of(&state.fleet));
        Ok(Projector {
            source,
            fold,
            counts,
            store,
            rows: applied.position,
            is_filled,
            snapshot,
            written: 0,
            epoch: Arc::new(BatchCounter::at(applied.position)),
            watch: PositionWatch::new(applied),
            has_failed: false,
        })
    }

    /// Opens rows in `dir`, an empty directory, for a state that was folded elsewhere. [`Projector::catch_up`] builds
    /// the rows.
    pub fn open_at(
        dir: &Path,
        fleet: &str,
        source: Arc<dyn JournalReader>,
        state: FoldedState,
        tuning: StoreTuning,
    ) -> Result<Projector, ProjectError> {
        let mut projector = Projector::open(dir, fleet, source, None, tuning)?;
        projector.fold = JournalFold::from(Some(state));
        Ok(projector)
    }

    /// Returns a reader of the rows.
    pub fn reader(&self) -> RowReader {
        RowReader::new(self.store.tree().clone(), self.watch.clone(), Arc::clone(&self.epoch))
    }

    /// Returns the last position in state and rows.
    pub fn position(&self) -> Position {
        self.rows
    }

    /// Returns the position of the snapshot that the projector started with; zero without a usable one. A
    /// start before the next snapshot replays all records after this one.
    pub fn snapshot(&self) -> Position {
        self.snapshot
    }

    /// Returns the number of rows and index entries written or removed since the projector was opened: the
    /// cost of events.
    pub fn rows_written(&self) -> u64 {
        self.written
    }

    /// Returns the state and its cursor; `None` before the first record. Clone it to write a snapshot
    /// elsewhere.
    pub fn state(&self) -> Option<&FoldedState> {
        self.fold.state()
    }

    /// Returns the figures of the fleet for metrics; `None` before the first record.
    pub fn figures(&self) -> Option<FleetFigures> {
        self.fold.state().map(|state| FleetFigures::of(&state.fleet, &self.counts))
    }

    /// Applies the records after the rows, up to the journal's current head. Later records wait for the next
    /// call: if the journal grows faster than it is folded, this call would not end.
    pub fn catch_up(&mut self) -> Result<Position, ProjectError> {
        let head = self.source.head().map_or(Position::ZERO, |head| head.position);
        let records = self.source.records(self.fold.position().plus(1))?;
        self.run(
            records.take_while(move |record| record.as_ref().map_or(true, |record| record.last() <= head)),
        )
    }

    /// Applies durable and valid records, in order; records that are in the rows already change nothing. A
    /// gap leaves everything unchanged: [`Projector::catch_up`] closes it.
    pub fn apply(&mut self, records: &[Arc<Record>]) -> Result<Position, ProjectError> {
        self.run(records.iter().map(|record| Ok(Arc::clone(record))))
    }

    /// Flushes the rows to disk, before a snapshot at their position gets its name. A start with rows older
    /// than the newest snapshot builds all of them again.
    pub fn flush(&self) -> Result<(), ProjectError> {
        Ok(self.store.flush()?)
    }

    fn run(
        &mut self,
        records: impl IntoIterator<Item = Result<Arc<Record>, ReadError>> + Send,
    ) -> Result<Position, ProjectError> {
        if self.has_failed {
            return Err(ProjectError::Stopped);
        }
        let result = if self.is_filled { self.take(records) } else { self.fill(records) };
        let is_final = match &result {
            Ok(_) | Err(ProjectError::Read(_) | ProjectError::Fold(FoldError::Gap { .. })) => false,
            Err(_) => true,
        };
        if let (true, Err(error)) = (is_final, &result) {
            self.has_failed = true;
            self.watch.stop(&error.to_string());
        }
        result
    }

    fn take(
        &mut self,
        records: impl IntoIterator<Item = Result<Arc<Record>, ReadError>>,
    ) -> Result<Position, ProjectError> {
        let batch = self.store.tuning.batch;
        let Projector { fold, counts, store, rows, written, watch, epoch, .. } = self;
        thread::scope(|scope| {
            let mut writer = BatchWriter { scope, store, epoch, watch, rows, written, writing: None };
            let mut touched = TouchedEntities::default();
            let mut stopped = None;
            for record in records {
                let folded = record
                    .map_err(ProjectError::from)
                    .and_then(|record| Ok(fold.take_touching(&record, &mut touched)?));
                if let Err(error) = folded {
                    stopped = Some(error);
                    break;
                }
                if touched.len() >= batch {
                    writer.begin(fold, counts, &std::mem::take(&mut touched))?;
                }
            }
            // Records folded before an error are valid.
            writer.end(fold, counts, &touched)?;
            match stopped {
                Some(error) => Err(error),
                None => Ok(*writer.rows),
            }
        })
    }

    /// Folds the state first, from records decoded on another thread, then builds its rows. Each row is
    /// written once, however often it has changed.
    fn fill(
        &mut self,
        records: impl IntoIterator<Item = Result<Arc<Record>, ReadError>> + Send,
    ) -> Result<Position, ProjectError> {
        let folded = fold_ahead(&mut self.fold, records, DecodedRecord::new, |_, _| Ok(()));
        // Records folded before an error are valid.
        if let Some(state) = self.fold.state() {
            self.counts = RowCounts::of(&state.fleet);
            let load = || bulk_load(&self.store, state, &self.counts);
            self.written += self.epoch.batch(state.at.position, load)?;
            self.is_filled = true;
            let applied = applied(&self.fold);
            self.rows = applied.position;
            self.watch.publish(applied);
        }
        folded.map(|()| self.rows)
    }

    #[cfg(test)]
    pub(crate) fn store(&self) -> &RowStore {
        &self.store
    }

    #[cfg(test)]
    pub(crate) fn batches(&self) -> u64 {
        self.epoch.batches()
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> &RowCounts {
        &self.counts
    }
}

impl Drop for Projector {
    /// Stops waiting readers: nothing follows.
    fn drop(&mut self) {
        self.watch.stop("it was closed");
    }
}

/// Writes batches, the next one when the last is applied.
struct BatchWriter<'scope, 'all> {
    scope: &'scope thread::Scope<'scope, 'all>,
    store: &'scope RowStore,
    epoch: &'scope BatchCounter,
    watch: &'scope PositionWatch,
    rows: &'scope mut Position,
    written: &'scope mut u64,
    writing: Option<thread::ScopedJoinHandle<'scope, Result<Position, StoreError>>>,
}

impl BatchWriter<'_, '_> {
    /// Starts to write the touched rows on another thread, after the rows being written.
    fn begin(
        &mut self,
        fold: &JournalFold,
        counts: &mut RowCounts,
        touched: &TouchedEntities,
    ) -> Result<(), StoreError> {
        self.wait()?;
        if let Some((changes, at)) = self.next(fold, counts, touched)? {
            let (store, epoch, watch) = (self.store, self.epoch, self.watch);
            self.writing = Some(self.scope.spawn(move || write(store, epoch, watch, changes, &at)));
        }
        Ok(())
    }

    /// Writes the last rows on this thread.
    fn end(
        &mut self,
        fold: &JournalFold,
        counts: &mut RowCounts,
        touched: &TouchedEntities,
    ) -> Result<(), StoreError> {
        self.wait()?;
        if let Some((changes, at)) = self.next(fold, counts, touched)? {
            *self.rows = write(self.store, self.epoch, self.watch, changes, &at)?;
        }
        Ok(())
    }

    /// Returns the touched rows, each once, and the cursor. Earlier batches must be written, because their
    /// rows are read here.
    fn next(
        &mut self,
        fold: &JournalFold,
        counts: &mut RowCounts,
        touched: &TouchedEntities,
    ) -> Result<Option<(RowWrites, ChainCursor)>, StoreError> {
        let Some(state) = fold.state().filter(|state| state.at.position > *self.rows) else {
            return Ok(None);
        };
        let changes = changes(&state.fleet, counts, touched, self.store)?;
        *self.written += changes.0.len() as u64;
        Ok(Some((changes, state.at)))
    }

    fn wait(&mut self) -> Result<(), StoreError> {
        if let Some(writing) = self.writing.take() {
            *self.rows = writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    }
}

/// Writes one whole batch, and publishes its position to readers before sled has written it. Returns the position.
fn write(
    store: &RowStore,
    epoch: &BatchCounter,
    watch: &PositionWatch,
    changes: RowWrites,
    at: &ChainCursor,
) -> Result<Position, StoreError> {
    let unwritten = epoch.batch(at.position, || store.apply(changes, Some(at)))?;
    watch.publish(AppliedPosition { position: at.position, time: at.time, stopped: None });
    unwritten.wait()?;
    Ok(at.position)
}

fn applied(fold: &JournalFold) -> AppliedPosition {
    fold.state().map_or_else(AppliedPosition::default, |state| AppliedPosition {
        position: state.at.position,
        time: state.at.time,
        stopped: None,
    })
}

/// Returns the store, and the cursor of its rows if they are usable.
fn usable(
    found: FoundRows,
    source: &dyn JournalReader,
    state: Option<&FoldedState>,
) -> Result<(RowStore, Option<ChainCursor>), ProjectError> {
    let store = RowStore::settle(found)?;
    let Some(rows) = store.cursor()? else { return Ok((store, None)) };
    if !has_record_of(source, &rows)? {
        return Ok((store.renew("the journal does not contain their last record")?, None));
    }
    if state.is_some_and(|state| state.at.position > rows.position) {
        return Ok((store.renew("they are older than the newest snapshot")?, None));
    }
    Ok((store, Some(rows)))
}

/// Folds the state alone, up to a position that the journal has.
fn follow(fold: &mut JournalFold, source: &dyn JournalReader, to: Position) -> Result<(), ProjectError> {
    if fold.position() >= to {
        return Ok(());
    }
    for record in source.records(fold.position().plus(1))? {
        fold.take(&*record?)?;
        if fold.position() >= to {
            break;
        }
    }
    Ok(())
}
