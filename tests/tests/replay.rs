//! `chancery replay` of the journals of real servers: what it prints, what it finds, what it serves, and that it
//! changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use chancery_events::record::RecordHash;
use chancery_tests::fault_campaigns::fleet::{deploy, set_up, sleeper};
use chancery_tests::{ReplayProcess, ServerProcess, TestClient, program, until};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Bytes of the first line of a snapshot, which ends with the hash of those before it, and a line feed.
const META: usize = 2048;
const HASHED: usize = META - 65;

/// Mode, size, time of the last change and content, by path.
pub(crate) type DirectoryContent = BTreeMap<PathBuf, (u32, u64, i64, i64, Vec<u8>)>;

fn replay(data: &Path, args: &[&str]) -> Output {
    Command::new(program()).arg("replay").arg(data).args(args).output().expect("the program runs")
}

/// Returns the summary of a replay that finds nothing wrong.
fn summary(data: &Path, args: &[&str]) -> Value {
    let done = replay(data, &[args, &["-o", "json"]].concat());
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{}: {err}", done.status);
    serde_json::from_slice(&done.stdout).expect("JSON")
}

/// Returns exit code, standard output and standard error of a replay.
fn outcome(data: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let done = replay(data, args);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (done.status.code(), text(done.stdout), text(done.stderr))
}

/// Stops the server's process, which keeps its locks and changes nothing until it continues.
pub(crate) fn pause(server: &ServerProcess) {
    server.signal(Signal::STOP);
    until("all of its threads are stopped", || {
        let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs");
        let states = tasks.map(|task| fs::read_to_string(task.expect("a thread").path().join("stat")));
        // The state follows the name, which is in parentheses.
        let is_stopped = |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'));
        states.into_iter().all(|stat| stat.is_ok_and(is_stopped)).then_some(())
    });
}

/// Returns mode, size, time of the last change and content of everything in a directory.
pub(crate) fn tree(dir: &Path) -> DirectoryContent {
    let mut found = BTreeMap::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).expect("metadata");
        let content = if meta.is_file() { fs::read(&path).expect("content") } else { Vec::new() };
        found.insert(path.clone(), (meta.mode(), meta.size(), meta.mtime(), meta.mtime_nsec(), content));
        if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.expect("an entry").path()));
        }
    }
    found
}

pub(crate) fn assert_unchanged(before: &DirectoryContent, after: &DirectoryContent) {
    let paths = before.keys().chain(after.keys());
    let changed: Vec<_> = paths.filter(|path| before.get(*path) != after.get(*path)).collect();
    assert!(changed.is_empty(), "{changed:?}");
}

/// Starts a server with small segments and frequent snapshots, on which replicas run, and kills it twice.
pub(crate) fn fleet_with_a_past() -> ServerProcess {
    let mut server = ServerProcess::new();
    server.set("CHANCERY_SNAPSHOT_INTERVAL_EVENTS", "60");
    server.set("CHANCERY_SEGMENT_BYTES", "64KiB");
    server.start_again();
    set_up(&server.client(), &sleeper());
    for round in 0..3 {
        let client = server.client();
        for score in 0..20 {
            let name = format!("c-{round}");
            client.must("capability.apply", &json!({"name": name, "spec": {"type": "T", "score": score}}));
        }
        deploy(&client, &format!("d-{round}"), 2 + round % 2);
        client.wait_for("web", "running", (2 + round % 2) as usize);
        // Until the supervisor of a deleted replica has ended, it writes files.
        let count = || client.items("replicas?limit=10").len() as u32;
        until("no other replica is left", || (count() == 2 + round % 2).then_some(()));
        let refused = client.intent(&format!("refused-{round}"), "node.delete", &json!({"name": "no"}));
        assert_eq!(refused.status, 404, "{}", refused.text);
        if round < 2 {
            server.kill();
            server.start_again();
        }
    }
    server
}

/// Returns the events of a server, as it streams them.
fn events(client: &TestClient) -> Vec<Value> {
    let answer = client.get("/v1/fleets/default/events?from=1&follow=false");
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_replay_counts_what_the_journal_has_and_changes_nothing_while_a_server_has_it_open() {
    let server = fleet_with_a_past();
    let client = server.client();
    // The server has everything open and locked, and changes nothing meanwhile.
    pause(&server);
    let before = tree(server.data());
    let shown = summary(server.data(), &[]);
    let (code, text, err) = outcome(server.data(), &[]);
    let after = tree(server.data());
    server.signal(Signal::CONT);
    assert_eq!(code, Some(0), "{err}");
    assert_unchanged(&before, &after);

    let last = shown["last"]["position"].as_u64().expect("a position");
    let events: Vec<_> = events(&client).into_iter().filter(|event| position(event) <= last).collect();
    assert_eq!(shown["events"], json!(events.len()));
    let mut types: BTreeMap<String, u64> = BTreeMap::new();
    for event in &events {
        let name = event["type"].as_str().expect("a type");
        *types.entry(name.strip_prefix("dev.chancery.").unwrap_or(name).to_owned()).or_default() += 1;
    }
    assert_eq!(shown["types"], json!(types));
    assert_eq!(shown["refusals"], json!({"not_found": 3}));
    // The first record may have more than one event.
    let first = shown["first"]["position"].as_u64().expect("a position");
    assert!(shown["terms"] == json!(3) && (1..last).contains(&first), "{shown}");
    assert_eq!(shown["builds"][0]["build"], env!("CARGO_PKG_VERSION"));
    assert_eq!((&shown["entities"]["nodes"], &shown["entities"]["capabilities"]), (&json!(4), &json!(3)));
    let results = shown["snapshots"].as_array().expect("a list");
    assert!(results.len() >= 2 && results.iter().all(|one| one["result"] == "agrees"), "{results:?}");
    let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let events = events.len().to_string();
    assert!(lines.iter().any(|words| words.starts_with(&["folded", &*events, "events"])), "{text}");
    for wanted in [["terms", "3"], ["nodes", "4"], ["intent.refused.v1", "3"], ["not_found", "3"]] {
        assert!(lines.iter().any(|words| *words == wanted), "{wanted:?} in {text}");
    }
    assert!(err.contains("events folded in"), "{err}");
}

fn position(event: &Value) -> u64 {
    event["id"].as_str().and_then(|id| id.parse().ok()).expect("a position")
}

#[test]
fn a_replay_ends_at_a_position_or_a_time() {
    let mut server = ServerProcess::start();
    let client = server.client();
    let apply = |score: u64| {
        client.must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": score}}))
    };
    let first = apply(1);
    let last = apply(2);
    server.stop();
    let data = server.data();
    let whole = summary(data, &[]);
    let part = summary(data, &["--until", &first.to_string()]);
    assert!(
        part["last"]["position"].as_u64() >= Some(first) && part["last"]["position"].as_u64() < Some(last)
    );
    assert_ne!(part["state_hash"], whole["state_hash"]);
    let time = part["last"]["time"].as_str().expect("a time");
    assert_eq!(summary(data, &["--until", time]), part);
    assert_eq!(summary(data, &["--until", "2999-01-01T00:00:00Z"]), whole, "a time after the last record");
    let lineage = part["lineage"].as_str().expect("a lineage");
    assert_eq!(summary(data, &["--until", &format!("{first}.{lineage}")]), part);
    // A journal's own directory has no fleets to choose from.
    assert_eq!(summary(&data.join("fleets/default/journal"), &["--until", time]), part);
    let (code, _, err) = outcome(data, &["-o", "yaml"]);
    assert!(code == Some(2) && err.contains("must be table, json or jsonl"), "{err}");
    let cases: [(&[&str], &str); 4] = [
        (&["--until", &format!("{first}.00000000000000aa")], "the journal does not have it"),
        (&["--until", "99999"], "after the last record: the journal reaches from position 1"),
        (&["--until", "2001-01-01T00:00:00Z"], "before the first record"),
        (&["--fleet", "other"], "name one of its fleets with --fleet: default"),
    ];
    for (args, wanted) in cases {
        let (code, out, err) = outcome(data, args);
        assert!(code == Some(1) && out.is_empty() && err.contains(wanted), "{args:?}: {code:?} {err}");
    }
}

/// Inverts a bit of the last occurrence of a text in the segments. Returns whether the segment is the last one.
fn damage(data: &Path, text: &str) -> bool {
    let journal = data.join("fleets/default/journal");
    let entries = fs::read_dir(journal).expect("a journal").map(|entry| entry.expect("an entry").path());
    let mut segments: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).collect();
    segments.sort();
    for (index, path) in segments.iter().enumerate().rev() {
        let mut bytes = fs::read(path).expect("a segment");
        if let Some(at) = bytes.windows(text.len()).rposition(|window| window == text.as_bytes()) {
            bytes[at] ^= 1;
            fs::write(path, bytes).expect("written");
            return index + 1 == segments.len();
        }
    }
    panic!("{text} is not in the journal")
}

#[test]
fn a_replay_names_the_position_of_a_damaged_record_and_folds_those_before_it() {
    let mut server = fleet_with_a_past();
    let client = server.client();
    let at = client.must("capability.apply", &json!({"name": "zebra", "spec": {"type": "T", "score": 1}}));
    client.must("capability.apply", &json!({"name": "other", "spec": {"type": "T", "score": 1}}));
    server.stop();
    let data = server.data();
    let ends = |until: u64| summary(data, &["--until", &until.to_string()])["last"]["position"].as_u64();
    // The record before that of the verdict.
    let last = (1..at).rev().filter_map(ends).find(|end| *end < at).expect("an earlier record");
    assert!(damage(data, "\"zebra\""), "it is in the last segment");
    let (code, out, err) = outcome(data, &[]);
    assert!(code == Some(1) && err.contains(&format!("damaged at position {}", last + 1)), "{code:?} {err}");
    assert!(out.contains(&format!("position {last} at ")), "{out}");
    assert_eq!(summary(data, &["--until", &last.to_string()])["last"]["position"], json!(last));

    assert!(!damage(data, "\"c-0\""), "it is in an earlier segment");
    let (code, out, err) = outcome(data, &[]);
    assert!(
        code == Some(1) && out.is_empty() && err.contains("damaged at position "),
        "{code:?} {out} {err}"
    );
    let (_, text) = err.split_once("damaged at position ").expect("a position");
    let found: u64 = text.split(':').next().expect("a number").parse().expect("a number");
    assert_eq!(summary(data, &["--until", &(found - 1).to_string()])["last"]["position"], json!(found - 1));
    let (code, _, err) = outcome(data, &["--until", &found.to_string()]);
    assert!(code == Some(1) && err.contains(&format!("position {found}")), "{err}");
}

/// Paths of snapshots, oldest first.
pub(crate) fn snapshots(data: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(data.join("fleets/default/snapshots")).expect("snapshots");
    let mut found: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    found.sort();
    found
}

/// Writes a snapshot with other metadata and the state of `state`.
pub(crate) fn forge(path: &Path, state: &Path, change: impl FnOnce(&mut Value, &Value)) {
    let meta = |bytes: &[u8]| -> Value { serde_json::from_slice(&bytes[..HASHED]).expect("metadata") };
    let (bytes, of_state) = (fs::read(path).expect("read"), fs::read(state).expect("read"));
    let mut forged = meta(&bytes);
    change(&mut forged, &meta(&of_state));
    let mut line = serde_json::to_vec(&forged).expect("JSON");
    line.resize(HASHED, b' ');
    let hash = RecordHash::of(&line);
    line.extend(format!("{hash}\n").bytes());
    fs::write(path, [&line, &of_state[META..]].concat()).expect("written");
}

#[test]
fn a_named_pipe_among_the_snapshots_is_reported_and_delays_nothing() {
    let mut server = ServerProcess::start();
    server.client().must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": 1}}));
    server.kill();
    let directory = server.data().join("fleets/default/snapshots");
    fs::create_dir_all(&directory).expect("a directory");
    // Its position is that of a record of the journal.
    let last = summary(server.data(), &[])["last"]["position"].as_u64().expect("a position");
    let pipe = directory.join(format!("{last:020}.snap"));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let (code, _, err) = outcome(server.data(), &[]);
    assert!(code == Some(1) && err.contains("it is not a file"), "{code:?} {err}");
}

#[test]
fn a_replay_compares_the_snapshots_of_this_build_with_the_state_of_the_journal() {
    let mut server = fleet_with_a_past();
    server.stop();
    let data = server.data();
    let all = snapshots(data);
    let [first, .., of_other_build, other_state] = &all[..] else { panic!("{all:?}") };
    let position_of = |path: &Path| path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
    let before = position_of(of_other_build).expect("a position").to_string();
    forge(of_other_build, of_other_build, |meta, _| meta["fingerprint"] = json!("another build's"));
    let results = |shown: &Value| -> Vec<String> {
        let results = shown["snapshots"].as_array().expect("a list").iter();
        results.map(|one| one["result"].as_str().expect("a word").to_owned()).collect()
    };
    let found = results(&summary(data, &[]));
    assert_eq!(found.len(), all.len());
    assert_eq!(found[all.len() - 2..], ["skipped: of another build", "agrees"]);

    // Intact, but with the state of another position.
    forge(other_state, first, |meta, of_state| {
        meta["state_hash"] = of_state["state_hash"].clone();
        meta["len"] = of_state["len"].clone();
    });
    let (code, out, err) = outcome(data, &["-o", "json"]);
    let shown: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(results(&shown).last().map(String::as_str), Some("differs"));
    let position = shown["snapshots"].as_array().and_then(|all| all.last()).expect("it")["position"].clone();
    let wanted = format!("snapshot at position {position} has another state than the journal gives");
    assert!(code == Some(1) && err.contains(&wanted), "{code:?} {err}");
    // It is not served either.
    let (code, _, err) = outcome(data, &["--listen", "127.0.0.1:0"]);
    assert!(code == Some(1) && err.contains(&wanted), "{code:?} {err}");

    let mut bytes = fs::read(other_state).expect("read");
    bytes[META] ^= 1;
    fs::write(other_state, bytes).expect("written");
    let (code, _, err) = outcome(data, &[]);
    assert!(code == Some(1) && err.contains(&format!("snapshot at position {position} is damaged")), "{err}");
    let (code, _, err) = outcome(data, &["--until", &before]);
    assert_eq!(code, Some(0), "{err}");
}

/// Reads whose answers are compared.
const PATHS: [&str; 12] = [
    "nodes",
    "nodes?domain=domain-1&limit=1",
    "nodes/node-2/history?limit=5",
    "clusters/local",
    "plans/web",
    "deployments?state=completed",
    "replicas?plan=web&limit=2",
    "incarnations?limit=3",
    "operations?plan=web&limit=4",
    "capabilities/c-0",
    "capabilities/c-0/history",
    "diff?from=40",
];

#[test]
fn a_replayed_journal_is_served_for_reads_and_writes_are_refused() {
    let server = fleet_with_a_past();
    let client = server.client();
    let last = client.must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": 1}}));
    pause(&server);
    let before = tree(server.data());
    let audit = ReplayProcess::start(server.data(), &["--until", &last.to_string()]);
    let replayed = audit.client();
    assert_eq!(replayed.get("/readyz").status, 200);
    let answers = |client: &TestClient, moment: &str| -> Vec<(u16, String)> {
        let read = |path: &&str| {
            let joint = if path.contains('?') { '&' } else { '?' };
            let parameter = if path.starts_with("diff") { "to" } else { "as_of" };
            let answer = client.get(&format!("/v1/fleets/default/{path}{joint}{parameter}={moment}"));
            (answer.status, answer.text)
        };
        PATHS.iter().map(read).collect()
    };
    let (end, earlier) = (last.to_string(), "60");
    let of_replay = [&*end, earlier].map(|moment| answers(&replayed, moment));
    let now: Vec<_> = PATHS[..PATHS.len() - 1]
        .iter()
        .map(|path| replayed.get(&format!("/v1/fleets/default/{path}")))
        .collect();
    let head = replayed.get("/v1/fleets/default/nodes").position.expect("a position");
    let streamed = events(&replayed);
    let limited = replayed.get(&format!("/v1/fleets/default/events?from=1&follow=true&limit={head}"));

    refuses_writes(&audit);
    let (code, left) = audit.stop();
    assert_unchanged(&before, &tree(server.data()));
    assert_eq!((code, left), (Some(0), 0), "its rows are removed");

    server.signal(Signal::CONT);
    let of_server = [&*end, earlier].map(|moment| answers(&client, moment));
    let tokenless = |text: &str| text.split("\"next_page_token\"").next().map(str::to_owned);
    for (path, (ours, theirs)) in
        PATHS.iter().cycle().zip(of_replay.concat().iter().zip(of_server.concat().iter()))
    {
        assert_eq!((ours.0, theirs.0), (200, 200), "{path}: {} {}", ours.1, theirs.1);
        assert_eq!(tokenless(&ours.1), tokenless(&theirs.1), "{path}");
    }
    for (path, (now, (_, at_end))) in PATHS.iter().zip(now.iter().zip(&of_server[0])) {
        assert_eq!((now.status, tokenless(&now.text)), (200, tokenless(at_end)), "{path}");
        assert!(path.contains("history") || now.position == Some(head), "{path}: {:?}", now.position);
    }
    let all: Vec<_> = events(&client).into_iter().filter(|event| position(event) <= head).collect();
    assert_eq!(streamed, all);
    assert_eq!(limited.text.lines().filter(|line| !line.is_empty()).count(), all.len());
}

fn refuses_writes(served: &ReplayProcess) {
    let client = served.client();
    let written =
        client.intent("one", "capability.apply", &json!({"name": "x", "spec": {"type": "T", "score": 1}}));
    assert_eq!((written.status, &written.json()["code"]), (403, &json!("read_only")), "{}", written.text);
    let headers = [("content-type", "application/json")];
    for (method, path) in [
        ("DELETE", "nodes/node-1"),
        ("POST", "channels"),
        ("POST", "channels/1/messages"),
        ("POST", "channels/1/consoles"),
        ("POST", "consoles/1/attach"),
    ] {
        let answer = client.send(method, &format!("/v1/fleets/default/{path}"), &headers, b"{}");
        assert_eq!(
            (answer.status, &answer.json()["code"]),
            (403, &json!("read_only")),
            "{path}: {}",
            answer.text
        );
    }
    for (args, wanted) in [
        (&["get", "replicas"][..], "web-"),
        (&["get", "nodes", "--as-of", "60"], "node-1"),
        (&["describe", "plan", "web"], "All operations"),
        (&["history", "plan", "web"], "plan.applied"),
        (&["events", "--types", "term.started.v1"], "term.started"),
        (&["diff", "40"], "plan/web"),
    ] {
        let done = served.run(args);
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success() && out.contains(wanted), "{args:?}: {out}{err}");
    }
    let done = served.run(&["apply", "-f", "examples/nodes.yaml"]);
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(5) && err.contains("this server shows a replayed journal"), "{err}");
}
