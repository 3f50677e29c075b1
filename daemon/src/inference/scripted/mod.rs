//! Plays scripts as if a model answered: the dialect `scripted`. Pure: the same script and prompt give the same answer.
//!
//! The only place that gives a turn its meaning. It has no state: the due turn and the captures are computed from the
//! prompt, so a restart changes neither. It checks every prompt that it gets, because an invalid prompt is a bug of the
//! daemon.
//!
//! Patterns see the envelope of each result; `^` and `$` match at lines. Captures skip the first line, which has the
//! exit code.

pub mod patterns;
pub(super) mod template;
pub mod validate;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use harness_protocol::json_size;
use harness_protocol::run::{CallResult, Usage};
use harness_protocol::script::{Fault, Script, Turn};
use harness_protocol::time::Span;

use super::scripted::patterns::Patterns;
use super::scripted::template::{FillError, Room};
use crate::prompt::{Completion, ErrorClass, InferenceError, Message, Prompt, RequestedCall};

/// Characters of the results that an error shows.
const SHOWN: usize = 400;

/// Bytes of JSON that a turn may come to with what it captured: no answer may have more.
const MOST_FILLED: usize = 4 * 1024 * 1024;

/// What a turn says, and how it is to be delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The text, calls and usage of the turn.
    pub completion: Completion,
    /// Time until it comes.
    pub delay: Span,
    /// What happens in place of the first attempt.
    pub fault: Option<Fault>,
}

/// The answer of `script` to `prompt`.
///
/// # Errors
/// Where the prompt breaks a rule, the script has no turn for it, an expectation of the turn does not hold, or the turn
/// comes to more than an answer may have.
pub fn answer(script: &Script, prompt: &Prompt, patterns: &Patterns) -> Result<Answer, InferenceError> {
    prompt.check().map_err(|fault| never(format!("a fault of the harness: {fault}")))?;
    let due = prompt.answers();
    let Some(turn) = script.turns.get(due) else {
        let turns = script.turns.len();
        return Err(never(format!("the script has {turns} turns, and the model is asked for turn {}", due + 1)));
    };
    expectations(turn, results(prompt, due), patterns).map_err(|missing| missing.at(due))?;
    let captures = captures(script, due, prompt, patterns)?;
    let (text, calls) = fill(turn, &captures).map_err(|error| match error {
        FillError::Unknown(name) => {
            never(format!("turn {} of the script names ${{{name}}}, and nothing was captured under that name", due + 1))
        }
        FillError::TooLarge => {
            let most = MOST_FILLED;
            let message =
                format!("turn {} of the script comes to more than {most} bytes with what it captured", due + 1);
            InferenceError::new(ErrorClass::AnswerTooLarge, message)
        }
    })?;
    let usage = usage(prompt, &text, &calls);
    Ok(Answer {
        completion: Completion { text, calls, usage, ..Completion::default() },
        delay: turn.delay.unwrap_or_default(),
        fault: turn.fault,
    })
}

/// What the turn that is due has captured, and what it names of what earlier ones have. These are parts of the results:
/// a copy of each would take as much again for each name.
fn captures<'a>(
    script: &'a Script,
    due: usize,
    prompt: &'a Prompt,
    patterns: &Patterns,
) -> Result<BTreeMap<&'a str, &'a str>, InferenceError> {
    let Some(turn) = script.turns.get(due) else { return Ok(BTreeMap::new()) };
    let mut named: Vec<&str> = template::names(&turn.text).collect();
    turn.calls.iter().for_each(|call| template::names_within(&call.args, &mut named));
    let named: BTreeSet<&str> = named.into_iter().collect();
    let mut last: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for (index, turn) in script.turns.iter().enumerate().take(due + 1) {
        let wanted = turn.capture.iter().filter(|(name, _)| index == due || named.contains(name.as_str()));
        last.extend(wanted.map(|(name, pattern)| (name.as_str(), (index, pattern.as_str()))));
    }
    let mut captures = BTreeMap::new();
    for (name, (index, pattern)) in last {
        let text = capture(pattern, results(prompt, index), patterns).map_err(|missing| missing.at(index))?;
        captures.insert(name, text);
    }
    Ok(captures)
}

fn never(message: String) -> InferenceError {
    InferenceError::new(ErrorClass::Never, message)
}

/// The results that came back before turn `index`.
fn results(prompt: &Prompt, index: usize) -> &[Arc<CallResult>] {
    match prompt.messages.get(2 * index) {
        Some(Message::User { results, .. }) => results,
        _ => &[],
    }
}

/// What a turn wants of the results and does not find.
struct Missing {
    wanted: String,
    /// The begin of what was found.
    found: String,
}

impl Missing {
    fn new(wanted: String, results: &[Arc<CallResult>]) -> Self {
        let lines = results.iter().enumerate().flat_map(|(index, result)| {
            let line_break = if index == 0 { "" } else { "\n" };
            line_break.chars().chain(result.envelope.chars())
        });
        Self { wanted, found: lines.take(SHOWN + 1).collect() }
    }

    fn at(self, index: usize) -> InferenceError {
        let Self { wanted, found } = self;
        let there = if found.is_empty() {
            "there were none".to_owned()
        } else {
            let cut = found.char_indices().nth(SHOWN).map_or(found.len(), |(at, _)| at);
            format!("they were: {}{}", &found[..cut], if cut < found.len() { "…" } else { "" })
        };
        never(format!("turn {} of the script {wanted} in the results, and {there}", index + 1))
    }
}

/// A text of a script as an error shows it.
fn shown(text: &str) -> Cow<'_, str> {
    json_size::cut(text, 4 * SHOWN)
}

fn expectations(turn: &Turn, results: &[Arc<CallResult>], patterns: &Patterns) -> Result<(), Missing> {
    for text in &turn.expect {
        if !results.iter().any(|result| result.envelope.contains(text.as_str())) {
            return Err(Missing::new(format!("expects {:?}", shown(text)), results));
        }
    }
    for text in &turn.expect_regex {
        let holds = patterns.get(text).is_ok_and(|pattern| {
            let mut scratch = pattern.scratch();
            results.iter().any(|result| pattern.is_found(&mut scratch, &result.envelope))
        });
        if !holds {
            return Err(Missing::new(format!("expects a match of /{}/", shown(text)), results));
        }
    }
    Ok(())
}

/// The first group that took part in the first match, or all of the match where there is no group.
fn capture<'r>(text: &str, results: &'r [Arc<CallResult>], patterns: &Patterns) -> Result<&'r str, Missing> {
    let missing = || Missing::new(format!("captures /{}/", shown(text)), results);
    let pattern = patterns.get(text).map_err(|_| missing())?;
    let mut scratch = pattern.scratch();
    let bodies = results.iter().map(|result| body(result));
    let envelopes = results.iter().map(|result| &*result.envelope);
    bodies.chain(envelopes).find_map(|text| pattern.capture(&mut scratch, text)).ok_or_else(missing)
}

/// The envelope behind the line with the exit code.
fn body(result: &CallResult) -> &str {
    match result.envelope.split_once('\n') {
        Some((_, body)) if result.exit_code.is_some() => body,
        _ => &result.envelope,
    }
}

fn fill(turn: &Turn, captures: &BTreeMap<&str, &str>) -> Result<(String, Vec<RequestedCall>), FillError> {
    let mut room = Room(MOST_FILLED);
    let text = template::fill(&turn.text, captures, &mut room)?;
    let calls = turn.calls.iter().map(|call| {
        let args = template::fill_within(&call.args, captures, &mut room)?.to_string();
        Ok(RequestedCall { ask: call.ask.clone(), ..RequestedCall::new(call.tool.clone(), args) })
    });
    Ok((text, calls.collect::<Result<_, FillError>>()?))
}

/// A token is taken to be four bytes, a part of one counts whole; the cost is 0.
fn usage(prompt: &Prompt, text: &str, calls: &[RequestedCall]) -> Usage {
    let input = prompt.messages.iter().map(|message| match message {
        Message::User { results, texts } => {
            results.iter().map(|result| result.envelope.len()).sum::<usize>()
                + texts.iter().map(|text| text.len()).sum::<usize>()
        }
        Message::Assistant { text, calls, .. } => {
            text.len() + calls.iter().map(|call| call.tool.len() + call.args.len()).sum::<usize>()
        }
    });
    let output = text.len() + calls.iter().map(|call| call.tool.len() + call.args.len()).sum::<usize>();
    let tokens = |bytes: usize| bytes.div_ceil(4) as u64;
    Usage { input_tokens: tokens(input.sum()), output_tokens: tokens(output), cost_usd: Some(0.0), ..Usage::default() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use harness_protocol::id::CallId;
    use harness_protocol::run::{CallRequest, Entry};

    fn script(text: &str) -> Script {
        toml::from_str(text).unwrap()
    }

    /// The prompt after steps with these results, each of one call.
    fn prompt(steps: &[&[&str]]) -> Prompt {
        let mut entries = vec![Entry::User { text: "go".into() }];
        let mut number = 0;
        for results in steps {
            let ids: Vec<_> = (number..).map(CallId::from_u64).take(results.len()).collect();
            number += results.len() as u64;
            let request = |call: &CallId| CallRequest::new(*call, "shell", "{}");
            entries.push(Entry::assistant("hm", ids.iter().map(request).collect()));
            if results.is_empty() {
                entries.push(Entry::User { text: "go on".into() });
            }
            entries.extend(ids.iter().zip(*results).map(|(call, text)| {
                let mut result = CallResult::plain(*call, "shell".into(), *text, false);
                result.exit_code = text.starts_with("Exit code: ").then_some(0);
                Entry::Result { result: Arc::new(result) }
            }));
        }
        Prompt::from_transcript(&entries)
    }

    fn said(script_text: &str, steps: &[&[&str]]) -> Result<String, String> {
        answer(&script(script_text), &prompt(steps), &Patterns::default()).map(|answer| answer.completion.text).map_err(
            |error| {
                assert_eq!(error.class, ErrorClass::Never);
                error.message
            },
        )
    }

    #[test]
    fn the_turn_is_the_number_of_answers_so_far() {
        let two = "[[turn]]\ntext = \"one\"\n[[turn]]\ntext = \"two\"";
        assert_eq!(said(two, &[]), Ok("one".into()));
        assert_eq!(said(two, &[&[]]), Ok("two".into()));
        assert_eq!(said(two, &[&[], &[]]), Err("the script has 2 turns, and the model is asked for turn 3".into()));
    }

    #[test]
    fn the_example_of_the_design_works() {
        let text = r"
            [[turn]]
            text = 'Let me look at the directory first.'
            [[turn.call]]
            tool = 'shell'
            args = { command = 'du -sh .' }
            [[turn]]
            expect = ['Exit code: 0']
            capture = { size = '^(\S+)' }
            text = 'It holds ${size}.'
        ";
        let first = answer(&script(text), &prompt(&[]), &Patterns::default()).unwrap().completion;
        assert_eq!(first.calls, [RequestedCall::new("shell", r#"{"command":"du -sh ."}"#)]);
        assert_eq!(said(text, &[&["Exit code: 0\n4.0K\t.\n"]]), Ok("It holds 4.0K.".into()));
    }

    #[test]
    fn an_expectation_holds_where_any_result_has_it() {
        let wants = |what: &str| format!("[[turn]]\n[[turn]]\n{what}\ntext = \"ok\"");
        let results: &[&str] = &["Exit code: 0\nalpha\nbeta\n", "Exit code: 3\ngamma\n"];
        for (what, holds) in [
            ("expect = ['alpha', 'gamma']", true),
            ("expect = ['alpha', 'delta']", false),
            ("expect_regex = ['^Exit code: 3$', '^beta$']", true),
            ("expect_regex = ['\\Abeta']", false),
        ] {
            assert_eq!(said(&wants(what), &[results]).is_ok(), holds, "{what}");
        }
        assert_eq!(
            said(&wants("expect = ['delta']"), &[&["Exit code: 0\n"]]),
            Err("turn 2 of the script expects \"delta\" in the results, and they were: Exit code: 0\n".into())
        );
        assert_eq!(
            said(&wants("expect_regex = ['d+']"), &[&[]]),
            Err("turn 2 of the script expects a match of /d+/ in the results, and there were none".into())
        );
    }

    #[test]
    fn an_error_shows_no_more_than_400_characters_of_the_results() {
        let long = "\u{2603}".repeat(1000);
        let error = said("[[turn]]\n[[turn]]\nexpect = ['x']", &[&[&long]]).unwrap_err();
        assert_eq!(error.matches('\u{2603}').count(), SHOWN);
        assert!(error.ends_with('…'));
    }

    #[test]
    fn captures_are_a_group_or_the_match_and_last_to_the_end() {
        let turns = r"
            [[turn]]
            [[turn]]
            capture = { word = 'n=(\w+)', all = 'n=\w+', code = 'Exit code: (\d+)', either = '(x)|(n)' }
            [[turn]]
            capture = { word = 'm=(\w+)' }
            text = '${word} ${all} ${code} ${either}'
            [[turn.call]]
            tool = '${word}'
            args = { list = ['${word}', 1, { '${all}' = '${all}' }] }
        ";
        let steps: &[&[&str]] = &[&["no", "Exit code: 0\nn=one\n"], &["m=two"]];
        assert_eq!(said(turns, steps), Ok("two n=one 0 n".into()));
        let calls = answer(&script(turns), &prompt(steps), &Patterns::default()).unwrap().completion.calls;
        assert_eq!(calls[0].args, r#"{"list":["two",1,{"${all}":"n=one"}]}"#);
        assert_eq!(calls[0].tool, "${word}");
    }

    #[test]
    fn a_capture_without_a_match_is_an_expectation_that_failed() {
        let text = "[[turn]]\n[[turn]]\ncapture = { a = 'z(.)' }";
        assert_eq!(
            said(text, &[&["abc"]]),
            Err("turn 2 of the script captures /z(.)/ in the results, and they were: abc".into())
        );
    }

    #[test]
    fn a_name_that_nothing_was_captured_under_is_an_error() {
        let error = said("[[turn]]\ntext = '${gone}'", &[]).unwrap_err();
        assert!(error.starts_with("turn 1 of the script names ${gone}"), "{error}");
    }

    #[test]
    fn a_prompt_that_breaks_a_rule_is_named() {
        let mut prompt = prompt(&[&["x"]]);
        prompt.messages.pop();
        let error = answer(&script("[[turn]]"), &prompt, &Patterns::default()).unwrap_err();
        assert_eq!(error.class, ErrorClass::Never);
        assert!(error.message.contains("wrong role"), "{error}");
    }

    #[test]
    fn usage_counts_four_bytes_as_a_token() {
        let usage =
            answer(&script("[[turn]]\ntext = 'abcde'"), &prompt(&[]), &Patterns::default()).unwrap().completion.usage;
        assert_eq!((usage.input_tokens, usage.output_tokens, usage.cost_usd), (1, 2, Some(0.0)));
    }

    /// B5: whatever a turn is put together from, it comes to no more than an answer may have, and says so by its class.
    #[test]
    fn a_turn_that_comes_to_more_than_an_answer_may_have_fails_with_a_class_of_its_own() {
        let big = format!("Exit code: 0\n{}", "a".repeat(30_000));
        let controls = format!("Exit code: 0\n{}", "\u{1}".repeat(10_000));
        let (text, many) = ("${a}".repeat(150), "${a}".repeat(100));
        let capture = "capture = { a = '(?s)(.+)' }";
        let call = |args: &str| format!("[[turn.call]]\ntool = 't'\nargs = {args}\n");
        for (turn, output, error) in [
            (format!("{capture}\ntext = '{text}'"), &big, true),
            (format!("{capture}\ntext = '{many}'"), &big, false),
            (format!("{capture}\ntext = '{many}'"), &controls, true),
            (format!("{capture}\n{}", call(&format!("{{ q = ['{many}', {{ deep = '{many}' }}] }}"))), &big, true),
            (format!("{capture}\n{}", call(&format!("{{ q = '{many}' }}")).repeat(3)), &big, true),
            (format!("capture = {{ a = '(?s)(.+)', b = '(?s)(.+)' }}\ntext = '{}'", "${a}${b}".repeat(75)), &big, true),
            (format!("{capture}\ntext = '{}{many}'", "x".repeat(2 << 20)), &big, true),
            ("text = 'plain'".to_owned(), &big, false),
            (format!("text = '{}'", "x".repeat((4 << 20) + 1)), &big, true),
        ] {
            let script = script(&format!("[[turn]]\n[[turn]]\n{turn}"));
            let answer = answer(&script, &prompt(&[&[output]]), &Patterns::default());
            let class = answer.as_ref().err().map(|error| error.class);
            assert_eq!(class, error.then_some(ErrorClass::AnswerTooLarge), "{:.60}", turn);
            if let Err(error) = answer {
                assert_eq!(
                    error.message,
                    "turn 2 of the script comes to more than 4194304 bytes with what it captured"
                );
            }
        }
    }

    /// B5: captures of earlier turns count as those of this one.
    #[test]
    fn captures_of_earlier_turns_and_of_what_was_made_of_them_are_bounded_alike() {
        let output = format!("Exit code: 0\n{}", "b".repeat(30_000));
        let text = format!(
            "[[turn]]\n[[turn]]\ncapture = {{ a = '(b+)' }}\n[[turn]]\ncapture = {{ c = '(b+)' }}\n\
             [[turn]]\ntext = '{}'",
            "${a}${c}".repeat(80)
        );
        let steps: &[&[&str]] = &[&[&output], &[&output], &["x"]];
        let error = answer(&script(&text), &prompt(steps), &Patterns::default()).unwrap_err();
        assert_eq!(error.class, ErrorClass::AnswerTooLarge);
    }

    /// B4: a turn compiles what it uses, and nothing twice.
    #[test]
    fn a_script_compiles_each_of_its_patterns_once_whatever_its_turns_are() {
        let turn = "[[turn]]\nexpect_regex = ['n=', 'm=']\ncapture = { a = 'n=(.)', b = 'm=(.)' }\ntext = '${a}${b}'\n";
        let (script, patterns) = (script(&format!("[[turn]]\n{}", turn.repeat(10))), Patterns::default());
        for due in 1..=10 {
            let steps: Vec<&[&str]> = vec![&["n=1 m=2"]; due];
            assert_eq!(answer(&script, &prompt(&steps), &patterns).unwrap().completion.text, "12");
        }
        assert_eq!(patterns.compiled(), 4);
    }
}
