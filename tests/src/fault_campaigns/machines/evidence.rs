//! Judgement on the machines that were seen, by the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use chancery_events::event::Event;
use chancery_events::fact::{Fact, IncarnationEnd, OperationApproved, OperationStarted};
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

/// Ends that faults have caused, by incarnation.
pub(super) type CausedEnds = BTreeMap<String, BTreeSet<MachineEnd>>;

/// Statements of the journal about an incarnation.
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
    caused: &CausedEnds,
) -> Result<()> {
    let found = violations(&histories(records)?, sightings, caused);
    ensure!(found.is_empty(), "by the journal:\n  {}", found.join("\n  "));
    ensure!(!sightings.seen.is_empty() && sightings.beats > 0, "no guest was seen");
    Ok(())
}

fn violations(
    histories: &BTreeMap<String, IncarnationHistory>,
    sightings: &MachineSightings,
    caused: &CausedEnds,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut uuids: BTreeMap<&str, &str> = BTreeMap::new();
    for (id, seen) in &sightings.seen {
        let history = histories.get(id).and_then(|history| Some((history, history.end.as_ref()?)));
        let Some((history, (time, end))) = history else {
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
    for (id, history) in histories {
        let end = history.end.as_ref().filter(|_| history.is_started && !history.is_asked);
        let Some((_, end)) = end else { continue };
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
    found
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
                Fact::OperationApproved(OperationApproved { incarnation: Some(id), .. })
                | Fact::OperationStarted(OperationStarted { incarnation: Some(id), .. }) => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault_campaigns::machines::host::SeenMachine;

    fn seen(uuid: &str, last: i64) -> SeenMachine {
        SeenMachine { uuid: uuid.into(), last: Time::from_micros(last), processes: BTreeSet::new() }
    }

    fn ended(replica: &str, time: i64, end: IncarnationEnd) -> IncarnationHistory {
        let end = Some((Time::from_micros(time), end));
        IncarnationHistory { is_started: true, is_asked: false, end, replica: replica.into() }
    }

    /// Judges one incarnation `i`, which was last seen at 5.
    fn judged(history: IncarnationHistory, caused: &[MachineEnd]) -> String {
        let sightings = MachineSightings {
            seen: BTreeMap::from([("i".to_owned(), seen("u", 5))]),
            ..MachineSightings::default()
        };
        let caused = BTreeMap::from([("i".to_owned(), caused.iter().copied().collect())]);
        violations(&BTreeMap::from([("i".to_owned(), history)]), &sightings, &caused).join("\n")
    }

    #[test]
    fn each_machine_has_one_end_which_a_request_or_a_fault_has_caused() {
        let failed = || IncarnationEnd::Failed { reason: "r".into() };
        let asked = |time, end| IncarnationHistory { is_asked: true, ..ended("web-1", time, end) };
        for (history, caused, wanted) in [
            (asked(6, IncarnationEnd::Destroyed), vec![], ""),
            (ended("web-1", 6, failed()), vec![MachineEnd::Failed], ""),
            (ended("web-1", 6, IncarnationEnd::PoweredOff), vec![MachineEnd::PoweredOff], ""),
            (IncarnationHistory::default(), vec![], "its end is not in the journal"),
            (asked(4, IncarnationEnd::Destroyed), vec![], "and had ended"),
            (ended("web-1", 6, IncarnationEnd::Destroyed), vec![MachineEnd::PoweredOff], "without a cause"),
            (ended("web-1", 6, IncarnationEnd::PoweredOff), vec![MachineEnd::Failed], "without a cause"),
            (ended("web-1", 6, failed()), vec![MachineEnd::PoweredOff], "without a cause"),
            (ended("web-1", 6, failed()), vec![], "without a cause"),
        ] {
            let case = format!("{history:?}");
            let found = judged(history, &caused);
            assert!(found.is_empty() == wanted.is_empty() && found.contains(wanted), "{case}: {found}");
        }
    }

    #[test]
    fn a_replica_has_one_guest_and_shares_it_with_no_other() {
        for (replicas, uuids, wanted) in [
            (["web-1", "web-1"], ["u", "u"], ""),
            (["web-1", "web-2"], ["u", "v"], ""),
            (["web-1", "web-1"], ["u", "v"], "has had the guests u and v"),
            (["web-1", "web-2"], ["u", "u"], "replicas share a guest"),
        ] {
            let asked = |replica: &str| IncarnationHistory {
                is_asked: true,
                ..ended(replica, 6, IncarnationEnd::Destroyed)
            };
            let histories =
                replicas.iter().enumerate().map(|(id, replica)| (id.to_string(), asked(replica))).collect();
            let seen = uuids.iter().enumerate().map(|(id, uuid)| (id.to_string(), seen(uuid, 5))).collect();
            let sightings = MachineSightings { seen, ..MachineSightings::default() };
            let found = violations(&histories, &sightings, &BTreeMap::new()).join("\n");
            assert!(found.is_empty() == wanted.is_empty() && found.contains(wanted), "{found}");
        }
    }
}
