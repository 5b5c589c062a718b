//! Attacks.

use std::time::Instant;

use chancery_events::fact::Fact;
use chancery_events::observation::{Exit, Hope, Saw};
use serde_json::{Value, json};

use crate::state::IncarnationState;
use crate::testing::{Counted, World, crashed, ended, name, ready};

const GB: u64 = 1 << 30;

fn world(nodes: usize, storage: u64) -> World {
    let mut world = World::with_nodes(0);
    for number in 1..=nodes {
        node(&mut world, number, storage);
    }
    world
}

fn node(world: &mut World, number: usize, storage: u64) {
    let spec = json!({
        "domain": format!("d{}", number % 2), "total": {"cpu": 400_000, "memory": 800 * GB, "disk": 0},
        "storage": [{"class": "fast", "capacity": storage}],
    });
    world.must("node.apply", &json!({"name": format!("node-{number}"), "cluster": "local", "spec": spec}));
}

fn claim(volume: Option<&str>, on_delete: &str, capacity: u64, mount: &str) -> Value {
    json!({"volume": volume, "on_delete": on_delete, "class": "fast", "capacity": capacity, "mount": mount})
}

fn apply(world: &mut World, plan: &str, volumes: &Value, more: &Value) {
    let payload = json!({
        "name": "app", "resources": {"cpu": 100, "memory": 1 << 20}, "run": {"argv": ["app"]}, "volumes": volumes,
    });
    let mut more = more.clone();
    if more.get("payloads").is_none() {
        more["payloads"] = json!([payload]);
    }
    apply_raw(world, plan, &more);
}

fn apply_raw(world: &mut World, plan: &str, more: &Value) {
    let kinds = ["create", "update", "relocate", "restart", "start", "stop", "delete"];
    let approval: serde_json::Map<_, _> =
        kinds.iter().map(|kind| ((*kind).to_owned(), "automatic".into())).collect();
    let mut spec = json!({
        "namespace": "ns", "service": plan, "approval": approval, "sharing": "allowed",
        "restart": "always",
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    world.must("plan.apply", &json!({"name": plan, "spec": spec}));
}

fn put(world: &mut World, plan: &str, name: &str, count: u32) {
    world.must("deployment.create", &json!({"plan": plan, "name": name, "spec": {"count": count}}));
    world.run();
}

fn names(world: &World) -> Vec<String> {
    world.fleet.volumes().sorted().iter().map(|volume| volume.name.to_string()).collect()
}

fn live(world: &World) -> Vec<&'static str> {
    let live = world.fleet.incarnations().sorted().into_iter().filter(|run| run.is_live());
    live.map(|run| match run.state {
        IncarnationState::Reserved => "reserved",
        IncarnationState::Running => "running",
        IncarnationState::Stopping(_) => "stopping",
        _ => "starting",
    })
    .collect()
}

fn only_replica(world: &World) -> String {
    world.fleet.replicas().sorted()[0].name.to_string()
}

fn settle(world: &mut World) {
    for _ in 0..50 {
        world.wait(3600);
        world.obey();
    }
}

/// Runs again whatever is asked, but the volume of the name can never be made.
#[test]
fn a1_rule_starts_again_what_failed_for_its_volume() {
    let mut world = world(2, 4 * GB);
    apply(&mut world, "web", &json!([claim(None, "keep", GB, "/data")]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    let volume = names(&world)[0].clone();
    world.must("volume.delete", &json!({"name": volume}));
    let run = world.commanded()[0];
    world.report(run, crashed());
    world.report_volume(&volume, Saw::Gone);
    // The rule's start waits for a new one: the disk is full for a moment.
    world.report_volume(&volume, Saw::Failed { message: "no space".into(), hope: Hope::Never });
    settle(&mut world);
    let replica = &world.fleet.replicas().sorted()[0];
    assert_eq!(
        live(&world),
        ["running"],
        "restart: always; again={:?} phases={:?}",
        replica.again,
        world.phases()
    );
}

#[test]
fn a1b_stop_first_update_that_fails_for_its_volume_gives_back_what_ran() {
    let mut world = world(2, 4 * GB);
    apply(&mut world, "web", &json!([]), &json!({"update": "stop_first"}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    apply(&mut world, "web", &json!([claim(None, "keep", GB, "/data")]), &json!({"update": "stop_first"}));
    put(&mut world, "web", "d2", 1);
    let run = world.commanded()[0];
    world.report(run, ended(Exit::Clean));
    let volume = names(&world)[0].clone();
    world.report_volume(&volume, Saw::Failed { message: "no space".into(), hope: Hope::Never });
    assert_eq!(world.deployment_of("web", "d2"), "failed");
    settle(&mut world);
    assert_eq!(live(&world), ["running"], "the plan's rule starts what ran before; {:?}", world.phases());
}

#[test]
fn a1c_a_node_that_goes_while_a_rules_start_waits_for_its_volume_only_moves_it() {
    for how in ["expunge", "drain"] {
        let mut world = world(2, 4 * GB);
        apply(&mut world, "web", &json!([claim(None, "keep", GB, "/data")]), &json!({}));
        put(&mut world, "web", "d1", 1);
        world.obey();
        let volume = names(&world)[0].clone();
        world.must("volume.delete", &json!({"name": volume}));
        let run = world.commanded()[0];
        world.report(run, crashed());
        assert_eq!(live(&world), ["reserved"]);
        let node =
            world.fleet.incarnations().sorted().iter().find(|i| i.is_live()).expect("one").node.to_string();
        if how == "drain" {
            world.must("disruption.schedule", &json!({"node": node, "name": "p", "spec": {"evict": "yes"}}));
            world.must("disruption.approve", &json!({"node": node, "name": "p"}));
        } else {
            world.must("node.set_state", &json!({"name": node, "state": "expunged"}));
        }
        world.run();
        world.obey();
        settle(&mut world);
        assert_eq!(live(&world), ["running"], "{how}: restart: always; {:?}", world.phases());
    }
}

#[test]
fn a2_keep_that_the_running_version_says_keeps() {
    let mut world = world(1, 4 * GB);
    apply(&mut world, "web", &json!([claim(None, "destroy", GB, "/data")]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    // Somebody thinks better of it.
    apply(&mut world, "web", &json!([claim(None, "keep", GB, "/data")]), &json!({}));
    put(&mut world, "web", "d2", 1);
    world.obey();
    assert_eq!(world.deployment_of("web", "d2"), "completed");
    world.must("replica.delete", &json!({"name": only_replica(&world)}));
    world.run();
    world.obey();
    assert_eq!(names(&world).len(), 1, "the version that ran last keeps its data");
}

#[test]
fn a3_a_move_is_not_begun_to_where_the_volume_does_not_fit() {
    let mut world = world(1, 12 * GB);
    apply(&mut world, "web", &json!([claim(None, "keep", 10 * GB, "/data")]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    apply(&mut world, "web", &json!([claim(None, "keep", GB, "/data")]), &json!({}));
    put(&mut world, "web", "d2", 1);
    world.obey();
    assert_eq!(world.deployment_of("web", "d2"), "completed");
    node(&mut world, 2, 2 * GB);
    world.must("replica.relocate", &json!({"name": only_replica(&world)}));
    world.run();
    world.obey();
    settle(&mut world);
    assert_eq!(live(&world), ["running"], "{:?}", world.phases());
}

#[test]
fn a3b_the_room_of_one_volume_is_not_that_of_another() {
    let mut world = world(1, 12 * GB);
    apply(&mut world, "big", &json!([claim(Some("db"), "keep", 10 * GB, "/db")]), &json!({}));
    put(&mut world, "big", "d1", 1);
    world.obey();
    put(&mut world, "big", "d2", 0);
    world.obey();
    node(&mut world, 2, 20 * GB);
    let both = json!([claim(Some("db"), "keep", GB, "/db"), claim(None, "keep", 5 * GB, "/log")]);
    apply(&mut world, "web", &both, &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    assert_eq!(world.deployment_of("web", "d1"), "completed", "node-2 has room for both");
}

#[test]
fn a4_plans_that_swap_their_volumes_come_to_an_end() {
    let mut world = world(2, 10 * GB);
    let a = json!([claim(Some("x"), "keep", GB, "/data")]);
    let b = json!([claim(Some("y"), "keep", GB, "/data")]);
    apply(&mut world, "a", &a, &json!({}));
    apply(&mut world, "b", &b, &json!({}));
    put(&mut world, "a", "d1", 1);
    put(&mut world, "b", "d1", 1);
    world.obey();
    apply(&mut world, "a", &b, &json!({}));
    apply(&mut world, "b", &a, &json!({}));
    put(&mut world, "a", "d2", 1);
    put(&mut world, "b", "d2", 1);
    world.obey();
    settle(&mut world);
    let first =
        (world.deployment_of("a", "d2"), world.deployment_of("b", "d2"), live(&world), world.next_alarm());
    world.must("deployment.cancel", &json!({"plan": "a", "name": "d2"}));
    world.must("deployment.cancel", &json!({"plan": "b", "name": "d2"}));
    world.run();
    settle(&mut world);
    let now = (world.deployment_of("a", "d2"), world.deployment_of("b", "d2"));
    assert_eq!(now, ("cancelled".to_owned(), "cancelled".to_owned()), "before: {first:?}");
}

#[test]
fn a4b_an_update_that_waits_for_anothers_volume_does_not_stop_what_runs_for_ever() {
    let mut world = world(2, 10 * GB);
    apply(&mut world, "other", &json!([claim(Some("y"), "keep", GB, "/y")]), &json!({}));
    put(&mut world, "other", "d1", 1);
    world.obey();
    apply(&mut world, "web", &json!([claim(Some("x"), "keep", GB, "/x")]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    let both = json!([claim(Some("x"), "keep", GB, "/x"), claim(Some("y"), "keep", GB, "/y")]);
    apply(&mut world, "web", &both, &json!({}));
    put(&mut world, "web", "d2", 1);
    world.obey();
    settle(&mut world);
    world.must("deployment.cancel", &json!({"plan": "web", "name": "d2"}));
    world.run();
    settle(&mut world);
    assert_eq!(
        (world.deployment_of("web", "d2").as_str(), live(&world)),
        ("cancelled", vec!["running", "running"])
    );
}

#[test]
fn a5_two_claims_are_two_volumes_or_refused() {
    let payload = |name: &str, volumes: Value| {
        json!({
            "name": name, "resources": {"cpu": 100, "memory": 1 << 20}, "run": {"argv": ["app"]}, "volumes": volumes,
        })
    };
    // Own volumes whose names are the same.
    let mut world = world(1, 10 * GB);
    let payloads = json!([
        payload("a", json!([claim(None, "keep", GB, "/b-c")])),
        payload("a-b", json!([claim(None, "keep", GB, "/c")]))
    ]);
    apply_raw(&mut world, "web", &json!({"payloads": payloads}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    let created = world.log.iter().filter(|fact| matches!(fact, Fact::VolumeCreated(_))).count();
    assert_eq!((names(&world).len(), created), (2, 2), "{:?}", names(&world));
}

#[test]
fn a5b_one_volume_claimed_twice_is_made_once_or_refused() {
    let payload = |name: &str, volumes: Value| {
        json!({
            "name": name, "resources": {"cpu": 100, "memory": 1 << 20}, "run": {"argv": ["app"]}, "volumes": volumes,
        })
    };
    let mut world = world(1, 10 * GB);
    let payloads = json!([
        payload("a", json!([claim(Some("db"), "keep", GB, "/x")])),
        payload("b", json!([claim(Some("db"), "keep", 2 * GB, "/y")]))
    ]);
    apply_raw(&mut world, "web", &json!({"payloads": payloads}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    let created = world.log.iter().filter(|fact| matches!(fact, Fact::VolumeCreated(_))).count();
    assert_eq!(
        (names(&world).len(), created),
        (1, 1),
        "{:?} {}",
        names(&world),
        world.deployment_of("web", "d1")
    );
}

#[test]
fn a6_a_cluster_that_keeps_volumes_is_not_forgotten() {
    let mut world = world(1, 10 * GB);
    apply(&mut world, "web", &json!([claim(None, "keep", GB, "/data")]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    world.must("replica.stop", &json!({"name": only_replica(&world)}));
    world.run();
    world.obey();
    world.must("node.set_state", &json!({"name": "node-1", "state": "evicted"}));
    let refused = world.ask("cluster.delete", &json!({"name": "local"}));
    if refused.is_ok() {
        // The same name, another executor over another folder: it is let in, and the kept data is called lost.
        world.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "process"}}));
        world.see(&crate::testing::hello("local", "ex-other", 99).into());
        let session = world.fleet.clusters().get("local").and_then(|cluster| cluster.session);
        let volume = names(&world)[0].clone();
        if session.is_some() {
            world.report_volume(&volume, Saw::Gone);
        }
        panic!(
            "deleted; volume in cluster {:?}, session of another scope {session:?}, volume now {:?}",
            world.fleet.volumes().sorted()[0].cluster,
            world.fleet.volumes().sorted()[0].state
        );
    }
}

#[test]
fn a7_a_drained_node_comes_back_with_what_is_kept_on_it() {
    let mut world = world(2, 10 * GB);
    apply(&mut world, "web", &json!([claim(None, "keep", GB, "/data")]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    world.must("replica.stop", &json!({"name": only_replica(&world)}));
    world.run();
    world.obey();
    let node = world.fleet.volumes().sorted()[0].node.to_string();
    world.must("disruption.schedule", &json!({"node": node, "name": "p", "spec": {"evict": "yes"}}));
    world.must("disruption.approve", &json!({"node": node, "name": "p"}));
    world.run();
    assert_eq!(world.fleet.nodes().get(node.as_str()).expect("it").state.word(), "evicted");
    world.must("node.set_state", &json!({"name": node, "state": "sanitizing"}));
    world.must("node.set_state", &json!({"name": node, "state": "unallocated"}));
    world.must("node.set_state", &json!({"name": node, "state": "allocated", "cluster": "local"}));
}

#[test]
fn a8_nothing_is_begun_on_a_node_that_is_being_emptied() {
    for volumes in [json!([]), json!([claim(None, "keep", GB, "/data")])] {
        let mut world = world(2, 10 * GB);
        apply(
            &mut world,
            "web",
            &volumes,
            &json!({"approval": {
            "create": "automatic", "update": "automatic", "relocate": "manual", "restart": "automatic",
            "start": "automatic", "stop": "automatic", "delete": "automatic"}}),
        );
        put(&mut world, "web", "d1", 1);
        world.obey();
        world.must("replica.relocate", &json!({"name": only_replica(&world)}));
        world.run();
        let held = world
            .fleet
            .incarnations()
            .sorted()
            .into_iter()
            .find(|i| i.state == IncarnationState::Reserved)
            .expect("a place")
            .clone();
        let node = held.node.to_string();
        world.must("disruption.schedule", &json!({"node": node, "name": "p", "spec": {"evict": "yes"}}));
        world.must("disruption.approve", &json!({"node": node, "name": "p"}));
        world.run();
        let still = world.fleet.incarnations().get(&held.id).is_some_and(|i| i.is_live());
        let pending = world.pending().iter().map(|o| o.id).collect::<Vec<_>>();
        if let Some(id) = pending.first() {
            let _ = world.approve(*id);
            world.obey();
        }
        let on_it = world.fleet.incarnations().get(&held.id).map(|i| i.state.clone());
        assert!(
            !still,
            "volumes {volumes}: what was only reserved there is given another place; then {on_it:?}, {:?}",
            world
                .fleet
                .nodes()
                .get(node.as_str())
                .expect("it")
                .disruptions
                .values()
                .next()
                .expect("one")
                .state
        );
    }
}

/// A policy with a bound, and a deployment that is given up.
#[test]
fn a9_cancelling_many_that_wait_costs_no_more_each() {
    let each = |count: u32| {
        let mut world = world(1, GB);
        world.counted = Counted::AtTheEnd;
        let manual = json!({"create": "manual", "update": "manual", "relocate": "manual", "restart": "manual", "start": "manual", "stop": "manual", "delete": "manual"});
        apply(&mut world, "web", &json!([]), &json!({"approval": manual}));
        put(&mut world, "web", "d1", count);
        world.must("deployment.cancel", &json!({"plan": "web", "name": "d1"}));
        let windows = json!([]);
        world.must("policy.apply", &json!({"name": "p", "spec": {"rule": {"approve": {"windows": windows, "in_flight": 1_000_000}}}}));
        let begun = Instant::now();
        world.run();
        (begun.elapsed().as_micros() as f64 / f64::from(count), world.deployment_of("web", "d1"))
    };
    let (few, many) = (each(300), each(2400));
    panic!("microseconds for each: {few:?} of 300, {many:?} of 2400");
}

#[test]
fn a10_no_place_for_many_with_volumes_costs_as_for_those_without() {
    let time = |count: u32, nodes: usize, volumes: Value, cpu: u64| {
        let mut world = world(nodes, 0);
        world.counted = Counted::AtTheEnd;
        let payload = json!({"name": "app", "resources": {"cpu": cpu, "memory": 1 << 20}, "run": {"argv": ["app"]}, "volumes": volumes});
        apply_raw(&mut world, "web", &json!({"payloads": [payload]}));
        put(&mut world, "web", "d1", count);
        // Somewhere something may have grown.
        world.must("node.apply", &json!({"name": "elsewhere", "spec": {"domain": "d9", "total": {"cpu": 1, "memory": 1, "disk": 0}}}));
        world.run();
        world.must("node.apply", &json!({"name": "elsewhere", "spec": {"domain": "d9", "total": {"cpu": 2, "memory": 1, "disk": 0}}}));
        let begun = Instant::now();
        world.run();
        begun.elapsed().as_micros()
    };
    let none = time(400, 300, json!([]), 900_000);
    let with = time(400, 300, json!([claim(None, "keep", GB, "/data")]), 100);
    let twice = time(800, 300, json!([claim(None, "keep", GB, "/data")]), 100);
    panic!(
        "one step after capacity may have grown: {none} us without volumes, {with} us with, {twice} us with twice as many"
    );
}

#[test]
fn a11_those_that_wait_for_a_lost_volume_write_nothing_when_others_end() {
    let mut world = world(2, 100 * GB);
    apply(&mut world, "web", &json!([claim(None, "keep", GB, "/data")]), &json!({}));
    put(&mut world, "web", "d1", 10);
    world.obey();
    apply(&mut world, "other", &json!([]), &json!({"restart": "never"}));
    put(&mut world, "other", "d1", 3);
    world.obey();
    let volumes = names(&world);
    for volume in &volumes {
        world.report_volume(
            volume,
            Saw::Ended { exit: Exit::Failed { reason: "gone".into() }, processes: vec![] },
        );
    }
    let runs: Vec<_> = world
        .fleet
        .incarnations()
        .sorted()
        .iter()
        .filter(|i| i.plan.as_str() == "web" && i.is_live())
        .map(|i| i.id)
        .collect();
    for run in runs {
        world.report(run, crashed());
    }
    world.run();
    let others: Vec<_> = world
        .fleet
        .incarnations()
        .sorted()
        .iter()
        .filter(|i| i.plan.as_str() == "other" && i.is_live())
        .map(|i| i.id)
        .collect();
    world.log.clear();
    for run in others {
        world.report(run, crashed());
    }
    let written = world.log.iter().filter(|fact| matches!(fact, Fact::PlanWaiting(_))).count();
    assert!(
        written <= 3,
        "{written} facts about a plan whose waiting has not changed, for 3 ends elsewhere; {:?}",
        world.phases()
    );
}

#[test]
fn a12_a_second_replica_by_hand_does_not_wait_for_ever() {
    let mut world = world(2, 10 * GB);
    apply(&mut world, "web", &json!([claim(Some("db"), "keep", GB, "/db")]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    let made = world.ask("replica.create", &json!({"plan": "web"}));
    world.run();
    settle(&mut world);
    if made.is_ok() {
        let run = world.commanded()[0];
        world.report(run, crashed());
        world.obey();
        settle(&mut world);
        panic!("accepted, though deployments are refused two: {:?} {:?}", live(&world), world.phases());
    }
}

#[test]
fn a13_a_node_that_cannot_be_emptied_slows_nobody_elsewhere() {
    let time = |held: u32| {
        let mut world = world(1, 0);
        world.counted = Counted::AtTheEnd;
        apply(&mut world, "web", &json!([]), &json!({"selectors": {}}));
        put(&mut world, "web", "d1", held);
        world.obey();
        world.must("disruption.schedule", &json!({"node": "node-1", "name": "p", "spec": {"evict": "yes"}}));
        world.must("disruption.approve", &json!({"node": "node-1", "name": "p"}));
        world.run();
        // Elsewhere: a thousand steps of a plan that only wait for a place.
        apply(&mut world, "other", &json!([]), &json!({}));
        world.must("deployment.create", &json!({"plan": "other", "name": "d1", "spec": {"count": 1000}}));
        let begun = Instant::now();
        world.run();
        begun.elapsed().as_micros() / 1000
    };
    let (few, many) = (time(50), time(3000));
    panic!("a step elsewhere: {few} us beside 50 runs on it, {many} us beside 3000");
}

#[test]
fn a0_unused() {
    let _ = (ready(), name::<chancery_events::name::NodeName>("n"), Hope::Retry);
}

#[test]
fn a14_a_move_that_fails_is_not_tried_again_at_once_for_ever() {
    let mut world = world(3, 10 * GB);
    apply(&mut world, "web", &json!([]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    let on = world.fleet.incarnations().sorted().iter().find(|i| i.is_live()).expect("one").node.to_string();
    world.must("disruption.schedule", &json!({"node": on, "name": "p", "spec": {"evict": "yes"}}));
    world.must("disruption.approve", &json!({"node": on, "name": "p"}));
    world.run();
    world.log.clear();
    let mut tried = std::collections::BTreeMap::<String, u32>::new();
    for _ in 0..500 {
        let Some(new) = world.asked().next() else { break };
        let run = world.fleet.incarnations().get(&new).expect("it").clone();
        if run.state == IncarnationState::Creating {
            *tried.entry(run.node.to_string()).or_default() += 1;
            world.report(new, crate::testing::failed(Hope::Never));
        } else {
            world.report(new, Saw::Gone);
        }
    }
    let opened = world.log.iter().filter(|fact| matches!(fact, Fact::OperationOpened(_))).count();
    assert!(
        opened < 10,
        "{opened} moves opened within no time at all, to {tried:?}, {} facts",
        world.log.len()
    );
}

#[test]
fn a15_one_that_cannot_move_does_not_keep_others_of_its_plan() {
    let mut world = world(2, 100 * GB);
    apply(
        &mut world,
        "web",
        &json!([claim(None, "keep", GB, "/data")]),
        &json!({"budget": 1, "restart": "never"}),
    );
    put(&mut world, "web", "d1", 4);
    world.obey();
    let on: Vec<_> = world
        .fleet
        .incarnations()
        .sorted()
        .into_iter()
        .filter(|i| i.is_live() && i.node.as_str() == "node-1")
        .cloned()
        .collect();
    assert_eq!(on.len(), 2);
    // The volume of the first of them is called lost; it runs on.
    let volume = on[0].mounts[0].to_string();
    world.report_volume(
        &volume,
        Saw::Ended { exit: Exit::Failed { reason: "gone".into() }, processes: vec![] },
    );
    world.must("disruption.schedule", &json!({"node": "node-1", "name": "p", "spec": {"evict": "yes"}}));
    world.must("disruption.approve", &json!({"node": "node-1", "name": "p"}));
    world.run();
    world.obey();
    settle(&mut world);
    let left: Vec<_> = world
        .fleet
        .incarnations()
        .sorted()
        .into_iter()
        .filter(|i| i.is_live() && i.node.as_str() == "node-1")
        .map(|i| i.replica.to_string())
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// In place, a volume is not looked at.
#[test]
fn a16_an_update_in_place_wants_the_volume_that_it_says() {
    let mut world = World::new();
    world.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "simulated"}}));
    node(&mut world, 1, 10 * GB);
    let hello = chancery_events::observation::SessionHello {
        runtime: chancery_events::spec::Runtime::Simulated,
        ..crate::testing::hello("local", "ex-1", 1)
    };
    world.see(&hello.into());
    apply(&mut world, "web", &json!([claim(None, "keep", GB, "/data")]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    assert_eq!(world.deployment_of("web", "d1"), "completed");
    apply(&mut world, "web", &json!([claim(None, "keep", 50 * GB, "/data")]), &json!({}));
    put(&mut world, "web", "d2", 1);
    world.obey();
    settle(&mut world);
    assert_ne!(
        world.deployment_of("web", "d2"),
        "completed",
        "50 GB of a node of 10; the volume has {}",
        world.fleet.volumes().sorted()[0].capacity
    );
}

/// The second update of the same plan, with the volume handed to another plan first.
#[test]
fn a17_a_run_that_waits_for_a_volume_has_a_deadline() {
    let mut world = world(2, 100 * GB);
    apply(&mut world, "other", &json!([claim(Some("y"), "keep", GB, "/y")]), &json!({}));
    put(&mut world, "other", "d1", 1);
    world.obey();
    apply(&mut world, "web", &json!([claim(Some("y"), "keep", GB, "/y")]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.must(
        "deployment.create",
        &json!({"plan": "web", "name": "d2", "spec": {"count": 0}, "turn": "supersede"}),
    );
    world.run();
    settle(&mut world);
    assert_eq!(
        (world.deployment_of("web", "d1").as_str(), world.deployment_of("web", "d2").as_str()),
        ("superseded", "completed")
    );
}

/// Volumes of an expunged node whose replicas are gone with it hold the desired inventory of the cluster.
#[test]
fn a18_a_volume_that_could_not_be_destroyed_with_its_cluster_goes() {
    let mut world = world(1, 10 * GB);
    apply(&mut world, "web", &json!([claim(None, "destroy", GB, "/data")]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    world.must("plan.delete", &json!({"name": "web", "cascade": "yes"}));
    world.run();
    let run = world.commanded()[0];
    world.report(run, ended(Exit::Clean));
    // The volume is being destroyed; the node is empty.
    world.must("node.set_state", &json!({"name": "node-1", "state": "evicted"}));
    let deleted = world.ask("cluster.delete", &json!({"name": "local"}));
    assert!(deleted.is_err(), "the order to destroy {:?} has nobody any more to carry it out", names(&world));
}

/// The disk on which `volumes` is mounted (as decision 0018 says to) comes late after a reboot.
#[test]
fn a19_what_was_called_lost_and_is_there_after_all_can_be_used_again() {
    let mut world = world(1, 10 * GB);
    apply(&mut world, "web", &json!([claim(None, "keep", GB, "/data")]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    let volume = names(&world)[0].clone();
    // Of the executor, whose folder has no record of it: plan::step Bury, `take_as_it_is`, Phase::Gone.
    world.report_volume(&volume, Saw::Gone);
    let run = world.commanded()[0];
    world.report(run, crashed());
    // It is mounted, and the executor started again: the record says that it was made, and the data is there.
    world.report_volume(&volume, Saw::Ready { processes: vec![] });
    settle(&mut world);
    assert_eq!(
        live(&world),
        ["running"],
        "{:?}; all that can be done is to destroy it",
        world.fleet.volumes().sorted()[0].state
    );
}

/// An approver saw a place that breaks nothing.
#[test]
fn a20_an_approval_is_not_of_a_place_that_came_to_break_an_affinity() {
    let mut world = world(1, 10 * GB);
    let affinity = json!([{"group": "g", "nodes": "apart", "otherwise": "allow"}]);
    let manual = json!({"create": "manual", "update": "manual", "relocate": "manual", "restart": "manual", "start": "manual", "stop": "manual", "delete": "manual"});
    apply(&mut world, "web", &json!([]), &json!({"affinity": affinity, "approval": manual}));
    put(&mut world, "web", "d1", 1);
    let shown = world.pending()[0].clone();
    // Its place is taken away, another of the group comes there, and it is given the same node again.
    world.must("disruption.schedule", &json!({"node": "node-1", "name": "p", "spec": {"evict": "yes"}}));
    world.must("disruption.approve", &json!({"node": "node-1", "name": "p"}));
    let mut guard = 0;
    while world.fleet.nodes().get("node-1").expect("it").state.word() == "allocated" && guard < 3 {
        world.run();
        guard += 1;
    }
    world.must("node.set_state", &json!({"name": "node-1", "state": "sanitizing"}));
    world.must("node.set_state", &json!({"name": "node-1", "state": "unallocated"}));
    let auto = json!({"create": "automatic"});
    apply(&mut world, "other", &json!([]), &json!({"affinity": affinity, "approval": auto}));
    world.must("node.set_state", &json!({"name": "node-1", "state": "allocated", "cluster": "local"}));
    world.must("deployment.create", &json!({"plan": "other", "name": "d1", "spec": {"count": 1}}));
    world.run();
    let again = world.fleet.operations().get(&shown.id).expect("it").clone();
    let strained =
        again.incarnation.and_then(|id| world.fleet.incarnations().get(&id)).and_then(|i| i.strained.clone());
    assert!(strained.is_none() || again.hash != shown.hash, "the hash that was shown approves {strained:?}");
}

/// A restart with a volume where its node was taken meanwhile.
#[test]
fn a21_a_stop_then_start_of_a_named_volume_while_another_waits() {
    let mut world = world(2, 100 * GB);
    apply(&mut world, "a", &json!([claim(Some("y"), "keep", GB, "/y")]), &json!({}));
    put(&mut world, "a", "d1", 1);
    world.obey();
    apply(&mut world, "b", &json!([claim(Some("y"), "keep", GB, "/y")]), &json!({}));
    put(&mut world, "b", "d1", 1);
    let a = world
        .fleet
        .replicas()
        .sorted()
        .into_iter()
        .find(|r| r.plan.as_str() == "a")
        .expect("a")
        .name
        .to_string();
    // A restart of the one that has it: the other waits.
    world.must("replica.restart", &json!({"name": a}));
    world.run();
    world.obey();
    settle(&mut world);
    let running: Vec<_> = world
        .fleet
        .incarnations()
        .sorted()
        .into_iter()
        .filter(|i| i.state == IncarnationState::Running)
        .map(|i| i.plan.to_string())
        .collect();
    let phases = world.phases();
    assert_eq!(running, ["a"], "{phases:?}");
}

#[test]
fn a22_what_a_deployment_took_back_leaves_no_storage_held() {
    let mut world = world(1, 10 * GB);
    let graceful = json!({"graceful": {"timeout": 100_000, "on_timeout": "rollback"}});
    apply(&mut world, "web", &json!([claim(None, "keep", GB, "/data")]), &json!({}));
    put(&mut world, "web", "d0", 1);
    world.obey();
    for number in 1..=9 {
        let payload = json!({"name": "app", "resources": {"cpu": 100, "memory": 1 << 20}, "run": {"argv": ["app", number.to_string()]}, "volumes": [claim(None, "keep", GB, "/data")]});
        apply_raw(&mut world, "web", &json!({"payloads": [payload]}));
        let spec = json!({"count": 1, "strategy": graceful});
        world.must("deployment.create", &json!({"plan": "web", "name": format!("d{number}"), "spec": spec}));
        world.run();
        // Its volume is made, and then the program is not there.
        for _ in 0..20 {
            let Some((_, object)) = world.fleet.index().outstanding.first().copied() else { break };
            match object {
                chancery_events::id::ObjectId::Volume(_) => {
                    world.obey_one();
                }
                chancery_events::id::ObjectId::Incarnation(id) => {
                    let creating = world
                        .fleet
                        .incarnations()
                        .get(&id)
                        .is_some_and(|i| i.state == IncarnationState::Creating);
                    world.report(id, if creating { crate::testing::failed(Hope::Never) } else { Saw::Gone });
                }
            }
        }
        world.run();
    }
    assert_eq!(names(&world).len(), 1, "one replica ran, ever");
}

#[test]
fn a23_a_move_that_finds_no_place_keeps_no_version_from_coming_out() {
    let mut world = world(1, 10 * GB);
    let payload = |cpu: u64| json!([{"name": "app", "resources": {"cpu": cpu, "memory": 1 << 20}, "run": {"argv": ["app"]}}]);
    apply_raw(&mut world, "web", &json!({"payloads": payload(390_000)}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    // A small node: only the next version fits there.
    let spec = json!({"domain": "d9", "total": {"cpu": 1000, "memory": GB, "disk": 0}});
    world.must("node.apply", &json!({"name": "small", "cluster": "local", "spec": spec}));
    world.must("disruption.schedule", &json!({"node": "node-1", "name": "p", "spec": {"evict": "yes"}}));
    world.must("disruption.approve", &json!({"node": "node-1", "name": "p"}));
    world.run();
    apply_raw(&mut world, "web", &json!({"payloads": payload(100)}));
    put(&mut world, "web", "d2", 1);
    world.obey();
    settle(&mut world);
    assert_eq!(world.deployment_of("web", "d2"), "completed", "open: {:?}", world.kinds());
}

#[test]
fn a24_a_start_of_the_old_version_that_finds_no_place_keeps_no_version_from_coming_out() {
    for what in ["label", "volume"] {
        let mut world = world(1, 10 * GB);
        let labelled = |zone: &str| {
            json!({"name": "node-1", "cluster": "local", "spec": {
            "domain": "d1", "labels": {"rack": zone}, "total": {"cpu": 400_000, "memory": 800 * GB, "disk": 0},
            "storage": [{"class": "fast", "capacity": 10 * GB}]}})
        };
        world.must("node.apply", &labelled("a"));
        let (volumes, more) = if what == "label" {
            (json!([]), json!({"selectors": {"rack": "a"}}))
        } else {
            (json!([claim(None, "keep", GB, "/data")]), json!({}))
        };
        apply(&mut world, "web", &volumes, &more);
        put(&mut world, "web", "d1", 1);
        world.obey();
        if what == "label" {
            world.must("node.apply", &labelled("b"));
        } else {
            let volume = names(&world)[0].clone();
            world.report_volume(&volume, Saw::Gone);
        }
        let run = world.commanded()[0];
        world.report(run, crashed());
        // The version that mends it: any rack, or no volume.
        let payload = json!([{"name": "app", "resources": {"cpu": 100, "memory": 1 << 20}, "run": {"argv": ["app", "2"]}}]);
        apply_raw(&mut world, "web", &json!({"payloads": payload}));
        put(&mut world, "web", "d2", 1);
        world.obey();
        settle(&mut world);
        assert_eq!(
            (world.deployment_of("web", "d2").as_str(), live(&world)),
            ("completed", vec!["running"]),
            "{what}: open: {:?}",
            world.kinds()
        );
    }
}

#[test]
fn a25_a_volume_of_five_terabytes_can_be_claimed() {
    let mut world = world(1, 10_000 * GB);
    apply(&mut world, "web", &json!([claim(None, "keep", 5_000_000_000_000, "/data")]), &json!({}));
}

#[test]
fn a26_a_mount_is_plain_text_of_a_path() {
    let mut world = world(1, 10 * GB);
    for mount in ["/../../etc", "/a/../b", "/a\u{1b}[2J", "/a\0b", "/a\nb"] {
        let payload = json!({"name": "app", "resources": {"cpu": 100, "memory": 1 << 20}, "run": {"argv": ["app"]}, "volumes": [claim(None, "keep", GB, mount)]});
        let spec = json!({"namespace": "ns", "service": "web", "payloads": [payload]});
        let asked = world.ask("plan.apply", &json!({"name": "web", "spec": spec}));
        assert!(asked.is_err(), "{mount:?} is accepted");
    }
}

#[test]
fn a27_what_ends_beside_a_place_that_waits_for_approval_is_started_again() {
    for (kind, volumes) in [
        ("relocate", json!([])),
        ("relocate", json!([claim(None, "keep", GB, "/data")])),
        ("restart", json!([])),
    ] {
        let mut world = world(2, 10 * GB);
        let mut approval = json!({"create": "automatic", "update": "automatic", "relocate": "automatic", "restart": "automatic",
            "start": "automatic", "stop": "automatic", "delete": "automatic"});
        approval[kind] = "manual".into();
        apply(&mut world, "web", &volumes, &json!({"approval": approval}));
        put(&mut world, "web", "d1", 1);
        world.obey();
        world.must(&format!("replica.{kind}"), &json!({"name": only_replica(&world)}));
        world.run();
        assert_eq!(world.pending().len(), 1);
        let run = world.commanded()[0];
        world.report(run, crashed());
        settle(&mut world);
        assert_eq!(
            live(&world),
            ["running"],
            "{kind} volumes {volumes}: restart: always; {:?}",
            world.phases()
        );
    }
}

#[test]
fn a28_an_edit_that_was_not_deployed_changes_nothing_of_what_runs() {
    let mut world = world(2, 10 * GB);
    apply(&mut world, "web", &json!([]), &json!({}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    apply(&mut world, "web", &json!([]), &json!({"restart": "never"}));
    let run = world.commanded()[0];
    world.report(run, crashed());
    settle(&mut world);
    assert_eq!(live(&world), ["running"], "what runs is of the generation that says always");
}

#[test]
fn a29_a_start_that_somebody_asks_for_and_another_rejects_leaves_the_rule_as_it_was() {
    for how in ["person", "deployment"] {
        let mut world = world(2, 10 * GB);
        let approval = json!({"create": "automatic", "update": "automatic", "relocate": "automatic", "restart": "automatic",
            "start": "manual", "stop": "automatic", "delete": "automatic"});
        apply(&mut world, "web", &json!([]), &json!({"approval": approval, "cooldown": 60_000}));
        put(&mut world, "web", "d1", 1);
        world.obey();
        for _ in 0..2 {
            let run = world.commanded()[0];
            world.report(run, crashed());
            world.obey();
        }
        let replica = world.fleet.replicas().sorted()[0].clone();
        assert!(replica.again.is_some(), "it cools down");
        if how == "person" {
            world.must("replica.start", &json!({"name": replica.name}));
            world.run();
        } else {
            world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": {"count": 1, "coordinates": {"app": {"v": "2"}}}}));
            world.run();
        }
        let pending = world.pending()[0].id;
        world.reject(pending).expect("rejected");
        settle(&mut world);
        assert_eq!(
            live(&world),
            ["running"],
            "{how}: its rule had promised to start it; {:?}",
            world.phases()
        );
    }
}

#[test]
fn a30_a_budget_is_kept_also_where_moves_fail() {
    // A replica that is down by a failed move counts for nobody.
    let mut world = world(3, 10 * GB);
    apply(
        &mut world,
        "web",
        &json!([claim(None, "keep", GB, "/data")]),
        &json!({"budget": 1, "cooldown": 3_600_000}),
    );
    put(&mut world, "web", "d1", 6);
    world.obey();
    world.must("disruption.schedule", &json!({"node": "node-1", "name": "p", "spec": {"evict": "yes"}}));
    world.must("disruption.approve", &json!({"node": "node-1", "name": "p"}));
    world.run();
    let mut least = 6;
    for _ in 0..60 {
        let Some((_, object)) = world.fleet.index().outstanding.first().copied() else { break };
        let chancery_events::id::ObjectId::Incarnation(id) = object else {
            world.obey_one();
            continue;
        };
        let creating =
            world.fleet.incarnations().get(&id).is_some_and(|i| i.state == IncarnationState::Creating);
        world.report(id, if creating { crate::testing::failed(Hope::Never) } else { ended(Exit::Clean) });
        least = least.min(live(&world).iter().filter(|state| **state == "running").count());
    }
    assert!(
        least >= 5,
        "the budget is one, and {least} of 6 ran: each move stops one and fails, and the next is moved; {:?}",
        world.phases()
    );
}

#[test]
fn a31_four_eyes_are_two_also_where_a_disruption_asks() {
    let mut world = world(2, 10 * GB);
    let manual = json!({"create": "automatic", "update": "manual", "relocate": "manual", "restart": "manual",
        "start": "manual", "stop": "manual", "delete": "manual"});
    apply(&mut world, "web", &json!([claim(None, "destroy", GB, "/data")]), &json!({"approval": manual}));
    put(&mut world, "web", "d1", 1);
    world.obey();
    world.must("policy.apply", &json!({"name": "p", "spec": {"rule": {"four_eyes": {}}}}));
    let replica = only_replica(&world);
    world.must("replica.relocate", &json!({"name": replica}));
    world.run();
    let id = world.pending()[0].id;
    assert!(world.approve(id).is_err(), "ann asked for it");
    world.reject(id).expect("rejected");
    // So ann asks otherwise, alone.
    let node = world.fleet.replicas().sorted()[0].active.as_ref().expect("runs").node.to_string();
    world.must("disruption.schedule", &json!({"node": node, "name": "p", "spec": {"evict": "yes"}}));
    let approved = world.ask("disruption.approve", &json!({"node": node, "name": "p"}));
    world.run();
    let moved = live(&world);
    let mut other = world.clone();
    let removed = other.ask("plan.delete", &json!({"name": "web", "cascade": "yes"}));
    other.run();
    other.obey();
    assert!(
        approved.is_err() || moved == ["running"],
        "ann alone: {moved:?}; and with plan.delete {:?}: {:?} volumes {:?}",
        removed.is_ok(),
        live(&other),
        names(&other)
    );
}

/// Time of one deletion beside runs on disturbed nodes.
#[test]
fn a32_scaling_down_beside_disturbed_nodes_costs_no_more() {
    let time = |on_it: u32| {
        let mut world = world(3, 0);
        world.counted = Counted::AtTheEnd;
        apply(
            &mut world,
            "other",
            &json!([]),
            &json!({"payloads": [{"name": "app", "resources": {"cpu": 10, "memory": 1 << 10}, "run": {"argv": ["app"]}}]}),
        );
        put(&mut world, "other", "d1", on_it);
        world.obey();
        for n in 1..=2 {
            world.must(
                "disruption.schedule",
                &json!({"node": format!("node-{n}"), "name": "p", "spec": {"evict": "no"}}),
            );
            world.must("disruption.approve", &json!({"node": format!("node-{n}"), "name": "p"}));
        }
        apply(
            &mut world,
            "web",
            &json!([]),
            &json!({"payloads": [{"name": "app", "resources": {"cpu": 10, "memory": 1 << 10}, "run": {"argv": ["app"]}}]}),
        );
        put(&mut world, "web", "d1", 500);
        world.obey();
        world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": {"count": 0}}));
        let begun = Instant::now();
        world.run();
        begun.elapsed().as_micros() / 500
    };
    let (few, many) = (time(20), time(4000));
    panic!("a deletion: {few} us beside 20 runs of another plan, {many} us beside 4000");
}

#[test]
fn a33_a_new_version_of_a_plan_with_own_volumes_keeps_its_data() {
    for strategy in
        [json!({"graceful": {"timeout": 100_000, "on_timeout": "rollback"}}), json!({"rolling": {}})]
    {
        let mut world = world(2, 10 * GB);
        apply(&mut world, "web", &json!([claim(None, "destroy", GB, "/data")]), &json!({}));
        put(&mut world, "web", "d1", 1);
        world.obey();
        let before = world.fleet.volumes().sorted()[0].id;
        let spec = json!({"count": 1, "strategy": strategy, "coordinates": {"app": {"v": "2"}}});
        let asked = world.ask("deployment.create", &json!({"plan": "web", "name": "d2", "spec": spec}));
        world.run();
        world.obey();
        let now: Vec<_> = world.fleet.volumes().sorted().iter().map(|v| v.id).collect();
        assert!(
            asked.is_err() || now.contains(&before),
            "{strategy}: {}: what was in it is destroyed, the new set begins empty",
            world.deployment_of("web", "d2")
        );
    }
}
