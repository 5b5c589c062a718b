//! Volumes: named storage whose data outlives the incarnations that use it.
//!
//! | state | ready | command failed | lost, by report or with its node | delete, or its replica is deleted and `destroy` | unused then | gone |
//! |---|---|---|---|---|---|---|
//! | creating | → ready | retried; at last its users' operations fail, and it is deleted | → lost | to be deleted | → destroying | → lost |
//! | ready | – | – | → lost | to be deleted | → destroying | → lost |
//! | lost | → ready, unless its node is expunged: it was absent for a while | – | – | to be deleted | → destroying; destroyed on an expunged node | – |
//! | destroying | – | retried indefinitely | – | – | – | destroyed |
//!
//! A volume is created when the operation of its first user has started, on that user's node. Its data is
//! stored by its cluster's executor: a volume never leaves its cluster, and moves to the node of its next
//! user. A volume has one user at a time, from the user's start until its end is proved. So each step follows
//! its causes. An incarnation with volumes is started (`serve`) when its predecessor has ended, and all its
//! volumes exist and are free. A volume is destroyed when it is unused. A wait blocks nothing else.
//!
//! A missing volume is lost, and never silently created again: a client must delete it first.

mod fold;

use std::collections::BTreeMap;

use chancery_events::fact::{
    CommandEffect, Fact, IncarnationStartRequested, OperationEnd, Requester, VolumeCommandFailed,
    VolumeCreated, VolumeDeletionStarted, VolumeDestroyRequested, VolumeDestroyed, VolumeLost, VolumeReady,
    VolumeSnapshotStarted,
};
use chancery_events::id::{IncarnationId, Position, VolumeId};
use chancery_events::intent::{VolumeDelete, VolumeSnapshot};
use chancery_events::name::{NodeName, ReplicaName, StorageClass, VolumeName};
use chancery_events::observation::{IncarnationExit, ObjectReport, ObservedState, RetryClass};
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{ClusterRuntime, PlanVersion, VolumeClaim};

use crate::context::{DecisionContext, FactDraft, LONGEST_DELAY, retry_delay};
use crate::fleet::FleetState;
use crate::refuse::{DecidedFacts, invalid_transition};
use crate::scheduler::ExistingVolume;
use crate::state::{Incarnation, Operation, Volume, VolumeState};
use crate::{incarnation, operation};

pub(crate) use fold::{
    created, deletion_started, destroy_requested, destroyed, failed as command_failed, fill, free, leave,
    lost as was_lost, ready, snapshot_started, take,
};

/// Maximum number of operations that one failed volume ends in one commit.
const AWAITING: usize = 64;
/// Maximum number of a replica's own volumes: the fact of its deletion names all of them.
const OWNED: usize = 512;

/// Rule that deletes a volume that could not be created.
const UNMADE: &str = "volume/unmade";

/// Volumes that an incarnation of the replica uses by the version.
pub(crate) fn names(version: PlanVersion<'_>, replica: &ReplicaName) -> Vec<VolumeName> {
    let mut names: Vec<_> = version.claims(replica).map(|(name, _)| name).collect();
    names.sort();
    names
}

/// Volumes that the incarnation uses now.
pub(crate) fn used_by(fleet: &FleetState, incarnation: &Incarnation) -> Vec<VolumeName> {
    let used = |name: &&VolumeName| {
        fleet.volumes().get(*name).is_some_and(|volume| volume.used_by == Some(incarnation.id))
    };
    incarnation.ties.mounts.iter().filter(used).cloned().collect()
}

/// Position of the fact that let an incarnation use its volumes: the last change of one of them, or of the incarnation.
pub(crate) fn served_at(fleet: &FleetState, incarnation: IncarnationId) -> Option<Position> {
    let incarnation = fleet.incarnations().get(&incarnation)?;
    let volumes = incarnation.ties.mounts.iter().filter_map(|name| fleet.volumes().get(name));
    let changes = volumes.map(|volume| volume.meta.changed.position);
    changes.chain([incarnation.meta.changed.position]).max()
}

/// Volumes that the replica owns.
pub(crate) fn owned(fleet: &FleetState, replica: &ReplicaName) -> Vec<VolumeName> {
    fleet.index().volumes.owned(replica).cloned().collect()
}

/// Existing volumes for a replica, or the reason why it cannot use one.
pub(crate) fn stored(
    fleet: &FleetState,
    version: PlanVersion<'_>,
    replica: &ReplicaName,
) -> Result<Vec<ExistingVolume>, String> {
    let mut stored: Vec<ExistingVolume> = Vec::new();
    let mut own = owned(fleet, replica).len();
    for (name, claim) in version.claims(replica) {
        own += usize::from(claim.volume.is_none() && fleet.volumes().get(&name).is_none());
        if own > OWNED {
            return Err(format!(
                "replica {replica} would have more than {OWNED} volumes: delete unused ones"
            ));
        }
        // A volume to be deleted is created again.
        let Some(volume) = fleet.volumes().get(&name).filter(|volume| volume.deletion_requested_by.is_none())
        else {
            continue;
        };
        if let Some(reason) = misfit(volume, claim, replica) {
            return Err(reason);
        }
        if let Some(other) = stored.first().filter(|other| other.cluster != volume.cluster) {
            let clusters = (&other.cluster, &volume.cluster);
            return Err(format!("its volumes are in clusters {} and {}", clusters.0, clusters.1));
        }
        stored.push(ExistingVolume {
            cluster: volume.cluster.clone(),
            node: volume.node.clone(),
            class: volume.class.clone(),
            capacity: volume.capacity,
            claimed: claim.capacity,
        });
    }
    Ok(stored)
}

/// Reason why the replica must wait for a volume: another incarnation than `old` uses it.
pub(crate) fn used_by_another(
    fleet: &FleetState,
    version: PlanVersion<'_>,
    replica: &ReplicaName,
    old: &Incarnation,
) -> Option<String> {
    names(version, replica).into_iter().find_map(|name| {
        let user = fleet.volumes().get(&name)?.used_by.filter(|user| *user != old.id)?;
        let user = fleet.incarnations().get(&user).map_or(String::new(), |user| format!(" {}", user.replica));
        Some(format!("volume {name} is used by replica{user}"))
    })
}

/// Reason why the replica cannot use the volume for the claim, whatever becomes free.
fn misfit(volume: &Volume, claim: &VolumeClaim, replica: &ReplicaName) -> Option<String> {
    let name = &volume.name;
    if let VolumeState::Lost(reason) = &volume.state {
        return Some(format!(
            "volume {name} is lost ({reason}); delete it, and an empty volume is created instead"
        ));
    }
    if let Some(owner) = volume.owner.as_ref().filter(|owner| *owner != replica) {
        return Some(format!("volume {name} is replica {owner}'s own"));
    }
    if volume.class != claim.class {
        return Some(format!("volume {name} is of class {}, not {}", volume.class, claim.class));
    }
    let (has, wants) = (volume.capacity, claim.capacity);
    (has < wants).then(|| format!("volume {name} has {has} bytes, and {wants} are requested"))
}

pub(crate) fn delete(fleet: &FleetState, ask: &VolumeDelete, ctx: &DecisionContext) -> DecidedFacts {
    let volume = fleet.find::<Volume>(&ask.name)?;
    let (name, by) = (ask.name.clone(), ctx.actor.clone().map(Requester::Actor));
    let removing = by
        .filter(|_| volume.deletion_requested_by.is_none())
        .map(|by| VolumeDeletionStarted { name, requested_by: by }.into());
    Ok(removing.into_iter().collect())
}

/// Starts a snapshot: a new volume with the content of the source. Executors refuse what the fleet cannot know: a process
/// outside its records that uses the source.
pub(crate) fn snapshot(fleet: &FleetState, ask: &VolumeSnapshot) -> DecidedFacts {
    let source = fleet.find::<Volume>(&ask.name)?;
    let what = format!("volume {}", ask.name);
    let runtime = fleet.clusters().get(&source.cluster).map(|cluster| cluster.spec.runtime);
    if !runtime.is_some_and(ClusterRuntime::snapshots) {
        let runtime = runtime.map_or("unknown", ClusterRuntime::word);
        let detail =
            format!("{what} is on cluster {} of runtime {runtime}, which has no snapshots", source.cluster);
        return Err(Refusal::new(RefusalCode::Unsupported, detail));
    }
    if let Some(there) = fleet.volumes().get(&ask.snapshot) {
        let is_same = there.source.as_ref().is_some_and(|(_, id)| *id == source.id);
        if is_same && there.state == VolumeState::Creating && there.deletion_requested_by.is_none() {
            return Ok(Vec::new());
        }
        let detail = format!("volume {} exists already", ask.snapshot);
        return Err(Refusal::new(RefusalCode::AlreadyExists, detail));
    }
    if source.deletion_requested_by.is_some() {
        return Err(invalid_transition(&what, "being deleted", "the source of a snapshot"));
    }
    if source.state != VolumeState::Ready {
        return Err(invalid_transition(&what, state_word(&source.state), "the source of a snapshot"));
    }
    if let Some(user) = source.used_by.filter(|_| runtime == Some(ClusterRuntime::Process)) {
        let user = fleet.incarnations().get(&user).map_or(String::new(), |user| format!(" {}", user.replica));
        let detail =
            format!("{what} is used by replica{user}: a volume of processes is copied while nothing uses it");
        return Err(Refusal::new(RefusalCode::InUse, detail));
    }
    let node = fleet.nodes().get(&source.node).and_then(|node| node.cluster.as_ref());
    if node != Some(&source.cluster) || fleet.index().places.is_expunged(&source.node) {
        let detail =
            format!("{what} is on node {}, which is not in cluster {} now", source.node, source.cluster);
        return Err(Refusal::new(RefusalCode::InvalidTransition, detail));
    }
    let needed = BTreeMap::from([(source.class.clone(), source.capacity)]);
    if let Some(class) = fleet.index().places.lacks_storage(&source.node, &needed) {
        let detail = format!("node {} has too little storage of class {class} for a snapshot", source.node);
        return Err(Refusal::new(RefusalCode::InUse, detail));
    }
    let started = VolumeSnapshotStarted {
        name: ask.snapshot.clone(),
        source: source.name.clone(),
        source_id: source.id,
        node: source.node.clone(),
        class: source.class.clone(),
        capacity: source.capacity,
    };
    Ok(vec![started.into()])
}

const fn state_word(state: &VolumeState) -> &'static str {
    match state {
        VolumeState::Creating => "creating",
        VolumeState::Ready => "ready",
        VolumeState::Lost(_) => "lost",
        VolumeState::Destroying => "destroying",
    }
}

/// Returns the facts of a report.
pub(crate) fn report(
    fleet: &FleetState,
    name: &VolumeName,
    report: &ObjectReport<VolumeId>,
    ctx: &DecisionContext,
) -> Vec<Fact> {
    let mut draft = FactDraft::new(ctx);
    let Some(volume) = fleet.volumes().get(name).filter(|volume| volume.id == report.object) else {
        return Vec::new();
    };
    let name = name.clone();
    match (&volume.state, &report.observed) {
        // The report reflects an earlier command.
        _ if report.revision < volume.revision => {}
        (VolumeState::Creating, ObservedState::Ready { .. }) => draft.push(VolumeReady { name }),
        // The volume existed all along; its disk was perhaps absent. On an expunged node it stays lost.
        (VolumeState::Lost(_), ObservedState::Ready { .. })
            if !fleet.index().places.is_expunged(&volume.node) =>
        {
            draft.push(VolumeReady { name });
        }
        (_, ObservedState::Failed { message, retry: retry_class }) => {
            failed(fleet, volume, message, *retry_class, ctx, &mut draft);
        }
        (VolumeState::Destroying, ObservedState::Gone) => draft.push(VolumeDestroyed { name }),
        (VolumeState::Creating | VolumeState::Ready, ObservedState::Ended { exit, .. }) => {
            let reason = match exit {
                IncarnationExit::Failed { reason } => reason.clone(),
                IncarnationExit::Clean | IncarnationExit::PoweredOff => "it was removed".to_owned(),
            };
            draft.push(VolumeLost { name, reason });
        }
        (VolumeState::Creating | VolumeState::Ready, ObservedState::Gone) => {
            draft.push(VolumeLost { name, reason: "its object no longer exists".into() });
        }
        (
            VolumeState::Ready | VolumeState::Lost(_) | VolumeState::Destroying,
            ObservedState::Ready { .. } | ObservedState::Ended { .. } | ObservedState::Gone,
        )
        | (_, ObservedState::Started { .. } | ObservedState::NotReady { .. }) => {}
    }
    draft.done()
}

fn failed(
    fleet: &FleetState,
    volume: &Volume,
    error: &str,
    retry: RetryClass,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let Some(command) = volume.command.filter(|command| command.not_before <= ctx.now) else { return };
    let wait = retry_delay(command.attempt, volume.id.position().get());
    let wait = match (retry, command.effect) {
        (RetryClass::Permanent, CommandEffect::Ensure) => None,
        (RetryClass::Retryable, CommandEffect::Ensure) => wait,
        // A destroy is retried until it succeeds.
        (_, CommandEffect::Stop | CommandEffect::Kill | CommandEffect::Reboot) => {
            wait.or(Some(LONGEST_DELAY))
        }
    };
    draft.push(VolumeCommandFailed {
        name: volume.name.clone(),
        revision: volume.revision,
        attempt: command.attempt,
        error: error.into(),
        not_before: wait.map(|wait| ctx.now + wait),
    });
    if wait.is_some() {
        return;
    }
    if volume.deletion_requested_by.is_none() {
        let by = Requester::Rule(UNMADE.into());
        draft.push(VolumeDeletionStarted { name: volume.name.clone(), requested_by: by });
    }
    let reason = format!("cannot create volume {}: {error}", volume.name);
    // Other operations fail in the same way, when the volume is created again for them.
    for id in fleet.index().volumes.awaiting(&volume.name).take(AWAITING) {
        if let Some(operation) = fleet.incarnations().get(id).and_then(|it| brings_up(fleet, it)) {
            operation::end(fleet, operation, OperationEnd::Failed { reason: reason.clone() }, draft);
        }
    }
}

fn brings_up<'a>(fleet: &'a FleetState, incarnation: &Incarnation) -> Option<&'a Operation> {
    fleet.operations().get(&incarnation.operation).filter(|operation| operation.is_open())
}

/// Records the loss of a volume whose node the operator expunged.
pub(crate) fn lost(fleet: &FleetState, name: &VolumeName) -> Vec<Fact> {
    let Some(volume) = fleet.volumes().get(name) else { return Vec::new() };
    let reason = format!("node {} was expunged", volume.node);
    vec![VolumeLost { name: name.clone(), reason }.into()]
}

/// Destroys an unused volume that will be deleted. On an expunged node, no command is needed.
pub(crate) fn destroy(fleet: &FleetState, name: &VolumeName) -> Vec<Fact> {
    let Some(volume) = fleet.volumes().get(name) else { return Vec::new() };
    let name = name.clone();
    if fleet.index().places.is_expunged(&volume.node) {
        vec![VolumeDestroyed { name }.into()]
    } else {
        vec![VolumeDestroyRequested { name }.into()]
    }
}

/// Serves an incarnation that waits only for its volumes. Creates missing ones, starts it when all are free,
/// or fails its operation if that is impossible.
pub(crate) fn serve(fleet: &FleetState, id: IncarnationId, ctx: &DecisionContext) -> Vec<Fact> {
    let mut draft = FactDraft::new(ctx);
    let Some(incarnation) = fleet.incarnations().get(&id) else { return Vec::new() };
    match wanting(fleet, incarnation) {
        Err(reason) => {
            if let Some(operation) = brings_up(fleet, incarnation) {
                operation::end(fleet, operation, OperationEnd::Failed { reason }, &mut draft);
            }
        }
        Ok(missing) if missing.is_empty() => draft.push(IncarnationStartRequested {
            incarnation: id,
            replica: incarnation.replica.clone(),
            deployment: incarnation.deployment.clone(),
            deadline: incarnation::start_deadline(fleet, &incarnation.plan, ctx.now),
            mounts: incarnation.ties.mounts.clone(),
        }),
        Ok(missing) => missing.into_iter().for_each(|created| draft.push(created)),
    }
    draft.done()
}

/// Whether one incarnation can start as the other one ends: all its volumes exist, unused by a third.
pub(crate) fn passes_on(fleet: &FleetState, old: &Incarnation, new: &Incarnation) -> bool {
    let free = |name: &VolumeName| {
        fleet.volumes().get(name).is_some_and(|volume| {
            let is_left = volume.used_by.is_none_or(|user| user == old.id);
            volume.state == VolumeState::Ready && volume.deletion_requested_by.is_none() && is_left
        })
    };
    new.ties.mounts.iter().all(free) && wanting(fleet, new).is_ok_and(|missing| missing.is_empty())
}

/// Reason why an incarnation waited too long for its volumes.
pub(crate) fn late(fleet: &FleetState, incarnation: &Incarnation) -> String {
    let waits_for = incarnation.ties.mounts.iter().find_map(|name| {
        let volume = fleet.volumes().get(name)?;
        let user = volume.used_by.and_then(|user| fleet.incarnations().get(&user));
        match user {
            Some(user) => Some(format!("volume {name} was used by replica {} until then", user.replica)),
            None if volume.state != VolumeState::Ready => {
                Some(format!("volume {name} was not ready in time"))
            }
            None => None,
        }
    });
    waits_for.unwrap_or_else(|| "its volumes were not ready in time".to_owned())
}

/// Volumes to create for the incarnation, or the reason why it can never have all.
fn wanting(fleet: &FleetState, incarnation: &Incarnation) -> Result<Vec<VolumeCreated>, String> {
    let version = incarnation::version_of(fleet, incarnation).ok_or("its version is no longer stored")?;
    let replica = &incarnation.replica;
    let (mut missing, mut needed) = (Vec::<VolumeCreated>::new(), BTreeMap::<StorageClass, u64>::new());
    for (name, claim) in version.claims(replica) {
        let capacity = if let Some(volume) = fleet.volumes().get(&name) {
            if let Some(reason) = misfit(volume, claim, replica) {
                return Err(reason);
            }
            if volume.cluster != incarnation.cluster {
                return Err(format!("volume {name} is in cluster {}", volume.cluster));
            }
            if volume.node == incarnation.node { 0 } else { volume.capacity }
        } else {
            missing.push(VolumeCreated {
                name,
                node: incarnation.node.clone(),
                class: claim.class.clone(),
                capacity: claim.capacity,
                incarnation: incarnation.id,
                owner: claim.volume.is_none().then(|| replica.clone()),
                on_delete: claim.on_delete,
            });
            claim.capacity
        };
        let sum = needed.entry(claim.class.clone()).or_default();
        *sum = sum.saturating_add(capacity);
    }
    // Volumes that existed at the placement may have been deleted or moved since.
    for (class, held) in &incarnation.ties.reserved_storage {
        needed.entry(class.clone()).and_modify(|sum| *sum = sum.saturating_sub(*held));
    }
    needed.retain(|_, bytes| *bytes > 0);
    match fleet.index().places.lacks_storage(&incarnation.node, &needed) {
        Some(class) => {
            Err(format!("node {} has too little storage of class {class} by now", incarnation.node))
        }
        None => Ok(missing),
    }
}

/// First volume that is counted on the node, and the number of volumes there.
pub(crate) fn on_node<'a>(fleet: &'a FleetState, node: &NodeName) -> Option<(&'a VolumeName, usize)> {
    let on_it = fleet.index().volumes.on_node(node)?;
    on_it.first().map(|first| (first, on_it.len()))
}
