//! Whether a script can be played: asked at the door, so that a mistake is told to whoever submits it and not hours later.

use std::collections::BTreeSet;
use std::fmt;

use harness_protocol::script::{Script, Turn};
use serde_json::Value;

use super::{scripted, template};

/// A mistake in a script, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct ScriptError {
    /// Where.
    pub place: Place,
    /// What.
    pub fault: ScriptFault,
}

/// A place in a script.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Place {
    /// Names of the scripts down to the one that is wrong; empty for the outermost.
    pub path: Vec<String>,
    /// Its turn, from 1.
    pub turn: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("script")?;
        if !self.path.is_empty() {
            write!(f, " {}", self.path.join("."))?;
        }
        self.turn.map_or(Ok(()), |turn| write!(f, ", turn {turn}"))
    }
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptFault {
    /// It has nothing to say.
    #[error("it has no turns")]
    NoTurns,
    /// A call without a tool.
    #[error("a call names no tool")]
    NoTool,
    /// A pattern that is none.
    #[error("/{pattern}/ is no pattern: {why}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Why.
        why: String,
    },
    /// A capture that could never be named.
    #[error("{0:?} cannot name a capture: letters, digits and underscores can, with no digit first")]
    CaptureName(String),
    /// A name that nothing is captured under.
    #[error(
        "nothing is captured as {0:?} up to here; ${{{0}}} can be written as $${{{0}}} where that text itself is meant"
    )]
    UnknownName(String),
    /// Deeper than what carries it can be read back.
    #[error(
        "it is nested too deeply: scripts within scripts up to {MOST_SCRIPTS} levels, arguments up to {MOST_NESTED}"
    )]
    TooDeep,
}

/// Levels of scripts within scripts. An event, a reply and a record add some around them, and no reader of JSON takes more than 128.
const MOST_SCRIPTS: usize = 16;
/// Levels of arrays and objects in the arguments of a call.
const MOST_NESTED: usize = 64;

/// Whether there are more levels of arrays and objects than `left`.
fn is_deeper(value: &Value, left: usize) -> bool {
    let Some(rest) = left.checked_sub(1) else { return value.is_array() || value.is_object() };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deeper(item, rest)),
        Value::Object(fields) => fields.values().any(|field| is_deeper(field, rest)),
        _ => false,
    }
}

/// Checks a script and the scripts within it.
///
/// # Errors
/// The first mistake.
pub fn check_script(script: &Script) -> Result<(), ScriptError> {
    check_at(script, &mut Vec::new())
}

fn check_at(script: &Script, path: &mut Vec<String>) -> Result<(), ScriptError> {
    let at = |path: &[String], turn, fault| ScriptError { place: Place { path: path.to_vec(), turn }, fault };
    if path.len() > MOST_SCRIPTS {
        return Err(at(path, None, ScriptFault::TooDeep));
    }
    if script.turns.is_empty() {
        return Err(at(path, None, ScriptFault::NoTurns));
    }
    let mut captured = BTreeSet::new();
    for (index, turn) in script.turns.iter().enumerate() {
        check_turn(turn, &mut captured).map_err(|fault| at(path, Some(index + 1), fault))?;
    }
    for (name, script) in &script.scripts {
        path.push(name.clone());
        check_at(script, path)?;
        path.pop();
    }
    Ok(())
}

fn check_turn<'a>(turn: &'a Turn, captured: &mut BTreeSet<&'a str>) -> Result<(), ScriptFault> {
    for text in turn.expect_regex.iter().chain(turn.capture.values()) {
        if let Err(error) = scripted::pattern(text) {
            // The last line says what is wrong; those before it draw the place.
            let why = error.to_string();
            let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            return Err(ScriptFault::Pattern { pattern: text.clone(), why });
        }
    }
    for name in turn.capture.keys() {
        if !template::is_name(name) {
            return Err(ScriptFault::CaptureName(name.clone()));
        }
        captured.insert(name);
    }
    let mut named: Vec<&str> = template::names(&turn.text).collect();
    for call in &turn.calls {
        if call.tool.is_empty() {
            return Err(ScriptFault::NoTool);
        }
        if is_deeper(&call.args, MOST_NESTED) {
            return Err(ScriptFault::TooDeep);
        }
        template::names_within(&call.args, &mut named);
    }
    match named.into_iter().find(|name| !captured.contains(name)) {
        Some(name) => Err(ScriptFault::UnknownName(name.to_owned())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        check_script(&toml::from_str(text).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (text, error) in [
            ("", "script: it has no turns"),
            ("[[turn]]\n[script.a]", "script a: it has no turns"),
            ("[[turn]]\n[[script.a.turn]]\n[script.a.script.b]", "script a.b: it has no turns"),
            ("[[turn]]\n[[turn]]\nexpect_regex = ['(']", "script, turn 2: /(/ is no pattern: unclosed group"),
            ("[[turn]]\ncapture = { a = '[' }", "script, turn 1: /[/ is no pattern: unclosed character class"),
            ("[[turn]]\n[[turn.call]]\ntool = ''", "script, turn 1: a call names no tool"),
        ] {
            assert_eq!(check(text), Err(error.to_owned()), "{text}");
        }
        for (text, part) in [
            ("[[turn]]\ncapture = { 'a b' = 'x' }", "\"a b\" cannot name a capture"),
            ("[[turn]]\ncapture = { 1a = 'x' }", "\"1a\" cannot name a capture"),
            (
                "[[turn]]\ntext = '${a}'\n[[turn]]\ncapture = { a = 'x' }",
                "script, turn 1: nothing is captured as \"a\"",
            ),
            ("[[turn]]\n[[turn.call]]\ntool = 'shell'\nargs = { command = ['x ${HOME}'] }", "as $${HOME} where"),
        ] {
            let error = check(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_name_can_be_used_from_the_turn_that_captures_it() {
        let text = "[[turn]]\n[[turn]]\ncapture = { a = 'x' }\ntext = '${a}'\n[[turn]]\ntext = '${a} $${b} ${c:-d}'";
        assert_eq!(check(text), Ok(()));
    }

    /// A8: what is nested deeper than can be read back is refused; what is not comes back from an event as it was.
    #[test]
    fn a_script_that_could_not_be_read_back_is_refused() {
        let nested = |levels: usize| {
            (0..levels).fold(Value::from(1), |value, level| match level % 2 {
                0 => Value::from(vec![value]),
                _ => serde_json::json!({ "a": value }),
            })
        };
        let script = |scripts: usize, levels: usize| {
            let turn = serde_json::json!([{"call": [{"tool": "shell", "args": nested(levels)}]}]);
            let innermost = serde_json::json!({ "turn": turn });
            let around = |inner, _| serde_json::json!({"turn": [{"text": "x"}], "script": {"a": inner}});
            serde_json::from_value::<Script>((0..scripts).fold(innermost, around)).unwrap()
        };
        for (scripts, levels) in [(0, 0), (0, 64), (16, 0), (16, 64), (3, 40)] {
            let script = script(scripts, levels);
            assert_eq!(check_script(&script), Ok(()), "{scripts} {levels}");
            let reply = serde_json::json!({"result": {"events": [{"spec": {"script": script}}]}}).to_string();
            let read: Value = serde_json::from_str(&reply).unwrap();
            let read: Script = serde_json::from_value(read["result"]["events"][0]["spec"]["script"].clone()).unwrap();
            assert_eq!(read, script, "{scripts} {levels}");
        }
        for (scripts, levels) in [(0, 65), (17, 0), (17, 64), (5, 100), (40, 1)] {
            let error = check_script(&script(scripts, levels)).unwrap_err();
            assert_eq!(error.fault, ScriptFault::TooDeep, "{scripts} {levels}");
        }
    }
}
