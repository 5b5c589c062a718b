//! Fleet that campaigns work on, and helpers to fill and empty it.

use serde_json::{Value, json};

use crate::{ServerProcess, TestClient, payloads, until};

/// Creates a cluster with four nodes, and a plan `web` of the payload with automatically approved operations.
pub fn set_up(client: &TestClient, payload: &Value) {
    client.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "process"}}));
    for i in 1..=4 {
        let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
        let spec = json!({"domain": format!("domain-{}", i % 2), "resources": total});
        client.must("node.apply", &json!({"name": format!("node-{i}"), "cluster": "local", "spec": spec}));
    }
    let automatic = json!({
        "create": "automatic", "update": "automatic", "relocate": "automatic", "restart": "automatic",
        "start": "automatic", "stop": "automatic", "delete": "automatic",
    });
    let spec = json!({
        "namespace": "tests", "service": "web", "payloads": [payload], "approval": automatic, "sharing": "allowed",
    });
    client.must("plan.apply", &json!({"name": "web", "spec": spec}));
}

/// Creates a plan `hand` of the payload with manually approved operations.
pub fn by_hand(client: &TestClient, payload: &Value) {
    let spec = json!({"namespace": "tests", "service": "hand", "payloads": [payload], "sharing": "allowed"});
    client.must("plan.apply", &json!({"name": "hand", "spec": spec}));
}

/// Payload that sleeps for a long time.
pub fn sleeper() -> Value {
    json!({"name": "app", "resources": {"cpu": 100, "memory": 1 << 20}, "run": {"argv": ["sleep", "100000"]}})
}

/// Requests `count` replicas of `web`.
pub fn deploy(client: &TestClient, name: &str, count: u32) -> u64 {
    client.must("deployment.create", &json!({"plan": "web", "name": name, "spec": {"count": count}}))
}

/// Stops every payload, which shows that everything can still be ended.
pub fn empty(server: &ServerProcess, name: &str) {
    let client = server.client();
    deploy(&client, &format!("{name}-none"), 0);
    client.must(
        "deployment.create",
        &json!({"plan": "hand", "name": format!("{name}-none"), "spec": {"count": 0}}),
    );
    until("no replica is left", || {
        client.approve_all();
        client.items("replicas?limit=1").is_empty().then_some(())
    });
    until("nothing runs", || payloads(server.data()).is_empty().then_some(()));
}

/// Runs exactly `count` replicas of `web`, and nothing else.
pub fn fill(server: &ServerProcess, name: &str, count: u32) {
    let client = server.client();
    deploy(&client, &format!("{name}-last"), count);
    client.wait_for("web", "running", count as usize);
    until("only these run, each once", || {
        let alive = payloads(server.data());
        let replicas: std::collections::BTreeSet<_> = alive.iter().map(|payload| &payload.replica).collect();
        (alive.len() == count as usize && replicas.len() == alive.len()).then_some(())
    });
}
