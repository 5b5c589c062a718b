//! Conventions of HTTP: one row for each, as `docs/conventions.md` lists them.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use chancery_decider::{AcceptedIntent, Verdict};
use chancery_events::expected_version::ExpectedVersion;
use chancery_events::fact::IntentOutcome;
use chancery_events::id::{Position, RequestId};
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::time::Time;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::listener::{ask, start};
use super::world::{FLEET, LINEAGE, START, ServedFleet, request};
use super::writes::accepted;
use crate::HttpLimits;

const NODE: &str = r#"{"spec":{"domain":"d1","resources":{}}}"#;
const JSON: (&str, &str) = ("content-type", "application/json");

/// Request of a convention: method, path, header, status, and a header of the answer with its value.
type ConventionRow<'a> = (Method, &'a str, (&'a str, &'a str), u16, (&'a str, &'a str));

/// Checks requests.
async fn check(world: &ServedFleet, rows: &[ConventionRow<'_>]) {
    for (method, path, header, status, (name, value)) in rows {
        let body = if *method == Method::PUT { NODE } else { "" };
        let headers = [*header, JSON];
        let answer = world.send(request(method.clone(), path, &headers, body)).await;
        let found = (answer.status.as_u16(), answer.header(name));
        assert_eq!(found, (*status, *value), "{method} {path} {header:?}: {:?}", answer.body);
    }
}

const NO_HEADER: (&str, &str) = ("x-none", "");

#[tokio::test]
async fn methods_and_media_types_are_negotiated_as_http_has_it() {
    let world = ServedFleet::new();
    let allow = |value| ("allow", value);
    let accept = |value| ("accept", value);
    let is = |value| ("content-type", value);
    check(
        &world,
        &[
            (Method::OPTIONS, "/nodes", NO_HEADER, 204, allow("GET, HEAD, OPTIONS")),
            (Method::OPTIONS, "/nodes/node-1", NO_HEADER, 204, allow("GET, PUT, DELETE, HEAD, OPTIONS")),
            (Method::OPTIONS, "/intents", NO_HEADER, 204, allow("POST, OPTIONS")),
            (Method::OPTIONS, "//nowhere", NO_HEADER, 404, allow("")),
            (Method::PATCH, "/nodes/node-1", NO_HEADER, 405, allow("GET, PUT, DELETE, HEAD, OPTIONS")),
            (Method::PUT, "/nodes", NO_HEADER, 405, allow("GET, HEAD, OPTIONS")),
            (Method::GET, "/intents", NO_HEADER, 405, allow("POST, OPTIONS")),
            (Method::GET, "/nodes", accept("application/json"), 200, is("application/json")),
            (Method::GET, "/nodes", accept("text/html, */*;q=0.1"), 200, is("application/json")),
            (Method::GET, "/nodes", accept("text/html"), 406, is("application/problem+json")),
            (Method::GET, "/nodes", accept("application/json;q=0"), 406, is("application/problem+json")),
            (Method::PUT, "/nodes/node-1", accept("text/html"), 406, is("application/problem+json")),
            (Method::GET, "//livez", accept("application/json"), 406, is("application/problem+json")),
            (Method::GET, "//livez", accept("text/*"), 200, is("text/plain; charset=utf-8")),
            (Method::GET, "/events", accept("text/html"), 406, is("application/problem+json")),
            (Method::HEAD, "/nodes", NO_HEADER, 200, is("application/json")),
        ],
    )
    .await;
    assert!(world.asked.lock().expect("no panic").is_empty(), "a refused request has no effect");
}

#[tokio::test]
async fn a_wrong_method_or_path_is_reported_before_a_wrong_media_type() {
    let world = ServedFleet::new();
    for (method, path, status, allow) in [
        (Method::POST, "/nodes", 405, "GET, HEAD, OPTIONS"),
        (Method::PATCH, "/nodes/node-1", 405, "GET, PUT, DELETE, HEAD, OPTIONS"),
        (Method::POST, "/nowhere", 404, ""),
        (Method::PUT, "/nodes/node-1", 415, ""),
    ] {
        for headers in [&[][..], &[("content-type", "text/html")]] {
            let answer = world.send(request(method.clone(), path, headers, "{}")).await;
            let found = (answer.problem().0, answer.header("allow"));
            assert_eq!(found, (status, allow), "{method} {path} {headers:?}");
        }
    }
    assert!(world.asked.lock().expect("no panic").is_empty(), "a refused request has no effect");
}

#[tokio::test]
async fn an_error_of_a_body_names_only_fields_of_the_body() {
    let world = ServedFleet::new();
    for (path, body, detail) in [
        ("/nodes/node-1", r#"{"spek":{}}"#, "unknown field `spek`, expected `spec` or `cluster`"),
        ("/plans/web", r#"{"x":1}"#, "unknown field `x`, expected `spec`"),
        ("/nodes/node-1/disruptions/d", r#"{"x":1}"#, "unknown field `x`, expected `spec`"),
    ] {
        let answer = world.put(Method::PUT, path, body).await;
        assert_eq!(answer.problem().0, 422);
        let problem = answer.json();
        assert_eq!(problem["errors"][0]["detail"], detail);
        assert!(problem["detail"].as_str().expect("text").ends_with(detail), "{problem}");
    }
    let twice = world.put(Method::PUT, "/nodes/node-1", r#"{"name":"node-1","spec":{}}"#).await;
    assert_eq!(twice.json()["errors"][0]["detail"], "must be absent: the path has it");
    let detail = twice.json()["detail"].as_str().expect("text").to_owned();
    assert!(detail.ends_with(": member \"name\" must be absent: the path has it"), "{detail}");
    assert!(!detail.contains("duplicate"), "the body has it once: {detail}");
}

#[tokio::test]
async fn a_disruption_is_read_at_its_own_path() {
    let world = ServedFleet::new();
    let path = "/nodes/node-1/disruptions/switch";
    assert_eq!(world.get(path).await.problem().0, 404);
    world.commit(&[r#"disruption.scheduled.v1 {"node":"node-1","name":"switch","spec":{"start":1795251600000000,"action":"drain","reason":"new"}}"#]);
    let answer = world.get(path).await;
    assert_eq!((answer.status.as_u16(), answer.header("chancery-position")), (200, "6"));
    let row = answer.json();
    assert_eq!(row, world.get("/nodes/node-1").await.json()["disruptions"][0]);
    assert_eq!((&row["name"], &row["start"]), (&"switch".into(), &"2026-11-21T09:00:00.000000Z".into()));
    assert_eq!(world.get(&format!("{path}?as_of=5")).await.problem().0, 404, "it did not exist then");
    assert_eq!(world.get("/nodes/node-9/disruptions/switch").await.problem().0, 404);
}

#[tokio::test]
async fn everything_can_be_found_from_a_few_paths() {
    let world = ServedFleet::new();
    let index = world.get("//v1").await.json();
    let fleets = world.get(&format!("/{}", index["fleets"].as_str().expect("a path"))).await.json();
    let fleet = &fleets["items"][0];
    assert_eq!(
        (&fleet["name"], &fleet["path"], &fleet["position"]),
        (&"default".into(), &FLEET.into(), &5.into())
    );
    assert_eq!(fleet["lineage"], LINEAGE.to_string());
    assert_eq!(world.get("").await.json(), *fleet);
    for kind in fleet["kinds"].as_array().expect("kinds") {
        assert_eq!(world.get(&format!("/{}", kind.as_str().expect("a kind"))).await.status, 200, "{kind}");
    }
    for path in ["openapi", "version", "ready"] {
        let path = index[path].as_str().expect("a path");
        let status = world.get(&format!("/{path}")).await.status.as_u16();
        // No decider of a term leads here.
        assert!(status == 200 || path == "/readyz", "{path}: {status}");
    }
    let version = world.get("//version").await.json();
    assert_eq!((&version["version"], &version["level"]), (&env!("CARGO_PKG_VERSION").into(), &1.into()));
    assert_eq!(world.get("//healthz").await.body, world.get("//livez").await.body);
    assert_eq!(world.get("//v1/fleets/other").await.problem().0, 404);
    for path in ["//v1/", "//v1/fleets/", "/nodes/"] {
        assert_eq!(world.get(path).await.problem().1, "route_not_found", "{path}");
    }
}

#[tokio::test]
async fn the_description_is_not_sent_again_and_is_compressed() {
    let world = ServedFleet::new();
    let whole = world.get("//v1/openapi.json").await;
    let tag = whole.header("etag").to_owned();
    assert!((whole.status.as_u16(), tag.len()) == (200, 16) && tag.starts_with("W/"), "{tag}");
    let ask = |headers: &[(&str, &str)]| world.send(request(Method::GET, "//v1/openapi.json", headers, ""));
    let known = ask(&[("if-none-match", &tag)]).await;
    assert_eq!(
        (known.status.as_u16(), known.body.is_empty(), known.header("etag"), known.header("vary")),
        (304, true, tag.as_str(), whole.header("vary"))
    );
    let small = ask(&[("accept-encoding", "gzip")]).await;
    assert_eq!((small.status.as_u16(), small.header("content-encoding")), (200, "gzip"));
    assert!(small.body.len() * 4 < whole.body.len(), "{} of {}", small.body.len(), whole.body.len());
}

#[tokio::test]
async fn a_row_that_the_client_has_is_not_sent_again() {
    let world = ServedFleet::new();
    let tag = world.get("/nodes/node-1").await.header("etag").to_owned();
    assert!(tag.starts_with("\"1-"), "{tag}");
    let (weak, several) = (format!("W/{tag}"), format!("\"0-1\", {tag}"));
    for (given, status) in [
        (tag.as_str(), 304),
        (weak.as_str(), 304),
        (several.as_str(), 304),
        ("*", 304),
        ("\"1\"", 200),
        ("\"1-0\"", 200),
    ] {
        let answer = world.send(request(Method::GET, "/nodes/node-1", &[("if-none-match", given)], "")).await;
        assert_eq!((answer.status.as_u16(), answer.header("etag")), (status, tag.as_str()), "{given}");
        assert_eq!(answer.body.is_empty(), status == 304, "{given}");
        assert_eq!(answer.header("cache-control"), "no-cache");
    }
    for (given, status) in [
        (tag.as_str(), 200),
        ("\"1\"", 200),
        ("*", 200),
        ("\"2\", \"1\"", 200),
        ("\"2\"", 412),
        (weak.as_str(), 412),
        ("\"of another server\"", 412),
    ] {
        let answer = world.send(request(Method::GET, "/nodes/node-1", &[("if-match", given)], "")).await;
        assert_eq!(answer.status, status, "{given}");
        if status == 412 {
            assert_eq!(answer.json()["version"], 1, "{given}");
        }
    }
    let head = world.send(request(Method::HEAD, "/nodes/node-1", &[], "")).await;
    assert_eq!((head.status.as_u16(), head.header("etag"), head.body.len()), (200, tag.as_str(), 0));
    world.touch("node-1", 1);
    let changed = world.send(request(Method::GET, "/nodes/node-1", &[("if-none-match", &tag)], "")).await;
    assert_eq!(changed.status, 200);
    assert!(changed.header("etag").starts_with("\"2-"));
}

#[tokio::test]
async fn a_condition_of_a_write_is_decided_with_the_write() {
    let world = ServedFleet::new();
    // The position of the verdicts.
    world.touch("node-2", 4);
    let tag = world.get("/nodes/node-1").await.header("etag").to_owned();
    world.decide(|request| {
        let found = u64::from(request.intent.subject()?.to_string() == "node/node-1");
        let result = match request.expect {
            Some(expected) if !expected.fits(found) => Err(Refusal::new(RefusalCode::VersionConflict, "no")),
            _ => Ok(AcceptedIntent {
                outcome: IntentOutcome::Changed,
                subject: request.intent.subject(),
                version: Some(found + 1),
            }),
        };
        Some(Verdict { position: Position::new(9), is_recorded: true, result: Arc::new(result) })
    });
    let (absent, any, first) =
        (Some(ExpectedVersion::ABSENT), Some(ExpectedVersion::Any), Some(ExpectedVersion::Exactly(1)));
    for (node, name, value, expect, status) in [
        ("node-1", "if-none-match", "*", absent, 412),
        ("node-9", "if-none-match", "*", absent, 201),
        ("node-1", "if-match", "*", any, 200),
        ("node-9", "if-match", "*", any, 412),
        ("node-1", "if-match", "\"1\"", first, 200),
        ("node-1", "if-match", tag.as_str(), first, 200),
        ("node-1", "if-match", "\"1-a\", W/\"7\", \"1-b-c\"", first, 200),
        ("node-1", "if-match", "\"abc\", \"1\"", first, 200),
        ("node-1", "if-match", "\"2\"", Some(ExpectedVersion::Exactly(2)), 412),
        ("node-1", "x-none", "", None, 200),
    ] {
        let headers = [JSON, (name, value)];
        let answer = world.send(request(Method::PUT, &format!("/nodes/{node}"), &headers, NODE)).await;
        assert_eq!(answer.status.as_u16(), status, "{node} {name}: {value}");
        let asked = world.asked.lock().expect("no panic").pop().expect("it was asked");
        assert_eq!(asked.expect, expect, "{node} {name}: {value}");
        let location = if status == 201 { "/v1/fleets/default/nodes/node-9" } else { "" };
        assert_eq!(answer.header("location"), location);
    }
    for headers in [
        vec![JSON, ("if-none-match", "\"1\"")],
        vec![JSON, ("if-match", "1")],
        vec![JSON, ("if-match", "\"1\", \"2\"")],
        vec![JSON, ("if-match", "\"1\""), ("if-none-match", "*")],
    ] {
        let answer = world.send(request(Method::PUT, "/nodes/node-1", &headers, NODE)).await;
        assert_eq!(answer.problem().0, 400, "{headers:?}");
    }
    for never in ["W/\"1\"", "\"abc\""] {
        let headers = [JSON, ("if-match", never)];
        let answer = world.send(request(Method::PUT, "/nodes/node-1", &headers, NODE)).await;
        assert_eq!(answer.problem().0, 412, "{never}");
        let answer = world.send(request(Method::PUT, "/nodes/node-1", &headers, "no JSON")).await;
        assert_eq!(answer.problem().0, 400, "an invalid request has no condition");
    }
    let (part, body) = ("/nodes/node-1/disruptions/switch", r#"{"spec":{"action":"drain"}}"#);
    let created = [JSON, ("if-none-match", "*")];
    let answer = world.send(request(Method::PUT, part, &created, body)).await;
    assert_eq!(answer.problem(), (400, "invalid_parameter".into(), "/if-none-match".into()), "a part");
    assert!(world.asked.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn a_created_or_pending_entity_is_named_by_its_path() {
    let world = ServedFleet::new();
    let request = RequestId::issue(LINEAGE, Position::new(8));
    for (subject, status, path) in [
        ("capability/nvidia/v100".into(), 201, "/capabilities/nvidia%2Fv100".into()),
        ("deployment/web/first".into(), 201, "/plans/web/deployments/first".into()),
        (format!("request/{request}"), 202, format!("/requests/{request}")),
    ] {
        world.decide(move |_| {
            let (subject, version) = (Some(subject.parse().expect("a subject")), Some(1));
            let accepted = AcceptedIntent { outcome: IntentOutcome::Changed, subject, version };
            Some(Verdict { position: Position::new(9), is_recorded: true, result: Arc::new(Ok(accepted)) })
        });
        let answer = world.put(Method::PUT, "/nodes/node-9", NODE).await;
        assert_eq!((answer.status.as_u16(), answer.header("location")), (status, &*format!("{FLEET}{path}")));
        let route = world.get(&path).await;
        assert_ne!(route.problem().1, "route_not_found", "{path}");
    }
    world.decide(super::writes::accepted(IntentOutcome::Changed, 3));
    let (part, body) = ("/nodes/node-1/disruptions/switch", r#"{"spec":{"action":"drain"}}"#);
    let answer = world.put(Method::PUT, part, body).await;
    assert_eq!((answer.status.as_u16(), answer.header("location")), (201, &*format!("{FLEET}{part}")));
}

#[tokio::test]
async fn a_created_replica_is_named_by_the_answer() {
    let world = ServedFleet::new();
    let verdict = r#"node.applied.v1 {"name":"node-1","spec":{"domain":"d1","resources":{"cpu":1}}}"#;
    world.commit(&[verdict, r#"replica.created.v1 {"name":"nginx-0009","plan":"nginx","deployment":"d"}"#]);
    world.decide(move |request| {
        let accepted = AcceptedIntent {
            outcome: IntentOutcome::Changed,
            subject: request.intent.subject(),
            version: Some(4),
        };
        Some(Verdict { position: Position::new(6), is_recorded: true, result: Arc::new(Ok(accepted)) })
    });
    let answer = world.put(Method::POST, "/plans/nginx/replicas", "").await;
    let path = format!("{FLEET}/replicas/nginx-0009");
    assert_eq!((answer.status.as_u16(), answer.header("location")), (202, &*path));
    let body = answer.json();
    assert_eq!((body["subject"].as_str(), body["version"].is_null()), (Some("replica/nginx-0009"), true));
}

#[tokio::test]
async fn a_node_that_is_created_with_its_cluster_is_created() {
    let world = ServedFleet::new();
    let allocated = [
        r#"node.state_changed.v1 {"name":"node-9","state":"allocating","cluster":"c"}"#,
        r#"node.state_changed.v1 {"name":"node-9","state":"allocated","cluster":"c"}"#,
    ];
    let verdict = r#"node.applied.v1 {"name":"node-1","spec":{"domain":"d1","resources":{"cpu":1}}}"#;
    let applied = r#"node.applied.v1 {"name":"node-9","spec":{"domain":"d1","resources":{"cpu":1}}}"#;
    // The event at the position of the verdict is not read.
    world.commit(&[verdict, applied, allocated[0], allocated[1]]);
    world.commit(&[verdict, allocated[0], allocated[1]]);
    // An edit of a node that was allocating.
    world.commit(&[verdict, applied]);
    for (position, status) in [(6, 201), (10, 200), (13, 200)] {
        world.decide(move |request| {
            let (subject, version) = (request.intent.subject(), Some(3));
            let accepted = AcceptedIntent { outcome: IntentOutcome::Changed, subject, version };
            let result = Arc::new(Ok(accepted));
            Some(Verdict { position: Position::new(position), is_recorded: true, result })
        });
        let body = r#"{"cluster":"c","spec":{"domain":"d1","resources":{"cpu":1}}}"#;
        let answer = world.put(Method::PUT, "/nodes/node-9", body).await;
        assert_eq!(answer.status.as_u16(), status, "at position {position}");
        assert_eq!(!answer.header("location").is_empty(), status == 201);
    }
}

/// Replaces node-1 by another one of the name, at another time.
fn replace_node(world: &ServedFleet) {
    let applied = r#"node.applied.v1 {"name":"node-1","spec":{"domain":"d1","resources":{"cpu":4000}}}"#;
    world.commit(&[r#"node.deleted.v1 {"name":"node-1"}"#]);
    world.commit_at(Time::from_micros(START.micros() + 1), &[applied]);
}

#[tokio::test]
async fn an_etag_never_matches_another_entity_of_the_same_name() {
    let world = ServedFleet::new();
    // The position of the verdicts.
    world.touch("node-2", 4);
    world.decide(accepted(IntentOutcome::Changed, 2));
    let old = world.get("/nodes/node-1").await.header("etag").to_owned();
    let [version, identity, _] = *old.split('-').collect::<Vec<_>>() else { panic!("{old}") };
    let other_content = format!("{version}-{identity}-0\"");
    replace_node(&world);
    let new = world.get("/nodes/node-1").await.header("etag").to_owned();
    assert!(new.starts_with("\"1-") && new != old, "{new}");
    let several = format!("{old}, {new}");
    let event = json!({
        "specversion": "1.0", "id": "e1", "source": "/ci", "type": "dev.chancery.node.delete.v1",
        "data": {"name": "node-1"},
    })
    .to_string();
    let state = r#"{"state":"evicted"}"#;
    for (method, path, media, body) in [
        (Method::GET, "/nodes/node-1", "application/json", ""),
        (Method::HEAD, "/nodes/node-1", "application/json", ""),
        (Method::PUT, "/nodes/node-1", "application/json", NODE),
        (Method::POST, "/nodes/node-1/state", "application/json", state),
        (Method::DELETE, "/nodes/node-1", "application/json", ""),
        (Method::POST, "/intents", "application/cloudevents+json", event.as_str()),
    ] {
        for (tag, status) in [
            (old.as_str(), 412),
            (other_content.as_str(), 412),
            (new.as_str(), 200),
            (several.as_str(), 200),
            ("\"1\"", 200),
            ("\"1-0\"", 200),
        ] {
            let headers = [("content-type", media), ("if-match", tag)];
            let answer = world.send(request(method.clone(), path, &headers, body.to_owned())).await;
            assert_eq!(answer.status.as_u16(), status, "{method} {path} {tag}: {:?}", answer.body);
            if status == 412 && method != Method::HEAD {
                assert_eq!((answer.problem().0, &answer.json()["version"]), (412, &1.into()));
            }
            let asked = world.asked.lock().expect("no panic").pop();
            let is_write = method != Method::GET && method != Method::HEAD;
            assert_eq!(asked.is_some(), is_write && status == 200, "{method} {path} {tag}");
        }
    }
    let headers = [("content-type", "application/cloudevents+json"), ("if-match", old.as_str())];
    let dry = world.send(request(Method::POST, "/dry-run", &headers, event)).await.json();
    assert_eq!(dry["intents"][0]["answer"]["status"], 412, "{dry}");
    world.commit(&[r#"node.deleted.v1 {"name":"node-1"}"#]);
    let headers = [JSON, ("if-match", old.as_str())];
    world.send(request(Method::PUT, "/nodes/node-1", &headers, NODE)).await;
    assert_eq!(world.asked.lock().expect("no panic").len(), 1, "the decider answers for a missing entity");
}

#[tokio::test]
async fn a_repeat_gets_its_verdict_though_its_etag_is_of_a_deleted_entity() {
    let world = ServedFleet::new();
    // The position of the verdicts.
    world.touch("node-2", 4);
    world.decide(accepted(IntentOutcome::Changed, 2));
    let tag = world.get("/nodes/node-1").await.header("etag").to_owned();
    let send = async |key: &str, body: &'static str| {
        let headers = [JSON, ("if-match", tag.as_str()), ("idempotency-key", key)];
        let answer = world.send(request(Method::PUT, "/nodes/node-1", &headers, body)).await;
        (answer.status.as_u16(), world.asked.lock().expect("no panic").pop())
    };
    let (status, asked) = send("k1", NODE).await;
    assert_eq!(status, 200);
    let asked = asked.expect("an intent");
    let verdict = json!({
        "key": asked.key(), "digest": asked.digest(), "at": START, "outcome": "changed",
        "subject": "node/node-1", "version": 2,
    });
    world.commit(&[&format!("intent.accepted.v1 {verdict}")]);
    replace_node(&world);
    let (status, repeated) = send("k1", NODE).await;
    assert_eq!((status, repeated), (200, Some(asked)), "the decider has the verdict");
    let other = r#"{"spec":{"domain":"d2","resources":{}}}"#;
    assert!(send("k1", other).await.1.is_some(), "the decider refuses the key");
    assert_eq!(send("k2", NODE).await, (412, None), "another key is a new intent");
}

#[tokio::test]
async fn a_condition_that_the_entity_must_not_exist_is_refused_in_its_own_words() {
    let world = ServedFleet::new();
    world.decide(|_| {
        let detail = "the expected version is 0, and the current version is 4";
        let refusal = Refusal { version: Some(4), ..Refusal::new(RefusalCode::VersionConflict, detail) };
        Some(Verdict { position: Position::new(9), is_recorded: true, result: Arc::new(Err(refusal)) })
    });
    let put = async |header| {
        let answer = world.send(request(Method::PUT, "/nodes/node-1", &[JSON, header], NODE)).await;
        assert_eq!((answer.problem().0, &answer.json()["version"]), (412, &4.into()));
        answer.json()["detail"].as_str().expect("text").to_owned()
    };
    assert_eq!(put(("if-none-match", "*")).await, "cannot create node/node-1: it exists, at version 4");
    assert!(put(("if-match", "\"3\"")).await.contains("the current version is 4"));
}

#[tokio::test]
async fn a_list_below_an_entity_that_does_not_exist_is_not_found() {
    let world = ServedFleet::new();
    assert_eq!(world.get("/plans/nowhere/deployments").await.problem().0, 404);
    assert_eq!(
        world.get("/plans/No!/deployments").await.problem(),
        (400, "invalid_parameter".into(), "/plan".into())
    );
}

#[tokio::test]
async fn a_filter_has_several_values_and_is_given_once() {
    let world = ServedFleet::new();
    let names = async |query: &str| {
        let list = world.get(&format!("/nodes?{query}")).await.json();
        let names = list["items"].as_array().expect("rows").iter();
        names.map(|row| row["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("domain=d1").await, ["node-1"]);
    assert_eq!(names("domain=d1,d2").await, ["node-1", "node-2"]);
    assert_eq!(names("domain=d2,d3&state=unallocated,evicted").await, ["node-2"]);
    let most = format!("domain=d1{}", ",d3".repeat(99));
    assert_eq!(names(&most).await, ["node-1"]);
    let many = format!("{most},d3");
    for (query, word) in [
        ("domain=d1&domain=d2", "commas"),
        ("domain=d1,", "domain"),
        ("state=evicted,x", "state"),
        (&*many, "100"),
    ] {
        let problem = world.get(&format!("/nodes?{query}")).await;
        assert_eq!(problem.problem().1, "invalid_parameter", "{query}");
        assert!(problem.json()["detail"].as_str().expect("text").contains(word), "{query}");
    }
    assert_eq!(world.get("/nodes?sort=name").await.problem().2, "/sort");
    let first = world.get("/nodes?domain=d1,d2&limit=1").await.json();
    let token = first["next_page_token"].as_str().expect("a token");
    assert_eq!(names(&format!("domain=d1,d2&page_token={token}")).await, ["node-2"]);
}

#[tokio::test]
async fn a_stream_from_beyond_the_end_waits_for_its_position() {
    let min_position = Duration::from_millis(200);
    let world = ServedFleet::with(HttpLimits { min_position, ..HttpLimits::default() });
    let id = format!("6.{LINEAGE}");
    let resume = |id: &str| request(Method::GET, "/events?follow=false", &[("last-event-id", id)], "");
    assert_eq!(world.send(resume(&id)).await.problem().1, "position_not_applied");
    let waiting = tokio::spawn(tower::ServiceExt::oneshot(world.router(), resume(&id)));
    tokio::time::sleep(Duration::from_millis(20)).await;
    world.touch("node-1", 1);
    assert_eq!(waiting.await.expect("no panic").expect("an answer").status(), 200);
    let gone = world.send(resume("6.0123456789abcdef")).await;
    assert_eq!(gone.problem().1, "other_lineage");
    assert!(gone.json()["detail"].as_str().expect("text").contains("read the state again"));
}

#[tokio::test]
async fn a_declared_body_that_is_too_large_is_refused_before_it_is_sent() {
    let world = ServedFleet::new();
    let server = start(&world).await;
    for expect in ["", "expect: 100-continue\r\n"] {
        let head = format!(
            "PUT {FLEET}/nodes/node-1 HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: 99999999\r\n{expect}\r\n"
        );
        let mut stream = TcpStream::connect(server.address).await.expect("a connection");
        stream.write_all(head.as_bytes()).await.expect("sent");
        let mut answer = vec![0; 12];
        let read = stream.read_exact(&mut answer);
        tokio::time::timeout(Duration::from_secs(5), read).await.expect("in time").expect("an answer");
        assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 413", "{expect}");
    }
    let small = format!(
        "PUT {FLEET}/nodes/node-1 HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: 1\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n"
    );
    let answer = ask(server.address, &(small + "{")).await;
    assert!(answer.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400"), "{answer}");
}
