//! Reads the tables of one TOML file, and keeps the place of each value for error messages.
//!
//! A key counts as known when the code asks for it; every other key is reported as unknown. It must not know a default:
//! a missing key gives `None`.

use std::cell::RefCell;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::sync::Arc;

use harness_protocol::time::Span;
use serde_json::{Number as Number64, Value};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::Problem;

/// Longest time that can be configured, in seconds: a year.
const LONGEST_SECONDS: f64 = 366.0 * 24.0 * 3600.0;

/// A file, with the problems found so far.
pub(super) struct Source<'a> {
    file: &'a Path,
    text: &'a str,
    problems: RefCell<Vec<Problem>>,
}

/// A place in a file.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) file: Arc<Path>,
    pub(super) line: usize,
}

impl Place {
    pub(super) fn problem(&self, what: String) -> Problem {
        Problem { file: self.file.to_path_buf(), line: self.line, what }
    }
}

impl<'a> Source<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str) -> Self {
        Self { file, text, problems: RefCell::default() }
    }

    /// Reads the whole file through `ask`.
    pub(super) fn read(self, ask: impl FnOnce(&mut Section<'_>)) -> Vec<Problem> {
        match DeTable::parse(self.text) {
            Ok(table) => {
                let mut root = Section::new(&self, String::new(), table.get_ref());
                ask(&mut root);
                root.finish();
            }
            Err(error) => {
                let at = error.span().unwrap_or(0..0);
                self.problem(&at, format!("not TOML: {}", error.message().trim_end()));
            }
        }
        self.problems.into_inner()
    }

    fn place(&self, at: &Range<usize>) -> Place {
        let before = self.text.as_bytes().iter().take(at.start);
        Place { file: self.file.into(), line: 1 + before.filter(|&&byte| byte == b'\n').count() }
    }

    fn problem(&self, at: &Range<usize>, what: String) {
        self.problems.borrow_mut().push(self.place(at).problem(what));
    }
}

/// A table whose keys are looked up one by one. A key that was never looked up is unknown.
pub(super) struct Section<'s> {
    source: &'s Source<'s>,
    name: String,
    table: &'s DeTable<'s>,
    asked: Vec<&'static str>,
    given_up: bool,
}

type Typed<'s> = &'s Spanned<DeValue<'s>>;

/// A value that may be a number or a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Number {
    Whole(u64),
    Text(String),
    Other,
}

impl<'s> Section<'s> {
    fn new(source: &'s Source<'s>, name: String, table: &'s DeTable<'s>) -> Self {
        Self { source, name, table, asked: Vec::new(), given_up: false }
    }

    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn get(&mut self, key: &'static str) -> Option<Typed<'s>> {
        self.asked.push(key);
        self.table.get(key)
    }

    fn wrong<T>(&self, key: &str, typed: Typed<'_>, allowed: &str) -> Option<T> {
        let what = format!("`{}` must be {allowed}, not {}", self.path(key), shown(typed.get_ref()));
        self.source.problem(&typed.span(), what);
        None
    }

    fn table(&self, key: &str, typed: Typed<'s>) -> Option<&'s DeTable<'s>> {
        match typed.get_ref() {
            DeValue::Table(table) => Some(table),
            _ => self.wrong(key, typed, &format!("a table, [{}]", self.path(key))),
        }
    }

    /// The table `key`, if it is there.
    pub(super) fn section(&mut self, key: &'static str, ask: impl FnOnce(&mut Section<'_>)) {
        let Some(typed) = self.get(key) else { return };
        let Some(table) = self.table(key, typed) else { return };
        let mut section = Section::new(self.source, self.path(key), table);
        ask(&mut section);
        section.finish();
    }

    /// The tables below `key`, each under a name of the user's choice.
    pub(super) fn named(&mut self, key: &'static str, mut ask: impl FnMut(&str, &Place, &mut Section<'_>)) {
        let Some(typed) = self.get(key) else { return };
        let Some(tables) = self.table(key, typed) else { return };
        let outer = Section::new(self.source, self.path(key), tables);
        for (name, typed) in tables {
            let name: &DeString<'_> = name.get_ref();
            let Some(table) = outer.table(name, typed) else { continue };
            let mut section = Section::new(self.source, outer.path(name), table);
            if let Err(why) = check_name(name) {
                self.source.problem(&typed.span(), format!("`{}`: {why}", section.name));
            }
            ask(name, &self.source.place(&typed.span()), &mut section);
            section.finish();
        }
    }

    /// A whole number within `range`.
    pub(super) fn whole(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let typed = self.get(key)?;
        let number = match typed.get_ref() {
            DeValue::Integer(digits) => u64::from_str_radix(digits.as_str(), digits.radix()).ok(),
            _ => None,
        };
        match number.filter(|number| range.contains(number)) {
            Some(number) => Some(number),
            None => self.wrong(key, typed, &format!("a whole number from {} to {}", range.start(), range.end())),
        }
    }

    /// The same, for a range whose upper end fits 32 bits.
    pub(super) fn count(&mut self, key: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        self.whole(key, range).and_then(|number| u32::try_from(number).ok())
    }

    /// A time in seconds, greater than zero.
    pub(super) fn seconds(&mut self, key: &'static str) -> Option<Span> {
        let typed = self.get(key)?;
        let number: Option<f64> = match typed.get_ref() {
            DeValue::Integer(digits) if digits.radix() == 10 => digits.as_str().parse().ok(),
            DeValue::Float(digits) => digits.as_str().parse().ok(),
            _ => None,
        };
        let span = number.filter(|&secs| secs > 0.0 && secs <= LONGEST_SECONDS).and_then(Span::from_secs_f64);
        match span.filter(|&span| span > Span::ZERO) {
            Some(span) => Some(span),
            None => self.wrong(key, typed, "a number of seconds, more than 0 and at most a year"),
        }
    }

    /// A text, not empty.
    pub(super) fn text(&mut self, key: &'static str) -> Option<(Arc<str>, Place)> {
        let typed = self.get(key)?;
        match typed.get_ref() {
            DeValue::String(text) if !text.is_empty() => {
                Some((Arc::from(text.as_ref()), self.source.place(&typed.span())))
            }
            _ => self.wrong(key, typed, "a text that is not empty"),
        }
    }

    /// A number within `range`.
    pub(super) fn number(&mut self, key: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        let typed = self.get(key)?;
        let number: Option<f64> = match typed.get_ref() {
            DeValue::Integer(digits) if digits.radix() == 10 => digits.as_str().parse().ok(),
            DeValue::Float(digits) => digits.as_str().parse().ok(),
            _ => None,
        };
        match number.filter(|number| range.contains(number)) {
            Some(number) => Some(number),
            None => self.wrong(key, typed, &format!("a number from {} to {}", range.start(), range.end())),
        }
    }

    /// A whole number or a text. The caller checks which values are valid.
    pub(super) fn number_or_text(&mut self, key: &'static str) -> Option<(Number, Place)> {
        let typed = self.get(key)?;
        let value = match typed.get_ref() {
            DeValue::Integer(digits) => {
                u64::from_str_radix(digits.as_str(), digits.radix()).map_or(Number::Other, Number::Whole)
            }
            DeValue::String(text) => Number::Text(text.to_string()),
            _ => Number::Other,
        };
        Some((value, self.source.place(&typed.span())))
    }

    /// The boolean `key`.
    pub(super) fn flag(&mut self, key: &'static str) -> Option<bool> {
        let typed = self.get(key)?;
        match typed.get_ref() {
            DeValue::Boolean(yes) => Some(*yes),
            _ => self.wrong(key, typed, "true or false"),
        }
    }

    /// An array of texts.
    pub(super) fn list_of_texts(&mut self, key: &'static str) -> Option<Vec<(String, Place)>> {
        let typed = self.get(key)?;
        let DeValue::Array(values) = typed.get_ref() else { return self.wrong(key, typed, "an array of texts") };
        let text = |value: Typed<'_>| match value.get_ref() {
            DeValue::String(text) => Some((text.to_string(), self.source.place(&value.span()))),
            _ => self.wrong(key, value, "an array of texts"),
        };
        Some(values.iter().filter_map(text).collect())
    }

    /// A text, or an array of texts.
    pub(super) fn text_or_texts(&mut self, key: &'static str) -> Option<Vec<(String, Place)>> {
        match self.get(key)?.get_ref() {
            DeValue::Array(_) => self.list_of_texts(key),
            _ => self.text(key).map(|(text, place)| vec![(text.to_string(), place)]),
        }
    }

    /// Every key of the section, which the user chose, with its text.
    pub(super) fn texts(&mut self) -> Vec<(Arc<str>, Arc<str>, Place)> {
        let mut texts = Vec::new();
        for (name, typed) in self.table {
            let name: &DeString<'_> = name.get_ref();
            match typed.get_ref() {
                DeValue::String(text) => {
                    texts.push((Arc::from(name.as_ref()), Arc::from(text.as_ref()), self.source.place(&typed.span())));
                }
                _ => drop(self.wrong::<()>(name, typed, "a text")),
            }
        }
        // Every key was looked up, so none is unknown.
        self.given_up = true;
        texts
    }

    /// A table with arbitrary values, as JSON, each with its place.
    pub(super) fn values(&mut self, key: &'static str) -> Option<Vec<(String, Value, Place)>> {
        let typed = self.get(key)?;
        let table = self.table(key, typed)?;
        let mut values = Vec::new();
        for (name, typed) in table {
            let name: &str = name.get_ref();
            match json(typed.get_ref()) {
                Some(value) => values.push((name.to_owned(), value, self.source.place(&typed.span()))),
                None => drop(self.wrong::<()>(&format!("{key}.{name}"), typed, "a value that JSON has, too")),
            }
        }
        Some(values)
    }

    /// The place of a key, if it exists. This does not count as a look-up.
    pub(super) fn place_of(&self, key: &str) -> Option<Place> {
        self.table.get(key).map(|typed| self.source.place(&typed.span()))
    }

    /// Reports a problem.
    pub(super) fn tell(&self, problem: Problem) {
        self.source.problems.borrow_mut().push(problem);
    }

    /// Leaves the rest of the section unread, because the section as a whole has this problem.
    pub(super) fn give_up(&mut self, why: Problem) {
        self.source.problems.borrow_mut().push(why);
        self.given_up = true;
    }

    /// Reports the keys that were never looked up.
    fn finish(self) {
        if self.given_up {
            return;
        }
        for (key, _) in self.table {
            let name: &str = key.get_ref();
            if self.asked.contains(&name) {
                continue;
            }
            let hint = hint(name, self.asked.iter().copied());
            let place = if self.name.is_empty() { String::new() } else { format!(" in [{}]", self.name) };
            self.source.problem(&key.span(), format!("unknown key `{name}`{place}; {hint}"));
        }
    }
}

/// A value as JSON; `None` for dates, infinities and NaN, which JSON does not have.
fn json(value: &DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix()).ok()?.into(),
        DeValue::Float(digits) => Number64::from_f64(digits.as_str().parse().ok()?)?.into(),
        DeValue::Boolean(yes) => (*yes).into(),
        DeValue::Array(values) => values.iter().map(|value| json(value.get_ref())).collect::<Option<_>>()?,
        DeValue::Table(table) => {
            let fields = table.iter().map(|(key, value)| Some((key.get_ref().to_string(), json(value.get_ref())?)));
            fields.collect::<Option<serde_json::Map<_, _>>>()?.into()
        }
        DeValue::Datetime(_) => return None,
    })
}

/// A suggestion for a user who typed `typed`: the nearest of the `known` names.
pub(super) fn hint<'k>(typed: &str, known: impl Iterator<Item = &'k str> + Clone) -> String {
    let near = known
        .clone()
        .map(|name| (strsim::damerau_levenshtein(typed, name), name))
        .filter(|&(distance, name)| distance <= 1.max(name.chars().count() / 2))
        .min();
    if let Some((_, name)) = near {
        return format!("did you mean `{name}`?");
    }
    let list: Vec<_> = known.map(|name| format!("`{name}`")).collect();
    format!("known here: {}", list.join(", "))
}

/// Checks a name of a lane, provider or share: it is used in commands, tables and metrics.
fn check_name(name: &str) -> Result<(), &'static str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.len() <= 64 && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(fits) {
        return Ok(());
    }
    Err("a name has at most 64 letters, digits, `-`, `_` and `.`, and begins with a letter or digit")
}

/// A value as error messages show it, shortened.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) if text.chars().count() > 40 => {
            format!("{:?}…", text.chars().take(40).collect::<String>())
        }
        DeValue::String(text) => format!("{:?}", text.as_ref()),
        DeValue::Integer(digits) => digits.to_string(),
        DeValue::Float(digits) => digits.to_string(),
        DeValue::Boolean(yes) => yes.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}
