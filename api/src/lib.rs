//! The HTTP API: what people and programs see of fleets, and how they ask for something.
//!
//! ```text
//! connection ─► [serve] ─► [edge] ─► [routes]: the one table ─► [read] rows · [write] intents · [stream] events · [logs] · [links]
//!                limits     request id, limits, [admission],       every answer that is not what was asked for
//!                           [rate]s, timeouts, figures             is a [problem]
//! ```
//! What must stay true: a verdict is told only when it is durable, for the decider says nothing before; bad input is
//! a 4xx with its place and never ends the process or holds others up; nothing is kept for a caller without a limit.

mod admission;
mod budget;
mod connection;
mod edge;
mod forward;
mod headers;
mod intents;
mod json;
mod last_verdict;
pub mod limits;
pub mod links;
pub mod logs;
pub mod metrics;
mod openapi;
mod place;
mod positions;
pub mod problem;
mod query;
pub mod rate;
mod read;
mod routes;
pub mod schemas;
mod serve;
mod slots;
mod stream;
mod typed;
mod wanted;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_decider::Hub;
use chancery_decider::desk::Desk;
use chancery_decider::troubles::FleetPart;
use chancery_events::name::FleetName;
use chancery_journal::Source;
use chancery_projector::Reader;
use tokio::sync::Semaphore;

pub use admission::{AllowedHosts, host_of};
pub use budget::ByteBudget;
pub use edge::router;
use forward::DeciderClient;
pub use forward::LAST_OUTCOMES;
pub use last_verdict::LastVerdict;
pub use limits::Limits;
pub use links::Links;
pub use logs::Logs;
pub use metrics::{Figures, Metrics};
pub use openapi::openapi;
pub use rate::Rates;
pub use serve::serve;
pub use slots::RESERVED;

/// What the API shows.
#[derive(Clone)]
pub struct Api {
    /// The fleets of the server.
    pub fleets: BTreeMap<FleetName, Arc<App>>,
    /// What they share.
    pub common: Arc<Common>,
}

/// What the fleets of a server share.
#[derive(Debug)]
pub struct Common {
    /// What one caller may take.
    pub limits: Limits,
    /// How often it may ask.
    pub rates: Rates,
    /// Hosts under which it may be asked.
    pub hosts: AllowedHosts,
    /// Bytes of messages of executors that are not whole yet, of all links together.
    pub uploads: ByteBudget,
    /// Bytes of other bodies, until they are answered, of all connections together.
    pub bodies: ByteBudget,
    /// Bytes of answers that are being sent, of all connections together.
    pub answers: ByteBudget,
    /// Turns of lists.
    pub lists: Arc<Semaphore>,
    /// Connections to servers that decide.
    deciders: DeciderClient,
    /// Counts.
    pub metrics: Metrics,
}

impl Common {
    /// Nobody has taken anything yet.
    pub fn new(limits: Limits, hosts: AllowedHosts) -> Common {
        Common {
            rates: Rates::of(&limits),
            uploads: ByteBudget::new(limits.uploads),
            bodies: ByteBudget::new(limits.bodies),
            answers: ByteBudget::new(limits.answers),
            lists: Arc::new(Semaphore::new(limits.lists)),
            deciders: forward::client(),
            limits,
            hosts,
            metrics: Metrics::new(),
        }
    }
}

/// What the API shows of one fleet.
#[derive(Clone)]
pub struct App {
    /// What it shares with the other fleets of the server.
    pub common: Arc<Common>,
    /// Knows who decides intents.
    pub desk: Desk,
    /// Reads rows.
    pub reader: Reader,
    /// The last verdict that this server has given: later reads are at least as new.
    pub last_verdict: Arc<LastVerdict>,
    /// Reads the journal.
    pub source: Arc<dyn Source>,
    /// Gives new records to streams: the decider's `publish` puts them in.
    pub hub: Arc<Hub>,
    /// Counts what is the fleet's own.
    pub figures: Arc<Figures>,
    /// Finds what processes have written.
    pub logs: Arc<dyn Logs>,
    /// Executors outside this process.
    pub links: Arc<Links>,
}

impl App {
    /// The parts of the fleet that stand still on this server, each with its reason.
    fn troubles(&self) -> Vec<(FleetPart, String)> {
        let journal = self.source.trouble().map(|trouble| (FleetPart::Journal, trouble));
        journal.into_iter().chain(self.desk.troubles.all()).collect()
    }
}

#[cfg(test)]
mod tests;
