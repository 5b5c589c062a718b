//! Location of frames in a journal's segment, read from the description of the format alone.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

const MAGIC: [u8; 4] = [0xff, 0x43, 0x68, 0xfe];
const HEAD: usize = 24;

/// Location of a frame in its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub(super) offset: usize,
    pub(super) end: usize,
    /// Position up to which the journal was synced when the frame was written.
    pub(super) synced: u64,
}

/// Segments of a journal, in order.
pub(super) fn segments(journal: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(journal).with_context(|| format!("list {}", journal.display()))?;
    let mut found = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    found.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    found.sort();
    Ok(found)
}

/// Frames of a segment, in order.
pub(super) fn frames(segment: &[u8]) -> Vec<Frame> {
    let (mut found, mut offset) = (Vec::new(), 0);
    while let Some(head) = segment.get(offset..offset + HEAD).filter(|head| head[..4] == MAGIC) {
        let number = |at: usize, len: usize| {
            head[at..at + len].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let end = offset + HEAD + number(8, 4) as usize;
        found.push(Frame { offset, end, synced: number(16, 8) });
        offset = end;
    }
    found
}
