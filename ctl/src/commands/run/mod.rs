//! Contains the commands about runs, a file each.

pub(super) mod cancel;
pub(super) mod change_outcome;
pub(super) mod export;
pub(super) mod export_script;
pub(super) mod follow;
pub(super) mod key_held;
pub(super) mod list;
pub(super) mod logs;
pub(super) mod logs_call;
pub(super) mod message;
pub(super) mod pause;
pub(super) mod prune;
pub(super) mod resume;
pub(super) mod retry;
pub(super) mod run_each;
pub(super) mod show;
pub(super) mod submit;
pub(super) mod submit_batch;
pub(super) mod transcript_pages;
pub(super) mod wait;
