//! Selects the runs that a command is about, from its arguments: names, ids on standard input, labels, states, kinds of
//! waits.
//!
//! `selector` has the rule that no argument never means every run: it is a usage error. Commands that only show take
//! `typed`, where no argument may mean every run; so does `prune`, which must refuse that itself. The daemon resolves
//! names and filters; a command that handles one run after the other gets the list from here. Changes no run.

pub(crate) mod confirm;

use std::collections::BTreeSet;

use harness_protocol::id::RunId;
use harness_protocol::rpc::{ErrorKind, ListParams, RpcError, Selector, Subject, method};
use harness_protocol::run::{RunState, RunView};
use serde::Deserialize;

use crate::cli::select::SelectArgs;
use crate::client::Flow;
use crate::client::timeouts::PATIENCE;
use crate::context::Ctx;
use crate::error::Failure;
use crate::render::run::short;
use crate::session::long_poll::show_params;
use crate::spec::stdin;

/// The argument that means ids on standard input.
const STDIN: &str = "-";
/// Runs on a page.
const PAGE: u32 = 500;
/// Names in one request.
const NAMES: usize = 500;
/// The hint if no run is named.
const HINT: &str =
    "name runs, or select them: -l KEY=VALUE, --state STATE, --waiting-for WHAT, --all, or - for ids on standard input";

/// The chosen runs.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// Their views at that time, each once, in the order of the names; otherwise the oldest first.
    pub(crate) runs: Vec<RunView>,
    /// Whether exactly one run was named, without criteria: a command shows such a run without a header.
    pub(crate) is_one: bool,
}

/// The selector of the arguments. Without arguments it is an error: it never means every run.
pub(crate) fn selector(args: &SelectArgs) -> Result<Selector, Failure> {
    let select = typed(args)?;
    if select == Selector::default() {
        return Err(Failure::usage_hint("no run is named", HINT));
    }
    Ok(select)
}

/// The same for a command that means every run if it has no arguments.
pub(crate) fn typed(args: &SelectArgs) -> Result<Selector, Failure> {
    let mut names = Vec::new();
    let mut is_read = false;
    for name in &args.runs {
        if name != STDIN {
            names.push(name.clone());
        } else if !std::mem::replace(&mut is_read, true) {
            names.extend(ids(&stdin::read("the list of runs")?)?);
        }
    }
    if is_read && names.is_empty() {
        // Together with a label, an empty list of names would select every run with the label.
        return Err(Failure::nothing_applied("standard input names no run"));
    }
    Ok(args.filter.selector(&names))
}

/// The ids in a text: the first word of each line, or `id` if the line is a JSON object.
fn ids(text: &str) -> Result<Vec<String>, Failure> {
    #[derive(Deserialize)]
    struct WithId {
        id: String,
    }
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(word) = line.split_whitespace().next() else { continue };
        if !word.starts_with('{') {
            found.push(word.to_owned());
            continue;
        }
        let object: WithId = serde_json::from_str(line).map_err(|_| {
            Failure::usage(format!("line {} of standard input is no JSON object with the id of a run", number + 1))
        })?;
        found.push(object.id);
    }
    Ok(found)
}

/// Whether there are criteria other than names.
pub(crate) fn is_selected(select: &Selector) -> bool {
    select.all || select.has_filter()
}

/// Restricts a bare `--all` to live runs, since there may be any number of finished ones.
pub(crate) fn live_of_all(mut select: Selector) -> Selector {
    if select.all && select.runs.is_empty() && !select.has_filter() {
        select.states = RunState::ALL.iter().copied().filter(|state| !state.is_terminal()).collect();
    }
    select
}

/// The name, if exactly one run was named, without criteria.
pub(crate) fn only_name(args: &SelectArgs) -> Option<&str> {
    match args.runs.as_slice() {
        [name] if name != STDIN && !is_selected(&args.filter.selector(&[])) => Some(name),
        _ => None,
    }
}

/// Finds the selected runs.
///
/// # Errors
/// If a named run does not exist, or no run meets the criteria.
pub(crate) fn choose(ctx: &mut Ctx, args: &SelectArgs) -> Result<Chosen, Failure> {
    let select = live_of_all(selector(args)?);
    let is_one = only_name(args).is_some();
    let runs = once(find(ctx, &select)?);
    if runs.is_empty() {
        return Err(Failure::nothing_applied("no run matches"));
    }
    Ok(Chosen { runs, is_one })
}

/// The selected runs. A run that is named twice comes twice.
pub(crate) fn find(ctx: &mut Ctx, select: &Selector) -> Result<Vec<RunView>, Failure> {
    let mut runs = if select.runs.is_empty() { listed(ctx, select)? } else { named(ctx, &select.runs)? };
    if !select.runs.is_empty() {
        runs.retain(|run| select.fits(run));
    }
    Ok(runs)
}

/// Removes repeated runs.
pub(crate) fn once(mut runs: Vec<RunView>) -> Vec<RunView> {
    let mut seen = BTreeSet::new();
    runs.retain(|run| seen.insert(run.id));
    runs
}

fn listed(ctx: &mut Ctx, select: &Selector) -> Result<Vec<RunView>, Failure> {
    let mut runs = Vec::new();
    let mut cursor = None;
    loop {
        let params =
            ListParams { select: select.clone(), root: None, limit: Some(PAGE), cursor, ..ListParams::default() };
        let page = ctx.session.call::<method::RunList>(&params)?;
        runs.extend(page.runs);
        cursor = page.cursor;
        if cursor.is_none() {
            runs.reverse();
            return Ok(runs);
        }
    }
}

/// The runs with these names, in that order. The error names the first that does not exist.
pub(crate) fn named(ctx: &mut Ctx, names: &[String]) -> Result<Vec<RunView>, Failure> {
    let mut runs = Vec::new();
    for names in names.chunks(NAMES) {
        loop {
            match shown(ctx, names) {
                Err(failure) if failure.is_loss() => ctx.session.recover(&failure)?,
                found => break runs.extend(found?),
            }
        }
    }
    Ok(runs)
}

fn shown(ctx: &mut Ctx, names: &[String]) -> Result<Vec<RunView>, Failure> {
    let params: Vec<_> = names.iter().map(show_params).collect();
    let mut views: Vec<Option<Result<RunView, RpcError>>> = vec![None; names.len()];
    ctx.session.client()?.pipeline::<method::RunShow>(&params, Some(PATIENCE), |index, reply| {
        views[index] = Some(reply.map(|shown| shown.run));
        Flow::Go
    })?;
    let told = |(name, view): (&String, Result<RunView, RpcError>)| {
        view.map_err(|mut error| {
            // With several names, the error must say which run it is about.
            if names.len() > 1 && error.kind() == ErrorKind::NotFound && !names_it(&error, name) {
                error.message = format!("{name:?}: {}", error.message);
            }
            Failure::Refused(error)
        })
    };
    names.iter().zip(views.into_iter().flatten()).map(told).collect()
}

/// Whether a refusal is about the run of this name, and so names it.
fn names_it(error: &RpcError, name: &str) -> bool {
    match error.subject() {
        Some(Subject::Name(told)) => told == Subject::short(name),
        Some(Subject::Run(run)) => name.parse() == Ok(run),
        _ => false,
    }
}

/// Asks on a terminal before more than one run is changed. Runs that were named one by one need no question.
pub(crate) fn confirm(select: &Selector, runs: usize, yes: bool, what: &str) -> Result<(), Failure> {
    if is_selected(select) { confirm::more_than_one(runs, yes, &format!("{what} {runs} runs?")) } else { Ok(()) }
}

/// The header before the output about one of several runs.
pub(crate) fn head(run: &RunView) -> String {
    match &run.name {
        Some(name) => format!("==> {} ({name}) <==", run.id),
        None => format!("==> {} <==", run.id),
    }
}

/// The beginning of each line of one of several runs: the run's name, or the start of its id.
pub(crate) fn tag(run: &RunView) -> String {
    run.name.as_deref().map_or_else(|| short(run.id), ToOwned::to_owned)
}

/// The ids of runs.
pub(crate) fn ids_of(runs: &[RunView]) -> Vec<RunId> {
    runs.iter().map(|run| run.id).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cli::select::FilterArgs;
    use harness_protocol::run::WaitKind;

    #[test]
    fn nothing_typed_is_a_usage_error_and_not_everything() {
        let mut args = SelectArgs { runs: Vec::new(), filter: FilterArgs::default() };
        assert_eq!(selector(&args).unwrap_err().code(), 2);
        args.filter.all = true;
        assert!(selector(&args).unwrap().all);
        args.filter = FilterArgs { waiting_for: vec![WaitKind::Lane], ..FilterArgs::default() };
        assert_eq!(selector(&args).unwrap().waiting_for, [WaitKind::Lane]);
    }

    /// Entry U11 in `tests/README.md`.
    #[test]
    fn ids_are_read_from_lines_of_whatever_printed_them() {
        for (text, expected) in [
            ("a\nb\n", &["a", "b"][..]),
            ("a", &["a"]),
            ("\n  \n a \n\n", &["a"]),
            ("abc succeeded 0 done\ndef failed 1 no\n", &["abc", "def"]),
            ("{\"id\":\"abc\",\"seq\":3}\n{\"state\":\"failed\",\"id\":\"def\"}\n", &["abc", "def"]),
            ("  {\"id\":\"abc\"}\r\ndef\r\n", &["abc", "def"]),
            ("a\tb\n", &["a"]),
            ("", &[]),
        ] {
            assert_eq!(ids(text).unwrap(), expected, "{text:?}");
        }
        for wrong in ["{", "{}", "{\"id\":7}", "a\n{\"run\":\"b\"}"] {
            assert_eq!(ids(wrong).unwrap_err().code(), 2, "{wrong:?}");
        }
    }

    #[test]
    fn all_alone_means_live_runs_where_runs_are_taken_one_by_one() {
        let all = Selector { all: true, ..Selector::default() };
        assert_eq!(live_of_all(all.clone()).states.len(), 5);
        let failed = Selector { states: vec![RunState::Failed], ..all.clone() };
        assert_eq!(live_of_all(failed.clone()), failed);
        let named = Selector { runs: vec!["a".to_owned()], ..all };
        assert_eq!(live_of_all(named.clone()), named);
    }
}
