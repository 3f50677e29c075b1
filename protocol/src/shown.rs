//! Characters that must not reach a terminal as they are: what moves a cursor, changes the order of what is read, or cannot be seen.
//!
//! Pure. Owns which characters these are: the daemon refuses the first kind in names and labels, and ctl cleans what it shows of all three.

/// Whether a character drives a terminal or breaks a line: C0 and C1 controls, DEL, the line and the paragraph separator.
pub const fn is_control(c: char) -> bool {
    matches!(c, '\0'..='\u{1F}' | '\u{7F}'..='\u{9F}' | '\u{2028}' | '\u{2029}')
}

/// Whether a character changes the direction or the order in which a text is read: marks, embeddings, overrides and isolates.
pub const fn is_bidi(c: char) -> bool {
    matches!(c, '\u{061C}' | '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// Whether a character cannot be seen and takes no room: two texts that differ in it look the same. Those of `Default_Ignorable_Code_Point` that
/// are of no other kind here, and the annotations between lines.
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
            | '\u{1BCA0}'..='\u{1BCA3}'
            | '\u{1D173}'..='\u{1D17A}'
            | '\u{E0000}'..='\u{E0FFF}'
    )
}

/// The first character of a text that is refused in what identifies or groups runs: a control or a change of direction.
pub fn refused(text: &str) -> Option<char> {
    text.chars().find(|&c| is_control(c) || is_bidi(c))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
