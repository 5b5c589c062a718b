//! The projector: follows the journal, keeps the state in memory and the rows in the store.
//!
//! Start-up is the running path from an earlier place. The state begins at the newest snapshot, the rows at the
//! store's cursor, and these need not be the same:
//!
//! | rows stand | then |
//! |---|---|
//! | behind a record that the journal does not have | they are dropped, as if there were none |
//! | nowhere, or before the snapshot | the state alone is folded as far as there are records, then they are made from it |
//! | at the snapshot or after it | the state alone is folded up to them |
//!
//! From there both go on together, as they do for every record that comes. What must stay true: rows are those of
//! the state at exactly one position; they are a function of the state, so both ways give the same bytes.
//!
//! While a large batch of rows is written, the records behind it are folded already: two things at a time, never
//! more, so that memory stays bounded.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_journal::snapshots::{SnapshotError, Snapshots};
use chancery_journal::witness::has_record_of;
use chancery_journal::{Cursor, ReadError, Source};

use crate::changes::{Changes, changes};
use crate::counts::Counts;
use crate::fill::fill;
use crate::fold::{Decoded, Fold, FoldError, Folding, Touched};
use crate::query::{Epoch, Reader};
use crate::snapshot;
use crate::store::{FoundRows, Store, StoreError, Tuning};
use crate::watch::{Applied, Watch};

/// Records that are decoded ahead of the one that is folded, while the store is filled.
const AHEAD: usize = 8;

/// The rows do not go on.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// A record cannot be folded: the error says what to do. The rows stand before it.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// The journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The folder of snapshots cannot be read.
    #[error(transparent)]
    Snapshots(#[from] SnapshotError),
    /// The store failed: open the projector anew.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It failed before: open it anew.
    #[error("project records: the projector has stopped")]
    Stopped,
}

/// Follows a journal with state and rows. For one thread.
pub struct Projector {
    source: Arc<dyn Source>,
    fold: Fold,
    counts: Counts,
    store: Store,
    /// The rows' position. Before the store is filled, none.
    rows: Position,
    /// Whether the store holds rows. If not, the first records fill it.
    is_filled: bool,
    /// Where the snapshot stands with which it began; zero without one.
    snapshot: Position,
    /// Rows and index entries written or removed.
    written: u64,
    tuning: Tuning,
    watch: Watch,
    epoch: Arc<Epoch>,
    has_failed: bool,
}

impl Projector {
    /// Opens the rows in `dir`, a folder of their own that is removed when they cannot be used, and brings state
    /// and rows to the same place. [`Projector::catch_up`] takes it from there.
    pub fn open(
        dir: &Path,
        fleet: &str,
        source: Arc<dyn Source>,
        snapshots: Option<&Snapshots>,
        tuning: Tuning,
    ) -> Result<Projector, ProjectError> {
        Projector::open_found(FoundRows::open(dir, tuning)?, fleet, source, snapshots)
    }

    /// The same, with rows that were opened before the journal was.
    pub fn open_found(
        rows: FoundRows,
        fleet: &str,
        source: Arc<dyn Source>,
        snapshots: Option<&Snapshots>,
    ) -> Result<Projector, ProjectError> {
        let tuning = rows.tuning();
        let state = snapshots.map(|from| snapshot::newest(from, fleet, &*source)).transpose()?.flatten();
        let (store, rows) = usable(rows, &*source, state.as_ref())?;
        let snapshot = state.as_ref().map_or(Position::ZERO, |state| state.at.position);
        let mut fold = Fold::from(state);
        let is_filled = rows.is_some();
        let applied = match rows {
            Some(rows) => {
                follow(&mut fold, &*source, rows.position)?;
                applied(&fold)
            }
            None => Applied::default(),
        };
        let counts = fold.state().map_or_else(Counts::default, |state| Counts::of(&state.fleet));
        Ok(Projector {
            source,
            fold,
            counts,
            store,
            rows: applied.position,
            is_filled,
            snapshot,
            written: 0,
            tuning,
            watch: Watch::new(applied),
            epoch: Arc::new(Epoch::default()),
            has_failed: false,
        })
    }

    /// Reads the rows.
    pub fn reader(&self) -> Reader {
        Reader::new(self.store.tree().clone(), self.watch.clone(), Arc::clone(&self.epoch))
    }

    /// The last position in state and rows.
    pub fn position(&self) -> Position {
        self.rows
    }

    /// Where the snapshot stands with which it began; zero if there was none that could be used. A start before the
    /// next one replays what is behind it.
    pub fn snapshot(&self) -> Position {
        self.snapshot
    }

    /// How many rows and index entries it has written or removed since it was opened: what an event costs.
    pub fn rows_written(&self) -> u64 {
        self.written
    }

    /// The state, and where it stands; `None` before the first record. Clone it to write a snapshot elsewhere.
    pub fn state(&self) -> Option<&Folding> {
        self.fold.state()
    }

    /// Takes what the journal has and the rows have not. What the journal gets meanwhile waits for the next call: of
    /// one that grows faster than it is folded this would be without end.
    pub fn catch_up(&mut self) -> Result<Position, ProjectError> {
        let head = self.source.head().map_or(Position::ZERO, |head| head.position);
        let records = self.source.records(self.fold.position().plus(1))?;
        self.run(
            records.take_while(move |record| record.as_ref().map_or(true, |record| record.last() <= head)),
        )
    }

    /// Takes records that are durable and valid, in order; those that are in the rows already change nothing. A gap
    /// leaves everything as it is: [`Projector::catch_up`] closes it.
    pub fn apply(&mut self, records: &[Arc<Record>]) -> Result<Position, ProjectError> {
        self.run(records.iter().map(|record| Ok(Arc::clone(record))))
    }

    /// Brings the rows to the disk. Before a snapshot of the state at their position gets its name: a start with rows
    /// that are behind the newest snapshot makes all of them anew.
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
        let batch = self.tuning.batch;
        let Projector { fold, counts, store, rows, written, watch, epoch, .. } = self;
        thread::scope(|scope| {
            let mut writer = Writer { scope, store, epoch, watch, rows, written, writing: None };
            let mut touched = Touched::default();
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
            // What was folded before an error is as good as ever.
            writer.end(fold, counts, &touched)?;
            match stopped {
                Some(error) => Err(error),
                None => Ok(*writer.rows),
            }
        })
    }

    /// The state first, decoded on another thread than it is folded, then its rows: each is written once, however
    /// often it has changed.
    fn fill(
        &mut self,
        records: impl IntoIterator<Item = Result<Arc<Record>, ReadError>> + Send,
    ) -> Result<Position, ProjectError> {
        let fold = &mut self.fold;
        let folded = thread::scope(|scope| {
            let (decoded, ahead) = sync_channel(AHEAD);
            scope.spawn(move || {
                for record in records {
                    if decoded.send(record.map(Decoded::new)).is_err() {
                        break;
                    }
                }
            });
            ahead.into_iter().try_for_each(|decoded| {
                fold.take_decoded(decoded?)?;
                Ok(())
            })
        });
        // What was folded before an error is as good as ever.
        if let Some(state) = self.fold.state() {
            self.counts = Counts::of(&state.fleet);
            self.written += fill(&self.store, state, &self.counts)?;
            self.is_filled = true;
            let applied = applied(&self.fold);
            self.rows = applied.position;
            self.watch.tell(applied);
        }
        folded.map(|()| self.rows)
    }

    #[cfg(test)]
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    #[cfg(test)]
    pub(crate) fn batches(&self) -> u64 {
        self.epoch.batches()
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl Drop for Projector {
    /// Nobody waits for what will not come.
    fn drop(&mut self) {
        self.watch.stop("it has ended");
    }
}

/// Writes batches, the next one when the last is applied.
struct Writer<'scope, 'all> {
    scope: &'scope thread::Scope<'scope, 'all>,
    store: &'scope Store,
    epoch: &'scope Epoch,
    watch: &'scope Watch,
    rows: &'scope mut Position,
    written: &'scope mut u64,
    writing: Option<thread::ScopedJoinHandle<'scope, Result<Applied, StoreError>>>,
}

impl Writer<'_, '_> {
    /// Begins to write the rows that were touched, on a thread of its own, behind those being written.
    fn begin(&mut self, fold: &Fold, counts: &mut Counts, touched: &Touched) -> Result<(), StoreError> {
        self.wait()?;
        if let Some((changes, at)) = self.next(fold, counts, touched)? {
            let (store, epoch) = (self.store, self.epoch);
            self.writing = Some(self.scope.spawn(move || write(store, epoch, changes, &at)));
        }
        Ok(())
    }

    /// Writes the last rows, here.
    fn end(&mut self, fold: &Fold, counts: &mut Counts, touched: &Touched) -> Result<(), StoreError> {
        self.wait()?;
        if let Some((changes, at)) = self.next(fold, counts, touched)? {
            let applied = write(self.store, self.epoch, changes, &at)?;
            self.tell(applied);
        }
        Ok(())
    }

    /// The rows that were touched, each once, and the cursor. The rows before them are written: they are read here.
    fn next(
        &mut self,
        fold: &Fold,
        counts: &mut Counts,
        touched: &Touched,
    ) -> Result<Option<(Changes, Cursor)>, StoreError> {
        let Some(state) = fold.state().filter(|state| state.at.position > *self.rows) else {
            return Ok(None);
        };
        let changes = changes(&state.fleet, counts, touched, self.store)?;
        *self.written += changes.0.len() as u64;
        Ok(Some((changes, state.at)))
    }

    fn wait(&mut self) -> Result<(), StoreError> {
        if let Some(writing) = self.writing.take() {
            let applied = writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            self.tell(applied);
        }
        Ok(())
    }

    fn tell(&mut self, applied: Applied) {
        *self.rows = applied.position;
        self.watch.tell(applied);
    }
}

/// One batch, whole.
fn write(store: &Store, epoch: &Epoch, changes: Changes, at: &Cursor) -> Result<Applied, StoreError> {
    epoch.batch(|| store.apply(changes, Some(at)))?;
    Ok(Applied { position: at.position, time: at.time, stopped: None })
}

fn applied(fold: &Fold) -> Applied {
    fold.state().map_or_else(Applied::default, |state| Applied {
        position: state.at.position,
        time: state.at.time,
        stopped: None,
    })
}

/// The store, and where its rows stand if they can be used.
fn usable(
    found: FoundRows,
    source: &dyn Source,
    state: Option<&Folding>,
) -> Result<(Store, Option<Cursor>), ProjectError> {
    let tuning = found.tuning();
    let store = Store::settle(found)?;
    let Some(rows) = store.cursor()? else { return Ok((store, None)) };
    if !has_record_of(source, &rows)? {
        return Ok((
            store.renew("the journal does not have the record behind which they stand", tuning)?,
            None,
        ));
    }
    if state.is_some_and(|state| state.at.position > rows.position) {
        return Ok((store.renew("they stand before the newest snapshot", tuning)?, None));
    }
    Ok((store, Some(rows)))
}

/// Folds the state alone, up to a position that the journal has.
fn follow(fold: &mut Fold, source: &dyn Source, to: Position) -> Result<(), ProjectError> {
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
