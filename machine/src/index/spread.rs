//! Spread of a plan's replicas: current reservations by node, and the replicas that remain if everything in
//! progress succeeds, by node and update domain.
//!
//! A replica that is being replaced has two reservations and remains in one: that of the replacement, unless
//! it is given up. A replica that is being deleted or stopped remains nowhere. Placements count what remains.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use chancery_events::name::{DomainName, NodeName};

use super::LookupMap;
use crate::capacity_index::{CapacityIndex, PlaceChange, SiteNumber};
use crate::index_keys::{IndexChange, ReplicaIndexKey, sides};
use rustc_hash::FxHashMap;

/// Replicas of a plan on a node.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NodeCount {
    /// Replicas with a reservation on the node now.
    pub held: u32,
    /// Number of replicas that remain on the node if everything in progress succeeds.
    pub remaining: u32,
    /// Incarnations with a reservation on the node now: a replica may have two.
    pub runs: u32,
}

/// Replicas of a plan in an update domain.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct DomainCount {
    /// Number of replicas that remain in the domain if everything in progress succeeds.
    pub remaining: u32,
    /// Nodes on which more than one replica remains, the fullest last.
    pub crowded: BTreeSet<(u32, NodeName)>,
}

/// Spread of a plan: see the module.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PlanSpread {
    nodes: FxHashMap<SiteNumber, NodeCount>,
    domains: LookupMap<DomainName, DomainCount>,
    /// Number of domains in which more than one replica remains.
    crowded: u32,
    /// Token replaced when fewer replicas remain in a domain.
    pub(crate) spread_token: Arc<()>,
    /// Token replaced when there are fewer replicas on a node, now or remaining.
    pub(crate) thinned: Arc<()>,
}

impl PlanSpread {
    /// Replicas on the node with the number.
    pub(crate) fn on_site(&self, node: SiteNumber) -> NodeCount {
        self.nodes.get(&node).copied().unwrap_or_default()
    }

    /// Replicas on the node with the name.
    pub(crate) fn on_node(&self, places: &CapacityIndex, node: &NodeName) -> NodeCount {
        places.number(node).map(|number| self.on_site(number)).unwrap_or_default()
    }

    /// Nodes with reservations of the plan, each with its number of incarnations, in no order.
    pub(crate) fn nodes<'a>(
        &'a self,
        places: &'a CapacityIndex,
    ) -> impl Iterator<Item = (&'a NodeName, u32)> {
        let nodes = self.nodes.iter().filter(|(_, count)| count.runs > 0);
        nodes.filter_map(|(site, count)| Some((places.name(*site)?, count.runs)))
    }

    /// Updates the counts after a reservation of an incarnation was added or released.
    pub(super) fn incarnation(&mut self, node: SiteNumber, change: PlaceChange) {
        let count = self.nodes.entry(node).or_default();
        count.runs = change.applied_to(count.runs);
        if *count == NodeCount::default() {
            self.nodes.remove(&node);
        }
    }

    /// Number of replicas that remain in the domain if everything in progress succeeds.
    pub fn in_domain(&self, domain: &DomainName) -> u32 {
        self.domains.get(domain).map_or(0, |count| count.remaining)
    }

    /// Nodes of the domain on which more than one replica remains, the fullest first, then the last by name.
    pub(crate) fn crowded_nodes(&self, domain: &DomainName) -> impl Iterator<Item = &(u32, NodeName)> {
        self.domains.get(domain).into_iter().flat_map(|count| count.crowded.iter().rev())
    }

    /// Whether more than one replica remains in a domain: else the spread is as even as can be.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded > 0
    }

    /// Number of replicas that remain in each domain if everything in progress succeeds; empty domains are
    /// left out.
    pub fn domains(&self) -> BTreeMap<DomainName, u32> {
        let remaining = self.domains.iter().filter(|(_, count)| count.remaining > 0);
        remaining.map(|(domain, count)| (domain.clone(), count.remaining)).collect()
    }

    /// Updates the counts after a change of a replica.
    pub(super) fn replica(&mut self, places: &CapacityIndex, both: IndexChange<'_, ReplicaIndexKey>) {
        let [old, new] = both;
        let remaining = sides(both, |key| key.and_then(ReplicaIndexKey::remains));
        if let (Some(old), Some(new)) = (old, new)
            && old.places == new.places
            && remaining[0] == remaining[1]
        {
            return;
        }
        let holds =
            |index_key: Option<&ReplicaIndexKey>, place| index_key.is_some_and(|marks| marks.holds(place));
        for (side, key) in both.into_iter().enumerate() {
            for place in key.into_iter().flat_map(|key| key.places.iter().flatten()) {
                let held = [holds(old, place), holds(new, place)];
                let is_counted = side == 1 && held[0];
                let remains = [remaining[0] == Some(place), remaining[1] == Some(place)];
                if is_counted || (held[0] == held[1] && remains[0] == remains[1]) {
                    continue;
                }
                let site = places.number(&place.0);
                debug_assert!(site.is_some(), "a node is known as long as there is a place on it");
                if let Some(site) = site {
                    self.step(site, place, held, remains);
                }
            }
        }
        let [from, to] = sides(remaining, |place| place.map(|(_, domain)| domain));
        if from != to {
            for (domain, change) in [(from, PlaceChange::GiveBack), (to, PlaceChange::Take)] {
                if let Some(domain) = domain {
                    self.domain(domain, change);
                }
            }
        }
    }

    fn step(
        &mut self,
        site: SiteNumber,
        (node, domain): &(NodeName, DomainName),
        held: [bool; 2],
        remaining: [bool; 2],
    ) {
        let count = self.nodes.entry(site).or_default();
        let was = count.remaining;
        count.held = count.held + u32::from(held[1]) - u32::from(held[0]);
        count.remaining = was + u32::from(remaining[1]) - u32::from(remaining[0]);
        let now = count.remaining;
        if *count == NodeCount::default() {
            self.nodes.remove(&site);
        }
        if held == [true, false] || remaining == [true, false] {
            self.thinned = Arc::new(());
        }
        let is_crowded = |count: u32| count > 1;
        if was != now && (is_crowded(was) || is_crowded(now)) {
            let of = self.domains.entry(domain.clone()).or_default();
            of.crowded.remove(&(was, node.clone()));
            if is_crowded(now) {
                of.crowded.insert((now, node.clone()));
            }
            self.drop_empty(domain);
        }
    }

    fn domain(&mut self, domain: &DomainName, change: PlaceChange) {
        let count = match self.domains.get_mut(domain) {
            Some(count) => count,
            None => self.domains.entry(domain.clone()).or_default(),
        };
        let was = count.remaining;
        count.remaining = change.applied_to(was);
        match (was, count.remaining) {
            (1, 2) => self.crowded += 1,
            (2, 1) => self.crowded -= 1,
            _ => {}
        }
        if change == PlaceChange::GiveBack {
            self.spread_token = Arc::new(());
            self.drop_empty(domain);
        }
    }

    fn drop_empty(&mut self, domain: &DomainName) {
        if self.domains.get(domain).is_some_and(|count| *count == DomainCount::default()) {
            self.domains.remove(domain);
        }
    }
}

impl fmt::Debug for PlanSpread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlanSpread { nodes, domains, crowded, spread_token: _, thinned: _ } = self;
        // Numbers of nodes depend on history.
        let mut nodes: Vec<_> =
            nodes.values().map(|count| (count.held, count.remaining, count.runs)).collect();
        nodes.sort_unstable();
        f.debug_tuple("PlanSpread").field(&nodes).field(domains).field(crowded).finish()
    }
}
