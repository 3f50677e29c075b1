//! Decodes an event stream (`text/event-stream`, server-sent events): chunks of bytes in, events out.
//!
//! It keeps the position in the stream, cuts lines, and enforces the size limit. Every byte is searched once for the
//! end of its line. A byte is copied only where its line or its event continues in the next chunk, where an event has
//! several data lines, and where the bytes are not UTF-8.
//!
//! ```text
//!         ┌──────── line end ────────┐
//!         ▼                          │
//! Start ─▶ LineStart ─ chunk ends ─▶ InLine      blank line: the event is lent
//!         ▲ │  ▲ └──── ':' ───────▶ InComment   over the limit: an error, then lines are passed over as comments are,
//!         │ ▼  │                                up to the next blank line
//!      AfterCr └─ a line feed belongs to the carriage return before it
//! ```

use std::fmt;
use std::time::Duration;

use super::copied_fields::{Fields, Held};
use super::events::Events;
use super::field::{ERROR, Field};

/// An event is longer than the decoder's limit. It is skipped; the events after it are whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {limit} bytes")]
pub struct EventTooLarge {
    /// The exceeded limit, in bytes.
    pub limit: usize,
}

/// The position of the next byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// At the start of the stream, after this number of bytes of a byte order mark.
    Start(usize),
    LineStart,
    /// At the start of a line, after a carriage return at the end of a chunk.
    AfterCr,
    /// In a line whose beginning is in the buffer.
    InLine,
    /// In a line that is not needed.
    InComment,
}

const BYTE_ORDER_MARK: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// Decodes one stream, as its bytes come in.
///
/// ```
/// use harness_protocol::sse::Decoder;
///
/// let mut decoder = Decoder::new(1024);
/// let mut data = Vec::new();
/// for chunk in ["id: 7\nda", "ta: hel", "lo\n", "\n"] {
///     let mut events = decoder.push(chunk.as_bytes());
///     while let Some(event) = events.next() {
///         data.push(event?.data.to_owned());
///     }
/// }
/// assert_eq!(data, ["hello"]);
/// assert_eq!(decoder.last_event_id(), "7");
/// # Ok::<(), harness_protocol::sse::EventTooLarge>(())
/// ```
#[derive(Clone)]
pub struct Decoder {
    pub(super) limit: usize,
    /// Whether a line `error: …` counts as an event.
    pub(super) tells_errors: bool,
    at: At,
    /// Whether the open event has exceeded the limit: its lines are skipped.
    too_large: bool,
    /// Number of bytes of the open event's whole lines.
    pub(super) size: usize,
    /// The beginning of an unfinished line.
    line: Vec<u8>,
    pub(super) held: Held,
    pub(super) id: String,
    pub(super) retry: Option<Duration>,
    pub(super) name_text: String,
    pub(super) data_text: String,
    #[cfg(test)]
    pub(super) work: tests::Work,
}

impl fmt::Debug for Decoder {
    /// Leaves out the bytes that came in: they may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").field("limit", &self.limit).field("at", &self.at).finish_non_exhaustive()
    }
}

impl Decoder {
    /// A decoder for events of at most `limit` bytes. The size of an event is that of its lines, each with one byte for
    /// its end, without comments. The decoder's memory is at most a small multiple of that. It keeps its buffers, and
    /// uses them again for each event.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            tells_errors: false,
            at: At::Start(0),
            too_large: false,
            size: 0,
            line: Vec::new(),
            held: Held::default(),
            id: String::new(),
            retry: None,
            name_text: String::new(),
            data_text: String::new(),
            #[cfg(test)]
            work: tests::Work::default(),
        }
    }

    /// Makes an event of the name `error` from a line `error: …`, as some model servers mean it; its data are the rest
    /// of the line. Also from a line that begins with `{"error"`. The standard ignores both.
    #[must_use]
    pub fn telling_errors(mut self) -> Self {
        self.tells_errors = true;
        self
    }

    /// Takes the next chunk of the stream. The caller then asks for its events one by one.
    #[inline]
    pub fn push<'d, 'c>(&'d mut self, chunk: &'c [u8]) -> Events<'d, 'c> {
        Events::new(self, chunk)
    }

    /// The cursor of the stream, for `Last-Event-ID`: the last `id` of a complete event; empty if there was none.
    pub fn last_event_id(&self) -> &str {
        &self.id
    }

    /// How long the server asks us to wait before we connect again.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Whether an event has begun and has not ended. A stream that ends here was cut.
    pub fn is_inside_event(&self) -> bool {
        self.size > 0 || self.too_large || matches!(self.at, At::InLine)
    }

    /// Prepares for the stream of a new connection: drops unfinished data, keeps the cursor and the time to wait.
    pub fn reconnect(&mut self) {
        self.forget();
        self.at = At::Start(0);
        self.too_large = false;
    }

    /// Whether the next byte begins an event, and none of its bytes has come.
    #[inline]
    pub(super) fn is_between_events(&self) -> bool {
        self.is_at_line() && self.size == 0
    }

    /// Whether the next byte begins a line of an event, so that the line can be read in place.
    #[inline]
    pub(super) fn is_at_line(&self) -> bool {
        self.at == At::LineStart && !self.too_large
    }

    /// Continues where the previous chunk ended, up to the start of a line of an event, or to the end of the chunk.
    pub(super) fn resume(&mut self, chunk: &mut &[u8]) -> Result<(), EventTooLarge> {
        while let Some(&first) = chunk.first() {
            match self.at {
                At::Start(matched) if BYTE_ORDER_MARK.get(matched) == Some(&first) => {
                    *chunk = &chunk[1..];
                    self.at = if matched == 2 { At::LineStart } else { At::Start(matched + 1) };
                }
                At::Start(0) => self.at = At::LineStart,
                At::Start(matched) => {
                    self.line.extend_from_slice(&BYTE_ORDER_MARK[..matched]);
                    self.at = At::InLine;
                }
                At::AfterCr => {
                    if first == b'\n' {
                        *chunk = &chunk[1..];
                    }
                    self.at = At::LineStart;
                }
                At::LineStart if !self.too_large => return Ok(()),
                At::LineStart if is_end(first) => {
                    self.move_behind_end(chunk, 0);
                    self.too_large = false;
                }
                At::LineStart => self.at = At::InComment,
                At::InComment => match self.find_end_in_few(chunk) {
                    Some(end) => self.move_behind_end(chunk, end),
                    None => *chunk = &[],
                },
                At::InLine => match self.find_end_in_few(chunk) {
                    Some(end) => {
                        self.line.extend_from_slice(&chunk[..end]);
                        self.copied(end);
                        self.move_behind_end(chunk, end);
                        self.take_line()?;
                    }
                    None => self.add_to_line(std::mem::take(chunk))?,
                },
            }
        }
        Ok(())
    }

    /// Keeps the rest of a chunk, which is the beginning of a line.
    pub(super) fn begin_line(&mut self, rest: &[u8]) -> Result<(), EventTooLarge> {
        if rest.first() == Some(&b':') {
            self.at = At::InComment;
            return Ok(());
        }
        self.at = At::InLine;
        self.add_to_line(rest)
    }

    fn add_to_line(&mut self, part: &[u8]) -> Result<(), EventTooLarge> {
        if self.size + self.line.len() + part.len() >= self.limit {
            self.at = At::InComment;
            return Err(self.refuse());
        }
        match part {
            // Some streams come byte by byte.
            [byte] => self.line.push(*byte),
            _ => self.line.extend_from_slice(part),
        }
        self.copied(part.len());
        Ok(())
    }

    /// Reads the complete line in the buffer.
    fn take_line(&mut self) -> Result<(), EventTooLarge> {
        self.count(self.line.len())?;
        match Field::parse(&self.line) {
            Field::Data(value) if !self.held.has.data => {
                let start = self.line.len() - value.len();
                self.held.take_data_line(&mut self.line, start);
            }
            Field::Data(value) => {
                self.held.push_data(value);
                self.copied(self.line.len());
            }
            Field::Event(name) => self.held.set_name(name),
            Field::Id(id) => self.held.set_id(id),
            Field::Retry(after) => self.retry = Some(after),
            Field::Error { value, .. } if self.tells_errors => {
                self.held.set_name(ERROR);
                self.held.push_data(value);
                self.copied(self.line.len());
            }
            Field::Error { .. } | Field::Ignored => {}
        }
        self.line.clear();
        Ok(())
    }

    /// Counts a line of the open event.
    #[inline]
    pub(super) fn count(&mut self, line: usize) -> Result<(), EventTooLarge> {
        self.size += line + 1;
        if self.size > self.limit { Err(self.refuse()) } else { Ok(()) }
    }

    #[cold]
    fn refuse(&mut self) -> EventTooLarge {
        self.forget();
        self.too_large = true;
        EventTooLarge { limit: self.limit }
    }

    fn forget(&mut self) {
        self.line.clear();
        self.held.has = Fields::default();
        self.size = 0;
    }

    /// Where the line at the start of `rest` ends.
    #[inline(always)]
    pub(super) fn find_end(&mut self, rest: &[u8]) -> Option<usize> {
        let end = memchr::memchr2(b'\n', b'\r', rest);
        #[cfg(test)]
        self.work.search(end.map_or(rest.len(), |end| end + 1));
        end
    }

    /// Like [`Decoder::find_end`], for few bytes: to look at each costs less than to set up a search.
    #[inline]
    pub(super) fn find_end_in_few(&mut self, rest: &[u8]) -> Option<usize> {
        if rest.len() >= 8 {
            return self.find_end(rest);
        }
        let end = rest.iter().position(|&byte| is_end(byte));
        #[cfg(test)]
        self.work.search(end.map_or(rest.len(), |end| end + 1));
        end
    }

    /// The place behind the line end at `end`.
    #[inline]
    pub(super) fn behind_end(&mut self, chunk: &[u8], end: usize) -> usize {
        if chunk[end] == b'\n' {
            return end + 1;
        }
        match chunk.get(end + 1) {
            Some(b'\n') => end + 2,
            Some(_) => end + 1,
            None => {
                self.at = At::AfterCr;
                end + 1
            }
        }
    }

    fn move_behind_end(&mut self, chunk: &mut &[u8], end: usize) {
        self.at = At::LineStart;
        *chunk = &chunk[self.behind_end(chunk, end)..];
    }

    /// Counts copied bytes, for the tests of the decoder's cost.
    #[inline]
    pub(super) fn copied(&mut self, _bytes: usize) {
        #[cfg(test)]
        self.work.copy(_bytes);
    }

    /// Counts bytes that were checked as UTF-8, for the tests of the decoder's cost.
    #[inline]
    pub(super) fn checked(&mut self, _bytes: usize) {
        #[cfg(test)]
        self.work.check(_bytes);
    }
}

#[inline]
pub(super) fn is_end(byte: u8) -> bool {
    byte == b'\n' || byte == b'\r'
}

#[cfg(test)]
mod tests;
