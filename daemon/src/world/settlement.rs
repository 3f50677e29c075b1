//! Defines what a job asks a person, and what comes back. Reached through `world/api.rs`.

use std::sync::Arc;

use harness_protocol::interaction::{InteractionKind, Resolution, Scope};
use harness_protocol::time::Span;

/// What a person is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The kind of the interaction.
    pub kind: InteractionKind,
    /// The words for the person.
    pub question: Arc<str>,
    /// What is to be executed, if that is the question.
    pub subject: Option<Arc<str>>,
    /// How long the person has.
    pub within: Option<Span>,
}

/// How an interaction is settled, and the words that came with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// How it ends: answered, allowed, denied or expired.
    pub resolution: Resolution,
    /// The answer, or the reason of a refusal; may be empty.
    pub text: Arc<str>,
    /// What the person meant to allow or to deny.
    pub scope: Option<Scope>,
}

impl Settlement {
    /// An answer with this text.
    pub fn answer(text: impl Into<Arc<str>>) -> Self {
        Self { resolution: Resolution::Answered, text: text.into(), scope: None }
    }

    /// A resolution without words or a scope.
    pub fn of(resolution: Resolution) -> Self {
        Self { resolution, text: "".into(), scope: None }
    }

    /// A refusal, with its reason.
    pub fn denied(reason: impl Into<Arc<str>>) -> Self {
        Self { resolution: Resolution::Denied, text: reason.into(), scope: None }
    }

    /// What the model reads where its call does not go on because of this.
    pub fn refusal(&self) -> String {
        let reason = self.text.trim();
        match self.resolution {
            Resolution::Expired => "Not run: no person settled this in time.".to_owned(),
            _ if reason.is_empty() => "Denied by a person. Not run.".to_owned(),
            _ => format!("Denied: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_tells_the_model_the_reason_if_there_is_one() {
        assert_eq!(Settlement::denied(" ").refusal(), "Denied by a person. Not run.");
        assert_eq!(Settlement::denied("not on Fridays\n").refusal(), "Denied: not on Fridays");
        assert_eq!(Settlement::of(Resolution::Expired).refusal(), "Not run: no person settled this in time.");
    }
}
