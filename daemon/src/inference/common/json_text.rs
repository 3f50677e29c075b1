//! Reads the JSON strings of a stream and joins them.
//!
//! The output of a model is cut anywhere, and some servers cut between the halves of a UTF-16 surrogate pair. A string
//! may therefore hold a lone half ([`Text`], as WTF-8). Two halves that meet become their character; a half that stays
//! alone becomes U+FFFD and is reported.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde_json::value::RawValue;

use crate::inference::fast_path::skim::Quoted;

/// A string of JSON, borrowed where it has no escapes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::inference) struct Text<'a>(Cow<'a, [u8]>);

impl<'a> Text<'a> {
    /// The text of a string of JSON.
    #[inline]
    pub(in crate::inference) fn of_quoted(quoted: Quoted<'a>) -> Option<Self> {
        match quoted.plain() {
            Some(plain) => Some(Self::from(plain)),
            None => Self::unescape(quoted.json),
        }
    }

    #[inline(never)]
    fn unescape(json: &'a str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }
}

impl Text<'_> {
    pub(in crate::inference) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::inference) fn len(&self) -> usize {
        self.0.len()
    }

    /// The text; halves of pairs are replaced.
    pub(in crate::inference) fn to_str(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }
}

/// A string, a list of strings or of parts that have one, an object that has one; a number in its own digits. Any other
/// value is empty: a text of an odd type is none, and costs no answer.
impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(<&'de RawValue>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<'a> Text<'a> {
    /// The text of any value.
    pub(in crate::inference) fn of(raw: &'a RawValue) -> Result<Self, serde_json::Error> {
        match raw.get().as_bytes().first() {
            Some(b'"') => Ok(serde_json::from_str::<Quote<'_>>(raw.get())?.0),
            Some(b'[') => {
                let mut bytes = Vec::new();
                for part in serde_json::from_str::<Vec<&RawValue>>(raw.get())? {
                    bytes.extend_from_slice(&Self::of(part)?.0);
                }
                Ok(Self(Cow::Owned(bytes)))
            }
            Some(b'{') => {
                let Part { text, content } = serde_json::from_str(raw.get())?;
                text.or(content).map_or(Ok(Self::default()), Self::of)
            }
            Some(b'-' | b'0'..=b'9') => Ok(Self::from(raw.get())),
            _ => Ok(Self::default()),
        }
    }
}

/// What has a text in it.
#[derive(serde::Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

/// A string of JSON, and nothing else.
struct Quote<'a>(Text<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for Quote<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Strings<'a> {
            type Value = Quote<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Quote<'a>, E> {
                Ok(Quote(Text(Cow::Borrowed(bytes))))
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Quote<'a>, E> {
                Ok(Quote(Text(Cow::Owned(bytes.to_vec()))))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Quote<'a>, E> {
                Ok(Quote(Text(Cow::Owned(text.as_bytes().to_vec()))))
            }
        }
        // As bytes: only so does serde_json let a half of a pair pass.
        deserializer.deserialize_bytes(Strings(PhantomData))
    }
}

/// A string that came in pieces.
#[derive(Debug, Clone, Default)]
pub(in crate::inference) struct Gathered {
    text: String,
    /// A high half that waits for its low one.
    half: Option<u16>,
    broken: bool,
}

impl Gathered {
    /// Adds a piece. Gives back what became certain of the text by it.
    pub(in crate::inference) fn push(&mut self, piece: &Text<'_>) -> &str {
        let before = self.text.len();
        match str::from_utf8(&piece.0) {
            Ok(text) if self.half.is_none() => self.text.push_str(text),
            Ok("") => {}
            _ => self.push_halves(&piece.0),
        }
        &self.text[before..]
    }

    /// Like [`push`](Self::push), for what is shown and not kept.
    pub(in crate::inference) fn pass(&mut self, piece: &Text<'_>) -> &str {
        self.text.clear();
        self.push(piece)
    }

    fn push_halves(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (text, rest) = split_valid(bytes);
            if !text.is_empty() {
                self.give_up_half();
                self.text.push_str(text);
            }
            bytes = match rest {
                [0xED, second, third, rest @ ..] => {
                    self.push_half(0xD000 | (u16::from(second & 0x3F) << 6) | u16::from(third & 0x3F));
                    rest
                }
                [_, rest @ ..] => {
                    self.give_up_half();
                    self.replace();
                    rest
                }
                [] => &[],
            };
        }
    }

    fn push_half(&mut self, unit: u16) {
        let pair = self.half.and_then(|high| char::decode_utf16([high, unit]).next()?.ok());
        match pair {
            Some(character) => {
                self.half = None;
                self.text.push(character);
            }
            None => {
                self.give_up_half();
                if (0xD800..0xDC00).contains(&unit) { self.half = Some(unit) } else { self.replace() }
            }
        }
    }

    fn give_up_half(&mut self) {
        if self.half.take().is_some() {
            self.replace();
        }
    }

    fn replace(&mut self) {
        self.broken = true;
        self.text.push(char::REPLACEMENT_CHARACTER);
    }

    /// Puts a text ahead of this one.
    pub(in crate::inference) fn prepend(&mut self, before: &str) {
        self.text.insert_str(0, before);
    }

    pub(in crate::inference) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.half.is_none()
    }

    /// The text so far.
    pub(in crate::inference) fn as_str(&self) -> &str {
        &self.text
    }

    /// The text, and whether something in it had to be replaced.
    pub(in crate::inference) fn finish(mut self) -> (String, bool) {
        self.give_up_half();
        (self.text, self.broken)
    }
}

fn split_valid(bytes: &[u8]) -> (&str, &[u8]) {
    let valid = match str::from_utf8(bytes) {
        Ok(text) => return (text, &[]),
        Err(error) => error.valid_up_to(),
    };
    let (text, rest) = bytes.split_at(valid);
    (str::from_utf8(text).unwrap_or_default(), rest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn gathered(pieces: &[&str]) -> (String, bool) {
        let mut gathered = Gathered::default();
        let mut shown = String::new();
        for piece in pieces {
            shown.push_str(gathered.push(&serde_json::from_str(piece).unwrap()));
        }
        let (text, broken) = gathered.finish();
        assert!(text.starts_with(&shown), "{shown:?} of {text:?}");
        (text, broken)
    }

    #[test]
    fn a_string_without_escapes_is_borrowed() {
        let text: Text<'_> = serde_json::from_str("\"plain \u{2603}\"").unwrap();
        assert!(matches!(text.0, Cow::Borrowed(_)));
        assert_eq!(text.to_str(), "plain \u{2603}");
    }

    #[test]
    fn the_halves_of_a_pair_become_one_character_wherever_they_are_cut() {
        for pieces in [
            &[r#""a\ud83d\ude00b""#][..],
            &[r#""a\ud83d""#, r#""\ude00b""#],
            &[r#""a""#, r#""\ud83d""#, r#""""#, r#""\ude00""#, r#""b""#],
        ] {
            assert_eq!(gathered(pieces), ("a\u{1F600}b".to_owned(), false), "{pieces:?}");
        }
    }

    #[test]
    fn a_half_without_the_other_is_replaced_and_told_of() {
        for pieces in [&[r#""a\ud83d""#, r#""b""#][..], &[r#""a\ude00b""#], &[r#""a""#, r#""\ude00""#, r#""b""#]] {
            assert_eq!(gathered(pieces), ("a\u{FFFD}b".to_owned(), true), "{pieces:?}");
        }
        assert_eq!(gathered(&[r#""\ud83d\ud83d\ude00""#]), ("\u{FFFD}\u{1F600}".to_owned(), true));
        assert_eq!(gathered(&[r#""a\ud83d""#]), ("a\u{FFFD}".to_owned(), true));
    }

    #[test]
    fn content_in_parts_is_their_texts() {
        let parts = r#"[{"type":"thinking","thinking":[]},{"type":"text","text":"a"},{"type":"text","text":"b"}]"#;
        assert_eq!(gathered(&[parts]), ("ab".to_owned(), false));
    }
}
