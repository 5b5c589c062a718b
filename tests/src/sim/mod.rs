//! Deterministic simulation: whole worlds in one thread, each played from one seed.
//!
//! In reading order: what a seed draws ([`script`], with what people ask in `asks`), what may go wrong ([`fault`]), the world and its parts
//! ([`universe`], [`server`], what one shows in [`rows`], [`executor`], [`producer`], its inbox in `letters`), what can happen in a
//! step ([`step`], then [`serving`], [`executing`], [`breakage`]), who reads ([`readers`]), who judges ([`judge`]), and the end of faults ([`settle`]). Deciders, projector, executors, orchestrator and the rule
//! of the journal are those that users run. [`play`] plays a seed; [`shrink`] makes a failure smaller.

mod asks;
mod breakage;
mod executing;
pub mod executor;
pub mod fault;
mod judge;
pub mod letters;
pub mod producer;
mod random;
pub mod readers;
pub mod rows;
pub mod script;
pub mod server;
mod serving;
mod settle;
pub mod shrink;
mod step;
pub mod universe;
mod words;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

pub use fault::{Counts, Fault};
pub use random::Random;
pub use script::Script;

use crate::check::Violation;
use universe::Universe;

/// What became of a world.
#[derive(Debug)]
pub struct Played {
    /// What happened how often.
    pub counts: Counts,
    /// The world's time in the end, in seconds.
    pub seconds: f64,
    /// Events in its log.
    pub events: u64,
    /// The hash of its last record, which tells worlds apart.
    pub hash: String,
    /// What does not hold, if anything does not.
    pub violation: Option<Violation>,
    /// What happened, if it was told.
    pub story: Vec<String>,
}

/// Whether a story is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Story {
    /// It costs more than the world.
    Told,
    /// Only what came of it.
    Untold,
}

/// Plays a script to its end, or to the first violation.
pub fn play(script: Script, story: Story) -> Played {
    let mut world = Universe::new(script, story == Story::Told);
    let ended = catch_unwind(AssertUnwindSafe(|| world.play()));
    let violation = match ended {
        Ok(ended) => ended.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Some(judge::violation(0, format!("a panic: {text}"), None))
        }
    };
    if violation.is_some() {
        world.tell_the_log();
    }
    Played {
        seconds: world.now.as_secs_f64(),
        events: world.judge.position().get(),
        hash: world.judge.state().map(|state| state.at.hash.to_string()).unwrap_or_default(),
        violation,
        story: world.story.take().unwrap_or_default(),
        counts: world.counts,
    }
}

/// A seed whose world does not hold.
#[derive(Debug)]
pub struct Failed {
    /// The seed.
    pub seed: u64,
    /// What does not hold.
    pub violation: Violation,
}

/// What became of many worlds.
#[derive(Debug, Default)]
pub struct Many {
    /// What happened how often.
    pub counts: Counts,
    /// Simulated time, in hours.
    pub hours: f64,
    /// Events in their logs.
    pub events: u64,
    /// Those that do not hold, in the order of their seeds.
    pub failed: Vec<Failed>,
}

/// The first world of so many seeds that does not hold.
pub fn first_failed(seeds: u64) -> Option<Failed> {
    const AT_ONCE: u64 = 16;
    (1..=seeds)
        .step_by(AT_ONCE as usize)
        .find_map(|from| play_many(from, AT_ONCE.min(seeds + 1 - from)).failed.into_iter().next())
}

/// Plays so many seeds from one on, on every processor.
pub fn play_many(from: u64, seeds: u64) -> Many {
    let next = AtomicU64::new(from);
    let all: Mutex<Many> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + seeds {
                        break;
                    }
                    let played = play(Script::draw(seed), Story::Untold);
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    all.counts.merge(&played.counts);
                    all.hours += played.seconds / 3600.0;
                    all.events += played.events;
                    all.failed.extend(played.violation.map(|violation| Failed { seed, violation }));
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.failed.sort_by_key(|failed| failed.seed);
    all
}
