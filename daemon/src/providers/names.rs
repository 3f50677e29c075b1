//! Names of tools, and turns without a text, as every provider takes them.

use std::borrow::Cow;

/// What stands for a text where a turn has none: servers refuse one without a word.
pub(super) const NO_TEXT: &str = "(no text)";
/// The longest name that every provider takes.
const LONGEST: usize = 64;

/// The name of a tool that was called, as it can go back: models call tools that there are not, by names that would be refused.
pub(super) fn tool_name(name: &str) -> Cow<'_, str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.len() <= LONGEST && name.chars().all(fits) {
        return Cow::Borrowed(name);
    }
    let fitting: String = name.chars().take(LONGEST).map(|c| if fits(c) { c } else { '_' }).collect();
    Cow::Owned(if fitting.is_empty() { "unnamed".to_owned() } else { fitting })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_be_refused_is_changed() {
        for (name, fitting) in
            [("shell", "shell"), ("functions.shell", "functions_shell"), ("", "unnamed"), ("é b", "__b")]
        {
            assert_eq!(tool_name(name), fitting);
        }
        assert_eq!(tool_name(&"x".repeat(65)), "x".repeat(64));
    }
}
