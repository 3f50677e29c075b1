//! `pending`: lists the questions that wait for an answer.

use std::collections::BTreeSet;
use std::io::Write as _;

use harness_protocol::id::RunId;
use harness_protocol::interaction::InteractionView;
use harness_protocol::rpc::{InteractionListParams, Selector, method};
use harness_protocol::run::RunView;

use crate::cli::runs::PendingArgs;
use crate::context::Ctx;
use crate::error::Failure;
use crate::output::note;
use crate::render::run::{named, short};
use crate::render::table::Table;
use crate::render::text::brief;
use crate::render::transcript::block;
use crate::render::units::{clock, now, span};
use crate::select::{find, live_of_all, typed};

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &PendingArgs) -> Result<u8, Failure> {
    // If no selected run asks a question, the list is empty, and that is no failure.
    let select = typed(&args.select)?;
    let of = if select == Selector::default() { None } else { Some(ids(find(ctx, &live_of_all(select))?)) };
    let mut open = ctx.session.call::<method::InteractionList>(&InteractionListParams::default())?;
    while let Some(cursor) = open.cursor {
        let params = InteractionListParams { cursor: Some(cursor), ..InteractionListParams::default() };
        let next = ctx.session.call::<method::InteractionList>(&params)?;
        open.interactions.extend(next.interactions);
        open.cursor = next.cursor;
    }
    if let Some(of) = &of {
        open.interactions.retain(|interaction| of.contains(&interaction.run));
        open.total = u32::try_from(open.interactions.len()).unwrap_or(u32::MAX);
    }
    if ctx.json {
        for interaction in &open.interactions {
            ctx.json(interaction)?;
        }
        return ctx.done();
    }
    let now = now();
    let mut table = Table::new(&["ID", "RUN", "NAME", ">AGE", "QUESTION"]);
    for interaction in &open.interactions {
        table.row(vec![
            interaction.id.to_string().into(),
            short(interaction.run).into(),
            named(interaction.run_name.as_deref(), interaction.parent).into(),
            span(now.since(interaction.since)).into(),
            asks(interaction).into(),
        ]);
    }
    let look = ctx.look();
    if !table.is_empty() {
        table.write(&mut ctx.out, look, "")?;
    }
    for interaction in &open.interactions {
        if let Some(subject) = interaction.to_be_allowed() {
            writeln!(ctx.out, "{} is to execute:", interaction.id)?;
            block(&mut ctx.out, look, subject)?;
        }
    }
    ctx.done()?;
    let more = (open.total as usize).saturating_sub(open.interactions.len());
    if more > 0 {
        note(format_args!("harnessctl: {more} more are open"));
    }
    if look.terminal {
        let hint = hint(&open.interactions);
        note(ctx.notes.dim(hint));
    }
    ctx.done()
}

/// The question in a line, with its kind where it is another one, and with its end.
fn asks(interaction: &InteractionView) -> String {
    let words = brief(&interaction.kind.asks(&interaction.question));
    let until = interaction.expires_at.map(|at| format!(" (until {})", clock(now()).at(at)));
    words + &until.unwrap_or_default()
}

fn hint(open: &[InteractionView]) -> &'static str {
    let (first, other): (Vec<_>, Vec<_>) = open.iter().partition(|one| one.kind.comes_first());
    match (first.is_empty(), other.is_empty()) {
        (true, true) => "no questions",
        (true, false) => "answer: harnessctl reply ID TEXT",
        (false, true) => "allow: harnessctl reply ID --allow (or --deny)",
        (false, false) => "answer: harnessctl reply ID TEXT; an approval: harnessctl reply ID --allow (or --deny)",
    }
}

fn ids(runs: Vec<RunView>) -> BTreeSet<RunId> {
    runs.into_iter().map(|run| run.id).collect()
}
