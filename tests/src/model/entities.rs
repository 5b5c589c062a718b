//! State that the model keeps of each entity.

use std::collections::BTreeMap;

use chancery_events::fact::{
    ApprovalActor, ApprovalProposal, CommandEffect, DeploymentEnd, IncarnationEnd, OperationEnd, Requester,
    RollbackReference, UnschedulableReason,
};
use chancery_events::id::{IncarnationId, Lineage, OperationId, Position, SessionId};
use chancery_events::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, NodeName, PlanName, PolicyName,
    ReplicaName, StorageClass, VolumeName,
};
use chancery_events::observation::{ProcessInfo, SessionEnd};
use chancery_events::resources::Resources;
use chancery_events::spec::{
    BalancePolicy, CapabilitySpec, ClusterActivity, ClusterSpec, DeploymentSpec, DisruptionSpec,
    DisruptionState, NodeSpec, NodeState, OperationKind, PlanSpec, PolicySpec,
};
use chancery_events::time::Time;

use super::volumes::Volume;

/// Location of a fact in the journal.
#[derive(Clone, Copy, Debug)]
pub(super) struct FactLocation {
    pub(super) position: Position,
    pub(super) time: Time,
    pub(super) lineage: Lineage,
}

/// Version of an entity, with its creation and last change.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntityStamps {
    pub(super) version: u64,
    pub(super) created: Time,
    pub(super) changed: Time,
    pub(super) position: Position,
}

/// Entity with its stamps.
#[derive(Clone, Debug)]
pub(super) struct StampedEntity<T> {
    pub(super) stamps: EntityStamps,
    pub(super) is: T,
}

#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) spec: ClusterSpec,
    pub(super) activity: ClusterActivity,
}

#[derive(Clone, Debug)]
pub(super) struct Capability {
    pub(super) spec: CapabilitySpec,
    pub(super) activity: ClusterActivity,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) spec: NodeSpec,
    pub(super) state: NodeState,
    pub(super) cluster: Option<ClusterName>,
    pub(super) disruptions: BTreeMap<DisruptionName, Disruption>,
    pub(super) bypass: Option<chancery_events::fact::ApprovalBypassed>,
}

/// Approval request: its opening, its approver, and its end.
#[derive(Clone, Debug)]
pub(super) struct FoldedRequest {
    pub(super) fact: chancery_events::fact::RequestOpened,
    pub(super) approved: Option<Actor>,
    pub(super) end: Option<chancery_events::fact::RequestEnd>,
}

#[derive(Clone, Debug)]
pub(super) struct Disruption {
    pub(super) spec: DisruptionSpec,
    pub(super) state: DisruptionState,
    pub(super) approved_by: Option<Actor>,
    pub(super) since: Time,
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) generation: u32,
    pub(super) activity: ClusterActivity,
    pub(super) spec: PlanSpec,
    /// Specs of all generations.
    pub(super) specs: BTreeMap<u32, PlanSpec>,
    pub(super) unschedulable: Vec<UnschedulableReason>,
    pub(super) balance: BalancePolicy,
    /// Requester of the rebalance in progress.
    pub(super) rebalance: Option<Actor>,
    /// All ended operations ever: kind and outcome.
    pub(super) outcomes: Vec<(OperationKind, &'static str)>,
}

#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Deployment {
    /// Position of the creation: deployments of one commit share their time.
    pub(super) born: chancery_events::id::Position,
    pub(super) generation: u32,
    pub(super) spec: DeploymentSpec,
    pub(super) requested_by: Actor,
    pub(super) has_started: bool,
    pub(super) is_paused: bool,
    /// Whether the new set counts.
    pub(super) has_cut_over: bool,
    pub(super) rollback: Option<RollbackReference>,
    /// Time of the last progress.
    pub(super) progressed: Option<Time>,
    /// Time of the stalled mark, without progress since.
    pub(super) stalled: Option<Time>,
    pub(super) end: Option<DeploymentEnd>,
    /// Whether the deployment starts nothing more.
    pub(super) is_ending: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Replica {
    pub(super) plan: PlanName,
    pub(super) deployment: DeploymentName,
    /// Kind of the last approved operation that starts, stops or deletes the replica.
    pub(super) approved: Option<OperationKind>,
    /// Incarnation that counts.
    pub(super) active: Option<IncarnationId>,
    /// Second incarnation: successor or predecessor of the active one.
    pub(super) secondary: Option<IncarnationId>,
    /// End of the last incarnation that counted.
    pub(super) last: Option<IncarnationEnd>,
    /// Time of the next restart by the plan's rule.
    pub(super) next_restart: Option<Time>,
    /// Whether the guest powered itself off since that operation was approved.
    pub(super) is_powered_off: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Incarnation {
    pub(super) fact: chancery_events::fact::IncarnationReserved,
    /// Incarnation's deployment.
    pub(super) deployment: DeploymentName,
    pub(super) plan: PlanName,
    pub(super) cluster: Option<ClusterName>,
    pub(super) progress: IncarnationProgress,
    /// Bytes of storage reserved for volumes not on the node yet.
    pub(super) stores: BTreeMap<StorageClass, u64>,
    pub(super) processes: Vec<ProcessInfo>,
    /// Start of unreadiness, if ever ready.
    pub(super) unready: Option<Time>,
    pub(super) revision: u32,
    /// Command without an outcome: effect and attempt.
    pub(super) command: Option<(CommandEffect, u32)>,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum IncarnationProgress {
    Reserved,
    Creating,
    Starting,
    Running,
    /// Asked to become this other deployment's version.
    Updating(DeploymentName),
    Stopping,
    Ended(IncarnationEnd),
}

#[derive(Clone, Debug)]
pub(super) struct Operation {
    pub(super) replica: ReplicaName,
    pub(super) plan: PlanName,
    pub(super) kind: OperationKind,
    pub(super) deployment: Option<DeploymentName>,
    pub(super) requested_by: Option<Requester>,
    /// Deployment whose version the replica has after success.
    pub(super) version: DeploymentName,
    pub(super) proposal: Option<ApprovalProposal>,
    pub(super) place: Option<IncarnationId>,
    pub(super) node: Option<NodeName>,
    pub(super) approved: Option<ApprovalActor>,
    pub(super) has_begun: bool,
    pub(super) end: Option<OperationEnd>,
}

#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) fact: chancery_events::fact::SessionOpened,
    pub(super) end: Option<SessionEnd>,
}

/// All entities that readers can see.
#[derive(Clone, Default, Debug)]
pub(super) struct VisibleEntities {
    pub(super) clusters: BTreeMap<ClusterName, StampedEntity<Cluster>>,
    pub(super) capabilities: BTreeMap<CapabilityName, StampedEntity<Capability>>,
    pub(super) nodes: BTreeMap<NodeName, StampedEntity<Node>>,
    pub(super) plans: BTreeMap<PlanName, StampedEntity<Plan>>,
    pub(super) deployments: BTreeMap<(PlanName, DeploymentName), StampedEntity<Deployment>>,
    pub(super) replicas: BTreeMap<ReplicaName, StampedEntity<Replica>>,
    pub(super) incarnations: BTreeMap<IncarnationId, StampedEntity<Incarnation>>,
    pub(super) operations: BTreeMap<OperationId, StampedEntity<Operation>>,
    pub(super) sessions: BTreeMap<SessionId, StampedEntity<Session>>,
    pub(super) policies: BTreeMap<PolicyName, StampedEntity<PolicySpec>>,
    pub(super) volumes: BTreeMap<VolumeName, StampedEntity<Volume>>,
    pub(super) requests: BTreeMap<chancery_events::id::RequestId, StampedEntity<FoldedRequest>>,
}

impl Operation {
    /// Name of the operation's state.
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

/// Whether the kind wants its replica to run.
pub(super) const fn brings_up(kind: OperationKind) -> bool {
    match kind {
        OperationKind::Create
        | OperationKind::Update
        | OperationKind::Relocate
        | OperationKind::Restart
        | OperationKind::Reboot
        | OperationKind::Start => true,
        OperationKind::Stop | OperationKind::Delete => false,
    }
}

impl Incarnation {
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.progress, IncarnationProgress::Ended(_))
    }
}

impl VisibleEntities {
    /// Returns the replica's incarnation that counts.
    pub(super) fn active(&self, replica: &Replica) -> Option<(IncarnationId, &StampedEntity<Incarnation>)> {
        replica.active.and_then(|id| Some((id, self.incarnations.get(&id)?)))
    }

    /// Returns the resources that an incarnation reserves on its node: only the difference until a followed
    /// incarnation there ended.
    pub(super) fn holds(&self, incarnation: &Incarnation) -> Resources {
        let needs = incarnation.fact.resources;
        let followed = incarnation.fact.starts_after.and_then(|id| self.incarnations.get(&id));
        match followed.filter(|old| !old.is.is_over() && old.is.fact.node == incarnation.fact.node) {
            Some(old) => needs.less(old.is.fact.resources),
            None => needs,
        }
    }

    /// Returns the replica's open operations, the oldest first.
    pub(super) fn open(&self, replica: &ReplicaName) -> Vec<(OperationId, &Operation)> {
        let all = self.operations.iter().map(|(id, kept)| (*id, &kept.is));
        all.filter(|(_, operation)| operation.replica == *replica && operation.end.is_none()).collect()
    }
}
