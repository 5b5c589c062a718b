//! Guests of the real QEMU, driven by the real program.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use chancery_tests::qemu::build_guest;
use chancery_tests::{ServerProcess, TestClient, payloads, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// Returns a server whose cluster `machines` runs virtual machines on one node.
pub(crate) fn machines() -> ServerProcess {
    machines_with(|_| {})
}

/// The same, with further settings.
pub(crate) fn machines_with(set: impl FnOnce(&mut ServerProcess)) -> ServerProcess {
    let mut server = ServerProcess::new();
    set(&mut server);
    let images = server.directory().join("images");
    std::fs::create_dir(&images).expect("a directory");
    build_guest(&images);
    server.set("CHANCERY_QEMU_IMAGES", &images.display().to_string());
    server.start_again();
    let client = server.client();
    client.must("cluster.apply", &json!({"name": "machines", "spec": {"runtime": "qemu"}}));
    let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
    let spec = json!({"domain": "a", "resources": total});
    client.must("node.apply", &json!({"name": "node-1", "cluster": "machines", "spec": spec}));
    server
}

/// Deploys one replica of a plan whose guest gets this command line.
pub(crate) fn deploy(client: &TestClient, plan: &str, cmdline: &str) {
    deploy_with(client, plan, cmdline, "never");
}

/// Deploys one replica of a plan with this rule for restarts.
pub(crate) fn deploy_with(client: &TestClient, plan: &str, cmdline: &str, restart: &str) {
    let automatic = json!({
        "create": "automatic", "update": "automatic", "relocate": "automatic", "restart": "automatic",
        "start": "automatic", "stop": "automatic", "delete": "automatic", "reboot": "automatic",
    });
    let payload = json!({
        "name": "app", "resources": {"cpu": 100, "memory": 112 << 20},
        "vm": {"kernel": "guest", "cmdline": cmdline},
    });
    let spec = json!({
        "namespace": "tests", "service": plan, "payloads": [payload], "approval": automatic, "sharing": "allowed",
        "restart": restart, "restart_delay": 100, "timeouts": {"stop": 1500},
    });
    client.must("plan.apply", &json!({"name": plan, "spec": spec}));
    client.must("deployment.create", &json!({"plan": plan, "name": "d1", "spec": {"count": 1}}));
}

/// Returns the only replica of the plan and its incarnation, once the guest runs.
pub(crate) fn running(client: &TestClient, plan: &str) -> (String, String) {
    let row = client.wait_for(plan, "running", 1)[0].clone();
    let text = |field: &str| row[field].as_str().expect("a replica that runs").to_owned();
    (text("name"), text("incarnation"))
}

/// Waits until the incarnation is in the state, and returns its message.
pub(crate) fn ends(client: &TestClient, incarnation: &str, state: &str) -> String {
    let row = until(&format!("{incarnation} is {state}"), || {
        Some(client.read(&format!("incarnations/{incarnation}"))).filter(|row| row["state"] == state)
    });
    row["message"].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn qemu(server: &ServerProcess, incarnation: &str) -> Option<Pid> {
    let all = payloads(server.data());
    let process = all.into_iter().find(|process| process.incarnation == incarnation)?;
    Pid::from_raw(i32::try_from(process.pid).ok()?)
}

fn output(server: &ServerProcess, replica: &str) -> String {
    String::from_utf8(server.run(&["logs", replica, "--stdout"]).stdout).expect("text")
}

fn resets(client: &TestClient, incarnation: &str) -> u64 {
    let row = client.read(&format!("incarnations/{incarnation}"));
    row["processes"][0]["resets"].as_u64().expect("a number")
}

#[test]
fn a_guest_that_powered_itself_off_stays_off_until_its_start_is_requested() {
    let mut server = machines();
    for (plan, rule) in [("always", "always"), ("on-failure", "on_failure"), ("never", "never")] {
        let client = server.client();
        deploy_with(&client, plan, "do=o after=5", rule);
        let (replica, incarnation) = running(&client, plan);
        ends(&client, &incarnation, "powered_off");
        server.kill();
        server.start_again();
        let client = server.client();
        let spec = json!({"count": 1, "coordinates": {"app": {"version": "2"}}});
        client.must("deployment.create", &json!({"plan": plan, "name": "d2", "spec": spec}));
        until("the deployment has completed", || {
            let rows = client.items(&format!("deployments?plan={plan}"));
            rows.iter().any(|row| row["name"] == "d2" && row["state"] == "completed").then_some(())
        });
        // A drain moves it without a start.
        server.cli(&["drain", "node-1", "--wait"]);
        server.cli(&["undrain", "node-1"]);
        let row = client.read(&format!("replicas/{replica}"));
        assert_eq!((&row["desired"], &row["phase"]), (&json!("guest_shutdown"), &json!("stopped")), "{row}");
        assert_eq!(client.items(&format!("incarnations?plan={plan}")).len(), 1, "{plan}");
        client.must("replica.start", &json!({"name": replica}));
        let (_, next) = running(&client, plan);
        assert_ne!(next, incarnation);
        client.must("plan.delete", &json!({"name": plan, "cascade": "yes"}));
    }
}

#[test]
fn a_reboot_resets_the_guest_once_in_its_incarnation() {
    for is_supervised in [true, false] {
        let mut server = machines();
        deploy(&server.client(), "web", "");
        let (replica, incarnation) = running(&server.client(), "web");
        if !is_supervised {
            let supervisor = parent_of(qemu(&server, &incarnation).expect("it runs"));
            server.kill();
            kill_process(supervisor, Signal::KILL).expect("a signal");
            server.start_again();
            running(&server.client(), "web");
        }
        let process = qemu(&server, &incarnation).expect("it runs");
        // A reset of a guest that is still in its firmware leaves no trace in the output.
        until("the guest has started", || output(&server, &replica).contains("READY").then_some(()));
        assert_eq!(server.cli(&["reboot", &replica]), format!("replica/{replica} reboot requested\n"));
        let client = server.client();
        until("the reboot has succeeded", || {
            let rows = client.items(&format!("operations?replica={replica}"));
            rows.iter().any(|row| row["kind"] == "reboot" && row["state"] == "succeeded").then_some(())
        });
        let before = resets(&client, &incarnation);
        assert!(before >= 1);
        until(&format!("the guest has started twice; supervised: {is_supervised}"), || {
            let text = output(&server, &replica);
            (text.matches("READY").count() == 2).then_some(())
        });
        // An executor that takes over does not reset the guest again.
        server.kill();
        server.start_again();
        let client = server.client();
        assert_eq!(running(&client, "web").1, incarnation);
        client.must("replica.reboot", &json!({"name": replica}));
        until("the second reset is counted", || (resets(&client, &incarnation) > before).then_some(()));
        assert_eq!(qemu(&server, &incarnation), Some(process));
    }
}

#[test]
fn guests_run_on_kvm_only_after_a_heartbeat_of_one() {
    let mut program = PathBuf::new();
    let server = machines_with(|server| {
        program = server.directory().join("qemu");
        server.set("CHANCERY_QEMU_PROGRAM", &program.display().to_string());
        server.set("CHANCERY_QEMU_ACCELERATOR", "kvm");
    });
    let client = server.client();
    let write = |script: &str| {
        let draft = program.with_extension("draft");
        std::fs::write(&draft, format!("#!/bin/bash\n{script}\n")).expect("a script");
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755)).expect("permissions");
        std::fs::rename(&draft, &program).expect("renamed");
    };
    // As on a host whose `/dev/kvm` opens, and runs no guest.
    write("exec sleep 60");
    deploy(&client, "kvm", "");
    let reason = "a guest had no heartbeat within 2 seconds";
    until("the reason", || server.cli(&["events", "-o", "jsonl"]).contains(reason).then_some(()));
    assert!(client.items("incarnations").iter().all(|row| row["state"] != "running"));
    // Emulation, as on a host whose guests run.
    write("arguments=(\"${@/#kvm/tcg}\")\nexec qemu-system-x86_64 \"${arguments[@]/#host/max}\"");
    until("the guest runs", || {
        let row = client.items("replicas?plan=kvm").pop()?;
        // A host under load may need all attempts of a start.
        if row["phase"] == "failed" {
            let key = uuid::Uuid::new_v4().to_string();
            client.decided(&key, "replica.start", &json!({"name": row["name"]}));
        }
        (row["phase"] == "running").then_some(())
    });
}

fn parent_of(process: Pid) -> Pid {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).expect("it runs");
    let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
    parent.and_then(|parent| Pid::from_raw(parent.parse().ok()?)).expect("a parent")
}
