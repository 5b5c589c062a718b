//! Rows that readers see of each entity: a function of the state, so that a rebuild gives the same rows.
//!
//! The same types are answers in JSON (documented in the `OpenAPI` description) and values in the store. The
//! store has a positional codec: no field may be left out.

use std::collections::BTreeMap;

use chancery_events::amount::Resources;
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
use chancery_events::spec::{
    BalancePolicy, ClusterActivity, ClusterRuntime, DeploymentStrategy, DisruptionAction, DisruptionState,
    NodeState, OperationKind, PayloadCoordinates, PlanSpec, PolicySpec, VolumeDeletion,
};
use chancery_events::subject::Subject;
use chancery_events::time::{Time, shown};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

chancery_events::state_words! {
    /// The states of an incarnation, as readers see them.
    IncarnationStatus {
        Reserved = "reserved", Creating = "creating", Starting = "starting", Running = "running",
        Updating = "updating", Stopping = "stopping", Destroyed = "destroyed", Failed = "failed", Unwound = "unwound",
    }
    /// Whether anybody hears of what runs. `unknown` says nothing about it: only proof ends an incarnation.
    Reachability { Known = "known", Unknown = "unknown" }
    /// The states of a volume, as readers see them.
    VolumeStatus { Ensuring = "ensuring", Ready = "ready", Lost = "lost", Destroying = "destroying" }
    /// Kinds of changes that wait for approval.
    RequestedKind {
        PlanDelete = "plan_delete", NodeDelete = "node_delete", NodeExpunge = "node_expunge",
        DisruptionApprove = "disruption_approve", PlanApply = "plan_apply", PolicyApply = "policy_apply",
        PolicyDelete = "policy_delete", VolumeDelete = "volume_delete",
    }
    /// The states of a session, as readers see them.
    SessionStatus { Open = "open", Lost = "lost", Left = "left", Removed = "removed" }
}

macro_rules! rows {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $type),*,
            /// One more for each fact about it.
            pub version: u64,
            /// When it came.
            #[serde(with = "shown")]
            #[schemars(with = "String")]
            pub created: Time,
            /// When it last changed.
            #[serde(with = "shown")]
            #[schemars(with = "String")]
            pub changed: Time,
            /// The position of the fact that last changed it.
            pub position: Position,
        }
    )*};
}

rows! {
    /// A cluster.
    ClusterRow {
        /// Its name.
        name: ClusterName,
        /// What its orchestrator is made of.
        runtime: ClusterRuntime,
        /// Whether it is in use.
        activity: ClusterActivity,
        /// The executor that holds it.
        executor: Option<ExecutorName>,
        /// That executor's session.
        session: Option<SessionId>,
        /// Nodes in it.
        nodes: u64,
    }
    /// A capability.
    CapabilityRow {
        /// Its name.
        name: CapabilityName,
        /// What it is a measure of.
        kind: CapabilityType,
        /// Higher is better, within a type.
        score: u32,
        /// Whether it counts.
        activity: ClusterActivity,
    }
    /// A node.
    NodeRow {
        /// Its name.
        name: NodeName,
        /// Its state.
        state: NodeState,
        /// Its cluster.
        cluster: Option<ClusterName>,
        /// Its update domain.
        domain: DomainName,
        /// Where it stands.
        zone: Option<ZoneName>,
        /// For selectors.
        labels: BTreeMap<KeyName, String>,
        /// All that it has.
        total: Resources,
        /// What of it is not for placements.
        reserved: Resources,
        /// What is free for placements.
        remaining: Resources,
        /// What it has, by name.
        capabilities: Vec<CapabilityName>,
        /// Its storage, by class.
        storage: Vec<StorageRow>,
        /// Incarnations that hold a place on it.
        incarnations: u64,
        /// What is planned to be done to it, and what was.
        disruptions: Vec<DisruptionRow>,
        /// Expunge that did not wait for the approval that policies require: break-glass.
        bypass: Option<BypassRow>,
    }
    /// A plan.
    PlanRow {
        /// Its name.
        name: PlanName,
        /// Counts its edits.
        generation: u32,
        /// Whether it takes deployments.
        activity: ClusterActivity,
        /// What it is.
        spec: PlanSpec,
        /// The deployment being carried out.
        current: Option<DeploymentName>,
        /// The deployment that waits for its turn.
        next: Option<DeploymentName>,
        /// Its replicas by phase, and `total`.
        replicas: BTreeMap<String, u64>,
        /// Its operations: kind, then `preparing`, `pending_approval`, `approved`, `running` now, and outcomes ever.
        operations: BTreeMap<String, BTreeMap<String, u64>>,
        /// Why operations without a place have none, by node.
        waiting: Vec<UnschedulableReason>,
        /// How the replicas are spread over update domains.
        spread: SpreadRow,
        /// Why it is as it is.
        message: String,
    }
    /// A deployment.
    DeploymentRow {
        /// Of which plan.
        plan: PlanName,
        /// Its name in the plan.
        name: DeploymentName,
        /// Of which generation of the plan.
        generation: u32,
        /// How many replicas.
        count: u32,
        /// Which version of each payload.
        coordinates: PayloadCoordinates,
        /// How it is carried out.
        strategy: DeploymentStrategy,
        /// Milliseconds without progress until it is called stalled.
        progress_deadline: u64,
        /// Whether it is rolled back when it fails or is stalled.
        auto_rollback: bool,
        /// The deployment whose version it deploys again, if it is a rollback, and the rule that requested the rollback.
        rollback: Option<RollbackReference>,
        /// Who asked for it.
        by: Option<Actor>,
        /// Its state.
        state: DeploymentStatus,
        /// Time of its last progress; absent until it is started.
        #[serde(with = "shown::option")]
        #[schemars(with = "Option<String>")]
        last_progress_at: Option<Time>,
        /// Time at which it was called stalled; absent if it has made progress since.
        #[serde(with = "shown::option")]
        #[schemars(with = "Option<String>")]
        stalled_at: Option<Time>,
        /// Which replicas count, where its own stand beside those that were there.
        set: SetWord,
        /// Why it is as it is.
        message: String,
    }
    /// A replica.
    ReplicaRow {
        /// Its name.
        name: ReplicaName,
        /// Of which plan.
        plan: PlanName,
        /// The deployment that it runs by.
        deployment: DeploymentName,
        /// What is wanted of it.
        will: WillWord,
        /// What people see of it.
        phase: PhaseStatus,
        /// Whether it runs and all its processes are online.
        ready: bool,
        /// Whether an executor of its cluster is heard of: if not, the rest is as it was last seen.
        reachability: Reachability,
        /// Where it is.
        node: Option<NodeName>,
        /// Its incarnation that is not over, and that counts.
        incarnation: Option<IncarnationId>,
        /// Its other one: that is to take its place, or has lost it.
        passive: Option<SecondaryRow>,
        /// Its processes.
        processes: Vec<ProcessInfo>,
        /// Its operation that is not over.
        operation: Option<OperationId>,
        /// When its plan's rule starts it again.
        #[serde(with = "shown::option")]
        #[schemars(with = "Option<String>")]
        again: Option<Time>,
        /// Time since which its run is not ready, if the run was ready before.
        #[serde(with = "shown::option")]
        #[schemars(with = "Option<String>")]
        unready_at: Option<Time>,
        /// Why it is as it is.
        message: String,
    }
    /// An incarnation.
    IncarnationRow {
        /// Its id.
        id: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Of which plan.
        plan: PlanName,
        /// By which deployment.
        deployment: DeploymentName,
        /// Where.
        node: NodeName,
        /// In which cluster.
        cluster: ClusterName,
        /// Its state.
        state: IncarnationStatus,
        /// Whether all its processes are online.
        ready: bool,
        /// Whether an executor of its cluster is heard of: if not, the rest is as it was last seen.
        reachability: Reachability,
        /// What it holds.
        amounts: Resources,
        /// What it holds of storage, by class, for volumes that are not there yet.
        volumes: BTreeMap<StorageClass, u64>,
        /// The volumes that it uses, from when it is begun.
        mounts: Vec<VolumeName>,
        /// Its processes.
        processes: Vec<ProcessInfo>,
        /// Counts its commands.
        revision: u32,
        /// The operation that brings or brought it up.
        operation: OperationId,
        /// The run that must be over before it is begun.
        follows: Option<IncarnationId>,
        /// Which affinity could not be kept.
        strained: Option<String>,
        /// Time since which it is not ready, if it was ready before.
        #[serde(with = "shown::option")]
        #[schemars(with = "Option<String>")]
        unready_at: Option<Time>,
        /// Why it is as it is.
        message: String,
    }
    /// An operation.
    OperationRow {
        /// Its id.
        id: OperationId,
        /// On which replica.
        replica: ReplicaName,
        /// Of which plan.
        plan: PlanName,
        /// What it does.
        kind: OperationKind,
        /// On which deployment's behalf.
        deployment: Option<DeploymentName>,
        /// Who asked for it, where no deployment did.
        by: Option<Requester>,
        /// The deployment by whose version its replica runs when it has succeeded.
        runs_by: DeploymentName,
        /// Its state.
        state: OperationStatus,
        /// The hash of what it does: approving needs it.
        hash: Option<Digest>,
        /// Where.
        node: Option<NodeName>,
        /// The incarnation concerned.
        incarnation: Option<IncarnationId>,
        /// Who approved it.
        approved_by: Option<ApprovalActor>,
        /// Why it is as it is.
        message: String,
    }
    /// A session.
    SessionRow {
        /// Its id.
        id: SessionId,
        /// Its scope.
        cluster: ClusterName,
        /// Who.
        executor: ExecutorName,
        /// What it drives.
        runtime: ClusterRuntime,
        /// Where it looks for what runs.
        scope: Option<ExecutorStoreId>,
        /// Its state.
        state: SessionStatus,
    }
    /// A command without an outcome.
    CommandRow {
        /// On which incarnation; with the revision, its name.
        incarnation: IncarnationId,
        /// Which.
        revision: u32,
        /// What.
        effect: CommandEffect,
        /// Which attempt, from 1.
        attempt: u32,
        /// Where.
        node: NodeName,
        /// In which cluster.
        cluster: ClusterName,
        /// Of which replica.
        replica: ReplicaName,
    }
    /// A policy.
    PolicyRow {
        /// Its name.
        name: PolicyName,
        /// What it is.
        spec: PolicySpec,
    }
    /// A volume.
    VolumeRow {
        /// Its name.
        name: VolumeName,
        /// Its id.
        id: VolumeId,
        /// Its state.
        state: VolumeStatus,
        /// In which cluster, which it never leaves.
        cluster: ClusterName,
        /// In whose storage it is counted.
        node: NodeName,
        /// Of which class.
        class: StorageClass,
        /// Bytes.
        capacity: u64,
        /// The replica whose own it is.
        owner: Option<ReplicaName>,
        /// What becomes of it when that is deleted.
        on_delete: VolumeDeletion,
        /// The replica that uses it.
        replica: Option<ReplicaName>,
        /// With which run.
        incarnation: Option<IncarnationId>,
        /// Who asked that it goes, if it is to.
        removing: Option<Requester>,
        /// Why it is as it is.
        message: String,
    }
    /// An approval request: a change that waits for approval as a whole, or waited.
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
        by: Actor,
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
        /// Whom the request waits for, or the reason of its state.
        message: String,
    }
}

/// The other run of a replica.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SecondaryRow {
    /// Which.
    pub incarnation: IncarnationId,
    /// Where.
    pub node: NodeName,
    /// Its state.
    pub state: IncarnationStatus,
}

/// A disruption of a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DisruptionRow {
    /// Its name.
    pub name: DisruptionName,
    /// Its state.
    pub state: DisruptionState,
    /// What it does to what runs there.
    pub evict: DisruptionAction,
    /// When the node is emptied, if it is.
    #[serde(with = "shown::option")]
    #[schemars(with = "Option<String>")]
    pub start: Option<Time>,
    /// Why.
    pub reason: String,
    /// Who approved it.
    pub by: Option<Actor>,
    /// When it came to be in its state.
    #[serde(with = "shown")]
    #[schemars(with = "String")]
    pub since: Time,
}

/// Expunge of a node that did not wait for the approval that policies require.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BypassRow {
    /// Actor who did not wait.
    pub by: Actor,
    /// Reason, for people.
    pub reason: String,
    /// Policies that required the approval of another person.
    pub policies: Vec<PolicyName>,
}

/// Spread of a plan's replicas over update domains, as it is when everything under way has succeeded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SpreadRow {
    /// Replicas by update domain; without those that are being deleted or stopped.
    pub domains: BTreeMap<DomainName, u32>,
    /// Whether a move that is allowed would make the spread more even. It is looked at while nothing else is being done
    /// for the plan, at most every ten seconds.
    pub balance: BalancePolicy,
    /// Actor on whose behalf a rebalance is in progress.
    pub rebalance_requested_by: Option<Actor>,
}

/// Storage of one class on a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StorageRow {
    /// Its class.
    pub class: StorageClass,
    /// Bytes.
    pub capacity: u64,
    /// Bytes that are free.
    pub remaining: u64,
}
