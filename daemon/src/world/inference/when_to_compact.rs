//! Decides when a run's prompt is too long for its model, and lets the model summarise the older part. How that part is
//! cut and summarised is in `prompt::summarise`.
//!
//! ```text
//!            too long, as far as one can tell           summary
//!  begin ──────────────────────────────────▶ compacting ───────▶ begin, with a shorter prompt
//!    ▲ │ inference                            │  ▲ too long for that, too
//!    │ ▼                                      ▼  │
//!    └─ the provider says that it is too long ┘  └─ half of it is shown
//! ```
//!
//! Its decisions become events; it changes nothing itself. The transcript stays whole; only the prompt becomes shorter.

use std::sync::Arc;

use harness_protocol::id::RunId;
use harness_protocol::run::Compaction;
use harness_protocol::spec::RunSpec;

use super::budget;
use crate::prompt::summarise;
use crate::world::model::components::{CompactionFailures, ContextOverflow, Transcript};
use crate::world::tx::Tx;

/// Tokens that are left for an answer, where nothing else is configured and the model takes as much.
const ANSWER: u64 = 16_384;
/// An estimate of a prompt may be wrong by a part of it, and by what a server's template adds.
const MARGIN: u64 = 4;
const LEAST_MARGIN: u64 = 256;

/// Why a run ends whose prompt is too long all the same.
pub(in crate::world) const NOTHING_TO_LEAVE_OUT: &str =
    "its prompt is too long for the model, and nothing of it can be left out";

/// Whether the next prompt of a run is short enough.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::world) enum Fit {
    /// It is, as far as one can tell.
    Fits,
    /// It is not, and this makes it shorter.
    Compact(Compaction),
    /// It is not, and nothing can be left out of it.
    TooLong,
}

/// What of the next prompt of a run, for its own provider or for the one that is asked `instead`.
pub(in crate::world) fn fit(tx: &Tx<'_>, run: RunId, instead: Option<&Arc<str>>) -> Fit {
    let (Some(entity), Some(spec)) = (tx.entity(run), tx.spec(run)) else { return Fit::Fits };
    let window = window(tx, &spec.0, instead);
    let too_long = tx.get::<ContextOverflow>(entity);
    if too_long.is_some_and(|too_long| too_long.due) {
        let refused = too_long.map_or(1, |too_long| too_long.refused);
        return plan(tx, run, window, refused).map_or(Fit::TooLong, Fit::Compact);
    }
    let Some(window) = window else { return Fit::Fits };
    if budget::next_input(tx, run) <= window.tokens - window.answer {
        return Fit::Fits;
    }
    // Only the provider knows for sure: where nothing can be left out, it is asked.
    plan(tx, run, Some(window), 0).map_or(Fit::Fits, Fit::Compact)
}

/// Whether a prompt that the provider found too long can be made shorter.
pub(in crate::world) fn can_shorten(tx: &Tx<'_>, run: RunId, instead: Option<&Arc<str>>) -> bool {
    let (Some(entity), Some(spec)) = (tx.entity(run), tx.spec(run)) else { return false };
    let refused = tx.get::<ContextOverflow>(entity).map_or(0, |too_long| too_long.refused) + 1;
    plan(tx, run, window(tx, &spec.0, instead), refused).is_some()
}

/// The limit of an answer, made to fit beside the prompt: many servers refuse more. Where neither the configuration nor
/// a budget (`affordable`) has a limit, servers give what there is room for.
pub(in crate::world) fn room(
    tx: &Tx<'_>,
    run: RunId,
    instead: Option<&Arc<str>>,
    affordable: Option<u32>,
) -> Option<u32> {
    let window = window(tx, &tx.spec(run)?.0, instead)?;
    let sent = [window.configured, affordable.map(u64::from)].into_iter().flatten().min()?;
    let input = budget::next_input(tx, run);
    let left = window.tokens.saturating_sub(input + (input / MARGIN).max(LEAST_MARGIN));
    // The estimate errs on the safe side, so at least half of the usual answer stays: an answer that is cut off is
    // useless.
    u32::try_from(left.max(window.answer / 2).min(sent)).ok()
}

/// Aims at half of what the model takes, or of what it refused, and at half of that after each further refusal.
fn plan(tx: &Tx<'_>, run: RunId, window: Option<Window>, refused: u32) -> Option<Compaction> {
    let transcript = tx.get::<Transcript>(tx.entity(run)?)?;
    let input = budget::next_input(tx, run);
    let whole = window.map_or(input, |window| window.tokens.min(input));
    let tries = tx.get::<CompactionFailures>(tx.entity(run)?).map_or(0, |tries| tries.0);
    summarise::plan(&transcript.0, whole >> refused.clamp(1, 63), tries)
}

/// What a model takes at once, prompt and answer together.
#[derive(Debug, Clone, Copy)]
struct Window {
    tokens: u64,
    /// Of these what is left for the answer.
    answer: u64,
    /// What an answer may have by configuration.
    configured: Option<u64>,
}

fn window(tx: &Tx<'_>, spec: &RunSpec, instead: Option<&Arc<str>>) -> Option<Window> {
    let model = spec.model.as_deref().filter(|_| instead.is_none());
    let provider = tx.setup().config.providers.get(instead.or(spec.provider.as_ref())?)?;
    let tokens = u64::from(provider.context_of(model)?);
    let configured = provider.endpoint.as_ref().and_then(|endpoint| endpoint.answer_tokens()).map(u64::from);
    Some(Window { tokens, answer: configured.unwrap_or(ANSWER).min(tokens / 4), configured })
}
