//! Intents as CloudEvents, in all their forms.

use axum::http::{HeaderValue, Method};
use chancery_events::expected_version::ExpectedVersion;
use chancery_events::fact::IntentOutcome;
use chancery_events::refusal::RefusalCode;
use serde_json::json;

use super::world::{ServedFleet, request};
use super::writes::{accepted, refused_at};

const STRUCTURED: (&str, &str) = ("content-type", "application/cloudevents+json");
const BATCH: (&str, &str) = ("content-type", "application/cloudevents-batch+json");
const BINARY: &[(&str, &str)] = &[
    ("content-type", "application/json"),
    ("ce-specversion", "1.0"),
    ("ce-id", "1"),
    ("ce-source", "/ci"),
    ("ce-type", "dev.chancery.node.delete.v1"),
];

fn event(id: &str, data: &serde_json::Value) -> serde_json::Value {
    json!({"specversion": "1.0", "id": id, "source": "/ci", "type": "dev.chancery.node.delete.v1", "data": data})
}

#[tokio::test]
async fn a_structured_event_is_an_intent() {
    let world = ServedFleet::new();
    world.decide(accepted(IntentOutcome::Changed, 2));
    let mut body = event("e1", &json!({"name": "node-1"}));
    body["actor"] = "someone".into();
    body["expectedversion"] = 7.into();
    body["time"] = "2026-11-21T09:00:00Z".into();
    body["subject"] = "node/node-1".into();
    body["partitionkey"] = "x".into();
    for content_type in ["application/cloudevents+json; charset=utf-8", "application/json"] {
        let answer = world
            .send(request(Method::POST, "/intents", &[("content-type", content_type)], body.to_string()))
            .await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
        let asked = world.asked.lock().expect("no panic").pop().expect("an intent");
        assert_eq!(
            (asked.id.as_str(), asked.actor.as_str(), asked.source.as_str()),
            ("e1", "someone", "/ci")
        );
        assert_eq!(
            (asked.expect, asked.intent.type_name()),
            (Some(ExpectedVersion::Exactly(7)), "node.delete.v1")
        );
        assert!(asked.time.is_some());
    }
}

#[tokio::test]
async fn other_attributes_of_any_type_are_kept_as_text() {
    let world = ServedFleet::new();
    world.decide(accepted(IntentOutcome::Changed, 2));
    let mut body = event("e1", &json!({"name": "node-1"}));
    (body["rank"], body["urgent"], body["team"]) = (7.into(), true.into(), "ops".into());
    let json = [("content-type", "application/cloudevents+json")];
    assert_eq!(world.send(request(Method::POST, "/intents", &json, body.to_string())).await.status, 200);
    let headers = [BINARY, &[("ce-rank", "7"), ("ce-urgent", "true"), ("ce-team", "ops")]].concat();
    world.send(request(Method::POST, "/intents", &headers, r#"{"name":"node-1"}"#)).await;
    for asked in world.asked.lock().expect("no panic").drain(..) {
        let values = ["rank", "urgent", "team"].map(|name| asked.extensions.get(name));
        assert_eq!(values, [Some("7"), Some("true"), Some("ops")]);
    }
}

#[tokio::test]
async fn a_binary_event_is_an_intent() {
    let world = ServedFleet::new();
    world.decide(accepted(IntentOutcome::Changed, 2));
    let trace = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let headers = [
        BINARY,
        &[("ce-actor", "J%C3%BCrgen%20%22J%22"), ("ce-expectedversion", "3"), ("ce-urgent", "yes"), trace],
    ]
    .concat();
    let answer = world.send(request(Method::POST, "/intents", &headers, r#"{"name":"node-1"}"#)).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    let asked = world.asked.lock().expect("no panic").pop().expect("an intent");
    assert_eq!(
        (asked.actor.as_str(), asked.expect, asked.traceparent.is_some()),
        ("Jürgen \"J\"", Some(ExpectedVersion::Exactly(3)), true)
    );
    assert_eq!(asked.extensions.get("urgent"), Some("yes"), "it is kept");
    let quoted = [BINARY, &[("ce-actor", r#""some \"one\"""#)]].concat();
    world.send(request(Method::POST, "/intents", &quoted, r#"{"name":"node-1"}"#)).await;
    let asked = world.asked.lock().expect("no panic").pop().expect("an intent");
    assert_eq!(asked.actor.as_str(), "some \"one\"");
}

#[tokio::test]
async fn a_header_that_cannot_be_read_is_named() {
    let world = ServedFleet::new();
    for (name, value, pointer) in [
        ("ce-actor", b"\xc3\xbcber".as_slice(), "/ce-actor"),
        ("ce-actor", b"%ff", "/ce-actor"),
        ("ce-id", b"2", "/ce-id"),
        ("ce-expect", b"1", "/ce-expect"),
        ("ce-subject", b"node/node-2", "/ce-subject"),
        ("ce-time", b"now", "/ce-time"),
        ("ce-traceparent", b"00", "/ce-traceparent"),
        ("chancery-actor", b"\xff", "/chancery-actor"),
        ("if-match", b"+3", "/if-match"),
        ("chancery-time", b"soon", "/chancery-time"),
        ("idempotency-key", b"other", "/idempotency-key"),
        ("idempotency-key", b"", "/idempotency-key"),
    ] {
        let mut request = request(Method::POST, "/intents", BINARY, r#"{"name":"node-1"}"#);
        request.headers_mut().append(name, HeaderValue::from_bytes(value).expect("a header"));
        let answer = world.send(request).await;
        assert_eq!(answer.problem(), (400, "invalid_parameter".into(), pointer.into()), "{name} {value:?}");
    }
    assert!(world.asked.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn what_is_wrong_with_an_event_is_reported_with_its_location() {
    let world = ServedFleet::new();
    let good = event("e1", &json!({"name": "node-1"}));
    let with = |pointer: &str, value: serde_json::Value| {
        let mut changed = good.clone();
        changed[pointer] = value;
        changed.to_string()
    };
    let without = |name: &str| {
        let mut changed = good.clone();
        changed.as_object_mut().expect("an object").remove(name);
        changed.to_string()
    };
    for (body, status, pointer) in [
        (with("type", "dev.chancery.node.state_changed.v1".into()), 422, "/type"),
        (with("id", "".into()), 422, "/id"),
        (with("id", json!({})), 422, "/id"),
        (with("expect", 3.into()), 422, "/expect"),
        (with("Urgent", 3.into()), 422, "/Urgent"),
        (with("urgent", json!({})), 422, "/urgent"),
        (with("data", json!({"name": "NODE"})), 422, "/data/name"),
        (with("data", json!({"name": "node-1", "force": true})), 422, "/data/force"),
        (with("data", json!(["node-1"])), 422, "/data"),
        (with("subject", "node/node-2".into()), 422, "/subject"),
        (with("specversion", "0.3".into()), 422, "/specversion"),
        (without("data"), 422, "/data"),
        (without("type"), 422, "/type"),
        (without("source"), 422, "/source"),
        ("[]".into(), 422, ""),
        (r#"{"id":"1","id":"2"}"#.into(), 400, "/id"),
    ] {
        let answer = world.send(request(Method::POST, "/intents", &[STRUCTURED], body.clone())).await;
        let (found, _, at) = answer.problem();
        assert_eq!((found, at.as_str()), (status, pointer), "{body}: {:?}", answer.body);
    }
    let answer = world.send(request(Method::POST, "/intents", &[("content-type", "text/plain")], "x")).await;
    assert_eq!(answer.problem().0, 415);
    assert!(world.asked.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn a_refusal_points_to_the_data_of_its_event() {
    let world = ServedFleet::new();
    world.decide(refused_at(RefusalCode::Invalid, "/name"));
    let body = event("e1", &json!({"name": "node-1"}));
    let answer = world.send(request(Method::POST, "/intents", &[STRUCTURED], body.to_string())).await;
    assert_eq!(answer.problem(), (422, "invalid".into(), "/data/name".into()));
    let answer = world.send(request(Method::POST, "/intents", BINARY, r#"{"name":"node-1"}"#)).await;
    assert_eq!(answer.problem(), (422, "invalid".into(), "/name".into()));
    let batch = json!([body, event("e2", &json!({"name": "node-2"}))]);
    let answer = world.send(request(Method::POST, "/intents", &[BATCH], batch.to_string())).await.json();
    let pointers = [0, 1].map(|index| answer[index]["errors"][0]["pointer"].clone());
    assert_eq!(pointers, ["/0/data/name", "/1/data/name"]);
}

#[tokio::test]
async fn a_header_with_another_value_than_the_attribute_is_refused() {
    let world = ServedFleet::new();
    world.decide(accepted(IntentOutcome::Changed, 2));
    let mut body = event("e1", &json!({"name": "node-1"}));
    (body["actor"], body["time"]) = ("ann".into(), "2026-11-21T09:00:00Z".into());
    for (name, equal, other) in [
        ("chancery-actor", "ann", "bob"),
        ("chancery-source", "/ci", "/cd"),
        ("chancery-time", "2026-11-21T09:00:00.000Z", "2026-11-21T09:00:01Z"),
    ] {
        for (value, status) in [(equal, 200), (other, 400)] {
            let headers = [STRUCTURED, (name, value)];
            let answer = world.send(request(Method::POST, "/intents", &headers, body.to_string())).await;
            assert_eq!(answer.status.as_u16(), status, "{name} {value}: {:?}", answer.body);
            if status == 400 {
                assert_eq!(answer.problem(), (400, "invalid_parameter".into(), format!("/{name}")));
                let detail = answer.json()["errors"][0]["detail"].to_string();
                assert!(detail.contains("must be equal to the attribute"), "{detail}");
            }
            assert_eq!(world.asked.lock().expect("no panic").pop().is_some(), status == 200);
            let headers = [BATCH, (name, value)];
            let batch = json!([body]).to_string();
            let answer = world.send(request(Method::POST, "/intents", &headers, batch)).await.json();
            assert_eq!(answer[0]["status"], status, "{name} {value}: {answer}");
            world.asked.lock().expect("no panic").clear();
        }
    }
    // Without the attribute, the header has the value.
    body.as_object_mut().expect("an object").remove("actor");
    let headers = [STRUCTURED, ("chancery-actor", "bob")];
    world.send(request(Method::POST, "/intents", &headers, body.to_string())).await;
    assert_eq!(world.asked.lock().expect("no panic").pop().expect("an intent").actor.as_str(), "bob");
}

#[tokio::test]
async fn a_condition_in_a_header_is_refused_by_its_own_name() {
    let world = ServedFleet::new();
    let mut body = event("e1", &json!({"name": "node-1"}));
    let batch = json!([body]).to_string();
    body["expectedversion"] = 7.into();
    for (header, pointer) in [
        (("if-match", "\"0\""), "/if-match"),
        (("if-match", "\"abc\""), "/if-match"),
        (("if-none-match", "*"), "/if-none-match"),
        (("idempotency-key", "k"), "/idempotency-key"),
    ] {
        let answer = world.send(request(Method::POST, "/intents", &[BATCH, header], batch.clone())).await;
        assert_eq!(answer.problem(), (400, "invalid_parameter".into(), pointer.into()), "{header:?}");
    }
    for (header, pointer) in
        [(("if-match", "\"0\""), "/if-match"), (("if-none-match", "*"), "/if-none-match")]
    {
        let headers = [STRUCTURED, header];
        let answer = world.send(request(Method::POST, "/intents", &headers, body.to_string())).await;
        assert_eq!(answer.problem(), (400, "invalid_parameter".into(), pointer.into()), "{header:?}");
    }
    assert!(world.asked.lock().expect("no panic").is_empty());
}

#[tokio::test]
async fn a_batch_is_answered_in_order_each_for_itself() {
    let world = ServedFleet::new();
    world.decide(accepted(IntentOutcome::Changed, 2));
    let body = json!([
        event("e1", &json!({"name": "node-1"})),
        event("e2", &json!({"name": "NODE"})),
        event("e3", &json!({"name": "node-3"})),
    ]);
    let answer = world.send(request(Method::POST, "/intents", &[BATCH], body.to_string())).await;
    let json = answer.json();
    assert_eq!(answer.status, 200, "{json}");
    let statuses: Vec<_> =
        json.as_array().expect("answers").iter().map(|item| item["status"].as_u64()).collect();
    assert_eq!(statuses, [Some(200), Some(422), Some(200)]);
    assert_eq!(
        (&json[0]["subject"], &json[1]["errors"][0]["pointer"]),
        (&"node/node-1".into(), &"/1/data/name".into())
    );
    let asked: Vec<_> =
        world.asked.lock().expect("no panic").iter().map(|asked| asked.id.to_string()).collect();
    assert_eq!(asked, ["e1", "e3"]);
    let answer = world.send(request(Method::POST, "/intents", &[BATCH], "{}")).await;
    assert_eq!(answer.problem().0, 422);
}

#[tokio::test]
async fn after_a_busy_intent_no_later_one_of_a_batch_is_sent() {
    let mut world = ServedFleet::new();
    let (queue, mut inputs) = tokio::sync::mpsc::channel(2);
    world.app.router =
        chancery_decider::leader_router::LeaderRouter::with(chancery_decider::DeciderHandle::over(queue));
    let answered = tokio::spawn(async move {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let mut count = 0;
        while let Some(chancery_decider::DeciderInput::Intent(request, _, answer, _, _)) = inputs.recv().await
        {
            let _ = answer.send(accepted(IntentOutcome::Changed, 2)(&request).expect("a verdict"));
            count += 1;
            if count == 2 {
                break;
            }
        }
    });
    let body: Vec<_> =
        (1..=4).map(|n| event(&format!("e{n}"), &json!({"name": format!("node-{n}")}))).collect();
    let answer = world.send(request(Method::POST, "/intents", &[BATCH], json!(body).to_string())).await;
    answered.await.expect("no panic");
    let statuses: Vec<_> =
        answer.json().as_array().expect("answers").iter().map(|item| item["status"].as_u64()).collect();
    assert_eq!(statuses, [Some(200), Some(200), Some(503), Some(503)]);
}
