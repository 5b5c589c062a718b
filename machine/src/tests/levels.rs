//! Raises of the level of a fleet, by what the journal shows of its servers.

use chancery_events::fact::{Fact, TermStarted};
use chancery_events::intent::FleetRaise;
use chancery_events::level::FleetLevel;
use chancery_events::refusal::RefusalCode;

use crate::context::{DecisionContext, LevelLimits};
use crate::decide::{decide, evolve};
use crate::meta::FactPosition;
use crate::testing::TestFleet;

/// Starts a term of a server at this address, whose build knows levels up to `level`.
fn lead(world: &mut TestFleet, address: &str, level: u32) {
    let at = FactPosition {
        position: world.fleet.head().plus(1),
        time: world.now,
        term: world.fleet.term().next(),
        lineage: world.fleet.lineages().current,
    };
    let fact = TermStarted { address: Some(address.into()), level: FleetLevel::new(level) };
    evolve(&mut world.fleet, &fact.into(), at).expect("it is folded");
}

/// Decides a raise by the leader, and folds its facts. Returns the level and the code of a refusal.
fn raise(
    world: &mut TestFleet,
    to: u32,
    without: &[&str],
    levels: LevelLimits,
) -> (FleetLevel, Option<RefusalCode>) {
    let without = without.iter().map(|address| (*address).to_owned()).collect();
    let request = world.request(FleetRaise { to: FleetLevel::new(to), without }.into());
    let (position, lineage) = (world.fleet.head().plus(1), world.fleet.lineages().current);
    let (now, replicas) = (world.now, world.replicas);
    let context = DecisionContext { now, wall: now, next: position, lineage, actor: None, replicas, levels };
    let decided = decide(&world.fleet, &request, &context);
    for fact in decided.as_ref().ok().into_iter().flatten() {
        assert!(matches!(fact, Fact::FleetLevelRaised(_)), "{fact:?}");
        let at = FactPosition { position, time: now, term: world.fleet.term(), lineage };
        evolve(&mut world.fleet, fact, at).expect("it is folded");
    }
    (world.fleet.level(), decided.err().map(|refusal| refusal.code))
}

#[test]
fn a_raise_waits_for_each_server_that_has_led_with_an_older_build() {
    const UNSUPPORTED: Option<RefusalCode> = Some(RefusalCode::Unsupported);
    let of = |highest, has_standbys| LevelLimits { highest: FleetLevel::new(highest), has_standbys };
    for (terms, to, without, limits, level, refusal) in [
        (&[("a", 1), ("b", 2)][..], 2, &[][..], of(2, true), 1, UNSUPPORTED),
        (&[("a", 1), ("b", 2)], 2, &["b"], of(2, true), 1, UNSUPPORTED),
        (&[("a", 1), ("b", 2)], 2, &["a"], of(2, true), 2, None),
        (&[("a", 1), ("b", 2)], 2, &[], of(2, false), 2, None),
        // The server came back with a newer build, and leads or has led.
        (&[("a", 1), ("b", 2), ("a", 2)], 2, &[], of(2, true), 2, None),
        (&[("a", 1), ("b", 2), ("a", 2), ("b", 2)], 2, &[], of(2, true), 2, None),
        // It came back with an older build.
        (&[("a", 2), ("b", 2), ("a", 1), ("b", 2)], 2, &[], of(2, true), 1, UNSUPPORTED),
        (&[("a", 2), ("b", 3)], 3, &[], of(3, true), 1, UNSUPPORTED),
        (&[("a", 2), ("b", 3)], 2, &[], of(3, true), 2, None),
        // The leader does not know the level.
        (&[("a", 3), ("b", 2)], 3, &[], of(2, true), 1, UNSUPPORTED),
        (&[("a", 2), ("b", 2)], 1, &[], of(2, true), 1, None),
        // Nothing is raised.
        (&[("a", 1), ("b", 2)], 1, &[], of(2, true), 1, None),
        (&[], 2, &[], of(2, true), 2, None),
    ] {
        let mut world = TestFleet::new();
        for (address, level) in terms {
            lead(&mut world, address, *level);
        }
        let found = raise(&mut world, to, without, limits);
        assert_eq!(found, (FleetLevel::new(level), refusal), "{terms:?} to {to} without {without:?}");
    }
}

#[test]
fn a_level_is_never_lowered_and_a_second_raise_changes_nothing() {
    let mut world = TestFleet::new();
    let limits = LevelLimits { highest: FleetLevel::new(3), has_standbys: false };
    for (to, level, refusal) in
        [(3, 3, None), (3, 3, None), (2, 3, Some(RefusalCode::InvalidTransition)), (3, 3, None)]
    {
        assert_eq!(raise(&mut world, to, &[], limits), (FleetLevel::new(level), refusal), "to {to}");
    }
    // Also a repeat that excludes no server.
    lead(&mut world, "a", 1);
    lead(&mut world, "b", 3);
    let limits = LevelLimits { has_standbys: true, ..limits };
    assert_eq!(raise(&mut world, 3, &[], limits), (FleetLevel::new(3), None));
}

#[test]
fn the_levels_of_the_servers_that_led_last_are_kept() {
    let mut world = TestFleet::new();
    for number in 0..40 {
        lead(&mut world, &format!("server-{number}"), 1);
    }
    let kept: Vec<_> = world.fleet.levels().servers.iter().map(|server| server.address.to_string()).collect();
    let last: Vec<_> = (24..40).map(|number| format!("server-{number}")).collect();
    assert_eq!(kept, last);
}
