//! Searches for the mutation with which this program was built (`tests/mutations`): plays simulated worlds
//! until a check fails, first those of random scripts, then the scenarios of guests. Prints the world and the check. Exits with 1 if none fails.

use std::process::ExitCode;

use chancery_tests::sim::guests::SCENARIOS;
use chancery_tests::sim::{FailedWorld, TraceOption, first_failed, play_each};

/// Worlds in which each mutation must be found.
const WORLDS: u64 = 6000;
/// Worlds of each scenario.
const SCENARIO_WORLDS: u64 = 200;

fn main() -> ExitCode {
    if let Some(FailedWorld { seed, violation }) = first_failed(WORLDS) {
        println!("world {seed}: {violation}");
        return ExitCode::SUCCESS;
    }
    for scenario in SCENARIOS {
        let played = play_each(1, SCENARIO_WORLDS, |seed| scenario.play(seed, TraceOption::Untraced));
        if let Some(FailedWorld { seed, violation }) = played.failed.into_iter().next() {
            println!("scenario {}, seed {seed}: {violation}", scenario.name);
            return ExitCode::SUCCESS;
        }
    }
    println!("not found in {WORLDS} worlds and {SCENARIO_WORLDS} of each scenario");
    ExitCode::FAILURE
}
