//! Plays simulated worlds.
//!
//! ```text
//! simulate [SEEDS] [FROM]     plays SEEDS worlds simulate ledger SEEDS       plays SEEDS worlds that were
//! not played yet, and adds them to the ledger SEED=… simulate             plays one world; if it fails,
//! prints the smallest that fails likewise as a trace
//! ```

use std::process::ExitCode;
use std::time::Instant;

use chancery_tests::ledger::{CountMap, ReliabilityLedger};
use chancery_tests::sim::{
    FailedWorld, SimulatedFault, TraceOption, WorldScript, WorldsResult, play, play_many, shrink,
};

/// Name of these executions in the ledger.
const KIND: &str = "simulation";

fn main() -> ExitCode {
    if let Some(seed) = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        return one(seed);
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok());
    match words.first().map(String::as_str) {
        Some("ledger") => match number(1) {
            Some(seeds) => for_the_ledger(seeds),
            None => usage(),
        },
        Some(_) if number(0).is_none() => usage(),
        _ => many(number(1).unwrap_or(1), number(0).unwrap_or(1000)).0,
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: simulate [SEEDS] [FROM], simulate ledger SEEDS, or SEED=… simulate");
    ExitCode::from(2)
}

fn for_the_ledger(seeds: u64) -> ExitCode {
    let path = ReliabilityLedger::path();
    let from = match ReliabilityLedger::read(&path) {
        Ok(ledger) => ledger.of(KIND).seeds + 1,
        Err(error) => return failed(&error),
    };
    let (exit, all) = many(from, seeds);
    let faults =
        SimulatedFault::ALL.iter().map(|fault| (fault.word().to_owned(), all.counts.get(fault.word())));
    let tally = CountMap {
        seeds,
        simulated_seconds: (all.hours * 3600.0) as u64,
        faults: faults.filter(|(_, count)| *count > 0).collect(),
        events: all.events,
        acknowledged: all.counts.get("accepted") + all.counts.get("refused"),
        violations: all.failed.len() as u64,
        ..CountMap::default()
    };
    match ReliabilityLedger::add(&path, KIND, tally) {
        Ok(()) => exit,
        Err(error) => failed(&error),
    }
}

fn failed(error: &anyhow::Error) -> ExitCode {
    eprintln!("simulate: {error:#}");
    ExitCode::FAILURE
}

/// Plays one world. If it fails, prints the smallest that was found to fail likewise, as a trace.
fn one(seed: u64) -> ExitCode {
    println!("seed {seed}");
    let script = WorldScript::draw(seed);
    let traced = std::env::var_os("TRACE").is_some();
    let played = play(script.clone(), if traced { TraceOption::Traced } else { TraceOption::Untraced });
    for line in &played.trace {
        println!("{line}");
    }
    println!("{} events, {:.1} s of its time, ends with {}", played.events, played.seconds, played.hash);
    let Some(violation) = &played.violation else { return ExitCode::SUCCESS };
    println!("{violation}\n");
    let (small, played) = shrink::shrink(&script);
    println!(
        "the smallest world that was found to fail so: faults {:?}, {} inputs, {} steps",
        small.faults,
        small.inputs.len(),
        small.steps
    );
    for line in &played.trace {
        println!("{line}");
    }
    if let Some(violation) = played.violation {
        println!("{violation}");
    }
    ExitCode::FAILURE
}

fn many(from: u64, seeds: u64) -> (ExitCode, WorldsResult) {
    println!("seeds {from} to {}", from + seeds - 1);
    let began = Instant::now();
    let all = play_many(from, seeds);
    for (what, count) in all.counts.iter() {
        println!("{count:>10}  {what}");
    }
    for FailedWorld { seed, violation } in &all.failed {
        println!("SEED={seed}: {violation}");
    }
    let (hours, events, failed) = (all.hours, all.events, all.failed.len());
    let took = began.elapsed().as_secs_f64();
    println!("{seeds} seeds, {events} events, {hours:.1} simulated hours, {failed} violations, {took:.1} s");
    (if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }, all)
}
