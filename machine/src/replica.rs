//! Replicas: the things with a name and a will. What people ask of one becomes an operation.
//!
//! | asked \ now | create or start waits | create or start runs | stop open | delete open | runs | does not run |
//! |---|---|---|---|---|---|---|
//! | start | same | same | refused, unless the stop waits: it is cancelled | refused | same | start |
//! | stop | a start is superseded; refused if nothing was ever approved | stop waits behind it | same | refused | stop | stop; same if stopped already |
//! | delete | superseded by delete | delete waits behind it | superseded, or waits behind it | same | delete | delete |
//!
//! A replica whose create was never approved goes with it: there is nothing to stop or delete.
//!
//! What people see is its *phase*, computed by one function, [`phase`]. `stopped` and `failed` are shown only when
//! a start would be accepted.

use chancery_events::fact::{
    Fact, IncarnationEnd, OperationEnd, OperationEnded, OperationOpened, ReplicaCreated, ReplicaDeleted,
};
use chancery_events::intent::{ReplicaDelete, ReplicaStart, ReplicaStop};
use chancery_events::name::ReplicaName;
use chancery_events::refusal::{Code, Refusal};
use chancery_events::spec::{Activity, OperationKind};
use chancery_events::subject::Subject;

use crate::context::{Context, Draft};
use crate::fleet::{Contradiction, Fleet};
use crate::meta::{At, Meta};
use crate::operation;
use crate::refuse::{bad_transition, not_found};
use crate::state::{Incarnation, IncarnationState, Operation, OperationState, Plan, Replica, Will};

/// What people see of a replica.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Waits for a place or for approval.
    Pending,
    /// Comes up.
    Starting,
    /// Is up.
    Running,
    /// Goes down.
    Stopping,
    /// Is down, as asked or cleanly by itself.
    Stopped,
    /// Is down, and should not be.
    Failed,
    /// Goes away.
    Deleting,
}

impl Phase {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Phase::Pending => "pending",
            Phase::Starting => "starting",
            Phase::Running => "running",
            Phase::Stopping => "stopping",
            Phase::Stopped => "stopped",
            Phase::Failed => "failed",
            Phase::Deleting => "deleting",
        }
    }
}

/// The phase of a replica, given its incarnation that is not over.
pub fn phase(replica: &Replica, active: Option<&Incarnation>) -> Phase {
    if replica.will == Will::Deleted {
        return Phase::Deleting;
    }
    match active.map(|incarnation| &incarnation.state) {
        Some(IncarnationState::Reserved) => return Phase::Pending,
        Some(IncarnationState::Creating | IncarnationState::Starting) => return Phase::Starting,
        Some(IncarnationState::Running) => return Phase::Running,
        Some(IncarnationState::Stopping(_)) => return Phase::Stopping,
        Some(IncarnationState::Ended(_)) | None => {}
    }
    let opens = |open: Option<(_, OperationKind)>| {
        open.is_some_and(|(_, kind)| matches!(kind, OperationKind::Create | OperationKind::Start))
    };
    if opens(replica.operation) || opens(replica.next) {
        return Phase::Pending;
    }
    match (replica.will, &replica.last) {
        (Will::Running, Some(IncarnationEnd::Failed { .. } | IncarnationEnd::Unwound { .. }) | None) => {
            Phase::Failed
        }
        (Will::Running, Some(IncarnationEnd::Destroyed)) | (Will::Stopped | Will::Proposed, _) => {
            Phase::Stopped
        }
        (Will::Deleted, _) => Phase::Deleting,
    }
}

fn find<'a>(fleet: &'a Fleet, name: &ReplicaName) -> Result<&'a Replica, Refusal> {
    fleet.replicas().get(name).ok_or_else(|| not_found(&Subject::Replica(name.clone())))
}

/// An open operation of the replica, of the kind.
fn open<'a>(fleet: &'a Fleet, replica: &Replica, wanted: OperationKind) -> Option<&'a Operation> {
    let mut both = replica.operation.iter().chain(&replica.next);
    both.find(|(_, kind)| *kind == wanted).and_then(|(id, _)| fleet.operations().get(id))
}

pub(crate) fn start(fleet: &Fleet, ask: &ReplicaStart, ctx: &Context) -> Result<Vec<Fact>, Refusal> {
    let replica = find(fleet, &ask.name)?;
    let what = format!("replica {}", ask.name);
    if replica.is_going() {
        return Err(bad_transition(&what, "being deleted", "running"));
    }
    let stop = open(fleet, replica, OperationKind::Stop);
    let coming =
        open(fleet, replica, OperationKind::Create).or_else(|| open(fleet, replica, OperationKind::Start));
    let active = replica.active.as_ref().and_then(|active| fleet.incarnations().get(&active.incarnation));
    let mut draft = Draft::new(ctx);
    match stop {
        Some(stop) if matches!(stop.state, OperationState::Running(_)) => {
            return Err(bad_transition(&what, "stopping", "running"));
        }
        Some(stop) => {
            let reason =
                format!("{} asked for a start", ctx.actor.as_ref().map_or("someone", |a| a.as_str()));
            // Only the stop: the replica stays, whatever became of its create.
            let (operation, replica) = (stop.id, stop.replica.clone());
            draft.push(OperationEnded { operation, replica, end: OperationEnd::Cancelled { reason } });
        }
        None => {}
    }
    match active.map(|incarnation| &incarnation.state) {
        Some(IncarnationState::Stopping(_)) => return Err(bad_transition(&what, "stopping", "running")),
        Some(_) => return Ok(draft.done()),
        None if coming.is_some() => return Ok(draft.done()),
        None => {}
    }
    let plan = fleet.plans().get(&replica.plan);
    if plan.is_none_or(|plan| plan.activity == Activity::Inactive) {
        return Err(Refusal::new(Code::Inactive, format!("plan {} is inactive", replica.plan)));
    }
    let (replica, kind) = (ask.name.clone(), OperationKind::Start);
    draft.push(OperationOpened { replica, kind, deployment: None, proposal: None });
    Ok(draft.done())
}

pub(crate) fn stop(fleet: &Fleet, ask: &ReplicaStop, ctx: &Context) -> Result<Vec<Fact>, Refusal> {
    let replica = find(fleet, &ask.name)?;
    if replica.is_going() {
        return Err(bad_transition(&format!("replica {}", ask.name), "being deleted", "stopped"));
    }
    if replica.will == Will::Proposed {
        let detail = format!("replica {} was never approved: reject its create, or delete it", ask.name);
        return Err(Refusal::new(Code::BadTransition, detail));
    }
    let stopped = replica.will == Will::Stopped && replica.active.is_none() && replica.operation.is_none();
    if stopped || open(fleet, replica, OperationKind::Stop).is_some() {
        return Ok(vec![]);
    }
    let mut draft = Draft::new(ctx);
    operation::open_end(fleet, replica, OperationKind::Stop, None, ctx, &mut draft);
    Ok(draft.done())
}

pub(crate) fn delete(fleet: &Fleet, ask: &ReplicaDelete, ctx: &Context) -> Result<Vec<Fact>, Refusal> {
    let replica = find(fleet, &ask.name)?;
    if replica.is_going() {
        return Ok(vec![]);
    }
    let mut draft = Draft::new(ctx);
    operation::open_end(fleet, replica, OperationKind::Delete, None, ctx, &mut draft);
    Ok(draft.done())
}

pub(crate) fn created(fleet: &mut Fleet, fact: &ReplicaCreated, at: At) {
    fleet.put(Replica {
        name: fact.name.clone(),
        plan: fact.plan.clone(),
        deployment: fact.deployment.clone(),
        will: Will::Proposed,
        active: None,
        operation: None,
        next: None,
        last: None,
        operations: Vec::new(),
        incarnations: Vec::new(),
        meta: Meta::new(at),
    });
}

/// With all that is kept of it; the plan keeps the totals.
pub(crate) fn deleted(fleet: &mut Fleet, fact: &ReplicaDeleted, at: At) -> Result<(), Contradiction> {
    let replica = fleet.want::<Replica>(&fact.name)?;
    let (operations, incarnations) = (replica.operations.clone(), replica.incarnations.clone());
    let plan = replica.plan.clone();
    for id in operations {
        fleet.remove::<Operation>(&id)?;
    }
    for id in incarnations {
        fleet.remove::<Incarnation>(&id)?;
    }
    fleet.remove::<Replica>(&fact.name)?;
    fleet.change::<Plan>(&plan, |plan| plan.meta.touch(at))
}
