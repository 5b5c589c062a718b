//! Random choices: each choice of a simulation comes from one seed, so that the simulation can be replayed.

/// Source of random choices.
#[derive(Clone, Debug)]
pub struct RandomSource(fastrand::Rng);

impl RandomSource {
    /// Creates a source from a seed.
    pub fn new(seed: u64) -> RandomSource {
        RandomSource(fastrand::Rng::with_seed(seed))
    }

    /// Returns a number below `end`, which must not be zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.u64(..end)
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.u64(low..=high)
    }

    /// Returns true with a probability in thousandths.
    pub fn chance(&mut self, of_a_thousand: u64) -> bool {
        self.below(1000) < of_a_thousand
    }

    /// Returns a random element, if any.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { Some(&of[self.0.usize(..of.len())]) }
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.u64(..)
    }
}
