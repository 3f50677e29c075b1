//! Reports about providers: their configuration, and the outcome of checks. Reached through [`crate::rpc`].

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::run::Usage;
use crate::time::Span;

/// The `schema` of a provider object.
pub const PROVIDER_SCHEMA: &str = "harness.provider/1";

/// Reply to `provider.list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProviderViews {
    /// The configured providers, sorted by name.
    pub providers: Vec<ProviderView>,
}

/// A provider as it is configured. Never with a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProviderView {
    /// Version of this format: always [`PROVIDER_SCHEMA`].
    pub schema: String,
    /// Name of the provider, as configured.
    pub name: Arc<str>,
    /// Runs that name none get this one.
    pub default: bool,
    /// How it is spoken to.
    pub dialect: String,
    /// Where it is; `None` for one that goes over no network.
    pub base_url: Option<String>,
    /// The model of runs that name none.
    pub model: Option<Arc<str>>,
    /// Inferences at once, by configuration.
    pub width: u32,
    /// Where its key is; `None` where it needs none.
    pub key: Option<KeyView>,
    /// What its tokens cost, where that is known.
    pub price: Option<PriceView>,
    /// The first of the providers that are asked in its place while it is left alone.
    pub fallback: Option<Arc<str>>,
    /// All of them, in the order in which they are tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<FallbackView>,
    /// Most tokens of one answer.
    pub max_output_tokens: Option<u32>,
    /// Tokens that its model takes at once, prompt and answer together.
    #[serde(default)]
    pub context_tokens: Option<u32>,
}

/// A provider that is asked in place of another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FallbackView {
    /// Name of the provider.
    pub provider: Arc<str>,
    /// The model that it is asked for: its own.
    pub model: Option<Arc<str>>,
    /// What its tokens cost, where that is known.
    pub price: Option<PriceView>,
}

/// Where a key is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyView {
    /// Where the key is, in words.
    pub source: String,
    /// Why it cannot be had, if it cannot.
    pub problem: Option<String>,
}

/// Prices in USD per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PriceView {
    /// Price of input tokens, in USD per million.
    pub input: f64,
    /// Price of output tokens, in USD per million.
    pub output: f64,
    /// Of input that was read from the cache.
    pub cached: f64,
    /// Of input that was written to it.
    pub cache_write: f64,
}

/// Parameters of `provider.check`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProviderCheckParams {
    /// Which; all of them where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Arc<str>>,
    /// The model to ask, in place of the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
}

/// Reply to `provider.check`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProviderChecks {
    /// Outcomes of the checks, sorted by name.
    pub checks: Vec<ProviderCheck>,
}

/// The outcome of a check of one provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProviderCheck {
    /// Name of the provider.
    pub provider: Arc<str>,
    /// The provider answered as it should.
    pub ok: bool,
    /// What was asked; `None` where nothing had to be.
    pub url: Option<String>,
    /// The model that was asked.
    pub model: Option<Arc<str>>,
    /// How long the answer took.
    pub seconds: Option<Span>,
    /// What it used.
    pub usage: Option<Usage>,
    /// Why there was none.
    pub error: Option<String>,
    /// The exit code of a command that ends with it.
    pub exit_code: u8,
}
