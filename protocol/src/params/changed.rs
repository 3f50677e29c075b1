//! Defines the reply to a change of runs: which runs changed, and why the others did not.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::id::RunId;
use crate::run::RunState;

/// Reply to `run.cancel`, `run.pause`, `run.resume` and `run.prune`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Changed {
    /// The changed runs, those below the selected ones included.
    pub runs: Vec<RunId>,
    /// Selected runs that did not change, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unchanged: Vec<Unchanged>,
    /// Number of changed runs beyond those listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_listed: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks like this")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A selected run that did not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Unchanged {
    /// Id of the run.
    pub run: RunId,
    /// Why it stays as it is. Daemons before protocol 1.3 leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<UnchangedReason>,
    /// The top of the tree because of which it stays, where that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<RunId>,
    /// The reason in words for people. The words may change.
    pub why: String,
}

impl Unchanged {
    /// A run that stays as it is for this reason.
    pub fn new(run: RunId, reason: UnchangedReason) -> Self {
        Self { run, reason: Some(reason), root: None, why: reason.words(None).unwrap_or_default().into_owned() }
    }

    /// A run that stays because something of the tree below `root` is live.
    pub fn of_tree(run: RunId, root: RunId) -> Self {
        let why = UnchangedReason::TreeLive.words(Some(root)).unwrap_or_default().into_owned();
        Self { run, reason: Some(UnchangedReason::TreeLive), root: Some(root), why }
    }

    /// The reason in words; those of the daemon where it does not give a reason that is known here.
    pub fn words(&self) -> Cow<'_, str> {
        let known = self.reason.and_then(|reason| reason.words(self.root));
        known.unwrap_or(Cow::Borrowed(self.why.as_str()))
    }
}

/// Why a selected run did not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum UnchangedReason {
    /// It has succeeded.
    HasSucceeded,
    /// It has failed.
    HasFailed,
    /// It was cancelled.
    WasCancelled,
    /// It is being ended.
    BeingEnded,
    /// It is paused already.
    AlreadyPaused,
    /// It is not paused.
    NotPaused,
    /// It is live.
    Live,
    /// A run of its tree is live, and may ask for its answer.
    TreeLive,
    /// A run of its tree is live, or it does not meet the other criteria.
    Kept,
    /// The daemon is of another version, and has a reason that this program does not know.
    #[serde(other)]
    Other,
}

impl UnchangedReason {
    /// The reason of a run that has ended in this state; `None` where it has not ended.
    pub const fn of_ended(state: RunState) -> Option<Self> {
        match state {
            RunState::Succeeded => Some(Self::HasSucceeded),
            RunState::Failed => Some(Self::HasFailed),
            RunState::Cancelled => Some(Self::WasCancelled),
            _ => None,
        }
    }

    /// The reason as the end of a sentence about the run; `None` for an unknown one.
    fn words(self, root: Option<RunId>) -> Option<Cow<'static, str>> {
        Some(Cow::Borrowed(match (self, root) {
            (Self::HasSucceeded, _) => "it has succeeded already",
            (Self::HasFailed, _) => "it has failed already",
            (Self::WasCancelled, _) => "it was cancelled already",
            (Self::BeingEnded, _) => "it is being ended already",
            (Self::AlreadyPaused, _) => "it is paused already",
            (Self::NotPaused, _) => "it is not paused",
            (Self::Live, _) => "it is live",
            (Self::TreeLive, Some(root)) => {
                return Some(format!("something of the tree below {root} is live and may ask for its answer").into());
            }
            (Self::TreeLive, None) => "something of its tree is live and may ask for its answer",
            (Self::Kept, _) => "it stays: something of its tree is live, or it does not fit what else was asked for",
            (Self::Other, _) => return None,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_reason_that_is_known_is_told_in_our_words_and_any_other_in_those_of_the_daemon() {
        let run = RunId::from_u64(7);
        let read = |json: &str| serde_json::from_str::<Unchanged>(json).unwrap();
        for (reason, words) in [
            (r#""reason":"was-cancelled","#, "it was cancelled already"),
            (r#""reason":"a-reason-of-later","#, "so it is"),
            ("", "so it is"),
        ] {
            let json = format!(r#"{{"run":"{run}",{reason}"why":"so it is"}}"#);
            assert_eq!(read(&json).words(), words);
        }
        let of_tree = Unchanged::of_tree(run, RunId::from_u64(3));
        assert!(of_tree.words().contains(&RunId::from_u64(3).to_string()) && of_tree.words() == of_tree.why);
        assert_eq!(read(&serde_json::to_string(&of_tree).unwrap()), of_tree);
    }
}
