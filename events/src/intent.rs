//! Intents: changes that an actor requests. An intent may be refused. An intent carries an actor, and an id
//! that makes repeats safe.
//!
//! Each intent is listed once, in the register at the end: its type, its subject, its HTTP route, and its
//! body. The rule of each intent is an arm of `by_type` in `machine/src/decide.rs`; a command of the command
//! line is defined in `cli/src/args.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::event::bodies;
use crate::expected_version::ExpectedVersion;
use crate::extension::ExtensionAttributes;
use crate::id::{OperationId, RequestId};
use crate::level::FleetLevel;
use crate::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, IntentId, NodeName, PayloadName,
    PlanName, PolicyName, ReplicaName, SourceName, VolumeName,
};
use crate::spec::{
    CapabilitySpec, ClusterActivity, ClusterSpec, ConsoleAccess, DeploymentSpec, DisruptionSpec, NodeSpec,
    NodeState, PlanSpec, PolicyKind, PolicySpec, words,
};
use crate::subject::Subject;
use crate::time::Time;

/// Intent with its actor, id and other metadata.
#[derive(Clone, PartialEq, Debug)]
pub struct IntentRequest {
    /// Id that makes the intent safe to repeat, with actor and source.
    pub id: IntentId,
    /// Source that the intent comes from.
    pub source: SourceName,
    /// Actor who requests the intent.
    pub actor: Actor,
    /// Actor that the message claimed, where the claim is not trusted: the topic's binding determines the
    /// actor.
    pub claim: Option<Actor>,
    /// Time of the first request, by the sender's clock. Without a time, idempotency is guaranteed only
    /// within the retention window.
    pub time: Option<Time>,
    /// Version of the subject that the intent was based on.
    pub expect: Option<ExpectedVersion>,
    /// W3C trace context, stored as received; without one, that of the span of the request.
    pub traceparent: Option<String>,
    /// Extension attributes of the CloudEvent that this system does not know, recorded as received.
    pub extensions: ExtensionAttributes,
    /// Requested change.
    pub intent: Intent,
}

impl IntentRequest {
    /// Returns the idempotency key, which is equal in repeats: a digest of actor, source and id. The first 24
    /// bits derive from the actor, the next 24 bits from actor and source.
    pub fn key(&self) -> Digest {
        let (actor, source) = (self.actor.as_str().as_bytes(), self.source.as_str().as_bytes());
        let producer = Digest::of(&[actor, source]);
        Digest::of(&[actor, source, self.id.as_str().as_bytes()]).under(Digest::of(&[actor]), producer)
    }

    /// Returns the digest of the typed body and the expected version, which must be equal in a repeat.
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
    /// Policy for a new deployment while another deployment is in progress.
    #[derive(Default)]
    OverlapPolicy {
        /// Starts when the deployment in progress has ended.
        #[default]
        Queue = "queue",
        /// Starts when the running operations of the previous deployment have settled; the previous
        /// deployment starts nothing more.
        Supersede = "supersede",
    }
    /// Policy for the dependents of an entity that is deleted.
    #[derive(Default)]
    CascadePolicy {
        /// Refuses the deletion of an entity that is in use.
        #[default]
        No = "no",
        /// Removes all dependents first, and then the entity.
        Yes = "yes",
    }
}

/// Operation, as it was shown to the approver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovedOperation {
    /// Id of the operation.
    pub operation: OperationId,
    /// Hash of the proposed change, as it was shown.
    pub hash: Digest,
}

/// Whether a request of the route must have a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyRule {
    /// A body is required.
    Required,
    /// The path is sufficient; a body can only add details.
    Optional,
}

/// Kind of success after a change, which determines the HTTP status of the response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SuccessKind {
    /// The change is complete: 200.
    Now,
    /// The entity was created if its version is 1: 201, otherwise 200.
    Applied,
    /// The entity was created: 201.
    Created,
    /// Work follows: 202.
    Later,
}

/// Whether an intent can end replicas or incarnations, and which approval is required for that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IntentEnding {
    /// The intent ends no approved replica or incarnation.
    Nothing,
    /// The intent creates operations, each of which is approved by its plan's rule, a policy or a person.
    Operations,
    /// The intent waits as one approval request if its operations would need the approval of a person.
    Request(PolicyKind),
    /// The intent changes which approval operations need. It waits as an approval request if approval becomes
    /// weaker.
    Weakens,
    /// The intent approves pending operations or an approval request, exactly as they were shown.
    Approves,
    /// The intent ends only operations that were not started, and replicas that were never approved.
    Withdraws,
}

impl IntentEnding {
    /// Whether the intent may wait as an approval request.
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

/// Entry of an intent in the register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntentEntry {
    /// Type of the intent, with its version.
    pub type_name: &'static str,
    /// HTTP method of the route.
    pub method: &'static str,
    /// Path below the fleet. Parameters are in braces, and are members of the body.
    pub path: &'static str,
    /// Members of the body that the query may give instead: each is `yes` or `no`.
    pub query: &'static [&'static str],
    /// Whether the request must have a body.
    pub body: BodyRule,
    /// Description of the route, in one sentence.
    pub about: &'static str,
    /// Kind of success when the intent is accepted and changes something.
    pub done: SuccessKind,
    /// Ways in which the intent can end replicas or incarnations.
    pub ending: IntentEnding,
}

/// Declares intents: the enum, their bodies, their subjects, and their routes.
macro_rules! intents {
    ($(
        $(#[$doc:meta])* $name:ident = $type:literal $(+ $tail:literal)? $(since $level:literal)?, [$($about:tt)*]
        => $method:ident $path:literal $([$($query:ident),+])? $body:ident $summary:literal, $done:ident,
        ends $ending:ident$(($policy:ident))? {
            $($(#[$fdoc:meta])* $field:ident: $ftype:ty),* $(,)?
        }
    )*) => {
        bodies! {
            /// Intent: a change that an actor requests.
            Intent { $($(#[$doc])* $name = $type $(since $level)?),* }
        }

        $(
            #[doc = concat!("Body of [`Intent::", stringify!($name), "`]", intents!(@tail $($tail)?))]
            #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
            #[serde(deny_unknown_fields)]
            pub struct $name {
                $($(#[$fdoc])* pub $field: $ftype),*
            }

            impl $name {
                /// Entry of this intent in the register.
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
            /// Entries of all intents, in the order of [`Intent::TYPES`].
            pub const REGISTER: &[IntentEntry] = &[$($name::ENTRY),*];

            /// Returns the entry of the intent in the register.
            pub const fn entry(&self) -> &'static IntentEntry {
                match self { $(Intent::$name(_) => &$name::ENTRY),* }
            }

            /// Whether the intent also affects dependents of its subject: a member that the query may give is
            /// `yes`.
            pub fn cascades(&self) -> bool {
                match self { $($(Intent::$name(ask) => $(ask.$query == CascadePolicy::Yes)||+,)?)* _ => false }
            }

            /// Returns the subject of the intent; of several operations, the first.
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
    /// Creates or updates a cluster.
    ClusterApply = "cluster.apply.v1", [Cluster(name)]
        => PUT "/clusters/{name}" Required "Creates or updates a cluster.", Applied, ends Nothing {
        /// Name of the cluster.
        name: ClusterName,
        /// Specification of the cluster.
        spec: ClusterSpec,
    }
    /// Activates or deactivates a cluster.
    ClusterSetActivity = "cluster.set_activity.v1", [Cluster(name)]
        => POST "/clusters/{name}/activity" Required "Activates or deactivates a cluster.", Now, ends Nothing {
        /// Name of the cluster.
        name: ClusterName,
        /// Requested activity of the cluster.
        activity: ClusterActivity,
    }
    /// Deletes a cluster.
    ClusterDelete = "cluster.delete.v1", [Cluster(name)]
        => DELETE "/clusters/{name}" Optional "Deletes a cluster.", Now, ends Nothing {
        /// Name of the cluster.
        name: ClusterName,
    }
    /// Creates or updates a capability.
    CapabilityApply = "capability.apply.v1", [Capability(name)]
        => PUT "/capabilities/{name}" Required "Creates or updates a capability.", Applied, ends Nothing {
        /// Name of the capability.
        name: CapabilityName,
        /// Specification of the capability.
        spec: CapabilitySpec,
    }
    /// Activates or deactivates a capability.
    CapabilitySetActivity = "capability.set_activity.v1", [Capability(name)]
        => POST "/capabilities/{name}/activity" Required "Activates or deactivates a capability.", Now, ends Nothing {
        /// Name of the capability.
        name: CapabilityName,
        /// Requested activity of the capability.
        activity: ClusterActivity,
    }
    /// Deletes a capability.
    CapabilityDelete = "capability.delete.v1", [Capability(name)]
        => DELETE "/capabilities/{name}" Optional "Deletes a capability.", Now, ends Nothing {
        /// Name of the capability.
        name: CapabilityName,
    }
    /// Creates or updates a node.
    NodeApply = "node.apply.v1", [Node(name)]
        => PUT "/nodes/{name}" Required "Creates or updates a node.", Applied, ends Nothing {
        /// Name of the node.
        name: NodeName,
        /// Specification of the node.
        spec: NodeSpec,
        /// Cluster to which the node is allocated, if the node is in no cluster.
        #[serde(default)]
        cluster: Option<ClusterName>,
    }
    /// Changes the state of a node.
    NodeSetState = "node.set_state.v1", [Node(name)]
        => POST "/nodes/{name}/state" Required "Changes the state of a node.", Now, ends Request(Expunge) {
        /// Name of the node.
        name: NodeName,
        /// Requested state of the node. From `unallocated`, `allocated` passes through `allocating` in the
        /// same commit.
        state: NodeState,
        /// Cluster of the node, for `allocating` and `allocated` only.
        #[serde(default)]
        cluster: Option<ClusterName>,
        /// Reason why an expunge cannot wait for the approval that policies require, for `expunged` only. The
        /// node is expunged immediately, and `approval.bypassed` records the reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        break_glass: Option<String>,
    }
    /// Deletes a node.
    NodeDelete = "node.delete.v1", [Node(name)]
        => DELETE "/nodes/{name}" [cascade] Optional "Deletes a node.", Now, ends Request(Relocate) {
        /// Name of the node.
        name: NodeName,
        /// Policy for dependents of the node: `yes` drains the node first, `no` (default) refuses the
        /// deletion.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        cascade: CascadePolicy,
    }
    /// Schedules a disruption of a node.
    DisruptionSchedule = "disruption.schedule.v1", [Node(node)]
        => PUT "/nodes/{node}/disruptions/{name}" Required "Schedules a disruption of a node.", Created, ends Nothing {
        /// Node of the disruption.
        node: NodeName,
        /// Name of the disruption, unique on the node.
        name: DisruptionName,
        /// Specification of the disruption.
        spec: DisruptionSpec,
    }
    /// Approves a disruption: its node takes no placements, and is drained if the disruption requests that.
    DisruptionApprove = "disruption.approve.v1", [Node(node)]
        => POST "/nodes/{node}/disruptions/{name}/approve" Optional "Approves a disruption: its node takes no placements, and is drained if the disruption requests that.", Later, ends Request(Relocate) {
        /// Node of the disruption.
        node: NodeName,
        /// Name of the disruption, unique on the node.
        name: DisruptionName,
    }
    /// Ends a disruption, whether or not it took place.
    DisruptionComplete = "disruption.complete.v1", [Node(node)]
        => POST "/nodes/{node}/disruptions/{name}/complete" Optional "Ends a disruption.", Now, ends Withdraws {
        /// Node of the disruption.
        node: NodeName,
        /// Name of the disruption, unique on the node.
        name: DisruptionName,
    }
    /// Deletes a disruption that has ended.
    DisruptionDelete = "disruption.delete.v1", [Node(node)]
        => DELETE "/nodes/{node}/disruptions/{name}" Optional "Deletes a disruption that has ended.", Now, ends Nothing {
        /// Node of the disruption.
        node: NodeName,
        /// Name of the disruption, unique on the node.
        name: DisruptionName,
    }
    /// Creates or updates a policy.
    PolicyApply = "policy.apply.v1", [Policy(name)]
        => PUT "/policies/{name}" Required "Creates or updates a policy.", Applied, ends Weakens {
        /// Name of the policy.
        name: PolicyName,
        /// Specification of the policy.
        spec: PolicySpec,
    }
    /// Deletes a policy.
    PolicyDelete = "policy.delete.v1", [Policy(name)]
        => DELETE "/policies/{name}" Optional "Deletes a policy.", Now, ends Weakens {
        /// Name of the policy.
        name: PolicyName,
    }
    /// Creates or updates a plan; an update starts a generation.
    PlanApply = "plan.apply.v1", [Plan(name)]
        => PUT "/plans/{name}" Required "Creates or updates a plan; an update starts a generation.", Applied, ends Weakens {
        /// Name of the plan.
        name: PlanName,
        /// Specification of the plan.
        spec: PlanSpec,
    }
    /// Activates or deactivates a plan: an inactive plan takes no deployments.
    PlanSetActivity = "plan.set_activity.v1", [Plan(name)]
        => POST "/plans/{name}/activity" Required "Activates or deactivates a plan: an inactive plan takes no deployments.", Now, ends Nothing {
        /// Name of the plan.
        name: PlanName,
        /// Requested activity of the plan.
        activity: ClusterActivity,
    }
    /// Rolls a plan back to the version of an earlier completed deployment.
    PlanRollback = "plan.rollback.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/rollback" Required "Rolls a plan back to the version of an earlier completed deployment, and supersedes the deployment in progress.", Later, ends Operations {
        /// Name of the plan.
        plan: PlanName,
        /// Name of the deployment that rolls the plan back, unique in the plan.
        name: DeploymentName,
        /// Completed deployment whose version is deployed again; default: the last deployment whose version
        /// differs from the plan's current version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<DeploymentName>,
    }
    /// Moves replicas of a plan until its spread is even.
    PlanRebalance = "plan.rebalance.v1", [Plan(name)]
        => POST "/plans/{name}/rebalance" Required "Moves replicas of a plan, one relocate operation each, until no move makes its spread more even.", Later, ends Operations {
        /// Name of the plan.
        name: PlanName,
    }
    /// Deletes a plan.
    PlanDelete = "plan.delete.v1", [Plan(name)]
        => DELETE "/plans/{name}" [cascade] Optional "Deletes a plan.", Now, ends Request(Delete) {
        /// Name of the plan.
        name: PlanName,
        /// Policy for dependents of the plan: `yes` removes them first, `no` (default) refuses the deletion.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        cascade: CascadePolicy,
    }
    /// Deploys a version of a plan's payloads with a number of replicas.
    DeploymentCreate = "deployment.create.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments" Required "Deploys a version of a plan's payloads with a number of replicas.", Later, ends Operations {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
        /// Specification of the deployment.
        spec: DeploymentSpec,
        /// Policy for a deployment in progress: wait for its end (default), or supersede it.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        overlap: OverlapPolicy,
    }
    /// Cancels a deployment; finished updates stay.
    DeploymentCancel = "deployment.cancel.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments/{name}/cancel" Optional "Cancels a deployment; finished updates stay.", Later, ends Operations {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
    }
    /// Pauses a deployment: it starts nothing until it is resumed.
    DeploymentPause = "deployment.pause.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments/{name}/pause" Optional "Pauses a deployment: it starts nothing until it is resumed.", Now, ends Nothing {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
    }
    /// Resumes a paused deployment.
    DeploymentResume = "deployment.resume.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments/{name}/resume" Optional "Resumes a paused deployment.", Later, ends Operations {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
    }
    /// Promotes a canary: its version is deployed to all replicas.
    DeploymentPromote = "deployment.promote.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments/{name}/promote" Optional "Promotes a canary: its version is deployed to all replicas.", Later, ends Operations {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
    }
    /// Rolls back an unpromoted canary.
    DeploymentRollback = "deployment.rollback.v1", [Deployment(plan, name)]
        => POST "/plans/{plan}/deployments/{name}/rollback" Optional "Rolls back an unpromoted canary.", Later, ends Operations {
        /// Plan that the deployment belongs to.
        plan: PlanName,
        /// Name of the deployment, unique in the plan.
        name: DeploymentName,
    }
    /// Creates one more replica of a plan.
    ReplicaCreate = "replica.create.v1", [Plan(plan)]
        => POST "/plans/{plan}/replicas" Optional "Creates one more replica of a plan, on a given node or any suitable node.", Later, ends Operations {
        /// Plan of the new replica, which has the version of the deployment that was carried out last.
        plan: PlanName,
        /// Node for the new replica; default: any suitable node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
    }
    /// Moves a replica to another node.
    ReplicaRelocate = "replica.relocate.v1", [Replica(name)]
        => POST "/replicas/{name}/relocate" Optional "Moves a replica to a given node, or to the best node.", Later, ends Operations {
        /// Name of the replica.
        name: ReplicaName,
        /// Target node of the replica; default: the best node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
    }
    /// Restarts a replica: ends its incarnation and starts a new incarnation.
    ReplicaRestart = "replica.restart.v1" + ". A replica that does not run is started.", [Replica(name)]
        => POST "/replicas/{name}/restart" Optional "Restarts a replica: ends its incarnation and starts a new incarnation.", Later, ends Operations {
        /// Name of the replica.
        name: ReplicaName,
    }
    /// Reboots a replica that is a virtual machine: resets its guest within the incarnation.
    ReplicaReboot = "replica.reboot.v1" + ". Only a running replica on a runtime of virtual machines can be rebooted.", [Replica(name)]
        => POST "/replicas/{name}/reboot" Optional "Reboots a virtual machine: resets its guest, in the same incarnation.", Later, ends Operations {
        /// Name of the replica.
        name: ReplicaName,
    }
    /// Opens the console of a replica that is a virtual machine, for one attachment.
    ConsoleOpen = "console.open.v1" + ". The attachment follows with the position of the verdict.", [Replica(name)]
        => POST "/replicas/{name}/console" Optional "Opens the console of a virtual machine, for one attachment of the actor.", Now, ends Nothing {
        /// Name of the replica.
        name: ReplicaName,
        /// Payload whose guest has the console; default: the only payload.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        payload: Option<PayloadName>,
        /// Access to the console; default: `read_write`.
        #[serde(default, skip_serializing_if = "crate::is_default")]
        access: ConsoleAccess,
    }
    /// Starts a replica again.
    ReplicaStart = "replica.start.v1", [Replica(name)]
        => POST "/replicas/{name}/start" Optional "Starts a replica again.", Later, ends Operations {
        /// Name of the replica.
        name: ReplicaName,
        /// Node for the replica; default: any suitable node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node: Option<NodeName>,
    }
    /// Stops a replica, which is kept and stays stopped.
    ReplicaStop = "replica.stop.v1", [Replica(name)]
        => POST "/replicas/{name}/stop" Optional "Stops a replica, which is kept and stays stopped.", Later, ends Operations {
        /// Name of the replica.
        name: ReplicaName,
    }
    /// Deletes a replica with everything that it has.
    ReplicaDelete = "replica.delete.v1", [Replica(name)]
        => DELETE "/replicas/{name}" Optional "Deletes a replica with everything that it has.", Later, ends Operations {
        /// Name of the replica.
        name: ReplicaName,
    }
    /// Creates a volume with the content that another volume has at one moment.
    VolumeSnapshot = "volume.snapshot.v1" + ". The new volume has the node, class and capacity of its source, and no owner.", [Volume(name)]
        => POST "/volumes/{name}/snapshot" Required "Creates a volume with the content that another volume has at one moment.", Later, ends Nothing {
        /// Name of the volume that is copied.
        name: VolumeName,
        /// Name of the new volume.
        snapshot: VolumeName,
    }
    /// Deletes a volume and destroys its data, once nothing can use it.
    VolumeDelete = "volume.delete.v1", [Volume(name)]
        => DELETE "/volumes/{name}" Optional "Deletes a volume and destroys its data, once nothing uses it.", Later, ends Request(Delete) {
        /// Name of the volume.
        name: VolumeName,
    }
    /// Approves operations, exactly as they were shown.
    OperationApprove = "operation.approve.v1" + ". All operations are approved, or none.", [|x| Some(Subject::Operation(x.operations.first()?.operation))]
        => POST "/operations/approve" Required "Approves operations, all or none.", Later, ends Approves {
        /// Operations with the hashes that were shown; at most 200.
        operations: Vec<ApprovedOperation>,
    }
    /// Rejects operations, which then do not run.
    OperationReject = "operation.reject.v1" + ". All operations are rejected, or none.", [|x| Some(Subject::Operation(*x.operations.first()?))]
        => POST "/operations/reject" Required "Rejects operations, all or none.", Now, ends Withdraws {
        /// Ids of the operations; at most 200.
        operations: Vec<OperationId>,
        /// Reason of the rejection, for people.
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
    /// Raises the level of the fleet.
    FleetRaise = "fleet.raise.v1", [Fleet]
        => POST "/raise" Required "Raises the level of the fleet, so that events of that level are recorded.", Now, ends Nothing {
        /// Level from now on.
        to: FleetLevel,
        /// Addresses of servers that the raise does not wait for: they are gone, or start again only with a newer build.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        without: Vec<String>,
    }
    /// Skips an inbox message that cannot be read.
    InboxSkip = "inbox.skip.v1", [Fleet]
        => POST "/inbox/skip" Required "Skips the inbox message that cannot be read, and continues after it.", Now, ends Nothing {
        /// Offset of the inbox message that cannot be read, as `/readyz` reports it.
        offset: u64,
    }
}
