//! Reads the time at which a limit ends from the body of an error: from its fields and from its words.
//!
//! Pure: the current time and the time zone are arguments. A value that cannot be read counts as absent, and so does a
//! time that is long past. A time that has just passed means no wait.

use std::sync::LazyLock;

use harness_protocol::time::{Span, Timestamp};
use jiff::ToSpan as _;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{Offset, TimeZone};
use regex::{Captures, Regex};
use serde_json::Value;

use super::rate_limit::{JUST_NOW, LONGEST, reset, until};

/// Levels of a body that are looked at, and values.
const DEPTH: u32 = 8;
const MOST_VALUES: u32 = 512;
/// How soon it is asked again where the time has just come.
const AT_ONCE: Span = Span::from_secs(1);

/// By a field that says when: `resets_at`, `resets_in_seconds`, `retryDelay`, … Fields that name a reset go before
/// those that name a retry; of several the soonest counts, for who asks too early is only told again.
pub(in crate::inference) fn in_body(body: &Value, now: Timestamp) -> Option<Span> {
    let mut found = Found::default();
    let mut left = MOST_VALUES;
    walk(body, now, DEPTH, &mut left, &mut found);
    found.reset.or(found.retry)
}

#[derive(Default)]
struct Found {
    reset: Option<Span>,
    retry: Option<Span>,
}

fn walk(value: &Value, now: Timestamp, depth: u32, left: &mut u32, found: &mut Found) {
    if depth == 0 || *left == 0 {
        return;
    }
    *left -= 1;
    match value {
        Value::Array(values) => values.iter().for_each(|value| walk(value, now, depth - 1, left, found)),
        Value::Object(fields) => {
            for (name, value) in fields {
                let name: String =
                    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
                let place = if name.contains("reset") || name.contains("renew") || name.contains("regain") {
                    &mut found.reset
                } else if ["retryafter", "retrydelay", "retryat", "retryin", "availableat"]
                    .iter()
                    .any(|n| name.contains(n))
                {
                    &mut found.retry
                } else {
                    walk(value, now, depth - 1, left, found);
                    continue;
                };
                let wait = field(&name, value, now);
                *place = [*place, wait].into_iter().flatten().min();
            }
        }
        _ => {}
    }
}

fn field(name: &str, value: &Value, now: Timestamp) -> Option<Span> {
    match value {
        Value::Number(number) if name.ends_with("ms") || name.contains("millis") => {
            let number = number.as_f64()?;
            if number < 1e12 { Span::from_secs_f64(number / 1e3) } else { reset(&plain(number), now) }
        }
        Value::Number(number) => reset(&plain(number.as_f64()?), now),
        Value::String(text) => {
            let text = text.trim();
            reset(text, now)
                .or_else(|| in_words(&text.to_ascii_lowercase()))
                .or_else(|| until(absolute(&text.to_ascii_lowercase(), now, &TimeZone::UTC)?, now))
        }
        // {"seconds": 34}
        Value::Object(fields) => match fields.get("seconds")? {
            Value::String(secs) => reset(secs.trim(), now),
            secs => Span::from_secs_f64(secs.as_f64()?),
        },
        Value::Null | Value::Bool(_) | Value::Array(_) => None,
    }
}

/// A number without an exponent.
fn plain(number: f64) -> String {
    format!("{number}")
}

const NUMBER: &str = r"\d+(?:\.\d+)?";
const UNIT: &str =
    r"(?:milliseconds?|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w|fortnights?)";
/// What the sentence is about.
const ABOUT: &str = concat!(
    r"(?:try|retry|retrying|again|reset|resets|resetting|renews?|refills?|refresh(?:es|ed)?|available|restored|lifted|",
    r"unblocked|replenish(?:es|ed)?|wait|back|resumes?|reopens?|regain|expires?|until|cool\s?down)",
);
const MONTH: &str = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?";
const WEEKDAY: &str = r"(mon|tue|wed|thu|fri|sat|sun)[a-z]*";
/// 06:34, 6:34:10 pm, 3am, midnight, noon.
const CLOCK: &str =
    r"(?:(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?\s*([ap]\.?m\b\.?)?|(\d{1,2})\s*([ap]\.?m\b\.?)|(midnight|noon))";
/// UTC, (Europe/London), +08:00, pst.
const ZONE: &str = concat!(
    r"\s*\(?(z\b|(?:utc|gmt)\s?[+-]\d{1,2}(?::?\d{2})?\b|utc\b|gmt\b|[+-]\d{2}:?\d{2}\b|",
    r"[a-z]+(?:/[a-z_+-]+){1,2}|[a-z]{2,4}t\b|pacific|eastern)?",
);

fn compiled(pattern: &str) -> Option<Regex> {
    Regex::new(pattern).ok()
}

static RELATIVE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let some = format!(r"{NUMBER}\s*{UNIT}\b(?:(?:\s|,|and)*{NUMBER}\s*{UNIT}\b)*");
    let some = format!(r"{some}|(?:{NUMBER}(?:ms|[smhdw]))+");
    let near = concat!(
        r"(?:in|after|for|within|wait|another)\s+(?:about|around|approximately|approx\.?|roughly|at least|another|",
        r"the next|~)?\s*",
    );
    compiled(&format!(r"\b{ABOUT}\b(?:[^!?;.]|\.\S){{0,80}}?(?:\b{near}|:\s*|\s)({some})(?:\W|$)"))
});
/// "resets in 5:12:33", and "in 5:12", which is hours and minutes.
static IN_CLOCK: LazyLock<Option<Regex>> =
    LazyLock::new(|| compiled(&format!(r"\b{ABOUT}\b[^.!?;]{{0,60}}?\bin\s+(\d{{1,3}}):([0-5]\d)(?::([0-5]\d))?\b")));
static PART: LazyLock<Option<Regex>> = LazyLock::new(|| compiled(&format!(r"({NUMBER})\s*({UNIT})")));
static RETRY_AFTER: LazyLock<Option<Regex>> =
    LazyLock::new(|| compiled(r#"retry[-_ ]after"?\s*[:=]?\s*(\d+(?:\.\d+)?)(?:\s*$|[^\w:/.-]|\.\s|\.$)"#));
static STAMP: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let day = r"(\d{4})[-/](\d{2})[-/](\d{2})";
    let time = r"(?:t|\s+at\s+|,?\s+)(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?";
    compiled(&format!(r"\b{day}(?:{time})?{ZONE}"))
});
static BY_MONTH: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let nth = "(?:st|nd|rd|th)?";
    let day = format!(r"(?:{MONTH}\s+(\d{{1,2}})|(\d{{1,2}}){nth}\s+(?:of\s+)?{MONTH}){nth}");
    compiled(&format!(r"\b{day}(?:,?\s+(\d{{4}}))?(?:,?\s*(?:at\s+)?{CLOCK}{ZONE})?"))
});
static BY_WEEKDAY: LazyLock<Option<Regex>> =
    LazyLock::new(|| compiled(&format!(r"\b{ABOUT}\b[^.!?;]{{0,40}}?\b{WEEKDAY},?\s+(?:at\s+)?{CLOCK}{ZONE}")));
static BY_CLOCK: LazyLock<Option<Regex>> =
    LazyLock::new(|| compiled(&format!(r"\b{ABOUT}\b[^.!?;]{{0,60}}?(tomorrow)?[^.!?;\d]{{0,12}}\b{CLOCK}{ZONE}")));
static UNIX: LazyLock<Option<Regex>> = LazyLock::new(|| compiled(r"(?:^|\D)([12]\d{9}(?:\d{3})?)(?:\D|$)"));
static SPEAKS_OF_IT: LazyLock<Option<Regex>> =
    LazyLock::new(|| compiled(&format!(r"\b{ABOUT}\b|retry[-_]after|limit reached|重置|恢复|重试|再试|刷新")));
/// 2 小时 30 分钟后, 2時間30分後.
static IN_CHINESE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let some = format!(r"{NUMBER}\s*(?:天|日|个?小时|小時|時間|分钟|分鐘|分|秒钟?|秒鐘)");
    compiled(&format!(r"({some}(?:\s*{some})*)\s*(?:之|以)?(?:后|後)"))
});
static PART_IN_CHINESE: LazyLock<Option<Regex>> =
    LazyLock::new(|| compiled(&format!(r"({NUMBER})\s*(天|日|个?小时|小時|時間|分|秒)")));
/// 12/03/2026, the month first where it can be one.
static BY_SLASHES: LazyLock<Option<Regex>> =
    LazyLock::new(|| compiled(&format!(r"\b(\d{{1,2}})/(\d{{1,2}})/(\d{{4}})\b(?:,?\s*(?:at\s+)?{CLOCK}{ZONE})?")));
/// Ways to write a number that are made plain first: "9,000", "an hour", "59 more minutes".
static THOUSANDS: LazyLock<Option<Regex>> = LazyLock::new(|| compiled(r"\b(\d{1,3}),(\d{3})\b"));
static ONE: LazyLock<Option<Regex>> = LazyLock::new(|| compiled(r"\b(?:an?|one)\s+(second|minute|hour|day|week)\b"));
static MORE: LazyLock<Option<Regex>> =
    LazyLock::new(|| compiled(&format!(r"\b({NUMBER})\s+(?:more|additional|further)\s+({UNIT})\b")));

/// By words: "try again in 5h 12m", "resets 3am (Europe/London)", "at 2026-11-20 18:27:08", "reached|1796036522". A
/// bare time of day is meant in
/// `zone`, and is the next one that comes.
pub(in crate::inference) fn in_text(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Span> {
    let text = text.to_lowercase();
    if let Some(wait) = in_chinese(&text) {
        return Some(wait);
    }
    if !SPEAKS_OF_IT.as_ref()?.is_match(&text) {
        return None;
    }
    let text = THOUSANDS.as_ref()?.replace_all(&text, "${1}${2}");
    let text = ONE.as_ref()?.replace_all(&text, "1 ${1}");
    let text = MORE.as_ref()?.replace_all(&text, "${1} ${2}");
    let relative = || {
        let found = RELATIVE.as_ref()?.captures(&text)?;
        in_words(found.get(1)?.as_str())
    };
    let in_clock = || {
        let found = IN_CLOCK.as_ref()?.captures(&text)?;
        let part = |index| number::<u64>(&found, index).unwrap_or(0);
        Some(Span::from_secs(part(1) * 3_600 + part(2) * 60 + part(3)))
    };
    let bare = || {
        let found = RETRY_AFTER.as_ref()?.captures(&text)?;
        Span::from_secs_f64(found.get(1)?.as_str().parse().ok()?)
    };
    // Who has no clock cannot tell how far an instant is away.
    let has_clock = now != Timestamp::default();
    let at = || has_clock.then(|| until(absolute(&text, now, zone)?, now))?;
    relative().or_else(in_clock).or_else(bare).or_else(at)
}

/// A duration in Chinese or Japanese characters.
fn in_chinese(text: &str) -> Option<Span> {
    let found = IN_CHINESE.as_ref()?.captures(text)?;
    let parts = PART_IN_CHINESE.as_ref()?.captures_iter(found.get(1)?.as_str());
    let secs = parts.map(|part| {
        let unit = match part.get(2).map_or("", |unit| unit.as_str()) {
            "天" | "日" => 86_400.0,
            "分" => 60.0,
            "秒" => 1.0,
            _ => 3_600.0,
        };
        number::<f64>(&part, 1).unwrap_or(0.0) * unit
    });
    Span::from_secs_f64(secs.sum())
}

/// A duration in words or in short: "5 hours and 12 minutes", "5h12m", "18h20m10s".
fn in_words(text: &str) -> Option<Span> {
    if let Some(span) = Span::from_units(text) {
        return Some(span);
    }
    let mut total = None;
    for part in PART.as_ref()?.captures_iter(text) {
        let count: f64 = part.get(1)?.as_str().parse().ok()?;
        let unit = part.get(2)?.as_str();
        let secs = match unit {
            _ if unit.starts_with("ms") || unit.starts_with("milli") => 1e-3,
            _ if unit.starts_with('s') => 1.0,
            _ if unit.starts_with('m') => 60.0,
            _ if unit.starts_with('h') => 3_600.0,
            _ if unit.starts_with('d') => 86_400.0,
            _ if unit.starts_with('f') => 1_209_600.0,
            _ => 604_800.0,
        };
        total = Some(total.unwrap_or(0.0) + count * secs);
    }
    Some(Span::from_secs_f64(total?).unwrap_or(LONGEST))
}

/// The instant that a text names.
fn absolute(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    stamp(text, zone)
        .or_else(|| by_slashes(text, zone))
        .or_else(|| by_month(text, now, zone))
        .or_else(|| unix(text))
        .or_else(|| by_weekday(text, now, zone))
        .or_else(|| by_clock(text, now, zone))
}

fn stamp(text: &str, zone: &TimeZone) -> Option<Timestamp> {
    let found = STAMP.as_ref()?.captures(text)?;
    let date = Date::new(number(&found, 1)?, number(&found, 2)?, number(&found, 3)?).ok()?;
    let part = |index| number(&found, index).unwrap_or(0);
    let time = Time::new(part(4), part(5), part(6), 0).ok()?;
    instant(date.to_datetime(time), &zone_of(&found, 7, zone))
}

fn by_slashes(text: &str, zone: &TimeZone) -> Option<Timestamp> {
    let found = BY_SLASHES.as_ref()?.captures(text)?;
    let (first, second): (i8, i8) = (number(&found, 1)?, number(&found, 2)?);
    let (month, day) = if first > 12 { (second, first) } else { (first, second) };
    let time = clock(&found, 4).unwrap_or(Time::midnight());
    instant(Date::new(number(&found, 3)?, month, day).ok()?.to_datetime(time), &zone_of(&found, 11, zone))
}

fn by_month(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    const MONTHS: &str = "janfebmaraprmayjunjulaugsepoctnovdec";
    let found = BY_MONTH.as_ref()?.captures(text)?;
    let name = found.get(1).or_else(|| found.get(4))?.as_str();
    let month = i8::try_from(MONTHS.find(name)? / 3 + 1).ok()?;
    let day = number(&found, 2).or_else(|| number(&found, 3))?;
    let time = clock(&found, 6).unwrap_or(Time::midnight());
    let zone = zone_of(&found, 13, zone);
    let today = today(now, &zone)?;
    if let Some(year) = number(&found, 5) {
        return instant(Date::new(year, month, day).ok()?.to_datetime(time), &zone);
    }
    // Without a year it is the one that comes next.
    let this_year = Date::new(today.year(), month, day).ok()?;
    let date = if this_year < today { Date::new(today.year() + 1, month, day).ok()? } else { this_year };
    instant(date.to_datetime(time), &zone)
}

fn unix(text: &str) -> Option<Timestamp> {
    let digits = UNIX.as_ref()?.captures(text)?.get(1)?.as_str();
    let number: u64 = digits.parse().ok()?;
    Some(Timestamp::from_micros(number.checked_mul(if digits.len() == 13 { 1_000 } else { 1_000_000 })?))
}

fn by_weekday(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    const DAYS: &str = "montuewedthufrisatsun";
    let found = BY_WEEKDAY.as_ref()?.captures(text)?;
    let wanted = i8::try_from(DAYS.find(found.get(1)?.as_str())? / 3).ok()?;
    let zone = zone_of(&found, 9, zone);
    let time = clock(&found, 2)?;
    let today = today(now, &zone)?;
    let ahead = (wanted - today.weekday().to_monday_zero_offset()).rem_euclid(7);
    let at = instant(today.checked_add(i64::from(ahead).days()).ok()?.to_datetime(time), &zone)?;
    if at.since(now) > Span::ZERO {
        return Some(at);
    }
    instant(today.checked_add(i64::from(ahead + 7).days()).ok()?.to_datetime(time), &zone)
}

fn by_clock(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let found = BY_CLOCK.as_ref()?.captures(text)?;
    let zone = zone_of(&found, 9, zone);
    let time = clock(&found, 2)?;
    let today = today(now, &zone)?;
    let tomorrow = today.tomorrow().ok()?;
    if found.get(1).is_some() {
        return instant(tomorrow.to_datetime(time), &zone);
    }
    let at = instant(today.to_datetime(time), &zone)?;
    match at.since(now) {
        Span::ZERO if now.since(at) <= JUST_NOW => Some(now + AT_ONCE),
        Span::ZERO => instant(tomorrow.to_datetime(time), &zone),
        _ => Some(at),
    }
}

/// The time of day in the seven groups of [`CLOCK`], which begin at `first`.
fn clock(found: &Captures<'_>, first: usize) -> Option<Time> {
    if let Some(word) = found.get(first + 6) {
        return if word.as_str() == "noon" { Time::new(12, 0, 0, 0).ok() } else { Some(Time::midnight()) };
    }
    let half = found.get(first + 3).or_else(|| found.get(first + 5)).map(|half| half.as_str().starts_with('p'));
    let hour: i8 = number(found, first).or_else(|| number(found, first + 4))?;
    let hour = match half {
        Some(_) if !(1..=12).contains(&hour) => return None,
        Some(true) if hour < 12 => hour + 12,
        Some(false) if hour == 12 => 0,
        _ => hour,
    };
    let part = |index| number(found, index).unwrap_or(0);
    // The midnight at the end of a day.
    let hour = if hour == 24 { 0 } else { hour };
    Time::new(hour, part(first + 1), part(first + 2), 0).ok()
}

fn number<T: std::str::FromStr>(found: &Captures<'_>, index: usize) -> Option<T> {
    found.get(index)?.as_str().parse().ok()
}

/// The zone that is named; otherwise the given one.
fn zone_of(found: &Captures<'_>, index: usize, zone: &TimeZone) -> TimeZone {
    let Some(name) = found.get(index).map(|name| name.as_str()) else { return zone.clone() };
    let hours = |hours: i8| TimeZone::fixed(Offset::constant(hours));
    match name {
        "z" | "utc" | "gmt" => TimeZone::UTC,
        "est" => hours(-5),
        "edt" | "ast" => hours(-4),
        "cdt" => hours(-5),
        "mst" | "pdt" => hours(-7),
        "mdt" => hours(-6),
        "pst" => hours(-8),
        "pt" | "pacific" => TimeZone::get("America/Los_Angeles").unwrap_or_else(|_| hours(-8)),
        "et" | "eastern" => TimeZone::get("America/New_York").unwrap_or_else(|_| hours(-5)),
        "cet" | "bst" => hours(1),
        "cest" => hours(2),
        "jst" | "kst" => hours(9),
        "hkt" | "sgt" => hours(8),
        "aest" => hours(10),
        "ist" => offset("+05:30").map_or_else(|| zone.clone(), TimeZone::fixed),
        _ if name.contains(['+', '-']) && !name.contains('/') => {
            offset(name.trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == ' '))
                .map_or_else(|| zone.clone(), TimeZone::fixed)
        }
        _ => TimeZone::get(name).unwrap_or_else(|_| zone.clone()),
    }
}

/// `+08:00`, `-0530`, `+8`, `+5:30`.
fn offset(text: &str) -> Option<Offset> {
    let digits = text.get(1..)?;
    let (hours, minutes) = match digits.split_once(':') {
        Some(parts) => parts,
        None if digits.len() > 2 => digits.split_at_checked(digits.len() - 2)?,
        None => (digits, "0"),
    };
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let secs = hours * 3_600 + minutes * 60;
    Offset::from_seconds(if text.starts_with('-') { -secs } else { secs }).ok()
}

/// The day in a zone.
fn today(now: Timestamp, zone: &TimeZone) -> Option<Date> {
    let micros = i64::try_from(now.as_micros()).ok()?;
    Some(zone.to_datetime(jiff::Timestamp::from_microsecond(micros).ok()?).date())
}

/// The end of the last year that is taken for a time at all.
const END_OF_TIME: Timestamp = Timestamp::from_micros(253_370_764_800_000_000);

fn instant(at: DateTime, zone: &TimeZone) -> Option<Timestamp> {
    if at.year() >= 9_999 {
        return Some(END_OF_TIME);
    }
    let at = zone.to_timestamp(at).ok()?;
    u64::try_from(at.as_microsecond()).ok().map(Timestamp::from_micros)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// 2026-11-30T11:02:00Z, a Monday.
    const NOW: Timestamp = Timestamp::from_micros(1_796_036_520_000_000);

    /// Until when, in UTC.
    fn until(wait: Option<Span>) -> String {
        wait.map_or_else(|| "no time".to_owned(), |wait| (NOW + wait).to_string()[..19].to_owned())
    }

    fn told(text: &str) -> String {
        until(in_text(text, NOW, &TimeZone::UTC))
    }

    /// A wait given in words is read in all units (entry C3).
    #[test]
    fn a_wait_in_words_is_kept_whatever_its_units() {
        for (text, secs) in [
            ("Please try again in 1.5s.", 1.5),
            ("Rate limit reached for gpt-4o. Please try again in 7m12.5s. Visit https://example.com", 432.5),
            ("Your quota will reset after 18h20m10s.", 66_010.0),
            ("You have hit your limit. Resets in 5h 12m", 18_720.0),
            ("usage limit reached, resets in 2 days 3 hours", 183_600.0),
            ("Please retry in 34.074824224s.", 34.074_824),
            ("Try again in about 3 hours.", 10_800.0),
            ("Requests to the API have exceeded the limit. Please retry after 26 seconds.", 26.0),
            ("Please wait 30 minutes before trying again", 1_800.0),
            ("available again in 1 hour and 30 minutes", 5_400.0),
            ("Retry-After: 17", 17.0),
            ("Limit reached. Wait for another 45 secs", 45.0),
            ("Your weekly limit will reset in 1 week", 604_800.0),
            ("try again in 120ms", 0.12),
            ("limit resets in 05:12:33", 18_753.0),
            ("Your quota resets in 5:12", 18_720.0),
            ("usage limit exceeded. retry_after: 9000", 9_000.0),
            (r#"usage limit exceeded {"retry_after": 9000}"#, 9_000.0),
            ("Limit reached. Try again in an hour.", 3_600.0),
            ("please wait 59 more minutes", 3_540.0),
            ("retry in 9,000 seconds", 9_000.0),
            ("in cooldown: 3600 seconds", 3_600.0),
            ("the service reopens in 4 hours", 14_400.0),
            ("resets in 1 fortnight", 1_209_600.0),
            ("请在 2 小时 30 分钟后重试", 9_000.0),
            ("请9000秒后再试", 9_000.0),
            ("3天后恢复", 259_200.0),
            ("1時間30分後に再試行してください", 5_400.0),
            ("请于45分钟之后再试", 2_700.0),
        ] {
            let wait = in_text(text, NOW, &TimeZone::UTC).map(|wait| wait.as_secs());
            assert!(wait.is_some_and(|wait| (wait - secs).abs() < 1e-3), "{text}: {wait:?}");
        }
    }

    /// An instant given in words is read; a time of day means its next occurrence (entry C3).
    #[test]
    fn an_instant_in_words_is_kept_and_a_time_of_day_is_the_next_one() {
        for (text, at) in [
            ("You've hit your usage limit. Try again at 06:34", "2026-12-01T06:34:00"),
            ("Try again at 3:42 PM.", "2026-11-30T15:42:00"),
            ("5-hour limit reached ∙ resets 3pm", "2026-11-30T15:00:00"),
            ("You've hit your limit · resets 3am (Europe/Berlin)", "2026-12-01T02:00:00"),
            ("Your limit will reset at 7pm (America/New_York)", "2026-12-01T00:00:00"),
            ("Usage limit reached for 5 hour. Your limit will reset at 2026-11-30 18:27:08", "2026-11-30T18:27:08"),
            ("You will regain access on 2026-12-01 at 00:00 UTC.", "2026-12-01T00:00:00"),
            ("It will reset at 2026-12-01 23:59:59 +0800 CST", "2026-12-01T15:59:59"),
            ("Claude AI usage limit reached|1796054400", "2026-11-30T16:00:00"),
            ("limit resets at 1796054400000", "2026-11-30T16:00:00"),
            ("or try again at Dec 6th, 2026 1:05 PM.", "2026-12-06T13:05:00"),
            ("Weekly limit reached ∙ resets Dec 2, 1pm", "2026-12-02T13:00:00"),
            ("resets on Jan 3 at 09:00", "2027-01-03T09:00:00"),
            ("your weekly limit resets Thursday at 10:59 PM", "2026-12-03T22:59:00"),
            ("try again at 2026-11-30T12:00:00+01:00", "2026-11-30T11:02:00"),
            ("try again at 2026-11-30T10:00:00", "no time"),
            ("Your quota resets at 2026-12-01 15:43:02 (UTC+8)", "2026-12-01T07:43:02"),
            ("Access resets at 8:43 AM GMT+1.", "2026-12-01T07:43:00"),
            ("usage limit reached, resets at 21:13 GMT+5:30", "2026-11-30T15:43:00"),
            ("try again after 21:13 IST", "2026-11-30T15:43:00"),
            ("try again after 21:13 UTC-0330", "2026-12-01T00:43:00"),
            ("resets on 12/03/2026 at 12:46 PM UTC", "2026-12-03T12:46:00"),
            ("resets on 13/12/2026", "2026-12-13T00:00:00"),
            ("available again at 09:00 KST", "2026-12-01T00:00:00"),
            ("try again at 2026-11-30T13:00:00+01:00", "2026-11-30T12:00:00"),
            ("The quota resets at midnight UTC", "2026-12-01T00:00:00"),
            ("available again tomorrow at 08:15", "2026-12-01T08:15:00"),
            ("Try again at 11:01", "2026-11-30T11:02:01"),
            ("Try again at 11:02 am", "2026-11-30T11:02:01"),
            ("resets 2 December 2026 at 14:00 GMT", "2026-12-02T14:00:00"),
            ("Your quota resets on 2026-12-05", "2026-12-05T00:00:00"),
            ("您的限额将在 2026-11-30 18:27:08 重置。", "2026-11-30T18:27:08"),
        ] {
            assert_eq!(told(text), at, "{text}");
        }
    }

    #[test]
    fn words_that_name_no_time_are_none() {
        for text in [
            "",
            "You exceeded your current quota, please check your plan and billing details.",
            "Please try again later.",
            "try again soon; request 12:34 of model x-2026 failed, s 5",
            "resets at 99:99",
            "resets Feb 31",
            "The model supports 8192 tokens",
            "insufficient balance (1008)",
            "reset your password at https://example.com/reset",
            "Please wait until the limit resets. (limit: 50 / 24h)",
            "try again. The window is 24 hours",
            "resets on 31/31/2026",
        ] {
            assert_eq!(told(text), "no time", "{text}");
        }
    }

    /// A field of the body gives the time (entry C3).
    #[test]
    fn a_field_of_the_body_says_when() {
        for (body, at) in [
            (
                r#"{"error":{"type":"usage_limit_reached","resets_at":1796054400,"plan_type":"plus"}}"#,
                "2026-11-30T16:00:00",
            ),
            (r#"{"error":{"resets_in_seconds":3600}}"#, "2026-11-30T12:02:00"),
            (r#"{"error":{"details":[{"@type":"x/RetryInfo","retryDelay":"34s"}]}}"#, "2026-11-30T11:02:34"),
            (r#"{"error":{"metadata":{"headers":{"X-RateLimit-Reset":"1796054400000"}}}}"#, "2026-11-30T16:00:00"),
            (r#"{"quotaResetTimeStamp":"2026-12-01T05:00:00Z"}"#, "2026-12-01T05:00:00"),
            (r#"{"error":{"retry_after":20,"reset_at":"2026-11-30T18:00:00Z"}}"#, "2026-11-30T18:00:00"),
            (r#"{"retry_after_ms":90000}"#, "2026-11-30T11:03:30"),
            (r#"{"reset_time":"2026-11-30 18:00:00"}"#, "2026-11-30T18:00:00"),
            (
                r#"{"windows":{"five_hour":{"resets_at":1796054400},"week":{"resets_at":1796400000}}}"#,
                "2026-11-30T16:00:00",
            ),
            (r#"{"details":[{"retryDelay":{"seconds":"34"}}]}"#, "2026-11-30T11:02:34"),
            (r#"{"resets_at":null,"reset":true,"retry_after":"soon"}"#, "no time"),
            (r#"{"resets_at":1700000000}"#, "no time"),
            (r#"{"retry_after":{"seconds":5}}"#, "2026-11-30T11:02:05"),
        ] {
            let value = serde_json::from_str(body).unwrap();
            assert_eq!(until(in_body(&value, NOW)), at, "{body}");
        }
    }

    #[test]
    fn a_body_without_end_is_looked_at_up_to_a_bound() {
        let deep = format!("{}{{\"resets_in\":5}}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(in_body(&serde_json::from_str(&deep).unwrap(), NOW), None);
        let wide = Value::Array((0..100_000).map(Value::from).collect());
        assert_eq!(in_body(&wide, NOW), None);
    }
}
