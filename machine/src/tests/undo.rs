//! A fold that is rolled back leaves everything unchanged, however often an entity was changed in it.

use std::time::Duration;

use chancery_events::fact::Fact;
use chancery_events::id::{Position, Term};
use chancery_events::subject::Subject;
use serde_json::json;

use crate::decide::evolve;
use crate::fleet::{ChangedEntity, FleetState};
use crate::meta::FactPosition;
use crate::testing::{CountInterval, TestFleet, crashed};

/// Renders the state and its indexes, for comparison.
fn shown(fleet: &FleetState) -> (String, String) {
    let catalogue = (fleet.clusters().sorted(), fleet.nodes().sorted(), fleet.sessions().sorted());
    let wanted = (fleet.plans().sorted(), fleet.deployments().sorted(), fleet.replicas().sorted());
    let running = (fleet.incarnations().sorted(), fleet.operations().sorted());
    let state = format!("{} {:?} {catalogue:?} {wanted:?} {running:?}", fleet.head(), fleet.lineages());
    (state, format!("{:?}", fleet.index()))
}

/// Returns a fleet, and later facts: creates, reservations, starts, ends, a restart, deletes.
fn history() -> (FleetState, Vec<Fact>, Position) {
    let mut world = TestFleet::with_nodes(4);
    world.counted = CountInterval::AtTheEnd;
    world.plan("automatic");
    world.running("d0", 1);
    world.fact_types();
    // Positions of logged facts are dense only if no intent is between them: so all intents are first.
    let deploy = |world: &mut TestFleet, name: &str, count: u32| {
        world.must("deployment.create", &json!({"plan": "web", "name": name, "spec": {"count": count}}));
    };
    deploy(&mut world, "d1", 4);
    world.fact_types();
    let (before, first) = (world.fleet.clone(), world.fleet.head().plus(1));
    world.run();
    (before, world.log.clone(), first)
}

fn fold(fleet: &mut FleetState, facts: &[Fact], first: Position) {
    let lineage = fleet.lineages().current;
    let time = chancery_events::time::Time::EPOCH + Duration::from_secs(1_000_000);
    for (position, fact) in (first.get()..).map(Position::new).zip(facts) {
        evolve(fleet, fact, FactPosition { position, time, term: Term::FIRST, lineage }).expect("it fits");
    }
    fleet.settle();
}

#[test]
fn undoing_any_number_of_facts_restores_the_same_state_and_indexes() {
    let (mut fleet, facts, first) = history();
    assert!(facts.len() > 10, "{}", facts.len());
    let copy = fleet.clone();
    for count in 1..=facts.len() {
        let before = shown(&fleet);
        fleet.savepoint();
        fold(&mut fleet, &facts[..count], first);
        assert_ne!(shown(&fleet).0, before.0);
        fleet.roll_back();
        assert_eq!(shown(&fleet), before, "after {count} facts");
        fleet.savepoint();
        fold(&mut fleet, &facts[..count], first);
        fleet.roll_back_broken();
        assert_eq!(shown(&fleet), before, "after {count} facts and a panic");
    }
    assert_eq!(shown(&copy), shown(&fleet), "a copy that others keep is not changed with it");
}

#[test]
fn what_has_changed_is_reported_once_for_each_savepoint() {
    let (mut fleet, facts, first) = history();
    fleet.savepoint();
    fold(&mut fleet, &facts, first);
    let subject = |was: ChangedEntity<'_>| match was {
        ChangedEntity::Replica(name, _) => Subject::Replica(name.clone()),
        ChangedEntity::Incarnation(id, _) => Subject::Incarnation(id),
        ChangedEntity::Operation(id, _) => Subject::Operation(id),
        ChangedEntity::Other(subject) => subject,
    };
    let touched: Vec<_> = fleet.changed().map(subject).collect();
    let mut once = touched.clone();
    once.sort();
    once.dedup();
    assert_eq!(touched.len(), once.len(), "{touched:?}");
    for fact in &facts {
        // The node of a reservation is named, and is not itself changed.
        for subject in fact.subjects().into_iter().filter(|subject| !matches!(subject, Subject::Node(_))) {
            assert!(once.contains(&subject), "{subject} of {}", fact.type_name());
        }
    }
    fleet.savepoint();
    assert_eq!(fleet.changed().count(), 0);
}

#[test]
fn an_end_that_is_undone_has_its_reservation_again() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.running("d1", 1);
    let id = world.commanded()[0];
    let (mut fleet, before) = (world.fleet.clone(), shown(&world.fleet));
    let first = fleet.head().plus(2);
    let facts = world.report(id, crashed());
    fleet.savepoint();
    fold(&mut fleet, &facts, first);
    assert_ne!(shown(&fleet), before);
    fleet.roll_back();
    assert_eq!(shown(&fleet), before);
}

#[test]
fn capacity_added_after_an_undone_addition_is_found() {
    let mut world = TestFleet::with_nodes(1);
    world.plan("automatic");
    world.deploy("d1", 5);
    assert!(world.fact_types().contains(&"plan.unschedulable"), "others wait for capacity");
    let mut ahead = world.clone();
    ahead.wait(1);
    for _ in 0..20 {
        ahead.must("cluster.set_activity", &json!({"name": "local", "activity": "inactive"}));
        ahead.must("cluster.set_activity", &json!({"name": "local", "activity": "active"}));
    }
    world.fleet.savepoint();
    for (at, fact) in &ahead.folded[world.folded.len()..] {
        evolve(&mut world.fleet, fact, *at).expect("it fits");
    }
    world.fleet.roll_back();
    world.run();
    assert!(world.fact_types().is_empty(), "there is none yet, and that was checked");
    world.add_node("node-2", "d2");
    world.run();
    assert!(world.fact_types().contains(&"incarnation.reserved"));
}
