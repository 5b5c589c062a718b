//! Searches for the mutation with which this program was built (`tests/mutations`): plays simulated worlds
//! until a check fails, and prints the world and the check. Exits with 1 if none fails.

use std::process::ExitCode;

use chancery_tests::sim::{FailedWorld, first_failed};

/// Worlds in which each mutation must be found.
const WORLDS: u64 = 6000;

fn main() -> ExitCode {
    let Some(FailedWorld { seed, violation }) = first_failed(WORLDS) else {
        println!("not found in {WORLDS} worlds");
        return ExitCode::FAILURE;
    };
    println!("world {seed}: {violation}");
    ExitCode::SUCCESS
}
