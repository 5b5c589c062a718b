//! Obligations of a fact to the rest of its record, which is all or nothing: met by the end of the record.

use std::time::Duration;

use chancery_events::id::{IncarnationId, OperationId};
use chancery_events::name::{DeploymentName, NodeName, PlanName, ReplicaName};
use chancery_events::spec::OperationKind;

use super::state::{CheckedFleet, DeploymentStage, IncarnationProgress, OperationProgress, RecordEffects};
use super::violation::{RuleResult, demand};

/// Obligation that must be met by the end of the record.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum RecordObligation {
    /// Existence of the operation that supersedes another one, on the same replica.
    Opened(OperationId, ReplicaName),
    /// Start of the operation that supersedes a started one: it stops the incarnation.
    TakesOver(OperationId),
    /// Existence of the deployment that supersedes another one.
    Created(PlanName, DeploymentName),
    /// Release of an operation's reservation.
    Freed(IncarnationId),
    /// Request to end the incarnation, unless it ended.
    Stopping(IncarnationId),
    /// Start of the incarnation, now that the one that it follows ended, or release of its reservation.
    Begun(IncarnationId),
    /// End of the operation.
    Closed(OperationId),
    /// Halt of the deployment: it starts nothing more.
    Fails(PlanName, DeploymentName),
    /// Creation of a deployment that rolls the plan back.
    RolledBack(PlanName, DeploymentName),
    /// Deletion of the node that was emptied for it.
    Forgotten(NodeName),
}

/// Minimum time between two records that may be a clock jump.
const JUMP: Duration = Duration::from_mins(1);

impl CheckedFleet {
    /// Checks all obligations at the end of a record.
    pub(super) fn settle(&mut self) -> RuleResult {
        for obligation in std::mem::take(&mut self.obligations) {
            self.check_obligation(obligation)?;
        }
        self.now = RecordEffects::default();
        let jumped = self.time.zip(self.time_before).is_some_and(|(now, before)| now > before + JUMP);
        let [starts_term, follows_term] = self.starts_term;
        if jumped || follows_term {
            self.steady_since = self.time;
        }
        self.starts_term = [false, starts_term];
        self.time_before = self.time;
        Ok(())
    }

    fn check_obligation(&mut self, obligation: RecordObligation) -> RuleResult {
        match obligation {
            RecordObligation::Opened(id, replica) => {
                let there = self.operations.get(&id).is_some_and(|by| by.replica == replica);
                demand!(
                    6,
                    there,
                    "operation {id} supersedes another one on {replica}, and was never opened there"
                );
            }
            RecordObligation::TakesOver(id) => {
                let by = self.operations.get(&id);
                let takes = by.is_some_and(|by| {
                    matches!(by.kind, OperationKind::Stop | OperationKind::Delete)
                        && matches!(by.stage, OperationProgress::Running | OperationProgress::Ended)
                });
                demand!(6, takes, "operation {id} supersedes a started operation without permission");
            }
            RecordObligation::Created(plan, name) => {
                let plan_of = self.plans.get(&plan);
                // The new one may be superseded later in the same record, or deleted with its plan.
                let there = plan_of.is_none_or(|of| of.deployments.contains_key(&name));
                demand!(6, there, "deployment {name} of {plan} supersedes another one, and does not exist");
            }
            RecordObligation::Freed(id) => {
                let free = self.incarnation(id)?.progress.is_over();
                demand!(
                    4,
                    free,
                    "the operation of incarnation {id} has ended, and the incarnation keeps its reservation"
                );
            }
            RecordObligation::Stopping(id) => {
                let life = &self.incarnation(id)?.progress;
                let goes = life.is_over() || matches!(life, IncarnationProgress::Stopping(_));
                demand!(3, goes, "incarnation {id} must be stopped, and no command is issued");
            }
            RecordObligation::Begun(id) => {
                let run = self.incarnation(id)?;
                // An incarnation with volumes is started when its volumes are available.
                let waits = run.progress == IncarnationProgress::Reserved && run.mounts.is_empty();
                demand!(
                    6,
                    !waits,
                    "the predecessor of incarnation {id} has ended, and it is neither started nor given up"
                );
            }
            RecordObligation::Closed(id) => {
                let over = self.operation(id)?.stage == OperationProgress::Ended;
                demand!(6, over, "the subject of operation {id} has ended, and the operation has not");
            }
            RecordObligation::Fails(plan, name) => {
                let of = self.plans.get(&plan).and_then(|of| of.deployments.get(&name));
                let ends = of.is_none_or(|deployment| {
                    matches!(deployment.stage, DeploymentStage::Ending(..) | DeploymentStage::Ended(_))
                });
                demand!(
                    6,
                    ends,
                    "an operation of deployment {name} of {plan} failed, and the deployment continues"
                );
            }
            RecordObligation::RolledBack(plan, name) => {
                let rule = format!("deployment/{plan}/{name}/auto_rollback");
                let follows = |of: &super::state::Deployment| {
                    let by = of.rollback.as_ref().and_then(|rollback| rollback.rule.as_ref());
                    by.is_some_and(|by| by.name == rule)
                };
                let there = self.plans.get(&plan).is_none_or(|of| of.deployments.values().any(follows));
                demand!(6, there, "deployment {name} of {plan} fails and should be rolled back, and is not");
            }
            RecordObligation::Forgotten(name) => {
                let gone = !self.nodes.contains_key(&name);
                demand!(6, gone, "node {name} was emptied to be deleted, and exists");
            }
        }
        Ok(())
    }
}
