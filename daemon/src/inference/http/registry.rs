//! Finds the client of a configured provider by the provider's name.
//!
//! It has the clients in use, replaces them at a reload, and reports the providers to clients of the daemon.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use harness_protocol::rpc::{FallbackView, KeyView, PROVIDER_SCHEMA, PriceView, ProviderCheck, ProviderView};
use harness_protocol::run::exit;

use super::client::{BuildError, Client};
use super::exchange::Question;
use super::key::Environment;
use crate::config::{Config, Price, Provider};
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
    in_use: RwLock<Clients>,
    around: Environment,
}

/// Clients of all providers of one configuration.
pub struct Clients {
    by_name: BTreeMap<Arc<str>, Served>,
    /// The provider of a run that names none.
    default: Arc<str>,
}

impl Clients {
    /// The providers whose keys cannot be read, and why.
    pub fn without_keys(&self) -> impl Iterator<Item = (&str, String)> {
        let problem = |served: &Served| served.client.as_ref().and_then(|client| client.key_problem());
        self.by_name.iter().filter_map(move |(name, served)| Some((&**name, problem(served)?)))
    }

    fn views(&self) -> Vec<ProviderView> {
        let view = |(name, served)| view(name, served, *name == self.default, &self.by_name);
        self.by_name.iter().map(view).collect()
    }
}

impl Providers {
    /// Clients for all providers of a configuration.
    ///
    /// # Errors
    /// If one of them cannot be used as it is configured.
    pub fn new(config: &Config, around: Environment) -> Result<Self, BuildError> {
        let in_use = RwLock::new(clients(config, &around)?);
        Ok(Self { in_use, around })
    }

    /// Makes clients for another configuration, and reads their keys and certificates. Changes nothing until
    /// [`Self::put_in_force`]. May take some seconds for each file.
    ///
    /// # Errors
    /// If one of them cannot be used as it is configured.
    pub fn prepare(&self, config: &Config) -> Result<Clients, BuildError> {
        clients(config, &self.around)
    }

    /// Uses these clients from now on. Requests that are under way end with the client that they began with.
    pub fn put_in_force(&self, clients: Clients) {
        *self.in_use.write().unwrap_or_else(PoisonError::into_inner) = clients;
    }

    fn in_use(&self) -> RwLockReadGuard<'_, Clients> {
        self.in_use.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The provider of that name.
    pub fn get(&self, name: &str) -> Option<Served> {
        self.in_use().by_name.get(name).cloned()
    }

    /// The names of all.
    pub fn names(&self) -> Vec<Arc<str>> {
        self.in_use().by_name.keys().cloned().collect()
    }

    /// What is told of them.
    pub fn views(&self) -> Vec<ProviderView> {
        self.in_use().views()
    }

    /// The providers whose keys cannot be read, and why.
    pub fn without_keys(&self) -> Vec<(String, String)> {
        self.in_use().without_keys().map(|(name, why)| (name.to_owned(), why)).collect()
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

fn clients(config: &Config, around: &Environment) -> Result<Clients, BuildError> {
    let serve = |(name, provider): (&Arc<str>, &Provider)| {
        let client = Client::new(name, provider, around)?.map(Arc::new);
        Ok((Arc::clone(name), Served { provider: provider.clone(), client }))
    };
    let by_name = config.providers.iter().map(serve).collect::<Result<_, _>>()?;
    Ok(Clients { by_name, default: Arc::clone(&config.run.provider) })
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
