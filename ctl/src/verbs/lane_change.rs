//! `lane relieve`, `resize`, `pause`, `resume`, and `relieve`: changes of a lane's capacity.

use std::io::Write;
use std::sync::Arc;

use harness_protocol::lane::LaneChanged;
use harness_protocol::rpc::{LaneParams, RelieveParams, ResizeParams, method};

use crate::cli::lane::{OneLane, RelieveArgs, ResizeArgs};
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::output::note;

pub(super) fn relieve(ctx: &mut Ctx, args: &RelieveArgs) -> Result<u8, Failure> {
    let params = RelieveParams {
        lane: args.lane.as_deref().map(Arc::from),
        by: if args.undo.is_some() { 0 } else { args.by.unwrap_or(1) },
        for_seconds: args.during,
        undo: args.undo,
    };
    let changed = ctx.session.call::<method::LaneRelieve>(&params).map_err(elsewhere)?;
    tell(ctx, &changed)?;
    if let (None, false, Some(relief)) = (args.undo, ctx.json, changed.relief) {
        note(ctx.notes.dim(format_args!("undo it: harnessctl relieve --undo {relief}")));
    }
    ctx.done()
}

pub(super) fn resize(ctx: &mut Ctx, args: &ResizeArgs) -> Result<u8, Failure> {
    let (lane, width) = lane_and_width(&args.words, args.width)?;
    let params = ResizeParams { lane: lane.map(Arc::from), width };
    let changed = ctx.session.call::<method::LaneResize>(&params).map_err(elsewhere)?;
    tell(ctx, &changed)?;
    ctx.done()
}

pub(super) fn pause(ctx: &mut Ctx, args: &OneLane) -> Result<u8, Failure> {
    let changed = ctx.session.call::<method::LanePause>(&lane(args)).map_err(elsewhere)?;
    tell(ctx, &changed)?;
    ctx.done()
}

pub(super) fn resume(ctx: &mut Ctx, args: &OneLane) -> Result<u8, Failure> {
    let changed = ctx.session.call::<method::LaneResume>(&lane(args)).map_err(elsewhere)?;
    tell(ctx, &changed)?;
    ctx.done()
}

fn elsewhere(failure: Failure) -> Failure {
    failure.look_in("`harnessctl lane` shows the lanes and their reliefs")
}

fn lane(args: &OneLane) -> LaneParams {
    LaneParams { lane: args.lane.as_deref().map(Arc::from) }
}

/// The width is the word that is a number. A lane that is called like one takes `--width`.
fn lane_and_width(words: &[String], width: Option<u32>) -> Result<(Option<&str>, u32), Failure> {
    let number = |word: &String| word.parse::<u32>().ok();
    match (words, width) {
        ([], Some(width)) => Ok((None, width)),
        ([lane], Some(width)) => Ok((Some(lane), width)),
        ([word], None) if let Some(width) = number(word) => Ok((None, width)),
        ([lane, word], None) if let Some(width) = number(word) => Ok((Some(lane), width)),
        ([word, lane], None) if let Some(width) = number(word) => Ok((Some(lane), width)),
        _ => Err(Failure::usage_hint("no width is given", "harnessctl lane resize [LANE] N")),
    }
}

fn tell(ctx: &mut Ctx, changed: &LaneChanged) -> Result<(), Failure> {
    if ctx.json {
        ctx.json(changed)?;
    } else {
        let relief = changed.relief.map(|relief| format!(" relief {relief}")).unwrap_or_default();
        writeln!(ctx.out, "{} width {} -> {}{relief}", changed.lane, changed.width_before, changed.width)?;
    }
    ctx.out.flush()?;
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
    }
}
