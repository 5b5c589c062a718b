//! SIGSTOP and SIGCONT of the server, past its lease and every timeout: payloads keep running, and verdicts
//! stay valid.

use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::evidence::{ServerEvidence, judge, wind_up};
use super::fleet::{by_hand, fill, set_up, sleeper};
use super::load::ProducerLoad;
use crate::ledger::CountMap;
use crate::sim::RandomSource;
use crate::{JournalBackend, payloads, until};

pub(super) fn run(backend: JournalBackend, rounds: u64, seed: u64, tally: &mut CountMap) -> Result<()> {
    let mut random = RandomSource::new(seed);
    let mut site =
        backend.start(&[("CHANCERY_SESSION_LEASE", "1s"), ("CHANCERY_LIMITS_REQUEST_TIMEOUT", "1s")]);
    // On Kafka, some pauses exceed the group session: then the group has removed the server, which joins
    // again.
    let longest = if backend == JournalBackend::Embedded { 3500 } else { 9000 };
    let server = &mut site.server;
    set_up(&server.client(), &sleeper());
    by_hand(&server.client(), &sleeper());
    let mut evidence = Vec::new();
    let file = server.directory().join("history.jsonl");
    fill(server, "first", 4);
    let before = payloads(server.data());
    let load = ProducerLoad::begin(&server.url(), 4, seed, Duration::from_millis(500), &file)?;
    for _ in 0..rounds {
        std::thread::sleep(Duration::from_millis(random.below(400)));
        server.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(random.between(1500, longest)));
        server.signal(Signal::CONT);
        tally.fault("pause");
        tally.rounds += 1;
        ensure!(server.ended().is_none(), "the server ended because of a pause:\n{}", server.log());
    }
    // On Kafka, the server may have to join its group again first.
    let paused = load.acknowledged();
    until("intents are acknowledged after the last pause", || {
        (load.acknowledged() > paused + rounds).then_some(())
    });
    let history = load.end()?;
    evidence.push(ServerEvidence::gather(server)?);
    // Incarnations that were not asked to end still have the same processes.
    let client = server.client();
    let after = payloads(server.data());
    for payload in &before {
        let row = client.get(&format!("/v1/fleets/default/incarnations/{}", payload.incarnation)).json();
        let stays = !matches!(row["state"].as_str(), Some("running" | "starting")) || after.contains(payload);
        ensure!(
            stays,
            "process {} of {} is gone, and its incarnation is {row}",
            payload.pid,
            payload.replica
        );
    }
    wind_up(server, &mut evidence)?;
    site.stop()?;
    judge(site.server.data(), &history, &evidence, tally)
}
