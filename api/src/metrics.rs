//! Metrics for Prometheus. Other parts of the process register theirs in the same registry.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, Response, header};
use chancery_decider::DeciderHandle;
use chancery_decider::troubles::FleetPart;
use chancery_events::name::FleetName;
use chancery_projector::ListQuery;
use chancery_projector::page::LIMIT_MAX;
use chancery_projector::rows::DeploymentRow;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::problem::ProblemDetails;
use super::{ApiState, FleetApi};

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    method: &'static str,
    status: u16,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct RouteLabels {
    route: &'static str,
}

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

/// Metrics of the server, and the registry.
pub struct ServerMetrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    request_duration: Family<RouteLabels, Histogram, fn() -> Histogram>,
    pub(super) connections: Gauge,
    debts: Gauge,
    connections_rejected: Counter,
    fleets: FleetMetricFamilies,
}

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

/// Metric families with one series for each fleet.
#[derive(Clone, Default, Debug)]
struct FleetMetricFamilies {
    intent_verdicts: Family<CodeLabels, Counter>,
    bypassed: Family<FleetLabels, Counter>,
    records_skipped: Family<FleetLabels, Counter>,
    gauges: [Family<FleetLabels, Gauge>; GAUGES.len()],
    troubles: Family<PartLabels, Gauge>,
}

/// Metrics of one fleet.
#[derive(Debug)]
pub struct FleetMetrics {
    fleet: String,
    bypassed: Counter,
    records_skipped: Counter,
    gauges: [Gauge; GAUGES.len()],
    families: FleetMetricFamilies,
}

impl fmt::Debug for ServerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
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

impl ServerMetrics {
    /// Returns metrics that are all zero.
    pub fn new() -> ServerMetrics {
        let metrics = ServerMetrics {
            registry: Mutex::new(Registry::with_prefix("chancery")),
            requests: Family::default(),
            request_duration: Family::new_with_constructor(buckets),
            connections: Gauge::default(),
            debts: Gauge::default(),
            connections_rejected: Counter::default(),
            fleets: FleetMetricFamilies::default(),
        };
        metrics.register(|to| {
            to.register("http_requests", "Requests by route, method and status", metrics.requests.clone());
            to.register(
                "http_request_duration_seconds",
                "Time until the answer starts",
                metrics.request_duration.clone(),
            );
            to.register("http_connections", "Open connections", metrics.connections.clone());
            to.register(
                "http_connections_rejected",
                "Connections rejected over the limit",
                metrics.connections_rejected.clone(),
            );
            let debts = "Directories that an executor of this server must remove and cannot";
            to.register("executor_debts", debts, metrics.debts.clone());
            let fleets = &metrics.fleets;
            let verdicts = "Verdicts of the decider: outcomes, and codes of refusals";
            to.register("intent_verdicts", verdicts, fleets.intent_verdicts.clone());
            let bypassed = "Expunges by break-glass, without the approval that policies require";
            to.register("approvals_bypassed", bypassed, fleets.bypassed.clone());
            to.register(
                "journal_records_skipped",
                "Journal records skipped as invalid",
                fleets.records_skipped.clone(),
            );
            for ((name, meaning), family) in GAUGES.into_iter().zip(&fleets.gauges) {
                to.register(name, meaning, family.clone());
            }
            let troubles = "Whether a part of the fleet does not work on this server: 1, or 0";
            to.register("trouble", troubles, fleets.troubles.clone());
        });
        metrics
    }

    /// Returns the metrics of a fleet, which are exposed from now on.
    pub fn of(&self, fleet: &FleetName) -> FleetMetrics {
        let labels = FleetLabels { fleet: fleet.to_string() };
        let families = self.fleets.clone();
        FleetMetrics {
            bypassed: families.bypassed.get_or_create_owned(&labels),
            records_skipped: families.records_skipped.get_or_create_owned(&labels),
            gauges: families.gauges.each_ref().map(|family| family.get_or_create_owned(&labels)),
            families,
            fleet: labels.fleet,
        }
    }

    /// Registers metrics of other parts.
    pub fn register(&self, put: impl FnOnce(&mut Registry)) {
        put(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn connection_rejected(&self) {
        self.connections_rejected.inc();
    }

    pub(super) fn request(&self, route: &'static str, method: &Method, status: u16, taken: Duration) {
        // An unknown method of a client must not create a series.
        let known = [
            Method::GET,
            Method::HEAD,
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
            Method::OPTIONS,
        ];
        let words = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
        let method = known.iter().position(|known| known == method).map_or("other", |at| words[at]);
        self.requests.get_or_create(&RequestLabels { route, method, status }).inc();
        self.request_duration.get_or_create(&RouteLabels { route }).observe(taken.as_secs_f64());
    }
}

impl FleetMetrics {
    /// Counts a record that the journal skipped.
    pub fn record_skipped(&self) {
        self.records_skipped.inc();
    }

    /// Counts an expunge by break-glass.
    pub(super) fn bypassed(&self) {
        self.bypassed.inc();
    }

    pub(super) fn verdict(&self, code: &'static str) {
        self.families.intent_verdicts.get_or_create(&CodeLabels { fleet: self.fleet.clone(), code }).inc();
    }

    fn refresh(&self, app: &FleetApi) {
        let tail = app.source.head().map_or(0, |head| head.position.get());
        let applied = app.reader.applied().position.get();
        let here = app.router.here();
        let stalled = ListQuery::all().by("stalled", "yes").limit(LIMIT_MAX);
        let readings: [Option<i64>; GAUGES.len()] = [
            Some(tail as i64),
            Some(applied as i64),
            Some(tail.saturating_sub(applied) as i64),
            Some(i64::from(here.is_some())),
            Some(here.as_ref().map_or(0, DeciderHandle::backlog) as i64),
            Some(app.hub.followers() as i64),
            Some(app.channels.count() as i64),
            app.reader.list::<DeploymentRow>(&stalled).ok().map(|stalled| stalled.items.len() as i64),
            Some(app.moments.requests() as i64),
            Some(app.moments.memory() as i64),
        ];
        for (gauge, reading) in self.gauges.iter().zip(readings) {
            // A gauge that cannot be read keeps its value.
            if let Some(reading) = reading {
                gauge.set(reading);
            }
        }
        let troubles = app.troubles();
        for part in FleetPart::ALL {
            let labels = PartLabels { fleet: self.fleet.clone(), part: part.name() };
            let is_blocked = troubles.iter().any(|(troubled, _)| *troubled == part);
            self.families.troubles.get_or_create(&labels).set(i64::from(is_blocked));
        }
    }
}

/// Answers a scrape.
pub(super) fn show(api: &ApiState) -> Result<Response<Body>, ProblemDetails> {
    for app in api.fleets.values() {
        app.figures.refresh(app);
    }
    let metrics = &api.common.metrics;
    metrics.debts.set(chancery_executor::process::debts().len() as i64);
    let mut text = String::new();
    encode(&mut text, &metrics.registry.lock().unwrap_or_else(PoisonError::into_inner))
        .map_err(|error| ProblemDetails::internal("show metrics", &error))?;
    let mut response = Response::new(Body::from(text));
    let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    Ok(response)
}
