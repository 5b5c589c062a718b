//! Journal time: never goes back, and never leaps.
//!
//! It begins at the wall clock or at the journal's last time, whichever is later, and then follows the monotonic
//! clock, slewed towards the wall clock: at half speed while it is ahead, a quarter faster while it is behind. No
//! faster, because leases are counted in it: an executor stops beginning work after three quarters of its lease on
//! its own clock, and the decider must not count the whole of it in less time than that.

use std::time::Duration;

use chancery_events::time::Time;

/// What the machine's clocks say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The wall clock, which may be set forth and back.
    pub wall: Time,
    /// The monotonic clock, from any beginning.
    pub steady: Duration,
}

/// A clock that turns readings into journal time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    time: Time,
    steady: Duration,
}

impl Clock {
    /// Begins at the later of the wall clock and the journal's last time.
    pub fn begin(last: Time, Reading { wall, steady }: Reading) -> Clock {
        Clock { time: last.max(wall), steady }
    }

    /// The journal's time at this reading.
    pub fn read(&mut self, Reading { wall, steady }: Reading) -> Time {
        let passed = steady.saturating_sub(self.steady);
        self.steady = self.steady.max(steady);
        let plain = self.time + passed;
        self.time = if plain > wall {
            // Ahead: at half speed, but no further back than the wall clock.
            (self.time + passed / 2).max(wall.min(plain))
        } else {
            (self.time + passed * 5 / 4).min(wall).max(plain)
        };
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

    fn reading(seconds: u64, steady: u64) -> Reading {
        Reading { wall: wall(seconds), steady: at(steady) }
    }

    #[test]
    fn it_follows_the_wall_clock_and_never_goes_back() {
        let cases = [
            // journal's last, wall and steady at the start, then readings: wall, steady, journal time
            ("in step", 0, 100, vec![(110, 10, 110)]),
            ("the wall clock went back: half speed", 0, 100, vec![(50, 10, 105), (51, 20, 110)]),
            (
                "ahead, until the wall clock has come up",
                100,
                90,
                vec![(100, 10, 105), (110, 20, 110), (120, 30, 120)],
            ),
            ("the wall clock leapt: a quarter faster", 0, 100, vec![(500, 8, 110), (510, 16, 120)]),
        ];
        for (case, last, start, readings) in cases {
            let mut clock = Clock::begin(wall(last), reading(start, 0));
            for (now, steady, expected) in readings {
                assert_eq!(clock.read(reading(now, steady)), wall(expected), "{case}, at {steady} s");
            }
        }
    }
}
