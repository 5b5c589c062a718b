//! Detection of copied directories.
//!
//! A copy records what the original runs. An executor that takes a copy for the original ends the original's
//! processes, or reports false ends. An executor store and a server's data directory therefore record their
//! own identity, by device and inode. Device numbers may change with a boot, and are compared within one boot
//! only.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::state_file::{self, FileAccess};

/// Name of the file in a data directory that records its identity.
const NAME: &str = "directory.json";

/// Identity of a directory, independent of its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct DirectoryId {
    device: u64,
    inode: u64,
    boot: String,
}

impl DirectoryId {
    pub(crate) fn of(path: &Path) -> io::Result<DirectoryId> {
        let metadata = std::fs::metadata(path)?;
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        Ok(DirectoryId { device: metadata.dev(), inode: metadata.ino(), boot })
    }

    /// Whether this is the same directory as `now`.
    pub(crate) fn is(&self, now: &DirectoryId) -> bool {
        self.inode == now.inode && (self.boot != now.boot || self.device == now.device)
    }
}

/// Action on a copied directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CopyPolicy {
    /// Leave the copy as it is, and fail.
    #[default]
    Refuse,
    /// Use the copy in place of the original.
    Adopt,
}

/// Error for a directory that is a copy; the copy was left as it is.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot use directory {}: it is a copy, and what it records as running belongs to the original\n\
     hint: use the original; if it is permanently lost, --adopt-copy continues from the copy; what the copy records \
     as running in this boot is unknown then, and neither ended nor started again, until the machine is booted \
     again or the node is expunged",
    path.display()
)]
pub struct IsCopy {
    path: PathBuf,
}

pub(crate) fn check(
    path: &Path,
    recorded: Option<&DirectoryId>,
    now: &DirectoryId,
    copies: CopyPolicy,
) -> Result<(), IsCopy> {
    if recorded.is_none_or(|recorded| recorded.is(now)) {
        return Ok(());
    }
    match copies {
        CopyPolicy::Refuse => Err(IsCopy { path: path.to_owned() }),
        CopyPolicy::Adopt => {
            tracing::warn!(directory = %path.display(), "copy adopted");
            Ok(())
        }
    }
}

/// Records the identity of a data directory, unless it is a copy and `copies` refuses it. The caller has it
/// locked.
pub fn claim(path: &Path, copies: CopyPolicy) -> io::Result<()> {
    let (record, now) = (path.join(NAME), DirectoryId::of(path)?);
    let recorded = state_file::read::<DirectoryId>(&record, FileAccess::Owner)?;
    check(path, recorded.as_ref(), &now, copies).map_err(io::Error::other)?;
    if recorded.as_ref() == Some(&now) { Ok(()) } else { state_file::write(&record, &now) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_distinguished_from_its_copy_and_known_after_a_boot() {
        let parent = tempfile::tempdir().unwrap();
        let (original, copy) = (parent.path().join("original"), parent.path().join("copy"));
        std::fs::create_dir(&original).unwrap();
        claim(&original, CopyPolicy::Refuse).unwrap();
        claim(&original, CopyPolicy::Refuse).unwrap();
        let copied = std::process::Command::new("cp").arg("-a").args([&original, &copy]).status().unwrap();
        assert!(copied.success());
        let error = claim(&copy, CopyPolicy::Refuse).unwrap_err().to_string();
        assert!(error.contains("it is a copy") && error.contains("--adopt-copy"), "{error}");
        claim(&copy, CopyPolicy::Adopt).unwrap();
        claim(&copy, CopyPolicy::Refuse).expect("it is the one that was adopted");
        claim(&original, CopyPolicy::Refuse).unwrap();
        let moved = parent.path().join("moved");
        std::fs::rename(&original, &moved).unwrap();
        claim(&moved, CopyPolicy::Refuse).expect("another name is no copy");

        let now = DirectoryId { device: 1, inode: 2, boot: "now".into() };
        for (device, inode, boot, is) in
            [(1, 2, "now", true), (3, 2, "now", false), (3, 2, "before", true), (1, 4, "before", false)]
        {
            assert_eq!(
                DirectoryId { device, inode, boot: boot.into() }.is(&now),
                is,
                "{device} {inode} {boot}"
            );
        }
    }
}
