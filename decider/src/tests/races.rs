//! Races between the decider, the journal and executors, each in the order that caused failures elsewhere.
//! Their numbers are those of `docs/races.md`.

use chancery_events::id::{IncarnationId, ObjectId};
use chancery_events::observation::{IncarnationExit, RetryClass};
use chancery_events::protocol::CommandStatus;
use chancery_projector::JournalFold;

use super::*;

impl DeciderFixture {
    /// Crashes the server; another takes over with the first `records` records, and the rest never existed.
    fn crash(&mut self, records: usize) {
        self.journal.truncate(records);
        self.durable = records;
        let mut fold = JournalFold::default();
        for record in &self.journal {
            fold.take(record).expect("folds");
        }
        let state = fold.state().expect("a term has started");
        self.take_over(settings(2), state.fleet.clone(), Some(&state.at), self.now);
    }

    /// Seals the commit before any due work is done.
    fn seal(&mut self) {
        self.give(CoreInput::Seal);
    }

    fn report(
        &mut self,
        connection: u64,
        sequence: u64,
        incarnation: IncarnationId,
        revision: u32,
        observed: ObservedState,
    ) {
        let report = ObjectReport { object: incarnation.into(), revision, observed };
        let token = ConnectionToken::from_random(connection);
        self.send(connection, ExecutorMessage::Report { connection: token, sequence, report });
    }

    fn level(&mut self, connection: u64, reports: Vec<ObjectReport>) {
        let token = ConnectionToken::from_random(connection);
        self.send(
            connection,
            ExecutorMessage::FullReport { connection: token, reports, part: ReportPart::Last },
        );
    }

    /// Returns a rig with an executor, and one replica that must start.
    fn starting() -> (DeciderFixture, IncarnationId) {
        let mut rig = DeciderFixture::new();
        rig.cluster();
        rig.hello(1, "ex", None);
        rig.settle();
        rig.level(1, vec![]);
        rig.plan_and_deployment();
        let effects = rig.settle();
        let id = commands(&effects)[0].0;
        (rig, id)
    }

    /// Returns a rig with an executor, and one running replica.
    fn running() -> (DeciderFixture, IncarnationId) {
        let (mut rig, id) = DeciderFixture::starting();
        rig.report(1, 1, id, 1, ObservedState::Ready { processes: vec![] });
        rig.settle();
        (rig, id)
    }

    fn ask_replica(&mut self, what: &str) {
        let replica = self.core.fleet().replicas().sorted()[0].name.clone();
        self.must(what, &json!({"name": replica}));
    }
}

/// Returns commanded incarnations, with revision, attempt, and whether an outcome is awaited.
fn commands(effects: &[DeciderEffect]) -> Vec<(IncarnationId, u32, u32, CommandStatus)> {
    let mut all = Vec::new();
    for message in sent(effects) {
        let listed = match message {
            DeciderMessage::Command { command, .. } => std::slice::from_ref(command),
            DeciderMessage::Welcome { commands, .. } | DeciderMessage::Inventory { commands, .. } => commands,
            _ => continue,
        };
        let run = |object| match object {
            ObjectId::Incarnation(id) => id,
            ObjectId::Volume(id) => panic!("unexpected command for volume {id}"),
        };
        all.extend(listed.iter().map(|c| (run(c.object), c.revision, c.attempt, c.status)));
    }
    all
}

fn forgets(effects: &[DeciderEffect]) -> usize {
    sent(effects).iter().filter(|message| matches!(message, DeciderMessage::Purge { .. })).count()
}

fn crashed() -> ObservedState {
    ObservedState::Ended { exit: IncarnationExit::Failed { reason: "status 3".into() }, processes: vec![] }
}

/// Race R2.
#[test]
fn an_end_of_which_the_server_died_is_reported_to_the_next_and_counts_once() {
    let (mut rig, id) = DeciderFixture::running();
    let durable = rig.durable;
    rig.report(1, 2, id, 1, crashed());
    rig.commit();
    assert!(rig.effects().is_empty(), "neither acknowledged nor purged before it is durable");
    rig.crash(durable);
    rig.hello(2, "ex", None);
    rig.settle();
    let mut purged = 0;
    for _ in 0..3 {
        rig.level(2, vec![ObjectReport { object: id.into(), revision: 1, observed: crashed() }]);
        purged += forgets(&rig.settle());
    }
    assert_eq!(purged, 3, "once for each report");
    let ends = rig.types(durable).into_iter().filter(|name| *name == "incarnation.ended.v1").count();
    assert_eq!((ends, rig.core.fleet().incarnations().sorted()[0].is_live()), (1, false));
}

/// Races R3, R61.
#[test]
fn a_list_that_was_made_before_a_start_proves_nothing_about_it() {
    let (mut rig, id) = DeciderFixture::starting();
    let before = rig.journal.len();
    rig.level(1, vec![]);
    rig.level(1, vec![ObjectReport { object: id.into(), revision: 0, observed: ObservedState::Gone }]);
    rig.settle();
    assert!(
        rig.types(before).iter().all(|name| *name == "incarnation.reported.v1"),
        "{:?}",
        rig.types(before)
    );
    rig.report(1, 1, id, 1, ObservedState::Ready { processes: vec![] });
    rig.settle();
    assert!(rig.types(before).contains(&"incarnation.running.v1"));
}

/// Races R8, R33.
#[test]
fn a_crash_anywhere_between_an_intent_and_its_commands_repeats_and_loses_nothing() {
    let count = 300;
    let written = || {
        let mut rig = DeciderFixture::new();
        rig.cluster();
        let auto =
            json!({"create": "automatic", "start": "automatic", "stop": "automatic", "delete": "automatic"});
        let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": {"argv": ["app"]}});
        let spec = json!({"namespace": "ns", "service": "web", "payloads": [payload], "approval": auto, "sharing": "allowed"});
        rig.must("plan.apply", &json!({"name": "web", "spec": spec}));
        rig.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": count}}));
        rig.seal();
        let accepted = rig.journal.len();
        rig.commit();
        (rig, accepted)
    };
    let (whole, accepted) = written();
    let end = whole.journal.len();
    assert!(end > accepted + 2, "the work is more than one commit: {accepted} of {end}");
    for records in accepted..=end {
        let (mut rig, _) = written();
        rig.crash(records);
        rig.settle();
        let fleet = rig.core.fleet();
        let live = fleet.incarnations().sorted().iter().filter(|i| i.is_live()).count();
        assert_eq!((fleet.replicas().len(), live), (count, count), "{records} of {end} records");
        rig.hello(1, "ex", None);
        let mut ids: Vec<_> = commands(&rig.settle()).into_iter().map(|(id, ..)| id).collect();
        assert_eq!(ids.len(), count, "each has one operation");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "no operation is repeated");
    }
}

/// Race R10.
#[test]
fn a_retry_for_a_deleted_object_is_dropped_and_blocks_no_other() {
    let (mut rig, id) = DeciderFixture::starting();
    rig.report(1, 1, id, 1, ObservedState::Failed { message: "no".into(), retry: RetryClass::Retryable });
    rig.ask_replica("replica.delete");
    rig.settle();
    rig.report(1, 2, id, 2, ObservedState::Gone);
    rig.settle();
    assert!(rig.core.fleet().incarnations().get(&id).is_none(), "with its replica");
    rig.now = rig.now + Duration::from_secs(10);
    let before = rig.journal.len();
    assert_eq!(
        (commands(&rig.settle()).len(), rig.types(before).len()),
        (0, 0),
        "no command is left to retry"
    );
    assert!(rig.core.next_due().is_none_or(|due| due > rig.now), "nor is it due again immediately");
    rig.must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": 1}}));
    assert_eq!(answers(&rig.settle()).len(), 1);
}

/// Race R32.
#[test]
fn an_object_that_reappears_after_it_was_declared_lost_is_removed_and_changes_nothing() {
    let (mut rig, id) = DeciderFixture::running();
    rig.must("node.set_state", &json!({"name": "n1", "state": "expunged"}));
    rig.settle();
    let before = rig.journal.len();
    rig.level(
        1,
        vec![ObjectReport {
            object: id.into(),
            revision: 1,
            observed: ObservedState::Ready { processes: vec![] },
        }],
    );
    let effects = rig.settle();
    assert_eq!(rig.types(before), ["orphan.reported.v1", "orphan.resolved.v1"]);
    let judged = |message: &&DeciderMessage| {
        matches!(message, DeciderMessage::OrphanResolved { object, resolution, revision: 2, .. }
            if *object == id.into() && *resolution == chancery_events::fact::OrphanResolution::Remove)
    };
    assert!(sent(&effects).iter().any(judged), "{effects:?}");
    assert_eq!(rig.core.fleet().incarnations().sorted().iter().filter(|i| i.is_live()).count(), 0);
}

/// Race R35.
#[test]
fn a_retry_backoff_outlives_a_crash_of_the_server() {
    let (mut rig, id) = DeciderFixture::starting();
    rig.report(1, 1, id, 1, ObservedState::Failed { message: "no".into(), retry: RetryClass::Retryable });
    rig.settle();
    let due =
        rig.core.fleet().incarnations().get(&id).and_then(|i| i.command).expect("tried again").not_before;
    assert!(due > rig.now);
    rig.crash(rig.journal.len());
    rig.settle();
    rig.hello(2, "ex", None);
    assert_eq!(commands(&rig.settle()), [], "not before the backoff ends");
    rig.now = due;
    assert_eq!(
        commands(&rig.settle()),
        [(id, 1, 2, CommandStatus::Pending)],
        "after the backoff, as the second attempt"
    );
}

/// Race R60.
#[test]
fn an_end_that_was_decided_and_not_sent_is_in_the_next_welcome() {
    for (what, accepted_only) in
        [("replica.stop", true), ("replica.stop", false), ("replica.delete", true), ("replica.delete", false)]
    {
        let (mut rig, id) = DeciderFixture::running();
        rig.ask_replica(what);
        if accepted_only {
            rig.seal();
        } else {
            rig.commit();
        }
        rig.crash(rig.journal.len());
        rig.settle();
        rig.hello(2, "ex", None);
        let listed = commands(&rig.settle());
        assert_eq!(listed, [(id, 2, 1, CommandStatus::Pending)], "{what}, accepted only: {accepted_only}");
        rig.report(2, 1, id, 2, ObservedState::Gone);
        rig.settle();
        assert_eq!(rig.core.fleet().replicas().is_empty(), what == "replica.delete");
        assert_eq!(rig.core.fleet().incarnations().sorted().iter().filter(|i| i.is_live()).count(), 0);
    }
}
