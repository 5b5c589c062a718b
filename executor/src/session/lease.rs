//! Lease of a session, as the executor counts it: from when the last answered message was sent.

use std::collections::VecDeque;
use std::time::Duration;

/// Lease of a session; the default has length zero and allows no work.
#[derive(Debug, Default)]
pub(super) struct SessionLease {
    length: Duration,
    /// Time at which the newest answered message was sent.
    since: Duration,
    /// Unanswered heartbeats: number and send time, oldest first.
    open: VecDeque<(u64, Duration)>,
    last_beat: u64,
    next: Duration,
}

impl SessionLease {
    /// Creates a lease that was requested at `since`.
    pub(super) fn since(since: Duration, length: Duration) -> SessionLease {
        SessionLease { length, since, next: since + length / 3, ..SessionLease::default() }
    }

    /// Returns the length of the lease; zero if none was granted.
    pub(super) fn length(&self) -> Duration {
        self.length
    }

    /// Whether work may start. The last quarter is left for running work to end, and for clocks of different
    /// speeds.
    pub(super) fn may_act(&self, now: Duration) -> bool {
        now < self.since + self.length * 3 / 4
    }

    /// Returns the time at which the lease ends.
    pub(super) fn end(&self) -> Duration {
        self.since + self.length
    }

    pub(super) fn is_over(&self, now: Duration) -> bool {
        now >= self.end()
    }

    /// Returns when the next heartbeat or the expiry is due.
    pub(super) fn due(&self) -> Duration {
        self.next.min(self.end())
    }

    /// Returns the number of the heartbeat to send, if one is due.
    pub(super) fn heartbeat(&mut self, now: Duration) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.next = now + (self.length / 3).max(Duration::from_millis(1));
        self.last_beat += 1;
        self.open.push_back((self.last_beat, now));
        Some(self.last_beat)
    }

    /// Extends the lease: a heartbeat was answered.
    pub(super) fn answered(&mut self, sequence: u64) {
        while let Some((number, sent)) = self.open.pop_front_if(|(number, _)| *number <= sequence) {
            if number == sequence {
                self.since = self.since.max(sent);
            }
        }
    }
}
