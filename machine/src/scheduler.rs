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

use chancery_events::fact::Unfit;
use chancery_events::name::{CapabilityName, DomainName, NodeName, PlanName};
use chancery_events::spec::{Activity, Comparator, Matcher, NodeState, PlanSpec, Sharing};

use crate::fleet::Fleet;
use crate::places::ClassKey;
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

/// The best place for one more replica of the plan, or why there is none, by node.
pub fn place(fleet: &Fleet, plan: &PlanName, spec: &PlanSpec) -> Result<Place, Vec<Unfit>> {
    best(fleet, plan, spec).ok_or_else(|| explain(fleet, plan, spec))
}

fn best(fleet: &Fleet, plan: &PlanName, spec: &PlanSpec) -> Option<Place> {
    let needs = spec.amounts();
    let volumes = spec.volumes();
    let index = fleet.index().plan_index(plan);
    let places = &fleet.index().places;
    let classes: Vec<_> = places
        .classes()
        .iter()
        .filter(|(key, _)| class_unfit(fleet, spec, key).is_none())
        .map(|(_, c)| c)
        .collect();
    let load = |domain: &DomainName| index.and_then(|i| i.domains.get(domain)).copied().unwrap_or(0);
    let domains: BTreeSet<_> =
        classes.iter().flat_map(|c| c.keys()).map(|domain| (load(domain), domain)).collect();
    let shared = |node: &NodeName| {
        spec.sharing == Sharing::Allowed || index.is_none_or(|index| !index.hosts.contains_key(node))
    };
    for (_, domain) in domains {
        let fits = classes.iter().filter_map(|class| {
            let from = (needs.cpu, 0, 0, first_name());
            class.get(domain)?.range(from..).find(|(_, memory, disk, node)| {
                needs.memory <= *memory
                    && needs.disk <= *disk
                    && shared(node)
                    && places.has_storage(node, &volumes).is_none()
            })
        });
        if let Some((.., node)) = fits.min() {
            return Some(Place { node: node.clone(), domain: domain.clone() });
        }
    }
    None
}

/// Sorts before every name.
fn first_name() -> NodeName {
    "0".parse().expect("a digit is a name")
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
    let class = ClassKey {
        cluster: cluster.clone(),
        zone: node.spec.zone.clone(),
        labels: node.spec.labels.clone(),
        capabilities: node.spec.capabilities.iter().cloned().collect(),
    };
    if let Some(reason) = class_unfit(fleet, spec, &class) {
        return Some(reason);
    }
    let places = &fleet.index().places;
    let hosts = fleet.index().plan_index(plan).is_some_and(|index| index.hosts.contains_key(&node.name));
    if spec.sharing == Sharing::Never && hosts {
        return Some("a replica of the plan is there already".into());
    }
    if let Some(class) = places.has_storage(&node.name, &spec.volumes()) {
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
