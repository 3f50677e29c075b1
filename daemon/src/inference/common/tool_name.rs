//! Changes names of tools, and turns without a text, so that every provider accepts them.

use std::borrow::Cow;

/// What stands for a text where a turn has none: servers refuse one without a word.
pub(in crate::inference) const NO_TEXT: &str = "(no text)";
/// The longest name that every provider takes.
const LONGEST: usize = 64;

/// The name of the tool that is meant by what a server says: without signs of a model's own format, the namespace that
/// models put before it, and blanks around it.
pub(in crate::inference) fn meant(said: &str) -> &str {
    // `assistant<|channel|>commentary to=functions.shell`
    let said = said.rsplit_once("to=").map_or(said, |(_, name)| name);
    let text = match said.split_once("<|") {
        Some((before, rest)) if before.trim().is_empty() => rest.rsplit_once("|>").map_or(rest, |(_, last)| last),
        Some((before, _)) => before,
        None => said,
    };
    let text = text.trim();
    // Of harmony, and of Gemini.
    let name =
        ["functions", "default_api"].iter().find_map(|space| text.strip_prefix(space)?.strip_prefix(['.', '/', ':']));
    // `functions.shell:0` is the id of a call.
    let Some(name) = name else { return text };
    match name.rsplit_once(':') {
        Some((name, count)) if count.parse::<u32>().is_ok() => name.trim(),
        _ => name.trim(),
    }
}

/// The name of a tool that was called, as it can go back: models call tools that there are not, by names that would be
/// refused.
pub(in crate::inference) fn tool_name(name: &str) -> Cow<'_, str> {
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

    /// Special tokens of a model's own format are removed from a tool's name (entry P17).
    #[test]
    fn signs_of_a_models_own_format_are_no_part_of_a_name() {
        for (said, name) in [
            ("shell", "shell"),
            ("shell<|channel|>commentary", "shell"),
            ("shell<|constrain|>json", "shell"),
            ("functions.shell", "shell"),
            ("functions.shell<|channel|>analysis", "shell"),
            (" shell\n", "shell"),
            ("functions. shell ", "shell"),
            ("<|channel|>commentary to=functions.shell", "shell"),
            ("commentary to=functions.wait_for_agent <|constrain|>json", "wait_for_agent"),
            ("functions/shell", "shell"),
            ("functions.shell:0", "shell"),
            ("default_api.shell", "shell"),
            ("default_api:shell", "shell"),
            ("default_api/wait_for_agent", "wait_for_agent"),
            (" default_api.shell<|constrain|>json", "shell"),
            ("assistant<|channel|>commentary to=functions.shell", "shell"),
            ("assistant<|channel|>analysis to=functions.shell<|constrain|>json", "shell"),
            ("<|start|>assistant<|channel|>commentary to=default_api.shell <|message|>", "shell"),
            ("my.tool", "my.tool"),
            ("functions", "functions"),
            ("default_api", "default_api"),
            ("default_apis.shell", "default_apis.shell"),
            ("<|call|>", ""),
            ("functions.", ""),
            (" ", ""),
        ] {
            assert_eq!(meant(said), name, "{said:?}");
        }
    }

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
