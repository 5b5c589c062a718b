//! Parameters of the routes: in the path, the query and the headers.

use std::collections::BTreeSet;

use chancery_events::kind::EntityKind;
use chancery_projector::RowKind;
use serde_json::{Value, json};

use crate::causes::EventRead;
use crate::routes::{HttpRoute, RouteTarget};

/// Largest number of clients that have no unsigned integers.
const MOST: i64 = i64::MAX;
/// Description of `min_position`.
const UNTIL: &str =
    "Minimum position of the answer: a number, or `POSITION.LINEAGE`. Needed for verdicts of other servers.";
/// Description of `consistency`.
const CONSISTENCY: &str = "With `eventual`, the answer has the current rows, and waits for `min_position` alone. By default the answer is at least as new as every verdict that the server gave before the request; if that takes too long, the answer is 503 `position_not_applied`. The header `chancery-position` has the position of the answer.";
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
    validator_parameters:
        "header" "If-Match" {"type": "string"} "ETags of which one must have the version of the row and the identity of its entity, or versions in quotes: otherwise the answer is 412.";
        "header" "If-None-Match" {"type": "string"} "ETags of the rows that the client has: if the row is one of them, the answer is 304 without a body.";
    settle_parameters:
        "query" "min_position" {"type": "string"} UNTIL;
        "query" "consistency" {"type": "string", "enum": ["eventual"]} CONSISTENCY;
    list_parameters:
        "query" "limit" {"type": "integer", "format": "int64", "minimum": 1, "maximum": 1000, "default": 100} "Maximum number of rows, from 1 to 1000 (default: 100).";
        "query" "page_token" {"type": "string"} "Token of the page after which to continue.";
    diff_parameters:
        "query" "from" {"type": "string"} "Earlier moment: a position or an RFC 3339 time, as in `as_of`.";
        "query" "to" {"type": "string"} "Later moment, in the same form (default: the last record). A further page is that of the moments of the first one: `to.position` of the first answer names it.";
        "query" "kinds" {"type": "string"} "Only these kinds, comma-separated: `nodes,replicas` (default: all). The filters must be those that each of the kinds has: an entity is included if its row at either moment matches.";
        "query" "limit" {"type": "integer", "format": "int64", "minimum": 1, "maximum": 1000, "default": 100} "Maximum number of changes, from 1 to 1000 (default: 100).";
        "query" "page_token" {"type": "string"} "Token of the page after which to continue.";
    why_parameters:
        "query" "value" {"type": "string"} "Expected value of the field: another one is refused as `value_differs`.";
        "query" "recompute" {"type": "boolean"} "Whether to compute again why the node of a reservation was chosen, from the state after it, as `recomputed` (default: false).";
    cause_parameters:
        "query" "limit" {"type": "integer", "format": "int64", "minimum": 1, "maximum": 1000, "default": 100} "Maximum number of events, from 1 to 1000 (default: 100).";
    history_parameters:
        "query" "from" {"type": "string"} FROM;
        "query" "limit" {"type": "integer", "format": "int64", "minimum": 1, "maximum": 1000, "default": 100} "Maximum number of events, from 1 to 1000 (default: 100).";
    event_parameters:
        "query" "from" {"type": "string"} "First position: a number or `POSITION.LINEAGE`, or `end` for new events only (default: the first event).";
        "query" "types" {"type": "string"} "Only these event types, comma-separated; `replica.*` matches all types of a kind.";
        "query" "subject" {"type": "string"} "Only events about these subjects, comma-separated: `node/node-1`, or `node` for all entities of a kind.";
        "query" "kinds" {"type": "string"} "Only these kinds of events: `intent`, `observation`, `fact`, comma-separated.";
        "query" "follow" {"type": "boolean"} "Whether to continue at the end of the journal (default: true for server-sent events, else false).";
        "query" "limit" {"type": "integer", "format": "int64", "minimum": 1, "maximum": MOST} "Maximum number of events, at least 1 (default: unlimited).";
        "header" "Last-Event-ID" {"type": "string"} "Resume after the event with this id; takes precedence over `from`.";
    log_parameters:
        "query" "payload" {"type": "string"} "Only output of this payload.";
        "query" "process" {"type": "integer", "format": "int64", "minimum": 0, "maximum": MOST} "Only output of the process with this number in its payload, from 0.";
        "query" "stream" {"type": "string", "enum": ["out", "err"]} "Only this output stream.";
        "query" "tail" {"type": "integer", "format": "int64", "minimum": 0, "maximum": MOST} "Maximum number of last lines of each output (default: all lines).";
        "query" "since" {"type": "string"} "Only output written since: a duration before now as in `5m`, or a time as in `2026-11-21T09:00:00Z`. Up to ten seconds more are returned.";
        "query" "marked" {"type": "boolean"} "Whether to mark each line with its output, as in `out | ` (default: false).";
        "query" "follow" {"type": "boolean"} "Whether to continue with new output (default: false).";
    intent_parameters:
        "header" "Idempotency-Key" {"type": "string"} "Id that makes the intent safe to repeat: the same id, actor and source are one intent (default: a random id). From 1 to 256 characters. A repeat gets the recorded verdict; an intent that was answered `unchanged` without a record is decided again.";
        "header" "If-Match" {"type": "string"} "Expected version of the entity: its ETag, of which the version and the identity of the entity are compared, its version in quotes, or `*` if it must exist. Facts that the server decides change versions too.";
        "header" "If-None-Match" {"type": "string", "enum": ["*"]} "With `*`, the intent only creates: it is refused with 412 if the entity exists.";
        "header" "Chancery-Actor" {"type": "string"} "Actor of the intent (default: `local`). If a CloudEvent has the attribute `actor`, it must be equal.";
        "header" "Chancery-Source" {"type": "string"} "Source of the intent (default: `http`). The attribute `source` of a CloudEvent must be equal.";
        "header" "Chancery-Time" {"type": "string"} "Time of the first request, by the client's clock, as in `2026-11-21T09:00:00Z`. If a CloudEvent has the attribute `time`, it must be equal.";
        "header" "Chancery-Unchanged" {"type": "string", "enum": ["recorded"]} "Record the verdict also if the intent changes nothing (default: answer without a record).";
        "header" "traceparent" {"type": "string"} "W3C trace context, stored with the intent. An invalid header is ignored; an invalid attribute of a CloudEvent is refused.";
    message_parameters:
        "query" "after" {"type": "integer", "format": "int64", "minimum": 0, "maximum": MOST} "Number of earlier messages on the channel.";
}

/// Returns the parameters of a route.
pub(super) fn parameters(route: &HttpRoute) -> Vec<Value> {
    let names = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let of_path = names.map(|name| {
        json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}, "description": in_path(name)})
    });
    let query = |names: &[&str], schema: Value, about: &str| -> Vec<Value> {
        let one = |name| json!({"name": name, "in": "query", "schema": schema, "description": about});
        names.iter().map(one).collect()
    };
    let of_target = match route.does {
        RouteTarget::List(kind) => {
            let in_path = |name: &str| route.path.contains(&format!("{{{name}}}"));
            let names = kind.filters().into_iter().filter(|name| !in_path(name));
            let filters = names.map(|name| filter_parameter(name, &[kind])).collect();
            [filters, list_parameters(), moment_parameters(), settle_parameters()].concat()
        }
        RouteTarget::Get(_) => [moment_parameters(), settle_parameters(), validator_parameters()].concat(),
        RouteTarget::Disruption => [moment_parameters(), settle_parameters()].concat(),
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
        RouteTarget::Diff => {
            let names: BTreeSet<_> = RowKind::ALL.iter().flat_map(|kind| kind.filters()).collect();
            let filters = names.into_iter().map(|name| filter_parameter(name, RowKind::ALL)).collect();
            [diff_parameters(), filters, settle_parameters()].concat()
        }
        RouteTarget::Events => event_parameters(),
        RouteTarget::Logs => log_parameters(),
        RouteTarget::Intent(entry, _) => {
            let schema = json!({"type": "string", "enum": ["yes", "no"]});
            let about = "Value of the member of this name in the body, which must then be absent there.";
            let mut parameters = [query(entry.query, schema, about), intent_parameters()].concat();
            if entry.path.ends_with(&EntityKind::Disruption.path()) {
                // Only the entity has a version, so that the condition is refused for a part of it.
                parameters.retain(|parameter| parameter["name"] != "If-None-Match");
            }
            parameters
        }
        RouteTarget::Intents => intent_parameters(),
        RouteTarget::DryRun => [moment_parameters(), settle_parameters(), intent_parameters()].concat(),
        RouteTarget::SendMessages => message_parameters(),
        RouteTarget::SendReplies | RouteTarget::SendInput => {
            let about = "Number of replies, or of bytes of input, that were sent before: a repeat has no effect twice.";
            query(
                &["after"],
                json!({"type": "integer", "format": "int64", "minimum": 0, "maximum": MOST}),
                about,
            )
        }
        RouteTarget::OpenChannel
        | RouteTarget::OfferConsoles
        | RouteTarget::AttachConsole
        | RouteTarget::Live
        | RouteTarget::Ready
        | RouteTarget::Metrics
        | RouteTarget::OpenApi
        | RouteTarget::Schema
        | RouteTarget::ErrorEntry
        | RouteTarget::Version
        | RouteTarget::Index
        | RouteTarget::Fleets
        | RouteTarget::Fleet => vec![],
    };
    let mut all: Vec<_> = of_path.chain(of_target).collect();
    if route.does == RouteTarget::Diff
        && let Some(from) = all.iter_mut().find(|parameter| parameter["name"] == "from")
    {
        from["required"] = true.into();
    }
    all
}

/// Returns the parameter of a filter, with the rule for its values if all of the kinds that have the filter have the same.
fn filter_parameter(name: &str, kinds: &[RowKind]) -> Value {
    let mut about = "Only rows that match the filter: one value, or several with commas between them, of which one must match.".to_owned();
    let of = kinds.iter().filter(|kind| kind.filters().contains(&name));
    let rules: BTreeSet<_> = of.map(|kind| kind.filter_rule(name)).collect();
    if let Some(Some(rule)) = rules.first().filter(|_| rules.len() == 1) {
        about.push_str(" A value ");
        about.push_str(rule);
        about.push('.');
    }
    json!({"name": name, "in": "query", "schema": {"type": "string"}, "description": about})
}

/// Returns the description of a parameter of the path.
fn in_path(name: &str) -> String {
    match name {
        "name" => "Name of the entity.".to_owned(),
        "id" => "Id of the entity.".to_owned(),
        "type" => "Type of the event, with its version.".to_owned(),
        "code" => "Code of the problem.".to_owned(),
        "position" => "Position of the event: a number, or `POSITION.LINEAGE`.".to_owned(),
        "revision" => "Number of the command among those of its incarnation.".to_owned(),
        "request" | "incarnation" | "channel" | "attachment" => format!("Id of the {name}."),
        _ => format!("Name of the {name}."),
    }
}
