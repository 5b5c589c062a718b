//! `kill -9` of the server at random moments, under load. On Kafka the next one decides when the group has given up the one
//! before it; the executor is outside, and goes on.

use std::time::Duration;

use anyhow::Result;

use super::evidence::{Evidence, judge, wind_up};
use super::fleet::{by_hand, deploy, set_up, sleeper};
use super::load::Load;
use crate::Place;
use crate::ledger::Tally;
use crate::sim::Random;

pub(super) fn run(place: Place, rounds: u64, seed: u64, tally: &mut Tally) -> Result<()> {
    let mut random = Random::new(seed);
    let mut site = place.start(&[]);
    let server = &mut site.server;
    set_up(&server.client(), &sleeper());
    by_hand(&server.client(), &sleeper());
    let file = server.home().join("history.jsonl");
    let load = Load::begin(&server.url(), 4, seed, Duration::from_secs(30), &file)?;
    for round in 0..rounds {
        deploy(&server.client(), &format!("round-{round}"), random.below(7) as u32);
        std::thread::sleep(Duration::from_millis(random.below(128)));
        server.kill();
        tally.fault("kill");
        tally.rounds += 1;
        server.start_again();
        load.moved(&server.url());
    }
    let history = load.end()?;
    let mut evidence = vec![Evidence::gather(server)?];
    wind_up(server, &mut evidence)?;
    site.stop()?;
    judge(site.server.data(), &history, &evidence, tally)
}
