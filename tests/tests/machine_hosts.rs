//! Hosts of virtual machines: who may report about a machine, what an expunged host had, and placement by groups. With the real
//! QEMU; the needs are A14, A17 and B3 of [`docs/checks.md`](../../docs/checks.md).

use chancery_tests::{ExecutorProcess, ServerProcess, TestClient, payloads, until};
use serde_json::{Value, json};

use crate::machine_disks::TestPermit;
use crate::virtual_machines::{deploy_with, ends, machines, machines_with, qemu, running};

/// Creates these nodes, each in a domain of its own.
fn add_nodes(client: &TestClient, names: &[&str]) {
    for name in names {
        let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
        let spec = json!({"domain": name, "resources": total});
        client.must("node.apply", &json!({"name": name, "cluster": "machines", "spec": spec}));
    }
}

fn processes(server: &ServerProcess) -> usize {
    payloads(server.data()).len()
}

#[test]
fn an_executor_that_does_not_host_a_machine_reports_nothing_about_it() {
    let _permit = TestPermit::take();
    let server = machines_with(|server| server.set("CHANCERY_EMBEDDED_EXECUTORS", "none"));
    let client = server.client();
    let images = server.directory().join("images").display().to_string();
    let settings = [("CHANCERY_QEMU_IMAGES", images)];
    let executor = || ExecutorProcess::start_machines(&server, "e1", "machines", &settings);
    let mut host = executor();
    deploy_with(&client, "web", "", "always");
    let (_, incarnation) = running(&client, "web");
    let before = host.payloads();
    assert_eq!(before.len(), 1);
    assert_eq!(host.stop(), Some(0));
    // The same name and cluster, with a directory that has no machine: it must not report that the machine is gone.
    let stranger = executor();
    let refusal = "start the executor on that store, or expunge node";
    until("it is refused", || stranger.log().contains(refusal).then_some(()));
    assert_eq!(running(&client, "web").1, incarnation);
    drop(stranger);
    host.start_again();
    until("the host is connected", || {
        let sessions = client.items("sessions?state=open");
        (sessions.len() == 1).then_some(())
    });
    assert_eq!((running(&client, "web").1, host.payloads()), (incarnation, before));
}

#[test]
fn machines_of_an_expunged_host_have_failed_and_run_elsewhere() {
    let _permit = TestPermit::take();
    let server = machines();
    let client = server.client();
    deploy_with(&client, "web", "", "on_failure");
    let (name, first) = running(&client, "web");
    add_nodes(&client, &["node-2"]);
    let remaining = |node: &str| client.read(&format!("nodes/{node}"))["remaining"]["memory"].clone();
    assert_eq!(remaining("node-1"), (16u64 << 30) - (112 << 20));
    server.cli(&["expunge", "node-1", "--yes"]);
    assert_eq!(ends(&client, &first, "failed"), "node node-1 was expunged");
    let next = until("it runs elsewhere", || {
        let row = client.read(&format!("replicas/{name}"));
        (row["phase"] == "running" && row["node"] == "node-2").then(|| row["incarnation"].clone())
    });
    assert_eq!(remaining("node-2"), (16u64 << 30) - (112 << 20));
    // The host is there after all: its executor removes the machine that has failed.
    until("one machine is left", || (processes(&server) == 1).then_some(()));
    assert!(qemu(&server, next.as_str().expect("an id")).is_some());
}

#[test]
fn a_group_of_four_on_three_hosts_fails_or_is_reported_as_its_policy_requires() {
    let _permit = TestPermit::take();
    let server = machines();
    let client = server.client();
    add_nodes(&client, &["node-2", "node-3"]);
    let group = |policy: &str| {
        let automatic = json!({"create": "automatic", "delete": "automatic"});
        let payload = json!({
            "name": "app", "resources": {"cpu": 100, "memory": 112 << 20}, "vm": {"kernel": "guest"},
        });
        let spec = json!({
            "namespace": "tests", "service": policy, "payloads": [payload], "approval": automatic,
            "sharing": "allowed", "affinity": [{"group": policy, "kind": "anti_affinity", "policy": policy}],
        });
        client.must("plan.apply", &json!({"name": policy, "spec": spec}));
        client.must("deployment.create", &json!({"plan": policy, "name": "d1", "spec": {"count": 4}}));
    };
    let hosts = |plan: &str, count| {
        let rows = client.wait_for(plan, "running", count);
        rows.iter().map(|row| row["node"].as_str().expect("a node").to_owned()).collect::<Vec<_>>()
    };
    group("fail");
    let mut used = hosts("fail", 3);
    used.sort();
    assert_eq!(used, ["node-1", "node-2", "node-3"]);
    until("the reason is shown", || {
        client.read("plans/fail")["unschedulable"].to_string().contains("group fail").then_some(())
    });
    assert_eq!(processes(&server), 3);
    client.must("plan.delete", &json!({"name": "fail", "cascade": "yes"}));
    until("nothing is left", || (processes(&server) == 0).then_some(()));
    group("allow");
    hosts("allow", 4);
    let violated = |row: &Value| row["affinity_violated"].as_str().map(str::to_owned);
    let violations: Vec<_> = client.items("incarnations?plan=allow").iter().filter_map(violated).collect();
    assert_eq!(violations, ["one of group allow is there"]);
}
