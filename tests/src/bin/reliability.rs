//! Runs lanes of real faults: `reliability LANE [ROUNDS]`, from `SEED` or from now, with the journal on a Kafka of
//! `BROKERS` if that is set, and adds what was seen to the ledger, whatever it was.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use chancery_tests::Place;
use chancery_tests::lanes::Lane;
use chancery_tests::ledger::Ledger;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reliability: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let lanes: Vec<_> = Lane::ALL.iter().map(|lane| lane.word()).collect();
    let usage = format!("usage: reliability LANE [ROUNDS], with LANE one of {}", lanes.join(", "));
    let lane: Lane = args.next().context(usage.clone())?.parse().map_err(anyhow::Error::msg)?;
    let rounds: u64 = args.next().map_or(Ok(50), |text| text.parse()).context(usage)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seed = match std::env::var("SEED") {
        Ok(text) => text.parse().context("SEED is a number")?,
        Err(_) => now,
    };
    let usual = lane.places()[0];
    let place: Place = match std::env::var("BROKERS") {
        Ok(text) => text.parse().map_err(anyhow::Error::msg).context("read BROKERS")?,
        Err(_) => usual,
    };
    ensure!(lane.places().contains(&place), "the lane {lane} is not played {place}");
    println!("{lane} {place}: {rounds} rounds from seed {seed}");
    let (tally, ran) = lane.run(place, rounds, seed);
    println!("{}", serde_json::to_string_pretty(&tally)?);
    let kind = if place == usual { lane.word().to_owned() } else { format!("{lane} {place}") };
    Ledger::add(&Ledger::path(), &kind, tally)?;
    ran
}
