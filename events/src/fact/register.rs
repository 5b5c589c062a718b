//! Register of facts: each fact is listed once, with its type, every entity that it changes, the id that it
//! issues, and its body. The effect of a fact on the state is an arm of `evolve` in `machine/src/decide.rs`.
//!
//! | between the brackets | changed entity |
//! |---|---|
//! | `Node(name)` | entity that these fields of the body name |
//! | `..Volume(mounts)` | each entity that the field names, if any |
//! | `(subject)`, `..(subject)` | entity in the field itself, if present |
//!
//! `since LEVEL` after the type declares the level of a type that was added later: see [`crate::level`].

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ApprovalActor, ApprovalProposal, ApprovalStart, CommandEffect, DeploymentEnd, IncarnationEnd,
    IntentOutcome, OperationEnd, OrphanResolution, RebalanceEnd, RequestEffect, RequestEnd, RequestedChange,
    Requester, RestartBackoff, RollbackReference, UnschedulableReason,
};
use crate::digest::Digest;
use crate::event::bodies;
use crate::id::{
    ExecutorStoreId, IncarnationId, Lineage, ObjectId, OperationId, Position, RequestId, SessionId, VolumeId,
};
use crate::level::FleetLevel;
use crate::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, ExecutorName, GroupName, NodeName,
    PayloadName, PlanName, PolicyName, ReplicaName, StorageClass, VolumeName,
};
use crate::observation::{ProcessInfo, SessionEnd};
use crate::record::RecordHash;
use crate::refusal::RefusalCode;
use crate::resources::Resources;
use crate::spec::{
    BalancePolicy, CapabilitySpec, ClusterActivity, ClusterRuntime, ClusterSpec, ConsoleAccess,
    DeploymentSpec, DisruptionSpec, NodeSpec, NodeState, OperationKind, PlanSpec, PolicySpec, ProbePurpose,
    VolumeDeletion,
};
use crate::subject::Subject;
use crate::time::Time;

macro_rules! facts {
    ($(
        $(#[$doc:meta])* $name:ident = $type:literal $(+ $tail:literal)? $(since $level:literal)?, [$($about:tt)*]
        $(issues $issued:ident($id:ident))? {
            $($(#[$fdoc:meta])* $field:ident: $ftype:ty),* $(,)?
        }
    )*) => {
        bodies! {
            /// Fact: a conclusion of the decider.
            Fact { $($(#[$doc])* $name = $type $(since $level)?),* }
        }

        $(
            #[doc = concat!("Body of [`Fact::", stringify!($name), "`]", facts!(@tail $($tail)?))]
            #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
            pub struct $name {
                $($(#[$fdoc])* pub $field: $ftype),*
            }
        )*

        impl Fact {
            /// Returns every entity that the fact changes. Only the version of the first entity rises.
            pub fn subjects(&self) -> Vec<Subject> {
                let mut all = Vec::new();
                match self { $(Fact::$name(x) => facts!(@about x all $($about)*)),* }
                all
            }

            /// Returns the entity whose id derives from the fact's own position, if the fact issues an id.
            pub fn issues(&self, lineage: Lineage, position: Position) -> Option<Subject> {
                match self {
                    $($(Fact::$name(_) => Some(Subject::$issued($id::issue(lineage, position))),)?)*
                    // All other facts concern entities that have their name or id already.
                    _ => None,
                }
            }
        }
    };
    (@tail) => { "." };
    (@tail $tail:literal) => { $tail };
    (@about $x:ident $all:ident) => {{ let _ = $x; }};
    (@about $x:ident $all:ident ..$kind:ident($field:ident) $(, $($more:tt)+)?) => {{
        $all.extend($x.$field.iter().cloned().map(Subject::$kind));
        $(facts!(@about $x $all $($more)+);)?
    }};
    (@about $x:ident $all:ident ..($field:ident)) => { $all.extend($x.$field.iter().cloned()) };
    (@about $x:ident $all:ident ($field:ident)) => { $all.push($x.$field.clone()) };
    (@about $x:ident $all:ident Fleet) => {{
        let _ = $x;
        $all.push(Subject::Fleet);
    }};
    (@about $x:ident $all:ident $kind:ident($($field:ident),+) $(, $($more:tt)+)?) => {{
        $all.push(Subject::$kind($($x.$field.clone()),+));
        $(facts!(@about $x $all $($more)+);)?
    }};
}

facts! {
    /// New leader started its term: its commits carry the new term and writer from this record on.
    TermStarted = "term.started.v1" + ". Term and writer are in the record's header.", [Fleet] {
        /// Address at which the decider accepts requests; absent if it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
        /// Highest level that the build of the server knows.
        #[serde(default, skip_serializing_if = "FleetLevel::is_first")]
        level: FleetLevel,
    }
    /// Level of the fleet raised: from now on, events of that level are recorded.
    FleetLevelRaised = "fleet.level_raised.v1", [Fleet] {
        /// Level before.
        from: FleetLevel,
        /// Level from now on.
        to: FleetLevel,
    }
    /// Journal continued under a new lineage: records at its end are missing, and an operator accepted the
    /// loss.
    LineageStarted = "lineage.started.v1" + ". The new lineage is in the record's header.", [Fleet] {
        /// Previous lineage of the journal.
        previous: Lineage,
        /// Last position of the previous lineage in this journal: no evidence contradicts the journal up to
        /// this position.
        at: Position,
        /// Highest position that is known to be missing, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        missing_through: Option<Position>,
        /// Lineages that started in the missing records: the journal contains no record of these lineages.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        abandoned: Vec<Lineage>,
    }
    /// Intent accepted: the intent is recorded before this fact.
    IntentAccepted = "intent.accepted.v1", [..(subject)] {
        /// Digest of the intent's actor, source and id: an intent with the same key is a repeat.
        key: Digest,
        /// Digest of the intent's type, body and expected version: it must be equal in a repeat.
        digest: Digest,
        /// Time of the intent by its sender's clock; time of the decision if the sender gave none.
        at: Time,
        /// Outcome of the intent.
        outcome: IntentOutcome,
        /// Entity that the intent is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<Subject>,
        /// Version of the subject after the decision.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
    }
    /// Intent refused: the intent is recorded before this fact.
    IntentRefused = "intent.refused.v1", [..(subject)] {
        /// Digest of the intent's actor, source and id: an intent with the same key is a repeat.
        key: Digest,
        /// Digest of the intent's type, body and expected version: it must be equal in a repeat.
        digest: Digest,
        /// Time of the intent by its sender's clock; time of the decision if the sender gave none.
        at: Time,
        /// Reason of the refusal, for programs.
        code: RefusalCode,
        /// Reason of the refusal, for people.
        detail: String,
        /// Entity that the intent is about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<Subject>,
        /// Version of the subject at the decision.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
        /// Errors in the intent's body: the text of each error, by JSON Pointer.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        errors: BTreeMap<String, String>,
    }
    // A message that cannot become an intent concerns no entity.
    /// Inbox message refused: the message cannot become an intent.
    InboxMessageRefused = "inbox.message_refused.v1" + ". The fact changes no entity: it answers the message at the offset.", [] {
        /// Topic of the inbox, as in the watermark of the record's header.
        topic: String,
        /// Offset of the message in the topic.
        offset: u64,
        /// SHA-256 of the message's value, 64 hexadecimal digits; absent if the message has no value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<RecordHash>,
        /// Reason of the refusal, for programs.
        code: RefusalCode,
        /// Reason of the refusal, for people.
        detail: String,
    }
    /// Inbox message skipped: the message cannot be read.
    InboxSkipped = "inbox.skipped.v1" + ". The fact changes no entity. The topic is that of the header's watermark.", [] {
        /// Offset of the skipped message.
        offset: u64,
    }
    /// Inbox answered up to an offset that no other record states.
    InboxAdvanced = "inbox.advanced.v1" + ". The fact changes no entity.", [] {
        /// Topic of the inbox, as in the watermark of the record's header.
        topic: String,
        /// Offset of the first message that is not answered yet.
        next: u64,
    }
    // The record's header contains the time.
    /// Passage of time recorded, after a long period without other records.
    TimeRecorded = "time.recorded.v1" + ". The fact changes no entity: the time is that of the record.", [] {}
    /// Entity quarantined: it is skipped after an internal error.
    EntityQuarantined = "entity.quarantined.v1", [(subject)] {
        /// Entity that is quarantined.
        subject: Subject,
        /// Description of the internal error.
        detail: String,
    }
    /// Cluster created or updated.
    ClusterApplied = "cluster.applied.v1", [Cluster(name)] {
        /// Name of the cluster.
        name: ClusterName,
        /// Specification of the cluster.
        spec: ClusterSpec,
    }
    /// Cluster activated or deactivated.
    ClusterActivityChanged = "cluster.activity_changed.v1", [Cluster(name)] {
        /// Name of the cluster.
        name: ClusterName,
        /// New activity of the cluster.
        activity: ClusterActivity,
    }
    /// Cluster deleted.
    ClusterDeleted = "cluster.deleted.v1", [Cluster(name)] {
        /// Name of the cluster.
        name: ClusterName,
    }
    /// Capability created or updated.
    CapabilityApplied = "capability.applied.v1", [Capability(name)] {
        /// Name of the capability.
        name: CapabilityName,
        /// Specification of the capability.
        spec: CapabilitySpec,
    }
    /// Capability activated or deactivated.
    CapabilityActivityChanged = "capability.activity_changed.v1", [Capability(name)] {
        /// Name of the capability.
        name: CapabilityName,
        /// New activity of the capability.
        activity: ClusterActivity,
    }
    /// Capability deleted.
    CapabilityDeleted = "capability.deleted.v1", [Capability(name)] {
        /// Name of the capability.
        name: CapabilityName,
    }
    /// Node created or updated.
    NodeApplied = "node.applied.v1", [Node(name)] {
        /// Name of the node.
        name: NodeName,
        /// Specification of the node.
        spec: NodeSpec,
    }
    /// State of a node changed, possibly with its cluster.
    NodeStateChanged = "node.state_changed.v1", [Node(name)] {
        /// Name of the node.
        name: NodeName,
        /// New state of the node.
        state: NodeState,
        /// Cluster of the node in the new state, if any.
        cluster: Option<ClusterName>,
    }
    /// Node deleted.
    NodeDeleted = "node.deleted.v1", [Node(name)] {
        /// Name of the node.
        name: NodeName,
    }
    /// Disruption of a node scheduled.
    DisruptionScheduled = "disruption.scheduled.v1", [Node(node)] {
        /// Node of the disruption.
        node: NodeName,
        /// Name of the disruption, unique on the node.
        name: DisruptionName,
        /// Specification of the disruption.
        spec: DisruptionSpec,
    }
    /// Disruption approved: its node takes no placements from now on.
    DisruptionApproved = "disruption.approved.v1", [Node(node)] {
        /// Node of the disruption.
        node: NodeName,
        /// Name of the disruption, unique on the node.
        name: DisruptionName,
        /// Actor who approved the disruption.
        approved_by: Actor,
    }
    /// Disruption completed.
    DisruptionCompleted = "disruption.completed.v1", [Node(node)] {
        /// Node of the disruption.
        node: NodeName,
        /// Name of the disruption, unique on the node.
        name: DisruptionName,
    }
    /// Completed disruption deleted.
    DisruptionDeleted = "disruption.deleted.v1", [Node(node)] {
        /// Node of the disruption.
        node: NodeName,
        /// Name of the disruption, unique on the node.
        name: DisruptionName,
    }
    /// Policy created or updated.
    PolicyApplied = "policy.applied.v1", [Policy(name)] {
        /// Name of the policy.
        name: PolicyName,
        /// Specification of the policy.
        spec: PolicySpec,
    }
    /// Policy deleted.
    PolicyDeleted = "policy.deleted.v1", [Policy(name)] {
        /// Name of the policy.
        name: PolicyName,
    }
    /// Plan created or updated; an update starts a generation.
    PlanApplied = "plan.applied.v1", [Plan(name)] {
        /// Name of the plan.
        name: PlanName,
        /// Generation of the plan: the number of its edits, from 1.
        generation: u32,
        /// Specification of the plan.
        spec: PlanSpec,
        /// Fields that differ from the previous generation; absent for a new plan.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changed: Vec<String>,
    }
    /// Plan activated or deactivated: an inactive plan takes no deployments.
    PlanActivityChanged = "plan.activity_changed.v1", [Plan(name)] {
        /// Name of the plan.
        name: PlanName,
        /// New activity of the plan.
        activity: ClusterActivity,
    }
    /// Spread of a plan at rest became uneven, or even again.
    PlanBalanceChanged = "plan.balance_changed.v1", [Plan(plan)] {
        /// Name of the plan.
        plan: PlanName,
        /// Balance of the plan: `uneven` if moving one replica would make the spread more even.
        balance: BalancePolicy,
    }
    /// Rebalance of a plan started: replicas are moved until the spread is even.
    PlanRebalanceStarted = "plan.rebalance_started.v1", [Plan(plan)] {
        /// Name of the plan.
        plan: PlanName,
        /// Actor on whose behalf the moves are requested.
        requested_by: Actor,
    }
    /// Rebalance of a plan ended: no more replicas are moved for its spread.
    PlanRebalanceEnded = "plan.rebalance_ended.v1", [Plan(plan)] {
        /// Name of the plan.
        plan: PlanName,
        /// Outcome of the rebalance.
        end: RebalanceEnd,
    }
    /// Cascading deletion of a plan started: the plan is deleted with everything that it has.
    PlanDeletionStarted = "plan.deletion_started.v1", [Plan(name)] {
        /// Name of the plan.
        name: PlanName,
        /// Actor who requested the deletion.
        requested_by: Actor,
    }
    /// Plan deleted.
    PlanDeleted = "plan.deleted.v1", [Plan(name)] {
        /// Name of the plan.
        name: PlanName,
    }
    /// Deployment created and queued.
    DeploymentCreated = "deployment.created.v1", [Deployment(plan, name), Plan(plan)] {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
        /// Generation of the plan that the deployment uses.
        generation: u32,
        /// Specification of the deployment.
        spec: DeploymentSpec,
        /// Actor who requested the deployment; for a rollback by a rule, who requested the failed deployment.
        requested_by: Actor,
        /// Target of the rollback, if the deployment is a rollback.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rollback: Option<RollbackReference>,
    }
    /// Deployment started.
    DeploymentStarted = "deployment.started.v1", [Deployment(plan, name), Plan(plan)] {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
        /// Time by which the new set of the deployment must be ready, if limited.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Deployment paused: it starts nothing until it is resumed.
    DeploymentPaused = "deployment.paused.v1", [Deployment(plan, name)] {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
    }
    /// Paused deployment resumed.
    DeploymentResumed = "deployment.resumed.v1", [Deployment(plan, name)] {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
    }
    /// Deployment stalled: it made no progress for its progress deadline.
    DeploymentStalled = "deployment.stalled.v1", [Deployment(plan, name)] {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
        /// Time of the deployment's last progress.
        since: Time,
        /// Condition that the deployment waits for, for people.
        waits_for: String,
    }
    /// Deployment cut over: its new set of replicas is active, and the rest of the old set is removed.
    DeploymentCutOver = "deployment.cut_over.v1", [Deployment(plan, name)] {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
    }
    /// Deployment halted: it starts nothing more, and ends when running operations have settled.
    DeploymentHalted = "deployment.halted.v1", [Deployment(plan, name)] {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
        /// Outcome of the deployment, recorded when it ends.
        end: DeploymentEnd,
    }
    /// Deployment ended.
    DeploymentEnded = "deployment.ended.v1", [Deployment(plan, name), Plan(plan)] {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
        /// Outcome of the deployment.
        end: DeploymentEnd,
    }
    /// Replica created; its name derives from the position of this fact.
    ReplicaCreated = "replica.created.v1", [Replica(name), Deployment(plan, deployment), Plan(plan)] {
        /// Name of the replica.
        name: ReplicaName,
        /// Plan that the replica belongs to.
        plan: PlanName,
        /// Deployment whose version the replica has.
        deployment: DeploymentName,
    }
    /// Deployment of a replica without incarnation changed: the replica has another version from now on.
    ReplicaDeploymentChanged = "replica.deployment_changed.v1", [Replica(name), Deployment(plan, deployment)] {
        /// Name of the replica.
        name: ReplicaName,
        /// Plan that the replica belongs to.
        plan: PlanName,
        /// Deployment whose version the replica has when it runs again.
        deployment: DeploymentName,
    }
    /// Replica deleted.
    ReplicaDeleted = "replica.deleted.v1", [Replica(name), ..Volume(volumes)] {
        /// Name of the replica.
        name: ReplicaName,
        /// Volumes that the replica owned: each volume is destroyed or kept, by its `on_delete`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        volumes: Vec<VolumeName>,
    }
    /// Operation created; its id derives from the position of this fact.
    OperationCreated = "operation.created.v1", [Replica(replica)] issues Operation(OperationId) {
        /// Replica that the operation changes.
        replica: ReplicaName,
        /// Kind of the operation.
        kind: OperationKind,
        /// Deployment that requested the operation; if absent,
        /// [`requested_by`](OperationCreated::requested_by) is the requester.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deployment: Option<DeploymentName>,
        /// Requester of the operation, if no deployment requested it; otherwise the rule of the deployment,
        /// if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requested_by: Option<Requester>,
        /// Deployment whose version the replica will have, if it differs from the current version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<DeploymentName>,
        /// Only acceptable node for the replica, if there is such a restriction.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
        /// Proposal to approve, if the operation needs no placement first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proposal: Option<ApprovalProposal>,
        /// Purpose of the operation, if the kind and the requester do not imply it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        purpose: Option<ProbePurpose>,
    }
    /// Plan unschedulable: operations of the plan have no placement yet.
    PlanUnschedulable = "plan.unschedulable.v1", [Plan(plan)] {
        /// Name of the plan.
        plan: PlanName,
        /// Reasons that rule out nodes, with the nodes of each reason.
        reasons: Vec<UnschedulableReason>,
    }
    /// Operation approved; it starts immediately, unless it is queued.
    OperationApproved = "operation.approved.v1", [Operation(operation), Replica(replica), ..Incarnation(incarnation)] {
        /// Id of the operation.
        operation: OperationId,
        /// Replica that the operation changes.
        replica: ReplicaName,
        /// Approver of the operation.
        approved_by: ApprovalActor,
        /// Hash of the approved change.
        hash: Digest,
        /// Incarnation that the operation commands, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incarnation: Option<IncarnationId>,
        /// Time at which the command of the operation times out, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
        /// Start of the operation: immediately, or when it is dequeued.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        start: ApprovalStart,
    }
    /// Approved operation dequeued and started.
    OperationStarted = "operation.started.v1", [Operation(operation), Replica(replica), ..Incarnation(incarnation)] {
        /// Id of the operation.
        operation: OperationId,
        /// Replica that the operation changes.
        replica: ReplicaName,
        /// Incarnation that the operation commands, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incarnation: Option<IncarnationId>,
        /// Time at which the command of the operation times out, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Operation ended.
    OperationEnded = "operation.ended.v1", [Operation(operation), Replica(replica)] {
        /// Id of the operation.
        operation: OperationId,
        /// Replica that the operation changes.
        replica: ReplicaName,
        /// Outcome of the operation.
        end: OperationEnd,
    }
    // The entity of the change is affected only by an approval.
    /// Approval request opened for an intent; its id derives from the position of this fact.
    RequestOpened = "request.opened.v1" + "(super::Fact::RequestOpened).", [] issues Request(RequestId) {
        /// Change that waits for approval.
        change: RequestedChange,
        /// Actor who requested the change.
        requested_by: Actor,
        /// Replicas that the change ends or moves, by plan.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        effects: Vec<RequestEffect>,
        /// Policies that require approval by another person than the requester; any person can approve if
        /// empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        policies: Vec<PolicyName>,
        /// Hash of the change and of every replica and volume that it ends or moves.
        hash: Digest,
        /// Time at which the request expires.
        expires: Time,
    }
    /// Approval request approved; the facts of its change follow in the same commit.
    RequestApproved = "request.approved.v1" + "(super::Fact::RequestApproved).", [Request(request)] {
        /// Id of the request.
        request: RequestId,
        /// Actor who approved the request.
        approved_by: Actor,
        /// Hash of the change, as shown to the approver.
        hash: Digest,
    }
    /// Approval request ended without its change.
    RequestEnded = "request.ended.v1" + "(super::Fact::RequestEnded).", [Request(request)] {
        /// Id of the request.
        request: RequestId,
        /// Outcome of the request.
        end: RequestEnd,
    }
    /// Node expunged without the approval that policies require (break-glass).
    ApprovalBypassed = "approval.bypassed.v1" + "(super::Fact::ApprovalBypassed).", [Node(node)] {
        /// Name of the node that is expunged.
        node: NodeName,
        /// Actor who bypassed the approval.
        requested_by: Actor,
        /// Reason of the bypass, for people.
        reason: String,
        /// Policies that required the approval of another person.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        policies: Vec<PolicyName>,
    }
    /// Placement of an operation reserved; the incarnation's id derives from the position of this fact.
    IncarnationReserved = "incarnation.reserved.v1", [Operation(operation), Replica(replica), Node(node)] issues Incarnation(IncarnationId) {
        /// Operation that starts the incarnation.
        operation: OperationId,
        /// Replica that the incarnation belongs to.
        replica: ReplicaName,
        /// Node with the reservation.
        node: NodeName,
        /// Deployment that gives the coordinates and generation of the incarnation.
        deployment: DeploymentName,
        /// Resources that the incarnation reserves on the node.
        resources: Resources,
        /// Storage that the incarnation reserves on the node, in bytes by storage class.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        reserved_storage: BTreeMap<StorageClass, u64>,
        /// Proposal to approve.
        proposal: ApprovalProposal,
        /// Predecessor: the incarnation of the same replica that must end before the new incarnation starts.
        /// On the same node, resources that both need are counted on the predecessor until it ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        starts_after: Option<IncarnationId>,
        /// Groups of replicas that the incarnation belongs to.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        groups: Vec<GroupName>,
        /// Soft affinity that the placement violates, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        affinity_violated: Option<String>,
        /// Volumes that the incarnation uses once it is started.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mounts: Vec<VolumeName>,
    }
    /// Stop or kill of an incarnation requested.
    IncarnationStopRequested = "incarnation.stop_requested.v1", [Incarnation(incarnation), Replica(replica)] {
        /// Id of the incarnation.
        incarnation: IncarnationId,
        /// Replica that the incarnation belongs to.
        replica: ReplicaName,
        /// Requested effect: `stop` or `kill`.
        effect: CommandEffect,
        /// Outcome that is recorded when the end of the incarnation is proved.
        end: IncarnationEnd,
        /// Time at which the stop times out, and the incarnation is killed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Start of an incarnation requested, after a wait or to revert an update.
    IncarnationStartRequested = "incarnation.start_requested.v1", [Incarnation(incarnation), Replica(replica), ..Volume(mounts)] {
        /// Id of the incarnation.
        incarnation: IncarnationId,
        /// Replica that the incarnation belongs to.
        replica: ReplicaName,
        /// Deployment that gives the coordinates and generation of the incarnation.
        deployment: DeploymentName,
        /// Time by which the incarnation must be ready.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
        /// Volumes that the incarnation uses exclusively from now on. Volumes on another node move to its
        /// node.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mounts: Vec<VolumeName>,
    }
    /// Command of an incarnation failed.
    IncarnationCommandFailed = "incarnation.command_failed.v1", [Incarnation(incarnation)] {
        /// Id of the incarnation.
        incarnation: IncarnationId,
        /// Revision of the command: its number among the commands of the incarnation, from 1.
        revision: u32,
        /// Number of the attempt at the command, from 1.
        attempt: u32,
        /// Error of the attempt.
        error: String,
        /// Time before which the command is not sent again; absent if it is never retried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Time>,
    }
    /// Incarnation started: all its processes were started.
    IncarnationStarted = "incarnation.started.v1", [Incarnation(incarnation), Replica(replica)] {
        /// Id of the incarnation.
        incarnation: IncarnationId,
        /// Replica that the incarnation belongs to.
        replica: ReplicaName,
        /// Processes of the incarnation.
        processes: Vec<ProcessInfo>,
        /// Time at which the incarnation is ended unless it is ready again, by the plan's `unready`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Console of a guest opened for one attachment. What is typed and shown is recorded nowhere in the journal.
    ConsoleOpened = "console.opened.v1", [Replica(replica), Incarnation(incarnation)] {
        /// Replica whose console is opened.
        replica: ReplicaName,
        /// Incarnation that has the guest.
        incarnation: IncarnationId,
        /// Payload whose guest has the console; absent for the only payload.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        payload: Option<PayloadName>,
        /// Access to the console.
        access: ConsoleAccess,
        /// Actor who may attach.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opened_by: Option<Actor>,
    }
    /// Incarnation ready, and the active incarnation of its replica.
    IncarnationRunning = "incarnation.running.v1", [Incarnation(incarnation), Replica(replica), ..Operation(operation)] {
        /// Id of the incarnation.
        incarnation: IncarnationId,
        /// Replica that the incarnation belongs to.
        replica: ReplicaName,
        /// Operation that succeeded with the incarnation, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operation: Option<OperationId>,
        /// Predecessor: the incarnation of the same replica that is replaced, and is ended now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<IncarnationId>,
        /// Processes of the incarnation.
        processes: Vec<ProcessInfo>,
    }
    /// Processes of an incarnation changed, but not its state.
    IncarnationProcessesChanged = "incarnation.processes_changed.v1", [Incarnation(incarnation), Replica(replica)] {
        /// Id of the incarnation.
        incarnation: IncarnationId,
        /// Replica that the incarnation belongs to.
        replica: ReplicaName,
        /// Processes of the incarnation.
        processes: Vec<ProcessInfo>,
        /// Time at which the incarnation is ended unless it is ready again, by the plan's `unready`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Incarnation ended; its reservation is released.
    IncarnationEnded = "incarnation.ended.v1", [Incarnation(incarnation), Replica(replica), Node(node), ..Operation(reschedules), ..Volume(mounts)] {
        /// Id of the incarnation.
        incarnation: IncarnationId,
        /// Replica that the incarnation belongs to.
        replica: ReplicaName,
        /// Node that the incarnation was placed on.
        node: NodeName,
        /// Outcome of the incarnation.
        end: IncarnationEnd,
        /// Operation that had only the reservation of the incarnation, and now needs another placement.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reschedules: Option<OperationId>,
        /// Processes of the incarnation, as far as their ends were observed.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        processes: Vec<ProcessInfo>,
        /// Automatic restart of the replica by the plan's restart rule, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restart_backoff: Option<RestartBackoff>,
        /// Volumes that the incarnation used, and that are available to others now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mounts: Vec<VolumeName>,
    }
    /// Volume created, and its creation requested from the executor; its id derives from the position of this
    /// fact.
    VolumeCreated = "volume.created.v1", [Volume(name), Incarnation(incarnation), Node(node)] {
        /// Name of the volume.
        name: VolumeName,
        /// Node whose storage the volume uses.
        node: NodeName,
        /// Storage class of the volume on the node.
        class: StorageClass,
        /// Capacity in bytes, which the volume reserves of the storage class.
        capacity: u64,
        /// Incarnation that needs the volume, and had the storage reserved until now.
        incarnation: IncarnationId,
        /// Replica that owns the volume; absent if no replica owns it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<ReplicaName>,
        /// Action on the volume when its owner is deleted.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        on_delete: VolumeDeletion,
    }
    /// Volume created as a snapshot, and its creation requested from the executor; its id derives from the position of this
    /// fact. Its content will be that of the source at one moment after this fact.
    VolumeSnapshotStarted = "volume.snapshot_started.v1", [Volume(name), Volume(source), Node(node)] {
        /// Name of the new volume.
        name: VolumeName,
        /// Name of the volume that is copied.
        source: VolumeName,
        /// Id of the volume that is copied: another volume may have the same name later.
        source_id: VolumeId,
        /// Node whose storage the new volume uses: the node of its source.
        node: NodeName,
        /// Storage class of the new volume: the class of its source.
        class: StorageClass,
        /// Capacity in bytes, which the new volume reserves of the storage class: the capacity of its source.
        capacity: u64,
    }
    /// Volume ready: it exists, and can be used.
    VolumeReady = "volume.ready.v1", [Volume(name)] {
        /// Name of the volume.
        name: VolumeName,
    }
    /// Command of a volume failed.
    VolumeCommandFailed = "volume.command_failed.v1", [Volume(name)] {
        /// Name of the volume.
        name: VolumeName,
        /// Revision of the command: its number among the commands of the volume, from 1.
        revision: u32,
        /// Number of the attempt at the command, from 1.
        attempt: u32,
        /// Error of the attempt.
        error: String,
        /// Time before which the command is not sent again; absent if it is never retried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Time>,
    }
    /// Volume lost without a request to destroy it.
    VolumeLost = "volume.lost.v1", [Volume(name)] {
        /// Name of the volume.
        name: VolumeName,
        /// Evidence of the loss, for people.
        reason: String,
    }
    /// Deletion of a volume started: it is destroyed once nothing can use it.
    VolumeDeletionStarted = "volume.deletion_started.v1", [Volume(name)] {
        /// Name of the volume.
        name: VolumeName,
        /// Requester of the deletion.
        requested_by: Requester,
    }
    /// Destruction of a volume requested from its executor: nothing can use the volume any more.
    VolumeDestroyRequested = "volume.destroy_requested.v1", [Volume(name)] {
        /// Name of the volume.
        name: VolumeName,
    }
    /// Volume destroyed: its executor proved this, or its node is expunged.
    VolumeDestroyed = "volume.destroyed.v1", [Volume(name)] {
        /// Name of the volume.
        name: VolumeName,
    }
    /// Session opened: an executor has the lease of a cluster.
    SessionOpened = "session.opened.v1" + ". The session's id derives from the position of the fact.", [Cluster(cluster)] issues Session(SessionId) {
        /// Cluster of the session.
        cluster: ClusterName,
        /// Name of the executor.
        executor: ExecutorName,
        /// Runtime that the executor drives.
        runtime: ClusterRuntime,
        /// Executor store that records the cluster's objects from now on. Only an executor with this store
        /// may report what happens to these objects.
        store: ExecutorStoreId,
    }
    /// Session closed: the executor no longer has the lease of the cluster.
    SessionClosed = "session.closed.v1", [Session(session), Cluster(cluster)] {
        /// Id of the session.
        session: SessionId,
        /// Cluster of the session.
        cluster: ClusterName,
        /// Reason why the session ended.
        end: SessionEnd,
    }
    /// Orphan resolved: an object unknown to the fleet is removed, or left in place.
    OrphanResolved = "orphan.resolved.v1", [Cluster(cluster)] {
        /// Cluster of the orphan.
        cluster: ClusterName,
        /// Id in the object's labels.
        object: ObjectId,
        /// Resolution of the orphan.
        resolution: OrphanResolution,
        /// Revision of the command to remove the orphan.
        revision: u32,
    }
}
