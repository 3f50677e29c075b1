//! Decides whether the budget allows a run's next inference, and how many tokens its answer may have.
//!
//! A budget covers a run and all runs below it, so a run is bound by its own budget and by those of the runs above it.
//! The estimated most that an inference may cost is reserved while it is wanted or running, so that all running
//! inferences together keep the budget. What is left is divided evenly among the live runs that hold no reserve, with
//! enough for a good answer each. A run that gets less is deferred while other runs hold reserves of that budget; else
//! its budget is used up.
//!
//! A budget is not overdrawn as far as the estimates hold. The size of the next prompt is estimated from the last
//! prompt's count and the entries after it, because tokenizers differ between models.

use std::sync::Arc;

use harness_protocol::id::RunId;
use harness_protocol::run::{Compaction, Reserve};
use harness_protocol::spec::RunSpec;

use super::prepare;
use crate::config::{Price, Provider, Thinking};
use crate::prompt::context::{current, tokens_of, tokens_of_message};
use crate::prompt::summarise::tokens_of_request;
use crate::world::model::components::{BudgetReserve, Identity, LastAsked, Pool, QueuedMessages, Transcript};
use crate::world::tx::Tx;

/// Bytes that make a token of the specifications of tools, which are JSON.
const BYTES_OF_A_SPEC_TOKEN: u64 = 4;
/// An answer of fewer tokens is no answer, and no limit that every provider takes.
const LEAST_ANSWER: u64 = 16;
/// Tokens that are enough for most answers. A run that would get fewer is deferred, as long as a reserve may still be
/// released.
const GOOD_ANSWER: u64 = 2_048;
/// Tokens reserved for an answer without a configured limit: the limit of most models, and more than most answers need.
/// It bounds the limit that is sent, because a provider refuses a limit beyond its model's, however much the budget
/// would pay for.
const USUAL_ANSWER: u64 = 8_192;
/// Of a USD.
const NANO: f64 = 1e9;

/// What the next inference of a run may come to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Budget {
    /// There is enough; so much is to be held back, where that is bounded.
    Enough(Option<Reserve>),
    /// What is left of the budget of this run is held back for others.
    Held(RunId),
    /// It would be overdrawn; why, in words.
    UsedUp(String),
}

/// What is left for the next inference of a run, which goes to its own provider or to the one that is asked `instead`:
/// for its next answer, or for the summary that is planned.
pub(crate) fn of(tx: &Tx<'_>, run: RunId, instead: Option<&Arc<str>>, plan: Option<&Compaction>) -> Budget {
    let pools = pools(tx, run);
    let (Some(entity), Some(spec), false) = (tx.entity(run), tx.spec(run), pools.is_empty()) else {
        return Budget::Enough(None);
    };
    let input = plan.map_or_else(|| next_input(tx, run), tokens_of_request);
    let own = tx.get::<BudgetReserve>(entity).map(|held| held.0);
    let provider = tx.setup().config.providers.get(instead.or(spec.0.provider.as_ref()).map_or("", |name| name));
    let price = provider.and_then(|provider| price(provider, &spec.0, instead.is_some()));
    let configured = provider.and_then(|provider| provider.endpoint.as_ref()?.max_output_tokens).map(u64::from);
    let wanted = plan.map(|plan| u64::from(plan.max_tokens)).or(configured).unwrap_or_else(|| usual_answer(provider));
    let mut answer = wanted;
    for (owner, pool) in pools {
        let whose = if owner == run { "its budget".to_owned() } else { format!("the budget of {owner}, above it,") };
        let of_others = Others::of(pool, own);
        let Some(limits) = tx.spec(owner).map(|spec| &spec.0.limits) else { continue };
        let parts = [
            limits.max_tokens.map(|max| tokens_left(pool, &of_others, max, input, &whose)),
            limits.max_cost_usd.map(|max| cost_left(pool, &of_others, max, input, price, &whose)),
        ];
        for part in parts.into_iter().flatten() {
            let left = match part {
                Ok(left) => left,
                Err(why) => return Budget::UsedUp(why),
            };
            let good = GOOD_ANSWER.min(wanted);
            if left.answer.is_none_or(|answer| answer < good) && pool.holding > u32::from(own.is_some()) {
                return Budget::Held(owner);
            }
            let Some(most) = left.answer.filter(|&answer| answer >= LEAST_ANSWER.min(wanted)) else {
                return Budget::UsedUp(left.why);
            };
            answer = answer.min(left.share.max(good.min(most)));
        }
    }
    let answer_tokens = u32::try_from(answer).unwrap_or(u32::MAX);
    Budget::Enough(Some(Reserve {
        tokens: input.saturating_add(u64::from(answer_tokens)),
        nano_usd: price.map_or(0, |price| nano_usd(price.most_for(input, u64::from(answer_tokens)))),
        answer_tokens,
    }))
}

fn usual_answer(provider: Option<&Provider>) -> u64 {
    match provider.and_then(|provider| provider.endpoint.as_ref()?.thinking) {
        Some(Thinking::Budget(tokens)) => USUAL_ANSWER.max(u64::from(tokens) + USUAL_ANSWER / 2),
        Some(Thinking::Adaptive) | None => USUAL_ANSWER,
    }
}

/// The nearest run from `run` upward that has a budget.
pub(crate) fn owner(tx: &Tx<'_>, run: RunId) -> Option<RunId> {
    pools(tx, run).first().map(|(owner, _)| *owner)
}

/// What of a pool others hold.
struct Others {
    tokens: u64,
    usd: f64,
    /// Live runs among which the rest is divided: those that hold nothing, and the one that asks.
    sharers: u64,
}

impl Others {
    #[expect(clippy::cast_precision_loss, reason = "nobody has 2^53 billionths of a USD to spend")]
    fn of(pool: &Pool, own: Option<Reserve>) -> Self {
        let own_count = u32::from(own.is_some());
        let own = own.unwrap_or_default();
        let others = pool.holding.saturating_sub(own_count);
        Self {
            tokens: pool.held.tokens.saturating_sub(own.tokens),
            usd: pool.held.nano_usd.saturating_sub(own.nano_usd) as f64 / NANO,
            sharers: u64::from(pool.live.saturating_sub(others)).max(1),
        }
    }
}

/// Tokens of an answer that a budget pays for.
struct Left {
    /// At most; `None` where not even the prompt can be paid.
    answer: Option<u64>,
    /// Where what is left is divided.
    share: u64,
    /// What is told where that is too little.
    why: String,
}

fn tokens_left(pool: &Pool, others: &Others, max: u64, input: u64, whose: &str) -> Result<Left, String> {
    let used = pool.spent.map_or(0, |spent| spent.tokens());
    let left = max.saturating_sub(used).saturating_sub(others.tokens);
    let why = if used >= max {
        format!("{whose} of {max} tokens is used up: {used} (--max-tokens)")
    } else {
        format!(
            "{whose} of {max} tokens would be overdrawn: {used} are used, and the next prompt takes about {input} \
             (--max-tokens)"
        )
    };
    Ok(Left { answer: left.checked_sub(input), share: (left / others.sharers).saturating_sub(input), why })
}

#[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^53 runs")]
fn cost_left(
    pool: &Pool,
    others: &Others,
    max: f64,
    input: u64,
    price: Option<Price>,
    whose: &str,
) -> Result<Left, String> {
    let cost = pool.spent.map_or(Some(0.0), |spent| spent.cost_usd);
    let (Some(price), Some(cost)) = (price, cost) else {
        return Err(format!("{whose} of {max} USD cannot be kept: no price is known any more (--max-cost)"));
    };
    let (left, prompt) = (max - cost - others.usd, price.most_for(input, 0));
    Ok(Left {
        answer: (left >= prompt).then(|| price.output_for(left - prompt)),
        share: price.output_for(left / others.sharers as f64 - prompt),
        why: format!(
            "{whose} of {max} USD would be overdrawn: {cost:.6} are spent, and the next prompt costs about {prompt:.6} \
             (--max-cost)"
        ),
    })
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped by the cast, as is meant")]
fn nano_usd(usd: f64) -> u64 {
    (usd * NANO).ceil() as u64
}

/// The budgets that a run is paid from: its own, and those of the runs above it.
fn pools<'a>(tx: &'a Tx<'_>, run: RunId) -> Vec<(RunId, &'a Pool)> {
    let line = tx.entity(run).into_iter().flat_map(|entity| tx.upward(entity));
    line.filter_map(|at| Some((tx.get::<Identity>(at)?.id, tx.get::<Pool>(at)?))).collect()
}

/// Whether something above a run, or it itself, has a limit on cost.
pub(crate) fn has_cost_limit(tx: &Tx<'_>, run: RunId) -> bool {
    let limits = pools(tx, run).into_iter().filter_map(|(owner, _)| tx.spec(owner));
    limits.into_iter().any(|spec| spec.0.limits.max_cost_usd.is_some())
}

fn price(provider: &Provider, spec: &RunSpec, stands_in: bool) -> Option<Price> {
    provider.price_of(spec.model.as_deref().filter(|_| !stands_in))
}

/// What the tools take of the first prompt. A script is not told of them.
fn specs(tx: &Tx<'_>, run: RunId) -> u64 {
    let is_scripted = tx.spec(run).is_none_or(|spec| spec.0.script.is_some());
    let toolset = prepare::toolset(tx, run).unwrap_or(&tx.setup().toolset);
    let bytes: usize = toolset.specs.iter().map(|s| s.name.len() + s.description.len() + s.parameters.len()).sum();
    if is_scripted { 0 } else { (bytes as u64).div_ceil(BYTES_OF_A_SPEC_TOKEN) }
}

/// About how many tokens the next prompt takes: the last one and its answer are known, what came after is estimated.
pub(crate) fn next_input(tx: &Tx<'_>, run: RunId) -> u64 {
    let Some(entity) = tx.entity(run) else { return 0 };
    let entries = tx.get::<Transcript>(entity).map_or(&[][..], |transcript| &transcript.0);
    let transcript = match tx.get::<LastAsked>(entity) {
        Some(last) => last.tokens + entries.iter().skip(last.entries).map(tokens_of).sum::<u64>(),
        None => specs(tx, run) + current(entries).map(tokens_of).sum::<u64>(),
    };
    let unread = tx.get::<QueuedMessages>(entity).map_or(&[][..], |mail| &mail.0);
    transcript + unread.iter().map(|text| tokens_of_message(text.len() as u64)).sum::<u64>()
}
