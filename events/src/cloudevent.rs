//! CloudEvents 1.0: the form of events for clients, and of requests from clients.
//!
//! A record stores less than a CloudEvent; the rest follows from its header and the event's place:
//!
//! | attribute | of an event |
//! |---|---|
//! | `id`, `sequence` | the position; as 20 digits, so that text sorts as numbers do |
//! | `lineage` | that of the record: after an accepted loss, the same positions occur again under another lineage |
//! | `source` | `/lineages/{lineage}/fleets/{fleet}`: with the `id`, unique among all installations |
//! | `type` | `dev.chancery.` and the stored type |
//! | `dataschema` | `chancery:/v1/schemas/` and the stored type: an absolute URI, whose path every server serves |
//! | `subject`, `partitionkey` | the entity that the event issues, else the first that it is about |
//! | `subjects` | all of them, comma-separated, if there are several |
//! | `time` | the record's |
//! | `kind` | `intent`, `observation` or `fact` |
//! | `causationid` | of a fact: the position of its cause |
//! | `actor` | of an intent its actor, of an observation its executor |
//! | `claimedactor` | of an intent from a topic: the actor that it claims |
//! | `intentid`, `intentsource`, `intenttime`, `expectedversion` | of an intent, as received |
//! | `traceparent` | of an intent, as received, and of each fact that the intent causes in its record |
//! | other extension attributes | of an intent, as received |
//!
//! A CloudEvent from a client requests the intent of its type: see [`CloudEventAttributes`]. Extension attributes that
//! this system does not know are recorded with the intent. Other names that start with `expect` are refused, because a
//! misspelled `expectedversion` would silently drop a condition.
//!
//! Source: CloudEvents 1.0.2, its JSON format, HTTP binding, and its partitioning, sequence and distributed
//! tracing extensions.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::event::{Event, EventKind, EventLine, InvalidEvent};
use crate::expected_version::ExpectedVersion;
use crate::extension::ExtensionAttributes;
use crate::id::{Lineage, Position};
use crate::intent::{Intent, IntentRequest};
use crate::name::{Actor, IntentId, SourceName};
use crate::record::{Record, RecordHeader};
use crate::subject::Subject;
use crate::time::Time;

/// Version of the specification.
pub const SPEC_VERSION: &str = "1.0";
/// Prefix of every event type of this system.
pub const TYPE_PREFIX: &str = "dev.chancery.";

/// Attributes of a rendered event that filters use.
#[derive(Clone, PartialEq, Debug)]
pub struct FilterableEvent {
    /// Kind of the event.
    pub kind: EventKind,
    /// Type of the event with its version, as stored.
    pub type_name: Cow<'static, str>,
    /// Subjects: the entity that the event issues, then all other entities that it is about.
    pub subjects: Vec<Subject>,
}

/// CloudEvent to serialize. The order of the fields is the order of the attributes.
#[derive(Serialize)]
struct CloudEventJson<'a> {
    specversion: &'static str,
    #[serde(serialize_with = "text")]
    id: Position,
    source: String,
    #[serde(rename = "type", serialize_with = "text")]
    type_name: fmt::Arguments<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a Subject>,
    #[serde(serialize_with = "text")]
    time: Time,
    datacontenttype: &'static str,
    #[serde(serialize_with = "text")]
    dataschema: fmt::Arguments<'a>,
    #[serde(serialize_with = "text")]
    sequence: fmt::Arguments<'a>,
    lineage: Lineage,
    #[serde(skip_serializing_if = "Option::is_none")]
    partitionkey: Option<&'a Subject>,
    kind: EventKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    subjects: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    causationid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<&'a Actor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claimedactor: Option<&'a Actor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    intentid: Option<&'a IntentId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    intentsource: Option<&'a SourceName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    intenttime: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expectedversion: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(flatten)]
    extensions: &'a ExtensionAttributes,
    data: &'a RawValue,
}

fn text<T: fmt::Display, S: serde::Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

/// Returns the `source` of the events of a fleet.
pub fn source(lineage: Lineage, fleet: &str) -> String {
    format!("/lineages/{lineage}/fleets/{fleet}")
}

/// Returns the fleet that a `source` names.
pub fn fleet_of(source: &str) -> Option<&str> {
    let (_, fleet) = source.strip_prefix("/lineages/")?.split_once("/fleets/")?;
    Some(fleet)
}

/// Renders the events of one record as CloudEvents.
pub struct RecordRenderer<'a> {
    header: &'a RecordHeader,
    /// Trace contexts of the intents of the record.
    traces: BTreeMap<Position, String>,
}

impl<'a> RecordRenderer<'a> {
    /// Returns a renderer of the events of a record.
    pub fn of(record: &'a Record) -> RecordRenderer<'a> {
        RecordRenderer::new(record.header(), record.events())
    }

    fn new<'b>(
        header: &'a RecordHeader,
        events: impl Iterator<Item = (Position, &'b [u8])>,
    ) -> RecordRenderer<'a> {
        // Lines start this way; other lines need not be parsed.
        let intents = events.filter(|(_, line)| line.starts_with(br#"{"k":"intent""#));
        let traced = |(position, line)| Some((position, EventLine::read(line).ok()?.traceparent?));
        RecordRenderer { header, traces: intents.filter_map(traced).collect() }
    }

    /// Appends the event as one JSON object without line feeds, and returns the attributes for filters.
    ///
    /// An event of a type that this build does not know is rendered as stored, without subjects, so that readers
    /// of events miss nothing. Fails only if the line is not an event.
    pub fn render(
        &self,
        position: Position,
        line: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<FilterableEvent, InvalidEvent> {
        let (header, frame) = (self.header, EventLine::read(line)?);
        let (type_name, subjects) = match Event::read(line) {
            Ok(event) => {
                (Cow::Borrowed(event.type_name()), event.all_subjects(header.lineage, position).collect())
            }
            Err(InvalidEvent::UnknownType { type_name }) => (Cow::Owned(type_name), Vec::new()),
            Err(error) => return Err(error),
        };
        let several = subjects.len() > 1;
        let joined = || subjects.iter().map(Subject::to_string).collect::<Vec<_>>().join(",");
        let of_cause = || self.traces.get(&frame.cause?).map(String::as_str);
        let shown = CloudEventJson {
            specversion: SPEC_VERSION,
            id: position,
            source: source(header.lineage, &header.fleet),
            type_name: format_args!("{TYPE_PREFIX}{type_name}"),
            subject: subjects.first(),
            time: header.time,
            datacontenttype: "application/json",
            dataschema: format_args!("chancery:/v1/schemas/{type_name}"),
            sequence: format_args!("{:020}", position.get()),
            lineage: header.lineage,
            partitionkey: subjects.first(),
            kind: frame.kind,
            subjects: several.then(joined),
            causationid: frame.cause.map(|cause| cause.to_string()),
            actor: frame.by.as_ref(),
            claimedactor: frame.claim.as_ref(),
            intentid: frame.id.as_ref(),
            intentsource: frame.source.as_ref(),
            intenttime: frame.at.map(|at| at.to_string()),
            expectedversion: frame.expect.map(|version| version.to_string()),
            traceparent: frame.traceparent.as_deref().or_else(of_cause),
            extensions: &frame.extensions,
            data: frame.data,
        };
        serde_json::to_writer(&mut *out, &shown).map_err(InvalidEvent::Line)?;
        Ok(FilterableEvent { kind: frame.kind, type_name, subjects })
    }
}

/// Attribute that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid attribute {name:?}: {reason}")]
pub struct InvalidAttribute {
    /// Name of the attribute.
    pub name: String,
    /// Rule that the attribute breaks.
    pub reason: String,
}

/// Reason why a text is not a CloudEvent in structured form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCloudEvent {
    /// The text is not a JSON object.
    #[error("invalid CloudEvent: must be an object with the attributes and data")]
    NotAnObject,
    /// An attribute is invalid.
    #[error(transparent)]
    Attribute(#[from] InvalidAttribute),
}

/// Attributes of a CloudEvent that requests an intent, from members of a JSON object or from headers. Each
/// may be given once.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CloudEventAttributes {
    specversion: Option<()>,
    id: Option<IntentId>,
    source: Option<SourceName>,
    intent_type: Option<&'static str>,
    time: Option<Time>,
    actor: Option<Actor>,
    expectedversion: Option<ExpectedVersion>,
    traceparent: Option<String>,
    subject: Option<Subject>,
    content_type: Option<()>,
    extensions: ExtensionAttributes,
}

impl CloudEventAttributes {
    /// Attributes that are accepted and ignored: this system sets them on its own events, which a program may
    /// forward.
    pub const IGNORED: &[&str] = &[
        "dataschema",
        "sequence",
        "lineage",
        "partitionkey",
        "causationid",
        "kind",
        "subjects",
        "claimedactor",
        "intentid",
        "intentsource",
        "intenttime",
        "recordhash",
    ];

    /// Attributes whose values are texts.
    const TEXT: &[&str] = &[
        "specversion",
        "id",
        "source",
        "type",
        "time",
        "actor",
        "traceparent",
        "subject",
        "datacontenttype",
    ];

    /// Sets an attribute.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), InvalidAttribute> {
        let bad = |reason: String| InvalidAttribute { name: name.chars().take(64).collect(), reason };
        let again = match name {
            "specversion" if value == SPEC_VERSION => self.specversion.replace(()).is_some(),
            "specversion" => return Err(bad(format!("must be {SPEC_VERSION:?}"))),
            "id" => put(&mut self.id, value).map_err(bad)?,
            "source" => put(&mut self.source, value).map_err(bad)?,
            "type" => self.intent_type.replace(intent_type(value).map_err(bad)?).is_some(),
            "time" => put(&mut self.time, value).map_err(bad)?,
            "actor" => put(&mut self.actor, value).map_err(bad)?,
            "expectedversion" => put(&mut self.expectedversion, value)
                .map_err(|reason| bad(format!("must be a version: {reason}")))?,
            "traceparent" => self.traceparent.replace(traceparent(value).map_err(bad)?).is_some(),
            "subject" => put(&mut self.subject, value).map_err(bad)?,
            "datacontenttype" if is_json(value) => self.content_type.replace(()).is_some(),
            "datacontenttype" => return Err(bad("must be application/json".into())),
            // A member of every event, which no attribute may have as its name.
            "data" => return Err(bad("must be the body of the event".into())),
            ignored if CloudEventAttributes::IGNORED.contains(&ignored) => false,
            condition if condition.starts_with("expect") => {
                return Err(bad("unknown, must be expectedversion".into()));
            }
            extension => self.extensions.add(extension, value).map_err(bad)?,
        };
        if again { Err(bad("must be given once".into())) } else { Ok(()) }
    }

    /// Reads attributes and data from members of one object in a text that [`crate::strict`] has checked.
    pub fn of_object(text: &str) -> Result<(CloudEventAttributes, Option<&RawValue>), InvalidCloudEvent> {
        // A name that is written with escapes cannot be borrowed, and is unknown.
        let members = serde_json::from_str::<BTreeMap<&str, &RawValue>>(text);
        let mut attributes = CloudEventAttributes::default();
        let mut data = None;
        for (name, value) in members.map_err(|_| InvalidCloudEvent::NotAnObject)? {
            if name == "data" {
                data = Some(value);
                continue;
            }
            let given = value.get();
            // Of the attributes that this system reads, only a version is a number.
            let may_be_number = !CloudEventAttributes::TEXT.contains(&name);
            let plain = match given.as_bytes().first() {
                Some(b'"') => serde_json::from_str::<String>(given).ok(),
                Some(b'{' | b'[' | b'n') | None => None,
                Some(_) => may_be_number.then(|| given.to_owned()),
            };
            let wrong = || InvalidAttribute {
                name: name.chars().take(64).collect(),
                reason: if may_be_number { "must be text, a number, true or false" } else { "must be text" }
                    .into(),
            };
            attributes.set(name, &plain.ok_or_else(wrong)?)?;
        }
        Ok((attributes, data))
    }

    /// Type of the intent, as stored.
    pub fn intent_type(&self) -> Result<&'static str, InvalidAttribute> {
        self.intent_type.ok_or_else(|| missing("type"))
    }

    /// Expected version, if given.
    pub fn expect(&self) -> Option<ExpectedVersion> {
        self.expectedversion
    }

    /// Id of the intent, if given.
    pub fn id(&self) -> Option<&IntentId> {
        self.id.as_ref()
    }

    /// Data of the event, which is required.
    pub fn data(data: Option<&RawValue>) -> Result<&str, InvalidAttribute> {
        data.map(RawValue::get).ok_or_else(|| missing("data"))
    }

    /// Returns the intent as a request by `actor`. An actor in the attributes is kept as a claim.
    pub fn request_of(mut self, intent: Intent, actor: &Actor) -> Result<IntentRequest, InvalidAttribute> {
        let claim = self.actor.take();
        Ok(IntentRequest { claim, ..self.request(intent, actor)? })
    }

    /// Returns the intent as a request by the actor in the attributes, or else by `actor`.
    pub fn request(self, intent: Intent, actor: &Actor) -> Result<IntentRequest, InvalidAttribute> {
        self.specversion.ok_or_else(|| missing("specversion"))?;
        if self.subject.is_some() && self.subject != intent.subject() {
            let reason = match intent.subject() {
                Some(subject) => format!("data is about {subject}"),
                None => "data is about no entity".into(),
            };
            return Err(InvalidAttribute { name: "subject".into(), reason });
        }
        Ok(IntentRequest {
            id: self.id.ok_or_else(|| missing("id"))?,
            source: self.source.ok_or_else(|| missing("source"))?,
            actor: self.actor.unwrap_or_else(|| actor.clone()),
            claim: None,
            time: self.time,
            expect: self.expectedversion,
            traceparent: self.traceparent,
            extensions: self.extensions,
            intent,
        })
    }
}

fn missing(name: &str) -> InvalidAttribute {
    InvalidAttribute { name: name.into(), reason: "missing".into() }
}

/// Sets a value, and returns whether a value was set before.
fn put<T: FromStr<Err: fmt::Display>>(place: &mut Option<T>, value: &str) -> Result<bool, String> {
    let value = value.parse().map_err(|error: T::Err| error.to_string())?;
    Ok(place.replace(value).is_some())
}

fn intent_type(value: &str) -> Result<&'static str, String> {
    let stored = value.strip_prefix(TYPE_PREFIX).ok_or_else(|| {
        let shown: String = value.chars().take(64).collect();
        format!("{shown:?} must start with {TYPE_PREFIX:?}, as in \"dev.chancery.plan.apply.v1\"")
    })?;
    Intent::TYPES.iter().copied().find(|known| *known == stored).ok_or_else(|| {
        let known: Vec<_> = Intent::TYPES.iter().map(|known| format!("{TYPE_PREFIX}{known}")).collect();
        format!("must be one of {}", known.join(", "))
    })
}

/// Whether a media type is JSON in UTF-8.
pub fn is_json(media_type: &str) -> bool {
    let mut parts = media_type.split(';').map(str::trim);
    let is_utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    };
    parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) && parts.all(is_utf8)
}

/// Checks W3C trace context: `00-{32 hex}-{16 hex}-{2 hex}`, lower case; later versions may have more parts.
pub fn traceparent(value: &str) -> Result<String, String> {
    let wanted = || "must be as in 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned();
    let is_hex = |part: &str| part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let lengths = [2, 32, 16, 2];
    let parts: Vec<_> = value.split('-').collect();
    let fits = parts.len() >= lengths.len()
        && (parts.len() == lengths.len() || parts[0] != "00")
        && parts.iter().zip(lengths).all(|(part, length)| part.len() == length && is_hex(part))
        && parts[0] != "ff"
        && parts[1].bytes().any(|b| b != b'0')
        && parts[2].bytes().any(|b| b != b'0')
        && value.len() <= 128;
    if fits { Ok(value.to_owned()) } else { Err(wanted()) }
}

#[cfg(test)]
mod tests;
