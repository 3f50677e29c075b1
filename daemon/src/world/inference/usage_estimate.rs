//! Estimates the usage of an inference whose provider reports none. Without an estimate such inferences would not count
//! against a budget.

use harness_protocol::id::RunId;
use harness_protocol::run::Usage;

use crate::prompt::Completion;
use crate::prompt::context::BYTES_OF_A_TOKEN;
use crate::world::model::components::BudgetReserve;
use crate::world::tx::Tx;

/// What an answer used. It is estimated only where a budget pays for it, and nothing is said.
pub(in crate::world) fn of_answer(tx: &Tx<'_>, run: RunId, completion: &Completion) -> Usage {
    let args = completion.calls.iter().map(|call| call.tool.len() + call.args.len());
    let bytes = (completion.text.len() + args.sum::<usize>()) as u64;
    of(tx, run, Some(completion.usage), bytes.div_ceil(BYTES_OF_A_TOKEN).max(1)).unwrap_or(completion.usage)
}

/// The same of an answer of which about so many tokens had come when it broke off.
pub(in crate::world) fn of(tx: &Tx<'_>, run: RunId, said: Option<Usage>, answered: u64) -> Option<Usage> {
    let held = tx.entity(run).and_then(|entity| tx.get::<BudgetReserve>(entity)).map(|held| held.0);
    let Some(held) = held.filter(|_| answered > 0 && said.is_none_or(|said| said.tokens() == 0)) else { return said };
    let answer = u64::from(held.answer_tokens);
    let usage = Usage {
        input_tokens: held.tokens.saturating_sub(answer),
        output_tokens: answered.min(answer),
        ..Usage::default()
    };
    let provider = tx.life(run).and_then(|life| life.provider.clone());
    let (stands_in, spec) = (provider.is_some(), tx.spec(run)?);
    let provider = tx.setup().config.providers.get(&provider.or(spec.0.provider.clone())?)?;
    let price = provider.price_of(spec.0.model.as_deref().filter(|_| !stands_in));
    Some(Usage { cost_usd: price.map(|price| price.cost(&usage)), ..usage })
}
