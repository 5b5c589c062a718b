//! Predicates and derived values of a single entity, from its own fields alone.

use chancery_events::fact::{CommandEffect, DeploymentEnd, IncarnationEnd, Requester};
use chancery_events::id::OperationId;
use chancery_events::lifecycle::WillWord;
use chancery_events::name::DeploymentName;
use chancery_events::observation::ProcessStatus;
use chancery_events::resources::Resources;
use chancery_events::spec::{DisruptionState, OperationKind};

use super::{
    ClusterStore, Deployment, DeploymentState, Incarnation, IncarnationRef, IncarnationState, Node,
    OpenOperation, Operation, OperationState, Replica,
};

impl Replica {
    /// Returns the operations that have not ended, the one that may have started first.
    pub fn open(&self) -> impl Iterator<Item = OpenOperation> {
        self.operation.into_iter().chain(self.queued_operation)
    }

    /// Returns the open operation with the id.
    pub(crate) fn open_mut(&mut self, id: OperationId) -> Option<&mut OpenOperation> {
        self.operation.iter_mut().chain(&mut self.queued_operation).find(|open| open.id == id)
    }

    /// Whether the replica is being deleted, or an open operation will delete it.
    pub fn is_deleting(&self) -> bool {
        self.desired == WillWord::Deleted || self.open().any(|open| open.kind == OperationKind::Delete)
    }

    /// Whether the replica should run, does not, and no operation will start it.
    pub fn needs_start(&self) -> bool {
        self.desired == WillWord::Running && self.is_not_running()
    }

    /// Whether the replica has neither an incarnation nor an open operation.
    pub fn is_not_running(&self) -> bool {
        self.active.is_none() && self.secondary.is_none() && self.operation.is_none()
    }

    /// Whether the replica has no incarnation, and its start has no placement: the version may change first.
    pub fn is_without_place(&self) -> bool {
        let waits = self.operation.is_some_and(|open| open.replaceable);
        waits && self.queued_operation.is_none() && self.runs().next().is_none()
    }

    /// Whether the replica can be updated: it should run, has one incarnation, and no operation is open.
    pub fn is_updatable(&self) -> bool {
        let has_one = self.active.is_some() && self.secondary.is_none();
        self.desired == WillWord::Running && has_one && self.operation.is_none() && !self.recovers
    }

    /// Incarnation that the replica keeps if everything in progress succeeds: the one not asked to end, or
    /// the replacement if neither was. `None` for a replica that is deleted or stopped.
    pub fn remaining(&self) -> Option<&IncarnationRef> {
        let runs = self.secondary.as_deref().into_iter().chain(&self.active);
        runs.filter(|_| !self.is_deleting()).find(|run| !run.ending)
    }

    /// Returns the incarnations that have not ended, the active one first.
    pub fn runs(&self) -> impl Iterator<Item = &IncarnationRef> {
        self.active.iter().chain(self.secondary.as_deref())
    }
}

impl Operation {
    /// Whether the operation has not ended.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, OperationState::Ended(_))
    }

    /// Whether a deployment requested this start: a scheduled restart stays until it succeeds or fails.
    pub(crate) fn keeps_promise(&self) -> bool {
        self.kind == OperationKind::Start && self.requested_by.is_none()
    }

    /// Whether the operation replaces the incarnation of its replica.
    pub(crate) fn replaces(&self) -> bool {
        matches!(self.kind, OperationKind::Update | OperationKind::Relocate | OperationKind::Restart)
    }

    /// Whether a disruption requested the operation.
    pub fn is_drain(&self) -> bool {
        matches!(self.requested_by.as_deref(), Some(Requester::Disruption { .. }))
    }

    /// Whether the operation needs a placement search of its own.
    pub(crate) fn needs_own_search(&self) -> bool {
        let alike = matches!(self.kind, OperationKind::Create | OperationKind::Start);
        !alike || self.required_node.is_some() || self.volume_bound
    }
}

impl Node {
    /// Whether the node accepts placements: none of its disruptions is approved.
    pub fn is_schedulable(&self) -> bool {
        self.disruptions.values().all(|disruption| disruption.state != DisruptionState::Approved)
    }
}

impl ClusterStore {
    /// Whether the store may record the incarnation: a command for it may have been received.
    pub fn may_hold(&self, incarnation: &Incarnation) -> bool {
        let until = self.until;
        incarnation.first_command.is_some_and(|commanded| until.is_none_or(|until| commanded <= until))
    }
}

impl Deployment {
    /// Whether the deployment has ended.
    pub fn is_over(&self) -> bool {
        matches!(self.state, DeploymentState::Ended(_))
    }

    /// Whether the deployment reached its goal.
    pub fn is_completed(&self) -> bool {
        self.state == DeploymentState::Ended(DeploymentEnd::Completed)
    }
}

impl Incarnation {
    /// Whether the incarnation still has its reservation.
    pub fn is_live(&self) -> bool {
        !matches!(self.state, IncarnationState::Ended(_))
    }

    /// Whether the incarnation was ready, and ends on its own or for violating its plan, not by an operation.
    pub(crate) fn was_up(&self) -> bool {
        match &self.state {
            IncarnationState::Running | IncarnationState::Updating(_) => true,
            IncarnationState::Stopping(end) => {
                self.ready_since.is_some() && matches!(**end, IncarnationEnd::Failed { .. })
            }
            IncarnationState::Reserved
            | IncarnationState::Creating
            | IncarnationState::Starting
            | IncarnationState::Ended(_) => false,
        }
    }

    /// Whether a guest of the incarnation was reset, and is not ready again.
    pub fn is_rebooting(&self) -> bool {
        self.processes.iter().any(|process| process.status == ProcessStatus::Rebooting)
    }

    /// Whether a requested reboot of the incarnation has no outcome yet.
    pub(crate) fn is_asked_to_reboot(&self) -> bool {
        self.command.is_some_and(|command| command.effect == CommandEffect::Reboot)
    }

    /// Resources reserved for the incarnation, without those counted on its predecessor.
    pub fn holds(&self) -> Resources {
        let shares = self.ties.shared_resources.unwrap_or(Resources::ZERO);
        self.resources.checked_sub(shares).unwrap_or(Resources::ZERO)
    }

    /// Deployment whose version was last requested.
    pub fn target_deployment(&self) -> &DeploymentName {
        match &self.state {
            IncarnationState::Updating(to) => to,
            IncarnationState::Reserved
            | IncarnationState::Creating
            | IncarnationState::Starting
            | IncarnationState::Running
            | IncarnationState::Stopping(_)
            | IncarnationState::Ended(_) => &self.deployment,
        }
    }
}
