//! Relocates under load whose new incarnation fails at random. A watcher always sees the replica running; a
//! failed relocate leaves no reservation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::evidence::{ServerEvidence, judge, wind_up};
use super::fleet::{by_hand, set_up, sleeper};
use super::load::ProducerLoad;
use crate::ledger::CountMap;
use crate::{JournalBackend, ServerProcess, TestClient, payloads, until};

/// Payload whose server ends before it listens, in one of three starts.
fn flaky() -> Value {
    let program = crate::server::program().display().to_string();
    let script = "(( RANDOM % 3 )) || exit 1; exec \"$$0\" demo-payload --port \"$$1\"";
    json!({
        "name": "app", "resources": {"cpu": 100, "memory": 256 << 20},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}], "ready": {"tcp": {"port": "http"}},
        "run": {"argv": ["bash", "-c", script, program, "${port.http}"]},
    })
}

pub(super) fn run(backend: JournalBackend, rounds: u64, seed: u64, tally: &mut CountMap) -> Result<()> {
    let mut processes = backend.start(&[]);
    let server = &mut processes.server;
    let client = server.client();
    set_up(&client, &sleeper());
    by_hand(&client, &sleeper());
    let replica = bring_up(&client);
    let file = server.directory().join("history.jsonl");
    let load = ProducerLoad::begin(&server.url(), 4, seed, Duration::from_secs(30), &file)?;
    let watch = ReplicaWatch::begin(&server.url(), &replica);
    let mut failed = 0;
    for _ in 0..rounds {
        if relocate(&client, &replica) == "failed" {
            failed += 1;
            tally.fault("failed start");
        }
        tally.rounds += 1;
    }
    let looks = watch.end()?;
    ensure!(looks > rounds, "the replica was checked {looks} times in {rounds} relocates");
    ensure!(rounds < 30 || (1..rounds).contains(&failed), "{failed} of {rounds} relocates failed");
    let history = load.end()?;
    nothing_is_left(server, &replica)?;
    client.must("deployment.create", &json!({"plan": "moving", "name": "none", "spec": {"count": 0}}));
    let mut evidence = vec![ServerEvidence::gather(server)?];
    wind_up(server, &mut evidence)?;
    processes.stop()?;
    judge(processes.server.data(), &history, &evidence, tally)
}

/// Starts one replica of the plan `moving`, in as many attempts as needed.
fn bring_up(client: &TestClient) -> String {
    let kinds = ["create", "update", "relocate", "restart", "start", "stop", "delete"];
    let automatic: serde_json::Map<_, _> =
        kinds.iter().map(|kind| ((*kind).to_owned(), "automatic".into())).collect();
    let spec = json!({
        "namespace": "tests", "service": "moving", "payloads": [flaky()], "approval": automatic,
        "timeouts": {"start": 20_000},
    });
    client.must("plan.apply", &json!({"name": "moving", "spec": spec}));
    let mut tries = 0;
    until("the flaky server is running", || {
        tries += 1;
        let (name, spec) = (format!("try-{tries}"), json!({"count": 1}));
        client.must("deployment.create", &json!({"plan": "moving", "name": name, "spec": spec}));
        let ended = until("the deployment has ended", || {
            let row = client.read(&format!("plans/moving/deployments/{name}"));
            matches!(row["state"].as_str(), Some("completed" | "failed")).then_some(row)
        });
        let running = client.items("replicas?plan=moving&phase=running");
        let name = running.first().and_then(|row| row["name"].as_str()).map(str::to_owned);
        name.filter(|_| ended["state"] == "completed")
    })
}

/// Relocates the replica. Returns the operation's state.
fn relocate(client: &TestClient, replica: &str) -> String {
    client.must("replica.relocate", &json!({"name": replica}));
    until("the relocate has ended", || {
        let operations = client.items(&format!("operations?replica={replica}&limit=1000"));
        let last = operations.iter().max_by_key(|row| row["id"].as_str().map(str::to_owned))?;
        let over = matches!(last["state"].as_str(), Some("succeeded" | "failed"));
        let left = client.read(&format!("replicas/{replica}"))["secondary"].is_object();
        (over && !left).then(|| last["state"].as_str().unwrap_or_default().to_owned())
    })
}

/// Checks that the replica has one reservation and runs once.
fn nothing_is_left(server: &ServerProcess, replica: &str) -> Result<()> {
    let client = server.client();
    let incarnations = client.items(&format!("incarnations?replica={replica}&limit=1000"));
    let live = |row: &&Value| !matches!(row["state"].as_str(), Some("destroyed" | "failed" | "unwound"));
    ensure!(incarnations.iter().filter(live).count() == 1, "{incarnations:?}");
    until("it runs once", || {
        let alive = payloads(server.data()).into_iter().filter(|payload| payload.replica == replica).count();
        (alive == 1).then_some(())
    });
    Ok(())
}

/// Watcher that reads the replica continuously.
struct ReplicaWatch {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<Result<()>>,
}

impl ReplicaWatch {
    fn begin(url: &str, replica: &str) -> ReplicaWatch {
        let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&seen));
        let (client, path) = (TestClient::new(url), format!("replicas/{replica}"));
        let looks = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let row = client.read(&path);
                ensure!(
                    row["phase"] == "running" && row["ready"] == true,
                    "the replica is shown as not running: {row}"
                );
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(())
        });
        ReplicaWatch { stop, reads: seen, thread: looks }
    }

    fn end(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the watch panicked"))??;
        Ok(self.reads.load(Ordering::Relaxed))
    }
}
