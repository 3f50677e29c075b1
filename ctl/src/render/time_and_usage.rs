//! Renders the use of a run's time and money: a bar for each part of its wall time, and its usage. Pure.

use std::io::{self, Write};

use harness_protocol::run::{RunView, Timing, Usage};
use harness_protocol::time::Span;

use crate::render::style::Look;
use crate::render::units::span;

/// Characters of the longest bar.
const WIDTH: u64 = 40;

/// A part of the wall time: its name, its meaning, and how to read it.
type Part = (&'static str, &'static str, fn(&Timing) -> Span);

/// The parts of a run's wall time.
const PARTS: [Part; 8] = [
    ("queued", "before its first inference", |timing| timing.queued),
    ("lane", "behind others, for a permit of a lane", |timing| timing.lane),
    ("model", "the model was asked", |timing| timing.model),
    ("retry", "until the provider was asked again", |timing| timing.retry),
    ("tools", "calls executed", |timing| timing.tools),
    ("waiting", "for a person, another run, or what others hold of a budget", |timing| timing.waiting),
    ("paused", "by somebody", |timing| timing.paused),
    ("down", "the daemon was not there", |timing| timing.down),
];

/// Writes the use of time and money.
pub(crate) fn write(out: &mut dyn Write, look: Look, run: &RunView) -> io::Result<()> {
    let (paint, total) = (look.paint, run.timing.total());
    writeln!(out, "run {}, {}, {} step(s), {}", run.id, run.state.as_str(), run.steps, span(total))?;
    for (name, what, part) in PARTS {
        let time = part(&run.timing);
        if time == Span::ZERO {
            continue;
        }
        let share = share(time, total);
        let bar = paint.green("#".repeat(usize::try_from(length(time, total)).unwrap_or_default()));
        writeln!(out, "  {name:<8} {:>8} {share:>4} %  {bar} {}", span(time), paint.dim(what))?;
    }
    used(out, "used", &run.usage)?;
    if run.usage_tree != run.usage {
        used(out, "with those below it", &run.usage_tree)?;
    }
    Ok(())
}

fn used(out: &mut dyn Write, name: &str, usage: &Usage) -> io::Result<()> {
    let cost = match usage.cost_usd {
        Some(cost) => format!("{cost:.4} USD"),
        None => "its price is not known (provider.NAME.price)".to_owned(),
    };
    writeln!(
        out,
        "  {name}: {} tokens in ({} from the cache, {} into it), {} out ({} of reasoning); {cost}",
        usage.input_tokens,
        usage.cache_read_input_tokens,
        usage.cache_creation_input_tokens,
        usage.output_tokens,
        usage.reasoning_output_tokens
    )
}

/// The part of `total` in percent.
fn share(part: Span, total: Span) -> u64 {
    (part.as_micros() * 100 + total.as_micros() / 2) / total.as_micros().max(1)
}

/// Number of characters for a part; at least one.
fn length(part: Span, total: Span) -> u64 {
    (part.as_micros() * WIDTH / total.as_micros().max(1)).max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::render::run::tests::sample;

    #[test]
    fn each_part_has_its_share_and_the_parts_are_all_of_it() {
        let mut out = Vec::new();
        write(&mut out, Look::PLAIN, &sample()).unwrap();
        let told = String::from_utf8(out).unwrap();
        assert!(told.contains("queued       1.0s    1 %  # before"), "{told}");
        assert!(told.contains("waiting     1m29s   99 %  #######"), "{told}");
        assert!(!told.contains("paused"), "{told}");
        assert!(told.contains("10 tokens in (0 from the cache, 0 into it), 5 out"), "{told}");
        assert!(told.contains("price is not known"), "{told}");
    }
}
