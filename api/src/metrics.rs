//! Metrics for Prometheus: those of requests, of fleets and of the process, in one registry.

mod executors;
mod exposition;
mod fleet;
mod process;
mod readings;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderMap, Method, Response};
use chancery_events::level::FleetLevel;
use chancery_events::name::{ClusterName, ExecutorName, FleetName};
use chancery_executor::ExecutorStatus;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;

pub use exposition::MetricsFormat;
pub use fleet::FleetMetrics;
pub use process::ProcessMetrics;
pub use readings::{FigureSource, FleetDirectories};

use super::ApiState;
use super::problem::ProblemDetails;
use executors::ExecutorCollector;
use fleet::FleetMetricFamilies;
use readings::{FleetReading, ReadingCollector};

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    method: &'static str,
    status: u16,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct DurationLabels {
    route: &'static str,
    method: &'static str,
    status: &'static str,
}

/// Metrics of the server, and the registry.
#[derive(Debug)]
pub struct ServerMetrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    request_duration: Family<DurationLabels, Histogram, fn() -> Histogram>,
    pub(super) connections: Gauge,
    debts: Gauge,
    connections_rejected: Counter,
    fleets: FleetMetricFamilies,
    readings: Arc<ReadingCollector>,
    executors: Arc<ExecutorCollector>,
    /// End of the last reading. Its lock is held while a scrape reads and writes its answer.
    last_read: tokio::sync::Mutex<Option<Instant>>,
}

impl Default for ServerMetrics {
    fn default() -> ServerMetrics {
        ServerMetrics::new()
    }
}

fn buckets() -> Histogram {
    Histogram::new([
        0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    ])
}

/// Returns a registry with the metrics of the build and of this process.
fn build_registry() -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProcessMetrics));
    let version = ("version", env!("CARGO_PKG_VERSION").to_owned());
    let build = Info::new([version, ("level", FleetLevel::HIGHEST.to_string())]);
    let meaning = "Version of this build, and the highest fleet level that it knows";
    registry.register("chancery_build", meaning, build);
    registry
}

impl ServerMetrics {
    /// Returns metrics that are all zero.
    pub fn new() -> ServerMetrics {
        let metrics = ServerMetrics {
            registry: Mutex::default(),
            requests: Family::default(),
            request_duration: Family::new_with_constructor(buckets),
            connections: Gauge::default(),
            debts: Gauge::default(),
            connections_rejected: Counter::default(),
            fleets: FleetMetricFamilies::default(),
            readings: Arc::default(),
            executors: Arc::default(),
            last_read: tokio::sync::Mutex::default(),
        };
        let mut registry = build_registry();
        let to = registry.sub_registry_with_prefix("chancery");
        to.register("http_requests", "Requests by route, method and status", metrics.requests.clone());
        let duration = "Time until the answer starts";
        to.register("http_request_duration_seconds", duration, metrics.request_duration.clone());
        to.register("http_connections", "Open connections", metrics.connections.clone());
        let rejected = "Connections rejected over the limit";
        to.register("http_connections_rejected", rejected, metrics.connections_rejected.clone());
        let debts = "Directories that an executor of this server must remove and cannot";
        to.register("executor_debts", debts, metrics.debts.clone());
        metrics.fleets.register(to);
        to.register_collector(Box::new(Arc::clone(&metrics.readings)));
        to.register_collector(Box::new(Arc::clone(&metrics.executors)));
        ServerMetrics { registry: Mutex::new(registry), ..metrics }
    }

    /// Returns the metrics of a fleet, which are exposed from now on.
    pub fn of(&self, fleet: &FleetName) -> FleetMetrics {
        self.fleets.of(fleet)
    }

    /// Exposes the status of an executor of this process until it is dropped.
    pub fn add_executor(
        &self,
        fleet: &FleetName,
        cluster: &ClusterName,
        executor: &ExecutorName,
        status: &Arc<ExecutorStatus>,
    ) {
        self.executors.add(fleet, cluster, executor, status);
    }

    pub(super) fn connection_rejected(&self) {
        self.connections_rejected.inc();
    }

    pub(super) fn request(&self, route: &'static str, method: &Method, status: u16, taken: Duration) {
        // An unknown method of a client must not create a series.
        let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
        let method = known.into_iter().find(|known| method == known).unwrap_or("other");
        self.requests.get_or_create(&RequestLabels { route, method, status }).inc();
        let classes = ["1xx", "2xx", "3xx", "4xx", "5xx"];
        let status = classes.get(usize::from(status / 100).wrapping_sub(1)).copied().unwrap_or("other");
        let labels = DurationLabels { route, method, status };
        self.request_duration.get_or_create(&labels).observe(taken.as_secs_f64());
    }
}

/// Reads all fleets concurrently.
async fn take(api: &ApiState) {
    let mut readings = JoinSet::new();
    for (name, app) in &api.fleets {
        let (name, app) = (name.clone(), Arc::clone(app));
        readings.spawn(async move {
            let reading = FleetReading::take(&app).await;
            (name, reading)
        });
    }
    while let Some(taken) = readings.join_next().await {
        match taken {
            Ok((name, reading)) => api.common.metrics.readings.put(&name, reading),
            Err(error) => tracing::error!(%error, "cannot read metrics of a fleet"),
        }
    }
    api.common.metrics.debts.set(chancery_executor::process::debts().len() as i64);
}

/// Answers a scrape in the format that `Accept` prefers. One scrape reads at a time; those that waited for it have its values.
pub(super) async fn show(api: &ApiState, headers: &HeaderMap) -> Result<Response<Body>, ProblemDetails> {
    let metrics = &api.common.metrics;
    let arrived = Instant::now();
    let mut read = metrics.last_read.lock().await;
    if read.is_none_or(|last| last < arrived) {
        take(api).await;
        *read = Some(Instant::now());
    }
    let registry = metrics.registry.lock().unwrap_or_else(PoisonError::into_inner);
    MetricsFormat::of(headers)
        .answer(&registry)
        .map_err(|error| ProblemDetails::internal("show metrics", &error))
}
