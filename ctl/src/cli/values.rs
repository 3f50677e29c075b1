//! Parses single values of the command line: numbers, durations, labels, deadlines. A wrong value gives an error that
//! names the allowed ones. Pure: it must not read a clock, so `--deadline 2h` stays a duration here.

use harness_protocol::limit::CallLimit;
use harness_protocol::time::{Span, Timestamp};

/// The largest width of a lane that a daemon takes.
pub(crate) const WIDEST: u32 = 1_000_000;
/// The longest duration, in days: a hundred years.
const LONGEST_DAYS: u64 = 36_500;

/// Reads a whole number within bounds.
pub(crate) fn number(text: &str, least: u64, most: u64) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{text:?} is no whole number"));
    }
    match text.parse() {
        Ok(number) if number < least => Err(format!("{least} is the least")),
        Ok(number) if number <= most => Ok(number),
        // A number of digits that does not fit is too large.
        _ => Err(format!("{most} is the most")),
    }
}

/// Reads a number of steps.
pub(crate) fn steps(text: &str) -> Result<u32, String> {
    number(text, 1, u64::from(u32::MAX)).map(|steps| u32::try_from(steps).unwrap_or(u32::MAX))
}

/// Reads a number of tokens.
pub(crate) fn tokens(text: &str) -> Result<u64, String> {
    number(text, 1, i64::MAX.unsigned_abs())
}

/// Reads an amount of money above zero.
pub(crate) fn usd(text: &str) -> Result<f64, String> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let amount: Option<f64> = text.parse().ok().filter(|_| plain);
    match amount {
        Some(amount) if amount > 0.0 && amount <= 1e9 => Ok(amount),
        Some(_) => Err("it must be more than 0, and 1000000000 is the most".to_owned()),
        None => Err(format!("{text:?} is no amount of USD: 0.5, 12")),
    }
}

/// Reads a number of lines.
pub(crate) fn lines(text: &str) -> Result<usize, String> {
    number(text, 0, u64::from(u32::MAX)).map(|lines| usize::try_from(lines).unwrap_or(usize::MAX))
}

/// Reads a number of runs.
pub(crate) fn runs(text: &str) -> Result<u32, String> {
    number(text, 0, u64::from(u32::MAX)).map(|runs| u32::try_from(runs).unwrap_or(u32::MAX))
}

/// Reads the number of an event.
pub(crate) fn seq(text: &str) -> Result<u64, String> {
    number(text, 0, u64::MAX)
}

/// Reads a width of a lane, or a number of permits to add.
pub(crate) fn permits(text: &str) -> Result<u32, String> {
    number(text, 0, u64::from(WIDEST)).map(|permits| u32::try_from(permits).unwrap_or(WIDEST))
}

/// Reads the width of a lane.
pub(crate) fn width(text: &str) -> Result<u32, String> {
    number(text, 1, u64::from(WIDEST)).map(|width| u32::try_from(width).unwrap_or(WIDEST))
}

/// Reads a duration above zero.
pub(crate) fn some_time(text: &str) -> Result<Span, String> {
    match duration(text)? {
        Span::ZERO => Err("it must be longer than 0".to_owned()),
        span => Ok(span),
    }
}

/// Reads a duration: `90`, which are seconds, `1.5s`, `500ms`, `10m`, `2h`, `1h30m`, `1d`.
pub(crate) fn duration(text: &str) -> Result<Span, String> {
    let text = text.trim();
    let is_bare = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let span = if is_bare { Span::from_units(&format!("{text}s")) } else { Span::from_units(text) };
    let span = span.ok_or_else(|| format!("{text:?} is no duration: 90, 1.5s, 10m, 2h, 1h30m"))?;
    if span > Span::from_secs(LONGEST_DAYS * 86_400) {
        return Err(format!("{LONGEST_DAYS}d is the longest"));
    }
    Ok(span)
}

/// A deadline: a time after the submit, or an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// This long after the submit.
    In(Span),
    /// At this instant.
    At(Timestamp),
}

/// Reads a deadline: a duration, or an instant in RFC 3339.
pub(crate) fn deadline(text: &str) -> Result<Deadline, String> {
    if text.contains('T') || text.contains('-') {
        let instant: jiff::Timestamp =
            text.parse().map_err(|_| format!("{text:?} is no instant: 2026-11-30T18:00:00Z"))?;
        let micros = u64::try_from(instant.as_microsecond()).map_err(|_| "times before 1970 have passed".to_owned())?;
        return Ok(Deadline::At(Timestamp::from_micros(micros)));
    }
    some_time(text).map(Deadline::In)
}

/// Reads a label, `KEY=VALUE`. The key must not be empty; the error says what was typed.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no label: KEY=VALUE")),
    }
}

/// Reads a limit of calls: `open_files=64`, `address_space_bytes=512MiB`.
pub(crate) fn call_limit(text: &str) -> Result<(CallLimit, u64), String> {
    let wrong = || format!("{text:?} is no limit: NAME=VALUE");
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let limit = CallLimit::named(&name.replace('-', "_")).ok_or_else(|| {
        let names: Vec<&str> = CallLimit::ALL.iter().map(|limit| limit.name()).collect();
        format!("there is no limit {name:?}; there are: {}", names.join(", "))
    })?;
    let (least, most) = limit.bounds().into_inner();
    let value = if limit.is_bytes() { bytes(value, least, most) } else { number(value, least, most) };
    Ok((limit, value?))
}

/// Reads a number of bytes. Crates for sizes take fractions and decimal units as well, of which all but these would
/// have to be refused again.
fn bytes(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits);
    let bits = match unit {
        "" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err(format!("{text:?} is no number of bytes: 1000000, 64MiB, 2GiB")),
    };
    // A number that does not fit is too large, too.
    let value = number(digits, 0, most)?.saturating_mul(1 << bits);
    number(&value.to_string(), least, most)
}

/// Reads a state of a run.
pub(crate) fn state(text: &str) -> Result<harness_protocol::run::RunState, String> {
    text.parse().map_err(|e: harness_protocol::run::UnknownState| e.to_string())
}

/// Reads a kind of wait.
pub(crate) fn waiting(text: &str) -> Result<harness_protocol::run::WaitKind, String> {
    text.parse().map_err(|e: harness_protocol::run::UnknownWait| e.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn durations_are_numbers_with_units() {
        let millis = |text: &str| duration(text).map(|span| span.as_micros() / 1000);
        assert_eq!(millis("90"), Ok(90_000));
        assert_eq!(millis("1.5s"), Ok(1_500));
        assert_eq!(millis("500ms"), Ok(500));
        assert_eq!(millis("10m"), Ok(600_000));
        assert_eq!(millis("2h"), Ok(7_200_000));
        assert_eq!(millis("1h30m"), Ok(5_400_000));
        for wrong in ["", "m", "1h30", "-1", "1x", "1 h", "1..2s", "nan", "1e9"] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_value_out_of_bounds_is_told_with_the_bound() {
        assert_eq!(permits("99999999999").unwrap_err(), "1000000 is the most");
        assert_eq!(permits("1000001").unwrap_err(), "1000000 is the most");
        assert_eq!(permits("1000000"), Ok(1_000_000));
        assert_eq!(steps("0").unwrap_err(), "1 is the least");
        assert_eq!(tokens("99999999999999999999999").unwrap_err(), "9223372036854775807 is the most");
        assert_eq!(duration("36501d").unwrap_err(), "36500d is the longest");
        assert_eq!(duration("999999999999999999d").unwrap_err(), "36500d is the longest");
        assert_eq!((usd("0.5"), usd("12")), (Ok(0.5), Ok(12.0)));
        assert!(["0", "-1", "inf", "nan", "1e3", "", "1,5"].iter().all(|wrong| usd(wrong).is_err()));
        assert!(some_time("0s").is_err() && some_time("0").is_err() && deadline("0").is_err());
        for wrong in ["", "-1", "+1", "1.5", "x"] {
            assert!(lines(wrong).unwrap_err().ends_with("is no whole number"), "{wrong:?}");
        }
    }

    #[test]
    fn a_deadline_is_a_duration_or_an_instant() {
        assert_eq!(deadline("2h"), Ok(Deadline::In(Span::from_secs(7200))));
        assert_eq!(deadline("1970-01-01T00:00:01Z"), Ok(Deadline::At(Timestamp::from_micros(1_000_000))));
        assert!(deadline("tomorrow-ish").is_err());
    }

    #[test]
    fn a_limit_has_a_name_and_a_value_within_its_bounds() {
        assert_eq!(call_limit("open_files=64"), Ok((CallLimit::OpenFiles, 64)));
        assert_eq!(call_limit("cpu-seconds=2"), Ok((CallLimit::CpuSeconds, 2)));
        for text in ["address_space_bytes=67108864", "address_space_bytes=64MiB", "address_space_bytes=64M"] {
            assert_eq!(call_limit(text), Ok((CallLimit::AddressSpaceBytes, 64 << 20)));
        }
        for (text, told) in [
            ("open_files", "NAME=VALUE"),
            ("mood=3", "there are: cpu_seconds, address_space_bytes"),
            ("open_files=64K", "no whole number"),
            ("open_files=2", "16 is the least"),
            ("address_space_bytes=1MiB", "16777216 is the least"),
            ("address_space_bytes=9999999T", "is the most"),
            ("file_size_bytes=1.5GiB", "no number of bytes"),
            ("file_size_bytes=", "no whole number"),
        ] {
            assert!(call_limit(text).unwrap_err().contains(told), "{text}: {:?}", call_limit(text));
        }
    }

    #[test]
    fn a_label_has_a_key() {
        assert_eq!(label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(label("a").is_err());
        assert!(label("=b").is_err());
    }
}
