//! Causes: from events to what made them possible and back, and the reasons for a value.

use chancery_tests::fault_campaigns::fleet::sleeper;
use chancery_tests::past::causes::{check_causes, effects, position};
use chancery_tests::past::in_fleet;
use chancery_tests::{ServerProcess, TestClient, until};
use serde_json::{Value, json};

/// Applies a cluster with two nodes, of which the second has no room, and a plan whose operations people approve.
fn set_up(client: &TestClient, approval: &str) {
    client.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "process"}}));
    for (name, cpu) in [("node-1", 100), ("node-2", 1)] {
        let spec = json!({"domain": name, "resources": {"cpu": cpu, "memory": 16u64 << 30, "disk": 0}});
        client.must("node.apply", &json!({"name": name, "cluster": "local", "spec": spec}));
    }
    let kinds = ["create", "update", "relocate", "restart", "start", "stop", "delete"];
    let approval: Value = kinds.iter().map(|kind| ((*kind).to_owned(), json!(approval))).collect();
    let spec = json!({"namespace": "tests", "service": "web", "payloads": [sleeper()], "approval": approval});
    client.must("plan.apply", &json!({"name": "web", "spec": spec}));
}

#[test]
fn why_shows_who_moved_a_replica_who_approved_it_and_what_was_observed() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, "manual");
    client.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 1}}));
    until("it runs", || {
        client.approve_all();
        (!client.items("replicas?phase=running").is_empty()).then_some(())
    });
    let replica = client.items("replicas")[0]["name"].as_str().expect("a name").to_owned();
    let before = client.get(&in_fleet("replicas")).position.expect("a position");
    let spec = json!({"domain": "node-2", "resources": {"cpu": 100, "memory": 16u64 << 30, "disk": 0}});
    client.must("node.apply", &json!({"name": "node-2", "cluster": "local", "spec": spec}));
    server.cli(&["relocate", &replica, "--actor", "ann"]);
    let pending = until("the move waits for approval", || {
        client.items("operations?kind=relocate&state=pending_approval").pop()
    });
    server.cli(&["approve", pending["id"].as_str().expect("an id"), "--actor", "bob"]);
    client.wait_for("web", "running", 1);
    until("it has moved", || (client.items("replicas")[0]["node"] == "node-2").then_some(()));
    let tree = server.cli(&["why", &format!("replica/{replica}"), "node=node-2"]);
    let line = |words: &[&str]| {
        let found = tree.lines().find(|line| words.iter().all(|word| line.contains(word)));
        found.unwrap_or_else(|| panic!("{words:?} in:\n{tree}"))
    };
    assert!(tree.starts_with(&format!("replica/{replica} node=node-2\n")), "{tree}");
    line(&["set by", "incarnation.running"]);
    line(&["because of", "incarnation.reported", "by"]);
    line(&["node reserved by", "incarnation.reserved", "node=node-2"]);
    line(&["operation:", "operation.created", "kind=relocate", "requested_by=ann"]);
    line(&["because of", "replica.relocate", "by ann"]);
    let hash = client.read(&format!("operations/{}", pending["id"].as_str().expect("an id")))["hash"].clone();
    line(&["approved by", "approved_by=bob", &format!("hash={}", hash.as_str().expect("a hash"))]);
    line(&["because of", "operation.approve", "by bob"]);
    let recomputed = server.cli(&["why", &format!("replica/{replica}"), "node", "--recompute"]);
    assert!(
        recomputed.contains("computed again, not recorded: node-2, because ")
            && recomputed.contains("not node-1: "),
        "{recomputed}"
    );
    // The value before the move is explained at a moment before it.
    let old =
        server.cli(&["why", &format!("replica/{replica}"), "node=node-1", "--as-of", &before.to_string()]);
    assert!(old.contains("kind=create") && !old.contains("kind=relocate"), "{old}");
    let wrong = server.run(&["why", &format!("replica/{replica}"), "node=node-1"]);
    let err = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        wrong.status.code() == Some(4) && err.contains("is \"node-2\"") && err.contains("an earlier moment"),
        "{err}"
    );
    // The incarnation on the first node was ended by the move, not by the operation that started it.
    let ended = client.items("incarnations?node=node-1&state=destroyed")[0]["id"].clone();
    let end = server.cli(&["why", "incarnation", ended.as_str().expect("an id"), "state"]);
    assert!(
        end.contains("kind=relocate") && end.contains("approved_by=bob") && !end.contains("kind=create"),
        "{end}"
    );
    let unknown = server.run(&["why", &format!("replica/{replica}"), "reachability"]);
    let err = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(unknown.status.code() == Some(2) && err.contains("node, incarnation"), "{err}");
    assert_eq!(server.run(&["why", "replica/nothing-1"]).status.code(), Some(3));
    let last = server.cli(&["why", "node/node-2"]);
    assert!(last.contains("incarnation.reserved") || last.contains("node.applied"), "{last}");
}

#[test]
fn a_placement_that_waited_names_what_freed_its_capacity() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, "automatic");
    client.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 1}}));
    client.wait_for("web", "running", 1);
    let spec = json!({"namespace": "tests", "service": "other", "payloads": [sleeper()], "approval": {"create": "automatic"}});
    client.must("plan.apply", &json!({"name": "other", "spec": spec}));
    client.must("deployment.create", &json!({"plan": "other", "name": "d1", "spec": {"count": 1}}));
    until("it waits for a node", || {
        (!client.read("plans/other")["unschedulable"].as_array().expect("reasons").is_empty()).then_some(())
    });
    let replica = client.items("replicas?plan=web")[0]["name"].clone();
    client.must("replica.stop", &json!({"name": replica}));
    let row = client.wait_for("other", "running", 1).remove(0);
    let why = client.get(&in_fleet(&format!(
        "replicas/{}/why?field=node&value=node-1",
        row["name"].as_str().expect("a name")
    )));
    let reasons = why.json()["reasons"].as_array().expect("reasons").clone();
    let reserved = reasons
        .iter()
        .find(|reason| reason["event"]["type"] == "dev.chancery.incarnation.reserved.v1")
        .expect("a reservation");
    let freed = &reserved["causes"][0];
    assert_eq!(freed["type"], "dev.chancery.incarnation.ended.v1", "{reserved:#}");
    assert_eq!(freed["data"]["replica"], replica);
    let effects = effects(&client, position(freed));
    assert!(effects.iter().any(|effect| effect["id"] == reserved["event"]["id"]), "{effects:?}");
    let head = client.get(&in_fleet("replicas")).position.expect("a position");
    for at in 1..=head {
        check_causes(&client, at);
    }
    let late = client.get(&in_fleet(&format!("events/{}", head + 1000)));
    assert_eq!(late.status, 404, "{}", late.text);
}
