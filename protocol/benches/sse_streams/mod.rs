//! Makes streams like those of providers, and has the decoders that are measured on them.
#![allow(dead_code)]

use std::convert::Infallible;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use eventsource_stream::Eventsource as _;
use futures_core::Stream;
use harness_protocol::sse::Decoder;

/// Events of a chat completion of a compatible server, 185 bytes each.
pub fn openai(events: usize) -> Vec<u8> {
    let event = |n: usize| {
        format!(
            "data: {{\"id\":\"chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeGx7Qm2ZkT\",\"object\":\"chat.completion.chunk\",\
             \"created\":1741570283,\
             \"model\":\"gpt-4o\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" {}\"}}}}]}}\n\n",
            WORDS[n % WORDS.len()]
        )
    };
    (0..events).map(event).collect::<String>().into_bytes()
}

/// Named events of the messages API, 185 bytes each.
pub fn anthropic(events: usize) -> Vec<u8> {
    let event = |n: usize| {
        format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\
             \"delta\":{{\"type\":\"text_delta\",\
             \"text\":\"{} of the wood was a lantern in the long dark, and what it was then \"}}}}\n\n",
            WORDS[n % WORDS.len()]
        )
    };
    (0..events).map(event).collect::<String>().into_bytes()
}

/// Events of a few bytes.
pub fn small(events: usize) -> Vec<u8> {
    (0..events).map(|n| format!("data: {}\n\n", n % 1000)).collect::<String>().into_bytes()
}

/// One event with one line of `bytes`.
pub fn line(bytes: usize) -> Vec<u8> {
    let mut stream = b"data: ".to_vec();
    stream.resize(bytes, b'x');
    stream.extend_from_slice(b"\n\n");
    stream
}

const WORDS: &[&str] = &["lantern", "the", "signal", "house", "of", "morning", "a", "window", "under", "north"];

/// A stream repeated so many times, in chunks.
#[derive(Clone, Copy)]
pub struct Chunks<'s> {
    pub stream: &'s [u8],
    pub chunk: usize,
    pub rounds: usize,
    at: usize,
}

impl<'s> Chunks<'s> {
    pub fn new(stream: &'s [u8], chunk: usize, rounds: usize) -> Self {
        Self { stream, chunk, rounds, at: 0 }
    }
}

impl<'s> Iterator for Chunks<'s> {
    type Item = &'s [u8];
    fn next(&mut self) -> Option<&'s [u8]> {
        if self.at == self.stream.len() {
            self.rounds -= 1;
            self.at = 0;
        }
        if self.rounds == 0 {
            return None;
        }
        let end = self.stream.len().min(self.at + self.chunk);
        let chunk = &self.stream[self.at..end];
        self.at = end;
        Some(chunk)
    }
}

impl<'s> Stream for Chunks<'s> {
    type Item = Result<&'s [u8], Infallible>;
    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.next().map(Ok))
    }
}

/// A decoder by name: from chunks to the number of events, each looked at.
pub type Decode = fn(Chunks<'_>) -> usize;

pub const DECODERS: &[(&str, Decode)] = &[
    ("harness", harness),
    ("sse-core", sse_core),
    ("sse-stream", sse_stream),
    ("eventsource-stream", eventsource_stream),
    ("memchr", memchr_alone),
];

pub fn harness(chunks: Chunks<'_>) -> usize {
    let mut decoder = Decoder::new(64 << 20);
    let mut events = 0;
    for chunk in chunks {
        let mut decoded = decoder.push(chunk);
        while let Some(event) = decoded.next() {
            black_box(event.unwrap());
            events += 1;
        }
    }
    events
}

pub fn sse_core(chunks: Chunks<'_>) -> usize {
    let mut decoder = sse_core::SseDecoder::with_limit((64 << 20).try_into().unwrap());
    let mut events = 0;
    for mut chunk in chunks {
        while let Some(event) = decoder.next(&mut chunk) {
            black_box(event.unwrap());
            events += 1;
        }
    }
    events
}

pub fn sse_stream(chunks: Chunks<'_>) -> usize {
    drain(sse_stream::SseByteStream::new(chunks), |event| {
        black_box(event.unwrap());
    })
}

pub fn eventsource_stream(chunks: Chunks<'_>) -> usize {
    drain(chunks.eventsource(), |event| {
        black_box(event.unwrap());
    })
}

/// The floor: where the lines end, and nothing else.
pub fn memchr_alone(chunks: Chunks<'_>) -> usize {
    let mut lines = 0;
    for chunk in chunks {
        lines += memchr::memchr2_iter(b'\n', b'\r', chunk).map(black_box).count();
    }
    lines / 2
}

/// Polls a stream that is always ready, without a runtime.
pub fn drain<S: Stream>(stream: S, mut look: impl FnMut(S::Item)) -> usize {
    let mut stream = pin!(stream);
    let mut context = Context::from_waker(Waker::noop());
    let mut events = 0;
    while let Poll::Ready(Some(event)) = stream.as_mut().poll_next(&mut context) {
        look(event);
        events += 1;
    }
    events
}
