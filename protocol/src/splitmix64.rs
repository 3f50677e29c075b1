//! Makes numbers that look random and follow from a seed (SplitMix64). They spread retries over time, and make the
//! choices of tests.
//!
//! It must not make a number that an attacker should be unable to guess, such as a key: all numbers follow from one
//! seed.

/// A sequence of numbers from a seed (Steele, Lea and Flood, 2014). The crates of the field bring traits and features
/// for more than these four lines.
#[derive(Debug, Clone)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    #[test]
    fn the_numbers_are_those_of_the_reference() {
        for (seed, numbers) in [
            (0, [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F]),
            (1_234_567, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]),
        ] {
            let mut sequence = SplitMix64::new(seed);
            assert_eq!([(); 3].map(|()| sequence.draw()), numbers, "{seed}");
        }
    }
}
