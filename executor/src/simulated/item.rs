//! One simulated incarnation, and what its processes look like.

use std::time::Duration;

use chancery_events::id::IncarnationId;
use chancery_events::observation::{Address, Exit, Process, ProcessStatus};
use chancery_events::protocol::RunSpec;

use super::faults::{Behaviour, Ending};
use crate::plan::{Before, Present, State};

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
    pub(super) spec: Option<RunSpec>,
    pub(super) processes: Vec<Process>,
    pub(super) before: Before,
    pub(super) behaviour: Behaviour,
    /// When what runs ends by itself, if it is not changed by then.
    pub(super) end: Option<Duration>,
}

impl Item {
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
    pub(super) fn spec(&self) -> Option<&RunSpec> {
        self.change.as_ref().map_or(&self.present.spec, |change| &change.spec).as_ref()
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

pub(super) fn ended(id: IncarnationId, spec: Option<&RunSpec>, ending: Ending) -> (Exit, Vec<Process>) {
    let (Ending::Crash(code) | Ending::Exit(code)) = ending;
    let mut processes = processes(id, spec, |_| match ending {
        Ending::Crash(_) => ProcessStatus::Signaled { signal: 15 },
        Ending::Exit(code) => ProcessStatus::Exited { code },
    });
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

pub(super) fn processes(
    id: IncarnationId,
    spec: Option<&RunSpec>,
    status: impl Fn(bool) -> ProcessStatus,
) -> Vec<Process> {
    let Some(spec) = spec else { return Vec::new() };
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
