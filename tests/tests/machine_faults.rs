//! Real faults of virtual machines, a few rounds; `tests/reliability machines` runs any number.

use chancery_tests::JournalBackend;
use chancery_tests::fault_campaigns::CampaignKind;

#[test]
fn six_faults_leak_no_machine_duplicate_none_and_lose_no_end() {
    // Even seeds have the executor of the server, odd ones an executor outside.
    for seed in [1, 2] {
        let (tally, ran) = CampaignKind::Machines.run(JournalBackend::Embedded, 3, seed);
        println!("{tally:?}");
        ran.unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!((tally.rounds, tally.lost, tally.decided_twice, tally.violations), (3, 0, 0, 0));
        assert_eq!((tally.started_twice, tally.volumes_with_two_users), (0, 0));
        assert!(tally.acknowledged > 3, "only {} intents were acknowledged", tally.acknowledged);
    }
}
