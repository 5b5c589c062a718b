//! OpenAPI 3.1 description of the API, generated from the table of routes and the types.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::StatusCode;
use chancery_events::cloudevent::TYPE_PREFIX;
use chancery_events::console::MAX_INPUT;
use chancery_events::intent::Intent;
use chancery_projector::RowKind;
use chancery_projector::history::HistoryEntry;
use chancery_projector::moment::EntityChange;
use chancery_projector::why::ValueReason;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::causes::{EventRead, RecomputedPlacement};
use super::dry_run::DryRunAnswer;
use super::problem;
use super::routes::{BodyShape, HttpRoute, ROUTES, RouteTarget};
use super::schemas::pretty;
use super::write::{AcceptedResponse, ApproveOne, RejectOne, needs_body, statuses};

/// Media type of lines of JSON.
const LINES: &str = "application/x-ndjson";

static TEXT: LazyLock<String> = LazyLock::new(|| pretty(&openapi()));

/// Returns the description as text, as it is published.
pub(super) fn text() -> &'static str {
    &TEXT
}

/// Returns the description.
pub fn openapi() -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into());
    let mut types = settings.into_generator();
    let mut components = Map::new();
    let bodies = bodies(&mut components);
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in ROUTES.iter() {
        let operation = operation(route, &mut types, &bodies);
        paths.entry(&route.path).or_default().insert(route.method.as_str().to_lowercase(), operation);
    }
    let problem = types.subschema_for::<problem::ProblemBody>();
    components.extend(types.take_definitions(true));
    components.extend(bodies.into_iter().map(|(type_name, body)| (body_name(type_name), body)));
    let codes: Vec<_> = problem::KINDS.iter().map(|kind| described(kind)).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Chancery",
            "version": "1",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "An event-sourced control plane. Every response other than the requested one is a problem (RFC 9457) with one of the codes in x-problems. Every request with a method other than GET and HEAD has a Content-Type (application/json, application/cloudevents+json, application/cloudevents-batch+json, application/x-ndjson or application/octet-stream), also without a body. Host is a loopback name or a configured name; requests of web pages of other sites are refused.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {"Problem": {
                "description": "Problem: the request was not fulfilled.",
                "content": {"application/problem+json": {"schema": problem}},
            }},
        },
        "x-problems": codes,
    })
}

/// Returns the description of a kind of problem.
fn described(kind: &problem::ProblemKind) -> Value {
    let problem::ProblemKind { code, status, retryable, meaning, remedy } = kind;
    json!({
        "type": kind.path(), "code": code, "status": status, "title": kind.title(), "retryable": retryable,
        "meaning": meaning, "remedy": remedy,
    })
}

/// Returns the body of each intent, by type. Schemas that the bodies refer to are added to `parts`.
fn bodies(parts: &mut Map<String, Value>) -> BTreeMap<&'static str, Value> {
    let body = |(type_name, schema): (&'static str, schemars::Schema)| {
        let text = schema.to_value().to_string().replace("#/$defs/", "#/components/schemas/");
        let mut body: Map<String, Value> = serde_json::from_str(&text).unwrap_or_default();
        body.remove("$schema");
        if let Some(Value::Object(defs)) = body.remove("$defs") {
            parts.extend(defs);
        }
        (type_name, Value::Object(body))
    };
    Intent::schemas().into_iter().map(body).collect()
}

/// Converts a type name to a schema name: `plan.apply.v1` to `PlanApplyV1`.
fn body_name(type_name: &str) -> String {
    let word = |word: &str| {
        let mut chars = word.chars();
        chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
    };
    type_name.split(['.', '_']).map(word).collect()
}

fn row(kind: RowKind, types: &mut SchemaGenerator) -> Value {
    kind.schema(types).to_value()
}

fn object(properties: &Value) -> Value {
    let required: Vec<_> = properties.as_object().into_iter().flat_map(Map::keys).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

fn answer(schema: &Value, description: &str) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

fn position() -> Value {
    json!({"type": "integer", "minimum": 0})
}

/// Returns the answer of a route about causes.
fn of_causes(does: RouteTarget, types: &mut SchemaGenerator) -> Value {
    let (next, about) = match does {
        RouteTarget::Event(EventRead::Event) => {
            let content = json!({"application/cloudevents+json": {"schema": {"type": "object"}}});
            return json!({"description": "CloudEvent of the event.", "content": content});
        }
        RouteTarget::Event(EventRead::Causes) => (
            "next_event",
            "CloudEvents of the causes, the nearest first; continue with the causes of `next_event`.",
        ),
        RouteTarget::Event(EventRead::Effects) => {
            ("next_from", "CloudEvents of the effects; continue with `next_from` as `from`.")
        }
        _ => {
            let reason = types.subschema_for::<ValueReason>().to_value();
            let mut body = object(&json!({
                "entity": {"type": "string"}, "field": {"type": ["string", "null"]}, "value": {},
                "reasons": {"type": "array", "items": reason}, "position": position(),
            }));
            body["properties"]["recomputed"] = types.subschema_for::<RecomputedPlacement>().to_value();
            return answer(&body, "Value at the position, and the facts behind it.");
        }
    };
    let items = json!({"type": "array", "items": {"type": "object"}});
    let page = object(&json!({"items": items, next: {"type": ["integer", "null"]}, "position": position()}));
    answer(&page, about)
}

fn operation(
    route: &HttpRoute,
    types: &mut SchemaGenerator,
    bodies: &BTreeMap<&'static str, Value>,
) -> Value {
    let plain = |media: &str, schema: Value| json!({"description": route.about, "content": {media: {"schema": schema}}});
    let text = || json!({"type": "string"});
    let ok = match route.does {
        RouteTarget::List(kind) => {
            let items = json!({"type": "array", "items": row(kind, types)});
            answer(
                &object(
                    &json!({"items": items, "next_page_token": {"type": ["string", "null"]}, "position": position()}),
                ),
                "Page of rows.",
            )
        }
        RouteTarget::Get(kind) => answer(&row(kind, types), "Row of the entity; its version is the ETag."),
        RouteTarget::History(_) => {
            let entry = types.subschema_for::<HistoryEntry>().to_value();
            let items = json!({"type": "array", "items": entry});
            answer(
                &object(
                    &json!({"items": items, "next_from": {"type": ["integer", "null"]}, "position": position()}),
                ),
                "Page of events; continue with `next_from` as `from`.",
            )
        }
        RouteTarget::Why(_) | RouteTarget::Event(_) => of_causes(route.does, types),
        RouteTarget::Diff => {
            let change = types.subschema_for::<EntityChange>().to_value();
            let moment = types.subschema_for::<problem::MomentBody>().to_value();
            let items = json!({"type": "array", "items": change});
            answer(
                &object(
                    &json!({"items": items, "next_page_token": {"type": ["string", "null"]}, "from": moment, "to": moment}),
                ),
                "Page of changes, in the order of kinds and keys.",
            )
        }
        RouteTarget::DryRun => answer(
            &types.subschema_for::<DryRunAnswer>().to_value(),
            "Verdicts, facts, and what follows from them; nothing was recorded.",
        ),
        RouteTarget::Intent(..) | RouteTarget::Intents => answer(
            &types.subschema_for::<AcceptedResponse>().to_value(),
            "Intent accepted; the verdict is durable.",
        ),
        RouteTarget::Events => {
            json!({"description": "CloudEvents. While there are no new events, comments or empty lines keep the stream open.", "content": {"text/event-stream": {"schema": text()}, "application/x-ndjson": {"schema": text()}}})
        }
        RouteTarget::OpenChannel => {
            json!({"description": "One line per message of the decider; empty lines keep the channel open. Chancery-Channel is the id of the channel.", "content": {"application/x-ndjson": {"schema": text()}}})
        }
        RouteTarget::SendMessages => json!({"description": "Messages accepted."}),
        RouteTarget::OfferConsoles => {
            json!({"description": "One line per request about a console; empty lines keep the response open.", "content": {LINES: {"schema": text()}}})
        }
        RouteTarget::SendReplies => json!({"description": "Replies accepted."}),
        RouteTarget::AttachConsole => {
            json!({"description": "Lines of JSON: `{\"attached\": ID}` first, `{\"output\": BYTES}` in base64, `{\"ended\": REASON}` last, null if the guest has ended; empty lines keep the response open.", "content": {LINES: {"schema": text()}}})
        }
        RouteTarget::SendInput => json!({"description": "The guest's port has taken the input."}),
        RouteTarget::Logs | RouteTarget::Live | RouteTarget::Ready => plain("text/plain", text()),
        RouteTarget::Metrics => plain("application/openmetrics-text", text()),
        RouteTarget::ErrorEntry => plain("text/markdown", text()),
        RouteTarget::OpenApi => plain("application/json", json!({"type": "object"})),
        RouteTarget::Schema => plain("application/schema+json", json!({"type": "object"})),
    };
    let statuses = match route.does {
        RouteTarget::Intent(entry, _) => statuses(entry),
        RouteTarget::Intents => Intent::REGISTER.iter().flat_map(statuses).collect(),
        RouteTarget::OpenChannel => [StatusCode::CREATED].into(),
        RouteTarget::SendMessages | RouteTarget::SendReplies | RouteTarget::SendInput => {
            [StatusCode::NO_CONTENT].into()
        }
        _ => [StatusCode::OK].into(),
    };
    let mut responses = json!({"default": {"$ref": "#/components/responses/Problem"}});
    for status in statuses {
        responses[status.as_str()] = ok.clone();
    }
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.about,
        "parameters": parameters(route),
        "responses": responses,
    });
    if let Some(body) = request_body(route, types, bodies) {
        operation["requestBody"] = body;
    }
    operation
}

fn operation_id(route: &HttpRoute) -> String {
    match route.does {
        RouteTarget::List(kind) if route.path.contains("/plans/{plan}/") => format!("list_plan_{kind}"),
        RouteTarget::List(kind) => format!("list_{kind}"),
        RouteTarget::Get(kind) => format!("get_{}", kind.kind().word()),
        RouteTarget::History(kind) => format!("get_{}_history", kind.kind().word()),
        RouteTarget::Why(kind) => format!("get_{}_why", kind.kind().word()),
        RouteTarget::Event(EventRead::Event) => "get_event".into(),
        RouteTarget::Event(EventRead::Causes) => "list_event_causes".into(),
        RouteTarget::Event(EventRead::Effects) => "list_event_effects".into(),
        RouteTarget::Diff => "get_diff".into(),
        RouteTarget::Intent(entry, shape) => {
            let name = entry.type_name.trim_end_matches(".v1").replace('.', "_");
            // Approvals and rejections have a second route, for several operations.
            match name.strip_prefix("operation_") {
                Some(verb) if shape == BodyShape::Members => format!("operations_{verb}"),
                _ => name,
            }
        }
        RouteTarget::Intents => "intents".into(),
        RouteTarget::DryRun => "dry_run".into(),
        RouteTarget::OpenChannel => "open_channel".into(),
        RouteTarget::SendMessages => "send_messages".into(),
        RouteTarget::OfferConsoles => "offer_consoles".into(),
        RouteTarget::SendReplies => "send_console_replies".into(),
        RouteTarget::AttachConsole => "attach_console".into(),
        RouteTarget::SendInput => "send_console_input".into(),
        RouteTarget::Events => "events".into(),
        RouteTarget::Logs => "logs".into(),
        RouteTarget::Live => "live".into(),
        RouteTarget::Ready => "ready".into(),
        RouteTarget::Metrics => "metrics".into(),
        RouteTarget::OpenApi => "openapi".into(),
        RouteTarget::Schema => "schema".into(),
        RouteTarget::ErrorEntry => "error".into(),
    }
}

/// Description of `min_position`.
const UNTIL: &str =
    "Minimum position of the answer: a number, or `POSITION.LINEAGE`. Needed for verdicts of other servers.";
/// Description of `consistency`.
const CONSISTENCY: &str = "With `eventual`, the answer is immediate and has the current rows. By default the answer is at least as new as every verdict that the server gave before the request; if that takes too long, the answer is 503 `position_not_applied`. The header `chancery-position` has the position of the answer.";
/// Description of `as_of`.
const AS_OF: &str = "Moment of the answer instead of the present: a position, as a number or `POSITION.LINEAGE`, or an RFC 3339 time. A position means the state after the record that contains it, a time the last record that is not later. The headers `chancery-position` and `chancery-time` have the record's. A page token is valid only for its moment.";
/// Description of `field`.
const FIELD: &str = "Field of the row (default: the last fact about the entity).";
/// Description of a history's `from`.
const FROM: &str = "First position: a number, or `POSITION.LINEAGE` (default: 1).";

/// Declares lists of parameters: each with its location, name, schema and meaning.
macro_rules! parameters {
    ($($list:ident: $($location:literal $name:literal $schema:tt $about:expr;)+)+) => {$(
        fn $list() -> Vec<Value> {
            vec![$(json!({"name": $name, "in": $location, "schema": $schema, "description": $about})),+]
        }
    )+};
}

parameters! {
    moment_parameters:
        "query" "as_of" {"type": "string"} AS_OF;
    settle_parameters:
        "query" "min_position" {"type": "string"} UNTIL;
        "query" "consistency" {"type": "string", "enum": ["eventual"]} CONSISTENCY;
    list_parameters:
        "query" "limit" {"type": "integer", "minimum": 0} "Maximum number of rows, from 1 to 1000 (default: 100).";
        "query" "page_token" {"type": "string"} "Token of the page after which to continue.";
    diff_parameters:
        "query" "from" {"type": "string"} "Earlier moment: a position or an RFC 3339 time, as in `as_of`. Required.";
        "query" "to" {"type": "string"} "Later moment, in the same form (default: the last record).";
        "query" "kinds" {"type": "string"} "Only these kinds, comma-separated: `nodes,replicas` (default: all). Other parameters are filters that each of the kinds has: an entity is included if its row at either moment matches.";
        "query" "limit" {"type": "integer", "minimum": 0} "Maximum number of changes, from 1 to 1000 (default: 100).";
        "query" "page_token" {"type": "string"} "Token of the page after which to continue.";
    why_parameters:
        "query" "value" {"type": "string"} "Expected value of the field: another one is refused as `value_differs`.";
        "query" "recompute" {"type": "boolean"} "Whether to compute again why the node of a reservation was chosen, from the state after it, as `recomputed` (default: false).";
    cause_parameters:
        "query" "limit" {"type": "integer", "minimum": 0} "Maximum number of events, from 1 to 1000 (default: 100).";
    history_parameters:
        "query" "from" {"type": "string"} FROM;
        "query" "limit" {"type": "integer", "minimum": 0} "Maximum number of events, from 1 to 1000 (default: 100).";
    event_parameters:
        "query" "from" {"type": "string"} "First position: a number or `POSITION.LINEAGE`, or `end` for new events only (default: the first event).";
        "query" "types" {"type": "string"} "Only these event types, comma-separated; `replica.*` matches all types of a kind.";
        "query" "subject" {"type": "string"} "Only events about these subjects, comma-separated: `node/node-1`, or `node` for all entities of a kind.";
        "query" "kinds" {"type": "string"} "Only these kinds of events: `intent`, `observation`, `fact`, comma-separated.";
        "query" "follow" {"type": "boolean"} "Whether to continue at the end of the journal (default: true for server-sent events, else false).";
        "query" "limit" {"type": "integer", "minimum": 0} "Maximum number of events, at least 1 (default: unlimited).";
        "header" "Last-Event-ID" {"type": "string"} "Resume after the event with this id; takes precedence over `from`.";
    log_parameters:
        "query" "payload" {"type": "string"} "Only output of this payload.";
        "query" "process" {"type": "integer", "minimum": 0} "Only output of the process with this number in its payload, from 0.";
        "query" "stream" {"type": "string", "enum": ["out", "err"]} "Only this output stream.";
        "query" "tail" {"type": "integer", "minimum": 0} "Maximum number of last lines of each output (default: all lines).";
        "query" "since" {"type": "string"} "Only output written since: a duration before now as in `5m`, or a time as in `2026-11-21T09:00:00Z`. Up to ten seconds more are returned.";
        "query" "marked" {"type": "boolean"} "Whether to mark each line with its output, as in `out | ` (default: false).";
        "query" "follow" {"type": "boolean"} "Whether to continue with new output (default: false).";
    intent_parameters:
        "header" "Idempotency-Key" {"type": "string"} "Id that makes the intent safe to repeat (default: a random id).";
        "header" "If-Match" {"type": "string"} "Expected version of the entity, in quotes.";
        "header" "Chancery-Actor" {"type": "string"} "Actor of the intent (default: `local`).";
        "header" "Chancery-Source" {"type": "string"} "Source of the intent (default: `http`).";
        "header" "Chancery-Time" {"type": "string", "format": "date-time"} "Time of the first request, by the client's clock.";
        "header" "Chancery-Unchanged" {"type": "string", "enum": ["recorded"]} "Record the verdict also if the intent changes nothing (default: answer without a record).";
        "header" "traceparent" {"type": "string"} "W3C trace context, stored with the intent.";
    message_parameters:
        "query" "after" {"type": "integer", "minimum": 0} "Number of earlier messages on the channel.";
}

fn parameters(route: &HttpRoute) -> Vec<Value> {
    let names = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path =
        names.map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
    let query = |names: &[&str], schema: Value, about: &str| -> Vec<Value> {
        let one = |name| json!({"name": name, "in": "query", "schema": schema, "description": about});
        names.iter().map(one).collect()
    };
    let of_target = match route.does {
        RouteTarget::List(kind) => {
            let filters =
                query(&kind.filters(), json!({"type": "string"}), "Only rows that match the filter.");
            [filters, list_parameters(), moment_parameters(), settle_parameters()].concat()
        }
        RouteTarget::Get(_) => [moment_parameters(), settle_parameters()].concat(),
        RouteTarget::History(_) => [history_parameters(), moment_parameters(), settle_parameters()].concat(),
        RouteTarget::Why(kind) => {
            // An enumeration has at least one value.
            let fields = kind.explained_fields();
            let names = if fields.is_empty() { &[][..] } else { &["field"] };
            let field = query(names, json!({"type": "string", "enum": fields}), FIELD);
            [field, why_parameters(), moment_parameters(), settle_parameters()].concat()
        }
        RouteTarget::Event(EventRead::Event) => settle_parameters(),
        RouteTarget::Event(EventRead::Causes) => [cause_parameters(), settle_parameters()].concat(),
        RouteTarget::Event(EventRead::Effects) => [history_parameters(), settle_parameters()].concat(),
        RouteTarget::Diff => [diff_parameters(), settle_parameters()].concat(),
        RouteTarget::Events => event_parameters(),
        RouteTarget::Logs => log_parameters(),
        RouteTarget::Intent(entry, _) => {
            let schema = json!({"type": "string", "enum": ["yes", "no", "true", "false"]});
            let about = "Value of the member of this name in the body, which must then be absent there.";
            [query(entry.query, schema, about), intent_parameters()].concat()
        }
        RouteTarget::Intents => intent_parameters(),
        RouteTarget::DryRun => [moment_parameters(), settle_parameters(), intent_parameters()].concat(),
        RouteTarget::SendMessages => message_parameters(),
        RouteTarget::SendReplies | RouteTarget::SendInput => {
            let about = "Number of replies, or of bytes of input, that were sent before: a repeat has no effect twice.";
            query(&["after"], json!({"type": "integer", "minimum": 0}), about)
        }
        RouteTarget::OpenChannel
        | RouteTarget::OfferConsoles
        | RouteTarget::AttachConsole
        | RouteTarget::Live
        | RouteTarget::Ready
        | RouteTarget::Metrics
        | RouteTarget::OpenApi
        | RouteTarget::Schema
        | RouteTarget::ErrorEntry => vec![],
    };
    in_path.chain(of_target).collect()
}

fn request_body(
    route: &HttpRoute,
    types: &mut SchemaGenerator,
    bodies: &BTreeMap<&'static str, Value>,
) -> Option<Value> {
    let required = matches!(route.does, RouteTarget::Intent(entry, shape) if needs_body(entry, shape));
    let json_body =
        |schema: Value| json!({"required": required, "content": {"application/json": {"schema": schema}}});
    match route.does {
        RouteTarget::Intent(_, BodyShape::ApproveOne) => {
            Some(json_body(types.subschema_for::<ApproveOne>().to_value()))
        }
        RouteTarget::Intent(_, BodyShape::RejectOne) => {
            Some(json_body(types.subschema_for::<RejectOne>().to_value()))
        }
        RouteTarget::Intent(entry, BodyShape::Members) => {
            let mut schema = bodies.get(entry.type_name)?.clone();
            let in_path = |name: &str| route.path.contains(&format!("{{{name}}}"));
            if let Some(properties) = schema["properties"].as_object_mut() {
                properties.retain(|name, _| !in_path(name));
            }
            if let Some(required) = schema["required"].as_array_mut() {
                required.retain(|name| !in_path(name.as_str().unwrap_or_default()));
            }
            Some(json_body(schema))
        }
        RouteTarget::Intents | RouteTarget::DryRun => {
            let types: Vec<_> = Intent::TYPES.iter().map(|name| format!("{TYPE_PREFIX}{name}")).collect();
            let data: Vec<_> = Intent::TYPES
                .iter()
                .map(|name| json!({"$ref": format!("#/components/schemas/{}", body_name(name))}))
                .collect();
            let event = json!({
                "type": "object",
                "properties": {
                    "specversion": {"const": "1.0"}, "id": {"type": "string"}, "source": {"type": "string"},
                    "type": {"enum": types}, "time": {"type": "string", "format": "date-time"},
                    "subject": {"type": "string"}, "datacontenttype": {"const": "application/json"},
                    "actor": {"type": "string"}, "expectedversion": {"type": ["integer", "string"]},
                    "traceparent": {"type": "string"}, "data": {"anyOf": data},
                },
                "required": ["specversion", "id", "source", "type", "data"],
            });
            Some(json!({"required": true, "content": {
                "application/cloudevents+json": {"schema": event},
                "application/cloudevents-batch+json": {"schema": {"type": "array", "items": event}},
                "application/json": {"schema": {"type": "object"}},
            }}))
        }
        RouteTarget::OpenChannel | RouteTarget::OfferConsoles | RouteTarget::AttachConsole => Some(
            json!({"required": true, "description": "Empty body.", "content": {"application/x-ndjson": {"schema": {"const": ""}}}}),
        ),
        RouteTarget::SendMessages => Some(
            json!({"required": true, "content": {"application/x-ndjson": {"schema": {"type": "string"}}}}),
        ),
        RouteTarget::SendReplies => {
            Some(json!({"required": true, "content": {LINES: {"schema": {"type": "string"}}}}))
        }
        RouteTarget::SendInput => Some(json!({"required": true, "content": {
            "application/octet-stream": {"schema": {"type": "string", "maxLength": MAX_INPUT}},
        }})),
        _ => None,
    }
}
