//! The columns of each kind's table.

use chancery_events::amount::{show_bytes, show_cpu};
use chancery_events::fact::Approver;
use chancery_events::time::Time;
use chancery_projector::rows::{
    CapabilityRow, ClusterRow, CommandRow, DeploymentRow, IncarnationRow, NodeRow, OperationRow, PlanRow,
    ReplicaRow, SessionRow,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::CliError;
use super::kind::Kind;
use super::table::Rows;

/// Head, whether it is shown by `-o wide` alone, and the cell of a row.
type Column<R> = (&'static str, bool, fn(&R) -> String);

/// The table of `items`, which are of one kind.
pub(super) fn table(kind: Kind, items: &[Value], wide: bool) -> Result<Rows, CliError> {
    match kind {
        Kind::Cluster => rows(CLUSTER, items, wide),
        Kind::Capability => rows(CAPABILITY, items, wide),
        Kind::Node => rows(NODE, items, wide),
        Kind::Plan => rows(PLAN, items, wide),
        Kind::Deployment => rows(DEPLOYMENT, items, wide),
        Kind::Replica => rows(REPLICA, items, wide),
        Kind::Incarnation => rows(INCARNATION, items, wide),
        Kind::Operation => rows(OPERATION, items, wide),
        Kind::Session => rows(SESSION, items, wide),
        Kind::Command => rows(COMMAND, items, wide),
    }
}

fn rows<R: DeserializeOwned>(columns: &[Column<R>], items: &[Value], wide: bool) -> Result<Rows, CliError> {
    let shown = || columns.iter().filter(|(_, only_wide, _)| wide || !only_wide);
    let mut rows = Rows::new(shown().map(|(head, _, _)| *head));
    for item in items {
        let row: R = typed(item)?;
        rows.add(shown().map(|(_, _, cell)| cell(&row)));
    }
    Ok(rows)
}

/// An item as the row that it should be.
pub(super) fn typed<R: DeserializeOwned>(item: &Value) -> Result<R, CliError> {
    R::deserialize(item).map_err(|error| {
        CliError::failure(format!(
            "read the answer: the server's rows are not those of this client ({error}); try -o json, or the \
             server's own version of chancery"
        ))
    })
}

/// Of something that may be missing.
fn or_none(value: Option<&impl ToString>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// A moment as it is read at a glance.
pub(super) fn short(time: Time) -> String {
    let text = time.to_string();
    text.get(..19).map_or(text.clone(), |seconds| format!("{seconds}Z"))
}

pub(super) fn approver(by: &Approver) -> String {
    match by {
        Approver::Actor(actor) => actor.to_string(),
        Approver::Rule(rule) => format!("rule {rule}"),
    }
}

const CLUSTER: &[Column<ClusterRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("RUNTIME", false, |r| r.runtime.to_string()),
    ("STATE", false, |r| r.activity.to_string()),
    ("NODES", false, |r| r.nodes.to_string()),
    ("EXECUTOR", false, |r| or_none(r.executor.as_ref())),
    ("SESSION", true, |r| or_none(r.session.as_ref())),
    ("VERSION", true, |r| r.version.to_string()),
    ("CHANGED", true, |r| short(r.changed)),
];

const CAPABILITY: &[Column<CapabilityRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("TYPE", false, |r| r.kind.to_string()),
    ("SCORE", false, |r| r.score.to_string()),
    ("STATE", false, |r| r.activity.to_string()),
    ("VERSION", true, |r| r.version.to_string()),
    ("CHANGED", true, |r| short(r.changed)),
];

const NODE: &[Column<NodeRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("STATE", false, |r| r.state.to_string()),
    ("CLUSTER", false, |r| or_none(r.cluster.as_ref())),
    ("DOMAIN", false, |r| r.domain.to_string()),
    ("CPU", false, |r| format!("{}/{}", show_cpu(r.remaining.cpu), show_cpu(r.total.cpu))),
    ("MEMORY", false, |r| format!("{}/{}", show_bytes(r.remaining.memory), show_bytes(r.total.memory))),
    ("RUNS", false, |r| r.incarnations.to_string()),
    ("DISK", true, |r| format!("{}/{}", show_bytes(r.remaining.disk), show_bytes(r.total.disk))),
    ("ZONE", true, |r| or_none(r.zone.as_ref())),
    ("CAPABILITIES", true, |r| list(&r.capabilities)),
    ("STORAGE", true, |r| {
        let one = |s: &chancery_projector::rows::StorageRow| {
            format!("{} {}/{}", s.class, show_bytes(s.remaining), show_bytes(s.capacity))
        };
        r.storage.iter().map(one).collect::<Vec<_>>().join(", ")
    }),
    ("VERSION", true, |r| r.version.to_string()),
];

const PLAN: &[Column<PlanRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("NAMESPACE", false, |r| r.spec.namespace.to_string()),
    ("SERVICE", false, |r| r.spec.service.to_string()),
    ("STATE", false, |r| r.activity.to_string()),
    ("DEPLOYMENT", false, |r| or_none(r.current.as_ref())),
    ("RUNNING", false, |r| {
        let count = |phase: &str| r.replicas.get(phase).copied().unwrap_or(0);
        format!("{}/{}", count("running"), count("total"))
    }),
    ("APPROVALS", false, |r| count_of(r, "pending_approval").to_string()),
    ("MESSAGE", false, |r| r.message.clone()),
    ("GENERATION", true, |r| r.generation.to_string()),
    ("NEXT", true, |r| or_none(r.next.as_ref())),
    ("VERSION", true, |r| r.version.to_string()),
];

const DEPLOYMENT: &[Column<DeploymentRow>] = &[
    ("PLAN", false, |r| r.plan.to_string()),
    ("NAME", false, |r| r.name.to_string()),
    ("COUNT", false, |r| r.count.to_string()),
    ("STATE", false, |r| r.state.to_string()),
    ("MESSAGE", false, |r| r.message.clone()),
    ("COORDINATES", true, coordinates),
    ("GENERATION", true, |r| r.generation.to_string()),
    ("CREATED", true, |r| short(r.created)),
];

const REPLICA: &[Column<ReplicaRow>] = &[
    ("NAME", false, |r| r.name.to_string()),
    ("PLAN", false, |r| r.plan.to_string()),
    ("DEPLOYMENT", false, |r| r.deployment.to_string()),
    ("PHASE", false, |r| r.phase.to_string()),
    ("READY", false, |r| if r.ready { "yes" } else { "no" }.into()),
    ("NODE", false, |r| or_none(r.node.as_ref())),
    ("MESSAGE", false, |r| r.message.clone()),
    ("WILL", true, |r| r.will.to_string()),
    ("PROCESSES", true, |r| r.processes.iter().map(super::process::line).collect::<Vec<_>>().join(", ")),
    ("INCARNATION", true, |r| or_none(r.incarnation.as_ref())),
    ("OPERATION", true, |r| or_none(r.operation.as_ref())),
];

const INCARNATION: &[Column<IncarnationRow>] = &[
    ("ID", false, |r| r.id.to_string()),
    ("REPLICA", false, |r| r.replica.to_string()),
    ("NODE", false, |r| r.node.to_string()),
    ("STATE", false, |r| r.state.to_string()),
    ("READY", false, |r| if r.ready { "yes" } else { "no" }.into()),
    ("MESSAGE", false, |r| r.message.clone()),
    ("DEPLOYMENT", true, |r| r.deployment.to_string()),
    ("HOLDS", true, |r| r.amounts.to_string()),
    ("PROCESSES", true, |r| r.processes.iter().map(super::process::line).collect::<Vec<_>>().join(", ")),
    ("REVISION", true, |r| r.revision.to_string()),
    ("CREATED", true, |r| short(r.created)),
];

const OPERATION: &[Column<OperationRow>] = &[
    ("ID", false, |r| r.id.to_string()),
    ("KIND", false, |r| r.kind.to_string()),
    ("REPLICA", false, |r| r.replica.to_string()),
    ("STATE", false, |r| r.state.to_string()),
    ("NODE", false, |r| or_none(r.node.as_ref())),
    ("BY", false, |r| r.deployment.as_ref().map_or("user".into(), ToString::to_string)),
    ("MESSAGE", false, |r| r.message.clone()),
    ("APPROVED", true, |r| r.approved_by.as_ref().map(approver).unwrap_or_default()),
    ("HASH", true, |r| or_none(r.hash.as_ref())),
    ("CREATED", true, |r| short(r.created)),
];

const SESSION: &[Column<SessionRow>] = &[
    ("ID", false, |r| r.id.to_string()),
    ("CLUSTER", false, |r| r.cluster.to_string()),
    ("EXECUTOR", false, |r| r.executor.to_string()),
    ("RUNTIME", false, |r| r.runtime.to_string()),
    ("STATE", false, |r| r.state.to_string()),
    ("CREATED", true, |r| short(r.created)),
];

const COMMAND: &[Column<CommandRow>] = &[
    ("INCARNATION", false, |r| r.incarnation.to_string()),
    ("REVISION", false, |r| r.revision.to_string()),
    ("EFFECT", false, |r| r.effect.to_string()),
    ("ATTEMPT", false, |r| r.attempt.to_string()),
    ("NODE", false, |r| r.node.to_string()),
    ("REPLICA", false, |r| r.replica.to_string()),
    ("CREATED", true, |r| short(r.created)),
];

/// Operations of a plan that are in a state now.
pub(super) fn count_of(plan: &PlanRow, state: &str) -> u64 {
    plan.operations.values().filter_map(|states| states.get(state)).sum()
}

pub(super) fn list(names: &[impl ToString]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// `web{version=v2}, cache{version=v1}`.
pub(super) fn coordinates(row: &DeploymentRow) -> String {
    let one = |(payload, keys): (&_, &std::collections::BTreeMap<_, String>)| {
        let keys: Vec<_> = keys
            .iter()
            .map(|(key, value): (&chancery_events::name::Key, _)| format!("{key}={value}"))
            .collect();
        let payload: &chancery_events::name::PayloadName = payload;
        format!("{payload}{{{}}}", keys.join(", "))
    };
    row.coordinates.iter().map(one).collect::<Vec<_>>().join(", ")
}
