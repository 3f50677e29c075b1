//! Whether a refusal is a limit of the account behind the key, and what a limit comes to with the time that was named.
//!
//! Owns the codes and the words of such limits: quota, credit, budgets, the windows of a plan. Never decides what is done about them: a hold
//! of the provider's lane is the world's.

use harness_protocol::time::Span;

use crate::prompt::ErrorClass;

/// A wait of more than this is no rate limit any more: some window of the account is used up.
const LONGEST_RATE_LIMIT: Span = Span::from_secs(300);
/// A time further away is not believed, and is taken as none: a week's window, and a day.
const LONGEST: Span = Span::from_secs(8 * 24 * 3600);

/// Parts of codes and types, in lower case.
const KINDS: &[&str] = &[
    "quota",
    "usage_limit",
    "usage_not_included",
    "billing",
    "payment_required",
    "insufficient_credit",
    "insufficient_balance",
    "insufficient_fund",
    "insufficientbalance",
    "credit_limit",
    "credits_exhausted",
    "budget_exceeded",
    "budgetexceeded",
    "spend_limit",
    "spending_limit",
    "monthly_limit",
    "weekly_limit",
    "daily_limit",
    "plan_limit",
    "arrearage",
    "accountoverdue",
    "setlimitexceeded",
];

/// Parts of messages, in lower case.
const PHRASES: &[&str] = &[
    "credit balance",
    "insufficient balance",
    "balance is insufficient",
    "balance not enough",
    "insufficient credit",
    "insufficient fund",
    "insufficient quota",
    "out of credit",
    "no credits",
    "any credits",
    "more credits",
    "not enough credits",
    "credit limit",
    "available credits",
    "included credits",
    "spending limit",
    "spend limit",
    "spending cap",
    "usage limit",
    "usage cap",
    "monthly limit",
    "weekly limit",
    "daily limit",
    "hour limit",
    "requests per day",
    "tokens per day",
    "free-models-per-day",
    "daily request limit",
    "monthly quota",
    "weekly quota",
    "daily quota",
    "current quota",
    "quota exceeded",
    "exceeded your quota",
    "exceeded your monthly",
    "exceeded the quota",
    "quota has been",
    "quota is exhausted",
    "quota exhausted",
    "out of quota",
    "quota will",
    "plan and billing",
    "billing details",
    "billing hard limit",
    "billing cycle",
    "budget has been exceeded",
    "exceeded budget",
    "hit your limit",
    "reached your limit",
    "limit for your plan",
    "regain access",
    "account is not active",
    "payment required",
    "in good standing",
    "overdue payment",
    "overdue balance",
    "limit will reset",
    "limit resets",
    "no resource package",
    "余额不足",
    "额度",
    "配额",
    "限额",
    "使用上限",
    "欠费",
];

/// Words of a window so short that it is waited for as a rate limit.
const SHORT_WINDOWS: &[&str] =
    &["per minute", "per_minute", "perminute", "per second", "per_second", "requests_per_base_model", "rpm", "tpm"];

/// Whether a refusal is a limit of the account. `kinds` has its codes and types, `message` its words, both in lower case.
pub(super) fn is_account_limit(status: Option<u16>, kinds: &str, message: &str) -> bool {
    let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if status == Some(402) {
        return true;
    }
    // A minute's quota is a rate limit, whatever it is called.
    let is_short = kinds.contains("throttling") || has(message, SHORT_WINDOWS);
    if has(kinds, KINDS) {
        return !is_short || kinds.contains("insufficient_quota");
    }
    // What a refused key is told of billing is no limit, and a page of a proxy says anything.
    let may_speak_of_it = match status {
        Some(400 | 403 | 412 | 429) | None => true,
        Some(status) => status < 300,
    };
    let is_refused_key = has(kinds, &["authentication", "invalid_api_key", "unauthorized"]);
    may_speak_of_it && !is_refused_key && !is_short && has(message, PHRASES)
}

/// What a limit comes to where so long a wait was named.
pub(super) fn with_wait(class: ErrorClass, wait: Option<Span>) -> ErrorClass {
    let wait = wait.filter(|wait| *wait > Span::ZERO);
    match (class, wait) {
        (ErrorClass::RateLimit(_) | ErrorClass::Quota(_), Some(wait)) if wait > LONGEST => ErrorClass::Quota(None),
        (ErrorClass::RateLimit(_), Some(wait)) if wait > LONGEST_RATE_LIMIT => ErrorClass::Quota(Some(wait)),
        (ErrorClass::RateLimit(_), Some(wait)) => ErrorClass::RateLimit(Some(wait)),
        (ErrorClass::Quota(_), Some(wait)) => ErrorClass::Quota(Some(wait)),
        (ErrorClass::Retry, Some(wait)) => ErrorClass::RetryAfter(wait),
        (class, _) => class,
    }
}
