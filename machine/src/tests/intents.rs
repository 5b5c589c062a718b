//! Rules of every intent: expected versions, idempotency keys and their window.

use std::time::Duration;

use chancery_events::expected_version::ExpectedVersion;
use chancery_events::refusal::RefusalCode;
use serde_json::json;

use crate::context::{DecisionContext, LevelLimits};
use crate::decide::{IdempotencyCheck, decide, evolve, repeat, verdict};
use crate::meta::FactPosition;
use crate::testing::{TestFleet, intent};

fn context(world: &TestFleet) -> DecisionContext {
    DecisionContext {
        now: world.now,
        wall: world.now,
        next: world.fleet.head().plus(1),
        lineage: world.fleet.lineages().current,
        actor: None,
        replicas: world.replicas,
        levels: LevelLimits::ALONE,
    }
}

#[test]
fn an_expected_version_that_is_not_the_subject_s_is_refused_with_the_version() {
    let mut world = TestFleet::with_nodes(1);
    let version = world.fleet.nodes().get("node-1").expect("the node").meta.version;
    let evict = intent("node.set_state", &json!({"name": "node-1", "state": "evicted"}));
    for (expect, holds) in [(version + 1, false), (version - 1, false), (0, false), (version, true)] {
        let mut request = world.request(evict.clone());
        request.expect = Some(ExpectedVersion::Exactly(expect));
        match world.ask_request(&request) {
            Ok(_) => assert!(holds, "version {expect}"),
            Err(refusal) => {
                assert_eq!(refusal.code, RefusalCode::VersionConflict);
                assert!(!holds && refusal.detail.contains(&version.to_string()), "{refusal:?}");
            }
        }
    }
}

#[test]
fn an_expected_version_of_zero_means_that_it_must_not_exist() {
    let mut world = TestFleet::new();
    let mut request =
        world.request(intent("cluster.apply", &json!({"name": "c", "spec": {"runtime": "process"}})));
    request.expect = Some(ExpectedVersion::ABSENT);
    world.ask_request(&request).expect("it does not exist");
    request.expect = Some(ExpectedVersion::ABSENT);
    assert_eq!(world.ask_request(&request).expect_err("now it does").code, RefusalCode::VersionConflict);
}

#[test]
fn any_expected_version_means_that_it_must_exist() {
    let mut world = TestFleet::new();
    let mut request =
        world.request(intent("cluster.apply", &json!({"name": "c", "spec": {"runtime": "process"}})));
    request.expect = Some(ExpectedVersion::Any);
    let refusal = world.ask_request(&request).expect_err("it does not exist");
    assert_eq!(refusal.code, RefusalCode::VersionConflict);
    request.expect = None;
    world.ask_request(&request).expect("it is created");
    request.expect = Some(ExpectedVersion::Any);
    world.ask_request(&request).expect("it exists");
}

#[test]
fn a_repeat_is_known_and_the_same_key_with_another_body_is_refused() {
    let mut world = TestFleet::new();
    let request = world.request(intent("cluster.delete", &json!({"name": "c"})));
    world.ask_request(&request).expect_err("there is no such cluster");
    let position = world.fleet.head();
    match repeat(world.fleet.keys(), &request) {
        IdempotencyCheck::Repeat(known) => {
            assert_eq!(known.verdict, position);
            assert_eq!(known.reply.as_ref().expect_err("refused").code, RefusalCode::NotFound);
        }
        other => panic!("{other:?}"),
    }
    let mut other = request.clone();
    other.intent = intent("cluster.delete", &json!({"name": "d"}));
    assert!(
        matches!(repeat(world.fleet.keys(), &other), IdempotencyCheck::KeyReused(r) if r.code == RefusalCode::IdempotencyKeyReused)
    );
    other.actor = "bob".parse().expect("a name");
    assert!(
        matches!(repeat(world.fleet.keys(), &other), IdempotencyCheck::New),
        "another actor's key is another key"
    );
}

#[test]
fn an_intent_from_the_future_is_refused() {
    let mut world = TestFleet::new();
    for (ahead, holds) in [(4 * 60, true), (6 * 60, false)] {
        let mut request =
            world.request(intent("cluster.apply", &json!({"name": "c", "spec": {"runtime": "process"}})));
        request.time = Some(world.now + Duration::from_secs(ahead));
        match world.ask_request(&request) {
            Ok(_) => assert!(holds),
            Err(refusal) => assert!(!holds && refusal.code == RefusalCode::TimestampInFuture),
        }
    }
}

#[test]
fn an_intent_that_is_dated_by_a_clock_that_journal_time_has_not_reached_is_decided() {
    let mut world = TestFleet::new();
    let mut request =
        world.request(intent("cluster.apply", &json!({"name": "c", "spec": {"runtime": "process"}})));
    let hour = Duration::from_hours(1);
    request.time = Some(world.now + hour);
    for (wall, holds) in [(world.now, false), (world.now + hour, true)] {
        let context = DecisionContext { wall, ..context(&world) };
        assert_eq!(decide(&world.fleet, &request, &context).is_ok(), holds, "by a clock at {wall}");
    }
}

/// Folds `count` intents of the actor, dated `ahead` seconds in the future, as if each had been accepted.
fn flood(world: &mut TestFleet, actor: &str, count: u64, ahead: u64) {
    let mut request = world.request(intent("cluster.delete", &json!({"name": "c"})));
    request.actor = actor.parse().expect("a name");
    request.time = Some(world.now + Duration::from_secs(ahead));
    let context = context(world);
    for n in 0..count {
        request.id = format!("flood-{n}").parse().expect("a name");
        let fact = verdict(&world.fleet, &request, &Ok(vec![]), &context);
        let position = world.fleet.head().plus(1);
        let at =
            FactPosition { position, time: world.now, term: world.fleet.term(), lineage: context.lineage };
        evolve(&mut world.fleet, &fact, at).expect("a verdict folds");
        world.fleet.settle();
    }
}

#[test]
fn a_flooding_producer_expires_its_own_intents_with_a_time_and_those_of_no_other_producer() {
    let mut world = TestFleet::new();
    let ask = |world: &mut TestFleet, actor: &str, behind: u64| {
        let mut request = world.request(intent("cluster.delete", &json!({"name": "c"})));
        request.actor = actor.parse().expect("a name");
        request.time = Some(world.now.before(Duration::from_secs(behind)));
        let refusal = world.ask_request(&request).expect_err("there is no cluster");
        (refusal.code, refusal.detail)
    };
    ask(&mut world, "ann", 0);
    flood(&mut world, "mob", 252_000, 299);
    for (actor, behind) in [("ann", 0), ("ann", 60), ("bob", 0), ("bob", 3600)] {
        assert_eq!(ask(&mut world, actor, behind).0, RefusalCode::NotFound, "{actor}, {behind} s old");
    }
    let (code, detail) = ask(&mut world, "mob", 0);
    assert_eq!(code, RefusalCode::IntentExpired);
    assert!(detail.contains("in 300 s"), "{detail}");
    world.now = world.now + Duration::from_mins(5);
    assert_eq!(ask(&mut world, "mob", 0).0, RefusalCode::NotFound);
}
