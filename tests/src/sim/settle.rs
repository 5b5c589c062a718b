//! After the last fault, everything must settle in a bounded number of steps, and all must agree.

use std::collections::BTreeSet;
use std::time::Duration;

use chancery_events::id::{ExecutorStoreId, IncarnationId, ObjectId};
use chancery_events::lifecycle::{SetWord, WillWord};
use chancery_events::name::VolumeName;
use chancery_events::spec::{BalancePolicy, DeploymentStrategy, DisruptionState, NodeState, OperationKind};
use chancery_executor::simulated::{FaultRules, SimulatedWorld};
use chancery_machine::fleet::FleetState;
use chancery_machine::state::{
    DeploymentState, Disruption, Incarnation, IncarnationState, Operation, OperationState, Plan, Replica,
    Volume, VolumeState,
};
use chancery_projector::FoldedState;
use serde_json::{Value, json};

use super::fault::SimulatedFault;
use super::kubernetes::lock;
use super::oracle::violation;
use super::producer::ProducerRequestState;
use super::universe::{ScriptedWorld, trace_step};
use crate::check::InvariantViolation;

/// One in this number of worlds is checked with a real store of rows, which costs more than the world.
const STORED: u64 = 64;
/// Number of steps in which everything must settle.
const STEPS: usize = 30_000;
/// Maximum time to settle: longer than any deadline in a script.
const TIME: Duration = Duration::from_hours(12);
/// Interval of checks for pending approvals, and of lists by orchestrators.
const ROUND: Duration = Duration::from_secs(20);
/// Number of rounds for canaries to prove themselves, and for nodes to be drained.
const PATIENCE: u32 = 6;

impl ScriptedWorld {
    /// Settles the world without faults: all resumes or is started again, and people approve what is pending.
    pub fn settle(&mut self) -> Result<(), InvariantViolation> {
        // A returning server has only the journal, and no later takeover fixes its omissions.
        if self.script.faults.contains(&SimulatedFault::ServerCrash) && self.random.chance(500) {
            for seat in 0..self.seats.len() {
                if self.crash_server(seat) {
                    self.counts.add(SimulatedFault::ServerCrash.word());
                }
            }
        }
        trace_step!(self, "no more faults");
        self.faulty = false;
        while self.log.land_late() {}
        let elsewhere = self.elsewhere.iter_mut().map(|elsewhere| &mut elsewhere.world);
        for world in self.worlds.iter_mut().chain(elsewhere) {
            world.set_faults(FaultRules::default());
        }
        for api in self.machines.iter().filter_map(|machine| machine.api.as_ref()) {
            lock(api).settle();
        }
        for seat in &mut self.seats {
            seat.down = self.now;
            if let Some(server) = &mut seat.server {
                server.paused = None;
            }
        }
        for machine in &mut self.machines {
            if machine.is_first() {
                machine.down = machine.down.min(self.now);
            }
            if let Some(process) = &mut machine.process {
                process.paused = None;
            }
        }
        let end = self.now + TIME;
        let mut rounds = 0;
        let mut round = self.now;
        for _ in 0..STEPS {
            let possible = self.possible();
            let action = self.random.pick(&possible).copied();
            if let Some(action) = action {
                self.act(action)?;
                self.consult_oracle()?;
                continue;
            }
            if self.now >= round {
                round = self.now + ROUND;
                let faults = &self.script.faults;
                if faults.contains(&SimulatedFault::MissedChange) || faults.contains(&SimulatedFault::Unwell)
                {
                    self.report_all_objects();
                }
                rounds += 1;
                if self.approve_all() || self.bring_back() || self.finish(rounds) {
                    continue;
                }
            }
            if self.stuck().is_none() {
                return self.agree();
            }
            let due = self.due().unwrap_or(round).min(round).max(self.now + Duration::from_micros(1));
            self.pass(due.saturating_sub(self.now));
            self.wake();
            if self.now > end {
                break;
            }
        }
        let stuck = self.stuck().unwrap_or_else(|| "steps without end".into());
        trace_step!(self, "possible {:?}, due {:?}", self.possible(), self.due());
        Err(violation(9, format!("it does not settle: {stuck}"), None))
    }

    /// Lists all objects at orchestrators that may miss changes, and reports them.
    pub(super) fn report_all_objects(&mut self) {
        for (machine, world) in
            self.machines.iter().zip(&self.worlds).filter(|(machine, _)| machine.api.is_none())
        {
            if let Some(process) = &machine.process {
                for report in world.list() {
                    process.statuses.show(report);
                }
            }
        }
    }

    /// Resolves an executor's refusal over its directory: restarts it with the one that may have objects, or,
    /// if lost, expunges the node. Returns whether there was any.
    pub(super) fn bring_back(&mut self) -> bool {
        for machine in 0..self.machines.len() {
            let Some((scope, node)) = self.left(machine) else { continue };
            if scope == self.machines[machine].directory.store {
                continue;
            }
            if scope == self.elsewhere[machine].incarnation_directory.store {
                trace_step!(self, "executor {machine} is restarted with store {scope}");
                self.counts.add("executor restarted with its directory");
                self.stop_executor(machine);
                self.change_directory(machine);
            } else {
                trace_step!(self, "store {scope} of machine {machine} is lost");
                self.counts.add("node expunged by a person");
                self.ask_to_expunge(&node);
            }
            return true;
        }
        false
    }

    /// Decides what waits for a person: paused deployments, canaries, undrainable nodes. Returns whether
    /// there was any.
    fn finish(&mut self, rounds: u32) -> bool {
        let Some((verb, data)) = self.oracle.state().and_then(|state| undecided(&state.fleet, rounds)) else {
            return false;
        };
        trace_step!(self, "a person decides: {verb}");
        self.ask_in_the_end(verb, &data);
        true
    }

    /// Returns the executor store that may have objects of a machine's cluster, and the node of the first.
    fn left(&self, machine: usize) -> Option<(ExecutorStoreId, String)> {
        let fleet = &self.oracle.state()?.fleet;
        let scope = fleet.clusters().get(format!("c{machine}").as_str())?.store.as_ref()?;
        let left = fleet.incarnations().sorted().into_iter().find(|incarnation| {
            let here = incarnation.cluster.as_str() == format!("c{machine}");
            here && incarnation.is_live() && scope.may_hold(incarnation)
        });
        let stored = fleet.volumes().sorted().into_iter().find(|volume| {
            let here = volume.cluster.as_str() == format!("c{machine}");
            let node = fleet.nodes().get(&volume.node).map(|node| node.state);
            let is_known = scope.until.is_none_or(|until| volume.id.position() <= until);
            here && is_known && node != Some(NodeState::Expunged)
        });
        let node = left.map(|left| &left.node).or(stored.map(|volume| &volume.node))?;
        Some((scope.id, node.to_string()))
    }

    /// Approves what is pending, or rejects it if impossible. Returns whether there was any.
    fn approve_all(&mut self) -> bool {
        let Some(state) = self.oracle.state() else { return false };
        let pending = |operation: &&chancery_machine::state::Operation| {
            matches!(operation.state, OperationState::PendingApproval(_))
        };
        let waits = state.fleet.operations().sorted().into_iter().any(|operation| pending(&operation));
        let waits = waits || !state.fleet.index().requests.open.is_empty();
        waits && self.ask_to_approve()
    }

    /// Returns why the world has not settled, if it has not.
    fn stuck(&mut self) -> Option<String> {
        if let Some(call) = self.calls.iter().find(|call| call.state != ProducerRequestState::Answered) {
            return Some(format!("intent {} has no answer", call.request.id));
        }
        if self.script.inbox && self.oracle.answers.next() < self.topic.end {
            return Some(format!("inbox messages from {} have no answer", self.oracle.answers.next()));
        }
        let Some(state) = self.oracle.state() else { return Some("there is no leader".into()) };
        let fleet = &state.fleet;
        if let Some(stuck) = stuck_in(fleet).or_else(|| self.oracle.unreported_balance()) {
            return Some(stuck);
        }
        let running: BTreeSet<IncarnationId> = fleet
            .incarnations()
            .sorted()
            .iter()
            .filter(|incarnation| incarnation.state == IncarnationState::Running)
            .map(|incarnation| incarnation.id)
            .collect();
        let cluster =
            |index: usize| fleet.clusters().sorted().iter().any(|c| c.name.as_str() == format!("c{index}"));
        let mut alive = BTreeSet::new();
        for (index, world) in self.worlds.iter().enumerate() {
            // Processes on machines of a deleted cluster are reported to no server.
            if !cluster(index) {
                continue;
            }
            let ours =
                |(id, _): (IncarnationId, usize)| (!self.oracle.strangers.contains_key(&id)).then_some(id);
            alive.extend(world.alive().filter_map(ours));
            let wanted = |object: ObjectId| match object {
                ObjectId::Incarnation(id) => {
                    let lost = fleet.incarnations().get(&id).is_some_and(|run| has_lost(fleet, run));
                    running.contains(&id) || lost
                }
                // Volumes left after their node's deletion are for people to see.
                ObjectId::Volume(_) => true,
            };
            if let Some(api) = &self.machines[index].api {
                let api = lock(api);
                alive.extend(api.running());
                if let Some(object) = api.known().find(|object| !wanted(*object)) {
                    return Some(format!("cluster {index} still has {object}"));
                }
            }
            if let Some(report) = world.list().iter().find(|report| !wanted(report.object)) {
                let known = fleet.lineages().current == report.object.lineage();
                if known {
                    return Some(format!("machine {index} still keeps {report:?}"));
                }
            }
        }
        if let Some(lost) = running.iter().find(|id| !alive.contains(*id)) {
            return Some(format!("{lost} is reported to run, and does not"));
        }
        alive.iter().find(|id| !running.contains(*id)).map(|id| format!("{id} runs, and is not reported"))
    }

    /// Checks that all states and rows agree.
    fn agree(&mut self) -> Result<(), InvariantViolation> {
        self.hear_all()?;
        self.oracle.rows()?;
        self.oracle.history(&self.history)?;
        let replayed = self.replay()?;
        self.oracle.same_state(&replayed)?;
        for seat in &mut self.seats {
            let Some(state) = seat.state().cloned() else { continue };
            self.oracle.same_state(&state)?;
            let Some(server) = &mut seat.server else { continue };
            let driver = server.driver();
            if driver.is_quiet() && driver.core.durable().position == state.at.position {
                self.oracle.same_state(&FoldedState { fleet: driver.core.fleet().clone(), ..state })?;
            }
        }
        if self.script.seed.is_multiple_of(STORED) {
            self.oracle.through_the_store(&self.log)?;
            self.counts.add("through the store");
        }
        if self.oracle.reads_past() {
            self.oracle.past(&self.log, &self.snapshots)?;
            self.counts.add("read in the past");
        }
        self.read_again()?;
        let misbehaving = self.everything().map(SimulatedWorld::misbehaving).sum();
        self.counts.add_many(SimulatedFault::BadBehaviour.word(), misbehaving);
        self.counts.add("settled");
        let alive: usize = self.worlds.iter().map(|world| world.alive().count()).sum();
        self.counts.add_many("alive in the end", alive as u64);
        self.counts.add_many("pods in the end", self.alive_in_clusters().len() as u64);
        Ok(())
    }

    /// Returns the state by a snapshot of any age and the records after it.
    fn replay(&mut self) -> Result<FoldedState, InvariantViolation> {
        let snapshot = self.random.pick(&self.snapshots).cloned();
        let mut fold = chancery_projector::JournalFold::from(snapshot);
        let records =
            self.log.source().records(fold.position().plus(1)).expect("a log in memory can be read");
        for record in records {
            let record = record.map_err(|error| violation(1, error.to_string(), None))?;
            fold.take(&record).map_err(|error| violation(2, error.to_string(), None))?;
        }
        fold.state().cloned().ok_or_else(|| violation(9, "there is no decision", None))
    }
}

/// Returns a replica that a deployment waits for: its incarnation was reverted, and does not become ready.
fn never_again_ready(fleet: &FleetState) -> Option<&Replica> {
    let deploys = |run: &Incarnation| fleet.plans().get(&run.plan).is_some_and(|plan| plan.current.is_some());
    let unready = |run: &&Incarnation| run.state == IncarnationState::Running && run.unready.is_some();
    let all = fleet.incarnations().sorted().into_iter();
    let mut hang = all.filter(unready).filter(|run| deploys(run) && !has_lost(fleet, run));
    hang.find_map(|run| fleet.replicas().get(&run.replica).filter(|replica| replica.operation.is_none()))
}

/// Returns an intent for something that waits for a person.
fn undecided(fleet: &FleetState, rounds: u32) -> Option<(&'static str, Value)> {
    for deployment in fleet.deployments().sorted() {
        let data = json!({"plan": deployment.plan, "name": deployment.name});
        let canary = matches!(deployment.spec.strategy, DeploymentStrategy::Canary { .. });
        match deployment.state {
            DeploymentState::Paused => return Some(("deployment.resume", data)),
            DeploymentState::InProgress
                if canary && deployment.active_set == SetWord::Old && rounds > PATIENCE =>
            {
                let good = deployment.spec.count.is_multiple_of(2);
                return Some((if good { "deployment.promote" } else { "deployment.rollback" }, data));
            }
            _ => {}
        }
    }
    // Half of the plans that are marked uneven are rebalanced.
    let uneven = |plan: &&Plan| plan.balance == BalancePolicy::Uneven && plan.rebalance.is_none();
    let mut uneven = fleet.plans().sorted().into_iter().filter(uneven);
    if let Some(plan) = uneven.find(|plan| plan.meta.version.is_multiple_of(2) && rounds < 4 * PATIENCE) {
        return Some(("plan.rebalance", json!({"name": plan.name})));
    }
    if let Some(replica) = never_again_ready(fleet).filter(|_| rounds > PATIENCE) {
        return Some(("replica.restart", json!({"name": replica.name})));
    }
    for node in fleet.nodes().sorted().into_iter().filter(|_| rounds > PATIENCE) {
        let approved = |disruption: &Disruption| disruption.state == DisruptionState::Approved;
        if let Some((name, _)) = node.disruptions.iter().find(|(_, disruption)| approved(disruption)) {
            return Some(("disruption.complete", json!({"node": node.name, "name": name})));
        }
    }
    None
}

/// Whether the operation waits, as it may, for a placement.
fn waits_for_place(fleet: &FleetState, operation: &Operation) -> bool {
    let reasons = fleet.plans().get(&operation.plan).is_some_and(|plan| !plan.unschedulable.is_empty());
    reasons && operation.state == OperationState::Preparing
}

/// Whether the incarnation waits for a volume in use by another one, or an unobtainable one.
fn waits_for_volume(fleet: &FleetState, run: Option<&Incarnation>) -> bool {
    run.is_some_and(|run| {
        let used =
            |name: &VolumeName| fleet.volumes().get(name).is_some_and(|volume| volume.used_by.is_some());
        run.awaits_volumes && run.ties.mounts.iter().any(used)
    })
}

fn has_lost(fleet: &FleetState, run: &Incarnation) -> bool {
    let lost = |volume: &Volume| matches!(volume.state, VolumeState::Lost(_));
    run.ties.mounts.iter().any(|name| fleet.volumes().get(name).is_some_and(lost))
}

/// Returns a stuck part of a plan, if any.
fn stuck_in_plans(fleet: &FleetState) -> Option<String> {
    let waiting: BTreeSet<_> = fleet
        .operations()
        .sorted()
        .into_iter()
        .filter(|operation| {
            let run = operation.incarnation.and_then(|id| fleet.incarnations().get(&id));
            waits_for_place(fleet, operation) || waits_for_volume(fleet, run)
        })
        .map(|operation| operation.plan.clone())
        .collect();
    for plan in fleet.plans().sorted() {
        if plan.deletion_requested_by.is_some() {
            return Some(format!("plan {} is being deleted, and stays", plan.name));
        }
        if plan.rebalance.is_some() && !waiting.contains(&plan.name) {
            return Some(format!("the rebalance of plan {} makes no progress", plan.name));
        }
        if let Some(current) = plan.current.as_ref().or(plan.next.as_ref())
            && !waiting.contains(&plan.name)
        {
            return Some(format!("deployment {current} of plan {} makes no progress", plan.name));
        }
    }
    for replica in fleet.replicas().sorted() {
        let deletes = replica.open().any(|open| open.kind == OperationKind::Delete);
        if replica.desired == WillWord::Deleted && !deletes {
            return Some(format!("replica {} must be deleted, and no operation does it", replica.name));
        }
        if let Some(again) = replica.scheduled_restart() {
            return Some(format!("replica {} waits for its restart from {}", replica.name, again.not_before));
        }
    }
    None
}

/// Whether the operation is an update that has to wait for the start of another replica, for which there is no place: a replica that
/// a rollout has stopped is started before the next one is updated.
fn is_held_back(fleet: &FleetState, operation: &Operation) -> bool {
    let is_queued_update =
        operation.kind == OperationKind::Update && matches!(operation.state, OperationState::Approved);
    let is_start = |other: &Operation| other.plan == operation.plan && other.kind == OperationKind::Start;
    let operations = fleet.operations().sorted();
    is_queued_update && operations.into_iter().any(|other| is_start(other) && waits_for_place(fleet, other))
}

/// Returns an entity that is stuck in a state, if any.
fn stuck_in(fleet: &FleetState) -> Option<String> {
    for operation in fleet.operations().sorted() {
        let run = operation.incarnation.and_then(|id| fleet.incarnations().get(&id));
        let waits = match &operation.state {
            OperationState::Preparing if waits_for_place(fleet, operation) => None,
            OperationState::Preparing => Some("is preparing without a reason"),
            OperationState::PendingApproval(_) => Some("waits for approval"),
            OperationState::Approved if is_held_back(fleet, operation) => None,
            OperationState::Approved => Some("is queued"),
            OperationState::Running if waits_for_volume(fleet, run) => None,
            OperationState::Running => Some("is running"),
            OperationState::Ended(_) => None,
        };
        if let Some(waits) = waits {
            return Some(format!("operation {} of {} {waits}", operation.id, operation.replica));
        }
    }
    for incarnation in fleet.incarnations().sorted() {
        let settled = match &incarnation.state {
            IncarnationState::Running | IncarnationState::Ended(_) => incarnation.command.is_none(),
            IncarnationState::Reserved => {
                let operation = fleet.operations().get(&incarnation.operation);
                waits_for_volume(fleet, Some(incarnation))
                    || operation.is_some_and(|operation| is_held_back(fleet, operation))
            }
            // Without its volume the incarnation cannot be reverted: that is retried until a person stops it.
            IncarnationState::Updating(to) if *to == incarnation.deployment => has_lost(fleet, incarnation),
            _ => false,
        };
        if !settled {
            let (state, command) = (&incarnation.state, &incarnation.command);
            return Some(format!("incarnation {} is {state:?} with {command:?}", incarnation.id));
        }
    }
    stuck_in_plans(fleet)
}
