//! Commands of objects: what an executor must do, with everything that it needs.

use std::num::NonZeroU64;
use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::name::{Namespace, ReplicaName};
use chancery_events::protocol::{
    Command, CommandStatus, IncarnationPayload, IncarnationSpec, ObjectSpec, RunLabels, VolumeMount,
    VolumeSpec,
};
use chancery_events::spec::{NodeBinding, Payload, PlanVersion, VolumeClaim};
use chancery_machine::fleet::FleetState;
use chancery_machine::state::{Incarnation, Plan, Volume, VolumeState};

/// Returns the volume with this id.
pub(super) fn volume(fleet: &FleetState, id: VolumeId) -> Option<&Volume> {
    fleet.volumes().get(fleet.index().volumes.name(id)?)
}

/// Returns the last command of an object, with all that it needs.
pub(super) fn command(fleet: &FleetState, id: ObjectId) -> Option<Command> {
    match id {
        ObjectId::Incarnation(id) => of_run(fleet, fleet.incarnations().get(&id)?),
        ObjectId::Volume(id) => volume(fleet, id).and_then(|volume| of_volume(fleet, volume)),
    }
}

fn of_run(fleet: &FleetState, incarnation: &Incarnation) -> Option<Command> {
    let plan = fleet.plans().get(&incarnation.plan)?;
    let key = (incarnation.plan.clone(), incarnation.target_deployment().clone());
    let deployment = fleet.deployments().get(&key)?;
    let (immediate, version) = (plan.immediate(), plan.version_of(deployment.generation));
    let payloads = version.payloads().iter().map(|payload| IncarnationPayload {
        name: payload.name.clone(),
        processes: payload.processes,
        cpu: NonZeroU64::new(payload.resources.cpu),
        memory: NonZeroU64::new(payload.resources.memory),
        disk: NonZeroU64::new(payload.resources.disk),
        ports: payload.ports.clone(),
        coordinates: deployment.spec.coordinates.get(&payload.name).cloned().unwrap_or_default(),
        run: payload.run.clone(),
        container: payload.container.clone(),
        vm: payload.vm.clone(),
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
        grace: immediate.timeouts().stop(),
        spec: ObjectSpec::Incarnation(IncarnationSpec {
            replica: incarnation.replica.clone(),
            plan: incarnation.plan.clone(),
            node: incarnation.node.clone(),
            restart: *immediate.restart(),
            labels: labels(fleet, incarnation, version).into(),
            payloads: payloads.collect(),
        }),
        traceparent: None,
    })
}

/// Returns the labels of an incarnation.
fn labels(fleet: &FleetState, incarnation: &Incarnation, version: PlanVersion<'_>) -> RunLabels {
    let node = fleet.nodes().get(&incarnation.node);
    let cluster = node.and_then(|node| fleet.clusters().get(node.cluster.as_ref()?));
    let kubernetes = cluster.and_then(|cluster| cluster.spec.kubernetes.as_ref());
    let by_labels = kubernetes.is_some_and(|of| of.node == NodeBinding::Labels);
    RunLabels {
        namespace: version.namespace().clone(),
        service: version.service().clone(),
        labels: version.labels().clone(),
        deployment: incarnation.target_deployment().clone(),
        domain: node.map(|node| node.spec.domain.clone()),
        zone: node.and_then(|node| node.spec.zone.clone()),
        node_labels: node.filter(|_| by_labels).map(|node| node.spec.labels.clone()),
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

/// Returns the namespace of the plan that uses the volume, or that would use it first.
fn namespace(fleet: &FleetState, volume: &Volume) -> Option<Namespace> {
    let user = volume.used_by.and_then(|user| fleet.incarnations().get(&user));
    let owner = volume.owner.as_ref().and_then(|owner| fleet.replicas().get(owner));
    let claims = |plan: &&Plan| {
        let mut payloads = plan.specs.newest().payloads.iter();
        payloads
            .any(|payload| payload.volumes.iter().any(|claim| claim.volume.as_ref() == Some(&volume.name)))
    };
    let plan = match (user.map(|user| &user.plan), owner.map(|owner| &owner.plan)) {
        (Some(plan), _) | (None, Some(plan)) => fleet.plans().get(plan),
        (None, None) => fleet.plans().sorted().into_iter().find(claims),
    };
    plan.map(|plan| plan.specs.newest().namespace.clone())
}

fn of_volume(fleet: &FleetState, volume: &Volume) -> Option<Command> {
    let effect = match volume.state {
        VolumeState::Destroying => CommandEffect::Kill,
        VolumeState::Creating | VolumeState::Ready | VolumeState::Lost(_) => CommandEffect::Ensure,
    };
    // A volume that no plan claims is only destroyed: the executor has recorded the namespace.
    let namespace = namespace(fleet, volume).or_else(|| "default".parse().ok())?;
    Some(Command {
        object: volume.id.into(),
        revision: volume.revision,
        attempt: volume.command.map_or(1, |command| command.attempt),
        effect,
        status: if volume.command.is_some() { CommandStatus::Pending } else { CommandStatus::Fulfilled },
        grace: Duration::ZERO,
        spec: ObjectSpec::Volume(VolumeSpec {
            name: volume.name.clone(),
            namespace,
            node: volume.node.clone(),
            class: volume.class.clone(),
            capacity: volume.capacity,
            source: volume.source.as_ref().map(|(_, id)| *id),
        }),
        traceparent: None,
    })
}
