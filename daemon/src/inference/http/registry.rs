//! The configured providers by name.
//!
//! Owns the choice of clients that are kept or rebuilt on a reload, and what the daemon reports about providers.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use harness_protocol::rpc::{FallbackView, KeyView, PROVIDER_SCHEMA, PriceView, ProviderCheck, ProviderView};
use harness_protocol::run::exit;

use super::client::{BuildError, Client};
use super::exchange::Question;
use super::key::Environment;
use crate::config::{Price, Provider};
use crate::prompt::{ErrorClass, Message, Prompt};

/// Tokens that a check may use. Fewer are refused by some.
const CHECK_TOKENS: u32 = 16;

/// A provider, as it can be asked.
#[derive(Clone)]
pub struct Served {
    /// As it is configured.
    pub provider: Provider,
    /// Its client; `None` for one that goes over no network.
    pub client: Option<Arc<Client>>,
}

impl Served {
    /// What tokens of a model cost.
    pub fn price(&self, model: Option<&str>) -> Option<Price> {
        self.provider.price_of(model)
    }
}

/// The configured providers. Shared by the jobs that use them and the reload that replaces them.
pub struct Providers {
    by_name: RwLock<BTreeMap<Arc<str>, Served>>,
    around: Environment,
}

impl Providers {
    /// Clients for all that are configured.
    ///
    /// # Errors
    /// Where one of them cannot be used as it is configured.
    pub fn new(providers: &BTreeMap<Arc<str>, Provider>, around: Environment) -> Result<Self, BuildError> {
        let by_name = RwLock::new(serve(providers, &around)?);
        Ok(Self { by_name, around })
    }

    /// Takes what is configured now. Who is being asked goes on being asked as before.
    ///
    /// # Errors
    /// Where one of them cannot be used as it is configured: then all stay as they were.
    pub fn replace(&self, providers: &BTreeMap<Arc<str>, Provider>) -> Result<(), BuildError> {
        let fresh = serve(providers, &self.around)?;
        *self.by_name.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// The provider of that name.
    pub fn get(&self, name: &str) -> Option<Served> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// The names of all.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.by_name.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// What is told of them. `default` is the one that a run gets which names none.
    pub fn views(&self, default: &str) -> Vec<ProviderView> {
        let by_name = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        by_name.iter().map(|(name, served)| view(name, served, &**name == default, &by_name)).collect()
    }

    /// Asks a provider for a word, and tells what came of it. Its key is read again first: it may be another one by
    /// now. `None` where there is no such provider.
    pub async fn check(&self, name: &str, model: Option<&str>) -> Option<ProviderCheck> {
        let Served { provider, client } = self.get(name)?;
        let model = model.or(provider.model.as_deref());
        let mut check = ProviderCheck {
            provider: name.into(),
            ok: true,
            url: None,
            model: model.map(Into::into),
            seconds: None,
            usage: None,
            error: None,
            exit_code: exit::SUCCEEDED,
        };
        let Some(client) = client else { return Some(check) };
        check.url = Some(client.url.to_string());
        let reader = Arc::clone(&client);
        // A file may lie on a disk that takes its time.
        let _ = tokio::task::spawn_blocking(move || reader.read_key()).await;
        let texts = vec!["Answer with the word ok.".into()];
        let prompt = Prompt { system: None, messages: vec![Message::User { results: Vec::new(), texts }] };
        let question =
            Question { model, prompt: &prompt, tools: &[], max_output_tokens: Some(CHECK_TOKENS), is_budgeted: false };
        let began = client.now();
        let answer = client.ask(&question, &mut |_| {}).await;
        check.seconds = Some(client.now().since(began));
        match answer {
            Ok(completion) => {
                let mut usage = completion.usage;
                usage.cost_usd = provider.price_of(model).map(|price| price.cost(&usage));
                check.usage = Some(usage);
            }
            Err(error) => {
                check.ok = false;
                check.exit_code = match error.class {
                    ErrorClass::Credentials | ErrorClass::NoKey => exit::CREDENTIALS,
                    ErrorClass::Quota(_) | ErrorClass::RateLimit(_) => exit::TRY_LATER,
                    ErrorClass::Retry
                    | ErrorClass::RetryAfter(_)
                    | ErrorClass::Unusable
                    | ErrorClass::Never
                    | ErrorClass::AnswerTooLarge
                    | ErrorClass::ContextTooLong => exit::FAILED,
                };
                check.error = Some(error.message);
            }
        }
        Some(check)
    }
}

fn serve(
    providers: &BTreeMap<Arc<str>, Provider>,
    around: &Environment,
) -> Result<BTreeMap<Arc<str>, Served>, BuildError> {
    let serve = |(name, provider): (&Arc<str>, &Provider)| {
        let client = Client::new(name, provider, around)?.map(Arc::new);
        Ok((Arc::clone(name), Served { provider: provider.clone(), client }))
    };
    providers.iter().map(serve).collect()
}

fn price_view(price: Price) -> PriceView {
    PriceView { input: price.input, output: price.output, cached: price.cached, cache_write: price.cache_write }
}

/// A fallback, as it is told of the provider that has it.
fn fallback(name: &Arc<str>, served: Option<&Served>) -> FallbackView {
    let provider = served.map(|served| &served.provider);
    FallbackView {
        provider: Arc::clone(name),
        model: provider.and_then(|provider| provider.model.clone()),
        price: provider.and_then(|provider| provider.price).map(price_view),
    }
}

fn view(name: &Arc<str>, served: &Served, default: bool, by_name: &BTreeMap<Arc<str>, Served>) -> ProviderView {
    let Served { provider, client } = served;
    let endpoint = provider.endpoint.as_deref();
    let key = endpoint.and_then(|endpoint| endpoint.key.as_ref());
    ProviderView {
        schema: PROVIDER_SCHEMA.to_owned(),
        name: Arc::clone(name),
        default,
        dialect: provider.dialect.name.to_owned(),
        base_url: endpoint.map(|endpoint| endpoint.base_url.to_string()),
        model: provider.model.clone(),
        width: provider.width,
        key: key.map(|source| KeyView {
            source: source.to_string(),
            problem: client.as_ref().and_then(|client| client.key_problem()),
        }),
        price: provider.price.map(price_view),
        fallback: provider.fallbacks.first().cloned(),
        fallbacks: provider.fallbacks.iter().map(|other| fallback(other, by_name.get(other))).collect(),
        max_output_tokens: endpoint.and_then(|endpoint| endpoint.max_output_tokens),
        context_tokens: provider.context_tokens,
    }
}
