//! Worlds with storage and plans with volumes, for tests that need both.

use chancery_events::observation::{IncarnationExit, ObservedState};
use serde_json::{Value, json};

use crate::state::{Incarnation, IncarnationState};
use crate::testing::TestFleet;

pub(super) const GB: u64 = 1 << 30;

/// Creates a world of `nodes` nodes with `storage` bytes of storage each.
pub(super) fn world(nodes: usize, storage: u64) -> TestFleet {
    world_of("process", nodes, storage)
}

/// Creates such a world of another runtime.
pub(super) fn world_of(runtime: &str, nodes: usize, storage: u64) -> TestFleet {
    let mut world = TestFleet::of_runtime(runtime, 0);
    for number in 1..=nodes {
        node(&mut world, number, storage);
    }
    world
}

pub(super) fn node(world: &mut TestFleet, number: usize, storage: u64) {
    let spec = json!({
        "domain": format!("d{}", number % 2), "resources": {"cpu": 4000, "memory": 8 * GB, "disk": 0},
        "storage": [{"class": "fast", "capacity": storage}],
    });
    world.must("node.apply", &json!({"name": format!("node-{number}"), "cluster": "local", "spec": spec}));
}

/// Returns a claim of a replica's own volume, or of a volume with a name.
pub(super) fn claim(volume: Option<&str>, on_delete: &str, capacity: u64, mount: &str) -> Value {
    json!({"volume": volume, "on_delete": on_delete, "class": "fast", "capacity": capacity, "mount": mount})
}

/// Returns a claim of an own volume of a gigabyte that is kept.
pub(super) fn own() -> Value {
    json!([claim(None, "keep", GB, "/data")])
}

/// Returns a claim of a named volume of a gigabyte.
pub(super) fn named(volume: &str) -> Value {
    json!([claim(Some(volume), "keep", GB, "/data")])
}

pub(super) fn payload(name: &str, volumes: &Value) -> Value {
    let resources = json!({"cpu": 100, "memory": 1 << 20});
    json!({"name": name, "resources": resources, "run": {"argv": ["app"]}, "volumes": volumes})
}

/// Applies a plan that restarts always and approves every operation, unless `more` differs.
pub(super) fn apply(world: &mut TestFleet, plan: &str, volumes: &Value, more: &Value) {
    let kinds = ["create", "update", "relocate", "restart", "start", "stop", "delete"];
    let mut approval: serde_json::Map<_, _> =
        kinds.iter().map(|kind| ((*kind).to_owned(), "automatic".into())).collect();
    if let Some(kind) = more["manual"].as_str().filter(|kind| !kind.is_empty()) {
        approval.insert(kind.to_owned(), "manual".into());
    }
    let mut spec = json!({
        "namespace": "ns", "service": plan, "approval": approval, "sharing": "allowed", "restart": "always",
        "payloads": [payload("app", volumes)],
    });
    for (key, value) in more.as_object().into_iter().flatten().filter(|(key, _)| *key != "manual") {
        spec[key] = value.clone();
    }
    world.must("plan.apply", &json!({"name": plan, "spec": spec}));
}

pub(super) fn put(world: &mut TestFleet, plan: &str, name: &str, count: u32) {
    world.must("deployment.create", &json!({"plan": plan, "name": name, "spec": {"count": count}}));
    world.run();
}

/// Applies a plan and runs `count` replicas of it.
pub(super) fn running(world: &mut TestFleet, plan: &str, count: u32, volumes: &Value, more: &Value) {
    apply(world, plan, volumes, more);
    put(world, plan, "d1", count);
    world.obey();
    assert_eq!(world.deployment_of(plan, "d1"), "completed");
}

pub(super) fn names(world: &TestFleet) -> Vec<String> {
    world.fleet.volumes().sorted().iter().map(|volume| volume.name.to_string()).collect()
}

/// Returns the live incarnations of a plan, oldest first.
pub(super) fn runs<'a>(world: &'a TestFleet, plan: &str) -> Vec<&'a Incarnation> {
    let runs = world.fleet.incarnations().sorted().into_iter();
    runs.filter(|run| run.is_live() && run.plan.as_str() == plan).collect()
}

/// Returns the states of the live incarnations, oldest first.
pub(super) fn live(world: &TestFleet) -> Vec<&'static str> {
    let live = world.fleet.incarnations().sorted().into_iter().filter(|run| run.is_live());
    live.map(|run| match run.state {
        IncarnationState::Reserved => "reserved",
        IncarnationState::Running => "running",
        IncarnationState::Stopping(_) => "stopping",
        _ => "starting",
    })
    .collect()
}

pub(super) fn only_replica(world: &TestFleet) -> String {
    world.fleet.replicas().sorted()[0].name.to_string()
}

pub(super) fn made() -> ObservedState {
    ObservedState::Ready { processes: vec![] }
}

/// Returns the observation of a volume that was created and does not exist any more.
pub(super) fn vanished() -> ObservedState {
    ObservedState::Ended { exit: IncarnationExit::Failed { reason: "gone".into() }, processes: vec![] }
}

pub(super) fn ask(world: &mut TestFleet, verb: &str) {
    world.must(&format!("replica.{verb}"), &json!({"name": only_replica(world)}));
    world.run();
}

pub(super) fn stopped(world: &mut TestFleet) {
    ask(world, "stop");
    world.obey();
}

pub(super) fn drain(world: &mut TestFleet, node: &str) {
    world.must("disruption.schedule", &json!({"node": node, "name": "p", "spec": {"action": "drain"}}));
    world.must("disruption.approve", &json!({"node": node, "name": "p"}));
    world.run();
}

/// Lets days pass in which every command succeeds.
pub(super) fn settle(world: &mut TestFleet) {
    for _ in 0..50 {
        world.wait(3600);
        world.obey();
    }
}
