//! Placeholders in argv and environment: `${port.NAME}`, `${replica}`, `${incarnation}`, `${node}`,
//! `${process}`, `${volume.MOUNT}`, coordinates as `${KEY}`; `$$` is a dollar.

use std::collections::BTreeMap;
use std::path::PathBuf;

use chancery_events::id::IncarnationId;
use chancery_events::name::{Key, PortName};
use chancery_events::protocol::RunSpec;
use chancery_events::template::{self, BadTemplate};

/// Values of the placeholders in one process.
#[derive(Debug)]
pub(super) struct Values<'a> {
    pub(super) incarnation: IncarnationId,
    pub(super) spec: &'a RunSpec,
    pub(super) index: u16,
    pub(super) ports: &'a BTreeMap<PortName, u16>,
    pub(super) coordinates: &'a BTreeMap<Key, String>,
    /// Paths of the payload's volumes, by mount path.
    pub(super) volumes: &'a BTreeMap<String, PathBuf>,
}

/// Fills in one text.
pub(super) fn fill(text: &str, values: &Values<'_>) -> Result<String, BadTemplate> {
    template::fill(text, |name| value(name, values))
}

fn value(name: &str, values: &Values<'_>) -> Option<String> {
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

#[cfg(test)]
mod tests;
