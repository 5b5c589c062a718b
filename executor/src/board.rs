//! The newest report of each object, and which of them nobody has read yet.
//!
//! A level, not a queue: a reader that is slow finds the last state, and memory follows what lives.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use chancery_events::id::ObjectId;
use chancery_events::observation::{Hope, Report, Saw};
use tokio::sync::Notify;

use crate::plan::Told;

/// See the module.
#[derive(Debug, Default)]
pub struct Board {
    shown: Mutex<Shown>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Shown {
    current: BTreeMap<ObjectId, Report>,
    /// In the order of their first unread change.
    unread: VecDeque<ObjectId>,
    is_unread: BTreeSet<ObjectId>,
}

impl Board {
    /// Shows a report as [`crate::plan::report`] classifies it.
    pub(crate) fn show_told(&self, told: Told) {
        match told {
            Told::Change(report) => self.show(report),
            Told::ListOnly(report) => self.show_in_lists(report),
        }
    }

    /// Shows that an order cannot be carried out; what is there stays as it is.
    pub(crate) fn refuse(&self, object: ObjectId, revision: u32, message: String, hope: Hope) {
        self.show(Report { object, revision, saw: Saw::Failed { message, hope } });
    }

    /// Shows a report that must be read, even if it is the one that was read last.
    pub fn show(&self, report: Report) {
        let mut shown = self.lock();
        let id = report.object;
        shown.current.insert(id, report);
        if shown.is_unread.insert(id) {
            shown.unread.push_back(id);
        }
        drop(shown);
        self.changed.notify_one();
    }

    /// Shows a report that is worth a line in a list, and no message of its own; it takes no outcome's place that
    /// nobody has read yet.
    pub fn show_in_lists(&self, report: Report) {
        let mut shown = self.lock();
        if !shown.is_unread.contains(&report.object) {
            shown.current.insert(report.object, report);
        }
    }

    /// Takes an object off.
    pub fn clear(&self, object: ObjectId) {
        let mut shown = self.lock();
        shown.current.remove(&object);
        shown.is_unread.remove(&object);
    }

    /// Everything; what was unread is read by this.
    pub fn list(&self) -> Vec<Report> {
        let mut shown = self.lock();
        shown.unread.clear();
        shown.is_unread.clear();
        shown.current.values().cloned().collect()
    }

    /// Whether anything is unread.
    pub fn has_unread(&self) -> bool {
        !self.lock().is_unread.is_empty()
    }

    /// What is unread, at most `limit`, without waiting.
    pub fn unread(&self, limit: usize) -> Vec<Report> {
        let mut shown = self.lock();
        let mut reports = Vec::new();
        while reports.len() < limit {
            let Some(id) = shown.unread.pop_front() else { break };
            // It may have been cleared, or cleared and shown anew.
            if shown.is_unread.remove(&id) {
                reports.extend(shown.current.get(&id).cloned());
            }
        }
        reports
    }

    /// Waits until something is unread and takes at most `limit` of it. Safe to cancel: nothing is taken before
    /// the last await.
    pub async fn read(&self, limit: usize) -> Vec<Report> {
        loop {
            let reports = self.unread(limit);
            if !reports.is_empty() {
                return reports;
            }
            self.changed.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        // Every change under the lock is whole, so a panic elsewhere leaves nothing half done.
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
