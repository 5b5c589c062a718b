//! Columns of the table of each kind.

use chancery_events::fact::{ApprovalActor, Requester};
use chancery_events::resources::{show_bytes, show_cpu};
use chancery_events::spec::{ApprovalWindow, DeploymentStrategy, DisruptionState, PolicyRule, TimeoutAction};
use chancery_events::time::Time;
use chancery_projector::rows::{
    CapabilityRow, ClusterRow, CommandRow, DeploymentRow, DisruptionRow, IncarnationRow, NodeRow,
    OperationRow, PlanRow, PolicyRow, ReplicaRow, RequestRow, SessionRow, StorageRow, VolumeRow,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::disruption;
use super::error::CliError;
use super::kind::EntityKind;
use super::table::TextTable;
use super::{request, short_id};

/// Head, whether only `-o wide` shows the column, and the cell of a row.
type TableColumn<R> = (&'static str, bool, fn(&R) -> String);

/// Heads of the columns whose ids are short, except in wide tables.
const IDS: &[&str] = &["ID", "INCARNATION"];

/// Returns the table of items of one kind.
pub(super) fn table(kind: EntityKind, items: &[Value], wide: bool) -> Result<TextTable, CliError> {
    match kind {
        EntityKind::Cluster => rows(CLUSTER, items, wide),
        EntityKind::Capability => rows(CAPABILITY, items, wide),
        EntityKind::Node => rows(NODE, items, wide),
        EntityKind::Disruption => rows(DISRUPTION, items, wide),
        EntityKind::Policy => rows(POLICY, items, wide),
        EntityKind::Plan => rows(PLAN, items, wide),
        EntityKind::Deployment => rows(DEPLOYMENT, items, wide),
        EntityKind::Replica => rows(REPLICA, items, wide),
        EntityKind::Incarnation => rows(INCARNATION, items, wide),
        EntityKind::Operation => rows(OPERATION, items, wide),
        EntityKind::Request => rows(REQUEST, items, wide),
        EntityKind::Volume => rows(VOLUME, items, wide),
        EntityKind::Session => rows(SESSION, items, wide),
        EntityKind::Command => rows(COMMAND, items, wide),
    }
}

fn rows<R: DeserializeOwned>(
    columns: &[TableColumn<R>],
    items: &[Value],
    wide: bool,
) -> Result<TextTable, CliError> {
    let shown = || columns.iter().filter(|(_, only_wide, _)| wide || !only_wide);
    let mut rows = TextTable::new(shown().map(|(head, _, _)| *head));
    for item in items {
        let row: R = typed(item)?;
        rows.add(shown().map(|(head, _, cell)| match cell(&row) {
            text if wide => text,
            id if IDS.contains(head) => short_id::shown(&id).to_owned(),
            text if *head == "MESSAGE" => cut(&text),
            text => text,
        }));
    }
    Ok(rows)
}

/// Maximum width of a message in a table that is not wide, in characters.
const MESSAGE_WIDTH: usize = 60;

/// Cuts a message that would wrap lines of a terminal; `-o wide` shows all of it.
fn cut(message: &str) -> String {
    match message.char_indices().nth(MESSAGE_WIDTH) {
        None => message.to_owned(),
        Some(_) => message.chars().take(MESSAGE_WIDTH - 1).chain(['…']).collect(),
    }
}

/// Reads an item as a row.
pub(super) fn typed<R: DeserializeOwned>(item: &Value) -> Result<R, CliError> {
    R::deserialize(item).map_err(|error| {
        CliError::failure(format!(
            "cannot read rows of the server: {error}\nhint: use -o json, or the chancery version of the \
             server"
        ))
    })
}

/// Text of an optional value; empty if absent.
fn or_none(value: Option<&impl ToString>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// Formats a time in whole seconds.
pub(super) fn short(time: Time) -> String {
    let text = time.to_string();
    text.get(..19).map_or(text.clone(), |seconds| format!("{seconds}Z"))
}

/// Formats milliseconds in the largest unit that divides them.
pub(super) fn span(millis: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let whole = units.iter().find(|(unit, _)| millis > 0 && millis.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{millis}ms"), |(unit, word)| format!("{}{word}", millis / unit))
}

/// Requester of an operation: an actor, a rule, a disruption, or its deployment.
pub(super) fn asker(row: &OperationRow) -> String {
    match &row.requested_by {
        Some(Requester::Actor(actor)) => actor.to_string(),
        Some(Requester::Rule(rule)) => format!("rule {rule}"),
        Some(Requester::Disruption { node, name }) => format!("disruption {node}/{name}"),
        None => or_none(row.deployment.as_ref()),
    }
}

/// Formats a strategy: `rolling max_parallel=2 per_domain delay=10s`, `blue_green 5m rollback`, `canary 1`.
pub(super) fn strategy(strategy: DeploymentStrategy) -> String {
    match strategy {
        DeploymentStrategy::Rolling { max_parallel, per_domain, delay } => {
            let max_parallel = max_parallel.map(|count| format!(" max_parallel={count}")).unwrap_or_default();
            let per_domain = if per_domain { " per_domain" } else { "" };
            let delay = if delay > 0 { format!(" delay={}", span(delay)) } else { String::new() };
            format!("rolling{max_parallel}{per_domain}{delay}")
        }
        DeploymentStrategy::BlueGreen { timeout, on_timeout } => {
            let then = match on_timeout {
                TimeoutAction::Rollback => "rollback",
                TimeoutAction::CutOver => "cut_over",
            };
            format!("blue_green {} {then}", span(timeout))
        }
        DeploymentStrategy::Canary { count } => format!("canary {count}"),
    }
}

/// Formats a window: `sat,sun 22:00 for 8h`.
fn window(window: &ApprovalWindow) -> String {
    let days: Vec<_> = window.days.iter().map(|day| day.word()).collect();
    let days = if days.is_empty() { String::new() } else { format!("{} ", days.join(",")) };
    let (hours, minutes) = (window.start / 60, window.start % 60);
    format!("{days}{hours:02}:{minutes:02} for {}", span(u64::from(window.duration) * 60_000))
}

/// Lists the disruptions of a node that are not completed: `drain approved`.
fn disruptions(rows: &[DisruptionRow]) -> String {
    let open = rows.iter().filter(|one| one.state != DisruptionState::Completed);
    open.map(|one| format!("{} {}", one.name, one.state)).collect::<Vec<_>>().join(", ")
}

pub(super) fn approver(by: &ApprovalActor) -> String {
    match by {
        ApprovalActor::Actor(actor) => actor.to_string(),
        ApprovalActor::Rule(rule) => format!("rule {rule}"),
    }
}

const CLUSTER: &[TableColumn<ClusterRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("RUNTIME", false, |r| r.runtime.to_string()),
    ("ACTIVITY", false, |r| r.activity.to_string()),
    ("NODES", false, |r| r.nodes.to_string()),
    ("EXECUTOR", false, |r| or_none(r.executor.as_ref())),
    ("SESSION", true, |r| or_none(r.session.as_ref())),
    ("VERSION", true, |r| r.version.to_string()),
    ("UPDATED", true, |r| short(r.updated_at)),
];

const CAPABILITY: &[TableColumn<CapabilityRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("TYPE", false, |r| r.type_name.to_string()),
    ("SCORE", false, |r| r.score.to_string()),
    ("ACTIVITY", false, |r| r.activity.to_string()),
    ("VERSION", true, |r| r.version.to_string()),
    ("UPDATED", true, |r| short(r.updated_at)),
];

const NODE: &[TableColumn<NodeRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("STATE", false, |r| r.state.to_string()),
    ("CLUSTER", false, |r| or_none(r.cluster.as_ref())),
    ("DOMAIN", false, |r| r.domain.to_string()),
    ("CPU FREE/TOTAL", false, |r| format!("{}/{}", show_cpu(r.remaining.cpu), show_cpu(r.resources.cpu))),
    ("MEMORY", false, |r| format!("{}/{}", show_bytes(r.remaining.memory), show_bytes(r.resources.memory))),
    ("INCARNATIONS", false, |r| r.incarnations.to_string()),
    ("DISRUPTIONS", false, |r| disruptions(&r.disruptions)),
    ("DISK", true, |r| format!("{}/{}", show_bytes(r.remaining.disk), show_bytes(r.resources.disk))),
    ("ZONE", true, |r| or_none(r.zone.as_ref())),
    ("CAPABILITIES", true, |r| list(&r.capabilities)),
    ("STORAGE", true, |r| {
        let one =
            |s: &StorageRow| format!("{} {}/{}", s.class, show_bytes(s.remaining), show_bytes(s.capacity));
        r.storage.iter().map(one).collect::<Vec<_>>().join(", ")
    }),
    ("VERSION", true, |r| r.version.to_string()),
];

const DISRUPTION: &[TableColumn<disruption::DisruptionItem>] = &[
    ("NODE", false, |r| r.node.to_string()),
    ("NAME", false, |r| r.row.name.to_string()),
    ("STATE", false, |r| r.row.state.to_string()),
    ("ACTION", false, |r| r.row.action.to_string()),
    ("START", false, |r| r.row.start.map(short).unwrap_or_default()),
    ("APPROVED BY", false, |r| or_none(r.row.approved_by.as_ref())),
    ("REASON", false, |r| r.row.reason.clone()),
    ("SINCE", true, |r| short(r.row.since)),
];

const POLICY: &[TableColumn<PolicyRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("RULE", false, |r| match &r.spec.rule {
        PolicyRule::Approve { .. } => "approve".into(),
        PolicyRule::FourEyes {} => "four eyes".into(),
    }),
    ("KINDS", false, |r| or_all(&r.spec.kinds)),
    ("PLANS", false, |r| or_all(&r.spec.plans)),
    ("DOMAINS", false, |r| or_all(&r.spec.domains)),
    ("WINDOWS", false, |r| match &r.spec.rule {
        PolicyRule::Approve { windows, .. } if windows.is_empty() => "always".into(),
        PolicyRule::Approve { windows, .. } => windows.iter().map(window).collect::<Vec<_>>().join("; "),
        PolicyRule::FourEyes {} => String::new(),
    }),
    ("MAX IN FLIGHT", false, |r| match &r.spec.rule {
        PolicyRule::Approve { max_in_flight: in_flight, .. } => or_none(in_flight.as_ref()),
        PolicyRule::FourEyes {} => String::new(),
    }),
    ("VERSION", true, |r| r.version.to_string()),
    ("UPDATED", true, |r| short(r.updated_at)),
];

const REQUEST: &[TableColumn<RequestRow>] = &[
    ("ID", false, |r| r.id.to_string()),
    ("CHANGE", false, request::change),
    ("STATE", false, |r| r.state.to_string()),
    ("REQUESTED BY", false, |r| r.requested_by.to_string()),
    ("MESSAGE", false, |r| r.message.clone()),
    ("EXPIRES", false, |r| r.expires.map(short).unwrap_or_default()),
    ("EFFECTS", true, request::effects),
    ("HASH", true, |r| r.hash.to_string()),
    ("VERSION", true, |r| r.version.to_string()),
    ("UPDATED", true, |r| short(r.updated_at)),
];

const VOLUME: &[TableColumn<VolumeRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("STATE", false, |r| r.state.to_string()),
    ("NODE", false, |r| r.node.to_string()),
    ("CLASS", false, |r| r.class.to_string()),
    ("CAPACITY", false, |r| show_bytes(r.capacity)),
    ("USED BY", false, |r| or_none(r.replica.as_ref())),
    ("OWNER", false, |r| or_none(r.owner.as_ref())),
    ("MESSAGE", false, |r| r.message.clone()),
    ("ON DELETE", true, |r| r.owner.as_ref().map_or_else(String::new, |_| r.on_delete.to_string())),
    ("CLUSTER", true, |r| r.cluster.to_string()),
    ("ID", true, |r| r.id.to_string()),
    ("VERSION", true, |r| r.version.to_string()),
    ("UPDATED", true, |r| short(r.updated_at)),
];

const PLAN: &[TableColumn<PlanRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("NAMESPACE", false, |r| r.spec.namespace.to_string()),
    ("SERVICE", false, |r| r.spec.service.to_string()),
    ("ACTIVITY", false, |r| r.activity.to_string()),
    ("DEPLOYMENT", false, |r| or_none(r.current.as_ref())),
    ("RUNNING", false, |r| {
        let count = |phase: &str| r.replicas.get(phase).copied().unwrap_or(0);
        format!("{}/{}", count("running"), count("total"))
    }),
    ("APPROVALS", false, |r| count_of(r, "pending_approval").to_string()),
    ("MESSAGE", false, |r| r.message.clone()),
    ("GENERATION", true, |r| r.generation.to_string()),
    ("NEXT", true, |r| or_none(r.next.as_ref())),
    ("SPREAD", true, |r| {
        let counts = r.spread.domains.iter().map(|(domain, count)| format!("{domain}:{count}"));
        counts.collect::<Vec<_>>().join(" ")
    }),
    ("VERSION", true, |r| r.version.to_string()),
];

const DEPLOYMENT: &[TableColumn<DeploymentRow>] = &[
    ("PLAN", false, |r| r.plan.to_string()),
    ("NAME", false, |r| r.name.to_string()),
    ("COUNT", false, |r| r.count.to_string()),
    ("STATE", false, |r| r.state.to_string()),
    ("MESSAGE", false, |r| r.message.clone()),
    ("STRATEGY", true, |r| strategy(r.strategy)),
    ("ACTIVE SET", true, |r| match r.strategy {
        // A rolling deployment replaces replicas one by one, without a set of its own.
        DeploymentStrategy::Rolling { .. } => String::new(),
        DeploymentStrategy::BlueGreen { .. } | DeploymentStrategy::Canary { .. } => r.active_set.to_string(),
    }),
    ("REQUESTED BY", true, |r| r.requested_by.to_string()),
    ("COORDINATES", true, coordinates),
    ("GENERATION", true, |r| r.generation.to_string()),
    ("CREATED", true, |r| short(r.created_at)),
];

const REPLICA: &[TableColumn<ReplicaRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("PLAN", false, |r| r.plan.to_string()),
    ("DEPLOYMENT", false, |r| r.deployment.to_string()),
    ("PHASE", false, |r| r.phase.to_string()),
    ("READY", false, |r| if r.ready { "yes" } else { "no" }.into()),
    ("NODE", false, |r| or_none(r.node.as_ref())),
    ("MESSAGE", false, |r| r.message.clone()),
    ("DESIRED", true, |r| r.desired.to_string()),
    ("PROCESSES", true, |r| r.processes.iter().map(super::process::line).collect::<Vec<_>>().join(", ")),
    ("INCARNATION", true, |r| or_none(r.incarnation.as_ref())),
    ("SECONDARY", true, |r| {
        let shown =
            r.secondary.as_ref().map(|one| format!("{} on {} {}", one.incarnation, one.node, one.state));
        shown.unwrap_or_default()
    }),
    ("NEXT RESTART", true, |r| r.next_restart.map(short).unwrap_or_default()),
    ("OPERATION", true, |r| or_none(r.operation.as_ref())),
];

const INCARNATION: &[TableColumn<IncarnationRow>] = &[
    ("ID", false, |r| r.id.to_string()),
    ("REPLICA", false, |r| r.replica.to_string()),
    ("NODE", false, |r| r.node.to_string()),
    ("STATE", false, |r| r.state.to_string()),
    ("READY", false, |r| if r.ready { "yes" } else { "no" }.into()),
    ("MESSAGE", false, |r| r.message.clone()),
    ("DEPLOYMENT", true, |r| r.deployment.to_string()),
    ("RESOURCES", true, |r| r.resources.to_string()),
    ("PROCESSES", true, |r| r.processes.iter().map(super::process::line).collect::<Vec<_>>().join(", ")),
    ("STARTS AFTER", true, |r| or_none(r.starts_after.as_ref())),
    ("AFFINITY VIOLATED", true, |r| or_none(r.affinity_violated.as_ref())),
    ("REVISION", true, |r| r.revision.to_string()),
    ("CREATED", true, |r| short(r.created_at)),
];

const OPERATION: &[TableColumn<OperationRow>] = &[
    ("ID", false, |r| r.id.to_string()),
    ("KIND", false, |r| r.kind.to_string()),
    ("REPLICA", false, |r| r.replica.to_string()),
    ("STATE", false, |r| r.state.to_string()),
    ("NODE", false, |r| or_none(r.node.as_ref())),
    ("REQUESTED BY", false, asker),
    ("APPROVED BY", false, |r| r.approved_by.as_ref().map(approver).unwrap_or_default()),
    ("MESSAGE", false, |r| r.message.clone()),
    ("TARGET DEPLOYMENT", true, |r| r.target_deployment.to_string()),
    ("HASH", true, |r| or_none(r.hash.as_ref())),
    ("CREATED", true, |r| short(r.created_at)),
];

const SESSION: &[TableColumn<SessionRow>] = &[
    ("ID", false, |r| r.id.to_string()),
    ("CLUSTER", false, |r| r.cluster.to_string()),
    ("EXECUTOR", false, |r| r.executor.to_string()),
    ("RUNTIME", false, |r| r.runtime.to_string()),
    ("STATE", false, |r| r.state.to_string()),
    ("CREATED", true, |r| short(r.created_at)),
];

const COMMAND: &[TableColumn<CommandRow>] = &[
    ("INCARNATION", false, |r| r.incarnation.to_string()),
    ("REVISION", false, |r| r.revision.to_string()),
    ("EFFECT", false, |r| r.effect.to_string()),
    ("ATTEMPT", false, |r| r.attempt.to_string()),
    ("NODE", false, |r| r.node.to_string()),
    ("REPLICA", false, |r| r.replica.to_string()),
    ("CREATED", true, |r| short(r.created_at)),
];

/// Number of operations of a plan in a state.
pub(super) fn count_of(plan: &PlanRow, state: &str) -> u64 {
    plan.operations.values().filter_map(|states| states.get(state)).sum()
}

/// Lists names; an empty list means all.
fn or_all(names: &[impl ToString]) -> String {
    if names.is_empty() { "all".into() } else { list(names) }
}

pub(super) fn list(names: &[impl ToString]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Formats coordinates: `web{version=v2}, cache{version=v1}`.
pub(super) fn coordinates(row: &DeploymentRow) -> String {
    let all = row.coordinates.iter().map(|(payload, keys)| {
        let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        format!("{payload}{{{}}}", keys.join(", "))
    });
    all.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use chancery_events::spec::Weekday;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_message_is_cut_unless_the_table_is_wide() {
        let row = |message: &str| {
            json!({
                "id": "00000000-0000-8252-8001-b24adb924579", "replica": "web-0100", "plan": "web", "kind": "delete",
                "deployment": null, "requested_by": {"actor": "ann"}, "target_deployment": "d-1", "state": "running",
                "hash": null, "node": null, "incarnation": null, "approved_by": null, "message": message, "version": 1,
                "position": 3, "created_at": "2026-11-21T09:00:00Z", "updated_at": "2026-11-21T09:00:00Z",
            })
        };
        let (fits, long) = ("é".repeat(60), "é".repeat(61));
        let lines = |message: &str, wide| {
            table(EntityKind::Operation, &[row(message)], wide).expect("a table").lines("")
        };
        assert!(lines(&fits, false).contains(&fits));
        assert!(
            lines(&long, false).contains(&format!("{}…", "é".repeat(59)))
                && lines(&long, true).contains(&long)
        );
    }

    #[test]
    fn who_requested_an_operation_is_named() {
        for (by, deployment, wanted) in [
            (json!({"actor": "ann"}), Value::Null, "ann"),
            (json!({"rule": "plan/web/restart"}), Value::Null, "rule plan/web/restart"),
            (
                json!({"rule": "deployment/web/d-1/rollback"}),
                json!("d-1"),
                "rule deployment/web/d-1/rollback",
            ),
            (json!({"disruption": {"node": "n", "name": "drain"}}), Value::Null, "disruption n/drain"),
            (Value::Null, json!("d-1"), "d-1"),
        ] {
            let row = json!({
                "id": "00000000-0000-8252-8001-b24adb924579", "replica": "web-0100", "plan": "web", "kind": "delete",
                "deployment": deployment, "requested_by": by, "target_deployment": "d-1", "state": "running", "hash": null, "node": null,
                "incarnation": null, "approved_by": null, "message": "", "version": 1, "position": 3,
                "created_at": "2026-11-21T09:00:00Z", "updated_at": "2026-11-21T09:00:00Z",
            });
            assert_eq!(asker(&typed(&row).expect("a row")), wanted);
        }
    }

    #[test]
    fn spans_windows_and_strategies_are_shown_as_they_are_written() {
        for (millis, wanted) in
            [(0, "0ms"), (1500, "1500ms"), (10_000, "10s"), (300_000, "5m"), (86_400_000, "1d")]
        {
            assert_eq!(span(millis), wanted);
        }
        let nightly = ApprovalWindow { days: vec![Weekday::Sat, Weekday::Sun], start: 1325, duration: 480 };
        assert_eq!(window(&nightly), "sat,sun 22:05 for 8h");
        assert_eq!(window(&ApprovalWindow { days: vec![], start: 0, duration: 90 }), "00:00 for 90m");
        let rolling =
            |max_parallel, per_domain, delay| DeploymentStrategy::Rolling { max_parallel, per_domain, delay };
        for (given, wanted) in [
            (rolling(None, false, 0), "rolling"),
            (rolling(Some(2), true, 10_000), "rolling max_parallel=2 per_domain delay=10s"),
            (
                DeploymentStrategy::BlueGreen { timeout: 300_000, on_timeout: TimeoutAction::CutOver },
                "blue_green 5m cut_over",
            ),
            (DeploymentStrategy::Canary { count: 1 }, "canary 1"),
        ] {
            assert_eq!(strategy(given), wanted);
        }
    }
}
