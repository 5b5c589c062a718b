//! Where a replica may run, and why not elsewhere. Pure, and the same for the same state.
//!
//! Filters, in the order in which a node's first failure is its reason: state and disruptions, cluster, zone,
//! selectors, capability matchers, sharing, affinity, storage by class, cpu, memory, disk. Then, by the plan's
//! placement:
//!
//! | placement | first | then | then | on a tie |
//! |---|---|---|---|---|
//! | `spread` | the update domain with the fewest of the plan's replicas, its own before others | in it, the node with the fewest of them | the node on which the least is left | by name |
//! | `pack` | the node on which the least is left | | | by name |
//!
//! Replicas are counted where they remain when everything that is under way has succeeded ([`PlanSpread`]), without
//! the one that is placed. While two sets exist (`graceful`), each is counted alone: one of them will be deleted.
//!
//! An affinity that may be broken counts like any other at first; only if there is no place, those are left out, and
//! the place says which it breaks.
//!
//! A matcher looks at the node's active capabilities of its type:
//!
//! | comparator | holds when |
//! |---|---|
//! | `in` | the node has at least one of the named |
//! | `not_in` | the node has none of the named |
//! | `eq` | the node has all of the named |
//! | `gte`, `lte` | the node has one of the type whose score is at least, at most, that of each of the named |
//!
//! A named capability that is unknown, inactive or of another type cannot be met, but for `not_in`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use chancery_events::amount::Amounts;
use chancery_events::digest::Digest;
use chancery_events::fact::Unfit;
use chancery_events::name::{
    CapabilityName, ClusterName, DeploymentName, DomainName, NodeName, PlanName, StorageClass,
};
use chancery_events::size::cut;
use chancery_events::spec::{
    Activity, Affinity, Company, Comparator, Matcher, NodeState, Otherwise, Placement, PlanPolicy, PlanSpec,
    PlanVersion, Sharing,
};

use crate::fleet::Fleet;
use crate::index::{NodeCount, PlanIndex, PlanSpread};
use crate::places::{ClassKey, SiteNumber, class_of};
use crate::shelf::{Free, Shelf};
use crate::state::{Active, Capability, Incarnation, Node};

/// Maximum number of reasons, and
const REASONS: usize = 32;
/// the maximum size of one, in bytes: a fact names all of them.
const REASON_BYTES: usize = 512;
/// Nodes named with a reason, at most.
const NAMED: usize = 64;

/// A place that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Where.
    pub node: NodeName,
    /// The node's update domain.
    pub domain: DomainName,
    /// Which affinities it breaks, where that is allowed.
    pub strained: Option<String>,
}

/// What looks for a place.
#[derive(Clone, Copy, Debug)]
pub struct Need<'a> {
    /// Of which plan.
    pub plan: &'a PlanName,
    /// By which of its deployments.
    pub deployment: &'a DeploymentName,
    /// Where the plan's replicas may be.
    pub policy: PlanPolicy<'a>,
    /// What the deployment's version needs.
    pub version: PlanVersion<'a>,
}

/// Which nodes will do besides.
#[derive(Clone, Copy, Default, Debug)]
pub struct Limits<'a> {
    /// No other than this.
    pub only: Option<&'a NodeName>,
    /// Not this one.
    pub not: Option<&'a NodeName>,
    /// What runs of the replica now: it keeps itself from nowhere.
    pub own: Option<&'a Incarnation>,
    /// A place that is reserved for the replica already, and is judged: it keeps itself from nowhere either.
    pub held: Option<&'a Incarnation>,
    /// The run that the place is to replace, if the replica remains there without that: it does not count.
    pub leaves: Option<&'a Active>,
    /// The volumes that it is to use and that are there already: their cluster alone will do.
    pub stored: &'a [Stored],
}

impl Limits<'_> {
    /// The replica's own runs on the node.
    fn runs(&self, node: &NodeName) -> impl Iterator<Item = &Incarnation> {
        self.own.into_iter().chain(self.held).filter(move |run| run.node == *node)
    }
}

/// A volume that is there already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Its cluster.
    pub cluster: ClusterName,
    /// The node in whose storage it is counted.
    pub node: NodeName,
    /// Its class there.
    pub class: StorageClass,
    /// Bytes of it.
    pub capacity: u64,
    /// Bytes of it that are asked for, which may be less.
    pub claimed: u64,
}

/// What a run by the spec needs of the node's storage: nothing for a volume that is there already, all of one that has
/// to come, and what is asked for of one that is to be made.
pub(crate) fn storage(
    version: PlanVersion<'_>,
    stored: &[Stored],
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

/// Whether the node is in another cluster than the volumes.
fn is_elsewhere(node: &Node, stored: &[Stored]) -> Option<ClusterName> {
    let volume = stored.iter().find(|volume| node.cluster.as_ref() != Some(&volume.cluster))?;
    Some(volume.cluster.clone())
}

/// Which affinities count.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strict {
    /// Also those that may be broken.
    All,
    /// Those alone that may not.
    Firm,
}

/// What was found out about plans that look for places, kept from one placement to the next: which domains a plan may
/// use, and how many of its replicas each has. It saves time and decides nothing: without it, the answers are the
/// same.
#[derive(Clone, Debug, Default)]
pub struct Search(BTreeMap<(PlanName, DeploymentName), Field>);

/// Where replicas of a plan may go.
#[derive(Clone, Debug)]
struct Field {
    /// Made for this policy,
    policy: Arc<PlanSpec>,
    /// and this version.
    version: Arc<PlanSpec>,
    /// When classes and domains were so.
    shape: Arc<()>,
    /// And since no domain lost a replica of the plan.
    eased: Arc<()>,
    needs: Amounts,
    /// By name, each with the shelves of the classes that will do.
    domains: Vec<(DomainName, Vec<usize>)>,
    /// By load, then by name; a load may have grown since.
    order: BTreeSet<(u32, usize)>,
    least: Least,
}

impl Search {
    /// The best place for one more run of a replica, if there is one. [`explain`] says why there is none.
    pub fn place(&mut self, fleet: &Fleet, need: &Need<'_>, limits: &Limits<'_>) -> Option<Place> {
        let found = self.best(fleet, need, limits, Strict::All);
        let breakable = need.policy.affinity().iter().any(|affinity| affinity.otherwise == Otherwise::Allow);
        if found.is_some() || !breakable {
            return found;
        }
        let place = self.best(fleet, need, limits, Strict::Firm)?;
        Some(Place { strained: strain(fleet, need.policy, &place.node, limits, Strict::All), ..place })
    }

    fn best(&mut self, fleet: &Fleet, need: &Need<'_>, limits: &Limits<'_>, strict: Strict) -> Option<Place> {
        let loads = Loads::new(fleet, need, limits);
        if let Some(few) = few(fleet, need.policy, limits, strict) {
            return best_of(fleet, need, limits, strict, &loads, few);
        }
        let key = (need.plan.clone(), need.deployment.clone());
        let known = self.0.get(&key).is_some_and(|field| field.holds(fleet, &loads, need));
        if !known {
            self.0.insert(key.clone(), Field::new(fleet, &loads, need));
        }
        self.0.get_mut(&key).and_then(|field| field.best(fleet, need, &loads, limits, strict))
    }

    /// Keeps what is known of these plans only.
    pub(crate) fn retain(&mut self, keep: impl Fn(&PlanName) -> bool) {
        self.0.retain(|(plan, _), _| keep(plan));
    }
}

/// The replicas that count where one is placed.
struct Loads<'a> {
    fleet: &'a Fleet,
    plan: &'a PlanName,
    index: Option<&'a PlanIndex>,
    /// Only those of the same set, while there are two: the version of the new one, and whether it is that.
    set: Option<(Digest, bool)>,
    leaves: Option<&'a Active>,
}

impl<'a> Loads<'a> {
    fn new(fleet: &'a Fleet, need: &Need<'a>, limits: &Limits<'a>) -> Loads<'a> {
        let index = fleet.index().plan_index(need.plan);
        let set = index.and_then(|index| {
            let new = index.new_set()?;
            Some((new, index.deployments.get(need.deployment)?.version == Some(new)))
        });
        Loads { fleet, plan: need.plan, index, set, leaves: limits.leaves }
    }

    fn spread(&self) -> Option<&'a PlanSpread> {
        self.index.map(|index| &index.spread)
    }

    /// Replicas in the domain.
    fn domain(&self, domain: &DomainName) -> u32 {
        let own = u32::from(self.leaves.is_some_and(|leaves| leaves.domain == *domain));
        let all = match (self.index, self.set) {
            (None, _) => 0,
            (Some(index), None) => index.spread.in_domain(domain),
            (Some(index), Some((version, is_new))) => index.in_domain_of_set(version, is_new, domain),
        };
        all.saturating_sub(own)
    }

    /// Replicas on the node.
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

    /// Replicas of the plan on the node, of whichever set.
    fn known(&self, node: SiteNumber) -> NodeCount {
        self.index.map_or(NodeCount::default(), |index| index.spread.on_site(node))
    }
}

impl Field {
    fn new(fleet: &Fleet, loads: &Loads<'_>, need: &Need<'_>) -> Field {
        let places = &fleet.index().places;
        let mut domains: BTreeMap<&DomainName, Vec<usize>> = BTreeMap::new();
        let suits = |key: &ClassKey| class_unfit(fleet, need.policy, key).is_none();
        let classes = places.classes().iter().filter(|(key, _)| suits(key));
        for (domain, shelf) in classes.flat_map(|(_, class)| class) {
            domains.entry(domain).or_default().push(*shelf);
        }
        let domains: Vec<_> =
            domains.into_iter().map(|(domain, shelves)| (domain.clone(), shelves)).collect();
        // The one that is left counts here: it is another one each time.
        let all = Loads { leaves: None, ..*loads };
        let order =
            domains.iter().enumerate().map(|(rank, (domain, _))| (all.domain(domain), rank)).collect();
        Field {
            policy: Arc::clone(need.policy.shared()),
            version: Arc::clone(need.version.shared()),
            shape: Arc::clone(places.shape()),
            eased: loads.spread().map(|spread| Arc::clone(&spread.eased)).unwrap_or_default(),
            needs: need.version.amounts(),
            domains,
            order,
            least: Least::default(),
        }
    }

    /// Whether it says what would be found out now, but for loads that have grown. Sets change too often to be known.
    fn holds(&self, fleet: &Fleet, loads: &Loads<'_>, need: &Need<'_>) -> bool {
        Arc::ptr_eq(&self.policy, need.policy.shared())
            && Arc::ptr_eq(&self.version, need.version.shared())
            && Arc::ptr_eq(&self.shape, fleet.index().places.shape())
            && loads.spread().is_some_and(|spread| Arc::ptr_eq(&self.eased, &spread.eased))
            && loads.set.is_none()
    }

    fn best(
        &mut self,
        fleet: &Fleet,
        need: &Need<'_>,
        loads: &Loads<'_>,
        limits: &Limits<'_>,
        strict: Strict,
    ) -> Option<Place> {
        let pick = Pick { fleet, loads, limits, strict, need, needs: self.needs };
        match need.policy.placement() {
            Placement::Spread => self.most_even(&pick),
            Placement::Pack => {
                let shelves = self.domains.iter().enumerate();
                let shelves =
                    shelves.flat_map(|(rank, (_, shelves))| shelves.iter().map(move |at| (rank, at)));
                let best = shelves.filter_map(|(rank, at)| Some((pick.tightest(*at)?, rank)));
                best.min().map(|(free, rank)| self.place(free, rank))
            }
        }
    }

    fn place(&self, free: &Free, rank: usize) -> Place {
        Place { node: free.node.clone(), domain: self.domains[rank].0.clone(), strained: None }
    }

    fn most_even(&mut self, pick: &Pick<'_>) -> Option<Place> {
        let loads = pick.loads;
        let all = Loads { leaves: None, ..*loads };
        // The domain that is left has one less than the order says, and comes before others that have as many.
        let mut own = loads.leaves.and_then(|leaves| {
            let rank = self.domains.binary_search_by(|(domain, _)| domain.cmp(&leaves.domain)).ok()?;
            Some((loads.domain(&leaves.domain), rank))
        });
        let mut next = self.order.first().copied();
        while let Some((known, rank)) = next {
            let now = all.domain(&self.domains[rank].0);
            if now > known {
                // Those behind it may come before it.
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

    /// The best node of a domain.
    fn in_domain(&mut self, pick: &Pick<'_>, rank: usize, load: u32) -> Option<Place> {
        // With none of the plan in the domain, there is none on any of its nodes.
        let floor = if load == 0 { 0 } else { self.least.of(pick, rank) };
        let mut best: Option<(u32, &Free)> = None;
        for at in &self.domains[rank].1 {
            pick.most_even(pick.fleet.index().places.shelf(*at), floor, &mut best);
        }
        let (count, free) = best?;
        self.least.note(pick, rank, count);
        Some(self.place(free, rank))
    }
}

/// What is looked for on shelves.
struct Pick<'a> {
    fleet: &'a Fleet,
    loads: &'a Loads<'a>,
    limits: &'a Limits<'a>,
    strict: Strict,
    need: &'a Need<'a>,
    needs: Amounts,
}

impl<'a> Pick<'a> {
    fn suits(&self, node: &NodeName, known: NodeCount) -> bool {
        let Pick { fleet, limits, strict, need, .. } = *self;
        limits.not != Some(node)
            && !is_shared(need.policy, known, node, limits)
            && strain(fleet, need.policy, node, limits, strict).is_none()
            && has_storage(fleet, need.version, node, limits)
    }

    /// The node with the least free.
    fn tightest(&self, at: usize) -> Option<&'a Free> {
        let nodes = self.fleet.index().places.shelf(at);
        nodes.fitting(self.needs).find(|free| self.suits(&free.node, self.loads.known(free.site)))
    }

    /// The node with the fewest of the plan's replicas, then with the least free, if it is better than the best so far.
    /// None has fewer than the floor.
    fn most_even(&self, nodes: &'a Shelf, floor: u32, best: &mut Option<(u32, &'a Free)>) {
        // Whether the best so far is on this shelf: what follows it has more free.
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

    /// Whether the same nodes suit each of the plan's replicas, as long as none has more free.
    fn is_plain(&self) -> bool {
        let Limits { only, not, own, held, leaves, stored } = self.limits;
        let plain = only.is_none() && not.is_none() && own.is_none() && held.is_none();
        let plain = plain && leaves.is_none() && stored.is_empty() && self.loads.set.is_none();
        plain && self.need.policy.affinity().is_empty() && !self.need.version.has_volumes()
    }
}

/// The fewest replicas that a node of each domain was found to have, of those that suit: as long as no node has more
/// free, and none has fewer replicas, no node has fewer.
#[derive(Clone, Debug, Default)]
struct Least {
    counts: BTreeMap<usize, u32>,
    freed: Arc<()>,
    thinned: Arc<()>,
}

impl Least {
    /// Of the domain; none is known to have more than none.
    fn of(&self, pick: &Pick<'_>, rank: usize) -> u32 {
        let holds = pick.is_plain() && self.holds(pick);
        if holds { self.counts.get(&rank).copied().unwrap_or(0) } else { 0 }
    }

    fn holds(&self, pick: &Pick<'_>) -> bool {
        let spread = pick.loads.spread();
        Arc::ptr_eq(&self.freed, pick.fleet.index().places.freed())
            && spread.is_some_and(|spread| Arc::ptr_eq(&self.thinned, &spread.thinned))
    }

    fn note(&mut self, pick: &Pick<'_>, rank: usize, count: u32) {
        let Some(spread) = pick.loads.spread().filter(|_| count > 0 && pick.is_plain()) else { return };
        if !self.holds(pick) {
            self.counts.clear();
            self.freed = Arc::clone(pick.fleet.index().places.freed());
            self.thinned = Arc::clone(&spread.thinned);
        }
        self.counts.insert(rank, count);
    }
}

fn has_storage(fleet: &Fleet, version: PlanVersion<'_>, node: &NodeName, limits: &Limits<'_>) -> bool {
    if !version.has_volumes() {
        return true;
    }
    let needed = storage(version, limits.stored, node);
    let near = fleet.nodes().get(node).is_some_and(|node| is_elsewhere(node, limits.stored).is_none());
    near && fleet.index().places.lacks_storage(node, &needed).is_none()
}

/// Whether another replica of the plan is on the node, and may not be.
pub(crate) fn is_shared(
    policy: PlanPolicy<'_>,
    known: NodeCount,
    node: &NodeName,
    limits: &Limits<'_>,
) -> bool {
    let own = u32::from(limits.runs(node).next().is_some());
    *policy.sharing() == Sharing::Never && known.held > own
}

/// Of a group, how many others than the replica itself hold a place on the node.
fn others(fleet: &Fleet, affinity: &Affinity, node: &NodeName, limits: &Limits<'_>) -> u32 {
    let own: u32 = limits.runs(node).map(|_| 1).sum();
    fleet
        .index()
        .group(&affinity.group)
        .map_or(0, |group| group.get(node).map_or(0, |count| count.saturating_sub(own)))
}

/// The affinities that the node would break, in words.
pub(crate) fn strain(
    fleet: &Fleet,
    policy: PlanPolicy<'_>,
    node: &NodeName,
    limits: &Limits<'_>,
    strict: Strict,
) -> Option<String> {
    let counts = |affinity: &&Affinity| strict == Strict::All || affinity.otherwise == Otherwise::Fail;
    let broken = policy.affinity().iter().filter(counts).filter_map(|affinity| {
        let here = others(fleet, affinity, node, limits) > 0;
        match affinity.nodes {
            Company::Apart if here => Some(format!("one of group {} is there", affinity.group)),
            Company::Together if !here && is_somewhere(fleet, affinity, limits) => {
                Some(format!("none of group {} is there", affinity.group))
            }
            Company::Apart | Company::Together => None,
        }
    });
    let broken: Vec<_> = broken.collect();
    (!broken.is_empty()).then(|| broken.join(", "))
}

fn is_somewhere(fleet: &Fleet, affinity: &Affinity, limits: &Limits<'_>) -> bool {
    let group = fleet.index().group(&affinity.group);
    group.is_some_and(|group| group.keys().any(|node| others(fleet, affinity, node, limits) > 0))
}

/// The nodes among which the place must be, where those are few and known.
fn few<'a>(
    fleet: &'a Fleet,
    policy: PlanPolicy<'_>,
    limits: &Limits<'a>,
    strict: Strict,
) -> Option<BTreeSet<&'a NodeName>> {
    if let Some(only) = limits.only {
        return Some(BTreeSet::from([only]));
    }
    let counts = |affinity: &&Affinity| strict == Strict::All || affinity.otherwise == Otherwise::Fail;
    let together = |affinity: &&Affinity| affinity.nodes == Company::Together;
    let mut binding = policy.affinity().iter().filter(counts).filter(together);
    let binding = binding.find(|affinity| is_somewhere(fleet, affinity, limits))?;
    fleet.index().group(&binding.group).map(|group| group.keys().collect())
}

/// The best of a few nodes, as it would be found among all.
fn best_of(
    fleet: &Fleet,
    need: &Need<'_>,
    limits: &Limits<'_>,
    strict: Strict,
    loads: &Loads<'_>,
    few: BTreeSet<&NodeName>,
) -> Option<Place> {
    let nodes = few.into_iter().filter_map(|name| fleet.nodes().get(name));
    let fit = nodes.filter(|node| unfit(fleet, need, limits, node, strict).is_none());
    let best = fit.min_by_key(|node| {
        let places = &fleet.index().places;
        let site = places.number(&node.name).unwrap_or_default();
        let free = Free::new(places.free(node), node.name.clone(), site);
        let domain = &node.spec.domain;
        let other = loads.leaves.is_none_or(|leaves| leaves.domain != *domain);
        let evenness = || {
            let on_node = loads.node(&node.name, loads.known(site));
            (loads.domain(domain), other, domain.clone(), on_node)
        };
        ((*need.policy.placement() == Placement::Spread).then(evenness), free)
    })?;
    Some(Place { node: best.name.clone(), domain: best.spec.domain.clone(), strained: None })
}

#[cfg(test)]
std::thread_local! {
    /// How often reasons were looked for.
    pub(crate) static EXPLAINED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Why no node will do: a reason a node, nodes of one reason together. Looks at every node.
pub fn explain(fleet: &Fleet, need: &Need<'_>, limits: &Limits<'_>) -> Vec<Unfit> {
    #[cfg(test)]
    EXPLAINED.set(EXPLAINED.get() + 1);
    let mut reasons: BTreeMap<String, Unfit> = BTreeMap::new();
    for node in fleet.nodes().sorted() {
        let Some(mut reason) = unfit(fleet, need, limits, node, Strict::Firm) else { continue };
        cut(&mut reason, REASON_BYTES);
        if reasons.len() >= REASONS && !reasons.contains_key(&reason) {
            continue;
        }
        let entry =
            reasons.entry(reason.clone()).or_insert_with(|| Unfit { reason, count: 0, nodes: Vec::new() });
        entry.count += 1;
        if entry.nodes.len() < NAMED {
            entry.nodes.push(node.name.clone());
        }
    }
    if reasons.is_empty() && fleet.nodes().is_empty() {
        return vec![Unfit { reason: "there are no nodes".into(), count: 0, nodes: Vec::new() }];
    }
    reasons.into_values().collect()
}

/// The first reason against the node, if there is one.
pub(crate) fn unfit(
    fleet: &Fleet,
    need: &Need<'_>,
    limits: &Limits<'_>,
    node: &Node,
    strict: Strict,
) -> Option<String> {
    if limits.not == Some(&node.name) {
        return Some("it is to leave the node".into());
    }
    if let Some(only) = limits.only.filter(|only| **only != node.name) {
        return Some(format!("only node {only} is wanted"));
    }
    let (NodeState::Allocated, Some(cluster)) = (node.state, &node.cluster) else {
        return Some(format!("the node is {}", node.state));
    };
    if !node.is_undisturbed() {
        return Some("a disruption of the node is approved".into());
    }
    if let Some(reason) = class_unfit(fleet, need.policy, &class_of(cluster, node)) {
        return Some(reason);
    }
    let places = &fleet.index().places;
    let known = fleet.index().plan_index(need.plan).map(|index| index.spread.on_node(places, &node.name));
    if is_shared(need.policy, known.unwrap_or_default(), &node.name, limits) {
        return Some("a replica of the plan is there already".into());
    }
    if let Some(reason) = strain(fleet, need.policy, &node.name, limits, strict) {
        return Some(reason);
    }
    if let Some(cluster) = is_elsewhere(node, limits.stored) {
        return Some(format!("its volumes are in cluster {cluster}"));
    }
    let storage = storage(need.version, limits.stored, &node.name);
    if let Some(class) = places.lacks_storage(&node.name, &storage) {
        return Some(format!("too little storage of class {class}"));
    }
    let (needs, free) = (need.version.amounts(), places.free(node));
    let short = [
        ("cpu", needs.cpu, free.cpu),
        ("memory", needs.memory, free.memory),
        ("disk", needs.disk, free.disk),
    ];
    short.into_iter().find(|(_, needed, free)| needed > free).map(|(what, ..)| format!("too little {what}"))
}

/// Why what the node is, and not what is on it, is against the policy, if it is.
pub(crate) fn unfit_class(fleet: &Fleet, policy: PlanPolicy<'_>, node: &Node) -> Option<String> {
    match &node.cluster {
        Some(cluster) => class_unfit(fleet, policy, &class_of(cluster, node)),
        None => Some(format!("the node is {}", node.state)),
    }
}

/// The first reason against every node of the class, if there is one.
fn class_unfit(fleet: &Fleet, policy: PlanPolicy<'_>, class: &ClassKey) -> Option<String> {
    if fleet.clusters().get(&class.cluster).is_none_or(|cluster| cluster.activity == Activity::Inactive) {
        return Some(format!("cluster {} is not active", class.cluster));
    }
    if let Some(wanted) = policy.cluster()
        && *wanted != class.cluster
    {
        return Some(format!("not in cluster {wanted}"));
    }
    if let Some(zone) = policy.zone()
        && class.zone.as_ref() != Some(zone)
    {
        return Some(format!("not in zone {zone}"));
    }
    for (key, value) in policy.selectors() {
        if class.labels.get(key) != Some(value) {
            return Some(format!("no label {key}={value}"));
        }
    }
    policy.matchers().iter().find_map(|matcher| mismatch(fleet, matcher, &class.capabilities))
}

/// Why the capabilities do not meet the matcher, if they do not.
fn mismatch(fleet: &Fleet, matcher: &Matcher, has: &BTreeSet<CapabilityName>) -> Option<String> {
    let counts = |capability: &&Capability| {
        capability.activity == Activity::Active && capability.spec.kind == matcher.kind
    };
    let known = |name: &CapabilityName| fleet.capabilities().get(name).filter(counts);
    let held = |name: &CapabilityName| has.contains(name) && known(name).is_some();
    let mut scores = has.iter().filter_map(known).map(|capability| capability.spec.score);
    let holds = match matcher.comparator {
        Comparator::In => matcher.names.iter().any(held),
        Comparator::NotIn => !matcher.names.iter().any(held),
        Comparator::Eq => matcher.names.iter().all(held),
        Comparator::Gte | Comparator::Lte => {
            let bounds: Option<Vec<u32>> = matcher
                .names
                .iter()
                .map(|name| known(name).map(|capability| capability.spec.score))
                .collect();
            match bounds {
                None => false,
                Some(bounds) if matcher.comparator == Comparator::Gte => {
                    scores.any(|score| bounds.iter().all(|bound| score >= *bound))
                }
                Some(bounds) => scores.any(|score| bounds.iter().all(|bound| score <= *bound)),
            }
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
