//! The register of facts: each stands once, with its type, every entity that it changes, the id that it issues, and its
//! body. What it does to the state is an arm of `evolve` in `machine/src/decide.rs`.
//!
//! | between the brackets | an entity that it changes |
//! |---|---|
//! | `Node(name)` | the one that these fields of the body name |
//! | `..Volume(mounts)` | each that the field names, if any |
//! | `(subject)`, `..(subject)` | the field itself, if it is there |

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ApprovalActor, ApprovalProposal, ApprovalStart, CommandEffect, DeploymentEnd, IncarnationEnd,
    IntentOutcome, OperationEnd, OrphanResolution, RebalanceEnd, RequestEffect, RequestEnd, RequestedChange,
    Requester, RestartBackoff, RollbackReference, UnschedulableReason,
};
use crate::amount::Resources;
use crate::digest::Digest;
use crate::event::bodies;
use crate::id::{
    ExecutorStoreId, IncarnationId, Lineage, ObjectId, OperationId, Position, RequestId, SessionId,
};
use crate::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, ExecutorName, GroupName, NodeName,
    PlanName, PolicyName, ReplicaName, StorageClass, VolumeName,
};
use crate::observation::{ProcessInfo, SessionEnd};
use crate::record::RecordHash;
use crate::refusal::RefusalCode;
use crate::spec::{
    BalancePolicy, CapabilitySpec, ClusterActivity, ClusterRuntime, ClusterSpec, DeploymentSpec,
    DisruptionSpec, NodeSpec, NodeState, OperationKind, PlanSpec, PolicySpec, ProbePurpose, VolumeDeletion,
};
use crate::subject::Subject;
use crate::time::Time;

macro_rules! facts {
    ($(
        $(#[$doc:meta])* $name:ident = $type:literal $(+ $tail:literal)?, [$($about:tt)*]
        $(issues $issued:ident($id:ident))? {
            $($(#[$fdoc:meta])* $field:ident: $ftype:ty),* $(,)?
        }
    )*) => {
        bodies! {
            /// What the decider concluded.
            Fact { $($(#[$doc])* $name = $type),* }
        }

        $(
            #[doc = concat!("Body of [`Fact::", stringify!($name), "`]", facts!(@tail $($tail)?))]
            #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
            pub struct $name {
                $($(#[$fdoc])* pub $field: $ftype),*
            }
        )*

        impl Fact {
            /// Every entity that it changes. The version of the first alone rises.
            pub fn subjects(&self) -> Vec<Subject> {
                let mut all = Vec::new();
                match self { $(Fact::$name(x) => facts!(@about x all $($about)*)),* }
                all
            }

            /// The entity whose id is made from the fact's own position, if it issues one.
            pub fn issues(&self, lineage: Lineage, position: Position) -> Option<Subject> {
                match self {
                    $($(Fact::$name(_) => Some(Subject::$issued($id::issue(lineage, position))),)?)*
                    // All others are about what has its name or id already.
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
    /// A decider has taken over; its commits carry the new term and writer from here.
    TermStarted = "term.started.v1" + ". Term and writer stand in the record's header.", [Fleet] {
        /// Where this decider takes input, if anywhere.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
    }
    /// The journal continues under a new identity: records at its end are missing, and somebody has accepted that.
    LineageStarted = "lineage.started.v1" + ". The new lineage stands in the record's header.", [Fleet] {
        /// The lineage so far.
        previous: Lineage,
        /// The last position under it that is part of this journal: nothing that is known of the journal contradicts it.
        at: Position,
        /// The highest position that is known to be missing, if any is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        missing_through: Option<Position>,
        /// Lineages that started in what is missing: nothing of them is held.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        abandoned: Vec<Lineage>,
    }
    /// The intent before it holds.
    IntentAccepted = "intent.accepted.v1", [..(subject)] {
        /// Which repeats are the same intent.
        key: Digest,
        /// Whether a repeat asks for the same.
        digest: Digest,
        /// When it was asked, by its sender's clock, else when it was decided.
        at: Time,
        /// What came of it.
        outcome: IntentOutcome,
        /// What it was about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<Subject>,
        /// The subject's version now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
    }
    /// The intent before it does not hold.
    IntentRefused = "intent.refused.v1", [..(subject)] {
        /// Which repeats are the same intent.
        key: Digest,
        /// Whether a repeat asks for the same.
        digest: Digest,
        /// When it was asked, by its sender's clock, else when it was decided.
        at: Time,
        /// Why, for programs.
        code: RefusalCode,
        /// Why, for people.
        detail: String,
        /// What it was about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<Subject>,
        /// The subject's version now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
        /// Where in the body, as JSON Pointers with what is wrong there.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        errors: BTreeMap<String, String>,
    }
    // What came of a place in a topic is about none of our entities.
    /// Something in the inbox could not be made into an intent.
    InboxMessageRefused = "inbox.refused.v1" + ". It changes no entity: it is the answer to what stands there.", [] {
        /// Which inbox, as in the header's watermark.
        topic: String,
        /// Where in it.
        offset: u64,
        /// The SHA-256 of the record's value, 64 hexadecimal digits; absent if it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<RecordHash>,
        /// Why, for programs.
        code: RefusalCode,
        /// Why, for people.
        detail: String,
    }
    /// A message of the inbox that cannot be read is given up.
    InboxSkipped = "inbox.skipped.v1" + ". It changes no entity. The topic is that of the header's watermark.", [] {
        /// The offset of the message.
        offset: u64,
    }
    /// The inbox is answered up to a place, though nothing else tells.
    InboxAdvanced = "inbox.advanced.v1" + ". It changes no entity.", [] {
        /// Which inbox, as in the header's watermark.
        topic: String,
        /// The offset of the first input that is not answered yet.
        next: u64,
    }
    // The header holds it all.
    /// Time has passed, and nothing else was recorded for long.
    TimeRecorded = "time.recorded.v1" + ". It changes no entity: the time is the record's.", [] {}
    /// An entity is left alone, because working on it failed in a way that must not happen.
    EntityQuarantined = "entity.parked.v1", [(subject)] {
        /// Which.
        subject: Subject,
        /// What went wrong.
        detail: String,
    }
    /// A cluster is so.
    ClusterApplied = "cluster.applied.v1", [Cluster(name)] {
        /// Which.
        name: ClusterName,
        /// What it is.
        spec: ClusterSpec,
    }
    /// A cluster is in use, or not.
    ClusterActivityChanged = "cluster.activity_changed.v1", [Cluster(name)] {
        /// Which.
        name: ClusterName,
        /// What it is.
        activity: ClusterActivity,
    }
    /// A cluster is forgotten.
    ClusterDeleted = "cluster.deleted.v1", [Cluster(name)] {
        /// Which.
        name: ClusterName,
    }
    /// A capability is so.
    CapabilityApplied = "capability.applied.v1", [Capability(name)] {
        /// Which.
        name: CapabilityName,
        /// What it is.
        spec: CapabilitySpec,
    }
    /// A capability counts, or not.
    CapabilityActivityChanged = "capability.activity_changed.v1", [Capability(name)] {
        /// Which.
        name: CapabilityName,
        /// What it is.
        activity: ClusterActivity,
    }
    /// A capability is forgotten.
    CapabilityDeleted = "capability.deleted.v1", [Capability(name)] {
        /// Which.
        name: CapabilityName,
    }
    /// A node is so.
    NodeApplied = "node.applied.v1", [Node(name)] {
        /// Which.
        name: NodeName,
        /// What it is.
        spec: NodeSpec,
    }
    /// A node has changed its state.
    NodeStateChanged = "node.moved.v1", [Node(name)] {
        /// Which.
        name: NodeName,
        /// Its state now.
        to: NodeState,
        /// Its cluster now.
        cluster: Option<ClusterName>,
    }
    /// A node is forgotten.
    NodeDeleted = "node.deleted.v1", [Node(name)] {
        /// Which.
        name: NodeName,
    }
    /// A node is going to be interfered with.
    DisruptionScheduled = "disruption.scheduled.v1", [Node(node)] {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
        /// What it is.
        spec: DisruptionSpec,
    }
    /// A disruption is acted on from now: its node takes no placements.
    DisruptionApproved = "disruption.approved.v1", [Node(node)] {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
        /// Who approved it.
        by: Actor,
    }
    /// A disruption is over.
    DisruptionCompleted = "disruption.completed.v1", [Node(node)] {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
    }
    /// A disruption that was over is forgotten.
    DisruptionDeleted = "disruption.deleted.v1", [Node(node)] {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
    }
    /// A policy is so.
    PolicyApplied = "policy.applied.v1", [Policy(name)] {
        /// Which.
        name: PolicyName,
        /// What it is.
        spec: PolicySpec,
    }
    /// A policy is forgotten.
    PolicyDeleted = "policy.deleted.v1", [Policy(name)] {
        /// Which.
        name: PolicyName,
    }
    /// A plan is so: a new generation.
    PlanApplied = "plan.applied.v1", [Plan(name)] {
        /// Which.
        name: PlanName,
        /// Counts its edits, from 1.
        generation: u32,
        /// What it is.
        spec: PlanSpec,
        /// Fields that differ from the generation before. Absent in what older builds wrote, and of a new plan.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changed: Vec<String>,
    }
    /// A plan takes deployments, or not.
    PlanActivityChanged = "plan.activity_changed.v1", [Plan(name)] {
        /// Which.
        name: PlanName,
        /// What it is.
        activity: ClusterActivity,
    }
    /// The spread of a plan at rest has become uneven, or even.
    PlanBalanceChanged = "plan.balance_changed.v1", [Plan(plan)] {
        /// Name of the plan.
        plan: PlanName,
        /// Whether a move of one replica would make the spread more even.
        balance: BalancePolicy,
    }
    /// Replicas of a plan are moved until the spread is even.
    PlanRebalanceStarted = "plan.rebalance_started.v1", [Plan(plan)] {
        /// Name of the plan.
        plan: PlanName,
        /// Actor on whose behalf the moves are requested.
        requested_by: Actor,
    }
    /// No more replicas of a plan are moved for its spread.
    PlanRebalanceEnded = "plan.rebalance_ended.v1", [Plan(plan)] {
        /// Name of the plan.
        plan: PlanName,
        /// Outcome of the rebalance.
        end: RebalanceEnd,
    }
    /// A plan is to go, with all that it has.
    PlanDeletionStarted = "plan.removing.v1", [Plan(name)] {
        /// Which.
        name: PlanName,
        /// Who wants it.
        by: Actor,
    }
    /// A plan is forgotten.
    PlanDeleted = "plan.deleted.v1", [Plan(name)] {
        /// Which.
        name: PlanName,
    }
    /// A deployment waits for its turn.
    DeploymentCreated = "deployment.created.v1", [Deployment(plan, name), Plan(plan)] {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// Of which generation of the plan.
        generation: u32,
        /// What should run.
        spec: DeploymentSpec,
        /// Who asked for it. Absent in what older builds wrote, and if a rule did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Actor>,
        /// What the deployment rolls back to, if it is a rollback.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rollback: Option<RollbackReference>,
    }
    /// A deployment is being carried out.
    DeploymentStarted = "deployment.started.v1", [Deployment(plan, name), Plan(plan)] {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// When its new set must be ready, if it has such a time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// A deployment begins nothing until it is resumed.
    DeploymentPaused = "deployment.paused.v1", [Deployment(plan, name)] {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// A deployment that was paused goes on.
    DeploymentResumed = "deployment.resumed.v1", [Deployment(plan, name)] {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// A deployment has made no progress for its progress deadline.
    DeploymentStalled = "deployment.stalled.v1", [Deployment(plan, name)] {
        /// Plan the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment.
        name: DeploymentName,
        /// Time of its last progress.
        since: Time,
        /// What the deployment waits for, for people.
        waits_for: String,
    }
    /// The new set of a deployment is the one that counts: what is left of the old one goes.
    DeploymentCutOver = "deployment.cut_over.v1", [Deployment(plan, name)] {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// A deployment starts nothing more, and ends when what runs has settled.
    DeploymentHalted = "deployment.ending.v1", [Deployment(plan, name)] {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// How it will end.
        why: DeploymentEnd,
    }
    /// A deployment is over.
    DeploymentEnded = "deployment.ended.v1", [Deployment(plan, name), Plan(plan)] {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// How.
        end: DeploymentEnd,
    }
    /// A replica exists. Its name is made from the position.
    ReplicaCreated = "replica.created.v1", [Replica(name), Deployment(plan, deployment), Plan(plan)] {
        /// Which.
        name: ReplicaName,
        /// Of which plan.
        plan: PlanName,
        /// By which deployment of it.
        deployment: DeploymentName,
    }
    /// A replica that has no run is of another deployment's version from now on.
    ReplicaDeploymentChanged = "replica.assigned.v1", [Replica(name), Deployment(plan, deployment)] {
        /// Which.
        name: ReplicaName,
        /// Of which plan.
        plan: PlanName,
        /// By which deployment it runs when it runs again.
        deployment: DeploymentName,
    }
    /// A replica is no more.
    ReplicaDeleted = "replica.deleted.v1", [Replica(name), ..Volume(volumes)] {
        /// Which.
        name: ReplicaName,
        /// The volumes that were its own: each is destroyed or kept, as it was made.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        volumes: Vec<VolumeName>,
    }
    /// An operation is wanted. Issues its id.
    OperationCreated = "operation.opened.v1", [Replica(replica)] issues Operation(OperationId) {
        /// On which replica.
        replica: ReplicaName,
        /// What.
        kind: OperationKind,
        /// On whose behalf: a deployment of the replica's plan, or else whoever [`by`](OperationOpened::by) says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deployment: Option<DeploymentName>,
        /// Who asked, where no deployment did. Absent in what older builds wrote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Requester>,
        /// The deployment whose version the replica is to have, where that is another than it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<DeploymentName>,
        /// The only node that will do, if there is such a one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
        /// What may be approved, where no place has to be found first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proposal: Option<ApprovalProposal>,
        /// The purpose, where the kind and the asker do not imply it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        purpose: Option<ProbePurpose>,
    }
    /// Operations of a plan find no place yet.
    PlanUnschedulable = "plan.waiting.v1", [Plan(plan)] {
        /// Which.
        plan: PlanName,
        /// Why not, by node.
        reasons: Vec<UnschedulableReason>,
    }
    /// An operation may run, and does, unless its turn comes later.
    OperationApproved = "operation.approved.v1", [Operation(operation), Replica(replica), ..Incarnation(incarnation)] {
        /// Which.
        operation: OperationId,
        /// On which replica.
        replica: ReplicaName,
        /// Who.
        by: ApprovalActor,
        /// On exactly what.
        hash: Digest,
        /// The incarnation that it commands, if one is concerned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incarnation: Option<IncarnationId>,
        /// When what it commands has lasted too long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
        /// Whether it begins now, or its turn comes later.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        begins: ApprovalStart,
    }
    /// The turn of an operation that was approved has come.
    OperationStarted = "operation.begun.v1", [Operation(operation), Replica(replica), ..Incarnation(incarnation)] {
        /// Which.
        operation: OperationId,
        /// On which replica.
        replica: ReplicaName,
        /// The incarnation that it commands, if one is concerned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incarnation: Option<IncarnationId>,
        /// When what it commands has lasted too long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// An operation is over.
    OperationEnded = "operation.ended.v1", [Operation(operation), Replica(replica)] {
        /// Which.
        operation: OperationId,
        /// On which replica.
        replica: ReplicaName,
        /// How.
        end: OperationEnd,
    }
    // What it is about changes only when it is approved.
    /// An intent waits as an approval request. Issues the request's id.
    RequestOpened = "request.opened.v1" + "(super::Fact::RequestOpened).", [] issues Request(RequestId) {
        /// Change that waits.
        change: RequestedChange,
        /// Actor who asked for the change.
        by: Actor,
        /// Replicas that the change ends or moves, by plan.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        effects: Vec<RequestEffect>,
        /// Policies that require the approval of another person than who asked; any person can approve if empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        policies: Vec<PolicyName>,
        /// Hash of the change and of every replica and volume that it ends or moves.
        hash: Digest,
        /// Time at which the request expires.
        expires: Time,
    }
    /// An approval request is approved; the facts of its change follow in the same commit.
    RequestApproved = "request.approved.v1" + "(super::Fact::RequestApproved).", [Request(request)] {
        /// Id of the request.
        request: RequestId,
        /// Actor who approved.
        by: Actor,
        /// Hash as it was shown.
        hash: Digest,
    }
    /// An approval request ended without its change.
    RequestEnded = "request.ended.v1" + "(super::Fact::RequestEnded).", [Request(request)] {
        /// Id of the request.
        request: RequestId,
        /// Outcome.
        end: RequestEnd,
    }
    /// A node is expunged without the approval that policies require: break-glass.
    ApprovalBypassed = "approval.bypassed.v1" + "(super::Fact::ApprovalBypassed).", [Node(node)] {
        /// Name of the node that is expunged.
        node: NodeName,
        /// Actor who did not wait for approval.
        by: Actor,
        /// Reason, for people.
        reason: String,
        /// Policies that required the approval of another person.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        policies: Vec<PolicyName>,
    }
    /// An operation has a place, and holds it. Issues the incarnation's id.
    IncarnationReserved = "incarnation.reserved.v1", [Operation(operation), Replica(replica), Node(node)] issues Incarnation(IncarnationId) {
        /// On behalf of which operation.
        operation: OperationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Where.
        node: NodeName,
        /// By which deployment's coordinates.
        deployment: DeploymentName,
        /// What it holds.
        amounts: Resources,
        /// What it holds of storage, by class.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        volumes: BTreeMap<StorageClass, u64>,
        /// What may be approved.
        proposal: ApprovalProposal,
        /// The run of the same replica that must be over before this one is begun. On the same node, this one holds
        /// of what both need only what that one does not, until then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        follows: Option<IncarnationId>,
        /// The groups of replicas that it is of.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        groups: Vec<GroupName>,
        /// Which affinity could not be kept, where that is allowed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        strained: Option<String>,
        /// The volumes that it uses, from when it is begun.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mounts: Vec<VolumeName>,
    }
    /// An incarnation is asked for something else than before.
    IncarnationStopRequested = "incarnation.commanded.v1", [Incarnation(incarnation), Replica(replica)] {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// The command.
        effect: CommandEffect,
        /// What it becomes when its end is proved.
        then: IncarnationEnd,
        /// When that has lasted too long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// An incarnation is asked to be up, now that it may be.
    IncarnationStartRequested = "incarnation.begun.v1", [Incarnation(incarnation), Replica(replica), ..Volume(mounts)] {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// By which deployment's coordinates.
        deployment: DeploymentName,
        /// When that has lasted too long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
        /// The volumes that it uses alone from now on. Those that were on another node come to its own.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mounts: Vec<VolumeName>,
    }
    /// A command could not be carried out.
    IncarnationCommandFailed = "command.failed.v1", [Incarnation(incarnation)] {
        /// Of which incarnation.
        incarnation: IncarnationId,
        /// Which command.
        revision: u32,
        /// Which attempt at it, from 1.
        attempt: u32,
        /// What went wrong.
        error: String,
        /// When it is tried again; never, if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Time>,
    }
    /// An incarnation has been started.
    IncarnationStarted = "incarnation.ensured.v1", [Incarnation(incarnation), Replica(replica)] {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Each process.
        processes: Vec<ProcessInfo>,
        /// Time at which it is ended if it is not ready again by then, by the plan's `unready`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// An incarnation is ready, and is the one that counts of its replica.
    IncarnationRunning = "incarnation.running.v1", [Incarnation(incarnation), Replica(replica), ..Operation(operation)] {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// The operation that has succeeded by it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        operation: Option<OperationId>,
        /// The run of the same replica whose place it takes, and that goes now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<IncarnationId>,
        /// Each process.
        processes: Vec<ProcessInfo>,
    }
    /// The processes of an incarnation changed, and its state did not.
    IncarnationProcessesChanged = "incarnation.status.v1", [Incarnation(incarnation), Replica(replica)] {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Each process.
        processes: Vec<ProcessInfo>,
        /// Time at which it is ended if it is not ready again by then, by the plan's `unready`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// An incarnation has ended, and what it held is free.
    IncarnationEnded = "incarnation.ended.v1", [Incarnation(incarnation), Replica(replica), Node(node), ..Operation(displaces), ..Volume(mounts)] {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Where it was.
        node: NodeName,
        /// How.
        end: IncarnationEnd,
        /// The operation whose place it only held, and that looks for another one now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        displaces: Option<OperationId>,
        /// Each process, as far as its end was seen.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        processes: Vec<ProcessInfo>,
        /// When the plan's rule starts the replica again, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<RestartBackoff>,
        /// The volumes that it used, and that are free for others now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mounts: Vec<VolumeName>,
    }
    /// There is to be a volume, and its executor is asked to make it. Issues its id.
    VolumeCreated = "volume.created.v1", [Volume(name), Incarnation(incarnation), Node(node)] {
        /// Which.
        name: VolumeName,
        /// Where.
        node: NodeName,
        /// Of which storage there.
        class: StorageClass,
        /// Bytes, which it holds of that.
        capacity: u64,
        /// For which incarnation, which held them until now.
        incarnation: IncarnationId,
        /// The replica whose own it is, if it is no one's to share.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<ReplicaName>,
        /// What becomes of it when that is deleted.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        on_delete: VolumeDeletion,
    }
    /// A volume is there, and may be used.
    VolumeReady = "volume.ready.v1", [Volume(name)] {
        /// Which.
        name: VolumeName,
    }
    /// What was asked of a volume could not be done.
    VolumeCommandFailed = "volume.failed.v1", [Volume(name)] {
        /// Which.
        name: VolumeName,
        /// Which command.
        revision: u32,
        /// Which attempt at it, from 1.
        attempt: u32,
        /// What went wrong.
        error: String,
        /// When it is tried again; never, if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Time>,
    }
    /// A volume is not there any more, though nobody asked for that.
    VolumeLost = "volume.lost.v1", [Volume(name)] {
        /// Which.
        name: VolumeName,
        /// How that is known.
        reason: String,
    }
    /// A volume is to go, once nothing can use it any more.
    VolumeDeletionStarted = "volume.removing.v1", [Volume(name)] {
        /// Which.
        name: VolumeName,
        /// Who asked for it.
        by: Requester,
    }
    /// Nothing can use a volume any more: its executor is asked to destroy it.
    VolumeDestroyRequested = "volume.destroying.v1", [Volume(name)] {
        /// Which.
        name: VolumeName,
    }
    /// A volume is no more, by proof.
    VolumeDestroyed = "volume.destroyed.v1", [Volume(name)] {
        /// Which.
        name: VolumeName,
    }
    /// An executor holds a cluster.
    SessionOpened = "session.opened.v1" + ". Issues the session's id.", [Cluster(cluster)] issues Session(SessionId) {
        /// Its scope.
        cluster: ClusterName,
        /// Who.
        executor: ExecutorName,
        /// What it drives.
        runtime: ClusterRuntime,
        /// What the cluster runs is in it from now on, and nobody without it may say what has become of that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<ExecutorStoreId>,
    }
    /// An executor holds a cluster no more.
    SessionClosed = "session.closed.v1", [Session(session), Cluster(cluster)] {
        /// Which.
        session: SessionId,
        /// Its scope.
        cluster: ClusterName,
        /// Why.
        end: SessionEnd,
    }
    /// An object that the fleet does not want has been judged.
    OrphanResolved = "object.judged.v1", [Cluster(cluster)] {
        /// Where.
        cluster: ClusterName,
        /// What it says it is. Called after what all objects were at first.
        #[serde(rename = "incarnation")]
        object: ObjectId,
        /// What is to be done with it.
        judgement: OrphanResolution,
        /// The revision of the command to remove it.
        revision: u32,
    }
}
