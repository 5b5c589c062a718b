use chancery_events::id::{IncarnationId, Lineage, Position, VolumeId};
use chancery_events::protocol::{RunSpec, VolumeSpec};
use chancery_events::spec::Restart;

use super::*;

fn spec(replica: &str) -> ObjectSpec {
    run(replica, Restart::BestEffort).into()
}

fn run(replica: &str, restart: Restart) -> RunSpec {
    let name = |name: &str| name.parse().unwrap();
    RunSpec {
        replica: replica.parse().unwrap(),
        plan: "web".parse().unwrap(),
        node: name("n1"),
        restart,
        labels: Box::default(),
        payloads: vec![],
    }
}

fn order(aim: Aim, revision: u32, attempt: u32) -> Order {
    Order { revision, attempt, aim, standing: Standing::Open, grace: Duration::from_secs(9) }
}

fn present(order: Order, state: State) -> Present {
    Present { order, spec: Some(spec("web-1")), state }
}

fn up(status: ProcessStatus, before: Before) -> State {
    let process = Process { payload: "web".parse().unwrap(), index: 0, pid: None, addresses: vec![], status };
    State::Up { processes: vec![process], before }
}

fn runs() -> State {
    up(ProcessStatus::Online, Before::Ready)
}

fn ended() -> State {
    State::Ended { exit: Exit::Clean, processes: vec![] }
}

fn failed() -> State {
    State::Failed { message: "no".into(), hope: Hope::Retry }
}

fn changing() -> State {
    State::Changing { processes: vec![] }
}

fn unchanged() -> State {
    State::Unchanged { processes: vec![], before: Before::Ready, message: "no".into(), hope: Hope::Retry }
}

#[test]
fn an_order_means_what_is_there_makes_of_it() {
    use Aim::{Down, Removed, Up};
    let end = Step::End(Duration::from_secs(9));
    let being_ended = Step::Refuse("it is being ended", Hope::Retry);
    let cases = [
        // State                  last target         target             step            reason
        (None, order(Up, 1, 1), Step::Start, "nothing is there"),
        (None, order(Down, 1, 1), Step::Bury, "absence is proved by a tombstone"),
        (None, order(Removed, 1, 1), Step::Bury, "absence is proved by a tombstone"),
        (
            Some((order(Up, 1, 1), State::Accepted)),
            order(Up, 1, 1),
            Step::Start,
            "a crash came before the start",
        ),
        (
            Some((order(Down, 1, 1), State::Accepted)),
            order(Down, 1, 1),
            Step::Bury,
            "or before the tombstone",
        ),
        (Some((order(Up, 1, 1), State::Accepted)), order(Down, 2, 1), Step::Bury, "it was never begun"),
        (Some((order(Up, 1, 1), runs())), order(Up, 1, 1), Step::Answer, "twice is once"),
        (Some((order(Up, 1, 1), runs())), order(Up, 2, 1), Step::Adopt, "it runs already"),
        (Some((order(Up, 2, 1), runs())), order(Down, 1, 9), Step::Answer, "a lower revision is closed"),
        (Some((order(Up, 2, 2), runs())), order(Up, 2, 1), Step::Answer, "so is a lower attempt"),
        (Some((order(Up, 1, 1), runs())), order(Down, 2, 1), end.clone(), "it is to end"),
        (
            Some((order(Down, 2, 1), runs())),
            order(Down, 2, 1),
            end.clone(),
            "the first asking may have been lost",
        ),
        (Some((order(Down, 2, 1), runs())), order(Up, 3, 1), being_ended, "what is half ended is not kept"),
        (Some((order(Up, 1, 1), runs())), order(Removed, 2, 1), end.clone(), "it must end before it is gone"),
        (Some((order(Up, 1, 1), ended())), order(Up, 1, 1), Step::Answer, "an end is final"),
        (Some((order(Up, 1, 1), ended())), order(Up, 2, 1), Step::Adopt, "for higher revisions too"),
        (Some((order(Up, 1, 1), ended())), order(Down, 2, 1), Step::Adopt, "and how it ended is kept"),
        (Some((order(Up, 1, 1), ended())), order(Removed, 2, 1), Step::Bury, "unless it is to be gone"),
        (Some((order(Up, 1, 1), failed())), order(Up, 1, 1), Step::Answer, "this attempt failed"),
        (Some((order(Up, 1, 1), failed())), order(Up, 1, 2), Step::Start, "the next may not"),
        (Some((order(Up, 1, 1), failed())), order(Down, 2, 1), Step::Bury, "nothing ran"),
        (Some((order(Down, 2, 1), State::Gone)), order(Up, 1, 1), Step::Answer, "the tombstone blocks it"),
        (Some((order(Down, 2, 1), State::Gone)), order(Down, 2, 1), Step::Answer, "the tombstone is there"),
        (Some((order(Down, 2, 1), State::Gone)), order(Down, 3, 1), Step::Bury, "the tombstone rises"),
        (
            Some((order(Down, 2, 1), State::Gone)),
            order(Up, 3, 1),
            Step::Start,
            "it speaks of lower ones only",
        ),
    ];
    for (there, order, then, because) in cases {
        let there = there.map(|(last, state)| present(last, state));
        // The target has the recorded spec, so support for changes does not matter.
        for changes in [Changes::InPlace, Changes::Never] {
            assert_eq!(
                step(there.as_ref(), &order, Some(&spec("web-1")), changes),
                then,
                "{because}: {order:?} on {there:?}"
            );
        }
    }
}

#[test]
fn another_spec_changes_what_runs_where_that_can_be_done_and_is_refused_elsewhere() {
    use Aim::{Down, Up};
    let starting = || State::Starting { processes: vec![] };
    let met = |order| Order { standing: Standing::Met, ..order };
    let refused = Step::Refuse("it runs with another spec, and what runs is not changed", Hope::Never);
    let being_ended = Step::Refuse("it is being ended", Hope::Retry);
    let change = || (Step::Change, refused.clone());
    let both = |step: Step| (step.clone(), step);
    // The existing spec is always "web-1".
    let cases = [
        // State     last target   target       its spec  step with and without changes in place    reason
        (runs(), order(Up, 1, 1), order(Up, 2, 1), "web-2", change(), "it is to be another one"),
        (starting(), order(Up, 1, 1), order(Up, 2, 1), "web-2", change(), "also before it is up"),
        (runs(), order(Up, 2, 1), order(Up, 2, 2), "web-2", change(), "an attempt is an order"),
        (runs(), order(Up, 3, 1), order(Up, 2, 9), "web-2", both(Step::Answer), "a lower revision is closed"),
        (runs(), order(Up, 1, 1), met(order(Up, 2, 1)), "web-2", both(Step::Adopt), "nobody waits for it"),
        (
            runs(),
            order(Up, 2, 1),
            met(order(Up, 2, 1)),
            "web-2",
            both(Step::Answer),
            "nor for a repeated one",
        ),
        (runs(), order(Down, 2, 1), order(Up, 3, 1), "web-2", both(being_ended.clone()), "it is half ended"),
        (ended(), order(Up, 1, 1), order(Up, 2, 1), "web-2", both(Step::Adopt), "an end is final"),
        (failed(), order(Up, 1, 1), order(Up, 2, 1), "web-2", both(Step::Start), "nothing is there"),
        (changing(), order(Up, 2, 1), order(Up, 2, 1), "web-1", both(Step::Answer), "it is at work"),
        (changing(), order(Up, 2, 1), order(Up, 2, 2), "web-1", both(Step::Adopt), "and stays so"),
        (changing(), order(Up, 2, 1), met(order(Up, 3, 1)), "web-2", both(Step::Adopt), "and stays so"),
        (changing(), order(Up, 2, 1), order(Up, 3, 1), "web-2", change(), "not any more, or back"),
        (changing(), order(Up, 2, 1), order(Up, 1, 1), "web-2", both(Step::Answer), "the order from before"),
        (changing(), order(Down, 3, 1), order(Up, 4, 1), "web-1", both(being_ended), "it is half ended"),
        (unchanged(), order(Up, 2, 1), order(Up, 2, 1), "web-2", both(Step::Answer), "this attempt failed"),
        (unchanged(), order(Up, 2, 1), order(Up, 2, 2), "web-2", change(), "the next may not"),
        (
            unchanged(),
            order(Up, 2, 1),
            order(Up, 3, 1),
            "web-1",
            both(Step::Adopt),
            "it never was another one",
        ),
        (
            unchanged(),
            order(Up, 2, 1),
            met(order(Up, 2, 1)),
            "web-2",
            both(Step::Adopt),
            "the failure was heard",
        ),
        (
            unchanged(),
            order(Up, 2, 1),
            met(order(Up, 3, 1)),
            "web-3",
            both(Step::Adopt),
            "the failure was heard",
        ),
    ];
    for (state, last, order, brings, (can, cannot), because) in cases {
        let there = present(last, state);
        for (changes, then) in [(Changes::InPlace, can), (Changes::Never, cannot)] {
            assert_eq!(
                step(Some(&there), &order, Some(&spec(brings)), changes),
                then,
                "{because}: {order:?} with {brings} on {there:?}, {changes:?}"
            );
        }
    }
    for state in [changing(), unchanged()] {
        for aim in [Down, Aim::Removed] {
            let there = present(order(Up, 2, 1), state.clone());
            let end = step(Some(&there), &order(aim, 3, 1), None, Changes::InPlace);
            assert_eq!(end, Step::End(Duration::from_secs(9)), "{aim:?} on {there:?}");
        }
    }
}

#[test]
fn a_report_names_the_revision_that_it_reflects() {
    let id = IncarnationId::issue(Lineage::from_random(1), Position::FIRST);
    let revision = |aim, state| match report(id.into(), &present(order(aim, 5, 1), state)) {
        Told::Change(report) => (report.revision, "change"),
        Told::ListOnly(report) => (report.revision, "list"),
    };
    let cases = [
        (Aim::Up, State::Accepted, (4, "list"), "no outcome yet"),
        (Aim::Up, State::Starting { processes: vec![] }, (4, "list"), "no outcome yet"),
        (Aim::Up, runs(), (5, "change"), "the outcome"),
        (Aim::Down, runs(), (4, "list"), "what is to end and has not is no outcome"),
        (Aim::Down, ended(), (5, "change"), "the outcome"),
        (Aim::Up, changing(), (4, "list"), "no outcome yet"),
        (Aim::Up, unchanged(), (5, "change"), "the outcome"),
        (Aim::Down, unchanged(), (4, "list"), "what is to end and has not is no outcome"),
        (Aim::Up, failed(), (5, "change"), "the outcome"),
        (Aim::Down, State::Gone, (5, "change"), "the outcome"),
    ];
    for (aim, state, then, because) in cases {
        assert_eq!(revision(aim, state.clone()), then, "{because}: {aim:?} and {state:?}");
    }
}

#[test]
fn ready_means_all_online() {
    let id = IncarnationId::issue(Lineage::from_random(1), Position::FIRST);
    let saw = |state| match report(id.into(), &present(order(Aim::Up, 1, 1), state)) {
        Told::Change(report) => report.saw,
        Told::ListOnly(report) => panic!("{report:?}"),
    };
    assert!(matches!(saw(up(ProcessStatus::Online, Before::NeverReady)), Saw::Ready { .. }));
    assert!(matches!(saw(up(ProcessStatus::Initializing, Before::NeverReady)), Saw::Ensured { .. }));
    assert!(matches!(saw(up(ProcessStatus::Initializing, Before::Ready)), Saw::NotReady { .. }));
    assert!(matches!(saw(unchanged()), Saw::Failed { hope: Hope::Retry, .. }), "what runs was not asked for");
}

#[test]
fn what_had_its_outcome_and_is_not_there_any_more_is_not_started_again() {
    let met = Order { standing: Standing::Met, ..order(Aim::Up, 1, 1) };
    let on = |there: Option<&Present>| step(there, &met, Some(&spec("web-1")), Changes::InPlace);
    assert_eq!(on(None), Step::Bury);
    let lost = present(order(Aim::Up, 1, 1), State::Accepted);
    assert_eq!(on(Some(&lost)), Step::Bury);
    assert_eq!(on(Some(&present(met, runs()))), Step::Answer);
}

#[test]
fn another_rule_of_starting_again_is_taken_over_and_changes_nothing_that_runs() {
    let rule = |restart| ObjectSpec::Run(run("web-1", restart));
    let there = present(order(Aim::Up, 2, 1), runs());
    let met = Order { standing: Standing::Met, ..order(Aim::Up, 2, 1) };
    for (order, because) in [
        (order(Aim::Up, 3, 1), "with a higher revision"),
        (met, "and with the same one: what was recorded by an earlier build has no rule"),
    ] {
        for changes in [Changes::InPlace, Changes::Never] {
            let then = step(Some(&there), &order, Some(&rule(Restart::Always)), changes);
            assert_eq!(then, Step::Adopt, "{because}");
        }
    }
    let late = step(Some(&there), &order(Aim::Up, 1, 1), Some(&rule(Restart::Always)), Changes::Never);
    assert_eq!(late, Step::Answer, "not with a lower one");
    let adopt = |brought: &ObjectSpec| match accepted(&Step::Adopt, there.spec.clone(), Some(brought)) {
        Some(ObjectSpec::Run(spec)) => spec.restart,
        other => panic!("{other:?}"),
    };
    assert_eq!(adopt(&rule(Restart::Always)), Restart::Always);
    let other = run("web-2", Restart::Always).into();
    assert_eq!(adopt(&other), Restart::BestEffort, "what runs is not what that rule is for");
}

fn volume(capacity: u64) -> ObjectSpec {
    let (class, node) = ("disk".parse().unwrap(), "n1".parse().unwrap());
    ObjectSpec::Volume(VolumeSpec { name: "data".parse().unwrap(), node, class, capacity })
}

#[test]
fn a_volume_is_kept_whatever_is_asked_of_it_until_it_is_destroyed() {
    use Aim::{Removed, Up};
    let up = || State::Up { processes: vec![], before: Before::Ready };
    let lost = || State::Ended { exit: Exit::Failed { reason: "lost".into() }, processes: vec![] };
    let cases = [
        (order(Up, 1, 1), up(), order(Up, 2, 1), Step::Adopt, "another spec changes nothing"),
        (order(Up, 1, 1), up(), order(Up, 1, 1), Step::Adopt, "nor with the same order"),
        (order(Up, 1, 1), lost(), order(Up, 2, 1), Step::Adopt, "what is lost is not made again"),
        (order(Up, 1, 1), up(), order(Removed, 2, 1), Step::End(Duration::from_secs(9)), "it is destroyed"),
        (order(Up, 1, 1), lost(), order(Removed, 2, 1), Step::Bury, "nothing is left of it"),
        (order(Removed, 2, 1), State::Gone, order(Up, 1, 9), Step::Answer, "and it stays so"),
    ];
    for (last, state, order, then, because) in cases {
        let there = Present { order: last, spec: Some(volume(1)), state };
        for changes in [Changes::InPlace, Changes::Never] {
            assert_eq!(step(Some(&there), &order, Some(&volume(2)), changes), then, "{because}");
        }
    }
    let recorded = accepted(&Step::Adopt, Some(volume(1)), Some(&volume(2)));
    assert_eq!(recorded, Some(volume(2)), "the newest is recorded");
}

#[test]
fn a_spec_is_recorded_with_an_order_by_what_the_order_does() {
    let (a, b) = (|| Some(spec("web-1")), || Some(spec("web-2")));
    for (step, there, brought, recorded, because) in [
        (Step::Start, a(), b(), b(), "it is started as the order says"),
        (Step::Change, a(), b(), b(), "it is changed to that"),
        (Step::Adopt, a(), b(), a(), "what runs is what it was started as"),
        (Step::End(Duration::ZERO), a(), b(), a(), "also while it is being ended"),
        (Step::Bury, a(), b(), a(), "and when it is gone"),
        (Step::Bury, a(), None, a(), "a judgement brings none"),
        (Step::Bury, None, b(), b(), "of something unknown, all that is known is what the order says"),
    ] {
        assert_eq!(accepted(&step, there, brought.as_ref()), recorded, "{because}");
    }
}

#[test]
fn a_command_fits_what_it_is_on() {
    let at = (Lineage::from_random(1), Position::FIRST);
    let (run, disk) = (IncarnationId::issue(at.0, at.1).into(), VolumeId::issue(at.0, at.1).into());
    let cases: [(ObjectId, ObjectSpec, Effect, Option<Aim>); 8] = [
        (run, spec("web-1"), Effect::Ensure, Some(Aim::Up)),
        (run, spec("web-1"), Effect::Stop, Some(Aim::Down)),
        (run, spec("web-1"), Effect::Kill, Some(Aim::Down)),
        (disk, volume(1), Effect::Ensure, Some(Aim::Up)),
        (disk, volume(1), Effect::Kill, Some(Aim::Removed)),
        (disk, volume(1), Effect::Stop, None),
        (disk, spec("web-1"), Effect::Ensure, None),
        (run, volume(1), Effect::Kill, None),
    ];
    for (object, spec, effect, then) in cases {
        let (standing, grace) = (Standing::Open, Duration::from_secs(9));
        let command = Command { object, revision: 3, attempt: 2, effect, standing, grace, spec };
        let told = misfit(&command).is_none().then(|| Order::of(&command));
        assert_eq!(told.map(|order| order.aim), then, "{effect:?} on {object:?}");
        assert!(told.is_none_or(|order| (order.revision, order.attempt) == (3, 2)));
    }
}
