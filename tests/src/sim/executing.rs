//! Actions of executors in a step, and their effects.

use chancery_events::id::EpochNonce;
use chancery_events::observation::{ObjectReport, ObservedState, RetryClass};
use chancery_events::protocol::{CommandStatus, ExecutorEpoch};
use chancery_executor::session::{ExecutorStop, ObjectWork, SessionAction, SessionInput};

use super::executor::{ChannelProgress, ExecutorMachine, ListProgress};
use super::fault::SimulatedFault;
use super::rendering;
use super::universe::{ChannelInput, ScriptedWorld, SimulatedChannel, trace_step};
use crate::check::InvariantViolation;

impl ScriptedWorld {
    pub(super) fn start_executor(&mut self, machine: usize) {
        if self.start_pods(machine) {
            return;
        }
        if self.strikes(SimulatedFault::ExecutorReplaced, 300) {
            let name = format!("ex{machine}-{}", self.random.below(3));
            self.machines[machine].name = name;
        }
        if self.strikes(SimulatedFault::OtherDirectory, 100) {
            self.change_directory(machine);
        }
        let (name, scope) = (&self.machines[machine].name, self.machines[machine].directory.store);
        trace_step!(self, "executor {machine} starts as {name} with store {scope}");
        let instance = EpochNonce::from_random(self.random.bits());
        let directory = &mut self.machines[machine].directory;
        directory.epochs += 1;
        let (number, seen) = (directory.epochs, directory.seen);
        self.machines[machine].start(ExecutorEpoch { number, instance }, seen);
    }

    /// Swaps the directory that the machine's next executor uses. Processes of this one keep running.
    pub fn change_directory(&mut self, machine: usize) {
        std::mem::swap(
            &mut self.machines[machine].directory,
            &mut self.elsewhere[machine].incarnation_directory,
        );
        std::mem::swap(&mut self.worlds[machine], &mut self.elsewhere[machine].world);
    }

    pub(super) fn deliver(&mut self, number: u64) -> Result<(), InvariantViolation> {
        let twice = self.strikes(SimulatedFault::DuplicateMessage, 50);
        let Some(channel) = self.channels.get_mut(&number) else { return Ok(()) };
        let machine = channel.machine;
        let Some(message) = channel.down.pop_front() else {
            self.let_go(machine);
            return self.executor(machine, SessionInput::Disconnected);
        };
        trace_step!(self, "executor {machine} receives {}", rendering::from_decider(&message));
        if let (Some(envelope), Some(process)) =
            (rendering::envelope(&message), &mut self.machines[machine].process)
        {
            process.under = Some((envelope.session, envelope.head.term));
        }
        if twice {
            self.executor(machine, SessionInput::Message(message.clone()))?;
        }
        // A disconnection in between loses what follows, as in a loop that has closed its channel.
        let still = self.channels.get(&number).is_some_and(|executor_channel| executor_channel.held);
        if still { self.executor(machine, SessionInput::Message(message)) } else { Ok(()) }
    }

    /// Makes an executor drop its channel.
    pub fn let_go(&mut self, machine: usize) {
        let ExecutorMachine { process: Some(process), pods, .. } = &mut self.machines[machine] else {
            return;
        };
        process.listing = ListProgress::No;
        if let Some(pods) = pods {
            pods.hang_up();
        }
        if let ChannelProgress::By(number) = std::mem::replace(&mut process.channel, ChannelProgress::No)
            && let Some(channel) = self.channels.get_mut(&number)
        {
            channel.held = false;
            channel.down.clear();
            channel.up.push_back(ChannelInput::Gone);
            self.sweep_links();
        }
    }

    pub(super) fn connect(&mut self, machine: usize) -> Result<(), InvariantViolation> {
        let up: Vec<usize> =
            (0..self.seats.len()).filter(|seat| self.seats[*seat].server.is_some()).collect();
        let seat = self.random.pick(&up).copied();
        let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
        let Some(seat) = seat else {
            process.channel = ChannelProgress::No;
            return self.executor(machine, SessionInput::Disconnected);
        };
        self.linked += 1;
        process.channel = ChannelProgress::By(self.linked);
        let up = [ChannelInput::Connected].into();
        let channel =
            SimulatedChannel { machine, seat, up, down: [].into(), held: true, served: true, silent: false };
        self.channels.insert(self.linked, channel);
        trace_step!(self, "executor {machine} connects to server {seat}");
        self.executor(machine, SessionInput::Connected)
    }

    pub(super) fn list(&mut self, machine: usize) -> Result<(), InvariantViolation> {
        if self.list_pods(machine) {
            return Ok(());
        }
        let stale = self.strikes(SimulatedFault::StaleList, 300);
        let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
        match std::mem::replace(&mut process.listing, ListProgress::No) {
            ListProgress::No => Ok(()),
            ListProgress::Asked => {
                process.statuses.list();
                let reports = self.worlds[machine].list();
                if stale {
                    process.listing = ListProgress::Taken(reports);
                    return Ok(());
                }
                self.executor(machine, SessionInput::Listed(reports))
            }
            ListProgress::Taken(reports) => self.executor(machine, SessionInput::Listed(reports)),
        }
    }

    pub(super) fn work(&mut self, machine: usize) -> Result<(), InvariantViolation> {
        let has_pods = self.machines[machine].api.is_some();
        let twice = !has_pods && self.strikes(SimulatedFault::WorkTwice, 100);
        let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
        let next = self.random.below(process.works.len() as u64);
        let work = process.works.remove(usize::try_from(next).unwrap_or(0));
        if !has_pods {
            process.done.push(work.object());
        }
        trace_step!(self, "executor {machine} does {}", rendering::work(&work));
        if has_pods {
            self.work_on_pods(machine, work);
            return Ok(());
        }
        for _ in 0..=u8::from(twice) {
            self.carry_out(machine, &work)?;
        }
        Ok(())
    }

    /// Carries out work as an orchestrator does, whether the executor still waits for it or not.
    pub fn carry_out(&mut self, machine: usize, work: &ObjectWork) -> Result<(), InvariantViolation> {
        if let ObjectWork::CarryOut(command) = work
            && self.machines[machine].process.is_some()
            && self.strikes(SimulatedFault::WorkFails, self.script.work_fails)
        {
            trace_step!(self, "… which fails");
            let observed =
                ObservedState::Failed { message: "no answer".into(), retry: RetryClass::Retryable };
            let report = ObjectReport { object: command.object, revision: command.revision, observed };
            if let Some(process) = &self.machines[machine].process {
                process.statuses.show(report);
            }
            return Ok(());
        }
        self.counts.add("work done");
        let starts = self.worlds[machine].starts();
        let world = &mut self.worlds[machine];
        let update = match work {
            ObjectWork::CarryOut(command) => Some(world.carry_out(command)),
            ObjectWork::Remove { object, revision } => Some(world.remove(*object, *revision)),
            ObjectWork::Purge(object) => world.forget(*object),
        };
        match update {
            Some(update) => self.show(machine, update),
            None => {
                if let Some(process) = &self.machines[machine].process {
                    process.statuses.clear(work.object());
                }
            }
        }
        let again =
            matches!(work, ObjectWork::CarryOut(command) if command.status == CommandStatus::Fulfilled);
        if again && self.worlds[machine].starts() > starts {
            let what = format!("{} ran before, and is started again", work.object());
            return Err(super::oracle::violation(3, what, None));
        }
        Ok(())
    }

    /// Handles an input of an executor, and its outputs.
    pub fn executor(&mut self, machine: usize, input: SessionInput) -> Result<(), InvariantViolation> {
        let clock = self.machines[machine].clock(self.now);
        let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
        for output in process.core.handle(clock, input) {
            if self.strikes(SimulatedFault::ExecutorCrash, 5) {
                self.stop_executor(machine);
            }
            let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
            match output {
                SessionAction::Connect => process.channel = ChannelProgress::Coming,
                SessionAction::HangUp => self.let_go(machine),
                SessionAction::Send(message) => {
                    if let ChannelProgress::By(channel) = process.channel
                        && let Some(executor_channel) = self.channels.get_mut(&channel)
                    {
                        executor_channel.up.push_back(ChannelInput::Message(message));
                    }
                }
                SessionAction::List => process.listing = ListProgress::Asked,
                SessionAction::Persist(seen) => match &mut self.machines[machine].pods {
                    Some(pods) => pods.head = Some(seen),
                    None => self.machines[machine].directory.seen = Some(seen),
                },
                SessionAction::Begin(work) => {
                    process.works.push(work);
                    if let Some((session, term)) = process.under {
                        self.oracle.check_start(session, term)?;
                    }
                }
                SessionAction::Stop(stop) => {
                    trace_step!(self, "executor {machine} stops: {stop}");
                    self.counts.add(match stop {
                        ExecutorStop::StaleDecider(_) => "executor stopped: newer elsewhere",
                        _ => "executor stopped",
                    });
                    self.stop_executor(machine);
                    return Ok(());
                }
                SessionAction::Leave => {
                    self.stop_executor(machine);
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
