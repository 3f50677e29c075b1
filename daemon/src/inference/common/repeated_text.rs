//! Joins a text that may come twice: announced, whole or in part, and then streamed in pieces.
//!
//! Pure. The only place that decides whether a piece repeats the announced text or continues it. It must not drop a
//! piece that has new text.

use super::json_text::{Gathered, Text};

/// A text that was announced, perhaps, and came in pieces.
#[derive(Debug, Default)]
pub(in crate::inference) struct Announced {
    text: Gathered,
    /// The pieces so far, as long as they say again what was announced.
    again: Option<Gathered>,
}

impl Announced {
    /// A text that came with its announcement.
    pub(in crate::inference) fn new(text: &Text<'_>) -> Self {
        let mut gathered = Gathered::default();
        gathered.push(text);
        Self { again: (!gathered.is_empty()).then(Gathered::default), text: gathered }
    }

    /// What came whole: nothing of it is said again.
    pub(in crate::inference) fn whole(text: Gathered) -> Self {
        Self { text, again: None }
    }

    /// Adds a piece. Gives back what became certain of the text by it.
    pub(in crate::inference) fn push(&mut self, piece: &Text<'_>) -> &str {
        let Some(again) = &mut self.again else { return self.text.push(piece) };
        again.push(piece);
        let (announced, said) = (self.text.as_str(), again.as_str());
        if announced.starts_with(said) {
            return "";
        }
        let from = announced.len();
        let mut pieces = self.again.take().unwrap_or_default();
        if !pieces.as_str().starts_with(announced) {
            pieces.prepend(announced);
        }
        self.text = pieces;
        self.text.as_str().get(from..).unwrap_or_default()
    }

    pub(in crate::inference) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The text so far.
    pub(in crate::inference) fn as_str(&self) -> &str {
        self.text.as_str()
    }

    /// The complete text.
    pub(in crate::inference) fn finish(self) -> Gathered {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces that begin with the announced text replace it (entry P10).
    #[test]
    fn a_text_that_was_announced_gives_way_to_pieces_that_begin_with_it() {
        for (announced, pieces, expected) in [
            ("", &["Hel", "lo"][..], "Hello"),
            ("Hello", &[], "Hello"),
            ("Hello", &["Hello"], "Hello"),
            ("Hel", &["Hello"], "Hello"),
            ("Hello", &["Hel", "lo"], "Hello"),
            ("Hello", &["Hel", "lo", " there"], "Hello there"),
            ("Hello", &["Hello there"], "Hello there"),
            ("Hel", &["lo"], "Hello"),
            ("Hello", &[" there", "."], "Hello there."),
            ("Hello", &["He", " is here"], "HelloHe is here"),
            ("é", &["é", "é"], "éé"),
        ] {
            let mut text = Announced::new(&Text::from(announced));
            let mut shown = text.as_str().to_owned();
            for piece in pieces {
                shown.push_str(text.push(&Text::from(*piece)));
            }
            assert_eq!((text.finish().finish().0.as_str(), shown.as_str()), (expected, expected), "{pieces:?}");
        }
    }
}
