//! What holds for every intent: expected versions, idempotency keys and their window.

use std::time::Duration;

use chancery_events::refusal::Code;
use serde_json::json;

use crate::decide::{Repeat, evolve, repeat, verdict};
use crate::meta::At;
use crate::testing::{World, intent};

#[test]
fn an_expected_version_that_is_not_the_subject_s_is_refused_with_the_version() {
    let mut world = World::with_nodes(1);
    let version = world.fleet.nodes().get("node-1").expect("the node").meta.version;
    let evict = intent("node.set_state", &json!({"name": "node-1", "state": "evicted"}));
    for (expect, holds) in [(version + 1, false), (version - 1, false), (0, false), (version, true)] {
        let mut request = world.request(evict.clone());
        request.expect = Some(expect);
        match world.ask_request(&request) {
            Ok(_) => assert!(holds, "version {expect}"),
            Err(refusal) => {
                assert_eq!(refusal.code, Code::VersionConflict);
                assert!(!holds && refusal.detail.contains(&version.to_string()), "{refusal:?}");
            }
        }
    }
}

#[test]
fn an_expected_version_of_zero_means_that_it_must_not_exist() {
    let mut world = World::new();
    let mut request =
        world.request(intent("cluster.apply", &json!({"name": "c", "spec": {"runtime": "process"}})));
    request.expect = Some(0);
    world.ask_request(&request).expect("it does not exist");
    request.expect = Some(0);
    assert_eq!(world.ask_request(&request).expect_err("now it does").code, Code::VersionConflict);
}

#[test]
fn a_repeat_is_known_and_the_same_key_with_another_body_is_refused() {
    let mut world = World::new();
    let request = world.request(intent("cluster.delete", &json!({"name": "c"})));
    let decided = world.ask_request(&request);
    let context = crate::context::Context {
        now: world.now,
        next: world.fleet.head().plus(1),
        lineage: world.fleet.lineages().current,
        actor: None,
        replicas: world.replicas,
    };
    let fact = verdict(&world.fleet, &request, &decided, &context);
    let position = world.fleet.head().plus(1);
    let at = At { position, time: world.now, term: world.fleet.term(), lineage: context.lineage };
    evolve(&mut world.fleet, &fact, at).expect("a verdict folds");
    match repeat(world.fleet.keys(), &request) {
        Repeat::Known(known) => {
            assert_eq!(known.verdict, position);
            assert_eq!(known.reply.as_ref().as_ref().expect_err("refused").code, Code::NotFound);
        }
        other => panic!("{other:?}"),
    }
    let mut other = request.clone();
    other.intent = intent("cluster.delete", &json!({"name": "d"}));
    assert!(matches!(repeat(world.fleet.keys(), &other), Repeat::Reused(r) if r.code == Code::KeyReused));
    other.actor = "bob".parse().expect("a name");
    assert!(matches!(repeat(world.fleet.keys(), &other), Repeat::New), "another actor's key is another key");
}

#[test]
fn an_intent_from_the_future_is_refused() {
    let mut world = World::new();
    for (ahead, holds) in [(4 * 60, true), (6 * 60, false)] {
        let mut request =
            world.request(intent("cluster.apply", &json!({"name": "c", "spec": {"runtime": "process"}})));
        request.time = Some(world.now + Duration::from_secs(ahead));
        match world.ask_request(&request) {
            Ok(_) => assert!(holds),
            Err(refusal) => assert!(!holds && refusal.code == Code::FromTheFuture),
        }
    }
}
