//! Session with the decider, without I/O: inputs, and the actions that follow from each.
//!
//! | phase | connected | welcome | listed | not listed | watch lost | heartbeat ack, inventory, command, purge, orphan resolved | refused, closed | disconnected | timeout |
//! |---|---|---|---|---|---|---|---|---|---|
//! | waiting | – | – | – | – | – | – | – | – | connect |
//! | connecting | hello, → greeting | – | – | – | – | – | – | → waiting | – |
//! | greeting | – | list, → listing | – | – | – | – | → waiting, or stop | → waiting | hang up, → waiting |
//! | listing | – | – | full report, → attached | list after a pause | – | as attached | → waiting | → waiting | hang up, → waiting |
//! | attached | – | – | full report, if requested | list after a pause | list after a pause | renew, queue | → waiting | → waiting | hang up, → waiting |
//!
//! A failed list gives no information about objects: heartbeats continue, and the list is requested again
//! after a pause that grows up to 5 s. While the watch is lost, no change is accepted, and work continues.
//!
//! Invariants: no work starts later than ¾ of the lease after the last answered heartbeat (or hello) was
//! sent. No work starts on a head that is not on disk, and none overlaps other work on the same object. A
//! decider that knows less than this executor has seen changes nothing. Time is a duration on the executor's
//! own monotonic clock.

use std::time::Duration;

use chancery_events::fact::OrphanResolution;
use chancery_events::id::{ConnectionToken, Lineage, ObjectId};
use chancery_events::observation::ObjectReport;
use chancery_events::protocol::{
    Command, DeciderEnvelope, DeciderMessage, ExecutorMessage, HelloRetry, JournalHead, ReportPart,
};
use chancery_events::size::json_bytes;

mod lease;
mod messages;
mod queue;

use lease::SessionLease;
pub use messages::{ExecutorStop, HighestHead, SessionAction, SessionIdentity, SessionInput};
pub use queue::ObjectWork;
use queue::WorkQueue;

/// Maximum number of reports in one part of a full report.
const LEVEL_PART: usize = 500;
/// Bytes of JSON after which a part of a full report ends. A server accepts no message above 16 MiB, and one
/// report may exceed a quarter of a mebibyte.
const FULL_REPORT_PART_BYTES: usize = 1 << 20;
/// Maximum number of unaccepted reports.
const WINDOW: u64 = 1000;
/// Time limit for the answer to a hello.
const GREETING: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MOST: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum SessionPhase {
    Waiting { until: Duration },
    Connecting,
    Greeting { since: Duration },
    Listing(SessionConnection),
    Attached(SessionConnection),
}

/// Connection that one welcome started.
#[derive(Debug)]
struct SessionConnection {
    token: ConnectionToken,
    lineage: Lineage,
    /// Number of reports sent.
    sent: u64,
    /// Number of reports that the decider accepted.
    accepted: u64,
    inventory: InventoryPart,
    /// Number of failed lists and lost watches since the last change.
    failures: u32,
}

/// Progress of reporting the inventory to the decider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InventoryPart {
    /// The list of objects was requested from the orchestrator.
    Asked,
    /// The list failed, or changes were missed; the list is requested again at `until`.
    Unknown { until: Duration },
    /// The full report was sent; changes follow.
    Reported,
}

/// State machine of a session; see the module.
#[derive(Debug)]
pub struct SessionCore {
    identity: SessionIdentity,
    seen: Option<HighestHead>,
    persisted: Option<HighestHead>,
    phase: SessionPhase,
    failures: u32,
    lease: SessionLease,
    queue: WorkQueue,
}

impl SessionCore {
    /// Creates the session of an executor that remembers `seen`; `at_once` limits overlapping work.
    pub fn new(identity: SessionIdentity, seen: Option<HighestHead>, at_once: usize) -> SessionCore {
        SessionCore {
            identity,
            seen,
            persisted: seen,
            phase: SessionPhase::Waiting { until: Duration::ZERO },
            failures: 0,
            lease: SessionLease::default(),
            queue: WorkQueue::new(at_once),
        }
    }

    /// Whether changes are accepted: after the full report, while fewer than 1000 reports wait for
    /// acceptance.
    pub fn takes_changes(&self) -> bool {
        matches!(&self.phase, SessionPhase::Attached(c)
            if c.inventory == InventoryPart::Reported && c.sent - c.accepted < WINDOW)
    }

    /// Whether the decider has the full report of this session.
    pub fn is_attached(&self) -> bool {
        matches!(self.phase, SessionPhase::Attached(_))
    }

    /// Returns when the lease ends; `None` without a lease.
    pub fn lease_end(&self) -> Option<Duration> {
        (!self.lease.length().is_zero()).then(|| self.lease.end())
    }

    /// Returns when a tick is due, if nothing else happens.
    pub fn due(&self) -> Option<Duration> {
        match &self.phase {
            SessionPhase::Waiting { until } => Some(*until),
            SessionPhase::Connecting => None,
            SessionPhase::Greeting { since } => Some(*since + GREETING),
            SessionPhase::Listing(c) | SessionPhase::Attached(c) => Some(match c.inventory {
                InventoryPart::Unknown { until } => until.min(self.lease.due()),
                InventoryPart::Asked | InventoryPart::Reported => self.lease.due(),
            }),
        }
    }

    /// Handles one input at `now` and returns the actions that follow.
    pub fn handle(&mut self, now: Duration, input: SessionInput) -> Vec<SessionAction> {
        let (mut out, mut done) = (Vec::new(), Ok(()));
        match input {
            SessionInput::Connected => self.connected(now, &mut out),
            SessionInput::Disconnected => self.wait(now),
            SessionInput::Message(message) => done = self.receive(now, message, &mut out),
            SessionInput::Listed(reports) => done = self.listed(reports, &mut out),
            SessionInput::NotListed(error) => self.not_known(now, &error),
            SessionInput::Changed(reports) => self.changed(reports, &mut out),
            SessionInput::WatchLost(error) => self.not_known(now, &error),
            SessionInput::Done(object) => self.queue.done(object),
            SessionInput::PutOff(work) => self.queue.put_off(work),
            SessionInput::Tick => self.tick(now, &mut out),
            SessionInput::Leave => {
                if let SessionPhase::Listing(c) | SessionPhase::Attached(c) = &self.phase {
                    out.push(SessionAction::Send(ExecutorMessage::Goodbye { connection: c.token }));
                }
                out.push(SessionAction::Leave);
                return out;
            }
        }
        match done {
            Ok(()) => self.begin_work(now, &mut out),
            Err(stop) => out.push(SessionAction::Stop(stop)),
        }
        out
    }

    fn connected(&mut self, now: Duration, out: &mut Vec<SessionAction>) {
        let SessionIdentity { executor, cluster, runtime, store, epoch } = self.identity.clone();
        let seen = self.seen.map(|seen| (seen.lineage, seen.head));
        let hello = ExecutorMessage::Hello { executor, cluster, runtime, store, epoch, seen };
        out.push(SessionAction::Send(hello));
        self.phase = SessionPhase::Greeting { since: now };
    }

    /// Schedules another attempt to connect; the lease stays usable until its ¾.
    fn wait(&mut self, now: Duration) {
        // A decider that comes back must be contacted within a lease, or the session expires.
        let most = if self.lease.length().is_zero() { BACKOFF_MOST } else { self.lease.length() / 3 };
        let until = now + backoff(self.failures).min(most);
        self.failures = self.failures.saturating_add(1);
        self.phase = SessionPhase::Waiting { until };
    }

    fn hang_up(&mut self, now: Duration, out: &mut Vec<SessionAction>) {
        out.push(SessionAction::HangUp);
        self.wait(now);
    }

    fn tick(&mut self, now: Duration, out: &mut Vec<SessionAction>) {
        match &mut self.phase {
            SessionPhase::Waiting { until } if now >= *until => {
                self.phase = SessionPhase::Connecting;
                out.push(SessionAction::Connect);
            }
            SessionPhase::Greeting { since } if now >= *since + GREETING => {
                tracing::warn!("no answer to hello, connecting again");
                self.hang_up(now, out);
            }
            SessionPhase::Listing(_) | SessionPhase::Attached(_) if self.lease.is_over(now) => {
                tracing::info!("lease has ended, connecting again");
                self.hang_up(now, out);
            }
            SessionPhase::Listing(c) | SessionPhase::Attached(c) => {
                if matches!(c.inventory, InventoryPart::Unknown { until } if now >= until) {
                    c.inventory = InventoryPart::Asked;
                    out.push(SessionAction::List);
                }
                if let Some(sequence) = self.lease.heartbeat(now) {
                    let heartbeat = ExecutorMessage::Heartbeat { connection: c.token, sequence };
                    out.push(SessionAction::Send(heartbeat));
                }
            }
            // The loop woke too early.
            SessionPhase::Waiting { .. } | SessionPhase::Connecting | SessionPhase::Greeting { .. } => {}
        }
    }

    fn receive(
        &mut self,
        now: Duration,
        message: DeciderMessage,
        out: &mut Vec<SessionAction>,
    ) -> Result<(), ExecutorStop> {
        match message {
            DeciderMessage::Welcome { envelope, lineage, fleet: _, lease, commands, next_after: rest } => {
                self.welcomed(now, &envelope, lineage, lease, out)?;
                self.wanted(&envelope, commands, rest, out)?;
            }
            DeciderMessage::Inventory { envelope, commands, next_after: rest } => {
                self.wanted(&envelope, commands, rest, out)?;
            }
            DeciderMessage::Refused { reason, retry: again } => match again {
                HelloRetry::Later => {
                    tracing::warn!(reason, "session refused, retrying");
                    self.hang_up(now, out);
                }
                HelloRetry::StaleDecider => return Err(ExecutorStop::StaleDecider(reason)),
                HelloRetry::Never => return Err(ExecutorStop::Refused(reason)),
            },
            DeciderMessage::ConnectionClosed { reason } => {
                tracing::info!(reason, "connection closed by decider");
                self.hang_up(now, out);
            }
            DeciderMessage::Command { envelope, command } => {
                if self.believes(&envelope)? && issued(command.object, &envelope, self.lineage()) {
                    self.queue.add(ObjectWork::CarryOut(command));
                }
            }
            DeciderMessage::Purge { envelope, object } => {
                if self.believes(&envelope)? {
                    self.queue.add(ObjectWork::Purge(object));
                }
            }
            DeciderMessage::OrphanResolved { envelope, object, resolution: judgement, revision } => {
                if self.believes(&envelope)? && self.may_remove(&envelope, object, judgement) {
                    self.queue.add(ObjectWork::Remove { object, revision });
                }
            }
            DeciderMessage::ReportsAccepted { envelope, sequence } => {
                if self.believes(&envelope)?
                    && let SessionPhase::Listing(c) | SessionPhase::Attached(c) = &mut self.phase
                {
                    c.accepted = c.accepted.max(sequence.min(c.sent));
                }
            }
            DeciderMessage::HeartbeatAck { envelope, sequence: heartbeat } => {
                if self.believes(&envelope)? {
                    self.lease.answered(heartbeat);
                }
            }
        }
        Ok(())
    }

    fn welcomed(
        &mut self,
        now: Duration,
        envelope: &DeciderEnvelope,
        lineage: Lineage,
        lease: Duration,
        out: &mut Vec<SessionAction>,
    ) -> Result<(), ExecutorStop> {
        let SessionPhase::Greeting { since } = self.phase else {
            tracing::warn!("unexpected welcome ignored");
            return Ok(());
        };
        // The decider has judged a change of lineage already: the hello named `seen`.
        let known = self.seen.filter(|seen| seen.lineage == lineage);
        if let Some(seen) = known {
            if envelope.head.term < seen.head.term {
                tracing::warn!("connection closed: decider has an earlier term");
                self.hang_up(now, out);
                return Ok(());
            }
            if envelope.head.position < seen.head.position {
                let (theirs, ours) = (envelope.head.position, seen.head.position);
                return Err(ExecutorStop::StaleDecider(format!(
                    "its journal ends at {theirs}, and {ours} was seen"
                )));
            }
            same_history(&seen.head, &envelope.head)?;
        }
        self.seen = Some(HighestHead { lineage, head: envelope.head });
        self.failures = 0;
        self.lease = SessionLease::since(since, lease);
        self.phase = SessionPhase::Listing(SessionConnection {
            token: envelope.connection,
            lineage,
            sent: 0,
            accepted: 0,
            inventory: InventoryPart::Asked,
            failures: 0,
        });
        // An earlier connection requested the waiting work; the inventory repeats what still counts.
        self.queue.clear_waiting();
        out.push(SessionAction::List);
        Ok(())
    }

    /// Queues a part of the inventory and requests the next part.
    fn wanted(
        &mut self,
        envelope: &DeciderEnvelope,
        commands: Vec<Command>,
        next_after: Option<ObjectId>,
        out: &mut Vec<SessionAction>,
    ) -> Result<(), ExecutorStop> {
        if !self.believes(envelope)? {
            return Ok(());
        }
        for command in commands {
            if issued(command.object, envelope, self.lineage()) {
                self.queue.add(ObjectWork::CarryOut(command));
            }
        }
        if let Some(after) = next_after {
            let request = ExecutorMessage::InventoryRequest { connection: envelope.connection, after };
            out.push(SessionAction::Send(request));
        }
        Ok(())
    }

    /// Whether a message counts. Remembers the head of the message if it is the highest.
    fn believes(&mut self, envelope: &DeciderEnvelope) -> Result<bool, ExecutorStop> {
        let (SessionPhase::Listing(c) | SessionPhase::Attached(c), Some(seen)) =
            (&self.phase, &mut self.seen)
        else {
            return Ok(false);
        };
        if c.token != envelope.connection || envelope.head.term < seen.head.term {
            tracing::warn!("message of another connection or earlier term ignored");
            return Ok(false);
        }
        same_history(&seen.head, &envelope.head)?;
        if envelope.head.position > seen.head.position {
            seen.head = envelope.head;
        }
        Ok(true)
    }

    /// Whether an orphan may be removed: only if its decider and journal cannot be older than what was seen.
    fn may_remove(&self, envelope: &DeciderEnvelope, object: ObjectId, judgement: OrphanResolution) -> bool {
        let knows_all = self.seen.is_some_and(|seen| envelope.head.position >= seen.head.position);
        let its_own = Some(object.lineage()) == self.lineage();
        match judgement {
            OrphanResolution::Leave => {
                tracing::warn!(%object, "object left in place: unknown to the fleet");
                false
            }
            OrphanResolution::Remove
                if knows_all && its_own && object.position() <= envelope.head.position =>
            {
                true
            }
            OrphanResolution::Remove => {
                tracing::error!(%object, "cannot remove object: decider may be stale or foreign");
                false
            }
        }
    }

    fn lineage(&self) -> Option<Lineage> {
        self.seen.map(|seen| seen.lineage)
    }

    fn listed(
        &mut self,
        reports: Vec<ObjectReport>,
        out: &mut Vec<SessionAction>,
    ) -> Result<(), ExecutorStop> {
        let (SessionPhase::Listing(c) | SessionPhase::Attached(c)) = &self.phase else {
            return Ok(());
        };
        if c.inventory != InventoryPart::Asked {
            return Ok(());
        }
        if c.failures > 0 {
            tracing::info!(objects = reports.len(), "inventory known again");
        }
        let connection = SessionConnection { inventory: InventoryPart::Reported, ..*c };
        let head = self.seen.map(|seen| seen.head.position).unwrap_or_default();
        let mut ours = reports.iter().map(|r| r.object).filter(|id| id.lineage() == connection.lineage);
        if let Some(id) = ours.find(|id| id.position() > head) {
            return Err(ExecutorStop::StaleDecider(format!("its journal has not issued {id}, which exists")));
        }
        let token = connection.token;
        let mut reports = reports.into_iter().peekable();
        loop {
            let (mut part, mut bytes) = (Vec::new(), 0);
            while part.len() < LEVEL_PART
                && bytes < FULL_REPORT_PART_BYTES
                && let Some(report) = reports.next()
            {
                bytes += json_bytes(&report);
                part.push(report);
            }
            let last = if reports.peek().is_none() { ReportPart::Last } else { ReportPart::Partial };
            let report = ExecutorMessage::FullReport { connection: token, reports: part, part: last };
            out.push(SessionAction::Send(report));
            if last == ReportPart::Last {
                break;
            }
        }
        self.phase = SessionPhase::Attached(connection);
        Ok(())
    }

    /// Schedules another list: the inventory is unknown, in whole or since the last change.
    fn not_known(&mut self, now: Duration, error: &dyn std::error::Error) {
        let (SessionPhase::Listing(c) | SessionPhase::Attached(c)) = &mut self.phase else {
            return;
        };
        let pause = backoff(c.failures);
        c.failures = c.failures.saturating_add(1);
        c.inventory = InventoryPart::Unknown { until: now + pause };
        tracing::warn!(%error, failures = c.failures, ?pause, "inventory unknown, listing again");
    }

    fn changed(&mut self, reports: Vec<ObjectReport>, out: &mut Vec<SessionAction>) {
        let SessionPhase::Attached(c) = &mut self.phase else {
            // The next full report covers the changes.
            return;
        };
        c.failures = 0;
        for report in reports {
            c.sent += 1;
            let report = ExecutorMessage::Report { connection: c.token, sequence: c.sent, report };
            out.push(SessionAction::Send(report));
        }
    }

    fn begin_work(&mut self, now: Duration, out: &mut Vec<SessionAction>) {
        // Work waits until the list was checked: it may show that this decider is an old one.
        if !self.lease.may_act(now) || matches!(self.phase, SessionPhase::Listing(_)) {
            return;
        }
        while let Some(work) = self.queue.next() {
            if let (Some(seen), true) = (self.seen, self.seen != self.persisted) {
                out.push(SessionAction::Persist(seen));
                self.persisted = Some(seen);
            }
            out.push(SessionAction::Begin(work));
        }
    }
}

/// Returns the pause after `failures` earlier failures.
fn backoff(failures: u32) -> Duration {
    (BACKOFF_FIRST * 2u32.saturating_pow(failures.min(10))).min(BACKOFF_MOST)
}

/// Whether the journal has issued the object: a command can only follow its object.
fn issued(object: ObjectId, envelope: &DeciderEnvelope, lineage: Option<Lineage>) -> bool {
    let issued = Some(object.lineage()) != lineage || object.position() <= envelope.head.position;
    if !issued {
        tracing::error!(%object, "command ignored: its journal has not issued the object");
    }
    issued
}

fn same_history(known: &JournalHead, received: &JournalHead) -> Result<(), ExecutorStop> {
    if known.position == received.position && known.hash != received.hash {
        return Err(ExecutorStop::Diverged(known.position.get()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
