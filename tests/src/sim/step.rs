//! One step of a simulated world: a random one of all actions that are possible now.

use std::time::Duration;

use chancery_executor::session::SessionInput;

use super::executor::{ChannelProgress, ListProgress};
use super::fault::SimulatedFault;
use super::kubernetes::lock;
use super::producer::ProducerRequestState;
use super::rendering;
use super::server::SimulatedServer;
use super::universe::{ScriptedWorld, trace_step};
use crate::check::InvariantViolation;

/// Possible action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorldAction {
    /// A server is started.
    StartServer(usize),
    /// A server takes a delivery of its journal.
    Take(usize),
    /// A server decides a request.
    Ask(usize),
    /// A server reads the topic.
    Read(usize),
    /// A server does what is due.
    Turn(usize),
    /// A server receives a message over a channel.
    Receive(u64),
    /// A writer's append becomes durable.
    Sync(usize),
    /// An append of a dead writer lands.
    Late(usize),
    /// An abandoned append lands.
    Stray,
    /// An executor is started.
    StartExecutor(usize),
    /// An executor receives a message over its channel.
    Deliver(u64),
    /// An executor's timer fires.
    Tick(usize),
    /// An executor gets its channel, or none.
    Connect(usize),
    /// An executor's list proceeds.
    List(usize),
    /// An executor does a work item.
    Work(usize),
    /// An executor notes that work is done.
    Done(usize),
    /// An executor takes changes.
    Changes(usize),
    /// An executor of pods runs, and its API answers.
    Drive(usize),
    /// An API answers requests whose senders may have ended.
    Serve(usize),
    /// The next request of the script is sent.
    Post,
    /// A request is sent again.
    Repeat(usize),
    /// A state is kept.
    Snapshot(usize),
    /// Time passes.
    Pass,
    /// A fault happens.
    Break,
}

impl ScriptedWorld {
    /// Returns all actions that are possible now without the passing of time and without a fault.
    pub fn possible(&mut self) -> Vec<WorldAction> {
        let now = self.now;
        let mut all = Vec::with_capacity(32);
        let running = self.seats.iter().filter(|seat| seat.server.is_some()).count();
        let inbox = self.script.inbox;
        let second = self.faulty && self.script.faults.contains(&SimulatedFault::SecondDecider);
        for (index, seat) in self.seats.iter_mut().enumerate() {
            let Some(server) = &mut seat.server else {
                if seat.down <= now && (running == 0 || (second && running < 2)) {
                    all.push(WorldAction::StartServer(index));
                }
                continue;
            };
            let waiting = server.journal().waiting() > 0;
            if waiting {
                all.push(WorldAction::Sync(index));
            }
            if server.paused.is_some() {
                continue;
            }
            if server.delivered() > 0 {
                all.extend([WorldAction::Take(index); 2]);
            }
            if !server.asks.is_empty() && server.driver().is_open() {
                all.extend([WorldAction::Ask(index); 2]);
            }
            if inbox && server.reads < self.topic.end && server.driver().is_open() {
                all.push(WorldAction::Read(index));
            }
            if server.is_due(now) {
                all.push(WorldAction::Turn(index));
            }
        }
        for (number, channel) in &self.channels {
            let is_served = channel.served
                && self.seats[channel.seat].server.as_ref().is_some_and(|server| server.paused.is_none());
            if is_served && !channel.up.is_empty() {
                all.push(WorldAction::Receive(*number));
            }
            let process = self.machines[channel.machine].process.as_ref();
            let listens = process.is_some_and(|process| process.paused.is_none());
            if channel.held && listens && (!channel.down.is_empty() || !channel.served) {
                all.push(WorldAction::Deliver(*number));
            }
        }
        for (index, machine) in self.machines.iter().enumerate() {
            if let Some(api) = machine.api.as_ref().filter(|_| machine.is_first())
                && lock(api).has_work()
            {
                all.push(WorldAction::Serve(index));
            }
            let is_paused = machine.process.as_ref().is_some_and(|process| process.paused.is_some());
            if machine.pods.as_ref().is_some_and(|pods| pods.is_stirred && !is_paused) {
                all.extend([WorldAction::Drive(index); 2]);
            }
            let Some(process) = &machine.process else {
                if machine.down <= now && machine.pods.is_none() {
                    all.push(WorldAction::StartExecutor(index));
                }
                continue;
            };
            if is_paused {
                continue;
            }
            if process.core.due().is_some_and(|due| due <= machine.clock(now)) {
                all.extend([WorldAction::Tick(index); 2]);
            }
            if process.channel == ChannelProgress::Coming {
                all.push(WorldAction::Connect(index));
            }
            if !matches!(process.listing, ListProgress::No) {
                all.push(WorldAction::List(index));
            }
            if !process.works.is_empty() {
                all.push(WorldAction::Work(index));
            }
            if !process.done.is_empty() {
                all.push(WorldAction::Done(index));
            }
            if process.core.takes_changes() && process.statuses.has_unread() {
                all.push(WorldAction::Changes(index));
            }
        }
        all.extend((0..self.ghosts.len()).map(WorldAction::Late));
        let unknown =
            self.calls.iter().enumerate().filter(|(_, call)| call.state == ProducerRequestState::Unknown);
        if running > 0 {
            all.extend(unknown.take(3).map(|(index, _)| WorldAction::Repeat(index)));
        }
        all
    }

    /// Does an action.
    pub fn act(&mut self, action: WorldAction) -> Result<(), InvariantViolation> {
        match action {
            WorldAction::StartServer(seat) => self.start_server(seat),
            WorldAction::Take(seat) => self.with(seat, |server, _| server.take()),
            WorldAction::Turn(seat) => self.with(seat, SimulatedServer::turn),
            WorldAction::Ask(seat) => {
                let now = self.now;
                if let Some(server) = &mut self.seats[seat].server {
                    server.ask(now);
                }
                Ok(())
            }
            WorldAction::Read(seat) => {
                self.read_message(seat);
                Ok(())
            }
            WorldAction::Receive(channel) => {
                self.receive(channel);
                Ok(())
            }
            WorldAction::Sync(seat) => {
                let Some(server) = &self.seats[seat].server else { return Ok(()) };
                let journal = std::sync::Arc::clone(server.journal());
                let count = 1 + usize::try_from(self.random.below(3)).unwrap_or(0);
                let landed = journal.step(count);
                trace_step!(self, "server {seat}: {landed} commits reach the log");
                Ok(())
            }
            WorldAction::Late(ghost) => {
                let journal = self.ghosts[ghost].clone();
                journal.step(1);
                trace_step!(self, "a commit of a dead server reaches the log");
                self.counts.add(SimulatedFault::LateAppend.word());
                if journal.waiting() == 0 {
                    self.ghosts.remove(ghost);
                }
                Ok(())
            }
            WorldAction::Stray => {
                if self.log.land_late() {
                    trace_step!(self, "an append that was given up reaches the log");
                    self.counts.add(SimulatedFault::LateAppend.word());
                }
                Ok(())
            }
            WorldAction::StartExecutor(machine) => {
                self.start_executor(machine);
                Ok(())
            }
            WorldAction::Deliver(executor_channel) => self.deliver(executor_channel),
            WorldAction::Tick(machine) => self.executor(machine, SessionInput::Tick),
            WorldAction::Connect(machine) => self.connect(machine),
            WorldAction::List(machine) => self.list(machine),
            WorldAction::Work(machine) => self.work(machine),
            WorldAction::Done(machine) => {
                let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
                let done = process.done.remove(0);
                self.executor(machine, SessionInput::Done(done))
            }
            WorldAction::Changes(machine) => {
                let Some(process) = &self.machines[machine].process else { return Ok(()) };
                let changes = process.statuses.unread(4);
                trace_step!(self, "executor {machine} sees {}", rendering::reports(&changes));
                self.executor(machine, SessionInput::Changed(changes))
            }
            WorldAction::Drive(machine) => self.drive(machine),
            WorldAction::Serve(machine) => {
                self.serve(machine);
                Ok(())
            }
            WorldAction::Post => {
                self.post();
                Ok(())
            }
            WorldAction::Repeat(call) => {
                self.send(call);
                Ok(())
            }
            WorldAction::Snapshot(seat) => {
                self.keep_state(seat);
                Ok(())
            }
            WorldAction::Pass => {
                self.wait();
                Ok(())
            }
            WorldAction::Break => self.break_something(),
        }
    }

    /// Lets time pass: mostly a little, sometimes until the next timer.
    fn wait(&mut self) {
        let by = match self.random.below(100) {
            0..=59 => Duration::from_micros(self.random.between(1, 20_000)),
            60..=79 => Duration::from_millis(self.random.between(1, 1000)),
            80..=94 => self.due().map_or(Duration::from_secs(1), |due| due.saturating_sub(self.now)),
            _ => Duration::from_secs(self.random.between(1, 20)),
        };
        self.pass(by.min(Duration::from_mins(1)));
        self.wake();
    }

    /// Resumes servers and executors whose suspension has ended.
    pub fn wake(&mut self) {
        let now = self.now;
        for seat in &mut self.seats {
            if let Some(server) =
                seat.server.as_mut().filter(|server| server.paused.is_some_and(|until| until <= now))
            {
                server.paused = None;
            }
        }
        for machine in &mut self.machines {
            if let Some(process) =
                machine.process.as_mut().filter(|process| process.paused.is_some_and(|until| until <= now))
            {
                process.paused = None;
            }
        }
    }
}
