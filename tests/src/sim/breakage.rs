//! Faults of a simulated world, and their effects.

use std::time::Duration;

use chancery_events::fact::CommandEffect;
use chancery_events::id::{ExecutorStoreId, IncarnationId, Lineage, ObjectId, Position};
use chancery_events::observation::{ObjectReport, ObservedState, ProcessStatus};
use chancery_events::protocol::{Command, CommandStatus, IncarnationSpec, RunLabels};
use chancery_events::spec::RestartPolicy;
use chancery_executor::session::SessionInput;
use chancery_journal::memory::AppendFate;
use chancery_projector::FoldedState;

use super::executor::{ChannelProgress, ExecutorDirectory};
use super::fault::SimulatedFault;
use super::kubernetes::ClusterChange;
use super::producer::ProducerRequestState;
use super::universe::{ScriptedWorld, trace_step};
use crate::check::InvariantViolation;

/// Maximum number of states that are kept.
const SNAPSHOTS: usize = 8;

impl ScriptedWorld {
    /// Injects one of the faults that this world allows.
    pub fn break_something(&mut self) -> Result<(), InvariantViolation> {
        let may: Vec<SimulatedFault> = self.script.faults.iter().copied().collect();
        let Some(fault) = self.random.pick(&may).copied() else { return Ok(()) };
        let machine = usize::try_from(self.random.below(self.machines.len() as u64)).unwrap_or(0);
        let seat = usize::try_from(self.random.below(self.seats.len() as u64)).unwrap_or(0);
        let cluster = self.machines.iter().position(|machine| machine.api.is_some());
        let machine = cluster.filter(|_| fault.is_of_kubernetes()).unwrap_or(machine);
        let has_pods = self.machines[machine].api.is_some();
        let happened = match fault {
            SimulatedFault::ServerCrash => self.crash_server(seat),
            SimulatedFault::ServerPause => self.pause_server(seat),
            SimulatedFault::ClockJump => self.jump(seat),
            SimulatedFault::AmbiguousAppend => self.blur(seat),
            SimulatedFault::LateAppend => self.log.land_late(),
            SimulatedFault::DuplicateRecord => self.repeat_record(),
            SimulatedFault::InvalidRecord => self.inject_invalid_record(),
            SimulatedFault::ChannelBreak => return self.break_channel(),
            SimulatedFault::HalfOpen => return self.half_open(),
            SimulatedFault::ExecutorCrash => self.stop_executor(machine),
            SimulatedFault::ExecutorPause => self.pause_executor(machine),
            SimulatedFault::ExecutorLeave => {
                self.counts.add(fault.word());
                return self.executor(machine, SessionInput::Leave);
            }
            SimulatedFault::Strike if has_pods => self.strike_pod(machine, ClusterChange::Exit(137)),
            SimulatedFault::Strike => self.end_process(machine),
            SimulatedFault::Unwell if has_pods => self.strike_pod(machine, ClusterChange::Unready),
            SimulatedFault::Unwell => self.ail(machine),
            // No executor of pods has a disk.
            SimulatedFault::ForeignObject | SimulatedFault::Wipe if has_pods => false,
            SimulatedFault::ForeignObject => self.foreign(machine),
            SimulatedFault::Wipe => self.wipe(machine),
            SimulatedFault::ApiSilence => self.silence_api(machine),
            SimulatedFault::SecondExecutor => self.start_second(machine),
            SimulatedFault::RepeatedRequest => self.repeat_request(),
            SimulatedFault::LongSilence => self.silence(),
            // Other faults are injected where they apply.
            SimulatedFault::SecondDecider
            | SimulatedFault::OldSnapshot
            | SimulatedFault::FullJournal
            | SimulatedFault::DuplicateMessage
            | SimulatedFault::ExecutorReplaced
            | SimulatedFault::OtherDirectory
            | SimulatedFault::WorkTwice
            | SimulatedFault::WorkFails
            | SimulatedFault::BadBehaviour
            | SimulatedFault::StaleList
            | SimulatedFault::MissedChange
            | SimulatedFault::LostRequest
            | SimulatedFault::LostAnswer
            | SimulatedFault::BadRequest
            | SimulatedFault::BadMessage
            | SimulatedFault::MessageAgain
            | SimulatedFault::LateRequest
            | SimulatedFault::StuckDeletion => false,
        };
        if happened {
            trace_step!(self, "FAULT {}", fault.word());
            self.counts.add(fault.word());
        }
        Ok(())
    }

    pub(super) fn crash_server(&mut self, seat: usize) -> bool {
        // Sometimes until deadlines have passed, and inbox messages have arrived.
        let long = if self.random.chance(250) { 300_000 } else { 5000 };
        let down = Duration::from_millis(self.random.below(long));
        let Some(server) = &self.seats[seat].server else {
            // A standby loses nothing that anyone but its readers sees.
            self.seats[seat].rows = None;
            return false;
        };
        let journal = std::sync::Arc::clone(server.journal());
        let waiting = journal.waiting() as u64;
        let kept = self.random.below(waiting + 1);
        match self.random.below(3) {
            // The disk has part of the commits.
            0 => {
                journal.step(usize::try_from(kept).unwrap_or(0));
                journal.lose_waiting();
            }
            1 => {
                journal.lose_waiting();
            }
            // The commits are still in flight, and land later.
            _ => {}
        }
        trace_step!(self, "server {seat} is killed, with {waiting} commits in flight");
        self.stop_server(seat);
        self.seats[seat].down = self.now + down;
        true
    }

    /// Stops a server: no client is notified, and channels break.
    pub fn stop_server(&mut self, seat: usize) {
        self.seats[seat].rows = None;
        let Some(server) = self.seats[seat].server.take() else { return };
        if server.journal().waiting() > 0 {
            self.ghosts.push(std::sync::Arc::clone(server.journal()));
        }
        for call in self.calls.iter_mut().filter(|call| call.state == ProducerRequestState::Sent(seat)) {
            call.state = ProducerRequestState::Unknown;
        }
        for channel in self.channels.values_mut().filter(|executor_channel| executor_channel.seat == seat) {
            channel.served = false;
            channel.up.clear();
        }
        self.sweep_links();
    }

    fn pause_server(&mut self, seat: usize) -> bool {
        let lease = u64::try_from(self.script.lease.as_millis()).unwrap_or(1000);
        let until = self.now + Duration::from_millis(self.random.below(3 * lease));
        let Some(server) = &mut self.seats[seat].server else { return false };
        server.paused = Some(until);
        true
    }

    fn jump(&mut self, seat: usize) -> bool {
        let far = *self.random.pick(&[2_000_000, 120_000_000, 7_200_000_000]).unwrap_or(&0);
        let by = i64::try_from(self.random.below(2 * far)).unwrap_or(0) - i64::try_from(far).unwrap_or(0);
        self.seats[seat].wall = by;
        if let Some(server) = &mut self.seats[seat].server {
            server.wall = by;
        }
        true
    }

    fn blur(&mut self, seat: usize) -> bool {
        let fate = *self
            .random
            .pick(&[AppendFate::Landed, AppendFate::Lost, AppendFate::Late])
            .unwrap_or(&AppendFate::Lost);
        let Some(server) = &self.seats[seat].server else { return false };
        server.journal().blur_next(fate);
        true
    }

    fn repeat_record(&mut self) -> bool {
        let entries = self.log.entries();
        let Some(old) = self.random.pick(&entries) else { return false };
        self.log.inject(old.clone());
        true
    }

    fn inject_invalid_record(&mut self) -> bool {
        let entries = self.log.entries();
        let mut bytes = match (self.random.below(3), self.random.pick(&entries)) {
            // A record that was cut in its header, as a torn write leaves it.
            (0, Some(record)) => record[..record.len().min(40)].to_vec(),
            // A record of another fleet.
            (1, Some(record)) => {
                let text = String::from_utf8_lossy(record);
                text.replacen("\"fleet\":\"sim\"", "\"fleet\":\"other\"", 1).into_bytes()
            }
            _ => Vec::new(),
        };
        let more = self.random.below(30);
        bytes.extend((0..more).map(|_| self.random.bits() as u8));
        // A cut record without a successor that continues the chain is invalid.
        self.log.inject(bytes);
        true
    }

    fn break_channel(&mut self) -> Result<(), InvariantViolation> {
        let numbers: Vec<u64> = self.channels.keys().copied().collect();
        let Some(number) = self.random.pick(&numbers).copied() else { return Ok(()) };
        let keep = usize::try_from(self.random.below(4)).unwrap_or(0);
        let Some(channel) = self.channels.get_mut(&number) else { return Ok(()) };
        let machine = channel.machine;
        let (held, seat) = (channel.held, channel.seat);
        channel.up.truncate(keep.max(1));
        self.counts.add(SimulatedFault::ChannelBreak.word());
        trace_step!(self, "FAULT channel break of executor {machine}");
        if !held || self.random.chance(300) {
            // The server is the first to notice.
            self.close(seat, number);
            return Ok(());
        }
        self.let_go(machine);
        self.executor(machine, SessionInput::Disconnected)
    }

    fn half_open(&mut self) -> Result<(), InvariantViolation> {
        let numbers: Vec<u64> = self.channels.keys().copied().collect();
        let Some(number) = self.random.pick(&numbers).copied() else { return Ok(()) };
        let Some(channel) = self.channels.get_mut(&number).filter(|executor_channel| executor_channel.held)
        else {
            return Ok(());
        };
        let machine = channel.machine;
        channel.held = false;
        channel.silent = true;
        channel.down.clear();
        self.counts.add(SimulatedFault::HalfOpen.word());
        trace_step!(self, "FAULT executor {machine} loses its channel, and the server is not notified");
        if let Some(process) = &mut self.machines[machine].process {
            process.channel = ChannelProgress::No;
            process.listing = super::executor::ListProgress::No;
        }
        self.sweep_links();
        self.executor(machine, SessionInput::Disconnected)
    }

    /// Stops an executor. Work in progress is done or not; no report follows.
    pub fn stop_executor(&mut self, machine: usize) -> bool {
        self.let_go(machine);
        // Requests that were sent arrive, or not.
        let pods = self.machines[machine].pods.take();
        let process = self.machines[machine].process.take();
        if process.is_none() && pods.is_none() {
            return false;
        }
        for work in process.map(|process| process.works).unwrap_or_default() {
            if pods.is_none() && self.random.chance(500) {
                // The result is ignored: only work of a running executor is judged.
                let _ = self.carry_out(machine, &work);
            }
        }
        let down = Duration::from_millis(self.random.below(3000));
        trace_step!(self, "executor {machine} is gone");
        let is_first = self.machines[machine].is_first();
        self.machines[machine].down = if is_first { self.now + down } else { Duration::MAX };
        true
    }

    fn pause_executor(&mut self, machine: usize) -> bool {
        let lease = u64::try_from(self.script.lease.as_millis()).unwrap_or(1000);
        let until = self.now + Duration::from_millis(self.random.below(3 * lease));
        let Some(process) = &mut self.machines[machine].process else { return false };
        process.paused = Some(until);
        true
    }

    fn end_process(&mut self, machine: usize) -> bool {
        let ours = |(id, _): (IncarnationId, usize)| (!self.oracle.strangers.contains_key(&id)).then_some(id);
        let alive: Vec<_> = self.worlds[machine].alive().filter_map(ours).collect();
        let Some(victim) = self.random.pick(&alive).copied() else { return false };
        if let Some(update) = self.worlds[machine].strike(victim) {
            trace_step!(self, "{victim} dies on machine {machine}");
            self.show(machine, update);
        }
        true
    }

    /// Makes a running incarnation fail its liveness probe from now on.
    fn hang(&mut self, machine: usize) -> bool {
        let ours = |(id, _): (IncarnationId, usize)| (!self.oracle.strangers.contains_key(&id)).then_some(id);
        let alive: Vec<_> = self.worlds[machine].alive().filter_map(ours).collect();
        let Some(victim) = self.random.pick(&alive).copied() else { return false };
        let Some(update) = self.worlds[machine].hang(victim) else { return false };
        trace_step!(self, "{victim} hangs on machine {machine}");
        self.counts.add("hung");
        self.show(machine, update);
        true
    }

    /// Reports one running incarnation as not ready, or all; sometimes all of them are ready again.
    fn ail(&mut self, machine: usize) -> bool {
        let process = self.machines[machine].process.as_ref();
        // A report that is still unread would be replaced.
        if process.is_none_or(|process| process.statuses.has_unread()) {
            return false;
        }
        if self.random.chance(250) {
            return self.hang(machine);
        }
        let process = self.machines[machine].process.as_ref();
        let Some(process) = process else { return false };
        let mut reports = self.worlds[machine].list();
        if self.random.chance(300) {
            for report in reports {
                process.statuses.show(report);
            }
            return true;
        }
        let runs = |report: &ObjectReport| matches!(report.object, ObjectId::Incarnation(_));
        reports.retain(|report| runs(report) && matches!(report.observed, ObservedState::Ready { .. }));
        if self.random.chance(500) {
            reports = self.random.pick(&reports).cloned().into_iter().collect();
        }
        for report in &mut reports {
            if let ObservedState::Ready { processes } = &mut report.observed {
                let mut processes = std::mem::take(processes);
                if let Some(last) = processes.last_mut() {
                    last.status = ProcessStatus::Starting;
                }
                report.observed = ObservedState::NotReady { processes };
            }
            process.statuses.show(report.clone());
        }
        for ObjectReport { object, .. } in &reports {
            trace_step!(self, "{object} is not ready on machine {machine}");
        }
        !reports.is_empty()
    }

    fn foreign(&mut self, machine: usize) -> bool {
        let id = IncarnationId::issue(Lineage::from_random(self.random.bits()), Position::new(7));
        let spec = IncarnationSpec {
            replica: "stranger-1".parse().expect("a name"),
            plan: "stranger".parse().expect("a name"),
            node: "elsewhere".parse().expect("a name"),
            restart: RestartPolicy::OnFailure,
            labels: Box::new(RunLabels {
                namespace: "ns".parse().expect("a name"),
                service: "web".parse().expect("a name"),
                labels: std::collections::BTreeMap::new(),
                deployment: "d1".parse().expect("a name"),
                domain: None,
                zone: None,
                node_labels: None,
            }),
            payloads: Vec::new(),
        };
        let (revision, attempt, effect, status) = (1, 1, CommandEffect::Ensure, CommandStatus::Pending);
        let grace = Duration::ZERO;
        let (object, spec) = (id.into(), spec.into());
        let command = Command { object, revision, attempt, effect, status, grace, spec, traceparent: None };
        // Injected faults do not affect foreign objects.
        let update = self.worlds[machine].carry_out(&command);
        self.oracle.strangers.insert(id, machine);
        self.show(machine, update);
        true
    }

    pub(super) fn wipe(&mut self, machine: usize) -> bool {
        // A lost machine takes its executor with it, and all processes.
        self.stop_executor(machine);
        let disk_too = self.random.chance(500);
        for world in [&mut self.worlds[machine], &mut self.elsewhere[machine].world] {
            world.wipe();
        }
        self.oracle.strangers.retain(|_, on| *on != machine);
        if disk_too {
            self.machines[machine].directory =
                ExecutorDirectory::new(ExecutorStoreId::from_random(self.random.bits()));
            self.elsewhere[machine].incarnation_directory =
                ExecutorDirectory::new(ExecutorStoreId::from_random(self.random.bits()));
        }
        true
    }

    fn repeat_request(&mut self) -> bool {
        let Some(last) = (self.calls.len() as u64).checked_sub(1) else { return false };
        let call = usize::try_from(self.random.between(0, last)).unwrap_or(0);
        if self.seats.iter().all(|seat| seat.server.is_none()) {
            return false;
        }
        self.send(call);
        true
    }

    fn silence(&mut self) -> bool {
        let hours = self.random.between(1, 30);
        self.pass(Duration::from_mins(hours));
        self.wake();
        true
    }

    /// Keeps the state of a server's projector as snapshots do: encoded and decoded.
    pub fn keep_state(&mut self, seat: usize) {
        let Some(state) = self.seats[seat].state() else { return };
        let mut bytes = Vec::new();
        state.encode(&mut bytes).expect("memory stores everything");
        let FoldedState { at, watermark, .. } = state.clone();
        let fleet = chancery_projector::snapshot::decode(&bytes).expect("what was encoded is decoded");
        self.snapshots.push(FoldedState { fleet, at, watermark });
        if self.snapshots.len() > SNAPSHOTS {
            let drop = self.random.below(SNAPSHOTS as u64);
            self.snapshots.remove(usize::try_from(drop).unwrap_or(0));
        }
        self.counts.add("snapshot");
    }
}
