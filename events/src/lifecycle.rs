//! States of entities that rules, rows and messages share, as words.

/// Declares enums whose variants are described by their words.
#[macro_export]
macro_rules! state_words {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal),* $(,)? })*) => {
        $crate::words! {
            $($(#[$doc])* $name { $(#[doc = concat!("`", $word, "`")] $variant = $word),* })*
        }
    };
}

state_words! {
    /// State of a deployment in rows. A halted deployment is still in progress.
    DeploymentStatus {
        Pending = "pending", InProgress = "in_progress", Paused = "paused", Completed = "completed", Failed = "failed",
        Cancelled = "cancelled", Superseded = "superseded",
    }
    /// Desired state of a replica.
    WillWord { Proposed = "proposed", Running = "running", Stopped = "stopped", Deleted = "deleted" }
    /// Phase of a replica in rows.
    PhaseStatus {
        Pending = "pending", Starting = "starting", Running = "running", Updating = "updating",
        Restarting = "restarting", Stopping = "stopping", Stopped = "stopped", Failed = "failed", Deleting = "deleting",
    }
    /// State of an operation in rows.
    OperationStatus {
        Preparing = "preparing", PendingApproval = "pending_approval", Approved = "approved", Running = "running",
        Succeeded = "succeeded", Failed = "failed", Rejected = "rejected", Expired = "expired", Cancelled = "cancelled",
        Superseded = "superseded",
    }
    /// Set of a plan's replicas that is active during a deployment.
    SetWord { Old = "old", New = "new" }
    /// State of an approval request.
    RequestStatus {
        Pending = "pending", Approved = "approved", Rejected = "rejected", Expired = "expired",
        Superseded = "superseded",
    }
}

impl Default for SetWord {
    /// Set of a plan before any deployment has cut over.
    fn default() -> SetWord {
        SetWord::Old
    }
}
