//! `list`: prints a table of runs.

use std::collections::{BTreeMap, BTreeSet};

use harness_protocol::id::RunId;
use harness_protocol::rpc::{ListDetail, ListParams, Method, RunPage, Selector, method};
use harness_protocol::run::{RunLine, RunState, RunView};
use harness_protocol::time::Timestamp;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cli::runs::ListArgs;
use crate::client::ClientError;
use crate::client::timeouts::PATIENCE;
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
const PAGE: u32 = 1_000;
/// The minor version of the protocol from which on a daemon has lines.
const LINES_SINCE: u32 = 4;

/// What a page of a list has of a run.
pub(in crate::commands) trait Listed: Sized {
    const DETAIL: ListDetail;
    /// The runs of a page.
    fn of(page: RunPage) -> Vec<Self>;
    fn id(&self) -> RunId;
    fn submitted_at(&self) -> Timestamp;
}

impl Listed for RunView {
    const DETAIL: ListDetail = ListDetail::Whole;
    fn of(page: RunPage) -> Vec<Self> {
        page.runs
    }
    fn id(&self) -> RunId {
        self.id
    }
    fn submitted_at(&self) -> Timestamp {
        self.submitted_at
    }
}

impl Listed for RunLine {
    const DETAIL: ListDetail = ListDetail::Line;
    fn of(page: RunPage) -> Vec<Self> {
        // An older daemon gives the whole of each.
        if page.lines.is_empty() { page.runs.into_iter().map(Self::from).collect() } else { page.lines }
    }
    fn id(&self) -> RunId {
        self.id
    }
    fn submitted_at(&self) -> Timestamp {
        self.submitted_at
    }
}

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &ListArgs) -> Result<u8, Failure> {
    let select = typed(&args.select)?;
    if ctx.json {
        let (runs, _) = listed::<RunView>(ctx, &select, args)?;
        for run in &runs {
            ctx.json(run)?;
        }
        return ctx.done();
    }
    let (runs, more) = listed::<RunLine>(ctx, &select, args)?;
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

/// The runs that were asked for, newest first, and whether more have finished.
fn listed<T: Listed>(ctx: &mut Ctx, select: &Selector, args: &ListArgs) -> Result<(Vec<T>, bool), Failure> {
    let mut held = None;
    let listed = if *select != Selector::default() || args.root.is_some() {
        (pages(ctx, select, args.root.as_ref(), usize::MAX, &mut held)?, false)
    } else {
        at_a_glance(ctx, &mut held)?
    };
    tell_held(held.as_deref());
    Ok(listed)
}

/// All live runs and the latest finished ones, newest first, and whether more have finished.
fn at_a_glance<T: Listed>(ctx: &mut Ctx, held: &mut Option<String>) -> Result<(Vec<T>, bool), Failure> {
    let (live, finished): (Vec<_>, Vec<_>) = RunState::ALL.iter().copied().partition(|state| !state.is_terminal());
    let of = |states| Selector { states, ..Selector::default() };
    let mut runs: Vec<T> = pages(ctx, &of(live), None, usize::MAX, held)?;
    // One more than is shown, because a page may end early: only this proves that there are more.
    let mut latest: Vec<T> = pages(ctx, &of(finished), None, LATEST + 1, held)?;
    let more = latest.len() > LATEST;
    latest.truncate(LATEST);
    // A run that ended between the two requests is in both.
    let known: BTreeSet<RunId> = latest.iter().map(Listed::id).collect();
    runs.retain(|run| !known.contains(&run.id()));
    runs.extend(latest);
    runs.sort_by_key(|run| std::cmp::Reverse(run.submitted_at()));
    Ok((runs, more))
}

/// The selected runs, newest first, at most `most`. `held` gets the reason why the journal cannot commit, while it
/// cannot.
pub(in crate::commands) fn pages<T: Listed>(
    ctx: &mut Ctx,
    select: &Selector,
    root: Option<&String>,
    most: usize,
    held: &mut Option<String>,
) -> Result<Vec<T>, Failure> {
    let mut runs = Vec::new();
    let has_lines = ctx.session.client()?.greeting()?.protocol_minor >= LINES_SINCE;
    let detail = if has_lines { T::DETAIL } else { ListDetail::Whole };
    let params = |cursor, room: usize| ListParams {
        select: select.clone(),
        root: root.cloned(),
        limit: Some(u32::try_from(room).unwrap_or(PAGE).min(PAGE)),
        cursor,
        detail,
    };
    let mut asked = params(None, most);
    let mut ahead = None;
    loop {
        let text =
            match ahead.take().map(|ticket| ctx.session.client()?.reply(ticket, Some(PATIENCE)).map_err(Failure::from))
            {
                Some(Ok(text)) => text,
                // The session knows what to do about a daemon that leaves: the page is asked for again.
                Some(Err(_)) | None => ctx.session.call::<UnreadRunList>(&asked)?,
            };
        let next = read::<NextPage>(&text)?.cursor;
        // Where all are listed the daemon makes the next page while this one is read.
        if let (Some(_), usize::MAX) = (next, most) {
            asked = params(next, most);
            ahead = Some(ctx.session.client()?.send::<UnreadRunList>(&asked)?);
        }
        let page = read::<RunPage>(&text)?;
        if page.held.is_some() {
            held.clone_from(&page.held);
        }
        runs.extend(T::of(page));
        if next.is_none() || runs.len() >= most {
            return Ok(runs);
        }
        asked = params(next, most - runs.len());
    }
}

/// `run.list`, of which the reply is not read yet.
struct UnreadRunList;

impl Method for UnreadRunList {
    const NAME: &'static str = method::RunList::NAME;
    type Params = ListParams;
    type Reply = Box<RawValue>;
}

/// The part of a page that says where the next one begins.
#[derive(Deserialize)]
struct NextPage {
    cursor: Option<u64>,
}

fn read<'t, R: Deserialize<'t>>(text: &'t RawValue) -> Result<R, Failure> {
    serde_json::from_str(text.get()).map_err(|error| Failure::from(ClientError::Garbled(error.to_string())))
}

const COLUMNS: &[&str] = &["ID", "NAME", "STATE", ">AGE", ">STEPS", "WAITING FOR", "TITLE"];

fn flat(runs: &[RunLine], look: Look, now: Timestamp) -> Table {
    let mut table = Table::new(COLUMNS);
    for run in runs {
        table.row(row(run, "", look, now));
    }
    table
}

fn row(run: &RunLine, branch: &str, look: Look, now: Timestamp) -> Vec<Cell> {
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
fn tree(runs: &[RunLine], look: Look, now: Timestamp) -> Table {
    let listed: BTreeSet<RunId> = runs.iter().map(|run| run.id).collect();
    let mut children: BTreeMap<RunId, Vec<&RunLine>> = BTreeMap::new();
    let mut roots = Vec::new();
    for run in runs {
        match run.parent.filter(|parent| listed.contains(parent)) {
            Some(parent) => children.entry(parent).or_default().push(run),
            None => roots.push(run),
        }
    }
    let mut table = Table::new(COLUMNS);
    // A stack in place of recursion: its top comes next, so lists are pushed from their end.
    let mut next: Vec<(&RunLine, String, String)> =
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

    fn run(id: u64, parent: Option<u64>) -> RunLine {
        let mut run = RunLine::from(sample());
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
        let child = RunLine { id: RunId::from_u64(7), parent: Some(RunId::from_u64(8 << 25)), ..sample().into() };
        let mut out = Vec::new();
        flat(&[sample().into(), child], Look::PLAIN, sample().submitted_at).write(&mut out, Look::PLAIN, "").unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("01234567  nightly                      waiting"), "{text}");
        assert!(text.contains("00000000  nightly (child of 00000008)  waiting"), "{text}");
    }

    #[test]
    fn a_row_says_what_the_run_waits_for() {
        let mut out = Vec::new();
        flat(&[sample().into()], Look::PLAIN, sample().submitted_at).write(&mut out, Look::PLAIN, "").unwrap();
        let expected = "\
ID        NAME     STATE    AGE  STEPS  WAITING FOR               TITLE
01234567  nightly  waiting   0s      2  a person (00000000000qq)  say hello
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
