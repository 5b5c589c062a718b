use chancery_events::fact::CommandEffect;
use chancery_events::id::{EpochNonce, ExecutorStoreId, IncarnationId, Position, SessionId, Term, VolumeId};
use chancery_events::observation::ObservedState;
use chancery_events::protocol::{CommandStatus, ExecutorEpoch, IncarnationSpec, ObjectSpec, RunLabels};
use chancery_events::record::RecordHash;
use chancery_events::spec::ClusterRuntime;
use serde_json::json;

use super::*;
use crate::orchestrator::{InventoryError, WatchLost};

const LEASE: Duration = Duration::from_secs(12);

fn lineage() -> Lineage {
    Lineage::from_random(42)
}

fn id(position: u64) -> ObjectId {
    IncarnationId::issue(lineage(), Position::new(position)).into()
}

fn head(position: u64, hash: u8, term: u64) -> JournalHead {
    JournalHead {
        position: Position::new(position),
        hash: RecordHash::from_bytes([hash; 32]),
        term: Term::new(term),
    }
}

fn envelope(head: JournalHead) -> DeciderEnvelope {
    let session = SessionId::issue(lineage(), Position::FIRST);
    DeciderEnvelope { session, connection: ConnectionToken::from_random(5), head }
}

fn command(position: u64, revision: u32) -> Command {
    let name = |name: &str| name.parse().unwrap();
    let spec = IncarnationSpec {
        replica: "web-1".parse().unwrap(),
        plan: "web".parse().unwrap(),
        node: name("n1"),
        restart: chancery_events::spec::RestartPolicy::OnFailure,
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
    };
    let grace = Duration::ZERO;
    Command {
        object: id(position),
        revision,
        attempt: 1,
        status: CommandStatus::Pending,
        effect: CommandEffect::Ensure,
        grace,
        spec: spec.into(),
        traceparent: None,
    }
}

fn given(position: u64, revision: u32) -> DeciderMessage {
    DeciderMessage::Command { envelope: envelope(head(100, 1, 3)), command: command(position, revision) }
}

fn gone(position: u64) -> ObjectReport {
    ObjectReport { object: id(position), revision: 1, observed: ObservedState::Gone }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn core(seen: Option<JournalHead>) -> SessionCore {
    let name = |name: &str| name.parse().unwrap();
    let identity = SessionIdentity {
        executor: "e1".parse().unwrap(),
        cluster: name("c1"),
        runtime: ClusterRuntime::Simulated,
        store: ExecutorStoreId::from_random(1),
        epoch: ExecutorEpoch { number: 1, instance: EpochNonce::from_random(1) },
    };
    let seen = seen.map(|head| HighestHead { lineage: lineage(), head });
    SessionCore::new(identity, seen, 2)
}

fn welcome(head: JournalHead, commands: Vec<Command>) -> DeciderMessage {
    let (lineage, fleet) = (lineage(), "main".parse().unwrap());
    DeciderMessage::Welcome {
        envelope: envelope(head),
        lineage,
        fleet,
        lease: LEASE,
        commands,
        next_after: None,
    }
}

/// Returns a session that sent a hello at 0 s and got this answer.
fn greeted(seen: Option<JournalHead>, answer: DeciderMessage) -> (SessionCore, Vec<SessionAction>) {
    let mut core = core(seen);
    assert!(matches!(core.handle(secs(0), SessionInput::Tick)[..], [SessionAction::Connect]));
    assert!(matches!(
        core.handle(secs(0), SessionInput::Connected)[..],
        [SessionAction::Send(ExecutorMessage::Hello { .. })]
    ));
    let out = core.handle(secs(0), SessionInput::Message(answer));
    (core, out)
}

/// Returns a session that is attached, at position 100 of term 3.
fn attached(commands: Vec<Command>) -> (SessionCore, Vec<SessionAction>) {
    let (mut core, out) = greeted(None, welcome(head(100, 1, 3), commands));
    assert!(matches!(out[..], [SessionAction::List]), "nothing is started before the list: {out:?}");
    let out = core.handle(secs(0), SessionInput::Listed(vec![]));
    (core, out)
}

fn begun(out: &[SessionAction]) -> Vec<u64> {
    let begun = |output: &SessionAction| match output {
        SessionAction::Begin(work) => Some(work.object().position().get()),
        _ => None,
    };
    out.iter().filter_map(begun).collect()
}

#[test]
fn the_head_is_on_disk_before_any_work_starts() {
    let (mut core, out) = attached(vec![command(7, 1)]);
    let [
        SessionAction::Send(ExecutorMessage::FullReport { .. }),
        SessionAction::Persist(seen),
        SessionAction::Begin(_),
    ] = &out[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!(seen.head, head(100, 1, 3));
    let out = core.handle(secs(1), SessionInput::Message(given(8, 1)));
    assert!(matches!(out[..], [SessionAction::Begin(_)]), "the same head is stored once: {out:?}");
}

#[test]
fn the_rest_of_an_inventory_is_requested_part_by_part() {
    let mut first = welcome(head(100, 1, 3), vec![command(7, 1)]);
    if let DeciderMessage::Welcome { next_after: rest, .. } = &mut first {
        *rest = Some(id(7));
    }
    let asks = |out: &[SessionAction]| match out {
        [.., SessionAction::Send(ExecutorMessage::InventoryRequest { after, .. })] => Some(*after),
        _ => None,
    };
    let (mut core, out) = greeted(None, first);
    assert_eq!(asks(&out), Some(id(7)));
    let part = |commands, rest| {
        SessionInput::Message(DeciderMessage::Inventory {
            envelope: envelope(head(100, 1, 3)),
            commands,
            next_after: rest,
        })
    };
    // A part may arrive before the list and after it.
    assert_eq!(asks(&core.handle(secs(0), part(vec![command(8, 1)], Some(id(8))))), Some(id(8)));
    assert_eq!(begun(&core.handle(secs(0), SessionInput::Listed(vec![]))), [7, 8]);
    core.handle(secs(0), SessionInput::Done(id(7)));
    let out = core.handle(secs(0), part(vec![command(9, 1)], None));
    assert_eq!((asks(&out), begun(&out)), (None, vec![9]));
}

#[test]
fn what_waits_for_the_disk_of_volumes_takes_the_slots_of_nothing_else() {
    let volume = |position: u64, revision: u32| {
        let spec = json!({"name": "data", "namespace": "ns", "node": "n1", "class": "disk", "capacity": 1});
        let spec = ObjectSpec::Volume(serde_json::from_value(spec).unwrap());
        let object = VolumeId::issue(lineage(), Position::new(position)).into();
        Command { object, spec, ..command(position, revision) }
    };
    let mounting = |position: u64, revision: u32, effect: CommandEffect| {
        let mut command = Command { effect, ..command(position, revision) };
        let ObjectSpec::Incarnation(spec) = &mut command.spec else { panic!("a run") };
        let payload = json!({
            "name": "web", "processes": 1, "memory": null, "ports": [], "coordinates": {}, "run": null, "ready": null,
            "mounts": [{"path": "/data", "volume": VolumeId::issue(lineage(), Position::new(1)).to_string()}],
        });
        spec.payloads = vec![serde_json::from_value(payload).unwrap()];
        command
    };
    let received = |command| {
        SessionInput::Message(DeciderMessage::Command { envelope: envelope(head(100, 1, 3)), command })
    };
    // No work here completes; there are two slots of each kind.
    let volumes = (1..=5).map(|position| volume(position, 1));
    let users = (6..=9).map(|position| mounting(position, 1, CommandEffect::Ensure));
    let (mut core, out) = attached(volumes.chain(users).collect());
    assert_eq!(begun(&out), [1, 2]);
    assert_eq!(begun(&core.handle(secs(0), received(command(90, 1)))), [90]);
    // A stop accesses no volume, also before its start was dequeued.
    assert_eq!(begun(&core.handle(secs(0), received(mounting(9, 2, CommandEffect::Stop)))), [9]);
    assert_eq!(
        begun(&core.handle(secs(0), received(command(91, 1)))),
        [0; 0],
        "work on volumes has two slots too"
    );
    assert_eq!(begun(&core.handle(secs(0), SessionInput::Done(id(90)))), [91]);
    // The newest of several commands for an object is kept.
    for revision in 2..5 {
        assert_eq!(begun(&core.handle(secs(0), received(volume(1, revision)))), [0; 0]);
    }
    let mut last = Vec::new();
    let mut at_work = vec![volume(1, 1).object, volume(2, 1).object];
    while let Some(object) = at_work.pop() {
        for output in core.handle(secs(0), SessionInput::Done(object)) {
            let SessionAction::Begin(ObjectWork::CarryOut(command)) = output else { panic!("{output:?}") };
            at_work.push(command.object);
            last.push((command.object.position().get(), command.revision));
        }
    }
    last.sort_unstable();
    assert_eq!(last, [(1, 4), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1)]);
}

#[test]
fn no_work_starts_after_three_quarters_of_the_lease() {
    let (mut core, _) = attached(vec![]);
    assert_eq!(begun(&core.handle(secs(8), SessionInput::Message(given(7, 1)))), [7]);
    let beats = core.handle(secs(8), SessionInput::Tick);
    assert!(matches!(beats[..], [SessionAction::Send(ExecutorMessage::Heartbeat { sequence: 1, .. })]));
    assert_eq!(
        begun(&core.handle(secs(9), SessionInput::Message(given(8, 1)))),
        [0; 0],
        "nine of twelve seconds have passed"
    );
    let heartbeat = DeciderMessage::HeartbeatAck { envelope: envelope(head(100, 1, 3)), sequence: 1 };
    let out = core.handle(secs(11), SessionInput::Message(heartbeat));
    assert_eq!(begun(&out), [8], "the answer to the heartbeat of 8 s allows work until 17 s");
    core.handle(secs(11), SessionInput::Done(id(7)));
    assert_eq!(
        begun(&core.handle(secs(17), SessionInput::Message(given(9, 1)))),
        [0; 0],
        "the arrival of the answer does not count"
    );
    assert!(
        matches!(core.handle(secs(20), SessionInput::Tick)[..], [SessionAction::HangUp]),
        "the lease has expired"
    );
}

#[test]
fn work_on_one_object_never_overlaps_and_the_newest_waits() {
    let (mut core, out) = attached(vec![command(7, 1)]);
    assert_eq!(begun(&out), [7]);
    assert_eq!(
        begun(&core.handle(secs(1), SessionInput::Message(given(7, 2)))),
        [0; 0],
        "its object is busy"
    );
    assert_eq!(
        begun(&core.handle(secs(1), SessionInput::Message(given(7, 3)))),
        [0; 0],
        "its object is busy"
    );
    assert_eq!(
        begun(&core.handle(secs(1), SessionInput::Message(given(8, 1)))),
        [8],
        "work on another object starts"
    );
    assert_eq!(
        begun(&core.handle(secs(1), SessionInput::Message(given(9, 1)))),
        [0; 0],
        "at most two run concurrently"
    );
    let out = core.handle(secs(1), SessionInput::Done(id(7)));
    let [SessionAction::Begin(ObjectWork::CarryOut(command))] = &out[..] else { panic!("{out:?}") };
    assert_eq!((command.object, command.revision), (id(7), 3));
    assert_eq!(begun(&core.handle(secs(1), SessionInput::Done(id(7)))), [9]);
}

#[test]
fn work_that_is_put_off_waits_again_for_as_long_as_the_lease_and_the_connection_allow() {
    let (mut core, out) = attached(vec![command(7, 1)]);
    assert_eq!(begun(&out), [7]);
    let put_off = |revision| SessionInput::PutOff(ObjectWork::CarryOut(command(7, revision)));
    assert_eq!(begun(&core.handle(secs(1), put_off(1))), [7], "the work is repeated");
    assert_eq!(
        begun(&core.handle(secs(1), SessionInput::Message(given(7, 2)))),
        [0; 0],
        "its object is busy"
    );
    let out = core.handle(secs(2), put_off(1));
    let [SessionAction::Begin(ObjectWork::CarryOut(newer))] = &out[..] else { panic!("{out:?}") };
    assert_eq!(newer.revision, 2, "newer work replaces it");
    assert_eq!(begun(&core.handle(secs(9), put_off(2))), [0; 0], "nine of twelve seconds have passed");
    // The inventory of the next connection repeats all that counts.
    let mut queue = WorkQueue::new(2);
    let work = || ObjectWork::CarryOut(command(7, 1));
    queue.add(work());
    assert_eq!(queue.next(), Some(work()));
    queue.clear_waiting();
    queue.put_off(work());
    assert_eq!(queue.next(), None);
    queue.add(work());
    assert_eq!(queue.next(), Some(work()));
    queue.put_off(work());
    assert_eq!(queue.next(), Some(work()));
}

#[test]
fn a_decider_that_knows_less_changes_nothing() {
    let seen = Some(head(100, 1, 3));
    let (_, out) = greeted(seen, welcome(head(100, 2, 3), vec![]));
    assert!(
        matches!(out[..], [SessionAction::Stop(ExecutorStop::Diverged(100))]),
        "same position, different hash: {out:?}"
    );
    let (_, out) = greeted(seen, welcome(head(99, 1, 3), vec![]));
    assert!(
        matches!(out[..], [SessionAction::Stop(ExecutorStop::StaleDecider(_))]),
        "its head is behind the seen one: {out:?}"
    );
    let (_, out) = greeted(seen, welcome(head(200, 1, 2), vec![]));
    assert!(matches!(out[..], [SessionAction::HangUp]), "a decider of an earlier term is fenced: {out:?}");
    let (mut core, out) = greeted(seen, welcome(head(120, 1, 4), vec![command(7, 1)]));
    assert!(matches!(out[..], [SessionAction::List]), "a decider of a later term is accepted: {out:?}");
    let out = core.handle(secs(0), SessionInput::Listed(vec![gone(121)]));
    assert!(
        matches!(out[..], [SessionAction::Stop(ExecutorStop::StaleDecider(_))]),
        "its journal has not issued a listed object: {out:?}"
    );
    let (mut core, _) = attached(vec![]);
    let mut late = envelope(head(100, 1, 2));
    let out = core.handle(
        secs(1),
        SessionInput::Message(DeciderMessage::Command { envelope: late.clone(), command: command(7, 1) }),
    );
    assert_eq!(begun(&out), [0; 0], "a message of an earlier term");
    late = DeciderEnvelope { connection: ConnectionToken::from_random(6), ..envelope(head(100, 1, 3)) };
    let out = core.handle(
        secs(1),
        SessionInput::Message(DeciderMessage::Command { envelope: late, command: command(7, 1) }),
    );
    assert_eq!(begun(&out), [0; 0], "a message of another connection");
    assert_eq!(begun(&core.handle(secs(1), SessionInput::Message(given(101, 1)))), [0; 0], "not issued yet");
}

#[test]
fn only_a_decider_that_knows_all_removes_and_only_its_own() {
    let foreign = IncarnationId::issue(Lineage::from_random(43), Position::new(7)).into();
    let cases = [
        (id(7), OrphanResolution::Remove, head(100, 1, 3), 1, "issued by a decider that is not stale"),
        (id(7), OrphanResolution::Leave, head(100, 1, 3), 0, "resolved to be left in place"),
        (foreign, OrphanResolution::Remove, head(100, 1, 3), 0, "another lineage"),
        (id(101), OrphanResolution::Remove, head(100, 1, 3), 0, "not issued yet"),
        (id(7), OrphanResolution::Remove, head(99, 1, 3), 0, "its head is behind the seen one"),
    ];
    for (object, judgement, head, then, because) in cases {
        let (mut core, _) = attached(vec![]);
        let judged = DeciderMessage::OrphanResolved {
            envelope: envelope(head),
            object,
            resolution: judgement,
            revision: 2,
        };
        assert_eq!(begun(&core.handle(secs(1), SessionInput::Message(judged))).len(), then, "{because}");
    }
}

#[test]
fn a_full_report_is_cut_into_parts_and_reports_count_from_one() {
    for (count, parts) in [(0, vec![0]), (500, vec![500]), (1001, vec![500, 500, 1])] {
        let (mut core, _) = greeted(None, welcome(head(9000, 1, 3), vec![]));
        assert!(!core.takes_changes(), "changes follow the full report");
        let out = core.handle(secs(0), SessionInput::Listed((1..=count).map(gone).collect()));
        let sent: Vec<(usize, ReportPart)> = out
            .iter()
            .map(|output| match output {
                SessionAction::Send(ExecutorMessage::FullReport { reports, part, .. }) => {
                    (reports.len(), *part)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(sent.iter().map(|(size, _)| *size).collect::<Vec<_>>(), parts);
        assert_eq!(sent.iter().filter(|(_, part)| *part == ReportPart::Last).count(), 1);
        assert_eq!(sent.last().map(|(_, part)| *part), Some(ReportPart::Last));
        let out = core.handle(secs(0), SessionInput::Changed(vec![gone(1), gone(2)]));
        assert!(matches!(
            out[..],
            [
                SessionAction::Send(ExecutorMessage::Report { sequence: 1, .. }),
                SessionAction::Send(ExecutorMessage::Report { sequence: 2, .. })
            ]
        ));
    }
}

#[test]
fn a_part_of_a_full_report_ends_before_it_is_larger_than_a_message_may_be() {
    let large = |position| {
        let message = "x".repeat(300 << 10);
        let observed =
            ObservedState::Failed { message, retry: chancery_events::observation::RetryClass::Retryable };
        ObjectReport { object: id(position), revision: 1, observed }
    };
    let (mut core, _) = greeted(None, welcome(head(9000, 1, 3), vec![]));
    let out = core.handle(secs(0), SessionInput::Listed((1..=60).map(large).collect()));
    let mut reports = 0;
    for output in &out {
        let SessionAction::Send(ExecutorMessage::FullReport { reports: part, .. }) = output else {
            panic!("{output:?}")
        };
        assert!(json_bytes(part) < 2 << 20, "{} reports", part.len());
        reports += part.len();
    }
    assert_eq!(reports, 60);
}

#[test]
fn too_many_reports_that_wait_hold_back_changes() {
    let (mut core, _) = attached(vec![]);
    core.handle(secs(0), SessionInput::Changed((1..=WINDOW).map(gone).collect()));
    assert!(!core.takes_changes());
    core.handle(
        secs(0),
        SessionInput::Message(DeciderMessage::ReportsAccepted {
            envelope: envelope(head(100, 1, 3)),
            sequence: 1,
        }),
    );
    assert!(core.takes_changes());
}

/// Returns the pauses between attempts when none succeeds.
fn pauses(core: &mut SessionCore) -> Vec<u128> {
    let mut now = secs(0);
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let due = core.due().unwrap();
        pauses.push(due.saturating_sub(now).as_millis());
        now = due;
        assert!(matches!(core.handle(now, SessionInput::Tick)[..], [SessionAction::Connect]));
        core.handle(now, SessionInput::Disconnected);
    }
    pauses
}

#[test]
fn what_is_refused_or_lost_is_tried_again_after_a_growing_pause() {
    let refuse = |again| DeciderMessage::Refused { reason: "no".into(), retry: again };
    let (_, out) = greeted(None, refuse(HelloRetry::Never));
    assert!(matches!(out[..], [SessionAction::Stop(ExecutorStop::Refused(_))]));
    let (_, out) = greeted(None, refuse(HelloRetry::StaleDecider));
    assert!(matches!(out[..], [SessionAction::Stop(ExecutorStop::StaleDecider(_))]));
    let (mut core, out) = greeted(None, refuse(HelloRetry::Later));
    assert!(matches!(out[..], [SessionAction::HangUp]));
    assert_eq!(pauses(&mut core), [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    // With a lease to keep, the decider is contacted a few times per lease.
    let (mut core, _) = attached(vec![]);
    core.handle(secs(0), SessionInput::Disconnected);
    assert_eq!(pauses(&mut core), [100, 200, 400, 800, 1600, 3200, 4000, 4000]);
}

fn failed() -> SessionInput {
    SessionInput::NotListed(InventoryError { unreachable: "the API".into(), reason: "no answer".into() })
}

#[test]
fn a_list_that_fails_proves_nothing_and_is_requested_again_while_heartbeats_continue() {
    let (mut core, out) = greeted(None, welcome(head(100, 1, 3), vec![command(7, 1)]));
    assert!(matches!(out[..], [SessionAction::List]), "{out:?}");
    let mut now = secs(0);
    let (mut pauses, mut beats) = (Vec::new(), 0);
    for _ in 0..9 {
        let out = core.handle(now, failed());
        assert!(out.is_empty(), "no full report, no work: {out:?}");
        assert!(!core.takes_changes(), "a change before the full report would be taken for all objects");
        let since = now;
        loop {
            now = core.due().unwrap();
            let out = core.handle(now, SessionInput::Tick);
            for output in &out {
                match output {
                    SessionAction::Send(ExecutorMessage::Heartbeat { sequence: heartbeat, .. }) => {
                        beats += 1;
                        let (envelope, beat) = (envelope(head(100, 1, 3)), *heartbeat);
                        let out = core.handle(
                            now,
                            SessionInput::Message(DeciderMessage::HeartbeatAck { envelope, sequence: beat }),
                        );
                        assert!(out.is_empty(), "{out:?}");
                    }
                    SessionAction::List => {}
                    other => panic!("{other:?}"),
                }
            }
            if out.iter().any(|output| matches!(output, SessionAction::List)) {
                break;
            }
        }
        pauses.push(now.saturating_sub(since).as_millis());
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
    assert!(now > LEASE && beats >= 5, "the session has outlived its first lease: {beats} beats");
    let out = core.handle(now, SessionInput::Listed(vec![gone(7)]));
    assert!(
        matches!(&out[..], [SessionAction::Send(ExecutorMessage::FullReport { reports, .. }), ..] if reports.len() == 1)
    );
    assert_eq!(begun(&out), [7], "waiting work is started");
}

#[test]
fn a_lost_watch_is_followed_by_a_list_and_blocks_no_work() {
    let (mut core, _) = attached(vec![]);
    assert!(core.takes_changes());
    let mut now = secs(0);
    for pause in [100, 200] {
        assert!(core.handle(now, SessionInput::WatchLost(WatchLost)).is_empty());
        assert!(!core.takes_changes(), "changes may be missing");
        now += Duration::from_millis(pause);
        assert_eq!(core.due(), Some(now));
        assert!(matches!(core.handle(now, SessionInput::Tick)[..], [SessionAction::List]));
        assert_eq!(
            begun(&core.handle(now, SessionInput::Message(given(7, 1)))).len(),
            usize::from(pause == 100)
        );
        let out = core.handle(now, SessionInput::Listed(vec![gone(8)]));
        assert!(
            matches!(&out[..], [SessionAction::Send(ExecutorMessage::FullReport { reports, .. })] if reports.len() == 1)
        );
        assert!(core.takes_changes());
    }
    // A change shows that the watch works.
    core.handle(now, SessionInput::Changed(vec![gone(9)]));
    core.handle(now, SessionInput::WatchLost(WatchLost));
    assert_eq!(core.due(), Some(now + Duration::from_millis(100)));
    // A list that was not requested is ignored.
    assert!(core.handle(now, SessionInput::Listed(vec![])).is_empty());
}
