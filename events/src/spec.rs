//! Specs that people write: those of clusters, capabilities, nodes, plans and deployments.
//!
//! These shapes stand in intents, in facts, in the state and in answers. Nothing is left out when they are
//! written (`skip_serializing_if` would break the positional codec of snapshots and rows), and unknown fields are
//! refused when they are read.

/// Enums of values, each with one text form everywhere.
#[macro_export]
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant),*
        }

        impl $name {
            /// Every one, in order.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// The word for it, everywhere.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }
    )*};
}
pub(crate) use words;

mod change;
mod classes;
mod fleet;
mod payload;
mod plan;

pub use change::*;
pub use classes::*;
pub use fleet::*;
pub use payload::*;
pub use plan::*;

words! {
    /// The runtime that a cluster's orchestrator consists of.
    ClusterRuntime {
        /// Operating-system processes on the executor's own machine.
        Process = "process",
        /// Nothing real: for tests, sizing and play.
        Simulated = "simulated",
    }
    /// Whether something is in use.
    ClusterActivity {
        /// In use.
        Active = "active",
        /// Kept, but not to be chosen.
        Inactive = "inactive",
    }
    /// The comparison of the named capabilities with those of a node, within one type.
    MatchComparator {
        /// Matches a node that has at least one of the named capabilities.
        In = "in",
        /// Matches a node that has none of the named capabilities.
        NotIn = "not_in",
        /// Matches a node that has all of the named capabilities.
        Eq = "eq",
        /// Matches a node with a score of at least that of each named capability.
        Gte = "gte",
        /// Matches a node with a score of at most that of each named capability.
        Lte = "lte",
    }
    /// Whether replicas of one plan may share a node.
    NodeSharing {
        /// One replica of the plan a node.
        Never = "never",
        /// As many as fit.
        Allowed = "allowed",
    }
    /// The rule that chooses among the nodes that are suitable for a replica.
    PlacementPolicy {
        /// Evenly over update domains: in the domain with the fewest of the plan's replicas, on the node with the
        /// fewest of them, then on that with the least free. A replica that is moved or updated stays in its domain
        /// where others have as few.
        Spread = "spread",
        /// The node with the least free resources that has enough, in any update domain.
        Pack = "pack",
    }
    /// Whether a move of one replica would make the spread of its plan more even.
    BalancePolicy {
        /// No move that is allowed would.
        Even = "even",
        /// A move would: a rebalance makes it.
        Uneven = "uneven",
    }
    /// The purpose of an operation, where the kind and the asker do not imply it.
    ProbePurpose {
        /// One move of a plan's rebalance.
        Rebalance = "rebalance",
    }
    /// A transport protocol.
    PortProtocol {
        /// The Transmission Control Protocol.
        Tcp = "TCP",
        /// The User Datagram Protocol.
        Udp = "UDP",
    }
    /// The approver of an operation.
    ApprovalMode {
        /// Approval by a person.
        Manual = "manual",
        /// Approval by the plan's own rule, at once.
        Automatic = "automatic",
    }
    /// The change that an operation makes to its replica.
    OperationKind {
        /// Brings a new replica up.
        Create = "create",
        /// Gives a replica another version.
        Update = "update",
        /// Moves a replica to another node.
        Relocate = "relocate",
        /// Ends a replica's run and brings it up again.
        Restart = "restart",
        /// Brings a replica up again.
        Start = "start",
        /// Ends its run and keeps the replica.
        Stop = "stop",
        /// Ends its run and removes the replica.
        Delete = "delete",
    }
    /// Kinds of work that a policy can name: every kind of operation, and the expunge of a node.
    PolicyKind {
        /// Operations that create a replica.
        Create = "create",
        /// Operations that give a replica another version.
        Update = "update",
        /// Operations that move a replica to another node.
        Relocate = "relocate",
        /// Operations that restart a replica.
        Restart = "restart",
        /// Operations that start a replica.
        Start = "start",
        /// Operations that stop a replica.
        Stop = "stop",
        /// Operations that delete a replica.
        Delete = "delete",
        /// The expunge of a node: everything on the node is declared lost.
        Expunge = "expunge",
    }
    /// When what ended by itself is started again by its plan's own rule.
    RestartPolicy {
        /// However it ended.
        Always = "always",
        /// When it failed.
        BestEffort = "best_effort",
        /// Never, however it ended.
        Never = "never",
    }
    /// The order of an update in which the orchestrator cannot change the incarnation in place.
    UpdateOrder {
        /// The new incarnation is ready before the old one is stopped.
        Beside = "beside",
        /// The old incarnation has ended before the new one is started.
        StopFirst = "stop_first",
    }
    /// The action on an incarnation that stays unready.
    #[derive(Default)]
    UnreadyAction {
        /// The incarnation is shown as unready, with the time since when it is unready. The default.
        #[default]
        Show = "show",
        /// The incarnation is ended, and the replica is started again by the plan's `restart` rule.
        Restart = "restart",
    }
    /// The demand of an affinity on the nodes of a group's replicas.
    AffinityKind {
        /// A node that hosts a replica of the group, if any node does.
        Together = "together",
        /// A node that hosts no replica of the group.
        Apart = "apart",
    }
    /// The fallback where no node satisfies an affinity.
    AffinityPolicy {
        /// The replica is not placed.
        Fail = "fail",
        /// The replica is placed all the same, and the violation is reported.
        Allow = "allow",
    }
    /// The outcome of a graceful deployment whose replicas are not all ready in time.
    TimeoutAction {
        /// The new replicas are deleted, the old ones stay.
        Rollback = "rollback",
        /// The old replicas are deleted all the same.
        Commit = "commit",
    }
    /// The states of a disruption.
    DisruptionState {
        /// Known, and not to be acted on yet.
        Scheduled = "scheduled",
        /// Its node takes no placements; from its start on, it is emptied if that is wanted.
        Approved = "approved",
        /// Is over.
        Completed = "completed",
    }
    /// A day of the week, in UTC.
    Weekday {
        /// Monday, in UTC.
        Mon = "mon",
        /// Tuesday, in UTC.
        Tue = "tue",
        /// Wednesday, in UTC.
        Wed = "wed",
        /// Thursday, in UTC.
        Thu = "thu",
        /// Friday, in UTC.
        Fri = "fri",
        /// Saturday, in UTC.
        Sat = "sat",
        /// Sunday, in UTC.
        Sun = "sun",
    }
    /// The states of a node.
    NodeState {
        /// Known, in no cluster.
        Unallocated = "unallocated",
        /// Being allocated to a cluster.
        Allocating = "allocating",
        /// In a cluster; takes placements.
        Allocated = "allocated",
        /// Taken out of its cluster.
        Evicted = "evicted",
        /// Being cleaned.
        Sanitizing = "sanitizing",
        /// Gone, on the operator's word, with everything on it.
        Expunged = "expunged",
    }
}

impl ClusterRuntime {
    /// Whether what runs can be changed where it stands, without another run of it.
    pub const fn changes_in_place(self) -> bool {
        match self {
            // What a process was started with, it has until it ends.
            ClusterRuntime::Process => false,
            ClusterRuntime::Simulated => true,
        }
    }

    /// Returns the noun for what the runtime runs, if a payload must name a program for it.
    pub const fn needs_program(self) -> Option<&'static str> {
        match self {
            ClusterRuntime::Process => Some("processes"),
            ClusterRuntime::Simulated => None,
        }
    }
}

impl From<OperationKind> for PolicyKind {
    fn from(kind: OperationKind) -> PolicyKind {
        match kind {
            OperationKind::Create => PolicyKind::Create,
            OperationKind::Update => PolicyKind::Update,
            OperationKind::Relocate => PolicyKind::Relocate,
            OperationKind::Restart => PolicyKind::Restart,
            OperationKind::Start => PolicyKind::Start,
            OperationKind::Stop => PolicyKind::Stop,
            OperationKind::Delete => PolicyKind::Delete,
        }
    }
}
