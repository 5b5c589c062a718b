//! State files that outlive a crash and one damaged copy, and locks.
//!
//! A state file has two copies, `NAME.json` and `NAME.copy`. Each has a first line, `chancery-record COUNT
//! CHECKSUM`, followed by the value as JSON. The count rises with each write. The checksum (CRC-32C) covers
//! the count, a line feed and the JSON. Both copies are on disk when a write returns, so an unreadable copy
//! loses nothing. The newest valid copy counts, and the owner restores the other from it.
//!
//! Two valid copies are written in place, one after the other: the untouched one is on disk before the other
//! changes. Otherwise, and where a file has more than one name, new files replace the copies. A write that
//! fails on a copy removes that copy, so that no reader trusts data that the disk refused. Either way the
//! directory is synced last, once for both. A [`StateFile`] that finds everything as its last write left it
//! syncs only what it writes.
//!
//! Measured on ext4 on a virtual disk, syncs included: 0.86 ms with new files; in place 0.60 ms, or 0.63
//! where the length changes; by a [`StateFile`] 0.41 ms. One new file without a second copy takes 0.58 ms.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Prefix of a copy's first line.
const MARK: &str = "chancery-record ";

/// Maximum number of further reads by an observer if a copy is invalid: the owner may be writing it.
const LOOKS: usize = 5;

/// Pause between two such reads.
const PAUSE: Duration = Duration::from_millis(1);

/// Usual allocation unit of file systems, in bytes: a copy grows within one without new space. With smaller
/// units, a full disk may cost one of the copies until there is space again.
const BLOCK: usize = 4096;

enum CopyState {
    Missing,
    /// Something else than was written there.
    Damaged,
    Whole(ValidCopy),
}

struct ValidCopy {
    count: u64,
    bytes: Vec<u8>,
    /// Offset of the value in `bytes`.
    json: usize,
}

/// Replaces the state file at `path` by `value`, which is on disk, twice, when this returns.
///
/// One writer per path: temporary files have fixed names, so that crashes leave no others.
pub(crate) fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    StateFile::at(path.to_owned()).write(value)
}

/// State file that is written repeatedly: files that are still as its last write left them are not synced
/// again.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    left: Option<LastWrite>,
}

/// Result of a write in place: the same bytes in two files, on disk under their names.
#[derive(Debug)]
struct LastWrite {
    bytes: Vec<u8>,
    files: [CopyStamp; 2],
}

impl LastWrite {
    /// Whether the copies are unchanged since this write.
    fn is(&self, copies: &[InPlaceWrite<'_>; 2]) -> io::Result<bool> {
        Ok(self.files == editions(copies)? && copies.iter().all(|copy| copy.whole.bytes == self.bytes))
    }
}

/// Identity of a file (device and inode) and time of its last change (seconds and nanoseconds).
type CopyStamp = (u64, u64, i64, i64);

/// Returns both stamps, sorted, whichever copy is older.
fn editions(copies: &[InPlaceWrite<'_>; 2]) -> io::Result<[CopyStamp; 2]> {
    let [first, second] = copies.each_ref().map(|copy| {
        let is = copy.file.metadata()?;
        Ok::<_, io::Error>((is.dev(), is.ino(), is.ctime(), is.ctime_nsec()))
    });
    let mut both = [first?, second?];
    both.sort_unstable();
    Ok(both)
}

impl StateFile {
    pub(crate) fn at(path: PathBuf) -> StateFile {
        StateFile { path, left: None }
    }

    pub(crate) fn write(&mut self, value: &impl Serialize) -> io::Result<()> {
        let copies = copies(&self.path);
        let found = look(&copies)?;
        let count = newest(&found).map_or(0, |newest| newest.count);
        let bytes = sealed(count + 1, &serde_json::to_vec(value)?);
        let left = self.left.take();
        let Some(places) = in_place(&copies, &found, bytes.len()) else {
            return replace(&copies, &bytes);
        };
        let stands = left.map_or(Ok(false), |left| left.is(&places))?;
        let [older, newer] = &places;
        if !stands {
            newer.file.sync_data()?;
        }
        older.write(&bytes)?;
        newer.write(&bytes)?;
        if !stands {
            // After a crash, a name can be missing on disk.
            sync_directory(&self.path)?;
        }
        self.left = Some(LastWrite { files: editions(&places)?, bytes });
        Ok(())
    }
}

/// Replaces both copies by new files.
fn replace(copies: &[PathBuf; 2], bytes: &[u8]) -> io::Result<()> {
    // Both are written before the first is synced: many file systems then write both to disk in one pass.
    for file in copies.each_ref().map(|copy| begin(copy, bytes)) {
        file?.sync_data()?;
    }
    for copy in copies {
        std::fs::rename(new_file(copy), copy)?;
    }
    sync_directory(&copies[0])
}

/// Access of the reader of a state file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileAccess {
    /// Sole writer of the file, which restores an invalid copy. The value is on disk when the read returns,
    /// whatever happened to its writer.
    Owner,
    /// Another process, which changes nothing.
    Observer,
}

/// Reads what [`write()`] wrote; `None` if there is no file.
pub(crate) fn read<T: DeserializeOwned>(path: &Path, by: FileAccess) -> io::Result<Option<T>> {
    let copies = copies(path);
    let mut found = look(&copies)?;
    for _ in 0..LOOKS {
        if by == FileAccess::Owner || !found.iter().any(|copy| matches!(copy, CopyState::Damaged)) {
            break;
        }
        std::thread::sleep(PAUSE);
        found = look(&copies)?;
    }
    let invalid = |reason: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::InvalidData, format!("cannot read {}: {reason}", path.display()))
    };
    let value = match newest(&found) {
        Some(newest) => serde_json::from_slice(&newest.bytes[newest.json..]).map_err(|e| invalid(&e))?,
        None if matches!(found, [CopyState::Missing, CopyState::Missing]) => return Ok(None),
        None => return Err(invalid(&"no valid copy")),
    };
    match by {
        FileAccess::Owner => settle(&copies, &found)?,
        FileAccess::Observer => {
            for (copy, _) in
                copies.iter().zip(&found).filter(|(_, found)| matches!(found, CopyState::Damaged))
            {
                tracing::warn!(copy = %copy.display(), "record copy damaged");
            }
        }
    }
    Ok(Some(value))
}

/// Removes a state file permanently; a missing file is no error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let mut removed = false;
    for copy in copies(path) {
        removed |= if_found(std::fs::remove_file(copy))?.is_some();
    }
    if removed { sync_directory(path) } else { Ok(()) }
}

/// Returns the result of an operation on a path, or `None` if the path does not exist.
pub(crate) fn if_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Returns the paths of a state file's copies.
pub(crate) fn copies(path: &Path) -> [PathBuf; 2] {
    [path.to_owned(), path.with_extension("copy")]
}

fn new_file(copy: &Path) -> PathBuf {
    let mut name = copy.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn begin(copy: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file = open_plain(options.write(true).create(true).truncate(true).mode(0o600), &new_file(copy))?;
    file.write_all(bytes)?;
    Ok(file)
}

struct InPlaceWrite<'a> {
    copy: &'a Path,
    whole: &'a ValidCopy,
    file: File,
}

impl InPlaceWrite<'_> {
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all_at(bytes, 0).and_then(|()| {
            // Setting the length costs another transaction of the file system's journal.
            if bytes.len() != self.whole.bytes.len() {
                self.file.set_len(bytes.len() as u64)?;
            }
            self.file.sync_data()
        });
        // The written data may read back without being on disk: the other copy is on disk.
        written.inspect_err(|_| {
            if let Err(error) = std::fs::remove_file(self.copy) {
                tracing::warn!(%error, copy = %self.copy.display(), "cannot remove incomplete record copy");
            }
        })
    }
}

/// Returns both copies, the older first, if `bytes` bytes can be written in place.
fn in_place<'a>(
    copies: &'a [PathBuf; 2],
    found: &'a [CopyState; 2],
    bytes: usize,
) -> Option<[InPlaceWrite<'a>; 2]> {
    let [CopyState::Whole(first), CopyState::Whole(second)] = found else { return None };
    let open = |copy: &'a PathBuf, whole: &'a ValidCopy| {
        let file =
            OpenOptions::new().write(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(copy);
        let file = file.ok()?;
        // Another name may be a snapshot that an operator took.
        let is_alone = file.metadata().is_ok_and(|is| is.is_file() && is.nlink() == 1);
        let fits = bytes.div_ceil(BLOCK) <= whole.bytes.len().div_ceil(BLOCK);
        (is_alone && fits).then_some(InPlaceWrite { copy, whole, file })
    };
    let (one, other) = (open(&copies[0], first)?, open(&copies[1], second)?);
    Some(if first.count <= second.count { [one, other] } else { [other, one] })
}

/// Syncs what was read, and replaces invalid copies by the newest.
fn settle(copies: &[PathBuf; 2], found: &[CopyState; 2]) -> io::Result<()> {
    let Some(newest) = newest(found) else { return Ok(()) };
    for (copy, found) in copies.iter().zip(found) {
        if matches!(found, CopyState::Whole(whole) if whole.count == newest.count) {
            File::open(copy)?.sync_data()?;
        }
    }
    for (copy, found) in copies.iter().zip(found) {
        let was = match found {
            CopyState::Missing => "missing",
            CopyState::Damaged => "damaged",
            CopyState::Whole(whole) if whole.count == newest.count => continue,
            CopyState::Whole(_) => "outdated",
        };
        let mended = begin(copy, &newest.bytes)
            .and_then(|file| file.sync_data())
            .and_then(|()| std::fs::rename(new_file(copy), copy));
        if let Err(error) = mended {
            tracing::warn!(%error, copy = %copy.display(), was, "cannot rewrite record copy");
        } else {
            tracing::warn!(copy = %copy.display(), was, "record copy rewritten");
        }
    }
    sync_directory(&copies[0])
}

fn sealed(count: u64, json: &[u8]) -> Vec<u8> {
    let checksum = crc32c::crc32c_append(crc32c::crc32c(format!("{count}\n").as_bytes()), json);
    [format!("{MARK}{count} {checksum:08x}\n").as_bytes(), json].concat()
}

fn look([first, second]: &[PathBuf; 2]) -> io::Result<[CopyState; 2]> {
    Ok([look_at(first)?, look_at(second)?])
}

fn look_at(copy: &Path) -> io::Result<CopyState> {
    let read = || {
        let mut bytes = Vec::new();
        open_plain(OpenOptions::new().read(true), copy)?.read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    match read() {
        Ok(bytes) => Ok(opened(bytes).map_or(CopyState::Damaged, CopyState::Whole)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(CopyState::Missing),
        // Data that the disk cannot read counts as altered.
        Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => Ok(CopyState::Damaged),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(CopyState::Damaged),
        Err(error) => Err(error),
    }
}

/// Returns the bytes of a copy if they are valid.
fn opened(bytes: Vec<u8>) -> Option<ValidCopy> {
    let json = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let (count, _) = std::str::from_utf8(&bytes[..json]).ok()?.strip_prefix(MARK)?.split_once(' ')?;
    let count = count.parse().ok()?;
    (sealed(count, &bytes[json..]) == bytes).then_some(ValidCopy { count, bytes, json })
}

fn newest(copies: &[CopyState; 2]) -> Option<&ValidCopy> {
    let whole = copies.iter().filter_map(|copy| match copy {
        CopyState::Whole(whole) => Some(whole),
        CopyState::Missing | CopyState::Damaged => None,
    });
    whole.max_by_key(|whole| whole.count)
}

/// Opens the plain file at a path. Never waits for a pipe or a device, and follows no symbolic link: programs
/// can write to directories of the executor.
pub(crate) fn open_plain(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let not_plain =
        || io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a regular file", path.display()));
    match options.custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Ok(_) => Err(not_plain()),
        // A pipe without a reader, a socket, or a symbolic link.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NXIO | Errno::LOOP)) => {
            Err(not_plain())
        }
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => Err(not_plain()),
        Err(error) => Err(error),
    }
}

/// Creates a directory and its parents, accessible to this user only.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes the names in the parent directory of `path` durable.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

pub(crate) enum LockAttempt {
    /// Lock acquired, until the file is dropped, or its last duplicate is closed.
    Acquired(File),
    /// Lock held elsewhere.
    HeldElsewhere,
}

/// Tries to lock the file at `path`, created if missing.
pub(crate) fn lock(path: &Path) -> io::Result<LockAttempt> {
    let mut options = OpenOptions::new();
    let file = open_plain(options.write(true).create(true).truncate(false).mode(0o600), path)?;
    lock_opened(file, path)
}

/// Tries to lock the file at `path`, which must exist.
pub(crate) fn lock_existing(path: &Path) -> io::Result<LockAttempt> {
    lock_opened(open_plain(OpenOptions::new().write(true), path)?, path)
}

fn lock_opened(file: File, path: &Path) -> io::Result<LockAttempt> {
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(LockAttempt::HeldElsewhere),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    // A lock on a file that was removed meanwhile excludes no one.
    let (held, named) = (file.metadata()?, std::fs::metadata(path)?);
    if (held.dev(), held.ino()) == (named.dev(), named.ino()) {
        Ok(LockAttempt::Acquired(file))
    } else {
        Ok(LockAttempt::HeldElsewhere)
    }
}

#[cfg(test)]
mod tests;
