//! Faults of the server under load, including `kill -9` at a random moment ([`Fault`]). On Kafka, the next
//! server becomes leader when the group has removed the previous one; the executor is outside and keeps
//! running.

use anyhow::Result;

use super::campaign::{Campaign, Target, servers};
use super::faults::Fault;
use crate::Place;
use crate::ledger::CountMap;

pub(super) fn run(
    place: Place,
    rounds: u64,
    seed: u64,
    faults: &[Fault],
    tally: &mut CountMap,
) -> Result<()> {
    Campaign::begin(servers(place), Target::Server, seed, faults)?.run(rounds, faults, tally)
}
