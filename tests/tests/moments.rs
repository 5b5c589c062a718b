//! Reads at a moment: the answers of a live service, with their positions, compared with later answers at the
//! same positions.

use chancery_tests::fault_campaigns::CampaignKind;
use chancery_tests::kafka::shared;
use chancery_tests::past::answers::LiveAnswers;
use chancery_tests::past::in_fleet;
use chancery_tests::sim::RandomSource;
use chancery_tests::{JournalBackend, ServerProcess, StandbyServers, until};
use serde_json::{Value, json};

/// Plays `tests/reliability past` with few intents.
#[test]
fn as_of_returns_the_bytes_that_were_read_at_the_time_whatever_was_lost_since() {
    let (tally, ran) = CampaignKind::Past.run(JournalBackend::Embedded, 400, 1);
    println!("{tally:?}");
    ran.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!((tally.rounds, tally.lost, tally.decided_twice, tally.violations), (400, 0, 0, 0));
    assert!(tally.checks.values().all(|count| *count > 0), "{tally:?}");
}

#[test]
fn as_of_reads_are_answered_by_a_standby_on_kafka() {
    let standbys = StandbyServers::start(shared(1), "as-of", 2, &[]);
    let decider = standbys.decider();
    let (leader, standby) = (standbys.servers[decider].client(), standbys.servers[1 - decider].client());
    let answers = LiveAnswers::default();
    for score in 0..40 {
        for name in ["c", &format!("c-{score}")] {
            leader.must("capability.apply", &json!({"name": name, "spec": {"type": "T", "score": score}}));
        }
        for path in ["capabilities", "capabilities?limit=3", "capabilities/c", "capabilities/c/history"] {
            answers.note(&leader, path);
        }
    }
    let mut random = RandomSource::new(1);
    let answers = answers.sample(usize::MAX, &mut random);
    assert!(answers.len() >= 30, "only {} answers were noted", answers.len());
    until("the standby has the records", || {
        (standby.get(&in_fleet("capabilities/c")).position >= answers.last()).then_some(())
    });
    answers.compare(&standby, &mut random);
    answers.compare(&leader, &mut random);
}

#[test]
fn as_of_is_understood_by_get_and_describe() {
    let server = ServerProcess::start();
    let client = server.client();
    let apply = |score: u64| {
        client.must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": score}}))
    };
    let first = apply(1);
    apply(2);
    // The verdict's position shows its effect.
    let row = |moment: &str| -> Value {
        let text = server.cli(&["get", "capability/c", "--as-of", moment, "-o", "json"]);
        serde_json::from_str(&text).expect("JSON")
    };
    assert_eq!(row(&first.to_string())["score"], 1);
    let time = row(&first.to_string())["updated_at"].as_str().expect("a time").to_owned();
    assert_eq!(row(&time)["score"], 1);
    let shown = server.run(&["describe", "capability/c", "--as-of", &time]);
    let (out, err) = (String::from_utf8_lossy(&shown.stdout), String::from_utf8_lossy(&shown.stderr));
    assert!(out.contains('1') && out.matches("capability").count() >= 1, "{out}");
    assert!(err.contains("as of position") && err.contains(&time), "{err}");
    let events = |out: &str| out.lines().filter(|line| line.contains("apply")).count();
    let now = server.cli(&["describe", "capability/c"]);
    assert!(events(&out) < events(&now), "{out}\n{now}");
    let difference = server.cli(&["diff", &first.to_string(), "--kind", "capability"]);
    let words: Vec<_> = difference.lines().nth(1).expect("a change").split_whitespace().collect();
    assert_eq!(words, ["capability/c", "changed", "score", "1", "2"], "{difference}");
    let positions = |args: &[&str]| {
        let text = server.cli(&[&["history", "capability/c", "-o", "jsonl"], args].concat());
        let id = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["id"].clone();
        text.lines().map(id).collect::<Vec<_>>()
    };
    let (all, then) = (positions(&[]), positions(&["--as-of", &time]));
    assert!(!then.is_empty() && then.len() < all.len() && all.starts_with(&then), "{then:?} of {all:?}");

    let late = server.run(&["get", "capabilities", "--as-of", "2100-01-01T00:00:00Z"]);
    let err = String::from_utf8_lossy(&late.stderr);
    // The first record may have several events.
    let start = client.get(&in_fleet("nodes?as_of=1")).position.expect("a position");
    let range = format!("reaches from position {start} at ");
    assert!(late.status.code() == Some(2) && err.contains(&range), "{err}");
    let wrong = server.run(&["get", "capabilities", "--as-of", "yesterday"]);
    assert_eq!(wrong.status.code(), Some(2));
}

/// Plays `tests/reliability moments` for a few seconds.
#[test]
fn clients_of_random_moments_get_answers_or_busy_and_leave_no_fold() {
    let (tally, ran) = CampaignKind::Moments.run(JournalBackend::Embedded, 3, 1);
    println!("{tally:?}");
    ran.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!((tally.rounds, tally.violations), (3, 0));
}
