//! Files of an executor store: lock, id, number of executor epochs, and the highest head that an executor
//! over the store has seen.
//!
//! An object that is missing from a store is gone only if it was started there. Each store therefore has an
//! id, drawn once, that the decider compares. The id moves with the directory, for every runtime: whatever a
//! simulated node ran has ended with the process that had the lock.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use chancery_events::id::{EpochNonce, ExecutorStoreId};
use chancery_events::protocol::ExecutorEpoch;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use crate::directory::{self, CopyPolicy, DirectoryId};
use crate::run::EpochStore;
use crate::session::{ExecutorStop, HighestHead};
use crate::state_file::{self, FileAccess, LockAttempt, StateFile};

/// File of the highest head seen.
const HEAD: &str = "head.json";

/// Directory of one executor, locked until this value is dropped.
#[derive(Debug)]
pub struct LockedDirectory {
    head: Mutex<StateFile>,
    id: ExecutorStoreId,
    epoch: ExecutorEpoch,
    _lock: File,
}

/// Contents of `store.json`.
#[derive(Serialize, Deserialize)]
struct ExecutorStoreFile {
    id: ExecutorStoreId,
    epochs: u64,
    /// Directory in which the last executor epoch started.
    directory: DirectoryId,
}

impl LockedDirectory {
    /// Locks the directory, created if missing, starts an executor epoch in it, and returns the remembered
    /// head.
    pub(crate) fn open(
        root: &Path,
        copies: CopyPolicy,
    ) -> Result<(LockedDirectory, Option<HighestHead>), ExecutorStop> {
        let head = root.join(HEAD);
        state_file::make_directory(root)?;
        let LockAttempt::Acquired(lock) = state_file::lock(&root.join("lock"))? else {
            return Err(ExecutorStop::StoreTaken);
        };
        let seen = state_file::read(&head, FileAccess::Owner)?;
        let (id, epoch) = start_epoch(root, copies, seen.as_ref())?;
        let head = Mutex::new(StateFile::at(head));
        Ok((LockedDirectory { head, id, epoch, _lock: lock }, seen))
    }
}

impl EpochStore for LockedDirectory {
    fn id(&self) -> ExecutorStoreId {
        self.id
    }

    fn epoch(&self) -> ExecutorEpoch {
        self.epoch
    }

    async fn remember(self: Arc<Self>, seen: HighestHead) -> Result<(), ExecutorStop> {
        // The task keeps the lock until the head is written, even if the loop is dropped.
        let write = move || self.head.lock().unwrap_or_else(PoisonError::into_inner).write(&seen);
        Ok(spawn_blocking(write).await.expect("storing a head does not panic")?)
    }
}

/// Returns the head that the executor over a directory remembers. For other processes: nothing is changed.
/// The decider names a head once it is durable, so the journal has reached that head.
pub fn remembered(root: &Path) -> io::Result<Option<HighestHead>> {
    state_file::read(&root.join(HEAD), FileAccess::Observer)
}

/// Counts another executor epoch; it is on disk when this returns. A store that has seen a head has its id.
fn start_epoch(
    root: &Path,
    copies: CopyPolicy,
    seen: Option<&HighestHead>,
) -> Result<(ExecutorStoreId, ExecutorEpoch), ExecutorStop> {
    let (path, directory) = (root.join("store.json"), DirectoryId::of(root)?);
    let mut kept = match state_file::read::<ExecutorStoreFile>(&path, FileAccess::Owner)? {
        Some(kept) => {
            directory::check(root, Some(&kept.directory), &directory, copies)?;
            ExecutorStoreFile { directory, ..kept }
        }
        None if seen.is_some() => {
            let shown = path.display();
            let error = format!(
                "cannot read {shown}: not found, though {HEAD} exists\nhint: an earlier build has used the directory, or \
                 the file was removed; start with an empty directory only if nothing in this one runs"
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, error).into());
        }
        None => ExecutorStoreFile { id: ExecutorStoreId::from_random(random()?), epochs: 0, directory },
    };
    kept.epochs += 1;
    state_file::write(&path, &kept)?;
    Ok((kept.id, ExecutorEpoch { number: kept.epochs, instance: EpochNonce::from_random(random()?) }))
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
    use chancery_events::id::{Lineage, Position, Term};
    use chancery_events::protocol::JournalHead;
    use chancery_events::record::RecordHash;

    use super::*;

    /// Opens a store once no other process has its lock. A child that another test starts shares the
    /// descriptors of this process until it executes its program.
    fn try_open(
        root: &Path,
        copies: CopyPolicy,
    ) -> Result<(LockedDirectory, Option<HighestHead>), ExecutorStop> {
        loop {
            match LockedDirectory::open(root, copies) {
                Err(ExecutorStop::StoreTaken) => std::thread::yield_now(),
                opened => return opened,
            }
        }
    }

    fn open(root: &Path) -> (ExecutorStoreId, ExecutorEpoch) {
        let (store, _) = try_open(root, CopyPolicy::Refuse).expect("an executor store");
        (store.id(), store.epoch())
    }

    #[test]
    fn a_store_keeps_its_id_and_counts_its_epochs_and_another_directory_is_another_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let (first, second) = (open(dir.path()), open(dir.path()));
        assert_eq!(first.0, second.0);
        assert_eq!((first.1.number, second.1.number), (1, 2));
        assert_ne!(first.1.instance, second.1.instance);
        assert_ne!(open(&dir.path().join("other")).0, first.0);
    }

    #[test]
    fn a_store_that_was_copied_is_refused_and_starts_no_epoch_unless_it_is_adopted() {
        let parent = tempfile::tempdir().expect("a directory");
        let (original, copy) = (parent.path().join("original"), parent.path().join("copy"));
        let first = open(&original);
        let copied = std::process::Command::new("cp").arg("-a").args([&original, &copy]).status();
        assert!(copied.expect("cp").success());
        for _ in 0..2 {
            assert!(matches!(try_open(&copy, CopyPolicy::Refuse), Err(ExecutorStop::Copied(_))));
        }
        let (adopted, _) = try_open(&copy, CopyPolicy::Adopt).expect("adopted");
        assert_eq!((adopted.id(), adopted.epoch().number), (first.0, 2));
        drop(adopted);
        assert_eq!(open(&copy).1.number, 3, "it is the one that was adopted");
        assert_eq!(open(&original).1.number, 2, "the original is as it was");
    }

    #[test]
    fn a_store_that_cannot_be_read_does_not_become_another_one() {
        let dir = tempfile::tempdir().expect("a directory");
        open(dir.path());
        for copy in ["store.json", "store.copy"] {
            std::fs::write(dir.path().join(copy), "{\"id\":\"no").expect("written");
        }
        assert!(matches!(try_open(dir.path(), CopyPolicy::Refuse), Err(ExecutorStop::Storage(_))));
    }

    #[test]
    fn a_store_whose_file_has_other_keys_or_is_missing_is_refused_by_the_name_of_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let refused = || match try_open(dir.path(), CopyPolicy::Refuse) {
            Err(ExecutorStop::Storage(error)) => error.to_string(),
            other => panic!("{other:?}"),
        };
        let path = dir.path().join("store.json");
        let other = serde_json::json!({ "scope": ExecutorStoreId::from_random(1), "lives": 1 });
        state_file::write(&path, &other).expect("written");
        let found = refused();
        assert!(found.starts_with(&format!("cannot read {}: missing field `id`", path.display())), "{found}");
        let head = JournalHead { position: Position::FIRST, hash: RecordHash::ZERO, term: Term::FIRST };
        let seen = HighestHead { lineage: Lineage::from_random(1), head };
        state_file::write(&dir.path().join(HEAD), &seen).expect("written");
        state_file::remove(&path).expect("removed");
        let found = refused();
        let hint = "hint: an earlier build has used the directory, or the file was removed; start with an empty \
                    directory only if nothing in this one runs";
        let wanted = format!("cannot read {}: not found, though head.json exists\n{hint}", path.display());
        assert_eq!(found, wanted);
    }
}
