//! Snapshots of volumes.

use chancery_events::fact::{CommandEffect, Fact};
use chancery_events::observation::{ObservedState, RetryClass};
use chancery_events::refusal::RefusalCode;
use serde_json::{Value, json};

use super::setting::{
    GB, ask, drain, live, made, named, names, put, running, stopped, vanished, world, world_of,
};
use crate::state::VolumeState;
use crate::testing::TestFleet;

/// Returns a world with a stopped replica whose volume is `db`.
fn stored(storage: u64) -> TestFleet {
    let mut world = world(1, storage);
    running(&mut world, "web", 1, &named("db"), &json!({"restart": "never"}));
    stopped(&mut world);
    world
}

fn request(name: &str, snapshot: &str) -> Value {
    json!({"name": name, "snapshot": snapshot})
}

fn held(world: &TestFleet) -> u64 {
    world
        .fleet
        .index()
        .places
        .held(&"node-1".parse().expect("a node"))
        .storage(&"fast".parse().expect("a class"))
}

#[test]
fn a_snapshot_is_a_volume_like_its_source_and_is_used_once_it_is_ready() {
    let mut world = stored(3 * GB);
    let before = world.fleet.volumes().get("db").expect("a volume").clone();
    let source = before.id;
    let facts = world.must("volume.snapshot", &request("db", "copy"));
    let [Fact::VolumeSnapshotStarted(started)] = &facts[..] else { panic!("{facts:?}") };
    assert_eq!((started.source_id, started.capacity, started.node.as_str()), (source, GB, "node-1"));
    // The history of the source has the fact, so its row names the position.
    let after = world.fleet.volumes().get("db").expect("a volume");
    assert_eq!((after.meta.version, &after.state), (before.meta.version, &before.state));
    assert!(after.meta.changed.position > before.meta.changed.position);
    assert!(world.must("volume.snapshot", &request("db", "copy")).is_empty(), "it is being made");
    let copy = world.fleet.volumes().get("copy").expect("a volume").clone();
    assert_eq!(copy.source, Some(("db".parse().expect("a name"), source)));
    assert_eq!((copy.state, copy.owner, copy.may_hold_data), (VolumeState::Creating, None, true));
    assert_eq!(held(&world), 2 * GB);
    // A user waits for it.
    waiting(&mut world, "copy");
    assert_eq!(live(&world), ["reserved"]);
    world.report_volume("copy", made());
    assert_eq!(live(&world), ["starting"]);
    world.obey();
    assert_eq!(world.deployment_of("other", "d1"), "completed");
    // The source can go: the copy is a volume of its own.
    world.must("volume.delete", &json!({"name": "db"}));
    world.run();
    world.obey();
    assert_eq!((names(&world), live(&world)), (vec!["copy".to_owned()], vec!["running"]));
}

fn waiting(world: &mut TestFleet, volume: &str) {
    super::setting::apply(world, "other", &named(volume), &json!({}));
    put(world, "other", "d1", 1);
}

#[test]
fn what_cannot_be_copied_is_refused() {
    use RefusalCode::{AlreadyExists, InUse, InvalidTransition, NotFound, Unsupported};
    type WorldSetting = fn() -> TestFleet;
    let cases: [(&str, WorldSetting, &str, RefusalCode, &str); 9] = [
        ("an unknown source", || stored(3 * GB), "other", NotFound, "there is no volume other"),
        (
            "a name that is taken",
            || {
                let mut world = stored(3 * GB);
                running(&mut world, "other", 1, &named("copy"), &json!({}));
                world
            },
            "db",
            AlreadyExists,
            "volume copy exists already",
        ),
        (
            "a snapshot that exists",
            || {
                let mut world = stored(3 * GB);
                world.must("volume.snapshot", &request("db", "copy"));
                world.report_volume("copy", made());
                world
            },
            "db",
            AlreadyExists,
            "volume copy exists already",
        ),
        (
            "a source that is being created",
            || {
                let mut world = stored(4 * GB);
                world.must("volume.snapshot", &request("db", "first"));
                world
            },
            "first",
            InvalidTransition,
            "volume first is creating",
        ),
        (
            "a lost source",
            || {
                let mut world = stored(3 * GB);
                world.report_volume("db", vanished());
                world
            },
            "db",
            InvalidTransition,
            "volume db is lost",
        ),
        (
            "a source that is being deleted",
            || {
                let mut world = stored(3 * GB);
                world.must("volume.delete", &json!({"name": "db"}));
                world
            },
            "db",
            InvalidTransition,
            "volume db is being deleted",
        ),
        (
            "a source that processes use",
            || {
                let mut world = stored(3 * GB);
                ask(&mut world, "start");
                world.obey();
                world
            },
            "db",
            InUse,
            "volume db is used by replica web-",
        ),
        ("too little storage", || stored(2 * GB - 1), "db", InUse, "too little storage of class fast"),
        (
            "a runtime without snapshots",
            || {
                let mut world = world_of("kubernetes", 1, 3 * GB);
                let container = json!([{
                    "name": "app", "resources": {"cpu": 100, "memory": 1 << 20},
                    "container": {"image": "registry/app:1"}, "volumes": named("db"),
                }]);
                running(&mut world, "web", 1, &json!([]), &json!({"payloads": container}));
                world
            },
            "db",
            Unsupported,
            "runtime kubernetes, which has no snapshots",
        ),
    ];
    for (what, setting, source, code, detail) in cases {
        let mut world = setting();
        let before = names(&world);
        let refusal = world.ask("volume.snapshot", &request(source, "copy")).expect_err(what);
        assert_eq!(refusal.code, code, "{what}: {}", refusal.detail);
        assert!(refusal.detail.contains(detail), "{what}: {}", refusal.detail);
        assert_eq!(names(&world), before, "{what}");
    }
}

#[test]
fn a_source_that_a_guest_uses_is_copied_and_a_stop_waits_for_no_snapshot() {
    let mut world = world_of("simulated", 1, 3 * GB);
    running(&mut world, "web", 1, &named("db"), &json!({"restart": "never"}));
    world.must("volume.snapshot", &request("db", "copy"));
    ask(&mut world, "stop");
    assert_eq!(live(&world), ["stopping"]);
    let run = world.asked().next().expect("a stop");
    world.report(run, crate::testing::ended(chancery_events::observation::IncarnationExit::Clean));
    assert!(live(&world).is_empty());
    assert_eq!(world.fleet.volumes().get("copy").expect("a volume").state, VolumeState::Creating);
    // Nor does a start.
    ask(&mut world, "start");
    assert_eq!(live(&world), ["starting"]);
    world.report_volume("copy", made());
    assert_eq!(world.fleet.volumes().get("copy").expect("a volume").state, VolumeState::Ready);
}

#[test]
fn a_snapshot_that_fails_is_deleted_and_its_storage_is_free_again() {
    for retry in [RetryClass::Permanent, RetryClass::Retryable] {
        let mut world = stored(3 * GB);
        world.must("volume.snapshot", &request("db", "copy"));
        let command = |world: &TestFleet| {
            world.fleet.volumes().get("copy").and_then(|volume| volume.command).map(|command| command.effect)
        };
        let mut attempts = 0;
        while command(&world) == Some(CommandEffect::Ensure) {
            attempts += 1;
            world.report_volume("copy", ObservedState::Failed { message: "no space".into(), retry });
            world.wait(60);
        }
        assert_eq!(attempts > 1, retry == RetryClass::Retryable, "{attempts} attempts");
        assert_eq!(command(&world), Some(CommandEffect::Kill));
        assert_eq!(held(&world), 2 * GB, "until nothing of it is left");
        world.report_volume("copy", ObservedState::Gone);
        assert_eq!((names(&world), held(&world)), (vec!["db".to_owned()], GB));
        assert_eq!(world.must("volume.snapshot", &request("db", "copy")).len(), 1, "the name is free again");
    }
}

#[test]
fn a_snapshot_that_is_deleted_while_it_is_made_ends_and_leaves_its_source() {
    let mut world = stored(3 * GB);
    world.must("volume.snapshot", &request("db", "copy"));
    world.must("volume.delete", &json!({"name": "copy"}));
    world.run();
    // A report of the earlier command comes late.
    let copy = world.fleet.volumes().get("copy").expect("a volume");
    assert_eq!((&copy.state, copy.revision), (&VolumeState::Destroying, 2));
    let refusal = world.ask("volume.snapshot", &request("db", "copy")).expect_err("the name is taken");
    assert_eq!(refusal.code, RefusalCode::AlreadyExists);
    world.report_volume("copy", ObservedState::Gone);
    assert_eq!(names(&world), ["db"]);
}

#[test]
fn a_source_on_a_node_that_was_evicted_is_not_copied() {
    let mut world = stored(3 * GB);
    drain(&mut world, "node-1");
    let refusal = world.ask("volume.snapshot", &request("db", "copy")).expect_err("it is in no cluster");
    assert_eq!(refusal.code, RefusalCode::InvalidTransition);
    assert!(refusal.detail.contains("which is not in cluster local now"), "{}", refusal.detail);
}
