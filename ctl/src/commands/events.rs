//! `events`: prints events as JSON lines. With `-f` it follows new events; without, it ends with the last event that
//! existed when the command began.
//!
//! With a filter (`--kind`) the daemon sends matching events only, and nothing tells when it has passed that last
//! event. So without `-f` all events are requested, and the filter is applied here.

use std::collections::BTreeSet;
use std::io::Write;

use clap::Args;
use harness_protocol::event::{EVENT_KINDS, EventBody, Gap};
use harness_protocol::id::{EpochId, RunId, Seq};
use harness_protocol::rpc::{ListParams, SubscribeParams, method};

use crate::cli::values;
use crate::client::Note;
use crate::client::incoming::RawEvent;
use crate::context::{Ctx, write_json};
use crate::error::Failure;
use crate::output::Out;
use crate::session::long_poll::{another_journal, id_of, of_runs, show_params};

/// Arguments of `events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// Only events after this number; 0 means all events
    #[arg(long, value_name = "SEQ", conflicts_with = "from", value_parser = values::seq)]
    pub(crate) after: Option<u64>,
    /// Only events from this number on
    #[arg(long, value_name = "SEQ", value_parser = values::seq)]
    pub(crate) from: Option<u64>,
    /// Follow the events as they happen; without a number, only from now on
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Only events of this run
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// With --run: also events of the runs below it
    #[arg(long, requires = "run")]
    pub(crate) tree: bool,
    /// Only this kind of event; may be repeated
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',')]
    pub(crate) kinds: Vec<String>,
    /// Also print live output, piece by piece
    #[arg(long, requires = "follow")]
    pub(crate) deltas: bool,
}

pub(super) fn run(ctx: &mut Ctx, args: &EventsArgs) -> Result<u8, Failure> {
    if let Some(kind) = args.kinds.iter().find(|kind| !EVENT_KINDS.contains(&kind.as_str())) {
        return Err(Failure::usage_hint(
            format!("there is no kind of event {kind:?}"),
            format!("the kinds: {}", EVENT_KINDS.join(" ")),
        ));
    }
    let after = args.after.or(args.from.map(|from| from.saturating_sub(1))).map(Seq);
    if args.follow { follow(ctx, args, after) } else { until_now(ctx, args, after.unwrap_or_default()) }
}

fn follow(ctx: &mut Ctx, args: &EventsArgs, after: Option<Seq>) -> Result<u8, Failure> {
    // The name may mean another run at the next daemon.
    let run = args.run.as_deref().map(|run| id_of(&mut ctx.session, run)).transpose()?;
    let mut params = SubscribeParams {
        after,
        run,
        tree: args.tree,
        kinds: args.kinds.clone(),
        deltas: args.deltas,
        ..SubscribeParams::default()
    };
    let mut last = None;
    loop {
        let failure = match stream(ctx, &mut params, &mut last) {
            Err(failure) => failure,
            Ok(()) => return ctx.done(),
        };
        ctx.out.flush()?;
        if failure.is_loss() {
            ctx.session.recover(&failure)?;
            continue;
        }
        return Err(match params.run {
            Some(run) => of_runs(failure, &ctx.session, || vec![run]),
            None => of_runs(failure, &ctx.session, Vec::new),
        });
    }
}

/// Writes events until the connection ends. `last` is the latest written event: the journal of a daemon that has come
/// back must have it, under the same number.
fn stream(ctx: &mut Ctx, params: &mut SubscribeParams, last: &mut Option<RawEvent>) -> Result<(), Failure> {
    // The event `last` is sent again with the ones after it, as a proof. A run is known by its id, and needs no such
    // proof.
    let mut known = last.clone().filter(|_| params.run.is_none());
    let after = known.as_ref().map(|event| Seq(event.seq.0.saturating_sub(1))).or(params.after);
    let asked = SubscribeParams { after, ..params.clone() };
    let subscribed = ctx.session.client()?.call::<method::EventSubscribe>(&asked)?;
    params.after.get_or_insert(subscribed.last_seq);
    params.epoch = subscribed.epoch;
    loop {
        match next(ctx)? {
            Note::Event(event) => {
                match known.take() {
                    Some(seen) if seen.is(&event) => {}
                    Some(seen) => {
                        return Err(another_journal(&format!(
                            "its event {} is not the one that was printed",
                            seen.seq
                        )));
                    }
                    None => ctx.out.json_text(&event.json)?,
                }
                params.after = Some(event.seq);
                *last = Some(event);
            }
            Note::Delta(delta) => write_json(&mut ctx.out, &serde_json::json!({ "delta": delta }))?,
            Note::Gap(gap) => {
                // What was printed is not missed, even if it has been pruned since.
                let seen = known.take().filter(|_| gap.reason.is_none());
                let from = seen.map_or(gap.from, |seen| gap.from.max(seen.seq.next()));
                if from <= gap.to {
                    write_json(&mut ctx.out, &serde_json::json!({ "gap": Gap { from, ..gap } }))?;
                }
                params.after = if gap.reason.is_some() { Some(gap.to) } else { params.after.max(Some(gap.to)) };
                *last = None;
            }
        }
    }
}

/// The next notification. The output is flushed before each wait.
fn next(ctx: &mut Ctx) -> Result<Note, Failure> {
    loop {
        if let Some(note) = ctx.session.client()?.note_at_hand() {
            return Ok(note);
        }
        ctx.out.flush()?;
        if let Some(note) = ctx.session.client()?.note(None)? {
            return Ok(note);
        }
    }
}

fn until_now(ctx: &mut Ctx, args: &EventsArgs, after: Seq) -> Result<u8, Failure> {
    let mut filter = Filter::new(ctx, args)?;
    let (mut seen, mut last, mut epoch) = (after, None, None);
    loop {
        match read_to(ctx, &mut filter, &mut seen, (&mut last, &mut epoch)) {
            Ok(()) => return ctx.done(),
            Err(failure) if failure.is_loss() => ctx.session.recover(&failure)?,
            Err(failure) => return Err(of_runs(failure, &ctx.session, Vec::new)),
        }
    }
}

/// Reads the events after `seen`, up to the one that was the last at the first request.
fn read_to(
    ctx: &mut Ctx,
    filter: &mut Filter,
    seen: &mut Seq,
    (last, epoch): (&mut Option<Seq>, &mut Option<EpochId>),
) -> Result<(), Failure> {
    let params = SubscribeParams { after: Some(*seen), epoch: *epoch, ..SubscribeParams::default() };
    let subscribed = ctx.session.client()?.call::<method::EventSubscribe>(&params)?;
    *epoch = subscribed.epoch;
    let last = *last.get_or_insert(subscribed.last_seq);
    while *seen < last {
        match next(ctx)? {
            Note::Event(event) => {
                // Events between the subscription and its reply were not asked for.
                if event.seq <= last {
                    filter.pass(&mut ctx.out, &event)?;
                }
                *seen = event.seq;
            }
            Note::Gap(gap) => {
                write_json(&mut ctx.out, &serde_json::json!({ "gap": gap }))?;
                *seen = gap.to;
            }
            Note::Delta(_) => {}
        }
    }
    Ok(())
}

/// The filter of the command line.
struct Filter {
    kinds: Vec<String>,
    runs: Option<BTreeSet<RunId>>,
    tree: bool,
}

impl Filter {
    fn new(ctx: &mut Ctx, args: &EventsArgs) -> Result<Self, Failure> {
        let mut runs = None;
        if let Some(run) = &args.run {
            let root = ctx.session.call::<method::RunShow>(&show_params(run))?.run.id;
            let mut wanted = BTreeSet::from([root]);
            if args.tree {
                let mut params =
                    ListParams { root: Some(root.to_string()), limit: Some(1000), ..ListParams::default() };
                loop {
                    let page = ctx.session.call::<method::RunList>(&params)?;
                    wanted.extend(page.runs.iter().map(|run| run.id));
                    params.cursor = page.cursor;
                    if params.cursor.is_none() {
                        break;
                    }
                }
            }
            runs = Some(wanted);
        }
        Ok(Self { kinds: args.kinds.clone(), runs, tree: args.tree })
    }

    fn pass(&mut self, out: &mut Out, event: &RawEvent) -> Result<(), Failure> {
        if self.wants(event) {
            out.json_text(&event.json)?;
        }
        Ok(())
    }

    fn wants(&mut self, event: &RawEvent) -> bool {
        if let Some(runs) = &mut self.runs {
            // A child that was submitted since the runs were listed.
            if self.tree
                && event.kind == "run-submitted"
                && let Some(EventBody::RunSubmitted { parent: Some(parent), .. }) =
                    event.event().map(|event| event.body)
                && runs.contains(&parent)
            {
                runs.extend(event.run);
            }
            if !event.run.is_some_and(|run| runs.contains(&run)) {
                return false;
            }
        }
        self.kinds.is_empty() || self.kinds.contains(&event.kind)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn event(seq: u64, run: Option<u64>, kind: &str) -> RawEvent {
        RawEvent {
            seq: Seq(seq),
            run: run.map(RunId::from_u64),
            kind: kind.to_owned(),
            at: String::new(),
            json: "{}".to_owned(),
        }
    }

    #[test]
    fn a_filter_looks_at_run_and_kind() {
        let runs = Some(BTreeSet::from([RunId::from_u64(7)]));
        let mut filter = Filter { kinds: vec!["run-finished".to_owned()], runs, tree: false };
        assert!(filter.wants(&event(1, Some(7), "run-finished")));
        assert!(!filter.wants(&event(2, Some(7), "step-begun")));
        assert!(!filter.wants(&event(3, Some(8), "run-finished")));
        assert!(!filter.wants(&event(4, None, "run-finished")));
        let mut all = Filter { kinds: Vec::new(), runs: None, tree: false };
        assert!(all.wants(&event(5, None, "drain-started")));
    }
}
