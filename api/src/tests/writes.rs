//! Typed routes, and the answers for verdicts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::Method;
use chancery_decider::{AcceptedIntent, Verdict};
use chancery_events::expected_version::ExpectedVersion;
use chancery_events::fact::IntentOutcome;
use chancery_events::id::{OperationId, Position, RequestId};
use chancery_events::intent::{self, Intent};
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::subject::Subject;
use tower::ServiceExt as _;

use super::world::{LINEAGE, ServedFleet, request};
use crate::HttpLimits;
use crate::routes::{ROUTES, RouteTarget};

/// Returns a verdict at position 9.
pub(super) fn accepted(
    outcome: IntentOutcome,
    version: u64,
) -> impl Fn(&intent::IntentRequest) -> Option<Verdict> + Send {
    move |request| {
        let result =
            Ok(AcceptedIntent { outcome, subject: request.intent.subject(), version: Some(version) });
        Some(Verdict { position: Position::new(9), is_recorded: true, result: Arc::new(result) })
    }
}

fn refused(code: RefusalCode) -> impl Fn(&intent::IntentRequest) -> Option<Verdict> + Send {
    refused_at(code, "/spec/domain")
}

/// Returns a refusal that points into the intent.
pub(super) fn refused_at(
    code: RefusalCode,
    pointer: &'static str,
) -> impl Fn(&intent::IntentRequest) -> Option<Verdict> + Send {
    move |_| {
        let refusal =
            Refusal { version: Some(4), ..Refusal::new(code, "so it is").at(pointer, "not this one") };
        Some(Verdict { position: Position::new(9), is_recorded: true, result: Arc::new(Err(refusal)) })
    }
}

const NODE: &str = r#"{"spec":{"domain":"d1","resources":{}}}"#;

/// Method, path, body, type of the intent, and status.
type WriteCase = (Method, String, String, &'static str, u16);

#[expect(clippy::too_many_lines, reason = "it has a row for each route")]
fn table() -> Vec<WriteCase> {
    let id = OperationId::issue(LINEAGE, Position::new(8));
    let request = RequestId::issue(LINEAGE, Position::new(8));
    let hash = "9f86d081884c7d659a2feaa0c55ad015";
    let plan = r#"{"spec":{"namespace":"web","service":"nginx","payloads":[]}}"#;
    let many = format!(r#"{{"operations":[{{"operation":"{id}","hash":"{hash}"}}]}}"#);
    vec![
        (
            Method::PUT,
            "/clusters/c".into(),
            r#"{"spec":{"runtime":"process"}}"#.into(),
            "cluster.apply.v1",
            201,
        ),
        (
            Method::POST,
            "/clusters/c/activity".into(),
            r#"{"activity":"inactive"}"#.into(),
            "cluster.set_activity.v1",
            200,
        ),
        (Method::DELETE, "/clusters/c".into(), String::new(), "cluster.delete.v1", 200),
        (
            Method::PUT,
            "/capabilities/nvidia/v100".into(),
            r#"{"spec":{"type":"GPU","score":1}}"#.into(),
            "capability.apply.v1",
            201,
        ),
        (
            Method::POST,
            "/capabilities/nvidia/v100/activity".into(),
            r#"{"activity":"active"}"#.into(),
            "capability.set_activity.v1",
            200,
        ),
        (Method::DELETE, "/capabilities/nvidia/v100".into(), "{}".into(), "capability.delete.v1", 200),
        (Method::PUT, "/nodes/node-1".into(), NODE.into(), "node.apply.v1", 201),
        (
            Method::POST,
            "/nodes/node-1/state".into(),
            r#"{"state":"evicted"}"#.into(),
            "node.set_state.v1",
            200,
        ),
        (Method::DELETE, "/nodes/node-1".into(), String::new(), "node.delete.v1", 200),
        (Method::DELETE, "/nodes/node-1?cascade=yes".into(), String::new(), "node.delete.v1", 202),
        (
            Method::PUT,
            "/nodes/node-1/disruptions/switch".into(),
            r#"{"spec":{"action":"drain"}}"#.into(),
            "disruption.schedule.v1",
            201,
        ),
        (
            Method::POST,
            "/nodes/node-1/disruptions/switch/approve".into(),
            String::new(),
            "disruption.approve.v1",
            202,
        ),
        (
            Method::POST,
            "/nodes/node-1/disruptions/switch/complete".into(),
            String::new(),
            "disruption.complete.v1",
            200,
        ),
        (
            Method::DELETE,
            "/nodes/node-1/disruptions/switch".into(),
            String::new(),
            "disruption.delete.v1",
            200,
        ),
        (
            Method::PUT,
            "/policies/nightly".into(),
            r#"{"spec":{"rule":{"approve":{"max_in_flight":3}}}}"#.into(),
            "policy.apply.v1",
            201,
        ),
        (Method::DELETE, "/policies/nightly".into(), String::new(), "policy.delete.v1", 200),
        (Method::PUT, "/plans/nginx".into(), plan.into(), "plan.apply.v1", 201),
        (
            Method::POST,
            "/plans/nginx/activity".into(),
            r#"{"activity":"active"}"#.into(),
            "plan.set_activity.v1",
            200,
        ),
        (Method::DELETE, "/plans/nginx".into(), String::new(), "plan.delete.v1", 200),
        (Method::DELETE, "/plans/nginx?cascade=yes".into(), String::new(), "plan.delete.v1", 202),
        (Method::DELETE, "/plans/nginx".into(), r#"{"cascade":"yes"}"#.into(), "plan.delete.v1", 202),
        (
            Method::POST,
            "/plans/nginx/deployments".into(),
            r#"{"name":"d1","spec":{"count":1}}"#.into(),
            "deployment.create.v1",
            202,
        ),
        (
            Method::POST,
            "/plans/nginx/deployments/d1/cancel".into(),
            String::new(),
            "deployment.cancel.v1",
            202,
        ),
        (Method::POST, "/plans/nginx/deployments/d1/pause".into(), String::new(), "deployment.pause.v1", 200),
        (
            Method::POST,
            "/plans/nginx/deployments/d1/resume".into(),
            String::new(),
            "deployment.resume.v1",
            202,
        ),
        (
            Method::POST,
            "/plans/nginx/deployments/d1/promote".into(),
            String::new(),
            "deployment.promote.v1",
            202,
        ),
        (
            Method::POST,
            "/plans/nginx/deployments/d1/rollback".into(),
            String::new(),
            "deployment.rollback.v1",
            202,
        ),
        (Method::POST, "/plans/nginx/rollback".into(), r#"{"name":"back"}"#.into(), "plan.rollback.v1", 202),
        (Method::POST, "/plans/nginx/rebalance".into(), "{}".into(), "plan.rebalance.v1", 202),
        (Method::POST, "/plans/nginx/replicas".into(), String::new(), "replica.create.v1", 202),
        (
            Method::POST,
            "/replicas/nginx-0001/relocate".into(),
            r#"{"node":"node-2"}"#.into(),
            "replica.relocate.v1",
            202,
        ),
        (Method::POST, "/replicas/nginx-0001/reboot".into(), String::new(), "replica.reboot.v1", 202),
        (Method::POST, "/replicas/nginx-0001/console".into(), String::new(), "console.open.v1", 200),
        (Method::POST, "/replicas/nginx-0001/restart".into(), String::new(), "replica.restart.v1", 202),
        (Method::POST, "/replicas/nginx-0001/start".into(), String::new(), "replica.start.v1", 202),
        (Method::POST, "/replicas/nginx-0001/stop".into(), String::new(), "replica.stop.v1", 202),
        (Method::DELETE, "/replicas/nginx-0001".into(), String::new(), "replica.delete.v1", 202),
        (
            Method::POST,
            "/volumes/data/snapshot".into(),
            r#"{"snapshot":"copy"}"#.into(),
            "volume.snapshot.v1",
            202,
        ),
        (Method::DELETE, "/volumes/data".into(), String::new(), "volume.delete.v1", 202),
        (Method::POST, "/raise".into(), r#"{"to":1}"#.into(), "fleet.raise.v1", 200),
        (Method::POST, "/inbox/skip".into(), r#"{"offset":3}"#.into(), "inbox.skip.v1", 200),
        (
            Method::POST,
            format!("/operations/{id}/approve"),
            format!(r#"{{"hash":"{hash}"}}"#),
            "operation.approve.v1",
            202,
        ),
        (
            Method::POST,
            format!("/operations/{id}/reject"),
            r#"{"reason":"no"}"#.into(),
            "operation.reject.v1",
            200,
        ),
        (
            Method::POST,
            format!("/requests/{request}/approve"),
            format!(r#"{{"hash":"{hash}"}}"#),
            "request.approve.v1",
            202,
        ),
        (Method::POST, format!("/requests/{request}/reject"), String::new(), "request.reject.v1", 200),
        (Method::POST, "/operations/approve".into(), many, "operation.approve.v1", 202),
        (
            Method::POST,
            "/operations/reject".into(),
            format!(r#"{{"operations":["{id}"]}}"#),
            "operation.reject.v1",
            200,
        ),
    ]
}

#[tokio::test]
async fn every_typed_route_requests_its_intent() {
    let world = ServedFleet::new();
    world.decide(accepted(IntentOutcome::Changed, 1));
    for (method, path, body, type_name, status) in table() {
        let answer = world.put(method, &path, body).await;
        assert_eq!(answer.status.as_u16(), status, "{path}: {:?}", answer.body);
        let asked = world.asked.lock().expect("no panic").pop().expect("an intent");
        assert_eq!(asked.intent.type_name(), type_name, "{path}");
        let json = answer.json();
        assert_eq!((json["position"].as_u64(), json["verdict"].as_str()), (Some(9), Some("accepted")));
        assert_eq!(
            json["subject"].as_str(),
            asked.intent.subject().map(|subject| subject.to_string()).as_deref()
        );
        assert_eq!(answer.header("chancery-position"), "9");
    }
}

#[tokio::test]
async fn the_description_names_the_statuses_that_each_route_gives() {
    let world = ServedFleet::new();
    let mut given: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (method, path, body, type_name, _) in table() {
        let entry = Intent::REGISTER.iter().find(|entry| entry.type_name == type_name).expect("known");
        let mut verdicts = vec![(IntentOutcome::Changed, 1, false), (IntentOutcome::Changed, 2, false)];
        verdicts.push((IntentOutcome::Unchanged, 2, false));
        verdicts.extend(entry.ending.may_wait().then_some((IntentOutcome::Changed, 1, true)));
        for (outcome, version, waits) in verdicts {
            let waits = waits.then(|| Subject::Request(RequestId::issue(LINEAGE, Position::new(8))));
            world.decide(move |request| {
                let subject = waits.clone().or_else(|| request.intent.subject());
                let result = Arc::new(Ok(AcceptedIntent { outcome, subject, version: Some(version) }));
                Some(Verdict { position: Position::new(9), is_recorded: true, result })
            });
            let answer = world.put(method.clone(), &path, body.clone()).await;
            given.entry(type_name).or_default().insert(answer.status.as_str().to_owned());
        }
    }
    let api = crate::openapi();
    for route in ROUTES.iter() {
        let RouteTarget::Intent(entry, _) = route.does else { continue };
        let described = &api["paths"][&route.path][route.method.as_str().to_lowercase()]["responses"];
        let mut described: BTreeSet<_> = described.as_object().expect("responses").keys().cloned().collect();
        described.remove("default");
        assert_eq!(given.get(entry.type_name), Some(&described), "{} {}", route.method, route.path);
    }
}

#[tokio::test]
async fn whether_dependents_are_deleted_first_is_set_by_the_query_or_the_body_and_once() {
    use chancery_events::intent::CascadePolicy;
    let world = ServedFleet::new();
    world.decide(accepted(IntentOutcome::Changed, 1));
    for (query, wanted) in
        [("", CascadePolicy::No), ("?cascade=yes", CascadePolicy::Yes), ("?cascade=no", CascadePolicy::No)]
    {
        world.put(Method::DELETE, &format!("/nodes/node-1{query}"), "").await;
        let asked = world.asked.lock().expect("no panic").pop().expect("an intent");
        let Intent::NodeDelete(node) = asked.intent else { panic!("{query}") };
        assert_eq!((node.name.as_str(), node.cascade), ("node-1", wanted), "{query}");
    }
    let twice = world.put(Method::DELETE, "/nodes/node-1?cascade=yes", r#"{"cascade":"yes"}"#).await;
    assert_eq!(twice.problem(), (422, "invalid".into(), "/cascade".into()));
    assert_eq!(twice.json()["errors"][0]["detail"], "must be absent: the query has it");
    let refused = |path: &'static str| world.put(Method::DELETE, path, "");
    for path in [
        "/nodes/node-1?cascade=all",
        "/nodes/node-1?cascade",
        "/nodes/node-1?cascade=",
        "/nodes/node-1?cascade=true",
    ] {
        assert_eq!(
            refused(path).await.problem(),
            (400, "invalid_parameter".into(), "/cascade".into()),
            "{path}"
        );
    }
    assert_eq!(
        refused("/clusters/c?cascade=yes").await.problem().1,
        "invalid_parameter",
        "a cluster has no dependents"
    );
    assert!(world.asked.lock().expect("no panic").is_empty(), "none of them was asked for");
}

#[tokio::test]
async fn headers_set_the_rest() {
    let world = ServedFleet::new();
    world.decide(accepted(IntentOutcome::Unchanged, 3));
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [
        ("content-type", "application/json; charset=utf-8"),
        ("idempotency-key", "\"key 1\""),
        ("if-match", "\"3\""),
        ("chancery-actor", "someone"),
        ("chancery-source", "/ci"),
        ("chancery-time", "2026-11-21T09:00:00Z"),
        ("traceparent", trace),
        ("chancery-unchanged", "recorded"),
    ];
    let answer = world.send(request(Method::PUT, "/nodes/node-1", &headers, NODE)).await;
    let json = answer.json();
    assert_eq!((answer.status.as_u16(), json["verdict"].as_str()), (200, Some("unchanged")));
    assert_eq!(json["recorded"], true);
    let asked = world.asked.lock().expect("no panic").pop().expect("an intent");
    assert_eq!((asked.id.as_str(), asked.actor.as_str(), asked.source.as_str()), ("key 1", "someone", "/ci"));
    assert_eq!(
        (asked.expect, asked.traceparent.as_deref()),
        (Some(ExpectedVersion::Exactly(3)), Some(trace))
    );
    assert_eq!(asked.time.map(|time| time.to_string()).as_deref(), Some("2026-11-21T09:00:00.000000Z"));
    for invalid in ["bad", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", "\u{f6}"] {
        let headers = [("content-type", "application/json"), ("traceparent", invalid)];
        assert_eq!(world.send(request(Method::PUT, "/nodes/node-1", &headers, NODE)).await.status, 200);
        let asked = world.asked.lock().expect("no panic").pop().expect("an intent");
        assert_eq!(asked.traceparent, None, "{invalid}");
    }
}

#[tokio::test]
async fn each_refusal_is_a_problem_of_its_own_status() {
    let world = ServedFleet::new();
    for code in RefusalCode::ALL.iter().copied() {
        world.decide(refused(code));
        let answer = world.put(Method::PUT, "/nodes/node-1", NODE).await;
        let (status, found, pointer) = answer.problem();
        assert_eq!((status, found.as_str()), (crate::problem::kind_of(code).status, code.word()));
        assert_eq!((pointer.as_str(), answer.json()["version"].as_u64()), ("/spec/domain", Some(4)));
        assert_eq!(answer.json()["position"].as_u64(), Some(9));
    }
    world.decide(refused(RefusalCode::VersionConflict));
    let headers = [("content-type", "application/json"), ("if-match", "\"3\"")];
    let answer = world.send(request(Method::PUT, "/nodes/node-1", &headers, NODE)).await;
    assert_eq!(answer.problem().0, 412);
}

#[tokio::test]
async fn a_refusal_points_to_the_path_the_query_or_the_body_that_was_sent() {
    let world = ServedFleet::new();
    let id = OperationId::issue(LINEAGE, Position::new(8));
    let (approve, reject) = (format!("/operations/{id}/approve"), format!("/operations/{id}/reject"));
    let hash = r#"{"hash":"9f86d081884c7d659a2feaa0c55ad015"}"#;
    let many = format!(r#"{{"operations":["{id}"]}}"#);
    for (method, path, body, pointer, part, found) in [
        (Method::PUT, "/nodes/node-1", NODE, "/name", "path", "/name"),
        (Method::PUT, "/nodes/node-1", NODE, "/spec/domain", "body", "/spec/domain"),
        (Method::DELETE, "/nodes/node-1?cascade=yes", "", "/cascade", "query", "/cascade"),
        (Method::DELETE, "/nodes/node-1", r#"{"cascade":"yes"}"#, "/cascade", "body", "/cascade"),
        (
            Method::POST,
            "/plans/p/deployments",
            r#"{"name":"d1","spec":{"count":1}}"#,
            "/name",
            "body",
            "/name",
        ),
        (
            Method::POST,
            "/plans/p/deployments",
            r#"{"name":"d1","spec":{"count":1}}"#,
            "/plan",
            "path",
            "/plan",
        ),
        (Method::POST, "/nodes/node-1/disruptions/d/complete", "", "/node", "path", "/node"),
        (Method::POST, &approve, hash, "/operations/0", "path", "/id"),
        (Method::POST, &approve, hash, "/operations/0/hash", "body", "/hash"),
        (Method::POST, &reject, "", "/operations/0", "path", "/id"),
        (Method::POST, "/operations/reject", &many, "/operations/0", "body", "/operations/0"),
    ] {
        world.decide(refused_at(RefusalCode::InvalidTransition, pointer));
        let answer = world.put(method, path, body.to_owned()).await;
        assert_eq!(answer.problem().0, 409, "{path}: {:?}", answer.body);
        let fault = &answer.json()["errors"][0];
        assert_eq!((&fault["in"], &fault["pointer"]), (&part.into(), &found.into()), "{path} {pointer}");
    }
}

#[tokio::test]
async fn an_outcome_that_is_not_known_is_reported_with_the_key() {
    let world = ServedFleet::with(HttpLimits {
        request_timeout: Duration::from_millis(200),
        ..HttpLimits::default()
    });
    let headers = [("content-type", "application/json"), ("idempotency-key", "k1")];
    let answer = world.send(request(Method::PUT, "/nodes/node-1", &headers, NODE)).await;
    assert_eq!(answer.problem(), (504, "unknown_outcome".into(), String::new()));
    assert_eq!(
        (answer.json()["id"].as_str(), answer.json()["retryable"].as_bool()),
        (Some("k1"), Some(true))
    );
    let answer = world.put(Method::PUT, "/nodes/node-1", NODE).await;
    assert_eq!(answer.json()["id"], answer.header("chancery-request-id"), "an id that is unique");
}

#[tokio::test]
async fn a_full_queue_is_busy_and_nothing_is_recorded() {
    let mut world = ServedFleet::with(HttpLimits {
        request_timeout: Duration::from_millis(200),
        ..HttpLimits::default()
    });
    let (queue, _inputs) = tokio::sync::mpsc::channel(1);
    queue.try_send(chancery_decider::DeciderInput::Drain).expect("space");
    world.app.router =
        chancery_decider::leader_router::LeaderRouter::with(chancery_decider::DeciderHandle::over(queue));
    let answer = world.put(Method::PUT, "/nodes/node-1", NODE).await;
    assert_eq!(answer.problem().1, "busy");
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, "1"));
}

#[tokio::test]
async fn large_bodies_have_one_budget_until_they_are_answered_and_small_ones_pass() {
    let mebibyte = 1 << 20;
    let limits =
        HttpLimits { bodies: 2 * mebibyte, body_read: Duration::from_millis(200), ..HttpLimits::default() };
    let world = ServedFleet::with(limits);
    let half = |taken: &Arc<AtomicUsize>| {
        let taken = Arc::clone(taken);
        Body::from_stream(async_stream::stream! {
            for _ in 0..8 {
                taken.fetch_add(64 << 10, Ordering::Relaxed);
                yield Ok::<_, std::convert::Infallible>(axum::body::Bytes::from(vec![b' '; 64 << 10]));
            }
            std::future::pending::<()>().await;
        })
    };
    let taken = Arc::new(AtomicUsize::new(0));
    let json = [("content-type", "application/json")];
    let sending: Vec<_> = (0..8)
        .map(|_| request(Method::PUT, "/nodes/node-9", &json, half(&taken)))
        .map(|asked| tokio::spawn(world.router().oneshot(asked)))
        .collect();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(taken.load(Ordering::Relaxed), mebibyte, "the halves of two, which is all that two may have");
    assert_eq!(world.put(Method::PUT, "/nodes/node-9", "{").await.status, 400, "a small one is read");
    for one in sending {
        let status = one.await.expect("no panic").expect("an answer").status().as_u16();
        assert!(status == 408 || status == 503, "{status}");
    }
    while world.app.common.bodies.free() < 2 * mebibyte {
        tokio::task::yield_now().await;
    }
}
