//! Approval requests: changes that wait for approval as a whole. `get requests` lists them, `describe
//! request/ID` shows the effects of a request, and `approve request/ID` and `reject request/ID` decide it.

use std::collections::BTreeSet;

use chancery_events::fact::RequestedChange;
use chancery_events::intent::{Intent, RequestApprove, RequestReject};
use chancery_events::text::counted;
use chancery_projector::rows::{RequestRow, RequestStatus};
use serde_json::{Map, Value, json};

use super::apply::ApplyReport;
use super::approve::ApprovalDecision;
use super::client::{ApiClient, CommandIo, RepeatAdvice};
use super::columns::typed;
use super::error::CliError;
use super::get::{list, one};
use super::kind::{self, EntityKind};
use super::table::{add, plain};

use crate::note;

/// Maximum number of pending requests that are named after operations.
const NAMED: u64 = 20;

/// Returns the ids of the requests that the arguments of `approve` or `reject` name: `request/ID`, or
/// `request ID`.
pub(super) fn named(words: &[String]) -> Result<Vec<String>, CliError> {
    let is_request = |word: &str| kind::named(word) == Some(EntityKind::Request);
    let (words, all) = match words.split_first() {
        Some((first, [])) if is_request(first) => {
            return Err(CliError::usage("invalid argument \"request\": must be request/ID"));
        }
        Some((first, rest)) if is_request(first) => (rest, true),
        _ => (words, false),
    };
    let id = |word: &String| match word.split_once('/') {
        Some((kind, id)) if is_request(kind) => Some(id.to_owned()),
        None if all => Some(word.clone()),
        Some(_) | None => None,
    };
    let ids: Vec<_> = words.iter().filter_map(id).collect();
    if !ids.is_empty() && ids.len() < words.len() {
        return Err(CliError::usage("invalid arguments: must be either requests or operations"));
    }
    Ok(ids)
}

/// Summarizes the change, as in `delete plan/web (12 replicas)`.
pub(super) fn change(row: &RequestRow) -> String {
    let subject = &row.subject;
    let what = match &row.change {
        RequestedChange::PlanDelete { .. } | RequestedChange::NodeDelete { .. } => {
            format!("delete {subject} with cascade")
        }
        RequestedChange::NodeExpunge { .. } => format!("expunge {subject}"),
        RequestedChange::DisruptionApprove { node, name, .. } => format!("approve disruption/{node}/{name}"),
        RequestedChange::PlanApply { .. } | RequestedChange::PolicyApply { from: Some(_), .. } => {
            format!("change {subject}")
        }
        RequestedChange::PolicyApply { from: None, .. } => format!("create {subject}"),
        RequestedChange::PolicyDelete { .. } | RequestedChange::VolumeDelete { .. } => {
            format!("delete {subject}")
        }
    };
    let replicas: u64 = row.effects.iter().map(|effect| u64::from(effect.count)).sum();
    let counts = [(replicas, "replica"), (volumes(&row.change), "volume")];
    let counts: Vec<_> =
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, one)| counted(count, one)).collect();
    if counts.is_empty() { what } else { format!("{what} ({})", counts.join(", ")) }
}

/// Returns a member of the change, or null if its kind has no such member.
fn member(change: &RequestedChange, name: &str) -> Value {
    let change = serde_json::to_value(change).unwrap_or_default();
    let members = change.as_object().and_then(|of_kind| of_kind.values().next());
    members.map_or(Value::Null, |members| members[name].clone())
}

/// Returns the number of volumes that are lost with the change.
fn volumes(change: &RequestedChange) -> u64 {
    member(change, "volumes").as_u64().unwrap_or(0)
}

/// Summarizes the effects, as in `delete 12 of plan web`.
pub(super) fn effects(row: &RequestRow) -> String {
    let effects = row.effects.iter();
    let each = effects.map(|effect| format!("{} {} of plan {}", effect.kind, effect.count, effect.plan));
    each.collect::<Vec<_>>().join(", ")
}

/// Formats a request, to be read before its decision.
pub(super) fn page(row: &RequestRow) -> String {
    let mut text = format!("request/{}\n", row.id);
    let line = |text: &mut String, name: &str, value: &str| {
        if !value.is_empty() {
            add(text, format_args!("  {:<14} {value}\n", format!("{name}:")));
        }
    };
    line(&mut text, "change", &change(row));
    line(&mut text, "state", row.state.word());
    line(&mut text, "message", &row.message);
    line(&mut text, "requested by", row.requested_by.as_str());
    line(&mut text, "requested at", &row.created_at.to_string());
    line(&mut text, "expires at", &row.expires.map(|expires| expires.to_string()).unwrap_or_default());
    line(&mut text, "hash", &row.hash.to_string());
    for effect in &row.effects {
        let count = u64::from(effect.count);
        let replicas = counted(count, "replica");
        line(&mut text, verb(effect.kind.word()), &format!("{replicas} of plan {}", effect.plan));
        for replica in &effect.replicas {
            add(&mut text, format_args!("    replica/{replica}\n"));
        }
        let more = count.saturating_sub(effect.replicas.len() as u64);
        if more > 0 {
            add(&mut text, format_args!("    and {more} more\n"));
        }
    }
    if let RequestedChange::DisruptionApprove { spec, .. } = &row.change {
        let start = spec.start.map_or_else(|| "immediately".to_owned(), |start| start.to_string());
        line(&mut text, "starts", &start);
        line(&mut text, "action", spec.action.word());
        line(&mut text, "reason", &spec.reason);
    }
    match volumes(&row.change) {
        0 => {}
        count => line(&mut text, "loses", &counted(count, "volume")),
    }
    let difference = difference(&row.change);
    if !difference.is_empty() {
        text.push_str("  difference:\n");
        for changed in difference {
            add(&mut text, format_args!("    {changed}\n"));
        }
    }
    if row.state == RequestStatus::Pending {
        let who = if row.policies.is_empty() { "any person" } else { "another person" };
        add(&mut text, format_args!("\nWaits for\n  {who}: chancery approve request/{}\n", row.id));
    }
    text
}

fn verb(kind: &str) -> &str {
    match kind {
        "delete" => "deletes",
        "relocate" => "moves",
        "expunge" => "declares lost",
        other => other,
    }
}

/// Lists the changed fields, as in `approval.delete: manual -> automatic`.
fn difference(change: &RequestedChange) -> Vec<String> {
    let mut found = Vec::new();
    compare("", &member(change, "from"), &member(change, "to"), &mut found);
    found
}

fn compare(path: &str, from: &Value, to: &Value, found: &mut Vec<String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match (from, to) {
        _ if from == to => {}
        (Value::Object(_), Value::Object(_) | Value::Null) | (Value::Null, Value::Object(_)) => {
            let members = [from, to].into_iter().filter_map(Value::as_object);
            for name in members.flat_map(Map::keys).collect::<BTreeSet<_>>() {
                compare(&below(name), &from[name], &to[name], found);
            }
        }
        _ => found.push(format!("{path}: {} -> {}", shown(from), shown(to))),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Array(items) if items.is_empty() => "all".to_owned(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(", "),
        other => plain(other),
    }
}

/// Writes how a pending request is approved.
pub(super) fn hint(client: &ApiClient<'_>, id: &str) -> Result<(), CliError> {
    let row: RequestRow = typed(&one(client, EntityKind::Request, id)?)?;
    note!("request/{id} {}: {}", row.message, change(&row));
    note!("try: chancery describe request/{id}");
    if !row.policies.is_empty() {
        note!("hint: another person must approve the request");
    }
    note!("try: chancery approve request/{id}");
    Ok(())
}

/// Writes the pending requests, after operations.
pub(super) fn waiting(client: &ApiClient<'_>) -> Result<(), CliError> {
    let filters = [("state", RequestStatus::Pending.to_string())];
    for item in list(client, EntityKind::Request, &filters, NAMED)?.items {
        let row: RequestRow = typed(&item)?;
        note!("request/{} {}: {}; chancery approve request/{}", row.id, row.message, change(&row), row.id);
    }
    Ok(())
}

/// Approves or rejects requests, each exactly as shown.
pub(super) fn decide(
    decision: ApprovalDecision<'_>,
    ids: &[String],
    io: &mut CommandIo<'_>,
) -> Result<(), CliError> {
    let (verb, done) = decision.words();
    io.client.repeats(RepeatAdvice::Unchanged);
    let mut report = ApplyReport::of(io.client, io.out)?;
    let mut rows = Vec::new();
    for id in ids {
        let row: RequestRow = typed(&one(io.client, EntityKind::Request, id)?)?;
        if row.state != RequestStatus::Pending {
            let what = format!("cannot {verb} request/{id}: the request is {}, not pending", row.state);
            return Err(CliError::conflict(format!("{what}; nothing was sent")));
        }
        rows.push(row);
    }
    let sent = rows.into_iter().try_for_each(|row| {
        note!("to {verb}:\n{}", page(&row).split("\nWaits for").next().unwrap_or_default().trim_end());
        let name = format!("request/{}", row.id);
        let intent: Intent = match decision {
            ApprovalDecision::Approve => RequestApprove { request: row.id, hash: row.hash }.into(),
            ApprovalDecision::Reject { reason } => {
                RequestReject { request: row.id, reason: reason.to_owned() }.into()
            }
        };
        let verdict = io.client.ask(&format!("cannot {verb} {name}"), &intent)?;
        let json = json!({ "subject": name, "outcome": done, "position": verdict.position });
        report.line(&name, format_args!("{done}: {}", change(&row)), json)
    });
    report.end(sent, |_, _| String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_named_by_one_word_or_two_and_ids_of_operations_are_not_taken_for_them() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (line, wanted) in [
            ("request/7", vec!["7"]),
            ("request 7 8", vec!["7", "8"]),
            ("req/7 request/8", vec!["7", "8"]),
            ("7", vec![]),
            ("operation/7", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(named(&words(line)).expect(line), wanted, "{line}");
        }
        for line in ["request", "request/7 8", "8 request/7"] {
            assert!(named(&words(line)).is_err(), "{line}");
        }
    }

    #[test]
    fn a_request_shows_what_it_ends_what_it_changes_and_who_can_approve_it() {
        let row = |change: Value, effects: Value, policies: &[&str]| -> RequestRow {
            let id = "00000000-0000-8755-9f3a-5c7e9b2d4f60";
            let row = json!({
                "id": id, "state": "pending", "kind": "plan_delete", "subject": "policy/two", "change": change,
                "effects": effects, "requested_by": "ann", "policies": policies, "hash": "9f86d081884c7d659a2feaa0c55ad015",
                "expires": "2026-11-22T09:00:00Z", "decided": null, "message": "waits", "version": 1,
                "created_at": "2026-11-21T09:00:00Z", "updated_at": "2026-11-21T09:00:00Z", "position": 3,
            });
            serde_json::from_value(row).expect("a row")
        };
        let eyes =
            |kinds: &[&str]| json!({"kinds": kinds, "plans": [], "domains": [], "rule": {"four_eyes": {}}});
        let change = json!({"policy_apply": {"name": "two", "from": eyes(&["delete", "stop"]), "to": eyes(&["stop"])}});
        let text = page(&row(change, json!([]), &["two"]));
        assert!(text.contains("  change:        change policy/two\n"), "{text}");
        assert!(text.contains("  difference:\n    kinds: delete, stop -> stop\n"), "{text}");
        assert!(text.contains("\nWaits for\n  another person: chancery approve request/0000"), "{text}");
        let disruption =
            json!({"start": 1_795_424_400_000_000_u64, "action": "drain_and_delete", "reason": "new switch"});
        let change = json!({"disruption_approve": {"node": "node-1", "name": "switch", "spec": disruption}});
        let text = page(&row(change, json!([]), &["two"]));
        let wanted = "  starts:        2026-11-23T09:00:00.000000Z\n  action:        drain_and_delete\n  reason:        new switch\n";
        assert!(text.contains(wanted), "{text}");
        let expunge = json!({"node_expunge": {"name": "node-1", "volumes": 2}});
        let effects = json!([{"kind": "expunge", "plan": "web", "count": 1, "replicas": ["web-1"]}]);
        let text = page(&row(expunge, effects, &["two"]));
        assert!(
            text.contains(" (1 replica, 2 volumes)\n") && text.contains("  loses:         2 volumes\n"),
            "{text}"
        );
        let effects = json!([{"kind": "delete", "plan": "web", "count": 3, "replicas": ["web-1", "web-2"]}]);
        let text = page(&row(json!({"plan_delete": {"name": "web"}}), effects, &[]));
        assert!(text.contains("  deletes:       3 replicas of plan web\n    replica/web-1\n    replica/web-2\n    and 1 more\n"), "{text}");
        assert!(text.contains("  any person: chancery approve"), "{text}");
    }
}
