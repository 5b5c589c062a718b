//! Figures for Prometheus. Others of the process put theirs into the same registry.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, Response, header};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::App;
use super::problem::Problem;

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
struct CodeLabels {
    code: &'static str,
}

/// Counts what goes on.
pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<RouteLabels, Histogram, fn() -> Histogram>,
    verdicts: Family<CodeLabels, Counter>,
    skipped: Counter,
    pub(super) connections: Gauge,
    turned_away: Counter,
    journal: Gauge,
    applied: Gauge,
    lag: Gauge,
    backlog: Gauge,
    decides: Gauge,
    followers: Gauge,
    links: Gauge,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

fn buckets() -> Histogram {
    Histogram::new([
        0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    ])
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Metrics {
        let metrics = Metrics {
            registry: Mutex::new(Registry::with_prefix("chancery")),
            requests: Family::default(),
            seconds: Family::new_with_constructor(buckets),
            verdicts: Family::default(),
            skipped: Counter::default(),
            connections: Gauge::default(),
            turned_away: Counter::default(),
            journal: Gauge::default(),
            applied: Gauge::default(),
            lag: Gauge::default(),
            backlog: Gauge::default(),
            decides: Gauge::default(),
            followers: Gauge::default(),
            links: Gauge::default(),
        };
        metrics.register(|to| {
            to.register("http_requests", "Requests by route, method and status", metrics.requests.clone());
            to.register("http_request_seconds", "Time until an answer begins", metrics.seconds.clone());
            to.register(
                "verdicts",
                "Answers of the decider: outcomes, and codes of refusals",
                metrics.verdicts.clone(),
            );
            to.register("journal_skipped", "Records of the log that do not count", metrics.skipped.clone());
            to.register("http_connections", "Open connections", metrics.connections.clone());
            to.register(
                "http_connections_turned_away",
                "Connections over the limit",
                metrics.turned_away.clone(),
            );
            to.register("journal_position", "The last durable position", metrics.journal.clone());
            to.register("applied_position", "The last position in the rows", metrics.applied.clone());
            to.register("applied_lag", "Durable positions that are not in the rows", metrics.lag.clone());
            to.register(
                "decides",
                "Whether this server decides: 1, or 0 where another one does",
                metrics.decides.clone(),
            );
            to.register("decider_backlog", "Inputs that wait for the decider", metrics.backlog.clone());
            to.register("stream_followers", "Open streams", metrics.followers.clone());
            to.register("executor_links", "Executors connected over HTTP", metrics.links.clone());
        });
        metrics
    }

    /// Puts in figures of others.
    pub fn register(&self, put: impl FnOnce(&mut Registry)) {
        put(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts a record that the journal skipped.
    pub fn skipped(&self) {
        self.skipped.inc();
    }

    pub(super) fn turned_away(&self) {
        self.turned_away.inc();
    }

    pub(super) fn request(&self, route: &'static str, method: &Method, status: u16, taken: Duration) {
        // A method of the sender's own making must not make a new series.
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
        self.seconds.get_or_create(&RouteLabels { route }).observe(taken.as_secs_f64());
    }

    pub(super) fn verdict(&self, code: &'static str) {
        self.verdicts.get_or_create(&CodeLabels { code }).inc();
    }
}

/// Answers a scrape.
pub(super) fn show(app: &App) -> Result<Response<Body>, Problem> {
    let metrics = &app.metrics;
    let tail = app.source.head().map_or(0, |head| head.position.get());
    let applied = app.reader.applied().position.get();
    metrics.journal.set(tail as i64);
    metrics.applied.set(applied as i64);
    metrics.lag.set(tail.saturating_sub(applied) as i64);
    metrics.backlog.set(app.desk.here().map_or(0, |decider| decider.backlog()) as i64);
    metrics.decides.set(i64::from(app.desk.here().is_some()));
    metrics.followers.set(app.hub.followers() as i64);
    metrics.links.set(app.links.count() as i64);
    let mut text = String::new();
    encode(&mut text, &metrics.registry.lock().unwrap_or_else(PoisonError::into_inner))
        .map_err(|error| Problem::internal("show the figures", &error))?;
    let mut response = Response::new(Body::from(text));
    let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    Ok(response)
}
