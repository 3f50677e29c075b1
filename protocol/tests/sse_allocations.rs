//! Counts how often the decoder allocates, by an allocator of this test: hence a test binary of its own.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fmt::Write as _;

use harness_protocol::sse::Decoder;

/// So many events like those of providers, with some of the rarer kinds.
fn stream(events: usize) -> Vec<u8> {
    let mut text = String::new();
    for n in 0..events {
        let filler = "x".repeat(n % 90);
        match n % 4 {
            0 => write!(text, "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{filler}\"}}}}],\"n\":{n:>8}}}\n\n"),
            1 => write!(
                text,
                "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"text\":\"{filler}\"}}\n\n"
            ),
            2 => write!(text, ": keep-alive\n\nid: {n:>8}\r\nevent: x\r\ndata: {filler}\r\ndata: second line\r\n\r\n"),
            _ => write!(text, "retry: 10\ndata: ein Wort über mehr als ein Byte… {filler}\n\n"),
        }
        .unwrap();
    }
    text.into_bytes()
}

fn decode(decoder: &mut Decoder, stream: &[u8], chunk: usize) -> usize {
    let mut found = 0;
    for chunk in stream.chunks(chunk) {
        let mut events = decoder.push(chunk);
        while let Some(event) = events.next() {
            found += usize::from(!event.unwrap().data.is_empty());
        }
    }
    found
}

fn allocations(chunk: usize, warm: &[u8], stream: &[u8], events: usize) -> u64 {
    let mut decoder = Decoder::new(1 << 20);
    decode(&mut decoder, warm, chunk);
    let mut found = 0;
    let counted = allocation_counter::measure(|| found = decode(&mut decoder, stream, chunk));
    assert_eq!(found, events);
    counted.count_total
}

#[test]
fn events_within_chunks_need_no_memory_at_all() {
    let stream = b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0}\n\n".repeat(1_000);
    assert_eq!(allocations(stream.len(), b"\n", &stream, 1_000), 0);
}

#[test]
fn no_event_needs_memory_in_chunks_of_any_size_after_the_first_ones() {
    // The buffers grow to the longest line, the longest name and the longest event of several lines, and stay.
    let (warm, stream) = (stream(400), stream(2_000));
    for chunk in [1, 64, 1_460, 4_096, 16_384, 1 << 20] {
        // Buffers that the first events have not needed, such as that of a name that is split, may still be made.
        let few = allocations(chunk, &warm, &stream, 2_000);
        assert!(few <= 16, "{few} allocations in chunks of {chunk}");
        let twice = [stream.as_slice(), &stream].concat();
        assert_eq!(allocations(chunk, &stream, &twice, 4_000), 0, "in chunks of {chunk}");
    }
}

#[test]
fn the_counter_counts() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(counted.count_total, 1);
}
