//! Specifications that people write: clusters, capabilities, nodes, plans and deployments.
//!
//! Intents, facts, the state and responses contain these types. All fields are written (`skip_serializing_if`
//! would break the positional codec of snapshots and rows), and unknown fields are refused.

/// Declares enums of values, each with one text form everywhere.
#[macro_export]
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant),*
        }

        impl $name {
            /// All values, in order.
            pub const ALL: &[$name] = &[$($name::$variant),*];

            /// Text form of the value.
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

use std::collections::BTreeMap;

use crate::name::KeyName;

mod classes;
mod fleet;
mod payload;
mod plan;
mod rollout;

pub use classes::*;
pub use fleet::*;
pub use payload::*;
pub use plan::*;
pub use rollout::*;

words! {
    /// Runtime that a cluster's orchestrator drives.
    ClusterRuntime {
        /// Operating-system processes on the executor's own machine.
        Process = "process",
        /// Simulated processes, for tests, sizing and demonstrations.
        Simulated = "simulated",
        /// Pods of a Kubernetes cluster.
        Kubernetes = "kubernetes",
        /// Virtual machines that QEMU runs on the executor's own machine.
        Qemu = "qemu",
    }
    /// Binding of the pods of a cluster to nodes.
    #[derive(Default)]
    NodeBinding {
        /// A pod is bound to the Kubernetes node that has the name of the fleet's node.
        #[default]
        Name = "name",
        /// A pod is bound by the Kubernetes scheduler to a node that has all labels of the fleet's node.
        Labels = "labels",
    }
    /// Access to the console of a guest.
    #[derive(Default)]
    ConsoleAccess {
        /// The guest receives what is typed. One user at a time has this access.
        #[default]
        ReadWrite = "read_write",
        /// Output alone.
        ReadOnly = "read_only",
    }
    /// Activity of an entity.
    ClusterActivity {
        /// The entity is in use.
        Active = "active",
        /// The entity is kept, but is not chosen for new work.
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
    #[derive(Default)]
    NodeSharing {
        /// At most one replica of the plan per node.
        #[default]
        Never = "never",
        /// As many replicas of the plan per node as fit.
        Allowed = "allowed",
    }
    /// The rule that chooses among the nodes that are suitable for a replica.
    #[derive(Default)]
    PlacementPolicy {
        /// Evenly over update domains: in the domain with the fewest replicas of the plan, on the node with
        /// the fewest of these replicas. Among equal nodes, the node with the least free resources is chosen.
        /// A replica that is moved or updated stays in its domain if no domain has fewer.
        #[default]
        Spread = "spread",
        /// The node with the least free resources that has enough, in any update domain.
        Pack = "pack",
    }
    /// Whether a move of one replica would make the spread of its plan more even.
    BalancePolicy {
        /// No allowed move would make the spread more even.
        Even = "even",
        /// A move would make the spread more even; a rebalance makes it.
        Uneven = "uneven",
    }
    /// Purpose of an operation, if its kind and requester do not imply it.
    ProbePurpose {
        /// One move of a plan's rebalance.
        Rebalance = "rebalance",
    }
    /// Transport protocol.
    PortProtocol {
        /// Transmission Control Protocol.
        Tcp = "TCP",
        /// User Datagram Protocol.
        Udp = "UDP",
    }
    /// Approver of an operation.
    #[derive(Default)]
    ApprovalMode {
        /// Approval by a person.
        #[default]
        Manual = "manual",
        /// Approval by the plan's own rule, immediately.
        Automatic = "automatic",
    }
    /// Change that an operation makes to its replica.
    OperationKind {
        /// Starts a new replica.
        Create = "create",
        /// Changes the version of a replica.
        Update = "update",
        /// Moves a replica to another node.
        Relocate = "relocate",
        /// Ends the incarnation of a replica and starts a new incarnation.
        Restart = "restart",
        /// Starts a replica again.
        Start = "start",
        /// Ends the incarnation of a replica and keeps the replica.
        Stop = "stop",
        /// Ends the incarnation of a replica and removes the replica.
        Delete = "delete",
        /// Resets the guest of a replica that is a virtual machine, within its incarnation.
        Reboot = "reboot",
    }
    /// Kinds of work that a policy can name: every kind of operation, and the expunge of a node.
    PolicyKind {
        /// Operations that create a replica.
        Create = "create",
        /// Operations that change the version of a replica.
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
        /// Operations that reset the guest of a replica.
        Reboot = "reboot",
        /// The expunge of a node: everything on the node is declared lost.
        Expunge = "expunge",
    }
    /// Condition under which the plan's rule starts a replica again after its incarnation ended without a
    /// request.
    #[derive(Default)]
    RestartPolicy {
        /// After every end.
        Always = "always",
        /// After a failure.
        #[default]
        OnFailure = "on_failure",
        /// After no end.
        Never = "never",
    }
    /// Order of an update for which the orchestrator cannot change the incarnation in place.
    #[derive(Default)]
    UpdateOrder {
        /// The new incarnation is ready before the old one is stopped.
        #[default]
        StartFirst = "start_first",
        /// The old incarnation has ended before the new one is started.
        StopFirst = "stop_first",
    }
    /// Action on an incarnation that stays unready.
    #[derive(Default)]
    UnreadyAction {
        /// The incarnation is shown as unready, with the time since when it is unready. The default.
        #[default]
        Show = "show",
        /// The incarnation is ended, and the replica is started again by the plan's `restart` rule.
        Restart = "restart",
    }
    /// Demand of an affinity on the nodes of a group's replicas.
    AffinityKind {
        /// A node that hosts a replica of the group, if any node does.
        Affinity = "affinity",
        /// A node that hosts no replica of the group.
        AntiAffinity = "anti_affinity",
    }
    /// Fallback if no node satisfies an affinity.
    #[derive(Default)]
    AffinityPolicy {
        /// The replica is not placed.
        #[default]
        Fail = "fail",
        /// The replica is placed anyway, and the violation is reported.
        Allow = "allow",
    }
    /// Action of a blue-green deployment whose replicas are not all ready in time.
    TimeoutAction {
        /// The new replicas are deleted; the old replicas stay.
        Rollback = "rollback",
        /// The deployment cuts over anyway: the old replicas are deleted.
        CutOver = "cut_over",
    }
    /// State of a disruption.
    DisruptionState {
        /// The disruption is known and has no effect yet.
        Scheduled = "scheduled",
        /// The node takes no placements. From the start of the disruption on, the node is drained if the
        /// disruption requests that.
        Approved = "approved",
        /// The disruption has ended.
        Completed = "completed",
    }
    /// Day of the week, in UTC.
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
    /// State of a node.
    NodeState {
        /// The node is in no cluster.
        Unallocated = "unallocated",
        /// The node is being allocated to a cluster.
        Allocating = "allocating",
        /// The node is in a cluster and takes placements.
        Allocated = "allocated",
        /// The node was evicted from its cluster.
        Evicted = "evicted",
        /// The node is being cleaned.
        Sanitizing = "sanitizing",
        /// The node is declared lost by an operator, with everything on it.
        Expunged = "expunged",
    }
}

/// Coordinate that names the image of a payload without `run` and `container`.
pub const IMAGE: &str = "image";

impl ClusterRuntime {
    /// Whether an incarnation can be changed in place, without a new incarnation.
    pub const fn changes_in_place(self) -> bool {
        match self {
            // The arguments and environment of a process are fixed at its start.
            ClusterRuntime::Process => false,
            // An edit of a pod restarts its containers within the same pod, without proof that the earlier ones ended.
            ClusterRuntime::Kubernetes => false,
            // The devices of a virtual machine are fixed at its start.
            ClusterRuntime::Qemu => false,
            ClusterRuntime::Simulated => true,
        }
    }

    /// Whether the guests of an incarnation can be reset within the incarnation.
    pub const fn reboots(self) -> bool {
        match self {
            ClusterRuntime::Process | ClusterRuntime::Kubernetes => false,
            ClusterRuntime::Qemu | ClusterRuntime::Simulated => true,
        }
    }

    /// Whether volumes can be created with the content of others.
    pub const fn snapshots(self) -> bool {
        match self {
            ClusterRuntime::Kubernetes => false,
            ClusterRuntime::Process | ClusterRuntime::Qemu | ClusterRuntime::Simulated => true,
        }
    }

    /// Whether the processes of an incarnation have a console. That of a simulated process has no output.
    pub const fn has_console(self) -> bool {
        match self {
            ClusterRuntime::Process | ClusterRuntime::Kubernetes => false,
            ClusterRuntime::Qemu | ClusterRuntime::Simulated => true,
        }
    }

    /// Returns what the payload lacks to run on a cluster of this runtime with these coordinates, if anything.
    pub fn lacks(
        self,
        payload: &Payload,
        coordinates: Option<&BTreeMap<KeyName, String>>,
    ) -> Option<&'static str> {
        match self {
            ClusterRuntime::Process => payload.run.is_none().then_some("`run`"),
            ClusterRuntime::Simulated => None,
            ClusterRuntime::Qemu => payload.vm.is_none().then_some("`vm`"),
            ClusterRuntime::Kubernetes if payload.name.as_str().contains('.') => Some("name without dots"),
            ClusterRuntime::Kubernetes => match (&payload.container, &payload.run) {
                (Some(_), _) => None,
                (None, Some(_)) => Some("`container`"),
                (None, None) => {
                    let has_image = coordinates.is_some_and(|of| of.keys().any(|key| key.as_str() == IMAGE));
                    (!has_image).then_some("`container`, or the coordinate `image`")
                }
            },
        }
    }
}

impl OperationKind {
    /// Whether the operation acts on the incarnation that runs: without one, the operation has no effect.
    pub const fn needs_incarnation(self) -> bool {
        match self {
            OperationKind::Update
            | OperationKind::Relocate
            | OperationKind::Restart
            | OperationKind::Reboot => true,
            OperationKind::Create | OperationKind::Start | OperationKind::Stop | OperationKind::Delete => {
                false
            }
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
            OperationKind::Reboot => PolicyKind::Reboot,
        }
    }
}
