//! `usage`: what runs used, in groups.

use std::collections::BTreeMap;

use harness_protocol::rpc::Selector;
use harness_protocol::run::{RunView, Usage};
use serde::Serialize;

use crate::cli::usage::{By, UsageArgs};
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::render::table::Table;
use crate::render::units::now;
use crate::verbs::list::pages;
use crate::verbs::show::tell_held;

/// What the runs of a group used, as one line of JSON.
#[derive(Serialize)]
struct Group<'a> {
    schema: &'static str,
    by: String,
    group: Option<&'a str>,
    runs: u64,
    usage: &'a Usage,
}

pub(super) fn run(ctx: &mut Ctx, args: &UsageArgs) -> Result<u8, Failure> {
    let mut held = None;
    let all = Selector { all: true, ..Selector::default() };
    let runs = pages(ctx, &all, None, usize::MAX, &mut held)?;
    tell_held(held.as_deref());
    let since = args.since.map(|since| now().before(since));
    let mut groups = BTreeMap::<Option<String>, (u64, Usage)>::new();
    for run in runs.iter().filter(|run| since.is_none_or(|since| run.submitted_at >= since)) {
        match groups.entry(key(&args.by, run)) {
            std::collections::btree_map::Entry::Vacant(new) => {
                new.insert((1, run.usage));
            }
            std::collections::btree_map::Entry::Occupied(mut known) => {
                let (count, usage) = known.get_mut();
                *count += 1;
                usage.add(&run.usage);
            }
        }
    }
    if ctx.json {
        for (group, (runs, usage)) in &groups {
            let group = group.as_deref();
            ctx.json(&Group { schema: "harness.usage/1", by: args.by.to_string(), group, runs: *runs, usage })?;
        }
        return ctx.done();
    }
    let look = ctx.look();
    let mut table = Table::new(&["GROUP", ">RUNS", ">IN", ">CACHED", ">OUT", ">REASONING", ">USD"]);
    for (group, (runs, usage)) in &groups {
        let group = group.as_deref().unwrap_or("-");
        let numbers = [
            *runs,
            usage.input_tokens,
            usage.cache_read_input_tokens,
            usage.output_tokens,
            usage.reasoning_output_tokens,
        ];
        let cost = usage.cost_usd.map_or_else(|| "?".to_owned(), |cost| format!("{cost:.4}"));
        let numbers = numbers.into_iter().map(|number| number.to_string());
        table.row(std::iter::once(group.to_owned()).chain(numbers).chain([cost]).map(Into::into).collect());
    }
    if !table.is_empty() {
        table.write(&mut ctx.out, look, "")?;
    }
    ctx.done()
}

/// The group of a run; none where it has no such label or model.
fn key(by: &By, run: &RunView) -> Option<String> {
    match by {
        By::Label(label) => run.labels.get(label).cloned(),
        By::Provider => Some(run.provider.to_string()),
        By::Model => run.model.as_deref().map(str::to_owned),
        By::Share => Some(run.share.to_string()),
        By::State => Some(run.state.as_str().to_owned()),
        By::Owner => Some(run.owner.to_string()),
    }
}
