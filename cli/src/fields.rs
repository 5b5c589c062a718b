//! Fields of entities and their possible values, so that a wait for an impossible value fails immediately.

use chancery_events::each_kind;
use chancery_events::spec::OperationKind;
use chancery_projector::rows::{self, OperationStatus, PhaseStatus};
use schemars::{Schema, schema_for};
use serde_json::Value;

use super::disruption;
use super::error::CliError;
use super::kind::EntityKind;
use crate::manifest::suggest::instead;

/// Refuses a field that the kind does not have, or a value that the field cannot have.
pub(super) fn check(kind: EntityKind, path: &[&str], wanted: &str) -> Result<(), CliError> {
    let schema = schema(kind);
    let whole = path.join(".");
    let unknown = |at: usize, known: &[&str]| {
        let of = if at == 0 { format!("a {}", kind.word()) } else { format!("{:?}", path[..at].join(".")) };
        CliError::usage(format!("invalid field {:?} of {of}{}", path[at], instead(path[at], known)))
    };
    if let Some(words) = counted(kind, path[0]) {
        return counts(&words, path, wanted, &unknown);
    }
    let mut now = schema.as_value();
    for (at, name) in path.iter().enumerate() {
        let node = resolve(&schema, now);
        now = if let Some(properties) = node["properties"].as_object() {
            let names: Vec<_> = properties.keys().map(String::as_str).collect();
            properties.get(*name).ok_or_else(|| unknown(at, &names))?
        } else {
            values(node).ok_or_else(|| unknown(at, &[]))?
        };
    }
    let node = resolve(&schema, now);
    let is_integer = node["type"] == "integer";
    let known = if node["type"] == "boolean" { vec!["true", "false"] } else { words(node) };
    let is_fine =
        if is_integer { wanted.parse::<u64>().is_ok() } else { known.is_empty() || known.contains(&wanted) };
    // An absent value is shown as none.
    if is_fine || wanted == "none" {
        return Ok(());
    }
    if is_integer {
        return Err(number(kind, &whole, wanted));
    }
    Err(CliError::usage(format!(
        "invalid {whole} {wanted:?} of a {}{}",
        kind.word(),
        instead(wanted, &known)
    )))
}

fn number(kind: EntityKind, field: &str, wanted: &str) -> CliError {
    CliError::usage(format!("invalid {field} {wanted:?} of a {}: must be an integer", kind.word()))
}

/// Returns the names at each level below a field of counters. A row omits counters that are zero.
fn counted(kind: EntityKind, field: &str) -> Option<Vec<Vec<&'static str>>> {
    match (kind, field) {
        (EntityKind::Plan, "replicas") => {
            Some(vec![PhaseStatus::ALL.iter().map(|phase| phase.word()).chain(["total"]).collect()])
        }
        (EntityKind::Plan, "operations") => Some(vec![
            OperationKind::ALL.iter().map(|kind| kind.word()).collect(),
            OperationStatus::ALL.iter().map(|state| state.word()).collect(),
        ]),
        _ => None,
    }
}

fn counts(
    words: &[Vec<&str>],
    path: &[&str],
    wanted: &str,
    unknown: &dyn Fn(usize, &[&str]) -> CliError,
) -> Result<(), CliError> {
    for (at, known) in words.iter().enumerate() {
        match path.get(at + 1) {
            Some(name) if known.contains(name) => {}
            Some(_) => return Err(unknown(at + 1, known)),
            None => {
                let whole = path.join(".");
                return Err(CliError::usage(format!(
                    "invalid field {whole}: must name a counter, as {whole}.{}",
                    known[0]
                )));
            }
        }
    }
    match path.get(words.len() + 1) {
        Some(_) => Err(unknown(words.len() + 1, &[])),
        None if wanted.parse::<u64>().is_ok() => Ok(()),
        None => Err(number(EntityKind::Plan, &path.join("."), wanted)),
    }
}

macro_rules! schemas {
    ($($kind:ident $word:literal $plural:literal $aliases:tt $place:literal $about:literal {
        key $key:tt $(owner $owner:tt)? $(entity $entity:tt)? $(row($rows:ident = $number:literal: $row:ident))?
        $(ends $ends:tt)? $(manifest $manifest:tt)?
    })*) => {
        /// Schema of a row of a kind.
        pub(super) fn schema(kind: EntityKind) -> Schema {
            match kind {
                $($(EntityKind::$kind => schema_for!(rows::$row),)?)*
                EntityKind::Disruption => schema_for!(disruption::DisruptionItem),
            }
        }
    };
}

each_kind!(schemas);

/// Follows references, and skips the alternative `null`.
fn resolve<'a>(schema: &'a Schema, mut node: &'a Value) -> &'a Value {
    loop {
        if let Some(name) = node["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
            node = &schema.as_value()["$defs"][name];
        } else if let Some(choices) = node["anyOf"].as_array() {
            let Some(choice) = choices.iter().find(|choice| choice["type"] != "null") else { return node };
            node = choice;
        } else {
            return node;
        }
    }
}

/// Schema of the values of a map.
pub(super) fn values(node: &Value) -> Option<&Value> {
    let by_pattern = || node["patternProperties"].as_object()?.values().next();
    Some(&node["additionalProperties"]).filter(|more| more.is_object()).or_else(by_pattern)
}

/// Returns the possible values of a string; empty if any value is possible.
fn words(node: &Value) -> Vec<&str> {
    let constants = |choices: &'_ Vec<Value>| choices.iter().all(|choice| choice["const"].is_string());
    match (&node["enum"], &node["oneOf"]) {
        (Value::Array(words), _) => words.iter().filter_map(Value::as_str).collect(),
        (_, Value::Array(choices)) if constants(choices) => {
            choices.iter().filter_map(|choice| choice["const"].as_str()).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_never_occurs_is_refused_with_a_suggestion() {
        for (kind, field, value, wanted) in [
            (EntityKind::Replica, "phase", "running", ""),
            (EntityKind::Replica, "node", "none", ""),
            (EntityKind::Replica, "ready", "true", ""),
            (EntityKind::Plan, "replicas.running", "3", ""),
            (EntityKind::Plan, "operations.create.pending_approval", "1", ""),
            (EntityKind::Replica, "phase", "updating", ""),
            (EntityKind::Replica, "phase", "restarting", ""),
            (EntityKind::Replica, "secondary.state", "starting", ""),
            (EntityKind::Operation, "state", "approved", ""),
            (EntityKind::Deployment, "state", "paused", ""),
            (EntityKind::Deployment, "active_set", "new", ""),
            (EntityKind::Disruption, "state", "completed", ""),
            (EntityKind::Plan, "replicas.updating", "0", ""),
            (EntityKind::Plan, "operations.relocate.pending_approval", "1", ""),
            (EntityKind::Plan, "spec.service", "web", ""),
            (EntityKind::Node, "labels.disk", "fast", ""),
            (
                EntityKind::Replica,
                "phase",
                "runing",
                "invalid phase \"runing\" of a replica: did you mean \"running\"?",
            ),
            (
                EntityKind::Replica,
                "ready",
                "yes",
                "invalid ready \"yes\" of a replica: must be one of true, false",
            ),
            (
                EntityKind::Replica,
                "fase",
                "running",
                "invalid field \"fase\" of a replica: did you mean \"phase\"?",
            ),
            (EntityKind::Node, "version", "x", "invalid version \"x\" of a node: must be an integer"),
            (EntityKind::Node, "state.x", "y", "invalid field \"x\" of \"state\""),
            (
                EntityKind::Plan,
                "replicas.runing",
                "3",
                "invalid field \"runing\" of \"replicas\": did you mean \"running\"?",
            ),
            (
                EntityKind::Plan,
                "operations.create",
                "1",
                "invalid field operations.create: must name a counter, as operations.create.preparing",
            ),
            (
                EntityKind::Plan,
                "replicas.running",
                "x",
                "invalid replicas.running \"x\" of a plan: must be an integer",
            ),
        ] {
            let path: Vec<_> = field.split('.').collect();
            let message = check(kind, &path, value).err().map_or(String::new(), |error| error.message);
            assert_eq!(message, wanted, "{field}={value}");
        }
    }
}
