//! The command line as users of kubectl type it, against a real server.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use chancery_tests::{ServerProcess, program, until};
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
fn a_time_after_the_last_record_shows_it_and_one_to_come_is_refused() {
    let server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    for args in [&["get", "nodes", "--as-of", "-1ms"][..], &["diff", "-1ms"], &["diff", "1", "1ms ago"]] {
        let output = server.run(args);
        assert_eq!(code(&output), Some(0), "{args:?}: {output:?}");
    }
    let output = server.run(&["get", "nodes", "--as-of", "2199-01-01T00:00:00Z"]);
    assert_eq!(code(&output), Some(2), "{output:?}");
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
            "chancery: cannot list nodes: invalid value of filter \"state\": ",
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
}

const PLAN: &str = "\
apiVersion: chancery/v1
kind: Plan
metadata: {name: web}
spec: {namespace: n, service: web, cluster: sim, payloads: [{name: app, run: {argv: [sleep, \"9\"]}, resources: {cpu: 1, memory: 1}}]}
---
apiVersion: chancery/v1
kind: Deployment
metadata: {name: d-1}
spec: {plan: web, count: 2}
";

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn ids_are_short_in_tables_and_are_taken_by_their_start() {
    let server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    let file = server.directory().join("web.yaml");
    std::fs::write(&file, format!("{NODES}---\n{PLAN}")).expect("a file");
    server.cli(&["apply", "-f", file.to_str().expect("text")]);
    let pending = ["get", "operations", "--filter", "state=pending_approval", "-o", "name"];
    let names = until("two operations", || {
        let names: Vec<_> = server.cli(&pending).lines().map(str::to_owned).collect();
        (names.len() == 2).then_some(names)
    });
    let table = server.cli(&["get", "operations", "--no-headers"]);
    let short = table.split_whitespace().next().expect("an id").to_owned();
    assert_eq!(short.len(), 18, "{table}");
    assert!(server.cli(&["get", "operations", "-o", "wide"]).contains(&names[0]["operation/".len()..]));

    let ambiguous = server.run(&["approve", "0"]);
    assert_eq!(code(&ambiguous), Some(2));
    assert!(names.iter().all(|name| errors(&ambiguous).contains(name)), "{ambiguous:?}");
    let unknown = server.run(&["describe", "operation/f"]);
    assert_eq!(code(&unknown), Some(3), "{unknown:?}");
    let done = server.cli(&["approve", &short]);
    assert!(done.starts_with(&format!("operation/{short}-")) && done.contains(" approved: "), "{done}");
    let of = format!("operation/{short}");
    assert!(server.cli(&["why", &of, "state"]).starts_with(&names[0]));
    assert!(server.cli(&["history", &of]).contains("operation.created"));
    assert!(server.cli(&["events", "--subject", &of]).contains(&names[0]));
    assert!(server.cli(&["describe", &of]).starts_with(&names[0]));
}

#[test]
fn what_is_deleted_by_manifests_is_confirmed_and_what_is_named_is_not() {
    let server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    let file = server.directory().join("nodes.yaml");
    std::fs::write(&file, NODES).expect("a file");
    let path = file.to_str().expect("text");
    server.cli(&["apply", "-f", path]);
    let refused = server.run(&["delete", "-f", path]);
    assert_eq!(code(&refused), Some(2));
    assert!(errors(&refused).ends_with("deletes 3 entities\nhint: confirm with --yes\n"), "{refused:?}");
    assert_eq!(server.cli(&["get", "nodes", "-o", "name"]).lines().count(), 2, "nothing was deleted");
    let deleted = server.run(&["delete", "node", "node-2", "node-3", "node-10", "-o", "name"]);
    assert_eq!((code(&deleted), &*deleted.stdout), (Some(3), &b"node/node-2\nnode/node-10\n"[..]));
    assert_eq!(server.cli(&["delete", "-f", path, "-y"]).lines().last(), Some("cluster/sim deleted"));
}

#[test]
fn a_context_names_the_server_below_environment_and_flags() {
    let server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    let contexts = server.directory().join("user").join("contexts.yaml");
    let run = |variable: Option<&str>, args: &[&str]| {
        let mut command = Command::new(program());
        command.args(args).env("CHANCERY_CONTEXTS", &contexts).env_remove("CHANCERY_SERVER");
        // No configuration file is in this directory.
        command.envs(variable.map(|url| ("CHANCERY_SERVER", url))).current_dir(server.directory());
        command.output().expect("the program runs")
    };
    let (url, nowhere) = (server.url(), "http://127.0.0.1:9");
    let set = |name: &str, url: &str| run(None, &["context", "set", name, "--server", url]);
    assert_eq!(set("here", &url).stdout, b"context/here created\n");
    assert_eq!(set("there", nowhere).stdout, b"context/there created\n");
    let mode = contexts.metadata().expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its user reads the file");
    assert_eq!(code(&run(None, &["context", "show"])), Some(3), "no context is in use");
    assert_eq!(code(&run(None, &["context", "use", "her"])), Some(3), "no such context");
    let get = ["get", "nodes"];
    for (used, variable, flags, wanted) in [
        ("here", None, &[][..], 0),
        ("there", None, &[], 8),
        ("there", Some(&*url), &[], 0),
        ("here", Some(nowhere), &[], 8),
        ("there", Some(nowhere), &["--context", "here"], 0),
        ("here", Some(&*url), &["--context", "there"], 8),
        ("there", Some(nowhere), &["--context", "there", "--server", &url], 0),
    ] {
        assert_eq!(
            run(None, &["context", "use", used]).stdout,
            format!("context/{used} in use\n").as_bytes()
        );
        let output = run(variable, &[&get[..], flags].concat());
        assert_eq!(code(&output), Some(wanted), "{used} {variable:?} {flags:?}: {output:?}");
    }
    let table = String::from_utf8(run(None, &["context", "list"]).stdout).expect("text");
    let lines: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1..], [vec!["-", "here", &url, "-"], vec!["*", "there", nowhere, "-"]], "{table}");
    let config = String::from_utf8(run(None, &["config", "show"]).stdout).expect("text");
    let from = config.lines().find(|line| line.starts_with("server ")).expect("the server");
    assert!(from.ends_with("context there"), "{config}");

    // A server has its own fleet and settings.
    assert_eq!(code(&run(None, &["verify", ".", "--context", "here"])), Some(2));
    assert_eq!(run(None, &["context", "delete", "there"]).stdout, b"context/there deleted\n");
    assert_eq!(code(&run(None, &["context", "show"])), Some(3));
    std::fs::write(&contexts, "current: here\ncontexts:\n  here: {servre: x}\n").expect("a file");
    let broken = run(None, &get);
    assert_eq!(code(&broken), Some(2));
    assert!(errors(&broken).contains("contexts.yaml:3:"), "{broken:?}");
}
