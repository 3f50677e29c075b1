//! Reads from the headers of a refusal when the provider may be asked again.
//!
//! It reads `Retry-After` in seconds and as a date, and the rate-limit headers of the common APIs (`x-ratelimit-…`,
//! `anthropic-ratelimit-…` and others). A value that cannot be read counts as absent.

use harness_protocol::time::{Span, Timestamp};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// A wait that is longer is so long: what is made of it is not this file's to say.
pub(in crate::inference) const LONGEST: Span = Span::from_secs(1_000 * 24 * 60 * 60);
/// Numbers from here on are instants rather than durations: in seconds, and in milliseconds.
const EPOCH_SECONDS: f64 = 1e9;
const EPOCH_MILLIS: f64 = 1e12;
/// An instant that has passed by no more than this has just come: the clock of the server may be a little behind.
pub(in crate::inference) const JUST_NOW: Span = Span::from_secs(300);

/// How long to wait; `None` where nothing says so.
pub(in crate::inference) fn wait(headers: &[(&str, &str)], now: Timestamp) -> Option<Span> {
    let wait = after(headers, now).or_else(|| limits(headers, now).next())?;
    (wait > Span::ZERO).then_some(wait.min(LONGEST))
}

/// The same, where the account is at its limit: windows of which nothing says that they are used up do not count. Zero
/// is a time that has just come.
pub(in crate::inference) fn of_account(headers: &[(&str, &str)], now: Timestamp) -> Option<Span> {
    let wait = after(headers, now).or_else(|| limits(headers, now).used_up)?;
    Some(wait.min(LONGEST))
}

/// What `Retry-After` says: seconds, a date, and what else servers put there.
fn after(headers: &[(&str, &str)], now: Timestamp) -> Option<Span> {
    let header = |name: &str| headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim());
    let millis = header("retry-after-ms").or_else(|| header("x-ms-retry-after-ms"));
    let millis = millis.and_then(number).and_then(|millis| Span::from_secs_f64(millis / 1e3));
    let after = || {
        let value = header("retry-after")?;
        let at = || until(http_date(value).or_else(|| rfc_3339(value))?, now);
        seconds(value).or_else(|| Span::from_units(value)).or_else(at)
    };
    millis.or_else(after)
}

/// Windows of a limit, by when there is more.
#[derive(Default)]
struct Windows {
    /// Of those that are used up the one that takes longest.
    used_up: Option<Span>,
    /// Of all the one that takes least.
    any: Option<Span>,
}

impl Windows {
    fn next(self) -> Option<Span> {
        self.used_up.or(self.any)
    }
}

/// The limit that is used up says when there is more. Of several that one counts which takes longest; where none says
/// that it is used up, the one that takes least.
fn limits(headers: &[(&str, &str)], now: Timestamp) -> Windows {
    let mut windows = Windows::default();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        let is_limit = ["x-ratelimit-", "anthropic-ratelimit-", "ratelimit", "x-codex-"]
            .iter()
            .any(|family| name.starts_with(family));
        // What may be bought beyond a plan is no window of it.
        if !is_limit || name.contains("-overage-") {
            continue;
        }
        let wait = if name == "ratelimit" {
            in_items(value)
        } else if name.contains("reset") {
            reset(value.trim(), now)
        } else {
            continue;
        };
        let Some(wait) = wait.filter(|wait| *wait > Span::ZERO) else { continue };
        let beside = |word: &str| {
            let name = name.replace("reset-after-seconds", word).replace("reset-at", word).replace("reset", word);
            headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(&name)).map(|(_, value)| value.trim())
        };
        // Plans say it in a word: anthropic-ratelimit-unified-5h-status: rejected.
        let is_used_up = beside("remaining").and_then(number) == Some(0.0)
            || beside("used-percent").and_then(number).is_some_and(|percent| percent >= 100.0)
            || matches!(beside("status"), Some("rejected" | "exceeded"))
            || (name == "ratelimit"
                && value.split([';', ',']).any(|item| matches!(item.trim(), "r=0" | "remaining=0")));
        if is_used_up {
            windows.used_up = windows.used_up.max(Some(wait));
        }
        windows.any = Some(windows.any.map_or(wait, |least| least.min(wait)));
    }
    windows
}

/// The seconds in `"default";r=0;t=120` and in `limit=10, remaining=0, reset=50` (drafts of "RateLimit header fields
/// for HTTP").
fn in_items(value: &str) -> Option<Span> {
    let items = value.split([';', ',']).filter_map(|item| item.trim().split_once('='));
    let secs = items.filter(|(name, _)| matches!(*name, "t" | "reset")).filter_map(|(_, secs)| seconds(secs));
    secs.max()
}

/// A duration or an instant, as `…-reset` has it.
pub(in crate::inference) fn reset(value: &str, now: Timestamp) -> Option<Span> {
    if let Some(number) = number(value) {
        return match number {
            // A number that is no time at all is further away than any.
            millis if millis >= EPOCH_MILLIS => instant(millis / 1e3).map_or(Some(LONGEST), |at| until(at, now)),
            secs if secs >= EPOCH_SECONDS => instant(secs).map_or(Some(LONGEST), |at| until(at, now)),
            secs => Span::from_secs_f64(secs),
        };
    }
    Span::from_units(value).or_else(|| until(rfc_3339(value)?, now))
}

fn number(value: &str) -> Option<f64> {
    // Words such as "inf" are numbers to Rust, and none here.
    let plain = value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') && !value.is_empty();
    plain.then(|| value.parse().ok())?
}

fn seconds(value: &str) -> Option<Span> {
    Some(Span::from_secs_f64(number(value)?).unwrap_or(LONGEST))
}

fn instant(secs: f64) -> Option<Timestamp> {
    Span::from_secs_f64(secs).map(|span| Timestamp::from_micros(span.as_micros()))
}

/// How long it is until then; zero where it has just come, and nothing where it is long past.
pub(in crate::inference) fn until(at: Timestamp, now: Timestamp) -> Option<Span> {
    (at > now || now.since(at) <= JUST_NOW).then(|| at.since(now))
}

fn rfc_3339(value: &str) -> Option<Timestamp> {
    timestamp(value.parse().ok()?)
}

fn timestamp(at: jiff::Timestamp) -> Option<Timestamp> {
    u64::try_from(at.as_microsecond()).ok().map(Timestamp::from_micros)
}

/// A date of HTTP: today's form, and the two obsolete ones that are still to be understood. jiff is here already, and
/// reads them as well as a crate for them alone.
fn http_date(value: &str) -> Option<Timestamp> {
    const FORMS: [&str; 3] = ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %e %H:%M:%S %Y"];
    let date = FORMS.iter().find_map(|form| DateTime::strptime(form, value).ok())?;
    timestamp(TimeZone::UTC.to_timestamp(date).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The current time of these tests: 1994-11-06T08:49:37Z.
    const NOW: Timestamp = Timestamp::from_micros(784_111_777_000_000);

    fn millis(headers: &[(&str, &str)]) -> Option<u64> {
        wait(headers, NOW).map(|span| span.as_micros() / 1_000)
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_in_any_of_its_forms() {
        for (value, expected) in [
            ("2", Some(2_000)),
            (" 1.5 ", Some(1_500)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10_000)),
            ("Sunday, 06-Nov-94 08:49:47 GMT", Some(10_000)),
            ("Sun Nov  6 08:49:47 1994", Some(10_000)),
            ("99999999999", Some(86_400_000_000)),
            ("99999999999999999999999999", Some(86_400_000_000)),
        ] {
            assert_eq!(millis(&[("Retry-After", value)]), expected, "{value}");
        }
        assert_eq!(millis(&[("retry-after-ms", "250"), ("retry-after", "9")]), Some(250));
    }

    #[test]
    fn garbage_and_the_past_are_no_wait() {
        for value in [
            "",
            "soon",
            "-1",
            "0",
            "inf",
            "NaN",
            "1e3",
            "1 2",
            "\u{2603}",
            "Sun, 06 Nov 1994 08:49:27 GMT",
            "Sun, 99 Nov",
        ] {
            assert_eq!(millis(&[("retry-after", value)]), None, "{value}");
        }
    }

    #[test]
    fn garbage_does_not_hide_what_another_header_says() {
        assert_eq!(millis(&[("retry-after", "soon"), ("x-ratelimit-reset-requests", "3s")]), Some(3_000));
    }

    #[test]
    fn the_limit_that_is_used_up_counts() {
        let headers = [
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("X-RateLimit-Reset-Tokens", "6m0s"),
        ];
        assert_eq!(millis(&headers), Some(360_000));
        assert_eq!(millis(&[headers[1], headers[3]]), Some(1_000));
        let anthropic = [
            ("anthropic-ratelimit-requests-remaining", "0"),
            ("anthropic-ratelimit-requests-reset", "1994-11-06T08:49:57Z"),
            ("anthropic-ratelimit-tokens-remaining", "5"),
            ("anthropic-ratelimit-tokens-reset", "1994-11-06T08:50:37Z"),
        ];
        assert_eq!(millis(&anthropic), Some(20_000));
    }

    #[test]
    fn the_window_of_a_plan_that_is_used_up_counts_and_a_minutes_window_is_none_of_an_account() {
        let headers = [
            ("anthropic-ratelimit-unified-5h-status", "allowed"),
            ("anthropic-ratelimit-unified-5h-reset", "1994-11-06T09:49:37Z"),
            ("anthropic-ratelimit-unified-7d-status", "rejected"),
            ("anthropic-ratelimit-unified-7d-reset", "1994-11-08T08:49:37Z"),
        ];
        assert_eq!(millis(&headers), Some(172_800_000));
        let of_account = |headers| of_account(headers, NOW).map(|wait| wait.as_micros() / 1_000);
        assert_eq!(of_account(&headers), Some(172_800_000));
        assert_eq!(of_account(&headers[..2]), None);
        assert_eq!(of_account(&[("x-ratelimit-reset-requests", "20ms")]), None);
        assert_eq!(of_account(&[("retry-after", "60"), ("x-ratelimit-reset-requests", "20ms")]), Some(60_000));
    }

    #[test]
    fn a_reset_is_a_duration_or_an_instant() {
        for (value, expected) in [
            ("120ms", Some(120)),
            ("1h2m3.5s", Some(3_723_500)),
            ("2", Some(2_000)),
            ("784111780", None),
            ("1994-11-06T08:49:40.5Z", Some(3_500)),
            ("tomorrow", None),
            ("5 minutes", None),
            ("s", None),
            ("5", Some(5_000)),
        ] {
            let expected = if value == "784111780" { Some(86_400_000_000) } else { expected };
            assert_eq!(millis(&[("x-ratelimit-reset", value)]), expected, "{value}");
        }
        let now = Timestamp::from_micros(1_796_036_520_000_000);
        for value in ["1796036522", "1796036522000"] {
            assert_eq!(wait(&[("x-ratelimit-reset", value)], now), Some(Span::from_secs(2)));
        }
    }
}
