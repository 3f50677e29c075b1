//! Makes texts safe for a terminal, and writes an error with all of its causes as one text. Unsafe characters move a
//! cursor, change the order of the text, or cannot be seen.
//!
//! Pure. The only place with the set of these characters: the daemon refuses them in names and labels, and both
//! programs escape them in output.

use std::borrow::Cow;

/// Whether a character controls a terminal or breaks a line: C0 and C1 controls, DEL, the line and the paragraph
/// separator.
pub const fn is_control(c: char) -> bool {
    matches!(c, '\0'..='\u{1F}' | '\u{7F}'..='\u{9F}' | '\u{2028}' | '\u{2029}')
}

/// Whether a character changes the direction or the order in which a text is read: marks, embeddings, overrides and
/// isolates.
pub const fn is_bidi(c: char) -> bool {
    matches!(c, '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Whether a character is invisible and takes no room: two texts that differ in it look the same. These are the
/// characters of `Default_Ignorable_Code_Point` and of the category `Cf` that are of no other kind here, except for the
/// visible signs of numbers and words.
pub const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{AD}'
            | '\u{34F}'
            | '\u{115F}'..='\u{1160}'
            | '\u{17B4}'..='\u{17B5}'
            | '\u{180B}'..='\u{180F}'
            | '\u{200B}'..='\u{200D}'
            | '\u{2060}'..='\u{2065}'
            | '\u{206A}'..='\u{206F}'
            | '\u{3164}'
            | '\u{FE00}'..='\u{FE0F}'
            | '\u{FEFF}'
            | '\u{FFA0}'
            | '\u{FFF0}'..='\u{FFFB}'
            | '\u{13430}'..='\u{1343F}'
            | '\u{1BCA0}'..='\u{1BCA3}'
            | '\u{1D173}'..='\u{1D17A}'
            | '\u{E0000}'..='\u{E0FFF}'
    )
}

/// Whether a character must not be shown as it is.
pub const fn is_harmful(c: char) -> bool {
    is_control(c) || is_bidi(c) || is_invisible(c)
}

/// The replacement of a character that must not be shown; `None` for a character that joins or varies its neighbours,
/// as in many emoji.
pub const fn in_place_of(c: char) -> Option<char> {
    match c {
        '\u{200C}' | '\u{200D}' | '\u{FE00}'..='\u{FE0F}' | '\u{AD}' => None,
        _ => Some('\u{FFFD}'),
    }
}

/// A text of several lines from outside, fit for a terminal: no character in it moves the cursor, changes the reading
/// order or is invisible. Line breaks and tabs stay.
pub fn clean(text: &str) -> Cow<'_, str> {
    let harmful = |c: char| is_harmful(c) && c != '\n' && c != '\t';
    if !text.contains(harmful) {
        return Cow::Borrowed(text);
    }
    // A carriage return before a line break belongs to the line break; alone it would hide the text before it.
    let lines = text.replace("\r\n", "\n");
    Cow::Owned(lines.chars().filter_map(|c| if harmful(c) { in_place_of(c) } else { Some(c) }).collect())
}

/// Columns of a text in quotation marks, about.
const QUOTED: usize = 200;

/// A text within a sentence: its first line that is not blank, in quotation marks. Blanks are shown as one, and a long
/// text is cut, so that it cannot push what follows to a place where that looks like another line.
pub fn quoted(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines.next().unwrap_or_default();
    let mut shown = String::from('"');
    let (mut blank, mut count) = (false, 0);
    for c in clean(line).chars() {
        if count == QUOTED {
            break;
        }
        if c.is_whitespace() {
            blank = true;
            continue;
        }
        if std::mem::take(&mut blank) {
            shown.push(' ');
        }
        if matches!(c, '"' | '\\') {
            shown.push('\\');
        }
        shown.push(c);
        count += 1;
    }
    if lines.next().is_some() {
        shown.push_str(" …");
    } else if count == QUOTED {
        shown.push('…');
    }
    shown.push('"');
    shown
}

/// The first character of a text that is refused in names and labels: a control, a change of direction, or an invisible
/// one. A character that changes how its neighbours look is allowed there: between the parts of an emoji, and between
/// letters that join.
pub fn refused(text: &str) -> Option<char> {
    let mut before = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let is_unseen = is_invisible(c) && !is_seen_between(before, c, chars.peek().copied());
        if is_control(c) || is_bidi(c) || is_unseen {
            return Some(c);
        }
        before = Some(c);
    }
    None
}

/// Whether a joiner or a variation selector changes the text that is seen at its place.
const fn is_seen_between(before: Option<char>, c: char, after: Option<char>) -> bool {
    match (before, c, after) {
        (Some('#' | '*' | '0'..='9'), '\u{FE0F}', Some('\u{20E3}')) => true,
        (Some(before), '\u{FE0E}' | '\u{FE0F}', _) => is_pictograph(before),
        (Some('\u{FE0F}'), '\u{200D}', Some(after)) => is_pictograph(after),
        (Some(before), '\u{200C}' | '\u{200D}', Some(after)) => {
            (c == '\u{200D}' && is_pictograph(before) && is_pictograph(after)) || (joins(before) && joins(after))
        }
        _ => false,
    }
}

/// The blocks that emoji are in.
const fn is_pictograph(c: char) -> bool {
    matches!(c, '\u{A9}' | '\u{AE}' | '\u{203C}'..='\u{2049}' | '\u{2122}'..='\u{2BFF}' | '\u{3030}'..='\u{303D}'
        | '\u{3297}'..='\u{3299}' | '\u{1F000}'..='\u{1FAFF}')
}

/// The blocks of scripts whose letters join: from Arabic to Sinhala.
const fn joins(c: char) -> bool {
    matches!(c, '\u{620}'..='\u{DFF}') && !is_invisible(c)
}

/// An error and its causes, without the causes that the error already names itself.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(cause) = at {
        let said = cause.to_string();
        // A short text may occur in another one by chance.
        let is_said =
            if said.len() < 4 { text == said || text.ends_with(&format!(": {said}")) } else { text.contains(&said) };
        if !is_said && !said.is_empty() {
            text.push_str(": ");
            text.push_str(&said);
        }
        at = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use regex::Regex;

    use super::*;

    #[derive(Debug)]
    struct Said(&'static str, Option<Box<Said>>);

    impl std::fmt::Display for Said {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for Said {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    /// B12: no chain repeats itself, and none leaves anything out.
    #[test]
    fn a_chain_says_everything_once() {
        for (said, told) in [
            (&["cannot lock /x: not there", "not there"][..], "cannot lock /x: not there"),
            (&["cannot lock /x", "not there"], "cannot lock /x: not there"),
            (&["not there", "not there"], "not there"),
            (&["a", "b", "b", "c"], "a: b: c"),
            (
                &["cannot start: cannot open /j: full", "cannot open /j: full", "full"],
                "cannot start: cannot open /j: full",
            ),
            (
                &["cannot set up the log", "cannot open /l", "Permission denied (os error 13)"],
                "cannot set up the log: cannot open /l: Permission denied (os error 13)",
            ),
            (&["line 13 is wrong", "3"], "line 13 is wrong: 3"),
            (&["refused (by the peer); try again", "by the peer"], "refused (by the peer); try again"),
            (&["alone"], "alone"),
            (&["nothing below", ""], "nothing below"),
        ] {
            let error = said.iter().rev().fold(None, |cause, text| Some(Box::new(Said(text, cause))));
            assert_eq!(chain(&*error.unwrap_or_else(|| Box::new(Said("", None)))), told);
        }
    }

    #[test]
    fn the_kinds_are_those_of_unicode() {
        let unseen = Regex::new(r"^[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]$").unwrap();
        // Signs of numbers and words are visible, although their category is `Cf`.
        let signs = Regex::new(r"^\p{Prepended_Concatenation_Mark}$").unwrap();
        let mut buffer = [0; 4];
        for c in '\0'..=char::MAX {
            let text = &*c.encode_utf8(&mut buffer);
            let expected = unseen.is_match(text) && !signs.is_match(text);
            assert_eq!(is_control(c) || is_bidi(c) || is_invisible(c), expected, "{c:?}");
        }
    }

    #[test]
    fn the_kinds_have_no_character_in_common_and_no_letter() {
        for c in '\0'..=char::MAX {
            let kinds = [is_control(c), is_bidi(c), is_invisible(c)].into_iter().filter(|kind| *kind).count();
            assert!(kinds <= 1, "{c:?}");
            assert!(
                kinds == 0 || !c.is_alphabetic() || matches!(c, '\u{115F}' | '\u{1160}' | '\u{3164}' | '\u{FFA0}'),
                "{c:?}"
            );
            assert!(!c.is_control() || is_control(c), "{c:?}");
        }
        assert_eq!(refused("a\u{202E}b"), Some('\u{202E}'));
        assert_eq!(refused("l'été, 日本語, \u{1F469}\u{200D}\u{1F680}"), None);
    }

    #[test]
    fn invisible_characters_are_refused_unless_they_change_visible_ones() {
        for c in ('\0'..=char::MAX).filter(|&c| is_invisible(c)) {
            for text in [format!("a{c}b"), format!("{c}a"), format!("a{c}"), format!("日{c}本"), format!("1{c}2")] {
                assert_eq!(refused(&text), Some(c), "{text:?}");
            }
        }
        for seen in ["❤\u{FE0F}", "❤\u{FE0F}\u{200D}\u{1F525}", "1\u{FE0F}\u{20E3}", "می\u{200C}خواهم", "क्\u{200D}ष"]
        {
            assert_eq!(refused(seen), None, "{seen:?}");
        }
        for (text, c) in [
            ("❤\u{FE0F}\u{FE0F}", '\u{FE0F}'),
            ("\u{1F469}\u{200D}", '\u{200D}'),
            ("\u{1F469}\u{200D}\u{200D}\u{1F680}", '\u{200D}'),
            ("می\u{200C}\u{200C}خواهم", '\u{200C}'),
            ("\u{1F469}\u{200C}\u{1F680}", '\u{200C}'),
        ] {
            assert_eq!(refused(text), Some(c), "{text:?}");
        }
    }
}
