//! Folding of operation facts.

use std::time::Duration;

use chancery_events::fact::{
    ApprovalActor, ApprovalStart, OperationApproved, OperationCreated, OperationEnd, OperationEnded,
    OperationStarted, Requester, RestartBackoff,
};
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::lifecycle::WillWord;
use chancery_events::spec::{OperationKind, RestartPolicy};

use super::end_word;
use crate::fleet::{FleetState, FoldResult};
use crate::meta::{EntityMeta, FactPosition, FactStamp};
use crate::state::{
    Deployment, DrainBackoff, IncarnationState, OpenOperation, Operation, OperationState, Plan, Replica,
};
use crate::{deployment, incarnation, rebalance};

/// Minimum delay until a disruption moves another replica of a plan after a failed move.
const SETBACK: Duration = Duration::from_secs(1);

/// Maximum number of ended operations kept for each replica.
const KEPT: usize = 20;

pub(crate) fn created(fleet: &mut FleetState, fact: &OperationCreated, at: FactPosition) -> FoldResult {
    let id = OperationId::issue(at.lineage, at.position);
    let replica = fleet.require::<Replica>(&fact.replica)?;
    let (plan, version) =
        (replica.plan.clone(), fact.version.clone().unwrap_or_else(|| replica.deployment.clone()));
    // An operation without placement concerns the active incarnation.
    let active = replica.active.as_ref().filter(|_| fact.proposal.is_some()).cloned();
    let in_place = matches!(fact.kind, OperationKind::Update | OperationKind::Reboot);
    let of = fleet.plans().get(&plan).zip(fleet.deployment(&plan, &version));
    // Existing volumes, or volumes that others may create, restrict the placement.
    let needs = of.map(|(plan, of)| plan.version_of(of.generation)).filter(|needs| needs.has_volumes());
    let owns = || fleet.index().volumes.owned(&fact.replica).next().is_some();
    let stores = needs.is_some_and(|needs| needs.claims_by_name() || owns());
    let by_rule = matches!(fact.requested_by, Some(Requester::Rule(_)));
    let brings_up = !matches!(fact.kind, OperationKind::Stop | OperationKind::Delete);
    fleet.bump::<Replica>(&fact.replica, at, |replica| {
        let gives_way = match fact.kind {
            OperationKind::Start => true,
            OperationKind::Create => fact.deployment.is_none(),
            // The active incarnation continues, or none is started.
            OperationKind::Update
            | OperationKind::Relocate
            | OperationKind::Restart
            | OperationKind::Reboot
            | OperationKind::Stop
            | OperationKind::Delete => false,
        };
        let open = Some(OpenOperation {
            id,
            kind: fact.kind,
            started: false,
            replaceable: gives_way,
            regains: false,
        });
        if replica.operation.is_none() {
            replica.operation = open;
        } else {
            replica.queued_operation = open;
        }
        replica.operations.push(id);
        if brings_up {
            // A start by the plan's rule extends the sequence of restarts; any other ends it.
            replica.last_restart = replica
                .next_restart
                .filter(|_| by_rule)
                .map(|again| RestartBackoff { not_before: at.time, consecutive: again.consecutive });
        }
    })?;
    fleet.put(Operation {
        id,
        replica: fact.replica.clone(),
        plan,
        kind: fact.kind,
        deployment: fact.deployment.clone(),
        requested_by: fact.requested_by.clone().map(Box::new),
        version,
        required_node: fact.node.clone(),
        purpose: fact.purpose,
        volume_bound: stores,
        state: fact.proposal.map_or(OperationState::Preparing, OperationState::PendingApproval),
        hash: fact.proposal.map(|proposal| proposal.hash),
        approved: None,
        incarnation: active.as_ref().filter(|_| in_place).map(|active| active.incarnation),
        node: active.as_ref().filter(|_| in_place).map(|active| active.node.clone()),
        domain: active.map(|active| active.domain),
        is_past_return: false,
        meta: EntityMeta::new(at),
    });
    Ok(())
}

pub(crate) fn approved(fleet: &mut FleetState, fact: &OperationApproved, at: FactPosition) -> FoldResult {
    let begins = fact.start == ApprovalStart::Immediate;
    let keeps_promise = fleet.require::<Operation>(&fact.operation)?.keeps_promise();
    let by = fleet.change_and(&fact.operation, |operation: &mut Operation| {
        operation.state = if begins { OperationState::Running } else { OperationState::Approved };
        operation.approved = Some((fact.approved_by.clone(), FactStamp::from(at)));
        operation.incarnation = operation.incarnation.or(fact.incarnation);
        operation.meta.bump(at);
        incarnation::OperationRef::from(operation)
    })?;
    // An approval by the plan's own rule needed no decision.
    let by_rule = matches!(fact.approved_by, ApprovalActor::Rule(_)) && fact.approved_by.policy().is_none();
    if !by_rule {
        decided(fleet, fact.operation, at)?;
    }
    fleet.touch::<Replica>(&fact.replica, at, |replica| {
        if begins || !matches!(by.kind, OperationKind::Stop | OperationKind::Delete) {
            wills(replica, by.kind);
        }
        if begins {
            note_begun(replica, fact.operation, keeps_promise);
        }
    })?;
    fact.incarnation.map_or(Ok(()), |id| incarnation::asked(fleet, id, by, fact.deadline, at))
}

/// Records a decision about an operation as progress of the deployment that waited for it.
fn decided(fleet: &mut FleetState, operation: OperationId, at: FactPosition) -> FoldResult {
    let operation = fleet.require::<Operation>(&operation)?;
    let plan = operation.plan.clone();
    let current = || fleet.plans().get(&plan).and_then(|plan| plan.current.clone());
    let name = operation.deployment.clone().or_else(current);
    name.map_or(Ok(()), |name| deployment::progress(fleet, &plan, &name, at))
}

/// Returns the backoff after another failed move of the plan by a disruption.
fn setback(plan: &Plan, run: IncarnationId, at: FactPosition) -> DrainBackoff {
    let row = plan.setback.map_or(1, |last| last.consecutive.saturating_add(1));
    let restart_delay = Duration::from_millis(*plan.immediate().restart_delay()).max(SETBACK);
    DrainBackoff { until: at.time + incarnation::wait(restart_delay, row), consecutive: row, run }
}

fn wills(replica: &mut Replica, kind: OperationKind) {
    replica.desired = match kind {
        OperationKind::Create | OperationKind::Start => WillWord::Running,
        // The desired state is set already.
        OperationKind::Update | OperationKind::Relocate | OperationKind::Restart | OperationKind::Reboot => {
            replica.desired
        }
        OperationKind::Stop => WillWord::Stopped,
        OperationKind::Delete => WillWord::Deleted,
    };
    replica.down_after_drain &= replica.desired == WillWord::Running;
    replica.recovers &= replica.desired == WillWord::Running;
    if replica.desired != WillWord::Running {
        replica.next_restart = None;
    }
}

fn note_begun(replica: &mut Replica, operation: OperationId, keeps_promise: bool) {
    let recovers = replica.recovers;
    if let Some(open) = replica.open_mut(operation) {
        open.started = true;
        open.regains = recovers && open.kind == OperationKind::Start;
        replica.recovers = false;
        // Any started operation but a deployment's start cancels the scheduled restart.
        if !keeps_promise {
            replica.next_restart = None;
        }
    }
}

pub(crate) fn started(fleet: &mut FleetState, fact: &OperationStarted, at: FactPosition) -> FoldResult {
    let keeps_promise = fleet.require::<Operation>(&fact.operation)?.keeps_promise();
    let by = fleet.change_and(&fact.operation, |operation: &mut Operation| {
        if operation.state == OperationState::Approved {
            operation.state = OperationState::Running;
        }
        operation.incarnation = operation.incarnation.or(fact.incarnation);
        operation.meta.bump(at);
        incarnation::OperationRef::from(operation)
    })?;
    fleet.touch::<Replica>(&fact.replica, at, |replica| {
        wills(replica, by.kind);
        note_begun(replica, fact.operation, keeps_promise);
    })?;
    fact.incarnation.map_or(Ok(()), |id| incarnation::asked(fleet, id, by, fact.deadline, at))
}

pub(crate) fn ended(fleet: &mut FleetState, fact: &OperationEnded, at: FactPosition) -> FoldResult {
    close(fleet, fact.operation, &fact.end, at, VersionUpdate::Bump)
}

/// Whether the active incarnation has ended, or is asked to end.
fn is_down(fleet: &FleetState, replica: &Replica) -> bool {
    let active = replica.active.as_ref().and_then(|active| fleet.incarnations().get(&active.incarnation));
    active.is_none_or(|active| {
        matches!(active.state, IncarnationState::Reserved | IncarnationState::Stopping(_))
    })
}

/// Whether the fact is primarily about the operation.
#[derive(Clone, Copy)]
pub(crate) enum VersionUpdate {
    Bump,
    Touch,
}

/// Ends the operation in the state, counts it, and removes the replica's oldest ended ones.
pub(crate) fn close(
    fleet: &mut FleetState,
    id: OperationId,
    end: &OperationEnd,
    at: FactPosition,
    version: VersionUpdate,
) -> FoldResult {
    let operation = fleet.require::<Operation>(&id)?;
    let (replica, plan, kind) = (operation.replica.clone(), operation.plan.clone(), operation.kind);
    let succeeded = *end == OperationEnd::Succeeded;
    let evicts = operation.is_drain();
    let keeps_promise = operation.keeps_promise();
    let stops = rebalance::stops_after(operation, end);
    let failed = matches!(end, OperationEnd::Failed { .. });
    let aborted = matches!(end, OperationEnd::Cancelled { .. });
    let replaces = operation.replaces();
    // The end of a waiting start fulfils the rule's promise, unless the start was superseded or cancelled.
    let begun = matches!(operation.state, OperationState::Running);
    let kept = matches!(end, OperationEnd::Superseded { .. } | OperationEnd::Cancelled { .. });
    let fulfilled = matches!(operation.requested_by.as_deref(), Some(Requester::Rule(_))) && !begun && !kept;
    let undone = begun && replaces && (aborted || failed);
    let rests = operation.deployment.clone().filter(|_| succeeded).map(|name| (plan.clone(), name));
    // A deployment handles the ends of its own pending operations.
    if operation.deployment.is_none() && matches!(operation.state, OperationState::PendingApproval(_)) {
        decided(fleet, id, at)?;
    }
    fleet.change::<Operation>(&id, |operation| {
        operation.state = OperationState::Ended(end.clone());
        match version {
            VersionUpdate::Bump => operation.meta.bump(at),
            VersionUpdate::Touch => operation.meta.touch(at),
        }
    })?;
    let undone = undone && is_down(fleet, fleet.require::<Replica>(&replica)?);
    let restarts = fleet.require::<Plan>(&plan)?.immediate().restart() != &RestartPolicy::Never;
    fleet.touch::<Replica>(&replica, at, |replica| {
        if undone {
            // After a failure the rule decides: when the remaining incarnation ends, or it has decided
            // already.
            let by_rule = if replica.active.is_some() { restarts } else { replica.next_restart.is_some() };
            replica.recovers = replica.desired == WillWord::Running && (aborted || by_rule);
        }
        if replica.queued_operation.is_some_and(|next| next.id == id) {
            replica.queued_operation = None;
        }
        if replica.operation.is_some_and(|current| current.id == id) {
            replica.operation = replica.queued_operation.take();
        }
        if fulfilled || keeps_promise && begun && !kept {
            (replica.next_restart, replica.recovers) = (None, false);
        }
        // The failed move had stopped the replica first.
        if evicts && failed && replica.active.as_ref().is_none_or(|active| !active.healthy) {
            replica.down_after_drain = replica.desired == WillWord::Running;
        }
    })?;
    if let Some(key) = rests.filter(|key| fleet.deployments().get(key).is_some()) {
        fleet.change::<Deployment>(&key, |deployment| deployment.last_success = Some(at.into()))?;
        deployment::progress(fleet, &key.0, &key.1, at)?;
    }
    let run = fleet.require::<Replica>(&replica)?.active.as_ref().map(|active| active.incarnation);
    fleet.touch::<Plan>(&plan, at, |plan| {
        *plan.totals.entry((kind, end_word(end).word().to_owned())).or_default() += 1;
        if let (Some(rebalance), Some(_)) = (&mut plan.rebalance, &stops) {
            rebalance.stops = stops;
        }
        match (end, run) {
            (OperationEnd::Succeeded, _) if evicts => plan.setback = None,
            (OperationEnd::Failed { .. }, Some(run)) if evicts => plan.setback = Some(setback(plan, run, at)),
            // Other ends, or failures without an active incarnation, change no backoff.
            (
                OperationEnd::Succeeded
                | OperationEnd::Failed { .. }
                | OperationEnd::Rejected { .. }
                | OperationEnd::Expired
                | OperationEnd::Cancelled { .. }
                | OperationEnd::Superseded { .. },
                _,
            ) => {}
        }
    })?;
    let open = |id: &OperationId| fleet.operations().get(id).is_some_and(Operation::is_open);
    let over: Vec<_> =
        fleet.require::<Replica>(&replica)?.operations.iter().filter(|id| !open(id)).copied().collect();
    let gone = over[..over.len().saturating_sub(KEPT)].to_vec();
    if gone.is_empty() {
        return Ok(());
    }
    for id in &gone {
        fleet.remove::<Operation>(id)?;
    }
    fleet.change::<Replica>(&replica, |replica| replica.operations.retain(|id| !gone.contains(id)))
}
