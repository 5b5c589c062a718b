//! Manifests that `get -o yaml` prints and `edit` opens, manifests from addresses, and the fields that a dry run shows.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use chancery_tests::ServerProcess;
use serde_json::Value;

/// One entity of each kind with a manifest, with most of what a manifest can have.
const ALL: &str = "\
apiVersion: chancery/v1
kind: Cluster
metadata: {name: sim}
spec: {runtime: simulated}
---
apiVersion: chancery/v1
kind: Capability
metadata: {name: gpu/a100}
spec: {type: GPU, score: 9}
---
apiVersion: chancery/v1
kind: Node
metadata: {name: node-1, labels: {kubernetes.io/os: 'yes', disk: fast}}
spec:
  cluster: sim
  domain: a
  zone: east
  resources: {cpu: 4, memory: 8, disk: 100}
  reserved: {cpu: 500m}
  capabilities: [gpu/a100]
  storage: [{class: ssd, capacity: 1TiB}]
---
apiVersion: chancery/v1
kind: Node
metadata: {name: node-2}
spec: {cluster: sim, domain: b, resources: {cpu: 1, memory: 1}}
---
apiVersion: chancery/v1
kind: Plan
metadata: {name: web}
spec:
  namespace: demo
  service: web
  labels: {app: web}
  selectors: {disk: fast}
  matchers: [{type: GPU, comparator: GTE, names: [gpu/a100]}]
  affinity: [{group: g, kind: anti_affinity}]
  restart_delay: 1500ms
  approval: {create: automatic}
  timeouts: {approval: 36h, stop: 5s}
  unready: {after: 90s, action: restart}
  payloads:
  - name: app
    resources: {cpu: 100m, memory: 64MiB}
    ports: [{protocol: TCP, port: 80}]
    volumes: [{class: ssd, capacity: 1, mount: /data}]
    run: {argv: [sleep, '1', '${port.tcp-80}'], env: {A: 'x: # y', B: \"two\\nlines\"}}
    ready: {http: {port: tcp-80, path: /, period: 250ms}}
    alive: {tcp: {port: tcp-80}}
---
apiVersion: chancery/v1
kind: Policy
metadata: {name: at-night}
spec: {kinds: [create], approve: {windows: [{days: [sat], start: '22:00', duration: 8h}], max_in_flight: 3}}
---
apiVersion: chancery/v1
kind: Policy
metadata: {name: two}
spec: {kinds: [delete, expunge], four_eyes: true}
---
apiVersion: chancery/v1
kind: Deployment
metadata: {name: one}
spec: {plan: web, count: 1, coordinates: {app: {version: '1.10'}}, strategy: {rolling: {delay: 5m}}, progress_deadline: 1h}
";
const NAMES: [&str; 8] = [
    "cluster/sim",
    "capability/gpu/a100",
    "node/node-1",
    "node/node-2",
    "plan/web",
    "policy/at-night",
    "policy/two",
    "deployment/web/one",
];

fn server() -> (ServerProcess, PathBuf) {
    let server = ServerProcess::start_with(&[("CHANCERY_EMBEDDED_EXECUTORS", "none")]);
    let file = server.directory().join("all.yaml");
    std::fs::write(&file, ALL).expect("a file");
    server.cli(&["apply", "-f", file.to_str().expect("text")]);
    (server, file)
}

/// Runs a command with an editor, which is a command of the shell, and its standard input.
fn with_input(server: &ServerProcess, args: &[&str], editor: &str, input: &str) -> Output {
    let mut child = Command::new(chancery_tests::program())
        .args(args)
        .envs([("CHANCERY_SERVER", server.url().as_str()), ("VISUAL", editor)])
        .env("TMPDIR", server.directory())
        .current_dir(server.directory())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    child.stdin.take().expect("an input").write_all(input.as_bytes()).expect("a pipe");
    child.wait_with_output().expect("an output")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_get_prints_as_yaml_is_applied_unchanged() {
    let (server, file) = server();
    let unchanged =
        |output: &Output| text(&output.stdout).lines().filter(|line| line.ends_with(" unchanged")).count();
    for name in NAMES {
        let manifest = server.cli(&["get", name, "-o", "yaml"]);
        assert!(manifest.contains("\nstatus:\n") && manifest.contains("\nspec:\n"), "{manifest}");
        let applied = with_input(&server, &["apply", "-f", "-"], "", &manifest);
        assert_eq!(
            (text(&applied.stdout), applied.status.code()),
            (format!("{name} unchanged\n"), Some(0)),
            "{applied:?}"
        );
    }
    let kinds = "clusters,capabilities,nodes,plans,policies,deployments";
    let all = server.cli(&["get", kinds, "-o", "yaml"]);
    let applied = with_input(&server, &["apply", "-f", "-"], "", &all);
    assert_eq!(unchanged(&applied), NAMES.len(), "{applied:?}\n{all}");
    // Kinds without manifests have their rows.
    assert!(server.cli(&["get", "nodes,replicas", "-o", "yaml"]).starts_with("nodes:\n"));
    assert!(server.cli(&["get", "replicas", "-o", "yaml"]).starts_with("items:"));
    // An eviction lasts: the first manifest of the node stays valid, and so does the one that it has then.
    server.cli(&["drain", "node-2"]);
    let path = file.to_str().expect("text");
    for command in [&["evict", "node-2"][..], &["sanitize", "node-2"]] {
        let first = server.run(&["apply", "-f", path]);
        assert_eq!(unchanged(&first), NAMES.len(), "{first:?}");
        let ended = server.run(command);
        assert!(ended.status.success(), "{ended:?}");
    }
    let first = server.run(&["apply", "-f", path]);
    assert_eq!(unchanged(&first), NAMES.len(), "{first:?}");
    let manifest = server.cli(&["get", "node/node-2", "-o", "yaml"]);
    let applied = with_input(&server, &["apply", "-f", "-"], "", &manifest);
    assert_eq!(text(&applied.stdout), "node/node-2 unchanged\n", "{manifest}");
}

#[test]
fn an_entity_is_edited_in_an_editor() {
    let (server, _) = server();
    let edit = |editor: &str| {
        let output = with_input(&server, &["edit", "plan", "web"], editor, "");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let kept = |err: &str| {
        let path = err.lines().find_map(|line| line.split_once("is kept: ")).expect("a path").1.to_owned();
        std::fs::read_to_string(path).expect("the kept file")
    };
    let version = || server.client().read("plans/web")["version"].as_u64().expect("a version");
    let before = version();
    let (code, out, err) = edit("true");
    assert_eq!((code, out.as_str(), version()), (Some(0), "", before), "{err}");
    assert!(err.contains("edit cancelled: plan/web is unchanged"), "{err}");
    let (code, out, err) = edit("sed -i 's/max_unavailable: 1/max_unavailable: 3/'");
    assert_eq!((code, out.as_str()), (Some(0), "plan/web configured\n"), "{err}");
    assert!(err.contains("takes effect immediately: max_unavailable"), "{err}");
    // An invalid manifest is opened again with its errors, and corrected there.
    let script = server.directory().join("editor");
    let fix = "if grep -q '^# .*wrong' \"$1\"; then sed -i 's/^  wrong: 1/  zones: [z]/' \"$1\"; else sed -i 's/^spec:/spec:\\n  wrong: 1/' \"$1\"; fi";
    std::fs::write(&script, fix).expect("a script");
    let (code, out, err) = edit(&format!("sh {}", script.display()));
    assert_eq!((code, out.as_str()), (Some(0), "plan/web configured\n"), "{err}");
    // Invalid twice: the file is kept, with the line of the error.
    let (code, _, err) =
        edit(r#"f() { grep -q wrong "$1" || sed -i 's/^spec:/spec:\n  wrong: 1/' "$1"; }; f"#);
    assert!(code != Some(0) && kept(&err).contains("wrong: 1"), "{err}");
    // Another change meanwhile.
    let other = format!(
        "f() {{ sed -i 's/max_unavailable: 3/max_unavailable: 4/' \"$1\"; {} deactivate plan web >/dev/null; }}; f",
        chancery_tests::program().display()
    );
    let (code, _, err) = edit(&other);
    assert_eq!(code, Some(4), "{err}");
    assert!(kept(&err).contains("max_unavailable: 4"), "{err}");
    // Another entity.
    let (code, _, err) = edit("sed -i 's/name: web/name: other/'");
    assert!(code == Some(1) && err.contains("must be the one of plan/web"), "{err}");
    let (code, _, err) = edit("false");
    assert!(code == Some(1) && err.contains("ended with"), "{err}");
    let none = with_input(&server, &["edit", "replica", "web-0"], "true", "");
    assert_eq!(none.status.code(), Some(2), "{none:?}");
    let fixed = with_input(&server, &["edit", "deployment", "web/first"], "false", "");
    let err = text(&fixed.stderr);
    assert!(fixed.status.code() == Some(2) && err.contains("chancery scale web --count NUMBER"), "{err}");
}

#[test]
fn a_dry_run_shows_changed_fields_with_old_and_new_values() {
    let (server, file) = server();
    let path = file.to_str().expect("text");
    let edited = ALL
        .replace("restart_delay: 1500ms", "restart_delay: 2s")
        .replace("argv: [sleep, '1',", "argv: [sleep, '2',")
        .replace("disk: fast}}", "disk: slow}}")
        .replace("cpu: 500m", "cpu: 250m")
        .replace("max_in_flight: 3", "max_in_flight: 4")
        .replace("metadata: {name: two}", "metadata: {name: new}");
    std::fs::write(&file, &edited).expect("a file");
    for args in [&["apply", "--dry-run", "-f", path][..], &["diff", "-f", path]] {
        let shown = server.run(args);
        let out = text(&shown.stdout);
        let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
        for wanted in [
            &["plan/web", "configured", "spec.restart_delay", "1500", "2000"][..],
            &["plan/web", "configured", "spec.payloads[0].run.argv[1]", "1", "2"],
            &["node/node-1", "configured", "labels.disk", "fast", "slow"],
            &["node/node-1", "configured", "reserved.cpu", "500", "250"],
            &["policy/at-night", "configured", "spec.rule.approve.max_in_flight", "3", "4"],
            &["policy/new", "created", "-", "-", "-"],
        ] {
            assert!(lines.iter().any(|line| line.as_slice() == wanted), "{wanted:?}: {out}");
        }
        let wanted = if args[0] == "diff" { Some(1) } else { Some(0) };
        assert_eq!(shown.status.code(), wanted, "{shown:?}");
        assert_eq!(out.contains("cluster/sim"), args[0] == "apply", "diff shows only differences: {out}");
        let err = text(&shown.stderr);
        assert_eq!(err.contains("dry run"), args[0] == "apply", "{err}");
        let names = text(&server.run(&[args, &["-o", "name"]].concat()).stdout);
        let names: Vec<_> = names.lines().collect();
        assert!(names.contains(&"policy/new") && names.contains(&"plan/web"), "{names:?}");
        assert_eq!(names.contains(&"cluster/sim"), args[0] == "apply", "{names:?}");
    }
    let answer: Value =
        serde_json::from_str(&server.cli(&["apply", "--dry-run", "-f", path, "-o", "json"])).expect("JSON");
    let changes = answer["changes"].as_array().expect("changes");
    let keys: Vec<_> = changes.iter().filter_map(|change| change["key"].as_str()).collect();
    assert_eq!(keys, ["node-1", "web", "at-night", "new"], "only what changes");
    assert_eq!(changes[3]["change"], "created");
}

/// Serves answers, one for each connection. Returns the address.
fn serve(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut lines = BufReader::new(stream.try_clone().expect("a stream")).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    format!("http://{address}")
}

#[test]
fn manifests_are_read_from_addresses() {
    let (server, _) = server();
    let ok = |body: &str| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    };
    let moved = |to: &str| {
        format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    };
    let run = |verb: &str, url: &str| {
        let output = server.run(&[verb, "-f", url]);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let base = serve(vec![moved("/there"), ok(ALL), ok(ALL)]);
    let (code, out, err) = run("apply", &format!("{base}/all.yaml"));
    assert_eq!((code, out.matches(" unchanged").count()), (Some(0), NAMES.len()), "{err}");
    assert_eq!(run("diff", &format!("{base}/all.yaml")).0, Some(0));
    let base = serve(vec![ok(&ALL.replace("score: 9", "scores: 9"))]);
    let (code, _, err) = run("apply", &format!("{base}/all.yaml"));
    assert!(code == Some(1) && err.contains(&format!("{base}/all.yaml:9:")), "{err}");
    let base = serve(vec![moved("/a"); 20]);
    assert!(run("apply", &base).2.contains("redirect"), "bounded");
    let large = "HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\nConnection: close\r\n\r\n".to_owned()
        + &"#".repeat((16 << 20) + 9);
    let base = serve(vec![large]);
    let (code, _, err) = run("delete", &base);
    assert!(code == Some(1) && err.contains("more than 16777216 bytes"), "{err}");
    let (code, _, err) = run("apply", "https://127.0.0.1:1/a.yaml");
    assert!(
        code == Some(1) && err.contains("https is not supported") && err.contains("download the file first"),
        "{err}"
    );
    let base = serve(vec!["HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into()]);
    assert!(run("apply", &base).2.contains("HTTP status 404"));
    // It accepts connections.
    let secure = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = format!("https://{}/x", secure.local_addr().expect("an address"));
    let base = serve(vec![moved(&to)]);
    let (_, _, err) = run("apply", &base);
    assert!(err.contains("https is not supported"), "{err}");
}
