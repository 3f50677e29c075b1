//! What servers of chat completions send. Borrowed from the event; whatever is not known is skipped.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::super::text::Text;

/// A chunk of a stream, or a whole answer.
#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) choices: Option<First<Choice<'a>>>,
    #[serde(default)]
    pub(super) usage: Option<Usage>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
    /// `error` where an old vLLM reports one.
    #[serde(borrow, default)]
    pub(super) object: Option<Text<'a>>,
    /// Words of an error without a form.
    #[serde(borrow, default)]
    pub(super) detail: Option<&'a RawValue>,
}

/// Only one choice is asked for, so only the first is looked at.
pub(super) struct First<T>(pub(super) Option<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for First<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Firsts<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Firsts<T> {
            type Value = First<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<First<T>, A::Error> {
                let first = seq.next_element()?;
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }
        deserializer.deserialize_seq(Firsts(PhantomData))
    }
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    pub(super) index: Option<Index>,
    #[serde(borrow, default)]
    pub(super) delta: Option<Delta<'a>>,
    /// In place of `delta` where the answer is whole.
    #[serde(borrow, default)]
    pub(super) message: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default)]
    pub(super) content: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) refusal: Option<Text<'a>>,
    /// Reasoning has two names, and some servers use both at once.
    #[serde(borrow, default)]
    pub(super) reasoning_content: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) reasoning: Option<Text<'a>>,
    /// OpenRouter: reasoning in parts, to be sent back as they are.
    #[serde(borrow, default)]
    pub(super) reasoning_details: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) tool_calls: Option<Vec<Call<'a>>>,
    /// The oldest form of a call.
    #[serde(borrow, default)]
    pub(super) function_call: Option<Function<'a>>,
}

#[derive(Deserialize, Default)]
pub(super) struct Call<'a> {
    #[serde(default)]
    pub(super) index: Option<Index>,
    #[serde(borrow, default)]
    pub(super) id: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) function: Option<Function<'a>>,
    /// Gemini: what it wants back with the call.
    #[serde(borrow, default)]
    pub(super) extra_content: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
pub(super) struct Function<'a> {
    #[serde(borrow, default)]
    pub(super) name: Option<Text<'a>>,
    /// A string, or what the string should have been the text of.
    #[serde(borrow, default)]
    pub(super) arguments: Option<&'a RawValue>,
}

/// A place in a list: a number, also as a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Index(pub(super) u64);

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Indexes;
        impl Visitor<'_> for Indexes {
            type Value = Index;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an index")
            }

            fn visit_u64<E: Error>(self, index: u64) -> Result<Index, E> {
                Ok(Index(index))
            }

            fn visit_i64<E: Error>(self, index: i64) -> Result<Index, E> {
                Ok(Index(index.unsigned_abs()))
            }

            fn visit_str<E: Error>(self, index: &str) -> Result<Index, E> {
                index.trim().parse().map(Index).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Indexes)
    }
}

/// What an answer used. Servers differ in what they count and where they say it.
#[derive(Debug, Deserialize, Default, Clone, Copy)]
pub(super) struct Usage {
    #[serde(default)]
    pub(super) prompt_tokens: Option<u64>,
    #[serde(default)]
    pub(super) completion_tokens: Option<u64>,
    #[serde(default)]
    pub(super) total_tokens: Option<u64>,
    #[serde(default)]
    pub(super) prompt_tokens_details: Option<PromptDetails>,
    #[serde(default)]
    pub(super) completion_tokens_details: Option<CompletionDetails>,
    /// DeepSeek.
    #[serde(default)]
    pub(super) prompt_cache_hit_tokens: Option<u64>,
    /// LiteLLM, in front of Anthropic.
    #[serde(default)]
    pub(super) cache_read_input_tokens: Option<u64>,
    #[serde(default)]
    pub(super) cache_creation_input_tokens: Option<u64>,
}

#[derive(Debug, Deserialize, Default, Clone, Copy)]
pub(super) struct PromptDetails {
    #[serde(default)]
    pub(super) cached_tokens: Option<u64>,
    /// OpenRouter.
    #[serde(default)]
    pub(super) cache_write_tokens: Option<u64>,
}

#[derive(Debug, Deserialize, Default, Clone, Copy)]
pub(super) struct CompletionDetails {
    #[serde(default)]
    pub(super) reasoning_tokens: Option<u64>,
}
