//! Times at which the data in a file of an output was written: an index in `NAME.N.times`.
//!
//! An entry has 16 bytes: an offset in the file, and microseconds since 1970 by the machine's clock, both
//! little-endian. Data after the offset was written at that time or later, before the next entry, and at most
//! [`SPAN`] later. So a file that fills slowly has an entry after each pause, and one that fills fast has at
//! most one per second. An index that cannot be written costs only precision.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::state_file;

/// Maximum time between an entry and the data it describes.
pub(super) const SPAN: Duration = Duration::from_secs(10);
/// Minimum time between two entries.
const SHORTEST: Duration = Duration::from_secs(1);
/// Minimum number of bytes between two entries within the span.
const BYTES: u64 = 64;
/// Size of an entry in bytes.
const ENTRY: usize = 16;
/// Maximum number of entries of a file in memory.
const MOST: usize = 1024;
/// Number of entries that are read at a time.
pub(super) const AHEAD: usize = 32;
/// Maximum number of index bytes that are read: the payload can write to the directory of the index.
const LONGEST: u64 = 4 << 20;

/// Time, and the offset of the data that was written then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TimesEntry {
    pub(super) offset: u64,
    /// Microseconds since 1970.
    pub(super) time: u64,
}

pub(super) fn path_of(part: &Path) -> PathBuf {
    part.with_added_extension("times")
}

pub(super) fn micros(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Index of the file that is being written.
#[derive(Debug, Default)]
pub(super) struct TimesWriter {
    file: Option<File>,
    last: Option<TimesEntry>,
}

impl TimesWriter {
    /// Notes that data will be written to the file at the offset.
    pub(super) fn note(&mut self, part: &Path, offset: u64, now: SystemTime) {
        let entry = TimesEntry { offset, time: micros(now) };
        let is_due = self.last.is_none_or(|last| {
            // A clock that was set back makes an entry too.
            let passed = entry.time.checked_sub(last.time).map(Duration::from_micros);
            let bytes = offset.saturating_sub(last.offset);
            passed.is_none_or(|passed| passed >= SPAN || (passed >= SHORTEST && bytes >= BYTES))
        });
        if is_due {
            self.last = Some(entry);
            if self.write(part, entry).is_err() {
                // A partial entry is cut off when the file is opened again.
                self.file = None;
            }
        }
    }

    fn write(&mut self, part: &Path, entry: TimesEntry) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let mut options = OpenOptions::new();
                let file =
                    state_file::open_plain(options.append(true).create(true).mode(0o600), &path_of(part))?;
                let length = file.metadata()?.len();
                let whole = length - length % ENTRY as u64;
                if whole < length {
                    file.set_len(whole)?;
                }
                none.insert(file)
            }
        };
        file.write_all(&bytes(entry))
    }
}

fn bytes(entry: TimesEntry) -> [u8; ENTRY] {
    let mut bytes = [0; ENTRY];
    bytes[..8].copy_from_slice(&entry.offset.to_le_bytes());
    bytes[8..].copy_from_slice(&entry.time.to_le_bytes());
    bytes
}

/// Reads the next entry of an index; a partial entry is none.
fn next(file: &mut impl io::Read) -> io::Result<Option<TimesEntry>> {
    let mut one = [0; ENTRY];
    match file.read_exact(&mut one) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let number = |at: usize| one[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    Ok(Some(TimesEntry { offset: number(0), time: number(8) }))
}

/// Returns at most [`MOST`] entries, spread over a file. A file without an index has one entry, of its last
/// change; a deleted file has none.
pub(super) fn read(part: &Path) -> io::Result<VecDeque<TimesEntry>> {
    let mut entries = VecDeque::new();
    if let Some(file) = open(part)? {
        let mut file = BufReader::new(file.take(LONGEST));
        let (mut number, mut step) = (0_u64, 1_u64);
        while let Some(entry) = next(&mut file)? {
            if number.is_multiple_of(step) {
                entries.push_back(entry);
            }
            number += 1;
            // Drops every second entry: its data counts as written earlier.
            if entries.len() == MOST {
                let mut keep = false;
                entries.retain(|_| {
                    keep = !keep;
                    keep
                });
                step *= 2;
            }
        }
    }
    or_of_file(entries, part)
}

/// Returns the entry for an offset, and the next ones: at most [`AHEAD`].
pub(super) fn read_at(part: &Path, offset: u64) -> io::Result<VecDeque<TimesEntry>> {
    let mut entries = VecDeque::new();
    if let Some(mut file) = open(part)? {
        let (mut from, mut to) = (0, file.metadata()?.len().min(LONGEST) / ENTRY as u64);
        while from < to {
            let middle = from.midpoint(to);
            file.seek(SeekFrom::Start(middle * ENTRY as u64))?;
            let Some(entry) = next(&mut file)? else { break };
            (from, to) = if entry.offset <= offset { (middle + 1, to) } else { (from, middle) };
        }
        file.seek(SeekFrom::Start(from.saturating_sub(1) * ENTRY as u64))?;
        let mut file = BufReader::new(file.take((AHEAD * ENTRY) as u64));
        entries = std::iter::from_fn(|| next(&mut file).transpose()).collect::<io::Result<_>>()?;
    }
    or_of_file(entries, part)
}

/// Opens the index of a file, if it has one.
fn open(part: &Path) -> io::Result<Option<File>> {
    state_file::if_found(state_file::open_plain(File::options().read(true), &path_of(part)))
}

/// Returns the entries of a file, or, without an index, the entry for all of it: its last change.
fn or_of_file(mut entries: VecDeque<TimesEntry>, part: &Path) -> io::Result<VecDeque<TimesEntry>> {
    if entries.is_empty()
        && let Some(found) = state_file::if_found(part.symlink_metadata())?
    {
        entries.push_back(TimesEntry { offset: 0, time: micros(found.modified()?) });
    }
    Ok(entries)
}

/// Returns the size of a file's index in bytes; 0 without one.
pub(super) fn length(part: &Path) -> io::Result<u64> {
    Ok(state_file::if_found(path_of(part).symlink_metadata())?.map_or(0, |found| found.len()))
}

/// Writes the index of a copied file.
pub(super) fn copy(part: &Path, entries: &[TimesEntry]) -> io::Result<()> {
    let all: Vec<u8> = entries.iter().flat_map(|entry| bytes(*entry)).collect();
    super::output::create_replacing(&path_of(part))?.write_all(&all)
}

/// Removes the index of a deleted file.
pub(super) fn remove(part: &Path) -> io::Result<()> {
    state_file::if_found(std::fs::remove_file(path_of(part))).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_index_few_entries_are_kept_and_none_has_a_later_time_than_there_was() {
        let directory = tempfile::tempdir().unwrap();
        let part = directory.path().join("web-0.out.1");
        let all: Vec<TimesEntry> =
            (0..50_000).map(|at| TimesEntry { offset: at * 64, time: 1_000 + at * 1_000_000 }).collect();
        copy(&part, &all).unwrap();
        let kept = read(&part).unwrap();
        assert!(kept.len() < MOST && kept.len() > MOST / 4, "{}", kept.len());
        assert_eq!(kept[0], all[0]);
        for entry in &kept {
            assert_eq!(all[usize::try_from(entry.offset / 64).unwrap()], *entry);
        }
        let between = kept.iter().zip(kept.iter().skip(1)).map(|(one, next)| next.offset - one.offset);
        assert!(between.max() == Some(64 * 64), "evenly");
        assert!(all.last().unwrap().offset - kept.back().unwrap().offset < 64 * 64);
    }

    #[test]
    fn the_entries_at_an_offset_are_found_in_an_index_of_any_length() {
        let directory = tempfile::tempdir().unwrap();
        let part = directory.path().join("web-0.out.1");
        for length in [1, 2, 31, 32, 33, 1000] {
            let all: Vec<TimesEntry> =
                (0..length).map(|at| TimesEntry { offset: at * 10, time: 1_000 + at }).collect();
            copy(&part, &all).unwrap();
            for offset in 0..length * 10 {
                let found = read_at(&part, offset).unwrap();
                let from = usize::try_from(offset / 10).unwrap();
                let to = all.len().min(from + AHEAD);
                assert_eq!(Vec::from(found), all[from..to], "{length} entries, offset {offset}");
            }
        }
    }

    #[test]
    fn an_index_has_few_entries_and_one_after_each_pause() {
        let directory = tempfile::tempdir().unwrap();
        let part = directory.path().join("web-0.out.1");
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let mut writer = TimesWriter::default();
        // Milliseconds, offset, and whether there is an entry.
        let table = [
            (0, 0, true),
            (500, 1000, false),
            (1000, 2000, true),
            (2000, 2010, false),
            (9000, 2063, false),
            (9500, 2064, true),
            (15_000, 2065, false),
            (19_500, 2066, true),
            (19_400, 2070, true),
        ];
        let mut wanted = Vec::new();
        for (millis, offset, has_entry) in table {
            let now = start + Duration::from_millis(millis);
            writer.note(&part, offset, now);
            wanted.extend(has_entry.then_some(TimesEntry { offset, time: micros(now) }));
        }
        assert_eq!(Vec::from(read(&part).unwrap()), wanted);
        // A partial entry of an interrupted writer is skipped, and cut off by the next writer.
        let path = path_of(&part);
        File::options().append(true).open(&path).unwrap().write_all(b"half").unwrap();
        assert_eq!(read(&part).unwrap().len(), wanted.len());
        TimesWriter::default().note(&part, 3000, start);
        assert_eq!(read(&part).unwrap().back(), Some(&TimesEntry { offset: 3000, time: micros(start) }));
        assert_eq!(path.metadata().unwrap().len() % ENTRY as u64, 0);
    }
}
