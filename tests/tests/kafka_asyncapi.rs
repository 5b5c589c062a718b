//! Description of topics and streams (`schemas/asyncapi.yaml`): valid by its own parser, and true of a live stream.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use chancery_tests::ServerProcess;
use serde_json::{Value, json};

fn description() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas/asyncapi.yaml")
}

/// Validates a file; returns whether it is valid, and the findings.
fn validated(file: &Path) -> (bool, String) {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/run");
    let output = Command::new(run).args(["asyncapi", "validate"]).arg(file).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (output.status.success(), text)
}

#[test]
fn the_description_of_topics_and_streams_is_valid() {
    let (is_valid, found) = validated(&description());
    assert!(is_valid, "{found}");
    let broken =
        std::fs::read_to_string(description()).expect("a file").replace("schemas/kind\"", "schemas/kin\"");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("asyncapi.yaml");
    std::fs::write(&file, broken).expect("a file");
    let (is_valid, found) = validated(&file);
    assert!(!is_valid && found.contains("schemas/kin"), "a reference that leads nowhere is found: {found}");
}

#[test]
fn events_of_a_stream_have_the_described_attributes() {
    let text = std::fs::read_to_string(description()).expect("a file");
    let described: Value = serde_saphyr::from_str(&text).expect("YAML");
    let event = &described["components"]["schemas"]["event"];
    let required: BTreeSet<&str> =
        event["required"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let known: BTreeSet<&str> =
        event["properties"].as_object().expect("a map").keys().map(String::as_str).collect();

    let server = ServerProcess::start();
    let client = server.client();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let intent = json!({
        "specversion": "1.0", "id": "1", "source": "/ci", "type": "dev.chancery.capability.apply.v1", "time": "2026-11-21T09:00:00Z",
        "actor": "ann", "traceparent": trace, "tracestate": "vendor=1", "urgent": true,
        "data": {"name": "gpu", "spec": {"type": "GPU", "score": 1}},
    });
    let headers = [("content-type", "application/cloudevents+json")];
    let path = "/v1/fleets/default/intents";
    let answer = client.send("POST", path, &headers, intent.to_string().as_bytes());
    assert_eq!(answer.status, 201, "{}", answer.text);

    let lines = client.get("/v1/fleets/default/events?follow=false").text;
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut traced = 0;
    for event in &events {
        let names: BTreeSet<&str> =
            event.as_object().expect("an object").keys().map(String::as_str).collect();
        assert!(names.is_superset(&required), "{event}");
        let extensions: Vec<_> = names.difference(&known).copied().collect();
        let is_intent = event["kind"] == "intent";
        assert_eq!(extensions, if is_intent { vec!["tracestate", "urgent"] } else { Vec::new() }, "{event}");
        if is_intent {
            assert_eq!((&event["tracestate"], &event["urgent"]), (&json!("vendor=1"), &json!("true")));
        }
        traced += usize::from(event["traceparent"] == trace);
    }
    assert_eq!(traced, 3, "the intent, its verdict and its fact: {lines}");
}
