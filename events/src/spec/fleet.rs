//! The specs of clusters, capabilities and nodes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Runtime;
use crate::amount::Amounts;
use crate::name::{CapabilityName, CapabilityType, DomainName, Key, StorageClass, ZoneName};

/// A set of nodes behind one orchestrator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// What its orchestrator is made of.
    pub runtime: Runtime,
}

/// Something a node may have, with a score.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapabilitySpec {
    /// What it is a measure of, as `GPU`.
    #[serde(rename = "type")]
    pub kind: CapabilityType,
    /// Higher is better, within a type.
    pub score: u32,
}

/// Storage of one class on a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Its class.
    pub class: StorageClass,
    /// Bytes.
    pub capacity: u64,
}

/// A place with capacity.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// The update domain: nodes that may go together.
    pub domain: DomainName,
    /// Where it stands.
    #[serde(default)]
    pub zone: Option<ZoneName>,
    /// For selectors.
    #[serde(default)]
    pub labels: BTreeMap<Key, String>,
    /// All that it has.
    pub total: Amounts,
    /// What of it is not for placements.
    #[serde(default)]
    pub reserved: Amounts,
    /// What it has, by name.
    #[serde(default)]
    pub capabilities: Vec<CapabilityName>,
    /// Storage, at most one entry a class.
    #[serde(default)]
    pub storage: Vec<Storage>,
}
