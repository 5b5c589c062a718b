//! Random walks over all requests and reports. At each step indexes equal a full count, no node has more
//! reserved than it has, and a replica has at most two incarnations. In the end everything settles.

use chancery_events::fact::Requester;
use chancery_events::observation::{IncarnationExit, ObservedState, RetryClass};
use chancery_events::resources::Resources;
use chancery_events::spec::{ClusterRuntime, OperationKind, RestartPolicy};
use serde_json::{Value, json};

use crate::state::{DeploymentState, IncarnationState, Operation, OperationState, Replica, VolumeState};
use crate::testing::{TestFleet, TestRandom, crashed, ended, failed, hello, ready};

pub(super) fn world(dice: &mut TestRandom) -> TestFleet {
    let mut world = TestFleet::new();
    let in_place = dice.below(2) == 0;
    let runtime = if in_place { "simulated" } else { "process" };
    world.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": runtime}}));
    for i in 1..=dice.below(4) + 1 {
        add_node(&mut world, &format!("node-{i}"), &format!("d{}", i % 2));
    }
    let mut hello = hello("local", "ex-1", 1);
    hello.runtime = if in_place { ClusterRuntime::Simulated } else { ClusterRuntime::Process };
    world.see(&hello.into());
    for plan in ["a", "b"] {
        apply_plan(&mut world, plan, dice);
    }
    world
}

fn add_node(world: &mut TestFleet, name: &str, domain: &str) {
    let total = json!({"cpu": 4000, "memory": 8u64 << 30, "disk": 0});
    let spec = json!({"domain": domain, "resources": total, "storage": [{"class": "s", "capacity": 3}]});
    world.ask("node.apply", &json!({"name": name, "cluster": "local", "spec": spec})).ok();
}

/// Draws a claim of an own volume, or of one that both plans name, of different sizes.
fn claims(dice: &mut TestRandom) -> Value {
    if dice.below(3) > 0 {
        return json!([]);
    }
    let named = dice.below(2) == 0;
    let (volume, on_delete) =
        if named { (Some(dice.of(&["v", "w"])), "keep") } else { (None, dice.of(&["keep", "destroy"])) };
    json!([{"volume": volume, "on_delete": on_delete, "class": "s", "capacity": 1 + dice.below(2), "mount": "/data"}])
}

fn apply_plan(world: &mut TestFleet, plan: &str, dice: &mut TestRandom) {
    let approval: serde_json::Map<String, Value> =
        ["create", "update", "relocate", "restart", "start", "stop", "delete"]
            .iter()
            .map(|kind| ((*kind).to_owned(), dice.of(&["automatic", "manual"]).into()))
            .collect();
    let cpu = dice.of(&[500, 1500, 2500]);
    let mut spec = json!({
        "namespace": "ns", "service": plan, "approval": approval, "sharing": dice.of(&["allowed", "never"]),
        "payloads": [{
            "name": "app", "resources": {"cpu": cpu, "memory": 1 << 20}, "run": {"argv": ["app"]}, "volumes": claims(dice),
        }],
        "restart": dice.of(&["always", "on_failure", "never"]), "restart_delay": 1000,
        "update_order": dice.of(&["start_first", "stop_first"]), "max_unavailable": 1 + dice.below(2),
    });
    if dice.below(4) == 0 {
        let otherwise = dice.of(&["fail", "allow"]);
        let nodes = dice.of(&["anti_affinity", "affinity"]);
        spec["affinity"] = json!([{"group": "g", "kind": nodes, "policy": otherwise}]);
    }
    world.ask("plan.apply", &json!({"name": plan, "spec": spec})).ok();
}

fn strategy(dice: &mut TestRandom) -> Value {
    match dice.below(6) {
        0 => json!({"blue_green": {"timeout": 20_000, "on_timeout": dice.of(&["rollback", "cut_over"])}}),
        1 => json!({"canary": {"count": 1}}),
        2 => json!({"rolling": {"max_parallel": 1 + dice.below(2), "per_domain": dice.below(2) == 0}}),
        3 => json!({"rolling": {"delay": 2000}}),
        _ => json!({"rolling": {}}),
    }
}

fn ask(world: &mut TestFleet, dice: &mut TestRandom, round: u64) {
    let plan = dice.of(&["a", "b"]);
    let node = format!("node-{}", dice.below(4) + 1);
    let replicas: Vec<_> = world.fleet.replicas().sorted().iter().map(|r| r.name.clone()).collect();
    let replica = replicas.get(dice.below(8) as usize).cloned();
    let deployment = format!("r{}", round.saturating_sub(dice.below(4)));
    match dice.below(30) {
        0..6 => {
            let version = format!("v{}", dice.below(3));
            let mut spec = json!({"count": dice.below(4), "coordinates": {"app": {"version": version}}});
            spec["strategy"] = strategy(dice);
            let overlap = dice.of(&["queue", "queue", "supersede"]);
            let body = json!({"plan": plan, "name": format!("r{round}"), "spec": spec, "overlap": overlap});
            world.ask("deployment.create", &body).ok();
        }
        6..8 => {
            let verb = dice.of(&["cancel", "pause", "resume", "promote", "rollback"]);
            let current = world.fleet.plans().get(plan).and_then(|plan| plan.current.clone());
            let name = current.map_or(deployment, |name| name.to_string());
            world.ask(&format!("deployment.{verb}"), &json!({"plan": plan, "name": name})).ok();
        }
        8..18 => {
            let verb =
                dice.of(&["start", "stop", "delete", "relocate", "restart", "relocate", "restart", "start"]);
            let mut body = json!({"name": replica});
            if matches!(verb, "start" | "relocate") && dice.below(4) == 0 {
                body["node"] = json!(node);
            }
            if replica.is_some() {
                world.ask(&format!("replica.{verb}"), &body).ok();
            }
        }
        18 => drop(world.ask("replica.create", &json!({"plan": plan}))),
        19..21 => {
            let spec = json!({"action": dice.of(&["drain", "none", "drain_and_delete"])});
            let body = json!({"node": node, "name": format!("x{round}"), "spec": spec});
            if world.ask("disruption.schedule", &body).is_ok() {
                let body = json!({"node": node, "name": format!("x{round}")});
                world.ask("disruption.approve", &body).ok();
            }
        }
        21 => {
            let state = dice.of(&["expunged", "evicted", "sanitizing", "unallocated"]);
            world.ask("node.set_state", &json!({"name": node, "state": state})).ok();
        }
        22 => drop(world.ask("node.delete", &json!({"name": node, "cascade": dice.of(&["yes", "no"])}))),
        23 => {
            add_node(world, &node, "d1");
        }
        24 => apply_plan(world, plan, dice),
        25 => {
            let rule = if dice.below(2) == 0 {
                json!({"approve": {"max_in_flight": 1}})
            } else {
                json!({"four_eyes": {}})
            };
            world.ask("policy.apply", &json!({"name": "p", "spec": {"rule": rule}})).ok();
        }
        26 => drop(world.ask("policy.delete", &json!({"name": "p"}))),
        27 => {
            drop(world.ask("plan.delete", &json!({"name": plan, "cascade": dice.of(&["yes", "no", "no"])})));
        }
        28 => {
            let volumes: Vec<_> = world.fleet.volumes().sorted().iter().map(|v| v.name.clone()).collect();
            if let Some(name) = volumes.get(dice.below(4) as usize) {
                world.ask("volume.delete", &json!({"name": name})).ok();
            }
        }
        _ => {}
    }
}

fn report_of_volume(world: &mut TestFleet, dice: &mut TestRandom) {
    let volumes: Vec<_> = world.fleet.volumes().sorted().into_iter().cloned().collect();
    let Some(volume) = volumes.get(dice.below(volumes.len().max(1) as u64) as usize) else { return };
    let observed = match dice.below(10) {
        0 => failed(dice.of(&[RetryClass::Retryable, RetryClass::Permanent])),
        1 => ended(IncarnationExit::Clean),
        _ if volume.state == VolumeState::Destroying => ObservedState::Gone,
        _ => ObservedState::Ready { processes: vec![] },
    };
    world.report_volume(volume.name.as_str(), observed);
}

fn report(world: &mut TestFleet, dice: &mut TestRandom) {
    if dice.below(4) == 0 {
        return report_of_volume(world, dice);
    }
    let live: Vec<_> = world.commanded();
    let Some(id) = live.get(dice.below(live.len().max(1) as u64) as usize).copied() else { return };
    let incarnation = world.fleet.incarnations().get(&id).expect("it is live");
    let stops = matches!(incarnation.state, IncarnationState::Stopping(_));
    let observed = match dice.below(if stops { 4 } else { 12 }) {
        0 => crashed(),
        1 => ended(IncarnationExit::Clean),
        2 if stops => ObservedState::Gone,
        3 => failed(dice.of(&[RetryClass::Retryable, RetryClass::Permanent])),
        4 => ended(IncarnationExit::PoweredOff),
        _ => ready(),
    };
    let revision = incarnation.revision - u32::from(dice.below(8) == 0 && incarnation.revision > 1);
    world.report_at(id, revision, observed);
}

fn approve(world: &mut TestFleet, dice: &mut TestRandom) {
    if dice.below(6) == 0 {
        return world.grant();
    }
    let pending: Vec<_> = world.pending().iter().map(|operation| operation.id).collect();
    let Some(id) = pending.get(dice.below(pending.len().max(1) as u64) as usize).copied() else { return };
    if dice.below(4) == 0 {
        world.reject(id).ok()
    } else {
        world.approve(id).ok()
    };
}

/// Does one step of a walk, without the work that becomes due by it.
pub(super) fn act(world: &mut TestFleet, dice: &mut TestRandom, round: u64) {
    match dice.below(10) {
        0..4 => ask(world, dice, round),
        4..7 => report(world, dice),
        7..9 => approve(world, dice),
        _ => world.wait(dice.below(30)),
    }
}

/// Checks the rules that hold in every state.
fn holds(world: &TestFleet, why: &str) {
    let fleet = &world.fleet;
    for node in fleet.nodes().sorted() {
        let held = &fleet.index().places.held(&node.name).resources;
        let capacity = node.spec.resources.checked_sub(node.spec.reserved).unwrap_or(Resources::ZERO);
        assert!(held.fits(capacity), "{why}: node {} has {capacity}, and {held} are held", node.name);
        let class = "s".parse().expect("a class");
        let stored = fleet.index().places.held(&node.name).storage(&class);
        assert!(stored <= 3, "{why}: node {} has 3 bytes of storage, and {stored} are held", node.name);
    }
    for volume in fleet.volumes().sorted() {
        let user = volume.used_by.map(|id| fleet.incarnations().get(&id).expect("its user is known"));
        let has = |run: &crate::state::Incarnation| run.is_live() && run.ties.mounts.contains(&volume.name);
        assert!(user.is_none_or(has), "{why}: {volume:?} {user:?}");
        assert!(user.is_none() || volume.state != VolumeState::Destroying, "{why}: {volume:?}");
    }
    for run in fleet.incarnations().sorted().into_iter().filter(|run| run.is_live()) {
        let has = |name| fleet.volumes().get(name).is_some_and(|volume| volume.used_by == Some(run.id));
        assert!(run.state == IncarnationState::Reserved || run.ties.mounts.iter().all(has), "{why}: {run:?}");
    }
    for replica in fleet.replicas().sorted() {
        let live: Vec<_> = replica
            .incarnations
            .iter()
            .filter_map(|id| fleet.incarnations().get(id))
            .filter(|incarnation| incarnation.is_live())
            .collect();
        let known: Vec<_> = replica.runs().map(|run| run.incarnation).collect();
        assert_eq!(live.len(), known.len(), "{why}: {replica:?} {live:?}");
        assert!(live.iter().all(|incarnation| known.contains(&incarnation.id)), "{why}: {replica:?}");
        assert!(replica.active.is_some() || replica.secondary.is_none(), "{why}: {replica:?}");
        for open in replica.open() {
            let operation = fleet.operations().get(&open.id).expect("it is open");
            assert!(operation.is_open(), "{why}: {operation:?}");
            assert_eq!(
                open.started,
                matches!(operation.state, OperationState::Running),
                "{why}: {replica:?} {operation:?}"
            );
        }
    }
}

/// Whether the operation waits for a volume that another incarnation uses.
fn lacks_volume(world: &TestFleet, operation: &Operation) -> bool {
    let run = operation.incarnation.and_then(|id| world.fleet.incarnations().get(&id));
    run.filter(|run| run.awaits_volumes).is_some_and(|run| {
        run.ties
            .mounts
            .iter()
            .any(|name| world.fleet.volumes().get(name).is_some_and(|volume| volume.used_by.is_some()))
    })
}

/// Approves everything, lets every command succeed, and lets time pass.
fn settle(world: &mut TestFleet, why: &str) {
    world.ask("policy.delete", &json!({"name": "p"})).ok();
    world.grant();
    for _ in 0..60 {
        for plan in ["a", "b"] {
            let Some(name) = world.fleet.plans().get(plan).and_then(|plan| plan.current.clone()) else {
                continue;
            };
            for verb in ["resume", "promote"] {
                world.ask(&format!("deployment.{verb}"), &json!({"plan": plan, "name": name})).ok();
            }
        }
        world.wait(40);
        world.approve_all();
        world.obey();
    }
    holds(world, why);
    for operation in world.fleet.operations().sorted() {
        let waits = operation.state == OperationState::Preparing
            && world.fleet.plans().get(&operation.plan).is_some_and(|plan| !plan.unschedulable.is_empty());
        assert!(!operation.is_open() || waits || lacks_volume(world, operation), "{why}: {operation:?}");
    }
    for deployment in world.fleet.deployments().sorted() {
        let plan = world.fleet.plans().get(&deployment.plan).expect("its plan");
        let open = |operation: &&Operation| operation.is_open() && lacks_volume(world, operation);
        let lacks = world.fleet.operations().sorted().into_iter().any(|it| it.plan == plan.name && open(&it));
        let waits =
            !plan.unschedulable.is_empty() || matches!(deployment.state, DeploymentState::Pending) || lacks;
        assert!(deployment.is_over() || waits, "{why}: {deployment:?}");
    }
    for replica in world.fleet.replicas().sorted() {
        assert!(!is_forgotten(world, replica), "{why}: it is not started again: {replica:?}");
    }
    for incarnation in world.fleet.incarnations().sorted() {
        let settled = matches!(
            incarnation.state,
            IncarnationState::Running | IncarnationState::Ended(_) | IncarnationState::Reserved
        );
        assert!(settled && incarnation.command.is_none(), "{why}: {incarnation:?}");
    }
}

/// Whether a replica that ran and must always run has no incarnation, and nothing will start one.
fn is_forgotten(world: &TestFleet, replica: &Replica) -> bool {
    let plan = world.fleet.plans().get(&replica.plan).expect("its plan");
    let operations = || replica.operations.iter().filter_map(|id| world.fleet.operations().get(id));
    // The rule has started it, and a person rejected that, or it was impossible.
    let is_by_rule = |it: &Operation| matches!(it.requested_by.as_deref(), Some(Requester::Rule(_)));
    if !replica.needs_start()
        || replica.next_restart.is_some()
        || operations().next_back().is_some_and(is_by_rule)
    {
        return false;
    }
    let mut runs = replica.incarnations.iter().rev().filter_map(|id| world.fleet.incarnations().get(id));
    runs.find(|run| run.last_effect.is_some()).is_some_and(|run| {
        let by = world.fleet.operations().get(&run.operation);
        let was_asked_for = by.is_none_or(|by| {
            matches!(by.kind, OperationKind::Create | OperationKind::Start) && !is_by_rule(by)
        });
        // An end under an earlier policy was decided by that policy.
        let always = plan.deletion_requested_by.is_none()
            && *plan.immediate().restart() == RestartPolicy::Always
            && run.placed_by == plan.generation;
        always && (run.ready_since.is_some() || !was_asked_for)
    })
}

#[test]
fn any_sequence_of_requests_and_reports_keeps_the_invariants_and_settles() {
    for seed in 1..=300 {
        let mut dice = TestRandom(seed * 0x9e37_79b9 + 1);
        let mut world = world(&mut dice);
        for round in 0..60 {
            let why = format!("seed {seed}, round {round}");
            act(&mut world, &mut dice, round);
            assert!(world.try_run(), "{why}: work that never ends: {:?}", &world.log[world.log.len() - 6..]);
            holds(&world, &why);
        }
        settle(&mut world, &format!("seed {seed}"));
    }
}
