//! Simulated worlds: thousands of seeds hold, and each can be played again.
//!
//! `SEED=… cargo test -p chancery-tests the_seed` plays one seed; `tests/reliability simulate 200000` many
//! more.

use chancery_events::spec::ClusterRuntime;
use chancery_tests::sim::{SimulatedFault, TraceOption, WorldScript, play, play_many};

/// Number of seeds that the tests always play.
const SEEDS: u64 = 3000;

/// Outcomes that some world must have, or the worlds test too little.
const WORK: &[&str] = &[
    "accepted",
    "refused",
    "settled",
    "snapshot",
    "through the store",
    "read in the past",
    "alive in the end",
    "server started",
    "server failed",
    "incarnation.running.v1",
    "incarnation.ended.v1",
    "operation.approved.v1",
    "operation.ended.v1",
    "deployment.ended.v1",
    "deployment.stalled.v1",
    "replica.deleted.v1",
    "incarnation.command_failed.v1",
    "orphan.resolved.v1",
    "request.opened.v1",
    "request.approved.v1",
    "request.ended.v1",
    "approval.bypassed.v1",
    "console.opened.v1",
    "guest shutdown",
    "guest rebooted",
    "volume.snapshot_started.v1",
    "session.closed.v1",
    "plan.unschedulable.v1",
    "plan.balance_changed.v1",
    "plan.rebalance_ended.v1",
    "inbox message",
    "inbox.message_refused.v1",
    "inbox.advanced.v1",
    "hung",
    "work put off",
    "late pod",
    "late pod after a take-over",
    "executor stopped: taken over",
    "pods in the end",
];

#[test]
fn thousands_of_worlds_hold() {
    let all = play_many(1, SEEDS);
    for failed in &all.failed {
        println!("SEED={}: {}", failed.seed, failed.violation);
    }
    assert!(all.failed.is_empty(), "play one of these with SEED=…");
    for fault in SimulatedFault::ALL {
        assert!(all.counts.get(fault.word()) > 0, "no {} in {SEEDS} worlds", fault.word());
    }
    for work in WORK {
        assert!(all.counts.get(work) > 0, "no {work} in {SEEDS} worlds");
    }
    let (accepted, refused) = (all.counts.get("accepted"), all.counts.get("refused"));
    assert!(accepted * 10 > (accepted + refused) * 6, "{accepted} accepted, {refused} refused");
    assert_eq!(all.counts.get("settled"), SEEDS);
}

#[test]
fn the_same_seed_gives_the_same_world() {
    let has_pods = |seed: &u64| WorldScript::draw(*seed).clusters.contains(&ClusterRuntime::Kubernetes);
    for seed in [3, 44, 407].into_iter().chain((1..100).filter(has_pods).take(3)) {
        let (one, two) = (
            play(WorldScript::draw(seed), TraceOption::Traced),
            play(WorldScript::draw(seed), TraceOption::Traced),
        );
        assert_eq!(one.hash, two.hash, "seed {seed}");
        assert!(one.trace == two.trace && !one.trace.is_empty(), "seed {seed}");
        // Recording the trace does not change the world.
        assert_eq!(play(WorldScript::draw(seed), TraceOption::Untraced).hash, one.hash, "seed {seed}");
    }
}

/// Plays the world of `SEED`, with its trace if a check fails.
#[test]
fn the_seed() {
    let Some(seed) = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()) else { return };
    println!("seed {seed}");
    let script = WorldScript::draw(seed);
    if let Some(violation) = play(script.clone(), TraceOption::Untraced).violation {
        let (small, played) = chancery_tests::sim::shrink::shrink(&script);
        println!("{}", played.trace.join("\n"));
        panic!("{violation}; the smallest world that fails so has {} inputs", small.inputs.len());
    }
}
