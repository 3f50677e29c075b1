//! Recognises limits of the account behind the key, and how long each lasts.
//!
//! The only place with the codes and the wording of such limits: quota, credit, budgets, the windows of a plan. It must
//! not decide what follows: the world holds the provider's lane.

use std::sync::LazyLock;

use harness_protocol::time::Span;
use regex::Regex;

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
    "creditserror",
    "monthlylimiterror",
    "weeklylimiterror",
    "dailylimiterror",
    "freeusagelimit",
    "not_enough_balance",
    "not_enough_credit",
    "daily_rate_limited",
    "weekly_rate_limited",
    "monthly_rate_limited",
    "tokenbudget",
    "exceededbudget",
];

/// Codes that mean it by themselves (GLM): no balance, a day's, a plan's, a week's limit, a plan that is over or does
/// not have the model.
const CODES: &[&str] = &["1113", "1304", "1308", "1309", "1310", "1311"];
/// Codes of a limit that passes within seconds, whatever their words speak of (GLM): concurrency, frequency, load.
const PASSING_CODES: &[&str] = &["1302", "1303", "1305"];

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
    "account suspended",
    "account has been suspended",
    "organization has been disabled",
    "requests for today",
    "exceededbudget",
    "payment required",
    "in good standing",
    "overdue payment",
    "overdue balance",
    "limit will reset",
    "limit resets",
    "no resource package",
    "key limit exceeded",
    "not enough balance",
    "no payment method",
    "extra usage",
    "over budget",
    "tokenbudget",
    "max budget",
    "free usage exceeded",
    "free usage limit",
    "free allocation",
    "free tier limit",
    "daily rate limit",
    "weekly rate limit",
    "monthly rate limit",
    "daily call limit",
    "tpd rate limit",
    "rpd rate limit",
    "(tpd)",
    "(rpd)",
    "calls / month",
    "calls per month",
    "requests per month",
    "tokens per month",
    "requests / month",
    "week allocated quota",
    "month allocated quota",
    "package has expired",
    "plan has expired",
    "subscription has expired",
    "subscription plan does not",
    "余额不足",
    "使用上限",
    "欠费",
];

/// Of these, what a refused key is not told: with status 401 only these say it.
const PHRASES_OF_401: &[&str] = &[
    "insufficient balance",
    "not enough balance",
    "balance is insufficient",
    "credit balance",
    "out of credit",
    "spending limit",
    "no payment method",
    "tokenbudget",
    "max budget",
    "over budget",
    "余额不足",
    "欠费",
];

/// Words for what an account may use, and for that it is used up: one of each says it.
const ALLOWANCE: &[&str] = &["额度", "配额", "限额"];
const USED_UP: &[&str] = &["不足", "用尽", "用完", "耗尽", "已达", "达到", "超出", "超过", "上限", "重置"];

/// What an account has, and that there is none of it, within some words of each other and in either order: servers put
/// it in many ways.
static USED_UP_ACCOUNT: LazyLock<Option<Regex>> = LazyLock::new(|| {
    const HAD: &str = concat!(
        r"(?:credits?|balance|funds|quota|allowance|spend(?:ing)?|invoices?|subscription|free trial|trial period|",
        r"(?:prepaid|monthly|daily|weekly) \w+|(?:team|user|project|key|max|monthly|daily) budget|",
        r"(?:tokens|requests|calls|messages|prompts) (?:for|of|in|per|this) (?:this |the )?",
        r"(?:month|today|day|week|billing period)|key limit)",
    );
    const GONE: &str = concat!(
        r"(?:insufficient|not enough|n't have enough|not have enough|no remaining|no more|exhausted|used up|used all|",
        r"run out|ran out|out of|exceeded|maximum number|depleted|consumed|too low|expired|suspended|unpaid|overdue|",
        r"past due|past invoices)",
    );
    Regex::new(&format!(r"\b{HAD}\b.{{0,48}}?\b{GONE}\b|\b{GONE}\b.{{0,48}}?\b{HAD}\b")).ok()
});
/// Where this is what is spoken of, it is about the request.
const OF_A_REQUEST: &[&str] = &["thinking", "reasoning", "budget_tokens", "max_tokens", "schema", "context"];

/// Words of a window so short that it is waited for as a rate limit.
const SHORT_WINDOWS: &[&str] = &[
    "per minute",
    "per_minute",
    "perminute",
    "per second",
    "per_second",
    "requests_per_base_model",
    "rpm",
    "tpm",
    "concurren",
    "并发",
    "频率",
    "速率",
];
/// Words of a window that is not short, whatever else is said.
const LONG_WINDOWS: &[&str] = &["week allocated", "month allocated", "per week", "per month", "weekly", "monthly"];
/// Where the words lead to a page of its own on limits of a minute, they mean those (Alibaba).
const PASSING_PAGE: &str = "error-code#token-limit";
/// How soon it is asked again where the time that was named has just come.
const AT_ONCE: Span = Span::from_secs(1);

/// Whether a refusal is a limit of the account. `kinds` has its codes and types, `message` its words, both in lower
/// case.
pub(in crate::inference) fn is_account_limit(status: Option<u16>, kinds: &str, message: &str) -> bool {
    let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if status == Some(402) {
        return true;
    }
    let is_code = |codes: &[&str]| kinds.split(' ').any(|kind| codes.contains(&kind));
    if is_code(PASSING_CODES) || message.contains(PASSING_PAGE) {
        return false;
    }
    // A minute's quota is a rate limit, whatever it is called.
    let is_short = (kinds.contains("throttling") || has(message, SHORT_WINDOWS)) && !has(message, LONG_WINDOWS);
    if has(kinds, KINDS) || is_code(CODES) {
        return !is_short || kinds.contains("insufficient_quota");
    }
    let is_pair =
        || !has(message, OF_A_REQUEST) && USED_UP_ACCOUNT.as_ref().is_some_and(|account| account.is_match(message));
    let is_said = || has(message, PHRASES) || (has(message, ALLOWANCE) && has(message, USED_UP)) || is_pair();
    // What a refused key is told of billing is no limit, and a page of a proxy says anything.
    let may_speak_of_it = match status {
        Some(400 | 403 | 404 | 412 | 422 | 429) | None => true,
        Some(503) => return !is_short && has(message, PHRASES_OF_401),
        Some(status) => status < 300,
    };
    let is_refused_key = has(kinds, &["authentication", "invalid_api_key", "unauthorized"]);
    if status == Some(401) {
        return !is_refused_key && has(message, PHRASES_OF_401);
    }
    may_speak_of_it && !is_refused_key && !is_short && is_said()
}

/// What a limit comes to where so long a wait was named. None at all is a time that has just come: a limit of the
/// account is then over, and anything else has named no time.
pub(in crate::inference) fn with_wait(class: ErrorClass, wait: Option<Span>) -> ErrorClass {
    let wait = match class {
        ErrorClass::Quota(_) => wait.map(|wait| wait.max(AT_ONCE)),
        _ => wait.filter(|wait| *wait > Span::ZERO),
    };
    match (class, wait) {
        (ErrorClass::RateLimit(_) | ErrorClass::Quota(_), Some(wait)) if wait > LONGEST => ErrorClass::Quota(None),
        (ErrorClass::RateLimit(_), Some(wait)) if wait > LONGEST_RATE_LIMIT => ErrorClass::Quota(Some(wait)),
        (ErrorClass::RateLimit(_), Some(wait)) => ErrorClass::RateLimit(Some(wait)),
        (ErrorClass::Quota(_), Some(wait)) => ErrorClass::Quota(Some(wait)),
        (ErrorClass::Retry, Some(wait)) => ErrorClass::RetryAfter(wait),
        (class, _) => class,
    }
}
