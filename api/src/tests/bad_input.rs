//! Bad input on every route: the answer is a 4xx problem with a location, and the server survives.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, header};
use chancery_decider::{AcceptedIntent, Verdict};
use chancery_events::fact::IntentOutcome;
use chancery_events::id::{Lineage, Position};

use super::world::{ServedFleet, request};
use super::writes::accepted;
use crate::routes::{HttpRoute, ROUTES, RouteTarget};
use crate::write::needs_body;
use crate::{AllowedHosts, ApiShared, HttpLimits};

/// Returns a valid path of the route.
fn path(route: &HttpRoute) -> String {
    let id = "00000000-0008-8801-8000-000000000007";
    let name = route.path.replace("{fleet}", "default").replace("{type}", "node.applied.v1");
    let name = name.replace("{code}", "not_found").replace("{position}", "1");
    // The id contains the kind.
    let id = match &route.path {
        path if path.contains("/operations/") => id.replace("8801", "8802"),
        path if path.contains("/sessions/") => id.replace("8801", "8803"),
        path if path.contains("/requests/") => id.replace("8801", "8805"),
        _ => id.to_owned(),
    };
    let name = name.replace("{request}", &id);
    let name = name.replace("{id}", &id).replace("{incarnation}", &id).replace("{revision}", "1");
    format!("/{}", name.replace(['{', '}'], ""))
}

fn is_write(route: &HttpRoute) -> bool {
    matches!(route.does, RouteTarget::Intent(..) | RouteTarget::Intents | RouteTarget::DryRun)
}

fn json(route: &HttpRoute, body: impl Into<Body>) -> Request<Body> {
    let media_type = match route.does {
        RouteTarget::Intents | RouteTarget::DryRun => "application/cloudevents+json",
        _ => "application/json",
    };
    request(route.method.clone(), &path(route), &[("content-type", media_type)], body)
}

/// Returns pseudorandom bytes that form no valid input.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[tokio::test]
async fn no_body_is_bad_enough_to_be_no_problem() {
    let world = ServedFleet::new();
    let deep = format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000));
    let shallow = format!(r#"{{"spec":{}1{}}}"#, "[".repeat(64), "]".repeat(64));
    for route in ROUTES.iter().filter(|route| is_write(route)) {
        for (body, statuses) in [
            (noise(1 << 20), vec![400]),
            (vec![b' '; (1 << 20) + 1], vec![413]),
            (b"{\"a\":\"\xc3\x28\"}".to_vec(), vec![400]),
            (deep.clone().into_bytes(), vec![400]),
            (shallow.clone().into_bytes(), vec![400]),
            (b"{\"x\":1,\"x\":2}".to_vec(), vec![400]),
            (b"{".to_vec(), vec![400]),
            (b"{} {}".to_vec(), vec![400]),
            (b" ".to_vec(), vec![400]),
            (b"null".to_vec(), vec![422]),
            (b"[]".to_vec(), vec![422]),
            (b"{\"unknown\":1}".to_vec(), vec![422]),
            (
                b"{\"spec\":7,\"activity\":7,\"state\":7,\"operations\":7,\"hash\":7,\"reason\":7}".to_vec(),
                vec![422],
            ),
        ] {
            let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            let answer = world.send(json(route, body)).await;
            let (status, _, pointer) = answer.problem();
            assert!(
                statuses.contains(&status),
                "{} {}: {shown}: {:?}",
                route.method,
                route.path,
                answer.body
            );
            if status == 422 && shown.contains(':') {
                assert!(
                    pointer.starts_with('/'),
                    "{} {}: {shown}: {:?}",
                    route.method,
                    route.path,
                    answer.body
                );
            }
        }
    }
    assert!(world.asked.lock().expect("no panic").is_empty());
    assert_eq!(world.get("//livez").await.status, 200);
}

#[tokio::test]
async fn a_body_must_be_there_where_it_has_a_meaning() {
    let world = ServedFleet::new();
    world.decide(accepted(IntentOutcome::Changed, 1));
    let api = crate::openapi();
    for route in ROUTES.iter().filter(|route| is_write(route)) {
        let method = route.method.as_str().to_lowercase();
        // Generated clients always send a body, as they send no media type without one.
        let described = &api["paths"][&route.path][method]["requestBody"]["required"];
        assert_eq!(*described, true, "{} {}", route.method, route.path);
        let is_needed = match route.does {
            RouteTarget::Intent(entry, shape) => needs_body(entry, shape),
            _ => true,
        };
        let status = world.send(json(route, "")).await.status.as_u16();
        assert_eq!(is_needed, status == 400, "{} {}: {status}", route.method, route.path);
        let text = request(route.method.clone(), &path(route), &[("content-type", "text/plain")], "{}");
        assert_eq!(world.send(text).await.problem().0, 415, "{}", route.path);
        let bare = request(route.method.clone(), &path(route), &[], "{}");
        assert_eq!(world.send(bare).await.problem().0, 415, "{}", route.path);
    }
}

#[tokio::test]
async fn every_route_refuses_other_methods_and_unknown_parameters() {
    let world = ServedFleet::new();
    for route in ROUTES.iter() {
        let answer = world.put(Method::PATCH, &path(route), "").await;
        assert_eq!(answer.problem().0, 405, "{}", route.path);
        assert!(
            answer.header("allow").split(", ").any(|method| method == route.method.as_str()),
            "{}",
            route.path
        );
        let query = format!("{}?no%20such=1", path(route));
        let answer = world
            .send(request(route.method.clone(), &query, &[("content-type", "application/json")], "{}"))
            .await;
        let (status, code, pointer) = answer.problem();
        assert_eq!(
            (status, code.as_str(), pointer.as_str()),
            (400, "invalid_parameter", "/no such"),
            "{}",
            route.path
        );
    }
    let unknown = world.get("/nodes?pod=1").await;
    let (detail, errors) = (unknown.json()["detail"].to_string(), unknown.json()["errors"].to_string());
    assert!(detail.contains("invalid filter") && detail.contains("domain"), "{detail}");
    assert!(!detail.contains("page_token") && errors.contains("domain"), "{detail} {errors}");
}

#[tokio::test]
async fn what_is_wrong_in_the_path_is_reported() {
    let world = ServedFleet::new();
    for (method, path, status, pointer) in [
        (Method::GET, "/nodes/NODE", 400, "/name"),
        (Method::GET, "/nodes/%ff", 400, "/name"),
        (Method::GET, "/nodes/", 404, ""),
        (Method::GET, "/operations/x", 400, "/id"),
        (Method::GET, "/operations/7c9e6679-7425-40de-944b-e07fc1f90ae7", 400, "/id"),
        (Method::GET, "/commands/x/1", 400, "/revision"),
        (Method::GET, "/incarnations/x/logs", 400, "/id"),
        (Method::GET, "/incarnations/00000000-0008-8801-8000-000000000007/logs", 404, ""),
        (Method::GET, "/plans/nginx/deployments/D", 400, "/name"),
        (Method::PUT, "/nodes/NODE", 400, "/name"),
        (Method::POST, "/plans/P/deployments/d1/cancel", 400, "/plan"),
        (Method::POST, "/operations/x/reject", 400, "/id"),
        (Method::GET, "/pods", 404, ""),
        (Method::GET, "//v1/fleets/other/nodes", 404, ""),
        (Method::GET, "//v1/schemas/pod.created.v1", 404, ""),
        (Method::GET, "//errors/unheard_of", 404, ""),
        (Method::GET, "//", 404, ""),
    ] {
        let body = if method == Method::PUT { r#"{"spec":{"domain":"d1","resources":{}}}"# } else { "{}" };
        let answer = world.put(method, path, body).await;
        let (found, _, at) = answer.problem();
        assert_eq!((found, at.as_str()), (status, pointer), "{path}: {:?}", answer.body);
    }
}

#[tokio::test]
async fn what_is_wrong_in_the_query_is_reported() {
    let world = ServedFleet::new();
    for (path, pointer) in [
        ("/nodes?limit=0", "/limit"),
        ("/nodes?limit=-1", "/limit"),
        ("/nodes?limit=99999999999999999999", "/limit"),
        ("/nodes?limit=1&limit=2", "/limit"),
        ("/nodes?page_token=x", "/page_token"),
        ("/nodes?state=asleep", "/state"),
        ("/nodes?min_position=x", "/min_position"),
        ("/nodes/node-1?limit=1", "/limit"),
        ("/nodes/node-1/history?limit=5000", "/limit"),
        ("/plans/nginx/deployments?plan=other", "/plan"),
        ("/events?types=pod.*", "/types"),
        ("/events?subject=pod/x", "/subject"),
        ("/events?kinds=rumour", "/kinds"),
        ("/events?from=yesterday", "/from"),
        ("/events?follow=maybe", "/follow"),
        ("/events?limit=0", "/limit"),
        ("/incarnations/00000000-0008-8801-8000-000000000007/logs?stream=both", "/stream"),
        ("/incarnations/00000000-0008-8801-8000-000000000007/logs?payload=A%20B", "/payload"),
    ] {
        let answer = world.get(path).await;
        assert_eq!(answer.problem(), (400, "invalid_parameter".into(), pointer.into()), "{path}");
    }
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_it_is_read() {
    let world = ServedFleet::new();
    assert_eq!(world.get(&format!("/nodes?state={}", "x".repeat(9_000))).await.problem().0, 414);
    let value = "x".repeat(world.app.common.limits.headers_bytes + 1);
    let large = request(Method::GET, "/nodes", &[("x-large", value.as_str())], "");
    assert_eq!(world.send(large).await.problem().0, 431);
    let mut many = request(Method::GET, "/nodes", &[], "");
    for n in 0..101 {
        many.headers_mut().append(header::COOKIE, n.into());
    }
    assert_eq!(world.send(many).await.problem().0, 431);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_times_out() {
    let world =
        ServedFleet::with(HttpLimits { body_read: Duration::from_millis(50), ..HttpLimits::default() });
    let never = Body::from_stream(async_stream::stream! {
        yield Ok::<_, std::io::Error>(axum::body::Bytes::from_static(b"{"));
        std::future::pending::<()>().await;
    });
    let answer = world.put(Method::PUT, "/nodes/node-1", never).await;
    assert_eq!(answer.problem(), (408, "request_timeout".into(), String::new()));
    let broken = Body::from_stream(async_stream::stream! {
        yield Err::<axum::body::Bytes, _>(std::io::Error::other("the connection is gone"));
    });
    assert_eq!(world.put(Method::PUT, "/nodes/node-1", broken).await.problem().0, 400);
}

#[tokio::test]
async fn what_another_server_forwards_for_a_fleet_that_is_not_here_may_be_sent_again() {
    let world = ServedFleet::new();
    let path = "//v1/fleets/other/capabilities/T";
    let body = r#"{"spec":{"type":"T","score":1}}"#;
    let json = ("content-type", "application/json");
    let direct = world.send(request(Method::PUT, path, &[json], body)).await;
    assert_eq!(direct.problem().1, "not_found");
    let forwarded = world.send(request(Method::PUT, path, &[json, ("chancery-forwarded", "1")], body)).await;
    assert_eq!((forwarded.problem().0, forwarded.problem().1.as_str()), (503, "no_leader"));
}

/// Serves the world on a port of its own until the test ends, and returns its address.
async fn serve(world: &ServedFleet) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let router = world.router();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

#[tokio::test]
async fn what_is_forwarded_for_another_journal_or_a_later_term_is_not_recorded_and_may_be_sent_again() {
    let decider = ServedFleet::new();
    let there = serve(&decider).await;
    let path = "/capabilities/T";
    let body = r#"{"spec":{"type":"T","score":1}}"#;
    let json = ("content-type", "application/json");
    let own = decider.app.source.head().expect("a record");
    let cases = [
        ("1", 421),
        ("3edcba9876543210/1", 421),
        (&format!("{}/{}", own.lineage, own.term.get() + 1), 421),
        (&format!("{}/{}", own.lineage, own.term), 200),
    ];
    decider.decide(|_| {
        let accepted = AcceptedIntent { outcome: IntentOutcome::Unchanged, subject: None, version: None };
        Some(Verdict { position: Position::new(7), is_recorded: true, result: Arc::new(Ok(accepted)) })
    });
    for (named, status) in cases {
        let headers = [json, ("chancery-forwarded", named)];
        let answer = decider.send(request(Method::PUT, path, &headers, body)).await;
        assert_eq!(answer.status.as_u16(), status, "{named}: {:?}", answer.body);
    }
    assert_eq!(
        decider.asked.lock().expect("no panic").len(),
        1,
        "and the others were not asked of the decider"
    );
    // The address of a server of this fleet now belongs to a server of another fleet: the client must retry.
    for (lineage, status) in [(own.lineage, 200), (Lineage::from_random(77), 503)] {
        let follower = ServedFleet::following(&there, lineage);
        let answer = follower.send(request(Method::PUT, path, &[json], body)).await;
        assert_eq!(answer.status.as_u16(), status, "{:?}", answer.body);
        if status == 503 {
            assert_eq!(answer.problem().1, "no_leader");
            assert!(!answer.header("retry-after").is_empty());
        }
        let last = if status == 200 { 7 } else { 0 };
        assert_eq!(follower.app.last_verdict.position(), Position::new(last), "reads here wait for it");
    }
    assert_eq!(decider.asked.lock().expect("no panic").len(), 2);
}

#[tokio::test]
async fn preflights_and_answers_permit_listed_origins_alone() {
    let mut world = ServedFleet::new();
    let origins = ["https://console.example".to_owned()].into();
    let hosts = AllowedHosts::default().with_origins(&origins);
    world.app.common = Arc::new(ApiShared::new(HttpLimits::default(), hosts));
    let origin = ("origin", "https://console.example");
    let asks = [
        origin,
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "content-type,if-match"),
    ];
    let preflight = world.send(request(Method::OPTIONS, "/nodes/node-1", &asks, "")).await;
    assert_eq!(preflight.status, 200);
    for (name, value) in [
        ("access-control-allow-origin", "https://console.example"),
        ("access-control-allow-methods", "PUT"),
        ("access-control-allow-headers", "content-type,if-match"),
    ] {
        assert_eq!(preflight.header(name), value);
    }
    let read = world.send(request(Method::GET, "/nodes/node-1", &[origin], "")).await;
    assert_eq!((read.status.as_u16(), read.header("access-control-allow-origin")), (200, origin.1));
    let missing = world.send(request(Method::GET, "/nodes/node-9", &[origin], "")).await;
    assert_eq!(missing.problem().0, 404);
    assert_eq!(missing.header("access-control-allow-origin"), origin.1);
    let other =
        world.send(request(Method::GET, "/nodes/node-1", &[("origin", "https://evil.example")], "")).await;
    assert_eq!((other.problem().0, other.header("access-control-allow-origin")), (403, ""));
    assert_eq!(other.header("access-control-expose-headers"), "");
    let without = ServedFleet::new().send(request(Method::OPTIONS, "/nodes/node-1", &asks, "")).await;
    assert_eq!((without.problem().0, without.header("access-control-allow-origin")), (403, ""));
}
