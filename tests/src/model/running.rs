//! Rows that follow from the entities: replicas, their incarnations, and their operations.

use chancery_events::fact::IncarnationEnd;
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::name::ReplicaName;
use chancery_events::observation::ProcessStatus;
use chancery_events::spec::OperationKind;
use chancery_events::time::Time;
use chancery_projector::rows::{
    CommandRow, IncarnationRow, IncarnationStatus, OperationRow, OperationStatus, PhaseStatus, Reachability,
    ReplicaRow, SecondaryRow, WillWord,
};

use super::entities::{
    Incarnation, IncarnationProgress, Operation, Replica, StampedEntity, VisibleEntities, brings_up,
};

const fn will(kept: &StampedEntity<Replica>) -> WillWord {
    match kept.is.approved {
        None => WillWord::Proposed,
        Some(OperationKind::Stop) => WillWord::Stopped,
        Some(OperationKind::Delete) => WillWord::Deleted,
        Some(_) if kept.is.is_powered_off => WillWord::GuestShutdown,
        // The field has no other kind.
        Some(_) => WillWord::Running,
    }
}

/// Returns the phase of a replica, as people see it.
pub(super) fn phase(all: &VisibleEntities, name: &ReplicaName, kept: &StampedEntity<Replica>) -> PhaseStatus {
    let open = all.open(name);
    let active = all.active(&kept.is).map(|(_, active)| &active.is.progress);
    let processes = all.active(&kept.is).into_iter().flat_map(|(_, active)| &active.is.processes);
    let resets = processes.into_iter().any(|process| process.status == ProcessStatus::Rebooting);
    let does = |kind| open.iter().any(|(_, operation)| operation.has_begun && operation.kind == kind);
    match (will(kept), active) {
        (WillWord::Deleted, _) => PhaseStatus::Deleting,
        // Whatever its incarnations do meanwhile.
        (_, Some(_)) if does(OperationKind::Update) => PhaseStatus::Updating,
        (_, Some(_)) if does(OperationKind::Restart) => PhaseStatus::Restarting,
        (_, Some(_)) if does(OperationKind::Reboot) => PhaseStatus::Rebooting,
        (_, Some(IncarnationProgress::Reserved)) => PhaseStatus::Pending,
        (_, Some(IncarnationProgress::Creating | IncarnationProgress::Starting)) => PhaseStatus::Starting,
        (_, Some(IncarnationProgress::Running)) if resets => PhaseStatus::Rebooting,
        (_, Some(IncarnationProgress::Running)) => PhaseStatus::Running,
        (_, Some(IncarnationProgress::Updating(_))) => PhaseStatus::Updating,
        (_, Some(IncarnationProgress::Stopping)) => PhaseStatus::Stopping,
        (_, None | Some(IncarnationProgress::Ended(_))) if open.iter().any(|(_, it)| brings_up(it.kind)) => {
            PhaseStatus::Pending
        }
        (WillWord::Running, _) => match &kept.is.last {
            Some(IncarnationEnd::Destroyed | IncarnationEnd::PoweredOff)
                if kept.is.next_restart.is_none() =>
            {
                PhaseStatus::Stopped
            }
            _ => PhaseStatus::Failed,
        },
        (WillWord::Stopped | WillWord::GuestShutdown | WillWord::Proposed, _) => PhaseStatus::Stopped,
    }
}

pub(super) fn replica(
    all: &VisibleEntities,
    name: &ReplicaName,
    kept: &StampedEntity<Replica>,
) -> ReplicaRow {
    let live = all.active(&kept.is);
    let phase = phase(all, name, kept);
    let secondary = kept.is.secondary.and_then(|id| Some((id, all.incarnations.get(&id)?)));
    let secondary = secondary.map(|(id, run)| SecondaryRow {
        incarnation: id,
        node: run.is.fact.node.clone(),
        state: incarnation_status(&run.is),
    });
    row!(ReplicaRow, kept, {
        name: name.clone(),
        plan: kept.is.plan.clone(),
        deployment: kept.is.deployment.clone(),
        desired: will(kept),
        phase: phase,
        ready: live.is_some_and(|(_, live)| live.is.progress == IncarnationProgress::Running && all_online(&live.is)),
        reachability: live.map_or(Reachability::Known, |(_, live)| reachability(all, &live.is)),
        node: live.map(|(_, live)| live.is.fact.node.clone()),
        incarnation: live.map(|(id, _)| id),
        secondary: secondary,
        processes: live.map(|(_, live)| live.is.processes.clone()).unwrap_or_default(),
        operation: all.open(name).first().map(|(id, _)| *id),
        next_restart: kept.is.next_restart.filter(|_| !all.open(name).iter().any(|(_, it)| brings_up(it.kind))),
        unready_at: live.and_then(|(_, live)| unready_at(&live.is)),
        message: String::new(),
    })
}

/// Returns the reachability: unknown at an executor while its cluster has no session.
fn reachability(all: &VisibleEntities, incarnation: &Incarnation) -> Reachability {
    let concerns =
        !matches!(incarnation.progress, IncarnationProgress::Reserved | IncarnationProgress::Ended(_));
    let mut sessions = all.sessions.values();
    let has_session =
        sessions.any(|s| Some(&s.is.fact.cluster) == incarnation.cluster.as_ref() && s.is.end.is_none());
    if concerns && !has_session { Reachability::Unknown } else { Reachability::Known }
}

/// Whether processes were observed, and all are ready; never after the end.
fn all_online(incarnation: &Incarnation) -> bool {
    let seen = !incarnation.processes.is_empty() && !incarnation.is_over();
    seen && incarnation.processes.iter().all(|process| process.status == ProcessStatus::Ready)
}

/// Returns the start of a running incarnation's unreadiness.
fn unready_at(incarnation: &Incarnation) -> Option<Time> {
    incarnation.unready.filter(|_| incarnation.progress == IncarnationProgress::Running)
}

fn incarnation_status(incarnation: &Incarnation) -> IncarnationStatus {
    let resets = incarnation.processes.iter().any(|process| process.status == ProcessStatus::Rebooting);
    match &incarnation.progress {
        IncarnationProgress::Running if resets => IncarnationStatus::Rebooting,
        IncarnationProgress::Reserved => IncarnationStatus::Reserved,
        IncarnationProgress::Creating => IncarnationStatus::Creating,
        IncarnationProgress::Starting => IncarnationStatus::Starting,
        IncarnationProgress::Running => IncarnationStatus::Running,
        IncarnationProgress::Updating(_) => IncarnationStatus::Updating,
        IncarnationProgress::Stopping => IncarnationStatus::Stopping,
        IncarnationProgress::Ended(IncarnationEnd::Destroyed) => IncarnationStatus::Destroyed,
        IncarnationProgress::Ended(IncarnationEnd::PoweredOff) => IncarnationStatus::PoweredOff,
        IncarnationProgress::Ended(IncarnationEnd::Failed { .. }) => IncarnationStatus::Failed,
        IncarnationProgress::Ended(IncarnationEnd::Unwound { .. }) => IncarnationStatus::Unwound,
    }
}

pub(super) fn incarnation(
    all: &VisibleEntities,
    id: IncarnationId,
    kept: &StampedEntity<Incarnation>,
) -> IncarnationRow {
    let fact = &kept.is.fact;
    row!(IncarnationRow, kept, {
        id: id,
        replica: fact.replica.clone(),
        plan: kept.is.plan.clone(),
        deployment: kept.is.deployment.clone(),
        node: fact.node.clone(),
        cluster: kept.is.cluster.clone().expect("reservations are on nodes of clusters"),
        state: incarnation_status(&kept.is),
        ready: all_online(&kept.is),
        reachability: reachability(all, &kept.is),
        resources: fact.resources,
        reserved_storage: kept.is.stores.clone(),
        mounts: fact.mounts.clone(),
        processes: kept.is.processes.clone(),
        revision: kept.is.revision,
        operation: fact.operation,
        starts_after: fact.starts_after,
        affinity_violated: fact.affinity_violated.clone(),
        unready_at: unready_at(&kept.is),
        message: String::new(),
    })
}

pub(super) fn command(id: IncarnationId, kept: &StampedEntity<Incarnation>) -> Option<CommandRow> {
    let (effect, attempt) = kept.is.command?;
    Some(row!(CommandRow, kept, {
        incarnation: id,
        revision: kept.is.revision,
        effect: effect,
        attempt: attempt,
        node: kept.is.fact.node.clone(),
        cluster: kept.is.cluster.clone()?,
        replica: kept.is.fact.replica.clone(),
    }))
}

pub(super) fn operation(id: OperationId, kept: &StampedEntity<Operation>) -> OperationRow {
    let word = kept.is.word();
    let state = OperationStatus::ALL.iter().find(|state| state.word() == word);
    row!(OperationRow, kept, {
        id: id,
        replica: kept.is.replica.clone(),
        plan: kept.is.plan.clone(),
        kind: kept.is.kind,
        deployment: kept.is.deployment.clone(),
        requested_by: kept.is.requested_by.clone(),
        target_deployment: kept.is.version.clone(),
        state: *state.expect("every state has its word"),
        hash: kept.is.proposal.map(|proposal| proposal.hash),
        node: kept.is.node.clone(),
        incarnation: kept.is.place,
        approved_by: kept.is.approved.clone(),
        message: String::new(),
    })
}
