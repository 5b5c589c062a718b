//! How facts change the entities that they name.

use chancery_events::fact::{
    DeploymentCreated, Effect, Fact, IncarnationReserved, OperationApproved, OperationEnd, OperationOpened,
};
use chancery_events::id::{IncarnationId, OperationId, SessionId};
use chancery_events::name::{ClusterName, DeploymentName, PlanName, ReplicaName};
use chancery_events::spec::{Activity, NodeState, OperationKind};
use chancery_events::subject::Subject;

use super::entities::{
    At, Capability, Cluster, Deployment, Entities, Incarnation, Kept, Life, Node, Operation, Plan, Replica,
    Session, Stamps,
};

/// Of what is over, an owner keeps so many.
const KEPT: usize = 20;

impl At {
    fn stamp<T>(self, is: T) -> Kept<T> {
        let stamps = Stamps { version: 1, created: self.time, changed: self.time, position: self.position };
        Kept { stamps, is }
    }
}

/// Sets what is said of an entity; a new one if there is none.
macro_rules! apply {
    ($map:expr, $key:expr, $at:expr, |$is:ident| $change:expr, $new:expr) => {
        match $map.get_mut($key) {
            Some(kept) => {
                let $is = &mut kept.is;
                $change;
            }
            None => {
                let mut kept = $at.stamp($new);
                // The stamp for naming it comes with that for every fact.
                kept.stamps.version = 0;
                $map.insert($key.clone(), kept);
            }
        }
    };
}

impl Entities {
    pub(super) fn fold(&mut self, fact: &Fact, at: At) {
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

    fn stamps(&mut self, subject: &Subject) -> Option<&mut Stamps> {
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
        })
    }

    fn change(&mut self, fact: &Fact, at: At) {
        match fact {
            Fact::TermStarted(_)
            | Fact::LineageStarted(_)
            | Fact::IntentAccepted(_)
            | Fact::IntentRefused(_)
            | Fact::InboxRefused(_)
            | Fact::InboxAdvanced(_)
            | Fact::EntityParked(_)
            | Fact::ObjectJudged(_) => {}
            Fact::ClusterApplied(_)
            | Fact::ClusterActivityChanged(_)
            | Fact::ClusterDeleted(_)
            | Fact::CapabilityApplied(_)
            | Fact::CapabilityActivityChanged(_)
            | Fact::CapabilityDeleted(_)
            | Fact::NodeApplied(_)
            | Fact::NodeMoved(_)
            | Fact::NodeDeleted(_)
            | Fact::SessionOpened(_)
            | Fact::SessionClosed(_) => self.place(fact, at),
            Fact::PlanApplied(_)
            | Fact::PlanActivityChanged(_)
            | Fact::PlanDeleted(_)
            | Fact::PlanWaiting(_)
            | Fact::DeploymentCreated(_)
            | Fact::DeploymentStarted(_)
            | Fact::DeploymentEnding(_)
            | Fact::DeploymentEnded(_)
            | Fact::ReplicaCreated(_)
            | Fact::ReplicaDeleted(_) => self.desired(fact, at),
            Fact::OperationOpened(x) => self.opened(x, at),
            Fact::OperationApproved(x) => self.approved(x),
            Fact::OperationEnded(x) => self.close(x.operation, &x.end),
            Fact::IncarnationReserved(x) => self.reserved(x, at),
            Fact::IncarnationCommanded(_)
            | Fact::CommandFailed(_)
            | Fact::IncarnationEnsured(_)
            | Fact::IncarnationRunning(_)
            | Fact::IncarnationStatus(_)
            | Fact::IncarnationEnded(_) => self.running(fact),
        }
    }

    fn place(&mut self, fact: &Fact, at: At) {
        match fact {
            Fact::ClusterApplied(x) => {
                let new = Cluster { spec: x.spec.clone(), activity: Activity::Active };
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
                let new = Capability { spec: x.spec.clone(), activity: Activity::Active };
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
                let new = Node { spec: x.spec.clone(), state: NodeState::Unallocated, cluster: None };
                apply!(self.nodes, &x.name, at, |is| is.spec = x.spec.clone(), new);
            }
            Fact::NodeMoved(x) => {
                if let Some(node) = self.nodes.get_mut(&x.name) {
                    (node.is.state, node.is.cluster) = (x.to, x.cluster.clone());
                }
            }
            Fact::NodeDeleted(x) => {
                self.nodes.remove(&x.name);
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
            // Not one of this group.
            _ => {}
        }
    }

    fn desired(&mut self, fact: &Fact, at: At) {
        match fact {
            Fact::PlanApplied(x) => {
                let new = Plan {
                    generation: x.generation,
                    activity: Activity::Active,
                    spec: x.spec.clone(),
                    waiting: Vec::new(),
                    outcomes: Vec::new(),
                };
                let change = |is: &mut Plan| (is.generation, is.spec) = (x.generation, x.spec.clone());
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
            Fact::PlanWaiting(x) => {
                if let Some(plan) = self.plans.get_mut(&x.plan) {
                    plan.is.waiting.clone_from(&x.reasons);
                }
            }
            Fact::DeploymentCreated(DeploymentCreated { plan, name, generation, spec }) => {
                let (born, generation, spec) = (at.position, *generation, spec.clone());
                let new = Deployment { born, generation, spec, has_started: false, end: None };
                let mut kept = at.stamp(new);
                kept.stamps.version = 0;
                self.deployments.insert((plan.clone(), name.clone()), kept);
            }
            Fact::DeploymentStarted(x) => {
                if let Some(deployment) = self.deployments.get_mut(&(x.plan.clone(), x.name.clone())) {
                    deployment.is.has_started = true;
                }
            }
            // One that is ending is still in progress.
            Fact::DeploymentEnding(_) => {}
            Fact::DeploymentEnded(x) => {
                if let Some(deployment) = self.deployments.get_mut(&(x.plan.clone(), x.name.clone())) {
                    deployment.is.end = Some(x.end.clone());
                }
            }
            Fact::ReplicaCreated(x) => {
                let (plan, deployment) = (x.plan.clone(), x.deployment.clone());
                let mut kept = at.stamp(Replica { plan, deployment, approved: None, last: None });
                kept.stamps.version = 0;
                self.replicas.insert(x.name.clone(), kept);
            }
            Fact::ReplicaDeleted(x) => {
                self.replicas.remove(&x.name);
                self.incarnations.retain(|_, kept| kept.is.fact.replica != x.name);
                self.operations.retain(|_, kept| kept.is.replica != x.name);
            }
            // Not one of this group.
            _ => {}
        }
    }

    fn opened(&mut self, fact: &OperationOpened, at: At) {
        let Some(replica) = self.replicas.get(&fact.replica) else { return };
        let operation = Operation {
            replica: fact.replica.clone(),
            plan: replica.is.plan.clone(),
            kind: fact.kind,
            deployment: fact.deployment.clone(),
            proposal: fact.proposal,
            place: None,
            node: None,
            approved: None,
            end: None,
        };
        self.operations.insert(OperationId::issue(at.lineage, at.position), at.stamp(operation));
    }

    fn approved(&mut self, fact: &OperationApproved) {
        let Some(operation) = self.operations.get_mut(&fact.operation) else { return };
        let kind = operation.is.kind;
        operation.is.approved = Some(fact.by.clone());
        operation.is.place = fact.incarnation.or(operation.is.place);
        if let Some(replica) = self.replicas.get_mut(&fact.replica) {
            replica.is.approved = Some(kind);
        }
        let Some(incarnation) = fact.incarnation.and_then(|id| self.incarnations.get_mut(&id)) else {
            return;
        };
        match kind {
            OperationKind::Create | OperationKind::Start => {
                incarnation.is.life = Life::Creating;
                incarnation.is.command(Effect::Ensure);
            }
            OperationKind::Stop | OperationKind::Delete => {
                if incarnation.is.life != Life::Stopping {
                    incarnation.is.command(Effect::Stop);
                }
                incarnation.is.life = Life::Stopping;
            }
        }
    }

    fn close(&mut self, id: OperationId, end: &OperationEnd) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.is.end = Some(end.clone());
        let (kind, word, plan) = (operation.is.kind, operation.is.word(), operation.is.plan.clone());
        if let Some(plan) = self.plans.get_mut(&plan) {
            plan.is.outcomes.push((kind, word));
        }
    }

    fn reserved(&mut self, fact: &IncarnationReserved, at: At) {
        let id = IncarnationId::issue(at.lineage, at.position);
        let Some(replica) = self.replicas.get(&fact.replica) else { return };
        let plan = replica.is.plan.clone();
        let cluster = self.nodes.get(&fact.node).and_then(|node| node.is.cluster.clone());
        if let Some(operation) = self.operations.get_mut(&fact.operation) {
            operation.is.proposal = Some(fact.proposal);
            (operation.is.place, operation.is.node) = (Some(id), Some(fact.node.clone()));
        }
        let incarnation = Incarnation {
            fact: fact.clone(),
            plan: plan.clone(),
            cluster,
            life: Life::Reserved,
            processes: Vec::new(),
            revision: 0,
            command: None,
        };
        self.incarnations.insert(id, at.stamp(incarnation));
        let waits = |kept: &Kept<Operation>| kept.is.plan == plan && kept.is.word() == "preparing";
        if !self.operations.values().any(waits)
            && let Some(plan) = self.plans.get_mut(&plan)
        {
            plan.is.waiting.clear();
        }
    }

    fn running(&mut self, fact: &Fact) {
        match fact {
            Fact::IncarnationCommanded(x) => {
                if let Some(kept) = self.incarnations.get_mut(&x.incarnation) {
                    kept.is.life = Life::Stopping;
                    kept.is.command(x.effect);
                }
            }
            Fact::CommandFailed(x) => {
                if let Some(kept) = self.incarnations.get_mut(&x.incarnation) {
                    let effect = kept.is.command.map(|(effect, _)| effect).filter(|_| x.not_before.is_some());
                    kept.is.command = effect.map(|effect| (effect, x.attempt + 1));
                }
            }
            Fact::IncarnationEnsured(x) => {
                if let Some(kept) = self.incarnations.get_mut(&x.incarnation) {
                    (kept.is.life, kept.is.command) = (Life::Starting, None);
                    kept.is.processes.clone_from(&x.processes);
                }
            }
            Fact::IncarnationRunning(x) => {
                if let Some(kept) = self.incarnations.get_mut(&x.incarnation) {
                    (kept.is.life, kept.is.command) = (Life::Running, None);
                    kept.is.processes.clone_from(&x.processes);
                }
                if let Some(operation) = x.operation {
                    self.close(operation, &OperationEnd::Succeeded);
                }
            }
            Fact::IncarnationStatus(x) => {
                if let Some(kept) = self.incarnations.get_mut(&x.incarnation) {
                    kept.is.processes.clone_from(&x.processes);
                }
            }
            Fact::IncarnationEnded(x) => {
                if let Some(kept) = self.incarnations.get_mut(&x.incarnation) {
                    (kept.is.life, kept.is.command) = (Life::Over(x.end.clone()), None);
                    if !x.processes.is_empty() {
                        kept.is.processes.clone_from(&x.processes);
                    }
                }
                if let Some(replica) = self.replicas.get_mut(&x.replica) {
                    replica.is.last = Some(x.end.clone());
                }
                if let Some(operation) = x.displaces.and_then(|id| self.operations.get_mut(&id)) {
                    (operation.is.proposal, operation.is.place, operation.is.node) = (None, None, None);
                }
            }
            // Not one of this group.
            _ => {}
        }
    }

    /// Lets go of the oldest that are over, where the fact may have made them too many.
    fn forget(&mut self, fact: &Fact) {
        match fact {
            Fact::OperationEnded(x) => self.forget_of_replica(&x.replica),
            Fact::IncarnationRunning(x) => self.forget_of_replica(&x.replica),
            Fact::IncarnationEnded(x) => self.forget_of_replica(&x.replica),
            Fact::DeploymentEnded(x) => self.forget_deployments(&x.plan),
            Fact::SessionClosed(x) => self.forget_sessions(&x.cluster),
            // Nothing is over by any other.
            _ => {}
        }
    }

    fn forget_of_replica(&mut self, replica: &ReplicaName) {
        let over = |kept: &Kept<Incarnation>| {
            kept.is.fact.replica == *replica && matches!(kept.is.life, Life::Over(_))
        };
        let ids = self.incarnations.iter().filter(|(_, kept)| over(kept)).map(|(id, _)| *id).collect();
        for id in beyond(ids) {
            self.incarnations.remove(&id);
        }
        let over = |kept: &Kept<Operation>| kept.is.replica == *replica && kept.is.end.is_some();
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
        for (_, key) in beyond(over) {
            self.deployments.remove(&key);
        }
    }

    fn forget_sessions(&mut self, cluster: &ClusterName) {
        let over = |kept: &Kept<Session>| kept.is.fact.cluster == *cluster && kept.is.end.is_some();
        let ids = self.sessions.iter().filter(|(_, kept)| over(kept)).map(|(id, _)| *id).collect();
        for id in beyond(ids) {
            self.sessions.remove(&id);
        }
    }
}

/// All but the last twenty.
fn beyond<T>(mut oldest_first: Vec<T>) -> Vec<T> {
    oldest_first.truncate(oldest_first.len().saturating_sub(KEPT));
    oldest_first
}

impl Incarnation {
    fn command(&mut self, effect: Effect) {
        self.revision += 1;
        self.command = Some((effect, 1));
    }
}
