//! The checker: reads a journal record by record and says which invariant it breaks, if any.
//!
//! It knows the words of events and the bytes of records, and nothing of the state machine: what it demands is
//! written from the rules, so that it can judge the machine. The work for each record grows with that record alone.
//!
//! | invariant | what is demanded of each record |
//! |---|---|
//! | 1 | positions are dense, the chain and the lineage hold, terms rise by one, time never falls; each intent has one verdict beside it, each key one decision; causes stand before their effects |
//! | 3 | no second incarnation of a replica before the first is over |
//! | 4 | what is held on a node fits at every position, is what the spec says, and is freed once, as it was taken |
//! | 5 | nothing that is over changes; tables of states are kept; a report that is stale, of a session that is over or of another cluster changes nothing; a writer that was overtaken writes nothing |
//! | 6 | each command follows from an operation that was approved by somebody entitled on the hash that was proposed, and has one outcome; each end is proved |
//! | 7 | no create or start is opened or approved on a replica that a user stopped, until a user wants something newer |
//! | 8 | only objects that this journal issued and that are over are removed |
//! | 10 | the watermark of the inbox is of one topic and never falls; what is refused of it stands between the last one and this, in order |
//!
//! In reading order: what is remembered, then a room for each group of facts.

mod chain;
mod inbox;
mod incarnations;
mod operations;
mod places;
mod plans;
mod state;
#[cfg(test)]
mod tests;
mod verdicts;
mod violation;

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_events::event::Event;
use chancery_events::fact::{Fact, Outcome};
use chancery_events::id::{IncarnationId, Position};
use chancery_events::name::{CapabilityName, ReplicaName};
use chancery_events::record::Record;
use chancery_events::spec::NodeState;
use chancery_events::subject::Subject;

use crate::history::History;
use chain::Chain;
use inbox::Inbox;
use state::{At, Debt, Input, Life, Said, World};
use verdicts::Verdicts;
use violation::{Check, demand};

pub use violation::Violation;

/// What truly runs of one incarnation, whatever the journal says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alive {
    /// Which.
    pub incarnation: IncarnationId,
    /// How many processes, at least one.
    pub processes: usize,
}

/// Reads a journal and watches the invariants.
#[derive(Clone, Default, Debug)]
pub struct Checker {
    chain: Chain,
    inbox: Inbox,
    verdicts: Verdicts,
    world: World,
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
        self.settle().map_err(|violation| violation.at(record.last()))
    }

    fn event(&mut self, position: Position, record: &Record, event: Event) -> Check {
        let now = record.header().time;
        let Event::Fact { cause, fact } = event else {
            self.finish_input()?;
            let input = Input { position, event, said: Said::Nothing, has_effect: false };
            self.world.input = Some(Arc::new(input));
            return Ok(());
        };
        let lineage = record.header().lineage;
        let own = matches!(
            fact,
            Fact::TermStarted(_) | Fact::LineageStarted(_) | Fact::InboxRefused(_) | Fact::InboxAdvanced(_)
        );
        let before = if own { cause <= position } else { cause < position };
        demand!(1, before && cause > Position::ZERO, "its cause, {cause}, does not stand before it");
        let verdict = matches!(fact, Fact::IntentAccepted(_) | Fact::IntentRefused(_));
        if !verdict {
            self.follows(cause)?;
        }
        self.fact(&fact, At { position, cause, time: now, lineage })
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

    /// At the end of a record, which is all or nothing.
    fn settle(&mut self) -> Check {
        self.finish_input()?;
        for debt in std::mem::take(&mut self.world.debts) {
            match debt {
                Debt::Opened(id, replica) => {
                    let there = self.world.operations.get(&id).is_some_and(|by| by.replica == replica);
                    demand!(
                        6,
                        there,
                        "operation {id} supersedes another one on {replica}, and was never opened there"
                    );
                }
                Debt::Created(plan, name) => {
                    let plan_of = self.world.plans.get(&plan);
                    // It may be superseded itself by a later intent of the same record.
                    let there = plan_of.is_some_and(|of| of.deployments.contains_key(&name));
                    demand!(
                        6,
                        there,
                        "deployment {name} of {plan} supersedes another one, and does not exist"
                    );
                }
                Debt::Freed(id) => {
                    let free = self.world.incarnation(id)?.life.is_over();
                    demand!(4, free, "the operation of incarnation {id} is over, and it keeps its place");
                }
            }
        }
        Ok(())
    }

    fn fact(&mut self, fact: &Fact, at: At) -> Check {
        let world = &mut self.world;
        match fact {
            Fact::TermStarted(_) | Fact::LineageStarted(_) => Ok(()),
            Fact::IntentAccepted(_) | Fact::IntentRefused(_) => self.verdict(fact, at),
            Fact::InboxRefused(x) => self.inbox.refused(x),
            Fact::InboxAdvanced(x) => self.inbox.advanced(x),
            Fact::EntityParked(x) => {
                if let Subject::Operation(id) = &x.subject {
                    world.operation(*id)?.is_parked = true;
                }
                Ok(())
            }
            Fact::ClusterApplied(x) => {
                world.clusters.entry(x.name.clone()).or_default();
                Ok(())
            }
            Fact::ClusterActivityChanged(x) => {
                demand!(5, world.clusters.contains_key(&x.name), "there is no cluster {}", x.name);
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
            Fact::NodeMoved(x) => world.node_moved(x),
            Fact::NodeDeleted(x) => world.node_deleted(&x.name),
            Fact::PlanApplied(x) => world.plan_applied(x),
            Fact::PlanActivityChanged(x) => {
                world.plan(&x.name)?.activity = x.activity;
                Ok(())
            }
            Fact::PlanDeleted(x) => world.plan_deleted(&x.name),
            Fact::PlanWaiting(x) => world.plan(&x.plan).map(|_| ()),
            Fact::DeploymentCreated(x) => world.deployment_created(x, at),
            Fact::DeploymentStarted(x) => world.deployment_started(&x.plan, &x.name),
            Fact::DeploymentEnding(x) => world.deployment_ending(x),
            Fact::DeploymentEnded(x) => world.deployment_ended(x),
            Fact::ReplicaCreated(x) => world.replica_created(x, at),
            Fact::ReplicaDeleted(x) => world.replica_deleted(&x.name),
            Fact::OperationOpened(x) => world.operation_opened(x, at),
            Fact::OperationApproved(x) => world.operation_approved(x, at),
            Fact::OperationEnded(x) => world.operation_ended(x, at),
            Fact::IncarnationReserved(x) => world.reserved(x, at),
            Fact::IncarnationCommanded(x) => world.commanded(x),
            Fact::CommandFailed(x) => world.command_failed(x, at),
            Fact::IncarnationEnsured(x) => world.ensured(x.incarnation, at),
            Fact::IncarnationRunning(x) => world.running(x.incarnation, x.operation, at),
            Fact::IncarnationStatus(x) => world.status(x.incarnation, at),
            Fact::IncarnationEnded(x) => world.ended(x, at),
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

    /// Invariants 3, 4 and 6, for what truly runs: at most one incarnation of a replica executes; each was commanded
    /// by an operation that was approved; each holds a place, and runs no more than its spec says. What runs on a
    /// node that was expunged is not the fleet's any more.
    pub fn alive(&self, alive: &[Alive]) -> Result<(), Violation> {
        let mut of: BTreeMap<&ReplicaName, IncarnationId> = BTreeMap::new();
        for Alive { incarnation: id, processes } in alive {
            let unknown = || Violation::new(6, format!("incarnation {id} runs, and was never issued"));
            let found = self.world.incarnations.get(id).ok_or_else(unknown)?;
            let expunged = self.world.nodes.get(&found.node).is_some_and(|n| n.state == NodeState::Expunged);
            match found.life {
                Life::Expunged => continue,
                _ if expunged => continue,
                Life::Over => {
                    return Err(Violation::new(4, format!("incarnation {id} runs, and holds no place")));
                }
                Life::Reserved => {
                    return Err(Violation::new(6, format!("incarnation {id} runs, and nobody asked for it")));
                }
                Life::Creating | Life::Starting | Life::Running | Life::Stopping(_) => {}
            }
            let spec = found.processes;
            demand!(
                3,
                *processes <= spec,
                "incarnation {id} runs {processes} processes, and its spec has {spec}"
            );
            if let Some(other) = of.insert(&found.replica, *id) {
                return Err(Violation::new(
                    3,
                    format!("of replica {} both {other} and {id} run", found.replica),
                ));
            }
        }
        Ok(())
    }
}
