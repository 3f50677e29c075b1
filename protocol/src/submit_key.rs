//! Defines the key of one submit, by which the daemon recognises a submit that is sent again, so that it makes no
//! second run.
//!
//! Pure. It must not make a key: the client brings the random number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::hex::{self, DIGITS};

/// A number of 128 bits, made at random for one submit, shown as 32 hexadecimal digits.
///
/// It is not an idempotency key: no person typed it, only the client that made it knows its meaning, and the
/// specification is not compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubmitKey(u128);

/// A text is not a submit key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a submit key has {DIGITS} hexadecimal digits")]
pub struct SubmitKeyError;

impl SubmitKey {
    /// The key with this number.
    pub const fn from_u128(number: u128) -> Self {
        Self(number)
    }

    /// The key for the line `index` of a batch; this key is that of the first line.
    #[must_use]
    pub const fn of_line(self, index: u64) -> Self {
        Self(self.0.wrapping_add(index as u128))
    }
}

impl fmt::Display for SubmitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&hex::encode(self.0)).unwrap_or_default())
    }
}

impl fmt::Debug for SubmitKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SubmitKey({self})")
    }
}

impl FromStr for SubmitKey {
    type Err = SubmitKeyError;

    fn from_str(text: &str) -> Result<Self, SubmitKeyError> {
        hex::decode(text.bytes()).map(Self).ok_or(SubmitKeyError)
    }
}

impl Serialize for SubmitKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(str::from_utf8(&hex::encode(self.0)).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for SubmitKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = SubmitKey;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("32 hexadecimal digits")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<SubmitKey, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for SubmitKey {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SubmitKey".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9a-fA-F]{32}$" })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_key_reads_back_and_nothing_else_is_one() {
        for number in [0, 1, 0xabc, u128::MAX, 1 << 127] {
            let key = SubmitKey::from_u128(number);
            assert_eq!(key.to_string().parse(), Ok(key));
            assert_eq!(serde_json::from_str::<SubmitKey>(&serde_json::to_string(&key).unwrap()).unwrap(), key);
        }
        let (short, long) = ("0".repeat(31), "0".repeat(33));
        for wrong in ["", &short, &long, "+0000000000000000000000000000000", "0000000000000000000000000000000g"] {
            assert_eq!(wrong.parse::<SubmitKey>(), Err(SubmitKeyError), "{wrong}");
        }
    }

    #[test]
    fn each_line_of_a_batch_has_another_key() {
        let first = SubmitKey::from_u128(u128::MAX - 1);
        let keys: std::collections::BTreeSet<_> = (0..100).map(|index| first.of_line(index)).collect();
        assert_eq!((keys.len(), first.of_line(0)), (100, first));
    }
}
