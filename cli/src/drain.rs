//! `drain` and `undrain`: `drain` schedules and approves a disruption that empties a node, and `undrain` puts
//! the node back into use.
//!
//! | state of the node | effect of `undrain` |
//! |---|---|
//! | draining | the drain is completed: replicas that have not moved stay |
//! | drained, and so evicted | the node is sanitized, released, and allocated to its last cluster |
//! | drained, with volumes that are kept | the node is allocated to its last cluster, and not sanitized |
//! | sanitizing, or unallocated | the remaining steps |
//! | in use, without a drain | unchanged |

use std::io::Write;
use std::time::Duration;

use chancery_events::intent::{
    DisruptionApprove, DisruptionComplete, DisruptionSchedule, Intent, NodeSetState,
};
use chancery_events::name::{ClusterName, DisruptionName, NodeName};
use chancery_events::spec::{DisruptionAction, DisruptionSpec, DisruptionState, NodeState};
use chancery_events::text::counted;
use chancery_projector::rows::{DisruptionRow, IncarnationStatus, NodeRow, ReplicaRow};
use serde_json::Value;

use super::act::{FORMS, read, read_in, shown};
use super::client::{ApiClient, CommandIo, RepeatAdvice, VerdictResponse};
use super::columns::typed;
use super::context::OutputFormat;
use super::dry_run::{self, MissingEntity};
use super::error::{CliError, CliExit};
use super::event_summary::EventSummary;
use super::events::past;
use super::flags::{DrainArgs, NodeArgs};
use super::get;
use super::kind::EntityKind;
use super::table::{add, one_line};
use super::wait::wait_for;

use crate::note;

/// Name of a drain's disruption; a number follows if the node has a disruption of that name.
const NAME: &str = "drain";
/// Maximum number of remaining replicas that are named.
const NAMED: usize = 5;

pub(super) fn drain(drain: &DrainArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let node: NodeName = read_in(EntityKind::Node, &drain.node)?;
    let row: NodeRow = typed(&get::one(io.client, EntityKind::Node, node.as_str())?)?;
    io.client.repeats(RepeatAdvice::Unchanged);
    let begun = row.disruptions.iter().find(|one| empties(one));
    if begun.is_none() && row.incarnations == 0 && row.state == NodeState::Evicted {
        note!("hint: node/{node} is empty and evicted already");
        return unchanged(&row, io);
    }
    let scheduled = begun.filter(|one| one.state == DisruptionState::Scheduled);
    let (name, schedule) = if let Some(known) = begun {
        (known.name.clone(), None)
    } else {
        let schedule = schedule(&node, &row, drain.reason.clone());
        (schedule.name.clone(), Some(Intent::from(schedule)))
    };
    let approve = Intent::from(DisruptionApprove { node: node.clone(), name: name.clone() });
    if drain.dry_run {
        let schedule = schedule.map(|intent| (format!("disruption/{node}/{name}"), intent));
        let intents: Vec<_> = schedule.into_iter().chain([(format!("node/{node}"), approve)]).collect();
        return dry_run::preview(("drain", "created"), &intents, MissingEntity::Refused, io);
    }
    io.client.context.output(FORMS)?;
    if let Some(intent) = schedule {
        io.client.ask(&format!("cannot drain node/{node}"), &intent)?;
    }
    if let Some(known) = begun.filter(|one| one.state == DisruptionState::Approved) {
        note!("hint: disruption/{node}/{} already drains the node{}", known.name, by(known));
    } else if let Some(known) = scheduled {
        note!("hint: disruption/{node}/{} was already scheduled, and is now approved", known.name);
    }
    let of = format!("node/{node}");
    let verdict = io.client.ask(&format!("cannot drain {of}"), &approve)?;
    shown(io, &of, "drain requested", &verdict)?;
    if verdict.request().is_some() {
        return Ok(());
    }
    if drain.wait {
        return NodeDrain { node: &node, name: &name, timeout: drain.timeout }.wait(io);
    }
    note!("hint: to follow the progress\ntry: chancery drain {node} --wait");
    Ok(())
}

/// Whether the disruption drains the node, now or once it is approved.
fn empties(disruption: &DisruptionRow) -> bool {
    let now = match disruption.state {
        DisruptionState::Approved => true,
        // A disruption that is scheduled for later has a start; one without was left by a `drain` that failed
        // before the approval.
        DisruptionState::Scheduled => {
            disruption.start.is_none() && disruption.name.as_str().starts_with(NAME)
        }
        DisruptionState::Completed => false,
    };
    now && disruption.action != DisruptionAction::None
}

fn by(disruption: &DisruptionRow) -> String {
    disruption.approved_by.as_ref().map_or(String::new(), |by| format!(", approved by {by}"))
}

/// Returns the intent that schedules a disruption which drains the node immediately, under a name that the node does not have yet.
fn schedule(node: &NodeName, row: &NodeRow, reason: String) -> DisruptionSchedule {
    let names = std::iter::once(NAME.to_owned()).chain((2..).map(|number| format!("{NAME}-{number}")));
    let mut free = names.filter_map(|name| name.parse::<DisruptionName>().ok());
    let name = free
        .find(|name| row.disruptions.iter().all(|known| known.name != *name))
        .expect("there are more numbers than disruptions");
    let spec = DisruptionSpec { start: None, action: DisruptionAction::Drain, reason };
    DisruptionSchedule { node: node.clone(), name, spec }
}

/// Node that is being drained.
struct NodeDrain<'a> {
    node: &'a NodeName,
    name: &'a DisruptionName,
    timeout: Duration,
}

/// Result of a check.
enum DrainProgress {
    Empty,
    /// The disruption deleted the node.
    Removed,
    /// The disruption was completed before the node was empty.
    GivenUp,
    Left(Vec<String>),
}

impl NodeDrain<'_> {
    fn wait(&self, io: &mut CommandIo<'_>) -> Result<(), CliError> {
        let NodeDrain { node, name, .. } = self;
        let output = io.client.context.output(FORMS)?;
        let mut reported = Vec::new();
        let end =
            wait_for(io.client, format!("node/{node}"), self.timeout, &mut || match self.look(io.client)? {
                DrainProgress::Left(left) => {
                    if left != reported {
                        let count = counted(left.len(), "incarnation");
                        note!("node/{node} has {count} left: {}", shortened(&left));
                    }
                    reported = left;
                    Ok(None)
                }
                end => Ok(Some(end)),
            })?;
        match end {
            Some(DrainProgress::Empty) => {
                self.done("is empty", output, io.out)?;
                note!("hint: the node was evicted from its cluster\ntry: chancery undrain {node}");
                Ok(())
            }
            Some(DrainProgress::Removed) => self.done("is empty and deleted", output, io.out),
            Some(DrainProgress::GivenUp) => {
                let what =
                    format!("cannot drain node/{node}: disruption {name} was completed before it was empty");
                Err(CliError::failure(what))
            }
            Some(DrainProgress::Left(_)) | None => Err(self.late(io.client)?),
        }
    }

    fn done(&self, what: &str, output: OutputFormat, out: &mut dyn Write) -> Result<(), CliError> {
        if output == OutputFormat::Table {
            writeln!(out, "node/{} {what}", self.node)?;
        }
        Ok(())
    }

    fn look(&self, client: &ApiClient<'_>) -> Result<DrainProgress, CliError> {
        let node = self.node;
        let doing = format!("cannot read node/{node}");
        let Some(item) = get::find(client, &doing, EntityKind::Node, node.as_str())? else {
            return Ok(DrainProgress::Removed);
        };
        let row: NodeRow = typed(&item)?;
        let disruption = row.disruptions.iter().find(|one| one.name == *self.name);
        let over = disruption.is_none_or(|one| one.state == DisruptionState::Completed);
        match (over, row.incarnations) {
            (true, 0) => Ok(DrainProgress::Empty),
            (true, _) => Ok(DrainProgress::GivenUp),
            (false, _) => {
                let filters = [("node", node.to_string())];
                let items = get::list(client, EntityKind::Incarnation, &filters, u64::MAX)?.items;
                let left = items.iter().filter(|item| is_there(item));
                let line = |item: &Value| {
                    let [replica, state] =
                        ["replica", "state"].map(|name| item[name].as_str().unwrap_or("?"));
                    format!("{replica} {state}")
                };
                Ok(DrainProgress::Left(left.map(line).collect()))
            }
        }
    }

    /// Returns the error of a timeout, with the state of remaining replicas.
    fn late(&self, client: &ApiClient<'_>) -> Result<CliError, CliError> {
        let NodeDrain { node, timeout, .. } = self;
        let filters = [("node", node.to_string())];
        let mut what =
            format!("cannot wait for node/{node}: not empty after {timeout:?}; the drain continues");
        for item in get::list(client, EntityKind::Replica, &filters, NAMED as u64)?.items {
            let row: ReplicaRow = typed(&item)?;
            let line = format!("replica/{} is {}: {}", row.name, row.phase, one_line(&row.message));
            add(&mut what, format_args!("\n  {}", line.trim_end_matches([':', ' '])));
        }
        Ok(CliError::new(CliExit::Unknown, what))
    }
}

/// Whether an incarnation still has its reservation.
fn is_there(item: &Value) -> bool {
    let state = item["state"].as_str();
    let known = state.and_then(|word| IncarnationStatus::ALL.iter().find(|known| known.word() == word));
    !known.is_some_and(|state| state.is_over())
}

fn shortened(left: &[String]) -> String {
    let more = left.len().saturating_sub(NAMED);
    let named = left[..left.len() - more].join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

pub(super) fn undrain(undrain: &NodeArgs, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let name: NodeName = read_in(EntityKind::Node, &undrain.node)?;
    let row: NodeRow = typed(&get::one(io.client, EntityKind::Node, name.as_str())?)?;
    io.client.repeats(RepeatAdvice::Unchanged);
    io.client.context.output(FORMS)?;
    let (doing, of) = (format!("cannot undrain node/{name}"), format!("node/{name}"));
    let mut verdict = None;
    for disruption in row.disruptions.iter().filter(|one| empties(one)) {
        let intent = DisruptionComplete { node: name.clone(), name: disruption.name.clone() }.into();
        verdict = Some(io.client.ask(&doing, &intent)?);
    }
    // The node may have become empty meanwhile, and been evicted.
    let row =
        if verdict.is_some() { typed(&get::one(io.client, EntityKind::Node, name.as_str())?)? } else { row };
    let way: &[NodeState] = match row.state {
        NodeState::Evicted if has_volumes(&name, io.client)? => &[NodeState::Allocated],
        NodeState::Evicted => &[NodeState::Sanitizing, NodeState::Unallocated, NodeState::Allocated],
        NodeState::Sanitizing => &[NodeState::Unallocated, NodeState::Allocated],
        NodeState::Unallocated => &[NodeState::Allocated],
        NodeState::Allocating | NodeState::Allocated | NodeState::Expunged => &[],
    };
    // Read before the first step: without a cluster, the last step cannot succeed.
    let cluster = if way.is_empty() { None } else { Some(cluster(&name, io.client)?) };
    for state in way {
        let cluster = cluster.clone().filter(|_| *state == NodeState::Allocated);
        let intent = NodeSetState { name: name.clone(), state: *state, cluster, break_glass: None }.into();
        verdict = Some(io.client.ask(&doing, &intent)?);
    }
    if let Some(verdict) = verdict {
        return shown(io, &of, "is in use again", &verdict);
    }
    note!("hint: no drain of {of}, which is {}", row.state);
    unchanged(&row, io)
}

/// Shows that the node is as requested, without an intent.
fn unchanged(row: &NodeRow, io: &mut CommandIo<'_>) -> Result<(), CliError> {
    let (position, version) = (row.position.get(), Some(row.version));
    let outcome = "unchanged".into();
    let verdict = VerdictResponse { position, outcome, version, ..VerdictResponse::default() };
    shown(io, &format!("node/{}", row.name), "unchanged", &verdict)
}

/// Whether volumes are on the node: sanitizing it would destroy their data.
fn has_volumes(node: &NodeName, client: &ApiClient<'_>) -> Result<bool, CliError> {
    Ok(!get::list(client, EntityKind::Volume, &[("node", node.to_string())], 1)?.items.is_empty())
}

/// Returns the last cluster of the node.
fn cluster(node: &NodeName, client: &ApiClient<'_>) -> Result<ClusterName, CliError> {
    let past = past(EntityKind::Node, node.as_str(), client)?;
    let mut moved = past.iter().rev().filter(|item| EventSummary(item).type_name() == "node.state_changed");
    let found = moved.find_map(|item| item["data"]["cluster"].as_str());
    let found = found.ok_or_else(|| {
        CliError::conflict(format!(
            "cannot undrain node/{node}: it was never in a cluster\ntry: chancery allocate {node} --cluster CLUSTER"
        ))
    })?;
    read(EntityKind::Cluster, found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn disruption(name: &str, state: &str, evict: &str, start: &Value) -> DisruptionRow {
        let row = json!({
            "name": name, "state": state, "action": evict, "start": start, "reason": "", "approved_by": null,
            "since": "2026-11-21T09:00:00Z",
        });
        serde_json::from_value(row).expect("a row")
    }

    #[test]
    fn an_interrupted_drain_is_continued_and_one_planned_for_later_is_not() {
        let later = || json!("2026-11-22T09:00:00Z");
        for (name, state, evict, start, wanted) in [
            ("drain", "scheduled", "drain", Value::Null, true),
            ("drain-2", "approved", "drain", Value::Null, true),
            ("switch", "approved", "drain", later(), true),
            ("removal", "approved", "drain_and_delete", Value::Null, true),
            ("drain", "completed", "drain", Value::Null, false),
            ("switch", "approved", "none", Value::Null, false),
            ("switch", "scheduled", "drain", Value::Null, false),
            ("drain", "scheduled", "drain", later(), false),
        ] {
            let found = empties(&disruption(name, state, evict, &start));
            assert_eq!(found, wanted, "{name} {state} {evict}");
        }
    }

    #[test]
    fn of_what_is_left_the_first_are_named() {
        let left: Vec<_> = (1..=7).map(|number| format!("web-{number} running")).collect();
        assert_eq!(shortened(&left[..2]), "web-1 running, web-2 running");
        let wanted = "web-1 running, web-2 running, web-3 running, web-4 running, web-5 running and 2 more";
        assert_eq!(shortened(&left), wanted);
    }
}
