//! `why`: the facts behind a value, as a tree: who requested the change, who approved it, what was observed.

use serde_json::Value;

use super::client::CommandIo;
use super::context::OutputFormat;
use super::error::CliError;
use super::event_summary::EventSummary;
use super::flags::WhyArgs;
use super::kind::{EntityKind, KindNaming as _};
use super::short_id;
use super::table::{add, plain};

use crate::note;

/// Maximum number of characters of a value in the first line.
const SHOWN: usize = 80;

pub(super) fn run(why: &WhyArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let output = io.client.context.output(&[OutputFormat::Table, OutputFormat::Json, OutputFormat::Yaml])?;
    io.client.read_at(why.as_of.as_ref());
    let kind = why.what.kind;
    let (name, field) = why.named()?;
    if kind == EntityKind::Disruption {
        let (node, _) = kind.halves(&name)?;
        return Err(CliError::usage(format!(
            "cannot explain disruption/{name}: it is part of the row of its node\ntry: chancery history node/{node}"
        )));
    }
    let name = short_id::resolve(io.client, kind, &name)?;
    let mut query = Vec::new();
    if let Some((field, value)) = field {
        query.push(("field", field));
        query.extend(value.map(|value| ("value", value)));
    }
    query.extend(why.recompute.then(|| ("recompute", "true".to_owned())));
    let doing = format!("cannot explain {}/{name}", kind.word());
    let answer = io.client.get(&doing, &format!("{}/why", kind.path_of(&name)?), &query)?;
    if output != OutputFormat::Table {
        return output.value(&answer, io.out);
    }
    io.out.write_all(tree(&answer).as_bytes())?;
    if answer["reasons"].as_array().is_none_or(Vec::is_empty) {
        let word = kind.word();
        note!("no fact about {word}/{name} has set it\ntry: chancery describe {word}/{name}");
    }
    Ok(())
}

/// Returns the tree: a line for each event, its causes below it.
fn tree(answer: &Value) -> String {
    let mut text = answer["entity"].as_str().unwrap_or_default().to_owned();
    if let Some(field) = answer["field"].as_str() {
        add(&mut text, format_args!(" {field}={}", shortened(&answer["value"])));
    }
    text.push('\n');
    let reasons = answer["reasons"].as_array().map_or(&[][..], Vec::as_slice);
    let recomputed = &answer["recomputed"];
    for (number, reason) in reasons.iter().enumerate() {
        let is_last = number + 1 == reasons.len() && recomputed.is_null();
        let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let event = EventSummary(&reason["event"]);
        add(&mut text, format_args!("{branch}{}: {}\n", role(&reason["role"]), line(&event)));
        let causes = reason["causes"].as_array().map_or(&[][..], Vec::as_slice);
        for (depth, cause) in causes.iter().enumerate() {
            let indent = "   ".repeat(depth);
            add(&mut text, format_args!("{below}{indent}└─ because of {}\n", line(&EventSummary(cause))));
        }
        if reason["is_complete"] == false {
            add(&mut text, format_args!("{below}{}└─ and earlier events\n", "   ".repeat(causes.len())));
        }
    }
    if !recomputed.is_null() {
        let [node, reason] = ["node", "reason"].map(|field| recomputed[field].as_str().unwrap_or_default());
        add(&mut text, format_args!("└─ computed again, not recorded: {node}, because {reason}\n"));
        let others = recomputed["others"].as_array().map_or(&[][..], Vec::as_slice);
        for (number, other) in others.iter().enumerate() {
            let branch = if number + 1 == others.len() { "└─" } else { "├─" };
            let nodes = other["nodes"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let nodes = nodes.collect::<Vec<_>>().join(", ");
            add(
                &mut text,
                format_args!("   {branch} not {nodes}: {}\n", other["reason"].as_str().unwrap_or_default()),
            );
        }
    }
    text
}

/// Returns the words for the part of an event.
fn role(role: &Value) -> &str {
    match role.as_str().unwrap_or_default() {
        "value" => "set by",
        "reservation" => "node reserved by",
        "operation" => "operation",
        "deployment" => "deployment",
        "disruption" => "disruption",
        "approval" => "approved by",
        "request" => "approval request",
        "request_approval" => "request approved by",
        other => other,
    }
}

/// Returns the event on one line: position, time, what happened, the actor, and an approved hash.
fn line(event: &EventSummary<'_>) -> String {
    let mut text = format!("{} {} {}", event.position(), event.time(), event.what());
    if let Some(subject) = Some(event.subject()).filter(|subject| *subject != "-") {
        add(&mut text, format_args!(" on {subject}"));
    }
    if let Some(actor) = event.0["actor"].as_str() {
        add(&mut text, format_args!(" by {actor}"));
    }
    if let Some(hash) = event.0["data"]["hash"].as_str() {
        add(&mut text, format_args!(" hash={hash}"));
    }
    text
}

/// Returns the value in at most [`SHOWN`] characters; `-o json` has all of it.
fn shortened(value: &Value) -> String {
    let text = if value.is_null() { "none".to_owned() } else { plain(value) };
    if text.chars().count() <= SHOWN { text } else { text.chars().take(SHOWN - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tree_shows_each_event_with_its_causes() {
        let event = |id: &str, type_name: &str, more: Value| {
            let mut event = json!({
                "id": id, "type": format!("dev.chancery.{type_name}.v1"), "time": "2026-11-21T09:00:00.000001Z",
                "subject": "replica/web-1", "data": {},
            });
            for (name, value) in more.as_object().into_iter().flatten() {
                event[name] = value.clone();
            }
            event
        };
        let answer = json!({
            "entity": "replica/web-1", "field": "node", "value": "node-2",
            "reasons": [
                {
                    "role": "value", "event": event("9", "incarnation.running", json!({})), "is_complete": true,
                    "causes": [event("8", "incarnation.reported", json!({"actor": "local"}))],
                },
                {
                    "role": "approval", "is_complete": false, "causes": [],
                    "event": event("5", "operation.approved", json!({"data": {"approved_by": {"actor": "bob"}, "hash": "ab"}})),
                },
            ],
        });
        let time = "2026-11-21T09:00:00Z";
        assert_eq!(
            tree(&answer),
            format!(
                "replica/web-1 node=node-2\n\
                 ├─ set by: 9 {time} incarnation.running on replica/web-1\n\
                 │  └─ because of 8 {time} incarnation.reported on replica/web-1 by local\n\
                 └─ approved by: 5 {time} operation.approved approved_by=bob on replica/web-1 hash=ab\n   \
                 └─ and earlier events\n"
            )
        );
    }
}
