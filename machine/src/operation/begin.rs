//! Start of approved operations: immediately, or when dequeued.

use chancery_events::digest::Digest;
use chancery_events::fact::{
    Approver, Begins, Effect, IncarnationCommanded, IncarnationEnd, OperationApproved, OperationBegun,
    OperationEnd, OperationEnded, ReplicaDeleted,
};
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::name::DeploymentName;
use chancery_events::spec::OperationKind;
use chancery_events::time::Time;

use super::end::{end, holds_place};
use crate::context::{Context, Draft};
use crate::fleet::Fleet;
use crate::state::{Incarnation, IncarnationState, Operation, Replica};
use crate::{deployment, incarnation, volume};

/// Operation to start, which the preceding fact may have created.
pub(crate) struct Begun<'a> {
    pub(crate) id: OperationId,
    pub(crate) kind: OperationKind,
    pub(crate) replica: &'a Replica,
    pub(crate) deployment: Option<&'a DeploymentName>,
    /// Incarnation that the operation starts or changes.
    pub(crate) incarnation: Option<IncarnationId>,
    /// Incarnation that must end before the other one is started.
    pub(crate) follows: Option<IncarnationId>,
}

/// Trigger of an operation's start.
pub(crate) enum How {
    /// Approval, unless the operation is queued.
    Approved { by: Approver, hash: Digest },
    /// Dequeuing of an approved operation.
    Turn,
}

fn of<'a>(fleet: &'a Fleet, operation: &'a Operation) -> Option<Begun<'a>> {
    Some(Begun {
        id: operation.id,
        kind: operation.kind,
        replica: fleet.replicas().get(&operation.replica)?,
        deployment: operation.deployment.as_ref(),
        incarnation: operation.incarnation,
        follows: holds_place(fleet, operation).and_then(|held| held.ties.follows),
    })
}

/// Approves a pending operation.
pub(super) fn approve(
    fleet: &Fleet,
    operation: &Operation,
    hash: Digest,
    by: Approver,
    ctx: &Context,
    draft: &mut Draft,
) {
    if let Some(operation) = of(fleet, operation) {
        begin(fleet, &operation, How::Approved { by, hash }, ctx, draft);
    }
}

/// Starts an approved operation.
pub(crate) fn take_turn(fleet: &Fleet, operation: &Operation, ctx: &Context, draft: &mut Draft) {
    if let Some(operation) = of(fleet, operation) {
        begin(fleet, &operation, How::Turn, ctx, draft);
    }
}

/// Target and deadline of the first command.
struct First {
    incarnation: Option<IncarnationId>,
    deadline: Option<Time>,
}

/// Approves an operation and starts it unless it is queued, or starts an approved one.
pub(crate) fn begin(fleet: &Fleet, operation: &Begun<'_>, how: How, ctx: &Context, draft: &mut Draft) {
    let (id, replica) = (operation.id, operation.replica.name.clone());
    if let How::Approved { by, hash } = &how
        && deployment::takes_turns(fleet, &operation.replica.plan, operation.deployment, operation.kind)
    {
        let (by, hash, begins) = (by.clone(), *hash, Begins::Later);
        let later =
            OperationApproved { operation: id, replica, by, hash, incarnation: None, deadline: None, begins };
        return draft.push(later);
    }
    let down = matches!(operation.kind, OperationKind::Stop | OperationKind::Delete);
    if down {
        supersede_running(fleet, operation, draft);
    }
    let live = live(fleet, operation.replica);
    let First { incarnation, deadline } = first(fleet, operation, &live, ctx);
    draft.push_begun(id, replica.clone(), how, incarnation, deadline);
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

impl Draft {
    fn push_begun(
        &mut self,
        operation: OperationId,
        replica: chancery_events::name::ReplicaName,
        how: How,
        incarnation: Option<IncarnationId>,
        deadline: Option<Time>,
    ) {
        match how {
            How::Approved { by, hash } => {
                let begins = Begins::Now;
                self.push(OperationApproved { operation, replica, by, hash, incarnation, deadline, begins });
            }
            How::Turn => self.push(OperationBegun { operation, replica, incarnation, deadline }),
        }
    }
}

/// Supersedes the running operation of the replica, for a stop or delete.
fn supersede_running(fleet: &Fleet, operation: &Begun<'_>, draft: &mut Draft) {
    let running = operation.replica.operation.filter(|open| open.id != operation.id && open.begun);
    if let Some(running) = running.and_then(|open| fleet.operations().get(&open.id)) {
        end(fleet, running, OperationEnd::Superseded { by: operation.id }, draft);
    }
}

/// Incarnations of a replica that were commanded.
fn live<'a>(fleet: &'a Fleet, replica: &Replica) -> Vec<&'a Incarnation> {
    let runs = replica.runs().filter_map(|run| fleet.incarnations().get(&run.incarnation));
    runs.filter(|incarnation| incarnation.state != IncarnationState::Reserved).collect()
}

fn first(fleet: &Fleet, operation: &Begun<'_>, live: &[&Incarnation], ctx: &Context) -> First {
    let stops = |incarnation: &Incarnation| First {
        incarnation: Some(incarnation.id),
        deadline: Some(incarnation::stop_deadline(fleet, incarnation, ctx.now)),
    };
    match operation.kind {
        OperationKind::Stop | OperationKind::Delete => {
            live.first().map_or(First { incarnation: None, deadline: None }, |incarnation| stops(incarnation))
        }
        OperationKind::Create
        | OperationKind::Start
        | OperationKind::Update
        | OperationKind::Relocate
        | OperationKind::Restart => {
            match live.iter().find(|incarnation| Some(incarnation.id) == operation.follows) {
                Some(old) => stops(old),
                None => First {
                    incarnation: operation.incarnation,
                    deadline: incarnation::start_deadline(fleet, &operation.replica.plan, ctx.now),
                },
            }
        }
    }
}

/// Commands an incarnation to stop.
pub(crate) fn stop(
    fleet: &Fleet,
    incarnation: &Incarnation,
    then: IncarnationEnd,
    ctx: &Context,
) -> IncarnationCommanded {
    IncarnationCommanded {
        incarnation: incarnation.id,
        replica: incarnation.replica.clone(),
        effect: Effect::Stop,
        then,
        deadline: Some(incarnation::stop_deadline(fleet, incarnation, ctx.now)),
    }
}
