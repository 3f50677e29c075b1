//! Inference: dialects translate prompts and answers, the HTTP client and the scripted provider execute them.
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
