//! Checks a script when it is submitted, so that the client learns of a mistake at once, and not when the run comes to
//! that turn.

use std::collections::BTreeSet;
use std::fmt;

use harness_protocol::json_size::cut;
use harness_protocol::rpc::Reason;
use harness_protocol::script::{Script, Turn};
use serde_json::Value;

use super::patterns::{PatternError, Patterns};
use super::template;

/// Bytes of all patterns of a script and the scripts within it; each counts once.
const MOST_PATTERN_BYTES: usize = 32 * 1024;
/// So many of them.
const MOST_PATTERNS: usize = 1_000;
/// Bytes of all their compiled programs.
const MOST_PROGRAM_BYTES: usize = 8 * 1024 * 1024;
/// Turns, calls, values of arguments, expectations and captures of a script and those within it: each takes a hundred
/// times the memory of the two bytes that it may have on the wire.
const MOST_PARTS: usize = 100_000;

/// Bytes of the words that a person is asked about a call: with all calls of an answer they fit into its event.
const MOST_ASKED: usize = 4 * 1024;

/// A mistake in a script, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct ScriptError {
    /// The script and the turn with the mistake.
    pub place: Place,
    /// The mistake itself.
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
    /// The words for a person are too long.
    #[error("what a person is asked about a call has at most {MOST_ASKED} bytes")]
    LongAsk,
    /// A pattern that is none.
    #[error("/{pattern}/ is no pattern: {why}")]
    Pattern {
        /// The pattern as it was written.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },
    /// A pattern that takes more than one may.
    #[error("/{pattern}/ is too large a pattern: {why}")]
    LargePattern {
        /// The pattern as it was written.
        pattern: String,
        /// What is wrong with it.
        why: String,
    },
    /// All patterns together take more than they may.
    #[error("its patterns are too many: together they have at most {MOST_PATTERNS}, and {MOST_PATTERN_BYTES} bytes")]
    ManyPatterns,
    /// Compiled they take more than they may.
    #[error("its patterns take too much: compiled at most {} MiB together", MOST_PROGRAM_BYTES >> 20)]
    LargePatterns,
    /// It has more parts than are taken.
    #[error("it has more than {MOST_PARTS} turns, calls, values of arguments, expectations and captures")]
    ManyParts,
    /// Internal error: the thread that checked the script has ended without a result.
    #[error("it could not be checked; a fault of the harness")]
    Lost,
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

/// Levels of scripts within scripts. An event, a reply and a record add some around them, and no reader of JSON takes
/// more than 128.
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

impl ScriptError {
    /// The error for a check without a result; the script itself may be valid.
    pub fn lost() -> Self {
        Self { place: Place::default(), fault: ScriptFault::Lost }
    }

    /// Why it is refused, for programs.
    pub fn reason(&self) -> Reason {
        match self.fault {
            ScriptFault::Pattern { .. } => Reason::BadPattern,
            ScriptFault::LargePattern { .. } | ScriptFault::ManyPatterns | ScriptFault::LargePatterns => {
                Reason::PatternTooLarge
            }
            ScriptFault::ManyParts | ScriptFault::TooDeep | ScriptFault::LongAsk => Reason::TooLarge,
            ScriptFault::NoTurns
            | ScriptFault::NoTool
            | ScriptFault::CaptureName(_)
            | ScriptFault::UnknownName(_)
            | ScriptFault::Lost => Reason::BadScript,
        }
    }
}

/// Checks a script and the scripts within it.
///
/// # Errors
/// The first mistake, or the first bound that it does not keep.
pub fn check_script(script: &Script, patterns: &Patterns) -> Result<(), ScriptError> {
    let mut checked = Checked { patterns, seen: BTreeSet::new(), pattern_bytes: 0, program_bytes: 0, parts: 0 };
    check_at(script, &mut Vec::new(), &mut checked)
}

/// What was checked so far, of all scripts together.
struct Checked<'a> {
    patterns: &'a Patterns,
    seen: BTreeSet<&'a str>,
    pattern_bytes: usize,
    program_bytes: usize,
    parts: usize,
}

impl<'a> Checked<'a> {
    fn parts(&mut self, more: usize) -> Result<(), ScriptFault> {
        self.parts = self.parts.saturating_add(more);
        if self.parts > MOST_PARTS { Err(ScriptFault::ManyParts) } else { Ok(()) }
    }

    fn pattern(&mut self, text: &'a str) -> Result<(), ScriptFault> {
        if !self.seen.insert(text) {
            return Ok(());
        }
        self.pattern_bytes += text.len();
        if self.seen.len() > MOST_PATTERNS || self.pattern_bytes > MOST_PATTERN_BYTES {
            // A pattern that is too long says so itself.
            if text.len() <= super::patterns::MOST_BYTES {
                return Err(ScriptFault::ManyPatterns);
            }
        }
        let compiled = self.patterns.get(text).map_err(|error| {
            let (pattern, why) = (cut(text, 200).into_owned(), error.to_string());
            match error {
                PatternError::Syntax(_) => ScriptFault::Pattern { pattern, why },
                PatternError::TooLong(_) | PatternError::TooLarge => ScriptFault::LargePattern { pattern, why },
            }
        })?;
        self.program_bytes += compiled.bytes();
        if self.program_bytes > MOST_PROGRAM_BYTES { Err(ScriptFault::LargePatterns) } else { Ok(()) }
    }
}

fn check_at<'a>(script: &'a Script, path: &mut Vec<String>, checked: &mut Checked<'a>) -> Result<(), ScriptError> {
    let at = |path: &[String], turn, fault| ScriptError { place: Place { path: path.to_vec(), turn }, fault };
    if path.len() > MOST_SCRIPTS {
        return Err(at(path, None, ScriptFault::TooDeep));
    }
    if script.turns.is_empty() {
        return Err(at(path, None, ScriptFault::NoTurns));
    }
    let mut captured = BTreeSet::new();
    for (index, turn) in script.turns.iter().enumerate() {
        check_turn(turn, &mut captured, checked).map_err(|fault| at(path, Some(index + 1), fault))?;
    }
    for (name, script) in &script.scripts {
        path.push(cut(name, 80).into_owned());
        check_at(script, path, checked)?;
        path.pop();
    }
    Ok(())
}

fn check_turn<'a>(
    turn: &'a Turn,
    captured: &mut BTreeSet<&'a str>,
    checked: &mut Checked<'a>,
) -> Result<(), ScriptFault> {
    checked.parts(1 + turn.expect.len() + turn.expect_regex.len() + turn.capture.len() + turn.calls.len())?;
    for text in turn.expect_regex.iter().chain(turn.capture.values()) {
        checked.pattern(text)?;
    }
    for name in turn.capture.keys() {
        if !template::is_name(name) {
            return Err(ScriptFault::CaptureName(cut(name, 80).into_owned()));
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
        if call.ask.as_ref().and_then(|ask| ask.text.as_ref()).is_some_and(|text| text.len() > MOST_ASKED) {
            return Err(ScriptFault::LongAsk);
        }
        checked.parts(values(&call.args))?;
        template::names_within(&call.args, &mut named);
    }
    match named.into_iter().find(|name| !captured.contains(name)) {
        Some(name) => Err(ScriptFault::UnknownName(cut(name, 80).into_owned())),
        None => Ok(()),
    }
}

/// How many values there are within a value.
fn values(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.len() + list.iter().map(values).sum::<usize>(),
        Value::Object(map) => map.len() + map.values().map(values).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        check_script(&toml::from_str(text).unwrap(), &Patterns::default()).map_err(|error| error.to_string())
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
            assert_eq!(check_script(&script, &Patterns::default()), Ok(()), "{scripts} {levels}");
            let reply = serde_json::json!({"result": {"events": [{"spec": {"script": script}}]}}).to_string();
            let read: Value = serde_json::from_str(&reply).unwrap();
            let read: Script = serde_json::from_value(read["result"]["events"][0]["spec"]["script"].clone()).unwrap();
            assert_eq!(read, script, "{scripts} {levels}");
        }
        for (scripts, levels) in [(0, 65), (17, 0), (17, 64), (5, 100), (40, 1)] {
            let error = check_script(&script(scripts, levels), &Patterns::default()).unwrap_err();
            assert_eq!(error.fault, ScriptFault::TooDeep, "{scripts} {levels}");
        }
    }

    fn refused(text: &str) -> Option<Reason> {
        let error = check_script(&toml::from_str(text).unwrap(), &Patterns::default()).err()?;
        Some(error.reason())
    }

    /// B4: what a script's patterns take is bounded for each and for all of them, wherever in it they are.
    #[test]
    fn patterns_that_take_too_much_are_refused_for_that_reason() {
        let regex = |pattern: &str| format!("[[turn]]\nexpect_regex = ['{pattern}']\n");
        let capture = |pattern: &str| format!("[[turn]]\ncapture = {{ a = '{pattern}' }}\n");
        let distinct = |n: usize, unit: &str| (0..n).map(|n| regex(&format!("{unit}{n}"))).collect::<String>();
        let child = |script: &str| {
            format!("[[turn]]\n{}", script.replace("[[turn]]", "[[script.a.script.b.turn]]")) + "[[script.a.turn]]\n"
        };
        for (script, reason) in [
            (regex(r"\w{200}"), Some(Reason::PatternTooLarge)),
            (regex(r"((a{50}){50}){50}"), Some(Reason::PatternTooLarge)),
            (capture(r"(\d{50}){50}"), Some(Reason::PatternTooLarge)),
            (regex(&"x".repeat(3_000)), Some(Reason::PatternTooLarge)),
            (distinct(1_001, ""), Some(Reason::PatternTooLarge)),
            (distinct(60, &"y".repeat(1_000)), Some(Reason::PatternTooLarge)),
            (distinct(60, r"\w\w\w\w"), Some(Reason::PatternTooLarge)),
            (child(&regex(r"\pL{300}")), Some(Reason::PatternTooLarge)),
            (regex("(").repeat(2), Some(Reason::BadPattern)),
            (regex(&format!("{}{}", "(".repeat(70), ")".repeat(70))), Some(Reason::BadPattern)),
            // The same pattern counts once, however often it is used.
            (regex(r"\w+ \w+ \w+").repeat(2_000), None),
            (distinct(900, r"line (\d+)"), None),
            (child(&capture(r"^(\S+)")), None),
        ] {
            assert_eq!(refused(&script), reason, "{:.80}", script);
        }
    }

    /// B5: what takes two bytes on the wire and a hundred in memory is counted.
    #[test]
    fn a_script_with_too_many_parts_is_refused() {
        let value = |args: &str| format!("[[turn]]\n[[turn.call]]\ntool = 't'\nargs = {args}\n");
        let ask = |bytes| value("{}") + &format!("ask = {{ kind = 'approval', text = '{}' }}", "x".repeat(bytes));
        for (script, reason) in [
            ("[[turn]]\n".repeat(100_001), Some(Reason::TooLarge)),
            (value(&format!("{{ a = [{}] }}", "1,".repeat(100_000))), Some(Reason::TooLarge)),
            (value(&format!("{{ a = [{}] }}", "[],".repeat(99_999))), Some(Reason::TooLarge)),
            (value(&format!("{{ a = [{}] }}", "{},".repeat(50_000))).repeat(2), Some(Reason::TooLarge)),
            (format!("[[turn]]\nexpect = [{}]", "'',".repeat(100_000)), Some(Reason::TooLarge)),
            (format!("[[turn]]\n{}", "[[turn.call]]\ntool = 't'\n".repeat(100_000)), Some(Reason::TooLarge)),
            (format!("[[turn]]\n[[script.a.turn]]\nexpect = [{}]", "'',".repeat(99_999)), Some(Reason::TooLarge)),
            (value(&format!("{{ a = [{}] }}", "1,".repeat(90_000))), None),
            (ask(4_097), Some(Reason::TooLarge)),
            (ask(4_096), None),
        ] {
            assert_eq!(refused(&script), reason, "{:.80}", script);
        }
    }
}
