//! Newline-delimited JSON: incremental and bounded. One object per line, a frame is a line without its newline.
//!
//! Owns the cutting of a byte stream into frames. Never parses JSON and never reads from anywhere.

/// Bytes of memory that a decoder keeps while nothing is unfinished.
const KEPT: usize = 256 * 1024;

/// What a decoder found.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// A line, without its newline and without a carriage return before it. Blank lines are not reported.
    Line(Vec<u8>),
    /// A line longer than the bound. The connection ends with it: what follows cannot be told apart from its rest.
    Oversized,
}

/// Cuts a stream of bytes into lines. Each byte is looked at once, and moved once at most for each `push`.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Where the first frame that was not handed out begins.
    start: usize,
    /// Bytes of the buffer that are known to hold no further newline.
    scanned: usize,
    max: usize,
    oversized: bool,
}

impl Decoder {
    /// A decoder for frames of at most `max` bytes.
    pub fn new(max: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, scanned: 0, max, oversized: false }
    }

    /// Adds what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.oversized {
            return;
        }
        self.buffer.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT {
            // What one large frame took is not held until the connection ends.
            self.buffer = Vec::new();
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes of a frame that is not finished. Frames that are complete were taken out before.
    pub fn unfinished(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Bytes of memory that it holds.
    pub fn held(&self) -> usize {
        self.buffer.capacity()
    }

    /// The next frame, if one is complete.
    pub fn next_frame(&mut self) -> Option<Frame> {
        while !self.oversized {
            let Some(at) = self.buffer[self.scanned..].iter().position(|&b| b == b'\n') else {
                self.scanned = self.buffer.len();
                // A carriage return may still turn out to belong to the line's end.
                return (self.scanned - self.start > self.max + 1).then(|| self.give_up());
            };
            let line = &self.buffer[self.start..self.scanned + at];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.len() > self.max {
                return Some(self.give_up());
            }
            let frame = (!line.iter().all(u8::is_ascii_whitespace)).then(|| line.to_vec());
            self.scanned += at + 1;
            self.start = self.scanned;
            if let Some(line) = frame {
                return Some(Frame::Line(line));
            }
        }
        None
    }

    /// What stands after the last newline, once nothing more comes.
    pub fn finish(&mut self) -> Option<Frame> {
        self.push(b"\n");
        self.next_frame()
    }

    fn give_up(&mut self) -> Frame {
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
/// Only where `value` has no JSON form, such as a map whose keys are no texts.
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

    fn frames(decoder: &mut Decoder) -> Vec<Frame> {
        std::iter::from_fn(|| decoder.next_frame()).collect()
    }

    #[test]
    fn lines_are_frames_and_blank_lines_are_nothing() {
        let mut decoder = Decoder::new(100);
        decoder.push(b"{}\n\n \r\n[1]\r\n{");
        assert_eq!(frames(&mut decoder), [Frame::Line(b"{}".to_vec()), Frame::Line(b"[1]".to_vec())]);
        decoder.push(b"}\n");
        assert_eq!(frames(&mut decoder), [Frame::Line(b"{}".to_vec())]);
    }

    #[test]
    fn an_oversized_line_is_reported_once_and_before_it_ends() {
        let mut decoder = Decoder::new(4);
        decoder.push(b"1234\n123456");
        assert_eq!(frames(&mut decoder), [Frame::Line(b"1234".to_vec()), Frame::Oversized]);
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
