//! One step of a simulated world: something that can happen now, drawn from all that can.

use std::time::Duration;

use chancery::decider::Connection;
use chancery::decider::core::Effect;
use chancery::decider::driver::{Ended, Left};
use chancery_events::id::Attach;
use chancery_events::observation::{Hope, Report, Saw};
use chancery_events::protocol::Standing;
use chancery_executor::session::{Input, Output, Stop, Work};
use chancery_journal::Journal;

use super::executor::{Linked, Listing};
use super::fault::Fault;
use super::producer::State;
use super::server::Server;
use super::universe::{Link, Universe, Up, tell};
use super::words;
use crate::check::Violation;

/// Appends that a full journal still takes.
const FULL: usize = 1;

/// Something that can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A server is started.
    StartServer(usize),
    /// A server takes a delivery of its journal.
    Take(usize),
    /// A server decides a request.
    Ask(usize),
    /// A server does what is due.
    Turn(usize),
    /// A server hears what comes over a link.
    Hear(u64),
    /// What a writer has sent becomes durable.
    Sync(usize),
    /// What a dead writer had sent lands.
    Late(usize),
    /// An append that was given up lands.
    Stray,
    /// An executor is started.
    StartExecutor(usize),
    /// An executor hears what comes over its link.
    Told(u64),
    /// An executor's timer fires.
    Tick(usize),
    /// An executor gets its link, or none.
    Connect(usize),
    /// An executor's list goes on.
    List(usize),
    /// An executor does a piece of work.
    Work(usize),
    /// An executor notes that work is done.
    Done(usize),
    /// An executor takes changes.
    Changes(usize),
    /// The next request of the script.
    Post,
    /// A request is asked again.
    Repeat(usize),
    /// A state is kept.
    Snapshot(usize),
    /// Time goes on.
    Pass,
    /// Something goes wrong.
    Break,
}

impl Universe {
    /// Everything that can happen now without time going on, and without anything going wrong.
    pub fn possible(&mut self) -> Vec<Action> {
        let now = self.now;
        let mut all = Vec::with_capacity(32);
        let running = self.seats.iter().filter(|seat| seat.server.is_some()).count();
        let second = self.faulty && self.script.faults.contains(&Fault::SecondDecider);
        for (index, seat) in self.seats.iter_mut().enumerate() {
            let Some(server) = &mut seat.server else {
                if seat.down <= now && (running == 0 || (second && running < 2)) {
                    all.push(Action::StartServer(index));
                }
                continue;
            };
            let waiting = server.journal().waiting() > 0;
            if waiting {
                all.push(Action::Sync(index));
            }
            if server.paused.is_some() {
                continue;
            }
            if server.delivered() > 0 {
                all.extend([Action::Take(index); 2]);
            }
            if !server.asks.is_empty() && server.driver().is_open() {
                all.extend([Action::Ask(index); 2]);
            }
            if server.is_due(now) {
                all.push(Action::Turn(index));
            }
        }
        for (number, link) in &self.links {
            let heard = link.served
                && self.seats[link.seat].server.as_ref().is_some_and(|server| server.paused.is_none());
            if heard && !link.up.is_empty() {
                all.push(Action::Hear(*number));
            }
            let process = self.machines[link.machine].process.as_ref();
            let listens = process.is_some_and(|process| process.paused.is_none());
            if link.held && listens && (!link.down.is_empty() || !link.served) {
                all.push(Action::Told(*number));
            }
        }
        for (index, machine) in self.machines.iter().enumerate() {
            let Some(process) = &machine.process else {
                if machine.down <= now {
                    all.push(Action::StartExecutor(index));
                }
                continue;
            };
            if process.paused.is_some() {
                continue;
            }
            if process.core.due().is_some_and(|due| due <= machine.clock(now)) {
                all.extend([Action::Tick(index); 2]);
            }
            if process.link == Linked::Coming {
                all.push(Action::Connect(index));
            }
            if !matches!(process.listing, Listing::No) {
                all.push(Action::List(index));
            }
            if !process.works.is_empty() {
                all.push(Action::Work(index));
            }
            if !process.done.is_empty() {
                all.push(Action::Done(index));
            }
            if process.core.takes_changes() && process.board.has_unread() {
                all.push(Action::Changes(index));
            }
        }
        all.extend((0..self.ghosts.len()).map(Action::Late));
        let unknown = self.calls.iter().enumerate().filter(|(_, call)| call.state == State::Unknown);
        if running > 0 {
            all.extend(unknown.take(3).map(|(index, _)| Action::Repeat(index)));
        }
        all
    }

    /// Something happens.
    pub fn act(&mut self, action: Action) -> Result<(), Violation> {
        match action {
            Action::StartServer(seat) => self.start_server(seat),
            Action::Take(seat) => self.with(seat, |server, _| server.take()),
            Action::Turn(seat) => self.with(seat, Server::turn),
            Action::Ask(seat) => {
                let now = self.now;
                if let Some(server) = &mut self.seats[seat].server {
                    server.ask(now);
                }
                Ok(())
            }
            Action::Hear(link) => {
                self.hear(link);
                Ok(())
            }
            Action::Sync(seat) => {
                let Some(server) = &self.seats[seat].server else { return Ok(()) };
                let journal = std::sync::Arc::clone(server.journal());
                let count = 1 + usize::try_from(self.random.below(3)).unwrap_or(0);
                let landed = journal.step(count);
                tell!(self, "server {seat}: {landed} commits reach the log");
                Ok(())
            }
            Action::Late(ghost) => {
                let journal = self.ghosts[ghost].clone();
                journal.step(1);
                tell!(self, "a commit of a dead server reaches the log");
                self.counts.add(Fault::LateAppend.word());
                if journal.waiting() == 0 {
                    self.ghosts.remove(ghost);
                }
                Ok(())
            }
            Action::Stray => {
                if self.log.land_late() {
                    tell!(self, "an append that was given up reaches the log");
                    self.counts.add(Fault::LateAppend.word());
                }
                Ok(())
            }
            Action::StartExecutor(machine) => {
                self.start_executor(machine);
                Ok(())
            }
            Action::Told(link) => self.told(link),
            Action::Tick(machine) => self.executor(machine, Input::Tick),
            Action::Connect(machine) => self.connect(machine),
            Action::List(machine) => self.list(machine),
            Action::Work(machine) => self.work(machine),
            Action::Done(machine) => {
                let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
                let done = process.done.remove(0);
                self.executor(machine, Input::Done(done))
            }
            Action::Changes(machine) => {
                let Some(process) = &self.machines[machine].process else { return Ok(()) };
                let changes = process.board.unread(4);
                tell!(self, "executor {machine} sees {}", words::reports(&changes));
                self.executor(machine, Input::Changed(changes))
            }
            Action::Post => {
                self.post();
                Ok(())
            }
            Action::Repeat(call) => {
                self.send(call);
                Ok(())
            }
            Action::Snapshot(seat) => {
                self.keep_state(seat);
                Ok(())
            }
            Action::Pass => {
                self.wait();
                Ok(())
            }
            Action::Break => self.break_something(),
        }
    }

    fn start_server(&mut self, seat: usize) -> Result<(), Violation> {
        let wall = self.seats[seat].wall;
        let mut snapshot = None;
        if !self.snapshots.is_empty() {
            let newest = self.snapshots.len() - 1;
            let old = self.strikes(Fault::OldSnapshot, 700);
            let age = if old { self.random.below(newest as u64 + 1) } else { 0 };
            snapshot = Some(self.snapshots[newest - usize::try_from(age).unwrap_or(0)].clone());
        }
        let bits = self.random.bits();
        let server =
            Server::start(&self.log, snapshot, bits, self.script.lease, self.now, wall).map_err(|error| {
                super::judge::violation(2, format!("a server cannot fold the log: {error}"), None)
            })?;
        tell!(self, "server {seat} starts, at {:?}", server.journal().head().map(|head| head.position));
        self.counts.add("server started");
        if self.seats.iter().any(|other| other.server.is_some()) {
            self.counts.add(Fault::SecondDecider.word());
        }
        self.seats[seat].server = Some(server);
        Ok(())
    }

    /// Lets a server do something, and does what comes of it.
    fn with(
        &mut self,
        seat: usize,
        act: impl FnOnce(&mut Server, Duration) -> Result<Vec<Effect>, Ended>,
    ) -> Result<(), Violation> {
        let full = self.strikes(Fault::FullJournal, 50);
        let Some(server) = &mut self.seats[seat].server else { return Ok(()) };
        server.journal().bound(if full { FULL } else { usize::MAX });
        let effects = act(server, self.now);
        match effects {
            Ok(effects) => self.effects(seat, effects),
            Err(ended) => {
                tell!(self, "server {seat} ends: {ended}");
                self.counts.add("server ended by itself");
                self.stop_server(seat);
                if self.faulty {
                    self.seats[seat].down = self.now + Duration::from_millis(self.random.below(20_000));
                }
                Ok(())
            }
        }
    }

    fn effects(&mut self, seat: usize, effects: Vec<Effect>) -> Result<(), Violation> {
        for effect in effects {
            match effect {
                Effect::Answer(ticket, verdict) => {
                    let call =
                        self.seats[seat].server.as_mut().and_then(|server| server.calls.remove(&ticket));
                    if let Some(call) = call {
                        self.answered(call, &verdict)?;
                    }
                }
                Effect::Send(Connection(link), message) => {
                    self.judge.said(&message)?;
                    match self.links.get_mut(&link).filter(|link| link.served) {
                        Some(link) if link.held => link.down.push_back(message),
                        Some(link) if link.silent => {}
                        // Its other end is gone, and the server finds that out by sending.
                        Some(_) => self.close(seat, link),
                        None => {}
                    }
                }
                Effect::Close(Connection(link)) => self.close(seat, link),
            }
        }
        Ok(())
    }

    /// A server lets go of its end of a link.
    pub fn close(&mut self, seat: usize, number: u64) {
        if let Some(link) = self.links.get_mut(&number) {
            link.served = false;
            link.up.clear();
        }
        if let Some(server) = &mut self.seats[seat].server {
            server.driver().disconnected(Connection(number));
        }
        self.sweep_links();
    }

    /// Forgets links that nobody holds.
    pub fn sweep_links(&mut self) {
        self.links.retain(|_, link| link.held || link.served);
    }

    fn hear(&mut self, number: u64) {
        let now = self.now;
        let bits = self.random.bits();
        let twice = self.strikes(Fault::DuplicateMessage, 50);
        let Some(link) = self.links.get_mut(&number) else { return };
        let seat = link.seat;
        let Some(server) = &mut self.seats[seat].server else { return };
        let Some(up) = link.up.pop_front() else { return };
        let reading = server.reading(now);
        match up {
            Up::Connected => server.driver().connected(Connection(number), Attach::from_random(bits)),
            Up::Said(message) => {
                tell!(self, "server {seat} hears {}", words::to_decider(&message));
                let Some(server) = &mut self.seats[seat].server else { return };
                if twice {
                    server.driver().said(Connection(number), message.clone(), reading);
                }
                server.driver().said(Connection(number), message, reading);
            }
            Up::Gone => {
                link.served = false;
                server.driver().disconnected(Connection(number));
                self.sweep_links();
            }
        }
        if let Some(server) = &mut self.seats[seat].server {
            server.left = Left::More;
        }
    }

    fn start_executor(&mut self, machine: usize) {
        if self.strikes(Fault::ExecutorReplaced, 300) {
            let name = format!("ex{machine}-{}", self.random.below(3));
            self.machines[machine].name = name;
        }
        tell!(self, "executor {machine} starts as {}", self.machines[machine].name);
        self.machines[machine].start(&format!("c{machine}"));
    }

    fn told(&mut self, number: u64) -> Result<(), Violation> {
        let twice = self.strikes(Fault::DuplicateMessage, 50);
        let Some(link) = self.links.get_mut(&number) else { return Ok(()) };
        let machine = link.machine;
        let Some(message) = link.down.pop_front() else {
            self.let_go(machine);
            return self.executor(machine, Input::Disconnected);
        };
        tell!(self, "executor {machine} hears {}", words::from_decider(&message));
        if let (Some(envelope), Some(process)) =
            (words::envelope(&message), &mut self.machines[machine].process)
        {
            process.under = Some((envelope.session, envelope.head.term));
        }
        if twice {
            self.executor(machine, Input::Heard(message.clone()))?;
        }
        // A hang-up in between loses what follows, as it does in a loop that has closed its link.
        let still = self.links.get(&number).is_some_and(|link| link.held);
        if still { self.executor(machine, Input::Heard(message)) } else { Ok(()) }
    }

    /// An executor lets go of its link.
    pub fn let_go(&mut self, machine: usize) {
        let Some(process) = &mut self.machines[machine].process else { return };
        process.listing = Listing::No;
        if let Linked::By(number) = std::mem::replace(&mut process.link, Linked::No)
            && let Some(link) = self.links.get_mut(&number)
        {
            link.held = false;
            link.down.clear();
            link.up.push_back(Up::Gone);
            self.sweep_links();
        }
    }

    fn connect(&mut self, machine: usize) -> Result<(), Violation> {
        let up: Vec<usize> =
            (0..self.seats.len()).filter(|seat| self.seats[*seat].server.is_some()).collect();
        let seat = self.random.pick(&up).copied();
        let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
        let Some(seat) = seat else {
            process.link = Linked::No;
            return self.executor(machine, Input::Disconnected);
        };
        self.linked += 1;
        process.link = Linked::By(self.linked);
        let up = [Up::Connected].into();
        let link = Link { machine, seat, up, down: [].into(), held: true, served: true, silent: false };
        self.links.insert(self.linked, link);
        tell!(self, "executor {machine} connects to server {seat}");
        self.executor(machine, Input::Connected)
    }

    fn list(&mut self, machine: usize) -> Result<(), Violation> {
        let stale = self.strikes(Fault::StaleList, 300);
        let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
        match std::mem::replace(&mut process.listing, Listing::No) {
            Listing::No => Ok(()),
            Listing::Asked => {
                process.board.list();
                let reports = self.worlds[machine].list();
                if stale {
                    process.listing = Listing::Taken(reports);
                    return Ok(());
                }
                self.executor(machine, Input::Listed(reports))
            }
            Listing::Taken(reports) => self.executor(machine, Input::Listed(reports)),
        }
    }

    fn work(&mut self, machine: usize) -> Result<(), Violation> {
        let twice = self.strikes(Fault::WorkTwice, 100);
        let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
        let next = self.random.below(process.works.len() as u64);
        let work = process.works.remove(usize::try_from(next).unwrap_or(0));
        process.done.push(work.incarnation());
        tell!(self, "executor {machine} does {}", words::work(&work));
        for _ in 0..=u8::from(twice) {
            self.carry_out(machine, &work)?;
        }
        Ok(())
    }

    /// What an orchestrator does with a piece of work, whoever still waits for it.
    pub fn carry_out(&mut self, machine: usize, work: &Work) -> Result<(), Violation> {
        if let Work::CarryOut(command) = work
            && self.machines[machine].process.is_some()
            && self.strikes(Fault::WorkFails, self.script.work_fails)
        {
            tell!(self, "… which fails");
            let saw = Saw::Failed { message: "no answer".into(), hope: Hope::Retry };
            let report = Report { incarnation: command.incarnation, revision: command.revision, saw };
            if let Some(process) = &self.machines[machine].process {
                process.board.show(report);
            }
            return Ok(());
        }
        self.counts.add("work done");
        let starts = self.worlds[machine].starts();
        let world = &mut self.worlds[machine];
        let told = match work {
            Work::CarryOut(command) => Some(world.carry_out(command)),
            Work::Remove { incarnation, revision } => Some(world.remove(*incarnation, *revision)),
            Work::Forget(incarnation) => world.forget(*incarnation),
        };
        match told {
            Some(told) => self.show(machine, told),
            None => {
                if let Some(process) = &self.machines[machine].process {
                    process.board.clear(work.incarnation());
                }
            }
        }
        let again = matches!(work, Work::CarryOut(command) if command.standing == Standing::Met);
        if again && self.worlds[machine].starts() > starts {
            let what = format!("{} ran before, and is started again", work.incarnation());
            return Err(super::judge::violation(3, what, None));
        }
        Ok(())
    }

    /// Gives an executor an input, and does what comes of it.
    pub fn executor(&mut self, machine: usize, input: Input) -> Result<(), Violation> {
        let clock = self.machines[machine].clock(self.now);
        let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
        for output in process.core.handle(clock, input) {
            if self.strikes(Fault::ExecutorCrash, 5) {
                self.stop_executor(machine);
            }
            let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
            match output {
                Output::Connect => process.link = Linked::Coming,
                Output::HangUp => self.let_go(machine),
                Output::Say(message) => {
                    if let Linked::By(link) = process.link
                        && let Some(link) = self.links.get_mut(&link)
                    {
                        link.up.push_back(Up::Said(message));
                    }
                }
                Output::List => process.listing = Listing::Asked,
                Output::Persist(seen) => self.machines[machine].seen = Some(seen),
                Output::Begin(work) => {
                    process.works.push(work);
                    if let Some((session, term)) = process.under {
                        self.judge.begun(session, term)?;
                    }
                }
                Output::Stop(stop) => {
                    tell!(self, "executor {machine} stops: {stop}");
                    self.counts.add(match stop {
                        Stop::NewerElsewhere(_) => "executor stopped: newer elsewhere",
                        _ => "executor stopped",
                    });
                    self.stop_executor(machine);
                    return Ok(());
                }
                Output::Leave => {
                    self.stop_executor(machine);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Time goes on: mostly a little, sometimes until something happens by itself.
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

    /// Wakes who has stood still long enough.
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
