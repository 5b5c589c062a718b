//! Creation of operations, superseding waiting ones.

use chancery_events::digest::Digest;
use chancery_events::fact::{ApprovalProposal, OperationCreated, OperationEnd, ReplicaDeleted, Requester};
use chancery_events::id::OperationId;
use chancery_events::lifecycle::WillWord;
use chancery_events::name::{DeploymentName, NodeName, ReplicaName};
use chancery_events::spec::{OperationKind, ProbePurpose};

use super::begin::{StartTrigger, StartingOperation};
use super::end::{end, holds_place};
use super::place::up_hash;
use super::{begin, rule};
use crate::context::{DecisionContext, FactDraft};
use crate::fleet::FleetState;
use crate::state::{Deployment, Incarnation, IncarnationState, Operation, Plan, Replica};
use crate::volume;

/// Request for an operation.
pub(crate) struct OperationRequest<'a> {
    pub(crate) kind: OperationKind,
    /// Deployment that requests the operation, if any.
    pub(crate) deployment: Option<&'a DeploymentName>,
    /// Other requester, or the rule of the deployment.
    pub(crate) requested_by: Option<Requester>,
    /// Deployment whose version the replica gets, if that differs from its current one.
    pub(crate) version: Option<&'a DeploymentName>,
    /// Required node, if any.
    pub(crate) node: Option<&'a NodeName>,
    /// Purpose, where the kind and the requester do not imply one.
    pub(crate) purpose: Option<ProbePurpose>,
}

impl<'a> OperationRequest<'a> {
    /// Returns the request of a deployment.
    pub(crate) fn of(kind: OperationKind, deployment: &'a DeploymentName) -> OperationRequest<'a> {
        OperationRequest { deployment: Some(deployment), ..OperationRequest::by(kind, None) }
    }

    /// Returns the request of the context's actor.
    pub(crate) fn asked(
        kind: OperationKind,
        node: Option<&'a NodeName>,
        ctx: &DecisionContext,
    ) -> OperationRequest<'a> {
        OperationRequest { node, ..OperationRequest::by(kind, ctx.actor.clone().map(Requester::Actor)) }
    }

    /// Returns the request of another requester.
    pub(crate) fn by(kind: OperationKind, by: Option<Requester>) -> OperationRequest<'a> {
        OperationRequest {
            kind,
            deployment: None,
            requested_by: by,
            version: None,
            node: None,
            purpose: None,
        }
    }
}

/// Creates an operation. Operations that wait on the replica end; a running one continues. An operation that
/// needs no placement is approved immediately where a rule does so.
pub(crate) fn open(
    fleet: &FleetState,
    replica: &Replica,
    want: &OperationRequest<'_>,
    ctx: &DecisionContext,
    draft: &mut FactDraft,
) {
    let mut waiting: Vec<&Operation> = replica
        .open()
        .filter(|open| !open.started)
        .filter_map(|open| fleet.operations().get(&open.id))
        .collect();
    waiting.reverse();
    if replica.desired == WillWord::Proposed && want.kind == OperationKind::Delete {
        // The replica was never approved: it is deleted with its create.
        for operation in &waiting {
            let reason = "the replica is no longer requested".to_owned();
            end(fleet, operation, OperationEnd::Cancelled { reason }, draft);
        }
        if waiting.is_empty() {
            draft.push(ReplicaDeleted { name: replica.name.clone(), volumes: Vec::new() });
        }
        return;
    }
    // Waiting operations end with the id of the new one, whose fact follows.
    let before = waiting.iter().map(|operation| 1 + u64::from(holds_place(fleet, operation).is_some())).sum();
    let id = OperationId::issue(ctx.lineage, draft.position().plus(before));
    for operation in waiting {
        end(fleet, operation, OperationEnd::Superseded { successor: id }, draft);
    }
    let Some(plan) = fleet.plans().get(&replica.plan) else { return };
    let changed = changed_in_place(fleet, plan, replica, want);
    let down = matches!(want.kind, OperationKind::Stop | OperationKind::Delete);
    let reboots = replica.active.as_ref().filter(|_| want.kind == OperationKind::Reboot);
    let hash = match changed {
        None if let Some(run) = reboots => {
            let id = run.incarnation.to_string();
            Digest::of(&[want.kind.word().as_bytes(), replica.name.as_str().as_bytes(), id.as_bytes()])
        }
        Some((incarnation, to)) => up_hash(want.kind, &replica.name, (&incarnation.node, None, None), to),
        None => Digest::of(&[want.kind.word().as_bytes(), replica.name.as_str().as_bytes()]),
    };
    let proposal = ApprovalProposal { hash, expires: ctx.now + plan.immediate().timeouts().approval() };
    let is_placed = down || changed.is_some() || reboots.is_some();
    push_opened(&replica.name, want, is_placed.then_some(proposal), draft);
    let Some(by) = rule(plan, want.kind, want.requested_by.as_ref()).filter(|_| is_placed) else { return };
    let operation = StartingOperation {
        id,
        kind: want.kind,
        replica,
        deployment: want.deployment,
        incarnation: changed
            .map(|(incarnation, _)| incarnation.id)
            .or_else(|| reboots.map(|run| run.incarnation)),
        starts_after: None,
    };
    begin(fleet, &operation, StartTrigger::Approval { approved_by: by, hash }, ctx, draft);
}

/// Pushes the fact that creates an operation, without ending others.
pub(crate) fn push_opened(
    replica: &ReplicaName,
    want: &OperationRequest<'_>,
    proposal: Option<ApprovalProposal>,
    draft: &mut FactDraft,
) {
    draft.push(OperationCreated {
        replica: replica.clone(),
        kind: want.kind,
        deployment: want.deployment.cloned(),
        requested_by: want.requested_by.clone(),
        version: want.version.cloned(),
        node: want.node.cloned(),
        proposal,
        purpose: want.purpose,
    });
}

/// Incarnation that an update changes in place, and its target. Requires that the orchestrator can do so, and
/// that the resources and volumes stay the same.
fn changed_in_place<'a>(
    fleet: &'a FleetState,
    plan: &Plan,
    replica: &Replica,
    want: &OperationRequest<'_>,
) -> Option<(&'a Incarnation, &'a Deployment)> {
    let to = want.version.filter(|_| want.kind == OperationKind::Update)?;
    let to = fleet.deployment(&plan.name, to)?;
    let active = fleet.incarnations().get(&replica.active.as_ref()?.incarnation)?;
    let can = fleet.clusters().get(&active.cluster)?.spec.runtime.changes_in_place();
    let runs = matches!(active.state, IncarnationState::Running | IncarnationState::Updating(_));
    let version = plan.version_of(to.generation);
    let from = fleet.deployment(&plan.name, &active.deployment)?;
    let claims = plan.version_of(from.generation).claims(&replica.name).eq(version.claims(&replica.name));
    let mounts = volume::names(version, &replica.name);
    let alike = version.resources() == active.resources && mounts == active.ties.mounts;
    (can && runs && alike && claims).then_some((active, to))
}
