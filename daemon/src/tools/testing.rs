//! Defines a tool for tests, whose calls may execute side by side.

use super::{Command, Facts, Plan, Process, Refused, Tool, ToolKind};

/// Its name is `read`, and it does nothing.
pub(crate) struct ParallelDouble;

impl Tool for ParallelDouble {
    fn name(&self) -> &'static str {
        "read"
    }

    fn description(&self) -> &'static str {
        "Does nothing."
    }

    fn parameters(&self) -> String {
        r#"{"type":"object","properties":{}}"#.to_owned()
    }

    fn usage(&self) -> &'static str {
        "{}"
    }

    fn kind(&self) -> ToolKind {
        ToolKind::Job { parallel_safe: true }
    }

    fn plan(&self, _: &str, facts: &Facts<'_>) -> Result<Plan, Refused> {
        Ok(Plan::Process(Process::new(Command::Line("true".to_owned()), facts)))
    }
}
