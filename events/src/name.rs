//! Names: a type of its own for each kind of thing, right from birth, whether it comes from JSON, a path or a
//! command line.
//!
//! | rule | used for |
//! |---|---|
//! | *label*: 1 to 63 of `a-z`, `0-9`, `-` and `.`, beginning and ending with a letter or digit | things with a name of their own |
//! | *long label*: the same, up to 200 | volumes, which may be called after a replica and more |
//! | *word*: 1 to 63 of letters, digits, `-`, `.`, `_` and `/` | types, classes, keys that people already use elsewhere |
//! | *text*: 1 to 256 printable characters | who and where: actors, sources, idempotency keys |
//!
//! The text is shared: a clone costs a count.

/// Text that breaks the rule of the name it was meant for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// Empty, or longer than the rule allows.
    #[error("write 1 to {most} characters, not {found}")]
    Length {
        /// Characters allowed.
        most: usize,
        /// Characters given.
        found: usize,
    },
    /// A character that the rule does not allow, or not there.
    #[error("{found:?} may not stand at character {at}: {rule}")]
    Character {
        /// The character.
        found: char,
        /// Position of the character, from 1.
        at: usize,
        /// Characters that are allowed at this position.
        rule: &'static str,
    },
}

fn check(
    text: &str,
    most: usize,
    rule: &'static str,
    fits: fn(char, bool) -> bool,
) -> Result<(), InvalidName> {
    // Most are plain: their characters are their bytes.
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
    let rule = "use letters, digits, '-', '.', '_' and '/', with a letter or digit first and last";
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
            // Text that is shared is not read.
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
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl $crate::kind::KeyPart for $name {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(self.0.as_bytes());
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
                        given.parse().map_err(serde::de::Error::custom)
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
    /// A fleet: the unit of order.
    FleetName: label;
    /// The type of a capability: the thing that it is a measure of, as `GPU`.
    CapabilityType: word;
    /// A group of nodes that may go together.
    DomainName: label;
    /// A group of replicas, for affinity.
    GroupName: label;
    /// A zone: the location of a node, coarser than an update domain.
    ZoneName: label;
    /// A class of storage, as `fast-ssd`.
    StorageClass: word;
    /// A key of labels, selectors, coordinates, environment.
    KeyName: word;
    /// A namespace that a plan's runs live in.
    Namespace: label;
    /// The service that a plan provides; replicas are named after it.
    ServiceName: label;
    /// A payload of a plan.
    PayloadName: label;
    /// A port of a payload, as `http`.
    PortName: label;
    /// An executor, as it calls itself.
    ExecutorName: label;
    /// An actor: the stable id of a caller, never a person's data.
    Actor: text;
    /// The source of an input, as `cli` or `/ci/main`.
    SourceName: text;
    /// The idempotency key of an intent, unique for its actor and source.
    IntentId: text;
}

impl ReplicaName {
    /// The name of the replica that the event at `position` creates: `nginx-7f3k`.
    ///
    /// The suffix is the position in base 36, lowest digit first, so that neighbours differ where people look;
    /// it is unique because positions are. A long service is cut to make room.
    pub fn issue(service: &ServiceName, position: crate::id::Position) -> ReplicaName {
        let digits = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut suffix = Vec::with_capacity(12);
        let mut rest = position.get();
        while rest > 0 || suffix.len() < 4 {
            suffix.push(digits[(rest % 36) as usize]);
            rest /= 36;
        }
        let suffix: String = suffix.into_iter().map(char::from).collect();
        let room = 62 - suffix.len();
        let service = service.as_str();
        let stem = service[..service.len().min(room)].trim_end_matches(['-', '.']);
        ReplicaName(format!("{stem}-{suffix}").into())
    }
}

impl VolumeName {
    /// The name of a replica's own volume: the replica, the payload and the mount, and where that might be read in more
    /// than one way, a digest.
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
    fn a_label_is_lower_case_and_begins_and_ends_with_a_letter_or_digit() {
        for good in ["a", "node-1", "kind-worker2", "nginx.v1"] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "Node", "a_b", "ä", "a b", &"x".repeat(64)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
        let error = "node one".parse::<NodeName>().expect_err("a space");
        assert!(error.to_string().starts_with("' ' may not stand at character 5"), "{error}");
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
