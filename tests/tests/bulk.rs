//! Thousands of documents in one command.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Output;

use chancery_tests::{ServerProcess, program, until};

/// Documents of a cluster, nodes, a plan and an empty deployment, dependents first.
fn documents(nodes: usize, cpu: usize) -> String {
    let mut text = "\
apiVersion: chancery/v1
kind: Deployment
metadata: {name: d-1}
spec: {plan: web, count: 0}
---
apiVersion: chancery/v1
kind: Plan
metadata: {name: web}
spec: {namespace: n, service: web, cluster: local, payloads: [{name: app, run: {argv: [sleep, \"9\"]}, resources: {cpu: 1, memory: 1}}]}
---
"
    .to_owned();
    for number in 0..nodes {
        let _ = write!(
            text,
            "apiVersion: chancery/v1\nkind: Node\nmetadata: {{name: n-{number}}}\n\
             spec: {{cluster: local, domain: a, resources: {{cpu: {cpu}, memory: 1}}}}\n---\n"
        );
    }
    text + "apiVersion: chancery/v1\nkind: Cluster\nmetadata: {name: local}\nspec: {runtime: simulated}\n"
}

fn write(server: &ServerProcess, text: &str) -> String {
    let path = server.directory().join("all.yaml");
    std::fs::write(&path, text).expect("a file");
    path.display().to_string()
}

/// Distinct last words of the output's lines; a failed command panics with its errors.
fn outcomes(output: &Output) -> BTreeSet<String> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| line.split_once(' ').map_or(line, |(_, outcome)| outcome).to_owned()).collect()
}

fn set<const N: usize>(words: [&str; N]) -> BTreeSet<String> {
    words.map(str::to_owned).into()
}

#[test]
fn thousands_of_documents_are_applied_and_deleted_in_order_however_few_the_server_takes_a_second() {
    const NODES: usize = 2500;
    let server = ServerProcess::start_with(&[("CHANCERY_LIMITS_WRITES_PER_SECOND", "1500")]);
    let path = write(&server, &documents(NODES, 1));
    let apply = || server.run(&["apply", "-f", &path]);
    let output = apply();
    assert_eq!(outcomes(&output), set(["created"]), "an entity precedes those that name it");
    let text = String::from_utf8_lossy(&output.stdout);
    let wanted =
        ["cluster/local".to_owned()].into_iter().chain((0..NODES).map(|number| format!("node/n-{number}")));
    let wanted: Vec<_> = wanted.chain(["plan/web".into(), "deployment/web/d-1".into()]).collect();
    let printed: Vec<_> = text.lines().filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect();
    assert_eq!(printed, wanted);
    assert_eq!(outcomes(&apply()), set(["unchanged"]));
    write(&server, &documents(NODES, 2));
    assert_eq!(outcomes(&apply()), set(["configured", "unchanged"]));
    let names = server.cli(&["get", "nodes", "--all", "-o", "name"]);
    assert_eq!(names.lines().collect::<BTreeSet<_>>().len(), NODES);
    server.cli(&["wait", "deployment/web/d-1", "--for", "state=completed"]);
    let delete = || server.run(&["delete", "-f", &path, "--yes"]);
    let skipped = "skipped: deployments are deleted with their plan";
    assert_eq!(outcomes(&delete()), set(["deleted", skipped]));
    assert_eq!(server.cli(&["get", "nodes", "-o", "name"]), "");
    assert_eq!(outcomes(&delete()), set(["not found", skipped]), "it may be repeated");
}

#[test]
fn what_is_in_use_is_deleted_with_what_needs_it_and_in_its_order() {
    let server = ServerProcess::start();
    let text = documents(3, 8).replace("count: 0", "count: 2").replace(
        "service: web,",
        "service: web, approval: {create: automatic, stop: automatic, delete: automatic},",
    );
    let path = write(&server, &text.replace("cpu: 1, memory: 1}}]", "cpu: 100m, memory: 1MiB}}]"));
    assert_eq!(outcomes(&server.run(&["apply", "-f", &path])), set(["created"]));
    server.client().wait_for("web", "running", 2);
    let refused = server.run(&["delete", "-f", &path, "--yes"]);
    assert_eq!(refused.status.code(), Some(4), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("add --cascade"));
    assert_eq!(server.client().wait_for("web", "running", 2).len(), 2, "no running incarnation was ended");
    assert_eq!(outcomes(&server.run(&["apply", "-f", &path])), set(["created", "unchanged"]));
    let deleted = server.run(&["delete", "-f", &path, "--cascade", "--yes", "--timeout", "50s"]);
    assert!(outcomes(&deleted).contains("deleted"), "the cluster, at last");
    until("nothing is left", || {
        let left: String = ["plans", "nodes", "clusters", "replicas"]
            .map(|kind| server.cli(&["get", kind, "-o", "name"]))
            .concat();
        left.is_empty().then_some(())
    });
}

#[test]
fn a_server_that_dies_while_documents_are_applied_has_each_once_when_they_are_applied_again() {
    const NODES: usize = 4000;
    let mut server = ServerProcess::start();
    server.stay_at_this_address();
    let path = write(&server, &documents(NODES, 1));
    let url = server.url();
    let applying = std::thread::spawn({
        let path = path.clone();
        move || {
            let args = ["--server", &url, "apply", "-f", &path, "-o", "name"];
            std::process::Command::new(program()).args(args).output().expect("it runs")
        }
    });
    until("some are there", || server.client().items("nodes?limit=1").pop());
    server.kill();
    server.start_again();
    let first = applying.join().expect("no panic");
    // The command retries if the server is back soon enough; otherwise it reports that the outcome is
    // unknown.
    assert!(matches!(first.status.code(), Some(0 | 7 | 8)), "{}", String::from_utf8_lossy(&first.stderr));
    let printed = String::from_utf8_lossy(&first.stdout).into_owned();
    let there: BTreeSet<_> =
        server.cli(&["get", "nodes", "--all", "-o", "name"]).lines().map(str::to_owned).collect();
    let is_there = |name: &str| !name.starts_with("node/") || there.contains(name);
    assert!(printed.lines().all(is_there), "every printed node exists");
    let again = server.run(&["apply", "-f", &path]);
    assert!(outcomes(&again).is_subset(&set(["created", "unchanged"])), "{:?}", outcomes(&again));
    assert_eq!(server.cli(&["get", "nodes", "--all", "-o", "name"]).lines().count(), NODES);
}
