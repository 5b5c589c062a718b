//! Metrics of fleets that are counted as things happen, and gauges that cost nothing to read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chancery_decider::DeciderHandle;
use chancery_decider::troubles::FleetPart;
use chancery_events::id::Position;
use chancery_events::name::FleetName;
use chancery_projector::ListQuery;
use chancery_projector::page::LIMIT_MAX;
use chancery_projector::rows::DeploymentRow;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;

use super::buckets;
use crate::FleetApi;

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct FleetLabels {
    fleet: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct PartLabels {
    fleet: String,
    part: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct CodeLabels {
    fleet: String,
    code: &'static str,
}

/// Histograms with one for each fleet.
type FleetHistograms = Family<FleetLabels, Histogram, fn() -> Histogram>;

/// Gauges of a fleet that are read at each scrape: name and meaning, in the order of [`FleetMetrics::refresh`].
const GAUGES: [(&str, &str); 10] = [
    ("journal_position", "Last durable position"),
    ("read_model_position", "Last position in the rows"),
    ("read_model_lag_events", "Durable positions that are not in the rows"),
    ("is_leader", "Whether this server is the leader: 1, or 0"),
    ("decider_queue_length", "Inputs that wait for the decider"),
    ("open_streams", "Open streams"),
    ("executor_channels", "Executors connected over HTTP"),
    ("deployments_stalled", "Deployments without progress for their progress deadline, at most 1000"),
    ("moment_requests", "Requests that fold a past state or wait for that"),
    ("moment_memory_bytes", "Memory of past states, by estimate"),
];

/// Index of the gauge of stalled deployments.
const STALLED: usize = 7;

/// Metric families with one series for each fleet.
#[derive(Clone, Debug)]
pub(super) struct FleetMetricFamilies {
    intent_verdicts: Family<CodeLabels, Counter>,
    bypassed: Family<FleetLabels, Counter>,
    records_skipped: Family<FleetLabels, Counter>,
    syncs: FleetHistograms,
    commits: FleetHistograms,
    events_exported: Family<FleetLabels, Gauge>,
    inbox_end: Family<FleetLabels, Gauge>,
    gauges: [Family<FleetLabels, Gauge>; GAUGES.len()],
    troubles: Family<PartLabels, Gauge>,
    trouble_reports: Family<PartLabels, Counter>,
}

impl Default for FleetMetricFamilies {
    fn default() -> FleetMetricFamilies {
        FleetMetricFamilies {
            intent_verdicts: Family::default(),
            bypassed: Family::default(),
            records_skipped: Family::default(),
            syncs: Family::new_with_constructor(buckets),
            commits: Family::new_with_constructor(buckets),
            events_exported: Family::default(),
            inbox_end: Family::default(),
            gauges: std::array::from_fn(|_| Family::default()),
            troubles: Family::default(),
            trouble_reports: Family::default(),
        }
    }
}

/// Metrics of one fleet.
#[derive(Debug)]
pub struct FleetMetrics {
    labels: FleetLabels,
    bypassed: Counter,
    records_skipped: Counter,
    syncs: Histogram,
    commits: Histogram,
    gauges: [Gauge; GAUGES.len()],
    families: FleetMetricFamilies,
    /// Permit to refresh the gauges for a scrape.
    pub(super) memory: Arc<Semaphore>,
    /// Permit to read the disk for a scrape.
    pub(crate) disk: Arc<Semaphore>,
}

impl FleetMetricFamilies {
    pub(super) fn register(&self, to: &mut Registry) {
        let verdicts = "Verdicts of the decider: outcomes, and codes of refusals";
        to.register("intent_verdicts", verdicts, self.intent_verdicts.clone());
        let bypassed = "Expunges by break-glass, without the approval that policies require";
        to.register("approvals_bypassed", bypassed, self.bypassed.clone());
        let skipped = "Journal records skipped as invalid";
        to.register("journal_records_skipped", skipped, self.records_skipped.clone());
        let syncs = "Time of one sync of the journal's file or its mirror";
        to.register("journal_sync_duration_seconds", syncs, self.syncs.clone());
        let commits = "Time from the append of a commit until it is durable";
        to.register("commit_duration_seconds", commits, self.commits.clone());
        let exported = "Last position that the events topic has acknowledged to this server";
        to.register("kafka_events_position", exported, self.events_exported.clone());
        let end = "Offset after the last message of the inbox topic that this server knows";
        to.register("kafka_inbox_end_offset", end, self.inbox_end.clone());
        for ((name, meaning), family) in GAUGES.into_iter().zip(&self.gauges) {
            to.register(name, meaning, family.clone());
        }
        let troubles = "Whether a part of the fleet does not work on this server: 1, or 0";
        to.register("trouble", troubles, self.troubles.clone());
        let reports = "Reports that a part of the fleet does not work on this server";
        to.register("trouble_reports", reports, self.trouble_reports.clone());
    }

    pub(super) fn of(&self, fleet: &FleetName) -> FleetMetrics {
        let labels = FleetLabels { fleet: fleet.to_string() };
        FleetMetrics {
            bypassed: self.bypassed.get_or_create_owned(&labels),
            records_skipped: self.records_skipped.get_or_create_owned(&labels),
            syncs: self.syncs.get_or_create_owned(&labels),
            commits: self.commits.get_or_create_owned(&labels),
            gauges: self.gauges.each_ref().map(|family| family.get_or_create_owned(&labels)),
            families: self.clone(),
            memory: Arc::new(Semaphore::new(1)),
            disk: Arc::new(Semaphore::new(1)),
            labels,
        }
    }
}

impl FleetMetrics {
    /// Counts a record that the journal skipped.
    pub fn record_skipped(&self) {
        self.records_skipped.inc();
    }

    /// Observes the time of one sync of the journal.
    pub fn synced(&self, taken: Duration) {
        self.syncs.observe(taken.as_secs_f64());
    }

    /// Observes the time from the append of a commit until it was durable.
    pub fn committed(&self, taken: Duration) {
        self.commits.observe(taken.as_secs_f64());
    }

    /// Sets the last position that the events topic has acknowledged.
    pub fn events_exported(&self, position: Position) {
        self.families.events_exported.get_or_create(&self.labels).set(position.get() as i64);
    }

    /// Sets the offset after the last message of the inbox.
    pub fn inbox_end(&self, offset: u64) {
        self.families.inbox_end.get_or_create(&self.labels).set(offset as i64);
    }

    /// Counts an expunge by break-glass.
    pub(crate) fn bypassed(&self) {
        self.bypassed.inc();
    }

    pub(crate) fn verdict(&self, code: &'static str) {
        let labels = CodeLabels { fleet: self.labels.fleet.clone(), code };
        self.families.intent_verdicts.get_or_create(&labels).inc();
    }

    pub(super) fn refresh(&self, app: &FleetApi) {
        let tail = app.source.head().map_or(0, |head| head.position.get());
        let applied = app.reader.applied().position.get();
        let here = app.router.here();
        let readings: [Option<i64>; GAUGES.len()] = [
            Some(tail as i64),
            Some(applied as i64),
            Some(tail.saturating_sub(applied) as i64),
            Some(i64::from(here.is_some())),
            Some(here.as_ref().map_or(0, DeciderHandle::backlog) as i64),
            Some(app.hub.followers() as i64),
            Some(app.channels.count() as i64),
            // Counted by a read of the disk.
            None,
            Some(app.moments.requests() as i64),
            Some(app.moments.memory() as i64),
        ];
        for (gauge, reading) in self.gauges.iter().zip(readings) {
            if let Some(reading) = reading {
                gauge.set(reading);
            }
        }
        let troubles = app.troubles();
        for part in FleetPart::ALL {
            let labels = PartLabels { fleet: self.labels.fleet.clone(), part: part.name() };
            let is_blocked = troubles.iter().any(|(troubled, _)| *troubled == part);
            self.families.troubles.get_or_create(&labels).set(i64::from(is_blocked));
            let reports = self.families.trouble_reports.get_or_create(&labels);
            // Concurrent scrapes must not add the same reports twice.
            reports.inner().fetch_max(app.router.troubles.reports(part), Ordering::Relaxed);
        }
    }

    /// Counts stalled deployments, which reads the disk. The gauge keeps its value if they cannot be read.
    pub(super) fn count_stalled(&self, app: &FleetApi) {
        let stalled = ListQuery::all().by("stalled", "yes").limit(LIMIT_MAX);
        if let Ok(stalled) = app.reader.list::<DeploymentRow>(&stalled) {
            self.gauges[STALLED].set(stalled.items.len() as i64);
        }
    }
}
