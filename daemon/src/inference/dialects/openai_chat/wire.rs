//! Defines the JSON that servers of chat completions send. Fields are borrowed from the event; unknown fields are
//! skipped.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::inference::common::json_text::Text;
use crate::inference::common::lenient::{Number, Object, Objects, Odd};
use crate::inference::common::usage_counts::{Counts, first};

/// A chunk of a stream, or a whole answer. Only one choice is asked for; some servers send it in parts, each with the
/// same index.
#[derive(Deserialize)]
pub(super) struct Chunk<'a> {
    #[serde(borrow, default)]
    pub(super) choices: Objects<'a, Choice<'a>>,
    #[serde(default)]
    pub(super) usage: Odd<Usage>,
    #[serde(borrow, default)]
    pub(super) x_groq: Odd<Groq<'a>>,
    /// MiniMax: how it went.
    #[serde(default)]
    pub(super) base_resp: Odd<BaseResp>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
    /// `error` where an old vLLM reports one.
    #[serde(borrow, default)]
    pub(super) object: Option<Text<'a>>,
    /// Words of an error without a form.
    #[serde(borrow, default)]
    pub(super) detail: Option<&'a RawValue>,
}

/// What Groq says beside.
#[derive(Deserialize, Clone, Copy)]
pub(super) struct Groq<'a> {
    #[serde(default)]
    pub(super) usage: Odd<Usage>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
}

/// How it went at MiniMax: well, where it is 0.
#[derive(Deserialize, Clone, Copy)]
pub(super) struct BaseResp {
    #[serde(default)]
    pub(super) status_code: Number,
}

#[derive(Deserialize)]
pub(super) struct Choice<'a> {
    #[serde(default)]
    pub(super) index: Number,
    #[serde(borrow, default)]
    pub(super) delta: Object<Delta<'a>>,
    /// In place of `delta` where the answer is whole.
    #[serde(borrow, default)]
    pub(super) message: Object<Delta<'a>>,
    #[serde(borrow, default)]
    pub(super) finish_reason: Option<Text<'a>>,
    /// Where it is here and not in the chunk.
    #[serde(default)]
    pub(super) usage: Odd<Usage>,
    #[serde(borrow, default)]
    pub(super) error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default)]
    pub(super) content: Content<'a>,
    #[serde(borrow, default)]
    pub(super) refusal: Option<Text<'a>>,
    /// Reasoning has two names, and some servers use both at once.
    #[serde(borrow, default)]
    pub(super) reasoning_content: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) reasoning: Option<Text<'a>>,
    /// Copilot has names of its own: words, and what only it can read.
    #[serde(borrow, default)]
    pub(super) reasoning_text: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) reasoning_opaque: Option<Text<'a>>,
    /// LiteLLM: reasoning as Anthropic signs it.
    #[serde(borrow, default)]
    pub(super) thinking_blocks: Option<&'a RawValue>,
    /// Gemini: whether the content is thought.
    #[serde(default)]
    pub(super) extra_content: Odd<Extra>,
    /// OpenRouter: reasoning in parts, to be sent back as they are.
    #[serde(borrow, default)]
    pub(super) reasoning_details: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) tool_calls: Objects<'a, Call<'a>>,
    /// The oldest form of a call.
    #[serde(borrow, default)]
    pub(super) function_call: Object<Function<'a>>,
}

/// What Google says beside a content.
#[derive(Deserialize, Clone, Copy)]
pub(super) struct Extra {
    #[serde(default)]
    google: Odd<Google>,
}

#[derive(Deserialize, Clone, Copy)]
struct Google {
    #[serde(default)]
    thought: Odd<bool>,
}

impl Extra {
    /// Whether the content beside it is thought.
    pub(super) fn is_thought(self) -> bool {
        self.google.0.and_then(|google| google.thought.0) == Some(true)
    }
}

/// Content: a text, or parts of which some are thought (Mistral).
#[derive(Debug, Default)]
pub(super) struct Content<'a> {
    pub(super) thinking: Vec<Text<'a>>,
    pub(super) text: Vec<Text<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut content = Self::default();
        content.take(<&'de RawValue>::deserialize(deserializer)?).map_err(D::Error::custom)?;
        Ok(content)
    }
}

/// A part of a content.
#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow, default)]
    thinking: Option<Text<'a>>,
}

impl<'a> Content<'a> {
    fn take(&mut self, raw: &'a RawValue) -> Result<(), serde_json::Error> {
        match raw.get().as_bytes().first() {
            Some(b'[') => {
                let parts: Vec<&RawValue> = serde_json::from_str(raw.get())?;
                parts.into_iter().try_for_each(|part| self.take(part))
            }
            Some(b'{') => {
                let Part { kind, thinking } = serde_json::from_str(raw.get())?;
                match &*kind.to_str() {
                    "" | "text" | "output_text" => self.text.push(Text::of(raw)?),
                    "thinking" | "reasoning" => self.thinking.push(thinking.map_or_else(|| Text::of(raw), Ok)?),
                    _ => {}
                }
                Ok(())
            }
            _ => {
                self.text.push(Text::of(raw)?);
                Ok(())
            }
        }
    }
}

#[derive(Default)]
pub(super) struct Call<'a> {
    pub(super) index: Number,
    pub(super) id: Option<Text<'a>>,
    pub(super) function: Object<Function<'a>>,
    /// Gemini: what it wants back with the call.
    pub(super) extra_content: Option<&'a RawValue>,
    /// Whatever else it has, which its server may want back with it.
    pub(super) others: Vec<(Cow<'a, str>, &'a RawValue)>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Call<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Fields<'a> {
            type Value = Call<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a call")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Call<'a>, A::Error> {
                let mut call = Call::default();
                let mut seen = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    if seen.contains(&name) {
                        return Err(A::Error::custom(format!("duplicate field `{name}`")));
                    }
                    match &*name {
                        "index" => call.index = map.next_value()?,
                        "id" => call.id = map.next_value()?,
                        "function" => call.function = map.next_value()?,
                        "extra_content" => call.extra_content = map.next_value()?,
                        _ => call.others.extend(map.next_value::<Option<_>>()?.map(|value| (name.clone(), value))),
                    }
                    seen.push(name);
                }
                call.others.retain(|(name, _)| *name != "type");
                Ok(call)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// The name of a field, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize, Default)]
pub(super) struct Function<'a> {
    #[serde(borrow, default)]
    pub(super) name: Option<Text<'a>>,
    /// A string, or what the string should have been the text of.
    #[serde(borrow, default)]
    pub(super) arguments: Option<&'a RawValue>,
}

/// What an answer used. Servers differ in what they count and where they say it.
#[derive(Debug, Deserialize, Default, Clone, Copy)]
pub(super) struct Usage {
    #[serde(default)]
    prompt_tokens: Number,
    #[serde(default)]
    completion_tokens: Number,
    /// The names of the other APIs, which gateways pass on.
    #[serde(default)]
    input_tokens: Number,
    #[serde(default)]
    output_tokens: Number,
    #[serde(default)]
    total_tokens: Number,
    #[serde(default)]
    prompt_tokens_details: Odd<Details>,
    #[serde(default)]
    completion_tokens_details: Odd<Details>,
    #[serde(default)]
    input_tokens_details: Odd<Details>,
    #[serde(default)]
    output_tokens_details: Odd<Details>,
    /// Input tokens read from the cache, as DeepSeek reports them.
    #[serde(default)]
    prompt_cache_hit_tokens: Number,
    /// Input tokens read from the cache, as Moonshot reports them.
    #[serde(default)]
    cached_tokens: Number,
    /// LiteLLM, in front of Anthropic.
    #[serde(default)]
    cache_read_input_tokens: Number,
    #[serde(default)]
    cache_creation_input_tokens: Number,
}

#[derive(Debug, Deserialize, Default, Clone, Copy)]
struct Details {
    #[serde(default)]
    cached_tokens: Number,
    /// Input tokens written to the cache, as OpenRouter reports them.
    #[serde(default)]
    cache_write_tokens: Number,
    #[serde(default)]
    reasoning_tokens: Number,
}

impl Usage {
    pub(super) fn counts(self) -> Counts {
        let details = |named: Odd<Details>, other: Odd<Details>| named.0.or(other.0).unwrap_or_default();
        let prompt = details(self.prompt_tokens_details, self.input_tokens_details);
        let completion = details(self.completion_tokens_details, self.output_tokens_details);
        let cached =
            [prompt.cached_tokens, self.prompt_cache_hit_tokens, self.cached_tokens, self.cache_read_input_tokens];
        Counts {
            input: first([self.prompt_tokens.0, self.input_tokens.0]),
            output: first([self.completion_tokens.0, self.output_tokens.0]),
            total: self.total_tokens.0,
            cache_read: cached.into_iter().filter_map(|count| count.0).max(),
            cache_written: prompt.cache_write_tokens.0.max(self.cache_creation_input_tokens.0),
            reasoning: completion.reasoning_tokens.0,
        }
    }
}
