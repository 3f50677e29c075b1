//! Executes inferences: dialects translate prompts and answers, and the HTTP client or the scripted provider gets the
//! answers.
//!
//! A dialect is pure; all waiting is in `http` and in `jobs`.

mod common;
pub mod dialects;
pub mod errors;
mod fast_path;
pub mod http;
pub mod scripted;
#[cfg(test)]
mod tests;
