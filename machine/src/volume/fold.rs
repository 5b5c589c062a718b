//! Folding of volume facts.

use std::collections::BTreeMap;

use chancery_events::fact::{
    CommandEffect, IncarnationEnd, Requester, VolumeCommandFailed, VolumeCreated, VolumeDeletionStarted,
    VolumeDestroyRequested, VolumeDestroyed, VolumeLost, VolumeReady, VolumeSnapshotStarted,
};
use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::name::{NodeName, StorageClass, VolumeName};
use chancery_events::spec::VolumeDeletion;
use chancery_events::subject::Subject;

use crate::fleet::{FleetState, FoldResult, StateContradiction};
use crate::incarnation;
use crate::meta::{EntityMeta, FactPosition};
use crate::state::{Incarnation, Node, PendingCommand, Volume, VolumeState};

pub(crate) fn created(fleet: &mut FleetState, fact: &VolumeCreated, at: FactPosition) -> FoldResult {
    let volume = new(fleet, &fact.name, &fact.node, (&fact.class, fact.capacity), at)?;
    // The volume now counts the storage that was reserved for it.
    fleet.touch::<Incarnation>(&fact.incarnation, at, |incarnation| {
        incarnation.ties.change(|ties| {
            if let Some(held) = ties.reserved_storage.get_mut(&fact.class) {
                *held = held.saturating_sub(fact.capacity);
            }
            ties.reserved_storage.retain(|_, held| *held > 0);
        });
    })?;
    fleet.put(Volume { owner: fact.owner.clone(), on_delete: fact.on_delete, ..volume });
    Ok(())
}

pub(crate) fn snapshot_started(
    fleet: &mut FleetState,
    fact: &VolumeSnapshotStarted,
    at: FactPosition,
) -> FoldResult {
    let volume = new(fleet, &fact.name, &fact.node, (&fact.class, fact.capacity), at)?;
    let source = Some((fact.source.clone(), fact.source_id));
    // Nothing of the source changes, but its history has the fact.
    fleet.touch::<Volume>(&fact.source, at, |_| {})?;
    fleet.put(Volume { may_hold_data: true, source, ..volume });
    Ok(())
}

/// Returns a volume whose creation is requested. It is empty and has no owner.
fn new(
    fleet: &FleetState,
    name: &VolumeName,
    node: &NodeName,
    (class, capacity): (&StorageClass, u64),
    at: FactPosition,
) -> Result<Volume, StateContradiction> {
    let cluster = fleet.require::<Node>(node)?.cluster.clone().ok_or_else(|| StateContradiction {
        subject: Subject::Volume(name.clone()),
        problem: format!("the volume is created on node {node}, which is in no cluster"),
    })?;
    Ok(Volume {
        id: VolumeId::issue(at.lineage, at.position),
        name: name.clone(),
        cluster,
        node: node.clone(),
        class: class.clone(),
        capacity,
        owner: None,
        on_delete: VolumeDeletion::Keep,
        state: VolumeState::Creating,
        deletion_requested_by: None,
        used_by: None,
        may_hold_data: false,
        source: None,
        revision: 1,
        command: Some(PendingCommand { effect: CommandEffect::Ensure, attempt: 1, not_before: at.time }),
        error: None,
        meta: EntityMeta::new(at),
    })
}

pub(crate) fn ready(fleet: &mut FleetState, fact: &VolumeReady, at: FactPosition) -> FoldResult {
    fleet.bump::<Volume>(&fact.name, at, |volume| {
        volume.state = VolumeState::Ready;
        (volume.command, volume.error) = (None, None);
    })
}

pub(crate) fn failed(fleet: &mut FleetState, fact: &VolumeCommandFailed, at: FactPosition) -> FoldResult {
    fleet.bump::<Volume>(&fact.name, at, |volume| {
        let retried =
            |(command, not_before)| PendingCommand { attempt: fact.attempt + 1, not_before, ..command };
        volume.command = volume.command.zip(fact.not_before).map(retried);
        volume.error = Some(fact.error.clone());
    })
}

pub(crate) fn lost(fleet: &mut FleetState, fact: &VolumeLost, at: FactPosition) -> FoldResult {
    fleet.bump::<Volume>(&fact.name, at, |volume| {
        volume.state = VolumeState::Lost(fact.reason.clone());
        volume.command = None;
    })
}

pub(crate) fn deletion_started(
    fleet: &mut FleetState,
    fact: &VolumeDeletionStarted,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Volume>(&fact.name, at, |volume| {
        volume.deletion_requested_by = Some(fact.requested_by.clone());
    })
}

pub(crate) fn destroy_requested(
    fleet: &mut FleetState,
    fact: &VolumeDestroyRequested,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Volume>(&fact.name, at, |volume| {
        volume.state = VolumeState::Destroying;
        volume.revision += 1;
        volume.command =
            Some(PendingCommand { effect: CommandEffect::Kill, attempt: 1, not_before: at.time });
        volume.error = None;
    })
}

pub(crate) fn destroyed(fleet: &mut FleetState, fact: &VolumeDestroyed) -> FoldResult {
    fleet.remove::<Volume>(&fact.name)
}

/// Assigns volumes to an incarnation that starts: its node and `on_delete` become theirs.
pub(crate) fn take(
    fleet: &mut FleetState,
    mounts: &[VolumeName],
    user: IncarnationId,
    at: FactPosition,
) -> FoldResult {
    let run = fleet.require::<Incarnation>(&user)?;
    let node = run.node.clone();
    let on_delete: BTreeMap<_, _> = incarnation::version_of(fleet, run)
        .map(|version| version.claims(&run.replica).map(|(name, claim)| (name, claim.on_delete)).collect())
        .unwrap_or_default();
    for name in mounts {
        fleet.touch::<Volume>(name, at, |volume| {
            volume.used_by = Some(user);
            volume.node = node.clone();
            volume.on_delete = on_delete.get(name).copied().unwrap_or(volume.on_delete);
        })?;
    }
    Ok(())
}

/// Records that the volumes of a started incarnation may contain data.
pub(crate) fn fill(fleet: &mut FleetState, user: IncarnationId) -> FoldResult {
    let mounts = fleet.require::<Incarnation>(&user)?.ties.mounts.clone();
    for name in mounts {
        let empty = |volume: &Volume| volume.used_by == Some(user) && !volume.may_hold_data;
        if fleet.volumes().get(&name).is_some_and(empty) {
            fleet.change::<Volume>(&name, |volume| volume.may_hold_data = true)?;
        }
    }
    Ok(())
}

/// Frees the volumes of an ended incarnation, which left data in them only if it was started.
pub(crate) fn free(
    fleet: &mut FleetState,
    mounts: &[VolumeName],
    end: &IncarnationEnd,
    at: FactPosition,
) -> FoldResult {
    let started = !matches!(end, IncarnationEnd::Unwound { .. });
    for name in mounts {
        fleet.touch::<Volume>(name, at, |volume| {
            volume.used_by = None;
            volume.may_hold_data |= started;
        })?;
    }
    Ok(())
}

/// Removes the owner of a deleted replica's volumes, which are deleted if unused or `destroy`.
pub(crate) fn leave(fleet: &mut FleetState, volumes: &[VolumeName], at: FactPosition) -> FoldResult {
    for name in volumes {
        fleet.touch::<Volume>(name, at, |volume| {
            let owner = volume.owner.take();
            let rule = match volume.on_delete {
                VolumeDeletion::Destroy => Some("on_delete"),
                VolumeDeletion::Keep if !volume.may_hold_data => Some("unused"),
                VolumeDeletion::Keep => None,
            };
            if let Some((owner, rule)) = owner.zip(rule).filter(|_| volume.deletion_requested_by.is_none()) {
                volume.deletion_requested_by = Some(Requester::Rule(format!("replica/{owner}/{rule}")));
            }
        })?;
    }
    Ok(())
}
