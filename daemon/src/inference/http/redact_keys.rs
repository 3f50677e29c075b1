//! Removes keys, and the values of secret headers, from a provider's errors and answers, both as shown and as stored.
//!
//! The only place with the forms in which a key is recognised: plain; base64 at any offset; hexadecimal; escaped for
//! URLs, JSON or HTML; and each of these with blanks, quote marks and zero-width characters in between. A key of fewer
//! than ten characters stays in answers, and one of fewer than four also in errors: it may be a word. Must not hold
//! back more of a stream than a text that may be the beginning of a key.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::key::{IN_ITS_PLACE, Secret};
use crate::inference::dialects::Piece;
use crate::prompt::Completion;

/// Fewer characters than these of the beginning of a key tell nothing.
const TELLING: usize = 4;
/// A key is taken out of answers from this length on: shorter ones are words that stand for no key, such as `ollama`.
const OF_ANSWERS: usize = 10;
/// How much of the beginning of a key tells something at the end of an answer.
const TELLING_IN_ANSWERS: usize = 8;
/// Blanks in a row that are passed over within a key.
const MOST_BLANKS: usize = 64;

/// Takes secrets out of texts.
#[derive(Default)]
pub(super) struct Scrubber {
    /// What is looked for in errors.
    short: Forms,
    /// What is looked for in answers.
    long: Forms,
}

impl Scrubber {
    pub(super) fn new(key: Option<&Secret>, headers: &[(Arc<str>, Arc<str>)]) -> Self {
        let is_secret = |name: &str| {
            ["auth", "key", "token", "secret", "cookie", "password"].iter().any(|word| name.contains(word))
        };
        let headers = headers.iter().filter(|(name, _)| is_secret(name)).map(|(_, value)| {
            // "Bearer KEY": the scheme is no secret.
            value.rsplit(' ').next().unwrap_or_default()
        });
        let secrets: Vec<&str> = key.map(Secret::as_str).into_iter().chain(headers).collect();
        let longer_than = |least: usize| secrets.iter().filter(move |secret| secret.len() >= least);
        Self { short: Forms::of(longer_than(TELLING)), long: Forms::of(longer_than(OF_ANSWERS)) }
    }

    /// An error without the secrets, also where one was cut off at its end.
    pub(super) fn scrub(&self, text: String) -> String {
        let whole = text.trim_end_matches('…').len();
        match self.short.scrubbed(&text[..whole], TELLING) {
            // What cut it off cut off the rest of a key, too.
            Some(scrubbed) if scrubbed.ends_with(IN_ITS_PLACE) => scrubbed,
            Some(scrubbed) => scrubbed + &text[whole..],
            None => text,
        }
    }

    /// An answer without the secrets. What its provider wants back unchanged is then not that any more; what it is not
    /// is a way out for a key.
    pub(super) fn scrub_answer(&self, mut completion: Completion) -> Completion {
        let scrub = |text: &mut String| {
            if let Some(scrubbed) = self.long.scrubbed(text, TELLING_IN_ANSWERS) {
                *text = scrubbed;
            }
        };
        scrub(&mut completion.text);
        for call in &mut completion.calls {
            scrub(&mut call.tool);
            scrub(&mut call.args);
            scrub(&mut call.given);
            call.unusable.iter_mut().for_each(scrub);
        }
        if let Some(carried) = &mut completion.carried
            && let Some(scrubbed) = self.long.scrubbed(&carried.parts, TELLING_IN_ANSWERS)
        {
            carried.parts = scrubbed.into();
        }
        completion
    }
}

/// Shows the pieces of an answer without the secrets, also where one comes in several pieces.
pub(super) struct Filter<'s> {
    forms: &'s Forms,
    /// The end of what came, which may be the beginning of a key: of the text, and of what was thought.
    said: String,
    thought: String,
}

impl<'s> Filter<'s> {
    pub(super) fn new(scrubber: &'s Scrubber) -> Self {
        Self { forms: &scrubber.long, said: String::new(), thought: String::new() }
    }

    /// Shows what of the text is certain to be no key by now.
    pub(super) fn show(&mut self, piece: Piece<'_>, show: &mut dyn FnMut(Piece<'_>)) {
        let (held, text) = match piece {
            Piece::Text(text) => (&mut self.said, text),
            Piece::Reasoning(text) => (&mut self.thought, text),
        };
        if held.is_empty() && !self.forms.may_begin_in(text) {
            return show(piece);
        }
        held.push_str(text);
        let (out, rest) = self.forms.pass(held);
        if !out.is_empty() {
            show(match piece {
                Piece::Text(_) => Piece::Text(&out),
                Piece::Reasoning(_) => Piece::Reasoning(&out),
            });
        }
        held.drain(..rest);
    }

    /// Shows what was held back, once nothing more comes.
    pub(super) fn end(&mut self, show: &mut dyn FnMut(Piece<'_>)) {
        let last = |held: &mut String| {
            let held = std::mem::take(held);
            self.forms.scrubbed(&held, TELLING_IN_ANSWERS).unwrap_or(held)
        };
        let (said, thought) = (last(&mut self.said), last(&mut self.thought));
        for piece in [Piece::Reasoning(&thought), Piece::Text(&said)] {
            let (Piece::Text(text) | Piece::Reasoning(text)) = piece;
            if !text.is_empty() {
                show(piece);
            }
        }
    }
}

/// The forms of some secrets.
#[derive(Default)]
struct Forms(Vec<Vec<u8>>);

/// Whether a form stands at a place of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stands {
    No,
    /// Up to here.
    To(usize),
    /// So many bytes of it, and then the text ends.
    Begins(usize),
}

impl Forms {
    fn of<'a>(secrets: impl Iterator<Item = &'a &'a str>) -> Self {
        let mut forms = Vec::new();
        for secret in secrets {
            forms.push(secret.as_bytes().to_vec());
            if secret.len() >= OF_ANSWERS {
                forms.extend(in_base64(secret));
                forms.extend(escaped(secret));
            }
        }
        forms.sort();
        forms.dedup();
        Self(forms)
    }

    fn may_begin_in(&self, text: &str) -> bool {
        self.0.iter().filter_map(|form| form.first()).any(|first| text.as_bytes().contains(first))
    }

    /// The text without the secrets, up to where one may begin whose end has not come: and that place.
    fn pass(&self, text: &str) -> (String, usize) {
        let (mut out, mut at, mut copied) = (String::new(), 0, 0);
        while at < text.len() {
            match self.at(text.as_bytes(), at) {
                Stands::No => at += 1,
                Stands::To(end) => {
                    out.push_str(&text[copied..at]);
                    out.push_str(IN_ITS_PLACE);
                    (at, copied) = (end, end);
                }
                Stands::Begins(_) => break,
            }
        }
        out.push_str(&text[copied..at]);
        (out, at)
    }

    /// A whole text without the secrets, and without so much or more of the beginning of one at its end. None where
    /// there is none.
    fn scrubbed(&self, text: &str, telling: usize) -> Option<String> {
        if !self.may_begin_in(text) {
            return None;
        }
        let (mut out, mut rest) = (String::new(), text);
        loop {
            let (passed, at) = self.pass(rest);
            out.push_str(&passed);
            rest = &rest[at..];
            match self.at(rest.as_bytes(), 0) {
                Stands::Begins(bytes) if bytes >= telling => {
                    out.push_str(IN_ITS_PLACE);
                    break;
                }
                // Too little to tell anything: its first byte, which is ASCII, is none of a secret.
                Stands::Begins(_) => {
                    out.push_str(&rest[..1]);
                    rest = &rest[1..];
                }
                Stands::No | Stands::To(_) if rest.is_empty() => break,
                Stands::No | Stands::To(_) => {}
            }
        }
        (out != text).then_some(out)
    }

    /// What stands at a place: a whole secret before the beginning of another.
    fn at(&self, text: &[u8], at: usize) -> Stands {
        let mut found = Stands::No;
        for form in self.0.iter().filter(|form| form.first() == text.get(at)) {
            found = match (stands(form, text, at), found) {
                (Stands::To(end), Stands::To(other)) => Stands::To(end.max(other)),
                (Stands::To(end), _) => Stands::To(end),
                (Stands::Begins(bytes), Stands::Begins(other)) => Stands::Begins(bytes.max(other)),
                (Stands::Begins(bytes), Stands::No) => Stands::Begins(bytes),
                (Stands::Begins(_) | Stands::No, found) => found,
            };
        }
        found
    }
}

fn stands(form: &[u8], text: &[u8], mut at: usize) -> Stands {
    for (matched, byte) in form.iter().enumerate() {
        if matched > 0 {
            at = behind_blanks(text, at);
            // A word that is broken at the end of a line: the sign for that is no part of it.
            if let [b'-', b'\n' | b'\r', ..] = text.get(at..).unwrap_or_default()
                && *byte != b'-'
            {
                at = behind_blanks(text, at + 1);
            }
        }
        match text.get(at) {
            None => return if matched == 0 { Stands::No } else { Stands::Begins(matched) },
            // A line break that is written as one begins with this.
            Some(b'\\') if at + 1 == text.len() && *byte != b'\\' => return Stands::Begins(matched),
            // So does a word that is broken at the end of a line.
            Some(b'-') if at + 1 == text.len() && *byte != b'-' && matched > 0 => return Stands::Begins(matched),
            Some(found) if found == byte => at += 1,
            Some(_) => return Stands::No,
        }
    }
    Stands::To(at)
}

/// Passes over blanks and line breaks, also such as JSON and a shell write them, over characters without a width, and
/// over the marks of a quote at the begin of a line.
fn behind_blanks(text: &[u8], mut at: usize) -> usize {
    let mut is_new_line = false;
    for _ in 0..MOST_BLANKS {
        let (bytes, breaks) = match text.get(at..).unwrap_or_default() {
            [b'\n' | b'\r', ..] => (1, true),
            [b' ' | b'\t', ..] => (1, is_new_line),
            [b'\\', b'n' | b'r' | b'\n', ..] => (2, true),
            [b'\\', b't', ..] => (2, is_new_line),
            [b'>' | b'|' | b'#' | b'*', ..] if is_new_line => (1, true),
            // U+00AD, U+200B to U+200F, U+2060, U+FEFF
            [0xc2, 0xad, ..] => (2, is_new_line),
            [0xe2, 0x80, 0x8b..=0x8f, ..] | [0xe2, 0x81, 0xa0, ..] | [0xef, 0xbb, 0xbf, ..] => (3, is_new_line),
            _ => break,
        };
        (at, is_new_line) = (at + bytes, breaks);
    }
    at
}

/// A secret as URLs, JSON, HTML and dumps write it.
fn escaped(secret: &str) -> Vec<Vec<u8>> {
    let each = |write: &dyn Fn(u8) -> String| secret.bytes().map(write).collect::<String>();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let mut forms = Vec::new();
    for upper in [false, true] {
        let hex = |byte: u8| if upper { format!("{byte:02X}") } else { format!("{byte:02x}") };
        forms.push(each(&hex));
        forms.push(each(&|byte| format!("%{}", hex(byte))));
        forms.push(each(&|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{}", hex(byte)) }));
        forms.push(each(&|byte| format!("\\u00{}", hex(byte))));
        forms.push(each(&|byte| format!("\\x{}", hex(byte))));
        forms.push(each(&|byte| format!("&#x{};", hex(byte))));
        forms.push(each(&|byte| {
            if is_plain(byte) { char::from(byte).to_string() } else { format!("&#x{};", hex(byte)) }
        }));
    }
    forms.push(each(&|byte| format!("&#{byte};")));
    forms.push(each(&|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("&#{byte};") }));
    forms.push(secret.replace('/', "\\/"));
    forms.push(secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;"));
    forms.into_iter().map(String::into_bytes).collect()
}

/// What a secret looks like in base64, at each of the three places of a triple where it can begin, without the
/// characters at both ends that depend on what stands around it.
fn in_base64(secret: &str) -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    for (before, dropped) in [(0, 0), (1, 2), (2, 3)] {
        let bytes = [&[0; 2][..before], secret.as_bytes()].concat();
        for text in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            let last = usize::from(bytes.len() % 3 != 0);
            forms.extend(text.get(dropped..text.len().saturating_sub(last)).map(|form| form.as_bytes().to_vec()));
        }
    }
    forms
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::prompt::RequestedCall;

    const KEY: &str = "sk-planted-77f1c0de";

    fn scrubber() -> Scrubber {
        let headers = [("x-token".into(), "tok-abcdef".into()), ("authorization".into(), "Bearer bea-rer".into())];
        Scrubber::new(Some(&Secret::new(KEY).unwrap()), &headers)
    }

    /// A text as it is shown when it comes in pieces of this size.
    fn shown(text: &str, size: usize) -> String {
        let scrubber = scrubber();
        let (mut filter, mut shown) = (Filter::new(&scrubber), String::new());
        let mut add = |piece: Piece<'_>| match piece {
            Piece::Text(text) | Piece::Reasoning(text) => shown.push_str(text),
        };
        let characters: Vec<char> = text.chars().collect();
        for piece in characters.chunks(size) {
            filter.show(Piece::Text(&piece.iter().collect::<String>()), &mut add);
        }
        filter.end(&mut add);
        shown
    }

    #[test]
    fn secrets_are_taken_out_of_errors_also_where_they_are_cut() {
        let short = Scrubber::new(Some(&Secret::new("sk-123456").unwrap()), &[]);
        for (text, scrubbed) in [
            ("key sk-123456 and sk-123456", "key [key] and [key]"),
            ("wrong key: sk-12345…", "wrong key: [key]"),
            ("wrong key: sk-1", "wrong key: [key]"),
            ("wrong key: sk-", "wrong key: sk-"),
            ("sk-1 is not it", "sk-1 is not it"),
        ] {
            assert_eq!(short.scrub(text.to_owned()), scrubbed);
        }
        for (text, scrubbed) in [
            ("tok-abcdef bea-rer.", "[key] [key]."),
            ("nothing, not even Bearer", "nothing, not even Bearer"),
            ("half of sk-planted…", "half of [key]"),
        ] {
            assert_eq!(scrubber().scrub(text.to_owned()), scrubbed);
        }
    }

    /// A key is removed from answers in every form, wherever the stream is cut (entry A19).
    #[test]
    fn a_key_is_taken_out_of_answers_in_each_form_however_it_is_cut_into_pieces() {
        let base64 = |text: &str| STANDARD_NO_PAD.encode(text);
        for (text, kept) in [
            (format!("It is {KEY}."), "It is [key]."),
            (format!("{KEY}{KEY}"), "[key][key]"),
            ("It is sk-planted-\n77f1c0de.".to_owned(), "It is [key]."),
            ("It is sk-pla\r\n   nted-77f1\n\nc0de.".to_owned(), "It is [key]."),
            (r#"{"command":"echo sk-planted\\n-77f1c0de"}"#.replace("\\\\", "\\"), r#"{"command":"echo [key]"}"#),
            ("sk-planted-\\\n77f1c0de".to_owned(), "[key]"),
            ("sk-sk-planted-77f1c0de sk-plant no".to_owned(), "sk-[key] sk-plant no"),
            (format!("{}\u{2603}", KEY), "[key]\u{2603}"),
            ("it ends with sk-planted-77".to_owned(), "it ends with [key]"),
            ("it ends with sk-plan".to_owned(), "it ends with sk-plan"),
            ("nothing of sk in here, s".to_owned(), "nothing of sk in here, s"),
            ("It is sk-plan-\nted-77f1c0de.".to_owned(), "It is [key]."),
            ("It is sk-planted-\n> 77f1c0de.".to_owned(), "It is [key]."),
            ("> sk-pla\n> nted-77\n> f1c0de".to_owned(), "> [key]"),
            ("sk-\u{200b}planted-77f1\u{feff}c0de".to_owned(), "[key]"),
            ("736b2d706c616e7465642d3737663163306465!".to_owned(), "[key]!"),
            ("73 6B 2D 70 6C 61 6E 74 65 64 2D 37 37 66 31 63 30 64 65".to_owned(), "[key]"),
            (
                concat!(
                    r"\u0073\u006b\u002d\u0070\u006c\u0061\u006e\u0074\u0065\u0064\u002d",
                    r"\u0037\u0037\u0066\u0031\u0063\u0030\u0064\u0065",
                )
                .to_owned(),
                "[key]",
            ),
            ("%73%6b%2d%70%6c%61%6e%74%65%64%2d%37%37%66%31%63%30%64%65".to_owned(), "[key]"),
        ] {
            for size in [1, 2, 7, 1_000] {
                assert_eq!(shown(&text, size), kept, "{text:?} in pieces of {size}");
            }
            let answer = Completion { text: text.clone(), ..Completion::default() };
            assert_eq!(scrubber().scrub_answer(answer).text, kept, "what is kept is what was shown");
        }
        for around in ["", "u:", "us:", "user:", "Bearer "] {
            for after in ["", "!", "!!", "\n"] {
                let text = format!("<{}>", base64(&format!("{around}{KEY}{after}")));
                for size in [1, 7, 1_000] {
                    let shown = shown(&text, size);
                    assert!(shown.contains("[key]"), "{around:?} {after:?}: {shown}");
                    // What is left of it gives away a character at most.
                    assert!(shown.len() < "<[key]>".len() + base64(around).len() + base64(after).len() + 6, "{shown}");
                }
                let wrapped: String = text
                    .chars()
                    .enumerate()
                    .flat_map(|(n, c)| [(n % 8 == 7).then_some('\n'), Some(c)])
                    .flatten()
                    .collect();
                assert!(shown(&wrapped, 5).contains("[key]"), "{wrapped}");
            }
        }
    }

    /// A key is found although other programs escape its characters in other ways (entry A19).
    #[test]
    fn signs_of_a_key_that_others_write_in_their_own_way_do_not_hide_it() {
        let key = "sk-Proj/Ab+9_Zz0=Secret&x";
        let scrubber = Scrubber::new(Some(&Secret::new(key).unwrap()), &[]);
        for text in [
            "sk-Proj%2FAb%2B9_Zz0%3DSecret%26x",
            "sk-Proj%2fAb%2b9_Zz0%3dSecret%26x",
            r"sk-Proj\/Ab+9_Zz0=Secret&x",
            "sk-Proj/Ab+9_Zz0=Secret&amp;x",
            "sk-Proj&#47;Ab&#43;9_Zz0&#61;Secret&#38;x",
            "sk-Proj&#x2F;Ab&#x2B;9_Zz0&#x3D;Secret&#x26;x",
        ] {
            let answer = Completion { text: format!("<{text}>"), ..Completion::default() };
            let scrubbed = scrubber.scrub_answer(answer).text;
            assert_eq!(scrubbed, "<[key]>", "{text}");
        }
    }

    /// Arguments of calls and returned blocks are scrubbed too; short words do not count as keys (entry A19).
    #[test]
    fn calls_and_what_goes_back_are_scrubbed_and_short_words_are_no_keys() {
        let call =
            RequestedCall { given: KEY.to_owned(), ..RequestedCall::new("shell", format!("{{\"a\":\"{KEY}\"}}")) };
        let carried = harness_protocol::run::Carried { dialect: "openai".into(), provider: None, parts: KEY.into() };
        let answer = Completion { calls: vec![call], carried: Some(carried), ..Completion::default() };
        let scrubbed = scrubber().scrub_answer(answer);
        assert!(!format!("{scrubbed:?}").contains(KEY), "{scrubbed:?}");
        assert_eq!(scrubbed.calls[0].args, "{\"a\":\"[key]\"}");
        // Local servers are given any word.
        let dummy = Scrubber::new(Some(&Secret::new("ollama").unwrap()), &[]);
        let answer = Completion { text: "ollama is well".to_owned(), ..Completion::default() };
        assert_eq!(dummy.scrub_answer(answer.clone()), answer);
        assert_eq!(dummy.scrub("ollama".to_owned()), "[key]");
    }
}
