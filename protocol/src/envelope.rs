//! Renders the result of a finished call as the text that the model reads: exit code, stdout, stderr, a note.
//!
//! A long stream is bounded before rendering: its head and tail are kept, cut at character boundaries. The only place
//! with this format. It must not decide the exit code: the caller gives it.

use std::borrow::Cow;

/// One stream of a finished call, with the kept bytes.
///
/// `head` holds the first bytes and `tail` the last ones; between them `omitted` bytes and `omitted_lines` newlines are
/// missing. With nothing missing the stream is `head` followed by `tail`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// The first bytes.
    pub head: Vec<u8>,
    /// The last bytes.
    pub tail: Vec<u8>,
    /// Number of bytes between the two.
    pub omitted: u64,
    /// Number of newlines among these.
    pub omitted_lines: u64,
}

impl Kept {
    /// Number of bytes that were written in all.
    pub fn total(&self) -> u64 {
        self.head.len() as u64 + self.omitted + self.tail.len() as u64
    }

    /// Removes an incomplete character from the end of the head and from the start of the tail, if bytes are missing
    /// between them, so that no cut makes a replacement character that the process did not cause.
    fn cut_at_characters(&self) -> (&[u8], &[u8], u64) {
        if self.omitted == 0 {
            return (&self.head, &self.tail, 0);
        }
        let head = &self.head[..self.head.len() - incomplete_suffix(&self.head)];
        let skip = self.tail.iter().take(3).take_while(|&&b| b & 0xC0 == 0x80).count();
        let tail = &self.tail[skip..];
        let omitted = self.omitted + (self.head.len() - head.len()) as u64 + skip as u64;
        (head, tail, omitted)
    }
}

/// Number of bytes at the end of `bytes` that begin a UTF-8 character without completing it.
pub fn incomplete_suffix(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let byte = bytes[bytes.len() - back];
        let wants = match byte {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => return 0,
        };
        return if wants > back { back } else { 0 };
    }
    0
}

/// Keeps the first and the last bytes of a stream in bounded memory, and counts the rest.
#[derive(Debug)]
pub struct Bounded {
    kept: Kept,
    head_max: usize,
    tail_max: usize,
    /// Position of the oldest byte of the tail, once the tail is full and is written as a ring.
    start: usize,
}

impl Bounded {
    /// Keeps at most `max` bytes, half of them from the start.
    pub fn new(max: usize) -> Self {
        let head_max = max / 2;
        Self { kept: Kept::default(), head_max, tail_max: max - head_max, start: 0 }
    }

    /// Adds the next bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = self.head_max - self.kept.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.kept.head.extend_from_slice(head);
        self.push_tail(rest);
    }

    fn push_tail(&mut self, bytes: &[u8]) {
        let fresh = self.tail_max - self.kept.tail.len();
        let (append, bytes) = bytes.split_at(fresh.min(bytes.len()));
        self.kept.tail.extend_from_slice(append);
        if bytes.is_empty() {
            return;
        }
        if self.tail_max == 0 {
            self.omit(bytes.len(), newlines(bytes));
            return;
        }
        // At most the last `tail_max` of these bytes can stay.
        let skipped = bytes.len().saturating_sub(self.tail_max);
        self.omit(skipped, newlines(&bytes[..skipped]));
        let mut bytes = &bytes[skipped..];
        while !bytes.is_empty() {
            let run = bytes.len().min(self.tail_max - self.start);
            let end = self.start + run;
            let lost = newlines(&self.kept.tail[self.start..end]);
            self.omit(run, lost);
            self.kept.tail[self.start..end].copy_from_slice(&bytes[..run]);
            self.start = end % self.tail_max;
            bytes = &bytes[run..];
        }
    }

    fn omit(&mut self, bytes: usize, lines: u64) {
        self.kept.omitted += bytes as u64;
        self.kept.omitted_lines += lines;
    }

    /// Number of bytes so far.
    pub fn total(&self) -> u64 {
        self.kept.total()
    }

    /// The kept bytes, in order.
    pub fn finish(mut self) -> Kept {
        self.kept.tail.rotate_left(self.start);
        self.kept
    }
}

fn newlines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|&&b| b == b'\n').count() as u64
}

/// A rendered envelope, and what it left out of each stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The whole text, as the model reads it.
    pub text: String,
    /// Bytes of stdout that the text leaves out.
    pub stdout_omitted: u64,
    /// Bytes of stderr that the text leaves out.
    pub stderr_omitted: u64,
}

/// Renders the envelope of a process whose end was seen.
///
/// `how_to_read` is the command that reads the missing bytes of a stream (`harnessctl logs …`); `note` is a remark of
/// the harness.
pub fn render(exit_code: u8, stdout: &Kept, stderr: &Kept, note: Option<&str>, how_to_read: &str) -> Envelope {
    let mut bytes = Vec::with_capacity(
        64 + stdout.head.len() + stdout.tail.len() + stderr.head.len() + stderr.tail.len() + note.map_or(0, str::len),
    );
    bytes.extend_from_slice(format!("Exit code: {exit_code}\n").as_bytes());
    let stdout_omitted = push_stream(&mut bytes, stdout, "stdout", how_to_read);
    let mut stderr_omitted = 0;
    if stderr.total() > 0 {
        end_line(&mut bytes);
        bytes.extend_from_slice(b"--- stderr ---\n");
        stderr_omitted = push_stream(&mut bytes, stderr, "stderr", how_to_read);
    }
    if let Some(note) = note {
        end_line(&mut bytes);
        bytes.push(b'[');
        bytes.extend_from_slice(note.as_bytes());
        bytes.extend_from_slice(b"]\n");
    }
    let text = match String::from_utf8_lossy(&bytes) {
        Cow::Owned(text) => text,
        Cow::Borrowed(_) => String::from_utf8(bytes).unwrap_or_default(),
    };
    Envelope { text, stdout_omitted, stderr_omitted }
}

fn push_stream(bytes: &mut Vec<u8>, kept: &Kept, name: &str, how_to_read: &str) -> u64 {
    let (head, tail, omitted) = kept.cut_at_characters();
    bytes.extend_from_slice(head);
    if omitted > 0 {
        end_line(bytes);
        let lines = kept.omitted_lines;
        bytes.extend_from_slice(
            format!("[{omitted} bytes and {lines} line breaks of {name} are missing here; {how_to_read}]\n").as_bytes(),
        );
    }
    bytes.extend_from_slice(tail);
    omitted
}

fn end_line(bytes: &mut Vec<u8>) {
    if bytes.last() != Some(&b'\n') {
        bytes.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(bytes: &[u8]) -> Kept {
        Kept { head: bytes.to_vec(), ..Kept::default() }
    }

    fn text(exit_code: u8, stdout: &[u8], stderr: &[u8], note: Option<&str>) -> String {
        render(exit_code, &whole(stdout), &whole(stderr), note, "see the log").text
    }

    #[test]
    fn a_silent_command_is_its_exit_code_and_a_newline() {
        assert_eq!(text(0, b"", b"", None), "Exit code: 0\n");
    }

    #[test]
    fn stdout_is_verbatim_and_stderr_begins_on_a_line_of_its_own() {
        assert_eq!(text(0, b"hi", b"", None), "Exit code: 0\nhi");
        assert_eq!(text(3, b"hi", b"oops\n", None), "Exit code: 3\nhi\n--- stderr ---\noops\n");
        assert_eq!(text(3, b"", b"oops", None), "Exit code: 3\n--- stderr ---\noops");
    }

    #[test]
    fn a_note_is_one_bracketed_last_line() {
        assert_eq!(text(124, b"hi", b"", Some("timed out after 1 s")), "Exit code: 124\nhi\n[timed out after 1 s]\n");
    }

    #[test]
    fn invalid_bytes_are_replaced_once_over_the_whole_text() {
        assert_eq!(text(0, b"a\xf0", b"", None), "Exit code: 0\na\u{FFFD}");
    }

    #[test]
    fn the_middle_of_a_long_stream_is_counted_and_left_out() {
        let mut bounded = Bounded::new(8);
        bounded.push(b"abcd\n\n\nwxyz");
        let kept = bounded.finish();
        assert_eq!((kept.head.as_slice(), kept.tail.as_slice()), (b"abcd".as_slice(), b"wxyz".as_slice()));
        let rendered = render(0, &kept, &Kept::default(), None, "see the log");
        assert_eq!(
            rendered.text,
            "Exit code: 0\nabcd\n[3 bytes and 3 line breaks of stdout are missing here; see the log]\nwxyz"
        );
        assert_eq!(rendered.stdout_omitted, 3);
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        let snow = "\u{2603}".repeat(50_000);
        for max in 90..100 {
            let mut bounded = Bounded::new(max);
            bounded.push(snow.as_bytes());
            let rendered = render(0, &bounded.finish(), &Kept::default(), None, "see the log");
            assert!(!rendered.text.contains('\u{FFFD}'), "at {max}");
        }
    }

    proptest! {
        #[test]
        fn the_first_and_the_last_bytes_are_kept(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..12),
            max in 0usize..64,
        ) {
            let stream = pieces.concat();
            let mut bounded = Bounded::new(max);
            for piece in &pieces {
                bounded.push(piece);
            }
            prop_assert_eq!(bounded.total(), stream.len() as u64);
            let kept = bounded.finish();
            prop_assert!(kept.head.len() + kept.tail.len() <= max);
            prop_assert!(stream.starts_with(&kept.head));
            prop_assert!(stream.ends_with(&kept.tail));
            let missing = &stream[kept.head.len()..stream.len() - kept.tail.len()];
            prop_assert_eq!(kept.omitted, missing.len() as u64);
            prop_assert_eq!(kept.omitted_lines, newlines(missing));
            if stream.len() <= max {
                prop_assert_eq!(kept.omitted, 0);
            }
        }

        #[test]
        fn valid_text_is_never_damaged(text in "\\PC{0,200}", max in 0usize..64) {
            let mut bounded = Bounded::new(max);
            bounded.push(text.as_bytes());
            let rendered = render(0, &bounded.finish(), &Kept::default(), None, "see the log");
            let is_replaced = rendered.text.contains('\u{FFFD}');
            prop_assert_eq!(is_replaced, text.contains('\u{FFFD}') && is_replaced);
        }
    }
}
