//! Nodes by the properties that placement needs: class first, then update domain, then free capacity.
//!
//! Nodes with equal cluster, zone, labels and capabilities form a *class*. The conditions of a plan are
//! evaluated once for each class, not for each node. A class has a [`FreeCapacityIndex`] for each update domain: its
//! nodes by free capacity, from which the best fit is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use chancery_events::id::IncarnationId;
use chancery_events::name::{
    CapabilityName, ClusterName, DomainName, KeyName, NodeName, PlanName, StorageClass, ZoneName,
};
use chancery_events::resources::Resources;
use chancery_events::spec::NodeState;
use rustc_hash::FxHashMap;

use crate::free_capacity::{FreeCapacity, FreeCapacityIndex};
use crate::index::mark;
use crate::state::Node;

/// Common properties of the nodes of a class.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NodeClass {
    /// Cluster name.
    pub cluster: ClusterName,
    /// Zone name.
    pub zone: Option<ZoneName>,
    /// Node labels.
    pub labels: BTreeMap<KeyName, String>,
    /// Capability names.
    pub capabilities: BTreeSet<CapabilityName>,
}

/// Shelves of a class, by update domain.
pub type ClassDomains = BTreeMap<DomainName, usize>;

/// Reservations on a node.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NodeReservations {
    /// Reserved resources.
    pub resources: Resources,
    /// Storage reserved for volumes that do not exist yet, bytes by class.
    pub reserved_storage: BTreeMap<StorageClass, u64>,
    /// Storage reserved by volumes, bytes by class.
    pub stored: BTreeMap<StorageClass, u64>,
    /// Incarnations with a reservation, in the order of plans. A list is read contiguously, unlike a tree.
    pub incarnations: Vec<(PlanName, IncarnationId)>,
    /// Incarnations whose start was not requested.
    pub reserved: BTreeSet<IncarnationId>,
}

static NOTHING: NodeReservations = NodeReservations {
    resources: Resources::ZERO,
    reserved_storage: BTreeMap::new(),
    stored: BTreeMap::new(),
    incarnations: Vec::new(),
    reserved: BTreeSet::new(),
};

impl NodeReservations {
    /// Plans of the incarnations, each once.
    pub(crate) fn plans(&self) -> impl Iterator<Item = &PlanName> {
        let next = |last: &&PlanName| {
            let behind = self.incarnations.partition_point(|(plan, _)| plan <= *last);
            self.incarnations.get(behind).map(|(plan, _)| plan)
        };
        std::iter::successors(self.incarnations.first().map(|(plan, _)| plan), next)
    }

    /// Incarnations of the plan, starting after `behind` and wrapping around.
    pub(crate) fn of_plan(
        &self,
        plan: &PlanName,
        behind: Option<IncarnationId>,
    ) -> impl Iterator<Item = IncarnationId> {
        let first = self.incarnations.partition_point(|(of, _)| of < plan);
        let own = &self.incarnations[first..];
        let own = &own[..own.partition_point(|(of, _)| of == plan)];
        let turn = behind.map_or(0, |behind| own.partition_point(|(_, id)| *id <= behind));
        own[turn..].iter().chain(&own[..turn]).map(|(_, id)| *id)
    }

    fn run(&mut self, plan: &PlanName, id: IncarnationId, change: PlaceChange) {
        let place = self.incarnations.binary_search_by(|(of, other)| (of, *other).cmp(&(plan, id)));
        match (place, change) {
            (Err(place), PlaceChange::Take) => self.incarnations.insert(place, (plan.clone(), id)),
            (Ok(place), PlaceChange::GiveBack) => drop(self.incarnations.remove(place)),
            (Ok(_), PlaceChange::Take) | (Err(_), PlaceChange::GiveBack) => {}
        }
    }

    /// Reserved storage of the class, in bytes.
    pub fn storage(&self, class: &StorageClass) -> u64 {
        let of = |sums: &BTreeMap<StorageClass, u64>| sums.get(class).copied().unwrap_or(0);
        of(&self.reserved_storage).saturating_add(of(&self.stored))
    }
}

/// Change of a reservation on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlaceChange {
    /// Reservation by an incarnation, a volume or a replica.
    Take,
    /// Release of a reservation.
    GiveBack,
}

impl PlaceChange {
    /// Returns the number of reservations after the change.
    pub(crate) fn applied_to(self, count: u32) -> u32 {
        match self {
            PlaceChange::Take => count + 1,
            PlaceChange::GiveBack => count.saturating_sub(1),
        }
    }
}

/// Reservation of an incarnation, to be added or released.
pub(crate) struct ReservationChange<'a> {
    pub(crate) incarnation: IncarnationId,
    pub(crate) plan: &'a PlanName,
    pub(crate) node: &'a NodeName,
    pub(crate) resources: Resources,
    pub(crate) reserved_storage: &'a BTreeMap<StorageClass, u64>,
    /// Whether no start was requested.
    pub(crate) reserved: bool,
}

/// Class, domain and shelf of an allocated node.
#[derive(Clone, Debug)]
struct NodeSlot {
    class: Arc<NodeClass>,
    domain: DomainName,
    capacity: Resources,
    free_capacity: usize,
    number: SiteNumber,
}

/// Number of a node, faster to read than its name. It depends on history: another fold gives another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub(crate) struct SiteNumber(u32);

/// Everything known of a node here.
#[derive(Clone, Default, Debug)]
struct NodeEntry {
    number: SiteNumber,
    spot: Option<NodeSlot>,
    held: NodeReservations,
    storage: BTreeMap<StorageClass, u64>,
    is_expunged: bool,
}

/// Nodes by the properties that placement needs.
#[derive(Clone, Default)]
pub struct CapacityIndex {
    /// Classes of allocated nodes.
    pub(crate) classes: BTreeMap<Arc<NodeClass>, ClassDomains>,
    /// Shelves of classes; spare shelves are empty, and reused.
    indexes: Vec<FreeCapacityIndex>,
    spare: Vec<usize>,
    sites: NodeEntries,
    /// Token replaced when the classes or their domains change, or a cluster or capability does.
    pub(crate) topology_token: Arc<()>,
    /// Token replaced when a node may have more free capacity.
    pub(crate) freed: Arc<()>,
}

#[derive(Clone, Default)]
struct NodeEntries {
    by_name: FxHashMap<NodeName, NodeEntry>,
    /// Numbers of unknown nodes: a rollback may name a node before it exists again.
    gone: FxHashMap<NodeName, SiteNumber>,
    /// Names of nodes by number.
    names: Vec<NodeName>,
}

impl NodeEntries {
    /// Returns the entry of the node, created if missing.
    fn of(&mut self, node: &NodeName) -> &mut NodeEntry {
        // Most nodes exist: no name is cloned for them.
        if !self.by_name.contains_key(node) {
            let number = self.gone.remove(node).unwrap_or_else(|| {
                self.names.push(node.clone());
                SiteNumber(u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX))
            });
            self.by_name.insert(node.clone(), NodeEntry { number, ..NodeEntry::default() });
        }
        self.by_name.get_mut(node).expect("it was inserted above")
    }

    /// Removes everything of a node except its number.
    fn forget(&mut self, node: &NodeName) {
        if let Some((name, site)) = self.by_name.remove_entry(node) {
            self.gone.insert(name, site.number);
        }
    }
}

impl NodeEntry {
    /// Whether nothing is known of the node: removing the entry loses nothing.
    fn is_empty(&self) -> bool {
        let NodeEntry { number: _, spot, held, storage, is_expunged } = self;
        spot.is_none() && storage.is_empty() && !*is_expunged && *held == NOTHING
    }
}

impl CapacityIndex {
    /// Records that clusters or capabilities may have changed.
    pub(crate) fn reshape(&mut self) {
        self.topology_token = Arc::new(());
    }

    pub(crate) fn shelf(&self, number: usize) -> &FreeCapacityIndex {
        &self.indexes[number]
    }

    /// Number of the node, if it was ever known.
    pub(crate) fn number(&self, node: &NodeName) -> Option<SiteNumber> {
        let known = self.sites.by_name.get(node).map(|site| site.number);
        known.or_else(|| self.sites.gone.get(node).copied())
    }

    /// Name of the node with the number.
    pub(crate) fn name(&self, number: SiteNumber) -> Option<&NodeName> {
        self.sites.names.get(number.0 as usize)
    }

    /// Cluster and update domain of a node that accepts placements.
    pub(crate) fn whereabouts(&self, node: &NodeName) -> Option<(&ClusterName, &DomainName)> {
        let spot = self.sites.by_name.get(node)?.spot.as_ref()?;
        Some((&spot.class.cluster, &spot.domain))
    }

    /// Reservations on the node.
    pub fn held(&self, node: &NodeName) -> &NodeReservations {
        self.sites.by_name.get(node).map_or(&NOTHING, |site| &site.held)
    }

    /// Unreserved resources of the node for placements.
    pub fn free(&self, node: &Node) -> Resources {
        capacity(node).checked_sub(self.held(&node.name).resources).unwrap_or(Resources::ZERO)
    }

    /// First of the required storage classes of which the node has too little.
    pub fn lacks_storage<'a>(
        &self,
        node: &NodeName,
        volumes: &'a BTreeMap<StorageClass, u64>,
    ) -> Option<&'a StorageClass> {
        if volumes.is_empty() {
            return None;
        }
        let site = self.sites.by_name.get(node);
        let free = |class| {
            let site = site?;
            Some(site.storage.get(class)?.saturating_sub(site.held.storage(class)))
        };
        volumes
            .iter()
            .find(|(class, needed)| free(*class).is_none_or(|free| free < **needed))
            .map(|(class, _)| class)
    }

    /// Adds or releases storage that a volume reserves.
    pub(crate) fn store(&mut self, node: &NodeName, class: &StorageClass, bytes: u64, change: PlaceChange) {
        let site = self.sites.of(node);
        match change {
            PlaceChange::Take => *site.held.stored.entry(class.clone()).or_default() += bytes,
            PlaceChange::GiveBack => {
                self.freed = Arc::new(());
                give_back(&mut site.held.stored, class, bytes);
                if site.is_empty() {
                    self.sites.forget(node);
                }
            }
        }
    }

    pub(crate) fn incarnations(&self, node: &NodeName) -> impl Iterator<Item = IncarnationId> {
        self.held(node).incarnations.iter().map(|(_, id)| *id)
    }

    /// Records whether the incarnation's reservation is still unstarted.
    pub(crate) fn reserve(&mut self, node: &NodeName, incarnation: IncarnationId, is_reserved: bool) {
        if let Some(site) = self.sites.by_name.get_mut(node) {
            mark(&mut site.held.reserved, incarnation, is_reserved);
        }
    }

    pub(crate) fn is_expunged(&self, node: &NodeName) -> bool {
        self.sites.by_name.get(node).is_some_and(|site| site.is_expunged)
    }

    pub(crate) fn node(&mut self, name: &NodeName, new: Option<&Node>) {
        self.freed = Arc::new(());
        let site = self.sites.of(name);
        let mut site = std::mem::replace(site, NodeEntry { number: site.number, ..NodeEntry::default() });
        if let Some(spot) = site.spot.take() {
            self.indexes[spot.free_capacity].take(name, spot.free(&site.held));
            self.leave(&spot);
        }
        (site.storage, site.is_expunged) = (BTreeMap::new(), false);
        if let Some(new) = new {
            site.storage = new.spec.storage.iter().map(|s| (s.class.clone(), s.capacity)).collect();
            site.is_expunged = new.state == NodeState::Expunged;
            let open = new.is_schedulable();
            if let (NodeState::Allocated, Some(cluster), true) = (new.state, &new.cluster, open) {
                let spot = self.join(class_of(cluster, new), &new.spec.domain, capacity(new), site.number);
                self.indexes[spot.free_capacity].add(FreeCapacity::new(
                    spot.free(&site.held),
                    name.clone(),
                    spot.number,
                ));
                site.spot = Some(spot);
            }
        }
        if new.is_some() || !site.is_empty() {
            *self.sites.of(name) = site;
        } else {
            self.sites.forget(name);
        }
    }

    /// Assigns a node to the shelf of the class and domain, created if missing.
    fn join(
        &mut self,
        class: NodeClass,
        domain: &DomainName,
        capacity: Resources,
        number: SiteNumber,
    ) -> NodeSlot {
        let known = self.classes.get_key_value(&class).map(|(known, _)| Arc::clone(known));
        let class = known.unwrap_or_else(|| Arc::new(class));
        let domains = self.classes.entry(Arc::clone(&class)).or_default();
        let at = if let Some(at) = domains.get(domain) {
            *at
        } else {
            let at = self.spare.pop().unwrap_or_else(|| {
                self.indexes.push(FreeCapacityIndex::default());
                self.indexes.len() - 1
            });
            domains.insert(domain.clone(), at);
            self.topology_token = Arc::new(());
            at
        };
        NodeSlot { class, domain: domain.clone(), capacity, free_capacity: at, number }
    }

    /// Frees the shelf if it has no more nodes.
    fn leave(&mut self, spot: &NodeSlot) {
        if !self.indexes[spot.free_capacity].is_empty() {
            return;
        }
        self.spare.push(spot.free_capacity);
        self.topology_token = Arc::new(());
        if let Some(domains) = self.classes.get_mut(&spot.class) {
            domains.remove(&spot.domain);
            if domains.is_empty() {
                self.classes.remove(&spot.class);
            }
        }
    }

    /// Adds or releases a reservation. Returns the number of the node.
    pub(crate) fn hold(&mut self, of: &ReservationChange<'_>, change: PlaceChange) -> SiteNumber {
        let site = self.sites.of(of.node);
        let number = site.number;
        let NodeEntry { spot, held, .. } = site;
        let before = spot.as_ref().map(|spot| spot.free(held));
        held.run(of.plan, of.incarnation, change);
        if of.reserved {
            mark(&mut held.reserved, of.incarnation, change == PlaceChange::Take);
        }
        match change {
            PlaceChange::Take => {
                held.resources += of.resources;
                for (class, bytes) in of.reserved_storage {
                    *held.reserved_storage.entry(class.clone()).or_default() += bytes;
                }
            }
            PlaceChange::GiveBack => {
                self.freed = Arc::new(());
                held.resources = held.resources.checked_sub(of.resources).unwrap_or(Resources::ZERO);
                for (class, bytes) in of.reserved_storage {
                    give_back(&mut held.reserved_storage, class, *bytes);
                }
                if held.incarnations.is_empty() {
                    *held = NodeReservations {
                        stored: std::mem::take(&mut held.stored),
                        ..NodeReservations::default()
                    };
                }
            }
        }
        if let (Some(spot), Some(before)) = (spot.as_ref(), before) {
            self.indexes[spot.free_capacity].change(of.node, before, spot.free(held));
        } else if site.is_empty() {
            self.sites.forget(of.node);
        }
        number
    }
}

fn give_back(sums: &mut BTreeMap<StorageClass, u64>, class: &StorageClass, bytes: u64) {
    if let Some(sum) = sums.get_mut(class) {
        *sum = sum.saturating_sub(bytes);
        if *sum == 0 {
            sums.remove(class);
        }
    }
}

/// Prints the logical content, in order: numbers of shelves depend on history.
impl fmt::Debug for CapacityIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indexes = self.classes.iter().map(|(class, domains)| {
            let free_indexes: BTreeMap<_, _> =
                domains.iter().map(|(domain, at)| (domain, self.shelf(*at))).collect();
            (class, free_indexes)
        });
        let sites: BTreeMap<_, _> = self
            .sites
            .by_name
            .iter()
            .map(|(node, site)| {
                (node, (site.spot.as_ref().map(|s| s.capacity), &site.held, &site.storage, site.is_expunged))
            })
            .filter(|(_, (capacity, held, storage, expunged))| {
                let holds = !held.incarnations.is_empty() || !held.stored.is_empty();
                capacity.is_some() || holds || !storage.is_empty() || *expunged
            })
            .collect();
        f.debug_map().entries(indexes).entries(sites).finish()
    }
}

impl NodeSlot {
    /// Unreserved resources of the node.
    fn free(&self, held: &NodeReservations) -> Resources {
        self.capacity.checked_sub(held.resources).unwrap_or(Resources::ZERO)
    }
}

/// Class of a node in a cluster.
pub(crate) fn class_of(cluster: &ClusterName, node: &Node) -> NodeClass {
    NodeClass {
        cluster: cluster.clone(),
        zone: node.spec.zone.clone(),
        labels: node.spec.labels.clone(),
        capabilities: node.spec.capabilities.iter().cloned().collect(),
    }
}

/// Resources of a node for placements: the total without the reserved part.
pub(crate) fn capacity(node: &Node) -> Resources {
    node.spec.resources.checked_sub(node.spec.reserved).unwrap_or(Resources::ZERO)
}
