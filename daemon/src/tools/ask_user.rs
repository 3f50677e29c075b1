//! Plans the tool `ask_user`, which asks a person a question.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::plan::arguments;
use super::{Facts, Plan, Refused, Tool, ToolKind, Transition, schema};

/// Asks a person.
pub(super) struct AskUser;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The question for the person.
    question: Arc<str>,
}

impl Tool for AskUser {
    fn name(&self) -> &'static str {
        "ask_user"
    }

    fn description(&self) -> &'static str {
        "Asks a person a question and returns the answer. It may take a long time, and perhaps no person answers: \
         ask only what you cannot find out yourself."
    }

    fn parameters(&self) -> String {
        schema::of::<Args>()
    }

    fn usage(&self) -> &'static str {
        r#"{"question": "…"}"#
    }

    fn kind(&self) -> ToolKind {
        ToolKind::World
    }

    fn plan(&self, args: &str, _: &Facts<'_>) -> Result<Plan, Refused> {
        let Args { question } = arguments(self, args)?;
        Ok(Plan::World(Transition::Ask(question)))
    }
}
