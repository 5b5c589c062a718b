//! Summary of an event: what happened, and why.

use chancery_events::id::Lineage;
use chancery_events::observation::{ProcessInfo, ProcessStatus};
use serde::Deserialize as _;
use serde_json::Value;

use super::table::add;

/// Fields of an event's data that are shown as what happened, in this order.
const WHAT: &[&str] = &[
    "to",
    "state",
    "activity",
    "cluster",
    "change",
    "kind",
    "rule",
    "action",
    "deployment",
    "version",
    "start",
    "effect",
    "count",
    "generation",
    "node",
    "requested_by",
    "approved_by",
    "rejected_by",
    "end",
    "outcome",
];
/// Fields of an event's data that contain a reason.
const WHY: &[&str] = &["reason", "detail", "error", "message", "reasons"];

/// Event of a stream or a history.
pub(super) struct EventSummary<'a>(pub(super) &'a Value);

impl EventSummary<'_> {
    pub(super) fn position(&self) -> u64 {
        let id = || self.0["id"].as_str().and_then(|id| id.parse().ok());
        self.0["position"].as_u64().or_else(id).unwrap_or(0)
    }

    /// Lineage of the journal; only events of a stream have one.
    pub(super) fn lineage(&self) -> Option<Lineage> {
        self.0["lineage"].as_str()?.parse().ok()
    }

    /// Time in whole seconds.
    pub(super) fn time(&self) -> String {
        let time = self.0["time"].as_str().unwrap_or("-");
        time.get(..19).map_or_else(|| time.to_owned(), |seconds| format!("{seconds}Z"))
    }

    pub(super) fn subject(&self) -> &str {
        self.0["subject"].as_str().unwrap_or("-")
    }

    /// Initiator of the event: the origin of its causes in a history, or the actor on a stream.
    pub(super) fn initiator(&self) -> String {
        let initiator = &self.0["initiator"];
        words(if initiator.is_null() { &self.0["actor"] } else { initiator })
            .unwrap_or_else(|| "decider".into())
    }

    /// Type without prefix and version: `node.state_changed`.
    pub(super) fn type_name(&self) -> &str {
        short(self.0["type"].as_str().unwrap_or("?"))
    }

    /// Summarizes the event: `node.state_changed state=allocated cluster=local`.
    pub(super) fn what(&self) -> String {
        let mut text = self.type_name().to_owned();
        let data = &self.0["data"];
        let spec = &data["spec"];
        // The subject of a disruption is its node; the name is shown as well.
        if let Some(name) = words(&data["name"]).filter(|_| text.starts_with("disruption.")) {
            add(&mut text, format_args!(" {name}"));
        }
        for field in WHAT {
            let value = if data[field].is_null() { &spec[field] } else { &data[field] };
            // The version of an operation names a deployment, mostly its own; other versions only count
            // changes.
            let needless = *field == "version" && (value.is_number() || *value == data["deployment"]);
            if let Some(value) = words(value).filter(|_| !needless) {
                add(&mut text, format_args!(" {field}={value}"));
            }
        }
        let observed = &data["report"]["observed"];
        if let Some(state) = words(observed) {
            add(&mut text, format_args!(" observed={state}"));
            if let Some(exit) = words(&observed[&state]["exit"]) {
                add(&mut text, format_args!(" exit={exit}"));
            }
        }
        // The default strategy is not shown.
        let strategy = words(&spec["strategy"]).filter(|word| word != "rolling");
        if let Some(strategy) = strategy {
            add(&mut text, format_args!(" strategy={strategy}"));
        }
        if let Some(again) = data["restart_backoff"]["consecutive"].as_u64() {
            add(&mut text, format_args!(" restart={again}"));
        }
        text
    }

    /// Problem of a process, if the event contains the status of processes.
    fn trouble(&self) -> Option<String> {
        if !matches!(self.type_name(), "incarnation.processes_changed" | "incarnation.started") {
            return None;
        }
        let processes = Vec::<ProcessInfo>::deserialize(&self.0["data"]["processes"]).ok()?;
        let is_plain = |process: &&ProcessInfo| process.status != ProcessStatus::Starting;
        processes.iter().filter(is_plain).find_map(ProcessInfo::trouble)
    }

    /// Cause of the event and its reasons: `because of 41: no node has 4 cores free`.
    pub(super) fn why(&self) -> String {
        let root_cause = &self.0["root_cause"];
        let cause = if let (Some(type_name), Some(position)) =
            (root_cause["type"].as_str(), root_cause["position"].as_u64())
        {
            Some(format!("{} at {position}", short(type_name)))
        } else {
            let cause = &self.0["cause"];
            let cause = if cause.is_null() { &self.0["causationid"] } else { cause };
            words(cause).map(|position| format!("because of {position}"))
        };
        let reasons = WHY.iter().filter_map(|field| reason(&self.0["data"], field));
        let reasons = reasons.chain(self.trouble()).filter(|reason| !reason.is_empty());
        cause.into_iter().chain(reasons).collect::<Vec<_>>().join(": ")
    }
}

/// Returns a type without prefix and version.
fn short(type_name: &str) -> &str {
    let text = type_name.strip_prefix("dev.chancery.").unwrap_or(type_name);
    text.rsplit_once(".v").map_or(text, |(name, _)| name)
}

/// Returns a reason from the data, at the top or within the field of an end.
fn reason(data: &Value, field: &str) -> Option<String> {
    let within = |outer: &Value| outer.as_object()?.values().find_map(|inner| words(&inner[field]));
    words(&data[field]).or_else(|| ["end"].iter().find_map(|outer| within(&data[outer])))
}

/// Formats a value in a few words. For a choice with fields, it is the name of the choice.
fn words(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Object(one) if one.len() == 1 => {
            let (choice, inner) = one.iter().next()?;
            // `{"actor": "ann"}` is shown as `ann`, and `{"failed": {…}}` as `failed`.
            match (inner.as_str(), inner["node"].as_str().zip(inner["name"].as_str())) {
                (Some(text), _) => Some(text.to_owned()),
                (None, Some((node, name))) => Some(format!("{choice}/{node}/{name}")),
                (None, None) => Some(choice.clone()),
            }
        }
        Value::Array(items) if !items.is_empty() => {
            let reasons: Vec<_> = items.iter().filter_map(|item| item["reason"].as_str()).collect();
            (!reasons.is_empty()).then(|| reasons.join("; "))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_reports_what_happened_and_why() {
        let moved = json!({
            "id": "41", "type": "dev.chancery.node.state_changed.v1", "time": "2026-11-21T09:00:00.000001Z", "causationid": "40",
            "subject": "node/node-1", "data": {"name": "node-1", "state": "allocated", "cluster": "local"},
        });
        let summary = EventSummary(&moved);
        assert_eq!(
            (summary.position(), summary.time().as_str(), summary.initiator().as_str()),
            (41, "2026-11-21T09:00:00Z", "decider")
        );
        assert_eq!(summary.what(), "node.state_changed state=allocated cluster=local");
        assert_eq!(summary.why(), "because of 40");
        let ended = json!({
            "position": 50, "type": "operation.ended.v1", "cause": 49,
            "data": {"operation": "x", "end": {"failed": {"reason": "web-0 exited 1"}}},
        });
        assert_eq!(EventSummary(&ended).initiator(), "decider");
        let rooted = json!({"cause": 4, "root_cause": {"position": 2, "type": "deployment.create.v1"}});
        assert_eq!(EventSummary(&rooted).why(), "deployment.create at 2");
        assert_eq!(EventSummary(&json!({"initiator": {"actor": "ann"}})).initiator(), "ann");
        assert_eq!(EventSummary(&ended).what(), "operation.ended end=failed");
        let observed = json!({"ended": {"exit": "clean", "processes": []}});
        let report = json!({"type": "incarnation.reported.v1", "data": {"report": {"observed": observed}}});
        assert_eq!(EventSummary(&report).what(), "incarnation.reported observed=ended exit=clean");
        assert_eq!(EventSummary(&ended).why(), "because of 49: web-0 exited 1");
        let approved = json!({"position": 7, "type": "operation.approved.v1", "data": {"approved_by": {"actor": "ann"}}});
        assert_eq!(EventSummary(&approved).what(), "operation.approved approved_by=ann");
        let asked = json!({"disruption": {"node": "node-1", "name": "drain"}});
        let opened =
            json!({"type": "operation.created.v1", "data": {"kind": "relocate", "requested_by": asked}});
        assert_eq!(
            EventSummary(&opened).what(),
            "operation.created kind=relocate requested_by=disruption/node-1/drain"
        );
        let update = json!({"type": "operation.created.v1", "data": {"kind": "update", "version": "d-2"}});
        assert_eq!(EventSummary(&update).what(), "operation.created kind=update version=d-2");
        let update = json!({"kind": "update", "deployment": "d-2", "version": "d-2"});
        let update = json!({"type": "operation.created.v1", "data": update});
        assert_eq!(EventSummary(&update).what(), "operation.created kind=update deployment=d-2");
        let ended = json!({"end": {"failed": {"reason": "it exited"}}, "restart_backoff": {"not_before": 1, "consecutive": 2}});
        let ended = json!({"type": "incarnation.ended.v1", "data": ended});
        assert_eq!(EventSummary(&ended).what(), "incarnation.ended end=failed restart=2");
        let process = json!({"payload": "web", "index": 0, "pid": 7, "addresses": [], "status": {"unready": {"error": {"status": {"code": 503}}}}});
        let status =
            json!({"type": "incarnation.processes_changed.v1", "cause": 4, "data": {"processes": [process]}});
        assert_eq!(EventSummary(&status).why(), "because of 4: readiness probe of web-0: status 503");
        let scheduled = json!({"name": "drain", "node": "node-1", "spec": {"action": "drain", "reason": ""}});
        let scheduled = json!({"type": "disruption.scheduled.v1", "cause": 4, "data": scheduled});
        assert_eq!(EventSummary(&scheduled).what(), "disruption.scheduled drain action=drain node=node-1");
        assert_eq!(EventSummary(&scheduled).why(), "because of 4");
        let created = |strategy| json!({"type": "deployment.created.v1", "data": {"spec": {"count": 1, "strategy": strategy}}});
        let usual = json!({"rolling": {"max_parallel": null, "per_domain": false, "delay": 0}});
        assert_eq!(EventSummary(&created(usual)).what(), "deployment.created count=1");
        let canary = json!({"canary": {"count": 1}});
        assert_eq!(EventSummary(&created(canary)).what(), "deployment.created count=1 strategy=canary");
        let accepted = json!({"type": "intent.accepted.v1", "data": {"outcome": "changed", "version": 3}});
        assert_eq!(EventSummary(&accepted).what(), "intent.accepted outcome=changed");
    }
}
