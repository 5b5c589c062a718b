//! W15: memory of a server while its brokers are unavailable. Without a pause, 40 clients send intents: first
//! normally, then for a minute in which the broker neither answers nor closes its connections.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::brokers::{BenchmarkBrokers, decider, server};
use crate::process::peak_mib;
use crate::server::{BenchmarkServer, FLEET};
use crate::table::{CellResult, ResultRow, ValueBar};

const CLIENTS: usize = 40;
const USUAL: Duration = Duration::from_secs(30);
const AWAY: Duration = Duration::from_mins(1);

pub(crate) fn run() -> Result<Vec<ResultRow>> {
    let brokers = BenchmarkBrokers::start(1)?;
    let (_, journal) = brokers.fleet()?;
    let servers = [server(&journal)?];
    decider(&servers)?;
    let [server] = servers;
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let (rate, before, after) = std::thread::scope(|scope| -> Result<_> {
        for number in 0..CLIENTS {
            let (server, stop, answered) = (&server, &stop, &answered);
            scope.spawn(move || ask(server, number, stop, answered));
        }
        let measured = (|| {
            let began = Instant::now();
            std::thread::sleep(USUAL);
            let rate = answered.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
            let before = peak_mib(server.process())?;
            brokers.node("pause", 1)?;
            std::thread::sleep(AWAY);
            let after = peak_mib(server.process())?;
            brokers.node("resume", 1)?;
            Ok((rate, before, after))
        })();
        stop.store(true, Ordering::Relaxed);
        measured
    })?;
    ensure!(rate > 0.0, "nothing was answered");
    let cell = CellResult { memory_mib: Some(after), ..CellResult::rate(rate) };
    let row = ResultRow::new(
        "W15",
        format!("{CLIENTS} clients, broker unavailable for {} s", AWAY.as_secs()),
        cell,
    );
    Ok(vec![row.check("MiB before", before, ValueBar::AtLeast(0.0)).check(
        "MiB while it is away, to that",
        after / before,
        ValueBar::Below(1.2),
    )])
}

/// Sends intents without a pause. Unanswered ones are sent again on another connection with another key.
fn ask(server: &BenchmarkServer, number: usize, stop: &AtomicBool, answered: &AtomicU64) {
    let path = format!("{FLEET}/capabilities/c-{number}");
    for score in 0_u64.. {
        let Ok(mut client) = server.client() else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        for score in score << 32.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let body = format!(r#"{{"spec":{{"type":"bench","score":{}}}}}"#, score & 0xffff_ffff);
            if client.ask("PUT", &path, &body).is_err() {
                break;
            }
            answered.fetch_add(1, Ordering::Relaxed);
        }
    }
}
