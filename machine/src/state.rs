//! The entities of a fleet as the facts so far tell them. Each has a room of its own for its rules; here stand their
//! shapes, because snapshots and rows are made of them.
//!
//! The shapes are encoded by position (bincode): no field may be left out when it is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_events::amount::Amounts;
use chancery_events::digest::Digest;
use chancery_events::fact::{
    Again, Approver, Asker, DeploymentEnd, Effect, IncarnationEnd, OperationEnd, Proposal, RequestEffect,
    RequestEnd, RequestedChange, Rollback, Unfit,
};
use chancery_events::id::{IncarnationId, OperationId, Position, RequestId, ScopeId, SessionId, VolumeId};
use chancery_events::lifecycle::{SetWord, WillWord};
use chancery_events::name::{
    Actor, CapabilityName, ClusterName, DeploymentName, DisruptionName, DomainName, ExecutorName, NodeName,
    PlanName, PolicyName, ReplicaName, StorageClass, VolumeName,
};
use chancery_events::observation::{Process, SessionEnd};
use chancery_events::spec::{
    Activity, Balance, CapabilitySpec, ClusterSpec, DeploymentSpec, DisruptionSpec, DisruptionState,
    NodeSpec, NodeState, OnDelete, OperationKind, PolicySpec, Purpose, Runtime,
};
use chancery_events::time::Time;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::fleet::Indexed;
use crate::index::Index;
use crate::marks::{
    Both, DeploymentMarks, IncarnationMarks, OperationMarks, PlanMarks, ReplicaMarks, RequestMarks, Unmarked,
    VolumeMarks, Whole,
};
use crate::meta::{Meta, Stamp};
pub use crate::plan::Specs;

mod questions;
mod ties;

pub use ties::{Bonds, Ties};

/// Changes whenever the shape of an entity does, or there is another kind of them: a snapshot with another one is not
/// read.
pub const IMAGE_FINGERPRINT: &str = "fleet-image-16";

/// A set of nodes behind one orchestrator.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cluster {
    /// Its name.
    pub name: ClusterName,
    /// What it is.
    pub spec: ClusterSpec,
    /// Whether nodes may be allocated to it and placements made in it.
    pub activity: Activity,
    /// Its live session.
    pub session: Option<SessionId>,
    /// Where what it runs is, once an executor has held it.
    pub scope: Option<Scope>,
    /// Its history.
    pub meta: Meta,
}

/// Where the executor of a cluster looks for what runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Scope {
    /// Which.
    pub id: ScopeId,
    /// Whose it was last.
    pub executor: ExecutorName,
    /// When its last session closed: what was first commanded later, nobody there was told of. None while one is
    /// open.
    pub until: Option<Position>,
}

/// Something a node may have.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Capability {
    /// Its name.
    pub name: CapabilityName,
    /// What it is.
    pub spec: CapabilitySpec,
    /// Whether it counts in placement.
    pub activity: Activity,
    /// Its history.
    pub meta: Meta,
}

/// A place with capacity.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// What it is.
    pub spec: Arc<NodeSpec>,
    /// Its state.
    pub state: NodeState,
    /// Its cluster, while allocating or allocated.
    pub cluster: Option<ClusterName>,
    /// What is planned to be done to it, and what was.
    pub disruptions: BTreeMap<DisruptionName, Disruption>,
    /// Expunge that did not wait for the approval that policies require.
    pub bypass: Option<Bypass>,
    /// Its history.
    pub meta: Meta,
}

/// Break-glass: an approval that was not waited for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bypass {
    /// Actor who did not wait.
    pub by: Actor,
    /// Reason, for people.
    pub reason: String,
    /// Policies that required the approval of another person.
    pub policies: Vec<PolicyName>,
}

/// A planned interference with a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Disruption {
    /// What it is.
    pub spec: DisruptionSpec,
    /// Its state.
    pub state: DisruptionState,
    /// Who approved it.
    pub by: Option<Actor>,
    /// When it came to be in that state.
    pub since: Stamp,
}

/// A rule about approvals, beside those of plans.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Policy {
    /// Its name.
    pub name: PolicyName,
    /// What it is.
    pub spec: Arc<PolicySpec>,
    /// Its history.
    pub meta: Meta,
}

/// What to run and where it may run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Its name.
    pub name: PlanName,
    /// Counts its edits, from 1.
    pub generation: u32,
    /// What it is now, and what it was as far as a deployment still refers to it.
    pub specs: Specs,
    /// Whether it takes deployments.
    pub activity: Activity,
    /// Its deployments, oldest first.
    pub deployments: Vec<DeploymentName>,
    /// The deployment being carried out.
    pub current: Option<DeploymentName>,
    /// The deployment that waits for its turn.
    pub next: Option<DeploymentName>,
    /// Why operations that wait for a place have none.
    pub unfit: Vec<Unfit>,
    /// How many operations ended, by kind and outcome, for ever.
    pub totals: BTreeMap<(OperationKind, String), u64>,
    /// The last move of a replica by a disruption, if it failed.
    pub setback: Option<Setback>,
    /// Whether a move would make the spread more even, as far as the plan was at rest.
    pub balance: Balance,
    /// The rebalance in progress.
    pub rebalance: Option<Rebalance>,
    /// Who wants it to go, with all that it has.
    pub removing: Option<Actor>,
    /// Why it is left alone.
    pub parked: Option<String>,
    /// Its history.
    pub meta: Meta,
}

/// Replicas of a plan are moved until its spread is even.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rebalance {
    /// Actor on whose behalf the moves are requested.
    pub requested_by: Actor,
    /// Why no further move is made: one of them failed, was rejected or expired.
    pub stops: Option<String>,
}

/// A move by a disruption that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Setback {
    /// No replica of the plan is moved by a disruption before.
    pub until: Time,
    /// How many failed in a row.
    pub row: u32,
    /// The run that was to move away.
    pub run: IncarnationId,
}

/// The states of a deployment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum DeploymentState {
    /// Waits for its turn.
    Pending,
    /// Is being carried out.
    InProgress,
    /// Begins nothing until it is resumed.
    Paused,
    /// Starts nothing more, and ends so when what runs has settled.
    Ending(DeploymentEnd),
    /// Is over.
    Ended(DeploymentEnd),
}

/// A version of a plan's payloads, and a count.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Deployment {
    /// Of which plan.
    pub plan: PlanName,
    /// Its name in the plan.
    pub name: DeploymentName,
    /// Of which generation of the plan.
    pub generation: u32,
    /// What should run.
    pub spec: Arc<DeploymentSpec>,
    /// The digest of what its replicas are: equal for deployments between which nothing has to be updated.
    pub version: Digest,
    /// Its state.
    pub state: DeploymentState,
    /// Whether its new set is the one that counts.
    pub set: SetWord,
    /// When its new set must be ready.
    pub deadline: Option<Time>,
    /// When an operation of it last succeeded.
    pub rested: Option<Time>,
    /// Time of its last progress: its start, or since then an operation of it that succeeded or was approved, a replica
    /// that became ready, the cut-over, or the end of a pause.
    pub progressed: Option<Time>,
    /// When it was called stalled, if it has made no progress since.
    pub stalled: Option<Time>,
    /// What it rolls back to, if it is a rollback.
    pub rollback: Option<Rollback>,
    /// Who asked for it.
    pub by: Option<Actor>,
    /// Its history.
    pub meta: Meta,
}

/// What a replica keeps of its incarnation that is not over.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Active {
    /// Which.
    pub incarnation: IncarnationId,
    /// Where.
    pub node: NodeName,
    /// The node's update domain.
    pub domain: DomainName,
    /// Whether it runs, and all its processes were online in the last report.
    pub healthy: bool,
    /// Whether the incarnation was asked to end, or has lost its role: the replica does not remain there.
    pub ending: bool,
}

/// What a replica keeps of an operation that is not over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Open {
    /// Which.
    pub id: OperationId,
    /// What it does.
    pub kind: OperationKind,
    /// Whether it was approved and its turn has come: only more than asking stops it.
    pub begun: bool,
    /// Whether it gives way to another version of the replica: what it brings up has no place, and no deployment asked
    /// for that to be created.
    pub gives_way: bool,
    /// Whether it has begun to bring the replica back to what that was before an operation that was aborted or failed.
    pub regains: bool,
}

/// One member of a plan's service.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Replica {
    /// Its name.
    pub name: ReplicaName,
    /// Of which plan.
    pub plan: PlanName,
    /// The deployment that it runs by.
    pub deployment: DeploymentName,
    /// What is wanted of it.
    pub will: WillWord,
    /// Its incarnation that is not over, and that counts.
    pub active: Option<Active>,
    /// Its other incarnation that is not over: one that is to take the place of the active one, or that has lost it.
    pub passive: Option<Box<Active>>,
    /// Its operation that is not over and may have begun.
    pub operation: Option<Open>,
    /// Its operation that waits behind that one: a stop or delete.
    pub next: Option<Open>,
    /// Whether a move by a disruption stopped it and failed, and it does not run again yet.
    pub downed: bool,
    /// Whether its run was stopped for an operation that was aborted, or that failed and after which the plan's rule starts
    /// it again, and nothing has begun on it since: it is started again, whatever its plan's rule says from now on.
    pub recovers: bool,
    /// When its plan's rule starts it again, unless something that is asked for begins before.
    pub again: Option<Again>,
    /// The last start by that rule, in a row of them.
    pub row: Option<Again>,
    /// How its last incarnation ended.
    pub last: Option<Box<IncarnationEnd>>,
    /// Its operations that are kept, oldest first. Most replicas have one.
    pub operations: SmallVec<[OperationId; 1]>,
    /// Its incarnations that are kept, oldest first.
    pub incarnations: SmallVec<[IncarnationId; 1]>,
    /// Its history.
    pub meta: Meta,
}

/// The states of an operation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum OperationState {
    /// Has no place yet.
    Preparing,
    /// May be approved.
    PendingApproval(Proposal),
    /// Approved, and waits for its turn.
    Approved,
    /// Approved, and being carried out.
    Running,
    /// Is over.
    Ended(OperationEnd),
}

/// One approved change of one replica.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// On which replica.
    pub replica: ReplicaName,
    /// Of which plan.
    pub plan: PlanName,
    /// What it does.
    pub kind: OperationKind,
    /// On which deployment's behalf, if any.
    pub deployment: Option<DeploymentName>,
    /// Who asked for it, where no deployment did.
    pub by: Option<Box<Asker>>,
    /// The deployment by whose coordinates and generation its replica runs when it has succeeded.
    pub version: DeploymentName,
    /// The only node that will do, if there is such a one.
    pub wants: Option<NodeName>,
    /// The purpose, where the kind and the asker do not imply it.
    pub purpose: Option<Purpose>,
    /// Its state.
    pub state: OperationState,
    /// Whether volumes say where it can go: those that the replica has already, or that have names.
    pub stores: bool,
    /// The hash of what it does, once it is known.
    pub hash: Option<Digest>,
    /// Who approved it.
    pub approved: Option<(Approver, Stamp)>,
    /// The incarnation that it brings up, changes or ends.
    pub incarnation: Option<IncarnationId>,
    /// Where that is, or was to be.
    pub node: Option<NodeName>,
    /// That node's update domain.
    pub domain: Option<DomainName>,
    /// Whether what it brings up is ready and counts: what is left to do is to end the run whose place that took.
    pub is_past_return: bool,
    /// Its history.
    pub meta: Meta,
}

/// The states of an incarnation. See [`crate::incarnation`] for the table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum IncarnationState {
    /// Holds its place; no command exists.
    Reserved,
    /// Asked for.
    Creating,
    /// Started.
    Starting,
    /// Was ready.
    Running,
    /// Asked to be, in place, what this deployment says.
    Updating(DeploymentName),
    /// Asked to end; becomes this by proof.
    Stopping(Box<IncarnationEnd>),
    /// Is over.
    Ended(Box<IncarnationEnd>),
}

/// A command without an outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outstanding {
    /// What is asked.
    pub effect: Effect,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// Not to be sent before.
    pub not_before: Time,
}

/// One placed run of a replica on one node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Incarnation {
    /// Its id.
    pub id: IncarnationId,
    /// Of which replica.
    pub replica: ReplicaName,
    /// Of which plan.
    pub plan: PlanName,
    /// By which deployment's coordinates and generation.
    pub deployment: DeploymentName,
    /// Where.
    pub node: NodeName,
    /// In which cluster.
    pub cluster: ClusterName,
    /// The operation that brings or brought it up.
    pub operation: OperationId,
    /// The plan's generation by whose policy its place was found.
    pub placed_by: u32,
    /// Its state.
    pub state: IncarnationState,
    /// What it needs of its node.
    pub amounts: Amounts,
    /// The run that it follows, and its storage.
    pub ties: Ties,
    /// When it was first ready.
    pub since: Option<Time>,
    /// Since when it is not ready any more, of a run that was ready.
    pub unready: Option<Time>,
    /// The session in which the deadline of an unready run was set.
    pub unready_session: Option<SessionId>,
    /// Each process as last reported.
    pub processes: Vec<Process>,
    /// Whether all processes were online in the last report.
    pub ready: bool,
    /// Counts its commands.
    pub revision: u32,
    /// The first of them.
    pub commanded: Option<Position>,
    /// The last command's effect.
    pub asked: Option<Effect>,
    /// The last command, while it has no outcome.
    pub command: Option<Outstanding>,
    /// When its state has lasted too long.
    pub deadline: Option<Time>,
    /// Whether it is begun as soon as it can have its volumes: it waits for nothing else.
    pub due: bool,
    /// Its history.
    pub meta: Meta,
}

/// The states of a volume. See [`crate::volume`] for the table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VolumeState {
    /// Asked for.
    Ensuring,
    /// There.
    Ready,
    /// Not there any more, though nobody asked for that; how that is known.
    Lost(String),
    /// Asked to go.
    Destroying,
}

/// Storage with a name, in which data outlives the runs that use it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// Its id.
    pub id: VolumeId,
    /// Its name.
    pub name: VolumeName,
    /// In which cluster, which it never leaves.
    pub cluster: ClusterName,
    /// In whose storage it is counted.
    pub node: NodeName,
    /// Of which class.
    pub class: StorageClass,
    /// Bytes.
    pub capacity: u64,
    /// The replica whose own it is.
    pub owner: Option<ReplicaName>,
    /// What becomes of it when that is deleted.
    pub on_delete: OnDelete,
    /// Its state.
    pub state: VolumeState,
    /// Who asked that it goes, if it is to.
    pub removing: Option<Asker>,
    /// The run that uses it.
    pub user: Option<IncarnationId>,
    /// Whether something may be in it: a run that uses it was started.
    pub used: bool,
    /// Counts its commands.
    pub revision: u32,
    /// The last command, while it has no outcome.
    pub command: Option<Outstanding>,
    /// What went wrong with it last.
    pub error: Option<String>,
    /// Its history.
    pub meta: Meta,
}

/// The states of an approval request. See [`crate::request`] for the table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum RequestState {
    /// Waits for approval.
    Pending {
        /// Time at which it expires.
        expires: Time,
    },
    /// Approved, and carried out in the same commit.
    Approved {
        /// Actor who approved.
        by: Actor,
    },
    /// Ended without its change.
    Ended(RequestEnd),
}

/// An intent that waits for approval as a whole, or waited.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// Id of the request.
    pub id: RequestId,
    /// Change that waits.
    pub change: RequestedChange,
    /// Actor who asked for the change.
    pub by: Actor,
    /// Replicas that the change ends or moves, as shown.
    pub effects: Vec<RequestEffect>,
    /// Policies that require another person; any person can approve if empty.
    pub policies: Vec<PolicyName>,
    /// Hash of the change and of everything that it ends or moves.
    pub hash: Digest,
    /// State of the request.
    pub state: RequestState,
    /// History of the request.
    pub meta: Meta,
}

/// An executor's lease on a cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Its scope.
    pub cluster: ClusterName,
    /// Who.
    pub executor: ExecutorName,
    /// What it drives.
    pub runtime: Runtime,
    /// Where it looks for what runs.
    pub scope: Option<ScopeId>,
    /// How it ended, if it has.
    pub end: Option<SessionEnd>,
    /// Its history.
    pub meta: Meta,
}

macro_rules! indexed {
    ($($entity:ident $marks:ty $(, |$index:ident, $this:ident, $both:ident, $at:ident| $follow:expr)?;)*) => {$(
        impl Indexed for $entity {
            type Marks = $marks;
            $(fn index($index: &mut Index, $this: &$entity, $both: Both<'_, $marks>, $at: Position) {
                $follow
            })?
        }
    )*};
}

indexed! {
    Cluster Whole<Cluster>, |i, _this, both, _at| i.catalogue(both[1].map(|new| &new.0.meta));
    Capability Whole<Capability>, |i, _this, both, _at| i.catalogue(both[1].map(|new| &new.0.meta));
    Node Whole<Node>, |i, _this, both, _at| i.node(Whole::both(both));
    Plan PlanMarks, |i, this, both, _at| i.plan(this, both);
    Deployment DeploymentMarks, |i, this, both, _at| i.deployment(this, both);
    Replica ReplicaMarks, |i, this, both, _at| i.replica(this, both);
    Incarnation IncarnationMarks, |i, this, both, at| i.incarnation(this, both, at);
    Operation OperationMarks, |i, this, both, _at| i.operation(this, both);
    Session Unmarked;
    Policy Whole<Policy>, |i, _this, both, _at| i.policy(Whole::both(both));
    Volume VolumeMarks, |i, this, both, at| i.volume(this, both, at);
    ApprovalRequest RequestMarks, |i, this, both, _at| i.request(this, both);
}
