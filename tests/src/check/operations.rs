//! Operations; invariant 6: nothing is done but what was requested and what an entitled actor approved, as it
//! was shown.

use std::time::Duration;

use chancery_events::fact::{
    ApprovalActor, ApprovalStart, DeploymentEnd, OperationApproved, OperationCreated, OperationEnd,
    OperationEnded, OperationStarted, Requester,
};
use chancery_events::id::OperationId;
use chancery_events::intent::Intent;
use chancery_events::lifecycle::WillWord;
use chancery_events::name::ReplicaName;
use chancery_events::spec::{OperationKind, ProbePurpose, RestartPolicy};
use chancery_events::subject::Subject;
use chancery_events::time::Time;

use super::deployments::OperationTrigger;
use super::obligations::RecordObligation;
use super::state::{
    CheckedFleet, DeploymentStage, FactLocation, IncarnationProgress, LastInput, Operation,
    OperationProgress, Replica, UserStop,
};
use super::violation::{InvariantViolation, RuleResult, demand};

/// Time from the end of a deployment to the abort of its started operations, however busy the decider is.
const ABORTS_WITHIN: Duration = Duration::from_secs(5);

/// Whether the kind wants its replica to run.
pub(super) const fn is_up(kind: OperationKind) -> bool {
    match kind {
        OperationKind::Create
        | OperationKind::Start
        | OperationKind::Update
        | OperationKind::Relocate
        | OperationKind::Restart
        | OperationKind::Reboot => true,
        OperationKind::Stop | OperationKind::Delete => false,
    }
}

/// Whether the kind replaces the existing incarnation.
pub(super) const fn replaces(kind: OperationKind) -> bool {
    matches!(kind, OperationKind::Update | OperationKind::Relocate | OperationKind::Restart)
}

impl CheckedFleet {
    pub(super) fn quarantined(&mut self, subject: &Subject) -> RuleResult {
        if let Subject::Operation(id) = subject {
            self.operation(*id)?.is_quarantined = true;
        }
        Ok(())
    }

    pub(super) fn operation(&mut self, id: OperationId) -> Result<&mut Operation, InvariantViolation> {
        self.operations
            .get_mut(&id)
            .ok_or_else(|| InvariantViolation::new(5, format!("operation {id} was never opened")))
    }

    pub(super) fn operation_opened(&mut self, fact: &OperationCreated, at: FactLocation) -> RuleResult {
        let (name, kind) = (&fact.replica, fact.kind);
        let id = OperationId::issue(at.lineage, at.position);
        let replica = self.replica(name)?.clone();
        if let Some(stop) = replica.stop.filter(|_| is_up(kind)) {
            return Err(undone(name, kind, stop));
        }
        self.may_be_opened(name, &replica, kind)?;
        self.asked_for(fact, &replica, at)?;
        let version = fact.version.clone().unwrap_or_else(|| replica.deployment.clone());
        let changes = kind == OperationKind::Update && self.changes_in_place(&replica, &version)?;
        demand!(
            6,
            fact.proposal.is_some() == (changes || !is_up(kind) || kind == OperationKind::Reboot),
            "a {kind} of {name} has a proposal before its placement, or none at all"
        );
        // An operation without placement is about the existing incarnation.
        let about = replica.active.filter(|_| fact.proposal.is_some());
        let node = about.and_then(|id| self.nodes.get(&self.incarnations.get(&id)?.node));
        let domain = node.map(|node| node.spec.domain.clone());
        let operation = Operation {
            replica: name.clone(),
            plan: replica.plan.clone(),
            kind,
            deployment: fact.deployment.clone(),
            requested_by: fact.requested_by.clone(),
            version,
            wants: fact.node.clone(),
            purpose: fact.purpose,
            stage: if fact.proposal.is_some() {
                OperationProgress::Pending
            } else {
                OperationProgress::Preparing
            },
            begun: None,
            failed: false,
            aborted: false,
            is_past_return: false,
            proposal: fact.proposal,
            incarnation: about.filter(|_| changes || kind == OperationKind::Reboot),
            domain,
            approver: None,
            is_quarantined: false,
        };
        if let Some(Requester::Disruption { .. }) = &operation.requested_by {
            self.evictions.insert(id);
        }
        if let Some(deployment) = &operation.deployment {
            self.plan(&operation.plan)?.deployment(deployment)?.open += 1;
        }
        self.operations.insert(id, operation);
        let replica = self.replica(name)?;
        replica.open.push(id);
        match (kind, &mut replica.stop) {
            (OperationKind::Stop, Some(stop)) => stop.operation = Some(id),
            _ if is_up(kind) => {
                // A restart by the plan's rule increments its row; any other start resets it.
                let by_rule = matches!(fact.requested_by, Some(Requester::Rule(_)));
                let again = replica.next_restart.filter(|_| by_rule);
                replica.last_restart = again.map(|again| chancery_events::fact::RestartBackoff {
                    not_before: at.time,
                    consecutive: again.consecutive,
                });
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that an operation of the kind may be opened alongside the open ones.
    fn may_be_opened(&self, name: &ReplicaName, replica: &Replica, kind: OperationKind) -> RuleResult {
        let stage = |id| self.operations.get(id).map(|of: &Operation| of.stage);
        let waits = replica.open.iter().any(|id| stage(id) != Some(OperationProgress::Running));
        demand!(6, !waits, "a {kind} of {name} is opened, and its waiting operation is not superseded");
        demand!(6, !self.is_going(replica), "a {kind} of {name} is opened, which is being deleted");
        let alone = replica.open.is_empty() || !is_up(kind);
        demand!(6, alone, "a {kind} of {name} is opened, and another operation on it has started");
        let active = replica.active.and_then(|id| self.incarnations.get(&id));
        let fits = match kind {
            OperationKind::Create => replica.desired == WillWord::Proposed && active.is_none(),
            OperationKind::Start => active.is_none(),
            OperationKind::Update => active.is_some(),
            OperationKind::Relocate | OperationKind::Restart => {
                active.is_some_and(|active| active.progress.is_up())
            }
            OperationKind::Reboot => {
                active.is_some_and(|active| active.progress == IncarnationProgress::Running)
            }
            OperationKind::Stop | OperationKind::Delete => replica.desired != WillWord::Proposed,
        };
        let now = active.map_or("not there", |active| active.progress.word());
        demand!(6, fits, "a {kind} of {name} is opened, whose incarnation is {now}");
        Ok(())
    }

    pub(super) fn operation_approved(&mut self, fact: &OperationApproved, at: FactLocation) -> RuleResult {
        let id = fact.operation;
        let operation = self.operation(id)?.clone();
        let (name, kind) = (&operation.replica, operation.kind);
        demand!(5, operation.stage != OperationProgress::Ended, "operation {id} has ended, and is approved");
        demand!(
            6,
            operation.stage == OperationProgress::Pending,
            "operation {id} is approved, and does not wait for it"
        );
        demand!(
            6,
            fact.replica == *name,
            "operation {id} is on replica {name}, and approved for {}",
            fact.replica
        );
        let Some(proposal) = operation.proposal else {
            return Err(InvariantViolation::new(
                6,
                format!("operation {id} is approved, and nothing was proposed"),
            ));
        };
        demand!(
            6,
            proposal.hash == fact.hash,
            "operation {id} is approved on another hash than was proposed"
        );
        let in_time = operation.is_quarantined || at.time < proposal.expires;
        demand!(6, in_time, "operation {id} is approved after it expired");
        self.entitled(fact, &operation, at)?;
        let replica = self.replica(name)?;
        if let Some(stop) = replica.stop.filter(|_| is_up(kind)) {
            return Err(undone(name, kind, stop));
        }
        if is_up(kind) || fact.start == ApprovalStart::Immediate {
            replica.wants(kind);
        }
        if let ApprovalActor::Rule(rule) = &fact.approved_by
            && let Some(policy) = rule.strip_prefix("policy/").and_then(|name| name.parse().ok())
        {
            self.in_flight.entry(policy).or_default().insert(id);
        }
        self.operation(id)?.approver = Some(fact.approved_by.clone());
        let by_plan = matches!(&fact.approved_by, ApprovalActor::Rule(rule) if !rule.starts_with("policy/"));
        if !by_plan {
            self.people_decided(&operation, at);
        }
        match fact.start {
            ApprovalStart::Immediate => self.begin(id, fact.incarnation, OperationTrigger::Approved, at),
            ApprovalStart::Queued => {
                let turns = operation.deployment.as_ref().is_some_and(|deployment| {
                    let of = self.plans.get(&operation.plan).and_then(|of| of.deployments.get(deployment));
                    of.is_some_and(|of| {
                        matches!(of.stage, DeploymentStage::InProgress | DeploymentStage::Paused)
                    })
                });
                demand!(6, turns, "operation {id} will start later, and no deployment dequeues it");
                let asks = fact.incarnation.is_some() || fact.deadline.is_some();
                demand!(6, !asks, "operation {id} will start later, and commands something");
                self.operation(id)?.stage = OperationProgress::Approved;
                Ok(())
            }
        }
    }

    pub(super) fn operation_begun(&mut self, fact: &OperationStarted, at: FactLocation) -> RuleResult {
        let id = fact.operation;
        let operation = self.operation(id)?.clone();
        demand!(5, operation.stage != OperationProgress::Ended, "operation {id} has ended, and starts");
        demand!(
            6,
            operation.stage == OperationProgress::Approved,
            "operation {id} starts, and its approval did not queue it"
        );
        demand!(5, fact.replica == operation.replica, "operation {id} is on replica {}", operation.replica);
        let stop = self.replica(&operation.replica)?.stop.filter(|_| is_up(operation.kind));
        if let Some(stop) = stop {
            return Err(undone(&operation.replica, operation.kind, stop));
        }
        self.replica(&operation.replica)?.wants(operation.kind);
        self.begin(id, fact.incarnation, OperationTrigger::Dequeued, at)
    }

    pub(super) fn operation_ended(&mut self, fact: &OperationEnded, at: FactLocation) -> RuleResult {
        let id = fact.operation;
        let operation = self.operation(id)?.clone();
        let stage = operation.stage;
        demand!(5, stage != OperationProgress::Ended, "operation {id} ends a second time");
        demand!(5, fact.replica == operation.replica, "operation {id} is on replica {}", operation.replica);
        match &fact.end {
            OperationEnd::Succeeded => {
                let done = stage == OperationProgress::Running && self.is_done(&operation)?;
                demand!(
                    6,
                    done,
                    "operation {id}, a {}, is called a success, and has not reached its goal",
                    operation.kind
                );
            }
            OperationEnd::Failed { .. } => {
                demand!(
                    6,
                    self.is_given_up(&operation),
                    "operation {id} fails, and its incarnation continues"
                );
                // An edit of the rule cancels what the rule promised, but not what an abort owes.
                let by_edit = stage == OperationProgress::Preparing
                    && matches!(operation.requested_by, Some(Requester::Rule(_)));
                let is_owed = self.replica(&operation.replica)?.recovers;
                demand!(
                    6,
                    !(by_edit && is_owed),
                    "operation {id} fails, and its replica was stopped for an abort"
                );
                self.was_aborted_in_time(id, &operation, at)?;
            }
            OperationEnd::Rejected { rejected_by: by, .. } => {
                let waits = matches!(stage, OperationProgress::Preparing | OperationProgress::Pending);
                demand!(6, waits, "operation {id} is rejected, and does not wait for approval");
                let input = self.input_of(at);
                let asked = input.as_deref().and_then(LastInput::request).is_some_and(|request| {
                    request.actor == *by
                        && matches!(&request.intent, Intent::OperationReject(ask) if ask.operations.contains(&id))
                });
                demand!(6, asked, "operation {id} is called rejected by {by}, who did not reject it");
            }
            OperationEnd::Expired => {
                let due = operation.proposal.is_some_and(|proposal| proposal.expires <= at.time);
                demand!(
                    6,
                    stage == OperationProgress::Pending && due,
                    "operation {id} expires before its time"
                );
            }
            OperationEnd::Cancelled { .. } => {
                if stage == OperationProgress::Running {
                    self.may_be_aborted(id, &operation)?;
                } else {
                    let unwanted = self.is_unwanted(&operation, at)?;
                    demand!(6, unwanted, "operation {id}, a {}, is cancelled without reason", operation.kind);
                }
            }
            OperationEnd::Superseded { successor: by } => {
                self.obligations.push(RecordObligation::Opened(*by, operation.replica.clone()));
                if stage == OperationProgress::Running {
                    self.obligations.push(RecordObligation::TakesOver(*by));
                }
            }
        }
        let blamed = matches!(
            fact.end,
            OperationEnd::Failed { .. } | OperationEnd::Rejected { .. } | OperationEnd::Expired
        );
        if let Some(deployment) = operation.deployment.filter(|_| blamed) {
            self.now.failed.insert((operation.plan.clone(), deployment.clone()));
            self.obligations.push(RecordObligation::Fails(operation.plan, deployment));
        }
        self.close(id, &fact.end, at)
    }

    /// Whether the operation's incarnation is asked to end, or to return to its old version.
    fn is_given_up(&self, operation: &Operation) -> bool {
        let left = operation.incarnation.and_then(|held| self.incarnations.get(&held));
        left.is_none_or(|run| match &run.progress {
            IncarnationProgress::Reserved
            | IncarnationProgress::Stopping(_)
            | IncarnationProgress::Ended
            | IncarnationProgress::Expunged => true,
            IncarnationProgress::Updating(to) => *to == run.deployment,
            IncarnationProgress::Creating | IncarnationProgress::Starting => false,
            IncarnationProgress::Running => operation.stage != OperationProgress::Running,
        })
    }

    /// Checks that a started operation may be cancelled. Either its deployment was cancelled or superseded,
    /// and the old incarnation keeps the role. Or a restart by rule is replaced by another version.
    fn may_be_aborted(&self, id: OperationId, operation: &Operation) -> RuleResult {
        let kind = operation.kind;
        let aborts = self.aborts_since(operation).is_some();
        let may = aborts && matches!(kind, OperationKind::Start | OperationKind::Update)
            || self.starts_another_version(operation)
            || replaces(kind)
                && self
                    .replicas
                    .get(&operation.replica)
                    .is_some_and(|replica| replica.desired == WillWord::GuestShutdown);
        demand!(6, may, "operation {id}, a {kind}, is cancelled, and runs");
        demand!(
            6,
            !operation.is_past_return,
            "operation {id} is cancelled, and its new incarnation has the role"
        );
        demand!(6, self.is_given_up(operation), "operation {id} is cancelled, and its incarnation continues");
        Ok(())
    }

    /// Whether the operation is a restart by rule, and the deployment in progress gives its replica another
    /// version: that deployment has no other open operation.
    fn starts_another_version(&self, operation: &Operation) -> bool {
        let by_rule = operation.kind == OperationKind::Start
            && matches!(operation.requested_by, Some(Requester::Rule(_)));
        let plan = self.plans.get(&operation.plan);
        let current = plan.and_then(|plan| Some((plan, plan.current.as_ref()?)));
        by_rule
            && current.is_some_and(|(plan, name)| {
                let own = plan.deployments.get(&operation.version);
                let busy = self.operations.values().any(|other| {
                    other.plan == operation.plan
                        && other.deployment.as_ref() == Some(name)
                        && other.stage != OperationProgress::Ended
                });
                plan.deployments.get(name).is_some_and(|of| {
                    of.stage == DeploymentStage::InProgress
                        && !of.runs_alongside()
                        && own.is_some_and(|own| own.version != of.version)
                        && !busy
                })
            })
    }

    /// Returns since when the operation's deployment aborts started operations, if it does.
    pub(super) fn aborts_since(&self, operation: &Operation) -> Option<Time> {
        let name = operation.deployment.as_ref()?;
        let of = self.plans.get(&operation.plan)?.deployments.get(name)?;
        match &of.stage {
            DeploymentStage::Ending(since, why) => {
                let settles = matches!(why, DeploymentEnd::Failed { .. }) && !of.spec.auto_rollback;
                (!settles).then_some(*since)
            }
            _ => None,
        }
    }

    /// Checks, at the outcome of a started operation, that its deployment was not ended long before.
    pub(super) fn was_aborted_in_time(
        &self,
        id: OperationId,
        operation: &Operation,
        at: FactLocation,
    ) -> RuleResult {
        let brings_up =
            matches!(operation.kind, OperationKind::Create | OperationKind::Start | OperationKind::Update);
        let could = operation.stage == OperationProgress::Running && brings_up && !operation.is_past_return;
        let late = self.aborts_since(operation).is_some_and(|since| at.time > since + ABORTS_WITHIN);
        demand!(
            6,
            !(could && late),
            "operation {id} continues, and its deployment was cancelled or superseded"
        );
        Ok(())
    }

    /// Whether an operation has reached its goal, where a fact of its own proves that.
    fn is_done(&mut self, operation: &Operation) -> Result<bool, InvariantViolation> {
        let replica = self.replica(&operation.replica)?;
        let (active, passive) = (replica.active, replica.secondary);
        if !is_up(operation.kind) {
            return Ok(active.is_none() && passive.is_none());
        }
        // The new incarnation counts, and the old one, which was replaced, has ended.
        let own =
            active.filter(|id| operation.incarnation == Some(*id)).and_then(|id| self.incarnations.get(&id));
        let alongside =
            own.is_some_and(|own| own.progress == IncarnationProgress::Running && own.starts_after.is_none());
        Ok(replaces(operation.kind) && passive.is_none() && alongside)
    }

    /// Whether an operation that has not started is not wanted any more.
    fn is_unwanted(&mut self, operation: &Operation, at: FactLocation) -> Result<bool, InvariantViolation> {
        let ending = operation.deployment.as_ref().is_some_and(|deployment| {
            let of = self.plans.get(&operation.plan).and_then(|of| of.deployments.get(deployment));
            of.is_some_and(|of| matches!(of.stage, DeploymentStage::Ending(..)))
        });
        let input = self.input_of(at);
        let asked = match input.as_deref().and_then(LastInput::intent) {
            Some(Intent::ReplicaStart(ask)) => {
                operation.kind == OperationKind::Stop && ask.name == operation.replica
            }
            Some(Intent::ReplicaRestart(ask)) => {
                operation.kind == OperationKind::Stop && ask.name == operation.replica
            }
            Some(Intent::DisruptionComplete(ask)) => {
                let by = Requester::Disruption { node: ask.node.clone(), name: ask.name.clone() };
                operation.requested_by.as_ref() == Some(&by)
            }
            _ => false,
        };
        let replica = self.replica(&operation.replica)?.clone();
        let never = replica.desired == WillWord::Proposed;
        let is_gone = replica.active.is_none()
            || self.now.ended.iter().any(|ended| ended.replica == operation.replica && ended.by_itself)
            || self.now.failing.contains(&operation.replica);
        let about_nothing = operation.kind.needs_incarnation() && is_gone;
        // A start that found no placement is superseded by another version, which may find one.
        let unplaced = operation.kind == OperationKind::Start && operation.incarnation.is_none();
        let plan = self.plan(&operation.plan)?;
        let is_old = match plan.current.clone() {
            Some(to) => {
                plan.deployment(&to)?.stage == DeploymentStage::InProgress
                    && plan.deployment(&replica.deployment)?.version != plan.deployment(&to)?.version
            }
            None => false,
        };
        // A deployment that starts places the replicas.
        let is_placed = operation.purpose == Some(ProbePurpose::Rebalance) && plan.current.is_some();
        Ok(ending || asked || never || about_nothing || is_placed || (unplaced && is_old))
    }

    /// Ends an operation.
    pub(super) fn close(&mut self, id: OperationId, end: &OperationEnd, at: FactLocation) -> RuleResult {
        let operation = self.operation(id)?;
        let had_begun = operation.stage == OperationProgress::Running;
        let was_asked = operation.deployment.is_none() && operation.stage == OperationProgress::Pending;
        operation.stage = OperationProgress::Ended;
        operation.aborted = had_begun && matches!(end, OperationEnd::Cancelled { .. });
        operation.failed =
            had_begun && matches!(end, OperationEnd::Failed { .. } | OperationEnd::Cancelled { .. });
        let operation = operation.clone();
        let (name, kind) = (operation.replica.clone(), operation.kind);
        let succeeded = *end == OperationEnd::Succeeded;
        if had_begun {
            self.was_called_stalled(id, &operation, at)?;
        }
        if succeeded {
            self.progresses(&operation, at);
        } else if was_asked {
            self.people_decided(&operation, at);
        }
        if let Some(deployment) = operation.deployment {
            let deployment = self.plan(&operation.plan)?.deployment(&deployment)?;
            deployment.open -= 1;
            deployment.begun.remove(&id);
            deployment.rested = if succeeded { Some(at.time) } else { deployment.rested };
        }
        if operation.kind == OperationKind::Start && matches!(end, OperationEnd::Cancelled { .. }) {
            self.now.replaced.push((name.clone(), operation.requested_by.clone(), operation.wants.clone()));
        }
        let evicted = self.evictions.remove(&id);
        self.landed(id);
        let held = operation.incarnation;
        if let Some(held) = held.filter(|held| {
            self.incarnations.get(held).is_some_and(|i| i.progress == IncarnationProgress::Reserved)
        }) {
            self.obligations.push(RecordObligation::Freed(held));
        }
        let runs = self.replica(&name)?.active.and_then(|run| self.incarnations.get(&run));
        let is_well = runs.is_some_and(|run| run.progress == IncarnationProgress::Running && run.is_ready);
        let kept = matches!(end, OperationEnd::Superseded { .. } | OperationEnd::Cancelled { .. });
        let is_down = runs.is_none_or(|run| {
            matches!(run.progress, IncarnationProgress::Reserved | IncarnationProgress::Stopping(_))
        });
        let aborted = matches!(end, OperationEnd::Cancelled { .. });
        let undone = had_begun && replaces(kind) && (aborted || matches!(end, OperationEnd::Failed { .. }));
        let is_left = self.replica(&name)?.active.is_some();
        let restarts = self.plan(&operation.plan)?.latest()?.restart != RestartPolicy::Never;
        let replica = self.replica(&name)?;
        if undone && is_down {
            // After a failure the rule decides: it has decided, or does when the incarnation ends.
            let by_rule = if is_left { restarts } else { replica.next_restart.is_some() };
            replica.recovers = replica.desired == WillWord::Running && (aborted || by_rule);
        }
        if matches!(operation.requested_by, Some(Requester::Rule(_))) && !had_begun && !kept {
            // The rule has kept its promise.
            (replica.next_restart, replica.recovers) = (None, false);
        }
        if operation.kind == OperationKind::Start && operation.requested_by.is_none() && had_begun && !kept {
            (replica.next_restart, replica.recovers) = (None, false);
        }
        if evicted && matches!(end, OperationEnd::Failed { .. }) && !is_well {
            replica.downed = replica.desired == WillWord::Running;
        }
        replica.open.retain(|open| *open != id);
        if succeeded && kind == OperationKind::Delete {
            replica.is_going = true;
        }
        // A failed stop is no stop.
        if !succeeded && replica.stop.is_some_and(|stop| stop.operation == Some(id)) {
            replica.stop = None;
        }
        Ok(())
    }

    /// Notes that an operation approved by a policy ended, or that its approval is void.
    pub(super) fn landed(&mut self, id: OperationId) {
        self.in_flight.values_mut().for_each(|of| {
            of.remove(&id);
        });
    }
}

impl Replica {
    /// Notes the approval of an operation on the replica. A stop or delete only counts once started.
    fn wants(&mut self, kind: OperationKind) {
        self.desired = match kind {
            OperationKind::Create | OperationKind::Start => WillWord::Running,
            OperationKind::Update
            | OperationKind::Relocate
            | OperationKind::Restart
            | OperationKind::Reboot => self.desired,
            OperationKind::Stop => WillWord::Stopped,
            OperationKind::Delete => WillWord::Deleted,
        };
        self.downed &= self.desired == WillWord::Running;
        self.recovers &= self.desired == WillWord::Running;
        if self.desired != WillWord::Running {
            self.next_restart = None;
        }
    }
}

fn undone(name: &ReplicaName, kind: OperationKind, stop: UserStop) -> InvariantViolation {
    InvariantViolation::new(
        7,
        format!("a {kind} undoes the stop of replica {name} that a user wanted at {}", stop.at),
    )
}
