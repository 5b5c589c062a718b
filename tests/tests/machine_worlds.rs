//! Worlds of virtual machines: scenarios that are played with many seeds, with kills of servers and executors at drawn moments. The
//! numbers are those of [`docs/checks.md`](../../docs/checks.md) and [`docs/races.md`](../../docs/races.md).
//!
//! `SEED=… cargo test -p chancery-tests machine_worlds` plays one seed of each scenario, with its trace if it fails.

use chancery_tests::sim::guests::{self, GuestScenario};
use chancery_tests::sim::{OccurrenceCounts, TraceOption, play_each};

/// Number of seeds of a scenario.
const SEEDS: u64 = 200;

/// Plays the scenario, and checks that each event occurs at least as often as this.
fn play(scenario: GuestScenario, events: &[(&str, u64)]) {
    if let Some(seed) = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) {
        let played = scenario.play(seed, TraceOption::Traced);
        if let Some(violation) = played.violation {
            println!("{}", played.trace.join("\n"));
            panic!("{}: {violation}", scenario.name);
        }
        return;
    }
    let all = play_each(1, SEEDS, |seed| scenario.play(seed, TraceOption::Untraced));
    for failed in &all.failed {
        println!("SEED={}: {}", failed.seed, failed.violation);
    }
    let counts: &OccurrenceCounts = &all.counts;
    for (event, least) in events {
        println!("{event}: {}", counts.get(event));
        assert!(counts.get(event) >= *least || !all.failed.is_empty(), "{event}: {}", counts.get(event));
    }
    assert!(all.failed.is_empty(), "{} of {SEEDS} worlds: play one of these with SEED=…", all.failed.len());
}

/// Need A8.
#[test]
fn a_reboot_keeps_incarnation_and_desired_state_and_resets_the_guest_once() {
    play(guests::REBOOT, &[("reboot", 500), ("server crash", 100), ("executor crash", 100)]);
}

/// Need A9.
#[test]
fn nothing_but_a_request_starts_a_guest_that_powered_itself_off() {
    let events = [
        ("shutdown", SEEDS),
        ("shutdown without a server", 50),
        ("shutdown without an executor", 50),
        ("stays off", SEEDS),
    ];
    play(guests::SHUTDOWN, &events);
}

/// Race R26.
#[test]
fn a_stop_of_a_running_guest_that_its_executor_has_lost_succeeds_by_proof_alone_and_is_final() {
    let events = [
        ("stop of a guest that was lost with its host", 50),
        ("stop without the executor that has the guest", 50),
        ("stop of a guest that survived its executor's records", 50),
        ("stays off", SEEDS),
    ];
    play(guests::LOST, &events);
}

/// Race R27.
#[test]
fn a_stop_of_a_guest_that_ignores_it_is_a_stop_and_no_failure() {
    let events =
        [("stop that had to kill", 150), ("kill requested by the decider", 20), ("stays off", SEEDS)];
    play(guests::DEAF, &events);
}

/// Race R37.
#[test]
fn a_stop_of_a_guest_that_is_lost_while_it_starts_or_reboots_is_final() {
    let events = [
        ("lost while it was created", 40),
        ("lost while it was starting", 40),
        ("lost while it was rebooting", 40),
        ("stop of a guest that was lost with its host", 50),
        ("stop of a guest that survived its executor's records", 50),
        ("stays off", SEEDS),
    ];
    play(guests::LOST_STARTING, &events);
}

#[test]
fn a_snapshot_is_shown_when_it_exists_and_a_volume_that_is_being_deleted_is_no_source() {
    let events = [("volume copied", 400), ("snapshot of a deleted volume refused", SEEDS)];
    play(guests::SNAPSHOTS, &events);
}
