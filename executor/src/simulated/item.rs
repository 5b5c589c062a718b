//! Simulated object, and the processes of a simulated incarnation.

use std::time::Duration;

use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::observation::{Address, Exit, ProbeError, Process, ProcessStatus};
use chancery_events::protocol::{Mount, ObjectSpec};

use super::faults::{Behaviour, Ending};
use crate::plan::{Aim, Before, Order, Present, State};

#[derive(Debug)]
pub(super) struct Item {
    pub(super) present: Present,
    pub(super) behaviour: Behaviour,
    pub(super) due: Option<Duration>,
    pub(super) change: Option<Change>,
}

/// Pending change, and what runs until it is made.
#[derive(Debug)]
pub(super) struct Change {
    /// Time at which the change is made, or fails.
    pub(super) at: Duration,
    pub(super) spec: Option<ObjectSpec>,
    pub(super) processes: Vec<Process>,
    pub(super) before: Before,
    pub(super) behaviour: Behaviour,
    /// Time at which the running object ends on its own, if it is not changed by then.
    pub(super) end: Option<Duration>,
}

impl Item {
    /// Creates an object whose target is recorded and not started.
    pub(super) fn accepted(order: Order, spec: Option<ObjectSpec>) -> Item {
        let present = Present { order, spec, state: State::Accepted };
        Item { present, behaviour: Behaviour::default(), due: None, change: None }
    }

    pub(super) fn alive(&self) -> Option<&[Process]> {
        match &self.present.state {
            State::Up { processes, .. }
            | State::Changing { processes }
            | State::Unchanged { processes, .. } => Some(processes),
            State::Accepted
            | State::Starting { .. }
            | State::Ended { .. }
            | State::Failed { .. }
            | State::Gone => None,
        }
    }

    /// Returns the spec of the existing processes.
    pub(super) fn spec(&self) -> Option<&ObjectSpec> {
        self.change.as_ref().map_or(&self.present.spec, |change| &change.spec).as_ref()
    }

    /// Whether the object uses the volume, or may yet.
    pub(super) fn uses(&self, volume: VolumeId) -> bool {
        let specs = self.spec().into_iter().chain(self.present.spec.as_ref());
        !self.present.state.is_over() && specs.flat_map(mounts).any(|mount| mount.volume == volume)
    }

    /// Whether the object is a volume that may be used.
    pub(super) fn is_volume(&self) -> bool {
        let is_up = matches!(self.present.state, State::Up { .. }) && self.present.order.aim == Aim::Up;
        is_up && matches!(self.present.spec, Some(ObjectSpec::Volume(_)))
    }
}

pub(super) fn failed(to: &str, attempt: u32, attempts: u32) -> String {
    format!("simulated failure to {to}, attempt {attempt} of {attempts}")
}

/// Turns a failed change into plain running, when no command waits for the outcome.
pub(super) fn settle(state: &mut State) {
    if let State::Unchanged { processes, before, .. } = state {
        *state = State::Up { processes: std::mem::take(processes), before: *before };
    }
}

pub(super) fn mounts(spec: &ObjectSpec) -> impl Iterator<Item = &Mount> {
    let payloads = match spec {
        ObjectSpec::Run(spec) => &spec.payloads[..],
        ObjectSpec::Volume(_) => &[],
    };
    payloads.iter().flat_map(|payload| &payload.mounts)
}

/// Returns the exit of an object that ends on its own; a volume is always lost.
pub(super) fn ended(id: ObjectId, spec: Option<&ObjectSpec>, ending: Ending) -> (Exit, Vec<Process>) {
    if let ObjectId::Volume(_) = id {
        return (Exit::Failed { reason: "simulated loss of what was in it".to_owned() }, Vec::new());
    }
    let (code, rest) = match ending {
        Ending::Crash(code) => (code, ProcessStatus::Signaled { signal: 15 }),
        Ending::Exit(code) => (code, ProcessStatus::Exited { code }),
        // Only a volume ends like this.
        Ending::Hang | Ending::Unready => (1, ProcessStatus::Signaled { signal: 15 }),
    };
    let mut processes = processes(id, spec, |_| rest.clone());
    let mut exit = Exit::Clean;
    if let Some(first) = processes.first_mut() {
        first.status = ProcessStatus::Exited { code };
        if code != 0 {
            exit = Exit::Failed {
                reason: format!("{}-{} ended with status {code}", first.payload, first.index),
            };
        }
    }
    (exit, processes)
}

/// Changes the status of the first running process.
pub(super) fn stick(state: &mut State, status: ProcessStatus) {
    let (State::Up { processes, before } | State::Unchanged { processes, before, .. }) = state else {
        return;
    };
    if let Some(first) = processes.first_mut() {
        first.status = status;
    }
    *before = Before::Ready;
}

pub(super) const HUNG: ProcessStatus = ProcessStatus::Unresponsive { error: ProbeError::Timeout };

pub(super) fn processes(
    id: ObjectId,
    spec: Option<&ObjectSpec>,
    status: impl Fn(bool) -> ProcessStatus,
) -> Vec<Process> {
    let Some(ObjectSpec::Run(spec)) = spec else { return Vec::new() };
    let mut all = Vec::new();
    for payload in &spec.payloads {
        for index in 0..payload.processes {
            let address = |port: &chancery_events::spec::Port| Address {
                port: port.name.clone(),
                // Unique permanently, as an assigned port is while it is assigned.
                address: format!("{}.{}.{index}:{}", spec.node, id.position(), port.port),
            };
            all.push(Process {
                payload: payload.name.clone(),
                index,
                pid: None,
                addresses: payload.ports.iter().map(address).collect(),
                status: ProcessStatus::Initializing,
            });
        }
    }
    let count = all.len();
    for (number, process) in all.iter_mut().enumerate() {
        process.status = status(number + 1 == count);
    }
    all
}
