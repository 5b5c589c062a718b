//! Commands of objects: what an executor must do, with everything that it needs.

use std::num::NonZeroU64;
use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::name::ReplicaName;
use chancery_events::protocol::{
    Command, CommandStatus, IncarnationPayload, IncarnationSpec, ObjectSpec, RunLabels, VolumeMount,
    VolumeSpec,
};
use chancery_events::spec::{Payload, PlanVersion, VolumeClaim};
use chancery_machine::fleet::FleetState;
use chancery_machine::state::{Incarnation, Volume, VolumeState};

/// Returns the volume with this id.
pub(super) fn volume(fleet: &FleetState, id: VolumeId) -> Option<&Volume> {
    fleet.volumes().get(fleet.index().volumes.name(id)?)
}

/// Returns the last command of an object, with all that it needs.
pub(super) fn command(fleet: &FleetState, id: ObjectId) -> Option<Command> {
    match id {
        ObjectId::Incarnation(id) => of_run(fleet, fleet.incarnations().get(&id)?),
        ObjectId::Volume(id) => volume(fleet, id).map(of_volume),
    }
}

fn of_run(fleet: &FleetState, incarnation: &Incarnation) -> Option<Command> {
    let plan = fleet.plans().get(&incarnation.plan)?;
    let key = (incarnation.plan.clone(), incarnation.target_deployment().clone());
    let deployment = fleet.deployments().get(&key)?;
    let (policy, version) = (plan.policy(), plan.version_of(deployment.generation));
    let payloads = version.payloads().iter().map(|payload| IncarnationPayload {
        name: payload.name.clone(),
        processes: payload.processes,
        memory: NonZeroU64::new(payload.resources.memory),
        ports: payload.ports.clone(),
        coordinates: deployment.spec.coordinates.get(&payload.name).cloned().unwrap_or_default(),
        run: payload.run.clone(),
        ready: payload.ready.clone(),
        alive: payload.alive.clone(),
        mounts: mounts(fleet, &incarnation.replica, payload),
    });
    Some(Command {
        object: incarnation.id.into(),
        revision: incarnation.revision,
        attempt: incarnation.command.map_or(1, |command| command.attempt),
        effect: incarnation.last_effect.unwrap_or(CommandEffect::Ensure),
        status: if incarnation.command.is_some() { CommandStatus::Pending } else { CommandStatus::Fulfilled },
        grace: policy.timeouts().stop(),
        spec: ObjectSpec::Incarnation(IncarnationSpec {
            replica: incarnation.replica.clone(),
            plan: incarnation.plan.clone(),
            node: incarnation.node.clone(),
            restart: *policy.restart(),
            labels: labels(fleet, incarnation, version).into(),
            payloads: payloads.collect(),
        }),
    })
}

/// Returns the labels of an incarnation.
fn labels(fleet: &FleetState, incarnation: &Incarnation, version: PlanVersion<'_>) -> RunLabels {
    let node = fleet.nodes().get(&incarnation.node);
    RunLabels {
        namespace: version.namespace().clone(),
        deployment: incarnation.target_deployment().clone(),
        domain: node.map(|node| node.spec.domain.clone()),
        zone: node.and_then(|node| node.spec.zone.clone()),
    }
}

/// Returns the mounts of a payload that starts: its own volumes exist.
fn mounts(fleet: &FleetState, replica: &ReplicaName, payload: &Payload) -> Vec<VolumeMount> {
    let mount = |claim: &VolumeClaim| {
        let volume = fleet.volumes().get(&claim.name(replica, &payload.name))?.id;
        Some(VolumeMount { path: claim.mount.clone(), volume })
    };
    payload.volumes.iter().filter_map(mount).collect()
}

fn of_volume(volume: &Volume) -> Command {
    let effect = match volume.state {
        VolumeState::Destroying => CommandEffect::Kill,
        VolumeState::Creating | VolumeState::Ready | VolumeState::Lost(_) => CommandEffect::Ensure,
    };
    Command {
        object: volume.id.into(),
        revision: volume.revision,
        attempt: volume.command.map_or(1, |command| command.attempt),
        effect,
        status: if volume.command.is_some() { CommandStatus::Pending } else { CommandStatus::Fulfilled },
        grace: Duration::ZERO,
        spec: ObjectSpec::Volume(VolumeSpec {
            name: volume.name.clone(),
            node: volume.node.clone(),
            class: volume.class.clone(),
            capacity: volume.capacity,
        }),
    }
}
