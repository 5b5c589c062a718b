//! `POST …/intents`: intents as CloudEvents, in each of the forms of the CloudEvents HTTP binding.
//!
//! | form | identified by | attributes |
//! |---|---|---|
//! | structured | `application/cloudevents+json`, or `application/json` without `ce-` headers | members of the object |
//! | binary | `application/json` with `ce-` headers | headers, percent-encoded; `traceparent` also without `ce-` |
//! | batch | `application/cloudevents-batch+json` | an array of objects |

use std::fmt::Display;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Response};
use chancery_decider::{DeciderHandle, UnchangedVerdict, Verdict, VerdictError};
use chancery_events::cloudevent::{CloudEventAttributes, InvalidAttribute, InvalidCloudEvent};
use chancery_events::intent::{Intent, IntentRequest};
use percent_encoding::percent_decode_str;
use serde_json::value::RawValue;

use super::FleetApi;
use super::condition;
use super::headers::{BodyFormat, IntentHeaders, WriteCondition, media};
use super::intent_place::IntentPlace;
use super::json::check;
use super::middleware::{RoutedRequest, json};
use super::problem::{INVALID, INVALID_PARAMETER, ProblemDetails, RequestPart, TOO_LARGE, pointer_to};
use super::rate::RequestPrincipal;
use super::typed::{self, JsonPart};
use super::write::{AnswerContext, ask, response};

const TAKEN: &[BodyFormat] = &[BodyFormat::CloudEvent, BodyFormat::Json, BodyFormat::Batch];
/// Pointer to the intent of a structured CloudEvent.
const DATA: &str = "/data";

/// Accepts one intent or a batch.
pub(super) async fn take(
    app: &Arc<FleetApi>,
    decider: &DeciderHandle,
    call: RoutedRequest,
    body: Result<Bytes, ProblemDetails>,
) -> Result<Response<Body>, ProblemDetails> {
    match read(app, &call, body)? {
        ReadIntents::One(ReadIntent { request, bytes, condition, place, unchanged }) => {
            condition::check(app, &call.found, condition.as_ref(), &request, Some(&request.id)).await?;
            let asked = AnswerContext::of(&request, condition.as_ref(), place);
            let verdict = ask(app, decider, *request, unchanged, bytes).await;
            let (status, accepted) = asked.answered(app, decider, verdict).await?;
            Ok(response(status, &accepted, &call.found))
        }
        ReadIntents::Batch(items) => batch(app, decider, items, &call.context.id).await,
    }
}

/// Intent of a request.
#[derive(Debug)]
pub(super) struct ReadIntent {
    pub(super) request: Box<IntentRequest>,
    /// Size in bytes, as received.
    pub(super) bytes: usize,
    /// Condition of `If-Match` or `If-None-Match`.
    pub(super) condition: Option<WriteCondition>,
    pub(super) place: IntentPlace,
    /// Handling of a verdict that the intent changes nothing.
    pub(super) unchanged: UnchangedVerdict,
}

/// Intents of a request.
#[derive(Debug)]
pub(super) enum ReadIntents {
    One(ReadIntent),
    /// Items of a batch, in their order: each an intent, or its problem.
    Batch(Vec<Result<ReadIntent, ProblemDetails>>),
}

/// Reads one intent or a batch. The intents of a batch count for the rate limit.
pub(super) fn read(
    app: &FleetApi,
    call: &RoutedRequest,
    body: Result<Bytes, ProblemDetails>,
) -> Result<ReadIntents, ProblemDetails> {
    let headers = &call.parts.headers;
    let meta = IntentHeaders::read(headers)?;
    let media = media(headers, TAKEN)?;
    let bytes = body?;
    let text = check(&bytes, app.common.limits.depth)?;
    if media == BodyFormat::Batch {
        return read_batch(app, &meta, text, &call.principal).map(ReadIntents::Batch);
    }
    let is_binary = headers.keys().any(|name| name.as_str().starts_with("ce-"));
    let (request, prefix) = match (media, is_binary) {
        (BodyFormat::CloudEvent, true) => {
            let detail = "invalid headers: the body is a whole CloudEvent, so ce- headers must be absent";
            return Err(ProblemDetails::new(INVALID_PARAMETER, detail));
        }
        (_, true) => (binary(headers, &meta, text)?, ""),
        (_, false) => (structured(&meta, JsonPart { whole: text, part: text })?, DATA),
    };
    let (request, place) = (Box::new(request), IntentPlace::Below(prefix.to_owned()));
    let IntentHeaders { condition, unchanged, .. } = meta;
    Ok(ReadIntents::One(ReadIntent { request, bytes: bytes.len(), condition, place, unchanged }))
}

/// Returns the problem of an attribute, with its location.
fn fault(part: RequestPart, bad: InvalidAttribute) -> ProblemDetails {
    let (kind, name) = match part {
        RequestPart::Header => (INVALID_PARAMETER, format!("ce-{}", bad.name)),
        _ => (INVALID, bad.name),
    };
    ProblemDetails::new(kind, format!("invalid attribute {name:?}: {}", bad.reason)).at(
        part,
        pointer_to(&name),
        bad.reason,
    )
}

/// Combines the headers of all forms with the attributes.
fn request(
    part: RequestPart,
    attributes: CloudEventAttributes,
    meta: &IntentHeaders,
    intent: Intent,
) -> Result<IntentRequest, ProblemDetails> {
    if let Some(key) = meta.id.as_ref().filter(|key| attributes.id() != Some(key)) {
        let what = match attributes.id() {
            Some(id) => format!("must be equal to the id of the event, {:?}", id.as_str()),
            None => "must be absent: the event has no id".to_owned(),
        };
        return Err(ProblemDetails::parameter(RequestPart::Header, "idempotency-key", what).id(key.as_str()));
    }
    let given = attributes.expect();
    if let Some(condition) = &meta.condition
        && given.is_some()
        && condition.expect.is_some()
        && given != condition.expect
    {
        let what = "must be equal to the attribute expectedversion";
        return Err(ProblemDetails::parameter(RequestPart::Header, condition.header, what));
    }
    let mut request = attributes.request(intent, &meta.actor_or_local()).map_err(|bad| fault(part, bad))?;
    // Without the attribute, the request has the value of the header.
    equal("actor", meta.actor.as_ref(), Some(&request.actor))?;
    equal("source", meta.source.as_ref(), Some(&request.source))?;
    equal("time", meta.time.as_ref(), request.time.as_ref())?;
    meta.check_condition()?;
    request.expect = given.or(meta.expect());
    request.time = request.time.or(meta.time);
    request.traceparent = request.traceparent.or_else(|| meta.traceparent.clone());
    Ok(request)
}

/// Refuses a header `chancery-NAME` with another value than the attribute `name`.
fn equal<T: PartialEq + Display>(
    name: &str,
    header: Option<&T>,
    attribute: Option<&T>,
) -> Result<(), ProblemDetails> {
    match (header, attribute) {
        (Some(header), Some(attribute)) if header != attribute => {
            let what =
                format!("must be equal to the attribute {name} of the event, {:?}", attribute.to_string());
            Err(ProblemDetails::parameter(RequestPart::Header, &format!("chancery-{name}"), what))
        }
        _ => Ok(()),
    }
}

/// Reads an intent whose attributes and data are members of one object.
fn structured(meta: &IntentHeaders, text: JsonPart<'_>) -> Result<IntentRequest, ProblemDetails> {
    let (attributes, data) =
        CloudEventAttributes::of_object(text.part).map_err(|bad| match bad {
            InvalidCloudEvent::Attribute(bad) => fault(RequestPart::Body, bad),
            InvalidCloudEvent::NotAnObject => ProblemDetails::new(INVALID, "invalid body: not a CloudEvent")
                .at(RequestPart::Body, "", "must be an object with the attributes and data"),
        })?;
    let type_name = attributes.intent_type().map_err(|bad| fault(RequestPart::Body, bad))?;
    let data = CloudEventAttributes::data(data).map_err(|bad| fault(RequestPart::Body, bad))?;
    let data = JsonPart { whole: text.whole, part: data };
    let intent = typed::intent(type_name, &data).map_err(|problem| problem.below(DATA))?;
    request(RequestPart::Body, attributes, meta, intent)
}

/// Reads an intent whose attributes are headers and whose data is the body.
fn binary(headers: &HeaderMap, meta: &IntentHeaders, text: &str) -> Result<IntentRequest, ProblemDetails> {
    let mut attributes = CloudEventAttributes::default();
    for (header, value) in headers {
        let Some(name) = header.as_str().strip_prefix("ce-") else { continue };
        let wrong = |what: &str| {
            fault(RequestPart::Header, InvalidAttribute { name: name.to_owned(), reason: what.to_owned() })
        };
        let value = value
            .to_str()
            .map_err(|_| wrong("must be visible ASCII, with everything else percent-encoded"))?;
        // Some senders quote the value, which the binding allows; inside quotes, a backslash escapes.
        let bare = unquoted(value.trim());
        let decoded =
            percent_decode_str(&bare).decode_utf8().map_err(|_| wrong("must be percent-encoded UTF-8"))?;
        attributes.set(name, &decoded).map_err(|bad| fault(RequestPart::Header, bad))?;
    }
    let type_name = attributes.intent_type().map_err(|bad| fault(RequestPart::Header, bad))?;
    let intent = typed::intent(type_name, &JsonPart { whole: text, part: text })?;
    request(RequestPart::Header, attributes, meta, intent)
}

fn unquoted(text: &str) -> String {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        return text.to_owned();
    };
    let mut plain = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        plain.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    plain
}

fn read_batch(
    app: &FleetApi,
    meta: &IntentHeaders,
    text: &str,
    principal: &RequestPrincipal,
) -> Result<Vec<Result<ReadIntent, ProblemDetails>>, ProblemDetails> {
    let key = meta.id.as_ref().map(|_| "idempotency-key");
    if let Some(name) = key.or(meta.condition.as_ref().map(|condition| condition.header)) {
        let what = "must be absent: each event of a batch has its own id and expectedversion";
        return Err(ProblemDetails::parameter(RequestPart::Header, name, what));
    }
    // The text has been checked: if it starts as an array, it is one.
    let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| {
        let problem = ProblemDetails::new(INVALID, "invalid batch: not an array of events");
        problem.at(RequestPart::Body, "", "must be an array")
    })?;
    if items.len() > app.common.limits.batch {
        let detail =
            format!("invalid batch of {} events: at most {} allowed", items.len(), app.common.limits.batch);
        return Err(ProblemDetails::new(TOO_LARGE, detail));
    }
    // The request itself has taken the token of one intent.
    app.common.rates.owe(principal, items.len().saturating_sub(1));
    let read = |(index, item): (usize, &&RawValue)| {
        let request = structured(meta, JsonPart { whole: text, part: item.get() })
            .map_err(|problem| problem.below(&format!("/{index}")))?;
        let place = IntentPlace::Below(format!("/{index}{DATA}"));
        let (request, bytes, unchanged) = (Box::new(request), item.get().len(), meta.unchanged);
        Ok(ReadIntent { request, bytes, condition: None, place, unchanged })
    };
    Ok(items.iter().enumerate().map(read).collect())
}

/// Submits a batch in its order. Each intent has an answer of its own.
async fn batch(
    app: &Arc<FleetApi>,
    decider: &DeciderHandle,
    items: Vec<Result<ReadIntent, ProblemDetails>>,
    request_id: &str,
) -> Result<Response<Body>, ProblemDetails> {
    let mut answers: Vec<Option<serde_json::Value>> = vec![None; items.len()];
    let mut asked = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        match item {
            Ok(ReadIntent { request, bytes, condition, place, unchanged }) => {
                let context = AnswerContext::of(&request, condition.as_ref(), place);
                asked.push(((index, context), (request, unchanged, bytes)));
            }
            Err(problem) => answers[index] = Some(problem_value(&problem, request_id)),
        }
    }
    let (places, requests): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    let asks =
        requests.into_iter().map(|(request, unchanged, bytes)| ask(app, decider, *request, unchanged, bytes));
    let verdicts = in_order(asks).await;
    let last = verdicts.iter().filter_map(|verdict| Some(verdict.as_ref().ok()?.position)).max();
    for ((index, asked), verdict) in places.into_iter().zip(verdicts) {
        answers[index] = Some(match asked.answered(app, decider, verdict).await {
            Ok((status, accepted)) => {
                let mut value = serde_json::to_value(&accepted).unwrap_or_default();
                value["status"] = status.as_u16().into();
                value
            }
            Err(problem) => problem_value(&problem, request_id),
        });
    }
    let mut response = json(serde_json::to_vec(&answers).unwrap_or_default());
    if let Some(last) = last {
        response.headers_mut().insert("chancery-position", HeaderValue::from(last.get()));
    }
    Ok(response)
}

pub(super) fn problem_value(problem: &ProblemDetails, request_id: &str) -> serde_json::Value {
    serde_json::to_value(problem.shown(request_id)).unwrap_or_default()
}

/// Submits in order and waits for all. Once the decider is busy, no later intent is submitted, because it
/// must not be decided before an earlier one.
async fn in_order(
    asks: impl Iterator<Item = impl Future<Output = Result<Verdict, VerdictError>>>,
) -> Vec<Result<Verdict, VerdictError>> {
    let mut asks: Vec<_> = asks.map(|ask| (Some(Box::pin(ask)), None)).collect();
    poll_fn(move |context| {
        let (mut is_busy, mut waits) = (false, false);
        for (ask, answer) in &mut asks {
            if is_busy && answer.is_none() {
                (*ask, *answer) = (None, Some(Err(VerdictError::Busy)));
            }
            let Some(running) = ask else { continue };
            match running.as_mut().poll(context) {
                Poll::Ready(verdict) => {
                    is_busy |= matches!(verdict, Err(VerdictError::Busy));
                    (*ask, *answer) = (None, Some(verdict));
                }
                Poll::Pending => waits = true,
            }
        }
        if waits {
            return Poll::Pending;
        }
        Poll::Ready(
            asks.iter_mut().map(|(_, answer)| answer.take().unwrap_or(Err(VerdictError::Unknown))).collect(),
        )
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn no_intent_after_one_that_found_the_decider_busy_is_sent() {
        let asked = Cell::new(0);
        let ask = |verdict: Option<VerdictError>| {
            let asked = &asked;
            async move {
                asked.set(asked.get() + 1);
                if verdict.is_none() {
                    tokio::task::yield_now().await;
                }
                Err(verdict.unwrap_or(VerdictError::Unknown))
            }
        };
        let all = [None, Some(VerdictError::Busy), None, None];
        let verdicts = in_order(all.into_iter().map(ask)).await;
        let words: Vec<_> = verdicts.into_iter().map(Result::unwrap_err).collect();
        assert_eq!(
            words,
            [VerdictError::Unknown, VerdictError::Busy, VerdictError::Busy, VerdictError::Busy]
        );
        assert_eq!(asked.get(), 2);
    }
}
