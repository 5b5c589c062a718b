//! What follows from the tables, kept so that a step costs what it changes and never a scan.
//!
//! Nothing here stands in events or snapshots; a test compares it with a full count.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::Hash;
use std::ops::Bound;
use std::sync::Arc;

use chancery_events::id::{IncarnationId, OperationId, Position};
use chancery_events::name::{ClusterName, DeploymentName, DomainName, NodeName, PlanName, ReplicaName};
use chancery_events::time::Time;
use rustc_hash::FxHashMap;

use crate::marks::{DeploymentMarks, IncarnationMarks, OperationMarks, PlanMarks, ReplicaMarks, Stage, Turn};
use crate::places::{Holding, Places};
use crate::state::{Capability, Cluster, Node};

/// What has a deadline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Alarm {
    /// An operation that waits for approval.
    Operation(OperationId),
    /// An incarnation that starts or stops.
    Incarnation(IncarnationId),
}

/// How many of each. For looking up: nothing here depends on an order.
#[derive(Clone, PartialEq, Eq)]
pub struct Tally<K: Eq + Hash>(FxHashMap<K, u32>);

impl<K: Clone + Eq + Hash> Tally<K> {
    /// How many.
    pub fn get(&self, key: &K) -> u32 {
        self.0.get(key).copied().unwrap_or(0)
    }

    fn step(&mut self, key: &K, up: bool) {
        match (self.0.get_mut(key), up) {
            (Some(count), true) => *count += 1,
            (Some(count), false) if *count > 1 => *count -= 1,
            (Some(_), false) => {
                self.0.remove(key);
            }
            (None, true) => {
                self.0.insert(key.clone(), 1);
            }
            (None, false) => {}
        }
    }
}

impl<K: Eq + Hash> Default for Tally<K> {
    fn default() -> Tally<K> {
        Tally(FxHashMap::default())
    }
}

impl<K: Eq + Hash + Ord + fmt::Debug> fmt::Debug for Tally<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().collect::<BTreeMap<_, _>>()).finish()
    }
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
    /// How many replicas it has.
    pub replicas: u32,
    /// How many of them are not going.
    pub present: u32,
    /// Those that should run, do not, and nothing is being done about it.
    pub idle: BTreeSet<ReplicaName>,
    /// Those not going, by health (bad first) and domain: whom to take when there are too many.
    candidates: BTreeMap<(bool, Option<DomainName>), BTreeSet<Newest>>,
    /// How many hold a place, by node.
    pub hosts: Tally<NodeName>,
    /// How many hold a place, by update domain.
    pub domains: Tally<DomainName>,
    /// The same until a domain has one less.
    pub eased: Arc<()>,
    /// Operations without a place, by the deployment that says what they need: those of one need alike.
    pub unplaced: BTreeMap<DeploymentName, BTreeSet<OperationId>>,
    /// Operations that are not over.
    pub open: u32,
}

impl PlanIndex {
    /// Whom to take when there are too many: unhealthy ones first, then in the fullest domain (of several as full, the
    /// first by name), then the newest there, then by name. The same journal gives the same choice.
    pub fn victim(&self) -> Option<&ReplicaName> {
        let healthy = self.candidates.keys().next()?.0;
        let fullness =
            |domain: &Option<DomainName>| domain.as_ref().map_or(0, |domain| self.domains.get(domain));
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
        self.inventory_after(cluster, None)
    }

    /// Those of them behind one, in the order of their issue.
    pub fn inventory_after(
        &self,
        cluster: &ClusterName,
        after: Option<IncarnationId>,
    ) -> impl Iterator<Item = IncarnationId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.commanded.get(cluster).into_iter();
        all.flat_map(move |all| all.range((from, Bound::Unbounded))).copied()
    }

    pub(crate) fn cluster(&mut self, new: Option<&Cluster>) {
        self.places.reshape();
        if let Some(new) = new {
            self.grown = self.grown.max(new.meta.changed.position);
        }
    }

    pub(crate) fn capability(&mut self, new: Option<&Capability>) {
        self.places.reshape();
        if let Some(new) = new {
            self.grown = self.grown.max(new.meta.changed.position);
        }
    }

    pub(crate) fn node(&mut self, old: Option<&Node>, new: Option<&Node>) {
        let Some(name) = new.or(old).map(|node| &node.name) else { return };
        let was = self.places.is_expunged(name);
        self.places.node(name, new);
        let gone = self.places.is_expunged(name);
        if let Some(new) = new {
            self.grown = self.grown.max(new.meta.changed.position);
            if gone != was {
                for incarnation in self.places.incarnations(name) {
                    mark(&mut self.lost, incarnation, gone);
                }
            }
        }
    }

    pub(crate) fn plan(&mut self, old: Option<&PlanMarks>, new: Option<&PlanMarks>) {
        let Some(this) = new.or(old) else { return };
        self.with_plan(&this.name, |index| {
            index.current = new.and_then(|plan| plan.current.clone());
            index.waiting = new.is_some_and(|plan| plan.waiting);
            index.parked = new.is_some_and(|plan| plan.parked);
        });
    }

    pub(crate) fn deployment(&mut self, old: Option<&DeploymentMarks>, new: Option<&DeploymentMarks>) {
        let (stage, count) = new.map_or((None, 0), |new| (Some(new.stage), new.count));
        let Some(this) = new.or(old) else { return };
        self.with_deployment(&this.plan, &this.name, |_, index| {
            (index.state, index.count) = (stage, count);
        });
    }

    pub(crate) fn replica(&mut self, old: Option<&ReplicaMarks>, new: Option<&ReplicaMarks>) {
        // Its number changes when it comes or goes, or moves to another deployment; the rest more often.
        let both = old.zip(new);
        let same = both.is_some_and(|(old, new)| old.deployment == new.deployment);
        let stays = both.is_some_and(|(old, new)| old.place == new.place);
        for (replica, up) in old.map(|r| (r, false)).into_iter().chain(new.map(|r| (r, true))) {
            self.with_deployment(&replica.plan, &replica.deployment, |plan, deployment| {
                let by = |count: &mut u32| if up { *count += 1 } else { *count -= 1 };
                if !same {
                    by(&mut plan.replicas);
                    by(&mut deployment.replicas);
                }
                if !replica.going {
                    by(&mut plan.present);
                    by(&mut deployment.present);
                    let newest = (Reverse(replica.created), replica.name.clone());
                    let domain = replica.place.as_ref().map(|(_, domain)| domain.clone());
                    let key = (replica.healthy, domain);
                    let set = match plan.candidates.get_mut(&key) {
                        Some(set) => set,
                        None => plan.candidates.entry(key.clone()).or_default(),
                    };
                    mark(set, newest, up);
                    if set.is_empty() {
                        plan.candidates.remove(&key);
                    }
                }
                if replica.idle {
                    mark(&mut plan.idle, replica.name.clone(), up);
                }
                if let Some((node, domain)) = replica.place.as_ref().filter(|_| !stays) {
                    plan.hosts.step(node, up);
                    plan.domains.step(domain, up);
                    if !up {
                        plan.eased = Arc::new(());
                    }
                }
            });
        }
    }

    pub(crate) fn operation(&mut self, old: Option<&OperationMarks>, new: Option<&OperationMarks>) {
        for (operation, up) in old.map(|o| (o, false)).into_iter().chain(new.map(|o| (o, true))) {
            let id = operation.id;
            if let Turn::Waiting { until } = operation.turn {
                mark(&mut self.alarms, (until, Alarm::Operation(id)), up);
            }
            let how = |plan: &mut PlanIndex, deployment: Option<&mut DeploymentIndex>| {
                if operation.turn == Turn::Preparing {
                    let group = match plan.unplaced.get_mut(&operation.version) {
                        Some(group) => group,
                        None => plan.unplaced.entry(operation.version.clone()).or_default(),
                    };
                    mark(group, id, up);
                    if group.is_empty() {
                        plan.unplaced.remove(&operation.version);
                    }
                }
                if operation.turn != Turn::Over {
                    if up { plan.open += 1 } else { plan.open -= 1 }
                }
                let Some(deployment) = deployment else { return };
                match operation.turn {
                    Turn::Preparing | Turn::Waiting { .. } => mark(&mut deployment.unstarted, id, up),
                    Turn::Running => mark(&mut deployment.running, id, up),
                    Turn::Over => {}
                }
            };
            match &operation.deployment {
                Some(name) => self.with_deployment(&operation.plan, name, |plan, of| how(plan, Some(of))),
                None => self.with_plan(&operation.plan, |plan| how(plan, None)),
            }
        }
    }

    /// `at`: when the change was.
    pub(crate) fn incarnation(
        &mut self,
        old: Option<&IncarnationMarks>,
        new: Option<&IncarnationMarks>,
        at: Position,
    ) {
        let live = |marks: Option<&IncarnationMarks>| marks.is_some_and(|marks| marks.live);
        if live(old) && new.is_some_and(|new| !new.live) {
            self.grown = self.grown.max(at);
        }
        if live(old) != live(new)
            && let Some(this) = new.or(old)
        {
            let IncarnationMarks { id, node, amounts, volumes, .. } = this;
            let holding = Holding { incarnation: *id, node, amounts: *amounts, volumes };
            self.places.hold(&holding, live(new));
            let lost = live(new) && self.places.is_expunged(node);
            mark(&mut self.lost, *id, lost);
        }
        let deadline = |marks: Option<&IncarnationMarks>| marks.and_then(|marks| marks.deadline);
        let outstanding = |marks: Option<&IncarnationMarks>| marks.and_then(|marks| marks.outstanding);
        for (marks, other, up) in [(old, new, false), (new, old, true)] {
            let Some(marks) = marks else { continue };
            if let Some(when) = marks.deadline.filter(|_| deadline(other) != marks.deadline) {
                mark(&mut self.alarms, (when, Alarm::Incarnation(marks.id)), up);
            }
            if let Some(when) = marks.outstanding.filter(|_| outstanding(other) != marks.outstanding) {
                mark(&mut self.outstanding, (when, marks.id), up);
            }
            if marks.commanded && !other.is_some_and(|other| other.commanded) {
                let set = match self.commanded.get_mut(&marks.cluster) {
                    Some(set) => set,
                    None => self.commanded.entry(marks.cluster.clone()).or_default(),
                };
                mark(set, marks.id, up);
                if set.is_empty() {
                    self.commanded.remove(&marks.cluster);
                }
            }
        }
    }

    fn with_plan(&mut self, name: &PlanName, how: impl FnOnce(&mut PlanIndex)) {
        let index = match self.plans.get_mut(name) {
            Some(index) => index,
            None => self.plans.entry(name.clone()).or_default(),
        };
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
            let mut deployments = std::mem::take(&mut index.deployments);
            let deployment = match deployments.get_mut(name) {
                Some(deployment) => deployment,
                None => deployments.entry(name.clone()).or_default(),
            };
            how(index, deployment);
            if *deployment == DeploymentIndex::default() {
                deployments.remove(name);
            }
            index.deployments = deployments;
        });
    }
}

fn mark_name(set: &mut BTreeSet<PlanName>, name: &PlanName, up: bool) {
    if set.contains(name) != up {
        mark(set, name.clone(), up);
    }
}
