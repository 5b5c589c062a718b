//! Version that never becomes ready is stopped and rolled back, with real processes.

use std::collections::BTreeSet;

use chancery_tests::fault_campaigns::fleet::set_up;
use chancery_tests::{ServerProcess, TestClient, payloads, program, until};
use serde_json::{Value, json};

/// Payload that behaves as its coordinate requires, and is ready when its port is open.
fn payload() -> Value {
    json!({
        "name": "app", "resources": {"cpu": 100, "memory": 256 << 20},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80}], "ready": {"tcp": {"port": "http"}},
        "run": {"argv": ["sh", "-c", "${script}"]},
    })
}

fn deploy(client: &TestClient, name: &str, script: &str, more: &Value) {
    let mut spec = json!({"count": 3, "coordinates": {"app": {"script": script}}});
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    client.must("deployment.create", &json!({"plan": "web", "name": name, "spec": spec}));
}

fn good() -> String {
    format!("exec {} demo-payload --port $PORT_HTTP", program().display())
}

fn state(client: &TestClient, deployment: &str) -> String {
    client.read(&format!("plans/web/deployments/{deployment}"))["state"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

fn reaches(client: &TestClient, deployment: &str, wanted: &str) {
    until(&format!("{deployment} is {wanted}"), || (state(client, deployment) == wanted).then_some(()));
}

fn pids(server: &ServerProcess) -> BTreeSet<String> {
    payloads(server.data()).iter().map(|payload| format!("{payload:?}")).collect()
}

/// Starts three replicas of a good version, and an update of one of them to a version that never becomes
/// ready.
fn hung(more: &Value) -> (ServerProcess, BTreeSet<String>) {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &payload());
    deploy(&client, "good", &good(), &json!({}));
    reaches(&client, "good", "completed");
    let before = pids(&server);
    assert_eq!(before.len(), 3);
    deploy(&client, "hung", "exec sleep 100000", more);
    until("the hung version starts", || (pids(&server).len() > 3).then_some(()));
    (server, before)
}

#[test]
fn a_hung_version_shows_what_it_waits_for_and_is_rolled_back_while_the_good_one_serves() {
    let (server, before) = hung(&json!({}));
    let client = server.client();
    let message = until("it shows what it waits for", || {
        let row = client.read("plans/web/deployments/hung");
        let message = row["message"].as_str().unwrap_or_default().to_owned();
        message.contains("to be ready (readiness probe of ").then_some(message)
    });
    for part in ["operation ", "(update of web-", "on node node-", ", until ", "cancel deployment web/hung"] {
        assert!(message.contains(part), "{part:?} in {message:?}");
    }
    let output = server.cli(&["rollback", "web", "--name", "back"]);
    assert_eq!(output, "deployment/web/back created\n");
    reaches(&client, "back", "completed");
    assert_eq!(state(&client, "hung"), "superseded");
    until("the hung version is gone", || (pids(&server) == before).then_some(()));
    let row = client.read("plans/web/deployments/back");
    assert_eq!((&row["rollback"]["to"], &row["rollback"]["rule"]), (&json!("good"), &Value::Null));
}

#[test]
fn a_stalled_version_is_rolled_back_by_its_own_rule_which_reports_why() {
    let (server, before) = hung(&json!({"auto_rollback": true, "progress_deadline": 1500}));
    let client = server.client();
    reaches(&client, "hung", "failed");
    let back = until("the rollback completes", || {
        let all = client.items("plans/web/deployments");
        all.into_iter().find(|row| !row["rollback"].is_null() && row["state"] == "completed")
    });
    assert_eq!(back["rollback"]["rule"]["name"], "deployment/web/hung/auto_rollback");
    let reason = back["rollback"]["rule"]["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("no progress for 1500 ms: waits for operation "), "{reason}");
    until("the hung version is gone", || (pids(&server) == before).then_some(()));
    let events = client.get("/v1/fleets/default/events?follow=false&types=deployment.stalled.v1").text;
    assert!(events.contains("dev.chancery.deployment.stalled.v1"), "{events}");
}

#[test]
fn a_stalled_deployment_is_counted_and_an_applied_one_that_waits_supersedes_it() {
    let (server, before) = hung(&json!({"progress_deadline": 1500}));
    let client = server.client();
    until("it is stalled", || {
        let listed = client.items("deployments?stalled=yes");
        (listed.len() == 1 && !listed[0]["stalled_at"].is_null()).then_some(())
    });
    let metrics = client.get("/metrics").text;
    assert!(metrics.contains("chancery_deployments_stalled{fleet=\"default\"} 1"), "{metrics}");
    let file = server.directory().join("next.yaml");
    let text = format!(
        "apiVersion: chancery/v1\nkind: Deployment\nmetadata: {{name: next}}\nspec:\n  plan: web\n  count: 3\n  \
         coordinates: {{app: {{script: {:?}}}}}\n",
        good()
    );
    std::fs::write(&file, text).expect("a file");
    let path = file.to_str().expect("a path");
    assert_eq!(server.cli(&["apply", "-f", path]), "deployment/web/next created\n");
    assert_eq!(state(&client, "next"), "pending");
    assert_eq!(server.cli(&["apply", "-f", path, "--supersede"]), "deployment/web/next configured\n");
    reaches(&client, "next", "completed");
    assert_eq!(state(&client, "hung"), "superseded");
    until("the hung version is gone", || (pids(&server) == before).then_some(()));
    let metrics = client.get("/metrics").text;
    assert!(metrics.contains("chancery_deployments_stalled{fleet=\"default\"} 0"), "{metrics}");
}

#[test]
fn a_canary_that_is_ready_is_on_the_page_of_the_fleet_until_a_person_decides() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &payload());
    deploy(&client, "good", &good(), &json!({}));
    reaches(&client, "good", "completed");
    let before = client.items("replicas");
    let canary = json!({"strategy": {"canary": {"count": 1}}});
    deploy(&client, "next", &format!("true; {}", good()), &canary);
    let page = until("the page has the canary", || {
        let page = server.cli(&["status"]);
        page.contains("\nCanaries to be promoted or rolled back\n").then_some(page)
    });
    assert!(page.contains("\n  try: chancery promote deployment/PLAN/NAME\n"), "{page}");
    server.cli(&["promote", "deployment/web/next"]);
    reaches(&client, "next", "completed");
    let page = server.cli(&["status"]);
    assert!(page.ends_with("\nNothing waits, and nothing has failed.\n"), "{page}");
    // The canary has replaced one of the replicas.
    let after = client.items("replicas");
    let deleted = before.iter().find(|old| after.iter().all(|new| new["name"] != old["name"]));
    let deleted = deleted.expect("one was deleted");
    let (name, id) =
        (deleted["name"].as_str().expect("a name"), deleted["incarnation"].as_str().expect("an id"));
    let errors = String::from_utf8_lossy(&server.run(&["logs", name]).stderr).into_owned();
    assert!(errors.contains(&format!("\ntry: chancery logs incarnation/{id}\n")), "{errors}");
}
