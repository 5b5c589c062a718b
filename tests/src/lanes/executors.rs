//! `kill -9` of an executor outside the server at random moments, under load, while the server goes on.

use std::time::Duration;

use anyhow::Result;

use super::evidence::{Evidence, judge, wind_up};
use super::fleet::{by_hand, deploy, set_up, sleeper};
use super::load::Load;
use crate::ledger::Tally;
use crate::sim::Random;
use crate::{Executor, Place};

pub(super) fn run(place: Place, rounds: u64, seed: u64, tally: &mut Tally) -> Result<()> {
    let mut random = Random::new(seed);
    // Nobody is lost for want of a word, however slow the machine is: sessions are resumed.
    let mut server = place.serve(&[("CHANCERY_EXECUTORS", "none"), ("CHANCERY_LEASE", "60s")]);
    set_up(&server.client(), &sleeper());
    by_hand(&server.client(), &sleeper());
    let mut executor = Executor::start_within(&server, "e1", "--process");
    let file = server.home().join("history.jsonl");
    let load = Load::begin(&server.url(), 4, seed, Duration::from_secs(30), &file)?;
    for round in 0..rounds {
        deploy(&server.client(), &format!("round-{round}"), random.below(7) as u32);
        std::thread::sleep(Duration::from_millis(random.below(128)));
        executor.kill();
        tally.fault("kill of an executor");
        tally.rounds += 1;
        executor.start_again();
    }
    let history = load.end()?;
    let mut evidence = vec![Evidence::gather(&server)?];
    wind_up(&server, &mut evidence)?;
    let (code, log) = (executor.stop(), executor.log());
    anyhow::ensure!(code == Some(0), "the executor does not stop as it is asked to:\n{log}");
    let (code, log) = (server.stop(), server.log());
    anyhow::ensure!(code == Some(0), "the server does not stop as it is asked to:\n{log}");
    judge(server.data(), &history, &evidence, tally)
}
