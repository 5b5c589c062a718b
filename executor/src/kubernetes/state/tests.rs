use std::time::Duration;

use chancery_events::id::{IncarnationId, Lineage, Position, VolumeId};
use chancery_events::observation::{ObservedState, RetryClass};
use chancery_events::protocol::CommandStatus;
use serde_json::{Value, json};

use super::*;
use crate::executor_store::AcceptedCommand;
use crate::kubernetes::store::RecordedFailure;
use crate::reconcile::{StatusUpdate, report};

fn id() -> IncarnationId {
    IncarnationId::issue(Lineage::from_random(42), Position::FIRST)
}

fn order(revision: u32, aim: TargetGoal) -> ObjectTarget {
    ObjectTarget {
        revision,
        attempt: 1,
        aim,
        is_reboot: false,
        status: CommandStatus::Pending,
        grace: Duration::from_secs(5),
    }
}

/// Returns the view of an incarnation of `processes` processes, whose start has made this progress.
fn view(processes: u16, start: StartProgress) -> ObjectView {
    let spec = json!({"incarnation": {
        "replica": "web-1", "plan": "web", "node": "n1", "restart": "never",
        "labels": {"namespace": "ns", "service": "web", "labels": {}, "deployment": "d1"},
        "payloads": [{"name": "web", "processes": processes, "ports": [], "coordinates": {}}],
    }});
    let spec = serde_json::from_value(spec).expect("a spec");
    let command = AcceptedCommand { object: id().into(), order: order(1, TargetGoal::Up), spec: Some(spec) };
    let record = ObjectRecord { start, ..ObjectRecord::new(command) };
    ObjectView { record: Some(record), ..ObjectView::new(id().into()) }
}

/// Returns a pod with this uid, and with this state of its container.
fn pod(index: u16, uid: &str, deleted: bool, state: &Value) -> ObservedPod {
    pod_with(index, uid, deleted, state, state.get("running").is_some())
}

/// Returns a pod whose container has this state, and is ready or not.
fn pod_with(index: u16, uid: &str, deleted: bool, state: &Value, ready: bool) -> ObservedPod {
    let id = id().to_string();
    let pod = json!({
        "metadata": {
            "name": format!("web-{id}-{index}"), "namespace": "ns", "uid": uid,
            "labels": {"chancery.dev/incarnation": id, "chancery.dev/index": index.to_string(), "chancery.dev/revision": "1"},
            "deletionTimestamp": deleted.then_some("2026-11-21T09:00:00Z"), "deletionGracePeriodSeconds": deleted.then_some(5),
        },
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "web", "image": "", "imageID": "", "restartCount": 0, "ready": ready,
            "started": state.get("running").is_some(), "state": state,
        }]},
    });
    ObservedPod::of(&serde_json::from_value(pod).expect("a pod"), 1).expect("a pod of the incarnation")
}

fn running(index: u16, uid: &str) -> ObservedPod {
    pod(index, uid, false, &json!({"running": {}}))
}

fn exited(code: i32) -> Value {
    json!({"terminated": {"exitCode": code}})
}

#[track_caller]
fn written(view: &ObjectView) -> ObjectRecord {
    match view.next() {
        ObjectStep::Write(record) | ObjectStep::WriteLater(record, _) => *record,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn deleted(view: &ObjectView) -> (String, Option<i64>) {
    match view.next() {
        ObjectStep::Delete(deletion) => (deletion.uid, deletion.grace),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_start_creates_each_pod_once_and_only_for_a_command_that_this_executor_received() {
    assert_eq!(view(2, StartProgress::Accepted).next(), ObjectStep::Rest, "the command must come again");
    let mut begun = view(2, StartProgress::Creating);
    begun.begin();
    assert_eq!(begun.next(), ObjectStep::CreatePod(0));
    begun.see_pod(running(0, "a"), true);
    assert_eq!(begun.next(), ObjectStep::CreatePod(1));
    begun.add_pod(pod(1, "b", false, &json!({"waiting": {}})));
    assert!(matches!(begun.next(), ObjectStep::WriteLater(..)), "not all are ready");
    begun.see_pod(running(1, "b"), true);
    let ready = written(&begun);
    assert_eq!((ready.start, &ready.end), (StartProgress::Ready, &None));
    begun.record = Some(ready);
    assert_eq!(begun.next(), ObjectStep::Rest);
    // The answer to a request does not replace what an event has shown since.
    begun.add_pod(pod(1, "b", false, &json!({"waiting": {}})));
    assert_eq!(begun.next(), ObjectStep::Rest);
}

#[test]
fn readiness_counts_before_it_is_recorded() {
    let mut view = view(1, StartProgress::Creating);
    view.begin();
    view.see_pod(running(0, "a"), true);
    assert!(matches!(view.next(), ObjectStep::WriteLater(_, PROGRESS)));
    assert_eq!(written(&view).start, StartProgress::Ready);
    let unready = pod_with(0, "a", false, &json!({"running": {}}), false);
    view.see_pod(unready.clone(), true);
    assert!(matches!(view.next(), ObjectStep::Write(_)), "the pod does not show it any more");
    assert_eq!(written(&view).start, StartProgress::Ready);
    let observed = |view: &ObjectView| match report(view.object, &view.known().expect("known")) {
        StatusUpdate::Change(report) => report.observed,
        other @ StatusUpdate::ListOnly(_) => panic!("{other:?}"),
    };
    assert!(matches!(observed(&view), ObservedState::NotReady { .. }), "{:?}", observed(&view));
    // The same of a pod that a later executor lists first.
    let mut later = self::view(1, StartProgress::Creating);
    later.take_list(view.clone(), 1);
    assert!(matches!(observed(&later), ObservedState::Started { .. }), "it was never seen ready");
    let mut ready = view.clone();
    ready.see_pod(running(0, "a"), true);
    later.take_list(ready, 1);
    later.see_pod(unready, true);
    assert!(matches!(observed(&later), ObservedState::NotReady { .. }));
    // Another start is not ready yet.
    view.begin();
    assert!(matches!(observed(&view), ObservedState::Started { .. }));
}

#[test]
fn a_pod_that_an_earlier_executor_may_have_created_is_not_created_again() {
    let left = view(1, StartProgress::Creating);
    let record = written(&left);
    let end = record.end.expect("an end");
    assert!(end.is_proved && matches!(end.exit, IncarnationExit::Failed { .. }), "{end:?}");
    let mut partly = view(2, StartProgress::Creating);
    partly.see_pod(running(0, "a"), true);
    let end = written(&partly).end.expect("an end");
    assert!(!end.is_proved, "a pod still runs");
}

#[test]
fn an_end_is_recorded_before_the_rest_is_deleted_and_proved_after_it() {
    let mut view = view(2, StartProgress::Ready);
    view.see_pod(pod(0, "a", false, &exited(3)), true);
    view.see_pod(running(1, "b"), true);
    let record = written(&view);
    let end = record.end.clone().expect("an end");
    let reason = "web-0 ended with status 3".to_owned();
    assert_eq!((end.exit, end.is_proved), (IncarnationExit::Failed { reason }, false));
    view.record = Some(record);
    let is_listed = |view: &ObjectView| matches!(report(view.object, &view.known().expect("known")), StatusUpdate::Change(of) if matches!(of.observed, ObservedState::Ended { .. }));
    assert!(!is_listed(&view), "nothing has ended while a pod exists");
    for uid in ["a", "b"] {
        assert_eq!(deleted(&view), (uid.to_owned(), Some(5)));
        view.deleted.insert(uid.to_owned(), 5);
    }
    assert_eq!(view.next(), ObjectStep::Rest, "the watch reports the rest");
    for (index, uid) in [(0, "a"), (1, "b")] {
        view.see_pod(pod(index, uid, true, &exited(3)), false);
    }
    assert!(view.is_proved_gone() && !is_listed(&view), "not before it is recorded");
    view.record = Some(written(&view));
    assert!(is_listed(&view) && view.next() == ObjectStep::Rest);
    // An executor that crashed before the proof finds an end, and starts nothing.
    let mut later = ObjectView::new(view.object);
    later.record = view.record.clone();
    later.record.as_mut().expect("a record").end.as_mut().expect("an end").is_proved = false;
    later.record.as_mut().expect("a record").start = StartProgress::Creating;
    assert_ne!(later.known().expect("known").state, ObjectState::Accepted);
    assert!(written(&later).end.expect("an end").is_proved);
}

#[test]
fn a_stop_deletes_by_uid_and_a_kill_shortens_its_grace() {
    let mut view = view(1, StartProgress::Ready);
    view.see_pod(running(0, "a"), true);
    view.order = Some(order(2, TargetGoal::Down));
    assert_eq!(deleted(&view), ("a".into(), Some(5)));
    view.deleted.insert("a".into(), 5);
    assert_eq!(view.next(), ObjectStep::Rest);
    let kill = ObjectTarget { grace: Duration::ZERO, ..order(3, TargetGoal::Down) };
    view.order = Some(kill);
    assert_eq!(deleted(&view), ("a".into(), Some(1)), "never zero: the API would not wait for the kubelet");
    view.see_pod(pod(0, "a", true, &exited(0)), false);
    let record = written(&view);
    assert_eq!((record.command.order, record.end.expect("an end").exit), (kill, IncarnationExit::Clean));
}

#[test]
fn absence_from_a_list_or_watch_proves_nothing() {
    let mut view = view(1, StartProgress::Ready);
    view.see_pod(running(0, "a"), true);
    // As after a change of its labels: the event has no deletion timestamp.
    view.see_pod(running(0, "a"), false);
    assert!(!view.exists() && !view.is_proved_gone());
    assert!(view.knows("a"), "it is recognized when it is read by its name");
    view.find_pod(running(0, "a"));
    view.take_list(ObjectView::new(view.object), 9);
    assert!(view.exists(), "no list shows it");
    view.order = Some(order(2, TargetGoal::Down));
    assert_eq!(deleted(&view).0, "a");
    view.forget_uid("a");
    assert!(view.is_proved_gone(), "the API has no such pod");
    // A late event about it changes nothing.
    view.see_pod(running(0, "a"), true);
    assert!(!view.exists());
}

#[test]
fn a_pod_that_another_party_deleted_is_a_failure_whatever_its_status() {
    for status in [0, 3] {
        let mut view = view(1, StartProgress::Ready);
        view.see_pod(pod(0, "a", true, &exited(status)), true);
        let exit = written(&view).end.expect("an end").exit;
        assert!(matches!(exit, IncarnationExit::Failed { .. }), "status {status}: {exit:?}");
    }
}

#[test]
fn a_failed_start_has_failed_when_nothing_of_it_exists() {
    let mut view = view(2, StartProgress::Creating);
    view.begin();
    view.see_pod(running(0, "a"), true);
    let failure = RecordedFailure { message: "refused".into(), retry: RetryClass::Permanent };
    view.record.as_mut().expect("a record").failure = Some(failure);
    assert!(matches!(view.known().expect("known").state, ObjectState::Starting { .. }));
    assert_eq!(deleted(&view).0, "a");
    view.see_pod(pod(0, "a", true, &exited(0)), false);
    assert!(matches!(view.known().expect("known").state, ObjectState::Failed { .. }));
    assert_eq!(view.next(), ObjectStep::Rest);
    view.order = Some(order(2, TargetGoal::Down));
    assert_eq!(written(&view).tombstone, Some(2));
}

#[test]
fn a_pod_of_a_late_request_is_deleted_and_a_claim_only_by_a_command() {
    let mut buried = view(1, StartProgress::Ready);
    buried.record.as_mut().expect("a record").tombstone = Some(1);
    assert_eq!(buried.next(), ObjectStep::Rest);
    buried.see_pod(running(0, "late"), true);
    assert_eq!(deleted(&buried).0, "late");

    let volume = VolumeId::issue(Lineage::from_random(42), Position::FIRST);
    let mut lost = ObjectView::new(volume.into());
    let command = AcceptedCommand { object: volume.into(), order: order(1, TargetGoal::Up), spec: None };
    lost.record = Some(ObjectRecord { start: StartProgress::Ready, ..ObjectRecord::new(command) });
    lost.record = Some(written(&lost));
    assert!(matches!(lost.known().expect("known").state, ObjectState::Ended { .. }));
    let claim = ObservedClaim {
        name: "v".into(),
        namespace: "ns".into(),
        uid: "restored".into(),
        is_ready: true,
        seen_at: 1,
    };
    lost.see_claim(claim, true);
    assert_eq!(lost.next(), ObjectStep::Rest, "it may be a restored copy");
    lost.order = Some(order(2, TargetGoal::Removed));
    assert_eq!(deleted(&lost), ("restored".into(), None));
    lost.see_claim(lost.claim.clone().expect("a claim"), false);
    assert_eq!(written(&lost).tombstone, Some(2));
}

#[test]
fn a_volume_is_ready_when_its_claim_is_and_not_when_it_was_created() {
    let volume = VolumeId::issue(Lineage::from_random(42), Position::FIRST);
    let mut view = ObjectView::new(volume.into());
    let command = AcceptedCommand { object: volume.into(), order: order(1, TargetGoal::Up), spec: None };
    view.record = Some(ObjectRecord { start: StartProgress::Creating, ..ObjectRecord::new(command) });
    assert_eq!(view.next(), ObjectStep::CreateClaim);
    let claim = |is_ready| ObservedClaim {
        name: "v".into(),
        namespace: "ns".into(),
        uid: "a".into(),
        is_ready,
        seen_at: 1,
    };
    view.see_claim(claim(false), true);
    for start in [StartProgress::Creating, StartProgress::Created] {
        view.record.as_mut().expect("a record").start = start;
        assert!(matches!(view.known().expect("known").state, ObjectState::Starting { .. }), "{start:?}");
    }
    view.see_claim(claim(true), true);
    assert_eq!(written(&view).start, StartProgress::Ready);
    assert!(matches!(view.known().expect("known").state, ObjectState::Up { .. }));
}
