//! Selects the parts of a transcript that make up a prompt, and estimates their size in tokens.
//!
//! Pure. The estimates are on the safe side, because tokenizers differ between models.

use harness_protocol::run::Entry;

/// Bytes per token, on the safe side for prose and code.
pub const BYTES_OF_A_TOKEN: u64 = 3;
/// Tokens that a message takes in addition to its text.
const BESIDE: u64 = 8;

/// The entries of the next prompt, in its order. After a summary these are the kept messages, the summary, and the
/// entries behind the summarised part.
pub fn current(entries: &[Entry]) -> impl Iterator<Item = &Entry> {
    let (kept, summary, rest): (&[u32], _, _) = match entries.iter().rfind(|entry| is_summary(entry)) {
        Some(summary @ Entry::Summary { entries: stands_for, kept, .. }) => {
            (kept, Some(summary), entries.get(*stands_for as usize..).unwrap_or_default())
        }
        _ => (&[], None, entries),
    };
    let kept = kept.iter().filter_map(|&place| entries.get(place as usize));
    kept.chain(summary).chain(rest.iter().filter(|entry| !is_summary(entry)))
}

/// The newest summary: the number of entries, from the beginning, that it replaces, and its text.
pub fn summarised(entries: &[Entry]) -> Option<(usize, &str)> {
    entries.iter().rev().find_map(|entry| match entry {
        Entry::Summary { entries, text, .. } => Some((*entries as usize, &**text)),
        _ => None,
    })
}

pub(super) fn is_summary(entry: &Entry) -> bool {
    matches!(entry, Entry::Summary { .. })
}

/// Estimated tokens of an entry.
pub fn tokens_of(entry: &Entry) -> u64 {
    let bytes = match entry {
        Entry::User { text } | Entry::Summary { text, .. } => text.len(),
        Entry::Assistant { text, calls, carried, .. } => {
            let carried = carried.as_ref().map_or(0, |carried| carried.parts.len());
            carried + text.len() + calls.iter().map(|call| call.tool.len() + call.args.len()).sum::<usize>()
        }
        Entry::Result { result } => result.envelope.len(),
    };
    tokens_of_message(bytes as u64)
}

/// Estimated tokens of a message of `bytes` bytes.
pub const fn tokens_of_message(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_OF_A_TOKEN) + BESIDE
}
