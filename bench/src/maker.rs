//! In-memory fleet for workloads of the pure machine: the decider without its loop. It may write its events
//! to a journal.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use chancery_events::event::Event;
use chancery_events::extension::ExtensionAttributes;
use chancery_events::fact::{Fact, TermStarted};
use chancery_events::id::{ExecutorStoreId, IncarnationId, Lineage, Position, Term, WriterId};
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::level::FleetLevel;
use chancery_events::observation::{
    IncarnationReport, IncarnationReported, Observation, ObservedState, ProcessInfo, ProcessStatus,
    SessionRequested,
};
use chancery_events::record::{Record, RecordDraft};
use chancery_events::spec::ClusterRuntime;
use chancery_events::time::Time;
use chancery_journal::{ChainCursor, WriterIdentity, genesis};
use chancery_machine::advance::{AdvanceState, advance};
use chancery_machine::context::{DecisionContext, LevelLimits};
use chancery_machine::decide::{decide, evolve, observe, pass};
use chancery_machine::fleet::FleetState;
use chancery_machine::meta::FactPosition;
use serde_json::{Value, json};

/// Cluster of all nodes.
pub(crate) const CLUSTER: &str = "sim";

/// Receiver of records, in order.
pub(crate) struct RecordReceiver {
    /// Approximate number of events in a record.
    pub(crate) record: u32,
    pub(crate) takes: Box<dyn FnMut(Record) -> Result<()>>,
}

/// Number of events in a record of a busy decider.
pub(crate) const BUSY: u32 = 500;

struct RecordWriter {
    draft: RecordDraft,
    end: Option<ChainCursor>,
    by: WriterIdentity,
    receiver: RecordReceiver,
}

/// Fleet of a workload, as described in the module.
pub(crate) struct FleetMaker {
    pub(crate) fleet: FleetState,
    writer: Option<RecordWriter>,
    agenda: AdvanceState,
    lineage: Lineage,
    now: Time,
    asked: u64,
}

impl FleetMaker {
    /// Returns a fleet with one simulated cluster, whose session an executor holds.
    pub(crate) fn new(receiver: Option<RecordReceiver>) -> Result<FleetMaker> {
        let lineage = Lineage::from_random(1);
        let now = Time::EPOCH + Duration::from_secs(1_000_000);
        let by =
            WriterIdentity { fleet: "bench".into(), build: "bench".into(), writer: WriterId::from_random(1) };
        let book =
            receiver.map(|pen| RecordWriter { draft: RecordDraft::new(), end: None, by, receiver: pen });
        let (fleet, agenda) = (FleetState::new(lineage), AdvanceState::new(now));
        let mut maker = FleetMaker { fleet, writer: book, agenda, lineage, now, asked: 0 };
        let fact = TermStarted { address: None, level: FleetLevel::HIGHEST }.into();
        maker.fold(&[Event::Fact { cause: Position::FIRST, fact }])?;
        maker.ask("cluster.apply.v1", &json!({"name": CLUSTER, "spec": {"runtime": "simulated"}}))?;
        let (cluster, executor) = (CLUSTER.parse()?, "ex".parse()?);
        let store = ExecutorStoreId::from_random(1);
        let hello = SessionRequested { cluster, executor, runtime: ClusterRuntime::Simulated, store };
        maker.see(hello.into())?;
        Ok(maker)
    }

    fn context(&self, ahead: u64) -> DecisionContext {
        let next = self.fleet.head().plus(ahead);
        let (now, lineage) = (self.now, self.lineage);
        DecisionContext {
            now,
            wall: now,
            next,
            lineage,
            actor: None,
            replicas: u32::MAX,
            levels: LevelLimits::ALONE,
        }
    }

    /// Folds as the decider does: each step can be undone.
    fn fold(&mut self, events: &[Event]) -> Result<()> {
        self.fleet.savepoint();
        for event in events {
            let position = self.fleet.head().plus(1);
            match event {
                Event::Fact { fact, .. } => {
                    let at =
                        FactPosition { position, time: self.now, term: Term::FIRST, lineage: self.lineage };
                    evolve(&mut self.fleet, fact, at)?;
                }
                Event::Intent(_) | Event::Observation { .. } => pass(&mut self.fleet, position),
            }
            if let Some(book) = &mut self.writer {
                book.draft.push(&event.line())?;
            }
        }
        self.fleet.settle();
        if self.writer.as_ref().is_some_and(|book| book.draft.count() >= book.receiver.record) {
            self.seal()?;
        }
        Ok(())
    }

    /// Writes events that are not written yet.
    pub(crate) fn seal(&mut self) -> Result<()> {
        let Some(book) = self.writer.as_mut().filter(|book| !book.draft.is_empty()) else { return Ok(()) };
        let parts = match &book.end {
            None => genesis(&book.by, self.now, self.lineage),
            Some(end) => end.follow(&book.by, self.now, None),
        };
        let record = std::mem::take(&mut book.draft).seal(parts)?;
        book.end = Some(ChainCursor::after(&record));
        (book.receiver.takes)(record)
    }

    /// Submits an intent that must be accepted.
    pub(crate) fn ask(&mut self, type_name: &str, data: &Value) -> Result<()> {
        let intent = Intent::read(type_name, &data.to_string()).context("a type")??;
        self.asked += 1;
        let request = IntentRequest {
            id: format!("id-{}", self.asked).parse()?,
            source: "bench".parse()?,
            actor: "bench".parse()?,
            time: None,
            expect: None,
            claim: None,
            traceparent: None,
            extensions: ExtensionAttributes::default(),
            intent,
        };
        let cause = self.fleet.head().plus(1);
        let context = DecisionContext { actor: Some(request.actor.clone()), ..self.context(2) };
        let facts = decide(&self.fleet, &request, &context).map_err(|refusal| anyhow!("{refusal:?}"))?;
        self.fold(&events(Event::Intent(request), cause, facts))
    }

    fn see(&mut self, observation: Observation) -> Result<()> {
        let (cause, context) = (self.fleet.head().plus(1), self.context(2));
        let facts = observe(&self.fleet, &observation, &context);
        if facts.is_empty() {
            return Ok(());
        }
        self.fold(&events(Event::Observation { by: "ex".parse()?, observation }, cause, facts))
    }

    /// Reports a process status of an incarnation; the first such report starts it.
    pub(crate) fn report(&mut self, incarnation: IncarnationId, status: ProcessStatus) -> Result<()> {
        let session = self.fleet.clusters().get(CLUSTER).and_then(|cluster| cluster.session);
        let session = session.context("a session")?;
        let revision = self.fleet.incarnations().get(&incarnation).context("an incarnation")?.revision;
        let ready = status == ProcessStatus::Ready;
        let process = ProcessInfo {
            payload: "app".parse()?,
            index: 0,
            pid: None,
            object: None,
            addresses: vec![],
            status,
            since: None,
            resets: 0,
        };
        let processes = vec![process];
        let observed =
            if ready { ObservedState::Ready { processes } } else { ObservedState::NotReady { processes } };
        let report = IncarnationReport { incarnation, revision, observed };
        self.see(IncarnationReported { session, report }.into())
    }

    /// Executes the next due step; returns whether there was one.
    pub(crate) fn step(&mut self) -> Result<bool> {
        let context = self.context(1);
        let Some(step) = advance(&self.fleet, &mut self.agenda, &context) else { return Ok(false) };
        let cause = step.cause;
        let events: Vec<_> = step.facts.into_iter().map(|fact| Event::Fact { cause, fact }).collect();
        self.fold(&events)?;
        Ok(true)
    }
}

fn events(first: Event, cause: Position, facts: Vec<Fact>) -> Vec<Event> {
    std::iter::once(first).chain(facts.into_iter().map(|fact| Event::Fact { cause, fact })).collect()
}
