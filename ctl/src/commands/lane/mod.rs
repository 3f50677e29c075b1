//! `lane`: shows the reports of the lanes.

pub(super) mod change;
pub(crate) mod check;
pub(super) mod named;

use std::io::Write;

use harness_protocol::lane::LaneReport;
use harness_protocol::rpc::{Empty, method};

use crate::cli::lane::{LaneArgs, LaneVerb};
use crate::commands::lane::named::only;
use crate::context::Ctx;
use crate::error::Failure;
use crate::render;
use crate::render::units::now;

pub(super) fn run(ctx: &mut Ctx, args: &LaneArgs) -> Result<u8, Failure> {
    match &args.change {
        Some(LaneVerb::Relieve(args)) => return change::relieve(ctx, args),
        Some(LaneVerb::Resize(args)) => return change::resize(ctx, args),
        Some(LaneVerb::Pause(args)) => return change::pause(ctx, args),
        Some(LaneVerb::Resume(args)) => return change::resume(ctx, args),
        None => {}
    }
    if let Some(metric) = &args.check {
        return check::run(ctx, args, metric);
    }
    loop {
        let lanes = ctx.session.call::<method::LaneList>(&Empty {})?;
        let lanes = only(lanes, args.lane.as_deref())?;
        show(ctx, &lanes, args.lane.is_some(), args.watch.is_some())?;
        let Some(every) = args.watch else { return ctx.done() };
        // A report is of an instant, and no notification says when the next one differs.
        std::thread::sleep(every.to_std().max(std::time::Duration::from_millis(100)));
    }
}

fn show(ctx: &mut Ctx, lanes: &[LaneReport], one: bool, again: bool) -> Result<(), Failure> {
    if ctx.json {
        match lanes {
            [lane] if one => ctx.json(lane)?,
            lanes => ctx.json(&serde_json::json!({ "lanes": lanes }))?,
        }
    } else if again && ctx.out.look.terminal {
        draw(ctx, lanes)?;
    } else {
        let (look, now) = (ctx.look(), now());
        for (index, lane) in lanes.iter().enumerate() {
            if index > 0 {
                writeln!(ctx.out)?;
            }
            render::lane::write(&mut ctx.out, look, lane, now)?;
        }
        if again {
            writeln!(ctx.out)?;
        }
    }
    ctx.out.flush()?;
    Ok(())
}

/// Fills the window, at its present size.
fn draw(ctx: &mut Ctx, lanes: &[LaneReport]) -> Result<(), Failure> {
    // The last row is where the cursor rests.
    let rows = ctx.out.measure().saturating_sub(1);
    let look = ctx.look();
    write!(ctx.out, "\x1b[H")?;
    for line in render::screen::screen(look, lanes, now(), rows) {
        // Cleared line by line, each before it is written: to clear the whole screen flickers, and to clear after a
        // full line would remove the last character.
        writeln!(ctx.out, "\x1b[K{line}")?;
    }
    write!(ctx.out, "\x1b[J")?;
    Ok(())
}
