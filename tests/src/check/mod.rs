//! Checker of invariants: reads a journal record by record and reports the first invariant that it breaks.
//!
//! The checker knows event types and the bytes of records, and nothing of the state machine. Its demands are
//! written from the rules, to judge the machine. The work for a record grows with that record alone.
//!
//! | invariant | demand on each record |
//! |---|---|
//! | 1 | positions are dense, the chain and the lineage are unbroken, terms rise by one, time never falls; each intent has one verdict next to it, each key one decision; causes precede their effects |
//! | 3 | a volume has one user at a time; a replica has no second incarnation before the first ended, except for an update, relocate or restart; an incarnation that follows another is not started before that one ended; an incarnation that was replaced is stopped |
//! | 4 | reservations on a node fit at every position, are as in the spec (one that follows another there reserves only the difference), and are released once, as they were made; no reservation on a node that is disrupted, or that the plan's affinities forbid |
//! | 5 | nothing that ended changes; state tables are obeyed; a report that is stale, of an ended session or of another cluster changes nothing; a fenced writer writes nothing |
//! | 6 | each operation is requested by a person, by a deployment in progress, or by a rule that applies; each command follows from an operation approved by an entitled actor (or a rule that applies, a policy within its windows and its number) on the proposed hash, starts in its order (`max_parallel`, domain, delay, health of what was started), and has one outcome; each end is proved; a disruption moves no more than `max_unavailable` and one domain allow; a rule restarts what ended as it defines, and not earlier; what ends or moves many replicas together, and what weakens approval, was approved as a whole, for what it does, by people who satisfy the policies in force |
//! | 7 | no operation that starts a replica is opened or approved after a user stopped the replica, until a user requests something newer |
//! | 8 | only objects that this journal issued and that ended are removed; a volume is destroyed only on request, unused, and with a proved end; a lost volume has no user |
//! | 10 | the watermark of the inbox is of one topic and never falls; its refused messages are located between the previous watermark and this one, in order |
//! | 12 | a replica is placed where the replicas of its plan stay as even as possible, over domains, then nodes; a rebalance moves what makes them more even, within `max_unavailable`; a plan at rest that a move would make more even is marked so |
//! | 11 | a set alongside the old one replaces it when all of it is ready, or on request of a person; before that the old set is left alone, and if the new set failed nothing of it is left. An incarnation is stopped for another one alongside it only when that one is ready |
//! | 13 | a read is at least as new as every verdict that its server returned before, and shows what the facts up to its named position state; a read is refused as too new only while the rows are behind a position of the journal |
//! | 15 | no event has a higher level than the fleet; a raise raises the level |
//!
//! Reading order: `state`, obligations of facts to the rest of a record (`obligations`), modules for fact groups,
//! real processes (`alive`), and answers to readers (`reads`).

mod alive;
mod approvals;
mod chain;
mod deployments;
mod disruptions;
mod ends;
mod inbox;
mod incarnations;
mod level;
mod nodes;
mod obligations;
mod operations;
mod plans;
mod readiness;
mod reads;
mod requesters;
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
use chancery_events::fact::{Fact, IntentOutcome, LineageStarted};
use chancery_events::id::Position;
use chancery_events::name::{CapabilityName, ReplicaName};
use chancery_events::record::Record;

use crate::history::InvocationHistory;
use chain::HeaderChain;
use inbox::InboxAnswers;
use level::CheckedLevel;
use plans::ReplicaPresence;
use state::{CheckedFleet, FactLocation, InputVerdict, LastInput};
use verdicts::RecordedVerdicts;
use violation::{RuleResult, demand};

pub use alive::RunningProcesses;
pub use reads::{ReadChecker, RowStamp, StampList};
pub use violation::InvariantViolation;

/// Reads a journal and checks the invariants.
#[derive(Clone, Default, Debug)]
pub struct JournalChecker {
    chain: HeaderChain,
    inbox: InboxAnswers,
    level: CheckedLevel,
    verdicts: RecordedVerdicts,
    world: CheckedFleet,
    reads: ReadChecker,
}

impl JournalChecker {
    /// Creates a checker.
    pub fn new() -> JournalChecker {
        JournalChecker::default()
    }

    /// Takes the next valid record of the journal. After a violation the checker is no longer usable.
    pub fn take(&mut self, record: &Record) -> Result<(), InvariantViolation> {
        self.chain.take(record).map_err(|violation| violation.at(record.first()))?;
        self.inbox.take(record.header()).map_err(|violation| violation.at(record.first()))?;
        for (position, line) in record.events() {
            let event = Event::read(line).map_err(|error| {
                InvariantViolation::new(2, format!("cannot read event: {error}")).at(position)
            })?;
            self.event(position, record, event).map_err(|violation| violation.at(position))?;
        }
        self.reads.take(record);
        let settled = self.finish_input().and_then(|()| self.world.settle());
        settled.map_err(|violation| violation.at(record.last()))
    }

    fn event(&mut self, position: Position, record: &Record, event: Event) -> RuleResult {
        self.level.permits(&event)?;
        let now = record.header().time;
        let Event::Fact { cause, fact } = event else {
            self.finish_input()?;
            let input = LastInput { position, event, verdict: InputVerdict::Nothing, has_effect: false };
            self.world.input = Some(Arc::new(input));
            self.world.carried = None;
            return Ok(());
        };
        let lineage = record.header().lineage;
        let own = matches!(
            fact,
            Fact::TermStarted(_)
                | Fact::LineageStarted(_)
                | Fact::InboxMessageRefused(_)
                | Fact::InboxSkipped(_)
                | Fact::InboxAdvanced(_)
                | Fact::TimeRecorded(_)
        );
        let before = if own { cause <= position } else { cause < position };
        demand!(1, before && cause > Position::ZERO, "its cause, {cause}, does not precede it");
        let verdict = matches!(fact, Fact::IntentAccepted(_) | Fact::IntentRefused(_));
        if !verdict {
            self.follows(cause)?;
        }
        let at = FactLocation { position, cause, time: now, lineage };
        self.fact(&fact, at)?;
        self.reads.fact(&fact, at);
        if let Some(replica) = about(&fact) {
            self.world.recount(replica, ReplicaPresence::Kept);
        }
        Ok(())
    }

    /// Checks whether a fact other than the verdict may follow from the input that is its cause.
    fn follows(&mut self, cause: Position) -> RuleResult {
        let Some(input) = self.world.input.as_mut().filter(|input| input.position == cause) else {
            return Ok(());
        };
        if input.request().is_some() {
            demand!(
                1,
                input.verdict != InputVerdict::Nothing,
                "it follows from an intent that has no verdict yet"
            );
            demand!(
                5,
                input.verdict == InputVerdict::Accepted,
                "it follows from an intent that changes nothing"
            );
        }
        Arc::make_mut(input).has_effect = true;
        Ok(())
    }

    /// Checks, before the next input, that the last input had its required effect.
    fn finish_input(&self) -> RuleResult {
        let Some(input) = &self.world.input else { return Ok(()) };
        match (&input.event, input.verdict, input.has_effect) {
            (Event::Intent(_), InputVerdict::Nothing, _) => {
                Err(InvariantViolation::new(1, "the intent has no verdict").at(input.position))
            }
            (Event::Intent(_), InputVerdict::Accepted, false) => {
                Err(InvariantViolation::new(1, "the verdict reports a change, and there is none")
                    .at(input.position))
            }
            (Event::Observation { .. }, _, false) => {
                Err(InvariantViolation::new(5, "an observation is recorded, and changes nothing")
                    .at(input.position))
            }
            _ => Ok(()),
        }
    }

    fn fact(&mut self, fact: &Fact, at: FactLocation) -> RuleResult {
        let world = &mut self.world;
        world.time = Some(at.time);
        match fact {
            Fact::TermStarted(_) => {
                world.steady_since = Some(at.time);
                world.starts_term[0] = true;
                Ok(())
            }
            Fact::FleetLevelRaised(x) => self.level.raised(x),
            Fact::TimeRecorded(_) => Ok(()),
            Fact::LineageStarted(x) => lineage_started(x, at),
            Fact::IntentAccepted(_) | Fact::IntentRefused(_) => self.verdict(fact, at),
            Fact::InboxMessageRefused(x) => self.inbox.message_refused(x),
            Fact::InboxSkipped(x) => self.inbox.skipped(x),
            Fact::InboxAdvanced(x) => self.inbox.advanced(x),
            Fact::EntityQuarantined(x) => world.quarantined(&x.subject),
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
            Fact::NodeStateChanged(x) => world.node_moved(x, at),
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
            Fact::PlanDeletionStarted(x) => world.plan_removing(x, at),
            Fact::PlanDeleted(x) => world.plan_deleted(&x.name, at),
            Fact::PlanUnschedulable(x) => world.plan(&x.plan).map(|_| ()),
            Fact::DeploymentCreated(x) => world.deployment_created(x, at),
            Fact::DeploymentStarted(x) => world.deployment_started(x, at),
            Fact::DeploymentPaused(x) => world.deployment_paused(&x.plan, &x.name, at),
            Fact::DeploymentResumed(x) => world.deployment_resumed(&x.plan, &x.name, at),
            Fact::DeploymentStalled(x) => world.deployment_stalled(x, at),
            Fact::DeploymentCutOver(x) => world.deployment_cut_over(x, at),
            Fact::DeploymentHalted(x) => world.deployment_ending(x, at),
            Fact::DeploymentEnded(x) => world.deployment_ended(x),
            Fact::ReplicaCreated(x) => world.replica_created(x, at),
            Fact::ReplicaDeploymentChanged(x) => world.replica_assigned(x),
            Fact::ReplicaDeleted(x) => world.replica_deleted(&x.name, &x.volumes),
            Fact::OperationCreated(x) => world.operation_opened(x, at),
            Fact::OperationApproved(x) => world.operation_approved(x, at),
            Fact::OperationStarted(x) => world.operation_begun(x, at),
            Fact::OperationEnded(x) => world.operation_ended(x, at),
            Fact::RequestOpened(x) => world.request_opened(x, at),
            Fact::RequestApproved(x) => world.request_approved(x, at),
            Fact::RequestEnded(x) => world.request_ended(x, at),
            Fact::ApprovalBypassed(x) => world.bypassed(x, at),
            Fact::IncarnationReserved(x) => world.reserved(x, at),
            Fact::IncarnationStopRequested(x) => world.stop_requested(x, at),
            Fact::IncarnationStartRequested(x) => world.start_requested(x),
            Fact::IncarnationCommandFailed(x) => world.command_failed(x, at),
            Fact::IncarnationStarted(x) => world.started(x, at),
            Fact::ConsoleOpened(x) => world.console_opened(x),
            Fact::IncarnationRunning(x) => world.running(x, at),
            Fact::IncarnationProcessesChanged(x) => world.processes_changed(x, at),
            Fact::IncarnationEnded(x) => world.ended(x, at),
            Fact::VolumeCreated(x) => world.volume_created(x, at),
            Fact::VolumeSnapshotStarted(x) => world.snapshot_started(x, at),
            Fact::VolumeReady(x) => world.volume_ready(x, at),
            Fact::VolumeCommandFailed(x) => world.volume_failed(x, at),
            Fact::VolumeLost(x) => world.volume_lost(x, at),
            Fact::VolumeDeletionStarted(x) => world.volume_removing(x, at),
            Fact::VolumeDestroyRequested(x) => world.volume_destroying(x),
            Fact::VolumeDestroyed(x) => world.volume_destroyed(x, at),
            Fact::SessionOpened(x) => world.session_opened(x, at),
            Fact::SessionClosed(x) => world.session_closed(x, at),
            Fact::OrphanResolved(x) => world.resolved(x, &self.chain, at),
        }
    }

    /// Checks the verdict of the intent directly before it.
    fn verdict(&mut self, fact: &Fact, at: FactLocation) -> RuleResult {
        let preceding = self.world.input_of(at).filter(|input| at.position == input.position.plus(1));
        let Some((input, request)) = preceding.as_deref().and_then(|input| Some((input, input.request()?)))
        else {
            return Err(InvariantViolation::new(1, "a verdict does not follow its intent directly"));
        };
        let verdict = match fact {
            Fact::IntentAccepted(x) => {
                self.verdicts.accepted(request, x, at.position, at.time)?;
                self.world.wanted(input);
                match x.outcome {
                    IntentOutcome::Changed => InputVerdict::Accepted,
                    IntentOutcome::Unchanged => InputVerdict::Unchanged,
                }
            }
            Fact::IntentRefused(x) => {
                self.verdicts.refused(request, x, at.position, at.time)?;
                InputVerdict::Refused
            }
            _ => return Err(InvariantViolation::new(1, "a verdict is either accepted or refused")),
        };
        drop(preceding);
        if let Some(input) = &mut self.world.input {
            Arc::make_mut(input).verdict = verdict;
        }
        Ok(())
    }

    fn capability(&self, name: &CapabilityName) -> RuleResult {
        demand!(5, self.world.capabilities.contains(name), "there is no capability {name}");
        Ok(())
    }

    /// Checks invariant 1 for producers. Received verdicts are in the journal at their positions, one for
    /// each key; surely unrecorded intents are not.
    pub fn history(&self, history: &InvocationHistory) -> Result<(), InvariantViolation> {
        self.verdicts.history(history)
    }

    /// Notes that a server returned a verdict, by any path: later reads there are at least as new.
    pub fn gave(&mut self, server: usize, verdict: Position) {
        self.reads.gave(server, verdict);
    }

    /// Returns the reads that answers are compared with.
    pub fn reads(&self) -> &ReadChecker {
        &self.reads
    }

    /// Returns the first plan that violates invariant 12 after settling: improvable, and not marked uneven.
    pub fn unreported_balance(&self) -> Option<String> {
        self.world.unreported_balance()
    }

    /// Checks invariants 3, 4 and 6 for real processes. One incarnation of a replica executes, or two during
    /// a replacement. Each was commanded by an approved operation, is reserved, and has at most its spec's
    /// processes. Processes on an expunged node are not the fleet's any more.
    pub fn alive(&self, alive: &[RunningProcesses]) -> Result<(), InvariantViolation> {
        self.world.alive(alive)
    }
}

fn lineage_started(fact: &LineageStarted, at: FactLocation) -> RuleResult {
    let (ends, starts) = (fact.at, at.position);
    demand!(1, ends < starts, "a lineage starts at {starts}, and its ancestor ends at {ends}");
    demand!(1, fact.previous != at.lineage, "lineage {} continues itself", at.lineage);
    Ok(())
}

/// Replica whose count the fact may change.
fn about(fact: &Fact) -> Option<&ReplicaName> {
    match fact {
        Fact::ReplicaCreated(x) => Some(&x.name),
        Fact::ReplicaDeploymentChanged(x) => Some(&x.name),
        Fact::OperationCreated(x) => Some(&x.replica),
        Fact::OperationApproved(x) => Some(&x.replica),
        Fact::OperationStarted(x) => Some(&x.replica),
        Fact::OperationEnded(x) => Some(&x.replica),
        Fact::IncarnationReserved(x) => Some(&x.replica),
        Fact::IncarnationStopRequested(x) => Some(&x.replica),
        Fact::IncarnationStartRequested(x) => Some(&x.replica),
        Fact::IncarnationStarted(x) => Some(&x.replica),
        Fact::IncarnationRunning(x) => Some(&x.replica),
        Fact::IncarnationProcessesChanged(x) => Some(&x.replica),
        Fact::IncarnationEnded(x) => Some(&x.replica),
        // Other facts concern no replica, or are counted elsewhere.
        _ => None,
    }
}
