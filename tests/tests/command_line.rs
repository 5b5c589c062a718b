//! The command line as users of kubectl type it, against a real server.

use std::process::Output;

use chancery_tests::ServerProcess;
use serde_json::Value;

const NODES: &str = "\
apiVersion: chancery/v1
kind: Cluster
metadata: {name: sim}
spec: {runtime: simulated}
---
apiVersion: chancery/v1
kind: Node
metadata: {name: node-2, labels: {disk: fast}}
spec: {cluster: sim, domain: b, resources: {cpu: 4, memory: 8}}
---
apiVersion: chancery/v1
kind: Node
metadata: {name: node-10, labels: {disk: slow}}
spec: {cluster: sim, domain: a, resources: {cpu: 2, memory: 8}}
";

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn entities_are_selected_and_shown_as_in_kubectl() {
    let server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    let file = server.directory().join("nodes.yaml");
    std::fs::write(&file, NODES).expect("a file");
    let path = file.to_str().expect("text");
    assert_eq!(code(&server.run(&["diff", "-f", path])), Some(1), "nothing is applied");
    server.cli(&["apply", "-f", path]);
    let same = server.run(&["diff", "-f", path]);
    assert_eq!((code(&same), same.stdout.as_slice()), (Some(0), &b""[..]), "{same:?}");
    assert_eq!(code(&server.run(&["diff", "-f", "no-such-file.yaml"])), Some(2));

    for (args, wanted) in [
        (&["get", "nodes,clusters", "-o", "name"][..], "node/node-10\nnode/node-2\ncluster/sim\n"),
        (&["get", "node", "node-2", "node-10", "-o", "name"], "node/node-2\nnode/node-10\n"),
        (&["get", "cluster/sim", "node/node-2", "-o", "name"], "cluster/sim\nnode/node-2\n"),
        (&["get", "nodes", "-l", "disk=fast", "-o", "name"], "node/node-2\n"),
        (&["get", "nodes", "-l", "disk!=fast", "-o", "name"], "node/node-10\n"),
        (&["get", "nodes", "--filter", "domain=a", "-o", "name"], "node/node-10\n"),
        (&["get", "nodes", "--sort-by", ".domain", "-o", "name"], "node/node-10\nnode/node-2\n"),
        (&["get", "nodes", "--sort-by", "NAME", "-o", "jsonpath={.items[*].name}"], "node-2 node-10"),
        (&["get", "node", "node-2", "-o", "jsonpath={.labels.disk}"], "fast"),
    ] {
        assert_eq!(server.cli(args), wanted, "{args:?}");
    }
    let table = server.cli(&["get", "nodes"]);
    let lines: Vec<_> = table.lines().collect();
    assert!(
        lines[0].ends_with("AGE") && lines[1].starts_with("node-2 ") && lines[2].starts_with("node-10 "),
        "{table}"
    );
    let values = server.cli(&["get", "nodes", "-o", "csv", "--no-headers"]);
    assert!(values.starts_with("node-2,allocated,sim,b,"), "{values}");
    let all = server.cli(&["get", "all"]);
    assert!(all.starts_with("KIND") && all.contains("\n\nKIND  NAME"), "{all}");
    let missing = server.run(&["get", "node", "node-2", "node-3"]);
    assert_eq!(code(&missing), Some(3));
    assert!(String::from_utf8_lossy(&missing.stdout).contains("node-2"), "{missing:?}");

    let status = server.cli(&["status"]);
    assert!(status.contains("without executor: sim") && status.contains("2: 2 allocated"), "{status}");
    assert!(server.cli(&["version"]).starts_with("client "));
}

#[test]
fn a_repeated_command_with_its_key_has_its_effect_once() {
    let server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    let file = server.directory().join("nodes.yaml");
    std::fs::write(&file, NODES).expect("a file");
    server.cli(&["apply", "-f", file.to_str().expect("text")]);
    let stop = ["evict", "node-2", "--idempotency-key", "one", "-o", "json"];
    let read = || serde_json::from_str::<Value>(&server.cli(&stop)).expect("JSON");
    let first = read();
    assert_eq!((&first["subject"], &first["outcome"]), (&"node/node-2".into(), &"evicted".into()));
    assert_eq!(first, read(), "the first verdict is answered again");
    let other = server.run(&["evict", "node-10", "--idempotency-key", "one"]);
    assert_eq!(code(&other), Some(4), "the key belongs to another intent: {other:?}");
}

#[test]
fn every_error_starts_alike_and_has_the_words_of_the_command_line() {
    let server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    for (args, exit, wanted) in [
        (&["get"][..], 2, "chancery: the following required arguments were not provided"),
        (&["get", "nodes", "--as-of", "soon"], 2, "chancery: invalid value 'soon' for '--as-of"),
        (
            &["get", "nodes", "--filter", "colour=red"],
            2,
            "chancery: cannot list nodes: invalid filter \"colour\": must be",
        ),
        (
            &["get", "nodes", "--filter", "state=none"],
            2,
            "chancery: cannot list nodes: invalid filter \"state\": ",
        ),
        (&["get", "node", "node-1"], 3, "chancery: cannot read node/node-1: there is no node"),
        (
            &["get", "nodes", "--as-of", "2199-01-01T00:00:00Z"],
            2,
            "chancery: cannot list nodes: cannot read the state after",
        ),
        (&["schedule", "disruption", "n/d", "--start", "-1"], 2, "chancery: "),
    ] {
        let output = server.run(args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(code(&output), Some(exit), "{args:?}: {text}");
        assert!(text.starts_with(wanted), "{args:?}: {text}");
    }
    let help = server.run(&["get", "--help"]);
    assert!(help.status.success() && help.stderr.is_empty() && !help.stdout.is_empty());
    server.cli(&["get", "nodes", "--as-of=-0s"]);
}
