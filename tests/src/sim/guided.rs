//! Guided worlds: a test chooses requests and the moments of some faults. The seed draws the order of all other actions, and
//! faults that neither end nor lose a guest.

use std::time::Duration;

use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::name::ReplicaName;
use chancery_events::observation::{ObjectReport, ObservedState};
use chancery_events::spec::ClusterRuntime;
use chancery_machine::fleet::FleetState;
use chancery_machine::state::{Incarnation, Replica};
use serde_json::{Value, json};

use super::fault::SimulatedFault;
use super::kubernetes::AdmissionPolicy;
use super::oracle::violation;
use super::random::RandomSource;
use super::script::WorldScript;
use super::universe::{ScriptedWorld, trace_step};
use super::{TraceOption, WorldResult, result_of, violation_of};
use crate::check::InvariantViolation;

/// Faults of guided worlds. Each is allowed in half of the worlds.
const FAULTS: &[SimulatedFault] = &[
    SimulatedFault::ServerCrash,
    SimulatedFault::ServerPause,
    SimulatedFault::SecondDecider,
    SimulatedFault::OldSnapshot,
    SimulatedFault::AmbiguousAppend,
    SimulatedFault::LateAppend,
    SimulatedFault::DuplicateRecord,
    SimulatedFault::FullJournal,
    SimulatedFault::ChannelBreak,
    SimulatedFault::HalfOpen,
    SimulatedFault::DuplicateMessage,
    SimulatedFault::ExecutorCrash,
    SimulatedFault::ExecutorPause,
    SimulatedFault::ExecutorLeave,
    SimulatedFault::ExecutorReplaced,
    SimulatedFault::WorkTwice,
    SimulatedFault::WorkFails,
    SimulatedFault::StaleList,
    SimulatedFault::MissedChange,
    SimulatedFault::LostRequest,
    SimulatedFault::LostAnswer,
    SimulatedFault::RepeatedRequest,
];

/// Maximum number of steps until an awaited state.
const STEPS: u64 = 30_000;
/// Number of steps after which the orchestrator reports all objects.
const ROUND: u64 = 300;
/// Machine of the only cluster.
const MACHINE: usize = 0;

/// Result of a part of a scenario.
pub type GuidedStep<T = ()> = Result<T, InvariantViolation>;

/// Loss of everything that the executor of the machines has recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExecutorLoss {
    /// The host is installed again: guests and records are lost, and sometimes the id of the executor store.
    Host,
    /// The executor is started with another directory, while its guests continue.
    Directory,
}

/// World of a scenario: one cluster of virtual machines, without guests in the beginning.
pub struct GuidedWorld {
    world: ScriptedWorld,
    /// Choices of the scenario.
    pub random: RandomSource,
    /// Replica that must have no incarnation, and no operation that starts it.
    stays_off: Option<ReplicaName>,
    steps: u64,
}

/// Returns a violation, which is that of the scenario's own demand.
pub fn broken(what: impl Into<String>) -> InvariantViolation {
    violation(6, what, None)
}

/// Demands what a scenario is about.
pub fn demand(holds: bool, what: impl FnOnce() -> String) -> GuidedStep {
    if holds { Ok(()) } else { Err(broken(what())) }
}

impl GuidedWorld {
    /// Plays a scenario with a seed, and lets its world settle.
    pub fn play(
        seed: u64,
        trace: TraceOption,
        scenario: impl FnOnce(&mut GuidedWorld) -> GuidedStep,
    ) -> WorldResult {
        let mut guided = GuidedWorld::new(seed, trace);
        let violation = violation_of(|| scenario(&mut guided));
        result_of(guided.world, violation)
    }

    fn new(seed: u64, trace: TraceOption) -> GuidedWorld {
        let mut random = RandomSource::new(seed ^ 0x9e57);
        let script = WorldScript {
            seed,
            faults: FAULTS.iter().copied().filter(|_| random.chance(500)).collect(),
            inputs: Vec::new(),
            steps: 0,
            clusters: vec![ClusterRuntime::Qemu],
            servers: random.between(1, 2),
            lease: Duration::from_secs(random.between(3, 15)),
            misbehave: 0,
            work_fails: 200,
            inbox: false,
            messages: 0,
            policy: AdmissionPolicy::None,
        };
        let world = ScriptedWorld::new(script, trace == TraceOption::Traced);
        GuidedWorld { world, random, stays_off: None, steps: 0 }
    }

    /// Counts an event, so that a test can demand that it happened.
    pub fn count(&mut self, what: &'static str) {
        self.world.counts.add(what);
    }

    /// Returns the state by the journal.
    pub fn fleet(&self) -> GuidedStep<&FleetState> {
        self.world.oracle.state().map(|state| &state.fleet).ok_or_else(|| broken("there is no journal"))
    }

    /// Returns a replica.
    pub fn replica(&self, name: &ReplicaName) -> GuidedStep<&Replica> {
        self.fleet()?.replicas().get(name).ok_or_else(|| broken(format!("there is no replica {name}")))
    }

    /// Returns the active incarnation of a replica.
    pub fn active(&self, name: &ReplicaName) -> GuidedStep<&Incarnation> {
        let run = self.replica(name)?.active.as_ref().map(|run| run.incarnation);
        let run = run.and_then(|run| self.fleet().ok()?.incarnations().get(&run));
        run.ok_or_else(|| broken(format!("replica {name} has no incarnation")))
    }

    /// Takes a step.
    fn step(&mut self) -> GuidedStep {
        let action = self.world.draw();
        self.world.act(action)?;
        self.world.consult_oracle()?;
        self.steps += 1;
        if self.steps.is_multiple_of(ROUND) {
            self.world.report_all_objects();
        }
        self.check_off()
    }

    /// Takes a number of steps.
    pub fn steps(&mut self, number: u64) -> GuidedStep {
        (0..number).try_for_each(|_| self.step())
    }

    /// Takes steps until the state by the journal is as awaited.
    pub fn until(&mut self, what: &str, reached: impl Fn(&GuidedWorld) -> bool) -> GuidedStep {
        for _ in 0..STEPS {
            if reached(self) {
                trace_step!(self.world, "{what}");
                return Ok(());
            }
            self.step()?;
        }
        Err(violation(9, format!("it does not happen: {what}"), None))
    }

    /// As [`Self::until`], while an operator resolves refusals of executors over their directories.
    pub fn until_with_operator(&mut self, what: &str, reached: impl Fn(&GuidedWorld) -> bool) -> GuidedStep {
        for _ in 0..STEPS / ROUND {
            for _ in 0..ROUND {
                if reached(self) {
                    trace_step!(self.world, "{what}");
                    return Ok(());
                }
                self.step()?;
            }
            self.world.bring_back();
        }
        Err(violation(9, format!("it does not happen: {what}"), None))
    }

    /// Sends a request, and takes steps until it is answered. Returns whether it was accepted.
    pub fn ask(&mut self, type_name: &str, data: &Value) -> GuidedStep<bool> {
        let call = self.world.calls.len();
        self.world.ask_in_the_end(type_name, data);
        self.until("the request is answered", |guided| guided.world.verdict_on(call).is_some())?;
        Ok(self.world.verdict_on(call).is_some_and(|verdict| verdict.result.is_ok()))
    }

    /// Sends a request that must be accepted.
    pub fn must(&mut self, type_name: &str, data: &Value) -> GuidedStep {
        let accepted = self.ask(type_name, data)?;
        demand(accepted, || format!("{type_name} {data} is refused"))
    }

    /// Sends a request about a replica, which must be accepted.
    pub fn must_for(&mut self, verb: &str, replica: &ReplicaName) -> GuidedStep {
        self.must(&format!("replica.{verb}"), &json!({"name": replica}))
    }

    /// Kills the servers.
    pub fn kill_servers(&mut self) {
        for seat in 0..self.world.seats.len() {
            self.world.crash_server(seat);
        }
    }

    /// Kills the executor; its guests continue.
    pub fn kill_executor(&mut self) {
        self.world.stop_executor(MACHINE);
    }

    /// Kills servers, the executor, both or neither at some step.
    pub fn disturb(&mut self) -> GuidedStep {
        let steps = self.random.below(80);
        self.steps(steps)?;
        let kills = self.random.below(4);
        if kills & 1 != 0 {
            self.kill_servers();
        }
        if kills & 2 != 0 {
            self.kill_executor();
        }
        Ok(())
    }

    /// Makes the executor lose its records, at this moment.
    pub fn lose(&mut self, loss: ExecutorLoss) {
        match loss {
            ExecutorLoss::Host => {
                self.world.wipe(MACHINE);
            }
            ExecutorLoss::Directory => {
                self.world.stop_executor(MACHINE);
                self.world.change_directory(MACHINE);
            }
        }
        trace_step!(self.world, "the executor has lost its records: {loss:?}");
    }

    /// Makes the guest power itself off, if it runs.
    pub fn power_off(&mut self, incarnation: IncarnationId) -> bool {
        let Some(update) = self.world.worlds[MACHINE].power_off(incarnation) else { return false };
        trace_step!(self.world, "the guest of {incarnation} powers itself off");
        self.world.show(MACHINE, update);
        true
    }

    /// Whether a guest of the incarnation runs, in whichever directory.
    pub fn runs(&self, incarnation: IncarnationId) -> bool {
        self.world.everything().any(|world| world.running(incarnation) > 0)
    }

    /// Whether the volume exists on the machine.
    pub fn has_volume(&self, volume: VolumeId) -> bool {
        self.world.everything().any(|world| world.volumes().any(|id| id == volume))
    }

    /// Returns how often the guests of a running incarnation were reset.
    pub fn resets(&self, incarnation: IncarnationId) -> Option<u32> {
        let reports = self.world.worlds[MACHINE].list();
        let is_it = |report: &&ObjectReport| report.object == incarnation.into();
        match &reports.iter().find(is_it)?.observed {
            ObservedState::Started { processes }
            | ObservedState::Ready { processes }
            | ObservedState::NotReady { processes } => {
                Some(processes.iter().map(|process| process.resets).sum())
            }
            ObservedState::Ended { .. } | ObservedState::Failed { .. } | ObservedState::Gone => None,
        }
    }

    /// Whether the world allows the fault.
    pub fn allows(&self, fault: SimulatedFault) -> bool {
        self.world.script.faults.contains(&fault)
    }

    /// Lets time pass in which nothing else happens.
    pub fn pass(&mut self, time: Duration) {
        self.world.pass(time);
        self.world.wake();
    }

    /// Demands from now on that nothing starts the replica, until it is released.
    pub fn keep_off(&mut self, replica: Option<&ReplicaName>) -> GuidedStep {
        self.stays_off = replica.cloned();
        self.check_off()
    }

    fn check_off(&self) -> GuidedStep {
        let Some(name) = &self.stays_off else { return Ok(()) };
        let replica = self.replica(name)?;
        demand(replica.runs().next().is_none(), || format!("replica {name} is off, and is started"))?;
        let running = replica.incarnations.iter().find(|run| self.runs(**run));
        demand(running.is_none(), || format!("replica {name} is off, and {running:?} runs"))
    }

    /// Lets the world settle without faults, and allows no fault afterwards.
    pub fn settle(&mut self) -> GuidedStep {
        self.world.settle()?;
        self.world.script.faults.clear();
        self.check_off()
    }
}
