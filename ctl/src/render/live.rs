//! Joins the live output of one stream from pieces that may be missing, late or repeated.
//!
//! Pure. The offset of each piece decides: no byte is shown twice, and a missing part is requested once, or reported as
//! missing.

/// What to do with a piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// Show this part of it.
    Show(&'a str),
    /// It was shown already.
    Skip,
    /// Bytes from this offset on are missing before it.
    Missing(u64),
}

/// How far a stream has been shown.
#[derive(Debug, Default, Clone)]
pub(crate) struct Stream {
    /// Offset of the first byte that was not shown. After a piece with replacement characters it is only a guess: such
    /// a piece has another length than its bytes.
    next: u64,
    guess: bool,
    shown: bool,
}

impl Stream {
    /// What to do with a piece that begins at `offset`.
    pub(crate) fn piece<'a>(&self, offset: u64, text: &'a str) -> Piece<'a> {
        if self.guess {
            return if offset >= self.next { Piece::Show(text) } else { Piece::Skip };
        }
        let Some(known) = self.next.checked_sub(offset) else {
            return Piece::Missing(self.next);
        };
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        match (known..=text.len()).find(|&at| text.is_char_boundary(at)) {
            Some(at) if at < text.len() => Piece::Show(&text[at..]),
            _ => Piece::Skip,
        }
    }

    /// Notes that a piece at `offset` was shown, in whole or its end.
    pub(crate) fn shown(&mut self, offset: u64, text: &str) {
        self.shown |= !text.is_empty();
        self.guess = text.contains('\u{FFFD}');
        // A replacement character stands for at least one byte, and takes three.
        let least = text.len() - 2 * text.matches('\u{FFFD}').count();
        self.next = self.next.max(offset + least as u64);
    }

    /// Notes that bytes up to `end` were fetched and shown.
    pub(crate) fn caught_up(&mut self, end: u64) {
        self.shown |= end > 0;
        self.guess = false;
        self.next = self.next.max(end);
    }

    /// Whether a part of it was shown.
    pub(crate) fn is_shown(&self) -> bool {
        self.shown
    }

    /// The first missing byte, of `total`; `None` where all of it was shown.
    pub(crate) fn missing(&self, total: u64) -> Option<u64> {
        // If the count is a guess, the difference may be due to replacement characters.
        (self.next < total && !self.guess).then_some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_order_are_shown_whole_and_repeated_ones_not_at_all() {
        let mut stream = Stream::default();
        assert_eq!(stream.piece(0, "abc"), Piece::Show("abc"));
        stream.shown(0, "abc");
        assert_eq!(stream.piece(0, "abc"), Piece::Skip);
        assert_eq!(stream.piece(1, "bcde"), Piece::Show("de"));
        assert_eq!(stream.piece(3, "de"), Piece::Show("de"));
        stream.shown(3, "de");
        assert_eq!(stream.missing(5), None);
        assert_eq!(stream.missing(9), Some(5));
    }

    #[test]
    fn a_missing_piece_is_noticed_and_can_be_made_good() {
        let mut stream = Stream::default();
        stream.shown(0, "abc");
        assert_eq!(stream.piece(10, "xyz"), Piece::Missing(3));
        stream.caught_up(12);
        assert_eq!(stream.piece(10, "xyz"), Piece::Show("z"));
    }

    #[test]
    fn replaced_bytes_make_no_false_gap() {
        let mut stream = Stream::default();
        stream.shown(0, "a\u{FFFD}");
        assert_eq!(stream.piece(2, "b"), Piece::Show("b"), "one byte was replaced");
        assert_eq!(stream.piece(4, "b"), Piece::Show("b"), "or it were three");
        assert_eq!(stream.missing(4), None);
        stream.shown(4, "b");
        assert_eq!(stream.piece(4, "b"), Piece::Skip);
    }

    #[test]
    fn a_part_is_cut_at_a_character() {
        let mut stream = Stream::default();
        stream.caught_up(1);
        assert_eq!(stream.piece(0, "日x"), Piece::Show("x"));
    }
}
