//! What the model keeps of each entity.

use std::collections::BTreeMap;

use chancery_events::amount::Amounts;
use chancery_events::fact::{
    Approver, Asker, DeploymentEnd, Effect, IncarnationEnd, OperationEnd, Proposal, Rollback, Unfit,
};
use chancery_events::id::{IncarnationId, Lineage, OperationId, Position, SessionId};
use chancery_events::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, NodeName, PlanName, PolicyName,
    ReplicaName, StorageClass, VolumeName,
};
use chancery_events::observation::{Process, SessionEnd};
use chancery_events::spec::{
    Activity, Balance, CapabilitySpec, ClusterSpec, DeploymentSpec, DisruptionSpec, DisruptionState,
    NodeSpec, NodeState, OperationKind, PlanSpec, PolicySpec,
};
use chancery_events::time::Time;

use super::volumes::Volume;

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
    pub(super) disruptions: BTreeMap<DisruptionName, Disruption>,
    pub(super) bypass: Option<chancery_events::fact::ApprovalBypassed>,
}

/// An approval request: how it was opened, and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) fact: chancery_events::fact::RequestOpened,
    pub(super) approved: Option<Actor>,
    pub(super) end: Option<chancery_events::fact::RequestEnd>,
}

#[derive(Clone, Debug)]
pub(super) struct Disruption {
    pub(super) spec: DisruptionSpec,
    pub(super) state: DisruptionState,
    pub(super) by: Option<Actor>,
    pub(super) since: Time,
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) generation: u32,
    pub(super) activity: Activity,
    pub(super) spec: PlanSpec,
    /// All that it ever was, by generation.
    pub(super) specs: BTreeMap<u32, PlanSpec>,
    pub(super) waiting: Vec<Unfit>,
    pub(super) balance: Balance,
    /// Who asked for the rebalance in progress.
    pub(super) rebalance: Option<Actor>,
    /// Operations that are over, ever: kind and outcome.
    pub(super) outcomes: Vec<(OperationKind, &'static str)>,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Deployment {
    /// Where it came into being: those of one commit came at one time.
    pub(super) born: chancery_events::id::Position,
    pub(super) generation: u32,
    pub(super) spec: DeploymentSpec,
    pub(super) by: Option<Actor>,
    pub(super) has_started: bool,
    pub(super) is_paused: bool,
    /// Whether its new set is the one that counts.
    pub(super) has_cut_over: bool,
    pub(super) rollback: Option<Rollback>,
    /// When it last made progress.
    pub(super) progressed: Option<Time>,
    /// When it was called stalled, if nothing has come since.
    pub(super) stalled: Option<Time>,
    pub(super) end: Option<DeploymentEnd>,
    /// Whether it begins nothing more.
    pub(super) is_ending: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) plan: PlanName,
    pub(super) deployment: DeploymentName,
    /// What the operation that was approved last wants of it, of those that want it up, down or gone.
    pub(super) approved: Option<OperationKind>,
    /// The run that counts.
    pub(super) active: Option<IncarnationId>,
    /// The run that is to take its place, or has lost it.
    pub(super) passive: Option<IncarnationId>,
    /// How the last run that counted ended.
    pub(super) last: Option<IncarnationEnd>,
    /// When its plan's rule starts it again.
    pub(super) again: Option<Time>,
}

#[derive(Clone, Debug)]
pub(super) struct Incarnation {
    pub(super) fact: chancery_events::fact::IncarnationReserved,
    /// By which deployment it runs.
    pub(super) deployment: DeploymentName,
    pub(super) plan: PlanName,
    pub(super) cluster: Option<ClusterName>,
    pub(super) life: Life,
    /// Bytes of storage that it holds for volumes that are not on its node yet.
    pub(super) stores: BTreeMap<StorageClass, u64>,
    pub(super) processes: Vec<Process>,
    /// Since when it is not ready, of one that was.
    pub(super) unready: Option<Time>,
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
    /// Asked to be what another deployment says.
    Updating(DeploymentName),
    Stopping,
    Over(IncarnationEnd),
}

#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) replica: ReplicaName,
    pub(super) plan: PlanName,
    pub(super) kind: OperationKind,
    pub(super) deployment: Option<DeploymentName>,
    pub(super) by: Option<Asker>,
    /// The deployment by whose version the replica runs when it has succeeded.
    pub(super) version: DeploymentName,
    pub(super) proposal: Option<Proposal>,
    pub(super) place: Option<IncarnationId>,
    pub(super) node: Option<NodeName>,
    pub(super) approved: Option<Approver>,
    pub(super) has_begun: bool,
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
    pub(super) policies: BTreeMap<PolicyName, Kept<PolicySpec>>,
    pub(super) volumes: BTreeMap<VolumeName, Kept<Volume>>,
    pub(super) requests: BTreeMap<chancery_events::id::RequestId, Kept<Asked>>,
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
            None if self.has_begun => "running",
            None if self.approved.is_some() => "approved",
            None if self.proposal.is_some() => "pending_approval",
            None => "preparing",
        }
    }
}

/// Whether an operation of the kind wants its replica up.
pub(super) const fn brings_up(kind: OperationKind) -> bool {
    match kind {
        OperationKind::Create
        | OperationKind::Update
        | OperationKind::Relocate
        | OperationKind::Restart
        | OperationKind::Start => true,
        OperationKind::Stop | OperationKind::Delete => false,
    }
}

impl Incarnation {
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.life, Life::Over(_))
    }
}

impl Entities {
    /// The replica's run that counts.
    pub(super) fn active(&self, replica: &Replica) -> Option<(IncarnationId, &Kept<Incarnation>)> {
        replica.active.and_then(|id| Some((id, self.incarnations.get(&id)?)))
    }

    /// What a run holds of its node: of what it needs, as long as a run that it follows there is not over, only what
    /// that one does not need as well.
    pub(super) fn holds(&self, incarnation: &Incarnation) -> Amounts {
        let needs = incarnation.fact.amounts;
        let followed = incarnation.fact.follows.and_then(|id| self.incarnations.get(&id));
        match followed.filter(|old| !old.is.is_over() && old.is.fact.node == incarnation.fact.node) {
            Some(old) => needs.less(old.is.fact.amounts),
            None => needs,
        }
    }

    /// The replica's operations that are not over, the oldest first.
    pub(super) fn open(&self, replica: &ReplicaName) -> Vec<(OperationId, &Operation)> {
        let all = self.operations.iter().map(|(id, kept)| (*id, &kept.is));
        all.filter(|(_, operation)| operation.replica == *replica && operation.end.is_none()).collect()
    }
}
