//! `describe`: one entity with its fields, related entities, waiting operations and recent events. Plans have
//! a page of their own.

use std::collections::BTreeMap;

use chancery_events::resources::{Resources, show_bytes};
use chancery_events::spec::DeploymentStrategy;
use chancery_projector::rows::{
    DeploymentRow, IncarnationRow, OperationRow, OperationStatus, PlanRow, ReplicaRow,
};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::client::{ApiClient, CommandIo};
use super::columns::{span, strategy, table, typed};
use super::context::OutputFormat;
use super::error::CliError;
use super::events;
use super::get::{list, name_of, shown};
use super::kind::EntityKind;
use super::plan_page::{PlanPage, ReplicaSection};
use super::request;
use super::table::{add, one_line};

use crate::note;

/// Maximum number of recent events that are shown.
const RECENT: usize = 12;
/// Maximum number of related entities of a kind that are shown.
const BELONGING: usize = 20;
/// Maximum number of related entities of a kind that are read.
const MOST: u64 = 2000;
/// Fields that are shown first; the others follow by name.
const FIRST: &[&str] = &["name", "id", "plan", "state", "phase", "activity", "message"];

pub(super) fn run(kind: EntityKind, name: &str, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let output = io.client.context.output(&[OutputFormat::Table, OutputFormat::Json, OutputFormat::Yaml])?;
    let item = shown(io.client, kind, name)?;
    let name = &name_of(kind, &item);
    if kind == EntityKind::Request && output == OutputFormat::Table {
        io.out.write_all(request::page(&typed(&item)?).as_bytes())?;
        writeln!(io.out, "\nRecent events")?;
        let past = events::table(&events::past(kind, name, io.client)?);
        return Ok(io.out.write_all(past.lines("  ").as_bytes())?);
    }
    if kind == EntityKind::Plan {
        return plan(name, &item, output, io);
    }
    let past = events::past(kind, name, io.client)?;
    let recent = &past[past.len().saturating_sub(RECENT)..];
    let belonging = belonging(kind, &item, io.client)?;
    let mut all = json!({ kind.word(): item, "recent": recent });
    for RelatedEntities { kind, items, .. } in &belonging {
        all[kind.plural()] = items.clone().into();
    }
    if output != OutputFormat::Table {
        return output.value(&all, io.out);
    }
    io.out.write_all(fields(kind, &item)?.as_bytes())?;
    for belonging in &belonging {
        io.out.write_all(belonging.text()?.as_bytes())?;
    }
    let operations = belonging.iter().filter(|b| b.kind == EntityKind::Operation).flat_map(|b| &b.items);
    let itself = Some(&item).filter(|_| kind == EntityKind::Operation);
    io.out.write_all(waits(operations.chain(itself))?.as_bytes())?;
    writeln!(io.out, "\nRecent events")?;
    Ok(io.out.write_all(events::table(recent).lines("  ").as_bytes())?)
}

/// Related entities of one kind.
struct RelatedEntities {
    kind: EntityKind,
    /// Filters with which `get` lists all of them.
    filters: Vec<(&'static str, String)>,
    items: Vec<Value>,
    more: bool,
}

/// Reads the related entities. Ids sort in the order of their issue: of kinds with ids, the newest are shown.
fn belonging(
    kind: EntityKind,
    item: &Value,
    client: &ApiClient<'_>,
) -> Result<Vec<RelatedEntities>, CliError> {
    let own = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
    let by = |field| vec![(field, own("name"))];
    let of_deployment = || vec![("plan", own("plan")), ("deployment", own("name"))];
    let wanted = match kind {
        EntityKind::Cluster => vec![(EntityKind::Node, by("cluster"))],
        EntityKind::Node => {
            vec![
                (EntityKind::Disruption, by("node")),
                (EntityKind::Incarnation, by("node")),
                (EntityKind::Volume, by("node")),
            ]
        }
        EntityKind::Deployment => {
            vec![(EntityKind::Replica, of_deployment()), (EntityKind::Operation, of_deployment())]
        }
        EntityKind::Replica => vec![
            (EntityKind::Incarnation, by("replica")),
            (EntityKind::Operation, by("replica")),
            (EntityKind::Volume, by("owner")),
        ],
        _ => vec![],
    };
    let read = |(kind, filters): (EntityKind, Vec<_>)| {
        let listed = list(client, kind, &filters, MOST)?;
        let (mut items, more) = (listed.items, listed.more);
        let hidden = items.len().saturating_sub(BELONGING);
        if matches!(kind, EntityKind::Incarnation | EntityKind::Operation) {
            items.drain(..hidden);
        } else {
            items.truncate(BELONGING);
        }
        Ok(RelatedEntities { kind, filters, items, more: more || hidden > 0 })
    };
    wanted.into_iter().map(read).collect()
}

impl RelatedEntities {
    fn text(&self) -> Result<String, CliError> {
        if self.items.is_empty() {
            return Ok(String::new());
        }
        let plural = self.kind.plural();
        let mut text = format!("\n{}{}\n", plural[..1].to_uppercase(), &plural[1..]);
        text.push_str(&table(self.kind, &self.items, false)?.lines("  "));
        if self.more {
            let filters: Vec<_> =
                self.filters.iter().map(|(name, value)| format!(" --filter {name}={value}")).collect();
            add(&mut text, format_args!("  try: chancery get {plural}{} --all\n", filters.concat()));
        }
        Ok(text)
    }
}

/// Lists what the operations wait for.
fn waits<'a>(operations: impl Iterator<Item = &'a Value>) -> Result<String, CliError> {
    let mut text = String::new();
    for item in operations {
        let row: OperationRow = typed(item)?;
        let (id, kind, message) = (row.id, row.kind, one_line(&row.message));
        let line = match row.state {
            OperationStatus::PendingApproval => format!("approval to {kind}: chancery approve {id}"),
            OperationStatus::Preparing => format!("a placement to {kind}: {message}"),
            OperationStatus::Approved => format!("the queue to {kind}: operation {id}"),
            OperationStatus::Running => format!("operation {id} to {kind}: {message}"),
            OperationStatus::Succeeded
            | OperationStatus::Failed
            | OperationStatus::Rejected
            | OperationStatus::Expired
            | OperationStatus::Cancelled
            | OperationStatus::Superseded => continue,
        };
        add(&mut text, format_args!("  {}\n", line.trim_end_matches([':', ' '])));
    }
    Ok(if text.is_empty() { text } else { format!("\nWaits for\n{text}") })
}

/// Formats the fields, one on each line; parts follow below the name of their field.
fn fields(kind: EntityKind, item: &Value) -> Result<String, CliError> {
    let mut text = format!("{}/{}\n", kind.word(), name_of(kind, item));
    let map = item.as_object().ok_or_else(|| CliError::failure("cannot read answer: not an object"))?;
    let first = FIRST.iter().filter_map(|name| Some((*name, map.get(*name)?)));
    let rest =
        map.iter().map(|(name, value)| (name.as_str(), value)).filter(|(name, _)| !FIRST.contains(name));
    for (name, value) in first.chain(rest) {
        let label = format!("  {:<14}", format!("{}:", name.replace('_', " ")));
        if let Some(value) = with_unit(name, value) {
            add(&mut text, format_args!("{label} {value}\n"));
            continue;
        }
        match value {
            Value::Null => {}
            Value::String(value) if value.is_empty() => {}
            Value::String(value) => add(&mut text, format_args!("{label} {}\n", one_line(value))),
            Value::Array(items) if items.is_empty() => {}
            Value::Object(parts) if parts.is_empty() => {}
            // Listed below.
            Value::Array(_) if kind == EntityKind::Node && name == "disruptions" => {}
            Value::Object(_) if kind == EntityKind::Policy && name == "spec" => {
                columns(&mut text, kind, item)?;
            }
            Value::Object(_) | Value::Array(_) => {
                if let Some(value) = without_empty(value) {
                    parts(&mut text, name, &label, &value)?;
                }
            }
            other => add(&mut text, format_args!("{label} {other}\n")),
        }
    }
    Ok(text)
}

/// Returns a value without the fields in it that are null or empty; `None` if nothing is left. Elements of lists keep their places.
fn without_empty(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(parts) => {
            let parts = parts.iter().filter_map(|(name, part)| Some((name.clone(), without_empty(part)?)));
            let parts: serde_json::Map<_, _> = parts.collect();
            (!parts.is_empty()).then_some(Value::Object(parts))
        }
        Value::Array(items) if items.is_empty() => None,
        Value::Array(items) => {
            Some(items.iter().map(|item| without_empty(item).unwrap_or_else(|| item.clone())).collect())
        }
        other => Some(other.clone()),
    }
}

/// Formats a field that has a unit as manifests write it; `None` for other fields.
fn with_unit(name: &str, value: &Value) -> Option<String> {
    match name {
        "progress_deadline" => value.as_u64().map(span),
        "capacity" => value.as_u64().map(show_bytes),
        "strategy" => DeploymentStrategy::deserialize(value).ok().map(strategy),
        _ => None,
    }
}

/// Formats the columns of an entity's table, one on each line, as manifests write them.
fn columns(text: &mut String, kind: EntityKind, item: &Value) -> Result<(), CliError> {
    let table = table(kind, std::slice::from_ref(item), false)?;
    let cells = table.cells().flatten();
    for (head, cell) in table.heads().zip(cells).filter(|(head, cell)| *head != "NAME" && *cell != "-") {
        let label = format!("{}:", head.to_lowercase());
        add(text, format_args!("  {label:<14} {cell}\n"));
    }
    Ok(())
}

/// Formats a field with parts: resources as in manifests, all others as YAML below the name.
fn parts(text: &mut String, name: &str, label: &str, value: &Value) -> Result<(), CliError> {
    if let Ok(amounts) = Resources::deserialize(value) {
        add(text, format_args!("{label} {amounts}\n"));
        return Ok(());
    }
    let yaml = serde_saphyr::to_string(value)
        .map_err(|error| CliError::failure(format!("cannot show {name}: {error}")))?;
    add(text, format_args!("{}\n", label.trim_end()));
    text.extend(yaml.lines().map(|line| format!("    {line}\n")));
    Ok(())
}

/// Shows a plan with its related entities.
fn plan(name: &str, item: &Value, output: OutputFormat, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let of = [("plan", name.to_owned())];
    let read = |kind| list(io.client, kind, &of, MOST);
    let (deployments, replicas) = (read(EntityKind::Deployment)?, read(EntityKind::Replica)?);
    let (incarnations, operations) = (read(EntityKind::Incarnation)?, read(EntityKind::Operation)?);
    let more = [&deployments, &replicas, &incarnations, &operations].iter().any(|listed| listed.more);
    if more {
        note!("hint: only the first {MOST} of each kind are shown");
    }
    if output != OutputFormat::Table {
        let all = json!({
            "plan": item, "deployments": deployments.items, "replicas": replicas.items,
            "incarnations": incarnations.items, "operations": operations.items,
        });
        return output.value(&all, io.out);
    }
    let plan: PlanRow = typed(item)?;
    let rows = deployments.items.iter().map(typed::<DeploymentRow>).collect::<Result<Vec<_>, _>>()?;
    let mut members = BTreeMap::new();
    for item in &replicas.items {
        let replica: ReplicaRow = typed(item)?;
        let name = replica.name.clone();
        members.insert(name, ReplicaSection { replica, incarnations: vec![], operations: vec![] });
    }
    for item in &incarnations.items {
        let row: IncarnationRow = typed(item)?;
        if let Some(member) = members.get_mut(&row.replica) {
            member.incarnations.push(row);
        }
    }
    for item in &operations.items {
        let row: OperationRow = typed(item)?;
        if let Some(member) = members.get_mut(&row.replica) {
            member.operations.push(row);
        }
    }
    let members: Vec<_> = members.into_values().collect();
    Ok(io.out.write_all(PlanPage { plan: &plan, deployments: &rows, members: &members }.text().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_sorted_by_importance_and_amounts_are_readable() {
        let item = json!({
            "updated_at": "2026-11-21T09:00:00Z", "name": "node-1", "state": "allocated", "zone": null, "message": "",
            "resources": {"cpu": 4000, "memory": 8_589_934_592_u64, "disk": 0}, "labels": {"disk": "fast"}, "version": 3,
        });
        let wanted = "node/node-1\n  name:          node-1\n  state:         allocated\n  labels:\n    disk: fast\n  \
                      resources:     cpu 4, memory 8GiB, disk 0B\n  updated at:    2026-11-21T09:00:00Z\n  \
                      version:       3\n";
        assert_eq!(fields(EntityKind::Node, &item).expect("an object"), wanted);
        let rule = json!({"approve": {"windows": [{"days": ["sat"], "start": 1320, "duration": 60}], "max_in_flight": 3}});
        let item = json!({
            "name": "weekends", "spec": {"kinds": ["update"], "plans": [], "domains": [], "rule": rule}, "version": 1,
            "created_at": "2026-11-21T09:00:00Z", "updated_at": "2026-11-21T09:00:00Z", "position": 3,
        });
        let text = fields(EntityKind::Policy, &item).expect("an object");
        let wanted = "  rule:          approve\n  kinds:         update\n  plans:         all\n  domains:       all\n  \
                      windows:       sat 22:00 for 1h\n  max in flight: 3\n";
        assert!(text.contains(wanted), "{text}");
    }

    #[test]
    fn parts_that_are_null_or_empty_are_omitted_and_zeros_are_shown() {
        let process = json!({
            "payload": "web", "index": 0, "pid": 7, "addresses": [], "object": null, "since": null, "resets": 0, "status": "ready",
        });
        let item = json!({
            "name": "web-7f3k", "processes": [process], "rest": {"a": {"b": null}},
        });
        let text = fields(EntityKind::Replica, &item).expect("an object");
        for gone in ["addresses", "object", "since", "rest"] {
            assert!(!text.contains(gone), "{text}");
        }
        for kept in ["payload: web", "index: 0", "resets: 0", "status: ready"] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
        let kept = json!({"gpu": "", "pair": [null, {}], "off": false});
        assert_eq!(without_empty(&kept), Some(kept));
    }
}
