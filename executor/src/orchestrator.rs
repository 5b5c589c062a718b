//! What every runtime implements: carry out orders, list everything, tell of changes.
//!
//! Orders are idempotent and fenced by (revision, attempt); [`crate::plan::step`] says what each means for what is
//! there, so that all runtimes mean the same. No call answers with an outcome: outcomes are reports, and reports
//! come from [`Orchestrator::changes`] and [`Orchestrator::list`] alone, whose truth outlives the orchestrator object.

use std::future::Future;

use chancery_events::id::ObjectId;
use chancery_events::observation::Report;
use chancery_events::protocol::Command;

use crate::plan::Changes;

/// How far a call for an object has come when it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkProgress {
    /// The work has begun; its outcome is a change.
    Begun,
    /// Nothing was begun, because something does not answer that the work needs: the same command is to be given again.
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
    /// none.
    fn carry_out(&self, command: Command) -> impl Future<Output = WorkProgress> + Send;

    /// Removes an object that the decider judged; its outcome is `Gone` at the revision.
    fn remove(&self, object: ObjectId, revision: u32) -> impl Future<Output = ()> + Send;

    /// Drops what was kept of an object that is over: exit statuses, tombstone, folders. One that is not over
    /// is left as it is and reported again.
    fn forget(&self, object: ObjectId) -> impl Future<Output = ()> + Send;

    /// Everything with our labels, of this life and of earlier ones, ended ones until they are forgotten.
    /// Supersedes all changes before it.
    fn list(&self) -> impl Future<Output = Vec<Report>> + Send;

    /// Waits until something has changed and gives the newest report of each object that has, at most `limit`.
    ///
    /// A slow reader misses steps in between, never the last state. There is one reader. Safe to cancel.
    fn changes(&self, limit: usize) -> impl Future<Output = Vec<Report>> + Send;
}
