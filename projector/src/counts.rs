//! Counts in rows: replicas and operations of a plan, nodes of a cluster.
//!
//! Counts are updated as rows change, so that no event requires a scan of a plan's replicas. They are counted
//! from the state once, at the start.

use std::hash::Hash;

use chancery_events::lifecycle::WillWord;
use chancery_events::name::{ClusterName, PlanName};
use chancery_events::spec::{NodeState, OperationKind};
use chancery_machine::fleet::FleetState;
use chancery_machine::operation::state_word;
use rustc_hash::FxHashMap;

use crate::build_row::replica_count;
use crate::figures::PlanFigures;
use crate::rows::{OperationStatus, PhaseStatus};

/// States of operations that have not ended.
pub(crate) const OPEN: [OperationStatus; 4] = [
    OperationStatus::Preparing,
    OperationStatus::PendingApproval,
    OperationStatus::Approved,
    OperationStatus::Running,
];

/// Direction of a count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CountStep {
    Up,
    Down,
}

/// Properties of a replica that are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CountedReplica {
    pub(crate) phase: PhaseStatus,
    pub(crate) desired: WillWord,
    pub(crate) ready: bool,
}

/// Counts of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct PlanCounts {
    pub(crate) figures: PlanFigures,
    open: [[u64; OPEN.len()]; OperationKind::ALL.len()],
}

static NONE: PlanCounts = PlanCounts {
    figures: PlanFigures { desired: 0, ready: 0, phases: [0; PhaseStatus::ALL.len()] },
    open: [[0; OPEN.len()]; OperationKind::ALL.len()],
};

impl PlanCounts {
    pub(crate) fn in_phase(&self, phase: PhaseStatus) -> u64 {
        self.figures.phases[phase as usize]
    }

    pub(crate) fn replicas(&self) -> u64 {
        self.figures.phases.iter().sum()
    }

    /// Returns the operations of the kind in the state; zero for ended states.
    pub(crate) fn open(&self, kind: OperationKind, state: OperationStatus) -> u64 {
        place(state).map_or(0, |place| self.open[kind as usize][place])
    }
}

fn place(state: OperationStatus) -> Option<usize> {
    OPEN.iter().position(|open| *open == state)
}

fn step(count: &mut u64, way: CountStep) {
    match way {
        CountStep::Up => *count += 1,
        CountStep::Down => *count = count.checked_sub(1).expect("a removed entity was counted before"),
    }
}

/// Counts of a state, which may be counted only when a row needs them.
pub trait CountSource: Sync {
    /// Returns the counts.
    fn counts(&self) -> &RowCounts;

    /// Returns the number of nodes of a cluster, without counting anything else.
    fn nodes(&self, cluster: &ClusterName) -> u64 {
        self.counts().nodes_of(cluster)
    }
}

impl CountSource for RowCounts {
    fn counts(&self) -> &RowCounts {
        self
    }
}

/// All counts of a state.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RowCounts {
    plans: FxHashMap<PlanName, PlanCounts>,
    clusters: FxHashMap<ClusterName, u64>,
    /// Nodes by state, in the order of [`NodeState::ALL`].
    nodes: [u64; NodeState::ALL.len()],
}

impl RowCounts {
    /// Counts the state.
    pub fn of(fleet: &FleetState) -> RowCounts {
        let mut counts = RowCounts::of_nodes(fleet);
        for replica in fleet.replicas().unordered() {
            counts.replica(&replica.plan, replica_count(fleet, replica), CountStep::Up);
        }
        for operation in fleet.operations().unordered() {
            counts.operation(&operation.plan, operation.kind, state_word(&operation.state), CountStep::Up);
        }
        counts
    }

    /// Counts only the nodes of clusters.
    pub(crate) fn of_nodes(fleet: &FleetState) -> RowCounts {
        let mut counts = RowCounts::default();
        for node in fleet.nodes().unordered() {
            counts.node_state(node.state, CountStep::Up);
            node.cluster.iter().for_each(|cluster| counts.node(cluster, CountStep::Up));
        }
        counts
    }

    pub(crate) fn plan(&self, plan: &PlanName) -> &PlanCounts {
        self.plans.get(plan).unwrap_or(&NONE)
    }

    pub(crate) fn nodes_of(&self, cluster: &ClusterName) -> u64 {
        self.clusters.get(cluster).copied().unwrap_or(0)
    }

    /// Returns the counts of all plans that have any, in no order.
    pub(crate) fn plans(&self) -> impl Iterator<Item = &PlanCounts> {
        self.plans.values()
    }

    pub(crate) fn nodes_in(&self, state: NodeState) -> u64 {
        self.nodes[state as usize]
    }

    pub(crate) fn replica(&mut self, plan: &PlanName, replica: CountedReplica, way: CountStep) {
        change(&mut self.plans, plan, |PlanCounts { figures, .. }| {
            step(&mut figures.phases[replica.phase as usize], way);
            if replica.desired == WillWord::Running {
                step(&mut figures.desired, way);
            }
            if replica.ready {
                step(&mut figures.ready, way);
            }
        });
    }

    pub(crate) fn node_state(&mut self, state: NodeState, way: CountStep) {
        step(&mut self.nodes[state as usize], way);
    }

    /// Counts an operation, unless it has ended.
    pub(crate) fn operation(
        &mut self,
        plan: &PlanName,
        kind: OperationKind,
        state: OperationStatus,
        way: CountStep,
    ) {
        if let Some(place) = place(state) {
            change(&mut self.plans, plan, |counts| step(&mut counts.open[kind as usize][place], way));
        }
    }

    pub(crate) fn node(&mut self, cluster: &ClusterName, way: CountStep) {
        change(&mut self.clusters, cluster, |count| step(count, way));
    }
}

/// Changes the counts of a name. Removes counts of zero, so that kept counts equal counted ones.
fn change<N: Clone + Eq + Hash, T: Default + PartialEq>(
    all: &mut FxHashMap<N, T>,
    name: &N,
    how: impl FnOnce(&mut T),
) {
    if let Some(counts) = all.get_mut(name) {
        how(counts);
        if *counts == T::default() {
            all.remove(name);
        }
    } else {
        let mut counts = T::default();
        how(&mut counts);
        all.insert(name.clone(), counts);
    }
}
