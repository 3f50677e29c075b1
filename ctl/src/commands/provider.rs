//! `provider`: shows the configured providers, and checks them by a short request to each.

use std::io::Write;
use std::time::Duration;

use harness_protocol::lane::{LaneReport, Limiter};
use harness_protocol::rpc::{Empty, FallbackView, ProviderCheck, ProviderCheckParams, ProviderView, method};
use harness_protocol::run::exit;
use harness_protocol::waiting_words;

use crate::cli::provider::{CheckArgs, ProviderArgs, ProviderVerb};
use crate::context::Ctx;
use crate::error::Failure;
use crate::render::table::{Cell, Table};
use crate::render::text::{clean_painted, first_line, one_line};
use crate::render::units::{clock, now, span};

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
        let state = lanes.iter().find(|lane| lane.name == provider.name).map(state).unwrap_or_default();
        table.row(row(provider, &state));
    }
    let look = ctx.look();
    table.write(&mut ctx.out, look, "")?;
    for provider in &providers {
        if let Some(problem) = provider.key.as_ref().and_then(|key| key.problem.as_ref()) {
            let line = look.paint.yellow(format!("{}: {}", one_line(&provider.name), first_line(problem)));
            writeln!(ctx.out, "{line}")?;
        }
    }
    for provider in providers.iter().filter(|provider| !provider.fallbacks.is_empty()) {
        writeln!(ctx.out, "{}: fallback {}", provider.name, fallbacks(provider))?;
    }
    ctx.done()
}

/// The fallbacks of a provider, each with its price: `other (0.15 in, 0.6 out), third (no price)`.
pub(super) fn fallbacks(provider: &ProviderView) -> String {
    let price = |other: &FallbackView| match other.price {
        Some(price) => format!("{} (USD per million tokens: {} in, {} out)", other.provider, price.input, price.output),
        None => format!("{} (no price)", other.provider),
    };
    provider.fallbacks.iter().map(price).collect::<Vec<_>>().join(", then ")
}

fn state(lane: &LaneReport) -> String {
    match lane.limiter {
        Limiter::None | Limiter::Width | Limiter::Share => "ok".to_owned(),
        // A waiting run is told of the lane elsewhere.
        limiter => {
            let held = lane.held.as_ref().filter(|held| held.limiter == Some(limiter));
            waiting_words::hold(limiter, held.and_then(|held| held.until), 0, &clock(now()))
        }
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
    let known = if ctx.json { Vec::new() } else { ctx.session.call::<method::ProviderList>(&Empty {})?.providers };
    for check in &checks {
        if ctx.json {
            ctx.json(check)?;
            continue;
        }
        tell(ctx, check)?;
        let with_fallbacks =
            |provider: &&ProviderView| provider.name == check.provider && !provider.fallbacks.is_empty();
        if let Some(provider) = known.iter().find(with_fallbacks) {
            writeln!(ctx.out, "       fallback {}", fallbacks(provider))?;
        }
    }
    ctx.done()?;
    Ok(code(&checks))
}

/// Checks providers by a short request each.
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
    writeln!(ctx.out, "{}", clean_painted(&line))?;
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
