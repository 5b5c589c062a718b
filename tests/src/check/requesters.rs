//! Requesters of operations; invariant 6: a deployment in progress, a person, or a rule that applies.

use chancery_events::fact::{OperationCreated, Requester};
use chancery_events::intent::Intent;
use chancery_events::lifecycle::WillWord;
use chancery_events::name::{DeploymentName, DisruptionName, NodeName};
use chancery_events::spec::{ClusterRuntime, OperationKind};

use super::state::{
    CheckedFleet, DeploymentStage, FactLocation, LastInput, Operation, OperationProgress, Replica,
};
use super::violation::{InvariantViolation, RuleResult, demand};

impl CheckedFleet {
    /// Checks that the operation was requested, by an allowed requester.
    pub(super) fn asked_for(
        &mut self,
        fact: &OperationCreated,
        replica: &Replica,
        at: FactLocation,
    ) -> RuleResult {
        let (name, kind) = (&fact.replica, fact.kind);
        demand!(
            6,
            fact.version.is_some() == (kind == OperationKind::Update),
            "a {kind} of {name} names a version, or an update names none"
        );
        match (&fact.deployment, &fact.requested_by) {
            (Some(deployment), None) => self.deployment_asks(fact, replica, deployment),
            (Some(deployment), Some(Requester::Rule(rule))) => {
                self.rollback_asks(fact, replica, deployment, rule)
            }
            (None, Some(Requester::Rule(rule))) => self.rule_asks(fact, replica, rule, at),
            (None, Some(Requester::Disruption { node, name })) => {
                self.disruption_asks(fact, replica, node, name, at)
            }
            (None, Some(Requester::Actor(_))) if fact.purpose.is_some() => self.rebalance_asks(fact, replica),
            (None, None | Some(Requester::Actor(_))) => {
                let input = self.input_of(at);
                let asked = input.as_deref().and_then(LastInput::request).is_some_and(|request| {
                    let own = match &fact.requested_by {
                        Some(Requester::Actor(actor)) => *actor == request.actor,
                        _ => true,
                    };
                    own && asks(&request.intent, fact, replica)
                });
                let still = (name.clone(), fact.requested_by.clone(), fact.node.clone());
                let asked = asked || kind == OperationKind::Start && self.now.replaced.contains(&still);
                demand!(6, asked, "a {kind} of {name} is opened, and neither a deployment nor a user asked");
                Ok(())
            }
            (Some(_), Some(Requester::Actor(_) | Requester::Disruption { .. })) => {
                Err(InvariantViolation::new(6, format!("two ask for a {kind} of {name}")))
            }
        }
    }

    fn deployment_asks(
        &mut self,
        fact: &OperationCreated,
        replica: &Replica,
        by: &DeploymentName,
    ) -> RuleResult {
        let (name, kind) = (&fact.replica, fact.kind);
        let what = format!("a {kind} of {name} is opened");
        let plan = self.plan(&replica.plan)?;
        plan.must_be_in_progress(by, &what)?;
        let deployment = plan.deployment(by)?.clone();
        let (right, other) = plan.sets(deployment.version);
        let of_version = plan.deployment(&replica.deployment)?.version == deployment.version;
        demand!(6, fact.node.is_none(), "{what} for deployment {by}, which wants it on {:?}", fact.node);
        match kind {
            OperationKind::Create => {
                demand!(6, replica.created_by.as_ref() == Some(by), "{what} for another than created it");
            }
            OperationKind::Start => {
                let wanted = of_version && replica.desired == WillWord::Running;
                demand!(6, wanted, "{what}, which deployment {by} does not want to run");
            }
            OperationKind::Update => {
                demand!(6, fact.version.as_ref() == Some(by), "{what} to another version than that of {by}");
                demand!(6, !of_version, "{what}, which has the version of deployment {by}");
                plan.may_touch_old(by, &what)?;
            }
            OperationKind::Delete => {
                let (there, count) = (right.present + other.present, u64::from(deployment.spec.count));
                demand!(6, there > count, "{what}, and deployment {by} has {there} of {count}");
                if !of_version {
                    plan.may_touch_old(by, &what)?;
                }
            }
            OperationKind::Relocate
            | OperationKind::Restart
            | OperationKind::Reboot
            | OperationKind::Stop => {
                return Err(InvariantViolation::new(6, format!("{what} for deployment {by}")));
            }
        }
        Ok(())
    }

    /// Checks a rollback's delete. A deployment that ends before its new set counts deletes that set; a
    /// cancelled or superseded one, what it was creating.
    fn rollback_asks(
        &mut self,
        fact: &OperationCreated,
        replica: &Replica,
        by: &DeploymentName,
        rule: &str,
    ) -> RuleResult {
        let what = format!("a {} of {} is opened by rule {rule}", fact.kind, fact.replica);
        let own = format!("deployment/{}/{by}/rollback", replica.plan);
        demand!(6, rule == own && fact.kind == OperationKind::Delete, "{what}, which is not for that");
        demand!(6, replica.created_by.as_ref() == Some(by), "{what}, and another deployment created that");
        let mut open = replica.open.iter().filter_map(|open| self.operations.get(open));
        let is_created = open.any(|open| {
            let runs = open.stage == OperationProgress::Running && open.kind == OperationKind::Create;
            runs && self.aborts_since(open).is_some()
        });
        // Its create never started: it was queued, or its reservation was released.
        let was_queued = self.operations.values().any(|of| {
            let never = of.begun.is_none();
            of.replica == fact.replica && of.kind == OperationKind::Create && never
        });
        let deployment = self.plan(&replica.plan)?.deployment(by)?;
        let ending = matches!(deployment.stage, DeploymentStage::Ending(..));
        let alongside = deployment.runs_alongside();
        let may = ending && (alongside || is_created || was_queued);
        demand!(11, may, "{what}, and its new set counts, or continues");
        Ok(())
    }

    fn rule_asks(
        &mut self,
        fact: &OperationCreated,
        replica: &Replica,
        rule: &str,
        at: FactLocation,
    ) -> RuleResult {
        let what = format!("a {} of {} is opened by rule {rule}", fact.kind, fact.replica);
        demand!(6, fact.node.is_none(), "{what}, which wants it on {:?}", fact.node);
        if rule == format!("plan/{}/restart", replica.plan) {
            demand!(6, fact.kind == OperationKind::Start, "{what}, which is for starts");
            let wanted = replica.desired == WillWord::Running;
            demand!(7, wanted, "{what}, and it should not run");
            let promised = replica.next_restart.is_some_and(|again| again.not_before <= at.time);
            demand!(6, promised, "{what}, and that was not promised, or for later");
            return Ok(());
        }
        let removes = rule == format!("plan/{}/removal", replica.plan) && fact.kind == OperationKind::Delete;
        demand!(6, removes, "{what}, and there is no such rule");
        demand!(6, self.plan(&replica.plan)?.is_removing, "{what}, and the plan is not to go");
        Ok(())
    }

    fn disruption_asks(
        &mut self,
        fact: &OperationCreated,
        replica: &Replica,
        node: &NodeName,
        name: &DisruptionName,
        at: FactLocation,
    ) -> RuleResult {
        let what = format!("a {} of {} is opened for disruption {name} of {node}", fact.kind, fact.replica);
        demand!(6, fact.kind == OperationKind::Relocate && fact.node.is_none(), "{what}, which is no move");
        let on = self.node(node)?;
        let domain = on.spec.domain.clone();
        let empties = on.disruptions.get(name).is_some_and(|disruption| disruption.empties(at.time));
        demand!(6, empties, "{what}, which does not empty its node now");
        let active = replica.active.and_then(|id| self.incarnations.get(&id));
        demand!(6, active.is_some_and(|active| active.node == *node), "{what}, and it is not there");
        let others = || self.evictions.iter().filter_map(|id| self.operations.get(id));
        let max_unavailable = self
            .plans
            .get(&replica.plan)
            .map_or(Ok(0), |plan| plan.latest().map(|spec| spec.max_unavailable))?;
        let down = self.replicas.values().filter(|other| other.plan == replica.plan && other.downed).count();
        let of_plan = (others().filter(|other| other.plan == replica.plan).count() + down) as u64;
        demand!(
            6,
            of_plan < u64::from(max_unavailable),
            "{what} concurrently with {of_plan} others, and {max_unavailable} may move"
        );
        let elsewhere = others().find(|other| self.evicts_from(other).is_some_and(|from| *from != domain));
        demand!(6, elsewhere.is_none(), "{what}, and another update domain is being emptied");
        Ok(())
    }

    /// Returns the update domain that an approved disruption's operation moves its replica from.
    fn evicts_from(&self, operation: &Operation) -> Option<&chancery_events::name::DomainName> {
        let Some(Requester::Disruption { node, name }) = &operation.requested_by else { return None };
        let node = self.nodes.get(node)?;
        let approved = node.disruptions.get(name)?.state == chancery_events::spec::DisruptionState::Approved;
        approved.then_some(&node.spec.domain)
    }

    /// Whether the replica can change to the version in place.
    pub(super) fn changes_in_place(
        &mut self,
        replica: &Replica,
        version: &DeploymentName,
    ) -> Result<bool, InvariantViolation> {
        let Some(active) = replica.active.and_then(|id| self.incarnations.get(&id)).cloned() else {
            return Ok(false);
        };
        let can = self.clusters.get(&active.cluster).is_some_and(|cluster| match cluster.runtime {
            ClusterRuntime::Simulated => true,
            ClusterRuntime::Process | ClusterRuntime::Kubernetes | ClusterRuntime::Qemu => false,
        });
        let plan = self.plan(&replica.plan)?;
        let mut spec = |of: &DeploymentName| {
            let generation = plan.deployment(of)?.generation;
            plan.spec(generation).cloned()
        };
        let (from, to) = (spec(&active.deployment)?, spec(version)?);
        let claims_alike = from.claims(&active.replica).eq(to.claims(&active.replica));
        let mut mounts: Vec<_> = to.claims(&active.replica).map(|(name, _)| name).collect();
        mounts.sort();
        let alike = to.resources() == active.resources && claims_alike && mounts == active.mounts;
        Ok(can && active.progress.is_up() && alike)
    }
}

impl Operation {
    /// Whether the operation is the delete by which a failed deployment removes what it created.
    pub(super) fn takes_back(&self, deployment: &DeploymentName) -> bool {
        let rule = format!("deployment/{}/{deployment}/rollback", self.plan);
        self.kind == OperationKind::Delete && self.requested_by == Some(Requester::Rule(rule))
    }
}

/// Whether the intent requests the operation.
fn asks(intent: &Intent, fact: &OperationCreated, replica: &Replica) -> bool {
    let name = &fact.replica;
    let (of, kind, node) = match intent {
        Intent::ReplicaCreate(ask) => {
            let fresh = ask.plan == replica.plan && replica.created_by.is_none();
            return fresh && fact.kind == OperationKind::Create && ask.node == fact.node;
        }
        Intent::ReplicaRelocate(ask) => (&ask.name, OperationKind::Relocate, ask.node.as_ref()),
        // A replica that does not run is started.
        Intent::ReplicaRestart(ask) if fact.kind == OperationKind::Start => {
            (&ask.name, OperationKind::Start, None)
        }
        Intent::ReplicaRestart(ask) => (&ask.name, OperationKind::Restart, None),
        Intent::ReplicaReboot(ask) => (&ask.name, OperationKind::Reboot, None),
        Intent::ReplicaStart(ask) => (&ask.name, OperationKind::Start, ask.node.as_ref()),
        Intent::ReplicaStop(ask) => (&ask.name, OperationKind::Stop, None),
        Intent::ReplicaDelete(ask) => (&ask.name, OperationKind::Delete, None),
        _ => return false,
    };
    of == name && kind == fact.kind && node == fact.node.as_ref()
}
