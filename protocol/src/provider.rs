//! Defines the reports about providers: their configuration, and the outcome of checks. Used through [`crate::rpc`].
//! Pure. It must not contain a key: the place of a key is shown instead.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::run::Usage;
use crate::time::Span;

/// Value of `schema` in a provider view.
pub const PROVIDER_SCHEMA: &str = "harness.provider/1";

/// Reply to `provider.list`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProviderViews {
    /// The configured providers, sorted by name.
    pub providers: Vec<ProviderView>,
}

/// A provider as configured, without its key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProviderView {
    /// Version of this format: always [`PROVIDER_SCHEMA`].
    pub schema: String,
    /// Name of the provider, as configured.
    pub name: Arc<str>,
    /// It is the provider of runs that name none.
    pub default: bool,
    /// Name of its API dialect.
    pub dialect: String,
    /// Base URL; `None` for a provider without a network.
    pub base_url: Option<String>,
    /// Model of runs that name none.
    pub model: Option<Arc<str>>,
    /// Number of inferences at once, by configuration.
    pub width: u32,
    /// Source of its key; `None` if it needs none.
    pub key: Option<KeyView>,
    /// Prices of its tokens, if known.
    pub price: Option<PriceView>,
    /// The first fallback: the provider that is asked while the circuit breaker of this one is open.
    pub fallback: Option<Arc<str>>,
    /// All fallbacks, in the order in which they are tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fallbacks: Vec<FallbackView>,
    /// Most tokens of one answer.
    pub max_output_tokens: Option<u32>,
    /// Most tokens of a prompt and its answer together.
    #[serde(default)]
    pub context_tokens: Option<u32>,
}

/// A fallback of a provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FallbackView {
    /// Name of the provider.
    pub provider: Arc<str>,
    /// Its own model, which a fallback is asked for.
    pub model: Option<Arc<str>>,
    /// Prices of its tokens, if known.
    pub price: Option<PriceView>,
}

/// The place of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyView {
    /// Where the key is, in words.
    pub source: String,
    /// Why the key cannot be read, if it cannot.
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
    /// Price of input tokens that were read from the cache, in USD per million.
    pub cached: f64,
    /// Price of input tokens that were written to the cache, in USD per million.
    pub cache_write: f64,
}

/// Parameters of `provider.check`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ProviderCheckParams {
    /// The provider to check; all of them if left out.
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
    /// Whether the provider answered as it should.
    pub ok: bool,
    /// URL of the request; `None` where no request was needed.
    pub url: Option<String>,
    /// The model in the request.
    pub model: Option<Arc<str>>,
    /// Time until the answer.
    pub seconds: Option<Span>,
    /// Tokens and cost of the check.
    pub usage: Option<Usage>,
    /// What went wrong, if it did not answer.
    pub error: Option<String>,
    /// Exit code of a command that reports this check.
    pub exit_code: u8,
}
