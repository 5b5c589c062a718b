//! Hunts planted mistakes: plays seeds until one of them shows it.

use chancery_events::planted::{Bug, plant};

use super::{Script, Story, play};
use crate::check::Violation;

/// The first of so many seeds that shows a mistake, and what it says.
pub fn hunt(bug: Bug, seeds: u64) -> Option<(u64, Violation)> {
    plant(Some(bug));
    let found = (1..=seeds).find_map(|seed| {
        let violation = play(Script::draw(seed), Story::Untold).violation?;
        Some((seed, violation))
    });
    plant(None);
    found
}
