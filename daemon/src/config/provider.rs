//! Defines the checked configuration of one provider: `[provider.NAME]`.
//!
//! The only place with the defaults of a provider's keys, except that the prices of cached input are by default that of
//! input (`provider_builder`). It has the place of an API key, and must not hold the key itself.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use harness_protocol::run::Usage;
use harness_protocol::time::Span;
use serde_json::{Map, Value};

/// The configuration of one provider.
#[derive(Debug, Clone, PartialEq)]
pub struct Provider {
    /// The API that it speaks.
    pub dialect: &'static DialectRules,
    /// Most inferences at once.
    pub width: u32,
    /// The model of runs that name none.
    pub model: Option<Arc<str>>,
    /// The price of its tokens.
    pub price: Option<Price>,
    /// Most tokens of a prompt and its answer together.
    pub context_tokens: Option<u32>,
    /// The providers that are asked instead while this one is held, in the order of trial.
    pub fallbacks: Vec<Arc<str>>,
    /// Its server; `None` exactly if it uses no network.
    pub endpoint: Option<Arc<Endpoint>>,
}

/// What the configuration knows of a dialect. Each that goes over HTTP declares its own beside its code.
#[derive(Debug, PartialEq, Eq)]
pub struct DialectRules {
    /// The name of the dialect in the configuration.
    pub name: &'static str,
    /// Where it is spoken, where nothing else is configured.
    pub home: &'static str,
    /// The fields of a request that it writes itself.
    pub own_fields: &'static [&'static str],
    /// Whether `thinking` is for it; others take `effort`.
    pub takes_thinking: bool,
    /// Whether `quirks` are.
    pub takes_quirks: bool,
}

/// The dialects that a configuration may name, beside `scripted`.
pub type Dialects = &'static [&'static DialectRules];

/// Turns from a file. It goes over no network.
pub static SCRIPTED: DialectRules =
    DialectRules { name: "scripted", home: "", own_fields: &[], takes_thinking: false, takes_quirks: false };

/// The dialect of this name.
pub(super) fn dialect(name: &str, dialects: Dialects) -> Option<&'static DialectRules> {
    std::iter::once(&SCRIPTED).chain(dialects.iter().copied()).find(|known| known.name == name)
}

impl Provider {
    /// The width if none is configured.
    pub const WIDTH: u32 = 64;

    /// A provider that plays scripts.
    pub fn scripted(width: u32) -> Self {
        Self {
            dialect: &SCRIPTED,
            width,
            model: None,
            price: None,
            context_tokens: None,
            fallbacks: Vec::new(),
            endpoint: None,
        }
    }

    /// Whether it plays scripts.
    pub fn is_scripted(&self) -> bool {
        *self.dialect == SCRIPTED
    }

    /// The price of tokens of `model`; `None` if it is not known. The configured price is that of the configured model.
    pub fn price_of(&self, model: Option<&str>) -> Option<Price> {
        self.price.filter(|_| self.is_own(model))
    }

    /// The context of `model`, in tokens; `None` if it is not known. The configured value is that of the configured
    /// model.
    pub fn context_of(&self, model: Option<&str>) -> Option<u32> {
        self.context_tokens.filter(|_| self.is_own(model))
    }

    fn is_own(&self, model: Option<&str>) -> bool {
        self.model.is_none() || model.is_none() || self.model.as_deref() == model
    }
}

/// Prices in USD per million tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Price {
    /// Price of input tokens.
    pub input: f64,
    /// Price of output tokens, reasoning included.
    pub output: f64,
    /// Price of input tokens that were read from the provider's cache.
    pub cached: f64,
    /// Price of input tokens that were written to the cache.
    pub cache_write: f64,
}

/// Number of tokens that a price is for.
const PER: f64 = 1e6;

impl Price {
    /// The cost of this usage, in USD.
    #[expect(clippy::cast_precision_loss, reason = "nobody uses 2^53 tokens")]
    pub fn cost(&self, usage: &Usage) -> f64 {
        let (read, written) = (usage.cache_read_input_tokens, usage.cache_creation_input_tokens);
        let plain = usage.input_tokens.saturating_sub(read).saturating_sub(written);
        let parts =
            [(plain, self.input), (read, self.cached), (written, self.cache_write), (usage.output_tokens, self.output)];
        parts.iter().map(|&(tokens, price)| tokens as f64 * price / PER).sum()
    }

    /// The highest cost of so many tokens, in USD, whether or not a cache has the input.
    #[expect(clippy::cast_precision_loss, reason = "nobody uses 2^53 tokens")]
    pub fn most_for(&self, input: u64, output: u64) -> f64 {
        let dearest = self.input.max(self.cached).max(self.cache_write);
        (input as f64 * dearest + output as f64 * self.output) / PER
    }

    /// Number of output tokens that this amount pays for.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped by the cast, as is meant")]
    pub fn output_for(&self, usd: f64) -> u64 {
        if self.output <= 0.0 { u64::MAX } else { (usd.max(0.0) * PER / self.output).floor() as u64 }
    }
}

/// The server of a provider, and how it is asked.
#[derive(Clone, PartialEq)]
pub struct Endpoint {
    /// The URL with the version, without a slash at its end.
    pub base_url: Arc<str>,
    /// Source of its API key; `None` for a server without keys.
    pub key: Option<KeySource>,
    /// Headers of every request, in addition to the dialect's own.
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// File with certificates that are trusted in addition to the system's, in PEM.
    pub ca_file: Option<PathBuf>,
    /// Time limit for a connection.
    pub connect_timeout: Span,
    /// Time limit for the first byte of an answer.
    pub first_byte_timeout: Span,
    /// Time limit for a pause within an answer.
    pub idle_timeout: Span,
    /// Time limit for the whole answer.
    pub answer_timeout: Span,
    /// Most tokens of an answer, thinking included.
    pub max_output_tokens: Option<u32>,
    /// Sampling temperature; `None` leaves the server's default.
    pub temperature: Option<f64>,
    /// How hard the model is to think, in the provider's own word.
    pub effort: Option<Arc<str>>,
    /// The budget for thinking (Anthropic).
    pub thinking: Option<Thinking>,
    /// Whether to mark the parts of a prompt that a cache may keep (Anthropic).
    pub cache: bool,
    /// How the server differs from others.
    pub quirks: Quirks,
    /// Additional fields for the body of requests, unchanged. Fields that the dialect writes itself are not allowed.
    pub body: Map<String, Value>,
}

impl Endpoint {
    /// An endpoint with the defaults.
    pub fn new(base_url: impl Into<Arc<str>>) -> Self {
        Self {
            base_url: base_url.into(),
            key: None,
            headers: Vec::new(),
            ca_file: None,
            connect_timeout: Span::from_secs(10),
            first_byte_timeout: Span::from_secs(300),
            idle_timeout: Span::from_secs(120),
            answer_timeout: Span::from_secs(3600),
            max_output_tokens: None,
            temperature: None,
            effort: None,
            thinking: None,
            cache: true,
            quirks: Quirks::default(),
            body: Map::new(),
        }
    }
}

impl fmt::Debug for Endpoint {
    /// Leaves out the values of headers: some are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| &**name).collect();
        f.debug_struct("Endpoint")
            .field("base_url", &self.base_url)
            .field("key", &self.key)
            .field("headers", &headers)
            .field("ca_file", &self.ca_file)
            .field("max_output_tokens", &self.max_output_tokens)
            .field("quirks", &self.quirks)
            .finish_non_exhaustive()
    }
}

/// Source of an API key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A variable of the environment with which the daemon is started.
    Environment(Arc<str>),
    /// A file with the key.
    File(PathBuf),
    /// A credential that systemd passes.
    Credential(Arc<str>),
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Environment(name) => write!(f, "the environment's {name}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Credential(name) => write!(f, "the credential {name}"),
        }
    }
}

/// The budget for thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// The model decides.
    Adaptive,
    /// At most this many tokens.
    Budget(u32),
}

/// The differences between servers with the Chat Completions API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quirks {
    /// The limit of output tokens is named `max_completion_tokens`, as in OpenAI's newer models, and not `max_tokens`.
    pub max_completion_tokens: bool,
    /// The server refuses `stream_options`.
    pub no_stream_options: bool,
    /// Ids of calls have exactly nine letters and digits (Mistral).
    pub short_call_ids: bool,
    /// Reasoning is returned with the calls that it led to, as `reasoning_content`, whatever its name was. Without this
    /// quirk it is returned under the name that it had (DeepSeek, Kimi, vLLM).
    pub return_reasoning: bool,
    /// No reasoning is returned as `reasoning_content`, `reasoning` or `reasoning_text`: the server refuses the fields
    /// that it sends itself.
    pub drop_reasoning: bool,
}

/// Room for the answer, in tokens, if the budget for thinking is as large as the limit of an answer, or larger.
pub const BESIDE_THINKING: u32 = 4_096;

impl Endpoint {
    /// The limit of an answer in tokens, thinking included, if one is configured. A budget for thinking that leaves no
    /// room for an answer gets some room on top.
    pub fn answer_tokens(&self) -> Option<u32> {
        self.max_output_tokens.map(|most| match self.thinking {
            Some(Thinking::Budget(budget)) if budget >= most => budget.saturating_add(BESIDE_THINKING),
            _ => most,
        })
    }
}

impl Quirks {
    /// Every quirk, by its name.
    pub(super) const NAMES: [&str; 5] =
        ["max-completion-tokens", "no-stream-options", "short-call-ids", "return-reasoning", "drop-reasoning"];

    /// Sets the quirk of this name. Returns whether there is one.
    pub(super) fn set(&mut self, name: &str) -> bool {
        let quirk = match name {
            "max-completion-tokens" => &mut self.max_completion_tokens,
            "no-stream-options" => &mut self.no_stream_options,
            "short-call-ids" => &mut self.short_call_ids,
            "return-reasoning" => &mut self.return_reasoning,
            "drop-reasoning" => &mut self.drop_reasoning,
            _ => return false,
        };
        *quirk = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_token_has_its_price() {
        let price = Price { input: 2.0, output: 10.0, cached: 0.5, cache_write: 2.5 };
        let usage = Usage {
            input_tokens: 1_000_000,
            output_tokens: 100_000,
            cache_read_input_tokens: 400_000,
            cache_creation_input_tokens: 200_000,
            reasoning_output_tokens: 50_000,
            cost_usd: None,
        };
        let expected = 0.4 * 2.0 + 0.4 * 0.5 + 0.2 * 2.5 + 0.1 * 10.0;
        assert!((price.cost(&usage) - expected).abs() < 1e-9);
        assert!((price.most_for(1_000_000, 100_000) - 3.5).abs() < 1e-9);
        assert_eq!(price.output_for(1.0), 100_000);
        assert_eq!(price.output_for(-1.0), 0);
        assert_eq!(Price { output: 0.0, ..price }.output_for(0.0), u64::MAX);
    }

    #[test]
    fn a_price_is_that_of_the_configured_model() {
        let price = Price { input: 1.0, output: 1.0, cached: 1.0, cache_write: 1.0 };
        let mut provider = Provider { price: Some(price), context_tokens: Some(9), ..Provider::scripted(1) };
        assert_eq!(provider.price_of(Some("any")), Some(price));
        provider.model = Some("m".into());
        assert_eq!(provider.price_of(Some("other")), None);
        assert_eq!((provider.context_of(Some("other")), provider.context_of(Some("m"))), (None, Some(9)));
        assert_eq!(provider.price_of(Some("m")), Some(price));
        assert_eq!(provider.price_of(None), Some(price));
    }

    #[test]
    fn every_quirk_has_its_name() {
        let mut quirks = Quirks::default();
        assert!(Quirks::NAMES.iter().all(|name| quirks.set(name)) && !quirks.set("odd"));
        let all = Quirks {
            max_completion_tokens: true,
            no_stream_options: true,
            short_call_ids: true,
            return_reasoning: true,
            drop_reasoning: true,
        };
        assert_eq!(quirks, all);
    }

    #[test]
    fn values_of_headers_are_not_shown() {
        let mut endpoint = Endpoint::new("http://x/v1");
        endpoint.headers.push(("x-token".into(), "s3cret".into()));
        let shown = format!("{endpoint:?}");
        assert!(shown.contains("x-token") && !shown.contains("s3cret"), "{shown}");
    }
}
