//! Answers that lead to everything else: `/v1`, the fleets of the server, and the version of its build.

use axum::body::Body;
use axum::http::Response;
use chancery_events::level::FleetLevel;
use chancery_events::name::FleetName;
use schemars::JsonSchema;
use serde::Serialize;

use super::middleware::json;
use super::problem::ProblemDetails;
use super::{ApiState, FleetApi};

/// Version of a server.
#[derive(Serialize, JsonSchema)]
pub(super) struct ServerVersion {
    /// Version of the build.
    version: &'static str,
    /// Version of the API, the first part of its paths.
    api: &'static str,
    /// Highest level of fleets that the build knows.
    level: FleetLevel,
}

/// Paths from which the API can be explored.
#[derive(Serialize, JsonSchema)]
pub(super) struct ApiIndex {
    /// Path of the fleets of the server.
    fleets: &'static str,
    /// Path of the description of the API.
    openapi: &'static str,
    /// Path of the version of the server.
    version: &'static str,
    /// Path of the answer that reports whether the server is ready.
    ready: &'static str,
}

/// Fleet of a server.
#[derive(Serialize, JsonSchema)]
pub(super) struct FleetSummary {
    /// Name of the fleet.
    name: String,
    /// Path of the fleet: those of its entities start with it.
    path: String,
    /// Last position of the journal.
    position: u64,
    /// Current lineage of the journal; absent while it has no record.
    #[serde(skip_serializing_if = "Option::is_none")]
    lineage: Option<String>,
    /// Kinds of entities that the fleet lists, each the next part of a path.
    kinds: Vec<&'static str>,
}

/// Fleets of a server.
#[derive(Serialize, JsonSchema)]
pub(super) struct FleetList {
    /// Fleets, in the order of their names.
    items: Vec<FleetSummary>,
}

fn answer(body: &impl Serialize) -> Result<Response<Body>, ProblemDetails> {
    let text = serde_json::to_vec(body);
    text.map(json).map_err(|error| ProblemDetails::internal("show the server", &error))
}

/// Answers a request for the version.
pub(super) fn version() -> Result<Response<Body>, ProblemDetails> {
    answer(&ServerVersion { version: env!("CARGO_PKG_VERSION"), api: "v1", level: FleetLevel::HIGHEST })
}

/// Answers a request for the paths of the API.
pub(super) fn index() -> Result<Response<Body>, ProblemDetails> {
    let paths =
        ApiIndex { fleets: "/v1/fleets", openapi: "/v1/openapi.json", version: "/version", ready: "/readyz" };
    answer(&paths)
}

/// Answers a request for the fleets.
pub(super) fn fleets(api: &ApiState) -> Result<Response<Body>, ProblemDetails> {
    answer(&FleetList { items: api.fleets.iter().map(|(name, app)| summary(name, app)).collect() })
}

/// Answers a request for one fleet.
pub(super) fn fleet(app: &FleetApi, name: &str) -> Result<Response<Body>, ProblemDetails> {
    let name =
        name.parse::<FleetName>().map_err(|error| ProblemDetails::internal("show the fleet", &error))?;
    answer(&summary(&name, app))
}

fn summary(name: &FleetName, app: &FleetApi) -> FleetSummary {
    FleetSummary {
        name: name.to_string(),
        path: format!("/v1/fleets/{name}"),
        position: app.source.head().map_or(0, |head| head.position.get()),
        lineage: app.hub.lineages().map(|lineages| lineages.current.to_string()),
        kinds: chancery_projector::RowKind::ALL.iter().map(|kind| kind.word()).collect(),
    }
}
