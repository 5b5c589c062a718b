//! Reader of an output across its files, while they are written.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::capture::{part, parts};
use super::times::{self, SPAN, TimesEntry};
use crate::logs::LogReader;
use crate::state_file;

/// Maximum number of bytes at the end of an output that are searched for its last lines.
const TAIL: u64 = 1 << 20;
/// Maximum number of attempts to read data that was found.
const LOOKS: usize = 8;

/// Position in an output. Data that rotation has deleted before it was read is skipped.
#[derive(Debug)]
pub struct OutputReader {
    base: PathBuf,
    number: u64,
    at: u64,
    /// File, open until it was read to its end: a waiting reader needs no descriptor. Stays readable when it
    /// is removed.
    file: Option<File>,
    /// Times of the data to read next in the file; the first is that of the current position.
    blocks: VecDeque<TimesEntry>,
    /// File whose times were read last, and the size of its index in bytes.
    indexed: Option<(u64, u64)>,
}

impl OutputReader {
    /// Creates a reader at an offset in the file with this number.
    fn at(base: &Path, number: u64, at: u64) -> OutputReader {
        OutputReader { base: base.to_owned(), number, at, file: None, blocks: VecDeque::new(), indexed: None }
    }

    /// Returns a reader at data that was written at `since` or later, and at most [`SPAN`] before.
    pub fn since(base: &Path, since: SystemTime) -> io::Result<OutputReader> {
        let from = times::micros(since).saturating_sub(u64::try_from(SPAN.as_micros()).unwrap_or(u64::MAX));
        let mut numbers = parts(base)?;
        numbers.sort_unstable();
        let mut end = (0, 0);
        for number in numbers {
            let path = part(base, number);
            if let Some(entry) = times::read(&path)?.into_iter().find(|entry| entry.time >= from) {
                return Ok(OutputReader::at(base, number, entry.offset));
            }
            if let Some(file) = open(&path)? {
                end = (number, file.metadata()?.len());
            }
        }
        Ok(OutputReader::at(base, end.0, end.1))
    }

    /// Returns the reader with the later position, of two readers of one output.
    #[must_use]
    pub fn later(self, other: OutputReader) -> OutputReader {
        if (other.number, other.at) > (self.number, self.at) { other } else { self }
    }

    /// Whether the current file has more data.
    fn has_more(&self) -> io::Result<bool> {
        let path = part(&self.base, self.number);
        match state_file::if_found(path.symlink_metadata())? {
            Some(found) if found.is_file() => Ok(found.len() > self.at),
            Some(_) => Err(io::Error::new(
                ErrorKind::InvalidData,
                format!("{} is not a regular file", path.display()),
            )),
            None => Ok(false),
        }
    }

    /// Updates the times: the first is that of the current position, and the second, if any, that of the data
    /// after it.
    fn find_block(&mut self) -> io::Result<()> {
        if self.indexed.is_some_and(|(number, _)| number != self.number) {
            (self.blocks, self.indexed) = (VecDeque::new(), None);
        }
        while self.blocks.get(1).is_some_and(|next| next.offset <= self.at) {
            self.blocks.pop_front();
            if self.blocks.len() < 2 {
                self.indexed = None;
            }
        }
        if self.blocks.len() < 2 {
            let path = part(&self.base, self.number);
            // More may have been written since.
            let indexed = Some((self.number, times::length(&path)?));
            if indexed != self.indexed {
                (self.blocks, self.indexed) = (times::read_at(&path, self.at)?, indexed);
                while self.blocks.get(1).is_some_and(|next| next.offset <= self.at) {
                    self.blocks.pop_front();
                }
            }
        }
        Ok(())
    }

    /// Returns a reader at the last `lines` lines, limited to whole lines in the last mebibyte.
    pub fn last(base: &Path, lines: u64) -> io::Result<OutputReader> {
        let mut numbers = parts(base)?;
        numbers.sort_unstable();
        let (mut end, mut begun) = (Vec::new(), Vec::new());
        for number in numbers.into_iter().rev() {
            let Some((at, mut bytes)) = end_of(&part(base, number), TAIL - end.len() as u64)? else {
                continue;
            };
            bytes.append(&mut end);
            end = bytes;
            begun.push((number, at));
            if at > 0 || end.len() as u64 == TAIL {
                break;
            }
        }
        let Some((first, from)) = begun.last().copied() else {
            return Ok(OutputReader::at(base, 0, 0));
        };
        let is_all = first == 1 && from == 0;
        let mut reader = OutputReader::at(base, first, from);
        reader.skip(begin_of_last(&end, lines, is_all) as u64)?;
        reader.file = None;
        Ok(reader)
    }

    /// Reads new data, at most `most` bytes; empty if there is none.
    pub fn read(&mut self, most: usize) -> io::Result<Vec<u8>> {
        loop {
            let mut bytes = self.read_file(most)?;
            if bytes.is_empty() {
                let next = parts(&self.base)?.into_iter().filter(|number| *number > self.number).min();
                let Some(next) = next else { return Ok(Vec::new()) };
                // A file with a successor does not grow any more, but may have grown before.
                bytes = self.read_file(most)?;
                if bytes.is_empty() {
                    (self.number, self.at) = (next, 0);
                    continue;
                }
            }
            return Ok(bytes);
        }
    }

    /// Reads new data of the current file; closes the file if there is none.
    fn read_file(&mut self, most: usize) -> io::Result<Vec<u8>> {
        if self.file.is_none() {
            self.file = open(&part(&self.base, self.number))?;
        }
        let mut bytes = Vec::new();
        if let Some(file) = &mut self.file {
            file.seek(SeekFrom::Start(self.at))?;
            file.take(most as u64).read_to_end(&mut bytes)?;
        }
        if bytes.is_empty() {
            self.file = None;
        }
        self.at += bytes.len() as u64;
        Ok(bytes)
    }

    fn skip(&mut self, mut count: u64) -> io::Result<()> {
        while count > 0 {
            let skipped = self.read(usize::try_from(count).unwrap_or(usize::MAX))?.len() as u64;
            if skipped == 0 {
                break;
            }
            count -= skipped;
        }
        Ok(())
    }
}

impl LogReader for OutputReader {
    /// Returns the time at which new data was written, in microseconds since 1970; `None` without new data.
    /// Reads no data, and leaves no file open.
    fn next_time(&mut self) -> io::Result<Option<u64>> {
        loop {
            if self.has_more()? {
                self.find_block()?;
                return Ok(Some(self.blocks.front().map_or(0, |block| block.time)));
            }
            let next = parts(&self.base)?.into_iter().filter(|number| *number > self.number).min();
            let Some(next) = next else { return Ok(None) };
            // A file with a successor does not grow any more, but may have grown before.
            if !self.has_more()? {
                (self.number, self.at, self.file) = (next, 0, None);
            }
        }
    }

    /// Reads new data of about one time, at most `most` bytes. Returns that time in microseconds since 1970
    /// and the data, empty if there is none. Leaves no file open: a program may have thousands of outputs.
    fn read_block(&mut self, most: usize) -> io::Result<(u64, Vec<u8>)> {
        for _ in 0..LOOKS {
            let Some(time) = self.next_time()? else { return Ok((0, Vec::new())) };
            let block = self.blocks.get(1).map_or(u64::MAX, |next| next.offset - self.at);
            let bytes = self.read_file(most.min(usize::try_from(block).unwrap_or(usize::MAX)))?;
            self.file = None;
            if !bytes.is_empty() {
                return Ok((time, bytes));
            }
            // The file was deleted meanwhile.
        }
        Err(io::Error::other(format!(
            "cannot read {}: it changes meanwhile",
            part(&self.base, self.number).display()
        )))
    }
}

fn open(path: &Path) -> io::Result<Option<File>> {
    state_file::if_found(state_file::open_plain(File::options().read(true), path))
}

/// Returns the last `most` bytes of a file, and their offset; `None` if the file was deleted.
pub(super) fn end_of(path: &Path, most: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let at = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(at))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(Some((at, bytes)))
}

/// Returns the offset of the last `lines` lines in `end`; unless `end` is all, not before the first whole
/// line.
fn begin_of_last(end: &[u8], lines: u64, is_all: bool) -> usize {
    if lines == 0 {
        return end.len();
    }
    // A final line feed ends the last line and starts none.
    let searched = end.strip_suffix(b"\n").unwrap_or(end);
    let mut feeds = searched.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    match feeds.nth(usize::try_from(lines - 1).unwrap_or(usize::MAX)) {
        Some((at, _)) => at + 1,
        None if is_all => 0,
        None => end.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(texts: &[(u64, &str)]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("a-0.out");
        for (number, text) in texts {
            std::fs::write(part(&base, *number), text).unwrap();
        }
        (directory, base)
    }

    fn rest(reader: &mut OutputReader) -> String {
        let mut text = Vec::new();
        loop {
            let bytes = reader.read(5).unwrap();
            if bytes.is_empty() {
                return String::from_utf8(text).unwrap();
            }
            text.extend(bytes);
        }
    }

    #[test]
    fn it_starts_at_the_last_lines_across_files() {
        let all: &[(u64, &str)] = &[(1, "one\ntwo\n"), (2, "thr"), (3, "ee\nfour")];
        let later: &[(u64, &str)] = &[(7, "rest of a line\nnext\n"), (8, "last\n")];
        for (texts, lines, wanted) in [
            (&[][..], 3, ""),
            (&[(1, "")][..], 3, ""),
            (&[(1, "one\n\n\n")][..], 2, "\n\n"),
            (all, 0, ""),
            (all, 1, "four"),
            (all, 2, "three\nfour"),
            (all, 3, "two\nthree\nfour"),
            (all, u64::MAX, "one\ntwo\nthree\nfour"),
            (later, 1, "last\n"),
            (later, u64::MAX, "next\nlast\n"),
        ] {
            let (_folder, base) = output(texts);
            assert_eq!(rest(&mut OutputReader::last(&base, lines).unwrap()), wanted, "{texts:?} {lines}");
        }
        let long = "x".repeat(99) + "\n";
        let (_folder, base) = output(&[(1, &long.repeat(10_000)), (2, &long.repeat(6_000))]);
        let shown = rest(&mut OutputReader::last(&base, u64::MAX).unwrap()).len() as u64;
        assert!(shown.is_multiple_of(100) && shown <= TAIL && shown > TAIL - 100, "{shown}");
    }

    fn time(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000 + seconds)
    }

    /// Two files, written at seconds 0, 60, 100 and 200.
    fn indexed() -> (tempfile::TempDir, PathBuf) {
        let (directory, base) = output(&[(1, "one\ntwo\n"), (2, "three\nfour\n")]);
        let entry = |offset, seconds| TimesEntry { offset, time: times::micros(time(seconds)) };
        times::copy(&part(&base, 1), &[entry(0, 0), entry(4, 60)]).unwrap();
        times::copy(&part(&base, 2), &[entry(0, 100), entry(6, 200)]).unwrap();
        (directory, base)
    }

    #[test]
    fn it_starts_at_a_time_and_at_most_a_span_before() {
        let table = [
            (0, "one\ntwo\nthree\nfour\n"),
            (10, "one\ntwo\nthree\nfour\n"),
            (11, "two\nthree\nfour\n"),
            (60, "two\nthree\nfour\n"),
            (80, "three\nfour\n"),
            (150, "four\n"),
            (211, ""),
        ];
        for (since, wanted) in table {
            let (_folder, base) = indexed();
            let mut reader = OutputReader::since(&base, time(since)).unwrap();
            assert_eq!(rest(&mut reader), wanted, "since {since}");
            std::fs::write(part(&base, 3), "more\n").unwrap();
            assert_eq!(rest(&mut reader), "more\n", "since {since}");
        }
        let (_folder, base) = indexed();
        let last = |lines| OutputReader::last(&base, lines).unwrap();
        let since = || OutputReader::since(&base, time(80)).unwrap();
        assert_eq!(rest(&mut since().later(last(1))), "four\n", "both must hold");
        assert_eq!(rest(&mut last(3).later(since())), "three\nfour\n", "both must hold");
        // Without an index, the modification time of the file decides.
        let (_folder, base) = output(&[(1, "old\n"), (2, "new\n")]);
        File::options().append(true).open(part(&base, 1)).unwrap().set_modified(time(0)).unwrap();
        assert_eq!(rest(&mut OutputReader::since(&base, time(100)).unwrap()), "new\n");
    }

    #[test]
    fn a_block_has_one_time_and_is_of_one_file() {
        let (_folder, base) = indexed();
        let mut reader = OutputReader::last(&base, u64::MAX).unwrap();
        let mut blocks = Vec::new();
        loop {
            let (time, bytes) = reader.read_block(1000).unwrap();
            if bytes.is_empty() {
                break;
            }
            blocks.push((time / 1_000_000 - 1_000_000, String::from_utf8(bytes).unwrap()));
        }
        let wanted = [(0, "one\n"), (60, "two\n"), (100, "three\n"), (200, "four\n")];
        assert_eq!(blocks, wanted.map(|(time, text)| (time, text.to_owned())));
    }

    #[test]
    fn what_is_written_while_it_is_followed_has_its_own_time() {
        let (_folder, base) = output(&[(1, "one\n")]);
        let path = part(&base, 1);
        let entry = |offset, seconds| TimesEntry { offset, time: times::micros(time(seconds)) };
        times::copy(&path, &[entry(0, 0)]).unwrap();
        let mut reader = OutputReader::last(&base, u64::MAX).unwrap();
        let mut read = || {
            let (time, bytes) = reader.read_block(1000).unwrap();
            ((time / 1_000_000).saturating_sub(1_000_000), String::from_utf8(bytes).unwrap())
        };
        assert_eq!(read(), (0, "one\n".to_owned()));
        assert_eq!(read().1, "");
        let add = |text: &str| {
            let mut file = File::options().append(true).open(&path).unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        };
        add("two\n");
        assert_eq!(read(), (0, "two\n".to_owned()), "at most a span later: the line has no time of its own");
        times::copy(&path, &[entry(0, 0), entry(8, 60), entry(14, 120)]).unwrap();
        add("three\nfour\n");
        assert_eq!(read(), (60, "three\n".to_owned()));
        assert_eq!(read(), (120, "four\n".to_owned()));
        assert_eq!(read().1, "");
    }

    #[test]
    fn one_that_waits_for_more_has_no_file_open() {
        let (_folder, base) = output(&[(1, "one\n"), (2, "two\nthree\n")]);
        let mut reader = OutputReader::last(&base, 2).unwrap();
        assert!(reader.file.is_none(), "the file was searched, and closed again");
        assert_eq!(reader.read(4).unwrap(), b"two\n");
        assert!(reader.file.is_some(), "the rest stays readable");
        assert_eq!(rest(&mut reader), "three\n");
        assert!(reader.file.is_none());
    }

    #[test]
    fn what_is_no_plain_file_is_not_waited_for() {
        let (directory, base) = output(&[(1, "one\n")]);
        rustix::fs::mkfifoat(rustix::fs::CWD, part(&base, 2), rustix::fs::Mode::RWXU).unwrap();
        assert!(OutputReader::last(&base, 1).is_err());
        std::fs::remove_file(part(&base, 2)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", part(&base, 2)).unwrap();
        assert!(OutputReader::last(&base, 1).is_err());
        // A link to a plain file is foreign too, and the file may be longer or shorter than its name.
        for text in ["", &"x".repeat(1000)] {
            let other = directory.path().join("other");
            std::fs::write(&other, text).unwrap();
            std::fs::remove_file(part(&base, 2)).unwrap();
            let mut reader = OutputReader::last(&base, u64::MAX).unwrap();
            std::os::unix::fs::symlink(&other, part(&base, 2)).unwrap();
            assert!(OutputReader::last(&base, 1).is_err());
            assert_eq!(reader.read_block(1000).unwrap().1, b"one\n");
            assert!(reader.read_block(1000).is_err());
            assert!(reader.next_time().is_err());
        }
        directory.close().unwrap();
    }

    #[test]
    fn it_continues_in_new_files_and_after_removed_ones() {
        let (directory, base) = output(&[(1, "one\n")]);
        let mut reader = OutputReader::last(&base, u64::MAX).unwrap();
        assert_eq!(rest(&mut reader), "one\n");
        std::fs::write(part(&base, 1), "one\nmore\n").unwrap();
        std::fs::write(part(&base, 2), "two\n").unwrap();
        assert_eq!(rest(&mut reader), "more\ntwo\n");
        std::fs::remove_file(part(&base, 1)).unwrap();
        std::fs::remove_file(part(&base, 2)).unwrap();
        std::fs::write(part(&base, 4), "four\n").unwrap();
        assert_eq!(rest(&mut reader), "four\n");
        directory.close().unwrap();
        assert_eq!(rest(&mut reader), "", "a removed output is at its end");
    }
}
