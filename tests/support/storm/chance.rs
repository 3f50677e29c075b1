//! Random choices from a seed: the same seed makes the same choices, as far as one thread makes them.

use std::time::Duration;

/// A source of chance (SplitMix64, by Sebastiano Vigna).
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// Chance from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another source, for a thread of its own.
    pub fn split(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
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
