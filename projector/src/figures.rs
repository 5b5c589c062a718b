//! Figures of a fleet for its metrics, from counts that follow the rows and from indexes of the state. No replica, operation,
//! incarnation or node is visited: the cost grows with the number of plans, clusters and pending approval requests.

use std::ops::AddAssign;

use chancery_events::level::FleetLevel;
use chancery_events::lifecycle::PhaseStatus;
use chancery_events::name::{ClusterName, PlanName};
use chancery_events::spec::{NodeState, OperationKind};
use chancery_events::time::Time;
use chancery_machine::fleet::FleetState;

use crate::counts::{OPEN, RowCounts};
use crate::rows::OperationStatus;

/// Maximum number of plans, and of clusters, with figures of their own: the first by name. The others are added up.
pub const OWN: usize = 100;

/// Figures of the replicas of a plan, or of several plans.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PlanFigures {
    /// Replicas that must run.
    pub desired: u64,
    /// Replicas that run and whose processes are all ready.
    pub ready: u64,
    /// Replicas by phase, in the order of [`PhaseStatus::ALL`].
    pub phases: [u64; PhaseStatus::ALL.len()],
}

impl AddAssign<&PlanFigures> for PlanFigures {
    fn add_assign(&mut self, other: &PlanFigures) {
        self.desired += other.desired;
        self.ready += other.ready;
        for (sum, phase) in self.phases.iter_mut().zip(other.phases) {
            *sum += phase;
        }
    }
}

/// Figures of a fleet at one position.
#[derive(Clone, PartialEq, Debug)]
pub struct FleetFigures {
    /// Level of the fleet.
    pub level: FleetLevel,
    /// Number of plans.
    pub plans: u64,
    /// Figures of the first [`OWN`] plans by name.
    pub own: Vec<(PlanName, PlanFigures)>,
    /// Figures of all other plans.
    pub others: PlanFigures,
    /// Operations that have not ended, by kind and state.
    pub operations: Vec<(OperationKind, OperationStatus, u64)>,
    /// Nodes by state.
    pub nodes: Vec<(NodeState, u64)>,
    /// Whether each of the first [`OWN`] clusters by name has a session.
    pub clusters: Vec<(ClusterName, bool)>,
    /// Number of all other clusters, and of those with a session.
    pub other_clusters: (u64, u64),
    /// Commands without an outcome.
    pub commands: u64,
    /// Approval requests that wait.
    pub requests: u64,
    /// Time at which the oldest of them was created.
    pub oldest_request: Option<Time>,
}

impl FleetFigures {
    /// Returns the figures of a state, whose counts are `counts`.
    pub(crate) fn of(fleet: &FleetState, counts: &RowCounts) -> FleetFigures {
        let mut others = PlanFigures::default();
        let mut operations = [[0; OPEN.len()]; OperationKind::ALL.len()];
        for plan in counts.plans() {
            others += &plan.figures;
            for (sums, kind) in operations.iter_mut().zip(OperationKind::ALL) {
                for (sum, state) in sums.iter_mut().zip(OPEN) {
                    *sum += plan.open(*kind, state);
                }
            }
        }
        let own = first(fleet.plans().unordered_keys(), |name| counts.plan(name).figures);
        for (_, figures) in &own {
            others.desired -= figures.desired;
            others.ready -= figures.ready;
            for (sum, phase) in others.phases.iter_mut().zip(figures.phases) {
                *sum -= phase;
            }
        }
        let operations = OperationKind::ALL.iter().zip(operations).flat_map(|(kind, of_kind)| {
            OPEN.into_iter().zip(of_kind).map(move |(state, count)| (*kind, state, count))
        });
        let has_session =
            |name: &ClusterName| fleet.clusters().get(name).is_some_and(|cluster| cluster.session.is_some());
        let clusters = first(fleet.clusters().unordered_keys(), has_session);
        let all = fleet.clusters().unordered().filter(|cluster| cluster.session.is_some()).count();
        let of_own = clusters.iter().filter(|(_, has_session)| *has_session).count();
        let requests = &fleet.index().requests.open;
        let created = |id| fleet.approval_requests().get(&id).map(|request| request.meta.created.time);
        FleetFigures {
            level: fleet.level(),
            plans: fleet.plans().len() as u64,
            own,
            others,
            operations: operations.collect(),
            nodes: NodeState::ALL.iter().map(|state| (*state, counts.nodes_in(*state))).collect(),
            other_clusters: ((fleet.clusters().len() - clusters.len()) as u64, (all - of_own) as u64),
            clusters,
            commands: fleet.index().pending_commands.len() as u64,
            requests: requests.len() as u64,
            oldest_request: requests.iter().filter_map(|(_, _, id)| created(*id)).min(),
        }
    }
}

/// Returns the first [`OWN`] names, in order, each with its figure. Not all names are sorted.
fn first<'a, N: Clone + Ord + 'a, T>(
    names: impl Iterator<Item = &'a N>,
    figure: impl Fn(&N) -> T,
) -> Vec<(N, T)> {
    let mut names: Vec<_> = names.collect();
    if names.len() > OWN {
        names.select_nth_unstable(OWN);
        names.truncate(OWN);
    }
    names.sort_unstable();
    names.into_iter().map(|name| (name.clone(), figure(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_names_have_figures_of_their_own() {
        let names: Vec<_> = (0..OWN + 50).rev().collect();
        let own = first(names.iter(), |name| name * 2);
        assert_eq!(own, (0..OWN).map(|name| (name, name * 2)).collect::<Vec<_>>());
        assert_eq!(first(names[OWN..].iter(), |name| *name).len(), 50);
    }
}
