//! The truth about simulated nodes: sync, without a clock, the same for the same calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chancery_events::id::IncarnationId;
use chancery_events::observation::{Exit, Hope, Process, ProcessStatus, Report, Saw};
use chancery_events::protocol::{Command, RunSpec};

use super::Simulated;
use super::faults::{Behaviour, Ending, Faults, Readiness};
use super::item::{Change, Item, ended, failed, processes, settle};
use crate::orchestrator::Orchestrator as _;
use crate::plan::{self, Aim, Before, Order, Present, State, Step, Told};

/// See the module.
#[derive(Debug, Default)]
pub struct World {
    faults: Faults,
    now: Duration,
    items: BTreeMap<IncarnationId, Item>,
    timers: BTreeSet<(Duration, IncarnationId)>,
    starts: u64,
    changes: u64,
    misbehaving: u64,
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
        self.items.get(&incarnation).and_then(Item::alive).map_or(0, <[Process]>::len)
    }

    /// How often anything was started, ever.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// How often anything was changed in place, ever.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// How many orders to start or change met a rule or a seed by which they misbehave, ever.
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
        self.items.iter().filter_map(|(id, item)| Some((*id, item.alive()?.len())))
    }

    /// Kills what runs of an incarnation, as the machine or somebody may. What has changed, if it ran.
    pub fn strike(&mut self, incarnation: IncarnationId) -> Option<Told> {
        let item = self.items.get(&incarnation)?;
        item.alive()?;
        let (exit, processes) = ended(incarnation, item.spec(), Ending::Crash(137));
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
        let item = self.items.get_mut(&incarnation)?;
        match item.present.state {
            State::Starting { .. } | State::Up { .. } | State::Changing { .. } | State::Unchanged { .. } => {
                // Nobody waits for the outcome of a change any more: what is there is told.
                settle(&mut item.present.state);
                Some(plan::report(incarnation, &item.present))
            }
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
        let item = self.items.get(&id);
        match plan::step(item.map(|item| &item.present), &order, spec, Simulated::CHANGES) {
            Step::Start => return self.start(id, order, spec),
            Step::Change => return self.change(id, order, spec),
            Step::Adopt => {
                self.set(id, order, spec, None);
                let present = &mut self.item(id).present;
                settle(&mut present.state);
                present.spec = plan::adopted(present.spec.take(), spec);
            }
            Step::End(_) if order.aim == Aim::Down => {
                // Nothing here needs any grace.
                let processes =
                    processes(id, item.and_then(Item::spec), |_| ProcessStatus::Signaled { signal: 15 });
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

    fn item(&mut self, id: IncarnationId) -> &mut Item {
        self.items.get_mut(&id).expect("only what is there is looked at")
    }

    /// Records an order; with a state, what was due is not any more.
    fn set(&mut self, id: IncarnationId, order: Order, spec: Option<&RunSpec>, state: Option<State>) {
        let item = self.items.entry(id).or_insert_with(|| Item {
            present: Present { order, spec: spec.cloned(), state: State::Accepted },
            behaviour: Behaviour::default(),
            due: None,
            change: None,
        });
        item.present.order = order;
        if let Some(state) = state {
            item.present.state = state;
            item.change = None;
            if let Some(due) = item.due.take() {
                self.timers.remove(&(due, id));
            }
        }
    }

    fn start(&mut self, id: IncarnationId, order: Order, spec: Option<&RunSpec>) -> Told {
        self.set(id, order, spec, Some(State::Accepted));
        let behaviour = spec.map(|spec| self.faults.of(id, spec)).transpose();
        let item = self.item(id);
        item.present.spec = spec.cloned();
        let behaviour = match behaviour {
            Ok(behaviour) => behaviour.unwrap_or_default(),
            Err(bad) => {
                item.present.state = State::Failed { message: bad.to_string(), hope: Hope::Never };
                return plan::report(id, &item.present);
            }
        };
        item.present.state =
            State::Starting { processes: processes(id, spec, |_| ProcessStatus::Initializing) };
        self.behave(id, behaviour, None)
    }

    /// Begins to give what runs another spec.
    fn change(&mut self, id: IncarnationId, order: Order, spec: Option<&RunSpec>) -> Told {
        let behaviour = spec.map(|spec| self.faults.of_change(id, order.revision, spec)).transpose();
        let item = self.item(id);
        let (at, end) = (Duration::ZERO, item.due);
        let mut change = match (item.change.take(), &item.present.state) {
            (Some(change), _) => change,
            (None, State::Up { processes, before } | State::Unchanged { processes, before, .. }) => {
                let (processes, before, behaviour) = (processes.clone(), *before, item.behaviour);
                Change { at, spec: item.present.spec.clone(), processes, before, behaviour, end }
            }
            // What has not come up yet is started as it is wanted now.
            (None, _) => return self.start(id, order, spec),
        };
        let mut processes = change.processes.clone();
        for process in &mut processes {
            process.status = ProcessStatus::Initializing;
        }
        self.set(id, order, None, Some(State::Changing { processes }));
        let delay = behaviour.as_ref().map_or(Duration::ZERO, |b| b.unwrap_or_default().delay);
        change.at = self.now + delay;
        let end = change.end.filter(|end| *end < change.at);
        let item = self.item(id);
        item.present.spec = spec.cloned();
        item.change = Some(change);
        match behaviour {
            Ok(behaviour) => self.behave(id, behaviour.unwrap_or_default(), end),
            Err(bad) => self.leave_unchanged(id, bad.to_string(), Hope::Never),
        }
    }

    /// Lets what begins have its delay; something else may be due before.
    fn behave(&mut self, id: IncarnationId, behaviour: Behaviour, before: Option<Duration>) -> Told {
        self.misbehaving += u64::from(behaviour != Behaviour::default());
        self.item(id).behaviour = behaviour;
        if behaviour.delay.is_zero() && before.is_none() {
            return self.happen(id).expect("what begins has something to tell");
        }
        let told = plan::report(id, &self.item(id).present);
        self.wake(id, before.unwrap_or(self.now + behaviour.delay));
        told
    }

    fn wake(&mut self, id: IncarnationId, due: Duration) {
        self.item(id).due = Some(due);
        self.timers.insert((due, id));
    }

    /// What its behaviour lets happen next.
    fn happen(&mut self, id: IncarnationId) -> Option<Told> {
        let item = self.items.get_mut(&id)?;
        item.due = None;
        let Item { present, behaviour, change, .. } = item;
        let failure = || behaviour.fail.filter(|(_, most)| present.order.attempt <= *most);
        match &present.state {
            State::Starting { .. } => {
                if let Some((hope, attempts)) = failure() {
                    let message = failed("start", present.order.attempt, attempts);
                    present.state = State::Failed { message, hope };
                    return Some(plan::report(id, present));
                }
                self.starts += 1;
                Some(self.come_up(id))
            }
            State::Changing { .. } => {
                if let Some(change) = change.take_if(|change| change.end.is_some_and(|end| end < change.at)) {
                    (present.spec, *behaviour) = (change.spec, change.behaviour);
                    return self.end(id);
                }
                if let Some((hope, attempts)) = failure() {
                    let message = failed("change", present.order.attempt, attempts);
                    return Some(self.leave_unchanged(id, message, hope));
                }
                self.changes += 1;
                item.change = None;
                Some(self.come_up(id))
            }
            State::Up { .. } | State::Unchanged { .. } => self.end(id),
            State::Accepted | State::Ended { .. } | State::Failed { .. } | State::Gone => None,
        }
    }

    /// Everything that the spec asks for is there.
    fn come_up(&mut self, id: IncarnationId) -> Told {
        let Item { present, behaviour, .. } = self.item(id);
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
        told
    }

    /// A change came to nothing: what ran before runs on, and ends when it would have.
    fn leave_unchanged(&mut self, id: IncarnationId, message: String, hope: Hope) -> Told {
        let Item { present, behaviour, change, .. } = self.item(id);
        let Some(Change { spec, processes, before, behaviour: its, end, .. }) = change.take() else {
            return plan::report(id, present);
        };
        (present.spec, *behaviour) = (spec, its);
        present.state = State::Unchanged { processes, before, message, hope };
        let told = plan::report(id, present);
        if let Some(end) = end {
            self.wake(id, end);
        }
        told
    }

    /// It ends by itself, if it is to.
    fn end(&mut self, id: IncarnationId) -> Option<Told> {
        let Item { present, behaviour, .. } = self.item(id);
        let (_, ending) = behaviour.end?;
        let (exit, processes) = ended(id, present.spec.as_ref(), ending);
        present.state = State::Ended { exit, processes };
        Some(plan::report(id, present))
    }
}

#[cfg(test)]
mod tests;
