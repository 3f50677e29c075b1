//! Why an answer ended, from the many words that servers have for it, and whether there is anything in it.
//!
//! Pure. Gateways pass on the words of the family behind them, so these mean the same in each dialect. An answer without text and without
//! calls is never a success: it is asked for again.

use super::refusal::{broken, refused};
use crate::prompt::{Completion, ErrorClass, InferenceError};

/// Why an answer ended, and the server's word for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reason {
    kind: Kind,
    word: String,
}

/// Characters of a server's word that are passed on.
const SHOWN: usize = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// As it should, or for a reason that is not known.
    Stop,
    /// The limit of output tokens.
    Length,
    /// A filter.
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
}

impl Reason {
    /// What a server means by this word.
    pub(super) fn of(word: &str) -> Self {
        let lower = word.to_ascii_lowercase();
        let is = |words: &[&str]| words.contains(&lower.as_str());
        let has = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
        let kind =
            if has(&["malformed", "tool_use_failed", "unexpected_tool_call", "invalid_tool_call", "too_many_tool"]) {
                Kind::Malformed
            } else if has(&["context", "prompt_too_long", "input_too_long", "max_prompt_tokens"]) {
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
            ]) {
                Kind::Filter
            } else if is(&["refusal"]) {
                Kind::Refusal
            } else if is(&[
                "error",
                "abort",
                "aborted",
                "cancelled",
                "insufficient_system_resource",
                "network_error",
                "failed",
            ]) {
                // OpenRouter, vLLM, DeepSeek, GLM.
                Kind::Failed
            } else if is(&["pause_turn"]) {
                Kind::Paused
            } else {
                Kind::Stop
            };
        Self { kind, word: word.chars().filter(|c| !c.is_control()).take(SHOWN).collect() }
    }

    /// Whether the limit of output tokens ended the answer.
    pub(super) fn is_cut(&self) -> bool {
        self.kind == Kind::Length
    }

    /// Why there is no answer, where it ended for a reason that leaves none. `text` is what had been said.
    pub(super) fn fault(&self, text: &str) -> Option<InferenceError> {
        let word = &self.word;
        Some(match self.kind {
            Kind::Stop | Kind::Length | Kind::Paused => return None,
            Kind::Filter => refused("the provider's content filter ended the answer", text),
            Kind::Refusal => refused("the model refused", text),
            Kind::Failed => broken("the provider gave its answer up"),
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
pub(super) fn with_something(
    completion: Completion,
    reason: Option<&Reason>,
    thought: bool,
) -> Result<Completion, InferenceError> {
    let usage = Some(completion.usage).filter(|usage| usage.tokens() > 0);
    // What the server would do next, it does only when it is sent what it did so far. None of its own tools are asked for here.
    if completion.calls.is_empty() && reason.is_some_and(|reason| reason.kind == Kind::Paused) {
        let error = unusable("the provider paused in the middle of the model's turn (pause_turn)".to_owned());
        return Err(InferenceError { usage, ..error });
    }
    if !completion.is_empty() {
        return Ok(completion);
    }
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

fn unusable(message: String) -> InferenceError {
    InferenceError::new(ErrorClass::Unusable, message)
}
