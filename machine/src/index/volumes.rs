//! Index of volumes: their nodes and owners, the incarnations that wait for them, and the work that is due.

use std::collections::{BTreeMap, BTreeSet};

use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::name::{NodeName, ReplicaName, VolumeName};

use super::{follow, follow_by, mark};
use crate::index_keys::{IndexChange, VolumeIndexKey};
use crate::state::Volume;

/// Volumes, and the incarnations that will use them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumeIndex {
    names: BTreeMap<VolumeId, VolumeName>,
    owned: BTreeMap<ReplicaName, BTreeSet<VolumeName>>,
    on_nodes: BTreeMap<NodeName, BTreeSet<VolumeName>>,
    /// Volumes that may still exist.
    present: BTreeSet<VolumeName>,
    /// Volumes for which incarnations that will use them must wait.
    blocking: BTreeSet<VolumeName>,
    /// Volumes needed by incarnations that wait for volumes only.
    waiting: BTreeMap<IncarnationId, Vec<VolumeName>>,
    /// Waiting incarnations by volume.
    awaited: BTreeMap<VolumeName, BTreeSet<IncarnationId>>,
    /// Incarnations in `waiting` whose volumes are no longer blocking.
    pub served: BTreeSet<IncarnationId>,
    /// Unused volumes that will be deleted.
    pub unused: BTreeSet<VolumeName>,
    /// Volumes on expunged nodes that are not known to be lost.
    pub lost: BTreeSet<VolumeName>,
}

impl VolumeIndex {
    /// Name of the volume with the id.
    pub fn name(&self, id: VolumeId) -> Option<&VolumeName> {
        self.names.get(&id)
    }

    /// Volumes that the replica owns.
    pub fn owned(&self, replica: &ReplicaName) -> impl Iterator<Item = &VolumeName> {
        self.owned.get(replica).into_iter().flatten()
    }

    /// Volumes counted on the node.
    pub fn on_node(&self, node: &NodeName) -> Option<&BTreeSet<VolumeName>> {
        self.on_nodes.get(node)
    }

    /// Incarnations that wait for the volume.
    pub fn awaiting(&self, name: &VolumeName) -> impl Iterator<Item = &IncarnationId> {
        self.awaited.get(name).into_iter().flatten()
    }

    /// Updates the index after the node was expunged or restored.
    pub(super) fn node(&mut self, node: &NodeName, is_expunged: bool) {
        let there = self.on_nodes.get(node).into_iter().flatten().filter(|name| self.present.contains(*name));
        for name in there.cloned().collect::<Vec<_>>() {
            mark(&mut self.lost, name, is_expunged);
        }
    }

    /// Updates the index after a change of a volume. `is_expunged` returns whether a node is expunged.
    pub(super) fn volume(
        &mut self,
        this: &Volume,
        both: IndexChange<'_, VolumeIndexKey>,
        is_expunged: impl Fn(&NodeName) -> bool,
    ) {
        let name = || this.name.clone();
        let entry = |(): ()| name();
        match both {
            [_, Some(_)] => self.names.insert(this.id, name()),
            [_, None] => self.names.remove(&this.id),
        };
        follow_by(&mut self.owned, both, |key| key.owner.as_ref(), Clone::clone, name);
        follow_by(&mut self.on_nodes, both, |index_key| Some(&index_key.node), Clone::clone, name);
        follow(&mut self.present, both, |marks| marks.may_be.then_some(()), entry);
        let lost = |marks: &VolumeIndexKey| (marks.may_be && is_expunged(&marks.node)).then_some(());
        follow(&mut self.lost, both, lost, entry);
        follow(&mut self.unused, both, |marks| marks.is_unused.then_some(()), entry);
        follow(&mut self.blocking, both, |marks| marks.blocks.then_some(()), entry);
        for run in self.awaited.get(&this.name).cloned().unwrap_or_default() {
            self.look_at(run);
        }
    }

    /// Updates the volumes that an incarnation waits for and nothing else, before and after a change.
    pub(super) fn run(&mut self, run: IncarnationId, needs: [Option<&[VolumeName]>; 2]) {
        match needs {
            [None, Some(needs)] => {
                for name in needs {
                    self.awaited.entry(name.clone()).or_default().insert(run);
                }
                self.waiting.insert(run, needs.to_vec());
            }
            [Some(needs), None] => {
                for name in needs {
                    follow_by(&mut self.awaited, [Some(name), None], Some, Clone::clone, || run);
                }
                self.waiting.remove(&run);
            }
            [None, None] | [Some(_), Some(_)] => return,
        }
        self.look_at(run);
    }

    fn look_at(&mut self, run: IncarnationId) {
        let blocked = |needs: &Vec<VolumeName>| needs.iter().any(|name| self.blocking.contains(name));
        let is_served = self.waiting.get(&run).is_some_and(|needs| !blocked(needs));
        mark(&mut self.served, run, is_served);
    }
}
