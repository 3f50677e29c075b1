//! Defines the conversation between a run and its model, in a form that is the same for all dialects, and makes it from
//! a transcript. A model's reply is a [`Completion`] or an [`InferenceError`].
//!
//! Pure. The only place with the rules that every prompt keeps. Dialects translate prompts, and must not see a
//! transcript.

pub mod context;
pub mod summarise;

use std::collections::BTreeSet;
use std::sync::Arc;

use harness_protocol::id::CallId;
use harness_protocol::interaction::CallAsk;
use harness_protocol::run::{CallRequest, CallResult, Carried, Entry, Usage};
use harness_protocol::time::Span;

/// A question to a model: instructions and messages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prompt {
    /// Instructions for the whole conversation, ahead of all messages.
    pub system: Option<Arc<str>>,
    /// Messages. The roles alternate; the first and the last message are the user's.
    pub messages: Vec<Message>,
}

/// One message of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Results of the calls before it, then the messages of people.
    User {
        /// A result for each call of the message before, in the order of the calls.
        results: Vec<Arc<CallResult>>,
        /// The messages of people.
        texts: Vec<Arc<str>>,
    },
    /// An answer of the model.
    Assistant {
        /// The text of the answer; may be empty.
        text: Arc<str>,
        /// The calls that the answer asks for, in order.
        calls: Vec<CallRequest>,
        /// Data that the answer's provider wants back unchanged.
        carried: Option<Arc<Carried>>,
    },
}

/// The text that introduces a summary to the model.
const BEFORE_SUMMARY: &str =
    "[The conversation so far had become too long and was summarised. The summary follows; go on from there.]";

impl Prompt {
    /// The prompt for a transcript.
    pub fn from_transcript(entries: &[Entry]) -> Self {
        let mut messages: Vec<Message> = Vec::new();
        for entry in context::current(entries) {
            match entry {
                Entry::Assistant { text, calls, carried, cut: _ } => {
                    // A run with a script may have no prompt; the first message is the user's all the same.
                    if messages.is_empty() {
                        user(&mut messages);
                    }
                    let (text, calls, carried) = (text.clone(), calls.clone(), carried.clone());
                    messages.push(Message::Assistant { text, calls, carried });
                }
                Entry::User { text } => user(&mut messages).1.push(text.clone()),
                Entry::Result { result } => user(&mut messages).0.push(result.clone()),
                Entry::Summary { text, .. } => user(&mut messages).1.push(format!("{BEFORE_SUMMARY}\n{text}").into()),
            }
        }
        user(&mut messages);
        order_results(&mut messages);
        Self { system: None, messages }
    }

    /// Removes the data that another provider wants back: its signatures and its ids of calls mean nothing to this
    /// provider.
    #[must_use]
    pub fn of_provider(mut self, provider: &str) -> Self {
        for message in &mut self.messages {
            if let Message::Assistant { carried, calls, .. } = message {
                carried.take_if(|carried| carried.provider.as_ref().is_some_and(|said_by| &**said_by != provider));
                for call in calls {
                    call.given.take_if(|given| &*given.provider != provider);
                }
            }
        }
        self
    }

    /// Checks that roles alternate and that each call has exactly one result, right after it.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), PromptFault> {
        let mut open: Vec<CallId> = Vec::new();
        for (index, message) in self.messages.iter().enumerate() {
            match message {
                Message::User { results, .. } if index % 2 == 0 => {
                    let mut seen = BTreeSet::new();
                    for result in results {
                        if !open.contains(&result.call) {
                            return Err(PromptFault::ResultWithoutCall(result.call));
                        }
                        if !seen.insert(result.call) {
                            return Err(PromptFault::SecondResult(result.call));
                        }
                    }
                    if let Some(call) = open.iter().find(|call| !seen.contains(call)) {
                        return Err(PromptFault::NoResult(*call));
                    }
                    open.clear();
                }
                Message::Assistant { calls, .. } if index % 2 == 1 => {
                    open.extend(calls.iter().map(|call| call.call));
                }
                _ => return Err(PromptFault::Roles(index)),
            }
        }
        match self.messages.last() {
            Some(Message::User { .. }) => Ok(()),
            _ => Err(PromptFault::Roles(self.messages.len())),
        }
    }

    /// Number of answers of the model so far.
    pub fn answers(&self) -> usize {
        self.messages.len() / 2
    }
}

/// Puts results into the order of their calls. A transcript has them in the order in which the calls ended.
fn order_results(messages: &mut [Message]) {
    let from_first_answer = messages.get_mut(1..).unwrap_or_default();
    for pair in from_first_answer.chunks_exact_mut(2) {
        let [Message::Assistant { calls, .. }, Message::User { results, .. }] = pair else { continue };
        results.sort_by_key(|result| calls.iter().position(|call| call.call == result.call));
    }
}

/// The user's message at the end; it is added if there is none.
fn user(messages: &mut Vec<Message>) -> (&mut Vec<Arc<CallResult>>, &mut Vec<Arc<str>>) {
    if !matches!(messages.last(), Some(Message::User { .. })) {
        messages.push(Message::User { results: Vec::new(), texts: Vec::new() });
    }
    match messages.last_mut() {
        Some(Message::User { results, texts }) => (results, texts),
        _ => unreachable!("a user message was just pushed"),
    }
}

/// A prompt that breaks a rule. This is a bug of the daemon, never a fault of the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromptFault {
    /// Roles do not alternate.
    #[error("message {0} of the prompt has the wrong role")]
    Roles(usize),
    /// A call without its result.
    #[error("call {0} has no result in the prompt")]
    NoResult(CallId),
    /// A result that belongs to no call of the message before.
    #[error("the result of call {0} in the prompt has no call")]
    ResultWithoutCall(CallId),
    /// Two results for one call.
    #[error("call {0} has a second result in the prompt")]
    SecondResult(CallId),
}

/// A complete answer of a model.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completion {
    /// The text of the answer; may be empty.
    pub text: String,
    /// The calls that it asks for, in order.
    pub calls: Vec<RequestedCall>,
    /// The tokens that it used.
    pub usage: Usage,
    /// Data that its provider wants back unchanged.
    pub carried: Option<Carried>,
    /// Whether the limit of output tokens cut it off.
    pub cut: bool,
    /// A reason to doubt that this is an answer. The model is asked once more; a second such answer is taken as it is.
    pub doubt: Option<String>,
}

impl Completion {
    /// Whether it has neither text nor calls: then it is not an answer.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty() && self.text.trim().is_empty()
    }
}

/// A call as the model asked for it, before the daemon has given it an id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestedCall {
    /// The tool, by name.
    pub tool: String,
    /// The arguments, as JSON text.
    pub args: String,
    /// Why the arguments cannot be used, in words for the model. Such a call is never executed.
    pub unusable: Option<String>,
    /// The id that the provider gave the call; empty if it gave none.
    pub given: String,
    /// What a person is asked about the call. No provider but the scripted one gives it.
    pub ask: Option<Arc<CallAsk>>,
}

impl RequestedCall {
    /// A call whose arguments can be used, without an id of its provider.
    pub fn new(tool: impl Into<String>, args: impl Into<String>) -> Self {
        Self { tool: tool.into(), args: args.into(), unusable: None, given: String::new(), ask: None }
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct InferenceError {
    /// What the daemon may do about it.
    pub class: ErrorClass,
    /// The reason in words, for a person.
    pub message: String,
    /// The tokens that it used all the same, as far as the provider said so.
    pub usage: Option<Usage>,
    /// Estimated tokens of the part of an answer that had come.
    pub answered: u64,
}

impl InferenceError {
    /// An error before any token was used.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), usage: None, answered: 0 }
    }
}

/// The ways to handle a failed inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// Ask again, after a delay that the daemon chooses.
    Retry,
    /// Ask again, not before this time has passed: the provider fails, and says when it is back.
    RetryAfter(Span),
    /// Ask again, a few times: the provider works, but the model's answer cannot be used.
    Unusable,
    /// The provider wants fewer requests. Ask again, not before this time has passed, if it named a time.
    RateLimit(Option<Span>),
    /// A limit of the account is used up. It is renewed after this time, or once a person has acted.
    Quota(Option<Span>),
    /// Do not ask again: it would fail in the same way.
    Never,
    /// The credentials were refused.
    Credentials,
    /// The daemon has no key for the provider.
    NoKey,
    /// The prompt is too long for the model.
    ContextTooLong,
    /// The answer is larger than the daemon accepts. Do not ask again: it would fail in the same way.
    AnswerTooLarge,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: u64) -> CallRequest {
        CallRequest::new(CallId::from_u64(id), "shell", "{}")
    }

    fn result(id: u64) -> Entry {
        Entry::Result { result: Arc::new(CallResult::plain(CallId::from_u64(id), "shell".into(), "ok", false)) }
    }

    fn said(calls: Vec<CallRequest>) -> Entry {
        Entry::assistant("hm", calls)
    }

    fn check(entries: &[Entry]) -> Result<(), PromptFault> {
        Prompt::from_transcript(entries).check()
    }

    #[test]
    fn an_empty_transcript_and_a_plain_exchange_are_prompts() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(
            check(&[Entry::User { text: "hi".into() }, said(vec![call(1), call(2)]), result(1), result(2)]),
            Ok(())
        );
    }

    #[test]
    fn a_run_without_a_prompt_begins_with_an_empty_turn_of_the_user() {
        assert_eq!(check(&[said(vec![call(1)]), result(1)]), Ok(()));
    }

    #[test]
    fn results_stand_in_the_order_of_the_calls() {
        let hi = Entry::User { text: "hi".into() };
        let prompt =
            Prompt::from_transcript(&[hi, said(vec![call(1), call(2), call(3)]), result(3), result(1), result(2)]);
        let Some(Message::User { results, .. }) = prompt.messages.last() else { unreachable!() };
        let order: Vec<u64> = results.iter().map(|result| result.call.as_u64()).collect();
        assert_eq!(order, [1, 2, 3]);
    }

    #[test]
    fn a_message_between_results_belongs_to_the_same_user_turn() {
        let entries = [said(vec![call(1)]), Entry::User { text: "also".into() }, result(1)];
        let entries: Vec<_> = std::iter::once(Entry::User { text: "hi".into() }).chain(entries).collect();
        assert_eq!(check(&entries), Ok(()));
    }

    #[test]
    fn blocks_of_one_provider_go_to_no_other() {
        let carried = |provider: Option<&str>| {
            Some(Arc::new(Carried { dialect: "openai".into(), provider: provider.map(Into::into), parts: "[]".into() }))
        };
        let said =
            |provider| Entry::Assistant { text: "hm".into(), calls: vec![], carried: carried(provider), cut: false };
        let hi = || Entry::User { text: "hi".into() };
        let prompt = Prompt::from_transcript(&[hi(), said(Some("a")), hi(), said(Some("b")), hi(), said(None), hi()]);
        let kept: Vec<bool> = prompt
            .of_provider("a")
            .messages
            .iter()
            .filter_map(|message| match message {
                Message::Assistant { carried, .. } => Some(carried.is_some()),
                Message::User { .. } => None,
            })
            .collect();
        assert_eq!(kept, [true, false, true], "what nobody is named for is everybody's, as in older journals");
    }

    #[test]
    fn a_call_has_exactly_one_result_and_a_result_has_a_call() {
        let hi = Entry::User { text: "hi".into() };
        assert_eq!(check(&[hi.clone(), said(vec![call(1)])]), Err(PromptFault::NoResult(CallId::from_u64(1))));
        assert_eq!(
            check(&[hi.clone(), said(vec![call(1)]), result(1), result(1)]),
            Err(PromptFault::SecondResult(CallId::from_u64(1)))
        );
        assert_eq!(check(&[hi, result(7)]), Err(PromptFault::ResultWithoutCall(CallId::from_u64(7))));
    }
}
