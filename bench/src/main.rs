//! Workloads, each with its floor or peers in the same run: the disk drifts, so only ratios are meaningful.
//!
//! Chancery and the others run alternately, several rounds; the round with the median rate is kept. Each
//! workload runs in a process of its own, so that the memory shown is its own. A new workload is a module
//! with a `run` and a line in [`WORKLOADS`].

mod append;
mod bare;
mod bare_machine;
mod bare_pods;
mod baseline;
mod broker_outage;
mod brokers;
mod bulk_commands;
mod catch_up;
mod event_stream;
mod http;
mod idle;
mod intents;
mod kafka_append;
mod kubernetes;
mod load;
mod machine_fleet;
mod maker;
mod moments;
mod peers;
mod placement;
mod pod_life;
mod postgres;
mod process;
mod process_start;
mod reads;
mod replay;
mod replica_life;
mod rollback;
mod rollout;
mod server;
mod startup;
mod stream;
mod table;
mod two_million;
mod verdict_latency;
mod virtual_machines;

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use table::ResultRow;

/// Rounds of each cell; Chancery and the others alternate.
const ROUNDS: usize = 3;
/// Duration of a round.
const ROUND: std::time::Duration = std::time::Duration::from_millis(1500);
/// Numbers of concurrent callers.
const CALLERS: [usize; 4] = [1, 8, 32, 128];
/// Flag before the name of a workload: run it in this process, and print its rows as JSON.
const HERE: &str = "--here";

/// Workload of the benchmark.
struct BenchmarkWorkload {
    name: &'static str,
    what: &'static str,
    run: fn() -> Result<Vec<ResultRow>>,
}

/// All workloads.
const WORKLOADS: &[BenchmarkWorkload] = &[
    BenchmarkWorkload { name: "W1", what: "durable appends to the journal, in process", run: append::run },
    BenchmarkWorkload { name: "W2", what: "durable intents over HTTP", run: intents::run },
    BenchmarkWorkload { name: "W3", what: "latency of a verdict", run: verdict_latency::run },
    BenchmarkWorkload { name: "W4", what: "replay of a journal into the state", run: replay::run },
    BenchmarkWorkload { name: "W5", what: "the projector's catch-up, and its lag", run: catch_up::run },
    BenchmarkWorkload { name: "W6", what: "reads while intents are written", run: reads::run },
    BenchmarkWorkload { name: "W7", what: "consumers that follow the stream", run: event_stream::run },
    BenchmarkWorkload { name: "W8", what: "placement on the pure machine", run: placement::run },
    BenchmarkWorkload {
        name: "W9",
        what: "deployments on simulated nodes, until every replica runs",
        run: rollout::run,
    },
    BenchmarkWorkload {
        name: "W10",
        what: "two million replicas, from intent to ready",
        run: two_million::run,
    },
    BenchmarkWorkload {
        name: "W11",
        what: "the journal on Kafka: durable appends, and intents over HTTP",
        run: kafka_append::run,
    },
    BenchmarkWorkload {
        name: "W12",
        what: "a start with a snapshot; a takeover on Kafka",
        run: startup::run,
    },
    BenchmarkWorkload {
        name: "W13",
        what: "relocates while operations wait, replicas that share no node, updates",
        run: replica_life::run,
    },
    BenchmarkWorkload {
        name: "W14",
        what: "starts of processes with a control group each, and without",
        run: process_start::run,
    },
    BenchmarkWorkload {
        name: "W15",
        what: "memory of a server whose brokers are unavailable",
        run: broker_outage::run,
    },
    BenchmarkWorkload {
        name: "W16",
        what: "ten thousand documents and operations by the command line",
        run: bulk_commands::run,
    },
    BenchmarkWorkload { name: "W17", what: "rollbacks of a rollout that hangs", run: rollback::run },
    BenchmarkWorkload { name: "W18", what: "replicas as pods of a Kubernetes cluster", run: pod_life::run },
    BenchmarkWorkload {
        name: "W19",
        what: "virtual machines: their boot, idle guests, the adoption of a hundred",
        run: virtual_machines::run,
    },
    BenchmarkWorkload { name: "W20", what: "random past states of a large fleet", run: moments::run },
    BenchmarkWorkload {
        name: "W21",
        what: "an idle server, its memory after a load, and scrapes of a large fleet",
        run: idle::run,
    },
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

fn named(name: &str) -> Result<&'static BenchmarkWorkload> {
    let Some(found) = WORKLOADS.iter().find(|known| known.name.eq_ignore_ascii_case(name)) else {
        let known: Vec<_> = WORKLOADS.iter().map(|w| format!("  {}  {}", w.name, w.what)).collect();
        bail!("invalid workload {name}: must be one of\n{}", known.join("\n"));
    };
    Ok(found)
}

/// Runs a workload in a process of its own.
fn apart(name: &str) -> Result<Vec<ResultRow>> {
    let done = Command::new(std::env::current_exe()?).args([HERE, name]).stderr(Stdio::inherit()).output()?;
    ensure!(done.status.success(), "it ended with {}", done.status);
    Ok(serde_json::from_slice(&done.stdout)?)
}

/// Creates a directory on the measured disk, which is removed on drop.
fn directory() -> Result<tempfile::TempDir> {
    let builder = tempfile::Builder::new().prefix("chancery-bench-").to_owned();
    Ok(match std::env::var_os("CHANCERY_BENCH_DIR") {
        Some(dir) => builder.tempdir_in(dir)?,
        None => builder.tempdir()?,
    })
}
