//! Judgement on the machines that were seen, by the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use chancery_events::event::Event;
use chancery_events::fact::{Fact, IncarnationEnd};
use chancery_events::record::Record;
use chancery_events::time::Time;

use super::host::MachineSightings;

/// End of a machine that a fault causes, unless the machine is stopped before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum MachineEnd {
    /// The guest powers itself off.
    PoweredOff,
    /// Guest or QEMU fail.
    Failed,
}

/// What the journal states about an incarnation.
#[derive(Default, Debug)]
struct IncarnationHistory {
    /// Whether it was reported as started.
    is_started: bool,
    /// Whether its end was requested.
    is_asked: bool,
    end: Option<(Time, IncarnationEnd)>,
    replica: String,
}

/// Fails with all violations: each machine has its end in the journal, none was seen after it, and each end has its cause.
pub(super) fn judge_ends(
    records: &[Arc<Record>],
    sightings: &MachineSightings,
    caused: &BTreeMap<String, BTreeSet<MachineEnd>>,
) -> Result<()> {
    let histories = histories(records)?;
    let mut found = Vec::new();
    let mut uuids: BTreeMap<&str, &str> = BTreeMap::new();
    for (id, seen) in &sightings.seen {
        let Some((history, (time, end))) = histories.get(id).and_then(|one| Some((one, one.end.as_ref()?)))
        else {
            found.push(format!("machine {id} was seen, and its end is not in the journal"));
            continue;
        };
        if seen.last > *time {
            found.push(format!(
                "machine {id} was seen at {:?}, and had ended at {time:?}: {end:?}",
                seen.last
            ));
        }
        let uuid = uuids.entry(&history.replica).or_insert(&seen.uuid);
        if *uuid != seen.uuid {
            found.push(format!("replica {} has had the guests {uuid} and {}", history.replica, seen.uuid));
        }
    }
    for (id, history) in &histories {
        let Some((_, end)) = history.end.as_ref().filter(|_| history.is_started && !history.is_asked) else {
            continue;
        };
        let caused = caused.get(id).cloned().unwrap_or_default();
        let is_caused = match end {
            IncarnationEnd::PoweredOff => caused.contains(&MachineEnd::PoweredOff),
            IncarnationEnd::Failed { .. } => caused.contains(&MachineEnd::Failed),
            IncarnationEnd::Destroyed | IncarnationEnd::Unwound { .. } => false,
        };
        if !is_caused {
            found.push(format!("machine {id} has ended without a cause: {end:?}, caused was {caused:?}"));
        }
    }
    let guests: BTreeSet<_> = uuids.values().collect();
    if guests.len() != uuids.len() {
        found.push(format!("replicas share a guest: {uuids:?}"));
    }
    ensure!(found.is_empty(), "by the journal:\n  {}", found.join("\n  "));
    if sightings.seen.is_empty() || sightings.beats == 0 {
        bail!("no guest was seen");
    }
    Ok(())
}

fn histories(records: &[Arc<Record>]) -> Result<BTreeMap<String, IncarnationHistory>> {
    let mut found: BTreeMap<String, IncarnationHistory> = BTreeMap::new();
    for record in records {
        for (position, line) in record.events() {
            let Event::Fact { fact, .. } =
                Event::read(line).with_context(|| format!("cannot read the event at {position}"))?
            else {
                continue;
            };
            match fact {
                Fact::IncarnationStarted(fact) => {
                    found.entry(fact.incarnation.to_string()).or_default().is_started = true;
                }
                Fact::IncarnationRunning(fact) => {
                    found.entry(fact.incarnation.to_string()).or_default().is_started = true;
                    // The replaced one is requested to end.
                    if let Some(replaced) = fact.replaces {
                        found.entry(replaced.to_string()).or_default().is_asked = true;
                    }
                }
                Fact::IncarnationStopRequested(fact) => {
                    found.entry(fact.incarnation.to_string()).or_default().is_asked = true;
                }
                // Before its start, an incarnation is named by the operation that starts it.
                Fact::OperationApproved(chancery_events::fact::OperationApproved {
                    incarnation: Some(id),
                    ..
                })
                | Fact::OperationStarted(chancery_events::fact::OperationStarted {
                    incarnation: Some(id),
                    ..
                }) => {
                    let history = found.entry(id.to_string()).or_default();
                    history.is_asked |= history.is_started;
                }
                Fact::IncarnationEnded(fact) => {
                    let history = found.entry(fact.incarnation.to_string()).or_default();
                    history.replica = fact.replica.to_string();
                    history.end = Some((record.header().time, fact.end));
                }
                _ => {}
            }
        }
    }
    Ok(found)
}
