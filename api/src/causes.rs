//! Single events, their causes and their effects, and the reasons for a value.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use chancery_events::fact::Fact;
use chancery_events::id::Position;
use chancery_events::lineage::NamedPosition;
use chancery_events::name::NodeName;
use chancery_projector::causes::{CauseReader, EventPage};
use chancery_projector::why::{ReasonReader, RowField, ValueReason};
use chancery_projector::{NamedMoment, RowKind};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::FleetApi;
use super::dry_run::PlacementReasons;
use super::middleware::RoutedRequest;
use super::moments::{self, RequestCancellation};
use super::positions;
use super::problem::{self, GONE, INVALID_PARAMETER, NOT_FOUND, ProblemDetails, RequestPart, VALUE_DIFFERS};
use super::query::QueryParams;
use super::read::{
    ReadFrom, at_moment, in_turn, key, limit_of_events, missing_at, row_at, settle, source_of,
};
use super::reserved_answer::{ReservedAnswer, compressor_of};

/// Reads of one event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EventRead {
    /// Event itself.
    Event,
    /// Chain of its causes.
    Causes,
    /// Facts that name it as their cause.
    Effects,
}

/// Returns an event, a page of its causes, or a page of its effects.
pub(super) async fn of_event(
    app: &FleetApi,
    call: &RoutedRequest,
    read: EventRead,
    mut params: QueryParams,
) -> Result<Response<Body>, ProblemDetails> {
    let text = call.found.param("position").unwrap_or_default();
    let named = problem::parsed(RequestPart::Path, "position", text)?;
    let position = positions::seen(app.hub.lineages().as_ref(), named)?;
    let limit = if read == EventRead::Event { 1 } else { limit_of_events(&mut params)? };
    let from = match read {
        EventRead::Effects => params.parsed("from")?,
        EventRead::Event | EventRead::Causes => None,
    };
    let from = from.map(|from| positions::wanted(app.hub.lineages().as_ref(), from)).transpose()?;
    settle(app, &mut params, ReadFrom::Journal).await?;
    params.end(match read {
        EventRead::Event => &["min_position", "consistency"],
        EventRead::Causes => &["limit", "min_position", "consistency"],
        EventRead::Effects => &["from", "limit", "min_position", "consistency"],
    })?;
    let end = app.source.head().map_or(Position::ZERO, |head| head.position);
    let (common, compressor) = (Arc::clone(&app.common), compressor_of(call));
    let reader = CauseReader::new(app.source.clone(), end);
    let found = in_turn(&app.hub.readers, "read an event", move || {
        let answer = ReservedAnswer::reserve(&common, compressor);
        let reader = reader.max_bytes(answer.max_bytes());
        let page = match read {
            EventRead::Event => reader
                .event(position)
                .map(|event| event.map(|event| EventPage { events: vec![event], next: None })),
            EventRead::Causes => reader.causes(position, limit),
            EventRead::Effects => reader.effects(position, from.unwrap_or(Position::FIRST), limit),
        };
        (answer, page)
    });
    let (mut answer, page) = found.await?;
    let page = page.map_err(|error| ProblemDetails::internal("read an event", &error))?;
    let Some(page) = page else {
        let detail = format!("there is no event at position {position}: the journal ends at position {end}");
        return Err(ProblemDetails::new(NOT_FOUND, detail).position(end.get()));
    };
    let body = match read {
        EventRead::Event => {
            page.events.into_iter().next().map_or_else(String::new, |event| event.json.get().into())
        }
        EventRead::Causes | EventRead::Effects => {
            let items: Vec<_> = page.events.iter().map(|event| event.json.get()).collect();
            // The causes of the last one continue the chain.
            let next = match read {
                EventRead::Causes => page.next.and(page.events.last()).map(|last| last.position),
                EventRead::Event | EventRead::Effects => page.next,
            };
            let name = if read == EventRead::Causes { "next_event" } else { "next_from" };
            let next = next.map_or(Value::Null, |next| next.get().into());
            format!(r#"{{"items":[{}],"{name}":{next},"position":{end}}}"#, items.join(","))
        }
    };
    let mut response = answer.with(app, body)?;
    if read == EventRead::Event {
        let media = HeaderValue::from_static("application/cloudevents+json");
        response.headers_mut().insert(header::CONTENT_TYPE, media);
    }
    Ok(at_moment(response, end, None))
}

/// Answer with the reasons for a value.
#[derive(Serialize)]
struct ReasonsBody<'a> {
    entity: String,
    field: Option<&'a str>,
    value: Option<&'a Value>,
    reasons: &'a [ValueReason],
    #[serde(skip_serializing_if = "Option::is_none")]
    recomputed: Option<RecomputedPlacement>,
    position: Position,
}

/// Reasons for a reserved node, computed again from the state after the reservation. They are not recorded.
#[derive(Serialize, JsonSchema)]
pub(super) struct RecomputedPlacement {
    /// Position of the record after which the state was used.
    position: Position,
    /// Node of the reservation.
    node: NodeName,
    #[serde(flatten)]
    reasons: PlacementReasons,
}

/// Returns the reasons for the node of the first reservation among the reasons for a value.
async fn recomputed(
    app: &FleetApi,
    reasons: &[ValueReason],
) -> Result<Option<RecomputedPlacement>, ProblemDetails> {
    let reserved = |reason: &ValueReason| {
        let event: Value = serde_json::from_str(reason.event.json.get()).ok()?;
        match Fact::read(&reason.event.type_name, &event["data"].to_string())? {
            Ok(Fact::IncarnationReserved(reserved)) => Some((reason.event.position, reserved)),
            _ => None,
        }
    };
    let Some((position, reserved)) = reasons.iter().find_map(reserved) else { return Ok(None) };
    let named = NamedPosition { position, lineage: None };
    let at = moments::find(app, NamedMoment::Position(named)).await?;
    let moment = moments::state(app, at).await?;
    let operation = reserved.operation;
    let chosen = moments::in_read_turn(app, "explain a node", move || moment.chosen_node(operation)).await?;
    let node = reserved.node;
    let position = at.position;
    Ok(chosen.map(|chosen| RecomputedPlacement { position, node, reasons: chosen.into() }))
}

/// Returns the facts behind a field of an entity's row, or behind its last change.
pub(super) async fn why(
    app: &FleetApi,
    call: &RoutedRequest,
    kind: RowKind,
    mut params: QueryParams,
) -> Result<Response<Body>, ProblemDetails> {
    let key = key(call, kind)?;
    let field = params.take("field")?;
    let wanted = params.take("value")?;
    let recompute = params.flag("recompute")?.unwrap_or(false);
    if let Some(name) = field.as_deref().filter(|name| !kind.explained_fields().contains(name)) {
        let known = kind.explained_fields().join(", ");
        let shown: String = name.chars().take(100).collect();
        let detail = format!(
            "invalid query parameter field: {shown:?} of {kind} is not set by facts about one entity; must be one of {known}"
        );
        return Err(ProblemDetails::new(INVALID_PARAMETER, detail).at(
            RequestPart::Query,
            "/field",
            format!("must be one of {known}"),
        ));
    }
    if wanted.is_some() && field.is_none() {
        return Err(ProblemDetails::query("value", "must be given with field"));
    }
    let moment = moments::take(app, &mut params, "as_of")?;
    // The row and the facts must be of one position.
    settle(app, &mut params, source_of(moment)).await?;
    params.end(&["field", "value", "recompute", "as_of", "min_position", "consistency"])?;
    let (row, position, at) = row_at(app, &key, moment).await?;
    let row: Option<Value> = row
        .map(|row| serde_json::from_str(&row.body))
        .transpose()
        .map_err(|error| ProblemDetails::internal("read a row", &error))?;
    let value = match (&field, &row) {
        (Some(name), Some(row)) => Some(row[name].clone()),
        _ => None,
    };
    if field.is_some() && row.is_none() {
        let path = call.parts.uri.path().trim_end_matches("/why");
        let mut problem = missing_at(app, &key, path, position).await;
        if problem.is(GONE) {
            problem.detail.push_str("\nhint: name an earlier moment, at which it had the field");
        }
        return Err(problem);
    }
    if let (Some(wanted), Some(found), Some(name)) = (&wanted, &value, &field)
        && shown(found) != *wanted
    {
        let found = shown(found);
        let detail = format!(
            "{name} of {} is {found:?} at position {position}, not {wanted:?}\nhint: name an earlier moment, at which it had that value",
            key.subject()
        );
        return Err(ProblemDetails::new(VALUE_DIFFERS, detail).position(position.get()));
    }
    let (common, compressor) = (Arc::clone(&app.common), compressor_of(call));
    let cancellation = RequestCancellation::default();
    let events = CauseReader::new(app.source.clone(), position).cancelled_by(cancellation.flag());
    let subject = key.subject();
    let (name, of) = (field.clone(), row.clone());
    // It may read every event about the entity: not with the permits of histories and streams.
    let found = in_turn(&app.moments.reads, "read reasons", move || {
        let answer = ReservedAnswer::reserve(&common, compressor);
        let field = name.as_deref().zip(of.as_ref()).map(|(name, row)| RowField { name, row });
        let reader = ReasonReader::new(events.max_bytes(answer.max_bytes()));
        (answer, reader.reasons(kind, &subject, field))
    });
    let (mut answer, reasons) = found.await?;
    drop(cancellation);
    let reasons = reasons.map_err(|error| ProblemDetails::internal("read an event", &error))?;
    if reasons.is_empty() && row.is_none() {
        let path = call.parts.uri.path().trim_end_matches("/why");
        return Err(missing_at(app, &key, path, position).await);
    }
    let recomputed = if recompute {
        // It may wait for folds of other requests.
        answer.shrink(reasons.iter().map(ValueReason::bytes).sum());
        recomputed(app, &reasons).await?
    } else {
        None
    };
    let body = ReasonsBody {
        entity: key.subject().to_string(),
        field: field.as_deref(),
        value: value.as_ref(),
        reasons: &reasons,
        recomputed,
        position,
    };
    let body =
        serde_json::to_string(&body).map_err(|error| ProblemDetails::internal("show reasons", &error))?;
    Ok(at_moment(answer.with(app, body)?, position, at.as_ref()))
}

/// Returns a value as a client writes it in a query.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
