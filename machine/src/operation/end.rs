//! Ends of operations, and their effects.

use chancery_events::fact::{
    Fact, IncarnationEnd, IncarnationEnded, OperationEnd, OperationEnded, ReplicaDeleted,
};
use chancery_events::id::OperationId;
use chancery_events::lifecycle::WillWord;
use chancery_events::spec::OperationKind;

use super::end_word;
use crate::context::{DecisionContext, FactDraft};
use crate::fleet::FleetState;
use crate::state::{Incarnation, IncarnationState, Operation, OperationState};
use crate::{deployment, incarnation};

/// Incarnation that is only reserved for the operation.
pub(super) fn holds_place<'a>(fleet: &'a FleetState, operation: &Operation) -> Option<&'a Incarnation> {
    let held = operation.incarnation.and_then(|id| fleet.incarnations().get(&id))?;
    (held.state == IncarnationState::Reserved).then_some(held)
}

/// Ends an operation and its unused reservation. Deletes a replica that was never approved. Fails the
/// deployment if the operation failed, expired or was rejected.
pub(crate) fn end(fleet: &FleetState, operation: &Operation, how: OperationEnd, draft: &mut FactDraft) {
    let cause_of_end = match how {
        OperationEnd::Failed { .. } => Some(incarnation::EndCause::End),
        OperationEnd::Cancelled { .. } => Some(incarnation::EndCause::Abort),
        OperationEnd::Succeeded
        | OperationEnd::Rejected { .. }
        | OperationEnd::Expired
        | OperationEnd::Superseded { .. } => None,
    };
    end_with(fleet, operation, how, cause_of_end, draft);
}

/// Ends an operation. The cause determines whether the replica is started again; without a cause, it is not.
fn end_with(
    fleet: &FleetState,
    operation: &Operation,
    how: OperationEnd,
    cause_of_end: Option<incarnation::EndCause>,
    draft: &mut FactDraft,
) {
    let word = end_word(&how);
    let cause = match &how {
        OperationEnd::Failed { reason } => Some(reason.clone()),
        OperationEnd::Rejected { rejected_by: by, reason } if reason.is_empty() => {
            Some(format!("rejected by {by}"))
        }
        OperationEnd::Rejected { rejected_by: by, reason } => Some(format!("rejected by {by}: {reason}")),
        OperationEnd::Expired => Some("it was not approved in time".into()),
        OperationEnd::Succeeded | OperationEnd::Cancelled { .. } | OperationEnd::Superseded { .. } => None,
    };
    let superseded = matches!(how, OperationEnd::Superseded { .. });
    draft.push(OperationEnded { operation: operation.id, replica: operation.replica.clone(), end: how });
    if let Some(held) = holds_place(fleet, operation) {
        let end = IncarnationEnd::Unwound { reason: format!("its operation was {word}") };
        // The operation has started, and the previous incarnation may have ended already.
        let begun = matches!(operation.state, OperationState::Running);
        let again = cause_of_end
            .filter(|_| begun)
            .and_then(|cause| incarnation::promise(fleet, held, &end, cause, draft.now()));
        draft.push(IncarnationEnded {
            incarnation: held.id,
            replica: held.replica.clone(),
            node: held.node.clone(),
            end,
            reschedules: None,
            processes: Vec::new(),
            restart_backoff: again,
            mounts: Vec::new(),
        });
    }
    let replica = fleet.replicas().get(&operation.replica);
    let create = operation.kind == OperationKind::Create;
    if create && !superseded && replica.is_some_and(|replica| replica.desired == WillWord::Proposed) {
        draft.push(ReplicaDeleted { name: operation.replica.clone(), volumes: Vec::new() });
    }
    if let Some(cause) = cause {
        let cause = format!("{} of {}: {cause}", operation.kind, operation.replica);
        deployment::fail(fleet, operation, cause, draft);
    }
}

/// Cancels a running operation whose new incarnation is not ready. That incarnation is stopped, or reverted;
/// the previous incarnation stays active. If the previous one was stopped first, the replica is started again
/// in its current version.
pub(crate) fn abort(
    fleet: &FleetState,
    operation: &Operation,
    reason: String,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let how = OperationEnd::Cancelled { reason };
    match operation.incarnation.and_then(|id| fleet.incarnations().get(&id)) {
        Some(new) if may_be_given_up(&new.state) => {
            let then = IncarnationEnd::Unwound { reason: "its operation was cancelled".to_owned() };
            incarnation::give_up(fleet, new, how, then, ctx, draft);
        }
        Some(_) | None => end(fleet, operation, how, draft),
    }
}

/// Cancels the running operation that replaces an incarnation whose guest has powered itself off: the replica is not started
/// again.
pub(crate) fn cancel_after_shutdown(
    fleet: &FleetState,
    operation: &Operation,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let reason = "the guest of the replica powered itself off".to_owned();
    if holds_place(fleet, operation).is_some() {
        end_with(fleet, operation, OperationEnd::Cancelled { reason }, None, draft);
    } else {
        abort(fleet, operation, reason, ctx, draft);
    }
}

/// Whether an abort must act on the incarnation. A stopping incarnation keeps the reason for its end.
fn may_be_given_up(state: &IncarnationState) -> bool {
    match state {
        IncarnationState::Creating
        | IncarnationState::Starting
        | IncarnationState::Updating(_)
        | IncarnationState::Running => true,
        IncarnationState::Reserved | IncarnationState::Stopping(_) | IncarnationState::Ended(_) => false,
    }
}

/// Ends an operation that was not approved in time.
pub(crate) fn expire(fleet: &FleetState, id: OperationId, ctx: &DecisionContext) -> Vec<Fact> {
    let mut draft = FactDraft::new(ctx);
    if let Some(operation) = fleet.operations().get(&id)
        && let OperationState::PendingApproval(proposal) = &operation.state
        && proposal.expires <= ctx.now
    {
        end(fleet, operation, OperationEnd::Expired, &mut draft);
    }
    draft.done()
}
