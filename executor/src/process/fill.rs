//! Placeholders in argv and environment: `${port.NAME}`, `${replica}`, `${incarnation}`, `${node}`, `${process}`,
//! coordinates as `${KEY}`; `$$` is a dollar.

use std::collections::BTreeMap;

use chancery_events::id::IncarnationId;
use chancery_events::name::{Key, PortName};
use chancery_events::protocol::RunSpec;
use chancery_events::template::{self, BadTemplate};

/// What placeholders stand for, in one process.
#[derive(Debug)]
pub(super) struct Values<'a> {
    pub(super) incarnation: IncarnationId,
    pub(super) spec: &'a RunSpec,
    pub(super) index: u16,
    pub(super) ports: &'a BTreeMap<PortName, u16>,
    pub(super) coordinates: &'a BTreeMap<Key, String>,
}

/// Fills in one text.
pub(super) fn fill(text: &str, values: &Values<'_>) -> Result<String, BadTemplate> {
    template::fill(text, |name| value(name, values))
}

fn value(name: &str, values: &Values<'_>) -> Option<String> {
    if let Some(port) = name.strip_prefix("port.") {
        return values.ports.get(port).map(u16::to_string);
    }
    match name {
        "replica" => Some(values.spec.replica.to_string()),
        "incarnation" => Some(values.incarnation.to_string()),
        "node" => Some(values.spec.node.to_string()),
        "process" => Some(values.index.to_string()),
        key => values.coordinates.get(key).cloned(),
    }
}

/// The variable that holds a port: `PORT_HTTP` for `http`.
pub(super) fn port_variable(name: &PortName) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("PORT_{}", name.as_str().chars().map(upper).collect::<String>())
}

#[cfg(test)]
mod tests;
