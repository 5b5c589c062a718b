//! Progress of deployments: what they wait for, and how a missing progress is reported.

use std::time::Duration;

use chancery_events::fact::Fact;
use chancery_events::observation::{ObservedState, ProbeError, ProcessStatus};
use chancery_events::spec::OperationKind;
use serde_json::{Value, json};

use crate::deployment::waits_for;
use crate::state::Deployment;
use crate::testing::{TestFleet, crashed, name, process, ready};

const DEADLINE: Duration = Duration::from_mins(1);

fn create(world: &mut TestFleet, deployment: &str, more: &Value) {
    let mut spec = json!({
        "count": 2, "coordinates": {"app": {"version": deployment}}, "progress_deadline": 60_000,
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    world.must("deployment.create", &json!({"plan": "web", "name": deployment, "spec": spec}));
    world.run();
}

fn find<'a>(world: &'a TestFleet, deployment: &str) -> &'a Deployment {
    world.fleet.deployment(&name("web"), &name(deployment)).expect("a deployment")
}

fn is_stalled(world: &TestFleet, deployment: &str) -> bool {
    find(world, deployment).stalled.is_some()
}

/// Returns the text of what the deployment waits for.
fn waits(world: &TestFleet, deployment: &str) -> String {
    let plan = world.fleet.plans().get("web").expect("the plan");
    waits_for(&world.fleet, plan, find(world, deployment)).expect("it waits").to_string()
}

fn pass(world: &mut TestFleet, span: Duration) {
    world.now = world.now + span;
    world.run();
}

/// Creates a world with two running replicas of `d1`; starts may take long.
fn world(approval: &str) -> TestFleet {
    let mut world = TestFleet::with_nodes(5);
    world.plan_with("automatic", &json!({"restart": "never"}));
    create(&mut world, "d1", &json!({}));
    world.obey();
    let timeouts = json!({"start": 3_600_000, "stop": 10_000, "approval": 3_600_000});
    world.plan_with(approval, &json!({"restart": "never", "timeouts": timeouts}));
    world
}

#[test]
fn a_deployment_without_progress_is_called_stalled_once_until_it_makes_some() {
    let mut world = world("automatic");
    create(&mut world, "d2", &json!({}));
    pass(&mut world, Duration::from_secs(59));
    assert!(!is_stalled(&world, "d2"));
    let before = find(&world, "d2").progressed.expect("it was started");
    pass(&mut world, Duration::from_secs(2));
    assert!(is_stalled(&world, "d2"));
    let stalled = world.log.iter().rev().find_map(|fact| match fact {
        Fact::DeploymentStalled(fact) => Some(fact.clone()),
        _ => None,
    });
    let stalled = stalled.expect("it is in the journal");
    assert_eq!(stalled.since, before);
    assert!(stalled.waits_for.contains("update of web-"), "{}", stalled.waits_for);
    pass(&mut world, DEADLINE * 3);
    assert_eq!(world.log.iter().filter(|fact| matches!(fact, Fact::DeploymentStalled(_))).count(), 1);
    let new = world.asked().next().expect("one is updated");
    world.report(new, ready());
    assert!(!is_stalled(&world, "d2"), "a replica became ready");
    pass(&mut world, DEADLINE * 2);
    assert!(is_stalled(&world, "d2"), "the old incarnation does not end");
    world.obey();
    assert_eq!((world.deployment("d2").as_str(), is_stalled(&world, "d2")), ("completed", false));
}

#[test]
fn the_operation_that_blocks_the_queue_is_named_and_not_the_next_one() {
    let mut world = TestFleet::with_nodes(5);
    world.plan_with("automatic", &json!({"restart": "never"}));
    create(&mut world, "d1", &json!({"strategy": {"rolling": {"max_parallel": 1, "delay": 1000}}}));
    let first = world.asked().next().expect("one is created");
    world.report(first, ready());
    world.report(first, ObservedState::NotReady { processes: vec![process(ProcessStatus::Starting)] });
    pass(&mut world, Duration::from_secs(2));
    let name = &world.fleet.incarnations().get(&first).expect("it runs").replica;
    let reason = waits(&world, "d1");
    assert!(reason.starts_with(&format!("replica {name} ")), "{reason}");
}

#[test]
fn of_operations_without_a_node_one_of_the_deployment_is_named() {
    let mut world = TestFleet::with_nodes(1);
    world.plan_with("automatic", &json!({"restart": "never"}));
    create(&mut world, "d1", &json!({"count": 1}));
    world.obey();
    let replica = world.replica();
    world.must("replica.relocate", &json!({"name": replica}));
    world.run();
    create(&mut world, "d2", &json!({"count": 4}));
    let reason = waits(&world, "d2");
    let all = world.fleet.operations().sorted();
    let named: Vec<_> = all.into_iter().filter(|one| reason.contains(&one.id.to_string())).collect();
    let [named] = &named[..] else { panic!("{reason}") };
    assert_eq!(named.deployment, Some(name("d2")), "{reason}");
}

#[test]
fn a_replica_stopped_by_a_person_blocks_no_queue_and_is_named_where_it_blocks_a_cut_over() {
    let stop = |world: &mut TestFleet, run| {
        let replica = world.fleet.incarnations().get(&run).expect("it runs").replica.clone();
        world.must("replica.stop", &json!({"name": replica}));
        world.run();
        world.obey();
        replica
    };
    let mut world = TestFleet::with_nodes(5);
    world.plan_with("automatic", &json!({"restart": "never"}));
    create(&mut world, "d1", &json!({"strategy": {"rolling": {"max_parallel": 1, "delay": 3_600_000}}}));
    let first = world.asked().next().expect("one is created");
    world.report(first, ready());
    stop(&mut world, first);
    let reason = waits(&world, "d1");
    assert!(reason.starts_with("the start of operation "), "{reason}");

    let mut world = self::world("automatic");
    create(
        &mut world,
        "d2",
        &json!({"strategy": {"blue_green": {"timeout": 3_600_000, "on_timeout": "rollback"}}}),
    );
    let first = world.asked().next().expect("one is created");
    world.report(first, ready());
    let replica = stop(&mut world, first);
    let reason = waits(&world, "d2");
    assert!(reason.starts_with(&format!("replica {replica}, which was stopped on request")), "{reason}");
    assert!(reason.contains(&format!("start replica {replica}")), "{reason}");
}

#[test]
fn time_in_which_people_have_to_approve_is_not_time_without_progress() {
    let mut world = world("manual");
    create(&mut world, "d2", &json!({}));
    pass(&mut world, DEADLINE * 3);
    assert!(!is_stalled(&world, "d2"), "people have to approve");
    let reason = waits(&world, "d2");
    assert!(
        reason.starts_with("approval of operation ") && reason.contains("approve or reject operation "),
        "{reason}"
    );
    world.approve_all();
    world.run();
    pass(&mut world, Duration::from_secs(59));
    assert!(!is_stalled(&world, "d2"), "it counts from the approval");
    pass(&mut world, Duration::from_secs(2));
    assert!(is_stalled(&world, "d2"));
}

/// As [`world`], with operations of the kind that wait for approval.
fn world_with_manual(kind: &str) -> TestFleet {
    let mut world = world("automatic");
    let mut approval: serde_json::Map<_, _> =
        OperationKind::ALL.iter().map(|kind| (kind.word().to_owned(), "automatic".into())).collect();
    approval.insert(kind.to_owned(), "manual".into());
    let timeouts = json!({"start": 3_600_000, "stop": 10_000, "approval": 3_600_000});
    world.plan_with("automatic", &json!({"restart": "never", "timeouts": timeouts, "approval": approval}));
    world
}

#[test]
fn time_in_which_people_have_to_approve_what_others_requested_is_not_time_without_progress() {
    // A person starts a replica that has the new version.
    let mut world = world_with_manual("start");
    let run = world.commanded()[0];
    world.report(run, crashed());
    world.run();
    let down = world
        .fleet
        .replicas()
        .sorted()
        .iter()
        .find(|replica| replica.active.is_none())
        .expect("one")
        .name
        .clone();
    world.must("replica.start", &json!({"name": down}));
    world.run();
    create(&mut world, "d2", &json!({"coordinates": {"app": {"version": "d1"}}}));
    pass(&mut world, DEADLINE * 3);
    assert_eq!(world.deployment("d2"), "in progress");
    assert!(!is_stalled(&world, "d2"), "people have to approve the start");
    assert!(waits(&world, "d2").starts_with("approval of operation "), "{}", waits(&world, "d2"));
    world.approve_all();
    world.run();
    pass(&mut world, Duration::from_secs(59));
    assert!(!is_stalled(&world, "d2"), "it counts from the approval");
    pass(&mut world, Duration::from_secs(2));
    assert!(is_stalled(&world, "d2"));

    // A person restarts a replica of the previous version: its update follows later.
    for decide in ["operation.approve", "operation.reject"] {
        let mut world = world_with_manual("restart");
        let first = world.fleet.replicas().sorted()[0].name.clone();
        world.must("replica.restart", &json!({"name": first}));
        world.run();
        create(&mut world, "d2", &json!({"auto_rollback": true}));
        world.obey();
        pass(&mut world, DEADLINE * 3);
        assert_eq!(world.deployment("d2"), "in progress");
        assert!(!is_stalled(&world, "d2"), "people have to approve the restart");
        assert!(waits(&world, "d2").starts_with("approval of operation "), "{}", waits(&world, "d2"));
        let restart = world.pending()[0];
        let (id, hash) = (restart.id, restart.hash.expect("it is known"));
        let ask = match decide {
            "operation.approve" => json!({"operations": [{"operation": id, "hash": hash}]}),
            _ => json!({"operations": [id], "reason": "no"}),
        };
        world.must(decide, &ask);
        world.run();
        pass(&mut world, Duration::from_secs(59));
        assert_eq!(world.deployment("d2"), "in progress", "{decide}: it counts from the decision");
    }

    // A stop of a replica that has the new version delays nothing, and a late deployment is called late.
    let mut world = world_with_manual("stop");
    create(&mut world, "d2", &json!({}));
    let first = world.asked().next().expect("one is updated");
    world.report(first, ready());
    world.obey_one();
    let done = world.fleet.incarnations().get(&first).expect("it runs").replica.clone();
    world.must("replica.stop", &json!({"name": done}));
    world.run();
    pass(&mut world, DEADLINE + Duration::from_secs(1));
    assert!(is_stalled(&world, "d2"));
}

#[test]
fn time_in_which_a_deployment_is_paused_or_a_canary_waits_is_not_time_without_progress() {
    let mut world = world("automatic");
    create(&mut world, "d2", &json!({"strategy": {"canary": {"count": 1}}}));
    world.obey();
    pass(&mut world, DEADLINE * 3);
    assert!(!is_stalled(&world, "d2"), "people have to promote it");
    assert!(
        waits(&world, "d2").contains("promote or roll back deployment web/d2"),
        "{}",
        waits(&world, "d2")
    );
    world.must("deployment.promote", &json!({"plan": "web", "name": "d2"}));
    world.run();
    world.must("deployment.pause", &json!({"plan": "web", "name": "d2"}));
    pass(&mut world, DEADLINE * 3);
    assert!(!is_stalled(&world, "d2"));
    assert!(waits(&world, "d2").contains("resume or cancel web/d2"), "{}", waits(&world, "d2"));
    world.must("deployment.resume", &json!({"plan": "web", "name": "d2"}));
    pass(&mut world, DEADLINE * 2);
    assert!(is_stalled(&world, "d2"), "it counts again");
}

#[test]
fn the_pause_of_a_strategy_is_not_time_without_progress() {
    let mut world = world("automatic");
    create(&mut world, "d2", &json!({"strategy": {"rolling": {"max_parallel": 1, "delay": 600_000}}}));
    let first = world.asked().next().expect("one is updated");
    world.report(first, ready());
    world.obey();
    pass(&mut world, Duration::from_secs(500));
    assert!(!is_stalled(&world, "d2"));
    pass(&mut world, Duration::from_secs(170));
    assert!(is_stalled(&world, "d2"), "the second was started after the pause, and is not ready");
}

#[test]
fn a_stalled_deployment_is_rolled_back_if_configured() {
    let mut world = world("automatic");
    create(&mut world, "d2", &json!({"auto_rollback": true}));
    pass(&mut world, DEADLINE + Duration::from_secs(1));
    assert_eq!(world.deployment("d2"), "failed");
    let all = world.fleet.deployments().sorted();
    let rule = all.iter().find_map(|of| of.rollback.as_ref()?.rule.clone()).expect("it is rolled back");
    assert!(rule.reason.starts_with("no progress for 1 min: waits for operation "), "{}", rule.reason);
    world.obey();
    assert_eq!(world.phases(), ["running", "running"]);
}

#[test]
fn each_way_to_wait_names_what_is_waited_for_and_who_can_change_it() {
    let mut world = world("automatic");
    create(&mut world, "d2", &json!({}));
    let new = world.asked().next().expect("one is updated");
    let reason = waits(&world, "d2");
    let wanted = format!("incarnation {new} on node ");
    for part in [
        "operation ",
        "(update of web-",
        &wanted,
        "to be ready since ",
        ", until ",
        "cancel deployment web/d2",
    ] {
        assert!(reason.contains(part), "{part:?} in {reason:?}");
    }
    let error = ProbeError::Refused;
    let unready = ObservedState::NotReady { processes: vec![process(ProcessStatus::Unready { error })] };
    world.report(new, unready);
    let reason = waits(&world, "d2");
    assert!(reason.contains("to be ready (readiness probe of app-0: connection refused) since "), "{reason}");
    create(&mut world, "d3", &json!({}));
    assert!(waits(&world, "d3").contains("deployment web/d2 to end"), "{}", waits(&world, "d3"));
    world.report(new, ready());
    let reason = waits(&world, "d2");
    assert!(reason.contains("to end since ") && reason.contains("expunge node "), "{reason}");
    world.must("deployment.cancel", &json!({"plan": "web", "name": "d2"}));
    assert_eq!(waits(&world, "d2"), reason, "the operation that stops the old incarnation completes");
    // No other node has capacity.
    let mut world = TestFleet::with_nodes(1);
    world.plan_with("automatic", &json!({"restart": "never"}));
    create(&mut world, "d1", &json!({}));
    let first = world.asked().next().expect("one has a place");
    world.report(first, ObservedState::Ready { processes: Vec::new() });
    let reason = waits(&world, "d1");
    assert!(
        reason.contains("a node for operation ") && reason.contains("add or free such a node"),
        "{reason}"
    );
}
