//! Rows and histories.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use axum::http::Method;
use chancery_decider::{AcceptedIntent, Verdict};
use chancery_events::fact::IntentOutcome;
use chancery_events::id::{OperationId, Position};
use chancery_events::name::ReplicaName;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_projector::RowKind;

use super::world::{LINEAGE, ServedFleet, request};
use crate::HttpLimits;

#[tokio::test]
async fn a_list_is_paginated() {
    let world = ServedFleet::new();
    let first = world.get("/nodes?limit=1").await;
    let json = first.json();
    assert_eq!((first.status.as_u16(), first.header("content-type")), (200, "application/json"));
    assert_eq!((json["items"][0]["name"].as_str(), json["position"].as_u64()), (Some("node-1"), Some(5)));
    let token = json["next_page_token"].as_str().expect("a second page");
    let second = world.get(&format!("/nodes?limit=1&page_token={token}")).await.json();
    assert_eq!(
        (second["items"][0]["name"].as_str(), second["next_page_token"].is_null()),
        (Some("node-2"), true)
    );
    let filtered = world.get("/nodes?domain=d2").await.json();
    assert_eq!(filtered["items"].as_array().map(Vec::len), Some(1));
    for list in RowKind::ALL.iter().map(|kind| kind.word()) {
        assert_eq!(world.get(&format!("/{list}")).await.status, 200, "{list}");
    }
}

#[tokio::test]
async fn a_row_shows_its_version() {
    let world = ServedFleet::new();
    world.touch("node-1", 2);
    let node = world.get("/nodes/node-1").await;
    assert_eq!((&node.header("etag")[..3], node.json()["version"].as_u64()), ("\"3-", Some(3)));
    let capability = world.get("/capabilities/nvidia/v100").await;
    assert_eq!(capability.json()["name"], "nvidia/v100");
}

#[tokio::test]
async fn what_never_existed_and_what_is_deleted_are_distinguished() {
    let world = ServedFleet::new();
    assert_eq!(world.get("/nodes/node-9").await.problem(), (404, "not_found".into(), String::new()));
    let other = OperationId::issue(LINEAGE, Position::new(3));
    assert_eq!(world.get(&format!("/operations/{other}")).await.problem().0, 404);
    let ahead = OperationId::issue(LINEAGE, Position::new(3_000));
    assert_eq!(world.get(&format!("/operations/{ahead}")).await.problem().0, 404);

    let spec = r#"{"namespace":"web","service":"nginx","payloads":[{"name":"server","resources":{}}]}"#;
    world.commit(&[
        &format!(r#"plan.applied.v1 {{"name":"nginx","generation":1,"spec":{spec}}}"#),
        r#"deployment.created.v1 {"plan":"nginx","name":"d1","generation":1,"spec":{"count":1},"requested_by":"ann"}"#,
        r#"deployment.started.v1 {"plan":"nginx","name":"d1"}"#,
    ]);
    let name = ReplicaName::issue(&"nginx".parse().expect("a name"), Position::new(9));
    world.commit(&[&format!(r#"replica.created.v1 {{"name":"{name}","plan":"nginx","deployment":"d1"}}"#)]);
    assert_eq!(world.get(&format!("/replicas/{name}")).await.status, 200);
    world.commit(&[&format!(r#"replica.deleted.v1 {{"name":"{name}"}}"#)]);
    let gone = world.get(&format!("/replicas/{name}")).await;
    assert_eq!(gone.problem().0, 410);
    let see = gone.json()["help"].as_str().expect("a pointer to its history").to_owned();
    let history = world.get(&format!("/{see}")).await.json();
    assert_eq!(history["items"].as_array().map(Vec::len), Some(2), "{history}");
    let others = name.to_string().replace("nginx", "other");
    assert_eq!(world.get(&format!("/replicas/{others}")).await.problem().0, 404);
}

#[tokio::test]
async fn a_history_continues_after_the_last_entry_of_a_page() {
    let world = ServedFleet::new();
    world.touch("node-1", 3);
    let page = world.get("/nodes/node-1/history?limit=2").await.json();
    let positions = |page: &serde_json::Value| -> Vec<u64> {
        page["items"].as_array().expect("items").iter().filter_map(|item| item["position"].as_u64()).collect()
    };
    assert_eq!(positions(&page), [3, 6]);
    let next = page["next_from"].as_u64().expect("more");
    let rest = world.get(&format!("/nodes/node-1/history?from={next}")).await.json();
    assert_eq!((positions(&rest), rest["next_from"].is_null()), (vec![7, 8], true));
    assert_eq!(
        world.get("/capabilities/nvidia/v100/history").await.json()["items"].as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(world.get("/nodes/node-9/history").await.problem().0, 404);
}

/// Creates plans whose rows have about 30 kB each.
fn large_plans(world: &ServedFleet, count: usize) {
    for n in 0..count {
        world.commit(&[&large_plan(&format!("p{n}"), 30_000)]);
    }
}

fn large_plan(name: &str, bytes: usize) -> String {
    let text = "x".repeat(bytes);
    let payloads = format!(r#"[{{"name":"server","resources":{{}},"run":{{"argv":["app","{text}"]}}}}]"#);
    let spec = format!(r#"{{"namespace":"web","service":"nginx","payloads":{payloads}}}"#);
    format!(r#"plan.applied.v1 {{"name":"{name}","generation":1,"spec":{spec}}}"#)
}

#[tokio::test]
async fn a_page_ends_before_it_has_too_many_bytes_and_the_next_one_continues() {
    let world = ServedFleet::with(HttpLimits { page: 100_000, ..HttpLimits::default() });
    large_plans(&world, 12);
    let (mut names, mut pages, mut token) = (Vec::new(), 0, String::new());
    loop {
        let answer = world.get(&format!("/plans?limit=1000{token}")).await;
        assert!(answer.body.len() < 100_200, "{}", answer.body.len());
        let page = answer.json();
        let items = page["items"].as_array().expect("items");
        names.extend(items.iter().filter_map(|item| item["name"].as_str().map(str::to_owned)));
        pages += 1;
        let Some(next) = page["next_page_token"].as_str() else { break };
        token = format!("&page_token={next}");
    }
    assert_eq!(pages, 4);
    let mut sorted = names.clone();
    sorted.dedup();
    assert_eq!((names.len(), sorted.len()), (12, 12), "each once: {names:?}");

    for _ in 0..11 {
        world.commit(&[&large_plan("p0", 30_000)]);
    }
    let (mut events, mut pages, mut from) = (0, 0, 1);
    loop {
        let answer = world.get(&format!("/plans/p0/history?limit=1000&from={from}")).await;
        assert!(answer.body.len() < 100_200, "{}", answer.body.len());
        let page = answer.json();
        events += page["items"].as_array().expect("items").len();
        pages += 1;
        let Some(next) = page["next_from"].as_u64() else { break };
        from = next;
    }
    assert_eq!((events, pages), (12, 4));
    world.commit(&[&large_plan("p0", 300_000)]);
    let first = world.get("/plans?limit=1000").await.json();
    assert_eq!(first["items"].as_array().map(Vec::len), Some(1), "a row that is larger is a page of its own");
    assert!(first["next_page_token"].is_string());
}

#[tokio::test]
async fn answers_that_no_client_reads_have_one_budget_and_small_pages_need_none() {
    let world = ServedFleet::with(HttpLimits { page: 200_000, answers: 400_000, ..HttpLimits::default() });
    large_plans(&world, 12);
    world.commit(&[&large_plan("z-large", 150_000)]);
    let ask = |path: &str| {
        let router = world.router();
        let asked = request(Method::GET, path, &[], "");
        async move { tower::ServiceExt::oneshot(router, asked).await.expect("an answer") }
    };
    let mut unread = Vec::new();
    while world.app.common.answers.free() >= 200_000 {
        unread.push(ask("/plans?limit=1000").await);
    }
    assert_eq!(unread.len(), 2);
    assert!(world.app.common.answers.free() < 100_000, "each has what it is long");
    let small = world.get("/plans?limit=1000").await;
    let count = small.json()["items"].as_array().map(Vec::len);
    assert_eq!((small.status.as_u16(), count), (200, Some(2)), "a small page");
    assert!(small.json()["next_page_token"].is_string());
    assert_eq!(world.get("/plans/p1").await.status, 200, "a small row");
    assert_eq!(world.get("/plans/z-large").await.problem(), (503, "busy".into(), String::new()));
    drop(unread);
    assert_eq!(world.app.common.answers.free(), 400_000);
    assert_eq!(world.get("/plans/z-large").await.status, 200);
}

#[tokio::test]
async fn a_read_waits_for_the_position_it_needs() {
    let min_position = std::time::Duration::from_secs(1);
    let world = ServedFleet::with(HttpLimits { min_position, ..HttpLimits::default() });
    let router = world.router();
    let waiting = tokio::spawn(tower::ServiceExt::oneshot(
        router,
        request(Method::GET, "/nodes/node-1?min_position=6", &[], ""),
    ));
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!waiting.is_finished());
    world.touch("node-1", 1);
    let answer = waiting.await.expect("no panic").expect("an answer");
    assert_eq!((answer.status().as_u16(), &answer.headers()["etag"].as_bytes()[..3]), (200, &b"\"2-"[..]));

    let late = world.get("/nodes?min_position=7").await;
    assert_eq!(late.problem(), (503, "position_not_applied".into(), String::new()));
    assert_eq!((late.json()["position"].as_u64(), late.json()["retryable"].as_bool()), (Some(6), Some(true)));
    assert_eq!(late.header("retry-after"), "1");
}

/// Paths of each kind of read.
const READS: [&str; 4] =
    ["/nodes/node-1", "/nodes?limit=1", "/nodes/node-1/history", "/events?follow=false&from=1"];

#[tokio::test]
async fn a_read_waits_for_the_verdicts_that_were_given_before_it() {
    let world = ServedFleet::new();
    for path in READS {
        let before = world.app.reader.applied().position;
        world.app.last_verdict.note(before.plus(1));
        let mut reading = pin!(world.get(path));
        let is_pending = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context).is_pending())).await;
        assert!(is_pending, "{path}");
        assert_eq!(
            world.app.common.lists.available_permits(),
            world.app.common.limits.lists,
            "no turn is held"
        );
        world.touch("node-1", 1);
        let answer = reading.await;
        assert_eq!(answer.status.as_u16(), 200, "{path}");
        if !path.starts_with("/events") {
            assert_eq!(answer.header("chancery-position"), before.plus(1).to_string(), "{path}");
        }
    }
    let answer = world.get("/nodes/node-2").await;
    let position = answer.json()["position"].as_u64();
    assert_eq!((position, answer.header("chancery-position")), (Some(4), "9"), "of the row, of the answer");
    assert_eq!(
        world.get("/nodes/node-9").await.json()["position"].as_u64(),
        Some(9),
        "also where there is none"
    );
}

#[tokio::test]
async fn a_read_that_cannot_be_as_new_as_the_last_verdict_is_refused_and_an_eventual_one_is_answered() {
    let min_position = std::time::Duration::from_millis(20);
    let world = ServedFleet::with(HttpLimits { min_position, ..HttpLimits::default() });
    world.app.last_verdict.note(Position::new(6));
    for path in READS {
        let late = world.get(path).await;
        assert_eq!(late.problem(), (503, "position_not_applied".into(), String::new()), "{path}");
        assert_eq!(late.json()["position"].as_u64(), Some(5), "{path}");
        if !path.starts_with("/events") {
            let joint = if path.contains('?') { '&' } else { '?' };
            let now = world.get(&format!("{path}{joint}consistency=eventual")).await;
            assert_eq!((now.status.as_u16(), now.header("chancery-position")), (200, "5"), "{path}");
        }
    }
    assert_eq!(world.get("//readyz").await.status, 200, "probes do not depend on it");
    let strong = world.get("/nodes?consistency=eventual&min_position=6").await;
    assert_eq!(strong.problem().1, "position_not_applied", "what is named is waited for all the same");
    let other = world.get("/nodes?consistency=strong").await;
    assert_eq!(other.problem(), (400, "invalid_parameter".into(), "/consistency".into()));
}

#[tokio::test]
async fn every_verdict_over_http_is_waited_for_by_the_reads_after_it() {
    let world = ServedFleet::new();
    let position = Arc::new(std::sync::atomic::AtomicU64::new(6));
    let next = Arc::clone(&position);
    world.decide(move |request| {
        let position = Position::new(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let result = if request.id.as_str() == "refused" {
            Err(Refusal::new(RefusalCode::InUse, "it is in use"))
        } else {
            Ok(AcceptedIntent { outcome: IntentOutcome::Changed, subject: None, version: None })
        };
        Some(Verdict { position, is_recorded: true, result: Arc::new(result) })
    });
    let last = || world.app.last_verdict.position().get();
    let spec = r#"{"spec":{"runtime":"simulated"}}"#;
    assert_eq!(world.put(Method::PUT, "/clusters/c", spec).await.status, 200);
    assert_eq!(last(), 6, "a typed route");
    let refused = request(
        Method::PUT,
        "/clusters/c",
        &[("content-type", "application/json"), ("idempotency-key", "refused")],
        spec,
    );
    assert_eq!(world.send(refused).await.status, 409);
    assert_eq!(last(), 7, "a refusal");
    let event = |id: &str| {
        format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"s","type":"dev.chancery.cluster.apply.v1","data":{{"name":"c","spec":{{"runtime":"simulated"}}}}}}"#
        )
    };
    let structured = [("content-type", "application/cloudevents+json")];
    assert_eq!(world.send(request(Method::POST, "/intents", &structured, event("a"))).await.status, 200);
    assert_eq!(last(), 8, "a CloudEvent");
    let batch = format!("[{},{},{}]", event("b"), event("refused"), event("c"));
    let batched = [("content-type", "application/cloudevents-batch+json")];
    let answer = world.send(request(Method::POST, "/intents", &batched, batch)).await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("chancery-position"), last()),
        (200, "11", 11),
        "a batch"
    );
}

#[tokio::test]
async fn health_and_metrics_are_reported() {
    let world = ServedFleet::new();
    assert_eq!(world.get("//livez").await.status, 200);
    assert_eq!(world.get("//readyz").await.status, 200);
    world.get("/nodes").await;
    let text = String::from_utf8(world.get("//metrics").await.body.to_vec()).expect("text");
    for line in [
        "chancery_journal_position{fleet=\"default\"} 5",
        "chancery_read_model_position{fleet=\"default\"} 5",
        "chancery_read_model_lag_events{fleet=\"default\"} 0",
        "chancery_decider_queue_length{fleet=\"default\"} 0",
        "chancery_http_requests_total{route=\"/v1/fleets/{fleet}/nodes\",method=\"GET\",status=\"200\"} 1",
        "chancery_journal_records_skipped_total{fleet=\"default\"} 0",
        "chancery_http_request_duration_seconds_count{route=\"/v1/fleets/{fleet}/nodes\",method=\"GET\",status=\"2xx\"} 1",
        "chancery_nodes{fleet=\"default\",state=\"unallocated\"} 2.0",
        "chancery_clusters{fleet=\"default\",session=\"none\"} 1.0",
        "chancery_cluster_has_session{fleet=\"default\",cluster=\"local\"} 0.0",
        "chancery_executor_lease_seconds{fleet=\"default\",cluster=\"local\"} 2.5",
        "chancery_read_model_lag_seconds{fleet=\"default\"} 0.0",
        "# TYPE chancery_http_requests_total counter",
        "# TYPE chancery_build_info gauge",
        "# TYPE process_cpu_seconds_total counter",
        "# TYPE process_start_time_seconds gauge",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let build = concat!("chancery_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\",level=\"");
    assert!(text.contains(build), "{build} in\n{text}");
}

#[tokio::test]
async fn metrics_have_the_text_format_of_prometheus_unless_openmetrics_is_requested() {
    let world = ServedFleet::new();
    let usual = world.get("//metrics").await;
    assert_eq!(usual.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let text = String::from_utf8(usual.body.to_vec()).expect("text");
    assert!(!text.contains("# EOF") && text.contains("# HELP chancery_approvals_bypassed_total "), "{text}");
    let accept = [("accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")];
    let open = world.send(request(Method::GET, "//metrics", &accept, "")).await;
    assert_eq!(open.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = String::from_utf8(open.body.to_vec()).expect("text");
    assert!(text.ends_with("# EOF\n") && text.contains("# HELP chancery_approvals_bypassed "), "{text}");
}

#[tokio::test]
async fn lists_are_queued_and_block_neither_probes_nor_rows() {
    let world = ServedFleet::new();
    let lists = Arc::clone(&world.app.common.lists);
    let turns = lists.acquire_many(world.app.common.limits.lists as u32).await.expect("all turns");
    let mut list = pin!(world.get("/nodes"));
    for path in ["//livez", "//readyz", "/nodes/node-1", "/nodes/node-1/history"] {
        assert_eq!(world.get(path).await.status, 200, "{path}");
        let waits = poll_fn(|context| Poll::Ready(list.as_mut().poll(context).is_pending())).await;
        assert!(waits, "no turn is free");
    }
    assert_eq!(world.app.common.answers.free(), world.app.common.limits.answers, "what waits has no memory");
    drop(turns);
    assert_eq!(list.await.status, 200);
}

#[tokio::test]
async fn large_pages_are_compressed_for_those_who_take_it_and_nothing_else_is() {
    let world = ServedFleet::new();
    let node = |n| {
        format!(r#"node.applied.v1 {{"name":"many-{n}","spec":{{"domain":"d1","resources":{{"cpu":1}}}}}}"#)
    };
    let nodes: Vec<_> = (0..500).map(node).collect();
    world.commit(&nodes.iter().map(String::as_str).collect::<Vec<_>>());
    let plain = world.get("/nodes?limit=500").await;
    assert_eq!((plain.header("content-encoding"), plain.header("vary")), ("", "accept-encoding"));
    assert!(plain.body.len() > 64 << 10, "{}", plain.body.len());
    for (accepts, encoding) in [
        ("gzip", "gzip"),
        ("br", ""),
        ("deflate;q=0.6, gzip;q=0.8", "gzip"),
        ("gzip;q=0, identity;q=0", ""),
        ("*;q=0", ""),
    ] {
        let asks = request(Method::GET, "/nodes?limit=500", &[("accept-encoding", accepts)], "");
        let answer = world.send(asks).await;
        assert_eq!((answer.status.as_u16(), answer.header("content-encoding")), (200, encoding), "{accepts}");
        assert_eq!(answer.header("chancery-position"), plain.header("chancery-position"));
        match encoding {
            "gzip" => {
                assert!(answer.body.starts_with(&[0x1f, 0x8b]) && answer.body.len() * 4 < plain.body.len());
                assert_eq!(answer.header("vary"), "accept-encoding");
            }
            _ => assert_eq!(answer.body, plain.body),
        }
    }
    drop(plain);
    assert_eq!(world.app.common.answers.free(), world.app.common.limits.answers);
    for path in
        ["/nodes?limit=1", "/nodes/node-1", "/nodes/node-9", "/events?follow=false", "//v1/openapi.json"]
    {
        let headers = [("accept-encoding", "gzip"), ("accept", "text/event-stream")];
        let answer = world.send(request(Method::GET, path, &headers, "")).await;
        assert_eq!(answer.header("content-encoding"), "", "{path}");
    }
}
