//! One simulated object, and what the processes of an incarnation look like.

use std::time::Duration;

use chancery_events::id::{ObjectId, VolumeId};
use chancery_events::observation::{Address, Exit, ProbeError, Process, ProcessStatus};
use chancery_events::protocol::{Mount, ObjectSpec};

use super::faults::{Behaviour, Ending};
use crate::plan::{Aim, Before, Order, Present, State};

/// What is there of one.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) present: Present,
    pub(super) behaviour: Behaviour,
    pub(super) due: Option<Duration>,
    /// While it is being changed.
    pub(super) change: Option<Change>,
}

/// A change under way, and what runs until it is made.
#[derive(Debug)]
pub(super) struct Change {
    /// When it is made, or fails.
    pub(super) at: Duration,
    pub(super) spec: Option<ObjectSpec>,
    pub(super) processes: Vec<Process>,
    pub(super) before: Before,
    pub(super) behaviour: Behaviour,
    /// When what runs ends by itself, if it is not changed by then.
    pub(super) end: Option<Duration>,
}

impl Item {
    /// One of which an order is recorded, and nothing begun.
    pub(super) fn accepted(order: Order, spec: Option<ObjectSpec>) -> Item {
        let present = Present { order, spec, state: State::Accepted };
        Item { present, behaviour: Behaviour::default(), due: None, change: None }
    }

    /// The processes that exist.
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

    /// What they are.
    pub(super) fn spec(&self) -> Option<&ObjectSpec> {
        self.change.as_ref().map_or(&self.present.spec, |change| &change.spec).as_ref()
    }

    /// Whether it uses the volume, or may yet.
    pub(super) fn uses(&self, volume: VolumeId) -> bool {
        let specs = self.spec().into_iter().chain(self.present.spec.as_ref());
        !self.present.state.is_over() && specs.flat_map(mounts).any(|mount| mount.volume == volume)
    }

    /// Whether it is a volume that may be used.
    pub(super) fn is_volume(&self) -> bool {
        let is_up = matches!(self.present.state, State::Up { .. }) && self.present.order.aim == Aim::Up;
        is_up && matches!(self.present.spec, Some(ObjectSpec::Volume(_)))
    }
}

pub(super) fn failed(to: &str, attempt: u32, attempts: u32) -> String {
    format!("simulated failure to {to}, attempt {attempt} of {attempts}")
}

/// What could not be changed is up, and nobody waits for more.
pub(super) fn settle(state: &mut State) {
    if let State::Unchanged { processes, before, .. } = state {
        *state = State::Up { processes: std::mem::take(processes), before: *before };
    }
}

/// The volumes of a run.
pub(super) fn mounts(spec: &ObjectSpec) -> impl Iterator<Item = &Mount> {
    let payloads = match spec {
        ObjectSpec::Run(spec) => &spec.payloads[..],
        ObjectSpec::Volume(_) => &[],
    };
    payloads.iter().flat_map(|payload| &payload.mounts)
}

/// How it ends by itself: a volume is lost, however.
pub(super) fn ended(id: ObjectId, spec: Option<&ObjectSpec>, ending: Ending) -> (Exit, Vec<Process>) {
    if let ObjectId::Volume(_) = id {
        return (Exit::Failed { reason: "simulated loss of what was in it".to_owned() }, Vec::new());
    }
    let (code, rest) = match ending {
        Ending::Crash(code) => (code, ProcessStatus::Signaled { signal: 15 }),
        Ending::Exit(code) => (code, ProcessStatus::Exited { code }),
        // A volume alone ends so.
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

/// Lets the first process of what is up run on otherwise.
pub(super) fn stick(state: &mut State, status: ProcessStatus) {
    let (State::Up { processes, before } | State::Unchanged { processes, before, .. }) = state else {
        return;
    };
    if let Some(first) = processes.first_mut() {
        first.status = status;
    }
    *before = Before::Ready;
}

/// What a process is that does not answer any more.
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
                // Unique for ever, as an assigned port is for the time that it is assigned.
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
