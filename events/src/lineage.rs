//! Lineages of a journal: the current lineage, and the lineages before it, each with the last position that
//! it shares with the journal. Also positions as clients have them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::fact::LineageStarted;
use crate::id::{Lineage, Position};

/// Lineages of a journal.
///
/// An abandoned lineage, which started in lost records, has position zero: the journal has no record of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LineageHistory {
    /// Current lineage.
    pub current: Lineage,
    /// Previous lineages, oldest first, each with its last position in this journal.
    pub ancestors: Vec<(Lineage, Position)>,
}

impl LineageHistory {
    /// Returns the history of a journal with only one lineage.
    pub const fn new(current: Lineage) -> LineageHistory {
        LineageHistory { current, ancestors: Vec::new() }
    }

    /// Continues under `current`, as the fact that starts it defines.
    pub fn start(&mut self, current: Lineage, fact: &LineageStarted) {
        // The lost records may reach back before the end of an earlier ancestor.
        for (_, end) in &mut self.ancestors {
            *end = (*end).min(fact.at);
        }
        self.ancestors.extend(fact.abandoned.iter().map(|lineage| (*lineage, Position::ZERO)));
        self.ancestors.push((fact.previous, fact.at));
        self.current = current;
    }

    /// Last position of an ancestor in this journal; `None` for other lineages.
    pub fn end(&self, lineage: Lineage) -> Option<Position> {
        // An ancestor that ended twice, because a copy was restored, ends at its first end.
        let ends = self.ancestors.iter().filter(|(ancestor, _)| *ancestor == lineage);
        ends.map(|(_, end)| *end).min().filter(|_| lineage != self.current)
    }

    /// Whether `position` of `lineage` is, or will be, a position of this journal.
    pub fn has(&self, lineage: Lineage, position: Position) -> bool {
        lineage == self.current || self.end(lineage).is_some_and(|end| position <= end)
    }

    /// Whether this journal, whose last position is `head`, issued the id with this lineage and position.
    pub fn issued(&self, lineage: Lineage, position: Position, head: Position) -> bool {
        position <= head && self.has(lineage, position)
    }

    /// First position that is valid only under the current lineage.
    pub fn since(&self) -> Position {
        self.ancestors.last().map_or(Position::FIRST, |(_, end)| end.plus(1))
    }
}

/// Position with its lineage, as clients receive it: `120.1f3a5c7e9b2d4f60`. A person may write only the
/// number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NamedPosition {
    /// Number of the position.
    pub position: Position,
    /// Lineage of the position, if given.
    pub lineage: Option<Lineage>,
}

/// Text that is not a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid position: must be a number, or a number and a lineage as in 120.1f3a5c7e9b2d4f60")]
pub struct InvalidPosition;

impl fmt::Display for NamedPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lineage {
            Some(lineage) => write!(f, "{}.{lineage}", self.position),
            None => write!(f, "{}", self.position),
        }
    }
}

impl FromStr for NamedPosition {
    type Err = InvalidPosition;
    fn from_str(text: &str) -> Result<NamedPosition, InvalidPosition> {
        let (position, lineage) = match text.split_once('.') {
            Some((position, lineage)) => (position, Some(lineage.parse().map_err(|_| InvalidPosition)?)),
            None => (text, None),
        };
        let position = position.parse().ok().filter(|position| *position < Position::MAX);
        Ok(NamedPosition { position: position.ok_or(InvalidPosition)?, lineage })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back_with_and_without_its_lineage() {
        let lineage = Some(Lineage::from_random(0x1f3a));
        for position in [0, 7, 1 << 40].map(Position::new) {
            for lineage in [None, lineage] {
                let named = NamedPosition { position, lineage };
                assert_eq!(named.to_string().parse(), Ok(named));
            }
        }
        assert_eq!(NamedPosition { position: Position::new(7), lineage }.to_string(), "7.0000000000001f3a");
        for wrong in ["", "x", "-1", "7.", ".0000000000001f3a", "7.1f3a", "7.x", &u64::MAX.to_string()] {
            assert_eq!(wrong.parse::<NamedPosition>(), Err(InvalidPosition), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_stored_under_an_ancestor_counts_up_to_its_end_and_nothing_of_an_abandoned_one() {
        let [first, second, lost, other] = [1, 2, 3, 4].map(Lineage::from_random);
        let mut lineages = LineageHistory::new(first);
        assert_eq!(lineages.since(), Position::FIRST);
        let (at, abandoned) = (Position::new(120), vec![lost]);
        let missing_through = Some(Position::new(300));
        lineages.start(second, &LineageStarted { previous: first, at, missing_through, abandoned });
        assert_eq!((lineages.current, lineages.since()), (second, Position::new(121)));
        let cases = [
            (first, 120, true, "the last position of an ancestor"),
            (first, 121, false, "behind its end"),
            (second, 121, true, "the current lineage"),
            (second, 900, true, "the current lineage, to come"),
            (lost, 1, false, "an abandoned lineage"),
            (other, 1, false, "an unknown lineage"),
        ];
        for (lineage, position, expected, why) in cases {
            assert_eq!(lineages.has(lineage, Position::new(position)), expected, "{why}");
        }
        let third = Lineage::from_random(5);
        let mut shortened = lineages.clone();
        let fact = LineageStarted {
            previous: second,
            at: Position::new(60),
            missing_through: None,
            abandoned: Vec::new(),
        };
        shortened.start(third, &fact);
        for (lineage, position, expected) in [(first, 60, true), (first, 61, false), (second, 61, false)] {
            assert_eq!(shortened.has(lineage, Position::new(position)), expected, "given up behind 60");
        }
        let head = Position::new(500);
        assert!(!lineages.issued(second, Position::new(900), head), "it has not come so far");
        assert!(lineages.issued(second, Position::new(500), head));
    }
}
