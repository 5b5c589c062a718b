//! Real faults, a few rounds of each lane; `tests/reliability` runs as many as you like.

use std::path::Path;

use chancery_tests::Place;
use chancery_tests::lanes::Lane;
use chancery_tests::ledger::Ledger;

/// Fixed seeds: what the moments hit differs from run to run all the same.
fn run(lane: Lane, place: Place, rounds: u64) {
    let (tally, ran) = lane.run(place, rounds, 1);
    println!("{tally:?}");
    ran.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!((tally.rounds, tally.lost, tally.decided_twice, tally.violations), (rounds, 0, 0, 0));
    assert!(tally.acknowledged > rounds, "only {} intents were acknowledged", tally.acknowledged);
}

#[test]
fn fifty_kills_lose_no_acknowledged_intent_decide_none_twice_and_leak_no_process() {
    run(Lane::Kills, Place::Embedded, 50);
}

#[test]
fn a_killed_executor_leaks_no_process_starts_none_twice_and_loses_no_end() {
    run(Lane::Executors, Place::Embedded, 20);
}

#[test]
fn a_server_that_stood_still_past_every_timeout_goes_on_where_it_was() {
    run(Lane::Pauses, Place::Embedded, 3);
}

#[test]
fn relocates_whose_starts_fail_are_never_seen_by_whoever_looks() {
    run(Lane::Relocates, Place::Embedded, 12);
}

#[test]
fn a_clock_that_leaps_by_seconds_or_days_loses_nothing_and_the_journals_time_does_not_go_back() {
    run(Lane::Clock, Place::Embedded, 6);
}

#[test]
fn a_torn_tail_is_cut_loudly_and_a_flipped_bit_is_refused_and_named() {
    run(Lane::Damage, Place::Embedded, 10);
}

/// On Kafka a round takes as long as a session: few of them, on one broker and on three.
mod on_kafka {
    use super::{Lane, Place, run};

    #[test]
    fn a_killed_server_goes_on_from_one_broker() {
        run(Lane::Kills, Place::OneBroker, 3);
    }

    #[test]
    fn a_killed_server_goes_on_from_three_brokers() {
        run(Lane::Kills, Place::ThreeBrokers, 3);
    }

    #[test]
    fn a_killed_executor_is_taken_back_with_the_journal_on_one_broker() {
        run(Lane::Executors, Place::OneBroker, 8);
    }

    #[test]
    fn a_killed_executor_is_taken_back_with_the_journal_on_three_brokers() {
        run(Lane::Executors, Place::ThreeBrokers, 8);
    }

    #[test]
    fn a_server_that_stood_still_goes_on_from_one_broker() {
        run(Lane::Pauses, Place::OneBroker, 2);
    }

    #[test]
    fn a_server_that_stood_still_goes_on_from_three_brokers() {
        run(Lane::Pauses, Place::ThreeBrokers, 2);
    }
}

/// Where a file system may be mounted; elsewhere there is no small disk to fill.
#[test]
fn a_full_disk_ends_the_server_with_its_reason_and_it_goes_on_when_there_is_space() {
    if rustix::process::geteuid().is_root() {
        run(Lane::DiskFull, Place::Embedded, 2);
    }
}

/// The page of guarantees shows the ledger's figures; `UPDATE=1` writes what has changed.
#[test]
fn the_page_of_guarantees_shows_the_ledger() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guarantees.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let table = Ledger::read(&Ledger::path()).expect("the ledger").table();
    let (begin, end) = ("<!-- the ledger, by a test -->\n", "<!-- end of the ledger -->\n");
    let (before, rest) = page.split_once(begin).expect("the page has a place for the ledger");
    let (shown, after) = rest.split_once(end).expect("the place ends");
    if shown == table {
        return;
    }
    assert!(
        std::env::var_os("UPDATE").is_some(),
        "run this test with UPDATE=1: the page should show\n{table}"
    );
    std::fs::write(&path, [before, begin, &table, end, after].concat()).expect("the page is written");
}
