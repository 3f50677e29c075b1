//! Maps the many finish reasons of servers to an end of an answer, and detects answers without content.
//!
//! Pure. Gateways pass on the words of other families, so a word means the same in each dialect. An answer without text
//! and without calls must not count as a success: it is an error, whose class says whether the model is asked again.

use crate::inference::errors::classify::{broken, refused};
use crate::prompt::{Completion, ErrorClass, InferenceError};

/// Why an answer ended, and the server's word for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::inference) struct Reason {
    kind: Kind,
    word: String,
}

/// Parts of the words of servers that did not come to the end of an answer (OpenRouter, vLLM, DeepSeek, GLM, Cohere,
/// Moonshot).
const FAILED: [&str; 12] = [
    "error",
    "abort",
    "cancel",
    "fail",
    "overload",
    "timeout",
    "timed_out",
    "insufficient_system_resource",
    "unavailable",
    "interrupted",
    "rate_limit",
    "disconnect",
];

/// Characters of a server's word that are passed on.
const SHOWN: usize = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// As it should, or for a reason that is not known.
    Stop,
    /// The limit of output tokens.
    Length,
    /// A filter of the provider stopped it.
    Filter,
    /// The model will not.
    Refusal,
    /// The provider gave it up.
    Failed,
    /// Its call is such that the server itself could not read it.
    Malformed,
    /// Prompt and answer have filled what the model takes.
    TooLong,
    /// A part of an answer: the server wants to be asked for the rest.
    Paused,
    /// To have a tool called.
    Calls,
}

/// Words that stand where there is no reason yet.
const NONE: [&str; 5] = ["", "null", "none", "nil", "undefined"];

impl Reason {
    /// What a server means by this word, if it is one.
    pub(in crate::inference) fn said(word: &str) -> Option<Self> {
        let word = word.trim();
        (!NONE.iter().any(|none| word.eq_ignore_ascii_case(none))).then(|| Self::of(word))
    }

    /// What a server means by this word.
    pub(in crate::inference) fn of(word: &str) -> Self {
        let lower = word.to_ascii_lowercase();
        let is = |words: &[&str]| words.contains(&lower.as_str());
        let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
        let kind =
            if has(&["malformed", "tool_use_failed", "unexpected_tool_call", "invalid_tool_call", "too_many_tool"]) {
                Kind::Malformed
            } else if has(&["context", "prompt_too_long", "input_too_long", "max_prompt_tokens", "error_limit"]) {
                Kind::TooLong
            } else if is(&["length", "max_tokens", "model_length", "max_length", "max_output_tokens", "token_limit"]) {
                Kind::Length
            } else if has(&[
                "content_filter",
                "safety",
                "prohibited",
                "recitation",
                "blocklist",
                "spii",
                "sensitive",
                "guardrail",
                "toxic",
                "moderation",
            ]) {
                Kind::Filter
            } else if is(&["refusal"]) {
                Kind::Refusal
            } else if has(&FAILED) {
                Kind::Failed
            } else if is(&["tool_calls", "tool_call", "tool_use", "function_call", "function_calls"]) {
                Kind::Calls
            } else if is(&["pause_turn"]) {
                Kind::Paused
            } else {
                Kind::Stop
            };
        Self { kind, word: word.chars().filter(|c| !c.is_control()).take(SHOWN).collect() }
    }

    /// Whether the limit of output tokens ended the answer.
    pub(in crate::inference) fn is_cut(&self) -> bool {
        self.kind == Kind::Length
    }

    /// Whether the server wants to be sent what it has said so far, and goes on then.
    pub(in crate::inference) fn is_paused(&self) -> bool {
        self.kind == Kind::Paused
    }

    /// Why there is no answer, where it ended for a reason that leaves none. `text` is what had been said.
    pub(in crate::inference) fn fault(&self, text: &str) -> Option<InferenceError> {
        let word = &self.word;
        Some(match self.kind {
            Kind::Stop | Kind::Length | Kind::Paused | Kind::Calls => return None,
            Kind::Filter => refused("the provider's content filter ended the answer", text),
            Kind::Refusal => refused("the model refused", text),
            Kind::Failed => broken(format!("the provider gave its answer up ({word})")),
            Kind::Malformed => unusable(format!("the model made a call that its server could not read ({word})")),
            Kind::TooLong => InferenceError::new(
                ErrorClass::ContextTooLong,
                format!("prompt and answer together are too long for the model ({word})"),
            ),
        })
    }
}

/// The answer, where there is something in it. `thought` says that the model thought.
///
/// # Errors
/// Where it has neither text nor calls, or is half an answer.
pub(in crate::inference) fn with_something(
    completion: Completion,
    reason: Option<&Reason>,
    thought: bool,
) -> Result<Completion, InferenceError> {
    let usage = Some(completion.usage).filter(|usage| usage.tokens() > 0);
    // What the server would do next, it does only when it is sent what it did so far; and it was, where that can be
    // done.
    if completion.calls.is_empty() && reason.is_some_and(|reason| reason.kind == Kind::Paused) {
        let error = unusable("the provider paused in the middle of the model's turn (pause_turn)".to_owned());
        return Err(InferenceError { usage, ..error });
    }
    let only_thought = completion.calls.is_empty() && is_only_thought(&completion.text);
    if !completion.is_empty() && !only_thought {
        return match reason {
            // Its call may be lost. Or its server says so of every answer.
            Some(Reason { kind: Kind::Calls, word }) if completion.calls.is_empty() => {
                let doubt = format!("the model ended its turn to call a tool, and called none ({word})");
                Ok(Completion { doubt: Some(doubt), ..completion })
            }
            _ => Ok(completion),
        };
    }
    let thought = thought || only_thought;
    let what = match thought {
        _ if reason.is_some_and(Reason::is_cut) => {
            "the limit of output tokens ended the answer before the model said anything"
        }
        true => "the model thought, and then neither said nor called anything",
        false => "the model neither said nor called anything",
    };
    let word = reason.map(|reason| reason.word.as_str()).filter(|word| !word.is_empty());
    let error = unusable(match word {
        Some(word) => format!("{what} ({word})"),
        None => what.to_owned(),
    });
    Err(InferenceError { usage, ..error })
}

/// How models mark what they think, where their server does not take it out of the text.
const THOUGHTS: [(&str, &str); 3] =
    [("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<thought>", "</thought>")];

/// Whether there is nothing in a text but what is marked as thought, from the first sign to the last.
fn is_only_thought(text: &str) -> bool {
    let mut rest = text.trim();
    // Where a template has begun the thought, only its end is in the text, on a line of its own.
    let (_, end) = THOUGHTS[0];
    let is_end = rest.strip_suffix(end).is_some_and(|before| before.ends_with('\n') && !before.contains("<think>"));
    if is_end {
        return true;
    }
    let mut some = false;
    while let Some((rest_of, end)) = THOUGHTS.iter().find_map(|(begin, end)| Some((rest.strip_prefix(begin)?, end))) {
        some = true;
        rest = rest_of.split_once(end).map_or("", |(_, after)| after.trim_start());
    }
    some && rest.is_empty()
}

fn unusable(message: String) -> InferenceError {
    InferenceError::new(ErrorClass::Unusable, message)
}
