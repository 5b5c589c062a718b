//! Faults of the server under load, including `kill -9` at a random moment ([`InjectedFault`]). On Kafka, the next
//! server becomes leader when the group has removed the previous one; the executor is outside and keeps
//! running.

use anyhow::Result;

use super::campaign::{CampaignTarget, RunningCampaign, servers};
use super::faults::InjectedFault;
use crate::JournalBackend;
use crate::ledger::CountMap;

pub(super) fn run(
    backend: JournalBackend,
    rounds: u64,
    seed: u64,
    faults: &[InjectedFault],
    tally: &mut CountMap,
) -> Result<()> {
    RunningCampaign::begin(servers(backend), CampaignTarget::Server, seed, faults)?.run(rounds, faults, tally)
}
