//! Providers: how a model is asked. A dialect is pure; whoever executes an inference does the waiting.

mod announced;
mod anthropic;
mod arguments;
mod call_ids;
mod carried;
pub mod check;
mod counts;
pub mod dialect;
mod envelope;
mod finish;
mod form;
mod holes;
pub mod http;
mod lenient;
mod names;
mod openai;
pub mod patterns;
mod quota;
mod rate_limit;
pub mod refusal;
mod reset_time;
mod responses;
mod room;
pub mod scripted;
mod skim;
mod template;
#[cfg(test)]
mod tests;
mod text;
mod too_long;
