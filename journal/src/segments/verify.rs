//! The check that works offline: every frame, every link of the chain, every event's JSON, changing nothing.
//!
//! It needs no lock. While a server has the folder open, what it is writing at this moment is not held against it.
//! What a check of the bytes cannot see is that the end was cut off cleanly, or that somebody wrote all of it anew:
//! that takes a head that was noted elsewhere, to which [`Report::head`] is to be compared.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chancery_events::id::{Lineage, Position};
use chancery_events::lineage::Lineages;
use chancery_events::record::Record;
use serde::de::IgnoredAny;

use super::LOCK;
use super::catalog::{file_name, list};
use super::postings;
use super::scan::{NotOurs, Scan, fleet, scan};
use crate::chain::{Chain, Cursor};
use crate::witness::{Witness, follow};

/// The check could not be made.
#[derive(Debug, thiserror::Error)]
#[error("verify the journal: read {}", path.display())]
pub struct VerifyError {
    path: PathBuf,
    source: io::Error,
}

/// What was found wrong first. What is behind it cannot be vouched for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The segment.
    pub file: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// The position that should stand there.
    pub position: Position,
    /// What is wrong.
    pub reason: String,
}

/// How it went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Everything is as it was written.
    Sound,
    /// Behind everything that was named as synced there is something that is not whole: a group that was cut off
    /// while it was written, or damage to the last one. Opening the journal will cut it.
    Torn(Finding),
    /// Something that was synced is damaged, altered or missing. The journal will not open.
    Damaged(Finding),
}

/// What a folder holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Whose journal it is; `None` of an empty one.
    pub fleet: Option<Arc<str>>,
    /// The lineages, each with its first position.
    pub lineages: Vec<(Lineage, Position)>,
    /// The same, with what is held of each.
    pub held: Option<Lineages>,
    /// How many terms there were.
    pub terms: u64,
    /// How many segments.
    pub segments: usize,
    /// How many records.
    pub records: u64,
    /// How many events.
    pub events: u64,
    /// How many bytes of records.
    pub bytes: u64,
    /// The last record that is sound.
    pub head: Option<Cursor>,
    /// Up to where frames say that the journal was synced. Behind it a clean end cannot be told from a cut one.
    pub named: Position,
    /// Whether a process has the journal open.
    pub is_open: bool,
    /// How it went.
    pub outcome: Outcome,
}

impl Report {
    fn count(&mut self, record: &Record) {
        let header = record.header();
        if self.lineages.last().is_none_or(|(lineage, _)| *lineage != header.lineage) {
            self.lineages.push((header.lineage, header.first));
        }
        if header.begins.is_some() {
            follow(&mut self.held, record);
        }
        self.terms += u64::from(header.begins.is_some());
        self.records += 1;
        self.events += u64::from(header.count);
        self.bytes += record.bytes().len() as u64;
    }
}

/// Checks the journal in a folder.
pub fn verify(dir: &Path) -> Result<Report, VerifyError> {
    verify_each(dir, &mut |_| ())
}

/// Checks the journal in a folder; `each` is shown every record that counts, in order.
pub fn verify_each(dir: &Path, each: &mut dyn FnMut(&Record)) -> Result<Report, VerifyError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| VerifyError { path, source }
    };
    let files = list(dir).map_err(failed(dir))?;
    let mut report = Report {
        fleet: None,
        lineages: Vec::new(),
        held: None,
        terms: 0,
        segments: files.len(),
        records: 0,
        events: 0,
        bytes: 0,
        head: None,
        named: Position::ZERO,
        is_open: is_open(dir).map_err(failed(dir))?,
        outcome: Outcome::Sound,
    };
    let mut chain = None;
    for (at, (first, path)) in files.iter().enumerate() {
        let bytes = fs::read(path).map_err(failed(path))?;
        let before = chain.take().unwrap_or_else(|| Chain::new(fleet(&bytes).unwrap_or_default(), None));
        report.fleet = Some(before.fleet().clone()).filter(|fleet| !fleet.is_empty());
        if *first != before.next() {
            let reason = "a segment is missing, or records at the end of the one before".into();
            let file = dir.join(file_name(before.next()));
            report.outcome = Outcome::Damaged(Finding { file, offset: 0, position: before.next(), reason });
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

/// What files of postings in the folder prove of the journal. Changes nothing.
pub fn postings(dir: &Path) -> Result<Vec<Witness>, VerifyError> {
    let failed = |source| VerifyError { path: dir.to_owned(), source };
    let last = list(dir).map_err(failed)?.last().map(|(first, _)| *first);
    postings::witnesses(dir, last).map_err(failed)
}

/// Checks one segment and counts what is in it. Gives where it ends.
fn segment(
    report: &mut Report,
    path: &Path,
    mut bytes: Vec<u8>,
    chain: Chain,
    is_last: bool,
    each: &mut dyn FnMut(&Record),
) -> io::Result<Result<Chain, Outcome>> {
    let finding = |offset: usize, position, reason| Finding {
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
        Err(NotOurs::Broken { offset, source }) => {
            let reason = std::error::Error::source(&source).map_or(source.to_string(), ToString::to_string);
            return Ok(Err(Outcome::Damaged(finding(offset, source.position(), reason))));
        }
        Err(NotOurs::Fleet { offset, position, found }) => {
            let reason = format!("the record is of another fleet, {found:?}");
            return Ok(Err(Outcome::Damaged(finding(offset, position, reason))));
        }
    };
    report.head = scan.chain.at().copied();
    report.named = scan.named.min(scan.chain.at().map_or(Position::ZERO, |at| at.position));
    if let Some(position) = bad_event {
        return Ok(Err(Outcome::Damaged(finding(0, position, "the event is not JSON".into()))));
    }
    Ok(match &scan.damage {
        None => Ok(scan.chain),
        Some(_) if is_last && scan.is_torn_tail() && report.is_open => Ok(scan.chain),
        Some(damage) => {
            let finding = finding(damage.offset, damage.position, damage.reason.clone());
            Err(if is_last && scan.is_torn_tail() {
                Outcome::Torn(finding)
            } else {
                Outcome::Damaged(finding)
            })
        }
    })
}

/// Reads a segment that is being written until what looks like damage is either gone or there to stay: parts of it
/// may have been read before, others after a write.
fn settled(path: &Path, mut bytes: Vec<u8>, chain: &Chain) -> io::Result<Vec<u8>> {
    let is_damaged = |scan: Result<Scan, NotOurs>| scan.is_ok_and(|scan| scan.damage.is_some());
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
