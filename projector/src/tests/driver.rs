//! Small decider for tests: random intents, reports and time, by a seed, into a journal in memory.

#![allow(clippy::disallowed_macros, reason = "a test prints what it found")]

use std::sync::Arc;
use std::time::Duration;

use chancery_events::event::Event;
use chancery_events::extension::ExtensionAttributes;
use chancery_events::fact::Fact;
use chancery_events::id::{Lineage, Position, Term, WriterId};
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::name::ExecutorName;
use chancery_events::observation::Observation;
use chancery_events::record::{Record, RecordDraft};
use chancery_events::time::Time;
use chancery_journal::memory::MemoryLog;
use chancery_journal::{ChainCursor, JournalReader, WriterIdentity, genesis};
use chancery_machine::advance::{AdvanceState, advance};
use chancery_machine::context::{DecisionContext, LevelLimits};
use chancery_machine::decide::{decide, evolve, observe, pass, verdict};
use chancery_machine::fleet::FleetState;
use chancery_machine::meta::FactPosition;
use chancery_machine::state::IncarnationState;
use serde_json::{Value, json};

pub(crate) const FLEET: &str = "default";

pub(crate) struct TestDriver {
    pub(crate) fleet: FleetState,
    pub(crate) log: MemoryLog,
    pub(crate) records: Vec<Arc<Record>>,
    agenda: AdvanceState,
    cursor: Option<ChainCursor>,
    by: WriterIdentity,
    lineage: Lineage,
    now: Time,
    draft: RecordDraft,
    next: Position,
    seed: u64,
    asked: u64,
    pub(crate) contradictions: u64,
    /// Events from which a record is made, unless a test seals it.
    pub(crate) record_events: u32,
}

impl TestDriver {
    pub(crate) fn new(seed: u64) -> TestDriver {
        let lineage = Lineage::from_random(seed + 7);
        let mut this = TestDriver {
            fleet: FleetState::new(lineage),
            log: MemoryLog::new(FLEET),
            records: Vec::new(),
            agenda: AdvanceState::new(Time::EPOCH),
            cursor: None,
            by: WriterIdentity {
                fleet: FLEET.into(),
                build: "test".into(),
                writer: WriterId::from_random(1),
            },
            lineage,
            now: Time::EPOCH + Duration::from_secs(1_000_000),
            draft: RecordDraft::new(),
            next: Position::FIRST,
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            asked: 0,
            contradictions: 0,
            record_events: 100,
        };
        let started = Fact::read("term.started.v1", "{}").expect("a type").expect("data");
        this.put(&[Event::Fact { cause: Position::ZERO, fact: started }]);
        this.seal();
        this
    }

    pub(crate) fn source(&self) -> Arc<dyn JournalReader> {
        self.log.source()
    }

    /// Returns the number of intents.
    pub(crate) fn asked(&self) -> u64 {
        self.asked
    }

    /// Returns a number below `bound`, by the seed (xorshift64*).
    pub(crate) fn pick(&mut self, bound: usize) -> usize {
        self.seed ^= self.seed >> 12;
        self.seed ^= self.seed << 25;
        self.seed ^= self.seed >> 27;
        (self.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    /// Puts all events or none: a contradiction is undone, as in the decider.
    fn put(&mut self, events: &[Event]) {
        let (mark, next) = (self.draft.mark(), self.next);
        self.fleet.savepoint();
        for event in events {
            self.draft.push(&event.line()).expect("space");
            let at = FactPosition {
                position: self.next,
                time: self.now,
                term: Term::FIRST,
                lineage: self.lineage,
            };
            let folded = match event {
                Event::Fact { fact, .. } => evolve(&mut self.fleet, fact, at),
                Event::Intent(_) | Event::Observation { .. } => {
                    pass(&mut self.fleet, self.next);
                    Ok(())
                }
            };
            if let Err(contradiction) = folded {
                println!("contradiction: {contradiction}\n  in {events:#?}");
                self.fleet.roll_back();
                self.draft.back_to(mark);
                self.next = next;
                self.contradictions += 1;
                return;
            }
            self.next = self.next.plus(1);
        }
        self.fleet.settle();
    }

    /// Makes a record of the draft.
    pub(crate) fn seal(&mut self) {
        if self.draft.is_empty() {
            return;
        }
        let parts = match &self.cursor {
            None => genesis(&self.by, self.now, self.lineage),
            Some(at) => at.follow(&self.by, self.now, None),
        };
        let record = std::mem::take(&mut self.draft).seal(parts).expect("sealed");
        self.append(record);
    }

    pub(crate) fn append(&mut self, record: Record) {
        self.cursor = Some(ChainCursor::after(&record));
        self.log.inject(record.bytes().clone());
        self.records.push(Arc::new(record));
    }

    fn context(&self, ahead: u64) -> DecisionContext {
        let actor = Some("tester".parse().expect("an actor"));
        DecisionContext {
            now: self.now,
            wall: self.now,
            next: self.next.plus(ahead),
            lineage: self.lineage,
            actor,
            replicas: u32::MAX,
            levels: LevelLimits::ALONE,
        }
    }

    /// Submits an intent, sensible or not. Returns whether it was accepted.
    pub(crate) fn ask(&mut self, type_name: &str, body: &Value) -> bool {
        let intent = Intent::read(type_name, &body.to_string()).expect("a type").expect("a body");
        self.asked += 1;
        let request = IntentRequest {
            id: format!("intent-{}", self.asked).parse().expect("an id"),
            source: "test".parse().expect("a source"),
            actor: "tester".parse().expect("an actor"),
            time: None,
            expect: None,
            claim: None,
            traceparent: None,
            extensions: ExtensionAttributes::default(),
            intent,
        };
        let (cause, context) = (self.next, self.context(2));
        let decided = decide(&self.fleet, &request, &context);
        let verdict_fact = verdict(&self.fleet, &request, &decided, &context);
        let is_accepted = decided.is_ok();
        let mut events = vec![Event::Intent(request), Event::Fact { cause, fact: verdict_fact }];
        events.extend(decided.unwrap_or_default().into_iter().map(|fact| Event::Fact { cause, fact }));
        self.put(&events);
        self.seal_if_full();
        is_accepted
    }

    pub(crate) fn see(&mut self, type_name: &str, body: &Value) {
        let seen = Observation::read(type_name, &body.to_string()).expect("a type").expect("a body");
        let (cause, context) = (self.next, self.context(1));
        let facts = observe(&self.fleet, &seen, &context);
        if facts.is_empty() {
            return;
        }
        let by: ExecutorName = "exec-1".parse().expect("a name");
        let mut events = vec![Event::Observation { by, observation: seen }];
        events.extend(facts.into_iter().map(|fact| Event::Fact { cause, fact }));
        self.put(&events);
        self.seal_if_full();
    }

    /// Does up to `steps` steps of due work.
    pub(crate) fn work(&mut self, steps: usize) {
        for _ in 0..steps {
            let context = self.context(0);
            let Some(step) = advance(&self.fleet, &mut self.agenda, &context) else { return };
            let contradictions = self.contradictions;
            let events: Vec<_> =
                step.facts.into_iter().map(|fact| Event::Fact { cause: step.cause, fact }).collect();
            self.put(&events);
            if self.contradictions > contradictions {
                self.agenda.quarantine(step.subject);
            }
            self.seal_if_full();
        }
    }

    fn seal_if_full(&mut self) {
        if self.draft.count() > self.record_events {
            self.seal();
        }
    }

    pub(crate) fn pass_time(&mut self, span: Duration) {
        self.seal();
        self.now = self.now + span;
    }

    /// Creates two clusters with an executor each, capabilities, nodes; plans approved by people and by rule.
    pub(crate) fn found(&mut self, nodes: usize, plans: usize) {
        for cluster in ["east", "west"] {
            self.ask("cluster.apply.v1", &json!({ "name": cluster, "spec": { "runtime": "simulated" } }));
            let executor = format!("exec-{cluster}");
            self.see(
                "session.requested.v1",
                &json!({ "cluster": cluster, "executor": executor, "runtime": "simulated", "store": "0000000000000001" }),
            );
        }
        for gpu in ["v100", "h100"] {
            self.ask(
                "capability.apply.v1",
                &json!({ "name": gpu, "spec": { "type": "GPU", "score": gpu.len() } }),
            );
        }
        for n in 0..nodes {
            self.apply_node(n, 64);
        }
        for n in 0..plans {
            self.apply_plan(n, if n % 2 == 0 { "automatic" } else { "manual" });
        }
        self.seal();
    }

    pub(crate) fn apply_node(&mut self, n: usize, cores: u64) {
        let cluster = if n.is_multiple_of(2) { "east" } else { "west" };
        let gpus = if n.is_multiple_of(3) { json!(["v100"]) } else { json!([]) };
        self.ask(
            "node.apply.v1",
            &json!({ "name": format!("node-{n}"), "cluster": cluster, "spec": {
            "domain": format!("rack-{}", n % 4), "zone": format!("zone-{}", n % 2),
            "labels": { "disk": if n.is_multiple_of(2) { "ssd" } else { "hdd" } },
            "resources": { "cpu": cores * 1000, "memory": cores << 30, "disk": 1_u64 << 40 },
            "capabilities": gpus, "storage": [{ "class": "fast", "capacity": 1_u64 << 40 }],
        } }),
        );
    }

    pub(crate) fn apply_plan(&mut self, n: usize, approval: &str) {
        let approvals = json!({ "create": approval, "start": approval, "stop": approval, "delete": approval,
            "update": approval, "relocate": approval, "restart": approval });
        let claims =
            json!([{ "on_delete": "destroy", "class": "fast", "capacity": 1 << 20, "mount": "/data" }]);
        self.ask(
            "plan.apply.v1",
            &json!({ "name": format!("plan-{n}"), "spec": {
            "namespace": format!("team-{}", n % 2), "service": format!("service-{n}"), "sharing": "allowed",
            "payloads": [{ "name": "web", "resources": { "cpu": 1000, "memory": 1 << 20, "disk": 0 },
                "volumes": if n % 4 == 3 { claims } else { json!([]) } }],
            "approval": approvals, "timeouts": { "approval": 60_000, "start": 5_000, "stop": 1_000 },
        } }),
        );
    }

    pub(crate) fn deploy(&mut self, plan: usize, name: &str, count: usize) -> bool {
        let body = json!({ "plan": format!("plan-{plan}"), "name": name, "spec": { "count": count } });
        self.ask("deployment.create.v1", &body)
    }

    /// Works until nothing is due, while every incarnation starts immediately.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1000 {
            let head = self.next;
            self.work(1000);
            let coming: Vec<_> = self
                .fleet
                .incarnations()
                .sorted()
                .into_iter()
                .filter(|i| {
                    matches!(
                        i.state,
                        IncarnationState::Creating
                            | IncarnationState::Starting
                            | IncarnationState::Stopping(_)
                    )
                })
                .map(|i| i.id)
                .collect();
            for id in coming {
                self.report(id, 7);
            }
            if self.next == head {
                break;
            }
        }
        self.seal();
    }
}
