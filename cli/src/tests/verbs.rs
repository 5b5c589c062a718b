//! `status`, `version`, `scale`, and `diff -f`.

use serde_json::{Value, json};

use chancery_events::id::RequestId;

use super::*;

fn page(items: &Value) -> FakeAction {
    ok(&json!({ "items": items, "next_page_token": null, "position": 12 }))
}

fn deployment(name: &str, created: &str, strategy: &Value) -> Value {
    let mut row = row(&json!({
        "plan": "web", "name": name, "generation": 1, "count": 2, "coordinates": { "app": { "version": name } },
        "strategy": strategy, "progress_deadline": 60_000, "auto_rollback": true, "rollback": null,
        "requested_by": "ann", "state": "completed", "last_progress_at": null, "stalled_at": null,
        "active_set": "new", "message": "",
    }));
    row["created_at"] = json!(created);
    row
}

#[test]
fn the_versions_of_both_ends_are_shown() {
    let client = format!("client {}\n", env!("CARGO_PKG_VERSION"));
    let (result, asked) = run_line("chancery version", vec![ok(&json!({ "version": "9.1.0", "api": "v1" }))]);
    assert_eq!(result.expect("versions"), format!("{client}server 9.1.0\n"));
    assert_eq!(asked[0].line, "GET /version");
    let (result, _) = run_line("chancery version", vec![problem(404, "route_not_found", false)]);
    assert_eq!(result.expect("versions"), format!("{client}server unknown\n"));
    let (result, asked) = run_line("chancery version --client", Vec::new());
    assert_eq!((result.expect("a version"), asked.len()), (client, 0));
    let (result, _) = run_line("chancery version -o json", vec![ok(&json!({ "version": "9.1.0" }))]);
    let versions: Value = serde_json::from_str(&result.expect("JSON")).expect("JSON");
    assert_eq!(versions["server"]["version"], "9.1.0");
}

#[test]
fn a_plan_is_scaled_with_the_version_of_its_last_completed_deployment() {
    let rolling = json!({ "rolling": { "max_parallel": 2, "per_domain": false, "delay": 0 } });
    let canary = json!({ "canary": { "count": 1 } });
    let plan = || ok(&json!({ "generation": 1 }));
    let rows = json!([
        deployment("d-10", "2026-11-21T10:00:00Z", &rolling),
        deployment("d-9", "2026-11-21T09:00:00Z", &canary),
    ]);
    let (result, asked) =
        run_line("chancery scale plan/web --count 5 --name more", vec![page(&rows), plan(), verdict()]);
    assert_eq!(result.expect("scaled"), "deployment/web/more created\n");
    assert_eq!(asked[0].line, "GET /v1/fleets/default/deployments?plan=web&state=completed&limit=1000");
    let event: Value = serde_json::from_str(&asked[2].body).expect("an event");
    let wanted = json!({
        "coordinates": { "app": { "version": "d-10" } }, "count": 5, "strategy": rolling, "progress_deadline": 60_000,
        "auto_rollback": true,
    });
    assert_eq!((&event["data"]["name"], &event["data"]["spec"]), (&json!("more"), &wanted));
    let script = vec![page(&json!([deployment("d", "2026-11-21T10:00:00Z", &canary)])), plan(), verdict()];
    let (_, asked) = run_line("chancery scale web --count 1", script);
    let event: Value = serde_json::from_str(&asked[2].body).expect("an event");
    assert!(event["data"]["spec"]["strategy"]["rolling"].is_object(), "{event}");
    let script = vec![page(&json!([])), problem(404, "not_found", false)];
    let error = run_line("chancery scale wbe --count 1", script).0.expect_err("no such plan");
    assert_eq!((error.exit, error.message.as_str()), (CliExit::NotFound, "cannot read plan/wbe: so it is"));
    let error =
        run_line("chancery scale web --count 1", vec![page(&json!([])), ok(&json!({}))]).0.expect_err("none");
    assert!(
        error.message.starts_with("cannot scale plan/web: no deployment of the plan is completed"),
        "{error}"
    );
}

#[test]
fn differences_of_manifests_end_with_one_and_errors_with_more() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("c.yaml");
    let text =
        "apiVersion: chancery/v1\nkind: Capability\nmetadata: {name: gpu}\nspec: {type: gpu, score: 1}\n";
    std::fs::write(&file, text).expect("a file");
    let line = format!("chancery diff -f {}", file.display());
    let decided = |answer: Value| ok(&json!({ "intents": [{ "answer": answer }] }));
    let unchanged =
        json!({ "position": 7, "verdict": "unchanged", "subject": null, "version": 1, "status": 200 });
    let there = || ok(&json!({}));
    assert_eq!(run_line(&line, vec![decided(unchanged), there()]).0, Ok(String::new()));
    let error = run_line(&line, vec![decided(accepted(7)), there()]).0.expect_err("a difference");
    assert_eq!((error.exit, error.message.as_str()), (CliExit::Failure, ""));
    let error = run_line(&line, vec![decided(refusal(400, "invalid")), there()]).0.expect_err("refused");
    assert_eq!(error.exit as u8, 2, "{error}");
    let error = run_line("chancery diff -f no-such-file.yaml", Vec::new()).0.expect_err("no file");
    assert_eq!(error.exit as u8, 2, "{error}");
}

#[test]
fn a_directory_is_applied_with_its_json_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let capability = |name: &str| {
        json!({ "apiVersion": "chancery/v1", "kind": "Capability", "metadata": { "name": name },
            "spec": { "type": "gpu", "score": 1 } })
        .to_string()
    };
    for (file, name) in [("b.json", "b"), ("a.yaml", "a"), ("c.txt", "c")] {
        std::fs::write(directory.path().join(file), capability(name)).expect("a file");
    }
    let line = format!("chancery apply -f {}", directory.path().display());
    let absent = || problem(404, "not_found", false);
    let (result, _) = run_line(&line, vec![absent(), absent(), batch(&[accepted(7), accepted(8)])]);
    assert_eq!(result.expect("applied"), "capability/a created\ncapability/b created\n");
}

#[test]
fn a_delete_or_a_stop_can_wait_for_its_end() {
    let (gone, there) = (|| problem(404, "not_found", false), || ok(&json!({ "state": "destroying" })));
    let (result, asked) = run_line("chancery delete volume/db --wait", vec![verdict(), there(), gone()]);
    let wanted = "volume/db deletion started, destroyed once unused\nvolume/db deleted\n";
    assert_eq!((result.expect("deleted").as_str(), asked.len()), (wanted, 3));
    let (result, _) = run_line("chancery delete volume db --wait -o name", vec![verdict(), there(), gone()]);
    assert_eq!(result.expect("deleted"), "volume/db\n");
    let (result, _) = run_line("chancery delete volume db --wait --timeout 0s", vec![verdict(), there()]);
    assert_eq!(result.expect_err("late").exit, CliExit::Unknown);
    let id = RequestId::issue(Lineage::from_random(1), Position::new(9));
    let waits = ok(
        &json!({ "position": 7, "verdict": "accepted", "subject": format!("request/{}", id), "version": 1 }),
    );
    let request = |state: &str| {
        ok(&row(&json!({
            "id": id, "state": state, "kind": "policy_delete", "subject": "policy/p", "effects": [],
            "change": { "policy_delete": { "name": "p", "from": { "rule": { "four_eyes": {} } } } }, "requested_by": "ann",
            "policies": [], "hash": "9f86d081884c7d659a2feaa0c55ad015", "expires": null, "decided": "bob",
            "message": "rejected by bob: nope",
        })))
    };
    let script = vec![waits, request("pending"), ok(&json!({})), request("rejected")];
    let error = run_line("chancery delete policy p --wait", script).0.expect_err("rejected");
    assert!(
        error.message.contains("impossible, request/") && error.message.ends_with("bob: nope"),
        "{error}"
    );
    let (result, _) = run_line("chancery delete node node-1 --wait", vec![verdict()]);
    assert_eq!(result.expect("deleted"), "node/node-1 deleted\n", "a node is deleted with the verdict");
}

#[test]
fn several_entities_are_deleted_in_one_command_and_each_has_its_own_verdict() {
    let missing = || problem(404, "not_found", false);
    for (line, names) in [
        ("chancery delete node a b", ["node/a", "node/b"]),
        ("chancery delete node/a plan/b", ["node/a", "plan/b"]),
    ] {
        let (result, asked) = run_line(line, vec![verdict(), verdict()]);
        let wanted: Vec<_> = names.iter().map(|name| format!("{name} deleted\n")).collect();
        assert_eq!((result.expect(line), asked.len()), (wanted.concat(), 2));
    }
    let (result, out, asked) =
        run_shown("chancery delete node a b c -o json", vec![verdict(), missing(), verdict()]);
    let error = result.expect_err("one is missing");
    assert_eq!(error.message, "1 of 3 entities were not deleted");
    assert_eq!((error.exit, out.lines().count(), asked.len()), (CliExit::NotFound, 2, 3), "{out}");
    let (result, out, asked) = run_shown("chancery delete node a b", vec![problem(503, "busy", true); 3]);
    assert_eq!(result.expect_err("busy").exit, CliExit::Unreachable);
    assert_eq!((out.as_str(), asked.len()), ("", 3), "an unreachable server is not tried again for each");
    let error = run_line("chancery delete node/a b", Vec::new()).0.expect_err("no kind");
    assert!(error.message.starts_with("invalid entity \"b\": must be KIND/NAME"), "{error}");
}

#[test]
fn a_status_page_has_numbers_and_what_needs_attention() {
    let none = || page(&json!([]));
    let cluster = row(&json!({
        "name": "local", "runtime": "process", "kubernetes": null, "activity": "active", "executor": null,
        "session": null, "nodes": 1,
    }));
    let start = || vec![page(&json!([cluster])), page(&json!([node("node-1", "")]))];
    let mut plan = crate::page_tests::plan();
    plan["operations"] = json!({ "create": { "pending_approval": 12 } });
    plan["replicas"] = json!({ "total": 3, "running": 1, "failed": 0 });
    let waiting = page(&json!([operation(&operation_id(), "pending_approval")]));
    let script = [start(), vec![page(&json!([plan])), none(), waiting, none(), none()]].concat();
    let (result, asked) = run_line("chancery status", script);
    let text = result.expect("a page");
    for wanted in [
        "clusters:      1, without executor: local\n",
        "nodes:         1: 1 allocated\n",
        "replicas:      1/3 running\n",
        "approvals:     12 pending\n",
        "\n  and 11 more\n",
        "\nOperations pending approval\n  ID ",
        "  try: chancery approve\n",
    ] {
        assert!(text.contains(wanted), "{text}");
    }
    assert_eq!(asked.len(), 7, "what plans count as zero is not listed");
    assert!(asked[4].line.contains("/operations?state=pending_approval"), "{asked:?}");
    let (result, _) = run_line("chancery status", [start(), vec![none(); 4]].concat());
    assert!(result.expect("a page").ends_with("\nNothing waits, and nothing has failed.\n"));
    let mut drained = node("node-2", "");
    drained["disruptions"] = json!([{
        "name": "x", "state": "scheduled", "action": "drain", "start": "2026-11-21T09:00:00Z", "reason": "disks",
        "approved_by": null, "since": "2026-11-21T09:00:00Z",
    }]);
    let with_disruption = vec![page(&json!([])), page(&json!([drained]))];
    let (result, _) = run_line("chancery status", [with_disruption, vec![none(); 4]].concat());
    let text = result.expect("a page");
    assert!(text.contains("approvals:     1 pending\n"), "{text}");
    assert!(text.contains("\nDisruptions pending approval\n  NODE    NAME "), "{text}");
    assert!(!text.contains("Nothing waits"), "{text}");
    let (result, _) = run_line("chancery status -o json", [start(), vec![none(); 4]].concat());
    let all: Value = serde_json::from_str(&result.expect("JSON")).expect("JSON");
    assert_eq!(all["nodes"], json!({ "allocated": 1 }));
}

#[test]
fn why_takes_an_entity_in_both_forms_and_one_field() {
    let answer =
        || ok(&json!({ "entity": "replica/web-1", "field": "node", "value": "node-2", "reasons": [] }));
    for line in ["why replica/web-1 node=node-2", "why replica web-1 node=node-2"] {
        let (result, asked) = run_line(&format!("chancery {line}"), vec![answer()]);
        assert_eq!(result.expect("a tree"), "replica/web-1 node=node-2\n", "{line}");
        assert!(asked[0].line.ends_with("/replicas/web-1/why?field=node&value=node-2"), "{asked:?}");
    }
    let (_, asked) = run_line("chancery why replica web-1", vec![answer()]);
    assert!(asked[0].line.ends_with("/replicas/web-1/why"), "{asked:?}");
    for (line, wanted) in [
        ("why replica", "must name one"),
        ("why replica/web-1 node ready", "one field is explained"),
        ("why replica/web-1 =node-2", "must be FIELD or FIELD=VALUE"),
        ("why disruption/node-1/x", "try: chancery history node/node-1"),
        ("diff 1 2 --filter node=node-1", "must be used with --kind"),
    ] {
        let (result, asked) = run_line(&format!("chancery {line}"), Vec::new());
        let error = result.expect_err(line);
        assert!(error.exit == CliExit::Usage && error.message.contains(wanted), "{line}: {error:?}");
        assert!(asked.is_empty(), "{line}");
    }
}
