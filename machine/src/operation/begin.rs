//! Start of approved operations: immediately, or when dequeued.

use chancery_events::digest::Digest;
use chancery_events::fact::{
    ApprovalActor, ApprovalStart, CommandEffect, IncarnationEnd, IncarnationStopRequested, OperationApproved,
    OperationEnd, OperationEnded, OperationStarted, ReplicaDeleted,
};
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::name::DeploymentName;
use chancery_events::spec::OperationKind;
use chancery_events::time::Time;

use super::end::{end, holds_place};
use crate::context::{DecisionContext, FactDraft};
use crate::fleet::FleetState;
use crate::state::{Incarnation, IncarnationState, Operation, Replica};
use crate::{deployment, incarnation, volume};

/// Operation to start, which the preceding fact may have created.
pub(crate) struct StartingOperation<'a> {
    pub(crate) id: OperationId,
    pub(crate) kind: OperationKind,
    pub(crate) replica: &'a Replica,
    pub(crate) deployment: Option<&'a DeploymentName>,
    /// Incarnation that the operation starts or changes.
    pub(crate) incarnation: Option<IncarnationId>,
    /// Incarnation that must end before the other one is started.
    pub(crate) starts_after: Option<IncarnationId>,
}

/// Trigger of an operation's start.
pub(crate) enum StartTrigger {
    /// Approval, unless the operation is queued.
    Approval { approved_by: ApprovalActor, hash: Digest },
    /// Dequeuing of an approved operation.
    Dequeue,
}

/// Approves a pending operation, or starts an approved one.
pub(crate) fn begin_existing(
    fleet: &FleetState,
    operation: &Operation,
    how: StartTrigger,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let Some(replica) = fleet.replicas().get(&operation.replica) else { return };
    let operation = StartingOperation {
        id: operation.id,
        kind: operation.kind,
        replica,
        deployment: operation.deployment.as_ref(),
        incarnation: operation.incarnation,
        starts_after: holds_place(fleet, operation).and_then(|held| held.ties.starts_after),
    };
    begin(fleet, &operation, how, ctx, draft);
}

/// Target and deadline of the first command.
struct FirstCommand {
    incarnation: Option<IncarnationId>,
    deadline: Option<Time>,
}

/// Approves an operation and starts it unless it is queued, or starts an approved one.
pub(crate) fn begin(
    fleet: &FleetState,
    operation: &StartingOperation<'_>,
    how: StartTrigger,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let (id, replica) = (operation.id, operation.replica.name.clone());
    let approved = |replica, approved_by, hash, start, FirstCommand { incarnation, deadline }| {
        OperationApproved { operation: id, replica, approved_by, hash, incarnation, deadline, start }
    };
    if let StartTrigger::Approval { approved_by: by, hash } = &how
        && deployment::takes_turns(fleet, &operation.replica.plan, operation.deployment, operation.kind)
    {
        let nothing = FirstCommand { incarnation: None, deadline: None };
        return draft.push(approved(replica, by.clone(), *hash, ApprovalStart::Queued, nothing));
    }
    let down = matches!(operation.kind, OperationKind::Stop | OperationKind::Delete);
    if down {
        let running = operation.replica.operation.filter(|open| open.id != id && open.started);
        if let Some(running) = running.and_then(|open| fleet.operations().get(&open.id)) {
            end(fleet, running, OperationEnd::Superseded { successor: id }, draft);
        }
    }
    // Incarnations that were commanded.
    let runs = operation.replica.runs().filter_map(|run| fleet.incarnations().get(&run.incarnation));
    let live: Vec<_> = runs.filter(|run| run.state != IncarnationState::Reserved).collect();
    let first = first(fleet, operation, &live, ctx);
    let FirstCommand { incarnation, deadline } = first;
    match how {
        StartTrigger::Approval { approved_by: by, hash } => {
            draft.push(approved(replica.clone(), by, hash, ApprovalStart::Immediate, first));
        }
        StartTrigger::Dequeue => {
            draft.push(OperationStarted { operation: id, replica: replica.clone(), incarnation, deadline });
        }
    }
    if !down {
        return;
    }
    // The replica's other incarnation, if it has two.
    for other in live.iter().filter(|other| Some(other.id) != incarnation) {
        if !matches!(other.state, IncarnationState::Stopping(_)) {
            draft.push(stop(fleet, other, IncarnationEnd::Destroyed, ctx));
        }
    }
    if live.is_empty() {
        draft.push(OperationEnded { operation: id, replica: replica.clone(), end: OperationEnd::Succeeded });
        if operation.kind == OperationKind::Delete {
            draft.push(ReplicaDeleted { volumes: volume::owned(fleet, &replica), name: replica });
        }
    }
}

fn first(
    fleet: &FleetState,
    operation: &StartingOperation<'_>,
    live: &[&Incarnation],
    ctx: &DecisionContext,
) -> FirstCommand {
    let stops = |incarnation: &Incarnation| FirstCommand {
        incarnation: Some(incarnation.id),
        deadline: Some(incarnation::stop_deadline(fleet, incarnation, ctx.now)),
    };
    match operation.kind {
        OperationKind::Stop | OperationKind::Delete => live
            .first()
            .map_or(FirstCommand { incarnation: None, deadline: None }, |incarnation| stops(incarnation)),
        OperationKind::Create
        | OperationKind::Start
        | OperationKind::Update
        | OperationKind::Relocate
        | OperationKind::Restart
        | OperationKind::Reboot => {
            match live.iter().find(|incarnation| Some(incarnation.id) == operation.starts_after) {
                Some(old) => stops(old),
                None => FirstCommand {
                    incarnation: operation.incarnation,
                    deadline: incarnation::start_deadline(fleet, &operation.replica.plan, ctx.now),
                },
            }
        }
    }
}

/// Commands an incarnation to stop.
pub(crate) fn stop(
    fleet: &FleetState,
    incarnation: &Incarnation,
    then: IncarnationEnd,
    ctx: &DecisionContext,
) -> IncarnationStopRequested {
    IncarnationStopRequested {
        incarnation: incarnation.id,
        replica: incarnation.replica.clone(),
        effect: CommandEffect::Stop,
        end: then,
        deadline: Some(incarnation::stop_deadline(fleet, incarnation, ctx.now)),
    }
}
