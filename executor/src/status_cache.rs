//! Cache of the newest report of each object, and of which reports are unread.
//!
//! A level-triggered cache, not a queue: a slow reader finds the last state, and memory grows with live
//! objects only.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use chancery_events::id::ObjectId;
use chancery_events::observation::{ObjectReport, ObservedState, RetryClass};
use chancery_events::protocol::Command;
use tokio::sync::Notify;

use crate::reconcile::{StatusUpdate, misfit};

/// Newest report of each object, with unread ones marked.
#[derive(Debug, Default)]
pub struct StatusCache {
    shown: Mutex<StatusCacheState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct StatusCacheState {
    current: BTreeMap<ObjectId, ObjectReport>,
    /// Objects in the order of their first unread change.
    unread: VecDeque<ObjectId>,
    is_unread: BTreeSet<ObjectId>,
}

impl StatusCache {
    /// Stores a report as [`crate::reconcile::report`] classifies it.
    pub(crate) fn show_update(&self, update: StatusUpdate) {
        match update {
            StatusUpdate::Change(report) => self.show(report),
            StatusUpdate::ListOnly(report) => self.show_in_lists(report),
        }
    }

    /// Reports that a command cannot be carried out; the object stays as it is.
    pub(crate) fn refuse(&self, object: ObjectId, revision: u32, message: String, retry: RetryClass) {
        let observed = ObservedState::Failed { message, retry };
        self.show(ObjectReport { object, revision, observed });
    }

    /// Refuses a command that no runtime can carry out. Whether it was refused.
    pub(crate) fn refuse_misfit(&self, command: &Command) -> bool {
        let Some(message) = misfit(command) else { return false };
        self.refuse(command.object, command.revision, message.to_owned(), RetryClass::Permanent);
        true
    }

    /// Stores a report as unread, even if it equals the last one that was read.
    pub fn show(&self, report: ObjectReport) {
        let mut shown = self.lock();
        let id = report.object;
        shown.current.insert(id, report);
        if shown.is_unread.insert(id) {
            shown.unread.push_back(id);
        }
        drop(shown);
        self.changed.notify_one();
    }

    /// Stores a report for lists only, without a message of its own. An unread report is not replaced.
    pub fn show_in_lists(&self, report: ObjectReport) {
        let mut shown = self.lock();
        if !shown.is_unread.contains(&report.object) {
            shown.current.insert(report.object, report);
        }
    }

    /// Removes an object.
    pub fn clear(&self, object: ObjectId) {
        let mut shown = self.lock();
        shown.current.remove(&object);
        shown.is_unread.remove(&object);
    }

    /// Returns all reports and marks them as read.
    pub fn list(&self) -> Vec<ObjectReport> {
        let mut shown = self.lock();
        shown.unread.clear();
        shown.is_unread.clear();
        shown.current.values().cloned().collect()
    }

    /// Whether any report is unread.
    pub fn has_unread(&self) -> bool {
        !self.lock().is_unread.is_empty()
    }

    /// Returns unread reports, at most `limit`, without waiting.
    pub fn unread(&self, limit: usize) -> Vec<ObjectReport> {
        let mut shown = self.lock();
        let mut reports = Vec::new();
        while reports.len() < limit {
            let Some(id) = shown.unread.pop_front() else { break };
            // An object may have been cleared, or cleared and stored again.
            if shown.is_unread.remove(&id) {
                reports.extend(shown.current.get(&id).cloned());
            }
        }
        reports
    }

    /// Waits for unread reports and returns at most `limit`. Safe to cancel: nothing is taken before the last
    /// await.
    pub async fn read(&self, limit: usize) -> Vec<ObjectReport> {
        loop {
            let reports = self.unread(limit);
            if !reports.is_empty() {
                return reports;
            }
            self.changed.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, StatusCacheState> {
        // Every change under the lock is complete, so a panic leaves nothing half done.
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
