//! Inbox messages: records of an inbox topic, and the intents that they request.
//!
//! An inbox message is one record of the topic, a CloudEvent in one of these forms:
//!
//! | form | identified by | attributes | data |
//! |---|---|---|---|
//! | structured | `content-type: application/cloudevents+json`, or JSON or none, without `ce_` headers | members of the object | its member `data` |
//! | binary | `ce_` headers, with `content-type: application/json` or none | headers, in UTF-8; `traceparent` also without `ce_` | the value |
//!
//! Names and rules of attributes are those of [`CloudEventAttributes`], as over HTTP. Other headers are
//! ignored. The actor that a message names is a claim, which is stored alongside the intent. The actor of the
//! intent is that of the topic's [`InboxBinding`], which also limits the types of intents.
//!
//! Source: CloudEvents 1.0.2, its Kafka protocol binding and JSON format.

use std::fmt;
use std::str::FromStr;

use crate::cloudevent::{CloudEventAttributes, InvalidAttribute, InvalidCloudEvent, TYPE_PREFIX, is_json};
use crate::intent::{Intent, IntentRequest};
use crate::name::Actor;
use crate::record::RecordHash;
use crate::refusal::{Refusal, RefusalCode};
use crate::strict::{self, InvalidJson};

/// Maximum size of an inbox message, in bytes of value and headers. It is less than half a commit, so that
/// the intent fits into a commit with all its consequences.
pub const LARGEST: usize = 256 << 10;
/// Maximum nesting depth of a message's JSON.
const DEPTH: usize = 64;
/// Maximum length of a refusal's detail, in characters: the detail may quote the message.
const SAID: usize = 500;

/// Inbox message: one record of an inbox topic.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct InboxMessage {
    /// Offset of the message. Offsets rise, and may have gaps.
    pub offset: u64,
    /// Headers in their order. A header without a value has an empty value.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Index, from 0, of the first header whose name is not UTF-8. Such a header is not in `headers`.
    pub unreadable_header: Option<usize>,
    /// Value of the message, if it has one.
    pub value: Option<Vec<u8>>,
    /// Size and digest of a message with more than [`LARGEST`] bytes, which is not copied: it has no headers
    /// and no value here.
    pub oversized: Option<OversizedMessage>,
}

/// Size and digest of an inbox message that is too large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OversizedMessage {
    /// Size of value and headers, in bytes.
    pub bytes: usize,
    /// SHA-256 of the value, if the message has one.
    pub digest: Option<RecordHash>,
}

/// Form of an inbox message.
enum MessageForm {
    Structured,
    Binary,
}

impl InboxMessage {
    /// Size of value and headers, in bytes.
    pub fn bytes(&self) -> usize {
        if let Some(oversized) = &self.oversized {
            return oversized.bytes;
        }
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len());
        headers.sum::<usize>() + self.value.as_ref().map_or(0, Vec::len)
    }

    /// SHA-256 of the value, if the message has one.
    pub fn digest(&self) -> Option<RecordHash> {
        match &self.oversized {
            Some(oversized) => oversized.digest,
            None => self.value.as_deref().map(RecordHash::of),
        }
    }

    /// Returns the intent that the message requests, on behalf of `actor`, or the refusal of an invalid
    /// message.
    pub fn request(&self, actor: &Actor) -> Result<IntentRequest, Refusal> {
        let bytes = self.bytes();
        if bytes > LARGEST {
            let detail = format!("cannot read inbox message: {bytes} bytes, at most {LARGEST} allowed");
            return Err(Refusal::new(RefusalCode::TooLarge, detail));
        }
        if let Some(index) = self.unreadable_header {
            return Err(invalid(format!("invalid name of header {index} (from 0): must be UTF-8")));
        }
        let value = self.value.as_deref().ok_or_else(|| invalid("cannot read inbox message: no value"))?;
        let form = self.form()?;
        let text = strict::check(value, DEPTH).map_err(|fault| {
            let why = match &fault {
                InvalidJson::Json { source, .. } => format!(": {source}"),
                InvalidJson::Utf8 { .. } | InvalidJson::Empty => String::new(),
            };
            invalid(format!("cannot read value: {fault}{why}"))
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
        // If the content type is structured, the attributes in the value count, and `ce_` headers are
        // ignored.
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
                    "invalid header content-type {media:?}: must be \
                     application/cloudevents+json, or application/json with ce_ headers, in UTF-8"
                ),
            )),
        }
    }

    /// Returns the header of that name; an error if it occurs several times.
    fn header(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let mut all = self.headers.iter().filter(|(given, _)| given.eq_ignore_ascii_case(name));
        let Some((_, value)) = all.next() else { return Ok(None) };
        if all.next().is_some() {
            return Err(invalid(format!("invalid header {name}: must be given once")));
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
    str::from_utf8(value).map_err(|_| invalid(format!("invalid header {header}: must be UTF-8")))
}

fn intent(type_name: &str, data: &str) -> Result<Intent, Refusal> {
    // Derived deserializers accept an array for an object, member by member; no client means that.
    if !data.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{') {
        return Err(invalid("invalid data: must be a JSON object"));
    }
    let read = Intent::read(type_name, data);
    let read = read.ok_or_else(|| {
        refused(RefusalCode::Unsupported, format!("cannot read data: no intent has the type {type_name}"))
    })?;
    read.map_err(|error| invalid(format!("cannot read data of {type_name}: {error}")))
}

fn wrong(bad: &InvalidAttribute) -> Refusal {
    // A newer build may know a type of intent that this build does not know.
    let is_type = matches!(bad.name.as_str(), "type" | "ce_type") && bad.reason != "missing";
    refused(if is_type { RefusalCode::Unsupported } else { RefusalCode::Invalid }, bad.to_string())
}

fn invalid(detail: impl Into<String>) -> Refusal {
    refused(RefusalCode::Invalid, detail)
}

fn refused(code: RefusalCode, detail: impl Into<String>) -> Refusal {
    let detail: String = detail.into();
    Refusal::new(code, detail.chars().take(SAID).collect::<String>())
}

/// Actor of a topic's inbox messages, and the intents that they may request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxBinding {
    /// Actor of the intents, whatever actor a message names.
    pub actor: Actor,
    /// Intents that messages may request.
    pub allowed_intents: AllowedIntents,
}

impl InboxBinding {
    /// Refuses an intent that messages must not request.
    pub fn check(&self, intent: &Intent) -> Result<(), Refusal> {
        if is_approval(intent.type_name()) {
            return Err(refused(
                RefusalCode::Denied,
                "cannot approve from a topic: approvals are accepted only over HTTP",
            ));
        }
        if self.allowed_intents.takes(intent.type_name()) {
            return Ok(());
        }
        let kind = kind(intent.type_name());
        Err(refused(
            RefusalCode::Denied,
            format!("cannot request {kind} from this topic: allowed intents are {}", self.allowed_intents),
        ))
    }
}

/// Allowed intents: patterns such as `*`, `plan.*` or `deployment.create`, separated by commas. Approvals are
/// never allowed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllowedIntents(Vec<IntentPattern>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum IntentPattern {
    /// Every type except approvals.
    All,
    /// Every type of one kind of entity, except approvals.
    Of(String),
    /// One type, in every version.
    One(String),
}

/// Reason why a text does not name allowed intents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAllowedIntents {
    /// The text has no pattern.
    #[error(
        "invalid allowed intents: must be intent types separated by commas, as in plan.*,deployment.create, or *"
    )]
    Empty,
    /// A pattern matches no type of intent.
    #[error("invalid intent type {pattern:?}: must be one of {known}")]
    Unknown {
        /// Pattern as written.
        pattern: String,
        /// Valid types, separated by commas.
        known: String,
    },
    /// A pattern would allow approvals.
    #[error("invalid intent type {pattern:?}: approvals are not accepted from a topic")]
    Approval {
        /// Pattern as written.
        pattern: String,
    },
}

/// Returns a type without its version.
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
            // The form of a CloudEvent's type has the same meaning.
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
