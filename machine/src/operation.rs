//! Operations: approved changes of one replica.
//!
//! | state | placement found | approve | dequeued | reject | expiry | deployment ends | newer operation | completed |
//! |---|---|---|---|---|---|---|---|---|
//! | preparing | → pending approval, or approved by rule | refused | – | → rejected | – | → cancelled | → superseded | – |
//! | pending approval | – | → running, or approved | – | → rejected | → expired | → cancelled | → superseded | – |
//! | approved | – | refused | → running | refused | – | → cancelled | → superseded | – |
//! | running | – | refused | – | refused | – | continues; → cancelled if that is cancelled or superseded and the new incarnation is not ready | → superseded when a stop or delete is approved | → succeeded, failed |
//! | ended | final | | | | | | | |
//!
//! If an edit of the plan forbids the node of an unused reservation, the operation returns to
//! preparing, from pending approval or approved.
//!
//! An operation that starts an incarnation gets its placement and reservation before approval, so that the
//! approver sees the node. An approval is bound to the hash of the operation's effects. The fact of the
//! approval also changes the replica's desired state. Only operations of a deployment are queued: the
//! deployment limits how many run concurrently.
//!
//! Effect of a newer operation on an existing one:
//!
//! | newer \ existing | same kind | stop waits | other waits | stop runs | delete | other runs |
//! |---|---|---|---|---|---|---|
//! | start | one remains | the stop is cancelled | create, start: one remains; else no-op | refused | refused | no-op |
//! | update (of a deployment) | one remains | later | later | later | never | later |
//! | relocate, restart | one remains | refused | supersedes; create, start: refused | refused | refused | refused |
//! | reboot | one remains | refused | refused | refused | refused | refused |
//! | relocate (of a disruption) | one remains | later | supersedes an update, restart, reboot or relocate to any node | later | later | later |
//! | stop | one remains | – | supersedes | – | refused | waits behind it, supersedes it when approved |
//! | delete | one remains | supersedes | supersedes | waits behind it | – | waits behind it, supersedes it when approved |
//!
//! Replacement of an incarnation by an update, relocate or restart:
//!
//! | | before approval | on approval | next | then | on failure |
//! |---|---|---|---|---|---|
//! | in place | runs | the new version is requested | it runs: succeeded | – | the old version is requested again |
//! | start first | runs; new one reserved | the new one is started | ready: new one active, old one stopped | old one ended: succeeded | the new one is stopped, the old one stays |
//! | stop first | runs; new one reserved, on the same node only the additional resources | the old one is stopped | ended: the new one is started | ready: succeeded | the replica has failed; the plan's rule restarts the previous version |
//!
// tidy: allow(begin)
//! In reading order: approval and rejection, creation (`open`), placement (`place`), start (`begin`), end
//! (`end`), folding (`fold`), reasons for a placement (`explain`).

mod begin;
mod end;
mod explain;
mod fold;
mod open;
mod place;

use std::collections::BTreeSet;

use chancery_events::fact::{ApprovalActor, OperationEnd, Requester};
use chancery_events::intent::{OperationApprove, OperationReject};
use chancery_events::lifecycle::OperationStatus;
use chancery_events::name::Actor;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{ApprovalMode, OperationKind, PlanVersion};

use crate::context::{DecisionContext, FactDraft};
use crate::fleet::FleetState;
use crate::refuse::{BodyErrors, DecidedFacts};
use crate::state::{Deployment, Operation, OperationState, Plan};
use crate::{deployment, policy};

pub(crate) use begin::{StartTrigger, begin, begin_existing, stop};
pub(crate) use end::{abort, cancel_after_shutdown, end, expire};
pub use explain::{ChosenNode, OperationWait};
pub(crate) use fold::{VersionUpdate, approved, close, created, ended, started};
pub(crate) use open::{OperationRequest, open, push_opened};
pub(crate) use place::{is_replaceable, place_of_move, prepare, replace};

/// Maximum number of operations in one approval or rejection.
const BULK: usize = 200;

/// Rule of the requester or the plan that approves the operation automatically, if any.
fn rule(plan: &Plan, kind: OperationKind, by: Option<&Requester>) -> Option<ApprovalActor> {
    if let Some(Requester::Rule(rule)) = by {
        return Some(ApprovalActor::Rule(rule.clone()));
    }
    if let Some(Requester::Disruption { node, name }) = by {
        // The approval of a disruption covers its operations.
        return Some(ApprovalActor::Rule(format!("disruption/{node}/{name}")));
    }
    let own = plan.immediate().approval().of(kind) == ApprovalMode::Automatic;
    own.then(|| ApprovalActor::Rule(format!("plan/{}/approval/{kind}", plan.name)))
}

/// Deployment and version that the operation starts, or would start.
fn version_of<'a>(
    fleet: &'a FleetState,
    plan: &'a Plan,
    operation: &Operation,
) -> Option<(&'a Deployment, PlanVersion<'a>)> {
    let deployment = fleet.deployment(&plan.name, &operation.version)?;
    Some((deployment, plan.version_of(deployment.generation)))
}

/// Whether the operation's deployment no longer starts operations.
pub(crate) fn is_given_up(fleet: &FleetState, operation: &Operation) -> bool {
    let deployment = operation.deployment.as_ref().and_then(|name| fleet.deployment(&operation.plan, name));
    operation.requested_by.is_none() && deployment.is_some_and(|of| !deployment::is_begun(of))
}

/// Actor who requested the operation, if any. Operations of a disruption never wait for approval.
fn asked_by(fleet: &FleetState, operation: &Operation) -> Option<Actor> {
    match operation.requested_by.as_deref() {
        Some(Requester::Actor(actor)) => Some(actor.clone()),
        Some(Requester::Disruption { .. } | Requester::Rule(_)) => None,
        None => {
            let name = operation.deployment.as_ref()?;
            Some(fleet.deployment(&operation.plan, name)?.requested_by.clone())
        }
    }
}

pub(crate) fn approve(fleet: &FleetState, ask: &OperationApprove, ctx: &DecisionContext) -> DecidedFacts {
    let mut faults = BodyErrors::default();
    faults.check(!ask.operations.is_empty(), "/operations", "must name at least one");
    faults.check(ask.operations.len() <= BULK, "/operations", format!("must be at most {BULK}"));
    let mut seen = BTreeSet::new();
    for (i, shown) in ask.operations.iter().enumerate() {
        faults.check(seen.insert(shown.operation), format!("/operations/{i}"), "is named twice");
    }
    faults.done()?;
    let mut draft = FactDraft::new(ctx);
    let by = ApprovalActor::Actor(ctx.require_actor("an approval")?);
    for (i, shown) in ask.operations.iter().enumerate() {
        let id = shown.operation;
        let pointer = format!("/operations/{i}");
        let found = fleet.find::<Operation>(&id);
        let operation = found.map_err(|refusal| refusal.at(pointer.as_str(), "does not exist"))?;
        let OperationState::PendingApproval(proposal) = &operation.state else {
            let detail = format!("operation {id} is {}, not pending approval", state_word(&operation.state));
            return Err(
                Refusal::new(RefusalCode::NotPending, detail).at(pointer, "does not wait for approval")
            );
        };
        if proposal.expires <= ctx.now {
            let detail = format!("operation {id} expired at {}", proposal.expires);
            return Err(Refusal::new(RefusalCode::NotPending, detail).at(pointer, "has expired"));
        }
        if proposal.hash != shown.hash {
            let detail = format!("operation {id} has other effects than were shown: show it again");
            return Err(
                Refusal::new(RefusalCode::HashMismatch, detail).at(format!("{pointer}/hash"), "differs")
            );
        }
        if is_given_up(fleet, operation) {
            let detail = format!("the deployment of operation {id} is ending");
            return Err(Refusal::new(RefusalCode::NotPending, detail).at(pointer, "is no longer requested"));
        }
        if let Some(broken) = place::forbidden(fleet, operation) {
            let detail = format!(
                "operation {id} needs another placement, because plan {} has changed: {broken}",
                operation.plan
            );
            return Err(
                Refusal::new(RefusalCode::HashMismatch, detail).at(format!("{pointer}/hash"), "is void")
            );
        }
        let asked_by = asked_by(fleet, operation);
        if let Some(policy) = policy::four_eyes(fleet, operation)
            && asked_by.is_some_and(|asked| ApprovalActor::Actor(asked) == by)
        {
            let detail =
                format!("policy {policy} requires another approver than the requester of operation {id}");
            return Err(
                Refusal::new(RefusalCode::Denied, detail).at(pointer, "needs the approval of another person")
            );
        }
        let how = StartTrigger::Approval { approved_by: by.clone(), hash: proposal.hash };
        begin_existing(fleet, operation, how, ctx, &mut draft);
    }
    Ok(draft.done())
}

pub(crate) fn reject(fleet: &FleetState, ask: &OperationReject, ctx: &DecisionContext) -> DecidedFacts {
    let mut faults = BodyErrors::default();
    faults.check(!ask.operations.is_empty(), "/operations", "must name at least one");
    faults.check(ask.operations.len() <= BULK, "/operations", format!("must be at most {BULK}"));
    let plain = ask.reason.len() <= 512 && !ask.reason.chars().any(char::is_control);
    faults.check(plain, "/reason", "must be at most 512 bytes, without control characters");
    let mut seen = BTreeSet::new();
    for (i, id) in ask.operations.iter().enumerate() {
        faults.check(seen.insert(id), format!("/operations/{i}"), "is named twice");
    }
    faults.done()?;
    let by = ctx.require_actor("a rejection")?;
    let mut draft = FactDraft::new(ctx);
    for (i, id) in ask.operations.iter().enumerate() {
        let place = format!("/operations/{i}");
        let found = fleet.find::<Operation>(id);
        let operation = found.map_err(|refusal| refusal.at(place.as_str(), "does not exist"))?;
        if !matches!(operation.state, OperationState::PendingApproval(_) | OperationState::Preparing) {
            let detail = format!("operation {id} is {}, not pending approval", state_word(&operation.state));
            return Err(Refusal::new(RefusalCode::NotPending, detail).at(place, "does not wait for approval"));
        }
        let end = OperationEnd::Rejected { rejected_by: by.clone(), reason: ask.reason.clone() };
        end::end(fleet, operation, end, &mut draft);
    }
    Ok(draft.done())
}

/// Returns the status value of a state.
pub const fn state_word(state: &OperationState) -> OperationStatus {
    match state {
        OperationState::Preparing => OperationStatus::Preparing,
        OperationState::PendingApproval(_) => OperationStatus::PendingApproval,
        OperationState::Approved => OperationStatus::Approved,
        OperationState::Running => OperationStatus::Running,
        OperationState::Ended(end) => end_word(end),
    }
}

/// Returns the status value of an end.
pub const fn end_word(end: &OperationEnd) -> OperationStatus {
    match end {
        OperationEnd::Succeeded => OperationStatus::Succeeded,
        OperationEnd::Failed { .. } => OperationStatus::Failed,
        OperationEnd::Rejected { .. } => OperationStatus::Rejected,
        OperationEnd::Expired => OperationStatus::Expired,
        OperationEnd::Cancelled { .. } => OperationStatus::Cancelled,
        OperationEnd::Superseded { .. } => OperationStatus::Superseded,
    }
}
