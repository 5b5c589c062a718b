//! Producers of a simulated world: they send the script's requests, based on what they read, and repeat them
//! until answered.

use chancery_decider::{UnchangedVerdict, Verdict};
use chancery_events::expected_version::ExpectedVersion;
use chancery_events::extension::ExtensionAttributes;
use chancery_events::fact::Requester;
use chancery_events::intent::{Intent, IntentRequest};
use chancery_events::lifecycle::SetWord;
use chancery_events::name::Actor;
use chancery_events::refusal::RefusalCode;
use chancery_events::spec::{ApprovalMode, ApprovalPolicy, DeploymentStrategy, DisruptionState};
use chancery_events::time::Time;
use chancery_machine::fleet::FleetState;
use chancery_machine::state::{
    ApprovalRequest, Deployment, DeploymentState, Operation, OperationState, Replica, RequestState,
};
use chancery_projector::FoldedState;
use serde_json::{Value, json};

use super::fault::SimulatedFault;
use super::oracle::violation;
use super::readers::ForwardingServer;
use super::script::ScriptInput;
use super::server::{QueuedRequest, wall_at};
use super::universe::{ScriptedWorld, trace_step};
use crate::check::InvariantViolation;
use crate::history::{self, OpId};

/// Actors who request and approve.
const ACTORS: [&str; 2] = ["ann", "bob"];

/// State of a request, as far as its producer knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProducerRequestState {
    /// Sent to the server at this seat.
    Sent(usize),
    /// Outcome unknown.
    Unknown,
    /// Answered by a server.
    Answered,
}

/// Request that is repeated until it is answered.
pub struct ProducerRequest {
    /// Intent with its attributes.
    pub request: IntentRequest,
    /// State of the request.
    pub state: ProducerRequestState,
    /// Server that forwards the request to the leader, and returns its answer.
    pub via: Option<ForwardingServer>,
    /// Handling of a verdict that the request changes nothing.
    unchanged: UnchangedVerdict,
    /// Invocation in progress.
    op: Option<OpId>,
    /// First answer: every other must be equal, if it is recorded.
    answer: Option<Verdict>,
}

impl ScriptedWorld {
    /// Sends the next request of the script.
    pub fn post(&mut self) {
        let Some(input) = self.script.inputs.get(self.asked).cloned() else { return };
        self.asked += 1;
        if matches!(input, ScriptInput::Bad { .. }) {
            if !self.script.faults.contains(&SimulatedFault::BadRequest) {
                return;
            }
            self.counts.add(SimulatedFault::BadRequest.word());
        }
        let Some((type_name, data, expect)) = self.words(&input) else { return };
        let mut id = format!("i{}", self.asked);
        let mut time = None;
        if let ScriptInput::Bad { which } = input {
            match which {
                1 => id = "i1".into(),
                2 => time = Some(Time::from_micros(wall_at(self.now, 0).micros() + 86_400_000_000)),
                _ => {}
            }
        }
        if time.is_none() && self.random.chance(700) {
            let skew = i64::try_from(self.random.below(4_000_000)).unwrap_or(0) - 2_000_000;
            time = Some(wall_at(self.now, skew));
        }
        self.call(&id, &type_name, &data, time, expect);
    }

    /// Approves all pending operations that one of the two actors may approve, by the log; rejects one that
    /// cannot be approved.
    pub fn ask_to_approve(&mut self) -> bool {
        let Some(state) = self.oracle.state() else { return false };
        let number = self.calls.len();
        let all = state.fleet.operations().sorted();
        let waiting = |operation: &&Operation| matches!(operation.state, OperationState::PendingApproval(_));
        let Some(first) = all.iter().copied().find(waiting) else { return self.ask_to_reject() };
        // Not the requester of the first operation, whatever the policies.
        let wanted_by = asked_by(&state.fleet, first);
        let by = ACTORS[usize::from(wanted_by.is_some_and(|actor| actor.as_str() == ACTORS[0]))];
        let others = |operation: &&Operation| {
            asked_by(&state.fleet, operation).is_none_or(|asked| asked.as_str() != by)
        };
        let pending: Vec<_> = all.into_iter().filter(others).filter_map(shown).take(100).collect();
        // An impossible operation fails the approval of all: each is tried alone, and then rejected.
        let data = match number % 3 {
            0 => json!({"operations": asked(&pending)}),
            1 => json!({"operations": asked(&pending[..1])}),
            _ => json!({"operations": [pending[0].0], "reason": "it cannot be approved"}),
        };
        let verb = if number % 3 == 2 { "operation.reject" } else { "operation.approve" };
        self.call_as(by, &format!("end{number}"), verb, &data, (None, None));
        true
    }

    /// Rejects a pending approval request.
    fn ask_to_reject(&mut self) -> bool {
        let Some(state) = self.oracle.state() else { return false };
        let number = self.calls.len();
        let first = state.fleet.approval_requests().sorted().into_iter().find_map(waits);
        let Some((request, _)) = first else { return false };
        let data = json!({"request": request, "reason": "the world ends"});
        self.call_as(ACTORS[0], &format!("end{number}"), "request.reject", &data, (None, None));
        true
    }

    /// Sends a request that lets a world settle.
    pub fn ask_in_the_end(&mut self, type_name: &str, data: &Value) {
        let id = format!("end{}", self.calls.len());
        self.call(&id, type_name, data, None, None);
    }

    /// Returns the verdict on a request, once its producer has received it.
    pub fn verdict_on(&self, call: usize) -> Option<&Verdict> {
        let call = self.calls.get(call).filter(|call| call.state == ProducerRequestState::Answered);
        call.and_then(|call| call.answer.as_ref())
    }

    /// Expunges a node, as the operator of a lost machine does.
    pub fn ask_to_expunge(&mut self, node: &str) {
        let id = format!("gone{}", self.calls.len());
        // The machine is lost already, whatever approval a policy requires.
        let data = json!({"name": node, "state": "expunged", "break_glass": "the machine is lost"});
        self.call(&id, "node.set_state", &data, None, None);
    }

    fn call(&mut self, id: &str, type_name: &str, data: &Value, time: Option<Time>, expect: Option<u64>) {
        let actor = ACTORS[usize::from(self.random.chance(300))];
        self.call_as(actor, id, type_name, data, (time, expect));
    }

    fn call_as(
        &mut self,
        actor: &str,
        id: &str,
        type_name: &str,
        data: &Value,
        (time, expect): (Option<Time>, Option<u64>),
    ) {
        let intent = Intent::read(&format!("{type_name}.v1"), &data.to_string());
        let intent =
            intent.expect("a known type").unwrap_or_else(|error| panic!("{type_name} {data}: {error}"));
        let request = IntentRequest {
            id: id.parse().expect("an id"),
            source: "sim".parse().expect("a source"),
            actor: actor.parse().expect("an actor"),
            time,
            expect: expect.map(ExpectedVersion::Exactly),
            claim: None,
            traceparent: None,
            extensions: ExtensionAttributes::default(),
            intent,
        };
        let by_inbox = self.script.inbox && self.faulty && self.random.chance(self.script.messages);
        if by_inbox && !matches!(type_name.split_once('.'), Some(("cluster" | "operation" | "request", _))) {
            self.put_into_topic(request);
            return;
        }
        let unchanged = match self.calls.len() % 2 {
            0 => UnchangedVerdict::Recorded,
            _ => UnchangedVerdict::Unrecorded,
        };
        self.calls.push(ProducerRequest {
            request,
            state: ProducerRequestState::Unknown,
            via: None,
            unchanged,
            op: None,
            answer: None,
        });
        self.send(self.calls.len() - 1);
    }

    /// Sends a request to a random running server.
    pub fn send(&mut self, call: usize) {
        let up: Vec<usize> =
            (0..self.seats.len()).filter(|seat| self.seats[*seat].server.is_some()).collect();
        let Some(seat) = self.random.pick(&up).copied() else { return };
        let through = self.draw_via();
        let ProducerRequest { request, op, state, via, unchanged, .. } = &mut self.calls[call];
        *via = through;
        let (request, unchanged) = (request.clone(), *unchanged);
        *op = Some(self.history.invoke(request.key(), request.digest(), request.intent.type_name()));
        *state = ProducerRequestState::Sent(seat);
        trace_step!(
            self,
            "{} sends to server {seat}: {} {} ({})",
            request.actor,
            request.intent.type_name(),
            request.intent.data_json(),
            request.id
        );
        if self.strikes(SimulatedFault::LostRequest, 100) {
            trace_step!(self, "… and the request is lost");
            self.calls[call].state = ProducerRequestState::Unknown;
            return;
        }
        if let Some(server) = &mut self.seats[seat].server {
            server.asks.push_back(QueuedRequest { call, request, unchanged });
        }
    }

    /// Takes the answer of a server.
    pub fn answered(&mut self, call: usize, verdict: &Verdict) -> Result<(), InvariantViolation> {
        self.oracle.check_answer(verdict.position)?;
        let lost = self.strikes(SimulatedFault::LostAnswer, 100);
        let is_recorded = verdict.is_recorded || verdict.result.is_err();
        let text = match &*verdict.result {
            Ok(_) if !is_recorded => history::Verdict::Unchanged,
            Ok(_) => history::Verdict::Accepted,
            Err(refusal) => history::Verdict::Refused(refusal.code),
        };
        if !is_recorded {
            self.oracle.check_unchanged(&self.calls[call].request, verdict.position)?;
            self.counts.add("unchanged, not recorded");
        }
        trace_step!(
            self,
            "the answer to {} is {text:?} at {}{}",
            self.calls[call].request.id,
            verdict.position,
            if lost { ", and is lost" } else { "" }
        );
        let ProducerRequest { state, op, answer, request, .. } = &mut self.calls[call];
        // These codes are about the key and its time, not the verdict on the intent.
        let passing = matches!(
            text,
            history::Verdict::Refused(
                RefusalCode::IntentExpired
                    | RefusalCode::TimestampInFuture
                    | RefusalCode::IdempotencyKeyReused
            )
        );
        // A verdict without a record is for its position alone.
        let stays = |first: &&mut Verdict| first.is_recorded || first.result.is_err();
        match answer.as_mut().filter(stays) {
            Some(first) if first != verdict && !passing => {
                let what = format!("intent {} is answered {verdict:?}, and was {first:?}", request.id);
                return Err(violation(1, what, Some(verdict.position)));
            }
            Some(_) => {}
            None if passing => {}
            None => *answer = Some(verdict.clone()),
        }
        if lost {
            *state = ProducerRequestState::Unknown;
            return Ok(());
        }
        *state = ProducerRequestState::Answered;
        if let Some(op) = op.take() {
            self.history.ok(op, verdict.position, text);
        }
        self.counts.add(if verdict.result.is_ok() { "accepted" } else { "refused" });
        Ok(())
    }

    /// Returns the state that some reader sees; it may be old.
    fn read(&mut self) -> Option<&FoldedState> {
        let states: Vec<usize> =
            (0..self.seats.len()).filter(|seat| self.seats[*seat].state().is_some()).collect();
        let seat = *self.random.pick(&states)?;
        self.seats[seat].state()
    }

    /// Returns pending operations, as some reader sees them, with the shown hashes.
    pub fn pending(&mut self) -> Vec<(String, String)> {
        let Some(state) = self.read() else { return Vec::new() };
        state.fleet.operations().sorted().into_iter().filter_map(shown).collect()
    }

    /// Returns a replica that fits the verb, or any if none fits.
    fn replica(&mut self, verb: &str, which: u64) -> Option<String> {
        let state = self.read()?;
        let all = state.fleet.replicas().sorted();
        let fits = |replica: &&Replica| match verb {
            "relocate" | "restart" | "reboot" | "console" => {
                replica.active.as_ref().is_some_and(|active| active.healthy)
            }
            _ => true,
        };
        let fit: Vec<_> = all.iter().copied().filter(fits).collect();
        let found = one(&fit, which).or_else(|| one(&all, which))?;
        Some(found.name.to_string())
    }

    /// Returns a deployment in progress that fits the verb.
    fn deployment(&mut self, verb: &str, which: u64) -> Option<(String, String)> {
        let state = self.read()?;
        let fits = |deployment: &&Deployment| {
            let begun = [DeploymentState::InProgress, DeploymentState::Paused];
            let canary = matches!(deployment.spec.strategy, DeploymentStrategy::Canary { .. });
            match verb {
                "pause" => deployment.state == DeploymentState::InProgress,
                "resume" => deployment.state == DeploymentState::Paused,
                "promote" | "rollback" => {
                    canary && deployment.active_set == SetWord::Old && begun.contains(&deployment.state)
                }
                _ => begun.contains(&deployment.state),
            }
        };
        let fit: Vec<_> = state.fleet.deployments().sorted().into_iter().filter(fits).collect();
        one(&fit, which).map(|found| (found.plan.to_string(), found.name.to_string()))
    }

    /// Returns an ended deployment of the plan: a completed one, if any.
    fn ended(&mut self, plan: &str, which: u64) -> Option<String> {
        let state = self.read()?;
        let all = state.fleet.deployments().sorted();
        let over: Vec<_> = all.into_iter().filter(|of| of.plan.as_str() == plan && of.is_over()).collect();
        let completed: Vec<_> = over.iter().copied().filter(|of| of.is_completed()).collect();
        let found = one(&completed, which).or_else(|| one(&over, which))?;
        Some(found.name.to_string())
    }

    /// Returns a disruption that fits the verb.
    fn disruption(&mut self, verb: &str, which: u64) -> Option<(String, String)> {
        let state = self.read()?;
        let fits = |state: DisruptionState| match verb {
            "approve" => state == DisruptionState::Scheduled,
            "delete" => state == DisruptionState::Completed,
            _ => state != DisruptionState::Completed,
        };
        let mut fit = Vec::new();
        for node in state.fleet.nodes().sorted() {
            let of = node.disruptions.iter().filter(|(_, disruption)| fits(disruption.state));
            fit.extend(of.map(|(name, _)| (node.name.to_string(), name.to_string())));
        }
        one(&fit, which)
    }

    fn words(&mut self, input: &ScriptInput) -> Option<(String, Value, Option<u64>)> {
        Some(match input {
            ScriptInput::Ask { type_name, data } => ((*type_name).into(), data.clone(), None),
            ScriptInput::OfReplica { verb, which, node } => {
                let mut data = json!({"name": self.replica(verb, *which)?});
                if let Some(node) = node {
                    data["node"] = json!(node);
                }
                let type_name =
                    if *verb == "console" { "console.open".into() } else { format!("replica.{verb}") };
                (type_name, data, None)
            }
            ScriptInput::OfDeployment { verb, which } => {
                let (plan, name) = self.deployment(verb, *which)?;
                (format!("deployment.{verb}"), json!({"plan": plan, "name": name}), None)
            }
            ScriptInput::OfDisruption { verb, which } => {
                let (node, name) = self.disruption(verb, *which)?;
                (format!("disruption.{verb}"), json!({"node": node, "name": name}), None)
            }
            ScriptInput::Rollback { plan, name, which } => {
                let mut data = json!({"plan": plan, "name": name});
                if let Some(which) = which {
                    data["to"] = json!(self.ended(plan, *which)?);
                }
                ("plan.rollback".into(), data, None)
            }
            ScriptInput::OfVolume { which, snapshot } => {
                let names: Vec<_> =
                    self.read()?.fleet.volumes().sorted().iter().map(|it| it.name.clone()).collect();
                let name = one(&names, *which)?;
                match snapshot {
                    Some(snapshot) => {
                        ("volume.snapshot".into(), json!({"name": name, "snapshot": snapshot}), None)
                    }
                    None => ("volume.delete".into(), json!({"name": name}), None),
                }
            }
            ScriptInput::Approve { which } => {
                let mut pending = self.pending();
                if let Some(which) = which {
                    pending = vec![one(&pending, *which)?];
                }
                pending.truncate(100);
                ("operation.approve".into(), json!({"operations": asked(&pending)}), None)
            }
            ScriptInput::Reject { which } => {
                let (operation, _) = one(&self.pending(), *which)?;
                ("operation.reject".into(), json!({"operations": [operation], "reason": "no"}), None)
            }
            ScriptInput::OfRequest { verb, which } => {
                let all = self.read()?.fleet.approval_requests().sorted();
                let waits: Vec<_> = all.into_iter().filter_map(waits).collect();
                let (request, hash) = one(&waits, *which)?;
                let data = match *verb {
                    "approve" => json!({"request": request, "hash": hash}),
                    _ => json!({"request": request, "reason": "no"}),
                };
                (format!("request.{verb}"), data, None)
            }
            ScriptInput::Automatic { which } => {
                let plans = self.read()?.fleet.plans().sorted();
                let plans: Vec<_> = plans
                    .into_iter()
                    .map(|plan| (plan.name.clone(), (**plan.specs.newest()).clone()))
                    .collect();
                let (name, mut spec) = one(&plans, *which)?;
                spec.approval = ApprovalPolicy::all(ApprovalMode::Automatic);
                ("plan.apply".into(), json!({"name": name, "spec": spec}), None)
            }
            ScriptInput::Bad { which } => match which {
                0 => ("replica.stop".into(), json!({"name": "nobody-1"}), None),
                3 => ("replica.start".into(), json!({"name": self.replica("start", 3)?}), Some(9999)),
                4 => {
                    let (operation, _) = one(&self.pending(), 1)?;
                    let shown = json!([{"operation": operation, "hash": "0".repeat(32)}]);
                    ("operation.approve".into(), json!({"operations": shown}), None)
                }
                5 => ("operation.approve".into(), json!({"operations": []}), None),
                6 => (
                    "deployment.create".into(),
                    json!({"plan": "p0", "name": "bad", "spec": {"count": 4_000_000_000u32}}),
                    None,
                ),
                _ => ("plan.set_activity".into(), json!({"name": "p9", "activity": "active"}), None),
            },
        })
    }
}

/// Returns the element at the number, modulo the length.
fn one<T: Clone>(of: &[T], which: u64) -> Option<T> {
    of.get(usize::try_from(which).unwrap_or(0).checked_rem(of.len())?).cloned()
}

/// Returns a pending operation's id, and the shown hash of its effects.
fn shown(operation: &Operation) -> Option<(String, String)> {
    match &operation.state {
        OperationState::PendingApproval(proposal) => {
            Some((operation.id.to_string(), proposal.hash.to_string()))
        }
        _ => None,
    }
}

/// Returns a pending approval request's id, and the shown hash.
fn waits(request: &ApprovalRequest) -> Option<(String, String)> {
    let waits = matches!(request.state, RequestState::Pending { .. });
    waits.then(|| (request.id.to_string(), request.hash.to_string()))
}

/// Returns the operation's human requester, if any.
fn asked_by(fleet: &FleetState, operation: &Operation) -> Option<Actor> {
    match operation.requested_by.as_deref() {
        Some(Requester::Actor(actor)) => Some(actor.clone()),
        Some(Requester::Disruption { node, name }) => {
            fleet.nodes().get(node)?.disruptions.get(name)?.approved_by.clone()
        }
        Some(Requester::Rule(_)) => None,
        None => {
            let key = (operation.plan.clone(), operation.deployment.clone()?);
            Some(fleet.deployments().get(&key)?.requested_by.clone())
        }
    }
}

fn asked(shown: &[(String, String)]) -> Vec<Value> {
    shown.iter().map(|(operation, hash)| json!({"operation": operation, "hash": hash})).collect()
}
