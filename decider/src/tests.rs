//! Core of the decider, driven by hand: its outputs, and the time at which they are released.

mod dry_runs;
mod executors;
mod inbox;
mod races;
mod sizes;
mod traces;

use std::sync::Arc;
use std::time::Duration;

use chancery_events::event::Event;
use chancery_events::expected_version::ExpectedVersion;
use chancery_events::extension::ExtensionAttributes;
use chancery_events::id::{ConnectionToken, EpochNonce, ExecutorStoreId, Lineage, Position, WriterId};
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::name::IntentId;
use chancery_events::observation::{ObjectReport, ObservedState, ProcessInfo, ProcessStatus};
use chancery_events::protocol::{
    DeciderMessage, ExecutorEpoch, ExecutorMessage, HelloRetry, JournalHead, ReportPart,
};
use chancery_events::record::{Record, RecordHash, RecordStart};
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::ClusterRuntime;
use chancery_events::subject::Subject;
use chancery_events::time::Time;
use chancery_journal::{ChainCursor, ReadError};
use chancery_machine::advance::{AdvanceState, DueStep, advance};
use chancery_machine::context::{DecisionContext, LevelLimits};
use chancery_machine::fleet::FleetState;
use chancery_machine::snapshot::FleetSnapshot;
use serde_json::json;

use super::core::{CoreInput, CoreOutput, DeciderCore, DeciderEffect, DeciderSettings, PART, RequestTicket};
use super::handle::{ChannelNumber, UnchangedVerdict};

const LEASE: Duration = Duration::from_secs(15);
const REPLICAS: u32 = 10_000;

struct DeciderFixture {
    core: DeciderCore,
    now: Time,
    journal: Vec<Arc<Record>>,
    durable: usize,
    tickets: u64,
    effects: Vec<DeciderEffect>,
}

/// Takes over with a journal in which no record is found.
fn taken_over(
    settings: DeciderSettings,
    fleet: FleetState,
    end: Option<&ChainCursor>,
    now: Time,
) -> DeciderCore {
    DeciderCore::take_over(settings, fleet, end, now, Box::new(|_| Ok(None)))
}

fn name<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

fn settings(writer: u64) -> DeciderSettings {
    let writer = WriterId::from_random(writer);
    let fleet = name("default");
    DeciderSettings {
        fleet,
        writer,
        build: "test".into(),
        address: None,
        lease: LEASE,
        part: PART,
        replicas: REPLICAS,
        levels: LevelLimits::ALONE,
        inbox: None,
    }
}

/// Default executor store of test executors.
const SCOPE: u64 = 1;

fn epoch(number: u64, instance: u64) -> ExecutorEpoch {
    ExecutorEpoch { number, instance: EpochNonce::from_random(instance) }
}

fn hello(
    executor: &str,
    executor_store: u64,
    executor_epoch: ExecutorEpoch,
    seen: Option<(Lineage, JournalHead)>,
) -> ExecutorMessage {
    let (executor, cluster, scope) =
        (name(executor), name("local"), ExecutorStoreId::from_random(executor_store));
    ExecutorMessage::Hello {
        executor,
        cluster,
        runtime: ClusterRuntime::Process,
        store: scope,
        epoch: executor_epoch,
        seen,
    }
}

impl DeciderFixture {
    /// Returns a rig with a journal in which the first term has started, durably.
    fn new() -> DeciderFixture {
        let now = Time::EPOCH + Duration::from_secs(1_000_000);
        let core = taken_over(settings(1), FleetState::new(Lineage::from_random(5)), None, now);
        let mut rig =
            DeciderFixture { core, now, journal: Vec::new(), durable: 0, tickets: 0, effects: Vec::new() };
        rig.commit();
        rig.sync();
        rig
    }

    /// Lets another decider take over; unanswered callers receive nothing more.
    fn take_over(
        &mut self,
        settings: DeciderSettings,
        fleet: FleetState,
        end: Option<&ChainCursor>,
        now: Time,
    ) {
        self.core = taken_over(settings, fleet, end, now);
        self.effects.clear();
    }

    /// Passes an input to the core. Returns whether more is due, or another decider has taken over.
    fn give(&mut self, input: CoreInput) -> bool {
        let mut is_so = false;
        for output in self.core.handle(self.now, input) {
            match output {
                CoreOutput::Effect(effect) => self.effects.push(effect),
                CoreOutput::Append(record) => self.journal.push(Arc::new(record)),
                CoreOutput::More | CoreOutput::Overtaken => is_so = true,
            }
        }
        is_so
    }

    /// Returns the effects since the last call.
    fn effects(&mut self) -> Vec<DeciderEffect> {
        std::mem::take(&mut self.effects)
    }

    /// Does due work and seals the commit.
    fn commit(&mut self) {
        while self.give(CoreInput::Work) {
            self.give(CoreInput::Seal);
        }
        self.give(CoreInput::Seal);
    }

    /// Makes everything durable.
    fn sync(&mut self) -> Vec<DeciderEffect> {
        let records = self.journal[self.durable..].to_vec();
        self.durable = self.journal.len();
        assert!(!self.give(CoreInput::Delivered(records)));
        self.effects()
    }

    fn settle(&mut self) -> Vec<DeciderEffect> {
        self.commit();
        self.sync()
    }

    fn request(&mut self, type_name: &str, data: &serde_json::Value) -> IntentRequest {
        self.tickets += 1;
        let intent =
            Intent::read(&format!("{type_name}.v1"), &data.to_string()).expect("known").expect("good");
        let id: IntentId = name(&format!("id-{}", self.tickets));
        IntentRequest {
            id,
            source: name("test"),
            actor: name("ann"),
            time: None,
            expect: None,
            claim: None,
            traceparent: None,
            extensions: ExtensionAttributes::default(),
            intent,
        }
    }

    fn ask(&mut self, request: &IntentRequest) -> RequestTicket {
        self.ask_with(request, UnchangedVerdict::default())
    }

    fn ask_with(&mut self, request: &IntentRequest, unchanged: UnchangedVerdict) -> RequestTicket {
        self.tickets += 1;
        let ticket = RequestTicket(self.tickets);
        self.give(CoreInput::Intent(ticket, Box::new(request.clone()), unchanged));
        ticket
    }

    fn must(&mut self, type_name: &str, data: &serde_json::Value) {
        let request = self.request(type_name, data);
        self.ask(&request);
    }

    fn cluster(&mut self) {
        self.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "process"}}));
        let total = json!({"cpu": 4000, "memory": 8u64 << 30, "disk": 0});
        self.must(
            "node.apply",
            &json!({"name": "n1", "cluster": "local", "spec": {"domain": "d", "resources": total}}),
        );
        self.settle();
    }

    fn plan_and_deployment(&mut self) {
        self.plan_and_deployment_with(&json!({}));
    }

    /// Creates a plan and a deployment, with more in the plan's spec.
    fn plan_and_deployment_with(&mut self, more: &serde_json::Value) {
        let auto =
            json!({"create": "automatic", "start": "automatic", "stop": "automatic", "delete": "automatic"});
        let payload =
            json!({"name": "app", "resources": {"cpu": 1000, "memory": 1}, "run": {"argv": ["app"]}});
        let mut spec = json!({"namespace": "ns", "service": "web", "payloads": [payload], "approval": auto});
        let more = more.as_object().cloned().unwrap_or_default();
        spec.as_object_mut().expect("an object").extend(more);
        self.must("plan.apply", &json!({"name": "web", "spec": spec}));
        self.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 1}}));
    }

    fn send(&mut self, connection: u64, message: ExecutorMessage) {
        self.give(CoreInput::ExecutorMessage(ChannelNumber(connection), message));
    }

    fn hello(&mut self, connection: u64, executor: &str, seen: Option<(Lineage, JournalHead)>) {
        self.give(CoreInput::Connected(ChannelNumber(connection), ConnectionToken::from_random(connection)));
        self.send(connection, hello(executor, SCOPE, epoch(1, 1), seen));
    }

    /// Sends hello for an executor store, in an epoch.
    fn hello_over(&mut self, connection: u64, store: u64, epoch: ExecutorEpoch) -> Vec<DeciderEffect> {
        self.give(CoreInput::Connected(ChannelNumber(connection), ConnectionToken::from_random(connection)));
        self.send(connection, hello("ex", store, epoch, None));
        self.settle()
    }

    /// Returns the types of facts in the journal, from the given record on.
    fn types(&self, from: usize) -> Vec<&'static str> {
        let records = &self.journal[from..];
        let events = records.iter().flat_map(|r| {
            r.events().map(|(_, line)| Event::read(line).expect("readable")).collect::<Vec<_>>()
        });
        events.map(|event| event.type_name()).collect()
    }
}

fn sent(effects: &[DeciderEffect]) -> Vec<&DeciderMessage> {
    effects.iter().filter_map(|e| if let DeciderEffect::Send(_, m) = e { Some(&**m) } else { None }).collect()
}

fn answers(effects: &[DeciderEffect]) -> Vec<(RequestTicket, u64, Option<RefusalCode>)> {
    let answer = |e: &DeciderEffect| match e {
        DeciderEffect::Answer(ticket, v) => {
            Some((*ticket, v.position.get(), v.result.as_ref().as_ref().err().map(|r| r.code)))
        }
        DeciderEffect::Send(..) | DeciderEffect::Close(_) => None,
    };
    effects.iter().filter_map(answer).collect()
}

#[test]
fn nothing_decided_on_state_that_is_not_durable_leaves_the_decider() {
    let mut rig = DeciderFixture::new();
    let body = json!({"name": "c", "spec": {"runtime": "process"}});
    let request = rig.request("cluster.apply", &body);
    let first = rig.ask(&request);
    let repeat = rig.ask(&request);
    let refused = rig.request("cluster.delete", &json!({"name": "nowhere"}));
    let third = rig.ask(&refused);
    assert!(rig.effects().is_empty(), "not before the intent is in the journal");
    rig.commit();
    assert!(rig.effects().is_empty(), "not before the record is durable");
    let effects = rig.sync();
    assert_eq!(
        answers(&effects),
        [(first, 3, None), (repeat, 3, None), (third, 6, Some(RefusalCode::NotFound))]
    );
}

#[test]
fn the_time_is_recorded_when_nothing_else_has_been_for_long_and_not_before() {
    let mut rig = DeciderFixture::new();
    let (began, every) = (rig.now, Duration::from_hours(24));
    rig.core.record_time_every(every);
    let types = |rig: &DeciderFixture| -> Vec<&'static str> {
        let lines = rig.journal.iter().flat_map(|record| record.events().map(|(_, line)| line.to_vec()));
        lines.map(|line| Event::read(&line).expect("an event").type_name()).collect()
    };
    let count = |rig: &DeciderFixture| types(rig).iter().filter(|name| **name == "time.recorded.v1").count();
    assert_eq!(rig.core.next_due(), Some(began + every));
    rig.now = began + every.saturating_sub(Duration::from_secs(1));
    rig.cluster();
    rig.settle();
    rig.now = began + every;
    rig.settle();
    assert_eq!(count(&rig), 0, "another record was written");
    for day in 1..=3 {
        rig.now = began + every * (day + 1);
        rig.settle();
        rig.settle();
        assert_eq!(count(&rig), day as usize, "once a day");
    }
    let last = rig.journal.last().expect("a record").header().time;
    assert_eq!(last, rig.now);
}

#[test]
fn an_intent_that_changes_nothing_is_recorded_only_on_request() {
    let mut rig = DeciderFixture::new();
    let spec = |score: u32| json!({"name": "gpu", "spec": {"type": "GPU", "score": score}});
    rig.must("capability.apply", &spec(1));
    rig.settle();
    let head = rig.core.durable().position;

    let same = rig.request("capability.apply", &spec(1));
    for _ in 0..3 {
        let ticket = rig.ask(&same);
        assert_eq!(answers(&rig.effects()), [(ticket, head.get(), None)], "immediately, from the state");
        rig.settle();
        assert_eq!(rig.core.durable().position, head, "nothing is recorded");
    }
    // On a state that is not durable, the answer waits like any other.
    let inactive = json!({"name": "gpu", "activity": "inactive"});
    rig.must("capability.set_activity", &inactive);
    rig.ask(&same);
    assert_eq!(answers(&rig.effects()), []);
    let last = answers(&rig.settle()).pop().expect("an answer");
    assert_eq!(last.1, rig.core.durable().position.get(), "the position of the state");

    // Its key was not used: once the same intent changes something, it is decided and recorded.
    rig.must("capability.apply", &spec(2));
    rig.settle();
    let before = rig.core.durable().position;
    rig.ask(&same);
    let [(_, verdict, None)] = answers(&rig.settle())[..] else { panic!("an accepted intent") };
    assert_eq!(verdict, before.get() + 2, "it is recorded, and changes the score back");

    let kept = rig.request("capability.apply", &spec(1));
    rig.ask_with(&kept, UnchangedVerdict::Recorded);
    let first = answers(&rig.settle());
    assert_eq!(rig.core.durable().position.get(), first[0].1, "intent and verdict are recorded");
    for unchanged in [UnchangedVerdict::Recorded, UnchangedVerdict::Unrecorded] {
        rig.ask_with(&kept, unchanged);
        assert_eq!(answers(&rig.settle())[0].1, first[0].1, "a repeat gets the recorded verdict");
    }
}

#[test]
fn a_repeat_gets_the_first_verdict_after_a_restart_too() {
    let mut rig = DeciderFixture::new();
    let request = rig.request("cluster.delete", &json!({"name": "nowhere"}));
    rig.ask(&request);
    let first = answers(&rig.settle());
    let head = rig.core.durable();
    let fleet = FleetSnapshot::of(rig.core.fleet()).fleet();
    let end = ChainCursor {
        position: head.position,
        hash: head.hash,
        term: head.term,
        writer: WriterId::from_random(1),
        lineage: fleet.lineages().current,
        time: rig.now,
    };
    rig.take_over(settings(2), fleet, Some(&end), rig.now);
    rig.settle();
    rig.ask(&request);
    let mut changed = request.clone();
    changed.expect = Some(ExpectedVersion::Exactly(7));
    rig.ask(&changed);
    let second = answers(&rig.settle());
    assert_eq!((second[0].1, second[0].2), (first[0].1, first[0].2));
    assert_eq!(second[1].2, Some(RefusalCode::IdempotencyKeyReused));
}

#[test]
fn a_takeover_starts_the_next_term_on_the_existing_chain() {
    let rig = DeciderFixture::new();
    let first = rig.journal[0].header();
    assert_eq!((first.term.get(), first.starts, first.prev), (1, Some(RecordStart::Term), RecordHash::ZERO));
    assert_eq!(rig.types(0), ["term.started.v1"]);
}

#[test]
fn a_record_of_another_writer_ends_the_decider() {
    let mut rig = DeciderFixture::new();
    let mut other = DeciderFixture::new();
    other.must("cluster.apply", &json!({"name": "c", "spec": {"runtime": "process"}}));
    other.commit();
    rig.must("cluster.apply", &json!({"name": "d", "spec": {"runtime": "process"}}));
    rig.commit();
    assert!(rig.give(CoreInput::Delivered(other.journal[1..].to_vec())));
}

#[test]
fn deadlines_wait_a_lease_after_a_takeover() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    rig.plan_and_deployment();
    rig.settle();
    let fleet = FleetSnapshot::of(rig.core.fleet()).fleet();
    let head = rig.core.durable();
    let lineage = fleet.lineages().current;
    let (position, hash, term) = (head.position, head.hash, head.term);
    let end = ChainCursor { position, hash, term, writer: WriterId::from_random(1), lineage, time: rig.now };
    let later = rig.now + Duration::from_hours(1);
    rig.take_over(settings(2), fleet, Some(&end), later);
    rig.now = later;
    let before = rig.journal.len();
    rig.settle();
    assert_eq!(
        rig.types(before),
        ["term.started.v1"],
        "the start is overdue, and its executor has a lease to report it"
    );
    assert_eq!(rig.core.next_due(), Some(later + LEASE));
    rig.now = later + LEASE;
    rig.settle();
    assert!(rig.types(before).contains(&"incarnation.stop_requested.v1"));
}

#[test]
fn commits_stay_within_their_bounds() {
    let mut rig = DeciderFixture::new();
    rig.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "process"}}));
    for i in 0..1500 {
        let total = json!({"cpu": 4000, "memory": 8u64 << 30, "disk": 0});
        rig.must(
            "node.apply",
            &json!({"name": format!("n{i}"), "cluster": "local", "spec": {"domain": "d", "resources": total}}),
        );
    }
    rig.plan_and_deployment();
    rig.settle();
    assert!(rig.journal.len() > 5);
    for record in &rig.journal {
        assert!(record.header().count <= 1000 && record.bytes().len() <= 1 << 20);
    }
    let mut next = Position::FIRST;
    for record in &rig.journal {
        assert_eq!(record.first(), next);
        next = record.last().plus(1);
    }
}

#[test]
fn ten_thousand_replicas_are_decided_in_portions_and_an_intent_that_arrives_meanwhile_is_next() {
    let mut rig = DeciderFixture::new();
    let auto =
        json!({"create": "automatic", "start": "automatic", "stop": "automatic", "delete": "automatic"});
    let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": {"argv": ["app"]}});
    let spec = json!({"namespace": "ns", "service": "web", "payloads": [payload], "approval": auto, "sharing": "allowed"});
    rig.cluster();
    rig.must("plan.apply", &json!({"name": "web", "spec": spec}));
    let count = json!({"plan": "web", "name": "d1", "spec": {"count": REPLICAS}});
    rig.must("deployment.create", &count);
    rig.sync();
    let (mut turns, before) = (0, rig.journal.len());
    loop {
        turns += 1;
        let request = rig.request("plan.delete", &json!({"name": format!("none-{turns}")}));
        let at = rig.journal.len();
        let ticket = rig.ask(&request);
        let left = rig.give(CoreInput::Work);
        rig.give(CoreInput::Seal);
        assert!(rig.journal.len() - at <= 2, "one turn made {} commits", rig.journal.len() - at);
        let effects = rig.sync();
        let answered = answers(&effects);
        assert!(answered.iter().any(|(asked, ..)| *asked == ticket), "the answer waits for no other input");
        if !left {
            break;
        }
    }
    assert_eq!(rig.core.fleet().replicas().sorted().len(), REPLICAS as usize);
    assert!(turns > 50 && rig.journal.len() - before > 50, "{turns} turns");
    assert!(rig.journal.iter().all(|record| record.header().count <= 1000));
}

#[test]
fn a_full_report_of_five_hundred_ends_is_folded_whole() {
    let mut rig = DeciderFixture::new();
    rig.must("cluster.apply", &json!({"name": "local", "spec": {"runtime": "process"}}));
    let total = json!({"cpu": 4_000_000, "memory": 8u64 << 30, "disk": 0});
    rig.must(
        "node.apply",
        &json!({"name": "n1", "cluster": "local", "spec": {"domain": "d", "resources": total}}),
    );
    let auto =
        json!({"create": "automatic", "start": "automatic", "stop": "automatic", "delete": "automatic"});
    let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": {"argv": ["app"]}});
    let spec = json!({"namespace": "ns", "service": "web", "payloads": [payload], "approval": auto, "sharing": "allowed"});
    rig.must("plan.apply", &json!({"name": "web", "spec": spec}));
    rig.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 500}}));
    rig.settle();
    rig.hello(1, "ex", None);
    rig.settle();
    let ids: Vec<_> =
        rig.core.fleet().incarnations().sorted().iter().map(|incarnation| incarnation.id).collect();
    assert_eq!(ids.len(), 500);
    let exit = chancery_events::observation::IncarnationExit::Failed { reason: "gone".into() };
    let observed = ObservedState::Ended { exit, processes: vec![] };
    let reports = ids
        .iter()
        .map(|id| ObjectReport { object: (*id).into(), revision: 1, observed: observed.clone() })
        .collect();
    rig.send(
        1,
        ExecutorMessage::FullReport {
            connection: ConnectionToken::from_random(1),
            reports,
            part: ReportPart::Last,
        },
    );
    rig.settle();
    let live = rig
        .core
        .fleet()
        .incarnations()
        .sorted()
        .into_iter()
        .filter(|incarnation| incarnation.is_live())
        .count();
    assert_eq!(live, 0);
    assert!(rig.journal.iter().all(|record| record.header().count <= 1000));
}

/// Returns a core with an impossible state: the plan is deleted, and its replica is not.
fn torn() -> DeciderFixture {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    let payload = json!({"name": "app", "resources": {"cpu": 1000, "memory": 1}, "run": {"argv": ["app"]}});
    let spec = json!({"namespace": "ns", "service": "web", "payloads": [payload]});
    rig.must("plan.apply", &json!({"name": "web", "spec": spec}));
    rig.must("deployment.create", &json!({"plan": "web", "name": "d1", "spec": {"count": 1}}));
    rig.settle();
    let mut image = serde_json::to_value(FleetSnapshot::of(rig.core.fleet())).expect("an image");
    image["plans"] = json!([]);
    let fleet = serde_json::from_value::<FleetSnapshot>(image).expect("an image").fleet();
    let JournalHead { position, hash, term } = rig.core.durable();
    let (writer, lineage) = (WriterId::from_random(1), fleet.lineages().current);
    let end = ChainCursor { position, hash, term, writer, lineage, time: rig.now };
    rig.take_over(settings(2), fleet, Some(&end), rig.now);
    rig.settle();
    rig
}

#[test]
fn an_input_that_cannot_be_folded_is_undone_and_refused_and_the_next_is_processed() {
    let mut rig = torn();
    let replica = rig.core.fleet().replicas().sorted()[0].name.clone();
    let shown = |rig: &DeciderFixture| {
        let mut image = serde_json::to_value(FleetSnapshot::of(rig.core.fleet())).expect("an image");
        for moved in ["head", "keys"] {
            image["fields"][moved] = json!(null);
        }
        image
    };
    let before = shown(&rig);
    let bad = rig.request("replica.delete", &json!({"name": replica}));
    let first = rig.ask(&bad);
    let good = rig.request("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": 1}}));
    let second = rig.ask(&good);
    assert_eq!(rig.core.fleet().replicas().len(), 1, "no fact of it is kept");
    let from = rig.journal.len();
    let effects = rig.settle();
    let answered: Vec<_> = answers(&effects).into_iter().map(|(ticket, _, code)| (ticket, code)).collect();
    assert_eq!(answered, [(first, Some(RefusalCode::Internal)), (second, None)]);
    let types = [
        "replica.delete.v1",
        "intent.refused.v1",
        "capability.apply.v1",
        "intent.accepted.v1",
        "capability.applied.v1",
    ];
    assert_eq!(rig.types(from), types, "only the refusal is recorded, and no fact that could not be folded");
    let mut after = shown(&rig);
    after["capabilities"] = json!([]);
    assert_eq!(before, after);
}

#[test]
fn an_entity_on_which_a_step_fails_is_quarantined_by_a_fact_once_and_others_are_worked_on() {
    let mut rig = torn();
    let from = rig.journal.len();
    rig.now = rig.now + Duration::from_hours(25);
    rig.settle();
    assert_eq!(rig.types(from), ["entity.quarantined.v1"], "its expiry cannot be folded: it is quarantined");
    rig.now = rig.now + Duration::from_hours(25);
    rig.settle();
    assert_eq!(rig.types(from).len(), 1, "no second attempt");
    rig.must("capability.apply", &json!({"name": "c", "spec": {"type": "T", "score": 1}}));
    assert_eq!(answers(&rig.settle())[0].2, None);
}

/// Finds due work, but panics on the plan `web`.
fn stumbling(fleet: &FleetState, agenda: &mut AdvanceState, ctx: &DecisionContext) -> Option<DueStep> {
    let web = Subject::Plan(name("web"));
    let due = fleet.index().due.contains("web") && !agenda.is_quarantined(&web);
    if due {
        agenda.turn_to(&web, fleet.head());
        panic!("deliberate panic");
    }
    advance(fleet, agenda, ctx)
}

#[test]
fn an_entity_that_cannot_even_be_checked_is_quarantined_by_a_fact_and_others_are_worked_on() {
    let mut rig = DeciderFixture::new();
    rig.cluster();
    rig.core.advance = stumbling;
    rig.plan_and_deployment();
    let payload = json!({"name": "app", "resources": {"cpu": 1, "memory": 1}, "run": {"argv": ["app"]}});
    let spec = json!({"namespace": "ns", "service": "other", "payloads": [payload]});
    rig.must("plan.apply", &json!({"name": "other", "spec": spec}));
    rig.must("deployment.create", &json!({"plan": "other", "name": "d1", "spec": {"count": 1}}));
    let from = rig.journal.len();
    rig.settle();
    let types = rig.types(from);
    let count = |wanted: &str| types.iter().filter(|found| **found == wanted).count();
    assert_eq!((count("entity.quarantined.v1"), count("incarnation.reserved.v1")), (1, 1), "{types:?}");
    let parked = rig.core.fleet().plans().get("web").and_then(|plan| plan.quarantined.clone());
    assert_eq!(parked.as_deref(), Some("deliberate panic"));
    let from = rig.journal.len();
    rig.settle();
    assert_eq!(rig.types(from), Vec::<&str>::new(), "no second attempt");
}
