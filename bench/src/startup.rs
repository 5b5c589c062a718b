//! W12: time of a start with a snapshot, after many events (ten million; `CHANCERY_BENCH_EVENTS`).
//!
//! The measured work precedes the first decision: open the journal and check all its frames, load the newest
//! snapshot, open the rows, fold later events. The snapshot has its maximum age: 100,000 events. The journal
//! is created once and kept in `bench/results/`; its files are in the page cache when the start is timed.
//!
//! Also the time on Kafka, with three brokers and three servers, until another server decides after the
//! leader was killed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use chancery_journal::memory::MemoryLog;
use chancery_journal::segments::{OpenCheck, SegmentJournal, SegmentOptions};
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{ChainCursor, Journal as _};
use chancery_machine::fleet::IMAGE_FINGERPRINT;
use chancery_projector::{FoldedState, Projector, StoreTuning};

use crate::brokers::{BenchmarkBrokers, SESSION, decider, server};
use crate::intents;
use crate::load::by_turns;
use crate::replay::{FLEET, make, wanted};
use crate::table::{CellResult, ResultRow, ValueBar};

/// Events between two snapshots, as in the program.
const EVERY: u64 = 100_000;

struct StartupData(PathBuf);

impl StartupData {
    /// Creates missing data.
    fn with(events: u64) -> Result<StartupData> {
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        // Snapshots of another state format are useless.
        let data = StartupData(results.join(format!("w12-{events}-{IMAGE_FINGERPRINT}")));
        if data.0.exists() {
            return Ok(data);
        }
        let unfinished = StartupData(results.join("w12-unfinished"));
        if unfinished.0.exists() {
            std::fs::remove_dir_all(&unfinished.0)?;
        }
        let snapshots = SnapshotStore::open(unfinished.0.join("snapshots"))?;
        let mut is_due = true;
        make(&unfinished.0.join("journal"), events, |fleet, record| {
            if is_due && record.last().get() + EVERY >= events {
                let folding =
                    FoldedState { fleet: fleet.clone(), at: ChainCursor::after(record), watermark: None };
                // The only snapshot: nothing needs to be looked up.
                folding.write(FLEET.into(), &snapshots, &*MemoryLog::new(FLEET).source())?;
                is_due = false;
            }
            Ok(())
        })?;
        unfinished.start(OpenCheck::All)?;
        std::fs::rename(&unfinished.0, &data.0)?;
        Ok(data)
    }

    /// Starts, and returns the seconds for the journal, and for the whole start.
    fn start(&self, check: OpenCheck) -> Result<(f64, f64)> {
        let began = Instant::now();
        let options = SegmentOptions { check, ..SegmentOptions::new(self.0.join("journal"), FLEET) };
        let (journal, opened) = SegmentJournal::open(&options, Box::new(drop))?;
        let opening = began.elapsed().as_secs_f64();
        let snapshots = SnapshotStore::open(self.0.join("snapshots"))?;
        let (rows, source) = (self.0.join("rows"), Arc::clone(&journal.source()));
        let mut projector = Projector::open(&rows, FLEET, source, Some(&snapshots), StoreTuning::default())?;
        let position = projector.catch_up()?;
        let took = began.elapsed().as_secs_f64();
        ensure!(Some(position) == opened.head.map(|head| head.position), "the rows are at {position}");
        projector.flush()?;
        drop(projector);
        journal.close()?;
        Ok((opening, took))
    }
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let events = wanted(10_000_000)?;
    let data = StartupData::with(events).context("make the journal")?;
    let mut opening = f64::MAX;
    let [ours, newest] = by_turns([
        Box::new(|| {
            let (journal, took) = data.start(OpenCheck::All)?;
            opening = opening.min(journal);
            Ok(CellResult::rate(1.0 / took))
        }),
        Box::new(|| Ok(CellResult::rate(1.0 / data.start(OpenCheck::Newest)?.1))),
    ])?;
    let (all, less) = (1.0 / ours.rate, 1.0 / newest.rate);
    let row = ResultRow::new("W12", format!("{events} events"), ours)
        .compared_with("newest segments checked", newest)
        .check("seconds", all, ValueBar::Below(3.0))
        .check("of these the journal", opening, ValueBar::Below(3.0))
        .check("seconds, newest checked", less, ValueBar::Below(3.0));
    Ok(vec![row, takeovers()?])
}

fn takeovers() -> Result<ResultRow> {
    let brokers = BenchmarkBrokers::start(3)?;
    let (_, journal) = brokers.fleet()?;
    let mut servers = (0..3).map(|_| server(&journal)).collect::<Result<Vec<_>>>()?;
    let (mut took, all) = (Vec::new(), Instant::now());
    let rounds = 5;
    for _ in 0..rounds {
        let at = decider(&servers)?;
        intents::caller(servers[at].client()?, 0)()?;
        let began = Instant::now();
        // The server is killed on drop.
        drop(servers.swap_remove(at));
        decider(&servers)?;
        took.push(began.elapsed());
        servers.push(server(&journal)?);
    }
    let longest = took.iter().max().map_or(0.0, Duration::as_secs_f64);
    let bar = SESSION.as_secs_f64() * 2.0;
    let row = ResultRow::new("W12", format!("{rounds} takeovers"), CellResult::of(took, all.elapsed()));
    Ok(row.check("seconds, the longest", longest, ValueBar::Below(bar)))
}
