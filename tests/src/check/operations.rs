//! Operations; invariant 6: nothing is done but what somebody entitled approved, exactly as it was shown.

use chancery_events::fact::{
    Approver, Effect, IncarnationEnd, OperationApproved, OperationEnd, OperationEnded, OperationOpened,
};
use chancery_events::id::OperationId;
use chancery_events::intent::Intent;
use chancery_events::spec::{Approval, OperationKind};

use super::state::{At, Debt, DeploymentStage, Input, Life, Operation, Said, Stage, Stop, World};
use super::violation::{Check, Violation, demand};

/// Whether the kind brings its replica up.
const fn is_up(kind: OperationKind) -> bool {
    match kind {
        OperationKind::Create | OperationKind::Start => true,
        OperationKind::Stop | OperationKind::Delete => false,
    }
}

impl World {
    pub(super) fn operation(&mut self, id: OperationId) -> Result<&mut Operation, Violation> {
        self.operations
            .get_mut(&id)
            .ok_or_else(|| Violation::new(5, format!("operation {id} was never opened")))
    }

    pub(super) fn operation_opened(&mut self, fact: &OperationOpened, at: At) -> Check {
        let (name, kind) = (&fact.replica, fact.kind);
        let id = OperationId::issue(at.lineage, at.position);
        let input = self.input_of(at);
        let replica = self.replica(name)?;
        let stop = replica.stop.filter(|_| is_up(kind));
        if let Some(stop) = stop {
            return Err(undone(name, kind, stop));
        }
        demand!(6, replica.open.len() < 2, "a third operation is open on replica {name}");
        let fresh = kind != OperationKind::Create || (replica.open.is_empty() && !replica.was_approved);
        demand!(6, fresh, "replica {name} is created a second time");
        demand!(
            6,
            is_up(kind) == fact.proposal.is_none(),
            "a {kind} proposes before it has found its place, or not at all"
        );
        replica.open.push(id);
        let plan = replica.plan.clone();
        if let Some(deployment) = &fact.deployment {
            let owner = self.plan(&plan)?;
            let turn = owner.current.as_ref() == Some(deployment);
            demand!(6, turn, "a {kind} of {name} is of deployment {deployment}, which is not in progress");
            let found = owner.deployment(deployment)?;
            let goes_on = found.stage == DeploymentStage::InProgress;
            demand!(6, goes_on, "a {kind} of {name} is of deployment {deployment}, which is ending");
            found.open += 1;
        } else {
            let asked = match input.as_deref().and_then(Input::intent) {
                Some(Intent::ReplicaStart(ask)) => ask.name == *name && kind == OperationKind::Start,
                Some(Intent::ReplicaStop(ask)) => ask.name == *name && kind == OperationKind::Stop,
                Some(Intent::ReplicaDelete(ask)) => ask.name == *name && kind == OperationKind::Delete,
                _ => false,
            };
            demand!(6, asked, "a {kind} of {name} is opened, and neither a deployment nor a user asked");
        }
        if let (OperationKind::Stop, Some(stop)) = (kind, &mut self.replica(name)?.stop) {
            stop.operation = Some(id);
        }
        let operation = Operation {
            replica: name.clone(),
            plan,
            kind,
            deployment: fact.deployment.clone(),
            stage: if fact.proposal.is_some() { Stage::Pending } else { Stage::Preparing },
            proposal: fact.proposal,
            incarnation: None,
            is_parked: false,
        };
        self.operations.insert(id, operation);
        Ok(())
    }

    pub(super) fn operation_approved(&mut self, fact: &OperationApproved, at: At) -> Check {
        let id = fact.operation;
        let operation = self.operation(id)?.clone();
        let (name, kind) = (&operation.replica, operation.kind);
        demand!(5, operation.stage != Stage::Over, "operation {id} is over, and is approved");
        demand!(6, operation.stage == Stage::Pending, "operation {id} is approved, and does not wait for it");
        demand!(
            6,
            fact.replica == *name,
            "operation {id} is on replica {name}, and approved for {}",
            fact.replica
        );
        let Some(proposal) = operation.proposal else {
            return Err(Violation::new(6, format!("operation {id} is approved, and nothing was proposed")));
        };
        demand!(
            6,
            proposal.hash == fact.hash,
            "operation {id} is approved on another hash than was proposed"
        );
        let in_time = operation.is_parked || at.time < proposal.expires;
        demand!(6, in_time, "operation {id} is approved after it expired");
        self.entitled(fact, &operation, at)?;
        let replica = self.replica(name)?;
        if let Some(stop) = replica.stop.filter(|_| is_up(kind)) {
            return Err(undone(name, kind, stop));
        }
        replica.was_approved = true;
        let (open, live) = (replica.open.clone(), replica.live);
        let beside =
            open.iter().find(|other| self.operations.get(other).is_some_and(|o| o.stage == Stage::Running));
        demand!(6, beside.is_none(), "operation {id} runs beside another one on replica {name}");
        if is_up(kind) {
            demand!(
                6,
                fact.incarnation == operation.incarnation,
                "operation {id} is approved for another incarnation than it holds"
            );
            let Some(held) = fact.incarnation else {
                return Err(Violation::new(6, format!("operation {id} is approved, and holds no place")));
            };
            let incarnation = self.incarnation_mut(held)?;
            demand!(5, incarnation.life == Life::Reserved, "incarnation {held} is started a second time");
            incarnation.life = Life::Creating;
            incarnation.command(Effect::Ensure);
        } else {
            let live =
                live.filter(|live| self.incarnations.get(live).is_some_and(|i| i.life != Life::Reserved));
            demand!(
                6,
                fact.incarnation == live,
                "operation {id} is approved for another incarnation than runs"
            );
            if let Some(live) = live {
                let incarnation = self.incarnation_mut(live)?;
                if !matches!(incarnation.life, Life::Stopping(_)) {
                    incarnation.command(Effect::Stop);
                }
                incarnation.life = Life::Stopping(IncarnationEnd::Destroyed);
            }
        }
        self.operation(id)?.stage = Stage::Running;
        Ok(())
    }

    /// Whether whoever approved may.
    fn entitled(&mut self, fact: &OperationApproved, operation: &Operation, at: At) -> Check {
        let (id, kind) = (fact.operation, operation.kind);
        match &fact.by {
            Approver::Rule(rule) => {
                let name = &operation.plan;
                let plan = self.plan(name)?;
                let policy = plan.spec(plan.generation)?.approval.of(kind);
                demand!(
                    6,
                    policy == Approval::Automatic,
                    "rule {rule} approves operation {id}, and plan {name} wants a person to"
                );
                let own = format!("plan/{name}/approval/{kind}");
                demand!(6, *rule == own, "operation {id} is approved by rule {rule}, not by {own}");
            }
            Approver::Actor(actor) => {
                let input = self.input_of(at);
                let asked = input.as_deref().is_some_and(|input| {
                    input.said == Said::Accepted
                        && input.request().is_some_and(|request| {
                            request.actor == *actor
                                && matches!(&request.intent, Intent::OperationApprove(ask)
                                    if ask.operations.iter().any(|shown| shown.operation == id && shown.hash == fact.hash))
                        })
                });
                demand!(6, asked, "operation {id} is called approved by {actor}, who did not approve this");
            }
        }
        Ok(())
    }

    pub(super) fn operation_ended(&mut self, fact: &OperationEnded, at: At) -> Check {
        let id = fact.operation;
        let operation = self.operation(id)?.clone();
        let (stage, kind) = (operation.stage, operation.kind);
        demand!(5, stage != Stage::Over, "operation {id} ends a second time");
        demand!(5, fact.replica == operation.replica, "operation {id} is on replica {}", operation.replica);
        match &fact.end {
            OperationEnd::Succeeded => {
                let live = self.replica(&operation.replica)?.live;
                let done = stage == Stage::Running && !is_up(kind) && live.is_none();
                demand!(6, done, "operation {id}, a {kind}, is called a success, and is not done");
            }
            OperationEnd::Failed { .. } => {
                let left = operation.incarnation.and_then(|held| self.incarnations.get(&held));
                let settled = left
                    .is_none_or(|i| i.life.is_over() || matches!(i.life, Life::Reserved | Life::Stopping(_)));
                demand!(6, settled, "operation {id} fails, and what it started goes on");
            }
            OperationEnd::Rejected { by, .. } => {
                demand!(6, stage != Stage::Running, "operation {id} is rejected, and runs");
                let input = self.input_of(at);
                let asked = input.as_deref().and_then(Input::request).is_some_and(|request| {
                    request.actor == *by
                        && matches!(&request.intent, Intent::OperationReject(ask) if ask.operations.contains(&id))
                });
                demand!(6, asked, "operation {id} is called rejected by {by}, who did not reject it");
            }
            OperationEnd::Expired => {
                let due = operation.proposal.is_some_and(|proposal| proposal.expires <= at.time);
                demand!(6, stage == Stage::Pending && due, "operation {id} expires before its time");
            }
            OperationEnd::Cancelled { .. } => {
                demand!(6, stage != Stage::Running, "operation {id} is cancelled, and runs");
            }
            OperationEnd::Superseded { by } => {
                self.debts.push(Debt::Opened(*by, operation.replica.clone()));
            }
        }
        self.close(id, &fact.end)
    }

    /// Lets an operation be over.
    pub(super) fn close(&mut self, id: OperationId, end: &OperationEnd) -> Check {
        let operation = self.operation(id)?;
        operation.stage = Stage::Over;
        let (name, plan, kind) = (operation.replica.clone(), operation.plan.clone(), operation.kind);
        let (deployment, held) = (operation.deployment.clone(), operation.incarnation);
        if let Some(deployment) = deployment {
            self.plan(&plan)?.deployment(&deployment)?.open -= 1;
        }
        if let Some(held) =
            held.filter(|held| self.incarnations.get(held).is_some_and(|i| i.life == Life::Reserved))
        {
            self.debts.push(Debt::Freed(held));
        }
        let replica = self.replica(&name)?;
        replica.open.retain(|open| *open != id);
        let succeeded = *end == OperationEnd::Succeeded;
        if succeeded && kind == OperationKind::Delete {
            replica.is_going = true;
        }
        // A stop that came to nothing is no stop.
        if !succeeded && replica.stop.is_some_and(|stop| stop.operation == Some(id)) {
            replica.stop = None;
        }
        Ok(())
    }
}

fn undone(name: &chancery_events::name::ReplicaName, kind: OperationKind, stop: Stop) -> Violation {
    Violation::new(7, format!("a {kind} undoes the stop of replica {name} that a user wanted at {}", stop.at))
}
