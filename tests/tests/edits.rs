//! Edits of plans as users see them, and operations that are no longer in the rows.

use chancery_events::spec::PlanSpec;
use chancery_tests::fault_campaigns::fleet::{deploy, set_up, sleeper};
use chancery_tests::{ServerProcess, until};
use serde_json::json;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn an_edit_reports_which_fields_are_in_effect_now_and_which_need_a_deployment() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &sleeper());
    let spec = client.read("plans/web")["spec"].clone();
    let mut edited = spec.clone();
    edited["sharing"] = json!("never");
    edited["max_unavailable"] = json!(2);
    edited["namespace"] = json!("other");
    let body = json!({"name": "web", "spec": edited});
    let wanted = json!({"immediate": ["sharing", "max_unavailable"], "deployed": ["namespace"]});
    for _ in 0..2 {
        let answer = client.intent("an-edit", "plan.apply", &body);
        assert_eq!(answer.json()["changed"], wanted, "also of a repeat: {}", answer.text);
    }
    let again = client.intent("the-same", "plan.apply", &body);
    assert_eq!((again.json()["verdict"].as_str(), again.json().get("changed")), (Some("unchanged"), None));
    let path = "/v1/fleets/default/plans/web";
    let put = client.send(
        "PUT",
        path,
        &[("content-type", "application/json")],
        json!({"spec": spec}).to_string().as_bytes(),
    );
    assert_eq!(put.json()["changed"], wanted, "back again: {}", put.text);

    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("plan.yaml");
    let manifest = |zone: &str, argument: &str| {
        format!(
            "apiVersion: chancery/v1\nkind: Plan\nmetadata: {{name: shop}}\nspec:\n  namespace: tests\n  service: shop\n  \
             zone: {zone}\n  payloads:\n    - name: app\n      resources: {{cpu: 1, memory: 1}}\n      run: {{argv: [sleep, \
             \"{argument}\"]}}\n"
        )
    };
    let apply = |zone: &str, argument: &str| {
        std::fs::write(&file, manifest(zone, argument)).expect("a file");
        let output = server.run(&["apply", "-f", file.to_str().expect("a path")]);
        (text(&output.stdout), text(&output.stderr))
    };
    assert_eq!(apply("a", "1"), ("plan/shop created\n".into(), String::new()));
    let (outcome, hints) = apply("b", "2");
    assert_eq!(outcome, "plan/shop configured\n");
    assert!(hints.contains("hint: plan/shop: takes effect immediately: zone\n"), "{hints}");
    assert!(
        hints.contains(
            "hint: plan/shop: takes effect with the next deployment: payloads\nhint: apply a new Deployment"
        ),
        "{hints}"
    );
    assert_eq!(apply("b", "2"), ("plan/shop unchanged\n".into(), String::new()));

    let page = text(&server.run(&["describe", "plan", "shop"]).stdout);
    for (field, class) in PlanSpec::FIELDS {
        assert!(page.contains(&format!("\n  {field}: ")), "{field}, a {class}: {page}");
    }
}

#[test]
fn an_operation_that_has_left_the_rows_is_read_from_the_journal() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &sleeper());
    deploy(&client, "d1", 1);
    let replica = client.wait_for("web", "running", 1)[0]["name"].as_str().expect("a name").to_owned();
    let create = client.items("operations?kind=create")[0].clone();
    let id = create["id"].as_str().expect("an id");
    for stop in 1..=21 {
        let (verb, phase) =
            if stop % 2 == 1 { ("replica.stop", "stopped") } else { ("replica.start", "running") };
        client.must(verb, &json!({"name": replica}));
        client.wait_for("web", phase, 1);
    }
    let left =
        || client.items(&format!("operations?replica={replica}")).iter().all(|row| row["id"] != create["id"]);
    until("the create has left the rows", || left().then_some(()));
    assert_eq!(client.read(&format!("operations/{id}")), create, "it reads as it did");
    client.must("replica.delete", &json!({"name": replica}));
    until("the replica is gone", || client.items("replicas").is_empty().then_some(()));
    assert_eq!(client.read(&format!("operations/{id}")), create, "also when its replica is gone");
    for args in [["get", "operation", id], ["describe", "operation", id]] {
        let output = server.run(&args);
        assert!(text(&output.stdout).contains("succeeded"), "{args:?}: {}", text(&output.stderr));
    }
    let never = id.replacen("00000000-0000", "00000000-7777", 1);
    assert_eq!(client.get(&format!("/v1/fleets/default/operations/{never}")).status, 404);
}
