//! Pods of a real Kubernetes API under load, with an executor outside the server. Each round injects a fault ([`PodFault`]).
//! Then producers pause, and every pod must have its incarnation and every incarnation its pod, as the API itself lists them:
//!
//! | violation | found by |
//! |---|---|
//! | a pod without an incarnation that is not ended (leaked) | pods and rows, at rest after each round |
//! | an incarnation without its pod, two incarnations of a replica (duplicated) | the same |
//! | a foreign object that was changed | its uid, labels, deletion and containers, after each round |
//! | an invariant of the journal, a wrong row, more pods than an incarnation has processes | the checkers of the other campaigns, with the pods as processes |
//! | a record that is left | config maps in the end |

mod faults;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use chancery_events::id::IncarnationId;
use serde_json::{Value, json};

use self::faults::PodFault;
use super::evidence::{ServerEvidence, judge};
use super::fleet::deploy;
use super::load::ProducerLoad;
use crate::check::RunningProcesses;
use crate::kubernetes::KubernetesApi;
use crate::ledger::CountMap;
use crate::sim::RandomSource;
use crate::{ExecutorProcess, ServerProcess, TestClient, until};

/// Nodes of the cluster.
const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Name of the cluster, and namespace of its executor's records.
const CONTROL: &str = "control";
/// Namespace of the pods.
const PODS: &str = "tests";
/// Session lease of the server.
const LEASE: &str = "4s";
/// Maximum time from the end of a fault until nothing is left to do.
const REST: Duration = Duration::from_mins(2);
/// Interval at which kubelets read all pods again.
const SYNC: Duration = Duration::from_secs(10);
/// Interval at which pods are listed.
const INTERVAL: Duration = Duration::from_millis(200);
/// Selector of all objects of the cluster.
const OURS: &str = "chancery.dev/fleet=default,chancery.dev/cluster=control";

pub(super) fn run(rounds: u64, seed: u64, tally: &mut CountMap) -> Result<()> {
    let mut campaign = PodCampaign::begin(seed)?;
    for round in 0..rounds {
        let fault = PodFault::of(seed.wrapping_mul(rounds).wrapping_add(round));
        let began = Instant::now();
        let count = 1 + campaign.random.below(6) as u32;
        campaign.deploy(count);
        std::thread::sleep(Duration::from_millis(campaign.random.below(400)));
        let played = fault.inject(&mut campaign).and_then(|()| campaign.check());
        tally.fault(fault.word());
        tally.rounds += 1;
        tally.host_checks += 1;
        played
            .map_err(|error| campaign.explained(&error))
            .with_context(|| format!("round {round}: {}", fault.word()))?;
        println!("round {round}: {}: at rest after {:.1} s", fault.word(), began.elapsed().as_secs_f64());
    }
    campaign.end(tally)
}

fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Running campaign. The executor ends before the API.
struct PodCampaign {
    executor: ExecutorProcess,
    server: ServerProcess,
    api: KubernetesApi,
    load: Option<ProducerLoad>,
    random: RandomSource,
    /// Number of deployments, which name them.
    deployments: u64,
    /// Parts of the foreign objects that only their owner changes.
    foreign: Value,
}

impl PodCampaign {
    fn begin(seed: u64) -> Result<PodCampaign> {
        let api = KubernetesApi::start(&NODES);
        for namespace in [CONTROL, PODS] {
            api.namespace(namespace);
        }
        let mut server = ServerProcess::start_with(&[
            ("CHANCERY_EMBEDDED_EXECUTORS", "none"),
            ("CHANCERY_SESSION_LEASE", LEASE),
        ]);
        server.stay_at_this_address();
        let client = server.client();
        let spec = json!({"runtime": "kubernetes", "kubernetes": {"namespace": CONTROL}});
        client.must("cluster.apply", &json!({"name": CONTROL, "spec": spec}));
        for node in NODES {
            add_node(&client, node);
        }
        plant_foreign(&api);
        let executor = ExecutorProcess::start_pods(&server, "e1", &api, CONTROL);
        let file = server.directory().join("history.jsonl");
        let mut campaign = PodCampaign {
            executor,
            server,
            api,
            load: None,
            random: RandomSource::new(seed),
            deployments: 0,
            foreign: Value::Null,
        };
        campaign.apply_plan(&json!({}));
        let hand =
            json!({"namespace": PODS, "service": "hand", "payloads": [payload()], "sharing": "allowed"});
        client.must("plan.apply", &json!({"name": "hand", "spec": hand}));
        campaign.deploy(3);
        client.wait_for("web", "running", 3);
        campaign.foreign = campaign.identities();
        // Two producers leave processor time to the API.
        let url = campaign.server.url();
        campaign.load = Some(ProducerLoad::begin(&url, 2, seed, Duration::from_secs(30), &file)?);
        Ok(campaign)
    }

    fn client(&self) -> TestClient {
        self.server.client()
    }

    /// Applies the plan `web` with these labels of its pods. Its operations are approved by rule.
    fn apply_plan(&self, labels: &Value) {
        let words = ["create", "update", "relocate", "restart", "start", "stop", "delete"];
        let approval: serde_json::Map<_, _> =
            words.iter().map(|word| ((*word).to_owned(), json!("automatic"))).collect();
        let spec = json!({
            "namespace": PODS, "service": "web", "payloads": [payload()], "approval": approval, "sharing": "allowed",
            "labels": labels, "restart_delay": 100,
        });
        self.client().must("plan.apply", &json!({"name": "web", "spec": spec}));
    }

    /// Returns an error with the state of the executor and of the pods.
    fn explained(&mut self, error: &anyhow::Error) -> anyhow::Error {
        let pods =
            self.api.try_kubectl(&["get", "pods", "-n", PODS, "-o", "wide"]).unwrap_or_else(|error| error);
        let kubelet = last_lines(&self.api.log_of("kwok"));
        let sessions = self.client().items("sessions");
        let ended = self.executor.ended();
        let threads = self.executor.threads();
        let log = last_lines(&self.executor.log());
        anyhow!(
            "{error:#}\nexecutor ended: {ended:?}, threads: {threads}\nsessions: {sessions:?}\npods:\n{pods}\nlog of the kubelets:\n{kubelet}\n\
             log of the executor:\n{log}\nlog of the server:\n{}",
            last_lines(&self.server.log())
        )
    }

    /// Requests `count` replicas of `web`.
    fn deploy(&mut self, count: u32) {
        self.deployments += 1;
        deploy(&self.client(), &format!("round-{}", self.deployments), count);
    }

    /// Returns the pods of the cluster.
    fn pods(&self) -> Vec<Value> {
        self.api.pods(OURS)
    }

    /// Waits until a pod of `web` runs, and returns one of those.
    fn running_pod(&mut self) -> Result<Value> {
        let running = self.within("a pod runs", |campaign| {
            let mut pods = campaign.pods();
            pods.retain(|pod| {
                pod["metadata"]["labels"]["chancery.dev/plan"] == "web"
                    && pod["status"]["phase"] == "Running"
                    && pod["metadata"]["deletionTimestamp"].is_null()
            });
            (!pods.is_empty()).then_some(pods)
        })?;
        Ok(self.random.pick(&running).expect("one runs").clone())
    }

    /// Waits for at most [`REST`] until `ready` returns a value.
    fn within<T>(&self, what: &str, ready: impl Fn(&PodCampaign) -> Option<T>) -> Result<T> {
        let began = Instant::now();
        loop {
            if let Some(found) = ready(self) {
                return Ok(found);
            }
            ensure!(began.elapsed() < REST, "still waiting after {} s: {what}", REST.as_secs());
            std::thread::sleep(INTERVAL);
        }
    }

    /// Waits with paused producers until nothing is left to do, and compares pods with rows.
    fn check(&mut self) -> Result<()> {
        self.load.as_ref().context("producers are at work")?.pause();
        let began = Instant::now();
        let mut synced = began;
        let last = loop {
            let found = self.differences();
            if found.is_empty() || began.elapsed() > REST {
                break found;
            }
            if synced.elapsed() > SYNC {
                synced = Instant::now();
                self.sync_pods(began.elapsed());
            }
            std::thread::sleep(INTERVAL);
        };
        ensure!(last.is_empty(), "{} s after the fault:\n  {}", REST.as_secs(), last.join("\n  "));
        self.check_foreign()?;
        self.load.as_ref().context("producers are at work")?.resume();
        Ok(())
    }

    /// Lets the simulated kubelets read all pods again, as a kubelet does automatically: kwok does not repeat a request that
    /// had no answer.
    fn sync_pods(&self, elapsed: Duration) {
        let note = json!({"metadata": {"annotations": {"tests/synced": elapsed.as_secs().to_string()}}});
        for pod in self.api.list(&format!("namespaces/{PODS}/pods"), "") {
            // It may be deleted meanwhile.
            self.api.patch(&path_of(&pod), &note);
        }
    }

    /// Returns what distinguishes the present state from one at rest.
    fn differences(&self) -> Vec<String> {
        let client = self.client();
        let mut found = Vec::new();
        for operation in client.items("operations?limit=1000") {
            let state = operation["state"].as_str().unwrap_or_default();
            if ["preparing", "approved", "running"].contains(&state) {
                found.push(format!("an operation is not ended: {operation}"));
            }
        }
        let live: Vec<_> = client
            .items("incarnations?limit=1000")
            .into_iter()
            .filter(|row| {
                let state = row["state"].as_str().unwrap_or_default();
                !["reserved", "destroyed", "failed", "unwound"].contains(&state)
            })
            .collect();
        let mut replicas = BTreeSet::new();
        for row in &live {
            if !replicas.insert(row["replica"].to_string()) {
                found.push(format!("a replica has two incarnations: {row}"));
            }
        }
        let pods = self.pods();
        let is_of =
            |pod: &Value, row: &Value| pod["metadata"]["labels"]["chancery.dev/incarnation"] == row["id"];
        for pod in &pods {
            if !live.iter().any(|row| is_of(pod, row)) {
                found.push(format!("a pod has no incarnation: {}", pod["metadata"]["name"]));
            }
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                found.push(format!("a pod is being deleted: {}", pod["metadata"]["name"]));
            }
        }
        for row in &live {
            let count = pods.iter().filter(|pod| is_of(pod, row)).count();
            if count != 1 {
                found.push(format!("an incarnation has {count} pods: {row}"));
            }
        }
        found
    }

    fn check_foreign(&self) -> Result<()> {
        let now = self.identities();
        ensure!(now == self.foreign, "a foreign object was changed:\n  {}\n  {now}", self.foreign);
        Ok(())
    }

    /// Parts of the foreign objects that only their owner changes.
    fn identities(&self) -> Value {
        let of = |object: &Value| {
            let metadata = &object["metadata"];
            json!([
                metadata["name"],
                metadata["uid"],
                metadata["labels"],
                metadata["deletionTimestamp"],
                object["spec"]["containers"],
                object["data"],
            ])
        };
        ["pods", "configmaps"]
            .iter()
            .flat_map(|kind| self.api.list(kind, "tests/foreign"))
            .map(|one| of(&one))
            .collect()
    }

    /// Ends everything, starts five replicas, and judges the journal with the pods as processes.
    fn end(mut self, tally: &mut CountMap) -> Result<()> {
        let history = self.load.take().context("producers are at work")?.end()?;
        let alive = || {
            let pods = self.pods();
            let ids: BTreeSet<_> = pods
                .iter()
                .map(|pod| pod["metadata"]["labels"]["chancery.dev/incarnation"].as_str())
                .collect();
            ids.into_iter()
                .map(|id| {
                    let id = id.context("a pod has its incarnation")?;
                    let processes = pods
                        .iter()
                        .filter(|pod| pod["metadata"]["labels"]["chancery.dev/incarnation"] == id)
                        .count();
                    let incarnation: IncarnationId = id.parse().map_err(|error| anyhow!("{id}: {error}"))?;
                    Ok(RunningProcesses { incarnation, processes })
                })
                .collect()
        };
        let mut evidence = vec![ServerEvidence::gather_with(&self.server, alive)?];
        let client = self.client();
        let empty = |name: &str| {
            deploy(&client, &format!("{name}-none"), 0);
            let none = json!({"plan": "hand", "name": format!("{name}-none"), "spec": {"count": 0}});
            client.must("deployment.create", &none);
            until("no replica is left", || {
                client.approve_all();
                client.items("replicas?limit=1").is_empty().then_some(())
            });
        };
        empty("end");
        ensure!(self.pods().is_empty(), "pods are left: {:?}", self.pods());
        deploy(&client, "end-last", 5);
        client.wait_for("web", "running", 5);
        evidence.push(ServerEvidence::gather_with(&self.server, alive)?);
        empty("over");
        ensure!(self.pods().is_empty(), "pods are left: {:?}", self.pods());
        let selector = format!("{OURS},chancery.dev/incarnation");
        self.within("every record is purged", |campaign| {
            let maps = campaign.api.list(&format!("namespaces/{CONTROL}/configmaps"), &selector);
            maps.is_empty().then_some(())
        })?;
        self.check_foreign()?;
        for (code, log) in
            [(self.executor.stop(), self.executor.log()), (self.server.stop(), self.server.log())]
        {
            ensure!(code == Some(0), "it does not stop on request: {code:?}\n{}", last_lines(&log));
        }
        judge(self.server.data(), &history, &evidence, tally)
    }
}

fn payload() -> Value {
    json!({
        "name": "app", "resources": {"cpu": 100, "memory": 1 << 20},
        "container": {"image": "registry.test/web:1"},
    })
}

/// Path of a pod of the cluster in the API.
fn path_of(pod: &Value) -> String {
    format!("namespaces/{PODS}/pods/{}", pod["metadata"]["name"].as_str().expect("a name"))
}

/// Adds a node of Kubernetes to the cluster of the fleet.
fn add_node(client: &TestClient, name: &str) {
    let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
    let spec = json!({"domain": name, "resources": total});
    client.must("node.apply", &json!({"name": name, "cluster": CONTROL, "spec": spec}));
}

/// Creates objects of other owners: a pod of another fleet, and a pod and a config map with names like those of the cluster.
fn plant_foreign(api: &KubernetesApi) {
    let id = "00000000-0000-8131-9915-bc4453374281";
    let pod = |name: &str, labels: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": PODS, "labels": labels},
            "spec": {"nodeName": NODES[0], "containers": [{"name": "c", "image": "registry.test/other:1"}]},
        })
    };
    let other = json!({
        "tests/foreign": "yes", "chancery.dev/fleet": "other", "chancery.dev/cluster": CONTROL,
        "chancery.dev/epoch": "7", "chancery.dev/incarnation": id,
    });
    api.create(&pod("of-another-fleet", other));
    api.create(&pod(&format!("web-{id}-0"), json!({"tests/foreign": "yes", "app": "web"})));
    api.create(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"record": "{}"},
        "metadata": {
            "name": format!("chancery-incarnation-{id}"), "namespace": CONTROL, "labels": {"tests/foreign": "yes"},
        },
    }));
}
