//! Messages to executors, and executors that are refused or expire.

use super::*;

#[test]
fn an_executor_is_welcomed_gets_commands_and_is_notified_of_what_has_ended() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    rig.hello(1, "ex", None);
    assert!(rig.effects().is_empty(), "the session is not durable yet");
    let effects = rig.settle();
    let [DeciderMessage::Welcome { envelope, commands, .. }] = sent(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert!(commands.is_empty());
    let (token, session) = (envelope.connection, envelope.session);
    rig.send(1, ExecutorMessage::FullReport { connection: token, reports: vec![], part: ReportPart::Last });
    rig.plan_and_deployment();
    let effects = rig.settle();
    let [DeciderMessage::Command { envelope, command }] = sent(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!((envelope.session, envelope.head, command.revision), (session, rig.core.durable(), 1));
    let (incarnation, process) = (
        command.object,
        ProcessInfo {
            payload: name("app"),
            index: 0,
            pid: Some(9),
            object: None,
            addresses: vec![],
            status: ProcessStatus::Ready,
            since: None,
            resets: 0,
        },
    );
    let report = |revision, observed| ObjectReport { object: incarnation, revision, observed };
    let ready = ObservedState::Ready { processes: vec![process] };
    let before = rig.journal.len();
    for _ in 0..2 {
        rig.send(
            1,
            ExecutorMessage::Report { connection: token, sequence: 1, report: report(1, ready.clone()) },
        );
    }
    assert!(rig.effects().is_empty(), "the acknowledgement is held back too");
    let effects = rig.settle();
    assert!(
        sent(&effects).iter().all(|m| matches!(m, DeciderMessage::ReportsAccepted { sequence: 1, .. })),
        "{effects:?}"
    );
    assert_eq!(
        rig.types(before),
        ["incarnation.reported.v1", "incarnation.running.v1", "deployment.ended.v1"],
        "once, though reported twice"
    );
    rig.send(
        1,
        ExecutorMessage::Report { connection: token, sequence: 2, report: report(1, ObservedState::Gone) },
    );
    let effects = rig.settle();
    assert!(
        sent(&effects)
            .iter()
            .any(|m| matches!(m, DeciderMessage::Purge { object: i, .. } if *i == incarnation))
    );
}

#[test]
fn an_executor_that_reconnects_receives_the_whole_inventory_and_its_old_connection_is_closed() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    rig.hello(1, "ex", None);
    rig.settle();
    rig.plan_and_deployment();
    rig.settle();
    let before = rig.journal.len();
    rig.hello(2, "ex", None);
    let effects = rig.settle();
    assert_eq!(rig.types(before), Vec::<&str>::new(), "the same session: nothing to record");
    assert!(effects.iter().any(|e| matches!(e, DeciderEffect::Close(ChannelNumber(1)))));
    let welcome = sent(&effects).into_iter().find_map(|m| {
        if let DeciderMessage::Welcome { commands, .. } = m { Some(commands.len()) } else { None }
    });
    assert_eq!(welcome, Some(1));
    rig.hello(3, "other", None);
    let effects = rig.settle();
    assert!(
        matches!(sent(&effects)[..], [DeciderMessage::Refused { retry: HelloRetry::Later, .. }]),
        "the store has a session"
    );
    let token = ConnectionToken::from_random(1);
    rig.send(1, ExecutorMessage::Heartbeat { connection: token, sequence: 1 });
    let effects = rig.settle();
    assert!(
        matches!(sent(&effects)[..], [DeciderMessage::ConnectionClosed { .. }]),
        "an old connection token is refused"
    );
}

#[test]
fn an_executor_with_a_later_or_another_head_is_refused() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    let lineage = Lineage::from_random(5);
    let head = rig.core.durable();
    let cases = [
        (lineage, JournalHead { position: head.position.plus(1), ..head }, HelloRetry::StaleDecider),
        (Lineage::from_random(6), head, HelloRetry::Never),
    ];
    for (i, (lineage, head, expected)) in cases.into_iter().enumerate() {
        rig.hello(10 + i as u64, "ex", Some((lineage, head)));
        let effects = rig.settle();
        let [DeciderMessage::Refused { retry: again, .. }] = sent(&effects)[..] else {
            panic!("{effects:?}")
        };
        assert_eq!(*again, expected);
    }
    rig.give(CoreInput::Connected(ChannelNumber(20), ConnectionToken::from_random(20)));
    let seen = Some((lineage, head));
    let hello = hello("ex", SCOPE, epoch(1, 1), seen);
    for (recorded, expected) in
        [(Some(RecordHash::of(b"another record")), true), (None, true), (Some(head.hash), false)]
    {
        rig.core.lookup = Box::new(move |_| Ok(recorded));
        rig.send(20, hello.clone());
        let effects = rig.settle();
        let refused =
            matches!(sent(&effects)[..], [DeciderMessage::Refused { retry: HelloRetry::Never, .. }]);
        assert_eq!(refused, expected, "{recorded:?}: {effects:?}");
    }
}

#[test]
fn a_failed_lookup_refuses_no_executor_permanently() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    let head = rig.core.durable();
    rig.give(CoreInput::Connected(ChannelNumber(1), ConnectionToken::from_random(1)));
    let hello = hello("ex", SCOPE, epoch(1, 1), Some((Lineage::from_random(5), head)));
    let failing = |_| {
        let source = std::io::Error::from_raw_os_error(24);
        Err(ReadError::Io { place: "a segment".into(), source })
    };
    rig.core.lookup = Box::new(failing);
    rig.send(1, hello.clone());
    let (reason, again) = refusal(&rig.settle()).expect("refused");
    assert_eq!(again, HelloRetry::Later, "{reason}");
    assert!(reason.contains("cannot read record at position"), "{reason}");
    rig.core.lookup = Box::new(move |_| Ok(Some(head.hash)));
    rig.send(1, hello);
    assert_eq!(refusal(&rig.settle()), None);
}

/// Returns why a hello was refused, and whether to retry.
fn refusal(effects: &[DeciderEffect]) -> Option<(String, HelloRetry)> {
    sent(effects).iter().find_map(|message| match message {
        DeciderMessage::Refused { reason, retry: again } => Some((reason.clone(), *again)),
        _ => None,
    })
}

#[test]
fn an_executor_with_another_store_is_refused_until_nothing_is_left_in_the_old_one() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    assert_eq!(refusal(&rig.hello_over(1, 1, epoch(1, 1))), None);
    rig.plan_and_deployment();
    rig.settle();
    let (reason, again) = refusal(&rig.hello_over(2, 2, epoch(1, 2))).expect("refused");
    assert!(
        reason.contains(
            "cannot open session of cluster local: executor ex with another executor store has one"
        ),
        "{reason}"
    );
    assert_eq!(again, HelloRetry::Later);
    rig.now = rig.now + LEASE + LEASE;
    rig.settle();
    let (reason, again) = refusal(&rig.hello_over(3, 2, epoch(1, 2))).expect("refused");
    assert!(reason.contains("expunge node n1 if its machine is lost"), "{reason}");
    assert_eq!(again, HelloRetry::Later);
    assert!(!rig.types(0).contains(&"incarnation.ended.v1"), "a refused executor proves no end");
    rig.must("node.set_state", &json!({"name": "n1", "state": "expunged"}));
    rig.settle();
    assert_eq!(refusal(&rig.hello_over(4, 2, epoch(1, 2))), None);
    let (reason, _) = refusal(&rig.hello_over(5, 1, epoch(2, 3))).expect("refused");
    assert!(reason.contains("another executor store"), "now the other executor has another store: {reason}");
}

#[test]
fn an_inventory_is_sent_in_bounded_messages_each_on_request() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    // Each request is large: a hundred of them are 5 MB.
    let text = "x".repeat(50_000);
    let auto = json!({"create": "automatic"});
    let run = json!({"argv": ["app"], "env": {"TEXT": text}});
    let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": run});
    let spec = json!({
        "namespace": "ns", "service": "web", "payloads": [payload], "approval": auto, "sharing": "allowed",
    });
    rig.must("plan.apply", &json!({"name": "web", "spec": spec}));
    rig.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 100}}));
    while !rig.settle().is_empty() || rig.give(CoreInput::Work) {}
    rig.hello(1, "ex", None);
    let mut effects = rig.settle();
    let (mut all, mut parts) = (Vec::new(), 0);
    loop {
        let (commands, rest, token) = match sent(&effects)[..] {
            [DeciderMessage::Welcome { envelope, commands, next_after: rest, .. }] if parts == 0 => {
                (commands, *rest, envelope.connection)
            }
            [DeciderMessage::Inventory { envelope, commands, next_after: rest }] => {
                (commands, *rest, envelope.connection)
            }
            _ => panic!("{} parts, then {} messages", parts, effects.len()),
        };
        let bytes: usize = commands.iter().map(|one| serde_json::to_vec(one).expect("JSON").len()).sum();
        assert!(bytes < PART + 60_000, "{bytes}");
        all.extend(commands.iter().map(|command| command.object));
        parts += 1;
        let Some(after) = rest else { break };
        rig.send(1, ExecutorMessage::InventoryRequest { connection: token, after });
        effects = rig.settle();
    }
    let known: Vec<_> = rig.core.fleet().incarnations().sorted().iter().map(|i| i.id.into()).collect();
    assert_eq!(all, known, "each once, in order");
    assert!(all.len() == 100 && parts > 10, "{} in {parts} parts", all.len());
}

#[test]
fn a_later_epoch_takes_over_immediately_and_an_earlier_one_or_a_copy_never() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    let cases = [
        (epoch(2, 1), None, "the first"),
        (epoch(2, 1), None, "a newer epoch connects"),
        (epoch(3, 2), None, "it was started again"),
        (epoch(2, 1), Some(HelloRetry::Never), "the one before it, which should have ended"),
        (epoch(3, 9), Some(HelloRetry::Later), "a copy of the store, started as often"),
        (epoch(3, 2), None, "and it is still the one that holds the session"),
    ];
    for (connection, (executor_epoch, expected, why)) in (1..).zip(cases) {
        let again = refusal(&rig.hello_over(connection, 1, executor_epoch)).map(|(_, again)| again);
        assert_eq!(again, expected, "{why}");
    }
    assert_eq!(rig.types(0).iter().filter(|t| **t == "session.opened.v1").count(), 1);
}

#[test]
fn an_executor_is_notified_to_purge_also_when_the_replica_is_deleted_in_the_same_commit() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    rig.hello(1, "ex", None);
    rig.settle();
    let token = ConnectionToken::from_random(1);
    rig.plan_and_deployment();
    let effects = rig.settle();
    let [DeciderMessage::Command { command, .. }] = sent(&effects)[..] else { panic!("{effects:?}") };
    let incarnation = command.object;
    rig.must("deployment.create", &json!({"plan": "web", "name": "d0", "spec": {"count": 0}}));
    rig.settle();
    rig.send(
        1,
        ExecutorMessage::Report {
            connection: token,
            sequence: 1,
            report: ObjectReport {
                object: incarnation,
                revision: 1,
                observed: ObservedState::Ready { processes: vec![] },
            },
        },
    );
    rig.settle();
    rig.send(
        1,
        ExecutorMessage::Report {
            connection: token,
            sequence: 2,
            report: ObjectReport { object: incarnation, revision: 2, observed: ObservedState::Gone },
        },
    );
    let effects = rig.settle();
    assert!(rig.core.fleet().replicas().is_empty());
    let forgets = |effects: &[DeciderEffect]| {
        sent(effects)
            .iter()
            .any(|m| matches!(m, DeciderMessage::Purge { object: i, .. } if *i == incarnation))
    };
    assert!(forgets(&effects), "{effects:?}");
    let before = rig.journal.len();
    let report = ObjectReport { object: incarnation, revision: 2, observed: ObservedState::Gone };
    rig.send(
        1,
        ExecutorMessage::FullReport { connection: token, reports: vec![report], part: ReportPart::Last },
    );
    let effects = rig.settle();
    assert!(
        forgets(&effects) && rig.types(before).is_empty(),
        "an ended object is purged, not resolved again: {effects:?}"
    );
}

#[test]
fn a_session_is_lost_after_a_lease_without_a_heartbeat_and_not_during_grace() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    rig.hello(1, "ex", None);
    rig.settle();
    let token = ConnectionToken::from_random(1);
    for heartbeat in 0..10 {
        rig.now = rig.now + Duration::from_secs(LEASE.as_secs() - 1);
        rig.send(1, ExecutorMessage::Heartbeat { connection: token, sequence: heartbeat });
        rig.settle();
    }
    let before = rig.journal.len();
    assert_eq!(rig.core.next_due(), Some(rig.now + LEASE + Duration::from_micros(1)));
    rig.now = rig.now + LEASE;
    rig.settle();
    assert_eq!(rig.types(before), Vec::<&str>::new(), "one missed heartbeat loses nothing");
    rig.now = rig.now + Duration::from_secs(1);
    let effects = rig.settle();
    assert_eq!(rig.types(before), ["session.ended.v1", "session.closed.v1"]);
    assert!(matches!(sent(&effects)[..], [DeciderMessage::ConnectionClosed { .. }]));
}

#[test]
fn of_an_inventory_one_part_at_a_time_is_held_back_however_often_it_is_requested() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    rig.hello(1, "ex", None);
    rig.settle();
    rig.plan_and_deployment();
    let effects = rig.settle();
    let [DeciderMessage::Command { command, .. }] = sent(&effects)[..] else { panic!("{effects:?}") };
    let more = ExecutorMessage::InventoryRequest {
        connection: ConnectionToken::from_random(1),
        after: command.object,
    };
    let parts = |effects: &[DeciderEffect]| {
        sent(effects).iter().filter(|message| matches!(message, DeciderMessage::Inventory { .. })).count()
    };
    for _ in 0..2 {
        // An event that is not durable yet holds back all messages.
        rig.must("cluster.delete", &json!({"name": "nowhere"}));
        (0..50).for_each(|_| rig.send(1, more.clone()));
        assert_eq!(parts(&rig.settle()), 1);
    }
    rig.send(1, more);
    assert_eq!(parts(&rig.settle()), 1, "an answered part may be requested again");
}

#[test]
fn when_much_is_held_back_inputs_wait_until_it_may_leave() {
    type ExecutorInput = fn(&mut DeciderFixture, u64);
    let mut rig = DeciderFixture::new();
    rig.cluster();
    rig.hello(1, "ex", None);
    rig.settle();
    let words: [(&str, ExecutorInput); 2] = [
        ("small ones", |rig, n| {
            rig.send(
                1,
                ExecutorMessage::Heartbeat { connection: ConnectionToken::from_random(1), sequence: n },
            );
        }),
        ("large ones", |rig, _| rig.send(1, hello("ex", SCOPE, epoch(1, 1), None))),
    ];
    let text = "x".repeat(50_000);
    let run = json!({"argv": ["app"], "env": {"TEXT": text}});
    let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": run});
    let spec = json!({
        "namespace": "ns", "service": "web", "payloads": [payload], "approval": {"create": "automatic"},
        "sharing": "allowed",
    });
    rig.must("plan.apply", &json!({"name": "web", "spec": spec}));
    rig.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 10}}));
    while !rig.settle().is_empty() || rig.give(CoreInput::Work) {}
    for (which, input) in words {
        rig.must("cluster.delete", &json!({"name": "nowhere"}));
        let mut sent = 0;
        while !rig.core.holds_enough() {
            input(&mut rig, sent);
            sent += 1;
            assert!(sent <= 16_384, "{which}: not bounded");
        }
        assert!(which == "small ones" || sent < 200, "{which}: {sent}");
        rig.settle();
        assert!(!rig.core.holds_enough(), "{which} are released");
    }
}

#[test]
fn no_session_expires_whose_messages_may_have_waited_unread_and_one_that_is_silent_then_does() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    rig.hello(1, "ex", None);
    rig.settle();
    let closed = |rig: &DeciderFixture| rig.types(0).iter().filter(|t| **t == "session.closed.v1").count();
    rig.now = rig.now + LEASE * 4;
    rig.give(CoreInput::Unread(LEASE * 3));
    rig.settle();
    assert_eq!(closed(&rig), 0, "no session expires while the disk stalls");
    let due = rig.core.next_due().expect("a lease ends");
    assert!(due > rig.now, "the command is not repeated immediately");
    rig.send(1, ExecutorMessage::Heartbeat { connection: ConnectionToken::from_random(1), sequence: 1 });
    rig.now = rig.now + LEASE;
    rig.settle();
    assert_eq!(closed(&rig), 0, "the heartbeat was in time");
    rig.now = rig.now + LEASE;
    rig.give(CoreInput::Unread(LEASE / 5));
    rig.settle();
    assert_eq!(closed(&rig), 1, "a short input lag extends no lease");
}

#[test]
fn a_deadline_that_passed_while_no_message_was_read_waits_for_what_executors_report() {
    for (then, ended) in [(ProcessStatus::Ready, false), (unready(), true)] {
        let mut rig = DeciderFixture::new();
        rig.cluster();
        rig.hello(1, "ex", None);
        let effects = rig.settle();
        let [DeciderMessage::Welcome { envelope, .. }] = sent(&effects)[..] else { panic!("{effects:?}") };
        let token = envelope.connection;
        rig.send(
            1,
            ExecutorMessage::FullReport { connection: token, reports: vec![], part: ReportPart::Last },
        );
        rig.plan_and_deployment_with(&json!({"unready": {"after": 60_000, "action": "restart"}}));
        let effects = rig.settle();
        let [DeciderMessage::Command { command, .. }] = sent(&effects)[..] else { panic!("{effects:?}") };
        let object = command.object;
        let report = |rig: &mut DeciderFixture, sequence, status: ProcessStatus| {
            let ready = status == ProcessStatus::Ready;
            let processes = vec![ProcessInfo {
                payload: name("app"),
                index: 0,
                pid: Some(9),
                object: None,
                addresses: vec![],
                status,
                since: None,
                resets: 0,
            }];
            let observed = if ready {
                ObservedState::Ready { processes }
            } else {
                ObservedState::NotReady { processes }
            };
            let report = ObjectReport { object, revision: 1, observed };
            rig.send(1, ExecutorMessage::Report { connection: token, sequence, report });
            rig.settle();
        };
        report(&mut rig, 1, ProcessStatus::Ready);
        report(&mut rig, 2, unready());
        // The server pauses until after the deadline, and then finds waiting messages.
        rig.now = rig.now + Duration::from_secs(90);
        rig.give(CoreInput::Unread(Duration::from_secs(90)));
        let before = rig.journal.len();
        rig.settle();
        assert!(!rig.types(before).contains(&"incarnation.stop_requested.v1"), "{then:?}");
        report(&mut rig, 3, then.clone());
        rig.now = rig.now + LEASE / 2;
        rig.settle();
        assert_eq!(rig.types(before).contains(&"incarnation.stop_requested.v1"), ended, "{then:?}");
    }
}

fn unready() -> ProcessStatus {
    ProcessStatus::Unready { error: chancery_events::observation::ProbeError::Refused }
}
