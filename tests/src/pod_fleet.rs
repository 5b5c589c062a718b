//! Server with a cluster of pods.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::kubernetes::{KubernetesApi, shared};
use crate::{ServerProcess, TestClient, until};

/// Server with a cluster of its own in a Kubernetes API, and its plan `web`.
pub struct PodFleet<'a> {
    /// API with the node and the namespace of the cluster.
    pub api: &'a KubernetesApi,
    /// Server of the fleet `default`.
    pub server: ServerProcess,
    /// Name of the cluster, its node, the namespace of its records, and that of its pods unless the plan has another one.
    pub name: &'static str,
}

impl PodFleet<'static> {
    /// Starts a fleet in the shared API, with an executor in the server.
    pub fn start(name: &'static str) -> PodFleet<'static> {
        PodFleet::start_with(name, "all")
    }

    /// Starts a fleet in the shared API, whose server has executors for these clusters.
    pub fn start_with(name: &'static str, embedded: &str) -> PodFleet<'static> {
        PodFleet::start_in(shared(), name, embedded)
    }
}

impl PodFleet<'_> {
    /// Starts a fleet in this API, whose server has executors for these clusters.
    pub fn start_in<'a>(api: &'a KubernetesApi, name: &'static str, embedded: &str) -> PodFleet<'a> {
        let kubeconfig = api.kubeconfig().to_str().expect("text");
        let settings = [("KUBECONFIG", kubeconfig), ("CHANCERY_EMBEDDED_EXECUTORS", embedded)];
        PodFleet::prepare(api, name);
        PodFleet::of(api, ServerProcess::start_with(&settings), name)
    }

    /// Creates what a fleet of that name needs in the API: a node and a namespace.
    pub fn prepare(api: &KubernetesApi, name: &str) {
        api.node(name);
        api.namespace(name);
    }

    /// Applies the cluster and its node to a server, for an API that is prepared.
    pub fn of<'a>(api: &'a KubernetesApi, server: ServerProcess, name: &'static str) -> PodFleet<'a> {
        let spec = json!({"runtime": "kubernetes", "kubernetes": {"namespace": name}});
        server.client().must("cluster.apply", &json!({"name": name, "spec": spec}));
        let fleet = PodFleet { api, server, name };
        fleet.apply_node(name);
        fleet
    }

    /// Applies a node of the API to the cluster, in an update domain of its own.
    pub fn apply_node(&self, node: &str) {
        let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
        let storage = json!([{"class": self.name, "capacity": 1 << 30}]);
        let spec = json!({"domain": node, "resources": total, "storage": storage});
        self.client().must("node.apply", &json!({"name": node, "cluster": self.name, "spec": spec}));
    }

    /// Returns a client of the server.
    pub fn client(&self) -> TestClient {
        self.server.client()
    }

    /// Applies the plan with changes of its fields and of those of its payload.
    pub fn plan(&self, changes: Value, of_payload: Value) {
        let fields = |of: Value, changes: Value| {
            let (Value::Object(mut of), Value::Object(changes)) = (of, changes) else { panic!("objects") };
            of.extend(changes);
            Value::Object(of)
        };
        let payload = json!({
            "name": "web", "resources": {"cpu": 100, "memory": 64 << 20},
            "container": {"image": "registry.test/web:1", "env": {"LEVEL": "info"}},
        });
        let words = ["create", "update", "relocate", "restart", "start", "stop", "delete"];
        let approval: serde_json::Map<_, _> =
            words.iter().map(|word| ((*word).to_owned(), json!("automatic"))).collect();
        let spec = json!({
            "namespace": self.name, "service": "web", "payloads": [fields(payload, of_payload)],
            "approval": approval, "sharing": "allowed", "restart_delay": 100,
        });
        self.client().must("plan.apply", &json!({"name": "web", "spec": fields(spec, changes)}));
    }

    /// Creates a storage class, and a volume that the controller binds to the first claim: nothing provisions volumes here.
    pub fn provide_storage(&self) {
        self.api.create(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": self.name},
            "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
        }));
        self.api.create(&json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": self.name},
            "spec": {
                "capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": self.name,
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/none"},
            },
        }));
    }

    /// Requests `count` replicas of the plan.
    pub fn deploy(&self, name: &str, count: u32) {
        let deployment = json!({"plan": "web", "name": name, "spec": {"count": count}});
        self.client().must("deployment.create", &deployment);
    }

    /// Waits until the deployment is completed.
    pub fn completed(&self, name: &str) {
        until("the deployment is completed", || {
            let rows = self.client().items("deployments?plan=web");
            rows.iter().any(|row| row["name"] == name && row["state"] == "completed").then_some(())
        });
    }

    /// Deletes the plan, and waits until it is gone.
    pub fn delete(&self) {
        self.client().must("plan.delete", &json!({"name": "web", "cascade": "yes"}));
        until("the plan is gone", || self.client().items("plans").is_empty().then_some(()));
    }

    /// Returns the pods of the cluster, in every namespace.
    pub fn pods(&self) -> Vec<Value> {
        self.api.pods(&format!("chancery.dev/cluster={}", self.name))
    }

    /// Returns the number of objects of the cluster with this label, in every namespace: `configmaps`.
    pub fn count(&self, kind: &str, label: &str) -> usize {
        let selector = format!("chancery.dev/cluster={},{label}", self.name);
        self.api.list(kind, &selector).len()
    }

    /// Returns the incarnations of the plan.
    pub fn incarnations(&self) -> Vec<Value> {
        self.client().items("incarnations?plan=web")
    }
}

/// Returns the unique ids of pods.
pub fn uids(pods: &[Value]) -> BTreeSet<String> {
    pods.iter().map(|pod| pod["metadata"]["uid"].as_str().expect("a uid").to_owned()).collect()
}
