//! Files that are whole or absent after a crash, and locks.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes `value` as JSON in the place of whatever stands there; it is on disk when this returns.
///
/// One writer a path: the file beside it has a fixed name, so that crashes leave at most one.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_data()?;
    std::fs::rename(&beside, path)?;
    sync_folder(path)
}

/// Reads what [`write()`] wrote; `None` if nothing stands there.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a file for good; nothing there is fine.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => sync_folder(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes a folder and its parents, for us alone.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes the names in the folder that holds `path` durable.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Whether a lock was got.
pub(crate) enum Lock {
    /// It is ours until the file is dropped, or its last duplicate is closed.
    Ours(File),
    /// Someone else holds it.
    Theirs,
}

/// Tries to lock the file at `path`, which is made if it is missing.
pub(crate) fn lock(path: &Path) -> io::Result<Lock> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    lock_opened(file, path)
}

/// Tries to lock the file at `path`, which must be there.
pub(crate) fn lock_existing(path: &Path) -> io::Result<Lock> {
    lock_opened(OpenOptions::new().write(true).open(path)?, path)
}

fn lock_opened(file: File, path: &Path) -> io::Result<Lock> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(Lock::Theirs),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // A lock on a file that was removed meanwhile keeps nobody out.
    let (held, named) = (file.metadata()?, std::fs::metadata(path)?);
    if (held.dev(), held.ino()) == (named.dev(), named.ino()) {
        Ok(Lock::Ours(file))
    } else {
        Ok(Lock::Theirs)
    }
}
