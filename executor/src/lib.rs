//! Executors: carry out the decider's commands on an orchestrator, and report what exists.
//!
//! In reading order: the orchestrator interface ([`orchestrator`]), the output of processes ([`logs`]), and
//! the cache of reports ([`board`]). Then the effect of one command on an object's state ([`plan`], pure),
//! and the durable record of commands and tombstones (`executor_store`). Then the session with the decider
//! ([`session`], pure), the loop around both ([`run`]), and channels to a remote decider ([`remote`]). Last
//! the orchestrators: operating-system processes ([`process`]) and nodes in memory ([`simulated`]), which
//! both pass [`conformance`].
//!
//! Copied directories are detected by [`directory`].
//!
//! Invariants: nothing is removed without a command or an orphan resolution. Nothing is reported gone before
//! it is durably recorded that nothing at or below the revision will be carried out. One failing command
//! delays no other.

pub mod board;
pub mod conformance;
pub mod directory;
mod durable;
mod executor_store;
pub mod logs;
pub mod orchestrator;
pub mod plan;
pub mod process;
pub mod remote;
mod run;
mod scope;
pub mod session;
pub mod simulated;

pub use orchestrator::{InventoryError, Orchestrator, WatchLost, WorkProgress};
pub use run::{DeciderChannel, ExecutorConfig, run};
pub use scope::remembered;
pub use session::ExecutorStop;

/// Waits for a future, or without end if there is none, so that other branches of a `select!` continue.
pub(crate) async fn or_never<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
