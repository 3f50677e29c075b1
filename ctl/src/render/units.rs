//! Renders ages, durations, sizes and counts for people, such as `3m05s` or `1.5 KiB`. Reads the clock, which is used
//! for display only.

use std::time::{SystemTime, UNIX_EPOCH};

use harness_protocol::time::{Span, Timestamp};
use harness_protocol::waiting_words::Clock;

/// The wall clock. It is used to show ages, and never to decide anything.
pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// The present time, with the time zone of this machine.
pub(crate) fn clock(now: Timestamp) -> Clock {
    Clock { now, zone: jiff::tz::TimeZone::system() }
}

/// A duration in at most two units: `0.4s`, `12s`, `3m05s`, `2h10m`, `4d03h`.
pub(crate) fn span(span: Span) -> String {
    let micros = span.as_micros();
    let secs = micros / 1_000_000;
    match secs {
        0 if micros == 0 => "0s".to_owned(),
        0..=9 => format!("{:.1}s", span.as_secs()),
        10..=59 => format!("{secs}s"),
        60..=3_599 => format!("{}m{:02}s", secs / 60, secs % 60),
        3_600..=86_399 => format!("{}h{:02}m", secs / 3_600, secs % 3_600 / 60),
        _ => format!("{}d{:02}h", secs / 86_400, secs % 86_400 / 3_600),
    }
}

/// A number of bytes in binary units, with two or three digits, so that columns stay narrow: `512 B`, `1.5 KiB`,
/// `20 MiB`.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(crate) fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1000.0 {
            return if unit == "B" || value >= 10.0 {
                format!("{value:.0} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// `1 run`, `2 runs`.
pub(crate) fn count(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        let read = |millis: u64| span(Span::from_micros(millis * 1000));
        assert_eq!(
            [0, 1_500, 59_900, 65_000, 7_800_000, 97_200_000].map(read),
            ["0s", "1.5s", "59s", "1m05s", "2h10m", "1d03h"]
        );
    }

    #[test]
    fn sizes_have_three_digits_at_most() {
        assert_eq!([0, 999, 1_536, 20 << 20].map(bytes), ["0 B", "999 B", "1.5 KiB", "20 MiB"]);
    }
}
