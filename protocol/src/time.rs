//! Instants and durations as they travel: RFC 3339 UTC and seconds. Never reads a clock.

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
    /// The instant `micros` microseconds after the epoch.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the epoch.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Timestamp {
    /// The time that was `span` before this one; never before 1970.
    #[must_use]
    pub const fn before(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = i64::try_from(self.0).unwrap_or(i64::MAX);
        match jiff::Timestamp::from_microsecond(micros) {
            Ok(instant) => write!(f, "{instant:.6}"),
            Err(_) => f.write_str("9999-12-31T23:59:59.999999Z"),
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
        let instant: jiff::Timestamp = text.parse().map_err(de::Error::custom)?;
        u64::try_from(instant.as_microsecond())
            .map(Self)
            .map_err(|_| de::Error::custom("times before 1970 are not supported"))
    }
}

/// A duration in microseconds. Serialises as a number of seconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of `micros` microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// A span of whole seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Microseconds.
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Seconds, with their fraction.
    #[expect(clippy::cast_precision_loss, reason = "a span of 285 years still has its microseconds")]
    pub fn as_secs(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The same as a `std` duration.
    pub const fn to_std(self) -> Duration {
        Duration::from_micros(self.0)
    }

    /// A span from seconds; `None` for what is negative, not a number or beyond 285 thousand years.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked before the cast")]
    pub fn from_secs_f64(secs: f64) -> Option<Self> {
        (0.0..9e12).contains(&secs).then(|| Self((secs * 1e6).round() as u64))
    }

    /// `self - other`, zero when `other` is longer.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl From<Duration> for Span {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl Add for Span {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
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
        Self::from_secs_f64(secs).ok_or_else(|| de::Error::custom("a duration is a number of seconds, not negative"))
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
    fn a_negative_duration_is_refused() {
        assert!(serde_json::from_str::<Span>("-1").is_err());
        assert_eq!(serde_json::from_str::<Span>("1.5").unwrap(), Span::from_micros(1_500_000));
    }

    proptest! {
        #[test]
        fn instants_and_spans_survive_the_wire(micros in 0u64..250_000_000_000_000_000) {
            let at = Timestamp::from_micros(micros);
            let back: Timestamp = serde_json::from_str(&serde_json::to_string(&at).unwrap()).unwrap();
            prop_assert_eq!(at, back);
            let span = Span::from_micros(micros % 4_000_000_000_000_000);
            let back: Span = serde_json::from_str(&serde_json::to_string(&span).unwrap()).unwrap();
            prop_assert_eq!(span, back);
        }
    }
}
