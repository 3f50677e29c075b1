//! Sends requests to one provider: has the connections, proxies, certificates, and the key that all of these requests
//! share.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, RwLock};

use harness_protocol::time::Timestamp;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, NoProxy, Proxy, Url};

use super::key::{self, Environment, Secret};
use super::redact_keys::Scrubber;
use crate::config::{Endpoint, Provider};
use crate::inference::dialects::HttpDialect;
use crate::timed_read;

/// Bytes of a file of certificates that are read: a system's whole store has some hundred KiB.
const LARGEST_CERTIFICATES: u64 = 8 * 1024 * 1024;
/// What a proxy is for, and the variables that name it, the first that is set being the one that counts.
const PROXIES: [(&str, &[&str]); 3] = [
    ("http", &["http_proxy", "HTTP_PROXY"]),
    ("https", &["https_proxy", "HTTPS_PROXY"]),
    ("all", &["all_proxy", "ALL_PROXY"]),
];
const NO_PROXY: &[&str] = &["no_proxy", "NO_PROXY"];

/// Why there can be no client for a provider.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The file with its certificates.
    #[error("`provider.{provider}.ca_file`: cannot read {}: {why}", path.display())]
    Certificates {
        /// The provider, by its name in the configuration.
        provider: Arc<str>,
        /// The certificate file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Something else that was configured.
    #[error("provider {provider} cannot be set up: {why}")]
    Other {
        /// The provider, by its name in the configuration.
        provider: Arc<str>,
        /// What is wrong.
        why: String,
    },
}

impl BuildError {
    /// The key of the configuration that cannot be used.
    pub fn key(&self) -> String {
        match self {
            Self::Certificates { provider, .. } => format!("provider.{provider}.ca_file"),
            Self::Other { provider, .. } => format!("provider.{provider}"),
        }
    }
}

/// The client of one provider.
pub struct Client {
    pub(super) name: Arc<str>,
    pub(super) http: reqwest::Client,
    pub(super) dialect: HttpDialect,
    pub(super) url: Url,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) model: Option<Arc<str>>,
    /// An answer has come to its end, so a connection may have been kept.
    pub(super) has_answered: AtomicBool,
    around: Environment,
    key: RwLock<Result<Option<Secret>, String>>,
}

impl Client {
    /// A client for a provider over HTTP; `None` for one that is not.
    ///
    /// # Errors
    /// Where something that was configured cannot be used. A key that is not there is no such thing: it is told when it
    /// is needed.
    pub fn new(name: &Arc<str>, provider: &Provider, around: &Environment) -> Result<Option<Self>, BuildError> {
        let Some(dialect) = HttpDialect::named(provider.dialect.name) else { return Ok(None) };
        let Some(endpoint) = provider.endpoint.clone() else { return Ok(None) };
        let other = |why: String| BuildError::Other { provider: Arc::clone(name), why };
        let url = format!("{}{}", endpoint.base_url, dialect.path());
        let url = Url::parse(&url).map_err(|error| other(error.to_string()))?;
        let http = build(name, &endpoint, around)?;
        let client = Self {
            name: Arc::clone(name),
            http,
            dialect,
            url,
            model: provider.model.clone(),
            has_answered: AtomicBool::new(false),
            around: around.clone(),
            key: RwLock::new(Ok(None)),
            endpoint,
        };
        client.read_key();
        Ok(Some(client))
    }

    /// Reads the key again: it may be another one by now.
    pub fn read_key(&self) {
        let key = self.endpoint.key.as_ref().map(|source| key::read(source, &self.around)).transpose();
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = key;
    }

    /// The key, or why there is none.
    pub(super) fn key(&self) -> Result<Option<Secret>, String> {
        self.key.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why its key cannot be had, if it cannot.
    pub fn key_problem(&self) -> Option<String> {
        self.key().err()
    }

    pub(super) fn scrubber(&self) -> Scrubber {
        Scrubber::new(self.key().ok().flatten().as_ref(), &self.endpoint.headers)
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.around.now)()
    }

    /// The headers of a request. What is configured goes over what the dialect wants.
    pub(super) fn headers(&self, key: Option<&Secret>) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json"));
        // Nothing here can read another one.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for &(name, value) in self.dialect.headers() {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        if let Some(key) = key {
            let (name, value) = self.dialect.auth(key.as_str());
            let mut value = HeaderValue::from_str(&value).map_err(|_| "the key cannot be sent".to_owned())?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static(name), value);
        }
        for (name, value) in &self.endpoint.headers {
            let wrong = || format!("the header {name} cannot be sent");
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(headers)
    }
}

fn build(name: &Arc<str>, endpoint: &Endpoint, around: &Environment) -> Result<reqwest::Client, BuildError> {
    // Where another part was first, its choice is the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let other = |why: String| BuildError::Other { provider: Arc::clone(name), why };
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("harness/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(endpoint.connect_timeout.to_std())
        // A key goes where it was configured to go, and nowhere else.
        .redirect(Policy::none())
        // Asking again is the world's to decide.
        .retry(reqwest::retry::never())
        .no_proxy();
    let mut has_tls = endpoint.base_url.starts_with("https:");
    // The first that is set counts, also where it cannot be read.
    let variable = |names: &[&str]| {
        let first = names.iter().find_map(|name| around.variables.get(name).transpose());
        first.transpose().map_err(|error| other(error.to_string()))
    };
    let except = variable(NO_PROXY)?.and_then(NoProxy::from_string);
    for (scheme, names) in PROXIES {
        let Some(typed) = variable(names)? else { continue };
        has_tls |= typed.starts_with("https:");
        let proxy = match scheme {
            "http" => Proxy::http(typed),
            "https" => Proxy::https(typed),
            _ => Proxy::all(typed),
        };
        // Its URL may hold a password.
        let proxy = proxy.map_err(|_| other(format!("{} is no URL of a proxy", names.join(" or "))))?;
        builder = builder.proxy(proxy.no_proxy(except.clone()));
    }
    if let Some(path) = &endpoint.ca_file {
        let wrong = |why: String| BuildError::Certificates { provider: Arc::clone(name), path: path.clone(), why };
        let pem = timed_read::read(path, LARGEST_CERTIFICATES).map_err(|error| wrong(error.to_string()))?;
        let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| wrong(error.to_string()))?;
        if certificates.is_empty() {
            return Err(wrong("there is no certificate in it".to_owned()));
        }
        builder = builder.tls_certs_merge(certificates);
    } else if !has_tls {
        // A machine without certificates can still ask its own server.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|error| other(told(&error)))
}

/// What went wrong, from the deepest cause up to what says something new.
pub(super) fn told(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
