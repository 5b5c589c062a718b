//! Interface of runtimes: carries out commands, lists objects, reports changes, reads logs.
//!
//! Commands are idempotent and fenced by (revision, attempt). [`crate::reconcile::step`] defines the effect of
//! each command on each state, so that all runtimes agree. No call returns an outcome: outcomes are reports,
//! which come from [`Orchestrator::changes`] and [`Orchestrator::list`] alone. The reported state outlives
//! the orchestrator object.
//!
//! A runtime's API can fail to respond. That never means that an object is absent: a list fails, a watch is
//! lost, or a command is put off. The caller repeats the call.

use std::future::Future;
use std::sync::Arc;

use chancery_events::id::ObjectId;
use chancery_events::observation::ObjectReport;
use chancery_events::protocol::Command;

use crate::logs::LogSource;
use crate::reconcile::UpdateSupport;

/// Inventory that cannot be read now. Nothing follows for any object; the caller lists again, with a bounded
/// backoff.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot list objects: {unreachable} does not answer: {reason}")]
pub struct InventoryError {
    /// Address or name of the API that does not respond.
    pub unreachable: String,
    /// Reason, as the API's client reports it.
    pub reason: String,
}

/// Watch that may have missed changes: none is reported until the caller has listed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot watch objects: changes may have been missed")]
pub struct WatchLost;

/// Progress of a call for an object when the call returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkProgress {
    /// Work has started; its outcome is a change.
    Begun,
    /// Nothing was started: a service that the work needs does not respond. Returned after a pause, since the
    /// caller repeats the same call immediately.
    PutOff,
}

/// Runtime that carries out commands.
///
/// Callers do not overlap calls for one object; calls for different objects may overlap. Each call returns
/// soon: it starts the work and does not wait for processes to start or to end.
pub trait Orchestrator: Send + Sync + 'static {
    /// Whether an ensure at a higher revision with another spec updates a running object, or fails. A volume
    /// is never changed.
    const CHANGES: UpdateSupport;

    /// Carries out a command. Its outcome is a change, also for a command that was carried out before. A
    /// command or other work that is put off has no outcome.
    fn carry_out(&self, command: Command) -> impl Future<Output = WorkProgress> + Send;

    /// Removes an orphan that the decider resolved to remove; the outcome is `Gone` at the revision.
    fn remove(&self, object: ObjectId, revision: u32) -> impl Future<Output = WorkProgress> + Send;

    /// Purges the records of an ended object: exit statuses, tombstone, directories. An object that has not
    /// ended is left as it is and reported again.
    fn forget(&self, object: ObjectId) -> impl Future<Output = WorkProgress> + Send;

    /// Returns a report of every object with our labels, of this executor epoch and earlier ones, ended
    /// objects until they are purged. The list supersedes all earlier changes. An object whose state cannot
    /// be determined is omitted, and reported when it can.
    ///
    /// May wait for as long as the API takes. An error includes no part of the inventory. Safe to cancel.
    fn list(&self) -> impl Future<Output = Result<Vec<ObjectReport>, InventoryError>> + Send;

    /// Waits for a change and returns the newest report of each changed object, at most `limit` reports.
    ///
    /// A slow reader misses intermediate states, never the last one. Where the last state cannot be kept, the
    /// watch is lost until [`Orchestrator::list`] has succeeded. There is one reader. Safe to cancel.
    fn changes(&self, limit: usize) -> impl Future<Output = Result<Vec<ObjectReport>, WatchLost>> + Send;

    /// Returns the output of processes, including incarnations of earlier executor epochs.
    fn logs(&self) -> Arc<dyn LogSource>;
}
