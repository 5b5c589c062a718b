//! Counts in rows: replicas and operations of a plan, nodes of a cluster.
//!
//! Updated as rows change, so that no event costs a walk over a plan's replicas; counted from the state once,
//! at the start.

use chancery_events::name::{ClusterName, PlanName};
use chancery_events::spec::OperationKind;
use chancery_machine::fleet::Fleet;
use chancery_machine::operation::state_word;
use rustc_hash::FxHashMap;

use crate::row_of::phase_word;
use crate::rows::{OperationWord, PhaseWord};

/// States of operations that have not ended.
pub(crate) const OPEN: [OperationWord; 4] = [
    OperationWord::Preparing,
    OperationWord::PendingApproval,
    OperationWord::Approved,
    OperationWord::Running,
];

/// Direction of a count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Up,
    Down,
}

/// Counts of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct PlanCounts {
    phases: [u64; PhaseWord::ALL.len()],
    open: [[u64; OPEN.len()]; OperationKind::ALL.len()],
}

static NONE: PlanCounts =
    PlanCounts { phases: [0; PhaseWord::ALL.len()], open: [[0; OPEN.len()]; OperationKind::ALL.len()] };

impl PlanCounts {
    pub(crate) fn in_phase(&self, phase: PhaseWord) -> u64 {
        self.phases[phase as usize]
    }

    pub(crate) fn replicas(&self) -> u64 {
        self.phases.iter().sum()
    }

    /// Returns the operations of the kind in the state; zero for ended states.
    pub(crate) fn open(&self, kind: OperationKind, state: OperationWord) -> u64 {
        place(state).map_or(0, |place| self.open[kind as usize][place])
    }
}

fn place(state: OperationWord) -> Option<usize> {
    OPEN.iter().position(|open| *open == state)
}

fn step(count: &mut u64, way: Step) {
    match way {
        Step::Up => *count += 1,
        Step::Down => *count = count.checked_sub(1).expect("what goes was counted when it came"),
    }
}

/// All counts of a state.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    plans: FxHashMap<PlanName, PlanCounts>,
    clusters: FxHashMap<ClusterName, u64>,
}

impl Counts {
    /// Counts the state.
    pub fn of(fleet: &Fleet) -> Counts {
        let mut counts = Counts::default();
        for replica in fleet.replicas().sorted() {
            counts.replica(&replica.plan, phase_word(fleet, replica), Step::Up);
        }
        for operation in fleet.operations().sorted() {
            counts.operation(&operation.plan, operation.kind, state_word(&operation.state), Step::Up);
        }
        for node in fleet.nodes().sorted() {
            node.cluster.iter().for_each(|cluster| counts.node(cluster, Step::Up));
        }
        counts
    }

    pub(crate) fn plan(&self, plan: &PlanName) -> &PlanCounts {
        self.plans.get(plan).unwrap_or(&NONE)
    }

    pub(crate) fn nodes(&self, cluster: &ClusterName) -> u64 {
        self.clusters.get(cluster).copied().unwrap_or(0)
    }

    pub(crate) fn replica(&mut self, plan: &PlanName, phase: PhaseWord, way: Step) {
        self.with_plan(plan, |counts| step(&mut counts.phases[phase as usize], way));
    }

    /// Counts an operation, unless it has ended.
    pub(crate) fn operation(
        &mut self,
        plan: &PlanName,
        kind: OperationKind,
        state: OperationWord,
        way: Step,
    ) {
        if let Some(place) = place(state) {
            self.with_plan(plan, |counts| step(&mut counts.open[kind as usize][place], way));
        }
    }

    pub(crate) fn node(&mut self, cluster: &ClusterName, way: Step) {
        if let Some(count) = self.clusters.get_mut(cluster) {
            step(count, way);
            if *count == 0 {
                self.clusters.remove(cluster);
            }
        } else {
            let mut count = 0;
            step(&mut count, way);
            self.clusters.insert(cluster.clone(), count);
        }
    }

    /// Removes counts of zero, so that kept counts equal counted ones.
    fn with_plan(&mut self, plan: &PlanName, how: impl FnOnce(&mut PlanCounts)) {
        if let Some(counts) = self.plans.get_mut(plan) {
            how(counts);
            if *counts == NONE {
                self.plans.remove(plan);
            }
        } else {
            let mut counts = NONE;
            how(&mut counts);
            self.plans.insert(plan.clone(), counts);
        }
    }
}
