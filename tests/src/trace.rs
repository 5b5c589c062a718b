//! Journals written by hand, event by event, for the checker to judge and the model to fold.

use chancery_events::event::Event;
use chancery_events::extension::ExtensionAttributes;
use chancery_events::fact::Fact;
use chancery_events::id::{IncarnationId, Lineage, OperationId, Position, SessionId, Term, WriterId};
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::name::ReplicaName;
use chancery_events::observation::Observation;
use chancery_events::record::{HeaderParts, InboxWatermark, Record, RecordDraft, RecordHash, RecordStart};
use chancery_events::time::Time;
use serde_json::{Value, json};

pub(crate) const HASH: &str = "0000000000000000000000000000abcd";
pub(crate) const TOPIC: &str = "tests.inbox/1/0";
pub(crate) const BEGAN: i64 = 1_795_251_600_000_000;

/// Draft of a commit: its events, and how it claims to continue the previous one.
#[derive(Clone)]
pub(crate) struct Commit {
    pub(crate) events: Vec<Event>,
    pub(crate) starts: bool,
    pub(crate) term: u64,
    pub(crate) writer: u64,
    pub(crate) seconds: i64,
    /// Number of positions left out before the commit.
    pub(crate) gap: u64,
    pub(crate) breaks_chain: bool,
    /// Watermark of the inbox, if the commit has one.
    pub(crate) answered: Option<u64>,
}

/// Draft of a journal, with the ids that it issued last.
pub(crate) struct JournalTrace {
    pub(crate) commits: Vec<Commit>,
    next: u64,
    asked: u64,
    pub(crate) replica: String,
    pub(crate) operation: Option<OperationId>,
    pub(crate) incarnation: Option<IncarnationId>,
    pub(crate) session: Option<SessionId>,
}

pub(crate) fn lineage() -> Lineage {
    Lineage::from_random(0x00c0_ffee)
}

impl JournalTrace {
    fn new() -> JournalTrace {
        let mut trace = JournalTrace {
            commits: Vec::new(),
            next: 1,
            asked: 0,
            replica: String::new(),
            operation: None,
            incarnation: None,
            session: None,
        };
        trace.begin(1);
        trace
    }

    /// Adds a takeover.
    pub(crate) fn begin(&mut self, term: u64) {
        self.commit();
        let last = self.commits.last_mut().expect("a commit");
        (last.starts, last.term, last.writer) = (true, term, term);
        let here = self.next;
        self.fact(here, "term.started.v1", &json!({}));
        self.commit();
    }

    /// Closes the commit.
    pub(crate) fn commit(&mut self) {
        let (term, writer, seconds) =
            self.commits.last().map_or((1, 1, 0), |c| (c.term, c.writer, c.seconds + 1));
        let events = Vec::new();
        self.commits.push(Commit {
            events,
            starts: false,
            term,
            writer,
            seconds,
            gap: 0,
            breaks_chain: false,
            answered: None,
        });
    }

    fn push(&mut self, event: Event) -> u64 {
        self.commits.last_mut().expect("a commit").events.push(event);
        self.next += 1;
        self.next - 1
    }

    pub(crate) fn fact(&mut self, cause: u64, type_name: &str, data: &Value) -> u64 {
        let fact = Fact::read(type_name, &data.to_string()).expect("a type").expect("its data");
        self.push(Event::Fact { cause: Position::new(cause), fact })
    }

    /// Commits refusals of the inbox messages at these offsets.
    pub(crate) fn refuse_messages(&mut self, offsets: &[u64], answered: u64) {
        for offset in offsets {
            let data = json!({"topic": TOPIC, "offset": offset, "code": "invalid", "detail": "no"});
            self.fact(self.next, "inbox.message_refused.v1", &data);
        }
        self.commits.last_mut().expect("a commit").answered = Some(answered);
        self.commit();
    }

    /// Adds an intent of `ann` without a verdict.
    pub(crate) fn intent(&mut self, id: &str, type_name: &str, data: &Value) -> u64 {
        let intent = Intent::read(type_name, &data.to_string()).expect("a type").expect("its data");
        let [id, source, actor] = [id, "tests", "ann"].map(str::to_owned);
        let (id, source) = (id.parse().expect("an id"), source.parse().expect("a source"));
        let actor = actor.parse().expect("an actor");
        let request = IntentRequest {
            id,
            source,
            actor,
            time: None,
            expect: None,
            claim: None,
            traceparent: None,
            extensions: ExtensionAttributes::default(),
            intent,
        };
        self.push(Event::Intent(request))
    }

    /// Accepts an intent.
    pub(crate) fn accept(&mut self, intent: u64, outcome: &str) -> u64 {
        let request = self.request(intent);
        let (key, digest) = (request.key(), request.digest());
        let data = json!({"key": key, "digest": digest, "at": BEGAN, "outcome": outcome});
        self.fact(intent, "intent.accepted.v1", &data)
    }

    pub(crate) fn refuse(&mut self, intent: u64, code: &str) -> u64 {
        let request = self.request(intent);
        let (key, digest) = (request.key(), request.digest());
        let data = json!({"key": key, "digest": digest, "at": BEGAN, "code": code, "detail": "no"});
        self.fact(intent, "intent.refused.v1", &data)
    }

    pub(crate) fn request(&self, intent: u64) -> IntentRequest {
        let mut events = self.commits.iter().flat_map(|commit| &commit.events);
        match events.nth(intent as usize - 1) {
            Some(Event::Intent(request)) => request.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Adds an accepted intent of `ann`.
    pub(crate) fn ask(&mut self, type_name: &str, data: &Value) -> u64 {
        self.asked += 1;
        let id = format!("id-{}", self.asked);
        let intent = self.intent(&id, type_name, data);
        self.accept(intent, "changed");
        intent
    }

    pub(crate) fn observed(&mut self, type_name: &str, data: &Value) -> u64 {
        let observation = Observation::read(type_name, &data.to_string()).expect("a type").expect("its data");
        self.push(Event::Observation { by: "local-1".parse().expect("a name"), observation })
    }

    /// Adds a report about the last incarnation, in the last session.
    pub(crate) fn report(&mut self, revision: u32, observed: &Value) -> u64 {
        let report = json!({"incarnation": self.incarnation, "revision": revision, "observed": observed});
        self.observed("incarnation.reported.v1", &json!({"session": self.session, "report": report}))
    }

    pub(crate) fn open_operation(&mut self, cause: u64, data: &Value) {
        let position = self.fact(cause, "operation.created.v1", data);
        self.operation = Some(OperationId::issue(lineage(), Position::new(position)));
    }

    pub(crate) fn reserve(&mut self, amount: u64) {
        let cause = self.next - 1;
        let data = json!({
            "operation": self.operation, "replica": self.replica, "node": "n1", "deployment": "d1",
            "resources": {"cpu": amount, "memory": amount}, "proposal": proposal(BEGAN + 3_600_000_000),
        });
        let position = self.fact(cause, "incarnation.reserved.v1", &data);
        self.incarnation = Some(IncarnationId::issue(lineage(), Position::new(position)));
    }

    /// Approves the last operation, as `ann`.
    pub(crate) fn approve(&mut self, hash: &str) {
        let shown = json!({"operation": self.operation, "hash": hash});
        let asked = self.ask("operation.approve.v1", &json!({"operations": [shown]}));
        let data = json!({
            "operation": self.operation, "replica": self.replica, "approved_by": {"actor": "ann"}, "hash": hash,
            "incarnation": self.incarnation,
        });
        self.fact(asked, "operation.approved.v1", &data);
    }

    pub(crate) fn end_operation(&mut self, cause: u64, end: &Value) {
        let data = json!({"operation": self.operation, "replica": self.replica, "end": end});
        self.fact(cause, "operation.ended.v1", &data);
    }

    pub(crate) fn end_incarnation(&mut self, cause: u64, end: &Value) {
        let data =
            json!({"incarnation": self.incarnation, "replica": self.replica, "node": "n1", "end": end});
        self.fact(cause, "incarnation.ended.v1", &data);
    }

    pub(crate) fn last(&self) -> u64 {
        self.next - 1
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        let (mut records, mut first, mut prev) = (Vec::new(), 1, RecordHash::ZERO);
        for commit in self.commits.iter().filter(|commit| !commit.events.is_empty()) {
            let mut draft = RecordDraft::new();
            for event in &commit.events {
                draft.push(&event.line()).expect("it fits");
            }
            first += commit.gap;
            let parts = HeaderParts {
                fleet: "default".into(),
                lineage: lineage(),
                first: Position::new(first),
                term: Term::new(commit.term),
                writer: WriterId::from_random(commit.writer),
                time: Time::from_micros(BEGAN + commit.seconds * 1_000_000),
                build: "test".into(),
                starts: commit.starts.then_some(RecordStart::Term),
                watermark: commit.answered.map(|next| InboxWatermark { topic: TOPIC.into(), next }),
                prev: if commit.breaks_chain { RecordHash::of(b"another") } else { prev },
            };
            let record = draft.seal(parts).expect("a record");
            (first, prev) = (record.last().get() + 1, record.hash());
            records.push(record);
        }
        records
    }
}

pub(crate) fn proposal(expires: i64) -> Value {
    json!({"hash": HASH, "expires": expires})
}

pub(crate) fn process() -> Value {
    json!([{"payload": "app", "index": 0, "pid": 7, "addresses": [], "status": "ready"}])
}

/// Point at which a trace ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum TraceStage {
    /// Node in a cluster with a session, and a plan in which people approve everything.
    Fleet,
    /// Deployment of one replica, started; its create is not placed yet.
    Deployed,
    Reserved,
    Approved,
    Started,
    Running,
    /// Stop requested by the user, not approved.
    StopAsked,
    Stopping,
    Stopped,
    /// Start requested by the user.
    StartAsked,
    /// Replica deleted before the start was approved.
    Deleted,
}

impl TraceStage {
    /// All stages, in order.
    pub(crate) const ALL: &[TraceStage] = &[
        TraceStage::Fleet,
        TraceStage::Deployed,
        TraceStage::Reserved,
        TraceStage::Approved,
        TraceStage::Started,
        TraceStage::Running,
        TraceStage::StopAsked,
        TraceStage::Stopping,
        TraceStage::Stopped,
        TraceStage::StartAsked,
        TraceStage::Deleted,
    ];
}

type TraceStep = fn(&mut JournalTrace);

/// Returns a valid trace, up to a stage.
pub(crate) fn trace(until: TraceStage) -> JournalTrace {
    let mut s = JournalTrace::new();
    let cause = s.ask("cluster.apply.v1", &json!({"name": "local", "spec": {"runtime": "process"}}));
    s.fact(cause, "cluster.applied.v1", &json!({"name": "local", "spec": {"runtime": "process"}}));
    s.commit();
    let spec = json!({"domain": "d1", "resources": {"cpu": 1000, "memory": 1000}, "reserved": {"cpu": 100}});
    let cause = s.ask("node.apply.v1", &json!({"name": "n1", "spec": spec, "cluster": "local"}));
    s.fact(cause, "node.applied.v1", &json!({"name": "n1", "spec": spec}));
    for to in ["allocating", "allocated"] {
        s.fact(cause, "node.state_changed.v1", &json!({"name": "n1", "state": to, "cluster": "local"}));
    }
    let hello =
        json!({"cluster": "local", "executor": "local-1", "runtime": "process", "store": "0000000000000001"});
    let cause = s.observed("session.requested.v1", &hello);
    let opened = s.fact(cause, "session.opened.v1", &hello);
    s.session = Some(SessionId::issue(lineage(), Position::new(opened)));
    s.commit();
    let payload =
        json!({"name": "app", "resources": {"cpu": 600, "memory": 600}, "run": {"argv": ["sleep"]}});
    let spec = json!({"namespace": "tests", "service": "web", "payloads": [payload], "sharing": "allowed"});
    let cause = s.ask("plan.apply.v1", &json!({"name": "web", "spec": spec}));
    s.fact(cause, "plan.applied.v1", &json!({"name": "web", "generation": 1, "spec": spec}));
    s.commit();
    let steps: [(TraceStage, TraceStep); 10] = [
        (TraceStage::Deployed, deploy),
        (TraceStage::Reserved, |s| s.reserve(600)),
        (TraceStage::Approved, |s| s.approve(HASH)),
        (TraceStage::Started, start),
        (TraceStage::Running, run),
        (TraceStage::StopAsked, ask_stop),
        (TraceStage::Stopping, stop),
        (TraceStage::Stopped, prove_end),
        (TraceStage::StartAsked, ask_start),
        (TraceStage::Deleted, delete),
    ];
    for (stage, step) in steps {
        if stage <= until {
            step(&mut s);
            s.commit();
        }
    }
    s
}

fn deploy(s: &mut JournalTrace) {
    let data = json!({"plan": "web", "name": "d1", "spec": {"count": 1}});
    let cause = s.ask("deployment.create.v1", &data);
    let data =
        json!({"plan": "web", "name": "d1", "generation": 1, "spec": {"count": 1}, "requested_by": "ann"});
    let cause = s.fact(cause, "deployment.created.v1", &data);
    let cause = s.fact(cause, "deployment.started.v1", &json!({"plan": "web", "name": "d1"}));
    s.replica = replica_at(s.next);
    let data = json!({"name": s.replica, "plan": "web", "deployment": "d1"});
    s.fact(cause, "replica.created.v1", &data);
    s.open_operation(cause, &json!({"replica": s.replica, "kind": "create", "deployment": "d1"}));
}

pub(crate) fn replica_at(position: u64) -> String {
    ReplicaName::issue(&"web".parse().expect("a service"), Position::new(position)).to_string()
}

fn start(s: &mut JournalTrace) {
    let mut processes = process();
    processes[0]["status"] = json!("starting");
    let cause = s.report(1, &json!({"started": {"processes": processes}}));
    let data = json!({"incarnation": s.incarnation, "replica": s.replica, "processes": processes});
    s.fact(cause, "incarnation.started.v1", &data);
}

fn run(s: &mut JournalTrace) {
    let cause = s.report(1, &json!({"ready": {"processes": process()}}));
    let data = json!({
        "incarnation": s.incarnation, "replica": s.replica, "operation": s.operation, "processes": process(),
    });
    s.fact(cause, "incarnation.running.v1", &data);
    let cause = s.last();
    s.fact(cause, "deployment.ended.v1", &json!({"plan": "web", "name": "d1", "end": "completed"}));
}

fn ask_stop(s: &mut JournalTrace) {
    let cause = s.ask("replica.stop.v1", &json!({"name": s.replica}));
    let proposal = proposal(BEGAN + 3_600_000_000);
    s.open_operation(cause, &json!({"replica": s.replica, "kind": "stop", "proposal": proposal}));
}

fn stop(s: &mut JournalTrace) {
    s.approve(HASH);
    s.commit();
    let cause = s.last();
    let data =
        json!({"incarnation": s.incarnation, "replica": s.replica, "effect": "kill", "end": "destroyed"});
    s.fact(cause, "incarnation.stop_requested.v1", &data);
}

fn prove_end(s: &mut JournalTrace) {
    let cause = s.report(3, &json!({"ended": {"exit": "clean", "processes": process()}}));
    s.end_incarnation(cause, &json!("destroyed"));
    s.end_operation(cause, &json!("succeeded"));
}

fn ask_start(s: &mut JournalTrace) {
    let cause = s.ask("replica.start.v1", &json!({"name": s.replica}));
    s.open_operation(cause, &json!({"replica": s.replica, "kind": "start"}));
    s.reserve(600);
}

fn delete(s: &mut JournalTrace) {
    let cause = s.ask("replica.delete.v1", &json!({"name": s.replica}));
    let by = OperationId::issue(lineage(), Position::new(s.next + 2));
    s.end_operation(cause, &json!({"superseded": {"successor": by}}));
    s.end_incarnation(cause, &json!({"unwound": {"reason": "its operation was superseded"}}));
    s.incarnation = None;
    let proposal = proposal(BEGAN + 3_600_000_000);
    s.open_operation(cause, &json!({"replica": s.replica, "kind": "delete", "proposal": proposal}));
    s.commit();
    s.approve(HASH);
    let cause = s.last();
    s.end_operation(cause, &json!("succeeded"));
    s.fact(cause, "replica.deleted.v1", &json!({"name": s.replica}));
}
