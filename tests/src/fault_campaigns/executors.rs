//! Faults of an executor outside the server under load, including `kill -9` at a random moment ([`InjectedFault`]),
//! while the server keeps running.

use anyhow::Result;

use super::campaign::{CampaignTarget, RunningCampaign};
use super::faults::InjectedFault;
use crate::ledger::CountMap;
use crate::{ExecutorProcess, FleetProcesses, JournalBackend};

pub(super) fn run(
    backend: JournalBackend,
    rounds: u64,
    seed: u64,
    faults: &[InjectedFault],
    tally: &mut CountMap,
) -> Result<()> {
    // A long lease: sessions are resumed and do not expire, however slow the machine is.
    let server = backend.serve(&[("CHANCERY_EMBEDDED_EXECUTORS", "none"), ("CHANCERY_SESSION_LEASE", "60s")]);
    let executor = Some(ExecutorProcess::start_within(&server, "e1", "--process"));
    let site = FleetProcesses { executor, server };
    RunningCampaign::begin(site, CampaignTarget::Executor, seed, faults)?.run(rounds, faults, tally)
}
