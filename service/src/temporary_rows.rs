//! Rows in a temporary directory: built there, or copied from a server's directory.
//!
//! sled locks and changes the files that it opens, so the rows of a server are read from a copy. A server may write
//! to its rows meanwhile: a copy counts only if no file has changed since before it was made. What sled has not
//! written yet is missing in the copy, as after a crash.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use chancery_cli::note;
use chancery_decider::random;
use chancery_journal::private;

/// Maximum number of attempts to copy rows that change meanwhile.
const ATTEMPTS: u32 = 5;
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// Directory of rows, which is removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct TemporaryRows(PathBuf);

/// Path in a directory, size and time of the last change of each file.
type FileList = Vec<(PathBuf, u64, SystemTime)>;

impl TemporaryRows {
    pub(crate) fn create() -> Result<TemporaryRows> {
        let path = std::env::temp_dir().join(format!("chancery-rows-{:016x}", random()));
        private::create_dir_all(&path)
            .with_context(|| format!("cannot create directory {}", path.display()))?;
        Ok(TemporaryRows(path))
    }

    /// Copies the rows in a directory; `None` if there are none.
    pub(crate) fn copy_of(rows: &Path) -> Result<Option<TemporaryRows>> {
        let failed = || format!("cannot copy rows in {}", rows.display());
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                thread::sleep(PAUSE);
            }
            let files = match list(rows) {
                Ok(files) if files.is_empty() => return Ok(None),
                Ok(files) => files,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error).with_context(failed),
            };
            let copy = TemporaryRows::create()?;
            copy.ensure_space(files.iter().map(|(_, size, _)| size).sum())?;
            let copied =
                files.iter().try_for_each(|(path, ..)| copy_file(&rows.join(path), &copy.0.join(path)));
            match copied {
                Ok(()) if list(rows).with_context(failed)? == files => return Ok(Some(copy)),
                Ok(()) => {}
                // A file that was there has been removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(failed),
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
        let disk = rustix::fs::statvfs(&self.0)
            .map_err(io::Error::from)
            .with_context(|| format!("cannot read free space of {}", self.0.display()))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        ensure!(
            needed < free,
            "cannot copy rows to {}: {needed} bytes needed, {free} bytes free\nhint: set TMPDIR to a directory with more \
             space",
            self.0.display()
        );
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryRows {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            note!("chancery: cannot remove {}: {error}", self.0.display());
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
            let meta = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                meta => meta?,
            };
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
        let path = copy.path().to_owned();
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
