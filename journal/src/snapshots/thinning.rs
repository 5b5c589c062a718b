//! Selection of the snapshots to keep: the newest two, and fewer of the older ones the older they are, down to
//! one in about 65,000 events.

use chancery_events::id::Position;

const KEEP: usize = 2;
/// Length of the longest block, as a power of two. A past state is folded from the snapshot before it, so
/// snapshots of any age are no further apart than a block and the interval at which they are written.
const LONGEST: u32 = 16;

/// Returns the positions, given newest first, whose snapshots need not be kept.
///
/// The newest two are kept. For the others, the journal is divided into aligned blocks whose lengths are
/// powers of two. A snapshot's block is the longest one around it that ended at least its own length before
/// the newest snapshot. The snapshot is kept if it is the first in its block, so there are up to three per
/// doubling of the age, until blocks have their greatest length. All snapshots in a block have the same block, and longer blocks consist of whole
/// shorter ones. So a snapshot kept at some age was kept at every age before, however often this function is
/// called.
pub fn superfluous(positions: &[Position]) -> Vec<Position> {
    let Some(newest) = positions.first() else { return Vec::new() };
    let pairs = positions.windows(2).skip(KEEP);
    let superfluous = pairs.filter(|pair| pair[1].get() >= block(pair[0], *newest));
    superfluous.map(|pair| pair[0]).collect()
}

/// Whether a snapshot at the position would be kept alongside those at the positions, given newest first, also when others are added
/// between it and the newest one.
pub(super) fn is_first_of_block(positions: &[Position], position: Position) -> bool {
    let newest = positions.first().copied().unwrap_or(position).max(position);
    let start = block(position, newest);
    !positions.iter().any(|other| *other < position && other.get() >= start)
}

/// Returns the start of a snapshot's block.
fn block(position: Position, newest: Position) -> u64 {
    let position = position.get();
    let start = |power: u32| position >> power << power;
    let has_ended = |power: &u32| start(*power).saturating_add(2 << power) <= newest.get();
    (0..=LONGEST).rev().find(has_ended).map_or(position, start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn thinning_step_by_step_keeps_what_a_check_of_all_that_ever_existed_would_keep(
            steps in prop::collection::vec(prop_oneof![1..3_u64, 1..1000_u64, 1..1_000_000_u64], 1..200),
        ) {
            let (mut ever, mut kept): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
            for step in steps {
                let newest = ever.first().map_or(step, |last| last + step);
                ever.insert(0, newest);
                kept.insert(0, newest);
                let positions: Vec<_> = kept.iter().copied().map(Position::new).collect();
                let superfluous = superfluous(&positions);
                kept.retain(|position| !superfluous.contains(&Position::new(*position)));
                prop_assert_eq!(&kept, &naive(&ever));
                let doublings = (newest - ever[ever.len() - 1]).max(1).ilog2() as usize + 1;
                let blocks = ((newest - ever[ever.len() - 1]) >> LONGEST) as usize;
                prop_assert!(kept.len() <= 2 + 3 * doublings + blocks, "{} in {doublings} doublings", kept.len());
                for position in &ever {
                    // A reader of that position finds a snapshot at or before it that is not much older.
                    let near = newest - (newest - position).saturating_mul(4).min(newest);
                    let near = near.max(position.saturating_sub(1 << LONGEST));
                    prop_assert!(kept.iter().any(|at| *at <= *position && *at >= near), "near {position}");
                }
            }
        }
    }

    /// Returns the first of each block of all snapshots that ever existed, and the newest two.
    fn naive(ever: &[u64]) -> Vec<u64> {
        let is_first = |position: u64| {
            let (mut length, mut block) = (1, position..position + 1);
            while length <= ever[0].min(1 << LONGEST) {
                let start = position - position % length;
                if start + length + length <= ever[0] {
                    block = start..start + length;
                }
                length *= 2;
            }
            !ever.iter().any(|other| *other < position && block.contains(other))
        };
        let kept = ever.iter().enumerate().filter(|(at, position)| *at < 2 || is_first(**position));
        kept.map(|(_, position)| *position).collect()
    }
}
