//! A configured provider, checked: `[provider.NAME]`.
//!
//! Owns the defaults of every key. Names the place of an API key, and must never hold the key itself.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use harness_protocol::run::Usage;
use harness_protocol::time::Span;
use serde_json::{Map, Value};

/// The configuration of one provider.
#[derive(Debug, Clone, PartialEq)]
pub struct Provider {
    /// How it is spoken to.
    pub dialect: Dialect,
    /// Inferences at once.
    pub width: u32,
    /// The model of runs that name none.
    pub model: Option<Arc<str>>,
    /// What its tokens cost.
    pub price: Option<Price>,
    /// Tokens that the model takes at once, prompt and answer together.
    pub context_tokens: Option<u32>,
    /// The providers that are asked in its place while it is left alone, in the order in which they are tried.
    pub fallbacks: Vec<Arc<str>>,
    /// Where it is. `None` exactly for what goes over no network.
    pub endpoint: Option<Arc<Endpoint>>,
}

/// Dialects that this version speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Turns from a file.
    Scripted,
    /// OpenAI's Chat Completions API, and the servers with a similar API.
    OpenAi,
    /// OpenAI's Responses API.
    Responses,
    /// Anthropic's Messages API.
    Anthropic,
}

impl Dialect {
    /// Every dialect, by its name.
    pub const NAMES: [(&str, Self); 4] = [
        ("scripted", Self::Scripted),
        ("openai", Self::OpenAi),
        ("responses", Self::Responses),
        ("anthropic", Self::Anthropic),
    ];

    /// The dialect's name in the configuration.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, dialect)| *dialect == self).map_or("", |(name, _)| name)
    }

    /// The fields of a request that the dialect writes itself.
    pub const fn own_fields(self) -> &'static [&'static str] {
        match self {
            Self::Scripted => &[],
            Self::OpenAi => &[
                "model",
                "messages",
                "tools",
                "stream",
                "stream_options",
                "max_tokens",
                "max_completion_tokens",
                "temperature",
                "reasoning_effort",
            ],
            Self::Responses => &[
                "model",
                "instructions",
                "input",
                "tools",
                "stream",
                "store",
                "include",
                "max_output_tokens",
                "temperature",
                "reasoning",
            ],
            Self::Anthropic => &[
                "model",
                "max_tokens",
                "system",
                "tools",
                "messages",
                "stream",
                "thinking",
                "temperature",
                "output_config",
            ],
        }
    }

    /// Where it is spoken, where nothing else is configured.
    pub(super) const fn home(self) -> &'static str {
        match self {
            Self::Scripted => "",
            Self::OpenAi | Self::Responses => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com/v1",
        }
    }
}

impl Provider {
    /// Inferences at once where nothing else is configured.
    pub const WIDTH: u32 = 64;

    /// A provider that plays scripts.
    pub const fn scripted(width: u32) -> Self {
        Self {
            dialect: Dialect::Scripted,
            width,
            model: None,
            price: None,
            context_tokens: None,
            fallbacks: Vec::new(),
            endpoint: None,
        }
    }

    /// What tokens of `model` cost; `None` where that is not known. A price is that of the configured model.
    pub fn price_of(&self, model: Option<&str>) -> Option<Price> {
        self.price.filter(|_| self.is_own(model))
    }

    /// Tokens that `model` takes at once; `None` where that is not known. It is said of the configured model.
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
    /// Of output, reasoning included.
    pub output: f64,
    /// Of input that was read from the provider's cache.
    pub cached: f64,
    /// Of input that was written to it.
    pub cache_write: f64,
}

/// Tokens that a price is for.
const PER: f64 = 1e6;

impl Price {
    /// What this costs, in USD.
    #[expect(clippy::cast_precision_loss, reason = "nobody uses 2^53 tokens")]
    pub fn cost(&self, usage: &Usage) -> f64 {
        let (read, written) = (usage.cache_read_input_tokens, usage.cache_creation_input_tokens);
        let plain = usage.input_tokens.saturating_sub(read).saturating_sub(written);
        let parts =
            [(plain, self.input), (read, self.cached), (written, self.cache_write), (usage.output_tokens, self.output)];
        parts.iter().map(|&(tokens, price)| tokens as f64 * price / PER).sum()
    }

    /// What so many tokens cost at most, whatever a cache makes of those of the input.
    #[expect(clippy::cast_precision_loss, reason = "nobody uses 2^53 tokens")]
    pub fn most_for(&self, input: u64, output: u64) -> f64 {
        let dearest = self.input.max(self.cached).max(self.cache_write);
        (input as f64 * dearest + output as f64 * self.output) / PER
    }

    /// How many tokens of output there are for so much.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped by the cast, as is meant")]
    pub fn output_for(&self, usd: f64) -> u64 {
        if self.output <= 0.0 { u64::MAX } else { (usd.max(0.0) * PER / self.output).floor() as u64 }
    }
}

/// Where a provider is, and how it is asked.
#[derive(Clone, PartialEq)]
pub struct Endpoint {
    /// The URL with the version, without a slash at its end.
    pub base_url: Arc<str>,
    /// Where its key is. A server of one's own may want none.
    pub key: Option<KeySource>,
    /// Headers of every request, beside the dialect's own.
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// Certificates that are trusted beside the system's, in PEM.
    pub ca_file: Option<PathBuf>,
    /// How long a connection may take.
    pub connect_timeout: Span,
    /// How long the first byte of an answer may take.
    pub first_byte_timeout: Span,
    /// How long nothing may come in the middle of one.
    pub idle_timeout: Span,
    /// How long an answer may take as a whole.
    pub answer_timeout: Span,
    /// Most tokens of an answer, thinking included.
    pub max_output_tokens: Option<u32>,
    /// Sampling temperature; `None` leaves the server's default.
    pub temperature: Option<f64>,
    /// How hard the model shall think, in the provider's own word.
    pub effort: Option<Arc<str>>,
    /// How much it may think (Anthropic).
    pub thinking: Option<Thinking>,
    /// Whether to mark what a cache may keep (Anthropic).
    pub cache: bool,
    /// Where the server departs from others.
    pub quirks: Quirks,
    /// Further fields of the body of requests, as they are; none that the dialect writes itself.
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
    /// Without the values of headers: some are secrets.
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

/// Where a key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// In this variable of the environment that the daemon is started with.
    Environment(Arc<str>),
    /// In this file.
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

/// How much a model may think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// As it sees fit.
    Adaptive,
    /// Up to this many tokens.
    Budget(u32),
}

/// Where servers of chat completions depart from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Quirks {
    /// The limit is named `max_completion_tokens`, as OpenAI's newer models want it, in place of `max_tokens`.
    pub max_completion_tokens: bool,
    /// `stream_options` is refused.
    pub no_stream_options: bool,
    /// Ids of calls have exactly nine letters and digits (Mistral).
    pub short_call_ids: bool,
    /// Reasoning goes back with the calls that it led to, as `reasoning_content`, whatever name it came under. Without
    /// this it goes back under the name that it came by (DeepSeek, Kimi, vLLM).
    pub return_reasoning: bool,
    /// No reasoning goes back in words, as `reasoning_content`, `reasoning` or `reasoning_text`: the server refuses
    /// what it sends itself.
    pub drop_reasoning: bool,
}

/// Tokens of an answer beside a budget for thinking that is no less than the limit of answers.
pub const BESIDE_THINKING: u32 = 4_096;

impl Endpoint {
    /// Most tokens of an answer, thinking included, where that is configured: a budget for thinking that does not fit
    /// into the limit of answers comes on top of some room for one.
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

    /// Sets the quirk of this name; says whether there is one.
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
