//! Providers: how a model is asked. A dialect is pure; whoever executes an inference does the waiting.

mod common;
pub mod dialects;
pub mod errors;
mod fast_path;
pub mod http;
pub mod scripted;
#[cfg(test)]
mod tests;
