//! Incarnations and their commands; invariants 3, 4 and 6: one at a time, each in its place, ended by proof alone.

use chancery_events::fact::{
    CommandFailed, Effect, IncarnationCommanded, IncarnationEnd, IncarnationEnded, IncarnationReserved,
    OperationEnd,
};
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::observation::Saw;
use chancery_events::spec::{NodeState, OperationKind};

use super::state::{At, Incarnation, Life, Stage, World};
use super::violation::{Check, Violation, demand};

impl Incarnation {
    /// The next command. The one before, if it has no outcome, is superseded.
    pub(super) fn command(&mut self, effect: Effect) {
        self.revision += 1;
        self.command = Some((effect, 1));
    }
}

/// How an incarnation is while it lives, for people.
const fn word(life: &Life) -> &'static str {
    match life {
        Life::Reserved => "reserved",
        Life::Creating => "creating",
        Life::Starting => "starting",
        Life::Running => "running",
        Life::Stopping(_) => "stopping",
        Life::Over | Life::Expunged => "over",
    }
}

impl World {
    pub(super) fn incarnation(&self, id: IncarnationId) -> Result<&Incarnation, Violation> {
        self.incarnations
            .get(&id)
            .ok_or_else(|| Violation::new(5, format!("incarnation {id} was never issued")))
    }

    /// One that is not over.
    pub(super) fn incarnation_mut(&mut self, id: IncarnationId) -> Result<&mut Incarnation, Violation> {
        let unknown = || Violation::new(5, format!("incarnation {id} was never issued"));
        let found = self.incarnations.get_mut(&id).ok_or_else(unknown)?;
        demand!(5, !found.life.is_over(), "incarnation {id} is over, and changes");
        Ok(found)
    }

    pub(super) fn reserved(&mut self, fact: &IncarnationReserved, at: At) -> Check {
        let id = IncarnationId::issue(at.lineage, at.position);
        let name = &fact.replica;
        let operation = self.operation(fact.operation)?;
        demand!(
            6,
            operation.stage == Stage::Preparing,
            "operation {} takes a place, and looks for none",
            fact.operation
        );
        demand!(
            6,
            operation.replica == *name,
            "operation {} is on replica {}",
            fact.operation,
            operation.replica
        );
        match operation.kind {
            OperationKind::Create | OperationKind::Start => {}
            kind @ (OperationKind::Stop | OperationKind::Delete) => {
                return Err(Violation::new(6, format!("a {kind} takes a place")));
            }
        }
        operation.stage = Stage::Pending;
        operation.proposal = Some(fact.proposal);
        operation.incarnation = Some(id);
        let replica = self.replica(name)?;
        demand!(
            3,
            replica.live.is_none(),
            "replica {name} has a second incarnation before the first is over"
        );
        replica.live = Some(id);
        let (owner, deployment) = (replica.plan.clone(), replica.deployment.clone());
        demand!(
            6,
            deployment == fact.deployment,
            "replica {name} is of deployment {deployment}, and gets a place by another"
        );
        let plan = self.plan(&owner)?;
        let generation = plan.deployment(&deployment)?.generation;
        let spec = plan.spec(generation)?.clone();
        demand!(
            4,
            spec.amounts() == fact.amounts,
            "incarnation {id} holds {}, and its spec says {}",
            fact.amounts,
            spec.amounts()
        );
        demand!(4, spec.volumes() == fact.volumes, "incarnation {id} holds other storage than its spec says");
        let node = self.node(&fact.node)?;
        let homeless =
            || Violation::new(4, format!("a place is held on node {}, which is in no cluster", fact.node));
        let incarnation = Incarnation {
            replica: name.clone(),
            operation: fact.operation,
            node: fact.node.clone(),
            cluster: node.cluster.clone().ok_or_else(homeless)?,
            amounts: fact.amounts,
            volumes: fact.volumes.clone(),
            processes: spec.payloads.iter().map(|payload| usize::from(payload.processes)).sum(),
            life: Life::Reserved,
            revision: 0,
            command: None,
        };
        self.hold(&fact.node, &incarnation)?;
        self.incarnations.insert(id, incarnation);
        Ok(())
    }

    pub(super) fn commanded(&mut self, fact: &IncarnationCommanded) -> Check {
        let id = fact.incarnation;
        let incarnation = self.incarnation_mut(id)?;
        demand!(
            5,
            incarnation.replica == fact.replica,
            "incarnation {id} is of replica {}",
            incarnation.replica
        );
        // What an approved operation built is taken down without asking again; nothing else is.
        let allowed = matches!(
            (&incarnation.life, fact.effect),
            (Life::Creating | Life::Starting, Effect::Stop) | (Life::Stopping(_), Effect::Kill)
        );
        demand!(
            6,
            allowed,
            "a {} of incarnation {id}, which is {}, that nobody approved",
            fact.effect,
            word(&incarnation.life)
        );
        if let Life::Stopping(then) = &incarnation.life {
            demand!(6, *then == fact.then, "incarnation {id} forgets what it is to become");
        }
        incarnation.life = Life::Stopping(fact.then.clone());
        incarnation.command(fact.effect);
        Ok(())
    }

    pub(super) fn command_failed(&mut self, fact: &CommandFailed, at: At) -> Check {
        let id = fact.incarnation;
        let report = self.report(id, at)?;
        let saw = report.is_some_and(|r| matches!(r.saw, Saw::Failed { .. }) && r.revision == fact.revision);
        demand!(5, saw, "a command of incarnation {id} has failed, and nobody reported it");
        let incarnation = self.incarnation_mut(id)?;
        let current = incarnation.revision;
        demand!(
            5,
            fact.revision == current,
            "command {} of incarnation {id} fails, and {current} is the last",
            fact.revision
        );
        let Some((effect, attempt)) = incarnation.command else {
            return Err(Violation::new(
                6,
                format!("command {current} of incarnation {id} has a second outcome"),
            ));
        };
        demand!(
            5,
            fact.attempt == attempt,
            "attempt {} of incarnation {id} fails, and {attempt} is the last",
            fact.attempt
        );
        let is_tried_again = fact.not_before.is_some();
        demand!(6, is_tried_again || effect == Effect::Ensure, "a {effect} of incarnation {id} is given up");
        incarnation.command = is_tried_again.then_some((effect, attempt + 1));
        Ok(())
    }

    pub(super) fn ensured(&mut self, id: IncarnationId, at: At) -> Check {
        let current = self.incarnation(id)?.revision;
        let report = self.report(id, at)?;
        let saw = report.is_some_and(|r| {
            matches!(r.saw, Saw::Ensured { .. } | Saw::NotReady { .. }) && r.revision >= current
        });
        demand!(5, saw, "incarnation {id} is called started, and no report says so of its last command");
        let incarnation = self.incarnation_mut(id)?;
        demand!(
            5,
            incarnation.life == Life::Creating,
            "incarnation {id} is started, and was {}",
            word(&incarnation.life)
        );
        incarnation.life = Life::Starting;
        incarnation.command = None;
        Ok(())
    }

    pub(super) fn running(&mut self, id: IncarnationId, operation: Option<OperationId>, at: At) -> Check {
        let current = self.incarnation(id)?.revision;
        let report = self.report(id, at)?;
        let saw = report.is_some_and(|r| matches!(r.saw, Saw::Ready { .. }) && r.revision >= current);
        demand!(5, saw, "incarnation {id} is called ready, and no report says so of its last command");
        let incarnation = self.incarnation_mut(id)?;
        let before = matches!(incarnation.life, Life::Creating | Life::Starting);
        demand!(5, before, "incarnation {id} becomes ready, and was {}", word(&incarnation.life));
        incarnation.life = Life::Running;
        incarnation.command = None;
        let by = incarnation.operation;
        let waits = self.operation(by)?.stage == Stage::Running;
        demand!(
            6,
            operation == waits.then_some(by),
            "incarnation {id} is ready, and its operation {by} has no outcome by that"
        );
        if waits { self.close(by, &OperationEnd::Succeeded) } else { Ok(()) }
    }

    pub(super) fn status(&mut self, id: IncarnationId, at: At) -> Check {
        let current = self.incarnation(id)?.revision;
        let report = self.report(id, at)?;
        let saw = report.is_some_and(|r| {
            matches!(r.saw, Saw::Ready { .. } | Saw::Ensured { .. } | Saw::NotReady { .. })
                && r.revision >= current
        });
        demand!(5, saw, "the processes of incarnation {id} change, and no report says so");
        let incarnation = self.incarnation_mut(id)?;
        let up = matches!(incarnation.life, Life::Starting | Life::Running);
        demand!(5, up, "the processes of incarnation {id} change, and it is {}", word(&incarnation.life));
        Ok(())
    }

    pub(super) fn ended(&mut self, fact: &IncarnationEnded, at: At) -> Check {
        let id = fact.incarnation;
        let incarnation = self.incarnation_mut(id)?.clone();
        demand!(
            4,
            incarnation.node == fact.node,
            "incarnation {id} frees a place on {}, and holds one on {}",
            fact.node,
            incarnation.node
        );
        demand!(
            5,
            incarnation.replica == fact.replica,
            "incarnation {id} is of replica {}",
            incarnation.replica
        );
        let expunged = self.nodes.get(&fact.node).is_some_and(|node| node.state == NodeState::Expunged);
        let over = match &incarnation.life {
            Life::Reserved => {
                self.unwound(fact, incarnation.operation, expunged)?;
                Life::Over
            }
            life => {
                demand!(
                    5,
                    fact.displaces.is_none(),
                    "incarnation {id} displaces an operation, and was started"
                );
                self.proved(fact, life, incarnation.revision, expunged, at)?
            }
        };
        self.release(&incarnation)?;
        let ended = self.incarnation_mut(id)?;
        (ended.life, ended.command) = (over, None);
        self.replica(&fact.replica)?.live = None;
        Ok(())
    }

    /// The end of a place that nobody was asked to use.
    fn unwound(&mut self, fact: &IncarnationEnded, held_by: OperationId, expunged: bool) -> Check {
        let id = fact.incarnation;
        let unwound = matches!(fact.end, IncarnationEnd::Unwound { .. });
        demand!(5, unwound, "incarnation {id} was never started, and ends as if it had been");
        let operation = self.operation(held_by)?;
        match fact.displaces {
            Some(displaced) => {
                demand!(
                    6,
                    displaced == held_by,
                    "incarnation {id} displaces an operation that does not hold it"
                );
                demand!(6, expunged, "operation {held_by} loses its place, and the place is still there");
                demand!(
                    5,
                    operation.stage == Stage::Pending,
                    "operation {held_by} looks for a place again, and did not wait"
                );
                operation.stage = Stage::Preparing;
                (operation.proposal, operation.incarnation) = (None, None);
            }
            None => demand!(
                6,
                operation.stage == Stage::Over,
                "incarnation {id} goes, and operation {held_by} still holds it"
            ),
        }
        Ok(())
    }

    /// What one that was commanded becomes by the proof that the fact follows from.
    fn proved(
        &self,
        fact: &IncarnationEnded,
        life: &Life,
        revision: u32,
        expunged: bool,
        at: At,
    ) -> Result<Life, Violation> {
        let id = fact.incarnation;
        let proof = match self.report(id, at)? {
            Some(report) => match report.saw {
                Saw::Ended { .. } => true,
                Saw::Gone => report.revision >= revision,
                Saw::Ensured { .. } | Saw::Ready { .. } | Saw::NotReady { .. } | Saw::Failed { .. } => false,
            },
            None => false,
        };
        if !proof {
            demand!(6, expunged, "incarnation {id} is called over, and nothing proves it");
            demand!(
                5,
                matches!(fact.end, IncarnationEnd::Failed { .. }),
                "incarnation {id} went with its node, and is not called failed"
            );
            return Ok(Life::Expunged);
        }
        if let Life::Stopping(then) = life {
            demand!(
                5,
                fact.end == *then,
                "incarnation {id} ends otherwise than was remembered: {:?}",
                fact.end
            );
        }
        Ok(Life::Over)
    }
}
