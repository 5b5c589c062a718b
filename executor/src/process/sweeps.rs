//! How often what is to end, and was killed, is looked for.
//!
//! A process may not die for hours, as one that waits for a file system that does not answer. To look for it means to read all
//! processes of the machine, so it is looked for less and less often.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const MOST: Duration = Duration::from_secs(1);

/// Time from one look to the next.
#[derive(Debug)]
pub(super) struct Pause(Duration);

impl Default for Pause {
    fn default() -> Pause {
        Pause(FIRST)
    }
}

impl Pause {
    pub(super) fn length(&self) -> Duration {
        self.0
    }

    /// Once something was found to be left.
    pub(super) fn lengthen(&mut self) {
        self.0 = (self.0 * 2).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_die_is_looked_for_once_a_second_in_the_end() {
        let (mut pause, mut looks, mut passed) = (Pause::default(), 0, Duration::ZERO);
        while passed < Duration::from_mins(1) {
            passed += pause.length();
            pause.lengthen();
            looks += 1;
        }
        assert!((60..70).contains(&looks), "{looks} looks in a minute");
    }
}
