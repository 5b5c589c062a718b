//! Output of processes: through a named pipe to the supervisor, and from there into files of bounded size.
//!
//! The pipe has a name, so that an executor can take over reading when a supervisor has died. A process holds
//! both ends of the pipe. Without a reader, the process waits when the pipe is full, and is never ended by a
//! broken pipe.
//!
//! The files of an output are `NAME.1`, `NAME.2` and so on; only the newest are kept. A number is never
//! reused, so that a reader can continue by the number alone. Each file has an index of times (`times`).

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::num::{NonZeroU16, NonZeroU64};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use serde::{Deserialize, Serialize};

use super::times::{self, TimesWriter};
use super::{entries, named};
use crate::state_file;

/// Maximum bytes of a read: the capacity of a pipe.
const CHUNK: usize = 64 << 10;
/// Maximum number of chunks that are read from a pipe after the processes of its incarnation have ended.
const LAST_CHUNKS: usize = 64;

/// Limits of each output of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OutputLimits {
    /// Maximum size of a file in bytes.
    pub max_file_bytes: NonZeroU64,
    /// Maximum number of files; a new file replaces the oldest.
    pub max_files: NonZeroU16,
}

impl Default for OutputLimits {
    /// Returns three files of 10 MiB.
    fn default() -> OutputLimits {
        let file_bytes = const { NonZeroU64::new(10 << 20).unwrap() };
        OutputLimits { max_file_bytes: file_bytes, max_files: const { NonZeroU16::new(3).unwrap() } }
    }
}

/// Result of reading a pipe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PipeRead {
    /// Data was read; there may be more.
    More,
    /// No data is available now.
    Nothing,
    /// No writer is left.
    Over,
}

/// Reading end of an output's pipe, and the output's files.
#[derive(Debug)]
pub(super) struct OutputCapture {
    pipe: File,
    files: RotatedFiles,
    awaited: Option<TextSearch>,
}

/// Search for a text in an output.
#[derive(Debug)]
struct TextSearch {
    /// Number of the output's process in the record.
    number: usize,
    text: Vec<u8>,
    /// End of the output that may be the beginning of the text.
    end: Vec<u8>,
    is_found: bool,
}

impl TextSearch {
    fn add(&mut self, bytes: &[u8]) {
        self.end.extend_from_slice(bytes);
        self.is_found |= self.end.windows(self.text.len()).any(|window| window == self.text);
        let rest = self.end.len().saturating_sub(self.text.len() - 1);
        self.end.drain(..rest);
    }
}

impl AsFd for OutputCapture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl AsRawFd for OutputCapture {
    fn as_raw_fd(&self) -> RawFd {
        self.pipe.as_raw_fd()
    }
}

/// Pipe of the output whose files start with `base`.
fn pipe_of(base: &Path) -> PathBuf {
    base.with_added_extension("pipe")
}

/// Makes a named pipe, unless it exists, as of an earlier boot of the machine.
pub(super) fn make_pipe(path: &Path) -> io::Result<()> {
    match mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a named pipe. Follows no symbolic link, and fails if the path is anything else.
pub(super) fn open_pipe(options: &mut OpenOptions, flags: OFlags, path: &Path) -> io::Result<File> {
    let flags = (flags | OFlags::NOFOLLOW).bits().cast_signed();
    let pipe = options.custom_flags(flags).open(path)?;
    if !pipe.metadata()?.file_type().is_fifo() {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("{} is not a pipe", path.display())));
    }
    Ok(pipe)
}

/// Makes an output's pipe; returns the ends of the supervisor and of the process.
pub(super) fn open(base: &Path, limits: OutputLimits) -> io::Result<(OutputCapture, File)> {
    let path = pipe_of(base);
    make_pipe(&path)?;
    let capture = take_over(base, limits)?;
    Ok((capture, open_pipe(OpenOptions::new().read(true).write(true), OFlags::empty(), &path)?))
}

/// Opens only the reading end, for a process that exists.
pub(super) fn take_over(base: &Path, limits: OutputLimits) -> io::Result<OutputCapture> {
    let pipe = open_pipe(OpenOptions::new().read(true), OFlags::NONBLOCK, &pipe_of(base))?;
    Ok(OutputCapture { pipe, files: RotatedFiles::open(base.to_owned(), limits)?, awaited: None })
}

impl OutputCapture {
    /// Reads at most the capacity of a pipe; never waits.
    pub(super) fn copy(&mut self, chunk: &mut Vec<u8>) -> PipeRead {
        chunk.resize(CHUNK, 0);
        match self.pipe.read(chunk) {
            Ok(0) => PipeRead::Over,
            Ok(count) => {
                self.files.take(&chunk[..count]);
                if let Some(awaited) = &mut self.awaited {
                    awaited.add(&chunk[..count]);
                }
                PipeRead::More
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => PipeRead::Nothing,
            Err(error) if error.kind() == ErrorKind::Interrupted => PipeRead::More,
            // A pipe has no other failures; after one, nothing more can be read.
            Err(_) => PipeRead::Over,
        }
    }

    /// Searches for a text in the output of the process with this number.
    pub(super) fn await_text(&mut self, number: usize, text: &str) {
        let text = text.as_bytes().to_vec();
        self.awaited =
            (!text.is_empty()).then_some(TextSearch { number, text, end: Vec::new(), is_found: false });
    }

    /// Returns the number of the process if the text was found since the last call.
    pub(super) fn take_found(&mut self) -> Option<usize> {
        let awaited = self.awaited.as_mut()?;
        std::mem::take(&mut awaited.is_found).then_some(awaited.number)
    }

    /// Reads all that is left, once no writer is left. Fails if some of the output could not be written in
    /// the end.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let mut chunk = Vec::new();
        // A pipe holds less: later data is from a process that still runs.
        for _ in 0..LAST_CHUNKS {
            if self.copy(&mut chunk) != PipeRead::More {
                break;
            }
        }
        match self.files.lost {
            None => Ok(()),
            Some((count, error)) => {
                let base = self.files.base.display();
                Err(named(format_args!("cannot write last {count} bytes of {base}"))(error))
            }
        }
    }
}

/// Files of one output.
#[derive(Debug)]
struct RotatedFiles {
    base: PathBuf,
    limits: OutputLimits,
    number: u64,
    file: Option<File>,
    length: u64,
    times: TimesWriter,
    /// Number of bytes that could not be written, and the error of the first.
    lost: Option<(u64, io::Error)>,
}

impl RotatedFiles {
    /// Continues at the end of the newest file, if there is one.
    fn open(base: PathBuf, limits: OutputLimits) -> io::Result<RotatedFiles> {
        let newest = parts(&base)?.into_iter().max();
        let (number, length) = match newest {
            Some(number) => (number, part(&base, number).symlink_metadata()?.len()),
            None => (1, 0),
        };
        Ok(RotatedFiles {
            base,
            limits,
            number,
            file: None,
            length,
            times: TimesWriter::default(),
            lost: None,
        })
    }

    /// Writes output. A full disk must not block the process: unwritten bytes are counted, and a line reports
    /// them where they would be.
    fn take(&mut self, bytes: &[u8]) {
        if let Some((count, error)) = self.lost.take() {
            let notice = format!("\n[{count} bytes of output were lost here: {error}]\n");
            if self.try_take(notice.as_bytes()).is_err() {
                self.lost = Some((count + bytes.len() as u64, error));
                return;
            }
        }
        self.lost = self.try_take(bytes).err().map(|(untaken, error)| (untaken as u64, error));
    }

    /// Writes output; new files start at line ends if possible. An error includes the number of unwritten
    /// bytes.
    fn try_take(&mut self, mut bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        while !bytes.is_empty() {
            let space = self.limits.max_file_bytes.get().saturating_sub(self.length);
            let fits = usize::try_from(space).unwrap_or(usize::MAX).min(bytes.len());
            let here = if fits == bytes.len() {
                fits
            } else {
                bytes[..fits].iter().rposition(|byte| *byte == b'\n').map_or(fits, |at| at + 1)
            };
            let wrote = if here == 0 { self.begin_next().map(|()| 0) } else { self.write(&bytes[..here]) };
            let wrote = wrote.map_err(|error| (bytes.len(), error))?;
            bytes = &bytes[wrote..];
            if wrote == here && here < fits {
                self.begin_next().map_err(|error| (bytes.len(), error))?;
            }
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let path = part(&self.base, self.number);
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(state_file::open_plain(
                OpenOptions::new().append(true).create(true).mode(0o600),
                &path,
            )?),
        };
        self.times.note(&path, self.length, SystemTime::now());
        let count = file.write(bytes)?;
        self.length += count as u64;
        if count == 0 { Err(ErrorKind::WriteZero.into()) } else { Ok(count) }
    }

    fn begin_next(&mut self) -> io::Result<()> {
        (self.number, self.length, self.file) = (self.number + 1, 0, None);
        self.times = TimesWriter::default();
        let first_kept = (self.number + 1).saturating_sub(self.limits.max_files.get().into());
        let mut result = Ok(());
        // A file that cannot be removed does not keep others.
        for number in parts(&self.base)?.into_iter().filter(|number| *number < first_kept) {
            let part = part(&self.base, number);
            result = result.and(std::fs::remove_file(&part)).and(times::remove(&part));
        }
        result
    }
}

/// Returns the path of an output's file.
pub(super) fn part(base: &Path, number: u64) -> PathBuf {
    base.with_added_extension(number.to_string())
}

/// Numbers of an output's files.
pub(super) fn parts(base: &Path) -> io::Result<Vec<u64>> {
    let (Some(directory), Some(name)) = (base.parent(), base.file_name()) else { return Ok(Vec::new()) };
    let number = |path: PathBuf| match split(&path) {
        Some((stem, number)) if stem == name => Some(number),
        Some(_) | None => None,
    };
    Ok(entries(directory)?.into_iter().filter_map(number).collect())
}

/// Splits the path of an output's file into the output's name and the file's number.
pub(super) fn split(path: &Path) -> Option<(&std::ffi::OsStr, u64)> {
    // Every number needs a successor.
    let number = path.extension()?.to_str()?.parse().ok().filter(|number| *number < u64::MAX)?;
    Some((path.file_stem()?, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(file_bytes: u64, files: u16) -> OutputLimits {
        OutputLimits {
            max_file_bytes: NonZeroU64::new(file_bytes).unwrap(),
            max_files: NonZeroU16::new(files).unwrap(),
        }
    }

    fn texts(base: &Path) -> Vec<(u64, String)> {
        let mut numbers = parts(base).unwrap();
        numbers.sort_unstable();
        numbers.into_iter().map(|n| (n, std::fs::read_to_string(part(base, n)).unwrap())).collect()
    }

    /// Written texts, and the resulting files.
    type CaptureCase = (&'static [&'static str], &'static [(u64, &'static str)]);

    #[test]
    fn files_are_bounded_and_start_with_a_whole_line_if_possible() {
        let cases: [CaptureCase; 7] = [
            (&["a\n", "b\n"], &[(1, "a\nb\n")]),
            (&["12345678"], &[(1, "12345678")]),
            (&["1234567\n", "x\n"], &[(1, "1234567\n"), (2, "x\n")]),
            (&["one\ntwo\nthree\n"], &[(1, "one\ntwo\n"), (2, "three\n")]),
            (&["one\n", "twenty\n"], &[(1, "one\ntwen"), (2, "ty\n")]),
            (&["a\nbcdefghijk\n"], &[(1, "a\n"), (2, "bcdefghi"), (3, "jk\n")]),
            (&["1234567\n2234567\n3234567\n4"], &[(2, "2234567\n"), (3, "3234567\n"), (4, "4")]),
        ];
        for (writes, wanted) in cases {
            let directory = tempfile::tempdir().unwrap();
            let base = directory.path().join("web-0.out");
            let mut files = RotatedFiles::open(base.clone(), limits(8, 3)).unwrap();
            for text in writes {
                files.take(text.as_bytes());
            }
            let wanted: Vec<_> = wanted.iter().map(|(n, text)| (*n, (*text).to_owned())).collect();
            assert_eq!(texts(&base), wanted, "{writes:?}");
        }
    }

    #[test]
    fn the_next_supervisor_continues_at_the_offset_of_the_last_one() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("web-0.out");
        for text in ["one\n", "two\n", "three\n"] {
            RotatedFiles::open(base.clone(), limits(8, 2)).unwrap().take(text.as_bytes());
        }
        assert_eq!(texts(&base), [(1, "one\ntwo\n".to_owned()), (2, "three\n".to_owned())]);
    }

    #[test]
    fn what_could_not_be_written_is_counted_where_it_would_have_been() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("inner");
        std::fs::create_dir(&inner).unwrap();
        let base = inner.join("web-0.out");
        let mut files = RotatedFiles::open(base.clone(), limits(1000, 2)).unwrap();
        std::fs::remove_dir(&inner).unwrap();
        files.take(b"12345");
        files.take(b"678");
        std::fs::create_dir(&inner).unwrap();
        files.take(b"later\n");
        let [(1, text)] = &texts(&base)[..] else { panic!("one file") };
        assert!(
            text.starts_with("\n[8 bytes of output were lost here: ") && text.ends_with("]\nlater\n"),
            "{text}"
        );
    }

    #[test]
    fn an_awaited_text_is_found_however_it_is_cut_and_once_for_each_time_it_is_written() {
        let output = "boot\r\nlogin: root\r\nlog in: \r\nlogin: ";
        for size in 1..output.len() {
            let directory = tempfile::tempdir().unwrap();
            let (mut capture, mut theirs) =
                open(&directory.path().join("app-0.out"), limits(1000, 2)).unwrap();
            capture.await_text(3, "login:");
            let mut found = Vec::new();
            for (at, piece) in output.as_bytes().chunks(size).enumerate() {
                theirs.write_all(piece).unwrap();
                assert_eq!(capture.copy(&mut Vec::new()), PipeRead::More);
                found.extend(capture.take_found().map(|number| (number, at)));
                assert_eq!(capture.take_found(), None, "it was taken");
            }
            let end = |text: &str, from: usize| from + output[from..].find(text).unwrap() + text.len() - 1;
            let (first, second) = (end("login:", 0), end("login:", 20));
            let mut wanted = vec![(3, first / size), (3, second / size)];
            wanted.dedup();
            assert_eq!(found, wanted, "in pieces of {size}");
        }
    }

    #[test]
    fn an_old_file_that_cannot_be_removed_keeps_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("web-0.out");
        let mut files = RotatedFiles::open(base.clone(), limits(8, 2)).unwrap();
        files.take(b"12345678");
        std::fs::remove_file(part(&base, 1)).unwrap();
        std::fs::create_dir(part(&base, 1)).unwrap();
        for _ in 0..6 {
            files.take(b"12345678");
        }
        let left = parts(&base).unwrap().into_iter().filter(|number| part(&base, *number).is_file()).count();
        assert!(left <= 2, "{left} files");
    }

    #[test]
    fn a_writer_that_never_stops_is_not_read_to_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("web-0.out");
        let (capture, mut theirs) = open(&base, limits(1000, 2)).unwrap();
        rustix::fs::fcntl_setfl(&theirs, OFlags::NONBLOCK).unwrap();
        let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_over = over.clone();
        let writer = std::thread::spawn(move || {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = theirs.write(&[b'x'; 4096]);
            }
        });
        capture.finish().unwrap();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        writer.join().unwrap();
    }

    #[test]
    fn a_writer_never_gets_a_broken_pipe_and_the_next_supervisor_reads_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("web-0.out");
        let (capture, mut theirs) = open(&base, limits(1000, 2)).unwrap();
        theirs.write_all(b"one\n").unwrap();
        drop(capture);
        theirs.write_all(b"two\n").unwrap();
        let mut capture = take_over(&base, limits(1000, 2)).unwrap();
        assert_eq!(capture.copy(&mut Vec::new()), PipeRead::More);
        assert_eq!(capture.copy(&mut Vec::new()), PipeRead::Nothing);
        theirs.write_all(b"three\n").unwrap();
        drop(theirs);
        capture.finish().unwrap();
        assert_eq!(texts(&base), [(1, "one\ntwo\nthree\n".to_owned())]);
    }
}
