//! Where a replica may run, and why not elsewhere. Pure, and the same for the same state.
//!
//! Filters, in the order in which a node's first failure is its reason: state, cluster, zone, selectors,
//! capability matchers, sharing, storage by class, cpu, memory, disk. Then: the update domain with the fewest of
//! the plan's replicas (by name on a tie), in it the node on which the least is left, then by name.
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
use chancery_events::fact::Unfit;
use chancery_events::name::{CapabilityName, DeploymentName, DomainName, NodeName, PlanName, StorageClass};
use chancery_events::spec::{Activity, Comparator, Matcher, NodeState, PlanSpec, Sharing};

use crate::fleet::Fleet;
use crate::index::PlanIndex;
use crate::places::{ClassKey, class_of};
use crate::state::{Capability, Node};

/// Nodes named with a reason, at most.
const NAMED: usize = 64;

/// A place that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Where.
    pub node: NodeName,
    /// The node's update domain.
    pub domain: DomainName,
}

/// What was found out about plans that look for places, kept from one placement to the next: which domains a plan may
/// use, and how many of its replicas each has. It saves time and decides nothing: without it, the answers are the
/// same.
#[derive(Clone, Debug, Default)]
pub struct Search(BTreeMap<(PlanName, DeploymentName), Field>);

/// Where replicas of a plan may go.
#[derive(Clone, Debug)]
struct Field {
    /// Looked at for this.
    spec: Arc<PlanSpec>,
    /// When classes and domains were so.
    shape: Arc<()>,
    /// And since no domain lost a replica of the plan.
    eased: Arc<()>,
    needs: Amounts,
    volumes: BTreeMap<StorageClass, u64>,
    /// By name, each with the shelves of the classes that will do.
    domains: Vec<(DomainName, Vec<usize>)>,
    /// By load, then by name; a load may have grown since.
    order: BTreeSet<(u32, usize)>,
}

impl Search {
    /// The best place for one more replica of the plan by the deployment's `spec`, or why there is none, by node.
    pub fn place(
        &mut self,
        fleet: &Fleet,
        plan: &PlanName,
        deployment: &DeploymentName,
        spec: &Arc<PlanSpec>,
    ) -> Result<Place, Vec<Unfit>> {
        let index = fleet.index().plan_index(plan);
        let key = (plan.clone(), deployment.clone());
        let known = self.0.get(&key).is_some_and(|field| field.holds(fleet, index, spec));
        if !known {
            self.0.insert(key.clone(), Field::of(fleet, index, spec));
        }
        let best = self.0.get_mut(&key).and_then(|field| field.best(fleet, index));
        best.ok_or_else(|| explain(fleet, plan, spec))
    }

    /// Keeps what is known of these plans only.
    pub(crate) fn retain(&mut self, keep: impl Fn(&PlanName) -> bool) {
        self.0.retain(|(plan, _), _| keep(plan));
    }
}

fn load(index: Option<&PlanIndex>, domain: &DomainName) -> u32 {
    index.map_or(0, |index| index.domains.get(domain))
}

impl Field {
    fn of(fleet: &Fleet, index: Option<&PlanIndex>, spec: &Arc<PlanSpec>) -> Field {
        let places = &fleet.index().places;
        let mut domains: BTreeMap<&DomainName, Vec<usize>> = BTreeMap::new();
        let classes = places.classes().iter().filter(|(key, _)| class_unfit(fleet, spec, key).is_none());
        for (domain, shelf) in classes.flat_map(|(_, class)| class) {
            domains.entry(domain).or_default().push(*shelf);
        }
        let domains: Vec<_> =
            domains.into_iter().map(|(domain, shelves)| (domain.clone(), shelves)).collect();
        let order =
            domains.iter().enumerate().map(|(rank, (domain, _))| (load(index, domain), rank)).collect();
        Field {
            spec: Arc::clone(spec),
            shape: Arc::clone(places.shape()),
            eased: index.map(|index| Arc::clone(&index.eased)).unwrap_or_default(),
            needs: spec.amounts(),
            volumes: spec.volumes(),
            domains,
            order,
        }
    }

    /// Whether it says what would be found out now, but for loads that have grown.
    fn holds(&self, fleet: &Fleet, index: Option<&PlanIndex>, spec: &Arc<PlanSpec>) -> bool {
        Arc::ptr_eq(&self.spec, spec)
            && Arc::ptr_eq(&self.shape, fleet.index().places.shape())
            && index.is_some_and(|index| Arc::ptr_eq(&self.eased, &index.eased))
    }

    fn best(&mut self, fleet: &Fleet, index: Option<&PlanIndex>) -> Option<Place> {
        let places = &fleet.index().places;
        let suits = |node: &NodeName| {
            let shared =
                self.spec.sharing == Sharing::Allowed || index.is_none_or(|i| i.hosts.get(node) == 0);
            shared && places.lacks_storage(node, &self.volumes).is_none()
        };
        let mut next = self.order.first().copied();
        while let Some((known, rank)) = next {
            let (domain, shelves) = &self.domains[rank];
            let now = load(index, domain);
            if now > known {
                // Those behind it may come before it.
                self.order.remove(&(known, rank));
                self.order.insert((now, rank));
                next = self.order.range((known, rank)..).next().copied();
                continue;
            }
            let best = shelves.iter().filter_map(|at| places.shelf(*at).best(self.needs, suits)).min();
            if let Some(free) = best {
                return Some(Place { node: free.node.clone(), domain: domain.clone() });
            }
            next = self.order.range((Bound::Excluded((known, rank)), Bound::Unbounded)).next().copied();
        }
        None
    }
}

/// Why no node will do: a reason a node, nodes of one reason together.
pub fn explain(fleet: &Fleet, plan: &PlanName, spec: &PlanSpec) -> Vec<Unfit> {
    let mut reasons: BTreeMap<String, Unfit> = BTreeMap::new();
    for node in fleet.nodes().sorted() {
        let Some(reason) = unfit(fleet, plan, spec, node) else { continue };
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
pub fn unfit(fleet: &Fleet, plan: &PlanName, spec: &PlanSpec, node: &Node) -> Option<String> {
    let (NodeState::Allocated, Some(cluster)) = (node.state, &node.cluster) else {
        return Some(format!("the node is {}", node.state));
    };
    if let Some(reason) = class_unfit(fleet, spec, &class_of(cluster, node)) {
        return Some(reason);
    }
    let places = &fleet.index().places;
    let hosts = fleet.index().plan_index(plan).is_some_and(|index| index.hosts.get(&node.name) > 0);
    if spec.sharing == Sharing::Never && hosts {
        return Some("a replica of the plan is there already".into());
    }
    if let Some(class) = places.lacks_storage(&node.name, &spec.volumes()) {
        return Some(format!("too little storage of class {class}"));
    }
    let (needs, free) = (spec.amounts(), places.free(node));
    let short = [
        ("cpu", needs.cpu, free.cpu),
        ("memory", needs.memory, free.memory),
        ("disk", needs.disk, free.disk),
    ];
    short.into_iter().find(|(_, needed, free)| needed > free).map(|(what, ..)| format!("too little {what}"))
}

/// The first reason against every node of the class, if there is one.
fn class_unfit(fleet: &Fleet, spec: &PlanSpec, class: &ClassKey) -> Option<String> {
    if fleet.clusters().get(&class.cluster).is_none_or(|cluster| cluster.activity == Activity::Inactive) {
        return Some(format!("cluster {} is not active", class.cluster));
    }
    if let Some(wanted) = &spec.cluster
        && *wanted != class.cluster
    {
        return Some(format!("not in cluster {wanted}"));
    }
    if let Some(zone) = &spec.zone
        && class.zone.as_ref() != Some(zone)
    {
        return Some(format!("not in zone {zone}"));
    }
    for (key, value) in &spec.selectors {
        if class.labels.get(key) != Some(value) {
            return Some(format!("no label {key}={value}"));
        }
    }
    spec.matchers.iter().find_map(|matcher| mismatch(fleet, matcher, &class.capabilities))
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
