//! What the model keeps of each entity.

use std::collections::BTreeMap;

use chancery_events::fact::{Approver, DeploymentEnd, Effect, IncarnationEnd, OperationEnd, Proposal, Unfit};
use chancery_events::id::{IncarnationId, Lineage, OperationId, Position, SessionId};
use chancery_events::name::{CapabilityName, ClusterName, DeploymentName, NodeName, PlanName, ReplicaName};
use chancery_events::observation::{Process, SessionEnd};
use chancery_events::spec::{
    Activity, CapabilitySpec, ClusterSpec, DeploymentSpec, NodeSpec, NodeState, OperationKind, PlanSpec,
};
use chancery_events::time::Time;

/// Where a fact stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) position: Position,
    pub(super) time: Time,
    pub(super) lineage: Lineage,
}

/// When an entity came and changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamps {
    pub(super) version: u64,
    pub(super) created: Time,
    pub(super) changed: Time,
    pub(super) position: Position,
}

/// Any entity with its stamps.
#[derive(Clone, Debug)]
pub(super) struct Kept<T> {
    pub(super) stamps: Stamps,
    pub(super) is: T,
}

#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) spec: ClusterSpec,
    pub(super) activity: Activity,
}

#[derive(Clone, Debug)]
pub(super) struct Capability {
    pub(super) spec: CapabilitySpec,
    pub(super) activity: Activity,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) spec: NodeSpec,
    pub(super) state: NodeState,
    pub(super) cluster: Option<ClusterName>,
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) generation: u32,
    pub(super) activity: Activity,
    pub(super) spec: PlanSpec,
    pub(super) waiting: Vec<Unfit>,
    /// Operations that are over, ever: kind and outcome.
    pub(super) outcomes: Vec<(OperationKind, &'static str)>,
}

#[derive(Clone, Debug)]
pub(super) struct Deployment {
    /// Where it came into being: those of one commit came at one time.
    pub(super) born: chancery_events::id::Position,
    pub(super) generation: u32,
    pub(super) spec: DeploymentSpec,
    pub(super) has_started: bool,
    pub(super) end: Option<DeploymentEnd>,
}

#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) plan: PlanName,
    pub(super) deployment: DeploymentName,
    /// The kind of the operation that was approved last.
    pub(super) approved: Option<OperationKind>,
    /// How its last incarnation ended.
    pub(super) last: Option<IncarnationEnd>,
}

#[derive(Clone, Debug)]
pub(super) struct Incarnation {
    pub(super) fact: chancery_events::fact::IncarnationReserved,
    pub(super) plan: PlanName,
    pub(super) cluster: Option<ClusterName>,
    pub(super) life: Life,
    pub(super) processes: Vec<Process>,
    pub(super) revision: u32,
    /// The command without an outcome: effect and attempt.
    pub(super) command: Option<(Effect, u32)>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Life {
    Reserved,
    Creating,
    Starting,
    Running,
    Stopping,
    Over(IncarnationEnd),
}

#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) replica: ReplicaName,
    pub(super) plan: PlanName,
    pub(super) kind: OperationKind,
    pub(super) deployment: Option<DeploymentName>,
    pub(super) proposal: Option<Proposal>,
    pub(super) place: Option<IncarnationId>,
    pub(super) node: Option<NodeName>,
    pub(super) approved: Option<Approver>,
    pub(super) end: Option<OperationEnd>,
}

#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) fact: chancery_events::fact::SessionOpened,
    pub(super) end: Option<SessionEnd>,
}

/// Every entity that readers can see.
#[derive(Clone, Default, Debug)]
pub(super) struct Entities {
    pub(super) clusters: BTreeMap<ClusterName, Kept<Cluster>>,
    pub(super) capabilities: BTreeMap<CapabilityName, Kept<Capability>>,
    pub(super) nodes: BTreeMap<NodeName, Kept<Node>>,
    pub(super) plans: BTreeMap<PlanName, Kept<Plan>>,
    pub(super) deployments: BTreeMap<(PlanName, DeploymentName), Kept<Deployment>>,
    pub(super) replicas: BTreeMap<ReplicaName, Kept<Replica>>,
    pub(super) incarnations: BTreeMap<IncarnationId, Kept<Incarnation>>,
    pub(super) operations: BTreeMap<OperationId, Kept<Operation>>,
    pub(super) sessions: BTreeMap<SessionId, Kept<Session>>,
}

impl Operation {
    /// The word for its state.
    pub(super) const fn word(&self) -> &'static str {
        match &self.end {
            Some(OperationEnd::Succeeded) => "succeeded",
            Some(OperationEnd::Failed { .. }) => "failed",
            Some(OperationEnd::Rejected { .. }) => "rejected",
            Some(OperationEnd::Expired) => "expired",
            Some(OperationEnd::Cancelled { .. }) => "cancelled",
            Some(OperationEnd::Superseded { .. }) => "superseded",
            None if self.approved.is_some() => "running",
            None if self.proposal.is_some() => "pending_approval",
            None => "preparing",
        }
    }
}

impl Entities {
    /// The replica's incarnation that is not over.
    pub(super) fn live(&self, replica: &ReplicaName) -> Option<(IncarnationId, &Kept<Incarnation>)> {
        let mut all = self.incarnations.iter().map(|(id, kept)| (*id, kept));
        all.find(|(_, kept)| kept.is.fact.replica == *replica && !matches!(kept.is.life, Life::Over(_)))
    }

    /// The replica's operations that are not over, the oldest first.
    pub(super) fn open(&self, replica: &ReplicaName) -> Vec<(OperationId, &Operation)> {
        let all = self.operations.iter().map(|(id, kept)| (*id, &kept.is));
        all.filter(|(_, operation)| operation.replica == *replica && operation.end.is_none()).collect()
    }
}
