//! What the harness does, as those see it who use it: a file for each behaviour.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cancelling;
mod commands;
mod daemon_life;
mod exit_codes;
mod fairness;
mod first_run;
mod insiders;
mod lane;
mod losses;
mod pages;
mod processes_ends;
mod processes_hostile;
mod processes_input;
mod processes_limits;
mod processes_output;
mod protocol;
mod provider_calls;
mod provider_faults;
mod provider_keys;
mod provider_lanes;
mod provider_limits;
mod request_ids;
mod secrets;
mod soak;
mod subscribers;
mod systemd;
mod waiting;
mod waiting_crowds;
