//! What every runtime implements: carry out orders, list everything, tell of changes, read logs.
//!
//! Orders are idempotent and fenced by (revision, attempt); [`crate::plan::step`] says what each means for what is
//! there, so that all runtimes mean the same. No call answers with an outcome: outcomes are reports, and reports
//! come from [`Orchestrator::changes`] and [`Orchestrator::list`] alone, whose truth outlives the orchestrator object.
//!
//! A runtime may be driven over an API that does not answer. That is never an absence: a list fails, a watch is lost, a
//! command is put off, and the caller repeats the call.

use std::future::Future;
use std::sync::Arc;

use chancery_events::id::ObjectId;
use chancery_events::observation::Report;
use chancery_events::protocol::Command;

use crate::logs::LogSource;
use crate::plan::Changes;

/// Inventory that cannot be read now. Nothing follows for any object; the caller lists again, with a bounded backoff.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot list objects: {unreachable} does not answer: {reason}")]
pub struct InventoryError {
    /// Address or name of what does not answer.
    pub unreachable: String,
    /// Why, as its client reports it.
    pub reason: String,
}

/// Changes may have been missed: the caller must list again, and no change is reported before it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot watch objects: changes may have been missed")]
pub struct WatchLost;

/// How far a call for an object has come when it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkProgress {
    /// The work has begun; its outcome is a change.
    Begun,
    /// Nothing was begun, because something does not answer that the work needs: the same call is to be made again.
    /// Returned after a pause, since it is made again immediately.
    PutOff,
}

/// A runtime that carries out commands.
///
/// Callers do not overlap calls for one object; calls for different ones may overlap at will. Each call
/// returns soon: it begins the work and does not wait for processes to start or to end.
pub trait Orchestrator: Send + Sync + 'static {
    /// Whether an ensure at a higher revision with another spec changes what runs, or fails. A volume is never changed.
    const CHANGES: Changes;

    /// Carries out a command. Its outcome, also that of a command carried out before, is a change; one that is put off has
    /// none, as other work that is.
    fn carry_out(&self, command: Command) -> impl Future<Output = WorkProgress> + Send;

    /// Removes an object that the decider judged; its outcome is `Gone` at the revision.
    fn remove(&self, object: ObjectId, revision: u32) -> impl Future<Output = WorkProgress> + Send;

    /// Drops what was kept of an object that is over: exit statuses, tombstone, folders. One that is not over
    /// is left as it is and reported again.
    fn forget(&self, object: ObjectId) -> impl Future<Output = WorkProgress> + Send;

    /// Everything with our labels, of this life and of earlier ones, ended ones until they are forgotten.
    /// Supersedes all changes before it. An object of which nothing can be found out is left out, and reported when it can.
    ///
    /// May wait for as long as the API takes. An error gives no part of the inventory. Safe to cancel.
    fn list(&self) -> impl Future<Output = Result<Vec<Report>, InventoryError>> + Send;

    /// Waits until something has changed and gives the newest report of each object that has, at most `limit`.
    ///
    /// A slow reader misses steps in between, never the last state: where that cannot be held, the watch is lost, and
    /// stays so until [`Orchestrator::list`] has succeeded. There is one reader. Safe to cancel.
    fn changes(&self, limit: usize) -> impl Future<Output = Result<Vec<Report>, WatchLost>> + Send;

    /// What processes have written. Serves incarnations of earlier lives too.
    fn logs(&self) -> Arc<dyn LogSource>;
}
