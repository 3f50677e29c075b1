//! Reads the events of one chunk in place: an event that lies whole within the chunk is found, checked and lent without
//! a copy and without an allocation.
//!
//! This is the hot path. Events that continue in another chunk are left to the [`Decoder`] and its buffers.

use super::copied_fields::Fields;
use super::decoder::{Decoder, EventTooLarge, is_end};
use super::event::{DEFAULT_NAME, Event, push_text, text};
use super::field::{ERROR, Field};

/// The events that end in a chunk, in order. From [`Decoder::push`].
///
/// A lending iterator: an event is looked at before the next one is asked for. A caller that stops early takes the
/// unread bytes with [`Events::rest`], and pushes them again to continue.
pub struct Events<'d, 'c> {
    decoder: &'d mut Decoder,
    chunk: &'c [u8],
    at: usize,
    /// The text at the start of `chunk`, as far as it was checked. Whole lines only: a character may be split at the
    /// end of the chunk.
    valid: Option<&'c str>,
}

/// Fields of the open event that lie in the chunk, by position.
#[derive(Default)]
struct Open {
    name: Option<Span>,
    id: Option<Span>,
    /// The only data line so far, if it lies in the chunk. With a second one, the decoder holds them all.
    data: Option<Span>,
}

#[derive(Clone, Copy)]
struct Span {
    start: usize,
    end: usize,
}

impl<'d, 'c> Events<'d, 'c> {
    #[inline]
    pub(super) fn new(decoder: &'d mut Decoder, chunk: &'c [u8]) -> Self {
        Self { decoder, chunk, at: 0, valid: None }
    }

    /// The unread bytes.
    pub fn rest(&self) -> &'c [u8] {
        self.chunk.get(self.at..).unwrap_or_default()
    }

    /// The next event. `None`: the chunk is used up, and the next one may come. A stream that ends simply ends: an
    /// event without its blank line is dropped.
    ///
    /// # Errors
    /// For an event over the limit, once. The events after it are decoded as if it had not been there.
    #[expect(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    #[inline(always)]
    pub fn next(&mut self) -> Option<Result<Event<'_>, EventTooLarge>> {
        if !self.decoder.is_between_events() {
            return self.next_resumed();
        }
        // Nearly every event is one data line, perhaps after a name. That is read directly; any other event is handed
        // over with the results so far, so that no line is searched twice.
        let mut rest = self.rest();
        let mut at = self.at;
        let mut name = None;
        if let Some(value) = rest.strip_prefix(b"event: ") {
            let Some(length) = self.decoder.find_end(value) else { return self.put_aside(at, None) };
            if value[length] != b'\n' {
                return self.next_of_any(at, None, Some(7 + length));
            }
            name = Some(Span { start: at + 7, end: at + 7 + length });
            at += 7 + length + 1;
            rest = &value[length + 1..];
        }
        let Some(value) = rest.strip_prefix(b"data: ") else { return self.next_of_any(at, name, None) };
        let Some(length) = self.decoder.find_end(value) else { return self.put_aside(at, name) };
        let end = at + 6 + length;
        if !value[length..].starts_with(b"\n\n") || end + 1 - self.at > self.decoder.limit {
            return self.next_of_any(at, name, Some(6 + length));
        }
        self.at = end + 2;
        Some(Ok(self.lend_here(name, Span { start: at + 6, end })))
    }

    /// Continues an event of an earlier chunk.
    #[inline(never)]
    fn next_resumed(&mut self) -> Option<Result<Event<'_>, EventTooLarge>> {
        if !self.decoder.is_at_line() {
            let mut rest = self.rest();
            let resumed = self.decoder.resume(&mut rest);
            // The rest begins with a whole character again.
            (self.chunk, self.at, self.valid) = (rest, 0, None);
            if let Err(error) = resumed {
                return Some(Err(error));
            }
            if rest.is_empty() {
                return None;
            }
        }
        // Where events come in pieces, mostly only the blank line is still missing.
        if self.decoder.held.has.data && self.rest().first() == Some(&b'\n') {
            let open = Open::default();
            self.at += 1;
            if let Some(has) = self.close(&open) {
                return Some(Ok(self.lend(&open, has)));
            }
        }
        self.next_of_any(self.at, None, None)
    }

    /// Keeps the unfinished line at `at`, and the name in the line before it, if there is one.
    #[inline(never)]
    fn put_aside(&mut self, at: usize, name: Option<Span>) -> Option<Result<Event<'_>, EventTooLarge>> {
        if let Err(error) = self.count_name(at, name) {
            return Some(Err(error));
        }
        if let Some(name) = name {
            self.decoder.held.set_name(&self.chunk[name.start..name.end]);
        }
        let rest = self.rest();
        self.at = self.chunk.len();
        self.decoder.begin_line(rest).err().map(Err)
    }

    /// Moves on to `at`, and counts the line before it if that was a name.
    fn count_name(&mut self, at: usize, name: Option<Span>) -> Result<(), EventTooLarge> {
        let line = at - self.at;
        self.at = at;
        if name.is_some() { self.decoder.count(line - 1) } else { Ok(()) }
    }

    /// The next event of any form, from `at` on. `name` is that of the line before, which was not counted yet; `found`
    /// is the length of the first line, if that is known.
    #[inline(never)]
    fn next_of_any(
        &mut self,
        at: usize,
        name: Option<Span>,
        mut found: Option<usize>,
    ) -> Option<Result<Event<'_>, EventTooLarge>> {
        if let Err(error) = self.count_name(at, name) {
            return Some(Err(error));
        }
        let mut open = Open { name, ..Open::default() };
        let chunk = self.chunk;
        let mut at = self.at;
        while let Some(&first) = chunk.get(at) {
            if is_end(first) {
                at = self.decoder.behind_end(chunk, at);
                if let Some(has) = self.close(&open) {
                    self.at = at;
                    return Some(Ok(self.lend(&open, has)));
                }
                open = Open::default();
                continue;
            }
            let rest = &chunk[at..];
            let Some(length) = found.take().or_else(|| self.decoder.find_end_in_few(rest)) else {
                self.at = chunk.len();
                self.keep(&open);
                return self.decoder.begin_line(rest).err().map(Err);
            };
            let line = &rest[..length];
            let end = at + length;
            at = self.decoder.behind_end(chunk, end);
            if first == b':' {
                continue;
            }
            if let Err(error) = self.decoder.count(length) {
                self.at = at;
                return Some(Err(error));
            }
            let span = |value: &[u8]| Some(Span { start: end - value.len(), end });
            match Field::parse(line) {
                Field::Data(value) if open.data.is_none() && !self.decoder.held.has.data => open.data = span(value),
                Field::Data(value) => {
                    if let Some(before) = open.data.take() {
                        self.hold_data(&chunk[before.start..before.end]);
                    }
                    self.hold_data(value);
                }
                Field::Event(name) => open.name = span(name),
                Field::Id(id) => open.id = span(id),
                Field::Retry(after) => self.decoder.retry = Some(after),
                Field::Error { word, value } if self.decoder.tells_errors => {
                    let start = end - line.len() + word;
                    open.name = Some(Span { start, end: start + ERROR.len() });
                    if let Some(before) = open.data.take() {
                        self.hold_data(&chunk[before.start..before.end]);
                    }
                    self.hold_data(value);
                }
                Field::Error { .. } | Field::Ignored => {}
            }
        }
        self.at = at;
        self.keep(&open);
        None
    }

    fn hold_data(&mut self, value: &[u8]) {
        self.decoder.copied(value.len());
        self.decoder.held.push_data(value);
    }

    /// Copies the parts that would be lost with the chunk.
    fn keep(&mut self, open: &Open) {
        if let Some(name) = open.name {
            self.decoder.held.set_name(&self.chunk[name.start..name.end]);
        }
        if let Some(id) = open.id {
            self.decoder.held.set_id(&self.chunk[id.start..id.end]);
        }
        if let Some(data) = open.data {
            self.hold_data(&self.chunk[data.start..data.end]);
        }
    }

    /// Ends the open event at its blank line: moves the cursor, and gives the held fields if there is an event to lend.
    #[inline]
    fn close(&mut self, open: &Open) -> Option<Fields> {
        let Decoder { size, held, id, .. } = &mut *self.decoder;
        *size = 0;
        let has = std::mem::take(&mut held.has);
        if open.id.is_some() || has.id {
            let found = open.id.map_or(held.id(), |span| &self.chunk[span.start..span.end]);
            id.clear();
            push_text(found, id);
        }
        (open.data.is_some() || has.data).then_some(has)
    }

    /// Lends an event that lies whole in the chunk.
    #[inline(always)]
    fn lend_here(&mut self, name: Option<Span>, data: Span) -> Event<'_> {
        let valid = self.valid();
        let name_text = match name {
            Some(name) => valid.get(name.start..name.end),
            None => Some(DEFAULT_NAME),
        };
        match (name_text, valid.get(data.start..data.end)) {
            (Some(name), Some(data)) if !name.is_empty() => Event { name, data, id: &self.decoder.id },
            _ => self.lend(&Open { name, data: Some(data), id: None }, Fields::default()),
        }
    }

    /// Lends any event: from fields in the chunk, and held ones.
    #[inline(never)]
    fn lend(&mut self, open: &Open, has: Fields) -> Event<'_> {
        let valid = if open.name.is_some() || open.data.is_some() { self.valid() } else { "" };
        if has.data {
            self.decoder.checked(self.decoder.held.data().len());
        }
        let Decoder { held, id, name_text, data_text, .. } = &mut *self.decoder;
        let name = match open.name {
            Some(span) => span.text(valid, self.chunk, name_text),
            None if has.name => text(held.name(), name_text),
            None => "",
        };
        let data = match open.data {
            Some(span) => span.text(valid, self.chunk, data_text),
            None => text(held.data(), data_text),
        };
        Event { name: if name.is_empty() { DEFAULT_NAME } else { name }, data, id }
    }

    /// The whole lines of the chunk as text, as far as they are UTF-8. They are checked at once: that costs half as
    /// much as event by event.
    #[inline]
    fn valid(&mut self) -> &'c str {
        match self.valid {
            Some(valid) => valid,
            None => self.validate(),
        }
    }

    #[inline(never)]
    fn validate(&mut self) -> &'c str {
        let lines = memchr::memrchr2(b'\n', b'\r', self.chunk).unwrap_or(0);
        let lines = &self.chunk[..lines];
        self.decoder.checked(lines.len());
        let valid = str::from_utf8(lines);
        let valid = valid.unwrap_or_else(|error| str::from_utf8(&lines[..error.valid_up_to()]).unwrap_or_default());
        self.valid = Some(valid);
        valid
    }
}

impl Span {
    #[inline]
    fn text<'a>(self, valid: &'a str, chunk: &'a [u8], scratch: &'a mut String) -> &'a str {
        match valid.get(self.start..self.end) {
            Some(text) => text,
            None => text(&chunk[self.start..self.end], scratch),
        }
    }
}
