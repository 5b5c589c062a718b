//! Rows that readers see of each entity: a function of the state, so that a rebuild gives the same rows.
//!
//! The same types are answers in JSON (documented in the `OpenAPI` description) and values in the store. The
//! store has a positional codec: no field may be left out.

use std::collections::BTreeMap;

use chancery_events::digest::Digest;
use chancery_events::fact::{
    ApprovalActor, CommandEffect, RequestEffect, RequestedChange, Requester, RollbackReference,
    UnschedulableReason,
};
use chancery_events::id::{
    ExecutorStoreId, IncarnationId, OperationId, Position, RequestId, SessionId, VolumeId,
};
pub use chancery_events::lifecycle::{
    DeploymentStatus, OperationStatus, PhaseStatus, RequestStatus, SetWord, WillWord,
};
use chancery_events::name::{
    Actor, CapabilityName, CapabilityType, ClusterName, DeploymentName, DisruptionName, DomainName,
    ExecutorName, KeyName, NodeName, PlanName, PolicyName, ReplicaName, StorageClass, VolumeName, ZoneName,
};
use chancery_events::observation::ProcessInfo;
use chancery_events::resources::Resources;
use chancery_events::spec::{
    BalancePolicy, ClusterActivity, ClusterRuntime, DeploymentStrategy, DisruptionAction, DisruptionState,
    KubernetesSpec, NodeState, OperationKind, PayloadCoordinates, PlanSpec, PolicySpec, VolumeDeletion,
};
use chancery_events::subject::Subject;
use chancery_events::time::{Time, shown};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

chancery_events::words! {
    /// State of an incarnation, as readers see it.
    IncarnationStatus {
        /// The incarnation has its reservation, and its start was not requested yet.
        Reserved = "reserved",
        /// The start of the incarnation was requested.
        Creating = "creating",
        /// All processes of the incarnation were started, and the incarnation was not ready yet.
        Starting = "starting",
        /// The incarnation was ready; `ready` has its current readiness.
        Running = "running",
        /// The guest of the incarnation was reset after it was ready, and is not ready again.
        Rebooting = "rebooting",
        /// An update in place was requested, or a failed one is being reverted.
        Updating = "updating",
        /// The end of the incarnation was requested, and is not proved yet.
        Stopping = "stopping",
        /// The incarnation ended on request, or cleanly on its own.
        Destroyed = "destroyed",
        /// The guest of the incarnation powered itself off without a request.
        PoweredOff = "powered_off",
        /// The incarnation ended in another way; its message has the reason.
        Failed = "failed",
        /// The incarnation was never started, or its start was given up; its message has the reason.
        Unwound = "unwound",
    }
    /// Whether an executor is connected. `unknown` does not show the state of the incarnation: only proof
    /// ends it.
    Reachability {
        /// The cluster has an open session, or no executor is needed to know the state.
        Known = "known",
        /// The cluster has no open session: observed fields are as last reported.
        Unknown = "unknown",
    }
    /// State of a volume, as readers see it.
    VolumeStatus {
        /// The creation of the volume was requested.
        Creating = "creating",
        /// The volume exists.
        Ready = "ready",
        /// The volume existed, and does not exist now: it was removed, or its node was expunged.
        Lost = "lost",
        /// The destruction of the volume and its data was requested.
        Destroying = "destroying",
    }
    /// Kind of a change that waits for approval.
    RequestedKind {
        /// Deletion of a plan with its replicas.
        PlanDelete = "plan_delete",
        /// Deletion of a node after its replicas were moved away.
        NodeDelete = "node_delete",
        /// Expunge of a node: everything on the node is declared lost.
        NodeExpunge = "node_expunge",
        /// Approval of a disruption.
        DisruptionApprove = "disruption_approve",
        /// Change of a plan that makes approval weaker.
        PlanApply = "plan_apply",
        /// Creation or change of a policy that makes approval weaker.
        PolicyApply = "policy_apply",
        /// Deletion of a policy that makes approval weaker.
        PolicyDelete = "policy_delete",
        /// Deletion of a volume with its data.
        VolumeDelete = "volume_delete",
    }
    /// State of a session, as readers see it.
    SessionStatus {
        /// The session continues: its executor sends messages.
        Open = "open",
        /// The executor sent no message for the lease.
        Expired = "expired",
        /// The executor ended the session, as when it is stopped.
        Left = "left",
        /// The cluster was deleted.
        ClusterDeleted = "cluster_deleted",
    }
}

impl IncarnationStatus {
    /// Whether the incarnation has ended, and has no reservation.
    pub const fn is_over(self) -> bool {
        match self {
            IncarnationStatus::Reserved
            | IncarnationStatus::Creating
            | IncarnationStatus::Starting
            | IncarnationStatus::Running
            | IncarnationStatus::Rebooting
            | IncarnationStatus::Updating
            | IncarnationStatus::Stopping => false,
            IncarnationStatus::Destroyed
            | IncarnationStatus::PoweredOff
            | IncarnationStatus::Failed
            | IncarnationStatus::Unwound => true,
        }
    }
}

macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $type),*,
            /// Number of facts about the entity so far.
            pub version: u64,
            /// Time at which the entity was created.
            #[serde(with = "shown")]
            #[schemars(with = "String")]
            pub created_at: Time,
            /// Time at which the entity last changed.
            #[serde(with = "shown")]
            #[schemars(with = "String")]
            pub updated_at: Time,
            /// Position of the fact that last changed the entity.
            pub position: Position,
        }
    )*};
}

rows! {
    /// Cluster: nodes behind one orchestrator.
    ClusterRow {
        /// Name of the cluster.
        name: ClusterName,
        /// Runtime of the cluster: which orchestrator its executor drives.
        runtime: ClusterRuntime,
        /// Properties of the Kubernetes cluster, with runtime `kubernetes`.
        kubernetes: Option<KubernetesSpec>,
        /// Whether the cluster takes new placements.
        activity: ClusterActivity,
        /// Executor with the live session of the cluster.
        executor: Option<ExecutorName>,
        /// Live session of the cluster.
        session: Option<SessionId>,
        /// Number of nodes in the cluster.
        nodes: u64,
    }
    /// Capability that nodes may have.
    CapabilityRow {
        /// Name of the capability.
        name: CapabilityName,
        /// Type of the capability.
        #[serde(rename = "type")]
        type_name: CapabilityType,
        /// Score of the capability; higher is better within a type.
        score: u32,
        /// Whether matchers count the capability.
        activity: ClusterActivity,
    }
    /// Machine, or a share of it, with capacity for incarnations.
    NodeRow {
        /// Name of the node.
        name: NodeName,
        /// State of the node.
        state: NodeState,
        /// Cluster that the node belongs to.
        cluster: Option<ClusterName>,
        /// Update domain of the node.
        domain: DomainName,
        /// Zone in which the node is located.
        zone: Option<ZoneName>,
        /// Labels of the node, for selectors.
        labels: BTreeMap<KeyName, String>,
        /// Total resources of the node.
        resources: Resources,
        /// Resources that are withheld from placements.
        reserved: Resources,
        /// Resources that are free for placements.
        remaining: Resources,
        /// Capabilities of the node, by name.
        capabilities: Vec<CapabilityName>,
        /// Storage of the node, by class.
        storage: Vec<StorageRow>,
        /// Number of incarnations with a reservation on the node.
        incarnations: u64,
        /// Disruptions of the node: scheduled, approved and completed.
        disruptions: Vec<DisruptionRow>,
        /// Expunge that bypassed the approval that policies require (break-glass).
        bypass: Option<BypassRow>,
    }
    /// Plan of a service.
    PlanRow {
        /// Name of the plan.
        name: PlanName,
        /// Number of the plan's specification: 1 when it is created, one more with each edit.
        generation: u32,
        /// Whether the plan takes deployments.
        activity: ClusterActivity,
        /// Spec of the plan.
        spec: PlanSpec,
        /// Deployment that is being carried out.
        current: Option<DeploymentName>,
        /// Deployment that is queued behind the current one.
        next: Option<DeploymentName>,
        /// Number of replicas by phase, and `total`.
        replicas: BTreeMap<String, u64>,
        /// Number of operations by kind, then by state: `preparing`, `pending_approval`, `approved` and
        /// `running` now, and all outcomes so far.
        operations: BTreeMap<String, BTreeMap<String, u64>>,
        /// Reasons why operations have no placement, by node.
        unschedulable: Vec<UnschedulableReason>,
        /// Spread of the replicas over update domains.
        spread: SpreadRow,
        /// Reason for the state of the plan.
        message: String,
    }
    /// Deployment of a plan.
    DeploymentRow {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
        /// Generation of the plan that the deployment uses.
        generation: u32,
        /// Desired number of replicas.
        count: u32,
        /// Version of each payload.
        coordinates: PayloadCoordinates,
        /// Strategy of the deployment.
        strategy: DeploymentStrategy,
        /// Time without progress after which the deployment is stalled, in milliseconds.
        progress_deadline: u64,
        /// Whether the deployment is rolled back when it fails or is stalled.
        auto_rollback: bool,
        /// Deployment whose version a rollback deploys again, and the rule that requested the rollback.
        rollback: Option<RollbackReference>,
        /// Actor who requested the deployment.
        requested_by: Actor,
        /// State of the deployment.
        state: DeploymentStatus,
        /// Time of the last progress; absent until the deployment is started.
        #[serde(with = "shown::option")]
        #[schemars(with = "Option<String>")]
        last_progress_at: Option<Time>,
        /// Time at which the deployment was found stalled; absent if it has made progress since.
        #[serde(with = "shown::option")]
        #[schemars(with = "Option<String>")]
        stalled_at: Option<Time>,
        /// Set of replicas that counts, while new replicas run alongside old ones.
        active_set: SetWord,
        /// Reason for the state of the deployment.
        message: String,
    }
    /// Replica of a plan.
    ReplicaRow {
        /// Name of the replica.
        name: ReplicaName,
        /// Plan that the replica belongs to.
        plan: PlanName,
        /// Deployment whose version the replica runs.
        deployment: DeploymentName,
        /// Desired state of the replica.
        desired: WillWord,
        /// Phase of the replica.
        phase: PhaseStatus,
        /// Whether the replica runs and all its processes are ready.
        ready: bool,
        /// Whether an executor of the cluster is connected; if not, observed fields are as last reported.
        reachability: Reachability,
        /// Node of the active incarnation.
        node: Option<NodeName>,
        /// Active incarnation of the replica, which has not ended.
        incarnation: Option<IncarnationId>,
        /// Other incarnation of the replica: its replacement until that is active, then its predecessor.
        secondary: Option<SecondaryRow>,
        /// Processes of the active incarnation.
        processes: Vec<ProcessInfo>,
        /// Operation of the replica that has not ended.
        operation: Option<OperationId>,
        /// Time of the next automatic restart by the plan's rule.
        #[serde(with = "shown::option")]
        #[schemars(with = "Option<String>")]
        next_restart: Option<Time>,
        /// Time since which the active incarnation is not ready, if it was ready before.
        #[serde(with = "shown::option")]
        #[schemars(with = "Option<String>")]
        unready_at: Option<Time>,
        /// Reason for the state of the replica.
        message: String,
    }
    /// Execution of a replica on one node.
    IncarnationRow {
        /// Id of the incarnation.
        id: IncarnationId,
        /// Replica that the incarnation belongs to.
        replica: ReplicaName,
        /// Plan that the incarnation belongs to.
        plan: PlanName,
        /// Deployment whose version the incarnation runs.
        deployment: DeploymentName,
        /// Node of the incarnation.
        node: NodeName,
        /// Cluster of the node.
        cluster: ClusterName,
        /// State of the incarnation.
        state: IncarnationStatus,
        /// Whether all processes of the incarnation are ready.
        ready: bool,
        /// Whether an executor of the cluster is connected; if not, observed fields are as last reported.
        reachability: Reachability,
        /// Reserved resources.
        resources: Resources,
        /// Reserved storage in bytes, by class, for volumes that do not exist yet.
        reserved_storage: BTreeMap<StorageClass, u64>,
        /// Volumes that the incarnation uses, from its start on.
        mounts: Vec<VolumeName>,
        /// Processes of the incarnation.
        processes: Vec<ProcessInfo>,
        /// Number of commands so far.
        revision: u32,
        /// Operation that started the incarnation, or will.
        operation: OperationId,
        /// Incarnation that must end before this incarnation is started.
        starts_after: Option<IncarnationId>,
        /// Affinity that the placement violates.
        affinity_violated: Option<String>,
        /// Time since which the incarnation is not ready, if it was ready before.
        #[serde(with = "shown::option")]
        #[schemars(with = "Option<String>")]
        unready_at: Option<Time>,
        /// Reason for the state of the incarnation.
        message: String,
    }
    /// Operation on a replica.
    OperationRow {
        /// Id of the operation.
        id: OperationId,
        /// Replica that the operation changes.
        replica: ReplicaName,
        /// Plan that the replica belongs to.
        plan: PlanName,
        /// Kind of the operation.
        kind: OperationKind,
        /// Deployment that requested the operation.
        deployment: Option<DeploymentName>,
        /// Requester of the operation, if no deployment requested it.
        requested_by: Option<Requester>,
        /// Deployment whose version the replica runs when the operation has succeeded.
        target_deployment: DeploymentName,
        /// State of the operation.
        state: OperationStatus,
        /// Hash of what the operation does, which an approval must name.
        hash: Option<Digest>,
        /// Node on which the operation takes effect.
        node: Option<NodeName>,
        /// Incarnation that the operation starts or ends.
        incarnation: Option<IncarnationId>,
        /// Actor or rule that approved the operation.
        approved_by: Option<ApprovalActor>,
        /// Reason for the state of the operation.
        message: String,
    }
    /// Session of an executor.
    SessionRow {
        /// Id of the session.
        id: SessionId,
        /// Cluster of the session.
        cluster: ClusterName,
        /// Name of the executor.
        executor: ExecutorName,
        /// Runtime that the executor drives.
        runtime: ClusterRuntime,
        /// Executor store that may record objects of the cluster.
        store: ExecutorStoreId,
        /// State of the session.
        state: SessionStatus,
    }
    /// Command that an executor has not answered yet: a request for one effect on an incarnation.
    CommandRow {
        /// Incarnation that the command is for; with the revision, the name of the command.
        incarnation: IncarnationId,
        /// Revision of the incarnation.
        revision: u32,
        /// Effect that the command requests.
        effect: CommandEffect,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Node of the incarnation.
        node: NodeName,
        /// Cluster of the node.
        cluster: ClusterName,
        /// Replica that the incarnation belongs to.
        replica: ReplicaName,
    }
    /// Policy about approvals.
    PolicyRow {
        /// Name of the policy.
        name: PolicyName,
        /// Spec of the policy.
        spec: PolicySpec,
    }
    /// Volume on a node.
    VolumeRow {
        /// Name of the volume.
        name: VolumeName,
        /// Id of the volume.
        id: VolumeId,
        /// State of the volume.
        state: VolumeStatus,
        /// Cluster of the volume, which never changes.
        cluster: ClusterName,
        /// Node whose storage the volume is counted in.
        node: NodeName,
        /// Storage class of the volume.
        class: StorageClass,
        /// Capacity in bytes.
        capacity: u64,
        /// Replica that owns the volume.
        owner: Option<ReplicaName>,
        /// Action on the volume when its owner is deleted.
        on_delete: VolumeDeletion,
        /// Replica that uses the volume.
        replica: Option<ReplicaName>,
        /// Incarnation that uses the volume.
        incarnation: Option<IncarnationId>,
        /// Volume of which the volume is a snapshot.
        source: Option<VolumeName>,
        /// Requester of the deletion of the volume, if it was requested.
        deletion_requested_by: Option<Requester>,
        /// Reason for the state of the volume.
        message: String,
    }
    /// Approval request: a change that waits, or waited, for approval as a whole.
    RequestRow {
        /// Id of the request.
        id: RequestId,
        /// State of the request.
        state: RequestStatus,
        /// Kind of the change.
        kind: RequestedKind,
        /// Entity that would change.
        subject: Subject,
        /// Change, with what it replaces.
        change: RequestedChange,
        /// Replicas that the change ends or moves, by plan, as shown.
        effects: Vec<RequestEffect>,
        /// Actor who asked for the change.
        requested_by: Actor,
        /// Policies that require the approval of another person; any person can approve if empty.
        policies: Vec<PolicyName>,
        /// Hash of the change and of everything that it ends or moves.
        hash: Digest,
        /// Time at which the request expires, while it is pending.
        #[serde(with = "shown::option")]
        #[schemars(with = "Option<String>")]
        expires: Option<Time>,
        /// Actor who approved or rejected the request.
        decided: Option<Actor>,
        /// Approval that the request waits for, or the reason for its state.
        message: String,
    }
}

/// Other incarnation of a replica.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SecondaryRow {
    /// Id of the other incarnation.
    pub incarnation: IncarnationId,
    /// Node of the other incarnation.
    pub node: NodeName,
    /// State of the other incarnation.
    pub state: IncarnationStatus,
}

/// A disruption of a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DisruptionRow {
    /// Name of the disruption.
    pub name: DisruptionName,
    /// State of the disruption.
    pub state: DisruptionState,
    /// Action on the replicas of the node.
    pub action: DisruptionAction,
    /// Time at which the drain of the node starts, if it is drained.
    #[serde(with = "shown::option")]
    #[schemars(with = "Option<String>")]
    pub start: Option<Time>,
    /// Reason for the disruption, for people.
    pub reason: String,
    /// Actor who approved the disruption.
    pub approved_by: Option<Actor>,
    /// Time at which the disruption entered its state.
    #[serde(with = "shown")]
    #[schemars(with = "String")]
    pub since: Time,
}

/// Expunge of a node that bypassed the approval that policies require.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BypassRow {
    /// Actor who bypassed the approval.
    pub requested_by: Actor,
    /// Reason, for people.
    pub reason: String,
    /// Policies that required the approval of another person.
    pub policies: Vec<PolicyName>,
}

/// Spread of a plan's replicas over update domains, as it is when everything under way has succeeded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SpreadRow {
    /// Number of replicas by update domain, without those that are being deleted or stopped.
    pub domains: BTreeMap<DomainName, u32>,
    /// Whether a move that is allowed would make the spread more even. The spread is
    /// checked while no other work of the plan is due, at most every ten seconds.
    pub balance: BalancePolicy,
    /// Actor on whose behalf a rebalance is in progress.
    pub rebalance_requested_by: Option<Actor>,
}

/// Storage of one class on a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StorageRow {
    /// Storage class.
    pub class: StorageClass,
    /// Capacity in bytes.
    pub capacity: u64,
    /// Free bytes.
    pub remaining: u64,
}
