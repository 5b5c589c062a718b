//! Executors: carry out the decider's commands on an orchestrator, and report what is there.
//!
//! In reading order: what an orchestrator is ([`orchestrator`]), how it gives what processes write ([`logs`]), and the
//! board on which it shows what it has ([`board`]); what one order means for what is there ([`plan`], pure), and the
//! durable record of orders and tombstones (`executor_store`); the session with the decider ([`session`], pure); the loop
//! around both ([`run`]); links to a decider elsewhere ([`remote`]); then the orchestrators: operating-system processes
//! ([`process`]) and nodes in memory ([`simulated`]), which both pass [`conformance`].
//!
//! What a copied directory is ([`directory`]).
//!
//! What must stay true: nothing is removed without a command or a judgement; nothing is reported gone before it is
//! durably recorded that nothing at or below the revision will be carried out; one order that fails holds back
//! nothing else.

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
pub use run::{Config, Link, run};
pub use scope::remembered;
pub use session::Stop;

/// Waits for a future, or without end if there is none, so that other branches of a `select!` continue.
pub(crate) async fn or_never<F: Future>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
