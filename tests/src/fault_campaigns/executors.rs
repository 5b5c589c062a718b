//! Faults of an executor outside the server under load, including `kill -9` at a random moment ([`Fault`]),
//! while the server keeps running.

use anyhow::Result;

use super::campaign::{Campaign, Target};
use super::faults::Fault;
use crate::ledger::CountMap;
use crate::{Executor, Place, Site};

pub(super) fn run(
    place: Place,
    rounds: u64,
    seed: u64,
    faults: &[Fault],
    tally: &mut CountMap,
) -> Result<()> {
    // A long lease: sessions are resumed and do not expire, however slow the machine is.
    let server = place.serve(&[("CHANCERY_EMBEDDED_EXECUTORS", "none"), ("CHANCERY_SESSION_LEASE", "60s")]);
    let executor = Some(Executor::start_within(&server, "e1", "--process"));
    let site = Site { executor, server };
    Campaign::begin(site, Target::Executor, seed, faults)?.run(rounds, faults, tally)
}
