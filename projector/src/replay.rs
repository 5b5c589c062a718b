//! Replay: folds a whole journal from its start, counts what it contains, and compares the state with snapshots.
//!
//! | snapshot | result |
//! |---|---|
//! | of another build's format or shape | skipped |
//! | of a record that the journal does not have, as after a loss was accepted | skipped |
//! | with the state of the replay | agrees |
//! | with another state | differs: the journal, the snapshot, or the build that wrote it is wrong |
//! | not as it was written | damaged |
//! | removed meanwhile, as a server does when it writes others | not listed |
//!
//! Invariants: nothing is read but the journal and its snapshots, and nothing is written. The fold is that of the
//! projector, and starts from no snapshot.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chancery_events::event::FoldableEvent;
use chancery_events::fact::Fact;
use chancery_events::id::Position;
use chancery_events::record::Record;
use chancery_journal::snapshots;
use chancery_journal::{JournalReader, ReadError};
use rustc_hash::FxHashMap;

use crate::fold::{DecodedRecord, FoldError, FoldedState, JournalFold, fold_ahead};
use crate::kind::{RowKind, each_key};
use crate::moment::MomentEnd;
use crate::snapshot::fingerprint;

/// Reason why a replay does not reach the end of the journal.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Records that are damaged or missing, or that cannot be read: restore them.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Record that contradicts those before it, or that needs another build.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// State that cannot be hashed.
    #[error("cannot hash state at position {position}")]
    Hash {
        /// Position of the state.
        position: Position,
        /// Cause of the failure.
        source: io::Error,
    },
}

/// Content of a journal, as far as it was replayed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ReplayCounts {
    /// Number of records.
    pub records: u64,
    /// Size of all records, in bytes.
    pub bytes: u64,
    /// Number of events of each type.
    types: FxHashMap<&'static str, u64>,
    /// Number of refused intents by code.
    pub refusals: BTreeMap<&'static str, u64>,
    /// Number of failed attempts at commands, and the highest number of an attempt at one command.
    pub attempts: (u64, u32),
    /// Number of terms.
    pub terms: u64,
    /// Builds that wrote records.
    pub builds: BTreeMap<Arc<str>, BuildRecords>,
    /// First and last record.
    pub span: Option<(MomentEnd, MomentEnd)>,
}

/// Records that a build wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BuildRecords {
    /// First position.
    pub first: Position,
    /// Last position; other builds may have written between.
    pub last: Position,
    /// Number of records.
    pub records: u64,
}

impl ReplayCounts {
    /// Returns the number of events.
    pub fn events(&self) -> u64 {
        self.types.values().sum()
    }

    /// Returns the number of events of each type.
    pub fn types(&self) -> BTreeMap<&'static str, u64> {
        self.types.iter().map(|(name, count)| (*name, *count)).collect()
    }

    /// Counts a record, and returns its facts.
    fn decode(&mut self, record: Arc<Record>) -> DecodedRecord {
        let header = record.header();
        let at = MomentEnd { position: record.last(), time: header.time };
        self.records += 1;
        self.bytes += record.bytes().len() as u64;
        self.terms += u64::from(header.starts.is_some());
        self.span = Some((self.span.map_or(at, |(first, _)| first), at));
        if let Some(build) = self.builds.get_mut(&header.build) {
            (build.last, build.records) = (at.position, build.records + 1);
        } else {
            let build = BuildRecords { first: header.first, last: at.position, records: 1 };
            self.builds.insert(Arc::clone(&header.build), build);
        }
        DecodedRecord::visiting(record, |event| self.count(event))
    }

    fn count(&mut self, event: &FoldableEvent) {
        let type_name = match event {
            FoldableEvent::Fact(fact) => fact.type_name(),
            FoldableEvent::NoChange(type_name) => type_name,
        };
        *self.types.entry(type_name).or_default() += 1;
        let attempt = match event {
            FoldableEvent::Fact(Fact::IntentRefused(refused)) => {
                *self.refusals.entry(refused.code.word()).or_default() += 1;
                return;
            }
            FoldableEvent::Fact(Fact::IncarnationCommandFailed(failed)) => failed.attempt,
            FoldableEvent::Fact(Fact::VolumeCommandFailed(failed)) => failed.attempt,
            // Only a failed command has an attempt.
            FoldableEvent::Fact(_) | FoldableEvent::NoChange(_) => return,
        };
        let (failed, highest) = self.attempts;
        self.attempts = (failed + 1, highest.max(attempt));
    }
}

/// Result of comparing a snapshot with the replayed state at its position.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotResult {
    /// The state is the same.
    Agrees,
    /// The state is another one.
    Differs,
    /// The file is not as it was written, for this reason.
    Damaged(String),
    /// Another build wrote the snapshot, which this build cannot read.
    OtherBuild,
    /// The journal does not have the record of the snapshot.
    OtherHistory,
}

/// Snapshot that was compared, or skipped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ComparedSnapshot {
    /// Position of the snapshot, by the name of its file.
    pub position: Position,
    /// Path of the file.
    pub path: PathBuf,
    /// Result of the comparison.
    pub result: SnapshotResult,
}

/// Snapshots that a replay compares, in the order of positions.
struct SnapshotComparison<'a> {
    fleet: &'a str,
    /// Snapshots that are still to come, the nearest one last.
    waiting: Vec<(Position, PathBuf)>,
    compared: Vec<ComparedSnapshot>,
}

impl SnapshotComparison<'_> {
    /// Compares the snapshots up to the state, which is that after a record.
    fn after(&mut self, state: &FoldedState) -> Result<(), ReplayError> {
        while let Some((position, path)) = self.waiting.pop_if(|(position, _)| *position <= state.at.position)
        {
            let result = compare(self.fleet, position, &path, state);
            if let Some(result) = result.map_err(|source| ReplayError::Hash { position, source })? {
                self.compared.push(ComparedSnapshot { position, path, result });
            }
        }
        Ok(())
    }
}

/// Compares a snapshot with the state; `None` if another process has removed it. Fails only if the state cannot be hashed.
fn compare(
    fleet: &str,
    position: Position,
    path: &Path,
    state: &FoldedState,
) -> io::Result<Option<SnapshotResult>> {
    let unread = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => None,
        io::ErrorKind::Unsupported => Some(SnapshotResult::OtherBuild),
        _ => Some(SnapshotResult::Damaged(error.to_string())),
    };
    // Opening another kind of file, as a named pipe, may block.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Ok(Some(SnapshotResult::Damaged("it is not a file".to_owned())));
    }
    let meta = match snapshots::first_line(path) {
        Ok(meta) => meta,
        Err(error) => return Ok(unread(error)),
    };
    if meta.position != position {
        return Ok(Some(SnapshotResult::Damaged("its name does not match its position".to_owned())));
    }
    if meta.fingerprint != fingerprint() {
        return Ok(Some(SnapshotResult::OtherBuild));
    }
    if *meta.fleet != *fleet || meta.cursor() != state.at {
        return Ok(Some(SnapshotResult::OtherHistory));
    }
    // Its bytes are those that its metadata names, or it is damaged.
    if let Err(error) = snapshots::read_file(path) {
        return Ok(unread(error));
    }
    let is_same = meta.state_hash == state.hash()? && meta.watermark == state.watermark;
    Ok(Some(if is_same { SnapshotResult::Agrees } else { SnapshotResult::Differs }))
}

/// Result of a replay.
#[derive(Debug)]
pub struct JournalReplay {
    /// State after the last record; `None` if the journal is empty.
    pub state: Option<FoldedState>,
    /// Content of the journal.
    pub counts: ReplayCounts,
    /// Snapshots up to the last record, oldest first.
    pub snapshots: Vec<ComparedSnapshot>,
}

impl JournalReplay {
    /// Returns the number of entities of each kind in the state.
    pub fn entities(&self) -> Vec<(RowKind, u64)> {
        let count = |kind| {
            let mut count = 0;
            if let Some(state) = &self.state {
                each_key(&state.fleet, kind, &mut |_| count += 1);
            }
            (kind, count)
        };
        RowKind::ALL.iter().copied().map(count).collect()
    }
}

/// Folds a journal from its start to its head, and compares the state with these snapshots. `each` receives the state
/// after each record.
pub fn replay(
    journal: &dyn JournalReader,
    fleet: &str,
    snapshots: Vec<(Position, PathBuf)>,
    mut each: impl FnMut(&FoldedState),
) -> Result<JournalReplay, ReplayError> {
    let mut waiting = snapshots;
    waiting.sort_by(|a, b| b.cmp(a));
    let mut comparison = SnapshotComparison { fleet, waiting, compared: Vec::new() };
    let (mut fold, mut counts) = (JournalFold::discarding(None), ReplayCounts::default());
    let records = journal.records(Position::FIRST)?;
    fold_ahead(
        &mut fold,
        records,
        |record| counts.decode(record),
        |_, state| {
            each(state);
            comparison.after(state)
        },
    )?;
    Ok(JournalReplay { state: fold.into_state(), counts, snapshots: comparison.compared })
}
