//! Store of rows: one sled tree, which can be removed at any time.
//!
//! ```text
//! 0x00 "cursor"            position of the rows
//! 0x00 "layout"            names of the fields of each kind, for other builds ([`crate::layout`])
//! kind key                 a row: its kind's number, its key, its fields by position
//! index term … key         an index entry, without a value
//! ```
//! Invariants: the cursor is written in the same atomic batch as its rows, so that they are always those of
//! exactly one position. A store without a cursor of this build is removed, and that is logged. Batches are
//! written, but not synced: after a power failure, sled recovers to the end of a batch, perhaps an earlier one.
//!
//! sled writes its log on seven threads of the process and truncates its file on the same threads. With enough writes
//! in flight, all threads wait for a lock whose holder waits for the truncation, and nothing is written any more.
//! Therefore one store of the process writes at a time, and waits for all its writes ([`UnwrittenBatch`]).

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bincode::config::standard;
use chancery_events::record::RecordHash;
use chancery_journal::{ChainCursor, ExpectedType, private, set_aside};
use chancery_machine::fleet::IMAGE_FINGERPRINT;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sled::IVec;

use crate::changes::RowWrites;
use crate::kind::{ReadModelRow, RowKind, with_row};
use crate::layout::RowLayouts;

/// Number of changes to rows, entries and keys that their schemas do not show, above all to content.
const LAYOUT: u32 = 9;

const CURSOR: &[u8] = b"\0cursor";
const FIELDS: &[u8] = b"\0layout";

/// Number of attempts to open a store that seems to be in use.
const ATTEMPTS: u32 = 20;
/// Pause between attempts to open a store.
const PAUSE: Duration = Duration::from_millis(100);

/// Number of written keys for each flush of the collector. A flush frees up to 512 replaced pages.
const KEYS_PER_FLUSH: usize = 256;
/// Number of flushes after which the collector can free the pages that were replaced before the first one.
const FIRST_FLUSHES: usize = 3;

/// File of sled that contains all rows.
const FILE: &str = "db";

/// Lock that a store of this process has while its writes are in flight: all stores share sled's threads.
static WRITING: Mutex<()> = Mutex::new(());

/// Minimum free bytes of disk to open a store.
const ROOM: u64 = 4 << 20;

/// Memory and disk use of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreTuning {
    /// Bytes of rows that are kept in memory (default: 64 MiB).
    pub cache: u64,
    /// Approximate maximum of touched entities in a batch (default: 500): readers wait while one is applied.
    pub batch: usize,
}

impl Default for StoreTuning {
    fn default() -> StoreTuning {
        StoreTuning { cache: 64 << 20, batch: 500 }
    }
}

/// Failure of the store. The content can be built again: remove the store and open it again.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Rows that another process has open.
    #[error("cannot open rows in {}: locked by another process", .0.display())]
    InUse(PathBuf),
    /// Failure of the disk or of sled.
    #[error("cannot {operation} rows")]
    Sled {
        /// Operation that failed.
        operation: &'static str,
        /// Cause of the failure.
        source: sled::Error,
    },
    /// Directory that cannot be removed.
    #[error("cannot remove rows in {}", path.display())]
    Remove {
        /// Path of the directory.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// Content that differs from what was written.
    #[error(transparent)]
    Row(#[from] InvalidRow),
}

/// Row that cannot be read back.
#[derive(Debug, thiserror::Error)]
#[error("cannot decode row of kind {kind}")]
pub struct InvalidRow {
    pub(crate) kind: u8,
    pub(crate) source: bincode::error::DecodeError,
}

pub(crate) fn failed(operation: &'static str) -> impl FnOnce(sled::Error) -> StoreError {
    move |source| StoreError::Sled { operation, source }
}

pub(crate) fn encode<R: Serialize>(row: &R) -> Vec<u8> {
    bincode::serde::encode_to_vec(row, standard()).expect("rows can be encoded")
}

pub(crate) fn decode<R: DeserializeOwned>(key: &[u8], bytes: &[u8]) -> Result<R, InvalidRow> {
    let kind = key.first().copied().unwrap_or_default();
    let (row, _) =
        bincode::serde::decode_from_slice(bytes, standard()).map_err(|source| InvalidRow { kind, source })?;
    Ok(row)
}

/// Stored cursor: the shape of the rows, and the last record in them.
type StoredCursor = (RecordHash, ChainCursor);

/// Returns a hash of the shape of the stored rows, and of the state that they are built from. A store of
/// another shape is not read.
pub(crate) fn shape() -> RecordHash {
    fn schema<R: ReadModelRow>() -> String {
        serde_json::to_string(&schemars::schema_for!(R)).expect("a schema is JSON")
    }
    let mut text = format!("{LAYOUT} {} {IMAGE_FINGERPRINT}", env!("CARGO_PKG_VERSION"));
    for kind in RowKind::ALL {
        text.push_str(&with_row!(kind, R => schema::<R>()));
    }
    RecordHash::of(text.as_bytes())
}

impl StoreError {
    /// Whether the disk is full.
    fn is_no_space(&self) -> bool {
        let full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        matches!(self, StoreError::Sled { source: sled::Error::Io(error), .. } if full(error))
    }
}

/// Checks for free disk space: sled waits permanently when it finds none for its first pages.
fn check_space(path: &Path) -> Result<(), StoreError> {
    let failed = |error: rustix::io::Errno| failed("open")(io::Error::from(error).into());
    let there = path.ancestors().find(|there| there.exists()).unwrap_or(path);
    let disk = rustix::fs::statvfs(there).map_err(failed)?;
    if disk.f_bavail.saturating_mul(disk.f_frsize) < ROOM {
        Err(failed(rustix::io::Errno::NOSPC))
    } else {
        Ok(())
    }
}

/// Rows of a directory as they were found: open, with nothing removed yet.
#[derive(Debug)]
pub struct FoundRows {
    path: PathBuf,
    tuning: StoreTuning,
    opened: Result<RowStore, StoreError>,
}

impl FoundRows {
    /// Opens the rows in a directory. A path of that name that is not a directory is set aside.
    pub fn open(path: &Path, tuning: StoreTuning) -> Result<FoundRows, StoreError> {
        set_aside(path, ExpectedType::Directory)
            .map_err(|source| StoreError::Remove { path: path.to_owned(), source })?;
        let opened = match RowStore::open_patiently(path, tuning) {
            Err(StoreError::InUse(path)) => return Err(StoreError::InUse(path)),
            // New rows would need even more disk space.
            Err(error) if error.is_no_space() => return Err(error),
            opened => opened,
        };
        Ok(FoundRows { path: path.to_owned(), tuning, opened })
    }

    /// Returns the last record in the rows, up to which the journal was synced before. `None` if there are no
    /// rows that this build can read.
    pub fn cursor(&self) -> Option<ChainCursor> {
        let store = self.opened.as_ref().ok()?;
        let (shape, cursor) = store.stored_cursor().ok()??;
        (shape == store.shape).then_some(cursor)
    }

    /// Returns the rows as they were found, of whatever build.
    pub(crate) fn into_store(self) -> Result<RowStore, StoreError> {
        self.opened
    }
}

/// Rows that are open for writing.
#[derive(Debug)]
pub(crate) struct RowStore {
    db: sled::Db,
    tree: sled::Tree,
    path: PathBuf,
    pub(crate) tuning: StoreTuning,
    shape: RecordHash,
}

impl RowStore {
    /// Returns usable rows: rows that are unreadable, incomplete or of another build are removed.
    pub(crate) fn settle(found: FoundRows) -> Result<RowStore, StoreError> {
        let FoundRows { path, tuning, opened } = found;
        let store = match opened {
            Ok(store) => store,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(path = %path.display(), error, "cannot open rows, building them again");
                remove(&path)?;
                return RowStore::try_open(&path, tuning);
            }
        };
        match store.stored_cursor() {
            Ok(Some((shape, _))) if shape == store.shape => Ok(store),
            Ok(None) if store.tree.is_empty() => Ok(store),
            Ok(None) => store.renew("they are incomplete"),
            Ok(Some(_)) | Err(_) => store.renew("another build wrote them"),
        }
    }

    /// Retries, because sled's own threads release a store a moment after it was closed.
    fn open_patiently(path: &Path, tuning: StoreTuning) -> Result<RowStore, StoreError> {
        for _ in 1..ATTEMPTS {
            match RowStore::try_open(path, tuning) {
                Err(StoreError::InUse(_)) => thread::sleep(PAUSE),
                other => return other,
            }
        }
        RowStore::try_open(path, tuning)
    }

    fn try_open(path: &Path, tuning: StoreTuning) -> Result<RowStore, StoreError> {
        check_space(path)?;
        // sled asks for no modes: its files are as private as the directory.
        private::create_dir_all(path).map_err(|source| failed("open")(source.into()))?;
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(tuning.cache)
            .flush_every_ms(None)
            .mode(sled::Mode::HighThroughput);
        // sled panics on some kinds of damage.
        let db = catch_unwind(AssertUnwindSafe(|| config.open()))
            .map_err(|_| failed("open")(sled::Error::ReportableBug("sled panicked".into())))?;
        let db = db.map_err(|source| match &source {
            sled::Error::Io(error) if error.to_string().contains("could not acquire lock") => {
                StoreError::InUse(path.to_owned())
            }
            _ => failed("open")(source),
        })?;
        let tree = sled::Tree::clone(&db);
        Ok(RowStore { db, tree, path: path.to_owned(), tuning, shape: shape() })
    }

    /// Removes all content, and opens an empty store in its place. No reader must have the store open yet.
    pub(crate) fn renew(self, reason: &str) -> Result<RowStore, StoreError> {
        tracing::warn!(path = %self.path.display(), reason, "rows removed, building them again");
        let (path, tuning) = (self.path.clone(), self.tuning);
        drop(self);
        remove(&path)?;
        RowStore::try_open(&path, tuning)
    }

    fn stored_cursor(&self) -> Result<Option<StoredCursor>, StoreError> {
        let bytes = self.tree.get(CURSOR).map_err(failed("read"))?;
        Ok(bytes.map(|bytes| decode(CURSOR, &bytes)).transpose()?)
    }

    /// Returns the cursor of the rows; `None` before the first batch.
    pub(crate) fn cursor(&self) -> Result<Option<ChainCursor>, StoreError> {
        Ok(self.stored_cursor()?.map(|(_, cursor)| cursor))
    }

    /// Whether this build wrote the rows, or one whose rows have the same shape.
    pub(crate) fn is_current(&self) -> Result<bool, StoreError> {
        Ok(self.stored_cursor()?.is_some_and(|(shape, _)| shape == self.shape))
    }

    /// Applies a whole batch atomically. Readers see the batch from then on. Without `at`, no cursor is stored. Rows
    /// without a cursor are incomplete: a restart removes them and builds them again.
    pub(crate) fn apply(
        &self,
        changes: RowWrites,
        at: Option<&ChainCursor>,
    ) -> Result<UnwrittenBatch<'_>, StoreError> {
        let keys = changes.0.len();
        let mut batch = sled::Batch::default();
        for (key, value) in changes.0 {
            match value {
                Some(value) => batch.insert(key, value),
                None => batch.remove(key),
            }
        }
        if let Some(at) = at {
            batch.insert(CURSOR, encode(&(self.shape, *at)));
        }
        let writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        self.tree.apply_batch(batch).map_err(failed("write"))?;
        Ok(UnwrittenBatch { store: self, keys, _writing: writing })
    }

    /// Waits until sled has written everything.
    fn written(&self) -> Result<(), StoreError> {
        self.db.flush().map(|_| ()).map_err(failed("write"))
    }

    /// Ends the first build of all rows: stores their layout and their cursor in one batch.
    pub(crate) fn complete(&self, at: &ChainCursor) -> Result<(), StoreError> {
        let layouts = serde_json::to_vec(&RowLayouts::of_this_build()).expect("layouts are JSON");
        self.apply(RowWrites(vec![(FIELDS.to_vec(), Some(layouts))]), Some(at))?.wait()
    }

    /// Returns the layouts of the build that wrote the rows; `None` if it stored none, or stored them in another form.
    pub(crate) fn layouts(&self) -> Result<Option<RowLayouts>, StoreError> {
        let bytes = self.tree.get(FIELDS).map_err(failed("read"))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Returns the bytes under a key.
    pub(crate) fn row(&self, key: &[u8]) -> Result<Option<IVec>, StoreError> {
        self.tree.get(key).map_err(failed("read"))
    }

    /// Returns the tree, for readers.
    pub(crate) fn tree(&self) -> &sled::Tree {
        &self.tree
    }

    /// Syncs everything to disk, which sled leaves to the kernel.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        self.written()?;
        let synced = fs::File::open(self.path.join(FILE)).and_then(|file| file.sync_all());
        synced.map_err(|source| failed("flush")(source.into()))
    }
}

/// Batch that is applied, and whose writes are in flight. No store of the process applies another batch meanwhile.
#[must_use = "the writes must end before another batch is applied"]
pub(crate) struct UnwrittenBatch<'a> {
    store: &'a RowStore,
    /// Number of rows and index entries that the batch wrote.
    keys: usize,
    _writing: MutexGuard<'static, ()>,
}

impl UnwrittenBatch<'_> {
    /// Waits until sled has written the batch, and frees the pages that the batch replaced.
    pub(crate) fn wait(self) -> Result<(), StoreError> {
        self.store.written()?;
        let keys = self.keys;
        // Other stores of the process can write meanwhile.
        drop(self);
        free_replaced_pages(keys);
        Ok(())
    }
}

/// Frees the memory of pages that sled has replaced. Each written key replaces its whole page, and sled leaves the old
/// one to the collector of `crossbeam_epoch`, which works only at every 128th access of one thread: a burst of writes
/// that nothing reads would keep gigabytes.
fn free_replaced_pages(keys: usize) {
    for _ in 0..FIRST_FLUSHES + keys / KEYS_PER_FLUSH {
        crossbeam_epoch::pin().flush();
    }
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(StoreError::Remove { path: path.to_owned(), source }),
    }
}
