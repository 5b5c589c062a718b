//! Draws: everything that a simulation chooses comes from one seed, so that it can be played again.

/// A source of choices.
#[derive(Clone, Debug)]
pub struct Random(fastrand::Rng);

impl Random {
    /// The choices that follow from a seed.
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.u64(low..=high)
    }

    /// True so many times of a thousand.
    pub fn chance(&mut self, of_a_thousand: u64) -> bool {
        self.below(1000) < of_a_thousand
    }

    /// One of them, if there is any.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { Some(&of[self.0.usize(..of.len())]) }
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }
}
