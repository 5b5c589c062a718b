//! Status of a running executor, for metrics: shared with the server that exposes it, and updated by the loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Status of an executor.
#[derive(Debug, Default)]
pub struct ExecutorStatus {
    is_attached: AtomicBool,
    /// End of the lease in milliseconds since the boot; zero without a lease.
    lease_end: AtomicU64,
    running: AtomicU64,
    started: AtomicU64,
    connects: AtomicU64,
    losses: AtomicU64,
}

/// Values of a status at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusReading {
    /// Whether the executor has a session, and the decider has its full report.
    pub is_attached: bool,
    /// Time until the lease ends; `None` without a lease.
    pub lease_left: Option<Duration>,
    /// Work on objects that has not ended.
    pub running: u64,
    /// Work on objects that was started.
    pub started: u64,
    /// Attempts to connect to a server.
    pub connects: u64,
    /// Attempts that failed, and connections that were lost.
    pub losses: u64,
}

impl ExecutorStatus {
    /// Returns the status of an executor that is not running yet.
    pub fn new() -> Arc<ExecutorStatus> {
        Arc::default()
    }

    /// Returns the values at this time.
    pub fn read(&self) -> StatusReading {
        let value = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let end = value(&self.lease_end);
        let left = || Duration::from_millis(end).saturating_sub(crate::run::now());
        StatusReading {
            is_attached: self.is_attached.load(Ordering::Relaxed),
            lease_left: (end > 0).then(left),
            running: value(&self.running),
            started: value(&self.started),
            connects: value(&self.connects),
            losses: value(&self.losses),
        }
    }

    pub(crate) fn session(&self, is_attached: bool, lease_end: Option<Duration>) {
        let end = lease_end.map_or(0, |end| u64::try_from(end.as_millis()).unwrap_or(u64::MAX));
        self.is_attached.store(is_attached, Ordering::Relaxed);
        self.lease_end.store(end, Ordering::Relaxed);
    }

    pub(crate) fn connecting(&self) {
        self.connects.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn lost(&self) {
        self.losses.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn work_started(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn work_running(&self, count: usize) {
        self.running.store(count as u64, Ordering::Relaxed);
    }
}
