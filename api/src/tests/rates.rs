//! Principals above their rate are refused, with a time to retry; other principals are not affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request};
use chancery_events::fact::IntentOutcome;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;

use super::world::{CompleteAnswer, ServedFleet, request};
use super::writes::accepted;
use crate::{FleetDirectories, HttpLimits, serve};

const NODE: &str = r#"{"spec":{"domain":"d1","resources":{"cpu":4000}}}"#;

fn write(actor: &str) -> Request<Body> {
    let headers = [("content-type", "application/json"), ("chancery-actor", actor)];
    request(Method::PUT, "/nodes/node-1", &headers, NODE)
}

/// Sends requests until one is refused; every budget here is small enough for this to be fast.
async fn flood(world: &ServedFleet, ask: impl Fn() -> Request<Body>) -> CompleteAnswer {
    for _ in 0..10_000 {
        let answer = world.send(ask()).await;
        if answer.status == 429 {
            return answer;
        }
        assert!(answer.status.is_success(), "{:?}", answer.body);
    }
    panic!("it is never too much");
}

#[tokio::test]
async fn a_client_above_its_rate_is_notified_when_to_retry_and_no_other_is_slowed() {
    let limits = HttpLimits { writes_per_second: 5, reads_per_second: 50, ..HttpLimits::default() };
    let world = ServedFleet::with(limits);
    world.decide(accepted(IntentOutcome::Changed, 2));
    let refused = flood(&world, || write("ann")).await;
    assert_eq!(refused.problem(), (429, "too_many_requests".into(), String::new()));
    assert_eq!((refused.header("retry-after"), &refused.json()["retryable"]), ("1", &true.into()));
    let asked = world.asked.lock().expect("no panic").len();
    // Another actor, and reads of the same one.
    assert_eq!(world.send(write("bob")).await.status, 200);
    assert_eq!(world.asked.lock().expect("no panic").len(), asked + 1);
    // The verdicts of this decider are in no rows.
    let read = "/nodes?consistency=eventual";
    assert_eq!(world.get(read).await.status, 200);
    let refused = flood(&world, || request(Method::GET, read, &[], "")).await;
    assert_eq!(refused.problem().0, 429);
    // Neither OPTIONS nor unknown routes bypass the budget; streams have a separate budget, and probes need none.
    let astray = world.send(request(Method::GET, "//nowhere", &[], "")).await;
    assert!(matches!(astray.problem().0, 404 | 429), "{:?}", astray.body);
    let refused = flood(&world, || request(Method::OPTIONS, "/nodes", &[], "")).await;
    assert_eq!(refused.problem().0, 429);
    assert_eq!(world.get("/events?limit=1&follow=true").await.status, 200);
    assert_eq!(world.get("//livez").await.status, 200);
}

#[tokio::test]
async fn a_batch_pays_for_each_of_its_intents() {
    let world = ServedFleet::with(HttpLimits { writes_per_second: 100, ..HttpLimits::default() });
    world.decide(accepted(IntentOutcome::Changed, 2));
    let event = |n: usize| {
        format!(
            r#"{{"specversion":"1.0","id":"{n}","source":"t","type":"dev.chancery.node.apply.v1","data":{{"name":"n",{}}}"#,
            &NODE[1..]
        )
    };
    // Tokens of a hundred seconds, in one request.
    let events: Vec<_> = (0..1000).map(event).collect();
    let events = (0..10).map(|_| format!("[{}]", events.join(","))).collect::<Vec<_>>();
    let headers = [("content-type", "application/cloudevents-batch+json")];
    let answer = world.send(request(Method::POST, "/intents", &headers, events[0].clone())).await;
    assert_eq!(answer.status, 200);
    let answer = world.send(request(Method::POST, "/intents", &headers, events[1].clone())).await;
    assert_eq!(answer.problem().0, 429);
    let wait: u64 = answer.header("retry-after").parse().expect("seconds");
    assert!((1..=10).contains(&wait), "{wait}");
}

#[tokio::test]
async fn addresses_are_distinguished() {
    let world = ServedFleet::with(HttpLimits { reads_per_second: 5, ..HttpLimits::default() });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(serve(world.api(), listener, std::future::pending()));
    let status = async |from: &str| {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(format!("{from}:0").parse().expect("an address")).expect("an address of this machine");
        let mut stream = socket.connect(address).await.expect("a connection");
        let text = "GET /v1/fleets/default/nodes HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(text.as_bytes()).await.expect("sent");
        let mut all = String::new();
        stream.read_to_string(&mut all).await.expect("an answer");
        all.split(' ').nth(1).expect("a status").to_owned()
    };
    for tried in 0.. {
        if status("127.0.0.2").await == "429" {
            break;
        }
        assert!(tried < 1000, "it is never too much");
    }
    assert_eq!(status("127.0.0.1").await, "200");
}

#[tokio::test]
async fn rejected_requests_use_no_rate_of_admitted_ones() {
    let world = ServedFleet::with(HttpLimits { reads_per_second: 5, ..HttpLimits::default() });
    let page = [("origin", "http://evil.example")];
    for _ in 0..100 {
        assert_eq!(world.send(request(Method::GET, "/nodes", &page, "")).await.problem().0, 403);
    }
    assert_eq!(world.get("/nodes").await.status, 200);
}

#[tokio::test]
async fn scrapes_that_wait_share_what_one_of_them_reads() {
    let read = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&read);
    let mut world = ServedFleet::new();
    world.app.figure_source = Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            // The scrape may have given up.
            drop(answer.send(None));
        });
        answered
    });
    let scrapes: Vec<_> = (0..20)
        .map(|_| {
            tokio::spawn(tower::ServiceExt::oneshot(
                world.router(),
                request(Method::GET, "//metrics", &[], ""),
            ))
        })
        .collect();
    for answer in scrapes {
        assert_eq!(answer.await.expect("no panic").expect("an answer").status(), 200);
    }
    assert!(read.load(Ordering::Relaxed) <= 2, "{read:?}");
    assert_eq!(world.get("//metrics").await.status, 200);
    assert!(read.load(Ordering::Relaxed) >= 2, "a later scrape reads again");
}

#[tokio::test]
async fn scrapes_do_not_wait_for_a_disk_that_answers_no_earlier_one() {
    let mut world = ServedFleet::new();
    let journal = tempfile::tempdir().expect("a directory");
    let directory = journal.path().to_owned();
    world.app.directories = Some(FleetDirectories { journal: directory.clone(), snapshots: directory });
    let scrape = async |world: &ServedFleet| {
        String::from_utf8(world.get("//metrics").await.body.to_vec()).expect("text")
    };
    assert!(scrape(&world).await.contains("chancery_journal_bytes{"));
    let earlier = Arc::clone(&world.app.figures.disk).try_acquire_owned().expect("no scrape");
    let text = scrape(&world).await;
    assert!(
        !text.contains("chancery_journal_bytes{") && text.contains("chancery_journal_position{"),
        "{text}"
    );
    drop(earlier);
    assert!(scrape(&world).await.contains("chancery_journal_bytes{"));
}
