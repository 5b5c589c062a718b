//! Runs campaigns of real faults: `reliability CAMPAIGN [ROUNDS]`, from `SEED` or from now, with the journal on a Kafka of
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
    let campaigns: Vec<_> = CampaignKind::ALL.iter().map(|campaign| campaign.word()).collect();
    let usage =
        format!("usage: reliability CAMPAIGN [ROUNDS], with CAMPAIGN one of {}", campaigns.join(", "));
    let campaign: CampaignKind = args.next().context(usage.clone())?.parse().map_err(anyhow::Error::msg)?;
    let rounds: u64 =
        args.next().map_or(Ok(campaign.default_rounds()), |text| text.parse()).context(usage)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seed = match std::env::var("SEED") {
        Ok(text) => text.parse().context("SEED is a number")?,
        Err(_) => now,
    };
    let usual = campaign.backends()[0];
    let backend: JournalBackend = match std::env::var("BROKERS") {
        Ok(text) => text.parse().map_err(anyhow::Error::msg).context("read BROKERS")?,
        Err(_) => usual,
    };
    ensure!(
        campaign.backends().contains(&backend),
        "invalid journal of campaign {campaign}: it does not run {backend}"
    );
    let faults = faults(campaign, backend)?;
    println!("{campaign} {backend}: {rounds} rounds from seed {seed}");
    let began = Instant::now();
    let (tally, ran) = campaign.run_with(backend, rounds, seed, &faults);
    println!("{}", serde_json::to_string_pretty(&tally)?);
    println!("{:.2} s a round", began.elapsed().as_secs_f64() / tally.rounds.max(1) as f64);
    if std::env::var_os("LEDGER").is_some_and(|ledger| ledger == "none") {
        return ran;
    }
    let kind = if backend == usual { campaign.word().to_owned() } else { format!("{campaign} {backend}") };
    ReliabilityLedger::add(&ReliabilityLedger::path(), &kind, tally)?;
    ran
}

/// Faults of the campaign, or those that the variable `FAULTS` lists, separated by commas.
fn faults(campaign: CampaignKind, backend: JournalBackend) -> Result<Vec<InjectedFault>> {
    let all = InjectedFault::of(campaign, backend);
    for fault in InjectedFault::ALL.iter().filter(|fault| !all.contains(fault)) {
        println!("{campaign} {backend} does not have the fault {fault} on this host");
    }
    let Ok(text) = std::env::var("FAULTS") else { return Ok(all) };
    let named = text.split(',').map(|word| word.parse().map_err(anyhow::Error::msg));
    let named: Vec<InjectedFault> = named.collect::<Result<_>>().context("invalid FAULTS")?;
    ensure!(
        named.iter().all(|fault| all.contains(fault)),
        "invalid FAULTS {text:?}: not all of {campaign} {backend}"
    );
    Ok(named)
}
