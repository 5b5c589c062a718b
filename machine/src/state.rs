//! Entities of a fleet, as folded from the facts so far. The rules of an entity are in its own module; the
//! shapes are here, because snapshots and rows consist of them.
//!
//! Shapes are encoded by position (bincode): serialization must not skip a field.

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_events::digest::Digest;
use chancery_events::fact::{
    ApprovalActor, ApprovalProposal, CommandEffect, DeploymentEnd, IncarnationEnd, OperationEnd,
    RequestEffect, RequestEnd, RequestedChange, Requester, RestartBackoff, RollbackReference,
    UnschedulableReason,
};
use chancery_events::id::{
    ExecutorStoreId, IncarnationId, OperationId, Position, RequestId, SessionId, VolumeId,
};
use chancery_events::lifecycle::{SetWord, WillWord};
use chancery_events::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, DomainName, ExecutorName, NodeName,
    PlanName, PolicyName, ReplicaName, StorageClass, VolumeName,
};
use chancery_events::observation::{ProcessInfo, SessionEnd};
use chancery_events::resources::Resources;
use chancery_events::spec::{
    BalancePolicy, CapabilitySpec, ClusterActivity, ClusterRuntime, ClusterSpec, DeploymentSpec,
    DisruptionSpec, DisruptionState, NodeSpec, NodeState, OperationKind, PolicySpec, ProbePurpose,
    VolumeDeletion,
};
use chancery_events::time::Time;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::fleet::IndexedEntity;
use crate::index::FleetIndex;
use crate::index_keys::{
    DeploymentIndexKey, IncarnationIndexKey, IndexChange, NotIndexed, OperationIndexKey, PlanIndexKey,
    ReplicaIndexKey, RequestIndexKey, VolumeIndexKey, WholeEntity,
};
use crate::meta::{EntityMeta, FactStamp};
pub use crate::plan::PlanSpecs;

mod extras;
mod predicates;

pub use extras::{BoxedExtras, IncarnationExtras};

/// Format of fleet snapshots; changes with the shape or kinds of entities. Other snapshots are not read.
pub const IMAGE_FINGERPRINT: &str = "fleet-image-21";

/// Set of nodes behind one orchestrator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cluster {
    /// Cluster name.
    pub name: ClusterName,
    /// Cluster specification.
    pub spec: ClusterSpec,
    /// Whether nodes can be allocated to the cluster and placements made in it.
    pub activity: ClusterActivity,
    /// Live session of the cluster.
    pub session: Option<SessionId>,
    /// Executor store that may record objects of this cluster.
    pub store: Option<ClusterStore>,
    /// Cluster metadata.
    pub meta: EntityMeta,
}

/// Executor store of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterStore {
    /// Store id.
    pub id: ExecutorStoreId,
    /// Executor that used the store last.
    pub executor: ExecutorName,
    /// Position at which the last session closed: the store has no record of incarnations first commanded
    /// later. `None` while a session is open.
    pub until: Option<Position>,
}

/// Feature that a node may have.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Capability {
    /// Capability name.
    pub name: CapabilityName,
    /// Capability specification.
    pub spec: CapabilitySpec,
    /// Whether the capability counts in placement.
    pub activity: ClusterActivity,
    /// Capability metadata.
    pub meta: EntityMeta,
}

/// Host with capacity for placements.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Node name.
    pub name: NodeName,
    /// Node specification.
    pub spec: Arc<NodeSpec>,
    /// Node state.
    pub state: NodeState,
    /// Cluster of the node, while allocating or allocated.
    pub cluster: Option<ClusterName>,
    /// Planned and past disruptions of the node.
    pub disruptions: BTreeMap<DisruptionName, Disruption>,
    /// Expunge that did not wait for the approval that policies require.
    pub bypass: Option<ApprovalBypass>,
    /// Node metadata.
    pub meta: EntityMeta,
}

/// Approval that was bypassed (break-glass).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApprovalBypass {
    /// Actor who bypassed the approval.
    pub requested_by: Actor,
    /// Reason, for people.
    pub reason: String,
    /// Policies that required the approval of another person.
    pub policies: Vec<PolicyName>,
}

/// Planned interference with a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Disruption {
    /// Disruption specification.
    pub spec: DisruptionSpec,
    /// Disruption state.
    pub state: DisruptionState,
    /// Actor who approved the disruption.
    pub approved_by: Option<Actor>,
    /// Position and time of the last state change.
    pub since: FactStamp,
}

/// Rule about approvals, in addition to the rules of plans.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// Policy name.
    pub name: PolicyName,
    /// Policy specification.
    pub spec: Arc<PolicySpec>,
    /// Policy metadata.
    pub meta: EntityMeta,
}

/// Workload: the processes to run, and where they may run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Plan name.
    pub name: PlanName,
    /// Number of the current version, from 1; each edit adds 1.
    pub generation: u32,
    /// Current version, and earlier versions that a deployment still refers to.
    pub specs: PlanSpecs,
    /// Whether the plan accepts deployments.
    pub activity: ClusterActivity,
    /// Deployments of the plan, oldest first.
    pub deployments: Vec<DeploymentName>,
    /// Deployment being carried out.
    pub current: Option<DeploymentName>,
    /// Queued deployment.
    pub next: Option<DeploymentName>,
    /// Reasons why operations have no placement.
    pub unschedulable: Vec<UnschedulableReason>,
    /// Number of operations that ever ended, by kind and outcome.
    pub totals: BTreeMap<(OperationKind, String), u64>,
    /// Last move of a replica by a disruption, if it failed.
    pub setback: Option<DrainBackoff>,
    /// Whether a move would make the spread more even, when the plan last had no other work.
    pub balance: BalancePolicy,
    /// Rebalance in progress.
    pub rebalance: Option<RebalanceProgress>,
    /// Actor who requested the deletion of the plan and all its entities.
    pub deletion_requested_by: Option<Actor>,
    /// Reason why the plan is quarantined.
    pub quarantined: Option<String>,
    /// Plan metadata.
    pub meta: EntityMeta,
}

/// Rebalance in progress: replicas of a plan are moved until its spread is even.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RebalanceProgress {
    /// Actor on whose behalf the moves are requested.
    pub requested_by: Actor,
    /// Reason why no further move is made: a move failed, was rejected or expired.
    pub stops: Option<String>,
}

/// Failed move by a disruption.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DrainBackoff {
    /// Time before which no disruption moves a replica of the plan.
    pub until: Time,
    /// Number of consecutive failed moves.
    pub consecutive: u32,
    /// Incarnation that failed to move away.
    pub run: IncarnationId,
}

/// States of a deployment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum DeploymentState {
    /// Queued behind another deployment.
    Pending,
    /// Being carried out.
    InProgress,
    /// Starts nothing until resumed.
    Paused,
    /// Starts nothing; ends with this outcome after running operations have settled.
    Halted(DeploymentEnd),
    /// Ended with this outcome.
    Ended(DeploymentEnd),
}

/// Version of a plan's payloads, and a replica count.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Deployment {
    /// Plan that the deployment belongs to.
    pub plan: PlanName,
    /// Deployment name, unique in the plan.
    pub name: DeploymentName,
    /// Plan generation of the deployment.
    pub generation: u32,
    /// Deployment specification.
    pub spec: Arc<DeploymentSpec>,
    /// Digest of the replica version: equal for deployments between which no replica needs an update.
    pub version: Digest,
    /// Deployment state.
    pub state: DeploymentState,
    /// Set of replicas that is active, old or new.
    pub active_set: SetWord,
    /// Time by which the new set must be ready.
    pub deadline: Option<Time>,
    /// Fact by which an operation of the deployment last succeeded.
    pub last_success: Option<FactStamp>,
    /// Time of the last progress: the start, a succeeded or approved operation, a replica that became ready,
    /// the cut-over, or the end of a pause.
    pub progressed: Option<Time>,
    /// Time at which the deployment was reported stalled, if it has made no progress since.
    pub stalled: Option<Time>,
    /// Rollback target, if the deployment is a rollback.
    pub rollback: Option<RollbackReference>,
    /// Actor who requested the deployment.
    pub requested_by: Actor,
    /// Deployment metadata.
    pub meta: EntityMeta,
}

/// Summary of an incarnation that has not ended, kept in its replica.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct IncarnationRef {
    /// Incarnation id.
    pub incarnation: IncarnationId,
    /// Node of the incarnation.
    pub node: NodeName,
    /// Update domain of the node.
    pub domain: DomainName,
    /// Whether the incarnation runs, and all its processes were ready in the last report.
    pub healthy: bool,
    /// Whether the incarnation was asked to end or was replaced: the replica does not remain on the node.
    pub ending: bool,
}

/// Summary of an operation that has not ended, kept in its replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OpenOperation {
    /// Operation id.
    pub id: OperationId,
    /// Operation kind.
    pub kind: OperationKind,
    /// Whether the operation was approved and dequeued: stopping it takes more than a request.
    pub started: bool,
    /// Whether another version replaces the operation: it has no reservation and is no deployment's create.
    pub replaceable: bool,
    /// Whether the operation has started to restore the replica after an aborted or failed operation.
    pub regains: bool,
}

/// Member of a plan's service.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Replica {
    /// Replica name.
    pub name: ReplicaName,
    /// Plan that the replica belongs to.
    pub plan: PlanName,
    /// Deployment whose version the replica has.
    pub deployment: DeploymentName,
    /// Desired state of the replica.
    pub desired: WillWord,
    /// Active incarnation, if it has not ended.
    pub active: Option<IncarnationRef>,
    /// Secondary incarnation that has not ended: the replacement of the active one, or its predecessor.
    pub secondary: Option<Box<IncarnationRef>>,
    /// Operation that has not ended, and may have started.
    pub operation: Option<OpenOperation>,
    /// Operation queued behind `operation`: a stop or delete.
    pub queued_operation: Option<OpenOperation>,
    /// Whether a failed move by a disruption stopped the replica, and it does not run again yet.
    pub down_after_drain: bool,
    /// Whether the replica is started again whatever its restart policy becomes, until an operation starts on
    /// it. The incarnation was stopped for an operation that was aborted, or failed under a policy that
    /// restarts it.
    pub recovers: bool,
    /// Next automatic restart by the plan's `restart`, unless a requested operation starts before.
    pub next_restart: Option<RestartBackoff>,
    /// Last of consecutive automatic restarts.
    pub last_restart: Option<RestartBackoff>,
    /// End of the last incarnation.
    pub last_end: Option<Box<IncarnationEnd>>,
    /// Retained operations of the replica, oldest first. Most replicas have one.
    pub operations: SmallVec<[OperationId; 1]>,
    /// Retained incarnations of the replica, oldest first.
    pub incarnations: SmallVec<[IncarnationId; 1]>,
    /// Replica metadata.
    pub meta: EntityMeta,
}

/// States of an operation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum OperationState {
    /// Without placement yet.
    Preparing,
    /// Waiting for approval.
    PendingApproval(ApprovalProposal),
    /// Approved and queued.
    Approved,
    /// Approved, and being carried out.
    Running,
    /// Ended with this outcome.
    Ended(OperationEnd),
}

/// Approved change of one replica.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Operation id.
    pub id: OperationId,
    /// Replica that the operation changes.
    pub replica: ReplicaName,
    /// Plan of the replica.
    pub plan: PlanName,
    /// Operation kind.
    pub kind: OperationKind,
    /// Deployment that requested the operation.
    pub deployment: Option<DeploymentName>,
    /// Requester of the operation, if not a deployment.
    pub requested_by: Option<Box<Requester>>,
    /// Deployment whose coordinates and generation the replica has after success.
    pub version: DeploymentName,
    /// Only acceptable node, if the request names one.
    pub required_node: Option<NodeName>,
    /// Purpose, if the kind and the requester do not imply it.
    pub purpose: Option<ProbePurpose>,
    /// Operation state.
    pub state: OperationState,
    /// Whether volumes restrict the placement: those that the replica owns, or claims by name.
    pub volume_bound: bool,
    /// Hash of the proposed change, once known.
    pub hash: Option<Digest>,
    /// Approver, and the position and time of the approval.
    pub approved: Option<(ApprovalActor, FactStamp)>,
    /// Incarnation that the operation starts, changes or ends.
    pub incarnation: Option<IncarnationId>,
    /// Actual or planned node of that incarnation.
    pub node: Option<NodeName>,
    /// Update domain of that node.
    pub domain: Option<DomainName>,
    /// Whether the new incarnation is ready and active: the operation only has to end the predecessor.
    pub is_past_return: bool,
    /// Operation metadata.
    pub meta: EntityMeta,
}

/// States of an incarnation. See [`crate::incarnation`] for the table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum IncarnationState {
    /// Reserved on a node; no command exists.
    Reserved,
    /// Start requested.
    Creating,
    /// All processes started.
    Starting,
    /// Ready at least once.
    Running,
    /// In-place update to this deployment requested.
    Updating(DeploymentName),
    /// End requested; ends with this result after proof.
    Stopping(Box<IncarnationEnd>),
    /// Ended with this result.
    Ended(Box<IncarnationEnd>),
}

/// Command without an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PendingCommand {
    /// Requested effect.
    pub effect: CommandEffect,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Time before which the command is not sent.
    pub not_before: Time,
}

/// Instance of a replica, placed on one node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Incarnation {
    /// Incarnation id.
    pub id: IncarnationId,
    /// Replica that the incarnation belongs to.
    pub replica: ReplicaName,
    /// Plan of the replica.
    pub plan: PlanName,
    /// Deployment that gives the coordinates and generation.
    pub deployment: DeploymentName,
    /// Node of the incarnation.
    pub node: NodeName,
    /// Cluster of the node.
    pub cluster: ClusterName,
    /// Operation that starts or started the incarnation.
    pub operation: OperationId,
    /// Plan generation whose policy determined the placement.
    pub placed_by: u32,
    /// Incarnation state.
    pub state: IncarnationState,
    /// Resources that the incarnation needs on its node.
    pub resources: Resources,
    /// Predecessor and storage of the incarnation.
    pub ties: BoxedExtras,
    /// Time at which the incarnation was first ready.
    pub ready_since: Option<Time>,
    /// Time since which the incarnation is unready, after it was ready.
    pub unready: Option<Time>,
    /// Session in which the deadline of the unready incarnation was set.
    pub unready_session: Option<SessionId>,
    /// Processes as last reported.
    pub processes: Vec<ProcessInfo>,
    /// Whether all processes were ready in the last report.
    pub ready: bool,
    /// Number of commands issued.
    pub revision: u32,
    /// Position of the first command.
    pub first_command: Option<Position>,
    /// Effect of the last command.
    pub last_effect: Option<CommandEffect>,
    /// Last command, while it has no outcome.
    pub command: Option<PendingCommand>,
    /// Time at which the current state times out.
    pub deadline: Option<Time>,
    /// Whether the incarnation starts as soon as its volumes are available: it waits for nothing else.
    pub awaits_volumes: bool,
    /// Incarnation metadata.
    pub meta: EntityMeta,
}

/// States of a volume. See [`crate::volume`] for the table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VolumeState {
    /// Creation requested.
    Creating,
    /// Created and available.
    Ready,
    /// Lost without a request to destroy it, with the evidence.
    Lost(String),
    /// Destroy requested.
    Destroying,
}

/// Named storage whose data outlives the incarnations that use it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// Volume id.
    pub id: VolumeId,
    /// Volume name.
    pub name: VolumeName,
    /// Cluster of the volume, which never changes.
    pub cluster: ClusterName,
    /// Node whose storage the volume uses.
    pub node: NodeName,
    /// Storage class.
    pub class: StorageClass,
    /// Capacity in bytes.
    pub capacity: u64,
    /// Replica that owns the volume.
    pub owner: Option<ReplicaName>,
    /// Action when the owner is deleted.
    pub on_delete: VolumeDeletion,
    /// Volume state.
    pub state: VolumeState,
    /// Requester of the deletion, if the volume will be deleted.
    pub deletion_requested_by: Option<Requester>,
    /// Incarnation that uses the volume.
    pub used_by: Option<IncarnationId>,
    /// Whether the volume may contain data: it is a snapshot, or an incarnation that uses it was started.
    pub may_hold_data: bool,
    /// Name and id of the volume whose content the volume was created with, if it is a snapshot.
    pub source: Option<(VolumeName, VolumeId)>,
    /// Number of commands issued.
    pub revision: u32,
    /// Last command, while it has no outcome.
    pub command: Option<PendingCommand>,
    /// Last error of the volume.
    pub error: Option<String>,
    /// Volume metadata.
    pub meta: EntityMeta,
}

/// States of an approval request. See [`crate::request`] for the table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum RequestState {
    /// Waiting for approval.
    Pending {
        /// Expiry time of the request.
        expires: Time,
    },
    /// Approved, and carried out in the same commit.
    Approved {
        /// Actor who approved the request.
        approved_by: Actor,
    },
    /// Ended without the change.
    Ended(RequestEnd),
}

/// Intent that waits for approval as a whole, or waited.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// Request id.
    pub id: RequestId,
    /// Requested change.
    pub change: RequestedChange,
    /// Actor who requested the change.
    pub requested_by: Actor,
    /// Replicas that the change ends or moves, as shown.
    pub effects: Vec<RequestEffect>,
    /// Policies that require another person; any person can approve if empty.
    pub policies: Vec<PolicyName>,
    /// Hash of the change and of everything that it ends or moves.
    pub hash: Digest,
    /// Request state.
    pub state: RequestState,
    /// Request metadata.
    pub meta: EntityMeta,
}

/// Lease of an executor on a cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Session {
    /// Session id.
    pub id: SessionId,
    /// Cluster of the session.
    pub cluster: ClusterName,
    /// Executor name.
    pub executor: ExecutorName,
    /// Runtime that the executor drives.
    pub runtime: ClusterRuntime,
    /// Executor store of the session.
    pub store: ExecutorStoreId,
    /// Reason why the session ended.
    pub end: Option<SessionEnd>,
    /// Session metadata.
    pub meta: EntityMeta,
}

macro_rules! indexed {
    ($($entity:ident $marks:ty $(, |$index:ident, $this:ident, $both:ident, $at:ident| $follow:expr)?;)*) => {$(
        impl IndexedEntity for $entity {
            type Marks = $marks;
            $(fn index($index: &mut FleetIndex, $this: &$entity, $both: IndexChange<'_, $marks>, $at: Position) {
                $follow
            })?
        }
    )*};
}

indexed! {
    Cluster WholeEntity<Cluster>, |i, _this, both, _at| i.catalogue(both[1].map(|new| &new.0.meta));
    Capability WholeEntity<Capability>, |i, _this, both, _at| i.catalogue(both[1].map(|new| &new.0.meta));
    Node WholeEntity<Node>, |i, _this, both, _at| i.node(WholeEntity::both(both));
    Plan PlanIndexKey, |i, this, both, _at| i.plan(this, both);
    Deployment DeploymentIndexKey, |i, this, both, _at| i.deployment(this, both);
    Replica ReplicaIndexKey, |i, this, both, _at| i.replica(this, both);
    Incarnation IncarnationIndexKey, |i, this, both, at| i.incarnation(this, both, at);
    Operation OperationIndexKey, |i, this, both, _at| i.operation(this, both);
    Session NotIndexed;
    Policy WholeEntity<Policy>, |i, _this, both, _at| i.policy(WholeEntity::both(both));
    Volume VolumeIndexKey, |i, this, both, at| i.volume(this, both, at);
    ApprovalRequest RequestIndexKey, |i, this, both, _at| i.request(this, both);
}
