//! Spans of the decider's loop: decisions, commits, effects and commands, each in the trace of the intent that caused it.
//!
//! The core knows no spans. The loop reports an intent when it has decided it, each delivered record, and each command that it
//! sends. A fact is in the trace of its cause, and an observation in that of the command whose outcome it may be. So a command
//! has the trace of the intent at the end of its chain of causes, as far as that is among the last [`POSITIONS`] traced events
//! since this decider started.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use chancery_events::digest::Digest;
use chancery_events::event::{Event, EventLine};
use chancery_events::fact::Fact;
use chancery_events::id::{ObjectId, Position, VolumeId};
use chancery_events::inbox_message::InboxMessage;
use chancery_events::intent::IntentRequest;
use chancery_events::name::{Actor, FleetName, VolumeName};
use chancery_events::observation::Observation;
use chancery_events::protocol::{Command, CommandStatus};
use chancery_events::record::Record;
use chancery_events::subject::Subject;
use chancery_machine::fleet::FleetState;
use chancery_spans::{SpanRole, TraceSpan};

use super::commands::volume;

/// Maximum number of events whose traces are known.
const POSITIONS: usize = 65_536;
/// Maximum number of intents that were decided and are not durable.
const DECIDED: usize = 16_384;
/// Maximum time from a decision to its commit, of which a trace has a span.
const STALE: Duration = Duration::from_mins(1);

/// Text of a `traceparent`, shared by the events of a trace.
type SharedContext = Arc<str>;

/// Intent that was decided.
struct DecidedIntent {
    context: SharedContext,
    at: SystemTime,
}

/// Traces of a decider: see the module.
pub(super) struct DecisionTraces {
    fleet: FleetName,
    decided: HashMap<Digest, DecidedIntent>,
    events: HashMap<Position, SharedContext>,
    order: VecDeque<Position>,
    /// Traces of objects that wait for the outcome of a command.
    causes: BTreeMap<ObjectId, SharedContext>,
    /// Spans of commands that were sent, with their revisions and attempts.
    commands: BTreeMap<ObjectId, (u32, u32, TraceSpan)>,
    /// Volumes that wait for the outcome of a command. A destroyed volume is no longer in the state when its record is delivered.
    volumes: BTreeMap<VolumeName, VolumeId>,
}

impl DecisionTraces {
    /// Returns the traces of a decider that starts; `None` if no spans are recorded.
    pub(super) fn start(fleet: &FleetName) -> Option<DecisionTraces> {
        chancery_spans::are_recorded().then(|| DecisionTraces {
            fleet: fleet.clone(),
            decided: HashMap::new(),
            events: HashMap::new(),
            order: VecDeque::new(),
            causes: BTreeMap::new(),
            commands: BTreeMap::new(),
            volumes: BTreeMap::new(),
        })
    }

    fn span(&self, name: &'static str, role: SpanRole, since: SystemTime, parent: &str) -> TraceSpan {
        let mut span = TraceSpan::since(since, name, role, Some(parent));
        span.text("chancery.fleet", &self.fleet);
        span
    }

    /// Returns the span of a decision on an intent of a request in `context`, until it is dropped. The trace is kept until the
    /// intent is durable; a repeat that arrives before that changes nothing.
    pub(super) fn decide(&mut self, request: &IntentRequest, context: &str) -> TraceSpan {
        let (at, key) = (SystemTime::now(), request.key());
        let mut span = self.span("decide", SpanRole::Internal, at, context);
        span.text("chancery.intent.type", request.intent.type_name());
        // Intents whose verdicts are not recorded stay here.
        let is_stale = |of: &DecidedIntent| at.duration_since(of.at).is_ok_and(|age| age > STALE);
        if self.decided.len() >= DECIDED {
            self.decided.retain(|_, of| !is_stale(of));
        }
        if self.decided.len() < DECIDED && self.decided.get(&key).is_none_or(is_stale) {
            self.decided.insert(key, DecidedIntent { context: context.into(), at });
        }
        span
    }

    /// Returns the spans of an inbox message and of the decision on it, until they are dropped.
    pub(super) fn process(&mut self, message: &InboxMessage, actor: &Actor) -> [TraceSpan; 2] {
        // The core answers a message whose reading panics.
        let read = catch_unwind(AssertUnwindSafe(|| message.request(actor)));
        let request = read.ok().and_then(Result::ok);
        let parent = request.as_ref().and_then(|request| request.traceparent.as_deref());
        let mut span = TraceSpan::start("process inbox", SpanRole::Consumer, parent);
        span.text("chancery.fleet", &self.fleet);
        span.text("messaging.system", "kafka");
        span.text("messaging.operation.type", "process");
        span.number("messaging.kafka.offset", i64::try_from(message.offset).unwrap_or(i64::MAX));
        let Some((request, context)) = request.zip(span.context()) else {
            return [span, TraceSpan::default()];
        };
        [span, self.decide(&request, &context)]
    }

    fn note(&mut self, position: Position, context: SharedContext) {
        if self.order.len() >= POSITIONS
            && let Some(oldest) = self.order.pop_front()
        {
            self.events.remove(&oldest);
        }
        self.order.push_back(position);
        self.events.insert(position, context);
    }

    /// Takes a durable record, and returns the spans of its effects, until they are dropped: followers and executors get them.
    pub(super) fn delivered(&mut self, record: &Record, fleet: &FleetState) -> Vec<TraceSpan> {
        let mut effects: Vec<(SharedContext, TraceSpan, i64)> = Vec::new();
        for (position, line) in record.events() {
            let Ok(event) = EventLine::read(line).and_then(EventLine::event) else { continue };
            match event {
                Event::Intent(request) => {
                    let Some((context, span)) = self.committed(&request, position) else { continue };
                    self.note(position, Arc::clone(&context));
                    effects.extend(span.map(|span| (context, span, 0)));
                }
                Event::Observation { observation, .. } => {
                    let of = self.object(&observation.subject(), fleet).zip(revision(&observation));
                    let command = of.and_then(|(object, revision)| {
                        self.commands.get(&object).filter(|(sent, ..)| *sent == revision)
                    });
                    if let Some(context) = command.and_then(|(_, _, span)| span.context()) {
                        self.note(position, context.as_str().into());
                    }
                }
                Event::Fact { cause, fact } => {
                    let context = self.events.get(&cause).cloned();
                    if let Some(context) = &context {
                        self.note(position, Arc::clone(context));
                        let of = effects.iter_mut().rev().find(|(of, ..)| Arc::ptr_eq(of, context));
                        if let Some((_, _, facts)) = of {
                            *facts += 1;
                        }
                    }
                    self.changed(&fact, context.as_ref(), fleet);
                }
            }
        }
        let ended = effects.into_iter().map(|(_, mut span, facts)| {
            span.number("chancery.facts", facts);
            span
        });
        ended.collect()
    }

    /// Ends the commit of an intent. Returns the context of its facts, and the span of their effects.
    fn committed(
        &mut self,
        request: &IntentRequest,
        position: Position,
    ) -> Option<(SharedContext, Option<TraceSpan>)> {
        let Some(DecidedIntent { context, at }) = self.decided.remove(&request.key()) else {
            return request.traceparent.as_deref().map(|context| (context.into(), None));
        };
        let mut append = self.span("append", SpanRole::Internal, at, &context);
        append.number("chancery.position", i64::try_from(position.get()).unwrap_or(i64::MAX));
        drop(append);
        let effects = self.span("effects", SpanRole::Producer, SystemTime::now(), &context);
        Some((context, Some(effects)))
    }

    /// Returns the object of a subject that has commands, if the fleet knows it.
    fn object(&self, subject: &Subject, fleet: &FleetState) -> Option<ObjectId> {
        match subject {
            Subject::Incarnation(id) => Some((*id).into()),
            Subject::Volume(name) => {
                let present = fleet.volumes().get(name).map(|volume| volume.id);
                present.or_else(|| self.volumes.get(name).copied()).map(ObjectId::from)
            }
            _ => None,
        }
    }

    /// Follows a fact about an object: a command that waits for its outcome, or an outcome.
    fn changed(&mut self, fact: &Fact, context: Option<&SharedContext>, fleet: &FleetState) {
        for subject in fact.subjects() {
            let Some(object) = self.object(&subject, fleet) else { continue };
            if !waits(object, fleet) {
                self.ended(object);
                if let Subject::Volume(name) = &subject {
                    self.volumes.remove(name);
                }
                continue;
            }
            if let (Subject::Volume(name), ObjectId::Volume(id)) = (&subject, object)
                && let Some(before) = self.volumes.insert(name.clone(), id)
                && before != id
            {
                self.ended(before.into());
            }
            if matches!(fact, Fact::IncarnationCommandFailed(_) | Fact::VolumeCommandFailed(_)) {
                // The next attempt waits, and has a span of its own.
                self.commands.remove(&object);
            }
            if let Some(context) = context {
                self.causes.insert(object, Arc::clone(context));
            }
        }
    }

    fn ended(&mut self, object: ObjectId) {
        self.causes.remove(&object);
        self.commands.remove(&object);
    }

    /// Starts the span of a command that is sent now, and gives its context to the command.
    pub(super) fn send(&mut self, command: &mut Command) {
        if command.status != CommandStatus::Pending {
            return;
        }
        let (object, revision, attempt) = (command.object, command.revision, command.attempt);
        if let Some((of, at, span)) = self.commands.get(&object)
            && (*of, *at) == (revision, attempt)
        {
            // Another connection gets the same command.
            command.traceparent = span.context();
            return;
        }
        let Some(cause) = self.causes.get(&object) else { return };
        let mut span = self.span("command", SpanRole::Producer, SystemTime::now(), cause);
        span.text("chancery.object", object);
        span.text("chancery.command.effect", command.effect.word());
        span.number("chancery.command.revision", i64::from(revision));
        span.number("chancery.command.attempt", i64::from(attempt));
        command.traceparent = span.context();
        self.commands.insert(object, (revision, attempt, span));
    }
}

/// Returns the revision that a report reflects.
const fn revision(observation: &Observation) -> Option<u32> {
    match observation {
        Observation::IncarnationReported(of) => Some(of.report.revision),
        Observation::VolumeReported(of) => Some(of.report.revision),
        _ => None,
    }
}

/// Whether the object waits for the outcome of a command.
fn waits(object: ObjectId, fleet: &FleetState) -> bool {
    match object {
        ObjectId::Incarnation(id) => fleet.incarnations().get(&id).is_some_and(|of| of.command.is_some()),
        ObjectId::Volume(id) => volume(fleet, id).is_some_and(|of| of.command.is_some()),
    }
}
