//! Two builds with one fleet: the program of the worked example knows level 2, and this one does not.

use chancery_tests::kafka::shared;
use chancery_tests::{ServerProcess, StandbyServers, StartConditions, TestClient, until};
use serde_json::{Value, json};

use crate::new_kind::{patched_command, patched_launch};

const CERTIFICATE: &str = "dev.chancery.certificate.apply.v1";

/// Posts a certificate, which needs level 2.
fn certificate(client: &TestClient, id: &str) -> (u16, Value) {
    let spec = json!({"service": "shop", "sha256": "ab".repeat(32)});
    let event = json!({
        "specversion": "1.0", "id": id, "source": "/test", "type": CERTIFICATE, "actor": "ann",
        "data": {"name": "shop", "spec": spec},
    });
    let form = ("content-type", "application/cloudevents+json");
    let answer = client.send("POST", "/v1/fleets/default/intents", &[form], event.to_string().as_bytes());
    (answer.status, answer.json())
}

fn types(client: &TestClient) -> String {
    client.get("/v1/fleets/default/events?follow=false").text
}

/// Returns what a command of the newer program printed, which failed.
fn refused(server: &ServerProcess, args: &[&str]) -> String {
    let output = patched_command(server, args);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).expect("text")
}

#[test]
fn a_type_of_a_higher_level_is_recorded_only_after_the_raise_and_an_older_build_reports_it() {
    let mut server = ServerProcess::new();
    server.set_launch(patched_launch());
    server.start_again();
    let client = server.client();
    let (_, refusal) = certificate(&client, "one");
    assert_eq!(refusal["code"], "unsupported", "{refusal}");
    let detail = refusal["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("needs level 2") && detail.contains("chancery raise fleet"), "{detail}");
    assert!(!types(&client).contains("certificate"), "an older build cannot read its type");

    // Until the raise, an older build has the fleet too.
    server.kill();
    server.set_launch(StartConditions::default());
    server.start_again();
    let err = String::from_utf8(server.run(&["raise", "fleet", "--to", "2"]).stderr).expect("text");
    assert!(err.contains("the build of the leader knows levels up to 1"), "{err}");
    let (_, refusal) = certificate(&server.client(), "older");
    assert_eq!(refusal["code"], "invalid", "{refusal}");
    server.kill();

    server.set_launch(patched_launch());
    server.start_again();
    // Another address led before: a journal in files has no standbys.
    let raised = patched_command(&server, &["raise", "fleet"]);
    assert_eq!(String::from_utf8_lossy(&raised.stdout), "fleet raised\n", "{raised:?}");
    let again = patched_command(&server, &["raise", "fleet"]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("unchanged"), "{again:?}");
    // The refusal was not recorded, so that a repeat is decided.
    let (status, verdict) = certificate(&server.client(), "one");
    assert_eq!((status, &verdict["verdict"]), (201, &json!("accepted")), "{verdict}");
    server.kill();
    server.start_again();
    assert_eq!(certificate(&server.client(), "two").1["verdict"], "unchanged");
    server.kill();

    server.set_launch(StartConditions::default());
    let ended = server.try_start_again().expect_err("the older build stops");
    let expected = "the fleet is raised to level 2, and this build knows levels up to 1";
    assert!(ended.output.contains(expected), "{}", ended.output);
}

#[test]
fn two_builds_share_a_fleet_on_kafka_until_its_level_is_raised() {
    let mut standbys = StandbyServers::start(shared(1), "levels", 2, &[]);
    // The second server gets the newer build, as a rolling upgrade does it.
    let newer = 1 - standbys.decider();
    let older = 1 - newer;
    standbys.servers[newer].kill();
    standbys.servers[newer].set_launch(patched_launch());
    standbys.servers[newer].start_again();
    let mut leader = older;
    for name in ["a", "b", "c"] {
        let spec = json!({"type": "T", "score": 1});
        standbys.servers[leader].client().must("capability.apply", &json!({"name": name, "spec": spec}));
        standbys.servers[leader].kill();
        let other = 1 - leader;
        until("the other server leads", || (standbys.decides() == Some(other)).then_some(()));
        standbys.servers[leader].start_again();
        leader = other;
    }
    assert_eq!(leader, newer);
    let server = &standbys.servers[newer];
    let address = standbys.servers[older].url().trim_start_matches("http://").to_owned();
    assert_eq!(certificate(&server.client(), "early").1["code"], "unsupported");
    let err = refused(server, &["raise", "fleet"]);
    assert!(err.contains(&address) && err.contains("does not know level 2"), "{err}");
    assert!(standbys.servers[older].is_up());

    let raised = patched_command(server, &["raise", "fleet", "--without", &address]);
    assert_eq!(String::from_utf8_lossy(&raised.stdout), "fleet raised\n", "{raised:?}");
    assert_eq!(certificate(&server.client(), "early").0, 201);
    let expected = "the fleet is raised to level 2, and this build knows levels up to 1";
    until("the older server stops", || standbys.servers[older].ended());
    assert!(standbys.servers[older].log().contains(expected), "{}", standbys.servers[older].log());

    // With the newer build it takes over.
    let server = &mut standbys.servers[older];
    server.set_launch(patched_launch());
    server.start_again();
    standbys.servers[newer].kill();
    until("the upgraded server leads", || (standbys.decides() == Some(older)).then_some(()));
    assert_eq!(certificate(&standbys.servers[older].client(), "late").1["verdict"], "unchanged");
}
