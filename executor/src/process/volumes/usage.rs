//! Free space for volumes, and their usage. No capacity is enforced here: decision 0018 explains why.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chancery_events::id::VolumeId;
use serde::{Deserialize, Serialize};

use super::directory::VolumeDirectory;
use crate::state_file::open_plain;

/// Minimum time between two measurements of one volume.
pub(super) const EVERY: Duration = Duration::from_secs(30);
/// Minimum ratio of the time between two measurements to the duration of one.
const SHARE: u32 = 100;
/// Maximum number of files and directories that are read in one measurement.
const MOST: u64 = 1_000_000;
/// Maximum size of the file `used` that is read, in bytes.
const USED_BYTES: u64 = 1024;

/// Usage of a volume: the file `used` in its directory, a hint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeUsage {
    /// Bytes of allocated blocks; a file with several names is counted once.
    pub bytes: u64,
    /// Number of files and directories.
    pub files: u64,
    /// Whether everything was counted: the number of files is bounded.
    pub whole: bool,
}

impl VolumeUsage {
    /// Returns the last measurement of a volume under the executor's root, if there is one.
    pub fn of(root: &Path, volume: VolumeId) -> Option<VolumeUsage> {
        let directory = VolumeDirectory::of(&super::root(root), volume);
        let mut text = Vec::new();
        let file = open_plain(OpenOptions::new().read(true), &directory.file("used")).ok()?;
        file.take(USED_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn note(self, directory: &VolumeDirectory) -> io::Result<()> {
        let new = directory.file("used.new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        open_plain(&mut options, &new)?.write_all(&serde_json::to_vec(&self)?)?;
        std::fs::rename(new, directory.file("used"))
    }
}

/// Returns the bytes that are free for this user on the file system of the directory.
pub(super) fn free(directory: &Path) -> io::Result<u64> {
    let system = rustix::fs::statvfs(directory)?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Measures the content of a volume; returns the usage, and the delay before the next measurement.
pub(super) fn measure(data: &Path) -> io::Result<(VolumeUsage, Duration)> {
    let begun = Instant::now();
    let used = count(data, MOST)?;
    Ok((used, EVERY.max(begun.elapsed() * SHARE)))
}

fn count(data: &Path, most: u64) -> io::Result<VolumeUsage> {
    let top = std::fs::symlink_metadata(data)?;
    let mut used = VolumeUsage { bytes: top.blocks() * 512, files: 1, whole: true };
    let mut linked = BTreeSet::new();
    let mut directories: Vec<PathBuf> = vec![data.to_owned()];
    while let Some(directory) = directories.pop() {
        // Files that disappear meanwhile are not counted, nor are inaccessible ones.
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries {
            let Ok(entry) = entry else { continue };
            let Ok(metadata) = entry.metadata() else { continue };
            if used.files == most {
                return Ok(VolumeUsage { whole: false, ..used });
            }
            let is_known = metadata.nlink() > 1 && metadata.is_file() && !linked.insert(metadata.ino());
            if metadata.dev() != top.dev() || is_known {
                continue;
            }
            used.files += 1;
            used.bytes += metadata.blocks() * 512;
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_once_and_no_link_is_followed() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("big"), vec![1; 1 << 20]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let empty = count(directory.path(), MOST).unwrap();
        std::fs::write(at("a"), vec![1; 64 << 10]).unwrap();
        std::fs::hard_link(at("a"), at("b")).unwrap();
        std::os::unix::fs::symlink(outside.path(), at("c")).unwrap();
        std::fs::File::create(at("sparse")).unwrap().set_len(1 << 30).unwrap();
        let used = count(directory.path(), MOST).unwrap();
        assert_eq!((used.files, used.whole), (empty.files + 3, true));
        assert!((64 << 10..128 << 10).contains(&(used.bytes - empty.bytes)), "{used:?}");
        assert!(!count(directory.path(), 2).unwrap().whole, "there is a bound");
    }

    #[test]
    fn what_replaces_the_file_is_neither_waited_for_nor_written_through() {
        let root = tempfile::tempdir().unwrap();
        let volume = VolumeId::issue(
            chancery_events::id::Lineage::from_random(1),
            chancery_events::id::Position::FIRST,
        );
        let directory = VolumeDirectory::of(root.path(), volume);
        std::fs::create_dir_all(directory.file("used").parent().unwrap()).unwrap();
        let used = VolumeUsage { bytes: 1, files: 2, whole: true };
        let precious = root.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, directory.file("used.new")).unwrap();
        used.note(&directory).unwrap_err();
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        std::fs::remove_file(directory.file("used.new")).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, directory.file("used.new"), mode).unwrap();
        used.note(&directory).unwrap_err();
        std::fs::remove_file(directory.file("used.new")).unwrap();
        used.note(&directory).unwrap();
        assert!(directory.file("used").exists());
    }
}
