//! W9: a deployment of N replicas on the simulated orchestrator, approved by rule, durable: from its intent
//! until the last replica runs.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::http::BenchmarkClient;
use crate::process::peak_mib;
use crate::server::{BenchmarkServer, FLEET};
use crate::stream::OutputStream;
use crate::table::{CellResult, ResultRow, ValueBar};

/// Sizes, with the number of deployments of each.
const SIZES: [(u32, usize); 4] = [(1, 200), (16, 40), (256, 7), (4096, 3)];
/// Nodes that the replicas share.
const NODES: usize = 64;
/// Bar: maximum time until one replica runs, in milliseconds.
const ONE: f64 = 100.0;
/// Linearity: maximum ratio of the time per replica of the largest size to that of the second largest.
const LINEAR: f64 = 1.5;

/// Creates a cluster of simulated nodes.
pub(crate) fn fleet(client: &mut BenchmarkClient) -> Result<()> {
    client.ask("PUT", &format!("{FLEET}/clusters/local"), r#"{"spec":{"runtime":"simulated"}}"#)?;
    for node in 0..NODES {
        let body = format!(
            r#"{{"spec":{{"domain":"d-{}","resources":{{"cpu":1000000,"memory":1000000000000,"disk":1000000000000}}}},"cluster":"local"}}"#,
            node % 4
        );
        client.ask("PUT", &format!("{FLEET}/nodes/node-{node}"), &body)?;
    }
    Ok(())
}

/// Creates a plan whose operations need no manual approval.
pub(crate) fn plan(client: &mut BenchmarkClient, name: &str) -> Result<()> {
    let rule = r#"{"create":"automatic","start":"automatic","stop":"automatic","delete":"automatic","update":"automatic"}"#;
    let payload = r#"{"name":"server","resources":{"cpu":10,"memory":1000000,"disk":0}}"#;
    let body = format!(
        r#"{{"spec":{{"namespace":"bench","service":"{name}","cluster":"local","sharing":"allowed","payloads":[{payload}],"approval":{rule}}}}}"#
    );
    client.ask("PUT", &format!("{FLEET}/plans/{name}"), &body).map(drop)
}

/// Deploys a plan and waits until the stream reports the deployment's end.
fn deploy(
    client: &mut BenchmarkClient,
    stream: &mut OutputStream,
    plan: &str,
    count: u32,
) -> Result<Duration> {
    let began = Instant::now();
    let body = format!(r#"{{"name":"first","spec":{{"count":{count}}}}}"#);
    client.ask("POST", &format!("{FLEET}/plans/{plan}/deployments"), &body)?;
    stream.next_event()?;
    let took = began.elapsed();
    let event: Value = serde_json::from_str(stream.data())?;
    let data = &event["data"];
    ensure!(data["plan"] == plan && data["end"] == "completed", "{event}");
    Ok(took)
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let mut rows: Vec<ResultRow> = Vec::new();
    let mut of_replica: Vec<f64> = Vec::new();
    for (count, times) in SIZES {
        let server = BenchmarkServer::start()?;
        let mut client = server.client()?;
        fleet(&mut client)?;
        let plans: Vec<_> = (0..times).map(|number| format!("plan-{number}")).collect();
        plans.iter().try_for_each(|name| plan(&mut client, name))?;
        let mut stream = OutputStream::open(&server.address, "&types=deployment.ended.v1")?;
        // The executor has opened its session by then.
        plan(&mut client, "warm-up")?;
        deploy(&mut client, &mut stream, "warm-up", 1)?;
        let took = plans.iter().map(|name| deploy(&mut client, &mut stream, name, count));
        let mut took = took.collect::<Result<Vec<_>>>()?;
        let all = took.iter().sum::<Duration>();
        let cell =
            CellResult { memory_mib: Some(peak_mib(server.process())?), ..CellResult::of(took.clone(), all) };
        took.sort_unstable();
        let middle = took.get(times / 2).context("deployments")?.as_secs_f64();
        let replicas = CellResult { rate: f64::from(count) / middle, ..cell };
        let p99 = replicas.p99_ms;
        let row = ResultRow::new("W9", format!("{count} replicas"), replicas);
        of_replica.push(middle / f64::from(count));
        rows.push(match (count, of_replica.as_slice()) {
            (1, _) => row.check("p99 to running in ms", p99, ValueBar::Below(ONE)),
            (4096, [.., before, last]) => {
                row.check("time per replica, relative to that of 256", last / before, ValueBar::Below(LINEAR))
            }
            _ => row,
        });
    }
    Ok(rows)
}
