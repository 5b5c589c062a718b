//! OpenAPI 3.1 description of the API, generated from the table of routes and the types.
//! [`dialect`] gives all schemas the form that generators of clients know.

mod dialect;
mod parameters;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::StatusCode;
use chancery_events::cloudevent::TYPE_PREFIX;
use chancery_events::console::MAX_INPUT;
use chancery_events::id::Position;
use chancery_events::intent::Intent;
use chancery_events::kind::EntityKind;
use chancery_projector::history::HistoryEntry;
use chancery_projector::moment::EntityChange;
use chancery_projector::rows::DisruptionRow;
use chancery_projector::why::ValueReason;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::causes::{EventRead, RecomputedPlacement};
use super::channels::LINES;
use super::discovery::{ApiIndex, FleetList, FleetSummary, ServerVersion};
use super::dry_run::DryRunAnswer;
use super::problem;
use super::routes::{BodyShape, HttpRoute, ROUTES, RouteTarget};
use super::schemas::pretty;
use super::write::{AcceptedResponse, ApproveOne, RejectOne, statuses};

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
    components.insert("CloudEvent".into(), cloud_event());
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for route in ROUTES.iter() {
        let operation = operation(route, &mut types, &bodies);
        paths.entry(&route.path).or_default().insert(route.method.as_str().to_lowercase(), operation);
    }
    let problem = types.subschema_for::<problem::ProblemBody>();
    let accepted = types.subschema_for::<AcceptedResponse>();
    components.extend(types.take_definitions(true));
    let of_item = of_batch_item(&components);
    components.insert("AcceptedItem".into(), of_item);
    components.insert("BatchItem".into(), json!({"anyOf": [named("AcceptedItem"), problem]}));
    components.insert(
        "BatchResponse".into(),
        json!({
            "description": "Answer to one intent, or to each intent of a batch, in their order.",
            "anyOf": [accepted, {"type": "array", "items": named("BatchItem")}],
        }),
    );
    components.insert("Position".into(), position());
    components.extend(bodies.into_iter().map(|(type_name, body)| (body_name(type_name), body)));
    let codes: Vec<_> = problem::KINDS.iter().map(|kind| described(kind)).collect();
    let mut description = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Chancery",
            "version": "1",
            "contact": {"name": "Chancery maintainers"},
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
            "description": "An event-sourced control plane. Every response other than the requested one is a problem (RFC 9457) with one of the codes in x-problems, except to a request that the HTTP parser refuses: 400, 414 or 431 without a body. Integers are written without a fraction or an exponent: 1, not 1.0. An intent may also be a CloudEvent in binary mode, with its attributes in headers that start with ce-; this description omits that mode. Every request with a method other than GET, HEAD and OPTIONS has a Content-Type (application/json, application/cloudevents+json, application/cloudevents-batch+json, application/x-ndjson or application/octet-stream), also without a body. Host is a loopback name or a configured name; requests of web pages of other sites are refused.",
        },
        "servers": [{"url": "/", "description": "Server that returned this description."}],
        "tags": tags(),
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {"Problem": {
                "description": "Problem: the request was not fulfilled.",
                "headers": {
                    "Allow": header("Methods of the path, with 405.", &json!({"type": "string"})),
                    "Chancery-Request-Id": header("Id of the request, as in the logs of the server.", &json!({"type": "string"})),
                    "Retry-After": header("Seconds after which to repeat the request, if that may succeed.", &json!({"type": "integer", "format": "int32", "minimum": 0})),
                },
                "content": {"application/problem+json": {"schema": problem}},
            }},
        },
        "x-problems": codes,
    });
    dialect::apply(&mut description);
    description
}

/// Returns the tags of operations: the kinds, and the other parts of the API.
fn tags() -> Vec<Value> {
    let kinds = EntityKind::ALL.iter().map(|kind| (kind.plural(), kind.entry().about));
    let others = [
        ("fleets", "Fleets of the server, and what concerns a whole fleet"),
        ("intents", "Intents of any type, as CloudEvents"),
        ("events", "Events of a fleet, as CloudEvents"),
        ("executors", "Channels of executors, and consoles"),
        ("server", "Server, and the description of its API"),
    ];
    kinds
        .chain(others)
        .map(|(name, about)| json!({"name": name, "description": format!("{about}.")}))
        .collect()
}

/// Returns the tag of a route: the last kind in its path, or the part of the API.
fn tag(route: &HttpRoute) -> &'static str {
    let kinds = || EntityKind::ALL.iter().map(|kind| kind.plural());
    let of_kind = route.path.rsplit('/').find_map(|part| kinds().find(|plural| *plural == part));
    match route.does {
        RouteTarget::Intents | RouteTarget::DryRun => "intents",
        RouteTarget::Events | RouteTarget::Event(_) => "events",
        RouteTarget::OpenChannel
        | RouteTarget::SendMessages
        | RouteTarget::OfferConsoles
        | RouteTarget::SendReplies
        | RouteTarget::AttachConsole
        | RouteTarget::SendInput => "executors",
        _ if route.path.starts_with("/v1/fleets") => of_kind.unwrap_or("fleets"),
        _ => "server",
    }
}

fn header(about: &str, schema: &Value) -> Value {
    json!({"description": about, "schema": schema})
}

/// Returns the headers of answers that are valid at a position.
fn position_headers(does: RouteTarget) -> Vec<(&'static str, Value)> {
    let at = ("Chancery-Position", header("Position at which the answer is valid.", &named("Position")));
    let lineage = header("Lineage of the journal at that position.", &json!({"type": "string"}));
    let lineage = ("Chancery-Lineage", lineage);
    let time = header("Time of the record at that position, with `as_of`.", &json!({"type": "string"}));
    match does {
        RouteTarget::Intent(..)
        | RouteTarget::Intents
        | RouteTarget::Event(EventRead::Causes | EventRead::Effects) => vec![at, lineage],
        RouteTarget::List(_)
        | RouteTarget::Get(_)
        | RouteTarget::Disruption
        | RouteTarget::History(_)
        | RouteTarget::Why(_)
        | RouteTarget::Diff
        | RouteTarget::DryRun => vec![at, lineage, ("Chancery-Time", time)],
        RouteTarget::Event(EventRead::Event)
        | RouteTarget::Events
        | RouteTarget::OpenChannel
        | RouteTarget::SendMessages
        | RouteTarget::OfferConsoles
        | RouteTarget::SendReplies
        | RouteTarget::AttachConsole
        | RouteTarget::SendInput
        | RouteTarget::Logs
        | RouteTarget::Live
        | RouteTarget::Ready
        | RouteTarget::Metrics
        | RouteTarget::OpenApi
        | RouteTarget::Schema
        | RouteTarget::ErrorEntry
        | RouteTarget::Version
        | RouteTarget::Index
        | RouteTarget::Fleets
        | RouteTarget::Fleet => Vec::new(),
    }
}

fn named(component: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{component}")})
}

/// Adds a component, and returns a reference to it.
fn component(types: &mut SchemaGenerator, name: &str, schema: Value) -> Value {
    types.definitions_mut().insert(name.to_owned(), schema);
    named(name)
}

fn cloud_event() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    json!({
        "type": "object",
        "description": "Event of a fleet, as a CloudEvent. It has other extension attributes, too.",
        "properties": {
            "specversion": text("Version of CloudEvents: `1.0`."),
            "id": text("Position of the event."),
            "source": text("Fleet of the event."),
            "type": text("Type of the event, with its version."),
            "subject": text("First entity that the event is about."),
            "time": {"type": "string", "format": "date-time", "description": "Time of the record that contains the event."},
            "lineage": text("Lineage of the journal at this position."),
            "kind": text("Kind of the event: `intent`, `observation` or `fact`."),
            "data": {"type": "object", "description": "Data of the event; `/v1/schemas/{type}` has its schema."},
        },
        "required": ["specversion", "id", "source", "type", "time", "data"],
    })
}

/// Returns the answer to an accepted intent of a batch, which has its own status.
fn of_batch_item(components: &Map<String, Value>) -> Value {
    let mut item = components["AcceptedResponse"].clone();
    item["description"] = "Answer to an accepted intent of a batch.".into();
    item["properties"]["status"] = json!({
        "type": "integer", "format": "int32", "minimum": 200, "maximum": 202,
        "description": "Status that the answer to the intent alone would have.",
    });
    if let Some(required) = item["required"].as_array_mut() {
        required.push("status".into());
    }
    item
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
        if let Some(entry) = Intent::REGISTER.iter().find(|entry| entry.type_name == type_name) {
            body.insert("description".into(), entry.about.into());
        }
        if let Some(Value::Object(defs)) = body.remove("$defs") {
            parts.extend(defs);
        }
        (type_name, Value::Object(body))
    };
    Intent::schemas().into_iter().map(body).collect()
}

/// Converts a type name to a schema name: `plan.apply.v1` to `PlanApplyV1`.
fn body_name(type_name: &str) -> String {
    type_name.split('.').map(pascal).collect()
}

/// Converts words to a name: `blue_green` to `BlueGreen`.
fn pascal(words: &str) -> String {
    let word = |word: &str| {
        let mut chars = word.chars();
        chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
    };
    words.split('_').map(word).collect()
}

fn object(properties: &Value) -> Value {
    let required: Vec<_> = properties.as_object().into_iter().flat_map(Map::keys).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

fn or_null(component: &str) -> Value {
    json!({"anyOf": [named(component), {"type": "null"}]})
}

fn answer(schema: &Value, description: &str) -> Value {
    json!({"description": description, "content": {"application/json": {"schema": schema}}})
}

/// Returns an answer whose body is of a type.
fn answer_of<T: JsonSchema>(types: &mut SchemaGenerator, description: &str) -> Value {
    answer(types.subschema_for::<T>().as_value(), description)
}

fn position() -> Value {
    json!({
        "type": "integer", "format": "int64", "minimum": 0, "maximum": Position::MAX.get(),
        "description": "Position of an event in the journal of a fleet; 0 is before the first event.",
    })
}

/// Returns the answer of a route about causes.
fn of_causes(does: RouteTarget, types: &mut SchemaGenerator) -> Value {
    let (name, next, about) = match does {
        RouteTarget::Event(EventRead::Event) => {
            let content = json!({"application/cloudevents+json": {"schema": named("CloudEvent")}});
            return json!({"description": "CloudEvent of the event.", "content": content});
        }
        RouteTarget::Event(EventRead::Causes) => (
            "CausesPage",
            "next_event",
            "CloudEvents of the causes, the nearest first; continue with the causes of `next_event`.",
        ),
        RouteTarget::Event(EventRead::Effects) => {
            ("EffectsPage", "next_from", "CloudEvents of the effects; continue with `next_from` as `from`.")
        }
        _ => {
            let reason = types.subschema_for::<ValueReason>().to_value();
            let mut body = object(&json!({
                "entity": {"type": "string"}, "field": {"type": ["string", "null"]}, "value": {},
                "reasons": {"type": "array", "items": reason}, "position": named("Position"),
            }));
            body["properties"]["recomputed"] = types.subschema_for::<RecomputedPlacement>().to_value();
            let body = component(types, "ReasonsResponse", body);
            return answer(&body, "Value at the position, and the facts behind it.");
        }
    };
    let items = json!({"type": "array", "items": named("CloudEvent")});
    let page = object(&json!({"items": items, next: or_null("Position"), "position": named("Position")}));
    answer(&component(types, name, page), about)
}

/// Returns the answer to a request that succeeds.
fn success(route: &HttpRoute, types: &mut SchemaGenerator) -> Value {
    let plain = |media: &str, schema: Value| json!({"description": route.about, "content": {media: {"schema": schema}}});
    let text = || json!({"type": "string"});
    match route.does {
        RouteTarget::List(kind) => {
            let row = kind.schema(types).to_value();
            let name = row["$ref"].as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
            let name = format!("{name}sPage");
            let items = json!({"type": "array", "items": row});
            let page = object(
                &json!({"items": items, "next_page_token": {"type": ["string", "null"]}, "position": named("Position")}),
            );
            answer(&component(types, &name, page), "Page of rows.")
        }
        RouteTarget::Get(kind) => {
            let mut ok = answer(kind.schema(types).as_value(), "Row of the entity.");
            let about = "Version of the entity, its identity, and a checksum of the row.";
            ok["headers"]["ETag"] = header(about, &text());
            ok
        }
        RouteTarget::Disruption => {
            answer_of::<DisruptionRow>(types, "Disruption, as the row of its node has it.")
        }
        RouteTarget::History(_) => {
            let entry = types.subschema_for::<HistoryEntry>().to_value();
            let items = json!({"type": "array", "items": entry});
            let page = object(
                &json!({"items": items, "next_from": or_null("Position"), "position": named("Position")}),
            );
            answer(
                &component(types, "HistoryPage", page),
                "Page of events; continue with `next_from` as `from`.",
            )
        }
        RouteTarget::Why(_) | RouteTarget::Event(_) => of_causes(route.does, types),
        RouteTarget::Diff => {
            let change = types.subschema_for::<EntityChange>().to_value();
            let moment = types.subschema_for::<problem::MomentBody>().to_value();
            let items = json!({"type": "array", "items": change});
            let page = object(
                &json!({"items": items, "next_page_token": {"type": ["string", "null"]}, "from": moment, "to": moment}),
            );
            answer(&component(types, "DiffPage", page), "Page of changes, in the order of kinds and keys.")
        }
        RouteTarget::DryRun => {
            let about = "Verdicts, facts, and what follows from them; nothing was recorded.";
            answer_of::<DryRunAnswer>(types, about)
        }
        RouteTarget::Intent(..) => {
            answer_of::<AcceptedResponse>(types, "Intent accepted; the verdict is durable.")
        }
        RouteTarget::Intents => answer(
            &named("BatchResponse"),
            "Intent accepted, or batch decided with a status for each intent; the verdicts are durable.",
        ),
        RouteTarget::Events => {
            json!({"description": "CloudEvents. As server-sent events, each is an `event` whose id is `POSITION.LINEAGE`; a `bookmark` has the `position` up to which no further event matches; `closed` is the last one, with `reason` and `position`. As lines, each is an event. While there are no new events, comments or empty lines keep the stream open.", "content": {"text/event-stream": {"schema": text()}, "application/x-ndjson": {"schema": text()}}})
        }
        RouteTarget::OpenChannel => {
            let headers = json!({"Chancery-Channel": header("Id of the channel.", &text())});
            json!({"description": "One line per message of the decider; empty lines keep the channel open.", "headers": headers, "content": {LINES: {"schema": text()}}})
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
        RouteTarget::Metrics => {
            json!({"description": route.about, "content": {"text/plain": {"schema": text()}, "application/openmetrics-text": {"schema": text()}}})
        }
        RouteTarget::ErrorEntry => plain("text/markdown", text()),
        RouteTarget::OpenApi => plain("application/json", json!({"type": "object"})),
        RouteTarget::Schema => plain("application/schema+json", json!({"type": "object"})),
        RouteTarget::Version => answer_of::<ServerVersion>(types, &route.about),
        RouteTarget::Index => answer_of::<ApiIndex>(types, &route.about),
        RouteTarget::Fleets => answer_of::<FleetList>(types, &route.about),
        RouteTarget::Fleet => answer_of::<FleetSummary>(types, &route.about),
    }
}

fn operation(
    route: &HttpRoute,
    types: &mut SchemaGenerator,
    bodies: &BTreeMap<&'static str, Value>,
) -> Value {
    let ok = success(route, types);
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
        if matches!(route.does, RouteTarget::Intent(..) | RouteTarget::Intents) && status != StatusCode::OK {
            let about = "Path of the entity that was created or is changed, if it has one.";
            responses[status.as_str()]["headers"]["Location"] = header(about, &json!({"type": "string"}));
        }
    }
    if let RouteTarget::Get(_) = route.does {
        let headers = json!({"ETag": responses["200"]["headers"]["ETag"]});
        responses["304"] = json!({"description": "The client has the row.", "headers": headers});
    }
    for (name, value) in position_headers(route.does) {
        for answer in
            responses.as_object_mut().into_iter().flatten().filter(|(status, _)| *status != "default")
        {
            answer.1["headers"][name] = value.clone();
        }
    }
    let mut operation = json!({
        "operationId": route.id,
        "tags": [tag(route)],
        "summary": route.about.trim_end_matches('.'),
        "description": route.about,
        "parameters": parameters::parameters(route),
        "responses": responses,
    });
    if let Some(body) = request_body(route, types, bodies) {
        operation["requestBody"] = body;
    }
    operation
}

fn request_body(
    route: &HttpRoute,
    types: &mut SchemaGenerator,
    bodies: &BTreeMap<&'static str, Value>,
) -> Option<Value> {
    // Also a body without members is required here: without a body, clients would send no media type.
    let json_body =
        |schema: Value| json!({"required": true, "content": {"application/json": {"schema": schema}}});
    match route.does {
        RouteTarget::Intent(_, BodyShape::ApproveOne) => {
            Some(json_body(types.subschema_for::<ApproveOne>().to_value()))
        }
        RouteTarget::Intent(_, BodyShape::RejectOne) => {
            Some(json_body(types.subschema_for::<RejectOne>().to_value()))
        }
        RouteTarget::Intent(entry, BodyShape::Members) => {
            let whole = bodies.get(entry.type_name)?;
            let mut schema = whole.clone();
            let in_path = |name: &str| route.path.contains(&format!("{{{name}}}"));
            if let Some(properties) = schema["properties"].as_object_mut() {
                properties.retain(|name, _| !in_path(name));
            }
            if let Some(required) = schema["required"].as_array_mut() {
                required.retain(|name| !in_path(name.as_str().unwrap_or_default()));
            }
            let name = body_name(entry.type_name);
            if schema == *whole {
                return Some(json_body(named(&name)));
            }
            let name = format!("{}Body", name.trim_end_matches("V1"));
            Some(json_body(component(types, &name, schema)))
        }
        RouteTarget::Intents | RouteTarget::DryRun => {
            let event = component(types, "IntentEvent", intent_event());
            Some(json!({"required": true, "content": {
                "application/cloudevents+json": {"schema": event},
                "application/cloudevents-batch+json": {"schema": {"type": "array", "items": event}},
            }}))
        }
        RouteTarget::OpenChannel | RouteTarget::OfferConsoles | RouteTarget::AttachConsole => Some(
            json!({"required": true, "description": "Empty body.", "content": {LINES: {"schema": {"type": "string", "maxLength": 0}}}}),
        ),
        RouteTarget::SendMessages | RouteTarget::SendReplies => {
            Some(json!({"required": true, "content": {LINES: {"schema": {"type": "string"}}}}))
        }
        RouteTarget::SendInput => Some(json!({"required": true, "content": {
            "application/octet-stream": {"schema": {"type": "string", "maxLength": MAX_INPUT}},
        }})),
        _ => None,
    }
}

/// Returns the schema of an intent as a CloudEvent.
fn intent_event() -> Value {
    let types: Vec<_> = Intent::TYPES.iter().map(|name| format!("{TYPE_PREFIX}{name}")).collect();
    let data: Vec<_> = Intent::TYPES.iter().map(|name| named(&body_name(name))).collect();
    json!({
        "type": "object",
        "description": "Intent as a CloudEvent.",
        "properties": {
            "specversion": {"const": "1.0", "type": "string"},
            "id": {"type": "string", "minLength": 1, "description": "Id that makes the intent safe to repeat."},
            "source": {"type": "string", "minLength": 1, "description": "Source of the intent."},
            "type": {"type": "string", "enum": types, "description": "Type of the intent, with its version."},
            "time": {"type": "string", "format": "date-time", "description": "Time of the first request, by the client's clock."},
            "subject": {"type": "string", "description": "Entity of the intent; must equal that of `data`."},
            "datacontenttype": {"const": "application/json", "type": "string"},
            "actor": {"type": "string", "description": "Actor of the intent."},
            "expectedversion": {"type": "string", "pattern": "^([0-9]+|[*])$", "description": "Expected version of the entity: a number, 0 if it must not exist, `*` if it must exist."},
            "traceparent": {"type": "string", "description": "W3C trace context, stored with the intent."},
            "data": {"anyOf": data, "description": "Body of the intent, of the schema of its type: `PlanApplyV1` of `dev.chancery.plan.apply.v1`."},
        },
        "required": ["specversion", "id", "source", "type", "data"],
    })
}
