//! Facts: what the decider concluded. The only thing that changes state; each names its cause, and every entity
//! that it changes. What always follows from a fact is not a fact of its own.

mod subjects;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::Amounts;
use crate::digest::Digest;
use crate::event::bodies;
use crate::id::{IncarnationId, Lineage, ObjectId, OperationId, Position, ScopeId, SessionId};
use crate::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, ExecutorName, GroupName, NodeName,
    PlanName, PolicyName, ReplicaName, StorageClass, VolumeName,
};
use crate::observation::{Process, SessionEnd};
use crate::record::Hash;
use crate::refusal::Code;
use crate::spec::{
    Activity, CapabilitySpec, ClusterSpec, DeploymentSpec, DisruptionSpec, NodeSpec, NodeState, OnDelete,
    OperationKind, PlanSpec, PolicySpec, Runtime, words,
};
use crate::subject::Subject;
use crate::time::Time;

bodies! {
    /// What the decider concluded.
    Fact {
        /// A decider has taken over; its commits carry the new term and writer from here.
        TermStarted = "term.started.v1",
        /// The journal goes on under a new identity, after a restore, an import or a forced cut.
        LineageStarted = "lineage.started.v1",
        /// The intent before it holds.
        IntentAccepted = "intent.accepted.v1",
        /// The intent before it does not hold.
        IntentRefused = "intent.refused.v1",
        /// Something in the inbox could not be made into an intent.
        InboxRefused = "inbox.refused.v1",
        /// The inbox is answered up to a place, though nothing else tells.
        InboxAdvanced = "inbox.advanced.v1",
        /// An entity is left alone, because working on it failed in a way that must not happen.
        EntityParked = "entity.parked.v1",
        /// A cluster is so.
        ClusterApplied = "cluster.applied.v1",
        /// A cluster is in use, or not.
        ClusterActivityChanged = "cluster.activity_changed.v1",
        /// A cluster is forgotten.
        ClusterDeleted = "cluster.deleted.v1",
        /// A capability is so.
        CapabilityApplied = "capability.applied.v1",
        /// A capability counts, or not.
        CapabilityActivityChanged = "capability.activity_changed.v1",
        /// A capability is forgotten.
        CapabilityDeleted = "capability.deleted.v1",
        /// A node is so.
        NodeApplied = "node.applied.v1",
        /// A node has changed its state.
        NodeMoved = "node.moved.v1",
        /// A node is forgotten.
        NodeDeleted = "node.deleted.v1",
        /// A node is going to be interfered with.
        DisruptionScheduled = "disruption.scheduled.v1",
        /// A disruption is acted on from now: its node takes no placements.
        DisruptionApproved = "disruption.approved.v1",
        /// A disruption is over.
        DisruptionCompleted = "disruption.completed.v1",
        /// A disruption that was over is forgotten.
        DisruptionDeleted = "disruption.deleted.v1",
        /// A policy is so.
        PolicyApplied = "policy.applied.v1",
        /// A policy is forgotten.
        PolicyDeleted = "policy.deleted.v1",
        /// A plan is so: a new generation.
        PlanApplied = "plan.applied.v1",
        /// A plan takes deployments, or not.
        PlanActivityChanged = "plan.activity_changed.v1",
        /// A plan is to go, with all that it has.
        PlanRemoving = "plan.removing.v1",
        /// A plan is forgotten.
        PlanDeleted = "plan.deleted.v1",
        /// A deployment waits for its turn.
        DeploymentCreated = "deployment.created.v1",
        /// A deployment is being carried out.
        DeploymentStarted = "deployment.started.v1",
        /// A deployment begins nothing until it is resumed.
        DeploymentPaused = "deployment.paused.v1",
        /// A deployment that was paused goes on.
        DeploymentResumed = "deployment.resumed.v1",
        /// The new set of a deployment is the one that counts: what is left of the old one goes.
        DeploymentCutOver = "deployment.cut_over.v1",
        /// A deployment starts nothing more, and ends when what runs has settled.
        DeploymentEnding = "deployment.ending.v1",
        /// A deployment is over.
        DeploymentEnded = "deployment.ended.v1",
        /// A replica exists. Its name is made from the position.
        ReplicaCreated = "replica.created.v1",
        /// A replica that has no run is of another deployment's version from now on.
        ReplicaAssigned = "replica.assigned.v1",
        /// A replica is no more.
        ReplicaDeleted = "replica.deleted.v1",
        /// An operation is wanted. Issues its id.
        OperationOpened = "operation.opened.v1",
        /// Operations of a plan find no place yet.
        PlanWaiting = "plan.waiting.v1",
        /// An operation may run, and does, unless its turn comes later.
        OperationApproved = "operation.approved.v1",
        /// The turn of an operation that was approved has come.
        OperationBegun = "operation.begun.v1",
        /// An operation is over.
        OperationEnded = "operation.ended.v1",
        /// An operation has a place, and holds it. Issues the incarnation's id.
        IncarnationReserved = "incarnation.reserved.v1",
        /// An incarnation is asked for something else than before.
        IncarnationCommanded = "incarnation.commanded.v1",
        /// An incarnation is asked to be up, now that it may be.
        IncarnationBegun = "incarnation.begun.v1",
        /// A command could not be carried out.
        CommandFailed = "command.failed.v1",
        /// An incarnation has been started.
        IncarnationEnsured = "incarnation.ensured.v1",
        /// An incarnation is ready, and is the one that counts of its replica.
        IncarnationRunning = "incarnation.running.v1",
        /// The processes of an incarnation changed, and its state did not.
        IncarnationStatus = "incarnation.status.v1",
        /// An incarnation has ended, and what it held is free.
        IncarnationEnded = "incarnation.ended.v1",
        /// There is to be a volume, and its executor is asked to make it. Issues its id.
        VolumeCreated = "volume.created.v1",
        /// A volume is there, and may be used.
        VolumeReady = "volume.ready.v1",
        /// What was asked of a volume could not be done.
        VolumeFailed = "volume.failed.v1",
        /// A volume is not there any more, though nobody asked for that.
        VolumeLost = "volume.lost.v1",
        /// A volume is to go, once nothing can use it any more.
        VolumeRemoving = "volume.removing.v1",
        /// Nothing can use a volume any more: its executor is asked to destroy it.
        VolumeDestroying = "volume.destroying.v1",
        /// A volume is no more, by proof.
        VolumeDestroyed = "volume.destroyed.v1",
        /// An executor holds a cluster.
        SessionOpened = "session.opened.v1",
        /// An executor holds a cluster no more.
        SessionClosed = "session.closed.v1",
        /// An object that the fleet does not want has been judged.
        ObjectJudged = "object.judged.v1",
    }
}

macro_rules! body {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $type),*
        }
    )*};
}

body! {
    /// Body of [`Fact::TermStarted`]. Term and writer stand in the record's header.
    TermStarted {
        /// Where this decider takes input, if anywhere.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
    }
    /// Body of [`Fact::LineageStarted`]. The new lineage stands in the record's header.
    LineageStarted {
        /// The lineage so far.
        previous: Lineage,
        /// The last position under it.
        at: Position,
    }
    /// Body of [`Fact::IntentAccepted`].
    IntentAccepted {
        /// Which repeats are the same intent.
        key: Digest,
        /// Whether a repeat asks for the same.
        digest: Digest,
        /// When it was asked, by its sender's clock, else when it was decided.
        at: Time,
        /// What came of it.
        outcome: Outcome,
        /// What it was about.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<Subject>,
        /// The subject's version now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<u64>,
    }
    /// Body of [`Fact::IntentRefused`].
    IntentRefused {
        /// Which repeats are the same intent.
        key: Digest,
        /// Whether a repeat asks for the same.
        digest: Digest,
        /// When it was asked, by its sender's clock, else when it was decided.
        at: Time,
        /// Why, for programs.
        code: Code,
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
    /// Body of [`Fact::InboxRefused`]. It changes no entity: it is the answer to what stands there.
    InboxRefused {
        /// Which inbox, as in the header's watermark.
        topic: String,
        /// Where in it.
        offset: u64,
        /// The SHA-256 of the record's value, 64 hexadecimal digits; absent if it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        digest: Option<Hash>,
        /// Why, for programs.
        code: Code,
        /// Why, for people.
        detail: String,
    }
    /// Body of [`Fact::InboxAdvanced`]. It changes no entity.
    InboxAdvanced {
        /// Which inbox, as in the header's watermark.
        topic: String,
        /// The offset of the first input that is not answered yet.
        next: u64,
    }
    /// Body of [`Fact::EntityParked`].
    EntityParked {
        /// Which.
        subject: Subject,
        /// What went wrong.
        detail: String,
    }
    /// Body of [`Fact::ClusterApplied`].
    ClusterApplied {
        /// Which.
        name: ClusterName,
        /// What it is.
        spec: ClusterSpec,
    }
    /// Body of [`Fact::ClusterActivityChanged`].
    ClusterActivityChanged {
        /// Which.
        name: ClusterName,
        /// What it is.
        activity: Activity,
    }
    /// Body of [`Fact::ClusterDeleted`].
    ClusterDeleted {
        /// Which.
        name: ClusterName,
    }
    /// Body of [`Fact::CapabilityApplied`].
    CapabilityApplied {
        /// Which.
        name: CapabilityName,
        /// What it is.
        spec: CapabilitySpec,
    }
    /// Body of [`Fact::CapabilityActivityChanged`].
    CapabilityActivityChanged {
        /// Which.
        name: CapabilityName,
        /// What it is.
        activity: Activity,
    }
    /// Body of [`Fact::CapabilityDeleted`].
    CapabilityDeleted {
        /// Which.
        name: CapabilityName,
    }
    /// Body of [`Fact::NodeApplied`].
    NodeApplied {
        /// Which.
        name: NodeName,
        /// What it is.
        spec: NodeSpec,
    }
    /// Body of [`Fact::NodeMoved`].
    NodeMoved {
        /// Which.
        name: NodeName,
        /// Its state now.
        to: NodeState,
        /// Its cluster now.
        cluster: Option<ClusterName>,
    }
    /// Body of [`Fact::NodeDeleted`].
    NodeDeleted {
        /// Which.
        name: NodeName,
    }
    /// Body of [`Fact::DisruptionScheduled`].
    DisruptionScheduled {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
        /// What it is.
        spec: DisruptionSpec,
    }
    /// Body of [`Fact::DisruptionApproved`].
    DisruptionApproved {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
        /// Who approved it.
        by: Actor,
    }
    /// Body of [`Fact::DisruptionCompleted`].
    DisruptionCompleted {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
    }
    /// Body of [`Fact::DisruptionDeleted`].
    DisruptionDeleted {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
    }
    /// Body of [`Fact::PolicyApplied`].
    PolicyApplied {
        /// Which.
        name: PolicyName,
        /// What it is.
        spec: PolicySpec,
    }
    /// Body of [`Fact::PolicyDeleted`].
    PolicyDeleted {
        /// Which.
        name: PolicyName,
    }
    /// Body of [`Fact::PlanApplied`].
    PlanApplied {
        /// Which.
        name: PlanName,
        /// Counts its edits, from 1.
        generation: u32,
        /// What it is.
        spec: PlanSpec,
    }
    /// Body of [`Fact::PlanActivityChanged`].
    PlanActivityChanged {
        /// Which.
        name: PlanName,
        /// What it is.
        activity: Activity,
    }
    /// Body of [`Fact::PlanRemoving`].
    PlanRemoving {
        /// Which.
        name: PlanName,
        /// Who wants it.
        by: Actor,
    }
    /// Body of [`Fact::PlanDeleted`].
    PlanDeleted {
        /// Which.
        name: PlanName,
    }
    /// Body of [`Fact::DeploymentCreated`].
    DeploymentCreated {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// Of which generation of the plan.
        generation: u32,
        /// What should run.
        spec: DeploymentSpec,
        /// Who asked for it. Absent in what older builds wrote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Actor>,
    }
    /// Body of [`Fact::DeploymentStarted`].
    DeploymentStarted {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// When its new set must be ready, if it has such a time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Body of [`Fact::DeploymentPaused`].
    DeploymentPaused {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// Body of [`Fact::DeploymentResumed`].
    DeploymentResumed {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// Body of [`Fact::DeploymentCutOver`].
    DeploymentCutOver {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// Body of [`Fact::DeploymentEnding`].
    DeploymentEnding {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// How it will end.
        why: DeploymentEnd,
    }
    /// Body of [`Fact::DeploymentEnded`].
    DeploymentEnded {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
        /// How.
        end: DeploymentEnd,
    }
    /// Body of [`Fact::ReplicaCreated`].
    ReplicaCreated {
        /// Which.
        name: ReplicaName,
        /// Of which plan.
        plan: PlanName,
        /// By which deployment of it.
        deployment: DeploymentName,
    }
    /// Body of [`Fact::ReplicaAssigned`].
    ReplicaAssigned {
        /// Which.
        name: ReplicaName,
        /// Of which plan.
        plan: PlanName,
        /// By which deployment it runs when it runs again.
        deployment: DeploymentName,
    }
    /// Body of [`Fact::ReplicaDeleted`].
    ReplicaDeleted {
        /// Which.
        name: ReplicaName,
        /// The volumes that were its own: each is destroyed or kept, as it was made.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        volumes: Vec<VolumeName>,
    }
    /// Body of [`Fact::OperationOpened`].
    OperationOpened {
        /// On which replica.
        replica: ReplicaName,
        /// What.
        kind: OperationKind,
        /// On whose behalf: a deployment of the replica's plan, or else whoever [`by`](OperationOpened::by) says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deployment: Option<DeploymentName>,
        /// Who asked, where no deployment did. Absent in what older builds wrote.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Asker>,
        /// The deployment whose version the replica is to have, where that is another than it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<DeploymentName>,
        /// The only node that will do, if there is such a one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
        /// What may be approved, where no place has to be found first.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proposal: Option<Proposal>,
    }
    /// Body of [`Fact::PlanWaiting`].
    PlanWaiting {
        /// Which.
        plan: PlanName,
        /// Why not, by node.
        reasons: Vec<Unfit>,
    }
    /// Body of [`Fact::OperationApproved`].
    OperationApproved {
        /// Which.
        operation: OperationId,
        /// On which replica.
        replica: ReplicaName,
        /// Who.
        by: Approver,
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
        begins: Begins,
    }
    /// Body of [`Fact::OperationBegun`].
    OperationBegun {
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
    /// Body of [`Fact::OperationEnded`].
    OperationEnded {
        /// Which.
        operation: OperationId,
        /// On which replica.
        replica: ReplicaName,
        /// How.
        end: OperationEnd,
    }
    /// Body of [`Fact::IncarnationReserved`].
    IncarnationReserved {
        /// On behalf of which operation.
        operation: OperationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Where.
        node: NodeName,
        /// By which deployment's coordinates.
        deployment: DeploymentName,
        /// What it holds.
        amounts: Amounts,
        /// What it holds of storage, by class.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        volumes: BTreeMap<StorageClass, u64>,
        /// What may be approved.
        proposal: Proposal,
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
    /// Body of [`Fact::IncarnationCommanded`].
    IncarnationCommanded {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// The command.
        effect: Effect,
        /// What it becomes when its end is proved.
        then: IncarnationEnd,
        /// When that has lasted too long.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<Time>,
    }
    /// Body of [`Fact::IncarnationBegun`].
    IncarnationBegun {
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
    /// Body of [`Fact::CommandFailed`].
    CommandFailed {
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
    /// Body of [`Fact::IncarnationEnsured`].
    IncarnationEnsured {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Each process.
        processes: Vec<Process>,
    }
    /// Body of [`Fact::IncarnationRunning`].
    IncarnationRunning {
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
        processes: Vec<Process>,
    }
    /// Body of [`Fact::IncarnationStatus`].
    IncarnationStatus {
        /// Which.
        incarnation: IncarnationId,
        /// Of which replica.
        replica: ReplicaName,
        /// Each process.
        processes: Vec<Process>,
    }
    /// Body of [`Fact::IncarnationEnded`].
    IncarnationEnded {
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
        processes: Vec<Process>,
        /// When the plan's rule starts the replica again, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<Again>,
        /// The volumes that it used, and that are free for others now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        mounts: Vec<VolumeName>,
    }
    /// Body of [`Fact::VolumeCreated`].
    VolumeCreated {
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
        on_delete: OnDelete,
    }
    /// Body of [`Fact::VolumeReady`].
    VolumeReady {
        /// Which.
        name: VolumeName,
    }
    /// Body of [`Fact::VolumeFailed`].
    VolumeFailed {
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
    /// Body of [`Fact::VolumeLost`].
    VolumeLost {
        /// Which.
        name: VolumeName,
        /// How that is known.
        reason: String,
    }
    /// Body of [`Fact::VolumeRemoving`].
    VolumeRemoving {
        /// Which.
        name: VolumeName,
        /// Who asked for it.
        by: Asker,
    }
    /// Body of [`Fact::VolumeDestroying`].
    VolumeDestroying {
        /// Which.
        name: VolumeName,
    }
    /// Body of [`Fact::VolumeDestroyed`].
    VolumeDestroyed {
        /// Which.
        name: VolumeName,
    }
    /// Body of [`Fact::SessionOpened`]. Issues the session's id.
    SessionOpened {
        /// Its scope.
        cluster: ClusterName,
        /// Who.
        executor: ExecutorName,
        /// What it drives.
        runtime: Runtime,
        /// What the cluster runs is in it from now on, and nobody without it may say what has become of that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<ScopeId>,
    }
    /// Body of [`Fact::SessionClosed`].
    SessionClosed {
        /// Which.
        session: SessionId,
        /// Its scope.
        cluster: ClusterName,
        /// Why.
        end: SessionEnd,
    }
    /// Body of [`Fact::ObjectJudged`].
    ObjectJudged {
        /// Where.
        cluster: ClusterName,
        /// What it says it is. Called after what all objects were at first.
        #[serde(rename = "incarnation")]
        object: ObjectId,
        /// What is to be done with it.
        judgement: Judgement,
        /// The revision of the command to remove it.
        revision: u32,
    }
}

words! {
    /// What came of an accepted intent.
    Outcome {
        /// Something changed, or will.
        Changed = "changed",
        /// It was so already.
        Unchanged = "unchanged",
    }
    /// What an executor is asked to do with an incarnation.
    Effect {
        /// Bring it up as its spec says; nothing, if it is.
        Ensure = "ensure",
        /// End it: ask, and kill when the time for that is over.
        Stop = "stop",
        /// End it at once.
        Kill = "kill",
    }
    /// When what was approved begins.
    #[derive(Default)]
    Begins {
        /// With its approval.
        #[default]
        Now = "now",
        /// When its turn comes.
        Later = "later",
    }
    /// What is to be done with an object that the fleet does not want.
    Judgement {
        /// It was ours and is over: remove it.
        Remove = "remove",
        /// It is not ours to remove: leave it, and tell.
        Quarantine = "quarantine",
    }
}

/// Who asked for an operation, where no deployment did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Asker {
    /// A person or program, by an intent.
    Actor(Actor),
    /// A rule, by its name.
    Rule(String),
    /// A disruption of its node.
    Disruption {
        /// On which node.
        node: NodeName,
        /// Which.
        name: DisruptionName,
    },
}

/// A start by the plan's own rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Again {
    /// Not before.
    pub at: Time,
    /// The how manieth in a row it is, from 1.
    pub row: u32,
}

/// Nodes that one reason rules out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Unfit {
    /// Why, for people.
    pub reason: String,
    /// How many nodes.
    pub count: u32,
    /// The first of them by name, at most 64.
    pub nodes: Vec<NodeName>,
}

/// What may be approved, and until when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Proposal {
    /// The hash of what will be done.
    pub hash: Digest,
    /// When it expires.
    pub expires: Time,
}

/// Who approved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Approver {
    /// A person or program, by an intent.
    Actor(Actor),
    /// A rule, by its name.
    Rule(String),
}

/// How an operation ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationEnd {
    /// It did what it was to do.
    Succeeded,
    /// It did not.
    Failed {
        /// Why.
        reason: String,
    },
    /// Someone refused to approve it.
    Rejected {
        /// Who.
        by: Actor,
        /// Why.
        reason: String,
    },
    /// Nobody approved it in time.
    Expired,
    /// Its deployment went no further.
    Cancelled {
        /// Why.
        reason: String,
    },
    /// Another operation took its place.
    Superseded {
        /// Which.
        by: OperationId,
    },
}

/// How a deployment ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentEnd {
    /// What it wanted is so.
    Completed,
    /// An operation of it failed.
    Failed {
        /// Which, and why.
        cause: String,
    },
    /// Someone cancelled it.
    Cancelled,
    /// A newer one took its place.
    Superseded {
        /// Which.
        by: DeploymentName,
    },
}

/// How an incarnation ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IncarnationEnd {
    /// It ended as it was asked to, or cleanly by itself.
    Destroyed,
    /// It ended otherwise.
    Failed {
        /// Why.
        reason: String,
    },
    /// It never came to run.
    Unwound {
        /// Why.
        reason: String,
    },
}
