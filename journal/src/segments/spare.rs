//! The next segment, filled with zeros before it is needed.
//!
//! Writing into blocks that are allocated and written already spares the file system's own journal, which makes
//! group commit 1.5 to 2 times as fast; `fallocate` alone does not (its extents are still to be converted). So a
//! thread fills a file named `spare` and syncs it; the writer renames it when it comes to that. What must stay true:
//! a segment has nothing but zeros in it, durably, when it gets its name.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::disk::{Disk, DiskFile};

/// The name of the file until it is a segment.
pub(super) const NAME: &str = "spare";

const CHUNK: usize = 1 << 20;
/// Synced as it grows, so that the end of it does not flood the disk that the writer syncs to.
const SYNC_EVERY: u64 = 8 << 20;

/// Makes a file of zeros.
pub(super) fn fill(
    disk: &dyn Disk,
    path: &Path,
    size: u64,
    is_unwanted: &AtomicBool,
) -> io::Result<Box<dyn DiskFile>> {
    let file = disk.create(path)?;
    let zeros = vec![0; CHUNK.min(size as usize)];
    let mut at = 0;
    while at < size {
        if is_unwanted.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let len = zeros.len().min((size - at) as usize);
        file.write_at(&zeros[..len], at)?;
        at += len as u64;
        if at.is_multiple_of(SYNC_EVERY) {
            file.sync()?;
        }
    }
    file.sync()?;
    Ok(file)
}

/// A spare in the making, or made.
pub(super) struct Spare {
    pub(super) size: u64,
    path: PathBuf,
    disk: Arc<dyn Disk>,
    is_unwanted: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Box<dyn DiskFile>>>>,
}

impl Spare {
    /// Starts making one.
    pub(super) fn start(disk: Arc<dyn Disk>, dir: &Path, size: u64) -> io::Result<Spare> {
        let path = dir.join(NAME);
        let is_unwanted = Arc::new(AtomicBool::new(false));
        let (its_disk, its_path, its_flag) = (disk.clone(), path.clone(), is_unwanted.clone());
        let thread = thread::Builder::new()
            .name("journal-spare".into())
            .spawn(move || fill(&*its_disk, &its_path, size, &its_flag))?;
        Ok(Spare { size, path, disk, is_unwanted, thread: Some(thread) })
    }

    /// Waits until it is made.
    pub(super) fn take(mut self) -> io::Result<Box<dyn DiskFile>> {
        self.join().unwrap_or_else(|| Err(io::Error::other("there is no spare")))
    }

    fn join(&mut self) -> Option<io::Result<Box<dyn DiskFile>>> {
        let made = self.thread.take()?.join();
        Some(made.unwrap_or_else(|_| Err(io::Error::other("the thread that fills segments panicked"))))
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        self.is_unwanted.store(true, Ordering::Relaxed);
        // Never used: the name goes as well, and the next start clears away what remains if this fails.
        if self.join().is_some() {
            let _ = self.disk.remove(&self.path);
        }
    }
}
