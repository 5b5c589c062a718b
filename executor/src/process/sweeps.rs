//! Interval of searches for processes that were killed.
//!
//! A process might live on for hours, such as one that waits for a file system that does not answer. A search
//! reads all processes of the machine, so searches become less and less frequent.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(1);

/// Time between two searches, from 50 ms to 1 s.
#[derive(Debug)]
pub(super) struct SweepDelay(Duration);

impl Default for SweepDelay {
    fn default() -> SweepDelay {
        SweepDelay(FIRST)
    }
}

impl SweepDelay {
    pub(super) fn length(&self) -> Duration {
        self.0
    }

    /// Doubles the time, after a search that found a process.
    pub(super) fn lengthen(&mut self) {
        self.0 = (self.0 * 2).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_die_is_searched_once_a_second_in_the_end() {
        let (mut pause, mut looks, mut passed) = (SweepDelay::default(), 0, Duration::ZERO);
        while passed < Duration::from_mins(1) {
            passed += pause.length();
            pause.lengthen();
            looks += 1;
        }
        assert!((60..70).contains(&looks), "{looks} sweeps in a minute");
    }
}
