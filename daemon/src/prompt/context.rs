//! Selects the parts of a transcript that make up a prompt, and estimates their size.
//!
//! Pure. Token counts are estimates on the safe side, because tokenizers differ between models.

use harness_protocol::run::Entry;

/// Bytes that make a token, on the safe side of what tokenizers do to prose and code.
pub const BYTES_OF_A_TOKEN: u64 = 3;
/// Tokens that a message takes beside its text.
const BESIDE: u64 = 8;

/// The entries that the next prompt is made of, in its order: after a summary what was kept, the summary, and what came
/// after that for which it stands.
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

/// For how many entries, from the begin on, the newest summary stands, and what it says.
pub fn summarised(entries: &[Entry]) -> Option<(usize, &str)> {
    entries.iter().rev().find_map(|entry| match entry {
        Entry::Summary { entries, text, .. } => Some((*entries as usize, &**text)),
        _ => None,
    })
}

pub(super) fn is_summary(entry: &Entry) -> bool {
    matches!(entry, Entry::Summary { .. })
}

/// About how many tokens an entry takes.
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

/// About how many tokens a message of so many bytes takes.
pub const fn tokens_of_message(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_OF_A_TOKEN) + BESIDE
}
