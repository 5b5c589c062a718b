//! Output of processes: its location while they run, and the part that is kept after their end.
//!
//! An incarnation's directory is deleted once its end is in the journal, just when users want to know its
//! last output. So the end of each output is kept elsewhere, only for the newest incarnations.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use chancery_events::id::IncarnationId;

use super::capture::{part, parts, split};
use super::entries;
use super::reader::OutputReader;
use super::times::{self, TimesEntry};
use crate::logs::{LogOutput, LogReader, LogSource, LogStart, LogStream, OutputName};
use crate::state_file;

/// Maximum number of ended incarnations whose output is kept.
const KEPT: usize = 100;
/// Number of bytes that are copied at a time.
const CHUNK: usize = 64 << 10;
/// Maximum number of bytes that are read of a last line, and of characters that are returned of it.
const LINE_BYTES: usize = 4096;
const LINE_CHARACTERS: usize = 256;

/// Output of a process, wherever its files are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OutputFile {
    /// Process and stream of the output.
    pub name: OutputName,
    /// Path of each file without its dot and number; [`OutputReader`](super::OutputReader) reads across the
    /// files.
    pub base: PathBuf,
}

impl LogOutput for OutputFile {
    fn name(&self) -> &OutputName {
        &self.name
    }

    fn open(&self, start: LogStart) -> io::Result<Box<dyn LogReader>> {
        Ok(Box::new(match (start.since, start.tail) {
            (None, tail) => OutputReader::last(&self.base, tail.unwrap_or(u64::MAX))?,
            (Some(since), None) => OutputReader::since(&self.base, since)?,
            (Some(since), Some(tail)) => {
                OutputReader::last(&self.base, tail)?.later(OutputReader::since(&self.base, since)?)
            }
        }))
    }
}

/// Output of an executor's processes, found under its root. Requires no running executor.
#[derive(Clone, Debug)]
pub struct ProcessLogs {
    /// Root of the executor.
    pub root: PathBuf,
}

impl LogSource for ProcessLogs {
    fn outputs(&self, incarnation: IncarnationId) -> io::Result<Vec<Box<dyn LogOutput>>> {
        let files = log_files(&self.root, incarnation)?;
        Ok(files.into_iter().map(|file| Box::new(file) as Box<dyn LogOutput>).collect())
    }
}

fn ended(root: &Path) -> PathBuf {
    root.join("output")
}

/// Returns the outputs of an incarnation's processes, in order; empty if nothing is kept.
pub fn log_files(root: &Path, incarnation: IncarnationId) -> io::Result<Vec<OutputFile>> {
    let id = incarnation.to_string();
    let nodes = entries(&root.join("nodes"))?;
    // The last applies while the output is being kept. tidy: allow(forgotten)
    let elsewhere = [ended(root).join(&id), root.join("forgotten").join(&id)];
    let directories = nodes.iter().map(|node| node.join(&id)).chain(elsewhere);
    for directory in directories {
        let files = in_directory(&directory)?;
        if !files.is_empty() {
            return Ok(files);
        }
    }
    Ok(Vec::new())
}

/// Keeps the end of each output in the directory. If an end cannot be copied, as on a full disk, the newest
/// file is moved, which needs no space. Anything but a plain file is left out.
///
/// May be called again after a crash: kept output is complete once it has its name, and the directory may
/// then be partly removed.
pub(super) fn keep(root: &Path, incarnation: IncarnationId, directory: &Path) -> io::Result<()> {
    let outputs = in_directory(directory)?;
    let whole = ended(root).join(incarnation.to_string());
    let kept = whole.with_extension("new");
    // An earlier call may have moved outputs.
    if whole.exists() || (outputs.is_empty() && !kept.exists()) {
        return Ok(());
    }
    if fs::symlink_metadata(&kept).is_ok_and(|found| !found.is_dir()) {
        fs::remove_file(&kept)?;
    }
    fs::create_dir_all(&kept)?;
    for OutputFile { base, .. } in outputs {
        let (Some(name), Some(newest)) = (base.file_name(), parts(&base)?.into_iter().max()) else {
            continue;
        };
        // With the number of the newest, so that a reader continues there.
        let path = part(&kept.join(name), newest);
        let Err(error) = copy_end(&base, &path) else { continue };
        tracing::warn!(%error, output = %base.display(), "cannot copy end of output, keeping newest file");
        if let Err(error) = move_part(&part(&base, newest), &path) {
            tracing::warn!(%error, output = %base.display(), "cannot keep output");
        }
    }
    if entries(&kept)?.is_empty() {
        return fs::remove_dir(&kept);
    }
    fs::rename(&kept, &whole)
}

/// Returns the last line of an output for a message, without characters that a terminal might interpret.
pub(super) fn last_line(base: &Path) -> Option<String> {
    let bytes = OutputReader::last(base, 1).ok()?.read(LINE_BYTES).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let is_plain = |c: &char| c.is_ascii_graphic() || c.is_alphanumeric() || *c == ' ';
    let line: String = text.trim().chars().filter(is_plain).take(LINE_CHARACTERS).collect();
    (!line.is_empty()).then_some(line)
}

fn copy_end(base: &Path, path: &Path) -> io::Result<()> {
    let mut reader = OutputReader::last(base, u64::MAX)?;
    let mut to = create_replacing(path)?;
    let (mut length, mut entries) = (0, Vec::<TimesEntry>::new());
    loop {
        let (time, bytes) = reader.read_block(CHUNK)?;
        if bytes.is_empty() {
            break;
        }
        if entries.last().is_none_or(|last| last.time != time) {
            entries.push(TimesEntry { offset: length, time });
        }
        length += bytes.len() as u64;
        to.write_all(&bytes)?;
    }
    times::copy(path, &entries)
}

/// Creates a file, replacing whatever exists at the path: programs can write to directories of the executor.
pub(super) fn create_replacing(path: &Path) -> io::Result<File> {
    state_file::if_found(fs::remove_file(path))?;
    state_file::open_plain(OpenOptions::new().write(true).create_new(true).mode(0o600), path)
}

/// Moves a file of an output, with its index. Without an index, lines have the time of the file's last
/// change.
fn move_part(from: &Path, to: &Path) -> io::Result<()> {
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    // A copy of it is incomplete.
    state_file::if_found(fs::remove_file(to))?;
    times::remove(to)?;
    if !is_file(from) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a regular file"));
    }
    if is_file(&times::path_of(from)) {
        fs::rename(times::path_of(from), times::path_of(to))?;
    }
    fs::rename(from, to)
}

/// Returns kept outputs that are not among the newest, and must be removed.
pub(super) fn surplus(root: &Path) -> io::Result<Vec<PathBuf>> {
    // Ids sort by their issue: the oldest come first.
    let mut all = entries(&ended(root))?;
    all.sort();
    all.truncate(all.len().saturating_sub(KEPT));
    Ok(all)
}

/// Outputs whose files are in a directory, in order.
fn in_directory(directory: &Path) -> io::Result<Vec<OutputFile>> {
    let mut files: Vec<_> = entries(directory)?.iter().filter_map(|path| log_file(path)).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

fn log_file(path: &Path) -> Option<OutputFile> {
    let (name, _) = split(path)?;
    let base = path.with_file_name(name);
    let stream = match base.extension()?.to_str()? {
        "out" => LogStream::Out,
        "err" => LogStream::Err,
        _ => return None,
    };
    let (payload, index) = base.file_stem()?.to_str()?.rsplit_once('-')?;
    let (payload, index) = (payload.parse().ok()?, index.parse().ok()?);
    Some(OutputFile { name: OutputName { payload, index, stream }, base })
}

#[cfg(test)]
mod tests {
    use chancery_events::id::{Lineage, Position};
    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn the_end_of_what_was_written_is_kept_and_the_newest_are_no_surplus() {
        let root = tempfile::tempdir().unwrap();
        let id =
            |position: usize| IncarnationId::issue(Lineage::from_random(1), Position::new(position as u64));
        for position in 1..=KEPT + 5 {
            let directory = tempfile::tempdir().unwrap();
            let text = format!("{}\nthe end", "x".repeat(2 << 20));
            fs::write(directory.path().join("app-0.err.4"), text).unwrap();
            fs::write(directory.path().join("app-0.err.5"), format!(" of {position}")).unwrap();
            fs::write(directory.path().join("spec.json"), "{}").unwrap();
            keep(root.path(), id(position), directory.path()).unwrap();
        }
        let surplus: Vec<_> =
            (1..=5).map(|position| ended(root.path()).join(id(position).to_string())).collect();
        assert_eq!(super::surplus(root.path()).unwrap(), surplus);
        let files = log_files(root.path(), id(6)).unwrap();
        assert_eq!((files.len(), files[0].name.stream), (1, LogStream::Err));
        let kept = fs::read_to_string(part(&files[0].base, 5)).unwrap();
        assert_eq!(kept, "the end of 6");
    }

    #[test]
    fn a_kept_output_is_not_copied_again_from_a_partly_removed_directory() {
        let (root, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let id = IncarnationId::issue(Lineage::from_random(1), Position::FIRST);
        let text = |files: &[OutputFile]| fs::read_to_string(part(&files[0].base, 2)).unwrap();
        // A crash during keeping left a part.
        let begun = ended(root.path()).join(format!("{id}.new"));
        fs::create_dir_all(&begun).unwrap();
        fs::write(begun.join("app-0.out.2"), "on").unwrap();
        fs::write(directory.path().join("app-0.out.1"), "one ").unwrap();
        fs::write(directory.path().join("app-0.out.2"), "two").unwrap();
        keep(root.path(), id, directory.path()).unwrap();
        assert_eq!(text(&log_files(root.path(), id).unwrap()), "one two");
        // Another crash, during removal.
        fs::remove_file(directory.path().join("app-0.out.1")).unwrap();
        keep(root.path(), id, directory.path()).unwrap();
        assert_eq!(text(&log_files(root.path(), id).unwrap()), "one two");
        assert!(!begun.exists());
    }

    #[test]
    fn a_last_line_is_bounded_and_has_no_control_characters() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("app-0.err");
        assert_eq!(last_line(&base), None);
        for (text, wanted) in [
            ("", None),
            ("\n", None),
            ("first\nqemu: no file 'x'\n", Some("qemu: no file 'x'".to_owned())),
            ("\u{1b}[31mred\u{7} \u{202e}line\r\n", Some("[31mred line".to_owned())),
            (&"x".repeat(10_000), Some("x".repeat(256))),
        ] {
            fs::write(directory.path().join("app-0.err.1"), text).unwrap();
            assert_eq!(last_line(&base), wanted, "{text:?}");
        }
    }

    #[test]
    fn what_replaces_a_copy_is_neither_written_through_nor_waited_for() {
        use std::os::unix::fs::symlink;
        let (root, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let foreign = tempfile::tempdir().unwrap();
        let precious = foreign.path().join("precious");
        fs::write(&precious, "as it was").unwrap();
        for (position, lead) in [(1, true), (2, false)] {
            let id = IncarnationId::issue(Lineage::from_random(1), Position::new(position));
            fs::write(directory.path().join("app-0.out.1"), "hello\n").unwrap();
            let kept = ended(root.path()).join(format!("{id}.new"));
            if lead {
                // The directory itself is a link.
                fs::create_dir_all(ended(root.path())).unwrap();
                symlink(foreign.path(), &kept).unwrap();
            } else {
                fs::create_dir_all(&kept).unwrap();
                symlink(&precious, kept.join("app-0.out.1")).unwrap();
                let times = times::path_of(&kept.join("app-0.out.1"));
                mkfifoat(CWD, &times, Mode::RUSR | Mode::WUSR).unwrap();
            }
            keep(root.path(), id, directory.path()).unwrap();
            let files = log_files(root.path(), id).unwrap();
            assert_eq!(fs::read_to_string(part(&files[0].base, 1)).unwrap(), "hello\n");
            assert_eq!(fs::read_to_string(&precious).unwrap(), "as it was");
            assert_eq!(entries(foreign.path()).unwrap().len(), 1);
        }
    }

    #[test]
    fn an_output_that_cannot_be_copied_takes_no_other_with_it_and_its_newest_file_is_moved() {
        use std::os::unix::fs::MetadataExt as _;
        let (root, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let id = IncarnationId::issue(Lineage::from_random(1), Position::FIRST);
        let at = |name: &str| directory.path().join(name);
        fs::write(at("app-0.out.1"), "hello\n").unwrap();
        std::os::unix::fs::symlink("nowhere", at("app-0.err.1")).unwrap();
        fs::write(at("web-0.out.7"), "the last words\n").unwrap();
        let moved = fs::metadata(at("web-0.out.7")).unwrap().ino();
        // No copy can be made: a part cannot be read.
        fs::create_dir(at("web-0.out.6")).unwrap();
        keep(root.path(), id, directory.path()).unwrap();
        let files = log_files(root.path(), id).unwrap();
        let names: Vec<_> = files.iter().map(|file| (file.name.payload.as_str(), file.name.stream)).collect();
        assert_eq!(names, [("app", LogStream::Out), ("web", LogStream::Out)]);
        let web = part(&files[1].base, 7);
        assert_eq!(fs::read_to_string(&web).unwrap(), "the last words\n");
        assert_eq!(fs::metadata(&web).unwrap().ino(), moved);

        // Crash between the move and the rename.
        let whole = ended(root.path()).join(id.to_string());
        fs::rename(&whole, whole.with_extension("new")).unwrap();
        fs::remove_file(at("app-0.out.1")).unwrap();
        fs::remove_file(at("app-0.err.1")).unwrap();
        fs::remove_dir(at("web-0.out.6")).unwrap();
        keep(root.path(), id, directory.path()).unwrap();
        assert_eq!(log_files(root.path(), id).unwrap().len(), 2);

        // No output can be kept.
        let (id, incarnation_directory) =
            (IncarnationId::issue(Lineage::from_random(1), Position::new(9)), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink("nowhere", incarnation_directory.path().join("app-0.out.1")).unwrap();
        keep(root.path(), id, incarnation_directory.path()).unwrap();
        assert_eq!(entries(&ended(root.path())).unwrap().len(), 1);
    }
}
