//! Clusters, capabilities and plans: apply, activity, deletion and its guards.

use chancery_events::refusal::RefusalCode;
use serde_json::{Value, json};

use crate::testing::TestFleet;

fn plan() -> Value {
    let payload = json!({"name": "app", "resources": {"cpu": 1000, "memory": 1}});
    json!({"name": "web", "spec": {"namespace": "ns", "service": "web", "payloads": [payload]}})
}

#[test]
fn what_is_so_already_is_unchanged_and_never_an_error() {
    let cases = [
        ("cluster.apply", json!({"name": "c", "spec": {"runtime": "process"}})),
        ("cluster.set_activity", json!({"name": "c", "activity": "inactive"})),
        ("capability.apply", json!({"name": "gpu-1", "spec": {"type": "GPU", "score": 10}})),
        ("capability.set_activity", json!({"name": "gpu-1", "activity": "inactive"})),
        ("plan.apply", plan()),
        ("plan.set_activity", json!({"name": "web", "activity": "inactive"})),
    ];
    let mut world = TestFleet::new();
    for (type_name, body) in &cases {
        assert_eq!(world.must(type_name, body).len(), 1, "{type_name}");
        assert!(world.must(type_name, body).is_empty(), "{type_name} again");
    }
}

#[test]
fn what_does_not_exist_cannot_be_changed() {
    let cases = [
        ("cluster.set_activity", json!({"name": "c", "activity": "active"})),
        ("cluster.delete", json!({"name": "c"})),
        ("capability.set_activity", json!({"name": "c", "activity": "active"})),
        ("capability.delete", json!({"name": "c"})),
        ("node.delete", json!({"name": "c"})),
        ("plan.set_activity", json!({"name": "c", "activity": "active"})),
        ("plan.delete", json!({"name": "c"})),
        ("deployment.create", json!({"plan": "c", "name": "d", "spec": {"count": 1}})),
        ("deployment.cancel", json!({"plan": "c", "name": "d"})),
        ("replica.start", json!({"name": "c"})),
        ("replica.stop", json!({"name": "c"})),
        ("replica.delete", json!({"name": "c"})),
    ];
    for (type_name, body) in cases {
        assert_eq!(
            TestFleet::new().ask(type_name, &body).expect_err(type_name).code,
            RefusalCode::NotFound,
            "{type_name}"
        );
    }
}

#[test]
fn what_is_in_use_cannot_be_deleted() {
    let mut world = TestFleet::with_nodes(1);
    world.must("capability.apply", &json!({"name": "gpu-1", "spec": {"type": "GPU", "score": 10}}));
    let total = json!({"cpu": 4000, "memory": 8u64 << 30, "disk": 0});
    world.must(
        "node.apply",
        &json!({"name": "node-1", "spec": {"domain": "d1", "resources": total, "capabilities": ["gpu-1"]}}),
    );
    world.plan("manual");
    world.deploy("d1", 1);
    let cases = [
        ("cluster.delete", "local"),
        ("capability.delete", "gpu-1"),
        ("node.delete", "node-1"),
        ("plan.delete", "web"),
    ];
    for (type_name, what) in cases {
        assert_eq!(
            world.ask(type_name, &json!({"name": what})).expect_err(what).code,
            RefusalCode::InUse,
            "{what}"
        );
    }
    let refusal = world.ask("cluster.apply", &json!({"name": "local", "spec": {"runtime": "simulated"}}));
    assert_eq!(refusal.expect_err("another runtime").code, RefusalCode::InUse);
}

#[test]
fn a_plan_is_refused_with_every_field_that_is_wrong() {
    let edit = |pointer: &str, value: Value| {
        let mut plan = plan();
        *plan["spec"].pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        plan
    };
    let payload = |value: Value| edit("/payloads", json!([value]));
    let small = json!({"cpu": 1, "memory": 1});
    let port = json!({"name": "http", "protocol": "TCP", "port": 80});
    let ports = |name: &str| json!({"name": name, "protocol": "TCP", "port": 80});
    let mounts = |mounts: &[&str]| {
        let claim = |mount: &&str| json!({"class": "s", "capacity": 1, "mount": mount});
        let claims: Vec<_> = mounts.iter().map(claim).collect();
        payload(json!({"name": "a", "resources": small, "volumes": claims}))
    };
    let named = |name: &str, mount: &str| {
        let claim = json!({"volume": "db", "class": "s", "capacity": 1, "mount": mount});
        json!({"name": name, "resources": small, "volumes": [claim]})
    };
    let mut unready = plan();
    unready["spec"]["unready"] = json!({"after": 0, "action": "restart"});
    let many = |i: usize, processes: u16, ports: usize, volumes: usize| {
        let ports: Vec<_> =
            (0..ports).map(|i| json!({"name": format!("p{i}"), "protocol": "TCP", "port": 80})).collect();
        let volumes: Vec<_> =
            (0..volumes).map(|i| json!({"class": "s", "capacity": 1, "mount": format!("/v{i}")})).collect();
        json!({"name": format!("a{i}"), "resources": small, "processes": processes, "ports": ports, "volumes": volumes})
    };
    let cases = [
        (edit("/payloads", json!([])), "/spec/payloads"),
        (
            edit("/payloads", json!([{"name": "a", "resources": small}, {"name": "a", "resources": small}])),
            "/spec/payloads/1/name",
        ),
        (payload(json!({"name": "a", "resources": small, "processes": 0})), "/spec/payloads/0/processes"),
        (payload(json!({"name": "a", "resources": {"cpu": u64::MAX}})), "/spec/payloads/0/resources"),
        (
            payload(json!({"name": "a", "resources": small, "ports": [port, port]})),
            "/spec/payloads/0/ports/1/name",
        ),
        (payload(json!({"name": "a", "resources": small, "run": {"argv": []}})), "/spec/payloads/0/run/argv"),
        (
            payload(json!({"name": "a", "resources": small, "run": {"argv": ["a", "${port.http}"]}})),
            "/spec/payloads/0/run/argv/1",
        ),
        (
            payload(json!({"name": "a", "resources": small, "run": {"argv": ["a", "$x"]}})),
            "/spec/payloads/0/run/argv/1",
        ),
        (
            payload(json!({"name": "a", "resources": small, "ready": {"tcp": {"port": "http"}}})),
            "/spec/payloads/0/ready",
        ),
        (
            payload(json!({"name": "a", "resources": small, "alive": {"tcp": {"port": "http"}}})),
            "/spec/payloads/0/alive",
        ),
        (unready, "/spec/unready/after"),
        (
            payload(json!({"name": "a", "resources": small, "ports": [ports("a-b"), ports("a.b")]})),
            "/spec/payloads/0/ports/1/name",
        ),
        (mounts(&["data"]), "/spec/payloads/0/volumes/0/mount"),
        (mounts(&["/data/../x"]), "/spec/payloads/0/volumes/0/mount"),
        (mounts(&["/data/"]), "/spec/payloads/0/volumes/0/mount"),
        (mounts(&["/a b"]), "/spec/payloads/0/volumes/0/mount"),
        (mounts(&["/a", "/a"]), "/spec/payloads/0/volumes/1/mount"),
        (mounts(&["/a-b", "/A/b"]), "/spec/payloads/0/volumes/1/mount"),
        (edit("/payloads", json!([named("a", "/a"), named("b", "/b")])), "/spec/payloads/1/volumes/0/volume"),
        // A report of all processes must fit a record, and so must a fact with all volumes.
        (edit("/payloads", (0..64).map(|i| many(i, 1024, 0, 0)).collect()), "/spec/payloads"),
        (edit("/payloads", json!([many(0, 1024, 9, 0)])), "/spec/payloads"),
        (edit("/payloads", json!([many(0, 1, 0, 40), many(1, 1, 0, 25)])), "/spec/payloads"),
    ];
    for (body, pointer) in cases {
        let refusal = TestFleet::new().ask("plan.apply", &body).expect_err(pointer);
        assert_eq!(refusal.code, RefusalCode::Invalid, "{pointer}");
        assert!(refusal.errors.contains_key(pointer), "{pointer} in {:?}", refusal.errors);
    }
}

#[test]
fn a_wrong_timing_of_a_probe_is_refused_where_it_is() {
    let port = json!({"name": "http", "protocol": "TCP", "port": 80});
    for (probe, kind, setting, value) in [
        ("ready", "tcp", "initial_delay", 3_600_001_u64),
        ("ready", "http", "period", 99),
        ("alive", "http", "period", 3_600_001),
        ("alive", "tcp", "timeout", 0),
        ("ready", "tcp", "failure_threshold", 0),
        ("ready", "tcp", "success_threshold", 1001),
        ("alive", "tcp", "success_threshold", 2),
    ] {
        let mut check = json!({"port": "http", "timing": {setting: value}});
        if kind == "http" {
            check["path"] = json!("/x");
        }
        let mut plan = plan();
        let resources = json!({"cpu": 1, "memory": 1});
        let payload = json!({"name": "a", "resources": resources, "ports": [port], probe: {kind: check}});
        plan["spec"]["payloads"] = json!([payload]);
        let pointer = format!("/spec/payloads/0/{probe}/{kind}/timing/{setting}");
        assert!(plan.pointer(&pointer).is_some(), "{pointer}");
        let refusal = TestFleet::new().ask("plan.apply", &plan).expect_err(&pointer);
        assert!(refusal.errors.contains_key(pointer.as_str()), "{pointer} in {:?}", refusal.errors);
    }
}

#[test]
fn an_edit_of_a_plan_is_a_new_generation_and_an_inactive_plan_takes_no_deployment() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.plan("manual");
    assert_eq!(world.fleet.plans().get("web").expect("the plan").generation, 2);
    world.must("plan.set_activity", &json!({"name": "web", "activity": "inactive"}));
    let refusal = world.ask("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 1}}));
    assert_eq!(refusal.expect_err("inactive").code, RefusalCode::Inactive);
}

#[test]
fn a_cluster_without_nodes_is_deleted_with_its_session() {
    let mut world = TestFleet::with_nodes(0);
    assert_eq!(world.must("cluster.delete", &json!({"name": "local"})).len(), 2);
    assert!(world.fleet.clusters().is_empty());
    assert!(world.fleet.sessions().sorted().iter().all(|session| session.end.is_some()));
}

#[test]
fn a_virtual_machine_that_cannot_start_is_refused_at_its_field() {
    let spec = |vm: Value, other: Value| {
        let mut payload = json!({"name": "a", "resources": {"cpu": 1, "memory": 112 << 20}, "vm": vm});
        payload.as_object_mut().expect("an object").extend(other.as_object().expect("an object").clone());
        json!({"namespace": "ns", "service": "web", "payloads": [payload]})
    };
    let ports = json!({"ports": [{"name": "http", "protocol": "TCP", "port": 80}]});
    let disks = |all: &[(&str, u64)]| {
        let disk =
            |(mount, capacity): &(&str, u64)| json!({"class": "ssd", "capacity": capacity, "mount": mount});
        json!({"volumes": all.iter().map(disk).collect::<Vec<_>>()})
    };
    let names: Vec<_> = (0..17).map(|number| format!("/disk-{number}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), 512)).collect();
    let cases = [
        (json!({}), json!({}), "vm"),
        (json!({"kernel": "k", "image": "i"}), json!({}), "vm"),
        (json!({"image": "i", "initrd": "r"}), json!({}), "vm/initrd"),
        (json!({"image": "i", "cmdline": "c"}), json!({}), "vm/cmdline"),
        (json!({"kernel": "../k"}), json!({}), "vm/kernel"),
        (json!({"kernel": "/k"}), json!({}), "vm/kernel"),
        (json!({"image": "a,b"}), json!({}), "vm/image"),
        (json!({"kernel": "k", "firmware": ""}), json!({}), "vm/firmware"),
        (json!({"kernel": "k", "cpus": 0}), json!({}), "vm/cpus"),
        (json!({"kernel": "k", "cmdline": "${port.http}"}), ports.clone(), "vm/cmdline"),
        (json!({"kernel": "k", "cmdline": "${"}), json!({}), "vm/cmdline"),
        (json!({"kernel": "k", "network": "none"}), ports.clone(), "ports"),
        (json!({"kernel": "k"}), json!({"processes": 2}), "processes"),
        (json!({"kernel": "k"}), json!({"resources": {"cpu": 1, "memory": 96 << 20}}), "resources/memory"),
        (
            json!({"kernel": "k"}),
            json!({"resources": {"cpu": 1, "memory": (112 << 20) - 1}}),
            "resources/memory",
        ),
        (json!({"kernel": "k"}), disks(&[("/var/data", 512)]), "volumes/0/mount"),
        (json!({"kernel": "k"}), disks(&[("/", 512)]), "volumes/0/mount"),
        (json!({"kernel": "k"}), disks(&[("data", 512)]), "volumes/0/mount"),
        (json!({"kernel": "k"}), disks(&[("/a,b", 512)]), "volumes/0/mount"),
        (json!({"kernel": "k"}), disks(&[("/a12345678901234567890", 512)]), "volumes/0/mount"),
        (json!({"kernel": "k"}), disks(&[("/a", 512), ("/a", 512)]), "volumes/1/mount"),
        (json!({"kernel": "k"}), disks(&[("/a", 512), ("/b", 1000)]), "volumes/1/capacity"),
        (json!({"kernel": "k"}), disks(&[("/a", 0)]), "volumes/0/capacity"),
        (json!({"kernel": "k"}), disks(&many), "volumes"),
    ];
    let mut world = TestFleet::new();
    for (vm, other, field) in cases {
        let body = json!({"name": "web", "spec": spec(vm.clone(), other)});
        let refusal = world.ask("plan.apply", &body).expect_err(field);
        let pointer = format!("/spec/payloads/0/{field}");
        assert!(refusal.errors.contains_key(pointer.as_str()), "{vm}: {pointer} in {:?}", refusal.errors);
    }
    let right = json!({"kernel": "linux/vmlinuz", "initrd": "linux/initrd", "cmdline": "replica=${replica}"});
    world.must("plan.apply", &json!({"name": "web", "spec": spec(right.clone(), ports)}));
    let longest = disks(&[("/a1234567890123456789", 1 << 30), ("/b", 512)]);
    world.must("plan.apply", &json!({"name": "db", "spec": spec(right.clone(), longest)}));
    world.must("plan.apply", &json!({"name": "most", "spec": spec(right, disks(&many[..16]))}));
}
