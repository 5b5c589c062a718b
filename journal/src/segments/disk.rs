//! Disk operations of the journal: few, so that tests can replace the disk with one that fails, reports
//! false success or loses power. Reads do not use this interface.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::private;

/// Disk to write to. Only [`DiskAccess::sync_dir`] makes names durable.
pub trait DiskAccess: Send + Sync {
    /// Creates an empty file, or truncates an existing one.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens an existing file.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Renames a file.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// File to write to.
pub trait DiskFile: Send {
    /// Writes all bytes at an offset.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes everything written durable (`fdatasync`). After an error the state of the writes is unknown, and
    /// a retry would falsely succeed: the kernel reports a failure once.
    fn sync(&self) -> io::Result<()>;
}

/// File system of the operating system.
#[derive(Clone, Copy, Default, Debug)]
pub struct FileSystem;

impl DiskAccess for FileSystem {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(private::create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().write(true).open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

impl DiskFile for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
