//! Reports: stale ones change nothing, ends need proof, failures are retried and given up.

use chancery_events::fact::{CommandEffect, Fact};
use chancery_events::observation::{
    IncarnationExit, IncarnationReport, IncarnationReported, ObservedState, OrphanReported, ProcessInfo,
    ProcessStatus, RetryClass, SessionEnd, SessionEnded, SessionRequested,
};
use chancery_events::resources::Resources;
use chancery_events::spec::ClusterRuntime;
use serde_json::json;

use crate::capacity_index::NodeReservations;
use crate::state::IncarnationState;
use crate::testing::{TestFleet, crashed, ended, failed, hello, name, process, ready};

fn creating() -> TestFleet {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.deploy("d1", 1);
    world.fact_types();
    world
}

fn state(world: &TestFleet) -> &'static str {
    let incarnation = *world.fleet.incarnations().sorted().last().expect("an incarnation");
    match incarnation.state {
        IncarnationState::Reserved => "reserved",
        IncarnationState::Creating => "creating",
        IncarnationState::Starting => "starting",
        IncarnationState::Running => "running",
        IncarnationState::Updating(_) => "updating",
        IncarnationState::Stopping(_) => "stopping",
        IncarnationState::Ended(ref end) => match **end {
            chancery_events::fact::IncarnationEnd::PoweredOff => "powered_off",
            chancery_events::fact::IncarnationEnd::Destroyed => "destroyed",
            chancery_events::fact::IncarnationEnd::Failed { .. } => "failed",
            chancery_events::fact::IncarnationEnd::Unwound { .. } => "unwound",
        },
    }
}

/// Creates a world with an incarnation in this state.
fn at(wanted: &str) -> TestFleet {
    let mut world = if wanted == "reserved" {
        let mut world = TestFleet::with_nodes(1);
        world.plan("manual");
        world.deploy("d1", 1);
        world
    } else {
        creating()
    };
    let id = world.fleet.incarnations().sorted().last().expect("one").id;
    let ensured = ObservedState::Started { processes: vec![process(ProcessStatus::Starting)] };
    let way: Vec<ObservedState> = match wanted {
        "reserved" | "creating" => vec![],
        "starting" => vec![ensured],
        "running" | "stopping" => vec![ready()],
        "destroyed" => vec![ready(), ended(IncarnationExit::Clean)],
        "powered_off" => vec![ready(), ended(IncarnationExit::PoweredOff)],
        "failed" => vec![ready(), crashed()],
        "unwound" => vec![ObservedState::Gone],
        other => panic!("{other}"),
    };
    for observed in way {
        world.report(id, observed);
    }
    if wanted == "stopping" {
        let replica = world.replica();
        world.must("replica.stop", &json!({"name": replica}));
    }
    assert_eq!(state(&world), wanted);
    world
}

#[test]
fn every_state_answers_every_report() {
    let not_ready = || ObservedState::NotReady { processes: vec![process(ProcessStatus::Starting)] };
    let ensured = || ObservedState::Started { processes: vec![process(ProcessStatus::Starting)] };
    // A row per state: the state after ensured, ready, not ready, clean end, shutdown of the guest, failed end, gone,
    // permanent failure.
    let [up, off] = ["running", "powered_off"];
    let table = [
        ("reserved", ["reserved"; 8]),
        ("creating", ["starting", up, "starting", "destroyed", off, "failed", "unwound", "stopping"]),
        ("starting", ["starting", up, "starting", "destroyed", off, "failed", "failed", "starting"]),
        ("running", [up, up, up, "destroyed", off, "failed", "failed", up]),
        (
            "stopping",
            [
                "stopping",
                "stopping",
                "stopping",
                "destroyed",
                "destroyed",
                "destroyed",
                "destroyed",
                "stopping",
            ],
        ),
        ("destroyed", ["destroyed"; 8]),
        ("powered_off", ["powered_off"; 8]),
        ("failed", ["failed"; 8]),
        ("unwound", ["unwound"; 8]),
    ];
    for (from, row) in table {
        let reports = [
            ensured(),
            ready(),
            not_ready(),
            ended(IncarnationExit::Clean),
            ended(IncarnationExit::PoweredOff),
            crashed(),
            ObservedState::Gone,
            failed(RetryClass::Permanent),
        ];
        for (observed, expected) in reports.into_iter().zip(row) {
            let mut world = at(from);
            let id = world.fleet.incarnations().sorted().last().expect("one").id;
            world.report(id, observed.clone());
            assert_eq!(state(&world), expected, "{from}, {observed:?}");
        }
    }
}

#[test]
fn an_end_frees_exactly_what_was_held() {
    for observed in [ended(IncarnationExit::Clean), crashed(), ObservedState::Gone] {
        let mut world = at("running");
        let id = world.commanded()[0];
        // Another one on the node, so that the remaining capacity shows its reservation and not an empty
        // node.
        let resources = json!({"cpu": 1700, "memory": 3_u64 << 30});
        let payload = json!({"name": "app", "resources": resources, "run": {"argv": ["app"]}});
        let approval =
            json!({"create": "automatic", "start": "manual", "stop": "manual", "delete": "manual"});
        let spec = json!({"namespace": "ns", "service": "db", "payloads": [payload], "approval": approval});
        world.must("plan.apply", &json!({"name": "db", "spec": spec}));
        world.must("deployment.create", &json!({"plan": "db", "name": "d1", "spec": {"count": 1}}));
        world.run();
        let other = *world.commanded().last().expect("it was commanded");
        world.report(other, ready());
        let held = |world: &TestFleet| world.fleet.index().places.held(&name("node-1")).clone();
        assert_eq!(held(&world).resources, Resources { cpu: 2700, memory: 4 << 30, disk: 0 });
        world.report(id, observed);
        let left = held(&world);
        assert_eq!(left.resources, Resources { cpu: 1700, memory: 3 << 30, disk: 0 });
        assert_eq!(*left.incarnations, [("db".parse().unwrap(), other)]);
        world.report(other, ended(IncarnationExit::Clean));
        assert_eq!((held(&world), world.free_cpu()), (NodeReservations::default(), 4000));
    }
}

#[test]
fn a_report_of_an_older_revision_cannot_satisfy_a_newer_command() {
    let mut world = at("stopping");
    let id = world.commanded()[0];
    assert!(
        world.report_at(id, 1, ObservedState::Gone).is_empty(),
        "gone at the ensure proves nothing about the stop"
    );
    assert!(world.report_at(id, 1, failed(RetryClass::Permanent)).is_empty(), "nor does a failure of it");
    assert!(!world.report_at(id, 1, ended(IncarnationExit::Clean)).is_empty(), "a proved end is an end");
}

#[test]
fn what_was_seen_before_the_command_proves_nothing_about_it() {
    let mut world = creating();
    let id = world.commanded()[0];
    let early = ObservedState::NotReady { processes: vec![] };
    assert!(world.report_at(id, 0, early.clone()).is_empty() && state(&world) == "creating");
    assert!(world.report_at(id, 0, ready()).is_empty() && state(&world) == "creating");
    assert!(!world.report_at(id, 1, early).is_empty() && state(&world) == "starting");
}

#[test]
fn the_same_report_twice_changes_nothing_the_second_time() {
    let mut world = creating();
    let id = world.commanded()[0];
    assert_eq!(world.report(id, ready()).len(), 1);
    assert!(world.report(id, ready()).is_empty());
    assert_eq!(world.report(id, crashed()).len(), 1);
    assert!(world.report(id, crashed()).is_empty());
}

#[test]
fn a_report_of_an_executor_that_does_not_host_it_changes_nothing() {
    let mut world = creating();
    world.must("cluster.apply", &json!({"name": "far", "spec": {"runtime": "process"}}));
    world.see(&hello("far", "ex-2", 2).into());
    let session = world.fleet.clusters().get("far").and_then(|c| c.session).expect("a session");
    let incarnation = world.commanded()[0];
    let report = IncarnationReport { incarnation, revision: 1, observed: crashed() };
    assert!(world.see(&IncarnationReported { session, report }.into()).is_empty());
}

#[test]
fn a_lost_session_proves_nothing_and_another_executor_may_then_connect() {
    let mut world = at("running");
    let session = world.fleet.clusters().get("local").and_then(|c| c.session).expect("a session");
    let other = hello("local", "ex-2", 1);
    assert!(world.see(&other.clone().into()).is_empty(), "the store is in use");
    world.see(&SessionEnded { session, end: SessionEnd::Expired }.into());
    assert_eq!((state(&world), world.free_cpu()), ("running", 3000));
    assert!(world.see(&SessionEnded { session, end: SessionEnd::Expired }.into()).is_empty());
    assert_eq!(world.see(&other.into()).len(), 1);
    let wrong = SessionRequested { runtime: ClusterRuntime::Simulated, ..hello("local", "ex-2", 1) };
    assert!(world.see(&wrong.into()).is_empty());
}

/// Closes the session of `local`; then an executor with this store requests one. Returns whether it gets it.
fn taken_over_by(world: &mut TestFleet, scope: u64) -> bool {
    if let Some(session) = world.fleet.clusters().get("local").and_then(|c| c.session) {
        world.see(&SessionEnded { session, end: SessionEnd::Expired }.into());
    }
    world.see(&hello("local", "ex-1", scope).into()).len() == 1
}

#[test]
fn no_executor_without_the_store_can_report_what_happened_to_what_another_one_received() {
    for (state, left) in [
        ("reserved", false),
        ("creating", true),
        ("starting", true),
        ("running", true),
        ("stopping", true),
        ("destroyed", false),
    ] {
        let mut world = at(state);
        assert_eq!(!taken_over_by(&mut world, 2), left, "{state}");
        assert!(taken_over_by(&mut world, 1), "{state}: an executor over the old scope may always connect");
    }
}

#[test]
fn requests_while_no_executor_is_connected_are_for_the_next_one() {
    let mut world = at("destroyed");
    let session = world.fleet.clusters().get("local").and_then(|c| c.session).expect("a session");
    world.see(&SessionEnded { session, end: SessionEnd::Left }.into());
    world.deploy("d2", 1);
    world.approve_all();
    assert_eq!(world.commanded().len(), 1, "commanded, and not delivered yet");
    assert!(taken_over_by(&mut world, 2));
    assert!(!taken_over_by(&mut world, 1), "from now on it might exist");
}

#[test]
fn the_operators_declaration_frees_a_cluster_from_a_store_that_is_lost() {
    let mut world = at("running");
    assert!(!taken_over_by(&mut world, 2));
    world.must("node.set_state", &json!({"name": "node-1", "state": "expunged"}));
    world.run();
    assert!(taken_over_by(&mut world, 2));
}

#[test]
fn a_failed_command_is_retried_with_backoff_as_facts_and_then_abandoned() {
    let mut world = creating();
    let id = world.commanded()[0];
    for attempt in 1..5 {
        let facts = world.report(id, failed(RetryClass::Retryable));
        let [Fact::IncarnationCommandFailed(fact)] = &facts[..] else { panic!("{facts:?}") };
        assert_eq!((fact.attempt, fact.not_before.is_some()), (attempt, true));
        assert!(
            world.report(id, failed(RetryClass::Retryable)).is_empty(),
            "the same failure, reported again"
        );
        world.now = fact.not_before.expect("tried again");
    }
    world.report(id, failed(RetryClass::Retryable));
    assert_eq!((state(&world), world.deployment("d1").as_str()), ("stopping", "failed"));
    let asked = world.fleet.incarnations().get(&id).and_then(|i| i.last_effect);
    assert_eq!(asked, Some(CommandEffect::Stop), "a partial start is stopped");
    assert_eq!(world.free_cpu(), 3000, "it keeps its reservation until its end is proved");
    world.report(id, ObservedState::Gone);
    assert_eq!((state(&world), world.free_cpu()), ("unwound", 4000));
}

#[test]
fn a_start_that_takes_too_long_is_unwound_and_a_stop_that_does_becomes_a_kill() {
    let mut world = creating();
    world.wait(299);
    assert_eq!(state(&world), "creating");
    world.wait(1);
    assert_eq!((state(&world), world.deployment("d1").as_str()), ("stopping", "failed"));
    let id = world.commanded()[0];
    world.wait(15);
    let incarnation = world.fleet.incarnations().get(&id).expect("kept");
    assert_eq!(
        (incarnation.last_effect, incarnation.revision, incarnation.deadline),
        (Some(CommandEffect::Kill), 3, None)
    );
    world.wait(1_000_000);
    assert_eq!(state(&world), "stopping", "no deadline proves an end");
    world.report(id, ended(IncarnationExit::Clean));
    assert_eq!(state(&world), "failed", "as was recorded");
}

#[test]
fn a_stop_becomes_a_kill_five_seconds_after_the_time_of_the_plan() {
    for stop in [1, 10, 60] {
        let mut world = TestFleet::with_nodes(1);
        world.plan_with("automatic", &json!({"restart": "never", "timeouts": {"stop": stop * 1000}}));
        world.running("d1", 1);
        let id = world.commanded()[0];
        let replica = world.replica();
        world.must("replica.stop", &json!({"name": replica}));
        world.run();
        let asked = |world: &TestFleet| world.fleet.incarnations().get(&id).and_then(|i| i.last_effect);
        world.wait(stop + 4);
        assert_eq!(asked(&world), Some(CommandEffect::Stop), "{stop} s");
        world.wait(1);
        assert_eq!(asked(&world), Some(CommandEffect::Kill), "{stop} s");
    }
}

#[test]
fn a_replica_is_ready_only_while_all_its_processes_are_online() {
    let mut world = at("running");
    let id = world.commanded()[0];
    let two = |a, b| vec![process(a), ProcessInfo { index: 1, ..process(b) }];
    let cases = [
        (ObservedState::Ready { processes: two(ProcessStatus::Ready, ProcessStatus::Ready) }, true),
        (ObservedState::NotReady { processes: two(ProcessStatus::Ready, ProcessStatus::Starting) }, false),
        (ObservedState::Ready { processes: two(ProcessStatus::Ready, ProcessStatus::Ready) }, true),
    ];
    for (observed, healthy) in cases {
        assert_eq!(world.report(id, observed).len(), 1);
        let active = world.fleet.replicas().sorted()[0].active.clone().expect("active");
        assert_eq!(active.healthy, healthy);
    }
}

#[test]
fn an_object_is_removed_only_if_this_journal_issued_it_and_its_incarnation_ended() {
    let mut world = at("running");
    let session = world.fleet.clusters().get("local").and_then(|c| c.session).expect("a session");
    let live = world.commanded()[0];
    let judged = |world: &mut TestFleet, incarnation: chancery_events::id::IncarnationId| {
        let report = OrphanReported {
            session,
            object: incarnation.into(),
            revision: 2,
            seen: chancery_events::id::Position::ZERO,
        };
        world.see(&report.into()).first().map_or(String::new(), |fact| format!("{fact:?}"))
    };
    let foreign = chancery_events::id::Lineage::from_random(99);
    let issue = chancery_events::id::IncarnationId::issue;
    assert_eq!(judged(&mut world, live), "", "a desired object is not resolved");
    let lineage = world.fleet.lineages().current;
    let old = judged(&mut world, issue(lineage, chancery_events::id::Position::new(2)));
    assert!(old.contains("Remove") && old.contains("revision: 3"), "{old}");
    assert!(judged(&mut world, issue(foreign, chancery_events::id::Position::new(2))).contains("Leave"));
    let ahead = chancery_events::id::Position::new(1_000_000);
    assert!(judged(&mut world, issue(lineage, ahead)).contains("Leave"));
}
