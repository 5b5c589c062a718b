//! Executor store: durable record of commands, outcomes and tombstones, whatever the executor drives.
//!
//! | record | holds | written |
//! |---|---|---|
//! | command | highest accepted target, and its spec | before its work starts |
//! | outcome | what was started, and how it ended | as that happens |
//! | tombstone | revision at or below which nothing will be carried out | once nothing of the object exists, before that is reported |
//!
//! [`crate::reconcile::step`] decides what a target requires, and [`crate::reconcile::accepted`] which spec is recorded
//! with it. The store decides only that a command never replaces a higher one. An executor that crashed
//! between a record and the work finds a target that was not started, and the same command again carries it
//! out.
//!
//! A runtime has types of its own for command and outcome ([`StoreRecord`]): a volume has one record for all
//! three. Records are stored in a directory per object ([`ObjectDirectory`]) or in memory ([`MemoryStore`]).
//! Another backend implements [`ObjectStore`] and [`ExecutorStore`]. Calls may block, as on a slow disk: a
//! backend behind a network is called on threads of its own. Module `locked_directory` counts the executor epochs.

use std::io;

use chancery_events::id::ObjectId;
use chancery_events::protocol::ObjectSpec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::reconcile::ObjectTarget;
use crate::state_file::FileAccess;

mod directory;
mod memory;

pub(crate) use directory::{DirectoryStore, ObjectDirectory, entries};
pub(crate) use memory::MemoryStore;

pub(crate) trait StoreRecord: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Name of the record, unique among those of an object.
    const NAME: &'static str;
}

/// Record that makes an object known: the highest accepted target.
pub(crate) trait CommandRecord: StoreRecord {
    fn object(&self) -> ObjectId;
    fn order(&self) -> ObjectTarget;
}

/// Command of an object, where nothing else is recorded with it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct AcceptedCommand {
    pub(crate) object: ObjectId,
    pub(crate) order: ObjectTarget,
    /// Spec of the object; absent if the object was removed unseen.
    pub(crate) spec: Option<ObjectSpec>,
}

impl StoreRecord for AcceptedCommand {
    const NAME: &'static str = "command";
}

impl CommandRecord for AcceptedCommand {
    fn object(&self) -> ObjectId {
        self.object
    }

    fn order(&self) -> ObjectTarget {
        self.order
    }
}

/// Promise that nothing at or below a revision will be carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TombstoneFile {
    pub(crate) revision: u32,
}

impl StoreRecord for TombstoneFile {
    const NAME: &'static str = "tombstone";
}

impl TombstoneFile {
    /// Whether the tombstone rules out the target.
    pub(crate) fn covers(self, order: &ObjectTarget) -> bool {
        self.revision >= order.revision
    }
}

/// Owner of the records stored at the place of an object.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum VolumeLookup<C> {
    /// No records stored.
    Nothing,
    /// Records of the object.
    Ours(C),
    /// Records of another owner, with the reason; they are left as they are.
    Foreign(String),
}

/// Records of one object. Each has one writer at a time.
pub(crate) trait ObjectStore {
    /// Creates the container of the records, durably, before the first is written.
    fn make(&self) -> io::Result<()>;

    /// Reads a record; `None` if it was never written, or was removed.
    fn read<R: StoreRecord>(&self, by: FileAccess) -> io::Result<Option<R>>;

    /// Replaces a record. It is durable when this returns; a crash leaves the old or the new one whole.
    fn write<R: StoreRecord>(&self, record: &R) -> io::Result<()>;

    /// Removes a record durably; a missing one is no error.
    fn remove<R: StoreRecord>(&self) -> io::Result<()>;

    /// Removes the record of the command, and so the object. Other records must have been removed before.
    fn purge<C: CommandRecord>(&self) -> io::Result<()>;

    /// Records a command, which counts from now on; `last` is the target that counted before.
    fn accept<C: CommandRecord>(&self, last: Option<&ObjectTarget>, command: &C) -> io::Result<()> {
        if last.is_some_and(|last| command.order().rank() < last.rank()) {
            return Err(io::Error::other("cannot record command: a higher one was accepted"));
        }
        self.write(command)
    }

    /// Records that nothing at or below the revision will be carried out.
    fn bury(&self, revision: u32) -> io::Result<TombstoneFile> {
        let tombstone = TombstoneFile { revision };
        self.write(&tombstone)?;
        Ok(tombstone)
    }

    /// Determines the owner of the records, and changes nothing.
    fn look<C: CommandRecord>(&self, object: ObjectId) -> io::Result<VolumeLookup<C>> {
        match self.read::<C>(FileAccess::Observer) {
            Ok(Some(command)) if command.object() == object => Ok(VolumeLookup::Ours(command)),
            Ok(Some(command)) => {
                Ok(VolumeLookup::Foreign(format!("has the record of another object, {}", command.object())))
            }
            Ok(None) => Ok(VolumeLookup::Nothing),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
            {
                Ok(VolumeLookup::Foreign(format!("has an unreadable record: {error}")))
            }
            Err(error) => Err(error),
        }
    }
}

/// Records of many objects.
pub(crate) trait ExecutorStore {
    type Object: ObjectStore;

    /// Returns the records of an object, whether there are any or not.
    fn object(&self, object: ObjectId) -> Self::Object;

    /// Lists all stored records, also those of other owners. The id is absent where a name is no object's id.
    fn list(&self) -> io::Result<Vec<(Option<ObjectId>, Self::Object)>>;
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chancery_events::id::{IncarnationId, Lineage, Position};
    use chancery_events::protocol::CommandStatus;

    use super::*;
    use crate::reconcile::TargetGoal;

    fn command(position: u64, revision: u32, attempt: u32) -> AcceptedCommand {
        let (aim, command_status, grace) = (TargetGoal::Down, CommandStatus::Pending, Duration::from_secs(1));
        let object = IncarnationId::issue(Lineage::from_random(42), Position::new(position)).into();
        AcceptedCommand {
            object,
            order: ObjectTarget { revision, attempt, aim, is_reboot: false, status: command_status, grace },
            spec: None,
        }
    }

    /// Checks what holds for every backend; `reopen` returns another handle of the same records.
    fn check<S: ExecutorStore>(reopen: impl Fn() -> S) {
        let (first, second) = (command(1, 2, 1), command(1, 2, 2));
        let id = first.object;
        let records = || reopen().object(id);
        assert_eq!(records().look::<AcceptedCommand>(id).unwrap(), VolumeLookup::Nothing);
        records().make().unwrap();
        records().accept(None, &first).unwrap();
        records().accept(Some(&first.order), &second).unwrap();
        for late in [command(1, 2, 1), command(1, 1, 9)] {
            records().accept(Some(&second.order), &late).unwrap_err();
        }
        assert_eq!(records().look(id).unwrap(), VolumeLookup::Ours(second.clone()), "the highest counts");
        let other = command(7, 1, 1).object;
        assert!(matches!(records().look::<AcceptedCommand>(other).unwrap(), VolumeLookup::Foreign(_)));
        assert_eq!(records().read::<TombstoneFile>(FileAccess::Owner).unwrap(), None);
        let tombstone = records().bury(2).unwrap();
        assert_eq!(records().read(FileAccess::Owner).unwrap(), Some(tombstone));
        assert!(tombstone.covers(&second.order) && !tombstone.covers(&command(1, 3, 1).order));
        let listed = || reopen().list().unwrap().into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(listed(), [Some(id)]);
        records().remove::<TombstoneFile>().unwrap();
        records().remove::<TombstoneFile>().unwrap();
        assert_eq!(records().read::<TombstoneFile>(FileAccess::Observer).unwrap(), None);
        records().purge::<AcceptedCommand>().unwrap();
        assert_eq!(records().look::<AcceptedCommand>(id).unwrap(), VolumeLookup::Nothing);
        assert_eq!(listed(), []);
    }

    #[test]
    fn every_backend_keeps_the_highest_command_and_its_tombstone_until_they_are_purged() {
        let store = MemoryStore::default();
        check(|| store.clone());
        let directory = tempfile::tempdir().unwrap();
        check(|| DirectoryStore::at(directory.path().join("objects")));
    }
}
