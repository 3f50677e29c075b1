//! Scans JSON for the few fields of the most frequent events, faster than a parser.
//!
//! The scan gives up on anything unusual, and the parser reads that event instead. So it may refuse valid JSON. It must
//! not accept invalid JSON: the parser would have reported an error.

use super::varying_values::{Holes, What};

/// A place in a JSON text.
pub(in crate::inference) struct Skim<'a, 'h> {
    text: &'a str,
    at: usize,
    /// Where it is noted what was passed over.
    holes: Option<&'h mut Holes>,
}

/// A string as it stands in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::inference) struct Quoted<'a> {
    /// With its quotes.
    pub(in crate::inference) json: &'a str,
    pub(in crate::inference) has_escapes: bool,
}

/// Which fields of an object were there: one that comes twice is for the parser to refuse.
#[derive(Default)]
pub(in crate::inference) struct Once(u32);

impl Once {
    #[inline]
    pub(in crate::inference) fn first(&mut self, field: u32) -> Option<()> {
        let bit = 1 << field;
        let is_first = self.0 & bit == 0;
        self.0 |= bit;
        is_first.then_some(())
    }
}

/// How deep a value may be that is passed over.
const DEEP: u32 = 32;

impl<'a, 'h> Skim<'a, 'h> {
    #[inline]
    pub(in crate::inference) const fn new(text: &'a str) -> Self {
        Self { text, at: 0, holes: None }
    }

    /// One that notes where values stand that are passed over, and pieces.
    pub(in crate::inference) const fn noting(text: &'a str, holes: &'h mut Holes) -> Self {
        Self { text, at: 0, holes: Some(holes) }
    }

    fn note(&mut self, begin: usize, what: What) {
        if let Some(holes) = &mut self.holes {
            holes.add(begin..self.at, what);
        }
    }

    /// Passes over these bytes, and no others.
    #[inline(always)]
    pub(in crate::inference) fn same(&mut self, bytes: &[u8]) -> Option<()> {
        self.text.as_bytes().get(self.at..)?.starts_with(bytes).then(|| self.at += bytes.len())
    }

    #[inline(always)]
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// The next byte that is no white space.
    #[inline(always)]
    fn peek(&mut self) -> Option<u8> {
        self.byte().filter(|byte| *byte > b' ').or_else(|| self.peek_behind_space())
    }

    #[cold]
    #[inline(never)]
    fn peek_behind_space(&mut self) -> Option<u8> {
        while matches!(self.byte()?, b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
        self.byte()
    }

    #[inline(always)]
    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// An object; `field` has to take or skip the value of each key. Keys with escapes are not for here.
    #[inline(always)]
    pub(in crate::inference) fn object(
        &mut self,
        mut field: impl FnMut(&mut Self, &'a [u8]) -> Option<()>,
    ) -> Option<()> {
        self.expect(b'{')?;
        if self.peek()? == b'}' {
            self.at += 1;
            return Some(());
        }
        loop {
            self.expect(b'"')?;
            let begin = self.at;
            if self.pass_plain()? != b'"' {
                return None;
            }
            let key = self.text.as_bytes().get(begin..self.at)?;
            self.at += 1;
            self.expect(b':')?;
            field(self, key)?;
            match self.peek()? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Some(());
                }
                _ => return None,
            }
        }
    }

    /// A list of exactly one, which `element` has to take.
    #[inline(always)]
    pub(in crate::inference) fn only(&mut self, element: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        element(self)?;
        self.expect(b']')
    }

    #[inline(always)]
    pub(in crate::inference) fn string(&mut self) -> Option<Quoted<'a>> {
        self.peek()?;
        let begin = self.at;
        let has_escapes = self.skip_string()?;
        Some(Quoted { json: self.text.get(begin..self.at)?, has_escapes })
    }

    /// A string of which an answer is made.
    #[inline]
    pub(in crate::inference) fn piece(&mut self) -> Option<Quoted<'a>> {
        let quoted = self.string()?;
        // An empty one is no piece: it adds nothing.
        if quoted.json.len() > 2 {
            self.note(self.at - quoted.json.len(), What::Piece);
        }
        Some(quoted)
    }

    /// Passes over a string, and says whether it has escapes.
    #[inline(always)]
    pub(in crate::inference) fn skip_string(&mut self) -> Option<bool> {
        self.expect(b'"')?;
        let has_escapes = self.pass_plain()? != b'"';
        if has_escapes {
            self.pass_escapes()?;
        }
        self.at += 1;
        Some(has_escapes)
    }

    /// Passes over what means itself in a string, up to a quote, a backslash or a control character, which it gives.
    /// Eight bytes at a time: most strings of an event are so short that to set up a search costs more than the search.
    #[inline(always)]
    fn pass_plain(&mut self) -> Option<u8> {
        const ONES: u64 = u64::MAX / 255;
        // The top bit of each byte that is less than `n`, and perhaps of bytes behind such a one.
        let less = |bytes: u64, n: u64| bytes.wrapping_sub(ONES * n) & !bytes;
        while let Some(eight) = self.text.as_bytes().get(self.at..)?.first_chunk() {
            let eight = u64::from_le_bytes(*eight);
            // With this bit turned, the quote comes right behind the control characters.
            let ends = less(eight ^ (ONES * 2), 0x21) | less(eight ^ (ONES * u64::from(b'\\')), 1);
            let ends = ends & (ONES << 7);
            if ends != 0 {
                self.at += ends.trailing_zeros() as usize / 8;
                return self.byte();
            }
            self.at += 8;
        }
        while !matches!(self.byte()?, ..0x20 | b'"' | b'\\') {
            self.at += 1;
        }
        self.byte()
    }

    /// Up to the quote that ends the string.
    #[inline(never)]
    fn pass_escapes(&mut self) -> Option<()> {
        loop {
            match self.text.as_bytes().get(self.at..)? {
                [b'"', ..] => return Some(()),
                [b'\\', b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => self.at += 2,
                [b'\\', b'u', code @ ..] if code.first_chunk::<4>()?.iter().all(u8::is_ascii_hexdigit) => self.at += 6,
                _ => return None,
            }
            self.pass_plain()?;
        }
    }

    /// A piece, or nothing for null.
    #[inline]
    pub(in crate::inference) fn piece_or_null(&mut self) -> Option<Option<Quoted<'a>>> {
        if self.peek()? == b'"' { self.piece().map(Some) } else { self.null().map(|()| None) }
    }

    /// Null, and nothing else.
    #[inline(always)]
    pub(in crate::inference) fn null(&mut self) -> Option<()> {
        self.peek()?;
        self.same(b"null")
    }

    /// A number without sign or fraction.
    #[inline(always)]
    pub(in crate::inference) fn number(&mut self) -> Option<u64> {
        self.peek()?;
        let digits = self.digits()?;
        // More might not fit.
        (digits.len() < 20).then(|| digits.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
    }

    /// At least one, and no zero before others.
    #[inline(always)]
    fn digits(&mut self) -> Option<&'a [u8]> {
        let begin = self.at;
        self.pass_digits();
        let digits = self.text.as_bytes().get(begin..self.at)?;
        if let [] | [b'0', _, ..] = digits { None } else { Some(digits) }
    }

    #[inline(always)]
    fn pass_digits(&mut self) {
        while self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }

    /// Passes over any value.
    pub(in crate::inference) fn skip(&mut self) -> Option<()> {
        self.skip_nested(DEEP)
    }

    fn skip_nested(&mut self, deep: u32) -> Option<()> {
        let first = self.peek()?;
        let begin = self.at;
        match first {
            b'"' => {
                self.skip_string()?;
                self.note(begin, What::String);
            }
            b'{' => {
                let deep = deep.checked_sub(1)?;
                self.object(|skim, _| skim.skip_nested(deep))?;
            }
            b'[' => self.skip_list(deep.checked_sub(1)?)?,
            b'n' => self.same(b"null")?,
            b't' => self.same(b"true")?,
            b'f' => self.same(b"false")?,
            _ => {
                self.skip_number()?;
                self.note(begin, What::Number);
            }
        }
        Some(())
    }

    fn skip_list(&mut self, deep: u32) -> Option<()> {
        self.expect(b'[')?;
        if self.peek()? == b']' {
            self.at += 1;
            return Some(());
        }
        loop {
            self.skip_nested(deep)?;
            match self.peek()? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Some(());
                }
                _ => return None,
            }
        }
    }

    #[inline(always)]
    pub(in crate::inference) fn skip_number(&mut self) -> Option<()> {
        let _ = self.same(b"-");
        self.digits()?;
        match self.byte() {
            Some(b'.' | b'e' | b'E') => self.skip_fraction(),
            _ => Some(()),
        }
    }

    #[inline(never)]
    fn skip_fraction(&mut self) -> Option<()> {
        let digits = |skim: &mut Self| {
            let begin = skim.at;
            skim.pass_digits();
            (skim.at > begin).then_some(())
        };
        if self.same(b".").is_some() {
            digits(self)?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.byte() {
                self.at += 1;
            }
            digits(self)?;
        }
        Some(())
    }

    /// Nothing comes any more.
    #[inline]
    pub(in crate::inference) fn end(mut self) -> Option<()> {
        (self.at == self.text.len() || self.peek().is_none()).then_some(())
    }
}

impl<'a> Quoted<'a> {
    /// What stands between the quotes, if it means itself.
    #[inline(always)]
    pub(in crate::inference) fn plain(self) -> Option<&'a str> {
        if self.has_escapes { None } else { self.json.get(1..self.json.len().checked_sub(1)?) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of an object, and what was passed over for each.
    fn keys(text: &str) -> Option<Vec<(&str, &str)>> {
        let mut skim = Skim::new(text);
        let mut found = Vec::new();
        skim.object(|skim, key| {
            skim.peek()?;
            let begin = skim.at;
            skim.skip()?;
            found.push((str::from_utf8(key).ok()?, text.get(begin..skim.at)?));
            Some(())
        })?;
        skim.end()?;
        Some(found)
    }

    #[test]
    fn each_field_is_found_with_its_value() {
        let text = r#" {"a" : "x\"]}\\" , "b":[1,{"c":"}"},[]], "d":{"e":{"f":"{"}},"g":-1.5e3 ,"h":null} "#;
        let expected = [
            ("a", r#""x\"]}\\""#),
            ("b", r#"[1,{"c":"}"},[]]"#),
            ("d", r#"{"e":{"f":"{"}}"#),
            ("g", "-1.5e3"),
            ("h", "null"),
        ];
        assert_eq!(keys(text).as_deref(), Some(&expected[..]));
        assert_eq!(keys("{}"), Some(vec![]));
    }

    #[test]
    fn what_is_cut_or_wrong_is_given_up_and_never_read_beyond() {
        let text = r#"{"a":"é\"","b":[1,{"c":[]}],"d":null}"#;
        for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
            assert_eq!(keys(&text[..end]), None, "{end}");
        }
        for text in [
            "",
            "[]",
            "null",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            r#"{"a":1}}"#,
            r#"{"a":"\"#,
            r#"{"a":1 2}"#,
            "{a:1}",
        ] {
            assert_eq!(keys(text), None, "{text}");
        }
    }

    #[test]
    fn values_are_taken_as_what_they_are() {
        let quoted = |json, has_escapes| Some(Quoted { json, has_escapes });
        assert_eq!(Skim::new(r#" "a\n" "#).string(), quoted(r#""a\n""#, true));
        assert_eq!(Skim::new(r#""a","#).string(), quoted(r#""a""#, false));
        assert_eq!(Skim::new("null").piece_or_null(), Some(None));
        assert_eq!(Skim::new("1").piece_or_null(), None);
        assert_eq!(Skim::new(" 12,").number(), Some(12));
        assert_eq!(Skim::new("-1").number(), None);
        assert_eq!(Skim::new("01").number(), None);
        assert_eq!(Skim::new("9999999999999999999").number(), Some(9_999_999_999_999_999_999));
        assert_eq!(Skim::new("10000000000000000000").number(), None);
        assert_eq!(Skim::new("[ 1 ]").only(Skim::skip), Some(()));
        assert_eq!(Skim::new("[1,2]").only(Skim::skip), None);
        assert_eq!(Skim::new("[]").only(Skim::skip), None);
    }
}
