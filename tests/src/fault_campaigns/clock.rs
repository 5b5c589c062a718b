//! Jumps of the server's wall clock, forward and back, by seconds or days, while the server runs and while it
//! is down. Acknowledged verdicts stay valid, payloads keep running, and the journal's time does not go back.
//!
//! The server is the real program, with a [`ServerClock`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use chancery_events::time::Time;
use serde_json::Value;

use super::evidence::{ServerEvidence, judge, wind_up};
use super::fleet::{by_hand, deploy, fill, set_up, sleeper};
use super::load::ProducerLoad;
use crate::ServerProcess;
use crate::clock::ServerClock;
use crate::ledger::CountMap;
use crate::sim::RandomSource;

/// Maximum size of a jump in seconds; about two days.
const JUMP: u64 = 170_000;

pub(super) fn run(rounds: u64, seed: u64, tally: &mut CountMap) -> Result<()> {
    let mut random = RandomSource::new(seed);
    let mut server = ServerProcess::new();
    let clock = ServerClock::apart(0);
    clock.give_to(&mut server);
    server.start_again();
    set_up(&server.client(), &sleeper());
    by_hand(&server.client(), &sleeper());
    fill(&server, "first", 3);
    let file = server.directory().join("history.jsonl");
    let load = ProducerLoad::begin(&server.url(), 4, seed, Duration::from_secs(30), &file)?;
    for round in 0..rounds {
        std::thread::sleep(Duration::from_millis(random.between(100, 500)));
        let is_down = round % 3 == 2;
        if is_down {
            server.kill();
        }
        // While the server is down, jumps are large and alternate: a starting server accepts a time that is
        // later.
        let far = is_down || random.chance(500);
        let size = if far { random.between(60, JUMP) } else { random.between(1, 60) };
        let forth = if is_down { round % 6 == 2 } else { random.chance(500) };
        let size = size as i64;
        clock.set(if forth { size } else { -size });
        tally.fault("jump of the clock");
        tally.rounds += 1;
        if is_down {
            server.start_again();
            load.moved(&server.url());
        }
        // Forces a decision at the new time.
        deploy(&server.client(), &format!("round-{round}"), 3);
        ensure!(server.ended().is_none(), "the server ended because its clock jumped:\n{}", server.log());
    }
    let history = load.end()?;
    let mut evidence = vec![ServerEvidence::gather(&server)?];
    ensure!(rounds < 3 || clock_jumped(&server)?, "the program has not seen another clock");
    wind_up(&server, &mut evidence)?;
    ensure!(server.stop() == Some(0), "the server does not stop on request:\n{}", server.log());
    judge(server.data(), &history, &evidence, tally)
}

/// Whether any decision has a time that is not the host's: otherwise the campaign tested nothing.
fn clock_jumped(server: &ServerProcess) -> Result<bool> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() as i64;
    for event in server.cli(&["events", "-o", "jsonl", "--types", "deployment.created.v1"]).lines() {
        let event: Value = serde_json::from_str(event)?;
        let time: Time = event["time"].as_str().context("an event has a time")?.parse()?;
        if (time.micros() / 1_000_000 - now).abs() > 50 {
            return Ok(true);
        }
    }
    Ok(false)
}
