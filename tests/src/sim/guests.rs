//! Scenarios of guests: reboots, shutdowns by a guest, stops while the executor has lost its records or the guest does not obey,
//! and snapshots of their disks. Each is played with many seeds; the numbers are those of `docs/checks.md` and `docs/races.md`.

use std::time::Duration;

use chancery_events::fact::{CommandEffect, IncarnationEnd, OperationEnd};
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::lifecycle::WillWord;
use chancery_events::name::ReplicaName;
use chancery_events::observation::{ProcessInfo, ProcessStatus};
use chancery_events::spec::{DisruptionState, OperationKind};
use chancery_machine::state::{Incarnation, IncarnationState, OperationState, VolumeState};
use serde_json::{Value, json};

use super::fault::SimulatedFault;
use super::guided::{ExecutorLoss, GuidedStep, GuidedWorld, broken, demand};
use super::{TraceOption, WorldResult};

/// Rules for restarts.
const RULES: [&str; 3] = ["always", "on_failure", "never"];
/// Reboots of a world.
const REBOOTS: u32 = 3;
/// Snapshots of a world.
const SNAPSHOTS_OF_A_WORLD: u32 = 3;
/// Requests and faults that follow on a stop or a shutdown.
const FOLLOWING: u64 = 5;

/// Scenario of guests.
#[derive(Clone, Copy, Debug)]
pub struct GuestScenario {
    /// Name of the scenario.
    pub name: &'static str,
    play: fn(&mut GuidedWorld) -> GuidedStep,
}

/// Need A8: a reboot keeps the incarnation and the desired state, and resets the guest.
pub const REBOOT: GuestScenario = GuestScenario { name: "reboot", play: reboot };
/// Need A9: nothing but a request starts a guest that powered itself off.
pub const SHUTDOWN: GuestScenario = GuestScenario { name: "shutdown", play: shutdown };
/// Race R26: a stop of what is shown as running, and was lost by its executor.
pub const LOST: GuestScenario = GuestScenario { name: "lost", play: lost };
/// Race R27: a stop that a guest ignores.
pub const DEAF: GuestScenario = GuestScenario { name: "deaf", play: deaf };
/// Race R37: a stop of what is starting or rebooting, and was lost by its executor.
pub const LOST_STARTING: GuestScenario = GuestScenario { name: "lost starting", play: lost_starting };

/// Snapshots of a volume that a guest uses, and its deletion.
pub const SNAPSHOTS: GuestScenario = GuestScenario { name: "snapshots", play: snapshots };

/// All scenarios of guests.
pub const SCENARIOS: [GuestScenario; 6] = [REBOOT, SHUTDOWN, LOST, DEAF, LOST_STARTING, SNAPSHOTS];

impl GuestScenario {
    /// Plays the scenario with a seed.
    pub fn play(self, seed: u64, trace: TraceOption) -> WorldResult {
        GuidedWorld::play(seed, trace, self.play)
    }
}

/// Creates a cluster of two nodes, and a plan with a rule for restarts, whose guests use these volumes.
fn prepare(guided: &mut GuidedWorld, volumes: &Value) -> GuidedStep {
    let rule = *guided.random.pick(&RULES).unwrap_or(&RULES[0]);
    guided.must("cluster.apply", &json!({"name": "c0", "spec": {"runtime": "qemu"}}))?;
    let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
    for node in ["n0", "n1"] {
        let storage = json!([{"class": "s", "capacity": 64u64 << 30}]);
        let spec = json!({"domain": node, "resources": total, "storage": storage});
        guided.must("node.apply", &json!({"name": node, "cluster": "c0", "spec": spec}))?;
    }
    let automatic = json!({
        "create": "automatic", "start": "automatic", "stop": "automatic", "delete": "automatic",
        "update": "automatic", "relocate": "automatic", "restart": "automatic", "reboot": "automatic",
    });
    let payload = json!({
        "name": "app", "resources": {"cpu": 500, "memory": 256 << 20}, "vm": {"kernel": "guest"},
        "volumes": volumes,
    });
    let order = *guided.random.pick(&["start_first", "stop_first"]).unwrap_or(&"stop_first");
    let spec = json!({
        "namespace": "ns", "service": "web", "payloads": [payload], "approval": automatic, "sharing": "allowed",
        "restart": rule, "restart_delay": 500, "update_order": order,
        "timeouts": {"start": 3_600_000, "stop": 5000},
    });
    guided.must("plan.apply", &json!({"name": "p0", "spec": spec}))?;
    // From now on, the cluster has the store of this executor.
    guided.until("there is a session", |guided| {
        let session = guided
            .fleet()
            .ok()
            .and_then(|fleet| fleet.clusters().get("c0"))
            .and_then(|cluster| cluster.session);
        session.is_some()
    })
}

/// Deploys this number of replicas whose guests behave like this, and returns one of them, which may still have to start.
fn deploy(guided: &mut GuidedWorld, count: usize, behaviour: &str) -> GuidedStep<ReplicaName> {
    let coordinates = if behaviour.is_empty() { json!({}) } else { json!({"app": {"simulate": behaviour}}) };
    let spec = json!({"count": count, "coordinates": coordinates});
    guided.must("deployment.create", &json!({"plan": "p0", "name": "u0", "spec": spec}))?;
    guided.until("there are replicas", |guided| {
        guided.fleet().is_ok_and(|fleet| fleet.replicas().sorted().len() == count)
    })?;
    let names: Vec<_> =
        guided.fleet()?.replicas().sorted().iter().map(|replica| replica.name.clone()).collect();
    guided.random.pick(&names).cloned().ok_or_else(|| broken("there is no replica"))
}

/// Returns a replica whose guest runs and is ready.
fn running(guided: &mut GuidedWorld, behaviour: &str) -> GuidedStep<ReplicaName> {
    prepare(guided, &json!([]))?;
    let name = deploy(guided, 2, behaviour)?;
    until_ready(guided, &name)?;
    Ok(name)
}

fn until_ready(guided: &mut GuidedWorld, name: &ReplicaName) -> GuidedStep {
    guided.until("the guest is ready", |guided| {
        let is_open = guided.replica(name).is_ok_and(|replica| replica.operation.is_some());
        !is_open && guided.active(name).is_ok_and(|run| run.state == IncarnationState::Running && run.ready)
    })
}

/// Returns the last operation of this kind on the replica, with its state.
fn last_operation(
    guided: &GuidedWorld,
    name: &ReplicaName,
    kind: OperationKind,
) -> GuidedStep<(OperationId, OperationState)> {
    let all = guided.fleet()?.operations().sorted();
    let last = all.into_iter().rfind(|operation| operation.replica == *name && operation.kind == kind);
    last.map(|last| (last.id, last.state.clone())).ok_or_else(|| broken(format!("no {kind} of {name}")))
}

fn resets(run: &Incarnation) -> u32 {
    run.processes.iter().map(|process| process.resets).sum()
}

fn reboot(guided: &mut GuidedWorld) -> GuidedStep {
    let name = running(guided, "")?;
    // Without these, work is done once for each revision, and known to be done.
    let is_exact = !guided.allows(SimulatedFault::WorkFails);
    for _ in 0..REBOOTS {
        until_ready(guided, &name)?;
        let run = guided.active(&name)?;
        let (id, shown, desired) = (run.id, resets(run), guided.replica(&name)?.desired);
        let before = guided.resets(id);
        guided.must_for("reboot", &name)?;
        let (operation, _) = last_operation(guided, &name, OperationKind::Reboot)?;
        guided.disturb()?;
        guided.until("the reboot has an outcome", |guided| {
            guided.replica(&name).is_ok_and(|replica| replica.operation.is_none())
        })?;
        let (last, state) = last_operation(guided, &name, OperationKind::Reboot)?;
        demand(last == operation, || format!("{name} is rebooted again by {last}"))?;
        let replica = guided.replica(&name)?;
        demand(replica.desired == desired, || format!("a reboot makes {name} {:?}", replica.desired))?;
        let run = guided.active(&name)?;
        demand(run.id == id, || format!("a reboot of {id} ends with {}", run.id))?;
        if state != OperationState::Ended(OperationEnd::Succeeded) {
            guided.count("reboot without success");
            continue;
        }
        demand(resets(run) > shown, || format!("{id} was reset {shown} times before and after its reboot"))?;
        let (Some(before), Some(now)) = (before, guided.resets(id)) else {
            return Err(broken(format!("{id} does not run after its reboot")));
        };
        demand(now > before, || format!("the reboot of {id} succeeds, and its guest was not reset"))?;
        demand(!is_exact || now == before + 1, || {
            format!("the guest of {id} is reset {} times by one reboot", now - before)
        })?;
        guided.count("reboot");
    }
    guided.settle()
}

fn shutdown(guided: &mut GuidedWorld) -> GuidedStep {
    let name = running(guided, "")?;
    let id = guided.active(&name)?.id;
    let (servers, executor) = (guided.random.chance(400), guided.random.chance(400));
    if servers {
        guided.kill_servers();
        guided.count("shutdown without a server");
    }
    if executor {
        guided.kill_executor();
        guided.count("shutdown without an executor");
    }
    demand(guided.power_off(id), || format!("the guest of {id} does not run"))?;
    guided.disturb()?;
    guided.until("the shutdown is recorded", |guided| {
        guided.replica(&name).is_ok_and(|replica| replica.runs().next().is_none())
    })?;
    guided.count("shutdown");
    is_shut_down(guided, &name)?;
    stays_off(guided, &name)?;
    is_shut_down(guided, &name)?;
    // A request starts it, where a node accepts placements.
    guided.keep_off(None)?;
    complete_drains(guided)?;
    guided.must_for("start", &name)?;
    guided.until("the guest has another incarnation", |guided| guided.active(&name).is_ok())?;
    demand(guided.active(&name)?.id != id, || format!("{id} has ended, and is active"))?;
    demand(guided.replica(&name)?.desired == WillWord::Running, || {
        format!("{name} is started, and must not run")
    })
}

fn complete_drains(guided: &mut GuidedWorld) -> GuidedStep {
    let mut drains = Vec::new();
    for node in guided.fleet()?.nodes().sorted() {
        let open = node.disruptions.iter().filter(|(_, of)| of.state != DisruptionState::Completed);
        drains.extend(open.map(|(name, _)| json!({"node": node.name, "name": name})));
    }
    drains.iter().try_for_each(|drain| guided.must("disruption.complete", drain))
}

fn is_shut_down(guided: &GuidedWorld, name: &ReplicaName) -> GuidedStep {
    let replica = guided.replica(name)?;
    demand(replica.desired == WillWord::GuestShutdown, || {
        format!("the guest of {name} has powered itself off, and the replica must be {:?}", replica.desired)
    })?;
    demand(replica.last_end.as_deref() == Some(&IncarnationEnd::PoweredOff), || {
        format!("the guest of {name} has powered itself off, and its end is {:?}", replica.last_end)
    })
}

/// Checks that nothing starts the replica: no deployment, drain, rebalance, passing of time or kill, nor the end of all faults.
fn stays_off(guided: &mut GuidedWorld, name: &ReplicaName) -> GuidedStep {
    guided.keep_off(Some(name))?;
    let desired = guided.replica(name)?.desired;
    for number in 1..=FOLLOWING {
        match guided.random.below(5) {
            0 => {
                let coordinates = json!({"app": {"version": format!("v{number}")}});
                let spec = json!({"count": 2, "coordinates": coordinates});
                let data = json!({"plan": "p0", "name": format!("u{number}"), "spec": spec});
                guided.must("deployment.create", &data)?;
            }
            1 => {
                let node = format!("n{}", guided.random.below(2));
                let drain = format!("x{number}");
                let spec = json!({"action": "drain", "reason": "for people"});
                let data = json!({"node": node, "name": drain, "spec": spec});
                // An expunged node is not drained.
                if guided.ask("disruption.schedule", &data)? {
                    guided.ask("disruption.approve", &json!({"node": node, "name": drain}))?;
                }
            }
            2 => guided.pass(Duration::from_hours(1)),
            3 => {
                guided.ask("plan.rebalance", &json!({"name": "p0"}))?;
            }
            _ => {
                guided.kill_servers();
                guided.kill_executor();
            }
        }
        guided.disturb()?;
    }
    guided.steps(200)?;
    guided.settle()?;
    let now = guided.replica(name)?.desired;
    demand(now == desired, || format!("replica {name} must be {desired:?}, and then {now:?}"))?;
    guided.count("stays off");
    Ok(())
}

fn lost(guided: &mut GuidedWorld) -> GuidedStep {
    let name = running(guided, "")?;
    let id = guided.active(&name)?.id;
    stops_what_was_lost(guided, &name, id)
}

/// Loses an incarnation, stops its replica, and checks that the stop succeeds by proof alone, and is final.
fn stops_what_was_lost(guided: &mut GuidedWorld, name: &ReplicaName, id: IncarnationId) -> GuidedStep {
    let loss =
        *guided.random.pick(&[ExecutorLoss::Host, ExecutorLoss::Directory]).unwrap_or(&ExecutorLoss::Host);
    guided.lose(loss);
    let run = guided.active(name)?;
    demand(run.id == id && run.is_live(), || format!("{id} is lost, and no longer shown"))?;
    guided.must_for("stop", name)?;
    if loss == ExecutorLoss::Directory {
        // No executor can end the guest: what the one with the other directory reports is no proof.
        let steps = guided.random.between(100, 600);
        guided.steps(steps)?;
        guided.disturb()?;
        let is_live = guided.fleet()?.incarnations().get(&id).is_some_and(Incarnation::is_live);
        demand(is_live, || format!("{id} has ended by a stop that no executor has received"))?;
        guided.count("stop without the executor that has the guest");
    }
    guided.until_with_operator("the stop has an outcome", |guided| {
        guided
            .replica(name)
            .is_ok_and(|replica| replica.operation.is_none() && replica.runs().next().is_none())
    })?;
    demand(!guided.runs(id), || format!("the stop of {name} has succeeded, and {id} runs"))?;
    let desired = guided.replica(name)?.desired;
    demand(desired == WillWord::Stopped, || format!("{name} was stopped, and must be {desired:?}"))?;
    guided.count(match loss {
        ExecutorLoss::Host => "stop of a guest that was lost with its host",
        ExecutorLoss::Directory => "stop of a guest that survived its executor's records",
    });
    stays_off(guided, name)
}

fn deaf(guided: &mut GuidedWorld) -> GuidedStep {
    let name = running(guided, "deaf")?;
    let id = guided.active(&name)?.id;
    guided.must_for("stop", &name)?;
    guided.disturb()?;
    if guided.random.chance(300) {
        // Longer than the grace and the slack: the decider requests a kill.
        guided.pass(Duration::from_secs(30));
    }
    guided.until("the stop has an outcome", |guided| {
        guided
            .replica(&name)
            .is_ok_and(|replica| replica.operation.is_none() && replica.runs().next().is_none())
    })?;
    let replica = guided.replica(&name)?;
    demand(replica.desired == WillWord::Stopped, || {
        format!("{name} was stopped, and must be {:?}", replica.desired)
    })?;
    demand(replica.last_end.as_deref() == Some(&IncarnationEnd::Destroyed), || {
        format!("the stop of {name} had to kill, and its end is {:?}", replica.last_end)
    })?;
    let run = guided.fleet()?.incarnations().get(&id).ok_or_else(|| broken(format!("{id} is not kept")))?;
    let was_killed = |process: &ProcessInfo| process.status == ProcessStatus::Signaled { signal: 9 };
    let (killed, by_decider) =
        (run.processes.iter().any(was_killed), run.last_effect == Some(CommandEffect::Kill));
    if killed {
        guided.count("stop that had to kill");
    }
    if by_decider {
        guided.count("kill requested by the decider");
    }
    stays_off(guided, &name)
}

fn lost_starting(guided: &mut GuidedWorld) -> GuidedStep {
    let moment = guided.random.below(3);
    let name = match moment {
        0 => {
            prepare(guided, &json!([]))?;
            let name = deploy(guided, 2, "delay:20s")?;
            guided.until("the guest is being created", |guided| {
                guided.active(&name).is_ok_and(|run| run.state == IncarnationState::Creating)
            })?;
            guided.count("lost while it was created");
            name
        }
        1 => {
            prepare(guided, &json!([]))?;
            let name = deploy(guided, 2, "never-ready")?;
            guided.until("the guest is starting", |guided| {
                guided.active(&name).is_ok_and(|run| run.state == IncarnationState::Starting)
            })?;
            guided.count("lost while it was starting");
            name
        }
        _ => {
            let name = running(guided, "")?;
            guided.must_for("reboot", &name)?;
            let is_rebooting = |run: &Incarnation| {
                run.last_effect == Some(CommandEffect::Reboot)
                    && (run.command.is_some() || run.is_rebooting())
            };
            guided.until("the guest is rebooting", |guided| {
                guided.active(&name).is_ok_and(is_rebooting)
                    || guided.replica(&name).is_ok_and(|replica| replica.operation.is_none())
            })?;
            if guided.active(&name).is_ok_and(is_rebooting) {
                guided.count("lost while it was rebooting");
            }
            name
        }
    };
    let steps = guided.random.below(10);
    guided.steps(steps)?;
    let id = guided.active(&name)?.id;
    stops_what_was_lost(guided, &name, id)
}

/// Whether the volume is in this state.
fn is_volume(guided: &GuidedWorld, name: &str, state: &VolumeState) -> bool {
    let volume = guided.fleet().ok().and_then(|fleet| fleet.volumes().get(name));
    volume.is_some_and(|volume| volume.state == *state)
}

/// Checks that the volume is shown as ready, and exists.
fn has_volume(guided: &GuidedWorld, name: &str) -> GuidedStep {
    let volume = guided.fleet()?.volumes().get(name);
    let volume = volume.ok_or_else(|| broken(format!("there is no volume {name}")))?;
    demand(volume.state == VolumeState::Ready, || format!("volume {name} is {:?}", volume.state))?;
    demand(guided.has_volume(volume.id), || format!("volume {name} is shown as ready, and does not exist"))
}

fn snapshots(guided: &mut GuidedWorld) -> GuidedStep {
    let claim = json!({"volume": "disk", "class": "s", "capacity": 1u64 << 30, "mount": "/data"});
    prepare(guided, &json!([claim]))?;
    let name = deploy(guided, 1, "")?;
    until_ready(guided, &name)?;
    let mut made = Vec::new();
    for number in 0..SNAPSHOTS_OF_A_WORLD {
        let snapshot = format!("s{number}");
        guided.must("volume.snapshot", &json!({"name": "disk", "snapshot": snapshot}))?;
        guided.disturb()?;
        guided.until("the snapshot has an outcome", |guided| {
            !is_volume(guided, &snapshot, &VolumeState::Creating)
                && !is_volume(guided, &snapshot, &VolumeState::Destroying)
        })?;
        if guided.fleet()?.volumes().get(snapshot.as_str()).is_some() {
            has_volume(guided, &snapshot)?;
            guided.count("volume copied");
            made.push(snapshot);
        }
    }
    // The disk is used, and its deletion waits. Until then it is no source.
    guided.must("volume.delete", &json!({"name": "disk"}))?;
    guided.disturb()?;
    has_volume(guided, "disk")?;
    let late = guided.ask("volume.snapshot", &json!({"name": "disk", "snapshot": "late"}))?;
    demand(!late, || "a snapshot of a volume that is being deleted is accepted".to_owned())?;
    guided.count("snapshot of a deleted volume refused");
    guided.must_for("stop", &name)?;
    guided.disturb()?;
    guided.until("the disk is destroyed", |guided| {
        guided.fleet().is_ok_and(|fleet| fleet.volumes().get("disk").is_none())
    })?;
    guided.settle()?;
    made.iter().try_for_each(|snapshot| has_volume(guided, snapshot))
}
