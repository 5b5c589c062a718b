//! Version that the subject of an intent must have: `3`, `0` if it must not exist, `*` if it must exist.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Version that the subject of an intent must have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ExpectedVersion {
    /// This version; 0 if the subject must not exist.
    Exactly(u64),
    /// Any version: the subject must exist.
    Any,
}

impl ExpectedVersion {
    /// Expectation that the subject does not exist.
    pub const ABSENT: ExpectedVersion = ExpectedVersion::Exactly(0);

    /// Whether a subject with this version is as expected; the version is 0 if the subject does not exist.
    pub const fn fits(self, found: u64) -> bool {
        match self {
            ExpectedVersion::Exactly(version) => version == found,
            ExpectedVersion::Any => found > 0,
        }
    }
}

impl fmt::Display for ExpectedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpectedVersion::Exactly(version) => version.fmt(f),
            ExpectedVersion::Any => f.write_str("*"),
        }
    }
}

/// Writes what [`fmt::Display`] writes: digests of intents contain this text.
impl fmt::Debug for ExpectedVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ExpectedVersion {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<ExpectedVersion, ParseIntError> {
        if text == "*" { Ok(ExpectedVersion::Any) } else { text.parse().map(ExpectedVersion::Exactly) }
    }
}

impl Serialize for ExpectedVersion {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            ExpectedVersion::Exactly(version) => to.serialize_u64(*version),
            ExpectedVersion::Any => to.serialize_str("*"),
        }
    }
}

impl<'de> Deserialize<'de> for ExpectedVersion {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ExpectedVersion, D::Error> {
        struct VersionVisitor;

        impl Visitor<'_> for VersionVisitor {
            type Value = ExpectedVersion;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a version, or \"*\"")
            }

            fn visit_u64<E: de::Error>(self, version: u64) -> Result<ExpectedVersion, E> {
                Ok(ExpectedVersion::Exactly(version))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ExpectedVersion, E> {
                match text {
                    "*" => Ok(ExpectedVersion::Any),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }

        from.deserialize_any(VersionVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_stored_as_a_number_and_any_version_as_an_asterisk() {
        for (expected, json, debug) in
            [(ExpectedVersion::Exactly(3), "3", "Some(3)"), (ExpectedVersion::Any, "\"*\"", "Some(*)")]
        {
            assert_eq!(serde_json::to_string(&expected).expect("JSON"), json);
            assert_eq!(serde_json::from_str::<ExpectedVersion>(json).expect(json), expected);
            assert_eq!(expected.to_string().parse(), Ok(expected));
            assert_eq!(format!("{:?}", Some(expected)), debug);
        }
        for wrong in ["-1", "1.5", "\"3\"", "null", "true"] {
            assert!(serde_json::from_str::<ExpectedVersion>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_subject_without_a_version_does_not_exist() {
        let fits = |expected: ExpectedVersion| [0, 3, 4].map(|found| expected.fits(found));
        assert_eq!(fits(ExpectedVersion::ABSENT), [true, false, false]);
        assert_eq!(fits(ExpectedVersion::Exactly(3)), [false, true, false]);
        assert_eq!(fits(ExpectedVersion::Any), [false, true, true]);
    }
}
