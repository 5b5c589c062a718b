//! W5: the projector's catch-up. A million events over 200,000 entities are read from segments on disk,
//! folded, and written as rows. The comparison is sled's own batch writes of the same rows, as many, in
//! batches of the same size. The second part is the lag of rows for records at 5,000 events per second.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use chancery_events::id::{IncarnationId, Position};
use chancery_events::observation::ProcessStatus;
use chancery_events::record::Record;
use chancery_journal::memory::MemoryLog;
use chancery_journal::segments::{SegmentJournal, SegmentOptions};
use chancery_journal::{AppendError, Journal as _, JournalDelivery, JournalReader};
use chancery_projector::{PositionWatch, Projector, StoreTuning};
use serde_json::json;

use crate::ROUNDS;
use crate::maker::{BUSY, CLUSTER, FleetMaker, RecordReceiver};
use crate::process::MeasuredProcess;
use crate::table::{CellResult, ResultRow, ValueBar, median};

const REPLICAS: usize = 66_000;
const EVENTS: u64 = 1_000_000;
const NODES: usize = 1_000;
const PLANS: usize = 10;
/// Rows in a batch of sled, as the projector fills its store.
const WRITTEN: usize = 1_000;
/// Events per second while the lag is measured.
const PACE: u64 = 5_000;
const PACED: Duration = Duration::from_secs(4);
/// Events in a record while the lag is measured: those of 10 ms.
const PACED_RECORD: u32 = 50;

/// Simulates creation, placement, approval, report and start of replicas; then changing reports everywhere.
fn simulate(receiver: RecordReceiver, events: u64) -> Result<FleetMaker> {
    let mut maker = FleetMaker::new(Some(receiver))?;
    for n in 0..NODES {
        let total = json!({"cpu": 64_000, "memory": 1_u64 << 38, "disk": 0});
        let spec = json!({"domain": format!("rack-{}", n % 50), "resources": total});
        let node = json!({"name": format!("node-{n}"), "cluster": CLUSTER, "spec": spec});
        maker.ask("node.apply.v1", &node)?;
    }
    let replicas = (REPLICAS * events as usize / EVENTS as usize).min(REPLICAS);
    for n in 0..PLANS {
        let payload = json!({"name": "app", "resources": {"cpu": 100, "memory": 1 << 20}});
        let spec = json!({"namespace": "bench", "service": format!("service-{n}"), "sharing": "allowed",
            "payloads": [payload], "approval": {"create": "automatic"}});
        maker.ask("plan.apply.v1", &json!({"name": format!("plan-{n}"), "spec": spec}))?;
        let spec = json!({"count": replicas / PLANS});
        maker
            .ask("deployment.create.v1", &json!({"plan": format!("plan-{n}"), "name": "d1", "spec": spec}))?;
    }
    while maker.step()? {}
    let ids: Vec<IncarnationId> = maker.fleet.incarnations().sorted().iter().map(|i| i.id).collect();
    for id in &ids {
        maker.report(*id, ProcessStatus::Ready)?;
    }
    let mut seed = 1_u64;
    while maker.fleet.head().get() < events {
        // Knuth's generator (MMIX).
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let id = ids[(seed >> 33) as usize % ids.len()];
        let is_ready = maker.fleet.incarnations().get(&id).context("an incarnation")?.ready;
        let status = if is_ready { ProcessStatus::Starting } else { ProcessStatus::Ready };
        maker.report(id, status)?;
    }
    maker.seal()?;
    Ok(maker)
}

/// Writes the journal to segments on disk.
pub(crate) fn written(dir: &Path, events: u64) -> Result<SegmentJournal> {
    let (deliveries, durable) = channel();
    let sink = Box::new(move |delivery: JournalDelivery| {
        // The last ones may arrive when no receiver waits any more.
        let _ = deliveries.send(delivery);
    });
    let (journal, _) = SegmentJournal::open(&SegmentOptions::new(dir, "bench"), sink)?;
    let journal = Arc::new(journal);
    let writer = Arc::clone(&journal);
    let pen = move |record: Record| {
        let mut record = record;
        loop {
            match writer.append(record) {
                Ok(()) => return Ok(()),
                Err(AppendError::Busy(back)) => record = *back,
                Err(error) => return Err(error.into()),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let head = simulate(RecordReceiver { record: BUSY, takes: Box::new(pen) }, events)?.fleet.head();
    loop {
        match durable.recv()? {
            JournalDelivery::Records(records) if records.last().is_some_and(|last| last.last() == head) => {
                break;
            }
            JournalDelivery::Records(_) => {}
            other => bail!("the journal stopped: {other:?}"),
        }
    }
    Arc::into_inner(journal).context("the writer has ended")
}

/// Catches up from an empty store; returns the events per second, and the rows written. `opened` receives the
/// watch of the rows.
pub(crate) fn caught_up(
    dir: &Path,
    source: &Arc<dyn JournalReader>,
    opened: impl FnOnce(PositionWatch),
) -> Result<(CellResult, u64)> {
    let (began, watched) = (Instant::now(), MeasuredProcess::begin(std::process::id())?);
    let mut projector = Projector::open(dir, "bench", Arc::clone(source), None, StoreTuning::default())?;
    opened(projector.reader().watch().clone());
    let position = projector.catch_up()?;
    let took = began.elapsed().as_secs_f64();
    let cell = CellResult { cores: Some(watched.cores()?), ..CellResult::rate(position.get() as f64 / took) };
    let rows = projector.rows_written();
    projector.flush()?;
    Ok((cell, rows))
}

/// Returns the rows of a store in their stored form.
fn rows(dir: &Path) -> Result<Vec<(sled::IVec, sled::IVec)>> {
    let db = sled::Config::new().path(dir).open()?;
    Ok(db.iter().collect::<Result<_, _>>()?)
}

/// Writes `count` rows in the projector's way; the rate is in events.
fn baseline(dir: &Path, rows: &[(sled::IVec, sled::IVec)], count: u64) -> Result<CellResult> {
    let tuning = StoreTuning::default();
    let (began, watched) = (Instant::now(), MeasuredProcess::begin(std::process::id())?);
    let config = sled::Config::new().path(dir).cache_capacity(tuning.cache).flush_every_ms(None);
    let db = config.mode(sled::Mode::HighThroughput).open()?;
    let mut left = usize::try_from(count)?;
    let mut all = rows.iter().cycle();
    while left > 0 {
        let mut batch = sled::Batch::default();
        for (key, value) in all.by_ref().take(left.min(WRITTEN)) {
            batch.insert(key, value);
        }
        db.apply_batch(batch)?;
        db.flush()?;
        left = left.saturating_sub(WRITTEN);
    }
    let took = began.elapsed().as_secs_f64();
    Ok(CellResult { cores: Some(watched.cores()?), ..CellResult::rate(EVENTS as f64 / took) })
}

/// Measures the time from when a record is due until it is in the rows.
fn lag() -> Result<CellResult> {
    let directory = crate::directory()?;
    let events = PACE * PACED.as_secs();
    let (sent, records) = channel();
    let log = MemoryLog::new("bench");
    let pen = move |record: Record| Ok(sent.send(Arc::new(record))?);
    drop(simulate(RecordReceiver { record: PACED_RECORD, takes: Box::new(pen) }, events)?);
    let records: Vec<Arc<Record>> = records.iter().collect();
    let mut projector =
        Projector::open(directory.path(), "bench", log.source(), None, StoreTuning::default())?;
    let began = Instant::now();
    let mut lags = Vec::new();
    for record in records {
        let due = began + Duration::from_micros(record.last().get() * 1_000_000 / PACE);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let position: Position = projector.apply(&[Arc::clone(&record)])?;
        lags.extend((record.first().get()..=position.get()).map(|_| due.elapsed()));
    }
    Ok(CellResult::of(lags, began.elapsed()))
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let directory = crate::directory()?;
    let journal = written(&directory.path().join("journal"), EVENTS)?;
    let source = journal.source();
    let (mut ours, mut floors) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let at = |what: &str| directory.path().join(format!("{what}-{round}"));
        let (cell, count) = caught_up(&at("ours"), &source, drop)?;
        ours.push(cell);
        floors.push(baseline(&at("baseline"), &rows(&at("ours"))?, count)?);
    }
    journal.close()?;
    let cell = median(ours);
    let rate = cell.rate;
    let catch_up = ResultRow::new("W5", "1M of 200k", cell)
        .share_of("sled alone", median(floors), 0.7)
        .check("events a second", rate, ValueBar::AtLeast(200_000.0));
    let cell = lag()?;
    let p99 = cell.p99_ms;
    Ok(vec![
        catch_up,
        ResultRow::new("W5 lag", "5k a second", cell).check("p99 in ms", p99, ValueBar::Below(20.0)),
    ])
}
