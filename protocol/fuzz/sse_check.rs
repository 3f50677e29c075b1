//! Checks what must hold for the decoder with any input. Run by libFuzzer, and by a test of the crate over the seeds.

use std::time::Duration;

use harness_protocol::sse::Decoder;

/// All that a reader sees of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// Name, data and cursor of each event; `None` for one over the limit.
    pub events: Vec<Option<[String; 3]>>,
    pub id: String,
    pub retry: Option<Duration>,
    pub is_inside_event: bool,
}

/// The last two bytes of `input` choose the limit and how the stream is cut, the others are the stream. Decoded whole,
/// in chunks and by a simple model it is the same.
pub fn check(input: &[u8]) {
    let Some((stream, &[limit, cuts])) = input.split_last_chunk::<2>() else { return };
    let limit = [3, 16, 64, 1 << 20][usize::from(limit % 4)];
    let whole = decode(limit, [stream]);
    assert_eq!(whole, decode(limit, stream.chunks(1)), "byte by byte");
    assert_eq!(whole, decode(limit, cut(stream, cuts)), "in chunks");
    // A part of a byte order mark, and then the end, is a line only to the model.
    if !b"\xEF\xBB".starts_with(stream) {
        assert_eq!(whole, model(limit, stream), "by the model");
    }
}

/// Decodes a stream that comes in such chunks.
pub fn decode<'c>(limit: usize, chunks: impl IntoIterator<Item = &'c [u8]>) -> Seen {
    let mut decoder = Decoder::new(limit);
    let mut seen = Seen::default();
    for chunk in chunks {
        let mut events = decoder.push(chunk);
        while let Some(event) = events.next() {
            seen.events.push(event.ok().map(|event| [event.name, event.data, event.id].map(str::to_owned)));
        }
    }
    seen.id = decoder.last_event_id().to_owned();
    seen.retry = decoder.retry();
    seen.is_inside_event = decoder.is_inside_event();
    seen
}

/// Chunks of sizes that follow from a seed.
pub fn cut(stream: &[u8], seed: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = stream;
    let mut state = u32::from(seed) * 2 + 1;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let size = (state >> 24) as usize % (2 + usize::from(seed) / 4);
        let (chunk, after) = rest.split_at(size.min(rest.len()));
        rest = after;
        Some(chunk)
    })
}

/// The rules of the standard, and of the limit, word for word and without regard to cost.
pub fn model(limit: usize, stream: &[u8]) -> Seen {
    let stream = stream.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(stream);
    let mut seen = Seen::default();
    let mut open = Open::default();
    let mut line = Vec::new();
    let mut at = 0;
    while at < stream.len() {
        let byte = stream[at];
        at += 1;
        if byte != b'\n' && byte != b'\r' {
            line.push(byte);
            continue;
        }
        if byte == b'\r' && stream.get(at) == Some(&b'\n') {
            at += 1;
        }
        open.line(limit, &std::mem::take(&mut line), &mut seen);
    }
    if !line.is_empty() && line[0] != b':' && !open.is_refused {
        open.size += line.len();
        if open.size >= limit {
            open.refuse(&mut seen);
        }
    }
    seen.is_inside_event = open.size > 0 || open.is_refused;
    seen
}

#[derive(Default)]
struct Open {
    size: usize,
    is_refused: bool,
    name: String,
    data: Option<String>,
    id: Option<String>,
}

impl Open {
    fn refuse(&mut self, seen: &mut Seen) {
        *self = Self { is_refused: true, ..Self::default() };
        seen.events.push(None);
    }

    fn line(&mut self, limit: usize, line: &[u8], seen: &mut Seen) {
        if line.is_empty() {
            let open = std::mem::take(self);
            seen.id = open.id.unwrap_or(std::mem::take(&mut seen.id));
            if let Some(data) = open.data {
                let name = if open.name.is_empty() { "message".to_owned() } else { open.name };
                seen.events.push(Some([name, data, seen.id.clone()]));
            }
            return;
        }
        if self.is_refused || line[0] == b':' {
            return;
        }
        self.size += line.len() + 1;
        if self.size > limit {
            self.refuse(seen);
            return;
        }
        let line = String::from_utf8_lossy(line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => self.data = Some(self.data.take().map_or(String::new(), |data| data + "\n") + value),
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            "retry" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => {
                // Greater numbers count as the greatest of 32 bits.
                seen.retry = Some(Duration::from_millis(value.parse().unwrap_or(u64::MAX).min(u32::MAX.into())));
            }
            _ => {}
        }
    }
}
