//! Deployments; invariant 5 for their states, 11 for old and new sets, 6 for their order.

use std::collections::BTreeSet;

use chancery_events::fact::{
    DeploymentCreated, DeploymentCutOver, DeploymentEnd, DeploymentEnded, DeploymentHalted,
    DeploymentStalled, DeploymentStarted, RollbackReference,
};
use chancery_events::id::OperationId;
use chancery_events::intent::{CascadePolicy, Intent, OverlapPolicy};
use chancery_events::lifecycle::WillWord;
use chancery_events::name::{DeploymentName, PlanName, ReplicaName};
use chancery_events::spec::{
    ClusterActivity, DeploymentSpec, DeploymentStrategy, OperationKind, TimeoutAction,
};
use chancery_events::time::Time;
use std::time::Duration;

use super::obligations::RecordObligation;
use super::state::{
    CheckedFleet, Deployment, DeploymentStage, FactLocation, LastInput, Operation, OperationProgress, Plan,
    WantedVersion,
};
use super::violation::{InvariantViolation, RuleResult, demand};

/// Number of newer ended deployments until an ended deployment is deleted; then its name is free again.
const KEPT: u64 = 20;

/// Time in which a deployment is marked stalled, after a progress deadline, a takeover or a clock jump.
const STALLS_WITHIN: Duration = Duration::from_secs(20);

/// Trigger by which a deployment's operation starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperationTrigger {
    /// Start with the approval.
    Approved,
    /// Start when dequeued.
    Dequeued,
}

impl CheckedFleet {
    pub(super) fn deployment_created(&mut self, fact: &DeploymentCreated, at: FactLocation) -> RuleResult {
        let (owner, name) = (&fact.plan, &fact.name);
        let input = self.input_of(at);
        let request = input.as_deref().and_then(LastInput::request);
        let own = |request: &chancery_events::intent::IntentRequest| fact.requested_by == request.actor;
        let asked = match &fact.rollback {
            None => request.is_some_and(|request| {
                own(request)
                    && matches!(&request.intent, Intent::DeploymentCreate(ask)
                        if ask.plan == *owner && ask.name == *name && ask.spec == fact.spec)
            }),
            Some(RollbackReference { to, rule: None }) => request.is_some_and(|request| {
                own(request)
                    && matches!(&request.intent, Intent::PlanRollback(ask)
                        if ask.plan == *owner && ask.name == *name && ask.to.as_ref().is_none_or(|it| it == to))
            }),
            Some(RollbackReference { rule: Some(rule), .. }) => self.rolls_back_by(owner, &rule.name),
        };
        demand!(6, asked, "deployment {name} of {owner} was not requested");
        if let Some(rollback) = &fact.rollback {
            let names_it = request.is_some_and(
                |request| matches!(&request.intent, Intent::PlanRollback(ask) if ask.to.is_some()),
            );
            self.is_rollback(fact, &rollback.to, names_it && rollback.rule.is_none())?;
        }
        let plan = self.plan(owner)?;
        demand!(
            6,
            plan.activity == ClusterActivity::Active,
            "plan {owner} is inactive, and takes deployment {name}"
        );
        demand!(6, !plan.is_removing, "plan {owner} is being deleted, and takes deployment {name}");
        demand!(
            5,
            plan.generation == fact.generation || fact.rollback.is_some(),
            "deployment {name} is not of the latest generation of {owner}"
        );
        demand!(6, plan.next.is_none(), "two deployments of {owner} are queued");
        let again = plan.deployments.get(name).is_none_or(
            |old| matches!(old.stage, DeploymentStage::Ended(before) if plan.ended - before > KEPT),
        );
        demand!(5, again, "deployment {name} of {owner} is created again");
        let deployment = Deployment {
            generation: fact.generation,
            spec: fact.spec.clone(),
            version: plan.version(fact)?,
            stage: DeploymentStage::Pending,
            has_cut_over: false,
            deadline: None,
            requested_by: fact.requested_by.clone(),
            open: 0,
            begun: BTreeSet::default(),
            rested: None,
            has_completed: false,
            rollback: fact.rollback.clone(),
            progressed: at.time,
            is_stalled: false,
            created: BTreeSet::default(),
        };
        plan.deployments.insert(name.clone(), deployment);
        plan.next = Some(name.clone());
        Ok(())
    }

    pub(super) fn deployment_started(&mut self, fact: &DeploymentStarted, at: FactLocation) -> RuleResult {
        let (owner, name) = (&fact.plan, &fact.name);
        let plan = self.plan(owner)?;
        demand!(
            5,
            plan.current.is_none(),
            "deployment {name} of {owner} starts while another one is current"
        );
        demand!(
            5,
            plan.next.as_ref() == Some(name),
            "deployment {name} of {owner} starts, and was not queued"
        );
        plan.current = plan.next.take();
        plan.started = Some(name.clone());
        let deployment = plan.deployment(name)?;
        deployment.progressed = at.time;
        let deadline = match deployment.spec.strategy {
            DeploymentStrategy::BlueGreen { timeout, .. } => Some(at.time + Duration::from_millis(timeout)),
            DeploymentStrategy::Rolling { .. } | DeploymentStrategy::Canary { .. } => None,
        };
        demand!(11, fact.deadline == deadline, "deployment {name} of {owner} starts with another deadline");
        (deployment.stage, deployment.deadline) = (DeploymentStage::InProgress, deadline);
        Ok(())
    }

    pub(super) fn deployment_paused(
        &mut self,
        owner: &PlanName,
        name: &DeploymentName,
        at: FactLocation,
    ) -> RuleResult {
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::DeploymentPause(ask)) if ask.plan == *owner && ask.name == *name
        );
        demand!(6, asked, "deployment {name} of {owner} is paused without a request");
        let deployment = self.plan(owner)?.deployment(name)?;
        let in_progress = deployment.stage == DeploymentStage::InProgress;
        demand!(5, in_progress, "deployment {name} of {owner} is paused, and was not in progress");
        (deployment.stage, deployment.is_stalled) = (DeploymentStage::Paused, false);
        Ok(())
    }

    pub(super) fn deployment_resumed(
        &mut self,
        owner: &PlanName,
        name: &DeploymentName,
        at: FactLocation,
    ) -> RuleResult {
        let input = self.input_of(at);
        let asked = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::DeploymentResume(ask)) if ask.plan == *owner && ask.name == *name
        );
        demand!(6, asked, "deployment {name} of {owner} is resumed without a request");
        let deployment = self.plan(owner)?.deployment(name)?;
        let paused = deployment.stage == DeploymentStage::Paused;
        demand!(5, paused, "deployment {name} of {owner} is resumed, and was not paused");
        deployment.progressed = at.time;
        deployment.stage = DeploymentStage::InProgress;
        Ok(())
    }

    pub(super) fn deployment_cut_over(&mut self, fact: &DeploymentCutOver, at: FactLocation) -> RuleResult {
        let (owner, name) = (&fact.plan, &fact.name);
        let input = self.input_of(at);
        let promoted = matches!(
            input.as_deref().and_then(LastInput::intent),
            Some(Intent::DeploymentPromote(ask)) if ask.plan == *owner && ask.name == *name
        );
        let plan = self.plan(owner)?;
        let deployment = plan.deployment(name)?.clone();
        let begun = matches!(deployment.stage, DeploymentStage::InProgress | DeploymentStage::Paused);
        demand!(5, begun, "deployment {name} of {owner} cuts over, and is not in progress");
        demand!(5, !deployment.has_cut_over, "deployment {name} of {owner} cuts over a second time");
        match deployment.spec.strategy {
            DeploymentStrategy::Rolling { .. } => {
                return Err(InvariantViolation::new(
                    11,
                    format!("deployment {name} of {owner} has no new set"),
                ));
            }
            DeploymentStrategy::Canary { .. } => {
                demand!(11, promoted, "the canary {name} of {owner} cuts over without a promotion");
            }
            DeploymentStrategy::BlueGreen { on_timeout, .. } => {
                let late = deployment.deadline.is_some_and(|deadline| deadline <= at.time);
                let (new, _) = plan.sets(deployment.version);
                let count = u64::from(deployment.spec.count);
                let ready = new.present >= count && new.ready == new.present;
                demand!(
                    11,
                    ready || (late && on_timeout == TimeoutAction::CutOver),
                    "deployment {name} of {owner} cuts over, and of {count} of its version {} are there and {} ready",
                    new.present,
                    new.ready
                );
            }
        }
        let deployment = plan.deployment(name)?;
        (deployment.has_cut_over, deployment.deadline) = (true, None);
        (deployment.progressed, deployment.is_stalled) = (at.time, false);
        Ok(())
    }

    pub(super) fn deployment_ending(&mut self, fact: &DeploymentHalted, at: FactLocation) -> RuleResult {
        let (owner, name) = (&fact.plan, &fact.name);
        let input = self.input_of(at);
        let deployment = self.plan(owner)?.deployment(name)?;
        let fails = matches!(deployment.stage, DeploymentStage::Ending(_, DeploymentEnd::Failed { .. }));
        let aborts = !matches!(fact.end, DeploymentEnd::Failed { .. });
        let begun = matches!(deployment.stage, DeploymentStage::InProgress | DeploymentStage::Paused);
        let may_end = begun || (fails && aborts);
        demand!(5, may_end, "deployment {name} of {owner} is ending, and was not in progress");
        let late = deployment.deadline.is_some_and(|deadline| deadline <= at.time);
        let (version, strategy) = (deployment.version, deployment.spec.strategy);
        let rolls_back = late
            && matches!(strategy, DeploymentStrategy::BlueGreen { on_timeout: TimeoutAction::Rollback, .. });
        deployment.stage = DeploymentStage::Ending(at.time, fact.end.clone());
        deployment.is_stalled = false;
        let gives_up =
            deployment.spec.auto_rollback && self.now.stalled.contains(&(owner.clone(), name.clone()));
        let right = match &fact.end {
            DeploymentEnd::Completed => false,
            DeploymentEnd::Failed { .. } => {
                rolls_back || gives_up || self.has_failed(owner, name, version)?
            }
            DeploymentEnd::Cancelled => match input.as_deref().and_then(LastInput::intent) {
                Some(Intent::DeploymentCancel(ask)) => ask.plan == *owner && ask.name == *name,
                Some(Intent::DeploymentRollback(ask)) => {
                    let canary = matches!(strategy, DeploymentStrategy::Canary { .. });
                    canary && ask.plan == *owner && ask.name == *name
                }
                Some(Intent::PlanDelete(ask)) => ask.name == *owner && ask.cascade == CascadePolicy::Yes,
                _ => false,
            },
            DeploymentEnd::Superseded { successor: by } => {
                self.obligations.push(RecordObligation::Created(owner.clone(), by.clone()));
                match input.as_deref().and_then(LastInput::intent) {
                    Some(Intent::DeploymentCreate(ask)) => {
                        ask.plan == *owner && ask.name == *by && ask.overlap == OverlapPolicy::Supersede
                    }
                    Some(Intent::PlanRollback(ask)) => ask.plan == *owner && ask.name == *by,
                    _ => false,
                }
            }
        };
        demand!(6, right, "deployment {name} of {owner} is ending without reason: {:?}", fact.end);
        Ok(())
    }

    /// Whether, directly before, an operation of the deployment failed or a replica of its version ended
    /// without a request.
    fn has_failed(
        &mut self,
        owner: &PlanName,
        name: &DeploymentName,
        version: usize,
    ) -> Result<bool, InvariantViolation> {
        if self.now.failed.contains(&(owner.clone(), name.clone())) {
            return Ok(true);
        }
        let ended = self.now.ended.iter().filter(|ended| ended.plan == *owner && ended.by_itself);
        let of: Vec<_> = ended.map(|ended| ended.deployment.clone()).collect();
        let plan = self.plan(owner)?;
        Ok(of.iter().any(|of| plan.deployments.get(of).is_some_and(|of| of.version == version)))
    }

    pub(super) fn deployment_ended(&mut self, fact: &DeploymentEnded) -> RuleResult {
        let (owner, name) = (&fact.plan, &fact.name);
        let created = self.plan(owner)?.deployment(name)?.created.clone();
        // A replica with an approved delete counts as deleted.
        let stays =
            |of: &&ReplicaName| self.replicas.get(*of).is_some_and(|of| of.desired != WillWord::Deleted);
        let left = created.iter().find(stays).cloned();
        let plan = self.plan(owner)?;
        let before = plan.ended;
        let deployment = plan.deployment(name)?.clone();
        let right = match &deployment.stage {
            DeploymentStage::Ended(_) => {
                return Err(InvariantViolation::new(
                    5,
                    format!("deployment {name} of {owner} ends a second time"),
                ));
            }
            DeploymentStage::Pending => !matches!(fact.end, DeploymentEnd::Completed),
            DeploymentStage::InProgress => fact.end == DeploymentEnd::Completed,
            DeploymentStage::Paused => false,
            DeploymentStage::Ending(_, why) => fact.end == *why,
        };
        demand!(
            5,
            right,
            "deployment {name} of {owner} ends otherwise than its state allows: {:?}",
            fact.end
        );
        let open = deployment.open;
        demand!(
            6,
            open == 0,
            "deployment {name} of {owner} ends, and {open} of its operations have not ended"
        );
        if fact.end == DeploymentEnd::Completed {
            plan.is_so(name, &deployment)?;
            plan.deployment(name)?.has_completed = true;
            plan.carried_out = Some(name.clone());
            if deployment.spec.count > 0 {
                plan.had_replicas = Some(name.clone());
            }
        } else if deployment.runs_alongside() {
            demand!(
                11,
                left.is_none(),
                "deployment {name} of {owner} ends before its new set counts, and leaves {left:?}"
            );
        }
        plan.deployment(name)?.stage = DeploymentStage::Ended(before);
        plan.ended += 1;
        for slot in [&mut plan.current, &mut plan.next] {
            if slot.as_ref() == Some(name) {
                *slot = None;
            }
        }
        if matches!(fact.end, DeploymentEnd::Failed { .. }) {
            self.now.ended_failed.insert((owner.clone(), name.clone()));
            if self.should_roll_back(owner, name)? {
                self.obligations.push(RecordObligation::RolledBack(owner.clone(), name.clone()));
            }
        }
        if let (DeploymentEnd::Superseded { successor: by }, DeploymentStage::Pending) =
            (&fact.end, &deployment.stage)
        {
            self.obligations.push(RecordObligation::Created(owner.clone(), by.clone()));
        }
        Ok(())
    }

    /// Whether the rule is that of a deployment that failed directly before, and requests a rollback.
    fn rolls_back_by(&self, owner: &PlanName, rule: &str) -> bool {
        let plan = self.plans.get(owner);
        self.now.ended_failed.iter().any(|(of, name)| {
            let failed = plan.and_then(|plan| plan.deployments.get(name));
            let wants = failed.is_some_and(|failed| failed.spec.auto_rollback && failed.rollback.is_none());
            of == owner && wants && rule == format!("deployment/{owner}/{name}/auto_rollback")
        })
    }

    /// Whether a failed deployment must be rolled back: its spec requests it, no deployment is queued, and
    /// there is a version to return to.
    fn should_roll_back(
        &mut self,
        owner: &PlanName,
        name: &DeploymentName,
    ) -> Result<bool, InvariantViolation> {
        let plan = self.plan(owner)?;
        let failed = plan.deployment(name)?.clone();
        let wants = failed.spec.auto_rollback && failed.rollback.is_none();
        let free = plan.next.is_none() && !plan.is_removing && plan.activity == ClusterActivity::Active;
        // At most one version may claim volumes by name.
        let fits =
            |of: &Deployment| plan.specs.get(&of.generation).is_some_and(|spec| !spec.claims_by_name());
        let serves = plan.had_replicas.as_ref().and_then(|name| plan.deployments.get(name));
        let is_new = serves.is_none_or(|serves| serves.version != failed.version);
        let mut good = plan.deployments.values().filter(|of| of.has_completed && of.spec.count > 0);
        let all = plan.deployments.values().filter(|of| of.has_completed).all(fits);
        Ok(wants && free && is_new && all && good.any(|of| of.version != failed.version))
    }

    /// Checks that a rollback has the version of its target, which completed.
    fn is_rollback(&mut self, fact: &DeploymentCreated, to: &DeploymentName, is_named: bool) -> RuleResult {
        let (owner, name) = (&fact.plan, &fact.name);
        let plan = self.plan(owner)?;
        let last = plan.had_replicas.clone();
        let count = match last.and_then(|last| plan.deployments.get(&last)) {
            Some(last) => last.spec.count,
            None => plan.deployment(to)?.spec.count,
        };
        let started = plan.started.clone().and_then(|name| plan.deployments.get(&name).cloned());
        let target = plan.deployment(to)?.clone();
        demand!(6, target.has_completed, "rollback {name} of {owner} has target {to}, which never completed");
        demand!(
            5,
            target.generation == fact.generation,
            "rollback {name} of {owner} is of another generation"
        );
        let strategy = match target.spec.strategy {
            DeploymentStrategy::Canary { .. } => DeploymentStrategy::default(),
            strategy => strategy,
        };
        let spec = DeploymentSpec { count, strategy, auto_rollback: false, ..target.spec.clone() };
        demand!(6, spec == fact.spec, "rollback {name} of {owner} is not what {to} was");
        let other = started.is_none_or(|started| started.version != target.version);
        demand!(
            6,
            is_named || other,
            "rollback {name} of {owner} has target {to}, which has the same version"
        );
        Ok(())
    }

    /// Notes a decision by people: the operation's deployment makes progress, or else the current one.
    pub(super) fn people_decided(&mut self, operation: &Operation, at: FactLocation) {
        let current = || self.plans.get(&operation.plan).and_then(|plan| plan.current.clone());
        let deployment = operation.deployment.clone().or_else(current);
        self.progresses(&Operation { deployment, ..operation.clone() }, at);
    }

    /// Notes progress of the operation's deployment, unless it is ending.
    pub(super) fn progresses(&mut self, operation: &Operation, at: FactLocation) {
        let plan = self.plans.get_mut(&operation.plan);
        let of = plan.zip(operation.deployment.as_ref()).and_then(|(plan, of)| plan.deployments.get_mut(of));
        if let Some(of) = of
            && matches!(of.stage, DeploymentStage::InProgress | DeploymentStage::Paused)
        {
            (of.progressed, of.is_stalled) = (at.time, false);
        }
    }

    /// Checks the outcome of a started operation. If that took longer than the progress deadline, the
    /// deployment was marked stalled, unless the decider was away.
    pub(super) fn was_called_stalled(
        &self,
        id: OperationId,
        operation: &Operation,
        at: FactLocation,
    ) -> RuleResult {
        let of = self.plans.get(&operation.plan).zip(operation.deployment.as_ref());
        let Some(of) = of.and_then(|(plan, of)| plan.deployments.get(of)) else { return Ok(()) };
        // The delay of its strategy does not count.
        let delay = match of.spec.strategy {
            DeploymentStrategy::Rolling { delay, .. } => Duration::from_millis(delay),
            DeploymentStrategy::BlueGreen { .. } | DeploymentStrategy::Canary { .. } => Duration::ZERO,
        };
        let paused = of.rested.map_or(of.progressed, |rested| rested + delay);
        let began = operation.begun.unwrap_or(at.time).max(of.progressed).max(paused);
        let due = began + Duration::from_millis(of.spec.progress_deadline) + STALLS_WITHIN;
        // The clock may have jumped, or the decider been away: it was active at the previous record.
        let before = self.time_before.unwrap_or(at.time);
        let decides = self.steady_since.is_none_or(|since| since + STALLS_WITHIN < before);
        let late = of.stage == DeploymentStage::InProgress && due < before && decides;
        let name = operation.deployment.as_ref().map_or("", |name| name.as_str());
        demand!(
            6,
            of.is_stalled || !late,
            "operation {id} took too long, and deployment {name} is not called stalled"
        );
        Ok(())
    }

    pub(super) fn deployment_stalled(&mut self, fact: &DeploymentStalled, at: FactLocation) -> RuleResult {
        let (owner, name) = (&fact.plan, &fact.name);
        let own = |of: &&Operation| of.plan == *owner && of.deployment.as_ref() == Some(name);
        let stages: Vec<_> = self.operations.values().filter(own).map(|of| of.stage).collect();
        let asks = stages.contains(&OperationProgress::Pending);
        let works = stages.iter().any(|stage| {
            matches!(
                stage,
                OperationProgress::Preparing | OperationProgress::Approved | OperationProgress::Running
            )
        });
        demand!(
            6,
            !fact.waits_for.is_empty(),
            "deployment {name} of {owner} is stalled, and waits for nothing"
        );
        // Operations with other requesters on a replica that the deployment waits for.
        let others = self.operations.values().filter(|of| of.plan == *owner && of.deployment.is_none());
        let others: Vec<_> = others.filter(|of| of.stage == OperationProgress::Pending).cloned().collect();
        let plan = self.plan(owner)?;
        plan.must_be_in_progress(name, "it is called stalled")?;
        let deployment = plan.deployment(name)?;
        let canary = matches!(deployment.spec.strategy, DeploymentStrategy::Canary { .. })
            && deployment.runs_alongside();
        let (version, alongside) = (deployment.version, deployment.runs_alongside());
        let besides = others.iter().any(|of| {
            let right = plan.deployments.get(&of.version).is_some_and(|of| of.version == version);
            match of.kind {
                OperationKind::Delete => false,
                OperationKind::Start if right => true,
                OperationKind::Start
                | OperationKind::Create
                | OperationKind::Update
                | OperationKind::Relocate
                | OperationKind::Restart
                | OperationKind::Reboot
                | OperationKind::Stop => !right && !alongside,
            }
        });
        let deployment = plan.deployment(name)?;
        demand!(
            6,
            works || !(asks || canary || besides),
            "deployment {name} of {owner} is stalled, and waits for people"
        );
        let due = deployment.progressed + Duration::from_millis(deployment.spec.progress_deadline);
        demand!(5, !deployment.is_stalled, "deployment {name} of {owner} is called stalled a second time");
        demand!(5, fact.since == deployment.progressed, "deployment {name} of {owner} made progress since");
        demand!(6, due <= at.time, "deployment {name} of {owner} is called stalled before its deadline");
        deployment.is_stalled = true;
        self.now.stalled.insert((owner.clone(), name.clone()));
        Ok(())
    }

    /// Checks that an operation of a deployment may start, in its order.
    pub(super) fn begins_for(
        &mut self,
        id: OperationId,
        operation: &Operation,
        trigger: OperationTrigger,
        at: FactLocation,
    ) -> RuleResult {
        let Some(name) = &operation.deployment else { return Ok(()) };
        if operation.takes_back(name) {
            let deployment = self.plan(&operation.plan)?.deployment(name)?;
            deployment.begun.insert(id);
            return Ok(());
        }
        let what = format!("operation {id} starts");
        self.plan(&operation.plan)?.must_be_in_progress(name, &what)?;
        let plan = self.plan(&operation.plan)?;
        let deployment = plan.deployment(name)?;
        let (version, others) = (deployment.version, deployment.begun.clone());
        let (strategy, rested) = (deployment.spec.strategy, deployment.rested);
        deployment.begun.insert(id);
        if trigger == OperationTrigger::Dequeued {
            let (right, _) = plan.sets(version);
            demand!(
                6,
                right.ailing == 0,
                "{what}, and {} replicas that deployment {name} started are not ready",
                right.ailing
            );
        }
        let others: Vec<_> = others.iter().filter_map(|other| self.operations.get(other)).collect();
        let updates = others.iter().filter(|other| other.kind == OperationKind::Update).count();
        let alone = operation.kind != OperationKind::Update || updates == 0;
        let DeploymentStrategy::Rolling { max_parallel, per_domain, delay } = strategy else {
            demand!(6, alone, "{what}, an update concurrent with {updates} others of deployment {name}");
            return Ok(());
        };
        match max_parallel {
            Some(max_parallel) => demand!(
                6,
                (others.len() as u64) < u64::from(max_parallel),
                "{what} concurrently with {} of deployment {name}, whose max_parallel is {max_parallel}",
                others.len()
            ),
            None => {
                demand!(6, alone, "{what}, an update concurrent with {updates} others of deployment {name}");
            }
        }
        let elsewhere = others.iter().find(|other| {
            let two = other.domain.as_ref().zip(operation.domain.as_ref());
            per_domain && two.is_some_and(|(one, two)| one != two)
        });
        demand!(
            6,
            elsewhere.is_none(),
            "{what} in another update domain than one that runs for deployment {name}"
        );
        let rests = rested.filter(|_| delay > 0).map(|rested| rested + Duration::from_millis(delay));
        demand!(
            6,
            rests.is_none_or(|until: Time| until <= at.time),
            "{what} in the delay of deployment {name}"
        );
        Ok(())
    }
}

impl Plan {
    /// Returns the index of the version that the deployment requests.
    fn version(&mut self, fact: &DeploymentCreated) -> Result<usize, InvariantViolation> {
        let spec = self.spec(fact.generation)?;
        let wants = WantedVersion {
            namespace: spec.namespace.clone(),
            service: spec.service.clone(),
            labels: spec.labels.clone(),
            payloads: spec.payloads.clone(),
            coordinates: fact.spec.coordinates.clone(),
        };
        let known = self.versions.iter().position(|version| *version == wants);
        Ok(known.unwrap_or_else(|| {
            self.versions.push(wants);
            self.versions.len() - 1
        }))
    }

    /// Checks that a completed deployment has all its replicas, and the plan no others.
    fn is_so(&self, name: &DeploymentName, deployment: &Deployment) -> RuleResult {
        let (right, other) = self.sets(deployment.version);
        let count = u64::from(deployment.spec.count);
        demand!(
            6,
            other.present == 0 && right.present == count,
            "deployment {name} of {count} is complete with {} of its version and {} of others",
            right.present,
            other.present
        );
        demand!(
            6,
            right.idle == 0,
            "deployment {name} is completed, and {} replicas that must run do not",
            right.idle
        );
        Ok(())
    }

    /// Checks that the deployment lacks a replica, so that it may create one.
    pub(super) fn lacks_one(&mut self, replica: &ReplicaName, name: &DeploymentName) -> RuleResult {
        self.must_be_in_progress(name, &format!("replica {replica} is created"))?;
        let deployment = self.deployment(name)?.clone();
        let (right, other) = self.sets(deployment.version);
        let count = u64::from(deployment.spec.count);
        let (there, wanted) = match deployment.spec.strategy {
            DeploymentStrategy::Canary { count: few } if deployment.runs_alongside() && other.present > 0 => {
                (right.present, count.min(u64::from(few)))
            }
            DeploymentStrategy::BlueGreen { .. } if deployment.runs_alongside() && other.present > 0 => {
                (right.present, count)
            }
            DeploymentStrategy::Rolling { .. }
            | DeploymentStrategy::BlueGreen { .. }
            | DeploymentStrategy::Canary { .. } => (right.present + other.present, count),
        };
        demand!(
            6,
            there < wanted,
            "replica {replica} is created, and deployment {name} has {there} of {wanted}"
        );
        Ok(())
    }

    /// Checks that the deployment may change a replica of another version.
    pub(super) fn may_touch_old(&mut self, name: &DeploymentName, what: &str) -> RuleResult {
        let alongside = self.deployment(name)?.runs_alongside();
        demand!(11, !alongside, "{what}, and the new set of deployment {name} does not count yet");
        Ok(())
    }
}

impl Deployment {
    /// Whether the deployment's new set is alongside the one that counts.
    pub(super) fn runs_alongside(&self) -> bool {
        !self.has_cut_over && !matches!(self.spec.strategy, DeploymentStrategy::Rolling { .. })
    }
}
