//! Placeholders in argv and environment: `${port.NAME}`, `${replica}`, `${incarnation}`, `${node}`, `${process}`,
//! coordinates as `${KEY}`; `$$` is a dollar.

use std::collections::BTreeMap;

use chancery_events::id::IncarnationId;
use chancery_events::name::{Key, PortName};
use chancery_events::protocol::RunSpec;

/// What placeholders stand for, in one process.
#[derive(Debug)]
pub(super) struct Values<'a> {
    pub(super) incarnation: IncarnationId,
    pub(super) spec: &'a RunSpec,
    pub(super) index: u16,
    pub(super) ports: &'a BTreeMap<PortName, u16>,
    pub(super) coordinates: &'a BTreeMap<Key, String>,
}

/// A text that cannot be filled in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadText {
    /// It names something that is not known.
    #[error("nothing is known as ${{{0}}}")]
    Unknown(String),
    /// A dollar that begins nothing.
    #[error("write $$ for a dollar in {0:?}")]
    Dollar(String),
}

/// Fills in one text.
pub(super) fn fill(text: &str, values: &Values<'_>) -> Result<String, BadText> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        filled.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            filled.push('$');
            rest = after;
            continue;
        }
        let (name, after) = after
            .strip_prefix('{')
            .and_then(|after| after.split_once('}'))
            .ok_or_else(|| BadText::Dollar(text.to_owned()))?;
        filled.push_str(&value(name, values).ok_or_else(|| BadText::Unknown(name.to_owned()))?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
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
