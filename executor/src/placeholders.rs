//! Values that a runtime gives each process: placeholders of its texts, and variables that describe the process.
//!
//! Placeholders: `${port.NAME}`, `${replica}`, `${incarnation}`, `${node}`, `${process}`, `${volume.MOUNT}`,
//! coordinates as `${KEY}`; `$$` is a dollar.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use chancery_events::id::IncarnationId;
use chancery_events::name::{KeyName, PayloadName, PortName};
use chancery_events::protocol::IncarnationSpec;
use chancery_events::template::{self, InvalidTemplate};

/// Values of the placeholders in one process.
#[derive(Debug)]
pub(crate) struct PlaceholderValues<'a> {
    pub(crate) incarnation: IncarnationId,
    pub(crate) spec: &'a IncarnationSpec,
    pub(crate) index: u16,
    pub(crate) ports: &'a BTreeMap<PortName, u16>,
    pub(crate) coordinates: &'a BTreeMap<KeyName, String>,
    /// Paths of the payload's volumes, by mount path.
    pub(crate) volumes: &'a BTreeMap<String, PathBuf>,
}

/// Fills in one text.
pub(crate) fn fill(text: &str, values: &PlaceholderValues<'_>) -> Result<String, InvalidTemplate> {
    template::fill(text, |name| value(name, values))
}

fn value(name: &str, values: &PlaceholderValues<'_>) -> Option<String> {
    if let Some(port) = name.strip_prefix("port.") {
        return values.ports.get(port).map(u16::to_string);
    }
    if let Some(mount) = name.strip_prefix("volume.") {
        return values.volumes.get(mount).map(|path| path.display().to_string());
    }
    match name {
        "replica" => Some(values.spec.replica.to_string()),
        "incarnation" => Some(values.incarnation.to_string()),
        "node" => Some(values.spec.node.to_string()),
        "process" => Some(values.index.to_string()),
        key => values.coordinates.get(key).cloned(),
    }
}

/// Variable with the incarnation's directory in the environment of its processes.
pub(crate) const DIRECTORY_VARIABLE: &str = "CHANCERY_DIRECTORY";

/// Variables that describe a process and its location, each with its meaning. Variables without a value are
/// not set.
pub const PAYLOAD_VARIABLES: &[(&str, &str)] = &[
    ("CHANCERY_NAMESPACE", "namespace of the plan"),
    ("CHANCERY_PLAN", "name of the plan"),
    ("CHANCERY_DEPLOYMENT", "name of the deployment that set its version, at the start"),
    ("CHANCERY_REPLICA", "name of the replica"),
    ("CHANCERY_INCARNATION", "id of the incarnation"),
    ("CHANCERY_PAYLOAD", "name of the payload"),
    ("CHANCERY_PROCESS", "number of the process in its payload, from 0"),
    ("CHANCERY_NODE", "name of the node"),
    ("CHANCERY_DOMAIN", "update domain of the node, at the start"),
    ("CHANCERY_ZONE", "zone of the node, at the start; not set if the node has none"),
    (DIRECTORY_VARIABLE, "directory of the incarnation, for the executor; not set on Kubernetes"),
];

/// Returns the variables that describe a process; `directory` is that of the incarnation, on runtimes of processes.
pub(crate) fn identity(
    incarnation: IncarnationId,
    spec: &IncarnationSpec,
    payload: &PayloadName,
    index: u16,
    directory: Option<&Path>,
) -> Vec<(String, String)> {
    let labels = &spec.labels;
    let value = |variable: &str| match variable {
        "CHANCERY_NAMESPACE" => Some(labels.namespace.to_string()),
        "CHANCERY_PLAN" => Some(spec.plan.to_string()),
        "CHANCERY_DEPLOYMENT" => Some(labels.deployment.to_string()),
        "CHANCERY_REPLICA" => Some(spec.replica.to_string()),
        "CHANCERY_INCARNATION" => Some(incarnation.to_string()),
        "CHANCERY_PAYLOAD" => Some(payload.to_string()),
        "CHANCERY_PROCESS" => Some(index.to_string()),
        "CHANCERY_NODE" => Some(spec.node.to_string()),
        "CHANCERY_DOMAIN" => labels.domain.as_ref().map(ToString::to_string),
        "CHANCERY_ZONE" => labels.zone.as_ref().map(ToString::to_string),
        DIRECTORY_VARIABLE => directory.map(|path| path.display().to_string()),
        _ => None,
    };
    let set = |(name, _): &(&str, &str)| Some(((*name).to_owned(), value(name)?));
    PAYLOAD_VARIABLES.iter().filter_map(set).collect()
}

#[cfg(test)]
mod tests;
