//! The edge: how people write amounts, durations and words, and the exact values that these become.
//!
//! | form | people write | becomes |
//! |---|---|---|
//! | [`Cpu`] | `4`, `1.5`, `500m` | millicores |
//! | [`Memory`] | `64` (GiB), `64GiB`, `512MiB` | bytes |
//! | [`Disk`] | `100` (GB), `100GB`, `1TiB` | bytes |
//! | [`Span`] | `500ms`, `30s`, `5m`, `24h`, `7d` | milliseconds |
//! | [`AnyCase`] | `gte`, `GTE`, `NOT_IN` | the word |

use std::borrow::Cow;
use std::time::Duration;

use chancery_events::amount::{GB, GIB, parse_bytes, parse_cpu};
use chancery_events::spec::{Comparator, Protocol};
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
                // Every scalar is read as its text, so that `1.5` and `1e3` are what stands in the file.
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
    /// Millicores.
    Cpu(u64) = parse_cpu, {
        "description": "cores: 4, 1.5 or 500m",
        "type": ["number", "string"], "minimum": 0, "pattern": "^([0-9]+(\\.[0-9]+)?|[0-9]+m)$"
    };
    /// Bytes; a bare number counts in GiB.
    Memory(u64) = |text: &str| parse_bytes(text, GIB), {
        "description": "GiB, or with its unit: 64, 64GiB, 512MiB",
        "type": ["number", "string"], "minimum": 0, "pattern": "^[0-9]+(\\.[0-9]+)? *([kKMGT]i?)?B?$"
    };
    /// Bytes; a bare number counts in GB.
    Disk(u64) = |text: &str| parse_bytes(text, GB), {
        "description": "GB, or with its unit: 100, 100GB, 1TiB",
        "type": ["number", "string"], "minimum": 0, "pattern": "^[0-9]+(\\.[0-9]+)? *([kKMGT]i?)?B?$"
    };
    /// Milliseconds.
    Span(u64) = |text: &str| parse_span(text).map(|span| span.as_millis() as u64), {
        "description": "a duration: 500ms, 30s, 5m, 24h or 7d",
        "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"
    };
}

/// Text that is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write a duration as in 500ms, 30s, 5m or 24h, not {0:?}")]
pub struct BadSpan(String);

/// Reads a duration of at most a hundred years: a whole number and its unit.
pub fn parse_span(text: &str) -> Result<Duration, BadSpan> {
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
    millis.map(Duration::from_millis).ok_or_else(|| BadSpan(text.into()))
}

/// A closed set of words of the domain.
pub(super) trait Words: Copy + 'static {
    /// What one of them is called.
    const WHAT: &'static str;
    /// Every one.
    const ALL: &'static [Self];
    /// The word.
    fn word(self) -> &'static str;
}

impl Words for Comparator {
    const WHAT: &'static str = "comparator";
    const ALL: &'static [Comparator] = Comparator::ALL;
    fn word(self) -> &'static str {
        Comparator::word(self)
    }
}

impl Words for Protocol {
    const WHAT: &'static str = "protocol";
    const ALL: &'static [Protocol] = Protocol::ALL;
    fn word(self) -> &'static str {
        Protocol::word(self)
    }
}

/// A word, in whatever case it is written. An unknown one is refused, never taken for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AnyCase<T>(pub(super) T);

impl<'de, T: Words> Deserialize<'de> for AnyCase<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<AnyCase<T>, D::Error> {
        let text = String::deserialize(from)?;
        let found = T::ALL.iter().find(|one| one.word().eq_ignore_ascii_case(&text));
        found.map(|one| AnyCase(*one)).ok_or_else(|| {
            let words: Vec<_> = T::ALL.iter().map(|one| one.word()).collect();
            D::Error::custom(format!("unknown {} {text:?}{}", T::WHAT, suggest::instead(&text, &words)))
        })
    }
}

impl<T: Words> JsonSchema for AnyCase<T> {
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
    fn durations_say_their_unit() {
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
