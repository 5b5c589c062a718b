//! Real faults, a few rounds of each campaign and fault; `tests/reliability` runs any number.

use std::path::Path;

use chancery_tests::JournalBackend;
use chancery_tests::fault_campaigns::{CampaignKind, InjectedFault};
use chancery_tests::ledger::ReliabilityLedger;

/// Runs a campaign with a fixed seed; timing still varies.
fn run(campaign: CampaignKind, backend: JournalBackend, rounds: u64) {
    run_with(campaign, backend, rounds, &[InjectedFault::Kill]);
}

/// Runs a campaign with these faults only; faults that this host does not allow are named and skipped.
fn run_with(campaign: CampaignKind, backend: JournalBackend, rounds: u64, faults: &[InjectedFault]) {
    let possible = InjectedFault::of(campaign, backend);
    for fault in faults.iter().filter(|fault| !possible.contains(fault)) {
        println!("not shown here: this host does not allow the fault {fault}");
    }
    let faults: Vec<_> = faults.iter().filter(|fault| possible.contains(fault)).copied().collect();
    if faults.is_empty() {
        return;
    }
    let (tally, ran) = campaign.run_with(backend, rounds, 1, &faults);
    println!("{tally:?}");
    ran.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!((tally.rounds, tally.lost, tally.decided_twice, tally.violations), (rounds, 0, 0, 0));
    assert_eq!((tally.started_twice, tally.volumes_with_two_users, tally.files_touched), (0, 0, 0));
    assert!(tally.acknowledged > rounds, "only {} intents were acknowledged", tally.acknowledged);
}

#[test]
fn fifty_kills_lose_no_acknowledged_intent_decide_none_twice_and_leak_no_process() {
    run(CampaignKind::Kills, JournalBackend::Embedded, 50);
}

#[test]
fn what_is_mounted_in_a_working_directory_survives_its_removal() {
    run_with(CampaignKind::Kills, JournalBackend::Embedded, 3, &[InjectedFault::Mount]);
    run_with(CampaignKind::Executors, JournalBackend::Embedded, 2, &[InjectedFault::Mount]);
}

#[test]
fn nothing_of_an_incarnation_outlives_its_end_though_its_supervisor_died_and_its_environment_is_empty() {
    run_with(CampaignKind::Kills, JournalBackend::Embedded, 3, &[InjectedFault::CleanEnvironment]);
    run_with(CampaignKind::Executors, JournalBackend::Embedded, 2, &[InjectedFault::CleanEnvironment]);
}

#[test]
fn a_full_or_read_only_disk_with_the_log_on_it_ends_no_supervisor_and_repeats_nothing() {
    run_with(CampaignKind::Kills, JournalBackend::Embedded, 4, &[InjectedFault::FullLog]);
    run_with(CampaignKind::Executors, JournalBackend::Embedded, 2, &[InjectedFault::FullLog]);
}

#[test]
fn a_directory_is_the_same_by_a_link_and_by_its_real_path() {
    run_with(CampaignKind::Kills, JournalBackend::Embedded, 3, &[InjectedFault::Symlink]);
    run_with(CampaignKind::Executors, JournalBackend::Embedded, 2, &[InjectedFault::Symlink]);
}

#[test]
fn what_runs_in_another_pid_namespace_is_never_taken_for_dead() {
    run_with(CampaignKind::Kills, JournalBackend::Embedded, 3, &[InjectedFault::PidNamespace]);
    run_with(CampaignKind::Executors, JournalBackend::Embedded, 2, &[InjectedFault::PidNamespace]);
}

#[test]
fn what_a_stopped_supervisor_runs_ends_when_it_must() {
    run_with(CampaignKind::Kills, JournalBackend::Embedded, 1, &[InjectedFault::StoppedSupervisor]);
    run_with(CampaignKind::Executors, JournalBackend::Embedded, 1, &[InjectedFault::StoppedSupervisor]);
}

#[test]
fn a_clock_that_is_years_ahead_is_refused_and_one_that_is_days_ahead_harms_nothing() {
    run_with(CampaignKind::Kills, JournalBackend::Embedded, 4, &[InjectedFault::WrongClock]);
    run_with(CampaignKind::Executors, JournalBackend::Embedded, 2, &[InjectedFault::WrongClock]);
}

#[test]
fn a_copy_of_a_directory_is_refused_and_what_the_original_runs_is_unharmed() {
    run_with(CampaignKind::Kills, JournalBackend::Embedded, 3, &[InjectedFault::CopiedDirectory]);
    run_with(CampaignKind::Executors, JournalBackend::Embedded, 2, &[InjectedFault::CopiedDirectory]);
}

#[test]
fn a_journal_that_is_shorter_than_what_was_made_from_it_is_refused_until_it_is_whole() {
    run_with(CampaignKind::Kills, JournalBackend::Embedded, 6, &[InjectedFault::ShortJournal]);
}

#[test]
fn a_killed_executor_leaks_no_process_starts_none_twice_and_loses_no_end() {
    run(CampaignKind::Executors, JournalBackend::Embedded, 20);
}

#[test]
fn a_server_paused_past_every_timeout_continues_where_it_was() {
    run(CampaignKind::Pauses, JournalBackend::Embedded, 3);
}

#[test]
fn relocates_whose_starts_fail_are_never_seen_by_an_observer() {
    run(CampaignKind::Relocates, JournalBackend::Embedded, 12);
}

#[test]
fn a_clock_that_jumps_by_seconds_or_days_loses_nothing_and_journal_time_does_not_decrease() {
    run(CampaignKind::Clock, JournalBackend::Embedded, 6);
}

#[test]
fn a_torn_tail_is_cut_loudly_and_a_flipped_bit_is_refused_and_named() {
    run(CampaignKind::Damage, JournalBackend::Embedded, 10);
}

/// Campaigns on Kafka, on one broker and on three: few rounds, which take as long as a session.
mod on_kafka {
    use super::{CampaignKind, JournalBackend, run};

    #[test]
    fn a_killed_server_continues_from_one_broker() {
        run(CampaignKind::Kills, JournalBackend::OneBroker, 3);
    }

    #[test]
    fn a_killed_server_continues_from_three_brokers() {
        run(CampaignKind::Kills, JournalBackend::ThreeBrokers, 3);
    }

    #[test]
    fn a_killed_executor_reconnects_with_the_journal_on_one_broker() {
        run(CampaignKind::Executors, JournalBackend::OneBroker, 8);
    }

    #[test]
    fn a_killed_executor_reconnects_with_the_journal_on_three_brokers() {
        run(CampaignKind::Executors, JournalBackend::ThreeBrokers, 8);
    }

    #[test]
    fn a_paused_server_continues_from_one_broker() {
        run(CampaignKind::Pauses, JournalBackend::OneBroker, 2);
    }

    #[test]
    fn a_paused_server_continues_from_three_brokers() {
        run(CampaignKind::Pauses, JournalBackend::ThreeBrokers, 2);
    }
}

/// Requires a host that can mount file systems; elsewhere there is no small disk to fill.
#[test]
fn a_full_disk_ends_the_server_with_its_reason_and_it_continues_when_there_is_space() {
    if rustix::process::geteuid().is_root() {
        run(CampaignKind::DiskFull, JournalBackend::Embedded, 2);
    }
}

/// Compares the page of guarantees with the ledger; `UPDATE=1` writes changes.
#[test]
fn the_page_of_guarantees_shows_the_ledger() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guarantees.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let table = ReliabilityLedger::read(&ReliabilityLedger::path()).expect("the ledger").table();
    let (begin, end) = ("<!-- the ledger, by a test -->\n", "<!-- end of the ledger -->\n");
    let (before, rest) = page.split_once(begin).expect("the page marks the start of the ledger");
    let (shown, after) = rest.split_once(end).expect("the page marks the end of the ledger");
    if shown == table {
        return;
    }
    assert!(
        std::env::var_os("UPDATE").is_some(),
        "run this test with UPDATE=1: the page should show\n{table}"
    );
    std::fs::write(&path, [before, begin, &table, end, after].concat()).expect("the page is written");
}
