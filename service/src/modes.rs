//! Permissions of a data directory: only the user that runs the server may read it. A plan contains
//! environments, and is stored in the journal, in snapshots and in rows.
//!
//! Files of the program are private by its umask; files of libraries are created private. A payload has its
//! own umask, and owns the files in its working directory or in a volume: these files are never checked.

use std::fmt::Write as _;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use rustix::fs::Mode;

use crate::data_dir::if_there;

/// Permission bits of other users than the owner.
const OTHERS: u32 = 0o077;

/// Extent of a check of a data directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckExtent {
    /// Fleets, and the stores of executors: as much as a start can afford.
    Start,
    /// Everything that a start checks, and the stored data of each incarnation and volume.
    All,
}

/// Makes this process create files and directories for its user alone from now on.
pub fn keep_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// Returns entries that other users may read or write, with their mode. Links are not followed.
pub fn wider(data: &Path, reach: CheckExtent) -> io::Result<Vec<(PathBuf, u32)>> {
    let mut found = Vec::new();
    // In a new directory, the permissions are the choice of its creator.
    if data.join("fleets").is_dir() || data.join("executors").is_dir() {
        look(data, 0, reach, &mut found)?;
    }
    Ok(found)
}

/// Collects such entries below `path`, at `depth` from the data directory; `executors/FLEET/CLUSTER` has 3.
fn look(path: &Path, depth: usize, reach: CheckExtent, found: &mut Vec<(PathBuf, u32)>) -> io::Result<()> {
    let Some(metadata) = if_there(path.symlink_metadata())? else { return Ok(()) };
    if !metadata.is_dir() && !metadata.is_file() {
        return Ok(());
    }
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 {
        found.push((path.to_owned(), mode));
    }
    if !metadata.is_dir() {
        return Ok(());
    }
    let Some(entries) = if_there(std::fs::read_dir(path))? else { return Ok(()) };
    for entry in entries {
        let Some(entry) = if_there(entry)? else { return Ok(()) };
        let name = entry.file_name();
        // A data directory may contain other entries: only these belong to it.
        let is_ours = depth > 0
            || ["fleets", "executors", "address", "lock", "directory.json"].iter().any(|own| name == *own);
        let is_store = depth >= 1
            && path.components().rev().nth(depth - 1).is_some_and(|top| top.as_os_str() == "executors");
        // Working directories and the data of volumes belong to payloads, also while they are removed.
        let is_foreign = match depth {
            3 => name == "removed" || name == "forgotten", // tidy: allow(forgotten)
            _ => depth > 4 && ["work", "data", "data.new", "doomed"].iter().any(|own| name == *own),
        };
        let is_dir = || Ok::<_, io::Error>(if_there(entry.file_type())?.is_some_and(|kind| kind.is_dir()));
        let is_deep = is_store && depth >= 3 && reach == CheckExtent::Start && is_dir()?;
        if is_ours && !(is_store && is_foreign) && !is_deep {
            look(&entry.path(), depth + 1, reach, found)?;
        }
    }
    Ok(())
}

/// Removes all permissions of other users.
pub fn narrow(found: &[(PathBuf, u32)]) -> io::Result<()> {
    for (path, mode) in found {
        std::fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS))?;
    }
    Ok(())
}

/// Returns the report on a data directory, and whether it is private; with `fix`, after restricting it.
pub fn doctor(data: &Path, fix: PermissionFix) -> Result<(String, bool)> {
    if !data.try_exists().with_context(|| format!("cannot read {}", data.display()))? {
        let text = format!(
            "{}: does not exist\nhint: name the data directory of the server with --data-dir\n",
            data.display()
        );
        return Ok((text, true));
    }
    let found = wider(data, CheckExtent::All)
        .with_context(|| format!("cannot read permissions in {}", data.display()))?;
    let mut text = String::new();
    if found.is_empty() {
        writeln!(text, "{}: private", data.display())?;
        return Ok((text, true));
    }
    if fix == PermissionFix::Yes {
        narrow(&found).with_context(|| format!("cannot restrict permissions in {}", data.display()))?;
    }
    let done = if fix == PermissionFix::Yes { "was" } else { "is" };
    for (path, mode) in &found {
        writeln!(text, "{}: {done} open to other users, mode {mode:04o}", path.display())?;
    }
    if fix == PermissionFix::No {
        writeln!(text, "try: chancery doctor --fix --data-dir {}", data.display())?;
    }
    Ok((text, fix == PermissionFix::Yes))
}

/// Whether `doctor` fixes what it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PermissionFix {
    /// Permissions are fixed.
    Yes,
    /// Permissions are only checked.
    No,
}

/// Warns at start about entries that other users may read.
pub fn warn(data: &Path) {
    match wider(data, CheckExtent::Start) {
        Ok(found) => {
            if let Some((path, mode)) = found.first() {
                tracing::warn!(
                    path = %path.display(), mode = format!("{mode:04o}"), count = found.len(),
                    hint = format!("run chancery doctor --fix --data-dir {}", data.display()),
                    "data readable by other users"
                );
            }
        }
        Err(error) => tracing::warn!(%error, data = %data.display(), "cannot read permissions"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_names_a_data_directory_that_does_not_exist() {
        let dir = tempfile::tempdir().expect("a directory");
        let (text, is_private) = doctor(&dir.path().join("none"), PermissionFix::No).expect("a report");
        assert!(text.contains("none: does not exist\n"), "{text}");
        assert!(is_private, "a host without a server has no data directory");
    }

    #[test]
    fn what_others_may_read_is_found_and_narrowed_except_what_is_a_payloads_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = dir.path();
        let make = |path: &str, mode: u32| {
            let path = data.join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(&path, "").expect("written");
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
            path
        };
        let journal = make("fleets/default/journal/1.seg", 0o640);
        let snapshot = make("fleets/default/snapshots/1.snap", 0o600);
        let head = make("executors/default/local/head.json", 0o604);
        let spec = make("executors/default/local/nodes/n/1/spec.json", 0o644);
        let own = make("executors/default/local/nodes/n/1/app-0/work/file", 0o666);
        let volume = make("executors/default/local/volumes/1/data/file", 0o666);
        let doomed = make("executors/default/local/volumes/1/doomed/file", 0o666);
        let other = make("elsewhere", 0o666);
        let files = |reach| -> Vec<PathBuf> {
            let found = wider(data, reach).expect("read").into_iter().map(|(path, _)| path);
            found.filter(|path| path.is_file()).collect()
        };
        let mut start = files(CheckExtent::Start);
        start.sort();
        assert_eq!(start, [head.clone(), journal.clone()]);
        let mut all = files(CheckExtent::All);
        all.sort();
        assert_eq!(all, [head.clone(), spec.clone(), journal.clone()]);
        narrow(&wider(data, CheckExtent::All).expect("read")).expect("narrowed");
        assert!(wider(data, CheckExtent::All).expect("read").is_empty());
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!([&journal, &snapshot, &head, &spec].map(|path| mode(path)), [0o600, 0o600, 0o600, 0o600]);
        assert_eq!([&own, &volume, &doomed, &other].map(|path| mode(path)), [0o666; 4]);
        assert_eq!(mode(&data.join("fleets/default/journal")), 0o700);
    }
}
