//! Ends of incarnations, by proof alone, and what follows for their operations.

use chancery_events::fact::{
    Again, Fact, IncarnationBegun, IncarnationEnd, IncarnationEnded, OperationEnd, OperationEnded,
    ReplicaDeleted,
};
use chancery_events::id::IncarnationId;
use chancery_events::observation::Process;
use chancery_events::spec::OperationKind;
use chancery_events::time::Time;

use super::again::{Cause, again};
use super::{running_operation, start_deadline};
use crate::context::{Context, Draft};
use crate::fleet::Fleet;
use crate::state::{Incarnation, IncarnationState, Operation, OperationState, Replica};
use crate::{deployment, operation, volume};

/// Ends the incarnation, and with it the operation that waited for that, or that needed it alive.
pub(super) fn by_proof(
    fleet: &Fleet,
    incarnation: &Incarnation,
    end: IncarnationEnd,
    processes: Vec<Process>,
    ctx: &Context,
    draft: &mut Draft,
) {
    let why = match &end {
        IncarnationEnd::Destroyed => "it ended before it was ready".to_owned(),
        IncarnationEnd::Failed { reason } | IncarnationEnd::Unwound { reason } => {
            format!("it ended before it was ready: {reason}")
        }
    };
    let Some(replica) = fleet.replicas().get(&incarnation.replica) else { return };
    let other = other(fleet, replica, incarnation.id);
    let again = promise(fleet, incarnation, &end, Cause::End, ctx.now);
    draft.push(IncarnationEnded {
        incarnation: incarnation.id,
        replica: incarnation.replica.clone(),
        node: incarnation.node.clone(),
        again,
        end,
        displaces: None,
        processes,
        mounts: volume::used_by(fleet, incarnation),
    });
    let Some(operation) = running_operation(fleet, incarnation) else {
        by_itself(fleet, replica, incarnation, draft);
        return;
    };
    match operation.kind {
        OperationKind::Create | OperationKind::Start => {
            if operation.incarnation == Some(incarnation.id) {
                operation::end(fleet, operation, OperationEnd::Failed { reason: why }, draft);
            }
        }
        OperationKind::Update | OperationKind::Relocate | OperationKind::Restart => {
            replaced(fleet, operation, incarnation, other, why, ctx, draft);
        }
        OperationKind::Stop | OperationKind::Delete => {
            if other.is_none() {
                succeed(fleet, operation, draft);
            }
        }
    }
}

/// When the replica is started again after this end of a run of it, by its plan's rule or because what was to replace the
/// run is aborted: not if something else brings it up.
pub(crate) fn promise(
    fleet: &Fleet,
    incarnation: &Incarnation,
    end: &IncarnationEnd,
    cause: Cause,
    now: Time,
) -> Option<Again> {
    let replica = fleet.replicas().get(&incarnation.replica)?;
    again(fleet, replica, incarnation, end, cause, now)
        .filter(|_| !is_taken_over(fleet, replica, incarnation))
}

/// Whether something else brings the replica up, or has: what waited on a run that was up ends with it.
fn is_taken_over(fleet: &Fleet, replica: &Replica, incarnation: &Incarnation) -> bool {
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

/// The other run of a replica that is not over.
fn other<'a>(fleet: &'a Fleet, replica: &Replica, than: IncarnationId) -> Option<&'a Incarnation> {
    let mut runs = replica.runs().map(|run| run.incarnation).filter(|id| *id != than);
    runs.next().and_then(|id| fleet.incarnations().get(&id))
}

fn succeed(fleet: &Fleet, operation: &Operation, draft: &mut Draft) {
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

/// One of the two runs of an update, relocate or restart is over.
fn replaced(
    fleet: &Fleet,
    operation: &Operation,
    incarnation: &Incarnation,
    other: Option<&Incarnation>,
    why: String,
    ctx: &Context,
    draft: &mut Draft,
) {
    if operation.incarnation == Some(incarnation.id) {
        let reason = if incarnation.was_up() { "it ended by itself".to_owned() } else { why };
        operation::end(fleet, operation, OperationEnd::Failed { reason }, draft);
        return;
    }
    let new = other.filter(|new| operation.incarnation == Some(new.id));
    match new.map(|new| (&new.state, new)) {
        // It was stopped first: now the other one may begin, with the volumes of the old one before anybody else takes
        // them, or waits for its volumes alone.
        Some((IncarnationState::Reserved, new)) if !volume::passes_on(fleet, incarnation, new) => {}
        Some((IncarnationState::Reserved, new)) => draft.push(IncarnationBegun {
            incarnation: new.id,
            replica: new.replica.clone(),
            deployment: new.deployment.clone(),
            deadline: start_deadline(fleet, &new.plan, ctx.now),
            mounts: new.ties.mounts.clone(),
        }),
        // It ended by itself while the other one came up, which goes on.
        Some((IncarnationState::Creating | IncarnationState::Starting, _)) => {}
        // It had lost its place, and is over now.
        Some(_) => succeed(fleet, operation, draft),
        None => {}
    }
}

/// Nobody asked for it, or nobody does any more.
fn by_itself(fleet: &Fleet, replica: &Replica, incarnation: &Incarnation, draft: &mut Draft) {
    let active = replica.active.as_ref().is_some_and(|active| active.incarnation == incarnation.id);
    if !active || !incarnation.was_up() {
        return;
    }
    cancel_waiting(fleet, replica, draft);
    // A deployment that goes on must not start its own version again and again. That a node is lost says nothing of the
    // version.
    if !fleet.index().places.is_expunged(&incarnation.node) {
        deployment::disturb(fleet, incarnation, draft);
    }
}

/// Ends a run that was up and is not what it should be: it does not answer, or stays unready. What waits to replace
/// or change it is cancelled now, so that it cannot start on a run that is being stopped.
pub(super) fn failing(
    fleet: &Fleet,
    incarnation: &Incarnation,
    reason: String,
    ctx: &Context,
    draft: &mut Draft,
) {
    draft.push(operation::stop(fleet, incarnation, IncarnationEnd::Failed { reason }, ctx));
    if let Some(replica) = fleet.replicas().get(&incarnation.replica) {
        cancel_waiting(fleet, replica, draft);
    }
}

/// Cancels the operation that waits to replace or change the run of a replica.
fn cancel_waiting(fleet: &Fleet, replica: &Replica, draft: &mut Draft) {
    // What was to take its place, or to change it, has nothing to do that with any more.
    let waiting = replica.operation.and_then(|open| fleet.operations().get(&open.id)).filter(|operation| {
        let replaces = matches!(
            operation.kind,
            OperationKind::Update | OperationKind::Relocate | OperationKind::Restart
        );
        replaces && !matches!(operation.state, OperationState::Running)
    });
    if let Some(operation) = waiting {
        let reason = "what it was about ended by itself".to_owned();
        operation::end(fleet, operation, OperationEnd::Cancelled { reason }, draft);
    }
}

/// Its node is gone, on the operator's word.
pub(crate) fn lost(fleet: &Fleet, id: IncarnationId, ctx: &Context) -> Vec<Fact> {
    let mut draft = Draft::new(ctx);
    let Some(incarnation) = fleet.incarnations().get(&id) else { return Vec::new() };
    let reason = format!("node {} was expunged", incarnation.node);
    if incarnation.state == IncarnationState::Reserved {
        displace(fleet, incarnation, reason, &mut draft);
    } else {
        by_proof(fleet, incarnation, IncarnationEnd::Failed { reason }, Vec::new(), ctx, &mut draft);
    }
    draft.done()
}

/// Takes a place away that nobody was asked to use. Its operation looks for another one, and what was shown of it is
/// void; one that has begun fails.
pub(crate) fn displace(fleet: &Fleet, incarnation: &Incarnation, reason: String, draft: &mut Draft) {
    debug_assert_eq!(incarnation.state, IncarnationState::Reserved, "nobody was asked for it");
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
        displaces: Some(incarnation.operation),
        processes: Vec::new(),
        again: None,
        mounts: Vec::new(),
    });
}
