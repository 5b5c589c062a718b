//! Past states in a simulated world, compared with the second model (invariant 16).
//!
//! While the oracle reads the log, the seed samples a few records. At the end of the world, the moments of the sampled
//! records must have the rows that the second model had there: in any order, after other moments were cached,
//! and with and without snapshots, some of which are of another history. Sampling draws apart from the world.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use chancery_events::id::{Lineage, Position};
use chancery_events::lineage::NamedPosition;
use chancery_events::record::{Record, RecordHash};
use chancery_journal::memory::MemoryLog;
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{ChainCursor, RecordIter};
use chancery_machine::decide::pass;
use chancery_machine::fleet::FleetState;
use chancery_projector::kind::RowKind;
use chancery_projector::snapshot::fingerprint;
use chancery_projector::{
    AppliedPosition, FleetMoment, FoldedState, JsonPage, ListQuery, MomentCache, MomentLimits, NamedMoment,
    PositionWatch, QueryError,
};

use super::oracle::violation;
use super::random::RandomSource;
use super::server::FLEET;
use crate::check::InvariantViolation;
use crate::model::{self, ModelRows, SecondModel};

/// One in this number of worlds is checked: the checks of one world cost about as much as the world.
const CHECKED: u64 = 8;
/// Number of sampled records.
const SAMPLES: usize = 3;
/// Number of moments in the cache: fewer than samples.
const MOMENTS: usize = 2;
/// Number of events between snapshots that a fold writes.
const INTERVAL: u64 = 40;

/// Sampled record, with the states after it.
pub(super) struct SampledRecord {
    /// The record.
    pub(super) record: Arc<Record>,
    /// State by the real state machine.
    pub(super) state: FoldedState,
    model: SecondModel,
}

/// Records that the seed samples while the log is read.
pub(super) struct RecordSamples {
    /// Draws of the checks.
    pub(super) random: RandomSource,
    /// Whether the world is one of those that are checked.
    pub(super) is_checked: bool,
    /// Sampled records.
    pub(super) kept: Vec<SampledRecord>,
    taken: u64,
}

impl RecordSamples {
    /// Returns the samples of a world, before its first record.
    pub(super) fn new(seed: u64) -> RecordSamples {
        let random = RandomSource::new(seed ^ 0x9a57);
        RecordSamples { random, is_checked: seed.is_multiple_of(CHECKED), kept: Vec::new(), taken: 0 }
    }

    /// Takes the next record. Each record of the log is sampled with the same probability.
    pub(super) fn take(&mut self, record: &Arc<Record>, state: Option<&FoldedState>, model: &SecondModel) {
        let Some(state) = state.filter(|_| self.is_checked) else { return };
        self.taken += 1;
        let place = if self.kept.len() < SAMPLES {
            self.kept.len()
        } else {
            usize::try_from(self.random.below(self.taken)).unwrap_or(SAMPLES)
        };
        if place >= SAMPLES {
            return;
        }
        let sample = SampledRecord { record: Arc::clone(record), state: state.clone(), model: model.clone() };
        match self.kept.get_mut(place) {
            Some(kept) => *kept = sample,
            None => self.kept.push(sample),
        }
    }
}

/// Returns the rows of all pages of all lists, made comparable with those of the second model.
pub(super) fn listed(
    list: impl Fn(RowKind, &ListQuery) -> Result<JsonPage, QueryError>,
    query: &ListQuery,
) -> Result<ModelRows, QueryError> {
    let mut rows = ModelRows::new();
    for kind in RowKind::ALL {
        let mut query = query.clone();
        loop {
            let page = list(*kind, &query)?;
            for row in model::items_of(&page) {
                let key = model::key_of(*kind, &row).unwrap_or_default();
                rows.insert((*kind, key), model::comparable(*kind, row));
            }
            let Some(next) = page.next else { break };
            query = query.after(next);
        }
    }
    Ok(rows)
}

/// Returns a violation of the invariant about past states.
fn wrong(what: impl Into<String>) -> InvariantViolation {
    violation(16, what, None)
}

fn failed(error: &dyn std::error::Error) -> InvariantViolation {
    wrong(format!("a past state: {error}"))
}

/// Result of a check of past states.
type PastCheck<T = ()> = Result<T, InvariantViolation>;

/// Checks the moments of the samples.
pub(super) fn check_moments(
    samples: &mut RecordSamples,
    log: &MemoryLog,
    snapshots: &[FoldedState],
) -> PastCheck {
    let dir = tempfile::tempdir().map_err(|error| failed(&error))?;
    let store = SnapshotStore::open(dir.path()).map_err(|error| failed(&error))?;
    for state in snapshots {
        state.write(FLEET.into(), &store, &*log.source()).map_err(|error| failed(&error))?;
    }
    let RecordSamples { random, kept, .. } = samples;
    for (index, sample) in kept.iter().enumerate() {
        write_unusable(random.below(4), &kept[(index + 1) % kept.len()], sample, &store)?;
    }
    let limits = MomentLimits { moments: MOMENTS, snapshot_interval: INTERVAL, ..MomentLimits::default() };
    let head = log.source().head().map_or(Position::ZERO, |head| head.position);
    let rows = PositionWatch::new(AppliedPosition { position: head, ..AppliedPosition::default() });
    let cache = MomentCache::new(FLEET.into(), log.source(), Some(store), rows, limits);
    for _ in 0..2 {
        let first = usize::try_from(random.below(kept.len().max(1) as u64)).unwrap_or(0);
        let mut before: Option<Arc<FleetMoment>> = None;
        for sample in kept.iter().cycle().skip(first).take(kept.len()) {
            check_names(&cache, log, random, &sample.record)?;
            let at = ChainCursor::after(&sample.record);
            let moment = cache.fold(&at, &AtomicBool::new(false)).map_err(|error| failed(&error))?;
            check_rows(&moment, sample)?;
            if let Some(before) = before.replace(Arc::clone(&moment)) {
                check_tokens(&before, &moment)?;
            }
        }
        remove_files(dir.path()).map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// Writes an empty state as a snapshot at the sampled record, but of another record, fleet, lineage or shape.
fn write_unusable(
    difference: u64,
    other: &SampledRecord,
    sample: &SampledRecord,
    to: &SnapshotStore,
) -> PastCheck {
    let mut at = ChainCursor::after(&sample.record);
    let (mut fleet, mut shape) = (FLEET, fingerprint());
    match difference {
        0 => at.hash = RecordHash::of(other.record.bytes()),
        1 => fleet = "other",
        2 => at.lineage = Lineage::from_random(at.lineage.bits() ^ 1),
        _ => shape.push_str(" of another build"),
    }
    let mut empty = FleetState::new(at.lineage);
    pass(&mut empty, at.position);
    let state = FoldedState { fleet: empty, at, watermark: None };
    let written = to.write(fleet.into(), &at, None, &shape, |to| state.encode(to), |_| true);
    written.map(|_| ()).map_err(|error| failed(&error))
}

fn remove_files(dir: &Path) -> std::io::Result<()> {
    for entry in dir.read_dir()? {
        std::fs::remove_file(entry?.path())?;
    }
    Ok(())
}

fn records(log: &MemoryLog) -> RecordIter {
    log.source().records(Position::FIRST).expect("a log in memory can be read")
}

/// Checks that positions of the record name it, and that times name the last record that is not later.
fn check_names(
    cache: &MomentCache,
    log: &MemoryLog,
    random: &mut RandomSource,
    record: &Record,
) -> PastCheck {
    let inside = random.between(record.first().get(), record.last().get());
    for position in [record.first(), Position::new(inside), record.last()] {
        let named = NamedMoment::Position(NamedPosition { position, lineage: None });
        let found = cache.find(named).map_err(|error| failed(&error))?;
        if found != ChainCursor::after(record) {
            return Err(wrong(format!("position {position} names the state after {}", found.position)));
        }
    }
    let step = Duration::from_micros(1);
    for time in [record.header().time.before(step), record.header().time, record.header().time + step] {
        let all = || records(log).flatten();
        let last = all().take_while(|record| record.header().time <= time).last();
        let is_past = all().last().is_some_and(|record| time <= record.header().time);
        let wanted = last.filter(|_| is_past).map(|record| ChainCursor::after(&record));
        let found = cache.find(NamedMoment::Time(time)).ok();
        if found != wanted {
            let [found, wanted] = [found, wanted].map(|at| at.map(|at| at.position.get()));
            let what = format!("the time {time} names the state after {found:?}, not {wanted:?}");
            return Err(wrong(what));
        }
    }
    Ok(())
}

/// Checks that a moment has the rows of the second model, and its own position.
fn check_rows(moment: &FleetMoment, sample: &SampledRecord) -> PastCheck {
    let at = sample.record.last();
    let list = |kind, query: &ListQuery| moment.list_json(kind, query);
    let rows = listed(list, &ListQuery::all().limit(7)).map_err(|error| failed(&error))?;
    if let [first, ..] = model::differences(&sample.model.rows(), &rows).as_slice() {
        return Err(wrong(format!("the past state at {at} differs: {first}")));
    }
    let page = moment.list_json(RowKind::Nodes, &ListQuery::all()).map_err(|error| failed(&error))?;
    if page.position != at {
        return Err(wrong(format!("a page of the past state at {at} has position {}", page.position)));
    }
    Ok(())
}

/// Checks that the token of a page of one moment is refused at another one.
fn check_tokens(one: &FleetMoment, other: &FleetMoment) -> PastCheck {
    let query = ListQuery::all().limit(1);
    for kind in RowKind::ALL {
        let page = one.list_json(*kind, &query).map_err(|error| failed(&error))?;
        let Some(token) = page.next else { continue };
        let answer = other.list_json(*kind, &query.clone().after(token));
        if !matches!(answer, Err(QueryError::OtherToken { .. })) {
            let (of, at) = (one.at().position, other.at().position);
            return Err(wrong(format!("a page token of the state at {of} is accepted at {at}: {kind}")));
        }
    }
    Ok(())
}
