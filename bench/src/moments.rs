//! W20: random past states of a fleet of 200,000 entities, after many events (a million;
//! `CHANCERY_BENCH_EVENTS`), from the snapshots that a server keeps. The comparison is a fold of the whole
//! journal, which a read of the past would need without snapshots.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use chancery_events::id::Position;
use chancery_events::lineage::NamedPosition;
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{Journal as _, JournalReader};
use chancery_projector::{
    JournalFold, ListQuery, MomentCache, MomentLimits, NamedMoment, Projector, RowKind, StoreTuning,
};

use crate::catch_up::written;
use crate::process::peak_mib;
use crate::replay::wanted;
use crate::table::{CellResult, ResultRow, ValueBar};

const FLEET: &str = "bench";
/// Moments that are read.
const SAMPLES: usize = 100;
/// Events between two snapshots, as in the program.
const EVERY: u64 = 100_000;

/// Folds the journal as a server does, with its snapshots. Returns the time of the fold.
fn followed(source: &dyn JournalReader, snapshots: &SnapshotStore) -> Result<Duration> {
    let (mut fold, mut last, mut writing) = (JournalFold::default(), 0, Duration::ZERO);
    let began = Instant::now();
    for record in source.records(Position::FIRST)? {
        fold.take(&*record?)?;
        let state = fold.state().context("a state")?;
        if state.is_snapshot_due(state.at.position.get() - last, EVERY) {
            let write = Instant::now();
            last = state.at.position.get();
            state.write(FLEET.into(), snapshots, source)?;
            writing += write.elapsed();
        }
    }
    Ok(began.elapsed().saturating_sub(writing))
}

/// Returns the memory of this process, in MiB.
fn resident_mib() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/statm").context("read /proc/self/statm")?;
    let pages: f64 = text.split_whitespace().nth(1).context("pages")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64 / f64::from(1 << 20))
}

fn p95(latencies: &[Duration]) -> f64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() * 95 / 100).map_or(0.0, Duration::as_secs_f64)
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let events = wanted(1_000_000)?;
    let directory = crate::directory()?;
    let journal = written(&directory.path().join("journal"), events)?;
    let source = journal.source();
    let snapshots = SnapshotStore::open(directory.path().join("snapshots"))?;
    let whole = followed(&*source, &snapshots)?;
    let rows = directory.path().join("rows");
    let mut projector =
        Projector::open(&rows, FLEET, Arc::clone(&source), Some(&snapshots), StoreTuning::default())?;
    let head = projector.catch_up()?.get();
    let watch = projector.reader().watch().clone();
    drop(projector);
    let limits = MomentLimits::default();
    let cache = MomentCache::new(FLEET.into(), Arc::clone(&source), Some(snapshots), watch, limits);
    let before = resident_mib()?;
    let (mut folds, mut firsts, mut nexts, mut most) = (Vec::new(), Vec::new(), Vec::new(), 0.0_f64);
    let (mut seed, began) = (7_u64, Instant::now());
    for _ in 0..SAMPLES {
        // Knuth's generator (MMIX).
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let position = Position::new(1 + (seed >> 20) % head);
        let start = Instant::now();
        let at = cache.find(NamedMoment::Position(NamedPosition { position, lineage: None }))?;
        let moment = cache.fold(&at, &AtomicBool::new(false)).map_err(|error| anyhow!("{error}"))?;
        folds.push(start.elapsed());
        for latencies in [&mut firsts, &mut nexts] {
            let start = Instant::now();
            moment.list_json(RowKind::Replicas, &ListQuery::all())?;
            latencies.push(start.elapsed());
        }
        most = most.max(resident_mib()? - before);
    }
    let took = began.elapsed();
    let estimated = cache.used() as f64 / f64::from(1 << 20);
    let bar = if events > 1_000_000 { 3.0 } else { 1.0 };
    let load = format!("{}M of 200k", events / 1_000_000);
    let limit = limits.memory as f64 / f64::from(1 << 20);
    let cell =
        CellResult { memory_mib: Some(peak_mib(std::process::id())?), ..CellResult::of(folds.clone(), took) };
    let fold = ResultRow::new("W20", &load, cell)
        .compared_with("whole journal", CellResult::of(vec![whole], whole))
        .check("p95 of a moment in s", p95(&folds), ValueBar::Below(bar))
        .check("memory of moments in MiB", most, ValueBar::AtMost(limit * 1.1))
        .check("estimated memory at the end in MiB", estimated, ValueBar::AtMost(limit));
    let first = ResultRow::new("W20 first", &load, CellResult::of(firsts.clone(), firsts.iter().sum()))
        .check("p95 of the first list in ms", p95(&firsts) * 1e3, ValueBar::Below(50.0));
    let next = ResultRow::new("W20 next", &load, CellResult::of(nexts.clone(), nexts.iter().sum())).check(
        "p95 of the next list in ms",
        p95(&nexts) * 1e3,
        ValueBar::Below(50.0),
    );
    journal.close()?;
    Ok(vec![fold, first, next])
}
