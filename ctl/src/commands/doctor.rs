//! `doctor`: checks what a run needs: the daemon, its lanes, and each provider by a short request to it. It repairs
//! nothing: it prints the command that does.

use std::io::Write;

use harness_protocol::rpc::{DaemonStatusReply, Empty, Health, ProviderView, method};

use crate::cli::provider::DoctorArgs;
use crate::commands::provider::{checks, code, tell};
use crate::context::Ctx;
use crate::error::Failure;
use crate::render::text::one_line;

/// The exit code for a daemon that cannot work now.
const NOT_WELL: u8 = harness_protocol::run::exit::TRY_LATER;

pub(super) fn run(ctx: &mut Ctx, args: &DoctorArgs) -> Result<u8, Failure> {
    let status = ctx.session.call::<method::DaemonStatus>(&Empty {})?;
    let lanes = ctx.session.call::<method::LaneList>(&Empty {})?.lanes;
    let checks = checks(ctx, args.provider.as_deref(), None)?;
    let well = status.health == Health::Serving;
    let advice = model_advice(&ctx.session.call::<method::ProviderList>(&Empty {})?.providers, &status);
    let code = if well { code(&checks) } else { NOT_WELL };
    if ctx.json {
        ctx.json(&serde_json::json!({
            "schema": "harness.doctor/1",
            "ok": code == 0,
            "daemon": status,
            "lanes": lanes,
            "providers": checks,
            "advice": advice,
        }))?;
        ctx.done()?;
        return Ok(code);
    }
    let paint = ctx.look().paint;
    let daemon = format!("daemon: version {}, pid {}, socket {}", status.version, status.pid, status.socket);
    let daemon = one_line(&daemon);
    match (status.health, &status.held) {
        (Health::Serving, _) => writeln!(ctx.out, "{}     {daemon}", paint.green("ok"))?,
        (Health::Draining, _) => {
            writeln!(ctx.out, "{} {daemon}; it drains: harnessctl daemon undrain", paint.red("failed"))?
        }
        (Health::Held, why) => {
            let why = one_line(why.as_deref().unwrap_or("its journal cannot commit"));
            writeln!(ctx.out, "{} {daemon}; {why}", paint.red("failed"))?;
        }
    }
    for finding in &status.journal.findings {
        writeln!(ctx.out, "{}   {finding}", paint.yellow("note"))?;
    }
    for left in &status.left_processes {
        writeln!(ctx.out, "{}   {left}", paint.yellow("note"))?;
    }
    if let Some(advice) = &advice {
        writeln!(ctx.out, "{}   {}", paint.yellow("note"), one_line(advice))?;
    }
    for lane in lanes.iter().filter(|lane| lane.paused || lane.saturated) {
        let what = if lane.paused { "is paused: harnessctl lane resume" } else { "is saturated: harnessctl lane" };
        writeln!(ctx.out, "{}   lane {} {what}", paint.yellow("note"), one_line(&lane.name))?;
    }
    for check in &checks {
        tell(ctx, check)?;
    }
    ctx.done()?;
    Ok(code)
}

/// What to do where no provider is a model: all that is there plays scripts.
fn model_advice(providers: &[ProviderView], status: &DaemonStatusReply) -> Option<String> {
    if providers.iter().any(|provider| provider.base_url.is_some()) {
        return None;
    }
    let file = match (status.config.files.first(), status.config.places.first()) {
        (Some(file), _) | (None, Some(file)) => file,
        // An older daemon does not say.
        (None, None) => "the configuration",
    };
    Some(format!(
        "no model is configured: write a section [provider.NAME] into {file} (README, \"Real models\"), then \
         harnessctl daemon reload"
    ))
}
