//! Defines what a person is asked, and how that is settled. Pure.
//!
//! A kind of interaction is defined here alone: which resolutions it takes, and its words. Everything else asks it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::id::{InteractionId, RunId};
use crate::time::{Span, Timestamp};

/// Kinds of interactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum InteractionKind {
    /// A question, answered with text.
    #[default]
    Question,
    /// A call that does not begin before a person allows it.
    Approval,
    /// A question whose answer has a form that the question describes, such as a JSON object.
    Form,
}

impl InteractionKind {
    /// Every kind, in the order of the declaration.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name of the kind, as in JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether a client can settle an interaction of this kind like this. No client settles one as expired.
    pub const fn takes(self, resolution: Resolution) -> bool {
        match (self, resolution) {
            (Self::Question | Self::Form, Resolution::Answered) | (Self::Approval, Resolution::Allowed) => true,
            (_, Resolution::Denied) => true,
            (Self::Question | Self::Form, Resolution::Allowed) | (Self::Approval, Resolution::Answered) => false,
            (_, Resolution::Expired) => false,
        }
    }

    /// Whether it is settled before its call begins. Otherwise the call asks while it executes, or does nothing else.
    pub const fn comes_first(self) -> bool {
        self.takes(Resolution::Allowed)
    }

    /// The words for a person, with the kind before them where it is not a question.
    pub fn asks(self, question: &str) -> String {
        if self.is_question() { question.to_owned() } else { format!("{self}: {question}") }
    }

    /// The command that settles such an interaction.
    pub fn how_to_settle(self, interaction: impl fmt::Display) -> String {
        let words = if self.comes_first() { "--allow (or --deny)" } else { "TEXT" };
        format!("harnessctl reply {interaction} {words}")
    }

    /// Whether it is a question. Records and frames leave such a kind out.
    pub const fn is_question(&self) -> bool {
        matches!(self, Self::Question)
    }
}

impl fmt::Display for InteractionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How an interaction was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Resolution {
    /// A person gave an answer. It is the result of a call that only asked.
    #[default]
    Answered,
    /// A person allowed the call: it can begin.
    Allowed,
    /// A person refused. The model reads the reason.
    Denied,
    /// Its time was up before a person settled it.
    Expired,
}

impl Resolution {
    /// Every resolution, in the order of the declaration.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name of the resolution, as in JSON.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether it is an answer. Records and frames leave such a resolution out.
    pub const fn is_answered(&self) -> bool {
        matches!(self, Self::Answered)
    }
}

impl fmt::Display for Resolution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a person meant to allow or to deny. It is recorded: a daemon without a policy asks about each call by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// This call, and no later one.
    Call,
    /// Such calls of this run.
    Run,
    /// Such calls of runs with the same label.
    Label,
    /// Such calls of every run.
    Always,
}

/// What a person is asked about a call. Part of the call, from the answer in which the model asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CallAsk {
    /// An approval comes before the call. For the other kinds the call asks once it executes, and its process reads the
    /// answer as standard input.
    pub kind: InteractionKind,
    /// The words for the person. An approval has some of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<Arc<str>>,
    /// How long the person has. Without it there is no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_seconds: Option<Span>,
}

impl CallAsk {
    /// An approval without an end.
    pub const fn approval() -> Self {
        Self { kind: InteractionKind::Approval, text: None, expires_seconds: None }
    }
}

/// An open interaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct InteractionView {
    /// Id of the interaction, for `reply`.
    pub id: InteractionId,
    /// The run that waits.
    pub run: RunId,
    /// Name of the run, if it has one.
    pub run_name: Option<Arc<str>>,
    /// The run that submitted that run; `None` if an operator did. A child may have the name of an operator's run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// Kind of the interaction.
    pub kind: InteractionKind,
    /// Text of the question.
    pub question: Arc<str>,
    /// What is to be executed, if that is the question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Arc<str>>,
    /// When it was opened.
    pub since: Timestamp,
    /// When it is settled as expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

impl InteractionView {
    /// What is to be executed where a person has to allow it: to be shown whole.
    pub fn to_be_allowed(&self) -> Option<&str> {
        self.subject.as_deref().filter(|_| self.kind.comes_first())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_can_be_denied_and_goes_on_by_one_other_resolution() {
        for &kind in InteractionKind::ALL {
            let taken: Vec<Resolution> = Resolution::ALL.iter().copied().filter(|way| kind.takes(*way)).collect();
            assert!(taken.len() == 2 && taken.contains(&Resolution::Denied), "{kind}: {taken:?}");
        }
        assert!(InteractionKind::Approval.comes_first() && !InteractionKind::Form.comes_first());
    }
}
