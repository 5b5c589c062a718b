//! Planted mistakes: each is found by the simulation, or the simulation is worth nothing. Needs the feature `planted`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use chancery_events::planted::{Bug, plant};
use chancery_tests::sim::hunt::hunt;
use chancery_tests::sim::{Script, Story, play, shrink};

/// Seeds within which each must be found.
const SEEDS: u64 = 2000;

/// Those whose names hold what `BUG` says; all without it.
fn bugs() -> Vec<Bug> {
    let named = std::env::var("BUG").unwrap_or_default();
    Bug::ALL.iter().copied().filter(|bug| format!("{bug:?}").contains(&named)).collect()
}

#[test]
fn each_planted_mistake_is_found() {
    let (next, bugs) = (AtomicUsize::new(0), bugs());
    let missed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match hunt(*bug, SEEDS) {
                        Some((seed, violation)) => println!("{bug:?}: seed {seed}: {violation}"),
                        None => missed.lock().expect("nobody panics with it").push(*bug),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("nobody panics with it");
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}

#[test]
fn a_failing_world_is_made_smaller_and_told() {
    plant(Some(Bug::TimeoutIsDeath));
    let (script, played) = (1..=SEEDS)
        .map(|seed| (Script::draw(seed), play(Script::draw(seed), Story::Untold)))
        .find(|(_, played)| played.violation.is_some())
        .expect("it is found");
    let (small, told) = shrink::shrink(&script);
    plant(None);
    let invariant = |violation: Option<chancery_tests::check::Violation>| violation.map(|it| it.invariant);
    assert_eq!(invariant(told.violation), invariant(played.violation));
    assert!(small.inputs.len() < script.inputs.len() || small.faults.len() < script.faults.len());
    assert!(told.story.iter().any(|line| line.contains("asks server")), "{:#?}", told.story);
}
