//! Needs of users of virtual machines, with the real QEMU. The numbers are those of [`docs/checks.md`](../../docs/checks.md), which
//! names the tests of the others.
//!
//! | | need | test |
//! |---|---|---|
//! | A1, A18 | an accepted start is not lost, and what runs is adopted | `an_accepted_start_outlives_kills_of_the_server_and_starts_one_machine` |
//! | A2, A3 | repeated starts and stops | `concurrent_starts_are_one_machine_and_a_second_stop_changes_nothing` |
//! | A4 | a stop is final, at any moment of a boot | `a_stop_at_any_moment_of_a_boot_is_final` |
//! | A5, A6, A7 | a start while stopping, a start and a delete when stopped | `a_stopped_machine_can_be_started_or_deleted_and_its_history_stays` |
//! | A10 | restarts of a machine whose QEMU was killed | `a_killed_machine_is_replaced_by_the_same_guest` |
//! | B2, B4 | too little memory, and its release | `a_machine_without_room_starts_nothing_and_runs_when_there_is_room` |

use std::time::Duration;

use chancery_tests::{TestClient, payloads, until};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::virtual_machines::{deploy_with, ends, machines, qemu, running};

/// Waits until the only replica of the plan is in the phase, and returns it.
fn replica(client: &TestClient, plan: &str, phase: &str) -> Value {
    client.wait_for(plan, phase, 1).remove(0)
}

fn key() -> String {
    uuid::Uuid::new_v4().to_string()
}

#[test]
fn an_accepted_start_outlives_kills_of_the_server_and_starts_one_machine() {
    let mut server = machines();
    for (number, delay) in [0, 5, 20, 60, 150, 400].into_iter().enumerate() {
        let plan = format!("plan-{number}");
        deploy_with(&server.client(), &plan, "", "never");
        std::thread::sleep(Duration::from_millis(delay));
        server.kill();
        server.start_again();
        let client = server.client();
        let (_, incarnation) = running(&client, &plan);
        let all = payloads(server.data());
        assert!(all.len() == 1 && all[0].incarnation == incarnation, "{delay} ms: {all:?}");
        // The next server finds the same process.
        server.kill();
        server.start_again();
        let client = server.client();
        assert_eq!(running(&client, &plan).1, incarnation);
        assert_eq!(payloads(server.data()), all);
        assert_eq!(client.items(&format!("incarnations?plan={plan}")).len(), 1);
        client.must("plan.delete", &json!({"name": plan, "cascade": "yes"}));
        until("nothing runs", || payloads(server.data()).is_empty().then_some(()));
    }
}

#[test]
fn concurrent_starts_are_one_machine_and_a_second_stop_changes_nothing() {
    let server = machines();
    let client = server.client();
    deploy_with(&client, "web", "", "always");
    let (name, first) = running(&client, "web");
    client.must("replica.stop", &json!({"name": name}));
    replica(&client, "web", "stopped");
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let start = || client.decided(&key(), "replica.start", &json!({"name": name})).status;
        let starts: Vec<_> = (0..50).map(|_| scope.spawn(start)).collect();
        starts.into_iter().map(|start| start.join().expect("an answer")).collect()
    });
    assert!(statuses.iter().all(|status| (200..300).contains(status)), "{statuses:?}");
    let (_, second) = running(&client, "web");
    assert_ne!(second, first);
    let all = payloads(server.data());
    assert!(all.len() == 1 && all[0].incarnation == second, "{all:?}");
    for _ in 0..2 {
        client.must("replica.stop", &json!({"name": name}));
        replica(&client, "web", "stopped");
    }
    assert!(payloads(server.data()).is_empty());
    assert_eq!(client.items("incarnations?plan=web").len(), 2);
}

#[test]
fn a_stop_at_any_moment_of_a_boot_is_final() {
    let server = machines();
    let client = server.client();
    deploy_with(&client, "web", "", "always");
    let (name, _) = running(&client, "web");
    client.must("replica.stop", &json!({"name": name}));
    replica(&client, "web", "stopped");
    for delay in [0, 1, 10, 50, 100, 300, 1000] {
        client.must("replica.start", &json!({"name": name}));
        std::thread::sleep(Duration::from_millis(delay));
        client.must("replica.stop", &json!({"name": name}));
        let before = replica(&client, "web", "stopped");
        until("no machine is left", || payloads(server.data()).is_empty().then_some(()));
        let count = client.items("incarnations?plan=web&limit=100").len();
        // Longer than the delay of the rule, which would start it.
        std::thread::sleep(Duration::from_millis(300));
        assert!(payloads(server.data()).is_empty(), "{delay} ms");
        assert_eq!(client.items("incarnations?plan=web&limit=100").len(), count, "{delay} ms");
        assert_eq!(replica(&client, "web", "stopped")["desired"], before["desired"], "{delay} ms");
    }
}

#[test]
fn a_stop_at_any_moment_of_a_reboot_is_final() {
    let server = machines();
    let client = server.client();
    deploy_with(&client, "web", "", "always");
    let (name, mut incarnation) = running(&client, "web");
    for delay in [0, 1, 10, 50, 100, 300, 1000] {
        client.must("replica.reboot", &json!({"name": name}));
        std::thread::sleep(Duration::from_millis(delay));
        client.must("replica.stop", &json!({"name": name}));
        assert_eq!(replica(&client, "web", "stopped")["desired"], "stopped", "{delay} ms");
        assert_eq!(ends(&client, &incarnation, "destroyed"), "", "{delay} ms");
        let count = client.items("incarnations?plan=web&limit=100").len();
        // Longer than the delay of the rule, which would start it.
        std::thread::sleep(Duration::from_millis(300));
        assert!(payloads(server.data()).is_empty(), "{delay} ms");
        assert_eq!(client.items("incarnations?plan=web&limit=100").len(), count, "{delay} ms");
        client.must("replica.start", &json!({"name": name}));
        incarnation = running(&client, "web").1;
    }
}

#[test]
fn a_stopped_machine_can_be_started_or_deleted_and_its_history_stays() {
    let server = machines();
    let client = server.client();
    // The guest ignores its power button, so that the stop takes its whole grace.
    deploy_with(&client, "web", "do=i after=1", "always");
    let (name, first) = running(&client, "web");
    until("the guest has started", || {
        let output = server.run(&["logs", &name, "--stdout"]).stdout;
        String::from_utf8_lossy(&output).contains("beat 2").then_some(())
    });
    client.must("replica.stop", &json!({"name": name}));
    until("it is stopping", || {
        let row = client.read(&format!("incarnations/{first}"));
        (row["state"] == "stopping").then_some(())
    });
    let early = client.decided(&key(), "replica.start", &json!({"name": name}));
    assert!(early.status == 409 && early.text.contains("stopping"), "{} {}", early.status, early.text);
    replica(&client, "web", "stopped");
    client.must("replica.start", &json!({"name": name}));
    assert_ne!(running(&client, "web").1, first);
    client.must("replica.delete", &json!({"name": name}));
    until("the replica is deleted", || client.items("replicas?plan=web").is_empty().then_some(()));
    assert!(payloads(server.data()).is_empty());
    let history = server.cli(&["history", "replica", &name]);
    let count = |what: &str| history.matches(what).count();
    assert_eq!((count("incarnation.ended"), count("replica.deleted")), (2, 1), "{history}");
}

#[test]
fn a_killed_machine_is_replaced_by_the_same_guest() {
    let server = machines();
    let client = server.client();
    deploy_with(&client, "web", "", "on_failure");
    let uuid = |incarnation: &str| {
        let process = qemu(&server, incarnation).expect("it runs").as_raw_nonzero();
        let arguments = std::fs::read_to_string(format!("/proc/{process}/cmdline")).expect("arguments");
        let mut words = arguments.split('\0').skip_while(|word| *word != "-uuid");
        words.nth(1).expect("a uuid").to_owned()
    };
    let (name, mut incarnation) = running(&client, "web");
    let guest = uuid(&incarnation);
    for _ in 0..3 {
        let process = qemu(&server, &incarnation).expect("it runs");
        kill_process(process, Signal::KILL).expect("a signal");
        assert_eq!(ends(&client, &incarnation, "failed"), "app-0 was ended by signal 9");
        let next = until("the next incarnation runs", || {
            let row = client.items("replicas?plan=web&phase=running").pop()?;
            row["incarnation"].as_str().filter(|next| *next != incarnation).map(str::to_owned)
        });
        assert_eq!(uuid(&next), guest, "the same guest of {name}");
        incarnation = next;
    }
    assert_eq!(payloads(server.data()).len(), 1);
}

#[test]
fn a_machine_without_room_starts_nothing_and_runs_when_there_is_room() {
    let server = machines();
    let client = server.client();
    let node = |memory: u64| {
        let total = json!({"cpu": 8000, "memory": memory, "disk": 0});
        let spec = json!({"domain": "a", "resources": total});
        client.must("node.apply", &json!({"name": "node-1", "cluster": "machines", "spec": spec}));
    };
    let lacks_memory = |plan: &str| {
        let row = client.read(&format!("plans/{plan}"));
        row["unschedulable"].to_string().contains("memory")
    };
    node(100 << 20);
    deploy_with(&client, "web", "", "never");
    until("the reason is shown", || lacks_memory("web").then_some(()));
    assert_eq!((payloads(server.data()), client.items("incarnations?plan=web")), (vec![], vec![]));
    node(112 << 20);
    let (name, _) = running(&client, "web");
    // Nothing else fits, until the machine is stopped.
    deploy_with(&client, "other", "", "never");
    until("the reason is shown", || lacks_memory("other").then_some(()));
    assert_eq!(payloads(server.data()).len(), 1);
    client.must("replica.stop", &json!({"name": name}));
    running(&client, "other");
    assert_eq!(payloads(server.data()).len(), 1);
}
