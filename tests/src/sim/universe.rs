//! Simulated world: servers, executors, machines, producers and their transport, one step at a time.
//!
//! Nothing here decides for the real code: the world calls it, with the order and faults that the seed draws.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chancery_events::id::{ExecutorStoreId, Position};
use chancery_events::protocol::{DeciderMessage, ExecutorMessage};
use chancery_events::spec::ClusterRuntime;
use chancery_executor::simulated::{FaultRules, SimulatedWorld};
use chancery_journal::memory::{MemoryJournal, MemoryLog};
use chancery_projector::FoldedState;

use super::executor::{ExecutorDirectory, ExecutorMachine};
use super::fault::{OccurrenceCounts, SimulatedFault};
use super::kubernetes::{SimulatedApi, lock};
use super::messages::SimulatedTopic;
use super::oracle::WorldOracle;
use super::producer::ProducerRequest;
use super::random::RandomSource;
use super::readers::WorldReaders;
use super::rows::ServerRows;
use super::script::WorldScript;
use super::server::{FLEET, SimulatedServer};
use super::step::WorldAction;
use crate::check::InvariantViolation;
use crate::history::InvocationHistory;

/// Location at which a server may run.
pub struct ServerSeat {
    /// Server, if one runs and is the leader.
    pub server: Option<SimulatedServer>,
    /// Rows of the process, leader or standby. A leader always has rows.
    pub rows: Option<ServerRows>,
    /// Earliest time of the next start.
    pub down: Duration,
    /// Wall clock minus world time, in microseconds.
    pub wall: i64,
}

impl ServerSeat {
    /// Returns the projector's state of a leader, which catches up first.
    pub fn state(&mut self) -> Option<&FoldedState> {
        self.server.as_ref()?;
        let rows = self.rows.as_mut()?;
        rows.catch_up();
        rows.state()
    }
}

/// Channel between an executor and a server.
pub struct SimulatedChannel {
    /// Executor's machine.
    pub machine: usize,
    /// Server's seat.
    pub seat: usize,
    /// Messages in flight to the server.
    pub up: VecDeque<ChannelInput>,
    /// Messages in flight to the executor.
    pub down: VecDeque<DeciderMessage>,
    /// Whether the executor's end is open.
    pub held: bool,
    /// Whether the server's end is open.
    pub served: bool,
    /// Whether the channel is broken, unnoticed by the server.
    pub silent: bool,
}

/// Directory without executor, with its processes.
pub struct OtherDirectory {
    /// Executor directory.
    pub incarnation_directory: ExecutorDirectory,
    /// Real processes.
    pub world: SimulatedWorld,
}

/// Input of a server from a channel.
pub enum ChannelInput {
    /// The channel is open.
    Connected,
    /// The executor sent a message.
    Message(ExecutorMessage),
    /// The channel is closed.
    Gone,
}

/// World of a script: see the module.
pub struct ScriptedWorld {
    /// Drawn script.
    pub script: WorldScript,
    /// Random source for the order of actions.
    pub random: RandomSource,
    /// World's time, from zero.
    pub now: Duration,
    /// Log, which outlives every server.
    pub log: MemoryLog,
    /// Seats of servers.
    pub seats: Vec<ServerSeat>,
    /// Writers whose servers are dead, and whose appends are still in flight.
    pub ghosts: Vec<Arc<MemoryJournal>>,
    /// States that were kept, oldest first.
    pub snapshots: Vec<FoldedState>,
    /// Machines of executors: one for each cluster.
    pub machines: Vec<ExecutorMachine>,
    /// Real processes on each machine, by the directory that its executor is started with.
    pub worlds: Vec<SimulatedWorld>,
    /// Other directory on each machine, with its real processes.
    pub elsewhere: Vec<OtherDirectory>,
    /// Channels by their numbers.
    pub channels: BTreeMap<u64, SimulatedChannel>,
    /// Channels ever opened.
    pub linked: u64,
    /// Requests of producers.
    pub calls: Vec<ProducerRequest>,
    /// Inbox of the world.
    pub topic: SimulatedTopic,
    /// Index of the script's next input.
    pub asked: usize,
    /// Verdicts that producers received.
    pub history: InvocationHistory,
    /// Readers of the world.
    pub readers: WorldReaders,
    /// Oracle that decides whether the world is valid.
    pub oracle: WorldOracle,
    /// Counts of events, by name.
    pub counts: OccurrenceCounts,
    /// Whether faults may happen.
    pub faulty: bool,
    /// Trace for people, if one is recorded.
    pub trace: Option<Vec<String>>,
    /// Number of steps.
    pub taken: u64,
}

/// Adds a line to the trace, if one is recorded.
macro_rules! trace_step {
    ($world:expr, $($words:tt)*) => {
        if $world.trace.is_some() {
            let line = format!($($words)*);
            $world.add_to_trace(&line);
        }
    };
}
pub(super) use trace_step;

/// Returns the API of a Kubernetes cluster with this executor store.
fn api(script: &WorldScript, cluster: usize, store: ExecutorStoreId) -> Arc<Mutex<SimulatedApi>> {
    let random = RandomSource::new(script.seed ^ 0xab1);
    let (policy, faults) = (script.policy, script.faults.clone());
    Arc::new(Mutex::new(SimulatedApi::new(cluster, store, policy, faults, script.misbehave, random)))
}

impl ScriptedWorld {
    /// Returns the world of a script, before its first step.
    pub fn new(script: WorldScript, with_trace: bool) -> ScriptedWorld {
        let mut random = RandomSource::new(script.seed ^ 0x5eed);
        let log = MemoryLog::new(FLEET);
        log.hold();
        let seat = |_| ServerSeat { server: None, rows: None, down: Duration::ZERO, wall: 0 };
        let seats = (0..script.servers).map(seat).collect();
        let clusters = script.clusters.len();
        let pods = (0..clusters).filter(|number| script.clusters[*number] == ClusterRuntime::Kubernetes);
        // A cluster with pods has a second machine: any executor with the credentials can take over.
        let numbered: Vec<_> = (0..clusters).chain(pods.clone()).enumerate().collect();
        let machines = numbered.iter().map(|(number, cluster)| {
            let runtime = script.clusters[*cluster];
            let drift = i64::try_from(random.below(20_000)).unwrap_or(0) - 10_000;
            let directory = ExecutorDirectory::new(ExecutorStoreId::from_random(random.bits()));
            ExecutorMachine::new(*number, *cluster, drift, runtime, directory)
        });
        let mut machines: Vec<_> = machines.collect();
        for cluster in pods {
            let store = machines[cluster].directory.store;
            let api = api(&script, cluster, store);
            for machine in machines.iter_mut().filter(|machine| machine.cluster == cluster) {
                machine.api = Some(Arc::clone(&api));
                machine.directory.store = store;
            }
        }
        let behaviour = |number| {
            let seed = script.seed.wrapping_mul(31).wrapping_add(number);
            let share =
                if script.faults.contains(&SimulatedFault::BadBehaviour) { script.misbehave } else { 0 };
            SimulatedWorld::new(FaultRules::default().seeded(seed, share))
        };
        let clusters = machines.len() as u64;
        let worlds = (0..clusters).map(behaviour).collect();
        let elsewhere = (0..clusters).map(|number| OtherDirectory {
            incarnation_directory: ExecutorDirectory::new(ExecutorStoreId::from_random(random.bits())),
            world: behaviour(number),
        });
        let elsewhere = elsewhere.collect();
        ScriptedWorld {
            oracle: WorldOracle::new(&log, script.seed),
            random,
            now: Duration::ZERO,
            log,
            seats,
            ghosts: Vec::new(),
            snapshots: Vec::new(),
            machines,
            worlds,
            elsewhere,
            channels: BTreeMap::new(),
            linked: 0,
            calls: Vec::new(),
            topic: SimulatedTopic::default(),
            asked: 0,
            history: InvocationHistory::new(),
            readers: WorldReaders::new(&script),
            counts: OccurrenceCounts::default(),
            faulty: true,
            trace: with_trace.then(Vec::new),
            script,
            taken: 0,
        }
    }

    /// Adds a line to the trace.
    pub fn add_to_trace(&mut self, line: &str) {
        let head = self.oracle.position();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12.6}s #{} {line}", self.now.as_secs_f64(), head));
        }
    }

    /// Adds the contents of the log to the trace, if one is recorded.
    pub fn trace_log(&mut self) {
        let Some(trace) = &mut self.trace else { return };
        let Ok(records) = self.log.source().records(Position::FIRST) else { return };
        for record in records.flatten() {
            for (position, line) in record.events() {
                trace.push(format!("{} #{position} {}", record.header().time, String::from_utf8_lossy(line)));
            }
        }
    }

    /// Whether the fault happens now: only if the seed allows it, with this probability in thousandths.
    pub fn strikes(&mut self, fault: SimulatedFault, of_a_thousand: u64) -> bool {
        let strikes = self.faulty && self.script.faults.contains(&fault) && self.random.chance(of_a_thousand);
        if strikes {
            self.counts.add(fault.word());
        }
        strikes
    }

    /// Lets time pass.
    pub fn pass(&mut self, by: Duration) {
        self.now += by;
        self.pass_in_clusters();
        for index in 0..self.worlds.len() {
            for update in self.worlds[index].advance(self.now) {
                self.show(index, update);
            }
            // No executor reads these changes.
            self.elsewhere[index].world.advance(self.now);
        }
    }

    /// Shows a change to the executor, unless the fault makes the executor miss it.
    pub fn show(&mut self, machine: usize, update: chancery_executor::reconcile::StatusUpdate) {
        if self.machines[machine].process.is_some() && self.strikes(SimulatedFault::MissedChange, 200) {
            trace_step!(self, "machine {machine}: a change is missed");
            return;
        }
        if let Some(process) = &self.machines[machine].process {
            process.show(update);
        }
    }

    /// Returns all real processes.
    pub fn everything(&self) -> impl Iterator<Item = &SimulatedWorld> {
        self.worlds.iter().chain(self.elsewhere.iter().map(|elsewhere| &elsewhere.world))
    }

    /// Returns the next time at which something happens without input.
    pub fn due(&mut self) -> Option<Duration> {
        let now = self.now;
        let mut due: Vec<Duration> = Vec::new();
        for seat in &mut self.seats {
            match &mut seat.server {
                Some(server) => due.extend(server.due(now)),
                None => due.push(seat.down),
            }
        }
        for machine in &self.machines {
            due.extend(machine.api.as_ref().and_then(|api| lock(api).due()));
            match &machine.process {
                Some(process) => {
                    due.extend(process.paused);
                    if process.paused.is_none() {
                        due.extend(process.core.due().map(|clock| machine.world_time(clock)));
                    }
                }
                None => due.extend(machine.pods.is_none().then_some(machine.down)),
            }
        }
        due.extend(self.everything().filter_map(SimulatedWorld::due));
        due.into_iter().filter(|due| *due > now).min()
    }

    /// Runs all cheap checks, after each step.
    pub fn consult_oracle(&mut self) -> Result<(), InvariantViolation> {
        self.oracle.read_log(&self.topic, &mut self.counts)?;
        self.consult_clusters()?;
        let worlds: Vec<&SimulatedWorld> = self.everything().collect();
        self.oracle.alive(&worlds, self.alive_in_clusters())?;
        self.read_rows()?;
        self.taken += 1;
        if self.taken.is_multiple_of(32) {
            self.oracle.rows()?;
            for seat in 0..self.seats.len() {
                if self.seats[seat].server.is_none() {
                    continue;
                }
                self.go_on(seat)?;
                if let Some(state) = self.seats[seat].rows.as_ref().and_then(ServerRows::state) {
                    self.oracle.same_state(state)?;
                }
            }
        }
        Ok(())
    }
}

impl ScriptedWorld {
    /// Plays the world to its end.
    pub fn play(&mut self) -> Result<(), InvariantViolation> {
        let script = &self.script;
        trace_step!(
            self,
            "seed {}: clusters {:?}, {} servers, faults {:?}",
            script.seed,
            script.clusters,
            script.servers,
            script.faults
        );
        for _ in 0..self.script.steps {
            let action = self.draw();
            self.act(action)?;
            self.consult_oracle()?;
        }
        self.settle()
    }

    /// Draws the next action.
    pub(super) fn draw(&mut self) -> WorldAction {
        let possible = self.possible();
        let running: Vec<usize> =
            (0..self.seats.len()).filter(|seat| self.seats[*seat].server.is_some()).collect();
        let idle = possible.is_empty();
        match self.random.below(100) {
            0..=2 if !self.script.faults.is_empty() => WorldAction::Break,
            3 if self.script.faults.contains(&SimulatedFault::LateAppend) => WorldAction::Stray,
            4 => match self.random.pick(&running) {
                Some(seat) => WorldAction::Snapshot(*seat),
                None => WorldAction::Pass,
            },
            5..=9 if self.asked < self.script.inputs.len() && !running.is_empty() => WorldAction::Post,
            10..=29 => WorldAction::Pass,
            _ if idle => WorldAction::Pass,
            _ => self.random.pick(&possible).copied().unwrap_or(WorldAction::Pass),
        }
    }
}
