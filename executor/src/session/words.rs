//! What goes into the session's core and what comes out.

use chancery_events::id::{Lineage, ObjectId, ScopeId};
use chancery_events::name::{ClusterName, ExecutorName};
use chancery_events::observation::Report;
use chancery_events::protocol::{FromDecider, Head, Life, ToDecider};
use chancery_events::spec::Runtime;
use serde::{Deserialize, Serialize};

use super::Work;
use crate::directory::IsCopy;
use crate::orchestrator::{InventoryError, WatchLost};

/// Who the executor is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// As it calls itself.
    pub executor: ExecutorName,
    /// Its scope, whose lock it holds.
    pub cluster: ClusterName,
    /// What it drives.
    pub runtime: Runtime,
    /// Where it looks for what runs.
    pub scope: ScopeId,
    /// Which life over that scope this is.
    pub life: Life,
}

/// The highest head that an executor has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// The journal.
    pub lineage: Lineage,
    /// Its head.
    pub head: Head,
}

/// Why an executor exits. Everything that runs goes on running.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// At a position that both know, the journal is another one: it was altered, or cut and continued.
    #[error("the decider's journal differs at position {0} from what this executor has seen")]
    Diverged(u64),
    /// This decider knows less than the executor has seen or has been given: a newer one is elsewhere.
    #[error("a newer decider is elsewhere: {0}")]
    NewerElsewhere(String),
    /// The decider will never take this executor.
    #[error("the decider refuses this executor: {0}")]
    Refused(String),
    /// Another executor of the scope runs on this machine.
    #[error("another executor holds the lock of this scope")]
    ScopeTaken,
    /// The executor's folder is a copy.
    #[error(transparent)]
    Copied(IsCopy),
    /// What must be durable cannot be made so.
    #[error("keep the executor's own files")]
    Storage(#[source] std::io::Error),
}

/// What comes in.
#[derive(Debug)]
pub enum Input {
    /// A link to a decider is there.
    Connected,
    /// It could not be had, or is lost.
    Disconnected,
    /// The decider says something.
    Heard(FromDecider),
    /// The answer to [`Output::List`].
    Listed(Vec<Report>),
    /// The other answer to [`Output::List`]: nothing is known of what the orchestrator has.
    NotListed(InventoryError),
    /// The orchestrator saw changes. Only while [`super::Core::takes_changes`].
    Changed(Vec<Report>),
    /// The orchestrator may have missed changes. Only while [`super::Core::takes_changes`].
    WatchLost(WatchLost),
    /// Work on an object has been begun, and the next on it may follow.
    Done(ObjectId),
    /// Work could not be begun, because something does not answer that it needs.
    PutOff(Work),
    /// The time of [`super::Core::due`] has come.
    Tick,
    /// The executor is to leave.
    Leave,
}

/// What is to be done, in this order.
#[derive(Debug)]
pub enum Output {
    /// Ask for a link.
    Connect,
    /// Drop the link.
    HangUp,
    /// Send.
    Say(ToDecider),
    /// List what the orchestrator has, and drop changes from before.
    List,
    /// Put this on disk before anything that follows.
    Persist(Seen),
    /// Begin work.
    Begin(Work),
    /// Exit.
    Stop(Stop),
    /// Exit, as asked.
    Leave,
}
