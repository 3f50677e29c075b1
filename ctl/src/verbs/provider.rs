//! `provider`: how the providers are configured, and what comes of asking them.

use std::io::Write;
use std::time::Duration;

use harness_protocol::lane::{LaneReport, Limiter};
use harness_protocol::rpc::{Empty, ProviderCheck, ProviderCheckParams, ProviderView, method};
use harness_protocol::run::exit;

use crate::cli::provider::{CheckArgs, ProviderArgs, ProviderVerb};
use crate::ctx::Ctx;
use crate::exit::Failure;
use crate::render::table::{Cell, Table};
use crate::render::text::first_line;
use crate::render::units::span;

/// How long a check may take: a model on a small machine takes its time to the first word.
const CHECK_LIMIT: Duration = Duration::from_secs(600);

pub(super) fn run(ctx: &mut Ctx, args: &ProviderArgs) -> Result<u8, Failure> {
    match &args.what {
        ProviderVerb::List => list(ctx),
        ProviderVerb::Check(args) => check(ctx, args),
    }
}

fn list(ctx: &mut Ctx) -> Result<u8, Failure> {
    let providers = ctx.session.call::<method::ProviderList>(&Empty {})?.providers;
    if ctx.json {
        for provider in &providers {
            ctx.json(provider)?;
        }
        return ctx.done();
    }
    let lanes = ctx.session.call::<method::LaneList>(&Empty {})?.lanes;
    let mut table = Table::new(&["NAME", "DIALECT", "MODEL", ">WIDTH", "STATE", "KEY", "URL"]);
    for provider in &providers {
        let state = lanes.iter().find(|lane| lane.name == provider.name).map_or("", state);
        table.row(row(provider, state));
    }
    let look = ctx.look();
    table.write(&mut ctx.out, look, "")?;
    for provider in &providers {
        if let Some(problem) = provider.key.as_ref().and_then(|key| key.problem.as_ref()) {
            let line = look.paint.yellow(format!("{}: {}", provider.name, first_line(problem)));
            writeln!(ctx.out, "{line}")?;
        }
    }
    ctx.done()
}

fn state(lane: &LaneReport) -> &'static str {
    match lane.limiter {
        limiter @ (Limiter::RateLimit | Limiter::Credentials | Limiter::Failing | Limiter::Paused) => limiter.as_str(),
        _ => "ok",
    }
}

fn row(provider: &ProviderView, state: &str) -> Vec<Cell> {
    let name = if provider.default { format!("{} (default)", provider.name) } else { provider.name.to_string() };
    let key = match &provider.key {
        None => "-".to_owned(),
        Some(key) if key.problem.is_some() => format!("MISSING: {}", key.source),
        Some(key) => key.source.clone(),
    };
    vec![
        name.into(),
        provider.dialect.clone().into(),
        provider.model.as_deref().unwrap_or("-").into(),
        provider.width.to_string().into(),
        state.into(),
        key.into(),
        provider.base_url.as_deref().unwrap_or("-").into(),
    ]
}

fn check(ctx: &mut Ctx, args: &CheckArgs) -> Result<u8, Failure> {
    let checks = checks(ctx, args.provider.as_deref(), args.model.as_deref())?;
    for check in &checks {
        if ctx.json {
            ctx.json(check)?;
        } else {
            tell(ctx, check)?;
        }
    }
    ctx.done()?;
    Ok(code(&checks))
}

/// Has providers asked for a word.
pub(super) fn checks(
    ctx: &mut Ctx,
    provider: Option<&str>,
    model: Option<&str>,
) -> Result<Vec<ProviderCheck>, Failure> {
    let params = ProviderCheckParams { provider: provider.map(Into::into), model: model.map(Into::into) };
    let reply = ctx.session.call_within::<method::ProviderCheck>(&params, Some(CHECK_LIMIT));
    Ok(reply.map_err(|failure| failure.look_in("harnessctl provider list"))?.checks)
}

/// The exit code of these: refused credentials go before other failures.
pub(super) fn code(checks: &[ProviderCheck]) -> u8 {
    let codes = checks.iter().map(|check| check.exit_code).filter(|&code| code != exit::SUCCEEDED);
    codes.max_by_key(|&code| code == exit::CREDENTIALS).unwrap_or(exit::SUCCEEDED)
}

/// A line about a check.
pub(super) fn tell(ctx: &mut Ctx, check: &ProviderCheck) -> Result<(), Failure> {
    let paint = ctx.look().paint;
    let model = check.model.as_deref().map(|model| format!(" {model}")).unwrap_or_default();
    let line = match (&check.error, &check.url) {
        (Some(error), _) => {
            format!("{} {}{model}: {}", paint.red("failed"), check.provider, first_line(error))
        }
        (None, None) => format!("{}     {}: plays scripts, nothing to ask", paint.green("ok"), check.provider),
        (None, Some(url)) => {
            let took = check.seconds.map(|took| format!(" in {}", span(took))).unwrap_or_default();
            let tokens = check.usage.map(|usage| format!(", {} tokens", usage.tokens())).unwrap_or_default();
            format!("{}     {}{model}: answered{took}{tokens} ({url})", paint.green("ok"), check.provider)
        }
    };
    writeln!(ctx.out, "{line}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_credentials_go_before_other_failures() {
        let check = |exit_code| ProviderCheck {
            provider: "p".into(),
            ok: exit_code == 0,
            url: None,
            model: None,
            seconds: None,
            usage: None,
            error: None,
            exit_code,
        };
        assert_eq!(code(&[check(0), check(0)]), 0);
        assert_eq!(code(&[check(0), check(1)]), 1);
        assert_eq!(code(&[check(1), check(4), check(1), check(0)]), 4);
        assert_eq!(code(&[]), 0);
    }
}
