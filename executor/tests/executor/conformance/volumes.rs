//! Requirements of orchestrators for volumes.

use chancery_events::fact::CommandEffect;
use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::observation::{IncarnationExit, ObservedState, RetryClass};
use chancery_events::protocol::{
    Command, CommandStatus, IncarnationSpec, ObjectSpec, VolumeMount, VolumeSpec,
};

use super::reader::OrchestratorClient;
use super::{OrchestratorUnderTest, TestBehaviour, command, is_gone, is_ready};
use chancery_executor::orchestrator::Orchestrator as _;

fn volume(capacity: u64) -> ObjectSpec {
    let name = |name: &str| name.parse().expect("a name");
    let (class, node) = ("disk".parse().expect("a class"), name("n1"));
    ObjectSpec::Volume(VolumeSpec {
        name: "web-1-data".parse().expect("a name"),
        namespace: "ns".parse().unwrap(),
        node,
        class,
        capacity,
        source: None,
    })
}

fn mounting<S: OrchestratorUnderTest>(subject: &S, volume: VolumeId) -> IncarnationSpec {
    let mut spec = subject.spec(TestBehaviour::Stays, 1);
    spec.payloads[0].mounts.push(VolumeMount { path: "/data".to_owned(), volume });
    spec
}

fn waits(observed: &ObservedState) -> bool {
    matches!(observed, ObservedState::Failed { retry: RetryClass::Retryable, .. })
}

fn never(observed: &ObservedState) -> bool {
    matches!(observed, ObservedState::Failed { retry: RetryClass::Permanent, .. })
}

fn is_lost(observed: &ObservedState) -> bool {
    matches!(observed, ObservedState::Ended { exit: IncarnationExit::Failed { .. }, processes } if processes.is_empty())
}

pub(super) async fn a_volume_is_created_once_and_destroyed_permanently<S: OrchestratorUnderTest>(
    subject: &S,
    id: VolumeId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let (spec, other) = (volume(1024), volume(2048));
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    let first = reader.until(id, 1, "it is ready", is_ready).await;
    assert_eq!(first.observed, ObservedState::Ready { processes: vec![] }, "it has no processes");
    assert!(subject.holds(id), "a ready volume exists");
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    assert_eq!(reader.next_report(id).await, first, "the same command again is answered with its outcome");
    reader.order(id, 2, CommandEffect::Ensure, &other).await;
    reader.until(id, 2, "another spec does not change it", is_ready).await;
    reader.order(id, 3, CommandEffect::Stop, &other).await;
    reader.until(id, 3, "it cannot be stopped", never).await;
    let mut reader = reader.restart(subject).await;
    let listed = reader.list().await;
    let state = listed.get(&id.into()).map(|report| (report.revision, is_ready(&report.observed)));
    assert_eq!(state, Some((2, true)), "it is found after a restart");
    reader.orchestrator.forget(id.into()).await;
    assert!(reader.list().await.contains_key(&id.into()), "an existing volume is never purged");
    reader.order(id, 4, CommandEffect::Kill, &other).await;
    let gone = reader.until(id, 4, "it is destroyed", is_gone).await;
    assert!(!subject.holds(id), "gone means that nothing exists");
    for restarted in [false, true] {
        if restarted {
            reader = reader.restart(subject).await;
        }
        for revision in [1, 2] {
            reader.order(id, revision, CommandEffect::Ensure, &spec).await;
            assert_eq!(
                reader.next_report(id).await,
                gone,
                "a late ensure is answered; restarted: {restarted}"
            );
        }
        assert!(!subject.holds(id), "a late ensure creates nothing; restarted: {restarted}");
    }
    reader.order(id, 5, CommandEffect::Kill, &spec).await;
    reader.until(id, 5, "the tombstone rises to the revision", is_gone).await;
    reader.forget(id).await;
}

pub(super) async fn a_destroyed_volume_is_not_created_again<S: OrchestratorUnderTest>(
    subject: &S,
    lost: VolumeId,
    unknown: VolumeId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = volume(1024);
    reader.order(lost, 1, CommandEffect::Ensure, &spec).await;
    reader.until(lost, 1, "it is ready", is_ready).await;
    subject.lose(lost);
    let mut reader = reader.restart(subject).await;
    reader.order(lost, 2, CommandEffect::Ensure, &spec).await;
    reader.until(lost, 2, "it is reported as lost", is_lost).await;
    assert!(!subject.holds(lost), "a lost volume is not recreated silently");
    reader.order(lost, 3, CommandEffect::Kill, &spec).await;
    reader.until(lost, 3, "a lost volume can be destroyed", is_gone).await;
    let met =
        Command { status: CommandStatus::Fulfilled, ..command(unknown, 3, CommandEffect::Ensure, &spec) };
    reader.orchestrator.carry_out(met).await;
    reader.until(unknown, 3, "a volume without records is gone", is_gone).await;
    assert!(!subject.holds(unknown), "it is not created");
    for id in [lost, unknown] {
        reader.forget(id).await;
    }
}

pub(super) async fn an_incarnation_waits_for_its_volume_and_keeps_it<S: OrchestratorUnderTest>(
    subject: &S,
    id: VolumeId,
    run: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let (spec, runs) = (volume(1024), mounting(subject, id));
    reader.order(run, 1, CommandEffect::Ensure, &runs).await;
    reader.until(run, 1, "its volume does not exist", waits).await;
    assert_eq!(subject.running(run), 0, "nothing runs without its volume");
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    reader.until(id, 1, "it is created", is_ready).await;
    let second = Command { attempt: 2, ..command(run, 1, CommandEffect::Ensure, &runs) };
    reader.orchestrator.carry_out(second).await;
    reader.until(run, 1, "it runs once its volume exists", is_ready).await;
    reader.order(id, 2, CommandEffect::Kill, &spec).await;
    reader.until(id, 2, "a volume in use is not destroyed", waits).await;
    assert!(subject.holds(id) && subject.running(run) == 1, "both are unchanged");
    let mut reader = reader.restart(subject).await;
    reader.order(id, 2, CommandEffect::Kill, &spec).await;
    reader.until(id, 2, "it is not destroyed after a restart either", waits).await;
    reader.order(run, 2, CommandEffect::Kill, &runs).await;
    reader.until(run, 2, "it ended", |observed| matches!(observed, ObservedState::Ended { .. })).await;
    assert!(subject.holds(id), "a volume outlives its user");
    reader.order(id, 2, CommandEffect::Kill, &spec).await;
    reader.until(id, 2, "an unused volume is destroyed", is_gone).await;
    let again = IncarnationId::issue(run.lineage(), run.position().plus(1000));
    reader.order(again, 1, CommandEffect::Ensure, &runs).await;
    reader.until(again, 1, "nothing runs with a destroyed volume", waits).await;
    reader.order(again, 2, CommandEffect::Kill, &runs).await;
    reader.until(again, 2, "it never ran", is_gone).await;
    reader.forget(id).await;
    for run in [run, again] {
        reader.forget(run).await;
    }
}

pub(super) async fn a_resolved_orphan_volume_is_removed<S: OrchestratorUnderTest>(
    subject: &S,
    id: VolumeId,
    unknown: VolumeId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    reader.order(id, 1, CommandEffect::Ensure, &volume(1024)).await;
    reader.until(id, 1, "it is ready", is_ready).await;
    for id in [id, unknown] {
        reader.orchestrator.remove(id.into(), 4).await;
        reader.until(id, 4, "the removed volume is gone", is_gone).await;
        assert!(!subject.holds(id), "gone means that nothing exists");
        reader.forget(id).await;
    }
}

pub(super) async fn a_recorded_volume_that_was_not_created_is_created_when_repeated<
    S: OrchestratorUnderTest,
>(
    subject: &S,
    id: VolumeId,
) {
    let spec = volume(1024);
    subject.crash_after_record(&command(id, 2, CommandEffect::Ensure, &spec));
    let mut reader = OrchestratorClient::open(subject).await;
    let listed = reader.known.get(&id.into()).map(|report| (report.revision, report.observed.clone()));
    let nothing = ObservedState::NotReady { processes: vec![] };
    assert_eq!(listed, Some((1, nothing)), "it is listed, at a lower revision than the command");
    assert!(!subject.holds(id), "it is not created");
    reader.order(id, 2, CommandEffect::Ensure, &spec).await;
    reader.until(id, 2, "it is created", is_ready).await;
    reader.order(id, 3, CommandEffect::Kill, &spec).await;
    reader.until(id, 3, "it is destroyed", is_gone).await;
    reader.forget(id).await;
}
