//! Contains what the dialects share: arguments, names and ids of calls, texts in pieces, token counts, limits of an
//! answer.

pub(super) mod answer_limit;
pub(super) mod call_ids;
pub(super) mod finish_reason;
pub(super) mod json_text;
pub(super) mod lenient;
pub(super) mod opaque_blocks;
pub(super) mod repeated_text;
pub(super) mod tool_args;
pub(super) mod tool_name;
pub(super) mod usage_counts;
