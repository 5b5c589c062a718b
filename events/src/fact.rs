//! Facts: what the decider concluded. The only thing that changes state; each names its cause, and every entity
//! that it changes. What always follows from a fact is not a fact of its own.

macro_rules! body {
    ($($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $type),*
        }
    )*};
}

mod asked;
mod carried;
mod parts;
mod planned;
mod requested;
mod subjects;

pub use asked::*;
pub use carried::*;
pub use parts::*;
pub use planned::*;
pub use requested::*;

use crate::event::bodies;

bodies! {
    /// What the decider concluded.
    Fact {
        /// A decider has taken over; its commits carry the new term and writer from here.
        TermStarted = "term.started.v1",
        /// The journal continues under a new identity: records at its end are missing, and somebody has accepted that.
        LineageStarted = "lineage.started.v1",
        /// The intent before it holds.
        IntentAccepted = "intent.accepted.v1",
        /// The intent before it does not hold.
        IntentRefused = "intent.refused.v1",
        /// Something in the inbox could not be made into an intent.
        InboxRefused = "inbox.refused.v1",
        /// A message of the inbox that cannot be read is given up.
        InboxSkipped = "inbox.skipped.v1",
        /// The inbox is answered up to a place, though nothing else tells.
        InboxAdvanced = "inbox.advanced.v1",
        /// Time has passed, and nothing else was recorded for long.
        TimeRecorded = "time.recorded.v1",
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
        /// The spread of a plan at rest has become uneven, or even.
        PlanBalanceChanged = "plan.balance_changed.v1",
        /// Replicas of a plan are moved until the spread is even.
        PlanRebalanceStarted = "plan.rebalance_started.v1",
        /// No more replicas of a plan are moved for its spread.
        PlanRebalanceEnded = "plan.rebalance_ended.v1",
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
        /// A deployment has made no progress for its progress deadline.
        DeploymentStalled = "deployment.stalled.v1",
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
        /// An intent waits as an approval request. Issues the request's id.
        RequestOpened = "request.opened.v1",
        /// An approval request is approved; the facts of its change follow in the same commit.
        RequestApproved = "request.approved.v1",
        /// An approval request ended without its change.
        RequestEnded = "request.ended.v1",
        /// A node is expunged without the approval that policies require: break-glass.
        ApprovalBypassed = "approval.bypassed.v1",
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
