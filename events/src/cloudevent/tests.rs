//! Events as CloudEvents, and requests from outside.

use super::*;
use crate::fact::{Fact, OperationCreated};
use crate::id::{Lineage, Term, WriterId};
use crate::intent::{CascadePolicy, NodeDelete};
use crate::record::{RecordHash, RecordStart};
use crate::spec::OperationKind;

fn header() -> RecordHeader {
    RecordHeader {
        format: 1,
        fleet: "default".into(),
        lineage: Lineage::from_random(7),
        first: Position::new(40),
        count: 5,
        term: Term::FIRST,
        writer: WriterId::from_random(1),
        time: Time::from_micros(1_795_251_600_000_001),
        build: "test".into(),
        starts: None::<RecordStart>,
        watermark: None,
        prev: RecordHash::ZERO,
    }
}

fn shown(position: u64, line: &[u8]) -> (serde_json::Value, FilterableEvent) {
    let mut out = Vec::new();
    let about = render(&header(), Position::new(position), line, &mut out).expect("a line");
    assert!(!out.contains(&b'\n'));
    (serde_json::from_slice(&out).expect("JSON"), about)
}

#[test]
fn a_fact_that_issues_an_id_is_about_it_first() {
    let fact: Fact = OperationCreated {
        purpose: None,
        replica: "nginx-7f3k".parse().expect("a name"),
        kind: OperationKind::Create,
        deployment: None,
        requested_by: None,
        version: None,
        node: None,
        proposal: None,
    }
    .into();
    let issued = fact.issues(Lineage::from_random(7), Position::new(42)).expect("an operation");
    let (json, about) = shown(42, &Event::Fact { cause: Position::new(41), fact }.line());
    assert_eq!(about.subjects, [issued.clone(), "replica/nginx-7f3k".parse().expect("a subject")]);
    for (attribute, value) in [
        ("specversion", "1.0"),
        ("id", "42"),
        ("source", "/fleets/default"),
        ("type", "chancery.operation.created.v1"),
        ("subject", &issued.to_string()),
        ("partitionkey", &issued.to_string()),
        ("subjects", &format!("{issued},replica/nginx-7f3k")),
        ("time", "2026-11-21T09:00:00.000001Z"),
        ("datacontenttype", "application/json"),
        ("dataschema", "chancery:/v1/schemas/operation.created.v1"),
        ("sequence", "00000000000000000042"),
        ("causationid", "41"),
        ("kind", "fact"),
    ] {
        assert_eq!(json[attribute], value, "{attribute}");
    }
    assert_eq!(json["data"]["kind"], "create");
}

#[test]
fn an_intent_keeps_what_its_sender_set() {
    let request = IntentRequest {
        id: "a \"b\"".parse().expect("an id"),
        source: "cli".parse().expect("a source"),
        actor: "local".parse().expect("an actor"),
        time: Some(Time::EPOCH),
        expect: Some(3),
        claim: None,
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        intent: NodeDelete { name: "node-1".parse().expect("a name"), cascade: CascadePolicy::No }.into(),
    };
    let (json, about) = shown(40, &Event::Intent(request).line());
    assert_eq!((about.kind, &*about.type_name), (EventKind::Intent, "node.delete.v1"));
    for (attribute, value) in [
        ("intentid", "a \"b\""),
        ("intentsource", "cli"),
        ("intenttime", "1970-01-01T00:00:00.000000Z"),
        ("actor", "local"),
        ("expectedversion", "3"),
        ("subject", "node/node-1"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ] {
        assert_eq!(json[attribute], value, "{attribute}");
    }
    assert!(json.get("subjects").is_none());
}

#[test]
fn a_type_of_a_newer_build_is_shown_and_not_lost() {
    let (json, about) = shown(43, br#"{"k":"fact","t":"moon.landed.v1","c":1,"d":{"crater":1}}"#);
    assert_eq!((json["type"].as_str(), about.subjects.len()), (Some("chancery.moon.landed.v1"), 0));
    assert!(json.get("subject").is_none());
    assert!(render(&header(), Position::new(43), b"invalid", &mut Vec::new()).is_err());
}

fn set(all: &[(&str, &str)]) -> Result<CloudEventAttributes, InvalidAttribute> {
    let mut attributes = CloudEventAttributes::default();
    all.iter().try_for_each(|(name, value)| attributes.set(name, value)).map(|()| attributes)
}

const GOOD: &[(&str, &str)] =
    &[("specversion", "1.0"), ("id", "1"), ("source", "/ci"), ("type", "chancery.node.delete.v1")];

#[test]
fn attributes_make_a_request() {
    let intent: Intent =
        NodeDelete { name: "node-1".parse().expect("a name"), cascade: CascadePolicy::No }.into();
    let actor: Actor = "local".parse().expect("an actor");
    let attributes =
        set(&[GOOD, &[("expectedversion", "7"), ("subject", "node/node-1")]].concat()).expect("attributes");
    assert_eq!(attributes.intent_type(), Ok("node.delete.v1"));
    let request = attributes.request(intent.clone(), &actor).expect("a request");
    assert_eq!((request.expect, request.source.as_str(), request.actor), (Some(7), "/ci", actor.clone()));

    let elsewhere = set(&[GOOD, &[("subject", "node/node-2")]].concat()).expect("attributes");
    assert_eq!(elsewhere.request(intent.clone(), &actor).expect_err("another node").name, "subject");
    for absent in ["specversion", "id", "source"] {
        let rest: Vec<_> = GOOD.iter().copied().filter(|(name, _)| *name != absent).collect();
        let error = set(&rest).expect("attributes").request(intent.clone(), &actor).expect_err(absent);
        assert_eq!(error.name, absent);
    }
}

#[test]
fn an_attribute_that_is_not_right_is_named() {
    for (name, value) in [
        ("specversion", "0.3"),
        ("id", ""),
        ("source", "a\nb"),
        ("type", "node.delete.v1"),
        ("type", "chancery.node.state_changed.v1"),
        ("time", "yesterday"),
        ("actor", ""),
        ("expectedversion", "-1"),
        ("expct", "1"),
        ("traceparent", "00-1-2-3"),
        ("traceparent", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
        ("subject", "pod/x"),
        ("datacontenttype", "text/xml"),
        ("data_base64", "AA=="),
    ] {
        assert_eq!(set(&[(name, value)]).expect_err(value).name, name, "{value}");
    }
    assert_eq!(set(&[("id", "1"), ("id", "1")]).expect_err("twice").reason, "must be given once");
}

#[test]
fn json_is_recognised_by_its_media_type() {
    for good in ["application/json", "Application/JSON; charset=UTF-8", "application/json;charset=\"utf-8\""]
    {
        assert!(is_json(good), "{good}");
    }
    for bad in ["", "text/json", "application/json; charset=latin1", "application/jsonx"] {
        assert!(!is_json(bad), "{bad}");
    }
}
