//! W17: rollback of a rollout whose replicas never become ready, on the simulated orchestrator. It is
//! approved by rule and durable, and measured from the intent until the rollback has completed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::http::BenchmarkClient;
use crate::rollout;
use crate::server::{BenchmarkServer, FLEET};
use crate::stream::OutputStream;
use crate::table::{CellResult, ResultRow, ValueBar};

/// Replicas of the plan; all of them are updated concurrently.
const REPLICAS: u32 = 100;
/// Rollbacks that are measured.
const TIMES: usize = 5;
/// The bar, in milliseconds.
const ROLLBACK: f64 = 1000.0;
/// Time in which all updates must have started.
const HANGS: Duration = Duration::from_mins(1);

/// Checks the end of the deployment, which must be the next end of any.
fn ended(stream: &mut OutputStream, deployment: &str, end: &str) -> Result<()> {
    stream.next_event()?;
    let event: Value = serde_json::from_str(stream.data())?;
    let (name, name_of_end) = (&event["data"]["name"], &event["data"]["end"]);
    ensure!(*name == deployment && (*name_of_end == end || name_of_end.get(end).is_some()), "{event}");
    Ok(())
}

fn deploy(client: &mut BenchmarkClient, name: &str, simulate: &str) -> Result<()> {
    let coordinates = json!({"server": {"version": name, "simulate": simulate}});
    let strategy = json!({"rolling": {"max_parallel": REPLICAS}});
    let spec = json!({"count": REPLICAS, "coordinates": coordinates, "strategy": strategy});
    let body = json!({"name": name, "spec": spec}).to_string();
    client.ask("POST", &format!("{FLEET}/plans/web/deployments"), &body).map(drop)
}

/// Waits until every replica is being updated.
fn hangs(client: &mut BenchmarkClient) -> Result<()> {
    let until = Instant::now() + HANGS;
    loop {
        let row: Value = serde_json::from_slice(client.ask("GET", &format!("{FLEET}/plans/web"), "")?)?;
        if row["operations"]["update"]["running"] == REPLICAS {
            return Ok(());
        }
        ensure!(Instant::now() < until, "not all are being updated: {row}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let server = BenchmarkServer::start()?;
    let mut client = server.client()?;
    rollout::fleet(&mut client)?;
    rollout::plan(&mut client, "web")?;
    let mut stream = OutputStream::open(&server.address, "&types=deployment.ended.v1")?;
    deploy(&mut client, "good", "delay:0ms")?;
    ended(&mut stream, "good", "completed")?;
    let mut took = Vec::new();
    for number in 0..TIMES {
        let (hung, back) = (format!("hung-{number}"), format!("back-{number}"));
        deploy(&mut client, &hung, "never-ready")?;
        hangs(&mut client)?;
        let began = Instant::now();
        let body = json!({"name": back, "to": "good"}).to_string();
        client.ask("POST", &format!("{FLEET}/plans/web/rollback"), &body)?;
        ended(&mut stream, &hung, "superseded")?;
        ended(&mut stream, &back, "completed")?;
        took.push(began.elapsed());
    }
    let all = took.iter().sum::<Duration>();
    let cell = CellResult::of(took, all);
    let slowest = cell.p99_ms;
    let row = ResultRow::new("W17", format!("{REPLICAS} replicas"), cell);
    Ok(vec![row.check("slowest rollback in ms", slowest, ValueBar::Below(ROLLBACK))])
}
