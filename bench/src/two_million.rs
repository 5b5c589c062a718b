//! W10: two million replicas (Nomad's Two Million Container Challenge took 22 minutes on a real cluster) on
//! 6,100 simulated nodes. Each is created, placed, approved by rule, started and observed as ready; every
//! event is durable in the journal on disk. The parts are the server's own: decider, journal, projector,
//! executors on the simulated orchestrator.
//!
//! `CHANCERY_BENCH_REPLICAS` sets a lower number, and reduces the nodes in proportion.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use chancery::config::EmbeddedClusters;
use chancery::executors::{EmbeddedLogs, ExecutorHost, ProcessLimits};
use chancery::projector_thread::{ProjectorQueue, ProjectorThread, publisher};
use chancery_api::{AllowedHosts, ApiShared, HttpLimits};
use chancery_decider::core::{DeciderSettings, PART};
use chancery_decider::leader_router::LeaderRouter;
use chancery_decider::wall_clock::{JudgedClock, WallClock};
use chancery_decider::{
    ChannelNumbers, DeciderEnd, DeciderExit, DeciderHandle, DeciderInput, DeciderStart, EventHub,
    JournalFollower, UnchangedVerdict, VerdictError,
};
use chancery_events::extension::ExtensionAttributes;
use chancery_events::id::{Lineage, Position, WriterId};
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::name::{DeploymentName, PlanName};
use chancery_executor::directory::CopyPolicy;
use chancery_executor::process::{CgroupSetting, OutputLimits, QemuSettings};
use chancery_journal::segments::{SegmentJournal, SegmentOptions};
use chancery_journal::snapshots::SnapshotStore;
use chancery_journal::{Journal, JournalDelivery, JournalReader};
use chancery_machine::context::LevelLimits;
use chancery_machine::fleet::FleetState;
use chancery_projector::rows::{DeploymentRow, DeploymentStatus, PlanRow};
use chancery_projector::{Projector, RowReader, StoreTuning};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use crate::process::{MeasuredProcess, peak_mib};
use crate::table::{CellResult, ResultRow, ValueBar};

const REPLICAS: usize = 2_000_000;
const NODES: usize = 6_100;
const PLANS: usize = 20;
const CLUSTERS: usize = 4;
/// Memory for rows in bytes, as an operator would set it (`store_cache_bytes`) for this size.
const CACHE: u64 = 1 << 30;
/// Minimum number of events between snapshots: the default of a server.
const SNAPSHOT: u64 = 100_000;
/// Bar in seconds; scaled down with the replicas.
const BAR: f64 = 22.0 * 60.0;

/// Parts of a server without its API.
struct ServerParts {
    journal: Arc<SegmentJournal>,
    decider: DeciderHandle,
    ended: oneshot::Receiver<DeciderExit>,
    projector: JoinHandle<Result<()>>,
    reader: RowReader,
    clusters: watch::Receiver<Position>,
}

fn open(dir: &Path) -> Result<ServerParts> {
    let (sender, deliveries) = mpsc::unbounded_channel();
    let sink = Box::new(move |delivery: JournalDelivery| {
        // The decider ends before the journal.
        let _ = sender.send(delivery);
    });
    let (journal, _) = SegmentJournal::open(&SegmentOptions::new(dir.join("journal"), "bench"), sink)?;
    let journal = Arc::new(journal);
    let source = journal.source();
    let tuning = StoreTuning { cache: CACHE, ..StoreTuning::default() };
    let projector = Projector::open(&dir.join("rows"), "bench", Arc::clone(&source), None, tuning)?;
    let reader = projector.reader();
    let (records, _, queue) = ProjectorQueue::open();
    let (changed, clusters) = watch::channel(Position::ZERO);
    let publisher = publisher(Arc::new(EventHub::new()), changed, watch::channel(None).0, records);
    let settings = DeciderSettings {
        fleet: "bench".parse()?,
        writer: WriterId::from_random(1),
        build: "bench".into(),
        address: None,
        lease: Duration::from_secs(15),
        part: PART,
        replicas: u32::MAX,
        levels: LevelLimits::ALONE,
        inbox: None,
    };
    let (decider, ended) = chancery_decider::start(DeciderStart {
        settings,
        fleet: FleetState::new(Lineage::from_random(1)),
        head: None,
        journal: Arc::clone(&journal) as Arc<dyn Journal>,
        following: JournalFollower {
            deliveries,
            publisher,
            skipped: Box::new(|| ()),
            committed: Box::new(|_| ()),
            published: Position::ZERO,
        },
        queue: 4096,
        clock: Arc::new(WallClock::trusted()),
        judged: JudgedClock::now(),
    })?;
    let snapshots = SnapshotStore::open(dir.join("snapshots"))?;
    let mut rows = ProjectorThread { projector, source, snapshots, fleet: "bench".into(), every: SNAPSHOT };
    let projector =
        std::thread::Builder::new().name("projector".into()).spawn(move || rows.follow(&queue))?;
    Ok(ServerParts { journal, decider, ended, projector, reader, clusters })
}

async fn ask(decider: &DeciderHandle, n: &mut u64, type_name: &str, data: Value) -> Result<()> {
    let intent = Intent::read(type_name, &data.to_string()).context("a type")??;
    *n += 1;
    let request = IntentRequest {
        id: format!("id-{n}").parse()?,
        source: "bench".parse()?,
        actor: "bench".parse()?,
        time: None,
        expect: None,
        claim: None,
        traceparent: None,
        extensions: ExtensionAttributes::default(),
        intent,
    };
    let bytes = request.intent.data_json().len();
    loop {
        match decider.ask(request.clone(), UnchangedVerdict::default(), bytes).await {
            Ok(verdict) => match &*verdict.result {
                Ok(_) => return Ok(()),
                Err(refusal) => bail!("{type_name}: {refusal:?}"),
            },
            Err(VerdictError::Busy) => tokio::time::sleep(Duration::from_millis(1)).await,
            Err(error @ VerdictError::Unknown) => return Err(anyhow!(error)),
        }
    }
}

/// Creates clusters, nodes and plans.
async fn found(decider: &DeciderHandle, asked: &mut u64, nodes: usize, capacity: usize) -> Result<()> {
    for n in 0..CLUSTERS {
        let spec = json!({"runtime": "simulated"});
        ask(decider, asked, "cluster.apply.v1", json!({"name": format!("sim-{n}"), "spec": spec})).await?;
    }
    for n in 0..nodes {
        let total = json!({"cpu": 10 * capacity, "memory": capacity << 20, "disk": 0});
        let spec = json!({"domain": format!("rack-{}", n / 50), "resources": total});
        let cluster = format!("sim-{}", n % CLUSTERS);
        let body = json!({"name": format!("node-{n}"), "cluster": cluster, "spec": spec});
        ask(decider, asked, "node.apply.v1", body).await?;
    }
    for n in 0..PLANS {
        let payload = json!({"name": "app", "resources": {"cpu": 10, "memory": 1 << 20}});
        let spec = json!({"namespace": "bench", "service": format!("app-{n}"), "sharing": "allowed",
            "payloads": [payload], "approval": {"create": "automatic"}});
        ask(decider, asked, "plan.apply.v1", json!({"name": format!("plan-{n}"), "spec": spec})).await?;
    }
    Ok(())
}

/// Waits until all deployments are completed in the rows, and prints the progress.
async fn completed(reader: &RowReader, began: Instant) -> Result<()> {
    let mut printed = Instant::now();
    loop {
        let (mut done, mut phases) = (0, std::collections::BTreeMap::<String, u64>::new());
        for n in 0..PLANS {
            let plan: PlanName = format!("plan-{n}").parse()?;
            let name: DeploymentName = "d1".parse()?;
            let row = reader.get::<DeploymentRow>(&(plan.clone(), name))?;
            match row.map(|row| (row.state, row.message)) {
                Some((DeploymentStatus::Completed, _)) => done += 1,
                Some((DeploymentStatus::Pending | DeploymentStatus::InProgress, _)) | None => {}
                Some((_, message)) => bail!("a deployment failed: {message}"),
            }
            for (phase, count) in reader.get::<PlanRow>(&plan)?.map(|row| row.replicas).unwrap_or_default() {
                *phases.entry(phase).or_default() += count;
            }
        }
        if done == PLANS {
            return Ok(());
        }
        if printed.elapsed() > Duration::from_secs(5) {
            printed = Instant::now();
            phases.retain(|_, count| *count > 0);
            eprintln!(
                "{:>6.1} s  position {}  {phases:?}",
                began.elapsed().as_secs_f64(),
                reader.applied().position
            );
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn bytes_of(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        bytes += if meta.is_dir() { bytes_of(&entry.path())? } else { meta.len() };
    }
    Ok(bytes)
}

async fn race(dir: &Path, replicas: usize) -> Result<ResultRow> {
    let nodes = (NODES * replicas).div_ceil(REPLICAS).max(CLUSTERS);
    let ServerParts { journal, decider, ended, projector, reader, clusters } = open(dir)?;
    let (stop, stopped) = watch::channel(false);
    let host = ExecutorHost {
        fleet: "default".parse()?,
        common: Arc::new(ApiShared::new(HttpLimits::default(), AllowedHosts::new(&BTreeSet::new(), None))),
        logs: EmbeddedLogs::new(dir.join("executors"), EmbeddedClusters::All),
        leader_router: LeaderRouter::with(decider.clone()),
        reader: reader.clone(),
        means: ProcessLimits {
            output: OutputLimits::default(),
            cgroup: CgroupSetting::Detect,
            files: None,
            copies: CopyPolicy::Refuse,
            qemu: QemuSettings::default(),
        },
        connections: ChannelNumbers::default(),
    };
    let executors = tokio::spawn(host.run(clusters, stopped));
    let mut asked = 0;
    // A tenth more than needed.
    found(&decider, &mut asked, nodes, (replicas * 11).div_ceil(nodes * 10) + 1).await?;
    let source = journal.source();
    let before = source.head().map_or(Position::ZERO, |head| head.position);
    let bytes_before = written(&*source, Position::FIRST)?;
    let us = std::process::id();
    let (began, watched) = (Instant::now(), MeasuredProcess::begin(us)?);
    for n in 0..PLANS {
        let spec = json!({"count": replicas / PLANS});
        let body = json!({"plan": format!("plan-{n}"), "name": "d1", "spec": spec});
        ask(&decider, &mut asked, "deployment.create.v1", body).await?;
    }
    completed(&reader, began).await?;
    let took = began.elapsed().as_secs_f64();
    let (cores, memory) = (watched.cores()?, peak_mib(us)?);
    let head = source.head().map_or(Position::ZERO, |head| head.position);
    let events = (head.get() - before.get()) as f64 / replicas as f64;
    stop.send_replace(true);
    executors.await?;
    decider.send(DeciderInput::Drain).await?;
    let (why, following) = ended.await?;
    ensure!(matches!(why, DeciderEnd::Drained), "the decider ended: {why}");
    // The projector ends when its publishers are dropped.
    drop(following);
    drop(decider);
    projector.join().map_err(|_| anyhow!("the projector panicked"))??;
    let bytes = (written(&*source, Position::FIRST)? - bytes_before) as f64 / replicas as f64;
    journal.close()?;
    eprintln!("rows: {} MiB on disk", bytes_of(&dir.join("rows"))? >> 20);
    let cell = CellResult {
        memory_mib: Some(memory),
        cores: Some(cores),
        ..CellResult::rate(replicas as f64 / took)
    };
    let share = replicas as f64 / REPLICAS as f64;
    Ok(ResultRow::new("W10", format!("{replicas} replicas"), cell)
        .check("seconds", took, ValueBar::Below(BAR * share))
        .check("events a replica", events, ValueBar::Below(6.01))
        .check("bytes of journal a replica", bytes, ValueBar::Below(1024.0))
        .check(
            "bytes of memory a replica, of all parts",
            memory * 1_048_576.0 / replicas as f64,
            ValueBar::Below(4096.0),
        ))
}

/// Returns the number of bytes of all records from the position on.
fn written(source: &dyn JournalReader, from: Position) -> Result<u64> {
    let mut bytes = 0;
    for record in source.records(from)? {
        bytes += record?.bytes().len() as u64;
    }
    Ok(bytes)
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let replicas = match std::env::var("CHANCERY_BENCH_REPLICAS") {
        Ok(text) => text.parse().context("read CHANCERY_BENCH_REPLICAS")?,
        Err(_) => REPLICAS,
    };
    ensure!(
        replicas >= PLANS && replicas % PLANS == 0,
        "invalid number of replicas: must be a multiple of {PLANS}"
    );
    let directory = crate::directory()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    Ok(vec![runtime.block_on(race(directory.path(), replicas))?])
}
