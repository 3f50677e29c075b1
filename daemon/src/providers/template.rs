//! `${name}` in the texts of a script. Pure.
//!
//! Only what can be the name of a capture is one: `${a:-b}` and the like are the shell's, and stay as they are. `$${name}` is a
//! literal `${name}`.

use std::collections::BTreeMap;

use serde_json::Value;

/// Whether a capture can have this name: letters, digits and underscores, no digit first.
pub(super) fn is_name(text: &str) -> bool {
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
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    parts(text).filter_map(|part| match part {
        Part::Name(name) => Some(name),
        Part::Literal(_) => None,
    })
}

/// The names in all texts of `value`.
pub(super) fn names_within<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.extend(names(text)),
        Value::Array(values) => values.iter().for_each(|value| names_within(value, found)),
        Value::Object(map) => map.values().for_each(|value| names_within(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Puts the captured texts in.
///
/// # Errors
/// The first name that nothing was captured under.
pub(super) fn fill(text: &str, captures: &BTreeMap<&str, String>) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    for part in parts(text) {
        filled.push_str(match part {
            Part::Literal(literal) => literal,
            Part::Name(name) => captures.get(name).ok_or_else(|| name.to_owned())?,
        });
    }
    Ok(filled)
}

/// Puts the captured texts into all texts of `value`.
///
/// # Errors
/// The first name that nothing was captured under.
pub(super) fn fill_within(value: &Value, captures: &BTreeMap<&str, String>) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => Value::String(fill(text, captures)?),
        Value::Array(values) => {
            Value::Array(values.iter().map(|value| fill_within(value, captures)).collect::<Result<_, _>>()?)
        }
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(key, value)| Ok((key.clone(), fill_within(value, captures)?)))
                .collect::<Result<_, String>>()?,
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
        let captures = BTreeMap::from([("size", "4K".to_owned()), ("x_1", "${size}".to_owned())]);
        for (text, filled) in [
            ("It holds ${size}.", Ok("It holds 4K.")),
            ("${size}${size}", Ok("4K4K")),
            ("${x_1}", Ok("${size}")),
            ("$size ${size:-1} ${#size} ${1} ${} ${", Ok("$size ${size:-1} ${#size} ${1} ${} ${")),
            ("a $${size} b", Ok("a ${size} b")),
            ("$$${size}", Ok("$${size}")),
            ("pid $$ ${gone}", Err("gone")),
            ("", Ok("")),
        ] {
            assert_eq!(fill(text, &captures).as_deref().map_err(String::as_str), filled, "{text}");
        }
    }

    proptest! {
        // So `harnessctl export` writes what a model said.
        #[test]
        fn a_text_whose_openings_are_all_escaped_comes_back_as_it_was(text in "[a-z ${}]{0,20}") {
            let escaped = text.replace("${", "$${");
            prop_assert!(names(&escaped).next().is_none());
            prop_assert_eq!(fill(&escaped, &BTreeMap::new()), Ok(text));
        }

        #[test]
        fn a_text_without_names_stays_as_it_is(text in "[a-z ${}]{0,20}") {
            prop_assume!(names(&text).next().is_none() && !text.contains("$${"));
            prop_assert_eq!(fill(&text, &BTreeMap::new()), Ok(text));
        }
    }
}
