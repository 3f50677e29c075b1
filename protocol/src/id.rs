//! Defines the ids of runs, calls and questions: 64 bits, shown as thirteen characters of lower-case Crockford base32.
//! The beginning of an id stands for the id while no other one has the same beginning. Pure: it must not make an id;
//! the daemon's world does.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::num::ParseIntError;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Characters of a whole id: one of four bits, twelve of five.
pub const ID_CHARS: usize = 13;

/// Pattern of a whole id.
#[cfg(feature = "schema")]
const ID_PATTERN: &str = "^[0-9a-f][0-9a-hjkmnp-tv-z]{12}$";

/// Why a text is not an id, or not a prefix of one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not between one and thirteen characters; or not exactly thirteen, if a whole id is wanted.
    #[error("an id has 13 characters, a prefix of one 1 to 13")]
    Length,
    /// A character outside Crockford's alphabet.
    #[error("ids are written in the characters 0-9 and a-z without i, l, o and u")]
    Character,
    /// More than 64 bits.
    #[error("that id is out of range")]
    Range,
}

/// Marks a byte that is not a digit.
const NO_DIGIT: u8 = 255;

/// The value of each byte: a start reads several ids of each event.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut value: u8 = 0;
    while value < 32 {
        let byte = ALPHABET[value as usize];
        digits[byte as usize] = value;
        digits[byte.to_ascii_uppercase() as usize] = value;
        value += 1;
    }
    let like_digits = [(b'i', 1), (b'I', 1), (b'l', 1), (b'L', 1), (b'o', 0), (b'O', 0)];
    let mut next = 0;
    while next < like_digits.len() {
        let (byte, value) = like_digits[next];
        digits[byte as usize] = value;
        next += 1;
    }
    digits
};

fn digit(byte: u8) -> Option<u64> {
    let digit = DIGITS[usize::from(byte)];
    (digit != NO_DIGIT).then_some(u64::from(digit))
}

fn encode(value: u64) -> [u8; ID_CHARS] {
    let mut text = [0; ID_CHARS];
    let mut rest = value;
    for slot in text.iter_mut().rev() {
        *slot = ALPHABET[(rest & 31) as usize];
        rest >>= 5;
    }
    text
}

/// A prefix of an id: the ids that begin with it are a range of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdPrefix {
    low: u64,
    high: u64,
}

impl IdPrefix {
    /// The numbers of all ids with this prefix.
    pub fn range(self) -> RangeInclusive<u64> {
        self.low..=self.high
    }

    /// Whether the prefix is a whole id.
    pub fn is_whole(self) -> bool {
        self.low == self.high
    }
}

impl FromStr for IdPrefix {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        if text.is_empty() || text.len() > ID_CHARS {
            return Err(IdError::Length);
        }
        let mut value = 0u64;
        for (index, byte) in text.bytes().enumerate() {
            let digit = digit(byte).ok_or(IdError::Character)?;
            if index == 0 && digit > 15 {
                return Err(IdError::Range);
            }
            value = (value << 5) | digit;
        }
        let missing_bits = 5 * (ID_CHARS - text.len());
        let low = if missing_bits >= 64 { 0 } else { value << missing_bits };
        let span = if missing_bits >= 64 { u64::MAX } else { (1u64 << missing_bits) - 1 };
        Ok(Self { low, high: low | span })
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The id with this number.
            pub const fn from_u64(value: u64) -> Self { Self(value) }
            /// The number behind the text.
            pub const fn as_u64(self) -> u64 { self.0 }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let text = encode(self.0);
                f.pad(str::from_utf8(&text).unwrap_or_default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let prefix: IdPrefix = text.parse()?;
                if prefix.is_whole() { Ok(Self(prefix.low)) } else { Err(IdError::Length) }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(str::from_utf8(&encode(self.0)).unwrap_or_default())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str("an id") }
                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> { text.parse().map_err(E::custom) }
                }
                deserializer.deserialize_str(Visitor)
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> { stringify!($name).into() }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "pattern": ID_PATTERN })
            }
        }
    )*};
}

ids! {
    /// One agent run.
    RunId;
    /// One tool call of a step. It is never the id that a provider gave.
    CallId;
    /// An approval or a question that a person settles.
    InteractionId;
    /// One relief of a lane; the relief can be undone by this id.
    ReliefId;
    /// One epoch of a journal's history, which begins with the journal, or where a copy of it continued by itself.
    EpochId;
}

/// A map by ids of one kind.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Hashes ids. Ids come out of a keyed bijection, so their bits are mixed already; only the highest bits must be made
/// to depend on all others.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(32)
    }
}

/// Number of an event: 1 is the first, each next one is greater by one. 0 is before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// The number after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Seq {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// Number of a subscription, unique on its connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct SubscriptionId(pub u64);

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SubscriptionId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_id_has_thirteen_lower_case_characters() {
        assert_eq!(RunId::from_u64(0).to_string(), "0000000000000");
        assert_eq!(RunId::from_u64(u64::MAX).to_string(), "fzzzzzzzzzzzz");
    }

    #[test]
    fn letters_that_look_like_digits_are_read_as_digits() {
        assert_eq!("oooooooooooiL".parse::<RunId>(), Ok(RunId::from_u64(33)));
        assert_eq!("u".parse::<IdPrefix>(), Err(IdError::Character));
        assert_eq!("gzzzzzzzzzzzz".parse::<RunId>(), Err(IdError::Range));
        assert_eq!("".parse::<IdPrefix>(), Err(IdError::Length));
    }

    proptest! {
        #[test]
        fn every_prefix_of_an_id_holds_it(value: u64, chars in 1usize..=ID_CHARS) {
            let text = RunId::from_u64(value).to_string();
            prop_assert_eq!(text.parse::<RunId>(), Ok(RunId::from_u64(value)));
            prop_assert_eq!(text.to_uppercase().parse::<RunId>(), Ok(RunId::from_u64(value)));
            let prefix: IdPrefix = text[..chars].parse().unwrap();
            prop_assert!(prefix.range().contains(&value));
            let first = RunId::from_u64(*prefix.range().start()).to_string();
            let last = RunId::from_u64(*prefix.range().end()).to_string();
            prop_assert_eq!(&first[..chars], &text[..chars]);
            prop_assert_eq!(&last[..chars], &text[..chars]);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,20}") {
            let _ = text.parse::<IdPrefix>();
        }
    }
}
