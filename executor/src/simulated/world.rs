//! The truth about simulated nodes: sync, without a clock, the same for the same calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chancery_events::id::IncarnationId;
use chancery_events::observation::{Address, Exit, Hope, Process, ProcessStatus, Report, Saw};
use chancery_events::protocol::{Command, RunSpec};

use super::faults::{Behaviour, Ending, Faults, Readiness};
use crate::plan::{self, Aim, Before, Order, Present, State, Step, Told};

/// See the module.
#[derive(Debug, Default)]
pub struct World {
    faults: Faults,
    now: Duration,
    items: BTreeMap<IncarnationId, Item>,
    timers: BTreeSet<(Duration, IncarnationId)>,
    starts: u64,
    misbehaving: u64,
}

#[derive(Debug)]
struct Item {
    present: Present,
    behaviour: Behaviour,
    due: Option<Duration>,
}

impl World {
    /// An empty world.
    pub fn new(faults: Faults) -> World {
        World { faults, ..World::default() }
    }

    /// An empty world, to be given to an orchestrator and kept for the next one.
    pub fn shared(faults: Faults) -> Arc<Mutex<World>> {
        Arc::new(Mutex::new(World::new(faults)))
    }

    /// Changes the rules for what is started from now on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// The time that it has reached.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// When something will happen by itself.
    pub fn due(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// How many processes of an incarnation exist.
    pub fn running(&self, incarnation: IncarnationId) -> usize {
        match self.items.get(&incarnation).map(|item| &item.present.state) {
            Some(State::Up { processes, .. }) => processes.len(),
            _ => 0,
        }
    }

    /// How often anything was started, ever.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// How many orders to start met a rule or a seed by which they misbehave, ever.
    pub fn misbehaving(&self) -> u64 {
        self.misbehaving
    }

    /// Goes on to `now`, and tells what has changed by itself.
    pub fn advance(&mut self, now: Duration) -> Vec<Told> {
        let mut told = Vec::new();
        while let Some(&(at, id)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            self.now = self.now.max(at);
            told.extend(self.happen(id));
        }
        self.now = self.now.max(now);
        told
    }

    /// What runs: each incarnation of which processes exist, and how many.
    pub fn alive(&self) -> impl Iterator<Item = (IncarnationId, usize)> {
        let processes = |(id, item): (&IncarnationId, &Item)| match &item.present.state {
            State::Up { processes, .. } => Some((*id, processes.len())),
            _ => None,
        };
        self.items.iter().filter_map(processes)
    }

    /// Kills what runs of an incarnation, as the machine or somebody may. What has changed, if it ran.
    pub fn strike(&mut self, incarnation: IncarnationId) -> Option<Told> {
        let item = self.items.get(&incarnation)?;
        let State::Up { .. } = &item.present.state else { return None };
        let (exit, processes) = ended(incarnation, item.present.spec.as_ref(), Ending::Crash(137));
        self.set(incarnation, item.present.order, None, Some(State::Ended { exit, processes }));
        Some(plan::report(incarnation, &self.items[&incarnation].present))
    }

    /// Loses everything, as a machine does that gets a new disk: what ran, and what was known of it.
    pub fn wipe(&mut self) {
        self.items.clear();
        self.timers.clear();
    }

    /// Carries out a command.
    pub fn carry_out(&mut self, command: &Command) -> Told {
        self.order(command.incarnation, Order::of(command), Some(&command.spec))
    }

    /// Removes an object that was judged.
    pub fn remove(&mut self, incarnation: IncarnationId, revision: u32) -> Told {
        self.order(incarnation, Order::removal(revision), None)
    }

    /// Drops one that is over; one that is not is told again.
    pub fn forget(&mut self, incarnation: IncarnationId) -> Option<Told> {
        let item = self.items.get(&incarnation)?;
        match item.present.state {
            State::Starting { .. } | State::Up { .. } => Some(plan::report(incarnation, &item.present)),
            State::Accepted | State::Ended { .. } | State::Failed { .. } | State::Gone => {
                self.items.remove(&incarnation);
                None
            }
        }
    }

    /// Everything.
    pub fn list(&self) -> Vec<Report> {
        let report = |(id, item): (&IncarnationId, &Item)| match plan::report(*id, &item.present) {
            Told::Change(report) | Told::ListOnly(report) => report,
        };
        self.items.iter().map(report).collect()
    }

    fn order(&mut self, id: IncarnationId, order: Order, spec: Option<&RunSpec>) -> Told {
        let present = self.items.get(&id).map(|item| &item.present);
        match plan::step(present, &order, spec) {
            Step::Start => return self.start(id, order, spec),
            Step::Adopt => self.set(id, order, spec, None),
            Step::End(_) if order.aim == Aim::Down => {
                // Nothing here needs any grace.
                let spec = present.and_then(|present| present.spec.as_ref());
                let processes = processes(id, spec, |_| ProcessStatus::Signaled { signal: 15 });
                self.set(id, order, None, Some(State::Ended { exit: Exit::Clean, processes }));
            }
            Step::End(_) | Step::Bury => self.set(id, order, spec, Some(State::Gone)),
            Step::Answer => {}
            Step::Refuse(message, hope) => {
                let saw = Saw::Failed { message: message.to_owned(), hope };
                return Told::Change(Report { incarnation: id, revision: order.revision, saw });
            }
        }
        plan::report(id, &self.items[&id].present)
    }

    fn set(&mut self, id: IncarnationId, order: Order, spec: Option<&RunSpec>, state: Option<State>) {
        let item = self.items.entry(id).or_insert_with(|| Item {
            present: Present { order, spec: spec.cloned(), state: State::Accepted },
            behaviour: Behaviour::default(),
            due: None,
        });
        item.present.order = order;
        if let Some(state) = state {
            item.present.state = state;
            if let Some(due) = item.due.take() {
                self.timers.remove(&(due, id));
            }
        }
    }

    fn start(&mut self, id: IncarnationId, order: Order, spec: Option<&RunSpec>) -> Told {
        self.set(id, order, spec, Some(State::Accepted));
        let item = self.items.get_mut(&id).expect("it was set above");
        item.present.spec = spec.cloned();
        let behaviour = spec.map(|spec| self.faults.of(id, spec)).transpose();
        match behaviour {
            Ok(behaviour) => {
                item.behaviour = behaviour.unwrap_or_default();
                self.misbehaving += u64::from(item.behaviour != Behaviour::default());
            }
            Err(bad) => {
                item.present.state = State::Failed { message: bad.to_string(), hope: Hope::Never };
                return plan::report(id, &item.present);
            }
        }
        let processes = processes(id, spec, |_| ProcessStatus::Initializing);
        item.present.state = State::Starting { processes };
        if item.behaviour.delay.is_zero() {
            return self.happen(id).expect("what is being started has something to tell");
        }
        let told = plan::report(id, &item.present);
        let due = self.now + item.behaviour.delay;
        self.wake(id, due);
        told
    }

    fn wake(&mut self, id: IncarnationId, due: Duration) {
        self.items.get_mut(&id).expect("only what is there is woken").due = Some(due);
        self.timers.insert((due, id));
    }

    /// What its behaviour lets happen next.
    fn happen(&mut self, id: IncarnationId) -> Option<Told> {
        let item = self.items.get_mut(&id)?;
        item.due = None;
        let Item { present, behaviour, .. } = item;
        match &present.state {
            State::Starting { .. } => {
                if let Some((hope, attempts)) =
                    behaviour.fail.filter(|(_, most)| present.order.attempt <= *most)
                {
                    let message = format!(
                        "simulated failure to start, attempt {} of {attempts}",
                        present.order.attempt
                    );
                    present.state = State::Failed { message, hope };
                    return Some(plan::report(id, present));
                }
                self.starts += 1;
                let readiness = behaviour.readiness;
                let processes = processes(id, present.spec.as_ref(), |last| match readiness {
                    Readiness::All => ProcessStatus::Online,
                    Readiness::Partial if !last => ProcessStatus::Online,
                    Readiness::Partial | Readiness::Never => ProcessStatus::Initializing,
                });
                present.state = State::Up { processes, before: Before::NeverReady };
                let told = if behaviour.late && present.order.attempt == 1 {
                    let saw = Saw::Failed { message: "simulated timeout".to_owned(), hope: Hope::Retry };
                    Told::Change(Report { incarnation: id, revision: present.order.revision, saw })
                } else {
                    plan::report(id, present)
                };
                if let Some((after, _)) = behaviour.end {
                    let due = self.now + after;
                    self.wake(id, due);
                }
                Some(told)
            }
            State::Up { .. } => {
                let (_, ending) = behaviour.end?;
                let (exit, processes) = ended(id, present.spec.as_ref(), ending);
                present.state = State::Ended { exit, processes };
                Some(plan::report(id, present))
            }
            State::Accepted | State::Ended { .. } | State::Failed { .. } | State::Gone => None,
        }
    }
}

fn ended(id: IncarnationId, spec: Option<&RunSpec>, ending: Ending) -> (Exit, Vec<Process>) {
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

fn processes(
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
