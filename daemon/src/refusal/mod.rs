//! Defines the reasons why a request is refused, as data, with one sentence for each.
//!
//! The only place with the refusals of the world, the journal and the driver, by subject, and with their sentences for
//! people and for models. Pure. It must not know an error code of the wire: `control::refusals` maps each refusal to
//! the wire.

mod journal;
mod lane;
mod name;
mod new_run;
mod question;
mod run;
mod spec;
mod subscription;
mod workdir;

pub use journal::{HeldRequest, JournalRefusal};
pub use lane::LaneRefusal;
pub use name::NameRefusal;
pub use new_run::NewRunRefusal;
pub use question::QuestionRefusal;
pub use run::RunRefusal;
pub use spec::{SpecRefusal, Text};
pub use subscription::SubscriptionRefusal;
pub use workdir::WorkdirRefusal;

use std::fmt::Display;

use harness_protocol::id::RunId;
use harness_protocol::rpc::{ConfigProblem, Subject};

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It names no thing, or several.
    #[error(transparent)]
    Name(#[from] NameRefusal),
    /// A specification or a text cannot be taken.
    #[error(transparent)]
    Spec(#[from] SpecRefusal),
    /// There can be no such new run now.
    #[error(transparent)]
    NewRun(#[from] NewRunRefusal),
    /// The working directory is not as it should be.
    #[error(transparent)]
    Workdir(#[from] WorkdirRefusal),
    /// The state of a run does not allow it.
    #[error(transparent)]
    Run(#[from] RunRefusal),
    /// There is nothing to answer any more.
    #[error(transparent)]
    Question(#[from] QuestionRefusal),
    /// A lane cannot be changed like this.
    #[error(transparent)]
    Lane(#[from] LaneRefusal),
    /// There can be no such subscription.
    #[error(transparent)]
    Subscription(#[from] SubscriptionRefusal),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] JournalRefusal),
    /// The caller is a process of a run, and asks for more than it may do.
    #[error("{}", own_tree_only(*.run))]
    OwnTreeOnly {
        /// The run of the caller, where it matters.
        run: Option<RunId>,
    },
    /// The configuration cannot be used, so the old one stays.
    #[error("the configuration stays as it was: {why}")]
    Configuration {
        /// Whose fault that is.
        fault: ConfigurationFault,
        /// What is wrong with it, as its reader says.
        why: String,
        /// What is wrong with files, each with its line.
        problems: Vec<ConfigProblem>,
    },
    /// The daemon is stopping.
    #[error("the daemon is stopping; try again")]
    Stopping {
        /// The request may still take effect.
        undecided: bool,
    },
    /// A change of many runs came to an end before all of them were changed.
    #[error("{why}; {done} runs were changed before, the rest is as it was; ask again for those")]
    Partly {
        /// Number of runs that were changed.
        done: u64,
        /// Why the rest was not.
        why: Box<Self>,
    },
    /// Internal error (bug).
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Whose fault it is that a configuration cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigurationFault {
    /// A file cannot be read, has a mistake, or names something that cannot be used.
    Wrong,
    /// A file or a database does not answer.
    Silent,
    /// Internal error (bug).
    Ours,
}

/// An internal error (bug).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The world answered a command with a reply of another kind.
    #[error("the world answered something else")]
    OtherReply,
    /// A request came to a part of the daemon that does not serve such requests.
    #[error("this call was not expected here")]
    OtherRequest,
    /// The check of a provider ended without a result.
    #[error("an internal error (bug) ended the check")]
    CheckLost,
}

impl Refusal {
    /// Whether no run of the world has the id or name. The journal may know it.
    pub const fn is_unknown_run(&self) -> bool {
        matches!(self, Self::Name(name) if name.is_unknown_run())
    }

    /// Whether several things fit a name.
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Name(name) if name.is_ambiguous())
    }
}

fn own_tree_only(run: Option<RunId>) -> String {
    match run {
        Some(run) => format!(
            "this comes from a tool of run {run}, which may only submit children of it and look at its own tree"
        ),
        None => "a tool of a run may submit children of it and look at its own tree, nothing else".to_owned(),
    }
}

/// A text of a client as a sentence shows it: quoted, without control characters, at most 80 characters of it.
fn shown(text: &str) -> String {
    format!("{:?}", Subject::short(text))
}

/// The items of a list, separated by commas.
fn listed<T: Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}
