//! Prepares a run's next inference: the choice of the provider, a prompt that is short enough, a budget that allows it.

pub(super) mod budget;
pub(super) mod next_inference;
pub(super) mod prepare;
pub(super) mod provider_health;
pub(super) mod retry_delay;
pub(super) mod usage_estimate;
pub(super) mod when_to_compact;
