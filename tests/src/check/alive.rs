//! Invariants 3, 4 and 6 for real processes, whatever the journal states.

use std::collections::BTreeMap;

use chancery_events::id::IncarnationId;
use chancery_events::name::ReplicaName;
use chancery_events::spec::{NodeState, OperationKind};

use super::state::{CheckedFleet, Incarnation, IncarnationProgress, OperationProgress};
use super::violation::{InvariantViolation, RuleResult, demand};

/// Running processes of one incarnation, whatever the journal states.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunningProcesses {
    /// Id of the incarnation.
    pub incarnation: IncarnationId,
    /// Number of processes, at least one.
    pub processes: usize,
}

impl CheckedFleet {
    pub(super) fn alive(&self, alive: &[RunningProcesses]) -> RuleResult {
        let mut of: BTreeMap<&ReplicaName, Vec<(IncarnationId, &Incarnation)>> = BTreeMap::new();
        for RunningProcesses { incarnation: id, processes } in alive {
            let unknown =
                || InvariantViolation::new(6, format!("incarnation {id} runs, and was never issued"));
            let found = self.incarnations.get(id).ok_or_else(unknown)?;
            let expunged = self.nodes.get(&found.node).is_some_and(|n| n.state == NodeState::Expunged);
            match found.progress {
                IncarnationProgress::Expunged => continue,
                _ if expunged => continue,
                IncarnationProgress::Ended => {
                    return Err(InvariantViolation::new(
                        4,
                        format!("incarnation {id} runs without a reservation"),
                    ));
                }
                IncarnationProgress::Reserved => {
                    return Err(InvariantViolation::new(
                        6,
                        format!("incarnation {id} runs without a command"),
                    ));
                }
                IncarnationProgress::Creating
                | IncarnationProgress::Starting
                | IncarnationProgress::Running
                | IncarnationProgress::Updating(_)
                | IncarnationProgress::Stopping(_) => {}
            }
            let spec = found.processes;
            demand!(
                3,
                *processes <= spec,
                "incarnation {id} runs {processes} processes, and its spec has {spec}"
            );
            let runs = of.entry(&found.replica).or_default();
            if let [(other, first), ..] = runs.as_slice() {
                let two = runs.len() == 1 && other != id && self.may_both_run(first, found);
                demand!(3, two, "of replica {} both {other} and {id} run", found.replica);
            }
            runs.push((*id, found));
        }
        Ok(())
    }

    /// Whether two incarnations of a replica may run concurrently. Either one was started alongside the other
    /// to replace it, or one of them is stopping since the replacement failed.
    fn may_both_run(&self, one: &Incarnation, two: &Incarnation) -> bool {
        let started_alongside = |run: &Incarnation| {
            let by = self.operations.get(&run.operation);
            let alongside = by.filter(|by| {
                matches!(by.kind, OperationKind::Update | OperationKind::Relocate)
                    && run.starts_after.is_none()
            });
            alongside.map(|by| by.stage)
        };
        let goes = |run: &Incarnation| matches!(run.progress, IncarnationProgress::Stopping(_));
        let stages = [started_alongside(one), started_alongside(two)];
        let going = stages.contains(&Some(OperationProgress::Ended)) && (goes(one) || goes(two));
        stages.contains(&Some(OperationProgress::Running)) || going
    }
}
