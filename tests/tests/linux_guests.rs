//! Linux guests of the real QEMU, driven by the real program. The other tests of virtual machines have a guest without an operating
//! system; these show that drivers of Linux understand what that guest understands.
//!
//! | case | test |
//! |---|---|
//! | disk | `a_disk_has_what_linux_synced_after_a_kill_of_qemu_and_after_a_stop` |
//! | forwarded port, reset, power-off by the guest | `a_linux_guest_that_is_ready_answers_reboots_on_request_and_stays_off` |
//! | panic device, power button | `a_linux_guest_that_panics_is_started_again_and_obeys_the_power_button_of_a_stop` |

use std::time::{Duration, Instant};

use chancery_events::spec::VM_OVERHEAD;
use chancery_tests::qemu::build_linux;
use chancery_tests::{ServerProcess, TestClient, until};
use serde_json::{Value, json};

use crate::machine_disks::{RunningGuest, TestPermit, machines, start};
use crate::virtual_machines::ends;

/// Command line of the kernel. Self-tests of its algorithms, and its adaptation to one processor, take a quarter of a boot.
const CMDLINE: &str = "console=ttyS0 quiet cryptomgr.notests noreplace-smp";

/// Returns a server whose image directory has the Linux guest.
fn linux_machines() -> ServerProcess {
    machines(|server| build_linux(&server.directory().join("images")))
}

/// Deploys one replica of a Linux guest with 96 MiB, which is ready when it answers on its port.
fn deploy(client: &TestClient, deployment: &str, restart: &str, disks: &[(&str, u64)]) {
    let disk = |(name, capacity): &(&str, u64)| json!({"class": "ssd", "capacity": capacity, "mount": format!("/{name}")});
    let payload = json!({
        "name": "app", "resources": {"cpu": 100, "memory": VM_OVERHEAD + (96 << 20)},
        "vm": {"kernel": "vmlinuz", "initrd": "initrd", "cmdline": CMDLINE},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}], "ready": {"http": {"port": "http", "path": "/"}},
        "volumes": disks.iter().map(disk).collect::<Vec<_>>(),
    });
    let automatic = json!({
        "create": "automatic", "update": "automatic", "relocate": "automatic", "restart": "automatic",
        "start": "automatic", "stop": "automatic", "delete": "automatic", "reboot": "automatic",
    });
    // A stop takes longer than a test waits, unless the guest obeys.
    let spec = json!({
        "namespace": "tests", "service": "linux", "payloads": [payload], "approval": automatic, "sharing": "allowed",
        "restart": restart, "restart_delay": 100, "timeouts": {"stop": 600_000},
    });
    client.must("plan.apply", &json!({"name": "linux", "spec": spec}));
    client.must("deployment.create", &json!({"plan": "linux", "name": deployment, "spec": {"count": 1}}));
}

/// Waits until the guest runs, and returns it with the id of its boot. It answers without another attempt, because it is ready.
fn ready(server: &ServerProcess, incarnation: impl Fn(&str) -> bool) -> (RunningGuest, String) {
    let guest = RunningGuest::wait(server, "linux", incarnation);
    let boot = boot(server, &guest.incarnation);
    (guest, boot)
}

/// Asks the guest of the incarnation for the id of its boot, through the forwarded port.
fn boot(server: &ServerProcess, incarnation: &str) -> String {
    let row = server.client().read(&format!("incarnations/{incarnation}"));
    let address = row["processes"][0]["addresses"][0]["address"].as_str().expect("an address");
    let answer = TestClient::new(&format!("http://{address}")).get("/");
    let words: Vec<_> = answer.text.split(' ').collect();
    match words[..] {
        ["beat", _, boot, "bad=0"] if answer.status == 200 => boot.to_owned(),
        _ => panic!("{answer:?}"),
    }
}

fn output(server: &ServerProcess, replica: &str) -> String {
    String::from_utf8(server.run(&["logs", replica, "--stdout"]).stdout).expect("text")
}

fn replica(client: &TestClient) -> Value {
    client.items("replicas?plan=linux").pop().expect("a replica")
}

/// Requests that the guest powers itself off. Panics with the guest's output if it runs on for a minute.
fn power_off(server: &ServerProcess, guest: &mut RunningGuest) {
    let start = Instant::now();
    guest.send("poweroff");
    while server.client().read(&format!("incarnations/{}", guest.incarnation))["state"] != "powered_off" {
        assert!(start.elapsed() < Duration::from_mins(1), "it runs on: {}", output(server, &guest.replica));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_disk_has_what_linux_synced_after_a_kill_of_qemu_and_after_a_stop() {
    let _permit = TestPermit::take();
    let server = linux_machines();
    let client = server.client();
    deploy(&client, "d1", "on_failure", &[("data", 4 << 20), ("log", 1 << 20)]);
    let (mut guest, _) = ready(&server, |_| true);
    for (command, answer) in [
        ("size data", "ok 8192"),
        ("size log", "ok 2048"),
        ("size other", "absent"),
        ("verify data 0 100 1", "other"),
        ("write data 0 100 1", "ok"),
        ("write log 2047 1 2", "ok"),
        ("sync data", "ok"),
        ("sync log", "ok"),
    ] {
        guest.must(command, answer);
    }
    guest.kill(&server, |qemu| qemu);
    let mut guest = guest.next(&server);
    for (command, answer) in [
        ("verify data 0 100 1", "ok"),
        ("verify log 2047 1 2", "ok"),
        ("verify data 100 1 1", "other"),
        ("write data 8191 1 3", "ok"),
        ("sync data", "ok"),
    ] {
        guest.must(command, answer);
    }
    client.must("replica.stop", &json!({"name": guest.replica}));
    client.wait_for("linux", "stopped", 1);
    start(&client, &guest.replica);
    let mut guest = guest.next(&server);
    for command in ["verify data 0 100 1", "verify data 8191 1 3", "verify log 2047 1 2"] {
        guest.must(command, "ok");
    }
}

#[test]
fn a_linux_guest_that_is_ready_answers_reboots_on_request_and_stays_off() {
    let _permit = TestPermit::take();
    let server = linux_machines();
    let client = server.client();
    deploy(&client, "d1", "always", &[]);
    let (mut guest, first) = ready(&server, |_| true);
    assert_eq!(
        server.cli(&["reboot", &guest.replica]),
        format!("replica/{} reboot requested\n", guest.replica)
    );
    until("the reboot has succeeded", || {
        let rows = client.items(&format!("operations?replica={}", guest.replica));
        rows.iter().any(|row| row["kind"] == "reboot" && row["state"] == "succeeded").then_some(())
    });
    assert_eq!(replica(&client)["incarnation"], *guest.incarnation);
    assert_ne!(boot(&server, &guest.incarnation), first);
    let row = client.read(&format!("incarnations/{}", guest.incarnation));
    assert!(row["processes"][0]["resets"].as_u64().is_some_and(|resets| resets > 0), "{row}");
    // The port answers after the reset, so that a guest that runs on has received the request.
    guest.must("ping poweroff", "pong poweroff");
    power_off(&server, &mut guest);
    assert_eq!(ends(&client, &guest.incarnation, "powered_off"), "its guest powered itself off");
    deploy(&client, "d2", "always", &[]);
    until("the deployment has completed", || {
        let rows = client.items("deployments?plan=linux");
        rows.iter().any(|row| row["name"] == "d2" && row["state"] == "completed").then_some(())
    });
    let row = replica(&client);
    assert_eq!((&row["desired"], &row["phase"]), (&json!("guest_shutdown"), &json!("stopped")), "{row}");
    assert_eq!(client.items("incarnations?plan=linux").len(), 1);
}

#[test]
fn a_linux_guest_that_panics_is_started_again_and_obeys_the_power_button_of_a_stop() {
    let _permit = TestPermit::take();
    let server = linux_machines();
    let client = server.client();
    deploy(&client, "d1", "on_failure", &[]);
    let (mut guest, first) = ready(&server, |_| true);
    guest.send("panic");
    assert_eq!(ends(&client, &guest.incarnation, "failed"), "app-0 panicked");
    let (guest, second) = ready(&server, |incarnation| incarnation != guest.incarnation);
    assert_ne!(second, first);
    client.must("replica.stop", &json!({"name": guest.replica}));
    assert_eq!(ends(&client, &guest.incarnation, "destroyed"), "");
    assert_eq!(guest.qemu(&server), None);
    let row = client.wait_for("linux", "stopped", 1).remove(0);
    assert_eq!(row["desired"], "stopped", "{row}");
    until("the output is kept", || {
        output(&server, &guest.replica).contains("power button: power off\r\n").then_some(())
    });
}
