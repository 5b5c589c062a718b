//! Plans, deployments and replicas; invariant 5 for deployments, 7 for a user's stop.

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_events::fact::{
    DeploymentCreated, DeploymentEnd, DeploymentEnded, DeploymentEnding, PlanApplied, ReplicaCreated,
};
use chancery_events::intent::Intent;
use chancery_events::name::{DeploymentName, PlanName, ReplicaName};
use chancery_events::spec::Activity;

use super::state::{At, Debt, Deployment, DeploymentStage, Input, Plan, Replica, Stop, World};
use super::violation::{Check, Violation, demand};

/// Deployments that are over are remembered until there are so many newer ones; then a name is free again.
const KEPT: u64 = 20;

impl World {
    pub(super) fn plan(&mut self, name: &PlanName) -> Result<&mut Plan, Violation> {
        self.plans.get_mut(name).ok_or_else(|| Violation::new(5, format!("there is no plan {name}")))
    }

    pub(super) fn replica(&mut self, name: &ReplicaName) -> Result<&mut Replica, Violation> {
        self.replicas.get_mut(name).ok_or_else(|| Violation::new(5, format!("there is no replica {name}")))
    }

    pub(super) fn plan_applied(&mut self, fact: &PlanApplied) -> Check {
        let (name, generation) = (&fact.name, fact.generation);
        let plan = self.plans.entry(name.clone()).or_insert_with(|| Plan {
            activity: Activity::Active,
            generation: 0,
            specs: BTreeMap::new(),
            deployments: BTreeMap::new(),
            current: None,
            next: None,
            ended: 0,
            replicas: 0,
        });
        let next = plan.generation + 1;
        demand!(5, generation == next, "generation {generation} of plan {name} stands where {next} is due");
        plan.generation = next;
        plan.specs.insert(next, Arc::new(fact.spec.clone()));
        Ok(())
    }

    pub(super) fn plan_deleted(&mut self, name: &PlanName) -> Check {
        let plan = self.plan(name)?;
        demand!(4, plan.replicas == 0, "plan {name} is deleted, and has {} replicas", plan.replicas);
        let busy = plan.current.is_some() || plan.next.is_some();
        demand!(6, !busy, "plan {name} is deleted, and a deployment of it is not over");
        self.plans.remove(name);
        Ok(())
    }

    pub(super) fn deployment_created(&mut self, fact: &DeploymentCreated, at: At) -> Check {
        let (owner, name) = (&fact.plan, &fact.name);
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(Input::intent),
            Some(Intent::DeploymentCreate(ask)) if ask.plan == *owner && ask.name == *name && ask.spec == fact.spec
        );
        demand!(6, asked, "deployment {name} of {owner} is not what somebody asked for");
        let plan = self.plan(owner)?;
        demand!(
            6,
            plan.activity == Activity::Active,
            "plan {owner} is inactive, and takes deployment {name}"
        );
        demand!(
            5,
            plan.generation == fact.generation,
            "deployment {name} is not of the latest generation of {owner}"
        );
        demand!(6, plan.next.is_none(), "two deployments of {owner} wait for their turn");
        let again = plan.deployments.get(name).is_none_or(
            |old| matches!(old.stage, DeploymentStage::Over(before) if plan.ended - before > KEPT),
        );
        demand!(5, again, "deployment {name} of {owner} begins again");
        let (generation, stage) = (fact.generation, DeploymentStage::Pending);
        plan.deployments.insert(name.clone(), Deployment { generation, stage, open: 0 });
        plan.next = Some(name.clone());
        Ok(())
    }

    pub(super) fn deployment_started(&mut self, owner: &PlanName, name: &DeploymentName) -> Check {
        let plan = self.plan(owner)?;
        demand!(5, plan.current.is_none(), "deployment {name} of {owner} begins beside another one");
        demand!(5, plan.next.as_ref() == Some(name), "deployment {name} of {owner} begins, and did not wait");
        plan.current = plan.next.take();
        plan.deployment(name)?.stage = DeploymentStage::InProgress;
        Ok(())
    }

    pub(super) fn deployment_ending(&mut self, fact: &DeploymentEnding) -> Check {
        let deployment = self.plan(&fact.plan)?.deployment(&fact.name)?;
        let goes_on = deployment.stage == DeploymentStage::InProgress;
        demand!(5, goes_on, "deployment {} of {} is ending, and was not in progress", fact.name, fact.plan);
        deployment.stage = DeploymentStage::Ending(fact.why.clone());
        Ok(())
    }

    pub(super) fn deployment_ended(&mut self, fact: &DeploymentEnded) -> Check {
        let (owner, name) = (&fact.plan, &fact.name);
        let plan = self.plan(owner)?;
        let before = plan.ended;
        let deployment = plan.deployment(name)?;
        let right = match &deployment.stage {
            DeploymentStage::Over(_) => {
                return Err(Violation::new(5, format!("deployment {name} of {owner} ends a second time")));
            }
            DeploymentStage::Pending => !matches!(fact.end, DeploymentEnd::Completed),
            DeploymentStage::InProgress => fact.end == DeploymentEnd::Completed,
            DeploymentStage::Ending(why) => fact.end == *why,
        };
        demand!(
            5,
            right,
            "deployment {name} of {owner} ends otherwise than its state allows: {:?}",
            fact.end
        );
        let open = deployment.open;
        demand!(6, open == 0, "deployment {name} of {owner} ends, and {open} operations of it are not over");
        deployment.stage = DeploymentStage::Over(before);
        plan.ended += 1;
        for slot in [&mut plan.current, &mut plan.next] {
            if slot.as_ref() == Some(name) {
                *slot = None;
            }
        }
        if let DeploymentEnd::Superseded { by } = &fact.end {
            self.debts.push(Debt::Created(owner.clone(), by.clone()));
        }
        Ok(())
    }

    pub(super) fn replica_created(&mut self, fact: &ReplicaCreated, at: At) -> Check {
        let name = &fact.name;
        let plan = self.plan(&fact.plan)?;
        let turn = plan.current.as_ref() == Some(&fact.deployment);
        demand!(6, turn, "replica {name} is of deployment {}, which is not in progress", fact.deployment);
        let deployment = plan.deployment(&fact.deployment)?;
        let goes_on = deployment.stage == DeploymentStage::InProgress;
        demand!(6, goes_on, "replica {name} is of deployment {}, which is ending", fact.deployment);
        let generation = deployment.generation;
        let service = &plan.spec(generation)?.service;
        let due = ReplicaName::issue(service, at.position);
        demand!(5, due == *name, "replica {name} has not the name that its position issues, {due}");
        plan.replicas += 1;
        let replica = Replica {
            plan: fact.plan.clone(),
            deployment: fact.deployment.clone(),
            open: Vec::new(),
            live: None,
            was_approved: false,
            is_going: false,
            stop: None,
        };
        self.replicas.insert(name.clone(), replica);
        Ok(())
    }

    pub(super) fn replica_deleted(&mut self, name: &ReplicaName) -> Check {
        let replica = self.replica(name)?;
        demand!(4, replica.live.is_none(), "replica {name} is deleted, and holds a place");
        demand!(6, replica.open.is_empty(), "replica {name} is deleted, and an operation on it is not over");
        let may_go = replica.is_going || !replica.was_approved;
        demand!(6, may_go, "replica {name} is deleted, and no delete of it was carried out");
        let plan = replica.plan.clone();
        self.plan(&plan)?.replicas -= 1;
        self.replicas.remove(name);
        Ok(())
    }

    /// An intent was accepted: what a user wants of a replica holds until a user wants something newer.
    pub(super) fn wanted(&mut self, input: &Input) {
        let (name, stops) = match input.intent() {
            Some(Intent::ReplicaStop(ask)) => (&ask.name, true),
            Some(Intent::ReplicaStart(ask)) => (&ask.name, false),
            _ => return,
        };
        let Some(replica) = self.replicas.get_mut(name) else { return };
        let operation = replica.stop.and_then(|stop| stop.operation);
        replica.stop = stops.then_some(Stop { at: input.position, operation });
    }
}

impl Plan {
    pub(super) fn deployment(&mut self, name: &DeploymentName) -> Result<&mut Deployment, Violation> {
        let unknown = || Violation::new(5, format!("there is no deployment {name}"));
        self.deployments.get_mut(name).ok_or_else(unknown)
    }

    pub(super) fn spec(&self, generation: u32) -> Result<&Arc<chancery_events::spec::PlanSpec>, Violation> {
        let unknown = || Violation::new(5, format!("there is no generation {generation}"));
        self.specs.get(&generation).ok_or_else(unknown)
    }
}
