//! Directory of one volume, and its durable record.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::observation::{Exit, Hope};
use chancery_events::protocol::{ObjectSpec, VolumeSpec};
use serde::{Deserialize, Serialize};

use super::super::drift::Place;
use super::super::entries;
use crate::durable::{self, Reader};
use crate::executor_store::{
    CommandRecord, DirectoryStore, ExecutorStore as _, Found, ObjectDirectory, ObjectStore, StoreRecord,
};
use crate::plan::{Aim, Before, Order, Present, State};

/// Target and phase of a volume: `volume.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) volume: VolumeId,
    /// Highest target.
    pub(super) order: Order,
    /// Spec; absent if the volume was removed before its spec was known.
    pub(super) spec: Option<VolumeSpec>,
    pub(super) phase: Phase,
}

/// Phase of a volume. While the target is its removal, and until it is deleted, the volume is being
/// destroyed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Target was recorded; the volume may have been made, but that was not reported.
    Accepted,
    /// Volume was made, which happens only once.
    Made,
    /// Volume was made, and its content does not exist any more.
    Lost { reason: String },
    /// Volume could not be made.
    Failed { message: String, hope: Hope },
    /// Nothing of the volume is left: the tombstone.
    Gone,
}

impl StoreRecord for Kept {
    const NAME: &'static str = "volume";
}

impl CommandRecord for Kept {
    fn object(&self) -> ObjectId {
        self.volume.into()
    }

    fn order(&self) -> Order {
        self.order
    }
}

impl Kept {
    /// Whether incarnations may use the volume, if its content exists.
    pub(super) fn is_up(&self) -> bool {
        self.order.aim == Aim::Up && self.phase == Phase::Made
    }

    pub(super) fn is_being_destroyed(&self) -> bool {
        self.order.aim == Aim::Removed && self.phase != Phase::Gone
    }

    /// Returns the state that follows from the record.
    pub(super) fn present(&self) -> Present {
        let state = match &self.phase {
            Phase::Gone => State::Gone,
            // Parts of the volume may exist.
            _ if self.is_being_destroyed() => State::Starting { processes: Vec::new() },
            Phase::Accepted => State::Accepted,
            Phase::Made => State::Up { processes: Vec::new(), before: Before::Ready },
            Phase::Lost { reason } => {
                State::Ended { exit: Exit::Failed { reason: reason.clone() }, processes: Vec::new() }
            }
            Phase::Failed { message, hope } => State::Failed { message: message.clone(), hope: *hope },
        };
        Present { order: self.order, spec: self.spec.clone().map(ObjectSpec::Volume), state }
    }
}

/// Directory of a volume.
#[derive(Clone, Debug)]
pub(super) struct Home {
    volume: VolumeId,
    path: PathBuf,
}

impl ObjectDirectory for Home {
    fn path(&self) -> &Path {
        &self.path
    }
}

impl Home {
    pub(super) fn of(volumes: &Path, volume: VolumeId) -> Home {
        Home { volume, path: DirectoryStore::at(volumes.to_owned()).object(volume.into()) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the directory of the content.
    pub(super) fn data(&self) -> PathBuf {
        self.file("data")
    }

    /// Returns what exists at the path, and changes nothing.
    pub(super) fn look(&self) -> io::Result<Found<Kept>> {
        let shown = self.path.display();
        match durable::if_found(std::fs::symlink_metadata(&self.path))? {
            Some(metadata) if metadata.is_dir() => {}
            Some(_) => return Ok(Found::Foreign(format!("{shown} is no folder"))),
            None => return Ok(Found::Nothing),
        }
        Ok(match ObjectStore::look(self, self.volume.into())? {
            Found::Ours(kept) => Found::Ours(kept),
            Found::Foreign(why) => Found::Foreign(format!("{shown} {why}")),
            Found::Nothing => {
                let began = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "new");
                let is_begun = entries(&self.path)?.iter().all(|path| began(path) && path.is_file());
                let foreign = || Found::Foreign(format!("{shown} has no record of ours"));
                if is_begun { Found::Nothing } else { foreign() }
            }
        })
    }

    /// Repairs damaged copies of the record. Only for a directory that is ours.
    pub(super) fn mend(&self) -> io::Result<()> {
        self.read::<Kept>(Reader::Writer).map(drop)
    }

    /// Returns the identity of the directory, if it exists. Fails if the path is anything else.
    pub(super) fn identity(&self) -> io::Result<Option<Place>> {
        match durable::if_found(std::fs::symlink_metadata(&self.path))? {
            Some(metadata) if !metadata.is_dir() => {
                Err(io::Error::other(format!("{} is no folder", self.path.display())))
            }
            found => Ok(found.as_ref().map(Place::from)),
        }
    }

    /// Writes the record to disk, in the directory that was found to be ours, or in a new one. Returns its
    /// identity.
    pub(super) fn keep(&self, last: Option<&Order>, kept: &Kept, ours: Option<Place>) -> io::Result<Place> {
        match (self.identity()?, ours) {
            (None, _) => self.make()?,
            (Some(now), ours) if ours.is_none_or(|ours| ours == now) => {}
            (Some(_), _) => {
                return Err(io::Error::other(format!("another folder stands at {}", self.path.display())));
            }
        }
        self.accept(last, kept)?;
        self.identity()?.ok_or_else(|| io::Error::other("it went as it was written"))
    }

    /// Removes the directory with its record and hints; nothing else is in it.
    pub(super) fn drop_record(&self) -> io::Result<()> {
        // The record last: without it, the rest would be foreign.
        for name in ["used", "used.new"] {
            durable::if_found(std::fs::remove_file(self.file(name)))?;
        }
        self.purge::<Kept>()
    }

    /// Makes the directory of the content, empty and private; the rest of an interrupted call is used as it
    /// is.
    pub(super) fn make_data(&self) -> io::Result<()> {
        if self.has_data()? {
            return Ok(());
        }
        let new = self.file("data.new");
        // From an earlier attempt; nothing was ever put in it.
        durable::if_found(std::fs::remove_dir(&new))?;
        std::fs::DirBuilder::new().mode(0o700).create(&new)?;
        // Independent of the umask.
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o700))?;
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, self.data())?;
        durable::sync_folder(&self.data())
    }

    /// Whether the content exists.
    pub(super) fn has_data(&self) -> io::Result<bool> {
        match std::fs::symlink_metadata(self.data()) {
            Ok(metadata) => Ok(metadata.is_dir()),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
