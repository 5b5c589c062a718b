//! Dry runs: intents decided on a copy of a state, without a journal.
//!
//! A dry run is a core that continues the term on the copy ([`DeciderCore`]). Its records are delivered to it
//! immediately and are appended nowhere; no executor is connected to it. So verdicts and facts follow from the code
//! of the decider. The order is: work that was due already, the intents, then work that is due after them at the same time.
//!
//! | phase | ends |
//! |---|---|
//! | due work before | no work is due, or half of a bound is used |
//! | intents | all are decided, or a bound is reached |
//! | due work after | no work is due, or a bound is reached |

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chancery_events::event::Event;
use chancery_events::fact::Fact;
use chancery_events::id::{OperationId, Position, WriterId};
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::name::FleetName;
use chancery_events::record::Record;
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::time::Time;
use chancery_journal::ChainCursor;
use chancery_machine::advance::AdvanceState;
use chancery_machine::context::LevelLimits;
use chancery_machine::fleet::FleetState;
pub use chancery_machine::operation::{ChosenNode, OperationWait};

use super::core::{CoreInput, CoreOutput, DeciderCore, DeciderEffect, DeciderSettings, PART, RequestTicket};
use super::handle::{UnchangedVerdict, Verdict};

/// Bounds of a dry run, checked before each intent and each step of due work. One of these may exceed a bound by a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DryRunBounds {
    /// Maximum number of steps of due work.
    pub steps: u32,
    /// Maximum number of events.
    pub events: u32,
    /// Maximum bytes of events.
    pub bytes: usize,
    /// Maximum number of placements that are explained. Each checks every node.
    pub explained: usize,
}

impl Default for DryRunBounds {
    fn default() -> DryRunBounds {
        DryRunBounds { steps: 10_000, events: 10_000, bytes: 4 << 20, explained: 32 }
    }
}

/// Bound at which a dry run stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReachedBound {
    /// Number of steps of due work.
    Steps,
    /// Number of events.
    Events,
    /// Bytes of events.
    Bytes,
    /// Time that the caller grants.
    Time,
}

impl std::fmt::Display for ReachedBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ReachedBound::Steps => "the maximum number of steps is reached",
            ReachedBound::Events => "the maximum number of events is reached",
            ReachedBound::Bytes => "the maximum size of all events is reached",
            ReachedBound::Time => "the maximum time is reached",
        })
    }
}

/// State and circumstances of a dry run.
#[derive(Debug)]
pub struct DryRunStart {
    /// Name of the fleet.
    pub fleet: FleetName,
    /// State after the record `at`.
    pub state: FleetState,
    /// Last record of the state.
    pub at: ChainCursor,
    /// Time of the decisions; that of the record `at` if it is later.
    pub now: Time,
    /// Wall clock, by which senders date intents.
    pub wall: Time,
    /// Maximum number of replicas of one deployment.
    pub replicas: u32,
    /// Bounds of the dry run.
    pub bounds: DryRunBounds,
}

/// Decided intent of a dry run.
#[derive(Debug)]
pub struct DryVerdict {
    /// Verdict, as a caller would get it.
    pub verdict: Verdict,
    /// Intent, verdict and facts, with the positions that are next; `None` if nothing would be recorded.
    pub record: Option<Arc<Record>>,
}

/// Result of a dry run. Its records are in no journal.
#[derive(Debug)]
pub struct DryRunResult {
    /// Facts that were due before the intents, and would be recorded without them too.
    pub due: Vec<Arc<Record>>,
    /// Verdicts on the intents, in their order. Shorter than the intents if a bound was reached before.
    pub intents: Vec<DryVerdict>,
    /// Facts that follow.
    pub follows: Vec<Arc<Record>>,
    /// Operations that the intents created, and what each waits for; `None` if it has ended.
    pub operations: BTreeMap<OperationId, Option<OperationWait>>,
    /// Explained placements of operations.
    pub placements: BTreeMap<OperationId, ChosenNode>,
    /// Bound at which the dry run stopped before the end.
    pub bound: Option<ReachedBound>,
}

/// Dry run in progress.
struct DryRun<'a> {
    core: DeciderCore,
    now: Time,
    bounds: DryRunBounds,
    used: DryRunBounds,
    may_continue: &'a dyn Fn() -> bool,
    placements: BTreeMap<OperationId, ChosenNode>,
}

/// Decides the intents on the state, and does the work that is due then. Also returns the state at the end. Stops
/// early once `may_continue` returns false.
pub fn dry_run(
    start: DryRunStart,
    intents: Vec<IntentRequest>,
    may_continue: &dyn Fn() -> bool,
) -> (FleetState, DryRunResult) {
    let bounds = start.bounds;
    let mut run = DryRun::new(start, may_continue);
    run.bounds = DryRunBounds {
        steps: bounds.steps / 2,
        events: bounds.events / 2,
        bytes: bounds.bytes / 2,
        explained: 0,
    };
    let (due, mut bound) = run.work();
    run.bounds = bounds;
    // The balance of plans is checked at most every ten seconds: here after the intents too.
    run.core.agenda = AdvanceState::new(run.now);
    let mut decided = Vec::new();
    for request in intents {
        if let Some(reached) = run.reached() {
            bound = Some(reached);
            break;
        }
        decided.push(run.intent(request));
    }
    let (follows, reached) = run.work();
    let records = decided.iter().filter_map(|decided| decided.record.as_ref()).chain(&follows);
    let created = records.flat_map(|record| facts(record)).filter_map(|(position, fact)| {
        let lineage = run.core.fleet().lineages().current;
        matches!(fact, Fact::OperationCreated(_)).then(|| OperationId::issue(lineage, position))
    });
    let operations = created.map(|id| (id, OperationWait::of(run.core.fleet(), id))).collect();
    let DryRun { core, placements, .. } = run;
    let bound = bound.or(reached);
    (core.fleet, DryRunResult { due, intents: decided, follows, operations, placements, bound })
}

/// Returns the facts of a record of a dry run, with their positions.
pub fn facts(record: &Record) -> impl Iterator<Item = (Position, Fact)> {
    record.events().filter_map(|(position, line)| match Event::read(line) {
        Ok(Event::Fact { fact, .. }) => Some((position, fact)),
        // The core has written the line, so that it is an event.
        Ok(Event::Intent(_) | Event::Observation { .. }) | Err(_) => None,
    })
}

impl<'a> DryRun<'a> {
    fn new(start: DryRunStart, may_continue: &'a dyn Fn() -> bool) -> DryRun<'a> {
        let DryRunStart { fleet, state, at, now, wall, replicas, bounds } = start;
        let settings = DeciderSettings {
            fleet,
            writer: WriterId::from_random(0),
            build: env!("CARGO_PKG_VERSION").into(),
            address: None,
            // Sessions end by observations, of which a dry run has none.
            lease: Duration::MAX,
            part: PART,
            replicas,
            levels: LevelLimits::ALONE,
            inbox: None,
        };
        let (now, none) = (now.max(at.time), Box::new(|_| Ok(None)));
        let mut core = DeciderCore::continued(settings, state, Some(&at), (at.term, now), none);
        core.set_wall(wall);
        // A record for each step: between two, bounds are checked, and the state is that of the step.
        core.steps = 1;
        core.is_dry = true;
        let used = DryRunBounds { steps: 0, events: 0, bytes: 0, explained: 0 };
        DryRun { core, now, bounds, used, may_continue, placements: BTreeMap::new() }
    }

    /// Returns the bound that is reached, if any.
    fn reached(&self) -> Option<ReachedBound> {
        let DryRun { used, bounds, .. } = self;
        if used.steps >= bounds.steps {
            Some(ReachedBound::Steps)
        } else if used.events >= bounds.events {
            Some(ReachedBound::Events)
        } else if used.bytes >= bounds.bytes {
            Some(ReachedBound::Bytes)
        } else if !(self.may_continue)() {
            Some(ReachedBound::Time)
        } else {
            None
        }
    }

    /// Decides an intent.
    fn intent(&mut self, request: IntentRequest) -> DryVerdict {
        let missing = match request.intent {
            Intent::InboxSkip(_) => Some(("inbox.skip", "the reader of the inbox")),
            Intent::FleetRaise(_) => Some(("fleet.raise", "the other servers")),
            _ => None,
        };
        if let Some((name, on)) = missing {
            let detail = format!("cannot decide {name} in a dry run: it depends on {on}");
            let result = Arc::new(Err(Refusal::new(RefusalCode::Unsupported, detail)));
            return DryVerdict {
                verdict: Verdict { position: self.core.fleet().head(), is_recorded: false, result },
                record: None,
            };
        }
        let input = CoreInput::Intent(RequestTicket(0), Box::new(request), UnchangedVerdict::default());
        let (records, answer, _) = self.give(input);
        let verdict = answer.expect("an intent whose record is delivered is answered");
        DryVerdict { verdict, record: records.into_iter().last() }
    }

    /// Does due work until none is due, or a bound is reached.
    fn work(&mut self) -> (Vec<Arc<Record>>, Option<ReachedBound>) {
        let mut all = Vec::new();
        loop {
            if let Some(bound) = self.reached() {
                return (all, Some(bound));
            }
            self.used.steps += 1;
            let (records, _, is_more_due) = self.give(CoreInput::Work);
            for record in &records {
                self.explain(record);
            }
            all.extend(records);
            if !is_more_due {
                return (all, None);
            }
        }
    }

    /// Explains the placements of a record, in the state after it.
    fn explain(&mut self, record: &Record) {
        for (_, fact) in facts(record) {
            let Fact::IncarnationReserved(reserved) = fact else { continue };
            if self.used.explained < self.bounds.explained
                && let Some(chosen) = ChosenNode::of(self.core.fleet(), reserved.operation)
            {
                self.used.explained += 1;
                self.placements.insert(reserved.operation, chosen);
            }
        }
    }

    /// Passes an input to the core, and delivers the records. Returns them, the answer, and whether more is due.
    fn give(&mut self, input: CoreInput) -> (Vec<Arc<Record>>, Option<Verdict>, bool) {
        let (mut records, mut answer, mut is_more_due) = (Vec::new(), None, false);
        let mut outputs = self.core.handle(self.now, input);
        outputs.extend(self.core.handle(self.now, CoreInput::Seal));
        let mut outputs = VecDeque::from(outputs);
        while let Some(output) = outputs.pop_front() {
            match output {
                CoreOutput::Append(record) => {
                    let record = Arc::new(record);
                    self.used.events += record.header().count;
                    self.used.bytes += record.bytes().len();
                    outputs
                        .extend(self.core.handle(self.now, CoreInput::Delivered(vec![Arc::clone(&record)])));
                    records.push(record);
                }
                CoreOutput::Effect(DeciderEffect::Answer(_, verdict)) => answer = Some(verdict),
                CoreOutput::More => is_more_due = true,
                // No executor is connected, and no other decider writes these records.
                CoreOutput::Effect(DeciderEffect::Send(..) | DeciderEffect::Close(_))
                | CoreOutput::Overtaken => {}
            }
        }
        (records, answer, is_more_due)
    }
}
