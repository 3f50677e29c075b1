//! Decides by a circuit breaker for each provider when the provider is asked again, and when it is held. Its decisions
//! become events; it changes nothing itself.
//!
//! ```text
//!            FAILURES in a row                time is up
//!  (open) ────────────────────▶ held: failing ───────────▶ at most 1 at once ──▶ 2 ──▶ 4 … ──▶ (open)
//!    │  ▲                          ▲                        ▲     │  each answer doubles it
//!    │  │                          └──────── a failure ─────┼─────┘
//!    │  ├──── time is up ──── held: rate-limit              │  the wait that it asked for
//!    │  │                     held: rate-limit, no time said ┤  a wait that doubles
//!    │  │                     held: quota                   ─┘  until the time that was named, else until a good check
//!    └──┴─ a good check ◀──── held: credentials, key          until a good check; a reload or restart lets one run try
//! ```

use std::sync::Arc;

use harness_protocol::event::{EventBody, ProviderFault};
use harness_protocol::id::RunId;
use harness_protocol::lane::Limiter;
use harness_protocol::time::Span;

use crate::lane::TicketState;
use crate::prompt::ErrorClass;
use crate::world::model::indexes::{Breaker, ProviderHealth};
use crate::world::tx::Tx;

/// Failures in a row, whichever runs they are of, until a provider is left alone.
pub(crate) const FAILURES: u32 = 5;
/// How long it is left alone for the first time; each time after that twice as long.
const FIRST_REST: Span = Span::from_secs(2);
const LONGEST_REST: Span = Span::from_secs(60);
/// How long all wait at most because one was told to slow down: that may be meant for that one alone.
pub(super) const LONGEST_LIMIT: Span = Span::from_secs(300);
/// How long a limit of an account lasts at most: a week's window, and a day. What is said to last longer has no time
/// that is believed.
const LONGEST_QUOTA: Span = Span::from_secs(8 * 24 * 3600);
/// Times of the same limit that lie no further apart are one: each run that meets it counts from its own now.
const SAME_TIME: Span = Span::from_secs(60);
/// A limit that is over by then is waited for, though another provider could stand in.
const WORTH_WAITING: Span = Span::from_secs(10);
/// What a failed inference says of its provider.
pub(crate) fn fault_of(class: ErrorClass) -> ProviderFault {
    match class {
        ErrorClass::Retry | ErrorClass::RetryAfter(_) => ProviderFault::Failing,
        ErrorClass::RateLimit(_) => ProviderFault::RateLimit,
        ErrorClass::Quota(_) => ProviderFault::Quota,
        ErrorClass::Credentials => ProviderFault::Credentials,
        ErrorClass::NoKey => ProviderFault::NoKey,
        ErrorClass::Never | ErrorClass::Unusable => ProviderFault::Refused,
        ErrorClass::AnswerTooLarge => ProviderFault::AnswerTooLarge,
        ErrorClass::ContextTooLong => ProviderFault::ContextTooLong,
    }
}

/// The provider that a run asks next, where that is not its own: the first of that one's fallbacks that is not left
/// alone itself and that suits, while its own is left alone. What a fallback's own fallbacks are does not matter.
pub(crate) fn choice(tx: &Tx<'_>, run: RunId, suits: impl Fn(&Arc<str>) -> bool) -> Option<Arc<str>> {
    let own = tx.spec(run)?.0.provider.as_ref()?;
    let fallbacks = &tx.setup().config.providers.get(own)?.fallbacks;
    if fallbacks.is_empty() || !is_away(tx, own) {
        return None;
    }
    let is_there = |other: &&Arc<str>| !is_away(tx, other) && !tx.is_stalled(other);
    fallbacks.iter().filter(is_there).find(|other| suits(other)).cloned()
}

/// Whether a provider is left alone for so long that another one is better asked, or has all the probes that it is to
/// have.
pub(crate) fn is_away(tx: &Tx<'_>, provider: &Arc<str>) -> bool {
    let Some(breaker) = tx.res::<ProviderHealth>().get(provider) else { return false };
    if let Some(hold) = &breaker.hold {
        let soon = tx.now() + WORTH_WAITING;
        return hold.limiter != Limiter::RateLimit || hold.until.is_none_or(|until| until > soon);
    }
    let Some(((most, _), lane)) = breaker.at_most.zip(tx.lanes().get(provider)) else { return false };
    lane.permits() + lane.tickets(TicketState::Queued) >= most
}

/// How long a provider is left alone that says no time, or one that is hardly worth the asking: twice as long each
/// time.
fn rest(breaker: &Breaker) -> Span {
    Span::from_micros(FIRST_REST.as_micros() << breaker.rests.min(6)).min(LONGEST_REST)
}

/// After a failure: whether its provider is left alone from here on, and was not before, or not for so long.
pub(crate) fn judge(tx: &mut Tx<'_>, provider: &Arc<str>, class: ErrorClass, error: &Arc<str>) -> bool {
    let now = tx.now();
    let breaker = tx.res::<ProviderHealth>().get(provider).cloned().unwrap_or_default();
    let hold = breaker.hold.as_ref();
    let (limiter, until, probe) = match class {
        ErrorClass::Credentials if !breaker.is_held_for_good() => (Limiter::Credentials, None, false),
        ErrorClass::NoKey if !breaker.is_held_for_good() => (Limiter::Key, None, false),
        ErrorClass::Quota(wait) => {
            let until = wait.filter(|wait| *wait <= LONGEST_QUOTA).map(|wait| now + wait.max(rest(&breaker)));
            let stays = hold.is_some_and(|hold| match (hold.limiter, hold.until, until) {
                (Limiter::Credentials | Limiter::Key, _, _) => true,
                (Limiter::Quota, None, None) | (Limiter::Quota, Some(_), None) => true,
                (Limiter::Quota, Some(before), Some(until)) => until <= before + SAME_TIME,
                _ => false,
            });
            if stays {
                return false;
            }
            (Limiter::Quota, until, until.is_some())
        }
        ErrorClass::RateLimit(Some(wait)) | ErrorClass::RetryAfter(wait) => {
            let until = now + wait.min(LONGEST_LIMIT);
            // A longer wait stays, and one that is for more than one's own good.
            if hold.is_some_and(|h| h.limiter == Limiter::Quota || h.until.is_none_or(|other| other >= until)) {
                return false;
            }
            match class {
                // It fails, and says until when: one run finds out.
                ErrorClass::RetryAfter(_) => (Limiter::Failing, Some(until), true),
                _ => (Limiter::RateLimit, Some(until), false),
            }
        }
        ErrorClass::RateLimit(None) if hold.is_none() => (Limiter::RateLimit, Some(now + rest(&breaker)), true),
        ErrorClass::Retry if hold.is_none() && (breaker.failures >= FAILURES || breaker.at_most.is_some()) => {
            (Limiter::Failing, Some(now + rest(&breaker)), true)
        }
        _ => return false,
    };
    let error = Arc::clone(error);
    tx.emit(None, EventBody::ProviderHeld { provider: Arc::clone(provider), limiter, until, error, probe });
    true
}

/// The time is up for which a provider was left alone.
pub(crate) fn rested(tx: &mut Tx<'_>, provider: Arc<str>) {
    let hold = tx.res::<ProviderHealth>().get(&provider).and_then(|breaker| breaker.hold.as_ref());
    let at_most = hold.is_some_and(|hold| hold.probe).then_some(1);
    tx.emit(None, EventBody::ProviderReleased { provider, at_most });
}

/// A provider that was left alone, for whatever reason, was asked and is well: it is asked again.
pub(crate) fn release(tx: &mut Tx<'_>, provider: &Arc<str>) {
    if tx
        .res::<ProviderHealth>()
        .get(provider)
        .is_some_and(|breaker| breaker.hold.is_some() || breaker.at_most.is_some())
    {
        tx.emit(None, EventBody::ProviderReleased { provider: Arc::clone(provider), at_most: None });
    }
}

/// An operator may have solved the problem. After a problem with the account or the key, one run tries first; otherwise
/// the provider is released for all.
pub(crate) fn try_again(tx: &mut Tx<'_>, provider: &Arc<str>) {
    let held_by =
        tx.res::<ProviderHealth>().get(provider).and_then(|breaker| breaker.hold.as_ref()).map(|hold| hold.limiter);
    match held_by {
        Some(Limiter::Quota | Limiter::Credentials | Limiter::Key) => {
            let provider = Arc::clone(provider);
            tx.emit(None, EventBody::ProviderReleased { provider, at_most: Some(1) });
        }
        _ => release(tx, provider),
    }
}
