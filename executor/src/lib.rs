//! Executors: carry out the decider's commands on an orchestrator, and report what exists.
//!
//! In reading order: the orchestrator interface ([`orchestrator`]), the output of processes ([`logs`]), and
//! the cache of reports ([`status_cache`]). Then the effect of one command on an object's state ([`reconcile`], pure),
//! and the durable record of commands and tombstones (`executor_store`). Then the session with the decider
//! ([`session`], pure), the loop around both ([`run`]), and channels to a remote decider ([`remote`]). Last
//! the orchestrators: operating-system processes ([`process`]) and nodes in memory ([`simulated`]), which
//! both pass the conformance suite (`tests/executor/conformance`).
//!
//! Copied directories are detected by [`directory`].
//!
//! Invariants: nothing is removed without a command or an orphan resolution. Nothing is reported gone before
//! it is durably recorded that nothing at or below the revision will be carried out. One failing command
//! delays no other.

mod command_spans;
pub mod console;
pub mod directory;
mod executor_store;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod locked_directory;
pub mod logs;
pub mod orchestrator;
mod placeholders;
pub mod process;
pub mod reconcile;
pub mod remote;
mod run;
pub mod session;
pub mod simulated;
mod state_file;
mod status;
pub mod status_cache;

pub use locked_directory::{LockedDirectory, remembered};
pub use orchestrator::{InventoryError, Orchestrator, WatchLost, WorkProgress};
pub use placeholders::PAYLOAD_VARIABLES;
pub use run::{DeciderChannel, EpochStore, ExecutorConfig, open_directory, run};
pub use session::ExecutorStop;
pub use status::{ExecutorStatus, StatusReading};

/// Waits for a future, or without end if there is none, so that other branches of a `select!` continue.
pub(crate) async fn or_never<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
