//! What follows from the tables, kept so that a step costs what it changes and never a scan.
//!
//! Nothing here stands in events or snapshots; a test compares it with a full count.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use chancery_events::fact::DeploymentEnd;
use chancery_events::id::{IncarnationId, OperationId, Position};
use chancery_events::name::{ClusterName, DeploymentName, DomainName, NodeName, PlanName, ReplicaName};
use chancery_events::time::Time;

use crate::places::Places;
use crate::state::{
    Capability, Cluster, Deployment, DeploymentState, Incarnation, IncarnationState, Node, Operation,
    OperationState, Plan, Replica, Session,
};

/// What has a deadline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Alarm {
    /// An operation that waits for approval.
    Operation(OperationId),
    /// An incarnation that starts or stops.
    Incarnation(IncarnationId),
}

/// What is counted of a deployment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DeploymentIndex {
    /// Its own state, if it exists.
    state: Option<Stage>,
    count: u32,
    /// Its operations that are not approved.
    pub unstarted: BTreeSet<OperationId>,
    /// Its operations that run.
    pub running: BTreeSet<OperationId>,
    /// Replicas that run by it, and are not going.
    pub present: u32,
    /// Replicas that run by it.
    pub replicas: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Pending,
    InProgress,
    Ending,
    Over,
}

/// Newest first, then by name.
type Newest = (Reverse<Position>, ReplicaName);

/// What is counted of a plan.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PlanIndex {
    current: Option<DeploymentName>,
    waiting: bool,
    parked: bool,
    /// Its deployments.
    pub deployments: BTreeMap<DeploymentName, DeploymentIndex>,
    /// Its replicas.
    pub replicas: BTreeSet<ReplicaName>,
    /// How many of them are not going.
    pub present: u32,
    /// Those that should run, do not, and nothing is being done about it.
    pub idle: BTreeSet<ReplicaName>,
    /// Those not going, by health (bad first) and domain: whom to take when there are too many.
    candidates: BTreeMap<(bool, Option<DomainName>), BTreeSet<Newest>>,
    /// How many hold a place, by node.
    pub hosts: BTreeMap<NodeName, u32>,
    /// How many hold a place, by update domain.
    pub domains: BTreeMap<DomainName, u32>,
    /// Operations without a place, by the deployment that says what they need: those of one need alike.
    pub unplaced: BTreeMap<DeploymentName, BTreeSet<OperationId>>,
    /// Operations that are not over.
    pub open: u32,
}

impl PlanIndex {
    /// Whom to take when there are too many: unhealthy ones first, then in the fullest domain, then the newest,
    /// then by name. The same journal gives the same choice.
    pub fn victim(&self) -> Option<&ReplicaName> {
        let healthy = self.candidates.keys().next()?.0;
        let fullness = |domain: &Option<DomainName>| {
            domain.as_ref().and_then(|domain| self.domains.get(domain)).copied().unwrap_or(0)
        };
        let (_, replicas) = self
            .candidates
            .iter()
            .filter(|((health, _), _)| *health == healthy)
            .max_by_key(|((_, domain), _)| (fullness(domain), Reverse(domain.clone())))?;
        replicas.first().map(|(_, name)| name)
    }

    /// Whether [`crate::advance`] can do something for the plan's deployments.
    fn is_due(&self) -> bool {
        if self.parked {
            return false;
        }
        let Some(current) = &self.current else { return self.waiting };
        let Some(deployment) = self.deployments.get(current) else { return false };
        let open = !deployment.unstarted.is_empty() || !deployment.running.is_empty();
        match deployment.state {
            Some(Stage::Ending) => !deployment.unstarted.is_empty() || !open,
            Some(Stage::InProgress) => self.present != deployment.count || !self.idle.is_empty() || !open,
            Some(Stage::Pending | Stage::Over) | None => false,
        }
    }

    fn is_empty(&self) -> bool {
        *self == PlanIndex::default()
    }
}

/// Everything that follows from the tables.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// Nodes by what placement asks of them.
    pub places: Places,
    /// By plan.
    plans: BTreeMap<PlanName, PlanIndex>,
    /// Plans for which there is something to do.
    pub due: BTreeSet<PlanName>,
    /// Plans with operations that wait for a place.
    pub unplaced: BTreeSet<PlanName>,
    /// Deadlines.
    pub alarms: BTreeSet<(Time, Alarm)>,
    /// Commands without an outcome, by the time before which they are not sent.
    pub outstanding: BTreeSet<(Time, IncarnationId)>,
    /// Incarnations that were ever commanded and are not over, by cluster: the desired inventory.
    commanded: BTreeMap<ClusterName, BTreeSet<IncarnationId>>,
    /// Incarnations that are not over on nodes that are gone.
    pub lost: BTreeSet<IncarnationId>,
    /// The last position at which capacity may have grown.
    pub grown: Position,
}

fn step<K: Ord + Clone>(counts: &mut BTreeMap<K, u32>, key: &K, up: bool) {
    if up {
        *counts.entry(key.clone()).or_default() += 1;
    } else if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

fn mark<T: Ord>(set: &mut BTreeSet<T>, item: T, up: bool) {
    if up {
        set.insert(item);
    } else {
        set.remove(&item);
    }
}

impl Index {
    /// What is counted of a plan.
    pub fn plan_index(&self, plan: &PlanName) -> Option<&PlanIndex> {
        self.plans.get(plan)
    }

    /// The incarnations that an executor of the cluster should know.
    pub fn inventory(&self, cluster: &ClusterName) -> impl Iterator<Item = IncarnationId> {
        self.commanded.get(cluster).into_iter().flatten().copied()
    }

    pub(crate) fn cluster(&mut self, _old: Option<&Cluster>, new: Option<&Cluster>) {
        if let Some(new) = new {
            self.grown = self.grown.max(new.meta.changed.position);
        }
    }

    pub(crate) fn capability(&mut self, _old: Option<&Capability>, new: Option<&Capability>) {
        if let Some(new) = new {
            self.grown = self.grown.max(new.meta.changed.position);
        }
    }

    pub(crate) fn node(&mut self, old: Option<&Node>, new: Option<&Node>) {
        self.places.node(old, new);
        if let Some(new) = new {
            self.grown = self.grown.max(new.meta.changed.position);
            let gone = new.state == chancery_events::spec::NodeState::Expunged;
            let was = old.is_some_and(|old| old.state == chancery_events::spec::NodeState::Expunged);
            if gone && !was {
                self.lost.extend(self.places.incarnations(&new.name));
            } else if was && !gone {
                for incarnation in self.places.incarnations(&new.name).collect::<Vec<_>>() {
                    self.lost.remove(&incarnation);
                }
            }
        }
    }

    #[expect(clippy::unused_self, reason = "every table has its index; sessions are few and need none")]
    pub(crate) fn session(&mut self, _old: Option<&Session>, _new: Option<&Session>) {}

    pub(crate) fn plan(&mut self, old: Option<&Plan>, new: Option<&Plan>) {
        let Some(name) = new.or(old).map(|plan| plan.name.clone()) else { return };
        self.with_plan(&name, |index| {
            index.current = new.and_then(|plan| plan.current.clone());
            index.waiting = new.is_some_and(|plan| plan.next.is_some());
            index.parked = new.is_some_and(|plan| plan.parked.is_some());
        });
    }

    pub(crate) fn deployment(&mut self, old: Option<&Deployment>, new: Option<&Deployment>) {
        let Some(this) = new.or(old) else { return };
        let stage = new.map(|deployment| match &deployment.state {
            DeploymentState::Pending => Stage::Pending,
            DeploymentState::InProgress => Stage::InProgress,
            DeploymentState::Ending(
                DeploymentEnd::Failed { .. }
                | DeploymentEnd::Cancelled
                | DeploymentEnd::Completed
                | DeploymentEnd::Superseded { .. },
            ) => Stage::Ending,
            DeploymentState::Ended(_) => Stage::Over,
        });
        let count = new.map_or(0, |deployment| deployment.spec.count);
        self.with_deployment(&this.plan, &this.name, |_, index| {
            index.state = stage;
            index.count = count;
        });
    }

    pub(crate) fn replica(&mut self, old: Option<&Replica>, new: Option<&Replica>) {
        // What is indexed of it: most facts about a replica change none of that.
        let marks = |r: &Replica| (r.active.clone(), r.is_going(), r.is_idle(), r.deployment.clone());
        if old.is_some() && old.map(marks) == new.map(marks) {
            return;
        }
        for (replica, up) in old.map(|r| (r, false)).into_iter().chain(new.map(|r| (r, true))) {
            let newest = (Reverse(replica.meta.created.position), replica.name.clone());
            let health = replica.active.as_ref().is_some_and(|active| active.healthy);
            let domain = replica.active.as_ref().map(|active| active.domain.clone());
            self.with_deployment(&replica.plan, &replica.deployment, |plan, deployment| {
                let by = |count: &mut u32| if up { *count += 1 } else { *count -= 1 };
                mark(&mut plan.replicas, replica.name.clone(), up);
                by(&mut deployment.replicas);
                if !replica.is_going() {
                    by(&mut plan.present);
                    by(&mut deployment.present);
                    let key = (health, domain);
                    let set = plan.candidates.entry(key.clone()).or_default();
                    mark(set, newest, up);
                    if set.is_empty() {
                        plan.candidates.remove(&key);
                    }
                }
                if replica.is_idle() {
                    mark(&mut plan.idle, replica.name.clone(), up);
                }
                if let Some(active) = &replica.active {
                    step(&mut plan.hosts, &active.node, up);
                    step(&mut plan.domains, &active.domain, up);
                }
            });
        }
    }

    pub(crate) fn operation(&mut self, old: Option<&Operation>, new: Option<&Operation>) {
        for (operation, up) in old.map(|o| (o, false)).into_iter().chain(new.map(|o| (o, true))) {
            let id = operation.id;
            let (unplaced, unstarted, running) = match &operation.state {
                OperationState::Preparing => (true, true, false),
                OperationState::PendingApproval(proposal) => {
                    mark(&mut self.alarms, (proposal.expires, Alarm::Operation(id)), up);
                    (false, true, false)
                }
                OperationState::Running(_) => (false, false, true),
                OperationState::Ended(_) => (false, false, false),
            };
            if let Some(name) = &operation.deployment {
                self.with_deployment(&operation.plan, name, |_, deployment| {
                    if unstarted {
                        mark(&mut deployment.unstarted, id, up);
                    }
                    if running {
                        mark(&mut deployment.running, id, up);
                    }
                });
            }
            self.with_plan(&operation.plan, |plan| {
                if unplaced {
                    let group = plan.unplaced.entry(operation.version.clone()).or_default();
                    mark(group, id, up);
                    if group.is_empty() {
                        plan.unplaced.remove(&operation.version);
                    }
                }
                if unstarted || running {
                    if up { plan.open += 1 } else { plan.open -= 1 }
                }
            });
        }
    }

    pub(crate) fn incarnation(&mut self, old: Option<&Incarnation>, new: Option<&Incarnation>) {
        if let (Some(old), Some(new)) = (old, new)
            && old.is_live()
            && !new.is_live()
        {
            self.grown = self.grown.max(new.meta.changed.position);
        }
        // The rest of what is indexed never changes.
        let marks = |i: &Incarnation| {
            let reserved = i.state == IncarnationState::Reserved;
            (i.is_live(), reserved, i.deadline, i.command.map(|command| command.not_before))
        };
        if old.is_some() && old.map(marks) == new.map(marks) {
            return;
        }
        for (incarnation, up) in old.map(|i| (i, false)).into_iter().chain(new.map(|i| (i, true))) {
            let id = incarnation.id;
            if !incarnation.is_live() {
                continue;
            }
            self.places.hold(incarnation, up);
            if let Some(deadline) = incarnation.deadline {
                mark(&mut self.alarms, (deadline, Alarm::Incarnation(id)), up);
            }
            if let Some(command) = &incarnation.command {
                mark(&mut self.outstanding, (command.not_before, id), up);
            }
            if incarnation.state != IncarnationState::Reserved {
                let set = self.commanded.entry(incarnation.cluster.clone()).or_default();
                mark(set, id, up);
                if set.is_empty() {
                    self.commanded.remove(&incarnation.cluster);
                }
            }
            if !up {
                self.lost.remove(&id);
            } else if self.places.is_expunged(&incarnation.node) {
                self.lost.insert(id);
            }
        }
    }

    fn with_plan(&mut self, name: &PlanName, how: impl FnOnce(&mut PlanIndex)) {
        let index = self.plans.entry(name.clone()).or_default();
        how(index);
        let (due, unplaced, empty) = (index.is_due(), !index.unplaced.is_empty(), index.is_empty());
        mark_name(&mut self.due, name, due);
        mark_name(&mut self.unplaced, name, unplaced);
        if empty {
            self.plans.remove(name);
        }
    }

    fn with_deployment(
        &mut self,
        plan: &PlanName,
        name: &DeploymentName,
        how: impl FnOnce(&mut PlanIndex, &mut DeploymentIndex),
    ) {
        self.with_plan(plan, |index| {
            let mut deployment = index.deployments.remove(name).unwrap_or_default();
            how(index, &mut deployment);
            if deployment != DeploymentIndex::default() {
                index.deployments.insert(name.clone(), deployment);
            }
        });
    }
}

fn mark_name(set: &mut BTreeSet<PlanName>, name: &PlanName, up: bool) {
    if set.contains(name) != up {
        mark(set, name.clone(), up);
    }
}
