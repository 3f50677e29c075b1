//! Renders the end of a run in one line, which `wait` and batches print. The only place with the format of that line.

use harness_protocol::event::Ending;
use harness_protocol::rpc::RpcError;
use harness_protocol::run::{RunState, RunView, exit};

use crate::render::follow::Ended;
use crate::render::text::first_line;

/// The end of a run, or the fact that there is no such run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    /// State of the run; `None` if there is no such run.
    pub(crate) state: Option<RunState>,
    /// Exit code of the run; `None` while it is live.
    pub(crate) code: Option<u8>,
    /// Answer or error of the run.
    pub(crate) text: String,
}

impl Outcome {
    /// The outcome from the last event of a run.
    pub(crate) fn ended(ending: &Ending) -> Self {
        let (state, code, text) = match ending {
            Ending::Succeeded { answer } => (RunState::Succeeded, exit::SUCCEEDED, answer),
            Ending::Failed { error, exit_code } => (RunState::Failed, *exit_code, error),
            Ending::Cancelled { error } => (RunState::Cancelled, exit::CANCELLED, error),
        };
        Self { state: Some(state), code: Some(code), text: text.to_string() }
    }

    /// The outcome of a followed run.
    pub(crate) fn of_followed(ended: &Ended) -> Self {
        let state = match ended.code {
            exit::SUCCEEDED => RunState::Succeeded,
            exit::CANCELLED => RunState::Cancelled,
            _ => RunState::Failed,
        };
        let text = ended.answer.as_deref().or(ended.error.as_deref()).unwrap_or_default();
        Self { state: Some(state), code: Some(ended.code), text: text.to_owned() }
    }

    /// The outcome from a view of the run.
    pub(crate) fn of(run: &RunView) -> Self {
        let text = run.answer.as_deref().or(run.error.as_deref()).unwrap_or_default();
        Self { state: Some(run.state), code: run.exit_code, text: text.to_owned() }
    }

    /// The outcome for a run that does not exist.
    pub(crate) fn refused(error: &RpcError) -> Self {
        Self { state: None, code: Some(error.data.exit_code), text: error.message.clone() }
    }

    /// The line of a run: `ID STATE EXIT TEXT`.
    pub(crate) fn line(&self, run: &str) -> String {
        let state = self.state.map_or("unknown", RunState::as_str);
        let code = self.code.map_or_else(|| "-".to_owned(), |code| code.to_string());
        let text = first_line(&self.text);
        // A text that equals the state is left out.
        let text = if text == state { "" } else { &text };
        format!("{run} {state} {code} {text}").trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_id_the_state_the_code_and_the_first_line() {
        let outcome = Outcome { state: Some(RunState::Succeeded), code: Some(0), text: "\none\ntwo".to_owned() };
        assert_eq!(outcome.line("abc"), "abc succeeded 0 one");
        let live = Outcome { state: Some(RunState::Thinking), code: None, text: String::new() };
        assert_eq!(live.line("abc"), "abc thinking -");
        let failed = Outcome::ended(&Ending::Failed { error: "steps".into(), exit_code: 9 });
        assert_eq!(failed.line("abc"), "abc failed 9 steps");
        let cancelled = Outcome::ended(&Ending::Cancelled { error: "cancelled".into() });
        assert_eq!(cancelled.line("abc"), "abc cancelled 5");
    }
}
