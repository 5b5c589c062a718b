//! Many documents: batches in order, each document with its own answer.

use super::*;

/// Capabilities `c-FIRST` and further ones, as documents of a file.
fn capabilities(count: usize) -> String {
    let one = |number: usize| {
        format!(
            "---\napiVersion: chancery/v1\nkind: Capability\nmetadata: {{name: c-{number}}}\nspec: {{type: T, score: 1}}\n"
        )
    };
    (0..count).map(one).collect()
}

/// File of documents, which exists as long as its directory.
fn file(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("all.yaml");
    std::fs::write(&path, text).expect("a file");
    (directory, path.display().to_string())
}

fn none() -> FakeAction {
    ok(&json!({ "items": [], "next_page_token": null, "position": 1 }))
}

/// Keys of the intents of a batch, and the names of their entities.
fn sent(asked: &FakeRequest) -> Vec<(String, String)> {
    let events: Vec<Value> = serde_json::from_str(&asked.body).expect("a batch");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    events.iter().map(|event| (text(&event["id"]), text(&event["data"]["name"]))).collect()
}

fn names(asked: &FakeRequest) -> Vec<String> {
    sent(asked).into_iter().map(|(_, name)| name).collect()
}

#[test]
fn documents_are_sent_in_batches_and_reported_in_their_order() {
    let (_folder, path) = file(&capabilities(2500));
    let answers = |count: usize| batch(&(0..count).map(|_| accepted(7)).collect::<Vec<_>>());
    let script = vec![none(), answers(1000), answers(1000), answers(500)];
    let (result, asked) = run_line(&format!("chancery apply -f {path}"), script);
    let wanted: Vec<_> = (0..2500).map(|number| format!("capability/c-{number} created")).collect();
    assert_eq!(result.expect("applied").lines().collect::<Vec<_>>(), wanted);
    assert_eq!(asked[0].line, "GET /v1/fleets/default/capabilities?limit=1000", "read by one list");
    let all: Vec<_> = asked[1..].iter().flat_map(names).collect();
    assert_eq!(all, (0..2500).map(|number| format!("c-{number}")).collect::<Vec<_>>());
}

#[test]
fn what_is_not_answered_is_sent_again_with_the_same_keys_and_the_rest_is_not() {
    let (_folder, path) = file(&capabilities(4));
    let find = || problem(404, "not_found", false);
    let busy = || refusal(503, "busy");
    let first = batch(&[accepted(7), refusal(422, "invalid"), busy(), busy()]);
    let second = batch(&[refusal(504, "unknown_outcome"), busy()]);
    let script = vec![find(), find(), find(), find(), first, second, batch(&[accepted(8), accepted(9)])];
    let (result, asked) = run_line(&format!("chancery apply -f {path} -o name"), script);
    let error = result.expect_err("one is invalid");
    assert_eq!(
        (error.exit, error.message.as_str()),
        (CliExit::Failure, "applied 3 of 4 documents: fix the others and apply again")
    );
    let batches: Vec<_> = asked[4..].iter().map(sent).collect();
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [4, 2, 2]);
    assert_eq!((&batches[1], &batches[2]), (&batches[0][2..].to_vec(), &batches[0][2..].to_vec()));
}

#[test]
fn what_stays_unanswered_ends_it_with_what_is_known() {
    let busy = || batch(&[refusal(503, "busy")]);
    let unknown = || batch(&[refusal(504, "unknown_outcome")]);
    let cases = [
        (vec![busy(), busy(), busy()], CliExit::Unreachable),
        (vec![unknown(), busy(), busy()], CliExit::Unknown),
        (vec![FakeAction::Drop, FakeAction::Drop, FakeAction::Drop], CliExit::Unknown),
        // The server is busy now; the first attempt may have been recorded.
        (vec![FakeAction::Drop, busy(), busy(), busy()], CliExit::Unknown),
        (vec![problem(503, "busy", true); 3], CliExit::Unreachable),
        (vec![batch(&[])], CliExit::Failure),
        (vec![problem(404, "not_found", false)], CliExit::NotFound),
    ];
    for (script, exit) in cases {
        let (_folder, path) = file(&capabilities(1));
        let script: Vec<_> = std::iter::once(problem(404, "not_found", false)).chain(script).collect();
        let error = run_line(&format!("chancery apply -f {path}"), script).0.expect_err("no verdict");
        assert_eq!(error.exit, exit, "{error}");
        assert!(error.message.contains("all.yaml:2:1: cannot apply capability/c-0: "), "{error}");
        assert_eq!(error.message.contains("--idempotency-key"), exit == CliExit::Unknown, "{error}");
    }
}

#[test]
fn a_batch_that_is_too_large_is_split_and_too_many_requests_wait() {
    let (_folder, path) = file(&capabilities(4));
    let find = || problem(404, "not_found", false);
    let too_many = problem(429, "too_many_requests", true);
    let mut script = vec![find(), find(), find(), find(), problem(413, "too_large", false)];
    // More attempts than any other answer permits.
    script.extend(vec![too_many; 6]);
    script.extend([batch(&[accepted(7), accepted(8)]), batch(&[accepted(9), accepted(10)])]);
    let (result, asked) = run_line(&format!("chancery apply -f {path} -o name"), script);
    assert_eq!(result.expect("applied").lines().count(), 4);
    let sizes: Vec<_> = asked[4..].iter().map(|asked| sent(asked).len()).collect();
    assert_eq!(sizes, [4, 2, 2, 2, 2, 2, 2, 2, 2]);
}

#[test]
fn entities_of_files_are_deleted_in_reverse_order_and_a_missing_one_is_no_failure() {
    let text = "\
apiVersion: chancery/v1
kind: Cluster
metadata: {name: local}
spec: {runtime: process}
---
apiVersion: chancery/v1
kind: Deployment
metadata: {name: d-1}
spec: {plan: web, count: 1}
---
apiVersion: chancery/v1
kind: Node
metadata: {name: n-1}
spec: {domain: a, cluster: local, resources: {cpu: 1, memory: 1}}
---
apiVersion: chancery/v1
kind: Node
metadata: {name: n-2}
spec: {domain: a, cluster: local, resources: {cpu: 1, memory: 1}}
";
    let (_folder, path) = file(text);
    let script = vec![batch(&[accepted(7), refusal(404, "not_found")]), batch(&[accepted(8)])];
    let (result, asked) = run_line(&format!("chancery delete -f {path} --yes"), script);
    let wanted = "\
deployment/web/d-1 skipped: deployments are deleted with their plan
node/n-2 deleted
node/n-1 not found
cluster/local deleted
";
    assert_eq!(result.expect("deleted"), wanted);
    assert_eq!(asked.iter().map(names).collect::<Vec<_>>(), [vec!["n-2", "n-1"], vec!["local"]]);

    let script = vec![batch(&[refusal(409, "in_use"), accepted(7)]), batch(&[refusal(409, "in_use")])];
    let error = run_line(&format!("chancery delete -f {path} -y"), script).0.expect_err("in use");
    let wanted =
        "2 of 4 documents were refused\nhint: to delete nodes and plans with their dependents, add --cascade";
    assert_eq!((error.exit, error.message.as_str()), (CliExit::Conflict, wanted));

    // The cluster is deleted after its nodes.
    let nodes = |names: &[&str]| {
        let items: Vec<_> = names.iter().map(|name| node(name, "")).collect();
        ok(&json!({ "items": items, "next_page_token": null, "position": 1 }))
    };
    let both = batch(&[accepted(7), accepted(8)]);
    let script = vec![both.clone(), nodes(&["n-1", "n-9"]), nodes(&["n-9"]), batch(&[accepted(9)])];
    let (result, asked) = run_line(&format!("chancery delete -f {path} --cascade -y -o name"), script);
    assert_eq!(result.expect("deleted").lines().last(), Some("cluster/local"));
    assert!(asked[0].body.contains(r#""cascade":"yes""#) && asked.len() == 4, "{asked:?}");
    let script = vec![both, nodes(&["n-1"])];
    let line = format!("chancery delete -f {path} --cascade -y --timeout 0s");
    assert_eq!(run_line(&line, script).0.expect_err("timeout").exit, CliExit::Unknown);

    for line in ["chancery delete", "chancery delete node/n-1 -f x", "chancery delete node/n-1 --timeout 1s"]
    {
        assert!(FakeCli::try_parse_from(line.split(' ')).is_err(), "{line}");
    }
}

#[test]
fn manifests_of_more_than_one_entity_are_deleted_only_with_a_confirmation() {
    let (_folder, path) = file(&capabilities(3));
    let (result, asked) = run_line(&format!("chancery delete -f {path}"), Vec::new());
    let error = result.expect_err("no terminal");
    let wanted = "cannot delete without confirmation: deletes 3 entities\nhint: confirm with --yes";
    assert_eq!((error.exit, error.message.as_str(), asked.len()), (CliExit::Usage, wanted, 0));
    // A deployment is deleted with its plan, so that one entity is left.
    let text =
        "apiVersion: chancery/v1\nkind: Deployment\nmetadata: {name: d-1}\nspec: {plan: web, count: 1}\n";
    let (_folder, path) = file(&format!("{text}{}", capabilities(1)));
    let (result, _) = run_line(&format!("chancery delete -f {path} -o name"), vec![batch(&[accepted(7)])]);
    assert_eq!(result.expect("deleted"), "deployment/web/d-1\ncapability/c-0\n");
}

#[test]
fn what_was_applied_before_an_error_is_in_the_list() {
    let (_folder, path) = file(&capabilities(1500));
    let answers = batch(&(0..1000).map(|_| accepted(7)).collect::<Vec<_>>());
    let script = vec![none(), answers, problem(403, "denied", false)];
    let (result, out, _) = run_shown(&format!("chancery apply -f {path} -o json"), script);
    assert_eq!(result.expect_err("denied").exit, CliExit::Denied);
    let shown: Vec<Value> = serde_json::from_str(&out).expect("a list");
    assert_eq!(shown.len(), 1000);
}
