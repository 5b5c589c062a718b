//! Rows in a temporary directory: built there, or copied from a server's directory.
//!
//! sled locks and changes the files that it opens, so the rows of a server are read from a copy. A server may write
//! to its rows meanwhile: a copy counts only if no file has changed since before it was made. What sled has not
//! written yet is missing in the copy, as after a crash.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use chancery_cli::note;
use chancery_decider::random;
use chancery_journal::private;

use crate::data_dir::if_there;

/// Maximum number of attempts to copy rows that change meanwhile.
const ATTEMPTS: u32 = 5;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Start of the names of directories of temporary rows.
const PREFIX: &str = "chancery-rows-";
/// File that its process keeps locked while the directory is in use.
const LOCK: &str = "lock";
/// Directory of the rows.
const ROWS: &str = "rows";

/// Directory of rows, which is removed when the value is dropped. If its process is killed, the next one removes it; one without rows may
/// stay.
#[derive(Debug)]
pub(crate) struct TemporaryRows {
    /// Directory with the lock and the directory of the rows.
    directory: PathBuf,
    rows: PathBuf,
    _lock: fs::File,
}

/// Path in a directory, size and time of the last change of each file.
type FileList = Vec<(PathBuf, u64, SystemTime)>;

impl TemporaryRows {
    /// Creates an empty directory, and removes those that killed processes of this user have left.
    pub(crate) fn create() -> Result<TemporaryRows> {
        TemporaryRows::create_in(&std::env::temp_dir())
    }

    fn create_in(parent: &Path) -> Result<TemporaryRows> {
        remove_left(parent);
        let directory = parent.join(format!("{PREFIX}{:016x}", random()));
        let rows = directory.join(ROWS);
        let created = private::create_dir_all(&rows).and_then(|()| {
            // Only a locked file gets the name: a directory without it is being created.
            let new = directory.join("lock.new");
            let lock = private::options().create_new(true).open(&new)?;
            lock.lock()?;
            fs::rename(&new, directory.join(LOCK))?;
            Ok(lock)
        });
        let lock = created.with_context(|| format!("cannot create directory {}", directory.display()))?;
        Ok(TemporaryRows { directory, rows, _lock: lock })
    }

    /// Copies the rows in a directory; `None` if there are none.
    pub(crate) fn copy_of(rows: &Path) -> Result<Option<TemporaryRows>> {
        let failed = || format!("cannot copy rows in {}", rows.display());
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                thread::sleep(PAUSE);
            }
            let files = if_there(list(rows)).with_context(failed)?.unwrap_or_default();
            if files.is_empty() {
                return Ok(None);
            }
            let copy = TemporaryRows::create()?;
            copy.ensure_space(files.iter().map(|(_, size, _)| size).sum())?;
            let copied =
                files.iter().try_for_each(|(path, ..)| copy_file(&rows.join(path), &copy.rows.join(path)));
            // Otherwise, a file that was there has been removed.
            let is_whole = if_there(copied).with_context(failed)?.is_some();
            if is_whole && list(rows).with_context(failed)? == files {
                return Ok(Some(copy));
            }
        }
        bail!(
            "cannot copy rows in {}: they change while they are copied\nhint: try again while few events happen, stop the \
             server, or name a copy of its directory",
            rows.display()
        )
    }

    /// Checks that the file system of the copy has space for it.
    fn ensure_space(&self, needed: u64) -> Result<()> {
        let disk = rustix::fs::statvfs(&self.rows)
            .map_err(io::Error::from)
            .with_context(|| format!("cannot read free space of {}", self.rows.display()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        ensure!(
            needed < free,
            "cannot copy rows to {}: {needed} bytes needed, {free} bytes free\nhint: set TMPDIR to a directory with more \
             space",
            self.rows.display()
        );
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.rows
    }
}

impl Drop for TemporaryRows {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

/// Removes a directory of rows, the lock last: until then, another process can continue the removal. Two processes may remove one.
fn remove(directory: &Path) {
    let removed = if_there(fs::remove_dir_all(directory.join(ROWS)))
        .and_then(|_| if_there(fs::remove_file(directory.join(LOCK))))
        .and_then(|_| if_there(fs::remove_dir(directory)));
    if let Err(error) = removed {
        note!("chancery: cannot remove {}: {error}", directory.display());
    }
}

/// Removes the directories of rows in `parent` whose processes have ended. One that cannot be removed stays.
fn remove_left(parent: &Path) {
    let user = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == user);
        if !is_ours || !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(lock) = fs::File::open(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
            remove(&entry.path());
        }
    }
}

/// Returns the files in a directory and in those below it, by path.
fn list(dir: &Path) -> io::Result<FileList> {
    let mut files = FileList::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(below) = waiting.pop() {
        for entry in fs::read_dir(dir.join(&below))? {
            let entry = entry?;
            let path = below.join(entry.file_name());
            let Some(meta) = if_there(entry.metadata())? else { continue };
            if meta.is_dir() {
                waiting.push(path);
            } else {
                files.push((path, meta.len(), meta.modified()?));
            }
        }
    }
    files.sort();
    Ok(files)
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(dir) = to.parent() {
        private::create_dir_all(dir)?;
    }
    let mut written = private::options().create_new(true).open(to)?;
    io::copy(&mut fs::File::open(from)?, &mut written).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_killed_process_are_removed_by_the_next_one() {
        let parent = tempfile::tempdir().expect("a directory");
        let names = || fs::read_dir(parent.path()).expect("listed").count();
        let in_use = TemporaryRows::create_in(parent.path()).expect("created");
        // The end of a process releases its lock and removes nothing; one that is killed later leaves the lock for last.
        let left = parent.path().join(format!("{PREFIX}left"));
        fs::create_dir(&left).expect("created");
        fs::write(left.join(LOCK), "").expect("written");
        let half = parent.path().join(format!("{PREFIX}half"));
        fs::create_dir_all(half.join(ROWS).join("blobs")).expect("created");
        fs::write(half.join(LOCK), "").expect("written");
        fs::create_dir(parent.path().join(format!("{PREFIX}new"))).expect("created");
        fs::create_dir(parent.path().join("other")).expect("created");
        assert_eq!(names(), 5);
        let next = TemporaryRows::create_in(parent.path()).expect("created");
        assert!(in_use.path().is_dir() && next.path().is_dir() && !left.exists() && !half.exists());
        assert_eq!(names(), 4);
        drop((in_use, next));
        assert_eq!(names(), 2);
    }

    #[test]
    fn a_copy_has_every_file_and_is_removed() {
        let rows = tempfile::tempdir().expect("a directory");
        assert!(TemporaryRows::copy_of(rows.path()).expect("listed").is_none());
        assert!(TemporaryRows::copy_of(&rows.path().join("no")).expect("listed").is_none());
        fs::create_dir(rows.path().join("blobs")).expect("created");
        fs::write(rows.path().join("db"), "rows").expect("written");
        fs::write(rows.path().join("blobs/1"), "large").expect("written");
        let before = list(rows.path()).expect("listed");
        let copy = TemporaryRows::copy_of(rows.path()).expect("copied").expect("rows");
        assert_eq!(fs::read(copy.path().join("blobs/1")).expect("read"), b"large");
        assert_eq!(fs::read(copy.path().join("db")).expect("read"), b"rows");
        assert_eq!(list(rows.path()).expect("listed"), before);
        let path = copy.directory.clone();
        drop(copy);
        assert!(!path.exists());

        // What makes a copy count no more.
        let changed = |change: &dyn Fn(&Path)| {
            let before = list(rows.path()).expect("listed");
            change(rows.path());
            list(rows.path()).expect("listed") != before
        };
        assert!(!changed(&|_| ()));
        assert!(changed(&|dir| fs::write(dir.join("db"), "more rows").expect("written")));
        assert!(changed(&|dir| {
            let file = fs::File::options().write(true).open(dir.join("db")).expect("opened");
            file.set_modified(SystemTime::UNIX_EPOCH).expect("set");
        }));
        assert!(changed(&|dir| fs::remove_file(dir.join("blobs/1")).expect("removed")));
    }
}
