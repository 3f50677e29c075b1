//! Words of the command line that stand for values: durations, labels, deadlines.

use harness_protocol::time::{Span, Timestamp};

/// Reads a duration: `90`, `1.5s`, `500ms`, `10m`, `2h`, `1h30m`, `1d`.
pub(crate) fn duration(text: &str) -> Result<Span, String> {
    let wrong = || format!("{text:?} is no duration: 90, 1.5s, 10m, 2h, 1h30m");
    let mut rest = text.trim();
    let mut total = Span::ZERO;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let factor = match unit {
            // A bare number is seconds; only alone, lest `1h30` be misread.
            "" if rest == text.trim() => 1.0,
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            "d" => 86_400.0,
            _ => return Err(wrong()),
        };
        total = total + Span::from_secs_f64(number * factor).ok_or_else(wrong)?;
        rest = after;
    }
    Ok(total)
}

/// A deadline: so long from the submit, or an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// So long from the submit.
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
    duration(text).map(Deadline::In)
}

/// Reads `KEY=VALUE`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is no label: KEY=VALUE")),
    }
}

/// Reads a state of a run.
pub(crate) fn state(text: &str) -> Result<harness_protocol::run::RunState, String> {
    text.parse().map_err(|e: harness_protocol::run::UnknownState| e.to_string())
}

/// Reads the id of a relief.
pub(crate) fn relief(text: &str) -> Result<harness_protocol::id::ReliefId, String> {
    text.parse().map_err(|e: harness_protocol::id::IdError| e.to_string())
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
    fn a_deadline_is_a_duration_or_an_instant() {
        assert_eq!(deadline("2h"), Ok(Deadline::In(Span::from_secs(7200))));
        assert_eq!(deadline("1970-01-01T00:00:01Z"), Ok(Deadline::At(Timestamp::from_micros(1_000_000))));
        assert!(deadline("tomorrow-ish").is_err());
    }

    #[test]
    fn a_label_has_a_key() {
        assert_eq!(label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(label("a").is_err());
        assert!(label("=b").is_err());
    }
}
