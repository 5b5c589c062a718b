//! Workloads, each with its floor or peers in the same run: the disk drifts, so only ratios are meaningful.
//!
//! Chancery and the others run alternately, several rounds; the round with the median rate is kept. Each
//! workload runs in a process of its own, so that the memory shown is its own. A new workload is a module
//! with a `run` and a line in [`WORKLOADS`].

mod bare;
mod brokers;
mod floor;
mod http;
mod load;
mod maker;
mod peers;
mod postgres;
mod process;
mod server;
mod stream;
mod table;
mod w1;
mod w10;
mod w11;
mod w12;
mod w13;
mod w14;
mod w15;
mod w16;
mod w17;
mod w2;
mod w3;
mod w4;
mod w5;
mod w6;
mod w7;
mod w8;
mod w9;

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use table::Row;

/// Rounds of each cell; Chancery and the others alternate.
const ROUNDS: usize = 3;
/// Duration of a round.
const ROUND: std::time::Duration = std::time::Duration::from_millis(1500);
/// Numbers of concurrent callers.
const CALLERS: [usize; 4] = [1, 8, 32, 128];
/// Flag before the name of a workload: run it in this process, and print its rows as JSON.
const HERE: &str = "--here";

/// Workload of the benchmark.
struct Workload {
    name: &'static str,
    what: &'static str,
    run: fn() -> Result<Vec<Row>>,
}

/// All workloads.
const WORKLOADS: &[Workload] = &[
    Workload { name: "W1", what: "durable appends to the journal, in process", run: w1::run },
    Workload { name: "W2", what: "durable intents over HTTP", run: w2::run },
    Workload { name: "W3", what: "latency of a verdict", run: w3::run },
    Workload { name: "W4", what: "replay of a journal into the state", run: w4::run },
    Workload { name: "W5", what: "the projector's catch-up, and its lag", run: w5::run },
    Workload { name: "W6", what: "reads while intents are written", run: w6::run },
    Workload { name: "W7", what: "consumers that follow the stream", run: w7::run },
    Workload { name: "W8", what: "placement on the pure machine", run: w8::run },
    Workload { name: "W9", what: "deployments on simulated nodes, until every replica runs", run: w9::run },
    Workload { name: "W10", what: "two million replicas, from intent to ready", run: w10::run },
    Workload {
        name: "W11",
        what: "the journal on Kafka: durable appends, and intents over HTTP",
        run: w11::run,
    },
    Workload { name: "W12", what: "a start with a snapshot; a takeover on Kafka", run: w12::run },
    Workload {
        name: "W13",
        what: "relocates while operations wait, replicas that share no node, updates",
        run: w13::run,
    },
    Workload {
        name: "W14",
        what: "starts of processes with a control group each, and without",
        run: w14::run,
    },
    Workload { name: "W15", what: "memory of a server whose brokers are unavailable", run: w15::run },
    Workload {
        name: "W16",
        what: "ten thousand documents and operations by the command line",
        run: w16::run,
    },
    Workload { name: "W17", what: "rollbacks of a rollout that hangs", run: w17::run },
];

/// Requests, events and rows are many small allocations that are often freed on another thread.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args == [bare::BARE] {
        return bare::serve();
    }
    if let [first, name] = args.as_slice()
        && first == HERE
    {
        let rows = (named(name)?.run)()?;
        serde_json::to_writer(std::io::stdout().lock(), &rows)?;
        return Ok(());
    }
    let wanted: Vec<_> = if args.is_empty() {
        WORKLOADS.iter().collect()
    } else {
        args.iter().map(|name| named(name)).collect::<Result<_>>()?
    };
    let mut rows = Vec::new();
    for workload in wanted {
        println!("{}: {}", workload.name, workload.what);
        let new = apart(workload.name).with_context(|| format!("run {}", workload.name))?;
        table::print(&new);
        rows.extend(new);
    }
    table::write(&rows)
}

fn named(name: &str) -> Result<&'static Workload> {
    let Some(found) = WORKLOADS.iter().find(|known| known.name.eq_ignore_ascii_case(name)) else {
        let known: Vec<_> = WORKLOADS.iter().map(|w| format!("  {}  {}", w.name, w.what)).collect();
        bail!("invalid workload {name}: must be one of\n{}", known.join("\n"));
    };
    Ok(found)
}

/// Runs a workload in a process of its own.
fn apart(name: &str) -> Result<Vec<Row>> {
    let done = Command::new(std::env::current_exe()?).args([HERE, name]).stderr(Stdio::inherit()).output()?;
    ensure!(done.status.success(), "it ended with {}", done.status);
    Ok(serde_json::from_slice(&done.stdout)?)
}

/// Creates a directory on the measured disk, which is removed on drop.
fn folder() -> Result<tempfile::TempDir> {
    let builder = tempfile::Builder::new().prefix("chancery-bench-").to_owned();
    Ok(match std::env::var_os("CHANCERY_BENCH_DIR") {
        Some(dir) => builder.tempdir_in(dir)?,
        None => builder.tempdir()?,
    })
}
