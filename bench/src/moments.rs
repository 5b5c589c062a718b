//! W20: random past states of a fleet of 200,000 entities, after many events (a million;
//! `CHANCERY_BENCH_EVENTS`), from the snapshots that a server keeps. The comparison is a fold of the whole
//! journal, which a read of the past would need without snapshots. Then a random moment is read each second during
//! workloads W3 and W5.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use chancery_events::id::Position;
use chancery_events::lineage::NamedPosition;
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{Journal as _, JournalReader};
use chancery_projector::moment::MomentPriority;
use chancery_projector::{
    JournalFold, ListQuery, MomentCache, MomentLimits, NamedMoment, PositionWatch, Projector, RowKind,
    StoreTuning,
};
use serde_json::Value;

use crate::catch_up::{caught_up, written};
use crate::intents::caller;
use crate::load::by_many_turns;
use crate::process::{peak_mib, resident_mib};
use crate::replay::wanted;
use crate::server::BenchmarkServer;
use crate::table::{CellResult, ResultRow, ValueBar};

const FLEET: &str = "bench";
/// Events, unless `CHANCERY_BENCH_EVENTS` is set.
const DEFAULT_EVENTS: u64 = 1_000_000;
/// Moments that are read.
const SAMPLES: usize = 100;
/// Events between two snapshots, as in the program.
const EVERY: u64 = 100_000;
/// Rounds of another workload alone, and as many during reads: a share of 0.95 is less than a few rounds of one side differ.
const TURNS: usize = 9;
/// Time between two reads during other workloads.
const PERIOD: Duration = Duration::from_secs(1);

/// Generator of random positions: Knuth's (MMIX).
struct RandomPositions(u64);

impl RandomPositions {
    fn up_to(&mut self, head: u64) -> Position {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Position::new(1 + (self.0 >> 20) % head.max(1))
    }
}

/// Reads each second until `is_done`; returns the number of reads.
fn each_second(is_done: &AtomicBool, mut read: impl FnMut() -> Result<()>) -> Result<u64> {
    let (began, mut count) = (Instant::now(), 0);
    while !is_done.load(Ordering::Relaxed) {
        if began.elapsed() < PERIOD * u32::try_from(count)? {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        read()?;
        count += 1;
    }
    Ok(count)
}

/// Measures `does` while another thread reads each second.
fn beside(
    does: impl FnOnce() -> Result<CellResult>,
    read: impl FnMut() -> Result<()> + Send,
) -> Result<CellResult> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| each_second(&is_done, read));
        let cell = does();
        is_done.store(true, Ordering::Relaxed);
        let count = reads.join().map_err(|_| anyhow!("a reader panicked"))??;
        ensure!(count > 0, "nothing was read");
        cell
    })
}

/// Folds a moment, and reads a list at it.
fn read_moment(cache: &MomentCache, position: Position) -> Result<()> {
    let at = cache.find(NamedMoment::Position(NamedPosition { position, lineage: None }))?;
    let moment = cache.fold(&at, &AtomicBool::new(false)).map_err(|error| anyhow!("{error}"))?;
    moment.list_json(RowKind::Replicas, &ListQuery::all())?;
    Ok(())
}

/// W5 while moments are read.
fn catch_up_beside(
    directory: &Path,
    source: &Arc<dyn JournalReader>,
    snapshots: &SnapshotStore,
) -> Result<ResultRow> {
    let head = source.head().context("a head")?.position.get();
    let numbers = Cell::new(0);
    let place = || {
        numbers.set(numbers.get() + 1);
        directory.join(format!("rows-{}", numbers.get()))
    };
    let with_moments = || {
        let (opened, watch) = channel();
        let (mut cache, mut random) = (None, RandomPositions(11));
        let read = move || {
            if cache.is_none() {
                MomentPriority::Low.set();
                let (fleet, source, snapshots) = (FLEET.into(), Arc::clone(source), snapshots.clone());
                let limits = MomentLimits::default();
                cache = Some(MomentCache::new(fleet, source, Some(snapshots), watch.recv()?, limits));
            }
            read_moment(cache.as_ref().context("a cache")?, random.up_to(head))
        };
        let send = |watch: PositionWatch| {
            // The reader may have failed, which ends the measurement.
            let _ = opened.send(watch);
        };
        beside(|| Ok(caught_up(&place(), source, send)?.0), read)
    };
    let alone = || Ok(caught_up(&place(), source, drop)?.0);
    let [with_moments, alone] = by_many_turns(TURNS, [Box::new(with_moments), Box::new(alone)])?;
    Ok(ResultRow::new("W20 catch-up", "a moment a second", with_moments).share_of("W5 alone", alone, 0.95))
}

/// W3 while moments are read.
fn verdicts_beside(callers: usize) -> Result<ResultRow> {
    let verdicts =
        |server: &BenchmarkServer| server.round(callers, |client, number| Ok(caller(client, number)));
    let with_moments = || {
        let server = BenchmarkServer::start()?;
        let (mut client, mut random) = (server.client()?, RandomPositions(13));
        let list = format!("{}/capabilities?limit=100", crate::server::FLEET);
        let read = move || {
            let page: Value = serde_json::from_slice(client.ask("GET", &list, "")?)?;
            let Some(head) = page["position"].as_u64().filter(|head| *head > 0) else { return Ok(()) };
            let position = random.up_to(head);
            client.ask("GET", &format!("{list}&as_of={position}"), "").map(drop)
        };
        beside(|| verdicts(&server), read)
    };
    let alone = || verdicts(&BenchmarkServer::start()?);
    let [with_moments, alone] = by_many_turns(TURNS, [Box::new(with_moments), Box::new(alone)])?;
    let load = format!("{callers} callers, a moment a second");
    Ok(ResultRow::new("W20 verdicts", load, with_moments).share_of("W3 alone", alone, 0.95))
}

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

fn p95(latencies: &[Duration]) -> f64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() * 95 / 100).map_or(0.0, Duration::as_secs_f64)
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let events = wanted(DEFAULT_EVENTS)?;
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
    let cache = MomentCache::new(FLEET.into(), Arc::clone(&source), Some(snapshots.clone()), watch, limits);
    let us = std::process::id();
    let before = resident_mib(us)?;
    let (mut folds, mut firsts, mut nexts, mut most) = (Vec::new(), Vec::new(), Vec::new(), 0.0_f64);
    let (mut random, began) = (RandomPositions(7), Instant::now());
    for _ in 0..SAMPLES {
        let position = random.up_to(head);
        let start = Instant::now();
        let at = cache.find(NamedMoment::Position(NamedPosition { position, lineage: None }))?;
        let moment = cache.fold(&at, &AtomicBool::new(false)).map_err(|error| anyhow!("{error}"))?;
        folds.push(start.elapsed());
        for latencies in [&mut firsts, &mut nexts] {
            let start = Instant::now();
            moment.list_json(RowKind::Replicas, &ListQuery::all())?;
            latencies.push(start.elapsed());
        }
        most = most.max(resident_mib(us)? - before);
    }
    let took = began.elapsed();
    let estimated = cache.used() as f64 / f64::from(1 << 20);
    let bar = if events > DEFAULT_EVENTS { 3.0 } else { 1.0 };
    let load = format!("{}M of 200k", events / 1_000_000);
    let limit = limits.memory as f64 / f64::from(1 << 20);
    let cell = CellResult { memory_mib: Some(peak_mib(us)?), ..CellResult::of(folds.clone(), took) };
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
    drop(cache);
    let mut rows = vec![fold, first, next];
    // The other workloads have the same size whatever the number of events.
    if events <= DEFAULT_EVENTS {
        rows.push(catch_up_beside(directory.path(), &source, &snapshots)?);
        for callers in [1, 32] {
            rows.push(verdicts_beside(callers)?);
        }
    }
    journal.close()?;
    Ok(rows)
}
