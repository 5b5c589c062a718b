//! The lease of a session, as its holder counts it: from the sending of what was answered.

use std::collections::VecDeque;
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(super) struct Lease {
    length: Duration,
    /// When the newest word that was answered was sent.
    since: Duration,
    /// Heartbeats sent and not answered: number and time, oldest first.
    open: VecDeque<(u64, Duration)>,
    last_beat: u64,
    next: Duration,
}

impl Lease {
    /// None was given: nothing may be done.
    pub(super) fn none() -> Lease {
        Lease {
            length: Duration::ZERO,
            since: Duration::ZERO,
            open: VecDeque::new(),
            last_beat: 0,
            next: Duration::ZERO,
        }
    }

    /// One that was asked for at `since`.
    pub(super) fn since(since: Duration, length: Duration) -> Lease {
        Lease { length, since, open: VecDeque::new(), last_beat: 0, next: since + length / 3 }
    }

    /// How long it is; nothing if none was given.
    pub(super) fn length(&self) -> Duration {
        self.length
    }

    /// Whether work may be begun. The last quarter is for what was begun to come to its end, and for clocks that
    /// run at different speeds.
    pub(super) fn may_act(&self, now: Duration) -> bool {
        now < self.since + self.length * 3 / 4
    }

    /// Whether it has run out.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        now >= self.since + self.length
    }

    /// When something is to be done next.
    pub(super) fn due(&self) -> Duration {
        self.next.min(self.since + self.length)
    }

    /// The number of the heartbeat to send now, if one is due.
    pub(super) fn beat(&mut self, now: Duration) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.next = now + (self.length / 3).max(Duration::from_millis(1));
        self.last_beat += 1;
        self.open.push_back((self.last_beat, now));
        Some(self.last_beat)
    }

    /// A heartbeat was answered.
    pub(super) fn answered(&mut self, beat: u64) {
        while let Some(&(number, sent)) = self.open.front() {
            if number > beat {
                break;
            }
            self.open.pop_front();
            if number == beat {
                self.since = self.since.max(sent);
            }
        }
    }
}
