//! Journal time, which never runs backwards and never jumps.
//!
//! Journal time starts at the wall clock or the journal's last time, whichever is later. It follows the
//! monotonic clock, slewed towards the wall clock: at half speed while ahead, a quarter faster while behind.
//! No faster, because leases count in it. An executor stops starting work after three quarters of its lease
//! on its own clock. The decider must not count a whole lease in less time than that. A wall clock that is
//! too far ahead is not followed at all ([`crate::wall_clock`]).

use std::time::Duration;

use chancery_events::time::Time;

/// Reading of the machine's clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockSample {
    /// Wall clock, which may be set forward and back.
    pub wall: Time,
    /// Monotonic clock, from any origin.
    pub steady: Duration,
}

/// Clock that turns readings into journal time.
#[derive(Clone, Copy, Debug)]
pub struct JournalClock {
    time: Time,
    steady: Duration,
    max_gap: Duration,
    jump: Option<Duration>,
    gap: Duration,
    wall: Time,
}

impl JournalClock {
    /// Starts at the later of the wall clock and the journal's last time.
    pub fn begin(last: Time, ClockSample { wall, steady }: ClockSample) -> JournalClock {
        let time = last.max(wall);
        JournalClock { time, steady, max_gap: Duration::MAX, jump: None, gap: Duration::ZERO, wall: time }
    }

    /// Follows a wall clock that is ahead by at most `max_gap` from now on.
    pub fn bound(&mut self, max_gap: Duration) {
        self.max_gap = max_gap;
    }

    /// Returns how far ahead the wall clock is, if it is too far to be followed.
    pub fn jump(&self) -> Option<Duration> {
        self.jump
    }

    /// Returns how far ahead the wall clock was at the last reading.
    pub fn gap(&self) -> Duration {
        self.gap
    }

    /// Returns the last wall clock, if followed and ahead of journal time; else journal time.
    pub fn wall(&self) -> Time {
        self.wall
    }

    /// Returns journal time at this reading.
    pub fn read(&mut self, ClockSample { wall, steady }: ClockSample) -> Time {
        let passed = steady.saturating_sub(self.steady);
        self.steady = self.steady.max(steady);
        let plain = self.time + passed;
        self.gap = wall.since(plain);
        self.jump = Some(self.gap).filter(|ahead| *ahead > self.max_gap);
        self.time = if self.jump.is_some() {
            plain
        } else if plain > wall {
            // Ahead: at half speed, but not behind the wall clock.
            (self.time + passed / 2).max(wall.min(plain))
        } else {
            (self.time + passed * 5 / 4).min(wall).max(plain)
        };
        self.wall = if self.jump.is_some() { self.time } else { self.time.max(wall) };
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn wall(seconds: u64) -> Time {
        Time::EPOCH + at(seconds)
    }

    fn reading(seconds: u64, steady: u64) -> ClockSample {
        ClockSample { wall: wall(seconds), steady: at(steady) }
    }

    #[test]
    fn it_follows_the_wall_clock_and_never_decreases() {
        let cases = [
            // journal's last time, wall clock at the start, then readings: wall, steady, journal time
            ("in step", 0, 100, vec![(110, 10, 110)]),
            ("the wall clock went back: half speed", 0, 100, vec![(50, 10, 105), (51, 20, 110)]),
            (
                "ahead, until the wall clock has caught up",
                100,
                90,
                vec![(100, 10, 105), (110, 20, 110), (120, 30, 120)],
            ),
            ("the wall clock jumped: a quarter faster", 0, 100, vec![(500, 8, 110), (510, 16, 120)]),
        ];
        for (case, last, start, readings) in cases {
            let mut clock = JournalClock::begin(wall(last), reading(start, 0));
            for (now, steady, expected) in readings {
                assert_eq!(clock.read(reading(now, steady)), wall(expected), "{case}, at {steady} s");
            }
        }
    }

    #[test]
    fn a_wall_clock_that_jumps_too_far_ahead_is_not_followed_until_it_is_back_or_trusted() {
        let mut clock = JournalClock::begin(wall(0), reading(100, 0));
        clock.bound(at(1000));
        let steps = [
            (1050, 8, 110, false, "within the bound it is followed"),
            (5000, 16, 118, true, "too far ahead: the monotonic clock alone"),
            (5010, 26, 128, true, "still not followed"),
            (400, 34, 138, false, "it is back"),
        ];
        for (now, steady, expected, jumps, case) in steps {
            assert_eq!(clock.read(reading(now, steady)), wall(expected), "{case}");
            assert_eq!(clock.jump().is_some(), jumps, "{case}");
            let dated = if jumps { wall(expected) } else { wall(now.max(expected)) };
            assert_eq!(clock.wall(), dated, "time of intents: {case}");
        }
        clock.bound(Duration::MAX);
        assert_eq!((clock.read(reading(5000, 42)), clock.jump()), (wall(148), None), "it is trusted");
    }
}
