//! Steps of a deployment: from its work to facts.

use std::cmp::Reverse;

use chancery_events::fact::{
    DeploymentCutOver, DeploymentEnd, DeploymentEnded, DeploymentHalted, DeploymentStalled,
    DeploymentStarted, Fact, OperationEnd, PlanDeleted, ReplicaCreated, ReplicaDeploymentChanged, Requester,
};
use chancery_events::id::Position;
use chancery_events::lifecycle::WillWord;
use chancery_events::name::{DeploymentName, PlanName, ReplicaName};
use chancery_events::spec::{DeploymentStrategy, OperationKind, TimeoutAction};

use super::waits::{self, DeploymentWait};
use super::{is_begun, rollback};
use crate::context::{DecisionContext, FactDraft};
use crate::fleet::{DeploymentKey, FleetState};
use crate::index::{DeletionCandidates, DeploymentWork, PlanIndex};
use crate::index_keys::DeploymentStage;
use crate::operation::{self, OperationRequest, StartTrigger};
use crate::state::{Deployment, DeploymentState, Incarnation, Operation, Plan, Replica};

/// Returns the next step of the plan's deployments. Empty if no step is due.
pub(crate) fn step(fleet: &FleetState, name: &PlanName, ctx: &DecisionContext) -> Vec<Fact> {
    let work = fleet.index().plan_index(name).and_then(PlanIndex::work);
    let mut draft = FactDraft::new(ctx);
    if let Some((_, work)) = work.filter(|(from, _)| *from <= ctx.now)
        && let Some(plan) = fleet.plans().get(name)
    {
        carry_out(fleet, plan, work, ctx, &mut draft);
    }
    draft.done()
}

/// Position of the fact that made the next step of the plan's deployments possible: the last change of what the
/// step is about, or the last success, which let the deployment continue.
pub(crate) fn cause(fleet: &FleetState, name: &PlanName) -> Option<Position> {
    let plan = fleet.plans().get(name)?;
    let (_, work) = fleet.index().plan_index(name).and_then(PlanIndex::work)?;
    let of_plan = plan.meta.changed.position;
    let Some(current) = super::current(fleet, plan) else { return Some(of_plan) };
    let changed = current.meta.changed.position;
    let success = current.last_success.map_or(changed, |last| last.position);
    Some(match work {
        DeploymentWork::Start | DeploymentWork::Remove | DeploymentWork::Forget => of_plan,
        DeploymentWork::Begin(id) => {
            let queued = fleet.operations().get(&id).map_or(changed, |queued| queued.meta.changed.position);
            queued.max(success)
        }
        DeploymentWork::Complete
        | DeploymentWork::CutOver
        | DeploymentWork::Create
        | DeploymentWork::Delete
        | DeploymentWork::Assign(_)
        | DeploymentWork::Restart(_)
        | DeploymentWork::Update(_) => changed.max(success),
        DeploymentWork::Cancel(_)
        | DeploymentWork::Abort(_)
        | DeploymentWork::AbortStart(_)
        | DeploymentWork::TakeBack(_)
        | DeploymentWork::End => changed,
    })
}

fn carry_out(
    fleet: &FleetState,
    plan: &Plan,
    work: DeploymentWork,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    match work {
        DeploymentWork::Start => start(fleet, plan, ctx, draft),
        DeploymentWork::Forget => draft.push(PlanDeleted { name: plan.name.clone() }),
        DeploymentWork::Remove => {
            let by = Requester::Rule(format!("plan/{}/removal", plan.name));
            // Replica whose delete waits for approval.
            let undecided = || {
                let (_, name) = fleet.index().plan_index(&plan.name)?.undecided.first()?;
                fleet.replicas().get(name)
            };
            let replica = victim(fleet, plan).or_else(undecided);
            delete(fleet, replica, &OperationRequest::by(OperationKind::Delete, Some(by)), ctx, draft);
        }
        DeploymentWork::Cancel(_)
        | DeploymentWork::Abort(_)
        | DeploymentWork::AbortStart(_)
        | DeploymentWork::TakeBack(_)
        | DeploymentWork::End
        | DeploymentWork::Complete
        | DeploymentWork::CutOver
        | DeploymentWork::Create
        | DeploymentWork::Delete
        | DeploymentWork::Assign(_)
        | DeploymentWork::Restart(_)
        | DeploymentWork::Update(_)
        | DeploymentWork::Begin(_) => {
            if let Some(current) = super::current(fleet, plan) {
                of_current(fleet, plan, current, work, ctx, draft);
            }
        }
    }
}

fn of_current(
    fleet: &FleetState,
    plan: &Plan,
    current: &Deployment,
    work: DeploymentWork,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let name = &current.name;
    let want = |kind| OperationRequest::of(kind, name);
    let replica = |name: &ReplicaName| fleet.replicas().get(name);
    let end = |end| DeploymentEnded { plan: plan.name.clone(), name: name.clone(), end };
    match work {
        DeploymentWork::Cancel(id) => {
            if let Some(operation) = fleet.operations().get(&id) {
                let replica = replica(&operation.replica);
                // The replica is new. If its create was never approved, both are deleted together.
                let is_new = operation.kind == OperationKind::Create
                    && replica.is_some_and(|replica| replica.desired == WillWord::Running);
                if is_new {
                    take_back(fleet, plan, current, &operation.replica, ctx, draft);
                } else {
                    let reason = format!("deployment {name} is ending");
                    operation::end(fleet, operation, OperationEnd::Cancelled { reason }, draft);
                }
            }
        }
        DeploymentWork::Abort(id) => {
            if let Some(operation) = fleet.operations().get(&id) {
                if operation.kind == OperationKind::Create {
                    // The replica is new.
                    take_back(fleet, plan, current, &operation.replica, ctx, draft);
                } else {
                    let reason = format!("deployment {name} is ending");
                    operation::abort(fleet, operation, reason, ctx, draft);
                }
            }
        }
        DeploymentWork::AbortStart(id) => {
            if let Some(operation) = fleet.operations().get(&id) {
                let reason = format!("deployment {name} gives the replica another version");
                operation::abort(fleet, operation, reason, ctx, draft);
            }
        }
        DeploymentWork::TakeBack(built) => take_back(fleet, plan, current, &built, ctx, draft),
        DeploymentWork::End => {
            if let DeploymentState::Halted(why) = &current.state {
                draft.push(end(why.clone()));
                if let DeploymentEnd::Failed { cause } = why {
                    rollback::follow(fleet, plan, current, cause, ctx, draft);
                }
            }
        }
        DeploymentWork::Complete => draft.push(end(DeploymentEnd::Completed)),
        DeploymentWork::CutOver => {
            draft.push(DeploymentCutOver { plan: plan.name.clone(), name: name.clone() });
        }
        DeploymentWork::Create => create_one(plan, current, draft),
        DeploymentWork::Delete => {
            delete(fleet, victim(fleet, plan), &want(OperationKind::Delete), ctx, draft);
        }
        DeploymentWork::Assign(still) => {
            if let Some(still) = replica(&still) {
                assign(fleet, still, name, draft);
            }
        }
        DeploymentWork::Restart(idle) => {
            if let Some(idle) = replica(&idle) {
                operation::open(fleet, idle, &want(OperationKind::Start), ctx, draft);
            }
        }
        DeploymentWork::Update(free) => {
            if let Some(free) = replica(&free) {
                let want = OperationRequest { version: Some(name), ..want(OperationKind::Update) };
                operation::open(fleet, free, &want, ctx, draft);
            }
        }
        DeploymentWork::Begin(id) => {
            if let Some(operation) = fleet.operations().get(&id) {
                operation::begin_existing(fleet, operation, StartTrigger::Dequeue, ctx, draft);
            }
        }
        // Work that concerns the plan, not a deployment.
        DeploymentWork::Start | DeploymentWork::Remove | DeploymentWork::Forget => {}
    }
}

/// Whether the current deployment gives the replica its version, if the operation that restores the replica
/// finds no placement.
pub(crate) fn takes_over(fleet: &FleetState, plan: &Plan, operation: &Operation, replica: &Replica) -> bool {
    let Some(index) = fleet.index().plan_index(&plan.name) else { return false };
    let Some((_, current)) = index.current() else { return false };
    let own = index.deployments.get(&replica.deployment).and_then(|of| of.version);
    operation.kind == OperationKind::Start
        && replica.recovers
        && replica.is_without_place()
        && current.stage == Some(DeploymentStage::InProgress)
        && !current.runs_alongside()
        && own != current.version
}

/// Gives the replica the version of the current deployment.
pub(crate) fn take_over(fleet: &FleetState, plan: &Plan, replica: &Replica, draft: &mut FactDraft) {
    if let Some(current) = super::current(fleet, plan) {
        assign(fleet, replica, &current.name, draft);
    }
}

/// Gives the version to a replica that does not run. Its unplaced operation ends; if a client requested that
/// operation, it is created again for the new version.
fn assign(fleet: &FleetState, still: &Replica, version: &DeploymentName, draft: &mut FactDraft) {
    let waiting = still.operation.and_then(|open| fleet.operations().get(&open.id));
    if let Some(waiting) = waiting {
        let reason = format!("deployment {version} gives the replica another version");
        operation::end(fleet, waiting, OperationEnd::Cancelled { reason }, draft);
    }
    if still.desired == WillWord::Proposed {
        return; // it was never approved, and is deleted with its create
    }
    let (name, plan, deployment) = (still.name.clone(), still.plan.clone(), version.clone());
    draft.push(ReplicaDeploymentChanged { name, plan, deployment });
    let asked =
        waiting.filter(|waiting| matches!(waiting.requested_by.as_deref(), Some(Requester::Actor(_))));
    if let Some(asked) = asked {
        let want = OperationRequest {
            node: asked.required_node.as_ref(),
            ..OperationRequest::by(asked.kind, asked.requested_by.as_deref().cloned())
        };
        operation::push_opened(&still.name, &want, None, draft);
    }
}

fn start(fleet: &FleetState, plan: &Plan, ctx: &DecisionContext, draft: &mut FactDraft) {
    let Some(name) = plan.next.clone() else { return };
    let Some(next) = fleet.deployment(&plan.name, &name) else { return };
    let deadline = match next.spec.strategy {
        DeploymentStrategy::BlueGreen { timeout, .. } => {
            Some(ctx.now + std::time::Duration::from_millis(timeout))
        }
        DeploymentStrategy::Rolling { .. } | DeploymentStrategy::Canary { .. } => None,
    };
    draft.push(DeploymentStarted { plan: plan.name.clone(), name, deadline });
}

fn delete(
    fleet: &FleetState,
    victim: Option<&Replica>,
    want: &OperationRequest<'_>,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    if let Some(victim) = victim {
        operation::open(fleet, victim, want, ctx, draft);
    }
}

/// Surplus replica to delete: on a disturbed node (of several, by name). Otherwise, of the candidates of the
/// index, the newest on the node with the most remaining replicas of the plan.
fn victim<'a>(fleet: &'a FleetState, plan: &Plan) -> Option<&'a Replica> {
    let index = fleet.index().plan_index(&plan.name)?;
    let disturbed = index.victim_is_well().then(|| on_disturbed_node(fleet, plan)).flatten();
    disturbed.or_else(|| {
        let victims = index.victims()?;
        on_crowded_node(fleet, plan, &victims).or_else(|| fleet.replicas().get(victims.newest()?))
    })
}

fn on_crowded_node<'a>(
    fleet: &'a FleetState,
    plan: &Plan,
    victims: &DeletionCandidates<'_>,
) -> Option<&'a Replica> {
    let spread = &fleet.index().plan_index(&plan.name)?.spread;
    spread.crowded_nodes(victims.domain.as_ref()?).find_map(|(_, node)| {
        let victims = fleet
            .replicas_on(node, &plan.name)
            .filter(|replica| replica.remaining().is_some_and(|run| run.node == *node))
            .filter(|replica| victims.contains(replica));
        victims.min_by_key(|replica| (Reverse(replica.meta.created.position), &replica.name))
    })
}

fn on_disturbed_node<'a>(fleet: &'a FleetState, plan: &Plan) -> Option<&'a Replica> {
    let disturbed = fleet.index().disturbed.iter();
    let replicas = disturbed.flat_map(|node| fleet.replicas_on(node, &plan.name));
    replicas.filter(|replica| !replica.is_deleting()).min_by_key(|replica| &replica.name)
}

/// Deletes a replica that the deployment created.
fn take_back(
    fleet: &FleetState,
    plan: &Plan,
    current: &Deployment,
    built: &ReplicaName,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let by = Some(Requester::Rule(format!("deployment/{}/{}/rollback", plan.name, current.name)));
    let want =
        OperationRequest { requested_by: by, ..OperationRequest::of(OperationKind::Delete, &current.name) };
    delete(fleet, fleet.replicas().get(built), &want, ctx, draft);
}

fn create_one(plan: &Plan, deployment: &Deployment, draft: &mut FactDraft) {
    let name = ReplicaName::issue(plan.version_of(deployment.generation).service(), draft.position());
    let by = deployment.name.clone();
    draft.push(ReplicaCreated { name: name.clone(), plan: plan.name.clone(), deployment: by.clone() });
    operation::push_opened(&name, &OperationRequest::of(OperationKind::Create, &by), None, draft);
}

fn failed(key: (PlanName, DeploymentName), cause: String) -> DeploymentHalted {
    DeploymentHalted { plan: key.0, name: key.1, end: DeploymentEnd::Failed { cause } }
}

/// Fails the deployment of an operation that failed, expired or was rejected, with that cause.
pub(crate) fn fail(fleet: &FleetState, operation: &Operation, cause: String, draft: &mut FactDraft) {
    let Some(name) = &operation.deployment else { return };
    let key = (operation.plan.clone(), name.clone());
    if fleet.deployments().get(&key).is_some_and(is_begun) && draft.first_to_fail(&key) {
        draft.push(failed(key, cause));
    }
}

/// Fails the current deployment if it has the version of a replica that ran and ended on its own.
pub(crate) fn disturb(
    fleet: &FleetState,
    incarnation: &Incarnation,
    reason: Option<&str>,
    draft: &mut FactDraft,
) {
    let Some(plan) = fleet.plans().get(&incarnation.plan) else { return };
    let Some(current) = super::current(fleet, plan).filter(|current| is_begun(current)) else { return };
    let own = fleet.deployment(&plan.name, &incarnation.deployment);
    if own.is_some_and(|own| own.version == current.version) {
        let how = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        let cause = format!("replica {} ended without a request{how}", incarnation.replica);
        let key = (plan.name.clone(), current.name.clone());
        if draft.first_to_fail(&key) {
            draft.push(failed(key, cause));
        }
    }
}

/// Handles the deadline of a deployment's new set. A set that is ready at the very deadline is in time.
pub(crate) fn overdue(fleet: &FleetState, key: &DeploymentKey) -> Vec<Fact> {
    let Some(deployment) = fleet.deployments().get(key) else { return Vec::new() };
    let work = fleet.index().plan_index(&key.0).and_then(PlanIndex::work);
    let ready = matches!(work, Some((_, DeploymentWork::CutOver)));
    let commits = matches!(
        deployment.spec.strategy,
        DeploymentStrategy::BlueGreen { on_timeout: TimeoutAction::CutOver, .. }
    );
    if ready || commits {
        vec![DeploymentCutOver { plan: key.0.clone(), name: key.1.clone() }.into()]
    } else {
        vec![failed(key.clone(), "the new set was not ready in time".into()).into()]
    }
}

/// Reports the plan's deployment as stalled when its progress deadline has passed. The deployment fails if it
/// requests a rollback.
pub(crate) fn no_progress(fleet: &FleetState, name: &PlanName, ctx: &DecisionContext) -> Vec<Fact> {
    let mut draft = FactDraft::new(ctx);
    let Some(plan) = fleet.plans().get(name) else { return Vec::new() };
    let Some(current) = super::current(fleet, plan) else { return Vec::new() };
    let Some(since) = current.progressed else { return Vec::new() };
    let wait = waits::waits_for(fleet, plan, current);
    let describe =
        |how: fn(&DeploymentWait) -> String| wait.as_ref().map_or_else(|| "its next step".to_owned(), how);
    let key = (name.clone(), current.name.clone());
    draft.push(DeploymentStalled {
        plan: name.clone(),
        name: current.name.clone(),
        since,
        waits_for: describe(DeploymentWait::to_string),
    });
    if current.spec.auto_rollback {
        let span = span_text(current.spec.progress_deadline);
        // The cause stays when the deployment has ended: it has no remedy.
        let waited_for = describe(DeploymentWait::cause);
        draft.push(failed(key, format!("no progress for {span}: waits for {waited_for}")));
    }
    draft.done()
}

/// Formats a duration in milliseconds in its largest whole unit.
fn span_text(millis: u64) -> String {
    match millis {
        _ if millis.is_multiple_of(60_000) => format!("{} min", millis / 60_000),
        _ if millis.is_multiple_of(1000) => format!("{} s", millis / 1000),
        _ => format!("{millis} ms"),
    }
}
