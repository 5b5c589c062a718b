//! Faults of an executor outside the server under load, `kill -9` at a random moment among them ([`Fault`]), while the
//! server goes on.

use anyhow::Result;

use super::campaign::{Campaign, Target};
use super::faults::Fault;
use crate::ledger::Tally;
use crate::{Executor, Place, Site};

pub(super) fn run(place: Place, rounds: u64, seed: u64, faults: &[Fault], tally: &mut Tally) -> Result<()> {
    // Nobody is lost for want of a word, however slow the machine is: sessions are resumed.
    let server = place.serve(&[("CHANCERY_EXECUTORS", "none"), ("CHANCERY_LEASE", "60s")]);
    let executor = Some(Executor::start_within(&server, "e1", "--process"));
    let site = Site { executor, server };
    Campaign::begin(site, Target::Executor, seed, faults)?.run(rounds, faults, tally)
}
