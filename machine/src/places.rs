//! Nodes by what placement asks of them: first what they are, then where, then what is free.
//!
//! Nodes that are alike in cluster, zone, labels, capabilities stand in one *class*, so that the conditions of a
//! plan are asked once a class and not once a node; in a class, by update domain, each with a [`Shelf`] of its nodes
//! by what is free, from which the best fit is taken.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use chancery_events::amount::Amounts;
use chancery_events::id::IncarnationId;
use chancery_events::name::{
    CapabilityName, ClusterName, DomainName, Key, NodeName, PlanName, StorageClass, ZoneName,
};
use chancery_events::spec::NodeState;
use rustc_hash::FxHashMap;

use crate::index::mark;
use crate::shelf::{Free, Shelf};
use crate::state::Node;

/// What nodes of a class have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ClassKey {
    /// Their cluster.
    pub cluster: ClusterName,
    /// Their zone.
    pub zone: Option<ZoneName>,
    /// Their labels.
    pub labels: BTreeMap<Key, String>,
    /// Their capabilities, by name.
    pub capabilities: BTreeSet<CapabilityName>,
}

/// The shelves of a class, by update domain.
pub type Class = BTreeMap<DomainName, usize>;

/// What placements hold of a node.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// Of its amounts.
    pub amounts: Amounts,
    /// Of its storage, for volumes that are not there yet.
    pub volumes: BTreeMap<StorageClass, u64>,
    /// Of its storage, by volumes.
    pub stored: BTreeMap<StorageClass, u64>,
    /// By which incarnations, of which plans, in order: a list is read in one piece where a tree is not.
    pub incarnations: Vec<(PlanName, IncarnationId)>,
    /// Those of them that nobody was asked to start.
    pub reserved: BTreeSet<IncarnationId>,
}

static NOTHING: Held = Held {
    amounts: Amounts::ZERO,
    volumes: BTreeMap::new(),
    stored: BTreeMap::new(),
    incarnations: Vec::new(),
    reserved: BTreeSet::new(),
};

impl Held {
    /// The plans of which something runs there, each once.
    pub(crate) fn plans(&self) -> impl Iterator<Item = &PlanName> {
        let next = |last: &&PlanName| {
            let behind = self.incarnations.partition_point(|(plan, _)| plan <= *last);
            self.incarnations.get(behind).map(|(plan, _)| plan)
        };
        std::iter::successors(self.incarnations.first().map(|(plan, _)| plan), next)
    }

    /// What runs there of the plan: what comes behind one first.
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

    /// Bytes of storage of the class.
    pub fn storage(&self, class: &StorageClass) -> u64 {
        let of = |sums: &BTreeMap<StorageClass, u64>| sums.get(class).copied().unwrap_or(0);
        of(&self.volumes).saturating_add(of(&self.stored))
    }
}

/// What happens to a place on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlaceChange {
    /// An incarnation, a volume or a replica takes the place.
    Take,
    /// The place is given back.
    GiveBack,
}

impl PlaceChange {
    /// A count of places after the change.
    pub(crate) fn applied_to(self, count: u32) -> u32 {
        match self {
            PlaceChange::Take => count + 1,
            PlaceChange::GiveBack => count.saturating_sub(1),
        }
    }
}

/// What a place holds, or gives back.
pub(crate) struct Holding<'a> {
    pub(crate) incarnation: IncarnationId,
    pub(crate) plan: &'a PlanName,
    pub(crate) node: &'a NodeName,
    pub(crate) amounts: Amounts,
    pub(crate) volumes: &'a BTreeMap<StorageClass, u64>,
    /// Whether nobody was asked to start it.
    pub(crate) reserved: bool,
}

/// Where an allocated node stands.
#[derive(Clone, Debug)]
struct Spot {
    class: Arc<ClassKey>,
    domain: DomainName,
    room: Amounts,
    shelf: usize,
    number: SiteNumber,
}

/// A node as a number, which is quicker to look up than its name. It follows from the past: another fold gives another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub(crate) struct SiteNumber(u32);

/// What is known of a node here.
#[derive(Clone, Debug)]
struct Site {
    number: SiteNumber,
    spot: Option<Spot>,
    held: Held,
    storage: BTreeMap<StorageClass, u64>,
    is_expunged: bool,
}

/// Nodes by what placement asks of them.
#[derive(Clone, Default)]
pub struct Places {
    classes: BTreeMap<Arc<ClassKey>, Class>,
    /// Those of classes; others are empty, and taken again.
    shelves: Vec<Shelf>,
    spare: Vec<usize>,
    sites: Sites,
    shape: Arc<()>,
    freed: Arc<()>,
}

/// What is known of nodes, by name.
#[derive(Clone, Default)]
struct Sites {
    by_name: FxHashMap<NodeName, Site>,
    /// Numbers of nodes of which nothing is known: what is rolled back may name one before it exists again.
    gone: FxHashMap<NodeName, SiteNumber>,
    /// Each node that has a number, by that.
    names: Vec<NodeName>,
}

impl Sites {
    fn get(&self, node: &NodeName) -> Option<&Site> {
        self.by_name.get(node)
    }

    fn get_mut(&mut self, node: &NodeName) -> Option<&mut Site> {
        self.by_name.get_mut(node)
    }

    /// What is known of the node, which may be nothing yet.
    fn of(&mut self, node: &NodeName) -> &mut Site {
        // Most are there: no name is cloned for those.
        if !self.by_name.contains_key(node) {
            let number = self.gone.remove(node).unwrap_or_else(|| {
                self.names.push(node.clone());
                SiteNumber(u32::try_from(self.names.len() - 1).unwrap_or(u32::MAX))
            });
            self.by_name.insert(node.clone(), Site::new(number));
        }
        self.by_name.get_mut(node).expect("it was inserted above")
    }

    /// Keeps nothing of a node but its number.
    fn forget(&mut self, node: &NodeName) {
        if let Some((name, site)) = self.by_name.remove_entry(node) {
            self.gone.insert(name, site.number);
        }
    }
}

impl Site {
    fn new(number: SiteNumber) -> Site {
        Site { number, spot: None, held: Held::default(), storage: BTreeMap::new(), is_expunged: false }
    }

    /// Whether nothing is known: perhaps the node is forgotten; if not, it is as it would be made anew.
    fn is_empty(&self) -> bool {
        let Site { number: _, spot, held, storage, is_expunged } = self;
        spot.is_none() && storage.is_empty() && !*is_expunged && *held == NOTHING
    }
}

impl Places {
    /// The classes of allocated nodes.
    pub fn classes(&self) -> &BTreeMap<Arc<ClassKey>, Class> {
        &self.classes
    }

    /// The same as long as classes and their domains are the same, and what is known of clusters and capabilities.
    pub fn shape(&self) -> &Arc<()> {
        &self.shape
    }

    /// What a class says besides, its clusters and capabilities, may have changed.
    pub(crate) fn reshape(&mut self) {
        self.shape = Arc::new(());
    }

    /// The same as long as no node has more free than it had.
    pub(crate) fn freed(&self) -> &Arc<()> {
        &self.freed
    }

    pub(crate) fn shelf(&self, number: usize) -> &Shelf {
        &self.shelves[number]
    }

    /// The node as a number, if it was ever known.
    pub(crate) fn number(&self, node: &NodeName) -> Option<SiteNumber> {
        let known = self.sites.get(node).map(|site| site.number);
        known.or_else(|| self.sites.gone.get(node).copied())
    }

    /// The name of the node with the number.
    pub(crate) fn name(&self, number: SiteNumber) -> Option<&NodeName> {
        self.sites.names.get(number.0 as usize)
    }

    /// Cluster and update domain of a node on which there may be placements.
    pub(crate) fn whereabouts(&self, node: &NodeName) -> Option<(&ClusterName, &DomainName)> {
        let spot = self.sites.get(node)?.spot.as_ref()?;
        Some((&spot.class.cluster, &spot.domain))
    }

    /// What placements hold of the node.
    pub fn held(&self, node: &NodeName) -> &Held {
        self.sites.get(node).map_or(&NOTHING, |site| &site.held)
    }

    /// What the node has for placements and is not held.
    pub fn free(&self, node: &Node) -> Amounts {
        room(node).checked_sub(self.held(&node.name).amounts).unwrap_or(Amounts::ZERO)
    }

    /// Of the classes of storage needed, the first of which the node has too little.
    pub fn lacks_storage<'a>(
        &self,
        node: &NodeName,
        volumes: &'a BTreeMap<StorageClass, u64>,
    ) -> Option<&'a StorageClass> {
        if volumes.is_empty() {
            return None;
        }
        let site = self.sites.get(node);
        let free = |class| {
            let site = site?;
            Some(site.storage.get(class)?.saturating_sub(site.held.storage(class)))
        };
        volumes
            .iter()
            .find(|(class, needed)| free(*class).is_none_or(|free| free < **needed))
            .map(|(class, _)| class)
    }

    /// A volume holds storage of the node, or gives it back.
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

    /// Somebody was asked to start what holds the place, or, taken back, nobody was.
    pub(crate) fn reserve(&mut self, node: &NodeName, incarnation: IncarnationId, is_reserved: bool) {
        if let Some(site) = self.sites.get_mut(node) {
            mark(&mut site.held.reserved, incarnation, is_reserved);
        }
    }

    pub(crate) fn is_expunged(&self, node: &NodeName) -> bool {
        self.sites.get(node).is_some_and(|site| site.is_expunged)
    }

    pub(crate) fn node(&mut self, name: &NodeName, new: Option<&Node>) {
        self.freed = Arc::new(());
        let site = self.sites.of(name);
        let mut site = std::mem::replace(site, Site::new(site.number));
        if let Some(spot) = site.spot.take() {
            self.shelves[spot.shelf].take(name, spot.free(&site.held));
            self.leave(&spot);
        }
        (site.storage, site.is_expunged) = (BTreeMap::new(), false);
        if let Some(new) = new {
            site.storage = new.spec.storage.iter().map(|s| (s.class.clone(), s.capacity)).collect();
            site.is_expunged = new.state == NodeState::Expunged;
            let open = new.is_undisturbed();
            if let (NodeState::Allocated, Some(cluster), true) = (new.state, &new.cluster, open) {
                let spot = self.join(class_of(cluster, new), &new.spec.domain, room(new), site.number);
                self.shelves[spot.shelf].add(Free::new(spot.free(&site.held), name.clone(), spot.number));
                site.spot = Some(spot);
            }
        }
        if new.is_some() || !site.is_empty() {
            *self.sites.of(name) = site;
        } else {
            self.sites.forget(name);
        }
    }

    /// A spot on the shelf of the class and domain, which may be a new one.
    fn join(&mut self, class: ClassKey, domain: &DomainName, room: Amounts, number: SiteNumber) -> Spot {
        let class = match self.classes.get_key_value(&class) {
            Some((class, _)) => Arc::clone(class),
            None => Arc::new(class),
        };
        let domains = self.classes.entry(Arc::clone(&class)).or_default();
        let at = if let Some(at) = domains.get(domain) {
            *at
        } else {
            let at = self.spare.pop().unwrap_or_else(|| {
                self.shelves.push(Shelf::default());
                self.shelves.len() - 1
            });
            domains.insert(domain.clone(), at);
            self.shape = Arc::new(());
            at
        };
        Spot { class, domain: domain.clone(), room, shelf: at, number }
    }

    /// Gives up the shelf if nobody stands there any more.
    fn leave(&mut self, spot: &Spot) {
        if !self.shelves[spot.shelf].is_empty() {
            return;
        }
        self.spare.push(spot.shelf);
        self.shape = Arc::new(());
        if let Some(domains) = self.classes.get_mut(&spot.class) {
            domains.remove(&spot.domain);
            if domains.is_empty() {
                self.classes.remove(&spot.class);
            }
        }
    }

    /// Takes a place, or gives it back. Returns the node as a number.
    pub(crate) fn hold(&mut self, of: &Holding<'_>, change: PlaceChange) -> SiteNumber {
        let site = self.sites.of(of.node);
        let number = site.number;
        let Site { spot, held, .. } = site;
        let before = spot.as_ref().map(|spot| spot.free(held));
        held.run(of.plan, of.incarnation, change);
        if of.reserved {
            mark(&mut held.reserved, of.incarnation, change == PlaceChange::Take);
        }
        match change {
            PlaceChange::Take => {
                held.amounts += of.amounts;
                for (class, bytes) in of.volumes {
                    *held.volumes.entry(class.clone()).or_default() += bytes;
                }
            }
            PlaceChange::GiveBack => {
                self.freed = Arc::new(());
                held.amounts = held.amounts.checked_sub(of.amounts).unwrap_or(Amounts::ZERO);
                for (class, bytes) in of.volumes {
                    give_back(&mut held.volumes, class, *bytes);
                }
                if held.incarnations.is_empty() {
                    *held = Held { stored: std::mem::take(&mut held.stored), ..Held::default() };
                }
            }
        }
        if let (Some(spot), Some(before)) = (spot.as_ref(), before) {
            self.shelves[spot.shelf].change(of.node, before, spot.free(held));
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

/// The logical content, in order: numbers of shelves follow from the past.
impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shelves = self.classes.iter().map(|(class, domains)| {
            let shelves: BTreeMap<_, _> =
                domains.iter().map(|(domain, at)| (domain, self.shelf(*at))).collect();
            (class, shelves)
        });
        let sites: BTreeMap<_, _> = self
            .sites
            .by_name
            .iter()
            .map(|(node, site)| {
                (node, (site.spot.as_ref().map(|s| s.room), &site.held, &site.storage, site.is_expunged))
            })
            .filter(|(_, (room, held, storage, expunged))| {
                let holds = !held.incarnations.is_empty() || !held.stored.is_empty();
                room.is_some() || holds || !storage.is_empty() || *expunged
            })
            .collect();
        f.debug_map().entries(shelves).entries(sites).finish()
    }
}

impl Spot {
    /// What is free of its room.
    fn free(&self, held: &Held) -> Amounts {
        self.room.checked_sub(held.amounts).unwrap_or(Amounts::ZERO)
    }
}

/// The class of a node in a cluster.
pub(crate) fn class_of(cluster: &ClusterName, node: &Node) -> ClassKey {
    ClassKey {
        cluster: cluster.clone(),
        zone: node.spec.zone.clone(),
        labels: node.spec.labels.clone(),
        capabilities: node.spec.capabilities.iter().cloned().collect(),
    }
}

/// What a node has for placements.
pub(crate) fn room(node: &Node) -> Amounts {
    node.spec.total.checked_sub(node.spec.reserved).unwrap_or(Amounts::ZERO)
}
