//! `lane --check`: prints one number of a lane for a monitoring system, by the convention of monitoring plugins: one
//! line with performance data, and exit code 0, 1, 2 or 3. Must not start a daemon or wait for one: a daemon that is
//! down or does not answer is critical (2). A check that cannot be made, or that the daemon refuses, is unknown (3).

use std::io::Write;
use std::time::Duration;

use harness_protocol::lane::LaneReport;
use harness_protocol::rpc::{Empty, method};

use crate::cli::lane::LaneArgs;
use crate::client::ClientError;
use crate::commands::lane::named::only;
use crate::context::Ctx;
use crate::error::Failure;
use crate::launch::error::StartError;

/// Exit code where the check itself failed.
pub(crate) const UNKNOWN: u8 = 3;
const CRITICAL: u8 = 2;
/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(10);

/// `queued` is the older name of a metric: the tickets among `wanted` that wait for their first permit.
const METRICS: &[&str] =
    &["wanted", "queued", "busy", "parked", "resuming", "oldest", "saturation1", "saturation5", "saturation15", "p95"];

/// The outcome of the check.
#[derive(Debug, PartialEq)]
struct Verdict {
    code: u8,
    text: String,
}

impl Verdict {
    fn new(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &LaneArgs, metric: &str) -> Result<u8, Failure> {
    let verdict = verdict(ctx, args, metric);
    let word = match verdict.code {
        0 => "OK",
        1 => "WARNING",
        CRITICAL => "CRITICAL",
        _ => "UNKNOWN",
    };
    let told = writeln!(ctx.out, "LANE {word} - {}", verdict.text).and_then(|()| ctx.out.flush());
    // The monitoring system did not get the line, so the state is unknown to it.
    told.map_err(|error| Failure::Other { code: UNKNOWN, message: Failure::Output(error).to_string(), hint: None })?;
    Ok(verdict.code)
}

fn verdict(ctx: &mut Ctx, args: &LaneArgs, metric: &str) -> Verdict {
    let limits = match (limit(args.warning.as_deref()), limit(args.critical.as_deref())) {
        (Ok(warning), Ok(critical)) => Limits { warning, critical },
        (Err(word), _) | (_, Err(word)) => return Verdict::new(UNKNOWN, format!("{word:?} is no number")),
    };
    if !METRICS.contains(&metric) {
        return Verdict::new(UNKNOWN, format!("there is no metric {metric:?}: {}", METRICS.join(" ")));
    }
    ctx.session.never_start();
    // A daemon that has just gone is down: the check does not wait for it.
    let asked =
        ctx.session.client().and_then(|client| Ok(client.call_within::<method::LaneList>(&Empty {}, Some(LIMIT))?));
    let lanes = match asked {
        Ok(lanes) => lanes,
        Err(failure) => return unanswered(&failure),
    };
    let name = args.lane.as_deref().unwrap_or("tool");
    match only(lanes, Some(name)).as_deref() {
        Ok([lane]) => judge(lane, metric, limits),
        Ok(_) => Verdict::new(UNKNOWN, format!("there is no lane {name:?}")),
        Err(failure) => Verdict::new(UNKNOWN, failure.to_string()),
    }
}

/// A daemon that is down or does not answer is critical; a daemon that refuses the caller is an error of the check.
fn unanswered(failure: &Failure) -> Verdict {
    let code = match failure {
        Failure::Start(
            StartError::NotRunning { .. }
            | StartError::Unreachable { .. }
            | StartError::SystemNotRunning { .. }
            | StartError::Connect { .. },
        )
        | Failure::Client(ClientError::Lost { .. } | ClientError::Silent { .. } | ClientError::Io(_)) => CRITICAL,
        _ => UNKNOWN,
    };
    Verdict::new(code, failure.to_string())
}

#[derive(Debug, Clone, Copy)]
struct Limits {
    warning: Option<f64>,
    critical: Option<f64>,
}

fn limit(word: Option<&str>) -> Result<Option<f64>, String> {
    let Some(word) = word else { return Ok(None) };
    word.parse().ok().filter(|number: &f64| number.is_finite()).map(Some).ok_or_else(|| word.to_owned())
}

fn judge(lane: &LaneReport, metric: &str, limits: Limits) -> Verdict {
    let (value, unit, max) = match metric {
        "wanted" => (f64::from(lane.wanted()), "", ""),
        "queued" => (f64::from(lane.queued), "", ""),
        "busy" => (f64::from(lane.busy), "", ""),
        "parked" => (f64::from(lane.parked), "", ""),
        "resuming" => (f64::from(lane.resuming), "", ""),
        "oldest" => (lane.oldest_queued_seconds.unwrap_or_default().as_secs(), "s", ""),
        "saturation1" => (lane.saturation[0], "", "1"),
        "saturation5" => (lane.saturation[1], "", "1"),
        "saturation15" => (lane.saturation[2], "", "1"),
        _ => (lane.queue_wait.p95_seconds.as_secs(), "s", ""),
    };
    let above = |limit: Option<f64>| limit.is_some_and(|limit| value > limit);
    let code = if above(limits.critical) { CRITICAL } else { u8::from(above(limits.warning)) };
    let number = |limit: Option<f64>| limit.map(|limit| limit.to_string()).unwrap_or_default();
    let (warning, critical) = (number(limits.warning), number(limits.critical));
    let extra = if lane.saturated { format!(", saturated, limiter {}", lane.limiter.as_str()) } else { String::new() };
    Verdict::new(
        code,
        format!("{} {metric} {value}{unit}{extra} | {metric}={value}{unit};{warning};{critical};0;{max}", lane.name),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::render::lane::tests::sample;

    fn judged(metric: &str, warning: Option<f64>, critical: Option<f64>) -> (u8, String) {
        let verdict = judge(&sample(), metric, Limits { warning, critical });
        (verdict.code, verdict.text)
    }

    #[test]
    fn what_is_above_a_limit_is_told_with_performance_data() {
        let (code, text) = judged("queued", Some(2.0), Some(10.0));
        assert_eq!(code, 1);
        assert_eq!(text, "tool queued 3, saturated, limiter width | queued=3;2;10;0;");
        assert_eq!(judged("queued", Some(3.0), Some(10.0)).0, 0, "at the limit all is well");
        assert_eq!(judged("queued", Some(1.0), Some(2.0)).0, 2);
        assert_eq!(judged("oldest", None, Some(60.0)).1.split_once("| ").unwrap().1, "oldest=75s;;60;0;");
        assert_eq!(judged("saturation5", None, None).1.split_once("| ").unwrap().1, "saturation5=0.4;;;0;1");
    }

    #[test]
    fn every_metric_that_is_named_is_judged() {
        for metric in METRICS {
            let (code, text) = judged(metric, None, None);
            assert_eq!(code, 0);
            assert!(text.contains(&format!("| {metric}=")), "{text}");
        }
    }

    #[test]
    fn a_daemon_that_is_down_is_critical_and_a_forbidden_socket_is_not() {
        let socket = std::path::PathBuf::from("/s");
        assert_eq!(unanswered(&StartError::NotRunning { socket: socket.clone() }.into()).code, 2);
        assert_eq!(unanswered(&Failure::Client(ClientError::Silent { seconds: 10, pid: None })).code, 2);
        assert_eq!(unanswered(&StartError::Denied { socket }.into()).code, 3);
    }

    #[test]
    fn a_limit_is_a_number() {
        assert_eq!(limit(Some("1.5")), Ok(Some(1.5)));
        assert_eq!(limit(Some("x")), Err("x".to_owned()));
        assert!(limit(Some("NaN")).is_err());
    }
}
