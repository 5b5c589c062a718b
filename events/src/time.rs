//! Journal time: microseconds since 1970-01-01T00:00:00Z, as an integer in the bytes and as RFC 3339 for people.
//!
//! The journal's time never decreases. It enters the state machine with each commit and is never read from a
//! clock there.

use std::fmt;
use std::ops::Add;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use schemars::JsonSchema;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Time of the journal, in microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Time(i64);

impl Time {
    /// Unix epoch: before every event of every journal.
    pub const EPOCH: Time = Time(0);
    /// Time after every deadline.
    pub const FAR: Time = Time(i64::MAX);

    /// Returns the time with the number of microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Time {
        Time(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Returns the time passed since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Returns the time `span` earlier, not before the epoch.
    #[must_use]
    pub fn before(self, span: Duration) -> Time {
        Time(self.0.saturating_sub(micros_of(span)).max(0))
    }
}

fn micros_of(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, span: Duration) -> Time {
        Time(self.0.saturating_add(micros_of(span)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DateTime::<Utc>::from_timestamp_micros(self.0) {
            Some(when) => f.write_str(&when.to_rfc3339_opts(SecondsFormat::Micros, true)),
            None => write!(f, "{} µs", self.0),
        }
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not an RFC 3339 time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid time: must be as in 2026-11-21T09:00:00Z: {0}")]
pub struct InvalidTime(String);

impl FromStr for Time {
    type Err = InvalidTime;
    fn from_str(text: &str) -> Result<Time, InvalidTime> {
        DateTime::parse_from_rfc3339(text)
            .map(|when| Time(when.timestamp_micros()))
            .map_err(|error| InvalidTime(error.to_string()))
    }
}

/// `serde(with)` for values that people read: RFC 3339 text; microseconds in positional codecs.
pub mod shown {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Time;

    /// Writes RFC 3339, or microseconds.
    pub fn serialize<S: Serializer>(time: &Time, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() { to.collect_str(time) } else { time.serialize(to) }
    }

    /// Reads RFC 3339, or microseconds.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        if from.is_human_readable() {
            String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
        } else {
            Time::deserialize(from)
        }
    }

    /// `serde(with)` for an optional time in the same forms.
    pub mod option {
        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        use crate::time::Time;

        #[derive(Serialize, Deserialize)]
        struct TimeText(#[serde(with = "super")] Time);

        /// Writes RFC 3339, or microseconds.
        pub fn serialize<S: Serializer>(time: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
            time.map(TimeText).serialize(to)
        }

        /// Reads RFC 3339, or microseconds.
        pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Time>, D::Error> {
            Ok(Option::<TimeText>::deserialize(from)?.map(|TimeText(time)| time))
        }
    }
}

/// Reads an optional time of a request: RFC 3339, as rows show it, or microseconds, as the journal has it.
pub(crate) fn requested<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Time>, D::Error> {
    struct TimeVisitor;
    impl Visitor<'_> for TimeVisitor {
        type Value = Option<Time>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a time as in 2026-11-21T09:00:00Z, or microseconds since 1970")
        }
        fn visit_unit<E: Error>(self) -> Result<Option<Time>, E> {
            Ok(None)
        }
        fn visit_i64<E: Error>(self, micros: i64) -> Result<Option<Time>, E> {
            Ok(Some(Time(micros)))
        }
        fn visit_u64<E: Error>(self, micros: u64) -> Result<Option<Time>, E> {
            let micros = i64::try_from(micros);
            micros.map(|micros| Some(Time(micros))).map_err(|_| E::custom("time is too late"))
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Option<Time>, E> {
            text.parse().map(Some).map_err(E::custom)
        }
    }
    if from.is_human_readable() { from.deserialize_any(TimeVisitor) } else { Option::deserialize(from) }
}

/// Text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {0:?}: must be as in 500ms, 30s, 5m or 24h")]
pub struct InvalidSpan(String);

/// Parses a duration of at most 100 years: a whole number and its unit, `ms`, `s`, `m`, `h` or `d`.
pub fn parse_span(text: &str) -> Result<Duration, InvalidSpan> {
    const LONGEST: u64 = 100 * 365 * 24 * 3_600_000;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        "d" => Some(24 * 3_600_000),
        _ => None,
    };
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    let count = digits.parse::<u64>().ok().filter(|_| plain);
    let millis = unit.zip(count).and_then(|(unit, count)| count.checked_mul(unit)).filter(|m| *m <= LONGEST);
    millis.map(Duration::from_millis).ok_or_else(|| InvalidSpan(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_micros_are_one_value() {
        let time: Time = "2026-11-21T09:00:00.000001Z".parse().expect("a time");
        assert_eq!(time.to_string(), "2026-11-21T09:00:00.000001Z");
        assert_eq!(
            "2026-11-21T10:00:00+01:00".parse::<Time>().expect("a time") + Duration::from_micros(1),
            time
        );
        assert!("yesterday".parse::<Time>().is_err());
    }

    #[test]
    fn a_requested_time_is_that_of_rows_or_of_the_journal() {
        #[derive(serde::Deserialize, Debug)]
        struct RequestedTime(#[serde(deserialize_with = "requested")] Option<Time>);
        for (json, micros) in [
            ("\"1970-01-01T00:00:01Z\"", Some(1_000_000)),
            ("1000000", Some(1_000_000)),
            ("-1", Some(-1)),
            ("null", None),
        ] {
            let read = serde_json::from_str::<RequestedTime>(json).expect(json).0;
            assert_eq!(read, micros.map(Time::from_micros), "{json}");
        }
        for wrong in ["\"soon\"", "\"1\"", "1.5", "{}", "true", "18446744073709551615"] {
            assert!(serde_json::from_str::<RequestedTime>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_name_their_unit() {
        let cases =
            [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("24h", 86_400_000), ("7d", 604_800_000)];
        for (text, millis) in cases {
            assert_eq!(parse_span(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "30", "s", "-1s", "+1s", "1.5h", "5 m", "5min", "99999999999d"] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
    }
}
