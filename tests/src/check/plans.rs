//! Plans and replicas: how they are created and deleted, and invariant 7 for a user's stop.

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_events::fact::{PlanApplied, PlanDeletionStarted, ReplicaCreated, ReplicaDeploymentChanged};
use chancery_events::intent::{CascadePolicy, Intent};
use chancery_events::lifecycle::WillWord;
use chancery_events::name::{DeploymentName, PlanName, ReplicaName, VolumeName};
use chancery_events::spec::{BalancePolicy, ClusterActivity, OperationKind, PlanSpec};

use super::state::{
    CheckedFleet, Deployment, DeploymentStage, FactLocation, IncarnationProgress, LastInput, Plan, Replica,
    ReplicaCounts, UserStop,
};
use super::violation::{InvariantViolation, RuleResult, demand};

impl CheckedFleet {
    pub(super) fn plan(&mut self, name: &PlanName) -> Result<&mut Plan, InvariantViolation> {
        self.plans.get_mut(name).ok_or_else(|| InvariantViolation::new(5, format!("there is no plan {name}")))
    }

    pub(super) fn replica(&mut self, name: &ReplicaName) -> Result<&mut Replica, InvariantViolation> {
        self.replicas
            .get_mut(name)
            .ok_or_else(|| InvariantViolation::new(5, format!("there is no replica {name}")))
    }

    pub(super) fn plan_applied(&mut self, fact: &PlanApplied, at: FactLocation) -> RuleResult {
        let (name, generation) = (&fact.name, fact.generation);
        self.plan_may_become(name, &fact.spec, at)?;
        let plan = self.plans.entry(name.clone()).or_insert_with(|| Plan {
            activity: ClusterActivity::Active,
            is_removing: false,
            generation: 0,
            specs: BTreeMap::new(),
            versions: Vec::new(),
            deployments: BTreeMap::new(),
            current: None,
            next: None,
            started: None,
            carried_out: None,
            had_replicas: None,
            ended: 0,
            replicas: 0,
            balance: BalancePolicy::Even,
            rebalance: None,
            counts: BTreeMap::new(),
        });
        let next = plan.generation + 1;
        demand!(5, generation == next, "plan {name} has generation {generation}, and {next} is due");
        plan.generation = next;
        plan.specs.insert(next, Arc::new(fact.spec.clone()));
        Ok(())
    }

    pub(super) fn plan_removing(&mut self, fact: &PlanDeletionStarted, at: FactLocation) -> RuleResult {
        let name = &fact.name;
        let input = self.input_of(at);
        let asked = input.as_deref().and_then(LastInput::request).is_some_and(|request| {
            request.actor == fact.requested_by
                && matches!(&request.intent, Intent::PlanDelete(ask)
                    if ask.name == *name && ask.cascade == CascadePolicy::Yes)
        });
        demand!(
            6,
            asked,
            "plan {name} is deleted with everything it has, and {} did not request that",
            fact.requested_by
        );
        self.may_remove(name, at)?;
        let plan = self.plan(name)?;
        demand!(5, !plan.is_removing, "the deletion of plan {name} starts a second time");
        plan.is_removing = true;
        Ok(())
    }

    pub(super) fn plan_deleted(&mut self, name: &PlanName, at: FactLocation) -> RuleResult {
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::PlanDelete(ask)) if ask.name == *name
        );
        let plan = self.plan(name)?;
        demand!(6, asked || plan.is_removing, "plan {name} is deleted without a request");
        demand!(4, plan.replicas == 0, "plan {name} is deleted, and has {} replicas", plan.replicas);
        let busy = plan.current.is_some() || plan.next.is_some();
        demand!(6, !busy, "plan {name} is deleted, and a deployment of it is not over");
        self.plans.remove(name);
        Ok(())
    }

    pub(super) fn replica_created(&mut self, fact: &ReplicaCreated, at: FactLocation) -> RuleResult {
        let (name, by) = (&fact.name, &fact.deployment);
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::ReplicaCreate(ask)) if ask.plan == fact.plan
        );
        let plan = self.plan(&fact.plan)?;
        if asked {
            demand!(
                6,
                plan.activity == ClusterActivity::Active,
                "plan {} is inactive, and gets {name}",
                fact.plan
            );
            let busy = plan.current.is_some() || plan.next.is_some() || plan.is_removing;
            demand!(6, !busy, "replica {name} is created, and a deployment determines their number");
            let last = plan.carried_out.as_ref() == Some(by);
            demand!(6, last, "replica {name} is of deployment {by}, which is not the last carried out");
        } else {
            plan.lacks_one(name, by)?;
        }
        let deployment = plan.deployment(by)?;
        if !asked {
            deployment.created.insert(name.clone());
        }
        let generation = deployment.generation;
        let service = &plan.spec(generation)?.service;
        let due = ReplicaName::issue(service, at.position);
        demand!(5, due == *name, "replica {name} has not the name that its position issues, {due}");
        plan.replicas += 1;
        let replica = Replica {
            plan: fact.plan.clone(),
            deployment: by.clone(),
            created_by: (!asked).then(|| by.clone()),
            desired: WillWord::Proposed,
            open: Vec::new(),
            active: None,
            secondary: None,
            is_going: false,
            stop: None,
            downed: false,
            recovers: false,
            next_restart: None,
            last_restart: None,
            counted: None,
        };
        self.replicas.insert(name.clone(), replica);
        Ok(())
    }

    pub(super) fn replica_assigned(&mut self, fact: &ReplicaDeploymentChanged) -> RuleResult {
        let (name, to) = (&fact.name, &fact.deployment);
        let replica = self.replica(name)?;
        demand!(5, replica.plan == fact.plan, "replica {name} is of plan {}", replica.plan);
        let runs = replica.active.or(replica.secondary);
        demand!(6, runs.is_none(), "replica {name} becomes one of {to}, and runs as another");
        demand!(6, replica.open.is_empty(), "replica {name} becomes one of {to} during an operation on it");
        let from = replica.deployment.clone();
        let plan = self.plan(&fact.plan)?;
        plan.must_be_in_progress(to, "a replica becomes one of it")?;
        let other = plan.deployment(&from)?.version != plan.deployment(to)?.version;
        demand!(6, other, "replica {name} of {from} becomes one of {to}, which is the same");
        plan.may_touch_old(to, "a replica becomes one of it")?;
        let replica = self.replica(name)?;
        replica.deployment = to.clone();
        replica.last_restart = None;
        Ok(())
    }

    pub(super) fn replica_deleted(&mut self, name: &ReplicaName, volumes: &[VolumeName]) -> RuleResult {
        self.leave_volumes(name, volumes)?;
        let replica = self.replica(name)?;
        let lives = replica.active.or(replica.secondary);
        demand!(4, lives.is_none(), "replica {name} is deleted, and has a reservation");
        demand!(6, replica.open.is_empty(), "replica {name} is deleted, and an operation on it is not over");
        let may_go = replica.is_going || replica.desired == WillWord::Proposed;
        demand!(6, may_go, "replica {name} is deleted, and no delete of it was carried out");
        let (plan, by) = (replica.plan.clone(), replica.created_by.clone());
        self.recount(name, ReplicaPresence::Gone);
        let plan = self.plan(&plan)?;
        plan.replicas -= 1;
        if let Some(deployment) = by.and_then(|by| plan.deployments.get_mut(&by)) {
            deployment.created.remove(name);
        }
        self.replicas.remove(name);
        Ok(())
    }

    /// Whether a delete of the replica was approved, or is requested.
    pub(super) fn is_going(&self, replica: &Replica) -> bool {
        let deletes = |id| self.operations.get(id).is_some_and(|of| of.kind == OperationKind::Delete);
        replica.desired == WillWord::Deleted || replica.open.iter().any(deletes)
    }

    /// Counts a replica again in its plan, after a fact about it.
    pub(super) fn recount(&mut self, name: &ReplicaName, presence: ReplicaPresence) {
        let Some(replica) = self.replicas.get(name) else { return };
        let stays = presence == ReplicaPresence::Kept && !self.is_going(replica);
        let new = stays.then(|| (replica.deployment.clone(), self.count(replica)));
        if new == replica.counted {
            return;
        }
        let Some(plan) = self.plans.get_mut(&replica.plan) else { return };
        if let Some((of, count)) = &replica.counted {
            let left = plan.counts.get(of).map(|all| all.less(*count)).filter(|left| left.present > 0);
            match left {
                Some(left) => plan.counts.insert(of.clone(), left),
                None => plan.counts.remove(of),
            };
        }
        if let Some((of, count)) = &new {
            let all = plan.counts.entry(of.clone()).or_default();
            *all = all.and(*count);
        }
        if let Some(replica) = self.replicas.get_mut(name) {
            replica.counted = new;
        }
    }

    /// Returns the contribution of a replica that is not being deleted.
    fn count(&self, replica: &Replica) -> ReplicaCounts {
        let active = replica.active.and_then(|id| self.incarnations.get(&id));
        let ready =
            active.is_some_and(|active| active.progress == IncarnationProgress::Running && active.is_ready);
        let up = active.is_some_and(|active| active.progress.is_up());
        let quiet = replica.open.is_empty();
        let down = replica.active.is_none() && replica.secondary.is_none();
        ReplicaCounts {
            present: 1,
            ready: u64::from(ready),
            ailing: u64::from(up && !ready && quiet),
            idle: u64::from(replica.desired == WillWord::Running && down && quiet),
        }
    }

    /// Notes an accepted intent: a user's request for a replica is in force until a newer one of a user.
    pub(super) fn wanted(&mut self, input: &LastInput) {
        let (name, stops) = match input.intent() {
            Some(Intent::ReplicaStop(ask)) => (&ask.name, true),
            Some(Intent::ReplicaStart(ask)) => (&ask.name, false),
            Some(Intent::ReplicaRestart(ask)) => (&ask.name, false),
            _ => return,
        };
        let Some(replica) = self.replicas.get_mut(name) else { return };
        let operation = replica.stop.and_then(|stop| stop.operation);
        replica.stop = stops.then_some(UserStop { at: input.position, operation });
    }
}

/// Whether a replica exists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplicaPresence {
    Kept,
    Gone,
}

impl ReplicaCounts {
    fn and(self, other: ReplicaCounts) -> ReplicaCounts {
        ReplicaCounts {
            present: self.present + other.present,
            ready: self.ready + other.ready,
            ailing: self.ailing + other.ailing,
            idle: self.idle + other.idle,
        }
    }

    fn less(self, other: ReplicaCounts) -> ReplicaCounts {
        ReplicaCounts {
            present: self.present - other.present,
            ready: self.ready - other.ready,
            ailing: self.ailing - other.ailing,
            idle: self.idle - other.idle,
        }
    }
}

impl Plan {
    pub(super) fn deployment(
        &mut self,
        name: &DeploymentName,
    ) -> Result<&mut Deployment, InvariantViolation> {
        let unknown = || InvariantViolation::new(5, format!("there is no deployment {name}"));
        self.deployments.get_mut(name).ok_or_else(unknown)
    }

    pub(super) fn spec(&self, generation: u32) -> Result<&Arc<PlanSpec>, InvariantViolation> {
        let unknown = || InvariantViolation::new(5, format!("there is no generation {generation}"));
        self.specs.get(&generation).ok_or_else(unknown)
    }

    /// Returns the spec of the deployment's replicas.
    pub(super) fn spec_of(
        &mut self,
        deployment: &DeploymentName,
    ) -> Result<Arc<PlanSpec>, InvariantViolation> {
        let generation = self.deployment(deployment)?.generation;
        self.spec(generation).map(Arc::clone)
    }

    /// Returns the latest spec.
    pub(super) fn latest(&self) -> Result<&Arc<PlanSpec>, InvariantViolation> {
        self.spec(self.generation)
    }

    /// Counts replicas that are not being deleted: those of the version, and all others.
    pub(super) fn sets(&self, version: usize) -> (ReplicaCounts, ReplicaCounts) {
        let (mut right, mut other) = (ReplicaCounts::default(), ReplicaCounts::default());
        for (name, count) in &self.counts {
            let same = self.deployments.get(name).is_some_and(|of| of.version == version);
            let set = if same { &mut right } else { &mut other };
            *set = set.and(*count);
        }
        (right, other)
    }

    /// Checks that the deployment is in progress, and neither paused nor ending.
    pub(super) fn must_be_in_progress(&mut self, name: &DeploymentName, what: &str) -> RuleResult {
        let turn = self.current.as_ref() == Some(name);
        demand!(6, turn, "{what}, and deployment {name} is not in progress");
        let stage = &self.deployment(name)?.stage;
        let in_progress = *stage == DeploymentStage::InProgress;
        demand!(6, in_progress, "{what}, and deployment {name} is paused or ending");
        Ok(())
    }
}
