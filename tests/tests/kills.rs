//! A server that is killed, again and again, while people use it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chancery_tests::{Client, Server, payloads, until};
use serde_json::{Value, json};

/// A cluster with four nodes, and a plan `web` of small processes that approves by itself.
pub(crate) fn set_up(client: &Client, payload: &Value) {
    client.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "process"}}));
    for i in 1..=4 {
        let total = json!({"cpu": 8000, "memory": 16u64 << 30, "disk": 0});
        let spec = json!({"domain": format!("domain-{}", i % 2), "total": total});
        client.must("node.apply", &json!({"name": format!("node-{i}"), "cluster": "local", "spec": spec}));
    }
    let automatic =
        json!({"create": "automatic", "start": "automatic", "stop": "automatic", "delete": "automatic"});
    let spec = json!({
        "namespace": "tests", "service": "web", "payloads": [payload], "approval": automatic, "sharing": "allowed",
    });
    client.must("plan.apply", &json!({"name": "web", "spec": spec}));
}

pub(crate) fn sleeper() -> Value {
    json!({"name": "app", "resources": {"cpu": 100, "memory": 1 << 20}, "run": {"argv": ["sleep", "100000"]}})
}

pub(crate) fn deploy(client: &Client, name: &str, count: u32) -> u64 {
    client.must("deployment.create", &json!({"plan": "web", "name": name, "spec": {"count": count}}))
}

/// Every event of the journal.
fn events(client: &Client) -> Vec<Value> {
    let answer = client.send(
        "GET",
        "/v1/fleets/default/events?from=0&follow=false",
        &[("accept", "application/x-ndjson")],
        b"",
    );
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.text.lines().map(|line| serde_json::from_str(line).expect("an event a line")).collect()
}

/// What one client knows of its intents: key, and the position of the verdict if it was told.
type Told = BTreeMap<String, Option<u64>>;

fn post_until(stop: &AtomicBool, url: &Mutex<String>, number: usize) -> Told {
    let mut told = Told::new();
    for i in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("client-{number}-{i}");
        let client = Client::new(&url.lock().expect("a url").clone());
        let name = format!("cap-{number}-{}", i % 50);
        let answer = client.intent(
            &key,
            "capability.apply",
            &json!({"name": name, "spec": {"type": "T", "score": i}}),
        );
        let position =
            (answer.status / 100 == 2).then(|| answer.json()["position"].as_u64().expect("a position"));
        told.insert(key, position);
        if position.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    told
}

#[test]
fn fifty_kills_lose_no_acknowledged_intent_decide_none_twice_and_leak_no_process() {
    const ROUNDS: u64 = 50;
    let mut server = Server::start();
    set_up(&server.client(), &sleeper());
    let (stop, url) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(server.url())));
    let clients: Vec<_> = (0..4)
        .map(|number| {
            let (stop, url) = (Arc::clone(&stop), Arc::clone(&url));
            std::thread::spawn(move || post_until(&stop, &url, number))
        })
        .collect();
    // The moments are spread by a fixed rule; what they hit differs from run to run.
    let mut seed = 0x5eed_u64;
    for round in 0..ROUNDS {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let count = (seed >> 40) as u32 % 7;
        deploy(&server.client(), &format!("round-{round}"), count);
        std::thread::sleep(Duration::from_millis(seed >> 33 & 0x7f));
        server.kill();
        server.start_again();
        *url.lock().expect("a url") = server.url();
    }
    stop.store(true, Ordering::Relaxed);
    let told: Vec<Told> = clients.into_iter().map(|client| client.join().expect("a client ends")).collect();

    let client = server.client();
    let all = events(&client);
    let mut intents: BTreeMap<&str, u32> = BTreeMap::new();
    let mut verdicts = BTreeSet::new();
    for event in &all {
        if event["kind"] == "intent" {
            *intents.entry(event["intentid"].as_str().expect("an intent carries its id")).or_default() += 1;
        }
        if matches!(
            event["type"].as_str(),
            Some("chancery.intent.accepted.v1" | "chancery.intent.refused.v1")
        ) {
            verdicts.insert(event["id"].as_str().expect("a position").to_owned());
        }
    }
    let (mut acknowledged, mut unknown) = (0, 0);
    for (key, position) in told.iter().flatten() {
        let recorded = intents.get(key.as_str()).copied().unwrap_or(0);
        assert!(recorded <= 1, "{key} was decided {recorded} times");
        match position {
            Some(position) => {
                acknowledged += 1;
                assert_eq!(recorded, 1, "{key} was acknowledged at {position} and is not in the journal");
                assert!(verdicts.contains(&position.to_string()), "no verdict stands at {position}");
            }
            None => unknown += 1,
        }
    }
    assert!(acknowledged > 200, "only {acknowledged} intents were acknowledged, {unknown} were not");
    println!(
        "{ROUNDS} kills, {} events: {acknowledged} acknowledged, 0 lost, 0 decided twice; {unknown} unanswered",
        all.len()
    );

    deploy(&client, "last", 5);
    client.wait_for("web", "running", 5);
    until("only the five run, each once", || {
        let alive = payloads(server.data());
        let replicas: BTreeSet<_> = alive.iter().map(|payload| &payload.replica).collect();
        (alive.len() == 5 && replicas.len() == 5).then_some(())
    });
    deploy(&client, "none", 0);
    until("nothing is left", || payloads(server.data()).is_empty().then_some(()));
    assert_eq!(server.stop(), Some(0));
    let verified = server.run(&["verify", &server.data().display().to_string()]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
}
