//! Changes of entities by the facts that name them.

use std::collections::BTreeMap;

use chancery_events::fact::{
    ApprovalActor, ApprovalStart, CommandEffect, DeploymentCreated, DeploymentEnd, Fact, IncarnationEnd,
    IncarnationEnded, IncarnationReserved, IncarnationRunning, OperationApproved, OperationCreated,
    OperationEnd, OperationStarted, Requester,
};
use chancery_events::id::{IncarnationId, OperationId, RequestId, SessionId};
use chancery_events::name::{ClusterName, DeploymentName, DisruptionName, NodeName, PlanName, ReplicaName};
use chancery_events::observation::ProcessStatus;
use chancery_events::spec::{BalancePolicy, ClusterActivity, DisruptionState, NodeState, OperationKind};
use chancery_events::subject::Subject;

use super::entities::{
    Capability, Cluster, Deployment, Disruption, EntityStamps, FactLocation, FoldedRequest, Incarnation,
    IncarnationProgress, Node, Operation, Plan, Replica, Session, StampedEntity, VisibleEntities, brings_up,
};
use super::volumes;

/// Number of ended entities that an owner keeps.
const KEPT: usize = 20;
/// Number of approval requests that are kept after their end.
const KEPT_REQUESTS: usize = 100;

/// Number of completed deployments that are kept in addition.
const COMPLETED: usize = 10;

impl FactLocation {
    pub(super) fn stamp<T>(self, is: T) -> StampedEntity<T> {
        let stamps =
            EntityStamps { version: 1, created: self.time, changed: self.time, position: self.position };
        StampedEntity { stamps, is }
    }
}

/// Updates an entity, or creates it if it does not exist.
macro_rules! apply {
    ($map:expr, $key:expr, $at:expr, |$is:ident| $change:expr, $new:expr) => {
        match $map.get_mut($key) {
            Some(kept) => {
                let $is = &mut kept.is;
                $change;
            }
            None => {
                let mut kept = $at.stamp($new);
                // The stamp for naming the entity is the same as for every fact.
                kept.stamps.version = 0;
                $map.insert($key.clone(), kept);
            }
        }
    };
}

impl VisibleEntities {
    pub(super) fn fold(&mut self, fact: &Fact, at: FactLocation) {
        self.change(fact, at);
        // Verdicts name what an intent was about, and change nothing of it.
        if !matches!(fact, Fact::IntentAccepted(_) | Fact::IntentRefused(_)) {
            for (i, subject) in fact.subjects().iter().enumerate() {
                if let Some(stamps) = self.stamps(subject) {
                    stamps.version += u64::from(i == 0);
                    (stamps.changed, stamps.position) = (at.time, at.position);
                }
            }
        }
        self.forget(fact);
    }

    fn stamps(&mut self, subject: &Subject) -> Option<&mut EntityStamps> {
        Some(match subject {
            Subject::Fleet => return None,
            Subject::Cluster(name) => &mut self.clusters.get_mut(name)?.stamps,
            Subject::Capability(name) => &mut self.capabilities.get_mut(name)?.stamps,
            Subject::Node(name) => &mut self.nodes.get_mut(name)?.stamps,
            Subject::Plan(name) => &mut self.plans.get_mut(name)?.stamps,
            Subject::Deployment(plan, name) => {
                &mut self.deployments.get_mut(&(plan.clone(), name.clone()))?.stamps
            }
            Subject::Replica(name) => &mut self.replicas.get_mut(name)?.stamps,
            Subject::Incarnation(id) => &mut self.incarnations.get_mut(id)?.stamps,
            Subject::Operation(id) => &mut self.operations.get_mut(id)?.stamps,
            Subject::Session(id) => &mut self.sessions.get_mut(id)?.stamps,
            Subject::Policy(name) => &mut self.policies.get_mut(name)?.stamps,
            Subject::Volume(name) => &mut self.volumes.get_mut(name)?.stamps,
            Subject::Request(id) => &mut self.requests.get_mut(id)?.stamps,
        })
    }

    fn change(&mut self, fact: &Fact, at: FactLocation) {
        self.stored(fact, at);
        match fact {
            Fact::TermStarted(_)
            | Fact::LineageStarted(_)
            | Fact::FleetLevelRaised(_)
            | Fact::IntentAccepted(_)
            | Fact::IntentRefused(_)
            | Fact::InboxMessageRefused(_)
            | Fact::InboxSkipped(_)
            | Fact::InboxAdvanced(_)
            | Fact::TimeRecorded(_)
            | Fact::EntityQuarantined(_)
            | Fact::OrphanResolved(_)
            | Fact::ConsoleOpened(_)
            | Fact::VolumeCreated(_)
            | Fact::VolumeSnapshotStarted(_)
            | Fact::VolumeReady(_)
            | Fact::VolumeCommandFailed(_)
            | Fact::VolumeLost(_)
            | Fact::VolumeDeletionStarted(_)
            | Fact::VolumeDestroyRequested(_)
            | Fact::VolumeDestroyed(_) => {}
            Fact::ClusterApplied(_)
            | Fact::ClusterActivityChanged(_)
            | Fact::ClusterDeleted(_)
            | Fact::CapabilityApplied(_)
            | Fact::CapabilityActivityChanged(_)
            | Fact::CapabilityDeleted(_)
            | Fact::NodeApplied(_)
            | Fact::NodeStateChanged(_)
            | Fact::NodeDeleted(_)
            | Fact::DisruptionScheduled(_)
            | Fact::DisruptionApproved(_)
            | Fact::DisruptionCompleted(_)
            | Fact::DisruptionDeleted(_)
            | Fact::PolicyApplied(_)
            | Fact::PolicyDeleted(_)
            | Fact::ApprovalBypassed(_)
            | Fact::SessionOpened(_)
            | Fact::SessionClosed(_) => self.place(fact, at),
            Fact::RequestOpened(x) => {
                let id = RequestId::issue(at.lineage, at.position);
                self.requests
                    .insert(id, at.stamp(FoldedRequest { fact: x.clone(), approved: None, end: None }));
            }
            Fact::RequestApproved(x) => {
                if let Some(request) = self.requests.get_mut(&x.request) {
                    request.is.approved = Some(x.approved_by.clone());
                }
            }
            Fact::RequestEnded(x) => {
                if let Some(request) = self.requests.get_mut(&x.request) {
                    request.is.end = Some(x.end.clone());
                }
            }
            Fact::PlanApplied(_)
            | Fact::PlanActivityChanged(_)
            | Fact::PlanDeletionStarted(_)
            | Fact::PlanBalanceChanged(_)
            | Fact::PlanRebalanceStarted(_)
            | Fact::PlanRebalanceEnded(_)
            | Fact::PlanDeleted(_)
            | Fact::PlanUnschedulable(_)
            | Fact::DeploymentCreated(_)
            | Fact::DeploymentStarted(_)
            | Fact::DeploymentPaused(_)
            | Fact::DeploymentResumed(_)
            | Fact::DeploymentStalled(_)
            | Fact::DeploymentCutOver(_)
            | Fact::DeploymentHalted(_)
            | Fact::DeploymentEnded(_)
            | Fact::ReplicaCreated(_)
            | Fact::ReplicaDeploymentChanged(_)
            | Fact::ReplicaDeleted(_) => self.desired(fact, at),
            Fact::OperationCreated(x) => self.operation_created(x, at),
            Fact::OperationApproved(x) => self.approved(x, at),
            Fact::OperationStarted(x) => self.operation_started(x),
            Fact::OperationEnded(x) => self.close(x.operation, &x.end, at),
            Fact::IncarnationReserved(x) => self.reserved(x, at),
            Fact::IncarnationStopRequested(_)
            | Fact::IncarnationStartRequested(_)
            | Fact::IncarnationCommandFailed(_)
            | Fact::IncarnationStarted(_)
            | Fact::IncarnationRunning(_)
            | Fact::IncarnationProcessesChanged(_)
            | Fact::IncarnationEnded(_) => self.running(fact, at),
        }
    }

    fn place(&mut self, fact: &Fact, at: FactLocation) {
        match fact {
            Fact::ClusterApplied(x) => {
                let new = Cluster { spec: x.spec.clone(), activity: ClusterActivity::Active };
                apply!(self.clusters, &x.name, at, |is| is.spec = x.spec.clone(), new);
            }
            Fact::ClusterActivityChanged(x) => {
                if let Some(cluster) = self.clusters.get_mut(&x.name) {
                    cluster.is.activity = x.activity;
                }
            }
            Fact::ClusterDeleted(x) => {
                self.clusters.remove(&x.name);
                self.sessions.retain(|_, session| session.is.fact.cluster != x.name);
            }
            Fact::CapabilityApplied(x) => {
                let new = Capability { spec: x.spec.clone(), activity: ClusterActivity::Active };
                apply!(self.capabilities, &x.name, at, |is| is.spec = x.spec.clone(), new);
            }
            Fact::CapabilityActivityChanged(x) => {
                if let Some(capability) = self.capabilities.get_mut(&x.name) {
                    capability.is.activity = x.activity;
                }
            }
            Fact::CapabilityDeleted(x) => {
                self.capabilities.remove(&x.name);
            }
            Fact::NodeApplied(x) => {
                let (spec, state) = (x.spec.clone(), NodeState::Unallocated);
                let new = Node { spec, state, cluster: None, disruptions: BTreeMap::default(), bypass: None };
                apply!(self.nodes, &x.name, at, |is| is.spec = x.spec.clone(), new);
            }
            Fact::NodeStateChanged(x) => {
                if let Some(node) = self.nodes.get_mut(&x.name) {
                    (node.is.state, node.is.cluster) = (x.state, x.cluster.clone());
                }
            }
            Fact::ApprovalBypassed(x) => {
                if let Some(node) = self.nodes.get_mut(&x.node) {
                    node.is.bypass = Some(x.clone());
                }
            }
            Fact::NodeDeleted(x) => {
                self.nodes.remove(&x.name);
            }
            Fact::DisruptionScheduled(x) => {
                let (spec, state, since) = (x.spec.clone(), DisruptionState::Scheduled, at.time);
                if let Some(node) = self.nodes.get_mut(&x.node) {
                    let disruption = Disruption { spec, state, approved_by: None, since };
                    node.is.disruptions.insert(x.name.clone(), disruption);
                }
            }
            Fact::DisruptionApproved(x) => {
                self.disruption(&x.node, &x.name, DisruptionState::Approved, at, |is| {
                    is.approved_by = Some(x.approved_by.clone());
                });
            }
            Fact::DisruptionCompleted(x) => {
                self.disruption(&x.node, &x.name, DisruptionState::Completed, at, |_| ());
            }
            Fact::DisruptionDeleted(x) => {
                if let Some(node) = self.nodes.get_mut(&x.node) {
                    node.is.disruptions.remove(&x.name);
                }
            }
            Fact::PolicyApplied(x) => {
                apply!(self.policies, &x.name, at, |is| *is = x.spec.clone(), x.spec.clone());
            }
            Fact::PolicyDeleted(x) => {
                self.policies.remove(&x.name);
            }
            Fact::SessionOpened(x) => {
                let id = SessionId::issue(at.lineage, at.position);
                self.sessions.insert(id, at.stamp(Session { fact: x.clone(), end: None }));
            }
            Fact::SessionClosed(x) => {
                if let Some(session) = self.sessions.get_mut(&x.session) {
                    session.is.end = Some(x.end);
                }
            }
            // Fact of another group.
            _ => {}
        }
    }

    fn disruption(
        &mut self,
        node: &NodeName,
        name: &DisruptionName,
        state: DisruptionState,
        at: FactLocation,
        how: impl FnOnce(&mut Disruption),
    ) {
        let found = self.nodes.get_mut(node).and_then(|node| node.is.disruptions.get_mut(name));
        if let Some(disruption) = found {
            (disruption.state, disruption.since) = (state, at.time);
            how(disruption);
        }
    }

    fn deployment(&mut self, plan: &PlanName, name: &DeploymentName, how: impl FnOnce(&mut Deployment)) {
        if let Some(deployment) = self.deployments.get_mut(&(plan.clone(), name.clone())) {
            how(&mut deployment.is);
        }
    }

    fn desired(&mut self, fact: &Fact, at: FactLocation) {
        match fact {
            Fact::PlanApplied(x) => {
                let new = Plan {
                    generation: x.generation,
                    activity: ClusterActivity::Active,
                    spec: x.spec.clone(),
                    specs: BTreeMap::from([(x.generation, x.spec.clone())]),
                    unschedulable: Vec::new(),
                    balance: BalancePolicy::Even,
                    rebalance: None,
                    outcomes: Vec::new(),
                };
                let change = |is: &mut Plan| {
                    (is.generation, is.spec) = (x.generation, x.spec.clone());
                    is.specs.insert(x.generation, x.spec.clone());
                };
                apply!(self.plans, &x.name, at, |is| change(is), new);
            }
            Fact::PlanActivityChanged(x) => {
                if let Some(plan) = self.plans.get_mut(&x.name) {
                    plan.is.activity = x.activity;
                }
            }
            Fact::PlanDeleted(x) => {
                self.plans.remove(&x.name);
                self.deployments.retain(|(plan, _), _| *plan != x.name);
            }
            Fact::PlanUnschedulable(x) => {
                if let Some(plan) = self.plans.get_mut(&x.plan) {
                    plan.is.unschedulable.clone_from(&x.reasons);
                }
            }
            Fact::PlanBalanceChanged(x) => {
                if let Some(plan) = self.plans.get_mut(&x.plan) {
                    plan.is.balance = x.balance;
                }
            }
            Fact::PlanRebalanceStarted(x) => {
                if let Some(plan) = self.plans.get_mut(&x.plan) {
                    plan.is.rebalance = Some(x.requested_by.clone());
                }
            }
            Fact::PlanRebalanceEnded(x) => {
                if let Some(plan) = self.plans.get_mut(&x.plan) {
                    plan.is.rebalance = None;
                }
            }
            Fact::ReplicaCreated(x) => {
                let (plan, deployment) = (x.plan.clone(), x.deployment.clone());
                let (approved, active, passive, last, again) = (None, None, None, None, None);
                let new = Replica {
                    plan,
                    deployment,
                    approved,
                    active,
                    secondary: passive,
                    last,
                    next_restart: again,
                    is_powered_off: false,
                };
                let mut kept = at.stamp(new);
                kept.stamps.version = 0;
                self.replicas.insert(x.name.clone(), kept);
            }
            Fact::ReplicaDeploymentChanged(x) => {
                if let Some(replica) = self.replicas.get_mut(&x.name) {
                    replica.is.deployment = x.deployment.clone();
                }
            }
            Fact::ReplicaDeleted(x) => {
                self.replicas.remove(&x.name);
                self.incarnations.retain(|_, kept| kept.is.fact.replica != x.name);
                self.operations.retain(|_, kept| kept.is.replica != x.name);
            }
            // Fact of a deployment, or of another group.
            _ => self.deployed(fact, at),
        }
    }

    fn deployed(&mut self, fact: &Fact, at: FactLocation) {
        match fact {
            Fact::DeploymentCreated(DeploymentCreated {
                plan,
                name,
                generation,
                spec,
                requested_by: by,
                rollback,
            }) => {
                let new = Deployment {
                    born: at.position,
                    generation: *generation,
                    spec: spec.clone(),
                    requested_by: by.clone(),
                    has_started: false,
                    is_paused: false,
                    has_cut_over: false,
                    rollback: rollback.clone(),
                    progressed: None,
                    stalled: None,
                    end: None,
                    is_ending: false,
                };
                let mut kept = at.stamp(new);
                kept.stamps.version = 0;
                self.deployments.insert((plan.clone(), name.clone()), kept);
            }
            Fact::DeploymentStarted(x) => self.deployment(&x.plan, &x.name, |is| {
                is.has_started = true;
                is.progresses(at);
            }),
            Fact::DeploymentPaused(x) => self.deployment(&x.plan, &x.name, |is| {
                (is.is_paused, is.stalled) = (true, None);
            }),
            Fact::DeploymentResumed(x) => self.deployment(&x.plan, &x.name, |is| {
                is.is_paused = false;
                is.progresses(at);
            }),
            Fact::DeploymentStalled(x) => {
                self.deployment(&x.plan, &x.name, |is| is.stalled = Some(at.time));
            }
            Fact::DeploymentCutOver(x) => self.deployment(&x.plan, &x.name, |is| {
                is.has_cut_over = true;
                is.progresses(at);
            }),
            // A deployment that is ending is still in progress, whether it was paused or not.
            Fact::DeploymentHalted(x) => self.deployment(&x.plan, &x.name, |is| {
                (is.is_paused, is.stalled, is.is_ending) = (false, None, true);
            }),
            Fact::DeploymentEnded(x) => {
                self.deployment(&x.plan, &x.name, |is| {
                    (is.end, is.stalled) = (Some(x.end.clone()), None);
                });
            }
            // Fact of another group.
            _ => {}
        }
    }

    fn operation_created(&mut self, fact: &OperationCreated, at: FactLocation) {
        let Some(replica) = self.replicas.get_mut(&fact.replica) else { return };
        // An update without placement, or a reboot, is about the existing incarnation.
        let in_place =
            matches!(fact.kind, OperationKind::Update | OperationKind::Reboot) && fact.proposal.is_some();
        let place = replica.is.active.filter(|_| in_place);
        let operation = Operation {
            replica: fact.replica.clone(),
            plan: replica.is.plan.clone(),
            kind: fact.kind,
            deployment: fact.deployment.clone(),
            requested_by: fact.requested_by.clone(),
            version: fact.version.clone().unwrap_or_else(|| replica.is.deployment.clone()),
            proposal: fact.proposal,
            place,
            node: place.and_then(|id| Some(self.incarnations.get(&id)?.is.fact.node.clone())),
            approved: None,
            has_begun: false,
            end: None,
        };
        self.operations.insert(OperationId::issue(at.lineage, at.position), at.stamp(operation));
    }

    /// Notes progress of the operation's deployment, unless it is ending.
    fn progresses(&mut self, id: OperationId, at: FactLocation) {
        let Some(operation) = self.operations.get(&id) else { return };
        if let Some(name) = operation.is.deployment.clone() {
            let plan = operation.is.plan.clone();
            self.deployment(&plan, &name, |is| is.progresses(at));
        }
    }

    /// Notes a decision by people: without a deployment of the operation, the current one waited for it.
    fn decided(&mut self, id: OperationId, at: FactLocation) {
        let Some(operation) = self.operations.get(&id).map(|kept| &kept.is) else { return };
        if operation.deployment.is_some() {
            return self.progresses(id, at);
        }
        let current = self.deployments.iter_mut().find(|((plan, _), kept)| {
            *plan == operation.plan && kept.is.has_started && kept.is.end.is_none()
        });
        if let Some((_, kept)) = current {
            kept.is.progresses(at);
        }
    }

    fn approved(&mut self, fact: &OperationApproved, at: FactLocation) {
        // An approval by the plan itself is no progress.
        if matches!(&fact.approved_by, ApprovalActor::Actor(_))
            || matches!(&fact.approved_by, ApprovalActor::Rule(rule) if rule.starts_with("policy/"))
        {
            self.decided(fact.operation, at);
        }
        let Some(operation) = self.operations.get_mut(&fact.operation) else { return };
        operation.is.approved = Some(fact.approved_by.clone());
        let kind = operation.is.kind;
        if matches!(kind, OperationKind::Create | OperationKind::Start)
            && let Some(replica) = self.replicas.get_mut(&fact.replica)
        {
            replica.is.approved = Some(kind);
            replica.is.is_powered_off = false;
        }
        if fact.start == ApprovalStart::Immediate {
            self.begin(fact.operation, fact.incarnation);
        }
    }

    fn operation_started(&mut self, fact: &OperationStarted) {
        self.begin(fact.operation, fact.incarnation);
    }

    /// Starts an operation, which requests something of an incarnation if there is one.
    fn begin(&mut self, id: OperationId, asked: Option<IncarnationId>) {
        let Some(operation) = self.operations.get_mut(&id).map(|kept| &mut kept.is) else { return };
        operation.has_begun = true;
        operation.place = operation.place.or(asked);
        if let Some(replica) = self.replicas.get_mut(&operation.replica) {
            replica.is.next_restart = None;
            // A stop or delete counts once it is started.
            if !brings_up(operation.kind) {
                replica.is.approved = Some(operation.kind);
                replica.is.is_powered_off = false;
            }
        }
        let comes_up = brings_up(operation.kind) && operation.place == asked;
        let (version, reboots) = (operation.version.clone(), operation.kind == OperationKind::Reboot);
        let Some(incarnation) = asked.and_then(|id| self.incarnations.get_mut(&id)) else { return };
        let incarnation = &mut incarnation.is;
        if comes_up && volumes::waits(incarnation) {
            return;
        }
        if reboots {
            incarnation.command(CommandEffect::Reboot);
        } else if comes_up {
            let new = incarnation.progress == IncarnationProgress::Reserved;
            incarnation.progress =
                if new { IncarnationProgress::Creating } else { IncarnationProgress::Updating(version) };
            incarnation.command(CommandEffect::Ensure);
        } else {
            if incarnation.progress != IncarnationProgress::Stopping {
                incarnation.command(CommandEffect::Stop);
            }
            incarnation.progress = IncarnationProgress::Stopping;
        }
    }

    fn close(&mut self, id: OperationId, end: &OperationEnd, at: FactLocation) {
        let asked = self.operations.get(&id).map(|kept| &kept.is).filter(|is| is.deployment.is_none());
        if *end == OperationEnd::Succeeded {
            self.progresses(id, at);
        } else if asked.is_some_and(|is| is.word() == "pending_approval") {
            self.decided(id, at);
        }
        let Some(operation) = self.operations.get_mut(&id) else { return };
        let by_rule =
            matches!(operation.is.requested_by, Some(Requester::Rule(_))) && !operation.is.has_begun;
        let kept = matches!(end, OperationEnd::Superseded { .. } | OperationEnd::Cancelled { .. });
        if let Some(replica) = self.replicas.get_mut(&operation.is.replica).filter(|_| by_rule && !kept) {
            // The rule has kept its promise.
            replica.is.next_restart = None;
        }
        operation.is.end = Some(end.clone());
        let (kind, word, plan) = (operation.is.kind, operation.is.word(), operation.is.plan.clone());
        if let Some(plan) = self.plans.get_mut(&plan) {
            plan.is.outcomes.push((kind, word));
        }
    }

    fn reserved(&mut self, fact: &IncarnationReserved, at: FactLocation) {
        let id = IncarnationId::issue(at.lineage, at.position);
        let Some(replica) = self.replicas.get_mut(&fact.replica) else { return };
        match replica.is.active {
            None => replica.is.active = Some(id),
            Some(_) => replica.is.secondary = Some(id),
        }
        let plan = replica.is.plan.clone();
        let cluster = self.nodes.get(&fact.node).and_then(|node| node.is.cluster.clone());
        if let Some(operation) = self.operations.get_mut(&fact.operation) {
            operation.is.proposal = Some(fact.proposal);
            (operation.is.place, operation.is.node) = (Some(id), Some(fact.node.clone()));
        }
        let incarnation = Incarnation {
            fact: fact.clone(),
            deployment: fact.deployment.clone(),
            plan: plan.clone(),
            cluster,
            progress: IncarnationProgress::Reserved,
            stores: fact.reserved_storage.clone(),
            processes: Vec::new(),
            unready: None,
            revision: 0,
            command: None,
        };
        self.incarnations.insert(id, at.stamp(incarnation));
        let waits = |kept: &StampedEntity<Operation>| kept.is.plan == plan && kept.is.word() == "preparing";
        if !self.operations.values().any(waits)
            && let Some(plan) = self.plans.get_mut(&plan)
        {
            plan.is.unschedulable.clear();
        }
    }

    fn running(&mut self, fact: &Fact, at: FactLocation) {
        match fact {
            Fact::IncarnationStopRequested(x) => {
                if let Some(kept) = self.incarnations.get_mut(&x.incarnation) {
                    kept.is.progress = IncarnationProgress::Stopping;
                    kept.is.command(x.effect);
                }
            }
            Fact::IncarnationStartRequested(x) => {
                if let Some(kept) = self.incarnations.get_mut(&x.incarnation) {
                    let new = kept.is.progress == IncarnationProgress::Reserved;
                    kept.is.progress = if new {
                        IncarnationProgress::Creating
                    } else {
                        IncarnationProgress::Updating(x.deployment.clone())
                    };
                    kept.is.command(CommandEffect::Ensure);
                }
            }
            Fact::IncarnationCommandFailed(x) => {
                if let Some(kept) = self.incarnations.get_mut(&x.incarnation) {
                    let effect = kept.is.command.map(|(effect, _)| effect).filter(|_| x.not_before.is_some());
                    kept.is.command = effect.map(|effect| (effect, x.attempt + 1));
                }
            }
            Fact::IncarnationStarted(x) => {
                if let Some(kept) = self.incarnations.get_mut(&x.incarnation) {
                    match &kept.is.progress {
                        IncarnationProgress::Creating => kept.is.progress = IncarnationProgress::Starting,
                        IncarnationProgress::Updating(to) if *to == kept.is.deployment => {
                            (kept.is.progress, kept.is.unready) =
                                (IncarnationProgress::Running, Some(at.time));
                        }
                        // The command continues.
                        _ => {}
                    }
                    kept.is.command = None;
                    kept.is.processes.clone_from(&x.processes);
                }
            }
            Fact::IncarnationRunning(x) => self.runs(x, at),
            Fact::IncarnationProcessesChanged(x) => {
                if let Some(kept) = self.incarnations.get_mut(&x.incarnation) {
                    kept.is.processes.clone_from(&x.processes);
                    let ready = x.processes.iter().all(|process| process.status == ProcessStatus::Ready);
                    if kept.is.progress == IncarnationProgress::Running {
                        kept.is.unready = kept.is.unready.or(Some(at.time)).filter(|_| !ready);
                    }
                }
            }
            Fact::IncarnationEnded(x) => self.ended(x),
            // Fact of another group.
            _ => {}
        }
    }

    /// Makes a ready incarnation the one that counts; its replica now has its version.
    fn runs(&mut self, fact: &IncarnationRunning, at: FactLocation) {
        let Some(kept) = self.incarnations.get_mut(&fact.incarnation) else { return };
        if let IncarnationProgress::Updating(to) = &kept.is.progress {
            kept.is.deployment = to.clone();
        }
        (kept.is.progress, kept.is.command, kept.is.unready) = (IncarnationProgress::Running, None, None);
        kept.is.processes.clone_from(&fact.processes);
        let deployment = kept.is.deployment.clone();
        if let Some(replica) = self.replicas.get_mut(&fact.replica).map(|kept| &mut kept.is) {
            if replica.secondary == Some(fact.incarnation) {
                replica.secondary = replica.active.replace(fact.incarnation);
            }
            replica.deployment = deployment;
        }
        if let Some(operation) = fact.operation {
            self.close(operation, &OperationEnd::Succeeded, at);
        } else if fact.replaces.is_some() {
            let by = self.incarnations.get(&fact.incarnation).map(|kept| kept.is.fact.operation);
            let open = |by: &OperationId| self.operations.get(by).is_some_and(|by| by.is.end.is_none());
            if let Some(by) = by.filter(open) {
                self.progresses(by, at);
            }
        }
    }

    fn ended(&mut self, fact: &IncarnationEnded) {
        let mut was_held = false;
        if let Some(kept) = self.incarnations.get_mut(&fact.incarnation) {
            let by = self.operations.get(&kept.is.fact.operation);
            was_held =
                kept.is.progress == IncarnationProgress::Reserved && by.is_none_or(|by| !by.is.has_begun);
            (kept.is.progress, kept.is.command) = (IncarnationProgress::Ended(fact.end.clone()), None);
            if !fact.processes.is_empty() {
                kept.is.processes.clone_from(&fact.processes);
            }
        }
        let incarnations = &self.incarnations;
        if let Some(replica) = self.replicas.get_mut(&fact.replica).map(|kept| &mut kept.is) {
            let other = replica.active.filter(|active| *active != fact.incarnation);
            let other = other.and_then(|other| incarnations.get(&other));
            let is_left = other.is_some_and(|other| other.is.progress != IncarnationProgress::Stopping);
            let wants = replica.approved.is_some_and(brings_up);
            replica.is_powered_off |= fact.end == IncarnationEnd::PoweredOff && !is_left && wants;
            if replica.secondary == Some(fact.incarnation) {
                replica.secondary = None;
            } else {
                replica.active = replica.secondary.take();
                // An incarnation that was only reserved does not count.
                if !was_held {
                    replica.last = Some(fact.end.clone());
                    replica.next_restart = fact.restart_backoff.map(|again| again.not_before);
                }
            }
        }
        if let Some(operation) = fact.reschedules.and_then(|id| self.operations.get_mut(&id)) {
            let operation = &mut operation.is;
            (operation.proposal, operation.place, operation.node) = (None, None, None);
            // The approval was for another placement.
            operation.approved = None;
        }
    }

    /// Deletes the oldest ended entities, where the fact may have exceeded their number.
    fn forget(&mut self, fact: &Fact) {
        match fact {
            Fact::OperationEnded(x) => self.forget_of_replica(&x.replica),
            Fact::IncarnationRunning(x) => self.forget_of_replica(&x.replica),
            Fact::IncarnationEnded(x) => self.forget_of_replica(&x.replica),
            Fact::DeploymentCreated(x) => self.forget_deployments(&x.plan),
            Fact::SessionClosed(x) => self.forget_sessions(&x.cluster),
            Fact::RequestApproved(_) | Fact::RequestEnded(_) => {
                let over =
                    |kept: &StampedEntity<FoldedRequest>| kept.is.approved.is_some() || kept.is.end.is_some();
                let over = self.requests.iter().filter(|(_, kept)| over(kept)).map(|(id, _)| *id);
                let mut over: Vec<_> = over.collect();
                over.truncate(over.len().saturating_sub(KEPT_REQUESTS));
                for id in over {
                    self.requests.remove(&id);
                }
            }
            // No other fact ends anything.
            _ => {}
        }
    }

    fn forget_of_replica(&mut self, replica: &ReplicaName) {
        let over = |kept: &StampedEntity<Incarnation>| {
            kept.is.fact.replica == *replica && matches!(kept.is.progress, IncarnationProgress::Ended(_))
        };
        let ids = self.incarnations.iter().filter(|(_, kept)| over(kept)).map(|(id, _)| *id).collect();
        for id in beyond(ids) {
            self.incarnations.remove(&id);
        }
        let over = |kept: &StampedEntity<Operation>| kept.is.replica == *replica && kept.is.end.is_some();
        let ids = self.operations.iter().filter(|(_, kept)| over(kept)).map(|(id, _)| *id).collect();
        for id in beyond(ids) {
            self.operations.remove(&id);
        }
    }

    fn forget_deployments(&mut self, plan: &PlanName) {
        let used = |name: &DeploymentName| {
            self.replicas.values().any(|replica| replica.is.plan == *plan && replica.is.deployment == *name)
        };
        let mut over: Vec<_> = self
            .deployments
            .iter()
            .filter(|((of, name), kept)| of == plan && kept.is.end.is_some() && !used(name))
            .map(|(key, kept)| (kept.is.born, key.clone()))
            .collect();
        over.sort();
        // The plan can be rolled back to deployments that completed last.
        let good = |kept: &StampedEntity<Deployment>| {
            kept.is.end == Some(DeploymentEnd::Completed) && kept.is.spec.count > 0
        };
        let mut completed: Vec<_> = self
            .deployments
            .iter()
            .filter(|((of, _), kept)| of == plan && good(kept))
            .map(|(_, kept)| kept.is.born)
            .collect();
        completed.sort();
        let last = completed.split_off(completed.len().saturating_sub(COMPLETED));
        for (born, key) in beyond(over) {
            if !last.contains(&born) {
                self.deployments.remove(&key);
            }
        }
    }

    fn forget_sessions(&mut self, cluster: &ClusterName) {
        let over = |kept: &StampedEntity<Session>| kept.is.fact.cluster == *cluster && kept.is.end.is_some();
        let ids = self.sessions.iter().filter(|(_, kept)| over(kept)).map(|(id, _)| *id).collect();
        for id in beyond(ids) {
            self.sessions.remove(&id);
        }
    }
}

/// Returns all but the last twenty.
fn beyond<T>(mut oldest_first: Vec<T>) -> Vec<T> {
    oldest_first.truncate(oldest_first.len().saturating_sub(KEPT));
    oldest_first
}

impl Deployment {
    fn progresses(&mut self, at: FactLocation) {
        if self.has_started && !self.is_ending && self.end.is_none() {
            (self.progressed, self.stalled) = (Some(at.time), None);
        }
    }
}

impl Incarnation {
    fn command(&mut self, effect: CommandEffect) {
        self.revision += 1;
        self.command = Some((effect, 1));
    }
}
