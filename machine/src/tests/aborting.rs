//! Deployments that are cancelled or superseded while their operations run.

use chancery_events::fact::CommandEffect;
use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::observation::{IncarnationExit, ObservedState, RetryClass};
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::OperationKind;
use serde_json::{Value, json};

use crate::deployment::waits_for;
use crate::state::{Incarnation, Replica};
use crate::testing::{TestFleet, crashed, ended, failed, name, ready};

fn world(nodes: usize, more: &Value) -> TestFleet {
    let mut world = TestFleet::with_nodes(nodes);
    world.plan_with("automatic", more);
    world
}

fn create(world: &mut TestFleet, name: &str, count: u32, turn: &str) {
    let spec = json!({"count": count, "coordinates": {"app": {"version": name}}});
    world.must("deployment.create", &json!({"plan": "web", "name": name, "spec": spec, "overlap": turn}));
    world.run();
}

fn cancel(world: &mut TestFleet, name: &str) {
    world.must("deployment.cancel", &json!({"plan": "web", "name": name}));
    world.run();
}

fn replica(world: &TestFleet) -> Replica {
    (*world.fleet.replicas().sorted().first().expect("a replica")).clone()
}

fn incarnation(world: &TestFleet, id: IncarnationId) -> &Incarnation {
    world.fleet.incarnations().get(&id).expect("an incarnation")
}

/// Live incarnations by deployment, with the last command of each.
fn asked(world: &TestFleet) -> Vec<(String, Option<CommandEffect>)> {
    let live = world.fleet.incarnations().sorted();
    let live = live.iter().filter(|incarnation| incarnation.is_live());
    live.map(|incarnation| (incarnation.deployment.to_string(), incarnation.last_effect)).collect()
}

#[test]
fn a_cancelled_deployment_aborts_an_update_alongside_the_old_incarnation_which_never_stops() {
    for is_reported in [false, true] {
        let mut world = world(3, &json!({"restart": "never"}));
        create(&mut world, "d1", 2, "queue");
        world.obey();
        let free = world.free_cpu();
        create(&mut world, "d2", 2, "queue");
        let new = world.asked().next().expect("one is updated");
        if is_reported {
            world.report(new, ObservedState::NotReady { processes: vec![] });
        }
        assert_eq!(world.deployment("d2"), "in progress");
        cancel(&mut world, "d2");
        assert_eq!(world.deployment("d2"), "cancelled", "nothing of it is waited for");
        assert_eq!(incarnation(&world, new).last_effect, Some(CommandEffect::Stop));
        assert_eq!((world.phases(), world.kinds()), (vec!["running", "running"], vec![]));
        world.report(new, ended(IncarnationExit::Clean));
        assert_eq!(world.free_cpu(), free, "its reservation is released");
        let old = ("d1".to_owned(), Some(CommandEffect::Ensure));
        assert_eq!(asked(&world), [old.clone(), old], "the old incarnations continue");
        let refusal = world.ask("deployment.pause", &json!({"plan": "web", "name": "d2"}));
        assert_eq!(refusal.expect_err("it has ended").code, RefusalCode::InvalidTransition);
    }
}

#[test]
fn an_update_whose_new_incarnation_is_ready_completes() {
    let mut world = world(3, &json!({"restart": "never"}));
    create(&mut world, "d1", 2, "queue");
    world.obey();
    create(&mut world, "d2", 2, "queue");
    let new = world.asked().next().expect("one is updated");
    world.report(new, ready());
    let old = replica(&world).secondary.expect("the old run ends").incarnation;
    cancel(&mut world, "d2");
    assert_eq!(world.deployment("d2"), "ending, cancelled", "it is past the point of no return");
    world.report(old, ended(IncarnationExit::Clean));
    assert_eq!(world.deployment("d2"), "cancelled");
    let totals = world.fleet.plans().get("web").expect("the plan").totals.clone();
    assert_eq!(totals.get(&(OperationKind::Update, "succeeded".into())), Some(&1));
    assert_eq!(world.phases(), ["running", "running"]);
    assert_eq!(replica(&world).deployment.as_str(), "d2");
}

#[test]
fn what_was_stopped_first_runs_again_whatever_the_rule_is() {
    for restart in ["never", "on_failure", "always"] {
        for moment in ["stopping", "creating", "starting"] {
            let mut world = world(2, &json!({"restart": restart, "update_order": "stop_first"}));
            create(&mut world, "d1", 1, "queue");
            world.obey();
            let old = replica(&world).active.expect("it runs").incarnation;
            create(&mut world, "d2", 1, "queue");
            assert_eq!(
                incarnation(&world, old).last_effect,
                Some(CommandEffect::Stop),
                "it is stopped first"
            );
            if moment != "stopping" {
                world.report(old, ended(IncarnationExit::Clean));
                let new = replica(&world).active.expect("it is started").incarnation;
                assert_eq!(incarnation(&world, new).last_effect, Some(CommandEffect::Ensure));
                if moment == "starting" {
                    world.report(new, ObservedState::NotReady { processes: vec![] });
                }
            }
            cancel(&mut world, "d2");
            assert_eq!(world.deployment("d2"), "cancelled", "{restart}, {moment}");
            let left = replica(&world).active.expect("it is not over").incarnation;
            assert_eq!(
                incarnation(&world, left).last_effect,
                Some(CommandEffect::Stop),
                "{restart}, {moment}"
            );
            world.report(left, ended(IncarnationExit::Clean));
            world.obey();
            assert_eq!(world.phases(), ["running"], "{restart}, {moment}");
            let run = replica(&world).active.expect("it runs").incarnation;
            assert_eq!(incarnation(&world, run).deployment.as_str(), "d1", "{restart}, {moment}");
        }
    }
}

#[test]
fn an_incarnation_stopped_by_a_person_is_not_started_again_because_an_update_was_aborted() {
    let mut world = world(2, &json!({"restart": "always", "update_order": "stop_first"}));
    create(&mut world, "d1", 1, "queue");
    world.obey();
    create(&mut world, "d2", 1, "queue");
    cancel(&mut world, "d2");
    let name = world.replica();
    world.must("replica.stop", &json!({"name": name}));
    world.run();
    world.obey();
    assert_eq!(world.phases(), ["stopped"]);
}

#[test]
fn replicas_that_were_being_created_are_deleted_and_running_ones_stay() {
    let mut world = world(2, &json!({"restart": "never", "sharing": "allowed"}));
    create(&mut world, "d1", 3, "queue");
    let first = world.asked().next().expect("one is started");
    world.report(first, ready());
    cancel(&mut world, "d1");
    assert_eq!(world.deployment("d1"), "ending, cancelled", "what is deleted has to end");
    assert_eq!(world.phases(), ["deleting", "deleting", "running"]);
    world.obey();
    assert_eq!((world.deployment("d1").as_str(), world.phases()), ("cancelled", vec!["running"]));
    assert_eq!(world.free_cpu(), 7000);
}

#[test]
fn a_version_that_never_becomes_ready_is_replaced_by_the_one_that_supersedes_it() {
    for update in ["start_first", "stop_first"] {
        let mut world = world(4, &json!({"restart": "never", "update_order": update}));
        create(&mut world, "good", 3, "queue");
        world.obey();
        create(&mut world, "hung", 3, "queue");
        create(&mut world, "back", 3, "supersede");
        assert_eq!(world.deployment("hung"), "superseded", "{update}");
        assert_eq!(world.deployment("back"), "in progress", "{update}");
        world.obey();
        assert_eq!(world.deployment("back"), "completed", "{update}");
        assert_eq!(world.phases(), ["running"; 3], "{update}");
    }
}

#[test]
fn a_queued_deployment_can_be_changed_to_supersede() {
    let mut world = world(3, &json!({"restart": "never"}));
    create(&mut world, "d1", 1, "queue");
    world.obey();
    create(&mut world, "hung", 1, "queue");
    create(&mut world, "d3", 1, "queue");
    assert_eq!((world.deployment("hung"), world.deployment("d3")), ("in progress".into(), "pending".into()));
    create(&mut world, "d3", 1, "supersede");
    assert_eq!(
        (world.deployment("hung"), world.deployment("d3")),
        ("superseded".into(), "in progress".into())
    );
    create(&mut world, "d3", 1, "supersede");
    assert_eq!(world.deployment("d3"), "in progress", "it does not supersede itself");
    world.obey();
    assert_eq!(world.deployment("d3"), "completed");
}

#[test]
fn what_runs_of_a_deployment_that_fails_settles_unless_that_is_cancelled_or_superseded() {
    for how in ["settles", "cancelled", "superseded"] {
        let mut world = world(4, &json!({"restart": "never"}));
        create(&mut world, "d1", 2, "queue");
        world.obey();
        let spec = json!({
            "count": 2, "coordinates": {"app": {"version": "d2"}}, "strategy": {"rolling": {"max_parallel": 2}},
        });
        world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": spec}));
        world.run();
        let [bad, other] = world.asked().collect::<Vec<_>>()[..] else { panic!("two are updated") };
        world.report(bad, failed(RetryClass::Permanent));
        assert_eq!(world.deployment("d2"), "ending, failed");
        assert_eq!(
            incarnation(&world, other).last_effect,
            Some(CommandEffect::Ensure),
            "its sibling continues"
        );
        match how {
            "settles" => {
                world.report(other, ready());
                world.obey();
                assert_eq!(world.deployment("d2"), "failed");
            }
            "cancelled" => {
                cancel(&mut world, "d2");
                assert_eq!(world.deployment("d2"), "cancelled");
            }
            _ => {
                create(&mut world, "d3", 2, "supersede");
                assert_eq!(world.deployment("d2"), "superseded");
            }
        }
        world.obey();
        assert_eq!(world.phases(), ["running", "running"], "{how}");
    }
}

#[test]
fn an_incarnation_stopped_for_an_aborted_update_is_not_updated_again_before_it_runs_again() {
    let mut world = world(3, &json!({"restart": "never", "update_order": "stop_first"}));
    create(&mut world, "d1", 1, "queue");
    world.obey();
    let old = replica(&world).active.expect("it runs").incarnation;
    create(&mut world, "d2", 1, "queue");
    cancel(&mut world, "d2");
    create(&mut world, "d3", 1, "queue");
    assert!(world.kinds().is_empty(), "nothing waits behind what is stopped");
    cancel(&mut world, "d3");
    world.report(old, ended(IncarnationExit::Clean));
    world.obey();
    assert_eq!(world.phases(), ["running"]);
    assert_eq!(replica(&world).deployment.as_str(), "d1");
}

#[test]
fn a_stop_that_is_requested_and_rejected_leaves_what_an_abort_starts_again() {
    let mut world = TestFleet::with_nodes(2);
    let kinds = OperationKind::ALL.iter().map(|kind| (kind.word().to_owned(), json!("automatic")));
    let mut approval = Value::Object(kinds.collect());
    approval["stop"] = json!("manual");
    world.plan_with(
        "automatic",
        &json!({"restart": "never", "update_order": "stop_first", "approval": approval}),
    );
    create(&mut world, "d1", 1, "queue");
    world.obey();
    let old = replica(&world).active.expect("it runs").incarnation;
    create(&mut world, "d2", 1, "queue");
    cancel(&mut world, "d2");
    let name = world.replica();
    world.must("replica.stop", &json!({"name": name}));
    let stop = replica(&world).operation.expect("it waits for approval").id;
    world.must("operation.reject", &json!({"operations": [stop], "reason": "no"}));
    world.report(old, ended(IncarnationExit::Clean));
    world.obey();
    assert_eq!(world.phases(), ["running"]);
}

#[test]
fn a_plan_that_is_deleted_does_not_wait_for_what_runs_of_a_deployment_that_failed() {
    let mut world = world(4, &json!({"restart": "never"}));
    create(&mut world, "d1", 2, "queue");
    world.obey();
    let spec = json!({
        "count": 2, "coordinates": {"app": {"version": "d2"}}, "strategy": {"rolling": {"max_parallel": 2}},
    });
    world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": spec}));
    world.run();
    let bad = world.asked().next().expect("two are updated");
    world.report(bad, failed(RetryClass::Permanent));
    assert_eq!(world.deployment("d2"), "ending, failed");
    world.must("plan.delete", &json!({"name": "web", "cascade": "yes"}));
    world.run();
    assert_eq!(world.deployment("d2"), "cancelled");
    world.obey();
    assert!(world.fleet.plans().get("web").is_none());
}

/// As [`world`], with three replicas of `d1` that run; deletes wait for approval.
fn world_with_manual_deletes() -> TestFleet {
    let mut world = world(6, &json!({}));
    create(&mut world, "d1", 3, "queue");
    world.obey();
    manual_deletes(&mut world);
    world
}

fn manual_deletes(world: &mut TestFleet) {
    let approval: serde_json::Map<_, _> = OperationKind::ALL
        .iter()
        .map(|kind| {
            (
                kind.word().to_owned(),
                if *kind == OperationKind::Delete { "manual" } else { "automatic" }.into(),
            )
        })
        .collect();
    world.plan_with("automatic", &json!({"approval": approval, "sharing": "allowed"}));
}

fn delete(world: &mut TestFleet, deployment: &str) -> OperationId {
    let all = world.fleet.replicas().sorted();
    let replica = all.iter().find(|replica| replica.deployment.as_str() == deployment).expect("a replica");
    let name = replica.name.clone();
    world.must("replica.delete", &json!({"name": name}));
    world.run();
    assert_eq!(world.pending().len(), 1, "it waits for approval");
    world.pending()[0].id
}

#[test]
fn a_canary_that_is_rolled_back_does_not_wait_for_the_approval_of_a_delete() {
    for end in ["deployment.rollback", "deployment.cancel"] {
        let mut world = world_with_manual_deletes();
        let spec = json!({"count": 3, "coordinates": {"app": {"version": "d2"}}, "strategy": {"canary": {"count": 1}}});
        world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": spec}));
        world.run();
        world.obey();
        let asked = delete(&mut world, "d2");
        world.must(end, &json!({"plan": "web", "name": "d2"}));
        world.run();
        world.obey();
        let operation = world.fleet.operations().get(&asked);
        assert!(operation.is_none_or(|of| !of.is_open()), "{end}");
        assert_eq!(world.deployment("d2"), "cancelled", "{end}");
        assert_eq!(world.phases(), ["running", "running", "running"], "{end}");
    }
}

#[test]
fn an_old_replica_whose_delete_may_be_rejected_is_still_there() {
    // A requested delete of a replica that serves alongside the canary does not promote it.
    let mut world = world(4, &json!({}));
    create(&mut world, "d1", 1, "queue");
    world.obey();
    manual_deletes(&mut world);
    let spec =
        json!({"count": 1, "coordinates": {"app": {"version": "d2"}}, "strategy": {"canary": {"count": 1}}});
    world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": spec}));
    world.run();
    world.obey();
    delete(&mut world, "d1");
    world.obey();
    assert_eq!(world.deployment("d2"), "in progress");

    // A rollout is not completed while the old version might stay.
    for approved in [true, false] {
        let mut world = world_with_manual_deletes();
        let asked = delete(&mut world, "d1");
        create(&mut world, "d2", 3, "queue");
        world.obey();
        assert_eq!(world.deployment("d2"), "in progress");
        let plan = world.fleet.plans().get("web").expect("the plan");
        let deployment = world.fleet.deployment(&name("web"), &name("d2")).expect("a deployment");
        let waits = waits_for(&world.fleet, plan, deployment).expect("it waits").to_string();
        assert!(waits.starts_with(&format!("approval of operation {asked} (delete of ")), "{waits}");
        world.wait(3600);
        assert!(world.fleet.deployment(&name("web"), &name("d2")).expect("one").stalled.is_none());
        if approved {
            world.approve(asked).expect("approved");
        } else {
            world.reject(asked).expect("rejected");
        }
        world.run();
        world.obey();
        if !approved {
            // There is one replica too many, of the old version.
            assert_eq!(world.pending().len(), 1, "the deployment wants it deleted");
            world.approve_all();
            world.run();
            world.obey();
        }
        assert_eq!((world.deployment("d2").as_str(), world.phases()), ("completed", vec!["running"; 3]));
        assert!(world.fleet.replicas().sorted().iter().all(|replica| replica.deployment.as_str() == "d2"));
    }
}

#[test]
fn queued_creates_are_cancelled_with_their_deployment() {
    let mut world = world(4, &json!({"sharing": "allowed"}));
    manual_deletes(&mut world);
    let spec = json!({"count": 3, "strategy": {"rolling": {"max_parallel": 1}}});
    world.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": spec}));
    world.run();
    assert_eq!(world.asked().count(), 1, "the others are queued");
    cancel(&mut world, "d1");
    world.obey();
    assert_eq!((world.deployment("d1").as_str(), world.phases()), ("cancelled", vec![]));
    assert_eq!(world.fleet.operations().sorted().iter().filter(|of| of.is_open()).count(), 0);
}

#[test]
fn a_plan_that_is_deleted_does_not_wait_for_the_approval_of_a_delete() {
    let mut world = world_with_manual_deletes();
    delete(&mut world, "d1");
    world.must("plan.delete", &json!({"name": "web", "cascade": "yes"}));
    world.grant();
    world.run();
    world.obey();
    assert!(world.fleet.plans().get("web").is_none());
}

#[test]
fn a_drain_moves_a_replica_as_soon_as_its_update_is_aborted() {
    let mut world = world(4, &json!({"restart": "never"}));
    create(&mut world, "d1", 1, "queue");
    world.obey();
    let node = replica(&world).active.expect("it runs").node;
    create(&mut world, "hung", 1, "queue");
    let spec = json!({"action": "drain"});
    world.must("disruption.schedule", &json!({"node": node, "name": "x", "spec": spec}));
    world.must("disruption.approve", &json!({"node": node, "name": "x"}));
    world.run();
    assert_eq!(replica(&world).active.expect("it runs").node, node, "the update is in the way");
    cancel(&mut world, "hung");
    world.obey();
    assert_ne!(replica(&world).active.expect("it runs").node, node, "it has moved");
    assert_eq!((world.phases(), replica(&world).deployment.as_str()), (vec!["running"], "d1"));
}

#[test]
fn a_new_incarnation_that_is_ready_too_late_gets_no_role() {
    let mut world = world(3, &json!({"restart": "never"}));
    create(&mut world, "d1", 1, "queue");
    world.obey();
    let old = replica(&world).active.expect("it runs").incarnation;
    create(&mut world, "d2", 1, "queue");
    let new = world.asked().next().expect("it is updated");
    cancel(&mut world, "d2");
    world.report(new, ready());
    assert_eq!(replica(&world).active.expect("it runs").incarnation, old);
    world.obey();
    assert_eq!((world.phases(), replica(&world).deployment.as_str()), (vec!["running"], "d1"));
}

/// Three replicas of `d1` that are stopped first; `d2` hangs, and `d3` supersedes it.
fn superseded(restart: &str, wave: u32) -> TestFleet {
    superseded_after(restart, wave, |_| {})
}

/// As [`superseded`]; calls `then` once `d1` is completed.
fn superseded_after(restart: &str, wave: u32, then: impl Fn(&mut TestFleet)) -> TestFleet {
    let mut world = world(4, &json!({"restart": restart, "update_order": "stop_first"}));
    let spec = |name: &str| json!({"count": 3, "coordinates": {"app": {"version": name}}, "strategy": {"rolling": {"max_parallel": wave}}});
    for name in ["d1", "d2", "d3"] {
        let ask = json!({"plan": "web", "name": name, "spec": spec(name), "overlap": "supersede"});
        world.must("deployment.create", &ask);
        world.run();
        if name == "d1" {
            world.obey();
            then(&mut world);
        }
    }
    world
}

fn stopping(world: &TestFleet) -> Option<IncarnationId> {
    world.asked().find(|id| incarnation(world, *id).last_effect == Some(CommandEffect::Stop))
}

#[test]
fn what_an_abort_stopped_runs_again_before_the_next_deployment_touches_it() {
    for restart in ["never", "on_failure", "always"] {
        let mut world = superseded(restart, 3);
        assert_eq!(world.deployment("d3"), "in progress", "{restart}");
        // All incarnations of `d1` are stopping; nothing of `d3` starts before `d1` is started again.
        while let Some(id) = stopping(&world) {
            world.report(id, ended(IncarnationExit::Clean));
        }
        let live: Vec<_> = asked(&world).into_iter().map(|(deployment, _)| deployment).collect();
        assert_eq!(live, ["d1", "d1", "d1"], "{restart}");
        assert_eq!(world.deployment("d3"), "in progress", "{restart}");
        world.obey();
        assert_eq!(
            (world.deployment("d3"), world.phases()),
            ("completed".into(), vec!["running"; 3]),
            "{restart}"
        );
        assert!(asked(&world).iter().all(|(deployment, _)| deployment == "d3"), "{restart}");
    }
}

#[test]
fn what_has_no_node_does_not_hurry_the_next_deployment_past_what_is_brought_back() {
    for (fits, deployment) in [(true, "d1"), (false, "d3")] {
        let mut world = superseded_after("never", 1, |world| {
            let spec = json!({"domain": "d1", "resources": {"cpu": 1, "memory": 1, "disk": 0}});
            world.must("node.apply", &json!({"name": "tiny", "cluster": "local", "spec": spec}));
            let last = world.fleet.replicas().sorted().last().expect("a replica").name.clone();
            world.must("replica.relocate", &json!({"name": last, "node": "tiny"}));
            world.run();
            assert!(!world.fleet.plans().get("web").expect("the plan").unschedulable.is_empty());
        });
        let stops = world
            .asked()
            .filter(|id| incarnation(&world, *id).last_effect == Some(CommandEffect::Stop))
            .count();
        assert_eq!(stops, 1);
        let first = stopping(&world).expect("one was stopped for d2");
        if !fits {
            // No node is available for it any more.
            let selectors = json!({"disk": "ssd"});
            let more = json!({"restart": "never", "update_order": "stop_first", "selectors": selectors});
            world.plan_with("automatic", &more);
        }
        world.report(first, ended(IncarnationExit::Clean));
        let of = incarnation(&world, first).replica.clone();
        let replica = world.fleet.replicas().get(&of).expect("the replica");
        assert_eq!(replica.deployment.as_str(), deployment, "fits: {fits}");
        let back = replica.active.as_ref().map(|run| incarnation(&world, run.incarnation).last_effect);
        assert_eq!(back, fits.then_some(Some(CommandEffect::Ensure)));
    }
}

#[test]
fn no_other_replica_is_stopped_while_one_is_brought_back() {
    let mut world = superseded("never", 1);
    let first = stopping(&world).expect("one was stopped for d2");
    let waits = |world: &TestFleet| {
        let plan = world.fleet.plans().get("web").expect("the plan");
        let deployment = world.fleet.deployment(&name("web"), &name("d3")).expect("a deployment");
        waits_for(&world.fleet, plan, deployment).expect("it waits").to_string()
    };
    let node = incarnation(&world, first).node.clone();
    let reason = waits(&world);
    assert!(reason.contains(&format!("incarnation {first} on node {node} to end")), "{reason}");
    world.report(first, ended(IncarnationExit::Clean));
    let back = world.asked().next().expect("it is started again");
    assert!(waits(&world).contains(&format!("incarnation {back} on node ")), "{}", waits(&world));
    assert_eq!(incarnation(&world, back).deployment.as_str(), "d1");
    world.report(back, ObservedState::NotReady { processes: vec![] });
    assert_eq!(stopping(&world), None, "two of three serve, and continue");
    world.report(back, ready());
    assert!(stopping(&world).is_some(), "the next one is dequeued");
}

#[test]
fn a_start_for_a_deployment_that_is_cancelled_leaves_what_the_rule_had_promised() {
    for (restart, phase) in [("always", "running"), ("on_failure", "running"), ("never", "failed")] {
        let mut world = world(3, &json!({"restart": restart, "restart_delay": 60_000}));
        create(&mut world, "d1", 1, "queue");
        world.obey();
        let crash = |world: &mut TestFleet| {
            let run = replica(world).active.expect("it runs").incarnation;
            world.report(run, crashed());
        };
        crash(&mut world);
        if restart != "never" {
            // The second consecutive start waits.
            world.obey();
            crash(&mut world);
        }
        let name = world.replica();
        let spec = json!({"count": 2, "coordinates": {"app": {"version": "d1"}}});
        world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": spec}));
        world.run();
        let started = |run: &&Incarnation| run.replica == name && run.is_live();
        assert!(world.fleet.incarnations().sorted().iter().any(started), "{restart}: d2 starts it");
        cancel(&mut world, "d2");
        world.obey();
        world.wait(3_600);
        world.obey();
        let replica = world.fleet.replicas().get(name.as_str()).expect("it is kept").clone();
        let run = replica.active.as_ref().and_then(|run| world.fleet.incarnations().get(&run.incarnation));
        assert_eq!(crate::replica::phase(&replica, run).word(), phase, "{restart}");
    }
}

#[test]
fn a_deployment_is_not_completed_before_a_start_of_another_operation_is_ready() {
    let mut world = world(3, &json!({"restart": "always"}));
    create(&mut world, "d1", 1, "queue");
    world.obey();
    let run = replica(&world).active.expect("it runs").incarnation;
    world.report(run, crashed());
    let again = world.asked().next().expect("the rule starts it again");
    let spec = json!({"count": 1, "coordinates": {"app": {"version": "d1"}}});
    world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": spec}));
    world.run();
    assert_eq!(world.deployment("d2"), "in progress");
    world.report(again, ready());
    assert_eq!(world.deployment("d2"), "completed");
}
