//! Executor of a simulated world: the session of the real program, with the channels, work and changes that
//! its loop would own. The world decides when the executor does its next action.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chancery_events::id::{ExecutorStoreId, SessionId, Term};
use chancery_events::observation::ObjectReport;
use chancery_events::protocol::ExecutorEpoch;
use chancery_events::spec::ClusterRuntime;
use chancery_executor::reconcile::StatusUpdate;
use chancery_executor::session::{HighestHead, ObjectWork, SessionCore, SessionIdentity};
use chancery_executor::status_cache::StatusCache;

use super::kubernetes::{PodExecutor, SimulatedApi};

/// Maximum number of concurrent work items.
const AT_ONCE: usize = 3;

/// Directory of an executor, which survives each executor epoch.
pub struct ExecutorDirectory {
    /// Id of the executor store.
    pub store: ExecutorStoreId,
    /// Executor epochs of the directory.
    pub epochs: u64,
    /// Highest head in the directory.
    pub seen: Option<HighestHead>,
}

/// Machine with a directory, or with access to a Kubernetes cluster.
pub struct ExecutorMachine {
    /// Number of the machine.
    pub number: usize,
    /// Number of the cluster. The first machine of a cluster has the cluster's number.
    pub cluster: usize,
    /// API of the cluster, if its runtime is Kubernetes.
    pub api: Option<Arc<Mutex<SimulatedApi>>>,
    /// Executor of pods, from its start on; the session exists once the store was opened.
    pub pods: Option<PodExecutor>,
    /// Executor's name, while one runs.
    pub name: String,
    /// Directory that the executor is started with.
    pub directory: ExecutorDirectory,
    /// Executor, if it runs.
    pub process: Option<SimulatedExecutor>,
    /// Earliest time of the next start.
    pub down: Duration,
    /// Drift of the clock, in millionths: positive if too fast.
    pub drift: i64,
    /// Runtime that the executor reports.
    pub runtime: ClusterRuntime,
}

/// State of an executor's channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelProgress {
    /// Not wanted.
    No,
    /// Being opened.
    Coming,
    /// Open, with its number.
    By(u64),
}

/// Progress of a list.
#[derive(Debug)]
pub enum ListProgress {
    /// Not requested.
    No,
    /// Request sent.
    Asked,
    /// In flight.
    Taken(Vec<ObjectReport>),
}

/// Running executor.
pub struct SimulatedExecutor {
    /// Executor's session.
    pub core: SessionCore,
    /// Executor's channel.
    pub channel: ChannelProgress,
    /// Executor's list.
    pub listing: ListProgress,
    /// Work that was started and not done.
    pub works: Vec<ObjectWork>,
    /// Work that was done, and not yet reported to the session.
    pub done: Vec<chancery_events::id::ObjectId>,
    /// Reports of the orchestrator.
    pub statuses: StatusCache,
    /// End of the suspension.
    pub paused: Option<Duration>,
    /// Session of the executor's work, and the term of the last message.
    pub under: Option<(SessionId, Term)>,
}

impl ExecutorDirectory {
    /// Returns an empty directory.
    pub fn new(executor_store: ExecutorStoreId) -> ExecutorDirectory {
        ExecutorDirectory { store: executor_store, epochs: 0, seen: None }
    }
}

impl ExecutorMachine {
    /// Creates a machine without executor.
    pub fn new(
        number: usize,
        cluster: usize,
        drift: i64,
        runtime: ClusterRuntime,
        directory: ExecutorDirectory,
    ) -> ExecutorMachine {
        let (process, api, pods, name) = (None, None, None, format!("ex{number}"));
        // A second executor of a cluster is started by a fault.
        let down = if number == cluster { Duration::ZERO } else { Duration::MAX };
        ExecutorMachine { number, cluster, api, pods, name, directory, process, down, drift, runtime }
    }

    /// Whether the machine is the first of its cluster.
    pub fn is_first(&self) -> bool {
        self.number == self.cluster
    }

    /// Returns the machine's clock.
    pub fn clock(&self, now: Duration) -> Duration {
        let micros = i128::try_from(now.as_micros()).unwrap_or(i128::MAX / 2_000_000);
        let micros = micros + micros * i128::from(self.drift) / 1_000_000;
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// Returns the world's time of the machine's `clock`.
    pub fn world_time(&self, clock: Duration) -> Duration {
        let micros = i128::try_from(clock.as_micros()).unwrap_or(i128::MAX / 2_000_000);
        let micros = micros * 1_000_000 / (1_000_000 + i128::from(self.drift));
        // Both conversions are rounded: a timer never fires early.
        Duration::from_micros(u64::try_from(micros).unwrap_or(0) + 2)
    }

    /// Starts the session of the executor, which has opened its store.
    pub fn start(&mut self, epoch: ExecutorEpoch, seen: Option<HighestHead>) {
        let identity = SessionIdentity {
            executor: self.name.parse().expect("an executor's name"),
            cluster: format!("c{}", self.cluster).parse().expect("a cluster's name"),
            runtime: self.runtime,
            store: self.directory.store,
            epoch,
        };
        self.process = Some(SimulatedExecutor {
            core: SessionCore::new(identity, seen, AT_ONCE),
            channel: ChannelProgress::No,
            listing: ListProgress::No,
            works: Vec::new(),
            done: Vec::new(),
            statuses: StatusCache::default(),
            paused: None,
            under: None,
        });
    }
}

impl SimulatedExecutor {
    /// Shows a report of the orchestrator.
    pub fn show(&self, update: StatusUpdate) {
        match update {
            StatusUpdate::Change(report) => self.statuses.show(report),
            StatusUpdate::ListOnly(report) => self.statuses.show_in_lists(report),
        }
    }
}
