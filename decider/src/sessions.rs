//! Messages between the decider and executors.
//!
//! Connection tokens, sequences and heartbeats are kept in memory: a takeover loses them, and every executor
//! sends hello again. Opening, expiry and closing of a session are events; everything else here is not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chancery_events::id::{ConnectionToken, Lineage, ObjectId, Position, SessionId};
use chancery_events::name::{ClusterName, ExecutorName};
use chancery_events::observation::{Observation, SessionEnd, SessionEnded, SessionRequested};
use chancery_events::protocol::{
    Command, DeciderEnvelope, DeciderMessage, EpochOrder, ExecutorEpoch, ExecutorMessage, HelloRetry,
    JournalHead,
};
use chancery_events::size::json_bytes;
use chancery_events::time::Time;
use chancery_machine::fleet::FleetState;
use chancery_machine::session::{SessionRefused, resumes};

use super::commands;
use super::core::{DeciderCore, HeldEffect};
use super::handle::{ChannelNumber, DeciderReading};
use super::inbox::InboxProgress;

/// Maximum number of objects checked for one part of an inventory.
const LOOKED: usize = 4096;

/// Live session, as this decider knows it.
#[derive(Debug)]
pub(super) struct LiveSession {
    pub(super) executor: ExecutorName,
    pub(super) cluster: ClusterName,
    /// Executor epoch received last, if any.
    epoch: Option<ExecutorEpoch>,
    /// Connection of the session, and the token drawn for it.
    pub(super) attached: Option<(ChannelNumber, ConnectionToken)>,
    /// Highest sequence received on that connection.
    sequence: u64,
    /// Highest position that the executor has seen.
    pub(super) seen: Position,
    /// Time of the last message.
    last_message: Time,
    /// Position that must be durable before the last inventory part is sent.
    part: Position,
}

/// Sessions of a fleet.
#[derive(Debug, Default)]
pub(super) struct SessionTable {
    pub(super) live: BTreeMap<SessionId, LiveSession>,
    pub(super) by_connection: BTreeMap<ChannelNumber, SessionId>,
    pub(super) by_cluster: BTreeMap<ClusterName, SessionId>,
    /// Random bits drawn by the loop for each open connection.
    drawn: BTreeMap<ChannelNumber, ConnectionToken>,
    /// Commands to retry, by time.
    pub(super) retries: BTreeSet<(Time, ObjectId)>,
    /// Objects of `retries` that an executor only checks, each once.
    pub(super) looking: BTreeSet<ObjectId>,
}

impl SessionTable {
    /// Returns the journal's sessions, all unattached: each has a lease to reconnect.
    pub(super) fn resume(fleet: &FleetState, now: Time) -> SessionTable {
        let mut sessions = SessionTable::default();
        for session in fleet.sessions().sorted().into_iter().filter(|session| session.end.is_none()) {
            sessions.open(session.id, session.executor.clone(), session.cluster.clone(), now);
        }
        sessions.retries =
            fleet.index().pending_commands.iter().copied().filter(|(when, _)| *when > now).collect();
        sessions
    }

    fn open(&mut self, id: SessionId, executor: ExecutorName, cluster: ClusterName, last_message: Time) {
        self.by_cluster.insert(cluster.clone(), id);
        let live = LiveSession {
            executor,
            cluster,
            epoch: None,
            attached: None,
            sequence: 0,
            seen: Position::ZERO,
            last_message,
            part: Position::ZERO,
        };
        self.live.insert(id, live);
    }

    /// Reason why an executor epoch must not resume the session, if any. Of two live epochs of one executor
    /// store, one must stop permanently. Otherwise they would take the session from each other in turn.
    fn outlived(&self, id: SessionId, executor_epoch: ExecutorEpoch) -> Option<(&'static str, HelloRetry)> {
        match executor_epoch.after(self.live.get(&id)?.epoch?) {
            EpochOrder::Same | EpochOrder::Newer => None,
            EpochOrder::Older => Some(("a later epoch of this executor has taken over", HelloRetry::Never)),
            EpochOrder::Cloned => Some((
                "another executor uses a copy of this executor store: stop one of them",
                HelloRetry::Later,
            )),
        }
    }

    fn envelope(&self, id: SessionId, head: JournalHead) -> Option<(ChannelNumber, DeciderEnvelope)> {
        let (connection, token) = self.live.get(&id)?.attached?;
        Some((connection, DeciderEnvelope { session: id, connection: token, head }))
    }
}

impl DeciderCore {
    pub(super) fn connected(&mut self, connection: ChannelNumber, token: ConnectionToken) {
        self.sessions.drawn.insert(connection, token);
    }

    pub(super) fn disconnected(&mut self, connection: ChannelNumber) {
        self.sessions.drawn.remove(&connection);
        if let Some(id) = self.sessions.by_connection.remove(&connection)
            && let Some(live) = self.sessions.live.get_mut(&id)
            && live.attached.is_some_and(|(attached, _)| attached == connection)
        {
            live.attached = None;
        }
    }

    pub(super) fn receive(&mut self, connection: ChannelNumber, message: ExecutorMessage, now: Time) {
        self.set_time(now);
        match message {
            ExecutorMessage::Hello { executor, cluster, runtime, store, epoch, seen } => {
                let hello = SessionRequested { cluster, executor, runtime, store };
                self.hello(connection, hello, epoch, seen, now);
            }
            ExecutorMessage::FullReport { connection: token, reports, part: _ } => {
                let Some(id) = self.speaker(connection, token, now) else { return };
                for report in reports {
                    self.report(id, report);
                }
            }
            ExecutorMessage::Report { connection: connection_token, sequence, report } => {
                let Some(id) = self.speaker(connection, connection_token, now) else { return };
                let Some(live) = self.sessions.live.get_mut(&id) else { return };
                if sequence > live.sequence {
                    live.sequence = sequence;
                    self.report(id, report);
                }
                self.send(id, |envelope| DeciderMessage::ReportsAccepted { envelope, sequence });
            }
            ExecutorMessage::InventoryRequest { connection: attach, after } => {
                let Some(id) = self.speaker(connection, attach, now) else { return };
                let (head, durable) = (self.fleet.head(), self.durable().position);
                let Some(live) = self.sessions.live.get_mut(&id) else { return };
                // An executor requests the next part when it has the previous one. While that part is held
                // back, a request is a duplicate: ignoring it is correct, and limits the held outputs.
                if live.part > durable {
                    return;
                }
                live.part = head;
                let cluster = live.cluster.clone();
                let (commands, rest) = self.inventory(&cluster, Some(after));
                self.send(id, |envelope| DeciderMessage::Inventory { envelope, commands, next_after: rest });
            }
            ExecutorMessage::Heartbeat { connection: attach, sequence: heartbeat } => {
                if let Some(id) = self.speaker(connection, attach, now) {
                    self.send(id, |envelope| DeciderMessage::HeartbeatAck { envelope, sequence: heartbeat });
                }
            }
            ExecutorMessage::Goodbye { connection: attach } => {
                if let Some(id) = self.speaker(connection, attach, now) {
                    self.end_session(id, SessionEnd::Left);
                    self.hold(HeldEffect::Close(connection));
                }
            }
        }
    }

    /// Returns the session of the connection, and counts it as alive. A connection without a session is
    /// closed, so that its executor sends hello again.
    ///
    /// The session is alive at `now`, perhaps later than the draft commit: an answered lease must not end
    /// early.
    fn speaker(&mut self, connection: ChannelNumber, token: ConnectionToken, now: Time) -> Option<SessionId> {
        let id = self.sessions.by_connection.get(&connection).copied();
        if let Some(live) = id.and_then(|id| self.sessions.live.get_mut(&id))
            && live.attached == Some((connection, token))
        {
            live.last_message = live.last_message.max(now);
            return id;
        }
        let reason = "this connection has no session".into();
        self.hold(HeldEffect::Send(connection, Box::new(DeciderMessage::ConnectionClosed { reason })));
        self.hold(HeldEffect::Close(connection));
        None
    }

    fn refuse_connection(&mut self, connection: ChannelNumber, reason: String, again: HelloRetry) {
        self.hold(HeldEffect::Send(connection, Box::new(DeciderMessage::Refused { reason, retry: again })));
    }

    fn hello(
        &mut self,
        connection: ChannelNumber,
        hello: SessionRequested,
        epoch: ExecutorEpoch,
        seen: Option<(Lineage, JournalHead)>,
        now: Time,
    ) {
        // The connection closed meanwhile: no executor would use the session.
        let Some(token) = self.sessions.drawn.get(&connection).copied() else { return };
        if let Some((reason, again)) = self.unfit(seen) {
            return self.refuse_connection(connection, reason, again);
        }
        let id = match resumes(&self.fleet, &hello) {
            Err(error) => {
                let again = match error {
                    SessionRefused::NoCluster(_)
                    | SessionRefused::Held { .. }
                    | SessionRefused::Namesake { .. }
                    | SessionRefused::LeftElsewhere { .. } => HelloRetry::Later,
                    SessionRefused::OtherRuntime { .. } => HelloRetry::Never,
                };
                return self.refuse_connection(connection, error.to_string(), again);
            }
            Ok(Some(id)) => {
                if let Some((reason, again)) = self.sessions.outlived(id, epoch) {
                    return self.refuse_connection(connection, reason.into(), again);
                }
                id
            }
            Ok(None) => {
                let by = hello.executor.clone();
                self.observation(&by, Observation::SessionRequested(hello.clone()));
                let Some(id) = self.fleet.clusters().get(&hello.cluster).and_then(|cluster| cluster.session)
                else {
                    let reason = "cannot open session: internal error".into();
                    return self.refuse_connection(connection, reason, HelloRetry::Later);
                };
                id
            }
        };
        if !self.sessions.live.contains_key(&id) {
            self.sessions.open(id, hello.executor, hello.cluster.clone(), now);
        }
        let old = self.sessions.live.get(&id).and_then(|live| live.attached);
        if let Some((old, _)) = old.filter(|(old, _)| *old != connection) {
            self.close_session(id, "the executor has connected again");
            self.sessions.by_connection.remove(&old);
            self.hold(HeldEffect::Close(old));
        }
        let Some(live) = self.sessions.live.get_mut(&id) else { return };
        (live.attached, live.sequence, live.last_message) = (Some((connection, token)), 0, now);
        live.seen = seen.map_or(Position::ZERO, |(_, head)| head.position);
        (live.epoch, live.part) = (Some(epoch), self.fleet.head());
        self.sessions.by_connection.insert(connection, id);
        let (commands, next_after) = self.inventory(&hello.cluster, None);
        let (lineage, fleet, lease) = (self.lineage, self.settings.fleet.clone(), self.settings.lease);
        self.send(id, |envelope| DeciderMessage::Welcome {
            envelope,
            lineage,
            fleet,
            lease,
            commands,
            next_after,
        });
    }

    /// Reason why an executor that has seen this head must not work for this decider, if any.
    fn unfit(&self, seen: Option<(Lineage, JournalHead)>) -> Option<(String, HelloRetry)> {
        let (lineage, head) = seen?;
        let lineages = self.fleet.lineages();
        let end = lineages.end(lineage);
        if lineage != lineages.current && end.is_none() {
            return Some((
                format!("the executor has worked for another journal, {lineage}"),
                HelloRetry::Never,
            ));
        }
        if lineage == lineages.current && head.position > self.durable().position {
            let reason = format!(
                "the executor has seen position {}, and this decider ends at {}",
                head.position,
                self.durable().position
            );
            return Some((reason, HelloRetry::StaleDecider));
        }
        // A head past the end of an ancestor is part of a loss that was accepted.
        if end.is_some_and(|end| head.position > end) {
            return None;
        }
        match (self.lookup)(head.position) {
            Ok(Some(hash)) if hash == head.hash => None,
            // A head is the end of a record: if none ends there, or another one does, the histories differ.
            Ok(_) => Some((
                format!("the executor has seen another record at position {}", head.position),
                HelloRetry::Never,
            )),
            // Whether the histories differ is unknown; the next attempt may find out.
            Err(error) => {
                let position = head.position;
                tracing::error!(%position, error = &error as &dyn std::error::Error, "cannot read record that an executor has seen");
                Some((format!("cannot read record at position {position}"), HelloRetry::Later))
            }
        }
    }

    /// Returns a part of the executor's commands: a message has a bound, a cluster has none. The executor
    /// requests the next part, so that its queue has a bound too. Changes after that part are sent as they
    /// occur.
    fn inventory(&self, cluster: &ClusterName, after: Option<ObjectId>) -> (Vec<Command>, Option<ObjectId>) {
        let time = self.time;
        let (mut commands, mut bytes, mut last) = (Vec::new(), 0, None);
        for (looked, id) in self.fleet.index().inventory_after(cluster, after).enumerate() {
            if bytes >= self.settings.part || looked >= LOOKED {
                return (commands, last);
            }
            last = Some(id);
            // A failed command that is retried later is sent when its time comes.
            let waits = match id {
                ObjectId::Incarnation(id) => self.fleet.incarnations().get(&id).and_then(|it| it.command),
                ObjectId::Volume(id) => commands::volume(&self.fleet, id).and_then(|volume| volume.command),
            };
            if waits.is_some_and(|command| command.not_before > time) {
                continue;
            }
            if let Some(command) = commands::command(&self.fleet, id) {
                bytes += json_bytes(&command);
                commands.push(command);
            }
        }
        (commands, None)
    }

    /// Sends a message to the executor of the session, if one is attached.
    pub(super) fn send(&mut self, id: SessionId, message: impl FnOnce(DeciderEnvelope) -> DeciderMessage) {
        if let Some((connection, envelope)) = self.sessions.envelope(id, self.durable()) {
            self.hold(HeldEffect::Send(connection, Box::new(message(envelope))));
        }
    }

    /// Notifies the executor of the session that the session or its connection has ended.
    pub(super) fn close_session(&mut self, id: SessionId, reason: &str) {
        self.send(id, |_| DeciderMessage::ConnectionClosed { reason: reason.to_owned() });
    }

    /// Sends a message to the cluster's executor, if attached: if not, the next welcome covers it.
    pub(super) fn send_to_cluster(
        &mut self,
        cluster: &ClusterName,
        message: impl FnOnce(DeciderEnvelope) -> DeciderMessage,
    ) {
        if let Some(id) = self.sessions.by_cluster.get(cluster).copied() {
            self.send(id, message);
        }
    }

    /// Sends commands whose retry is due, and expires sessions that were silent for a lease.
    pub(super) fn sweep(&mut self) {
        let now = self.time;
        while let Some((when, id)) = self.sessions.retries.first().copied().filter(|(when, _)| *when <= now) {
            self.sessions.retries.remove(&(when, id));
            self.sessions.looking.remove(&id);
            self.command_again(Some(id));
        }
        let (lease, grace) = (self.settings.lease, self.agenda.grace);
        let silent = |live: &LiveSession| grace.rings_at(live.last_message + lease) < now;
        let lost: Vec<_> =
            self.sessions.live.iter().filter(|(_, live)| silent(live)).map(|(id, _)| *id).collect();
        for id in lost {
            self.end_session(id, SessionEnd::Expired);
        }
    }

    /// Returns the values of this decider that are in no event, for metrics.
    pub(super) fn read(&self, now: Time) -> DeciderReading {
        let (lease, grace) = (self.settings.lease, self.agenda.grace);
        let left = |live: &LiveSession| grace.rings_at(live.last_message + lease).since(now);
        let leases = self.sessions.live.values().map(|live| (live.cluster.clone(), left(live))).collect();
        DeciderReading { leases, inbox_offset: self.inbox.as_ref().map(InboxProgress::next) }
    }

    /// Extends the grace if messages may have waited unread for much of a lease. Each executor sends three
    /// messages per lease, so it has half a lease to be received. Before, neither leases nor deadlines end.
    /// If messages stay late, a deadline is late by a bound ([`chancery_machine::grace::DeadlineGrace`]).
    pub(super) fn extend_grace(&mut self, span: Duration, now: Time) {
        let lease = self.settings.lease;
        if span > lease / 4 {
            self.agenda.grace = self.agenda.grace.extended(now, span, lease / 2);
        }
    }

    fn end_session(&mut self, session: SessionId, end: SessionEnd) {
        let Some(by) = self.sessions.live.get(&session).map(|live| live.executor.clone()) else { return };
        self.observation(&by, Observation::SessionEnded(SessionEnded { session, end }));
    }

    pub(super) fn next_session_due(&self) -> Option<Time> {
        let retry = self.sessions.retries.first().map(|(when, _)| *when);
        let lease = self.settings.lease;
        let grace = self.agenda.grace;
        let lost = self.sessions.live.values().map(|live| grace.rings_at(live.last_message + lease)).min();
        // One microsecond past the lease: a message at its very end is in time.
        retry.into_iter().chain(lost.map(|when| when + Duration::from_micros(1))).min()
    }
}
