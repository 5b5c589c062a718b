//! Conformance suite of orchestrators. A violation panics with a sentence.
//!
//! The suite waits for states, never for a time, and counts what exists without the orchestrator.

use std::future::Future;
use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::id::{IncarnationId, Lineage, ObjectId, Position, VolumeId};
use chancery_events::observation::{IncarnationExit, ObservedState, ProcessStatus, RetryClass};
use chancery_events::protocol::{Command, CommandStatus, IncarnationSpec, ObjectSpec};

mod capabilities;
mod failing;
mod guests;
mod logs;
mod reader;
mod volumes;

pub(crate) use capabilities::{ApiAccess, ExitAccess, GuestSupport, OutputAccess, ProbeSupport};
use reader::OrchestratorClient;

use chancery_executor::orchestrator::Orchestrator;
use chancery_executor::reconcile::UpdateSupport;

/// Behaviour of a started object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TestBehaviour {
    /// Runs until asked to end.
    Stays,
    /// First process ends on its own with this status, soon after its start.
    EndsWith(i32),
    /// Start always fails.
    CannotStart,
    /// First process is ready, and soon stops answering its liveness probe.
    StopsAnswering,
    /// Guest of the first process powers itself off, soon after its start.
    PowersOff,
    /// Guest of the first process resets, soon after its start.
    Resets,
    /// Runs until asked to end. With logs, writes `oh` to standard error and `one` to standard output, and
    /// `two` a moment later, each with a line feed.
    Writes,
}

/// Orchestrator under test, and its world.
pub(crate) trait OrchestratorUnderTest: Sync {
    /// Type of the orchestrator.
    type Orchestrator: Orchestrator;

    /// Opens an orchestrator on the current world. Another call after the last one was dropped is a restart.
    fn open(&self) -> impl Future<Output = Self::Orchestrator> + Send;

    /// Returns a spec with `processes` processes: of one payload, or one each of several payloads.
    fn spec(&self, behaves: TestBehaviour, processes: u16) -> IncarnationSpec;

    /// Returns the number of existing processes of the incarnation, counted without the orchestrator.
    fn running(&self, incarnation: IncarnationId) -> usize;

    /// Whether the volume exists, checked without the orchestrator.
    fn holds(&self, volume: VolumeId) -> bool;

    /// Removes the contents of a volume, behind the orchestrator's back.
    fn lose(&self, volume: VolumeId);

    /// Access to the output of processes.
    fn output(&self) -> OutputAccess;

    /// Whether the processes are guests.
    fn guests(&self) -> GuestSupport;

    /// Returns which evidence the end of a process leaves.
    fn exits(&self) -> ExitAccess {
        ExitAccess::Status
    }

    /// Whether processes can be probed.
    fn probes(&self) -> ProbeSupport {
        ProbeSupport::Probes
    }

    /// Number of processes that this host can have at a time, at least three.
    fn most_processes(&self) -> usize {
        usize::MAX
    }

    /// Records a command for a missing object and starts nothing, as a crashing executor does. No
    /// orchestrator is open.
    fn crash_after_record(&self, command: &Command);

    /// Disconnects the orchestrator from its world, or connects it again; false if no API is between them.
    fn set_api(&self, api: ApiAccess) -> bool;

    /// Creates objects of other owners.
    fn plant_foreign_things(&self);

    /// Panics unless the objects of other owners are unchanged.
    fn check_foreign_things(&self);
}

/// Runs the whole suite.
pub(crate) async fn check<S: OrchestratorUnderTest>(subject: &S) {
    subject.plant_foreign_things();
    let mut at = Position::FIRST;
    let mut next = || {
        at = at.plus(1);
        IncarnationId::issue(Lineage::from_random(42), at)
    };
    an_ensure_is_idempotent(subject, next()).await;
    a_stop_ends_it_and_what_is_late_changes_nothing(subject, next()).await;
    a_higher_revision_closes_lower_ones(subject, next()).await;
    a_fulfilled_command_changes_nothing_that_runs(subject, next()).await;
    match S::Orchestrator::CHANGES {
        UpdateSupport::InPlace => {
            another_spec_changes_what_runs_or_leaves_it_as_it_was(subject, next()).await;
        }
        UpdateSupport::Never => another_spec_is_refused_and_leaves_what_runs_as_it_was(subject, next()).await,
    }
    a_stop_of_something_unknown_leaves_a_tombstone(subject, next()).await;
    an_incarnation_whose_command_is_fulfilled_is_not_started_again(subject, next()).await;
    an_exit_is_reported_with_its_code(subject, next(), next()).await;
    what_stops_answering_is_reported_and_ended_only_when_asked(subject, next()).await;
    what_cannot_start_fails_permanently_and_is_gone_when_stopped(subject, next()).await;
    a_restart_finds_everything(subject, next(), next(), next()).await;
    a_slow_reader_gets_the_last_state_of_each(subject, [next(), next(), next(), next(), next()]).await;
    a_resolved_orphan_is_removed(subject, next(), next()).await;
    what_runs_is_not_purged(subject, next()).await;
    a_recorded_command_that_was_not_started_is_started_when_repeated(subject, next(), next()).await;
    failing::a_failed_list_reports_nothing_about_running_incarnations(subject, [next(), next(), next()])
        .await;
    logs::what_is_written_is_read(subject, next(), next()).await;
    guests::check(subject, [next(), next(), next(), next()]).await;
    check_volumes(subject, at.plus(1)).await;
    subject.check_foreign_things();
}

async fn check_volumes<S: OrchestratorUnderTest>(subject: &S, mut at: Position) {
    let run = IncarnationId::issue(Lineage::from_random(42), at);
    let mut next = || {
        at = at.plus(1);
        VolumeId::issue(Lineage::from_random(42), at)
    };
    volumes::a_volume_is_created_once_and_destroyed_permanently(subject, next()).await;
    volumes::a_destroyed_volume_is_not_created_again(subject, next(), next()).await;
    volumes::an_incarnation_waits_for_its_volume_and_keeps_it(subject, next(), run).await;
    volumes::a_resolved_orphan_volume_is_removed(subject, next(), next()).await;
    volumes::a_recorded_volume_that_was_not_created_is_created_when_repeated(subject, next()).await;
}

async fn an_ensure_is_idempotent<S: OrchestratorUnderTest>(subject: &S, id: IncarnationId) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 3);
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    let first = reader.until(id, 1, "it is ready", is_ready).await;
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    let again = reader.next_report(id).await;
    assert_eq!(again, first, "the same command again is answered with its outcome");
    assert_eq!(subject.running(id), 3, "twice the same command is one set of processes");
    reader.order(id, 2, CommandEffect::Ensure, &spec).await;
    let higher =
        reader.until(id, 2, "a higher revision is fulfilled by the running processes", is_ready).await;
    assert_eq!(higher.observed, first.observed, "nothing was started again");
    reader.end(id, 3, &spec).await;
}

async fn what_stops_answering_is_reported_and_ended_only_when_asked<S: OrchestratorUnderTest>(
    subject: &S,
    id: IncarnationId,
) {
    if subject.probes() == ProbeSupport::None {
        return;
    }
    let is_hung = |observed: &ObservedState| match observed {
        ObservedState::NotReady { processes } => {
            matches!(processes[0].status, ProcessStatus::Unresponsive { .. })
        }
        ObservedState::Started { .. }
        | ObservedState::Ready { .. }
        | ObservedState::Ended { .. }
        | ObservedState::Gone
        | ObservedState::Failed { .. } => false,
    };
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::StopsAnswering, 2);
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    reader.until(id, 1, "it does not respond", is_hung).await;
    assert_eq!(subject.running(id), 2, "the executor does not end it: the decider decides");
    let mut reader = reader.restart(subject).await;
    reader.list().await;
    reader.until(id, 1, "the next executor reports the same", is_hung).await;
    reader.order(id, 2, CommandEffect::Stop, &spec).await;
    reader.until(id, 2, "it ended as requested", is_clean).await;
    assert_eq!(subject.running(id), 0, "it ended with its siblings");
    reader.end(id, 3, &spec).await;
}

async fn a_stop_ends_it_and_what_is_late_changes_nothing<S: OrchestratorUnderTest>(
    subject: &S,
    id: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 1);
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    reader.until(id, 1, "it is ready", is_ready).await;
    reader.order(id, 2, CommandEffect::Stop, &spec).await;
    let ended = reader.until(id, 2, "it ended as requested", is_clean).await;
    assert_eq!(subject.running(id), 0, "no process is left after the end");
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    assert_eq!(reader.next_report(id).await, ended, "a late ensure returns the current state");
    let mut reader = reader.restart(subject).await;
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    assert_eq!(reader.next_report(id).await, ended, "a late ensure after a restart too");
    assert_eq!(subject.running(id), 0, "a late ensure starts nothing");
    reader.forget(id).await;
}

async fn a_higher_revision_closes_lower_ones<S: OrchestratorUnderTest>(subject: &S, id: IncarnationId) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 1);
    reader.order(id, 5, CommandEffect::Ensure, &spec).await;
    let ready = reader.until(id, 5, "it is ready", is_ready).await;
    reader.order(id, 4, CommandEffect::Kill, &spec).await;
    assert_eq!(reader.next_report(id).await, ready, "a lower command returns the current state");
    assert_eq!(subject.running(id), 1, "a lower command ends nothing");
    reader.end(id, 6, &spec).await;
}

async fn a_fulfilled_command_changes_nothing_that_runs<S: OrchestratorUnderTest>(
    subject: &S,
    id: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let (spec, other) = (subject.spec(TestBehaviour::Stays, 1), subject.spec(TestBehaviour::Stays, 2));
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    let first = reader.until(id, 1, "it is ready", is_ready).await;
    let met = Command { status: CommandStatus::Fulfilled, ..command(id, 2, CommandEffect::Ensure, &other) };
    reader.orchestrator.carry_out(met).await;
    let adopted = reader.until(id, 2, "it is adopted as it is", is_ready).await;
    assert_eq!((adopted.observed, subject.running(id)), (first.observed, 1), "whatever spec the command has");
    reader.end(id, 3, &spec).await;
}

async fn another_spec_changes_what_runs_or_leaves_it_as_it_was<S: OrchestratorUnderTest>(
    subject: &S,
    id: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let (spec, other) = (subject.spec(TestBehaviour::Stays, 1), subject.spec(TestBehaviour::Stays, 2));
    let bad = subject.spec(TestBehaviour::CannotStart, 3);
    let never = |observed: &ObservedState| {
        matches!(observed, ObservedState::Failed { retry: RetryClass::Permanent, .. })
    };
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    reader.until(id, 1, "it is ready", is_ready).await;
    reader.order(id, 2, CommandEffect::Ensure, &other).await;
    let changed = reader.until(id, 2, "it runs with the new spec", is_ready).await;
    assert_eq!(subject.running(id), 2, "no process of the old spec is left");
    for (revision, spec) in [(2, &other), (1, &spec)] {
        reader.order(id, revision, CommandEffect::Ensure, spec).await;
        assert_eq!(
            reader.next_report(id).await,
            changed,
            "the same command, and an earlier one, return the current state"
        );
    }
    reader.order(id, 3, CommandEffect::Ensure, &bad).await;
    let failed = reader.until(id, 3, "the change to that spec fails", never).await;
    assert_eq!(subject.running(id), 2, "processes of the old spec continue");
    let mut reader = reader.restart(subject).await;
    assert_eq!(reader.list().await.get(&id.into()), Some(&failed), "the list reports the same failure");
    reader.order(id, 3, CommandEffect::Ensure, &bad).await;
    assert_eq!(reader.next_report(id).await, failed, "the same command again returns its failure");
    reader.order(id, 4, CommandEffect::Ensure, &other).await;
    let adopted =
        reader.until(id, 4, "the running spec is adopted when it is requested again", is_ready).await;
    assert_eq!(adopted.observed, changed.observed, "unchanged");
    reader.order(id, 5, CommandEffect::Ensure, &bad).await;
    reader.until(id, 5, "the change to that spec fails", never).await;
    reader.orchestrator.forget(id.into()).await;
    let listed = reader.list().await;
    assert_eq!(
        listed.get(&id.into()).map(|r| &r.observed),
        Some(&changed.observed),
        "running processes stay listed, unchanged"
    );
    reader.order(id, 6, CommandEffect::Ensure, &spec).await;
    reader.until(id, 6, "it can be updated again", is_ready).await;
    assert_eq!(subject.running(id), 1, "also to the earlier spec");
    reader.end(id, 7, &spec).await;
}

async fn another_spec_is_refused_and_leaves_what_runs_as_it_was<S: OrchestratorUnderTest>(
    subject: &S,
    id: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let (spec, other) = (subject.spec(TestBehaviour::Stays, 1), subject.spec(TestBehaviour::Stays, 2));
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    let first = reader.until(id, 1, "it is ready", is_ready).await;
    let refused = |observed: &ObservedState| {
        matches!(observed, ObservedState::Failed { retry: RetryClass::Permanent, .. })
    };
    for again in [false, true] {
        reader.order(id, 2, CommandEffect::Ensure, &other).await;
        reader.until(id, 2, "the command is refused permanently", refused).await;
        assert_eq!(subject.running(id), 1, "running processes are unchanged; again: {again}");
        reader.known.clear();
    }
    reader.order(id, 3, CommandEffect::Ensure, &spec).await;
    let adopted =
        reader.until(id, 3, "the running spec is adopted when it is requested again", is_ready).await;
    assert_eq!(adopted.observed, first.observed, "unchanged");
    reader.end(id, 4, &spec).await;
}

async fn a_stop_of_something_unknown_leaves_a_tombstone<S: OrchestratorUnderTest>(
    subject: &S,
    id: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 1);
    reader.order(id, 2, CommandEffect::Stop, &spec).await;
    let gone = reader.until(id, 2, "an object that never existed is gone", is_gone).await;
    for restarted in [false, true] {
        if restarted {
            reader = reader.restart(subject).await;
        }
        reader.order(id, 1, CommandEffect::Ensure, &spec).await;
        assert_eq!(
            reader.next_report(id).await,
            gone,
            "the tombstone blocks a late ensure; restarted: {restarted}"
        );
        assert_eq!(subject.running(id), 0, "a late ensure starts nothing; restarted: {restarted}");
    }
    reader.forget(id).await;
}

async fn an_incarnation_whose_command_is_fulfilled_is_not_started_again<S: OrchestratorUnderTest>(
    subject: &S,
    id: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 1);
    let met = Command { status: CommandStatus::Fulfilled, ..command(id, 3, CommandEffect::Ensure, &spec) };
    reader.orchestrator.carry_out(met).await;
    let gone = reader.until(id, 3, "a missing object that was running is gone", is_gone).await;
    let mut reader = reader.restart(subject).await;
    reader.order(id, 3, CommandEffect::Ensure, &spec).await;
    assert_eq!(reader.next_report(id).await, gone, "it stays gone after a restart");
    assert_eq!(subject.running(id), 0, "nothing is started");
    reader.forget(id).await;
}

async fn an_exit_is_reported_with_its_code<S: OrchestratorUnderTest>(
    subject: &S,
    failing: IncarnationId,
    clean: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::EndsWith(3), 3);
    reader.order(failing, 1, CommandEffect::Ensure, &spec).await;
    let ended = reader
        .until(failing, 1, "it ended", |observed| matches!(observed, ObservedState::Ended { .. }))
        .await;
    let ObservedState::Ended { exit: IncarnationExit::Failed { reason }, processes } = &ended.observed else {
        panic!("status 3 is a failure: {ended:?}")
    };
    assert_eq!(processes.len(), 3, "every process is reported");
    match subject.exits() {
        ExitAccess::Status => {
            assert!(reason.contains("status 3"), "the reason names the status: {reason}");
            assert!(
                processes.iter().any(|p| p.status == ProcessStatus::Exited { code: 3 }),
                "the report has its exit code: {ended:?}"
            );
        }
        ExitAccess::Failure => assert!(reason.contains("panicked"), "the reason names the panic: {reason}"),
    }
    assert_eq!(subject.running(failing), 0, "a process that exits ends its siblings");
    reader.order(failing, 2, CommandEffect::Stop, &spec).await;
    let stopped = reader
        .until(failing, 2, "a stop of an ended incarnation is fulfilled", |observed| {
            *observed == ended.observed
        })
        .await;
    assert_eq!(stopped.observed, ended.observed, "a stop does not change the recorded end");
    reader.forget(failing).await;
    if subject.exits() == ExitAccess::Status {
        let spec = subject.spec(TestBehaviour::EndsWith(0), 1);
        reader.order(clean, 1, CommandEffect::Ensure, &spec).await;
        reader.until(clean, 1, "status 0 is a clean end", is_clean).await;
        reader.forget(clean).await;
    }
}

async fn what_cannot_start_fails_permanently_and_is_gone_when_stopped<S: OrchestratorUnderTest>(
    subject: &S,
    id: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::CannotStart, 1);
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    let failed = |observed: &ObservedState| {
        matches!(observed, ObservedState::Failed { retry: RetryClass::Permanent, .. })
    };
    reader.until(id, 1, "it fails permanently", failed).await;
    reader.order(id, 2, CommandEffect::Stop, &spec).await;
    reader.until(id, 2, "an incarnation that never ran is gone", is_gone).await;
    reader.forget(id).await;
}

async fn a_restart_finds_everything<S: OrchestratorUnderTest>(
    subject: &S,
    runs: IncarnationId,
    ended: IncarnationId,
    gone: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let stays = subject.spec(TestBehaviour::Stays, 1);
    let ends = subject.spec(TestBehaviour::EndsWith(7), 1);
    reader.order(runs, 1, CommandEffect::Ensure, &stays).await;
    reader.order(ended, 1, CommandEffect::Ensure, &ends).await;
    reader.order(gone, 1, CommandEffect::Stop, &stays).await;
    let ready = reader.until(runs, 1, "it is ready", is_ready).await;
    let over =
        reader.until(ended, 1, "it ended", |observed| matches!(observed, ObservedState::Ended { .. })).await;
    reader.until(gone, 1, "an object that never existed is gone", is_gone).await;
    let mut reader = reader.restart(subject).await;
    reader
        .until(runs, 1, "running processes are adopted unchanged", |observed| *observed == ready.observed)
        .await;
    assert_eq!(subject.running(runs), 1, "a restart neither ends nor duplicates processes");
    let listed = reader.list().await;
    assert_eq!(listed.get(&ended.into()), Some(&over), "an ended incarnation is kept until it is purged");
    assert_eq!(
        listed.get(&gone.into()).map(|r| &r.observed),
        Some(&ObservedState::Gone),
        "a tombstone is kept until it is purged"
    );
    reader.forget(ended).await;
    reader.forget(gone).await;
    let mut reader = reader.restart(subject).await;
    let listed = reader.list().await;
    assert!(
        !listed.contains_key(&ended.into()) && !listed.contains_key(&gone.into()),
        "purged objects stay purged: {listed:?}"
    );
    reader.end(runs, 2, &stays).await;
}

async fn a_slow_reader_gets_the_last_state_of_each<S: OrchestratorUnderTest>(
    subject: &S,
    ids: [IncarnationId; 5],
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 1);
    let ids = &ids[..ids.len().min(subject.most_processes())];
    for id in ids.iter().copied() {
        reader.order(id, 1, CommandEffect::Ensure, &spec).await;
        reader.order(id, 2, CommandEffect::Stop, &spec).await;
    }
    for id in ids.iter().copied() {
        let over =
            |observed: &ObservedState| matches!(observed, ObservedState::Ended { .. } | ObservedState::Gone);
        reader.until(id, 2, "a late reader receives the end", over).await;
        assert_eq!(subject.running(id), 0, "the reported end is true");
        reader.forget(id).await;
    }
}

async fn a_resolved_orphan_is_removed<S: OrchestratorUnderTest>(
    subject: &S,
    runs: IncarnationId,
    unknown: IncarnationId,
) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 2);
    reader.order(runs, 1, CommandEffect::Ensure, &spec).await;
    reader.until(runs, 1, "it is ready", is_ready).await;
    reader.orchestrator.remove(runs.into(), 4).await;
    reader.until(runs, 4, "the removed object is gone", is_gone).await;
    assert_eq!(subject.running(runs), 0, "gone means that nothing exists");
    reader.orchestrator.remove(unknown.into(), 1).await;
    let gone = reader.until(unknown, 1, "removal of a missing object proves its absence", is_gone).await;
    reader.order(unknown, 1, CommandEffect::Ensure, &spec).await;
    assert_eq!(reader.next_report(unknown).await, gone, "its tombstone answers a late ensure");
    reader.forget(runs).await;
    reader.forget(unknown).await;
}

async fn what_runs_is_not_purged<S: OrchestratorUnderTest>(subject: &S, id: IncarnationId) {
    let mut reader = OrchestratorClient::open(subject).await;
    let spec = subject.spec(TestBehaviour::Stays, 1);
    reader.order(id, 1, CommandEffect::Ensure, &spec).await;
    let ready = reader.until(id, 1, "it is ready", is_ready).await;
    reader.orchestrator.forget(id.into()).await;
    assert_eq!(reader.list().await.get(&id.into()), Some(&ready), "a running incarnation is never purged");
    assert_eq!(subject.running(id), 1, "a purge does not end it");
    reader.end(id, 2, &spec).await;
}

async fn a_recorded_command_that_was_not_started_is_started_when_repeated<S: OrchestratorUnderTest>(
    subject: &S,
    started: IncarnationId,
    stopped: IncarnationId,
) {
    let spec = subject.spec(TestBehaviour::Stays, 1);
    subject.crash_after_record(&command(started, 2, CommandEffect::Ensure, &spec));
    subject.crash_after_record(&command(stopped, 2, CommandEffect::Stop, &spec));
    let mut reader = OrchestratorClient::open(subject).await;
    let listed = reader.known.get(&started.into()).map(|report| (report.revision, report.observed.clone()));
    let nothing = ObservedState::NotReady { processes: vec![] };
    assert_eq!(listed, Some((1, nothing)), "it is listed, at a lower revision than the command");
    for id in [started, stopped] {
        reader.order(id, 1, CommandEffect::Ensure, &spec).await;
        assert_eq!(subject.running(id), 0, "a command below the recorded one starts nothing");
    }
    reader.order(started, 2, CommandEffect::Ensure, &spec).await;
    reader.until(started, 2, "it is started", is_ready).await;
    assert_eq!(subject.running(started), 1, "once");
    reader.order(stopped, 2, CommandEffect::Stop, &spec).await;
    reader.until(stopped, 2, "an incarnation that never ran is gone", is_gone).await;
    reader.end(started, 3, &spec).await;
    reader.forget(stopped).await;
}

fn is_ready(observed: &ObservedState) -> bool {
    matches!(observed, ObservedState::Ready { .. })
}

fn is_gone(observed: &ObservedState) -> bool {
    *observed == ObservedState::Gone
}

fn is_clean(observed: &ObservedState) -> bool {
    matches!(observed, ObservedState::Ended { exit: IncarnationExit::Clean, .. })
}

fn command(
    object: impl Into<ObjectId>,
    revision: u32,
    effect: CommandEffect,
    spec: &(impl Clone + Into<ObjectSpec>),
) -> Command {
    let (object, spec) = (object.into(), spec.clone().into());
    Command {
        object,
        revision,
        attempt: 1,
        effect,
        status: CommandStatus::Pending,
        grace: Duration::from_secs(20),
        spec,
        traceparent: None,
    }
}
