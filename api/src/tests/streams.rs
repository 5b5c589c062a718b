//! Streams of events: order, resuming, filters, ends.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Response};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::world::{LINEAGE, ServedFleet, api_of, request};
use crate::HttpLimits;

const SSE: (&str, &str) = ("accept", "text/event-stream");

/// Stream that is being read.
struct StreamReading {
    body: Body,
    text: String,
}

impl StreamReading {
    async fn open(world: &ServedFleet, path: &str, headers: &[(&str, &str)]) -> StreamReading {
        let response =
            world.router().oneshot(request(Method::GET, path, headers, "")).await.expect("an answer");
        assert_eq!(response.status(), 200);
        StreamReading::of(response)
    }

    fn of(response: Response<Body>) -> StreamReading {
        StreamReading { body: response.into_body(), text: String::new() }
    }

    /// Returns the next event of a server-sent stream: name, id and data. Comments are skipped.
    async fn next(&mut self) -> Option<(String, String, Value)> {
        // Heartbeats arrive all the time: the timeout covers the whole wait.
        tokio::time::timeout(Duration::from_secs(30), self.wait()).await.expect("in time")
    }

    async fn wait(&mut self) -> Option<(String, String, Value)> {
        loop {
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                    line.unwrap_or_default().to_owned()
                };
                let (event, id, data) = (field("event"), field("id"), field("data"));
                self.text = rest.to_owned();
                if !event.is_empty() {
                    return Some((event, id, serde_json::from_str(&data).expect("JSON")));
                }
            }
            let frame = self.body.frame().await?;
            let bytes = frame.expect("no error").into_data().expect("data");
            self.text.push_str(str::from_utf8(&bytes).expect("text"));
        }
    }

    /// Returns the ids of the next events, without bookmarks.
    async fn ids(&mut self, count: usize) -> Vec<u64> {
        let mut ids = Vec::new();
        while ids.len() < count {
            let (event, id, data) = self.next().await.expect("more");
            match event.as_str() {
                "event" => {
                    assert_eq!((&data["id"], &data["lineage"]), (&json!(position(&id)), &json!(LINEAGE)));
                    ids.push(position(&id).parse().expect("a position"));
                }
                "bookmark" => {}
                other => panic!("{other}"),
            }
        }
        ids
    }
}

/// Returns the position of an id, whose lineage must be that of these tests.
fn position(id: &str) -> &str {
    let (position, lineage) = id.split_once('.').expect("a position and a lineage");
    assert_eq!(lineage, LINEAGE.to_string());
    position
}

fn range(from: u64, to: u64) -> Vec<u64> {
    (from..=to).collect()
}

#[tokio::test]
async fn a_follower_receives_past_and_new_events_once_and_in_order() {
    let world = ServedFleet::new();
    let mut reading = StreamReading::open(&world, "/events", &[SSE]).await;
    assert_eq!(reading.ids(5).await, range(1, 5));
    world.touch("node-1", 3);
    assert_eq!(reading.ids(3).await, range(6, 8));
    // Far beyond the ring: read from the journal.
    world.touch("node-2", 5_000);
    assert_eq!(reading.ids(5_000).await, range(9, 5_008));
}

#[tokio::test]
async fn resuming_is_exclusive_and_has_precedence_over_from() {
    let world = ServedFleet::new();
    world.touch("node-1", 5);
    let mut reading = StreamReading::open(&world, "/events?from=2", &[SSE, ("last-event-id", "7")]).await;
    assert_eq!(reading.ids(3).await, range(8, 10));
    let mut reading = StreamReading::open(&world, "/events?from=9", &[SSE]).await;
    assert_eq!(reading.ids(2).await, [9, 10]);
    let mut reading = StreamReading::open(&world, "/events?from=end", &[SSE]).await;
    world.touch("node-1", 1);
    assert_eq!(reading.ids(1).await, [11]);
    let ahead = world.send(request(Method::GET, "/events", &[SSE, ("last-event-id", "12")], "")).await;
    assert_eq!(ahead.problem(), (503, "position_not_applied".into(), String::new()));
    let wrong = world.send(request(Method::GET, "/events", &[SSE, ("last-event-id", "x")], "")).await;
    assert_eq!(wrong.problem().2, "/last-event-id");
}

#[tokio::test]
async fn random_disconnects_lose_and_repeat_nothing() {
    let world = ServedFleet::new();
    world.touch("node-1", 300);
    let (mut seen, mut random) = (Vec::new(), 11_usize);
    while seen.len() < 305 {
        random = random * 31 % 1_009;
        if random % 3 == 0 && seen.len() < 250 {
            world
                .commit(&[r#"node.state_changed.v1 {"name":"node-2","state":"unallocated","cluster":null}"#]);
        }
        let last = seen.last().copied().unwrap_or(0).to_string();
        let mut reading = StreamReading::open(&world, "/events", &[SSE, ("last-event-id", &last)]).await;
        let count = (random % 20 + 1).min(305 - seen.len());
        seen.extend(reading.ids(count).await);
    }
    assert_eq!(seen, range(1, 305));
}

#[tokio::test]
async fn a_filtered_stream_makes_progress_by_bookmarks() {
    let world = ServedFleet::new();
    world.touch("node-1", 20);
    let mut reading =
        StreamReading::open(&world, "/events?types=cluster.*&subject=cluster/local", &[SSE]).await;
    assert_eq!(reading.ids(1).await, [2]);
    let (event, id, data) = reading.next().await.expect("a bookmark");
    assert_eq!((event.as_str(), position(&id), data["position"].as_u64()), ("bookmark", "25", Some(25)));
    world.touch("node-1", 5);
    let (event, id, _) = reading.next().await.expect("a bookmark, with the heartbeat");
    assert_eq!((event.as_str(), position(&id)), ("bookmark", "30"));
    // A stream that resumes there misses no matching event.
    let mut resumed =
        StreamReading::open(&world, "/events?types=cluster.*", &[SSE, ("last-event-id", "30")]).await;
    world.commit(&[r#"cluster.activity_changed.v1 {"name":"local","activity":"inactive"}"#]);
    assert_eq!((resumed.ids(1).await, reading.ids(1).await), (vec![31], vec![31]));
}

#[tokio::test]
async fn progress_is_reported_while_many_events_are_skipped() {
    let world = ServedFleet::new();
    world.touch("node-1", 5_000);
    let mut reading = StreamReading::open(&world, "/events?types=cluster.*", &[SSE]).await;
    assert_eq!(reading.ids(1).await, [2]);
    let (event, id, _) = reading.next().await.expect("a bookmark");
    assert_eq!((event.as_str(), position(&id)), ("bookmark", "4098"));
    let (event, id, _) = reading.next().await.expect("another one at the tail");
    assert_eq!((event.as_str(), position(&id)), ("bookmark", "5005"));
}

#[tokio::test]
async fn filters_from_the_journal_and_from_the_ring_agree() {
    let world = ServedFleet::new();
    world.touch("node-1", 10);
    world.commit(&[r#"policy.applied.v1 {"name":"at-night","spec":{"rule":{"approve":{}}}}"#]);
    for (query, ids) in [
        ("subject=policy", vec![16]),
        ("subject=policy/at-night", vec![16]),
        ("subject=volume", vec![]),
        ("subject=volume/data", vec![]),
        ("subject=request", vec![]),
        ("subject=node/node-2", vec![4]),
        ("subject=cluster,capability", vec![2, 5]),
        ("types=term.started.v1,dev.chancery.cluster.applied.v1", vec![1, 2]),
        ("kinds=intent", vec![]),
        ("types=node.*&subject=node/node-1&limit=2", vec![3, 6]),
    ] {
        // A hub without published records has to read the journal for it.
        let mut cold = world.app.clone();
        cold.hub = std::sync::Arc::default();
        for app in [world.app.clone(), cold] {
            let path = format!("/events?follow=false&{query}");
            let response = crate::router(api_of(app))
                .oneshot(request(Method::GET, &path, &[], ""))
                .await
                .expect("an answer");
            let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body");
            let lines = str::from_utf8(&body).expect("text").lines();
            let found: Vec<u64> = lines
                .map(|line| {
                    serde_json::from_str::<Value>(line).expect("JSON")["id"]
                        .as_str()
                        .expect("an id")
                        .parse()
                        .expect("a position")
                })
                .collect();
            assert_eq!(found, ids, "{query}");
        }
    }
}

#[tokio::test]
async fn lines_of_json_are_the_same_events() {
    let world = ServedFleet::new();
    let answer = world.get("/events").await;
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    let lines: Vec<Value> = str::from_utf8(&answer.body)
        .expect("text")
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 5);
    assert_eq!(
        (&lines[1]["type"], &lines[1]["subject"]),
        (&"dev.chancery.cluster.applied.v1".into(), &"cluster/local".into())
    );
    let refused = world.send(request(Method::GET, "/events", &[("accept", "text/html")], "")).await;
    assert_eq!(refused.problem().0, 406);
}

#[tokio::test]
async fn a_stream_reports_why_it_ends() {
    let world = ServedFleet::new();
    for (path, reason, id) in [
        ("/events?follow=false", "end", "5"),
        ("/events?limit=2", "limit", "2"),
        ("/events?follow=false&types=cluster.*", "end", "5"),
    ] {
        let mut reading = StreamReading::open(&world, path, &[SSE]).await;
        let mut last = None;
        while let Some(event) = reading.next().await {
            last = Some(event);
        }
        let (event, at, data) = last.expect("an end");
        assert_eq!(
            (event.as_str(), data["reason"].as_str(), position(&at)),
            ("closed", Some(reason), id),
            "{path}"
        );
    }
    let mut reading = StreamReading::open(&world, "/events", &[SSE]).await;
    reading.ids(5).await;
    assert_eq!(world.app.hub.followers(), 1);
    world.app.hub.close();
    let (event, id, data) = reading.next().await.expect("an end");
    assert_eq!((event.as_str(), position(&id), data["reason"].as_str()), ("closed", "5", Some("shutdown")));
    assert!(reading.next().await.is_none());
    drop(reading);
    assert_eq!(world.app.hub.followers(), 0);
}

#[tokio::test]
async fn a_slow_follower_is_cut_off_and_resumes() {
    let world = ServedFleet::with(HttpLimits { stall: Duration::from_millis(500), ..HttpLimits::default() });
    world.touch("node-1", 20);
    let mut reading = StreamReading::open(&world, "/events", &[SSE]).await;
    assert_eq!(reading.ids(3).await, range(1, 3));
    tokio::time::sleep(Duration::from_millis(700)).await;
    let (event, id, data) = reading.next().await.expect("an end");
    assert_eq!((event.as_str(), data["reason"].as_str()), ("closed", Some("slow")));
    assert!(reading.next().await.is_none());
    let mut resumed = StreamReading::open(&world, "/events", &[SSE, ("last-event-id", &id)]).await;
    assert_eq!(resumed.ids(2).await, [4, 5]);
    let mut lines = world
        .router()
        .oneshot(request(Method::GET, "/events", &[], ""))
        .await
        .expect("an answer")
        .into_body();
    lines.frame().await.expect("an event").expect("no error");
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(lines.frame().await.expect("an end").is_err(), "a cut is not mistaken for the end");
}

#[tokio::test]
async fn an_idle_stream_shows_that_it_is_alive() {
    let world = ServedFleet::new();
    let mut reading = StreamReading::open(&world, "/events?from=end", &[SSE]).await;
    while !reading.text.contains(": heartbeat\n\n") {
        let frame =
            tokio::time::timeout(Duration::from_secs(5), reading.body.frame()).await.expect("in time");
        let bytes = frame.expect("more").expect("no error").into_data().expect("data");
        reading.text.push_str(str::from_utf8(&bytes).expect("text"));
    }
}

#[tokio::test]
async fn followers_are_limited() {
    let world = ServedFleet::with(HttpLimits { followers: 2, ..HttpLimits::default() });
    let _first = StreamReading::open(&world, "/events", &[SSE]).await;
    let second = StreamReading::open(&world, "/events", &[SSE]).await;
    let third = world.send(request(Method::GET, "/events", &[SSE], "")).await;
    assert_eq!(third.problem().1, "busy");
    drop(second);
    StreamReading::open(&world, "/events", &[SSE]).await;
}

#[tokio::test]
async fn a_stream_of_lines_shows_by_empty_ones_that_it_is_alive() {
    let world = ServedFleet::new();
    let mut reading = StreamReading::open(&world, "/events?from=end&follow=true", &[]).await;
    let mut line = async || loop {
        if let Some((line, rest)) = reading.text.split_once('\n') {
            let line = line.to_owned();
            reading.text = rest.to_owned();
            break line;
        }
        let frame =
            tokio::time::timeout(Duration::from_secs(30), reading.body.frame()).await.expect("in time");
        let bytes = frame.expect("more").expect("no error").into_data().expect("data");
        reading.text.push_str(str::from_utf8(&bytes).expect("text"));
    };
    assert_eq!(line().await, "");
    world.touch("node-1", 1);
    let event = loop {
        let line = line().await;
        if !line.is_empty() {
            break line;
        }
    };
    assert_eq!(serde_json::from_str::<Value>(&event).expect("JSON")["id"], "6");
}

#[tokio::test]
async fn a_stream_has_the_media_type_that_the_client_prefers() {
    let world = ServedFleet::new();
    let (sse, lines) = ("text/event-stream", "application/x-ndjson");
    for (accept, wanted) in [
        ("", Some(lines)),
        ("*/*", Some(lines)),
        (lines, Some(lines)),
        (sse, Some(sse)),
        ("text/*", Some(sse)),
        ("text/event-stream, */*", Some(sse)),
        ("text/event-stream;q=0.5, application/x-ndjson", Some(lines)),
        ("text/event-stream, application/x-ndjson;q=0.9", Some(sse)),
        ("application/x-ndjson;q=0, */*", Some(sse)),
        ("application/json", None),
        ("text/html", None),
    ] {
        let headers = if accept.is_empty() { vec![] } else { vec![("accept", accept)] };
        let answer = world
            .router()
            .oneshot(request(Method::GET, "/events?follow=false", &headers, ""))
            .await
            .expect("an answer");
        let found =
            answer.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
        match wanted {
            Some(wanted) => assert_eq!((answer.status().as_u16(), found), (200, wanted), "{accept}"),
            None => assert_eq!(answer.status(), 406, "{accept}"),
        }
    }
}
