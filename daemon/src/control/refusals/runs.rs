//! Maps refusals about runs that exist, or do not, to errors on the wire.

use ErrorKind::{Ambiguous, Invalid, NoLongerApplies, NotFound};
use harness_protocol::rpc::{ErrorKind, Reason, Subject};
use harness_protocol::time::Span;

use super::Wire;
use crate::refusal::{NameRefusal, QuestionRefusal, RunRefusal};

/// How a client names its last run.
const LAST: &str = "@last";

fn name_of(text: &str) -> Subject {
    Subject::Name(Subject::short(text).into_owned())
}

pub(super) fn name(refusal: &NameRefusal) -> Wire {
    use NameRefusal as N;
    match refusal {
        N::NoRun { name } | N::NoRunInTree { name } | N::ChildName { name, .. } => {
            Wire::new(NotFound, Reason::UnknownRun, name_of(name))
        }
        N::NoRunYet => Wire::new(NotFound, Reason::UnknownRun, name_of(LAST)),
        N::SeveralRuns { name, .. }
        | N::NameAndId { name, .. }
        | N::NameAndInteraction { name, .. }
        | N::SeveralInteractions { name, .. } => Wire::new(Ambiguous, Reason::AmbiguousName, name_of(name)),
        N::NoInteraction { name } => Wire::new(NotFound, Reason::UnknownInteraction, name_of(name)),
        N::NoCall { call, .. } => Wire::new(NotFound, Reason::UnknownCall, Subject::Call(*call)),
        N::NoText { hash } => Wire::new(NotFound, Reason::UnknownText, Subject::Text(*hash)),
        N::NoProvider { provider, .. } => {
            Wire::new(NotFound, Reason::UnknownProvider, Subject::Provider(Subject::short(provider).into_owned()))
        }
        N::NothingSelected | N::NothingToPrune => Wire::new(Invalid, Reason::NothingSelected, None),
    }
}

pub(super) fn run(refusal: RunRefusal) -> Wire {
    use RunRefusal as R;
    let (kind, reason, run) = match refusal {
        R::Gone { run } => (NoLongerApplies, Reason::RunGone, run),
        R::NotHere { run } | R::Pruned { run } => (NotFound, Reason::RunGone, run),
        R::NotEnded { run } => (Invalid, Reason::NotEnded, run),
        R::Live { run } => (NoLongerApplies, Reason::NotEnded, run),
        R::OfAnotherRun { run, .. } => (Invalid, Reason::ChildRun, run),
        R::TooManyMessages { run } => (ErrorKind::Busy, Reason::TooManyMessages, run),
        R::BeingEnded { run } => (NoLongerApplies, Reason::BeingEnded, run),
        R::NoTranscript { run } => (Invalid, Reason::NoTranscript, run),
        R::TreeLive { run } => (NoLongerApplies, Reason::TreeLive, run),
        R::PartOfTree { root, .. } => (Invalid, Reason::PartOfTree, root),
    };
    let wire = Wire::new(kind, reason, Subject::Run(run));
    if kind == ErrorKind::Busy { wire.retry_after(Span::from_secs(5)) } else { wire }
}

pub(super) fn question(refusal: QuestionRefusal) -> Wire {
    use QuestionRefusal as Q;
    match refusal {
        Q::AsksNothing { run } => Wire::new(NoLongerApplies, Reason::AsksNothing, Subject::Run(run)),
        Q::Answered { interaction, .. } => {
            Wire::new(NoLongerApplies, Reason::AlreadyAnswered, Subject::Interaction(interaction))
        }
        Q::Unfit { interaction, .. } | Q::NoScope { interaction } => {
            Wire::new(Invalid, Reason::ResolutionUnfit, Subject::Interaction(interaction))
        }
        Q::NoLongerAsked { interaction, .. } | Q::Expired { interaction, .. } => {
            Wire::new(NoLongerApplies, Reason::NoLongerAsked, Subject::Interaction(interaction))
        }
        Q::Gone { interaction } => {
            Wire::new(NoLongerApplies, Reason::UnknownInteraction, Subject::Interaction(interaction))
        }
    }
}
