//! Strategies of deployments: in waves, with a set alongside the old one, by canaries; paused, superseded,
//! rolled back.

use chancery_events::fact::CommandEffect;
use chancery_events::id::IncarnationId;
use chancery_events::observation::{IncarnationExit, ObservedState, RetryClass};
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::OperationKind;
use serde_json::{Value, json};

use crate::state::{OperationState, Replica};
use crate::testing::{TestFleet, crashed, ended, failed, ready};

fn world(nodes: usize, approval: &str, more: &Value) -> TestFleet {
    let mut world = TestFleet::with_nodes(nodes);
    world.plan_with(approval, more);
    world
}

fn deploy(world: &mut TestFleet, name: &str, version: &str, count: u32, strategy: &Value) {
    let spec = json!({"count": count, "coordinates": {"app": {"version": version}}, "strategy": strategy});
    world.must("deployment.create", &json!({"plan": "web", "name": name, "spec": spec}));
    world.run();
}

fn rolling() -> Value {
    json!({"rolling": {}})
}

fn shared() -> Value {
    json!({"sharing": "allowed", "restart": "never"})
}

/// Returns the number of operations that have started and not ended.
fn begun(world: &TestFleet) -> usize {
    let begun = |o: &&&crate::state::Operation| matches!(o.state, OperationState::Running);
    world.fleet.operations().sorted().iter().filter(begun).count()
}

/// Returns the number of replicas of the deployment.
fn by(world: &TestFleet, deployment: &str) -> usize {
    let is = |r: &&&Replica| r.deployment.as_str() == deployment;
    world.fleet.replicas().sorted().iter().filter(is).count()
}

fn next(world: &TestFleet, wanted: CommandEffect) -> Option<IncarnationId> {
    world.asked().find(|id| world.fleet.incarnations().get(id).is_some_and(|i| i.last_effect == Some(wanted)))
}

/// Action of a test on its world.
type ByHand = fn(&mut TestFleet);

#[test]
fn an_update_proceeds_one_by_one_and_leaves_current_replicas_unchanged() {
    let mut world = world(3, "automatic", &shared());
    deploy(&mut world, "d1", "v1", 4, &rolling());
    world.obey();
    world.fact_types();
    deploy(&mut world, "d2", "v2", 5, &rolling());
    let mut most = 0;
    while let Some(id) = next(&world, CommandEffect::Ensure).or_else(|| next(&world, CommandEffect::Stop)) {
        let updates = world.fleet.operations().sorted();
        let updates = updates.iter().filter(|o| o.kind == OperationKind::Update);
        most = most.max(updates.filter(|o| matches!(o.state, OperationState::Running)).count());
        let incarnation = world.fleet.incarnations().get(&id).expect("there");
        let observed = if incarnation.last_effect == Some(CommandEffect::Ensure) {
            ready()
        } else {
            ended(IncarnationExit::Clean)
        };
        world.report(id, observed);
    }
    assert_eq!((most, world.deployment("d2").as_str(), by(&world, "d2")), (1, "completed", 5));
    world.fact_types();
    deploy(&mut world, "d3", "v2", 6, &rolling());
    let opened = world.fact_types().into_iter().filter(|fact| *fact == "operation.created").count();
    assert_eq!(opened, 1, "one more, and none for replicas that are right");
    world.obey();
    let totals = &world.fleet.plans().get("web").expect("the plan").totals;
    assert_eq!(totals.get(&(OperationKind::Update, "succeeded".into())), Some(&4));
}

#[test]
fn never_more_than_a_wave_is_in_transition_and_a_failure_stops_the_rest() {
    let mut world = world(3, "manual", &shared());
    deploy(&mut world, "d1", "v1", 6, &json!({"rolling": {"max_parallel": 2}}));
    assert_eq!(world.pending().len(), 6, "people see all of them");
    world.approve_all();
    assert_eq!(begun(&world), 2);
    let first = next(&world, CommandEffect::Ensure).expect("one is started");
    world.report(first, ready());
    assert_eq!(begun(&world), 2, "the next one is dequeued");
    let second = next(&world, CommandEffect::Ensure).expect("another is started");
    world.report(second, failed(RetryClass::Permanent));
    assert_eq!(world.deployment("d1"), "ending, failed");
    let third = next(&world, CommandEffect::Ensure).expect("its sibling");
    world.report(third, ready());
    assert_eq!((begun(&world), world.deployment("d1").as_str()), (0, "failed"));
    world.report(second, ObservedState::Gone);
    deploy(&mut world, "d2", "v1", 2, &rolling());
    world.approve_all();
    world.obey();
    assert_eq!(world.deployment("d2"), "completed");
}

#[test]
fn a_rolling_deployment_stays_in_one_domain_at_a_time_and_pauses_after_each() {
    let mut world = world(4, "automatic", &shared());
    deploy(&mut world, "d1", "v1", 4, &rolling());
    world.obey();
    deploy(
        &mut world,
        "d2",
        "v2",
        4,
        &json!({"rolling": {"max_parallel": 4, "per_domain": true, "delay": 60_000}}),
    );
    let domains = |world: &TestFleet| {
        let running = world.fleet.operations().sorted();
        let running = running.iter().filter(|o| matches!(o.state, OperationState::Running));
        running.filter_map(|o| o.domain.clone()).collect::<std::collections::BTreeSet<_>>().len()
    };
    let mut rounds = 0;
    while world.deployment("d2") == "in progress" && rounds < 20 {
        assert!(domains(&world) <= 1, "{:?}", domains(&world));
        world.obey();
        assert_eq!(begun(&world), 0, "it pauses");
        world.wait(59);
        assert_eq!(begun(&world), 0, "a little longer");
        world.wait(1);
        rounds += 1;
    }
    assert!(world.deployment("d2") == "completed" && rounds > 1, "{rounds}");
}

#[test]
fn the_next_one_waits_until_the_started_ones_are_ready() {
    let mut world = world(3, "automatic", &shared());
    deploy(&mut world, "d1", "v1", 3, &json!({"rolling": {"max_parallel": 1}}));
    let first = next(&world, CommandEffect::Ensure).expect("one is started");
    world.report(first, ready());
    let second = next(&world, CommandEffect::Ensure).expect("the next");
    let ailing = crate::testing::process(chancery_events::observation::ProcessStatus::Starting);
    world.report(first, ObservedState::NotReady { processes: vec![ailing] });
    world.report(second, ready());
    assert_eq!(begun(&world), 0, "the first one is not ready");
    world.report(first, ready());
    assert_eq!(begun(&world), 1);
}

#[test]
fn a_paused_deployment_starts_nothing_and_continues_when_it_is_resumed() {
    let mut world = world(3, "manual", &shared());
    deploy(&mut world, "d1", "v1", 2, &rolling());
    let named = json!({"plan": "web", "name": "d1"});
    world.must("deployment.pause", &named);
    assert!(world.must("deployment.pause", &named).is_empty());
    world.run();
    world.approve_all();
    assert_eq!((begun(&world), world.deployment("d1").as_str()), (0, "paused"));
    world.must("deployment.resume", &named);
    world.run();
    assert_eq!(begun(&world), 2);
    world.obey();
    assert_eq!(world.deployment("d1"), "completed");
    let refusal = world.ask("deployment.pause", &named).expect_err("it has ended");
    assert!(
        refusal.code == RefusalCode::InvalidTransition && refusal.detail.contains("completed"),
        "{refusal:?}"
    );
}

#[test]
fn a_superseding_deployment_ends_the_running_one_and_the_last_request_prevails() {
    let mut world = world(3, "manual", &shared());
    deploy(&mut world, "d1", "v1", 3, &rolling());
    let first = world.pending()[0].id;
    world.approve(first).expect("approved");
    let spec = json!({"count": 2, "coordinates": {"app": {"version": "v2"}}});
    world.must(
        "deployment.create",
        &json!({"plan": "web", "name": "d2", "spec": spec, "overlap": "supersede"}),
    );
    world.run();
    assert_eq!(world.deployment("d1"), "ending, superseded");
    for _ in 0..9 {
        world.obey();
        world.approve_all();
    }
    assert_eq!(
        (world.deployment("d1").as_str(), world.deployment("d2").as_str()),
        ("superseded", "completed")
    );
    assert_eq!((by(&world, "d2"), world.phases()), (2, vec!["running", "running"]));
}

fn blue_green(on_timeout: &str) -> Value {
    json!({"blue_green": {"timeout": 60_000, "on_timeout": on_timeout}})
}

#[test]
fn a_blue_green_deployment_is_alongside_the_old_set_until_one_fact_makes_it_count() {
    let mut world = world(3, "automatic", &shared());
    deploy(&mut world, "d1", "v1", 2, &rolling());
    world.obey();
    deploy(&mut world, "d2", "v2", 3, &blue_green("rollback"));
    assert_eq!((by(&world, "d1"), by(&world, "d2")), (2, 3));
    for left in [2, 1] {
        let id = next(&world, CommandEffect::Ensure).expect("one is started");
        world.report(id, ready());
        assert_eq!((by(&world, "d1"), next(&world, CommandEffect::Stop)), (2, None), "{left} are not ready");
    }
    world.fact_types();
    let id = next(&world, CommandEffect::Ensure).expect("the last one");
    world.report(id, ready());
    let cuts = world.fact_types().into_iter().filter(|fact| *fact == "deployment.cut_over").count();
    assert_eq!(cuts, 1);
    world.obey();
    assert_eq!((by(&world, "d1"), by(&world, "d2"), world.deployment("d2").as_str()), (0, 3, "completed"));
}

#[test]
fn at_its_deadline_a_blue_green_deployment_is_rolled_back_or_cuts_over_and_ready_then_is_in_time() {
    for (on_timeout, all_ready, left) in
        [("rollback", false, 2), ("cut_over", false, 0), ("rollback", true, 0)]
    {
        let why = format!("{on_timeout}, all ready: {all_ready}");
        let mut world = world(3, "automatic", &shared());
        deploy(&mut world, "d1", "v1", 2, &rolling());
        world.obey();
        deploy(&mut world, "d2", "v2", 2, &blue_green(on_timeout));
        world.must(
            "node.apply",
            &json!({"name": "node-9", "spec": {"domain": "x", "resources": {"cpu": 1, "memory": 1}}}),
        );
        let id = next(&world, CommandEffect::Ensure).expect("one is started");
        world.report(id, ready());
        if all_ready {
            let id = next(&world, CommandEffect::Ensure).expect("the other");
            world.now = world.now + std::time::Duration::from_mins(1);
            world.report(id, ready());
        } else {
            world.wait(60);
        }
        world.obey();
        assert_eq!(by(&world, "d1"), left, "{why}");
        assert_eq!(by(&world, "d2"), 2 - left, "{why}");
        let ended = if left == 2 { "failed" } else { "completed" };
        assert_eq!(world.deployment("d2"), ended, "{why}");
        assert!(world.phases().iter().all(|phase| *phase == "running"), "{why}");
    }
}

#[test]
fn whatever_ends_a_blue_green_deployment_before_its_cut_over_leaves_the_old_set_whole() {
    let ends: [(&str, ByHand); 3] = [
        ("cancel", |world| drop(world.must("deployment.cancel", &json!({"plan": "web", "name": "d2"})))),
        ("a failure", |world| {
            let id = next(world, CommandEffect::Ensure).expect("one is started");
            world.report(id, failed(RetryClass::Permanent));
            world.report(id, ObservedState::Gone);
        }),
        ("one that supersedes it, back to the old version", |world| {
            let spec = json!({"count": 2, "coordinates": {"app": {"version": "v1"}}});
            let body = json!({"plan": "web", "name": "d3", "spec": spec, "overlap": "supersede"});
            world.must("deployment.create", &body);
        }),
    ];
    for (why, end) in ends {
        let mut world = world(3, "automatic", &shared());
        deploy(&mut world, "d1", "v1", 2, &rolling());
        world.obey();
        let before: Vec<_> = world.fleet.replicas().sorted().iter().map(|r| r.name.clone()).collect();
        deploy(&mut world, "d2", "v2", 3, &blue_green("rollback"));
        end(&mut world);
        world.run();
        world.obey();
        let after: Vec<_> = world.fleet.replicas().sorted().iter().map(|r| r.name.clone()).collect();
        assert_eq!((after, world.phases()), (before, vec!["running", "running"]), "{why}");
    }
}

#[test]
fn a_canary_waits_to_be_promoted_or_rolled_back() {
    for promoted in [true, false] {
        let mut world = world(3, "automatic", &shared());
        deploy(&mut world, "d1", "v1", 3, &rolling());
        world.obey();
        deploy(&mut world, "d2", "v2", 3, &json!({"canary": {"count": 1}}));
        world.obey();
        world.wait(100_000);
        assert_eq!(
            (by(&world, "d1"), by(&world, "d2"), world.deployment("d2").as_str()),
            (3, 1, "in progress")
        );
        let verb = if promoted { "deployment.promote" } else { "deployment.rollback" };
        world.must(verb, &json!({"plan": "web", "name": "d2"}));
        world.run();
        world.obey();
        let (left, ended) = if promoted { ((0, 3), "completed") } else { ((3, 0), "cancelled") };
        assert_eq!(((by(&world, "d1"), by(&world, "d2")), world.deployment("d2").as_str()), (left, ended));
    }
    let mut world = world(1, "automatic", &shared());
    deploy(&mut world, "d1", "v1", 1, &rolling());
    let refusal =
        world.ask("deployment.promote", &json!({"plan": "web", "name": "d1"})).expect_err("no canary");
    assert_eq!(refusal.code, RefusalCode::InvalidTransition);
}

#[test]
fn a_stopped_replica_stays_stopped_during_an_update_and_starts_as_the_new_version() {
    let mut world = world(2, "automatic", &shared());
    deploy(&mut world, "d1", "v1", 1, &rolling());
    world.obey();
    let name = world.replica();
    world.must("replica.stop", &json!({"name": name}));
    world.run();
    world.obey();
    deploy(&mut world, "d2", "v2", 1, &rolling());
    assert_eq!((world.deployment("d2").as_str(), world.phases()), ("completed", vec!["stopped"]));
    world.must("replica.start", &json!({"name": name}));
    world.run();
    world.obey();
    let deployment = world.fleet.incarnations().sorted().last().expect("it runs").deployment.clone();
    assert_eq!(deployment.as_str(), "d2");
}

#[test]
fn a_scale_down_deletes_the_unhealthy_first_then_those_on_disturbed_nodes_then_the_old_version() {
    let mut world = world(4, "automatic", &json!({"restart": "never"}));
    deploy(&mut world, "d1", "v1", 4, &rolling());
    world.obey();
    let sick = world.fleet.replicas().sorted()[1].clone();
    world.report(sick.active.as_ref().expect("it runs").incarnation, crashed());
    let disturbed = world.fleet.replicas().sorted()[2].clone();
    let node = disturbed.active.as_ref().expect("it runs").node.clone();
    world.must("disruption.schedule", &json!({"node": node, "name": "power", "spec": {}}));
    world.must("disruption.approve", &json!({"node": node, "name": "power"}));
    let names = |world: &TestFleet| {
        world.fleet.replicas().sorted().iter().map(|r| r.name.clone()).collect::<Vec<_>>()
    };
    deploy(&mut world, "d2", "v1", 3, &rolling());
    world.obey();
    assert!(!names(&world).contains(&sick.name));
    deploy(&mut world, "d3", "v1", 2, &rolling());
    world.obey();
    assert!(!names(&world).contains(&disturbed.name));
}

#[test]
fn what_is_left_of_too_many_is_spread_over_domains_whenever_they_are_approved() {
    for approval in ["automatic", "manual"] {
        let mut world = world(4, approval, &json!({}));
        deploy(&mut world, "d1", "v1", 4, &rolling());
        world.approve_all();
        world.obey();
        deploy(&mut world, "d2", "v1", 2, &rolling());
        world.approve_all();
        world.obey();
        let left = world.fleet.replicas().sorted();
        let domains: std::collections::BTreeSet<_> =
            left.iter().filter_map(|replica| replica.active.as_ref()).map(|run| run.domain.clone()).collect();
        assert_eq!((left.len(), domains.len()), (2, 2), "{approval}");
    }
}
