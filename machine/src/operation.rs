//! Operations: approved changes of one replica.
//!
//! | state | place found | approve | reject | expiry | deployment ends | stop or delete of the replica | done |
//! |---|---|---|---|---|---|---|---|
//! | preparing | → pending approval, or approved by rule | refused | → rejected | – | → cancelled | → superseded | – |
//! | pending approval | – | → running | → rejected | → expired | → cancelled | → superseded | – |
//! | running | – | refused | refused | – | settles | → superseded, once that is approved | → succeeded, failed |
//! | ended | final | | | | | | |
//!
//! Create and start find their place, and hold it, before approval, so that the approver sees the node. Approval is
//! bound to the hash of what will be done. The replica's will changes with approval, in the same fact.

use std::sync::Arc;

use chancery_events::digest::Digest;
use chancery_events::fact::{
    Approver, Fact, IncarnationEnd, IncarnationEnded, IncarnationReserved, OperationApproved, OperationEnd,
    OperationEnded, OperationOpened, PlanWaiting, Proposal, ReplicaDeleted,
};
use chancery_events::id::OperationId;
use chancery_events::intent::{OperationApprove, OperationReject};
use chancery_events::name::{DeploymentName, NodeName};
use chancery_events::planted::{self, Bug};
use chancery_events::refusal::{Code, Refusal};
use chancery_events::spec::{Approval, OperationKind, PlanSpec, Runtime};
use chancery_events::subject::Subject;
use chancery_events::time::Time;

use crate::context::{Context, Draft};
use crate::fleet::{Contradiction, Fleet};
use crate::meta::{At, Meta, Stamp};
use crate::refuse::{Faults, not_found};
use crate::scheduler::{Place, Search};
use crate::state::{
    Deployment, Incarnation, IncarnationState, Operation, OperationState, Plan, Replica, Will,
};
use crate::{deployment, incarnation};

/// Operations in one approval or rejection, at most.
const BULK: usize = 200;
/// Operations of a replica that are over are kept so many.
const KEPT: usize = 20;

/// The name of the rule of a plan that approves by itself.
fn rule(plan: &Plan, kind: OperationKind) -> Approver {
    Approver::Rule(format!("plan/{}/approval/{kind}", plan.name))
}

/// What stands in the way of running the spec on the node, whoever approves it.
fn obstacle(fleet: &Fleet, node: &NodeName, spec: &PlanSpec) -> Option<String> {
    if let Some(payload) = spec.payloads.iter().find(|payload| !payload.volumes.is_empty()) {
        return Some(format!("payload {} needs volumes, which this build cannot provide yet", payload.name));
    }
    let cluster = fleet.clusters().get(fleet.nodes().get(node)?.cluster.as_ref()?)?;
    let empty = spec.payloads.iter().find(|payload| payload.run.is_none());
    match (cluster.spec.runtime, empty) {
        (Runtime::Process, Some(payload)) => Some(format!(
            "payload {} says nothing to run, and cluster {} runs processes",
            payload.name, cluster.name
        )),
        (Runtime::Process | Runtime::Simulated, _) => None,
    }
}

fn spec_of<'a>(
    fleet: &'a Fleet,
    operation: &Operation,
) -> Option<(&'a Plan, &'a Deployment, &'a Arc<PlanSpec>)> {
    let plan = fleet.plans().get(&operation.plan)?;
    let replica = fleet.replicas().get(&operation.replica)?;
    let deployment = fleet.deployments().get(&(plan.name.clone(), replica.deployment.clone()))?;
    Some((plan, deployment, plan.spec_of(deployment.generation)))
}

pub(crate) fn approve(fleet: &Fleet, ask: &OperationApprove, ctx: &Context) -> Result<Vec<Fact>, Refusal> {
    let mut faults = Faults::default();
    faults.check(!ask.operations.is_empty(), "/operations", "must name at least one");
    faults.check(ask.operations.len() <= BULK, "/operations", format!("must be at most {BULK}"));
    let mut seen = std::collections::BTreeSet::new();
    for (i, shown) in ask.operations.iter().enumerate() {
        faults.check(seen.insert(shown.operation), format!("/operations/{i}"), "is named twice");
    }
    faults.done()?;
    let mut draft = Draft::new(ctx);
    let by = Approver::Actor(
        ctx.actor.clone().ok_or_else(|| Refusal::new(Code::Invalid, "an approval needs an actor"))?,
    );
    for (i, shown) in ask.operations.iter().enumerate() {
        let id = shown.operation;
        let pointer = format!("/operations/{i}");
        let operation = fleet
            .operations()
            .get(&id)
            .ok_or_else(|| not_found(&Subject::Operation(id)).at(pointer.as_str(), "does not exist"))?;
        let OperationState::PendingApproval(proposal) = &operation.state else {
            let detail = format!("operation {id} is {}, not pending approval", state_word(&operation.state));
            return Err(Refusal::new(Code::NotPending, detail).at(pointer, "does not wait for approval"));
        };
        if proposal.expires <= ctx.now && !planted::is(Bug::ApprovesExpired) {
            let detail = format!("operation {id} expired at {}", proposal.expires);
            return Err(Refusal::new(Code::NotPending, detail).at(pointer, "has expired"));
        }
        if proposal.hash != shown.hash && !planted::is(Bug::ApprovesAnyHash) {
            let detail = format!("operation {id} would do something else than was shown: look at it again");
            return Err(Refusal::new(Code::HashMismatch, detail).at(format!("{pointer}/hash"), "differs"));
        }
        let place = operation.node.as_ref();
        let spec = spec_of(fleet, operation).map(|(.., spec)| spec);
        if let Some(obstacle) = place.zip(spec).and_then(|(node, spec)| obstacle(fleet, node, spec)) {
            return Err(Refusal::new(Code::Unsupported, obstacle).at(pointer, "cannot be carried out"));
        }
        run(fleet, operation, proposal.hash, by.clone(), ctx, &mut draft);
    }
    Ok(draft.done())
}

pub(crate) fn reject(fleet: &Fleet, ask: &OperationReject, ctx: &Context) -> Result<Vec<Fact>, Refusal> {
    let mut faults = Faults::default();
    faults.check(!ask.operations.is_empty(), "/operations", "must name at least one");
    faults.check(ask.operations.len() <= BULK, "/operations", format!("must be at most {BULK}"));
    let plain = ask.reason.len() <= 512 && !ask.reason.chars().any(char::is_control);
    faults.check(plain, "/reason", "must be at most 512 bytes, without control characters");
    let mut seen = std::collections::BTreeSet::new();
    for (i, id) in ask.operations.iter().enumerate() {
        faults.check(seen.insert(id), format!("/operations/{i}"), "is named twice");
    }
    faults.done()?;
    let by = ctx.actor.clone().ok_or_else(|| Refusal::new(Code::Invalid, "a rejection needs an actor"))?;
    let mut draft = Draft::new(ctx);
    let mut failed = std::collections::BTreeSet::new();
    for (i, id) in ask.operations.iter().enumerate() {
        let place = format!("/operations/{i}");
        let operation = fleet
            .operations()
            .get(id)
            .ok_or_else(|| not_found(&Subject::Operation(*id)).at(place.as_str(), "does not exist"))?;
        if !matches!(operation.state, OperationState::PendingApproval(_) | OperationState::Preparing) {
            let detail = format!("operation {id} is {}, not pending approval", state_word(&operation.state));
            return Err(Refusal::new(Code::NotPending, detail).at(place, "does not wait for approval"));
        }
        let end = OperationEnd::Rejected { by: by.clone(), reason: ask.reason.clone() };
        // A deployment fails once, however many of its operations are rejected together.
        let first = failed.insert((operation.plan.clone(), operation.deployment.clone()));
        end_with(fleet, operation, end, if first { Blame::Deployment } else { Blame::Nobody }, &mut draft);
    }
    Ok(draft.done())
}

/// The word for a state.
pub fn state_word(state: &OperationState) -> &'static str {
    match state {
        OperationState::Preparing => "preparing",
        OperationState::PendingApproval(_) => "pending_approval",
        OperationState::Running(_) => "running",
        OperationState::Ended(end) => end_word(end),
    }
}

/// The word for how an operation ended.
pub fn end_word(end: &OperationEnd) -> &'static str {
    match end {
        OperationEnd::Succeeded => "succeeded",
        OperationEnd::Failed { .. } => "failed",
        OperationEnd::Rejected { .. } => "rejected",
        OperationEnd::Expired => "expired",
        OperationEnd::Cancelled { .. } => "cancelled",
        OperationEnd::Superseded { .. } => "superseded",
    }
}

/// Opens a stop or delete, ending what waits on the replica, and approving it where the plan's rule does.
pub(crate) fn open_end(
    fleet: &Fleet,
    replica: &Replica,
    kind: OperationKind,
    deployment: Option<&DeploymentName>,
    ctx: &Context,
    draft: &mut Draft,
) {
    let waiting: Vec<&Operation> = [replica.next, replica.operation]
        .into_iter()
        .flatten()
        .filter_map(|(id, _)| fleet.operations().get(&id))
        .filter(|operation| !matches!(operation.state, OperationState::Running(_)))
        .collect();
    if replica.will == Will::Proposed && kind == OperationKind::Delete {
        // Nobody ever approved anything of it: it goes with its create.
        for operation in &waiting {
            let reason = "the replica is not wanted any more".to_owned();
            end(fleet, operation, OperationEnd::Cancelled { reason }, draft);
        }
        if waiting.is_empty() {
            draft.push(ReplicaDeleted { name: replica.name.clone() });
        }
        return;
    }
    // What waits ends by the id of the new operation, which stands behind those ends.
    let before = waiting.iter().map(|operation| 1 + u64::from(holds_place(fleet, operation).is_some())).sum();
    let id = OperationId::issue(ctx.lineage, draft.position().plus(before));
    for operation in waiting {
        end_with(fleet, operation, OperationEnd::Superseded { by: id }, Blame::Nobody, draft);
    }
    let Some(plan) = fleet.plans().get(&replica.plan) else { return };
    let hash = Digest::of(&[kind.word().as_bytes(), replica.name.as_str().as_bytes()]);
    let proposal = Proposal { hash, expires: ctx.now + plan.spec.timeouts.approval() };
    draft.push(OperationOpened {
        replica: replica.name.clone(),
        kind,
        deployment: deployment.cloned(),
        proposal: Some(proposal),
    });
    if plan.spec.approval.of(kind) == Approval::Automatic {
        down(fleet, replica, id, kind, hash, rule(plan, kind), ctx, draft);
    }
}

/// An incarnation that the operation holds and nobody was asked to start.
fn holds_place<'a>(fleet: &'a Fleet, operation: &Operation) -> Option<&'a Incarnation> {
    let held = operation.incarnation.and_then(|id| fleet.incarnations().get(&id))?;
    (held.state == IncarnationState::Reserved).then_some(held)
}

/// Whom an operation's end reflects on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blame {
    Deployment,
    Nobody,
}

/// Ends an operation, with the place that it only held; a replica that never was approved goes too, and the
/// deployment fails if that was its operation coming to nothing.
pub(crate) fn end(fleet: &Fleet, operation: &Operation, how: OperationEnd, draft: &mut Draft) {
    end_with(fleet, operation, how, Blame::Deployment, draft);
}

fn end_with(fleet: &Fleet, operation: &Operation, how: OperationEnd, blame: Blame, draft: &mut Draft) {
    let word = end_word(&how);
    let cause = match &how {
        OperationEnd::Failed { reason } => Some(reason.clone()),
        OperationEnd::Rejected { by, reason } if reason.is_empty() => Some(format!("rejected by {by}")),
        OperationEnd::Rejected { by, reason } => Some(format!("rejected by {by}: {reason}")),
        OperationEnd::Expired => Some("nobody approved it in time".into()),
        OperationEnd::Succeeded | OperationEnd::Cancelled { .. } | OperationEnd::Superseded { .. } => None,
    };
    let superseded = matches!(how, OperationEnd::Superseded { .. });
    draft.push(OperationEnded { operation: operation.id, replica: operation.replica.clone(), end: how });
    if let Some(held) = holds_place(fleet, operation) {
        draft.push(IncarnationEnded {
            incarnation: held.id,
            replica: held.replica.clone(),
            node: held.node.clone(),
            end: IncarnationEnd::Unwound { reason: format!("its operation was {word}") },
            displaces: None,
            processes: Vec::new(),
        });
    }
    let replica = fleet.replicas().get(&operation.replica);
    let create = operation.kind == OperationKind::Create;
    if create && !superseded && replica.is_some_and(|replica| replica.will == Will::Proposed) {
        draft.push(ReplicaDeleted { name: operation.replica.clone() });
    }
    if let (Some(cause), Blame::Deployment) = (cause, blame) {
        let cause = format!("{} of {}: {cause}", operation.kind, operation.replica);
        deployment::fail(fleet, operation, cause, draft);
    }
}

/// Approves an operation that waits for it, and begins it.
fn run(fleet: &Fleet, operation: &Operation, hash: Digest, by: Approver, ctx: &Context, draft: &mut Draft) {
    let Some(replica) = fleet.replicas().get(&operation.replica) else { return };
    match operation.kind {
        OperationKind::Create | OperationKind::Start => {
            let deadline = spec_of(fleet, operation).map(|(.., spec)| ctx.now + spec.timeouts.start());
            draft.push(OperationApproved {
                operation: operation.id,
                replica: replica.name.clone(),
                by,
                hash,
                incarnation: operation.incarnation,
                deadline,
            });
        }
        OperationKind::Stop | OperationKind::Delete => {
            down(fleet, replica, operation.id, operation.kind, hash, by, ctx, draft);
        }
    }
}

/// Approves and begins a stop or delete: it takes the place of what runs on the replica.
#[expect(
    clippy::too_many_arguments,
    reason = "each is a different thing, and a struct would only rename them"
)]
fn down(
    fleet: &Fleet,
    replica: &Replica,
    id: OperationId,
    kind: OperationKind,
    hash: Digest,
    by: Approver,
    ctx: &Context,
    draft: &mut Draft,
) {
    let running = replica
        .operation
        .filter(|(running, _)| *running != id)
        .and_then(|(running, _)| fleet.operations().get(&running))
        .filter(|operation| matches!(operation.state, OperationState::Running(_)));
    if let Some(running) = running {
        end_with(fleet, running, OperationEnd::Superseded { by: id }, Blame::Nobody, draft);
    }
    let active = replica.active.as_ref().and_then(|active| fleet.incarnations().get(&active.incarnation));
    let active = active.filter(|incarnation| incarnation.state != IncarnationState::Reserved);
    draft.push(OperationApproved {
        operation: id,
        replica: replica.name.clone(),
        by,
        hash,
        incarnation: active.map(|incarnation| incarnation.id),
        deadline: active.map(|incarnation| incarnation::stop_deadline(fleet, incarnation, ctx.now)),
    });
    if active.is_none() || (kind == OperationKind::Delete && planted::is(Bug::DeletesWithoutProof)) {
        draft.push(OperationEnded {
            operation: id,
            replica: replica.name.clone(),
            end: OperationEnd::Succeeded,
        });
        if kind == OperationKind::Delete {
            draft.push(ReplicaDeleted { name: replica.name.clone() });
        }
    }
}

/// Looks for a place for an operation of the plan that has none: facts if something came of it, `None` if the
/// answer is the same as before.
pub(crate) fn prepare(
    fleet: &Fleet,
    search: &mut Search,
    plan: &Plan,
    operation: OperationId,
    ctx: &Context,
) -> Option<Vec<Fact>> {
    let operation = fleet.operations().get(&operation)?;
    let (_, deployment, spec) = spec_of(fleet, operation)?;
    let mut draft = Draft::new(ctx);
    match search.place(fleet, &plan.name, &deployment.name, spec) {
        Ok(place) => reserve(fleet, plan, operation, deployment, spec, &place, ctx, &mut draft),
        Err(reasons) if reasons == plan.unfit => return None,
        Err(reasons) => draft.push(PlanWaiting { plan: plan.name.clone(), reasons }),
    }
    Some(draft.done())
}

#[expect(
    clippy::too_many_arguments,
    reason = "each is a different thing, and a struct would only rename them"
)]
fn reserve(
    fleet: &Fleet,
    plan: &Plan,
    operation: &Operation,
    deployment: &Deployment,
    spec: &PlanSpec,
    place: &Place,
    ctx: &Context,
    draft: &mut Draft,
) {
    let automatic =
        plan.spec.approval.of(operation.kind) == Approval::Automatic || planted::is(Bug::ApprovesByItself);
    if let Some(reason) = obstacle(fleet, &place.node, spec).filter(|_| automatic) {
        end(fleet, operation, OperationEnd::Failed { reason }, draft);
        return;
    }
    let hash = up_hash(operation, deployment, spec, place);
    let incarnation = draft.id();
    draft.push(IncarnationReserved {
        operation: operation.id,
        replica: operation.replica.clone(),
        node: place.node.clone(),
        deployment: deployment.name.clone(),
        amounts: spec.amounts(),
        volumes: spec.volumes(),
        proposal: Proposal { hash, expires: ctx.now + plan.spec.timeouts.approval() },
    });
    if !automatic {
        return;
    }
    draft.push(OperationApproved {
        operation: operation.id,
        replica: operation.replica.clone(),
        by: rule(plan, operation.kind),
        hash,
        incarnation: Some(incarnation),
        deadline: Some(ctx.now + spec.timeouts.start()),
    });
}

/// The hash of everything that a create or start will do.
fn up_hash(operation: &Operation, deployment: &Deployment, spec: &PlanSpec, place: &Place) -> Digest {
    let json =
        |value: serde_json::Result<Vec<u8>>| value.expect("specs have string keys and no failing parts");
    Digest::of(&[
        operation.kind.word().as_bytes(),
        operation.replica.as_str().as_bytes(),
        place.node.as_str().as_bytes(),
        &json(serde_json::to_vec(&spec.payloads)),
        &json(serde_json::to_vec(&deployment.spec.coordinates)),
    ])
}

/// Nobody approved it in time.
pub(crate) fn expire(fleet: &Fleet, id: OperationId, now: Time, ctx: &Context) -> Vec<Fact> {
    let mut draft = Draft::new(ctx);
    if let Some(operation) = fleet.operations().get(&id)
        && let OperationState::PendingApproval(proposal) = &operation.state
        && proposal.expires <= now
    {
        end(fleet, operation, OperationEnd::Expired, &mut draft);
    }
    draft.done()
}

pub(crate) fn opened(fleet: &mut Fleet, fact: &OperationOpened, at: At) -> Result<(), Contradiction> {
    let id = OperationId::issue(at.lineage, at.position);
    let replica = fleet.want::<Replica>(&fact.replica)?;
    let (plan, version) = (replica.plan.clone(), replica.deployment.clone());
    fleet.change::<Replica>(&fact.replica, |replica| {
        let slot = if replica.operation.is_none() { &mut replica.operation } else { &mut replica.next };
        *slot = Some((id, fact.kind));
        replica.operations.push(id);
        replica.meta.bump(at);
    })?;
    let state = match &fact.proposal {
        Some(proposal) => OperationState::PendingApproval(*proposal),
        None => OperationState::Preparing,
    };
    fleet.put(Operation {
        id,
        replica: fact.replica.clone(),
        plan,
        kind: fact.kind,
        deployment: fact.deployment.clone(),
        version,
        state,
        hash: fact.proposal.map(|proposal| proposal.hash),
        approved: None,
        incarnation: None,
        node: None,
        meta: Meta::new(at),
    });
    Ok(())
}

pub(crate) fn approved(fleet: &mut Fleet, fact: &OperationApproved, at: At) -> Result<(), Contradiction> {
    let kind = fleet.want::<Operation>(&fact.operation)?.kind;
    fleet.change::<Operation>(&fact.operation, |operation| {
        operation.state = OperationState::Running(fact.by.clone());
        operation.approved = Some((fact.by.clone(), Stamp::from(at)));
        operation.incarnation = fact.incarnation.or(operation.incarnation);
        operation.meta.bump(at);
    })?;
    fleet.change::<Replica>(&fact.replica, |replica| {
        replica.will = match kind {
            OperationKind::Create | OperationKind::Start => Will::Running,
            OperationKind::Stop if planted::is(Bug::StopDoesNotLast) => Will::Running,
            OperationKind::Stop => Will::Stopped,
            OperationKind::Delete => Will::Deleted,
        };
        replica.meta.touch(at);
    })?;
    let Some(id) = fact.incarnation else { return Ok(()) };
    incarnation::begun(fleet, id, kind, fact.deadline, at)
}

pub(crate) fn ended(fleet: &mut Fleet, fact: &OperationEnded, at: At) -> Result<(), Contradiction> {
    close(fleet, fact.operation, &fact.end, at, Version::Bump)
}

/// Whether the fact is about the operation first.
#[derive(Clone, Copy)]
pub(crate) enum Version {
    Bump,
    Touch,
}

/// Ends the operation in the state, counts it, and lets go of the replica's oldest.
pub(crate) fn close(
    fleet: &mut Fleet,
    id: OperationId,
    end: &OperationEnd,
    at: At,
    version: Version,
) -> Result<(), Contradiction> {
    let operation = fleet.want::<Operation>(&id)?;
    let (replica, plan, kind) = (operation.replica.clone(), operation.plan.clone(), operation.kind);
    fleet.change::<Operation>(&id, |operation| {
        operation.state = OperationState::Ended(end.clone());
        match version {
            Version::Bump => operation.meta.bump(at),
            Version::Touch => operation.meta.touch(at),
        }
    })?;
    fleet.change::<Replica>(&replica, |replica| {
        if replica.next.is_some_and(|(next, _)| next == id) {
            replica.next = None;
        }
        if replica.operation.is_some_and(|(current, _)| current == id) {
            replica.operation = replica.next.take();
        }
        replica.meta.touch(at);
    })?;
    fleet.change::<Plan>(&plan, |plan| {
        *plan.totals.entry((kind, end_word(end).to_owned())).or_default() += 1;
        plan.meta.touch(at);
    })?;
    let open = |id: &OperationId| fleet.operations().get(id).is_some_and(Operation::is_open);
    let over: Vec<_> =
        fleet.want::<Replica>(&replica)?.operations.iter().filter(|id| !open(id)).copied().collect();
    let gone = over[..over.len().saturating_sub(KEPT)].to_vec();
    if gone.is_empty() {
        return Ok(());
    }
    for id in &gone {
        fleet.remove::<Operation>(id)?;
    }
    fleet.change::<Replica>(&replica, |replica| replica.operations.retain(|id| !gone.contains(id)))
}
