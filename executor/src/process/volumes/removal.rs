//! Removing what is in a volume, and nothing else: no symbolic link is followed, and no file system entered that is
//! mounted inside.
//!
//! Each folder is opened by its name in the one above it, without following a link, and not if it is a place where
//! something is mounted (`RESOLVE_NO_XDEV`, which also sees a bind mount of the same file system; on kernels without
//! it, the devices are compared).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, fchmod, fstat, openat, openat2,
    renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::home::Home;
use crate::durable;

/// Names that are read before they are removed.
const BATCH: usize = 1000;
/// Folders within folders: each holds a descriptor. What is deeper is moved up first.
const DEEPEST: u32 = 32;

/// Removes everything but the record. What is there is out of the way, durably, before any of it is removed. Stops when
/// it is told to; begun anew, it goes on.
pub(super) fn empty(home: &Home, stop: &AtomicBool) -> io::Result<()> {
    let doomed = home.file("doomed");
    clear(home, "doomed", stop)?;
    match std::fs::rename(home.data(), &doomed) {
        Ok(()) => durable::sync_folder(&doomed)?,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
        Err(error) => return Err(error),
    }
    for name in ["doomed", "data.new", "used", "used.new"] {
        clear(home, name, stop)?;
    }
    durable::sync_folder(&doomed)
}

/// The first place below the volume where something is mounted, as far as the system tells.
pub(super) fn mounted_inside(home: &Home) -> Option<PathBuf> {
    let path = std::fs::canonicalize(home.path()).ok()?;
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let points =
        mounts.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(unescaped).find(|point| point.starts_with(&path))
}

/// A path as mountinfo(5) writes it: some bytes as a backslash and three octal digits.
fn unescaped(mut text: &[u8]) -> PathBuf {
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
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

/// Removes what stands in the volume's folder by this name; nothing is fine.
fn clear(home: &Home, name: &str, stop: &AtomicBool) -> io::Result<()> {
    let folder = match openat(CWD, home.path(), FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(folder) => folder,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let name = CString::new(name)?;
    let Some(top) = unlink(&folder, &name, home.path())? else { return Ok(()) };
    let mut clearing = Clearing { top: &top, home: home.path(), stop, moved: 0 };
    clearing.clear(&top, 0)?;
    unlinkat(&folder, &name, AtFlags::REMOVEDIR)?;
    Ok(())
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

struct Clearing<'a> {
    top: &'a OwnedFd,
    home: &'a Path,
    stop: &'a AtomicBool,
    moved: u64,
}

impl Clearing<'_> {
    fn clear(&mut self, folder: &OwnedFd, depth: u32) -> io::Result<()> {
        loop {
            let names = names(folder)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in names {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let Some(inner) = unlink(folder, &name, self.home)? else { continue };
                if depth >= DEEPEST {
                    self.move_up(folder, &name)?;
                    continue;
                }
                self.clear(&inner, depth + 1)?;
                unlinkat(folder, &name, AtFlags::REMOVEDIR)?;
            }
        }
    }

    /// To the top, where it is found when that is read again.
    fn move_up(&mut self, folder: &OwnedFd, name: &CString) -> io::Result<()> {
        loop {
            self.moved += 1;
            let free = format!("deeper-{}", self.moved);
            match renameat_with(folder, name, self.top, free, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Some of the names in a folder.
fn names(folder: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
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

/// Removes what has this name, unless it is a folder: that is opened.
fn unlink(folder: &OwnedFd, name: &CString, home: &Path) -> io::Result<Option<OwnedFd>> {
    let named = |error: Errno| {
        let name = name.to_string_lossy();
        let text = match error {
            Errno::XDEV | Errno::BUSY => format!("another file system is mounted inside: {name}"),
            error => format!("remove {name}: {error}"),
        };
        io::Error::new(io::Error::from(error).kind(), format!("{text}, in {}", home.display()))
    };
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(None),
        // A folder.
        Err(Errno::ISDIR) => {
            let opened = open(folder, name).map_err(named)?;
            let mode = Mode::from_raw_mode(fstat(&opened)?.st_mode);
            if !mode.contains(Mode::RWXU) {
                let _ = fchmod(&opened, Mode::RWXU);
            }
            Ok(Some(opened))
        }
        Err(error) => Err(named(error)),
    }
}

fn open(folder: &OwnedFd, name: &CString) -> rustix::io::Result<OwnedFd> {
    match open_here(folder, name, FOLDER) {
        // Ours, but forbidden to its owner: allowed first, by way of a descriptor that no link can lead elsewhere.
        Err(Errno::ACCESS) => {
            let path = open_here(folder, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
            rustix::fs::chmod(format!("/proc/self/fd/{}", path.as_raw_fd()), Mode::RWXU)?;
            open_here(folder, name, FOLDER)
        }
        opened => opened,
    }
}

fn open_here(folder: &OwnedFd, name: &CString, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    match openat2(folder, name, flags | OFlags::NOFOLLOW, Mode::empty(), resolve) {
        // Not known to the kernel, or kept from us.
        Err(Errno::NOSYS | Errno::PERM) => {
            let opened = openat(folder, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
            let (above, inner) = (fstat(folder)?, fstat(&opened)?);
            let is_folder = FileType::from_raw_mode(inner.st_mode) == FileType::Directory;
            if above.st_dev != inner.st_dev || !is_folder { Err(Errno::XDEV) } else { Ok(opened) }
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_read_as_they_are_written() {
        for (text, path) in
            [("/a/b", "/a/b"), (r"/a\040b\134c", r"/a b\c"), (r"/a\04", r"/a\04"), (r"/\011", "/\t")]
        {
            assert_eq!(unescaped(text.as_bytes()), PathBuf::from(path), "{text}");
        }
    }
}
