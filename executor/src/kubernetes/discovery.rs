//! Nodes of a Kubernetes cluster, described as nodes of a fleet.
//!
//! | in the fleet | of the Kubernetes node |
//! |---|---|
//! | name | its name |
//! | domain | its name: each node is an update domain |
//! | zone | label `topology.kubernetes.io/zone` |
//! | labels | its labels, except those that the fleet cannot have |
//! | resources | allocatable `cpu`, `memory` and `ephemeral-storage` |
//! | reserved | requests of all pods on it that the fleet's cluster does not manage |

use std::collections::BTreeMap;

use chancery_events::name::{KeyName, NodeName, ZoneName};
use chancery_events::resources::Resources;
use chancery_events::spec::NodeSpec;
use kube::{Api, ResourceExt as _};

use super::KubernetesConfig;
use super::api::ApiFailure;
use super::labels::ObjectOwner;
use super::objects::{
    ClassObject, ContainerObject, NodeObject, PodObject, PodObjectSpec, RequestedResources, ResourceAmounts,
};
use super::watch::list;

/// Label with the zone of a Kubernetes node.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Node of a Kubernetes cluster that a fleet can use.
#[derive(Clone, PartialEq, Debug)]
pub struct DiscoveredNode {
    /// Name of the node, in Kubernetes and in the fleet.
    pub name: NodeName,
    /// Spec for the fleet.
    pub spec: NodeSpec,
    /// Facts that an operator should know before the node is applied.
    pub notes: Vec<String>,
}

/// Nodes of a Kubernetes cluster.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct DiscoveredNodes {
    /// Nodes that the fleet can use, by name.
    pub nodes: Vec<DiscoveredNode>,
    /// Names of nodes that the fleet cannot use, each with the reason.
    pub omitted: Vec<(String, String)>,
    /// Names of storage classes, by name.
    pub storage_classes: Vec<String>,
}

/// Error of a discovery.
#[derive(Debug, thiserror::Error)]
#[error("cannot discover nodes: {0}")]
pub struct DiscoveryError(String);

impl KubernetesConfig {
    /// Lists the nodes of the Kubernetes cluster. Nothing is changed. Needs the right to list nodes, pods and storage classes.
    pub async fn discover(&self) -> Result<DiscoveredNodes, DiscoveryError> {
        let client = self.client().await.map_err(|error| DiscoveryError(error.to_string()))?;
        let failed =
            |what: &str, failure: ApiFailure| DiscoveryError(format!("cannot list {what}: {failure}"));
        let nodes: Api<NodeObject> = Api::all(client.clone());
        let nodes =
            list(&nodes, "", |node: &NodeObject| Some(node.clone())).await.map_err(|f| failed("nodes", f))?;
        let owner = ObjectOwner { fleet: self.fleet.clone(), cluster: self.cluster.clone(), epoch: 0 };
        let pods: Api<PodObject> = Api::all(client.clone());
        let foreign = |pod: &PodObject| foreign_request(&owner, pod);
        let foreign = list(&pods, "", foreign).await.map_err(|f| failed("pods", f))?;
        let classes: Api<ClassObject> = Api::all(client);
        let name = |class: &ClassObject| Some(class.name_any());
        let mut classes = list(&classes, "", name).await.map_err(|f| failed("storage classes", f))?.items;
        classes.sort();
        let mut reserved = BTreeMap::<String, Resources>::new();
        for (node, requests) in foreign.items {
            *reserved.entry(node).or_default() += requests;
        }
        let mut found = DiscoveredNodes { storage_classes: classes, ..DiscoveredNodes::default() };
        for node in &nodes.items {
            match describe(node, reserved.get(&node.name_any()).copied().unwrap_or_default()) {
                Ok(node) => found.nodes.push(node),
                Err(reason) => found.omitted.push((node.name_any(), reason)),
            }
        }
        found.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        found.omitted.sort();
        Ok(found)
    }
}

/// Returns the spec of a node; an error states why the fleet cannot use the node.
fn describe(node: &NodeObject, reserved: Resources) -> Result<DiscoveredNode, String> {
    let name = node.name_any();
    let name: NodeName = name.parse().map_err(|error| format!("invalid name: {error}"))?;
    let domain = name.as_str().parse().map_err(|error| format!("invalid name: {error}"))?;
    let (mut notes, mut labels, mut zone) = (Vec::new(), BTreeMap::new(), None);
    for (key, value) in node.labels() {
        match key.parse::<KeyName>() {
            Ok(key) => drop(labels.insert(key, value.clone())),
            Err(error) => notes.push(format!("label {key} is left out: {error}")),
        }
        if key == ZONE {
            match value.parse::<ZoneName>() {
                Ok(name) => zone = Some(name),
                Err(error) => notes.push(format!("zone {value} is left out: {error}")),
            }
        }
    }
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let allocatable = allocatable.ok_or("the node reports no allocatable resources")?;
    let amounts = resources(allocatable, AmountRounding::Down)?;
    let is_ready = status.and_then(|status| status.conditions.as_ref()).is_some_and(|conditions| {
        conditions.iter().any(|condition| condition.kind == "Ready" && condition.status == "True")
    });
    if !is_ready {
        notes.push("the node is not ready".to_owned());
    }
    let spec = node.spec.as_ref();
    if spec.and_then(|spec| spec.unschedulable) == Some(true) {
        notes.push("the node is cordoned".to_owned());
    }
    for taint in spec.and_then(|spec| spec.taints.as_ref()).into_iter().flatten() {
        let value = taint.value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
        notes.push(format!("the node has the taint {}{value}:{}", taint.key, taint.effect));
    }
    // A node cannot reserve more than it has.
    let spec = NodeSpec {
        domain,
        zone,
        labels,
        resources: amounts,
        reserved: reserved.at_most(amounts),
        capabilities: Vec::new(),
        storage: Vec::new(),
    };
    Ok(DiscoveredNode { name, spec, notes })
}

/// Returns the node and the requests of a pod that the fleet's cluster does not manage; `None` for any other pod, and for a
/// pod that has no node or that has ended.
fn foreign_request(owner: &ObjectOwner, pod: &PodObject) -> Option<(String, Resources)> {
    let spec = pod.spec.as_ref()?;
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if owner.owns(pod.metadata.labels.as_ref()) || matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    Some((spec.node_name.clone()?, requests(spec)))
}

/// Returns the requests of a pod, as the Kubernetes scheduler counts them: the containers together with the init containers that
/// keep running, or the largest init container with those before it, whichever is more.
fn requests(spec: &PodObjectSpec) -> Resources {
    let of = |amounts: Option<&ResourceAmounts>| {
        // An amount that cannot be read was accepted by the API, so this does not occur.
        amounts.and_then(|amounts| resources(amounts, AmountRounding::Up).ok()).unwrap_or_default()
    };
    let whole = |resources: Option<&RequestedResources>| of(resources.and_then(|all| all.requests.as_ref()));
    let container = |container: &ContainerObject| whole(container.resources.as_ref());
    let mut running: Resources = spec.containers.iter().flatten().map(container).sum();
    let mut before = Resources::ZERO;
    let mut most = Resources::ZERO;
    for init in spec.init_containers.iter().flatten() {
        let amounts = container(init);
        most = larger(most, before + amounts);
        if init.restart_policy.as_deref() == Some("Always") {
            before += amounts;
            running += amounts;
        }
    }
    larger(larger(running, most), whole(spec.resources.as_ref())) + of(spec.overhead.as_ref())
}

fn larger(a: Resources, b: Resources) -> Resources {
    Resources { cpu: a.cpu.max(b.cpu), memory: a.memory.max(b.memory), disk: a.disk.max(b.disk) }
}

/// Rounding of an amount to whole millicores or bytes.
#[derive(Clone, Copy)]
enum AmountRounding {
    Down,
    Up,
}

fn resources(amounts: &ResourceAmounts, rounding: AmountRounding) -> Result<Resources, String> {
    let amount = |name: &str, unit: u32| match amounts.get(name) {
        Some(quantity) => amount(&quantity.0, unit, rounding)
            .ok_or_else(|| format!("invalid amount of {name}: {}", quantity.0)),
        None => Ok(0),
    };
    Ok(Resources {
        cpu: amount("cpu", 1000)?,
        memory: amount("memory", 1)?,
        disk: amount("ephemeral-storage", 1)?,
    })
}

/// Reads a quantity of Kubernetes and multiplies it by `unit`: `4`, `3920m`, `1.5`, `32Gi`, `12e3`. `None` for any other text,
/// and for an amount that is negative or too large.
fn amount(text: &str, unit: u32, rounding: AmountRounding) -> Option<u64> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{part}").parse().ok()?;
    let (factor, exponent) = match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1_u128 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => (1, suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?),
    };
    let exponent = exponent.checked_sub(i32::try_from(part.len()).ok()?)?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
    let amount = digits.checked_mul(factor)?.checked_mul(u128::from(unit))?;
    let amount = match (exponent < 0, rounding) {
        (false, _) => amount.checked_mul(power)?,
        (true, AmountRounding::Down) => amount / power,
        (true, AmountRounding::Up) => amount.div_ceil(power),
    };
    u64::try_from(amount).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn owner() -> ObjectOwner {
        let name = |text: &str| text.parse().expect("a name");
        ObjectOwner { fleet: name("default"), cluster: "pods".parse().expect("a name"), epoch: 1 }
    }

    fn described(node: Value, reserved: Resources) -> Result<DiscoveredNode, String> {
        describe(&serde_json::from_value(node).expect("a node"), reserved)
    }

    #[test]
    fn a_quantity_is_read_as_kubernetes_does() {
        for (text, unit, down, up) in [
            ("4", 1000, 4000, 4000),
            ("3920m", 1000, 3920, 3920),
            ("1.5", 1000, 1500, 1500),
            ("250u", 1000, 0, 1),
            ("1500000n", 1000, 1, 2),
            ("32Gi", 1, 32 << 30, 32 << 30),
            ("16393244Ki", 1, 16_393_244 << 10, 16_393_244 << 10),
            ("1.5Mi", 1, 3 << 19, 3 << 19),
            ("12e3", 1, 12_000, 12_000),
            ("12E-1", 1, 1, 2),
            ("128974848000m", 1, 128_974_848, 128_974_848),
            ("47Ei", 1, 0, 0),
        ] {
            // The largest amount is above what 64 bits hold.
            let held = |n| (text != "47Ei").then_some(n);
            assert_eq!(amount(text, unit, AmountRounding::Down), held(down), "{text}");
            assert_eq!(amount(text, unit, AmountRounding::Up), held(up), "{text}");
        }
        for text in ["", "Gi", "-1", "1KiB", "1x", "1e", "1.2.3", "1e99"] {
            assert_eq!(amount(text, 1, AmountRounding::Down), None, "{text}");
        }
    }

    #[test]
    fn requests_of_a_pod_count_as_for_the_scheduler() {
        let requests = |spec: Value| {
            let Resources { cpu, memory, disk } = requests(&serde_json::from_value(spec).expect("a spec"));
            (cpu, memory, disk)
        };
        let of = |cpu: &str, memory: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}});
        assert_eq!(
            requests(json!({"containers": [of("1", "1Ki"), of("500m", "1Ki"), {"name": "none"}]})),
            (1500, 2048, 0)
        );
        let init = json!({"containers": [of("1", "1Ki")], "initContainers": [of("2", "1")]});
        assert_eq!(requests(init), (2000, 1024, 0), "the largest of each");
        let mut sidecar = of("100m", "1Ki");
        sidecar["restartPolicy"] = json!("Always");
        let init = json!({"containers": [of("1", "1Ki")], "initContainers": [sidecar, of("2", "1")]});
        assert_eq!(requests(init), (2100, 2048, 0), "a sidecar counts with both");
        let whole = json!({"containers": [of("1", "1Ki")], "resources": {"requests": {"cpu": "3"}}, "overhead": {"memory": "1Ki", "ephemeral-storage": "7"}});
        assert_eq!(requests(whole), (3000, 2048, 7));
    }

    #[test]
    fn only_pods_of_others_that_use_a_node_are_foreign() {
        let pod = |labels: Value, phase: &str, node: Value| {
            let pod = json!({
                "metadata": {"name": "p", "labels": labels}, "status": {"phase": phase},
                "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            });
            foreign_request(&owner(), &serde_json::from_value(pod).expect("a pod"))
        };
        let used = Some(("n1".to_owned(), Resources { cpu: 1000, ..Resources::ZERO }));
        assert_eq!(pod(json!({}), "Running", json!("n1")), used);
        assert_eq!(pod(json!({}), "Pending", json!("n1")), used);
        assert_eq!(pod(json!({}), "Pending", Value::Null), None);
        assert_eq!(pod(json!({}), "Succeeded", json!("n1")), None);
        assert_eq!(pod(json!({}), "Failed", json!("n1")), None);
        let labels =
            |cluster: &str| json!({"chancery.dev/fleet": "default", "chancery.dev/cluster": cluster});
        assert_eq!(pod(labels("pods"), "Running", json!("n1")), None);
        assert_eq!(
            pod(labels("other"), "Running", json!("n1")),
            used,
            "another cluster of the fleet is foreign here"
        );
    }

    #[test]
    fn a_node_has_what_kubernetes_reports_and_notes_of_what_an_operator_should_know() {
        let node = json!({
            "metadata": {"name": "n1", "labels": {
                "kubernetes.io/hostname": "n1", "topology.kubernetes.io/zone": "east",
                "a-key-that-is-too-long-for-the-fleet.example.com/because-it-has-more-than-63": "x",
            }},
            "spec": {"unschedulable": true, "taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]},
            "status": {
                "allocatable": {"cpu": "3920m", "memory": "16Gi", "ephemeral-storage": "100G", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "Unknown"}],
            },
        });
        let reserved = Resources { cpu: 5000, memory: 1 << 30, disk: 0 };
        let DiscoveredNode { name, spec, notes } = described(node, reserved).expect("a node");
        assert_eq!((name.as_str(), spec.domain.as_str()), ("n1", "n1"));
        assert_eq!(spec.zone.as_ref().map(ZoneName::as_str), Some("east"));
        assert_eq!(spec.labels.len(), 2);
        assert_eq!(spec.resources, Resources { cpu: 3920, memory: 16 << 30, disk: 100_000_000_000 });
        assert_eq!(
            spec.reserved,
            Resources { cpu: 3920, memory: 1 << 30, disk: 0 },
            "at most what the node has"
        );
        assert!(notes[0].starts_with("label a-key-that-is-too-long"), "{notes:?}");
        assert_eq!(
            notes[1..],
            ["the node is not ready", "the node is cordoned", "the node has the taint gpu=yes:NoSchedule"]
        );
    }

    #[test]
    fn a_node_that_the_fleet_cannot_use_has_a_reason() {
        let status = json!({"allocatable": {"cpu": "4"}});
        let reason = |node| described(node, Resources::ZERO).expect_err("a reason");
        assert!(reason(json!({"metadata": {"name": "n".repeat(64)}, "status": status})).contains("name"));
        assert_eq!(reason(json!({"metadata": {"name": "n1"}})), "the node reports no allocatable resources");
        let odd = json!({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "4x"}}});
        assert_eq!(reason(odd), "invalid amount of cpu: 4x");
    }
}
