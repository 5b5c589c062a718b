//! Plays simulated worlds: `simulate [SEEDS] [FROM]`, or one with `SEED=…`, told as a story if it fails.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use chancery_tests::sim::{Counts, Played, Script, Story, play, shrink};

fn main() -> ExitCode {
    if let Some(seed) = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        return one(seed);
    }
    #[cfg(feature = "planted")]
    if std::env::args().nth(1).as_deref() == Some("planted") {
        return planted();
    }
    let mut numbers = std::env::args().skip(1).filter_map(|number| number.parse().ok());
    let seeds: u64 = numbers.next().unwrap_or(1000);
    let from: u64 = numbers.next().unwrap_or(1);
    println!("seeds {from} to {}", from + seeds - 1);
    many(from, seeds)
}

/// One world; if something does not hold in it, the smallest that was found to fail likewise, as a story.
fn one(seed: u64) -> ExitCode {
    println!("seed {seed}");
    let script = Script::draw(seed);
    let told = std::env::var_os("STORY").is_some();
    let played = play(script.clone(), if told { Story::Told } else { Story::Untold });
    for line in &played.story {
        println!("{line}");
    }
    println!("{} events, {:.1} s of its time, ends with {}", played.events, played.seconds, played.hash);
    let Some(violation) = &played.violation else { return ExitCode::SUCCESS };
    println!("{violation}\n");
    let (small, played) = shrink::shrink(&script);
    println!(
        "the smallest world that was found to fail so: faults {:?}, {} inputs, {} steps",
        small.faults,
        small.inputs.len(),
        small.steps
    );
    for line in &played.story {
        println!("{line}");
    }
    if let Some(violation) = played.violation {
        println!("{violation}");
    }
    ExitCode::FAILURE
}

fn many(from: u64, seeds: u64) -> ExitCode {
    let next = AtomicU64::new(from);
    let all: Mutex<(Counts, Vec<(u64, Played)>, f64, u64)> = Mutex::default();
    let began = Instant::now();
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
                    all.0.merge(&played.counts);
                    all.2 += played.seconds;
                    all.3 += played.events;
                    if let Some(violation) = &played.violation {
                        println!("SEED={seed}: {violation}");
                        all.1.push((seed, played));
                    }
                }
            });
        }
    });
    let (counts, failed, seconds, events) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    let counted: BTreeMap<_, _> = counts.iter().collect();
    for (what, count) in counted {
        println!("{count:>10}  {what}");
    }
    println!(
        "{seeds} seeds, {events} events, {:.1} simulated hours, {} violations, {:.1} s",
        seconds / 3600.0,
        failed.len(),
        began.elapsed().as_secs_f64()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Hunts each planted mistake.
#[cfg(feature = "planted")]
fn planted() -> ExitCode {
    use chancery_events::planted::Bug;
    use chancery_tests::sim::hunt::hunt;
    let mut missed = 0;
    for bug in Bug::ALL {
        match hunt(*bug, 1000) {
            Some((seed, violation)) => println!("{bug:?}: seed {seed}, {violation}"),
            None => {
                missed += 1;
                println!("{bug:?}: NOT FOUND");
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
