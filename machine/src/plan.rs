//! Plans: payloads to run, and where they may run.
//!
//! ```text
//!             apply                      set_activity   delete
//! (none)      active, generation 1       refused        refused
//! active      a new generation, or same  inactive       (none), if it has no replicas and no open deployment
//! inactive    a new generation, or same  active         the same
//! ```
//! An inactive plan accepts no deployment. Replicas follow an edit only by deployment, so earlier generations
//! are kept as long as a deployment refers to them. Every rule is of the newest generation
//! ([`PlanSpec::FIELDS`]).

mod specs;

use std::collections::{BTreeMap, BTreeSet};

use chancery_events::fact::{
    DeploymentEnd, PlanActivityChanged, PlanApplied, PlanDeleted, PlanDeletionStarted, PlanUnschedulable,
};
use chancery_events::intent::{CascadePolicy, PlanApply, PlanDelete, PlanSetActivity};
use chancery_events::name::PortName;
use chancery_events::observation::PROCESSES_BYTES;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::spec::{
    BalancePolicy, ClusterActivity, GuestNetwork, Payload, PlanSpec, PortProtocol, ReadinessProbe,
    VM_OVERHEAD, VirtualMachineSpec, VolumeDeletion, port_variable, volume_variable,
};
use chancery_events::template;
use chancery_events::text::counted;

use crate::context::{DecisionContext, FactDraft};
use crate::deployment;
use crate::fleet::{FleetState, FoldResult};
use crate::meta::{EntityMeta, FactPosition};
use crate::refuse::{BodyErrors, DecidedFacts};
use crate::state::{Deployment, Plan};

pub use specs::PlanSpecs;

/// Placeholders that the executor fills, besides `port.NAME` and `volume.NAME`.
pub(crate) const FILLED_BY_EXECUTOR: [&str; 4] = ["replica", "incarnation", "node", "process"];

/// Maximum number of payloads of a plan.
const PAYLOADS: usize = 64;
/// Maximum number of zones of a plan besides `zone`: each reason against a node names all of them.
const ZONES: usize = 16;
/// Maximum number of labels of a plan.
const LABELS: usize = 64;
/// Maximum number of processes of a payload.
const PROCESSES: u16 = 1024;
/// Longest timeout, in milliseconds: a year.
pub(crate) const LONGEST: u64 = 365 * 24 * 60 * 60 * 1000;

pub(crate) fn apply(fleet: &FleetState, ask: &PlanApply) -> DecidedFacts {
    check(&ask.spec)?;
    let (name, spec) = (ask.name.clone(), ask.spec.clone());
    let Some(now) = fleet.plans().get(&ask.name) else {
        return Ok(vec![PlanApplied { name, generation: 1, spec, changed: Vec::new() }.into()]);
    };
    let changed: Vec<_> =
        now.specs.newest().changed(&spec).into_iter().map(|(field, _)| field.into()).collect();
    if changed.is_empty() {
        return Ok(vec![]);
    }
    Ok(vec![PlanApplied { name, generation: now.generation + 1, spec, changed }.into()])
}

fn check(spec: &PlanSpec) -> Result<(), Refusal> {
    let mut faults = BodyErrors::default();
    faults.check(!spec.payloads.is_empty(), "/spec/payloads", "must name at least one");
    faults.check(spec.payloads.len() <= PAYLOADS, "/spec/payloads", format!("must be at most {PAYLOADS}"));
    let (mut names, mut volumes) = (BTreeSet::new(), BTreeSet::new());
    for (i, payload) in spec.payloads.iter().enumerate() {
        let at = format!("/spec/payloads/{i}");
        faults.check(names.insert(&payload.name), format!("{at}/name"), "is named twice");
        check_payload(&mut faults, &at, payload);
        for (j, claim) in payload.volumes.iter().enumerate() {
            let fresh = claim.volume.as_ref().is_none_or(|volume| volumes.insert(volume));
            faults.check(fresh, format!("{at}/volumes/{j}/volume"), "is claimed twice");
        }
    }
    let claims: usize = spec.payloads.iter().map(|payload| payload.volumes.len()).sum();
    faults.check(claims <= VOLUMES, "/spec/payloads", format!("must claim at most {VOLUMES} volumes"));
    let bytes = spec.processes_bytes();
    faults.check(
        bytes <= PROCESSES_BYTES,
        "/spec/payloads",
        format!(
            "a report of all processes may have {bytes} bytes, and must have at most {PROCESSES_BYTES}: use fewer \
             processes or ports"
        ),
    );
    let mut types = BTreeSet::new();
    for (i, matcher) in spec.matchers.iter().enumerate() {
        let at = format!("/spec/matchers/{i}");
        faults.check(types.insert(&matcher.kind), format!("{at}/type"), "has a matcher already");
        faults.check(!matcher.names.is_empty(), format!("{at}/names"), "must name at least one");
    }
    faults.check(spec.zones.len() <= ZONES, "/spec/zones", format!("must be at most {ZONES}"));
    let mut zones: BTreeSet<_> = spec.zone.iter().collect();
    for (i, zone) in spec.zones.iter().enumerate() {
        faults.check(zones.insert(zone), format!("/spec/zones/{i}"), "is named twice");
    }
    faults.check(spec.labels.len() <= LABELS, "/spec/labels", format!("must be at most {LABELS}"));
    for (key, value) in &spec.labels {
        let rule = "must have at most 63 bytes";
        faults.check(value.len() <= 63, format!("/spec/labels/{key}"), rule);
    }
    let mut groups = BTreeSet::new();
    for (i, affinity) in spec.affinity.iter().enumerate() {
        let at = format!("/spec/affinity/{i}/group");
        faults.check(groups.insert(&affinity.group), at, "has an affinity already");
    }
    faults.check(spec.max_unavailable > 0, "/spec/max_unavailable", "must be at least one");
    let durations = [
        ("restart_delay", spec.restart_delay),
        ("timeouts/approval", spec.timeouts.approval),
        ("timeouts/start", spec.timeouts.start),
        ("timeouts/stop", spec.timeouts.stop),
        ("unready/after", spec.unready.after),
    ];
    for (name, millis) in durations {
        let right = (1..=LONGEST).contains(&millis);
        faults.check(right, format!("/spec/{name}"), "must be from 1 ms to a year");
    }
    faults.done()
}

fn check_payload(faults: &mut BodyErrors, at: &str, payload: &Payload) {
    let right = (1..=PROCESSES).contains(&payload.processes);
    faults.check(right, format!("{at}/processes"), format!("must be from 1 to {PROCESSES}"));
    let largest = u64::MAX / u64::from(u16::MAX) / PAYLOADS as u64;
    let resources = payload.resources;
    let sane = [resources.cpu, resources.memory, resources.disk].iter().all(|amount| *amount <= largest);
    faults.check(sane, format!("{at}/resources"), "is more than can be counted");
    faults.check(payload.ports.len() <= PORTS, format!("{at}/ports"), format!("must be at most {PORTS}"));
    let (mut ports, mut variables) = (BTreeMap::new(), BTreeSet::new());
    for (i, port) in payload.ports.iter().enumerate() {
        let fresh = ports.insert(&port.name, port.protocol).is_none();
        faults.check(fresh, format!("{at}/ports/{i}/name"), "is named twice");
        let fresh = !fresh || variables.insert(port_variable(&port.name));
        faults.check(fresh, format!("{at}/ports/{i}/name"), "has the same variable as another");
        faults.check(port.port > 0, format!("{at}/ports/{i}/port"), "must be from 1 to 65535");
    }
    let mut mounts = BTreeSet::new();
    for (i, volume) in payload.volumes.iter().enumerate() {
        let at = format!("{at}/volumes/{i}");
        faults.check(volume.capacity > 0, format!("{at}/capacity"), "must be more than zero");
        faults.check(volume.capacity <= VOLUME, format!("{at}/capacity"), "is more than can be counted");
        faults.check(is_mount(&volume.mount), format!("{at}/mount"), MOUNT);
        let fresh = mounts.insert(&volume.mount);
        faults.check(fresh, format!("{at}/mount"), "is named twice");
        let fresh = !fresh || variables.insert(volume_variable(&volume.mount));
        faults.check(fresh, format!("{at}/mount"), "has the same variable as another");
        let by_name = volume.volume.is_some() && volume.on_delete == VolumeDeletion::Destroy;
        faults.check(
            !by_name,
            format!("{at}/on_delete"),
            "must be given only for a replica's own volume: a shared volume is deleted by name",
        );
    }
    if let Some(run) = &payload.run {
        let program = run.argv.first().is_some_and(|program| !program.is_empty());
        faults.check(program, format!("{at}/run/argv"), "must start with the program");
    }
    if let Some(container) = &payload.container {
        let named = |image: &str| !image.is_empty() && image.len() <= IMAGE_BYTES;
        let rule = format!("must have from 1 to {IMAGE_BYTES} bytes");
        faults.check(named(&container.image), format!("{at}/container/image"), &rule);
        let few = container.init.len() <= INIT;
        faults.check(few, format!("{at}/container/init"), format!("must be at most {INIT}"));
        for (i, init) in container.init.iter().enumerate() {
            faults.check(named(&init.image), format!("{at}/container/init/{i}/image"), &rule);
        }
    }
    if let Some(vm) = &payload.vm {
        check_vm(faults, at, payload, vm);
    }
    for (text, place) in texts(payload, at) {
        faults.check(!text.contains('\0'), &place, "must not contain a zero byte");
        let filled = template::fill(text, |name| match name.split_once('.') {
            Some(("port", port)) => ports.keys().any(|known| known.as_str() == port).then(String::new),
            Some(("volume", mount)) => mounts.iter().any(|known| *known == mount).then(String::new),
            Some(_) | None => Some(String::new()),
        });
        if let Err(error) = filled {
            faults.add(place, error.to_string());
        }
    }
    let probes = [("ready", &payload.ready), ("alive", &payload.alive)];
    for (name, probe) in probes.iter().filter_map(|(name, probe)| Some((name, probe.as_ref()?))) {
        check_probe(faults, &format!("{at}/{name}"), probe, &ports);
    }
    for (name, line) in probes.iter().filter_map(|(name, probe)| Some((*name, probe.as_ref()?.line()?))) {
        let at = format!("{at}/{name}/serial");
        let is_allowed = name == "ready" && payload.vm.is_some();
        faults.check(is_allowed, &at, "must be given only as `ready` of a payload with `vm`");
        let fits = (1..=SERIAL_LINE).contains(&line.len()) && !line.contains(char::is_control);
        faults.check(fits, format!("{at}/line"), "must have 1 to 256 bytes, and no control characters");
    }
    if let Some(probe) = &payload.alive {
        let only = "must be 1: an incarnation whose liveness probe fails is ended";
        let at = format!("{at}/alive/{}/timing/success_threshold", probe.kind());
        faults.check(probe.timing().success_threshold == 1, at, only);
    }
}

fn check_vm(faults: &mut BodyErrors, at: &str, payload: &Payload, vm: &VirtualMachineSpec) {
    let one = vm.kernel.is_some() != vm.image.is_some();
    faults.check(one, format!("{at}/vm"), "must have either `kernel` or `image`");
    for (name, given) in [("initrd", vm.initrd.is_some()), ("cmdline", vm.cmdline.is_some())] {
        let needless = given && vm.kernel.is_none();
        faults.check(!needless, format!("{at}/vm/{name}"), "must be given only with `kernel`");
    }
    let files =
        [("kernel", &vm.kernel), ("initrd", &vm.initrd), ("image", &vm.image), ("firmware", &vm.firmware)];
    for (name, file) in files.into_iter().filter_map(|(name, file)| Some((name, file.as_ref()?))) {
        faults.check(is_mount(&format!("/{file}")), format!("{at}/vm/{name}"), IMAGE_FILE);
    }
    faults.check((1..=255).contains(&vm.cpus), format!("{at}/vm/cpus"), "must be from 1 to 255");
    let unused = vm.network == GuestNetwork::None && !payload.ports.is_empty();
    faults.check(!unused, format!("{at}/ports"), "must be empty with network `none`");
    let outside =
        vm.cmdline.as_deref().is_some_and(|text| text.contains("${port.") || text.contains("${volume."));
    faults.check(
        !outside,
        format!("{at}/vm/cmdline"),
        "must not contain ports or volumes: they are of the host",
    );
    faults.check(payload.processes == 1, format!("{at}/processes"), "must be 1 for a virtual machine");
    let least = VM_OVERHEAD + GUEST_MEMORY;
    let rule = format!(
        "must be at least {} MiB for a virtual machine: {} MiB for QEMU and {} MiB for the guest",
        least >> 20,
        VM_OVERHEAD >> 20,
        GUEST_MEMORY >> 20,
    );
    faults.check(payload.resources.memory >= least, format!("{at}/resources/memory"), rule);
    let few = payload.volumes.len() <= DISKS;
    faults.check(few, format!("{at}/volumes"), format!("must be at most {DISKS} for a virtual machine"));
    for (i, volume) in payload.volumes.iter().enumerate() {
        let at = format!("{at}/volumes/{i}");
        let serial = volume.mount.strip_prefix('/').unwrap_or_default();
        let fits = (1..=SERIAL).contains(&serial.len()) && !serial.contains('/');
        faults.check(fits, format!("{at}/mount"), DISK_MOUNT);
        let whole = volume.capacity.is_multiple_of(SECTOR);
        let rule = format!("must be a multiple of {SECTOR} bytes for a virtual machine");
        faults.check(whole, format!("{at}/capacity"), rule);
    }
}

/// Least memory of a guest, in bytes. The firmware loads a kernel at 1 MiB: with that memory, a guest hangs before its first
/// instruction. 16 MiB suffice for a kernel without an operating system; Linux is loaded at 16 MiB, and needs more.
const GUEST_MEMORY: u64 = 16 << 20;
/// Maximum number of disks of a guest: each is a device on the bus of the board, which has 28 free places besides those of an
/// image and a network.
const DISKS: usize = 16;
/// Longest serial number of a disk of virtio, in bytes.
const SERIAL: usize = 20;
/// Size of a sector of a disk, in bytes.
const SECTOR: u64 = 512;
/// Rule for the mount of a disk, as errors state it.
const DISK_MOUNT: &str = "must be / and a name of at most 20 characters for a virtual machine: the name is the serial number of the disk";

/// Rule for a file of an image directory, as errors state it.
const IMAGE_FILE: &str =
    "must be a relative path of at most 254 characters a-z, A-Z, 0-9, ., _, - and /, without parts . and ..";

/// Longest time in the settings of a probe, in milliseconds.
const PROBE_LONGEST: u64 = 60 * 60 * 1000;
/// Shortest period of a probe, in milliseconds.
const PROBE_PERIOD: u64 = 100;
/// Maximum length of the text that a probe awaits on a serial port, in bytes.
const SERIAL_LINE: usize = 256;
/// Largest threshold of a probe.
const PROBE_THRESHOLD: u32 = 1000;

fn check_probe(
    faults: &mut BodyErrors,
    at: &str,
    probe: &ReadinessProbe,
    ports: &BTreeMap<&PortName, PortProtocol>,
) {
    let Some(port) = probe.port() else { return };
    faults.check(ports.get(port) == Some(&PortProtocol::Tcp), at, format!("there is no TCP port {port}"));
    if let Some(path) = probe.path() {
        let sane = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic());
        faults.check(sane, format!("{at}/http/path"), "must start with / and contain no spaces");
    }
    let (timing, at) = (probe.timing(), format!("{at}/{}/timing", probe.kind()));
    let right = timing.initial_delay <= PROBE_LONGEST;
    faults.check(right, format!("{at}/initial_delay"), "must be at most 1h");
    let right = (PROBE_PERIOD..=PROBE_LONGEST).contains(&timing.period);
    faults.check(right, format!("{at}/period"), "must be from 100ms to 1h");
    let right = (1..=PROBE_LONGEST).contains(&timing.timeout);
    faults.check(right, format!("{at}/timeout"), "must be from 1ms to 1h");
    let thresholds =
        [("failure_threshold", timing.failure_threshold), ("success_threshold", timing.success_threshold)];
    for (name, threshold) in thresholds {
        let right = (1..=PROBE_THRESHOLD).contains(&threshold);
        faults.check(right, format!("{at}/{name}"), format!("must be from 1 to {PROBE_THRESHOLD}"));
    }
}

/// Maximum size of a volume, in bytes: no possible sum of volumes overflows.
const VOLUME: u64 = 1 << 56;

/// Maximum size of the reference of an image, in bytes.
const IMAGE_BYTES: usize = 1024;
/// Maximum number of init containers of a payload.
const INIT: usize = 16;
/// Maximum number of ports of a payload.
const PORTS: usize = 64;
/// Maximum number of volumes of a plan: several facts of one commit name all volumes of a replica.
const VOLUMES: usize = 64;

/// Rule for a mount, as errors state it.
const MOUNT: &str =
    "must be an absolute path of at most 255 characters a-z, A-Z, 0-9, ., _, - and /, without parts . and ..";

fn is_mount(path: &str) -> bool {
    let fits = |part: &str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        !matches!(part, "" | "." | "..") && part.bytes().all(plain)
    };
    path.len() <= 255 && path.strip_prefix('/').is_some_and(|parts| parts.split('/').all(fits))
}

/// Texts of a payload that may contain placeholders, each with its path.
pub(crate) fn texts<'a>(payload: &'a Payload, at: &str) -> Vec<(&'a str, String)> {
    let mut all = Vec::new();
    let mut list = |at: String, texts: &'a [String]| {
        all.extend(texts.iter().enumerate().map(|(i, text)| (text.as_str(), format!("{at}/{i}"))));
    };
    if let Some(run) = &payload.run {
        list(format!("{at}/run/argv"), &run.argv);
    }
    let mut environments: Vec<_> =
        payload.run.iter().map(|run| (format!("{at}/run/env"), &run.env)).collect();
    let mut images = Vec::new();
    if let Some(container) = &payload.container {
        let at = format!("{at}/container");
        list(format!("{at}/command"), &container.command);
        list(format!("{at}/args"), &container.args);
        environments.push((format!("{at}/env"), &container.env));
        images.push((container.image.as_str(), format!("{at}/image")));
        for (i, init) in container.init.iter().enumerate() {
            let at = format!("{at}/init/{i}");
            list(format!("{at}/command"), &init.command);
            list(format!("{at}/args"), &init.args);
            environments.push((format!("{at}/env"), &init.env));
            images.push((init.image.as_str(), format!("{at}/image")));
        }
    }
    if let Some(cmdline) = payload.vm.as_ref().and_then(|vm| vm.cmdline.as_deref()) {
        images.push((cmdline, format!("{at}/vm/cmdline")));
    }
    all.extend(images);
    for (at, env) in environments {
        all.extend(env.iter().map(|(key, text)| (text.as_str(), format!("{at}/{key}"))));
    }
    all
}

pub(crate) fn set_activity(fleet: &FleetState, ask: &PlanSetActivity) -> DecidedFacts {
    let now = fleet.find::<Plan>(&ask.name)?;
    if now.activity == ask.activity {
        return Ok(vec![]);
    }
    Ok(vec![PlanActivityChanged { name: ask.name.clone(), activity: ask.activity }.into()])
}

pub(crate) fn delete(fleet: &FleetState, ask: &PlanDelete, ctx: &DecisionContext) -> DecidedFacts {
    let now = fleet.find::<Plan>(&ask.name)?;
    if now.deletion_requested_by.is_some() {
        return Ok(vec![]);
    }
    let replicas = fleet.index().plan_index(&ask.name).map_or(0, |index| index.replicas);
    let deployment = now.current.as_ref().or(now.next.as_ref());
    match (ask.cascade, replicas, deployment) {
        (_, 0, None) => Ok(vec![PlanDeleted { name: ask.name.clone() }.into()]),
        // Its deployments end, its replicas are deleted one by one, then the plan.
        (CascadePolicy::Yes, ..) => {
            let (name, requested_by) = (ask.name.clone(), ctx.require_actor("a deletion")?);
            let mut draft = FactDraft::new(ctx);
            draft.push(PlanDeletionStarted { name, requested_by });
            deployment::end_next(now, DeploymentEnd::Cancelled, &mut draft);
            deployment::end_current(fleet, now, DeploymentEnd::Cancelled, &mut draft);
            Ok(draft.done())
        }
        (CascadePolicy::No, 0, Some(deployment)) => {
            let detail =
                format!("deployment {deployment} of plan {} has not ended: cancel it first", ask.name);
            Err(Refusal::new(RefusalCode::InUse, detail))
        }
        (CascadePolicy::No, ..) => {
            let left = counted(replicas, "replica");
            let detail = format!("plan {} has {left} left: deploy a count of 0 first", ask.name);
            Err(Refusal::new(RefusalCode::InUse, detail))
        }
    }
}

pub(crate) fn deletion_started(
    fleet: &mut FleetState,
    fact: &PlanDeletionStarted,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Plan>(&fact.name, at, |plan| plan.deletion_requested_by = Some(fact.requested_by.clone()))
}

pub(crate) fn applied(fleet: &mut FleetState, fact: &PlanApplied, at: FactPosition) -> FoldResult {
    if fleet.plans().get(&fact.name).is_some() {
        return fleet.bump::<Plan>(&fact.name, at, |plan| {
            plan.specs.edit(plan.generation, fact.spec.clone());
            plan.generation = fact.generation;
        });
    }
    fleet.put(Plan {
        name: fact.name.clone(),
        generation: fact.generation,
        specs: PlanSpecs::first(fact.spec.clone()),
        activity: ClusterActivity::Active,
        deployments: Vec::new(),
        current: None,
        next: None,
        unschedulable: Vec::new(),
        setback: None,
        totals: BTreeMap::new(),
        balance: BalancePolicy::Even,
        rebalance: None,
        deletion_requested_by: None,
        quarantined: None,
        meta: EntityMeta::new(at),
    });
    Ok(())
}

pub(crate) fn activity_changed(
    fleet: &mut FleetState,
    fact: &PlanActivityChanged,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Plan>(&fact.name, at, |plan| plan.activity = fact.activity)
}

pub(crate) fn unschedulable(
    fleet: &mut FleetState,
    fact: &PlanUnschedulable,
    at: FactPosition,
) -> FoldResult {
    fleet.bump::<Plan>(&fact.plan, at, |plan| plan.unschedulable.clone_from(&fact.reasons))
}

pub(crate) fn deleted(fleet: &mut FleetState, fact: &PlanDeleted) -> FoldResult {
    let plan = fleet.require::<Plan>(&fact.name)?;
    for name in plan.deployments.clone() {
        fleet.remove::<Deployment>(&(fact.name.clone(), name))?;
    }
    fleet.remove::<Plan>(&fact.name)
}
