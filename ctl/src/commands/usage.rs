//! `usage`: prints the tokens and the cost of runs, by group and in total.

use std::collections::BTreeMap;

use harness_protocol::rpc::Selector;
use harness_protocol::run::{RunLine, Usage};
use serde::Serialize;

use crate::cli::usage::{By, UsageArgs};
use crate::commands::run::list::pages;
use crate::commands::run::show::tell_held;
use crate::context::Ctx;
use crate::error::Failure;
use crate::render::table::{Cell, Table};
use crate::render::text::one_line;
use crate::render::units::now;
use crate::select::typed;

/// The use of a group of runs, as one line of JSON.
#[derive(Serialize)]
struct Group<'a> {
    schema: &'static str,
    by: &'a str,
    /// The group's value; of several groupings, the values with commas between them.
    group: Option<&'a str>,
    runs: u64,
    /// Sum of the use. Its cost is known only where that of all runs is.
    usage: &'a Usage,
    /// Cost of the runs whose cost is known: all together cost at least this.
    known_cost_usd: f64,
    /// Number of runs whose cost is not known.
    unpriced: u64,
}

/// Sum of the use of some runs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sum {
    runs: u64,
    usage: Usage,
    known_usd: f64,
    unpriced: u64,
}

impl Sum {
    fn add(&mut self, usage: &Usage) {
        if self.runs == 0 {
            self.usage.cost_usd = Some(0.0);
        }
        self.runs += 1;
        self.usage.add(usage);
        match usage.cost_usd {
            Some(cost) => self.known_usd += cost,
            None => self.unpriced += 1,
        }
    }

    /// `0.3500`, or `≥0.3500` where some costs are not known.
    fn cost(&self) -> String {
        let at_least = if self.unpriced > 0 { "≥" } else { "" };
        format!("{at_least}{:.4}", self.known_usd)
    }

    fn row(&self, keys: Vec<Cell>) -> Vec<Cell> {
        let Usage { input_tokens, output_tokens, cache_read_input_tokens, reasoning_output_tokens, .. } = self.usage;
        let numbers = [self.runs, input_tokens, cache_read_input_tokens, output_tokens, reasoning_output_tokens];
        let mut row = keys;
        row.extend(numbers.map(|number| number.to_string().into()));
        row.extend([self.cost().into(), self.unpriced.to_string().into()]);
        row
    }
}

/// The use of the runs, by group. A run without such a label, or model, is in a group without a name.
fn sums<'a>(runs: impl Iterator<Item = &'a RunLine>, by: &[By]) -> BTreeMap<Vec<Option<String>>, Sum> {
    let mut groups: BTreeMap<Vec<Option<String>>, Sum> = BTreeMap::new();
    for run in runs {
        let key = by.iter().map(|by| key(by, run)).collect();
        groups.entry(key).or_default().add(&run.usage);
    }
    groups
}

pub(super) fn run(ctx: &mut Ctx, args: &UsageArgs) -> Result<u8, Failure> {
    let mut held = None;
    let select = match typed(&args.select)? {
        select if select == Selector::default() => Selector { all: true, ..select },
        select => select,
    };
    let runs: Vec<RunLine> = pages(ctx, &select, None, usize::MAX, &mut held)?;
    tell_held(held.as_deref());
    let since = args.since.map(|since| now().before(since));
    let counted = || runs.iter().filter(|run| since.is_none_or(|since| run.submitted_at >= since));
    let groups = sums(counted(), &args.by);
    if ctx.json {
        let by = args.by.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        for (keys, sum) in &groups {
            let named = keys.iter().any(Option::is_some);
            let group = named.then(|| keys.iter().map(|key| shown(key.as_ref())).collect::<Vec<_>>().join(","));
            let &Sum { runs, ref usage, known_usd, unpriced } = sum;
            let group = group.as_deref();
            let schema = "harness.usage/1";
            ctx.json(&Group { schema, by: &by, group, runs, usage, known_cost_usd: known_usd, unpriced })?;
        }
        return ctx.done();
    }
    let look = ctx.look();
    let table = table(&groups, &args.by, counted().map(|run| &run.usage));
    if !table.is_empty() {
        table.write(&mut ctx.out, look, "")?;
    }
    ctx.done()
}

/// The groups, and the sum of all runs below them.
fn table<'a>(groups: &BTreeMap<Vec<Option<String>>, Sum>, by: &[By], all: impl Iterator<Item = &'a Usage>) -> Table {
    // Labels tell upper case from lower.
    let names: Vec<String> = by
        .iter()
        .map(|by| match by {
            By::Label(label) => one_line(label).into_owned(),
            by => by.to_string().to_uppercase(),
        })
        .collect();
    let columns: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .chain([">RUNS", ">IN", ">CACHED", ">OUT", ">REASONING", ">USD", ">UNPRICED"])
        .collect();
    let mut table = Table::new(&columns);
    for (keys, sum) in groups {
        table.row(sum.row(keys.iter().map(|key| shown(key.as_ref()).into()).collect()));
    }
    let mut total = Sum::default();
    all.for_each(|usage| total.add(usage));
    if total.runs > 0 {
        let name = |index| if index == 0 { "total" } else { "" };
        table.row(total.row((0..by.len()).map(|index| name(index).into()).collect()));
    }
    table
}

fn shown(key: Option<&String>) -> &str {
    key.map_or("-", String::as_str)
}

/// The group of a run; `None` where it has no such label or model.
fn key(by: &By, run: &RunLine) -> Option<String> {
    match by {
        By::Label(label) => run.labels.get(label).cloned(),
        By::Provider => Some(run.provider.to_string()),
        By::Model => run.model.as_deref().map(str::to_owned),
        By::Share => Some(run.share.to_string()),
        By::State => Some(run.state.as_str().to_owned()),
        By::Owner => Some(run.owner.to_string()),
        // A time is written with its date first.
        By::Day => Some(run.submitted_at.to_string().chars().take(10).collect()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::render::run::tests::sample;
    use crate::render::style::Look;
    use harness_protocol::time::Span;

    fn run(team: Option<&str>, days: u64, cost: Option<f64>) -> RunLine {
        let mut run = RunLine::from(sample());
        run.labels = team.map(|team| ("team".to_owned(), team.to_owned())).into_iter().collect();
        run.submitted_at = run.submitted_at + Span::from_secs(days * 86_400);
        (run.usage.input_tokens, run.usage.cost_usd) = (10, cost);
        run
    }

    fn written(runs: &[RunLine], by: &[By]) -> String {
        let mut out = Vec::new();
        let all = runs.iter().map(|run| &run.usage);
        table(&sums(runs.iter(), by), by, all).write(&mut out, Look::PLAIN, "").unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Entry U7 in `tests/README.md`.
    #[test]
    fn a_run_without_a_price_leaves_the_known_cost_of_its_group_as_a_lower_bound() {
        let team = || By::Label("team".to_owned());
        for (costs, cost, unpriced) in [
            (vec![Some(0.25), Some(0.5)], "0.7500", 0),
            (vec![Some(0.25), None, Some(0.5)], "≥0.7500", 1),
            (vec![None, None], "≥0.0000", 2),
            (vec![Some(0.0)], "0.0000", 0),
            (vec![None, Some(1.0), None], "≥1.0000", 2),
        ] {
            let runs: Vec<RunLine> = costs.iter().map(|cost| run(Some("a"), 0, *cost)).collect();
            let sum = sums(runs.iter(), &[team()])[&vec![Some("a".to_owned())]];
            assert_eq!((sum.cost().as_str(), sum.unpriced, sum.runs), (cost, unpriced, costs.len() as u64));
            assert_eq!(sum.usage.cost_usd.is_some(), unpriced == 0);
        }
    }

    /// Entry U7 in `tests/README.md`.
    #[test]
    fn groups_may_be_days_and_several_at_once_and_end_with_the_total() {
        let runs = [
            run(Some("a"), 0, Some(1.0)),
            run(Some("b"), 0, None),
            run(Some("a"), 1, Some(2.0)),
            run(None, 1, Some(4.0)),
        ];
        let header = |by: &[By]| written(&runs, by).lines().next().unwrap_or_default().to_owned();
        let several = header(&[By::Label("team".to_owned()), By::Day, By::State]);
        assert_eq!(several.split_whitespace().take(4).collect::<Vec<_>>(), ["team", "DAY", "STATE", "RUNS"]);
        let days = written(&runs, &[By::Day]);
        let lines: Vec<&str> = days.lines().collect();
        assert_eq!(lines.len(), 4, "{days}");
        assert!(lines[1].starts_with("2026-11-30 ") && lines[1].contains("≥1.0000"), "{days}");
        assert!(lines[2].starts_with("2026-12-01 ") && lines[2].contains(" 6.0000"), "{days}");
        assert!(lines[3].starts_with("total ") && lines[3].contains("≥7.0000"), "{days}");
        let both = written(&runs, &[By::Day, By::Label("team".to_owned())]);
        assert_eq!(both.lines().count(), 6, "{both}");
        assert!(both.lines().any(|line| line.starts_with("2026-12-01  -")), "{both}");
        assert_eq!(written(&[], &[By::Day]).lines().count(), 1);
    }
}
