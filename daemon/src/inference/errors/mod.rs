//! Classifies errors of providers, and finds out when to ask again.

pub mod classify;
pub(super) mod envelope;
pub(super) mod quota;
pub(super) mod rate_limit;
pub(super) mod reset_time;
pub(super) mod too_long;
