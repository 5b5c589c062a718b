//! Volumes: where they are, whose, who waits for them, and what there is to do for them.

use std::collections::{BTreeMap, BTreeSet};

use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::name::{NodeName, ReplicaName, VolumeName};

use super::mark;
use crate::marks::VolumeMarks;

/// What follows from volumes and those that are to use them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Volumes {
    names: BTreeMap<VolumeId, VolumeName>,
    owned: BTreeMap<ReplicaName, BTreeSet<VolumeName>>,
    on_nodes: BTreeMap<NodeName, BTreeSet<VolumeName>>,
    /// Those that may be there, for all that is known.
    present: BTreeSet<VolumeName>,
    /// Those whose users have to wait.
    blocking: BTreeSet<VolumeName>,
    /// What the runs need that wait for volumes alone.
    waiting: BTreeMap<IncarnationId, Vec<VolumeName>>,
    /// The same by volume.
    awaited: BTreeMap<VolumeName, BTreeSet<IncarnationId>>,
    /// Runs that wait no more.
    pub served: BTreeSet<IncarnationId>,
    /// Those that are to go, and that nothing uses.
    pub unused: BTreeSet<VolumeName>,
    /// Those that are not known to be lost, on nodes that are gone.
    pub lost: BTreeSet<VolumeName>,
}

impl Volumes {
    /// The volume of the id.
    pub fn name(&self, id: VolumeId) -> Option<&VolumeName> {
        self.names.get(&id)
    }

    /// The replica's own.
    pub fn owned(&self, replica: &ReplicaName) -> impl Iterator<Item = &VolumeName> {
        self.owned.get(replica).into_iter().flatten()
    }

    /// Those that are counted on the node.
    pub fn on_node(&self, node: &NodeName) -> Option<&BTreeSet<VolumeName>> {
        self.on_nodes.get(node)
    }

    /// The runs that wait for it.
    pub fn awaiting(&self, name: &VolumeName) -> impl Iterator<Item = &IncarnationId> {
        self.awaited.get(name).into_iter().flatten()
    }

    /// The node is gone, or back.
    pub(super) fn node(&mut self, node: &NodeName, is_expunged: bool) {
        let there = self.on_nodes.get(node).into_iter().flatten().filter(|name| self.present.contains(*name));
        for name in there.cloned().collect::<Vec<_>>() {
            mark(&mut self.lost, name, is_expunged);
        }
    }

    pub(super) fn volume(&mut self, volume: &VolumeMarks, is_expunged: bool, up: bool) {
        let name = &volume.name;
        if up {
            self.names.insert(volume.id, name.clone());
        } else {
            self.names.remove(&volume.id);
        }
        if let Some(owner) = &volume.owner {
            mark_in(&mut self.owned, owner, name, up);
        }
        mark_in(&mut self.on_nodes, &volume.node, name, up);
        if volume.may_be {
            mark(&mut self.present, name.clone(), up);
        }
        mark(&mut self.lost, name.clone(), up && is_expunged && volume.may_be);
        if volume.is_unused {
            mark(&mut self.unused, name.clone(), up);
        }
        if volume.blocks {
            mark(&mut self.blocking, name.clone(), up);
        }
        for run in self.awaited.get(name).cloned().unwrap_or_default() {
            self.look_at(run);
        }
    }

    pub(super) fn run(&mut self, run: IncarnationId, needs: &[VolumeName], up: bool) {
        for name in needs {
            mark_in(&mut self.awaited, name, &run, up);
        }
        if up {
            self.waiting.insert(run, needs.to_vec());
        } else {
            self.waiting.remove(&run);
        }
        self.look_at(run);
    }

    fn look_at(&mut self, run: IncarnationId) {
        let blocked = |needs: &Vec<VolumeName>| needs.iter().any(|name| self.blocking.contains(name));
        let is_served = self.waiting.get(&run).is_some_and(|needs| !blocked(needs));
        mark(&mut self.served, run, is_served);
    }
}

fn mark_in<K: Ord + Clone, V: Ord + Clone>(sets: &mut BTreeMap<K, BTreeSet<V>>, key: &K, item: &V, up: bool) {
    if up {
        sets.entry(key.clone()).or_default().insert(item.clone());
    } else if let Some(set) = sets.get_mut(key) {
        set.remove(item);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}
