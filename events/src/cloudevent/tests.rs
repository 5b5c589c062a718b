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
    let (header, position) = (header(), Position::new(position));
    let renderer = RecordRenderer::new(&header, [(position, line)].into_iter());
    let about = renderer.render(position, line, &mut out).expect("a line");
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
        ("source", &format!("/lineages/{}/fleets/default", header().lineage)),
        ("type", "dev.chancery.operation.created.v1"),
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
    let mut extensions = ExtensionAttributes::default();
    for (name, value) in [("tracestate", "vendor=1"), ("comexampleurgent", "true")] {
        assert_eq!(extensions.add(name, value), Ok(false));
    }
    let request = IntentRequest {
        id: "a \"b\"".parse().expect("an id"),
        source: "cli".parse().expect("a source"),
        actor: "local".parse().expect("an actor"),
        time: Some(Time::EPOCH),
        expect: Some(ExpectedVersion::Exactly(3)),
        claim: None,
        traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
        extensions: extensions.clone(),
        intent: NodeDelete { name: "node-1".parse().expect("a name"), cascade: CascadePolicy::No }.into(),
    };
    let line = Event::Intent(request).line();
    let Ok(Event::Intent(read)) = Event::read(&line) else { panic!("an intent") };
    assert_eq!(read.extensions, extensions);
    let (json, about) = shown(40, &line);
    assert_eq!((about.kind, &*about.type_name), (EventKind::Intent, "node.delete.v1"));
    for (attribute, value) in [
        ("intentid", "a \"b\""),
        ("intentsource", "cli"),
        ("intenttime", "1970-01-01T00:00:00.000000Z"),
        ("actor", "local"),
        ("expectedversion", "3"),
        ("subject", "node/node-1"),
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("tracestate", "vendor=1"),
        ("comexampleurgent", "true"),
    ] {
        assert_eq!(json[attribute], value, "{attribute}");
    }
    assert!(json.get("subjects").is_none());
}

#[test]
fn facts_of_an_intent_have_its_trace_context() {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let request = |traceparent: Option<&str>| {
        Event::Intent(IntentRequest {
            id: "a".parse().expect("an id"),
            source: "cli".parse().expect("a source"),
            actor: "local".parse().expect("an actor"),
            time: None,
            expect: None,
            claim: None,
            traceparent: traceparent.map(str::to_owned),
            extensions: ExtensionAttributes::default(),
            intent: NodeDelete { name: "node-1".parse().expect("a name"), cascade: CascadePolicy::No }.into(),
        })
    };
    let caused_by = |cause: u64| {
        let fact = Fact::from(crate::fact::TimeRecorded {});
        Event::Fact { cause: Position::new(cause), fact }.line()
    };
    let lines =
        [request(Some(trace)).line(), caused_by(40), request(None).line(), caused_by(42), caused_by(7)];
    let header = header();
    let events = || (40..).map(Position::new).zip(lines.iter().map(Vec::as_slice));
    let renderer = RecordRenderer::new(&header, events());
    let traces = events().map(|(position, line)| {
        let mut out = Vec::new();
        renderer.render(position, line, &mut out).expect("an event");
        serde_json::from_slice::<serde_json::Value>(&out).expect("JSON").get("traceparent").cloned()
    });
    let expected = Some(serde_json::Value::from(trace));
    assert_eq!(traces.collect::<Vec<_>>(), [expected.clone(), expected, None, None, None]);
}

#[test]
fn a_type_of_a_newer_build_is_shown_and_not_lost() {
    let (json, about) = shown(43, br#"{"k":"fact","t":"moon.landed.v1","c":1,"d":{"crater":1}}"#);
    assert_eq!((json["type"].as_str(), about.subjects.len()), (Some("dev.chancery.moon.landed.v1"), 0));
    assert!(json.get("subject").is_none());
    let header = header();
    let renderer = RecordRenderer::new(&header, [].into_iter());
    assert!(renderer.render(Position::new(43), b"invalid", &mut Vec::new()).is_err());
}

fn set(all: &[(&str, &str)]) -> Result<CloudEventAttributes, InvalidAttribute> {
    let mut attributes = CloudEventAttributes::default();
    all.iter().try_for_each(|(name, value)| attributes.set(name, value)).map(|()| attributes)
}

const GOOD: &[(&str, &str)] =
    &[("specversion", "1.0"), ("id", "1"), ("source", "/ci"), ("type", "dev.chancery.node.delete.v1")];

#[test]
fn attributes_make_a_request() {
    let intent: Intent =
        NodeDelete { name: "node-1".parse().expect("a name"), cascade: CascadePolicy::No }.into();
    let actor: Actor = "local".parse().expect("an actor");
    let attributes =
        set(&[GOOD, &[("expectedversion", "7"), ("subject", "node/node-1")]].concat()).expect("attributes");
    assert_eq!(attributes.intent_type(), Ok("node.delete.v1"));
    let request = attributes.request(intent.clone(), &actor).expect("a request");
    assert_eq!(
        (request.expect, request.source.as_str(), request.actor),
        (Some(ExpectedVersion::Exactly(7)), "/ci", actor.clone())
    );

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
        ("type", "dev.chancery.node.state_changed.v1"),
        ("time", "yesterday"),
        ("actor", ""),
        ("expectedversion", "-1"),
        ("expect", "1"),
        ("expectedversoin", "1"),
        ("Urgent", "1"),
        ("data", "1"),
        ("a-b", "1"),
        ("traceparent", "00-1-2-3"),
        ("traceparent", "00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
        ("subject", "pod/x"),
        ("datacontenttype", "text/xml"),
        ("data_base64", "AA=="),
    ] {
        assert_eq!(set(&[(name, value)]).expect_err(value).name, name, "{value}");
    }
    for name in ["id", "urgent"] {
        assert_eq!(set(&[(name, "1"), (name, "1")]).expect_err("twice").reason, "must be given once");
    }
    let large = "x".repeat(crate::extension::MAX_BYTES - "ab".len());
    assert!(set(&[("a", &large), ("b", "")]).is_ok());
    assert_eq!(set(&[("a", &large), ("b", "1")]).expect_err("too large").name, "b");
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
