//! W6: reads of one row, of a filtered page of 100, and of a history of 100, while intents arrive and the
//! projector runs. Each is compared with a bare axum handler that decodes and serialises the same rows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::bare::BareServer;
use crate::http::BenchmarkClient;
use crate::intents;
use crate::load::{by_turns, round};
use crate::server::{BenchmarkServer, FLEET};
use crate::table::{CellResult, ResultRow};

/// Number of nodes in the fleet.
const NODES: usize = 10_000;
/// Number of zones, spread over all nodes; each page's filter matches one zone.
const ZONES: usize = 100;
/// Changes of the node whose history is read.
const CHANGES: usize = 120;
/// Intents per second during the reads.
const INTENTS: u32 = 500;
const CALLERS: usize = 32;

/// Kind of read.
#[derive(Clone, Copy)]
enum ReadKind {
    Get,
    Page,
    History,
}

impl ReadKind {
    fn path(self, number: usize) -> String {
        match self {
            ReadKind::Get => format!("{FLEET}/nodes/node-{}", number % NODES),
            ReadKind::Page => format!("{FLEET}/nodes?zone=zone-{}&limit=100", number % ZONES),
            ReadKind::History => format!("{FLEET}/nodes/node-0/history?limit=100"),
        }
    }

    fn round(self, address: &str) -> Result<CellResult> {
        round(CALLERS, |caller| {
            let (mut client, mut number) = (BenchmarkClient::connect(address)?, caller * 7919);
            Ok(move || {
                number += 1;
                client.ask("GET", &self.path(number), "").map(drop)
            })
        })
    }
}

fn put_node(client: &mut BenchmarkClient, number: usize, change: usize) -> Result<()> {
    let body = format!(
        r#"{{"spec":{{"domain":"d-{}","zone":"zone-{}","labels":{{"tier":"web","change":"{change}"}},"resources":{{"cpu":8000,"memory":34359738368,"disk":500000000000}}}},"cluster":"local"}}"#,
        number % 4,
        number % ZONES,
    );
    client.ask("PUT", &format!("{FLEET}/nodes/node-{number}"), &body).map(drop)
}

fn fill(server: &BenchmarkServer) -> Result<()> {
    server.client()?.ask("PUT", &format!("{FLEET}/clusters/local"), r#"{"spec":{"runtime":"simulated"}}"#)?;
    std::thread::scope(|scope| {
        let fill = |first: usize| {
            let mut client = server.client()?;
            (first..NODES).step_by(CALLERS).try_for_each(|number| put_node(&mut client, number, 0))
        };
        let filling: Vec<_> = (0..CALLERS).map(|first| scope.spawn(move || fill(first))).collect();
        filling.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let mut client = server.client()?;
    (1..CHANGES).try_for_each(|change| put_node(&mut client, 0, change))
}

/// Submits intents at a steady pace until `stop` is set.
fn write(server: &BenchmarkServer, stop: &AtomicBool) -> Result<()> {
    let mut call = intents::caller(server.client()?, 0);
    let (began, mut done) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        call()?;
        done += 1;
        let due = began + Duration::from_secs(1) / INTENTS * done;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let server = BenchmarkServer::start_with(&[("CHANCERY_LIMITS_READS_PER_SECOND", "1000000")])?;
    fill(&server)?;
    let reads =
        [(ReadKind::Get, "get"), (ReadKind::Page, "page of 100"), (ReadKind::History, "history of 100")];
    let mut rows = Vec::new();
    for (read, what) in reads {
        // An idle connection is closed.
        let mut client = server.client()?;
        let mut ask = |number| Ok(client.ask("GET", &read.path(number), "")?.to_vec());
        let bare = BareServer::start(&(0..ZONES).map(&mut ask).collect::<Result<Vec<_>>>()?)?;
        let stop = AtomicBool::new(false);
        let [ours, bare] = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(&server, &stop));
            let cells = by_turns([
                Box::new(|| server.watched(|| read.round(&server.address))),
                Box::new(|| read.round(&bare.address)),
            ]);
            stop.store(true, Ordering::Relaxed);
            writer.join().expect("no panic")?;
            cells
        })?;
        rows.push(ResultRow::new("W6", what, ours).share_of("bare handler", bare, 0.5));
    }
    Ok(rows)
}
