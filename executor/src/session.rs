//! The session with the decider, without I/O: what comes in, and what is to be done about it.
//!
//! | phase | connected | welcome | listed | not listed | watch lost | beat, inventory, command, forget, judged | refused, closed | disconnected | too late |
//! |---|---|---|---|---|---|---|---|---|---|
//! | waiting | – | – | – | – | – | – | – | – | connect |
//! | connecting | hello, → greeting | – | – | – | – | – | – | → waiting | – |
//! | greeting | – | list, → listing | – | – | – | – | → waiting, or stop | → waiting | hang up, → waiting |
//! | listing | – | – | level, → attached | list after a pause | – | as attached | → waiting | → waiting | hang up, → waiting |
//! | attached | – | – | level, if one was asked for | list after a pause | list after a pause | renew, queue | → waiting | → waiting | hang up, → waiting |
//!
//! A list that fails says nothing of any object: heartbeats go on, and the list is asked for again after a pause that grows
//! up to 5 s. While the watch is lost no change is taken in, and work goes on.
//!
//! What must stay true: no work is begun after ¾ of the lease since the sending of the last heartbeat (or hello) that
//! was answered; none is begun on a head that is not on disk; none overlaps other work on the same object; a
//! decider that knows less than this executor has seen changes nothing. Time is a duration on the executor's own
//! monotonic clock.

use std::time::Duration;

use chancery_events::fact::Judgement;
use chancery_events::id::{Attach, Lineage, ObjectId};
use chancery_events::observation::Report;
use chancery_events::protocol::{Again, Command, Envelope, FromDecider, Head, Part, ToDecider};
use chancery_events::size::json_bytes;

mod lease;
mod queue;
mod words;

use lease::Lease;
use queue::Queue;
pub use queue::Work;
pub use words::{Identity, Input, Output, Seen, Stop};

/// Reports in one part of a level, at most.
const LEVEL_PART: usize = 500;
/// Bytes of JSON after which a part of a level ends: a server takes no message above 16 MiB, and one report may have more
/// than a quarter of a mebibyte.
const LEVEL_PART_BYTES: usize = 1 << 20;
/// Reports that may wait for their acceptance.
const WINDOW: u64 = 1000;
/// How long a hello waits for its answer.
const GREETING: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Phase {
    Waiting { until: Duration },
    Connecting,
    Greeting { since: Duration },
    Listing(Connection),
    Attached(Connection),
}

/// One welcome.
#[derive(Debug)]
struct Connection {
    attach: Attach,
    lineage: Lineage,
    /// Reports said and accepted.
    said: u64,
    accepted: u64,
    inventory: Inventory,
    /// Lists that failed and watches that were lost since the last change.
    failures: u32,
}

/// Whether the decider was told of what the orchestrator has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inventory {
    /// A list was asked for.
    Asked,
    /// The list failed, or changes were missed: it is asked for at this time.
    Unknown { until: Duration },
    /// All of it; changes follow.
    Reported,
}

/// See the module.
#[derive(Debug)]
pub struct Core {
    identity: Identity,
    seen: Option<Seen>,
    persisted: Option<Seen>,
    phase: Phase,
    failures: u32,
    lease: Lease,
    queue: Queue,
}

impl Core {
    /// An executor that remembers `seen`; `at_once` bounds the work that overlaps.
    pub fn new(identity: Identity, seen: Option<Seen>, at_once: usize) -> Core {
        Core {
            identity,
            seen,
            persisted: seen,
            phase: Phase::Waiting { until: Duration::ZERO },
            failures: 0,
            lease: Lease::none(),
            queue: Queue::new(at_once),
        }
    }

    /// Whether changes are to be given in: after the level, and while not too many wait to be accepted.
    pub fn takes_changes(&self) -> bool {
        matches!(&self.phase, Phase::Attached(c)
            if c.inventory == Inventory::Reported && c.said - c.accepted < WINDOW)
    }

    /// When a tick is due, if nothing else happens.
    pub fn due(&self) -> Option<Duration> {
        match &self.phase {
            Phase::Waiting { until } => Some(*until),
            Phase::Connecting => None,
            Phase::Greeting { since } => Some(*since + GREETING),
            Phase::Listing(c) | Phase::Attached(c) => Some(match c.inventory {
                Inventory::Unknown { until } => until.min(self.lease.due()),
                Inventory::Asked | Inventory::Reported => self.lease.due(),
            }),
        }
    }

    /// Takes one input at `now`.
    pub fn handle(&mut self, now: Duration, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        match input {
            Input::Connected => self.connected(now, &mut out),
            Input::Disconnected => self.wait(now),
            Input::Heard(message) => {
                if let Err(stop) = self.heard(now, message, &mut out) {
                    out.push(Output::Stop(stop));
                    return out;
                }
            }
            Input::Listed(reports) => {
                if let Err(stop) = self.listed(reports, &mut out) {
                    out.push(Output::Stop(stop));
                    return out;
                }
            }
            Input::NotListed(error) => self.not_known(now, &error),
            Input::Changed(reports) => self.changed(reports, &mut out),
            Input::WatchLost(error) => self.not_known(now, &error),
            Input::Done(object) => self.queue.done(object),
            Input::PutOff(work) => self.queue.put_off(work),
            Input::Tick => self.tick(now, &mut out),
            Input::Leave => {
                if let Phase::Listing(c) | Phase::Attached(c) = &self.phase {
                    out.push(Output::Say(ToDecider::Goodbye { attach: c.attach }));
                }
                out.push(Output::Leave);
                return out;
            }
        }
        self.begin_work(now, &mut out);
        out
    }

    fn connected(&mut self, now: Duration, out: &mut Vec<Output>) {
        let Identity { executor, cluster, runtime, scope, life } = self.identity.clone();
        let seen = self.seen.map(|seen| (seen.lineage, seen.head));
        out.push(Output::Say(ToDecider::Hello { executor, cluster, runtime, scope, life, seen }));
        self.phase = Phase::Greeting { since: now };
    }

    /// Tries again later; what was seen of a lease goes on until its ¾.
    fn wait(&mut self, now: Duration) {
        // A decider that comes back must be asked within a lease, or it loses the session.
        let most = if self.lease.length().is_zero() { BACKOFF_MOST } else { self.lease.length() / 3 };
        let until = now + backoff(self.failures).min(most);
        self.failures = self.failures.saturating_add(1);
        self.phase = Phase::Waiting { until };
    }

    fn hang_up(&mut self, now: Duration, out: &mut Vec<Output>) {
        out.push(Output::HangUp);
        self.wait(now);
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<Output>) {
        match &mut self.phase {
            Phase::Waiting { until } if now >= *until => {
                self.phase = Phase::Connecting;
                out.push(Output::Connect);
            }
            Phase::Greeting { since } if now >= *since + GREETING => self.hang_up(now, out),
            Phase::Listing(_) | Phase::Attached(_) if self.lease.is_over(now) => self.hang_up(now, out),
            Phase::Listing(c) | Phase::Attached(c) => {
                if matches!(c.inventory, Inventory::Unknown { until } if now >= until) {
                    c.inventory = Inventory::Asked;
                    out.push(Output::List);
                }
                if let Some(beat) = self.lease.beat(now) {
                    out.push(Output::Say(ToDecider::Heartbeat { attach: c.attach, beat }));
                }
            }
            // Woken too early.
            Phase::Waiting { .. } | Phase::Connecting | Phase::Greeting { .. } => {}
        }
    }

    fn heard(&mut self, now: Duration, message: FromDecider, out: &mut Vec<Output>) -> Result<(), Stop> {
        match message {
            FromDecider::Welcome { envelope, lineage, fleet: _, lease, commands, rest } => {
                self.welcomed(now, &envelope, lineage, lease, out)?;
                self.wanted(&envelope, commands, rest, out)?;
            }
            FromDecider::Inventory { envelope, commands, rest } => {
                self.wanted(&envelope, commands, rest, out)?;
            }
            FromDecider::Refused { reason, again } => match again {
                Again::Later => {
                    tracing::warn!(reason, "the decider does not take this executor now; it is asked again");
                    self.hang_up(now, out);
                }
                Again::NewerElsewhere => return Err(Stop::NewerElsewhere(reason)),
                Again::Never => return Err(Stop::Refused(reason)),
            },
            FromDecider::Closed { reason } => {
                tracing::info!(reason, "the session is closed");
                self.hang_up(now, out);
            }
            FromDecider::Command { envelope, command } => {
                if self.believes(&envelope)? && issued(command.object, &envelope, self.lineage()) {
                    self.queue.add(Work::CarryOut(command));
                }
            }
            FromDecider::Forget { envelope, object } => {
                if self.believes(&envelope)? {
                    self.queue.add(Work::Forget(object));
                }
            }
            FromDecider::Judged { envelope, object, judgement, revision } => {
                if self.believes(&envelope)? && self.may_remove(&envelope, object, judgement) {
                    self.queue.add(Work::Remove { object, revision });
                }
            }
            FromDecider::Accepted { envelope, sequence } => {
                if self.believes(&envelope)?
                    && let Phase::Listing(c) | Phase::Attached(c) = &mut self.phase
                {
                    c.accepted = c.accepted.max(sequence.min(c.said));
                }
            }
            FromDecider::Beat { envelope, beat } => {
                if self.believes(&envelope)? {
                    self.lease.answered(beat);
                }
            }
        }
        Ok(())
    }

    fn welcomed(
        &mut self,
        now: Duration,
        envelope: &Envelope,
        lineage: Lineage,
        lease: Duration,
        out: &mut Vec<Output>,
    ) -> Result<(), Stop> {
        let Phase::Greeting { since } = self.phase else {
            tracing::warn!("a welcome that was not asked for");
            return Ok(());
        };
        // A change of lineage was weighed by the decider: the hello named what was seen.
        let known = self.seen.filter(|seen| seen.lineage == lineage);
        if let Some(seen) = known {
            if envelope.head.term < seen.head.term {
                tracing::warn!("a decider of an earlier term answers");
                self.hang_up(now, out);
                return Ok(());
            }
            if envelope.head.position < seen.head.position {
                let (theirs, ours) = (envelope.head.position, seen.head.position);
                return Err(Stop::NewerElsewhere(format!("this one is at {theirs}, and {ours} was seen")));
            }
            same_history(&seen.head, &envelope.head)?;
        }
        self.seen = Some(Seen { lineage, head: envelope.head });
        self.failures = 0;
        self.lease = Lease::since(since, lease);
        let (attach, inventory) = (envelope.attach, Inventory::Asked);
        self.phase =
            Phase::Listing(Connection { attach, lineage, said: 0, accepted: 0, inventory, failures: 0 });
        // What waited was asked for by an earlier connection; the inventory says all of it anew.
        self.queue.clear_waiting();
        out.push(Output::List);
        Ok(())
    }

    /// A part of what is wanted, and a word for the next.
    fn wanted(
        &mut self,
        envelope: &Envelope,
        commands: Vec<Command>,
        rest: Option<ObjectId>,
        out: &mut Vec<Output>,
    ) -> Result<(), Stop> {
        if !self.believes(envelope)? {
            return Ok(());
        }
        for command in commands {
            if issued(command.object, envelope, self.lineage()) {
                self.queue.add(Work::CarryOut(command));
            }
        }
        if let Some(after) = rest {
            out.push(Output::Say(ToDecider::More { attach: envelope.attach, after }));
        }
        Ok(())
    }

    /// Whether a message counts, and remembers its head if it is the highest.
    fn believes(&mut self, envelope: &Envelope) -> Result<bool, Stop> {
        let (Phase::Listing(c) | Phase::Attached(c), Some(seen)) = (&self.phase, &mut self.seen) else {
            return Ok(false);
        };
        if c.attach != envelope.attach || envelope.head.term < seen.head.term {
            tracing::warn!("a message of another connection or an earlier term is ignored");
            return Ok(false);
        }
        same_history(&seen.head, &envelope.head)?;
        if envelope.head.position > seen.head.position {
            seen.head = envelope.head;
        }
        Ok(true)
    }

    /// A judgement is carried out only if it cannot be that of a decider, or a journal, that does not know better.
    fn may_remove(&self, envelope: &Envelope, object: ObjectId, judgement: Judgement) -> bool {
        let knows_all = self.seen.is_some_and(|seen| envelope.head.position >= seen.head.position);
        let its_own = Some(object.lineage()) == self.lineage();
        match judgement {
            Judgement::Quarantine => {
                tracing::warn!(%object, "left as it is: the fleet does not know it as its own");
                false
            }
            Judgement::Remove if knows_all && its_own && object.position() <= envelope.head.position => true,
            Judgement::Remove => {
                tracing::error!(%object, "not removed: the decider cannot know that it may be");
                false
            }
        }
    }

    fn lineage(&self) -> Option<Lineage> {
        self.seen.map(|seen| seen.lineage)
    }

    fn listed(&mut self, reports: Vec<Report>, out: &mut Vec<Output>) -> Result<(), Stop> {
        let (Phase::Listing(c) | Phase::Attached(c)) = &self.phase else {
            return Ok(());
        };
        if c.inventory != Inventory::Asked {
            return Ok(());
        }
        if c.failures > 0 {
            tracing::info!(objects = reports.len(), "inventory known again");
        }
        let connection = Connection { inventory: Inventory::Reported, ..*c };
        let head = self.seen.map(|seen| seen.head.position).unwrap_or_default();
        let mut ours = reports.iter().map(|r| r.object).filter(|id| id.lineage() == connection.lineage);
        if let Some(id) = ours.find(|id| id.position() > head) {
            return Err(Stop::NewerElsewhere(format!("{id} is here, and this one has not issued it yet")));
        }
        let attach = connection.attach;
        let mut reports = reports.into_iter().peekable();
        loop {
            let (mut part, mut bytes) = (Vec::new(), 0);
            while part.len() < LEVEL_PART
                && bytes < LEVEL_PART_BYTES
                && let Some(report) = reports.next()
            {
                bytes += json_bytes(&report);
                part.push(report);
            }
            let last = if reports.peek().is_none() { Part::Last } else { Part::More };
            out.push(Output::Say(ToDecider::Level { attach, reports: part, part: last }));
            if last == Part::Last {
                break;
            }
        }
        self.phase = Phase::Attached(connection);
        Ok(())
    }

    /// What the orchestrator has is not known, in whole or since the last change: it is listed again later.
    fn not_known(&mut self, now: Duration, error: &dyn std::error::Error) {
        let (Phase::Listing(c) | Phase::Attached(c)) = &mut self.phase else {
            return;
        };
        let pause = backoff(c.failures);
        c.failures = c.failures.saturating_add(1);
        c.inventory = Inventory::Unknown { until: now + pause };
        tracing::warn!(%error, failures = c.failures, ?pause, "inventory unknown, listing again");
    }

    fn changed(&mut self, reports: Vec<Report>, out: &mut Vec<Output>) {
        let Phase::Attached(c) = &mut self.phase else {
            // The next level covers them.
            return;
        };
        c.failures = 0;
        for report in reports {
            c.said += 1;
            out.push(Output::Say(ToDecider::Report { attach: c.attach, sequence: c.said, report }));
        }
    }

    fn begin_work(&mut self, now: Duration, out: &mut Vec<Output>) {
        // Not before the list was looked at: it may show that this decider is an old one.
        if !self.lease.may_act(now) || matches!(self.phase, Phase::Listing(_)) {
            return;
        }
        while let Some(work) = self.queue.next() {
            if let (Some(seen), true) = (self.seen, self.seen != self.persisted) {
                out.push(Output::Persist(seen));
                self.persisted = Some(seen);
            }
            out.push(Output::Begin(work));
        }
    }
}

/// The pause after so many failures before this one.
fn backoff(failures: u32) -> Duration {
    (BACKOFF_FIRST * 2u32.saturating_pow(failures.min(10))).min(BACKOFF_MOST)
}

/// What is wanted must have been issued before it is wanted.
fn issued(object: ObjectId, envelope: &Envelope, lineage: Option<Lineage>) -> bool {
    let issued = Some(object.lineage()) != lineage || object.position() <= envelope.head.position;
    if !issued {
        tracing::error!(%object, "a command for an object that its journal has not issued is ignored");
    }
    issued
}

fn same_history(known: &Head, told: &Head) -> Result<(), Stop> {
    if known.position == told.position && known.hash != told.hash {
        return Err(Stop::Diverged(known.position.get()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
