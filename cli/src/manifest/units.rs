//! Resources, durations and enum values as manifests have them, and the exact values they are read as.
//!
//! | form | manifest | value |
//! |---|---|---|
//! | [`CpuAmount`] | `4`, `1.5`, `500m` | millicores |
//! | [`MemoryAmount`] | `64` (GiB), `64GiB`, `512MiB` | bytes |
//! | [`DiskAmount`] | `100` (GB), `100GB`, `1TiB` | bytes |
//! | [`DurationText`] | `500ms`, `30s`, `5m`, `24h`, `7d` | milliseconds |
//! | [`MinuteSpan`] | `30m`, `8h` | whole minutes |
//! | [`ClockTime`] | `22:00` | minutes from midnight |
//! | [`AnyCase`] | `gte`, `GTE`, `NOT_IN` | enum value |

use std::borrow::Cow;

use chancery_events::resources::{GB, GIB, parse_bytes, parse_cpu};
use chancery_events::spec::{MatchComparator, PolicyKind, PortProtocol, Weekday};
use chancery_events::time::parse_span;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::manifest::suggest;

macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident($type:ty) = $read:expr, $schema:tt;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub(super) struct $name(pub(super) $type);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                // Every scalar is read as its text, so that `1.5` and `1e3` are read as the file has them.
                let text = String::deserialize(from)?;
                $read(&text).map($name).map_err(D::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

texts! {
    /// CPU in millicores.
    CpuAmount(u64) = parse_cpu, {
        "description": "cores: 4, 1.5 or 500m",
        "type": ["number", "string"], "minimum": 0, "pattern": "^([0-9]+(\\.[0-9]+)?|[0-9]+m)$"
    };
    /// Memory in bytes; a bare number is in GiB.
    MemoryAmount(u64) = |text: &str| parse_bytes(text, GIB), {
        "description": "GiB, or with its unit: 64, 64GiB, 512MiB",
        "type": ["number", "string"], "minimum": 0, "pattern": "^[0-9]+(\\.[0-9]+)? *([kKMGT]i?)?B?$"
    };
    /// Disk space in bytes; a bare number is in GB.
    DiskAmount(u64) = |text: &str| parse_bytes(text, GB), {
        "description": "GB, or with its unit: 100, 100GB, 1TiB",
        "type": ["number", "string"], "minimum": 0, "pattern": "^[0-9]+(\\.[0-9]+)? *([kKMGT]i?)?B?$"
    };
    /// Duration in milliseconds.
    DurationText(u64) = |text: &str| parse_span(text).map(|span| span.as_millis() as u64), {
        "description": "a duration: 500ms, 30s, 5m, 24h or 7d",
        "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"
    };
    /// Duration in minutes, from 1 to 10,080 (a week).
    MinuteSpan(u16) = parse_minutes, {
        "description": "a duration of whole minutes, at most 7d: 30m, 8h",
        "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"
    };
    /// Time of the day in minutes from midnight, from 0 to 1439.
    ClockTime(u16) = parse_clock, {
        "description": "a time of the day: 22:00",
        "type": "string", "pattern": "^([01]?[0-9]|2[0-3]):[0-5][0-9]$"
    };
}

fn parse_minutes(text: &str) -> Result<u16, String> {
    let span = parse_span(text).map_err(|error| error.to_string())?;
    let whole = span.as_millis().is_multiple_of(60_000);
    let minutes = u16::try_from(span.as_millis() / 60_000).ok();
    minutes
        .filter(|minutes| whole && (1..=7 * 24 * 60).contains(minutes))
        .ok_or_else(|| format!("invalid duration {text:?}: must be whole minutes from 1m to 7d"))
}

fn parse_clock(text: &str) -> Result<u16, String> {
    let read = |text: &str, most: u16, digits: std::ops::RangeInclusive<usize>| {
        let plain = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u16>().ok().filter(|number| plain && *number <= most)
    };
    let (hours, minutes) = text.split_once(':').unwrap_or((text, ""));
    let time = read(hours, 23, 1..=2).zip(read(minutes, 59, 2..=2));
    time.map(|(hours, minutes)| hours * 60 + minutes)
        .ok_or_else(|| format!("invalid time of the day {text:?}: must be as in 22:00"))
}

/// Enum whose values have a text form.
pub(super) trait WordSet: Copy + 'static {
    /// Noun for a value in errors.
    const WHAT: &'static str;
    /// All values.
    const ALL: &'static [Self];
    /// Text form of the value.
    fn word(self) -> &'static str;
}

macro_rules! words {
    ($($type:ident = $what:literal;)*) => {$(
        impl WordSet for $type {
            const WHAT: &'static str = $what;
            const ALL: &'static [$type] = $type::ALL;
            fn word(self) -> &'static str {
                $type::word(self)
            }
        }
    )*};
}

words! {
    MatchComparator = "comparator";
    PortProtocol = "protocol";
    PolicyKind = "kind";
    Weekday = "day";
}

/// Enum value in upper or lower case. An unknown value is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AnyCase<T>(pub(super) T);

impl<'de, T: WordSet> Deserialize<'de> for AnyCase<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<AnyCase<T>, D::Error> {
        let text = String::deserialize(from)?;
        let found = T::ALL.iter().find(|one| one.word().eq_ignore_ascii_case(&text));
        found.map(|one| AnyCase(*one)).ok_or_else(|| {
            let words: Vec<_> = T::ALL.iter().map(|one| one.word()).collect();
            D::Error::custom(format!("invalid {} {text:?}{}", T::WHAT, suggest::instead(&text, &words)))
        })
    }
}

impl<T: WordSet> JsonSchema for AnyCase<T> {
    fn schema_name() -> Cow<'static, str> {
        T::WHAT.into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let words: Vec<_> = T::ALL.iter().map(|one| one.word()).collect();
        json_schema!({ "type": "string", "enum": words })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_of_the_day_and_in_whole_minutes() {
        for (text, minutes) in [("22:00", 1320), ("0:05", 5), ("00:00", 0), ("23:59", 1439)] {
            assert_eq!(parse_clock(text), Ok(minutes), "{text}");
        }
        for bad in ["24:00", "22", "22:0", "22:60", "-1:00", "+1:00", "22:00:00", "10pm", ""] {
            assert!(parse_clock(bad).is_err(), "{bad}");
        }
        for (text, minutes) in [("1m", 1), ("8h", 480), ("7d", 10_080), ("120s", 2)] {
            assert_eq!(parse_minutes(text), Ok(minutes), "{text}");
        }
        for bad in ["0m", "90s", "8d", "8", "8 h"] {
            assert!(parse_minutes(bad).is_err(), "{bad}");
        }
    }
}
