//! What follows from the tables, kept so that a step costs what it changes and never a scan.
//!
//! Nothing here stands in events or snapshots; a test compares it with a full count.

mod plan;
mod policies;
mod spread;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::Hash;
use std::ops::{Bound, Deref, DerefMut};
use std::sync::Arc;

use chancery_events::id::{IncarnationId, Lineage, ObjectId, OperationId, Position, RequestId};
use chancery_events::name::{
    ClusterName, DeploymentName, DisruptionName, DomainName, GroupName, NodeName, PlanName, ReplicaName,
};
use chancery_events::spec::{DisruptionState, Evict, PlanPolicy};
use chancery_events::subject::Subject;
use chancery_events::time::Time;
use rustc_hash::FxHashMap;

use crate::deployment;
use crate::fleet::DeploymentKey;
use crate::marks::{
    DeploymentMarks, IncarnationMarks, OperationMarks, PlanMarks, ReplicaMarks, RequestMarks, Stage, Turn,
    VolumeMarks,
};
use crate::places::{Holding, Places};
use crate::state::{
    ApprovalRequest, Capability, Cluster, Deployment, Incarnation, Node, Operation, Plan, Policy, Replica,
};

pub(crate) use plan::Victims;
pub use plan::{DeploymentIndex, PlanIndex, Queue, Queues};
pub use policies::{Policies, PolicyIndex};
use spread::ReplicaMoves;
pub use spread::{DomainCount, NodeCount, PlanSpread};
pub use volumes::Volumes;

/// What has a deadline.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Alarm {
    /// An operation that waits for approval.
    Operation(OperationId),
    /// An incarnation that starts or stops.
    Incarnation(IncarnationId),
    /// A deployment whose new set must be ready.
    Deployment(Box<DeploymentKey>),
    /// A plan whose deployment must make progress.
    Progress(PlanName),
    /// An approval request that waits.
    Request(RequestId),
}

/// Approval requests.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Requests {
    /// Those that wait, by their target: one each, but within a commit that supersedes one.
    pub open: BTreeSet<(Subject, String, RequestId)>,
    /// Those that ended.
    pub ended: BTreeSet<RequestId>,
}

impl Requests {
    /// The one that waits for the target.
    pub(crate) fn waiting(&self, target: &(Subject, String)) -> Option<RequestId> {
        let first = RequestId::issue(Lineage::from_random(0), Position::ZERO);
        let from = (target.0.clone(), target.1.clone(), first);
        let found = self.open.range(from..).next()?;
        (found.0 == target.0 && found.1 == target.1).then_some(found.2)
    }
}

/// Work that is due at a time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Timer {
    /// A replica that its plan's rule starts again.
    Replica(ReplicaName),
    /// A deployment that goes on after a pause.
    Plan(PlanName),
}

/// For looking up: nothing depends on an order.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Lookup<K: Eq + Hash, V>(FxHashMap<K, V>);

impl<K: Eq + Hash, V> Deref for Lookup<K, V> {
    type Target = FxHashMap<K, V>;
    fn deref(&self) -> &FxHashMap<K, V> {
        &self.0
    }
}

impl<K: Eq + Hash, V> DerefMut for Lookup<K, V> {
    fn deref_mut(&mut self) -> &mut FxHashMap<K, V> {
        &mut self.0
    }
}

impl<K: Eq + Hash, V> Default for Lookup<K, V> {
    fn default() -> Lookup<K, V> {
        Lookup(FxHashMap::default())
    }
}

impl<K: Eq + Hash + Ord + fmt::Debug, V: fmt::Debug> fmt::Debug for Lookup<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().collect::<BTreeMap<_, _>>()).finish()
    }
}

/// How many of each.
#[derive(Clone, PartialEq, Eq)]
pub struct Tally<K: Eq + Hash>(Lookup<K, u32>);

impl<K: Clone + Eq + Hash> Tally<K> {
    /// How many.
    pub fn get(&self, key: &K) -> u32 {
        self.0.get(key).copied().unwrap_or(0)
    }

    /// Each of which there is any, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
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
        Tally(Lookup::default())
    }
}

impl<K: Eq + Hash + Ord + fmt::Debug> fmt::Debug for Tally<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Everything that follows from the tables.
#[derive(Clone, Debug, Default)]
pub struct Index {
    /// Nodes by what placement asks of them.
    pub places: Places,
    /// By plan.
    plans: Lookup<PlanName, PlanIndex>,
    /// Plans for which there is something to do.
    pub due: BTreeSet<PlanName>,
    /// Plans with operations that wait for a place.
    pub unplaced: BTreeSet<PlanName>,
    /// Plans with places that are only held and were found by an earlier policy.
    pub outdated: BTreeSet<PlanName>,
    /// Plans at rest whose spread may be uneven, or was found to be.
    pub crowded: BTreeSet<PlanName>,
    /// Plans that are being rebalanced.
    pub rebalancing: BTreeSet<PlanName>,
    /// Deadlines.
    pub alarms: BTreeSet<(Time, Alarm)>,
    /// Work that is due later.
    pub timers: BTreeSet<(Time, Timer)>,
    /// Policies, and what waits for them.
    pub policies: Policies,
    /// Nodes of which a disruption is approved.
    pub disturbed: BTreeSet<NodeName>,
    /// Approved disruptions that empty their nodes, by when they begin to, and by update domain.
    pub evicting: BTreeSet<(Time, Position, DomainName, NodeName, DisruptionName)>,
    /// Plans of which no disruption moves a replica before a time, since a move failed.
    pub setbacks: BTreeSet<(Time, PlanName)>,
    /// How many replicas of a group hold a place, by node.
    groups: BTreeMap<GroupName, Tally<NodeName>>,
    /// Commands without an outcome, by the time before which they are not sent.
    pub outstanding: BTreeSet<(Time, ObjectId)>,
    /// Volumes, and incarnations that were ever commanded and are not over, by cluster: the desired inventory.
    commanded: BTreeMap<ClusterName, BTreeSet<ObjectId>>,
    /// Volumes, and what waits for them.
    pub volumes: Volumes,
    /// Approval requests.
    pub requests: Requests,
    /// Incarnations that are not over on nodes that are gone.
    pub lost: BTreeSet<IncarnationId>,
    /// The last position at which capacity may have grown.
    pub grown: Position,
}

pub(crate) fn mark<T: Ord>(set: &mut BTreeSet<T>, item: T, up: bool) {
    if up {
        set.insert(item);
    } else {
        set.remove(&item);
    }
}

/// The index of a plan, made if there is none; its name is cloned only then.
macro_rules! plan_index {
    ($plans:expr, $name:expr) => {
        match $plans.get_mut($name) {
            Some(index) => index,
            None => $plans.entry($name.clone()).or_default(),
        }
    };
}

impl Index {
    /// What is counted of a plan.
    pub fn plan_index(&self, plan: &PlanName) -> Option<&PlanIndex> {
        self.plans.get(plan)
    }

    /// What an executor of the cluster should know.
    pub fn inventory(&self, cluster: &ClusterName) -> impl Iterator<Item = ObjectId> {
        self.inventory_after(cluster, None)
    }

    /// Those of them behind one: volumes, then incarnations, in the order of their issue.
    pub fn inventory_after(
        &self,
        cluster: &ClusterName,
        after: Option<ObjectId>,
    ) -> impl Iterator<Item = ObjectId> {
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
        for (node, up) in old.map(|node| (node, false)).into_iter().chain(new.map(|node| (node, true))) {
            self.disturb(node, up);
        }
        self.places.node(name, new);
        let gone = self.places.is_expunged(name);
        if let Some(new) = new {
            self.grown = self.grown.max(new.meta.changed.position);
        }
        if gone != was {
            for incarnation in self.places.incarnations(name) {
                mark(&mut self.lost, incarnation, gone);
            }
            self.volumes.node(name, gone);
        }
    }

    fn disturb(&mut self, node: &Node, up: bool) {
        if !node.is_undisturbed() {
            mark(&mut self.disturbed, node.name.clone(), up);
        }
        for (name, disruption) in &node.disruptions {
            if disruption.state == DisruptionState::Approved && disruption.spec.evict != Evict::No {
                let from = disruption.since.time.max(disruption.spec.start.unwrap_or(Time::EPOCH));
                let approved = disruption.since.position;
                let key = (from, approved, node.spec.domain.clone(), node.name.clone(), name.clone());
                mark(&mut self.evicting, key, up);
            }
        }
    }

    /// How many replicas of the group hold a place on each node.
    pub fn group(&self, group: &GroupName) -> Option<&Tally<NodeName>> {
        self.groups.get(group)
    }

    pub(crate) fn policy(&mut self, old: Option<&Policy>, new: Option<&Policy>) {
        if let Some(name) = new.or(old).map(|policy| &policy.name) {
            self.policies.policy(name, new.map(|policy| &policy.spec));
        }
    }

    pub(crate) fn request(
        &mut self,
        this: &ApprovalRequest,
        old: Option<&RequestMarks>,
        new: Option<&RequestMarks>,
    ) {
        for (marks, up) in [(old, false), (new, true)] {
            let Some(marks) = marks else { continue };
            let Some(until) = marks.waits_until else {
                mark(&mut self.requests.ended, this.id, up);
                continue;
            };
            mark(&mut self.alarms, (until, Alarm::Request(this.id)), up);
            let (subject, what) = this.change.target();
            mark(&mut self.requests.open, (subject, what, this.id), up);
        }
    }

    pub(crate) fn plan(&mut self, this: &Plan, old: Option<&PlanMarks>, new: Option<&PlanMarks>) {
        for (marks, up) in [(old, false), (new, true)] {
            if let Some(until) = marks.and_then(|marks| marks.setback) {
                mark(&mut self.setbacks, (until, this.name.clone()), up);
            }
            if marks.is_some_and(|marks| marks.rebalancing) {
                mark(&mut self.rebalancing, this.name.clone(), up);
            }
        }
        let (was, is) = (old.map(|marks| &marks.spec), new.map(|marks| &marks.spec));
        let edited = match (was, is) {
            (Some(was), Some(is)) => !Arc::ptr_eq(was, is),
            (was, is) => was.is_some() || is.is_some(),
        };
        if edited {
            self.regroup(&this.name, is.map(PlanPolicy::of));
            // Another policy may allow what waits.
            self.grown = self.grown.max(this.meta.changed.position);
        }
        self.with_plan(&this.name, |index| index.plan(new));
    }

    /// The plan's replicas are of the groups that its policy names now: costs what it has, once for an edit of them.
    fn regroup(&mut self, plan: &PlanName, policy: Option<PlanPolicy<'_>>) {
        let now = policy.map(deployment::affinity).unwrap_or_default();
        let index = plan_index!(self.plans, plan);
        if index.groups == now {
            return;
        }
        let before = std::mem::replace(&mut index.groups, now);
        for (groups, up) in [(&before, false), (&index.groups, true)] {
            for (node, runs) in index.spread.nodes(&self.places) {
                for _ in 0..runs {
                    count_groups(&mut self.groups, groups, node, up);
                }
            }
        }
    }

    pub(crate) fn deployment(
        &mut self,
        this: &Deployment,
        old: Option<&DeploymentMarks>,
        new: Option<&DeploymentMarks>,
    ) {
        let empty = DeploymentIndex::default();
        let given_up = begins_nothing(new.map(|new| new.stage));
        let changes = begins_nothing(old.map(|old| old.stage)) != given_up;
        let mut waiting = BTreeSet::new();
        self.with_deployment(&this.plan, &this.name, |_, index| {
            if changes {
                waiting.clone_from(&index.unstarted);
            }
            index.stage = new.map(|new| new.stage);
            index.count = new.map_or(0, |new| new.count);
            index.version = new.map(|new| new.version);
            index.strategy = new.map_or(empty.strategy, |new| new.strategy);
            index.set = new.map_or(empty.set, |new| new.set);
            index.rested = new.and_then(|new| new.rested);
            index.progress = new.and_then(|new| new.progress);
        });
        for operation in waiting {
            self.policies.give_up(operation, given_up);
        }
        for (marks, up) in [(old, false), (new, true)] {
            if let Some(when) = marks.and_then(|marks| marks.deadline) {
                let key = (this.plan.clone(), this.name.clone());
                mark(&mut self.alarms, (when, Alarm::Deployment(Box::new(key))), up);
            }
        }
    }

    pub(crate) fn replica<'a>(
        &mut self,
        this: &Replica,
        old: Option<&'a ReplicaMarks>,
        new: Option<&'a ReplicaMarks>,
    ) {
        // Its number changes when it comes or goes, or moves to another deployment; the rest more often.
        let both = old.zip(new);
        let same = both.is_some_and(|(old, new)| old.deployment == new.deployment);
        for (marks, up) in [(old, false), (new, true)] {
            if let Some(again) = marks.and_then(|marks| marks.again) {
                mark(&mut self.timers, (again, Timer::Replica(this.name.clone())), up);
            }
        }
        let present = |marks: Option<&'a ReplicaMarks>| marks.filter(|marks| !marks.going);
        let count =
            |plan: &mut PlanIndex, deployment: &mut DeploymentIndex, replica: &ReplicaMarks, up: bool| {
                let by = |count: &mut u32| if up { *count += 1 } else { *count -= 1 };
                if !same {
                    by(&mut deployment.replicas);
                }
                if both.is_none() {
                    by(&mut plan.replicas);
                }
                if replica.downed {
                    by(&mut plan.evictions);
                }
                if replica.going {
                    mark(&mut plan.going, this.name.clone(), up);
                    if replica.undecided {
                        mark(&mut plan.undecided, (replica.deployment.clone(), this.name.clone()), up);
                    }
                } else {
                    by(&mut plan.present);
                }
            };
        // What there is to do for the plan is looked at once, if it is one of the same deployment before and after.
        if let Some((old, new)) = both.filter(|_| same) {
            let moves = ReplicaMoves::new(&self.places, Some(old), Some(new));
            return self.with_deployment(&this.plan, &new.deployment, |plan, deployment| {
                count(plan, deployment, old, false);
                count(plan, deployment, new, true);
                plan.spread.replica(&moves);
                deployment.replica(this, present(Some(old)), present(Some(new)));
            });
        }
        for (replica, up) in old.map(|r| (r, false)).into_iter().chain(new.map(|r| (r, true))) {
            let (old, new) = if up { (None, new) } else { (old, None) };
            let moves = ReplicaMoves::new(&self.places, old, new);
            self.with_deployment(&this.plan, &replica.deployment, |plan, deployment| {
                count(plan, deployment, replica, up);
                plan.spread.replica(&moves);
                let (old, new) = (present(old), present(new));
                deployment.replica(this, old, new);
            });
        }
    }

    pub(crate) fn operation(
        &mut self,
        this: &Operation,
        old: Option<&OperationMarks>,
        new: Option<&OperationMarks>,
    ) {
        let both = || old.map(|o| (o, false)).into_iter().chain(new.map(|o| (o, true)));
        for (marks, up) in both() {
            if let Turn::Waiting { until } = marks.turn {
                mark(&mut self.alarms, (until, Alarm::Operation(this.id)), up);
            }
            let given_up = || {
                let of = self.plans.get(&this.plan).zip(this.deployment.as_ref());
                let of = of.and_then(|(plan, of)| plan.deployments.get(of));
                of.is_some_and(|of| begins_nothing(of.stage))
            };
            self.policies.operation(this, marks, given_up, up);
        }
        // An operation is of one plan and deployment for ever.
        match &this.deployment {
            Some(name) => self.with_deployment(&this.plan, name, |plan, of| {
                for (marks, up) in both() {
                    plan.operation(this, marks, up);
                }
                of.operation(this, old, new);
            }),
            None => self.with_deployment(&this.plan, &this.version, |plan, of| {
                for (marks, up) in both() {
                    plan.operation(this, marks, up);
                    of.asked_besides(this, marks, up);
                }
            }),
        }
    }

    /// `at`: when the change was.
    pub(crate) fn incarnation(
        &mut self,
        this: &Incarnation,
        old: Option<&IncarnationMarks>,
        new: Option<&IncarnationMarks>,
        at: Position,
    ) {
        let live = |marks: Option<&IncarnationMarks>| marks.is_some_and(|marks| marks.live);
        if live(old) && new.is_some_and(|new| !new.live) {
            self.grown = self.grown.max(at);
        }
        // A run that follows another one holds more when that is over.
        let alike = |old: &IncarnationMarks, new: &IncarnationMarks| {
            old.live == new.live && old.amounts == new.amounts && old.volumes == new.volumes
        };
        let same = old.zip(new).is_some_and(|(old, new)| alike(old, new));
        for (marks, up) in [(old, false), (new, true)] {
            let Some(marks) = marks.filter(|marks| marks.live && !same) else { continue };
            let (incarnation, plan, node) = (this.id, &this.plan, &this.node);
            let IncarnationMarks { amounts, volumes, reserved, .. } = marks;
            let (amounts, reserved) = (*amounts, *reserved);
            let holding = Holding { incarnation, plan, node, amounts, volumes, reserved };
            let site = self.places.hold(&holding, up);
            let lost = live(new) && self.places.is_expunged(node);
            mark(&mut self.lost, this.id, lost);
            let index = plan_index!(self.plans, plan);
            index.spread.incarnation(site, up);
            count_groups(&mut self.groups, &index.groups, node, up);
        }
        let held = |marks: Option<&IncarnationMarks>| marks.is_some_and(|marks| marks.live && marks.reserved);
        if held(old) != held(new) {
            let index = plan_index!(self.plans, &this.plan);
            mark(&mut index.held, (this.placed_by, this.id), held(new));
            index.note_outdated(&this.plan, &mut self.outdated);
        }
        if let Some((_, new)) = old.zip(new).filter(|(old, new)| same && old.reserved != new.reserved) {
            self.places.reserve(&this.node, this.id, new.reserved);
        }
        let deadline = |marks: Option<&IncarnationMarks>| marks.and_then(|marks| marks.deadline);
        let outstanding = |marks: Option<&IncarnationMarks>| marks.and_then(|marks| marks.outstanding);
        for (marks, other, up) in [(old, new, false), (new, old, true)] {
            let Some(marks) = marks else { continue };
            if let Some(when) = marks.deadline.filter(|_| deadline(other) != marks.deadline) {
                mark(&mut self.alarms, (when, Alarm::Incarnation(this.id)), up);
            }
            if let Some(when) = marks.outstanding.filter(|_| outstanding(other) != marks.outstanding) {
                mark(&mut self.outstanding, (when, this.id.into()), up);
            }
            if marks.commanded && !other.is_some_and(|other| other.commanded) {
                self.command(&this.cluster, this.id.into(), up);
            }
            let waits_for =
                |marks: Option<&IncarnationMarks>| marks.is_some_and(|marks| marks.waits_for.is_some());
            if let Some(needs) = marks.waits_for.as_ref().filter(|_| !waits_for(other)) {
                self.volumes.run(this.id, needs, up);
            }
        }
    }

    fn command(&mut self, cluster: &ClusterName, object: ObjectId, up: bool) {
        let set = match self.commanded.get_mut(cluster) {
            Some(set) => set,
            None => self.commanded.entry(cluster.clone()).or_default(),
        };
        mark(set, object, up);
        if set.is_empty() {
            self.commanded.remove(cluster);
        }
    }

    /// `at`: when the change was.
    pub(crate) fn volume(&mut self, old: Option<&VolumeMarks>, new: Option<&VolumeMarks>, at: Position) {
        // There is more room somewhere, or somebody can use it that could not.
        if old.is_some() {
            self.grown = self.grown.max(at);
        }
        for (volume, up) in old.map(|v| (v, false)).into_iter().chain(new.map(|v| (v, true))) {
            self.places.store(&volume.node, &volume.class, volume.capacity, up);
            self.command(&volume.cluster, volume.id.into(), up);
            if let Some(when) = volume.outstanding {
                mark(&mut self.outstanding, (when, volume.id.into()), up);
            }
            let is_expunged = self.places.is_expunged(&volume.node);
            self.volumes.volume(volume, is_expunged, up);
        }
    }

    fn with_plan(&mut self, name: &PlanName, how: impl FnOnce(&mut PlanIndex)) {
        let index = plan_index!(self.plans, name);
        how(index);
        let work = index.work().map(|(from, _)| from);
        let (due, later) = (work == Some(Time::EPOCH), work.filter(|from| *from > Time::EPOCH));
        let earlier = std::mem::replace(&mut index.later, later);
        let stalls = index.stalls_at(later);
        let would_stall = std::mem::replace(&mut index.stalls_at, stalls);
        let unplaced = !index.unplaced.is_empty();
        if due != std::mem::replace(&mut index.is_due, due) {
            mark(&mut self.due, name.clone(), due);
        }
        let crowded = index.may_be_uneven();
        if crowded != std::mem::replace(&mut index.is_crowded, crowded) {
            mark(&mut self.crowded, name.clone(), crowded);
        }
        if unplaced != std::mem::replace(&mut index.is_unplaced, unplaced) {
            mark(&mut self.unplaced, name.clone(), unplaced);
        }
        index.note_outdated(name, &mut self.outdated);
        if earlier != later {
            for (when, up) in [(earlier, false), (later, true)] {
                if let Some(when) = when {
                    mark(&mut self.timers, (when, Timer::Plan(name.clone())), up);
                }
            }
        }
        if would_stall != stalls {
            for (when, up) in [(would_stall, false), (stalls, true)] {
                if let Some(when) = when {
                    mark(&mut self.alarms, (when, Alarm::Progress(name.clone())), up);
                }
            }
        }
        if index.is_empty() {
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
            if deployment.is_empty() {
                deployments.remove(name);
            }
            index.deployments = deployments;
        });
    }
}

fn count_groups(
    all: &mut BTreeMap<GroupName, Tally<NodeName>>,
    groups: &[GroupName],
    node: &NodeName,
    up: bool,
) {
    for group in groups {
        let tally = all.entry(group.clone()).or_default();
        tally.step(node, up);
        if tally.is_empty() {
            all.remove(group);
        }
    }
}

/// Whether a deployment that is so begins nothing, or nothing more.
fn begins_nothing(stage: Option<Stage>) -> bool {
    stage.is_some_and(|stage| !matches!(stage, Stage::InProgress | Stage::Paused))
}
