//! Cuts a byte stream into frames: newline-delimited JSON, with a bound on the length of a line. Each line is one
//! object; a frame is a line without its newline.
//!
//! It must not parse the JSON of a frame, and it reads from nothing: the caller pushes bytes in.

/// Bytes of memory that a decoder keeps while nothing is unfinished.
const KEPT: usize = 64 * 1024;

/// What the decoder found.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A line, without its newline and without a carriage return before it. Blank lines are skipped. It borrows from
    /// the buffer, since a copy would be as large again.
    Line(&'a [u8]),
    /// A line longer than the bound. The connection ends with it: the rest of the line looks like further lines.
    Oversized,
}

/// Cuts a stream of bytes into lines. Each byte is looked at once, and moved once at most for each `push`.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Where the first frame begins that was not returned yet.
    start: usize,
    /// Bytes of the buffer that were searched and have no further newline.
    scanned: usize,
    max: usize,
    oversized: bool,
}

impl Decoder {
    /// A decoder for frames of at most `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, scanned: 0, max, oversized: false }
    }

    /// Adds bytes that were read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.oversized {
            return;
        }
        self.let_go();
        self.buffer.extend_from_slice(bytes);
    }

    /// Frees the memory of the returned frames.
    pub fn let_go(&mut self) {
        self.buffer.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        if self.buffer.capacity() > KEPT && self.buffer.len() < self.buffer.capacity() / 4 {
            // The memory of one large frame must not be kept until the connection ends.
            self.buffer.shrink_to(2 * self.buffer.len());
        }
    }

    /// Number of bytes of an unfinished frame. Finished frames were taken out before.
    pub fn unfinished(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Number of bytes of memory that the decoder holds.
    pub fn held(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next frame, if one is complete.
    pub fn next_frame(&mut self) -> Option<Frame<'_>> {
        while !self.oversized {
            let Some(at) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) else {
                self.scanned = self.buffer.len();
                // A carriage return may still turn out to belong to the line's end.
                return (self.scanned - self.start > self.max + 1).then(|| self.give_up());
            };
            let (start, mut end) = (self.start, self.scanned + at);
            self.scanned = end + 1;
            self.start = self.scanned;
            let line = &self.buffer[start..end];
            end -= usize::from(line.ends_with(b"\r"));
            if end - start > self.max {
                return Some(self.give_up());
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                return Some(Frame::Line(&self.buffer[start..end]));
            }
        }
        None
    }

    /// The text after the last newline, once the stream has ended.
    pub fn finish(&mut self) -> Option<Frame<'_>> {
        self.push(b"\n");
        self.next_frame()
    }

    fn give_up(&mut self) -> Frame<'static> {
        self.oversized = true;
        self.buffer = Vec::new();
        self.start = 0;
        self.scanned = 0;
        Frame::Oversized
    }
}

/// Appends `value` to `out` as one frame.
///
/// # Errors
/// Only if `value` has no JSON form, such as a map whose keys are not texts.
pub fn encode<T: serde::Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) -> serde_json::Result<()> {
    let start = out.len();
    let written = serde_json::to_writer(&mut *out, value);
    match written {
        Ok(()) => out.push(b'\n'),
        Err(_) => out.truncate(start),
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The lines so far; `None` for an oversized one.
    fn frames(decoder: &mut Decoder) -> Vec<Option<Vec<u8>>> {
        let mut found = Vec::new();
        while let Some(frame) = decoder.next_frame() {
            found.push(match frame {
                Frame::Line(line) => Some(line.to_vec()),
                Frame::Oversized => None,
            });
        }
        found
    }

    fn line(text: &str) -> Option<Vec<u8>> {
        Some(text.into())
    }

    /// A7: the memory of a large frame is freed with it, even if a small frame has begun after it.
    #[test]
    fn a_large_frame_is_let_go_of_when_it_was_taken_out() {
        for rest in ["", "{"] {
            let mut decoder = Decoder::new(8 << 20);
            decoder.push(&vec![b'a'; 4 << 20]);
            decoder.push(b"\n");
            decoder.push(rest.as_bytes());
            assert_eq!(frames(&mut decoder).len(), 1);
            decoder.let_go();
            assert!(decoder.held() <= 2 * KEPT, "{} bytes", decoder.held());
            decoder.push(b"}\n");
            assert_eq!(frames(&mut decoder), [line(&format!("{rest}}}"))]);
        }
    }

    #[test]
    fn lines_are_frames_and_blank_lines_are_nothing() {
        let mut decoder = Decoder::new(100);
        decoder.push(b"{}\n\n \r\n[1]\r\n{");
        assert_eq!(frames(&mut decoder), [line("{}"), line("[1]")]);
        decoder.push(b"}\n");
        assert_eq!(frames(&mut decoder), [line("{}")]);
    }

    #[test]
    fn an_oversized_line_is_reported_once_and_before_it_ends() {
        let mut decoder = Decoder::new(4);
        decoder.push(b"1234\n123456");
        assert_eq!(frames(&mut decoder), [line("1234"), None]);
        decoder.push(b"\n{}\n");
        assert_eq!(frames(&mut decoder), []);
    }

    proptest! {
        #[test]
        fn where_the_stream_is_cut_makes_no_difference(
            stream in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'a'), Just(b'{')], 0..80),
            cuts in proptest::collection::vec(0usize..80, 0..8),
        ) {
            let mut whole = Decoder::new(12);
            whole.push(&stream);
            let expected = frames(&mut whole);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(stream.len())).chain([0, stream.len()]).collect();
            cuts.sort_unstable();
            let mut decoder = Decoder::new(12);
            let mut found = Vec::new();
            for pair in cuts.windows(2) {
                decoder.push(&stream[pair[0]..pair[1]]);
                found.extend(frames(&mut decoder));
            }
            prop_assert_eq!(found, expected);
        }
    }
}
