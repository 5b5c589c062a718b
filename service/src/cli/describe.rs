//! `describe`: everything about one entity. Plans have a page of their own; others show their fields and what
//! happened to them last.

use std::io::Write;

use chancery_events::amount::Amounts;
use chancery_projector::rows::{DeploymentRow, IncarnationRow, OperationRow, PlanRow, ReplicaRow};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::client::Client;
use super::columns::typed;
use super::context::Output;
use super::error::CliError;
use super::events;
use super::get::{json_text, list, name_of, one, yaml_text};
use super::kind::Kind;
use super::plan_page::{Member, Page};
use super::table::{add, one_line};

/// The last events that are shown.
const RECENT: usize = 12;
/// At most so many of each kind are read for a page.
const MOST: u64 = 2000;
/// Fields that come first; the others follow by name.
const FIRST: &[&str] = &["name", "id", "plan", "state", "phase", "activity", "message"];

pub(super) fn run(kind: Kind, name: &str, client: &Client<'_>, out: &mut dyn Write) -> Result<(), CliError> {
    let output = client.context.output(&[Output::Table, Output::Json, Output::Yaml])?;
    let item = one(client, kind, name)?;
    if kind == Kind::Plan {
        return plan(name, &item, output, client, out);
    }
    let past = events::past(kind, name, client)?;
    let recent = &past[past.len().saturating_sub(RECENT)..];
    let all = json!({ kind.word(): item, "recent": recent });
    match output {
        Output::Json => json_text(&all, out),
        Output::Yaml => yaml_text(&all, out),
        _ => {
            out.write_all(fields(kind, &item)?.as_bytes())?;
            writeln!(out, "\nRecent events")?;
            Ok(out.write_all(events::table(recent).lines("  ").as_bytes())?)
        }
    }
}

/// A field a line, what has parts below its name.
fn fields(kind: Kind, item: &Value) -> Result<String, CliError> {
    let mut text = format!("{}/{}\n", kind.word(), name_of(kind, item));
    let map = item.as_object().ok_or_else(|| CliError::failure("the answer is no object"))?;
    let first = FIRST.iter().filter_map(|name| Some((*name, map.get(*name)?)));
    let rest =
        map.iter().map(|(name, value)| (name.as_str(), value)).filter(|(name, _)| !FIRST.contains(name));
    for (name, value) in first.chain(rest) {
        let label = format!("  {:<14}", format!("{}:", name.replace('_', " ")));
        match value {
            Value::Null => {}
            Value::String(value) if value.is_empty() => {}
            Value::String(value) => add(&mut text, format_args!("{label} {}\n", one_line(value))),
            Value::Array(items) if items.is_empty() => {}
            Value::Object(parts) if parts.is_empty() => {}
            Value::Object(_) | Value::Array(_) => parts(&mut text, name, &label, value)?,
            other => add(&mut text, format_args!("{label} {other}\n")),
        }
    }
    Ok(text)
}

/// A field that has parts: amounts as people write them, all else as YAML below its name.
fn parts(text: &mut String, name: &str, label: &str, value: &Value) -> Result<(), CliError> {
    if let Ok(amounts) = Amounts::deserialize(value) {
        add(text, format_args!("{label} {amounts}\n"));
        return Ok(());
    }
    let yaml =
        serde_saphyr::to_string(value).map_err(|error| CliError::failure(format!("show {name}: {error}")))?;
    add(text, format_args!("{}\n", label.trim_end()));
    text.extend(yaml.lines().map(|line| format!("    {line}\n")));
    Ok(())
}

/// A plan with all that belongs to it.
fn plan(
    name: &str,
    item: &Value,
    output: Output,
    client: &Client<'_>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let of = [("plan", name.to_owned())];
    let read = |kind| list(client, kind, &of, MOST);
    let (deployments, replicas) = (read(Kind::Deployment)?, read(Kind::Replica)?);
    let (incarnations, operations) = (read(Kind::Incarnation)?, read(Kind::Operation)?);
    let more = [&deployments, &replicas, &incarnations, &operations].iter().any(|listed| listed.more);
    if more {
        eprintln!("the first {MOST} of each kind are shown");
    }
    let all = || {
        json!({
            "plan": item, "deployments": deployments.items, "replicas": replicas.items,
            "incarnations": incarnations.items, "operations": operations.items,
        })
    };
    match output {
        Output::Json => return json_text(&all(), out),
        Output::Yaml => return yaml_text(&all(), out),
        _ => {}
    }
    let plan: PlanRow = typed(item)?;
    let rows = deployments.items.iter().map(typed::<DeploymentRow>).collect::<Result<Vec<_>, _>>()?;
    let mut members = replicas
        .items
        .iter()
        .map(|item| {
            Ok(Member { replica: typed::<ReplicaRow>(item)?, incarnations: vec![], operations: vec![] })
        })
        .collect::<Result<Vec<_>, CliError>>()?;
    // Replicas come in the order of their names, and there may be many.
    members.sort_by(|a, b| a.replica.name.cmp(&b.replica.name));
    for item in &incarnations.items {
        let row: IncarnationRow = typed(item)?;
        if let Ok(index) = members.binary_search_by(|member| member.replica.name.cmp(&row.replica)) {
            members[index].incarnations.push(row);
        }
    }
    for item in &operations.items {
        let row: OperationRow = typed(item)?;
        if let Ok(index) = members.binary_search_by(|member| member.replica.name.cmp(&row.replica)) {
            members[index].operations.push(row);
        }
    }
    Ok(out.write_all(Page { plan: &plan, deployments: &rows, members: &members }.text().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_by_importance_and_amounts_as_people_write_them() {
        let item = json!({
            "changed": "2026-11-21T09:00:00Z", "name": "node-1", "state": "allocated", "zone": null, "message": "",
            "total": {"cpu": 4000, "memory": 8_589_934_592_u64, "disk": 0}, "labels": {"disk": "fast"}, "version": 3,
        });
        let wanted = "node/node-1\n  name:          node-1\n  state:         allocated\n  changed:       \
                      2026-11-21T09:00:00Z\n  labels:\n    disk: fast\n  total:         cpu 4, memory 8GiB, disk 0B\n  \
                      version:       3\n";
        assert_eq!(fields(Kind::Node, &item).expect("an object"), wanted);
    }
}
