//! Approvals through the command line: requests that wait, who can approve them, and the break-glass.

use std::process::Output;

use chancery_tests::fault_campaigns::fleet::{deploy, set_up, sleeper};
use chancery_tests::{ServerProcess, TestClient, until};
use serde_json::{Value, json};

/// Starts a server with a plan of `count` replicas, whose deletes and moves need manual approval.
fn running(count: u32) -> (ServerProcess, TestClient) {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &sleeper());
    deploy(&client, "d1", count);
    client.wait_for("web", "running", count as usize);
    let mut spec = client.read("plans/web")["spec"].clone();
    for kind in ["stop", "delete", "relocate"] {
        spec["approval"][kind] = json!("manual");
    }
    client.must("plan.apply", &json!({"name": "web", "spec": spec}));
    (server, client)
}

fn four_eyes(client: &TestClient, kinds: &[&str]) {
    let spec = json!({"kinds": kinds, "rule": {"four_eyes": {}}});
    client.must("policy.apply", &json!({"name": "two", "spec": spec}));
}

fn by(server: &ServerProcess, actor: &str, line: &str) -> (Option<i32>, String, String) {
    let mut args = vec!["--actor", actor];
    args.extend(line.split_whitespace());
    let Output { status, stdout, stderr } = server.run(&args);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (status.code(), text(stdout), text(stderr))
}

fn waiting(client: &TestClient) -> Vec<Value> {
    client.items("requests?state=pending")
}

#[test]
fn a_cascade_waits_for_another_person_and_shows_what_it_ends() {
    let (server, client) = running(2);
    four_eyes(&client, &["delete"]);
    let (code, out, stderr) = by(&server, "ann", "delete plan web --cascade");
    assert_eq!((code, out.as_str()), (Some(0), "plan/web waits for approval\n"), "{stderr}");
    let request = waiting(&client).remove(0);
    let id = request["id"].as_str().expect("an id").to_owned();
    assert!(stderr.contains("waits for approval by a person other than ann: policy two"), "{stderr}");
    assert!(stderr.contains(&format!("chancery approve request/{id}")), "{stderr}");
    assert_eq!(request["effects"][0]["count"], json!(2), "{request}");
    let (_, listed, _) = by(&server, "bob", "get requests");
    assert!(listed.contains("delete plan/web with cascade (2 replicas)"), "{listed}");
    let (_, shown, _) = by(&server, "bob", &format!("describe request/{id}"));
    assert!(
        shown.contains("2 replicas of plan web") && shown.contains("another person: chancery"),
        "{shown}"
    );
    let (code, _, stderr) = by(&server, "ann", &format!("approve request/{id}"));
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("policy two requires another approver"), "{stderr}");
    let (code, out, stderr) = by(&server, "bob", &format!("approve request/{id}"));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(out.starts_with(&format!("request/{id} approved: delete plan/web")), "{out}");
    until("the plan is deleted", || (client.get("/v1/fleets/default/plans/web").status == 404).then_some(()));
    let (_, past, _) = by(&server, "bob", &format!("history request/{id}"));
    assert!(past.contains("request.approved approved_by=bob"), "{past}");
}

#[test]
fn a_weaker_policy_or_plan_is_a_request_with_its_difference() {
    let (server, client) = running(1);
    four_eyes(&client, &["delete", "stop"]);
    let (code, out, _) = by(&server, "ann", "delete policy two");
    assert_eq!((code, out.as_str()), (Some(0), "policy/two waits for approval\n"));
    let fewer = json!({"name": "two", "spec": {"kinds": ["stop"], "rule": {"four_eyes": {}}}});
    let answer = client.intent("fewer", "policy.apply", &fewer);
    assert_eq!(answer.status, 202, "{}", answer.text);
    let request = answer.json()["subject"].as_str().expect("a subject").to_owned();
    assert!(request.starts_with("request/"), "{request}");
    assert_eq!(waiting(&client).len(), 1, "the deletion is superseded");
    let (_, shown, _) = by(&server, "bob", &format!("describe {request}"));
    assert!(shown.contains("kinds: delete, stop -> stop"), "{shown}");
    let (code, out, stderr) = by(&server, "bob", &format!("reject {request} --reason never"));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(out.contains("rejected"), "{out}");
    let mut spec = client.read("plans/web")["spec"].clone();
    spec["approval"]["delete"] = json!("automatic");
    let answer = client.intent("auto", "plan.apply", &json!({"name": "web", "spec": spec}));
    assert_eq!(answer.status, 202, "{}", answer.text);
    let request = answer.json()["subject"].as_str().expect("a subject").to_owned();
    let (_, shown, _) = by(&server, "bob", &format!("describe {request}"));
    assert!(shown.contains("approval.delete: manual -> automatic"), "{shown}");
    assert_eq!(client.read("plans/web")["spec"]["approval"]["delete"], json!("manual"));
    let (code, _, stderr) = by(&server, "bob", &format!("approve {request}"));
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(client.read("plans/web")["spec"]["approval"]["delete"], json!("automatic"));
}

#[test]
fn a_drain_waits_for_another_person_where_moves_do() {
    let (server, client) = running(1);
    four_eyes(&client, &["relocate"]);
    let node = client.items("replicas")[0]["node"].as_str().expect("a node").to_owned();
    let (code, out, stderr) = by(&server, "ann", &format!("drain {node} --wait"));
    assert_eq!((code, out), (Some(0), format!("node/{node} waits for approval\n")), "{stderr}");
    assert!(client.read(&format!("nodes/{node}"))["disruptions"][0]["state"] == json!("scheduled"));
    let id = waiting(&client)[0]["id"].as_str().expect("an id").to_owned();
    let (code, _, stderr) = by(&server, "bob", &format!("approve request/{id}"));
    assert_eq!(code, Some(0), "{stderr}");
    let disruption = client.read(&format!("nodes/{node}"))["disruptions"][0].clone();
    assert_eq!((&disruption["state"], &disruption["approved_by"]), (&json!("approved"), &json!("bob")));
}

#[test]
fn an_expunge_waits_unless_the_glass_is_broken_and_that_is_loud() {
    let (server, client) = running(1);
    four_eyes(&client, &["expunge"]);
    let node = client.items("replicas")[0]["node"].as_str().expect("a node").to_owned();
    let (code, out, _) = by(&server, "ann", &format!("expunge {node} --yes"));
    assert_eq!((code, out), (Some(0), format!("node/{node} waits for approval\n")));
    assert_eq!(client.read(&format!("nodes/{node}"))["state"], json!("allocated"));
    let (code, out, stderr) = by(&server, "ann", &format!("expunge {node} --yes --break-glass fire"));
    assert_eq!((code, out), (Some(0), format!("node/{node} expunged\n")), "{stderr}");
    let row = client.read(&format!("nodes/{node}"));
    assert_eq!(row["bypass"], json!({"requested_by": "ann", "reason": "fire", "policies": ["two"]}), "{row}");
    let (_, past, _) = by(&server, "bob", &format!("history node {node}"));
    assert!(past.contains("approval.bypassed") && past.contains("fire"), "{past}");
    let metrics = client.get("/metrics").text;
    assert!(metrics.contains("chancery_approvals_bypassed_total{fleet=\"default\"} 1"), "{metrics}");
    assert!(server.log().contains("break-glass: node expunged without approval"), "{}", server.log());
}
