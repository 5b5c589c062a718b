//! Intents that change nothing: they are answered from the state, and do not grow the journal.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chancery_tests::{ServerProcess, TestClient, until};
use serde_json::{Value, json};

/// Returns the bytes of all segments of the journal.
fn journal_bytes(server: &ServerProcess) -> u64 {
    let directory = server.data().join("fleets/default/journal");
    let entries =
        std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries.map(|entry| entry.expect("an entry").metadata().expect("its size").len()).sum()
}

fn head(client: &TestClient) -> u64 {
    client.get("/v1/fleets/default/clusters?limit=1").position.expect("a position")
}

fn capability(name: &str, score: u64) -> Value {
    json!({"name": name, "spec": {"type": "GPU", "score": score}})
}

/// Applies the capability with a header; returns the answer.
fn put(client: &TestClient, key: &str, score: u64, headers: &[(&str, &str)]) -> Value {
    let own = [("content-type", "application/json"), ("idempotency-key", key)];
    let body = json!({"spec": capability("gpu", score)["spec"]}).to_string();
    let path = "/v1/fleets/default/capabilities/gpu";
    client.send("PUT", path, &[&own, headers].concat(), body.as_bytes()).json()
}

#[test]
fn a_hundred_repeated_applies_write_nothing() {
    let server = ServerProcess::start();
    let client = server.client();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
    let apply =
        |file: &str| server.cli(&["apply", "-f", root.join("examples").join(file).to_str().expect("a path")]);
    for file in ["nodes.yaml", "web-plan.yaml"] {
        assert!(apply(file).contains(" created"));
    }
    let before = until("the rows are at the head", || {
        let before = (head(&client), journal_bytes(&server));
        std::thread::sleep(Duration::from_millis(300));
        ((head(&client), journal_bytes(&server)) == before).then_some(before)
    });
    for _ in 0..50 {
        for file in ["nodes.yaml", "web-plan.yaml"] {
            let answer = apply(file);
            assert!(answer.lines().all(|line| line.ends_with(" unchanged")), "{answer}");
        }
    }
    assert_eq!((head(&client), journal_bytes(&server)), before, "no byte and no event was added");
}

#[test]
fn a_recorded_verdict_is_for_ever_and_another_is_of_its_position() {
    let mut server = ServerProcess::start();
    let client = server.client();
    assert_eq!(put(&client, "a", 1, &[])["recorded"], true);
    let state = head(&client);
    let same = put(&client, "b", 1, &[]);
    assert_eq!(
        (&same["verdict"], &same["recorded"], &same["position"]),
        (&json!("unchanged"), &json!(false), &json!(state))
    );
    let kept = put(&client, "c", 1, &[("chancery-unchanged", "recorded")]);
    assert_eq!((&kept["verdict"], &kept["recorded"]), (&json!("unchanged"), &json!(true)));
    assert_eq!(kept["position"], json!(state + 2), "after its intent");

    server.kill();
    server.start_again();
    let client = server.client();
    assert_eq!(put(&client, "d", 2, &[])["verdict"], "accepted");
    assert_eq!(put(&client, "c", 1, &[]), kept, "a repeat gets the recorded verdict, and changes nothing");
    assert_eq!(client.read("capabilities/gpu")["score"], 2);
    let again = put(&client, "b", 1, &[]);
    assert_eq!(
        (&again["verdict"], &again["recorded"]),
        (&json!("accepted"), &json!(true)),
        "it is decided again"
    );
    assert_eq!(put(&client, "b", 1, &[]), again);

    let wrong = put(&client, "e", 1, &[("chancery-unchanged", "yes")]);
    assert_eq!(
        (&wrong["status"], &wrong["errors"][0]["pointer"]),
        (&json!(400), &json!("/chancery-unchanged"))
    );
}

#[test]
fn loops_of_applies_add_nothing_while_the_server_is_killed() {
    const LOOPS: usize = 4;
    let mut server = ServerProcess::new();
    server.start_again();
    server.stay_at_this_address();
    let url = server.url();
    for number in 0..LOOPS {
        server.client().must("capability.apply", &capability(&format!("cap-{number}"), 1));
    }
    let before = head(&server.client());
    let is_done = AtomicBool::new(false);
    let starts = 5;
    let answered: usize = std::thread::scope(|scope| {
        let appliers: Vec<_> = (0..LOOPS)
            .map(|number| {
                let (url, is_done) = (&url, &is_done);
                scope.spawn(move || {
                    let client = TestClient::new(url);
                    let (mut answered, mut key) = (0, 0);
                    while !is_done.load(Ordering::Relaxed) {
                        let name = format!("cap-{number}");
                        let answer = client.intent(
                            &format!("{number}-{key}"),
                            "capability.apply",
                            &capability(&name, 1),
                        );
                        // Without an answer, the loop repeats the same intent.
                        if answer.status == 200 {
                            let body = answer.json();
                            assert_eq!(
                                (&body["verdict"], &body["recorded"]),
                                (&json!("unchanged"), &json!(false))
                            );
                            (answered, key) = (answered + 1, key + 1);
                        }
                    }
                    answered
                })
            })
            .collect();
        for _ in 0..starts {
            std::thread::sleep(Duration::from_millis(300));
            server.kill();
            server.start_again();
        }
        is_done.store(true, Ordering::Relaxed);
        appliers.into_iter().map(|applier| applier.join().expect("no panic")).sum()
    });
    assert!(answered > 10 * LOOPS, "only {answered} applies were answered");
    let events =
        server.client().get(&format!("/v1/fleets/default/events?from={}&follow=false", before + 1)).text;
    let intents = events.lines().filter(|line| line.contains("capability.apply")).count();
    assert_eq!(intents, 0, "no intent was recorded: {events}");
}
