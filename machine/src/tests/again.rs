//! Restarts by the plan's rule: when they happen, with which delay, and when they do not.

use chancery_events::observation::{IncarnationExit, ObservedState, RetryClass};
use chancery_events::spec::OperationKind;
use serde_json::{Value, json};

use crate::state::Replica;
use crate::testing::{TestFleet, crashed, ended, failed};

fn world(restart: &str) -> TestFleet {
    let mut world = TestFleet::with_nodes(2);
    world.plan_with("manual", &json!({"restart": restart, "restart_delay": 10_000}));
    world.running("d1", 1);
    world
}

fn replica(world: &TestFleet) -> Replica {
    (*world.fleet.replicas().sorted().first().expect("a replica")).clone()
}

fn run(world: &TestFleet) -> chancery_events::id::IncarnationId {
    replica(world).active.expect("it runs").incarnation
}

#[test]
fn each_rule_starts_what_it_should_and_nothing_else() {
    let table = [
        ("always", crashed(), true),
        ("always", ended(IncarnationExit::Clean), true),
        ("on_failure", crashed(), true),
        ("on_failure", ended(IncarnationExit::Clean), false),
        ("never", crashed(), false),
        ("never", ended(IncarnationExit::Clean), false),
    ];
    for (rule, end, again) in table {
        let mut world = world(rule);
        world.report(run(&world), end.clone());
        assert_eq!(!world.commanded().is_empty(), again, "{rule}, {end:?}");
        world.obey();
        let left = if again {
            "running"
        } else if end == crashed() {
            "failed"
        } else {
            "stopped"
        };
        assert_eq!(world.phases(), [left], "{rule}, {end:?}");
    }
    let mut world = TestFleet::with_nodes(1);
    world.plan_with("automatic", &json!({}));
    world.running("d1", 1);
    world.report(run(&world), crashed());
    world.obey();
    assert_eq!(world.phases(), ["running"], "a plan without the field restarts a failed replica");
}

#[test]
fn the_first_start_is_immediate_the_next_wait_twice_as_long_each_time_and_a_long_uptime_resets_the_delay() {
    let mut world = world("always");
    let mut last = world.now;
    for wait in [0, 10, 20, 40, 80, 160, 320, 320] {
        world.report(run(&world), crashed());
        let promised = replica(&world).next_restart.map(|again| again.not_before);
        let due = last + std::time::Duration::from_secs(wait);
        if wait > 0 {
            assert_eq!((promised, world.phases()), (Some(due), vec!["failed"]), "{wait} seconds");
            world.wait(wait - 1);
            assert_eq!(world.phases(), ["failed"], "{wait} seconds");
            world.wait(1);
        }
        last = world.now;
        world.obey();
        assert_eq!(world.phases(), ["running"], "{wait} seconds");
    }
    world.wait(320);
    world.report(run(&world), crashed());
    assert_eq!(world.phases(), ["starting"], "it was well for long enough");
}

#[test]
fn the_rule_is_named_by_the_fact_that_approves_and_starts_what_no_person_can() {
    let mut world = world("always");
    world.report(run(&world), crashed());
    let operation = world
        .fleet
        .operations()
        .sorted()
        .last()
        .map(|o| (o.kind, o.requested_by.as_deref().cloned(), o.approved.clone()));
    let (kind, by, approved) = operation.expect("an operation");
    let rule = "plan/web/restart".to_owned();
    assert_eq!(
        (kind, by),
        (OperationKind::Start, Some(chancery_events::fact::Requester::Rule(rule.clone())))
    );
    assert_eq!(approved.map(|(by, _)| by), Some(chancery_events::fact::ApprovalActor::Rule(rule)));
}

#[test]
fn a_stop_is_never_undone_by_the_rule_whenever_it_is_requested() {
    for moment in ["before the end", "after the end", "while it waits", "while it starts"] {
        let mut world = world("always");
        let name = world.replica();
        let stop = |world: &mut TestFleet| {
            world.must("replica.stop", &json!({"name": name}));
            world.run();
        };
        let id = run(&world);
        match moment {
            "before the end" => {
                stop(&mut world);
                world.approve_all();
                world.report(id, crashed());
            }
            "after the end" => {
                stop(&mut world);
                world.report(id, crashed());
                assert!(world.commanded().is_empty(), "a stop waits: nothing is started meanwhile");
                world.approve_all();
            }
            "while it waits" => {
                for _ in 0..2 {
                    world.report(run(&world), crashed());
                    if replica(&world).next_restart.is_none() {
                        world.obey();
                    }
                }
                assert!(replica(&world).next_restart.is_some());
                stop(&mut world);
                world.approve_all();
            }
            _ => {
                world.report(id, crashed());
                stop(&mut world);
                world.approve_all();
                world.obey();
            }
        }
        assert_eq!(world.phases(), ["stopped"], "{moment}");
        world.wait(100_000);
        assert_eq!((world.phases(), world.free_cpu()), (vec!["stopped"], 8000), "{moment}");
    }
}

#[test]
fn a_stop_that_is_rejected_lets_the_rule_continue() {
    let mut world = world("always");
    let name = world.replica();
    world.must("replica.stop", &json!({"name": name}));
    world.run();
    world.report(run(&world), crashed());
    assert_eq!(world.phases(), ["failed"]);
    let stop = world.pending()[0].id;
    world.reject(stop).expect("rejected");
    world.obey();
    assert_eq!(world.phases(), ["running"]);
}

#[test]
fn what_never_started_for_its_requester_stays_failed_and_a_start_by_the_rule_is_retried() {
    let mut world = TestFleet::with_nodes(1);
    world.plan_with("automatic", &json!({"restart": "always"}));
    world.deploy("d1", 1);
    let id = world.commanded()[0];
    world.report(id, failed(RetryClass::Permanent));
    world.report(id, ObservedState::Gone);
    world.wait(100_000);
    assert_eq!(world.phases(), ["failed"]);

    let mut world = self::world("always");
    world.report(run(&world), crashed());
    let id = run(&world);
    world.report(id, failed(RetryClass::Permanent));
    world.report(id, ObservedState::Gone);
    assert!(replica(&world).next_restart.is_some());
    world.wait(10);
    world.obey();
    assert_eq!(world.phases(), ["running"]);
}

#[test]
fn incarnations_of_an_expunged_node_run_elsewhere() {
    let mut world = world("on_failure");
    let node = replica(&world).active.expect("it runs").node;
    world.must("node.set_state", &json!({"name": node, "state": "expunged"}));
    world.run();
    world.obey();
    let now = replica(&world).active.expect("it runs").node;
    assert!(world.phases() == ["running"] && now != node, "{now}");
}

#[test]
fn what_no_executor_has_seen_end_is_not_started_again() {
    let mut world = world("always");
    let session = world.fleet.clusters().get("local").and_then(|c| c.session).expect("a session");
    let end = chancery_events::observation::SessionEnd::Expired;
    world.see(&chancery_events::observation::SessionEnded { session, end }.into());
    world.wait(100_000);
    assert_eq!((world.phases(), world.kinds()), (vec!["running"], vec![]));
}

#[test]
fn a_start_requested_during_the_restart_delay_is_immediate_and_resets_the_count() {
    let mut world = world("always");
    world.report(run(&world), crashed());
    world.obey();
    world.report(run(&world), crashed());
    assert_eq!(world.phases(), ["failed"]);
    let name: Value = json!({"name": world.replica()});
    world.must("replica.start", &name);
    world.run();
    world.approve_all();
    world.obey();
    assert_eq!(world.phases(), ["running"]);
    world.report(run(&world), crashed());
    assert_eq!(world.phases(), ["starting"], "the first of a new row");
}
