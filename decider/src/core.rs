//! The decider without I/O: takes inputs and returns commits and effects, one value at a time.
//!
//! Decisions use a state that is ahead of the durable one. Everything decided on it is held back (the
//! *release rule*). An answer, command or acknowledgement is sent once every position of the state that it
//! was decided on is durable and valid. Time comes with each call; randomness comes with each connection.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use chancery_events::event::Event;
use chancery_events::fact::{
    EntityQuarantined, Fact, InboxSkipped, IntentAccepted, TermStarted, TimeRecorded,
};
use chancery_events::id::{ConnectionToken, Lineage, Position, Term, WriterId};
use chancery_events::inbox_message::InboxMessage;
use chancery_events::intent::IntentRequest;
use chancery_events::name::FleetName;
use chancery_events::observation::Observation;
use chancery_events::protocol::{DeciderMessage, ExecutorMessage, JournalHead};
use chancery_events::record::{
    DraftError, HeaderParts, MAX_BYTES, MAX_EVENTS, Record, RecordDraft, RecordHash, RecordStart,
};
use chancery_events::refusal::{Refusal, RefusalCode};
use chancery_events::size::json_bytes;
use chancery_events::subject::Subject;
use chancery_events::time::Time;
use chancery_journal::{ChainCursor, ReadError};
use chancery_machine::advance::{AdvanceState, DueStep, advance, next_alarm};
use chancery_machine::context::{DecisionContext, LevelLimits};
use chancery_machine::decide::{IdempotencyCheck, decide, evolve, observe, pass, repeat, verdict};
use chancery_machine::fleet::FleetState;
use chancery_machine::keys::AcceptedIntent;
use chancery_machine::level::refuse_higher;
use chancery_machine::meta::FactPosition;

use super::handle::{ChannelNumber, UnchangedVerdict, Verdict};
use super::inbox::{InboxProgress, InboxStart};
use super::sessions::SessionTable;

/// Maximum number of steps of due work in one commit; inputs are handled between commits.
const STEPS: usize = 256;
/// Maximum number of events of one step or input; a commit with less space is sealed first.
const ROOM_EVENTS: usize = 810;
/// Maximum bytes of one step or input: half a commit.
const ROOM_BYTES: usize = MAX_BYTES / 2;

/// Limit of outputs held back until durable: at this number, no more inputs are taken.
const HELD: usize = 16_384;
/// Limit in bytes of outputs held back until durable: at this size, no more inputs are taken. The commits in
/// flight bound the bytes that due work adds.
const HELD_BYTES: usize = 16 << 20;

/// Identifies the caller of an intent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RequestTicket(pub u64);

/// Inputs of the core.
#[derive(Debug)]
pub enum CoreInput {
    /// Intent of a caller. The answer is an effect, which is emitted once the verdict is durable.
    Intent(RequestTicket, Box<IntentRequest>, UnchangedVerdict),
    /// Inbox message, in order of offsets, which may have holes. The journal records the answer.
    InboxMessage(Box<InboxMessage>),
    /// Offset below which no inbox message is outstanding.
    InboxPassed(u64),
    /// Offset of an inbox message that cannot be read; no message below is outstanding.
    InboxBlocked(u64),
    /// New connection of an executor, with a random token.
    Connected(ChannelNumber, ConnectionToken),
    /// Message of an executor.
    ExecutorMessage(ChannelNumber, ExecutorMessage),
    /// Closed connection. The session lives until its lease expires.
    Disconnected(ChannelNumber),
    /// Maximum time that a message may have waited unread.
    Unread(Duration),
    /// Records that are durable and valid.
    Delivered(Vec<Arc<Record>>),
    /// Request to do due work, up to the bounds of a commit.
    Work,
    /// Request to seal the draft commit.
    Seal,
    /// End of all inputs.
    Drain,
}

/// Outputs of the core.
#[derive(Debug)]
pub enum CoreOutput {
    /// Effect for a caller or an executor.
    Effect(DeciderEffect),
    /// Record to append to the journal.
    Append(Record),
    /// Notice that more work may be due.
    More,
    /// Delivered record of another decider, which has taken over.
    Overtaken,
}

/// Effects for the loop to carry out.
#[derive(Clone, Debug)]
pub enum DeciderEffect {
    /// Answers the caller.
    Answer(RequestTicket, Verdict),
    /// Sends a message to the executor.
    Send(ChannelNumber, Box<DeciderMessage>),
    /// Closes the connection.
    Close(ChannelNumber),
}

/// Returns the hash of the record that ends at a position; `None` if no record ends there.
pub type RecordLookup = Box<dyn Fn(Position) -> Result<Option<RecordHash>, ReadError> + Send>;

/// Settings of a decider.
#[derive(Clone, Debug)]
pub struct DeciderSettings {
    /// Name of the fleet.
    pub fleet: FleetName,
    /// Writer id of this start of the decider.
    pub writer: WriterId,
    /// Build of this server.
    pub build: Arc<str>,
    /// Address where the decider takes input.
    pub address: Option<String>,
    /// Time that a session lives without a heartbeat, and that deadlines wait after a takeover.
    pub lease: Duration,
    /// Size in bytes at which a part of an inventory ends (servers: [`PART`]).
    pub part: usize,
    /// Maximum number of replicas of one deployment.
    pub replicas: u32,
    /// Levels that the fleet can be raised to.
    pub levels: LevelLimits,
    /// Inbox whose messages are answered too.
    pub inbox: Option<InboxStart>,
}

/// Bytes of an inventory part on servers: a message that delays no channel for long.
pub const PART: usize = 256 << 10;

/// Effect held back until a position is durable. The decider's head is filled in at its release.
pub(super) type HeldEffect = DeciderEffect;

/// Outcome of a request.
pub(super) enum RequestOutcome {
    /// Verdict of an earlier request that this request repeats.
    Before(Verdict),
    /// Verdict that the draft commit records.
    Now(Verdict),
    /// Verdict that is not in the journal: the intent changes nothing, the event of the refusal cannot be folded, or the
    /// intent has a higher level than the fleet.
    Unrecorded(Result<AcceptedIntent, Refusal>),
}

impl DeciderEffect {
    /// Returns the approximate bytes that grow with what a client requested.
    fn bytes(&self) -> usize {
        // A verdict is shared with the idempotency keys, and has a bound.
        let DeciderEffect::Send(_, message) = self else { return 0 };
        match &**message {
            DeciderMessage::Welcome { commands, .. } | DeciderMessage::Inventory { commands, .. } => {
                commands.iter().map(json_bytes).sum()
            }
            DeciderMessage::Command { command, .. } => json_bytes(command),
            // The size of other messages has a bound.
            _ => 0,
        }
    }
}

/// Core of the decider.
pub struct DeciderCore {
    pub(super) settings: DeciderSettings,
    pub(super) inbox: Option<InboxProgress>,
    pub(super) fleet: FleetState,
    pub(super) agenda: AdvanceState,
    /// Finds the next step of due work; tests replace this function with one that fails.
    pub(super) advance: fn(&FleetState, &mut AdvanceState, &DecisionContext) -> Option<DueStep>,
    /// Decides an intent; tests replace this function with one that fails.
    pub(super) decide: fn(&FleetState, &IntentRequest, &DecisionContext) -> Result<Vec<Fact>, Refusal>,
    /// Finds a record that an executor has seen.
    pub(super) lookup: RecordLookup,
    /// Maximum number of steps of due work for one input.
    pub(super) steps: usize,
    /// Whether the core decides a dry run, of which nothing happens to the fleet.
    pub(super) is_dry: bool,
    pub(super) lineage: Lineage,
    term: Term,
    /// Position and hash at the end of the last sealed record, durable or not.
    sealed: (Position, RecordHash),
    /// Time of the draft commit.
    pub(super) time: Time,
    /// Wall clock: see [`DecisionContext::wall`].
    wall: Time,
    /// Time of the last sealed record.
    recorded: Time,
    /// Interval without a record after which the time is recorded.
    record_every: Option<Duration>,
    pub(super) draft: RecordDraft,
    starts: Option<RecordStart>,
    durable: JournalHead,
    in_flight: VecDeque<(Position, RecordHash)>,
    /// Outputs held back until a position is durable, each with that position and its bytes.
    held: VecDeque<(Position, usize, HeldEffect)>,
    /// Bytes of all outputs in `held`.
    held_bytes: usize,
    pub(super) sessions: SessionTable,
    outputs: Vec<CoreOutput>,
}

impl DeciderCore {
    /// Takes over with a fleet that is folded up to `end`, the head of the journal as it was read. The first
    /// commit starts a term.
    pub fn take_over(
        mut settings: DeciderSettings,
        fleet: FleetState,
        end: Option<&ChainCursor>,
        now: Time,
        lookup: RecordLookup,
    ) -> DeciderCore {
        let term = end.map_or(Term::FIRST, |end| end.term.next());
        let time = end.map_or(now, |end| end.time.max(now));
        let inbox = settings.inbox.take().map(InboxProgress::new);
        // Older inbox messages come first, then a lease for executors to reconnect, then deadlines.
        let waits = inbox.as_ref().is_some_and(|inbox| !inbox.is_up_to_date());
        let grace = if waits { Time::FAR } else { time + settings.lease };
        let mut core = DeciderCore::continued(settings, fleet, end, (term, time), lookup);
        (core.inbox, core.agenda, core.starts) = (inbox, AdvanceState::new(grace), Some(RecordStart::Term));
        let fact =
            TermStarted { address: core.settings.address.clone(), level: core.settings.levels.highest }
                .into();
        let cause = core.next();
        core.commit_events(&[Event::Fact { cause, fact }]).expect("the start of a term can always be folded");
        // In the same commit, whose watermark is past this offset.
        if let Some(offset) = core.inbox.as_ref().and_then(InboxProgress::skips) {
            core.commit_own(InboxSkipped { offset }.into());
        }
        core
    }

    /// Returns a core that continues after `end`, on a state folded up to there, and decides with each deadline
    /// as it is due. It has no inbox.
    pub(super) fn continued(
        settings: DeciderSettings,
        fleet: FleetState,
        end: Option<&ChainCursor>,
        (term, time): (Term, Time),
        lookup: RecordLookup,
    ) -> DeciderCore {
        let (position, hash) = end.map_or((Position::ZERO, RecordHash::ZERO), |end| (end.position, end.hash));
        let (lineage, sessions) = (fleet.lineages().current, SessionTable::resume(&fleet, time));
        DeciderCore {
            agenda: AdvanceState::new(time),
            settings,
            inbox: None,
            fleet,
            advance,
            decide,
            lookup,
            steps: STEPS,
            is_dry: false,
            lineage,
            term,
            sealed: (position, hash),
            time,
            wall: time,
            recorded: time,
            record_every: None,
            draft: RecordDraft::new(),
            starts: None,
            durable: JournalHead { position, hash, term },
            in_flight: VecDeque::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            sessions,
            outputs: Vec::new(),
        }
    }

    /// Takes an input at `now`. Returns the outputs, in order.
    pub fn handle(&mut self, now: Time, input: CoreInput) -> Vec<CoreOutput> {
        match input {
            CoreInput::Intent(ticket, request, unchanged) => self.intent(ticket, &request, unchanged, now),
            CoreInput::InboxMessage(message) => self.take_message(&message, now),
            CoreInput::InboxPassed(next) => self.inbox_passed(next, now),
            CoreInput::InboxBlocked(offset) => self.inbox_blocked(offset, now),
            CoreInput::Connected(connection, token) => self.connected(connection, token),
            CoreInput::ExecutorMessage(connection, message) => self.receive(connection, message, now),
            CoreInput::Disconnected(connection) => self.disconnected(connection),
            CoreInput::Unread(span) => self.extend_grace(span, now),
            CoreInput::Delivered(records) => self.delivered(&records),
            CoreInput::Work => {
                if self.work(now) {
                    self.outputs.push(CoreOutput::More);
                }
            }
            CoreInput::Seal => self.seal(),
            CoreInput::Drain => self.last_message(now),
        }
        std::mem::take(&mut self.outputs)
    }

    /// Returns the state as decided, durable or not.
    pub fn fleet(&self) -> &FleetState {
        &self.fleet
    }

    /// Returns the position of the next event.
    pub(super) fn next(&self) -> Position {
        self.sealed.0.plus(u64::from(self.draft.count()) + 1)
    }

    fn at(&self, position: Position) -> FactPosition {
        FactPosition { position, time: self.time, term: self.term, lineage: self.lineage }
    }

    fn context(&self, next: Position) -> DecisionContext {
        let (now, wall) = (self.time, self.wall.max(self.time));
        DecisionContext {
            now,
            wall,
            next,
            lineage: self.lineage,
            actor: None,
            replicas: self.settings.replicas,
            levels: self.settings.levels,
        }
    }

    /// Sets the wall clock, as far as it is followed: senders date intents by their wall clocks.
    pub fn set_wall(&mut self, wall: Time) {
        self.wall = wall;
    }

    /// Records the time whenever nothing else was recorded for `span`.
    pub fn record_time_every(&mut self, span: Duration) {
        self.record_every = Some(span);
    }

    /// Returns when the time will be recorded, if nothing else is before.
    fn time_due(&self) -> Option<Time> {
        self.record_every.map(|span| self.recorded + span)
    }

    /// Records the time, so that a later start can distinguish a correct clock from one that has jumped.
    fn record_time(&mut self) {
        if self.draft.is_empty() && self.time_due().is_some_and(|due| due <= self.time) {
            self.commit_own(TimeRecorded {}.into());
        }
    }

    /// Advances the time, between commits only: all events of a commit have one time.
    pub(super) fn set_time(&mut self, now: Time) {
        if self.draft.is_empty() {
            self.time = self.time.max(now);
        }
    }

    /// Whether the draft commit must be sealed before it takes more.
    pub fn is_full(&self) -> bool {
        !self.draft.is_empty() && !self.draft.fits(ROOM_EVENTS, ROOM_BYTES)
    }

    /// Whether held outputs have reached a limit, so that inputs must wait: an input may add outputs without
    /// a commit.
    pub fn holds_enough(&self) -> bool {
        self.held.len() >= HELD || self.held_bytes >= HELD_BYTES
    }

    /// Seals the draft commit if the next input might not fit: one message may hold many reports.
    pub(super) fn seal_if_full(&mut self) {
        if self.is_full() {
            self.seal();
        }
    }

    /// Returns the number of commits that are not durable.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Folds the events and adds their lines to the draft, or neither. Events that do not fit start the next
    /// record.
    pub(super) fn commit_events(&mut self, events: &[Event]) -> Result<(), CommitError> {
        match self.put_events(events) {
            Err(CommitError::TooLarge) if !self.draft.is_empty() => {
                self.seal();
                self.put_events(events)
            }
            done => done,
        }
    }

    fn put_events(&mut self, events: &[Event]) -> Result<(), CommitError> {
        let mark = self.draft.mark();
        self.fleet.savepoint();
        let first = self.next();
        let mut over = Vec::new();
        let folded = catch_unwind(AssertUnwindSafe(|| {
            for (position, event) in (first.get()..).map(Position::new).zip(events) {
                self.check_level(event)?;
                match event {
                    Event::Fact { fact, .. } => {
                        // Before the fold: the same commit may delete the replica, and all that is known of
                        // the object.
                        over.extend(self.ends(fact));
                        let at = self.at(position);
                        evolve(&mut self.fleet, fact, at)
                            .map_err(|error| CommitError::Failed(error.to_string()))?;
                    }
                    Event::Intent(_) | Event::Observation { .. } => pass(&mut self.fleet, position),
                }
                self.draft.push(&event.line()).map_err(|error| match error {
                    DraftError::Full | DraftError::TooLarge { .. } => CommitError::TooLarge,
                    DraftError::NotALine => CommitError::Failed(error.to_string()),
                })?;
            }
            self.fleet.settle();
            Ok(())
        }));
        let failure = match folded {
            Ok(Ok(())) => {
                for event in events {
                    if let Event::Fact { fact, .. } = event {
                        self.follow_fact(fact);
                    }
                }
                for (cluster, incarnation) in over {
                    self.purge(&cluster, incarnation);
                }
                return Ok(());
            }
            Ok(Err(failure)) => {
                self.fleet.roll_back();
                failure
            }
            Err(panic) => {
                self.fleet.roll_back_broken();
                CommitError::Failed(panic_message(&*panic))
            }
        };
        self.draft.back_to(mark);
        Err(failure)
    }

    /// Checks that the event has no higher level than the fleet.
    fn check_level(&self, event: &Event) -> Result<(), CommitError> {
        let (level, fleet) = (event.level(), self.fleet.level());
        if level <= fleet {
            return Ok(());
        }
        Err(CommitError::Failed(format!("cannot record event of level {level}: the fleet has level {fleet}")))
    }

    /// Decides an intent.
    fn intent(
        &mut self,
        ticket: RequestTicket,
        request: &IntentRequest,
        unchanged: UnchangedVerdict,
        now: Time,
    ) {
        self.set_time(now);
        self.seal_if_full();
        match self.settle(request, Ok(()), unchanged) {
            RequestOutcome::Before(verdict) | RequestOutcome::Now(verdict) => {
                self.hold(HeldEffect::Answer(ticket, verdict));
            }
            // Nothing is appended; the caller is notified when all events before are durable.
            RequestOutcome::Unrecorded(result) => {
                let (position, result) = (self.fleet.head(), Arc::new(result));
                self.hold(HeldEffect::Answer(ticket, Verdict { position, is_recorded: false, result }));
            }
        }
    }

    /// Decides and records a request that is not a repeat. A disallowed request is recorded with its refusal, and one
    /// that changes nothing as the caller has chosen.
    pub(super) fn settle(
        &mut self,
        request: &IntentRequest,
        allowed: Result<(), Refusal>,
        unchanged: UnchangedVerdict,
    ) -> RequestOutcome {
        let reused = match repeat(self.fleet.keys(), request) {
            IdempotencyCheck::Repeat(known) => {
                return RequestOutcome::Before(Verdict {
                    position: known.verdict,
                    is_recorded: true,
                    result: Arc::new(known.reply.clone().map_err(Arc::unwrap_or_clone)),
                });
            }
            IdempotencyCheck::KeyReused(refusal) => Err(refusal),
            IdempotencyCheck::New => Ok(()),
        };
        if let Err(refusal) = refuse_higher(&self.fleet, &request.intent) {
            return RequestOutcome::Unrecorded(Err(refusal));
        }
        let position = self.next();
        let mut context = self.context(position.plus(2));
        context.actor = Some(request.actor.clone());
        let allowed = allowed.and_then(|()| self.may_skip(&request.intent));
        let decided = reused.and(allowed).and_then(|()| {
            catch_unwind(AssertUnwindSafe(|| (self.decide)(&self.fleet, request, &context)))
                .unwrap_or_else(|panic| Err(internal(&panic_message(&*panic))))
        });
        if unchanged == UnchangedVerdict::Unrecorded && decided.as_ref().is_ok_and(Vec::is_empty) {
            let fact = verdict(&self.fleet, request, &decided, &context);
            if let Some(accepted) = accepted(&fact) {
                return RequestOutcome::Unrecorded(Ok(accepted));
            }
        }
        let decided = self.record(request, position, decided, &context).or_else(|failure| {
            if let CommitError::Failed(failure) = &failure {
                tracing::error!(%position, intent = request.intent.type_name(), id = %request.id, failure, "cannot fold intent");
            }
            self.record(request, position, Err(failure.refusal()), &context)
        });
        match decided {
            Ok(verdict) => {
                if verdict.result.is_ok() {
                    self.skip(&request.intent);
                }
                RequestOutcome::Now(verdict)
            }
            Err(failure) => RequestOutcome::Unrecorded(Err(failure.refusal())),
        }
    }

    fn record(
        &mut self,
        request: &IntentRequest,
        position: Position,
        decided: Result<Vec<Fact>, Refusal>,
        context: &DecisionContext,
    ) -> Result<Verdict, CommitError> {
        let fact = verdict(&self.fleet, request, &decided, context);
        let result = match (accepted(&fact), &fact, &decided) {
            (Some(accepted), ..) => Ok(accepted),
            (None, Fact::IntentRefused(refused), Err(refusal)) => {
                Err(Refusal { subject: refused.subject.clone(), version: refused.version, ..refusal.clone() })
            }
            _ => return Err(CommitError::Failed("a verdict is either accepted or refused".into())),
        };
        let facts = decided.unwrap_or_default();
        let mut events = Vec::with_capacity(facts.len() + 2);
        events.push(Event::Intent(request.clone()));
        events.push(Event::Fact { cause: position, fact });
        events.extend(facts.into_iter().map(|fact| Event::Fact { cause: position, fact }));
        self.commit_events(&events)?;
        Ok(Verdict { position: position.plus(1), is_recorded: true, result: Arc::new(result) })
    }

    /// Takes an observation. Nothing is recorded if nothing follows from the observation.
    pub(super) fn observation(&mut self, by: &chancery_events::name::ExecutorName, observation: Observation) {
        self.seal_if_full();
        let position = self.next();
        let context = self.context(position.plus(1));
        let facts = catch_unwind(AssertUnwindSafe(|| observe(&self.fleet, &observation, &context)));
        let facts = match facts {
            Ok(facts) if facts.is_empty() => return,
            Ok(facts) => facts,
            Err(panic) => {
                tracing::error!(%position, observation = observation.type_name(), failure = panic_message(&*panic), "cannot judge observation");
                return;
            }
        };
        let type_name = observation.type_name();
        let mut events = vec![Event::Observation { by: by.clone(), observation }];
        events.extend(facts.into_iter().map(|fact| Event::Fact { cause: position, fact }));
        if let Err(failure) = self.commit_events(&events) {
            tracing::error!(%position, observation = type_name, %failure, "cannot fold observation");
        }
    }

    /// Does due work, up to the bounds of a commit. Returns whether more may be due.
    fn work(&mut self, now: Time) -> bool {
        self.set_time(now);
        self.sweep();
        self.carry_watermark();
        self.record_time();
        for _ in 0..self.steps {
            if self.is_full() {
                return true;
            }
            let context = self.context(self.next());
            let advance = self.advance;
            let step = catch_unwind(AssertUnwindSafe(|| advance(&self.fleet, &mut self.agenda, &context)));
            match step {
                Ok(None) => return false,
                Ok(Some(DueStep { subject, cause, facts })) => {
                    let events: Vec<_> = facts.into_iter().map(|fact| Event::Fact { cause, fact }).collect();
                    if let Err(failure) = self.commit_events(&events) {
                        self.quarantine(subject, cause, failure.to_string());
                    }
                }
                Err(panic) => {
                    let Some((subject, cause)) = self.agenda.in_progress() else {
                        tracing::error!(failure = panic_message(&*panic), "cannot find due work");
                        return false;
                    };
                    self.quarantine(subject, cause, panic_message(&*panic));
                }
            }
        }
        true
    }

    /// Quarantines an entity, by a fact, so that the next entity is processed.
    fn quarantine(&mut self, subject: Subject, cause: Position, detail: String) {
        if !self.is_dry {
            tracing::error!(%subject, detail, "entity quarantined");
        }
        self.agenda.quarantine(subject.clone());
        let fact = EntityQuarantined { subject, detail }.into();
        if let Err(failure) = self.commit_events(&[Event::Fact { cause, fact }]) {
            tracing::error!(%failure, "cannot record quarantine of entity");
        }
    }

    /// Seals the draft commit, unless it is empty.
    fn seal(&mut self) {
        if self.draft.is_empty() {
            return;
        }
        let parts = HeaderParts {
            fleet: self.settings.fleet.as_str().into(),
            lineage: self.lineage,
            first: self.sealed.0.plus(1),
            term: self.term,
            writer: self.settings.writer,
            time: self.time,
            build: Arc::clone(&self.settings.build),
            starts: self.starts.take(),
            watermark: self.inbox.as_mut().map(InboxProgress::carry),
            prev: self.sealed.1,
        };
        let record = std::mem::take(&mut self.draft).seal(parts).expect("the first line of a term starts it");
        (self.sealed, self.recorded) = ((record.last(), record.hash()), self.time);
        self.in_flight.push_back(self.sealed);
        self.outputs.push(CoreOutput::Append(record));
    }

    /// Releases the outputs that waited for the records.
    fn delivered(&mut self, records: &[Arc<Record>]) {
        for record in records {
            match self.in_flight.pop_front() {
                Some((position, hash)) if hash == record.hash() => {
                    self.durable = JournalHead { position, hash, term: self.term };
                }
                Some(_) | None => return self.outputs.push(CoreOutput::Overtaken),
            }
        }
        while self.held.front().is_some_and(|(position, ..)| *position <= self.durable.position) {
            let Some((_, bytes, held)) = self.held.pop_front() else { break };
            self.held_bytes -= bytes;
            self.release(held);
        }
    }

    /// Holds an output back until all that it was decided on is durable.
    pub(super) fn hold(&mut self, held: HeldEffect) {
        let position = self.fleet.head();
        if position <= self.durable.position {
            self.release(held);
        } else {
            let bytes = held.bytes();
            self.held_bytes += bytes;
            self.held.push_back((position, bytes, held));
        }
    }

    fn release(&mut self, mut held: HeldEffect) {
        if let HeldEffect::Send(_, message) = &mut held
            && let Some(envelope) = message.envelope_mut()
        {
            envelope.head = self.durable;
        }
        self.outputs.push(CoreOutput::Effect(held));
    }

    /// Returns when work is due next if no input arrives before; `None` if no work will be due.
    pub fn next_due(&self) -> Option<Time> {
        let watermark = self.inbox.as_ref().and_then(InboxProgress::due);
        let due = next_alarm(&self.fleet, &self.agenda).into_iter().chain(self.next_session_due());
        due.chain(watermark).chain(self.time_due()).min()
    }

    /// Returns the durable head.
    pub fn durable(&self) -> JournalHead {
        self.durable
    }
}

/// Reason why events are not committed. None of the events is kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommitError {
    /// Events that no record can hold: the request must be smaller.
    #[error(
        "cannot commit intent: must have at most {MAX_BYTES} bytes and {MAX_EVENTS} events in one commit"
    )]
    TooLarge,
    /// Events that cannot be folded.
    #[error("{0}")]
    Failed(String),
}

impl CommitError {
    fn refusal(&self) -> Refusal {
        match self {
            CommitError::TooLarge => Refusal::new(RefusalCode::TooLarge, self.to_string()),
            CommitError::Failed(failure) => internal(failure),
        }
    }
}

/// Returns the answer to an accepted intent, by the fact of its verdict.
fn accepted(verdict: &Fact) -> Option<AcceptedIntent> {
    let Fact::IntentAccepted(IntentAccepted { outcome, subject, version, .. }) = verdict else { return None };
    Some(AcceptedIntent { outcome: *outcome, subject: subject.clone(), version: *version })
}

pub(super) fn internal(failure: &str) -> Refusal {
    Refusal::new(
        RefusalCode::Internal,
        format!("cannot decide intent: internal error, nothing was changed: {failure}"),
    )
}

pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into())
}
