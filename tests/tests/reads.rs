//! Reads after writes: an acknowledged write is visible in the server's next answers to every client.

use std::sync::atomic::{AtomicU64, Ordering};

use chancery_tests::kafka::shared;
use chancery_tests::{ServerProcess, StandbyServers, TestClient, until};
use serde_json::{Value, json};

/// Number of writes per client, and number of clients.
const WRITES: usize = 125;
const CLIENTS: usize = 4;

fn fleet(path: &str) -> String {
    format!("/v1/fleets/default/{path}")
}

/// Writes a capability with a score. Returns the answer.
fn put(client: &TestClient, name: &str, score: usize) -> chancery_tests::ServerAnswer {
    let body = json!({"spec": {"type": "T", "score": score}}).to_string();
    let headers = [("content-type", "application/json")];
    client.send("PUT", &fleet(&format!("capabilities/{name}")), &headers, body.as_bytes())
}

/// Names and scores of the complete list.
fn scores(client: &TestClient) -> Vec<(String, u64)> {
    let page = client.get(&fleet("capabilities?limit=1000")).json();
    let items = page["items"].as_array().expect("items").clone();
    let score = |item: &Value| Some((item["name"].as_str()?.to_owned(), item["score"].as_u64()?));
    items.iter().filter_map(score).collect()
}

#[test]
fn no_read_after_an_acknowledged_write_is_stale() {
    let server = ServerProcess::start();
    let stale = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (stale, writer) = (&stale, server.client());
            // A separate connection: every client reads what one client was acknowledged.
            let reader = server.client();
            scope.spawn(move || {
                let name = format!("c-{number}");
                for score in 1..=WRITES {
                    assert!((200..300).contains(&put(&writer, &name, score).status));
                    let is_new = match score % 3 {
                        0 => reader.get(&fleet(&format!("capabilities/{name}"))).json()["score"] == score,
                        1 => scores(&reader).contains(&(name.clone(), score as u64)),
                        _ => {
                            let path = fleet(&format!("capabilities/{name}/history?limit=1000"));
                            let items = reader.get(&path).json()["items"].take();
                            items.as_array().is_some_and(|items| items.len() >= 2 * score)
                        }
                    };
                    stale.fetch_add(u64::from(!is_new), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(stale.load(Ordering::Relaxed), 0, "of {} reads", CLIENTS * WRITES);
}

#[test]
fn what_a_batch_or_a_refusal_was_decided_on_is_read_after_it() {
    let server = ServerProcess::start();
    let client = server.client();
    for round in 0..50 {
        let event = |number: usize| {
            json!({
                "specversion": "1.0", "id": format!("{round}-{number}"), "source": "tests", "type": "dev.chancery.capability.apply.v1",
                "data": {"name": format!("b-{round}-{number}"), "spec": {"type": "T", "score": 1}},
            })
        };
        let batch = json!((0..20).map(event).collect::<Vec<_>>()).to_string();
        let headers = [("content-type", "application/cloudevents-batch+json")];
        let answer = client.send("POST", &fleet("intents"), &headers, batch.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(scores(&client).len(), 20 * (round + 1), "round {round}");
    }
    // A concurrent change by another client is refused, and visible in the next read.
    let name = "capabilities/contested";
    put(&client, "contested", 0);
    for score in 1..100 {
        let version = client.get(&fleet(name)).json()["version"].as_u64().expect("a version");
        let late = |score: usize| {
            let headers = [("content-type", "application/json"), ("if-match", &*format!("\"{version}\""))];
            let body = json!({"spec": {"type": "T", "score": score}}).to_string();
            client.send("PUT", &fleet(name), &headers, body.as_bytes()).status
        };
        assert_eq!((late(score), late(score + 1000)), (200, 412));
        assert_eq!(client.get(&fleet(name)).json()["score"], score);
    }
}

#[test]
fn a_server_that_is_started_again_answers_with_what_it_acknowledged_before() {
    let mut server = ServerProcess::start();
    for score in 1..=5 {
        assert!((200..300).contains(&put(&server.client(), "c", score).status));
        server.kill();
        server.start_again();
        assert_eq!(server.client().get(&fleet("capabilities/c")).json()["score"], score);
    }
}

#[test]
fn a_standby_names_its_position_and_is_as_new_as_what_it_forwarded_or_is_requested() {
    let standbys = StandbyServers::start(shared(1), "reads", 2, &[]);
    let decider = standbys.decider();
    let (leader, standby) = (standbys.servers[decider].client(), standbys.servers[1 - decider].client());
    until("an intent is decided", || (put(&standby, "c", 0).status < 300).then_some(()));
    for score in 1..=100 {
        // The standby forwarded the write and returned the verdict, but its rows may be older.
        let answer = put(&standby, "c", score);
        assert_eq!(answer.status, 200, "{}", answer.text);
        let verdict = answer.json()["position"].as_u64().expect("a position");
        let row = standby.get(&fleet("capabilities/c"));
        assert_eq!((row.status, row.json()["score"].as_u64()), (200, Some(score as u64)), "{}", row.text);
        assert!(row.position.is_some_and(|position| position >= verdict), "{row:?}");
        let events = standby.get(&fleet(&format!("events?from={verdict}&types=capability.applied.v1")));
        assert_eq!((events.status, events.text.lines().count()), (200, 1), "{}", events.text);
        // A write through the other server, named by its position.
        let answer = put(&leader, "d", score);
        let verdict = answer.json()["position"].as_u64().expect("a position");
        for path in ["capabilities/d", "capabilities/d/history", "capabilities?type=T"] {
            let joint = if path.contains('?') { '&' } else { '?' };
            let read = standby.get(&fleet(&format!("{path}{joint}min_position={verdict}")));
            assert_eq!(read.status, 200, "{path}: {}", read.text);
            assert!(read.position.is_some_and(|position| position >= verdict), "{path}: {read:?}");
        }
        assert_eq!(standby.get(&fleet("capabilities/d")).json()["score"], score);
    }
    let ahead = standby.get(&fleet("capabilities/d")).position.expect("a position") + 1000;
    let late = standby.get(&fleet(&format!("capabilities/d?min_position={ahead}")));
    assert_eq!((late.status, late.json()["code"].as_str()), (503, Some("position_not_applied")), "{late:?}");
    let eventual = standby.get(&fleet("capabilities/d?consistency=eventual"));
    assert!(eventual.status == 200 && eventual.position.is_some(), "{eventual:?}");
}

#[test]
fn a_position_that_was_acknowledged_is_reached_after_a_takeover() {
    let mut standbys = StandbyServers::start(shared(1), "reads-takeover", 2, &[]);
    for round in 1..=3 {
        let decider = standbys.decider();
        let standby = standbys.servers[1 - decider].client();
        let answer = until("an intent is decided", || {
            Some(put(&standby, "c", round)).filter(|answer| answer.status < 300)
        });
        let verdict = answer.json()["position"].as_u64().expect("a position");
        standbys.servers[decider].kill();
        let read = standby.get(&fleet("capabilities/c"));
        assert_eq!((read.status, read.json()["score"].as_u64()), (200, Some(round as u64)), "{read:?}");
        until("the standby decides", || (standbys.decides() == Some(1 - decider)).then_some(()));
        let read = standby.get(&fleet("capabilities/c"));
        assert!(read.status == 200 && read.position >= Some(verdict), "{read:?}");
        standbys.servers[decider].start_again();
    }
}
