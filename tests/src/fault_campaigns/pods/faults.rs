//! Faults of a Kubernetes API, its nodes and pods, and of the executor.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::{CONTROL, PODS, PodCampaign, add_node, last_lines, path_of};
use crate::{ExecutorProcess, until};

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// Fault of a round.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum PodFault {
            $($(#[$doc])* $name,)*
        }

        impl PodFault {
            /// All faults.
            const ALL: &[PodFault] = &[$(PodFault::$name),*];

            /// Name of the fault in the ledger.
            pub(super) const fn word(self) -> &'static str {
                match self {
                    $(PodFault::$name => $word,)*
                }
            }
        }
    };
}

faults! {
    /// The executor is killed, and started with an empty directory.
    ExecutorKilled = "kill -9 of the executor",
    /// Another party deletes a pod.
    PodDeleted = "pod deleted by another party",
    /// A foreign finalizer keeps a pod that is being deleted.
    DeletionHangs = "deletion that hangs",
    /// The API server is killed, and started again.
    ApiKilled = "kill -9 of the API server",
    /// The executor is stopped for longer than its lease. Another one takes over, and the first one wakes.
    ExecutorReplaced = "executor asleep while another one takes over",
    /// A container exceeds its memory.
    OutOfMemory = "container out of memory",
    /// The database of the API is killed, and started again.
    EtcdKilled = "kill -9 of etcd",
    /// Another party edits the objects of the executor.
    RecordsEdited = "records edited by another party",
    /// Images of new pods cannot be pulled for a while.
    NoImage = "image unavailable",
    /// The API server does not answer, and closes nothing.
    ApiPaused = "API server that does not answer",
    /// Watches continue at a version that the API server does not have any more.
    WatchTooOld = "watch too old",
    /// A node does not report for a while.
    NodeSilent = "node silent and back",
    /// A node is lost with its pods, and is expunged.
    NodeLost = "node lost and expunged",
}

impl PodFault {
    /// Returns the fault of a round.
    pub(super) fn of(round: u64) -> PodFault {
        PodFault::ALL[(round % PodFault::ALL.len() as u64) as usize]
    }

    /// Injects the fault and ends it.
    pub(super) fn inject(self, campaign: &mut PodCampaign) -> Result<()> {
        match self {
            PodFault::ExecutorKilled => {
                campaign.executor.kill();
                pause(campaign, 500);
                campaign.executor =
                    ExecutorProcess::start_pods(&campaign.server, "e1", &campaign.api, CONTROL);
                Ok(())
            }
            PodFault::PodDeleted => {
                let pod = campaign.running_pod()?;
                // Another request may have deleted it meanwhile.
                campaign.api.delete(&path_of(&pod));
                Ok(())
            }
            PodFault::DeletionHangs => deletion_hangs(campaign),
            PodFault::ApiKilled => {
                component_killed(campaign, "kube-apiserver");
                Ok(())
            }
            PodFault::EtcdKilled => {
                component_killed(campaign, "etcd");
                Ok(())
            }
            PodFault::ApiPaused => {
                campaign.api.component("pause", "kube-apiserver");
                campaign.deploy(4);
                std::thread::sleep(Duration::from_secs(3));
                campaign.api.component("resume", "kube-apiserver");
                Ok(())
            }
            PodFault::ExecutorReplaced => executor_replaced(campaign),
            PodFault::OutOfMemory => {
                let pod = campaign.running_pod()?;
                let label = json!({"metadata": {"labels": {"chancery.tests/failure": "oom"}}});
                campaign.api.patch(&path_of(&pod), &label);
                Ok(())
            }
            PodFault::RecordsEdited => {
                edit_all(
                    campaign,
                    &["annotate", "configmaps", "-n", CONTROL, "--all", "--overwrite", "tests/note=1"],
                )?;
                campaign.api.kubectl(&[
                    "label",
                    "configmap",
                    "-n",
                    CONTROL,
                    "chancery-default-control",
                    "tests/edited=yes",
                    "--overwrite",
                ]);
                campaign.deploy(5);
                edit_all(
                    campaign,
                    &["annotate", "configmaps", "-n", CONTROL, "--all", "--overwrite", "tests/note=2"],
                )?;
                Ok(())
            }
            PodFault::NoImage => no_image(campaign),
            PodFault::WatchTooOld => {
                campaign.executor.freeze();
                campaign.deploy(2);
                // Foreign changes let the version advance.
                for _ in 0..5 {
                    campaign.api.kubectl(&[
                        "annotate",
                        "nodes",
                        "--all",
                        "--overwrite",
                        &format!("tests/n={}", campaign.random.below(1 << 40)),
                    ]);
                }
                campaign.api.component("restart", "kube-apiserver");
                campaign.executor.thaw();
                Ok(())
            }
            PodFault::NodeSilent => node_silent(campaign),
            PodFault::NodeLost => node_lost(campaign),
        }
    }
}

fn name(pod: &Value) -> &str {
    pod["metadata"]["name"].as_str().expect("a name")
}

fn pause(campaign: &mut PodCampaign, most: u64) {
    std::thread::sleep(Duration::from_millis(campaign.random.below(most)));
}

/// Edits several objects, some of which may be deleted meanwhile.
fn edit_all(campaign: &PodCampaign, args: &[&str]) -> Result<()> {
    match campaign.api.try_kubectl(args) {
        Err(error) if !error.lines().all(|line| line.is_empty() || line.contains("not found")) => {
            bail!("kubectl {args:?}: {error}")
        }
        _ => Ok(()),
    }
}

fn component_killed(campaign: &mut PodCampaign, component: &str) {
    campaign.api.component("kill", component);
    campaign.deploy(4);
    pause(campaign, 2000);
    campaign.api.component("restart", component);
}

fn deletion_hangs(campaign: &mut PodCampaign) -> Result<()> {
    let pod = campaign.running_pod()?;
    let finalizer = json!({"metadata": {"finalizers": ["tests.chancery.dev/hold"]}});
    if !campaign.api.patch(&path_of(&pod), &finalizer) {
        return Ok(());
    }
    let labels = &pod["metadata"]["labels"];
    let (replica, incarnation) = (&labels["chancery.dev/replica"], &labels["chancery.dev/incarnation"]);
    campaign.client().decided(&format!("hang-{}", name(&pod)), "replica.stop", &json!({"name": replica}));
    let selector = format!("chancery.dev/incarnation={}", incarnation.as_str().expect("an id"));
    campaign.within("the pod is being deleted", |campaign| {
        // The stop may be refused during another operation; then the plan ends it.
        let key = uuid::Uuid::new_v4().to_string();
        campaign.client().decided(&key, "replica.stop", &json!({"name": replica}));
        let pods = campaign.api.pods(&selector);
        pods.iter().all(|pod| !pod["metadata"]["deletionTimestamp"].is_null()).then_some(())
    })?;
    std::thread::sleep(Duration::from_secs(1));
    let id = incarnation.as_str().expect("an id");
    let row = campaign.client().read(&format!("incarnations/{id}"));
    let state = row["state"].as_str().unwrap_or_default();
    let exists = !campaign.api.pods(&selector).is_empty();
    ensure!(exists, "the pod with a finalizer does not exist any more");
    ensure!(
        !["destroyed", "unwound"].contains(&state),
        "an incarnation is ended though its pod exists: {row}"
    );
    let none = json!({"metadata": {"finalizers": null}});
    ensure!(campaign.api.patch(&path_of(&pod), &none), "the finalizer cannot be removed");
    Ok(())
}

fn no_image(campaign: &mut PodCampaign) -> Result<()> {
    campaign.apply_plan(&json!({"chancery.tests/failure": "image-pull"}));
    campaign.deploy(6);
    pause(campaign, 3000);
    campaign.apply_plan(&json!({}));
    campaign.deploy(5);
    let last = format!("round-{}", campaign.deployments);
    // Until the last deployment has ended, pods with the label may still be created.
    campaign.within("images are available", |campaign| {
        let selector = "chancery.tests/failure=image-pull";
        let edited =
            edit_all(campaign, &["label", "pods", "-n", PODS, "-l", selector, "chancery.tests/failure-"]);
        let rows = campaign.client().items("deployments?plan=web&limit=1000");
        let has_ended = rows.iter().any(|row| {
            row["name"] == *last && ["completed", "failed"].iter().any(|state| row["state"] == *state)
        });
        (edited.is_ok() && has_ended).then_some(())
    })
}

fn executor_replaced(campaign: &mut PodCampaign) -> Result<()> {
    campaign.executor.freeze();
    campaign.deploy(2);
    let next = ExecutorProcess::start_pods(&campaign.server, "e1", &campaign.api, CONTROL);
    let mut earlier = std::mem::replace(&mut campaign.executor, next);
    campaign.deploy(6);
    // The later executor works: it has a session, and its pods exist.
    campaign.within("the later executor has created pods", |campaign| {
        let web =
            campaign.pods().into_iter().filter(|pod| pod["metadata"]["labels"]["chancery.dev/plan"] == "web");
        (web.count() >= 4).then_some(())
    })?;
    earlier.thaw();
    let status = until("the earlier executor ends", || earlier.ended());
    ensure!(!status.success(), "the earlier executor ends with success:\n{}", last_lines(&earlier.log()));
    Ok(())
}

fn node_silent(campaign: &mut PodCampaign) -> Result<()> {
    let node = *campaign.random.pick(&super::NODES).expect("a node");
    campaign.api.kubelet("kill", node);
    campaign.within("the node is not ready", |campaign| {
        let node = campaign.api.get(&format!("nodes/{node}"));
        let conditions = node["status"]["conditions"].as_array()?;
        conditions.iter().any(|of| of["type"] == "Ready" && of["status"] != "True").then_some(())
    })?;
    campaign.deploy(5);
    pause(campaign, 2000);
    campaign.api.kubelet("restart", node);
    campaign.within("the node is ready", |campaign| {
        let node = campaign.api.get(&format!("nodes/{node}"));
        let conditions = node["status"]["conditions"].as_array()?;
        conditions.iter().any(|of| of["type"] == "Ready" && of["status"] == "True").then_some(())
    })
}

fn node_lost(campaign: &mut PodCampaign) -> Result<()> {
    let node = format!("lost-{}", campaign.deployments);
    campaign.api.node(&node);
    add_node(&campaign.client(), &node);
    let created = campaign.client().decided(
        &format!("create-{node}"),
        "replica.create",
        &json!({"plan": "web", "node": node}),
    );
    campaign.within("the node has a pod, or the request was refused", |campaign| {
        let pods = campaign.pods();
        (created.status / 100 != 2 || pods.iter().any(|pod| pod["spec"]["nodeName"] == node)).then_some(())
    })?;
    campaign.api.kubelet("kill", &node);
    campaign.api.kubectl(&["delete", "node", &node]);
    let output = campaign.server.run(&["expunge", &node, "--yes"]);
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The garbage collector of Kubernetes removes pods of a node that does not exist.
    campaign.within("the pods of the node are gone", |campaign| {
        (!campaign.pods().iter().any(|pod| pod["spec"]["nodeName"] == node)).then_some(())
    })
}
