//! Maps refusals of new runs to errors on the wire.

use ErrorKind::{Busy, Conflict, Invalid, NoLongerApplies};
use harness_protocol::rpc::{ErrorKind, Reason, Subject};
use harness_protocol::time::Span;

use super::Wire;
use crate::refusal::{NewRunRefusal, SpecRefusal, WorkdirRefusal};

fn field(name: &str) -> Subject {
    Subject::Field(name.to_owned())
}

fn short(text: &str) -> String {
    Subject::short(text).into_owned()
}

pub(super) fn spec(refusal: &SpecRefusal) -> Wire {
    use SpecRefusal as S;
    let (reason, subject) = match refusal {
        S::TextTooLarge { text, .. } | S::TooLong { text, .. } => (Reason::TooLarge, field(text.field())),
        S::SpecTooLarge { .. } => (Reason::TooLarge, field("spec")),
        S::Character { text, .. } => (Reason::ControlCharacters, field(text.field())),
        S::Empty { text } => (Reason::TextMissing, field(text.field())),
        S::NoPrompt => (Reason::TextMissing, field("prompt")),
        S::NameIsId { name } | S::NameBeginsId { name, .. } | S::NameForm { name } => {
            (Reason::BadName, Subject::Name(short(name)))
        }
        S::TooManyLabels { .. } => (Reason::BadLabel, field("labels")),
        S::Label { key } => (Reason::BadLabel, Subject::Label(short(key))),
        S::NoSteps { field: limit } | S::NoTime { field: limit } => (Reason::BadLimit, field(limit)),
        S::Cost => (Reason::BadLimit, field("max_cost_usd")),
        S::CallLimit { limit } => (Reason::BadLimit, field(limit.name())),
        S::DeadlinePassed => (Reason::DeadlinePassed, field("deadline_at")),
        S::NoShare { share, .. } => (Reason::UnknownShare, Subject::Share(short(share))),
        S::OtherShare { .. } => (Reason::OtherShare, field("share")),
        S::NoProvider { provider, .. } => (Reason::UnknownProvider, Subject::Provider(short(provider))),
        S::NoTool { .. } => (Reason::UnknownTool, field("tools")),
        S::NoScript { provider } => (Reason::ScriptMissing, Subject::Provider(short(provider))),
        S::NoModel { provider } => (Reason::ModelMissing, Subject::Provider(short(provider))),
        S::NoPrice { provider, .. } => (Reason::PriceMissing, Subject::Provider(short(provider))),
        S::NoPriceOfFallback { fallback, .. } => (Reason::PriceMissing, Subject::Provider(short(fallback))),
        S::WorkdirNotAbsolute { path } => (Reason::BadWorkdir, Subject::Path(short(path))),
        S::Variable(_) => (Reason::BadVariable, field("env")),
        S::Script { reason, place, .. } => (*reason, Subject::ScriptPlace(place.clone())),
    };
    Wire::new(Invalid, reason, subject)
}

pub(super) fn new_run(refusal: &NewRunRefusal) -> Wire {
    use NewRunRefusal as N;
    let setting = |name: &str| Subject::Setting(name.to_owned());
    match refusal {
        N::KeyLength => Wire::new(Invalid, Reason::BadKey, field("idempotency_key")),
        N::TwoKeys => Wire::new(Invalid, Reason::BadKey, field("submit_key")),
        N::SubmitKeyTaken => Wire::new(Conflict, Reason::SubmitKeyTaken, field("submit_key")),
        N::KeyTaken { run } => Wire::new(Conflict, Reason::KeyTaken, Subject::Run(*run)),
        N::PassVariables { names } => Wire::new(Invalid, Reason::PassVariables, Subject::Variables(names.join(","))),
        N::NameTaken { run, .. } => Wire::new(Conflict, Reason::NameTaken, Subject::Run(*run)),
        N::Draining => Wire::new(Busy, Reason::Draining, None).retry_after(Span::from_secs(30)),
        N::TooManyLive { .. } | N::TooManyLiveForChildren { .. } => {
            Wire::new(Busy, Reason::TooManyRuns, setting("limits.live_runs")).retry_after(Span::from_secs(5))
        }
        N::TooManyKept { root, .. } => {
            Wire::new(Busy, Reason::TooManyKept, Subject::Run(*root)).retry_after(Span::from_secs(30))
        }
        N::ParentGone { parent } | N::ParentEnded { parent } | N::ParentBeingEnded { parent } => {
            Wire::new(NoLongerApplies, Reason::ParentEnded, Subject::Run(*parent))
        }
        N::TooManyLevels { .. } => Wire::new(Invalid, Reason::TooManyLevels, setting("limits.depth")),
        N::TooManyChildren { .. } => Wire::new(Invalid, Reason::TooManyChildren, setting("limits.children")),
    }
}

pub(super) fn workdir(refusal: &WorkdirRefusal) -> Wire {
    use WorkdirRefusal as W;
    let (kind, reason) = match refusal {
        W::Other { .. } => (Invalid, Reason::OtherFolder),
        W::NotThere { .. } => (Invalid, Reason::NoWorkdir),
        W::Silent { .. } | W::StillLooking => (Busy, Reason::WorkdirSilent),
        W::NoDescriptor | W::NoFolderPassed => (Invalid, Reason::NoDescriptor),
    };
    let wire = Wire::new(kind, reason, field("workdir"));
    if kind == Busy { wire.retry_after(Span::from_secs(30)) } else { wire }
}
