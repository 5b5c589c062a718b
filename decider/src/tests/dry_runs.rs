//! Dry runs compared with what the decider then does: the events are equal byte by byte.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use chancery_events::fact::Fact;
use tracing::span::{Attributes, Id, Record as LogRecord};
use tracing::{Metadata, Subscriber};

use super::*;
use crate::dry_run::{
    DryRunBounds, DryRunResult, DryRunStart, DryVerdict, OperationWait, ReachedBound, dry_run, facts,
};

impl DeciderFixture {
    fn head(&self) -> ChainCursor {
        ChainCursor::after(self.journal.last().expect("a record"))
    }

    fn start(&self) -> DryRunStart {
        DryRunStart {
            fleet: name("default"),
            state: self.core.fleet().clone(),
            at: self.head(),
            now: self.now,
            wall: self.now,
            replicas: REPLICAS,
            bounds: DryRunBounds::default(),
        }
    }

    fn try_out(&self, intents: &[IntentRequest]) -> DryRunResult {
        dry_run(self.start(), intents.to_vec(), &|| true).1
    }

    /// Returns the events of the journal from the given record on, as stored.
    fn lines(&self, from: usize) -> Vec<String> {
        self.journal[from..].iter().flat_map(|record| texts(record)).collect()
    }
}

fn texts(record: &Record) -> Vec<String> {
    let text = |(position, line): (Position, &[u8])| format!("{position} {}", String::from_utf8_lossy(line));
    record.events().map(text).collect()
}

/// Returns the events of a dry run, as they would be stored.
fn events(result: &DryRunResult) -> Vec<String> {
    let intents = result.intents.iter().filter_map(|decided| decided.record.as_ref());
    intents.chain(&result.follows).flat_map(|record| texts(record)).collect()
}

/// Intents that work in their order, and some that are refused or change nothing.
fn script(rig: &mut DeciderFixture) -> Vec<IntentRequest> {
    let resources = json!({"cpu": 1000, "memory": 1});
    let payload = json!({"name": "app", "resources": resources, "run": {"argv": ["app"]}});
    let manual = json!({"namespace": "ns", "service": "db", "payloads": [payload]});
    let storage = json!([{"class": "fast", "capacity": 100}]);
    let resources_of_node = json!({"cpu": 2000, "memory": 8u64 << 30, "disk": 0});
    let node = json!({"domain": "e", "resources": resources_of_node, "storage": storage});
    let claim = json!([{"class": "fast", "capacity": 10, "mount": "/data"}]);
    let with_volume =
        json!({"name": "app", "resources": resources, "run": {"argv": ["app"]}, "volumes": claim});
    let kept = json!({"namespace": "ns", "service": "kept", "payloads": [with_volume]});
    let four_eyes = json!({"kinds": [], "plans": [], "domains": [], "rule": {"four_eyes": {}}});
    let all = [
        ("cluster.apply", json!({"name": "local", "spec": {"runtime": "process"}})),
        ("node.apply", json!({"name": "n2", "cluster": "local", "spec": node})),
        ("plan.apply", json!({"name": "db", "spec": manual})),
        ("deployment.create", json!({"plan": "db", "name": "d1", "spec": {"count": 9}})),
        ("deployment.create", json!({"plan": "db", "name": "d2", "spec": {"count": 2}})),
        ("deployment.create", json!({"plan": "web", "name": "d2", "spec": {"count": 3}})),
        ("deployment.create", json!({"plan": "none", "name": "d2", "spec": {"count": 3}})),
        ("plan.apply", json!({"name": "kept", "spec": kept})),
        ("deployment.create", json!({"plan": "kept", "name": "d1", "spec": {"count": 1}})),
        ("policy.apply", json!({"name": "two", "spec": four_eyes})),
        ("plan.delete", json!({"name": "web", "cascade": "yes"})),
        ("plan.delete", json!({"name": "db", "cascade": "yes"})),
        ("node.set_state", json!({"name": "n1", "state": "evicted"})),
        ("node.delete", json!({"name": "n2"})),
    ];
    all.iter().map(|(type_name, data)| rig.request(type_name, data)).collect()
}

fn rig() -> DeciderFixture {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    rig.plan_and_deployment();
    rig.settle();
    rig
}

#[test]
fn a_dry_run_has_the_events_that_the_decider_then_records() {
    let mut rig = rig();
    let mut compared = 0;
    for request in script(&mut rig) {
        let result = rig.try_out(std::slice::from_ref(&request));
        assert_eq!((result.due.len(), result.bound), (0, None));
        let from = rig.journal.len();
        rig.ask(&request);
        let effects = rig.settle();
        assert_eq!(events(&result), rig.lines(from), "{request:?}");
        compared += events(&result).len();
        let verdict = effects.into_iter().find_map(|effect| match effect {
            DeciderEffect::Answer(_, verdict) => Some(verdict),
            DeciderEffect::Send(..) | DeciderEffect::Close(_) => None,
        });
        assert_eq!(Some(&result.intents[0].verdict), verdict.as_ref());
    }
    assert!(compared > 60, "{compared}");
}

/// Subscriber that counts events of the log.
#[derive(Default)]
struct LoggedEvents(AtomicUsize);

impl Subscriber for LoggedEvents {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &LogRecord<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_dry_run_logs_nothing_of_what_would_happen() {
    let mut rig = rig();
    let expunge = json!({"name": "n1", "state": "expunged", "break_glass": "fire"});
    let expunge = rig.request("node.set_state", &expunge);
    let logged = Arc::new(LoggedEvents::default());
    let count = || logged.0.load(Ordering::Relaxed);
    tracing::subscriber::with_default(Arc::clone(&logged), || {
        let result = rig.try_out(std::slice::from_ref(&expunge));
        let bypassed = result.intents.iter().filter_map(|decided| decided.record.as_ref());
        let bypassed = bypassed.flat_map(|record| facts(record)).map(|(_, fact)| fact);
        assert_eq!(bypassed.filter(|fact| matches!(fact, Fact::ApprovalBypassed(_))).count(), 1);
        assert_eq!(count(), 0);
        rig.ask(&expunge);
        rig.settle();
    });
    assert_eq!(count(), 1, "the expunge without approval");
}

#[test]
fn intents_of_one_dry_run_see_the_intents_before_them() {
    let mut rig = rig();
    let script = script(&mut rig);
    let result = rig.try_out(&script);
    let from = rig.journal.len();
    for request in &script {
        rig.ask(request);
    }
    rig.settle();
    assert_eq!(events(&result), rig.lines(from));
    assert_eq!(result.intents.len(), script.len());
}

#[test]
fn a_repeat_has_its_first_verdict_and_no_events() {
    let mut rig = rig();
    let request = rig.request("cluster.delete", &json!({"name": "nowhere"}));
    rig.ask(&request);
    let first = answers(&rig.settle());
    let mut other = request.clone();
    other.expect = Some(ExpectedVersion::Exactly(7));
    let result = rig.try_out(&[request, other]);
    let DryVerdict { verdict, record } = &result.intents[0];
    assert_eq!((verdict.position.get(), record.is_none()), (first[0].1, true));
    let code =
        |decided: &DryVerdict| decided.verdict.result.as_ref().as_ref().err().map(|refusal| refusal.code);
    assert_eq!(code(&result.intents[1]), Some(RefusalCode::IdempotencyKeyReused));
}

#[test]
fn an_intent_that_depends_on_the_inbox_is_not_decided_on_the_state() {
    let mut rig = rig();
    let skip = rig.request("inbox.skip", &json!({"offset": 3}));
    let result = rig.try_out(&[skip]);
    let refusal = result.intents[0].verdict.result.as_ref().as_ref().expect_err("a refusal");
    assert_eq!((refusal.code, result.intents[0].record.is_none()), (RefusalCode::Unsupported, true));
}

#[test]
fn work_that_was_due_already_is_listed_apart() {
    let mut rig = rig();
    let script = script(&mut rig);
    rig.ask(&script[2]);
    rig.settle();
    rig.ask(&script[3]);
    rig.give(CoreInput::Seal);
    let delete = rig.request("cluster.delete", &json!({"name": "nowhere"}));
    let result = rig.try_out(&[delete]);
    let created = |records: &[Arc<Record>]| {
        let facts = records.iter().flat_map(|record| facts(record));
        facts.filter(|(_, fact)| matches!(fact, Fact::ReplicaCreated(_))).count()
    };
    assert_eq!((created(&result.due), created(&result.follows)), (9, 0));
    assert!(result.operations.is_empty(), "no intent of the dry run created them");
}

#[test]
fn a_dry_run_ends_at_each_bound() {
    let mut rig = rig();
    let script = script(&mut rig);
    let most = DryRunBounds::default();
    let few = 10;
    let calls = Cell::new(0);
    let few_calls = || {
        calls.set(calls.get() + 1);
        calls.get() <= few
    };
    let cases: [(DryRunBounds, ReachedBound); 4] = [
        (DryRunBounds { steps: 4, ..most }, ReachedBound::Steps),
        (DryRunBounds { events: few, ..most }, ReachedBound::Events),
        (DryRunBounds { bytes: 2000, ..most }, ReachedBound::Bytes),
        (most, ReachedBound::Time),
    ];
    for (bounds, reached) in cases {
        let start = DryRunStart { bounds, ..rig.start() };
        let always = || true;
        let may_continue: &dyn Fn() -> bool =
            if reached == ReachedBound::Time { &few_calls } else { &always };
        let result = dry_run(start, script.clone(), may_continue).1;
        assert_eq!(result.bound, Some(reached));
        let whole = rig.try_out(&script);
        assert_eq!(whole.bound, None);
        let (part, whole) = (events(&result), events(&whole));
        assert!(part.len() < whole.len() && whole.starts_with(&part[..part.len().min(3)]), "{reached:?}");
    }
}

#[test]
fn placements_are_explained_and_operations_wait_for_what_is_next() {
    let mut rig = rig();
    let script = script(&mut rig);
    let result = rig.try_out(&script[..4]);
    let mut waits: Vec<_> = result.operations.values().flatten().collect();
    waits.dedup();
    assert!(matches!(waits[0], OperationWait::Approval { four_eyes: None, .. }), "{waits:?}");
    assert!(waits.contains(&&OperationWait::Placement), "{waits:?}");
    let chosen = result.placements.values().next().expect("an explained placement");
    assert!(chosen.reason.starts_with("update domain"), "{chosen:?}");
    let result = rig.try_out(&[&script[..3], &script[9..10], &script[3..4]].concat());
    let two = Some(name("two"));
    let needs = |wait: &Option<OperationWait>| matches!(wait, Some(OperationWait::Approval { four_eyes, requested_by }) if *four_eyes == two && requested_by.is_some());
    assert!(result.operations.values().any(needs), "{:?}", result.operations);
    assert!(result.placements.len() <= DryRunBounds::default().explained);
}
