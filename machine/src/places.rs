//! Nodes by what placement asks of them: first what they are, then where, then what is free.
//!
//! Nodes that are alike in cluster, zone, labels, capabilities stand in one *class*, so that the conditions of a
//! plan are asked once a class and not once a node; in a class, by update domain and by what is free, so that the
//! best fit is found from an ordered set.

use std::collections::{BTreeMap, BTreeSet};

use chancery_events::amount::Amounts;
use chancery_events::id::IncarnationId;
use chancery_events::name::{CapabilityName, ClusterName, DomainName, Key, NodeName, StorageClass, ZoneName};
use chancery_events::planted::{self, Bug};
use chancery_events::spec::NodeState;

use crate::state::{Incarnation, Node};

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

/// What is free on a node, the least first.
type Free = (u64, u64, u64, NodeName);

/// Allocated nodes of a class, by update domain.
pub type Class = BTreeMap<DomainName, BTreeSet<Free>>;

/// What placements hold of a node.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Held {
    /// Of its amounts.
    pub amounts: Amounts,
    /// Of its storage.
    pub volumes: BTreeMap<StorageClass, u64>,
    /// By which incarnations.
    pub incarnations: BTreeSet<IncarnationId>,
}

#[derive(Clone, Debug)]
struct Spot {
    class: ClassKey,
    domain: DomainName,
    room: Amounts,
}

/// Nodes by what placement asks of them.
#[derive(Clone, Debug, Default)]
pub struct Places {
    classes: BTreeMap<ClassKey, Class>,
    spots: BTreeMap<NodeName, Spot>,
    held: BTreeMap<NodeName, Held>,
    storage: BTreeMap<NodeName, BTreeMap<StorageClass, u64>>,
    expunged: BTreeSet<NodeName>,
}

impl Places {
    /// The classes of allocated nodes.
    pub fn classes(&self) -> &BTreeMap<ClassKey, Class> {
        &self.classes
    }

    /// What placements hold of the node.
    pub fn held(&self, node: &NodeName) -> Held {
        self.held.get(node).cloned().unwrap_or_default()
    }

    /// What the node has for placements and is not held.
    pub fn free(&self, node: &Node) -> Amounts {
        let held = self.held.get(&node.name).map_or(Amounts::ZERO, |held| held.amounts);
        room(node).checked_sub(held).unwrap_or(Amounts::ZERO)
    }

    /// Whether the node's storage has room for the volumes, by class.
    pub fn has_storage(
        &self,
        node: &NodeName,
        volumes: &BTreeMap<StorageClass, u64>,
    ) -> Option<StorageClass> {
        let empty = BTreeMap::new();
        let capacity = self.storage.get(node).unwrap_or(&empty);
        let held = self.held.get(node).map_or(&empty, |held| &held.volumes);
        volumes
            .iter()
            .find(|(class, needed)| {
                let free =
                    capacity.get(*class).map(|c| c.saturating_sub(held.get(*class).copied().unwrap_or(0)));
                free.is_none_or(|free| free < **needed)
            })
            .map(|(class, _)| class.clone())
    }

    pub(crate) fn incarnations(&self, node: &NodeName) -> impl Iterator<Item = IncarnationId> {
        self.held.get(node).into_iter().flat_map(|held| held.incarnations.iter().copied())
    }

    pub(crate) fn is_expunged(&self, node: &NodeName) -> bool {
        self.expunged.contains(node)
    }

    pub(crate) fn node(&mut self, old: Option<&Node>, new: Option<&Node>) {
        if let Some(old) = old {
            self.unlist(&old.name);
            self.spots.remove(&old.name);
            self.storage.remove(&old.name);
            self.expunged.remove(&old.name);
        }
        let Some(new) = new else { return };
        let storage = new.spec.storage.iter().map(|s| (s.class.clone(), s.capacity)).collect();
        self.storage.insert(new.name.clone(), storage);
        if new.state == NodeState::Expunged {
            self.expunged.insert(new.name.clone());
        }
        if let (NodeState::Allocated, Some(cluster)) = (new.state, &new.cluster) {
            let class = ClassKey {
                cluster: cluster.clone(),
                zone: new.spec.zone.clone(),
                labels: new.spec.labels.clone(),
                capabilities: new.spec.capabilities.iter().cloned().collect(),
            };
            let spot = Spot { class, domain: new.spec.domain.clone(), room: room(new) };
            self.spots.insert(new.name.clone(), spot);
            self.list(&new.name);
        }
    }

    pub(crate) fn hold(&mut self, incarnation: &Incarnation, up: bool) {
        self.unlist(&incarnation.node);
        let held = self.held.entry(incarnation.node.clone()).or_default();
        if up {
            held.amounts += incarnation.amounts;
            held.incarnations.insert(incarnation.id);
            for (class, bytes) in &incarnation.volumes {
                *held.volumes.entry(class.clone()).or_default() += bytes;
            }
        } else {
            let times = if planted::is(Bug::NeverReleases) {
                0
            } else {
                1 + u8::from(planted::is(Bug::ReleasesTwice))
            };
            for _ in 0..times {
                held.amounts = held.amounts.checked_sub(incarnation.amounts).unwrap_or(Amounts::ZERO);
            }
            held.incarnations.remove(&incarnation.id);
            for (class, bytes) in &incarnation.volumes {
                if let Some(sum) = held.volumes.get_mut(class) {
                    *sum = sum.saturating_sub(*bytes);
                    if *sum == 0 {
                        held.volumes.remove(class);
                    }
                }
            }
            if held.incarnations.is_empty() && !planted::is(Bug::NeverReleases) {
                self.held.remove(&incarnation.node);
            }
        }
        self.list(&incarnation.node);
    }

    fn entry(&self, node: &NodeName) -> Option<(&Spot, Free)> {
        let spot = self.spots.get(node)?;
        let held = self.held.get(node).filter(|_| !planted::is(Bug::IgnoresHeld));
        let held = held.map_or(Amounts::ZERO, |held| held.amounts);
        let free = spot.room.checked_sub(held).unwrap_or(Amounts::ZERO);
        Some((spot, (free.cpu, free.memory, free.disk, node.clone())))
    }

    fn list(&mut self, node: &NodeName) {
        let Some((spot, free)) = self.entry(node) else { return };
        let (class, domain) = (spot.class.clone(), spot.domain.clone());
        self.classes.entry(class).or_default().entry(domain).or_default().insert(free);
    }

    fn unlist(&mut self, node: &NodeName) {
        let Some((spot, free)) = self.entry(node) else { return };
        let (class_key, domain) = (spot.class.clone(), spot.domain.clone());
        let Some(class) = self.classes.get_mut(&class_key) else { return };
        if let Some(nodes) = class.get_mut(&domain) {
            nodes.remove(&free);
            if nodes.is_empty() {
                class.remove(&domain);
            }
        }
        if class.is_empty() {
            self.classes.remove(&class_key);
        }
    }
}

/// What a node has for placements.
pub(crate) fn room(node: &Node) -> Amounts {
    node.spec.total.checked_sub(node.spec.reserved).unwrap_or(Amounts::ZERO)
}
