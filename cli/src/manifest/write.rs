//! Manifests that the program writes for an operator to review and apply.

use std::collections::BTreeMap;

use chancery_events::name::{CapabilityName, ClusterName, DomainName, KeyName, StorageClass, ZoneName};
use chancery_events::resources::{Resources, show_cpu};
use chancery_events::spec::NodeSpec;
use serde::Serialize;

use super::API_VERSION;
use crate::error::CliError;

/// Returns the manifest of a node as a YAML document, with each note as a comment before it. The document starts with `---`.
pub fn node(
    name: &str,
    cluster: &ClusterName,
    node: &NodeSpec,
    notes: &[String],
) -> Result<String, CliError> {
    let storage = node.storage.iter();
    let storage = storage.map(|one| StorageFields { class: &one.class, capacity: bytes(one.capacity) });
    let document = NodeDocument {
        api_version: API_VERSION,
        kind: "Node",
        metadata: NodeMetadata { name, labels: &node.labels },
        spec: NodeFields {
            cluster,
            domain: &node.domain,
            zone: node.zone.as_ref(),
            resources: node.resources.into(),
            reserved: node.reserved.into(),
            capabilities: &node.capabilities,
            storage: storage.collect(),
        },
    };
    let yaml = serde_saphyr::to_string(&document)
        .map_err(|error| CliError::failure(format!("cannot write manifest of node {name}: {error}")))?;
    let mut text = "---\n".to_owned();
    // A comment ends with its line.
    text.extend(notes.iter().map(|note| format!("# {}\n", note.replace(char::is_control, " "))));
    text += &yaml;
    Ok(text)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeDocument<'a> {
    api_version: &'a str,
    kind: &'a str,
    metadata: NodeMetadata<'a>,
    spec: NodeFields<'a>,
}

#[derive(Serialize)]
struct NodeMetadata<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: &'a BTreeMap<KeyName, String>,
}

#[derive(Serialize)]
struct NodeFields<'a> {
    cluster: &'a ClusterName,
    domain: &'a DomainName,
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<&'a ZoneName>,
    resources: AmountFields,
    #[serde(skip_serializing_if = "AmountFields::is_empty")]
    reserved: AmountFields,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    capabilities: &'a [CapabilityName],
    #[serde(skip_serializing_if = "Vec::is_empty")]
    storage: Vec<StorageFields<'a>>,
}

#[derive(Serialize)]
struct StorageFields<'a> {
    class: &'a StorageClass,
    capacity: String,
}

/// Amounts with their units; absent if zero.
#[derive(Serialize)]
struct AmountFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<String>,
}

impl From<Resources> for AmountFields {
    fn from(amounts: Resources) -> AmountFields {
        let shown = |amount, show: fn(u64) -> String| (amount != 0).then(|| show(amount));
        AmountFields {
            cpu: shown(amounts.cpu, show_cpu),
            memory: shown(amounts.memory, bytes),
            disk: shown(amounts.disk, bytes),
        }
    }
}

impl AmountFields {
    fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none() && self.disk.is_none()
    }
}

/// Formats bytes exactly, in the largest unit that divides them.
pub(super) fn bytes(amount: u64) -> String {
    let units = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("GB", 1_000_000_000),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("B", 1),
    ];
    let fits = |(_, unit): &&(&str, u64)| amount >= *unit && amount.is_multiple_of(*unit);
    let (name, unit) = units.iter().find(fits).unwrap_or(&("B", 1));
    format!("{}{name}", amount / unit)
}

#[cfg(test)]
mod tests {
    use chancery_events::intent::{Intent, NodeApply};
    use chancery_events::spec::NodeStorage;

    use super::*;

    #[test]
    fn a_node_is_read_as_it_was_written() {
        let name = |text: &str| text.parse().expect("a name");
        let full = NodeSpec {
            domain: "n1".parse().expect("a name"),
            zone: Some("east".parse().expect("a name")),
            labels: [("kubernetes.io/os".parse().expect("a key"), "yes: \"no\" # 1".to_owned())].into(),
            resources: Resources { cpu: 3920, memory: 16_393_244 << 10, disk: 47_093_746_742 },
            reserved: Resources { cpu: 100, memory: 0, disk: 1 << 40 },
            capabilities: vec!["gpu/a100".parse().expect("a name")],
            storage: vec![NodeStorage { class: "fast".parse().expect("a name"), capacity: 100_000_000_000 }],
        };
        let minimal = NodeSpec {
            domain: name("n1"),
            zone: None,
            labels: [].into(),
            resources: Resources { cpu: 8000, ..Resources::ZERO },
            reserved: Resources::ZERO,
            capabilities: Vec::new(),
            storage: Vec::new(),
        };
        let cluster: ClusterName = "pods".parse().expect("a name");
        for spec in [full, minimal] {
            let notes = ["the node is not ready\nspec: {}".to_owned()];
            let text = node("true", &cluster, &spec, &notes).expect("text");
            let read =
                crate::manifest::read("f.yaml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            let [document] = read.as_slice() else { panic!("{text}") };
            let Intent::NodeApply(NodeApply { name, cluster: Some(found), spec: again }) = &document.intent
            else {
                panic!("{:?}", document.intent)
            };
            assert_eq!((name.as_str(), found, again), ("true", &cluster, &spec), "{text}");
        }
    }
}
