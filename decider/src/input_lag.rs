//! Tracks input lag, so that a session with a queued message does not expire.
//!
//! The decider's loop takes no input while the disk, the process or the machine stalls, or many inputs wait
//! before it. Pure: the caller passes the monotonic clock, and the length of the queue.

use std::time::Duration;

/// Input lag of the decider: see the module.
#[derive(Debug)]
pub(super) struct InputLag {
    /// Time before which all inputs have been taken.
    until: Duration,
    /// Next value of `until`, and the number of inputs to take before.
    ahead: Option<(Duration, usize)>,
}

impl InputLag {
    /// Starts without inputs.
    pub(super) const fn begin(now: Duration) -> InputLag {
        InputLag { until: now, ahead: None }
    }

    /// Counts an input that was taken.
    pub(super) fn took(&mut self) {
        if let Some((came, left)) = &mut self.ahead {
            *left -= 1;
            if *left == 0 {
                self.until = self.until.max(*came);
                self.ahead = None;
            }
        }
    }

    /// Notes the number of inputs left in the queue.
    pub(super) fn left(&mut self, inputs: usize, now: Duration) {
        if inputs == 0 {
            self.until = self.until.max(now);
            self.ahead = None;
        } else if self.ahead.is_none() {
            self.ahead = Some((now, inputs));
        }
    }

    /// Notes a wait at an empty queue, where any input would have been taken immediately. If the planned
    /// `end` is long past, the process was suspended and took nothing since.
    pub(super) fn waited(&mut self, end: Duration, now: Duration) {
        self.until = self.until.max(end.min(now));
    }

    /// Returns how long an input may have waited unread.
    pub(super) fn unread_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_left_in_the_queue_is_unread_until_it_has_been_taken() {
        let mut lag = InputLag::begin(at(0));
        lag.left(0, at(10));
        assert_eq!(lag.unread_for(at(12)), at(2), "it may have come just after");
        lag.left(3, at(20));
        assert_eq!(lag.unread_for(at(20)), at(10));
        lag.took();
        lag.took();
        lag.left(700, at(25));
        assert_eq!(lag.unread_for(at(25)), at(15), "one of the three is still queued");
        lag.took();
        assert_eq!(lag.unread_for(at(25)), at(5), "all inputs up to 20 are taken, whatever arrived since");
        lag.left(700, at(26));
        (0..700).for_each(|_| lag.took());
        assert_eq!(lag.unread_for(at(27)), at(1), "a queue that is never empty has its delay");
    }

    #[test]
    fn an_idle_wait_is_no_lag_and_a_suspended_process_is() {
        let mut lag = InputLag::begin(at(0));
        lag.waited(at(100), at(60));
        assert_eq!(lag.unread_for(at(60)), at(0), "an idle wait is no lag");
        lag.waited(at(100), at(190));
        assert_eq!(lag.unread_for(at(190)), at(90), "the process was suspended past its time");
    }
}
