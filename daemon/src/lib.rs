//! `harnessd`: a daemon that runs LLM agents. This page is the table of contents, from the ground up.
#![forbid(unsafe_code)]

pub mod config;
pub mod inbox;
pub mod jobs;
pub mod process;
pub mod prompt;
pub mod providers;
pub mod tools;
pub mod world;
