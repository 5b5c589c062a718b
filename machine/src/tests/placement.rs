//! Placement: nodes that replicas get, reasons against other nodes, and automatic placement once there is
//! capacity.

use std::sync::Arc;

use chancery_events::fact::Fact;
use chancery_events::name::{NodeName, PlanName};
use chancery_events::spec::{ImmediateFields, PlacementPolicy, PlanSpec, PlanVersion};
use serde_json::{Value, json};

use crate::scheduler::{
    AffinityFilter, PlacementCache, PlacementConstraints, PlacementRequest, unschedulable_reason,
};
use crate::state::{Node, Replica};
use crate::testing::{CountInterval, TestFleet, name};

/// Four nodes with GPUs of score 10, 20, 30, 40, the first with fast storage, zones and labels.
fn world() -> TestFleet {
    let mut world = TestFleet::new();
    world.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "process"}}));
    world.must("cluster.apply", &json!({"name": "far", "spec": {"runtime": "process"}}));
    for i in 1..=4u64 {
        world.must(
            "capability.apply",
            &json!({"name": format!("gpu-{}", i * 10), "spec": {"type": "GPU", "score": i * 10}}),
        );
    }
    world.must("capability.apply", &json!({"name": "xeon", "spec": {"type": "CPU", "score": 1}}));
    for i in 1..=4u64 {
        let mut capabilities = vec![format!("gpu-{}", i * 10)];
        if i <= 2 {
            capabilities.push("xeon".into());
        }
        let spec = json!({
            "domain": format!("d{}", i % 2), "zone": format!("z{}", i % 2), "labels": {"rack": format!("r{i}")},
            "resources": {"cpu": 1000 * i, "memory": 1 << 30, "disk": 100}, "capabilities": capabilities,
            "storage": if i == 1 { json!([{"class": "fast", "capacity": 100}]) } else { json!([]) },
        });
        let cluster = if i == 4 { "far" } else { "local" };
        world.must("node.apply", &json!({"name": format!("node-{i}"), "spec": spec, "cluster": cluster}));
    }
    world
}

fn plan(extra: &Value) -> Value {
    let mut spec = json!({
        "namespace": "ns", "service": "web",
        "payloads": [{"name": "app", "resources": {"cpu": 500, "memory": 1}, "run": {"argv": ["app"]}}],
    });
    for (key, value) in extra.as_object().expect("an object") {
        spec[key] = value.clone();
    }
    json!({"name": "web", "spec": spec})
}

fn placed(world: &TestFleet) -> Vec<String> {
    let mut nodes: Vec<_> = world
        .fleet
        .incarnations()
        .sorted()
        .into_iter()
        .filter(|i| i.is_live())
        .map(|i| i.node.to_string())
        .collect();
    nodes.sort();
    nodes
}

#[test]
fn each_filter_and_comparator_picks_the_right_nodes_and_reports_why_not_the_others() {
    let gpu = |comparator: &str, names: &[&str]| json!({"matchers": [{"type": "GPU", "comparator": comparator, "names": names}]});
    let volume = json!({"payloads": [{"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": {"argv": ["app"]}, "volumes": [{"class": "fast", "capacity": 60, "mount": "/d"}]}]});
    let big = |cpu: u64, memory: u64, disk: u64| json!({"payloads": [{"name": "app", "resources": {"cpu": cpu, "memory": memory, "disk": disk}, "run": {"argv": ["app"]}}]});
    let cases = [
        (json!({}), vec![1, 2, 3, 4], "nothing asked"),
        (json!({"cluster": "far"}), vec![4], "not in cluster far"),
        (json!({"zone": "z1"}), vec![1, 3], "not in zone z1"),
        (json!({"zones": ["z1", "z9"]}), vec![1, 3], "not in zone z1 or z9"),
        (json!({"zone": "z0", "zones": ["z1"]}), vec![1, 2, 3, 4], "either zone"),
        (json!({"selectors": {"rack": "r2"}}), vec![2], "no label rack=r2"),
        (gpu("in", &["gpu-10", "gpu-30"]), vec![1, 3], "no capability GPU in gpu-10, gpu-30"),
        (gpu("not_in", &["gpu-10", "gpu-30"]), vec![2, 4], "no capability GPU not_in gpu-10, gpu-30"),
        (gpu("eq", &["gpu-20"]), vec![2], "no capability GPU eq gpu-20"),
        (gpu("eq", &["gpu-20", "gpu-30"]), vec![], "no capability GPU eq gpu-20, gpu-30"),
        (gpu("gte", &["gpu-30"]), vec![3, 4], "no capability GPU gte gpu-30"),
        (gpu("gte", &["gpu-20", "gpu-30"]), vec![3, 4], "no capability GPU gte gpu-20, gpu-30"),
        (gpu("lte", &["gpu-20"]), vec![1, 2], "no capability GPU lte gpu-20"),
        (gpu("gte", &["gpu-99"]), vec![], "no capability GPU gte gpu-99 (no active GPU is called gpu-99)"),
        (gpu("in", &["xeon"]), vec![], "no capability GPU in xeon (no active GPU is called xeon)"),
        (volume, vec![1], "too little storage of class fast"),
        (big(2500, 1, 0), vec![3, 4], "too little cpu"),
        (big(1, 2 << 30, 0), vec![], "too little memory"),
        (big(1, 1, 101), vec![], "too little disk"),
    ];
    for (extra, nodes, reason) in cases {
        let mut world = world();
        world.must("plan.apply", &plan(&extra));
        world.deploy("d", 4);
        let expected: Vec<_> = nodes.iter().map(|i| format!("node-{i}")).collect();
        assert_eq!(placed(&world), expected, "{extra}");
        let unschedulable = &world.fleet.plans().get("web").expect("the plan").unschedulable;
        if nodes.len() < 4 {
            let found = unschedulable
                .iter()
                .find(|unfit| unfit.reason == reason)
                .unwrap_or_else(|| panic!("{reason} in {unschedulable:?}"));
            assert_eq!(found.count as usize, 4 - nodes.len(), "{reason}");
        }
        let taken = unschedulable
            .iter()
            .find(|unfit| unfit.reason.starts_with("the node already has a replica"))
            .map_or(0, |u| u.count);
        assert_eq!(taken as usize, if nodes.len() < 4 { nodes.len() } else { 0 }, "{extra}");
    }
}

#[test]
fn an_inactive_capability_does_not_match() {
    let mut world = world();
    world.must("capability.set_activity", &json!({"name": "gpu-40", "activity": "inactive"}));
    world.must(
        "plan.apply",
        &plan(&json!({"matchers": [{"type": "GPU", "comparator": "gte", "names": ["gpu-30"]}]})),
    );
    world.deploy("d", 2);
    assert_eq!(placed(&world), ["node-3"]);
}

#[test]
fn storage_of_a_class_is_counted_over_replicas() {
    let mut world = world();
    let claim = json!({"payloads": [{"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": {"argv": ["app"]}, "volumes": [{"class": "fast", "capacity": 60, "mount": "/d"}]}], "sharing": "allowed"});
    world.must("plan.apply", &plan(&claim));
    world.deploy("d", 2);
    assert_eq!(placed(&world), ["node-1"], "the second does not fit next to the first");
}

#[test]
fn replicas_are_spread_over_domains_then_over_nodes_and_then_placed_where_the_least_is_left() {
    let mut world = TestFleet::with_nodes(0);
    for (i, domain) in ["a", "a", "b", "b", "c", "c"].iter().enumerate() {
        world.add_node(&format!("node-{i}"), domain);
    }
    world.plan("manual");
    world.deploy("d", 6);
    let mut domains: Vec<_> =
        world.fleet.replicas().sorted().iter().map(|r| r.active.clone().expect("placed").domain).collect();
    domains.sort();
    assert_eq!(domains.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a", "a", "b", "b", "c", "c"]);

    let cases = [
        (vec!["node-1"], "the smaller of the two"),
        (vec!["node-1", "node-3"], "one of the plan is on the smaller one already"),
        (vec!["node-1", "node-1", "node-3"], "they have as many"),
    ];
    for (nodes, why) in cases {
        let mut world = self::world();
        let domain = json!({"sharing": "allowed", "zone": "z1", "cluster": "local"});
        world.must("plan.apply", &plan(&domain));
        world.deploy("d", u32::try_from(nodes.len()).expect("few"));
        assert_eq!(placed(&world), nodes, "{why}");
    }

    let mut world = self::world();
    let packed = json!({"sharing": "allowed", "placement": "pack", "cluster": "local"});
    world.must("plan.apply", &plan(&packed));
    world.deploy("d", 3);
    assert_eq!(placed(&world), ["node-1", "node-1", "node-2"], "the smallest as long as it has enough");
}

#[test]
fn a_placement_that_waits_continues_automatically_when_there_is_capacity() {
    let mut world = TestFleet::with_nodes(2);
    world.plan("automatic");
    world.deploy("d", 3);
    world.obey();
    assert_eq!(world.phases(), ["pending", "running", "running"]);
    assert!(world.log.iter().any(|fact| matches!(fact, Fact::PlanUnschedulable(_))));
    world.add_node("node-3", "d1");
    world.run();
    world.obey();
    assert_eq!(world.phases(), ["running", "running", "running"]);
    assert_eq!(world.deployment("d"), "completed");
}

#[test]
fn waiting_placements_are_not_tried_again_before_capacity_may_have_grown() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.deploy("d", 3);
    world.fact_types();
    for _ in 0..10 {
        world.run();
    }
    assert!(world.fact_types().is_empty());
}

#[test]
fn after_a_thousand_random_reservations_what_is_free_is_the_rest() {
    let mut world = TestFleet::with_nodes(5);
    world.plan("automatic");
    let mut seed = 7u64;
    for i in 0..60 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        world.deploy(&format!("d{i}"), (seed >> 33) as u32 % 6);
        world.obey();
        let held: u64 =
            world.fleet.incarnations().sorted().iter().filter(|i| i.is_live()).map(|i| i.resources.cpu).sum();
        assert_eq!(world.free_cpu(), 20_000 - held);
    }
    let _: chancery_events::name::PlanName = name("web");
}

#[test]
fn what_waits_by_an_older_generation_does_not_hold_back_a_newer_one() {
    let mut world = TestFleet::with_nodes(1);
    let only_in = |world: &mut TestFleet, cluster: &str| {
        world.plan("automatic");
        let mut spec =
            serde_json::to_value(&**world.fleet.plans().get("web").expect("the plan").specs.newest())
                .expect("JSON");
        spec["cluster"] = json!(cluster);
        world.must("plan.apply", &json!({"name": "web", "spec": spec}));
    };
    only_in(&mut world, "local");
    world.running("d1", 1);
    let (replica, id) = (world.replica(), world.commanded()[0]);
    world.report(id, crate::testing::crashed());
    world.must("node.set_state", &json!({"name": "node-1", "state": "evicted"}));
    world.must("replica.start", &json!({"name": replica}));
    world.run();
    assert_eq!(world.phases(), ["pending"], "its generation wants the cluster that is empty now");
    world.must("cluster.apply", &json!({"name": "far", "spec": {"runtime": "process"}}));
    let total = json!({"cpu": 4000, "memory": 8u64 << 30, "disk": 0});
    world.must(
        "node.apply",
        &json!({"name": "far-1", "cluster": "far", "spec": {"domain": "d", "resources": total}}),
    );
    only_in(&mut world, "far");
    world.deploy("d2", 2);
    assert_eq!(placed(&world), ["far-1"], "the new one has its reservation, though the start still waits");
}

/// Returns the node by the placement rule, found by a full scan; for another incarnation of the replica, if
/// given.
fn by_walk(
    world: &TestFleet,
    plan: &PlanName,
    spec: &Arc<PlanSpec>,
    of: Option<&Replica>,
) -> Option<NodeName> {
    let fleet = &world.fleet;
    let replicas = fleet.replicas().sorted();
    let others = || {
        let others = replicas.iter().filter(|r| r.plan == *plan && of.is_none_or(|of| of.name != r.name));
        others.filter_map(|r| r.remaining())
    };
    let own = of.and_then(Replica::remaining);
    let limits = limits(world, of);
    let fits = fleet.nodes().sorted().into_iter().filter(|node| {
        let (immediate, version) = (ImmediateFields::of(spec), PlanVersion::of(spec));
        let none = chancery_events::spec::PayloadCoordinates::new();
        let need = PlacementRequest { plan, deployment: &name("d"), immediate, version, coordinates: &none };
        unschedulable_reason(fleet, &need, &limits, node, AffinityFilter::All).is_none()
    });
    let free = |node: &Node| {
        let free = fleet.index().places.free(node);
        (free.cpu, free.memory, free.disk, node.name.clone())
    };
    let best = match spec.placement {
        PlacementPolicy::Spread => fits.min_by_key(|node| {
            let domain = node.spec.domain.clone();
            let in_domain = others().filter(|run| run.domain == domain).count();
            let on_node = others().filter(|run| run.node == node.name).count();
            (in_domain, own.is_none_or(|own| own.domain != domain), domain, on_node, free(node))
        }),
        PlacementPolicy::Pack => fits.min_by_key(|node| free(node)),
    };
    best.map(|node| node.name.clone())
}

/// Returns the constraints of another incarnation of a replica.
fn limits<'a>(world: &'a TestFleet, of: Option<&'a Replica>) -> PlacementConstraints<'a> {
    let own = of.and_then(|of| world.fleet.incarnations().get(&of.active.as_ref()?.incarnation));
    PlacementConstraints { own, leaves: of.and_then(Replica::remaining), ..PlacementConstraints::default() }
}

#[test]
fn what_a_search_remembers_changes_no_answer() {
    let mut world = world();
    world.open_session();
    world.counted = CountInterval::AtTheEnd;
    let automatic = json!({"create": "automatic", "delete": "automatic"});
    world
        .must("plan.apply", &plan(&json!({"sharing": "allowed", "approval": automatic, "cluster": "local"})));
    let wanted = json!([{"type": "GPU", "comparator": "gte", "names": ["gpu-20"]}]);
    let other = json!({"name": "never", "spec": {"namespace": "ns", "service": "s", "cluster": "local", "matchers": wanted,
        "payloads": [{"name": "app", "resources": {"cpu": 300, "memory": 2}, "run": {"argv": ["app"]}}],
        "approval": automatic}});
    world.must("plan.apply", &other);
    let mut packed = other;
    (packed["name"], packed["spec"]["placement"]) = (json!("packed"), json!("pack"));
    world.must("plan.apply", &packed);
    let mut search = PlacementCache::default();
    let mut seed = 11u64;
    let mut pick = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % bound
    };
    let (mut found, mut not_found) = (0, 0);
    for round in 0..400 {
        let (n, domain) = (pick(12), format!("d{}", pick(4)));
        match pick(9) {
            0..3 => {
                let (cpu, memory) = (400 + 300 * pick(5), 4 + pick(20));
                let gpus =
                    [json!([]), json!(["gpu-10"]), json!(["gpu-20", "gpu-30"])][pick(3) as usize].clone();
                let spec = json!({"domain": domain, "capabilities": gpus, "resources": {"cpu": cpu, "memory": memory, "disk": 100}});
                let body = json!({"name": format!("n{n}"), "cluster": "local", "spec": spec});
                world.ask("node.apply", &body).ok();
            }
            3..6 => {
                let (plan, count) = (["web", "never", "packed"][pick(3) as usize], pick(9));
                let body = json!({"plan": plan, "name": format!("r{round}"), "spec": {"count": count}});
                world.ask("deployment.create", &body).ok();
            }
            6 => {
                let state = ["evicted", "expunged"][pick(2) as usize];
                world.ask("node.set_state", &json!({"name": format!("n{n}"), "state": state})).ok();
            }
            7 => {
                let activity = ["active", "inactive"][pick(2) as usize];
                let name = ["gpu-10", "gpu-20"][pick(2) as usize];
                world.must("capability.set_activity", &json!({"name": name, "activity": activity}));
            }
            _ => {
                let activity = ["active", "inactive"][pick(2) as usize];
                world.ask("cluster.set_activity", &json!({"name": "local", "activity": activity})).ok();
            }
        }
        world.run();
        world.obey();
        for plan in ["web", "never", "packed"] {
            let plan: PlanName = name(plan);
            let spec = Arc::clone(world.fleet.plans().get(&plan).expect("the plan").specs.newest());
            let (immediate, version) = (ImmediateFields::of(&spec), PlanVersion::of(&spec));
            let none = chancery_events::spec::PayloadCoordinates::new();
            let need = PlacementRequest {
                plan: &plan,
                deployment: &name("d"),
                immediate,
                version,
                coordinates: &none,
            };
            let replicas = world.fleet.replicas().sorted().into_iter().filter(|r| r.plan == plan);
            for of in replicas.map(Some).chain([None]) {
                let place = search.place(&world.fleet, &need, &limits(&world, of));
                let place = place.map(|place| place.node);
                let why = of.map(|of| &of.name);
                assert_eq!(place, by_walk(&world, &plan, &spec, of), "round {round}, plan {plan}, {why:?}");
                if place.is_some() { found += 1 } else { not_found += 1 }
            }
        }
    }
    assert!(found > 100 && not_found > 100, "{found} found, {not_found} not");
}
