//! What the harness does, as those see it who use it: a file for each behaviour.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod archived;
mod bad_days;
mod bad_records;
mod cancelling;
mod commands;
mod crash;
mod daemon_life;
mod exit_codes;
mod exporting;
mod fairness;
mod first_run;
mod full_disk;
mod insiders;
mod lane;
mod losses;
mod old_journals;
mod pages;
mod processes_cgroups;
mod processes_ends;
mod processes_hostile;
mod processes_input;
mod processes_limits;
mod processes_output;
mod protocol;
mod pruning;
mod reconnecting;
mod recovery;
mod request_ids;
mod schema;
mod secrets;
mod soak;
mod subscribers;
mod systemd;
mod waiting;
mod waiting_crowds;
