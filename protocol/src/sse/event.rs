//! Defines the event that the decoder lends to its caller, and converts bytes to text. It keeps no byte: what the
//! caller needs later, it copies.

/// One event. It borrows from its chunk, or from the decoder if it came in several chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// Its name: `message` if the stream gives none, or an empty one.
    pub name: &'a str,
    /// Its data lines, with a line feed between each two.
    pub data: &'a str,
    /// The cursor of the stream after this event: the last `id` so far; empty if there was none.
    pub id: &'a str,
}

/// The name of an event without one.
pub(super) const DEFAULT_NAME: &str = "message";

/// `bytes` as text. Invalid UTF-8 is replaced by the encoding standard's rules; the text is then in `scratch`.
pub(super) fn text<'a>(bytes: &'a [u8], scratch: &'a mut String) -> &'a str {
    match str::from_utf8(bytes) {
        Ok(text) => text,
        Err(_) => replaced(bytes, scratch),
    }
}

#[cold]
fn replaced<'a>(bytes: &[u8], scratch: &'a mut String) -> &'a str {
    scratch.clear();
    push_text(bytes, scratch);
    scratch
}

/// Appends `bytes` as text, with a replacement character for each maximal invalid part.
pub(super) fn push_text(bytes: &[u8], out: &mut String) {
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}
