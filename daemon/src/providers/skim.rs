//! Runs through JSON for the few fields of the events that come by the thousand.
//!
//! A way ahead of the real parser, and never in its place: whatever is unusual, wrong JSON included, makes it give up, and the event
//! is read again by the parser that knows all forms.

use memchr::memchr2;

/// A place in a JSON text.
pub(super) struct Skim<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Skim<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(byte);
            }
            self.at += 1;
        }
        None
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// An object; `field` has to take or skip the value of each key.
    pub(super) fn object(&mut self, mut field: impl FnMut(&mut Self, &'a str) -> Option<()>) -> Option<()> {
        self.expect(b'{')?;
        if self.expect(b'}').is_some() {
            return Some(());
        }
        loop {
            let key = self.string()?;
            self.expect(b':')?;
            field(self, key.get(1..key.len() - 1)?)?;
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
    pub(super) fn only(&mut self, element: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        element(self)?;
        self.expect(b']')
    }

    /// A string, with its quotes and its escapes.
    pub(super) fn string(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let begin = self.at - 1;
        let bytes = self.text.as_bytes();
        loop {
            self.at += memchr2(b'"', b'\\', bytes.get(self.at..)?)?;
            if bytes[self.at] == b'"' {
                self.at += 1;
                return self.text.get(begin..self.at);
            }
            self.at += 2;
        }
    }

    /// A string, or nothing for null.
    pub(super) fn string_or_null(&mut self) -> Option<Option<&'a str>> {
        if self.peek()? == b'"' { self.string().map(Some) } else { self.null().map(|()| None) }
    }

    /// Null, and nothing else.
    pub(super) fn null(&mut self) -> Option<()> {
        self.peek()?;
        self.text.get(self.at..)?.starts_with("null").then(|| self.at += 4)
    }

    /// A number without sign or fraction.
    pub(super) fn number(&mut self) -> Option<u64> {
        self.peek()?;
        let begin = self.at;
        let digits = self.text.as_bytes()[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        self.text.get(begin..self.at)?.parse().ok()
    }

    /// Passes over any value.
    pub(super) fn skip(&mut self) -> Option<()> {
        match self.peek()? {
            b'"' => self.string().map(|_| ()),
            b'{' | b'[' => self.skip_nested(),
            _ => {
                let rest = self.text.as_bytes().get(self.at..)?;
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
                let scalar = rest.iter().position(ends)?;
                self.at += scalar;
                (scalar > 0).then_some(())
            }
        }
    }

    fn skip_nested(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.text.as_bytes().get(self.at)? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Nothing comes any more.
    pub(super) fn end(mut self) -> Option<()> {
        self.peek().is_none().then_some(())
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
            found.push((key, text.get(begin..skim.at)?));
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
        assert_eq!(Skim::new(r#" "a\n" "#).string(), Some(r#""a\n""#));
        assert_eq!(Skim::new("null").string_or_null(), Some(None));
        assert_eq!(Skim::new("1").string_or_null(), None);
        assert_eq!(Skim::new(" 12,").number(), Some(12));
        assert_eq!(Skim::new("-1").number(), None);
        assert_eq!(Skim::new("[ 1 ]").only(Skim::skip), Some(()));
        assert_eq!(Skim::new("[1,2]").only(Skim::skip), None);
        assert_eq!(Skim::new("[]").only(Skim::skip), None);
    }
}
