//! Looks for the mutation with which this program was built (`tests/mutations`): plays simulated worlds until a check
//! fails, and says which world and check. Exits with 1 if none does.

use std::process::ExitCode;

use chancery_tests::sim::{Failed, first_failed};

/// Worlds in which each mutation must be found.
const WORLDS: u64 = 2000;

fn main() -> ExitCode {
    match first_failed(WORLDS) {
        Some(Failed { seed, violation }) => {
            println!("world {seed}: {violation}");
            ExitCode::SUCCESS
        }
        None => {
            println!("not found in {WORLDS} worlds");
            ExitCode::FAILURE
        }
    }
}
