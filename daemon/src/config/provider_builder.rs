//! Builds the configuration of one provider from the keys that the files have set. A later file overrides an earlier
//! one key by key.
//!
//! The only place with the rules for which keys go together, and for the values of a provider's keys. It must not read
//! an API key: it notes where the key is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use harness_protocol::time::Span;
use serde_json::Value;

use super::Problem;
use super::provider::{self, DialectRules, Dialects, Endpoint, KeySource, Price, Provider, Quirks, Thinking};
use super::settings::allowed;
use super::toml_reader::{Number, Place, Section};

/// Why keys for an endpoint are refused for a provider without a network. `of_endpoints` has the first such key.
const OF_ENDPOINTS: &str = "a scripted provider uses no network";
/// Least configured context, in tokens: no model takes fewer.
const LEAST_CONTEXT: u32 = 2_048;
/// Most tokens of one answer, or of prompt and answer together, that can be configured.
const MOST_TOKENS: u32 = 10_000_000;
/// Highest configured price, in USD per million tokens.
const DEAREST: f64 = 1e6;

/// A provider as far as the files have described it.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    place: Option<Place>,
    dialect: Option<&'static DialectRules>,
    width: Option<u32>,
    model: Option<Arc<str>>,
    price: Option<(PriceSketch, Place)>,
    fallbacks: Vec<(Arc<str>, Place)>,
    base_url: Option<Arc<str>>,
    keys: BTreeMap<&'static str, (KeySource, Place)>,
    headers: BTreeMap<Arc<str>, Arc<str>>,
    ca_file: Option<PathBuf>,
    timeouts: [Option<Span>; 4],
    context_tokens: Option<u32>,
    max_output_tokens: Option<u32>,
    temperature: Option<f64>,
    effort: Option<Arc<str>>,
    thinking: Option<Thinking>,
    cache: Option<bool>,
    quirks: Option<Quirks>,
    body: BTreeMap<String, (Value, Place)>,
    /// The first key that only an endpoint may have, with its place.
    of_endpoints: Option<(&'static str, Place)>,
}

#[derive(Debug, Default, Clone, Copy)]
struct PriceSketch {
    input: Option<f64>,
    output: Option<f64>,
    cached: Option<f64>,
    cache_write: Option<f64>,
}

impl Sketch {
    /// The keys of a provider that exists without configuration.
    pub(super) fn of(provider: &Provider) -> Self {
        Self { dialect: Some(provider.dialect), width: Some(provider.width), ..Self::default() }
    }

    /// The providers that are asked instead while this one is held, each with the place that names it.
    pub(super) fn fallbacks(&self) -> &[(Arc<str>, Place)] {
        &self.fallbacks
    }

    /// Whether it plays scripts.
    pub(super) fn is_scripted(&self) -> bool {
        self.dialect == Some(&provider::SCRIPTED)
    }

    /// Reads the section of one file.
    pub(super) fn take(&mut self, name: &str, place: &Place, section: &mut Section<'_>, dialects: Dialects) {
        self.place = Some(place.clone());
        if let Some((typed, at)) = section.text("dialect") {
            match provider::dialect(&typed, dialects) {
                Some(dialect) => self.dialect = Some(dialect),
                None => {
                    // The other keys belong to the unknown dialect, so they cannot be checked.
                    self.dialect = Some(&provider::SCRIPTED);
                    section.give_up(at.problem(format!(
                        "`provider.{name}.dialect` is {typed:?}; this version speaks {}",
                        names(std::iter::once(&provider::SCRIPTED).chain(dialects.iter().copied()), ", ")
                    )));
                    return;
                }
            }
        }
        self.width = section.count("width", allowed::WIDTH).or(self.width);
        set(&mut self.model, section.text("model").map(|(model, _)| model));
        self.take_price(section);
        if let Some(fallbacks) = section.text_or_texts("fallback") {
            self.fallbacks = fallbacks.into_iter().map(|(name, place)| (name.into(), place)).collect();
        }
        self.take_endpoint(name, section);
    }

    fn take_price(&mut self, section: &mut Section<'_>) {
        let (price, place) = (self.price.take(), section.place_of("price"));
        let mut sketch = price.as_ref().map(|(sketch, _)| *sketch).unwrap_or_default();
        section.section("price", |price| {
            for (key, to) in [
                ("input", &mut sketch.input),
                ("output", &mut sketch.output),
                ("cached", &mut sketch.cached),
                ("cache_write", &mut sketch.cache_write),
            ] {
                *to = price.number(key, 0.0..=DEAREST).or(*to);
            }
        });
        self.price = place.or(price.map(|(_, place)| place)).map(|place| (sketch, place));
    }

    fn take_endpoint(&mut self, name: &str, section: &mut Section<'_>) {
        let keys = [
            "base_url",
            "api_key_env",
            "api_key_file",
            "credential",
            "headers",
            "ca_file",
            "connect_timeout_seconds",
            "first_byte_timeout_seconds",
            "idle_timeout_seconds",
            "answer_timeout_seconds",
            "context_tokens",
            "max_output_tokens",
            "temperature",
            "effort",
            "thinking",
            "cache",
            "quirks",
            "body",
        ];
        let first = keys.into_iter().find_map(|key| Some((key, section.place_of(key)?)));
        self.of_endpoints = self.of_endpoints.take().or(first);
        if let Some((typed, at)) = section.text("base_url") {
            match base_url(&typed) {
                Ok(url) => self.base_url = Some(url),
                Err(why) => section.tell(at.problem(format!("`provider.{name}.base_url` {why}"))),
            }
        }
        self.take_key(name, section);
        section.section("headers", |headers| {
            for (header, value, at) in headers.texts() {
                match check_header(&header, &value) {
                    Ok(()) => drop(self.headers.insert(header.to_ascii_lowercase().into(), value)),
                    Err(why) => headers.tell(at.problem(format!("`provider.{name}.headers.{header}` {why}"))),
                }
            }
        });
        if let Some((path, at)) = section.text("ca_file") {
            self.ca_file = absolute(&path, section, &at, &format!("`provider.{name}.ca_file`")).or(self.ca_file.take());
        }
        for (index, key) in ["connect", "first_byte", "idle", "answer"].into_iter().enumerate() {
            let key = match key {
                "connect" => "connect_timeout_seconds",
                "first_byte" => "first_byte_timeout_seconds",
                "idle" => "idle_timeout_seconds",
                _ => "answer_timeout_seconds",
            };
            set(&mut self.timeouts[index], section.seconds(key));
        }
        self.context_tokens = section.count("context_tokens", LEAST_CONTEXT..=MOST_TOKENS).or(self.context_tokens);
        self.max_output_tokens = section.count("max_output_tokens", 1..=MOST_TOKENS).or(self.max_output_tokens);
        self.temperature = section.number("temperature", 0.0..=2.0).or(self.temperature);
        set(&mut self.effort, section.text("effort").map(|(effort, _)| effort));
        let allowed = "\"adaptive\", or a number of tokens from 1024 on";
        self.thinking = match section.number_or_text("thinking") {
            Some((Number::Text(text), _)) if text == "adaptive" => Some(Thinking::Adaptive),
            Some((Number::Whole(tokens), _)) if (1024..=u64::from(MOST_TOKENS)).contains(&tokens) => {
                u32::try_from(tokens).ok().map(Thinking::Budget)
            }
            Some((_, at)) => {
                section.tell(at.problem(format!("`provider.{name}.thinking` must be {allowed}")));
                None
            }
            None => self.thinking,
        };
        self.cache = section.flag("cache").or(self.cache);
        if let Some(names) = section.list_of_texts("quirks") {
            let mut quirks = Quirks::default();
            for (quirk, at) in names {
                if !quirks.set(&quirk) {
                    let known = Quirks::NAMES.iter().copied();
                    let hint = super::toml_reader::hint(&quirk, known);
                    section
                        .tell(at.problem(format!("`provider.{name}.quirks` has an unknown quirk: {quirk:?}; {hint}")));
                }
            }
            self.quirks = Some(quirks);
        }
        for (field, value, at) in section.values("body").into_iter().flatten() {
            self.body.insert(field, (value, at));
        }
    }

    fn take_key(&mut self, name: &str, section: &mut Section<'_>) {
        if let Some((variable, at)) = section.text("api_key_env") {
            if variable.contains(['=', '\0']) {
                section.tell(at.problem(format!("`provider.{name}.api_key_env` must be the name of a variable")));
            }
            self.keys.insert("api_key_env", (KeySource::Environment(variable), at));
        }
        if let Some((path, at)) = section.text("api_key_file")
            && let Some(path) = absolute(&path, section, &at, &format!("`provider.{name}.api_key_file`"))
        {
            self.keys.insert("api_key_file", (KeySource::File(path), at));
        }
        if let Some((credential, at)) = section.text("credential") {
            if credential.contains('/') || credential.starts_with('.') {
                let what = "must be the name of a systemd credential, not a path";
                section.tell(at.problem(format!("`provider.{name}.credential` {what}")));
            }
            self.keys.insert("credential", (KeySource::Credential(credential), at));
        }
    }

    /// The provider that results from all files; `None` if they describe none.
    pub(super) fn finish(self, name: &str, dialects: Dialects, problems: &mut Vec<Problem>) -> Option<Provider> {
        let place = self.place.clone();
        let mut wrong = |place: &Option<Place>, what: String| {
            problems.extend(place.as_ref().map(|place| place.problem(what)));
        };
        let Some(dialect) = self.dialect else {
            wrong(&place, format!("`provider.{name}` needs a `dialect`"));
            return None;
        };
        let width = self.width.unwrap_or(Provider::WIDTH);
        let price = self.price.and_then(|(sketch, at)| match (sketch.input, sketch.output) {
            (Some(input), Some(output)) => Some(Price {
                input,
                output,
                cached: sketch.cached.unwrap_or(input),
                cache_write: sketch.cache_write.unwrap_or(input),
            }),
            _ => {
                wrong(
                    &Some(at),
                    format!("`provider.{name}.price` needs `input` and `output`, in USD per million tokens"),
                );
                None
            }
        });
        let fallbacks = self.fallbacks.into_iter().map(|(fallback, _)| fallback).collect();
        let context_tokens = self.context_tokens;
        let mut provider =
            Provider { dialect, width, model: self.model, price, context_tokens, fallbacks, endpoint: None };
        if provider.is_scripted() {
            if let Some((key, at)) = self.of_endpoints {
                wrong(&Some(at), format!("`provider.{name}.{key}` is not allowed here: {OF_ENDPOINTS}"));
            }
            return Some(provider);
        }
        if self.keys.len() > 1 {
            let keys: Vec<_> = self.keys.keys().map(|key| format!("`{key}`")).collect();
            let at = self.keys.values().next_back().map(|(_, at)| at.clone());
            wrong(&at, format!("`provider.{name}` has {}; name one place for the key", keys.join(" and ")));
        }
        let those = |takes: fn(&DialectRules) -> bool| names(dialects.iter().copied().filter(|of| takes(of)), " and ");
        if self.thinking.is_some() && !dialect.takes_thinking {
            let takers = those(|dialect| dialect.takes_thinking);
            wrong(&place, format!("`provider.{name}.thinking` is for the dialect {takers}; others take `effort`"));
        }
        if self.quirks.is_some_and(|quirks| quirks != Quirks::default()) && !dialect.takes_quirks {
            let takers = those(|dialect| dialect.takes_quirks);
            wrong(&place, format!("`provider.{name}.quirks` are for the dialect {takers}"));
        }
        for (field, (_, at)) in &self.body {
            if dialect.own_fields.contains(&field.as_str()) {
                let what = format!("`provider.{name}.body.{field}` is a field that the harness sets itself");
                wrong(&Some(at.clone()), what);
            }
        }
        let defaults = Endpoint::new(self.base_url.unwrap_or_else(|| dialect.home.into()));
        let [connect, first_byte, idle, answer] = self.timeouts;
        provider.endpoint = Some(Arc::new(Endpoint {
            key: self.keys.into_values().next().map(|(source, _)| source),
            headers: self.headers.into_iter().collect(),
            ca_file: self.ca_file,
            connect_timeout: connect.unwrap_or(defaults.connect_timeout),
            first_byte_timeout: first_byte.unwrap_or(defaults.first_byte_timeout),
            idle_timeout: idle.unwrap_or(defaults.idle_timeout),
            answer_timeout: answer.unwrap_or(defaults.answer_timeout),
            max_output_tokens: self.max_output_tokens,
            temperature: self.temperature,
            effort: self.effort,
            thinking: self.thinking,
            cache: self.cache.unwrap_or(defaults.cache),
            quirks: self.quirks.unwrap_or_default(),
            body: self.body.into_iter().map(|(field, (value, _))| (field, value)).collect(),
            base_url: defaults.base_url,
        }));
        Some(provider)
    }
}

fn names(dialects: impl Iterator<Item = &'static DialectRules>, between: &str) -> String {
    dialects.map(|dialect| format!("`{}`", dialect.name)).collect::<Vec<_>>().join(between)
}

fn set<T>(to: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *to = value;
    }
}

/// Requires an absolute path: the daemon has no working directory to which a relative path could belong.
fn absolute(path: &str, section: &mut Section<'_>, at: &Place, key: &str) -> Option<PathBuf> {
    let path = PathBuf::from(path);
    if path.is_absolute() {
        return Some(path);
    }
    section.tell(at.problem(format!("{key} must be an absolute path, not {:?}", path.display().to_string())));
    None
}

fn base_url(typed: &str) -> Result<Arc<str>, String> {
    let url = url::Url::parse(typed).map_err(|error| format!("is not a URL ({error}): {typed:?}"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(format!("must begin with http:// or https:// and a host, not {typed:?}"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("holds a password; a key belongs in api_key_env, api_key_file or credential".to_owned());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(format!("must have no query and no fragment: {typed:?}"));
    }
    Ok(typed.trim_end_matches('/').into())
}

fn check_header(name: &str, value: &str) -> Result<(), &'static str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(fits) {
        return Err("is not the name of a header");
    }
    if ["host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding"]
        .iter()
        .any(|own| name.eq_ignore_ascii_case(own))
    {
        return Err("is a header that the harness sets itself");
    }
    if !value.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
        return Err("must be a text of ASCII letters, digits and signs");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::super::Config;
    use super::*;
    use crate::inference::dialects::HttpDialect;
    use serde_json::json;

    fn load(text: &str) -> Result<Config, String> {
        Config::load(&[("x.toml".into(), text.to_owned())], HttpDialect::CONFIGURED).map_err(|error| error.to_string())
    }

    /// The problem that is reported for a provider with these keys.
    fn wrong(keys: &str) -> String {
        load(&format!("[provider.p]\n{keys}\n")).expect_err(keys)
    }

    #[test]
    fn every_key_of_a_provider_finds_its_place() {
        let config = load(
            r#"
            [provider.p]
            dialect = "openai"
            base_url = "http://127.0.0.1:8080/v1/"
            model = "m"
            api_key_env = "P_KEY"
            width = 4
            price = { input = 0.15, output = 0.60, cached = 0.05, cache_write = 0.2 }
            ca_file = "/etc/ca.pem"
            connect_timeout_seconds = 1
            first_byte_timeout_seconds = 2
            idle_timeout_seconds = 3.5
            answer_timeout_seconds = 4
            context_tokens = 8192
            max_output_tokens = 100
            temperature = 0.5
            effort = "low"
            cache = false
            quirks = ["short-call-ids"]
            fallback = "other"
            body = { top_k = 40, min_p = 0.05, chat_template_kwargs = { enable_thinking = false }, stop = ["a", "b"] }
            [provider.p.headers]
            X-Team = "a"
            [provider.other]
            dialect = "anthropic"
            credential = "anthropic-key"
            thinking = 2048
            price = { input = 3, output = 15 }
            "#,
        )
        .unwrap();
        let provider = &config.providers["p"];
        assert_eq!((provider.dialect.name, provider.width, provider.model.as_deref()), ("openai", 4, Some("m")));
        assert_eq!(provider.price, Some(Price { input: 0.15, output: 0.6, cached: 0.05, cache_write: 0.2 }));
        assert_eq!((provider.fallbacks.as_slice(), provider.context_tokens), (&["other".into()][..], Some(8192)));
        let expected = Endpoint {
            key: Some(KeySource::Environment("P_KEY".into())),
            headers: vec![("x-team".into(), "a".into())],
            ca_file: Some("/etc/ca.pem".into()),
            connect_timeout: Span::from_secs(1),
            first_byte_timeout: Span::from_secs(2),
            idle_timeout: Span::from_micros(3_500_000),
            answer_timeout: Span::from_secs(4),
            max_output_tokens: Some(100),
            temperature: Some(0.5),
            effort: Some("low".into()),
            thinking: None,
            cache: false,
            quirks: Quirks { short_call_ids: true, ..Quirks::default() },
            body: json!({"top_k": 40, "min_p": 0.05, "chat_template_kwargs": {"enable_thinking": false},
                "stop": ["a", "b"]})
            .as_object()
            .cloned()
            .unwrap(),
            ..Endpoint::new("http://127.0.0.1:8080/v1")
        };
        assert_eq!(provider.endpoint.as_deref(), Some(&expected));
        let other = &config.providers["other"];
        assert_eq!(other.price, Some(Price { input: 3.0, output: 15.0, cached: 3.0, cache_write: 3.0 }));
        let endpoint = other.endpoint.as_deref().unwrap();
        assert_eq!(&*endpoint.base_url, "https://api.anthropic.com/v1");
        assert_eq!(endpoint.key, Some(KeySource::Credential("anthropic-key".into())));
        assert_eq!(endpoint.thinking, Some(Thinking::Budget(2048)));
    }

    #[test]
    fn keys_that_do_not_go_together_are_told() {
        for (keys, told) in [
            (
                "dialect = \"scripted\"\nbase_url = \"http://x\"",
                "`provider.p.base_url` is not allowed here: a scripted",
            ),
            ("dialect = \"scripted\"\nquirks = []", "`provider.p.quirks` is not allowed here"),
            (
                "dialect = \"openai\"\napi_key_env = \"A\"\napi_key_file = \"/k\"",
                "x.toml:4: `provider.p` has `api_key_env` and `api_key_file`; name one place for the key",
            ),
            ("dialect = \"openai\"\napi_key_file = \"k\"", "must be an absolute path"),
            ("dialect = \"openai\"\ncredential = \"../k\"", "must be the name of a systemd credential"),
            ("dialect = \"openai\"\nprice = { input = 1 }", "needs `input` and `output`"),
            ("dialect = \"openai\"\nprice = { input = -1, output = 1 }", "must be a number from 0 to"),
            ("dialect = \"openai\"\nthinking = 2048", "is for the dialect `anthropic`"),
            ("dialect = \"anthropic\"\nthinking = 10", "must be \"adaptive\", or a number of tokens"),
            ("dialect = \"anthropic\"\nquirks = [\"short-call-ids\"]", "are for the dialect `openai`"),
            ("dialect = \"openai\"\nquirks = [\"short-call-id\"]", "did you mean `short-call-ids`?"),
            ("dialect = \"openai\"\nbase_url = \"ftp://x\"", "must begin with http:// or https://"),
            ("dialect = \"openai\"\nbase_url = \"localhost\"", "is not a URL"),
            ("dialect = \"openai\"\nbase_url = \"http://a:b@x\"", "holds a password"),
            ("dialect = \"openai\"\nbase_url = \"http://x/v1?a\"", "must have no query"),
            ("dialect = \"openai\"\nheaders = { Host = \"x\" }", "is a header that the harness sets itself"),
            ("dialect = \"openai\"\nheaders = { a = \"x\\ny\" }", "must be a text of ASCII"),
            ("dialect = \"openai\"\nfallback = \"p\"", "is the provider itself"),
            (
                "dialect = \"openai\"\nbody = { model = \"x\" }",
                "`provider.p.body.model` is a field that the harness sets",
            ),
            ("dialect = \"openai\"\nbody = { at = 2026-11-30 }", "`provider.p.body.at` must be a value that JSON has"),
            ("dialect = \"openai\"\nbody = { p = nan }", "`provider.p.body.p` must be a value that JSON has"),
            ("dialect = \"openai\"\nbody = 3", "must be a table"),
            ("dialect = \"scripted\"\nbody = { a = 3 }", "uses no network"),
            ("dialect = \"openai\"\nfallback = \"q\"", "names no provider"),
            ("dialect = \"openai\"\nfallback = \"scripted\"", "a scripted provider is no fallback"),
            ("dialect = \"openai\"\nidle_timeout_seconds = 0", "must be a number of seconds"),
            ("dialect = \"openai\"\nbase_uri = \"http://x\"", "did you mean `base_url`?"),
        ] {
            let error = wrong(keys);
            assert!(error.contains(told), "{keys}: {error}");
        }
        // The value of a header may be a secret.
        assert!(!wrong("dialect = \"openai\"\nheaders = { a = \"s3cret\\n\" }").contains("s3cret"));
        assert!(wrong("dialect = \"openai\"\nfallback = 7").contains("must be a text"));
        assert!(wrong("dialect = \"openai\"\nfallback = [7]").contains("an array of texts"));
    }

    /// C4: a provider may have any fallbacks, whatever fallbacks those have.
    #[test]
    fn fallbacks_are_one_name_or_a_list_and_may_have_fallbacks_of_their_own() {
        let others = "[provider.q]\ndialect = \"anthropic\"\nfallback = \"p\"\n\
                      [provider.r]\ndialect = \"responses\"\nfallback = [\"q\", \"p\"]";
        let of = |typed: &str| {
            let text = format!("[provider.p]\ndialect = \"openai\"\nfallback = {typed}\n{others}\n");
            load(&text).map(|config| config.providers["p"].fallbacks.iter().map(|n| n.to_string()).collect::<Vec<_>>())
        };
        for (typed, names) in [("\"q\"", &["q"][..]), ("[\"q\"]", &["q"]), ("[\"r\", \"q\"]", &["r", "q"]), ("[]", &[])]
        {
            assert_eq!(of(typed).unwrap(), names, "{typed}");
        }
        for (typed, told) in [
            ("[\"q\", \"p\"]", "is the provider itself"),
            ("[\"q\", \"q\"]", "names \"q\" twice"),
            ("[\"q\", \"s\"]", "names no provider: \"s\""),
            ("[\"q\", \"scripted\"]", "a scripted provider is no fallback"),
            ("[\"\"]", "names no provider: \"\""),
        ] {
            assert!(of(typed).unwrap_err().contains(told), "{typed}");
        }
    }
}
