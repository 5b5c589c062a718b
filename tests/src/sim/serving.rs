//! Actions of servers in a step, and their effects.

use std::time::Duration;

use chancery_decider::ChannelNumber;
use chancery_decider::core::{CoreInput, DeciderEffect};
use chancery_decider::driver::{DeciderEnd, TurnOutcome};
use chancery_events::id::{ConnectionToken, WriterId};
use chancery_journal::Journal;

use super::fault::SimulatedFault;
use super::rendering;
use super::rows::{FoldedLog, ServerRows};
use super::server::{SimulatedServer, StartFailure};
use super::universe::{ChannelInput, ScriptedWorld, ServerSeat, trace_step};
use crate::check::InvariantViolation;

/// Number of appends that a full journal still takes.
const FULL: usize = 1;

impl ScriptedWorld {
    pub(super) fn start_server(&mut self, seat: usize) -> Result<(), InvariantViolation> {
        let wall = self.seats[seat].wall;
        let mut snapshot = None;
        if !self.snapshots.is_empty() {
            let newest = self.snapshots.len() - 1;
            let old = self.strikes(SimulatedFault::OldSnapshot, 700);
            let age = if old { self.random.below(newest as u64 + 1) } else { 0 };
            snapshot = Some(self.snapshots[newest - usize::try_from(age).unwrap_or(0)].clone());
        }
        let bits = self.random.bits();
        let topic = self.script.inbox.then_some(&self.topic);
        // The process of a former standby is the same, and its rows do not go back.
        let least = self.seats[seat].rows.as_ref().map(ServerRows::position).unwrap_or_default();
        let started = FoldedLog::fold(&self.log, snapshot, self.readers.behind(), least);
        let begun = started.map_err(StartFailure::from).and_then(|FoldedLog { head, rows, behind }| {
            let server =
                SimulatedServer::start(&self.log, head, bits, self.script.lease, self.now, wall, topic)?;
            Ok((server, rows, behind))
        });
        let (server, fold, behind) = begun
            .map_err(|error| super::oracle::violation(2, format!("a server cannot start: {error}"), None))?;
        let head = server.journal().head().map(|head| head.position).unwrap_or_default();
        let due = self.now + self.readers.delay();
        let rows = match self.seats[seat].rows.take() {
            Some(mut rows) => {
                rows.decide(fold);
                self.seats[seat].rows.insert(rows)
            }
            None => self.seats[seat].rows.insert(ServerRows::new(self.readers.process(), fold, head)),
        };
        rows.publish(behind, due);
        self.may_read(seat);
        self.oracle.answers.begins(WriterId::from_random(bits), self.topic.end);
        trace_step!(self, "server {seat} starts, at {:?}", server.journal().head().map(|head| head.position));
        self.counts.add("server started");
        if self.seats.iter().any(|other| other.server.is_some()) {
            self.counts.add(SimulatedFault::SecondDecider.word());
        }
        self.seats[seat].server = Some(server);
        Ok(())
    }

    /// Makes a server act, and applies the effects.
    pub(super) fn with(
        &mut self,
        seat: usize,
        act: impl FnOnce(&mut SimulatedServer, Duration) -> Result<Vec<DeciderEffect>, DeciderEnd>,
    ) -> Result<(), InvariantViolation> {
        let full = self.strikes(SimulatedFault::FullJournal, 50);
        let ServerSeat { server: Some(server), rows: Some(rows), .. } = &mut self.seats[seat] else {
            return Ok(());
        };
        server.journal().bound(if full { FULL } else { usize::MAX });
        let effects = act(server, self.now);
        if !server.published.is_empty() {
            rows.publish(server.published.drain(..), self.now + self.readers.delay());
        }
        match effects {
            Ok(effects) => self.effects(seat, effects),
            Err(ended) => {
                trace_step!(self, "server {seat} ends: {ended}");
                self.counts.add("server failed");
                // The process continues when another server becomes leader.
                let stays =
                    matches!(ended, DeciderEnd::Fenced(_)).then(|| self.seats[seat].rows.take()).flatten();
                self.stop_server(seat);
                if let Some(mut rows) = stays {
                    rows.stand_by(&self.log);
                    self.seats[seat].rows = Some(rows);
                }
                if self.faulty {
                    self.seats[seat].down = self.now + Duration::from_millis(self.random.below(20_000));
                }
                Ok(())
            }
        }
    }

    fn effects(&mut self, seat: usize, effects: Vec<DeciderEffect>) -> Result<(), InvariantViolation> {
        for effect in effects {
            match effect {
                DeciderEffect::Answer(ticket, verdict) => {
                    let call =
                        self.seats[seat].server.as_mut().and_then(|server| server.calls.remove(&ticket));
                    if let Some(call) = call {
                        self.gave(seat, call, &verdict);
                        self.answered(call, &verdict)?;
                    }
                }
                DeciderEffect::Send(ChannelNumber(channel), message) => {
                    self.oracle.check_message(&message)?;
                    match self.channels.get_mut(&channel).filter(|executor_channel| executor_channel.served) {
                        Some(link) if link.held => link.down.push_back(*message),
                        Some(link) if link.silent => {}
                        // The executor has closed its end, and the server notices by sending.
                        Some(_) => self.close(seat, channel),
                        None => {}
                    }
                }
                DeciderEffect::Close(ChannelNumber(link)) => self.close(seat, link),
            }
        }
        Ok(())
    }

    /// Makes a server close its end of a channel.
    pub fn close(&mut self, seat: usize, number: u64) {
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.served = false;
            channel.up.clear();
        }
        if let Some(server) = &mut self.seats[seat].server {
            let reading = server.reading(self.now);
            server.driver().handle(CoreInput::Disconnected(ChannelNumber(number)), reading);
        }
        self.sweep_links();
    }

    /// Deletes channels that both ends have closed.
    pub fn sweep_links(&mut self) {
        self.channels.retain(|_, channel| channel.held || channel.served);
    }

    pub(super) fn receive(&mut self, number: u64) {
        let now = self.now;
        let bits = self.random.bits();
        let twice = self.strikes(SimulatedFault::DuplicateMessage, 50);
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let seat = channel.seat;
        let Some(server) = &mut self.seats[seat].server else { return };
        let Some(up) = channel.up.pop_front() else { return };
        let reading = server.reading(now);
        match up {
            ChannelInput::Connected => {
                let token = ConnectionToken::from_random(bits);
                server.driver().handle(CoreInput::Connected(ChannelNumber(number), token), reading);
            }
            ChannelInput::Message(message) => {
                trace_step!(self, "server {seat} receives {}", rendering::to_decider(&message));
                let Some(server) = &mut self.seats[seat].server else { return };
                if twice {
                    server
                        .driver()
                        .handle(CoreInput::ExecutorMessage(ChannelNumber(number), message.clone()), reading);
                }
                server.driver().handle(CoreInput::ExecutorMessage(ChannelNumber(number), message), reading);
            }
            ChannelInput::Gone => {
                channel.served = false;
                server.driver().handle(CoreInput::Disconnected(ChannelNumber(number)), reading);
                self.sweep_links();
            }
        }
        if let Some(server) = &mut self.seats[seat].server {
            server.left = TurnOutcome::More;
        }
    }
}
