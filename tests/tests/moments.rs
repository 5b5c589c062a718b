//! Reads at a moment: the answers of a live service, with their positions, compared with later answers at the
//! same positions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use chancery_tests::fault_campaigns::fleet::{deploy, set_up, sleeper};
use chancery_tests::kafka::shared;
use chancery_tests::{ReplayProcess, ServerProcess, StandbyServers, TestClient, until};
use serde_json::{Value, json};

/// Lists and rows that are read; names of replicas, incarnations and operations are added.
const PATHS: [&str; 14] = [
    "nodes",
    "nodes?domain=domain-1&limit=1",
    "nodes/node-1",
    "nodes/node-2/history?limit=5",
    "clusters/local",
    "clusters/local/history",
    "plans/web",
    "plans/web/deployments?limit=2",
    "deployments?state=completed",
    "replicas?plan=web&limit=2",
    "replicas?phase=running",
    "incarnations?limit=3",
    "operations?plan=web&limit=4",
    "capabilities/c",
];
/// Number of positions of which answers are compared each time.
const MOMENTS: usize = 60;

/// Answer of the live service, by position and path: the body.
type LiveAnswers = BTreeMap<(u64, String), String>;

fn fleet(path: &str) -> String {
    format!("/v1/fleets/default/{path}")
}

/// Returns the body of an answer without the token of the next page, which is of one moment.
fn body(text: &str) -> String {
    match text.split_once("\"next_page_token\":\"") {
        Some((items, rest)) => {
            let (_, rest) = rest.split_once('"').expect("the end of a token");
            format!("{items}…{rest}")
        }
        None => text.to_owned(),
    }
}

/// Reads a path, and notes the answer with its position. A page may be of neighbouring positions while rows
/// change, so only an answer that is read twice with one position counts.
fn note(client: &TestClient, path: &str, answers: &Mutex<LiveAnswers>) {
    let [first, second] = [(); 2].map(|()| client.get(&fleet(path)));
    let (Some(position), true) = (first.position, first.position == second.position) else { return };
    if first.status == 200 && second.status == 200 && first.text == second.text {
        answers.lock().expect("no panic").insert((position, path.to_owned()), body(&first.text));
    }
}

/// Reads until `is_done`, also rows that exist for a while.
fn record(client: &TestClient, answers: &Mutex<LiveAnswers>, is_done: &AtomicBool) {
    while !is_done.load(Ordering::Relaxed) {
        for path in PATHS {
            note(client, path, answers);
        }
        for kind in ["replicas", "incarnations", "operations", "sessions"] {
            let page = client.get(&fleet(&format!("{kind}?limit=1000"))).json();
            let items = page["items"].as_array().cloned().unwrap_or_default();
            let name = |item: &Value| item["name"].as_str().or(item["id"].as_str()).map(str::to_owned);
            if let Some(name) = items.iter().rev().find_map(name) {
                note(client, &format!("{kind}/{name}"), answers);
                note(client, &format!("{kind}/{name}/history?limit=20"), answers);
            }
        }
    }
}

/// Compares recorded answers with those at their positions, which are read in an order without direction.
fn compare(client: &TestClient, answers: &LiveAnswers, round: u64) {
    let positions: BTreeSet<u64> = answers.keys().map(|(position, _)| *position).collect();
    // Multiplication by an odd number changes the order of positions.
    let mut order: Vec<u64> = positions.into_iter().collect();
    order.sort_by_key(|position| position.wrapping_add(round).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut compared = 0;
    for position in order.into_iter().take(MOMENTS) {
        let range = (position, String::new())..(position + 1, String::new());
        for ((_, path), wanted) in answers.range(range) {
            let joint = if path.contains('?') { '&' } else { '?' };
            let answer = client.get(&fleet(&format!("{path}{joint}as_of={position}")));
            assert_eq!((answer.status, answer.position), (200, Some(position)), "{path}: {}", answer.text);
            assert_eq!(body(&answer.text), *wanted, "{path} at {position}");
            compared += 1;
        }
    }
    assert!(compared >= 30, "only {compared} answers were compared");
}

/// Sends intents while answers are recorded.
fn work(client: &TestClient, round: u32, answers: &Mutex<LiveAnswers>) {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| record(client, answers, &is_done));
        for score in 0..20 {
            let spec = json!({"type": "T", "score": score});
            client.must("capability.apply", &json!({"name": "c", "spec": spec}));
        }
        deploy(client, &format!("d-{round}"), 2 + round % 3);
        client.wait_for("web", "running", (2 + round % 3) as usize);
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn as_of_returns_the_bytes_that_were_read_at_the_time_whatever_was_lost_since() {
    let mut server = ServerProcess::new();
    server.set("CHANCERY_SNAPSHOT_INTERVAL_EVENTS", "150");
    server.set("CHANCERY_SEGMENT_BYTES", "64KiB");
    server.start_again();
    let answers = Mutex::default();
    set_up(&server.client(), &sleeper());
    for round in 0..4 {
        work(&server.client(), round, &answers);
        server.kill();
        server.start_again();
    }
    let answers = answers.into_inner().expect("no panic");
    compare(&server.client(), &answers, 1);
    let data = server.data().join("fleets/default");
    assert!(data.join("snapshots").read_dir().expect("snapshots").count() > 1);
    for (round, lost) in (2..).zip(["", "snapshots", "rows"]) {
        server.stop();
        if !lost.is_empty() {
            std::fs::remove_dir_all(data.join(lost)).expect("it is removed");
        }
        server.start_again();
        compare(&server.client(), &answers, round);
    }
    server.stop();
    let replay = ReplayProcess::start(server.data(), &[]);
    compare(&replay.client(), &answers, 5);
}

#[test]
fn as_of_reads_are_answered_by_a_standby_on_kafka() {
    let standbys = StandbyServers::start(shared(1), "as-of", 2, &[]);
    let decider = standbys.decider();
    let (leader, standby) = (standbys.servers[decider].client(), standbys.servers[1 - decider].client());
    let answers = Mutex::default();
    for score in 0..40 {
        for name in ["c", &format!("c-{score}")] {
            leader.must("capability.apply", &json!({"name": name, "spec": {"type": "T", "score": score}}));
        }
        for path in ["capabilities", "capabilities?limit=3", "capabilities/c", "capabilities/c/history"] {
            note(&leader, path, &answers);
        }
    }
    let answers = answers.into_inner().expect("no panic");
    let (last, _) = answers.keys().last().expect("an answer").clone();
    until("the standby has the records", || {
        (standby.get(&fleet("capabilities/c")).position >= Some(last)).then_some(())
    });
    compare(&standby, &answers, 1);
    compare(&leader, &answers, 2);
}

#[test]
fn as_of_is_understood_by_get_and_describe() {
    let server = ServerProcess::start();
    let client = server.client();
    let apply = |score: u64| {
        client.must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": score}}))
    };
    let first = apply(1);
    apply(2);
    // The verdict's position shows its effect.
    let row = |moment: &str| -> Value {
        let text = server.cli(&["get", "capability/c", "--as-of", moment, "-o", "json"]);
        serde_json::from_str(&text).expect("JSON")
    };
    assert_eq!(row(&first.to_string())["score"], 1);
    let time = row(&first.to_string())["updated_at"].as_str().expect("a time").to_owned();
    assert_eq!(row(&time)["score"], 1);
    let shown = server.run(&["describe", "capability/c", "--as-of", &time]);
    let (out, err) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    assert!(out.contains('1') && out.matches("capability").count() >= 1, "{out}");
    assert!(err.contains("as of position") && err.contains(&time), "{err}");
    let events = |out: &str| out.lines().filter(|line| line.contains("apply")).count();
    let now = server.cli(&["describe", "capability/c"]);
    assert!(events(&out) < events(&now), "{out}\n{now}");
    let difference = server.cli(&["diff", &first.to_string(), "--kind", "capability"]);
    let words: Vec<_> = difference.lines().nth(1).expect("a change").split_whitespace().collect();
    assert_eq!(words, ["capability/c", "changed", "score", "1", "2"], "{difference}");
    let late = server.run(&["get", "capabilities", "--as-of", "2100-01-01T00:00:00Z"]);
    let err = String::from_utf8_lossy(&late.stderr);
    assert!(late.status.code() == Some(2) && err.contains("reaches from position 1"), "{err}");
    let wrong = server.run(&["get", "capabilities", "--as-of", "yesterday"]);
    assert_eq!(wrong.status.code(), Some(2));
}
