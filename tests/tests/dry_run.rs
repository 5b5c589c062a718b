//! Dry runs of random intents compared with the effect of the same intents on the real service.

use chancery_tests::ServerProcess;
use chancery_tests::fault_campaigns::fleet::{by_hand, set_up, sleeper};
use chancery_tests::past::dry_runs::{compare_dry_runs, head, rest};
use serde_json::{Value, json};

/// Number of compared dry runs, unless `RUNS` is set.
const RUNS: u64 = 120;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn dry_runs_have_the_verdicts_and_facts_that_follow_and_leave_nothing() {
    let server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    let seed = setting("SEED").unwrap_or(24);
    let runs = usize::try_from(setting("RUNS").unwrap_or(RUNS)).expect("a number");
    let counts = compare_dry_runs(&server.client(), seed, runs);
    assert!(counts.compared >= runs * 2 / 3, "seed {seed}: something else was recorded: {counts:?}");
    assert!(counts.outcomes.len() > 4 && counts.following > runs / 2, "seed {seed}: {counts:?}");
}

#[test]
fn apply_shows_in_a_dry_run_what_it_would_do() {
    let server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    let client = server.client();
    set_up(&client, &sleeper());
    rest(&client);
    let before = head(&client);
    let file = server.directory().join("all.yaml");
    let manifest = "\
apiVersion: chancery/v1
kind: Policy
metadata: {name: two}
spec: {kinds: [create], four_eyes: true}
---
apiVersion: chancery/v1
kind: Plan
metadata: {name: shop}
spec:
  namespace: tests
  service: shop
  approval: {create: manual}
  payloads: [{name: app, resources: {cpu: 100m, memory: 1}, run: {argv: [sleep, '1']}}]
---
apiVersion: chancery/v1
kind: Deployment
metadata: {name: one}
spec: {plan: shop, count: 2}
";
    std::fs::write(&file, manifest).expect("a file");
    let path = file.to_str().expect("text");
    let shown = server.run(&["apply", "--dry-run", "-f", path]);
    let (out, err) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    assert!(shown.status.success(), "{out}{err}");
    let words: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    for wanted in
        [&["policy/two", "created"][..], &["plan/shop", "created"], &["deployment/shop/one", "created"]]
    {
        assert!(words.iter().any(|line| line.starts_with(wanted)), "{wanted:?}: {out}");
    }
    assert_eq!(
        words.iter().filter(|line| line.first() == Some(&"create") && line.contains(&"anyone")).count(),
        2
    );
    assert!(
        out.contains("update domain") && out.contains("two") && err.contains("nothing was recorded"),
        "{out}{err}"
    );
    assert_eq!(head(&client), before);
    let answer: Value =
        serde_json::from_str(&server.cli(&["apply", "--dry-run", "-f", path, "-o", "json"])).expect("JSON");
    assert_eq!(answer["intents"].as_array().map(Vec::len), Some(3));
    std::fs::write(&file, manifest.replace("plan: shop, count", "plan: none, count")).expect("a file");
    let refused = server.run(&["apply", "--dry-run", "-f", path]);
    let err = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && err.contains("1 of 3 documents would be refused"), "{err}");
    // The same files, applied.
    std::fs::write(&file, manifest).expect("a file");
    server.cli(&["apply", "-f", path]);
    let again = server.cli(&["apply", "--dry-run", "-f", path]);
    assert_eq!(again.matches(" unchanged").count(), 3, "{again}");
    let first = server.run(&["apply", "--dry-run", "-f", path, "--as-of", &before.to_string()]);
    assert_eq!(String::from_utf8_lossy(&first.stdout).matches(" created").count(), 3);
}

#[test]
fn commands_show_in_a_dry_run_what_they_would_do() {
    let server = ServerProcess::start();
    let client = server.client();
    set_up(&client, &sleeper());
    let file = server.directory().join("more.yaml");
    let deployment = |name: &str, count: u32| {
        let text = format!(
            "apiVersion: chancery/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec: {{plan: web, count: {count}}}\n"
        );
        std::fs::write(&file, text).expect("a file");
        server.cli(&["apply", "-f", file.to_str().expect("text")]);
    };
    deployment("one", 2);
    server.cli(&["wait", "deployment/web/one", "--for", "state=completed"]);
    by_hand(&client, &sleeper());
    client.must("deployment.create", &json!({"plan": "hand", "name": "one", "spec": {"count": 1}}));
    server.cli(&["approve", "--plan", "hand", "--all"]);
    server.cli(&["wait", "deployment/hand/one", "--for", "state=completed"]);
    let gone = server.directory().join("gone.yaml");
    let node = "apiVersion: chancery/v1\nkind: Node\nmetadata: {name: none}\nspec: {domain: a, resources: {cpu: 1, memory: 1GiB}}\n";
    std::fs::write(&gone, node).expect("a file");
    rest(&client);
    let before = head(&client);
    for (args, wanted) in [
        (&["scale", "web", "--count", "3"][..], &["deployment/web/scale-", "created", "create"][..]),
        (&["rollback", "web", "--to", "one"], &["deployment/web/rollback-", "created"]),
        (&["drain", "node-1"], &["node/node-1", "changed", "relocate"]),
        (&["delete", "plan", "web", "--cascade"], &["plan/web", "changed", "delete"]),
        (
            &["delete", "plan", "hand", "--cascade"],
            &["plan/hand", "waits for approval", "EFFECT", "delete  hand  1"],
        ),
        (&["delete", "-f", gone.to_str().expect("text")], &["node/none", "not found"]),
    ] {
        let shown = server.run(&[args, &["--dry-run"]].concat());
        let (out, err) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
        assert!(shown.status.success() && err.contains("nothing was recorded"), "{args:?}: {out}{err}");
        assert!(wanted.iter().all(|wanted| out.contains(wanted)), "{args:?}: {out}");
        let value = server.cli(&[args, &["--dry-run", "-o", "json"]].concat());
        assert!(
            serde_json::from_str::<Value>(&value).expect("JSON")["intents"].is_array(),
            "{args:?}: {value}"
        );
    }
    let refused = server.run(&["delete", "node", "none", "node-1", "--dry-run"]);
    let (out, err) = (String::from_utf8_lossy(&refused.stdout), String::from_utf8_lossy(&refused.stderr));
    assert!(
        refused.status.code() == Some(3) && err.starts_with("chancery: cannot delete node/none"),
        "{err}"
    );
    assert!(
        err.contains("chancery: cannot delete node/node-1") && out.matches("refused").count() == 2,
        "{out}"
    );
    rest(&client);
    assert_eq!(head(&client), before);
    // A scale keeps the version, and an edit of the plan is another one.
    let edited = json!({"name": "app", "resources": {"cpu": 100, "memory": 1 << 20}, "run": {"argv": ["sleep", "99999"]}});
    let set = |payload: &Value| {
        let spec =
            json!({"namespace": "tests", "service": "hand", "payloads": [payload], "sharing": "allowed"});
        client.must("plan.apply", &json!({"name": "hand", "spec": spec}));
    };
    set(&edited);
    let other = server.run(&["scale", "hand", "--count", "2"]);
    let err = String::from_utf8_lossy(&other.stderr);
    assert!(
        other.status.code() == Some(4) && err.contains("payloads changed since deployment/hand/one"),
        "{err}"
    );
    set(&sleeper());
    server.cli(&["scale", "hand", "--count", "2", "--name", "two"]);
    let queued = server.run(&["scale", "hand", "--count", "3", "--name", "three"]);
    let replaced = server.run(&["scale", "hand", "--count", "4"]);
    let err = String::from_utf8_lossy(&replaced.stderr);
    assert!(queued.status.success() && replaced.status.success(), "{err}");
    assert!(err.contains("hint: deployment/hand/three is superseded"), "{err}");
    // A new version is being rolled out.
    let coordinates = json!({"app": {"version": "v2"}});
    let spec = json!({"count": 2, "coordinates": coordinates});
    client.must(
        "deployment.create",
        &json!({"plan": "web", "name": "new", "spec": spec, "overlap": "supersede"}),
    );
    client.must("deployment.pause", &json!({"plan": "web", "name": "new"}));
    let reverts = server.run(&["scale", "web", "--count", "3"]);
    let err = String::from_utf8_lossy(&reverts.stderr);
    assert!(reverts.status.code() == Some(4) && err.contains("deployment/web/new is in progress"), "{err}");
}
