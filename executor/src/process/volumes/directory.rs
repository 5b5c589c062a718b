//! Directory of one volume, and its durable record.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::observation::{IncarnationExit, RetryClass};
use chancery_events::protocol::{ObjectSpec, VolumeSpec};
use serde::{Deserialize, Serialize};

use super::super::entries;
use super::super::integrity::{FileId, if_exists};
use super::disk::{self, ContentForm};
use crate::executor_store::{
    CommandRecord, DirectoryStore, ExecutorStore as _, ObjectDirectory, ObjectStore, StoreRecord,
    VolumeLookup,
};
use crate::reconcile::{KnownObject, ObjectState, ObjectTarget, ReadyHistory, TargetGoal};
use crate::state_file::{self, FileAccess};

/// Target and phase of a volume: `volume.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct VolumeFile {
    pub(super) volume: VolumeId,
    /// Highest target.
    pub(super) order: ObjectTarget,
    /// Spec; absent if the volume was removed before its spec was known.
    pub(super) spec: Option<VolumeSpec>,
    /// Form in which the content is made, or was made.
    #[serde(default)]
    pub(super) form: ContentForm,
    pub(super) phase: VolumePhase,
}

/// Phase of a volume. While the target is its removal, and until it is deleted, the volume is being
/// destroyed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum VolumePhase {
    /// Target was recorded; the volume may have been made, but that was not reported.
    Accepted,
    /// Volume was made, which happens only once.
    Made,
    /// Volume was made, and its content does not exist any more.
    Lost { reason: String },
    /// Volume could not be made.
    Failed { message: String, retry_class: RetryClass },
    /// Nothing of the volume is left: the tombstone.
    Gone,
}

impl StoreRecord for VolumeFile {
    const NAME: &'static str = "volume";
}

impl CommandRecord for VolumeFile {
    fn object(&self) -> ObjectId {
        self.volume.into()
    }

    fn order(&self) -> ObjectTarget {
        self.order
    }
}

impl VolumeFile {
    /// Whether incarnations may use the volume, if its content exists.
    pub(super) fn is_up(&self) -> bool {
        self.order.aim == TargetGoal::Up && self.phase == VolumePhase::Made
    }

    /// Whether the content is a disk of the capacity.
    pub(super) fn has_whole_disk(&self, directory: &VolumeDirectory) -> bool {
        self.form == ContentForm::Disk
            && self.spec.as_ref().is_some_and(|spec| disk::is_whole(&directory.data(), spec.capacity))
    }

    pub(super) fn is_being_destroyed(&self) -> bool {
        self.order.aim == TargetGoal::Removed && self.phase != VolumePhase::Gone
    }

    /// Returns the state that follows from the record.
    pub(super) fn present(&self) -> KnownObject {
        let state = match &self.phase {
            VolumePhase::Gone => ObjectState::Gone,
            // Parts of the volume may exist.
            _ if self.is_being_destroyed() => ObjectState::Starting { processes: Vec::new() },
            VolumePhase::Accepted => ObjectState::Accepted,
            VolumePhase::Made => ObjectState::Up { processes: Vec::new(), before: ReadyHistory::Ready },
            VolumePhase::Lost { reason } => ObjectState::Ended {
                exit: IncarnationExit::Failed { reason: reason.clone() },
                processes: Vec::new(),
            },
            VolumePhase::Failed { message, retry_class: hope } => {
                ObjectState::Failed { message: message.clone(), retry: *hope }
            }
        };
        KnownObject { order: self.order, spec: self.spec.clone().map(ObjectSpec::Volume), state }
    }
}

/// Directory of a volume.
#[derive(Clone, Debug)]
pub(super) struct VolumeDirectory {
    volume: VolumeId,
    path: PathBuf,
}

impl ObjectDirectory for VolumeDirectory {
    fn path(&self) -> &Path {
        &self.path
    }
}

impl VolumeDirectory {
    pub(super) fn of(volumes: &Path, volume: VolumeId) -> VolumeDirectory {
        VolumeDirectory { volume, path: DirectoryStore::at(volumes.to_owned()).object(volume.into()) }
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
    pub(super) fn look(&self) -> io::Result<VolumeLookup<VolumeFile>> {
        let shown = self.path.display();
        match state_file::if_found(std::fs::symlink_metadata(&self.path))? {
            Some(metadata) if metadata.is_dir() => {}
            Some(_) => return Ok(VolumeLookup::Foreign(format!("{shown} is not a directory"))),
            None => return Ok(VolumeLookup::Nothing),
        }
        Ok(match ObjectStore::look(self, self.volume.into())? {
            VolumeLookup::Ours(kept) => VolumeLookup::Ours(kept),
            VolumeLookup::Foreign(why) => VolumeLookup::Foreign(format!("{shown} {why}")),
            VolumeLookup::Nothing => {
                let began = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "new");
                let is_begun = entries(&self.path)?.iter().all(|path| began(path) && path.is_file());
                let foreign = || VolumeLookup::Foreign(format!("{shown} has no volume record"));
                if is_begun { VolumeLookup::Nothing } else { foreign() }
            }
        })
    }

    /// Repairs damaged copies of the record. Only for a directory that is ours.
    pub(super) fn repair(&self) -> io::Result<()> {
        self.read::<VolumeFile>(FileAccess::Owner).map(drop)
    }

    /// Returns the identity of the directory, if it exists. Fails if the path is anything else.
    pub(super) fn identity(&self) -> io::Result<Option<FileId>> {
        match state_file::if_found(std::fs::symlink_metadata(&self.path))? {
            Some(metadata) if !metadata.is_dir() => {
                Err(io::Error::other(format!("{} is not a directory", self.path.display())))
            }
            found => Ok(found.as_ref().map(FileId::from)),
        }
    }

    /// Writes the record to disk, in the directory that was found to be ours, or in a new one. Returns its
    /// identity.
    pub(super) fn keep(
        &self,
        last: Option<&ObjectTarget>,
        kept: &VolumeFile,
        ours: Option<FileId>,
    ) -> io::Result<FileId> {
        match (self.identity()?, ours) {
            (None, _) => self.make()?,
            (Some(now), ours) if ours.is_none_or(|ours| ours == now) => {}
            (Some(_), _) => {
                return Err(io::Error::other(format!("another directory is at {}", self.path.display())));
            }
        }
        self.accept(last, kept)?;
        self.identity()?.ok_or_else(|| io::Error::other("directory was removed during the write"))
    }

    /// Removes the record of the volume, the files with its usage, and the directory, which is then empty.
    pub(super) fn drop_record(&self) -> io::Result<()> {
        // The record last: without it, the rest would be foreign.
        for name in ["used", "used.new"] {
            state_file::if_found(std::fs::remove_file(self.file(name)))?;
        }
        self.purge::<VolumeFile>()
    }

    /// Makes the directory of the content, private, and empty except for a disk of this capacity. What is left of an
    /// interrupted call is used as it is, if it has the form.
    pub(super) fn make_data(&self, form: ContentForm, capacity: u64) -> io::Result<()> {
        if self.has_data()? {
            return self.missing(form)?.map_or(Ok(()), |missing| Err(io::Error::other(missing)));
        }
        let new = self.file("data.new");
        // From an earlier attempt; nothing was ever put in it.
        remove_unused(&new, ContentForm::Disk)?;
        self.begin_data()?;
        if form == ContentForm::Disk {
            disk::create(&new, capacity)?;
        }
        self.publish_data()
    }

    /// Makes the directory of new content, private and empty. Returns its path.
    pub(super) fn begin_data(&self) -> io::Result<PathBuf> {
        let new = self.file("data.new");
        std::fs::DirBuilder::new().mode(0o700).create(&new)?;
        // Independent of the umask.
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o700))?;
        Ok(new)
    }

    /// Writes the new content to disk, and gives it the name of the content.
    pub(super) fn publish_data(&self) -> io::Result<()> {
        let new = self.file("data.new");
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, self.data())?;
        state_file::sync_directory(&self.data())
    }

    /// Returns why content of this form does not exist, if that is the case. Whether a disk can be used is checked when a
    /// guest starts.
    pub(super) fn missing(&self, form: ContentForm) -> io::Result<Option<String>> {
        if !self.has_data()? {
            return Ok(Some(format!("{} is not a directory", self.data().display())));
        }
        let disk = disk::path(&self.data());
        let lacks_disk =
            form == ContentForm::Disk && state_file::if_found(std::fs::symlink_metadata(&disk))?.is_none();
        Ok(lacks_disk.then(|| format!("{} does not exist", disk.display())))
    }

    /// Whether the directory of the content exists.
    pub(super) fn has_data(&self) -> io::Result<bool> {
        Ok(if_exists(std::fs::symlink_metadata(self.data()))?.is_some_and(|found| found.is_dir()))
    }
}

/// Removes a directory of content that was never used, if it exists. Fails if anything is in it, except an unused disk.
pub(super) fn remove_unused(directory: &Path, form: ContentForm) -> io::Result<()> {
    let found = state_file::if_found(std::fs::symlink_metadata(directory))?;
    if form == ContentForm::Disk && found.is_some_and(|found| found.is_dir()) {
        disk::remove_unused(directory)?;
    }
    state_file::if_found(std::fs::remove_dir(directory)).map(drop)
}
