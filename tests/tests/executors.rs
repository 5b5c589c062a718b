//! Executors outside the server's process, connected over HTTP only. Their payloads outlive them and the
//! server, start once, and are never considered dead because of silence.

use std::collections::BTreeMap;
use std::time::Duration;

use chancery_tests::{ExecutorProcess, PayloadProcess, ServerProcess, TestClient, payloads, until};
use serde_json::{Value, json};

use chancery_tests::fault_campaigns::fleet::{deploy, set_up, sleeper};

/// Lease for tests in which a session expires.
const SHORT: &str = "2s";
/// Lease for tests in which none must expire, however slow the machine is.
const LONG: &str = "60s";

/// Server without embedded executors, with a cluster and a plan.
fn bare_server(lease: &str) -> ServerProcess {
    let mut server = ServerProcess::start_with(&[
        ("CHANCERY_EMBEDDED_EXECUTORS", "none"),
        ("CHANCERY_SESSION_LEASE", lease),
    ]);
    server.stay_at_this_address();
    set_up(&server.client(), &sleeper());
    server
}

/// Sessions in this state, oldest first.
fn sessions(client: &TestClient, state: &str) -> Vec<Value> {
    client.items(&format!("sessions?state={state}"))
}

/// Waits until `count` sessions are in this state.
fn wait_for_sessions(client: &TestClient, state: &str, count: usize) -> Vec<Value> {
    until(&format!("{count} sessions {state}"), || {
        let found = sessions(client, state);
        (found.len() == count).then_some(found)
    })
}

/// Deploys three replicas, and waits until they run at the executor.
fn run_three(server: &ServerProcess, executor: &ExecutorProcess) -> Vec<PayloadProcess> {
    let client = server.client();
    deploy(&client, "three", 3);
    client.wait_for("web", "running", 3);
    let alive = executor.payloads();
    assert_eq!(alive.len(), 3, "{alive:?}");
    alive
}

/// Stops all replicas while the executor is connected.
fn end_three(server: &ServerProcess, executor: &ExecutorProcess) {
    deploy(&server.client(), "none", 0);
    until("nothing is left", || executor.payloads().is_empty().then_some(()));
    server.client().wait_for("web", "running", 0);
}

#[test]
fn it_runs_payloads_and_its_end_leaves_them_to_its_next_epoch() {
    let server = bare_server(LONG);
    let client = server.client();
    let mut executor = ExecutorProcess::start(&server, "e1", "--process");
    let alive = run_three(&server, &executor);
    assert_eq!(sessions(&client, "open")[0]["executor"], "e1");
    // A stopped executor sends a goodbye: its session ends immediately, without waiting for the lease.
    assert_eq!(executor.stop(), Some(0));
    assert_eq!(wait_for_sessions(&client, "left", 1)[0]["executor"], "e1");
    assert_eq!(executor.payloads(), alive);
    executor.start_again();
    wait_for_sessions(&client, "open", 1);
    assert_eq!(executor.payloads(), alive);
    end_three(&server, &executor);
}

#[test]
fn a_killed_executor_restarts_with_the_same_processes_and_starts_none_twice() {
    let server = bare_server(LONG);
    let client = server.client();
    let mut executor = ExecutorProcess::start(&server, "e1", "--process");
    let mut pids: BTreeMap<(String, String), u32> = BTreeMap::new();
    let mut look = |executor: &ExecutorProcess| {
        for PayloadProcess { incarnation, process, pid, .. } in executor.payloads() {
            let first = *pids.entry((incarnation.clone(), process)).or_insert(pid);
            assert_eq!(first, pid, "{incarnation} was started twice");
        }
    };
    run_three(&server, &executor);
    // The kills hit varying moments.
    for round in 0..8_u32 {
        deploy(&client, &format!("round-{round}"), 3 + (round % 2) * 3);
        std::thread::sleep(Duration::from_millis(u64::from(round) * 29));
        executor.kill();
        look(&executor);
        executor.start_again();
        look(&executor);
    }
    deploy(&client, "last", 5);
    client.wait_for("web", "running", 5);
    until("five are left", || {
        look(&executor);
        (executor.payloads().len() == 5).then_some(())
    });
    assert_eq!(client.items("incarnations?state=failed"), Vec::<Value>::new());
    end_three(&server, &executor);
}

#[test]
fn incarnations_of_a_lost_executor_keep_their_state_and_are_adopted_again() {
    let server = bare_server(SHORT);
    let client = server.client();
    let mut executor = ExecutorProcess::start(&server, "e1", "--process");
    let alive = run_three(&server, &executor);
    let before = client.items("incarnations?state=running");
    assert!(before.iter().all(|row| row["reachability"] == "known"));
    executor.kill();
    wait_for_sessions(&client, "expired", 1);
    let all_are = |reachability: &str| {
        let rows = [client.items("replicas"), client.items("incarnations")].concat();
        rows.len() == 6 && rows.iter().all(|row| row["reachability"] == reachability)
    };
    assert!(all_are("unknown"));
    // New replicas wait meanwhile.
    deploy(&client, "four", 4);
    client.wait_for("web", "starting", 1);
    assert_eq!(client.wait_for("web", "running", 3).len(), 3);
    assert_eq!(executor.payloads(), alive);
    let versions = |rows: &[Value]| rows.iter().map(|row| row["version"].clone()).collect::<Vec<_>>();
    assert_eq!(
        versions(&before),
        versions(&client.items("incarnations?state=running")),
        "nothing is known of them"
    );
    executor.start_again();
    client.wait_for("web", "running", 4);
    assert!(client.items("incarnations").iter().all(|row| row["reachability"] == "known"));
    let now = executor.payloads();
    assert!(alive.iter().all(|payload| now.contains(payload)), "before {alive:?}, after {now:?}");
    assert_eq!(now.len(), 4);
    end_three(&server, &executor);
}

#[test]
fn a_killed_server_finds_its_executor_again() {
    let mut server = bare_server(LONG);
    let executor = ExecutorProcess::start(&server, "e1", "--process");
    let alive = run_three(&server, &executor);
    let session = sessions(&server.client(), "open")[0]["id"].clone();
    server.kill();
    assert_eq!(executor.payloads(), alive);
    server.start_again();
    // The same session: none has expired.
    let client = server.client();
    deploy(&client, "four", 4);
    client.wait_for("web", "running", 4);
    assert_eq!(sessions(&client, "open")[0]["id"], session);
    let now = executor.payloads();
    assert!(now.len() == 4 && alive.iter().all(|payload| now.contains(payload)), "{alive:?}, {now:?}");
    end_three(&server, &executor);
}

#[test]
fn an_executor_suspended_past_its_lease_does_nothing_late_and_another_takes_over() {
    let server = bare_server(SHORT);
    let client = server.client();
    let first = ExecutorProcess::start(&server, "e1", "--process");
    wait_for_sessions(&client, "open", 1);
    // The second executor requests the cluster too, and is refused with the holder's name.
    let second = ExecutorProcess::start(&server, "e2", "--process");
    until("the second is refused", || {
        second.log().contains("cannot open session of cluster local: executor e1 has one").then_some(())
    });
    first.freeze();
    let lost = wait_for_sessions(&client, "expired", 1);
    assert_eq!(lost[0]["executor"], "e1");
    // Nothing was requested from the first executor: the second may take over all.
    wait_for_sessions(&client, "open", 1);
    deploy(&client, "three", 3);
    client.wait_for("web", "running", 3);
    let alive = second.payloads();
    assert_eq!(alive.len(), 3);
    first.thaw();
    until("the first is refused", || {
        first.log().contains("cannot open session of cluster local: executor e2 has one").then_some(())
    });
    assert!(first.payloads().is_empty(), "it has started something");
    assert_eq!(second.payloads(), alive);
    assert_eq!(sessions(&client, "open")[0]["executor"], "e2");
    end_three(&server, &second);
}

#[test]
fn a_command_received_by_a_suspended_executor_is_sent_to_no_other() {
    let server = bare_server(SHORT);
    let client = server.client();
    let first = ExecutorProcess::start(&server, "e1", "--process");
    wait_for_sessions(&client, "open", 1);
    // Commands sent during the freeze arrive afterwards; the decider cannot know which were executed.
    first.freeze();
    deploy(&client, "three", 3);
    client.wait_for("web", "starting", 3);
    wait_for_sessions(&client, "expired", 1);
    let second = ExecutorProcess::start(&server, "e2", "--process");
    until("the second is refused", || {
        second.log().contains("start the executor on that store").then_some(())
    });
    assert!(sessions(&client, "open").is_empty());
    first.thaw();
    client.wait_for("web", "running", 3);
    assert_eq!((first.payloads().len(), second.payloads().len()), (3, 0));
    end_three(&server, &first);
}

#[test]
fn an_executor_with_another_directory_proves_nothing_and_the_operators_declaration_does() {
    let server = bare_server(LONG);
    let client = server.client();
    let mut executor = ExecutorProcess::start(&server, "e1", "--process");
    let alive = run_three(&server, &executor);
    assert_eq!(executor.stop(), Some(0));
    wait_for_sessions(&client, "left", 1);
    // The same name, but an empty directory without the running payloads.
    let stranger = ExecutorProcess::start(&server, "e1", "--process");
    let refusal = "start the executor on that store, or expunge node";
    until("it is refused", || stranger.log().contains(refusal).then_some(()));
    assert_eq!(client.wait_for("web", "running", 3).len(), 3);
    assert_eq!(executor.payloads(), alive);
    // With the right directory, nothing has changed.
    executor.start_again();
    let store = wait_for_sessions(&client, "open", 1)[0]["store"].clone();
    assert_eq!(executor.payloads(), alive);
    assert_eq!(client.items("incarnations?state=failed"), Vec::<Value>::new());
    assert_eq!(executor.stop(), Some(0));
    wait_for_sessions(&client, "left", 2);
    // The machine and its directory are declared lost.
    for node in client.items("nodes") {
        let name = node["name"].as_str().expect("a name");
        client.must("node.set_state", &json!({"name": name, "state": "expunged"}));
    }
    until("every incarnation is lost", || {
        (client.items("incarnations?state=failed").len() >= 3).then_some(())
    });
    assert_ne!(wait_for_sessions(&client, "open", 1)[0]["store"], store, "the other one has it now");
}

#[test]
fn a_directory_has_one_executor_and_one_journal() {
    let server = bare_server(LONG);
    let mut executor = ExecutorProcess::start(&server, "e1", "--process");
    run_three(&server, &executor);
    let mut second = executor.start_alongside(&server, "e2", "--process");
    assert_eq!(second.wait(), Some(4), "{}", second.log());
    // The executor must not work for another journal, and must not end running payloads.
    executor.kill();
    let other = bare_server(LONG);
    let mut misled = executor.start_alongside(&other, "e1", "--process");
    assert_eq!(misled.wait(), Some(5), "{}", misled.log());
    assert!(misled.log().contains("the executor has worked for another journal"), "{}", misled.log());
    assert_eq!(executor.payloads().len(), 3);
    executor.start_again();
    end_three(&server, &executor);
}

#[test]
fn a_copied_data_directory_is_refused_and_adopted_harms_nothing_that_the_original_runs() {
    let original = ServerProcess::start();
    let client = original.client();
    set_up(&client, &sleeper());
    deploy(&client, "d1", 2);
    client.wait_for("web", "running", 2);
    let before = payloads(original.data());
    assert_eq!(before.len(), 2);

    let mut copy = ServerProcess::new();
    let data = copy.move_data("copy");
    let all = original.data().join(".");
    // Files removed meanwhile are not copied.
    let _ = std::process::Command::new("cp")
        .arg("-a")
        .arg(all)
        .arg(&data)
        .stderr(std::process::Stdio::null())
        .status();
    let refused = copy.try_start_again().expect_err("it is a copy").output;
    assert!(refused.contains("it is a copy") && refused.contains("--adopt-copy"), "{refused}");
    assert_eq!(payloads(original.data()), before);

    copy.flag("--adopt-copy");
    copy.start_again();
    let adopted = copy.client();
    let replicas: Vec<String> = adopted
        .items("replicas?plan=web")
        .iter()
        .map(|replica| replica["name"].as_str().expect("a name").to_owned())
        .collect();
    for name in &replicas {
        adopted.must("replica.stop", &json!({"name": name}));
    }
    until("it cannot be executed", || {
        let copies = adopted.items("incarnations?plan=web").into_iter().filter(|row| {
            let id = row["id"].as_str().expect("an id");
            let history = adopted.read(&format!("incarnations/{id}/history"));
            history.to_string().contains("its directory is a copy")
        });
        (copies.count() == 2).then_some(())
    });
    assert_eq!(payloads(original.data()), before, "the original's processes keep running");
    assert!(payloads(&data).is_empty());
    // Once adopted, the copy is a directory like any other.
    assert_eq!(copy.stop(), Some(0));
    let started = copy.try_start_again();
    assert!(started.is_ok(), "{started:?}");
    assert_eq!(payloads(original.data()), before);
    assert_eq!(client.wait_for("web", "running", 2).len(), 2);
}
