//! The specs of clusters, capabilities and nodes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ClusterRuntime;
use crate::amount::Resources;
use crate::name::{CapabilityName, CapabilityType, DomainName, KeyName, StorageClass, ZoneName};

/// A set of nodes behind one orchestrator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// What its orchestrator is made of.
    pub runtime: ClusterRuntime,
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
pub struct NodeStorage {
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
    pub labels: BTreeMap<KeyName, String>,
    /// All that it has.
    pub total: Resources,
    /// What of it is not for placements.
    #[serde(default)]
    pub reserved: Resources,
    /// What it has, by name.
    #[serde(default)]
    pub capabilities: Vec<CapabilityName>,
    /// Storage, at most one entry a class.
    #[serde(default)]
    pub storage: Vec<NodeStorage>,
}
