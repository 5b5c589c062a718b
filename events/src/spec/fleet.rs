//! Specifications of clusters, capabilities and nodes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClusterRuntime, NodeBinding};
use crate::name::{CapabilityName, CapabilityType, DomainName, KeyName, Namespace, StorageClass, ZoneName};
use crate::resources::Resources;

/// Cluster: a set of nodes behind one orchestrator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Runtime that starts and ends the cluster's incarnations; its executors must have the same.
    pub runtime: ClusterRuntime,
    /// Properties of the Kubernetes cluster; required with runtime `kubernetes`, refused with any other.
    #[serde(default)]
    pub kubernetes: Option<KubernetesSpec>,
}

/// Properties of a cluster of runtime `kubernetes`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesSpec {
    /// Namespace of the objects in which the executor stores its state. Pods are created in the namespaces of
    /// their plans.
    pub namespace: Namespace,
    /// Binding of pods to nodes; `name` if absent.
    #[serde(default)]
    pub node: NodeBinding,
}

/// Capability: a feature that a node may have, with a score.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CapabilitySpec {
    /// Type of the capability: the property that it measures, such as `GPU`.
    #[serde(rename = "type")]
    pub kind: CapabilityType,
    /// Score of the capability: higher is better, within a type.
    pub score: u32,
}

/// Storage of one class on a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeStorage {
    /// Class of the storage.
    pub class: StorageClass,
    /// Capacity of the storage, in bytes.
    pub capacity: u64,
}

/// Node: a unit of capacity.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Update domain of the node: nodes that may be taken down together.
    pub domain: DomainName,
    /// Zone that the node is in, if any.
    #[serde(default)]
    pub zone: Option<ZoneName>,
    /// Labels of the node, for selectors.
    #[serde(default)]
    pub labels: BTreeMap<KeyName, String>,
    /// Total resources of the node.
    pub resources: Resources,
    /// Resources of the node that are reserved for other uses than placements; none if absent.
    #[serde(default)]
    pub reserved: Resources,
    /// Names of the capabilities that the node has.
    #[serde(default)]
    pub capabilities: Vec<CapabilityName>,
    /// Storage of the node, at most one entry per class.
    #[serde(default)]
    pub storage: Vec<NodeStorage>,
}
