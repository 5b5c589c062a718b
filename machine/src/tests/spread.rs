//! Spread: replicas stay evenly spread over update domains, then over nodes, whatever replaces them.

use std::collections::BTreeMap;

use chancery_events::fact::{Fact, RebalanceEnd};
use chancery_events::name::{DomainName, NodeName, PlanName, ReplicaName};
use chancery_events::refusal::Refusal;
use chancery_events::spec::{BalancePolicy, PlacementPolicy, ProbePurpose};
use serde_json::{Value, json};

use crate::scheduler::{
    AffinityFilter, EXPLAINED, PlacementConstraints, PlacementRequest, unschedulable_reason,
};
use crate::state::{Incarnation, IncarnationState, Plan, Replica};
use crate::testing::{CountInterval, TestFleet, TestRandom, crashed};

/// Creates nodes in the domains, with capacity for eight replicas each.
fn world(domains: &[&str], more: &Value) -> TestFleet {
    let mut world = TestFleet::with_nodes(0);
    for (i, domain) in domains.iter().enumerate() {
        world.add_node(&format!("n{}", i + 1), domain);
    }
    world.plan_with("automatic", more);
    world
}

fn payload(more: &Value) -> Value {
    let mut payload = json!({
        "name": "app", "resources": {"cpu": 500, "memory": 1 << 20}, "run": {"argv": ["app"]},
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        payload[key] = value.clone();
    }
    json!([payload])
}

fn shared() -> Value {
    json!({"sharing": "allowed", "payloads": payload(&json!({}))})
}

/// Executes a deployment to its end.
fn deploy(world: &mut TestFleet, name: &str, version: &str, count: u32, strategy: &Value) {
    let coordinates = json!({"app": {"version": version}});
    let spec = json!({"count": count, "coordinates": coordinates, "strategy": strategy});
    world.must("deployment.create", &json!({"plan": "web", "name": name, "spec": spec}));
    world.run();
    world.obey();
}

fn counted<'a>(world: &'a TestFleet, key: impl Fn(&'a Incarnation) -> &'a str) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for run in world.fleet.incarnations().sorted().into_iter().filter(|run| run.is_live()) {
        *counts.entry(key(run)).or_default() += 1;
    }
    counts
}

/// Returns the number of incarnations by domain, without the domains' names.
fn domains(world: &TestFleet) -> Vec<usize> {
    let domain =
        |run: &Incarnation| world.fleet.nodes().get(&run.node).map(|node| node.spec.domain.to_string());
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for run in world.fleet.incarnations().sorted().into_iter().filter(|run| run.is_live()) {
        *counts.entry(domain(run).expect("its node")).or_default() += 1;
    }
    counts.into_values().collect()
}

fn nodes(world: &TestFleet) -> Vec<usize> {
    counted(world, |run| run.node.as_str()).into_values().collect()
}

fn on(world: &TestFleet, domain: &str) -> Vec<Replica> {
    let replicas = world.fleet.replicas().sorted();
    let there = |replica: &&Replica| replica.active.as_ref().is_some_and(|run| run.domain.as_str() == domain);
    replicas.into_iter().filter(there).cloned().collect()
}

#[test]
fn every_strategy_leaves_the_replicas_as_even_as_they_were() {
    let strategies = [
        ("all concurrently", json!({"rolling": {"max_parallel": 9}})),
        ("one by one", json!({"rolling": {"max_parallel": 1}})),
        ("a new set", json!({"blue_green": {"timeout": 600_000, "on_timeout": "rollback"}})),
    ];
    for (why, strategy) in strategies {
        for more in [json!({}), json!({"update_order": "stop_first"})] {
            let mut spec = shared();
            spec["update_order"] = more["update"].as_str().map_or(json!("start_first"), |word| json!(word));
            let mut world = world(&["a", "a", "b", "b"], &spec);
            deploy(&mut world, "d1", "v1", 4, &json!({"rolling": {}}));
            assert_eq!((domains(&world), nodes(&world)), (vec![2, 2], vec![1, 1, 1, 1]), "{why}");
            for round in 2..=4 {
                deploy(&mut world, &format!("d{round}"), &format!("v{round}"), 4, &strategy);
                assert_eq!(world.deployment(&format!("d{round}")), "completed", "{why} {spec}");
                assert_eq!(domains(&world), [2, 2], "{why} {spec}, round {round}");
                assert_eq!(nodes(&world), [1, 1, 1, 1], "{why} {spec}, round {round}");
            }
        }
    }
}

#[test]
fn an_update_evens_out_what_is_uneven() {
    let mut world = world(&["a"], &shared());
    deploy(&mut world, "d1", "v1", 4, &json!({"rolling": {}}));
    world.add_node("n2", "b");
    deploy(&mut world, "d2", "v2", 4, &json!({"rolling": {"max_parallel": 4}}));
    assert_eq!(
        domains(&world),
        [2, 2],
        "each is placed by what remains, though all are in progress concurrently"
    );
}

#[test]
fn a_new_set_is_spread_on_its_own_for_the_old_one_is_deleted() {
    let mut world = world(&["a"], &shared());
    deploy(&mut world, "d1", "v1", 4, &json!({"rolling": {}}));
    world.add_node("n2", "b");
    let blue_green = json!({"blue_green": {"timeout": 600_000, "on_timeout": "rollback"}});
    deploy(&mut world, "d2", "v2", 4, &blue_green);
    assert_eq!((world.deployment("d2"), domains(&world)), ("completed".into(), vec![2, 2]));
}

#[test]
fn a_canary_that_is_promoted_leaves_an_even_spread() {
    let mut world = world(&["a", "b"], &shared());
    deploy(&mut world, "d1", "v1", 4, &json!({"rolling": {}}));
    deploy(&mut world, "d2", "v2", 4, &json!({"canary": {"count": 1}}));
    world.must("deployment.promote", &json!({"plan": "web", "name": "d2"}));
    world.run();
    world.obey();
    assert_eq!((world.deployment("d2"), domains(&world)), ("completed".into(), vec![2, 2]));
}

#[test]
fn what_will_be_deleted_does_not_count_though_no_person_approved_that_yet() {
    let mut world = world(&["a", "b"], &shared());
    world.plan_with("automatic", &shared());
    deploy(&mut world, "d1", "v1", 4, &json!({"rolling": {}}));
    let mut spec = shared();
    spec["approval"] = json!({"create": "automatic", "delete": "manual"});
    world.plan_with("automatic", &spec);
    for replica in on(&world, "a") {
        world.must("replica.delete", &json!({"name": replica.name}));
    }
    world.must("replica.create", &json!({"plan": "web"}));
    world.run();
    world.obey();
    assert_eq!(on(&world, "a").len(), 3, "domain a gets none of the others");
}

#[test]
fn a_failed_replacement_counts_where_its_predecessor_stays() {
    let mut world = world(&["a", "b"], &shared());
    deploy(&mut world, "d1", "v1", 2, &json!({"rolling": {}}));
    let moved = on(&world, "a")[0].name.clone();
    world.must("replica.relocate", &json!({"name": moved, "node": "n2"}));
    world.run();
    let spread = |world: &TestFleet| {
        let index = world.fleet.index().plan_index(&crate::testing::name("web")).expect("its plan");
        ["a", "b"].map(|domain| index.spread.in_domain(&domain.parse().expect("a name")))
    };
    assert_eq!(spread(&world), [0, 2], "when it has succeeded");
    let new = *world.commanded().last().expect("the replacement");
    world.report(new, crashed());
    assert_eq!(spread(&world), [1, 1], "its predecessor stays");
}

#[test]
fn scale_down_takes_from_the_fullest_node_of_the_fullest_domain() {
    let mut world = world(&["a", "a", "b", "b"], &shared());
    deploy(&mut world, "d1", "v1", 7, &json!({"rolling": {}}));
    deploy(&mut world, "d2", "v1", 4, &json!({"rolling": {}}));
    assert_eq!((domains(&world), nodes(&world)), (vec![2, 2], vec![1, 1, 1, 1]));
}

#[test]
fn replicas_of_a_drained_node_are_placed_so_that_the_spread_stays_even() {
    let mut spec = shared();
    spec["max_unavailable"] = json!(4);
    let mut world = world(&["a", "a", "b", "b"], &spec);
    deploy(&mut world, "d1", "v1", 4, &json!({"rolling": {}}));
    let disruption = json!({"node": "n1", "name": "x", "spec": {"action": "drain"}});
    world.must("disruption.schedule", &disruption);
    world.must("disruption.approve", &json!({"node": "n1", "name": "x"}));
    world.run();
    world.obey();
    assert_eq!((domains(&world), nodes(&world)), (vec![2, 2], vec![2, 1, 1]), "it stays in its domain");
}

/// Returns every allowed move that would make the spread of the plan more even, found by a full scan.
fn better(world: &TestFleet, plan: &Plan, strict: AffinityFilter) -> Vec<(ReplicaName, NodeName)> {
    let fleet = &world.fleet;
    let replicas = fleet.replicas().sorted();
    let mut found = Vec::new();
    for replica in replicas.iter().filter(|replica| replica.plan == plan.name && replica.is_updatable()) {
        let (Some(own), Some(from)) = (
            replica.active.as_ref().and_then(|active| fleet.incarnations().get(&active.incarnation)),
            replica.remaining(),
        ) else {
            continue;
        };
        if own.state != IncarnationState::Running {
            continue;
        }
        let others = || {
            let others = replicas.iter().filter(|r| r.plan == plan.name && r.name != replica.name);
            others.filter_map(|r| r.remaining())
        };
        let in_domain = |domain: &DomainName| others().filter(|run| run.domain == *domain).count();
        let on_node = |node: &NodeName| others().filter(|run| run.node == *node).count();
        let deployment = (plan.name.clone(), replica.deployment.clone());
        let version = plan.version_of(fleet.deployments().get(&deployment).expect("its version").generation);
        let immediate = plan.immediate();
        let none = chancery_events::spec::PayloadCoordinates::new();
        let need = PlacementRequest {
            plan: &plan.name,
            deployment: &replica.deployment,
            immediate,
            version,
            coordinates: &none,
        };
        let limits = PlacementConstraints {
            not: Some(&from.node),
            own: Some(own),
            leaves: Some(from),
            ..PlacementConstraints::default()
        };
        for node in fleet.nodes().sorted() {
            let domain = &node.spec.domain;
            let is_better = if *domain == from.domain {
                on_node(&node.name) < on_node(&from.node)
            } else {
                in_domain(domain) < in_domain(&from.domain)
            };
            if is_better && unschedulable_reason(fleet, &need, &limits, node, strict).is_none() {
                found.push((replica.name.clone(), node.name.clone()));
            }
        }
    }
    found
}

/// Executes all operations in progress, and lets plans be checked.
fn settle(world: &mut TestFleet) {
    for _ in 0..20 {
        world.approve_all();
        world.obey();
        world.wait(12);
    }
}

fn is_at_rest(world: &TestFleet, plan: &Plan) -> bool {
    let index = world.fleet.index().plan_index(&plan.name);
    index.is_none_or(|index| index.open == 0) && plan.current.is_none() && plan.next.is_none()
}

/// Checks that no move would be better, or that the plan is marked uneven.
fn holds(world: &TestFleet, why: &str) {
    for plan in world.fleet.plans().sorted().into_iter().filter(|plan| is_at_rest(world, plan)) {
        let spreads = *plan.immediate().placement() == PlacementPolicy::Spread;
        let found = better(world, plan, AffinityFilter::All);
        if spreads && !found.is_empty() {
            assert_eq!(plan.balance, BalancePolicy::Uneven, "{why}: {found:?} would be better");
        }
        if plan.balance == BalancePolicy::Uneven {
            assert!(
                spreads && !better(world, plan, AffinityFilter::RequiredOnly).is_empty(),
                "{why}: it is even"
            );
        }
    }
}

fn random_node(world: &mut TestFleet, dice: &mut TestRandom) {
    let total = json!({"cpu": 1000 * (1 + dice.below(5)), "memory": 8u64 << 30, "disk": 0});
    let labels = json!({"disk": dice.of(&["ssd", "hdd"])});
    let spec = json!({"domain": dice.of(&["a", "b", "c"]), "resources": total, "labels": labels});
    let name = format!("n{}", dice.below(8));
    world.ask("node.apply", &json!({"name": name, "cluster": "local", "spec": spec})).ok();
}

fn random_plan(world: &mut TestFleet, dice: &mut TestRandom) {
    let mut more = json!({
        "sharing": dice.of(&["allowed", "allowed", "never"]), "update_order": dice.of(&["start_first", "stop_first"]),
        "placement": dice.of(&["spread", "spread", "spread", "pack"]), "max_unavailable": 1 + dice.below(3),
        "restart": dice.of(&["always", "never"]), "restart_delay": 1000,
    });
    if dice.below(4) == 0 {
        more["selectors"] = json!({"disk": "ssd"});
    }
    if dice.below(4) == 0 {
        let (nodes, otherwise) = (dice.of(&["anti_affinity", "affinity"]), dice.of(&["fail", "allow"]));
        more["affinity"] = json!([{"group": "g", "kind": nodes, "policy": otherwise}]);
    }
    world.plan_with(dice.of(&["automatic", "manual"]), &more);
}

fn random_deployment(world: &mut TestFleet, dice: &mut TestRandom, round: u64) {
    let strategy = match dice.below(5) {
        0 => json!({"blue_green": {"timeout": 60_000, "on_timeout": dice.of(&["rollback", "cut_over"])}}),
        1 => json!({"canary": {"count": 1}}),
        2 => json!({"rolling": {"max_parallel": 1 + dice.below(3), "per_domain": dice.below(2) == 0}}),
        _ => json!({"rolling": {}}),
    };
    let coordinates = json!({"app": {"version": format!("v{}", dice.below(3))}});
    let spec = json!({"count": 1 + dice.below(9), "coordinates": coordinates, "strategy": strategy});
    world.ask("deployment.create", &json!({"plan": "web", "name": format!("d{round}"), "spec": spec})).ok();
    world.run();
    // Some of it fails.
    if dice.below(4) == 0 {
        world.approve_all();
        let live = world.commanded();
        if let Some(id) = live.get(dice.below(live.len().max(1) as u64) as usize).copied() {
            world.report(id, crashed());
        }
    }
    settle(world);
    let verb = dice.of(&["promote", "rollback", "cancel"]);
    world.ask(&format!("deployment.{verb}"), &json!({"plan": "web", "name": format!("d{round}")})).ok();
}

fn random_step(world: &mut TestFleet, dice: &mut TestRandom, round: u64) {
    let replicas: Vec<_> = world.fleet.replicas().sorted().iter().map(|r| r.name.clone()).collect();
    let replica = replicas.get(dice.below(9) as usize).cloned();
    let node = format!("n{}", dice.below(8));
    match dice.below(12) {
        0..4 => random_deployment(world, dice, round),
        4..6 => random_node(world, dice),
        6 => {
            let disruption = json!({"node": node, "name": format!("x{round}")});
            let mut schedule = disruption.clone();
            schedule["spec"] = json!({"action": dice.of(&["drain", "none"])});
            world.ask("disruption.schedule", &schedule).ok();
            world.ask("disruption.approve", &disruption).ok();
            settle(world);
            if dice.below(2) == 0 {
                world.ask("disruption.complete", &disruption).ok();
            }
        }
        7 => drop(world.ask("node.set_state", &json!({"name": node, "state": "expunged"}))),
        8 => {
            let live = world.commanded();
            if let Some(id) = live.get(dice.below(live.len().max(1) as u64) as usize).copied() {
                world.report(id, crashed());
            }
        }
        9 => random_plan(world, dice),
        10 => drop(world.ask("plan.rebalance", &json!({"name": "web"}))),
        _ => {
            if let Some(name) = replica {
                let verb = dice.of(&["stop", "start", "delete", "relocate", "restart"]);
                world.ask(&format!("replica.{verb}"), &json!({"name": name})).ok();
            }
        }
    }
    world.run();
}

#[test]
fn what_no_code_reads_is_not_computed() {
    let volumes = json!({"volumes": [{"class": "fast", "capacity": 1, "mount": "/data"}]});
    let mut world = TestFleet::with_nodes(0);
    for (i, domain) in ["a", "b", "a", "b"].iter().enumerate() {
        let spec = json!({
            "domain": domain, "resources": {"cpu": 4000, "memory": 8_u64 << 30, "disk": 0},
            "storage": [{"class": "fast", "capacity": 2}],
        });
        world.must("node.apply", &json!({"name": format!("n{i}"), "cluster": "local", "spec": spec}));
    }
    world.plan_with("automatic", &json!({"sharing": "allowed", "payloads": payload(&volumes)}));
    // Nothing can be moved: the other nodes have too little capacity.
    deploy(&mut world, "d1", "v1", 8, &json!({"rolling": {}}));
    assert_eq!(world.deployment("d1"), "completed");
    EXPLAINED.set(0);
    world.wait(12);
    world.must("plan.rebalance", &json!({"name": "web"}));
    world.run();
    assert_eq!(EXPLAINED.get(), 0, "the reasons against better placements have no reader");
}

/// Requests a rebalance and executes it. Returns whether it was completed.
fn is_evened_out(world: &mut TestFleet, why: &str) -> bool {
    let name: PlanName = crate::testing::name("web");
    let before = world.fleet.head();
    world.must("plan.rebalance", &json!({"name": "web"}));
    settle(world);
    let plan = world.fleet.plans().get(&name).expect("the plan");
    assert_eq!(plan.rebalance, None, "{why}: it ends");
    let completed = world.folded.iter().filter(|(at, _)| at.position > before).any(
        |(_, fact)| matches!(fact, Fact::PlanRebalanceEnded(ended) if ended.end == RebalanceEnd::Completed),
    );
    if completed {
        assert_eq!(better(world, plan, AffinityFilter::All), [], "{why}: nothing is left to do");
    }
    holds(world, why);
    completed
}

#[test]
fn after_any_sequence_of_operations_no_move_is_better_or_the_plan_reports_one() {
    let (mut uneven, mut evened_out) = (0, 0);
    for seed in 1..=60 {
        let mut dice = TestRandom(seed);
        let mut world = TestFleet::with_nodes(0);
        world.counted = CountInterval::AtTheEnd;
        for _ in 0..3 + dice.below(5) {
            random_node(&mut world, &mut dice);
        }
        random_plan(&mut world, &mut dice);
        for round in 0..12 {
            let why = format!("seed {seed}, round {round}");
            random_step(&mut world, &mut dice, round);
            settle(&mut world);
            holds(&world, &why);
            let plan = world.fleet.plans().sorted()[0].clone();
            if plan.balance == BalancePolicy::Uneven && is_at_rest(&world, &plan) {
                uneven += 1;
                if dice.below(2) == 0 && is_evened_out(&mut world, &why) {
                    evened_out += 1;
                }
            }
        }
        world.check();
    }
    assert!(uneven >= 20 && evened_out >= 10, "{uneven} uneven, {evened_out} evened out");
}

#[test]
fn where_there_is_capacity_no_sequence_of_deployments_leaves_an_uneven_spread() {
    for seed in 1..=40 {
        let mut dice = TestRandom(seed);
        let mut domains = vec!["a", "b", "c"];
        domains.truncate(1 + dice.below(3) as usize);
        let nodes: Vec<_> = (0..4 + dice.below(4)).map(|n| domains[n as usize % domains.len()]).collect();
        let update = dice.of(&["start_first", "stop_first"]);
        let mut world = TestFleet::with_nodes(0);
        world.counted = CountInterval::AtTheEnd;
        for (i, domain) in nodes.iter().enumerate() {
            let spec =
                json!({"domain": domain, "resources": {"cpu": 100_000, "memory": 800u64 << 30, "disk": 0}});
            world.must("node.apply", &json!({"name": format!("n{i}"), "cluster": "local", "spec": spec}));
        }
        world.plan_with(
            "automatic",
            &json!({"sharing": "allowed", "update_order": update, "restart": "always"}),
        );
        for round in 0..8 {
            let strategy = match dice.below(4) {
                0 => json!({"blue_green": {"timeout": 600_000, "on_timeout": "rollback"}}),
                1 => json!({"canary": {"count": 1}}),
                _ => json!({"rolling": {"max_parallel": 1 + dice.below(4)}}),
            };
            let count = u32::try_from(1 + dice.below(12)).expect("few");
            deploy(&mut world, &format!("d{round}"), &format!("v{round}"), count, &strategy);
            world.ask("deployment.promote", &json!({"plan": "web", "name": format!("d{round}")})).ok();
            settle(&mut world);
            let plan = world.fleet.plans().sorted()[0].clone();
            assert!(is_at_rest(&world, &plan), "seed {seed}, round {round}");
            let found = better(&world, &plan, AffinityFilter::All);
            assert_eq!(found, [], "seed {seed}, round {round}, {strategy}");
        }
    }
}

/// Returns the number of moves of rebalances so far.
fn moves(world: &TestFleet) -> usize {
    let moves = world.folded.iter().filter(|(_, fact)| {
        matches!(fact, Fact::OperationCreated(opened) if opened.purpose == Some(ProbePurpose::Rebalance))
    });
    moves.count()
}

fn rebalance(world: &mut TestFleet) -> Result<Vec<Fact>, Refusal> {
    let facts = world.ask("plan.rebalance", &json!({"name": "web"}));
    world.run();
    facts
}

/// Creates four replicas on one node, and another node that was added later.
fn grown(approval: &str, more: &Value) -> TestFleet {
    let mut world = world(&["a"], &shared());
    deploy(&mut world, "d1", "v1", 4, &json!({"rolling": {}}));
    world.plan_with(approval, more);
    world.add_node("n2", "b");
    world.wait(12);
    world
}

fn balance(world: &TestFleet) -> BalancePolicy {
    world.fleet.plans().sorted()[0].balance
}

#[test]
fn a_rebalance_moves_as_many_as_it_needs_within_the_budget_and_then_there_is_nothing_to_do() {
    let mut world = grown("automatic", &shared());
    assert_eq!(balance(&world), BalancePolicy::Uneven, "the domain came later");
    assert_eq!(rebalance(&mut world).expect("started").len(), 1);
    assert_eq!(moves(&world), 1, "the budget is one");
    assert!(rebalance(&mut world).expect("in progress").is_empty(), "one is in progress");
    world.obey();
    world.wait(12);
    assert_eq!((moves(&world), domains(&world), balance(&world)), (2, vec![2, 2], BalancePolicy::Even));
    assert!(rebalance(&mut world).expect("nothing to do").is_empty());
    assert_eq!(moves(&world), 2);
}

#[test]
fn all_moves_are_shown_together_and_a_rejection_stops_the_rest() {
    let mut world = grown("manual", &shared());
    rebalance(&mut world).expect("started");
    let pending: Vec<_> = world.pending().iter().map(|operation| operation.id).collect();
    assert_eq!(pending.len(), 2, "two moves even it out");
    world.reject(pending[0]).expect("rejected");
    assert!(world.pending().is_empty(), "the other one is cancelled");
    assert_eq!(world.fleet.plans().sorted()[0].rebalance, None);
    world.wait(12);
    assert_eq!((domains(&world), balance(&world)), (vec![4], BalancePolicy::Uneven), "nothing was moved");
    rebalance(&mut world).expect("started again");
    world.approve_all();
    world.obey();
    assert_eq!(domains(&world), [2, 2]);
}

#[test]
fn a_rebalance_of_what_stops_first_keeps_the_budget_though_people_approve() {
    let volume = json!([{"class": "s", "capacity": 1, "mount": "/data", "on_delete": "keep"}]);
    let payload = payload(&json!({"volumes": volume}));
    let mut world = TestFleet::with_nodes(0);
    let add = |world: &mut TestFleet, node: &str, domain: &str| {
        let spec = json!({"domain": domain, "resources": {"cpu": 4000, "memory": 8u64 << 30, "disk": 0},
            "storage": [{"class": "s", "capacity": 10}]});
        world.must("node.apply", &json!({"name": node, "cluster": "local", "spec": spec}));
    };
    add(&mut world, "n1", "a");
    world.plan_with("manual", &json!({"sharing": "allowed", "payloads": payload}));
    world.running("d1", 4);
    add(&mut world, "n2", "b");
    world.wait(12);
    assert_eq!(balance(&world), BalancePolicy::Uneven);
    rebalance(&mut world).expect("started");
    assert_eq!(
        world.pending().len(),
        1,
        "the incarnation is stopped before the new one starts: one at a time"
    );
    for _ in 0..4 {
        world.approve_all();
        world.obey();
        world.run();
    }
    assert_eq!(domains(&world), [2, 2]);
}

#[test]
fn a_deployment_supersedes_a_rebalance() {
    let mut world = grown("manual", &shared());
    rebalance(&mut world).expect("started");
    world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": {"count": 4}}));
    world.run();
    assert!(world.pending().iter().all(|operation| operation.purpose.is_none()), "its moves are cancelled");
    assert_eq!(world.fleet.plans().sorted()[0].rebalance, None);
}

#[test]
fn a_rebalance_is_refused_with_the_reason_where_it_makes_no_sense() {
    let mut packed = shared();
    packed["placement"] = json!("pack");
    let mut world = grown("manual", &packed);
    assert_eq!(balance(&world), BalancePolicy::Even, "what is packed is not spread");
    let refusal = rebalance(&mut world).expect_err("refused");
    assert!(refusal.detail.contains("placement pack"), "{}", refusal.detail);
    let mut world = grown("manual", &shared());
    world.must("deployment.create", &json!({"plan": "web", "name": "d2", "spec": {"count": 5}}));
    let refusal = rebalance(&mut world).expect_err("refused");
    assert!(refusal.detail.contains("deployment d2"), "{}", refusal.detail);
}
