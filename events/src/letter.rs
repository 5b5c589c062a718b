//! Letters: what others put into an inbox topic, and the intents that come of it.
//!
//! A letter is one record of the topic, a CloudEvent in one of these forms:
//!
//! | form | told by | attributes | data |
//! |---|---|---|---|
//! | structured | `content-type: application/cloudevents+json`, or JSON or nothing, without `ce_` headers | members of the object | its member `data` |
//! | binary | `ce_` headers, with `content-type: application/json` or none | headers, in UTF-8; `traceparent` also without `ce_` | the value |
//!
//! Names and rules of attributes are those of [`CloudEventAttributes`], as over HTTP. Other headers are not looked at. What a
//! letter says of its actor is a claim: it is kept beside the intent, and the intent is that of the topic's
//! [`InboxBinding`], which also says what may be asked for.
//!
//! Source: CloudEvents 1.0.2, its Kafka protocol binding and JSON format.

use std::fmt;
use std::str::FromStr;

use crate::cloud::{CloudEventAttributes, InvalidAttribute, InvalidCloudEvent, TYPE_PREFIX, is_json};
use crate::intent::{Intent, IntentRequest};
use crate::name::Actor;
use crate::record::RecordHash;
use crate::refusal::{Refusal, RefusalCode};
use crate::strict::{self, InvalidJson};

/// A letter has at most so many bytes, in value and headers: less than half a commit, so that its intent fits into one
/// with all that it brings about.
pub const LARGEST: usize = 256 << 10;
/// Its JSON is nested at most so deep.
const DEPTH: usize = 64;
/// What is said of what is wrong with it has at most so many characters: some of it is the letter's own text.
const SAID: usize = 500;

/// One record of an inbox topic.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct InboxMessage {
    /// Its place. Offsets rise, and need not be dense.
    pub offset: u64,
    /// Its headers, in their order. One without a value has an empty one.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The index, from zero, of its first header whose name is not UTF-8. Such a header is not among `headers`.
    pub unreadable_header: Option<usize>,
    /// Its value, if it has one.
    pub value: Option<Vec<u8>>,
    /// What is known of one that has more than [`LARGEST`] bytes and was not copied: it has neither headers nor value here.
    pub oversized: Option<OversizedLetter>,
}

/// A letter that is too large to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OversizedLetter {
    /// How many bytes it has, in value and headers.
    pub bytes: usize,
    /// The SHA-256 of its value, if it has one.
    pub digest: Option<RecordHash>,
}

/// How a letter says what it says.
enum MessageForm {
    Structured,
    Binary,
}

impl InboxMessage {
    /// How many bytes it has, in value and headers.
    pub fn bytes(&self) -> usize {
        if let Some(oversized) = &self.oversized {
            return oversized.bytes;
        }
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len());
        headers.sum::<usize>() + self.value.as_ref().map_or(0, Vec::len)
    }

    /// The SHA-256 of its value.
    pub fn digest(&self) -> Option<RecordHash> {
        match &self.oversized {
            Some(oversized) => oversized.digest,
            None => self.value.as_deref().map(RecordHash::of),
        }
    }

    /// What it asks for, on behalf of `actor`, or why that cannot be told.
    pub fn request(&self, actor: &Actor) -> Result<IntentRequest, Refusal> {
        let bytes = self.bytes();
        if bytes > LARGEST {
            let detail = format!("read the record: it has {bytes} bytes, and at most {LARGEST} are taken");
            return Err(Refusal::new(RefusalCode::TooLarge, detail));
        }
        if let Some(index) = self.unreadable_header {
            return Err(invalid(format!(
                "read the name of header {index}, counted from 0: write it in UTF-8"
            )));
        }
        let value = self.value.as_deref().ok_or_else(|| invalid("read the record: it has no value"))?;
        let form = self.form()?;
        let text = strict::check(value, DEPTH).map_err(|fault| {
            let why = match &fault {
                InvalidJson::Json { source, .. } => format!(": {source}"),
                InvalidJson::Utf8 { .. } | InvalidJson::Empty => String::new(),
            };
            invalid(format!("read the value: {fault}{why}"))
        })?;
        let (attributes, data) = match form {
            MessageForm::Binary => (self.attributes()?, text),
            MessageForm::Structured => {
                let (attributes, data) =
                    CloudEventAttributes::of_object(text).map_err(|fault| match fault {
                        InvalidCloudEvent::Attribute(bad) => wrong(&bad),
                        InvalidCloudEvent::NotAnObject => invalid(fault.to_string()),
                    })?;
                (attributes, CloudEventAttributes::data(data).map_err(|bad| wrong(&bad))?)
            }
        };
        let intent = intent(attributes.intent_type().map_err(|bad| wrong(&bad))?, data)?;
        attributes.request_of(intent, actor).map_err(|bad| wrong(&bad))
    }

    fn form(&self) -> Result<MessageForm, Refusal> {
        let is_binary = self.headers.iter().any(|(name, _)| name.starts_with("ce_"));
        let Some(media) = self.header("content-type")? else {
            return Ok(if is_binary { MessageForm::Binary } else { MessageForm::Structured });
        };
        let (essence, parameters) = media.split_once(';').unwrap_or((media, ""));
        // Whoever says that the whole event is in the value may say the attributes in headers too; they have no say.
        let essence = essence.trim();
        let plain = if parameters.is_empty() { String::new() } else { format!(";{parameters}") };
        let is_utf8 = is_json(&format!("application/json{plain}"));
        match essence.to_ascii_lowercase().as_str() {
            "application/cloudevents+json" if is_utf8 => Ok(MessageForm::Structured),
            "application/json" if is_utf8 && is_binary => Ok(MessageForm::Binary),
            "application/json" if is_utf8 => Ok(MessageForm::Structured),
            _ => Err(refused(
                RefusalCode::Unsupported,
                format!(
                    "read the header content-type: it is {media:?}; taken in UTF-8 is \
                     application/cloudevents+json, and application/json with ce_ headers"
                ),
            )),
        }
    }

    /// The header of that name, given at most once.
    fn header(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let mut all = self.headers.iter().filter(|(given, _)| given.eq_ignore_ascii_case(name));
        let Some((_, value)) = all.next() else { return Ok(None) };
        if all.next().is_some() {
            return Err(invalid(format!("read the header {name}: write it once")));
        }
        utf8(name, value).map(Some)
    }

    fn attributes(&self) -> Result<CloudEventAttributes, Refusal> {
        let mut attributes = CloudEventAttributes::default();
        for (header, value) in &self.headers {
            let Some(name) = header.strip_prefix("ce_") else { continue };
            let set = attributes.set(name, utf8(header, value)?);
            set.map_err(|bad| wrong(&InvalidAttribute { name: format!("ce_{}", bad.name), ..bad }))?;
        }
        let traced = self.headers.iter().any(|(name, _)| name == "ce_traceparent");
        if let Some(trace) = self.header("traceparent")?.filter(|_| !traced) {
            attributes.set("traceparent", trace).map_err(|bad| wrong(&bad))?;
        }
        Ok(attributes)
    }
}

fn utf8<'a>(header: &str, value: &'a [u8]) -> Result<&'a str, Refusal> {
    str::from_utf8(value).map_err(|_| invalid(format!("read the header {header}: write it in UTF-8")))
}

fn intent(type_name: &str, data: &str) -> Result<Intent, Refusal> {
    // Derived readers take an array for an object, member by member; nobody means that.
    if !data.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{') {
        return Err(invalid("read the data: write a JSON object"));
    }
    let read = Intent::read(type_name, data);
    let read =
        read.ok_or_else(|| refused(RefusalCode::Unsupported, format!("no intent has the type {type_name}")))?;
    read.map_err(|error| invalid(format!("read the data of {type_name}: {error}")))
}

fn wrong(bad: &InvalidAttribute) -> Refusal {
    // An intent of a type that only a newer build knows would be right there.
    let is_type = matches!(bad.name.as_str(), "type" | "ce_type") && bad.reason != "it is missing";
    refused(if is_type { RefusalCode::Unsupported } else { RefusalCode::Invalid }, bad.to_string())
}

fn invalid(detail: impl Into<String>) -> Refusal {
    refused(RefusalCode::Invalid, detail)
}

fn refused(code: RefusalCode, detail: impl Into<String>) -> Refusal {
    let detail: String = detail.into();
    Refusal::new(code, detail.chars().take(SAID).collect::<String>())
}

/// Whose letters those of a topic are, and what they may ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxBinding {
    /// Who asks, whatever a letter says.
    pub actor: Actor,
    /// For what.
    pub scope: AllowedIntents,
}

impl InboxBinding {
    /// Whether letters may ask for this.
    pub fn check(&self, intent: &Intent) -> Result<(), Refusal> {
        if is_approval(intent.type_name()) {
            return Err(refused(
                RefusalCode::Denied,
                "approvals are not taken from a topic: approve over HTTP",
            ));
        }
        if self.scope.takes(intent.type_name()) {
            return Ok(());
        }
        let kind = kind(intent.type_name());
        Err(refused(
            RefusalCode::Denied,
            format!("{kind} is not in the scope of the topic, which is {}", self.scope),
        ))
    }
}

/// What may be asked for: one or more of `*`, `plan.*`, `deployment.create`, separated by commas. Approvals never are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllowedIntents(Vec<IntentPattern>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum IntentPattern {
    /// Every type but approvals.
    All,
    /// Every type of one kind of entity.
    Of(String),
    /// One type, in every version.
    One(String),
}

/// Text that is no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAllowedIntents {
    /// There is nothing in it.
    #[error("write the scope as types of intents separated by commas, as in plan.*,deployment.create, or *")]
    Empty,
    /// No type of intent is meant by it.
    #[error("read {pattern:?} in the scope: no intent has such a type; the types are {known}")]
    Unknown {
        /// What was written.
        pattern: String,
        /// What could have been.
        known: String,
    },
    /// It would let approvals in.
    #[error("read {pattern:?} in the scope: approvals are not taken from a topic")]
    Approval {
        /// What was written.
        pattern: String,
    },
}

/// A type without its version.
fn kind(type_name: &str) -> &str {
    type_name.rsplit_once('.').map_or(type_name, |(kind, _)| kind)
}

fn is_approval(type_name: &str) -> bool {
    let approvals = ["operation.approve", "operation.reject", "disruption.approve", "deployment.promote"];
    approvals.contains(&kind(type_name))
}

impl IntentPattern {
    fn takes(&self, type_name: &str) -> bool {
        match self {
            IntentPattern::All => true,
            IntentPattern::Of(entity) => kind(type_name).split_once('.').is_some_and(|(of, _)| of == entity),
            IntentPattern::One(one) => kind(type_name) == one,
        }
    }
}

impl AllowedIntents {
    fn takes(&self, type_name: &str) -> bool {
        !is_approval(type_name) && self.0.iter().any(|pattern| pattern.takes(type_name))
    }
}

impl FromStr for AllowedIntents {
    type Err = InvalidAllowedIntents;
    fn from_str(text: &str) -> Result<AllowedIntents, InvalidAllowedIntents> {
        let patterns = text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(|part| {
            let shown = || part.chars().take(100).collect::<String>();
            // Written as in a CloudEvent, it means the same.
            let bare = part.strip_prefix(TYPE_PREFIX).unwrap_or(part);
            let pattern = match bare.strip_suffix(".*") {
                _ if bare == "*" => return Ok(IntentPattern::All),
                Some(entity) => IntentPattern::Of(entity.to_owned()),
                None => IntentPattern::One(bare.to_owned()),
            };
            let mut meant = Intent::TYPES.iter().filter(|known| pattern.takes(known)).peekable();
            if meant.peek().is_none() {
                let known: Vec<_> = Intent::TYPES
                    .iter()
                    .filter(|known| !is_approval(known))
                    .map(|known| kind(known))
                    .collect();
                return Err(InvalidAllowedIntents::Unknown { pattern: shown(), known: known.join(", ") });
            }
            if meant.all(|known| is_approval(known)) {
                return Err(InvalidAllowedIntents::Approval { pattern: shown() });
            }
            Ok(pattern)
        });
        let patterns: Vec<_> = patterns.collect::<Result<_, _>>()?;
        if patterns.is_empty() { Err(InvalidAllowedIntents::Empty) } else { Ok(AllowedIntents(patterns)) }
    }
}

impl fmt::Display for AllowedIntents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pattern) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match pattern {
                IntentPattern::All => write!(f, "{comma}*")?,
                IntentPattern::Of(entity) => write!(f, "{comma}{entity}.*")?,
                IntentPattern::One(one) => write!(f, "{comma}{one}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
