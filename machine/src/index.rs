//! Indexes derived from the tables, so that a step costs what it changes and never a scan.
//!
//! Indexes are in neither events nor snapshots; a test compares them with a full count.

mod plan;
mod policies;
mod spread;
mod volumes;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::Hash;
use std::ops::{Bound, Deref, DerefMut};
use std::sync::Arc;

use chancery_events::id::{IncarnationId, Lineage, ObjectId, OperationId, Position, RequestId};
use chancery_events::name::{
    ClusterName, DisruptionName, DomainName, GroupName, NodeName, PlanName, ReplicaName,
};
use chancery_events::spec::{DisruptionAction, DisruptionState, ImmediateFields};
use chancery_events::subject::Subject;
use chancery_events::time::Time;
use rustc_hash::FxHashMap;

use crate::capacity_index::{CapacityIndex, PlaceChange, ReservationChange};
use crate::fleet::DeploymentKey;
use crate::index_keys::{
    DeploymentIndexKey, DeploymentStage, IncarnationIndexKey, IndexChange, OperationIndexKey, PlanIndexKey,
    ReplicaIndexKey, RequestIndexKey, VolumeIndexKey, sides,
};
use crate::meta::EntityMeta;
use crate::state::{
    ApprovalRequest, Deployment, Incarnation, Node, Operation, Plan, Policy, Replica, Volume,
};

pub(crate) use plan::DeletionCandidates;
pub use plan::{DeploymentIndex, OperationQueue, PlanIndex, RolloutQueues};
pub(crate) use policies::is_about_work;
pub use policies::{ApprovalIndex, PolicyIndex};
pub use spread::{DomainCount, NodeCount, PlanSpread};
pub use volumes::VolumeIndex;
pub(crate) use work::DeploymentWork;

/// Entity with a deadline.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DeadlineKey {
    /// Operation that waits for approval.
    Operation(OperationId),
    /// Incarnation whose state can time out.
    Incarnation(IncarnationId),
    /// Deployment whose new set must be ready.
    Deployment(Box<DeploymentKey>),
    /// Plan whose deployment must make progress.
    Progress(PlanName),
    /// Approval request that waits.
    Request(RequestId),
}

/// Approval requests by state.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct RequestIndex {
    /// Waiting approval requests by target: one each, except within a commit that supersedes one.
    pub open: BTreeSet<(Subject, String, RequestId)>,
    /// Approval requests that no longer wait.
    pub ended: BTreeSet<RequestId>,
}

impl RequestIndex {
    /// Returns the approval request that waits to change the target, if there is one.
    pub(crate) fn waiting(&self, target: &(Subject, String)) -> Option<RequestId> {
        let first = RequestId::issue(Lineage::from_random(0), Position::ZERO);
        let from = (target.0.clone(), target.1.clone(), first);
        let found = self.open.range(from..).next()?;
        (found.0 == target.0 && found.1 == target.1).then_some(found.2)
    }
}

/// Work that is due at a time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TimerKey {
    /// Replica with an automatic restart.
    Replica(ReplicaName),
    /// Plan whose deployment continues after a delay.
    Plan(PlanName),
}

/// Map for lookups: nothing depends on an order.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct LookupMap<K: Eq + Hash, V>(FxHashMap<K, V>);

impl<K: Eq + Hash, V> Deref for LookupMap<K, V> {
    type Target = FxHashMap<K, V>;
    fn deref(&self) -> &FxHashMap<K, V> {
        &self.0
    }
}

impl<K: Eq + Hash, V> DerefMut for LookupMap<K, V> {
    fn deref_mut(&mut self) -> &mut FxHashMap<K, V> {
        &mut self.0
    }
}

impl<K: Eq + Hash, V> Default for LookupMap<K, V> {
    fn default() -> LookupMap<K, V> {
        LookupMap(FxHashMap::default())
    }
}

impl<K: Eq + Hash + Ord + fmt::Debug, V: fmt::Debug> fmt::Debug for LookupMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().collect::<BTreeMap<_, _>>()).finish()
    }
}

/// Indexes of a fleet.
#[derive(Clone, Debug, Default)]
pub struct FleetIndex {
    /// Nodes by the properties that placement needs.
    pub places: CapacityIndex,
    /// Plan indexes by name.
    plans: LookupMap<PlanName, PlanIndex>,
    /// Plans with work that is due.
    pub due: BTreeSet<PlanName>,
    /// Plans with operations that have no placement.
    pub unplaced: BTreeSet<PlanName>,
    /// Plans with unstarted reservations that an earlier spec placed.
    pub outdated: BTreeSet<PlanName>,
    /// Plans without other work whose spread may be uneven, or was found to be.
    pub crowded: BTreeSet<PlanName>,
    /// Plans that are being rebalanced.
    pub rebalancing: BTreeSet<PlanName>,
    /// Deadlines by time.
    pub deadlines: BTreeSet<(Time, DeadlineKey)>,
    /// Work that is due later.
    pub timers: BTreeSet<(Time, TimerKey)>,
    /// Policies, and the operations that wait for them.
    pub policies: ApprovalIndex,
    /// Nodes with an approved disruption.
    pub disturbed: BTreeSet<NodeName>,
    /// Approved disruptions that drain their nodes, by start time and update domain.
    pub evicting: BTreeSet<(Time, Position, DomainName, NodeName, DisruptionName)>,
    /// Plans whose replicas no disruption moves before a time, after a failed move.
    pub setbacks: BTreeSet<(Time, PlanName)>,
    /// Number of a group's incarnations with a reservation, by node.
    groups: BTreeMap<GroupName, LookupMap<NodeName, u32>>,
    /// Commands without an outcome, by the time before which they are not sent.
    pub pending_commands: BTreeSet<(Time, ObjectId)>,
    /// Desired inventory by cluster: volumes, and incarnations with a command that have not ended.
    inventory: BTreeMap<ClusterName, BTreeSet<ObjectId>>,
    /// Volumes, and the incarnations that wait for them.
    pub volumes: VolumeIndex,
    /// Approval requests.
    pub requests: RequestIndex,
    /// Incarnations that have not ended on expunged nodes.
    pub lost: BTreeSet<IncarnationId>,
    /// Last position at which capacity may have grown.
    pub capacity_grew_at: Position,
    /// Plans that changed since [`FleetIndex::settle`].
    unsettled: Vec<PlanName>,
}

/// Updates an entity's entry in a set: `entry` builds it from the fields that `value` selects, if any.
pub(crate) fn follow<'a, M, V: PartialEq, T: Ord>(
    set: &mut BTreeSet<T>,
    both: IndexChange<'a, M>,
    value: impl Fn(&'a M) -> Option<V>,
    entry: impl Fn(V) -> T,
) {
    let [old, new] = sides(both, |key| key.and_then(&value));
    if old == new {
        return;
    }
    if let Some(old) = old {
        set.remove(&entry(old));
    }
    set.extend(new.map(entry));
}

/// Updates the entry in one of several sets, selected by `key`; removes empty sets.
pub(crate) fn follow_by<'a, M, V: PartialEq, K: Ord, T: Ord>(
    sets: &mut BTreeMap<K, BTreeSet<T>>,
    both: IndexChange<'a, M>,
    value: impl Fn(&'a M) -> Option<V>,
    key: impl Fn(V) -> K,
    entry: impl Fn() -> T,
) {
    let [old, new] = sides(both, |index_key| index_key.and_then(&value));
    if old == new {
        return;
    }
    if let Some(old) = old.map(&key)
        && let Some(set) = sets.get_mut(&old)
    {
        set.remove(&entry());
        if set.is_empty() {
            sets.remove(&old);
        }
    }
    if let Some(new) = new {
        sets.entry(key(new)).or_default().insert(entry());
    }
}

/// Updates the number of entities for which `holds` is true.
pub(crate) fn count<'a, M>(count: &mut u32, both: IndexChange<'a, M>, holds: impl Fn(&'a M) -> bool) {
    let [old, new] = sides(both, |key| u32::from(key.is_some_and(&holds)));
    *count = *count + new - old;
}

/// Keeps an item in a set exactly while `holds` is true.
pub(crate) fn mark<T: Ord>(set: &mut BTreeSet<T>, item: T, holds: bool) {
    if holds {
        set.insert(item);
    } else {
        set.remove(&item);
    }
}

/// Index of a plan, created if missing; the name is cloned only then.
macro_rules! plan_index {
    ($plans:expr, $name:expr) => {
        match $plans.get_mut($name) {
            Some(index) => index,
            None => $plans.entry($name.clone()).or_default(),
        }
    };
}

impl FleetIndex {
    /// Index of the plan.
    pub fn plan_index(&self, plan: &PlanName) -> Option<&PlanIndex> {
        self.plans.get(plan)
    }

    /// Desired inventory after an object: volumes, then incarnations, in the order of their issue.
    pub fn inventory_after(
        &self,
        cluster: &ClusterName,
        after: Option<ObjectId>,
    ) -> impl Iterator<Item = ObjectId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = self.inventory.get(cluster).into_iter();
        all.flat_map(move |all| all.range((from, Bound::Unbounded))).copied()
    }

    /// Updates the indexes after a change of a cluster or capability, which can make other nodes suitable.
    pub(crate) fn catalogue(&mut self, new: Option<&EntityMeta>) {
        self.places.reshape();
        self.capacity_grew_at =
            new.map_or(self.capacity_grew_at, |new| self.capacity_grew_at.max(new.changed.position));
    }

    pub(crate) fn node(&mut self, both: IndexChange<'_, Node>) {
        let [old, new] = both;
        let Some(name) = new.or(old).map(|node| &node.name) else { return };
        let was = self.places.is_expunged(name);
        follow(
            &mut self.disturbed,
            both,
            |node| (!node.is_schedulable()).then_some(&node.name),
            Clone::clone,
        );
        for key in old.into_iter().flat_map(evictions) {
            self.evicting.remove(&key);
        }
        self.evicting.extend(new.into_iter().flat_map(evictions));
        self.places.node(name, new);
        let gone = self.places.is_expunged(name);
        if let Some(new) = new {
            self.capacity_grew_at = self.capacity_grew_at.max(new.meta.changed.position);
        }
        if gone != was {
            for incarnation in self.places.incarnations(name) {
                mark(&mut self.lost, incarnation, gone);
            }
            self.volumes.node(name, gone);
        }
    }

    /// Number of the group's incarnations with a reservation, by node.
    pub(crate) fn group(&self, group: &GroupName) -> Option<&LookupMap<NodeName, u32>> {
        self.groups.get(group)
    }

    pub(crate) fn policy(&mut self, [old, new]: IndexChange<'_, Policy>) {
        if let Some(name) = new.or(old).map(|policy| &policy.name) {
            self.policies.policy(name, new.map(|policy| &policy.spec));
        }
    }

    pub(crate) fn request(&mut self, this: &ApprovalRequest, both: IndexChange<'_, RequestIndexKey>) {
        let RequestIndex { open, ended } = &mut self.requests;
        follow(ended, both, |key| key.waits_until.is_none().then_some(this.id), |id| id);
        follow(
            &mut self.deadlines,
            both,
            |index_key| index_key.waits_until,
            |until| (until, DeadlineKey::Request(this.id)),
        );
        follow(
            open,
            both,
            |marks| marks.waits_until.map(|_| this.id),
            |id| {
                let (subject, what) = this.change.target();
                (subject, what, id)
            },
        );
    }

    pub(crate) fn plan(&mut self, this: &Plan, both: IndexChange<'_, PlanIndexKey>) {
        let name = |(): ()| this.name.clone();
        follow(&mut self.setbacks, both, |key| key.setback, |until| (until, name(())));
        follow(&mut self.rebalancing, both, |index_key| index_key.rebalancing.then_some(()), name);
        let [was, is] = sides(both, |marks| marks.and_then(|marks| marks.spec.as_ref()));
        let edited = match (was, is) {
            (Some(was), Some(is)) => !Arc::ptr_eq(was, is),
            (was, is) => was.is_some() || is.is_some(),
        };
        if edited {
            self.regroup(&this.name, is.map(ImmediateFields::of));
            // Another spec may allow operations that wait.
            self.capacity_grew_at = self.capacity_grew_at.max(this.meta.changed.position);
        }
        let [_, new] = both;
        self.with_plan(&this.name, |_, index| index.own = new.cloned().unwrap_or_default());
    }

    /// Counts the plan's replicas in its groups. An edit of these costs one pass over its
    /// nodes.
    fn regroup(&mut self, plan: &PlanName, fields: Option<ImmediateFields<'_>>) {
        let now = fields.map(ImmediateFields::groups).unwrap_or_default();
        let index = plan_index!(self.plans, plan);
        if index.groups == now {
            return;
        }
        let before = std::mem::replace(&mut index.groups, now);
        for (groups, change) in [(&before, PlaceChange::GiveBack), (&index.groups, PlaceChange::Take)] {
            for (node, runs) in index.spread.nodes(&self.places) {
                for _ in 0..runs {
                    count_groups(&mut self.groups, groups, node, change);
                }
            }
        }
    }

    pub(crate) fn deployment(&mut self, this: &Deployment, both: IndexChange<'_, DeploymentIndexKey>) {
        let [was_given_up, given_up] =
            sides(both, |key| begins_nothing(key.and_then(|index_key| index_key.stage)));
        let mut waiting = BTreeSet::new();
        let [_, new] = both;
        self.with_plan(&this.plan, |_, plan| {
            plan.with_deployment(&this.name, |index| {
                if was_given_up != given_up {
                    waiting.clone_from(&index.unstarted);
                }
                index.own = new.copied().unwrap_or_default();
            });
        });
        for operation in waiting {
            self.policies.give_up(operation, given_up);
        }
        follow(
            &mut self.deadlines,
            both,
            |marks| marks.deadline,
            |when| (when, DeadlineKey::Deployment(Box::new((this.plan.clone(), this.name.clone())))),
        );
    }

    pub(crate) fn replica(&mut self, this: &Replica, both: IndexChange<'_, ReplicaIndexKey>) {
        follow(
            &mut self.timers,
            both,
            |key| key.next_restart,
            |at| (at, TimerKey::Replica(this.name.clone())),
        );
        self.with_plan(&this.plan, |places, plan| plan.replica(places, this, both));
    }

    pub(crate) fn operation(&mut self, this: &Operation, both: IndexChange<'_, OperationIndexKey>) {
        follow(&mut self.deadlines, both, OperationIndexKey::waits_until, |until| {
            (until, DeadlineKey::Operation(this.id))
        });
        let given_up = || {
            let of = self.plans.get(&this.plan).zip(this.deployment.as_ref());
            let of = of.and_then(|(plan, of)| plan.deployments.get(of));
            of.is_some_and(|of| begins_nothing(of.stage))
        };
        self.policies.operation(this, both, given_up);
        self.with_plan(&this.plan, |_, plan| plan.operation(this, both));
    }

    /// Updates the indexes after a change of an incarnation at position `at`.
    pub(crate) fn incarnation(
        &mut self,
        this: &Incarnation,
        both: IndexChange<'_, IncarnationIndexKey>,
        at: Position,
    ) {
        let live = sides(both, |key| key.filter(|index_key| index_key.live));
        if live[0].is_some() && both[1].is_some() && live[1].is_none() {
            self.capacity_grew_at = self.capacity_grew_at.max(at);
        }
        let (incarnation, plan, node) = (this.id, &this.plan, &this.node);
        match live {
            // An incarnation reserves more when its predecessor ends.
            [Some(old), Some(new)]
                if old.resources == new.resources && old.reserved_storage == new.reserved_storage =>
            {
                if old.reserved != new.reserved {
                    self.places.reserve(node, incarnation, new.reserved);
                }
            }
            _ => {
                for (marks, change) in live.into_iter().zip([PlaceChange::GiveBack, PlaceChange::Take]) {
                    let Some(marks) = marks else { continue };
                    let holding = ReservationChange {
                        incarnation,
                        plan,
                        node,
                        resources: marks.resources,
                        reserved_storage: &marks.reserved_storage,
                        reserved: marks.reserved,
                    };
                    let site = self.places.hold(&holding, change);
                    let index = plan_index!(self.plans, plan);
                    index.spread.incarnation(site, change);
                    count_groups(&mut self.groups, &index.groups, node, change);
                }
                mark(&mut self.lost, incarnation, live[1].is_some() && self.places.is_expunged(node));
            }
        }
        if live[0].is_some_and(|marks| marks.reserved) != live[1].is_some_and(|marks| marks.reserved) {
            self.with_plan(plan, |_, index| {
                let place = (this.placed_by, incarnation);
                follow(&mut index.held, live, |marks| marks.reserved.then_some(place), |place| place);
            });
        }
        let object = || ObjectId::from(incarnation);
        follow(
            &mut self.deadlines,
            both,
            |marks| marks.deadline,
            |when| (when, DeadlineKey::Incarnation(incarnation)),
        );
        follow(&mut self.pending_commands, both, |marks| marks.pending_command, |when| (when, object()));
        let cluster = |marks: &IncarnationIndexKey| marks.in_inventory.then_some(&this.cluster);
        follow_by(&mut self.inventory, both, cluster, Clone::clone, object);
        self.volumes
            .run(incarnation, sides(both, |marks| marks.and_then(|marks| marks.waits_for.as_deref())));
    }

    /// Updates the indexes after a change of a volume at position `at`.
    pub(crate) fn volume(&mut self, this: &Volume, both: IndexChange<'_, VolumeIndexKey>, at: Position) {
        let [old, new] = both;
        // More storage may be free, or an incarnation can use the volume that could not.
        if old.is_some() {
            self.capacity_grew_at = self.capacity_grew_at.max(at);
        }
        for (key, change) in [(old, PlaceChange::GiveBack), (new, PlaceChange::Take)] {
            if let Some(index_key) = key {
                self.places.store(&index_key.node, &this.class, this.capacity, change);
            }
        }
        let object = || ObjectId::from(this.id);
        follow_by(&mut self.inventory, both, |_| Some(&this.cluster), Clone::clone, object);
        follow(&mut self.pending_commands, both, |marks| marks.pending_command, |when| (when, object()));
        self.volumes.volume(this, both, |node| self.places.is_expunged(node));
    }

    fn with_plan(&mut self, name: &PlanName, how: impl FnOnce(&CapacityIndex, &mut PlanIndex)) {
        let index = plan_index!(self.plans, name);
        how(&self.places, index);
        if !std::mem::replace(&mut index.is_unsettled, true) {
            self.unsettled.push(name.clone());
        }
    }

    /// Checks in debug builds that no plan has changed since [`FleetIndex::settle`].
    pub(crate) fn assert_settled(&self) {
        debug_assert!(self.unsettled.is_empty(), "the fleet must be settled after the last fact");
    }

    /// Updates the indexes of all plans once for consecutive facts, which may change a plan several times.
    pub(crate) fn settle(&mut self) {
        while let Some(name) = self.unsettled.pop() {
            let Some(index) = self.plans.get_mut(&name) else { continue };
            index.is_unsettled = false;
            let agenda = index.agenda();
            if agenda != index.agenda {
                let before = std::mem::replace(&mut index.agenda, agenda);
                let both = [Some(&before), Some(&index.agenda)];
                let plan = |(): ()| name.clone();
                follow(&mut self.due, both, |agenda| agenda.is_due.then_some(()), plan);
                follow(&mut self.crowded, both, |agenda| agenda.is_crowded.then_some(()), plan);
                follow(&mut self.unplaced, both, |agenda| agenda.is_unplaced.then_some(()), plan);
                follow(&mut self.outdated, both, |agenda| agenda.is_outdated.then_some(()), plan);
                follow(
                    &mut self.timers,
                    both,
                    |agenda| agenda.later,
                    |when| (when, TimerKey::Plan(plan(()))),
                );
                follow(
                    &mut self.deadlines,
                    both,
                    |agenda| agenda.stalls_at,
                    |when| (when, DeadlineKey::Progress(plan(()))),
                );
            }
            if index.is_empty() {
                self.plans.remove(&name);
            }
        }
    }
}

/// Approved disruptions that drain the node, as entries of [`FleetIndex::evicting`].
fn evictions(node: &Node) -> impl Iterator<Item = (Time, Position, DomainName, NodeName, DisruptionName)> {
    let approved = node.disruptions.iter().filter(|(_, of)| of.state == DisruptionState::Approved);
    approved.filter(|(_, of)| of.spec.action != DisruptionAction::None).map(|(name, of)| {
        let from = of.since.time.max(of.spec.start.unwrap_or(Time::EPOCH));
        (from, of.since.position, node.spec.domain.clone(), node.name.clone(), name.clone())
    })
}

fn count_groups(
    all: &mut BTreeMap<GroupName, LookupMap<NodeName, u32>>,
    groups: &[GroupName],
    node: &NodeName,
    change: PlaceChange,
) {
    for group in groups {
        let nodes = all.entry(group.clone()).or_default();
        let count = nodes.entry(node.clone()).or_default();
        *count = change.applied_to(*count);
        if *count == 0 {
            nodes.remove(node);
        }
        if nodes.is_empty() {
            all.remove(group);
        }
    }
}

/// Whether a deployment in this stage starts nothing, or nothing more.
fn begins_nothing(stage: Option<DeploymentStage>) -> bool {
    stage.is_some_and(|stage| !matches!(stage, DeploymentStage::InProgress | DeploymentStage::Paused))
}
