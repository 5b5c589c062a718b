//! Plays simulated worlds: `simulate [SEEDS] [FROM]`, or one with `SEED=…`, told as a story if it fails.

use std::process::ExitCode;
use std::time::Instant;

use chancery_tests::sim::{Failed, Script, Story, play, play_many, shrink};

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
    let began = Instant::now();
    let all = play_many(from, seeds);
    for (what, count) in all.counts.iter() {
        println!("{count:>10}  {what}");
    }
    for Failed { seed, violation } in &all.failed {
        println!("SEED={seed}: {violation}");
    }
    let (hours, events, failed) = (all.hours, all.events, all.failed.len());
    let took = began.elapsed().as_secs_f64();
    println!("{seeds} seeds, {events} events, {hours:.1} simulated hours, {failed} violations, {took:.1} s");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
