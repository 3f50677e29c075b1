//! Recognises an event that differs from the one before only in its piece of text, and in numbers and strings that the
//! dialect ignores.
//!
//! It keeps the last event that the fast path read, and the places of its varying values ("holes"). An event with the
//! same text between these places is read by comparing, which costs less than parsing. Every other event is parsed as
//! if it were the first.
//!
//! ```text
//! {"type":"response.output_text.delta","sequence_number":17,"item_id":"msg_1","delta":" lantern","obfuscation":"x7"}
//! └──────────────── same ───────────────────────────────┘hole└───── same ───────────┘  piece   └───── same ───┘hole ┘
//! ```

use super::skim::{Quoted, Skim};
use super::varying_values::{Holes, What};

/// Most bytes of an event.
const LONGEST: usize = 4096;

/// The form of the last event with one piece, and what was read of it beside the piece.
#[derive(Debug)]
pub(in crate::inference) struct Form<T> {
    event: String,
    holes: Holes,
    read: Option<T>,
}

impl<T> Default for Form<T> {
    fn default() -> Self {
        Self { event: String::new(), holes: Holes::default(), read: None }
    }
}

impl<T> Form<T> {
    /// The piece of an event of this form. What else there is to read of it is what was [`read`](Self::read) of the
    /// last one.
    #[inline]
    pub(in crate::inference) fn again<'a>(&self, event: &'a str) -> Option<Quoted<'a>> {
        self.read.as_ref()?;
        let mut skim = Skim::new(event);
        let (mut same, mut piece) = (0, None);
        for (place, what) in self.holes.iter() {
            skim.same(self.event.as_bytes().get(same..place.start)?)?;
            match what {
                What::Piece => piece = Some(skim.string()?),
                What::String => _ = skim.skip_string()?,
                What::Number => skim.skip_number()?,
            }
            same = place.end;
        }
        skim.same(self.event.as_bytes().get(same..)?)?;
        skim.end()?;
        piece
    }

    pub(in crate::inference) const fn read(&self) -> Option<&T> {
        self.read.as_ref()
    }

    /// Reads an event anew. The form before is forgotten.
    pub(in crate::inference) fn skim<'a>(&mut self, event: &'a str) -> Skim<'a, '_> {
        self.read = None;
        self.holes.clear();
        Skim::noting(event, &mut self.holes)
    }

    /// Keeps the form of the event that was read last, if it has one piece.
    pub(in crate::inference) fn keep(&mut self, event: &str, read: T) {
        if !self.holes.are_of_one_piece() || event.len() > LONGEST {
            return;
        }
        self.event.clear();
        self.event.push_str(event);
        self.read = Some(read);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The form of an event of which the string of `piece` is the piece.
    fn form(event: &str) -> Form<()> {
        let mut form = Form::default();
        let mut skim = form.skim(event);
        let read = skim.object(|skim, key| match key {
            b"piece" => skim.piece().map(|_| ()),
            b"read" => skim.number().map(|_| ()),
            _ => skim.skip(),
        });
        read.and_then(|()| skim.end()).unwrap();
        form.keep(event, ());
        form
    }

    #[test]
    fn what_nobody_reads_may_differ_and_nothing_else() {
        let form = form(r#"{"n":1,"s":"x","l":[2,{"d":-1.5e3}],"read":7,"piece":"a","null":null}"#);
        let again = |event: &str| form.again(event).map(|piece| piece.json.to_owned());
        for (event, piece) in [
            (r#"{"n":1,"s":"x","l":[2,{"d":-1.5e3}],"read":7,"piece":"a","null":null}"#, Some(r#""a""#)),
            (r#"{"n":-2.5,"s":"y\n","l":[0,{"d":9}],"read":7,"piece":"b\"","null":null}"#, Some(r#""b\"""#)),
            (r#"{"n":1,"s":"x","l":[2,{"d":-1.5e3}],"read":7,"piece":"","null":null}"#, Some(r#""""#)),
            (r#"{"n":01,"s":"x","l":[2,{"d":-1.5e3}],"read":7,"piece":"a","null":null}"#, None),
            (r#"{"n":"1","s":"x","l":[2,{"d":-1.5e3}],"read":7,"piece":"a","null":null}"#, None),
            (r#"{"n":1,"s":"x","l":[2,{"d":-1.5e3}],"read":77,"piece":"a","null":null}"#, None),
            (r#"{"n":1,"s":"x","l":[2,{"d":-1.5e3}],"read":7,"piece":"a","null":true}"#, None),
            (r#"{"n":1,"s":"x","l":[2,{"d":-1.5e3}],"read":7,"piece":null,"null":null}"#, None),
            (r#"{"n":1,"s":"x","l":[2,{"d":-1.5e3}],"read":7,"piece":"a","null":null},"#, None),
            (r#"{"n":1,"s":"x","l":[2,{"d":-1.5e3}],"read":7,"piece":"a","null":null"#, None),
        ] {
            assert_eq!(again(event).as_deref(), piece, "{event}");
        }
    }

    #[test]
    fn a_form_has_one_piece_and_is_small() {
        let kept = |event: &str| form(event).read.is_some();
        assert!(kept(r#"{"piece":"a"}"#));
        assert!(!kept(r#"{"piece":""}"#));
        assert!(!kept(r#"{"piece":"a","piece":"b"}"#));
        assert!(!kept(&format!(r#"{{"piece":"a","l":[1{}]}}"#, ",1".repeat(super::super::varying_values::HOLES))));
        assert!(!kept(&format!(r#"{{"piece":"{}"}}"#, "a".repeat(LONGEST))));
    }
}
