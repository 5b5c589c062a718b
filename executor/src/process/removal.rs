//! Removal of directories that programs could write to. Nothing outside such a directory is touched: no
//! symbolic link is followed, and no mount point is entered.
//!
//! Each directory is opened by its name in its parent, without following a link, and never at a mount point.
//! `RESOLVE_NO_XDEV` also refuses a bind mount of the same file system; without `openat2`, the mounts of both
//! descriptors are compared. So the kernel also refuses a mount made after the check.
//!
//! A directory that must be removed and cannot be is a *debt* ([`debts`]): reported with its reason, and
//! retried ([`RemovalTasks`]) until it is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, ResolveFlags, fchmod, fstat, openat, openat2,
    renameat_with, unlinkat,
};
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::integrity::if_exists;
use super::lock;
use crate::state_file;

/// Delay before a failed removal is retried.
pub(super) const RETRY: Duration = Duration::from_secs(2);
/// Maximum number of concurrent removals. Hanging removals delay others only if there are this many.
const CONCURRENT: usize = 8;
/// Maximum number of directory entries that are read before they are removed.
const BATCH: usize = 1000;
/// Maximum depth of nested open directories: each needs a file descriptor. A deeper directory is first moved
/// to a lower depth.
const DEEPEST: u32 = 32;

/// Removes a directory with everything inside, or a file; a missing path is not an error. Fails while
/// anything is mounted inside. Returns early when `stop` is set; another call continues.
pub(super) fn remove(path: &Path, stop: &AtomicBool) -> io::Result<()> {
    refuse_mounts(path)?;
    remove_unmounted(path, stop)
}

/// Removes a directory of the executor as [`remove`] does, to the end.
pub fn remove_directory(path: &Path) -> io::Result<()> {
    remove(path, &AtomicBool::new(false))
}

/// Moves a directory to `target` on the same file system, durably. Fails while anything is mounted inside:
/// the mount would move along.
pub(super) fn relocate(path: &Path, target: &Path) -> io::Result<()> {
    refuse_mounts(path)?;
    let moved = match std::fs::rename(path, target) {
        // The owner may lack the permission to write: another parent changes the entry `..`.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let (parent, name) = (open_parent(path)?, name_of(path)?);
            let directory = open(&parent, &name)?;
            fchmod(&directory, Mode::RWXU)?;
            std::fs::rename(path, target)
        }
        moved => moved,
    };
    if if_exists(moved)?.is_some() {
        state_file::sync_directory(path)?;
        state_file::sync_directory(target)?;
    }
    Ok(())
}

/// Fails with the mount point, if anything is mounted at `path` or below it, by mountinfo(5). The path itself is
/// not resolved: a file system mounted there might not answer.
pub(super) fn refuse_mounts(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let Some(parent) = state_file::if_found(std::fs::canonicalize(parent))? else { return Ok(()) };
    match first_inside(&parent.join(name), &std::fs::read("/proc/self/mountinfo")?) {
        None => Ok(()),
        Some(point) => {
            let text = format!("another file system is mounted inside: {}", point.display());
            Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
        }
    }
}

fn first_inside(path: &Path, mountinfo: &[u8]) -> Option<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(unescaped).find(|point| point.starts_with(path))
}

/// Decodes a path of mountinfo(5): some bytes are a backslash and three octal digits.
pub(super) fn unescaped(mut text: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    while let Some((first, rest)) = text.split_first() {
        let code =
            rest.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            text = &rest[3..];
        } else {
            bytes.push(*first);
            text = rest;
        }
    }
    // The directory of the mount point was removed.
    let path = bytes.strip_suffix(b"//deleted").unwrap_or(&bytes);
    PathBuf::from(OsStr::from_bytes(path))
}

/// Removes as [`remove`] does, after its check.
fn remove_unmounted(path: &Path, stop: &AtomicBool) -> io::Result<()> {
    let Some(parent) = state_file::if_found(open_parent(path))? else { return Ok(()) };
    let name = name_of(path)?;
    let Some(top) = unlink(&parent, &name, path)? else { return Ok(()) };
    let mut clearing = DirectoryClearing { top: &top, path, stop, moved: 0 };
    clearing.clear(&top, 0)?;
    unlink_directory(&parent, &name, path)
}

fn open_parent(path: &Path) -> io::Result<OwnedFd> {
    let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(openat(CWD, parent, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?)
}

fn name_of(path: &Path) -> io::Result<CString> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(CString::new(name.as_bytes())?)
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

struct DirectoryClearing<'a> {
    top: &'a OwnedFd,
    path: &'a Path,
    stop: &'a AtomicBool,
    moved: u64,
}

impl DirectoryClearing<'_> {
    fn clear(&mut self, directory: &OwnedFd, depth: u32) -> io::Result<()> {
        loop {
            let names = names(directory)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let Some(inner) = unlink(directory, &name, self.path)? else { continue };
                if depth >= DEEPEST {
                    self.move_up(directory, &name)?;
                    continue;
                }
                self.clear(&inner, depth + 1)?;
                unlink_directory(directory, &name, self.path)?;
            }
        }
    }

    /// Moves a directory to the top, where it is found when the top is read again.
    fn move_up(&mut self, directory: &OwnedFd, name: &CString) -> io::Result<()> {
        loop {
            self.moved += 1;
            let free = format!("deeper-{}", self.moved);
            match renameat_with(directory, name, self.top, free, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns some of the names in a directory.
fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
        if names.len() == BATCH {
            break;
        }
    }
    Ok(names)
}

/// Removes an entry, unless it is a directory, which is opened and made writable to its owner.
fn unlink(directory: &OwnedFd, name: &CString, path: &Path) -> io::Result<Option<OwnedFd>> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(None),
        Err(Errno::ISDIR) => {
            let opened = match open(directory, name) {
                Err(Errno::NOENT) => return Ok(None),
                opened => opened.map_err(|error| named(error, name, path))?,
            };
            let mode = Mode::from_raw_mode(fstat(&opened)?.st_mode);
            if !mode.contains(Mode::RWXU) {
                fchmod(&opened, Mode::RWXU).map_err(|error| named(error, name, path))?;
            }
            Ok(Some(opened))
        }
        Err(error) => Err(named(error, name, path)),
    }
}

fn unlink_directory(directory: &OwnedFd, name: &CString, path: &Path) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(named(error, name, path)),
    }
}

fn named(error: Errno, name: &CString, path: &Path) -> io::Error {
    let name = name.to_string_lossy();
    let text = match error {
        Errno::XDEV | Errno::BUSY => format!("another file system is mounted inside: {name}"),
        error => format!("cannot remove {name}: {error}"),
    };
    io::Error::new(io::Error::from(error).kind(), format!("{text}, in {}", path.display()))
}

fn open(directory: &OwnedFd, name: &CString) -> rustix::io::Result<OwnedFd> {
    match open_here(directory, name, DIRECTORY) {
        // Ours, but forbidden to its owner: permitted first, through a descriptor that no link can redirect.
        Err(Errno::ACCESS) => {
            let path = open_here(directory, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
            rustix::fs::chmod(format!("/proc/self/fd/{}", path.as_raw_fd()), Mode::RWXU)?;
            open_here(directory, name, DIRECTORY)
        }
        opened => opened,
    }
}

fn open_here(directory: &OwnedFd, name: &CString, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    match openat2(directory, name, flags | OFlags::NOFOLLOW, Mode::empty(), resolve) {
        // Not supported by the kernel, or forbidden.
        Err(Errno::NOSYS | Errno::PERM) => open_on_same_mount(directory, name, flags),
        opened => opened,
    }
}

fn open_on_same_mount(directory: &OwnedFd, name: &CString, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let opened = openat(directory, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    if mount_of(directory)? == mount_of(&opened)? { Ok(opened) } else { Err(Errno::XDEV) }
}

/// Returns the number of the mount on which a descriptor is open, by `proc_pid_fdinfo(5)`.
fn mount_of(opened: &OwnedFd) -> rustix::io::Result<u64> {
    let unknown = |_| Errno::XDEV;
    let info =
        std::fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd())).map_err(unknown)?;
    let number = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).ok_or(Errno::XDEV)?;
    number.trim().parse().map_err(|_| Errno::XDEV)
}

/// Directories that must be removed and cannot be, with the reason.
static DEBTS: Mutex<BTreeMap<PathBuf, String>> = Mutex::new(BTreeMap::new());

/// Returns directories that executors in this process must remove and cannot, with the reasons. Each is
/// retried while its executor runs.
pub fn debts() -> BTreeMap<PathBuf, String> {
    lock(&DEBTS).clone()
}

/// Directory that must be removed and could not be; in [`debts`] until this is dropped.
#[derive(Debug)]
pub(super) struct RemovalDebt {
    path: PathBuf,
    reason: String,
}

impl RemovalDebt {
    /// Records why a removal failed; each reason is logged once.
    pub(super) fn note(debt: &mut Option<RemovalDebt>, path: &Path, error: &io::Error) {
        let reason = error.to_string();
        if debt.as_ref().is_some_and(|debt| debt.reason == reason) {
            return;
        }
        tracing::error!(reason, directory = %path.display(), "cannot remove directory, retrying");
        lock(&DEBTS).insert(path.to_owned(), reason.clone());
        let noted = debt.get_or_insert_with(|| RemovalDebt { path: path.to_owned(), reason: String::new() });
        noted.reason = reason;
    }
}

impl Drop for RemovalDebt {
    fn drop(&mut self) {
        lock(&DEBTS).remove(&self.path);
    }
}

/// Removals of one executor, each in its own task: none delays anything else, and each is retried until it
/// succeeds.
#[derive(Clone, Debug)]
pub(super) struct RemovalTasks {
    stop: Arc<AtomicBool>,
    turns: Arc<Semaphore>,
    pending: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Default for RemovalTasks {
    fn default() -> RemovalTasks {
        RemovalTasks {
            stop: Arc::default(),
            turns: Arc::new(Semaphore::new(CONCURRENT)),
            pending: Arc::default(),
        }
    }
}

impl RemovalTasks {
    /// Removes a directory after `before` has returned, in a task of the runtime. A pending directory is left
    /// to its task.
    pub(super) fn start(&self, on: &Handle, path: PathBuf, before: impl Fn() + Clone + Send + 'static) {
        if lock(&self.pending).insert(path.clone()) {
            let removals = self.clone();
            drop(on.spawn(async move {
                removals.remove(&path, before).await;
                lock(&removals.pending).remove(&path);
            }));
        }
    }

    async fn remove(&self, path: &Path, before: impl Fn() + Clone + Send + 'static) {
        let mut debt = None;
        while let Ok(turn) = self.turns.acquire().await {
            let (before, doomed, stop) = (before.clone(), path.to_owned(), self.stop.clone());
            let removed = tokio::task::spawn_blocking(move || {
                before();
                remove(&doomed, &stop)
            });
            let removed = removed.await.map_err(io::Error::other).flatten();
            drop(turn);
            match removed {
                Err(error) if !self.stop.load(Ordering::Relaxed) => {
                    RemovalDebt::note(&mut debt, path, &error);
                }
                Ok(()) | Err(_) => return,
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Stops all removals; the next executor continues.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
