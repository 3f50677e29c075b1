//! The key of the ids. While the journal is in memory, each daemon makes its own.

use std::fs::File;
use std::io::{self, Read};

/// A key that nobody had before.
///
/// # Errors
/// Where the system gives no randomness.
pub fn fresh() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_daemons_have_two_keys() {
        assert_ne!(fresh().unwrap(), fresh().unwrap());
    }
}
