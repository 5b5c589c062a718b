//! The checker: reads a journal record by record and says which invariant it breaks, if any.
//!
//! It knows the words of events and the bytes of records, and nothing of the state machine: what it demands is
//! written from the rules, so that it can judge the machine. The work for each record grows with that record alone.
//!
//! | invariant | what is demanded of each record |
//! |---|---|
//! | 1 | positions are dense, the chain and the lineage hold, terms rise by one, time never falls; each intent has one verdict beside it, each key one decision; causes stand before their effects |
//! | 3 | a volume has one user at a time; no second incarnation of a replica before the first is over, but for an update, relocate or restart; what is to follow another one is not begun before that is over; what lost its place is stopped |
//! | 4 | what is held on a node fits at every position, is what the spec says (of one that follows another there, only what it needs more), and is freed once, as it was taken; no place on a node that is disturbed, or that the plan's affinities forbid |
//! | 5 | nothing that is over changes; tables of states are kept; a report that is stale, of a session that is over or of another cluster changes nothing; a writer that was overtaken writes nothing |
//! | 6 | each operation is asked for by a person, by a deployment that goes on, or by a rule that applies; each command follows from one that was approved by somebody entitled (or a rule that applies, a policy within its windows and its number) on the hash that was proposed, begins in its turn (wave, domain, pause, health of what was brought up), and has one outcome; each end is proved; a disruption moves no more than budgets and one domain allow; a rule starts again what ended as it says, and not before it says; what ends or moves many replicas at once, and what makes approval weaker, was approved as a whole, for what it does, by people who satisfy the policies in force |
//! | 7 | nothing that brings it up is opened or approved on a replica that a user stopped, until a user wants something newer |
//! | 8 | only objects that this journal issued and that are over are removed; a volume is destroyed when somebody asked for it, nothing uses it, and its end is proved; what is lost is used by nobody |
//! | 10 | the watermark of the inbox is of one topic and never falls; what is refused of it stands between the last one and this, in order |
//! | 12 | a replica is placed where it leaves those of its plan as even as can be, over domains, then nodes; a rebalance moves what makes them more even, within the budget; a plan at rest that a move would make more even says so |
//! | 11 | a set that stands beside the old one takes its place when all of it is ready, or on somebody's word; before that the old one is left alone, and afterwards nothing of the new one is left if that came to nothing. What runs is stopped for another run beside it only when that is ready |
//! | 13 | a read is at least as new as every verdict that its server gave before, and shows what the facts up to the position that it names say; one is refused as too new only while the rows are behind a position of the journal |
//!
//! In reading order: what is remembered (`state`), what a fact owes to the rest of its record (`debts`), then a room for
//! each group of facts, what truly runs (`alive`), and what readers are answered (`reads`).

mod alive;
mod approvals;
mod askers;
mod chain;
mod debts;
mod deployments;
mod disruptions;
mod ends;
mod inbox;
mod incarnations;
mod operations;
mod places;
mod plans;
mod reads;
mod requests;
mod reserving;
mod spread;
mod state;
#[cfg(test)]
mod tests;
mod verdicts;
mod violation;
mod volumes;

use std::sync::Arc;

use chancery_events::event::Event;
use chancery_events::fact::{Fact, LineageStarted, Outcome};
use chancery_events::id::Position;
use chancery_events::name::{CapabilityName, ReplicaName};
use chancery_events::record::Record;

use crate::history::History;
use chain::Chain;
use inbox::Inbox;
use plans::Presence;
use state::{At, Input, Said, World};
use verdicts::Verdicts;
use violation::{Check, demand};

pub use alive::Alive;
pub use reads::{List, Reads, Shown};
pub use violation::Violation;

/// Reads a journal and watches the invariants.
#[derive(Clone, Default, Debug)]
pub struct Checker {
    chain: Chain,
    inbox: Inbox,
    verdicts: Verdicts,
    world: World,
    reads: Reads,
}

impl Checker {
    /// Has seen nothing.
    pub fn new() -> Checker {
        Checker::default()
    }

    /// Takes the next valid record of the journal. After a violation the checker is of no use any more.
    pub fn take(&mut self, record: &Record) -> Result<(), Violation> {
        self.chain.take(record).map_err(|violation| violation.at(record.first()))?;
        self.inbox.take(record.header()).map_err(|violation| violation.at(record.first()))?;
        for (position, line) in record.events() {
            let event = Event::read(line)
                .map_err(|error| Violation::new(2, format!("nobody can read it: {error}")).at(position))?;
            self.event(position, record, event).map_err(|violation| violation.at(position))?;
        }
        self.reads.take(record);
        let settled = self.finish_input().and_then(|()| self.world.settle());
        settled.map_err(|violation| violation.at(record.last()))
    }

    fn event(&mut self, position: Position, record: &Record, event: Event) -> Check {
        let now = record.header().time;
        let Event::Fact { cause, fact } = event else {
            self.finish_input()?;
            let input = Input { position, event, said: Said::Nothing, has_effect: false };
            self.world.input = Some(Arc::new(input));
            self.world.carried = None;
            return Ok(());
        };
        let lineage = record.header().lineage;
        let own = matches!(
            fact,
            Fact::TermStarted(_)
                | Fact::LineageStarted(_)
                | Fact::InboxRefused(_)
                | Fact::InboxSkipped(_)
                | Fact::InboxAdvanced(_)
                | Fact::TimeRecorded(_)
        );
        let before = if own { cause <= position } else { cause < position };
        demand!(1, before && cause > Position::ZERO, "its cause, {cause}, does not stand before it");
        let verdict = matches!(fact, Fact::IntentAccepted(_) | Fact::IntentRefused(_));
        if !verdict {
            self.follows(cause)?;
        }
        let at = At { position, cause, time: now, lineage };
        self.fact(&fact, at)?;
        self.reads.fact(&fact, at);
        if let Some(replica) = about(&fact) {
            self.world.recount(replica, Presence::Kept);
        }
        Ok(())
    }

    /// A fact beside the verdict: whether it may follow from the input that is its cause.
    fn follows(&mut self, cause: Position) -> Check {
        let Some(input) = self.world.input.as_mut().filter(|input| input.position == cause) else {
            return Ok(());
        };
        if input.request().is_some() {
            demand!(1, input.said != Said::Nothing, "it follows from an intent that has no verdict yet");
            demand!(5, input.said == Said::Accepted, "it follows from an intent that changes nothing");
        }
        Arc::make_mut(input).has_effect = true;
        Ok(())
    }

    /// Before the next input: what had to become of the last one.
    fn finish_input(&self) -> Check {
        let Some(input) = &self.world.input else { return Ok(()) };
        match (&input.event, input.said, input.has_effect) {
            (Event::Intent(_), Said::Nothing, _) => {
                Err(Violation::new(1, "the intent has no verdict").at(input.position))
            }
            (Event::Intent(_), Said::Accepted, false) => {
                Err(Violation::new(1, "the intent is said to change something, and does not")
                    .at(input.position))
            }
            (Event::Observation { .. }, _, false) => {
                Err(Violation::new(5, "an observation is recorded, and changes nothing").at(input.position))
            }
            _ => Ok(()),
        }
    }

    fn fact(&mut self, fact: &Fact, at: At) -> Check {
        let world = &mut self.world;
        world.time = Some(at.time);
        match fact {
            Fact::TermStarted(_) => {
                world.steady_since = Some(at.time);
                Ok(())
            }
            Fact::TimeRecorded(_) => Ok(()),
            Fact::LineageStarted(x) => lineage_started(x, at),
            Fact::IntentAccepted(_) | Fact::IntentRefused(_) => self.verdict(fact, at),
            Fact::InboxRefused(x) => self.inbox.refused(x),
            Fact::InboxSkipped(x) => self.inbox.skipped(x),
            Fact::InboxAdvanced(x) => self.inbox.advanced(x),
            Fact::EntityParked(x) => world.parked(&x.subject),
            Fact::ClusterApplied(x) => {
                world.cluster_applied(x);
                Ok(())
            }
            Fact::ClusterActivityChanged(x) => {
                demand!(5, world.clusters.contains_key(&x.name), "there is no cluster {}", x.name);
                if let Some(cluster) = world.clusters.get_mut(&x.name) {
                    cluster.activity = x.activity;
                }
                Ok(())
            }
            Fact::ClusterDeleted(x) => world.cluster_deleted(&x.name),
            Fact::CapabilityApplied(x) => {
                world.capabilities.insert(x.name.clone());
                Ok(())
            }
            Fact::CapabilityActivityChanged(x) => self.capability(&x.name),
            Fact::CapabilityDeleted(x) => {
                self.capability(&x.name)?;
                self.world.capabilities.remove(&x.name);
                Ok(())
            }
            Fact::NodeApplied(x) => world.node_applied(x),
            Fact::NodeMoved(x) => world.node_moved(x, at),
            Fact::NodeDeleted(x) => world.node_deleted(&x.name, at),
            Fact::DisruptionScheduled(x) => world.disruption_scheduled(x, at),
            Fact::DisruptionApproved(x) => world.disruption_approved(x, at),
            Fact::DisruptionCompleted(x) => world.disruption_completed(x, at),
            Fact::DisruptionDeleted(x) => world.disruption_deleted(x, at),
            Fact::PolicyApplied(x) => world.policy_applied(x, at),
            Fact::PolicyDeleted(x) => world.policy_deleted(x, at),
            Fact::PlanApplied(x) => world.plan_applied(x, at),
            Fact::PlanActivityChanged(x) => {
                world.plan(&x.name)?.activity = x.activity;
                Ok(())
            }
            Fact::PlanBalanceChanged(x) => world.balance_changed(x),
            Fact::PlanRebalanceStarted(x) => world.rebalance_started(x, at),
            Fact::PlanRebalanceEnded(x) => world.rebalance_ended(x),
            Fact::PlanRemoving(x) => world.plan_removing(x, at),
            Fact::PlanDeleted(x) => world.plan_deleted(&x.name, at),
            Fact::PlanWaiting(x) => world.plan(&x.plan).map(|_| ()),
            Fact::DeploymentCreated(x) => world.deployment_created(x, at),
            Fact::DeploymentStarted(x) => world.deployment_started(x, at),
            Fact::DeploymentPaused(x) => world.deployment_paused(&x.plan, &x.name, at),
            Fact::DeploymentResumed(x) => world.deployment_resumed(&x.plan, &x.name, at),
            Fact::DeploymentStalled(x) => world.deployment_stalled(x, at),
            Fact::DeploymentCutOver(x) => world.deployment_cut_over(x, at),
            Fact::DeploymentEnding(x) => world.deployment_ending(x, at),
            Fact::DeploymentEnded(x) => world.deployment_ended(x),
            Fact::ReplicaCreated(x) => world.replica_created(x, at),
            Fact::ReplicaAssigned(x) => world.replica_assigned(x),
            Fact::ReplicaDeleted(x) => world.replica_deleted(&x.name, &x.volumes),
            Fact::OperationOpened(x) => world.operation_opened(x, at),
            Fact::OperationApproved(x) => world.operation_approved(x, at),
            Fact::OperationBegun(x) => world.operation_begun(x, at),
            Fact::OperationEnded(x) => world.operation_ended(x, at),
            Fact::RequestOpened(x) => world.request_opened(x, at),
            Fact::RequestApproved(x) => world.request_approved(x, at),
            Fact::RequestEnded(x) => world.request_ended(x, at),
            Fact::ApprovalBypassed(x) => world.bypassed(x, at),
            Fact::IncarnationReserved(x) => world.reserved(x, at),
            Fact::IncarnationCommanded(x) => world.commanded(x, at),
            Fact::IncarnationBegun(x) => world.begun(x),
            Fact::CommandFailed(x) => world.command_failed(x, at),
            Fact::IncarnationEnsured(x) => world.ensured(x, at),
            Fact::IncarnationRunning(x) => world.running(x, at),
            Fact::IncarnationStatus(x) => world.status(x, at),
            Fact::IncarnationEnded(x) => world.ended(x, at),
            Fact::VolumeCreated(x) => world.volume_created(x, at),
            Fact::VolumeReady(x) => world.volume_ready(x, at),
            Fact::VolumeFailed(x) => world.volume_failed(x, at),
            Fact::VolumeLost(x) => world.volume_lost(x, at),
            Fact::VolumeRemoving(x) => world.volume_removing(x, at),
            Fact::VolumeDestroying(x) => world.volume_destroying(x),
            Fact::VolumeDestroyed(x) => world.volume_destroyed(x, at),
            Fact::SessionOpened(x) => world.session_opened(x, at),
            Fact::SessionClosed(x) => world.session_closed(x, at),
            Fact::ObjectJudged(x) => world.judged(x, &self.chain, at),
        }
    }

    /// The verdict of the intent right before it.
    fn verdict(&mut self, fact: &Fact, at: At) -> Check {
        let beside = self.world.input_of(at).filter(|input| at.position == input.position.plus(1));
        let Some((input, request)) = beside.as_deref().and_then(|input| Some((input, input.request()?)))
        else {
            return Err(Violation::new(1, "a verdict stands beside no intent"));
        };
        let said = match fact {
            Fact::IntentAccepted(x) => {
                self.verdicts.accepted(request, x, at.position, at.time)?;
                self.world.wanted(input);
                match x.outcome {
                    Outcome::Changed => Said::Accepted,
                    Outcome::Unchanged => Said::Unchanged,
                }
            }
            Fact::IntentRefused(x) => {
                self.verdicts.refused(request, x, at.position, at.time)?;
                Said::Refused
            }
            _ => return Err(Violation::new(1, "a verdict is either accepted or refused")),
        };
        drop(beside);
        if let Some(input) = &mut self.world.input {
            Arc::make_mut(input).said = said;
        }
        Ok(())
    }

    fn capability(&self, name: &CapabilityName) -> Check {
        demand!(5, self.world.capabilities.contains(name), "there is no capability {name}");
        Ok(())
    }

    /// Invariant 1, for what producers were told: every verdict told stands in the journal at its position, one
    /// for each key; what surely was not recorded is not there.
    pub fn history(&self, history: &History) -> Result<(), Violation> {
        self.verdicts.history(history)
    }

    /// A server gives a verdict, by whichever way: later reads there are at least as new.
    pub fn gave(&mut self, server: usize, verdict: Position) {
        self.reads.gave(server, verdict);
    }

    /// What answers to reads are held against.
    pub fn reads(&self) -> &Reads {
        &self.reads
    }

    /// Invariant 12, once everything has settled: the first plan whose spread could be more even while nothing says so.
    pub fn unsaid(&self) -> Option<String> {
        self.world.unsaid()
    }

    /// Invariants 3, 4 and 6, for what truly runs: one incarnation of a replica executes, or two while one takes the
    /// place of the other; each was commanded by an operation that was approved; each holds a place, and runs no more
    /// than its spec says. What runs on a node that was expunged is not the fleet's any more.
    pub fn alive(&self, alive: &[Alive]) -> Result<(), Violation> {
        self.world.alive(alive)
    }
}

fn lineage_started(fact: &LineageStarted, at: At) -> Check {
    let (ends, starts) = (fact.at, at.position);
    demand!(1, ends < starts, "a lineage starts at {starts}, and its ancestor ends at {ends}");
    demand!(1, fact.previous != at.lineage, "lineage {} continues itself", at.lineage);
    Ok(())
}

/// The replica that a fact may have changed for those who count.
fn about(fact: &Fact) -> Option<&ReplicaName> {
    match fact {
        Fact::ReplicaCreated(x) => Some(&x.name),
        Fact::ReplicaAssigned(x) => Some(&x.name),
        Fact::OperationOpened(x) => Some(&x.replica),
        Fact::OperationApproved(x) => Some(&x.replica),
        Fact::OperationBegun(x) => Some(&x.replica),
        Fact::OperationEnded(x) => Some(&x.replica),
        Fact::IncarnationReserved(x) => Some(&x.replica),
        Fact::IncarnationCommanded(x) => Some(&x.replica),
        Fact::IncarnationBegun(x) => Some(&x.replica),
        Fact::IncarnationEnsured(x) => Some(&x.replica),
        Fact::IncarnationRunning(x) => Some(&x.replica),
        Fact::IncarnationStatus(x) => Some(&x.replica),
        Fact::IncarnationEnded(x) => Some(&x.replica),
        // No other is about one, or it is counted elsewhere.
        _ => None,
    }
}
