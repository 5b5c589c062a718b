//! Guarantees to users, checked from outside: one server, its API, its processes.

use std::collections::BTreeSet;
use std::time::Duration;

use chancery_projector::RowKind;
use chancery_tests::{ServerProcess, TestClient, payloads, program, until};
use serde_json::{Value, json};

use chancery_tests::fault_campaigns::fleet::{deploy, set_up, sleeper};

fn manual(client: &TestClient) {
    set_up(client, &sleeper());
    let mut spec = client.read("plans/web")["spec"].clone();
    for kind in ["create", "start", "stop", "delete"] {
        spec["approval"][kind] = json!("manual");
    }
    client.must("plan.apply", &json!({"name": "web", "spec": spec}));
}

#[test]
fn errors_distinguish_what_is_absent_taken_stale_impossible_and_wrong() {
    let server = ServerProcess::start();
    let client = server.client();
    manual(&client);
    deploy(&client, "d1", 0);
    let post = |key: &str, type_name: &str, data: &Value| client.intent(key, type_name, data);
    let absent = client.get("/v1/fleets/default/nodes/nowhere");
    let cases = [
        (absent, 404, "not_found"),
        (
            post("a", "deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 9}})),
            409,
            "already_exists",
        ),
        (
            post("b", "node.set_state", &json!({"name": "node-1", "state": "sanitizing"})),
            409,
            "invalid_transition",
        ),
        (
            post(
                "c",
                "node.apply",
                &json!({"name": "x", "spec": {"domain": "d", "resources": {"cpu": 0, "memory": 1}}}),
            ),
            422,
            "invalid",
        ),
        (post("d", "node.set_state", &json!({"name": "x", "state": "evicted"})), 404, "not_found"),
    ];
    for (answer, status, code) in cases {
        assert_eq!((answer.status, answer.json()["code"].as_str()), (status, Some(code)), "{}", answer.text);
        assert_eq!(answer.content_type, "application/problem+json");
    }
    let headers = [("content-type", "application/json"), ("if-match", "\"999\"")];
    let body = json!({"state": "evicted"}).to_string();
    let stale = client.send("POST", "/v1/fleets/default/nodes/node-1/state", &headers, body.as_bytes());
    assert_eq!(stale.status, 412, "{}", stale.text);
    assert_eq!(
        stale.json()["version"],
        client.read("nodes/node-1")["version"],
        "it names the current version"
    );
    let refused = client.intent("e", "node.set_state", &json!({"name": "node-1", "state": "sanitizing"}));
    let detail = refused.json()["detail"].as_str().unwrap_or_default().to_owned();
    assert!(detail.contains("allocated") && detail.contains("sanitizing"), "both states are named: {detail}");
}

#[test]
fn a_repeat_with_its_key_gets_the_first_answer_also_across_a_kill() {
    let mut server = ServerProcess::start();
    manual(&server.client());
    let body = json!({"plan": "web", "name": "d1", "spec": {"count": 1}});
    let first = server.client().intent("one-key", "deployment.create", &body);
    server.kill();
    server.start_again();
    let client = server.client();
    let second = client.intent("one-key", "deployment.create", &body);
    assert_eq!((first.status, first.json()), (second.status, second.json()));
    let other = client.intent(
        "one-key",
        "deployment.create",
        &json!({"plan": "web", "name": "d1", "spec": {"count": 2}}),
    );
    assert_eq!((other.status, other.json()["code"].as_str()), (422, Some("idempotency_key_reused")));
    let created = client.get("/v1/fleets/default/events?types=deployment.created.v1&follow=false");
    assert_eq!(
        created.text.matches("deployment.created.v1\"").count(),
        2,
        "once as a type, once as a schema: {}",
        created.text
    );
}

#[test]
fn of_fifty_writers_on_one_version_exactly_one_succeeds() {
    let server = ServerProcess::start();
    let client = server.client();
    client.must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": 0}}));
    let writers: Vec<_> = (1..=50)
        .map(|score| {
            let client = client.clone();
            std::thread::spawn(move || {
                let body = json!({"spec": {"type": "T", "score": score}}).to_string();
                let headers = [("content-type", "application/json"), ("if-match", "\"1\"")];
                client.send("PUT", "/v1/fleets/default/capabilities/c", &headers, body.as_bytes()).status
            })
        })
        .collect();
    let statuses: Vec<_> = writers.into_iter().map(|writer| writer.join().expect("an answer")).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 412).count(), 49, "{statuses:?}");
}

#[test]
fn lists_are_filtered_paged_in_a_stable_order_and_refuse_unknown_filters() {
    let server = ServerProcess::start();
    let client = server.client();
    for i in 0..60 {
        client.must("capability.apply", &json!({"name": format!("c-{i:03}"), "spec": {"type": if i % 2 == 0 { "A" } else { "B" }, "score": i}}));
    }
    assert_eq!(client.items("capabilities?limit=3").len(), 3);
    assert_eq!(client.items("capabilities?type=A&limit=100").len(), 30);
    let unknown = client.get("/v1/fleets/default/capabilities?colour=red");
    assert_eq!(unknown.status, 400);
    assert!(
        unknown.text.contains("colour") && unknown.text.contains("activity"),
        "it names the known ones: {}",
        unknown.text
    );
    let (mut seen, mut token) = (Vec::new(), String::new());
    for page in 0.. {
        let body = client.read(&format!("capabilities?limit=7{token}"));
        seen.extend(
            body["items"]
                .as_array()
                .expect("items")
                .iter()
                .map(|c| c["name"].as_str().expect("a name").to_owned()),
        );
        client.must(
            "capability.apply",
            &json!({"name": format!("a-{page}"), "spec": {"type": "A", "score": 1}}),
        );
        match body["next_page_token"].as_str() {
            Some(next) => token = format!("&page_token={next}"),
            None => break,
        }
    }
    let stayed: Vec<_> = seen.iter().filter(|name| name.starts_with("c-")).collect();
    let once: BTreeSet<_> = seen.iter().collect();
    assert_eq!((stayed.len(), once.len()), (60, seen.len()), "no gap, no repeat");
    assert!(seen.is_sorted());
}

#[test]
fn what_was_written_can_be_read_at_its_position() {
    let server = ServerProcess::start();
    let client = server.client();
    for score in 1..=200 {
        let position =
            client.must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": score}}));
        assert_eq!(client.read(&format!("capabilities/c?min_position={position}"))["score"], score);
    }
}

#[test]
fn history_shows_each_step_of_a_stop_in_order_with_time_and_who() {
    let server = ServerProcess::start();
    let client = server.client();
    manual(&client);
    deploy(&client, "d1", 1);
    until("the create waits", || {
        (!client.items("operations?state=pending_approval").is_empty()).then_some(())
    });
    client.approve_all();
    let replica = client.wait_for("web", "running", 1)[0]["name"].as_str().expect("a name").to_owned();
    client.must("replica.stop", &json!({"name": replica}));
    client.approve_all();
    client.wait_for("web", "stopped", 1);
    let history = client.items(&format!("replicas/{replica}/history"));
    let facts: Vec<_> =
        history.iter().filter(|e| e["kind"] == "fact").filter_map(|e| e["type"].as_str()).collect();
    let expected = [
        "replica.created.v1",
        "operation.created.v1",
        "incarnation.reserved.v1",
        "operation.approved.v1",
        "incarnation.started.v1",
        "incarnation.running.v1",
        "operation.created.v1",
        "operation.approved.v1",
        "incarnation.ended.v1",
        "operation.ended.v1",
    ];
    let mut rest = facts.iter();
    for step in expected.iter().filter(|step| **step != "incarnation.started.v1") {
        assert!(rest.any(|fact| fact == step), "{step} is in order in {facts:?}");
    }
    for entry in &history {
        assert!(entry["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{entry}");
        assert!(!entry["initiator"].is_null(), "{entry}");
    }
    let positions: Vec<_> = history.iter().filter_map(|e| e["position"].as_u64()).collect();
    assert!(positions.is_sorted());
}

#[test]
fn twenty_replicas_start_once_each_though_the_server_is_killed_while_they_do() {
    let mut server = ServerProcess::start();
    set_up(&server.client(), &sleeper());
    deploy(&server.client(), "d20", 20);
    for round in 0..12_u64 {
        std::thread::sleep(Duration::from_millis(round * 17 % 90));
        server.kill();
        server.start_again();
    }
    let client = server.client();
    client.wait_for("web", "running", 20);
    until("the deployment completes", || {
        (client.read("plans/web/deployments/d20")["state"] == "completed").then_some(())
    });
    let alive = payloads(server.data());
    let replicas: BTreeSet<_> = alive.iter().map(|payload| &payload.replica).collect();
    assert_eq!((alive.len(), replicas.len()), (20, 20), "exactly twenty, each once");
    // Every command had one outcome: each operation ended once, each incarnation runs or ended once.
    let events = client.get("/v1/fleets/default/events?follow=false").text;
    let of = |type_name: &str| {
        events
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|e| e["type"] == type_name)
            .collect::<Vec<_>>()
    };
    let approved: BTreeSet<_> =
        of("dev.chancery.operation.approved.v1").iter().map(|e| e["data"]["operation"].to_string()).collect();
    let came_up: Vec<_> = of("dev.chancery.incarnation.running.v1")
        .iter()
        .map(|e| e["data"]["operation"].to_string())
        .collect();
    assert_eq!((approved.len(), came_up.len()), (20, 20));
    assert_eq!(approved, came_up.into_iter().collect());
    assert!(client.items("commands").is_empty(), "no command waits for an outcome");
}

#[test]
fn read_models_that_are_lost_are_made_again_byte_for_byte() {
    let mut server = ServerProcess::start();
    set_up(&server.client(), &sleeper());
    deploy(&server.client(), "d1", 3);
    server.client().wait_for("web", "running", 3);
    until("all is settled", || {
        (server.client().read("plans/web/deployments/d1")["state"] == "completed").then_some(())
    });
    let dump = |client: &TestClient| -> Vec<_> {
        let items = |kind: &RowKind| client.read(&format!("{}?limit=1000", kind.word()))["items"].to_string();
        RowKind::ALL.iter().map(items).collect()
    };
    let before = dump(&server.client());
    server.kill();
    std::fs::remove_dir_all(server.data().join("fleets/default/rows")).expect("the rows can be removed");
    server.start_again();
    assert_eq!(before, dump(&server.client()));
    server.kill();
    std::fs::remove_dir_all(server.data().join("fleets/default/snapshots")).expect("snapshots too");
    std::fs::remove_dir_all(server.data().join("fleets/default/rows")).expect("the rows can be removed");
    server.start_again();
    assert_eq!(before, dump(&server.client()));
}

#[test]
fn a_delete_leaves_no_process_directory_or_reservation_and_may_be_repeated() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &sleeper());
    deploy(&client, "d1", 2);
    let replicas = client.wait_for("web", "running", 2);
    let free = |client: &TestClient| {
        client.items("nodes").iter().map(|n| n["remaining"]["cpu"].as_u64().unwrap_or(0)).sum::<u64>()
    };
    assert_eq!(free(&client), 32_000 - 200);
    for replica in &replicas {
        client.must("replica.delete", &json!({"name": replica["name"]}));
        let again = client.intent(
            &format!("again-{}", replica["name"]),
            "replica.delete",
            &json!({"name": replica["name"]}),
        );
        assert!(matches!(again.status, 200 | 202 | 404), "{}", again.text);
    }
    until("no process is left", || payloads(server.data()).is_empty().then_some(()));
    until("nothing is reserved", || (free(&client) == 32_000).then_some(()));
    until("no directory is left", || {
        let nodes = std::fs::read_dir(server.data().join("executors/default/local/nodes")).ok()?;
        let left =
            nodes.flatten().flat_map(|node| std::fs::read_dir(node.path()).into_iter().flatten()).count();
        (left == 0).then_some(())
    });
}

/// Kills the only running process. Returns its replica's earlier row.
fn kill_behind_its_back(server: &ServerProcess) -> serde_json::Value {
    let row = server.client().wait_for("web", "running", 1).remove(0);
    let pid = payloads(server.data())[0].pid;
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it can be killed");
    row
}

#[test]
fn a_process_killed_from_outside_is_detected_within_moments_and_restarted() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &sleeper());
    deploy(&client, "d1", 1);
    let before = kill_behind_its_back(&server);
    let after = until("it runs again", || {
        let row = client.items("replicas?plan=web&phase=running").pop()?;
        (row["incarnation"] != before["incarnation"]).then_some(row)
    });
    assert_eq!(after["name"], before["name"]);
    // The second consecutive restart is delayed, with a message.
    kill_behind_its_back(&server);
    let failed = client.wait_for("web", "failed", 1);
    let message = failed[0]["message"].as_str().unwrap_or_default();
    assert!(message.contains('9') && failed[0]["next_restart"].is_string(), "{}", failed[0]);
    client.must("replica.start", &json!({"name": failed[0]["name"]}));
    client.wait_for("web", "running", 1);
}

#[test]
fn the_plan_of_the_seed_waits_with_reasons_continues_automatically_and_runs_with_its_volumes() {
    let server = ServerProcess::start();
    server.cli(&["apply", "-f", "examples/nodes.yaml"]);
    server.cli(&["apply", "-f", "examples/nginx/plan.yaml"]);
    server.cli(&["apply", "-f", "examples/nginx/deployment-1.yaml"]);
    let client = server.client();
    let plan = "nginx-deployment-plan";
    until("the reasons are shown", || {
        let waiting = client.read(&format!("plans/{plan}"))["unschedulable"].clone();
        let nodes: u64 = waiting.as_array()?.iter().filter_map(|unfit| unfit["count"].as_u64()).sum();
        (nodes == 4).then_some(())
    });
    let page = server.cli(&["describe", "plan", plan]);
    assert!(page.contains("node-1") && page.contains("nvidia-v100"), "{page}");
    server.cli(&["apply", "-f", "examples/nginx/capabilities.yaml"]);
    server.cli(&["apply", "-f", "examples/nginx/nodes.yaml"]);
    let operation = until("it has found a node", || {
        client.items(&format!("operations?plan={plan}&state=pending_approval")).pop()
    });
    assert!(operation["node"].is_string(), "{operation}");
    server.cli(&["approve", "--plan", plan, "--all"]);
    client.wait_for(plan, "running", 1);
    let volumes = client.items("volumes");
    assert!(volumes.len() == 2 && volumes.iter().all(|volume| volume["state"] == "ready"), "{volumes:?}");
}

#[test]
fn the_data_of_a_volume_moves_and_is_deleted_with_its_replica() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &sleeper());
    for number in 1..=2 {
        let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
        let storage = json!([{"class": "fast", "capacity": 2 << 20}]);
        let spec = json!({"domain": "domain-1", "resources": total, "storage": storage});
        let name = format!("store-{number}");
        client.must("node.apply", &json!({"name": name, "cluster": "local", "spec": spec}));
    }
    let script = "echo $$CHANCERY_NODE >> ${volume./data}/nodes; exec sleep 100000";
    let mut spec = client.read("plans/web")["spec"].clone();
    spec["payloads"] = json!([{
        "name": "app", "resources": {"cpu": 100, "memory": 64 << 20}, "run": {"argv": ["bash", "-c", script]},
        "volumes": [{"class": "fast", "capacity": 1 << 20, "mount": "/data", "on_delete": "destroy"}],
    }]);
    client.must("plan.apply", &json!({"name": "web", "spec": spec}));
    deploy(&client, "d1", 1);
    let replica = client.wait_for("web", "running", 1)[0]["name"].clone();
    client.must("replica.relocate", &json!({"name": replica}));
    until("it has moved", || {
        let moved = client.items("operations?kind=relocate&state=succeeded");
        (!moved.is_empty()).then_some(())
    });
    let volume = client.items("volumes").pop().expect("its own");
    assert_eq!(
        (&volume["state"], &volume["owner"], &volume["replica"]),
        (&json!("ready"), &replica, &replica)
    );
    let id = volume["id"].as_str().expect("an id").to_owned();
    let directory = until("its data is found", || {
        let found = std::process::Command::new("find").arg(server.data()).args(["-name", &id]).output();
        let found = String::from_utf8(found.expect("find runs").stdout).expect("a path");
        found.lines().next().map(std::path::PathBuf::from)
    });
    let nodes = until("both incarnations have written", || {
        let nodes = std::fs::read_to_string(directory.join("data/nodes")).ok()?;
        (nodes.lines().count() == 2).then_some(nodes)
    });
    assert_eq!(nodes.lines().collect::<BTreeSet<_>>().len(), 2, "one on each node: {nodes}");
    client.must("replica.delete", &json!({"name": replica}));
    until("nothing is left", || (client.items("volumes").is_empty() && !directory.exists()).then_some(()));
}

#[test]
fn handovers_and_combined_deletes_are_executed_in_causal_order() {
    let server = ServerProcess::start();
    let client = server.client();
    server.cli(&["apply", "-f", "examples/notes/1-notes.yaml"]);
    let first = client.wait_for("notes", "running", 1)[0]["name"].clone();
    server.cli(&["apply", "-f", "examples/notes/2-archive.yaml"]);
    let next = client.wait_for("archive", "running", 1)[0]["name"].clone();
    let (first, next) = (first.as_str().expect("a name"), next.as_str().expect("a name"));
    let read = until("it has read what was written", || {
        let output = server.run(&["logs", next]);
        let text = String::from_utf8(output.stdout).expect("text");
        text.contains("read by").then_some(text)
    });
    assert!(
        read.contains(&format!("written by {first}")) && read.contains(&format!("read by {next}")),
        "{read}"
    );
    // The requests come in the opposite order of their execution.
    server.cli(&["delete", "volume", "notes"]);
    server.cli(&["delete", "plan", "archive", "--cascade"]);
    until("nothing is left", || client.items("volumes").is_empty().then_some(()));
    let types = "incarnation.start_requested.v1,incarnation.ended.v1,volume.created.v1,volume.destroy_requested.v1,volume.destroyed.v1";
    let events = client.get(&format!("/v1/fleets/default/events?types={types}&follow=false")).text;
    let event_types: Vec<_> = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("an event"))
        .map(|event| event["type"].as_str().expect("a type").replace("dev.chancery.", ""))
        .collect();
    let of_one = ["incarnation.start_requested.v1", "incarnation.ended.v1"];
    let wanted = [
        &["volume.created.v1"],
        &of_one[..],
        &of_one,
        &["volume.destroy_requested.v1", "volume.destroyed.v1"],
    ];
    assert_eq!(event_types, wanted.concat());
}

#[test]
fn five_hundred_replicas_on_five_hundred_simulated_nodes_are_placed_once_each() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &sleeper());
    client.must("cluster.apply", &json!({"name": "sim", "spec": {"runtime": "simulated"}}));
    for i in 0..500 {
        let total = json!({"cpu": 1000, "memory": 1 << 30, "disk": 0});
        let spec = json!({"domain": format!("domain-{}", i % 10), "resources": total});
        client.must("node.apply", &json!({"name": format!("sim-{i}"), "cluster": "sim", "spec": spec}));
    }
    let mut spec = client.read("plans/web")["spec"].clone();
    (spec["cluster"], spec["sharing"]) = (json!("sim"), json!("never"));
    client.must("plan.apply", &json!({"name": "web", "spec": spec}));
    deploy(&client, "d500", 500);
    client.wait_for("web", "running", 500);
    let count = |type_name: &str| {
        let events = client.get(&format!("/v1/fleets/default/events?types={type_name}&follow=false")).text;
        events.lines().count()
    };
    assert_eq!(
        (count("incarnation.reserved.v1"), count("plan.unschedulable.v1")),
        (500, 0),
        "one placement each, none repeated"
    );
    let nodes: BTreeSet<_> =
        client.items("replicas?limit=1000").iter().map(|r| r["node"].to_string()).collect();
    assert_eq!(nodes.len(), 500);
}

#[test]
fn what_a_process_wrote_last_can_be_read_after_its_end() {
    let server = ServerProcess::start();
    let client = server.client();
    let run = json!({"argv": ["sh", "-c", "echo started; echo broken because of x >&2; exit 3"]});
    set_up(&client, &json!({"name": "app", "resources": {"cpu": 1, "memory": 64 << 20}, "run": run}));
    deploy(&client, "d1", 1);
    let failed = client.wait_for("web", "failed", 1);
    let name = failed[0]["name"].as_str().expect("a name");
    until("its output can be read", || {
        let logs = server.run(&["logs", name, "--stderr"]);
        (String::from_utf8_lossy(&logs.stdout).trim() == "broken because of x").then_some(())
    });
}

#[test]
fn connections_leave_the_journal_its_descriptors_whatever_limit_a_server_is_started_with() {
    let mut server = ServerProcess::new();
    // Low like a shell's limit, scaled down: the server raises it, and reserves half of the result.
    server.limit_files(64, 300);
    server.set("CHANCERY_SEGMENT_BYTES", "16KiB");
    server.start_again();
    let client = server.client();
    let address = server.url().trim_start_matches("http://").to_owned();
    let held = |count| -> Vec<_> {
        (0..count).map(|_| std::net::TcpStream::connect(&address).expect("it listens")).collect()
    };
    set_up(&client, &sleeper());
    let below = held(40);
    // Meanwhile segments start, and rows are written.
    for n in 0..30 {
        let mut spec = client.read("plans/web")["spec"].clone();
        spec["payloads"][0]["run"]["env"]["TEXT"] = json!(format!("{n}{}", "x".repeat(8000)));
        client.must("plan.apply", &json!({"name": "web", "spec": spec}));
    }
    drop(below);
    let beyond = held(400);
    until("excess connections are rejected", || {
        (server.client().get("/metrics").status == 503).then_some(())
    });
    assert_eq!(server.client().get("/readyz").status, 200, "a probe is answered all the same");
    drop(beyond);
    until("connections are accepted again", || (server.client().get("/metrics").status == 200).then_some(()));
    assert!(server.log().contains("limits.connections"), "it reports why: {}", server.log());
    deploy(&client, "d1", 0);
}

#[test]
fn a_server_whose_log_cannot_be_written_serves_on() {
    let mut server = ServerProcess::new();
    server.set("CHANCERY_LOG_FILTER", "trace");
    server.log_to("/dev/full");
    server.start_again();
    let client = server.client();
    set_up(&client, &sleeper());
    deploy(&client, "d1", 1);
    client.approve_all();
    let before = client.wait_for("web", "running", 1);
    // A start with warnings in the log works too.
    server.kill();
    server.start_again();
    let client = server.client();
    assert_eq!(client.wait_for("web", "running", 1)[0]["processes"], before[0]["processes"]);
    assert_eq!(client.get("/readyz").status, 200);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn doctor_reports_how_ends_are_proved_here_also_without_kafka() {
    let doctor = |cgroup: &str| {
        let mut command = std::process::Command::new(program());
        let done =
            command.arg("doctor").env("CHANCERY_CGROUP_ROOT", cgroup).current_dir("/").output().unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned())
    };
    let (status, text) = doctor("none");
    assert_eq!(status, Some(0), "{text}");
    let reason =
        "processes: the end of a process is proved by a search through /proc: the setting cgroup is none\n";
    assert!(text.starts_with(reason) && text.contains("Delegate=yes"), "{text}");
    let (status, text) = doctor("auto");
    assert!(status == Some(0) && text.starts_with("processes: the end of a process is proved by "), "{text}");
    let (status, text) = doctor("/no/such/directory");
    assert_eq!(status, Some(1), "{text}");
    assert!(
        text.starts_with("processes: cannot start an executor on this host: cannot read /no/such/directory"),
        "{text}"
    );
}

#[test]
fn a_fleet_that_grew_is_evened_out_by_a_rebalance() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &sleeper());
    let mut spec = client.read("plans/web")["spec"].clone();
    spec["approval"]["relocate"] = json!("manual");
    client.must("plan.apply", &json!({"name": "web", "spec": spec}));
    deploy(&client, "d1", 6);
    client.wait_for("web", "running", 6);
    let spec = json!({"domain": "another", "resources": {"cpu": 8000, "memory": 16u64 << 30, "disk": 0}});
    client.must("node.apply", &json!({"name": "later-1", "cluster": "local", "spec": spec}));
    let spread = || client.read("plans/web")["spread"].clone();
    until("the plan is shown as uneven", || (spread()["balance"] == "uneven").then_some(()));
    let message = client.read("plans/web")["message"].clone();
    assert!(message.as_str().is_some_and(|text| text.contains("rebalance would even it out")), "{message}");
    server.cli(&["rebalance", "web"]);
    until("two moves wait for approval", || {
        let waiting = client.items("operations?plan=web&kind=relocate&state=pending_approval");
        (waiting.len() == 2).then_some(())
    });
    server.cli(&["approve", "--plan", "web", "--all"]);
    until("it is evened out", || {
        let plan = client.read("plans/web");
        let ended = plan["spread"]["rebalance_requested_by"].is_null() && plan["spread"]["balance"] == "even";
        (ended && plan["spread"]["domains"]["another"] == 2).then_some(())
    });
    client.wait_for("web", "running", 6);
    assert!(server.cli(&["rebalance", "web"]).contains("unchanged"), "no work is left");
}
