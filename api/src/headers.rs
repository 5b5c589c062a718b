//! Headers with attributes of an intent.

use axum::http::{HeaderMap, HeaderName, header};
use chancery_events::cloud;
use chancery_events::name::{Actor, IntentId, Source};
use chancery_events::time::Time;

use super::problem::{In, Problem, UNSUPPORTED_MEDIA_TYPE};

/// Attributes from the headers of an intent.
#[derive(Debug)]
pub(super) struct Meta {
    pub(super) id: Option<IntentId>,
    pub(super) source: Option<Source>,
    pub(super) actor: Actor,
    pub(super) time: Option<Time>,
    pub(super) expect: Option<u64>,
    pub(super) traceparent: Option<String>,
}

/// Returns a header as text; an error if it occurs several times.
pub(super) fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Problem> {
    let mut all = headers.get_all(name).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(Problem::parameter(In::Header, name.as_str(), "write it once"));
    }
    let text = value
        .to_str()
        .map_err(|_| Problem::parameter(In::Header, name.as_str(), "write it in visible ASCII"))?;
    Ok(Some(text.trim()))
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    headers: &HeaderMap,
    name: &'static str,
) -> Result<Option<T>, Problem> {
    let read = |text: &str| {
        text.parse().map_err(|error: T::Err| Problem::parameter(In::Header, name, error.to_string()))
    };
    one(headers, &HeaderName::from_static(name))?.map(read).transpose()
}

impl Meta {
    /// Reads the headers of a write.
    pub(super) fn read(headers: &HeaderMap) -> Result<Meta, Problem> {
        let traceparent = one(headers, &HeaderName::from_static("traceparent"))?;
        let traceparent = traceparent.map(cloud::traceparent).transpose();
        let key = one(headers, &HeaderName::from_static("idempotency-key"))?.map(|text| {
            // The draft of the header's standard writes the key as a quoted string; most clients do not.
            let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
            bare.parse().map_err(|error: chancery_events::name::BadName| {
                Problem::parameter(In::Header, "idempotency-key", error.to_string())
            })
        });
        Ok(Meta {
            id: key.transpose()?,
            source: parsed(headers, "chancery-source")?,
            actor: parsed(headers, "chancery-actor")?.unwrap_or_else(|| "local".parse().expect("a name")),
            time: parsed(headers, "chancery-time")?,
            expect: if_match(headers)?,
            traceparent: traceparent.map_err(|what| Problem::parameter(In::Header, "traceparent", what))?,
        })
    }
}

/// Returns the version in `If-Match`.
fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let read = |text: &str| {
        let version = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let version = version.filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
        let wrong = || Problem::parameter(In::Header, "if-match", "write one version in quotes, as in \"3\"");
        version.and_then(|text| text.parse().ok()).ok_or_else(wrong)
    };
    one(headers, &header::IF_MATCH)?.map(read).transpose()
}

/// Format of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Media {
    /// Single JSON value, `application/json`.
    Json,
    /// Structured CloudEvent, `application/cloudevents+json`.
    CloudEvent,
    /// Batch of CloudEvents, `application/cloudevents-batch+json`.
    Batch,
}

/// Returns the format of the body by its media type.
pub(super) fn media(headers: &HeaderMap, allowed: &[Media]) -> Result<Media, Problem> {
    let text = one(headers, &header::CONTENT_TYPE)?.unwrap_or_default();
    let (essence, parameters) = text.split_once(';').map_or((text, ""), |(essence, rest)| (essence, rest));
    let found = match essence.trim().to_ascii_lowercase().as_str() {
        "application/json" => Some(Media::Json),
        "application/cloudevents+json" => Some(Media::CloudEvent),
        "application/cloudevents-batch+json" => Some(Media::Batch),
        _ => None,
    };
    let is_utf8 = parameters.is_empty() || cloud::is_json(&format!("application/json;{parameters}"));
    match found.filter(|media| allowed.contains(media) && is_utf8) {
        Some(media) => Ok(media),
        None => Err(unsupported(text, allowed)),
    }
}

/// Returns the problem of a media type that is not allowed.
fn unsupported(found: &str, allowed: &[Media]) -> Problem {
    let allowed: Vec<_> = allowed
        .iter()
        .map(|media| match media {
            Media::Json => "application/json",
            Media::CloudEvent => "application/cloudevents+json",
            Media::Batch => "application/cloudevents-batch+json",
        })
        .collect();
    let found: String = found.chars().take(100).collect();
    let detail = format!("read the body: it is {found:?}; taken in UTF-8 is {}", allowed.join(", "));
    Problem::new(UNSUPPORTED_MEDIA_TYPE, detail).at(In::Header, "/content-type", "it is not taken here")
}
