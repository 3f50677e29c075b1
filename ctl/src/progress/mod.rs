//! Shows what happens to runs while a command waits for them, and when they end. It must not change a run, except to
//! answer a question.

pub(crate) mod after_submit;
pub(crate) mod ask_inline;
pub(crate) mod end_of_run;
pub(crate) mod follow_one;
pub(crate) mod line_writer;
mod long_prompt;
pub(crate) mod wait_for_state;
pub(crate) mod wait_many;
