//! Nodes ordered by free capacity, the least first, from which the best fit is taken.
//!
//! The list is sorted and divided into rows. Each row stores the most memory and disk that any of its nodes
//! has free, so that rows without enough of these are skipped. Search, insertion and removal cost about the
//! same for ten thousand nodes as for ten.

use std::cmp::Ordering;

use chancery_events::name::NodeName;
use chancery_events::resources::Resources;

use crate::capacity_index::SiteNumber;

/// Maximum row size: a larger row is split; two neighbours with less than half of it are joined.
const ROW: usize = 128;

/// Free capacity of a node, ordered by cores, memory, disk, name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FreeCapacity {
    cpu: u64,
    memory: u64,
    disk: u64,
    pub(crate) node: NodeName,
    pub(crate) site: SiteNumber,
}

impl FreeCapacity {
    pub(crate) fn new(amounts: Resources, node: NodeName, site: SiteNumber) -> FreeCapacity {
        FreeCapacity { cpu: amounts.cpu, memory: amounts.memory, disk: amounts.disk, node, site }
    }

    fn resources(&self) -> Resources {
        Resources { cpu: self.cpu, memory: self.memory, disk: self.disk }
    }

    /// Compares the entry with a node of the free capacity.
    fn compare(&self, Resources { cpu, memory, disk }: Resources, node: &NodeName) -> Ordering {
        (self.cpu, self.memory, self.disk).cmp(&(cpu, memory, disk)).then_with(|| self.node.cmp(node))
    }
}

impl std::fmt::Debug for FreeCapacity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let FreeCapacity { cpu, memory, disk, node, site: _ } = self;
        f.debug_tuple("Free").field(cpu).field(memory).field(disk).field(node).finish()
    }
}

#[derive(Clone, Debug)]
struct FreeCapacityLeaf {
    nodes: Vec<FreeCapacity>,
    memory: u64,
    disk: u64,
}

impl FreeCapacityLeaf {
    fn new(nodes: Vec<FreeCapacity>) -> FreeCapacityLeaf {
        let mut row = FreeCapacityLeaf { nodes, memory: 0, disk: 0 };
        row.measure();
        row
    }

    /// Returns where a node of the free capacity is, or would be inserted.
    fn place_of(&self, amounts: Resources, node: &NodeName) -> Result<usize, usize> {
        self.nodes.binary_search_by(|free| free.compare(amounts, node))
    }

    fn measure(&mut self) {
        self.memory = self.nodes.iter().map(|free| free.memory).max().unwrap_or(0);
        self.disk = self.nodes.iter().map(|free| free.disk).max().unwrap_or(0);
    }
}

/// Nodes ordered by free capacity: see the module.
#[derive(Clone, Default)]
pub(crate) struct FreeCapacityIndex {
    /// Rows, none of them empty.
    rows: Vec<FreeCapacityLeaf>,
}

impl FreeCapacityIndex {
    /// Returns the nodes with enough free capacity, the least free first.
    pub(crate) fn fitting(&self, needs: Resources) -> impl Iterator<Item = &FreeCapacity> {
        let from = self.rows.partition_point(|row| row.nodes.last().is_some_and(|last| last.cpu < needs.cpu));
        let rows = self.rows[from..].iter();
        rows.filter(move |row| needs.memory <= row.memory && needs.disk <= row.disk).flat_map(move |row| {
            let from = row.nodes.partition_point(|free| free.cpu < needs.cpu);
            let enough = move |free: &&FreeCapacity| needs.memory <= free.memory && needs.disk <= free.disk;
            row.nodes[from..].iter().filter(enough)
        })
    }

    /// Whether the shelf has no nodes.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns all nodes in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &FreeCapacity> {
        self.rows.iter().flat_map(|row| &row.nodes)
    }

    /// Returns the row where a node of the free capacity is, or would be inserted.
    fn row_of(&self, amounts: Resources, node: &NodeName) -> usize {
        let stands_before = |row: &FreeCapacityLeaf| {
            row.nodes.first().is_some_and(|first| first.compare(amounts, node).is_le())
        };
        self.rows.partition_point(stands_before).saturating_sub(1)
    }

    pub(crate) fn add(&mut self, free: FreeCapacity) {
        let resources = free.resources();
        let at = self.row_of(resources, &free.node);
        let Some(row) = self.rows.get_mut(at) else {
            self.rows.push(FreeCapacityLeaf::new(vec![free]));
            return;
        };
        let Err(place) = row.place_of(resources, &free.node) else { return };
        row.memory = row.memory.max(free.memory);
        row.disk = row.disk.max(free.disk);
        row.nodes.insert(place, free);
        if row.nodes.len() > ROW {
            let rest = row.nodes.split_off(ROW / 2);
            row.measure();
            self.rows.insert(at + 1, FreeCapacityLeaf::new(rest));
        }
    }

    pub(crate) fn take(&mut self, node: &NodeName, amounts: Resources) -> Option<FreeCapacity> {
        let at = self.row_of(amounts, node);
        let row = self.rows.get_mut(at)?;
        let taken = row.nodes.remove(row.place_of(amounts, node).ok()?);
        if taken.memory == row.memory || taken.disk == row.disk {
            row.measure();
        }
        if row.nodes.is_empty() {
            self.rows.remove(at);
        } else if at > 0 && self.rows[at - 1].nodes.len() + self.rows[at].nodes.len() < ROW / 2 {
            let row = self.rows.remove(at);
            let into = &mut self.rows[at - 1];
            into.memory = into.memory.max(row.memory);
            into.disk = into.disk.max(row.disk);
            into.nodes.extend(row.nodes);
        }
        Some(taken)
    }

    /// Changes the free capacity of a node.
    pub(crate) fn change(&mut self, node: &NodeName, before: Resources, after: Resources) {
        if let Some(free) = self.take(node, before) {
            self.add(FreeCapacity::new(after, free.node, free.site));
        }
    }
}

/// Prints the nodes; their division into rows depends on history.
impl std::fmt::Debug for FreeCapacityIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::TestRandom;

    fn resources(dice: &mut TestRandom) -> Resources {
        Resources { cpu: dice.below(40), memory: dice.below(40), disk: dice.below(3) }
    }

    #[test]
    fn it_finds_what_a_scan_of_all_nodes_finds() {
        let mut dice = TestRandom(7);
        let (mut free_capacity, mut all) = (FreeCapacityIndex::default(), BTreeSet::new());
        for round in 0..6000 {
            // The shelf grows to many rows, then shrinks to none.
            if dice.below(10) < if round < 3000 { 8 } else { 2 } {
                let name = format!("node-{}", dice.below(900)).parse().expect("a name");
                let free = FreeCapacity::new(resources(&mut dice), name, SiteNumber::default());
                all.insert(free.clone());
                free_capacity.add(free);
            } else if !all.is_empty() {
                let free =
                    all.iter().nth(dice.below(all.len() as u64) as usize).expect("below the count").clone();
                all.remove(&free);
                free_capacity.take(&free.node, free.resources());
            }
            let needs = resources(&mut dice);
            let suits = |node: &NodeName| node.as_str().len().is_multiple_of(2);
            let fits = |free: &&FreeCapacity| {
                needs.cpu <= free.cpu
                    && needs.memory <= free.memory
                    && needs.disk <= free.disk
                    && suits(&free.node)
            };
            let found = free_capacity.fitting(needs).find(|free| suits(&free.node));
            assert_eq!(found, all.iter().find(fits), "round {round}, {needs:?}");
        }
        assert!(free_capacity.iter().eq(all.iter()));
        for free in &all {
            free_capacity.take(&free.node, free.resources());
        }
        assert!(free_capacity.is_empty() && free_capacity.rows.is_empty());
    }
}
