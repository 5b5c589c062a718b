//! State of simulated nodes: synchronous, without a clock, deterministic in its calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chancery_events::id::{IncarnationId, ObjectId, VolumeId};
use chancery_events::observation::{
    IncarnationExit, ObjectReport, ObservedState, ProbeError, ProcessInfo, ProcessStatus, RetryClass,
};
use chancery_events::protocol::{Command, ObjectSpec};

use super::SimulatedOrchestrator;
use super::faults::{
    BOOT, FaultRules, InvalidBehaviour, SimulatedBehaviour, SimulatedExit, SimulatedReadiness,
};
use super::object::{
    HUNG, PendingChange, SimulatedObject, ended, failed, is_rebooting, mounts, processes, settle, stick,
};
use crate::executor_store::{
    AcceptedCommand, ExecutorStore as _, MemoryStore, ObjectStore as _, TombstoneFile,
};
use crate::orchestrator::Orchestrator as _;
use crate::reconcile::{
    self, KnownObject, ObjectState, ObjectTarget, ReadyHistory, ReconcileStep, StatusUpdate, TargetGoal,
};
use crate::state_file::FileAccess;

/// Reason why no operation of the store fails.
const IN_MEMORY: &str = "a store in memory does not fail";

/// Simulated world; see the module.
#[derive(Debug, Default)]
pub struct SimulatedWorld {
    faults: FaultRules,
    now: Duration,
    items: BTreeMap<ObjectId, SimulatedObject>,
    /// Records of the executor, by object.
    store: MemoryStore,
    is_out_of_reach: bool,
    timers: BTreeSet<(Duration, ObjectId)>,
    starts: u64,
    changes: u64,
    misbehaving: u64,
}

impl SimulatedWorld {
    /// Creates an empty world.
    pub fn new(faults: FaultRules) -> SimulatedWorld {
        SimulatedWorld { faults, ..SimulatedWorld::default() }
    }

    /// Creates an empty world, to be shared by an orchestrator and its successors.
    pub fn shared(faults: FaultRules) -> Arc<Mutex<SimulatedWorld>> {
        Arc::new(Mutex::new(SimulatedWorld::new(faults)))
    }

    /// Changes the rules for later starts.
    pub fn set_faults(&mut self, faults: FaultRules) {
        self.faults = faults;
    }

    /// Disconnects the running world from orchestrators, like an API that does not respond, or reconnects it.
    pub fn set_out_of_reach(&mut self, is_out_of_reach: bool) {
        self.is_out_of_reach = is_out_of_reach;
    }

    pub(super) fn is_out_of_reach(&self) -> bool {
        self.is_out_of_reach
    }

    /// Returns the time that the world has reached.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Returns when something will happen on its own.
    pub fn due(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the number of existing processes of an incarnation.
    pub fn running(&self, incarnation: IncarnationId) -> usize {
        self.items.get(&incarnation.into()).and_then(SimulatedObject::alive).map_or(0, <[ProcessInfo]>::len)
    }

    /// Returns the number of starts so far.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// Returns the number of changes in place so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the number of starts and changes so far to which a fault applied.
    pub fn misbehaving(&self) -> u64 {
        self.misbehaving
    }

    /// Advances to `now`, and returns the reports of what changed on its own.
    pub fn advance(&mut self, now: Duration) -> Vec<StatusUpdate> {
        let mut updates = Vec::new();
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            self.now = self.now.max(at);
            updates.extend(self.happen(id));
        }
        self.now = self.now.max(now);
        updates
    }

    /// Returns the incarnations with existing processes, and the number of processes of each.
    pub fn alive(&self) -> impl Iterator<Item = (IncarnationId, usize)> {
        self.items.iter().filter_map(|(id, item)| match id {
            ObjectId::Incarnation(id) => Some((*id, item.alive()?.len())),
            ObjectId::Volume(_) => None,
        })
    }

    /// Returns the existing volumes that may be used.
    pub fn volumes(&self) -> impl Iterator<Item = VolumeId> {
        self.items.iter().filter(|(_, item)| item.is_volume()).filter_map(|(id, _)| match id {
            ObjectId::Volume(id) => Some(*id),
            ObjectId::Incarnation(_) => None,
        })
    }

    /// Kills the processes of an incarnation, or loses the contents of a volume, as a machine or an operator
    /// may. Returns the report, if the object existed.
    pub fn strike(&mut self, object: impl Into<ObjectId>) -> Option<StatusUpdate> {
        let object = object.into();
        self.items.get(&object)?.alive()?;
        Some(self.end_as(object, SimulatedExit::Crash(137)))
    }

    /// Makes a process of a running incarnation stop responding. Returns the report, if the incarnation was
    /// running.
    pub fn hang(&mut self, id: IncarnationId) -> Option<StatusUpdate> {
        let item = self.items.get_mut(&id.into())?;
        if !matches!(item.present.state, ObjectState::Up { .. }) {
            return None;
        }
        stick(&mut item.present.state, HUNG);
        Some(reconcile::report(id.into(), &item.present))
    }

    /// Makes the guest of an incarnation power itself off. Returns the report, if the incarnation was running.
    pub fn power_off(&mut self, id: IncarnationId) -> Option<StatusUpdate> {
        let object = id.into();
        let is_up = matches!(self.items.get(&object)?.present.state, ObjectState::Up { .. });
        is_up.then(|| self.end_as(object, SimulatedExit::PowerOff))
    }

    /// Loses all objects and records, as a machine with a new disk does.
    pub fn wipe(&mut self) {
        self.items.clear();
        self.store.clear();
        self.timers.clear();
    }

    /// Carries out a command.
    pub fn carry_out(&mut self, command: &Command) -> StatusUpdate {
        if let Some(message) = reconcile::misfit(command) {
            return refused(command.object, command.revision, message.to_owned(), RetryClass::Permanent);
        }
        self.order(command.object, ObjectTarget::of(command), Some(&command.spec))
    }

    /// Removes an orphan.
    pub fn remove(&mut self, object: impl Into<ObjectId>, revision: u32) -> StatusUpdate {
        self.order(object.into(), ObjectTarget::removal(revision), None)
    }

    /// Purges an ended object; returns the report of one that has not ended.
    pub fn forget(&mut self, object: impl Into<ObjectId>) -> Option<StatusUpdate> {
        let object = object.into();
        let item = self.items.get_mut(&object)?;
        if item.present.state.is_alive() {
            // No command waits for the outcome of a change any more.
            settle(&mut item.present.state);
            return Some(reconcile::report(object, &item.present));
        }
        self.items.remove(&object);
        self.store.object(object).purge::<AcceptedCommand>().expect(IN_MEMORY);
        None
    }

    /// Returns the reports of all objects.
    pub fn list(&self) -> Vec<ObjectReport> {
        let report = |(id, item): (&ObjectId, &SimulatedObject)| match reconcile::report(*id, &item.present) {
            StatusUpdate::Change(report) | StatusUpdate::ListOnly(report) => report,
        };
        self.items.iter().map(report).collect()
    }

    fn order(&mut self, id: ObjectId, order: ObjectTarget, spec: Option<&ObjectSpec>) -> StatusUpdate {
        let item = self.items.get(&id);
        let step =
            reconcile::step(item.map(|item| &item.present), &order, spec, SimulatedOrchestrator::CHANGES);
        if let (ObjectId::Volume(volume), ReconcileStep::Stop(_) | ReconcileStep::WriteTombstone) =
            (id, &step)
            && let Some((user, _)) = self.items.iter().find(|(_, item)| item.uses(volume))
        {
            let message = format!("cannot destroy volume {volume}: in use by {user}");
            return refused(id, order.revision, message, RetryClass::Retryable);
        }
        match step {
            ReconcileStep::Start => {
                self.accept(id, &step, order, spec);
                return self.start(id);
            }
            ReconcileStep::Change => {
                let runs = item.and_then(SimulatedObject::spec).cloned();
                self.accept(id, &step, order, spec);
                return self.change(id, runs);
            }
            ReconcileStep::Adopt => {
                self.accept(id, &step, order, spec);
                settle(&mut self.item(id).present.state);
            }
            ReconcileStep::Stop(grace) if order.aim == TargetGoal::Down && self.ignores_stop(id) => {
                self.accept(id, &step, order, spec);
                return self.kill_after(id, grace);
            }
            ReconcileStep::Stop(_) if order.aim == TargetGoal::Down => {
                self.accept(id, &step, order, spec);
                // Other simulated processes need no grace.
                let runs = self.items.get(&id).and_then(SimulatedObject::spec);
                let processes = processes(id, runs, |_| ProcessStatus::Signaled { signal: 15 });
                self.set(id, ObjectState::Ended { exit: IncarnationExit::Clean, processes });
            }
            ReconcileStep::Stop(_) | ReconcileStep::WriteTombstone => {
                self.accept(id, &step, order, spec);
                self.set(id, ObjectState::Gone);
                self.store.object(id).bury(order.revision).expect(IN_MEMORY);
            }
            ReconcileStep::Reboot => {
                let is_new = item.is_none_or(|item| item.present.order.rank() < order.rank());
                self.accept(id, &step, order, spec);
                settle(&mut self.item(id).present.state);
                if is_new {
                    return self.reset(id);
                }
            }
            ReconcileStep::ReportAgain => {}
            ReconcileStep::Refuse(message, retry) => {
                return refused(id, order.revision, message.to_owned(), retry);
            }
        }
        reconcile::report(id, &self.items[&id].present)
    }

    /// Records a target without starting its work.
    fn accept(
        &mut self,
        id: ObjectId,
        step: &ReconcileStep,
        order: ObjectTarget,
        brought: Option<&ObjectSpec>,
    ) {
        let last = self.items.get(&id).map(|item| item.present.order);
        let present =
            &mut self.items.entry(id).or_insert_with(|| SimulatedObject::accepted(order, None)).present;
        present.order = order;
        present.spec = reconcile::accepted(step, present.spec.take(), brought);
        self.record(id, last);
    }

    fn record(&self, id: ObjectId, last: Option<ObjectTarget>) {
        let KnownObject { order, spec, .. } = &self.items[&id].present;
        let command = AcceptedCommand { object: id, order: *order, spec: spec.clone() };
        self.store.object(id).accept(last.as_ref(), &command).expect(IN_MEMORY);
    }

    /// Records a command and starts nothing, as a crashing executor does.
    pub fn crash_after_record(&mut self, command: &Command) {
        let (object, order, spec) = (command.object, ObjectTarget::of(command), Some(command.spec.clone()));
        let accepted = AcceptedCommand { object, order, spec };
        self.store.object(object).accept(None, &accepted).expect(IN_MEMORY);
    }

    /// Loads the store, as a starting executor does: recorded objects missing here were never started.
    pub(super) fn read_store(&mut self) {
        for (_, records) in self.store.list().expect(IN_MEMORY) {
            if let Some(command) = records.read::<AcceptedCommand>(FileAccess::Owner).expect(IN_MEMORY) {
                let AcceptedCommand { object, order, spec } = command;
                let item = self.items.entry(object).or_insert_with(|| SimulatedObject::accepted(order, spec));
                let tombstone = records.read::<TombstoneFile>(FileAccess::Owner).expect(IN_MEMORY);
                if tombstone.is_some_and(|tombstone| tombstone.covers(&order)) {
                    item.present.state = ObjectState::Gone;
                }
            }
        }
    }

    fn item(&mut self, id: ObjectId) -> &mut SimulatedObject {
        self.items.get_mut(&id).expect("the object is known")
    }

    fn set(&mut self, id: ObjectId, state: ObjectState) {
        let item = self.item(id);
        item.present.state = state;
        item.change = None;
        if let Some(due) = item.due.take() {
            self.timers.remove(&(due, id));
        }
    }

    fn start(&mut self, id: ObjectId) -> StatusUpdate {
        let spec = self.items[&id].present.spec.as_ref();
        let behaviour = self.behaviour(spec, |faults, spec| faults.of(id, spec));
        let processes = processes(id, spec, |_| ProcessStatus::Starting);
        match behaviour {
            Ok(behaviour) => {
                self.set(id, ObjectState::Starting { processes });
                self.behave(id, behaviour, None)
            }
            Err((message, retry_class)) => {
                self.set(id, ObjectState::Failed { message, retry: retry_class });
                reconcile::report(id, &self.items[&id].present)
            }
        }
    }

    /// Returns the behaviour of a requested object, or why it cannot start.
    fn behaviour(
        &self,
        spec: Option<&ObjectSpec>,
        find: impl FnOnce(&FaultRules, &ObjectSpec) -> Result<SimulatedBehaviour, InvalidBehaviour>,
    ) -> Result<SimulatedBehaviour, (String, RetryClass)> {
        let Some(spec) = spec else { return Ok(SimulatedBehaviour::default()) };
        let is_here =
            |volume: &VolumeId| self.items.get(&(*volume).into()).is_some_and(SimulatedObject::is_volume);
        if let Some(volume) = mounts(spec).find(|volume| !is_here(volume)) {
            return Err((format!("cannot use volume {volume}: not found"), RetryClass::Retryable));
        }
        find(&self.faults, spec).map_err(|bad| (bad.to_string(), RetryClass::Permanent))
    }

    /// Starts a change of the running spec, `runs`, to the recorded one.
    fn change(&mut self, id: ObjectId, runs: Option<ObjectSpec>) -> StatusUpdate {
        let KnownObject { order, spec, .. } = &self.items[&id].present;
        let behaviour =
            self.behaviour(spec.as_ref(), |faults, spec| faults.of_change(id, order.revision, spec));
        let item = self.item(id);
        let (at, end) = (Duration::ZERO, item.due);
        let mut change = match (item.change.take(), &item.present.state) {
            (Some(change), _) => change,
            (
                None,
                ObjectState::Up { processes, before } | ObjectState::Unchanged { processes, before, .. },
            ) => {
                let (processes, before, behaviour) = (processes.clone(), *before, item.behaviour);
                PendingChange { at, spec: runs, processes, before, behaviour, end }
            }
            // An object that is not up yet is started with the new spec.
            (None, _) => return self.start(id),
        };
        let mut processes = change.processes.clone();
        for process in &mut processes {
            process.status = ProcessStatus::Starting;
        }
        self.set(id, ObjectState::Changing { processes });
        let delay = behaviour.as_ref().map_or(Duration::ZERO, |behaviour| behaviour.delay);
        change.at = self.now + delay;
        let end = change.end.filter(|end| *end < change.at);
        self.item(id).change = Some(change);
        match behaviour {
            Ok(behaviour) => self.behave(id, behaviour, end),
            Err((message, retry)) => self.leave_unchanged(id, message, retry),
        }
    }

    /// Applies the delay of a behaviour, unless something else is due earlier.
    fn behave(
        &mut self,
        id: ObjectId,
        behaviour: SimulatedBehaviour,
        before: Option<Duration>,
    ) -> StatusUpdate {
        self.misbehaving += u64::from(behaviour != SimulatedBehaviour::default());
        self.item(id).behaviour = behaviour;
        if behaviour.delay.is_zero() && before.is_none() {
            return self.happen(id).expect("a start changes the object");
        }
        let update = reconcile::report(id, &self.item(id).present);
        self.wake(id, before.unwrap_or(self.now + behaviour.delay));
        update
    }

    /// Sets the time of the next step of an object, instead of an earlier setting.
    fn wake(&mut self, id: ObjectId, due: Duration) {
        if let Some(other) = self.item(id).due.replace(due) {
            self.timers.remove(&(other, id));
        }
        self.timers.insert((due, id));
    }

    /// Performs the next step of an object's behaviour.
    fn happen(&mut self, id: ObjectId) -> Option<StatusUpdate> {
        let item = self.items.get_mut(&id)?;
        item.due = None;
        let SimulatedObject { present, behaviour, change, .. } = item;
        let failure = || behaviour.fail.filter(|(_, most)| present.order.attempt <= *most);
        match &present.state {
            ObjectState::Starting { .. } => {
                if let Some((retry_class, attempts)) = failure() {
                    let message = failed("start", present.order.attempt, attempts);
                    present.state = ObjectState::Failed { message, retry: retry_class };
                    return Some(reconcile::report(id, present));
                }
                self.starts += 1;
                Some(self.complete_start(id))
            }
            ObjectState::Changing { .. } => {
                if let Some(change) = change.take_if(|change| change.end.is_some_and(|end| end < change.at)) {
                    (present.spec, *behaviour) = (change.spec, change.behaviour);
                    self.record(id, None);
                    return self.end(id);
                }
                if let Some((hope, attempts)) = failure() {
                    let message = failed("change", present.order.attempt, attempts);
                    return Some(self.leave_unchanged(id, message, hope));
                }
                self.changes += 1;
                item.change = None;
                Some(self.complete_start(id))
            }
            ObjectState::Up { .. } | ObjectState::Unchanged { .. } => self.end(id),
            ObjectState::Accepted
            | ObjectState::Ended { .. }
            | ObjectState::Failed { .. }
            | ObjectState::Gone => None,
        }
    }

    /// Completes a start or a change.
    fn complete_start(&mut self, id: ObjectId) -> StatusUpdate {
        let SimulatedObject { present, behaviour, .. } = self.item(id);
        let readiness = behaviour.readiness;
        let processes = processes(id, present.spec.as_ref(), |last| match readiness {
            SimulatedReadiness::All => ProcessStatus::Ready,
            SimulatedReadiness::Partial if !last => ProcessStatus::Ready,
            SimulatedReadiness::Partial | SimulatedReadiness::Never => ProcessStatus::Starting,
        });
        present.state = ObjectState::Up { processes, before: ReadyHistory::NeverReady };
        let update = if behaviour.late && present.order.attempt == 1 {
            refused(id, present.order.revision, "simulated timeout".to_owned(), RetryClass::Retryable)
        } else {
            reconcile::report(id, present)
        };
        if let Some((after, _)) = behaviour.end {
            let due = self.now + after;
            self.wake(id, due);
        }
        update
    }

    /// Fails a change: the object continues as before, and ends when it would have ended.
    fn leave_unchanged(&mut self, id: ObjectId, message: String, retry_class: RetryClass) -> StatusUpdate {
        let SimulatedObject { present, behaviour, change, .. } = self.item(id);
        let Some(PendingChange { spec, processes, before, behaviour: its, end, .. }) = change.take() else {
            return reconcile::report(id, present);
        };
        (present.spec, *behaviour) = (spec, its);
        present.state = ObjectState::Unchanged { processes, before, message, retry: retry_class };
        let update = reconcile::report(id, present);
        self.record(id, None);
        if let Some(end) = end {
            self.wake(id, end);
        }
        update
    }

    /// Whether the processes of the object run, and end only by a kill.
    fn ignores_stop(&self, id: ObjectId) -> bool {
        let item = self.items.get(&id).filter(|item| item.behaviour.ignores_stop);
        item.is_some_and(|item| {
            matches!(item.present.state, ObjectState::Up { .. } | ObjectState::Unchanged { .. })
        })
    }

    /// Kills the processes of an object when the grace has passed, unless they end earlier.
    fn kill_after(&mut self, id: ObjectId, grace: Duration) -> StatusUpdate {
        let due = self.now + grace;
        let item = self.item(id);
        if grace.is_zero() {
            return self.end_as(id, SimulatedExit::Kill);
        }
        if !item.ends_by(due) {
            item.behaviour.end = Some((grace, SimulatedExit::Kill));
            self.wake(id, due);
        }
        reconcile::report(id, &self.items[&id].present)
    }

    /// Resets the guest of an incarnation, which then does nothing else on its own.
    fn reset(&mut self, id: ObjectId) -> StatusUpdate {
        let item = self.item(id);
        if let Some(first) = stick(&mut item.present.state, ProcessStatus::Rebooting) {
            first.resets += 1;
        }
        item.behaviour.end = Some((Duration::ZERO, SimulatedExit::Reboot));
        let update = reconcile::report(id, &item.present);
        let due = self.now + BOOT;
        self.wake(id, due);
        update
    }

    /// Ends an object on its own, if its behaviour has an end.
    fn end(&mut self, id: ObjectId) -> Option<StatusUpdate> {
        let SimulatedObject { present, behaviour, .. } = self.item(id);
        let (_, ending) = behaviour.end?;
        let stuck = match ending {
            _ if matches!(id, ObjectId::Volume(_)) => return Some(self.end_as(id, ending)),
            SimulatedExit::Hang => HUNG,
            SimulatedExit::Unready => ProcessStatus::Unready { error: ProbeError::Refused },
            SimulatedExit::Reboot if is_rebooting(&present.state) => ProcessStatus::Ready,
            SimulatedExit::Reboot => return Some(self.reset(id)),
            SimulatedExit::Crash(_)
            | SimulatedExit::Exit(_)
            | SimulatedExit::PowerOff
            | SimulatedExit::Kill => return Some(self.end_as(id, ending)),
        };
        stick(&mut present.state, stuck);
        Some(reconcile::report(id, present))
    }

    /// Ends an object in this way.
    fn end_as(&mut self, id: ObjectId, ending: SimulatedExit) -> StatusUpdate {
        let (exit, processes) = ended(id, self.items[&id].spec(), ending);
        self.set(id, ObjectState::Ended { exit, processes });
        reconcile::report(id, &self.items[&id].present)
    }
}

fn refused(object: ObjectId, revision: u32, message: String, retry: RetryClass) -> StatusUpdate {
    let observed = ObservedState::Failed { message, retry };
    StatusUpdate::Change(ObjectReport { object, revision, observed })
}

#[cfg(test)]
mod tests;
