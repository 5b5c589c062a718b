//! Placeholders in argv and environment: `${port.NAME}`, `${replica}`, `${incarnation}`, `${node}`,
//! `${process}`, `${volume.MOUNT}`, coordinates as `${KEY}`; `$$` is a dollar.

use std::collections::BTreeMap;
use std::path::PathBuf;

use chancery_events::id::IncarnationId;
use chancery_events::name::{KeyName, PortName};
use chancery_events::protocol::IncarnationSpec;
use chancery_events::template::{self, InvalidTemplate};

/// Values of the placeholders in one process.
#[derive(Debug)]
pub(super) struct PlaceholderValues<'a> {
    pub(super) incarnation: IncarnationId,
    pub(super) spec: &'a IncarnationSpec,
    pub(super) index: u16,
    pub(super) ports: &'a BTreeMap<PortName, u16>,
    pub(super) coordinates: &'a BTreeMap<KeyName, String>,
    /// Paths of the payload's volumes, by mount path.
    pub(super) volumes: &'a BTreeMap<String, PathBuf>,
}

/// Fills in one text.
pub(super) fn fill(text: &str, values: &PlaceholderValues<'_>) -> Result<String, InvalidTemplate> {
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

#[cfg(test)]
mod tests;
