//! Guests of the real QEMU, driven by the real program.
//!
//! | action | report of QEMU | state of the incarnation | test |
//! |---|---|---|---|
//! | the guest powers itself off | `SHUTDOWN`, status `shutdown` | powered off; the replica stays off | `each_end_of_a_guest_has_its_reason`, `a_guest_that_powered_itself_off_stays_off_until_its_start_is_requested` |
//! | the guest panics | `GUEST_PANICKED`, status `guest-panicked` | failed: `panicked` | the same |
//! | QEMU is killed | end of file | failed: the signal | the same |
//! | QEMU receives SIGTERM | `SHUTDOWN` by the host | failed: ended with its virtual machine | the same |
//! | the guest resets | `RESET` | running on, the reset is counted | `a_guest_that_resets_runs_on_in_its_incarnation` |
//! | `chancery reboot` | `RESET` | rebooting, then running | `a_reboot_resets_the_guest_once_in_its_incarnation` |
//! | the same, after server and supervisor were killed | the same | the same | the same |
//! | a stop, which the guest obeys | `POWERDOWN`, `SHUTDOWN` | stopped, as requested | `a_stop_presses_the_power_button_and_ends_a_guest_that_ignores_it` |
//! | a stop, which the guest ignores | `POWERDOWN` | stopped after the grace | the same |
//! | the same, after server and supervisor were killed | the same | the same | `a_guest_without_supervisor_is_stopped_by_its_power_button` |
//! | QEMU is stopped by SIGSTOP | no reply | unreachable, then as before | `a_machine_that_does_not_answer_has_not_ended` |

use std::path::Path;

use chancery_tests::qemu::{build_guest, run_state};
use chancery_tests::{ServerProcess, TestClient, payloads, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// Returns a server whose cluster `machines` runs virtual machines on one node.
pub(crate) fn machines() -> ServerProcess {
    let mut server = ServerProcess::new();
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
fn deploy(client: &TestClient, plan: &str, cmdline: &str) {
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

#[test]
fn each_end_of_a_guest_has_its_reason() {
    let server = machines();
    let client = server.client();
    for (plan, cmdline, signal, state, message) in [
        ("off", "do=o after=10", None, "powered_off", "its guest powered itself off"),
        ("panic", "do=p after=10", None, "failed", "app-0 panicked"),
        ("killed", "", Some(Signal::KILL), "failed", "app-0 was ended by signal 9"),
        ("term", "", Some(Signal::TERM), "failed", "app-0 was ended with its virtual machine, status 0"),
    ] {
        deploy(&client, plan, cmdline);
        let (_, incarnation) = running(&client, plan);
        if let Some(signal) = signal {
            kill_process(qemu(&server, &incarnation).expect("it runs"), signal).expect("a signal");
        }
        assert_eq!(ends(&client, &incarnation, state), message, "{plan}");
        assert_eq!(qemu(&server, &incarnation), None, "{plan}");
    }
}

#[test]
fn a_guest_that_resets_runs_on_in_its_incarnation() {
    let server = machines();
    let client = server.client();
    deploy(&client, "web", "do=r after=5");
    let (replica, incarnation) = running(&client, "web");
    until("the guest has started three times", || {
        (output(&server, &replica).matches("READY").count() >= 3).then_some(())
    });
    assert_eq!(running(&client, "web").1, incarnation);
    until("resets are counted", || (resets(&client, &incarnation) >= 2).then_some(()));
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
fn a_stop_presses_the_power_button_and_ends_a_guest_that_ignores_it() {
    let server = machines();
    let client = server.client();
    for (plan, cmdline, says) in [("obeys", "", "power off"), ("ignores", "do=i after=1", "power button")] {
        deploy(&client, plan, cmdline);
        let (replica, incarnation) = running(&client, plan);
        until("it beats", || output(&server, &replica).contains("beat 3 ").then_some(()));
        client.must("replica.stop", &json!({"name": replica}));
        assert_eq!(ends(&client, &incarnation, "destroyed"), "", "{plan}");
        until(&format!("{plan}: output is kept"), || output(&server, &replica).contains(says).then_some(()));
        assert_eq!(qemu(&server, &incarnation), None, "{plan}");
    }
}

#[test]
fn the_end_of_a_guest_is_found_whoever_was_killed_before_it() {
    for kills_supervisor in [false, true] {
        let mut server = machines();
        let client = server.client();
        deploy(&client, "web", "do=o after=20");
        let (_, incarnation) = running(&client, "web");
        server.kill();
        if kills_supervisor {
            let supervisor = parent_of(qemu(&server, &incarnation).expect("it runs"));
            kill_process(supervisor, Signal::KILL).expect("a signal");
        }
        if kills_supervisor {
            let directory = find(server.data(), "app-0").expect("a directory");
            until("the guest has powered off", || {
                run_state(&directory).is_ok_and(|state| state == "shutdown").then_some(())
            });
        } else {
            // The supervisor records the end, and ends QEMU.
            until("QEMU has ended", || qemu(&server, &incarnation).is_none().then_some(()));
        }
        server.start_again();
        let client = server.client();
        ends(&client, &incarnation, "powered_off");
        until("QEMU has ended", || qemu(&server, &incarnation).is_none().then_some(()));
    }
}

#[test]
fn a_guest_without_supervisor_is_stopped_by_its_power_button() {
    let mut server = machines();
    deploy(&server.client(), "web", "");
    let (replica, incarnation) = running(&server.client(), "web");
    let supervisor = parent_of(qemu(&server, &incarnation).expect("it runs"));
    server.kill();
    kill_process(supervisor, Signal::KILL).expect("a signal");
    server.start_again();
    let client = server.client();
    client.must("replica.stop", &json!({"name": replica}));
    assert_eq!(ends(&client, &incarnation, "destroyed"), "");
    until("output is kept", || output(&server, &replica).contains("power off").then_some(()));
}

#[test]
fn a_machine_that_does_not_answer_has_not_ended() {
    let server = machines();
    let client = server.client();
    deploy(&client, "web", "");
    let (_, incarnation) = running(&client, "web");
    let process = qemu(&server, &incarnation).expect("it runs");
    let status = || {
        let row = client.read(&format!("incarnations/{incarnation}"));
        assert_eq!(row["state"], "running", "{row}");
        row["processes"][0]["status"].clone()
    };
    kill_process(process, Signal::STOP).expect("a signal");
    until("it is unreachable", || (status() == "unreachable").then_some(()));
    kill_process(process, Signal::CONT).expect("a signal");
    until("it is ready", || (status() == "ready").then_some(()));
}

fn parent_of(process: Pid) -> Pid {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).expect("it runs");
    let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
    parent.and_then(|parent| Pid::from_raw(parent.parse().ok()?)).expect("a parent")
}

fn find(directory: &Path, name: &str) -> Option<std::path::PathBuf> {
    for entry in std::fs::read_dir(directory).ok()?.flatten() {
        let path = entry.path();
        if path.file_name().and_then(|file| file.to_str()) == Some(name) {
            return Some(path);
        }
        if path.is_dir()
            && let Some(found) = find(&path, name)
        {
            return Some(found);
        }
    }
    None
}
