//! W18: replicas as pods of a real Kubernetes API with simulated kubelets, durable and approved by rule, next to a bare
//! client that creates the same pods and watches them. All share the cores: API, controllers, kubelets, server, client.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::ROUNDS;
use crate::bare_pods::{BarePods, BareRequests};
use crate::kubernetes::{AuditedRequest, BenchmarkKubernetes, CONTROL, PODS};
use crate::process::{MeasuredProcess, peak_mib};
use crate::server::{BenchmarkServer, FLEET};
use crate::stream::OutputStream;
use crate::table::{CellResult, ResultRow, ValueBar, median};

/// Replicas of the large deployment.
const REPLICAS: usize = 500;
/// Nodes that the replicas share.
const NODES: usize = 10;
/// Deployments of one replica.
const SINGLE: usize = 50;
/// Minimum share of the bare client's rate.
const SHARE: f64 = 0.8;
/// Maximum additional time of one replica, in milliseconds at the median.
const MORE_MS: f64 = 20.0;
/// Maximum number of requests in the life of a replica.
const REQUESTS: f64 = 6.0;
/// Time for requests that follow a replica's last one.
const TRAILING: Duration = Duration::from_millis(300);
/// Age of a replica whose start has been recorded.
const OLD: Duration = Duration::from_secs(12);

/// Executor of the cluster in a process of its own.
struct ExecutorProcess(Child);

impl ExecutorProcess {
    fn start(fleet: &PodFleet<'_>) -> Result<ExecutorProcess> {
        let program =
            std::env::var_os("CHANCERY_BIN").context("CHANCERY_BIN names the program: use bench/run")?;
        let child = Command::new(program)
            .args(["executor", "--server", &format!("http://{}", fleet.server.address)])
            .args(["--cluster", "pods", "--name", "pods-1", "--kubernetes", "--namespace", fleet.control])
            .arg("--kubeconfig")
            .arg(fleet.api.kubeconfig())
            .current_dir(fleet.server.directory())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(ExecutorProcess(child))
    }
}

impl Drop for ExecutorProcess {
    fn drop(&mut self) {
        // The process is not needed any more.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Server with a cluster of pods.
struct PodFleet<'a> {
    api: &'a BenchmarkKubernetes,
    /// Namespace of the executor's records. Another server has another journal, and so needs other records.
    control: &'static str,
    server: BenchmarkServer,
    deployed: OutputStream,
    deleted: OutputStream,
    plans: usize,
}

impl<'a> PodFleet<'a> {
    /// Starts a server with these nodes. Its cluster has an executor in its own process, if `embedded` is `all`.
    fn start(
        api: &'a BenchmarkKubernetes,
        nodes: &[String],
        control: &'static str,
        embedded: &str,
    ) -> Result<PodFleet<'a>> {
        let server = api.server(embedded)?;
        let deployed = OutputStream::open(&server.address, "&types=deployment.ended.v1")?;
        let deleted = OutputStream::open(&server.address, "&types=plan.deleted.v1")?;
        let fleet = PodFleet { api, control, server, deployed, deleted, plans: 0 };
        let cluster = json!({"spec": {"runtime": "kubernetes", "kubernetes": {"namespace": control}}});
        fleet.ask("PUT", &format!("{FLEET}/clusters/pods"), &cluster.to_string())?;
        for (number, node) in nodes.iter().enumerate() {
            let total = json!({"cpu": 8000, "memory": 32u64 << 30, "disk": 0});
            let spec = json!({"domain": format!("d-{}", number % 4), "resources": total});
            let body = json!({"spec": spec, "cluster": "pods"}).to_string();
            fleet.ask("PUT", &format!("{FLEET}/nodes/{node}"), &body)?;
        }
        Ok(fleet)
    }

    /// Sends a request on a new connection: the server closes one that is idle while others are measured.
    fn ask(&self, method: &str, path: &str, body: &str) -> Result<()> {
        self.server.client()?.ask(method, path, body).map(drop)
    }

    /// Creates a plan whose operations need no manual approval.
    fn plan(&mut self) -> Result<String> {
        let name = format!("web-{}", self.plans);
        self.plans += 1;
        let kinds = ["create", "start", "stop", "delete", "update"];
        let rule: BTreeMap<_, _> = kinds.into_iter().map(|kind| (kind, "automatic")).collect();
        let payload = json!({
            "name": "web", "resources": {"cpu": 100, "memory": 64 << 20},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
            "container": {"image": "registry.test/web:1", "args": ["--port", "${port.http}"]},
            "ready": {"http": {"port": "http", "path": "/"}},
        });
        let spec = json!({
            "namespace": PODS, "service": "web", "cluster": "pods", "sharing": "allowed", "payloads": [payload],
            "approval": rule,
        });
        self.ask("PUT", &format!("{FLEET}/plans/{name}"), &json!({"spec": spec}).to_string())?;
        Ok(name)
    }

    /// Deploys a plan, and waits until the stream reports the deployment's end: all replicas run.
    fn deploy(&mut self, plan: &str, count: usize) -> Result<Duration> {
        let began = Instant::now();
        let body = json!({"name": "first", "spec": {"count": count}}).to_string();
        self.ask("POST", &format!("{FLEET}/plans/{plan}/deployments"), &body)?;
        self.deployed.next_event()?;
        let took = began.elapsed();
        let event: Value = serde_json::from_str(self.deployed.data())?;
        ensure!(event["data"]["plan"] == plan && event["data"]["end"] == "completed", "{event}");
        Ok(took)
    }

    /// Deletes a plan with its replicas, and waits until the executor has purged each.
    fn delete(&mut self, plan: &str, count: usize) -> Result<()> {
        let from = self.api.audited()?;
        self.ask("DELETE", &format!("{FLEET}/plans/{plan}?cascade=yes"), "")?;
        self.deleted.next_event()?;
        self.api.until(from, "the purge of all records", |requests| {
            let purges = requests.iter().filter(|of| of.verb == "delete" && of.object().0 == "configmaps");
            purges.count() == count
        })
    }

    /// Deploys many replicas; returns the result, and the requests per second.
    fn many(&mut self, measured: u32) -> Result<(CellResult, f64)> {
        let plan = self.plan()?;
        let (from, usage) = (self.api.audited()?, MeasuredProcess::begin(measured)?);
        let took = self.deploy(&plan, REPLICAS)?;
        let requests = self.api.requests(from)?.len() as f64 / took.as_secs_f64();
        let rate = CellResult::rate(REPLICAS as f64 / took.as_secs_f64());
        let cell = CellResult { cores: Some(usage.cores()?), memory_mib: Some(peak_mib(measured)?), ..rate };
        self.delete(&plan, REPLICAS)?;
        Ok((cell, requests))
    }
}

fn many(fleet: &mut PodFleet<'_>, measured: u32, bare: &mut BarePods) -> Result<Vec<ResultRow>> {
    let (mut ours, mut same, mut pods_only) = (Vec::new(), Vec::new(), Vec::new());
    let mut requests = Vec::new();
    for _ in 0..ROUNDS {
        let (cell, rate) = fleet.many(measured)?;
        ours.push(cell);
        requests.push(CellResult::rate(rate));
        for (kind, rates) in [(BareRequests::Same, &mut same), (BareRequests::PodOnly, &mut pods_only)] {
            let took = bare.create(REPLICAS, kind)?;
            rates.push(CellResult::rate(REPLICAS as f64 / took.as_secs_f64()));
            bare.clear()?;
        }
    }
    let ours = median(ours);
    Ok(vec![
        ResultRow::new("W18", format!("{REPLICAS} pods"), ours.clone()).share_of(
            "bare client, same requests",
            median(same),
            SHARE,
        ),
        ResultRow::new("W18", format!("{REPLICAS} pods"), ours)
            .compared_with("bare client, pods only", median(pods_only)),
        ResultRow::new("W18", "their requests", median(requests)),
    ])
}

/// Returns the number of requests for each object of a replica, by its incarnation, and the number of all others.
fn of_each(requests: &[AuditedRequest]) -> (Vec<usize>, usize) {
    let (mut each, mut others) = (BTreeMap::<_, usize>::new(), 0);
    for request in requests {
        let (resource, name) = request.object();
        // `chancery-incarnation-ID`, and `PLAN-ID-NUMBER`
        let id = match resource {
            "configmaps" => name.strip_prefix("chancery-incarnation-"),
            "pods" => name.strip_prefix("web-").and_then(|name| name.split_once('-')?.1.strip_suffix("-0")),
            _ => None,
        };
        match id {
            Some(id) => *each.entry(id.to_owned()).or_default() += 1,
            None => others += 1,
        }
    }
    (each.into_values().collect(), others)
}

/// One replica, from its intent until the executor has purged it.
struct ReplicaLife {
    /// Time until it ran.
    started: Duration,
    requests: usize,
    other_requests: usize,
    length: Duration,
}

impl ReplicaLife {
    /// Deploys one replica, and deletes it at this age.
    fn run(fleet: &mut PodFleet<'_>, age: Duration) -> Result<ReplicaLife> {
        let plan = fleet.plan()?;
        let (from, began) = (fleet.api.audited()?, Instant::now());
        let started = fleet.deploy(&plan, 1)?;
        std::thread::sleep(age);
        fleet.delete(&plan, 1)?;
        std::thread::sleep(TRAILING);
        let length = began.elapsed();
        let (each, other_requests) = of_each(&fleet.api.requests(from)?);
        let [requests] = each.as_slice() else { bail!("{} incarnations, not one", each.len()) };
        Ok(ReplicaLife { started, requests: *requests, other_requests, length })
    }
}

fn single(fleet: &mut PodFleet<'_>, bare: &mut BarePods) -> Result<Vec<ResultRow>> {
    let old = ReplicaLife::run(fleet, OLD)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let (mut most, mut others, mut time) = (old.requests, old.other_requests, old.length);
    for _ in 0..SINGLE {
        let life = ReplicaLife::run(fleet, Duration::ZERO)?;
        ours.push(life.started);
        most = most.max(life.requests);
        others += life.other_requests;
        time += life.length;
        theirs.push(bare.create(1, BareRequests::PodOnly)?);
        bare.clear()?;
    }
    let cell = |took: Vec<Duration>| {
        let all = took.iter().sum();
        CellResult::of(took, all)
    };
    let (ours, theirs) = (cell(ours), cell(theirs));
    let more = ours.p50_ms - theirs.p50_ms;
    let row = ResultRow::new("W18", "1 pod", ours).compared_with("bare client", theirs);
    Ok(vec![
        row.check("milliseconds more, p50", more, ValueBar::Below(MORE_MS))
            .check("requests in the life of a replica", most as f64, ValueBar::AtMost(REQUESTS))
            .check("other requests per second", others as f64 / time.as_secs_f64(), ValueBar::Below(1.0)),
    ])
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let nodes: Vec<_> = (1..=NODES).map(|number| format!("node-{number}")).collect();
    let api = BenchmarkKubernetes::start(&nodes)?;
    let mut fleet = PodFleet::start(&api, &nodes, CONTROL[0], "all")?;
    // The executor has opened its session by then.
    let plan = fleet.plan()?;
    fleet.deploy(&plan, 1)?;
    let mut bare = BarePods::open(&api, &nodes)?;
    fleet.delete(&plan, 1)?;
    let mut rows = single(&mut fleet, &mut bare)?;
    let measured = fleet.server.process();
    rows.extend(many(&mut fleet, measured, &mut bare)?);
    drop(fleet);
    let mut fleet = PodFleet::start(&api, &nodes, CONTROL[1], "none")?;
    let executor = ExecutorProcess::start(&fleet)?;
    let plan = fleet.plan()?;
    fleet.deploy(&plan, 1)?;
    fleet.delete(&plan, 1)?;
    let (cell, _) = fleet.many(executor.0.id())?;
    rows.push(ResultRow::new("W18", format!("{REPLICAS}, executor"), cell));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_incarnation() {
        let line = |verb: &str, resource: &str, name: &str| {
            let text = json!({"verb": verb, "objectRef": {"resource": resource, "name": name}});
            serde_json::from_value::<AuditedRequest>(text).expect("a request")
        };
        let id = "0193a5d2-0000-7000-8000-000000000001";
        let requests = [
            line("create", "configmaps", &format!("chancery-incarnation-{id}")),
            line("create", "pods", &format!("web-3-{id}-0")),
            line("update", "configmaps", "chancery-default-pods"),
            line("list", "pods", ""),
        ];
        assert_eq!(of_each(&requests), (vec![2], 2));
    }
}
