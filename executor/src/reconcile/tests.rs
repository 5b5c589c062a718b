use chancery_events::id::{IncarnationId, Lineage, Position, VolumeId};
use chancery_events::protocol::{IncarnationSpec, RunLabels, VolumeSpec};
use chancery_events::spec::RestartPolicy;

use super::*;

fn spec(replica: &str) -> ObjectSpec {
    run(replica, RestartPolicy::OnFailure).into()
}

fn run(replica: &str, restart: RestartPolicy) -> IncarnationSpec {
    let name = |name: &str| name.parse().unwrap();
    IncarnationSpec {
        replica: replica.parse().unwrap(),
        plan: "web".parse().unwrap(),
        node: name("n1"),
        restart,
        labels: Box::new(RunLabels {
            namespace: "ns".parse().unwrap(),
            service: "web".parse().unwrap(),
            labels: std::collections::BTreeMap::new(),
            deployment: "d1".parse().unwrap(),
            domain: None,
            zone: None,
            node_labels: None,
        }),
        payloads: vec![],
    }
}

fn order(aim: TargetGoal, revision: u32, attempt: u32) -> ObjectTarget {
    ObjectTarget {
        revision,
        attempt,
        aim,
        is_reboot: false,
        status: CommandStatus::Pending,
        grace: Duration::from_secs(9),
    }
}

fn present(order: ObjectTarget, state: ObjectState) -> KnownObject {
    KnownObject { order, spec: Some(spec("web-1")), state }
}

fn up(status: ProcessStatus, before: ReadyHistory) -> ObjectState {
    let process = ProcessInfo {
        payload: "web".parse().unwrap(),
        index: 0,
        pid: None,
        object: None,
        addresses: vec![],
        status,
        since: None,
        resets: 0,
    };
    ObjectState::Up { processes: vec![process], before }
}

fn runs() -> ObjectState {
    up(ProcessStatus::Ready, ReadyHistory::Ready)
}

fn ended() -> ObjectState {
    ObjectState::Ended { exit: IncarnationExit::Clean, processes: vec![] }
}

fn failed() -> ObjectState {
    ObjectState::Failed { message: "no".into(), retry: RetryClass::Retryable }
}

fn changing() -> ObjectState {
    ObjectState::Changing { processes: vec![] }
}

fn unchanged() -> ObjectState {
    ObjectState::Unchanged {
        processes: vec![],
        before: ReadyHistory::Ready,
        message: "no".into(),
        retry: RetryClass::Retryable,
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn an_order_means_what_is_there_makes_of_it() {
    use TargetGoal::{Down, Removed, Up};
    let end = ReconcileStep::Stop(Duration::from_secs(9));
    let being_ended = ReconcileStep::Refuse("cannot start object: it is being ended", RetryClass::Retryable);
    let reboot = |revision| ObjectTarget { is_reboot: true, ..order(Up, revision, 1) };
    let starting = || ObjectState::Starting { processes: vec![] };
    let is_starting =
        ReconcileStep::Refuse("cannot reboot object: it is being started", RetryClass::Retryable);
    let cases = [
        (Some((order(Up, 1, 1), runs())), reboot(2), ReconcileStep::Reboot, "a reboot resets what runs"),
        (Some((reboot(2), runs())), reboot(2), ReconcileStep::Reboot, "a crash may have preceded the reset"),
        (Some((reboot(2), runs())), reboot(1), ReconcileStep::ReportAgain, "an old reboot resets nothing"),
        (Some((order(Up, 1, 1), starting())), reboot(2), is_starting, "a start is not interrupted"),
        (Some((order(Down, 1, 1), runs())), reboot(2), being_ended.clone(), "an end is not interrupted"),
        (Some((order(Up, 1, 1), ended())), reboot(2), ReconcileStep::Adopt, "the end is the outcome"),
        (
            Some((order(Up, 1, 1), failed())),
            reboot(2),
            ReconcileStep::WriteTombstone,
            "a reboot starts nothing",
        ),
        (None, reboot(2), ReconcileStep::WriteTombstone, "a reboot starts nothing"),
        // State                  last target         target             step            reason
        (None, order(Up, 1, 1), ReconcileStep::Start, "no object exists"),
        (None, order(Down, 1, 1), ReconcileStep::WriteTombstone, "absence is proved by a tombstone"),
        (None, order(Removed, 1, 1), ReconcileStep::WriteTombstone, "absence is proved by a tombstone"),
        (
            Some((order(Up, 1, 1), ObjectState::Accepted)),
            order(Up, 1, 1),
            ReconcileStep::Start,
            "a crash preceded the start",
        ),
        (
            Some((order(Down, 1, 1), ObjectState::Accepted)),
            order(Down, 1, 1),
            ReconcileStep::WriteTombstone,
            "a crash preceded the tombstone",
        ),
        (
            Some((order(Up, 1, 1), ObjectState::Accepted)),
            order(Down, 2, 1),
            ReconcileStep::WriteTombstone,
            "it was never started",
        ),
        (
            Some((order(Up, 1, 1), runs())),
            order(Up, 1, 1),
            ReconcileStep::ReportAgain,
            "a repeated command is reported again",
        ),
        (Some((order(Up, 1, 1), runs())), order(Up, 2, 1), ReconcileStep::Adopt, "it runs already"),
        (
            Some((order(Up, 2, 1), runs())),
            order(Down, 1, 9),
            ReconcileStep::ReportAgain,
            "a lower revision changes nothing",
        ),
        (
            Some((order(Up, 2, 2), runs())),
            order(Up, 2, 1),
            ReconcileStep::ReportAgain,
            "a lower attempt changes nothing",
        ),
        (Some((order(Up, 1, 1), runs())), order(Down, 2, 1), end.clone(), "the command ends it"),
        (
            Some((order(Down, 2, 1), runs())),
            order(Down, 2, 1),
            end.clone(),
            "the first request may have been lost",
        ),
        (
            Some((order(Down, 2, 1), runs())),
            order(Up, 3, 1),
            being_ended,
            "an ending incarnation is not restarted",
        ),
        (Some((order(Up, 1, 1), runs())), order(Removed, 2, 1), end.clone(), "it ends before its tombstone"),
        (Some((order(Up, 1, 1), ended())), order(Up, 1, 1), ReconcileStep::ReportAgain, "an end is final"),
        (
            Some((order(Up, 1, 1), ended())),
            order(Up, 2, 1),
            ReconcileStep::Adopt,
            "an end is final for higher revisions too",
        ),
        (Some((order(Up, 1, 1), ended())), order(Down, 2, 1), ReconcileStep::Adopt, "its exit is kept"),
        (
            Some((order(Up, 1, 1), ended())),
            order(Removed, 2, 1),
            ReconcileStep::WriteTombstone,
            "a removal replaces the end by a tombstone",
        ),
        (
            Some((order(Up, 1, 1), failed())),
            order(Up, 1, 1),
            ReconcileStep::ReportAgain,
            "this attempt failed",
        ),
        (
            Some((order(Up, 1, 1), failed())),
            order(Up, 1, 2),
            ReconcileStep::Start,
            "the next attempt may succeed",
        ),
        (Some((order(Up, 1, 1), failed())), order(Down, 2, 1), ReconcileStep::WriteTombstone, "nothing ran"),
        (
            Some((order(Down, 2, 1), ObjectState::Gone)),
            order(Up, 1, 1),
            ReconcileStep::ReportAgain,
            "the tombstone blocks it",
        ),
        (
            Some((order(Down, 2, 1), ObjectState::Gone)),
            order(Down, 2, 1),
            ReconcileStep::ReportAgain,
            "the tombstone exists",
        ),
        (
            Some((order(Down, 2, 1), ObjectState::Gone)),
            order(Down, 3, 1),
            ReconcileStep::WriteTombstone,
            "the tombstone rises",
        ),
        (
            Some((order(Down, 2, 1), ObjectState::Gone)),
            order(Up, 3, 1),
            ReconcileStep::Start,
            "it covers lower revisions only",
        ),
    ];
    for (there, order, then, because) in cases {
        let there = there.map(|(last, state)| present(last, state));
        // The target has the recorded spec, so support for changes does not matter.
        for changes in [UpdateSupport::InPlace, UpdateSupport::Never] {
            assert_eq!(
                step(there.as_ref(), &order, Some(&spec("web-1")), changes),
                then,
                "{because}: {order:?} on {there:?}"
            );
        }
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn another_spec_changes_what_runs_where_that_can_be_done_and_is_refused_elsewhere() {
    use TargetGoal::{Down, Up};
    let starting = || ObjectState::Starting { processes: vec![] };
    let met = |order| ObjectTarget { status: CommandStatus::Fulfilled, ..order };
    let refused = ReconcileStep::Refuse(
        "cannot update running object: its runtime supports no updates in place",
        RetryClass::Permanent,
    );
    let being_ended = ReconcileStep::Refuse("cannot start object: it is being ended", RetryClass::Retryable);
    let change = || (ReconcileStep::Change, refused.clone());
    let both = |step: ReconcileStep| (step.clone(), step);
    // The existing spec is always "web-1".
    let cases = [
        // State     last target   target       its spec  step with and without changes in place    reason
        (runs(), order(Up, 1, 1), order(Up, 2, 1), "web-2", change(), "another spec is requested"),
        (
            starting(),
            order(Up, 1, 1),
            order(Up, 2, 1),
            "web-2",
            change(),
            "another spec is requested before it is running",
        ),
        (runs(), order(Up, 2, 1), order(Up, 2, 2), "web-2", change(), "a higher attempt counts as a command"),
        (
            runs(),
            order(Up, 3, 1),
            order(Up, 2, 9),
            "web-2",
            both(ReconcileStep::ReportAgain),
            "a lower revision changes nothing",
        ),
        (
            runs(),
            order(Up, 1, 1),
            met(order(Up, 2, 1)),
            "web-2",
            both(ReconcileStep::Adopt),
            "the command awaits no outcome",
        ),
        (
            runs(),
            order(Up, 2, 1),
            met(order(Up, 2, 1)),
            "web-2",
            both(ReconcileStep::ReportAgain),
            "a repeated command awaits no outcome",
        ),
        (runs(), order(Down, 2, 1), order(Up, 3, 1), "web-2", both(being_ended.clone()), "it is ending"),
        (ended(), order(Up, 1, 1), order(Up, 2, 1), "web-2", both(ReconcileStep::Adopt), "an end is final"),
        (failed(), order(Up, 1, 1), order(Up, 2, 1), "web-2", both(ReconcileStep::Start), "no object exists"),
        (
            changing(),
            order(Up, 2, 1),
            order(Up, 2, 1),
            "web-1",
            both(ReconcileStep::ReportAgain),
            "the change is in progress",
        ),
        (
            changing(),
            order(Up, 2, 1),
            order(Up, 2, 2),
            "web-1",
            both(ReconcileStep::Adopt),
            "the change continues",
        ),
        (
            changing(),
            order(Up, 2, 1),
            met(order(Up, 3, 1)),
            "web-2",
            both(ReconcileStep::Adopt),
            "the change continues",
        ),
        (changing(), order(Up, 2, 1), order(Up, 3, 1), "web-2", change(), "a third spec, or the old one"),
        (
            changing(),
            order(Up, 2, 1),
            order(Up, 1, 1),
            "web-2",
            both(ReconcileStep::ReportAgain),
            "the earlier command",
        ),
        (changing(), order(Down, 3, 1), order(Up, 4, 1), "web-1", both(being_ended), "it is ending"),
        (
            unchanged(),
            order(Up, 2, 1),
            order(Up, 2, 1),
            "web-2",
            both(ReconcileStep::ReportAgain),
            "this attempt failed",
        ),
        (unchanged(), order(Up, 2, 1), order(Up, 2, 2), "web-2", change(), "the next attempt may succeed"),
        (
            unchanged(),
            order(Up, 2, 1),
            order(Up, 3, 1),
            "web-1",
            both(ReconcileStep::Adopt),
            "it runs with that spec",
        ),
        (
            unchanged(),
            order(Up, 2, 1),
            met(order(Up, 2, 1)),
            "web-2",
            both(ReconcileStep::Adopt),
            "the failure was received",
        ),
        (
            unchanged(),
            order(Up, 2, 1),
            met(order(Up, 3, 1)),
            "web-3",
            both(ReconcileStep::Adopt),
            "the failure was received",
        ),
    ];
    for (state, last, order, brings, (can, cannot), because) in cases {
        let there = present(last, state);
        for (changes, then) in [(UpdateSupport::InPlace, can), (UpdateSupport::Never, cannot)] {
            assert_eq!(
                step(Some(&there), &order, Some(&spec(brings)), changes),
                then,
                "{because}: {order:?} with {brings} on {there:?}, {changes:?}"
            );
        }
    }
    for state in [changing(), unchanged()] {
        for aim in [Down, TargetGoal::Removed] {
            let there = present(order(Up, 2, 1), state.clone());
            let end = step(Some(&there), &order(aim, 3, 1), None, UpdateSupport::InPlace);
            assert_eq!(end, ReconcileStep::Stop(Duration::from_secs(9)), "{aim:?} on {there:?}");
        }
    }
}

#[test]
fn a_report_names_the_revision_that_it_reflects() {
    let id = IncarnationId::issue(Lineage::from_random(1), Position::FIRST);
    let revision = |aim, state| match report(id.into(), &present(order(aim, 5, 1), state)) {
        StatusUpdate::Change(report) => (report.revision, "change"),
        StatusUpdate::ListOnly(report) => (report.revision, "list"),
    };
    let cases = [
        (TargetGoal::Up, ObjectState::Accepted, (4, "list"), "no outcome yet"),
        (TargetGoal::Up, ObjectState::Starting { processes: vec![] }, (4, "list"), "no outcome yet"),
        (TargetGoal::Up, runs(), (5, "change"), "the outcome"),
        (TargetGoal::Down, runs(), (4, "list"), "an unfinished end is no outcome"),
        (TargetGoal::Down, ended(), (5, "change"), "the outcome"),
        (TargetGoal::Up, changing(), (4, "list"), "no outcome yet"),
        (TargetGoal::Up, unchanged(), (5, "change"), "the outcome"),
        (TargetGoal::Down, unchanged(), (4, "list"), "an unfinished end is no outcome"),
        (TargetGoal::Up, failed(), (5, "change"), "the outcome"),
        (TargetGoal::Down, ObjectState::Gone, (5, "change"), "the outcome"),
    ];
    for (aim, state, then, because) in cases {
        assert_eq!(revision(aim, state.clone()), then, "{because}: {aim:?} and {state:?}");
    }
}

#[test]
fn ready_means_all_online() {
    let id = IncarnationId::issue(Lineage::from_random(1), Position::FIRST);
    let observed = |state| match report(id.into(), &present(order(TargetGoal::Up, 1, 1), state)) {
        StatusUpdate::Change(report) => report.observed,
        StatusUpdate::ListOnly(report) => panic!("{report:?}"),
    };
    assert!(matches!(
        observed(up(ProcessStatus::Ready, ReadyHistory::NeverReady)),
        ObservedState::Ready { .. }
    ));
    assert!(matches!(
        observed(up(ProcessStatus::Starting, ReadyHistory::NeverReady)),
        ObservedState::Started { .. }
    ));
    assert!(matches!(
        observed(up(ProcessStatus::Starting, ReadyHistory::Ready)),
        ObservedState::NotReady { .. }
    ));
    assert!(
        matches!(observed(unchanged()), ObservedState::Failed { retry: RetryClass::Retryable, .. }),
        "it runs with another spec than requested"
    );
}

#[test]
fn a_missing_incarnation_whose_command_is_fulfilled_is_not_started_again() {
    let met = ObjectTarget { status: CommandStatus::Fulfilled, ..order(TargetGoal::Up, 1, 1) };
    let on = |there: Option<&KnownObject>| step(there, &met, Some(&spec("web-1")), UpdateSupport::InPlace);
    assert_eq!(on(None), ReconcileStep::WriteTombstone);
    let lost = present(order(TargetGoal::Up, 1, 1), ObjectState::Accepted);
    assert_eq!(on(Some(&lost)), ReconcileStep::WriteTombstone);
    assert_eq!(on(Some(&present(met, runs()))), ReconcileStep::ReportAgain);
}

#[test]
fn another_restart_policy_is_applied_and_changes_nothing_that_runs() {
    let rule = |restart| ObjectSpec::Incarnation(run("web-1", restart));
    let there = present(order(TargetGoal::Up, 2, 1), runs());
    let met = ObjectTarget { status: CommandStatus::Fulfilled, ..order(TargetGoal::Up, 2, 1) };
    for (order, because) in [
        (order(TargetGoal::Up, 3, 1), "a higher revision"),
        (met, "the same revision: the rule needs no command"),
    ] {
        for changes in [UpdateSupport::InPlace, UpdateSupport::Never] {
            let then = step(Some(&there), &order, Some(&rule(RestartPolicy::Always)), changes);
            assert_eq!(then, ReconcileStep::Adopt, "{because}");
        }
    }
    let late = step(
        Some(&there),
        &order(TargetGoal::Up, 1, 1),
        Some(&rule(RestartPolicy::Always)),
        UpdateSupport::Never,
    );
    assert_eq!(late, ReconcileStep::ReportAgain, "a lower revision");
    let adopt =
        |brought: &ObjectSpec| match accepted(&ReconcileStep::Adopt, there.spec.clone(), Some(brought)) {
            Some(ObjectSpec::Incarnation(spec)) => spec.restart,
            other => panic!("{other:?}"),
        };
    assert_eq!(adopt(&rule(RestartPolicy::Always)), RestartPolicy::Always);
    let other = run("web-2", RestartPolicy::Always).into();
    assert_eq!(adopt(&other), RestartPolicy::OnFailure, "the rule belongs to another spec");
}

fn volume(capacity: u64) -> ObjectSpec {
    let (class, node) = ("disk".parse().unwrap(), "n1".parse().unwrap());
    ObjectSpec::Volume(VolumeSpec {
        name: "data".parse().unwrap(),
        namespace: "ns".parse().unwrap(),
        node,
        class,
        capacity,
        source: None,
    })
}

#[test]
fn a_volume_is_kept_whatever_is_requested_of_it_until_it_is_destroyed() {
    use TargetGoal::{Removed, Up};
    let up = || ObjectState::Up { processes: vec![], before: ReadyHistory::Ready };
    let lost =
        || ObjectState::Ended { exit: IncarnationExit::Failed { reason: "lost".into() }, processes: vec![] };
    let cases = [
        (order(Up, 1, 1), up(), order(Up, 2, 1), ReconcileStep::Adopt, "another spec changes nothing"),
        (order(Up, 1, 1), up(), order(Up, 1, 1), ReconcileStep::Adopt, "the same command changes nothing"),
        (order(Up, 1, 1), lost(), order(Up, 2, 1), ReconcileStep::Adopt, "a lost volume is not recreated"),
        (
            order(Up, 1, 1),
            up(),
            order(Removed, 2, 1),
            ReconcileStep::Stop(Duration::from_secs(9)),
            "it is destroyed",
        ),
        (
            order(Up, 1, 1),
            lost(),
            order(Removed, 2, 1),
            ReconcileStep::WriteTombstone,
            "nothing of the volume is left",
        ),
        (
            order(Removed, 2, 1),
            ObjectState::Gone,
            order(Up, 1, 9),
            ReconcileStep::ReportAgain,
            "the tombstone stays",
        ),
    ];
    for (last, state, order, then, because) in cases {
        let there = KnownObject { order: last, spec: Some(volume(1)), state };
        for changes in [UpdateSupport::InPlace, UpdateSupport::Never] {
            assert_eq!(step(Some(&there), &order, Some(&volume(2)), changes), then, "{because}");
        }
    }
    let recorded = accepted(&ReconcileStep::Adopt, Some(volume(1)), Some(&volume(2)));
    assert_eq!(recorded, Some(volume(2)), "the newest is recorded");
}

#[test]
fn a_spec_is_recorded_with_an_order_by_what_the_order_does() {
    let (a, b) = (|| Some(spec("web-1")), || Some(spec("web-2")));
    for (step, there, brought, recorded, because) in [
        (ReconcileStep::Start, a(), b(), b(), "it is started with the spec of the command"),
        (ReconcileStep::Change, a(), b(), b(), "it is changed to the spec of the command"),
        (ReconcileStep::Adopt, a(), b(), a(), "it keeps the spec of its start"),
        (ReconcileStep::Stop(Duration::ZERO), a(), b(), a(), "it keeps its spec while it is being ended"),
        (ReconcileStep::WriteTombstone, a(), b(), a(), "it keeps its spec once gone"),
        (ReconcileStep::WriteTombstone, a(), None, a(), "an orphan resolution has no spec"),
        (ReconcileStep::WriteTombstone, None, b(), b(), "an unknown object has the spec of the command"),
    ] {
        assert_eq!(accepted(&step, there, brought.as_ref()), recorded, "{because}");
    }
}

#[test]
fn a_command_fits_what_it_is_on() {
    let at = (Lineage::from_random(1), Position::FIRST);
    let (run, disk) = (IncarnationId::issue(at.0, at.1).into(), VolumeId::issue(at.0, at.1).into());
    let cases: [(ObjectId, ObjectSpec, CommandEffect, Option<TargetGoal>); 8] = [
        (run, spec("web-1"), CommandEffect::Ensure, Some(TargetGoal::Up)),
        (run, spec("web-1"), CommandEffect::Stop, Some(TargetGoal::Down)),
        (run, spec("web-1"), CommandEffect::Kill, Some(TargetGoal::Down)),
        (disk, volume(1), CommandEffect::Ensure, Some(TargetGoal::Up)),
        (disk, volume(1), CommandEffect::Kill, Some(TargetGoal::Removed)),
        (disk, volume(1), CommandEffect::Stop, None),
        (disk, spec("web-1"), CommandEffect::Ensure, None),
        (run, volume(1), CommandEffect::Kill, None),
    ];
    for (object, spec, effect, then) in cases {
        let (command_status, grace) = (CommandStatus::Pending, Duration::from_secs(9));
        let command = Command {
            object,
            revision: 3,
            attempt: 2,
            effect,
            status: command_status,
            grace,
            spec,
            traceparent: None,
        };
        let target = misfit(&command).is_none().then(|| ObjectTarget::of(&command));
        assert_eq!(target.map(|order| order.aim), then, "{effect:?} on {object:?}");
        assert!(target.is_none_or(|order| (order.revision, order.attempt) == (3, 2)));
    }
}
