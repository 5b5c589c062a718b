//! Oracle of a simulated world: reads the log like an auditor, and compares all states and answers with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use chancery_events::event::{Event, EventLine};
use chancery_events::fact::{Fact, IncarnationEnd, IncarnationRunning};
use chancery_events::id::{IncarnationId, ObjectId, Position, SessionId, Term};
use chancery_events::intent::IntentRequest;
use chancery_events::observation::{ObjectReport, SessionEnd};
use chancery_events::protocol::{DeciderEnvelope, DeciderMessage};
use chancery_events::record::{Record, RecordHash};
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::OperationKind;
use chancery_executor::simulated::SimulatedWorld;
use chancery_journal::RecordIter;
use chancery_journal::memory::MemoryLog;
use chancery_machine::context::{DecisionContext, LevelLimits};
use chancery_machine::decide::decide;
use chancery_machine::fleet::FleetState;
use chancery_projector::{FoldedState, JournalFold, ListQuery, Projector, StoreTuning, build_row};
use rustc_hash::FxHashMap;

use super::fault::OccurrenceCounts;
use super::messages::{AnswerChecker, SimulatedTopic};
use super::past::{self, RecordSamples};
use super::server::FLEET;
use super::{causes, dry_runs, rendering};
use crate::check::{InvariantViolation, JournalChecker, ReadChecker, RunningProcesses};
use crate::history::InvocationHistory;
use crate::model::{self, SecondModel};

/// Oracle of a world: see the module.
pub struct WorldOracle {
    records: RecordIter,
    checker: JournalChecker,
    model: SecondModel,
    /// State by the real state machine, folded separately.
    fold: JournalFold,
    /// Last position of each record, with its hash.
    ends: FxHashMap<Position, RecordHash>,
    head: Position,
    /// Foreign objects, with their machines.
    pub strangers: BTreeMap<IncarnationId, usize>,
    /// Sessions that were lost, with the term that reported the loss.
    lost: BTreeMap<SessionId, Term>,
    /// Answers to inbox messages.
    pub answers: AnswerChecker,
    /// Sampled records of the log.
    samples: RecordSamples,
}

/// Whether a reason in a fact is empty, or ends where text should follow. Compact JSON has spaces only in its
/// texts.
fn is_unfinished(data: &str) -> bool {
    let ends = [": \"", ":\",", ":\"}", "(\"", "()\"", ", \""];
    let empty = ["reason", "cause", "error", "detail", "message"].map(|field| format!("\"{field}\":\"\""));
    ends.iter().any(|end| data.contains(end)) || empty.iter().any(|field| data.contains(field))
}

/// Returns a violation of an invariant, by its number in the rules.
pub(super) fn violation(
    invariant: u8,
    what: impl Into<String>,
    position: Option<Position>,
) -> InvariantViolation {
    InvariantViolation { invariant, what: what.into(), position }
}

impl WorldOracle {
    /// Creates an oracle; `seed` chooses the records that are sampled.
    pub fn new(log: &MemoryLog, seed: u64) -> WorldOracle {
        WorldOracle {
            records: log.source().records(Position::FIRST).expect("a log in memory can be read"),
            checker: JournalChecker::new(),
            model: SecondModel::new(),
            fold: JournalFold::default(),
            ends: FxHashMap::default(),
            head: Position::ZERO,
            strangers: BTreeMap::new(),
            lost: BTreeMap::new(),
            answers: AnswerChecker::default(),
            samples: RecordSamples::new(seed),
        }
    }

    /// Returns the last position that is durable and valid.
    pub fn position(&self) -> Position {
        self.head
    }

    /// Returns the state at that position.
    pub fn state(&self) -> Option<&FoldedState> {
        self.fold.state()
    }

    /// Reads records that have become durable.
    pub fn read_log(
        &mut self,
        topic: &SimulatedTopic,
        counts: &mut OccurrenceCounts,
    ) -> Result<(), InvariantViolation> {
        while let Some(record) = self.records.next() {
            let record =
                record.map_err(|error| violation(1, format!("the log cannot be read: {error}"), None))?;
            self.take(&record, topic, counts)?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        record: &Arc<Record>,
        topic: &SimulatedTopic,
        counts: &mut OccurrenceCounts,
    ) -> Result<(), InvariantViolation> {
        self.head = record.last();
        self.ends.insert(record.last(), record.hash());
        self.checker.take(record)?;
        self.answers.take(record, topic)?;
        let at = Some(record.first());
        self.model.take(record).map_err(|error| violation(2, error.to_string(), at))?;
        self.fold
            .take(record)
            .map_err(|error| violation(2, format!("{error}: {:?}", std::error::Error::source(&error)), at))?;
        self.samples.take(record, self.fold.state(), &self.model);
        for (position, line) in record.events() {
            let at = Some(position);
            let bad = |error: chancery_events::event::InvalidEvent| violation(2, error.to_string(), at);
            let line = EventLine::read(line).map_err(bad)?;
            let Some(type_name) = Fact::TYPES.iter().find(|name| ***name == *line.type_name) else {
                continue;
            };
            counts.add(type_name);
            if is_unfinished(line.data.get()) {
                let what = format!("{type_name} gives an empty or unfinished reason: {}", line.data);
                return Err(violation(9, what, at));
            }
            let judged = ["entity.quarantined.v1", "intent.refused.v1", "session.closed.v1"];
            let counted = ["incarnation.ended.v1", "incarnation.running.v1"];
            if !judged.contains(type_name) && !counted.contains(type_name) {
                continue;
            }
            match line.event().map_err(bad)? {
                Event::Fact { fact: Fact::EntityQuarantined(fact), .. } => {
                    return Err(violation(
                        9,
                        format!("{} was quarantined: {}", fact.subject, fact.detail),
                        at,
                    ));
                }
                Event::Fact { fact: Fact::IntentRefused(fact), .. } if fact.code == RefusalCode::Internal => {
                    return Err(violation(9, format!("an intent could not be decided: {}", fact.detail), at));
                }
                Event::Fact { fact: Fact::SessionClosed(fact), .. } if fact.end == SessionEnd::Expired => {
                    self.lost.insert(fact.session, record.header().term);
                }
                Event::Fact { fact: Fact::IncarnationEnded(fact), .. }
                    if fact.end == IncarnationEnd::PoweredOff =>
                {
                    counts.add("guest shutdown");
                }
                Event::Fact { fact: Fact::IncarnationRunning(fact), .. } if self.is_reboot(&fact) => {
                    counts.add("guest rebooted");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the fact is the success of a requested reboot.
    fn is_reboot(&self, fact: &IncarnationRunning) -> bool {
        let fleet = self.fold.state().map(|state| &state.fleet);
        let operation = fleet.zip(fact.operation).and_then(|(fleet, id)| fleet.operations().get(&id));
        operation.is_some_and(|operation| operation.kind == OperationKind::Reboot)
    }

    /// Checks that only allowed incarnations run.
    pub fn alive(
        &self,
        worlds: &[&SimulatedWorld],
        in_clusters: Vec<(IncarnationId, usize)>,
    ) -> Result<(), InvariantViolation> {
        for stranger in self.strangers.keys() {
            let is_it = |report: &ObjectReport| report.object == ObjectId::from(*stranger);
            if !worlds.iter().any(|world| world.list().iter().any(is_it)) {
                return Err(violation(8, format!("{stranger}, which is not ours, was removed"), None));
            }
        }
        let alive: Vec<_> = worlds
            .iter()
            .flat_map(|world| world.alive())
            .filter(|(incarnation, _)| !self.strangers.contains_key(incarnation))
            .chain(in_clusters)
            .map(|(incarnation, processes)| RunningProcesses { incarnation, processes })
            .collect();
        self.checker.alive(&alive)
    }

    /// Checks that a decider's message was based on durable records alone.
    pub fn check_message(&self, message: &DeciderMessage) -> Result<(), InvariantViolation> {
        let Some(DeciderEnvelope { head, .. }) = rendering::envelope(message) else { return Ok(()) };
        let known = head.position == Position::ZERO || self.ends.get(&head.position) == Some(&head.hash);
        if !known {
            let what = format!("an executor receives a head {} that is not in the log", head.position);
            return Err(violation(1, what, None));
        }
        match message {
            DeciderMessage::Command { command, .. } if command.object.position() > self.head => {
                let what = format!("a command for {}, which the log does not know", command.object);
                Err(violation(1, what, None))
            }
            _ => Ok(()),
        }
    }

    /// Checks that work does not start under a session that the executor's term has reported as lost.
    pub fn check_start(&self, session: SessionId, term: Term) -> Result<(), InvariantViolation> {
        if self.lost.get(&session) == Some(&term) {
            let what = format!("an executor starts work under session {session}, which its decider has lost");
            return Err(violation(3, what, None));
        }
        Ok(())
    }

    /// Checks that a position in an answer is durable.
    pub fn check_answer(&self, position: Position) -> Result<(), InvariantViolation> {
        if position <= self.head {
            return Ok(());
        }
        Err(violation(
            1,
            format!("an answer names position {position}, which is not durable"),
            Some(position),
        ))
    }

    /// Checks that an intent without a recorded verdict changes nothing in the state at a position, as far as the
    /// state is still known.
    pub fn check_unchanged(
        &self,
        request: &IntentRequest,
        position: Position,
    ) -> Result<(), InvariantViolation> {
        let Some(state) = self.fold.state().filter(|state| state.at.position == position) else {
            return Ok(());
        };
        let context = DecisionContext {
            now: state.at.time,
            // Senders date intents by clocks that may be ahead of the last record.
            wall: request.time.unwrap_or(state.at.time).max(state.at.time),
            next: position.plus(2),
            lineage: state.fleet.lineages().current,
            actor: Some(request.actor.clone()),
            replicas: 1000,
            levels: LevelLimits::ALONE,
        };
        match decide(&state.fleet, request, &context) {
            Ok(facts) if facts.is_empty() => Ok(()),
            changes => {
                let what = format!("intent {} is answered unchanged, and means {changes:?}", request.id);
                Err(violation(1, what, Some(position)))
            }
        }
    }

    /// Notes that a server returned a verdict.
    pub fn gave(&mut self, server: usize, verdict: Position) {
        self.checker.gave(server, verdict);
    }

    /// Returns the reads that answers are compared with.
    pub fn reads(&self) -> &ReadChecker {
        self.checker.reads()
    }

    /// Returns a plan that could be more even and is not marked uneven.
    pub fn unreported_balance(&self) -> Option<String> {
        self.checker.unreported_balance()
    }

    /// Checks that received verdicts are in the log.
    pub fn history(&self, history: &InvocationHistory) -> Result<(), InvariantViolation> {
        self.checker.history(history)
    }

    /// Checks that the second model has the projector's rows.
    pub fn rows(&self) -> Result<(), InvariantViolation> {
        let Some(state) = self.fold.state() else { return Ok(()) };
        let shown = build_row::shown(&state.fleet);
        for (key, row) in &shown {
            let message = row["message"].as_str().unwrap_or_default();
            if message.trim_end() != message || message.ends_with([':', ',', '(']) {
                return Err(violation(9, format!("the message of {key:?} is unfinished: {message:?}"), None));
            }
        }
        let shown =
            shown.into_iter().map(|(key, row)| (key.clone(), model::comparable(key.0, row))).collect();
        match model::differences(&self.model.rows(), &shown).as_slice() {
            [] => Ok(()),
            differences => Err(violation(2, format!("rows differ: {}", differences.join("; ")), None)),
        }
    }

    /// Checks that a real store of rows, filled from the log and reopened, has the same rows.
    pub fn through_the_store(&self, log: &MemoryLog) -> Result<(), InvariantViolation> {
        let bad = |error: &dyn std::error::Error| violation(2, format!("the store of rows: {error}"), None);
        let dir = tempfile::tempdir().map_err(|error| bad(&error))?;
        let tuning = StoreTuning { batch: 7, ..StoreTuning::default() };
        let mut shown = model::ModelRows::new();
        for _ in 0..2 {
            let mut projector = Projector::open(&dir.path().join("rows"), FLEET, log.source(), None, tuning)
                .map_err(|error| bad(&error))?;
            projector.catch_up().map_err(|error| bad(&error))?;
            let reader = projector.reader();
            let list = |kind, query: &ListQuery| reader.list_json(kind, query);
            shown = past::listed(list, &ListQuery::all()).map_err(|error| bad(&error))?;
        }
        match model::differences(&self.model.rows(), &shown).as_slice() {
            [] => Ok(()),
            differences => Err(violation(2, format!("stored rows differ: {}", differences.join("; ")), None)),
        }
    }

    /// Checks readers of the past, on records that the seed has sampled.
    pub fn past(&mut self, log: &MemoryLog, snapshots: &[FoldedState]) -> Result<(), InvariantViolation> {
        past::check_moments(&mut self.samples, log, snapshots)?;
        causes::check_causes(log, &mut self.samples.random)?;
        dry_runs::check_dry_runs(&mut self.samples, log)
    }

    /// Whether readers of the past are checked in this world.
    pub fn reads_past(&self) -> bool {
        self.samples.is_checked
    }

    /// Checks that a state is that of the log at its position.
    pub fn same_state(&self, state: &FoldedState) -> Result<(), InvariantViolation> {
        let at = Some(state.at.position);
        if self.ends.get(&state.at.position) != Some(&state.at.hash) {
            return Err(violation(2, "a state follows a record that is not in the log", at));
        }
        let Some(own) = self.fold.state().filter(|own| own.at.position == state.at.position) else {
            return Ok(());
        };
        if same(&own.fleet, &state.fleet) {
            return Ok(());
        }
        Err(violation(2, "two states of the same position differ", at))
    }
}

/// Whether two states are equal, whatever their snapshots contain.
fn same(a: &FleetState, b: &FleetState) -> bool {
    a.head() == b.head()
        && a.lineages() == b.lineages()
        && a.keys() == b.keys()
        && a.clusters().sorted() == b.clusters().sorted()
        && a.capabilities().sorted() == b.capabilities().sorted()
        && a.nodes().sorted() == b.nodes().sorted()
        && a.plans().sorted() == b.plans().sorted()
        && a.deployments().sorted() == b.deployments().sorted()
        && a.replicas().sorted() == b.replicas().sorted()
        && a.incarnations().sorted() == b.incarnations().sorted()
        && a.operations().sorted() == b.operations().sorted()
        && a.sessions().sorted() == b.sessions().sorted()
        && a.policies().sorted() == b.policies().sorted()
        && a.approval_requests().sorted() == b.approval_requests().sorted()
}
