//! Real program with a wall clock that is years ahead: at its start, and while it runs.

use std::os::unix::fs::PermissionsExt as _;

use chancery_tests::clock::library;
use chancery_tests::{ServerProcess, until};
use serde_json::{Value, json};

/// Offset of ten years in seconds.
const AHEAD: &str = "+315576000";

/// Server under libfaketime, and the file that sets the offset of its clock.
fn server() -> (ServerProcess, std::path::PathBuf) {
    let library = library().expect("libfaketime, which tests/run installs");
    let mut server = ServerProcess::new();
    let clock = server.directory().join("clock");
    std::fs::write(&clock, "+0").expect("a file");
    server.set("LD_PRELOAD", library.to_str().expect("text"));
    server.set("FAKETIME_TIMESTAMP_FILE", clock.to_str().expect("text"));
    server.set("FAKETIME_NO_CACHE", "1");
    server.set("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    // A fake report of clock synchronisation, independent of this machine.
    let bin = server.directory().join("bin");
    std::fs::create_dir(&bin).expect("a directory");
    report_synchronised(&server, "no");
    let path = std::env::var("PATH").unwrap_or_default();
    server.set("PATH", &format!("{}:{path}", bin.display()));
    (server, clock)
}

fn report_synchronised(server: &ServerProcess, word: &str) {
    let program = server.directory().join("bin/timedatectl");
    std::fs::write(&program, format!("#!/bin/sh\necho {word}\n")).expect("a file");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("its mode");
}

fn capability(server: &ServerProcess, name: &str) -> u64 {
    server.client().must("capability.apply", &json!({"name": name, "spec": {"type": "T", "score": 1}}))
}

/// Sends an intent that is dated now by this machine's clock. Returns the answer.
fn ask_dated(server: &ServerProcess, id: &str) -> Value {
    let now = chancery_decider::wall_clock::now().to_string();
    let data = json!({"name": "dated", "spec": {"type": "T", "score": 1}});
    let event = json!({
        "specversion": "1.0", "id": id, "source": "tests", "type": "dev.chancery.capability.apply.v1", "actor": "ann",
        "time": now, "data": data,
    });
    let headers = [("content-type", "application/cloudevents+json")];
    let answer =
        server.client().send("POST", "/v1/fleets/default/intents", &headers, event.to_string().as_bytes());
    answer.json()
}

/// Sends a dated intent that must get a verdict. Returns its position.
fn dated(server: &ServerProcess, id: &str) -> u64 {
    let answer = ask_dated(server, id);
    assert!(answer["verdict"].is_string(), "{answer}");
    answer["position"].as_u64().expect("a position")
}

/// Year of the last event.
fn year(server: &ServerProcess) -> i32 {
    let events = server.cli(&["events", "-o", "jsonl"]);
    let last: Value = serde_json::from_str(events.lines().last().expect("events")).expect("JSON");
    last["time"].as_str().expect("a time")[..4].parse().expect("a year")
}

#[test]
fn a_server_whose_clock_is_years_ahead_records_nothing_until_it_is_set_accepted_or_synchronised() {
    let (mut server, clock) = server();
    server.start_again();
    capability(&server, "a");
    let now = year(&server);
    server.stop();
    std::fs::write(&clock, AHEAD).expect("a file");
    let ended = server.try_start_again().expect_err("it does not decide");
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        ended.output.contains("--accept-clock") && ended.output.contains("clock.max_gap"),
        "{}",
        ended.output
    );
    std::fs::write(&clock, "+0").expect("a file");
    server.start_again();
    assert_eq!(year(&server), now, "nothing was recorded years ahead");
    server.stop();
    report_synchronised(&server, "yes");
    std::fs::write(&clock, AHEAD).expect("a file");
    server.start_again();
    capability(&server, "b");
    assert!(year(&server) >= now + 9, "a synchronised clock is followed");
    server.stop();
    // Events of the wrong year are recorded. With the right clock the fleet continues: intents that are dated
    // now get one verdict.
    report_synchronised(&server, "no");
    std::fs::write(&clock, "+0").expect("a file");
    server.start_again();
    let first = dated(&server, "one");
    assert_eq!(dated(&server, "one"), first, "a repeat gets the first verdict");
    assert!(dated(&server, "two") > first);
    assert!(year(&server) >= now + 9, "the journal's time does not go back");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_clock_that_jumps_years_ahead_while_a_server_decides_is_not_followed_and_readyz_reports_it() {
    let (mut server, clock) = server();
    server.start_again();
    capability(&server, "a");
    let now = year(&server);
    std::fs::write(&clock, AHEAD).expect("a file");
    until("readyz reports that the clock jumped", || {
        let _ = capability(&server, "b");
        (server.client().get("/readyz").json()["code"] == "clock_ahead").then_some(())
    });
    assert_eq!(year(&server), now);
    std::fs::write(&clock, "+0").expect("a file");
    until("readyz reports that the clock is back", || {
        let _ = capability(&server, "c");
        (server.client().get("/readyz").status == 200).then_some(())
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn intents_dated_by_a_corrected_late_clock_are_decided_immediately() {
    let (mut server, clock) = server();
    // As after the start of a machine without a battery-backed clock, or after a suspend.
    std::fs::write(&clock, "-3600").expect("a file");
    server.start_again();
    assert_eq!(ask_dated(&server, "early")["code"], "timestamp_in_future", "by a clock that is an hour late");
    std::fs::write(&clock, "+0").expect("a file");
    let first = dated(&server, "one");
    assert_eq!(dated(&server, "one"), first, "a repeat gets the first verdict");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_server_to_which_nothing_happens_records_the_time() {
    let mut server = ServerProcess::new();
    server.set("CHANCERY_CLOCK_MAX_GAP", "4s");
    server.start_again();
    let recorded = || server.cli(&["events", "-o", "jsonl"]).matches("dev.chancery.time.recorded.v1").count();
    until("more time has passed without another event than a start allows", || {
        (recorded() > 4).then_some(())
    });
    assert_eq!(server.stop(), Some(0));
}
