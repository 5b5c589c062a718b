//! Disks of virtual machines: the file `disk` in the content of a volume.
//!
//! The content of a volume of an executor of virtual machines is a disk: a sparse file of exactly the volume's capacity. It is
//! created with the content, which gets its name as a whole, so a crash leaves no incomplete disk. No other file is ever created
//! in its place, and no file is ever resized.
//!
//! | found at a start | result |
//! |---|---|
//! | a regular file of the volume's capacity | it is used |
//! | a file of another size, a link, or anything else | the start fails, permanently |
//! | nothing | the volume is lost, until a file of its capacity is there again |
//! | content that was made for processes | the start fails, permanently |

use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use chancery_events::id::VolumeId;
use serde::{Deserialize, Serialize};

use super::super::trampoline::ExecFailure;
use super::users;
use crate::state_file::{if_found, open_plain};

/// Name of a disk in the content of its volume.
const DISK: &str = "disk";
/// Size of a sector, in bytes: a disk consists of whole sectors.
const SECTOR: u64 = 512;

/// Form of a volume's content.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ContentForm {
    /// Directory, which processes fill.
    #[default]
    Directory,
    /// Directory with a disk.
    Disk,
}

/// Returns why a disk of this capacity cannot exist, if that is the case.
pub(super) fn unfit(capacity: u64) -> Option<String> {
    let is_whole = capacity > 0 && capacity.is_multiple_of(SECTOR);
    (!is_whole).then(|| format!("capacity {capacity} is not a positive multiple of {SECTOR} bytes"))
}

/// Returns the path of the disk in the content of a volume.
pub(super) fn path(data: &Path) -> PathBuf {
    data.join(DISK)
}

/// Creates the disk in new content, which has no name yet. It is on disk with its size when this returns.
pub(super) fn create(new: &Path, capacity: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let file = open_plain(options.write(true).create_new(true).mode(0o600), &path(new))?;
    // Independent of the umask.
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(capacity)?;
    file.sync_all()
}

/// Whether the content has a disk of the capacity.
pub(super) fn is_whole(data: &Path, capacity: u64) -> bool {
    std::fs::symlink_metadata(path(data)).is_ok_and(|found| found.is_file() && found.len() == capacity)
}

/// Removes the disk from content that was never used. Fails if something was written to it.
pub(super) fn remove_unused(data: &Path) -> io::Result<()> {
    let disk = path(data);
    match if_found(std::fs::symlink_metadata(&disk))? {
        Some(found) if found.is_file() && found.blocks() == 0 => std::fs::remove_file(disk),
        Some(_) => Err(io::Error::other(format!("{} is not an empty disk", disk.display()))),
        None => Ok(()),
    }
}

/// Returns the path of a volume's disk, if a guest may use it.
pub(in super::super) fn disk(volumes: &Path, volume: VolumeId) -> Result<PathBuf, ExecFailure> {
    let never =
        |reason: String| ExecFailure::permanent(format!("cannot use volume {volume} as a disk: {reason}"));
    let (directory, kept) = users::usable(volumes, volume).map_err(ExecFailure::retryable)?;
    if kept.form != ContentForm::Disk {
        return Err(never(format!("{} was made for processes", directory.data().display())));
    }
    let disk = path(&directory.data());
    let found = std::fs::symlink_metadata(&disk)
        .map_err(ExecFailure::of(format!("cannot read disk {}", disk.display())))?;
    let capacity = kept.spec.map(|spec| spec.capacity);
    match (found.is_file(), capacity) {
        (true, Some(capacity)) if found.len() == capacity => Ok(disk),
        (true, Some(capacity)) => {
            Err(never(format!("{} has {} bytes, not {capacity}", disk.display(), found.len())))
        }
        (true, None) => Err(never("its capacity is unknown".to_owned())),
        (false, _) => Err(never(format!("{} is not a regular file", disk.display()))),
    }
}

#[cfg(test)]
mod tests;
