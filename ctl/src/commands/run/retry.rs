//! `retry`: submits the specifications of finished runs again, as new runs. Options change the specification.

use std::collections::BTreeSet;

use harness_protocol::id::RunId;
use harness_protocol::rpc::{RetryParams, Selector, Submitted, method};
use harness_protocol::run::{RunState, RunView};
use harness_protocol::spec::SpecChanges;

use crate::cli::runs::RetryArgs;
use crate::commands::run::run_each::each;
use crate::commands::run::submit::{key_of, only_one};
use crate::context::Ctx;
use crate::error::Failure;
use crate::output::note;
use crate::progress::after_submit;
use crate::render::units::count;
use crate::select::{confirm, find, once, only_name, selector};
use crate::session::submit_once;
use crate::spec;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &RetryArgs) -> Result<u8, Failure> {
    after_submit::check(&args.then)?;
    let changes = spec::changes(&args.settings, &args.add_labels)?;
    if let Some(name) = only_name(&args.change.select) {
        let submitted = retry(ctx, name.to_owned(), &changes, args)?;
        return after_submit::go_on(ctx, &submitted, &args.then, false);
    }
    only_one(args.once.again)?;
    let mut select = selector(&args.change.select)?;
    if !select.waiting_for.is_empty() {
        return Err(Failure::usage("only finished runs are tried again, and they wait for nothing"));
    }
    let are_named = !select.runs.is_empty();
    if !are_named && select.states.is_empty() {
        select.states = vec![RunState::Failed];
    }
    let mut runs = once(find(ctx, &select)?);
    if !args.children {
        runs = without_children(runs, &select.runs)?;
    }
    if !are_named {
        runs = that_need_it(ctx, &select, runs)?;
    }
    if runs.is_empty() {
        return Err(Failure::nothing_applied("no run matches that has ended and was not tried again"));
    }
    if changes.name.is_some() && runs.len() > 1 {
        return Err(Failure::usage("a name is of one run, and these are several"));
    }
    confirm(&select, runs.len(), args.change.yes, "retry")?;
    each(ctx, &runs, &args.then, "queued", |ctx, run| retry(ctx, run, &changes, args))
}

fn retry(ctx: &mut Ctx, run: String, changes: &SpecChanges, args: &RetryArgs) -> Result<Submitted, Failure> {
    let (key, first) = key_of(args.once.again)?;
    let params =
        RetryParams { run, changes: Box::new(changes.clone()), submit_key: Some(key), first, children: args.children };
    submit_once::one::<method::RunRetry>(&mut ctx.session, params, args.once.retry_for)
}

/// The runs that no other run has submitted. A run gives its children any labels and names, so a selection by these
/// does not mean children. A child that is named by its whole id stays.
fn without_children(runs: Vec<RunView>, named: &[String]) -> Result<Vec<RunView>, Failure> {
    let is_by_id = |run: &RunView| named.iter().any(|name| name.parse() == Ok(run.id));
    let (keep, children): (Vec<RunView>, Vec<RunView>) =
        runs.into_iter().partition(|run| run.parent.is_none() || is_by_id(run));
    match children.first() {
        Some(child) if !named.is_empty() => {
            let message = format!("run {} was submitted by another run, and a retry of it is a run of yours", child.id);
            Err(Failure::usage_hint(message, "name it by its whole id, or say --children"))
        }
        Some(_) => {
            note(format_args!(
                "harnessctl: {} left out: other runs submitted them; --children takes them as well",
                count(children.len(), "run")
            ));
            Ok(keep)
        }
        None => Ok(keep),
    }
}

/// The selected runs that have ended, and whose work no other run repeats.
fn that_need_it(ctx: &mut Ctx, select: &Selector, runs: Vec<RunView>) -> Result<Vec<RunView>, Failure> {
    // A retry has the labels of the first run.
    let all = Selector { labels: select.labels.clone(), all: true, ..Selector::default() };
    let tried: BTreeSet<RunId> = find(ctx, &all)?.iter().filter_map(|run| run.retry_of).collect();
    let (mut need, again, below) = sorted(runs, &tried);
    for (number, why) in [(again, "tried again already"), (below, "below one that is tried again")] {
        if number > 0 {
            note(format_args!(
                "harnessctl: {} left out: {why}; name them to try them all the same",
                count(number, "run")
            ));
        }
    }
    need.retain(|run| run.state.is_terminal());
    Ok(need)
}

/// The runs that need a retry; and how many were retried already, and how many a run above them starts again.
fn sorted(runs: Vec<RunView>, tried: &BTreeSet<RunId>) -> (Vec<RunView>, usize, usize) {
    let (again, mut need): (Vec<RunView>, Vec<RunView>) = runs.into_iter().partition(|run| tried.contains(&run.id));
    let chosen: BTreeSet<RunId> = need.iter().map(|run| run.id).collect();
    let before = need.len();
    let is_below = |run: &RunView| {
        run.parent.is_some_and(|parent| chosen.contains(&parent) || (run.root != run.id && chosen.contains(&run.root)))
    };
    need.retain(|run| !is_below(run));
    let below = before - need.len();
    (need, again.len(), below)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::run::tests::sample;

    fn run(id: u64, parent: Option<u64>, root: u64) -> RunView {
        let of = RunId::from_u64;
        RunView { id: of(id), parent: parent.map(of), root: of(root), ..sample() }
    }

    /// A run gives its children the labels of others' jobs.
    #[test]
    fn what_other_runs_have_submitted_is_tried_again_only_by_its_id() {
        let all = || vec![run(1, None, 1), run(2, Some(1), 1), run(3, None, 3)];
        let ids = |runs: Vec<RunView>| runs.iter().map(|run| run.id.as_u64()).collect::<Vec<_>>();
        assert_eq!(without_children(all(), &[]).map(ids).ok(), Some(vec![1, 3]));
        let [parent, child] = [1, 2].map(|id| RunId::from_u64(id).to_string());
        assert_eq!(without_children(all(), &[parent.clone(), child]).map(ids).ok(), Some(vec![1, 2, 3]));
        assert!(without_children(all(), &[parent, "nightly".to_owned()]).is_err());
    }

    /// U11: nothing is done twice by a retry of many.
    #[test]
    fn what_was_tried_again_or_is_below_such_a_run_is_left_out() {
        let tree =
            || vec![run(1, None, 1), run(2, Some(1), 1), run(3, Some(2), 1), run(4, None, 4), run(5, Some(9), 9)];
        for (tried, need, again, below) in [
            (&[][..], &[1, 4, 5][..], 0, 2),
            (&[4], &[1, 5], 1, 2),
            (&[1], &[2, 4, 5], 1, 1),
            (&[1, 2], &[3, 4, 5], 2, 0),
            (&[1, 2, 3, 4, 5], &[], 5, 0),
            (&[7], &[1, 4, 5], 0, 2),
        ] {
            let tried = tried.iter().map(|&id| RunId::from_u64(id)).collect();
            let (found, were_tried, are_below) = sorted(tree(), &tried);
            let found: Vec<u64> = found.iter().map(|run| run.id.as_u64()).collect();
            assert_eq!((found.as_slice(), were_tried, are_below), (need, again, below), "{tried:?}");
        }
    }
}
