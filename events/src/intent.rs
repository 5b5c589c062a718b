//! Intents: what someone wants. An intent may be refused; it carries an actor, and an id that makes it safe to repeat.
//!
//! Each stands once, in the register at the end: its type, what it is about, how it is asked by HTTP, and its body. The
//! rule of each is an arm of `by_type` in `machine/src/decide.rs`; a command of the command line is written in
//! `cli/src/args.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::event::bodies;
use crate::id::{OperationId, RequestId};
use crate::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, IntentId, NodeName, PlanName,
    PolicyName, ReplicaName, SourceName, VolumeName,
};
use crate::spec::{
    CapabilitySpec, ClusterActivity, ClusterSpec, DeploymentSpec, DisruptionSpec, NodeSpec, NodeState,
    PlanSpec, PolicyKind, PolicySpec, words,
};
use crate::subject::Subject;
use crate::time::Time;

/// An intent with all that came with it.
#[derive(Clone, PartialEq, Debug)]
pub struct IntentRequest {
    /// Makes it safe to repeat, with actor and source.
    pub id: IntentId,
    /// Where it comes from.
    pub source: SourceName,
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

impl IntentRequest {
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

words! {
    /// When a deployment's turn comes.
    #[derive(Default)]
    OverlapPolicy {
        /// When the one that is being carried out is over.
        #[default]
        Queue = "queue",
        /// As soon as what the one before has begun is settled: it begins nothing more.
        Supersede = "supersede",
    }
    /// Whether what needs something goes with it.
    #[derive(Default)]
    CascadePolicy {
        /// It is in use: it stays.
        #[default]
        No = "no",
        /// All that needs it goes first, then it.
        Yes = "yes",
    }
}

/// One operation, as it was shown to whoever approves it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovedOperation {
    /// Which.
    pub operation: OperationId,
    /// The hash of what it will do, as it was shown.
    pub hash: Digest,
}

/// Whether a request of the route must have a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyRule {
    /// It must.
    Required,
    /// The path says enough; a body can only say it in more detail.
    Optional,
}

/// What has become of something that was changed, which tells the status of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SuccessKind {
    /// It is so: 200.
    Now,
    /// It is there for the first time, if its version says so: 201, else 200.
    Applied,
    /// It is there for the first time: 201.
    Created,
    /// Work follows: 202.
    Later,
}

/// Ways in which an intent can end a replica or an incarnation, and what approves that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntentEnding {
    /// Ends nothing that was approved.
    Nothing,
    /// Opens operations, each of which is approved by its plan's rule, a policy or a person.
    Operations,
    /// Waits as one request where its operations would need a person.
    Request(PolicyKind),
    /// Changes what approves operations; waits as a request where it makes approval weaker.
    Weakens,
    /// Approves what waits, for what was shown.
    Approves,
    /// Ends only what waits: operations that were not started, and replicas that were never approved.
    Withdraws,
}

impl IntentEnding {
    /// Whether the intent may wait as a request.
    pub const fn may_wait(self) -> bool {
        match self {
            IntentEnding::Request(_) | IntentEnding::Weakens => true,
            IntentEnding::Nothing
            | IntentEnding::Operations
            | IntentEnding::Approves
            | IntentEnding::Withdraws => false,
        }
    }
}

/// What the register says of an intent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntentEntry {
    /// Its type, with the version.
    pub type_name: &'static str,
    /// The method of a request for it.
    pub method: &'static str,
    /// The path below the fleet. Parameters stand in braces, and are members of the body.
    pub path: &'static str,
    /// Members of the body that the query may say instead: each is yes or no.
    pub query: &'static [&'static str],
    /// Whether there must be a body.
    pub body: BodyRule,
    /// What for, in a sentence.
    pub about: &'static str,
    /// What has become of it when it is accepted and changes something.
    pub done: SuccessKind,
    /// What it can end.
    pub ending: IntentEnding,
}

/// Declares intents: the enum, their bodies, what they are about, and their routes.
macro_rules! intents {
    ($(
        $(#[$doc:meta])* $name:ident = $type:literal $(+ $tail:literal)?, [$($about:tt)*]
        => $method:ident $path:literal $([$($query:ident),+])? $body:ident $summary:literal, $done:ident,
        ends $ending:ident$(($policy:ident))? {
            $($(#[$fdoc:meta])* $field:ident: $ftype:ty),* $(,)?
        }
    )*) => {
        bodies! {
            /// What someone wants.
            Intent { $($(#[$doc])* $name = $type),* }
        }

        $(
            #[doc = concat!("Body of [`Intent::", stringify!($name), "`]", intents!(@tail $($tail)?))]
            #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
            #[serde(deny_unknown_fields)]
            pub struct $name {
                $($(#[$fdoc])* pub $field: $ftype),*
            }

            impl $name {
                /// What the register says of it.
                pub const ENTRY: IntentEntry = IntentEntry {
                    type_name: $type,
                    method: stringify!($method),
                    path: $path,
                    query: &[$($(stringify!($query)),+)?],
                    body: BodyRule::$body,
                    about: $summary,
                    done: SuccessKind::$done,
                    ending: IntentEnding::$ending$((PolicyKind::$policy))?,
                };
            }
        )*

        impl Intent {
            /// What the register says of each, in the order of [`Intent::TYPES`].
            pub const REGISTER: &[IntentEntry] = &[$($name::ENTRY),*];

            /// What the register says of it.
            pub const fn entry(&self) -> &'static IntentEntry {
                match self { $(Intent::$name(_) => &$name::ENTRY),* }
            }

            /// Whether it is about what needs its subject, too: a member that the query may say is yes.
            pub fn cascades(&self) -> bool {
                match self { $($(Intent::$name(ask) => $(ask.$query == CascadePolicy::Yes)||+,)?)* _ => false }
            }

            /// What it is about; of many operations, the first.
            pub fn subject(&self) -> Option<Subject> {
                match self { $(Intent::$name(x) => intents!(@about x $($about)*)),* }
            }
        }
    };
    (@tail) => { "." };
    (@tail $tail:literal) => { $tail };
    (@about $x:ident $kind:ident($($field:ident),+)) => { Some(Subject::$kind($($x.$field.clone()),+)) };
    (@about $x:ident $kind:ident) => {{
        let _ = $x;
        Some(Subject::$kind)
    }};
    (@about $x:ident |$body:ident| $subject:expr) => {{
        let $body = $x;
        $subject
    }};
}

intents! {
    /// A cluster should be so.
    ClusterApply = "cluster.apply.v1", [Cluster(name)]
        => PUT "/clusters/{name}" Required "Makes a cluster so.", Applied, ends Nothing {
        /// Which.
        name: ClusterName,
        /// What it should be.
        spec: ClusterSpec,
    }
    /// A cluster should be in use, or not.
    ClusterSetActivity = "cluster.set_activity.v1", [Cluster(name)]
        => POST "/clusters/{name}/activity" Required "Puts a cluster in use, or out of it.", Now, ends Nothing {
        /// Which.
        name: ClusterName,
        /// What it should be.
        activity: ClusterActivity,
    }
    /// A cluster should be forgotten.
    ClusterDelete = "cluster.delete.v1", [Cluster(name)]
        => DELETE "/clusters/{name}" Optional "Forgets a cluster.", Now, ends Nothing {
        /// Which.
        name: ClusterName,
    }
    /// A capability should be so.
    CapabilityApply = "capability.apply.v1", [Capability(name)]
        => PUT "/capabilities/{name}" Required "Makes a capability so.", Applied, ends Nothing {
        /// Which.
        name: CapabilityName,
        /// What it should be.
        spec: CapabilitySpec,
    }
    /// A capability should count, or not.
    CapabilitySetActivity = "capability.set_activity.v1", [Capability(name)]
        => POST "/capabilities/{name}/activity" Required "Lets a capability count, or not.", Now, ends Nothing {
        /// Which.
        name: CapabilityName,
        /// What it should be.
        activity: ClusterActivity,
    }
    /// A capability should be forgotten.
    CapabilityDelete = "capability.delete.v1", [Capability(name)]
        => DELETE "/capabilities/{name}" Optional "Forgets a capability.", Now, ends Nothing {
        /// Which.
        name: CapabilityName,
    }
    /// A node should be so.
    NodeApply = "node.apply.v1", [Node(name)]
        => PUT "/nodes/{name}" Required "Makes a node so.", Applied, ends Nothing {
        /// Which.
        name: NodeName,
        /// What it should be.
        spec: NodeSpec,
        /// The cluster that it should be allocated to, if it is in none.
        #[serde(default)]
        cluster: Option<ClusterName>,
    }
    /// A node should change its state.
    NodeSetState = "node.set_state.v1", [Node(name)]
        => POST "/nodes/{name}/state" Required "Changes a node's state.", Now, ends Request(Expunge) {
        /// Which.
        name: NodeName,
        /// The state wanted. From `unallocated`, `allocated` passes through `allocating` in the same commit.
        state: NodeState,
        /// The cluster, for `allocating` and `allocated` alone.
        #[serde(default)]
        cluster: Option<ClusterName>,
        /// Reason why an expunge cannot wait for the approval that policies require, for `expunged` alone. The expunge
        /// happens immediately, and `approval.bypassed` records the reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        break_glass: Option<String>,
    }
    /// A node should be forgotten.
    NodeDelete = "node.delete.v1", [Node(name)]
        => DELETE "/nodes/{name}" [cascade] Optional "Forgets a node.", Now, ends Request(Relocate) {
        /// Which.
        name: NodeName,
        /// Whether what needs it goes first, or forbids it.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        cascade: CascadePolicy,
    }
    /// A node is going to be interfered with.
    DisruptionSchedule = "disruption.schedule.v1", [Node(node)]
        => PUT "/nodes/{node}/disruptions/{name}" Required "Schedules a disruption of a node.", Created, ends Nothing {
        /// On which node.
        node: NodeName,
        /// Its name, unique on the node.
        name: DisruptionName,
        /// What it is.
        spec: DisruptionSpec,
    }
    /// A disruption may be acted on.
    DisruptionApprove = "disruption.approve.v1", [Node(node)]
        => POST "/nodes/{node}/disruptions/{name}/approve" Optional "Lets a disruption be acted on: its node takes no placements, and is emptied if that is wanted.", Later, ends Request(Relocate) {
        /// On which node.
        node: NodeName,
        /// Its name, unique on the node.
        name: DisruptionName,
    }
    /// A disruption is over, or will not be.
    DisruptionComplete = "disruption.complete.v1", [Node(node)]
        => POST "/nodes/{node}/disruptions/{name}/complete" Optional "Ends a disruption.", Now, ends Withdraws {
        /// On which node.
        node: NodeName,
        /// Its name, unique on the node.
        name: DisruptionName,
    }
    /// A disruption that is over should be forgotten.
    DisruptionDelete = "disruption.delete.v1", [Node(node)]
        => DELETE "/nodes/{node}/disruptions/{name}" Optional "Forgets a disruption that is over.", Now, ends Nothing {
        /// On which node.
        node: NodeName,
        /// Its name, unique on the node.
        name: DisruptionName,
    }
    /// A policy should be so.
    PolicyApply = "policy.apply.v1", [Policy(name)]
        => PUT "/policies/{name}" Required "Makes a policy so.", Applied, ends Weakens {
        /// Which.
        name: PolicyName,
        /// What it should be.
        spec: PolicySpec,
    }
    /// A policy should be forgotten.
    PolicyDelete = "policy.delete.v1", [Policy(name)]
        => DELETE "/policies/{name}" Optional "Forgets a policy.", Now, ends Weakens {
        /// Which.
        name: PolicyName,
    }
    /// A plan should be so; an edit is a new generation.
    PlanApply = "plan.apply.v1", [Plan(name)]
        => PUT "/plans/{name}" Required "Makes a plan so: a new generation.", Applied, ends Weakens {
        /// Which.
        name: PlanName,
        /// What it should be.
        spec: PlanSpec,
    }
    /// A plan should take deployments, or not.
    PlanSetActivity = "plan.set_activity.v1", [Plan(name)]
        => POST "/plans/{name}/activity" Required "Lets a plan take deployments, or not.", Now, ends Nothing {
        /// Which.
        name: PlanName,
        /// What it should be.
        activity: ClusterActivity,
    }
    /// A plan should run again what an earlier completed deployment of it had.
    PlanRollback = "plan.rollback.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/rollback" Required "Deploys again what an earlier completed deployment of a plan had, and supersedes what is in progress.", Later, ends Operations {
        /// Name of the plan.
        plan: PlanName,
        /// Name of the deployment that rolls the plan back, unique in the plan.
        name: DeploymentName,
        /// The completed deployment whose version is deployed again; if absent, the last one with another version than the
        /// plan has now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<DeploymentName>,
    }
    /// Replicas of a plan should be moved until its spread is even.
    PlanRebalance = "plan.rebalance.v1", [Plan(name)]
        => POST "/plans/{name}/rebalance" Required "Moves replicas of a plan, one relocate each, until no move makes its spread more even.", Later, ends Operations {
        /// Name of the plan.
        name: PlanName,
    }
    /// A plan should be forgotten.
    PlanDelete = "plan.delete.v1", [Plan(name)]
        => DELETE "/plans/{name}" [cascade] Optional "Forgets a plan.", Now, ends Request(Delete) {
        /// Which.
        name: PlanName,
        /// Whether what needs it goes first, or forbids it.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        cascade: CascadePolicy,
    }
    /// A version of a plan's payloads should run, so many times.
    DeploymentCreate = "deployment.create.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments" Required "Runs a version of a plan's payloads, so many times.", Later, ends Operations {
        /// Of which plan.
        plan: PlanName,
        /// Its name, unique in the plan.
        name: DeploymentName,
        /// What should run.
        spec: DeploymentSpec,
        /// Whether one that is being carried out is ended for it, or it waits.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        turn: OverlapPolicy,
    }
    /// A deployment should go no further.
    DeploymentCancel = "deployment.cancel.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments/{name}/cancel" Optional "Lets a deployment go no further.", Later, ends Operations {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// A deployment should begin nothing more until it is resumed.
    DeploymentPause = "deployment.pause.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments/{name}/pause" Optional "Lets a deployment begin nothing more until it is resumed.", Now, ends Nothing {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// A deployment that is paused should go on.
    DeploymentResume = "deployment.resume.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments/{name}/resume" Optional "Lets a deployment that is paused go on.", Later, ends Operations {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// What a canary showed is good: its version is for all.
    DeploymentPromote = "deployment.promote.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments/{name}/promote" Optional "Makes a canary's version that of all.", Later, ends Operations {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// What a canary showed is not good: it goes.
    DeploymentAbort = "deployment.withdraw.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments/{name}/withdraw" Optional "Takes a canary back.", Later, ends Operations {
        /// Of which plan.
        plan: PlanName,
        /// Which.
        name: DeploymentName,
    }
    /// One more replica of a plan should come up.
    ReplicaCreate = "replica.create.v1", [Plan(plan)]
        => POST "/plans/{plan}/replicas" Optional "Creates one more replica of a plan, on a node if one is named.", Later, ends Operations {
        /// Of which plan. It runs by the deployment that was carried out last.
        plan: PlanName,
        /// The node, if it matters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
    }
    /// A replica should run on another node.
    ReplicaRelocate = "replica.relocate.v1", [Replica(name)]
        => POST "/replicas/{name}/relocate" Optional "Moves a replica to a node, or to the best one.", Later, ends Operations {
        /// Which.
        name: ReplicaName,
        /// To which node; to the best one, if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
    }
    /// A replica should end its run, and come up again.
    ReplicaRestart = "replica.restart.v1" + ". One that does not run is started.", [Replica(name)]
        => POST "/replicas/{name}/restart" Optional "Ends a replica's run, and brings it up again.", Later, ends Operations {
        /// Which.
        name: ReplicaName,
    }
    /// A replica should be brought up again.
    ReplicaStart = "replica.start.v1", [Replica(name)]
        => POST "/replicas/{name}/start" Optional "Brings a replica up again.", Later, ends Operations {
        /// Which.
        name: ReplicaName,
        /// The node, if it matters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
    }
    /// A replica should stop, and stay stopped.
    ReplicaStop = "replica.stop.v1", [Replica(name)]
        => POST "/replicas/{name}/stop" Optional "Stops a replica, and keeps it.", Later, ends Operations {
        /// Which.
        name: ReplicaName,
    }
    /// A replica should go, with all of it.
    ReplicaDelete = "replica.delete.v1", [Replica(name)]
        => DELETE "/replicas/{name}" Optional "Removes a replica, with all of it.", Later, ends Operations {
        /// Which.
        name: ReplicaName,
    }
    /// A volume should go, with all that is in it, once nothing can use it any more.
    VolumeDelete = "volume.delete.v1", [Volume(name)]
        => DELETE "/volumes/{name}" Optional "Destroys a volume, with all that is in it, once nothing uses it.", Later, ends Request(Delete) {
        /// Which.
        name: VolumeName,
    }
    /// Operations may run, exactly as they were shown.
    OperationApprove = "operation.approve.v1" + ". All of them or none.", [|x| Some(Subject::Operation(x.operations.first()?.operation))]
        => POST "/operations/approve" Required "Approves operations, all or none.", Later, ends Approves {
        /// Which, and as what; at most 200.
        operations: Vec<ApprovedOperation>,
    }
    /// Operations should not run.
    OperationReject = "operation.reject.v1" + ". All of them or none.", [|x| Some(Subject::Operation(*x.operations.first()?))]
        => POST "/operations/reject" Required "Rejects operations, all or none.", Now, ends Withdraws {
        /// Which; at most 200.
        operations: Vec<OperationId>,
        /// Why not.
        #[serde(default)]
        reason: String,
    }
    /// Approves an approval request, exactly as it was shown.
    RequestApprove = "request.approve.v1", [Request(request)]
        => POST "/requests/{request}/approve" Required "Approves an approval request, exactly as it was shown.", Later, ends Approves {
        /// Id of the request.
        request: RequestId,
        /// Hash of the change and of everything that it ends or moves, as it was shown.
        hash: Digest,
    }
    /// Rejects an approval request.
    RequestReject = "request.reject.v1", [Request(request)]
        => POST "/requests/{request}/reject" Optional "Rejects an approval request.", Now, ends Withdraws {
        /// Id of the request.
        request: RequestId,
        /// Reason of the rejection, for people.
        #[serde(default)]
        reason: String,
    }
    /// The inbox should continue behind a message that cannot be read.
    InboxSkip = "inbox.skip.v1", [Fleet]
        => POST "/inbox/skip" Required "Gives up the message of the inbox that cannot be read, and continues behind it.", Now, ends Nothing {
        /// The offset at which the inbox stands, as `/readyz` says it.
        offset: u64,
    }
}
