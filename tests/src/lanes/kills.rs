//! Faults of the server under load, `kill -9` at a random moment among them ([`Fault`]). On Kafka the next one decides when
//! the group has given up the one before it; the executor is outside, and goes on.

use anyhow::Result;

use super::campaign::{Campaign, Target, servers};
use super::faults::Fault;
use crate::Place;
use crate::ledger::Tally;

pub(super) fn run(place: Place, rounds: u64, seed: u64, faults: &[Fault], tally: &mut Tally) -> Result<()> {
    Campaign::begin(servers(place), Target::Server, seed, faults)?.run(rounds, faults, tally)
}
