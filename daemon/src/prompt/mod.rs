//! The conversation between a run and its model, in a form that no dialect owns: transcript in, prompt out; a model's
//! answer; the ways in which an inference fails.
//!
//! Pure. Owns the rules that every prompt keeps. Dialects translate prompts, and must never see a transcript.

pub mod compaction;
pub mod context;

use std::collections::BTreeSet;
use std::sync::Arc;

use harness_protocol::id::CallId;
use harness_protocol::run::{CallRequest, CallResult, Carried, Entry, Usage};
use harness_protocol::time::Span;

/// What a model is asked.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prompt {
    /// What the model is told of its task as a whole, ahead of all messages.
    pub system: Option<Arc<str>>,
    /// Messages; the roles alternate, beginning and ending with the user's.
    pub messages: Vec<Message>,
}

/// One message of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Results of the calls before it, and what a person said, in this order.
    User {
        /// One for each call of the message before, in the order of the calls.
        results: Vec<Arc<CallResult>>,
        /// What a person said.
        texts: Vec<Arc<str>>,
    },
    /// What the model said.
    Assistant {
        /// The text of the answer; may be empty.
        text: Arc<str>,
        /// The calls that the answer asks for, in order.
        calls: Vec<CallRequest>,
        /// What its provider wants back unchanged.
        carried: Option<Arc<Carried>>,
    },
}

/// What a model reads before a summary.
const BEFORE_SUMMARY: &str =
    "[The conversation so far had become too long and was summarised. The summary follows; go on from there.]";

impl Prompt {
    /// The prompt for a transcript.
    pub fn from_transcript(entries: &[Entry]) -> Self {
        let mut messages: Vec<Message> = Vec::new();
        for entry in context::current(entries) {
            match entry {
                Entry::Assistant { text, calls, carried, cut: _ } => {
                    // A run by script may begin without a prompt; the first turn is the user's all the same.
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

    /// Leaves out what another provider than this wants back: its signatures and its ids of calls are none here.
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
    /// The first rule that does not hold.
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

    /// Answers of the model so far.
    pub fn answers(&self) -> usize {
        self.messages.len() / 2
    }
}

/// Results come in the order in which the calls ended; a model reads them in the order in which it asked.
fn order_results(messages: &mut [Message]) {
    let from_first_answer = messages.get_mut(1..).unwrap_or_default();
    for pair in from_first_answer.chunks_exact_mut(2) {
        let [Message::Assistant { calls, .. }, Message::User { results, .. }] = pair else { continue };
        results.sort_by_key(|result| calls.iter().position(|call| call.call == result.call));
    }
}

/// The user's message at the end, made where there is none.
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

/// What a model answered, whole.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Completion {
    /// The text of the answer; may be empty.
    pub text: String,
    /// The calls that it asks for, in order.
    pub calls: Vec<RequestedCall>,
    /// What it used.
    pub usage: Usage,
    /// What its provider wants back unchanged.
    pub carried: Option<Carried>,
    /// The limit of output tokens cut it off.
    pub cut: bool,
    /// Why it may be no answer: it is asked for once more, and then it is one.
    pub doubt: Option<String>,
}

impl Completion {
    /// Whether it says nothing and calls nothing: such an answer is none.
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
    /// Why they are of no use, in words for the model. Such a call is never executed.
    pub unusable: Option<String>,
    /// The id that the provider gave the call. Empty where it gave none.
    pub given: String,
}

impl RequestedCall {
    /// A call whose arguments can be used, without an id of its provider.
    pub fn new(tool: impl Into<String>, args: impl Into<String>) -> Self {
        Self { tool: tool.into(), args: args.into(), unusable: None, given: String::new() }
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct InferenceError {
    /// What may be done about it.
    pub class: ErrorClass,
    /// The reason in words, for a person.
    pub message: String,
    /// What it used all the same, as far as the provider said so.
    pub usage: Option<Usage>,
    /// About how many tokens of an answer had come.
    pub answered: u64,
}

impl InferenceError {
    /// An error that came before anything was used.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), usage: None, answered: 0 }
    }
}

/// What may be done about a failed inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// Ask again, after a while of one's own choosing.
    Retry,
    /// Ask again, not before this long: it fails, and says when it is back.
    RetryAfter(Span),
    /// Ask again, a few times: the provider is well, and nothing in the model's answer can be used.
    Unusable,
    /// It wants to be asked less often. Ask again, not before this long, where it said how long.
    RateLimit(Option<Span>),
    /// A limit of the account is used up: there is more after this long, or once a person has seen to it.
    Quota(Option<Span>),
    /// Asking again is of no use.
    Never,
    /// The credentials were refused.
    Credentials,
    /// There is no key to ask with.
    NoKey,
    /// The prompt is too long for the model.
    ContextTooLong,
    /// The answer is larger than is taken; asking again is of no use.
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
    fn what_one_provider_wants_back_no_other_one_gets() {
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
