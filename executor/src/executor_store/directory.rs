//! Directory per object, with a pair of files for each record (`state_file`).

use std::io;
use std::path::{Path, PathBuf};

use chancery_events::id::ObjectId;

use super::{CommandRecord, ExecutorStore, ObjectStore, StoreRecord};
use crate::state_file::{self, FileAccess};

/// Directories of objects, each named by an object id.
#[derive(Clone, Debug)]
pub(crate) struct DirectoryStore {
    path: PathBuf,
}

impl DirectoryStore {
    pub(crate) fn at(path: PathBuf) -> DirectoryStore {
        DirectoryStore { path }
    }
}

impl ExecutorStore for DirectoryStore {
    type Object = PathBuf;

    fn object(&self, object: ObjectId) -> PathBuf {
        self.path.join(object.to_string())
    }

    fn list(&self) -> io::Result<Vec<(Option<ObjectId>, PathBuf)>> {
        let id = |path: &PathBuf| path.file_name()?.to_str()?.parse().ok();
        Ok(entries(&self.path)?.into_iter().map(|path| (id(&path), path)).collect())
    }
}

/// Directory of the records of one object.
pub(crate) trait ObjectDirectory {
    /// Returns the path of the directory, whether it exists or not.
    fn path(&self) -> &Path;

    /// Returns the path of the first copy of a record.
    fn record<R: StoreRecord>(&self) -> PathBuf {
        self.path().join(format!("{}.json", R::NAME))
    }
}

impl ObjectDirectory for PathBuf {
    fn path(&self) -> &Path {
        self
    }
}

impl<D: ObjectDirectory> ObjectStore for D {
    fn make(&self) -> io::Result<()> {
        state_file::make_directory(self.path())?;
        state_file::sync_directory(self.path())?;
        self.path().parent().map_or(Ok(()), state_file::sync_directory)
    }

    fn read<R: StoreRecord>(&self, by: FileAccess) -> io::Result<Option<R>> {
        state_file::read(&self.record::<R>(), by)
    }

    fn write<R: StoreRecord>(&self, record: &R) -> io::Result<()> {
        state_file::write(&self.record::<R>(), record)
    }

    fn remove<R: StoreRecord>(&self) -> io::Result<()> {
        state_file::remove(&self.record::<R>())
    }

    fn purge<C: CommandRecord>(&self) -> io::Result<()> {
        self.remove::<C>()?;
        state_file::if_found(std::fs::remove_dir(self.path()))?;
        state_file::sync_directory(self.path())
    }
}

/// Returns the entries of a directory; none if it does not exist.
pub(crate) fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(directory) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}
