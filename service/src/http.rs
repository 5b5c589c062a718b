//! The HTTP API: what people and programs see of a fleet, and how they ask for something.
//!
//! ```text
//! connection ─► [serve] ─► [edge] ─► [routes]: the one table ─► [read] rows · [write] intents · [stream] events · [logs] · [links]
//!                limits     request id, limits, [rate]s,           every answer that is not what was asked for
//!                           timeouts, figures                      is a [problem]
//! ```
//! What must stay true: a verdict is told only when it is durable, for the decider says nothing before; bad input is
//! a 4xx with its place and never ends the process or holds others up; nothing is kept for a caller without a limit.

mod edge;
mod forward;
mod headers;
pub mod hub;
mod intents;
mod json;
pub mod limits;
pub mod links;
pub mod logs;
pub mod metrics;
mod openapi;
mod place;
pub mod problem;
mod query;
pub mod rate;
mod read;
mod routes;
pub mod schemas;
mod serve;
mod stream;
mod typed;
mod wanted;
mod write;

use std::sync::Arc;

use axum::Router;
use chancery_events::name::FleetName;
use chancery_journal::Source;
use chancery_projector::Reader;

pub use hub::Hub;
pub use limits::Limits;
pub use links::Links;
pub use logs::{LogFile, LogStream, Logs, NoLogs};
pub use metrics::Metrics;
pub use openapi::openapi;
pub use rate::Rates;
pub use serve::serve;

use crate::duty::Desk;

/// What the API shows of one fleet.
#[derive(Clone)]
pub struct App {
    /// Whose API it is.
    pub fleet: FleetName,
    /// Knows who decides intents.
    pub desk: Desk,
    /// Reads rows.
    pub reader: Reader,
    /// Reads the journal.
    pub source: Arc<dyn Source>,
    /// Gives new records to streams: the decider's `publish` puts them in.
    pub hub: Arc<Hub>,
    /// Counts.
    pub metrics: Arc<Metrics>,
    /// Finds what processes have written.
    pub logs: Arc<dyn Logs>,
    /// Executors outside this process.
    pub links: Arc<Links>,
    /// What one caller may take.
    pub limits: Limits,
    /// How often it may ask.
    pub rates: Arc<Rates>,
}

/// The API without its listener.
pub fn router(app: App) -> Router {
    Router::new().fallback(edge::answer).with_state(Arc::new(app))
}

#[cfg(test)]
mod tests;
