//! Ends of incarnations, by proof only, and their effects on operations.

use chancery_events::fact::{
    Fact, IncarnationEnd, IncarnationEnded, IncarnationStartRequested, OperationEnd, OperationEnded,
    ReplicaDeleted, RestartBackoff,
};
use chancery_events::id::IncarnationId;
use chancery_events::observation::ProcessInfo;
use chancery_events::spec::OperationKind;
use chancery_events::time::Time;

use super::restart_backoff::{EndCause, again};
use super::{running_operation, start_deadline};
use crate::context::{DecisionContext, FactDraft};
use crate::fleet::FleetState;
use crate::state::{Incarnation, IncarnationState, Operation, OperationState, Replica};
use crate::{deployment, operation, volume};

/// Ends the incarnation, and the operation that waited for its end or needed it alive.
pub(super) fn by_proof(
    fleet: &FleetState,
    incarnation: &Incarnation,
    end: IncarnationEnd,
    processes: Vec<ProcessInfo>,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let (why, failure) = match &end {
        IncarnationEnd::Destroyed => ("it ended before it was ready".to_owned(), None),
        IncarnationEnd::PoweredOff => ("its guest powered itself off before it was ready".to_owned(), None),
        IncarnationEnd::Failed { reason } | IncarnationEnd::Unwound { reason } => {
            (format!("it ended before it was ready: {reason}"), Some(reason.clone()))
        }
    };
    let Some(replica) = fleet.replicas().get(&incarnation.replica) else { return };
    let other = other(fleet, replica, incarnation.id);
    let again = promise(fleet, incarnation, &end, EndCause::End, ctx.now);
    let is_powered_off = end == IncarnationEnd::PoweredOff;
    draft.push(IncarnationEnded {
        incarnation: incarnation.id,
        replica: incarnation.replica.clone(),
        node: incarnation.node.clone(),
        restart_backoff: again,
        end,
        reschedules: None,
        processes,
        mounts: volume::used_by(fleet, incarnation),
    });
    let Some(operation) = running_operation(fleet, incarnation) else {
        by_itself(fleet, replica, incarnation, failure.as_deref(), draft);
        return;
    };
    match operation.kind {
        OperationKind::Create | OperationKind::Start => {
            if operation.incarnation == Some(incarnation.id) {
                operation::end(fleet, operation, OperationEnd::Failed { reason: why }, draft);
            }
        }
        OperationKind::Update | OperationKind::Relocate | OperationKind::Restart => {
            let is_active =
                replica.active.as_ref().is_some_and(|active| active.incarnation == incarnation.id);
            if is_powered_off && is_active && operation.incarnation != Some(incarnation.id) {
                operation::cancel_after_shutdown(fleet, operation, ctx, draft);
            } else {
                replaced(fleet, operation, incarnation, other, why, ctx, draft);
            }
        }
        OperationKind::Reboot => {
            let reason = "its incarnation ended".to_owned();
            operation::end(fleet, operation, OperationEnd::Failed { reason }, draft);
            by_itself(fleet, replica, incarnation, failure.as_deref(), draft);
        }
        OperationKind::Stop | OperationKind::Delete => {
            if other.is_none() {
                succeed(fleet, operation, draft);
            }
        }
    }
}

/// Returns the automatic restart after an incarnation's end, by the plan's rule or because its replacement is
/// aborted. Returns `None` if an operation starts the replica.
pub(crate) fn promise(
    fleet: &FleetState,
    incarnation: &Incarnation,
    end: &IncarnationEnd,
    cause: EndCause,
    now: Time,
) -> Option<RestartBackoff> {
    let replica = fleet.replicas().get(&incarnation.replica)?;
    again(fleet, replica, incarnation, end, cause, now)
        .filter(|_| !is_taken_over(fleet, replica, incarnation))
}

/// Whether an operation starts the replica, or has. Operations that wait on a ready incarnation end with it.
fn is_taken_over(fleet: &FleetState, replica: &Replica, incarnation: &Incarnation) -> bool {
    let other = other(fleet, replica, incarnation.id);
    let was_up = incarnation.was_up();
    let comes = |operation: &Operation| {
        let up = !matches!(operation.kind, OperationKind::Stop | OperationKind::Delete);
        let begun = matches!(operation.state, OperationState::Running);
        up && operation.incarnation != Some(incarnation.id) && (begun || !was_up)
    };
    other.is_some_and(|other| other.state != IncarnationState::Reserved)
        || replica.open().filter_map(|open| fleet.operations().get(&open.id)).any(comes)
}

/// Other incarnation of the replica that has not ended.
fn other<'a>(fleet: &'a FleetState, replica: &Replica, than: IncarnationId) -> Option<&'a Incarnation> {
    let mut runs = replica.runs().map(|run| run.incarnation).filter(|id| *id != than);
    runs.next().and_then(|id| fleet.incarnations().get(&id))
}

fn succeed(fleet: &FleetState, operation: &Operation, draft: &mut FactDraft) {
    let replica = operation.replica.clone();
    draft.push(OperationEnded {
        operation: operation.id,
        replica: replica.clone(),
        end: OperationEnd::Succeeded,
    });
    if operation.kind == OperationKind::Delete {
        draft.push(ReplicaDeleted { volumes: volume::owned(fleet, &replica), name: replica });
    }
}

/// Handles the end of one of the two incarnations of an update, relocate or restart.
fn replaced(
    fleet: &FleetState,
    operation: &Operation,
    incarnation: &Incarnation,
    other: Option<&Incarnation>,
    why: String,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    if operation.incarnation == Some(incarnation.id) {
        let reason = if incarnation.was_up() { "it ended without a request".to_owned() } else { why };
        operation::end(fleet, operation, OperationEnd::Failed { reason }, draft);
        return;
    }
    let new = other.filter(|new| operation.incarnation == Some(new.id));
    match new.map(|new| (&new.state, new)) {
        // The old one was stopped first: the new one starts with the old one's volumes before others take
        // them, or waits only for its volumes.
        Some((IncarnationState::Reserved, new)) if !volume::passes_on(fleet, incarnation, new) => {}
        Some((IncarnationState::Reserved, new)) => draft.push(IncarnationStartRequested {
            incarnation: new.id,
            replica: new.replica.clone(),
            deployment: new.deployment.clone(),
            deadline: start_deadline(fleet, &new.plan, ctx.now),
            mounts: new.ties.mounts.clone(),
        }),
        // The old one ended on its own while the new one starts, which continues.
        Some((IncarnationState::Creating | IncarnationState::Starting, _)) => {}
        // The new one was ready and its liveness probe failed since: its end fails the operation.
        Some((IncarnationState::Stopping(_), _)) => {}
        // The old one was replaced, and has ended now.
        Some(_) => succeed(fleet, operation, draft),
        None => {}
    }
}

/// Handles an end that no running operation requested, as that of a guest that is being rebooted.
fn by_itself(
    fleet: &FleetState,
    replica: &Replica,
    incarnation: &Incarnation,
    reason: Option<&str>,
    draft: &mut FactDraft,
) {
    let active = replica.active.as_ref().is_some_and(|active| active.incarnation == incarnation.id);
    if !active || !incarnation.was_up() {
        return;
    }
    cancel_waiting(fleet, replica, draft);
    // A deployment must not start its own failing version repeatedly. A lost node is no evidence about the
    // version.
    if !fleet.index().places.is_expunged(&incarnation.node) {
        deployment::disturb(fleet, incarnation, reason, draft);
    }
}

/// Ends an incarnation that was ready and is unresponsive or stayed unready. The operation that waits to
/// replace or change it is cancelled now, so that it cannot start on a stopping incarnation.
pub(super) fn failing(
    fleet: &FleetState,
    incarnation: &Incarnation,
    reason: String,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    draft.push(operation::stop(fleet, incarnation, IncarnationEnd::Failed { reason }, ctx));
    if let Some(replica) = fleet.replicas().get(&incarnation.replica) {
        cancel_waiting(fleet, replica, draft);
    }
}

/// Cancels the operation that waits to replace, change or reboot the replica's incarnation.
fn cancel_waiting(fleet: &FleetState, replica: &Replica, draft: &mut FactDraft) {
    // There is nothing left to replace or change.
    let waiting = replica.operation.and_then(|open| fleet.operations().get(&open.id)).filter(|operation| {
        operation.kind.needs_incarnation() && !matches!(operation.state, OperationState::Running)
    });
    if let Some(operation) = waiting {
        let reason = "its incarnation ended without a request".to_owned();
        operation::end(fleet, operation, OperationEnd::Cancelled { reason }, draft);
    }
}

/// Ends an incarnation whose node the operator expunged.
pub(crate) fn lost(fleet: &FleetState, id: IncarnationId, ctx: &DecisionContext) -> Vec<Fact> {
    let mut draft = FactDraft::new(ctx);
    let Some(incarnation) = fleet.incarnations().get(&id) else { return Vec::new() };
    let reason = format!("node {} was expunged", incarnation.node);
    if incarnation.state == IncarnationState::Reserved {
        displace(fleet, incarnation, reason, &mut draft);
    } else {
        by_proof(fleet, incarnation, IncarnationEnd::Failed { reason }, Vec::new(), ctx, &mut draft);
    }
    draft.done()
}

/// Releases a reservation that no executor was asked to use. Its operation is placed again, and the hash
/// shown for approval is void; a running operation fails.
pub(crate) fn displace(fleet: &FleetState, incarnation: &Incarnation, reason: String, draft: &mut FactDraft) {
    debug_assert_eq!(incarnation.state, IncarnationState::Reserved, "no start was requested");
    let holder = fleet.operations().get(&incarnation.operation);
    let begun = holder.filter(|operation| matches!(operation.state, OperationState::Running));
    if let Some(operation) = begun {
        return operation::end(fleet, operation, OperationEnd::Failed { reason }, draft);
    }
    draft.push(IncarnationEnded {
        incarnation: incarnation.id,
        replica: incarnation.replica.clone(),
        node: incarnation.node.clone(),
        end: IncarnationEnd::Unwound { reason },
        reschedules: Some(incarnation.operation),
        processes: Vec::new(),
        restart_backoff: None,
        mounts: Vec::new(),
    });
}
