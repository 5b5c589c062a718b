//! Headers with attributes of an intent.

use std::collections::BTreeSet;

use axum::http::{HeaderMap, HeaderName, header};
use chancery_decider::UnchangedVerdict;
use chancery_events::cloudevent;
use chancery_events::expected_version::ExpectedVersion;
use chancery_events::name::{Actor, IntentId, SourceName};
use chancery_events::time::Time;

use super::entity_tag;
use super::problem::{self, PRECONDITION_FAILED, ProblemDetails, RequestPart, UNSUPPORTED_MEDIA_TYPE};

/// Attributes from the headers of an intent.
#[derive(Debug)]
pub(super) struct IntentHeaders {
    pub(super) id: Option<IntentId>,
    pub(super) source: Option<SourceName>,
    pub(super) actor: Option<Actor>,
    pub(super) time: Option<Time>,
    pub(super) condition: Option<WriteCondition>,
    pub(super) traceparent: Option<String>,
    /// Handling of a verdict that the intent changes nothing.
    pub(super) unchanged: UnchangedVerdict,
}

/// Returns a header as text; an error if it occurs several times.
pub(super) fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ProblemDetails> {
    let mut all = headers.get_all(name).iter();
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(ProblemDetails::parameter(RequestPart::Header, name.as_str(), "must be given once"));
    }
    let text = value.to_str().map_err(|_| {
        ProblemDetails::parameter(RequestPart::Header, name.as_str(), "must be visible ASCII")
    })?;
    Ok(Some(text.trim()))
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(
    headers: &HeaderMap,
    name: &'static str,
) -> Result<Option<T>, ProblemDetails> {
    let text = one(headers, &HeaderName::from_static(name))?;
    text.map(|text| problem::parsed(RequestPart::Header, name, text)).transpose()
}

impl IntentHeaders {
    /// Reads the headers of a write.
    pub(super) fn read(headers: &HeaderMap) -> Result<IntentHeaders, ProblemDetails> {
        let key = one(headers, &HeaderName::from_static("idempotency-key"))?.map(|text| {
            // The draft of the header's standard writes the key as a quoted string; most clients do not.
            let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
            problem::parsed(RequestPart::Header, "idempotency-key", bare)
        });
        Ok(IntentHeaders {
            id: key.transpose()?,
            source: parsed(headers, "chancery-source")?,
            actor: parsed(headers, "chancery-actor")?,
            time: parsed(headers, "chancery-time")?,
            condition: condition(headers)?,
            unchanged: unchanged(headers)?,
            traceparent: traceparent(headers),
        })
    }

    /// Returns the actor; `local` unless the headers have one.
    pub(super) fn actor_or_local(&self) -> Actor {
        self.actor.clone().unwrap_or_else(|| "local".parse().expect("a name"))
    }

    /// Returns the version that the condition expects.
    pub(super) fn expect(&self) -> Option<ExpectedVersion> {
        self.condition.as_ref().and_then(|condition| condition.expect)
    }

    /// Refuses a request whose condition cannot hold. Called after the body was read: an invalid request is reported as such.
    pub(super) fn check_condition(&self) -> Result<(), ProblemDetails> {
        if self.condition.as_ref().is_none_or(|condition| condition.expect.is_some()) {
            return Ok(());
        }
        let detail = "cannot write: no expected ETag can match: each is weak, or not of this server";
        Err(ProblemDetails::new(PRECONDITION_FAILED, detail))
    }
}

/// Condition of `If-Match` or `If-None-Match`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct WriteCondition {
    /// Name of the header.
    pub(super) header: &'static str,
    /// Expected version, which is recorded with the intent; `None` if the header has only tags that never match.
    pub(super) expect: Option<ExpectedVersion>,
    /// Identities of the tags, of which the entity must have one; empty if a tag is only a version.
    pub(super) identities: BTreeSet<String>,
}

/// Returns the trace context of a request. An invalid one is ignored, as the W3C recommendation demands: a program between client and
/// server may have written it.
pub(super) fn traceparent(headers: &HeaderMap) -> Option<String> {
    let text = one(headers, &HeaderName::from_static("traceparent")).ok()??;
    cloudevent::traceparent(text).ok()
}

/// Header that requests a recorded verdict also for an intent that changes nothing.
pub(super) const UNCHANGED: HeaderName = HeaderName::from_static("chancery-unchanged");

/// Reads [`UNCHANGED`].
fn unchanged(headers: &HeaderMap) -> Result<UnchangedVerdict, ProblemDetails> {
    match one(headers, &UNCHANGED)? {
        None => Ok(UnchangedVerdict::default()),
        Some("recorded") => Ok(UnchangedVerdict::Recorded),
        Some(_) => Err(ProblemDetails::parameter(
            RequestPart::Header,
            UNCHANGED.as_str(),
            "must be recorded, or absent for an answer without a record",
        )),
    }
}

/// Returns the condition that `If-Match` or `If-None-Match` sets.
fn condition(headers: &HeaderMap) -> Result<Option<WriteCondition>, ProblemDetails> {
    let wrong = |name: &HeaderName, rule| ProblemDetails::parameter(RequestPart::Header, name.as_str(), rule);
    let set = |header, expect| WriteCondition { header, expect, identities: BTreeSet::new() };
    let if_match = one(headers, &header::IF_MATCH)?.map(|text| {
        let name = "if-match";
        if text == "*" {
            return Ok(set(name, Some(ExpectedVersion::Any)));
        }
        let rule = "must be * or ETags, or a version in quotes as in \"3\"";
        let tags = entity_tag::tags(text).ok_or_else(|| wrong(&header::IF_MATCH, rule))?;
        let versions: BTreeSet<_> = tags.iter().map(|tag| tag.version).collect();
        if versions.len() > 1 {
            // The expected version is recorded with the intent, and is one.
            return Err(wrong(&header::IF_MATCH, "must have ETags of one version"));
        }
        let identities: Option<_> = tags.into_iter().map(|tag| tag.identity).collect();
        let expect = versions.first().map(|version| ExpectedVersion::Exactly(*version));
        Ok(WriteCondition { identities: identities.unwrap_or_default(), ..set(name, expect) })
    });
    let if_none_match = one(headers, &header::IF_NONE_MATCH)?.map(|text| match text {
        "*" => Ok(set("if-none-match", Some(ExpectedVersion::ABSENT))),
        _ => Err(wrong(&header::IF_NONE_MATCH, "must be *, which creates the entity only")),
    });
    if if_match.is_some() && if_none_match.is_some() {
        return Err(wrong(&header::IF_NONE_MATCH, "must be absent: If-Match is given"));
    }
    if_match.or(if_none_match).transpose()
}

/// Format of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BodyFormat {
    /// Single JSON value.
    Json,
    /// Structured CloudEvent.
    CloudEvent,
    /// Batch of CloudEvents.
    Batch,
}

impl BodyFormat {
    const fn media_type(self) -> &'static str {
        match self {
            BodyFormat::Json => "application/json",
            BodyFormat::CloudEvent => "application/cloudevents+json",
            BodyFormat::Batch => "application/cloudevents-batch+json",
        }
    }
}

/// Returns the format of the body by its media type.
pub(super) fn media(headers: &HeaderMap, allowed: &[BodyFormat]) -> Result<BodyFormat, ProblemDetails> {
    let text = one(headers, &header::CONTENT_TYPE)?.unwrap_or_default();
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    let is_named = |format: &&BodyFormat| format.media_type().eq_ignore_ascii_case(essence.trim());
    let is_utf8 = parameters.is_empty() || cloudevent::is_json(&format!("application/json;{parameters}"));
    let found = allowed.iter().find(is_named).filter(|_| is_utf8);
    found.copied().ok_or_else(|| unsupported(text, allowed))
}

/// Returns the problem of a media type that is not allowed.
fn unsupported(found: &str, allowed: &[BodyFormat]) -> ProblemDetails {
    let allowed: Vec<_> = allowed.iter().map(|format| format.media_type()).collect();
    let found: String = found.chars().take(100).collect();
    let detail =
        format!("cannot read body: media type {found:?} must be one of {}, in UTF-8", allowed.join(", "));
    ProblemDetails::new(UNSUPPORTED_MEDIA_TYPE, detail).at(
        RequestPart::Header,
        "/content-type",
        "not accepted by this route",
    )
}
