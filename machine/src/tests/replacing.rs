//! Updates, relocates and restarts: how one incarnation of a replica replaces another.

use chancery_events::fact::{CommandEffect, OperationEnd};
use chancery_events::id::IncarnationId;
use chancery_events::observation::{IncarnationExit, ObservedState, ProbeError, ProcessStatus, RetryClass};
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::OperationKind;
use serde_json::{Value, json};

use crate::state::{Incarnation, IncarnationState, OperationState, Replica};
use crate::testing::{TestFleet, crashed, ended, failed, hello, process, ready};

/// Creates a world with one replica that runs on one of `nodes` nodes.
fn world(nodes: usize, approval: &str, more: &Value) -> TestFleet {
    let mut world = TestFleet::with_nodes(nodes);
    world.plan_with(approval, more);
    world.running("d1", 1);
    world
}

fn never() -> Value {
    json!({"restart": "never"})
}

fn replica(world: &TestFleet) -> Replica {
    (*world.fleet.replicas().sorted().first().expect("a replica")).clone()
}

/// Returns the replica's live incarnations: the active one, and the secondary one.
fn runs(world: &TestFleet) -> (Option<IncarnationId>, Option<IncarnationId>) {
    let replica = replica(world);
    (replica.active.map(|run| run.incarnation), replica.secondary.map(|run| run.incarnation))
}

fn incarnation(world: &TestFleet, id: IncarnationId) -> &Incarnation {
    world.fleet.incarnations().get(&id).expect("an incarnation")
}

fn asked(world: &TestFleet, id: IncarnationId) -> Option<CommandEffect> {
    incarnation(world, id).last_effect
}

/// Deploys another version of the plan's payload.
fn update(world: &mut TestFleet, deployment: &str, count: u32) {
    let spec = json!({"count": count, "coordinates": {"app": {"version": deployment}}});
    world.must("deployment.create", &json!({"plan": "web", "name": deployment, "spec": spec}));
    world.run();
}

fn ask(world: &mut TestFleet, verb: &str) {
    let name = world.replica();
    world.must(&format!("replica.{verb}"), &json!({"name": name}));
    world.run();
}

/// Returns how the replica's last operation ended.
fn outcome(world: &TestFleet) -> String {
    let replica = replica(world);
    let last = replica.operations.last().expect("an operation");
    match &world.fleet.operations().get(last).expect("it is kept").state {
        OperationState::Ended(OperationEnd::Failed { reason }) => format!("failed: {reason}"),
        OperationState::Ended(end) => crate::operation::end_word(end).to_string(),
        state => crate::operation::state_word(state).to_string(),
    }
}

/// Action of a test on its world.
type ByHand = fn(&mut TestFleet, IncarnationId);

#[test]
fn a_relocate_waits_for_the_new_incarnation_before_it_stops_the_old_one() {
    let mut world = world(2, "manual", &never());
    let (old, _) = runs(&world);
    let (old, free) = (old.expect("it runs"), world.free_cpu());
    ask(&mut world, "relocate");
    assert_eq!(
        (world.kinds(), world.free_cpu()),
        (vec![OperationKind::Relocate], free - 1000),
        "capacity is reserved"
    );
    let new = runs(&world).1.expect("it has a place");
    assert_ne!(incarnation(&world, new).node, incarnation(&world, old).node);
    assert_eq!((asked(&world, new), world.phases()), (None, vec!["running"]), "it is not approved yet");
    world.approve_all();
    assert_eq!(
        (asked(&world, new), asked(&world, old)),
        (Some(CommandEffect::Ensure), Some(CommandEffect::Ensure))
    );
    world.report(new, ready());
    assert_eq!(runs(&world), (Some(new), Some(old)), "one fact makes it active");
    assert_eq!((asked(&world, old), outcome(&world).as_str()), (Some(CommandEffect::Stop), "running"));
    assert_eq!(world.phases(), ["running"]);
    world.report(old, ended(IncarnationExit::Clean));
    assert_eq!((runs(&world), outcome(&world).as_str()), ((Some(new), None), "succeeded"));
    assert_eq!(world.free_cpu(), free);
}

#[test]
fn a_replacement_that_hangs_before_the_old_incarnation_has_ended_fails_its_operation() {
    let mut world = world(2, "automatic", &never());
    let old = runs(&world).0.expect("it runs");
    ask(&mut world, "relocate");
    let new = runs(&world).1.expect("it starts");
    world.report(new, ready());
    assert_eq!(asked(&world, old), Some(CommandEffect::Stop));
    let status = ProcessStatus::Unresponsive { error: ProbeError::Timeout };
    world.report(new, ObservedState::NotReady { processes: vec![process(status)] });
    world.report(old, ended(IncarnationExit::Clean));
    assert_eq!(outcome(&world), "running", "the new one is being stopped");
    world.report(new, ended(IncarnationExit::Clean));
    assert_eq!(outcome(&world), "failed: it ended without a request");
}

#[test]
fn a_relocate_that_fails_keeps_the_old_incarnation_and_reserves_nothing() {
    let ends: [(&str, ByHand); 4] = [
        ("it cannot be started", |world, new| {
            world.report(new, failed(RetryClass::Permanent));
            world.report(new, ObservedState::Gone);
        }),
        ("it ends before it is ready", |world, new| {
            world.report(new, crashed());
        }),
        ("it is not ready in time", |world, new| {
            world.wait(301);
            world.report(new, ended(IncarnationExit::Clean));
        }),
        ("its node is gone", |world, new| {
            let node = incarnation(world, new).node.clone();
            world.must("node.set_state", &json!({"name": node, "state": "expunged"}));
            world.run();
        }),
    ];
    for (why, comes_to_nothing) in ends {
        let mut world = world(3, "automatic", &never());
        let old = runs(&world).0.expect("it runs");
        ask(&mut world, "relocate");
        let new = runs(&world).1.expect("it has a place");
        comes_to_nothing(&mut world, new);
        assert_eq!(runs(&world), (Some(old), None), "{why}");
        assert!(outcome(&world).starts_with("failed"), "{why}: {}", outcome(&world));
        assert_eq!(
            (asked(&world, old), world.phases()),
            (Some(CommandEffect::Ensure), vec!["running"]),
            "{why}"
        );
        let held = world.fleet.index().places.held(&incarnation(&world, old).node).resources.cpu;
        assert_eq!(held, 1000, "{why}");
        assert_eq!(world.fleet.incarnations().sorted().iter().filter(|i| i.is_live()).count(), 1, "{why}");
    }
}

#[test]
fn when_the_old_incarnation_fails_while_the_new_one_starts_the_new_one_becomes_active() {
    let mut world = world(2, "automatic", &json!({"restart": "always"}));
    let old = runs(&world).0.expect("it runs");
    ask(&mut world, "relocate");
    let new = runs(&world).1.expect("it has a place");
    world.report(old, crashed());
    assert_eq!(
        (runs(&world), world.phases()),
        ((Some(new), None), vec!["starting"]),
        "no third incarnation is started"
    );
    world.report(new, ready());
    assert_eq!((outcome(&world).as_str(), world.phases()), ("succeeded", vec!["running"]));
}

#[test]
fn what_waits_to_replace_an_incarnation_that_ends_automatically_is_cancelled() {
    for verb in ["relocate", "restart"] {
        let mut world = world(2, "manual", &never());
        let old = runs(&world).0.expect("it runs");
        ask(&mut world, verb);
        world.report(old, crashed());
        assert_eq!((outcome(&world).as_str(), runs(&world)), ("cancelled", (None, None)), "{verb}");
        assert_eq!((world.phases(), world.free_cpu()), (vec!["failed"], 8000), "{verb}");
    }
}

#[test]
fn a_restart_stops_first_and_starts_again_on_the_same_node_though_nothing_else_fits_there() {
    let mut world = TestFleet::with_nodes(1);
    let payload =
        json!({"name": "app", "resources": {"cpu": 3000, "memory": 1 << 30}, "run": {"argv": ["app"]}});
    world.plan_with("manual", &json!({"restart": "never", "payloads": [payload]}));
    world.running("d1", 1);
    let old = runs(&world).0.expect("it runs");
    ask(&mut world, "restart");
    let new = runs(&world).1.expect("it has a place");
    assert_eq!(world.free_cpu(), 1000, "both need the same, and one of them has it");
    world.approve_all();
    assert_eq!((asked(&world, old), asked(&world, new)), (Some(CommandEffect::Stop), None));
    assert_eq!(world.phases(), ["restarting"]);
    world.report(old, ended(IncarnationExit::Clean));
    assert_eq!(
        (asked(&world, new), world.free_cpu()),
        (Some(CommandEffect::Ensure), 1000),
        "in the same commit"
    );
    world.report(new, ready());
    assert_eq!((outcome(&world).as_str(), runs(&world)), ("succeeded", (Some(new), None)));
    assert_eq!(incarnation(&world, new).ties.shared_resources, None);
}

#[test]
fn a_restart_whose_new_incarnation_fails_leaves_a_failed_replica_that_can_be_started() {
    let mut world = world(1, "automatic", &never());
    let old = runs(&world).0.expect("it runs");
    ask(&mut world, "restart");
    world.report(old, ended(IncarnationExit::Clean));
    let new = runs(&world).0.expect("it is started");
    world.report(new, failed(RetryClass::Permanent));
    world.report(new, ObservedState::Gone);
    assert_eq!((world.phases(), world.free_cpu()), (vec!["failed"], 4000));
    ask(&mut world, "start");
    world.obey();
    assert_eq!(world.phases(), ["running"]);
}

#[test]
fn a_restart_of_what_does_not_run_starts_it() {
    let mut world = world(1, "automatic", &never());
    ask(&mut world, "stop");
    world.obey();
    ask(&mut world, "restart");
    world.obey();
    assert_eq!(world.phases(), ["running"]);
}

#[test]
fn an_update_alongside_needs_capacity_for_both_and_stop_first_does_not() {
    for (way, waits) in [("start_first", true), ("stop_first", false)] {
        let mut world = TestFleet::with_nodes(1);
        let payload =
            json!({"name": "app", "resources": {"cpu": 3000, "memory": 1 << 30}, "run": {"argv": ["app"]}});
        world.plan_with("automatic", &json!({"update_order": way, "payloads": [payload]}));
        world.running("d1", 1);
        update(&mut world, "d2", 1);
        let unschedulable = &world.fleet.plans().get("web").expect("the plan").unschedulable;
        assert_ne!(unschedulable.is_empty(), waits, "{way}: {unschedulable:?}");
        if waits {
            world.add_node("node-2", "d2");
            world.run();
        }
        world.obey();
        assert_eq!((world.deployment("d2").as_str(), world.phases()), ("completed", vec!["running"]));
        assert_eq!(replica(&world).deployment.as_str(), "d2");
    }
}

#[test]
fn an_update_that_fails_stop_first_is_followed_by_what_ran_before() {
    let mut world = world(1, "automatic", &json!({"update_order": "stop_first"}));
    let old = runs(&world).0.expect("it runs");
    update(&mut world, "d2", 1);
    world.report(old, ended(IncarnationExit::Clean));
    let new = runs(&world).0.expect("it is started");
    world.report(new, failed(RetryClass::Permanent));
    world.report(new, ObservedState::Gone);
    assert_eq!(world.deployment("d2"), "failed");
    world.obey();
    let replica = replica(&world);
    assert_eq!((world.phases(), replica.deployment.as_str()), (vec!["running"], "d1"), "by the plan's rule");
}

#[test]
fn no_other_replica_is_taken_down_before_what_an_update_stopped_and_failed_to_replace_runs_again() {
    for restart in ["always", "on_failure", "never"] {
        let mut world = world(2, "automatic", &json!({"update_order": "stop_first", "restart": restart}));
        world.deploy("d2", 2);
        world.obey();
        update(&mut world, "d3", 2);
        let old = world.asked().next().expect("one is stopped");
        world.report(old, ended(IncarnationExit::Clean));
        let new = world.asked().next().expect("it is started");
        world.report(new, failed(RetryClass::Permanent));
        world.report(new, ObservedState::Gone);
        assert_eq!(world.deployment("d3"), "failed");
        update(&mut world, "d4", 2);
        let down = world.phases().iter().filter(|phase| **phase != "running").count();
        assert_eq!(down, 1, "{restart}: without a rule it is the one that gets the next version first");
        world.obey();
        assert_eq!((world.deployment("d4").as_str(), world.phases()), ("completed", vec!["running"; 2]));
    }
}

/// Creates a world of four cores with a runtime that updates incarnations in place.
fn simulated(approval: &str) -> TestFleet {
    let mut world = TestFleet::new();
    world.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "simulated"}}));
    world.add_node("node-1", "d1");
    let mut hello = hello("local", "ex-1", 1);
    hello.runtime = chancery_events::spec::ClusterRuntime::Simulated;
    world.see(&hello.into());
    let payload =
        json!({"name": "app", "resources": {"cpu": 3000, "memory": 1 << 30}, "run": {"argv": ["app"]}});
    world.plan_with(approval, &json!({"payloads": [payload]}));
    world.running("d1", 1);
    world
}

#[test]
fn where_the_orchestrator_can_an_update_is_in_place_in_the_same_run() {
    let mut world = simulated("manual");
    let run = runs(&world).0.expect("it runs");
    update(&mut world, "d2", 1);
    assert_eq!(
        (world.kinds(), world.free_cpu()),
        (vec![OperationKind::Update], 1000),
        "it needs no reservation"
    );
    world.approve_all();
    assert_eq!((incarnation(&world, run).revision, world.phases()), (2, vec!["updating"]));
    assert!(world.report_at(run, 1, ready()).is_empty(), "that was before");
    world.report(run, ready());
    assert_eq!((outcome(&world).as_str(), runs(&world)), ("succeeded", (Some(run), None)));
    assert_eq!((replica(&world).deployment.as_str(), world.deployment("d2").as_str()), ("d2", "completed"));
}

#[test]
fn an_incarnation_updated_in_place_has_the_new_version_when_it_is_ready_and_not_before() {
    let mut world = simulated("automatic");
    let run = runs(&world).0.expect("it runs");
    update(&mut world, "d2", 1);
    world.fact_types();
    let starts = |status| ObservedState::NotReady { processes: vec![process(status)] };
    let unready = || starts(ProcessStatus::Unready { error: ProbeError::Refused });
    world.report(run, starts(ProcessStatus::Starting));
    assert_eq!(world.fact_types(), ["incarnation.started"]);
    assert_eq!((incarnation(&world, run).command, world.phases()), (None, vec!["updating"]));
    world.report(run, starts(ProcessStatus::Starting));
    assert!(world.fact_types().is_empty(), "the same was reported before");
    world.report(run, unready());
    assert_eq!(world.fact_types(), ["incarnation.processes_changed"], "it was started before");
    assert_eq!((world.phases(), replica(&world).deployment.as_str()), (vec!["updating"], "d1"));
    world.report(run, ready());
    assert_eq!((world.phases(), replica(&world).deployment.as_str()), (vec!["running"], "d2"));
}

#[test]
fn what_cannot_be_changed_in_place_is_commanded_to_be_what_it_was() {
    for late in [false, true] {
        let mut world = simulated("automatic");
        let run = runs(&world).0.expect("it runs");
        update(&mut world, "d2", 1);
        if late {
            world.wait(301);
        } else {
            drop(world.report(run, failed(RetryClass::Permanent)));
        }
        assert_eq!((world.deployment("d2").as_str(), incarnation(&world, run).revision), ("failed", 3));
        assert_eq!(incarnation(&world, run).target_deployment().as_str(), "d1");
        for attempt in 1..=2 * crate::context::ATTEMPTS {
            world.report(run, failed(RetryClass::Permanent));
            let (run, wanted) = (incarnation(&world, run), "the same command, as often as it takes");
            let next = run.command.map(|command| command.attempt);
            assert_eq!((run.revision, next), (3, Some(attempt + 1)), "{wanted}");
            world.wait(120);
        }
        world.report(run, ready());
        assert_eq!((replica(&world).deployment.as_str(), world.phases()), ("d1", vec!["running"]));
    }
}

#[test]
fn an_incarnation_that_hangs_while_updated_keeps_its_end_reason_when_the_update_is_aborted() {
    let mut world = simulated("automatic");
    let run = runs(&world).0.expect("it runs");
    update(&mut world, "d2", 1);
    let hung = ProcessStatus::Unresponsive { error: ProbeError::Refused };
    world.report(run, ObservedState::NotReady { processes: vec![process(hung)] });
    let (state, revision) = (incarnation(&world, run).state.clone(), incarnation(&world, run).revision);
    assert!(matches!(state, IncarnationState::Stopping(_)), "{state:?}");
    world.must("deployment.cancel", &json!({"plan": "web", "name": "d2"}));
    world.run();
    assert_eq!(world.deployment("d2"), "cancelled");
    assert_eq!((&incarnation(&world, run).state, incarnation(&world, run).revision), (&state, revision));
}

#[test]
fn a_reverted_unready_incarnation_runs_and_is_not_ready() {
    let mut world = simulated("automatic");
    let run = runs(&world).0.expect("it runs");
    update(&mut world, "d2", 1);
    world.wait(301);
    world.report(run, ObservedState::Started { processes: vec![process(ProcessStatus::Starting)] });
    let healthy = |world: &TestFleet| replica(world).active.as_ref().is_some_and(|active| active.healthy);
    assert_eq!((world.phases(), healthy(&world)), (vec!["running"], false));
    world.report(run, ready());
    assert_eq!(
        (world.phases(), healthy(&world), world.deployment("d2")),
        (vec!["running"], true, "failed".into())
    );
}

#[test]
fn a_stop_or_delete_at_any_moment_of_a_replacement_prevails_and_leaves_nothing() {
    for verb in ["stop", "delete"] {
        for kind in ["relocate", "restart", "update"] {
            for moment in 0..5 {
                let why = format!("{verb} after {moment} steps of {kind}");
                let mut world = world(3, "automatic", &json!({"restart": "always"}));
                match kind {
                    "update" => update(&mut world, "d2", 1),
                    _ => ask(&mut world, kind),
                }
                for _ in 0..moment {
                    let Some(id) = world.asked().next() else { break };
                    let observed = if asked(&world, id) == Some(CommandEffect::Ensure) {
                        ready()
                    } else {
                        ended(IncarnationExit::Clean)
                    };
                    world.report(id, observed);
                }
                if (verb, kind) == ("delete", "update") {
                    // Otherwise it creates another one as its replacement.
                    world.ask("deployment.cancel", &json!({"plan": "web", "name": "d2"})).ok();
                }
                ask(&mut world, verb);
                world.obey();
                assert_eq!(world.free_cpu(), 12_000, "{why}");
                let left = if verb == "stop" { vec!["stopped"] } else { vec![] };
                assert_eq!(world.phases(), left, "{why}");
                world.wait(10_000);
                assert_eq!(world.phases(), left, "{why}: it is not started again");
            }
        }
    }
}

#[test]
fn what_is_requested_while_something_is_open_waits_supersedes_or_is_refused() {
    // Open operation, whether it has started, request, and its result.
    let table = [
        ("relocate", false, "relocate", "same"),
        ("relocate", false, "restart", "superseded"),
        ("restart", false, "relocate", "superseded"),
        ("restart", false, "stop", "superseded"),
        ("relocate", false, "start", "same"),
        ("relocate", true, "relocate", "same"),
        ("relocate", true, "restart", "refused"),
        ("restart", true, "relocate", "refused"),
        ("relocate", true, "stop", "waits"),
        ("restart", true, "delete", "waits"),
        ("stop", false, "relocate", "refused"),
        ("stop", true, "restart", "refused"),
        ("delete", false, "relocate", "refused"),
    ];
    for (open, begun, verb, wanted) in table {
        let why = format!("{verb} while a {open} {}", if begun { "has started" } else { "waits" });
        let mut world = world(3, "manual", &never());
        ask(&mut world, open);
        let first = replica(&world).operation.expect("it is open");
        if begun {
            world.approve_all();
        }
        let name = world.replica();
        let answer = match world.ask(&format!("replica.{verb}"), &json!({"name": name})) {
            Err(refusal) => {
                assert!(
                    matches!(refusal.code, RefusalCode::InUse | RefusalCode::InvalidTransition),
                    "{why}: {refusal:?}"
                );
                "refused"
            }
            Ok(facts) if facts.is_empty() => "same",
            Ok(_) if replica(&world).operation.is_some_and(|open| open.id == first.id) => "waits",
            Ok(_) => "superseded",
        };
        assert_eq!(answer, wanted, "{why}");
        world.run();
    }
}

#[test]
fn a_relocate_to_a_node_moves_there_or_reports_why_not() {
    let mut world = world(3, "manual", &never());
    let name = world.replica();
    let here = replica(&world).active.expect("it runs").node;
    let elsewhere =
        ["node-1", "node-2", "node-3"].into_iter().find(|node| here.as_str() != *node).expect("one");
    let refusal =
        world.ask("replica.relocate", &json!({"name": name, "node": here})).expect_err("it is there");
    assert_eq!(refusal.code, RefusalCode::Invalid);
    let refusal =
        world.ask("replica.relocate", &json!({"name": name, "node": "node-9"})).expect_err("unknown");
    assert_eq!(refusal.code, RefusalCode::NotFound);
    world.must("replica.relocate", &json!({"name": name, "node": elsewhere}));
    world.run();
    assert_eq!(replica(&world).secondary.expect("a place").node.as_str(), elsewhere);
    world.approve_all();
    world.obey();
    assert_eq!(replica(&world).active.expect("it runs").node.as_str(), elsewhere);
    world.must("node.apply", &json!({"name": "small", "cluster": "local", "spec": {"domain": "d1", "resources": {"cpu": 10, "memory": 10}}}));
    world.must("replica.relocate", &json!({"name": name, "node": "small"}));
    world.run();
    let reasons = &world.fleet.plans().get("web").expect("the plan").unschedulable;
    assert!(reasons.iter().any(|unfit| unfit.reason == "too little cpu"), "{reasons:?}");
}

#[test]
fn what_does_not_run_cannot_be_relocated_and_what_was_never_deployed_not_created() {
    let mut world = world(2, "automatic", &never());
    ask(&mut world, "stop");
    world.obey();
    let name = world.replica();
    let refusal = world.ask("replica.relocate", &json!({"name": name})).expect_err("it is stopped");
    assert!(
        refusal.code == RefusalCode::InvalidTransition && refusal.detail.contains("stopped"),
        "{refusal:?}"
    );
    let mut world = TestFleet::with_nodes(1);
    world.plan("manual");
    let refusal = world.ask("replica.create", &json!({"plan": "web"})).expect_err("of which version");
    assert!(refusal.detail.contains("deploy one first"), "{refusal:?}");
}

#[test]
fn a_replica_and_an_incarnation_are_created_manually_on_the_named_node() {
    let mut world = world(3, "automatic", &never());
    world.must("replica.create", &json!({"plan": "web", "node": "node-3"}));
    world.run();
    world.obey();
    let on = |world: &TestFleet| {
        let replicas = world.fleet.replicas().sorted();
        replicas.iter().filter_map(|r| r.active.as_ref()).any(|run| run.node.as_str() == "node-3")
    };
    assert!(world.phases() == ["running", "running"] && on(&world));
    let there = |r: &&&Replica| r.active.as_ref().is_some_and(|run| run.node.as_str() == "node-3");
    let name = world.fleet.replicas().sorted().iter().find(|r| !there(r)).expect("another").name.clone();
    world.must("replica.stop", &json!({"name": name}));
    world.run();
    world.obey();
    world.must("replica.start", &json!({"name": name, "node": "node-3"}));
    world.run();
    let reasons = &world.fleet.plans().get("web").expect("the plan").unschedulable;
    assert!(
        reasons.iter().any(|unfit| unfit.reason.contains("already has a replica of the plan")),
        "{reasons:?}"
    );
}

#[test]
fn a_start_alongside_an_update_that_waits_requests_nothing_more() {
    let mut world = TestFleet::with_nodes(1);
    world.plan_with("manual", &never());
    world.deploy("d1", 1);
    world.approve_all();
    world.wait(301);
    assert_eq!(world.deployment("d1"), "failed");
    // Its incarnation is stopping and has not ended: another version must replace it, and finds no placement.
    let power = json!({"node": "node-1", "name": "power"});
    world.must("disruption.schedule", &json!({"node": "node-1", "name": "power", "spec": {}}));
    world.must("disruption.approve", &power);
    update(&mut world, "d2", 1);
    let run = runs(&world).0.expect("it is stopping");
    world.report(run, ended(IncarnationExit::Clean));
    let open: Vec<_> = replica(&world).open().map(|open| open.kind).collect();
    assert_eq!(open, [OperationKind::Update]);
    let name = world.replica();
    assert!(world.must("replica.start", &json!({"name": name})).is_empty(), "the update starts it");
    world.must("disruption.complete", &power);
    world.run();
    world.approve_all();
    world.obey();
    assert_eq!((world.deployment("d2").as_str(), world.phases()), ("completed", vec!["running"]));
}
