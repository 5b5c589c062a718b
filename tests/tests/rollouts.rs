//! Random sequences of deployments, operator actions and a fault, for a few rounds with fixed seeds;
//! `tests/reliability rollouts` plays any number.

use chancery_tests::JournalBackend;
use chancery_tests::fault_campaigns::CampaignKind;

#[test]
fn any_sequence_of_deployments_keeps_the_promised_replicas_serving_and_reaches_the_goal() {
    for seed in 1..=2 {
        let (tally, ran) = CampaignKind::Rollouts.run(JournalBackend::Embedded, 2, seed);
        println!("{tally:?}");
        ran.unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!((tally.rounds, tally.lost, tally.decided_twice, tally.violations), (2, 0, 0, 0));
    }
}
