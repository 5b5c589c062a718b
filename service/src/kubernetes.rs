//! Commands about a Kubernetes cluster: `discover nodes`, and the part of `doctor` that asks its API. Both only read.

use std::fmt::Write as _;

use anyhow::Result;
use chancery_cli::manifest::write;
use chancery_events::name::{ClusterName, FleetName, Namespace};
use chancery_executor::kubernetes::{AccessReport, DiscoveredNode, DiscoveredNodes, KubernetesConfig};

use crate::cli::CredentialArgs;

fn config(
    fleet: &FleetName,
    cluster: &ClusterName,
    namespace: Namespace,
    credentials: &CredentialArgs,
) -> KubernetesConfig {
    KubernetesConfig {
        kubeconfig: credentials.kubeconfig.clone(),
        context: credentials.kube_context.clone(),
        namespace,
        fleet: fleet.clone(),
        cluster: cluster.clone(),
    }
}

/// Returns manifests of the nodes of a Kubernetes cluster that a cluster of the fleet can use, and lines about what is left out.
pub async fn discover_nodes(
    fleet: &FleetName,
    cluster: &ClusterName,
    credentials: &CredentialArgs,
) -> Result<(String, Vec<String>)> {
    // No record is read, so the namespace has no meaning.
    let namespace = "default".parse()?;
    let found = config(fleet, cluster, namespace, credentials).discover().await?;
    manifests(cluster, &found)
}

fn manifests(cluster: &ClusterName, found: &DiscoveredNodes) -> Result<(String, Vec<String>)> {
    let DiscoveredNodes { nodes, omitted, storage_classes } = found;
    let mut text = String::new();
    for DiscoveredNode { name, spec, notes } in nodes {
        text += &write::node(name.as_str(), cluster, spec, notes)?;
    }
    let mut notes: Vec<_> =
        omitted.iter().map(|(name, reason)| format!("node {name} is left out: {reason}")).collect();
    if !storage_classes.is_empty() {
        notes.push(format!(
            "the capacity of storage is not known: add `storage` for each class that plans use, of {}",
            storage_classes.join(", ")
        ));
    }
    Ok((text, notes))
}

/// Asks the API what an executor with these credentials can do; returns whether nothing is missing.
pub async fn doctor(
    fleet: &FleetName,
    cluster: &ClusterName,
    namespace: &Namespace,
    credentials: &CredentialArgs,
) -> (String, bool) {
    match config(fleet, cluster, namespace.clone(), credentials).check_access().await {
        Ok(report) => described(cluster, namespace, &report),
        Err(error) => (format!("cluster {cluster}: {error}\n"), false),
    }
}

fn described(cluster: &ClusterName, namespace: &Namespace, report: &AccessReport) -> (String, bool) {
    let AccessReport { missing, is_without_namespace, fence } = report;
    let mut text = String::new();
    if *is_without_namespace {
        let create = format!("kubectl create namespace {namespace}");
        let _ = writeln!(text, "cluster {cluster}: namespace {namespace} does not exist: {create}");
        return (text, false);
    }
    let rights = match missing.as_slice() {
        [] => "an executor with these credentials has every right that it needs".to_owned(),
        missing => format!(
            "rights are missing: {}\n  Grant them as deploy/kubernetes/executor.yaml does.",
            missing.join(", ")
        ),
    };
    let _ = writeln!(text, "cluster {cluster}: {rights}");
    let policy = match fence {
        Ok(true) => "the API refuses requests of an executor that was replaced".to_owned(),
        Ok(false) => "the API admits requests of an executor that was replaced: such an executor can still create pods\n  \
                      Install deploy/kubernetes/epoch-policy.yaml, with a binding for this cluster."
            .to_owned(),
        Err(error) => format!(
            "cannot find out whether the API refuses requests of an executor that was replaced: {error}\n  \
             A binding of the policy refuses every request until the executor has started once in namespace {namespace}."
        ),
    };
    let _ = writeln!(text, "cluster {cluster}: {policy}");
    (text, missing.is_empty() && *fence == Ok(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doctor_names_what_is_missing_and_what_follows() {
        let (cluster, namespace) = ("pods".parse().expect("a name"), "ops".parse().expect("a name"));
        let report = |missing: &[&str], fence| {
            let missing = missing.iter().map(|right| (*right).to_owned()).collect();
            described(&cluster, &namespace, &AccessReport { missing, is_without_namespace: false, fence })
        };
        let (text, is_well) = report(&[], Ok(true));
        assert!(is_well && text.contains("has every right") && text.contains("the API refuses"), "{text}");
        let (text, is_well) = report(&["delete pods", "get configmaps in namespace ops"], Ok(true));
        assert!(
            !is_well && text.contains("rights are missing: delete pods, get configmaps in namespace ops"),
            "{text}"
        );
        let (text, is_well) = report(&[], Ok(false));
        assert!(!is_well && text.contains("epoch-policy.yaml"), "{text}");
        let nowhere = AccessReport { missing: Vec::new(), is_without_namespace: true, fence: Ok(false) };
        let (text, is_well) = described(&cluster, &namespace, &nowhere);
        assert!(!is_well && text.contains("kubectl create namespace ops"), "{text}");
        let (text, is_well) = report(&[], Err("no params found".to_owned()));
        assert!(!is_well && text.contains("no params found") && text.contains("namespace ops"), "{text}");
    }

    #[test]
    fn nodes_that_are_left_out_and_storage_are_noted() {
        let cluster = "pods".parse().expect("a name");
        let omitted = vec![("n1".to_owned(), "invalid name".to_owned())];
        let classes = vec!["fast".to_owned(), "slow".to_owned()];
        let found = DiscoveredNodes { omitted, storage_classes: classes, ..DiscoveredNodes::default() };
        let (text, notes) = manifests(&cluster, &found).expect("manifests");
        assert_eq!(text, "");
        assert_eq!(notes[0], "node n1 is left out: invalid name");
        assert!(notes[1].ends_with("of fast, slow"), "{notes:?}");
    }
}
