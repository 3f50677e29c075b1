//! Maps each refusal to the error on the wire: its kind, reason, subject, and when to try again.
//!
//! The only place that decides these for what the world, the journal and the driver refuse. Every refusal has a reason.
//! It must not write a sentence: that is the refusal's own (`crate::refusal`).

mod daemon;
mod runs;
mod specs;
mod tests;

use harness_protocol::rpc::{ErrorKind, Reason, RpcError, Subject};
use harness_protocol::time::Span;

use crate::refusal::Refusal;

/// An error on the wire but for its sentence.
#[derive(Debug, Clone, PartialEq)]
struct Wire {
    kind: ErrorKind,
    reason: Reason,
    subject: Option<Subject>,
    retry_after: Option<Span>,
}

impl Wire {
    fn new(kind: ErrorKind, reason: Reason, subject: impl Into<Option<Subject>>) -> Self {
        Self { kind, reason, subject: subject.into(), retry_after: None }
    }

    fn retry_after(self, span: Span) -> Self {
        Self { retry_after: Some(span), ..self }
    }
}

fn wire(refusal: &Refusal) -> Wire {
    match refusal {
        Refusal::Name(name) => runs::name(name),
        Refusal::Run(run) => runs::run(*run),
        Refusal::Question(question) => runs::question(*question),
        Refusal::OwnTreeOnly { run } => Wire::new(ErrorKind::Forbidden, Reason::OwnTreeOnly, run.map(Subject::Run)),
        Refusal::Spec(spec) => specs::spec(spec),
        Refusal::NewRun(new_run) => specs::new_run(new_run),
        Refusal::Workdir(workdir) => specs::workdir(workdir),
        Refusal::Lane(lane) => daemon::lane(lane),
        Refusal::Subscription(subscription) => daemon::subscription(subscription),
        Refusal::Journal(journal) => daemon::journal(journal),
        Refusal::Configuration { fault, problems, .. } => daemon::configuration(*fault, problems),
        Refusal::Stopping { .. } => Wire::new(ErrorKind::Busy, Reason::Stopping, None).retry_after(Span::from_secs(1)),
        Refusal::Partly { why, .. } => wire(why),
        Refusal::Fault(_) => Wire::new(ErrorKind::Internal, Reason::Fault, None),
    }
}

fn is_undecided(refusal: &Refusal) -> bool {
    match refusal {
        Refusal::Stopping { undecided } => *undecided,
        Refusal::Journal(journal) => daemon::is_undecided(journal),
        Refusal::Partly { why, .. } => is_undecided(why),
        _ => false,
    }
}

impl From<Refusal> for RpcError {
    fn from(refusal: Refusal) -> Self {
        let Wire { kind, reason, subject, retry_after } = wire(&refusal);
        let mut error = Self::new(kind, refusal.to_string()).because(reason, subject);
        error.data.retry_after_seconds = retry_after;
        if let Refusal::Configuration { problems, .. } = &refusal {
            error.data.problems.clone_from(problems);
        }
        if is_undecided(&refusal) { error.undecided() } else { error }
    }
}
