//! Inputs and outputs of the session's state machine.

use chancery_events::id::{ExecutorStoreId, Lineage, ObjectId};
use chancery_events::name::{ClusterName, ExecutorName};
use chancery_events::observation::ObjectReport;
use chancery_events::protocol::{DeciderMessage, ExecutorEpoch, ExecutorMessage, JournalHead};
use chancery_events::spec::ClusterRuntime;
use serde::{Deserialize, Serialize};

use super::ObjectWork;
use crate::directory::IsCopy;
use crate::orchestrator::{InventoryError, WatchLost};

/// Identity of an executor.
#[derive(Clone, Debug)]
pub struct SessionIdentity {
    /// Name of the executor.
    pub executor: ExecutorName,
    /// Cluster of the executor.
    pub cluster: ClusterName,
    /// Runtime that the executor drives.
    pub runtime: ClusterRuntime,
    /// Id of the executor store.
    pub store: ExecutorStoreId,
    /// Executor epoch of this process.
    pub epoch: ExecutorEpoch,
}

/// Highest head that an executor has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HighestHead {
    /// Lineage of the journal.
    pub lineage: Lineage,
    /// Head of the journal.
    pub head: JournalHead,
}

/// Reason why an executor exits. Whatever its orchestrator runs continues to run.
#[derive(Debug, thiserror::Error)]
pub enum ExecutorStop {
    /// Journal with another history at a position that both sides know: altered, or cut and continued.
    #[error("cannot follow decider: its journal differs at position {0} from what this executor has seen")]
    Diverged(u64),
    /// Decider that knows less than the executor has seen or received: a newer one is elsewhere.
    #[error("cannot follow stale decider: {0}")]
    StaleDecider(String),
    /// Decider that will never accept this executor, with its reason.
    #[error("{0}")]
    Refused(String),
    /// Executor store that another executor on this machine has locked.
    #[error("cannot open executor store: locked by another executor")]
    StoreTaken,
    /// Executor store that another executor has taken over, with a higher epoch.
    #[error("cannot continue: another executor has taken over: {0}")]
    TakenOver(String),
    /// Executor store that is a copy.
    #[error(transparent)]
    Copied(#[from] IsCopy),
    /// Failed write of data that must be durable.
    #[error("cannot write executor store")]
    Storage(#[from] std::io::Error),
}

/// Input of a session.
#[derive(Debug)]
pub enum SessionInput {
    /// Channel to a decider opened.
    Connected,
    /// Channel lost, or not opened.
    Disconnected,
    /// Message from the decider.
    Message(DeciderMessage),
    /// Reports that answer [`SessionAction::List`].
    Listed(Vec<ObjectReport>),
    /// Failed [`SessionAction::List`]: the orchestrator's inventory is unknown.
    NotListed(InventoryError),
    /// Changes of the orchestrator. Only while [`super::SessionCore::takes_changes`].
    Changed(Vec<ObjectReport>),
    /// Changes that the orchestrator may have missed. Only while [`super::SessionCore::takes_changes`].
    WatchLost(WatchLost),
    /// Work on an object was started; the next work on it may follow.
    Done(ObjectId),
    /// Work that could not start: a service that it needs does not respond.
    PutOff(ObjectWork),
    /// Time of [`super::SessionCore::due`] reached.
    Tick,
    /// Shutdown of the executor requested.
    Leave,
}

/// Action of a session, taken in order.
#[derive(Debug)]
pub enum SessionAction {
    /// Open a channel.
    Connect,
    /// Drop the channel.
    HangUp,
    /// Send a message.
    Send(ExecutorMessage),
    /// List the orchestrator's objects, and drop earlier changes.
    List,
    /// Store the head on disk before any later action.
    Persist(HighestHead),
    /// Start work.
    Begin(ObjectWork),
    /// Exit with an error.
    Stop(ExecutorStop),
    /// Exit on request.
    Leave,
}
