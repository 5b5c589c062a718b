//! HTTP API: lets people and programs read fleets and submit intents.
//!
//! ```text
//! connection ─► [serve] ─► [middleware] ─► [routes]: one table ─► [read] rows · [write] intents · [stream] events · [logs] · [channels]
//!                limits     request id, limits, [admission],     every answer other than the requested one
//!                           [rate] limits, timeouts, metrics     is a [problem]
//! ```
//! Invariants: a verdict is returned only when it is durable, because the decider returns none before. Bad
//! input is a 4xx answer that names its location; it never ends the process or blocks other requests. Nothing
//! is kept for a caller without a limit.

mod accept;
mod admission;
mod budget;
mod catalogue;
mod causes;
pub mod channels;
mod condition;
mod connection;
mod consoles;
mod description;
mod diff;
mod discovery;
mod disruptions;
mod dry_run;
mod entity_tag;
mod event_filter;
mod follower;
mod forward;
mod headers;
mod intent_place;
mod intents;
mod json;
mod last_verdict;
pub mod limits;
pub mod logs;
pub mod metrics;
mod middleware;
mod moments;
mod openapi;
mod positions;
pub mod problem;
mod query;
pub mod rate;
mod read;
mod request_span;
mod reserved_answer;
mod routes;
pub mod schemas;
mod serve;
mod slots;
mod stream;
mod typed;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_decider::EventHub;
use chancery_decider::leader_router::LeaderRouter;
use chancery_decider::troubles::FleetPart;
use chancery_events::name::FleetName;
use chancery_journal::JournalReader;
use chancery_projector::RowReader;
use tokio::sync::Semaphore;

pub use admission::{AllowedHosts, host_of};
pub use budget::ByteBudget;
pub use catalogue::error_entries;
pub use channels::ExecutorChannels;
use forward::DeciderClient;
pub use forward::LAST_OUTCOMES;
pub use last_verdict::LastVerdict;
pub use limits::HttpLimits;
pub use logs::ClusterLogSource;
pub use metrics::{
    FigureSource, FleetDirectories, FleetMetrics, MetricsFormat, ProcessMetrics, ServerMetrics,
};
pub use middleware::router;
pub use moments::MomentQueue;
pub use openapi::openapi;
use problem::{ProblemDetails, READ_ONLY};
pub use rate::RateLimiter;
pub use serve::serve;
pub use slots::RESERVED;

/// State of the HTTP API of one server.
#[derive(Clone)]
pub struct ApiState {
    /// Fleets of the server, by name.
    pub fleets: BTreeMap<FleetName, Arc<FleetApi>>,
    /// State that the fleets share.
    pub common: Arc<ApiShared>,
}

/// State that the fleets of a server share.
#[derive(Debug)]
pub struct ApiShared {
    /// Limits on what one caller may use.
    pub limits: HttpLimits,
    /// Rate limits of each principal.
    pub rates: RateLimiter,
    /// Hosts for which the server accepts requests.
    pub hosts: AllowedHosts,
    /// Budget of bytes for incomplete messages of executors, of all channels together.
    pub uploads: ByteBudget,
    /// Budget of bytes for other bodies until they are answered, of all connections together.
    pub bodies: ByteBudget,
    /// Budget of bytes for answers that are being sent, of all connections together.
    pub answers: ByteBudget,
    /// Permits to read a list.
    pub lists: Arc<Semaphore>,
    /// Client for requests to the leaders of other servers.
    deciders: DeciderClient,
    /// Metrics of the server.
    pub metrics: ServerMetrics,
}

impl ApiShared {
    /// Returns the state of a server that has served no request yet.
    pub fn new(limits: HttpLimits, hosts: AllowedHosts) -> ApiShared {
        ApiShared {
            rates: RateLimiter::of(&limits),
            uploads: ByteBudget::new(limits.uploads),
            bodies: ByteBudget::new(limits.bodies),
            answers: ByteBudget::new(limits.answers),
            lists: Arc::new(Semaphore::new(limits.lists)),
            deciders: forward::client(),
            limits,
            hosts,
            metrics: ServerMetrics::new(),
        }
    }
}

/// State of the API of one fleet.
#[derive(Clone)]
pub struct FleetApi {
    /// State shared with the other fleets of the server.
    pub common: Arc<ApiShared>,
    /// Routes intents to the leader.
    pub router: LeaderRouter,
    /// Reader of rows.
    pub reader: RowReader,
    /// Past states, for reads with `as_of`.
    pub moments: Arc<MomentQueue>,
    /// Maximum number of replicas of one deployment, for dry runs.
    pub replicas: u32,
    /// Position of the last verdict that this server has given; later reads are at least as new.
    pub last_verdict: Arc<LastVerdict>,
    /// Reader of the journal.
    pub source: Arc<dyn JournalReader>,
    /// Passes new records to streams; the decider's `publish` adds the records.
    pub hub: Arc<EventHub>,
    /// Metrics of this fleet.
    pub figures: Arc<FleetMetrics>,
    /// Requests figures of the fleet, for metrics.
    pub figure_source: FigureSource,
    /// Directories whose sizes are metrics; `None` if this server does not write them.
    pub directories: Option<FleetDirectories>,
    /// Finds the output of processes.
    pub logs: Arc<dyn ClusterLogSource>,
    /// Channels of executors outside this process.
    pub channels: Arc<ExecutorChannels>,
}

impl FleetApi {
    /// Returns the stalled parts of the fleet on this server, each with its reason.
    fn troubles(&self) -> Vec<(FleetPart, String)> {
        let journal = self.source.trouble().map(|trouble| (FleetPart::Journal, trouble));
        journal.into_iter().chain(self.router.troubles.all()).collect()
    }

    /// Refuses a write to a server that only shows a journal.
    fn writable(&self) -> Result<(), ProblemDetails> {
        if !self.router.is_read_only() {
            return Ok(());
        }
        let detail = "cannot write: this server shows a replayed journal, and is read-only";
        Err(ProblemDetails::new(READ_ONLY, detail))
    }
}

#[cfg(test)]
mod tests;
