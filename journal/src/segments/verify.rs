//! Offline check of every frame, every link of the chain and the JSON of every event, changing nothing.
//!
//! The check needs no lock. If a server has the directory open, an incomplete write is not reported. The
//! bytes alone do not show whether the end was cut off cleanly, or the journal was rewritten completely. For
//! that, compare [`VerifyReport::head`] with a head that was recorded elsewhere.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chancery_events::id::{Lineage, Position};
use chancery_events::lineage::LineageHistory;
use chancery_events::record::Record;
use serde::de::IgnoredAny;

use super::LOCK;
use super::catalog::{file_name, list};
use super::postings;
use super::scan::{ForeignSegment, SegmentScan, fleet, scan};
use crate::chain::{ChainCursor, ChainReader};
use crate::witness::{JournalWitness, follow};

/// Read error that prevents the check.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}", path.display())]
pub struct VerifyError {
    path: PathBuf,
    source: io::Error,
}

/// First defect found. Nothing after it is verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifyFinding {
    /// Segment file.
    pub file: PathBuf,
    /// Offset in bytes.
    pub offset: u64,
    /// Position expected there.
    pub position: Position,
    /// Defect, in words.
    pub reason: String,
}

/// Result of the check.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum VerifyOutcome {
    /// All data is as it was written.
    #[default]
    Intact,
    /// A defect after everything named as synced: a group cut off while it was written, or damage to the last
    /// one. Opening the journal truncates it.
    TornTail(VerifyFinding),
    /// Synced data is damaged, altered or missing. The journal will not open.
    Damaged(VerifyFinding),
}

/// Content of a directory.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct VerifyReport {
    /// Fleet of the journal; `None` if it is empty.
    pub fleet: Option<Arc<str>>,
    /// Lineages, each with its first position.
    pub lineages: Vec<(Lineage, Position)>,
    /// Lineages, each ancestor with its last position in this journal.
    pub held: Option<LineageHistory>,
    /// Number of terms.
    pub terms: u64,
    /// Number of segments.
    pub segments: usize,
    /// Number of records.
    pub records: u64,
    /// Number of events.
    pub events: u64,
    /// Size of all records in bytes.
    pub bytes: u64,
    /// Last intact record.
    pub head: Option<ChainCursor>,
    /// Position that frames name as synced. After it, a clean end is indistinguishable from a truncated one.
    pub named: Position,
    /// Whether a process has the journal open.
    pub is_open: bool,
    /// Result of the check.
    pub outcome: VerifyOutcome,
}

impl VerifyReport {
    fn count(&mut self, record: &Record) {
        let header = record.header();
        if self.lineages.last().is_none_or(|(lineage, _)| *lineage != header.lineage) {
            self.lineages.push((header.lineage, header.first));
        }
        if header.starts.is_some() {
            follow(&mut self.held, record);
        }
        self.terms += u64::from(header.starts.is_some());
        self.records += 1;
        self.events += u64::from(header.count);
        self.bytes += record.bytes().len() as u64;
    }
}

/// Checks the journal in a directory.
pub fn verify(dir: &Path) -> Result<VerifyReport, VerifyError> {
    verify_each(dir, &mut |_| ())
}

/// Checks the journal in a directory; `each` receives every valid record, in order.
pub fn verify_each(dir: &Path, each: &mut dyn FnMut(&Record)) -> Result<VerifyReport, VerifyError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| VerifyError { path, source }
    };
    let files = list(dir).map_err(failed(dir))?;
    let mut report = VerifyReport {
        segments: files.len(),
        is_open: is_open(dir).map_err(failed(dir))?,
        ..VerifyReport::default()
    };
    let mut chain = None;
    for (at, (first, path)) in files.iter().enumerate() {
        let bytes = fs::read(path).map_err(failed(path))?;
        let before =
            chain.take().unwrap_or_else(|| ChainReader::new(fleet(&bytes).unwrap_or_default(), None));
        report.fleet = Some(before.fleet().clone()).filter(|fleet| !fleet.is_empty());
        if *first != before.next() {
            let reason = "a segment is missing, or records at the end of the previous one".into();
            let file = dir.join(file_name(before.next()));
            report.outcome =
                VerifyOutcome::Damaged(VerifyFinding { file, offset: 0, position: before.next(), reason });
            return Ok(report);
        }
        let is_last = at + 1 == files.len();
        match segment(&mut report, path, bytes, before, is_last, each).map_err(failed(path))? {
            Ok(next) => chain = Some(next),
            Err(outcome) => {
                report.outcome = outcome;
                return Ok(report);
            }
        }
    }
    Ok(report)
}

/// Returns the witnesses in files of postings in the directory. Changes nothing.
pub fn postings(dir: &Path) -> Result<Vec<JournalWitness>, VerifyError> {
    let failed = |source| VerifyError { path: dir.to_owned(), source };
    let last = list(dir).map_err(failed)?.last().map(|(first, _)| *first);
    postings::witnesses(dir, last).map_err(failed)
}

/// Checks one segment and counts its content. Returns the chain at its end.
fn segment(
    report: &mut VerifyReport,
    path: &Path,
    mut bytes: Vec<u8>,
    chain: ChainReader,
    is_last: bool,
    each: &mut dyn FnMut(&Record),
) -> io::Result<Result<ChainReader, VerifyOutcome>> {
    let finding = |offset: usize, position, reason| VerifyFinding {
        file: path.to_owned(),
        offset: offset as u64,
        position,
        reason,
    };
    if report.is_open && is_last {
        bytes = settled(path, bytes, &chain)?;
    }
    let mut bad_event = None;
    let scan = scan(&bytes, chain, |record| {
        let bad = record.events().find(|(_, line)| serde_json::from_slice::<IgnoredAny>(line).is_err());
        bad_event = bad_event.or(bad.map(|(position, _)| position));
        report.count(record);
        each(record);
    });
    let scan = match scan {
        Ok(scan) => scan,
        Err(ForeignSegment::Broken { offset, source }) => {
            let reason = std::error::Error::source(&source).map_or(source.to_string(), ToString::to_string);
            return Ok(Err(VerifyOutcome::Damaged(finding(offset, source.position(), reason))));
        }
        Err(ForeignSegment::Fleet { offset, position, found }) => {
            let reason = format!("the record is of another fleet, {found:?}");
            return Ok(Err(VerifyOutcome::Damaged(finding(offset, position, reason))));
        }
    };
    report.head = scan.chain.at().copied();
    report.named = scan.named.min(scan.chain.at().map_or(Position::ZERO, |at| at.position));
    if let Some(position) = bad_event {
        return Ok(Err(VerifyOutcome::Damaged(finding(0, position, "the event is not JSON".into()))));
    }
    Ok(match &scan.damage {
        None => Ok(scan.chain),
        Some(_) if is_last && scan.is_torn_tail() && report.is_open => Ok(scan.chain),
        Some(damage) => {
            let finding = finding(damage.offset, damage.position, damage.reason.clone());
            Err(if is_last && scan.is_torn_tail() {
                VerifyOutcome::TornTail(finding)
            } else {
                VerifyOutcome::Damaged(finding)
            })
        }
    })
}

/// Rereads a segment that is being written until apparent damage disappears or persists: one read may mix
/// bytes from before and after a write.
fn settled(path: &Path, mut bytes: Vec<u8>, chain: &ChainReader) -> io::Result<Vec<u8>> {
    let is_damaged = |scan: Result<SegmentScan, ForeignSegment>| scan.is_ok_and(|scan| scan.damage.is_some());
    for _ in 0..5 {
        if !is_damaged(scan(&bytes, chain.clone(), |_| ())) {
            break;
        }
        bytes = fs::read(path)?;
    }
    Ok(bytes)
}

fn is_open(dir: &Path) -> io::Result<bool> {
    let file = match File::open(dir.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
