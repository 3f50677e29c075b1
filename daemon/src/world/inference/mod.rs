//! How a run comes to its next inference: which provider, a prompt short enough, a budget that allows it.

pub(super) mod budget;
pub(super) mod compaction;
pub(super) mod next;
pub(super) mod provider_health;
pub(super) mod usage_estimate;
