//! Prepares a run's next inference: chooses the provider, shortens a prompt that is too long, and reserves the budget.

pub(super) mod budget;
pub(super) mod next_inference;
pub(super) mod prepare;
pub(super) mod provider_health;
pub(super) mod retry_delay;
pub(super) mod usage_estimate;
pub(super) mod when_to_compact;
