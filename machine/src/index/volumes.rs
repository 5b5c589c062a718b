//! Volumes: where they are, whose, who waits for them, and what there is to do for them.

use std::collections::{BTreeMap, BTreeSet};

use chancery_events::id::{IncarnationId, VolumeId};
use chancery_events::name::{NodeName, ReplicaName, VolumeName};

use super::{follow, follow_by, mark};
use crate::marks::{Both, VolumeMarks};
use crate::state::Volume;

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

    /// `is_expunged`: whether a node is gone.
    pub(super) fn volume(
        &mut self,
        this: &Volume,
        both: Both<'_, VolumeMarks>,
        is_expunged: impl Fn(&NodeName) -> bool,
    ) {
        let name = || this.name.clone();
        let entry = |(): ()| name();
        match both {
            [_, Some(_)] => self.names.insert(this.id, name()),
            [_, None] => self.names.remove(&this.id),
        };
        follow_by(&mut self.owned, both, |marks| marks.owner.as_ref(), Clone::clone, name);
        follow_by(&mut self.on_nodes, both, |marks| Some(&marks.node), Clone::clone, name);
        follow(&mut self.present, both, |marks| marks.may_be.then_some(()), entry);
        let lost = |marks: &VolumeMarks| (marks.may_be && is_expunged(&marks.node)).then_some(());
        follow(&mut self.lost, both, lost, entry);
        follow(&mut self.unused, both, |marks| marks.is_unused.then_some(()), entry);
        follow(&mut self.blocking, both, |marks| marks.blocks.then_some(()), entry);
        for run in self.awaited.get(&this.name).cloned().unwrap_or_default() {
            self.look_at(run);
        }
    }

    /// The volumes for which a run waited alone, and waits.
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
