//! Grace period of deadlines, because the decider may learn late that the work of a deadline is done.

use std::time::Duration;

use chancery_events::time::Time;

/// Period in which deadlines wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeadlineGrace {
    /// Start of the period.
    since: Time,
    /// End of the period, as known now.
    until: Time,
    /// Maximum delay of a deadline, if limited.
    patience: Option<Duration>,
}

impl DeadlineGrace {
    /// Creates a period in which every deadline waits until the time: after a takeover.
    pub const fn until(until: Time) -> DeadlineGrace {
        DeadlineGrace { since: Time::EPOCH, until, patience: None }
    }

    /// Extends the period: messages of executors are `late` when read, and executors get `more` time from
    /// `now`. A deadline is delayed by at most `late` plus `more`, even if all later messages are late.
    #[must_use]
    pub fn extended(self, now: Time, late: Duration, more: Duration) -> DeadlineGrace {
        let until = self.until.max(now + more);
        match self.patience {
            _ if self.until <= now => DeadlineGrace { since: now, until, patience: Some(late + more) },
            Some(patience) => DeadlineGrace { until, patience: Some(patience.max(late + more)), ..self },
            // An extension of the period after a takeover is limited as well.
            None if self.until < until => {
                DeadlineGrace { since: self.until, until, patience: Some(late + more) }
            }
            None => self,
        }
    }

    /// Returns the time at which a deadline fires.
    pub fn rings_at(&self, deadline: Time) -> Time {
        let waits = self.until.max(deadline);
        self.patience.map_or(waits, |patience| waits.min(deadline.max(self.since) + patience))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(16);

    fn at(seconds: u64) -> Time {
        Time::EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn after_a_pause_deadlines_wait_for_half_a_lease() {
        let grace = DeadlineGrace::until(at(0)).extended(at(100), Duration::from_mins(1), LEASE / 2);
        for (deadline, rings) in [(50, 108), (100, 108), (107, 108), (108, 108), (300, 300)] {
            assert_eq!(grace.rings_at(at(deadline)), at(rings), "{deadline}");
        }
    }

    #[test]
    fn a_deadline_is_late_by_the_delay_and_half_a_lease_where_everything_is_read_late() {
        let mut grace = DeadlineGrace::until(at(0));
        for now in 100..1_000 {
            grace = grace.extended(at(now), Duration::from_secs(5), LEASE / 2);
            for deadline in [90, 100, 150] {
                let rings = deadline.max(100) + 5 + 8;
                assert_eq!(
                    grace.rings_at(at(deadline)),
                    at(rings.min(deadline.max(now + 8))),
                    "{deadline}, {now}"
                );
            }
        }
    }

    #[test]
    fn after_a_takeover_no_deadline_fires_early() {
        let grace = DeadlineGrace::until(Time::FAR).extended(at(100), Duration::from_mins(1), LEASE / 2);
        assert_eq!(grace.rings_at(at(1)), Time::FAR);
        let grace = DeadlineGrace::until(at(100)).extended(at(90), Duration::from_mins(1), LEASE / 2);
        assert_eq!(grace.rings_at(at(1)), at(100));
    }

    #[test]
    fn a_deadline_is_late_by_a_bound_where_everything_is_read_late_since_a_takeover() {
        let mut grace = DeadlineGrace::until(at(100));
        for now in 50..1_000 {
            grace = grace.extended(at(now), Duration::from_secs(5), LEASE / 2);
            for deadline in [40, 150] {
                let rings = grace.rings_at(at(deadline));
                assert!(
                    rings >= at(100) && rings <= at(deadline.max(100) + 5 + 8),
                    "{deadline}, {now}: {rings}"
                );
            }
        }
    }
}
