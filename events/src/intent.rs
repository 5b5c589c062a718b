//! Intents: what someone wants. An intent may be refused; it carries an actor, and an id that makes it safe to repeat.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::event::bodies;
use crate::id::{OperationId, RequestId};
use crate::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, IntentId, NodeName, PlanName,
    PolicyName, ReplicaName, Source, VolumeName,
};
use crate::spec::{
    Activity, CapabilitySpec, ClusterSpec, DeploymentSpec, DisruptionSpec, NodeSpec, NodeState, PlanSpec,
    PolicySpec, words,
};
use crate::subject::Subject;
use crate::time::Time;

/// An intent with all that came with it.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// Makes it safe to repeat, with actor and source.
    pub id: IntentId,
    /// Where it comes from.
    pub source: Source,
    /// Who asks.
    pub actor: Actor,
    /// Who it said that it is from, where that is not believed: it came by a topic, whose binding says who asks.
    pub claim: Option<Actor>,
    /// When it was first asked, by its sender's clock. Without one, the promise of idempotency holds for the
    /// window only.
    pub time: Option<Time>,
    /// The version of the subject that it was based on.
    pub expect: Option<u64>,
    /// W3C trace context, kept as it came.
    pub traceparent: Option<String>,
    /// What is wanted.
    pub intent: Intent,
}

impl Request {
    /// Which repeats are the same intent: actor, source and id. The first 24 bits are the actor's, the next 24 those of
    /// actor and source.
    pub fn key(&self) -> Digest {
        let (actor, source) = (self.actor.as_str().as_bytes(), self.source.as_str().as_bytes());
        let producer = Digest::of(&[actor, source]);
        Digest::of(&[actor, source, self.id.as_str().as_bytes()]).under(Digest::of(&[actor]), producer)
    }

    /// Whether a repeat asks for the same: the typed body, with the expected version.
    pub fn digest(&self) -> Digest {
        let body = self.intent.data_json();
        Digest::of(&[
            self.intent.type_name().as_bytes(),
            body.as_bytes(),
            format!("{:?}", self.expect).as_bytes(),
        ])
    }
}

bodies! {
    /// What someone wants.
    Intent {
        /// A cluster should be so.
        ClusterApply = "cluster.apply.v1",
        /// A cluster should be in use, or not.
        ClusterSetActivity = "cluster.set_activity.v1",
        /// A cluster should be forgotten.
        ClusterDelete = "cluster.delete.v1",
        /// A capability should be so.
        CapabilityApply = "capability.apply.v1",
        /// A capability should count, or not.
        CapabilitySetActivity = "capability.set_activity.v1",
        /// A capability should be forgotten.
        CapabilityDelete = "capability.delete.v1",
        /// A node should be so.
        NodeApply = "node.apply.v1",
        /// A node should change its state.
        NodeSetState = "node.set_state.v1",
        /// A node should be forgotten.
        NodeDelete = "node.delete.v1",
        /// A node is going to be interfered with.
        DisruptionSchedule = "disruption.schedule.v1",
        /// A disruption may be acted on.
        DisruptionApprove = "disruption.approve.v1",
        /// A disruption is over, or will not be.
        DisruptionComplete = "disruption.complete.v1",
        /// A disruption that is over should be forgotten.
        DisruptionDelete = "disruption.delete.v1",
        /// A policy should be so.
        PolicyApply = "policy.apply.v1",
        /// A policy should be forgotten.
        PolicyDelete = "policy.delete.v1",
        /// A plan should be so; an edit is a new generation.
        PlanApply = "plan.apply.v1",
        /// A plan should take deployments, or not.
        PlanSetActivity = "plan.set_activity.v1",
        /// A plan should run again what an earlier completed deployment of it had.
        PlanRollback = "plan.rollback.v1",
        /// Replicas of a plan should be moved until its spread is even.
        PlanRebalance = "plan.rebalance.v1",
        /// A plan should be forgotten.
        PlanDelete = "plan.delete.v1",
        /// A version of a plan's payloads should run, so many times.
        DeploymentCreate = "deployment.create.v1",
        /// A deployment should go no further.
        DeploymentCancel = "deployment.cancel.v1",
        /// A deployment should begin nothing more until it is resumed.
        DeploymentPause = "deployment.pause.v1",
        /// A deployment that is paused should go on.
        DeploymentResume = "deployment.resume.v1",
        /// What a canary showed is good: its version is for all.
        DeploymentPromote = "deployment.promote.v1",
        /// What a canary showed is not good: it goes.
        DeploymentWithdraw = "deployment.withdraw.v1",
        /// One more replica of a plan should come up.
        ReplicaCreate = "replica.create.v1",
        /// A replica should run on another node.
        ReplicaRelocate = "replica.relocate.v1",
        /// A replica should end its run, and come up again.
        ReplicaRestart = "replica.restart.v1",
        /// A replica should be brought up again.
        ReplicaStart = "replica.start.v1",
        /// A replica should stop, and stay stopped.
        ReplicaStop = "replica.stop.v1",
        /// A replica should go, with all of it.
        ReplicaDelete = "replica.delete.v1",
        /// A volume should go, with all that is in it, once nothing can use it any more.
        VolumeDelete = "volume.delete.v1",
        /// Operations may run, exactly as they were shown.
        OperationApprove = "operation.approve.v1",
        /// Operations should not run.
        OperationReject = "operation.reject.v1",
        /// Approves an approval request, exactly as it was shown.
        RequestApprove = "request.approve.v1",
        /// Rejects an approval request.
        RequestReject = "request.reject.v1",
        /// The inbox should continue behind a message that cannot be read.
        InboxSkip = "inbox.skip.v1",
    }
}

/// Body of [`Intent::ClusterApply`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterApply {
    /// Which.
    pub name: ClusterName,
    /// What it should be.
    pub spec: ClusterSpec,
}

/// Body of [`Intent::ClusterSetActivity`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSetActivity {
    /// Which.
    pub name: ClusterName,
    /// What it should be.
    pub activity: Activity,
}

/// Body of [`Intent::ClusterDelete`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterDelete {
    /// Which.
    pub name: ClusterName,
}

/// Body of [`Intent::CapabilityApply`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapabilityApply {
    /// Which.
    pub name: CapabilityName,
    /// What it should be.
    pub spec: CapabilitySpec,
}

/// Body of [`Intent::CapabilitySetActivity`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapabilitySetActivity {
    /// Which.
    pub name: CapabilityName,
    /// What it should be.
    pub activity: Activity,
}

/// Body of [`Intent::CapabilityDelete`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapabilityDelete {
    /// Which.
    pub name: CapabilityName,
}

/// Body of [`Intent::NodeApply`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeApply {
    /// Which.
    pub name: NodeName,
    /// What it should be.
    pub spec: NodeSpec,
    /// The cluster that it should be allocated to, if it is in none.
    #[serde(default)]
    pub cluster: Option<ClusterName>,
}

/// Body of [`Intent::NodeSetState`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSetState {
    /// Which.
    pub name: NodeName,
    /// The state wanted. From `unallocated`, `allocated` passes through `allocating` in the same commit.
    pub state: NodeState,
    /// The cluster, for `allocating` and `allocated` alone.
    #[serde(default)]
    pub cluster: Option<ClusterName>,
    /// Reason why an expunge cannot wait for the approval that policies require, for `expunged` alone. The expunge
    /// happens immediately, and `approval.bypassed` records the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub break_glass: Option<String>,
}

/// Body of [`Intent::NodeDelete`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeDelete {
    /// Which.
    pub name: NodeName,
    /// Whether what needs it goes first, or forbids it.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub cascade: Cascade,
}

/// Body of [`Intent::PlanApply`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanApply {
    /// Which.
    pub name: PlanName,
    /// What it should be.
    pub spec: PlanSpec,
}

/// Body of [`Intent::PlanSetActivity`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanSetActivity {
    /// Which.
    pub name: PlanName,
    /// What it should be.
    pub activity: Activity,
}

/// Body of [`Intent::PlanRollback`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRollback {
    /// Name of the plan.
    pub plan: PlanName,
    /// Name of the deployment that rolls the plan back, unique in the plan.
    pub name: DeploymentName,
    /// The completed deployment whose version is deployed again; if absent, the last one with another version than the
    /// plan has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<DeploymentName>,
}

/// Body of [`Intent::PlanRebalance`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRebalance {
    /// Name of the plan.
    pub name: PlanName,
}

/// Body of [`Intent::PlanDelete`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanDelete {
    /// Which.
    pub name: PlanName,
    /// Whether what needs it goes first, or forbids it.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub cascade: Cascade,
}

/// Body of [`Intent::DeploymentCreate`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentCreate {
    /// Of which plan.
    pub plan: PlanName,
    /// Its name, unique in the plan.
    pub name: DeploymentName,
    /// What should run.
    pub spec: DeploymentSpec,
    /// Whether one that is being carried out is ended for it, or it waits.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub turn: Turn,
}

words! {
    /// When a deployment's turn comes.
    #[derive(Default)]
    Turn {
        /// When the one that is being carried out is over.
        #[default]
        Queue = "queue",
        /// As soon as what the one before has begun is settled: it begins nothing more.
        Supersede = "supersede",
    }
    /// Whether what needs something goes with it.
    #[derive(Default)]
    Cascade {
        /// It is in use: it stays.
        #[default]
        No = "no",
        /// All that needs it goes first, then it.
        Yes = "yes",
    }
}

/// Body of [`Intent::DeploymentCancel`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentCancel {
    /// Of which plan.
    pub plan: PlanName,
    /// Which.
    pub name: DeploymentName,
}

/// Body of [`Intent::DeploymentPause`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentPause {
    /// Of which plan.
    pub plan: PlanName,
    /// Which.
    pub name: DeploymentName,
}

/// Body of [`Intent::DeploymentResume`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentResume {
    /// Of which plan.
    pub plan: PlanName,
    /// Which.
    pub name: DeploymentName,
}

/// Body of [`Intent::DeploymentPromote`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentPromote {
    /// Of which plan.
    pub plan: PlanName,
    /// Which.
    pub name: DeploymentName,
}

/// Body of [`Intent::DeploymentWithdraw`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentWithdraw {
    /// Of which plan.
    pub plan: PlanName,
    /// Which.
    pub name: DeploymentName,
}

/// Body of [`Intent::ReplicaCreate`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaCreate {
    /// Of which plan. It runs by the deployment that was carried out last.
    pub plan: PlanName,
    /// The node, if it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
}

/// Body of [`Intent::ReplicaRelocate`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaRelocate {
    /// Which.
    pub name: ReplicaName,
    /// To which node; to the best one, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
}

/// Body of [`Intent::ReplicaRestart`]. One that does not run is started.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaRestart {
    /// Which.
    pub name: ReplicaName,
}

/// Body of [`Intent::DisruptionSchedule`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisruptionSchedule {
    /// On which node.
    pub node: NodeName,
    /// Its name, unique on the node.
    pub name: DisruptionName,
    /// What it is.
    pub spec: DisruptionSpec,
}

/// Body of [`Intent::DisruptionApprove`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisruptionApprove {
    /// On which node.
    pub node: NodeName,
    /// Its name, unique on the node.
    pub name: DisruptionName,
}

/// Body of [`Intent::DisruptionComplete`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisruptionComplete {
    /// On which node.
    pub node: NodeName,
    /// Its name, unique on the node.
    pub name: DisruptionName,
}

/// Body of [`Intent::DisruptionDelete`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisruptionDelete {
    /// On which node.
    pub node: NodeName,
    /// Its name, unique on the node.
    pub name: DisruptionName,
}

/// Body of [`Intent::PolicyApply`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyApply {
    /// Which.
    pub name: PolicyName,
    /// What it should be.
    pub spec: PolicySpec,
}

/// Body of [`Intent::PolicyDelete`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyDelete {
    /// Which.
    pub name: PolicyName,
}

/// Body of [`Intent::ReplicaStart`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaStart {
    /// Which.
    pub name: ReplicaName,
    /// The node, if it matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
}

/// Body of [`Intent::ReplicaStop`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaStop {
    /// Which.
    pub name: ReplicaName,
}

/// Body of [`Intent::ReplicaDelete`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplicaDelete {
    /// Which.
    pub name: ReplicaName,
}

/// One operation, as it was shown to whoever approves it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Shown {
    /// Which.
    pub operation: OperationId,
    /// The hash of what it will do, as it was shown.
    pub hash: Digest,
}

/// Body of [`Intent::VolumeDelete`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeDelete {
    /// Which.
    pub name: VolumeName,
}

/// Body of [`Intent::OperationApprove`]. All of them or none.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OperationApprove {
    /// Which, and as what; at most 200.
    pub operations: Vec<Shown>,
}

/// Body of [`Intent::OperationReject`]. All of them or none.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OperationReject {
    /// Which; at most 200.
    pub operations: Vec<OperationId>,
    /// Why not.
    #[serde(default)]
    pub reason: String,
}

/// Body of [`Intent::RequestApprove`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestApprove {
    /// Id of the request.
    pub request: RequestId,
    /// Hash of the change and of everything that it ends or moves, as it was shown.
    pub hash: Digest,
}

/// Body of [`Intent::RequestReject`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestReject {
    /// Id of the request.
    pub request: RequestId,
    /// Reason of the rejection, for people.
    #[serde(default)]
    pub reason: String,
}

/// Body of [`Intent::InboxSkip`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InboxSkip {
    /// The offset at which the inbox stands, as `/readyz` says it.
    pub offset: u64,
}

impl Intent {
    /// What it is about; of many operations, the first.
    pub fn subject(&self) -> Option<Subject> {
        Some(match self {
            Intent::ClusterApply(x) => Subject::Cluster(x.name.clone()),
            Intent::ClusterSetActivity(x) => Subject::Cluster(x.name.clone()),
            Intent::ClusterDelete(x) => Subject::Cluster(x.name.clone()),
            Intent::CapabilityApply(x) => Subject::Capability(x.name.clone()),
            Intent::CapabilitySetActivity(x) => Subject::Capability(x.name.clone()),
            Intent::CapabilityDelete(x) => Subject::Capability(x.name.clone()),
            Intent::NodeApply(x) => Subject::Node(x.name.clone()),
            Intent::NodeSetState(x) => Subject::Node(x.name.clone()),
            Intent::NodeDelete(x) => Subject::Node(x.name.clone()),
            Intent::PlanApply(x) => Subject::Plan(x.name.clone()),
            Intent::PlanSetActivity(x) => Subject::Plan(x.name.clone()),
            Intent::PlanRollback(x) => Subject::Deployment(x.plan.clone(), x.name.clone()),
            Intent::PlanRebalance(x) => Subject::Plan(x.name.clone()),
            Intent::PlanDelete(x) => Subject::Plan(x.name.clone()),
            Intent::DeploymentCreate(x) => Subject::Deployment(x.plan.clone(), x.name.clone()),
            Intent::DeploymentCancel(x) => Subject::Deployment(x.plan.clone(), x.name.clone()),
            Intent::DeploymentPause(x) => Subject::Deployment(x.plan.clone(), x.name.clone()),
            Intent::DeploymentResume(x) => Subject::Deployment(x.plan.clone(), x.name.clone()),
            Intent::DeploymentPromote(x) => Subject::Deployment(x.plan.clone(), x.name.clone()),
            Intent::DeploymentWithdraw(x) => Subject::Deployment(x.plan.clone(), x.name.clone()),
            Intent::DisruptionSchedule(x) => Subject::Node(x.node.clone()),
            Intent::DisruptionApprove(x) => Subject::Node(x.node.clone()),
            Intent::DisruptionComplete(x) => Subject::Node(x.node.clone()),
            Intent::DisruptionDelete(x) => Subject::Node(x.node.clone()),
            Intent::PolicyApply(x) => Subject::Policy(x.name.clone()),
            Intent::PolicyDelete(x) => Subject::Policy(x.name.clone()),
            Intent::ReplicaCreate(x) => Subject::Plan(x.plan.clone()),
            Intent::ReplicaRelocate(x) => Subject::Replica(x.name.clone()),
            Intent::ReplicaRestart(x) => Subject::Replica(x.name.clone()),
            Intent::ReplicaStart(x) => Subject::Replica(x.name.clone()),
            Intent::ReplicaStop(x) => Subject::Replica(x.name.clone()),
            Intent::ReplicaDelete(x) => Subject::Replica(x.name.clone()),
            Intent::VolumeDelete(x) => Subject::Volume(x.name.clone()),
            Intent::OperationApprove(x) => Subject::Operation(x.operations.first()?.operation),
            Intent::OperationReject(x) => Subject::Operation(*x.operations.first()?),
            Intent::RequestApprove(x) => Subject::Request(x.request),
            Intent::RequestReject(x) => Subject::Request(x.request),
            Intent::InboxSkip(_) => Subject::Fleet,
        })
    }
}
