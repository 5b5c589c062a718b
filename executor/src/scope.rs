//! Files of an executor store: lock, id, number of executor epochs, and the highest head that an executor
//! over the store has seen.
//!
//! An object that is missing from a store is gone only if it was started there. Each store therefore has an
//! id, drawn once, that the decider compares. The id moves with the directory, for every runtime: whatever a
//! simulated node ran has ended with the process that had the lock.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use chancery_events::id::{EpochNonce, ExecutorStoreId};
use chancery_events::protocol::ExecutorEpoch;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use crate::directory::{self, CopyPolicy, DirectoryId, IsCopy};
use crate::durable::{self, FileAccess, LockAttempt, StateFile};
use crate::session::HighestHead;

/// File of the highest head seen.
const HEAD: &str = "head.json";

/// Directory of one executor, locked until this value is dropped.
#[derive(Debug)]
pub(crate) struct LockedDirectory {
    head: Mutex<StateFile>,
    id: ExecutorStoreId,
    life: ExecutorEpoch,
    _lock: File,
}

/// Contents of `scope.json`.
#[derive(Serialize, Deserialize)]
struct ExecutorStoreFile {
    id: ExecutorStoreId,
    lives: u64,
    /// Directory in which the last executor epoch started.
    directory: DirectoryId,
}

/// Reason why an executor store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecutorStoreError {
    /// Store that another executor has locked.
    #[error("cannot open executor store: locked by another executor")]
    Taken,
    /// Store that is a copy.
    #[error(transparent)]
    Copied(#[from] IsCopy),
    /// Disk failure.
    #[error("cannot access executor store")]
    Storage(#[from] io::Error),
}

impl LockedDirectory {
    /// Locks the directory, created if missing, starts an executor epoch in it, and returns the remembered
    /// head.
    pub(crate) fn open(
        root: &Path,
        copies: CopyPolicy,
    ) -> Result<(LockedDirectory, Option<HighestHead>), ExecutorStoreError> {
        let head = root.join(HEAD);
        durable::make_folder(root).map_err(ExecutorStoreError::Storage)?;
        match durable::lock(&root.join("lock")).map_err(ExecutorStoreError::Storage)? {
            LockAttempt::HeldElsewhere => Err(ExecutorStoreError::Taken),
            LockAttempt::Acquired(lock) => {
                let seen = durable::read(&head, FileAccess::Owner).map_err(ExecutorStoreError::Storage)?;
                let (id, life) = begin_life(root, copies)?;
                let head = Mutex::new(StateFile::at(head));
                Ok((LockedDirectory { head, id, life, _lock: lock }, seen))
            }
        }
    }

    pub(crate) fn id(&self) -> ExecutorStoreId {
        self.id
    }

    pub(crate) fn life(&self) -> ExecutorEpoch {
        self.life
    }

    /// Stores a head; it is on disk when this returns.
    pub(crate) fn remember(&self, seen: &HighestHead) -> io::Result<()> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner).write(seen)
    }
}

/// Returns the head that the executor over a directory remembers. For other processes: nothing is changed.
/// The decider names a head once it is durable, so the journal has reached that head.
pub fn remembered(root: &Path) -> io::Result<Option<HighestHead>> {
    durable::read(&root.join(HEAD), FileAccess::Observer)
}

/// Counts another executor epoch; it is on disk when this returns.
fn begin_life(
    root: &Path,
    copies: CopyPolicy,
) -> Result<(ExecutorStoreId, ExecutorEpoch), ExecutorStoreError> {
    let (path, directory) = (root.join("scope.json"), DirectoryId::of(root)?);
    let mut kept = match durable::read::<ExecutorStoreFile>(&path, FileAccess::Owner)? {
        Some(kept) => {
            directory::check(root, Some(&kept.directory), &directory, copies)?;
            ExecutorStoreFile { directory, ..kept }
        }
        None => ExecutorStoreFile { id: ExecutorStoreId::from_random(random()?), lives: 0, directory },
    };
    kept.lives += 1;
    durable::write(&path, &kept)?;
    Ok((kept.id, ExecutorEpoch { number: kept.lives, instance: EpochNonce::from_random(random()?) }))
}

pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if filled < bytes.len() {
        return Err(io::Error::other("the system returned too few random bytes"));
    }
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a store once no other process has its lock. A child that another test starts shares the
    /// descriptors of this process until it executes its program.
    fn try_open(
        root: &Path,
        copies: CopyPolicy,
    ) -> Result<(LockedDirectory, Option<HighestHead>), ExecutorStoreError> {
        loop {
            match LockedDirectory::open(root, copies) {
                Err(ExecutorStoreError::Taken) => std::thread::yield_now(),
                opened => return opened,
            }
        }
    }

    fn open(root: &Path) -> (ExecutorStoreId, ExecutorEpoch) {
        let (scope, _) = try_open(root, CopyPolicy::Refuse).expect("an executor store");
        (scope.id(), scope.life())
    }

    #[test]
    fn a_scope_keeps_its_id_and_counts_its_lives_and_another_folder_is_another_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, second) = (open(dir.path()), open(dir.path()));
        assert_eq!(first.0, second.0);
        assert_eq!((first.1.number, second.1.number), (1, 2));
        assert_ne!(first.1.instance, second.1.instance);
        assert_ne!(open(&dir.path().join("other")).0, first.0);
    }

    #[test]
    fn a_scope_that_was_copied_is_refused_and_begins_no_life_unless_it_is_adopted() {
        let home = tempfile::tempdir().expect("a directory");
        let (original, copy) = (home.path().join("original"), home.path().join("copy"));
        let first = open(&original);
        let copied = std::process::Command::new("cp").arg("-a").args([&original, &copy]).status();
        assert!(copied.expect("cp").success());
        for _ in 0..2 {
            assert!(matches!(try_open(&copy, CopyPolicy::Refuse), Err(ExecutorStoreError::Copied(_))));
        }
        let (adopted, _) = try_open(&copy, CopyPolicy::Adopt).expect("adopted");
        assert_eq!((adopted.id(), adopted.life().number), (first.0, 2));
        drop(adopted);
        assert_eq!(open(&copy).1.number, 3, "it is the one that was adopted");
        assert_eq!(open(&original).1.number, 2, "the original is as it was");
    }

    #[test]
    fn a_scope_that_cannot_be_read_does_not_become_another_one() {
        let dir = tempfile::tempdir().expect("a directory");
        open(dir.path());
        for copy in ["scope.json", "scope.copy"] {
            std::fs::write(dir.path().join(copy), "{\"id\":\"no").expect("written");
        }
        assert!(matches!(try_open(dir.path(), CopyPolicy::Refuse), Err(ExecutorStoreError::Storage(_))));
    }
}
