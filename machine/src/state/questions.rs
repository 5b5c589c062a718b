//! What an entity tells about itself, from its own fields alone.

use chancery_events::amount::Amounts;
use chancery_events::fact::{Asker, DeploymentEnd, IncarnationEnd};
use chancery_events::id::OperationId;
use chancery_events::lifecycle::WillWord;
use chancery_events::name::DeploymentName;
use chancery_events::spec::{DisruptionState, OperationKind};

use super::{
    Active, Deployment, DeploymentState, Incarnation, IncarnationState, Node, Open, Operation,
    OperationState, Replica, Scope,
};

impl Replica {
    /// Its operations that are not over, the one that may have begun first.
    pub fn open(&self) -> impl Iterator<Item = Open> {
        self.operation.into_iter().chain(self.next)
    }

    /// One of them.
    pub(crate) fn open_mut(&mut self, id: OperationId) -> Option<&mut Open> {
        self.operation.iter_mut().chain(&mut self.next).find(|open| open.id == id)
    }

    /// Whether it is on its way out, or asked to be.
    pub fn is_going(&self) -> bool {
        self.will == WillWord::Deleted || self.open().any(|open| open.kind == OperationKind::Delete)
    }

    /// Whether it should run, does not, and nothing is being done about it.
    pub fn is_idle(&self) -> bool {
        self.will == WillWord::Running && self.is_still()
    }

    /// Whether it has no run, and nothing is being done about it.
    pub fn is_still(&self) -> bool {
        self.active.is_none() && self.passive.is_none() && self.operation.is_none()
    }

    /// Whether it has no run, and what is to bring one up has no place: it may have another version first.
    pub fn is_without_place(&self) -> bool {
        let waits = self.operation.is_some_and(|open| open.gives_way);
        waits && self.next.is_none() && self.runs().next().is_none()
    }

    /// Whether it runs, and nothing is being done about it: it may be updated.
    pub fn is_free(&self) -> bool {
        self.active.is_some() && self.passive.is_none() && self.operation.is_none() && !self.recovers
    }

    /// The run where the replica remains when everything that is under way has succeeded: of two, the one that was not
    /// asked to end, the replacement first. None of a replica that is going, or stops.
    pub fn remaining(&self) -> Option<&Active> {
        let runs = self.passive.as_deref().into_iter().chain(&self.active);
        runs.filter(|_| !self.is_going()).find(|run| !run.ending)
    }

    /// Its incarnations that are not over, the one that counts first.
    pub fn runs(&self) -> impl Iterator<Item = &Active> {
        self.active.iter().chain(self.passive.as_deref())
    }
}

impl Operation {
    /// Whether it is not over.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, OperationState::Ended(_))
    }

    /// Whether it is a start for a deployment: until that has succeeded or failed, what the plan's rule has promised holds.
    pub(crate) fn keeps_promise(&self) -> bool {
        self.kind == OperationKind::Start && self.by.is_none()
    }

    /// Whether it gives its replica another run in the place of the one that is there.
    pub(crate) fn replaces(&self) -> bool {
        matches!(self.kind, OperationKind::Update | OperationKind::Relocate | OperationKind::Restart)
    }

    /// Whether a disruption asked for it.
    pub fn evicts(&self) -> bool {
        matches!(self.by.as_deref(), Some(Asker::Disruption { .. }))
    }

    /// Whether it looks for a place as no other does.
    pub(crate) fn is_alone(&self) -> bool {
        let alike = matches!(self.kind, OperationKind::Create | OperationKind::Start);
        !alike || self.wants.is_some() || self.stores
    }
}

impl Node {
    /// Whether it may be given placements: no disruption of it is approved.
    pub fn is_undisturbed(&self) -> bool {
        self.disruptions.values().all(|disruption| disruption.state != DisruptionState::Approved)
    }
}

impl Scope {
    /// Whether what was asked of the incarnation may have come to be there.
    pub fn may_hold(&self, incarnation: &Incarnation) -> bool {
        match (incarnation.commanded, self.until) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(commanded), Some(until)) => commanded <= until,
        }
    }
}

impl Deployment {
    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        matches!(self.state, DeploymentState::Ended(_))
    }

    /// Whether it has brought about what it wanted.
    pub fn is_completed(&self) -> bool {
        self.state == DeploymentState::Ended(DeploymentEnd::Completed)
    }
}

impl Incarnation {
    /// Whether it may be alive: it holds its place.
    pub fn is_live(&self) -> bool {
        !matches!(self.state, IncarnationState::Ended(_))
    }

    /// Whether it was ready, and ends without being asked to by an operation: by itself, or because it failed its plan.
    pub(crate) fn was_up(&self) -> bool {
        match &self.state {
            IncarnationState::Running | IncarnationState::Updating(_) => true,
            IncarnationState::Stopping(end) => {
                self.since.is_some() && matches!(**end, IncarnationEnd::Failed { .. })
            }
            IncarnationState::Reserved
            | IncarnationState::Creating
            | IncarnationState::Starting
            | IncarnationState::Ended(_) => false,
        }
    }

    /// What it holds of its node.
    pub fn holds(&self) -> Amounts {
        match self.ties.shares {
            Some(shares) => self.amounts.checked_sub(shares).unwrap_or(Amounts::ZERO),
            None => self.amounts,
        }
    }

    /// The deployment by whose coordinates it is asked to be.
    pub fn asked_for(&self) -> &DeploymentName {
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
