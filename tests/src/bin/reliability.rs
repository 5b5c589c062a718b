//! Runs lanes of real faults: `reliability LANE [ROUNDS]`, from `SEED` or from now, with the journal on a Kafka of
//! `BROKERS` if that is set, and of `kills` and `executors` with those `FAULTS` alone, if set. It adds what was seen to the
//! ledger, whatever it was; not with `LEDGER=none`.

use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use chancery_tests::JournalBackend;
use chancery_tests::fault_campaigns::{CampaignKind, InjectedFault};
use chancery_tests::ledger::ReliabilityLedger;

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
    let lanes: Vec<_> = CampaignKind::ALL.iter().map(|lane| lane.word()).collect();
    let usage = format!("usage: reliability LANE [ROUNDS], with LANE one of {}", lanes.join(", "));
    let lane: CampaignKind = args.next().context(usage.clone())?.parse().map_err(anyhow::Error::msg)?;
    let rounds: u64 = args.next().map_or(Ok(50), |text| text.parse()).context(usage)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seed = match std::env::var("SEED") {
        Ok(text) => text.parse().context("SEED is a number")?,
        Err(_) => now,
    };
    let usual = lane.backends()[0];
    let place: JournalBackend = match std::env::var("BROKERS") {
        Ok(text) => text.parse().map_err(anyhow::Error::msg).context("read BROKERS")?,
        Err(_) => usual,
    };
    ensure!(lane.backends().contains(&place), "invalid place of lane {lane}: it does not run {place}");
    let faults = faults(lane, place)?;
    println!("{lane} {place}: {rounds} rounds from seed {seed}");
    let began = Instant::now();
    let (tally, ran) = lane.run_with(place, rounds, seed, &faults);
    println!("{}", serde_json::to_string_pretty(&tally)?);
    println!("{:.2} s a round", began.elapsed().as_secs_f64() / tally.rounds.max(1) as f64);
    if std::env::var_os("LEDGER").is_some_and(|ledger| ledger == "none") {
        return ran;
    }
    let kind = if place == usual { lane.word().to_owned() } else { format!("{lane} {place}") };
    ReliabilityLedger::add(&ReliabilityLedger::path(), &kind, tally)?;
    ran
}

/// Faults of the lane, or those that the variable `FAULTS` lists, separated by commas.
fn faults(lane: CampaignKind, place: JournalBackend) -> Result<Vec<InjectedFault>> {
    let all = InjectedFault::of(lane, place);
    for fault in InjectedFault::ALL.iter().filter(|fault| !all.contains(fault)) {
        println!("{lane} {place} does not have the fault {fault} on this host");
    }
    let Ok(text) = std::env::var("FAULTS") else { return Ok(all) };
    let named = text.split(',').map(|word| word.parse().map_err(anyhow::Error::msg));
    let named: Vec<InjectedFault> = named.collect::<Result<_>>().context("invalid FAULTS")?;
    ensure!(
        named.iter().all(|fault| all.contains(fault)),
        "invalid FAULTS {text:?}: not all of {lane} {place}"
    );
    Ok(named)
}
