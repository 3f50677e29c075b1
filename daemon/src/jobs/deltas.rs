//! Turns the live output of a job into text for subscribers. A character that is split between two pieces is held back
//! until its remaining bytes arrive.

use std::sync::Arc;

use harness_protocol::envelope::incomplete_suffix;
use harness_protocol::event::{Delta, DeltaStream};
use harness_protocol::id::{CallId, RunId};
use harness_protocol::rpc::OutputStream;
use tokio::sync::broadcast;

/// The channel for deltas. It never waits for a slow subscriber: that subscriber misses some.
pub type DeltaSender = broadcast::Sender<Arc<Delta>>;

/// The live output of one job.
#[derive(Debug)]
pub struct Deltas {
    run: RunId,
    call: Option<CallId>,
    sender: DeltaSender,
    stdout: Carry,
    stderr: Carry,
    /// Bytes of what the model said, and of what it thought.
    said: u64,
    thought: u64,
}

/// The beginning of a character, and where it stands in its stream.
#[derive(Debug, Default)]
struct Carry {
    offset: u64,
    bytes: Vec<u8>,
}

impl Deltas {
    pub(super) fn new(run: RunId, call: Option<CallId>, sender: DeltaSender) -> Self {
        Self { run, call, sender, stdout: Carry::default(), stderr: Carry::default(), said: 0, thought: 0 }
    }

    /// Sends a piece of a call's output. Costs nothing without subscribers.
    pub fn piece(&mut self, stream: OutputStream, offset: u64, bytes: &[u8]) {
        let (carry, of) = match stream {
            OutputStream::Stdout => (&mut self.stdout, DeltaStream::Stdout),
            OutputStream::Stderr => (&mut self.stderr, DeltaStream::Stderr),
        };
        if self.sender.receiver_count() == 0 {
            carry.bytes.clear();
            return;
        }
        if carry.bytes.is_empty() {
            carry.offset = offset;
        }
        carry.bytes.extend_from_slice(bytes);
        let whole = carry.bytes.len() - incomplete_suffix(&carry.bytes);
        if whole > 0 {
            let text = String::from_utf8_lossy(&carry.bytes[..whole]).into_owned();
            let offset = carry.offset;
            carry.bytes.drain(..whole);
            carry.offset += whole as u64;
            self.send(of, offset, text);
        }
    }

    /// A piece of what the model says. The first one of an attempt begins at 0: what was said before does not count.
    pub(super) fn text(&mut self, text: &str) {
        let offset = self.said;
        self.said += text.len() as u64;
        self.model(DeltaStream::Text, offset, text);
    }

    /// A piece of what it thinks.
    pub(super) fn reasoning(&mut self, text: &str) {
        let offset = self.thought;
        self.thought += text.len() as u64;
        self.model(DeltaStream::Reasoning, offset, text);
    }

    fn model(&self, stream: DeltaStream, offset: u64, text: &str) {
        if !text.is_empty() && self.sender.receiver_count() > 0 {
            self.send(stream, offset, text.to_owned());
        }
    }

    /// The streams have ended: no rest of a character will come.
    pub fn finish(mut self) {
        for (carry, of) in [
            (std::mem::take(&mut self.stdout), DeltaStream::Stdout),
            (std::mem::take(&mut self.stderr), DeltaStream::Stderr),
        ] {
            if !carry.bytes.is_empty() {
                self.send(of, carry.offset, String::from_utf8_lossy(&carry.bytes).into_owned());
            }
        }
    }

    fn send(&self, stream: DeltaStream, offset: u64, text: String) {
        // A send fails only without subscribers.
        let _ = self.sender.send(Arc::new(Delta { run: self.run, call: self.call, stream, offset, text }));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn sent(pieces: &[&[u8]]) -> Vec<(u64, String)> {
        let (sender, mut receiver) = broadcast::channel(64);
        let mut deltas = Deltas::new(RunId::from_u64(1), None, sender);
        let mut offset = 0;
        for piece in pieces {
            deltas.piece(OutputStream::Stdout, offset, piece);
            offset += piece.len() as u64;
        }
        deltas.finish();
        std::iter::from_fn(|| receiver.try_recv().ok()).map(|delta| (delta.offset, delta.text.clone())).collect()
    }

    #[test]
    fn a_character_that_is_cut_appears_whole_in_the_later_piece() {
        assert_eq!(sent(&[b"a\xe2", b"\x98", b"\x83b"]), [(0, "a".to_owned()), (1, "\u{2603}b".to_owned())]);
        assert_eq!(sent(&[b"a\xe2"]), [(0, "a".to_owned()), (1, "\u{FFFD}".to_owned())]);
        assert_eq!(sent(&[b"\xff\xff"]), [(0, "\u{FFFD}\u{FFFD}".to_owned())]);
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_text_and_their_offsets_follow(text in "\\PC{0,40}", cut in 1usize..5) {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(cut).collect();
            let mut end = 0;
            let mut whole = String::new();
            for (offset, piece) in sent(&pieces) {
                prop_assert_eq!(offset, end);
                end += piece.len() as u64;
                whole.push_str(&piece);
            }
            prop_assert_eq!(whole, text);
        }
    }
}
