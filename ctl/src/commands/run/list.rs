//! `list`: prints a table of runs.

use std::collections::{BTreeMap, BTreeSet};

use harness_protocol::id::RunId;
use harness_protocol::rpc::{ListParams, Selector, method};
use harness_protocol::run::{RunState, RunView};
use harness_protocol::time::Timestamp;

use crate::cli::runs::ListArgs;
use crate::commands::run::show::tell_held;
use crate::context::Ctx;
use crate::error::Failure;
use crate::output::note;
use crate::render::run::{named, short, waiting_for};
use crate::render::style::Look;
use crate::render::table::{Cell, Table};
use crate::render::text::first_line;
use crate::render::units::{now, span};
use crate::select::typed;

/// Finished runs that are listed where the user asked for no other number.
const LATEST: usize = 20;
/// Runs of a page.
const PAGE: u32 = 500;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &ListArgs) -> Result<u8, Failure> {
    let select = typed(&args.select)?;
    let selected = select != Selector::default() || args.root.is_some();
    let mut held = None;
    let (runs, more) = if selected {
        (pages(ctx, &select, args.root.as_ref(), usize::MAX, &mut held)?, false)
    } else {
        at_a_glance(ctx, &mut held)?
    };
    tell_held(held.as_deref());
    if ctx.json {
        for run in &runs {
            ctx.json(run)?;
        }
        return ctx.done();
    }
    let look = ctx.look();
    let table = if args.tree { tree(&runs, look, now()) } else { flat(&runs, look, now()) };
    if !table.is_empty() {
        table.write(&mut ctx.out, look, "")?;
    }
    ctx.done()?;
    if look.terminal {
        if table.is_empty() {
            note("no runs");
        } else if more {
            note(ctx.notes.dim("more have finished: harnessctl list --all"));
        }
    }
    ctx.done()
}

/// All live runs and the latest finished ones, newest first, and whether more have finished.
fn at_a_glance(ctx: &mut Ctx, held: &mut Option<String>) -> Result<(Vec<RunView>, bool), Failure> {
    let (live, finished): (Vec<_>, Vec<_>) = RunState::ALL.iter().copied().partition(|state| !state.is_terminal());
    let of = |states| Selector { states, ..Selector::default() };
    let mut runs = pages(ctx, &of(live), None, usize::MAX, held)?;
    // One more than is shown, because a page may end early: only this proves that there are more.
    let mut latest = pages(ctx, &of(finished), None, LATEST + 1, held)?;
    let more = latest.len() > LATEST;
    latest.truncate(LATEST);
    // A run that ended between the two requests is in both.
    let known: BTreeSet<RunId> = latest.iter().map(|run| run.id).collect();
    runs.retain(|run| !known.contains(&run.id));
    runs.extend(latest);
    runs.sort_by_key(|run| std::cmp::Reverse(run.submitted_at));
    Ok((runs, more))
}

/// The selected runs, newest first, at most `most`. `held` gets the reason why the journal cannot commit, while it
/// cannot.
pub(in crate::commands) fn pages(
    ctx: &mut Ctx,
    select: &Selector,
    root: Option<&String>,
    most: usize,
    held: &mut Option<String>,
) -> Result<Vec<RunView>, Failure> {
    let mut runs = Vec::new();
    let mut cursor = None;
    loop {
        let limit = u32::try_from(most - runs.len()).unwrap_or(PAGE).min(PAGE);
        let params = ListParams { select: select.clone(), root: root.cloned(), limit: Some(limit), cursor };
        let page = ctx.session.call::<method::RunList>(&params)?;
        if page.held.is_some() {
            *held = page.held;
        }
        runs.extend(page.runs);
        cursor = page.cursor;
        if cursor.is_none() || runs.len() >= most {
            return Ok(runs);
        }
    }
}

const COLUMNS: &[&str] = &["ID", "NAME", "STATE", ">AGE", ">STEPS", "WAITING FOR", "TITLE"];

fn flat(runs: &[RunView], look: Look, now: Timestamp) -> Table {
    let mut table = Table::new(COLUMNS);
    for run in runs {
        table.row(row(run, "", look, now));
    }
    table
}

fn row(run: &RunView, branch: &str, look: Look, now: Timestamp) -> Vec<Cell> {
    vec![
        format!("{branch}{}", short(run.id)).into(),
        // Where it stands below its parent, that is said by the place.
        named(run.name.as_deref(), run.parent.filter(|_| branch.is_empty() && run.name.is_some())).into(),
        Cell::painted(run.state.as_str(), look.paint.state(run.state)),
        span(now.since(run.submitted_at)).into(),
        run.steps.to_string().into(),
        waiting_for(run, now).into(),
        first_line(&run.title).into(),
    ]
}

/// Children below their parents, oldest first; roots, and those whose parent is not listed, in the order that they came
/// in.
fn tree(runs: &[RunView], look: Look, now: Timestamp) -> Table {
    let listed: BTreeSet<RunId> = runs.iter().map(|run| run.id).collect();
    let mut children: BTreeMap<RunId, Vec<&RunView>> = BTreeMap::new();
    let mut roots = Vec::new();
    for run in runs {
        match run.parent.filter(|parent| listed.contains(parent)) {
            Some(parent) => children.entry(parent).or_default().push(run),
            None => roots.push(run),
        }
    }
    let mut table = Table::new(COLUMNS);
    // A stack in place of recursion: its top comes next, so lists are pushed from their end.
    let mut next: Vec<(&RunView, String, String)> =
        roots.into_iter().rev().map(|run| (run, String::new(), String::new())).collect();
    while let Some((run, branch, below)) = next.pop() {
        table.row(row(run, &branch, look, now));
        let own = children.remove(&run.id).unwrap_or_default();
        for (index, child) in own.into_iter().enumerate() {
            let (sign, line) = if index == 0 { ("└ ", "  ") } else { ("├ ", "│ ") };
            next.push((child, format!("{below}{sign}"), format!("{below}{line}")));
        }
    }
    table
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::render::run::tests::sample;

    fn run(id: u64, parent: Option<u64>) -> RunView {
        let mut run = sample();
        run.id = RunId::from_u64(id << 25);
        run.parent = parent.map(|parent| RunId::from_u64(parent << 25));
        run.name = None;
        run.title = format!("run {id}");
        run
    }

    #[test]
    fn a_tree_has_children_below_their_parents() {
        // Newest first, as the daemon lists them.
        let runs = [run(5, Some(9)), run(4, Some(2)), run(3, Some(1)), run(2, Some(1)), run(1, None)];
        let mut out = Vec::new();
        tree(&runs, Look::PLAIN, runs[0].submitted_at).write(&mut out, Look::PLAIN, "").unwrap();
        let text = String::from_utf8(out).unwrap();
        let shape: Vec<String> = text
            .lines()
            .skip(1)
            .map(|line| format!("{}{}", line.split("0000").next().unwrap(), line.split("run ").last().unwrap()))
            .collect();
        assert_eq!(shape, ["5", "1", "├ 2", "│ └ 4", "└ 3"]);
    }

    /// A run may call a child as its operator's run is called, and have it ask.
    #[test]
    fn a_child_is_told_from_the_run_of_an_operator_that_is_called_the_same() {
        let child = RunView { id: RunId::from_u64(7), parent: Some(RunId::from_u64(8 << 25)), ..sample() };
        let mut out = Vec::new();
        flat(&[sample(), child], Look::PLAIN, sample().submitted_at).write(&mut out, Look::PLAIN, "").unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("01234567  nightly                      waiting"), "{text}");
        assert!(text.contains("00000000  nightly (child of 00000008)  waiting"), "{text}");
    }

    #[test]
    fn a_row_says_what_the_run_waits_for() {
        let mut out = Vec::new();
        flat(&[sample()], Look::PLAIN, sample().submitted_at).write(&mut out, Look::PLAIN, "").unwrap();
        let expected = "\
ID        NAME     STATE    AGE  STEPS  WAITING FOR               TITLE
01234567  nightly  waiting   0s      2  a person (00000000000qq)  say hello
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
