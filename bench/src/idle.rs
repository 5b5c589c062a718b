//! W21: what a server costs while no client uses it: processor time over a minute, and memory before, under and after loads of
//! 256 concurrent callers: of reads, then of intents. The idempotency keys of intents are state of the fleet, with a maximum
//! number: intents fill them before the load of intents is measured. Then the time and size of a scrape of `/metrics` for a
//! fleet of 200,000 entities (`CHANCERY_BENCH_EVENTS` sets another number of events).

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use chancery_journal::Journal as _;
use serde_json::Value;

use crate::catch_up::written;
use crate::http::BenchmarkClient;
use crate::intents::caller;
use crate::process::{MeasuredProcess, peak_mib, resident_mib};
use crate::replay::wanted;
use crate::server::{BenchmarkServer, FLEET};
use crate::table::{CellResult, ResultRow, ValueBar};

/// Time over which an idle server is measured.
const IDLE: Duration = Duration::from_mins(1);
/// Time after a start, and after a load, until a server is idle: its unused threads end after 10 seconds.
const REST: Duration = Duration::from_secs(15);
const CALLERS: usize = 256;
/// Number of callers of the intents that fill the keys.
const FILLERS: usize = 32;
/// Number of events after which a fleet has its maximum number of keys: 250,000 intents of three events.
const FULL: u64 = 3 * 250_000;
const LOAD: Duration = Duration::from_secs(20);
/// Events about 200,000 entities.
const EVENTS: u64 = 1_000_000;
const SCRAPES: usize = 100;

fn idle(server: &BenchmarkServer) -> Result<f64> {
    std::thread::sleep(REST);
    let measured = MeasuredProcess::begin(server.process())?;
    std::thread::sleep(IDLE);
    measured.cores()
}

/// Loads an idle server with rounds until the time has passed, and returns the last round and the share of the memory before that
/// the server has when it is idle again.
fn loaded(
    server: &BenchmarkServer,
    mut round: impl FnMut() -> Result<CellResult>,
) -> Result<(CellResult, f64, f64)> {
    std::thread::sleep(REST);
    let (before, began) = (resident_mib(server.process())?, Instant::now());
    let cell = loop {
        let cell = round()?;
        if began.elapsed() >= LOAD {
            break cell;
        }
    };
    std::thread::sleep(REST);
    Ok((cell, before, resident_mib(server.process())?))
}

fn row(what: &str, server: &BenchmarkServer, round: impl FnMut() -> Result<CellResult>) -> Result<ResultRow> {
    let (cell, before, after) = loaded(server, round)?;
    Ok(ResultRow::new(format!("W21 {what}"), format!("{CALLERS} callers"), cell)
        .check("MiB before the load", before, ValueBar::Below(256.0))
        .check("MiB under the load, at most", peak_mib(server.process())?, ValueBar::Below(512.0))
        .check("memory after the load, of that before", after / before, ValueBar::AtMost(1.5)))
}

/// Returns the number of events of the fleet.
fn events(client: &mut BenchmarkClient, path: &str) -> Result<u64> {
    let page: Value = serde_json::from_slice(client.ask("GET", path, "")?)?;
    page["position"].as_u64().context("a page has a position")
}

/// Lets intents fill the idempotency keys, and measures the memory of the keys.
fn keys(server: &BenchmarkServer) -> Result<ResultRow> {
    std::thread::sleep(REST);
    let before = resident_mib(server.process())?;
    let (mut client, path) = (server.client()?, format!("{FLEET}/capabilities?limit=1"));
    let cell = loop {
        let cell = server.round(FILLERS, |client, number| Ok(caller(client, number)))?;
        if events(&mut client, &path)? >= FULL {
            break cell;
        }
    };
    std::thread::sleep(REST);
    let keys = resident_mib(server.process())? - before;
    Ok(ResultRow::new("W21 keys", "250,000 intents", cell).check(
        "MiB of their keys",
        keys,
        ValueBar::Below(128.0),
    ))
}

fn cost_of_rest() -> Result<Vec<ResultRow>> {
    let server = BenchmarkServer::start_with(&[("CHANCERY_LIMITS_READS_PER_SECOND", "1000000")])?;
    let idle_cores = idle(&server)?;
    let list = format!("{FLEET}/capabilities?limit=100");
    let reads = row("reads", &server, || {
        server.round(CALLERS, |mut client, _| {
            Ok({
                let list = list.clone();
                move || client.ask("GET", &list, "").map(drop)
            })
        })
    })?;
    let keys = keys(&server)?;
    let intents =
        row("intents", &server, || server.round(CALLERS, |client, number| Ok(caller(client, number))))?;
    let later = idle(&server)?;
    let idle = ResultRow::new("W21", "idle for 60 s", CellResult::rate(0.0))
        .check("% of a core after the start", idle_cores * 100.0, ValueBar::Below(0.1))
        .check("% of a core after the loads", later * 100.0, ValueBar::Below(0.1));
    Ok(vec![idle, reads, keys, intents])
}

fn scrapes() -> Result<ResultRow> {
    let events = wanted(EVENTS)?;
    let journal = |data: &std::path::Path| Ok(written(&data.join("fleets/bench/journal"), events)?.close()?);
    // The journal is of 1970.
    let settings = [("CHANCERY_FLEETS", "bench"), ("CHANCERY_CLOCK_MAX_GAP", "36500d")];
    let server = BenchmarkServer::prepared(&settings, journal)?;
    let mut client = server.client()?;
    let (mut latencies, mut bytes, began) = (Vec::new(), 0, Instant::now());
    for _ in 0..SCRAPES {
        let start = Instant::now();
        let scrape = client.ask("GET", "/metrics", "")?;
        latencies.push(start.elapsed());
        bytes = scrape.len();
        ensure!(scrape.windows(17).any(|part| part == b"chancery_replicas"), "a scrape has no replicas");
    }
    let cell = CellResult::of(latencies, began.elapsed());
    let slowest = cell.p99_ms;
    Ok(ResultRow::new("W21 scrape", format!("{}k events", events / 1000), cell)
        .check("p99 of a scrape in ms", slowest, ValueBar::Below(50.0))
        .check("KiB of a scrape", bytes as f64 / 1024.0, ValueBar::Below(256.0)))
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let mut rows = cost_of_rest()?;
    rows.push(scrapes()?);
    Ok(rows)
}
