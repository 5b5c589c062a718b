//! Folding of incarnation facts.

use chancery_events::fact::{
    CommandEffect, IncarnationCommandFailed, IncarnationEnd, IncarnationEnded, IncarnationProcessesChanged,
    IncarnationReserved, IncarnationRunning, IncarnationStartRequested, IncarnationStarted,
    IncarnationStopRequested, OperationEnd,
};
use chancery_events::id::IncarnationId;
use chancery_events::lifecycle::WillWord;
use chancery_events::name::{DeploymentName, ReplicaName};
use chancery_events::observation::ProcessStatus;
use chancery_events::spec::OperationKind;
use chancery_events::subject::Subject;
use chancery_events::time::Time;

use super::{session_of, start_deadline};
use crate::fleet::{FleetState, FoldResult, StateContradiction, absent};
use crate::meta::{EntityMeta, FactPosition};
use crate::operation::{self, VersionUpdate};
use crate::state::{
    Incarnation, IncarnationExtras, IncarnationRef, IncarnationState, Node, Operation, OperationState,
    PendingCommand, Plan, Replica,
};
use crate::{deployment, volume};

/// Maximum number of ended incarnations kept for each replica.
const KEPT: usize = 20;

pub(crate) fn reserved(fleet: &mut FleetState, fact: &IncarnationReserved, at: FactPosition) -> FoldResult {
    let id = IncarnationId::issue(at.lineage, at.position);
    let (cluster, domain) = match fleet.whereabouts(&fact.node) {
        Some((cluster, domain)) => (cluster.cloned(), domain.clone()),
        None => return Err(absent::<Node>(&fact.node)),
    };
    let cluster = cluster.ok_or_else(|| StateContradiction {
        subject: Subject::Node(fact.node.clone()),
        problem: "the node has a reservation, and is in no cluster".into(),
    })?;
    // The predecessor's reservation covers what both need of the node.
    let followed = fact.starts_after.and_then(|old| fleet.incarnations().get(&old));
    let shares =
        followed.filter(|old| old.node == fact.node).map(|old| old.resources.at_most(fact.resources));
    fleet.bump::<Operation>(&fact.operation, at, |operation| {
        operation.state = OperationState::PendingApproval(fact.proposal);
        operation.hash = Some(fact.proposal.hash);
        operation.incarnation = Some(id);
        operation.node = Some(fact.node.clone());
        operation.domain = Some(domain.clone());
    })?;
    let plan = fleet.change_and(&fact.replica, |replica: &mut Replica| {
        let run = Some(IncarnationRef {
            incarnation: id,
            node: fact.node.clone(),
            domain,
            healthy: false,
            ending: false,
        });
        if replica.active.is_none() {
            replica.active = run;
        } else {
            replica.secondary = run.map(Box::new);
        }
        if let Some(open) = replica.open_mut(fact.operation) {
            open.replaceable = false;
        }
        replica.incarnations.push(id);
        replica.meta.touch(at);
        replica.plan.clone()
    })?;
    move_next(fleet, &fact.replica)?;
    let placed_by = fleet.require::<Plan>(&plan)?.generation;
    let waiting = fleet.index().plan_index(&plan).is_some_and(|index| !index.unplaced.is_empty());
    if !waiting && !fleet.require::<Plan>(&plan)?.unschedulable.is_empty() {
        // No operation waits any longer: the reasons are outdated.
        fleet.change::<Plan>(&plan, |plan| plan.unschedulable.clear())?;
    }
    let ties = IncarnationExtras {
        starts_after: fact.starts_after,
        shared_resources: shares,
        reserved_storage: fact.reserved_storage.clone(),
        mounts: fact.mounts.clone(),
        affinity_violated: fact.affinity_violated.clone(),
    };
    fleet.put(Incarnation {
        id,
        replica: fact.replica.clone(),
        plan,
        deployment: fact.deployment.clone(),
        node: fact.node.clone(),
        cluster,
        operation: fact.operation,
        placed_by,
        state: IncarnationState::Reserved,
        resources: fact.resources,
        ties: ties.into(),
        ready_since: None,
        unready: None,
        unready_session: None,
        processes: Vec::new(),
        ready: false,
        revision: 0,
        first_command: None,
        last_effect: None,
        command: None,
        deadline: None,
        awaits_volumes: false,
        meta: EntityMeta::new(at),
    });
    Ok(())
}

fn command(incarnation: &mut Incarnation, effect: CommandEffect, deadline: Option<Time>, at: FactPosition) {
    incarnation.revision += 1;
    incarnation.first_command.get_or_insert(at.position);
    incarnation.last_effect = Some(effect);
    incarnation.command = Some(PendingCommand { effect, attempt: 1, not_before: at.time });
    incarnation.deadline = deadline;
}

/// Properties of the operation that commands an incarnation.
pub(crate) struct OperationRef {
    pub(crate) kind: OperationKind,
    /// Incarnation that the operation starts, changes or ends.
    own: Option<IncarnationId>,
    version: DeploymentName,
}

impl From<&mut Operation> for OperationRef {
    fn from(operation: &mut Operation) -> OperationRef {
        OperationRef { kind: operation.kind, own: operation.incarnation, version: operation.version.clone() }
    }
}

/// Commands an incarnation to start, change or stop.
pub(crate) fn asked(
    fleet: &mut FleetState,
    id: IncarnationId,
    by: OperationRef,
    deadline: Option<Time>,
    at: FactPosition,
) -> FoldResult {
    if !fleet.require::<Incarnation>(&id)?.is_live() {
        let problem = "the incarnation is commanded after its end".into();
        return Err(StateContradiction { subject: Subject::Incarnation(id), problem });
    }
    let down = matches!(by.kind, OperationKind::Stop | OperationKind::Delete);
    let was_up = fleet.change_and(&id, |incarnation: &mut Incarnation| {
        let was_up = incarnation.state != IncarnationState::Reserved;
        if by.kind == OperationKind::Reboot {
            command(incarnation, CommandEffect::Reboot, deadline, at);
        } else if !down && by.own == Some(id) {
            let changes = was_up;
            if !changes && !incarnation.ties.mounts.is_empty() {
                // Its volumes come first.
                (incarnation.awaits_volumes, incarnation.deadline) = (true, deadline);
                incarnation.meta.touch(at);
                return was_up;
            }
            incarnation.state =
                if changes { IncarnationState::Updating(by.version) } else { IncarnationState::Creating };
            command(incarnation, CommandEffect::Ensure, deadline, at);
        } else {
            // If already stopping, only the recorded end changes.
            if !matches!(incarnation.state, IncarnationState::Stopping(_)) {
                command(incarnation, CommandEffect::Stop, deadline, at);
            }
            incarnation.state = IncarnationState::Stopping(Box::new(IncarnationEnd::Destroyed));
        }
        incarnation.meta.touch(at);
        was_up
    })?;
    // An unused reservation had no health.
    if was_up { set_health(fleet, id, at) } else { Ok(()) }
}

/// Commands an incarnation to start once its predecessor has ended, or to revert a failed change.
pub(crate) fn start_requested(
    fleet: &mut FleetState,
    fact: &IncarnationStartRequested,
    at: FactPosition,
) -> FoldResult {
    let to = fact.deployment.clone();
    fleet.bump::<Incarnation>(&fact.incarnation, at, |incarnation| {
        let new = incarnation.state == IncarnationState::Reserved;
        incarnation.state = if new { IncarnationState::Creating } else { IncarnationState::Updating(to) };
        command(incarnation, CommandEffect::Ensure, fact.deadline, at);
        if !fact.mounts.is_empty() {
            // From now on the volumes count their own storage.
            incarnation.ties.change(|ties| ties.reserved_storage.clear());
        }
        incarnation.awaits_volumes = false;
    })?;
    volume::take(fleet, &fact.mounts, fact.incarnation, at)?;
    fleet.touch::<Replica>(&fact.replica, at, |_| {})
}

pub(crate) fn stop_requested(
    fleet: &mut FleetState,
    fact: &IncarnationStopRequested,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Incarnation>(&fact.incarnation, at, |incarnation| {
        incarnation.state = IncarnationState::Stopping(Box::new(fact.end.clone()));
        command(incarnation, fact.effect, fact.deadline, at);
    })?;
    set_health(fleet, fact.incarnation, at)
}

pub(crate) fn command_failed(
    fleet: &mut FleetState,
    fact: &IncarnationCommandFailed,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Incarnation>(&fact.incarnation, at, |incarnation| {
        if incarnation.is_asked_to_reboot() && fact.not_before.is_none() {
            incarnation.deadline = None;
        }
        let retried =
            |(command, not_before)| PendingCommand { attempt: fact.attempt + 1, not_before, ..command };
        incarnation.command = incarnation.command.zip(fact.not_before).map(retried);
    })
}

pub(crate) fn started(fleet: &mut FleetState, fact: &IncarnationStarted, at: FactPosition) -> FoldResult {
    let id = fact.incarnation;
    let session = session_of(fleet, fleet.require::<Incarnation>(&id)?);
    fleet.bump::<Incarnation>(&id, at, |incarnation| {
        incarnation.state = match std::mem::replace(&mut incarnation.state, IncarnationState::Starting) {
            IncarnationState::Creating => IncarnationState::Starting,
            // The failed change is reverted; health is recorded separately.
            IncarnationState::Updating(to) if to == incarnation.deployment => {
                (incarnation.unready, incarnation.deadline) = (Some(at.time), fact.deadline);
                incarnation.unready_session = fact.deadline.and(session);
                IncarnationState::Running
            }
            other => other,
        };
        incarnation.command = None;
        incarnation.processes.clone_from(&fact.processes);
        incarnation.ready = false;
    })?;
    volume::fill(fleet, id)?;
    set_health(fleet, id, at)
}

pub(crate) fn running(fleet: &mut FleetState, fact: &IncarnationRunning, at: FactPosition) -> FoldResult {
    let id = fact.incarnation;
    fleet.bump::<Incarnation>(&id, at, |incarnation| {
        if let IncarnationState::Updating(to) = &incarnation.state {
            incarnation.deployment = to.clone();
        }
        incarnation.state = IncarnationState::Running;
        incarnation.command = None;
        incarnation.deadline = None;
        incarnation.processes.clone_from(&fact.processes);
        incarnation.ready = true;
        (incarnation.unready, incarnation.unready_session) = (None, None);
        incarnation.ready_since = incarnation.ready_since.or(Some(at.time));
    })?;
    volume::fill(fleet, id)?;
    let deployment = fleet.require::<Incarnation>(&id)?.deployment.clone();
    fleet.change::<Replica>(&fact.replica, |replica| {
        replica.down_after_drain = false;
        // The incarnation becomes active, and the replica gets its version.
        if replica.secondary.as_ref().is_some_and(|passive| passive.incarnation == id) {
            let old = replica.active.take();
            replica.active = replica.secondary.take().map(|run| *run);
            replica.secondary = old.map(|old| Box::new(IncarnationRef { ending: true, ..old }));
        }
        replica.deployment = deployment;
    })?;
    move_next(fleet, &fact.replica)?;
    set_health(fleet, id, at)?;
    if let Some(operation) = fact.operation {
        return operation::close(fleet, operation, &OperationEnd::Succeeded, at, VersionUpdate::Touch);
    }
    let by = fleet.require::<Incarnation>(&id)?.operation;
    if fact.replaces.is_some() && fleet.operations().get(&by).is_some_and(Operation::is_open) {
        let of = fleet.change_and(&by, |operation: &mut Operation| {
            operation.is_past_return = true;
            operation.deployment.clone().map(|name| (operation.plan.clone(), name))
        })?;
        if let Some((plan, name)) = of {
            deployment::progress(fleet, &plan, &name, at)?;
        }
    }
    Ok(())
}

pub(crate) fn processes_changed(
    fleet: &mut FleetState,
    fact: &IncarnationProcessesChanged,
    at: FactPosition,
) -> FoldResult {
    let session = session_of(fleet, fleet.require::<Incarnation>(&fact.incarnation)?);
    fleet.bump::<Incarnation>(&fact.incarnation, at, |incarnation| {
        incarnation.processes.clone_from(&fact.processes);
        incarnation.ready = fact.processes.iter().all(|process| process.status == ProcessStatus::Ready);
        if incarnation.state == IncarnationState::Running {
            incarnation.unready = incarnation.unready.or(Some(at.time)).filter(|_| !incarnation.ready);
            (incarnation.deadline, incarnation.unready_session) = (fact.deadline, fact.deadline.and(session));
        }
    })?;
    set_health(fleet, fact.incarnation, at)
}

/// Updates the replica's record of its incarnation: whether it is healthy, and whether it is ending.
fn set_health(fleet: &mut FleetState, id: IncarnationId, at: FactPosition) -> FoldResult {
    let incarnation = fleet.require::<Incarnation>(&id)?;
    let healthy = incarnation.state == IncarnationState::Running && incarnation.ready;
    let ending = matches!(incarnation.state, IncarnationState::Stopping(_));
    let name = incarnation.replica.clone();
    let known = fleet.require::<Replica>(&name)?.runs().find(|run| run.incarnation == id);
    // A role that was lost does not return.
    if known.is_none_or(|known| known.healthy == healthy && known.ending >= ending) {
        return Ok(());
    }
    fleet.touch::<Replica>(&name, at, |replica| {
        let mut runs = replica.active.iter_mut().chain(replica.secondary.as_deref_mut());
        if let Some(run) = runs.find(|run| run.incarnation == id) {
            run.healthy = healthy;
            run.ending |= ending;
        }
    })
}

pub(crate) fn ended(fleet: &mut FleetState, fact: &IncarnationEnded, at: FactPosition) -> FoldResult {
    let run = fleet.require::<Incarnation>(&fact.incarnation)?;
    // An unused reservation does not count as the replica's last end.
    let was_held = run.state == IncarnationState::Reserved && !run.awaits_volumes;
    fleet.bump::<Incarnation>(&fact.incarnation, at, |incarnation| {
        incarnation.state = IncarnationState::Ended(Box::new(fact.end.clone()));
        incarnation.command = None;
        incarnation.deadline = None;
        (incarnation.ready, incarnation.awaits_volumes) = (false, false);
        if !fact.processes.is_empty() {
            incarnation.processes.clone_from(&fact.processes);
        }
    })?;
    volume::free(fleet, &fact.mounts, &fact.end, at)?;
    let over: Vec<_> = {
        let live = |id: &IncarnationId| fleet.incarnations().get(id).is_some_and(Incarnation::is_live);
        fleet.require::<Replica>(&fact.replica)?.incarnations.iter().filter(|id| !live(id)).copied().collect()
    };
    let gone = &over[..over.len().saturating_sub(KEPT)];
    for id in gone {
        fleet.remove::<Incarnation>(id)?;
    }
    fleet.touch::<Replica>(&fact.replica, at, |replica| {
        let is_secondary = replica.secondary.as_ref().is_some_and(|run| run.incarnation == fact.incarnation);
        let remains = is_secondary && replica.active.as_ref().is_some_and(|active| !active.ending);
        if fact.end == IncarnationEnd::PoweredOff && !remains && replica.desired == WillWord::Running {
            replica.desired = WillWord::GuestShutdown;
            (replica.recovers, replica.down_after_drain) = (false, false);
        }
        if is_secondary {
            replica.secondary = None;
        } else {
            replica.active = replica.secondary.take().map(|run| *run);
            if !was_held {
                replica.last_end = Some(Box::new(fact.end.clone()));
                replica.next_restart = fact.restart_backoff;
                // An incarnation that was never ready is not restored.
                replica.recovers &= fact.restart_backoff.is_some();
            }
        }
        if let Some(open) = fact.reschedules.and_then(|operation| replica.open_mut(operation)) {
            open.replaceable = open.kind == OperationKind::Start;
        }
        replica.incarnations.retain(|id| !gone.contains(id));
    })?;
    move_next(fleet, &fact.replica)?;
    hand_over(fleet, fact, at)?;
    let Some(displaced) = fact.reschedules else { return Ok(()) };
    fleet.touch::<Operation>(&displaced, at, |operation| {
        operation.state = OperationState::Preparing;
        (operation.hash, operation.incarnation) = (None, None);
        (operation.node, operation.domain) = (None, None);
        operation.approved = None;
    })
}

/// Sets the update domain of the stop or delete that waits behind another operation to the replica's current
/// domain. Policies concern the domain in which that operation would end an incarnation.
fn move_next(fleet: &mut FleetState, name: &ReplicaName) -> FoldResult {
    let replica = fleet.require::<Replica>(name)?;
    let (Some(next), Some(active)) = (&replica.queued_operation, &replica.active) else { return Ok(()) };
    let (id, domain) = (next.id, active.domain.clone());
    // No row shows the domain of an operation.
    fleet.change::<Operation>(&id, |operation| operation.domain = Some(domain))
}

/// Transfers the shared resources to the incarnation that follows the ended one.
fn hand_over(fleet: &mut FleetState, fact: &IncarnationEnded, at: FactPosition) -> FoldResult {
    let left = fleet.require::<Replica>(&fact.replica)?.active.as_ref().map(|active| active.incarnation);
    let follower = left.filter(|id| {
        let starts_after = fleet.incarnations().get(id).and_then(|left| left.ties.starts_after);
        starts_after == Some(fact.incarnation)
    });
    match follower {
        Some(id) => {
            let by = fleet.require::<Incarnation>(&id)?.operation;
            let begun =
                fleet.operations().get(&by).is_some_and(|by| matches!(by.state, OperationState::Running));
            let run = fleet.require::<Incarnation>(&id)?;
            let due = begun && run.state == IncarnationState::Reserved && !run.ties.mounts.is_empty();
            let deadline = start_deadline(fleet, &run.plan, at.time).filter(|_| due);
            fleet.change::<Incarnation>(&id, |follower| {
                follower.ties.change(|ties| ties.shared_resources = None);
                if due {
                    (follower.awaits_volumes, follower.deadline) = (true, deadline);
                }
            })
        }
        None => Ok(()),
    }
}
