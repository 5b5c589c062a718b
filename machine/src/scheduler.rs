//! Placement of replicas, with the reasons against nodes. Pure and deterministic.
//!
//! The first filter that a node fails is its reason. The order is: state and disruptions, cluster, runtime, zone,
//! selectors, capability matchers, sharing, affinity, storage by class, cpu, memory, disk. Then the plan's
//! placement decides:
//!
//! | placement | first | then | then | on a tie |
//! |---|---|---|---|---|
//! | `spread` | the update domain with the fewest of the plan's replicas, the replica's own before others | in it, the node with the fewest of them | the node with the least free capacity | by name |
//! | `pack` | the node with the least free capacity | | | by name |
//!
//! A replica counts where it remains when all pending work has succeeded ([`PlanSpread`]); the placed one
//! does not count. While two sets exist (`blue_green`), each is counted alone: one of them will be deleted.
//!
//! A soft affinity counts like any other at first. Only if no node is found, soft affinities are left out,
//! and the placement lists the violated ones.
//!
//! A matcher evaluates the node's active capabilities of its type:
//!
//! | comparator | satisfied if |
//! |---|---|
//! | `in` | the node has at least one of the named |
//! | `not_in` | the node has none of the named |
//! | `eq` | the node has all of the named |
//! | `gte`, `lte` | the node has one of the type whose score is at least, at most, that of each of the named |
//!
//! A named capability that is unknown, inactive or of another type cannot be satisfied, except by `not_in`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use chancery_events::digest::Digest;
use chancery_events::fact::UnschedulableReason;
use chancery_events::name::{
    CapabilityName, ClusterName, DeploymentName, DomainName, NodeName, PlanName, StorageClass, ZoneName,
};
use chancery_events::resources::Resources;
use chancery_events::size::cut;
use chancery_events::spec::{
    AffinityKind, AffinityPolicy, AffinityRule, CapabilityMatcher, ClusterActivity, ClusterRuntime,
    ImmediateFields, MatchComparator, NodeSharing, NodeState, PayloadCoordinates, PlacementPolicy, PlanSpec,
    PlanVersion,
};

use crate::capacity_index::{NodeClass, SiteNumber, class_of};
use crate::fleet::FleetState;
use crate::free_capacity::{FreeCapacity, FreeCapacityIndex};
use crate::index::{NodeCount, PlanIndex, PlanSpread};
use crate::state::{Capability, Incarnation, IncarnationRef, Node};

/// Maximum number of reasons.
const REASONS: usize = 32;
/// Maximum size of a reason, in bytes: a fact contains all reasons.
const REASON_BYTES: usize = 512;
/// Maximum number of nodes named with a reason.
const NAMED: usize = 64;

/// Node that was found for a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodePlacement {
    /// Name of the node.
    pub node: NodeName,
    /// Update domain of the node.
    pub domain: DomainName,
    /// Soft affinities that the placement violates, if any.
    pub affinity_violated: Option<String>,
}

/// Request for a placement.
#[derive(Clone, Copy, Debug)]
pub struct PlacementRequest<'a> {
    /// Name of the plan.
    pub plan: &'a PlanName,
    /// Name of the plan's deployment.
    pub deployment: &'a DeploymentName,
    /// Immediate fields of the plan: where its replicas may run.
    pub immediate: ImmediateFields<'a>,
    /// Version of the deployment: what it needs.
    pub version: PlanVersion<'a>,
    /// Coordinates of the deployment.
    pub coordinates: &'a PayloadCoordinates,
}

/// Further constraints on the node.
#[derive(Clone, Copy, Default, Debug)]
pub struct PlacementConstraints<'a> {
    /// Required node, if any.
    pub only: Option<&'a NodeName>,
    /// Excluded node, if any.
    pub not: Option<&'a NodeName>,
    /// Current incarnation of the replica, which never excludes a node.
    pub own: Option<&'a Incarnation>,
    /// Checked reservation of the replica, which never excludes a node.
    pub held: Option<&'a Incarnation>,
    /// Incarnation to be replaced, if the replica remains there otherwise: it does not count.
    pub leaves: Option<&'a IncarnationRef>,
    /// Existing volumes that the replica will use: only their cluster is acceptable.
    pub stored: &'a [ExistingVolume],
}

impl PlacementConstraints<'_> {
    /// Incarnations of the replica itself on the node.
    fn runs(&self, node: &NodeName) -> impl Iterator<Item = &Incarnation> {
        self.own.into_iter().chain(self.held).filter(move |run| run.node == *node)
    }
}

/// Volume that exists already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExistingVolume {
    /// Cluster of the volume.
    pub cluster: ClusterName,
    /// Node on which the volume's storage is counted.
    pub node: NodeName,
    /// Storage class of the volume.
    pub class: StorageClass,
    /// Size of the volume, in bytes.
    pub capacity: u64,
    /// Size that the claim requests, in bytes: at most `capacity`.
    pub claimed: u64,
}

/// Storage that an incarnation of the version needs on the node, in bytes by class. An existing volume there
/// needs nothing, an arriving one its whole capacity, a new one the claimed size.
pub(crate) fn storage(
    version: PlanVersion<'_>,
    stored: &[ExistingVolume],
    node: &NodeName,
) -> BTreeMap<StorageClass, u64> {
    let mut needed = version.volumes();
    for volume in stored {
        if let Some(sum) = needed.get_mut(&volume.class) {
            let comes = if volume.node == *node { 0 } else { volume.capacity };
            *sum = sum.saturating_sub(volume.claimed).saturating_add(comes);
        }
    }
    needed.retain(|_, bytes| *bytes > 0);
    needed
}

/// Cluster of the volumes, if the node is in another one.
fn is_elsewhere(node: &Node, stored: &[ExistingVolume]) -> Option<ClusterName> {
    let volume = stored.iter().find(|volume| node.cluster.as_ref() != Some(&volume.cluster))?;
    Some(volume.cluster.clone())
}

/// Affinities that count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AffinityFilter {
    /// All affinities, also soft ones.
    All,
    /// Only the affinities that must not be violated.
    RequiredOnly,
}

impl AffinityFilter {
    /// Affinities of the plan that count.
    fn of(self, immediate: ImmediateFields<'_>) -> impl Iterator<Item = &AffinityRule> {
        let all = immediate.affinity().iter();
        all.filter(move |affinity| self == AffinityFilter::All || affinity.policy == AffinityPolicy::Fail)
    }
}

/// Cache of placement searches from one placement to the next: acceptable domains of plans, and their
/// replicas in each. The cache saves time and never changes a result.
#[derive(Clone, Debug, Default)]
pub struct PlacementCache(BTreeMap<(PlanName, DeploymentName), PlanCandidates>);

/// Candidate domains for the replicas of a plan.
#[derive(Clone, Debug)]
struct PlanCandidates {
    /// Policy of the search.
    immediate: Arc<PlanSpec>,
    /// Version of the search.
    version: Arc<PlanSpec>,
    /// Coordinates of the search.
    coordinates: PayloadCoordinates,
    /// Token of the classes and domains.
    topology_token: Arc<()>,
    /// Token of the spread, replaced when a domain loses a replica of the plan.
    spread_token: Arc<()>,
    needs: Resources,
    /// Domains by name, each with the free-capacity indexes of acceptable classes.
    domains: Vec<(DomainName, Vec<usize>)>,
    /// Domains by load, then by name; a load may have grown since.
    order: BTreeSet<(u32, usize)>,
    least: DomainMinimum,
}

impl PlacementCache {
    /// Returns the best placement for one more incarnation, if any; else [`explain`] returns the reasons.
    pub fn place(
        &mut self,
        fleet: &FleetState,
        need: &PlacementRequest<'_>,
        limits: &PlacementConstraints<'_>,
    ) -> Option<NodePlacement> {
        let found = self.best(fleet, need, limits, AffinityFilter::All);
        let breakable =
            need.immediate.affinity().iter().any(|affinity| affinity.policy == AffinityPolicy::Allow);
        if found.is_some() || !breakable {
            return found;
        }
        let place = self.best(fleet, need, limits, AffinityFilter::RequiredOnly)?;
        let affinity_violated =
            violated_affinities(fleet, need.immediate, &place.node, limits, AffinityFilter::All);
        Some(NodePlacement { affinity_violated, ..place })
    }

    fn best(
        &mut self,
        fleet: &FleetState,
        need: &PlacementRequest<'_>,
        limits: &PlacementConstraints<'_>,
        strict: AffinityFilter,
    ) -> Option<NodePlacement> {
        let loads = ReplicaLoads::new(fleet, need, limits);
        if let Some(few) = few(fleet, need.immediate, limits, strict) {
            return best_of(fleet, need, limits, strict, &loads, few);
        }
        let key = (need.plan.clone(), need.deployment.clone());
        let known = self.0.get(&key).is_some_and(|field| field.holds(fleet, &loads, need));
        if !known {
            self.0.insert(key.clone(), PlanCandidates::new(fleet, &loads, need));
        }
        self.0.get_mut(&key).and_then(|field| field.best(fleet, need, &loads, limits, strict))
    }

    /// Keeps only the entries of these plans.
    pub(crate) fn retain(&mut self, keep: impl Fn(&PlanName) -> bool) {
        self.0.retain(|(plan, _), _| keep(plan));
    }
}

/// Replicas that count for a placement.
struct ReplicaLoads<'a> {
    fleet: &'a FleetState,
    plan: &'a PlanName,
    index: Option<&'a PlanIndex>,
    /// Version of the new set, while there are two, and whether that set counts.
    set: Option<(Digest, bool)>,
    leaves: Option<&'a IncarnationRef>,
}

impl<'a> ReplicaLoads<'a> {
    fn new(
        fleet: &'a FleetState,
        need: &PlacementRequest<'a>,
        limits: &PlacementConstraints<'a>,
    ) -> ReplicaLoads<'a> {
        let index = fleet.index().plan_index(need.plan);
        let set = index.and_then(|index| {
            let new = index.new_set()?;
            Some((new, index.deployments.get(need.deployment)?.version == Some(new)))
        });
        ReplicaLoads { fleet, plan: need.plan, index, set, leaves: limits.leaves }
    }

    fn spread(&self) -> Option<&'a PlanSpread> {
        self.index.map(|index| &index.spread)
    }

    /// Counts replicas in the domain.
    fn domain(&self, domain: &DomainName) -> u32 {
        let own = u32::from(self.leaves.is_some_and(|leaves| leaves.domain == *domain));
        let all = match (self.index, self.set) {
            (None, _) => 0,
            (Some(index), None) => index.spread.in_domain(domain),
            (Some(index), Some((version, is_new))) => index.in_domain_of_set(version, is_new, domain),
        };
        all.saturating_sub(own)
    }

    /// Counts replicas on the node.
    fn node(&self, node: &NodeName, known: NodeCount) -> u32 {
        let own = u32::from(self.leaves.is_some_and(|leaves| leaves.node == *node));
        let all = match self.set.zip(self.index) {
            None => known.remaining,
            Some(((version, is_new), index)) => {
                let runs = self.fleet.index().places.held(node).of_plan(self.plan, None);
                let runs = runs.filter(|id| {
                    let of = self.fleet.incarnations().get(id);
                    let of = of.and_then(|run| self.fleet.replicas().get(&run.replica));
                    of.is_some_and(|of| {
                        let version_of = index.deployments.get(&of.deployment).and_then(|of| of.version);
                        let remains = of.remaining().is_some_and(|run| run.incarnation == *id);
                        remains && (version_of == Some(version)) == is_new
                    })
                });
                u32::try_from(runs.count()).unwrap_or(u32::MAX)
            }
        };
        all.saturating_sub(own)
    }

    /// Counts the plan's replicas on the node, in both sets.
    fn known(&self, node: SiteNumber) -> NodeCount {
        self.index.map_or(NodeCount::default(), |index| index.spread.on_site(node))
    }
}

impl PlanCandidates {
    fn new(fleet: &FleetState, loads: &ReplicaLoads<'_>, need: &PlacementRequest<'_>) -> PlanCandidates {
        let places = &fleet.index().places;
        let mut domains: BTreeMap<&DomainName, Vec<usize>> = BTreeMap::new();
        let suits = |key: &NodeClass| class_unfit(fleet, need, key).is_none();
        let classes = places.classes.iter().filter(|(key, _)| suits(key));
        for (domain, free) in classes.flat_map(|(_, class)| class) {
            domains.entry(domain).or_default().push(*free);
        }
        let domains: Vec<_> =
            domains.into_iter().map(|(domain, indexes)| (domain.clone(), indexes)).collect();
        // The replaced incarnation counts here: each search replaces another one.
        let all = ReplicaLoads { leaves: None, ..*loads };
        let order =
            domains.iter().enumerate().map(|(rank, (domain, _))| (all.domain(domain), rank)).collect();
        PlanCandidates {
            immediate: Arc::clone(need.immediate.shared()),
            version: Arc::clone(need.version.shared()),
            coordinates: need.coordinates.clone(),
            topology_token: Arc::clone(&places.topology_token),
            spread_token: loads.spread().map(|spread| Arc::clone(&spread.spread_token)).unwrap_or_default(),
            needs: need.version.resources(),
            domains,
            order,
            least: DomainMinimum::default(),
        }
    }

    /// Whether the candidates are valid, apart from grown loads. Sets change too often to be cached.
    fn holds(&self, fleet: &FleetState, loads: &ReplicaLoads<'_>, need: &PlacementRequest<'_>) -> bool {
        Arc::ptr_eq(&self.immediate, need.immediate.shared())
            && Arc::ptr_eq(&self.version, need.version.shared())
            && self.coordinates == *need.coordinates
            && Arc::ptr_eq(&self.topology_token, &fleet.index().places.topology_token)
            && loads.spread().is_some_and(|spread| Arc::ptr_eq(&self.spread_token, &spread.spread_token))
            && loads.set.is_none()
    }

    fn best(
        &mut self,
        fleet: &FleetState,
        need: &PlacementRequest<'_>,
        loads: &ReplicaLoads<'_>,
        limits: &PlacementConstraints<'_>,
        strict: AffinityFilter,
    ) -> Option<NodePlacement> {
        let pick = CapacityQuery { fleet, loads, limits, strict, need, needs: self.needs };
        match need.immediate.placement() {
            PlacementPolicy::Spread => self.most_even(&pick),
            PlacementPolicy::Pack => {
                let indexes = self.domains.iter().enumerate();
                let free_indexes =
                    indexes.flat_map(|(rank, (_, shelves))| shelves.iter().map(move |at| (rank, at)));
                let best = free_indexes.filter_map(|(rank, at)| Some((pick.tightest(*at)?, rank)));
                best.min().map(|(free, rank)| self.place(free, rank))
            }
        }
    }

    fn place(&self, free: &FreeCapacity, rank: usize) -> NodePlacement {
        NodePlacement {
            node: free.node.clone(),
            domain: self.domains[rank].0.clone(),
            affinity_violated: None,
        }
    }

    fn most_even(&mut self, pick: &CapacityQuery<'_>) -> Option<NodePlacement> {
        let loads = pick.loads;
        let all = ReplicaLoads { leaves: None, ..*loads };
        // The domain that is left has one replica less than in `order`, and precedes others of equal load.
        let mut own = loads.leaves.and_then(|leaves| {
            let rank = self.domains.binary_search_by(|(domain, _)| domain.cmp(&leaves.domain)).ok()?;
            Some((loads.domain(&leaves.domain), rank))
        });
        let mut next = self.order.first().copied();
        while let Some((known, rank)) = next {
            let now = all.domain(&self.domains[rank].0);
            if now > known {
                // Later domains may precede it now.
                self.order.remove(&(known, rank));
                self.order.insert((now, rank));
                next = self.order.range((known, rank)..).next().copied();
                continue;
            }
            let is_own = own.is_some_and(|(_, own)| own == rank);
            if let Some((load, own)) = own.take_if(|(load, _)| *load <= now || is_own)
                && let Some(place) = self.in_domain(pick, own, load)
            {
                return Some(place);
            }
            if loads.leaves.is_none_or(|leaves| leaves.domain != self.domains[rank].0)
                && let Some(place) = self.in_domain(pick, rank, now)
            {
                return Some(place);
            }
            next = self.order.range((Bound::Excluded((known, rank)), Bound::Unbounded)).next().copied();
        }
        None
    }

    /// Returns the best node of a domain.
    fn in_domain(&mut self, pick: &CapacityQuery<'_>, rank: usize, load: u32) -> Option<NodePlacement> {
        // Without replicas of the plan in the domain, there are none on its nodes.
        let floor = if load == 0 { 0 } else { self.least.of(pick, rank) };
        let mut best: Option<(u32, &FreeCapacity)> = None;
        for at in &self.domains[rank].1 {
            pick.most_even(pick.fleet.index().places.shelf(*at), floor, &mut best);
        }
        let (count, free) = best?;
        self.least.note(pick, rank, count);
        Some(self.place(free, rank))
    }
}

/// Query of free-capacity indexes.
struct CapacityQuery<'a> {
    fleet: &'a FleetState,
    loads: &'a ReplicaLoads<'a>,
    limits: &'a PlacementConstraints<'a>,
    strict: AffinityFilter,
    need: &'a PlacementRequest<'a>,
    needs: Resources,
}

impl<'a> CapacityQuery<'a> {
    fn suits(&self, node: &NodeName, known: NodeCount) -> bool {
        let CapacityQuery { fleet, limits, strict, need, .. } = *self;
        limits.not != Some(node)
            && !is_shared(need.immediate, known, node, limits)
            && violated_affinities(fleet, need.immediate, node, limits, strict).is_none()
            && has_storage(fleet, need.version, node, limits)
    }

    /// Returns the node with the least free capacity.
    fn tightest(&self, at: usize) -> Option<&'a FreeCapacity> {
        let nodes = self.fleet.index().places.shelf(at);
        nodes.fitting(self.needs).find(|free| self.suits(&free.node, self.loads.known(free.site)))
    }

    /// Finds the node with the fewest of the plan's replicas, then with the least free capacity, if it is
    /// better than the best so far. No node has fewer replicas than the floor.
    fn most_even(
        &self,
        nodes: &'a FreeCapacityIndex,
        floor: u32,
        best: &mut Option<(u32, &'a FreeCapacity)>,
    ) {
        // Whether the best so far is in this index: later nodes have more free capacity.
        let mut is_here = false;
        for free in nodes.fitting(self.needs) {
            if best.is_some_and(|(least, best)| least <= floor && (is_here || best <= free)) {
                return;
            }
            let known = self.loads.known(free.site);
            let count = self.loads.node(&free.node, known);
            let is_better =
                best.is_none_or(|(least, best)| count < least || (count == least && !is_here && free < best));
            if is_better && self.suits(&free.node, known) {
                (*best, is_here) = (Some((count, free)), true);
            }
        }
    }

    /// Whether the same nodes suit each of the plan's replicas, as long as no node gains free capacity.
    fn is_plain(&self) -> bool {
        let PlacementConstraints { only, not, own, held, leaves, stored } = self.limits;
        let plain = only.is_none() && not.is_none() && own.is_none() && held.is_none();
        let plain = plain && leaves.is_none() && stored.is_empty() && self.loads.set.is_none();
        plain && self.need.immediate.affinity().is_empty() && !self.need.version.has_volumes()
    }
}

/// Fewest replicas on a suitable node of each domain. A count is valid as long as no node gains free capacity
/// or loses replicas.
#[derive(Clone, Debug, Default)]
struct DomainMinimum {
    counts: BTreeMap<usize, u32>,
    freed: Arc<()>,
    thinned: Arc<()>,
}

impl DomainMinimum {
    /// Returns the count of the domain; zero if unknown.
    fn of(&self, pick: &CapacityQuery<'_>, rank: usize) -> u32 {
        let holds = pick.is_plain() && self.holds(pick);
        if holds { self.counts.get(&rank).copied().unwrap_or(0) } else { 0 }
    }

    fn holds(&self, pick: &CapacityQuery<'_>) -> bool {
        let spread = pick.loads.spread();
        Arc::ptr_eq(&self.freed, &pick.fleet.index().places.freed)
            && spread.is_some_and(|spread| Arc::ptr_eq(&self.thinned, &spread.thinned))
    }

    fn note(&mut self, pick: &CapacityQuery<'_>, rank: usize, count: u32) {
        let Some(spread) = pick.loads.spread().filter(|_| count > 0 && pick.is_plain()) else { return };
        if !self.holds(pick) {
            self.counts.clear();
            self.freed = Arc::clone(&pick.fleet.index().places.freed);
            self.thinned = Arc::clone(&spread.thinned);
        }
        self.counts.insert(rank, count);
    }
}

fn has_storage(
    fleet: &FleetState,
    version: PlanVersion<'_>,
    node: &NodeName,
    limits: &PlacementConstraints<'_>,
) -> bool {
    if !version.has_volumes() {
        return true;
    }
    let needed = storage(version, limits.stored, node);
    let near = fleet.nodes().get(node).is_some_and(|node| is_elsewhere(node, limits.stored).is_none());
    near && fleet.index().places.lacks_storage(node, &needed).is_none()
}

/// Whether another replica of the plan is on the node, and must not be.
pub(crate) fn is_shared(
    immediate: ImmediateFields<'_>,
    known: NodeCount,
    node: &NodeName,
    limits: &PlacementConstraints<'_>,
) -> bool {
    let own = u32::from(limits.runs(node).next().is_some());
    *immediate.sharing() == NodeSharing::Never && known.held > own
}

/// Counts the reservations of a group on the node, without those of the replica itself.
fn others(
    fleet: &FleetState,
    affinity: &AffinityRule,
    node: &NodeName,
    limits: &PlacementConstraints<'_>,
) -> u32 {
    let own: u32 = limits.runs(node).map(|_| 1).sum();
    let count = fleet.index().group(&affinity.group).and_then(|group| group.get(node));
    count.map_or(0, |count| count.saturating_sub(own))
}

/// Affinities that the node would violate, as text.
pub(crate) fn violated_affinities(
    fleet: &FleetState,
    immediate: ImmediateFields<'_>,
    node: &NodeName,
    limits: &PlacementConstraints<'_>,
    strict: AffinityFilter,
) -> Option<String> {
    let broken = strict.of(immediate).filter_map(|affinity| {
        let here = others(fleet, affinity, node, limits) > 0;
        match affinity.kind {
            AffinityKind::AntiAffinity if here => Some(format!("one of group {} is there", affinity.group)),
            AffinityKind::Affinity if !here && is_somewhere(fleet, affinity, limits) => {
                Some(format!("none of group {} is there", affinity.group))
            }
            AffinityKind::AntiAffinity | AffinityKind::Affinity => None,
        }
    });
    let broken: Vec<_> = broken.collect();
    (!broken.is_empty()).then(|| broken.join(", "))
}

fn is_somewhere(fleet: &FleetState, affinity: &AffinityRule, limits: &PlacementConstraints<'_>) -> bool {
    let group = fleet.index().group(&affinity.group);
    group.is_some_and(|group| group.keys().any(|node| others(fleet, affinity, node, limits) > 0))
}

/// Nodes to which the placement is restricted, if these are few and known.
fn few<'a>(
    fleet: &'a FleetState,
    immediate: ImmediateFields<'_>,
    limits: &PlacementConstraints<'a>,
    strict: AffinityFilter,
) -> Option<BTreeSet<&'a NodeName>> {
    if let Some(only) = limits.only {
        return Some(BTreeSet::from([only]));
    }
    let mut together = strict.of(immediate).filter(|affinity| affinity.kind == AffinityKind::Affinity);
    let binding = together.find(|affinity| is_somewhere(fleet, affinity, limits))?;
    fleet.index().group(&binding.group).map(|group| group.keys().collect())
}

/// Returns the best of a few nodes, as a search of all nodes would.
fn best_of(
    fleet: &FleetState,
    need: &PlacementRequest<'_>,
    limits: &PlacementConstraints<'_>,
    strict: AffinityFilter,
    loads: &ReplicaLoads<'_>,
    few: BTreeSet<&NodeName>,
) -> Option<NodePlacement> {
    let nodes = few.into_iter().filter_map(|name| fleet.nodes().get(name));
    let fit = nodes.filter(|node| unschedulable_reason(fleet, need, limits, node, strict).is_none());
    let best = fit.min_by_key(|node| {
        let places = &fleet.index().places;
        let site = places.number(&node.name).unwrap_or_default();
        let free = FreeCapacity::new(places.free(node), node.name.clone(), site);
        let domain = &node.spec.domain;
        let other = loads.leaves.is_none_or(|leaves| leaves.domain != *domain);
        let evenness = || {
            let on_node = loads.node(&node.name, loads.known(site));
            (loads.domain(domain), other, domain.clone(), on_node)
        };
        ((*need.immediate.placement() == PlacementPolicy::Spread).then(evenness), free)
    })?;
    Some(NodePlacement { node: best.name.clone(), domain: best.spec.domain.clone(), affinity_violated: None })
}

#[cfg(test)]
std::thread_local! {
    /// Number of searches for reasons.
    pub(crate) static EXPLAINED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Returns a reason for each node, nodes grouped by reason. Checks every node.
pub fn explain(
    fleet: &FleetState,
    need: &PlacementRequest<'_>,
    limits: &PlacementConstraints<'_>,
) -> Vec<UnschedulableReason> {
    #[cfg(test)]
    EXPLAINED.set(EXPLAINED.get() + 1);
    let mut reasons: BTreeMap<String, UnschedulableReason> = BTreeMap::new();
    for node in fleet.nodes().sorted() {
        let Some(mut reason) = unschedulable_reason(fleet, need, limits, node, AffinityFilter::RequiredOnly)
        else {
            continue;
        };
        cut(&mut reason, REASON_BYTES);
        if reasons.len() >= REASONS && !reasons.contains_key(&reason) {
            continue;
        }
        let entry = reasons.entry(reason.clone()).or_insert_with(|| without_nodes(reason));
        entry.count += 1;
        if entry.nodes.len() < NAMED {
            entry.nodes.push(node.name.clone());
        }
    }
    if reasons.is_empty() && fleet.nodes().is_empty() {
        return vec![without_nodes("there are no nodes".into())];
    }
    reasons.into_values().collect()
}

/// Returns a reason that names no nodes.
pub(crate) fn without_nodes(reason: String) -> UnschedulableReason {
    UnschedulableReason { reason, count: 0, nodes: Vec::new() }
}

/// Counts the plan's replicas on the node.
pub(crate) fn on_node(fleet: &FleetState, plan: &PlanName, node: &NodeName) -> NodeCount {
    let index = fleet.index();
    index.plan_index(plan).map(|of| of.spread.on_node(&index.places, node)).unwrap_or_default()
}

/// First reason against the node, if any.
pub(crate) fn unschedulable_reason(
    fleet: &FleetState,
    need: &PlacementRequest<'_>,
    limits: &PlacementConstraints<'_>,
    node: &Node,
    strict: AffinityFilter,
) -> Option<String> {
    if limits.not == Some(&node.name) {
        return Some("the replica must leave the node".into());
    }
    if let Some(only) = limits.only.filter(|only| **only != node.name) {
        return Some(format!("only node {only} is requested"));
    }
    let (NodeState::Allocated, Some(cluster)) = (node.state, &node.cluster) else {
        return Some(format!("the node is {}", node.state));
    };
    if !node.is_schedulable() {
        return Some("a disruption of the node is approved".into());
    }
    if let Some(reason) = class_unfit(fleet, need, &class_of(cluster, node)) {
        return Some(reason);
    }
    if is_shared(need.immediate, on_node(fleet, need.plan, &node.name), &node.name, limits) {
        return Some("the node already has a replica of the plan".into());
    }
    if let Some(reason) = violated_affinities(fleet, need.immediate, &node.name, limits, strict) {
        return Some(reason);
    }
    if let Some(cluster) = is_elsewhere(node, limits.stored) {
        return Some(format!("its volumes are in cluster {cluster}"));
    }
    let places = &fleet.index().places;
    let storage = storage(need.version, limits.stored, &node.name);
    if let Some(class) = places.lacks_storage(&node.name, &storage) {
        return Some(format!("too little storage of class {class}"));
    }
    let (needs, free) = (need.version.resources(), places.free(node));
    let short = [
        ("cpu", needs.cpu, free.cpu),
        ("memory", needs.memory, free.memory),
        ("disk", needs.disk, free.disk),
    ];
    short.into_iter().find(|(_, needed, free)| needed > free).map(|(what, ..)| format!("too little {what}"))
}

/// Reason why the node's own properties do not satisfy the request, whatever runs on it.
pub(crate) fn unfit_class(fleet: &FleetState, need: &PlacementRequest<'_>, node: &Node) -> Option<String> {
    match &node.cluster {
        Some(cluster) => class_unfit(fleet, need, &class_of(cluster, node)),
        None => Some(format!("the node is {}", node.state)),
    }
}

/// First reason against every node of the class, if any.
fn class_unfit(fleet: &FleetState, need: &PlacementRequest<'_>, class: &NodeClass) -> Option<String> {
    let immediate = need.immediate;
    let cluster = fleet.clusters().get(&class.cluster);
    let Some(cluster) = cluster.filter(|cluster| cluster.activity == ClusterActivity::Active) else {
        return Some(format!("cluster {} is not active", class.cluster));
    };
    if let Some(wanted) = immediate.cluster()
        && *wanted != class.cluster
    {
        return Some(format!("not in cluster {wanted}"));
    }
    if let Some(reason) = unsupported_payload(need, &class.cluster, cluster.spec.runtime) {
        return Some(reason);
    }
    let mut zones = immediate.zone().iter().chain(immediate.zones()).peekable();
    if zones.peek().is_some() && !zones.clone().any(|zone| class.zone.as_ref() == Some(zone)) {
        let names: Vec<_> = zones.map(ZoneName::as_str).collect();
        return Some(format!("not in zone {}", names.join(" or ")));
    }
    for (key, value) in immediate.selectors() {
        if class.labels.get(key) != Some(value) {
            return Some(format!("no label {key}={value}"));
        }
    }
    immediate.matchers().iter().find_map(|matcher| mismatch(fleet, matcher, &class.capabilities))
}

/// Reason why the cluster's runtime cannot run the version, if it cannot.
fn unsupported_payload(
    need: &PlacementRequest<'_>,
    cluster: &ClusterName,
    runtime: ClusterRuntime,
) -> Option<String> {
    need.version.payloads().iter().find_map(|payload| {
        let lacks = runtime.lacks(payload, need.coordinates.get(&payload.name))?;
        Some(format!(
            "payload {} has no {lacks}, which runtime {runtime} of cluster {cluster} needs",
            payload.name
        ))
    })
}

/// Reason why the capabilities do not satisfy the matcher.
fn mismatch(
    fleet: &FleetState,
    matcher: &CapabilityMatcher,
    has: &BTreeSet<CapabilityName>,
) -> Option<String> {
    let counts = |capability: &&Capability| {
        capability.activity == ClusterActivity::Active && capability.spec.kind == matcher.kind
    };
    let known = |name: &CapabilityName| fleet.capabilities().get(name).filter(counts);
    let held = |name: &CapabilityName| has.contains(name) && known(name).is_some();
    let mut scores = has.iter().filter_map(known).map(|capability| capability.spec.score);
    let holds = match matcher.comparator {
        MatchComparator::In => matcher.names.iter().any(held),
        MatchComparator::NotIn => !matcher.names.iter().any(held),
        MatchComparator::Eq => matcher.names.iter().all(held),
        MatchComparator::Gte | MatchComparator::Lte => {
            let fits = if matcher.comparator == MatchComparator::Gte { u32::ge } else { u32::le };
            let score = |name| known(name).map(|capability| capability.spec.score);
            let bounds: Option<Vec<u32>> = matcher.names.iter().map(score).collect();
            bounds.is_some_and(|bounds| scores.any(|score| bounds.iter().all(|bound| fits(&score, bound))))
        }
    };
    if holds {
        return None;
    }
    let unknown: Vec<_> =
        matcher.names.iter().filter(|name| known(name).is_none()).map(ToString::to_string).collect();
    let names = matcher.names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut reason = format!("no capability {} {} {names}", matcher.kind, matcher.comparator);
    if !unknown.is_empty() {
        reason = format!("{reason} (no active {} is called {})", matcher.kind, unknown.join(", "));
    }
    Some(reason)
}
