//! Names: each kind of entity has its own type, which is valid by construction, whether it comes from JSON, a
//! path or a command line.
//!
//! | rule | used for |
//! |---|---|
//! | *label*: 1 to 63 of `a-z`, `0-9`, `-` and `.`, starting and ending with a letter or digit | entities with a name of their own |
//! | *long label*: the same, up to 200 | volumes, whose names may contain that of a replica and more |
//! | *word*: 1 to 63 of `A-Z`, `a-z`, `0-9`, `-`, `.`, `_` and `/` | types, classes, keys that people already use elsewhere |
//! | *text*: 1 to 256 printable characters | actors, sources, idempotency keys |
//!
//! The text is shared: a clone only increments a reference count.

/// Reason why a text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The text is empty, or longer than the rule allows.
    #[error("invalid name of {found} characters: must have 1 to {most}")]
    Length {
        /// Maximum number of characters.
        most: usize,
        /// Number of characters in the text.
        found: usize,
    },
    /// The rule does not allow a character of the text at its position.
    #[error("invalid character {found:?} at position {at}: {rule}")]
    Character {
        /// Invalid character.
        found: char,
        /// Position of the character, from 1.
        at: usize,
        /// Rule for characters.
        rule: &'static str,
    },
}

fn check(
    text: &str,
    most: usize,
    rule: &'static str,
    fits: fn(char, bool) -> bool,
) -> Result<(), InvalidName> {
    // Most names are ASCII: their characters are their bytes.
    let fits_plainly = |(index, byte): (usize, u8)| {
        byte.is_ascii() && fits(byte.into(), index == 0 || index + 1 == text.len())
    };
    if (1..=most).contains(&text.len()) && text.bytes().enumerate().all(fits_plainly) {
        return Ok(());
    }
    let count = text.chars().count();
    if count == 0 || count > most {
        return Err(InvalidName::Length { most, found: count });
    }
    for (index, found) in text.chars().enumerate() {
        if !fits(found, index == 0 || index + 1 == count) {
            return Err(InvalidName::Character { found, at: index + 1, rule });
        }
    }
    Ok(())
}

pub(crate) fn label(text: &str) -> Result<(), InvalidName> {
    label_of(text, 63)
}

pub(crate) fn long_label(text: &str) -> Result<(), InvalidName> {
    label_of(text, 200)
}

fn label_of(text: &str, most: usize) -> Result<(), InvalidName> {
    let rule = "use a-z, 0-9, '-' and '.', with a letter or digit at both ends";
    check(text, most, rule, |c, edge| match c {
        'a'..='z' | '0'..='9' => true,
        '-' | '.' => !edge,
        _ => false,
    })
}

pub(crate) fn word(text: &str) -> Result<(), InvalidName> {
    let rule = "use A-Z, a-z, 0-9, '-', '.', '_' and '/', with a letter or digit first and last";
    check(text, 63, rule, |c, edge| {
        c.is_ascii_alphanumeric() || (!edge && matches!(c, '-' | '.' | '_' | '/'))
    })
}

pub(crate) fn text(text: &str) -> Result<(), InvalidName> {
    check(text, 256, "use printable characters", |c, _| !c.is_control())
}

/// Declares types of names, each with its rule.
macro_rules! names {
    ($($(#[$doc:meta])* $name:ident: $rule:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash)]
        pub struct $name(pub(crate) std::sync::Arc<str>);

        impl Ord for $name {
            // Shared text is not deserialized.
            fn cmp(&self, other: &$name) -> std::cmp::Ordering {
                if std::sync::Arc::ptr_eq(&self.0, &other.0) { std::cmp::Ordering::Equal } else { self.0.cmp(&other.0) }
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &$name) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $name {
            /// Text of the name.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl $crate::kind::KeyPart for $name {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(self.0.as_bytes());
            }
            fn take(from: &mut &[u8]) -> Option<$name> {
                let end = from.iter().position(|byte| *byte == 0).unwrap_or(from.len());
                let text = from.split_off(..end)?;
                from.split_off_first();
                std::str::from_utf8(text).ok()?.parse().ok()
            }
            fn is_text(&self) -> bool {
                true
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::name::InvalidName;
            fn from_str(given: &str) -> Result<$name, $crate::name::InvalidName> {
                $crate::name::$rule(given).map(|()| $name(given.into()))
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                struct NameVisitor;
                impl serde::de::Visitor<'_> for NameVisitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("a name")
                    }
                    fn visit_str<E: serde::de::Error>(self, given: &str) -> Result<$name, E> {
                        let rule = $crate::name::names!(@rule $rule);
                        $crate::name_texts::read(given, rule).map($name).map_err(serde::de::Error::custom)
                    }
                }
                from.deserialize_str(NameVisitor).map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $crate::name::names!(@schema $rule)
            }
        }
    )*};
    (@rule label) => { $crate::name_texts::NameRule { number: 0, check: $crate::name::label } };
    (@rule long_label) => { $crate::name_texts::NameRule { number: 1, check: $crate::name::long_label } };
    (@rule word) => { $crate::name_texts::NameRule { number: 2, check: $crate::name::word } };
    (@rule text) => { $crate::name_texts::NameRule { number: 3, check: $crate::name::text } };
    (@schema label) => {
        schemars::json_schema!({ "type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$" })
    };
    (@schema long_label) => {
        schemars::json_schema!({ "type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$" })
    };
    (@schema word) => {
        schemars::json_schema!({ "type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$" })
    };
    (@schema text) => {
        schemars::json_schema!({ "type": "string", "minLength": 1, "maxLength": 256 })
    };
}
pub use crate::kind::names::*;
pub(crate) use names;

names! {
    /// Name of a fleet, the unit of order.
    FleetName: label;
    /// Type of a capability: the property that it measures, such as `GPU`.
    CapabilityType: word;
    /// Name of an update domain: nodes that may be taken down together.
    DomainName: label;
    /// Name of a group of replicas, for affinity.
    GroupName: label;
    /// Name of a zone: the location of a node, coarser than an update domain.
    ZoneName: label;
    /// Name of a storage class, such as `fast-ssd`.
    StorageClass: word;
    /// Key of labels, selectors, coordinates or environment variables.
    KeyName: word;
    /// Namespace of a plan's incarnations.
    Namespace: label;
    /// Service that a plan provides; replicas are named after it.
    ServiceName: label;
    /// Name of a payload in its plan.
    PayloadName: label;
    /// Name of a port of a payload, such as `http`.
    PortName: label;
    /// Name of an executor, which it chooses.
    ExecutorName: label;
    /// Actor: the stable id of a caller, never personal data.
    Actor: text;
    /// Source of an input, such as `cli` or `/ci/main`.
    SourceName: text;
    /// Idempotency key of an intent, unique for its actor and source.
    IntentId: text;
}

impl ReplicaName {
    /// Returns the name of the replica that the event at `position` creates, such as `nginx-7f3k`.
    ///
    /// The suffix is the position in base 36, lowest digit first, so that consecutive names differ visibly.
    /// It is unique because positions are. A long service name is shortened to fit.
    pub fn issue(service: &ServiceName, position: crate::id::Position) -> ReplicaName {
        let digits = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut suffix = Vec::with_capacity(12);
        let mut rest = position.get();
        while rest > 0 || suffix.len() < 4 {
            suffix.push(digits[(rest % 36) as usize]);
            rest /= 36;
        }
        let suffix: String = suffix.into_iter().map(char::from).collect();
        let max_length = 62 - suffix.len();
        let service = service.as_str();
        let stem = service[..service.len().min(max_length)].trim_end_matches(['-', '.']);
        ReplicaName(format!("{stem}-{suffix}").into())
    }
}

impl VolumeName {
    /// Returns the name of a replica's own volume: the replica, the payload and the mount. Where this would
    /// be ambiguous, a digest follows.
    pub fn of(replica: &ReplicaName, payload: &PayloadName, mount: &str) -> VolumeName {
        let plain = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
        let slug: String = mount.chars().map(plain).take(40).collect();
        let slug = slug.trim_matches('-');
        let mut name = format!("{replica}-{payload}-{slug}");
        let is_word = |text: &str| !text.is_empty() && !text.contains(['-', '.']);
        if !is_word(payload.as_str()) || !is_word(slug) || mount.strip_prefix('/') != Some(slug) {
            let digest =
                crate::digest::Digest::of(&[payload.as_str().as_bytes(), mount.as_bytes()]).to_string();
            name = format!("{}-{}", name.trim_end_matches('-'), &digest[..8]);
        }
        VolumeName(name.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Position;

    #[test]
    fn a_replicas_own_volumes_have_names_that_are_valid_and_differ() {
        let replica: ReplicaName = format!("{}a", "r".repeat(62)).parse().expect("63 characters");
        let payload: PayloadName = format!("{}a", "p".repeat(62)).parse().expect("63 characters");
        let long = format!("/{}", "x".repeat(300));
        let mounts = ["/", "/data", "/data/", "/da/ta", "/da-ta", "/Data", "/ä", "/-", &long, &long[..299]];
        let names: std::collections::BTreeSet<_> =
            mounts.iter().map(|mount| VolumeName::of(&replica, &payload, mount)).collect();
        assert_eq!(names.len(), mounts.len(), "{names:?}");
        for name in names {
            assert_eq!(name.as_str().parse::<VolumeName>().as_ref(), Ok(&name));
        }
        let of = |payload: &str, mount| {
            VolumeName::of(&ReplicaName("web-f100".into()), &PayloadName(payload.into()), mount)
        };
        assert_eq!(of("app", "/data").as_str(), "web-f100-app-data");
        assert_ne!(of("a-b", "/c"), of("a", "/b-c"));
    }

    #[test]
    fn a_label_is_lower_case_and_starts_and_ends_with_a_letter_or_digit() {
        for good in ["a", "node-1", "kind-worker2", "nginx.v1"] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "Node", "a_b", "ä", "a b", &"x".repeat(64)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
        let error = "node one".parse::<NodeName>().expect_err("a space");
        assert!(error.to_string().starts_with("invalid character ' ' at position 5"), "{error}");
    }

    #[test]
    fn json_obeys_the_same_rule() {
        assert!(serde_json::from_str::<CapabilityType>("\"GPU\"").is_ok());
        assert!(serde_json::from_str::<NodeName>("\"GPU\"").is_err());
    }

    #[test]
    fn replicas_of_neighbouring_positions_have_different_names_that_are_valid() {
        let long: ServiceName = format!("{}-b", "a".repeat(61)).parse().expect("63 characters");
        let mut seen = std::collections::BTreeSet::new();
        for position in (1..5000).chain([Position::MAX.get()]) {
            let name = ReplicaName::issue(&long, Position::new(position));
            assert!(name.as_str().parse::<ReplicaName>().is_ok(), "{name}");
            assert!(seen.insert(name));
        }
    }
}
