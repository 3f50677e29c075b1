//! Collects the usage of an answer from the pieces that report it.
//!
//! Pure. Counts are cumulative, so the last one counts. An empty or zero count changes nothing, because some servers
//! begin with zeros and others end with them.

/// Counts of tokens. None was not said.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(in crate::inference) struct Counts {
    pub(in crate::inference) input: Option<u64>,
    pub(in crate::inference) output: Option<u64>,
    /// Input and output together.
    pub(in crate::inference) total: Option<u64>,
    pub(in crate::inference) cache_read: Option<u64>,
    pub(in crate::inference) cache_written: Option<u64>,
    /// Of the output, what was thought.
    pub(in crate::inference) reasoning: Option<u64>,
}

impl Counts {
    /// Takes what is said later.
    pub(in crate::inference) fn update(&mut self, newer: Self) {
        let update = |count: &mut Option<u64>, newer: Option<u64>| {
            if newer.is_some_and(|newer| newer > 0) || count.is_none() {
                *count = newer;
            }
        };
        update(&mut self.input, newer.input);
        update(&mut self.output, newer.output);
        update(&mut self.total, newer.total);
        update(&mut self.cache_read, newer.cache_read);
        update(&mut self.cache_written, newer.cache_written);
        update(&mut self.reasoning, newer.reasoning);
    }
}

/// The first of these that says something, under whichever name.
pub(in crate::inference) fn first(counts: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    counts.into_iter().flatten().fold(None, |first, count| first.filter(|first| *first > 0).or(Some(count)))
}
