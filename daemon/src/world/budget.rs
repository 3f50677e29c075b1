//! Whether a run may ask its model once more, and how much of an answer it can pay for: a budget is kept, not overdrawn.
//!
//! What the next prompt takes is estimated from what the last one took and from what came after it, for no two models count alike.

use std::sync::Arc;

use harness_protocol::id::RunId;
use harness_protocol::run::Compaction;
use harness_protocol::spec::RunSpec;

use super::components::{LastAsked, Mail, Spent, Transcript};
use super::scene::Scene;
use crate::config::Price;
use crate::prompt::compaction::tokens_of_request;
use crate::prompt::context::{current, tokens_of, tokens_of_message};

/// Bytes that make a token of the specifications of tools, which are JSON.
const BYTES_OF_A_SPEC_TOKEN: u64 = 4;
/// An answer of fewer tokens is no answer, and no limit that every provider takes.
const LEAST_ANSWER: u64 = 16;

/// What the next inference of a run may come to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Budget {
    /// There is enough, for an answer of at most so many tokens where that is bounded.
    Enough(Option<u32>),
    /// It would be overdrawn; why, in words.
    UsedUp(String),
}

/// What is left for the next inference of a run, which goes to its own provider or to the one that is asked `instead`: for its next answer, or
/// for the summary that is planned.
pub(crate) fn of(scene: &Scene<'_>, run: RunId, instead: Option<&Arc<str>>, plan: Option<&Compaction>) -> Budget {
    let (Some(entity), Some(spec)) = (scene.entity(run), scene.spec(run)) else { return Budget::Enough(None) };
    let limits = &spec.0.limits;
    if limits.max_tokens.is_none() && limits.max_cost_usd.is_none() {
        return Budget::Enough(None);
    }
    let spent = scene.get::<Spent>(entity).map(|spent| spent.0).unwrap_or_default();
    let input = plan.map_or_else(|| next_input(scene, run), tokens_of_request);
    let mut answer: Option<u64> = None;
    if let Some(max) = limits.max_tokens {
        let used = spent.tokens();
        let left = max.saturating_sub(used).saturating_sub(input);
        if left < LEAST_ANSWER {
            let why = if used >= max {
                format!("its budget of {max} tokens is used up: {used} (--max-tokens)")
            } else {
                format!(
                    "its budget of {max} tokens would be overdrawn: {used} are used, and the next prompt takes about {input} (--max-tokens)"
                )
            };
            return Budget::UsedUp(why);
        }
        answer = Some(left);
    }
    if let Some(max) = limits.max_cost_usd {
        let price = price(scene, &spec.0, instead);
        let (Some(price), Some(cost)) = (price, spent.cost_usd.or((spent.tokens() == 0).then_some(0.0))) else {
            return Budget::UsedUp(format!(
                "its budget of {max} USD cannot be kept: no price is known any more (--max-cost)"
            ));
        };
        let left = max - cost - price.most_for_input(input);
        let tokens = price.output_for(left);
        if left < 0.0 || tokens < LEAST_ANSWER {
            return Budget::UsedUp(format!(
                "its budget of {max} USD would be overdrawn: {cost:.6} are spent, and the next prompt costs about {:.6} (--max-cost)",
                price.most_for_input(input)
            ));
        }
        answer = Some(answer.map_or(tokens, |other| other.min(tokens)));
    }
    Budget::Enough(answer.map(|tokens| u32::try_from(tokens).unwrap_or(u32::MAX)))
}

/// What the tools take of the first prompt. A script is not told of them.
fn specs(scene: &Scene<'_>, run: RunId) -> u64 {
    let is_scripted = scene.spec(run).is_none_or(|spec| spec.0.script.is_some());
    let setup = scene.setup();
    let bytes: usize = setup.specs.iter().map(|s| s.name.len() + s.description.len() + s.parameters.len()).sum();
    if is_scripted { 0 } else { (bytes as u64).div_ceil(BYTES_OF_A_SPEC_TOKEN) }
}

fn price(scene: &Scene<'_>, spec: &RunSpec, instead: Option<&Arc<str>>) -> Option<Price> {
    let model = spec.model.as_deref().filter(|_| instead.is_none());
    scene.setup().config.providers.get(instead.or(spec.provider.as_ref())?)?.price_of(model)
}

/// About how many tokens the next prompt takes: the last one and its answer are known, what came after is estimated.
pub(crate) fn next_input(scene: &Scene<'_>, run: RunId) -> u64 {
    let Some(entity) = scene.entity(run) else { return 0 };
    let entries = scene.get::<Transcript>(entity).map_or(&[][..], |transcript| &transcript.0);
    let transcript = match scene.get::<LastAsked>(entity) {
        Some(last) => last.tokens + entries.iter().skip(last.entries).map(tokens_of).sum::<u64>(),
        None => specs(scene, run) + current(entries).map(tokens_of).sum::<u64>(),
    };
    let unread = scene.get::<Mail>(entity).map_or(&[][..], |mail| &mail.0);
    transcript + unread.iter().map(|text| tokens_of_message(text.len() as u64)).sum::<u64>()
}
