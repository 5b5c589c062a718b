//! Opening a directory of segments: what is kept, made durable again, truncated or refused.
//!
//! | where | intact | damaged or missing |
//! |---|---|---|
//! | any segment but the last | kept | refused |
//! | last segment, up to the highest position named as synced by a frame or the segment's name | kept | refused |
//! | last segment, after it | rewritten and synced before use | truncated with a warning; a copy is kept |
//! | any record that a witness names | kept | refused, unless the loss is accepted |
//!
//! After the named position, a torn write is indistinguishable from later damage, and only the very last
//! group can have been acknowledged. Intact records there are rewritten, because a failed sync leaves pages
//! that are marked clean but are not on the disk. The truncated part is overwritten with zeros, so that it
//! cannot be taken for frames later. A segment in another build's format, or of another fleet, is never
//! changed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use chancery_events::id::Position;

use super::catalog::{Segment, SegmentCatalog, list};
use super::disk::DiskAccess;
use super::frame::len_without_zeros;
use super::reader::SegmentSource;
use super::scan::{DamagedBytes, ForeignSegment, PreviousSegment, SegmentScan, old_format, scan, sweep};
use super::writer::{ActiveSegment, adopt};
use super::{OpenCheck, OpenEvidence, SegmentOptions, postings, preallocated};
use crate::aside::{ExpectedType, set_aside};
use crate::chain::{ChainCursor, ChainError, ChainReader};
use crate::journal::ReadError;
use crate::witness::{JournalLoss, loss};

/// Reason why the journal cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum SegmentOpenError {
    /// Another process has the journal open: stop it, or choose another directory.
    #[error("cannot open journal {}: locked by another process", dir.display())]
    Locked {
        /// Directory of the journal.
        dir: PathBuf,
    },
    /// The file system failed.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// Failed operation.
        operation: &'static str,
        /// Path that it was applied to.
        path: PathBuf,
        /// Underlying error.
        source: io::Error,
    },
    /// The file is damaged, and must be restored from a copy.
    #[error(
        "cannot open journal: {} is damaged at offset {offset}, where position {position} is expected: {reason}. \
         Everything up to position {named} was synced, so a crash is not the cause; nothing was changed\n\
         hint: restore the directory from a backup or from another server's copy, or check it with chancery verify",
        file.display()
    )]
    Damaged {
        /// Segment file.
        file: PathBuf,
        /// Offset of the damage in the segment file, in bytes.
        offset: u64,
        /// Position expected at the offset.
        position: Position,
        /// Position up to which the directory records the journal as synced.
        named: Position,
        /// Damage, in words.
        reason: String,
    },
    /// Records are missing: the directory must be restored from a copy, or the loss accepted.
    #[error(
        "cannot open the journal in {}: {loss}; nothing was changed\nhint: restore the directory from a copy that reaches \
         further; if there is none, chancery serve --accept-loss continues under a new lineage",
        dir.display()
    )]
    Short {
        /// Directory of the journal.
        dir: PathBuf,
        /// Records that are missing.
        loss: Box<JournalLoss>,
    },
    /// A record that a witness names cannot be read.
    #[error("cannot open the journal in {}", dir.display())]
    Unreadable {
        /// Directory of the journal.
        dir: PathBuf,
        /// Error of the read.
        source: ReadError,
    },
    /// The segment belongs to another fleet: the directory or the configured fleet is wrong.
    #[error("cannot open journal: {} belongs to fleet {found:?}, not to {wanted:?}", file.display())]
    OtherFleet {
        /// Segment file.
        file: PathBuf,
        /// Fleet of the segment.
        found: Arc<str>,
        /// Fleet of the options.
        wanted: Arc<str>,
    },
    /// A record cannot be accepted: the journal needs the build that wrote it, or a newer one.
    #[error("cannot read segment {}", file.display())]
    Broken {
        /// Segment file.
        file: PathBuf,
        /// Record that cannot be accepted.
        source: ChainError,
    },
}

/// Truncated tail: the last group, torn while it was written, or damaged before any frame named it as synced.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TruncatedTail {
    /// First position in the tail; records from there on are lost, if any was ever acknowledged.
    pub from: Position,
    /// Segment file.
    pub file: PathBuf,
    /// Offset of the tail in the segment file, in bytes.
    pub offset: u64,
    /// Length of the tail, in bytes.
    pub bytes: u64,
    /// Damage at the offset, in words.
    pub reason: String,
    /// Path of the copy of the tail.
    pub kept: PathBuf,
}

/// Result of opening a journal.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpenedSegments {
    /// Cursor after the last record.
    pub head: Option<ChainCursor>,
    /// First position that was rewritten, because no frame named it as synced.
    pub rewritten: Option<Position>,
    /// Truncated tail.
    pub cut: Option<TruncatedTail>,
    /// Accepted loss.
    pub loss: Option<JournalLoss>,
}

pub(super) struct SegmentParts {
    pub(super) opened: OpenedSegments,
    pub(super) chain: ChainReader,
    pub(super) catalog: Arc<SegmentCatalog>,
    pub(super) open: ActiveSegment,
    pub(super) is_named: bool,
}

pub(super) fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SegmentOpenError {
    move |source| SegmentOpenError::Io { operation, path: path.to_owned(), source }
}

fn damaged(file: &Path, named: Position, damage: DamagedBytes) -> SegmentOpenError {
    let DamagedBytes { offset, position, reason } = damage;
    SegmentOpenError::Damaged { file: file.to_owned(), offset: offset as u64, position, named, reason }
}

/// Prepares the directory, whose lock is held, for writing.
pub(super) fn open(
    options: &SegmentOptions,
    disk: &dyn DiskAccess,
) -> Result<SegmentParts, SegmentOpenError> {
    let dir = &options.dir;
    let mut files = list(dir).map_err(failed("list", dir))?;
    let Some((first, path)) = files.pop() else {
        let nothing = Arc::new(SegmentCatalog::new(options.fleet.clone(), Vec::new(), None));
        let loss = weigh(options, &nothing, None)?;
        clear(dir, disk)?;
        return begin(options, disk, loss);
    };
    let (mut segments, before) = earlier(options, &files, first)?;
    let bytes = fs::read(&path).map_err(failed("read", &path))?;
    let scan = match scan(&bytes, ChainReader::new(options.fleet.clone(), before), |_| ()) {
        Ok(scan) => scan,
        Err(ForeignSegment::Broken { source, .. }) => {
            return Err(SegmentOpenError::Broken { file: path, source });
        }
        Err(ForeignSegment::Fleet { found, .. }) => {
            return Err(SegmentOpenError::OtherFleet { file: path, found, wanted: options.fleet.clone() });
        }
    };
    if let Some(damage) = &scan.damage
        && !scan.is_torn_tail()
    {
        return Err(damaged(&path, scan.named, damage.clone()));
    }
    let head = scan.chain.at().copied();
    let segment = Arc::new(Segment::new(first, path.clone(), scan.end as u64, Some(scan.index.clone())));
    segments.push(segment.clone());
    let catalog = Arc::new(SegmentCatalog::new(options.fleet.clone(), segments, head));
    let loss = weigh(options, &catalog, Some(first))?;
    // All refusals are above: from here on the directory is changed.
    clear(dir, disk)?;
    let file = disk.open(&path).map_err(failed("open", &path))?;
    let cut = cut(dir, disk, &path, &bytes, &scan)?;
    let tail = &bytes[scan.end..];
    if cut.is_some() {
        let zeros = vec![0; len_without_zeros(tail)];
        file.write_at(&zeros, scan.end as u64).map_err(failed("write", &path))?;
    }
    let rewritten = scan.unnamed().map(|from| (from, scan.named.plus(1)));
    if let Some((from, _)) = rewritten {
        file.write_at(&bytes[from..scan.end], from as u64).map_err(failed("write", &path))?;
    }
    if cut.is_some() || rewritten.is_some() {
        file.sync().map_err(failed("sync", &path))?;
    }
    Ok(SegmentParts {
        opened: OpenedSegments { head, rewritten: rewritten.map(|(_, position)| position), cut, loss },
        catalog,
        open: ActiveSegment { segment, file, offset: scan.end as u64, size: bytes.len() as u64 },
        is_named: rewritten.is_none(),
        chain: scan.chain,
    })
}

/// Returns the loss, if accepted. `last` is the start of the last segment, if there is one. Changes nothing.
fn weigh(
    options: &SegmentOptions,
    catalog: &Arc<SegmentCatalog>,
    last: Option<Position>,
) -> Result<Option<JournalLoss>, SegmentOpenError> {
    let dir = &options.dir;
    let (OpenEvidence::Witnesses(witnesses) | OpenEvidence::AcceptedLoss(witnesses)) = &options.against
    else {
        return Ok(None);
    };
    let mut witnesses = witnesses.clone();
    witnesses.extend(postings::witnesses(dir, last).map_err(failed("read postings in", dir))?);
    let loss = loss(&SegmentSource(catalog.clone()), &witnesses);
    let loss = loss.map_err(|source| SegmentOpenError::Unreadable { dir: dir.clone(), source })?;
    match (loss, &options.against) {
        (Some(loss), OpenEvidence::Witnesses(_)) => {
            Err(SegmentOpenError::Short { dir: dir.clone(), loss: Box::new(loss) })
        }
        (loss, _) => Ok(loss),
    }
}

/// Removes unfinished files that a crash left.
fn clear(dir: &Path, disk: &dyn DiskAccess) -> Result<(), SegmentOpenError> {
    let spare = dir.join(preallocated::NAME);
    set_aside(&spare, ExpectedType::File).map_err(failed("set aside", &spare))?;
    let spare = Some(spare).filter(|spare| spare.exists());
    for left_over in postings::left_over(dir).map_err(failed("list", dir))?.into_iter().chain(spare) {
        disk.remove(&left_over).map_err(failed("remove", &left_over))?;
    }
    Ok(())
}

/// Creates the first segment.
fn begin(
    options: &SegmentOptions,
    disk: &dyn DiskAccess,
    loss: Option<JournalLoss>,
) -> Result<SegmentParts, SegmentOpenError> {
    let dir = &options.dir;
    let size = options.first_segment.min(options.largest_segment);
    let path = dir.join(preallocated::NAME);
    let file =
        preallocated::fill(disk, &path, size, &AtomicBool::new(false)).map_err(failed("fill", &path))?;
    let open = adopt(disk, dir, Position::FIRST, file, size).map_err(failed("create a segment in", dir))?;
    Ok(SegmentParts {
        opened: OpenedSegments { loss, ..OpenedSegments::default() },
        chain: ChainReader::new(options.fleet.clone(), None),
        catalog: Arc::new(SegmentCatalog::new(options.fleet.clone(), vec![open.segment.clone()], None)),
        open,
        is_named: true,
    })
}

/// Checks all segments but the last, which starts at `last`. Returns them and the cursor at their end.
fn earlier(
    options: &SegmentOptions,
    files: &[(Position, PathBuf)],
    last: Position,
) -> Result<(Vec<Arc<Segment>>, Option<ChainCursor>), SegmentOpenError> {
    let named = Position::new(last.get().saturating_sub(1));
    let mut segments = Vec::with_capacity(files.len() + 1);
    let mut before = PreviousSegment::Known(None);
    let mut next = Position::FIRST;
    for (at, (first, path)) in files.iter().enumerate() {
        let is_read = options.check == OpenCheck::All || at + 1 == files.len();
        if *first != next {
            return Err(missing(path, next, named));
        }
        let next_file = files.get(at + 1).map_or(last, |(first, _)| *first);
        if !is_read {
            segments.push(Arc::new(Segment::new(*first, path.clone(), 0, None)));
            (before, next) = (PreviousSegment::Unknown, next_file);
            continue;
        }
        let bytes = fs::read(path).map_err(failed("read", path))?;
        if let Some(source) = old_format(&bytes) {
            return Err(SegmentOpenError::Broken { file: path.clone(), source });
        }
        let swept = sweep(&bytes, &options.fleet, before, *first);
        let swept = swept.map_err(|damage| damaged(path, named, damage))?;
        segments.push(Arc::new(Segment::new(*first, path.clone(), swept.end, Some(swept.index))));
        (before, next) = (PreviousSegment::Known(Some(swept.last)), swept.last.next());
    }
    if last != next {
        return Err(missing(&options.dir.join(super::catalog::file_name(next)), next, named));
    }
    match before {
        PreviousSegment::Known(before) => Ok((segments, before)),
        // The last of the earlier segments is always read.
        PreviousSegment::Unknown => Ok((segments, None)),
    }
}

fn missing(file: &Path, position: Position, named: Position) -> SegmentOpenError {
    let reason = "a segment is missing, or records at the end of the previous one".into();
    damaged(file, named, DamagedBytes { offset: 0, position, reason })
}

/// Copies the tail before truncation, and logs a warning.
fn cut(
    dir: &Path,
    disk: &dyn DiskAccess,
    path: &Path,
    bytes: &[u8],
    scan: &SegmentScan,
) -> Result<Option<TruncatedTail>, SegmentOpenError> {
    let Some(damage) = &scan.damage else { return Ok(None) };
    let tail = &bytes[damage.offset..];
    let tail = &tail[..len_without_zeros(tail)];
    let kept = dir.join(format!("{:020}-{}.cut", damage.position, damage.offset));
    let file = disk.create(&kept).map_err(failed("create", &kept))?;
    file.write_at(tail, 0).map_err(failed("write", &kept))?;
    file.sync().map_err(failed("sync", &kept))?;
    disk.sync_dir(dir).map_err(failed("sync", dir))?;
    let cut = TruncatedTail {
        from: damage.position,
        file: path.to_owned(),
        offset: damage.offset as u64,
        bytes: tail.len() as u64,
        reason: damage.reason.clone(),
        kept,
    };
    tracing::warn!(
        from = %cut.from, file = %cut.file.display(), offset = cut.offset, bytes = cut.bytes,
        reason = cut.reason, kept = %cut.kept.display(),
        "journal tail truncated: records from this position on were never named as synced, and are damaged",
    );
    Ok(Some(cut))
}
