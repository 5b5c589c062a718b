//! Test world: a fleet that receives intents, observations and time, and returns facts.

use std::time::Duration;

use chancery_events::extension::ExtensionAttributes;
use chancery_events::fact::{CommandEffect, Fact};
use chancery_events::id::{
    ExecutorStoreId, IncarnationId, Lineage, ObjectId, OperationId, Position, SessionId, Term,
};
use chancery_events::intent::{
    ApprovedOperation, Intent, IntentRequest, OperationApprove, OperationReject, RequestApprove,
};
use chancery_events::name::ReplicaName;
use chancery_events::observation::{
    IncarnationExit, IncarnationReport, IncarnationReported, ObjectReport, Observation, ObservedState,
    ProcessInfo, ProcessStatus, RetryClass, SessionRequested, VolumeReported,
};
use chancery_events::refusal::Refusal;
use chancery_events::spec::{ClusterRuntime, OperationKind};
use chancery_events::subject::Subject;
use chancery_events::time::Time;

use crate::advance::{AdvanceState, advance};
use crate::context::{DecisionContext, LevelLimits};
use crate::decide::{decide, evolve, observe, pass, verdict};
use crate::fleet::FleetState;
use crate::meta::FactPosition;
use crate::replica::phase;
use crate::snapshot::FleetSnapshot;
use crate::state::{Incarnation, Operation, OperationState, RequestState};

/// Parses a name, or panics.
pub(crate) fn name<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no such name"))
}

/// Parses a body from JSON, or panics.
pub(crate) fn intent(type_name: &str, data: &serde_json::Value) -> Intent {
    Intent::read(&format!("{type_name}.v1"), &data.to_string()).expect("a known type").expect("a good body")
}

/// Random numbers from a seed (xorshift64*).
#[derive(Clone)]
pub(crate) struct TestRandom(pub(crate) u64);

impl TestRandom {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Fleet with its clock and log.
#[derive(Clone)]
pub(crate) struct TestFleet {
    pub(crate) fleet: FleetState,
    pub(crate) now: Time,
    /// Facts since the last call of `fact_types`, without verdicts.
    pub(crate) log: Vec<Fact>,
    /// Facts and verdicts, each as it was folded.
    pub(crate) folded: Vec<(FactPosition, Fact)>,
    /// Time of full counts, which cost as much as the fleet is large.
    pub(crate) counted: CountInterval,
    /// Maximum number of replicas of a deployment.
    pub(crate) replicas: u32,
    agenda: AdvanceState,
    lineage: Lineage,
    ids: u64,
}

/// Time at which indexes are compared with a full count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountInterval {
    Always,
    AtTheEnd,
}

impl TestFleet {
    pub(crate) fn new() -> TestFleet {
        let lineage = Lineage::from_random(1);
        let now = Time::EPOCH + Duration::from_secs(1_000_000);
        let (fleet, agenda) = (FleetState::new(lineage), AdvanceState::new(now));
        TestFleet {
            fleet,
            now,
            log: Vec::new(),
            folded: Vec::new(),
            counted: CountInterval::Always,
            replicas: 1_000_000,
            agenda,
            lineage,
            ids: 0,
        }
    }

    /// World of a process cluster `local` with a session and `count` nodes, alternating between domains `d1`
    /// and `d2`.
    pub(crate) fn with_nodes(count: usize) -> TestFleet {
        TestFleet::of_runtime("process", count)
    }

    /// World as [`TestFleet::with_nodes`] makes it, of another runtime.
    pub(crate) fn of_runtime(runtime: &str, count: usize) -> TestFleet {
        let mut world = TestFleet::new();
        let mut spec = serde_json::json!({"runtime": runtime});
        if runtime == "kubernetes" {
            spec["kubernetes"] = serde_json::json!({"namespace": "control"});
        }
        world.must("cluster.apply", &serde_json::json!({"name": "local", "spec": spec}));
        for i in 1..=count {
            world.add_node(&format!("node-{i}"), &format!("d{}", 2 - i % 2));
        }
        world.open_session();
        world
    }

    pub(crate) fn add_node(&mut self, node: &str, domain: &str) {
        let total = serde_json::json!({"cpu": 4000, "memory": 8u64 << 30, "disk": 0});
        let body = serde_json::json!({"name": node, "cluster": "local", "spec": {"domain": domain, "resources": total}});
        self.must("node.apply", &body);
    }

    pub(crate) fn open_session(&mut self) -> SessionId {
        let runtime = self.fleet.clusters().get("local").expect("a cluster").spec.runtime;
        self.see(&SessionRequested { runtime, ..hello("local", "ex-1", 1) }.into());
        self.fleet.clusters().get("local").and_then(|cluster| cluster.session).expect("a session")
    }

    /// Applies a plan `web` of one small payload, without automatic restarts.
    pub(crate) fn plan(&mut self, approval: &str) {
        self.plan_with(approval, &serde_json::json!({"restart": "never"}));
    }

    /// Applies the plan `web` with more in its spec.
    pub(crate) fn plan_with(&mut self, approval: &str, more: &serde_json::Value) {
        let kinds = OperationKind::ALL.iter().map(|kind| (kind.word().to_owned(), approval.into()));
        let approval = serde_json::Value::Object(kinds.collect());
        let payload = serde_json::json!({
            "name": "app", "resources": {"cpu": 1000, "memory": 1 << 30}, "run": {"argv": ["app"]},
        });
        let mut spec = serde_json::json!({"namespace": "ns", "service": "web", "payloads": [payload], "approval": approval});
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        self.must("plan.apply", &serde_json::json!({"name": "web", "spec": spec}));
    }

    pub(crate) fn deploy(&mut self, deployment: &str, count: u32) {
        let spec = serde_json::json!({"count": count});
        self.must("deployment.create", &serde_json::json!({"plan": "web", "name": deployment, "spec": spec}));
        self.run();
    }

    fn fold_one(&mut self, fact: &Fact, position: Position) {
        let at = FactPosition { position, time: self.now, term: Term::FIRST, lineage: self.lineage };
        evolve(&mut self.fleet, fact, at).unwrap_or_else(|error| panic!("{fact:?}: {error}"));
        self.folded.push((at, fact.clone()));
    }

    fn fold(&mut self, facts: &[Fact], first: Position) {
        for (position, fact) in (first.get()..).map(Position::new).zip(facts) {
            self.fold_one(fact, position);
        }
        self.fleet.settle();
        self.log.extend(facts.iter().cloned());
        if self.counted == CountInterval::Always {
            self.check();
        }
    }

    /// Checks that the indexes equal a full count.
    pub(crate) fn check(&self) {
        let again = FleetSnapshot::of(&self.fleet).fleet();
        let (mut a, mut b) = (self.fleet.index().clone(), again.index().clone());
        (a.capacity_grew_at, b.capacity_grew_at) = (Position::ZERO, Position::ZERO);
        assert_eq!(format!("{a:?}"), format!("{b:?}"), "the indexes differ from a full count");
        for plan in self.fleet.plans().sorted() {
            for node in self.fleet.nodes().sorted() {
                let [a, b] = [&a, &b].map(|index| {
                    index.plan_index(&plan.name).map(|of| of.spread.on_node(&index.places, &node.name))
                });
                assert_eq!(a, b, "plan {} on node {}", plan.name, node.name);
            }
        }
    }

    fn context(&self, skip: u64) -> DecisionContext {
        let next = self.fleet.head().plus(1 + skip);
        DecisionContext {
            now: self.now,
            wall: self.now,
            next,
            lineage: self.lineage,
            actor: Some(name("ann")),
            replicas: self.replicas,
            levels: LevelLimits::ALONE,
        }
    }

    pub(crate) fn request(&mut self, intent: Intent) -> IntentRequest {
        self.ids += 1;
        let id = name(&format!("id-{}", self.ids));
        IntentRequest {
            id,
            source: name("test"),
            actor: name("ann"),
            time: None,
            expect: None,
            claim: None,
            traceparent: None,
            extensions: ExtensionAttributes::default(),
            intent,
        }
    }

    pub(crate) fn ask_request(&mut self, request: &IntentRequest) -> Result<Vec<Fact>, Refusal> {
        let context = DecisionContext { actor: Some(request.actor.clone()), ..self.context(2) };
        let decided = decide(&self.fleet, request, &context);
        let fact = verdict(&self.fleet, request, &decided, &context);
        let position = self.fleet.head().plus(1);
        pass(&mut self.fleet, position);
        self.fold_one(&fact, position.plus(1));
        self.fleet.settle();
        let facts = decided?;
        self.fold(&facts, position.plus(2));
        Ok(facts)
    }

    pub(crate) fn ask(&mut self, type_name: &str, data: &serde_json::Value) -> Result<Vec<Fact>, Refusal> {
        let request = self.request(intent(type_name, data));
        self.ask_request(&request)
    }

    pub(crate) fn must(&mut self, type_name: &str, data: &serde_json::Value) -> Vec<Fact> {
        self.ask(type_name, data).unwrap_or_else(|refusal| panic!("{type_name} {data}: {refusal:?}"))
    }

    pub(crate) fn see(&mut self, observation: &Observation) -> Vec<Fact> {
        let facts = observe(&self.fleet, observation, &self.context(1));
        let first = self.fleet.head().plus(2);
        self.fold(&facts, first);
        facts
    }

    /// Performs up to ten thousand due steps. Returns whether none is left.
    pub(crate) fn try_run(&mut self) -> bool {
        for _ in 0..10_000 {
            let context = self.context(0);
            let Some(step) = advance(&self.fleet, &mut self.agenda, &context) else { return true };
            let first = context.next;
            self.fold(&step.facts, first);
        }
        false
    }

    /// Performs all due steps.
    pub(crate) fn run(&mut self) {
        if self.try_run() {
            return;
        }
        panic!("work that never ends: {:?}", &self.log[self.log.len() - 5..]);
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now = self.now + Duration::from_secs(seconds);
        self.run();
    }

    /// Takes the types of the facts since the last call.
    pub(crate) fn fact_types(&mut self) -> Vec<&'static str> {
        self.log.drain(..).map(|fact| fact.type_name().trim_end_matches(".v1")).collect()
    }

    pub(crate) fn pending(&self) -> Vec<&Operation> {
        let pending = |o: &&Operation| matches!(o.state, OperationState::PendingApproval(_));
        self.fleet.operations().sorted().into_iter().filter(pending).collect()
    }

    pub(crate) fn approve(&mut self, operation: OperationId) -> Result<Vec<Fact>, Refusal> {
        let hash = self.fleet.operations().get(&operation).and_then(|o| o.hash).expect("a hash");
        let ask = OperationApprove { operations: vec![ApprovedOperation { operation, hash }] };
        let request = self.request(ask.into());
        let facts = self.ask_request(&request);
        self.run();
        facts
    }

    pub(crate) fn reject(&mut self, operation: OperationId) -> Result<Vec<Fact>, Refusal> {
        let request =
            self.request(OperationReject { operations: vec![operation], reason: "no".into() }.into());
        let facts = self.ask_request(&request);
        self.run();
        facts
    }

    pub(crate) fn approve_all(&mut self) {
        while let Some(id) = self.pending().first().map(|operation| operation.id) {
            self.approve(id).expect("approved");
        }
    }

    /// Approves, as another person, every pending approval request that is not void.
    pub(crate) fn grant(&mut self) {
        let all = self.fleet.approval_requests().sorted().into_iter();
        let waits = all.filter(|request| matches!(request.state, RequestState::Pending { .. }));
        let waits: Vec<_> = waits.map(|request| (request.id, request.hash)).collect();
        for (id, hash) in waits {
            let mut request = self.request(RequestApprove { request: id, hash }.into());
            request.actor = name("bob");
            self.ask_request(&request).ok();
        }
    }

    /// Quarantines an entity, as after an internal error.
    pub(crate) fn quarantine(&mut self, subject: Subject) {
        self.agenda.quarantine(subject);
    }

    /// Live incarnations that were commanded, oldest first.
    pub(crate) fn commanded(&self) -> Vec<IncarnationId> {
        let commanded = |i: &&Incarnation| i.is_live() && i.revision > 0;
        self.fleet.incarnations().sorted().into_iter().filter(commanded).map(|i| i.id).collect()
    }

    pub(crate) fn report_at(
        &mut self,
        incarnation: IncarnationId,
        revision: u32,
        observed: ObservedState,
    ) -> Vec<Fact> {
        let session = self.fleet.clusters().get("local").and_then(|c| c.session).expect("a session");
        let report = IncarnationReport { incarnation, revision, observed };
        let facts = self.see(&IncarnationReported { session, report }.into());
        self.run();
        facts
    }

    pub(crate) fn report(&mut self, incarnation: IncarnationId, observed: ObservedState) -> Vec<Fact> {
        let revision = self.fleet.incarnations().get(&incarnation).map_or(1, |i| i.revision);
        self.report_at(incarnation, revision, observed)
    }

    /// Reports success for all pending commands.
    pub(crate) fn obey(&mut self) {
        while self.obey_one() {}
    }

    /// Incarnations with a pending command.
    pub(crate) fn asked(&self) -> impl Iterator<Item = IncarnationId> {
        self.fleet.index().pending_commands.iter().filter_map(|(_, object)| match object {
            ObjectId::Incarnation(id) => Some(*id),
            ObjectId::Volume(_) => None,
        })
    }

    /// Reports success for the next pending command. Returns whether there was one.
    pub(crate) fn obey_one(&mut self) -> bool {
        let next = self.fleet.index().pending_commands.first().map(|(_, object)| *object);
        match next {
            None => return false,
            Some(ObjectId::Volume(id)) => {
                let name = self.fleet.index().volumes.name(id).expect("it is asked for").clone();
                let asked = self.fleet.volumes().get(&name).and_then(|volume| volume.command);
                let is_made = asked.is_some_and(|command| command.effect == CommandEffect::Ensure);
                let observed =
                    if is_made { ObservedState::Ready { processes: vec![] } } else { ObservedState::Gone };
                self.report_volume(name.as_str(), observed);
            }
            Some(ObjectId::Incarnation(id)) => {
                let asked = self.fleet.incarnations().get(&id).and_then(|i| i.last_effect);
                let observed = if matches!(asked, Some(CommandEffect::Ensure | CommandEffect::Reboot)) {
                    ready()
                } else {
                    ended(IncarnationExit::Clean)
                };
                self.report(id, observed);
            }
        }
        true
    }

    /// Reports an observation of a volume, at its revision.
    pub(crate) fn report_volume(&mut self, name: &str, observed: ObservedState) -> Vec<Fact> {
        let volume = self.fleet.volumes().get(name).expect("a volume").clone();
        let session = self.fleet.clusters().get("local").and_then(|c| c.session).expect("a session");
        let report = ObjectReport { object: volume.id, revision: volume.revision, observed };
        let facts = self.see(&VolumeReported { session, name: volume.name, report }.into());
        self.run();
        facts
    }

    /// Time at which something is due next.
    pub(crate) fn next_alarm(&self) -> Option<Time> {
        crate::advance::next_alarm(&self.fleet, &self.agenda)
    }

    /// Deploys the given number of replicas until they run.
    pub(crate) fn running(&mut self, deployment: &str, count: u32) {
        self.deploy(deployment, count);
        self.approve_all();
        self.obey();
        self.fact_types();
    }

    pub(crate) fn phases(&self) -> Vec<&'static str> {
        let replicas = self.fleet.replicas().sorted();
        let active = |r: &crate::state::Replica| {
            r.active.as_ref().and_then(|active| self.fleet.incarnations().get(&active.incarnation)).cloned()
        };
        let mut all: Vec<_> = replicas.into_iter().map(|r| phase(r, active(r).as_ref()).word()).collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn replica(&self) -> ReplicaName {
        self.fleet.replicas().sorted().first().expect("a replica").name.clone()
    }

    pub(crate) fn deployment(&self, deployment: &str) -> String {
        self.deployment_of("web", deployment)
    }

    pub(crate) fn deployment_of(&self, plan: &str, deployment: &str) -> String {
        let found = self.fleet.deployment(&name(plan), &name(deployment)).expect("a deployment");
        match &found.state {
            crate::state::DeploymentState::Pending => "pending".into(),
            crate::state::DeploymentState::InProgress => "in progress".into(),
            crate::state::DeploymentState::Paused => "paused".into(),
            crate::state::DeploymentState::Halted(end) => {
                format!("ending, {}", crate::deployment::end_word(end))
            }
            crate::state::DeploymentState::Ended(end) => crate::deployment::end_word(end).to_string(),
        }
    }

    pub(crate) fn kinds(&self) -> Vec<OperationKind> {
        self.fleet.operations().sorted().iter().filter(|o| o.is_open()).map(|o| o.kind).collect()
    }

    /// Free cpu of all nodes, in millicores.
    pub(crate) fn free_cpu(&self) -> u64 {
        self.fleet.nodes().sorted().into_iter().map(|node| self.fleet.index().places.free(node).cpu).sum()
    }
}

/// Request of a process executor for a cluster, with the store of this number.
pub(crate) fn hello(cluster: &str, executor: &str, scope: u64) -> SessionRequested {
    let scope = ExecutorStoreId::from_random(scope);
    SessionRequested {
        cluster: name(cluster),
        executor: name(executor),
        runtime: ClusterRuntime::Process,
        store: scope,
    }
}

pub(crate) fn process(status: ProcessStatus) -> ProcessInfo {
    ProcessInfo {
        payload: name("app"),
        index: 0,
        pid: Some(7),
        object: None,
        addresses: vec![],
        status,
        since: None,
        resets: 0,
    }
}

pub(crate) fn ready() -> ObservedState {
    ObservedState::Ready { processes: vec![process(ProcessStatus::Ready)] }
}

pub(crate) fn ended(exit: IncarnationExit) -> ObservedState {
    ObservedState::Ended { exit, processes: vec![process(ProcessStatus::Exited { code: 0 })] }
}

pub(crate) fn crashed() -> ObservedState {
    let exit = IncarnationExit::Failed { reason: "app-0 exited with 3".into() };
    ObservedState::Ended { exit, processes: vec![process(ProcessStatus::Exited { code: 3 })] }
}

pub(crate) fn failed(retry_class: RetryClass) -> ObservedState {
    ObservedState::Failed { message: "no such program".into(), retry: retry_class }
}
