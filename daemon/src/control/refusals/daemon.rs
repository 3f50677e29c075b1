//! Maps refusals about lanes, subscriptions, the journal and the configuration to errors on the wire.

use ErrorKind::{Busy, Held, Internal, Invalid, NoLongerApplies, NotFound};
use harness_protocol::rpc::{ConfigProblem, ErrorKind, Reason, Subject};

use super::Wire;
use crate::refusal::{ConfigurationFault, HeldRequest, JournalRefusal, LaneRefusal, SubscriptionRefusal};

pub(super) fn lane(refusal: &LaneRefusal) -> Wire {
    use LaneRefusal as L;
    let about = |lane: &str| Subject::Lane(Subject::short(lane).into_owned());
    match refusal {
        L::NoLane { lane, .. } => Wire::new(NotFound, Reason::UnknownLane, about(lane)),
        L::ReliefForNoTime { lane } | L::ReliefTooLong { lane, .. } | L::ReliefTooWide { lane, .. } => {
            Wire::new(Invalid, Reason::BadRelief, about(lane))
        }
        L::TooManyReliefs { lane, .. } => Wire::new(Busy, Reason::TooManyReliefs, about(lane)),
        L::NoRelief { relief, .. } => Wire::new(NoLongerApplies, Reason::UnknownRelief, Subject::Relief(*relief)),
        L::TooWide { lane, .. } | L::TooNarrow { lane } => Wire::new(Invalid, Reason::BadWidth, about(lane)),
    }
}

pub(super) fn subscription(refusal: &SubscriptionRefusal) -> Wire {
    use SubscriptionRefusal as S;
    match refusal {
        S::OneOrSeveral => Wire::new(Invalid, Reason::BadSubscription, None),
        S::TreeTooLarge { .. } => Wire::new(Invalid, Reason::TreeTooLarge, None),
        S::NotHappened { after, .. } => Wire::new(NoLongerApplies, Reason::EventNotHappened, Subject::Event(*after)),
        S::NoKind { kind } => {
            Wire::new(Invalid, Reason::UnknownEventKind, Subject::EventKind(Subject::short(kind).into_owned()))
        }
        S::TooMany { .. } => {
            let setting = Subject::Setting("limits.subscriptions_per_connection".to_owned());
            Wire::new(Busy, Reason::TooManySubscriptions, setting)
        }
        S::NoneSuch { subscription } => {
            Wire::new(NotFound, Reason::UnknownSubscription, Subject::Subscription(*subscription))
        }
    }
}

pub(super) fn journal(refusal: &JournalRefusal) -> Wire {
    use JournalRefusal as J;
    match refusal {
        J::Unreadable { .. } | J::NotRead => Wire::new(Internal, Reason::JournalUnreadable, None),
        J::Records { run } => Wire::new(Internal, Reason::JournalUnreadable, Subject::Run(*run)),
        J::Text { hash, .. } => Wire::new(Internal, Reason::JournalUnreadable, Subject::Text(*hash)),
        J::Output { .. } | J::OutputNotRead => Wire::new(Internal, Reason::OutputUnreadable, None),
        J::Held { retry, .. } => Wire::new(Held, Reason::JournalHeld, None).retry_after(*retry),
        J::BackupNotAbsolute { path } | J::Backup { path, .. } => {
            Wire::new(Invalid, Reason::BackupFailed, Subject::Path(Subject::short(path).into_owned()))
        }
    }
}

pub(super) fn configuration(fault: ConfigurationFault, problems: &[ConfigProblem]) -> Wire {
    let subject = problems.first().map(|problem| Subject::Path(problem.file.clone()));
    match fault {
        ConfigurationFault::Wrong => Wire::new(Invalid, Reason::BadConfiguration, subject),
        ConfigurationFault::Silent => Wire::new(Busy, Reason::ConfigurationSilent, subject),
        ConfigurationFault::Ours => Wire::new(Internal, Reason::Fault, subject),
    }
}

/// Whether a request that was refused so may still take effect.
pub(super) fn is_undecided(refusal: &JournalRefusal) -> bool {
    matches!(refusal, JournalRefusal::Held { request: HeldRequest::Undecided, .. })
}
