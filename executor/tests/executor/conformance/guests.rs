//! Guests of virtual machines: their shutdowns and resets.

use chancery_events::fact::CommandEffect;
use chancery_events::id::IncarnationId;
use chancery_events::observation::{IncarnationExit, ObservedState, RetryClass};

use super::{GuestSupport, OrchestratorClient, OrchestratorUnderTest, TestBehaviour, is_ready};

fn resets(observed: &ObservedState) -> Option<u32> {
    match observed {
        ObservedState::Started { processes }
        | ObservedState::Ready { processes }
        | ObservedState::NotReady { processes }
        | ObservedState::Ended { processes, .. } => Some(processes.first()?.resets),
        ObservedState::Gone | ObservedState::Failed { .. } => None,
    }
}

/// Shutdowns and resets of guests, or the refusal of a reboot where there are none.
pub(super) async fn check<S: OrchestratorUnderTest>(subject: &S, ids: [IncarnationId; 4]) {
    let [off, own, asked, last] = ids;
    match subject.guests() {
        GuestSupport::Guests => {
            a_shutdown_is_reported_and_final(subject, off).await;
            a_reset_by_the_guest_is_counted_within_the_incarnation(subject, own).await;
            a_reboot_resets_the_guest_once(subject, asked).await;
            a_reboot_of_what_has_ended_starts_nothing(subject, last).await;
        }
        GuestSupport::None => a_reboot_is_refused_and_ends_nothing(subject, off).await,
    }
}

async fn a_shutdown_is_reported_and_final<S: OrchestratorUnderTest>(subject: &S, id: IncarnationId) {
    let is_off = |observed: &ObservedState| {
        matches!(observed, ObservedState::Ended { exit: IncarnationExit::PoweredOff, .. })
    };
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::PowersOff, 1);
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    reader.until(id, 1, "the guest has powered itself off", is_off).await;
    assert_eq!(subject.running(id), 0, "nothing of it is left");
    let mut reader = reader.restart(subject).await;
    reader.list().await;
    reader.until(id, 1, "the next executor reports the same", is_off).await;
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    reader.until(id, 1, "a late ensure is answered with the end", is_off).await;
    assert_eq!(subject.running(id), 0, "it is not started again");
    reader.forget(id).await;
}

async fn a_reset_by_the_guest_is_counted_within_the_incarnation<S: OrchestratorUnderTest>(
    subject: &S,
    id: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Resets, 1);
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    reader
        .until(id, 1, "it is ready again after a reset", |observed| {
            is_ready(observed) && resets(observed) >= Some(1)
        })
        .await;
    assert_eq!(subject.running(id), 1, "the same process continues");
    reader.end(id, 2, &spec).await;
}

async fn a_reboot_resets_the_guest_once<S: OrchestratorUnderTest>(subject: &S, id: IncarnationId) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 1);
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    let before = reader.until(id, 1, "it is ready", is_ready).await;
    assert_eq!(resets(&before.observed), Some(0));
    reader.order(id, 2, CommandEffect::Reboot, &spec).await;
    let once = reader.until(id, 2, "it is ready after the reset", is_ready).await;
    assert_eq!(resets(&once.observed), Some(1), "ready at the revision means ready after the reset");
    reader.order(id, 2, CommandEffect::Reboot, &spec).await;
    let again = reader.until(id, 2, "it is ready", is_ready).await;
    assert_eq!(again, once, "the same command again resets nothing");
    let mut reader = reader.restart(subject).await;
    reader.order(id, 2, CommandEffect::Reboot, &spec).await;
    let again = reader.until(id, 2, "it is ready", is_ready).await;
    assert_eq!(resets(&again.observed), Some(1), "nor after a restart of the executor");
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    reader.order(id, 3, CommandEffect::Reboot, &spec).await;
    let twice = reader.until(id, 3, "it is ready after the second reset", is_ready).await;
    assert_eq!(resets(&twice.observed), Some(2));
    assert_eq!(subject.running(id), 1, "the same process continues");
    reader.end(id, 4, &spec).await;
}

async fn a_reboot_of_what_has_ended_starts_nothing<S: OrchestratorUnderTest>(subject: &S, id: IncarnationId) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 1);
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    reader.until(id, 1, "it is ready", is_ready).await;
    reader.order(id, 2, CommandEffect::Kill, &spec).await;
    reader.until(id, 2, "it ended", super::is_clean).await;
    reader.order(id, 3, CommandEffect::Reboot, &spec).await;
    reader.until(id, 3, "the end is the outcome", super::is_clean).await;
    assert_eq!(subject.running(id), 0, "it is not started again");
    reader.forget(id).await;
}

async fn a_reboot_is_refused_and_ends_nothing<S: OrchestratorUnderTest>(subject: &S, id: IncarnationId) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 1);
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    let ready = reader.until(id, 1, "it is ready", is_ready).await;
    reader.order(id, 2, CommandEffect::Reboot, &spec).await;
    let is_refused = |observed: &ObservedState| {
        matches!(observed, ObservedState::Failed { retry: RetryClass::Permanent, .. })
    };
    reader.until(id, 2, "the reboot is refused permanently", is_refused).await;
    assert_eq!(subject.running(id), 1, "it runs on");
    reader.order(id, 3, CommandEffect::Ensure, &spec).await;
    let adopted = reader.until(id, 3, "what runs is adopted", is_ready).await;
    assert_eq!(adopted.observed, ready.observed, "unchanged");
    reader.end(id, 4, &spec).await;
}
