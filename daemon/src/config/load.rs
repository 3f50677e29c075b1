//! Turns the texts of the configuration files into a [`Config`]. The files apply in order: if two set the same key, the
//! later one counts.
//!
//! The only place that says which keys the files may have, except those of a provider (`provider_builder`); `settings`
//! has the allowed ranges. Must not read a file: it gets the texts, so that a reload checks exactly what it has read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use harness_protocol::limit::CallLimit;
use harness_protocol::time::Span;
use harness_protocol::variable::check_name;

use super::provider_builder::Sketch;
use super::settings::allowed::{self, MOST_PASSED};
use super::toml_reader::{Place, Section, Source, hint};
use super::{Config, ConfigError, Dialects, Origins, Problem, Share};

/// The configuration as far as the files were read.
struct Draft {
    dialects: Dialects,
    config: Config,
    providers: BTreeMap<Arc<str>, Sketch>,
    run_provider: Option<Place>,
    /// The variables that are passed, and where each was named.
    passed: Vec<(String, Place)>,
    origins: Origins,
}

impl Config {
    /// Reads the texts of `files`, in order. If several files have the same key, the last one counts. Providers may
    /// speak `dialects`.
    ///
    /// # Errors
    /// All problems, with file, line, and the allowed values.
    pub fn load(files: &[(PathBuf, String)], dialects: Dialects) -> Result<Self, ConfigError> {
        Self::load_with_origins(files, dialects).map(|(config, _)| config)
    }

    /// The same, with the places of the keys whose values can fail later.
    pub(super) fn load_with_origins(
        files: &[(PathBuf, String)],
        dialects: Dialects,
    ) -> Result<(Self, Origins), ConfigError> {
        let mut draft = Draft::new(dialects);
        let mut problems = Vec::new();
        for (file, text) in files {
            let mut found = Source::new(file, text).read(|root| draft.take(root));
            found.sort_by_key(|problem| problem.line);
            problems.append(&mut found);
        }
        let origins = std::mem::take(&mut draft.origins);
        let config = draft.finish(&mut problems);
        if problems.is_empty() { Ok((config, origins)) } else { Err(ConfigError { problems }) }
    }
}

impl Draft {
    fn new(dialects: Dialects) -> Self {
        let config = Config::default();
        let providers = config.providers.iter().map(|(name, provider)| (name.clone(), Sketch::of(provider))).collect();
        Self { dialects, config, providers, run_provider: None, passed: Vec::new(), origins: Origins::default() }
    }

    fn take(&mut self, root: &mut Section<'_>) {
        root.section("lane", |lane| {
            lane.section("tool", |tool| set(&mut self.config.tool_width, tool.count("width", allowed::WIDTH)));
        });
        root.named("provider", |name, place, section| self.provider(name, place, section));
        root.named("share", |name, _, section| {
            let share = self.config.shares.entry(name.into()).or_insert(Share { weight: 1, max: None });
            set(&mut share.weight, section.count("weight", allowed::SHARE_WEIGHT));
            share.max = section.count("max", allowed::SHARE_MAX).or(share.max);
        });
        root.section("run", |run| self.run(run));
        root.section("tool", |tool| {
            tool.section("shell", |shell| {
                let to = &mut self.config.shell;
                set(&mut to.timeout, shell.seconds("timeout_seconds"));
                set(&mut to.envelope_bytes, shell.count("envelope_bytes", allowed::ENVELOPE_BYTES));
                set(&mut to.output_bytes, shell.whole("output_bytes", allowed::OUTPUT_BYTES));
                if let Some(names) = shell.list_of_texts("pass") {
                    if let Some((_, place)) = names.get(MOST_PASSED) {
                        shell.tell(place.problem(format!("`tool.shell.pass` has more than {MOST_PASSED} names")));
                    }
                    self.passed = names.clone();
                    to.pass = names.into_iter().map(|(name, _)| name.into()).collect();
                }
                shell.section("limits", |limits| {
                    let to = &mut to.limits;
                    for limit in CallLimit::ALL {
                        let place = limit.of_mut(to);
                        *place = limits.whole(limit.name(), limit.bounds()).or(*place);
                    }
                });
            });
        });
        root.section("limits", |limits| self.limits(limits));
        root.section("retention", |retention| self.retention(retention));
        root.section("journal", |journal| set(&mut self.config.journal.sync_calls, journal.flag("sync_calls")));
        root.section("control", |control| {
            if let Some((group, place)) = control.text("group") {
                self.origins.note("control.group", &place);
                self.config.control.group = Some(group.to_string());
            }
        });
    }

    fn provider(&mut self, name: &str, place: &Place, section: &mut Section<'_>) {
        if name == "tool" {
            section.give_up(place.problem("a provider cannot be called `tool`: that is the tool lane".to_owned()));
            return;
        }
        self.origins.note(format!("provider.{name}"), place);
        if let Some(place) = section.place_of("ca_file") {
            self.origins.note(format!("provider.{name}.ca_file"), &place);
        }
        self.providers.entry(name.into()).or_default().take(name, place, section, self.dialects);
    }

    fn run(&mut self, run: &mut Section<'_>) {
        if let Some((provider, place)) = run.text("provider") {
            self.config.run.provider = provider;
            self.run_provider = Some(place);
        }
        if let Some((model, _)) = run.text("model") {
            self.config.run.model = Some(model);
        }
        set(&mut self.config.run.max_steps, run.count("max_steps", allowed::MAX_STEPS));
    }

    fn limits(&mut self, limits: &mut Section<'_>) {
        let to = &mut self.config.limits;
        set(&mut to.live_runs, limits.count("live_runs", allowed::LIVE_RUNS));
        set(&mut to.finished_runs, limits.count("finished_runs", allowed::FINISHED_RUNS));
        set(&mut to.children, limits.count("children", allowed::CHILDREN));
        set(&mut to.depth, limits.count("depth", allowed::DEPTH));
        set(&mut to.calls_per_step, limits.count("calls_per_step", allowed::CALLS_PER_STEP));
        set(&mut to.text_bytes, limits.count("text_bytes", allowed::TEXT_BYTES));
        set(&mut to.inbox, limits.count("inbox", allowed::INBOX));
        set(&mut to.connections, limits.count("connections", allowed::CONNECTIONS));
        set(&mut to.requests_per_connection, limits.count("requests_per_connection", allowed::REQUESTS_PER_CONNECTION));
        set(
            &mut to.subscriptions_per_connection,
            limits.count("subscriptions_per_connection", allowed::SUBSCRIPTIONS_PER_CONNECTION),
        );
        set(&mut to.events, limits.count("events", allowed::EVENTS));
        if let Some(bytes) = limits.whole("memory_bytes", allowed::MEMORY_BYTES) {
            to.memory_bytes = bytes;
            to.event_bytes = to.memory_bytes / 4;
        }
    }

    fn retention(&mut self, retention: &mut Section<'_>) {
        let to = &mut self.config.retention;
        to.age = retention
            .count("age_days", allowed::RETENTION_AGE_DAYS)
            .map(|days| Span::from_secs(u64::from(days) * 86_400))
            .or(to.age);
        to.runs = retention.count("runs", allowed::RETENTION_RUNS).or(to.runs);
        set(&mut to.events, retention.count("events", allowed::RETENTION_EVENTS));
        set(&mut to.every, retention.seconds("every_seconds"));
    }

    /// Checks what only all files together can tell.
    fn finish(mut self, problems: &mut Vec<Problem>) -> Config {
        self.check_fallbacks(problems);
        let names: Vec<Arc<str>> = self.providers.keys().cloned().collect();
        for (name, sketch) in self.providers {
            if let Some(provider) = sketch.finish(&name, self.dialects, problems) {
                self.config.providers.insert(name, provider);
            }
        }
        if let Some(place) = self.run_provider
            && !names.contains(&self.config.run.provider)
        {
            let name = &self.config.run.provider;
            let hint = hint(name, names.iter().map(|known| &**known));
            problems.push(place.problem(format!("`run.provider` names no provider: {name:?}; {hint}")));
        }
        check_passed(&self.config, &self.passed, problems);
        self.config
    }

    /// A fallback is another provider over HTTP, named once. It may have fallbacks of its own, which count for its own
    /// runs alone.
    fn check_fallbacks(&self, problems: &mut Vec<Problem>) {
        for (name, sketch) in &self.providers {
            for (index, (fallback, place)) in sketch.fallbacks().iter().enumerate() {
                let named_before = sketch.fallbacks()[..index].iter().any(|(other, _)| other == fallback);
                let what = match self.providers.get(fallback) {
                    _ if fallback == name => "is the provider itself".to_owned(),
                    _ if named_before => format!("names {fallback:?} twice"),
                    None => {
                        let hint = hint(fallback, self.providers.keys().map(|known| &**known));
                        format!("names no provider: {fallback:?}; {hint}")
                    }
                    Some(other) if other.is_scripted() != sketch.is_scripted() => {
                        "is not allowed: a scripted provider is no fallback of another provider, and has none itself"
                            .to_owned()
                    }
                    Some(_) => continue,
                };
                problems.push(place.problem(format!("`provider.{name}.fallback` {what}")));
            }
        }
    }
}

/// Checks the variables that are passed to tools: each has a valid name, and none has the key of a provider.
fn check_passed(config: &Config, passed: &[(String, Place)], problems: &mut Vec<Problem>) {
    let keys = config.variables_with_keys();
    for (name, place) in passed {
        let what = match check_name(name) {
            Err(error) => error.to_string(),
            Ok(()) if keys.contains(name) => format!("{name:?} holds the key of a provider, and tools must not get it"),
            Ok(()) => continue,
        };
        problems.push(place.problem(format!("`tool.shell.pass`: {what}")));
    }
}

fn set<T>(to: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *to = value;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use harness_protocol::time::Span;

    use harness_protocol::limit::CallLimits;

    use super::super::Provider;
    use super::*;
    use crate::inference::dialects::HttpDialect;

    fn load(texts: &[&str]) -> Result<Config, ConfigError> {
        let name = |index| PathBuf::from(format!("{index}.toml"));
        let files: Vec<_> = texts.iter().enumerate().map(|(index, text)| (name(index), (*text).to_owned())).collect();
        Config::load(&files, HttpDialect::CONFIGURED)
    }

    fn wrong(text: &str) -> String {
        load(&[text]).expect_err(text).to_string()
    }

    /// Variables that are passed to tools have valid names, and none holds a provider's key (entry U16).
    #[test]
    fn variables_that_are_passed_have_names_that_can_be_and_hold_no_keys() {
        let pass = |names: &str| load(&[&format!("[tool.shell]\npass = {names}\n")]);
        assert!(pass("[]").unwrap().shell.pass.is_empty());
        let names: Vec<_> = pass("['SSH_AUTH_SOCK', 'GH_TOKEN']").unwrap().shell.pass;
        assert_eq!(names, ["SSH_AUTH_SOCK".into(), "GH_TOKEN".into()]);
        for (names, told) in [
            ("['']", "cannot be the name"),
            ("['A B']", "cannot be the name"),
            ("['A=1']", "cannot be the name"),
            ("['HARNESS_SOCKET']", "those of the harness"),
            ("['HARNESS_X']", "those of the harness"),
            ("'A'", "an array of texts"),
            ("[1]", "an array of texts"),
        ] {
            let error = pass(names).unwrap_err();
            assert!(error.to_string().contains(told) && error.problems[0].line == 2, "{names}: {error}");
        }
        let many: Vec<String> = (0..=MOST_PASSED).map(|n| format!("'V{n}'")).collect();
        assert!(pass(&format!("[{}]", many.join(","))).unwrap_err().to_string().contains("more than 64"));
        let key = "[provider.a]\ndialect = 'openai'\nbase_url = 'http://x/v1'\nmodel = 'm'\napi_key_env = 'A_KEY'\n";
        let both = format!("{key}[tool.shell]\npass = ['A_KEY']\n");
        for texts in [&[both.as_str()][..], &["[tool.shell]\npass = ['A_KEY']\n", key]] {
            let error = load(texts).unwrap_err();
            assert!(error.to_string().contains("holds the key of a provider"), "{error}");
        }
    }

    #[test]
    fn nothing_typed_is_the_default() {
        assert_eq!(load(&[]), Ok(Config::default()));
        assert_eq!(load(&["", "# nothing\n[limits]\n"]), Ok(Config::default()));
    }

    /// A run without a step limit of its own gets 500 steps (entry C5).
    #[test]
    fn headless_work_has_500_steps_unless_another_limit_is_set() {
        for (typed, steps) in [
            ("", 500),
            ("[run]\n", 500),
            ("[run]\nmodel = \"m\"\n", 500),
            ("[run]\nmax_steps = 100\n", 100),
            ("[run]\nmax_steps = 1\n", 1),
            ("[run]\nmax_steps = 1000000\n", 1_000_000),
        ] {
            assert_eq!(load(&[typed]).unwrap().run.max_steps, steps, "{typed}");
        }
    }

    #[test]
    fn every_key_finds_its_place() {
        let config = load(&[r#"
            lane.tool.width = 3
            [provider.mine]
            dialect = "scripted"
            width = 0x10
            [share.batch]
            weight = 2
            max = 5
            [run]
            provider = "mine"
            model = "m"
            max_steps = 7
            [tool.shell]
            timeout_seconds = 0.5
            envelope_bytes = 2_048
            output_bytes = 0
            [tool.shell.limits]
            cpu_seconds = 12
            address_space_bytes = 0x1000_0000
            open_files = 100
            file_size_bytes = 14
            processes = 15
            [limits]
            live_runs = 1
            finished_runs = 2
            children = 3
            depth = 4
            calls_per_step = 5
            text_bytes = 6000
            inbox = 7
            connections = 8
            requests_per_connection = 9
            subscriptions_per_connection = 10
            events = 11
            memory_bytes = 40_000_000
            [control]
            group = "agents"
        "#])
        .unwrap();
        assert_eq!(config.tool_width, 3);
        assert_eq!(config.providers["mine"], Provider::scripted(16));
        assert_eq!(config.providers["scripted"], Config::default().providers["scripted"]);
        assert_eq!(config.shares["batch"], Share { weight: 2, max: Some(5) });
        assert_eq!(config.shares["default"], Share { weight: 1, max: None });
        assert_eq!((&*config.run.provider, config.run.model.as_deref(), config.run.max_steps), ("mine", Some("m"), 7));
        assert_eq!(config.shell.timeout, Span::from_micros(500_000));
        assert_eq!((config.shell.envelope_bytes, config.shell.output_bytes), (2048, 0));
        let limits = CallLimits {
            cpu_seconds: Some(12),
            address_space_bytes: Some(1 << 28),
            open_files: Some(100),
            file_size_bytes: Some(14),
            processes: Some(15),
        };
        assert_eq!(config.shell.limits, limits);
        let limits = &config.limits;
        assert_eq!([limits.live_runs, limits.finished_runs, limits.children, limits.depth], [1, 2, 3, 4]);
        assert_eq!([limits.calls_per_step, limits.text_bytes, limits.inbox, limits.connections], [5, 6000, 7, 8]);
        assert_eq!([limits.requests_per_connection, limits.subscriptions_per_connection, limits.events], [9, 10, 11]);
        assert_eq!([limits.memory_bytes, limits.event_bytes], [40_000_000, 10_000_000]);
        assert_eq!(config.control.group.as_deref(), Some("agents"));
    }

    #[test]
    fn an_unknown_key_is_told_with_its_place_and_the_nearest_known_one() {
        assert_eq!(
            wrong("[lane.tool]\n\nwidht = 3\n"),
            "0.toml:3: unknown key `widht` in [lane.tool]; did you mean `width`?"
        );
        assert_eq!(wrong("[limit]\n"), "0.toml:1: unknown key `limit`; did you mean `limits`?");
        assert_eq!(wrong("[lane.tol]\nwidth = 3\n"), "0.toml:1: unknown key `tol` in [lane]; did you mean `tool`?");
        assert_eq!(
            wrong("[share.a]\ncolour = 1\n"),
            "0.toml:2: unknown key `colour` in [share.a]; known here: `weight`, `max`"
        );
    }

    #[test]
    fn a_wrong_value_is_told_with_its_key_and_the_allowed_values() {
        let width = "`lane.tool.width` must be a whole number from 1 to 100000";
        for (typed, told) in [
            ("0", "0"),
            ("-3", "-3"),
            ("1.5", "1.5"),
            ("\"eight\"", "\"eight\""),
            ("[8]", "an array"),
            ("true", "true"),
        ] {
            assert_eq!(wrong(&format!("lane.tool.width = {typed}")), format!("0.toml:1: {width}, not {told}"));
        }
        assert_eq!(
            wrong("[tool.shell]\ntimeout_seconds = nan"),
            "0.toml:2: `tool.shell.timeout_seconds` must be a number of seconds, more than 0 and at most a year, not \
             nan"
        );
        assert_eq!(wrong("[run]\nmodel = \"\""), "0.toml:2: `run.model` must be a text that is not empty, not \"\"");
        assert_eq!(wrong("lane = 3"), "0.toml:1: `lane` must be a table, [lane], not 3");
        assert!(wrong("[share.\"a b\"]").starts_with("0.toml:1: `share.a b`: a name has"));
    }

    #[test]
    fn all_that_is_wrong_is_told_at_once_in_the_order_of_the_file() {
        assert_eq!(wrong("[run]\nmax_step = 1\n[lane.tool]\nwidth = 0\n[nonsense]\n").lines().count(), 3);
        assert_eq!(
            wrong("a = 1\nb = 2\n").lines().map(|line| line.get(..9).unwrap()).collect::<Vec<_>>(),
            ["0.toml:1:", "0.toml:2:"]
        );
    }

    #[test]
    fn a_toml_error_is_told_with_its_line() {
        assert!(wrong("[run]\nmax_steps =\n").starts_with("0.toml:2: not TOML: "));
        assert!(wrong("[run]\n[run]\n").starts_with("0.toml:2: not TOML: "));
    }

    #[test]
    fn a_dialect_that_is_not_spoken_is_told_and_its_keys_are_left_alone() {
        assert_eq!(
            wrong("[provider.local]\nbase_uri = \"http://x\"\ndialect = \"gopher\"\n"),
            "0.toml:3: `provider.local.dialect` is \"gopher\"; this version speaks `scripted`, `openai`, `responses`, \
             `anthropic`"
        );
    }

    #[test]
    fn a_provider_needs_a_dialect_once_all_files_are_read() {
        assert_eq!(wrong("[provider.x]\nwidth = 2\n"), "0.toml:1: `provider.x` needs a `dialect`");
        let config = load(&["[provider.x]\nwidth = 2\n", "[provider.x]\ndialect = \"scripted\"\n"]).unwrap();
        assert_eq!(config.providers["x"].width, 2);
        assert_eq!(load(&["[provider.scripted]\nwidth = 2\n"]).unwrap().providers["scripted"].width, 2);
    }

    #[test]
    fn the_default_provider_must_exist() {
        assert_eq!(
            wrong("[run]\nprovider = \"scriptde\"\n"),
            "0.toml:2: `run.provider` names no provider: \"scriptde\"; did you mean `scripted`?"
        );
        assert!(wrong("[provider.tool]\ndialect = \"scripted\"\n").contains("that is the tool lane"));
    }

    #[test]
    fn a_later_file_wins_key_by_key() {
        let config = load(&["[share.a]\nweight = 2\nmax = 3\n", "[share.a]\nweight = 9\n"]).unwrap();
        assert_eq!(config.shares["a"], Share { weight: 9, max: Some(3) });
        let error = load(&["lane.tool.width = 2", "\nlane.tool.width = 0"]).unwrap_err().to_string();
        assert!(error.starts_with("1.toml:2: "), "{error}");
    }
}
