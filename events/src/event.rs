//! Events as a record stores them: one line of compact JSON per event.
//!
//! ```text
//! {"k":"intent","t":"plan.delete.v1","id":"…","src":"cli","by":"local","at":1795251600000000,"d":{…}}
//! {"k":"observation","t":"incarnation.reported.v1","by":"local-1","d":{…}}
//! {"k":"fact","t":"replica.created.v1","c":17,"d":{…}}
//! ```
//! Keys: `k` kind, `t` type with version, `d` data; of a fact `c`, the position of its cause; of an intent
//! `id`, `src` source, `by` actor, `claim` claimed actor, `at` sender's time in microseconds, `expect`
//! version, `tp` trace context. An observation has `by`, its executor. Position, time and subjects are not
//! stored: they follow from the header, the line's place and the data.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::expected_version::ExpectedVersion;
use crate::extension::ExtensionAttributes;
use crate::fact::Fact;
use crate::id::{Lineage, Position};
use crate::intent::{Intent, IntentRequest};
use crate::level::FleetLevel;
use crate::name::{Actor, ExecutorName, IntentId, SourceName};
use crate::observation::Observation;
use crate::subject::Subject;
use crate::time::Time;

/// Text from which a body can be read.
pub trait EventData {
    /// Error of an invalid body.
    type Error;
    /// Reads a body from the text.
    fn read<T: DeserializeOwned>(&self) -> Result<T, Self::Error>;
}

impl EventData for str {
    type Error = serde_json::Error;
    fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self)
    }
}

/// Declares a closed set of bodies: an enum with a variant for each body, named by type and version.
macro_rules! bodies {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $type:literal $(since $level:literal)?),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug)]
        pub enum $name {
            $($(#[$vdoc])* $variant($variant)),*
        }

        impl $name {
            /// Types of the bodies with their versions, in order.
            pub const TYPES: &[&str] = &[$($type),*];

            /// Levels of the types, in the order of [`Self::TYPES`].
            pub const LEVELS: &[u32] = &[$($crate::event::bodies!(@level $($level)?)),*];

            /// Level of the body.
            pub fn level(&self) -> crate::level::FleetLevel {
                let of_type = match self {
                    $($name::$variant(_) => ($type, $crate::event::bodies!(@level $($level)?))),*
                };
                crate::level::level_of(crate::level::ADDITIONS, of_type, || self.data_json())
            }

            /// Type of the body with its version.
            pub fn type_name(&self) -> &'static str {
                match self { $($name::$variant(_) => $type),* }
            }

            /// Data of the body as compact JSON.
            pub fn data_json(&self) -> String {
                let json = match self { $($name::$variant(body) => serde_json::to_string(body)),* };
                json.expect("bodies have string keys and no failing parts")
            }

            /// Reads the data of an event of type `type_name`: `None` if the type is not in this set.
            pub fn read(type_name: &str, data: &str) -> Option<Result<$name, serde_json::Error>> {
                $name::read_from(type_name, data)
            }

            /// Reads the data as [`Self::read`] does, from a source whose errors may have more detail.
            pub fn read_from<T: crate::event::EventData + ?Sized>(type_name: &str, data: &T) -> Option<Result<$name, T::Error>> {
                match type_name {
                    $($type => Some(data.read().map($name::$variant)),)*
                    _ => None,
                }
            }

            /// JSON Schema of each body, by type.
            pub fn schemas() -> Vec<(&'static str, schemars::Schema)> {
                vec![$(($type, schemars::schema_for!($variant))),*]
            }
        }

        $(impl From<$variant> for $name {
            fn from(body: $variant) -> $name {
                $name::$variant(body)
            }
        })*
    };
    (@level) => { 1 };
    (@level $level:literal) => { $level };
}
pub(crate) use bodies;

/// Event of a journal.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Intent: a request of an actor.
    Intent(IntentRequest),
    /// Observation: a report of an executor.
    Observation {
        /// Executor that made the observation.
        by: ExecutorName,
        /// Body of the observation.
        observation: Observation,
    },
    /// Fact: a conclusion of the decider.
    Fact {
        /// Position of the event that led to the fact.
        cause: Position,
        /// Body of the fact.
        fact: Fact,
    },
}

impl Event {
    /// Level of the event.
    pub fn level(&self) -> FleetLevel {
        match self {
            Event::Intent(request) => request.intent.level(),
            Event::Observation { observation, .. } => observation.level(),
            Event::Fact { fact, .. } => fact.level(),
        }
    }
}

/// Kind of the event in a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// Intent: a request of an actor.
    Intent,
    /// Observation: a report of an executor.
    Observation,
    /// Fact: a conclusion of the decider.
    Fact,
}

/// Line whose frame has been read: the data is still text.
#[derive(Debug, Serialize, Deserialize)]
pub struct EventLine<'a> {
    /// Kind of the event.
    #[serde(rename = "k")]
    pub kind: EventKind,
    /// Type of the event with its version.
    #[serde(rename = "t", borrow)]
    pub type_name: std::borrow::Cow<'a, str>,
    /// Position of the cause; facts only.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Position>,
    /// Id of the intent; intents only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<IntentId>,
    /// Source of the intent; intents only.
    #[serde(rename = "src", default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceName>,
    /// Actor of an intent, or executor of an observation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Actor>,
    /// Actor that an intent from a topic claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Actor>,
    /// Sender's time; intents only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Expected version of the subject; intents only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expect: Option<ExpectedVersion>,
    /// W3C trace context; intents only.
    #[serde(rename = "tp", default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Extension attributes that this system does not know; intents only.
    #[serde(rename = "ext", default, skip_serializing_if = "ExtensionAttributes::is_empty")]
    pub extensions: ExtensionAttributes,
    /// Data of the event as JSON text.
    #[serde(rename = "d", borrow)]
    pub data: &'a RawValue,
}

/// Reason why a line cannot be read as an event.
#[derive(Debug, thiserror::Error)]
pub enum InvalidEvent {
    /// Line is not a frame of this format.
    #[error("cannot read event line")]
    Line(#[source] serde_json::Error),
    /// Type is unknown to this build: a newer build wrote the line.
    #[error("cannot read event of type {type_name:?}: written by a newer build")]
    UnknownType {
        /// Type with its version.
        type_name: String,
    },
    /// Data does not match the type.
    #[error("cannot read data of {type_name}")]
    Data {
        /// Type with its version.
        type_name: String,
        /// Error in the data.
        source: serde_json::Error,
    },
    /// Field that the kind requires is missing.
    #[error("cannot read event of type {type_name}: {missing} missing")]
    Missing {
        /// Type with its version.
        type_name: String,
        /// Name of the missing field.
        missing: &'static str,
    },
}

impl<'a> EventLine<'a> {
    /// Reads the frame of a line.
    pub fn read(line: &'a [u8]) -> Result<EventLine<'a>, InvalidEvent> {
        serde_json::from_slice(line).map_err(InvalidEvent::Line)
    }

    /// Reads the data of the line and returns the event.
    pub fn event(self) -> Result<Event, InvalidEvent> {
        let missing = |missing| InvalidEvent::Missing { type_name: self.type_name.to_string(), missing };
        let data = self.data.get();
        match self.kind {
            EventKind::Fact => {
                let fact = self.typed(Fact::read(&self.type_name, data))?;
                Ok(Event::Fact { cause: self.cause.ok_or_else(|| missing("cause"))?, fact })
            }
            EventKind::Observation => {
                let observation = self.typed(Observation::read(&self.type_name, data))?;
                let by = self.by.as_ref().and_then(|by| by.as_str().parse().ok());
                Ok(Event::Observation { by: by.ok_or_else(|| missing("executor"))?, observation })
            }
            EventKind::Intent => {
                let intent = self.typed(Intent::read(&self.type_name, data))?;
                Ok(Event::Intent(IntentRequest {
                    id: self.id.clone().ok_or_else(|| missing("id"))?,
                    source: self.source.clone().ok_or_else(|| missing("source"))?,
                    actor: self.by.clone().ok_or_else(|| missing("actor"))?,
                    claim: self.claim.clone(),
                    time: self.at,
                    expect: self.expect,
                    traceparent: self.traceparent.clone(),
                    extensions: self.extensions.clone(),
                    intent,
                }))
            }
        }
    }

    fn typed<T>(&self, read: Option<Result<T, serde_json::Error>>) -> Result<T, InvalidEvent> {
        let type_name = || self.type_name.to_string();
        read.ok_or_else(|| InvalidEvent::UnknownType { type_name: type_name() })?
            .map_err(|source| InvalidEvent::Data { type_name: type_name(), source })
    }
}

/// Event of a line, read as far as the state depends on it.
#[derive(Clone, PartialEq, Debug)]
#[expect(clippy::large_enum_variant, reason = "a fact is taken as soon as it is read")]
pub enum FoldableEvent {
    /// Fact: changes the state.
    Fact(Fact),
    /// Intent or observation of this known type: changes the state only through facts.
    NoChange(&'static str),
}

impl FoldableEvent {
    /// Reads a line. The form that [`Event::line`] writes is parsed in one pass; any other form is parsed in
    /// two, the frame and then the data.
    pub fn read(line: &[u8]) -> Result<FoldableEvent, InvalidEvent> {
        if let Some(event) = FoldableEvent::as_written(line) {
            return Ok(event);
        }
        let line = EventLine::read(line)?;
        let known = match line.kind {
            EventKind::Fact => {
                return Ok(FoldableEvent::Fact(line.typed(Fact::read(&line.type_name, line.data.get()))?));
            }
            EventKind::Intent => Intent::TYPES,
            EventKind::Observation => Observation::TYPES,
        };
        let known = known.iter().copied().find(|known| *known == line.type_name);
        let unknown = || InvalidEvent::UnknownType { type_name: line.type_name.to_string() };
        known.map(FoldableEvent::NoChange).ok_or_else(unknown)
    }

    /// Reads kind, type and data by their places in a line of [`Event::line`]; `None` if the line differs in
    /// any way.
    fn as_written(line: &[u8]) -> Option<FoldableEvent> {
        fn word(text: &str) -> Option<(&str, &str)> {
            text.split_at_checked(text.find('"')?)
        }
        let text = std::str::from_utf8(line).ok()?;
        let (kind, rest) = word(text.strip_prefix(r#"{"k":""#)?)?;
        let (type_name, rest) = word(rest.strip_prefix(r#"","t":""#)?)?;
        let known = match kind {
            "fact" => {
                let (cause, rest) = rest.strip_prefix(r#"","c":"#)?.split_once(',')?;
                // JSON's numbers only: `parse` also accepts `+17` and `017`.
                let is_json = cause.bytes().all(|byte| byte.is_ascii_digit())
                    && (cause == "0" || !cause.starts_with('0'));
                cause.parse::<u64>().ok().filter(|_| is_json)?;
                let data = rest.strip_prefix(r#""d":"#)?.strip_suffix('}')?;
                return Fact::read(type_name, data)?.ok().map(FoldableEvent::Fact);
            }
            "intent" => Intent::TYPES,
            "observation" => Observation::TYPES,
            _ => return None,
        };
        known.iter().copied().find(|known| *known == type_name).map(FoldableEvent::NoChange)
    }
}

impl Event {
    /// Reads an event from a line.
    pub fn read(line: &[u8]) -> Result<Event, InvalidEvent> {
        EventLine::read(line)?.event()
    }

    /// Line of the event, without line feed.
    pub fn line(&self) -> Vec<u8> {
        let json = self.data_json();
        let data = serde_json::from_str::<&RawValue>(&json).expect("the data is JSON");
        let mut line = EventLine {
            kind: self.kind(),
            type_name: self.type_name().into(),
            cause: None,
            id: None,
            source: None,
            by: None,
            claim: None,
            at: None,
            expect: None,
            traceparent: None,
            extensions: ExtensionAttributes::default(),
            data,
        };
        match self {
            Event::Fact { cause, .. } => line.cause = Some(*cause),
            Event::Observation { by, .. } => {
                line.by = Some(by.as_str().parse().expect("an executor's name is printable"));
            }
            Event::Intent(request) => {
                line.id = Some(request.id.clone());
                line.source = Some(request.source.clone());
                line.by = Some(request.actor.clone());
                line.claim.clone_from(&request.claim);
                line.at = request.time;
                line.expect = request.expect;
                line.traceparent.clone_from(&request.traceparent);
                line.extensions.clone_from(&request.extensions);
            }
        }
        serde_json::to_vec(&line).expect("a line has string keys and no failing parts")
    }

    /// Kind of the event.
    pub const fn kind(&self) -> EventKind {
        match self {
            Event::Intent(_) => EventKind::Intent,
            Event::Observation { .. } => EventKind::Observation,
            Event::Fact { .. } => EventKind::Fact,
        }
    }

    /// Type of the event with its version.
    pub fn type_name(&self) -> &'static str {
        match self {
            Event::Intent(request) => request.intent.type_name(),
            Event::Observation { observation, .. } => observation.type_name(),
            Event::Fact { fact, .. } => fact.type_name(),
        }
    }

    /// Data of the event as compact JSON.
    pub fn data_json(&self) -> String {
        match self {
            Event::Intent(request) => request.intent.data_json(),
            Event::Observation { observation, .. } => observation.data_json(),
            Event::Fact { fact, .. } => fact.data_json(),
        }
    }

    /// Entities that the event issues and is about, the issued one first. `lineage` and `position` are those of the event.
    pub fn all_subjects(&self, lineage: Lineage, position: Position) -> impl Iterator<Item = Subject> {
        let issued = match self {
            Event::Fact { fact, .. } => fact.issues(lineage, position),
            Event::Intent(_) | Event::Observation { .. } => None,
        };
        issued.into_iter().chain(self.subjects())
    }

    /// Entities that the event is about, main entity first, without the entity that it issues.
    pub fn subjects(&self) -> Vec<Subject> {
        match self {
            Event::Intent(request) => request.intent.subject().into_iter().collect(),
            Event::Observation { observation, .. } => vec![observation.subject()],
            Event::Fact { fact, .. } => fact.subjects(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::ClusterDeleted;

    #[test]
    fn a_line_is_parsed_to_its_event() {
        let fact = Event::Fact {
            cause: Position::new(17),
            fact: ClusterDeleted { name: "local".parse().expect("a name") }.into(),
        };
        assert_eq!(
            String::from_utf8(fact.line()).expect("text"),
            r#"{"k":"fact","t":"cluster.deleted.v1","c":17,"d":{"name":"local"}}"#
        );
        assert_eq!(Event::read(&fact.line()).expect("a line"), fact);
    }

    #[test]
    fn an_unknown_type_is_distinguished_from_damage() {
        let line = br#"{"k":"fact","t":"moon.landed.v1","c":1,"d":{}}"#;
        assert!(matches!(Event::read(line), Err(InvalidEvent::UnknownType { .. })));
        let line = br#"{"k":"fact","t":"cluster.deleted.v1","c":1,"d":{}}"#;
        assert!(matches!(Event::read(line), Err(InvalidEvent::Data { .. })));
        let line = br#"{"k":"fact","t":"cluster.deleted.v1","d":{"name":"local"}}"#;
        assert!(matches!(Event::read(line), Err(InvalidEvent::Missing { missing: "cause", .. })));
        assert!(matches!(Event::read(b"x"), Err(InvalidEvent::Line(_))));
    }

    #[test]
    fn the_meaning_of_a_line_does_not_depend_on_how_it_is_written() {
        let deleted = FoldableEvent::Fact(ClusterDeleted { name: "local".parse().expect("a name") }.into());
        let facts = [
            r#"{"k":"fact","t":"cluster.deleted.v1","c":17,"d":{"name":"local"}}"#,
            r#"{"k":"fact","t":"cluster.deleted.v1","c":17,"d":{"name":"local"},"new":{"a":"}"}}"#,
            r#"{"t":"cluster.deleted.v1","k":"fact","d":{"name":"local"},"c":17}"#,
            r#"{ "k": "fact", "t": "cluster.deleted.v1", "c": 17, "d": {"name": "local"} }"#,
            r#"{"k":"fact","t":"cluster\u002edeleted.v1","c":17,"d":{"name":"local"}}"#,
        ];
        for line in facts {
            assert_eq!(FoldableEvent::read(line.as_bytes()).expect(line), deleted, "{line}");
        }
        let intent =
            r#"{"k":"intent","t":"cluster.delete.v1","id":"1","src":"a","by":"b","d":{"name":"local"}}"#;
        let of_intent = FoldableEvent::NoChange("cluster.delete.v1");
        assert_eq!(FoldableEvent::read(intent.as_bytes()).expect("an intent"), of_intent);
        let unknown = |line: &str| {
            matches!(FoldableEvent::read(line.as_bytes()), Err(InvalidEvent::UnknownType { .. }))
        };
        assert!(unknown(r#"{"k":"fact","t":"moon.landed.v1","c":1,"d":{}}"#));
        assert!(unknown(r#"{"k":"intent","t":"moon.land.v1","d":{}}"#));
        assert!(unknown(r#"{"k":"observation","t":"cluster.deleted.v1","d":{}}"#));
        let bad = FoldableEvent::read(br#"{"k":"fact","t":"cluster.deleted.v1","c":17,"d":{"name":7}}"#);
        assert!(matches!(bad, Err(InvalidEvent::Data { .. })), "{bad:?}");
        for cause in ["+17", "017", "00", "", "-1", "1.0"] {
            let line =
                format!(r#"{{"k":"fact","t":"cluster.deleted.v1","c":{cause},"d":{{"name":"local"}}}}"#);
            assert!(matches!(FoldableEvent::read(line.as_bytes()), Err(InvalidEvent::Line(_))), "{line}");
            assert!(matches!(Event::read(line.as_bytes()), Err(InvalidEvent::Line(_))), "{line}");
        }
        assert!(matches!(
            FoldableEvent::read(br#"{"k":"fact","t":"cluster.deleted.v1","c":17"#),
            Err(InvalidEvent::Line(_))
        ));
    }
}
