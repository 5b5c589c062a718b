//! The store of rows: one sled tree, which can be dropped at any time.
//!
//! ```text
//! 0x00 "cursor"            where the rows stand
//! kind key                 a row: its kind's number, its key, its fields by position
//! index term … key         an index entry, without a value
//! ```
//! What must stay true: the cursor is written in the same atomic batch as the rows that bring it there, so that the
//! rows are always those of exactly one position; a store without a cursor of this build's is worth nothing, and is
//! removed, loudly. Nothing is synced for each batch: after a crash sled finds a whole batch, perhaps an earlier one.

use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use bincode::config::standard;
use chancery_events::record::Hash;
use chancery_journal::{Cursor, Wanted, private, set_aside};
use chancery_machine::fleet::IMAGE_FINGERPRINT;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sled::IVec;

use crate::changes::{Changes, Rows};
use crate::kind::{Row, RowKind, with_row};

/// Counts the changes to rows, entries and keys that their schemas do not show: what a row says, above all.
const LAYOUT: u32 = 6;

const CURSOR: &[u8] = b"\0cursor";

/// A store that seems to be in use is tried so many times,
const ATTEMPTS: u32 = 20;
/// so far apart.
const PAUSE: Duration = Duration::from_millis(100);

/// Bytes of disk without which no store is opened.
const ROOM: u64 = 4 << 20;

/// How the store uses memory and disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Bytes of rows that are kept in memory.
    pub cache: u64,
    /// How often what was written goes to the disk, in milliseconds.
    pub flush: u64,
    /// A batch has about so many touched entities at most: readers wait while one is applied.
    pub batch: usize,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { cache: 64 << 20, flush: 500, batch: 500 }
    }
}

/// The store failed. What it held can be had again: drop it and open it anew.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error("open the rows in {}: another process has them open", .0.display())]
    InUse(PathBuf),
    /// The disk or sled failed.
    #[error("{operation} rows")]
    Sled {
        /// What was being done.
        operation: &'static str,
        /// What went wrong.
        source: sled::Error,
    },
    /// The folder cannot be removed.
    #[error("remove the rows in {}", path.display())]
    Remove {
        /// The folder.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// What was read is not what was written.
    #[error(transparent)]
    Row(#[from] BadRow),
}

/// A row that cannot be read back.
#[derive(Debug, thiserror::Error)]
#[error("read back a row of kind {kind}")]
pub struct BadRow {
    kind: u8,
    source: bincode::error::DecodeError,
}

fn failed(operation: &'static str) -> impl FnOnce(sled::Error) -> StoreError {
    move |source| StoreError::Sled { operation, source }
}

pub(crate) fn encode<R: Serialize>(row: &R) -> Vec<u8> {
    bincode::serde::encode_to_vec(row, standard()).expect("rows have a positional form")
}

pub(crate) fn decode<R: DeserializeOwned>(key: &[u8], bytes: &[u8]) -> Result<R, BadRow> {
    let kind = key.first().copied().unwrap_or_default();
    let (row, _) =
        bincode::serde::decode_from_slice(bytes, standard()).map_err(|source| BadRow { kind, source })?;
    Ok(row)
}

/// The stored cursor: the shape of the rows, and the record behind which they are.
type StoredCursor = (Hash, Cursor);

/// Names the shape of everything that the store holds and what it was made from: another one is not read.
pub(crate) fn shape() -> Hash {
    fn schema<R: Row>() -> String {
        serde_json::to_string(&schemars::schema_for!(R)).expect("a schema is JSON")
    }
    let mut text = format!("{LAYOUT} {} {IMAGE_FINGERPRINT}", env!("CARGO_PKG_VERSION"));
    for kind in RowKind::ALL {
        text.push_str(&with_row!(kind, R => schema::<R>()));
    }
    Hash::of(text.as_bytes())
}

impl StoreError {
    /// Whether the disk is full.
    fn is_no_space(&self) -> bool {
        let full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
        matches!(self, StoreError::Sled { source: sled::Error::Io(error), .. } if full(error))
    }
}

/// sled waits for ever when it finds no room for its first pages, so that is asked before.
fn has_room(path: &Path) -> Result<(), StoreError> {
    let failed = |error: rustix::io::Errno| StoreError::Sled {
        operation: "open",
        source: io::Error::from(error).into(),
    };
    let there = path.ancestors().find(|there| there.exists()).unwrap_or(path);
    let disk = rustix::fs::statvfs(there).map_err(failed)?;
    if disk.f_bavail.saturating_mul(disk.f_frsize) < ROOM {
        Err(failed(rustix::io::Errno::NOSPC))
    } else {
        Ok(())
    }
}

/// The rows in a directory as they were found: open, and nothing of them removed yet.
#[derive(Debug)]
pub struct FoundRows {
    path: PathBuf,
    tuning: Tuning,
    opened: Result<Store, StoreError>,
}

impl FoundRows {
    /// Opens the rows in a directory. Something else of the name is set aside.
    pub fn open(path: &Path, tuning: Tuning) -> Result<FoundRows, StoreError> {
        set_aside(path, Wanted::Directory)
            .map_err(|source| StoreError::Remove { path: path.to_owned(), source })?;
        let opened = match Store::open_patiently(path, tuning) {
            Err(StoreError::InUse(path)) => return Err(StoreError::InUse(path)),
            // Rows made anew would need more of what there is none of.
            Err(error) if error.is_no_space() => return Err(error),
            opened => opened,
        };
        Ok(FoundRows { path: path.to_owned(), tuning, opened })
    }

    /// The record behind which the rows stand: the journal was synced up to it before they came there. `None` if there
    /// are none that this build can read.
    pub fn cursor(&self) -> Option<Cursor> {
        let store = self.opened.as_ref().ok()?;
        let (shape, cursor) = store.stored_cursor().ok()??;
        (shape == store.shape).then_some(cursor)
    }

    pub(crate) const fn tuning(&self) -> Tuning {
        self.tuning
    }
}

/// The rows, open for writing.
#[derive(Debug)]
pub(crate) struct Store {
    db: sled::Db,
    tree: sled::Tree,
    path: PathBuf,
    shape: Hash,
}

impl Store {
    /// The rows as they can be used: what cannot be read, or was made by a build with other rows, is removed.
    pub(crate) fn settle(found: FoundRows) -> Result<Store, StoreError> {
        let FoundRows { path, tuning, opened } = found;
        let store = match opened {
            Ok(store) => store,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(path = %path.display(), error, "the rows cannot be opened; they are made anew");
                remove(&path)?;
                return Store::try_open(&path, tuning);
            }
        };
        match store.stored_cursor() {
            Ok(Some((shape, _))) if shape == store.shape => Ok(store),
            Ok(None) if store.tree.is_empty() => Ok(store),
            Ok(None) => store.renew("they were not finished", tuning),
            Ok(Some(_)) | Err(_) => store.renew("another build made them", tuning),
        }
    }

    /// sled's own threads let go of a store a moment after it was closed.
    fn open_patiently(path: &Path, tuning: Tuning) -> Result<Store, StoreError> {
        for _ in 1..ATTEMPTS {
            match Store::try_open(path, tuning) {
                Err(StoreError::InUse(_)) => thread::sleep(PAUSE),
                other => return other,
            }
        }
        Store::try_open(path, tuning)
    }

    fn try_open(path: &Path, tuning: Tuning) -> Result<Store, StoreError> {
        has_room(path)?;
        // sled asks for no modes: what it makes is as private as the directory.
        private::create_dir_all(path)
            .map_err(|source| StoreError::Sled { operation: "open", source: source.into() })?;
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(tuning.cache)
            .flush_every_ms(Some(tuning.flush))
            .mode(sled::Mode::HighThroughput);
        // sled panics on some kinds of damage.
        let db = catch_unwind(AssertUnwindSafe(|| config.open())).map_err(|_| StoreError::Sled {
            operation: "open",
            source: sled::Error::ReportableBug("it panicked".into()),
        })?;
        let db = db.map_err(|source| match &source {
            sled::Error::Io(error) if error.to_string().contains("could not acquire lock") => {
                StoreError::InUse(path.to_owned())
            }
            _ => StoreError::Sled { operation: "open", source },
        })?;
        let tree = sled::Tree::clone(&db);
        Ok(Store { db, tree, path: path.to_owned(), shape: shape() })
    }

    /// Removes everything, and opens an empty store in its place. No reader may have it open yet.
    pub(crate) fn renew(self, reason: &str, tuning: Tuning) -> Result<Store, StoreError> {
        tracing::warn!(path = %self.path.display(), reason, "the rows are dropped and made anew");
        let path = self.path.clone();
        drop(self);
        remove(&path)?;
        Store::try_open(&path, tuning)
    }

    fn stored_cursor(&self) -> Result<Option<StoredCursor>, StoreError> {
        let bytes = self.tree.get(CURSOR).map_err(failed("read"))?;
        Ok(bytes.map(|bytes| decode(CURSOR, &bytes)).transpose()?)
    }

    /// Where the rows stand; `None` before the first batch.
    pub(crate) fn cursor(&self) -> Result<Option<Cursor>, StoreError> {
        Ok(self.stored_cursor()?.map(|(_, cursor)| cursor))
    }

    /// Applies a batch whole. Without a cursor the rows are unfinished, and will not be used after a crash.
    pub(crate) fn apply(&self, changes: Changes, at: Option<&Cursor>) -> Result<(), StoreError> {
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
        self.tree.apply_batch(batch).map_err(failed("write"))
    }

    /// For readers.
    pub(crate) fn tree(&self) -> &sled::Tree {
        &self.tree
    }

    /// Brings everything to the disk.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        self.db.flush().map(|_| ()).map_err(failed("flush"))
    }
}

impl Rows for Store {
    type Error = StoreError;

    fn row(&self, key: &[u8]) -> Result<Option<IVec>, StoreError> {
        self.tree.get(key).map_err(failed("read"))
    }
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(StoreError::Remove { path: path.to_owned(), source }),
    }
}
