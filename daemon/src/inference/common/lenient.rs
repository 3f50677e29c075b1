//! Reads side fields leniently: a field of an unexpected type counts as absent, and does not invalidate the answer.
//!
//! Pure. The parts of an answer itself (choices, deltas, calls) are read strictly, because half an answer is no answer.

use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error};
use serde_json::value::RawValue;

/// Greater counts than this are none: no answer has so many tokens, and no sum of such overflows.
const MOST: f64 = 1e15;

/// A count, or a place in a list: a whole number, also as a text or with a fraction. What is negative or no number was
/// not said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::inference) struct Number(pub(in crate::inference) Option<u64>);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|raw| Self(number(raw.get())))
    }
}

fn number(json: &str) -> Option<u64> {
    let text = json.trim_matches('"').trim();
    if let Ok(number) = text.parse::<u64>() {
        return Some(number).filter(|number| *number < 1_000_000_000_000_000);
    }
    let number = text.parse::<f64>().ok().filter(|number| (0.0..MOST).contains(number))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was just seen to be in range")]
    Some(number as u64)
}

/// A value that counts where it has the form of `T`, and was not said where it has not.
#[derive(Debug, Clone, Copy)]
pub(in crate::inference) struct Odd<T>(pub(in crate::inference) Option<T>);

impl<T> Default for Odd<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Odd<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&'de RawValue>::deserialize(deserializer).map(|raw| Self(serde_json::from_str(raw.get()).ok()))
    }
}

/// An object that is read strictly; any other value is none.
#[derive(Debug, Clone, Copy)]
pub(in crate::inference) struct Object<T>(pub(in crate::inference) Option<T>);

impl<T> Default for Object<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&'de RawValue>::deserialize(deserializer)?;
        object(raw).map(Self).map_err(D::Error::custom)
    }
}

/// The objects of a list, each read strictly, in their order; an object by itself is the only one. Other values are
/// none.
#[derive(Debug, Clone)]
pub(in crate::inference) struct Objects<'a, T>(Option<&'a RawValue>, PhantomData<T>);

impl<T> Default for Objects<'_, T> {
    fn default() -> Self {
        Self(None, PhantomData)
    }
}

impl<'de: 'a, 'a, T> Deserialize<'de> for Objects<'a, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(|raw| Self(raw, PhantomData))
    }
}

impl<'a, T: Deserialize<'a>> Objects<'a, T> {
    /// Whether there is a value at all.
    pub(in crate::inference) fn is_said(&self) -> bool {
        self.0.is_some()
    }

    /// All of them.
    ///
    /// # Errors
    /// Where one has not the form of `T`.
    pub(in crate::inference) fn all(&self) -> Result<Vec<T>, serde_json::Error> {
        self.raw().into_iter().filter_map(|raw| object(raw).transpose()).collect()
    }

    fn raw(&self) -> Vec<&'a RawValue> {
        match self.0 {
            Some(raw) if raw.get().starts_with('{') => vec![raw],
            Some(raw) => {
                let list: Vec<&RawValue> = serde_json::from_str(raw.get()).unwrap_or_default();
                list.into_iter().filter(|raw| raw.get().starts_with('{')).collect()
            }
            None => Vec::new(),
        }
    }
}

/// A value, where there is anything in it: some servers have a field of every answer that is empty while it has nothing
/// to say.
pub(in crate::inference) fn said(raw: Option<&RawValue>) -> Option<&RawValue> {
    let is_empty = |text: &str| matches!(text, "null" | "false" | "0" | "") || is_of(text, b"[]{}\"");
    raw.filter(|raw| !is_empty(raw.get()))
}

/// Whether a text has no other bytes than these, and blanks.
fn is_of(text: &str, bytes: &[u8]) -> bool {
    text.bytes().all(|byte| byte.is_ascii_whitespace() || bytes.contains(&byte))
}

fn object<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Result<Option<T>, serde_json::Error> {
    if raw.get().starts_with('{') { serde_json::from_str(raw.get()).map(Some) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_value_without_anything_in_it_says_nothing() {
        for (json, is_said) in [
            ("null", false),
            ("false", false),
            ("0", false),
            (r#""""#, false),
            (r#"" ""#, false),
            ("{}", false),
            ("[ ]", false),
            ("[{}]", false),
            ("true", true),
            ("1", true),
            (r#""overloaded""#, true),
            (r#"{"message":""}"#, true),
            ("[1]", true),
        ] {
            let raw: &RawValue = serde_json::from_str(json).unwrap();
            assert_eq!(said(Some(raw)).is_some(), is_said, "{json}");
        }
    }

    #[test]
    fn a_number_is_one_however_it_is_written_and_nothing_else_is() {
        for (json, expected) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("7.0", Some(7)),
            ("7.9", Some(7)),
            ("1.2e3", Some(1_200)),
            ("\"7\"", Some(7)),
            ("\" 7.0 \"", Some(7)),
            ("-1", None),
            ("-0.5", None),
            ("1e300", None),
            ("18446744073709551615", None),
            ("\"many\"", None),
            ("\"inf\"", None),
            ("\"NaN\"", None),
            ("\"\"", None),
            ("null", None),
            ("true", None),
            ("[7]", None),
            ("{\"n\":7}", None),
        ] {
            assert_eq!(serde_json::from_str::<Number>(json).unwrap(), Number(expected), "{json}");
        }
    }
}
