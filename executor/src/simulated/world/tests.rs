use chancery_events::fact::CommandEffect;
use chancery_events::id::{Lineage, Position};
use chancery_events::protocol::{
    CommandStatus, IncarnationPayload, IncarnationSpec, RunLabels, VolumeMount, VolumeSpec,
};
use chancery_events::spec::RestartPolicy;

use super::super::FaultTarget;
use super::*;

fn id() -> IncarnationId {
    IncarnationId::issue(Lineage::from_random(42), Position::FIRST)
}

fn spec(processes: u16, simulate: &str) -> IncarnationSpec {
    let mut payload = IncarnationPayload {
        name: "web".parse().unwrap(),
        processes,
        cpu: None,
        memory: None,
        disk: None,
        ports: vec![],
        coordinates: BTreeMap::new(),
        run: None,
        container: None,
        vm: None,
        ready: None,
        alive: None,
        mounts: vec![],
    };
    if !simulate.is_empty() {
        payload.coordinates.insert("simulate".parse().unwrap(), simulate.to_owned());
    }
    IncarnationSpec {
        replica: "web-1".parse().unwrap(),
        plan: "web".parse().unwrap(),
        node: "n1".parse().unwrap(),
        restart: RestartPolicy::OnFailure,
        labels: Box::new(RunLabels {
            namespace: "ns".parse().unwrap(),
            service: "web".parse().unwrap(),
            labels: BTreeMap::new(),
            deployment: "d1".parse().unwrap(),
            domain: None,
            zone: None,
            node_labels: None,
        }),
        payloads: vec![payload],
    }
}

fn order(
    world: &mut SimulatedWorld,
    revision: u32,
    attempt: u32,
    effect: CommandEffect,
    spec: &IncarnationSpec,
) -> StatusUpdate {
    let (object, grace, spec) = (id().into(), Duration::ZERO, spec.clone().into());
    let status = CommandStatus::Pending;
    world.carry_out(&Command { object, revision, attempt, effect, status, grace, spec, traceparent: None })
}

fn ensure(world: &mut SimulatedWorld, revision: u32, spec: &IncarnationSpec) -> StatusUpdate {
    order(world, revision, 1, CommandEffect::Ensure, spec)
}

/// Revision, name of the observed state, and number of processes.
type StatusSummary = (u32, &'static str, usize);

fn summary(update: &StatusUpdate) -> StatusSummary {
    let (StatusUpdate::Change(report) | StatusUpdate::ListOnly(report)) = update;
    let (word, count) = match &report.observed {
        ObservedState::Started { processes } => ("ensured", processes.len()),
        ObservedState::Ready { processes } => ("ready", processes.len()),
        ObservedState::NotReady { processes } => ("not ready", processes.len()),
        ObservedState::Ended { processes, .. } => ("ended", processes.len()),
        ObservedState::Failed { retry: RetryClass::Retryable, .. } => ("retry", 0),
        ObservedState::Failed { retry: RetryClass::Permanent, .. } => ("never", 0),
        ObservedState::Gone => ("gone", 0),
    };
    (report.revision, word, count)
}

fn words(updates: &[StatusUpdate]) -> Vec<StatusSummary> {
    updates.iter().map(summary).collect()
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_change_takes_its_time_and_what_ran_before_is_there_until_it_is_made() {
    let mut world = SimulatedWorld::new(FaultRules::default());
    assert_eq!(summary(&ensure(&mut world, 1, &spec(1, ""))), (1, "ready", 1));
    let to = spec(3, "delay:50ms");
    let begun = ensure(&mut world, 2, &to);
    assert!(matches!(begun, StatusUpdate::ListOnly(_)), "there is no outcome yet");
    assert_eq!((summary(&begun), world.running(id())), ((1, "not ready", 1), 1));
    // A restarted executor finds the same world halfway, and its decider repeats the commands.
    for revision in [2, 1] {
        let again = ensure(&mut world, revision, &to);
        assert_eq!((summary(&again), words(&world.advance(ms(20)))), ((1, "not ready", 1), vec![]));
    }
    assert_eq!(words(&world.advance(ms(50))), [(2, "ready", 3)]);
    assert_eq!((world.running(id()), world.starts(), world.changes()), (3, 1, 1));
    assert_eq!(summary(&ensure(&mut world, 2, &to)), (2, "ready", 3));
    assert_eq!(world.changes(), 1, "a repeated command is one change");
    let stopped = order(&mut world, 3, 1, CommandEffect::Stop, &to);
    assert_eq!(summary(&stopped), (3, "ended", 3), "the changed incarnation ends");
}

#[test]
fn a_change_misbehaves_as_a_start_does() {
    let cases: [(&str, &[StatusSummary], &str); 7] = [
        ("fail", &[(2, "never", 0), (2, "never", 0)], "each attempt"),
        ("fail:retry:1", &[(2, "retry", 0), (2, "ready", 2)], "the first attempt"),
        ("late", &[(2, "retry", 0), (2, "ready", 2)], "it succeeds, and a failure is reported"),
        ("partial", &[(2, "ensured", 2), (2, "ensured", 2)], "one of two becomes ready"),
        ("never-ready", &[(2, "ensured", 2), (2, "ensured", 2)], "no process becomes ready"),
        ("exit:0", &[(2, "ready", 2), (2, "ready", 2)], "it ends once it is running"),
        ("nonsense", &[(2, "never", 0), (2, "never", 0)], "the behaviour is invalid"),
    ];
    for (simulate, then, because) in cases {
        let mut world = SimulatedWorld::new(FaultRules::default());
        ensure(&mut world, 1, &spec(1, ""));
        let attempts =
            [1, 2].map(|attempt| order(&mut world, 2, attempt, CommandEffect::Ensure, &spec(2, simulate)));
        assert_eq!(words(&attempts), then, "{simulate}: {because}");
        let failed = matches!(simulate, "fail" | "nonsense");
        assert_eq!(world.running(id()), if failed { 1 } else { 2 }, "{simulate}");
        let ends = words(&world.advance(ms(1)));
        assert_eq!(ends.contains(&(2, "ended", 2)), simulate == "exit:0", "{simulate}: {ends:?}");
    }
}

#[test]
fn what_runs_may_end_automatically_before_during_and_after_a_change() {
    let cases: [(&str, &[StatusSummary], &str); 4] = [
        (
            "delay:200ms,exit:0",
            &[(2, "ready", 2), (2, "ended", 2)],
            "changed in time, it ends with the new spec",
        ),
        ("delay:2s", &[(2, "ended", 1)], "it ended before it was changed"),
        (
            "delay:200ms,fail",
            &[(2, "never", 0), (2, "ended", 1)],
            "the unchanged incarnation ends at its time",
        ),
        ("delay:200ms", &[(2, "ready", 2)], "the old behaviour does not end the changed incarnation"),
    ];
    for (simulate, then, because) in cases {
        let mut world = SimulatedWorld::new(FaultRules::default());
        ensure(&mut world, 1, &spec(1, "crash:3@1s"));
        world.advance(ms(100));
        ensure(&mut world, 2, &spec(2, simulate));
        let mut summaries = words(&world.advance(ms(1000)));
        assert!(summaries.contains(then.last().unwrap()), "{simulate}: at its own time");
        summaries.extend(words(&world.advance(ms(5000))));
        assert_eq!(summaries, then, "{simulate}: {because}");
        assert_eq!(world.due(), None, "{simulate}: no event is pending");
    }
}

#[test]
fn another_order_in_the_middle_of_a_change_replaces_it() {
    let cases: [(CommandEffect, u16, &[StatusSummary], &str); 4] = [
        (CommandEffect::Ensure, 4, &[(3, "ready", 4)], "yet another spec"),
        (CommandEffect::Ensure, 1, &[(3, "ready", 1)], "back to the old spec"),
        (CommandEffect::Stop, 2, &[(3, "ended", 1)], "the running incarnation ends"),
        (CommandEffect::Kill, 2, &[(3, "ended", 1)], "the running incarnation ends"),
    ];
    for (effect, processes, then, because) in cases {
        let mut world = SimulatedWorld::new(FaultRules::default());
        ensure(&mut world, 1, &spec(1, ""));
        ensure(&mut world, 2, &spec(2, "delay:50ms"));
        let update = order(&mut world, 3, 1, effect, &spec(processes, ""));
        assert_eq!(words(&[update]), then, "{because}");
        assert_eq!((words(&world.advance(ms(100))), world.due()), (vec![], None), "{because}");
    }
    let mut world = SimulatedWorld::new(FaultRules::default());
    ensure(&mut world, 1, &spec(1, ""));
    ensure(&mut world, 2, &spec(2, "delay:50ms"));
    let removed = world.remove(id(), 3);
    assert_eq!((summary(&removed), world.due()), ((3, "gone", 0), None));
    let mut world = SimulatedWorld::new(FaultRules::default());
    ensure(&mut world, 1, &spec(1, ""));
    ensure(&mut world, 2, &spec(2, "delay:50ms"));
    let struck = world.strike(id()).expect("it ran");
    assert_eq!((summary(&struck), world.running(id()), world.due()), ((2, "ended", 1), 0, None));
}

#[test]
fn an_incarnation_that_is_not_ready_yet_starts_with_its_latest_spec() {
    let mut world = SimulatedWorld::new(FaultRules::default());
    ensure(&mut world, 1, &spec(1, "delay:50ms"));
    assert_eq!(summary(&ensure(&mut world, 2, &spec(2, ""))), (2, "ready", 2));
    assert_eq!((words(&world.advance(ms(100))), world.starts(), world.changes()), (vec![], 1, 0));
}

#[test]
fn a_seed_draws_again_for_each_change() {
    let faults = FaultRules::default().seeded(7, 500);
    let spec = spec(1, "").into();
    let drawn: Vec<_> =
        (2..200).map(|revision| faults.of_change(id().into(), revision, &spec).unwrap()).collect();
    let fails = |retry| drawn.iter().filter(|b| b.fail.is_some_and(|(its, _)| its == retry)).count();
    assert!(
        fails(RetryClass::Permanent) > 2 && fails(RetryClass::Retryable) > 2,
        "a change may fail either way"
    );
    let well = drawn.iter().filter(|b| **b == SimulatedBehaviour::default()).count();
    assert!((60..140).contains(&well), "{well} of 198 succeed");
}

fn disk() -> VolumeId {
    VolumeId::issue(Lineage::from_random(42), Position::FIRST)
}

fn volume_spec() -> ObjectSpec {
    ObjectSpec::Volume(VolumeSpec {
        name: "data".parse().unwrap(),
        namespace: "ns".parse().unwrap(),
        node: "n1".parse().unwrap(),
        class: "disk".parse().unwrap(),
        capacity: 1,
        source: None,
    })
}

fn on_disk(world: &mut SimulatedWorld, revision: u32, attempt: u32, effect: CommandEffect) -> StatusSummary {
    let spec = volume_spec();
    let (object, command_status, grace) = (disk().into(), CommandStatus::Pending, Duration::ZERO);
    summary(&world.carry_out(&Command {
        object,
        revision,
        attempt,
        effect,
        status: command_status,
        grace,
        spec,
        traceparent: None,
    }))
}

fn mounting(processes: u16, simulate: &str) -> IncarnationSpec {
    let mut spec = spec(processes, simulate);
    spec.payloads[0].mounts.push(VolumeMount { path: "/data".into(), volume: disk() });
    spec
}

#[test]
fn a_volume_misbehaves_by_a_rule_and_has_no_processes() {
    let cases: [(&str, &[StatusSummary], &str); 5] = [
        ("", &[(1, "ready", 0)], "well"),
        ("delay:50ms", &[(0, "not ready", 0), (1, "ready", 0)], "after its delay"),
        ("fail:retry:1", &[(1, "retry", 0)], "the first attempt fails"),
        ("fail", &[(1, "never", 0)], "each attempt fails"),
        ("exit:0@20ms", &[(1, "ready", 0), (1, "ended", 0)], "it is lost"),
    ];
    for (text, then, because) in cases {
        for which in [FaultTarget::Any, FaultTarget::Volume(disk()), FaultTarget::Volumes("da".into())] {
            let behaviour =
                if text.is_empty() { SimulatedBehaviour::default() } else { text.parse().unwrap() };
            let rules =
                FaultRules::default().rule(FaultTarget::Replicas("data".into()), "fail".parse().unwrap());
            let mut world = SimulatedWorld::new(rules.rule(which, behaviour));
            let mut summaries = vec![on_disk(&mut world, 1, 1, CommandEffect::Ensure)];
            summaries.extend(words(&world.advance(ms(100))));
            assert_eq!(summaries, then, "{because}");
            assert_eq!(world.alive().count(), 0, "a volume has no processes");
            let is_up = then.last().is_some_and(|(_, word, _)| *word == "ready");
            assert_eq!(world.volumes().any(|id| id == disk()), is_up, "{because}");
        }
    }
}

#[test]
fn a_seed_delays_volumes_and_lets_them_fail_for_a_while_and_loses_none() {
    let faults = FaultRules::default().seeded(7, 500);
    let spec = volume_spec();
    let id = |position| VolumeId::issue(Lineage::from_random(42), Position::new(position)).into();
    let drawn: Vec<_> = (1..200).map(|position| faults.of(id(position), &spec).unwrap()).collect();
    let count = |is: fn(&SimulatedBehaviour) -> bool| drawn.iter().filter(|behaviour| is(behaviour)).count();
    assert!(count(|b| !b.delay.is_zero()) > 2 && count(|b| b.late) > 2);
    assert!(count(|b| b.fail.is_some_and(|(retry, _)| retry == RetryClass::Retryable)) > 2);
    assert_eq!(
        count(|b| b.fail.is_some_and(|(retry_class, _)| retry_class == RetryClass::Permanent)
            || b.end.is_some()),
        0
    );
}

#[test]
fn an_incarnation_waits_for_its_volume_which_is_not_destroyed_before_its_end() {
    let mut world = SimulatedWorld::new(FaultRules::default());
    assert_eq!(
        summary(&ensure(&mut world, 1, &mounting(1, "delay:50ms"))),
        (1, "retry", 0),
        "its volume does not exist"
    );
    assert_eq!((world.starts(), on_disk(&mut world, 1, 1, CommandEffect::Ensure)), (0, (1, "ready", 0)));
    assert_eq!(
        summary(&order(&mut world, 1, 2, CommandEffect::Ensure, &mounting(1, "delay:50ms"))),
        (0, "not ready", 1)
    );
    assert_eq!(
        on_disk(&mut world, 2, 1, CommandEffect::Kill),
        (2, "retry", 0),
        "a starting incarnation uses it"
    );
    assert_eq!(words(&world.advance(ms(50))), [(1, "ready", 1)]);
    assert_eq!(on_disk(&mut world, 2, 2, CommandEffect::Kill), (2, "retry", 0), "it is in use");
    assert_eq!(summary(&world.remove(disk(), 3)), (3, "retry", 0), "in use: an orphan resolution fails too");
    ensure(&mut world, 2, &spec(1, "delay:50ms"));
    assert_eq!(on_disk(&mut world, 3, 1, CommandEffect::Kill), (3, "retry", 0), "in use until the change");
    world.advance(ms(100));
    assert_eq!(on_disk(&mut world, 3, 2, CommandEffect::Kill), (3, "gone", 0));
    assert_eq!(
        summary(&ensure(&mut world, 3, &mounting(1, ""))),
        (3, "retry", 0),
        "the change to use it fails"
    );
    assert_eq!((world.running(id()), world.volumes().count()), (1, 0));
    assert!(world.forget(disk()).is_none() && world.list().len() == 1);
}

#[test]
fn the_next_executor_finds_what_is_recorded_and_not_there() {
    let mut world = SimulatedWorld::new(FaultRules::default());
    ensure(&mut world, 1, &spec(1, ""));
    assert_eq!(summary(&order(&mut world, 2, 1, CommandEffect::Kill, &spec(1, ""))), (2, "ended", 1));
    on_disk(&mut world, 3, 1, CommandEffect::Kill);
    // The world loses its memory; its store stays.
    world.items.clear();
    world.read_store();
    let summaries: Vec<_> =
        world.list().into_iter().map(|report| summary(&StatusUpdate::Change(report))).collect();
    assert_eq!(summaries, [(3, "gone", 0), (1, "not ready", 0)], "a tombstone, and a command");
    assert_eq!(
        summary(&ensure(&mut world, 1, &spec(1, ""))),
        (1, "not ready", 0),
        "the recorded command excludes lower ones"
    );
    assert!(world.forget(id()).is_none() && world.forget(disk()).is_none());
    world.items.clear();
    world.read_store();
    assert!(world.list().is_empty(), "a purged object is not listed");
}

#[test]
fn a_lost_volume_is_not_made_again() {
    let mut world = SimulatedWorld::new(FaultRules::default());
    on_disk(&mut world, 1, 1, CommandEffect::Ensure);
    ensure(&mut world, 1, &mounting(1, ""));
    let lost = world.strike(disk()).expect("it was there");
    let StatusUpdate::Change(ObjectReport {
        revision: 1,
        observed: ObservedState::Ended { exit, processes },
        ..
    }) = lost
    else {
        panic!("{lost:?}")
    };
    assert!(matches!(exit, IncarnationExit::Failed { .. }) && processes.is_empty(), "{exit:?}");
    assert_eq!(world.running(id()), 1, "its user continues to run");
    assert_eq!(on_disk(&mut world, 2, 1, CommandEffect::Ensure), (2, "ended", 0));
    assert!(world.strike(disk()).is_none() && world.volumes().count() == 0);
    world.strike(id());
    assert_eq!(on_disk(&mut world, 3, 1, CommandEffect::Kill), (3, "gone", 0));
}

#[test]
fn what_ignores_a_stop_is_killed_when_its_grace_has_passed() {
    let stop = |world: &mut SimulatedWorld, revision, effect, grace| {
        let (object, spec, status) = (id().into(), spec(2, "deaf").into(), CommandStatus::Pending);
        world.carry_out(&Command {
            object,
            revision,
            attempt: 1,
            effect,
            status,
            grace,
            spec,
            traceparent: None,
        })
    };
    let mut world = SimulatedWorld::new(FaultRules::default());
    ensure(&mut world, 1, &spec(2, "deaf"));
    assert_eq!(summary(&stop(&mut world, 2, CommandEffect::Stop, ms(50))), (1, "ready", 2));
    // A repeated stop moves no kill.
    world.advance(ms(40));
    stop(&mut world, 2, CommandEffect::Stop, ms(50));
    assert_eq!((words(&world.advance(ms(49))), world.running(id())), (vec![], 2));
    let ends = world.advance(ms(50));
    let [StatusUpdate::Change(ObjectReport { revision: 2, observed, .. })] = &ends[..] else {
        panic!("{ends:?}")
    };
    let ObservedState::Ended { exit: IncarnationExit::Failed { reason }, processes } = observed else {
        panic!("{observed:?}")
    };
    assert_eq!(reason, "web-0 was ended by signal 9");
    assert!(processes.iter().all(|process| process.status == ProcessStatus::Signaled { signal: 9 }));
    // A kill waits for no grace.
    let mut world = SimulatedWorld::new(FaultRules::default());
    ensure(&mut world, 1, &spec(2, "deaf"));
    stop(&mut world, 2, CommandEffect::Stop, ms(50));
    assert_eq!(summary(&stop(&mut world, 3, CommandEffect::Kill, ms(50))), (3, "ended", 2));
    assert_eq!(words(&world.advance(ms(100))), []);
}

#[test]
fn a_guest_powers_itself_off_when_it_runs() {
    let mut world = SimulatedWorld::new(FaultRules::default());
    assert!(world.power_off(id()).is_none());
    ensure(&mut world, 1, &spec(1, "delay:50ms"));
    assert!(world.power_off(id()).is_none(), "it does not run yet");
    world.advance(ms(50));
    let StatusUpdate::Change(report) = world.power_off(id()).expect("it runs") else { panic!("listed only") };
    assert!(
        matches!(&report.observed, ObservedState::Ended { exit: IncarnationExit::PoweredOff, .. }),
        "{report:?}"
    );
    assert!(world.power_off(id()).is_none() && world.running(id()) == 0);
}
