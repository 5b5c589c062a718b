//! W13: the life of replicas on the simulated orchestrator. Relocations of one replica are measured alone,
//! and while 100,000 operations of another plan wait for approval. Also measured: a deployment of N replicas
//! on N nodes without sharing, and the concurrent update of all running replicas.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::http::BenchmarkClient;
use crate::process::peak_mib;
use crate::server::{BenchmarkServer, FLEET};
use crate::stream::OutputStream;
use crate::table::{CellResult, ResultRow, ValueBar};

/// Number of operations that wait for approval.
const WAITING: u32 = 100_000;
/// Relocations of a round.
const RELOCATES: usize = 100;
/// Numbers of replicas, each on a node of its own, with the number of repetitions.
const SPREAD: [(u32, usize); 2] = [(125, 5), (500, 5)];
/// Maximum ratio of a relocation with waiting operations to one alone.
const WAITING_RATIO: f64 = 1.5;
/// Linearity: maximum ratio of the time per replica of the larger deployment to that of the smaller.
const LINEAR: f64 = 1.5;

fn fleet(client: &mut BenchmarkClient, nodes: u32) -> Result<()> {
    client.ask("PUT", &format!("{FLEET}/clusters/local"), r#"{"spec":{"runtime":"simulated"}}"#)?;
    for node in 0..nodes {
        let total = json!({"cpu": 1_000_000_000u64, "memory": 1u64 << 50, "disk": 1u64 << 50});
        let spec = json!({"domain": format!("d-{}", node % 4), "resources": total});
        let body = json!({"spec": spec, "cluster": "local"}).to_string();
        client.ask("PUT", &format!("{FLEET}/nodes/node-{node}"), &body)?;
    }
    Ok(())
}

fn plan(client: &mut BenchmarkClient, name: &str, approval: &str, sharing: &str) -> Result<()> {
    let kinds = ["create", "update", "relocate", "restart", "start", "stop", "delete"];
    let rule: serde_json::Map<_, _> =
        kinds.iter().map(|kind| ((*kind).to_owned(), approval.into())).collect();
    let payload = json!({"name": "server", "resources": {"cpu": 10, "memory": 1_000_000, "disk": 0}});
    let spec = json!({
        "namespace": "bench", "service": name, "sharing": sharing, "payloads": [payload], "approval": rule,
    });
    client.ask("PUT", &format!("{FLEET}/plans/{name}"), &json!({"spec": spec}).to_string()).map(drop)
}

/// Deploys `count` replicas, and waits until the stream reports the deployment's end.
fn deploy(
    client: &mut BenchmarkClient,
    stream: &mut OutputStream,
    plan: &str,
    name: &str,
    spec: &Value,
) -> Result<Duration> {
    let began = Instant::now();
    let body = json!({"name": name, "spec": spec}).to_string();
    client.ask("POST", &format!("{FLEET}/plans/{plan}/deployments"), &body)?;
    stream.next_event()?;
    let took = began.elapsed();
    let event: Value = serde_json::from_str(stream.data())?;
    ensure!(event["data"]["name"] == name && event["data"]["end"] == "completed", "{event}");
    Ok(took)
}

/// Returns the only replica of a plan, once the rows reach `position`.
fn replica_of(client: &mut BenchmarkClient, plan: &str, position: u64) -> Result<String> {
    let path = format!("{FLEET}/replicas?plan={plan}&min_position={position}");
    let rows: Value = serde_json::from_slice(client.ask("GET", &path, "")?)?;
    let name = rows["items"][0]["name"].as_str();
    name.map(str::to_owned).with_context(|| format!("{plan} has no replica: {rows}"))
}

/// Relocates a replica back and forth; measures from each intent until the old incarnation has ended.
fn relocates(client: &mut BenchmarkClient, ended: &mut OutputStream, replica: &str) -> Result<CellResult> {
    let path = format!("{FLEET}/replicas/{replica}/relocate");
    let mut took = Vec::with_capacity(RELOCATES);
    let all = Instant::now();
    for _ in 0..RELOCATES {
        let began = Instant::now();
        client.ask("POST", &path, "{}")?;
        ended.next_event()?;
        took.push(began.elapsed());
        let event: Value = serde_json::from_str(ended.data())?;
        ensure!(event["data"]["end"] == "succeeded", "{event}");
    }
    Ok(CellResult::of(took, all.elapsed()))
}

/// Waits until [`WAITING`] operations wait for approval.
fn until_waiting(client: &mut BenchmarkClient) -> Result<()> {
    let began = Instant::now();
    loop {
        let row: Value = serde_json::from_slice(client.ask("GET", &format!("{FLEET}/plans/waiting"), "")?)?;
        if row["operations"]["create"]["pending_approval"] == WAITING {
            return Ok(());
        }
        ensure!(began.elapsed() < Duration::from_mins(10), "the operations do not become pending: {row}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn relocate_while_others_wait() -> Result<ResultRow> {
    let server = BenchmarkServer::start_with(&[("CHANCERY_LIMITS_REPLICAS", &WAITING.to_string())])?;
    let mut client = server.client()?;
    fleet(&mut client, 4)?;
    plan(&mut client, "moving", "automatic", "allowed")?;
    plan(&mut client, "waiting", "manual", "allowed")?;
    let mut deployed = OutputStream::open(&server.address, "&types=deployment.ended.v1")?;
    deploy(&mut client, &mut deployed, "moving", "first", &json!({"count": 1}))?;
    let replica = replica_of(&mut client, "moving", deployed.position())?;
    let mut ended = OutputStream::open(&server.address, "&types=operation.ended.v1")?;
    relocates(&mut client, &mut ended, &replica)?;
    let alone = relocates(&mut client, &mut ended, &replica)?;
    let body = json!({"name": "first", "spec": {"count": WAITING}}).to_string();
    client.ask("POST", &format!("{FLEET}/plans/waiting/deployments"), &body)?;
    until_waiting(&mut client)?;
    let while_waiting = relocates(&mut client, &mut ended, &replica)?;
    let ratio = while_waiting.p50_ms / alone.p50_ms;
    let while_waiting = CellResult { memory_mib: Some(peak_mib(server.process())?), ..while_waiting };
    let row =
        ResultRow::new("W13", format!("{WAITING} wait"), while_waiting).compared_with("none waits", alone);
    Ok(row.check("p50 of a relocate, to that alone", ratio, ValueBar::Below(WAITING_RATIO)))
}

fn spread() -> Result<Vec<ResultRow>> {
    let mut of_replica = Vec::new();
    let mut rows = Vec::new();
    for (count, times) in SPREAD {
        let server = BenchmarkServer::start()?;
        let mut client = server.client()?;
        fleet(&mut client, count)?;
        let mut stream = OutputStream::open(&server.address, "&types=deployment.ended.v1")?;
        let (mut creates, mut updates) = (Vec::new(), Vec::new());
        for number in 0..times {
            let name = format!("plan-{number}");
            plan(&mut client, &name, "automatic", "never")?;
            creates.push(deploy(&mut client, &mut stream, &name, "first", &json!({"count": count}))?);
            let coordinates = json!({"server": {"version": "2"}});
            let all = json!({"rolling": {"max_parallel": count}});
            let spec = json!({"count": count, "coordinates": coordinates, "strategy": all});
            updates.push(deploy(&mut client, &mut stream, &name, "second", &spec)?);
        }
        for (what, took) in [("", creates), (" updated", updates)] {
            let cell = CellResult::of(took.clone(), took.iter().sum());
            let middle = cell.p50_ms / f64::from(count);
            let rate = f64::from(count) / (cell.p50_ms / 1e3);
            of_replica.push(middle);
            let row = ResultRow::new("W13", format!("{count} on {count}{what}"), CellResult { rate, ..cell });
            let earlier = of_replica.len().checked_sub(3).and_then(|index| of_replica.get(index).copied());
            rows.push(match earlier {
                Some(before) => row.check(
                    "time per replica, relative to that of 125",
                    middle / before,
                    ValueBar::Below(LINEAR),
                ),
                None => row,
            });
        }
    }
    Ok(rows)
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let mut rows = spread()?;
    rows.push(relocate_while_others_wait()?);
    Ok(rows)
}
