//! States of entities that people see, as words: those that rules, rows and messages share.

/// Enums of values whose word says all.
#[macro_export]
macro_rules! state_words {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal),* $(,)? })*) => {
        $crate::words! {
            $($(#[$doc])* $name { $(#[doc = concat!("`", $word, "`")] $variant = $word),* })*
        }
    };
}

state_words! {
    /// The states of a deployment, as readers see them. One that is ending is still in progress.
    DeploymentStatus {
        Pending = "pending", InProgress = "in_progress", Paused = "paused", Completed = "completed", Failed = "failed",
        Cancelled = "cancelled", Superseded = "superseded",
    }
    /// The desired state of a replica.
    WillWord { Proposed = "proposed", Running = "running", Stopped = "stopped", Deleted = "deleted" }
    /// The phase of a replica, as readers see it.
    PhaseStatus {
        Pending = "pending", Starting = "starting", Running = "running", Updating = "updating",
        Restarting = "restarting", Stopping = "stopping", Stopped = "stopped", Failed = "failed", Deleting = "deleting",
    }
    /// The states of an operation, as readers see them.
    OperationStatus {
        Preparing = "preparing", PendingApproval = "pending_approval", Approved = "approved", Running = "running",
        Succeeded = "succeeded", Failed = "failed", Rejected = "rejected", Expired = "expired", Cancelled = "cancelled",
        Superseded = "superseded",
    }
    /// The set of a plan's replicas that counts while a deployment is carried out.
    SetWord { Old = "old", New = "new" }
    /// States of an approval request.
    RequestStatus {
        Pending = "pending", Approved = "approved", Rejected = "rejected", Expired = "expired",
        Superseded = "superseded",
    }
}

impl Default for SetWord {
    /// The set of a plan before any deployment cuts over.
    fn default() -> SetWord {
        SetWord::Old
    }
}
