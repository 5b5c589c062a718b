//! Objects of the Kubernetes API, reduced to the fields that the executor reads.
//!
//! An answer of the API may contain any other field. The types of the whole API would make the program larger by a
//! quarter: their fields are decoded by generated code, once for each way in which an answer arrives.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{self as core, ContainerState, Taint};
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Amounts of resources by name, as in `cpu`.
pub(super) type ResourceAmounts = BTreeMap<String, Quantity>;

/// Makes a type readable by requests for the objects of another type.
macro_rules! resource {
    ($($object:ident as $of:path;)*) => {$(
        impl k8s_openapi::Resource for $object {
            const API_VERSION: &'static str = <$of as k8s_openapi::Resource>::API_VERSION;
            const GROUP: &'static str = <$of as k8s_openapi::Resource>::GROUP;
            const KIND: &'static str = <$of as k8s_openapi::Resource>::KIND;
            const VERSION: &'static str = <$of as k8s_openapi::Resource>::VERSION;
            const URL_PATH_SEGMENT: &'static str = <$of as k8s_openapi::Resource>::URL_PATH_SEGMENT;
            type Scope = <$of as k8s_openapi::Resource>::Scope;
        }

        impl k8s_openapi::Metadata for $object {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        impl ApiObject for $object {}
    )*};
}

resource! {
    PodObject as core::Pod;
    ClaimObject as core::PersistentVolumeClaim;
    NodeObject as core::Node;
    ClassObject as storage::StorageClass;
}

impl kube::api::Log for PodObject {}

/// Object that answers of the API contain.
pub(super) trait ApiObject:
    kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static
{
}

impl ApiObject for core::ConfigMap {}

/// Pod of any owner.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PodObject {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Option<PodObjectSpec>,
    pub(super) status: Option<PodObjectStatus>,
}

/// Spec of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodObjectSpec {
    pub(super) node_name: Option<String>,
    pub(super) containers: Option<Vec<ContainerObject>>,
    pub(super) init_containers: Option<Vec<ContainerObject>>,
    pub(super) resources: Option<RequestedResources>,
    pub(super) overhead: Option<ResourceAmounts>,
}

/// Container of a pod's spec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ContainerObject {
    pub(super) name: String,
    pub(super) resources: Option<RequestedResources>,
    pub(super) restart_policy: Option<String>,
}

/// Requests of a container or a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RequestedResources {
    pub(super) requests: Option<ResourceAmounts>,
}

/// Status of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PodObjectStatus {
    pub(super) phase: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    #[serde(rename = "podIP")]
    pub(super) pod_ip: Option<String>,
    pub(super) conditions: Option<Vec<ObjectCondition>>,
    pub(super) container_statuses: Option<Vec<ContainerObjectStatus>>,
    pub(super) init_container_statuses: Option<Vec<ContainerObjectStatus>>,
}

/// Condition of a pod or a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ObjectCondition {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    pub(super) last_transition_time: Option<Time>,
}

/// Status of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ContainerObjectStatus {
    pub(super) name: String,
    pub(super) state: Option<ContainerState>,
    pub(super) ready: bool,
    pub(super) started: Option<bool>,
}

/// Persistent volume claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaimObject {
    pub(super) metadata: ObjectMeta,
    pub(super) status: Option<ClaimObjectStatus>,
}

/// Status of a claim.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ClaimObjectStatus {
    pub(super) phase: Option<String>,
}

/// Node of a Kubernetes cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeObject {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Option<NodeObjectSpec>,
    pub(super) status: Option<NodeObjectStatus>,
}

/// Spec of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeObjectSpec {
    pub(super) unschedulable: Option<bool>,
    pub(super) taints: Option<Vec<Taint>>,
}

/// Status of a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeObjectStatus {
    pub(super) allocatable: Option<ResourceAmounts>,
    pub(super) conditions: Option<Vec<ObjectCondition>>,
}

/// Storage class.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ClassObject {
    pub(super) metadata: ObjectMeta,
    pub(super) volume_binding_mode: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_decoded_with_absent_null_and_unknown_fields() {
        let full = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web-0", "uid": "u", "creationTimestamp": null, "later": {"a": 1}},
            "spec": {
                "nodeName": "n", "later": [], "overhead": null, "initContainers": null,
                "containers": [{"name": "app", "image": "i", "resources": {"limits": {"cpu": "1"}, "requests": null}}],
            },
            "status": {
                "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "conditions": null,
                "containerStatuses": [{
                    "name": "app", "ready": true, "restartCount": 0, "image": "i", "imageID": "",
                    "started": null, "state": {"running": {"startedAt": "2026-11-21T09:00:00Z"}},
                }],
            },
        });
        let pod: PodObject = serde_json::from_value(full).expect("a pod");
        let (spec, status) = (pod.spec.expect("a spec"), pod.status.expect("a status"));
        assert_eq!(spec.containers.expect("containers")[0].name, "app");
        assert_eq!((status.phase.as_deref(), status.pod_ip.as_deref()), (Some("Running"), Some("10.0.0.1")));
        let container = &status.container_statuses.expect("statuses")[0];
        assert!(container.ready && container.state.as_ref().is_some_and(|state| state.running.is_some()));
        let none: PodObject =
            serde_json::from_value(json!({"metadata": {}, "spec": null, "status": null})).expect("a pod");
        assert!(none.spec.is_none() && none.status.is_none());
    }
}
