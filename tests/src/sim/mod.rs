//! Deterministic simulation: whole worlds in one thread, each played from one seed.
//!
//! Reading order: draws ([`script`], with people in `requests`), faults ([`fault`]), the world and its parts
//! ([`universe`], [`server`], its [`rows`], [`executor`], [`producer`], and the inbox). Then actions
//! ([`step`], [`serving`], [`executing`], [`breakage`]), readers ([`readers`]), the oracle ([`oracle`]), and
//! the end of faults ([`settle`]), with readers of the past (`past`, `causes`) and dry runs (`dry_runs`).
//! Scenarios of guests ([`guests`]) are played in worlds whose requests and some faults a test
//! chooses ([`guided`]). Deciders, projector, executors, orchestrator and journal rule are the real
//! ones, and so is all of the executor of pods: [`kubernetes`] has only the API below it. [`play`] plays a seed; [`shrink`] reduces a failure.

mod breakage;
mod causes;
mod dry_runs;
mod executing;
pub mod executor;
pub mod fault;
pub mod guests;
pub mod guided;
pub mod kubernetes;
pub mod messages;
mod oracle;
mod past;
pub mod producer;
mod random;
pub mod readers;
mod rendering;
mod requests;
pub mod rows;
pub mod script;
pub mod server;
mod serving;
mod settle;
pub mod shrink;
mod step;
pub mod universe;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

pub use fault::{OccurrenceCounts, SimulatedFault};
pub use random::RandomSource;
pub use script::WorldScript;

use crate::check::InvariantViolation;
use universe::ScriptedWorld;

/// Result of a world.
#[derive(Debug)]
pub struct WorldResult {
    /// Counts of events, by name.
    pub counts: OccurrenceCounts,
    /// World's time at the end, in seconds.
    pub seconds: f64,
    /// Events in the log.
    pub events: u64,
    /// Hash of the last record, which identifies the world.
    pub hash: String,
    /// Violation, if one was found.
    pub violation: Option<InvariantViolation>,
    /// Trace of the world; empty if it was not recorded.
    pub trace: Vec<String>,
}

/// Whether a trace is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceOption {
    /// Recorded, which costs more than the world.
    Traced,
    /// Not recorded; there is only the result.
    Untraced,
}

/// Plays a script to its end, or to the first violation.
pub fn play(script: WorldScript, trace: TraceOption) -> WorldResult {
    let mut world = ScriptedWorld::new(script, trace == TraceOption::Traced);
    let violation = violation_of(|| world.play());
    result_of(world, violation)
}

/// Returns the violation that ends a world, if any; a panic is one.
fn violation_of(play: impl FnOnce() -> Result<(), InvariantViolation>) -> Option<InvariantViolation> {
    match catch_unwind(AssertUnwindSafe(play)) {
        Ok(ended) => ended.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Some(oracle::violation(0, format!("a panic: {text}"), None))
        }
    }
}

/// Returns the result of a world that has ended.
fn result_of(mut world: ScriptedWorld, violation: Option<InvariantViolation>) -> WorldResult {
    if violation.is_some() {
        world.trace_log();
    }
    WorldResult {
        seconds: world.now.as_secs_f64(),
        events: world.oracle.position().get(),
        hash: world.oracle.state().map(|state| state.at.hash.to_string()).unwrap_or_default(),
        violation,
        trace: world.trace.take().unwrap_or_default(),
        counts: world.counts,
    }
}

/// Seed of a world with a violation.
#[derive(Debug)]
pub struct FailedWorld {
    /// Seed of the world.
    pub seed: u64,
    /// Violation in the world.
    pub violation: InvariantViolation,
}

/// Result of many worlds.
#[derive(Debug, Default)]
pub struct WorldsResult {
    /// Counts of events, by name.
    pub counts: OccurrenceCounts,
    /// Simulated time, in hours.
    pub hours: f64,
    /// Events in all logs.
    pub events: u64,
    /// Worlds with a violation, in the order of their seeds.
    pub failed: Vec<FailedWorld>,
}

/// Returns the first failed world of the seeds from 1 to `seeds`.
pub fn first_failed(seeds: u64) -> Option<FailedWorld> {
    const AT_ONCE: u64 = 16;
    (1..=seeds)
        .step_by(AT_ONCE as usize)
        .find_map(|from| play_many(from, AT_ONCE.min(seeds + 1 - from)).failed.into_iter().next())
}

/// Plays this number of seeds from `from` on, on every processor.
pub fn play_many(from: u64, seeds: u64) -> WorldsResult {
    play_each(from, seeds, |seed| play(WorldScript::draw(seed), TraceOption::Untraced))
}

/// Plays this number of seeds from `from` on with `player`, on every processor.
pub fn play_each(from: u64, seeds: u64, play: impl Fn(u64) -> WorldResult + Sync) -> WorldsResult {
    let next = AtomicU64::new(from);
    let all: Mutex<WorldsResult> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + seeds {
                        break;
                    }
                    let played = play(seed);
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    all.counts.merge(&played.counts);
                    all.hours += played.seconds / 3600.0;
                    all.events += played.events;
                    all.failed.extend(played.violation.map(|violation| FailedWorld { seed, violation }));
                }
            });
        }
    });
    let mut all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.failed.sort_by_key(|failed| failed.seed);
    all
}
