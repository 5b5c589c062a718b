//! Intents that inbox messages request, and refusals of messages that cannot be read.

use serde_json::json;

use super::*;
use crate::expected_version::ExpectedVersion;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn message(headers: &[(&str, &[u8])], value: &str) -> InboxMessage {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec())).collect();
    InboxMessage { offset: 7, headers, value: Some(value.as_bytes().to_vec()), ..InboxMessage::default() }
}

const BINARY: &[(&str, &[u8])] = &[
    ("ce_specversion", b"1.0"),
    ("ce_id", b"1"),
    ("ce_source", b"/ci"),
    ("ce_type", b"dev.chancery.node.delete.v1"),
    ("content-type", b"application/json"),
];
const DATA: &str = r#"{"name":"node-1"}"#;
const STRUCTURED: (&str, &[u8]) = ("content-type", b"application/cloudevents+json; charset=UTF-8");

fn event() -> serde_json::Value {
    json!({
        "specversion": "1.0", "id": "1", "source": "/ci", "type": "dev.chancery.node.delete.v1", "actor": "eve",
        "expectedversion": 3, "time": "2026-11-21T09:00:00Z", "subject": "node/node-1", "data": {"name": "node-1"},
    })
}

fn actor() -> Actor {
    "pipeline".parse().expect("a name")
}

fn code(message: &InboxMessage) -> (RefusalCode, String) {
    let refusal = message.request(&actor()).expect_err("it is refused");
    (refusal.code, refusal.detail)
}

#[test]
fn both_forms_are_one_intent_of_the_bindings_actor_and_the_claim_is_kept() {
    let binary: Vec<_> = [
        BINARY,
        &[
            ("ce_actor", b"eve".as_slice()),
            ("ce_expectedversion", b"3"),
            ("ce_time", b"2026-11-21T09:00:00Z"),
            ("ce_subject", b"node/node-1"),
            ("ce_partitionkey", b"x"),
            ("other", b"\xff"),
        ],
    ]
    .concat();
    let whole = event().to_string();
    let same = [
        message(&binary, DATA),
        message(&binary[..4].iter().chain(&binary[5..]).copied().collect::<Vec<_>>(), DATA),
        message(&[STRUCTURED], &whole),
        message(&[("Content-Type", b"application/JSON")], &whole),
        message(&[], &whole),
        // Headers may have attributes too; the value counts.
        message(&[STRUCTURED, ("ce_id", b"another")], &whole),
    ];
    for inbox_message in same {
        let request = inbox_message
            .request(&actor())
            .unwrap_or_else(|refusal| panic!("{inbox_message:?}: {refusal:?}"));
        assert_eq!(request.actor, actor());
        assert_eq!(request.claim.as_ref().map(Actor::as_str), Some("eve"));
        let IntentRequest { id, source, expect, time, intent, .. } = request;
        assert_eq!((id.as_str(), source.as_str(), expect), ("1", "/ci", Some(ExpectedVersion::Exactly(3))));
        assert_eq!((time.is_some(), intent.type_name()), (true, "node.delete.v1"));
    }
    let plain = message(&[BINARY, &[("traceparent", TRACE.as_bytes())]].concat(), DATA);
    let request = plain.request(&actor()).expect("a request");
    assert_eq!((request.traceparent.as_deref(), request.claim), (Some(TRACE), None));
    let both = [("ce_traceparent", TRACE.as_bytes()), ("traceparent", b"00-old".as_slice())];
    let request = message(&[BINARY, &both].concat(), DATA).request(&actor()).expect("a request");
    assert_eq!(request.traceparent.as_deref(), Some(TRACE));
}

#[test]
fn a_message_that_cannot_be_read_reports_why() {
    let changed = |name: &str, value: serde_json::Value| {
        let mut event = event();
        event[name] = value;
        message(&[STRUCTURED], &event.to_string())
    };
    let without = |name: &str| {
        let mut event = event();
        event.as_object_mut().expect("an object").remove(name);
        message(&[STRUCTURED], &event.to_string())
    };
    let binary = |headers: &[(&str, &[u8])], data: &str| message(&[BINARY, headers].concat(), data);
    let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
    let long = json!({"name": "node-1", "x".repeat(2000): 1}).to_string();
    let cases: Vec<(InboxMessage, RefusalCode, &str)> = vec![
        (InboxMessage { value: None, ..message(BINARY, "") }, RefusalCode::Invalid, "no value"),
        (message(BINARY, ""), RefusalCode::Invalid, "invalid JSON: empty"),
        (
            InboxMessage { value: Some(b"{\"a\":\"\xff\"}".to_vec()), ..message(&[], "") },
            RefusalCode::Invalid,
            "invalid UTF-8",
        ),
        (message(&[], "\0\0\0\0\x01avro"), RefusalCode::Invalid, "expected value"),
        (message(&[], &deep), RefusalCode::Invalid, "nested"),
        (message(&[], "[]"), RefusalCode::Invalid, "must be an object"),
        (message(&[], r#"{"id":"1","id":"2"}"#), RefusalCode::Invalid, "twice"),
        (message(BINARY, &" ".repeat(LARGEST)), RefusalCode::TooLarge, "at most 262144"),
        (message(BINARY, "[\"node-1\"]"), RefusalCode::Invalid, "must be a JSON object"),
        (message(BINARY, "{}"), RefusalCode::Invalid, "missing field `name`"),
        (message(BINARY, r#"{"name":"NODE"}"#), RefusalCode::Invalid, "invalid character"),
        (message(BINARY, r#"{"name":"node-1","force":true}"#), RefusalCode::Invalid, "unknown field `force`"),
        (message(BINARY, &long), RefusalCode::Invalid, "unknown field"),
        (binary(&[("ce_expect", b"1")], DATA), RefusalCode::Invalid, "\"ce_expect\""),
        (binary(&[("ce_id", b"2")], DATA), RefusalCode::Invalid, "must be given once"),
        (binary(&[("ce_actor", b"\xff")], DATA), RefusalCode::Invalid, "must be UTF-8"),
        (binary(&[("content-type", b"application/json")], DATA), RefusalCode::Invalid, "must be given once"),
        (binary(&[("traceparent", b"00")], DATA), RefusalCode::Invalid, "traceparent"),
        (binary(&[("ce_subject", b"node/node-2")], DATA), RefusalCode::Invalid, "about node/node-1"),
        (message(&BINARY[..3], DATA), RefusalCode::Invalid, "missing"),
        (
            message(&[("ce_id", b"1"), ("content-type", b"text/plain")], "x"),
            RefusalCode::Unsupported,
            "text/plain",
        ),
        (
            message(&[("content-type", b"application/cloudevents+avro")], "x"),
            RefusalCode::Unsupported,
            "avro",
        ),
        (
            message(&[("content-type", b"application/cloudevents-batch+json")], "[]"),
            RefusalCode::Unsupported,
            "batch",
        ),
        (
            message(&[("content-type", b"application/json; charset=latin1")], "{}"),
            RefusalCode::Unsupported,
            "latin1",
        ),
        (changed("type", "dev.chancery.moon.land.v1".into()), RefusalCode::Unsupported, "must be one of"),
        (changed("type", "com.example.made".into()), RefusalCode::Unsupported, "must start with"),
        (changed("id", "".into()), RefusalCode::Invalid, "\"id\""),
        (changed("id", json!({})), RefusalCode::Invalid, "\"id\": must be text"),
        (changed("id", json!(36)), RefusalCode::Invalid, "\"id\": must be text"),
        (
            changed("expectedversion", json!(true)),
            RefusalCode::Invalid,
            "\"expectedversion\": must be a version",
        ),
        (changed("specversion", "0.3".into()), RefusalCode::Invalid, "\"specversion\""),
        (changed("data_base64", "AA==".into()), RefusalCode::Invalid, "\"data_base64\""),
        (without("data"), RefusalCode::Invalid, "\"data\""),
        (without("source"), RefusalCode::Invalid, "\"source\""),
        (without("type"), RefusalCode::Invalid, "\"type\""),
    ];
    for (inbox_message, wanted, what) in cases {
        let (code, detail) = code(&inbox_message);
        assert_eq!(code, wanted, "{what}: {detail}");
        assert!(detail.contains(what), "{what}: {detail}");
        assert!(detail.chars().count() <= SAID, "{detail}");
    }
}

#[test]
fn a_digest_is_that_of_the_value_alone() {
    let digest = message(BINARY, "test").digest().map(|digest| digest.to_string());
    let known = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    assert_eq!(digest.as_deref(), Some(known));
    assert_eq!(InboxMessage::default().digest(), None);
}

#[test]
fn allowed_intents_are_those_named_and_never_approvals() {
    let cases = [
        ("*", vec!["plan.apply.v1", "node.delete.v1", "replica.stop.v1"], vec![]),
        ("plan.*", vec!["plan.apply.v1", "plan.delete.v1"], vec!["node.delete.v1", "deployment.create.v1"]),
        ("disruption.*", vec!["disruption.schedule.v1", "disruption.complete.v1"], vec!["node.delete.v1"]),
        (
            " deployment.create , plan.apply,",
            vec!["deployment.create.v1", "plan.apply.v1"],
            vec!["plan.delete.v1"],
        ),
        ("dev.chancery.node.apply", vec!["node.apply.v1"], vec!["node.delete.v1"]),
        ("plan.*,*", vec!["cluster.apply.v1"], vec![]),
    ];
    for (text, taken, not) in cases {
        let scope: AllowedIntents = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        for type_name in taken {
            assert!(scope.takes(type_name), "{text}: {type_name}");
        }
        let approvals =
            ["operation.approve.v1", "operation.reject.v1", "disruption.approve.v1", "deployment.promote.v1"];
        for type_name in not.iter().chain(&approvals) {
            assert!(!scope.takes(type_name), "{text}: {type_name}");
        }
        assert_eq!(scope.to_string().parse(), Ok(scope.clone()), "{text}");
    }
    for (text, what) in [
        ("", "separated by commas"),
        (" , ", "separated by commas"),
        ("plans.*", "must be one of"),
        ("plan", "must be one of"),
        ("plan.apply.v1", "must be one of"),
        ("*.apply", "must be one of"),
        ("operation.*", "approvals are not accepted"),
        ("plan.*,operation.reject", "approvals are not accepted"),
        ("disruption.approve", "approvals are not accepted"),
        ("deployment.promote", "approvals are not accepted"),
    ] {
        let error = text.parse::<AllowedIntents>().expect_err(text).to_string();
        assert!(error.contains(what), "{text}: {error}");
        assert!(!error.contains("operation.approve"), "{text}: {error}");
    }
}

#[test]
fn what_is_not_allowed_is_denied() {
    let binding = InboxBinding { actor: actor(), allowed_intents: "plan.*".parse().expect("a scope") };
    let intent = |type_name: &str, data| Intent::read(type_name, data).expect("a type").expect("its data");
    let denied = |intent: &Intent| binding.check(intent).map_err(|refusal| (refusal.code, refusal.detail));
    assert_eq!(denied(&intent("plan.delete.v1", r#"{"name":"web"}"#)), Ok(()));
    let (code, detail) = denied(&intent("node.delete.v1", DATA)).expect_err("another kind");
    assert_eq!(
        (code, detail.contains("node.delete"), detail.contains("plan.*")),
        (RefusalCode::Denied, true, true)
    );
    let all = InboxBinding { allowed_intents: "*".parse().expect("a scope"), ..binding };
    let approve = intent("operation.approve.v1", r#"{"operations":[]}"#);
    assert_eq!(all.check(&approve).map_err(|refusal| refusal.code), Err(RefusalCode::Denied));
}
