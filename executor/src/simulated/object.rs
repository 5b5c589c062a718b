//! Simulated object, and the processes of a simulated incarnation.

use std::time::Duration;

use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::observation::{IncarnationExit, PortAddress, ProbeError, ProcessInfo, ProcessStatus};
use chancery_events::protocol::{IncarnationSpec, ObjectSpec};

use super::faults::{SimulatedBehaviour, SimulatedExit};
use crate::reconcile::{KnownObject, ObjectState, ObjectTarget, ReadyHistory, TargetGoal};

#[derive(Debug)]
pub(super) struct SimulatedObject {
    pub(super) present: KnownObject,
    pub(super) behaviour: SimulatedBehaviour,
    pub(super) due: Option<Duration>,
    pub(super) change: Option<PendingChange>,
}

/// Pending change, and what runs until it is made.
#[derive(Debug)]
pub(super) struct PendingChange {
    /// Time at which the change is made, or fails.
    pub(super) at: Duration,
    pub(super) spec: Option<ObjectSpec>,
    pub(super) processes: Vec<ProcessInfo>,
    pub(super) before: ReadyHistory,
    pub(super) behaviour: SimulatedBehaviour,
    /// Time at which the running object ends on its own, if it is not changed by then.
    pub(super) end: Option<Duration>,
}

impl SimulatedObject {
    /// Creates an object whose target is recorded and not started.
    pub(super) fn accepted(order: ObjectTarget, spec: Option<ObjectSpec>) -> SimulatedObject {
        let present = KnownObject { order, spec, state: ObjectState::Accepted };
        SimulatedObject { present, behaviour: SimulatedBehaviour::default(), due: None, change: None }
    }

    pub(super) fn alive(&self) -> Option<&[ProcessInfo]> {
        match &self.present.state {
            ObjectState::Up { processes, .. }
            | ObjectState::Changing { processes }
            | ObjectState::Unchanged { processes, .. } => Some(processes),
            ObjectState::Accepted
            | ObjectState::Starting { .. }
            | ObjectState::Ended { .. }
            | ObjectState::Failed { .. }
            | ObjectState::Gone => None,
        }
    }

    /// Returns the spec of the existing processes.
    pub(super) fn spec(&self) -> Option<&ObjectSpec> {
        self.change.as_ref().map_or(&self.present.spec, |change| &change.spec).as_ref()
    }

    /// Whether the running object ends at this time or earlier.
    pub(super) fn ends_by(&self, time: Duration) -> bool {
        let ends = match self.behaviour.end {
            Some((
                _,
                SimulatedExit::Crash(_)
                | SimulatedExit::Exit(_)
                | SimulatedExit::PowerOff
                | SimulatedExit::Kill,
            )) => true,
            Some((_, SimulatedExit::Reboot | SimulatedExit::Hang | SimulatedExit::Unready)) | None => false,
        };
        ends && self.due.is_some_and(|due| due <= time)
    }

    /// Whether the object uses the volume, or may yet.
    pub(super) fn uses(&self, volume: VolumeId) -> bool {
        let specs = self.spec().into_iter().chain(self.present.spec.as_ref());
        !self.present.state.is_over() && specs.flat_map(mounts).any(|mounted| mounted == volume)
    }

    /// Whether the object is a volume that may be used.
    pub(super) fn is_volume(&self) -> bool {
        let is_up =
            matches!(self.present.state, ObjectState::Up { .. }) && self.present.order.aim == TargetGoal::Up;
        is_up && matches!(self.present.spec, Some(ObjectSpec::Volume(_)))
    }
}

pub(super) fn failed(to: &str, attempt: u32, attempts: u32) -> String {
    format!("simulated failure to {to}, attempt {attempt} of {attempts}")
}

/// Turns a failed change into plain running, when no command waits for the outcome.
pub(super) fn settle(state: &mut ObjectState) {
    if let ObjectState::Unchanged { processes, before, .. } = state {
        *state = ObjectState::Up { processes: std::mem::take(processes), before: *before };
    }
}

pub(super) fn mounts(spec: &ObjectSpec) -> impl Iterator<Item = VolumeId> {
    spec.incarnation().into_iter().flat_map(IncarnationSpec::mounts)
}

/// Returns the exit of an object that ends on its own; a volume is always lost.
pub(super) fn ended(
    id: ObjectId,
    spec: Option<&ObjectSpec>,
    ending: SimulatedExit,
) -> (IncarnationExit, Vec<ProcessInfo>) {
    if let ObjectId::Volume(_) = id {
        return (IncarnationExit::Failed { reason: "simulated loss of content".to_owned() }, Vec::new());
    }
    let (code, rest) = match ending {
        SimulatedExit::Crash(code) => (code, ProcessStatus::Signaled { signal: 15 }),
        SimulatedExit::Exit(code) => (code, ProcessStatus::Exited { code }),
        SimulatedExit::PowerOff => (0, ProcessStatus::Signaled { signal: 15 }),
        SimulatedExit::Kill => {
            // That a stop was requested before is known to the decider alone.
            let processes = processes(id, spec, |_| ProcessStatus::Signaled { signal: 9 });
            let first = processes.first();
            let reason = first.map(|first| format!("{} was ended by signal 9", first.name()));
            return (IncarnationExit::Failed { reason: reason.unwrap_or_default() }, processes);
        }
        // Only a volume ends like this.
        SimulatedExit::Hang | SimulatedExit::Unready | SimulatedExit::Reboot => {
            (1, ProcessStatus::Signaled { signal: 15 })
        }
    };
    let mut processes = processes(id, spec, |_| rest.clone());
    let powers_off = ending == SimulatedExit::PowerOff;
    let mut exit = if powers_off { IncarnationExit::PoweredOff } else { IncarnationExit::Clean };
    if let Some(first) = processes.first_mut() {
        first.status = ProcessStatus::Exited { code };
        if code != 0 {
            exit = IncarnationExit::Failed { reason: format!("{} ended with status {code}", first.name()) };
        }
    }
    (exit, processes)
}

/// Changes the status of the first running process, and returns that process.
pub(super) fn stick(state: &mut ObjectState, status: ProcessStatus) -> Option<&mut ProcessInfo> {
    let (ObjectState::Up { processes, before } | ObjectState::Unchanged { processes, before, .. }) = state
    else {
        return None;
    };
    *before = ReadyHistory::Ready;
    let first = processes.first_mut()?;
    first.status = status;
    Some(first)
}

/// Whether a guest was reset, and is not ready again.
pub(super) fn is_rebooting(state: &ObjectState) -> bool {
    let (ObjectState::Up { processes, .. } | ObjectState::Unchanged { processes, .. }) = state else {
        return false;
    };
    processes.iter().any(|process| process.status == ProcessStatus::Rebooting)
}

pub(super) const HUNG: ProcessStatus = ProcessStatus::Unresponsive { error: ProbeError::Timeout };

pub(super) fn processes(
    id: ObjectId,
    spec: Option<&ObjectSpec>,
    status: impl Fn(bool) -> ProcessStatus,
) -> Vec<ProcessInfo> {
    let Some(ObjectSpec::Incarnation(spec)) = spec else { return Vec::new() };
    let mut all = Vec::new();
    for payload in &spec.payloads {
        for index in 0..payload.processes {
            let address = |port: &chancery_events::spec::PayloadPort| PortAddress {
                port: port.name.clone(),
                // Unique permanently, as an assigned port is while it is assigned.
                address: format!("{}.{}.{index}:{}", spec.node, id.position(), port.port),
            };
            all.push(ProcessInfo {
                payload: payload.name.clone(),
                index,
                pid: None,
                object: None,
                addresses: payload.ports.iter().map(address).collect(),
                status: ProcessStatus::Starting,
                since: None,
                resets: 0,
            });
        }
    }
    let count = all.len();
    for (number, process) in all.iter_mut().enumerate() {
        process.status = status(number + 1 == count);
    }
    all
}
