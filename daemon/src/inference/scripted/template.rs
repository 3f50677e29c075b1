//! Expands `${name}` in the texts of a script. Pure.
//!
//! Only a valid name of a capture is expanded: `${a:-b}` and the like belong to the shell and stay unchanged.
//! `$${name}` is a literal `${name}`.

use std::collections::BTreeMap;

use harness_protocol::json_size::text_bytes;
use serde_json::Value;

/// Whether a capture can have this name: letters, digits and underscores, no digit first.
pub(in crate::inference) fn is_name(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(word) && text.starts_with(|c: char| !c.is_ascii_digit())
}

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part<'a> {
    Literal(&'a str),
    Name(&'a str),
}

fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let Some(at) = rest.find("${") else { return Some(Part::Literal(std::mem::take(&mut rest))) };
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        if let Some(before) = before.strip_suffix('$') {
            // Without the dollar that escapes, in two parts.
            if before.is_empty() {
                rest = after;
                return Some(Part::Literal("${"));
            }
            rest = &rest[at - 1..];
            return Some(Part::Literal(before));
        }
        if !before.is_empty() {
            rest = &rest[at..];
            return Some(Part::Literal(before));
        }
        match after.split_once('}') {
            Some((name, after)) if is_name(name) => {
                rest = after;
                Some(Part::Name(name))
            }
            _ => {
                rest = after;
                Some(Part::Literal("${"))
            }
        }
    })
}

/// The names in a text.
pub(in crate::inference) fn names(text: &str) -> impl Iterator<Item = &str> {
    parts(text).filter_map(|part| match part {
        Part::Name(name) => Some(name),
        Part::Literal(_) => None,
    })
}

/// The names in all texts of `value`.
pub(in crate::inference) fn names_within<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.extend(names(text)),
        Value::Array(values) => values.iter().for_each(|value| names_within(value, found)),
        Value::Object(map) => map.values().for_each(|value| names_within(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Why a text cannot be filled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::inference) enum FillError {
    /// Nothing was captured under this name.
    Unknown(String),
    /// It comes to more than there is room for.
    TooLarge,
}

/// Bytes of JSON that texts may still come to, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::inference) struct Room(pub(in crate::inference) usize);

impl Room {
    fn take(&mut self, text: &str) -> Result<(), FillError> {
        self.0 = self.0.checked_sub(text_bytes(text)).ok_or(FillError::TooLarge)?;
        Ok(())
    }
}

/// Puts the captured texts in, as long as there is room: so much memory a script takes, and no more.
///
/// # Errors
/// The first name that nothing was captured under, or that there is no room.
pub(in crate::inference) fn fill(
    text: &str,
    captures: &BTreeMap<&str, &str>,
    room: &mut Room,
) -> Result<String, FillError> {
    let mut filled = String::new();
    for part in parts(text) {
        let piece = match part {
            Part::Literal(literal) => literal,
            Part::Name(name) => captures.get(name).ok_or_else(|| FillError::Unknown(name.to_owned()))?,
        };
        room.take(piece)?;
        filled.push_str(piece);
    }
    Ok(filled)
}

/// Puts the captured texts into all texts of `value`.
///
/// # Errors
/// As those of [`fill`].
pub(in crate::inference) fn fill_within(
    value: &Value,
    captures: &BTreeMap<&str, &str>,
    room: &mut Room,
) -> Result<Value, FillError> {
    Ok(match value {
        Value::String(text) => Value::String(fill(text, captures, room)?),
        Value::Array(values) => {
            Value::Array(values.iter().map(|value| fill_within(value, captures, room)).collect::<Result<_, _>>()?)
        }
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(key, value)| Ok((key.clone(), fill_within(value, captures, room)?)))
                .collect::<Result<_, FillError>>()?,
        ),
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_replaced_and_the_shells_own_stay() {
        let captures = BTreeMap::from([("size", "4K"), ("x_1", "${size}")]);
        for (text, filled) in [
            ("It holds ${size}.", Ok("It holds 4K.")),
            ("${size}${size}", Ok("4K4K")),
            ("${x_1}", Ok("${size}")),
            ("$size ${size:-1} ${#size} ${1} ${} ${", Ok("$size ${size:-1} ${#size} ${1} ${} ${")),
            ("a $${size} b", Ok("a ${size} b")),
            ("$$${size}", Ok("$${size}")),
            ("pid $$ ${gone}", Err(FillError::Unknown("gone".to_owned()))),
            ("", Ok("")),
        ] {
            assert_eq!(fill(text, &captures, &mut Room(100)), filled.map(str::to_owned), "{text}");
        }
    }

    proptest! {
        /// B5: however captures are put together, no more is made than there is room for.
        #[test]
        fn what_is_filled_takes_no_more_than_there_is_room_for(
            template in "(\\$\\{a\\}|\\$\\{b\\}|x|\"){0,40}",
            (a, b) in ("[y\u{1}\"]{0,50}", "[z\u{1F600}]{0,50}"),
            most in 0usize..2_000,
        ) {
            let captures = BTreeMap::from([("a", a.as_str()), ("b", b.as_str())]);
            let whole = template.replace("${a}", &a).replace("${b}", &b);
            let mut room = Room(most);
            match fill(&template, &captures, &mut room) {
                Ok(filled) => {
                    prop_assert_eq!(text_bytes(&filled), most - room.0);
                    prop_assert_eq!(filled, whole);
                }
                Err(error) => {
                    prop_assert_eq!(error, FillError::TooLarge);
                    prop_assert!(text_bytes(&whole) > most);
                }
            }
        }

        // So `harnessctl export` writes what a model said.
        #[test]
        fn a_text_whose_openings_are_all_escaped_comes_back_as_it_was(text in "[a-z ${}]{0,20}") {
            let escaped = text.replace("${", "$${");
            prop_assert!(names(&escaped).next().is_none());
            prop_assert_eq!(fill(&escaped, &BTreeMap::new(), &mut Room(100)), Ok(text));
        }

        #[test]
        fn a_text_without_names_stays_as_it_is(text in "[a-z ${}]{0,20}") {
            prop_assume!(names(&text).next().is_none() && !text.contains("$${"));
            prop_assert_eq!(fill(&text, &BTreeMap::new(), &mut Room(100)), Ok(text));
        }
    }
}
