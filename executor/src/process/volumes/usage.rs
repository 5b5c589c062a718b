//! How much room there is for volumes, and how much they use. Nothing here holds a volume to its capacity: decision 0018
//! says why.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chancery_events::id::VolumeId;
use serde::{Deserialize, Serialize};

use super::home::Home;
use crate::durable::open_plain;

/// Between two measurings of one volume, at least.
pub(super) const EVERY: Duration = Duration::from_secs(30);
/// So much of the time is spent on measuring one volume, at most.
const SHARE: u32 = 100;
/// Files and folders that are looked at in one measuring, at most.
const MOST: u64 = 1_000_000;
/// Maximum size of the file `used` that is read, in bytes.
const USED_BYTES: u64 = 1024;

/// What a volume uses: the file `used` in its folder, a hint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Used {
    /// Bytes of allocated blocks; what has several names is counted once.
    pub bytes: u64,
    /// Files and folders.
    pub files: u64,
    /// Whether all was counted: there is a bound to what is looked at.
    pub whole: bool,
}

impl Used {
    /// What was last measured of a volume under the executor's root, if anything was.
    pub fn of(root: &Path, volume: VolumeId) -> Option<Used> {
        let home = Home::of(&super::root(root), volume);
        let mut text = Vec::new();
        let file = open_plain(OpenOptions::new().read(true), &home.file("used")).ok()?;
        file.take(USED_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(super) fn note(self, home: &Home) -> io::Result<()> {
        let new = home.file("used.new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        open_plain(&mut options, &new)?.write_all(&serde_json::to_vec(&self)?)?;
        std::fs::rename(new, home.file("used"))
    }
}

/// Bytes that are free for us on the file system on which the folder is.
pub(super) fn free(folder: &Path) -> io::Result<u64> {
    let system = rustix::fs::statvfs(folder)?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

/// Measures what is in a volume, and says how long to wait before it is done again.
pub(super) fn measure(data: &Path) -> io::Result<(Used, Duration)> {
    let begun = Instant::now();
    let used = count(data, MOST)?;
    Ok((used, EVERY.max(begun.elapsed() * SHARE)))
}

fn count(data: &Path, most: u64) -> io::Result<Used> {
    let top = std::fs::symlink_metadata(data)?;
    let mut used = Used { bytes: top.blocks() * 512, files: 1, whole: true };
    let mut linked = BTreeSet::new();
    let mut folders: Vec<PathBuf> = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        // What goes away meanwhile is not counted; what may not be looked at neither.
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let Ok(metadata) = entry.as_ref().map_err(|_| ()).and_then(|e| e.metadata().map_err(|_| ()))
            else {
                continue;
            };
            if used.files == most {
                return Ok(Used { whole: false, ..used });
            }
            let is_known = metadata.nlink() > 1 && metadata.is_file() && !linked.insert(metadata.ino());
            if metadata.dev() != top.dev() || is_known {
                continue;
            }
            used.files += 1;
            used.bytes += metadata.blocks() * 512;
            if let (true, Ok(entry)) = (metadata.is_dir(), entry) {
                folders.push(entry.path());
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
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let empty = count(folder.path(), MOST).unwrap();
        std::fs::write(at("a"), vec![1; 64 << 10]).unwrap();
        std::fs::hard_link(at("a"), at("b")).unwrap();
        std::os::unix::fs::symlink(outside.path(), at("c")).unwrap();
        std::fs::File::create(at("sparse")).unwrap().set_len(1 << 30).unwrap();
        let used = count(folder.path(), MOST).unwrap();
        assert_eq!((used.files, used.whole), (empty.files + 3, true));
        assert!((64 << 10..128 << 10).contains(&(used.bytes - empty.bytes)), "{used:?}");
        assert!(!count(folder.path(), 2).unwrap().whole, "there is a bound");
    }

    #[test]
    fn what_stands_in_the_place_of_the_file_is_neither_waited_for_nor_written_through() {
        let root = tempfile::tempdir().unwrap();
        let volume = VolumeId::issue(
            chancery_events::id::Lineage::from_random(1),
            chancery_events::id::Position::FIRST,
        );
        let home = Home::of(root.path(), volume);
        std::fs::create_dir_all(home.file("used").parent().unwrap()).unwrap();
        let used = Used { bytes: 1, files: 2, whole: true };
        let precious = root.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, home.file("used.new")).unwrap();
        used.note(&home).unwrap_err();
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        std::fs::remove_file(home.file("used.new")).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, home.file("used.new"), mode).unwrap();
        used.note(&home).unwrap_err();
        std::fs::remove_file(home.file("used.new")).unwrap();
        used.note(&home).unwrap();
        assert!(home.file("used").exists());
    }
}
