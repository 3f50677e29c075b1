//! `harnessd`: a daemon that runs LLM agents. This page lists the modules, from the lowest layer up.
#![forbid(unsafe_code)]

// Pure: no clock, no I/O, no runtime.
pub mod blob;
pub mod config;
pub mod fair_queue;
pub mod lane;
pub mod prompt;
pub mod refusal;
pub mod tools;
pub mod world;

// The system's side of it.
pub mod fd_passing;
pub mod inference;
pub mod process;

// Work that blocks, bounded.
pub mod blocking;
pub mod close_threads;
pub mod folders;
pub mod timed_read;

// What lies between the world and its users. Of the world these see `world::api` only.
pub mod control;
pub mod feed;
pub mod inbox;
pub mod jobs;
pub mod journal;
pub mod observe;

// The owner of the world, and the start that sets all of it up.
pub mod cli;
pub mod driver;
pub mod startup;
