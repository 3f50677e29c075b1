//! Defines instants and durations, and how they are written on the wire: RFC 3339 in UTC, and seconds. Pure: it must
//! not read a clock; the caller passes the time in.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An instant of wall-clock time, in microseconds since 1970-01-01T00:00:00Z.
///
/// Serialises as RFC 3339 in UTC with microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The last instant that can be written and read back: 9999-12-30T21:59:59.999999Z. A later instant becomes this
    /// one.
    pub const MAX: Self = Self(253_402_207_199_999_999);

    /// The instant `micros` microseconds after the epoch, at the latest [`Timestamp::MAX`].
    pub const fn from_micros(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Span {
        Span::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Timestamp {
    /// The instant that was `span` before this one; never before 1970.
    #[must_use]
    pub const fn before(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self::from_micros(self.0.saturating_add(span.0))
    }
}

/// The text that older versions wrote for instants after the last readable one.
const BEYOND: &str = "9999-12-31T23:59:59.999999Z";

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = i64::try_from(self.0).unwrap_or(i64::MAX);
        match jiff::Timestamp::from_microsecond(micros) {
            Ok(instant) => write!(f, "{instant:.6}"),
            // This cannot fail: no instant is later than the last one.
            Err(_) => f.write_str(BEYOND),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == BEYOND {
            return Ok(Self::MAX);
        }
        let instant: jiff::Timestamp = text.parse().map_err(de::Error::custom)?;
        u64::try_from(instant.as_microsecond())
            .map(Self::from_micros)
            .map_err(|_| de::Error::custom("times before 1970 are not supported"))
    }
}

/// A duration in microseconds. Serialises as a number of seconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Span(u64);

impl Span {
    /// The span of length zero.
    pub const ZERO: Self = Self(0);
    /// The longest span, 8,000,000,000 seconds (253 years): up to here a number of seconds is exact to the microsecond.
    /// Longer ones are taken as this one in computations, and refused in input.
    pub const MAX: Self = Self(8_000_000_000_000_000);

    /// A span of `micros` microseconds, at most [`Span::MAX`].
    pub const fn from_micros(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// A span of whole seconds, at most [`Span::MAX`].
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(1_000_000))
    }

    /// The length in microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The length in seconds, with the fraction.
    #[expect(clippy::cast_precision_loss, reason = "the longest span still has its microseconds")]
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The span as a `std` duration.
    pub const fn to_std(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// A span from seconds; `None` for a number that is negative, not a number or longer than [`Span::MAX`].
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked before the cast")]
    pub fn from_secs_f64(secs: f64) -> Option<Self> {
        // Seconds and fraction are converted separately: the product of a large number would lose microseconds.
        let read = |secs: f64| (secs.trunc() as u64).saturating_mul(1_000_000) + (secs.fract() * 1e6).round() as u64;
        let in_range = (0.0..=Self::MAX.as_secs()).contains(&secs);
        in_range.then(|| Self::from_micros(read(secs)))
    }

    /// Like [`Span::from_secs_f64`], for a number from another program: a number that is too long becomes `most`, or
    /// [`Span::MAX`]; `None` for a number that is not a duration.
    pub fn from_secs_at_most(secs: f64, most: Self) -> Option<Self> {
        if secs.is_nan() || secs < 0.0 {
            return None;
        }
        Some(Self::from_secs_f64(secs).map_or(most, |span| span.min(most)))
    }

    /// Reads numbers with units as people and servers write durations: `1h2m3.5s`, `500ms`, `1.5d`. Units are `ns`,
    /// `us`, `ms`, `s`, `m`, `h` and `d`. [`Span::MAX`] for a longer one, `None` for any other text.
    ///
    /// jiff does not take its place: it refuses fractions of days and units out of order, and reads calendar units,
    /// words, ISO 8601 and what lies in the past, which all would have to be refused again.
    pub fn from_units(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut secs = 0.0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
            let (number, after) = rest.split_at(digits);
            let letters = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
            let (unit, after) = after.split_at(letters);
            let unit = match unit {
                "ns" => 1e-9,
                "us" | "µs" | "μs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3_600.0,
                "d" => 86_400.0,
                _ => return None,
            };
            secs += number.parse::<f64>().ok()? * unit;
            rest = after;
        }
        (!text.is_empty()).then(|| Self::from_secs_at_most(secs, Self::MAX))?
    }

    /// `self - other`, or zero if `other` is longer.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::from_micros(self.0.saturating_add(other.0))
    }
}

impl Sub for Span {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.saturating_sub(other)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_secs())
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let secs = f64::deserialize(deserializer)?;
        Self::from_secs_f64(secs)
            .ok_or_else(|| de::Error::custom("a duration is a number of seconds, not negative and at most 8000000000"))
    }
}

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{Span, Timestamp};

    impl JsonSchema for Timestamp {
        fn schema_name() -> Cow<'static, str> {
            "Timestamp".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "type": "string", "format": "date-time", "description": "An instant: RFC 3339, UTC." })
        }
    }

    impl JsonSchema for Span {
        fn schema_name() -> Cow<'static, str> {
            "Span".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "type": "number", "minimum": 0, "description": "A duration, in seconds." })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_instant_reads_as_rfc_3339_in_utc() {
        let at = Timestamp::from_micros(1_796_036_520_000_250);
        assert_eq!(serde_json::to_string(&at).unwrap(), "\"2026-11-30T11:02:00.000250Z\"");
    }

    #[test]
    fn a_duration_with_units_is_the_sum_of_its_parts() {
        for (text, micros) in [
            ("1h2m3.5s", Some(3_723_500_000)),
            ("500ms", Some(500_000)),
            ("1.5d", Some(129_600_000_000)),
            ("30m1h", Some(5_400_000_000)),
            ("7us2000ns3µs", Some(12)),
            ("0s", Some(0)),
            ("99999999999999999999d", Some(Span::MAX.as_micros())),
            ("", None),
            ("90", None),
            ("1h30", None),
            ("h", None),
            ("-1s", None),
            ("1 h", None),
            ("1..2s", None),
            (".s", None),
            ("1e9s", None),
            ("infs", None),
            ("1y", None),
            ("1s ago", None),
        ] {
            assert_eq!(Span::from_units(text).map(Span::as_micros), micros, "{text:?}");
        }
    }

    #[test]
    fn a_negative_duration_is_refused() {
        assert!(serde_json::from_str::<Span>("-1").is_err());
        assert_eq!(serde_json::from_str::<Span>("1.5").unwrap(), Span::from_micros(1_500_000));
    }

    /// A8: at the bounds, next to them and far beyond.
    #[test]
    fn any_written_time_is_read_back() {
        let edges = [0, 1, 999_999, 1 << 32, 1 << 51, 1 << 52, (1 << 53) - 1, 1 << 53, 1 << 62, u64::MAX - 1, u64::MAX];
        let bounds = [Timestamp::MAX.as_micros(), Span::MAX.as_micros(), 253_402_300_799_999_999];
        for micros in edges.into_iter().chain(bounds.into_iter().flat_map(|bound| [bound - 1, bound, bound + 1])) {
            let at = Timestamp::from_micros(micros);
            assert_eq!(
                serde_json::from_str::<Timestamp>(&serde_json::to_string(&at).unwrap()).unwrap(),
                at,
                "{micros}"
            );
            let span = Span::from_micros(micros);
            assert_eq!(serde_json::from_str::<Span>(&serde_json::to_string(&span).unwrap()).unwrap(), span, "{micros}");
            let later = at + span + Span::from_micros(u64::MAX);
            assert_eq!(serde_json::from_str::<Timestamp>(&serde_json::to_string(&later).unwrap()).unwrap(), later);
            let both = span + Span::MAX;
            assert_eq!(serde_json::from_str::<Span>(&serde_json::to_string(&both).unwrap()).unwrap(), both);
        }
        assert_eq!(serde_json::from_str::<Timestamp>("\"9999-12-31T23:59:59.999999Z\"").unwrap(), Timestamp::MAX);
    }

    /// A8: a value that is not a duration is refused in our own files, and capped if it comes from another program.
    #[test]
    fn an_absurd_duration_is_refused_or_capped() {
        let day = Span::from_secs(86_400);
        let long = [3e11, 1e12, 8_000_000_001.0, f64::MAX, f64::INFINITY];
        for secs in long {
            assert_eq!(Span::from_secs_f64(secs), None, "{secs}");
            assert_eq!(Span::from_secs_at_most(secs, day), Some(day), "{secs}");
        }
        for secs in [-1.0, -1e-9, f64::NAN, f64::NEG_INFINITY] {
            assert_eq!((Span::from_secs_f64(secs), Span::from_secs_at_most(secs, day)), (None, None), "{secs}");
        }
        for secs in [0.0, -0.0, f64::MIN_POSITIVE, 5e-324, 4e-7] {
            assert_eq!(Span::from_secs_f64(secs), Some(Span::ZERO), "{secs}");
        }
        assert_eq!(Span::from_secs_at_most(7_200_000.0, day), Some(day));
        for text in ["1e12", "300000000000", "8000000001", "-0.1", "1e300", "1e999", "null", "\"1\"", "true"] {
            assert!(serde_json::from_str::<Span>(text).is_err(), "{text}");
        }
        assert_eq!(serde_json::from_str::<Span>("8e9").unwrap(), Span::MAX);
    }

    proptest! {
        #[test]
        fn instants_and_spans_survive_the_wire(micros: u64, small in 0u64..8_000_000_000_000_000) {
            for micros in [micros, small] {
                let at = Timestamp::from_micros(micros);
                let back: Timestamp = serde_json::from_str(&serde_json::to_string(&at).unwrap()).unwrap();
                prop_assert_eq!(at, back);
                let span = Span::from_micros(micros);
                let back: Span = serde_json::from_str(&serde_json::to_string(&span).unwrap()).unwrap();
                prop_assert_eq!(span, back);
            }
        }
    }
}
