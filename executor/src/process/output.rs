//! What processes wrote: where it is while they run, and what is kept of it when they have ended.
//!
//! An incarnation's folder goes when its end is in the journal; that is just when people want to know what it said
//! last. So the ends of its output files are kept beside, those of the newest incarnations only.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use chancery_events::id::IncarnationId;
use chancery_events::name::PayloadName;

use super::entries;

/// Incarnations that have ended whose output is kept.
const KEPT: usize = 100;
/// The end of each file that is kept, in bytes.
const END: u64 = 1 << 20;

/// A file with the output of a process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LogFile {
    /// Of which payload.
    pub payload: PayloadName,
    /// Of which of its processes.
    pub index: u16,
    /// Which output.
    pub stream: Stream,
    /// The file.
    pub path: PathBuf,
}

/// An output of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stream {
    /// Its standard output.
    Out,
    /// Its standard error.
    Err,
}

fn ended(root: &Path) -> PathBuf {
    root.join("output")
}

/// The outputs of an incarnation's processes, in order; none if nothing is kept of it.
pub fn log_files(root: &Path, incarnation: IncarnationId) -> io::Result<Vec<LogFile>> {
    let id = incarnation.to_string();
    let nodes = entries(&root.join("nodes"))?;
    let folders = nodes.iter().map(|node| node.join(&id)).chain([ended(root).join(&id)]);
    for folder in folders {
        let mut files: Vec<_> = entries(&folder)?.into_iter().filter_map(log_file).collect();
        if !files.is_empty() {
            files.sort();
            return Ok(files);
        }
    }
    Ok(Vec::new())
}

/// Keeps the end of each output file in the folder, and lets go of those of older incarnations.
pub(super) fn keep(root: &Path, incarnation: IncarnationId, folder: &Path) -> io::Result<()> {
    let outputs: Vec<_> = entries(folder)?.into_iter().filter_map(log_file).collect();
    if outputs.is_empty() {
        return Ok(());
    }
    let kept = ended(root).join(incarnation.to_string());
    fs::create_dir_all(&kept)?;
    for output in outputs {
        let Some(name) = output.path.file_name() else { continue };
        let mut from = File::open(&output.path)?;
        let length = from.metadata()?.len();
        from.seek(SeekFrom::Start(length.saturating_sub(END)))?;
        io::copy(&mut from.take(END), &mut File::create(kept.join(name))?)?;
    }
    // Ids sort by their issue: the first are the oldest.
    let mut all = entries(&ended(root))?;
    all.sort();
    for old in &all[..all.len().saturating_sub(KEPT)] {
        fs::remove_dir_all(old)?;
    }
    Ok(())
}

fn log_file(path: PathBuf) -> Option<LogFile> {
    let stream = match path.extension()?.to_str()? {
        "out" => Stream::Out,
        "err" => Stream::Err,
        _ => return None,
    };
    let (payload, index) = path.file_stem()?.to_str()?.rsplit_once('-')?;
    let (payload, index) = (payload.parse().ok()?, index.parse().ok()?);
    Some(LogFile { payload, index, stream, path })
}

#[cfg(test)]
mod tests {
    use chancery_events::id::{Lineage, Position};

    use super::*;

    #[test]
    fn the_end_of_what_was_written_is_kept_for_the_newest() {
        let root = tempfile::tempdir().unwrap();
        let id =
            |position: usize| IncarnationId::issue(Lineage::from_random(1), Position::new(position as u64));
        for position in 1..=KEPT + 5 {
            let folder = tempfile::tempdir().unwrap();
            let text = format!("{}the end of {position}", "x".repeat(END as usize));
            fs::write(folder.path().join("app-0.err"), text).unwrap();
            fs::write(folder.path().join("spec.json"), "{}").unwrap();
            keep(root.path(), id(position), folder.path()).unwrap();
        }
        assert!(log_files(root.path(), id(5)).unwrap().is_empty());
        let files = log_files(root.path(), id(6)).unwrap();
        assert_eq!((files.len(), files[0].stream), (1, Stream::Err));
        let text = fs::read_to_string(&files[0].path).unwrap();
        assert!(text.ends_with("the end of 6") && text.len() as u64 == END);
    }
}
