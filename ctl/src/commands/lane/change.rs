//! `lane relieve`, `resize`, `pause` and `resume`, and the short form `relieve`: change the capacity of a lane.

use std::io::Write;
use std::sync::Arc;

use harness_protocol::id::{IdError, ReliefId};
use harness_protocol::lane::LaneChanged;
use harness_protocol::rpc::{LaneParams, RelieveParams, ResizeParams, method};
use harness_protocol::run::exit;

use crate::cli::lane::{OneLane, RelieveArgs, ResizeArgs};
use crate::cli::values::width as width_of;
use crate::context::Ctx;
use crate::error::Failure;
use crate::output::note;

/// Where lanes and reliefs are found.
const WHERE: &str = "`harnessctl lane` shows the lanes and their reliefs";

pub(in crate::commands) fn relieve(ctx: &mut Ctx, args: &RelieveArgs) -> Result<u8, Failure> {
    let undo = args.undo.as_deref().map(relief_called).transpose()?;
    let params = RelieveParams {
        lane: args.lane.as_deref().map(Arc::from),
        by: if undo.is_some() { 0 } else { args.by.unwrap_or(1) },
        for_seconds: args.during,
        undo,
    };
    let changed = ctx.session.call::<method::LaneRelieve>(&params).map_err(elsewhere)?;
    tell(ctx, &changed, &widths(&changed))?;
    if let (None, false, Some(relief)) = (undo, ctx.json, changed.relief) {
        note(ctx.notes.dim(format_args!("undo it: harnessctl relieve --undo {relief}")));
    }
    ctx.done()
}

pub(in crate::commands) fn resize(ctx: &mut Ctx, args: &ResizeArgs) -> Result<u8, Failure> {
    let (lane, width) = lane_and_width(&args.words, args.width)?;
    let params = ResizeParams { lane: lane.map(Arc::from), width };
    let changed = ctx.session.call::<method::LaneResize>(&params).map_err(elsewhere)?;
    tell(ctx, &changed, &widths(&changed))?;
    ctx.done()
}

pub(in crate::commands) fn pause(ctx: &mut Ctx, args: &OneLane) -> Result<u8, Failure> {
    let changed = ctx.session.call::<method::LanePause>(&lane(args)).map_err(elsewhere)?;
    tell(ctx, &changed, &format!("{} paused", changed.lane))?;
    ctx.done()
}

pub(in crate::commands) fn resume(ctx: &mut Ctx, args: &OneLane) -> Result<u8, Failure> {
    let changed = ctx.session.call::<method::LaneResume>(&lane(args)).map_err(elsewhere)?;
    // The note has any other reason why it grants no permit.
    let line = if changed.note.is_some() { "not paused" } else { "grants again" };
    tell(ctx, &changed, &format!("{} {line}", changed.lane))?;
    ctx.done()
}

/// A word that is not an id names no relief either.
fn relief_called(word: &str) -> Result<ReliefId, Failure> {
    word.parse().map_err(|_: IdError| Failure::Other {
        code: exit::NOT_FOUND,
        message: format!("no relief is called {word:?}"),
        hint: Some(WHERE.to_owned()),
    })
}

fn elsewhere(failure: Failure) -> Failure {
    failure.look_in(WHERE)
}

fn lane(args: &OneLane) -> LaneParams {
    LaneParams { lane: args.lane.as_deref().map(Arc::from) }
}

/// The width is the word that is a number. For a lane whose name is a number, `--width` is needed.
fn lane_and_width(words: &[String], width: Option<u32>) -> Result<(Option<&str>, u32), Failure> {
    let is_number = |word: &String| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let (lane, word) = match (words, width) {
        ([], Some(width)) => return Ok((None, width)),
        ([lane], Some(width)) => return Ok((Some(lane), width)),
        ([word], None) if is_number(word) => (None, word),
        ([lane, word], None) if is_number(word) => (Some(lane.as_str()), word),
        ([word, lane], None) if is_number(word) => (Some(lane.as_str()), word),
        _ => return Err(Failure::usage_hint("no width is given", "harnessctl lane resize [LANE] N")),
    };
    let width = width_of(word).map_err(|why| Failure::usage(format!("{word} is no width of a lane: {why}")))?;
    Ok((lane, width))
}

fn widths(changed: &LaneChanged) -> String {
    let relief = changed.relief.map(|relief| format!(" relief {relief}")).unwrap_or_default();
    format!("{} width {} -> {}{relief}", changed.lane, changed.width_before, changed.width)
}

fn tell(ctx: &mut Ctx, changed: &LaneChanged, line: &str) -> Result<(), Failure> {
    let written = if ctx.json { ctx.json(changed) } else { writeln!(ctx.out, "{line}").map_err(Failure::from) };
    written.and_then(|()| Ok(ctx.out.flush()?)).map_err(|failure| failure.although(&format!("it was done: {line}")))?;
    if let Some(remark) = changed.note.as_deref().filter(|_| !ctx.json) {
        note(format_args!("harnessctl: {remark}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lane_and_width_come_in_any_order() {
        let read = |words: &[&str], width| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            lane_and_width(&words, width).map(|(lane, width)| (lane.map(str::to_owned), width)).ok()
        };
        assert_eq!(read(&["8"], None), Some((None, 8)));
        assert_eq!(read(&["local", "8"], None), Some((Some("local".to_owned()), 8)));
        assert_eq!(read(&["8", "local"], None), Some((Some("local".to_owned()), 8)));
        assert_eq!(read(&["8"], Some(4)), Some((Some("8".to_owned()), 4)));
        assert_eq!(read(&["local"], None), None);
        assert_eq!(read(&["-1"], None), None);
        let error = lane_and_width(&["99999999999".to_owned()], None).unwrap_err();
        assert_eq!(
            (error.code(), error.to_string()),
            (2, "99999999999 is no width of a lane: 1000000 is the most".to_owned())
        );
    }
}
