//! Makes random choices from a seed: the same seed makes the same choices, as far as one thread makes them.

use std::time::Duration;

use harness_protocol::splitmix64::SplitMix64;

/// A source of chance.
#[derive(Debug, Clone)]
pub struct Chance(SplitMix64);

impl Chance {
    /// Chance from a seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Another source, for a thread of its own.
    pub fn split(&mut self) -> Self {
        Self::new(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Whether it is so this time, with so many chances in a hundred.
    pub fn percent(&mut self, chances: u64) -> bool {
        self.below(100) < chances
    }

    /// One of these.
    pub fn pick<T: Clone>(&mut self, among: &[T]) -> T {
        let index = usize::try_from(self.below(among.len() as u64)).unwrap();
        among[index].clone()
    }

    /// A while between these, in milliseconds.
    pub fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.below(most - least + 1))
    }
}
