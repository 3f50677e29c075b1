//! Compiles the patterns of scripts within bounds, once each, and caches them.
//!
//! The only place with the bounds of one pattern. Compiling and matching take CPU time and never wait. Callers must run
//! them off the runtime's workers, so that no other task is delayed.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use regex_automata::meta::{Cache, Config, Regex};
use regex_automata::util::syntax;
use regex_automata::{Input, Span};

/// Bytes of one pattern. Compiling takes up to 70 µs for each, whatever they are.
pub const MOST_BYTES: usize = 2 * 1024;
/// Bytes of one compiled program: about nine times `\w`, which has all letters of Unicode.
const PROGRAM_BYTES: usize = 512 * 1024;
/// Groups and repetitions within each other.
const MOST_NESTED: u32 = 64;
/// Bytes that a search keeps of what it has found out about its program.
const SEARCH_BYTES: usize = 256 * 1024;
/// Bytes of all compiled programs that are kept. Those that were not used for longest go.
const KEPT_BYTES: usize = 32 * 1024 * 1024;

/// Why a text is no pattern that is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It cannot be read as one.
    #[error("{0}")]
    Syntax(String),
    /// It is longer than is taken.
    #[error("it has {0} bytes; at most {MOST_BYTES} are taken")]
    TooLong(usize),
    /// Its program is larger than is taken.
    #[error("compiled it takes more than {} KiB", PROGRAM_BYTES / 1024)]
    TooLarge,
}

/// A compiled pattern.
#[derive(Debug)]
pub struct Pattern {
    program: Regex,
}

impl Pattern {
    fn compile(text: &str) -> Result<Self, PatternError> {
        if text.len() > MOST_BYTES {
            return Err(PatternError::TooLong(text.len()));
        }
        let config = Config::new()
            .nfa_size_limit(Some(PROGRAM_BYTES))
            .onepass(false)
            .dfa(false)
            .hybrid_cache_capacity(SEARCH_BYTES);
        let syntax = syntax::Config::new().multi_line(true).nest_limit(MOST_NESTED);
        let program = Regex::builder().configure(config).syntax(syntax).build(text).map_err(|error| {
            match error.syntax_error() {
                // The last line says what is wrong; those before it draw the place.
                Some(error) => {
                    let why = error.to_string();
                    let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ");
                    PatternError::Syntax(why.to_owned())
                }
                None if error.size_limit().is_some() => PatternError::TooLarge,
                None => PatternError::Syntax(error.to_string()),
            }
        })?;
        Ok(Self { program })
    }

    /// Bytes of its program.
    pub fn bytes(&self) -> usize {
        self.program.memory_usage()
    }

    /// What searches of it need for themselves. It goes with the searches, so that what is kept is the program alone.
    pub fn scratch(&self) -> Cache {
        self.program.create_cache()
    }

    /// Whether it matches somewhere.
    pub fn is_found(&self, scratch: &mut Cache, text: &str) -> bool {
        self.program.search_half_with(scratch, &Input::new(text).earliest(true)).is_some()
    }

    /// The first group that took part in the first match, or all of the match where none did.
    pub fn capture<'t>(&self, scratch: &mut Cache, text: &'t str) -> Option<&'t str> {
        let mut groups = self.program.create_captures();
        self.program.search_captures_with(scratch, &Input::new(text), &mut groups);
        let whole = groups.get_group(0)?;
        let Span { start, end } = (1..groups.group_len()).find_map(|group| groups.get_group(group)).unwrap_or(whole);
        text.get(start..end)
    }
}

/// The patterns that were used last.
#[derive(Debug, Default)]
pub struct Patterns {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    by_text: HashMap<Arc<str>, (Arc<Pattern>, u64)>,
    /// In the order of their last uses.
    by_use: BTreeMap<u64, Arc<str>>,
    bytes: usize,
    uses: u64,
    compiled: u64,
}

impl Patterns {
    /// The pattern of a text.
    ///
    /// # Errors
    /// Where it cannot be read, or is larger than is taken.
    pub fn get(&self, text: &str) -> Result<Arc<Pattern>, PatternError> {
        if let Some(pattern) = self.kept().used(text) {
            return Ok(pattern);
        }
        // Compiled without the lock. If two threads compile the same pattern, one of the results is kept.
        let pattern = Arc::new(Pattern::compile(text)?);
        self.kept().keep(text, &pattern);
        Ok(pattern)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often something was compiled.
    #[cfg(test)]
    pub fn compiled(&self) -> u64 {
        self.kept().compiled
    }
}

impl Kept {
    fn used(&mut self, text: &str) -> Option<Arc<Pattern>> {
        self.uses += 1;
        let (pattern, used) = self.by_text.get_mut(text)?;
        if let Some(name) = self.by_use.remove(used) {
            self.by_use.insert(self.uses, name);
        }
        *used = self.uses;
        Some(Arc::clone(pattern))
    }

    fn keep(&mut self, text: &str, pattern: &Arc<Pattern>) {
        self.compiled += 1;
        if self.by_text.contains_key(text) {
            return;
        }
        self.uses += 1;
        let name: Arc<str> = text.into();
        self.bytes += pattern.bytes() + 2 * text.len();
        self.by_use.insert(self.uses, Arc::clone(&name));
        self.by_text.insert(name, (Arc::clone(pattern), self.uses));
        while self.bytes > KEPT_BYTES
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            if let Some((pattern, _)) = self.by_text.remove(&oldest) {
                self.bytes = self.bytes.saturating_sub(pattern.bytes() + 2 * oldest.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A pattern that would take too much memory or time is refused before it is compiled (entry B4).
    #[test]
    fn a_pattern_that_would_take_much_is_refused_before_it_does() {
        let patterns = Patterns::default();
        let nested = format!("{}a{}", "(".repeat(100), ")".repeat(100));
        for (text, large) in [
            (r"\w{20}", true),
            (r"((a{50}){50}){50}", true),
            (r"(?:\p{Greek}|\p{Cyrillic}){500}", true),
            (r"(?i)\pL\pL\pL\pL\pL\pL\pL\pL\pL\pL\pL\pL\pL\pL", true),
            (r"(.{300}){30}", true),
            (&nested, false),
            (&format!("(?i)[{}]", r"\pL".repeat(1000)), true),
            (&"a|".repeat(1025), true),
        ] {
            let error = patterns.get(text).unwrap_err();
            assert_eq!(!matches!(error, PatternError::Syntax(_)), large, "{text}: {error}");
        }
        for text in [r"(\w+) (\w+) (\w+) (\w+)", r"\d{4}-\d\d-\d\d", "[a-z]{1000}", r"(?i)[\w\pL]+", "a|b", ""] {
            patterns.get(text).unwrap();
        }
    }

    /// A pattern is compiled once, and the size of the cache is bounded (entry B4).
    #[test]
    fn a_pattern_is_compiled_once_and_what_is_kept_is_bounded() {
        let patterns = Patterns::default();
        for _ in 0..3 {
            patterns.get(r"(\w+)").unwrap();
        }
        assert_eq!(patterns.compiled(), 1);
        for n in 0..300 {
            patterns.get(&format!(r"\w\w\w{n}")).unwrap();
            patterns.get(r"(\w+)").unwrap();
        }
        assert_eq!(patterns.compiled(), 301, "the one that is used again and again stays");
        let kept = patterns.kept();
        assert!(kept.bytes <= KEPT_BYTES && kept.by_text.len() < 300 && kept.by_text.len() == kept.by_use.len());
        let bytes: usize = kept.by_text.iter().map(|(text, (pattern, _))| pattern.bytes() + 2 * text.len()).sum();
        assert_eq!(kept.bytes, bytes);
    }

    #[test]
    fn a_capture_is_the_first_group_that_took_part() {
        let of = |pattern: &str, text: &'static str| {
            let pattern = Pattern::compile(pattern).unwrap();
            pattern.capture(&mut pattern.scratch(), text)
        };
        assert_eq!(of("(x)|(n)", "n"), Some("n"));
        assert_eq!(of("a(b)?", "a"), Some("a"));
        assert_eq!(of("^b(.)$", "a\nbc\nd"), Some("c"));
        assert_eq!(of("z", "a"), None);
    }
}
