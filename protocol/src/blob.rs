//! Names of texts that are stored once: prompts, scripts and definitions of tools that are long or shared by many runs.
//!
//! Pure. Owns the form of a name on the wire, and the length from which on a text has one; must never make one: a name
//! is the hash of its text, and the daemon makes the hashes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::hex;

/// Longest text, in bytes, that always stands where it is used and has no name.
pub const LONGEST_INLINE: usize = 1024;

/// Bytes of a hash.
const BYTES: usize = 32;

/// The SHA-256 of a text, which is its name. It is shown as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobHash([u8; BYTES]);

/// A text is not the hash of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the hash of a text has 64 hexadecimal digits")]
pub struct BlobHashError;

impl BlobHash {
    /// The name with these bytes.
    pub const fn new(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    fn halves(self) -> [u128; 2] {
        let half = |at: usize| self.0[at..].iter().take(BYTES / 2).fold(0, |all, &byte| all << 8 | u128::from(byte));
        [half(0), half(BYTES / 2)]
    }

    fn with_digits<T>(self, then: impl FnOnce(&str) -> T) -> T {
        let [first, second] = self.halves().map(hex::encode);
        let mut digits = [0; 2 * hex::DIGITS];
        digits[..hex::DIGITS].copy_from_slice(&first);
        digits[hex::DIGITS..].copy_from_slice(&second);
        then(str::from_utf8(&digits).unwrap_or_default())
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_digits(|digits| f.write_str(digits))
    }
}

impl fmt::Debug for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlobHash({self})")
    }
}

impl FromStr for BlobHash {
    type Err = BlobHashError;

    fn from_str(text: &str) -> Result<Self, BlobHashError> {
        let (first, second) = text.as_bytes().split_at_checked(hex::DIGITS).ok_or(BlobHashError)?;
        let half = |digits: &[u8]| hex::decode(digits.iter().copied()).ok_or(BlobHashError);
        let mut bytes = [0; BYTES];
        bytes[..BYTES / 2].copy_from_slice(&half(first)?.to_be_bytes());
        bytes[BYTES / 2..].copy_from_slice(&half(second)?.to_be_bytes());
        Ok(Self(bytes))
    }
}

impl Serialize for BlobHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.with_digits(|digits| serializer.serialize_str(digits))
    }
}

impl<'de> Deserialize<'de> for BlobHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = BlobHash;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("64 hexadecimal digits")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<BlobHash, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for BlobHash {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BlobHash".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9a-fA-F]{64}$" })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_hash_reads_back_and_its_digits_are_its_bytes_in_order(bytes: [u8; BYTES]) {
            let hash = BlobHash::new(bytes);
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            prop_assert_eq!(&hash.to_string(), &digits);
            prop_assert_eq!(digits.to_uppercase().parse(), Ok(hash));
            prop_assert_eq!(serde_json::from_str::<BlobHash>(&serde_json::to_string(&hash).unwrap()).unwrap(), hash);
        }
    }

    #[test]
    fn what_has_other_digits_or_another_number_of_them_is_no_hash() {
        for wrong in ["", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64), &"é".repeat(32), &"+".repeat(64)] {
            assert_eq!(wrong.parse::<BlobHash>(), Err(BlobHashError), "{wrong}");
        }
    }
}
