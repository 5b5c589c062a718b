//! The decider without I/O: inputs in, commits and effects out, one value after the other.
//!
//! It decides on a state that runs ahead of what is durable, and holds back everything that was decided on it (the
//! *release rule*): no answer, command, acknowledgement leaves before every position of the state that it was
//! decided on is durable and valid. Time comes in with each call; randomness comes in with each connection.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use chancery_events::event::Event;
use chancery_events::fact::{EntityParked, Fact, InboxSkipped, TermStarted, TimeRecorded};
use chancery_events::id::{Attach, Lineage, Position, Term, Writer};
use chancery_events::intent::Request;
use chancery_events::letter::Letter;
use chancery_events::name::FleetName;
use chancery_events::observation::Observation;
use chancery_events::protocol::{FromDecider, Head, ToDecider};
use chancery_events::record::{Begins, Draft, Hash, HeaderParts, MAX_BYTES, MAX_EVENTS, NotPushed, Record};
use chancery_events::refusal::{Code, Refusal};
use chancery_events::size::json_bytes;
use chancery_events::subject::Subject;
use chancery_events::time::Time;
use chancery_journal::{Cursor, ReadError};
use chancery_machine::advance::{Agenda, Step, advance, next_alarm};
use chancery_machine::context::Context;
use chancery_machine::decide::{Repeat, decide, evolve, observe, pass, repeat, verdict};
use chancery_machine::fleet::Fleet;
use chancery_machine::meta::At;

use super::handle::{Connection, Verdict};
use super::inbox::{Inbox, Reading};
use super::sessions::Sessions;

/// Steps of due work in one commit, at most: inputs get their turn between commits.
const STEPS: usize = 256;
/// Events that one step or input may need; a commit with less room is closed before the next.
const ROOM_EVENTS: usize = 810;
/// The same in bytes: half a commit.
const ROOM_BYTES: usize = MAX_BYTES / 2;

/// Answers and messages that may be held back before no more inputs are taken,
const HELD: usize = 16_384;
/// and their bytes. What due work adds is bounded by the commits on their way.
const HELD_BYTES: usize = 16 << 20;

/// Names an intent's asker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);

/// What comes in.
#[derive(Debug)]
pub enum Input {
    /// Somebody asks. The answer is an effect, when it is durable.
    Intent(Ticket, Box<Request>),
    /// A letter of the inbox, in the order of their offsets; there may be holes. Its answer stands in the journal.
    Letter(Box<Letter>),
    /// There is no letter below this offset that has not come.
    InboxPassed(u64),
    /// The message at this offset of the inbox cannot be read; there is no other below that has not come.
    InboxStands(u64),
    /// An executor has connected; the attach is random.
    Connected(Connection, Attach),
    /// An executor said something.
    Said(Connection, ToDecider),
    /// A connection is gone. The session lives on until its lease is over.
    Disconnected(Connection),
    /// Something that was said may have waited for so long, unheard.
    Unheard(Duration),
    /// Records are durable and valid.
    Delivered(Vec<Arc<Record>>),
    /// Do what is due, up to the bounds of a commit.
    Work,
    /// Close the commit in the making.
    Seal,
    /// Nothing more comes.
    Drain,
}

/// What is to be done.
#[derive(Debug)]
pub enum Output {
    /// For whoever asked, or speaks.
    Effect(Effect),
    /// Append the record to the journal.
    Append(Record),
    /// More is due than was done.
    More,
    /// A record that was delivered is not this decider's own: another one has taken over.
    Overtaken,
}

/// What the loop is to do.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Tell the asker.
    Answer(Ticket, Verdict),
    /// Tell the executor.
    Send(Connection, FromDecider),
    /// End the connection.
    Close(Connection),
}

/// Reads the hash of the record that ends at a position, if one does.
pub type Lookup = Box<dyn Fn(Position) -> Result<Option<Hash>, ReadError> + Send>;

/// Who decides, for whom, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The fleet.
    pub fleet: FleetName,
    /// This start of this decider.
    pub writer: Writer,
    /// Of this build.
    pub build: Arc<str>,
    /// Where it takes input.
    pub address: Option<String>,
    /// How long a session lives without a heartbeat; also how long deadlines wait after a takeover.
    pub lease: Duration,
    /// A part of an inventory ends with the command that exceeds so many bytes: [`PART`].
    pub part: usize,
    /// Replicas that one deployment may ask for, at most.
    pub replicas: u32,
    /// A topic whose letters are answered too.
    pub inbox: Option<Inbox>,
}

/// As servers have it: a message that no link must wait for long.
pub const PART: usize = 256 << 10;

/// Something held back until a position is durable. The decider's head is filled in when it is let go.
#[derive(Debug)]
pub(super) enum Held {
    Answer(Ticket, Verdict),
    Send(Connection, Box<FromDecider>),
    Close(Connection),
}

/// What became of a request.
pub(super) enum Settled {
    /// It repeats one that has this verdict.
    Before(Verdict),
    /// It stands in the commit in the making, with this verdict.
    Now(Verdict),
    /// Not even a refusal of it can be folded: nothing was recorded.
    Failed(Refusal),
}

impl Held {
    /// About how many bytes it has: those that grow with what somebody asked for.
    fn bytes(&self) -> usize {
        // A verdict is shared with the keys, and has a bound.
        let Held::Send(_, message) = self else { return 0 };
        match &**message {
            FromDecider::Welcome { commands, .. } | FromDecider::Inventory { commands, .. } => {
                commands.iter().map(json_bytes).sum()
            }
            FromDecider::Command { command, .. } => json_bytes(command),
            // Their size has a bound.
            _ => 0,
        }
    }
}

/// The decider.
pub struct Core {
    pub(super) settings: Settings,
    pub(super) inbox: Option<Reading>,
    pub(super) fleet: Fleet,
    pub(super) agenda: Agenda,
    /// What finds the next step; tests put one in its place that fails.
    pub(super) advance: fn(&Fleet, &mut Agenda, &Context) -> Option<Step>,
    /// What decides an intent; the same.
    pub(super) decide: fn(&Fleet, &Request, &Context) -> Result<Vec<Fact>, Refusal>,
    /// What finds a record that an executor has seen.
    pub(super) lookup: Lookup,
    pub(super) lineage: Lineage,
    term: Term,
    /// The end of the chain as decided, durable or not.
    sealed: (Position, Hash),
    /// Of the commit in the making.
    pub(super) time: Time,
    /// See [`Context::wall`].
    wall: Time,
    /// When the last record was sealed.
    recorded: Time,
    /// Time is recorded when nothing else has been for so long.
    record_every: Option<Duration>,
    pub(super) draft: Draft,
    begins: Option<Begins>,
    durable: Head,
    in_flight: VecDeque<(Position, Hash)>,
    /// With their bytes.
    held: VecDeque<(Position, usize, Held)>,
    /// The bytes of what is held.
    held_bytes: usize,
    pub(super) sessions: Sessions,
    outputs: Vec<Output>,
}

impl Core {
    /// Takes over: the fleet is folded up to `end`, the head of the journal as it was read. The first commit begins
    /// a term.
    pub fn take_over(
        mut settings: Settings,
        fleet: Fleet,
        end: Option<&Cursor>,
        now: Time,
        lookup: Lookup,
    ) -> Core {
        let term = end.map_or(Term::FIRST, |end| end.term.next());
        let (position, hash) = end.map_or((Position::ZERO, Hash::ZERO), |end| (end.position, end.hash));
        let time = end.map_or(now, |end| end.time.max(now));
        let lineage = fleet.lineages().current;
        let sessions = Sessions::resume(&fleet, time);
        let inbox = settings.inbox.take().map(Reading::new);
        // First what has been asked for before now, then a lease for everybody to come back, then deadlines.
        let waits = inbox.as_ref().is_some_and(|inbox| !inbox.is_up_to_date());
        let grace = if waits { Time::FAR } else { time + settings.lease };
        let mut core = Core {
            agenda: Agenda::new(grace),
            settings,
            inbox,
            fleet,
            advance,
            decide,
            lookup,
            lineage,
            term,
            sealed: (position, hash),
            time,
            wall: time,
            recorded: time,
            record_every: None,
            draft: Draft::new(),
            begins: Some(Begins::Term),
            durable: Head { position, hash, term },
            in_flight: VecDeque::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            sessions,
            outputs: Vec::new(),
        };
        let fact = TermStarted { address: core.settings.address.clone() }.into();
        let cause = core.next();
        core.commit_events(&[Event::Fact { cause, fact }]).expect("a term's start always holds");
        // In the same commit, whose watermark is behind it.
        if let Some(offset) = core.inbox.as_ref().and_then(Reading::skips) {
            core.commit_own(InboxSkipped { offset }.into());
        }
        core
    }

    /// Takes an input at `now`. What is to be done, in order.
    pub fn handle(&mut self, now: Time, input: Input) -> Vec<Output> {
        match input {
            Input::Intent(ticket, request) => self.intent(ticket, &request, now),
            Input::Letter(letter) => self.letter(&letter, now),
            Input::InboxPassed(next) => self.inbox_passed(next, now),
            Input::InboxStands(offset) => self.inbox_stands(offset, now),
            Input::Connected(connection, attach) => self.connected(connection, attach),
            Input::Said(connection, message) => self.said(connection, message, now),
            Input::Disconnected(connection) => self.disconnected(connection),
            Input::Unheard(span) => self.unheard(span, now),
            Input::Delivered(records) => self.delivered(&records),
            Input::Work => {
                if self.work(now) {
                    self.outputs.push(Output::More);
                }
            }
            Input::Seal => self.seal(),
            Input::Drain => self.last_letter(now),
        }
        std::mem::take(&mut self.outputs)
    }

    /// The state as decided, durable or not.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// The position of the next event.
    pub(super) fn next(&self) -> Position {
        self.sealed.0.plus(u64::from(self.draft.count()) + 1)
    }

    fn at(&self, position: Position) -> At {
        At { position, time: self.time, term: self.term, lineage: self.lineage }
    }

    fn context(&self, next: Position) -> Context {
        let (now, wall) = (self.time, self.wall.max(self.time));
        Context { now, wall, next, lineage: self.lineage, actor: None, replicas: self.settings.replicas }
    }

    /// The wall clock, as far as it is followed: senders date intents by theirs.
    pub fn set_wall(&mut self, wall: Time) {
        self.wall = wall;
    }

    /// Records the time when nothing else has been recorded for so long.
    pub fn record_time_every(&mut self, span: Duration) {
        self.record_every = Some(span);
    }

    /// When the time is to be recorded, if nothing else is before.
    fn time_due(&self) -> Option<Time> {
        self.record_every.map(|span| self.recorded + span)
    }

    /// So that a server that starts later can tell a clock that is right from one that has leapt.
    fn record_time(&mut self) {
        if self.draft.is_empty() && self.time_due().is_some_and(|due| due <= self.time) {
            self.commit_own(TimeRecorded {}.into());
        }
    }

    /// Moves time on, between commits only: all of a commit happens at one time.
    pub(super) fn set_time(&mut self, now: Time) {
        if self.draft.is_empty() {
            self.time = self.time.max(now);
        }
    }

    /// Whether the commit in the making must be closed before more goes in.
    pub fn is_full(&self) -> bool {
        !self.draft.is_empty() && !self.draft.fits(ROOM_EVENTS, ROOM_BYTES)
    }

    /// Whether so much is held back that inputs must wait: what one of them adds need not be in a commit.
    pub fn holds_enough(&self) -> bool {
        self.held.len() >= HELD || self.held_bytes >= HELD_BYTES
    }

    /// Closes the commit in the making if the next input might not fit: one message may hold many.
    pub(super) fn make_room(&mut self) {
        if self.is_full() {
            self.seal();
        }
    }

    /// Commits that are not durable.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Folds the events and takes their lines, or neither. Events that the draft has no room for get the next record.
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
        self.fleet.note();
        let first = self.next();
        let mut over = Vec::new();
        let folded = catch_unwind(AssertUnwindSafe(|| {
            for (position, event) in (first.get()..).map(Position::new).zip(events) {
                match event {
                    Event::Fact { fact, .. } => {
                        // Its replica may go in the same commit, and all that is known of it.
                        over.extend(self.ends(fact));
                        let at = self.at(position);
                        evolve(&mut self.fleet, fact, at)
                            .map_err(|error| CommitError::Failed(error.to_string()))?;
                    }
                    Event::Intent(_) | Event::Observation { .. } => pass(&mut self.fleet, position),
                }
                self.draft.push(&event.line()).map_err(|error| match error {
                    NotPushed::Full | NotPushed::TooLarge { .. } => CommitError::TooLarge,
                    NotPushed::NotALine => CommitError::Failed(error.to_string()),
                })?;
            }
            Ok(())
        }));
        let failure = match folded {
            Ok(Ok(())) => {
                self.follow(events);
                for (cluster, incarnation) in over {
                    self.forget(&cluster, incarnation);
                }
                return Ok(());
            }
            Ok(Err(failure)) => {
                self.fleet.roll_back();
                failure
            }
            Err(panic) => {
                self.fleet.roll_back_broken();
                CommitError::Failed(told(&*panic))
            }
        };
        self.draft.back_to(mark);
        Err(failure)
    }

    /// What facts mean for the executors.
    fn follow(&mut self, events: &[Event]) {
        for event in events {
            if let Event::Fact { fact, .. } = event {
                self.follow_fact(fact);
            }
        }
    }

    /// Decides an intent.
    fn intent(&mut self, ticket: Ticket, request: &Request, now: Time) {
        self.set_time(now);
        self.make_room();
        match self.settle(request, Ok(())) {
            Settled::Before(verdict) | Settled::Now(verdict) => self.hold(Held::Answer(ticket, verdict)),
            // Nothing is appended, and the asker is told so when all before it is durable.
            Settled::Failed(refusal) => {
                let result = Arc::new(Err(refusal));
                self.hold(Held::Answer(ticket, Verdict { position: self.fleet.head(), result }));
            }
        }
    }

    /// Decides and records a request that is not a repeat; one that is not allowed is recorded with its refusal.
    pub(super) fn settle(&mut self, request: &Request, allowed: Result<(), Refusal>) -> Settled {
        let reused = match repeat(self.fleet.keys(), request) {
            Repeat::Known(known) => {
                return Settled::Before(Verdict {
                    position: known.verdict,
                    result: Arc::clone(&known.reply),
                });
            }
            Repeat::Reused(refusal) => Err(refusal),
            Repeat::New => Ok(()),
        };
        let position = self.next();
        let mut context = self.context(position.plus(2));
        context.actor = Some(request.actor.clone());
        let allowed = allowed.and_then(|()| self.may_skip(&request.intent));
        let decided = reused.and(allowed).and_then(|()| {
            catch_unwind(AssertUnwindSafe(|| (self.decide)(&self.fleet, request, &context)))
                .unwrap_or_else(|panic| Err(internal(&told(&*panic))))
        });
        let decided = self.record(request, position, decided, &context).or_else(|failure| {
            if let CommitError::Failed(failure) = &failure {
                tracing::error!(%position, intent = request.intent.type_name(), id = %request.id, failure, "an intent could not be folded");
            }
            self.record(request, position, Err(failure.refusal()), &context)
        });
        match decided {
            Ok(verdict) => {
                if verdict.result.is_ok() {
                    self.skip(&request.intent);
                }
                Settled::Now(verdict)
            }
            Err(failure) => Settled::Failed(failure.refusal()),
        }
    }

    fn record(
        &mut self,
        request: &Request,
        position: Position,
        decided: Result<Vec<Fact>, Refusal>,
        context: &Context,
    ) -> Result<Verdict, CommitError> {
        let said = verdict(&self.fleet, request, &decided, context);
        let result = match (&said, &decided) {
            (Fact::IntentAccepted(said), _) => Ok(chancery_machine::keys::Accepted {
                outcome: said.outcome,
                subject: said.subject.clone(),
                version: said.version,
            }),
            (Fact::IntentRefused(said), Err(refusal)) => {
                Err(Refusal { subject: said.subject.clone(), version: said.version, ..refusal.clone() })
            }
            _ => return Err(CommitError::Failed("a verdict is either accepted or refused".into())),
        };
        let facts = decided.unwrap_or_default();
        let mut events = Vec::with_capacity(facts.len() + 2);
        events.push(Event::Intent(request.clone()));
        events.push(Event::Fact { cause: position, fact: said });
        events.extend(facts.into_iter().map(|fact| Event::Fact { cause: position, fact }));
        self.commit_events(&events)?;
        Ok(Verdict { position: position.plus(1), result: Arc::new(result) })
    }

    /// Takes an observation. Nothing is recorded if nothing follows from it.
    pub(super) fn observation(&mut self, by: &chancery_events::name::ExecutorName, observation: Observation) {
        self.make_room();
        let position = self.next();
        let context = self.context(position.plus(1));
        let facts = catch_unwind(AssertUnwindSafe(|| observe(&self.fleet, &observation, &context)));
        let facts = match facts {
            Ok(facts) if facts.is_empty() => return,
            Ok(facts) => facts,
            Err(panic) => {
                tracing::error!(%position, observation = observation.type_name(), failure = told(&*panic), "an observation could not be judged");
                return;
            }
        };
        let type_name = observation.type_name();
        let mut events = vec![Event::Observation { by: by.clone(), observation }];
        events.extend(facts.into_iter().map(|fact| Event::Fact { cause: position, fact }));
        if let Err(failure) = self.commit_events(&events) {
            tracing::error!(%position, observation = type_name, %failure, "an observation could not be folded");
        }
    }

    /// Does what is due, up to the bounds of a commit. Whether there may be more.
    fn work(&mut self, now: Time) -> bool {
        self.set_time(now);
        self.sweep();
        self.carry_watermark();
        self.record_time();
        for _ in 0..STEPS {
            if self.is_full() {
                return true;
            }
            let context = self.context(self.next());
            let advance = self.advance;
            let step = catch_unwind(AssertUnwindSafe(|| advance(&self.fleet, &mut self.agenda, &context)));
            match step {
                Ok(None) => return false,
                Ok(Some(step)) => self.take_step(step),
                Err(panic) => {
                    let Some((subject, cause)) = self.agenda.at_work() else {
                        tracing::error!(failure = told(&*panic), "due work could not be judged");
                        return false;
                    };
                    self.park(subject, cause, told(&*panic));
                }
            }
        }
        true
    }

    fn take_step(&mut self, step: Step) {
        let Step { subject, cause, facts } = step;
        let events: Vec<_> = facts.into_iter().map(|fact| Event::Fact { cause, fact }).collect();
        if let Err(failure) = self.commit_events(&events) {
            self.park(subject, cause, failure.to_string());
        }
    }

    /// Leaves an entity alone, by a fact, so that the next one is served.
    fn park(&mut self, subject: Subject, cause: Position, detail: String) {
        tracing::error!(%subject, detail, "work on an entity failed; it is left alone");
        self.agenda.park(subject.clone());
        let fact = EntityParked { subject, detail }.into();
        if let Err(failure) = self.commit_events(&[Event::Fact { cause, fact }]) {
            tracing::error!(%failure, "an entity could not be parked by a fact");
        }
    }

    /// Closes the commit in the making, if it holds anything.
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
            begins: self.begins.take(),
            watermark: self.inbox.as_mut().map(Reading::carry),
            prev: self.sealed.1,
        };
        let record = std::mem::take(&mut self.draft).seal(parts).expect("the first line of a term begins it");
        (self.sealed, self.recorded) = ((record.last(), record.hash()), self.time);
        self.in_flight.push_back(self.sealed);
        self.outputs.push(Output::Append(record));
    }

    /// Lets go of what waited for the records.
    fn delivered(&mut self, records: &[Arc<Record>]) {
        for record in records {
            match self.in_flight.pop_front() {
                Some((position, hash)) if hash == record.hash() => {
                    self.durable = Head { position, hash, term: self.term };
                }
                Some(_) | None => return self.outputs.push(Output::Overtaken),
            }
        }
        while self.held.front().is_some_and(|(position, ..)| *position <= self.durable.position) {
            let Some((_, bytes, held)) = self.held.pop_front() else { break };
            self.held_bytes -= bytes;
            self.release(held);
        }
    }

    /// Holds something back until all that it was decided on is durable.
    pub(super) fn hold(&mut self, held: Held) {
        let position = self.fleet.head();
        if position <= self.durable.position {
            self.release(held);
        } else {
            let bytes = held.bytes();
            self.held_bytes += bytes;
            self.held.push_back((position, bytes, held));
        }
    }

    fn release(&mut self, held: Held) {
        let effect = match held {
            Held::Answer(ticket, verdict) => Effect::Answer(ticket, verdict),
            Held::Send(connection, mut message) => {
                if let Some(envelope) = message.envelope_mut() {
                    envelope.head = self.durable;
                }
                Effect::Send(connection, *message)
            }
            Held::Close(connection) => Effect::Close(connection),
        };
        self.outputs.push(Output::Effect(effect));
    }

    /// When something will be due, if nothing comes in before.
    pub fn next_due(&self) -> Option<Time> {
        let watermark = self.inbox.as_ref().and_then(Reading::due);
        let due = next_alarm(&self.fleet, &self.agenda).into_iter().chain(self.next_session_due());
        due.chain(watermark).chain(self.time_due()).min()
    }

    /// The durable head.
    pub fn durable(&self) -> Head {
        self.durable
    }
}

/// Why events are not committed. Nothing of them is kept.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommitError {
    /// No record can hold them: ask for less.
    #[error("one commit holds at most {MAX_BYTES} bytes and {MAX_EVENTS} events: ask for less at once")]
    TooLarge,
    /// They cannot be folded.
    #[error("{0}")]
    Failed(String),
}

impl CommitError {
    fn refusal(&self) -> Refusal {
        match self {
            CommitError::TooLarge => Refusal::new(Code::TooLarge, self.to_string()),
            CommitError::Failed(failure) => internal(failure),
        }
    }
}

pub(super) fn internal(failure: &str) -> Refusal {
    Refusal::new(Code::Internal, format!("deciding it failed, and nothing was changed: {failure}"))
}

pub(super) fn told(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a word".into())
}
