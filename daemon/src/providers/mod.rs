//! Providers: how a model is asked. A dialect is pure; whoever executes an inference does the waiting.

pub mod check;
pub mod scripted;
mod template;
