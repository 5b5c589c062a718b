//! Metrics of fleets that are read at a scrape from the threads that have them, which answer between two batches of their work.
//! A part that does not answer in time has no series in that scrape.
//!
//! The number of series is bounded: only the first [`OWN`] plans and clusters by name have series of their own. [`OTHERS`] names
//! the series of all other plans and clusters.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use chancery_decider::DeciderReading;
use chancery_events::lifecycle::PhaseStatus;
use chancery_events::name::FleetName;
use chancery_events::time::Time;
use chancery_journal::snapshots;
use chancery_projector::figures::OWN;
use chancery_projector::rows::{OperationRow, OperationStatus};
use chancery_projector::{FleetFigures, ListQuery};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::{Semaphore, oneshot};

use crate::FleetApi;

/// Requests figures of a fleet.
pub type FigureSource = Arc<dyn Fn() -> oneshot::Receiver<Option<FleetFigures>> + Send + Sync>;

/// Time that a part has to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Name of the series of plans and clusters without series of their own; no plan or cluster can have it.
const OTHERS: &str = "_other";

/// Directories of a fleet on this server.
#[derive(Clone, Debug)]
pub struct FleetDirectories {
    /// Directory of the journal or its mirror.
    pub journal: PathBuf,
    /// Directory of the snapshots.
    pub snapshots: PathBuf,
}

/// Sizes of files.
#[derive(Debug)]
struct StoredFiles {
    journal_bytes: u64,
    snapshot_bytes: u64,
    snapshots: usize,
    /// Position of the newest snapshot; zero without one.
    snapshot_position: u64,
}

/// Values of one fleet at one scrape.
#[derive(Debug)]
pub(super) struct FleetReading {
    figures: Option<FleetFigures>,
    decider: Option<DeciderReading>,
    files: Option<StoredFiles>,
    /// Age of the oldest operation that waits for approval.
    oldest_operation: Option<Duration>,
    /// Age of the oldest record that is not in the rows.
    lag: Option<Duration>,
    now: Time,
}

/// Exposes the last reading of each fleet.
#[derive(Default, Debug)]
pub(super) struct ReadingCollector(Mutex<BTreeMap<String, FleetReading>>);

impl FleetDirectories {
    fn read(&self) -> io::Result<StoredFiles> {
        let snapshots = snapshots::list(&self.snapshots).map_err(io::Error::other)?;
        Ok(StoredFiles {
            journal_bytes: bytes_in(&self.journal)?,
            snapshot_bytes: bytes_in(&self.snapshots)?,
            snapshots: snapshots.len(),
            snapshot_position: snapshots.iter().map(|(position, _)| position.get()).max().unwrap_or(0),
        })
    }
}

/// Returns the bytes that the files of a directory occupy on the disk.
fn bytes_in(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        match entry?.metadata() {
            // Unit of the file system's interface, whatever its blocks are.
            Ok(metadata) => bytes += metadata.blocks() * 512,
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::EPOCH + since
}

impl FleetReading {
    /// Reads the values of a fleet, and sets its gauges.
    pub(super) async fn take(app: &Arc<FleetApi>) -> FleetReading {
        // Before the decider is read, which would count in its queue. Gauges that do not answer keep their values.
        let gauges = one_at_a_time(app, &app.figures.memory, |app| app.figures.refresh(app));
        _ = tokio::time::timeout(PATIENCE, gauges).await;
        let figures = tokio::time::timeout(PATIENCE, (app.figure_source)());
        let here = app.router.here();
        let decider = async {
            let read = here.as_ref()?.read();
            tokio::time::timeout(PATIENCE, read).await.ok().flatten()
        };
        let stored = one_at_a_time(app, &app.figures.disk, read_stored);
        let stored = tokio::time::timeout(PATIENCE, stored);
        let (figures, decider, stored) = tokio::join!(figures, decider, stored);
        let (now, files, oldest_operation, lag) = match stored {
            Ok(Some((now, files, oldest, lag))) => (now, files, oldest, Some(lag)),
            // The disk does not answer, or the server stops.
            Ok(None) | Err(_) => (now(), None, None, None),
        };
        let figures = figures.ok().and_then(Result::ok).flatten();
        FleetReading { figures, decider, files, oldest_operation, lag, now }
    }
}

/// Runs a read on a thread that may block; `None` while an earlier one does not end: no further thread would wait with it.
async fn one_at_a_time<T: Send + 'static>(
    app: &Arc<FleetApi>,
    permit: &Arc<Semaphore>,
    read: impl FnOnce(&FleetApi) -> T + Send + 'static,
) -> Option<T> {
    let permit = Arc::clone(permit).try_acquire_owned().ok()?;
    let app = Arc::clone(app);
    let read = tokio::task::spawn_blocking(move || {
        let answer = read(&app);
        drop(permit);
        answer
    });
    read.await.ok()
}

/// Reads what is on the disk. Returns the time, the sizes of files, the age of the oldest operation
/// that waits for approval, and the age of the oldest record that is not in the rows.
fn read_stored(app: &FleetApi) -> (Time, Option<StoredFiles>, Option<Duration>, Duration) {
    app.figures.count_stalled(app);
    let now = now();
    let files = app.directories.as_ref().and_then(|directories| match directories.read() {
        Ok(files) => Some(files),
        Err(error) => {
            tracing::warn!(%error, ?directories, "cannot read sizes of files for metrics");
            None
        }
    });
    let state = OperationStatus::PendingApproval.word();
    let waiting = app.reader.list::<OperationRow>(&ListQuery::all().by("state", state).limit(1)).ok();
    // Ids are in the order of their issue.
    let oldest = waiting.map(|page| page.items.first().map_or(now, |first| first.created_at));
    let applied = app.reader.applied().position;
    let is_behind = app.source.head().is_some_and(|head| head.position > applied);
    let next = is_behind.then(|| app.source.records(applied.plus(1)).ok()?.next()?.ok()).flatten();
    let lag = next.map_or(Duration::ZERO, |record| now.since(record.header().time));
    (now, files, oldest.map(|oldest| now.since(oldest)), lag)
}

impl ReadingCollector {
    pub(super) fn put(&self, fleet: &FleetName, reading: FleetReading) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(fleet.to_string(), reading);
    }
}

/// Labels after `fleet`, and the value.
type MetricSample = (Vec<(&'static str, String)>, f64);
/// Name, meaning, and samples of a fleet.
type ReadGauge = (&'static str, &'static str, fn(&FleetReading) -> Vec<MetricSample>);

fn one(value: Option<f64>) -> Vec<MetricSample> {
    value.map(|value| (Vec::new(), value)).into_iter().collect()
}

fn figure(reading: &FleetReading, value: impl Fn(&FleetFigures) -> f64) -> Vec<MetricSample> {
    one(reading.figures.as_ref().map(value))
}

fn file(reading: &FleetReading, value: impl Fn(&StoredFiles) -> f64) -> Vec<MetricSample> {
    one(reading.files.as_ref().map(value))
}

fn all<T>(reading: &FleetReading, samples: impl Fn(&FleetFigures) -> Vec<T>) -> Vec<T> {
    reading.figures.as_ref().map(samples).unwrap_or_default()
}

/// Returns the figures of each plan with series of its own, and of the others if there are any.
fn plans(figures: &FleetFigures) -> impl Iterator<Item = (String, &chancery_projector::PlanFigures)> {
    let others = figures.plans > figures.own.len() as u64;
    let own = figures.own.iter().map(|(name, of)| (name.to_string(), of));
    own.chain(others.then(|| (OTHERS.to_owned(), &figures.others)))
}

fn by_phase(figures: &FleetFigures) -> Vec<MetricSample> {
    let mut samples = Vec::new();
    for (plan, of) in plans(figures) {
        for (phase, count) in PhaseStatus::ALL.iter().zip(of.phases) {
            let labels = vec![("plan", plan.clone()), ("phase", phase.word().to_owned())];
            samples.push((labels, count as f64));
        }
    }
    samples
}

fn leases(reading: &FleetReading) -> Vec<MetricSample> {
    let Some(decider) = &reading.decider else { return Vec::new() };
    let sample = |name: String, left: &Duration| (vec![("cluster", name)], left.as_secs_f64());
    let own = decider.leases.iter().take(OWN).map(|(name, left)| sample(name.to_string(), left));
    let others = decider.leases.values().skip(OWN).min().map(|left| sample(OTHERS.to_owned(), left));
    own.chain(others).collect()
}

/// Metrics that are read at each scrape.
const READ: &[ReadGauge] = &[
    ("fleet_level", "Level of the fleet.", |reading| figure(reading, |of| f64::from(of.level.number()))),
    ("plans", "Plans.", |reading| figure(reading, |of| of.plans as f64)),
    ("plan_replicas_desired", "Replicas of the plan that must run.", |reading| {
        all(reading, |of| plans(of).map(|(name, of)| (vec![("plan", name)], of.desired as f64)).collect())
    }),
    ("plan_replicas_ready", "Replicas of the plan that run and whose processes are all ready.", |reading| {
        all(reading, |of| plans(of).map(|(name, of)| (vec![("plan", name)], of.ready as f64)).collect())
    }),
    ("replicas", "Replicas by plan and phase.", |reading| all(reading, by_phase)),
    ("operations", "Operations that have not ended, by kind and state.", |reading| {
        let labels = |kind: &str, state: &str| vec![("kind", kind.to_owned()), ("state", state.to_owned())];
        all(reading, |of| {
            let samples = of.operations.iter();
            samples.map(|(kind, state, count)| (labels(kind.word(), state.word()), *count as f64)).collect()
        })
    }),
    (
        "operations_pending_approval_oldest_age_seconds",
        "Time since the creation of the oldest operation that waits for approval; 0 without one.",
        |reading| one(reading.oldest_operation.map(|age| age.as_secs_f64())),
    ),
    ("approval_requests_pending", "Approval requests that wait.", |reading| {
        figure(reading, |of| of.requests as f64)
    }),
    (
        "approval_requests_pending_oldest_age_seconds",
        "Time since the creation of the oldest approval request that waits; 0 without one.",
        |reading| {
            figure(reading, |of| {
                of.oldest_request.map_or(0.0, |created| reading.now.since(created).as_secs_f64())
            })
        },
    ),
    ("commands_in_flight", "Commands to executors without an outcome.", |reading| {
        figure(reading, |of| of.commands as f64)
    }),
    ("nodes", "Nodes by state.", |reading| {
        all(reading, |of| {
            of.nodes.iter().map(|(state, n)| (vec![("state", state.word().to_owned())], *n as f64)).collect()
        })
    }),
    ("clusters", "Clusters, with and without an executor's session.", |reading| {
        all(reading, |of| {
            let (others, with) = of.other_clusters;
            let open = of.clusters.iter().filter(|(_, open)| *open).count() as u64 + with;
            let closed = of.clusters.len() as u64 + others - open;
            let sample = |word: &str, count: u64| (vec![("session", word.to_owned())], count as f64);
            vec![sample("open", open), sample("none", closed)]
        })
    }),
    ("cluster_has_session", "Whether an executor has a session of the cluster: 1, or 0.", |reading| {
        all(reading, |of| {
            let value = |open: bool| f64::from(u8::from(open));
            of.clusters
                .iter()
                .map(|(name, open)| (vec![("cluster", name.to_string())], value(*open)))
                .collect()
        })
    }),
    (
        "executor_lease_seconds",
        "Time until the session of the cluster expires unless its executor sends a message; on the leader.",
        leases,
    ),
    ("inbox_offset", "Offset of the next inbox message; on the leader.", |reading| {
        one(reading.decider.as_ref().and_then(|of| of.inbox_offset).map(|offset| offset as f64))
    }),
    (
        "read_model_lag_seconds",
        "Age of the oldest durable record that is not in the rows; 0 without one.",
        |reading| one(reading.lag.map(|lag| lag.as_secs_f64())),
    ),
    ("journal_bytes", "Bytes of the journal or its mirror on the disk.", |reading| {
        file(reading, |of| of.journal_bytes as f64)
    }),
    ("snapshots", "Snapshots on the disk.", |reading| file(reading, |of| of.snapshots as f64)),
    ("snapshots_bytes", "Bytes of the snapshots on the disk.", |reading| {
        file(reading, |of| of.snapshot_bytes as f64)
    }),
    ("snapshot_position", "Position of the newest snapshot; 0 without one.", |reading| {
        file(reading, |of| of.snapshot_position as f64)
    }),
];

impl Collector for ReadingCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let readings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, meaning, samples) in READ {
            let mut all = Vec::new();
            for (fleet, reading) in &*readings {
                all.extend(samples(reading).into_iter().map(|(labels, value)| (fleet, labels, value)));
            }
            if all.is_empty() {
                continue;
            }
            let mut metric = encoder.encode_descriptor(name, meaning, None, MetricType::Gauge)?;
            for (fleet, labels, value) in all {
                let mut own = vec![("fleet", fleet.clone())];
                own.extend(labels);
                ConstGauge::new(value).encode(metric.encode_family(&own)?)?;
            }
        }
        Ok(())
    }
}
