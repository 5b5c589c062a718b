//! States of entities that rules, rows and messages share, as words.

crate::words! {
    /// State of a deployment in rows. A halted deployment is still in progress.
    DeploymentStatus {
        /// The deployment waits until the current deployment of the plan has ended.
        Pending = "pending",
        /// The deployment is carried out, or is halted: it starts nothing more and waits for running
        /// operations.
        InProgress = "in_progress",
        /// The deployment starts nothing until it is resumed.
        Paused = "paused",
        /// The deployment has reached its goal.
        Completed = "completed",
        /// The deployment has ended without reaching its goal; its message has the cause.
        Failed = "failed",
        /// A client cancelled the deployment.
        Cancelled = "cancelled",
        /// A newer deployment replaced the deployment.
        Superseded = "superseded",
    }
    /// Desired state of a replica.
    WillWord {
        /// The creation of the replica is not approved yet.
        Proposed = "proposed",
        /// The replica should run.
        Running = "running",
        /// The replica should have no incarnation until it is started.
        Stopped = "stopped",
        /// The guest of the replica powered itself off: the replica should have no incarnation until a caller requests its start.
        GuestShutdown = "guest_shutdown",
        /// The replica should not exist: its delete is in progress.
        Deleted = "deleted",
    }
    /// Phase of a replica in rows.
    PhaseStatus {
        /// The start of the replica waits, as for a placement or for approval.
        Pending = "pending",
        /// The incarnation of the replica is being started, and was not ready yet.
        Starting = "starting",
        /// The incarnation of the replica was ready; `ready` has its current readiness.
        Running = "running",
        /// An update of the replica is in progress, or a failed update in place is being reverted.
        Updating = "updating",
        /// A restart of the replica is in progress.
        Restarting = "restarting",
        /// The guest of the replica was reset after it was ready, and is not ready again; or a reboot of the replica is in progress.
        Rebooting = "rebooting",
        /// The incarnation of the replica is being stopped.
        Stopping = "stopping",
        /// The replica has no incarnation: it was stopped, or ended cleanly on its own.
        Stopped = "stopped",
        /// The replica should run and does not: its last incarnation failed, or could not be started.
        Failed = "failed",
        /// The replica is being deleted.
        Deleting = "deleting",
    }
    /// State of an operation in rows.
    OperationStatus {
        /// The operation waits for a placement.
        Preparing = "preparing",
        /// The operation waits for approval.
        PendingApproval = "pending_approval",
        /// The operation is approved, and queued until it can start.
        Approved = "approved",
        /// The operation has started.
        Running = "running",
        /// The operation had its effect.
        Succeeded = "succeeded",
        /// The operation did not have its effect; its message has the reason.
        Failed = "failed",
        /// A person rejected the operation.
        Rejected = "rejected",
        /// The operation was not approved in time.
        Expired = "expired",
        /// The operation was cancelled, as with its deployment.
        Cancelled = "cancelled",
        /// Another operation on the replica replaced the operation.
        Superseded = "superseded",
    }
    /// Set of a plan's replicas that is active during a deployment.
    #[derive(Default)]
    SetWord {
        /// The replicas that existed before the deployment; always, if the deployment is rolling.
        // Before any deployment has cut over, too.
        #[default]
        Old = "old",
        /// The replicas of the deployment's version: the deployment has cut over, or its canary was promoted.
        New = "new",
    }
    /// State of an approval request.
    RequestStatus {
        /// The request waits for approval.
        Pending = "pending",
        /// The request was approved, and carried out in the same commit.
        Approved = "approved",
        /// A person rejected the request.
        Rejected = "rejected",
        /// The request was not approved in time.
        Expired = "expired",
        /// A later request for the same target replaced the request.
        Superseded = "superseded",
    }
}
